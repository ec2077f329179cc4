"""Property: the checker never fails, and what it accepts means what it says.

Well-formed graphs are damaged at random.  Those that are still accepted are evaluated,
and interpreted block by block without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mirage_dsl.core.types import Axis, f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    KernelGraph,
    KernelNode,
    Load,
    RunningMax,
    Split,
    Store,
)
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.rewrite.expand import expand
from tests.ir.naive import interpret

Draw = Callable[[Any], Any]
DIMS = ("m", "k", "n", "d", "k#", "n#")


def attention() -> KernelGraph:
    b = KernelBuilder("attention", m=5, k=6, n=11)
    q, keys = b.input("q", f32, "m, k"), b.input("keys", f32, "n, k")
    with b.block(grid={"m": 2, "n": 4}, loop=("n", 3)) as block:
        qt = block.load(q, "m/grid, k")
        kt = block.load(keys, "n/grid/loop, k")
        s = block.tanh(block.matmul(qt, kt, over="k"))
        m = block.running_max(block.rowshift(s, over="n"))
        p = block.exp(block.sub(s, m))
        top = block.accumulate(block.matmul(p, kt, over="n"), rescale=m)
        last = block.accumulate(m, "max")
        rows = block.max(block.accumulate(s, "concat"), over="n")
        top = block.store(block.mul(top, rows), "m/grid, k, n#/grid")
        last = block.store(last, "n#/grid, m/grid")
    with b.block(grid={"m": 3}) as block:
        lt = block.load(last, "n#, m/grid")
        weight = block.exp(block.sub(lt, block.rowshift(lt, over="n#")))
        tt = block.load(top, "m/grid, k, n#")
        y = block.store(block.matmul(tt, weight, over="n#"), "m/grid, k")
    return b.returns(y, b.exp(y)).build()


def linear() -> KernelGraph:
    b = KernelBuilder("linear", m=5, k=7, n=4)
    x, w = b.input("x", f32, "m, k"), b.input("w", f32, "k, n")
    with b.block(grid={"m": 4, "n": 3}, loop=("k", 3)) as block:
        xt, wt = block.load(x, "m/grid, k/loop"), block.load(w, "k/loop, n/grid")
        whole = block.sum(block.load(x, "m/grid, k"), over="k")
        total = block.sum(block.accumulate(block.exp(xt)), over="k")
        product = block.accumulate(block.matmul(xt, wt, over="k"))
        y = block.mul(product, block.add(total, whole))
        y = block.store(y, "m/grid, n/grid")
    return b.returns(b.tanh(y)).build()


def pair() -> KernelGraph:
    """Blocks that have tiles of two outputs' dims; of one there are fewer."""
    b = KernelBuilder("pair", m=5, k=7, n=4, d=6)
    x, w = b.input("x", f32, "m, k"), b.input("w", f32, "k, n")
    v = b.input("v", f32, "k, d")
    grid = (Split("m", 2), Split("n", 3), Split("d", 2, beside=True))
    with b.block(grid=grid, loop=("k", 3)) as block:
        xt, wt = block.load(x, "m/grid, k/loop"), block.load(w, "k/loop, n/grid")
        vt = block.load(v, "k/loop, d/grid")
        one = block.accumulate(block.matmul(xt, wt, over="k"))
        other = block.accumulate(block.matmul(xt, vt, over="k"))
        total = block.sum(block.accumulate(block.exp(xt)), over="k")
        one = block.store(block.mul(one, total), "m/grid, n/grid")
        other = block.store(block.exp(other), "m/grid, d/grid")
    return b.returns(one, other).build()


WELL_FORMED = (attention(), linear(), pair())


