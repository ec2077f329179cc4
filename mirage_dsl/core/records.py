"""Values from JSON, each of the type that it must have.

What was stored may have been damaged, or made elsewhere, in any way that JSON allows.
Nothing of it is used before it has the types that the code counts on.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from mirage_dsl.core.errors import CacheError


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
