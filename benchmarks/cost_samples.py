"""Candidates for the cost model to rank: sampling them, and what is kept of each.

A cell is a program at some sizes.  Its samples are the structures that a search finds,
each at its best sizes by estimate and after random walks from there, so that slow ones
are among them.  A structure's text is kept once, of each sample only its tiles and
schedules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import mirage_dsl as mirage
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.analysis.waiting import launched_early
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Schedule, Split
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.search.driver import search
from mirage_dsl.search.sizes.variants import neighbours
from tests.programs.workloads import PAPER, WORKLOADS

FLAGS = ("swap_operands", "descriptors", "pdl")
STEPS = 6
"""Steps of a random walk at most."""
SLOWEST = 6.0
"""Samples are left out whose estimate is beyond this multiple of the best one's."""
STRUCTURES = 8
EARLY = 3
"""Structures whose later kernels also start before the ones before have ended."""
SEARCH_SECONDS = 30.0

BlockSizes = tuple[tuple[int, ...], int, int, int, str]
"""Tiles of the grid, of the loop (0 for none), warps, stages, and flags that are on."""


@dataclass
class Sample:
    """One candidate.

    Attributes:
        structure: Its number among the cell's.
        sizes: Of each of its blocks.
        role: `library`: the program itself; `chosen`: the best by estimate; `best`: the
            best sizes of another structure; `early`: the same with dependent launches;
            `walk`: of a random walk.
        measured: µs on the GPU, or None.
        error: Against float64, relative to the largest element, or None.
        reason: Why there is no time.
        compiled: Of each kernel of its own: registers, bytes of shared memory, bytes
            of spills, loads that a loop waits for, and the matrix instruction.
    """

    structure: int
    sizes: tuple[BlockSizes, ...]
    role: str
    measured: float | None = None
    error: float | None = None
    reason: str = ""
    compiled: list[tuple[int, int, int, int, str]] = field(
        default_factory=list[tuple[int, int, int, int, str]]
    )


@dataclass
class Cell:
    """A program at some sizes.

    Attributes:
        name: Of the program.
        batch: Which of its published batches.
        program: Its text.
        structures: Texts of μGraphs, at some sizes each.
        samples: The candidates.
    """

    name: str
    batch: int
    program: str
    structures: list[str] = field(default_factory=list[str])
    samples: list[Sample] = field(default_factory=list[Sample])

    def graphs(self) -> list[KernelGraph]:
        """The samples as μGraphs."""
        parsed = [parse(s) for s in self.structures]
        return [with_sizes(parsed[s.structure], s.sizes) for s in self.samples]

    def to_json(self) -> dict[str, Any]:
        """Plain values, without those that are as by default."""
        document = asdict(self)
        for sample in document["samples"]:
            for name in ("error", "measured", "reason", "compiled"):
                if not sample[name]:
                    del sample[name]
        return document

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Cell:
        """The cell that `to_json` wrote."""
        samples = [
            Sample(**{**s, "sizes": tuple(_block_sizes(b) for b in s["sizes"])})
            for s in document["samples"]
        ]
        return cls(**{**document, "samples": samples})


def _block_sizes(values: list[Any]) -> BlockSizes:
    grid, *rest = values
    loop, warps, stages, flags = rest
    return tuple(grid), loop, warps, stages, flags


def sizes_of(graph: KernelGraph) -> tuple[BlockSizes, ...]:
    """Tiles and schedules of the blocks, in order."""
    return tuple(
        (
            tuple(s.tile for s in b.grid),
            b.loop.tile if b.loop else 0,
            b.schedule.num_warps,
            b.schedule.num_stages,
            " ".join(f for f in FLAGS if getattr(b.schedule, f)),
        )
        for b in graph.blocks
    )


def with_sizes(graph: KernelGraph, sizes: tuple[BlockSizes, ...]) -> KernelGraph:
    """The μGraph with these tiles and schedules."""
    left = iter(sizes)
    nodes = tuple(
        _sized(n, next(left)) if isinstance(n, BlockGraph) else n for n in graph.nodes
    )
    changed = replace(graph, nodes=nodes)
    return changed.with_extents(derived_extents(changed, changed.extent_of))


def _sized(block: BlockGraph, sizes: BlockSizes) -> BlockGraph:
    tiles, loop, warps, stages, flags = sizes
    grid = tuple(Split(s.dim, t) for s, t in zip(block.grid, tiles, strict=True))
    on = {f: f in flags.split() for f in FLAGS}
    return replace(
        block,
        grid=grid,
        loop=Split(block.loop.dim, loop) if block.loop else None,
        schedule=Schedule(warps, stages, **on),
    )


# -- Programs ------------------------------------------------------------------------


def traced(
    name: str,
    function: Callable[..., Any],
    shapes: dict[str, tuple[int, ...]],
    dtype: str = "float16",
) -> KernelGraph:
    """A function on a namespace and tensors, traced."""
    names = ", ".join(shapes)
    scope: dict[str, Any] = {"function": function, "m": mirage}
    exec(f"def {name}({names}): return function(m, {names})", scope)
    specs = [mirage.spec(s, dtype) for s in shapes.values()]
    return trace_function(scope[name], specs, name=name)


