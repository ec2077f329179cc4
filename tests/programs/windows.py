"""Programs with operators that only PyTorch computes: one for each row, and models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import mirage_dsl as mirage
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ops.table import SPECIAL, SPECIAL_OF_TWO

F = torch.nn.functional
Function = Callable[..., Any]


@dataclass(frozen=True)
class Program:
    """A function, and the shapes of its arguments."""

    function: Function
    shapes: tuple[tuple[int, ...], ...]
    definite: bool = False
    """Whether they are positive definite matrices."""
    signed: bool = True
    """Whether results have one sign: singular vectors, and others, have either."""

    def inputs(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
        """Normal ones."""
        generator = torch.Generator().manual_seed(seed)
        found = [torch.randn(s, generator=generator).to(dtype) for s in self.shapes]
        return (
            [x @ x.mT + torch.eye(len(x.mT)) for x in found] if self.definite else found
        )

    @property
    def traced(self) -> KernelGraph:
        """What it is as a program."""
        return mirage.kernel(self.function).trace(*self.inputs())


def _program(function: Function, *shapes: tuple[int, ...]) -> Program:
    return Program(function, shapes)


def _recurrent(name: str, gates: int, states: int, result: int) -> Program:
    """A result of a recurrent layer in both directions."""
    layer = getattr(torch, name.removesuffix("_state").removesuffix("_memory"))

    def function(x: Tensor, *tensors: Tensor) -> Tensor:
        state = tensors[:states] if states > 1 else tensors[0]
        weights = tensors[states:]
        return layer(x, state, weights, False, 1, 0.0, False, True, False)[result]

    sides = [(gates * 4, 3), (gates * 4, 4)]
    return _program(function, (5, 2, 3), *[(2, 2, 4)] * states, *sides, *sides)


_LINE, _PLANE, _SPACE = (2, 4, 11), (2, 4, 9, 10), (2, 4, 5, 6, 7)


def _factor(
    call: str,
    part: int | None = None,
    *,
    definite: bool = False,
    signed: bool = True,
) -> Program:
    """A function of `torch.linalg`, or one of its results, of a batch of matrices."""

    def function(x: Tensor) -> Tensor:
        found = getattr(torch.linalg, call)(x)
        return found if part is None else found[part]

    shape = (4, 4) if definite else (2, 4, 4)
    return Program(function, (shape,), definite, signed)


def _transform(call: str, part: str) -> Program:
    """A part of a Fourier transform of two real tensors, or of one."""
    transform = getattr(torch.fft, call)
    if call == "rfft":
        return _program(lambda x: getattr(transform(x, dim=1), part), _LINE)
    complex = torch.complex
    return _program(
        lambda x, y: getattr(transform(complex(x, y), 12, 1), part), _LINE, _LINE
    )


_LINALG: Mapping[str, Program] = {
    **{name: _factor(name) for name in ("inv", "det", "svdvals", "matrix_exp")},
    "slogdet_sign": _factor("slogdet", 0),
    "slogdet": _factor("slogdet", 1),
    "cholesky": _factor("cholesky", definite=True),
    "qr_q": _factor("qr", 0),
    "qr_r": _factor("qr", 1),
    "svd_u": _factor("svd", 0, signed=False),
    "svd_s": _factor("svd", 1),
    "svd_v": _factor("svd", 2, signed=False),
    "eigh": _factor("eigh", 0),
    "eigh_vectors": _factor("eigh", 1, definite=True, signed=False),
    "eigvalsh": _factor("eigvalsh"),
    **{f"lu_{name}": _factor("lu", at) for at, name in enumerate("plu")},
    "lstsq": _program(
        lambda a, b: torch.linalg.lstsq(a, b).solution, (2, 6, 4), (2, 6, 3)
    ),
    "solve": _program(lambda a, b: torch.linalg.solve(a, b), (2, 4, 4), (2, 4, 3)),
    "solve_triangular": _program(
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
        *((2, 4, 4), (2, 4, 3)),
    ),
}
_TRANSFORMS: Mapping[str, Program] = {
    **{
        f"{call}_{part}": _transform(call, part)
        for call in ("fft", "ifft", "rfft")
        for part in ("real", "imag")
    },
    "irfft": _program(
        lambda x, y: torch.fft.irfft(torch.complex(x, y), 7, 1), _LINE, _LINE
    ),
}

_RECURRENT = {
    "lstm": (4, 2, 0),
    "lstm_state": (4, 2, 1),
    "lstm_memory": (4, 2, 2),
    "gru": (3, 1, 0),
    "gru_state": (3, 1, 1),
    "rnn_tanh": (1, 1, 0),
    "rnn_tanh_state": (1, 1, 1),
    "rnn_relu": (1, 1, 0),
    "rnn_relu_state": (1, 1, 1),
}
"""How many gates and states a layer has, and which of its results it is."""

_INTERPOLATED = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "bicubic": (2,),
    "trilinear": (3,),
}
"""The ranks of what PyTorch interpolates in each mode."""


def _interpolated(mode: str, rank: int, **options: Any) -> Program:
    corners = None if "nearest" in mode else rank == 2
    shape = (2, 4, 5, 6, 7)[: rank + 2]
    return _program(
        lambda x: F.interpolate(x, mode=mode, align_corners=corners, **options), shape
    )


def _row(mode: str, rank: int, kind: str) -> str:
    return f"upsample_{mode.replace('-', '_')}{rank}d{kind}"


_BY_FACTORS: Mapping[str, Program] = {
    _row(mode, rank, "_by"): _interpolated(mode, rank, scale_factor=1.3)
    for mode, ranks in _INTERPOLATED.items()
    for rank in ranks
}
_OF_MEANS: Mapping[str, Program] = {
    _row(mode, 2, kind): _interpolated(mode, 2, antialias=True, **told)
    for mode in ("bilinear", "bicubic")
    for kind, told in (
        ("_of_means", {"size": (3, 9)}),
        ("_by_of_means", {"scale_factor": 0.6}),
    )
}

_SAMPLED = {"bilinear": "zeros", "nearest": "border", "bicubic": "reflection"}
"""How planes are sampled, and what is outside of them."""


def _sampled(mode: str) -> Program:
    return _program(
        lambda x, g: F.grid_sample(x, g, mode, _SAMPLED[mode], mode == "bicubic"),
        *((2, 4, 5, 6), (2, 3, 7, 2)),
    )


def _special(name: str) -> Program:
    function = getattr(torch.special, name)
    return _program(lambda x: function(x), _LINE)


def _special_of_two(name: str) -> Program:
    function = getattr(torch.special, name)
    return _program(lambda x, y: function(x, y), _LINE, _LINE)


_POOLS: Mapping[str, tuple[Function, tuple[int, ...]]] = {
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True), _LINE),
    "max_pool2d": (
        lambda x: F.max_pool2d(x, 2, (2, 1), 1, (2, 1), True, True),
        _PLANE,
    ),
    "max_pool3d": (lambda x: F.max_pool3d(x, 3, 1, return_indices=True), _SPACE),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 4, True), _LINE),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (2, 3), True), _PLANE),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 3, True), _SPACE),
}
"""Largest elements of windows, and their places."""


def _pooled(name: str, part: int) -> Program:
    function, shape = _POOLS[name]
    return _program(lambda x: function(x)[part], shape)


ROWS: Mapping[str, Program] = {
    **{f"{name}_found": _pooled(name, 0) for name in _POOLS},
    **{f"{name}_places": _pooled(name, 1) for name in _POOLS},
    "conv1d": _program(lambda x, w: F.conv1d(x, w, None, 2, 1, 2), _LINE, (6, 4, 3)),
    "conv2d": _program(
        lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 0), (1, 2), 2),
        *(_PLANE, (6, 2, 3, 2)),
    ),
    "conv3d": _program(
        lambda x, w: F.conv3d(x, w, None, 1, (1, 0, 1)), _SPACE, (6, 4, 3, 2, 3)
    ),
    "conv_transpose1d": _program(
        lambda x, w: F.conv_transpose1d(x, w, None, 2, 1, 1), _LINE, (4, 6, 3)
    ),
    "conv_transpose2d": _program(
        lambda x, w: F.conv_transpose2d(x, w, None, (2, 1), 1, (1, 0), 2, (1, 2)),
        *(_PLANE, (4, 3, 3, 3)),
    ),
    "conv_transpose3d": _program(
        lambda x, w: F.conv_transpose3d(x, w, None, 2), _SPACE, (4, 3, 2, 2, 3)
    ),
    "max_pool1d": _program(lambda x: F.max_pool1d(x, 3, 2, 1), _LINE),
    "max_pool2d": _program(
        lambda x: F.max_pool2d(x, 2, 2, 1, (2, 1), ceil_mode=True), _PLANE
    ),
    "max_pool3d": _program(lambda x: F.max_pool3d(x, 3, 1), _SPACE),
    "avg_pool1d": _program(lambda x: F.avg_pool1d(x, 3, 2, 1), _LINE),
    "avg_pool2d": _program(
        lambda x: F.avg_pool2d(x, (3, 2), 2, 1, True, False), _PLANE
    ),
    "avg_pool3d": _program(lambda x: F.avg_pool3d(x, 2, 1), _SPACE),
    "adaptive_avg_pool1d": _program(lambda x: F.adaptive_avg_pool1d(x, 4), _LINE),
    "adaptive_avg_pool2d": _program(
        lambda x: F.adaptive_avg_pool2d(x, (4, None)), _PLANE
    ),
    "adaptive_avg_pool3d": _program(lambda x: F.adaptive_avg_pool3d(x, 3), _SPACE),
    "adaptive_max_pool1d": _program(lambda x: F.adaptive_max_pool1d(x, 4), _LINE),
    "adaptive_max_pool2d": _program(lambda x: F.adaptive_max_pool2d(x, (2, 3)), _PLANE),
    "adaptive_max_pool3d": _program(lambda x: F.adaptive_max_pool3d(x, 3), _SPACE),
    "upsample_nearest1d": _program(lambda x: F.interpolate(x, 17), _LINE),
    "upsample_nearest2d": _program(lambda x: F.interpolate(x, scale_factor=2), _PLANE),
    "upsample_nearest3d": _program(lambda x: F.interpolate(x, (7, 8, 9)), _SPACE),
    "upsample_nearest_exact1d": _program(
        lambda x: F.interpolate(x, 17, mode="nearest-exact"), _LINE
    ),
    "upsample_nearest_exact2d": _program(
        lambda x: F.interpolate(x, (13, 7), mode="nearest-exact"), _PLANE
    ),
    "upsample_nearest_exact3d": _program(
        lambda x: F.interpolate(x, 8, mode="nearest-exact"), _SPACE
    ),
    "upsample_linear1d": _program(lambda x: F.interpolate(x, 17, mode="linear"), _LINE),
    "upsample_bilinear2d": _program(
        lambda x: F.interpolate(x, (13, 20), mode="bilinear", align_corners=True),
        _PLANE,
    ),
    "upsample_bicubic2d": _program(
        lambda x: F.interpolate(x, (5, 20), mode="bicubic"), _PLANE
    ),
    "upsample_trilinear3d": _program(
        lambda x: F.interpolate(
            x, scale_factor=1.3, mode="trilinear", recompute_scale_factor=True
        ),
        _SPACE,
    ),
    **_BY_FACTORS,
    **_OF_MEANS,
    "flip": _program(lambda x: x.flip(1), (2, 70, 3)),
    "sort": _program(lambda x: torch.sort(x, 1).values, _LINE),
    "argsort": _program(lambda x: torch.argsort(x, 0, descending=True), _LINE),
    "topk": _program(lambda x: torch.topk(x, 3).values, _LINE),
    "argtopk": _program(lambda x: x.topk(2, 1, largest=False).indices, _LINE),
    "kthvalue": _program(lambda x: torch.kthvalue(x, 2, 1)[0], _LINE),
    "argkthvalue": _program(lambda x: x.kthvalue(3, keepdim=True)[1], _LINE),
    "median": _program(lambda x: torch.median(x, 1).values, _LINE),
    "argmedian": _program(lambda x: x.median(-1, keepdim=True).indices, _LINE),
    "mode": _program(lambda x: torch.mode(x, 1).values, _LINE),
    "argmode": _program(lambda x: x.mode(-1, keepdim=True).indices, _LINE),
    "cummax": _program(lambda x: torch.cummax(x, 1).values, _LINE),
    "argcummax": _program(lambda x: x.cummax(-1).indices, _LINE),
    "cummin": _program(lambda x: torch.cummin(x, 0)[0], _LINE),
    "argcummin": _program(lambda x: x.cummin(2)[1], _LINE),
    "logcumsumexp": _program(lambda x: x.logcumsumexp(1), _LINE),
    **{name: _special(name) for name in SPECIAL},
    **{name: _special_of_two(name) for name in SPECIAL_OF_TWO},
    "polygamma": _program(lambda x: torch.polygamma(2, x), _LINE),
    "fold": _program(
        lambda x: F.fold(x, (4, 5), (2, 3), 1, (1, 0), (2, 1)), (2, 12, 9)
    ),
    **{f"grid_sample_{mode}": _sampled(mode) for mode in _SAMPLED},
    **_LINALG,
    **_TRANSFORMS,
    **{name: _recurrent(name, *how) for name, how in _RECURRENT.items()},
}
"""A program for each row, whose only operator is that."""


def divisors() -> KernelGraph:
    """What only PyTorch computes, of integers."""
    x = torch.ones(_LINE, dtype=torch.int64)
    return mirage.kernel(lambda x, y: torch.gcd(x, y)).trace(x, x)


def _residual(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Its result and its operand have the same dims."""
    return F.relu(F.conv2d(x, w, b, padding=1) + x)


