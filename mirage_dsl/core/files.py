"""Files that are kept between processes: read without trust, written whole.

What lies below a directory of the user may be damaged, of another kind than expected
(a FIFO, a device, a directory), or made elsewhere; and the directory may take nothing.
So only regular files are read, none is ever waited on, and a directory that cannot be
used costs one warning.  What this machine made is told from what came from elsewhere by
a signature, whose key lies outside of the directory (`MIRAGE_DSL_KEY_FILE`).
Nothing of what JSON holds is used before it has the types that the code counts on
(`typed`).
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import logging
import os
import stat
import tempfile
import types
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from mirage_dsl.core.errors import CacheError
from mirage_dsl.core.settings import KEY_FILE

_log = logging.getLogger("mirage_dsl.files")

MOST_BYTES = 2**28
"""Of a file that is read; what is longer was not written here."""

_KEY_BYTES = 32
_told: set[tuple[str, str]] = set()


def read_regular(path: Path) -> tuple[bytes, os.stat_result]:
    """The content of a regular file, and its status; nothing else is opened.

    Raises:
        OSError: It cannot be read, is no regular file, or is longer than `MOST_BYTES`.
    """
    _require_regular(path.stat(), path)  # A device may act on being opened.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    try:
        status = os.fstat(handle)
        _require_regular(status, path)
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(), status
    finally:
        os.close(handle)


def _require_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    if status.st_size > MOST_BYTES:
        raise OSError(errno.EFBIG, f"more than {MOST_BYTES} bytes", str(path))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, and rename it: it is there wholly or not.

    Raises:
        OSError: It cannot be written; what was there before stays.
    """
    handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        remove(Path(name))
        raise


def remove(path: Path) -> bool:
    """Remove a file; whether it was there and could be removed."""
    try:
        path.unlink()
    except OSError:
        return False
    return True


def warn_once(place: Path, text: str, reason: object) -> None:
    """Log a warning about a place, unless this process has logged the like of it.

    Args:
        place: What it is about.
        text: What holds of it, to stand behind its name.
        reason: Why.
    """
    if (str(place), text) not in _told:
        _told.add((str(place), text))
        _log.warning("%s %s: %s", place, text, reason)


def unusable(directory: Path, reason: object) -> None:
    """Say, once, that nothing can be kept in a directory."""
    warn_once(directory, "cannot be used to keep what was found", reason)


def checksum(value: object) -> str:
    """Of what JSON can hold, in whatever order its names stand."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# -- What this machine made ------------------------------------------------------------


def signature(*parts: bytes) -> bytes:
    """What only this machine, or who has its key, can say of some bytes: 32 bytes."""
    import hmac

    lengths = b"".join(len(p).to_bytes(8, "big") for p in parts)
    return hmac.digest(_key(KEY_FILE.get()), lengths + b"".join(parts), "sha256")


def is_signed(claimed: bytes, *parts: bytes) -> bool:
    """Whether something is the signature of some bytes."""
    import hmac

    return hmac.compare_digest(claimed, signature(*parts))


@cache
def _key(path: Path) -> bytes:
    """The key of this machine; of this process only where none can be kept."""
    try:
        if not os.path.lexists(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_key(path)
        found, _ = read_regular(path)
        if len(found) < _KEY_BYTES:
            raise OSError(errno.EINVAL, f"fewer than {_KEY_BYTES} bytes", str(path))
    except OSError as error:
        text = (
            "cannot be used, so what other processes found is verified anew, and the "
            f"search is compiled by each of them; set {KEY_FILE.name}"
        )
        warn_once(path, text, error)
        return os.urandom(_KEY_BYTES)
    return found


def _make_key(path: Path) -> None:
    """Write a new key, for this user only; that of another process comes first."""
    handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(os.urandom(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        remove(Path(name))


# -- Values from JSON ------------------------------------------------------------------


def typed(kind: Any, value: object) -> Any:
    """A value from JSON as one of a type.

    Args:
        kind: `bool`, `int`, `float`, `str`, None, `Any`, a `Literal`, a union, a tuple,
            `dict[str, X]`, or a dataclass of these.  Lists become tuples, and integers
            floats where these are asked for.
        value: What `json.loads` gave.

    Raises:
        CacheError: It is none.
    """
    origin = get_origin(kind)
    if kind is Any:
        return _frozen(value)
    if origin in (Union, types.UnionType):
        return _of_union(kind, value)
    if origin is Literal:
        return value if value in get_args(kind) else _refuse(kind, value)
    if origin is tuple:
        return _tuple(kind, value)
    if origin is dict:
        entries = _mapping(kind, value)
        return {name: typed(get_args(kind)[1], v) for name, v in entries.items()}
    if dataclasses.is_dataclass(kind):
        return _record(kind, value)
    return _plain(kind, value)


def _plain(kind: Any, value: object) -> object:
    if kind is float and type(value) is int and abs(value) < 2**1023:
        return float(value)
    # A bool is an int for `isinstance`.
    return value if type(value) is kind else _refuse(kind, value)


def _of_union(kind: Any, value: object) -> Any:
    for part in get_args(kind):
        try:
            return typed(part, value)
        except CacheError:
            continue
    return _refuse(kind, value)


def _tuple(kind: Any, value: object) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        return _refuse(kind, value)
    items = cast("list[object] | tuple[object, ...]", value)
    kinds = get_args(kind)
    if kinds[-1] is Ellipsis:
        return tuple(typed(kinds[0], item) for item in items)
    if len(kinds) != len(items):
        return _refuse(kind, items)
    return tuple(typed(k, item) for k, item in zip(kinds, items, strict=True))


def _record(kind: Any, value: object) -> Any:
    entries = _mapping(kind, value)
    known = _fields(kind)
    needed = {name for name, (_, given) in known.items() if not given}
    if not needed <= entries.keys() <= known.keys():
        return _refuse(kind, value)
    return kind(**{name: typed(known[name][0], v) for name, v in entries.items()})


@cache
def _fields(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """The type of each field of a dataclass, and whether it has a default."""
    hints = get_type_hints(kind)
    missing = dataclasses.MISSING
    return {
        f.name: (
            hints[f.name],
            f.default is not missing or f.default_factory is not missing,
        )
        for f in dataclasses.fields(kind)
    }


def _mapping(kind: Any, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        return _refuse(kind, value)
    entries = cast("dict[object, object]", value)
    if not all(isinstance(name, str) for name in entries):
        return _refuse(kind, entries)
    return cast("dict[str, object]", value)


def _frozen(value: object) -> object:
    if isinstance(value, list | tuple):
        items = cast("list[object] | tuple[object, ...]", value)
        return tuple(map(_frozen, items))
    return value


def _refuse(kind: Any, value: object) -> Any:
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    shown = repr(value)
    raise CacheError(
        f"expected {name}, found {shown if len(shown) < 60 else shown[:57] + '...'}"
    )
