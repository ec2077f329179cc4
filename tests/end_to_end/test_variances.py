"""Variances of long rows from those of parts: the law, its mutants, and norms by it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.hardware import H200
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.definition import Kind
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.layouts import flattened
from mirage_dsl.rewrite.sums import in_parts, read_in_turn
from mirage_dsl.search.driver import search
from mirage_dsl.search.result import SearchResult
from mirage_dsl.search.rewrites import REWRITES
from mirage_dsl.verify.verifier import verify

F = torch.nn.functional
PART = 128
"""Elements of a part at most, of rows that are short enough for tests."""


def groups(x: Any, w: Any, b: Any) -> Any:
    return F.silu(F.group_norm(x, 2, w, b))


def layer(x: Any, w: Any, b: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], w, b)


def images(x: Any) -> Any:
    return F.instance_norm(x)


def batches(x: Any, w: Any, b: Any) -> Any:
    return F.batch_norm(x, None, None, w, b, True)


def by_hand(x: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return (centred * centred).mean(-1)


def deviation(x: Any) -> Any:
    return torch.std(x, (1, 2))


def of_everything(x: Any) -> Any:
    return x.var(correction=0)


def of_computed(x: Any, y: Any) -> Any:
    return F.layer_norm(torch.relu(x) + y, x.shape[-1:])


def both(x: Any) -> Any:
    variance, mean = torch.var_mean(x, -1, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + 1e-5), variance


SHAPES: dict[Any, tuple[tuple[int, ...], ...]] = {
    groups: ((2, 6, 8, 12), (6,), (6,)),
    layer: ((3, 640), (640,), (640,)),
    images: ((2, 3, 16, 24),),
    batches: ((8, 3, 8, 12), (3,), (3,)),
    by_hand: ((3, 640),),
    deviation: ((3, 5, 120),),
    of_everything: ((20, 64),),
    of_computed: ((3, 640), (3, 640)),
    both: ((3, 640),),
}
PROGRAMS = [
    pytest.param(f, dtype, id=f"{f.__name__}-{str(dtype)[6:]}")
    for f in SHAPES
    for dtype in (torch.float16, torch.float32)
]


def drawn(function: Any, dtype: torch.dtype, shapes: Any = None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(s, generator=generator) + 0.5).to(dtype)
        for s in shapes or SHAPES[function]
    ]


def program_of(function: Any, dtype: torch.dtype) -> KernelGraph:
    """What is searched: few dims, and primitive operators."""
    program = expand(mirage.kernel(function).trace(*drawn(function, dtype)))
    flat = flattened(program)
    return program if flat is None else flat.program


@pytest.mark.sample(6)
@pytest.mark.parametrize(("function", "dtype"), PROGRAMS)
def test_rows_in_parts_compute_the_same(function: Any, dtype: torch.dtype) -> None:
    program = program_of(function, dtype)
    found = in_parts(program, PART)
    assert found is not None
    whole = found.restored(found.program)
    assert not check(found.program)
    assert not check(whole)
    assert parse(str(whole)) == whole
    certificate = verify(whole, program)
    assert certificate.equivalent, certificate


@pytest.mark.parametrize("function", SHAPES, ids=lambda f: f.__name__)
def test_parts_wait_for_nothing(function: Any) -> None:
    """What makes the statistics reads inputs, and sums over the parts alone."""
    found = in_parts(program_of(function, torch.float16), PART)
    assert found is not None
    ahead = [n for n in found.program.applies if n.result in found.first]
    dims = {d for n in ahead if n.op.kind is Kind.REDUCTION for d in n.over}
    sizes = dict(found.program.extents)
    length = 1
    for dim in dims:
        length *= sizes[dim] or 0
    assert length == found.length <= PART
    squares = [n for n in ahead if n.result in found.statistics]
    assert len(squares) == 2
    # Nothing of more elements than the parts crosses but what is read anyway.
    behind = [n for n in found.program.applies if n.result not in found.first]
    made = {n.result for n in ahead if not n.is_view}
    views = {n.result for n in ahead if n.op.kind is Kind.VIEW}
    crossing = {v for n in behind for v in n.values} & (made - views)
    assert crossing == set(found.statistics)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (layer, ((3, 120), (120,), (120,))),
        (layer, ((3, 641), (641,), (641,))),
        (lambda x: x.mean(-1), ((3, 640),)),
        (lambda x: ((x - 3) * (x - 3)).mean(-1), ((3, 640),)),
        (lambda x, c: ((x - c) * (x - c)).sum(-1), ((3, 640), (3, 1))),
        (lambda x, c: ((x - c) * (x - c)).sum((-1, -2)), ((640,), (2, 1))),
        (lambda x: F.softmax(x, -1), ((3, 640),)),
    ],
    ids=("short", "prime", "mean", "constant", "given", "crossed", "softmax"),
)
def test_other_rows_stay(function: Any, shapes: Any) -> None:
    """Those that a block holds, or that cannot be cut, and what waits for no mean."""
    inputs = drawn(function, torch.float32, shapes)
    program = expand(mirage.kernel(function).trace(*inputs))
    assert in_parts(program, PART) is None
    assert not read_in_turn(program) or function is layer


MUTANTS = {
    "only squares of parts": ("add x_squares, x_weighted", "add x_squares, x_squares"),
    "only means of parts": ("add x_squares, x_weighted", "add x_weighted, x_weighted"),
    "unweighted": ("mul x_apart2, 1/k_in", "mul x_apart2, 1"),
    "weighted by parts": ("mul x_apart2, 1/k_in", "mul x_apart2, 1/k_part"),
    "mean of too many": ("mul x_part, 1/k_in", "mul x_part, 1/k"),
    "mean of too few": ("mul t, 1/k_part", "mul t, 1/k_in"),
    "not centred": ("mul x_apart, x_apart", "mul x_mean, x_mean"),
    "about 0": ("sub x_parts, x_mean", "sub x_parts, 0"),
    "one part short": ("mul t, 1/k_part", "mul t, 1/34"),
}

VARIANCE = """mirage 1

