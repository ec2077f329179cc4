"""What the tests of the checker share: well-formed graphs to break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mirage_dsl.core.types import Dim, f16
from mirage_dsl.ir.builder import BlockBuilder, KernelBuilder
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import (
    BlockGraph,
    BlockNode,
    KernelGraph,
)

M, K, N = Dim("m"), Dim("k"), Dim("n")
KL, NG, MG = Dim("k", loop=True), Dim("n", grid=True), Dim("m", grid=True)


def program() -> KernelGraph:
    b = KernelBuilder("f", m=4, k=16, n=12)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    return b.returns(b.exp(b.matmul(x, w, over="k", name="p"), name="y")).build()


def blocked(change: Callable[[BlockGraph], BlockGraph] = lambda b: b) -> KernelGraph:
    b = KernelBuilder("f", m=4, k=16, n=12)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    with b.block(grid={"n": 4}, loop=("k", 8)) as block:
        xt = block.load(x, "m, k/loop", name="xt")
        wt = block.load(w, "k/loop, n/grid", name="wt")
        p = block.matmul(xt, wt, over="k", name="p")
        e = block.exp(block.accumulate(p, name="a"), name="e")
        y = block.store(e, "m, n/grid", name="y")
    graph = b.returns(y).build()
    return replace(graph, nodes=(change(graph.blocks[0]),))


def only(graph: KernelGraph, rule: str) -> str:
    """The single diagnostic, which is of `rule`, as text."""
    found = check(graph)
    assert [d.rule for d in found] == [rule], [str(d) for d in found]
    return str(found[0])


def with_node(at: int, node: BlockNode) -> KernelGraph:
    """A node of the block replaced."""

    def change(block: BlockGraph) -> BlockGraph:
        nodes = [*block.nodes]
        nodes[at] = node
        return replace(block, nodes=tuple(nodes))

    return blocked(change)


def with_body(write: Callable[[BlockBuilder, str], str], **grid: int) -> KernelGraph:
    """x[m, k] loaded whole as xt, then what `write` adds; it returns a stored name."""
    b = KernelBuilder("f", m=4, k=16)
    x = b.input("x", f16, "m, k")
    with b.block(grid=grid, loop=("k", 8)) as block:
        y = write(block, x)
    return b.returns(y).unchecked()
