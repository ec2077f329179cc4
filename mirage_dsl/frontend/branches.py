"""Iterations that may not happen, and what of them may be used behind them.

A loop over the places where a condition holds is traced for each place that there is.
What an iteration writes to tensors is kept where its condition holds; what else it
computes stays in it, for nobody knows whether eager would have computed it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mirage_dsl.core.errors import TraceError, user_location
from mirage_dsl.frontend.dims import Handle


@dataclass(frozen=True, eq=False)
class Branch:
    """An iteration, and the condition under which it happens."""

    condition: Handle


class Branches:
    """The iterations of a trace.

    Attributes:
        current: That which is being traced.
        begun: Whether there was any: without, nothing has to be noted.
    """

    def __init__(self) -> None:
        self.current: Branch | None = None
        self.begun = False
        self._made: dict[object, Branch] = {}
        self._settling = False

    def begin(self, condition: Handle) -> Branch:
        """An iteration begins that happens where its condition holds."""
        self.begun, self.current = True, Branch(condition)
        return self.current

    def note(self, result: object, operands: Sequence[object]) -> None:
        """Note what was computed of what.

        Raises:
            TraceError: One of these was computed in an iteration that has ended.
        """
        if self._settling:
            return
        for value in operands:
            self.require_open(value)
        if self.current is not None:
            self._made[result] = self.current

    def require_open(self, value: object) -> None:
        """Refuse a value of an iteration that has ended.

        Raises:
            TraceError: It is one.
        """
        if self._made.get(value, self.current) is not self.current:
            raise TraceError(
                "a tensor that an iteration over nonzero() computed is used behind it, "
                "and nobody knows whether there was such an iteration; add to a tensor "
                "that was made before the loop, or write to that",
                user_location(),
            )

    def conditional(self, value: object) -> Branch | None:
        """The iteration on which it depends whether a new value is kept.

        Args:
            value: What the memory that is written to holds now.
        """
        return None if value in self._made else self.current

    @contextmanager
    def settling(self) -> Generator[None]:
        """Compute what is right whether or not there is the iteration."""
        self._settling = True
        try:
            yield
        finally:
            self._settling = False

    def refuse_unfinished(self) -> None:
        """Refuse that the function has ended within a loop, or has left it.

        Raises:
            TraceError: It has.
        """
        if self.current is not None:
            raise TraceError(
                "a loop over nonzero() was left before its end, by break or return: "
                "nobody knows in which iteration; compute under a condition instead",
                user_location(),
            )


__all__ = ["Branch", "Branches"]
