"""Weights of 8-bit floats and results quantised to 8 bits: one kernel, verified, run.

What the search finds runs in Triton's interpreter and gives what eager PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.types import dtype_of
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.program import Cast, walk

Function = Callable[..., Any]
SEEDS = range(20)
F8 = torch.float8_e4m3fn


def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return scale * torch.randn(shape, generator=generator)


def by_channel(x: Any, w: Any, scale: Any) -> Any:
    return x @ (w.to(x.dtype) * scale)


def by_tensor(x: Any, w: Any, scale: Any) -> Any:
    return functional.silu(functional.linear(x, w.to(x.dtype)) * scale)


def by_group(x: Any, w: Any, scale: Any) -> Any:
    return torch.einsum("mgs,gsn->mn", x, w.to(x.dtype) * scale[:, None])


def both_narrow(x: Any, w: Any, row: Any, column: Any) -> Any:
    return (x.float() @ w.float()) * row * column


def cast_activations(x: Any, w: Any) -> Any:
    return x.to(F8).to(x.dtype) @ w.to(x.dtype)


def norm_to_f8(x: Any, w: Any) -> Any:
    y = functional.rms_norm(x.float(), (x.shape[-1],), w.float())
    scale = y.abs().amax(-1, keepdim=True) / 448
    return (y / scale).to(F8), scale


def norm_to_i8(x: Any, w: Any) -> Any:
    y = functional.layer_norm(x.float(), (x.shape[-1],), w.float())
    scale = (y.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-8)
    return (y / scale).round().clamp(-127, 127).to(torch.int8), scale


def silu_by_block(x: Any, y: Any) -> Any:
    z = (functional.silu(x.float()) * y.float()).unflatten(-1, (-1, 32))
    scale = z.abs().amax(-1, keepdim=True) / 57344
    return (z / scale).to(torch.float8_e5m2).flatten(-2), scale.squeeze(-1)


CASES: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "weights by channel": (
        by_channel,
        [normal(16, 64).half(), normal(64, 32, scale=20).to(F8), normal(32).half()],
    ),
    "weights by tensor": (
        by_tensor,
        [
            normal(8, 64).bfloat16(),
            normal(48, 64).to(torch.float8_e5m2),
            torch.tensor(0.125),
        ],
    ),
    "weights by group": (
        by_group,
        [
            normal(16, 4, 16).half(),
            normal(4, 16, 32, scale=20).to(F8),
            normal(4, 32).half(),
        ],
    ),
    "both": (
        both_narrow,
        [
            normal(16, 64, scale=20).to(F8),
            normal(64, 32, scale=20).to(torch.float8_e5m2),
            normal(16, 1).abs(),
            normal(32).abs(),
        ],
    ),
    "activations": (
        cast_activations,
        [normal(16, 64).half(), normal(64, 32, scale=20).to(F8)],
    ),
    "norm to f8 by row": (norm_to_f8, [normal(24, 64).half(), normal(64).half()]),
    "norm to i8 by row": (norm_to_i8, [normal(24, 64).half(), normal(64).half()]),
    "gate to f8 by block": (
        silu_by_block,
        [normal(12, 128).half(), normal(12, 128).half().flip(0)],
    ),
}
TURNED = 2e-3
"""The share of quantised numbers that may be a neighbour, where f32 sums in another
order."""


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_one_kernel_that_computes_what_pytorch_does(name: str) -> None:
    function, tensors = CASES[name]
    program = mirage.kernel(function).trace(*tensors)
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    assert len(best.mugraph.blocks) == 1
    assert all(n.is_view for n in best.mugraph.applies), "library kernels are left"
    assert parse(str(best.mugraph)) == best.mugraph
    expected = function(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = TritonExecutable(best.mugraph, interpret=True)(*tensors)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        if one.itemsize == 1:
            assert (one.double() != other.double()).double().mean() <= TURNED
        else:
            error = (one.double() - other.double()).norm() / other.double().norm()
            assert error < (2e-2 if one.dtype == torch.bfloat16 else 3e-3)
    assert mirage.compile_only(best.mugraph)


def test_weights_cost_their_bytes() -> None:
    """At one row the bytes of the weights are all the work."""
    seen: dict[str, float] = {}
    for dtype in (torch.float16, F8):
        specs = [
            mirage.spec((1, 4096), "float16"),
            mirage.spec((4096, 4096), dtype),
            mirage.spec((4096,), "float16"),
        ]
        program = mirage.kernel(by_channel).trace(*specs)
        found = mirage.superoptimize(program, effort="quick", use_cache=False)
        seen[str(dtype_of(dtype))] = found.best.cost.bytes
    assert seen["f8e4m3"] < 0.51 * seen["f16"]


# -- What must not be accepted ---------------------------------------------------------


def _traced(function: Function) -> KernelGraph:
    shapes = {"x": (6, 12), "q": (12, 8), "s": (8,), "y": (6, 4, 16)}
    shapes |= {"p": (4, 16, 8), "t": (5, 8)}
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    formats = dict.fromkeys("qp", "float8_e4m3fn")
    specs = [mirage.spec(shapes[n], formats.get(n, "float16")) for n in names]
    return mirage.kernel(function).trace(*specs)


def _scaled(x: Any, most: float, size: Any) -> Any:
    scale = size(x.float()).amax(-1, keepdim=True) / most
    return (x.float() / scale).to(F8), scale


WRONG: dict[str, tuple[Function, Function]] = {
    "the rounding left out": (
        lambda x: x.to(F8).to(x.dtype),
        lambda x: x.to(x.dtype) * 1.0,
    ),
    "rounded before the scale": (
        lambda x, s: (x[:, :8] * s).to(F8),
        lambda x, s: (x[:, :8].to(F8).to(x.dtype) * s).to(F8),
    ),
    "the other format": (
        lambda x: x.to(F8).to(x.dtype),
        lambda x: x.to(torch.float8_e5m2).to(x.dtype),
    ),
    "the scale of the next group": (
        lambda y, p, t: by_group(y, p, t[:-1]),
        lambda y, p, t: by_group(y, p, t[1:]),
    ),
    "the scale of the rows": (
        lambda x, q, s: x @ (q.to(x.dtype) * s),
        lambda x, q, s: x @ (q.to(x.dtype) * s.sum()),
    ),
    "the largest number, not the largest size": (
        lambda x: _scaled(x, 448, torch.abs),
        lambda x: _scaled(x, 448, lambda v: v),
    ),
    "the scale of integers": (
        lambda x: _scaled(x, 448, torch.abs),
        lambda x: _scaled(x, 127, torch.abs),
    ),
    "truncated, not rounded": (
        lambda x: (x * 20).round().to(torch.int8),
        lambda x: (x * 20).to(torch.int8),
    ),
    "rounded half up": (
        lambda x: (x * 20).round().to(torch.int8),
        lambda x: (x * 20 + 0.5).floor().to(torch.int8),
    ),
    "not clamped": (
        lambda x: (x * 90).round().clamp(-127, 127).to(torch.int8),
        lambda x: (x * 90).round().to(torch.int8),
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_quantised_otherwise_is_never_accepted(name: str) -> None:
    right, wrong = map(_traced, WRONG[name])
    for seed in SEEDS:
        found = mirage.verify(wrong, right, seed=seed, stability=False)
        assert not found.equivalent, seed


RIGHT: dict[str, tuple[Function, Function]] = {
    "scales behind": (
        lambda x, q, s: x @ (q.to(x.dtype) * s),
        lambda x, q, s: (x @ q.to(x.dtype)) * s,
    ),
    "the reciprocal": (
        lambda x, s: (x[:, :8] / s).to(F8),
        lambda x, s: (x[:, :8] * (1 / s)).to(F8),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_holds_of_them_is_accepted(name: str) -> None:
    one, other = map(_traced, RIGHT[name])
    assert mirage.verify(other, one, stability=False).equivalent


# -- Weights of 4 bits, at one row -----------------------------------------------------


def unpacked(packed: Any, scale: Any, dtype: torch.dtype) -> Any:
    """Two numbers a byte, of rows 2j and 2j + 1; a scale for each group of rows."""
    shifts = torch.arange(2, device=packed.device) * 4
    value = (packed.unsqueeze(1) >> shifts[:, None].to(packed.dtype)) & 15
    value = (value.to(torch.int8) - 8).to(dtype)
    value = value.reshape(scale.shape[0], -1, scale.shape[1]) * scale[:, None]
    return value.reshape(-1, scale.shape[1])


def gated(x: Any, q1: Any, s1: Any, q2: Any, s2: Any) -> Any:
    one, other = unpacked(q1, s1, x.dtype), unpacked(q2, s2, x.dtype)
    return functional.silu(x @ one) * (x @ other)


@pytest.mark.sample(0)
def test_nibbles_are_multiplied_where_they_are_unpacked() -> None:
    """One kernel reads each byte once, and rounds no weight on its way to a sum."""
    generator = torch.Generator().manual_seed(5)
    packed = torch.randint(0, 256, (2, 128, 64), generator=generator).to(torch.uint8)
    scales = normal(2, 8, 64, scale=0.1).half()
    tensors = [normal(1, 256).half(), packed[0], scales[0], packed[1], scales[1]]
    program = mirage.kernel(gated).trace(*tensors)
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    (block,) = best.mugraph.blocks
    assert [load.source for load in block.loads].count("q1") == 1
    (found,) = TritonExecutable(best.mugraph, interpret=True)(*tensors)
    right = gated(*(t.double() if t.is_floating_point() else t for t in tensors))
    assert (found.double() - right).norm() / right.norm() < 3e-3
    assert mirage.compile_only(best.mugraph)


TEXT = """mirage 1

mugraph f(x: f16[k], q: {0}[k, n]) -> f16[n] where k = 64, n = 32 {{
  y = block grid(n / 16) {{
    xt = load x[k]
    qt = load q[k, n/grid]
    {1}
    wide = cast w dtype(f16)
    p = matmul xt, wide over(k)
    store y[n/grid] = p
  }}
  return y
}}
"""


@pytest.mark.parametrize(
    ("dtype", "line", "rounds"),
    [
        ("i8", "w = to_f32 qt", False),
        ("f8e4m3", "w = exp qt", True),
        ("i8", "v = to_f32 qt\n    w = exp v", True),
        ("i16", "w = to_f32 qt", True),
    ],
)
def test_casts_that_change_nothing_are_made_for_the_matrix_unit_alone(
    dtype: str, line: str, rounds: bool
) -> None:
    """A vector is multiplied in f32, where bytes are what they are."""
    graph = parse(TEXT.format(dtype, line))
    (program,) = programs(graph)
    casts = [s for s, _ in walk(program.body) if isinstance(s, Cast)]
    assert bool(casts) is rounds
