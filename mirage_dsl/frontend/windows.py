"""PyTorch's functions of windows: convolutions, pooling, interpolation.

What no generated kernel computes becomes a library operator, which PyTorch runs; what
is a product or a reduction of whole axes becomes that, so that it is searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mirage_dsl.core.errors import (
    CheckError,
    DTypeError,
    ShapeError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.core.types import boolean, f32
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend import views as v
from mirage_dsl.frontend.arguments import is_sequence
from mirage_dsl.frontend.composites import einsum
from mirage_dsl.frontend.dims import DimVars
from mirage_dsl.frontend.operands import as_tensor
from mirage_dsl.frontend.rearranging import pad, unfold, windows_along
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ops.table import OPERATORS

Function = Callable[..., Any]
_RANKS = (1, 2, 3)


def _several(value: Any, rank: int, what: str) -> tuple[int, ...]:
    """An integer for each axis of a window, of which one may be given for all."""
    given = tuple(value) if is_sequence(value) else (value,)
    if len(given) not in (1, rank):
        raise ShapeError(
            f"{what} of {rank} axes takes 1 or {rank} integers, found {len(given)}",
            user_location(),
        )
    found = tuple(shapes.integer(n, what) for n in given)
    return found * (rank // len(found))


def _called(
    name: str,
    operands: Sequence[Tensor],
    numbers: Mapping[str, tuple[int, ...]],
    kept: Mapping[int, DimVars],
) -> Tensor:
    """A library operator's result.

    Args:
        name: Of its row.
        operands: With the axes that it knows by their places.
        numbers: Its attributes that are integers.
        kept: By the places of axes of the result, the axes that they are.
    """
    for operand in operands:
        if operand.handle.value.dtype == boolean:
            raise DTypeError(
                f"{name} of truth values; cast them to numbers", user_location()
            )
    recorder = operands[0].recorder
    try:
        handles = [operand.handle for operand in operands]
        made = recorder.library(OPERATORS[name], handles, numbers, kept)
    except CheckError as error:
        raise ShapeError(f"{name}: {error.message}", user_location()) from None
    return Tensor.made(recorder, made, operands)


def _batched(function: Callable[[Tensor], Tensor], x: Any, rank: int, what: str) -> Any:
    """A function of a batch, of one item too; it has channels and so many axes.

    Raises:
        ShapeError: The tensor has another rank.
    """
    x = as_tensor(what, x)
    if x.ndim == rank + 2:
        return function(x)
    if x.ndim != rank + 1:
        raise ShapeError(
            f"{what} takes a tensor of rank {rank + 1} or {rank + 2}, found rank "
            f"{x.ndim}",
            user_location(),
        )
    return v.squeeze(function(v.unsqueeze(x, 0)), 0)


# -- Convolutions ----------------------------------------------------------------------


def _biased(x: Tensor, bias: Any, rank: int) -> Any:
    return x if bias is None else x + v.reshape(bias, (-1,) + (1,) * rank)


def _padding(
    padding: Any, window: Sequence[int], dilation: Sequence[int], what: str
) -> tuple[int, ...]:
    """The padding at either side; `same` and `valid` are names of some."""
    rank = len(window)
    if padding == "valid":
        return (0,) * rank
    if padding != "same":
        return _several(padding, rank, f"padding of {what}")
    both = [d * (n - 1) for d, n in zip(dilation, window, strict=True)]
    if any(n % 2 for n in both):
        raise UnsupportedError(
            f"{what} with padding='same' pads one side more than the other here; pad "
            "the tensor before it",
            user_location(),
        )
    return tuple(n // 2 for n in both)


def _weight(weight: Any, rank: int, what: str) -> tuple[Tensor, tuple[int, ...]]:
    """The weight of a convolution, and its window."""
    weight = as_tensor(what, weight)
    if weight.ndim != rank + 2:
        raise ShapeError(
            f"{what} takes a weight of rank {rank + 2}, found rank {weight.ndim}",
            user_location(),
        )
    return weight, tuple(int(n) for n in weight.shape[2:])


def _of_channels(x: Tensor, weight: Tensor, made: str) -> Any:
    """A product over channels for each point: what a window of one point is."""
    rank = x.ndim - 2
    flat = v.reshape(weight, tuple(weight.shape[:2]))
    axes = "xyz"[:rank]
    return einsum(f"nc{axes},{made}->nk{axes}", x, flat)


def _conv(
    rank: int,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> Any:
    """PyTorch's convolution over so many axes."""
    what = f"conv{rank}d"
    weight, window = _weight(weight, rank, what)
    dilation = _several(dilation, rank, f"dilation of {what}")
    numbers = {
        "stride": _several(stride, rank, f"stride of {what}"),
        "padding": _padding(padding, window, dilation, what),
        "dilation": dilation,
        "groups": _several(groups, 1, f"groups of {what}"),
    }

    def run(x: Tensor) -> Any:
        kept = {0: x.handle.axes[0], 1: weight.handle.axes[0]}
        own = _is_product(window, numbers) and _is_exact(x)
        if own and x.shape[1] == weight.shape[1]:
            return _biased(_of_channels(x, weight, "kc"), bias, rank)
        found = _called(what, (x, weight), numbers, kept)
        return _biased(found, bias, rank)

    return _batched(run, x, rank, what)