_SINGLE: dict[str, tuple[Callable[..., Any], dict[str, tuple[int, ...]]]] = {
    "exp_small": (lambda m, x: m.exp(x), {"x": (256, 64)}),
    "exp_medium": (lambda m, x: m.exp(x), {"x": (512, 4096)}),
    "exp_large": (lambda m, x: m.exp(x), {"x": (4096, 4096)}),
    "scale_medium": (lambda _, x, s: x * s, {"x": (512, 4096), "s": (512, 1)}),
    "add_large": (lambda _, x, y: x + y, {"x": (4096, 4096), "y": (4096, 4096)}),
    "sum_rows": (lambda m, x: m.sum(x, 1), {"x": (512, 4096)}),
    "sum_columns": (lambda m, x: m.sum(x, 0), {"x": (4096, 512)}),
    "sum_large": (lambda m, x: m.sum(x, 1), {"x": (4096, 4096)}),
    "matmul_tiny": (lambda _, x, w: x @ w, {"x": (16, 256), "w": (256, 256)}),
    "matmul_rank": (lambda _, x, w: x @ w, {"x": (16, 4096), "w": (4096, 16)}),
    "matmul_short": (lambda _, x, w: x @ w, {"x": (16, 16), "w": (16, 4096)}),
    "matmul_square": (lambda _, x, w: x @ w, {"x": (2048, 2048), "w": (2048, 2048)}),
    "matmul_batch": (
        lambda _, x, w: x @ w,
        {"x": (16, 256, 64), "w": (16, 64, 4096)},
    ),
}


def cells() -> Iterator[Cell]:
    """All programs without samples: the workloads, and single library kernels."""
    for workload in WORKLOADS:
        for batch in (1, 8, 16) if workload in PAPER else (1,):
            shapes = workload.at_batch(batch)
            graph = traced(workload.name, workload.function, shapes, workload.dtype)
            yield Cell(workload.name, batch, to_text(graph))
    for name, (function, shapes) in _SINGLE.items():
        yield Cell(name, 1, to_text(traced(name, function, shapes)))


# -- Sampling ------------------------------------------------------------------------


def sample(cell: Cell, count: int, hardware: Hardware, seed: int = 0) -> None:
    """Fill a cell with up to `count` candidates; single operators get the library's."""
    program = parse(cell.program)
    _add(cell, program, "library")
    if cell.name in _SINGLE:
        return
    found = _structures(program, hardware)
    for number, graph in enumerate(found):
        _add(cell, graph, "best" if number else "chosen")
    for graph in found[:EARLY]:
        _add(cell, launched_early(graph), "early")
    rng = random.Random(seed)
    tries = 0
    while found and len(cell.samples) < count and tries < 8 * count:
        graph = _walk(found[tries % len(found)], rng, hardware)
        if rng.random() < 0.5:
            graph = launched_early(graph)
        _add(cell, graph, "walk")
        tries += 1


def _structures(program: KernelGraph, hardware: Hardware) -> list[KernelGraph]:
    """The best μGraphs of different structure, of one kernel and of several."""
    found: dict[KernelGraph, float] = {}
    for kernels in (1, 2):
        result = search(
            program,
            k=STRUCTURES,
            budget_seconds=SEARCH_SECONDS,
            max_kernels=kernels,
            hardware=hardware,
        )
        found |= {c.mugraph: c.cost.microseconds for c in result if c.mugraph.blocks}
    least = min(found.values(), default=0.0)
    kept = [g for g, cost in found.items() if cost <= SLOWEST * least]
    return sorted(kept, key=found.__getitem__)[: STRUCTURES + 2]


def _walk(graph: KernelGraph, rng: random.Random, hardware: Hardware) -> KernelGraph:
    for _ in range(rng.randint(1, STEPS)):
        beside = neighbours(graph, hardware=hardware)
        if not beside:
            break
        least = beside[0][1].microseconds
        near = [g for g, c in beside if c.microseconds <= SLOWEST * least]
        graph = rng.choice(near)
    return graph


def _add(cell: Cell, graph: KernelGraph, role: str) -> None:
    """Add a candidate, unless it is there."""
    known = [_unsized(parse(s)) for s in cell.structures]
    own = _unsized(graph)
    if own not in known:
        known.append(own)
        cell.structures.append(to_text(graph))
    at = known.index(own)
    sizes = sizes_of(graph)
    if all((s.structure, s.sizes) != (at, sizes) for s in cell.samples):
        cell.samples.append(Sample(at, sizes, role))


def _unsized(graph: KernelGraph) -> str:
    """The text of a structure, the same for all sizes."""
    ones = [((1,) * len(b.grid), 1, 1, 1, "") for b in graph.blocks]
    return to_text(with_sizes(graph, tuple(ones)))
