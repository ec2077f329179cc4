"""What a rule of the checker finds."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_dsl.errors import SourceLocation


@dataclass(frozen=True)
class Diagnostic:
    """One broken rule.

    Attributes:
        rule: Name of the rule.
        message: What was found and what was expected.
        name: The value, node or dim that it speaks of.
        hint: What to do.
        block: Position of the block among the kernel graph's nodes; None at the
            kernel level.
        location: The user's line, where one is known.
    """

    rule: str
    message: str
    name: str
    hint: str
    block: int | None = None
    location: SourceLocation | None = None

    def __str__(self) -> str:
        place = "" if self.location is None else f"{self.location}: "
        hint = f"; {self.hint}" if self.hint else ""
        return f"{place}{self.message}{hint} [{self.rule}]"