def _normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The channels of the result are split."""
    return F.group_norm(F.relu(F.conv2d(x, w, b, stride=2)), 2)


def _transposed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.conv_transpose2d(x, w, b, 2, 1, 1)
    return torch.softmax(torch.clamp(y * 2, -1, 1), 1)


def _blocks(x: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Two convolutions that are alike, and what is fused between them."""
    h = F.silu(F.conv2d(x, u, padding=1))
    return F.conv2d(h, v, padding=1) * torch.sigmoid(x)


def _product_pooled(x: Tensor, w: Tensor) -> Tensor:
    y = F.gelu(x @ w.T)
    return F.max_pool1d(y[:, None], 3, 2)[:, 0] * 0.5


MODELS: Mapping[str, Program] = {
    "residual": _program(_residual, (2, 4, 6, 5), (4, 4, 3, 3), (4,)),
    "normed": _program(_normed, (2, 3, 9, 8), (6, 3, 3, 3), (6,)),
    "transposed": _program(_transposed, (2, 3, 4, 5), (3, 4, 3, 3), (4,)),
    "blocks": _program(_blocks, (1, 4, 6, 6), (4, 4, 3, 3), (4, 4, 3, 3)),
    "product, pooled": _program(_product_pooled, (4, 16), (21, 16)),
}
"""Programs with generated kernels around such operators."""
