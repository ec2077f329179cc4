"""Why a μGraph is fast: beside its program, as figures and as text.

All times are estimates of `search.cost`; where a GPU has measured, believe that.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.cost import Cost, estimate
from mirage_dsl.search.explain import kernel_lines, roofline, savings
from mirage_dsl.search.hardware import H100, Hardware


@dataclass(frozen=True)
class Explanation:
    """The estimates of a program by library kernels and of a μGraph for it.

    Attributes:
        name: Of the program.
        hardware: The GPU that is estimated.
        before: The program, each operator a library kernel.
        after: The μGraph.
        floor: µs of moving inputs and outputs once, in one launch.
        savings: What no longer goes through memory, in words.
        kernels: Lines on each kernel of the μGraph.
    """

    name: str
    hardware: str
    before: Cost
    after: Cost
    floor: float
    savings: tuple[str, ...]
    kernels: tuple[str, ...]

    @property
    def speedup(self) -> float:
        """The program's estimate over the μGraph's."""
        return self.before.microseconds / self.after.microseconds

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "speedup": self.speedup}

    def __str__(self) -> str:
        columns = [_figures(self.before), _figures(self.after)]
        rows = [("", "as written", "this μGraph")]
        rows += [(name, columns[0][name], columns[1][name]) for name in columns[0]]
        floor = (
            f"reading every input and writing every output once: {self.floor:.1f} µs"
        )
        lines = [
            f"{self.name} on {self.hardware} (estimated)",
            *(f"{a:<14}{b:>14}{c:>14}" for a, b, c in rows),
            f"{self.speedup:.2f} times as fast as written; {floor}",
            *self.savings,
            "",
            *self.kernels,
        ]
        return "\n".join(lines).rstrip()


def _figures(cost: Cost) -> dict[str, str]:
    return {
        "kernels": f"{cost.launches}",
        "DRAM traffic": f"{cost.bytes / 1e6:.2f} MB",
        "operations": f"{cost.flops / 1e9:.3f} GFLOP",
        "estimate": f"{cost.microseconds:.1f} µs",
    }


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
        roofline(program, hardware),
        tuple(savings(mugraph, program)),
        tuple(kernel_lines(mugraph, after, hardware)),
    )
