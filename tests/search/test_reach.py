"""What the space must reach, as users write it: shapes, ranks, views, broadcasts.

Each program is searched as one kernel; what is found is verified by the search and
evaluated here in float64 beside the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest

import mirage_dsl as m
from mirage_dsl.core.hardware import H100
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Accumulate, BlockGraph, Input, KernelGraph
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.shifts import strip_shifts
from mirage_dsl.rewrite.sinking import sink_views
from mirage_dsl.search.driver import search
from mirage_dsl.search.result import SearchResult, is_one_kernel
from mirage_dsl.search.space import space_of
from mirage_dsl.search.structures import StructureSet, structures
from mirage_dsl.search.why_not import Membership, why_not
from tests.search.test_structures import sized

Shape = tuple[int, ...]
Function = Callable[..., Any]


def traced(function: Function, *shapes: Shape) -> KernelGraph:
    """A function of float16 tensors as a program."""
    return trace_function(function, [m.spec(s, "float16") for s in shapes], name="p")


def space(program: KernelGraph) -> StructureSet:
    """All structures of a program in one kernel."""
    return structures(strip_shifts(sink_views(expand(program))), H100)


def shape_of(tensor: Input, program: KernelGraph) -> Shape:
    """The shape in which the caller passes an input."""
    extents = program.extent_of
    return tuple(prod(extents[d.name] or 1 for d in axis) for axis in tensor.type.axes)


def fused(program: KernelGraph, **options: Any) -> list[BlockGraph]:
    """The blocks of the candidates that are one kernel; all candidates are right."""
    return fused_of(search(program, H100, **options), program)


def fused_of(result: SearchResult, program: KernelGraph) -> list[BlockGraph]:
    """Those of a search."""
    assert result.complete
    rng = np.random.default_rng(2)
    arrays = [rng.uniform(0.2, 1.2, shape_of(i, program)) / 4 for i in program.inputs]
    expected = evaluate_numpy(program, *arrays)
    found: list[BlockGraph] = []
    for candidate in result:
        graph = candidate.mugraph
        if is_one_kernel(graph):
            found += graph.blocks
        for a, b in zip(evaluate_numpy(graph, *arrays), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, err_msg=str(graph))
    assert found
    return found


# -- Transposes and reshapes between operators ---------------------------------------


def transposed_before_and_after(x: Any, w: Any) -> Any:
    return (x.permute(0, 2, 1, 3) @ w).permute(0, 2, 1, 3)


def split_into_heads(x: Any, w: Any) -> Any:
    return (x @ w).reshape(4, 32, 4, 16).permute(0, 2, 1, 3)


def joined_from_heads(x: Any, w: Any, o: Any) -> Any:
    heads = m.rms_norm((x @ w).reshape(4, 32, 4, 16).permute(0, 2, 1, 3))
    return heads.permute(0, 2, 1, 3).reshape(4, 32, 64) @ o


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (transposed_before_and_after, [(4, 16, 32, 64), (64, 32)]),
        (split_into_heads, [(4, 32, 64), (64, 64)]),
        (joined_from_heads, [(4, 32, 64), (64, 64), (64, 48)]),
    ],
)
def test_views_between_operators(function: Function, shapes: list[Shape]) -> None:
    assert fused(traced(function, *shapes))


def test_sides_of_several_dims_need_no_sixteen_of_each() -> None:
    program = traced(split_into_heads, (4, 32, 64), (64, 64))
    tiles = [{s.dim: s.tile for s in b.grid} for b in fused(program)]
    batch, _, head, _ = program.returns[0].type.names
    assert any(t.get(batch, 16) < 16 or t.get(head, 16) < 16 for t in tiles)


# -- Broadcasts, ranks, several dims reduced, several outputs, many uses --------------


def reduced_twice(x: Any) -> Any:
    return (x * x).sum((1, 3))


def norm_over_two_dims(x: Any) -> Any:
    return x / m.sqrt((x * x).mean((2, 3), keepdims=True) + 1e-5)


def product_over_two_dims(x: Any, w: Any) -> Any:
    return (x.reshape(16, 8 * 32)) @ w.reshape(8 * 32, 24)


def with_its_statistic(x: Any, w: Any) -> Any:
    y = x @ w
    return y, (y * y).sum(-1)


def with_its_gate(x: Any, w: Any) -> Any:
    y = x @ w
    return y, m.silu(y)


def cubic(x: Any) -> Any:
    return (x * x + x) * x + m.exp(x) * x - x


def residual(x: Any, w: Any) -> Any:
    h = x @ w
    return h * h + h * x + x


def attention(q: Any, k: Any, v: Any) -> Any:
    return m.softmax(q @ k.permute(0, 1, 3, 2)) @ v


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, y: m.silu(x + y), [(1, 4, 1, 10), (1, 1, 4, 10)]),
        (lambda x, y, z: m.silu(x * y) + z, [(8, 1, 64), (16, 64), (64,)]),
        (lambda x, y: m.exp(x * y), [(64, 1), (1, 64)]),
        (lambda x, s: m.silu(x) * s, [(64, 128), ()]),
        (lambda x, y: m.exp(x) / y, [(4, 8, 16), (4, 1, 1)]),
        (reduced_twice, [(8, 16, 32, 64)]),
        (norm_over_two_dims, [(8, 16, 32, 64)]),
        (product_over_two_dims, [(16, 8, 32), (8, 32, 24)]),
        (with_its_statistic, [(64, 256), (256, 128)]),
        (with_its_gate, [(64, 256), (256, 128)]),
        (cubic, [(64, 256)]),
        (residual, [(64, 96), (96, 96)]),
        (lambda x, y: m.relu(x @ y), [(4, 6, 16, 32), (4, 6, 32, 8)]),
        (attention, [(2, 3, 16, 32), (2, 3, 80, 32), (2, 3, 80, 16)]),
    ],
)
def test_shapes_of_every_kind(function: Function, shapes: list[Shape]) -> None:
    assert fused(traced(function, *shapes))


# -- Long chains, and square matrices --------------------------------------------------


def chain(x: Any, *weights: Any) -> Any:
    for w in weights:
        x = x @ w
    return x


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (chain, [(64, 64)] * 5),
        (lambda x, y: x @ y.T @ x @ y, [(64, 64)] * 2),
        (lambda x: x @ x @ x @ x, [(64, 64)]),
        (lambda x: x @ x.T, [(64, 64)]),
    ],
)
def test_square_matrices_are_no_harder_than_others(
    function: Function, shapes: list[Shape]
) -> None:
    program = traced(function, *shapes)
    found = space(program)
    assert found.complete
    assert found.counters["nodes"] < 1000
    assert fused(program)


def test_names_of_dims_do_not_matter() -> None:
    square = space(traced(chain, *[(64, 64)] * 4))
    shapes = [(64, 48), (48, 80), (80, 96), (96, 32)]
    other = space(traced(chain, *shapes))
    assert square.counters["nodes"] == other.counters["nodes"]
    assert square.counters["structures"] == other.counters["structures"]
    assert canonical_hash(traced(chain, *shapes), sizes=False) == canonical_hash(
        traced(chain, *[(64, 64)] * 4), sizes=False
    )


# -- Maxima ----------------------------------------------------------------------------


def largest(x: Any) -> Any:
    return m.max(x, -1)


def largest_of_a_product(x: Any, w: Any) -> Any:
    return m.max(x @ w, -1)


def largest_over_two_dims(x: Any) -> Any:
    return x.max((0, 2))


def largest_of_the_largest(x: Any) -> Any:
    return m.max(m.max(x, 2), 0)


def largest_and_sum(x: Any) -> Any:
    return m.max(x, -1), x.sum(-1)


def shrunk_maxima(x: Any, y: Any) -> Any:
    return m.clamp((x * y).max(-1), -1.0, 0.5)


def accumulated(blocks: Sequence[BlockGraph]) -> list[Accumulate]:
    """The maxima that are accumulated."""
    nodes = [n for b in blocks for n in b.nodes if isinstance(n, Accumulate)]
    return [n for n in nodes if n.kind == "max"]


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (largest, [(5, 7)]),
        (largest_of_a_product, [(5, 7), (7, 11)]),
        (largest_over_two_dims, [(5, 7, 11)]),
        (largest_of_the_largest, [(5, 7, 11)]),
        (largest_and_sum, [(5, 7)]),
        (shrunk_maxima, [(5, 7), (5, 7)]),
    ],
)
def test_maxima_are_accumulated(function: Function, shapes: list[Shape]) -> None:
    """Each structure is right below 0 too, where padding would show."""
    program = expand(traced(function, *shapes))
    found = structures(program, H100)
    assert found.complete
    assert accumulated([s.block for s in found.structures])
    rng = np.random.default_rng(4)
    arrays = [rng.uniform(-1.5, -0.2, s) for s in shapes]
    expected = evaluate_numpy(program, *arrays)
    for item in found.structures:
        graph = sized(program, item.block, 3)
        assert check(graph) == []
        for a, b in zip(evaluate_numpy(graph, *arrays), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, err_msg=str(graph))


def test_steps_of_a_maximum_are_one_value() -> None:
    twice = space(traced(largest_of_the_largest, (5, 7, 11)))
    once = space(traced(largest_over_two_dims, (5, 7, 11)))
    assert twice.counters["structures"] == once.counters["structures"]


@pytest.mark.sample(0)
def test_maxima_of_long_rows_are_found_and_verified() -> None:
    assert accumulated(fused(traced(largest_and_sum, (64, 30000))))


@pytest.mark.sample(0)
def test_a_maximum_in_a_loop_is_explained_as_found() -> None:
    program = traced(largest, (64, 30000))
    result = search(program, H100)
    assert accumulated(fused_of(result, program))
    graph = next(c.mugraph for c in result if accumulated(c.mugraph.blocks))
    assert why_not(graph, program, result).verdict == "found"
    loop = graph.blocks[0].loop
    assert loop is not None
    inner = Membership(space_of(expand(program)), graph.blocks[0])
    assert inner.stranger() is None
