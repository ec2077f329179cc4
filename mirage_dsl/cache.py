"""The cache on disk: verified μGraphs, and timings, one file for each entry.

What is true of a program (`MUGRAPHS`) and what is true of a GPU (`TIMINGS`) are kept
apart.  An entry is a JSON text that holds its key in the open, so that a key can be
printed and a miss explained.  Entries are written to a temporary name and renamed, so
readers need no lock.  A damaged entry is a miss: it is removed and a warning logged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mirage_dsl.errors import CacheError
from mirage_dsl.settings import CACHE_DIR, CACHE_LIMIT_MB

_log = logging.getLogger(__name__)

MUGRAPHS = "mugraphs"
TIMINGS = "timings"
KINDS = (MUGRAPHS, TIMINGS)

_FORMAT = "mirage_dsl cache entry 1"
_ARCHIVE = "mirage_dsl cache archive 1"
_SUFFIX = ".json"
_LOCK_SECONDS = 10.0


@dataclass(frozen=True)
class Key:
    """What an entry is stored under.

    Attributes:
        kind: One of `KINDS`.
        parts: All that the entry depends on, by name.
    """

    kind: str
    parts: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """The entry's name: 64 hexadecimal digits."""
        return _checksum([self.kind, list(self.parts)])

    def __str__(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.parts]
        return "\n".join([f"{self.kind} {self.digest}", *lines])


@dataclass(frozen=True)
class Entry:
    """A stored entry.

    Attributes:
        key: What it is stored under.
        content: What is stored, as JSON.
        path: Its file.
        size: Bytes of the file.
        used: When it was last read or written, in seconds since the epoch.
    """

    key: Key
    content: Mapping[str, Any]
    path: Path
    size: int
    used: float


