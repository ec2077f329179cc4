"""A first answer, soon: products by library kernels, what lies between them fused.

    library kernels    |   x @ w      |                | c @ v   | ...
    one kernel each    |              | scale, softmax |         | ...

It is what a search returns whose time is up before it has found anything better.  Each
run of operators between products is one segment, searched with no other operators than
its own (`abstract.useful`): that takes hundredths of a second, and misses what algebra
could do.  A run that no kernel holds is halved where the fewest bytes cross, or around
what one of PyTorch's functions computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mirage_dsl.cost.estimate import launched
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ops.definition import Kind
from mirage_dsl.search.programs.chains import (
    Chains,
)
from mirage_dsl.search.programs.memory import Remembering
from mirage_dsl.search.programs.partition import Atom, Cutter
from mirage_dsl.search.programs.segments import (
    joined_plan,
    silent,
    structural_search,
)
from mirage_dsl.search.result import Plan


class Quick:
    """A quick search of some forms of a program.

    Attributes:
        plans: What was found so far; empty until each run of a form has its kernels.
    """

    def __init__(self, search: Remembering, deadline: float | None) -> None:
        """Take another search's hardware, constraints and seed, but not its books.

        Args:
            search: The other search.
            deadline: Reading of `time.monotonic()` at which it stops, if it does.
        """
        self.plans: list[Plan] = []
        self._search = Remembering(
            structural_search(search.hardware, search.seed, 1, deadline, own=True),
            search.hardware,
            search.constraints,
            deadline=deadline,
            keep=1,
            enough=1,
            seed=search.seed,
        )

    def fuse(self, program: KernelGraph) -> None:
        """Find the plan in which all products are by library kernels.

        Args:
            program: Operators only.
        """
        with self._search.interruptible():
            fuser = _Fuser(Cutter(program), self._search)
            parts = [plan for run in fuser.runs() for plan in fuser.fused(run)]
            self.plans += fuser.joined([plan.graph for plan in parts])

    def fuse_products(self, program: KernelGraph) -> None:
        """Find the plan in which kernels may compute products too."""
        if not self._search.late():
            with self._search.interruptible():
                fuser = _Fuser(Cutter(program), self._search)
                chains = Chains(fuser.cutter, self._search, 1, silent)
                for parts in chains.cheapest():
                    self.plans += fuser.joined([p.graph for p in parts])


@dataclass(frozen=True)
class _Fuser:
    cutter: Cutter
    search: Remembering

    def runs(self) -> Iterator[Atom]:
        """Products and what no block can compute by themselves, all others in runs."""
        run: list[Apply] = []
        for node in self.cutter.order:
            if node.op.kind is Kind.CONTRACTION or node.stands_alone:
                if run:
                    yield Atom(tuple(run))
                yield Atom((node,), library=True)
                run = []
            else:
                run.append(node)
        if run:
            yield Atom(tuple(run))

    def fused(self, run: Atom) -> list[Plan]:
        """A run as one kernel, or as a few."""
        segment = self.cutter.segment(run.nodes)
        library = Plan.of(segment, self.search.hardware)
        if run.library or self.search.late():
            return [library]
        plans = self.search.plans(segment)
        if plans:
            return [min(plans[0], library, key=lambda p: p.microseconds)]
        if len(run.nodes) == 1 or self.search.late():
            return [library]
        cuts = [self.cutter.halves(run), *self.cutter.at_calls(run)]
        ways = [[plan for part in cut for plan in self.fused(part)] for cut in cuts]
        ways += [[library]] if len(launched(library.graph)) == 1 else []
        return min(ways, key=lambda way: sum(plan.microseconds for plan in way))

    def joined(self, parts: list[KernelGraph]) -> list[Plan]:
        """The plan of successive parts of the program; none if they do not agree."""
        search = self.search
        plan = joined_plan(
            self.cutter.join(parts),
            search.hardware,
            search.constraints,
            search.deadline,
        )
        return [] if plan is None else [plan]
