"""The cache on disk: verified μGraphs, timings, figures of GPUs, one file for each.

What is true of a program (`MUGRAPHS`), what a GPU took for one (`TIMINGS`) and what was
measured of a GPU itself (`HARDWARE`) are kept apart.  An entry is a JSON text that
holds its key in the open, so that a key can be printed and a miss explained.  Entries
are written to a temporary name and renamed, so readers need no lock.  A damaged entry
is a miss: it is removed and a warning logged.  An entry that this machine did not make
is told by its signature; it is the reader who verifies what it says.  A directory that
cannot be used costs one warning.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mirage_dsl.core.errors import CacheError
from mirage_dsl.core.files import (
    checksum,
    is_signed,
    read_regular,
    remove,
    signature,
    unusable,
    warn_once,
    write_whole,
)
from mirage_dsl.core.settings import CACHE_DIR, CACHE_LIMIT_MB

_log = logging.getLogger("mirage_dsl.cache")

MUGRAPHS = "mugraphs"
TIMINGS = "timings"
HARDWARE = "hardware"
KINDS = (MUGRAPHS, TIMINGS, HARDWARE)

_FORMAT = "mirage_dsl cache entry 1"
_ARCHIVE = "mirage_dsl cache archive 1"
_SUFFIX = ".json"
_LOCK_SECONDS = 10.0
_MOST_LEVELS = 64
"""Of lists and objects in each other; entries have fewer than ten."""
_NAME = re.compile(r"[0-9a-f]{64}\.json")


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
        return checksum([self.kind, list(self.parts)])

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
        own: Whether this machine made it, or verified it.
    """

    key: Key
    content: Mapping[str, Any]
    path: Path
    size: int
    used: float
    own: bool


