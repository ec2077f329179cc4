"""Why a μGraph is fast: kernels, bytes and operations, before and after.

All times are estimates of `search.cost`; where a GPU has measured, believe that.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mirage_dsl.ir.graph import Accumulate, Apply, BlockGraph, KernelGraph, stages_of
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ops.definition import Kind
from mirage_dsl.search.cost import Cost, KernelCost, estimate
from mirage_dsl.search.footprint import tensor_bytes
from mirage_dsl.search.hardware import H100, Hardware


@dataclass(frozen=True)
class Explanation:
    """The estimates of a program by library kernels and of a μGraph, and the floor.

    Attributes:
        name: Of the program.
        hardware: The GPU that is estimated.
        before: The program, each operator a library kernel.
        after: The μGraph.
        floor: µs of moving inputs and outputs once, or of all products.
        intermediate_before: Bytes between kernels of the program.
        intermediate_after: Bytes between kernels of the μGraph.
        kernels: A line or more on each kernel of the μGraph.
    """

    name: str
    hardware: str
    before: Cost
    after: Cost
    floor: float
    intermediate_before: float
    intermediate_after: float
    kernels: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        before, after = self.before, self.after
        rows = [
            ("", "as written", "this μGraph"),
            ("kernels", f"{before.launches}", f"{after.launches}"),
            ("DRAM traffic", _bytes(before.bytes), _bytes(after.bytes)),
            (
                "between kernels",
                _bytes(self.intermediate_before),
                _bytes(self.intermediate_after),
            ),
            ("operations", _flops(before.flops), _flops(after.flops)),
            (
                "estimate",
                f"{before.microseconds:.1f} µs",
                f"{after.microseconds:.1f} µs",
            ),
        ]
        table = [f"{a:<16}{b:>14}{c:>14}" for a, b, c in rows]
        gain = before.microseconds / after.microseconds
        share = 100 * self.floor / after.microseconds
        return "\n".join(
            [
                f"{self.name} on {self.hardware} (estimated)",
                *table,
                f"{gain:.2f}x as fast as written; the floor is {self.floor:.1f} µs, "
                f"of which this reaches {share:.0f} %",
                "",
                *self.kernels,
            ]
        )


def explain(
    mugraph: KernelGraph, program: KernelGraph, hardware: Hardware = H100
) -> Explanation:
    """Compare a μGraph with the program that it computes.

    Args:
        mugraph: Of known extents.
        program: The same function by library kernels, at the same extents.
        hardware: The GPU to estimate for.

    Raises:
        SearchError: An extent is unknown.
    """
    after = estimate(mugraph, hardware)
    return Explanation(
        program.name,
        hardware.name,
        estimate(program, hardware),
        after,
        _floor(program, hardware),
        _intermediate(program),
        _intermediate(mugraph),
        tuple(_kernel_lines(mugraph, after, hardware)),
    )


def _floor(program: KernelGraph, hardware: Hardware) -> float:
    types = kernel_types(program)
    extents = derived_extents(program, program.extent_of)
    outer = {i.name for i in program.inputs} | {r.value for r in program.returns}
    moved = sum(tensor_bytes(types[name], extents) for name in outer)
    tensor = sum(k.tensor_flops for k in estimate(program, hardware).kernels)
    return 1e6 * max(moved / hardware.dram_rate, tensor / hardware.tensor_rate)


def _intermediate(graph: KernelGraph) -> float:
    """Bytes of tensors that one kernel writes for another."""
    types = kernel_types(graph)
    extents = derived_extents(graph, graph.extent_of)
    returned = {r.value for r in graph.returns}
    made: set[str] = set()
    for node in graph.nodes:
        if isinstance(node, BlockGraph):
            made |= set(node.results)
        elif node.op.kind is not Kind.VIEW:
            made.add(node.result)
    return sum(tensor_bytes(types[n], extents) for n in made - returned)


def _is_kernel(node: Apply | BlockGraph) -> bool:
    """As `estimate` counts kernels: views are none, casts are."""
    if isinstance(node, BlockGraph):
        return True
    return node.op.kind is not Kind.VIEW or "dtype" in dict(node.attrs)


def _kernel_lines(graph: KernelGraph, cost: Cost, hardware: Hardware) -> list[str]:
    lines: list[str] = []
    nodes = [n for n in graph.nodes if _is_kernel(n)]
    for node, part in zip(nodes, cost.kernels, strict=False):
        if isinstance(node, BlockGraph):
            lines += _block_lines(node, part, hardware)
        else:
            lines.append(f"{node.result}: library {node.op.name}, {_why(part)}")
    return lines


def _block_lines(block: BlockGraph, cost: KernelCost, hardware: Hardware) -> list[str]:
    stages = stages_of(block)
    once = [
        n.op.name
        for n in block.nodes
        if isinstance(n, Apply) and stages[n.result] == "after"
    ]
    sums = sum(isinstance(n, Accumulate) for n in block.nodes)
    lines = [
        f"{', '.join(block.results)}: {cost.blocks} blocks of "
        f"{cost.iterations} iterations, {_why(cost)}",
        f"  {cost.resident} blocks share a multiprocessor ({hardware.sms} of them); "
        f"a block takes {_bytes(cost.shared)} of shared memory, a thread "
        f"{cost.registers} registers",
    ]
    if block.loop is not None:
        after = f"; after the loop, once: {', '.join(once)}" if once else ""
        lines.append(f"  {sums} accumulators stay in registers over the loop{after}")
    if cost.limit is not None:
        lines.append(f"  it does not fit: {cost.limit}")
    return lines


def _why(cost: KernelCost) -> str:
    bound = "memory" if cost.memory >= cost.arithmetic else "arithmetic"
    return (
        f"{cost.microseconds:.1f} µs, bound by {bound} "
        f"(memory {cost.memory:.1f} µs for {_bytes(cost.dram_bytes)}, "
        f"arithmetic {cost.arithmetic:.1f} µs)"
    )


def _bytes(count: float) -> str:
    for unit, size in (("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def _flops(count: float) -> str:
    for unit, size in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} FLOP"
