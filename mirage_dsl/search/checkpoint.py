"""Segments searched so far, kept in a file so that an interruption loses none of them.

The file has one JSON document a line, each with a checksum, and only grows: a line that
an interruption cut short is passed over.  Lines of other programs, settings or versions
of the code have other keys, so one file may serve many searches.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from mirage_dsl.errors import CacheError, MirageError
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.parser import parse
from mirage_dsl.ir.printer import to_text
from mirage_dsl.lines import lines_of, with_lines
from mirage_dsl.search.ledger import Ledger
from mirage_dsl.search.segments import Plan, SegmentSearch

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """What is known, by key.

    Attributes:
        path: The file; it need not exist.
        version: Of the code; what other code found is not used.
    """

    path: Path
    version: str = ""

    @cached_property
    def _entries(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return found
        except (OSError, UnicodeDecodeError) as error:
            raise CacheError(
                f"the checkpoint {self.path} cannot be read: {error}"
            ) from error
        for line in lines:
            entry = _entry(line)
            if entry is None:
                _log.warning("%s: a damaged line is passed over", self.path)
            else:
                found[entry[0]] = entry[1]
        return found

    def key(self, *parts: object) -> str:
        """A key for what depends on some parts, by their texts."""
        return _checksum([self.version, *map(str, parts)])

    def load(self, key: str) -> Any:
        """What is known under a key; None if nothing is."""
        return self._entries.get(key)

    def store(self, key: str, value: Mapping[str, Any]) -> None:
        """Append what was found.

        Raises:
            CacheError: The file cannot be written.
        """
        line = json.dumps([key, value, _checksum([key, value])])
        whole = not self._entries or self.path.read_bytes().endswith(b"\n")
        self._entries[key] = value
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n" if whole else "\n" + line + "\n")
        except OSError as error:
            raise CacheError(
                f"the checkpoint {self.path} cannot be written: {error}"
            ) from error


def _entry(line: str) -> tuple[str, Any] | None:
    try:
        key, value, checksum = cast("list[Any]", json.loads(line))
    except (ValueError, TypeError):
        return None
    return (str(key), value) if _checksum([key, value]) == checksum else None


def _checksum(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class KeptSegments(SegmentSearch):
    """A search that reads and writes a checkpoint.

    Attributes:
        checkpoint: What is known.
        seed: Of the structural search.
    """

    checkpoint: Checkpoint = field(default_factory=lambda: Checkpoint(Path()))
    seed: int = 0

    def plans(
        self, segment: KernelGraph, inside: AbstractSet[str] = frozenset()
    ) -> list[Plan]:
        """μGraphs of a segment, as they are known or else searched."""
        key = self.checkpoint.key(
            to_text(segment),
            sorted(inside),
            self.seed,
            self.constraints,
            self.hardware,
            (self.keep, self.enough, self.split),
        )
        known = self._known(key, segment)
        if known is not None:
            return known
        whole, self.ledger = self.ledger, Ledger()
        complete, self.complete = self.complete, True
        try:
            plans = super().plans(segment, inside)
            # What a deadline cut short is to be searched again.
            if not self.late():
                self.checkpoint.store(key, self._document(plans, segment))
        finally:
            own, self.ledger = self.ledger, whole
            whole.add(own)
            self.complete &= complete
        return plans

    def _document(self, plans: list[Plan], segment: KernelGraph) -> dict[str, Any]:
        return {
            "plans": [
                (p.microseconds, to_text(p.graph), lines_of(p.graph, segment))
                for p in plans
            ],
            "complete": self.complete,
            "ledger": self.ledger.as_dict(),
        }

    def _known(self, key: str, segment: KernelGraph) -> list[Plan] | None:
        document = self.checkpoint.load(key)
        if document is None:
            return None
        try:
            plans = [
                Plan(cost, with_lines(parse(text), segment, lines))
                for cost, text, lines in document["plans"]
            ]
            ledger = Ledger.from_dict(document["ledger"])
            complete = bool(document["complete"])
        except (MirageError, KeyError, TypeError, ValueError) as error:
            _log.warning("%s: an entry is not usable: %s", self.checkpoint.path, error)
            return None
        self.ledger.add(ledger)
        self.complete &= complete
        return plans