mugraph f(x: f32[m, k]) -> f32[m] where m = 3, k = 140000 {
  t = sum x over(k)
  c = mul t, 1/k
  d = sub x, c
  q = mul d, d
  y = sum q over(k)
  return y
}
"""


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_refused(name: str) -> None:
    program = parse(VARIANCE)
    text = str(REWRITES["combine-variances"](program))
    before, after = MUTANTS[name]
    assert text.count(before) == 1
    right, wrong = parse(text), parse(text.replace(before, after))
    for seed in range(4):
        assert verify(right, program, seed=seed).equivalent
        assert not verify(wrong, program, seed=seed).equivalent


@pytest.mark.parametrize(
    ("extents", "length"), [((126, 126), 2268), ((254, 254), 508), ((121, 121), 1331)]
)
def test_parts_are_whole_words_of_memory(extents: tuple[int, int], length: int) -> None:
    """Where the rows can be cut so: 15876 is 4 times 3969, the largest odd divisor."""
    x = torch.empty(2, 4, *extents, device="meta")
    program = flattened(expand(mirage.kernel(images).trace(x)))
    assert program is not None
    found = in_parts(program.program)
    assert found is not None
    assert found.length == length


# -- The whole road --------------------------------------------------------------------

LONG: dict[Any, tuple[torch.dtype, tuple[tuple[int, ...], ...]]] = {
    groups: (torch.float16, ((1, 6, 128, 128), (6,), (6,))),
    layer: (torch.float32, ((2, 140000), (140000,), (140000,))),
}


@functools.cache
def searched(function: Any) -> SearchResult:
    dtype, shapes = LONG[function]
    program = mirage.kernel(function).trace(*drawn(function, dtype, shapes))
    return search(program, H200, max_kernels=None, k=1)


@pytest.mark.sample(0)
@pytest.mark.parametrize("function", LONG, ids=lambda f: f.__name__)
def test_long_rows_are_read_twice_by_two_kernels(function: Any) -> None:
    """Found by default, right and stable, and right in the interpreter."""
    dtype, shapes = LONG[function]
    best = searched(function).best
    assert best.certificate is not None
    assert best.certificate.ok
    first, second = best.mugraph.blocks
    assert len(first.stores) == 2
    assert first.loop is None
    assert {s.source for s in first.loads} < {s.source for s in second.loads}
    inputs = drawn(function, dtype, shapes)
    (found,) = TritonExecutable(best.mugraph, interpret=True)(*inputs)
    exact = function(*(x.double() for x in inputs))
    error = (found.double() - exact).norm() / exact.norm()
    eager = (function(*inputs).double() - exact).norm() / exact.norm()
    assert error <= 2 * eager + torch.finfo(dtype).eps


@pytest.mark.sample(0)
def test_a_kernel_between_combines_what_rows_would_part() -> None:
    """The parts of 508 elements would be 127 runs of 64 bytes in each tile."""

    def f(x: Any, w: Any, b: Any) -> Any:
        return F.group_norm(F.silu(x), 8, w, b)

    shapes = ((128, 32, 254, 254), (32,), (32,))
    program = mirage.kernel(f).trace(*(torch.empty(s, device="meta") for s in shapes))
    best = search(program, H200, max_kernels=None, k=1).best
    assert best.certificate is not None
    assert best.certificate.ok
    first, between, last = best.mugraph.blocks
    assert len(first.stores) == len(between.stores) == 2
    assert not {s.source for s in between.loads} & {s.name for s in program.inputs}
    assert {s.result for s in between.stores} <= {s.source for s in last.loads}


@pytest.mark.sample(0)
@pytest.mark.parametrize("ahead", [torch.relu, torch.sigmoid], ids=lambda f: f.__name__)
def test_what_is_ahead_of_a_norm_in_space_is_in_its_kernels(ahead: Any) -> None:
    """The norm has more dims than a grid; of sigmoids rows may be of one number."""

    def f(x: Any, w: Any, b: Any) -> Any:
        return F.group_norm(ahead(x), 8, w, b)

    shapes = ((16, 128, 34, 34, 34), (128,), (128,))
    program = mirage.kernel(f).trace(*(torch.empty(s, device="meta") for s in shapes))
    best = search(program, H200, max_kernels=None, k=1).best
    assert best.certificate is not None
    assert best.certificate.ok
    assert {n.op.kind for n in best.mugraph.applies} == {Kind.VIEW}
    first, *_, last = best.mugraph.blocks
    assert len(first.stores) == 2
    for block in (first, last):
        assert [n.op.name for n in block.applies].count(ahead.__name__) == 1
