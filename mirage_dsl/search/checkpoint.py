"""What a search found so far, kept in a file so that an interruption loses little.

The file has one JSON document a line, each with a checksum, and only grows: a line that
an interruption cut short is passed over.  Lines of other programs, settings or versions
of the code have other keys, so one file may serve many searches.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from mirage_dsl.core.errors import CacheError

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

    @classmethod
    def nowhere(cls) -> Checkpoint:
        """One that is only asked for keys."""
        return cls(Path())

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
        whole = _checksum([key, value]) == checksum
    except (ValueError, TypeError, RecursionError):
        # Lists can be nested more deeply than Python reads or writes them.
        return None
    return (str(key), value) if whole else None


def _checksum(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