def _checksum(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """The entries below a directory; `MIRAGE_DSL_CACHE_DIR` unless it is given."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = CACHE_DIR.get() if directory is None else directory

    def load(self, key: Key) -> Mapping[str, Any] | None:
        """What is stored under `key`, or None."""
        path = self._path(key)
        entry = self._read(path)
        if entry is None or entry.key != key:
            return None
        with suppress(OSError):
            os.utime(path)
        return entry.content

    def store(self, key: Key, content: Mapping[str, Any]) -> None:
        """Keep `content`, then remove the least recently used beyond the limit.

        A cache that cannot be written is no error: it is logged as a warning.
        """
        try:
            with self._lock():
                self._write(self._path(key), _document(key, content))
                self._shrink(CACHE_LIMIT_MB.get() * 2**20, keep=self._path(key))
        except (OSError, TimeoutError) as error:
            _log.warning("%s cannot be written: %s", self.directory, error)

    def entries(self, kind: str | None = None) -> list[Entry]:
        """All entries, or those of a kind, the most recently used first."""
        found = (self._read(path) for path in self._files(kind))
        return sorted(
            (e for e in found if e is not None), key=lambda e: e.used, reverse=True
        )

    def find(self, prefix: str) -> Entry:
        """The entry whose digest starts with `prefix`.

        Raises:
            CacheError: There is none, or more than one.
        """
        found = [e for e in self.entries() if e.key.digest.startswith(prefix)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise CacheError(
                f"no entry starts with {prefix!r}; `mirage-dsl cache ls` lists them"
            )
        digests = ", ".join(e.key.digest[:12] for e in found)
        raise CacheError(f"{prefix!r} is ambiguous: {digests}; give more digits")

    def explain_miss(self, key: Key) -> str:
        """Why `load(key)` gives None: what differs from the nearest entry."""
        ours = dict(key.parts)
        nearest: tuple[int, Entry, list[str]] | None = None
        for entry in self.entries(key.kind):
            theirs = dict(entry.key.parts)
            names = sorted(ours.keys() | theirs.keys())
            different = [n for n in names if ours.get(n) != theirs.get(n)]
            if nearest is None or len(different) < nearest[0]:
                nearest = len(different), entry, different
        if nearest is None:
            return f"the cache {self.directory} has no {key.kind}"
        _, entry, different = nearest
        theirs = dict(entry.key.parts)
        shown = [
            f"  {n}: asked for {ours.get(n)}, stored {theirs.get(n)}" for n in different
        ]
        title = f"the nearest entry is {entry.key.digest[:12]}, which differs in"
        return "\n".join([title, *shown])

    def clear(self) -> int:
        """Remove all entries; returns how many there were."""
        with self._lock():
            return sum(_remove(path) for path in list(self._files(None)))

    def collect(self, limit_bytes: int) -> int:
        """Remove the least recently used entries until at most `limit_bytes` remain."""
        with self._lock():
            return self._shrink(limit_bytes, keep=None)

    def export(self, path: Path) -> int:
        """Write all entries to one file; returns how many."""
        entries = self.entries()
        archive = {
            "format": _ARCHIVE,
            "entries": [_document(e.key, e.content) for e in entries],
        }
        self._write(path, archive)
        return len(entries)

    def import_from(self, path: Path) -> int:
        """Add the entries of a file that `export` wrote; returns how many.

        Raises:
            CacheError: The file is no such file.
        """
        try:
            loaded: object = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CacheError(f"{path} cannot be read: {error}") from error
        archive = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
        if archive.get("format") != _ARCHIVE:
            raise CacheError(
                f"{path} is not an exported cache; `mirage-dsl cache export` writes one"
            )
        taken = 0
        with self._lock():
            for document in cast("Iterable[Any]", archive.get("entries", [])):
                parsed = _parse(document)
                if parsed is None:
                    _log.warning("%s: a damaged entry was skipped", path)
                    continue
                self._write(self._path(parsed[0]), _document(*parsed))
                taken += 1
        return taken

    def _path(self, key: Key) -> Path:
        return self.directory / key.kind / f"{key.digest}{_SUFFIX}"

    def _files(self, kind: str | None) -> Iterator[Path]:
        for name in KINDS if kind is None else (kind,):
            yield from (self.directory / name).glob(f"*{_SUFFIX}")

    def _read(self, path: Path) -> Entry | None:
        try:
            text = path.read_text(encoding="utf-8")
            status = path.stat()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            return self._damaged(path, str(error))
        try:
            parsed = _parse(json.loads(text))
        except ValueError as error:
            return self._damaged(path, str(error))
        if parsed is None or self._path(parsed[0]).name != path.name:
            return self._damaged(path, "its checksum does not fit")
        return Entry(parsed[0], parsed[1], path, status.st_size, status.st_mtime)

    def _damaged(self, path: Path, reason: str) -> None:
        _log.warning("%s is damaged and was removed: %s", path, reason)
        _remove(path)

    def _write(self, path: Path, document: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1, ensure_ascii=False)
                file.write("\n")
            temporary.replace(path)
        except BaseException:
            _remove(temporary)
            raise

    def _shrink(self, limit: int, *, keep: Path | None) -> int:
        listed: list[tuple[float, int, Path]] = []
        for path in self._files(None):
            with suppress(OSError):
                status = path.stat()
                listed.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in listed)
        removed = 0
        for _, size, path in sorted(listed):
            if total <= limit:
                break
            if path != keep:
                removed += _remove(path)
                total -= size
        return removed

    @contextmanager
    def _lock(self) -> Generator[None, None, None]:
        from filelock import FileLock

        self.directory.mkdir(parents=True, exist_ok=True)
        with FileLock(self.directory / ".lock", timeout=_LOCK_SECONDS):
            yield


def _document(key: Key, content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "kind": key.kind,
        "key": [list(part) for part in key.parts],
        "checksum": _checksum([key.kind, list(key.parts), content]),
        "content": content,
    }


def _parse(document: object) -> tuple[Key, Mapping[str, Any]] | None:
    """The key and content of a stored document; None where it is damaged."""
    if not isinstance(document, dict):
        return None
    fields = cast("dict[str, Any]", document)
    try:
        parts = tuple((str(name), str(value)) for name, value in fields["key"])
        key, content = Key(str(fields["kind"]), parts), dict(fields["content"])
        sound = (
            fields["format"] == _FORMAT
            and key.kind in KINDS
            and fields["checksum"] == _checksum([key.kind, list(parts), content])
        )
    except (KeyError, TypeError, ValueError):
        return None
    return (key, content) if sound else None


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
