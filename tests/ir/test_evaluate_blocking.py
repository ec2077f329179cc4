"""Property: however a program is cut into blocks and iterations, it says the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mirage_dsl.core.types import f32
from mirage_dsl.ir.builder import BlockBuilder, KernelBuilder
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph

UNARY = ("exp", "tanh", "sigmoid", "square", "abs", "silu", "relu")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


@dataclass(frozen=True)
class Plan:
    """A random computation on x[b, m, k], w[b, k, n] and g[k], and its cuts."""

    extents: dict[str, int]
    unary: tuple[str, ...]
    binary: tuple[str, ...]
    reductions: tuple[str, ...]
    grid: dict[str, int]
    loop: int | None
    split: int | None


@st.composite
def plans(draw: Callable[[Any], Any]) -> Plan:
    extents = {d: draw(st.integers(1, 9)) for d in "bmn"} | {
        "k": draw(st.integers(1, 14))
    }
    split = draw(st.none() | st.integers(1, 9))
    names = draw(st.lists(st.sampled_from("bmn"), unique=True, max_size=3))
    grid = {d: draw(st.integers(1, 7)) for d in names[: 2 if split else 3]}
    return Plan(
        extents,
        tuple(draw(st.sampled_from(UNARY)) for _ in range(3)),
        tuple(draw(st.sampled_from(BINARY)) for _ in range(3)),
        tuple(draw(st.sampled_from(("sum", "max", "sum-late"))) for _ in range(2)),
        grid,
        draw(st.none() | st.integers(1, 9)),
        split,
    )


def values_to_sum(
    b: KernelBuilder | BlockBuilder, plan: Plan, x: str, w: str, g: str
) -> list[tuple[tuple[str, ...], str]]:
    """The values of each index of k: (value, how it is reduced over k)."""
    left = b.apply(plan.binary[0], b.apply(plan.unary[0], x), g)
    right = b.apply(plan.unary[1], w)
    rows = [b.apply(plan.binary[1], x, left), b.apply(plan.unary[2], left)]
    reduced = zip(rows, plan.reductions, strict=True)
    return [((left, right), "matmul"), *(((v,), how) for v, how in reduced)]


def combined(b: KernelBuilder | BlockBuilder, plan: Plan, parts: list[str]) -> str:
    product, first, second = parts
    rows = b.apply(plan.binary[2], first, b.apply("tanh", second))
    return b.mul(b.tanh(rows), b.add(product, rows))


def reduced(
    b: KernelBuilder | BlockBuilder, operands: tuple[str, ...], how: str
) -> str:
    name = "sum" if how == "sum-late" else how
    return b.apply(name, *operands, over="k")


def program(plan: Plan) -> KernelGraph:
    b, x, w, g = inputs(plan)
    parts = [reduced(b, v, how) for v, how in values_to_sum(b, plan, x, w, g)]
    return b.returns(combined(b, plan, parts), axes="b, m, n").build()


def inputs(plan: Plan) -> tuple[KernelBuilder, str, str, str]:
    b = KernelBuilder("f", **plan.extents)
    x, w = b.input("x", f32, "b, m, k"), b.input("w", f32, "k, b, n")
    return b, x, w, b.input("g", f32, "k")


def piece(plan: Plan, dim: str) -> str:
    if dim != "k":
        return f"{dim}/grid" if dim in plan.grid else dim
    return "k" + "/grid" * bool(plan.split) + "/loop" * bool(plan.loop)


def axes(plan: Plan, dims: str) -> str:
    return ", ".join(piece(plan, d) for d in dims)


def over_iterations(block: BlockBuilder, plan: Plan, operands: Any, how: str) -> str:
    """The reduction over the block's part of k, across its iterations."""
    if plan.loop is None:
        return reduced(block, operands, how)
    if how == "sum-late":
        return block.sum(block.accumulate(operands[0]), over="k")
    if how == "max":
        return block.accumulate(reduced(block, operands, how), "max")
    return block.accumulate(reduced(block, operands, how))


def blocked(plan: Plan) -> KernelGraph:
    """One kernel, or two where the grid splits k."""
    b, x, w, g = inputs(plan)
    grid = plan.grid | ({"k": plan.split} if plan.split else {})
    loop = ("k", plan.loop) if plan.loop else None
    with b.block(grid=grid, loop=loop) as block:
        tiles = (
            block.load(x, axes(plan, "bmk")),
            block.load(w, axes(plan, "kbn")),
            block.load(g, axes(plan, "k")),
        )
        parts = [
            over_iterations(block, plan, v, how)
            for v, how in values_to_sum(block, plan, *tiles)
        ]
        if plan.split:
            dims = "bmn"
            zero = block.mul(parts[0], 0)
            # Every block writes its part of every grid dim, so all have all dims.
            parts = [parts[0], *(block.add(p, zero) for p in parts[1:])]
            stored = [block.store(p, "k#/grid, " + axes(plan, dims)) for p in parts]
        else:
            stored = [block.store(combined(block, plan, parts), axes(plan, "bmn"))]
    if not plan.split:
        return b.returns(stored[0], axes="b, m, n").unchecked()
    with b.block(grid=dict(list(plan.grid.items())[:1])) as block:
        whole = [piece(plan, d) if d in list(plan.grid)[:1] else d for d in "bmn"]
        names = ", ".join(whole)
        joined = [
            block.apply(
                "max" if how == "max" else "sum",
                block.load(s, "k#, " + names),
                over="k#",
            )
            for s, how in zip(stored, ("matmul", *plan.reductions), strict=True)
        ]
        y = block.store(combined(block, plan, joined), names)
    return b.returns(y, axes="b, m, n").unchecked()


@given(plans(), st.integers(0, 2**32 - 1))
def test_blocks_say_what_the_program_says(plan: Plan, seed: int) -> None:
    rng = np.random.default_rng(seed)
    e = plan.extents
    arrays = [
        rng.uniform(-1, 1, (e["b"], e["m"], e["k"])),
        rng.uniform(-1, 1, (e["k"], e["b"], e["n"])),
        rng.uniform(-1, 1, e["k"]),
    ]
    (expected,) = evaluate_numpy(program(plan), *arrays)
    (found,) = evaluate_numpy(blocked(plan), *arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