def _conv_transpose(
    rank: int,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Any = 1,
    dilation: Any = 1,
) -> Any:
    """PyTorch's transposed convolution over so many axes."""
    what = f"conv_transpose{rank}d"
    weight, window = _weight(weight, rank, what)
    numbers = {
        "stride": _several(stride, rank, f"stride of {what}"),
        "padding": _several(padding, rank, f"padding of {what}"),
        "output_padding": _several(output_padding, rank, f"output_padding of {what}"),
        "dilation": _several(dilation, rank, f"dilation of {what}"),
        "groups": _several(groups, 1, f"groups of {what}"),
    }

    def run(x: Tensor) -> Any:
        kept = {0: x.handle.axes[0]}
        if numbers["groups"] == (1,):
            kept[1] = weight.handle.axes[1]
        own = _is_product(window, numbers) and _is_exact(x)
        if own and x.shape[1] == weight.shape[0]:
            return _biased(_of_channels(x, weight, "ck"), bias, rank)
        found = _called(what, (x, weight), numbers, kept)
        return _biased(found, bias, rank)

    return _batched(run, x, rank, what)


def _is_product(window: Sequence[int], numbers: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a window of one point meets every point once, and all channels."""
    one = (*window, *numbers["stride"], *numbers["groups"])
    none = (*numbers["padding"], *numbers.get("output_padding", ()))
    return set(one) == {1} and not any(none)


def _is_exact(x: Tensor) -> bool:
    """Whether PyTorch computes a convolution as exactly as a product of its points.

    It rounds those of f32 to TF32 by default, but no products: these take many times
    as long then, which matters where there are many points.
    """
    return x.handle.value.dtype != f32 or all(n == 1 for n in x.shape[2:])


# -- Pooling ---------------------------------------------------------------------------


def _over_windows(x: Tensor, window: Sequence[int], reduce: Function) -> Any | None:
    """A reduction of windows that lie side by side; None if axes do not split so.

    Those in space are left to PyTorch: of eight dims a search has too many ways to
    split, and comes to no end.
    """
    sizes = x.shape[2:]
    known = [n if isinstance(n, int) else 0 for n in sizes]
    if any(not n or n % w for n, w in zip(known, window, strict=True)):
        return None
    axes = tuple(range(2, 2 + len(window)))
    if tuple(known) == tuple(window):
        return reduce(x, axes, keepdims=True)
    if len(window) > 2:
        return None
    pairs = [(n // w, w) for n, w in zip(known, window, strict=True)]
    shape = (*x.shape[:2], *(n for pair in pairs for n in pair))
    try:
        split = v.reshape(x, shape)
    except UnsupportedError:
        return None
    return reduce(split, tuple(2 * a - 1 for a in axes))


def _pool(kind: str, rank: int, x: Any, numbers: Mapping[str, tuple[int, ...]]) -> Any:
    """A pooling operator of rows `avg_pool` and `max_pool`."""
    window = numbers["kernel"]
    plain = numbers["stride"] == window and not any(numbers["padding"])
    plain &= set(numbers.get("dilation", (1,))) == {1}

    def run(x: Tensor) -> Any:
        reduce = f.mean if kind == "avg_pool" else f.max
        found = _over_windows(x, window, reduce) if plain else None
        return _pooled(f"{kind}{rank}d", x, numbers) if found is None else found

    return _batched(run, x, rank, f"{kind}{rank}d")


def _pooled(name: str, x: Tensor, numbers: Mapping[str, tuple[int, ...]]) -> Tensor:
    """A library operator that leaves the batch and the channels as they are."""
    return _called(name, (x,), numbers, dict(enumerate(x.handle.axes[:2])))


def _max_pool(
    rank: int,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """PyTorch's largest elements of windows over so many axes."""
    what = f"max_pool{rank}d"
    if return_indices:
        raise UnsupportedError(
            f"{what} with return_indices=True; take the values alone", user_location()
        )
    numbers = _windows(what, rank, kernel_size, stride, padding, ceil_mode)
    numbers["dilation"] = _several(dilation, rank, f"dilation of {what}")
    return _pool("max_pool", rank, x, numbers)


def _avg_pool(
    rank: int,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """PyTorch's means of windows over so many axes."""
    what = f"avg_pool{rank}d"
    numbers = _windows(what, rank, kernel_size, stride, padding, ceil_mode)
    if divisor_override is None:
        numbers["padded"] = (int(count_include_pad),)
        return _pool("avg_pool", rank, x, numbers)
    if any(numbers["padding"]) or ceil_mode:
        raise UnsupportedError(
            f"{what} with divisor_override and padding or ceil_mode; leave one out",
            user_location(),
        )
    numbers["padded"] = (1,)
    factor = math.prod(numbers["kernel"]) / divisor_override
    return _pool("avg_pool", rank, x, numbers) * factor


def _windows(
    what: str, rank: int, kernel: Any, stride: Any, padding: Any, ceil: bool
) -> dict[str, tuple[int, ...]]:
    """What all kinds of windows have."""
    window = _several(kernel, rank, f"kernel_size of {what}")
    given = stride is not None and stride != ()
    return {
        "kernel": window,
        "stride": _several(stride, rank, f"stride of {what}") if given else window,
        "padding": _several(padding, rank, f"padding of {what}"),
        "ceil": (int(ceil),),
    }


def _adaptive_pool(
    kind: str, rank: int, x: Any, output_size: Any, return_indices: bool = False
) -> Any:
    """PyTorch's pooling to a size."""
    what = f"adaptive_{kind}_pool{rank}d"
    if return_indices:
        raise UnsupportedError(
            f"{what} with return_indices=True; take the values alone", user_location()
        )

    def run(x: Tensor) -> Any:
        wanted = output_size if is_sequence(output_size) else (output_size,) * rank
        pairs = zip(wanted, x.shape[2:], strict=True)
        size = _several([n if w is None else w for w, n in pairs], rank, what)
        reduce = f.mean if kind == "avg" else f.max
        found = None
        if all(isinstance(n, int) for n in x.shape[2:]):
            known = [int(n) for n in x.shape[2:]]
            if not any(n % s for n, s in zip(known, size, strict=True)):
                window = [n // s for n, s in zip(known, size, strict=True)]
                found = _over_windows(x, window, reduce)
        return _pooled(what, x, {"size": size}) if found is None else found

    return _batched(run, x, rank, what)


def _lp_pool(
    rank: int,
    x: Any,
    norm_type: float,
    kernel_size: Any,
    stride: Any = None,
    ceil_mode: bool = False,
) -> Any:
    """PyTorch's norms of windows over so many axes, by roots of sums of powers."""
    window = _several(kernel_size, rank, f"kernel_size of lp_pool{rank}d")
    powers = f.pow(x, norm_type)
    found = _avg_pool(rank, powers, window, stride, 0, ceil_mode) * math.prod(window)
    return f.pow(found, 1 / norm_type)


# -- Windows as columns ----------------------------------------------------------------


def im2col(
    x: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Any:
    """The windows of planes as columns, PyTorch's `torch.nn.functional.unfold`."""
    what = "unfold"
    window = _several(kernel_size, 2, f"kernel_size of {what}")
    apart = _several(dilation, 2, f"dilation of {what}")
    around = _several(padding, 2, f"padding of {what}")
    steps = _several(stride, 2, f"stride of {what}")
    if min(*window, *apart, *steps) < 1 or min(around) < 0:
        raise ShapeError(
            f"{what} with kernel_size={window}, dilation={apart}, padding={around}, "
            f"stride={steps}; expected positive numbers, and a padding of 0 or more",
            user_location(),
        )

    def run(x: Tensor) -> Any:
        if any(around):
            x = pad(x, [n for n in reversed(around) for _ in range(2)])
        for axis, size, step, gap in zip((2, 3), window, steps, apart, strict=True):
            side_by_side = gap == 1 and step == size
            x = (
                unfold(x, axis, size, step)
                if side_by_side
                else windows_along(x, axis, size, step, gap)
            )
        batch, channels, rows, columns, *_ = x.shape
        found = v.permute(x, 0, 1, 4, 5, 2, 3)
        wide = channels * math.prod(window)
        return v.reshape(found, batch, wide, rows * columns).clone()

    return _batched(run, x, 2, what)


def local_response_norm(
    x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    """X over a power of the mean square of so many channels about each."""
    x = as_tensor("local_response_norm", x)
    if x.ndim < 3:
        raise ShapeError(
            f"local_response_norm of a tensor of rank {x.ndim}; expected 3 or more",
            user_location(),
        )
    behind = [0] * (2 * (x.ndim - 2))
    wide = pad(f.square(x), [*behind, size // 2, (size - 1) // 2])
    mean = f.mean(windows_along(wide, 1, size, 1), -1)
    return x / f.pow(mean * alpha + k, beta)


# -- Interpolation ---------------------------------------------------------------------

_MODES = {
    "nearest": "nearest",
    "nearest-exact": "nearest_exact",
    "linear": "linear",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
    "trilinear": "trilinear",
}
"""PyTorch's names of modes, and what the rows are called by."""


def interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """PyTorch's interpolation to a size, or by a factor."""
    x = as_tensor("interpolate", x)
    rank = x.ndim - 2
    name = f"upsample_{_MODES.get(mode, mode)}{rank}d"
    if (mode != "area" and name not in OPERATORS) or antialias:
        raise UnsupportedError(
            f"interpolate with mode={mode!r}, antialias={antialias} of a tensor of "
            f"rank {x.ndim}; expected a mode of PyTorch's for that rank, and no "
            "antialias",
            user_location(),
        )
    recomputed = bool(recompute_scale_factor)
    wanted = _size(x, size, scale_factor, recomputed=recomputed)
    if mode == "area":
        return _adaptive_pool("avg", rank, x, wanted)
    numbers = {"size": wanted}
    if "corners" in OPERATORS[name].attributes:
        numbers["corners"] = (int(bool(align_corners)),)
    return _pooled(name, x, numbers)


def _size(x: Tensor, size: Any, scale: Any, *, recomputed: bool) -> tuple[int, ...]:
    """The extents to interpolate to.

    Raises:
        UnsupportedError: A factor is not that of the extents, as PyTorch would compute
            with it all the same.
    """
    rank = x.ndim - 2
    if size is not None:
        return _several(size, rank, "size of interpolate")
    factors = [float(s) for s in (scale if is_sequence(scale) else (scale,) * rank)]
    known = [shapes.integer(n, "an extent of interpolate") for n in x.shape[2:]]
    exact = [n * s for n, s in zip(known, factors, strict=True)]
    if not recomputed and any(e != int(e) for e in exact):
        raise UnsupportedError(
            f"interpolate of {tuple(known)} by {tuple(factors)}, which gives no whole "
            "extents; pass size=, or recompute_scale_factor=True",
            user_location(),
        )
    return tuple(math.floor(e) for e in exact)


def _ranked(name: str, function: Function) -> dict[str, Function]:
    """A function for each number of axes, by PyTorch's names."""
    return {f"{name}{rank}d": partial(function, rank) for rank in _RANKS}


WINDOWS: dict[str, Function] = {
    **_ranked("conv", _conv),
    **_ranked("conv_transpose", _conv_transpose),
    **_ranked("max_pool", _max_pool),
    **_ranked("avg_pool", _avg_pool),
    **_ranked("lp_pool", _lp_pool),
    **_ranked("adaptive_avg_pool", partial(_adaptive_pool, "avg")),
    **_ranked("adaptive_max_pool", partial(_adaptive_pool, "max")),
    "interpolate": interpolate,
    "local_response_norm": local_response_norm,
    "upsample": interpolate,
}
"""By PyTorch's names."""
