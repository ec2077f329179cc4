"""What a search knows already, in this process and in a file.

What was found once under a key is not searched again.  With a checkpoint it is also
kept in a file, so that an interruption loses little.  The file has one JSON document a
line, each with a checksum, and only grows: a line that an interruption cut short is
passed over.  Lines of other programs, settings or versions of the code have other keys,
so one file may serve many searches.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from mirage_dsl.core.errors import CacheError, MirageError
from mirage_dsl.search.budget import SearchBudget

_log = logging.getLogger("mirage_dsl.search.memo")

T = TypeVar("T")


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
        whole = _checksum([key, value]) == checksum
    except (ValueError, TypeError, RecursionError):
        # Lists can be nested more deeply than Python reads or writes them.
        return None
    return (str(key), value) if whole else None


def _checksum(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Memo:
    """What is known, by key: of this process, and of a checkpoint if there is one.

    Attributes:
        budget: Of the search; what it cut short is not kept in the file.
        checkpoint: The file.
        known: What is known as it is, by any key.
    """

    budget: SearchBudget = field(default_factory=SearchBudget)
    checkpoint: Checkpoint | None = None
    known: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])

    def key(self, *parts: object) -> str:
        """A key for what depends on some parts, by their texts."""
        version = "" if self.checkpoint is None else self.checkpoint.version
        return _checksum([version, *map(str, parts)])

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is known under a key in this process, or made now."""
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def recall(self, key: str, read: Callable[[dict[str, Any]], T]) -> T | None:
        """What the file has under a key; None if nothing, or nothing of use."""
        document = None if self.checkpoint is None else self.checkpoint.load(key)
        if self.checkpoint is None or document is None:
            return None
        try:
            return read(document)
        except (MirageError, KeyError, TypeError, ValueError) as error:
            _log.warning("%s: an entry is not usable: %s", self.checkpoint.path, error)
            return None

    def keep(
        self, key: str, write: Callable[[], dict[str, Any]], *, whole: bool = False
    ) -> None:
        """Keep something in the file, if it is whole: if no time cut it short."""
        if self.checkpoint is not None and (whole or not self.budget.late()):
            self.checkpoint.store(key, write())