def axes_damaged(draw: Draw, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    if not axes:
        return axes
    at = draw(st.integers(0, len(axes) - 1))
    (dim,) = axes[at][:1]
    change = draw(st.sampled_from(("grid", "loop", "name", "drop")))
    if change == "drop":
        return (*axes[:at], *axes[at + 1 :])
    if change == "name":
        dim = replace(dim, name=draw(st.sampled_from(DIMS)))
    else:
        dim = replace(dim, **{change: not getattr(dim, change)})
    return (*axes[:at], (dim,), *axes[at + 1 :])


def node_damaged(draw: Draw, node: BlockNode, names: Sequence[str]) -> BlockNode:
    other = st.sampled_from(names)
    match node:
        case Load():
            return replace(node, axes=axes_damaged(draw, node.axes))
        case Store():
            if draw(st.booleans()):
                return replace(node, operand=draw(other))
            return replace(node, axes=axes_damaged(draw, node.axes))
        case Accumulate():
            kind = draw(st.sampled_from(("sum", "max", "concat")))
            rescale = draw(st.none() | other)
            return replace(node, kind=kind, rescale=rescale)
        case RunningMax():
            return replace(node, operand=draw(other))
        case Apply():
            if node.attrs and draw(st.booleans()):
                over = draw(st.lists(st.sampled_from(DIMS), max_size=2))
                return replace(node, attrs=(("over", tuple(over)),))
            operands = [*node.operands]
            operands[draw(st.integers(0, len(operands) - 1))] = draw(other)
            return replace(node, operands=tuple(operands))


def block_damaged(draw: Draw, block: BlockGraph) -> BlockGraph:
    numbers = st.integers(0, 8)
    splits = st.builds(Split, st.sampled_from(DIMS), numbers, st.booleans())
    changes = (
        "tile",
        "tile",
        "tile",
        "grid",
        "beside",
        "loop",
        "drop",
        "node",
        "node",
        "node",
    )
    match draw(st.sampled_from(changes)):
        case "tile":
            tiles = st.integers(1, 16)
            grid = tuple(replace(s, tile=draw(tiles)) for s in block.grid)
            loop = block.loop and replace(block.loop, tile=draw(tiles))
            return replace(block, grid=grid, loop=loop)
        case "grid":
            return replace(block, grid=tuple(draw(st.lists(splits, max_size=3))))
        case "beside":
            grid = tuple(replace(s, beside=draw(st.booleans())) for s in block.grid)
            return replace(block, grid=grid)
        case "loop":
            return replace(block, loop=draw(st.none() | splits))
        case "drop":
            at = draw(st.integers(0, len(block.nodes) - 1))
            return replace(block, nodes=(*block.nodes[:at], *block.nodes[at + 1 :]))
        case _:
            names = [n.result for n in block.nodes]
            at = draw(st.integers(0, len(block.nodes) - 1))
            nodes = [*block.nodes]
            nodes[at] = node_damaged(draw, nodes[at], names)
            return replace(block, nodes=tuple(nodes))


@st.composite
def damaged(draw: Draw) -> KernelGraph:
    graph = draw(st.sampled_from(WELL_FORMED))
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.integers(0, 5)) == 0:
            sizes = {draw(st.sampled_from(DIMS[:3])): draw(st.integers(0, 17))}
            graph = graph.with_extents(sizes)
            continue
        nodes: list[KernelNode] = [*graph.nodes]
        at = draw(st.integers(0, len(graph.blocks) - 1))
        nodes[at] = block_damaged(draw, graph.blocks[at])
        graph = replace(graph, nodes=tuple(nodes))
    if draw(st.integers(0, 9)):
        graph = graph.with_extents(safely_derived(graph))
    return graph


def safely_derived(graph: KernelGraph) -> dict[str, int | None]:
    """The extents that follow; a tile of 0 has none."""
    if any(s.tile < 1 for b in graph.blocks for s in b.grid):
        return {}
    return derived_extents(graph, graph.extent_of)


@given(damaged())
def test_what_is_accepted_can_be_evaluated(graph: KernelGraph) -> None:
    found = check(graph)
    assert all(d.rule and d.message and d.name for d in found)
    if found:
        return
    rng = np.random.default_rng(0)
    arrays = [
        rng.uniform(-1, 1, [graph.extent_of[n] or 1 for n in i.type.names])
        for i in graph.inputs
    ]
    results = evaluate_numpy(graph, *arrays)
    for item, array in zip(graph.returns, results, strict=True):
        assert array.shape == tuple(graph.extent_of[n] for n in item.type.names)
        assert not np.isnan(array).any()
    for a, b in zip(results, interpret(graph, *arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    for other in WELL_FORMED:
        if canonical_hash(other) == canonical_hash(graph):
            same = evaluate_numpy(other, *arrays)
            for a, b in zip(results, same, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9)
    for a, b in zip(results, evaluate_numpy(expand(graph), *arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