class Cache:
    """The entries below a directory; `MIRAGE_DSL_CACHE_DIR` unless it is given."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = CACHE_DIR.get() if directory is None else directory

    def load(self, key: Key) -> Entry | None:
        """What is stored under `key`, or None."""
        path = self._path(key)
        entry = self._read(path)
        if entry is None or entry.key != key:
            return None
        with suppress(OSError):
            os.utime(path)
        return entry

    def store(self, key: Key, content: Mapping[str, Any]) -> None:
        """Keep `content`, then remove the least recently used beyond the limit.

        A cache that cannot be written is no error: one warning is logged.
        """
        document = _document(key, content)
        document["signature"] = signature(_signed(document)).hex()
        try:
            with self._lock():
                self._write(self._path(key), document)
                self._shrink(CACHE_LIMIT_MB.get() * 2**20, keep=self._path(key))
        except OSError as error:
            unusable(self.directory, error)

    def remove(self, entry: Entry) -> bool:
        """Remove an entry; whether it could be."""
        return remove(entry.path)

    @contextmanager
    def turn(self, key: Key, seconds: float) -> Generator[None, None, None]:
        """Keep other processes from making the same entry at the same time.

        A process that died keeps nobody waiting, and where there are no locks nobody
        waits.

        Args:
            key: Of the entry.
            seconds: The longest wait for another process; then both make it.
        """
        from filelock import FileLock

        path = self.directory / "made" / f"{key.digest}.lock"
        lock = FileLock(path, thread_local=False)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=seconds)
        except (OSError, RuntimeError) as error:
            if not isinstance(error, TimeoutError):
                unusable(self.directory, error)
        try:
            yield
        finally:
            if lock.is_locked:
                remove(path)
                lock.release()

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
            return sum(remove(path) for path in self._files(None))

    def collect(self, limit_bytes: int) -> int:
        """Remove the least recently used entries until at most `limit_bytes` remain."""
        with self._lock():
            return self._shrink(limit_bytes, keep=None)

    def export(self, path: Path) -> int:
        """Write all entries to one file; returns how many.

        They go without signatures: where they arrive they are verified before use.

        Raises:
            CacheError: There is no directory for the file.
        """
        if not path.absolute().parent.is_dir():
            raise CacheError(
                f"{path}: there is no directory {path.absolute().parent}; make it first"
            )
        entries = self.entries()
        archive = {
            "format": _ARCHIVE,
            "entries": [_document(e.key, e.content) for e in entries],
        }
        self._write(path, archive)
        return len(entries)

    def import_from(self, path: Path) -> int:
        """Add the entries of a file that `export` wrote; returns how many.

        None of them counts as this machine's own.

        Raises:
            CacheError: The file is no such file.
        """
        try:
            archive = _json(read_regular(path)[0])
        except (OSError, ValueError) as error:
            raise CacheError(f"{path} cannot be read: {error}") from error
        found = archive.get("entries")
        if archive.get("format") != _ARCHIVE or not isinstance(found, list):
            raise CacheError(
                f"{path} is not an exported cache; `mirage-dsl cache export` writes one"
            )
        taken = 0
        with self._lock():
            for document in cast("list[object]", found):
                parsed = _parse(document)
                if parsed is None:
                    _log.warning("%s: a damaged entry was skipped", path)
                    continue
                self._write(self._path(parsed[0]), _document(*parsed))
                taken += 1
        return taken

    def _path(self, key: Key) -> Path:
        return self.directory / key.kind / f"{key.digest}{_SUFFIX}"

    def _files(self, kind: str | None) -> list[Path]:
        found: list[Path] = []
        for name in KINDS if kind is None else (kind,):
            try:
                inside = sorted((self.directory / name).iterdir())
            except FileNotFoundError:
                continue
            except OSError as error:
                unusable(self.directory, error)
                continue
            found += (path for path in inside if _NAME.fullmatch(path.name))
        return found

    def _read(self, path: Path) -> Entry | None:
        try:
            data, status = read_regular(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return self._unreadable(path, error)
        try:
            document = _json(data)
        except ValueError as error:
            return self._damaged(path, str(error))
        parsed = _parse(document)
        if parsed is None or self._path(parsed[0]) != path:
            return self._damaged(path, "its checksum does not fit")
        own = _is_own(document)
        return Entry(*parsed, path, status.st_size, status.st_mtime, own)

    def _unreadable(self, path: Path, error: OSError) -> None:
        """Something in the place of an entry, or of the whole directory."""
        if os.path.lexists(path) and isinstance(error, PermissionError):
            warn_once(path, "cannot be read", error)
        elif os.path.lexists(path):
            self._damaged(path, str(error))
        else:
            unusable(self.directory, error)

    def _damaged(self, path: Path, reason: str) -> None:
        if remove(path):
            _log.warning("%s is damaged and was removed: %s", path, reason)
        else:
            warn_once(path, "is damaged and cannot be removed", reason)

    def _write(self, path: Path, document: Mapping[str, Any]) -> None:
        text = json.dumps(document, indent=1, ensure_ascii=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{text}\n".encode())

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
                removed += remove(path)
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
        "checksum": checksum([key.kind, list(key.parts), content]),
        "content": content,
    }


def _json(data: bytes) -> dict[str, Any]:
    """The JSON object that some bytes are.

    Raises:
        ValueError: They are none, of whatever shape.
    """
    try:
        loaded: object = json.loads(data.decode("utf-8"))
        # What is no Unicode text, as half a surrogate pair, cannot be printed.
        json.dumps(loaded, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    _require_flat(loaded)
    if not isinstance(loaded, dict):
        raise ValueError("it is no object")
    return cast("dict[str, Any]", loaded)


def _require_flat(value: object) -> None:
    """Raise `ValueError` for what code that recurs through it may not get through."""
    level, depth = [value], 0
    while level:
        if depth > _MOST_LEVELS:
            raise ValueError(f"it is nested deeper than {_MOST_LEVELS} levels")
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += cast("dict[str, object]", item).values()
            elif isinstance(item, list):
                inner += cast("list[object]", item)
        level, depth = inner, depth + 1


def _parse(document: object) -> tuple[Key, Mapping[str, Any]] | None:
    """The key and content of a stored document; None where it is damaged."""
    if not isinstance(document, dict):
        return None
    fields = cast("dict[str, Any]", document)
    key, content = _key_of(fields), fields.get("content")
    if key is None or not isinstance(content, dict) or fields.get("format") != _FORMAT:
        return None
    content = cast("dict[str, Any]", content)
    expected = checksum([key.kind, list(key.parts), content])
    return (key, content) if fields.get("checksum") == expected else None


def _key_of(fields: Mapping[str, Any]) -> Key | None:
    kind, found = fields.get("kind"), fields.get("key")
    if not isinstance(kind, str) or kind not in KINDS or not isinstance(found, list):
        return None
    parts: list[tuple[str, str]] = []
    for part in cast("list[object]", found):
        match part:
            case [str(name), str(value)]:
                parts.append((name, value))
            case _:
                return None
    return Key(kind, tuple(parts))


def _signed(document: Mapping[str, Any]) -> bytes:
    """What a signature of an entry is of; its checksum covers key and content."""
    return f"{_FORMAT} {document['checksum']}".encode()


def _is_own(document: Mapping[str, Any]) -> bool:
    claimed = document.get("signature")
    try:
        return is_signed(bytes.fromhex(str(claimed)), _signed(document))
    except ValueError:
        return False
