"""Why a μGraph is fast, alone or beside its program: figures and text.

All times are estimates of `search.cost`; where a GPU has measured, believe that.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.waiting import launched_in_turn
from mirage_dsl.search.cost import Cost, estimate
from mirage_dsl.search.explain import kernel_lines, roofline, savings
from mirage_dsl.search.hardware import H100, Hardware


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
        """The program's estimate over the μGraph's."""
        if self.before is None:
            return None
        return self.before.microseconds / self.after.microseconds

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "speedup": self.speedup}

    def __str__(self) -> str:
        columns = {"this μGraph": _figures(self.after)}
        floor = (
            f"reading every input and writing every output once: {self.floor:.1f} µs"
        )
        if self.before is not None:
            columns = {"as written": _figures(self.before), **columns}
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
    return {
        "kernels": f"{cost.launches}",
        "DRAM traffic": f"{cost.bytes / 1e6:.2f} MB",
        "operations": f"{cost.flops / 1e9:.3f} GFLOP",
        "estimate": f"{cost.microseconds:.1f} µs",
    }


def explain(
    mugraph: KernelGraph,
    program: KernelGraph | None = None,
    hardware: Hardware = H100,
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
