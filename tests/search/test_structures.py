"""The structures found: well formed, right at other sizes, and the known ones too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.types import Scalar, f32
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    KernelGraph,
    Load,
    Split,
    stages_of,
)
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.rewrite.casts import insert_casts
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.layouts import flattened
from mirage_dsl.search import structures as module
from mirage_dsl.search.budget import Budget
from mirage_dsl.search.space import Configuration
from mirage_dsl.search.structures import Structure, StructureSet, structures
from tests.search.programs import PROGRAMS


@cache
def found(name: str) -> StructureSet:
    return structures(PROGRAMS[name](), H100)


def sized(program: KernelGraph, block: BlockGraph, tile: int) -> KernelGraph:
    """The μGraph of one kernel, with real tiles and casts."""
    grid = tuple(replace(s, tile=tile) for s in block.grid)
    loop = block.loop and Split(block.loop.dim, tile)
    block = replace(block, grid=grid, loop=loop)
    outer = kernel_types(replace(program, returns=()))
    views = tuple(
        n for n in program.nodes if isinstance(n, Apply) and n.result in block.sources
    )
    return replace(program, nodes=(*views, insert_casts(block, outer)))


def small(program: KernelGraph) -> KernelGraph:
    """The program with small extents, all different and none a multiple of 2 or 3."""
    names = [n for n, _ in program.extents]
    sizes = dict(zip(names, (5, 7, 11, 13, 17), strict=False))
    return program.with_extents(sizes)


def assert_right(program: KernelGraph, items: list[Structure], tile: int = 3) -> None:
    """Every structure is well formed and agrees with its program."""
    rng = np.random.default_rng(1)
    extents = program.extent_of
    arrays = [
        rng.uniform(0.2, 1.5, [extents[d] or 1 for d in i.type.names])
        for i in program.inputs
    ]
    expected = evaluate_numpy(program, *arrays)
    for item in items:
        graph = sized(program, item.block, tile)
        assert check(graph) == []
        for a, b in zip(evaluate_numpy(graph, *arrays), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, err_msg=str(graph))


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_structure_is_right(name: str) -> None:
    result = found(name)
    assert result.structures
    assert_right(small(PROGRAMS[name]()), result.structures)


def outline(block: BlockGraph) -> tuple[str, ...]:
    """What each store writes, as one expression; operands sorted if they may swap."""
    text: dict[str, str] = {}
    for node in block.nodes:
        match node:
            case Load():
                text[node.result] = node.source
            case Apply():
                operands = [
                    str(o) if isinstance(o, Scalar) else text[o] for o in node.operands
                ]
                if node.op.commutative:
                    operands.sort()
                over = f"[{' '.join(node.over)}]" if node.over else ""
                text[node.result] = f"{node.op.name}{over}({', '.join(operands)})"
            case Accumulate():
                text[node.result] = f"{node.kind}:{text[node.operand]}"
            case _:
                pass
    return tuple(text[s.operand] for s in block.stores)


def outlines(name: str, *grid: str, loop: str | None) -> set[str]:
    """Outlines of what one configuration has."""
    wanted = Configuration(grid, loop)
    items = [s for s in found(name).structures if s.configuration == wanted]
    return {text for s in items for text in outline(s.block)}


def replaced(text: str, **parts: str) -> str:
    """Text with names in capitals replaced."""
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


def test_norm_and_linear_divides_after_the_loop() -> None:
    wanted = "div(sum:matmul[h](w, x), sqrt(mul(1/h, sum[h](sum:mul(x, x)))))"
    assert wanted in outlines("rmslin", "n", loop="h")


def test_gated_layer_has_two_accumulators() -> None:
    wanted = "mul(silu(sum:matmul[h](w1, x)), sum:matmul[h](w2, x))"
    assert wanted in outlines("gated", "n", loop="h")


def test_low_rank_update_in_one_kernel() -> None:
    loop = outlines("lora", "n", loop="h")
    product, low = "sum:matmul[h](w, x)", "sum:matmul[h](a, x)"
    assert f"add(matmul[r](c, {low}), {product})" in loop
    # The second product is linear in the tile, so it may be made in the body too.
    assert "sum:add(matmul[h](w, x), matmul[r](c, matmul[h](a, x)))" in loop


def test_attention_divides_last() -> None:
    wanted = replaced(
        "div(sum:matmul[n](EXP, v), sum[n](sum:EXP))",
        EXP="exp(matmul[d](k, mul(0.125, q)))",
    )
    for grid in (("z",), ("z", "s"), ("z", "e"), ("z", "s", "e")):
        assert wanted in outlines("gqa", *grid, loop="n")


def test_attention_with_norms_in_one_kernel() -> None:
    texts = outlines("qknorm", "z", "s", loop="n")
    query = "div(q, sqrt(mul(1/d, sum[d](mul(q, q)))))"
    # The scale goes to the smallest tensor, the statistics of the keys.
    scale = "div(0.125, sqrt(mul(1/d, sum[d](mul(k, k)))))"
    forms = (
        f"exp(mul({scale}, matmul[d]({query}, k)))",
        f"exp(matmul[d]({query}, mul({scale}, k)))",
    )
    wanted = {f"div(sum:matmul[n]({e}, v), sum[n](sum:{e}))" for e in forms}
    assert wanted <= texts, "\n".join(sorted(texts))


def test_normalised_step_in_one_kernel_without_loop() -> None:
    texts = outlines("ntrans", "b", loop=None)
    unit = "div(y, sqrt(mul(1/h, sum[h](mul(y, y)))))"
    steps = (f"add(mul(al, sub({unit}, x)), x)", f"sub(x, mul(al, sub(x, {unit})))")
    wanted = {f"div({s}, sqrt(mul(1/h, sum[h](mul({s}, {s})))))" for s in steps}
    assert wanted & texts, "\n".join(sorted(texts))


def test_stages_keep_apart() -> None:
    for name in PROGRAMS:
        for item in found(name).structures:
            stages = stages_of(item.block)
            assert all(
                item.block.loop is None or stages[s.operand] != "body"
                for s in item.block.stores
            )


def test_values_of_unlooped_loads_are_made_before_the_loop() -> None:
    made: list[str] = []
    for item in found("qknorm").structures:
        if item.configuration == Configuration(("z", "s"), "n"):
            stages = stages_of(item.block)
            squares = [
                n
                for n in item.block.nodes
                if isinstance(n, Apply)
                and n.op.name == "mul"
                and n.values == ("q_t", "q_t")
            ]
            # Others have them as a product of q with itself.
            made += [stages[n.result] for n in squares]
    assert made
    assert set(made) == {"before"}


@pytest.mark.parametrize("alone", [0.0, 9.0])
@pytest.mark.parametrize("threads", [1, 2])
def test_same_program_same_structures(
    monkeypatch: pytest.MonkeyPatch, threads: int, alone: float
) -> None:
    """However long one thread works before others help."""
    pools: list[int] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, count: int) -> None:
            pools.append(count)
            super().__init__(count)

    monkeypatch.setattr(module, "ALONE_SECONDS", alone)
    monkeypatch.setattr(module, "ThreadPoolExecutor", Pool)
    again = structures(PROGRAMS["gqa"](), H100, threads=threads)
    assert again.structures == found("gqa").structures
    assert pools == ([2] if threads == 2 and alone == 0 else [])


def test_books_are_kept() -> None:
    result = found("rmslin")
    counters = result.counters
    assert result.complete
    assert counters["configurations"] == 16
    assert counters["closures"] == 4
    assert counters["structures"] == len(result.structures)
    assert counters["cut_by_abstract_expression"] > counters["merged"]
    assert counters["overflows"] == counters["truncated_extractions"] == 0
    assert set(result.seconds) == {"closure", "extract", "reconstruct"}


def test_a_passed_deadline_is_told() -> None:
    result = structures(PROGRAMS["rmslin"](), H100, budget=Budget(0.0))
    assert not result.complete
    assert result.structures == []


def test_only_allowed_configurations() -> None:
    result = structures(PROGRAMS["rmslin"](), H100, allow=lambda c: c.grid == ("n",))
    assert {s.configuration.grid for s in result.structures} == {("n",)}


def test_soon_only_the_finest_grids_are_tried() -> None:
    """Tiles that are whole make others of them; but not where they hold rows."""

    def scaled(x: Any, y: Any) -> Any:
        return mirage.exp(x) * y

    def normed(x: Any, y: Any) -> Any:
        return mirage.rms_norm(x) * y

    def grids(function: Any) -> set[tuple[str, ...]]:
        spec = mirage.spec((8, 16, 32), "float16")
        program = expand(trace_function(function, (spec, spec), name="f"))
        soon = structures(program, H100, own=True).structures
        every = structures(program, H100).structures
        assert {s.configuration for s in soon} < {s.configuration for s in every}
        return {s.configuration.grid for s in soon if not s.configuration.loop}

    assert {len(g) for g in grids(scaled)} == {3}
    assert {len(g) for g in grids(normed)} == {2}


def test_what_is_joined_over_the_loop_is_stored_and_read_by_nothing() -> None:
    """A block without the loop computes what it would be read for.

    There are so many ways to do that in a long chain that no others were kept of it.
    """

    def loss(x: Any, y: Any) -> Any:
        size = abs(x - y)
        small = mirage.minimum(size, 1.0)
        return mirage.sum(small * (size - 0.5 * small))

    program = flattened(
        expand(mirage.kernel(loss).trace(*[mirage.spec((8, 8), "float32")] * 2))
    )
    assert program is not None
    kept = structures(program.program, H100).structures
    looped = [s.block for s in kept if s.block.loop is not None]
    assert looped
    for block in looped:
        joined = {
            n.result
            for n in block.nodes
            if isinstance(n, Accumulate) and n.reduction is None
        }
        read = {v for n in block.applies for v in n.values}
        assert not joined & read


def test_what_is_made_of_positions_is_computed_as_it_is_written() -> None:
    """It takes no memory, in whatever order: there are no other ways to look for."""

    def banded(x: Any) -> Any:
        i, j = mirage.arange(8)[:, None], mirage.arange(8)
        return mirage.where(i * 2 + j - 4 < 3, x * 2 + x, 0)

    program = expand(mirage.kernel(banded).trace(mirage.spec((8, 8), "float32")))

    def of_positions(nodes: Any, types: Any) -> list[str]:
        made = [n for n in nodes if isinstance(n, Apply)]
        return sorted(n.op.name for n in made if types[n.result].dtype != f32)

    written = of_positions(program.nodes, kernel_types(program))
    assert len(written) == 4
    found = structures(program, H100).structures
    assert len(found) > 1
    for item in found:
        types = block_types(item.block, kernel_types(program))
        assert of_positions(item.block.nodes, types) == written
