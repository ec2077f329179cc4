"""Budgets: how long a search, and each of its steps, may go on.

A step that works in many small ones is given a `Budget`, asks whether it is `late`, and
hands back what it has.  What such a step calls knows no budget, and takes a `look` at
the clock (`core.work`) instead.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mirage_dsl.core.work import OutOfTimeError, until

_log = logging.getLogger("mirage_dsl.search.budget")


@dataclass(frozen=True)
class Budget:
    """The time of one step.

    Attributes:
        end: Reading of `time.monotonic()` at which it is used up; None without a limit.
    """

    end: float | None = None

    @classmethod
    def of(cls, seconds: float | None) -> Budget:
        """So many seconds from now on; None is no limit."""
        return cls(None if seconds is None else time.monotonic() + seconds)

    def late(self) -> bool:
        """Whether it is used up."""
        return self.end is not None and time.monotonic() > self.end

    @property
    def seconds(self) -> float:
        """What is left of it, less than 0 once it is used up."""
        return math.inf if self.end is None else self.end - time.monotonic()

    def half(self) -> Budget:
        """Half of what is left, for the next step; the rest is for later ones."""
        return Budget(None if self.end is None else (time.monotonic() + self.end) / 2)


UNLIMITED = Budget()

TO_FIND = 0.85
"""Share of a search's budget for finding plans; the rest is left to verify them."""

LEAST_TO_FIND = 0.5
"""Share of it for that where verifying takes long."""

TO_SECURE = 0.75
"""Share of it for finding an answer to a long program, before it is searched."""

GRACE = 0.2
"""Seconds beyond the budget for each step without which there would be no good answer:
joining what was found, a quick answer, verifying the best, ordering its statements."""

STEPS = 4
"""How many such steps there are."""

ALL_BEYOND = 0.9
"""Seconds beyond the budget at most, with what went by before the search began."""


@dataclass
class SearchBudget:
    """The budget of a whole search, and what came of it.

    Attributes:
        limit: How many seconds there are; None without a limit.
        spent: Seconds that went by before it began, which are not of the budget.
        started: Reading of `time.monotonic()` when it began.
        verifying: How long verifying an answer is known to take: as long as it took
            for the first one.  It is left for the best.
        now: The budget of the present step; that for finding plans at first.
        cut_short: Whether a step ended for want of time, or because of Ctrl-C.
        interrupted: Whether Ctrl-C was pressed: no step has time any more.
    """

    limit: float | None = None
    spent: float = 0.0
    verifying: float = 0.0
    # Looked up when it begins, and not when this is read: tests replace the clock.
    started: float = field(default_factory=lambda: time.monotonic())
    now: Budget = UNLIMITED
    cut_short: bool = False
    interrupted: bool = False

    def __post_init__(self) -> None:
        """Begin with finding plans."""
        if self.now == UNLIMITED:
            self.now = self.found

    def late(self) -> bool:
        """Whether the present step has to end, which cuts the search short."""
        late = self.interrupted or self.now.late()
        self.cut_short |= late
        return late

    def past(self, share: float) -> bool:
        """Whether more than a share of the time is used up."""
        return self._after(share).late()

    @contextmanager
    def step(self, budget: Budget | None = None) -> Generator[None]:
        """What is in here ends with what is known when its time is up.

        So it does with Ctrl-C; a second one ends the search.

        Args:
            budget: Another one than that of the present step.
        """
        try:
            with until((budget or self.now).end):
                yield
        except OutOfTimeError:
            self.cut_short = True
        except KeyboardInterrupt:
            if self.interrupted:
                raise
            self.interrupted = self.cut_short = True
            _log.warning("interrupted: the best found so far is verified and returned")

    # -- The steps -------------------------------------------------------------------

    def keep(self, seconds: float) -> None:
        """Leave so many seconds for verifying: what is to be found is by then."""
        finding = self.now == self.found
        self.verifying = seconds
        if finding:
            self.now = self.found

    def _after(self, share: float, graces: int = 0) -> Budget:
        if self.limit is None:
            return UNLIMITED
        grace = min(GRACE, max(0.0, ALL_BEYOND - self.spent) / STEPS)
        return Budget(self.started + share * self.limit + graces * grace)

    @property
    def _to_find(self) -> float:
        """The share for finding plans."""
        if not self.limit:
            return TO_FIND
        return min(TO_FIND, max(LEAST_TO_FIND, 1.0 - self.verifying / self.limit))

    @property
    def secured(self) -> Budget:
        """Until a long program has a quick answer, or that of windows is verified."""
        return self._after(TO_SECURE)

    @property
    def found(self) -> Budget:
        """Until plans are found."""
        return self._after(self._to_find)

    @property
    def joined(self) -> Budget:
        """Until they are joined."""
        return self._after(self._to_find, 1)

    @property
    def fused(self) -> Budget:
        """Until a quick answer is there."""
        return self._after((1.0 + self._to_find) / 2, 2)

    @property
    def verified(self) -> Budget:
        """Until candidates are verified."""
        return self._after(1.0)

    @property
    def over(self) -> Budget:
        """Until one candidate is."""
        return self._after(1.0, 3)

    @property
    def ordered(self) -> Budget:
        """Until their statements are in good order."""
        return self._after(1.0, STEPS)
