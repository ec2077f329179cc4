"""Why a μGraph is fast, alone or beside its program: figures and text.

All times are estimates of `cost.estimate`; where a GPU has measured, believe that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from mirage_dsl.core.hardware import DEFAULT, WARP, Hardware
from mirage_dsl.core.types import TensorType
from mirage_dsl.cost.estimate import Cost, KernelCost, estimate, launched
from mirage_dsl.cost.facts import facts_of
from mirage_dsl.cost.footprint import (
    Footprint,
    footprint_of,
    shared_sizes,
    tensor_bytes,
)
from mirage_dsl.cost.order import exchanges, synchronisations
from mirage_dsl.ir.analysis.bounds import exposed, unshifted
from mirage_dsl.ir.analysis.launches import (
    asked_ahead,
    awaited,
    launched_in_turn,
    loaded_early,
)
from mirage_dsl.ir.analysis.layouts import laid_out, places
from mirage_dsl.ir.graph import Apply, BlockGraph, KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import Extents, derived_extents, grid_parts, known_extents
from mirage_dsl.ops.definition import Kind

# -- Lines for one μGraph --------------------------------------------------------------


def kernel_lines(mugraph: KernelGraph, cost: Cost, hardware: Hardware) -> list[str]:
    """What each kernel launches, moves and computes, and what bounds it."""
    nodes = [mugraph.nodes[at] for at in launched(mugraph)]
    lines = [
        line
        for number, (node, part) in enumerate(zip(nodes, cost.kernels, strict=True), 1)
        for line in _kernel(number, node, part, mugraph, hardware)
    ]
    return [*lines, *map(str, unshifted(mugraph)), *map(str, exposed(mugraph))]


def savings(mugraph: KernelGraph, program: KernelGraph) -> list[str]:
    """What no longer goes through memory."""
    old, new = _intermediates(program), _intermediates(mugraph)
    wholes = _wholes(mugraph)
    inside = {part: wholes[part] for part in old if part in wholes}
    saved = 2 * max(sum(old.values()) - sum(new.values()), 0)
    moved = f" ({_bytes(saved)} less written and read back)"
    lines: list[str] = []
    gone = [n for n in old if n not in new and n not in inside]
    if gone:
        lines.append(f"no longer stored: {', '.join(gone)}{moved}")
    for whole in dict.fromkeys(inside.values()):
        parts = ", ".join(p for p, w in inside.items() if w == whole)
        first = "" if lines else moved
        lines.append(f"stored in their places in {whole}, not copied: {parts}{first}")
    kept = [n for n in new if n in old]
    if kept:
        lines.append(f"still stored between kernels: {', '.join(kept)}")
    return lines


def _intermediates(graph: KernelGraph) -> dict[str, float]:
    """Bytes of every value that one kernel writes for another.

    Parts of a concatenation that are made in their places are bytes of the whole.
    """
    types = kernel_types(graph)
    extents = derived_extents(graph)
    returned = {r.value for r in graph.returns}
    wholes = _wholes(graph)
    made: list[str] = []
    for node in (graph.nodes[at] for at in launched(graph)):
        results = node.results if isinstance(node, BlockGraph) else (node.result,)
        made += [wholes.get(n, n) for n in results]
    return {n: tensor_bytes(types[n], extents) for n in made if n not in returned}


def _wholes(graph: KernelGraph) -> dict[str, str]:
    """The outermost concatenation that each placed part lies in."""
    extents = derived_extents(graph)
    placed = places(graph, laid_out(graph, kernel_types(graph), extents), extents)
    found: dict[str, str] = {}
    for part, place in placed.items():
        whole = place.whole
        while whole in placed:
            whole = placed[whole].whole
        found[part] = whole
    return found


def roofline(program: KernelGraph, hardware: Hardware) -> float:
    """µs of reading every input and writing every output once."""
    types = kernel_types(program)
    extents = derived_extents(program)
    names = {i.name for i in program.given} | {r.value for r in program.returns}
    moved = sum(tensor_bytes(types[n], extents) for n in sorted(names))
    return 1e6 * (moved / hardware.dram_rate + hardware.launch + hardware.ramp)


def _kernel(
    number: int,
    node: Apply | BlockGraph,
    part: KernelCost,
    graph: KernelGraph,
    hardware: Hardware,
) -> list[str]:
    if isinstance(node, Apply):
        name = part.call or node.op.name
        head = f"kernel {number}: {name} -> {node.result} (library)"
    else:
        head = f"kernel {number}: block graph -> {', '.join(node.results)}"
    if part.unknown is not None:
        moved = f"  moves {_bytes(part.dram_bytes)} to and from DRAM at least"
        return [head, f"  no estimate: {part.unknown}", moved, ""]
    lines = [f"{head}, about {part.microseconds:.1f} µs"]
    if part.covered:
        lines[0] += f", and {part.covered:.1f} beside the next kernel's loop"
    if isinstance(node, BlockGraph):
        lines += _launch(node, part, graph, hardware)
    else:
        lines += _copying(node, graph, part)
    for value in part.rearranged:
        lines.append(f"  PyTorch copies {value}, whose dims a result has as one axis")
    work = part.tensor_flops + part.flops
    bound = "memory" if part.memory >= part.arithmetic else "arithmetic"
    lines += [
        f"  moves {_bytes(part.dram_bytes)} to and from DRAM, "
        f"reads {_bytes(part.l2_bytes)} through L2",
        f"  computes {work / 1e9:.2f} GFLOP, {part.tensor_flops / 1e9:.2f} of them "
        "in products",
        f"  bound by {bound}: memory {part.memory:.1f} µs, "
        f"arithmetic {part.arithmetic:.1f} µs",
    ]
    if part.limit is not None:
        lines.append(f"  does not fit: {part.limit}")
    return [*lines, ""]


def _copying(node: Apply, graph: KernelGraph, part: KernelCost) -> list[str]:
    """How the result of a library kernel lies in memory, and what is copied for it."""
    extents = derived_extents(graph)
    types = laid_out(graph, kernel_types(graph), extents)
    sizes = {v: _bytes(tensor_bytes(types[v], extents)) for v in part.copied}
    lines = _in_memory(node.result, types[node.result])
    if sizes:
        copied = ", ".join(f"{value} {size}" for value, size in sizes.items())
        product = node.op.kind is Kind.CONTRACTION
        as_it_lies = "in no batches of matrices" if product else "without channels last"
        lines.append(f"  copies what lies {as_it_lies}: {copied}")
    return lines


def _in_memory(name: str, kind: TensorType) -> list[str]:
    """How a tensor lies in memory, where that is not row-major."""
    if kind.layout is None:
        return []
    axes = [f"({', '.join(map(str, a))})" for a in kind.axes]
    return [f"  {name} lies in memory as {', '.join(axes[at] for at in kind.layout)}"]


def _launch(
    node: BlockGraph, part: KernelCost, graph: KernelGraph, hardware: Hardware
) -> list[str]:
    known = derived_extents(graph)
    extents: Mapping[str, int] = known_extents(known)
    schedule = node.schedule
    grid = " x ".join(
        f"{count} ({' & '.join(f'{s.dim} in tiles of {s.tile}' for s in axis)})"
        for axis, count in zip(node.axes, grid_parts(node, extents), strict=True)
    )
    loop, stages = "no loop", list[str]()
    if node.loop is not None:
        stages = [f"  {_bytes(part.in_flight)} in stage buffers of the whole GPU"]
        loop = (
            f"{part.iterations} iterations over {node.loop.dim} "
            f"in tiles of {node.loop.tile}; {schedule.num_stages} stages"
        )
    how = {
        ", products transposed": schedule.swap_operands,
        ", loads through tensor descriptors": schedule.descriptors,
        ", starts before the kernel ahead has ended": schedule.pdl,
    }
    others = "".join(words for words, chosen in how.items() if chosen)
    others += _asked(node, graph)
    return [
        f"  grid {grid or '1'} = {part.blocks} blocks of {WARP * part.warps} "
        f"threads; {loop}{others}",
        f"  {part.waves} wave{'' if part.waves == 1 else 's'}: {hardware.sms} "
        f"multiprocessors hold {part.resident} at once each; {_bytes(part.shared)} of "
        f"shared memory a block, about {part.registers} registers a thread",
        *stages,
        f"  {_fused(node)}",
        *_inside(node, graph, known, hardware),
    ]


def _asked(node: BlockGraph, graph: KernelGraph) -> str:
    """What a kernel asks for while it waits for the one ahead."""
    made = awaited(graph).get(node)
    if made is None:
        return ""
    schedule, words = node.schedule, ""
    if asked := asked_ahead(node, made):
        matrices = " and ".join(load.source for load in asked)
        words = (
            f", asks meanwhile for the first {schedule.prefetch} tiles of {matrices}"
        )
    if early := loaded_early(node, made):
        matrices = " and ".join(load.source for load in early)
        words += f", loads meanwhile {matrices} of iterations up to {schedule.early}"
    return words


def _shared_memory(footprint: Footprint) -> list[str]:
    """What lies in shared memory, and when."""
    own = footprint.facts.tables.shared
    sizes: list[float] = shared_sizes(footprint)[:, 0].tolist()
    first = "in the loop" if footprint.facts.program.loop else "in all"
    lines: list[str] = []
    for when, lives in ((first, own.looping), ("after it", own.ending)):
        rows = zip(own.names, sizes, lives, strict=True)
        held = [(name, size) for name, size, lasts in rows if lasts and size > 0]
        lines += [f"  shared memory {when}: {_listed(held)}"] if held else []
    return lines


def _inside(
    node: BlockGraph, graph: KernelGraph, extents: Extents, hardware: Hardware
) -> list[str]:
    """Shared memory and how long it lives, synchronisations, layouts of results."""
    types = laid_out(graph, kernel_types(graph), extents)
    footprint = footprint_of(facts_of(node, types, extents), hardware)
    lines = _shared_memory(footprint)
    flow = footprint.facts.flow
    counts = synchronisations(flow, flow.steps, exchanges(footprint.facts))
    looped = node.loop is not None
    waits = [_times(n, _WHEN[stage] if looped else "") for stage, n in counts.items()]
    waits = [w for w in waits if w]
    if waits:
        lines.append(f"  threads wait for each other: {', '.join(waits)}")
    wholes = _wholes(graph)
    for result in node.results:
        if result in wholes:
            lines.append(f"  {result} is stored in its place in {wholes[result]}")
        lines += _in_memory(result, types[result])
    return lines


_WHEN = {
    "before": " before the loop",
    "body": " an iteration",
    "after": " after the loop",
}


def _times(count: int, when: str) -> str:
    """`twice an iteration`; nothing for 0."""
    words = {0: "", 1: f"once{when}", 2: f"twice{when}"}
    return words.get(count, f"{count} times{when}")


def _listed(held: list[tuple[str, float]]) -> str:
    total = sum(size for _, size in held)
    parts = ", ".join(f"{value} {_bytes(size)}" for value, size in held)
    return f"{_bytes(total)} ({parts})"


def _fused(node: BlockGraph) -> str:
    names: dict[str, int] = {}
    for inner in node.nodes:
        if isinstance(inner, Apply) and "dtype" not in inner.op.attributes:
            names[inner.op.name] = names.get(inner.op.name, 0) + 1
    if not names:
        return f"copies {', '.join(node.sources)}"
    counted = (n if c == 1 else f"{c} {n}" for n, c in names.items())
    return f"fuses {', '.join(counted)}"


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


# -- Explanations ----------------------------------------------------------------------


@dataclass(frozen=True)
class Explanation:
    """The estimates of a program by library kernels and of a μGraph for it.

    Attributes:
        name: Of the program.
        hardware: The GPU that is estimated.
        before: The program, each operator a library kernel; None where none was given.
        after: The μGraph.
        floor: µs of moving inputs and outputs once, in one launch.
        savings: What no longer goes through memory, in words.
        kernels: Lines on each kernel of the μGraph.
    """

    name: str
    hardware: str
    before: Cost | None
    after: Cost
    floor: float
    savings: tuple[str, ...]
    kernels: tuple[str, ...]

    @property
    def speedup(self) -> float | None:
        """The program's estimate over the μGraph's; None where one is missing."""
        if self.before is None:
            return None
        if not isfinite(self.before.microseconds + self.after.microseconds):
            return None
        return self.before.microseconds / self.after.microseconds

    def to_json(self) -> dict[str, Any]:
        """Plain values; None for a time that is not known."""
        found: dict[str, Any] = {**asdict(self), "speedup": self.speedup}
        for cost in (found["before"], found["after"]):
            for part in (cost, *cost["kernels"]) if cost else ():
                if not isfinite(part["microseconds"]):
                    part["microseconds"] = None
        return found

    def __str__(self) -> str:
        columns = {"this μGraph": _figures(self.after)}
        floor = (
            f"reading every input and writing every output once: {self.floor:.1f} µs"
        )
        if self.before is not None:
            columns = {"as written": _figures(self.before), **columns}
        if self.speedup is not None:
            floor = f"{self.speedup:.2f} times as fast as written; {floor}"
        rows = [("", *columns)]
        names = _figures(self.after)
        rows += [(n, *(column[n] for column in columns.values())) for n in names]
        lines = [
            f"{self.name} on {self.hardware} (estimated)",
            *(f"{row[0]:<14}" + "".join(f"{c:>14}" for c in row[1:]) for row in rows),
            floor,
            *self.savings,
            "",
            *self.kernels,
        ]
        return "\n".join(lines).rstrip()


def _figures(cost: Cost) -> dict[str, str]:
    time = cost.microseconds
    return {
        "kernels": f"{cost.launches}",
        "DRAM traffic": f"{cost.bytes / 1e6:.2f} MB",
        "operations": f"{cost.flops / 1e9:.3f} GFLOP",
        "estimate": f"{time:.1f} µs" if isfinite(time) else "none",
    }


def explain(
    mugraph: KernelGraph,
    program: KernelGraph | None = None,
    hardware: Hardware = DEFAULT,
) -> Explanation:
    """Say why a μGraph is fast, compared with the program that it computes.

    Args:
        mugraph: Of known extents.
        program: The same function by library kernels, at the same extents; None
            compares with nothing.
        hardware: The GPU to estimate for.

    Raises:
        SearchError: An extent is unknown.
    """
    if not hardware.dependent:
        # Such a GPU launches it so.
        mugraph = launched_in_turn(mugraph)
    # Where it is close, what spills is not for an estimate to say.
    after = estimate(mugraph, hardware.screened())
    return Explanation(
        (program or mugraph).name,
        hardware.name,
        None if program is None else estimate(program, hardware),
        after,
        roofline(program or mugraph, hardware),
        () if program is None else tuple(savings(mugraph, program)),
        tuple(kernel_lines(mugraph, after, hardware)),
    )
