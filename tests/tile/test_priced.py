"""What the cost model sees of a kernel is what its printed program does.

The model evaluates a program with open sizes at the sizes of a block; held to it are
the lines of Triton and the program that was made for just these sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import numpy as np
import pytest

from mirage_dsl.backends.triton.lowering.emit import plan
from mirage_dsl.core.hardware import H100
from mirage_dsl.cost.estimate import loaded
from mirage_dsl.cost.facts import ProgramFacts, facts_of
from mirage_dsl.cost.footprint import Footprint, footprint_of
from mirage_dsl.cost.order import exchanges, synchronisations
from mirage_dsl.ir.analysis.layouts import laid_out
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents, iterations
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.program import (
    Load,
    Order,
    Pieces,
    Product,
    Reduce,
    Statement,
    TileProgram,
    elements_at,
    lanes_at,
    makes,
    pieces_of,
    walk,
)
from tests.freeze.frozen import GRAPHS, HERE


@dataclass(frozen=True)
class Kernel:
    """A kernel: its program at known sizes, its lines, and how it is priced."""

    program: TileProgram
    pieces: Pieces
    lines: list[str]
    warps: int
    rounds: int
    priced: Footprint

    def of_kind(self, *kinds: type[Statement]) -> list[tuple[Statement, bool]]:
        return [p for p in walk(self.program.body) if isinstance(p[0], kinds)]

    def lanes(self, dims: Order) -> int:
        return prod(map(self.pieces.lanes, dims))


def kernels_of(graph: KernelGraph) -> Iterator[Kernel]:
    extents = derived_extents(graph, graph.extent_of)
    known = {n: e for n, e in extents.items() if e is not None}
    types = laid_out(graph, kernel_types(graph), extents)
    printed = plan(graph).kernels
    for block, program, kernel in zip(
        graph.blocks, programs(graph), printed, strict=True
    ):
        priced = footprint_of(facts_of(block, types, extents), H100)
        yield Kernel(
            program,
            pieces_of(program),
            list(kernel.lines),
            kernel.schedule.num_warps,
            iterations(block, known),
            priced,
        )


def text_of(name: str) -> str:
    return (HERE / "graphs" / f"{name}.mu").read_text()


@cache
def each(name: str) -> list[Kernel]:
    return list(kernels_of(parse(text_of(name), name)))


FUSED = [name for name in GRAPHS if " = block " in text_of(name)]


@pytest.mark.sample(28)
@pytest.mark.parametrize("name", FUSED)
def test_lanes(name: str) -> None:
    for kernel in each(name):
        place = kernel.priced.facts.place
        assert place.keys() == set(kernel.program.pieces)
        for dim, at in place.items():
            assert kernel.priced.padded[at, 0] == kernel.pieces.lanes(dim)
            assert kernel.priced.pieces[at, 0] == kernel.pieces[dim].size


@pytest.mark.parametrize("name", FUSED[::4])
def test_lanes_at_many_sizes_at_once(name: str) -> None:
    random = np.random.default_rng(0)
    for kernel in each(name):
        program, count = kernel.program, 12
        splits = {s.dim: random.choice([1, 3, 16, 64, 96], count) for s in program.grid}
        steps = random.choice([8, 16, 48, 128], count)
        grid = {n: tiles.astype(np.float64) for n, tiles in splits.items()}
        elements = elements_at(program, grid, steps.astype(np.float64))
        lanes = lanes_at(program, grid, elements)
        for at in range(count):
            tiles = (replace(s, tile=int(splits[s.dim][at])) for s in program.grid)
            loop = program.loop and replace(program.loop, tile=int(steps[at]))
            sizes = pieces_of(replace(program, grid=tuple(tiles), loop=loop))
            for row, dim in enumerate(program.pieces):
                assert lanes[row, at] == sizes.lanes(dim)
                assert elements[row, at] == sizes[dim].size


@pytest.mark.parametrize("name", FUSED)
def test_instructions_and_rows(name: str) -> None:
    for kernel in each(name):
        priced, found = kernel.priced, dict[str, object]()
        for at, product in enumerate(priced.facts.products):
            tall, rows = bool(priced.grouped[at, 0]), int(priced.tall[at, 0])
            found[product.result] = tall, rows, product.into, product.is_matrix
        wanted = {
            p.result: (p.wgmma, kernel.lanes(p.rows), p.into, p.is_matrix)
            for p, _ in kernel.of_kind(Product)
            if isinstance(p, Product)
        }
        assert found == wanted
        dots = sum("tl.dot(" in line for line in kernel.lines)
        assert dots == sum(p.is_matrix for p in priced.facts.products)


@pytest.mark.parametrize("name", FUSED)
def test_loads_and_their_buffers(name: str) -> None:
    for kernel in each(name):
        priced = kernel.priced
        loads = priced.facts.tables.loads
        own = np.flatnonzero(loads.looped[:, 0])
        found: dict[str, int] = {}
        first, second = priced.buffers
        for row, at in enumerate(own):
            again = loads.again[at]
            found[loads.own[at].result] = int(first[row, 0])
            if again is not None and second[row, 0]:
                found[again.result] = int(second[row, 0])
        wanted = {
            s.result: s.buffers
            for s, looped in kernel.of_kind(Load)
            if isinstance(s, Load) and looped and s.when
        }
        assert found == wanted
        # Each copy is one line.
        lines = sum(
            f"{way}load(" in x for x in kernel.lines for way in ("tl.", "desc.")
        )
        assert lines == len(found) + len(loads.own) - len(own)


@pytest.mark.parametrize("name", FUSED)
def test_bytes(name: str) -> None:
    for kernel in each(name):
        wanted = 0
        for load, looped in kernel.of_kind(Load):
            assert isinstance(load, Load)
            own = (kernel.pieces[d].size for d in load.tile.axes)
            size = prod(own) * load.tile.dtype.itemsize
            wanted += size * (kernel.rounds if looped else 1)
        assert loaded(kernel.priced).sum() == wanted


@pytest.mark.parametrize("name", FUSED)
def test_waits_and_order(name: str) -> None:
    for kernel in each(name):
        facts = kernel.priced.facts
        assert kernel.priced.block_warps[0] == kernel.warps == kernel.program.warps
        mine = [s for s, _ in facts.flow.steps]
        mine = [s for s in mine if not isinstance(s, Load) or made(s, kernel.priced)]
        closed = ProgramFacts(kernel.program)
        steps = [s for s, _ in closed.flow.steps if type(s) in set(map(type, mine))]
        if kernel.program.schedule.pdl:
            # What waits for the kernel ahead stands behind the loop.
            assert Counter(map(key, steps)) == Counter(map(key, mine))
            continue
        assert list(map(key, steps)) == list(map(key, mine))
        moved = exchanges(facts)
        assert moved == exchanges(closed)
        sums = {s.result for s, _ in kernel.of_kind(Reduce) if isinstance(s, Reduce)}
        assert sums <= moved
        assert synchronisations(
            facts.flow, facts.flow.steps, moved
        ) == synchronisations(closed.flow, closed.flow.steps, moved)


def made(load: Load, priced: Footprint) -> bool:
    return bool(priced.at(load.when)[0])


def key(statement: Statement) -> tuple[object, ...]:
    return type(statement).__name__, makes(statement)
