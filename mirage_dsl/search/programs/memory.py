"""A search that remembers: segments of this program, and those in a checkpoint.

Segments that differ only in names, as the layers of a model do, are searched once; with
an executor, all that a program will need are searched there at the same time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mirage_dsl.core.errors import MirageError
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.core.spread import spread
from mirage_dsl.ir.graph import BlockGraph, KernelGraph
from mirage_dsl.ir.text.lines import lines_of, with_lines
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.search.checkpoint import Checkpoint
from mirage_dsl.search.programs.repeats import names_of, normal_text, renamed
from mirage_dsl.search.programs.segments import (
    Found,
    SegmentSearch,
    Sizing,
    one_kernel,
    structural_search,
)
from mirage_dsl.search.result import Ledger, Plan
from mirage_dsl.search.sizes.constraints import Constraints

_log = logging.getLogger("mirage_dsl.search.memory")

T = TypeVar("T")

Inside = AbstractSet[str]


@dataclass(frozen=True)
class _Finding:
    """The plans of a segment."""

    segment: KernelGraph
    plans: list[Plan]

    def of(self, segment: KernelGraph) -> list[Plan]:
        """The same for a segment that differs only in names."""
        own, other = names_of(self.segment), names_of(segment)
        if own == other:
            return list(self.plans)
        found: list[Plan] = []
        for plan in self.plans:
            graph = renamed(plan.graph, own, other)
            lines = lines_of(graph, self.segment)
            found.append(Plan(plan.microseconds, with_lines(graph, segment, lines)))
        return found


@dataclass(frozen=True)
class _Task:
    """A segment to search elsewhere; it pickles."""

    segment: KernelGraph
    inside: frozenset[str]
    seed: int
    seconds: float | None
    hardware: Hardware
    constraints: Constraints
    options: tuple[int, int, bool]

    def run(self) -> dict[str, Any]:
        """Search; the finding as a document."""
        deadline = None if self.seconds is None else time.monotonic() + self.seconds
        keep, enough, split = self.options
        search = Remembering(
            structural_search(self.hardware, self.seed, 1, deadline),
            self.hardware,
            self.constraints,
            deadline=deadline,
            keep=keep,
            enough=enough,
            split=split,
            seed=self.seed,
        )
        plans = search.plans(self.segment, self.inside)
        return search.document(plans, self.segment)


@dataclass
class Remembering(SegmentSearch):
    """Searches segments, each distinct one once.

    Attributes:
        executor: Where segments that are known to be needed are searched.
        seed: Of the structural search.
    """

    executor: Executor | None = None
    seed: int = 0
    _known: dict[str, _Finding] = field(default_factory=dict[str, _Finding])
    _under_way: str = ""

    def key(
        self, segment: KernelGraph, inside: Inside, multiplied: bool = False
    ) -> str:
        """What the plans of a segment depend on."""
        exact = "" if self.constraints == Constraints() else to_text(segment)
        return (self.checkpoint or Checkpoint.nowhere()).key(
            normal_text(segment),
            exact,
            [n for n, i in enumerate(segment.inputs) if i.name in inside],
            self.seed,
            self.constraints,
            self.hardware,
            (self.keep, self.enough, self.split),
            multiplied,
        )

    def plans(
        self,
        segment: KernelGraph,
        inside: Inside = frozenset(),
        *,
        multiplied: bool = False,
    ) -> list[Plan]:
        """μGraphs of a segment, as they are known or else searched."""
        key = self.key(segment, inside, multiplied)
        if key in self._known:
            self.ledger.found["segments repeated"] += 1
            return self._known[key].of(segment)
        known = self.recall(key, lambda found: self._taken(found, segment))
        if known is None:
            known = self._searched(key, segment, inside, multiplied)
        self._known[key] = _Finding(segment, known)
        return list(known)

    def _searched(
        self, key: str, segment: KernelGraph, inside: Inside, multiplied: bool
    ) -> list[Plan]:
        whole, self.ledger = self.ledger, Ledger()
        complete, self.complete = self.complete, True
        self._under_way = key
        try:
            plans = super().plans(segment, inside, multiplied=multiplied)
            self.keep_in_mind(key, lambda: self.document(plans, segment))
        finally:
            own, self.ledger = self.ledger, whole
            whole.add(own)
            self.complete &= complete
        return plans

    # -- Many at once ----------------------------------------------------------------

    def ahead(self, items: Iterable[tuple[KernelGraph, frozenset[str]]]) -> None:
        """Search segments on the executor, if there is one, and remember them."""
        if self.executor is None or self.late():
            return
        missing: dict[str, _Task] = {}
        for segment, inside in items:
            key = self.key(segment, inside)
            if key not in self._known and key not in missing:
                missing[key] = self._task(segment, inside)
        keys = list(missing)

        def done(number: int, document: dict[str, Any]) -> None:
            key = keys[number]
            segment = missing[key].segment
            self._known[key] = _Finding(segment, self._taken(document, segment))
            if not document["cut_short"]:
                self.keep_in_mind(key, lambda: document)

        spread(_Task.run, list(missing.values()), self.executor, done)

    def _task(self, segment: KernelGraph, inside: frozenset[str]) -> _Task:
        seconds = None
        if self.deadline is not None:
            seconds = max(0.0, self.deadline - time.monotonic())
        return _Task(
            segment,
            inside,
            self.seed,
            seconds,
            self.hardware,
            self.constraints,
            (self.keep, self.enough, self.split),
        )

    # -- Documents -------------------------------------------------------------------

    def document(self, plans: list[Plan], segment: KernelGraph) -> dict[str, Any]:
        """The finding of a search of one segment, as JSON."""
        return {
            "plans": plans_json(plans, segment),
            "complete": self.complete,
            "cut_short": self.cut_short,
            "ledger": self.ledger.as_dict(),
        }

    def _taken(self, document: dict[str, Any], segment: KernelGraph) -> list[Plan]:
        """The plans of a document, whose books are added to these."""
        plans = plans_of(document["plans"], segment)
        ledger = Ledger.from_dict(document["ledger"])
        complete, cut_short = bool(document["complete"]), bool(document["cut_short"])
        self.ledger.add(ledger)
        self.complete &= complete
        self.cut_short |= cut_short
        return plans

    def _structures(self, segment: KernelGraph, multiplied: bool) -> Found:
        key = f"{self._under_way} structures"
        found = self.recall(key, lambda document: _found(document, segment))
        if found is None:
            found = super()._structures(segment, multiplied)
            known = found
            self.keep_in_mind(key, lambda: _found_json(known, segment))
        return found

    def _size_family(
        self,
        number: int,
        task: Sizing,
        family: Sequence[BlockGraph],
        plans: list[Plan],
    ) -> None:
        key = f"{self._under_way} family {number}"
        known = self.recall(key, lambda found: self._taken(found, task.segment))
        if known is not None:
            plans += known
            return
        before = len(plans)
        whole, self.ledger = self.ledger, Ledger()
        try:
            super()._size_family(number, task, family, plans)
            self.keep_in_mind(key, lambda: self.document(plans[before:], task.segment))
        finally:
            own, self.ledger = self.ledger, whole
            whole.add(own)

    def recall(self, key: str, read: Callable[[dict[str, Any]], T]) -> T | None:
        """What the checkpoint has under a key; None if nothing, or nothing of use."""
        if self.checkpoint is None:
            return None
        document = self.checkpoint.load(key)
        if document is None:
            return None
        try:
            return read(document)
        except (MirageError, KeyError, TypeError, ValueError) as error:
            _log.warning("%s: an entry is not usable: %s", self.checkpoint.path, error)
            return None

    def keep_in_mind(self, key: str, write: Callable[[], dict[str, Any]]) -> None:
        """Store something in the checkpoint, unless time cut it short."""
        if self.checkpoint is not None and not self.late():
            self.checkpoint.store(key, write())


def plans_json(plans: Iterable[Plan], segment: KernelGraph) -> list[Any]:
    """Plans of a segment, as JSON."""
    return [
        (p.microseconds, to_text(p.graph), lines_of(p.graph, segment)) for p in plans
    ]


def plans_of(record: Iterable[Any], segment: KernelGraph) -> list[Plan]:
    """The reverse."""
    return [
        Plan(cost, with_lines(parse(text), segment, lines))
        for cost, text, lines in record
    ]


def _found_json(found: Found, segment: KernelGraph) -> dict[str, Any]:
    graphs = [one_kernel(segment, block) for block in found.blocks]
    return {
        "blocks": plans_json([Plan(0.0, g) for g in graphs], segment),
        "complete": found.complete,
        "unshifted": found.unshifted,
        "counters": dict(found.counters),
    }


def _found(document: dict[str, Any], segment: KernelGraph) -> Found:
    graphs = [p.graph for p in plans_of(document["blocks"], segment)]
    return Found(
        tuple(g.blocks[0] for g in graphs),
        bool(document["complete"]),
        bool(document["unshifted"]),
        {str(k): int(v) for k, v in document["counters"].items()},
    )
