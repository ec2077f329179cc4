"""What a traced function reads besides its arguments, and whether that has changed.

What a function finds in its closure, its module, its defaults or the instance that it
is a method of becomes part of the program.  So does what it reads there: attributes,
items, the code and the constants of helpers.  The names in the code say what may be
read; all of that is looked at once, and compared before each call, one by one and by
identity, which is what makes it cheap.  Where something is another one, the function
is looked at anew, and traced unless it was seen like this before.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
import sysconfig
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache, partial
from inspect import getattr_static
from keyword import iskeyword
from operator import attrgetter, is_, itemgetter, methodcaller
from pathlib import PurePath
from threading import local
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any, cast

import numpy as np

from mirage_dsl.core.errors import LIBRARIES
from mirage_dsl.core.types import DType
from mirage_dsl.frontend.arguments import Slot
from mirage_dsl.frontend.copies import Way

MAX_DEPTH = 8
"""How deeply objects and containers may lie in each other."""
MAX_ITEMS = 1024
"""How many items a container may have."""
MAX_CALLS = 32
"""How deeply functions may name each other."""
MAX_READS = 32768
"""How many things are watched in all: a model has hundreds for each layer."""
MAX_CONTENTS = 4096
"""How many items containers may have in all."""
MAX_ABSENT = 4096
"""How many are watched, that for attributes which objects have not there is room."""
MAX_BYTES = 4096
"""How large an array may be whose content is compared."""
MAX_ELEMENTS = 64
"""How large a tensor may be whose version is compared."""


class _Gone:
    """In the place of what is not there."""

    def __repr__(self) -> str:
        return "<not there>"


_GONE = _Gone()

_FROZEN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    Fraction,
    Decimal,
    range,
    slice,
    type(Ellipsis),
    type(NotImplemented),
    date,
    timedelta,
    PurePath,
    Enum,
    np.generic,
    np.dtype,
    DType,
)
"""Types of values that never change, and are compared by value."""

_PURE = frozenset(
    {
        *("builtins", "_operator", "operator", "math", "cmath", "numbers", "fractions"),
        *("decimal", "_functools", "functools", "itertools", "_collections"),
        *("collections", "_collections_abc", "abc", "_abc", "enum", "types", "typing"),
        *("dataclasses", "copy", "contextlib", "warnings", "logging", "string", "re"),
        *("inspect", "importlib"),
    }
)
"""Standard modules whose functions give the same for the same arguments, or nothing."""

_BY_TEXT = frozenset(
    {
        *("getattr", "hasattr", "attrgetter", "methodcaller", "globals"),
        *("__getattribute__", "__getattr__"),
    }
)
_IMPORTING = frozenset({"import_module", "__import__", "modules"})
_WHOLE = frozenset({"vars", "__dict__", "asdict", "astuple", "fields", "replace"})
_FILLING = frozenset({"append", "appendleft", "extend", "insert", "add", "update"})
"""Methods that put something into a container, and give nothing."""
_BUILT = frozenset({"BUILD_STRING", "FORMAT_VALUE", "FORMAT_SIMPLE"})
_UNUSED = frozenset(
    {
        *("__init__", "__new__", "__post_init__", "__init_subclass__", "__del__"),
        *("__class_getitem__", "__repr__", "__str__", "__hash__", "__annotate__"),
        *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"),
        *("__setattr__", "__delattr__", "__set_name__"),
    }
)
"""Special methods that nothing calls for an object that is only read."""
_COMPARING = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"})
"""Those that read all fields of a dataclass: only where the code compares."""
_MAKING = frozenset({"__init__", "__new__", "__post_init__"})
_STANDARD = sysconfig.get_path("stdlib")


@dataclass(frozen=True)
class Read:
    """Something that a function reads besides its arguments.

    Attributes:
        name: How the code gets at it: `cfg.scale`, `table['s']`, `helper(): FACTOR`.
        value: What was there when the function was last looked at.
        watched: Whether a change makes for a new trace.
        why: If it is not watched, why not.
    """

    name: str
    value: Any
    watched: bool = True
    why: str = ""

    def __str__(self) -> str:
        shown = repr(self.value)
        if callable(self.value):
            shown = getattr(self.value, "__qualname__", type(self.value).__qualname__)
        short = shown if len(shown) <= 60 else f"{shown[:57]}..."
        note = "" if self.watched else f"  # not watched: {self.why}"
        return f"{self.name} = {short}{note}"


class ReadList(tuple[Read, ...]):
    """All that a function reads besides its arguments, one to a line."""

    __slots__ = ()

    @property
    def unwatched(self) -> tuple[Read, ...]:
        """Those whose change is not seen."""
        return tuple(read for read in self if not read.watched)

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) if self else "<reads nothing>"


@dataclass(frozen=True)
class _Named:
    """What code names.

    Attributes:
        globals: Names of a module.
        attributes: Attributes that it reads.
        loaded: Names and attributes of which it does more than to put something in.
        filled: Those into which it puts something.
        texts: Its texts.
        modules: Modules that it imports.
        builds: Whether it makes texts of others.
    """

    globals: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    loaded: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    builds: bool = False

    def __or__(self, other: _Named) -> _Named:
        return _Named(
            self.globals | other.globals,
            self.attributes | other.attributes,
            self.loaded | other.loaded,
            self.filled | other.filled,
            self.texts | other.texts,
            self.modules | other.modules,
            self.builds or other.builds,
        )

    @functools.cached_property
    def by_text(self) -> frozenset[str]:
        """Attributes that may be read by a text."""
        asked = self.globals | self.attributes
        found = self.texts if asked & _BY_TEXT else frozenset[str]()
        if "AttributeError" in asked:
            found |= self.attributes
        parts = (part for text in found for part in text.split("."))
        return frozenset(part for part in parts if part.isidentifier())

    @property
    def unread(self) -> frozenset[str]:
        """Containers that are only put into."""
        return self.filled - self.loaded

    @property
    def whole(self) -> bool:
        """Whether any attribute of an object may be read."""
        asked = self.globals | self.attributes
        return bool(asked & _WHOLE) or (self.builds and bool(asked & _BY_TEXT))


def _texts_of(constant: object) -> Iterable[str]:
    if isinstance(constant, str):
        return (constant,)
    if isinstance(constant, tuple | frozenset):
        return [t for t in constant if isinstance(t, str)]  # pyright: ignore[reportUnknownVariableType]
    return ()


@lru_cache(maxsize=1024)
def _named_by(code: CodeType) -> _Named:
    """What code names, that of the functions inside of it included."""
    sorts: dict[str, set[str]] = {}
    builds = False
    steps = list(dis.get_instructions(code))
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        if step.opname in _LOADING:
            fills = after is not None and after.argval in _FILLING
            sorts.setdefault("filled" if fills else "loaded", set()).add(step.argval)
        builds = builds or step.opname in _BUILT or step.argrepr in ("+", "%")
        if isinstance(step.argval, str):
            sorts.setdefault(_SORTS.get(step.opname, ""), set()).add(step.argval)
        sign = step.argrepr.removeprefix("bool(").rstrip(")")
        asked = _ASKING.get(step.opname) or _ASKING.get(sign)
        if asked is not None:
            sorts.setdefault("attributes", set()).add(asked)
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    found = _Named(
        **{name: frozenset(found) for name, found in sorts.items() if name},
        texts=frozenset(t for c in code.co_consts for t in _texts_of(c)),
        builds=builds,
    )
    return functools.reduce(lambda a, b: a | _named_by(b), inner, found)


_ASKING = {
    "MATCH_CLASS": "__dict__",
    "CONTAINS_OP": "__eq__",
    "==": "__eq__",
    "!=": "__eq__",
    "<": "__lt__",
    "<=": "__le__",
    ">": "__gt__",
    ">=": "__ge__",
}
"""Attributes that instructions read without naming them, by name or by sign."""
_SORTS = {
    "LOAD_GLOBAL": "globals",
    "LOAD_NAME": "globals",
    "LOAD_FROM_DICT_OR_GLOBALS": "globals",
    "LOAD_ATTR": "attributes",
    "LOAD_METHOD": "attributes",
    "LOAD_SUPER_ATTR": "attributes",
    "IMPORT_FROM": "attributes",
    "IMPORT_NAME": "modules",
}
_LOADING = frozenset(_SORTS) - {"IMPORT_FROM", "IMPORT_NAME"} | {"LOAD_DEREF"}


@lru_cache(maxsize=1024)
def _is_library(module: str) -> bool:
    """Whether a module is the standard library's, or of those that are traced."""
    top = module.partition(".")[0]
    if top in LIBRARIES:
        return True
    if top not in sys.stdlib_module_names:
        return False
    file: str | None = getattr(sys.modules.get(top), "__file__", None)
    # A module of the user's may have the name of a standard one.
    return file is None or (file.startswith(_STANDARD) and "-packages" not in file)


@lru_cache(maxsize=1024)
def _is_installed(module: str | None) -> bool:
    """Whether a module belongs to an installed package, which stays what it is."""
    top = (module or "").partition(".")[0]
    return "-packages" in str(getattr(sys.modules.get(top), "__file__", None))


def _of_library(value: object) -> bool:
    # What `exec` defines may belong to no module.
    module: object = getattr(value, "__module__", None)
    if not isinstance(module, str) or not _is_library(module):
        return False
    return not isinstance(value, FunctionType) or _is_library(_home_of(value))


def _home_of(function: FunctionType) -> str:
    """The module that a function is of, which a wrapper names after what it wraps."""
    return str(function.__globals__.get("__name__"))


class _Same:
    """An object in a key: it equals itself."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


class ReadsKey:
    """What a function reads, to look up what was made of it."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: object) -> None:
        self._parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReadsKey):
            return NotImplemented
        return self is other or (self._hash, self._parts) == (other._hash, other._parts)


def _type_of(value: object) -> type[object]:
    return type(value)


def _is_frozen(value: object) -> bool:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return isinstance(value, _FROZEN) or kind in ("torch.dtype", "torch.device")


def _frozen_key(value: Any) -> object:
    """A key of a value that never changes; 0.0 is not -0.0, nor True 1."""
    kind = _type_of(value)
    if kind in (type(None), bool, int, str, bytes):
        return kind, value
    return (kind, value.name) if isinstance(value, Enum) else (kind, repr(value))


_BOXES: tuple[Any, ...] = (
    *(list, dict, set, frozenset, deque, MappingProxyType, bytearray, array),
)
_GETTERS = (attrgetter, itemgetter, methodcaller)
Place = tuple[int, str]
"""The identity of a holder, and a name in it."""
Spread = Callable[[], Iterable[Any]]


@dataclass
class _Look:
    """What was found in one look.

    Attributes:
        edges: By place the holder, what reads it, and what that gave.
        boxes: Containers, what gives their items, and what that gave.
        entries: For people.
    """

    edges: dict[Place, tuple[object, Callable[[], Any], Any]] = field(
        default_factory=dict[Place, tuple[object, Callable[[], Any], Any]]
    )
    boxes: list[tuple[object, Spread, list[Any]]] = field(
        default_factory=list[tuple[object, Spread, list[Any]]]
    )
    entries: list[Read] = field(default_factory=list[Read])


class _Walk:
    """One look at all that a function reads.

    Args:
        function: The function.
        kernel: The class of kernels, which are looked into like functions.
        named: What the code named in the look before.
        slots: Places of a module's tensors that are arguments.
    """

    def __init__(
        self, function: object, kernel: type, named: _Named, slots: Sequence[Slot]
    ) -> None:
        self._holders = {id(slot.holder) for slot in slots}
        self._given = {(id(slot.holder), slot.key) for slot in slots}
        self._slots: dict[int, list[Slot]] = {}
        for slot in slots:
            self._slots.setdefault(id(slot.tensor), []).append(slot)
        self._kernel = kernel
        self._wanted = named.attributes | named.by_text
        self._last = named
        self._visited: dict[int, tuple[int, object]] = {}
        self.named = _Named()
        self.look = _Look()
        self._texts: set[str] = set()
        self._absent: list[tuple[object, dict[str, Any], tuple[str, ...], str]] = []
        self._absent_of_kinds: dict[type, tuple[str, ...]] = {}
        self._calls = self._items = 0
        self.key = self._visit(function, "", 0), self._default_dtype()
        self._compare_absent()
        self.named |= _Named(texts=frozenset(self._texts))

    def _default_dtype(self) -> object:
        """PyTorch's, which any function that makes floats has from there."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return None
        found = torch.get_default_dtype()
        self._compare(torch, "default dtype", torch.get_default_dtype, found)
        return found

    # What there is at one place.

    def _edge(
        self, holder: object, name: str, read: Callable[[], Any], at: tuple[str, int]
    ) -> object:
        """Watch what a holder has under a name, and what lies behind it."""
        path, depth = at
        value = read()
        if name in self._last.unread and isinstance(value, _BOXES):
            self._unwatched(path, value, "the function only puts something into it")
            return name
        if not self._compare(holder, name, read, value):
            return self._opaque(value, path, f"it reads more than {MAX_READS} things")
        return name, self._visit(value, path, depth)

    def _compare(
        self, holder: object, name: str, read: Callable[[], Any], value: Any
    ) -> bool:
        """Compare what a holder has under a name before each call, if there is room."""
        if len(self.look.edges) >= MAX_READS:
            return False
        self.look.edges.setdefault((id(holder), name), (holder, read, value))
        return True

    def _compare_absent(self) -> None:
        """Compare what objects have not, but may be given, as far as there is room.

        These come last, for there may be more of them than of all else.
        """
        for holder, space, names, path in self._absent:
            for name in names:
                read = partial(space.get, name, _GONE)
                full = len(self.look.edges) >= MAX_ABSENT
                if full or not self._compare(holder, name, read, _GONE):
                    why = "attributes that it may be given later are too many"
                    self._unwatched(path, holder, why)
                    break
                self._watched(f"{path}.{name}", _GONE)

    def _visit(self, value: Any, path: str, depth: int) -> object:
        """Look at a value and all behind it; its key."""
        try:
            return self._look_at(value, path, depth)
        except Exception as error:
            # Objects may refuse anything.
            return self._opaque(value, path, f"looking at it ended in {error!r}")

    def _look_at(self, value: Any, path: str, depth: int) -> object:
        if value is _GONE:
            self._watched(path, value)
            return value
        if _is_frozen(value):
            self._watched(path, value)
            return self._frozen(value)
        known = self._visited.get(id(value))
        if known is not None:
            return ("again", known[0])
        if depth > MAX_DEPTH:
            return self._opaque(value, path, f"it is deeper than {MAX_DEPTH} objects")
        self._visited[id(value)] = len(self._visited), value
        return self._inside(value, path, depth)

    def _inside(self, value: Any, path: str, depth: int) -> object:
        """Look at what was not seen before, and all behind it; its key."""
        if isinstance(value, self._kernel):
            own = self._members(value, path, depth)
            return self._visit(value.function, path, depth), own
        if value is os.environ:
            return self._environment(path)
        for kinds, look in self._ways:
            if isinstance(value, kinds):
                return look(self, value, path, depth)
        if _is_tensor(value):
            return self._tensor(value, path)
        return self._object(value, path, depth)

    def _frozen(self, value: Any) -> object:
        if isinstance(value, str):
            self._texts.add(value)
        return _frozen_key(value)

    def _watched(self, path: str, value: object) -> None:
        if path:
            self.look.entries.append(Read(path, value))

    def _unwatched(self, path: str, value: object, why: str) -> None:
        self.look.entries.append(Read(path, value, watched=False, why=why))

    def _opaque(self, value: object, path: str, why: str) -> object:
        self._unwatched(path, value, why)
        return _Same(value)

    # Functions and modules.

    def _function(self, function: FunctionType, path: str, depth: int) -> object:
        if _of_library(function):
            return self._library_function(function, path, depth)
        if self._calls >= MAX_CALLS:
            why = f"it is deeper than {MAX_CALLS} functions"
            return self._opaque(function, path, why)
        self._calls += 1
        try:
            return self._code(function, path, depth)
        finally:
            self._calls -= 1

    def _code(self, function: FunctionType, path: str, depth: int) -> object:
        """A function with what it reads: defaults, closure, module, attributes."""
        self.named |= _named_by(function.__code__)
        parts: list[object] = [function.__code__]
        if path and not _is_installed(_home_of(function)):
            self._watched(path, function)
            read = partial(getattr, function, "__code__")
            self._compare(function, "__code__", read, function.__code__)
        inside = f"{path}(): " if path else ""
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                read = partial(getattr, function, name)
                parts.append(self._edge(function, name, read, (inside + name, 0)))
        cells = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            read = partial(getattr, cell, "cell_contents", _GONE)
            parts.append(self._cell(cell, name, read, (inside + name, 0)))
        parts.extend(self._of_module(function, inside))
        parts.append(self._members(function, path, depth))
        return "function", *parts

    def _wrapped(self, function: object, path: str, depth: int) -> object:
        """What a decorator has made something else of."""
        inner = getattr(function, "__wrapped__", None)
        return inner and self._visit(inner, f"{path}.__wrapped__", depth)

    def _cell(
        self, cell: object, name: str, read: Callable[[], Any], at: tuple[str, int]
    ) -> object:
        try:
            return self._edge(cell, name, read, at)
        except ValueError:
            return _GONE

    def _of_module(self, function: FunctionType, inside: str) -> Iterable[object]:
        """What a function reads in its module, and of modules that it imports."""
        space, named = function.__globals__, _named_by(function.__code__)
        if _is_installed(_home_of(function)):
            return
        names = named.globals
        if "globals" in names:
            names |= self._last.by_text
        missing = "NameError" in names or "globals" in names
        for name in sorted(names):
            value = space.get(name, _GONE)
            if (value is _GONE and not missing) or _is_import(name, value):
                if isinstance(value, ModuleType):
                    yield self._module(value, inside + name, 0)
                continue
            read = partial(space.get, name, _GONE)
            yield self._edge(space, name, read, (inside + name, 0))
        yield from self._imported(named, space.get("__package__") or "", inside)

    def _imported(self, named: _Named, package: str, inside: str) -> Iterable[object]:
        """The modules that code imports when it runs."""
        modules = named.modules
        if (named.globals | named.attributes) & _IMPORTING:
            modules |= named.texts
        for name in sorted(modules):
            for full in (name, f"{package}.{name}"):
                module = sys.modules.get(full)
                if module is not None:
                    yield self._module(module, inside + name, 0)

    def _library_function(self, function: Any, path: str, depth: int) -> object:
        """What has no code of the user's: it is compared by identity."""
        if function is os.getenv:
            return self._visit(os.environ, "os.environ", depth)
        owner = type(getattr(function, "__self__", None)).__module__
        module = str(getattr(function, "__module__", None) or owner)
        top = module.partition(".")[0]
        if top in LIBRARIES or module in _PURE:
            self._watched(path, function)
        else:
            why = "what a call of it returns is read once, when it is traced"
            self._unwatched(path, function, why)
        return _Same(function), self._wrapped(function, path, depth)

    def _builtin(self, function: Any, path: str, depth: int) -> object:
        owner = getattr(function, "__self__", None)
        if owner is None or isinstance(owner, ModuleType | type):
            return self._library_function(function, path, depth)
        return function.__name__, self._visit(owner, path, depth + 1)

    def _method(self, method: MethodType, path: str, depth: int) -> object:
        owner = self._visit(
            method.__self__, f"{path}.__self__" if path else "self", depth
        )
        return "method", owner, self._visit(method.__func__, path, depth)

    def _partial(self, made: partial[Any], path: str, depth: int) -> object:
        inside = f"{path}." if path else ""
        parts = [self._visit(made.func, path, depth)]
        for at, value in enumerate(made.args):
            first = not (at or path)
            parts.append(
                self._visit(value, "self" if first else f"{inside}args[{at}]", depth)
            )
        parts.append(self._box(made.keywords, f"{inside}keywords", depth))
        return "partial", *parts

    def _module(self, module: ModuleType, path: str, depth: int) -> object:
        if module is os:
            if {"environ", "getenv"} & self._wanted:
                return self._visit(os.environ, f"{path}.environ", depth)
            return "os"
        space = vars(module)
        names = sorted((self._wanted | {"__getattr__"}) & space.keys())
        if _is_installed(module.__name__):
            kinds = (*_FROZEN, FunctionType)
            names = [n for n in names if isinstance(space[n], kinds)]
        if not _is_library(module.__name__):
            return module.__name__, tuple(
                self._edge(
                    space, n, partial(space.get, n, _GONE), (f"{path}.{n}", depth + 1)
                )
                for n in names
                if not _is_import(n, space[n])
            )
        if module.__name__ not in _PURE and not module.__name__.startswith(
            tuple(LIBRARIES)
        ):
            return module.__name__, tuple(
                self._of_library_module(space, name, f"{path}.{name}") for name in names
            )
        return module.__name__

    def _of_library_module(self, space: dict[str, Any], name: str, path: str) -> object:
        """What a standard module has that is no constant of it, such as `sys.argv`."""
        value = space[name]
        if isinstance(value, FunctionType | BuiltinFunctionType):
            return self._library_function(value, path, 0)
        if _is_frozen(value) or isinstance(value, list | tuple):
            return self._edge(space, name, partial(space.get, name, _GONE), (path, 0))
        return None

    def _environment(self, path: str) -> object:
        """The variables that the code names; all of them where it makes names."""
        data: dict[Any, Any] = getattr(os.environ, "_data")  # noqa: B009
        texts = {
            t
            for t in self._last.texts
            if t and not any(c.isspace() or c == "=" for c in t)
        }
        if self._last.builds or not texts:
            return self._box(data, path, 0)
        return path, tuple(
            self._edge(
                data,
                text,
                partial(data.get, os.environ.encodekey(text), _GONE),
                (f"{path}[{text!r}]", 0),
            )
            for text in sorted(texts)
        )

    # Containers and arrays.

    def _tuple(self, items: tuple[Any, ...], path: str, depth: int) -> object:
        if len(items) > MAX_ITEMS:
            return self._opaque(items, path, f"it has more than {MAX_ITEMS} items")
        parts = [self._item(v, f"{path}[{i}]", depth) for i, v in enumerate(items)]
        self._show_box(items, list(items), path)
        return type(items), *parts

    def _box(self, box: Any, path: str, depth: int) -> object:
        """A container that may change: its items, one by one."""
        if len(box) > MAX_ITEMS:
            return self._opaque(box, path, f"it has more than {MAX_ITEMS} items")
        self._items += len(box)
        if self._items > MAX_CONTENTS:
            why = f"what is read has more than {MAX_CONTENTS} items"
            return self._opaque(box, path, why)
        found = [(spread, list(spread())) for spread in _spreads(box)]
        self.look.boxes.extend((box, *pair) for pair in found)
        values = found[-1][1]
        marks = found[0][1] if len(found) > 1 else range(len(values))
        parts: list[object] = [self._item(m, "", depth) for m in marks]
        for mark, value in zip(marks, values, strict=True):
            parts.append(self._item(value, f"{path}[{mark!r}]", depth))
        self._show_box(box, values, path)
        kind = _type_of(box)
        if not _of_library(kind):
            parts.append(self._members(box, path, depth))
        return kind, *parts

    def _item(self, value: Any, path: str, depth: int) -> object:
        """An item; what never changes is shown with its container."""
        if not _is_frozen(value):
            return self._visit(value, path, depth + 1)
        return self._frozen(value)

    def _show_box(self, box: object, values: list[Any], path: str) -> None:
        if not values or any(map(_is_frozen, values)):
            self._watched(path, box)

    def _array(self, array: Any, path: str, depth: int) -> object:
        del depth
        if array.nbytes > MAX_BYTES or array.dtype.hasobject:
            why = f"it has {array.nbytes} bytes; up to {MAX_BYTES} are compared"
            return self._opaque(array, path, why)
        self._watched(path, array)
        content = array.tobytes()
        self._compare(array, "", array.tobytes, content)
        return array.dtype.str, array.shape, content

    def _tensor(self, tensor: Any, path: str) -> object:
        slots = [s for s in self._slots.get(id(tensor), ()) if s.is_argument]
        for slot in slots:
            # As long as it is there, it is an argument, whatever its values.
            read = partial(_held_at, slot.holder, slot.key)
            if not self._compare(slot.holder, slot.key, read, tensor):
                return self._opaque(tensor, path, f"{MAX_READS} things are watched")
        if slots:
            return "argument", *(slot.name for slot in slots)
        read = partial(getattr, tensor, "_version")
        try:
            known = tensor.device.type == "cpu" and tensor.numel() <= MAX_ELEMENTS
            version = read() if known else None
        except RuntimeError:
            version = None
        if version is None:
            why = f"it is no tensor of up to {MAX_ELEMENTS} elements on the CPU"
            return self._opaque(tensor, path, why)
        self._watched(path, tensor)
        self._compare(tensor, "_version", read, version)
        return str(tensor.dtype), repr(tensor.tolist())

    def _getter(self, getter: Any, path: str, depth: int) -> object:
        """What the operator module makes of names: they are named by it."""
        del depth
        self._watched(path, getter)
        made, names = getter.__reduce__()[:2]
        texts = frozenset(t for t in names if isinstance(t, str))
        self.named |= _Named(texts=texts, attributes=frozenset({"attrgetter"}))
        return made, repr(names)

    # Objects and classes.

    def _class(self, kind: type, path: str, depth: int) -> object:
        self._watched(path, kind)
        if _of_library(kind):
            return _Same(kind)
        parts = self._of_class(kind, None, path, depth, _MAKING)
        if not _of_library(type(kind)):
            parts += self._of_class(
                type(kind), kind, path, depth, frozenset(vars(kind))
            )
        return _Same(kind), *parts

    def _object(self, value: Any, path: str, depth: int) -> object:
        found = self._members(value, path, depth)
        kind = _type_of(value)
        if found or not _of_library(kind):
            self._compare(
                value, "__class__", partial(getattr, value, "__class__"), kind
            )
            return _Same(kind), found
        return self._opaque(
            value, path, f"what a {kind.__qualname__} holds is not seen"
        )

    def _members(self, value: Any, path: str, depth: int) -> tuple[object, ...]:
        """The attributes of an object that may be read."""
        space = _space_of(value)
        names = space.keys() & self._wanted
        kind = _type_of(value)
        if self._last.whole or (_of_library(kind) and _has_items(kind)):
            names = set(space)
            self._compare(space, "#", space.__len__, len(space))
        parts: list[tuple[str, object]] = []
        for name in sorted(names):
            if (id(space), name) in self._given:
                # An argument, as long as it is a tensor.
                kept = partial(_kind_at, space, name)
                self._compare(space, name, kept, kept())
                parts.append((name, ()))
                continue
            read = _reader(value, space, name)
            at = f"{path}.{name}", depth + 1
            parts.append((name, self._edge(value, name, read, at)))
        absent = self._absent_of(kind)
        if not names.isdisjoint(absent):
            absent = tuple(name for name in absent if name not in names)
        if absent:
            self._absent.append((value, space, absent, path))
            parts.append(("", absent))
        if "__wrapped__" in space:
            parts.append(("", self._visit(space["__wrapped__"], path, depth)))
        if "_modules" in space and "_parameters" in space:
            parts.append(("", self._layer(value, space, path, depth)))
        parts += self._of_class(kind, value, path, depth, frozenset(names))
        if "__class__" in self._wanted or "type" in self._last.globals:
            parts.append(("", self._visit(kind, f"{path}.__class__", depth + 1)))
        # Where an attribute comes from makes no difference.
        return tuple(sorted(parts, key=itemgetter(0)))

    def _absent_of(self, kind: type) -> tuple[str, ...]:
        """What may be read of an object though its class has it not, once for all."""
        if kind not in self._absent_of_kinds:
            computed = isinstance(getattr(kind, "__getattr__", None), FunctionType)
            maybe = self._wanted if computed and not _of_library(kind) else set[str]()
            if kind is not FunctionType:
                maybe = maybe | self._last.by_text
            absent = tuple(name for name in sorted(maybe) if not hasattr(kind, name))
            self._absent_of_kinds[kind] = absent
        return self._absent_of_kinds[kind]

    def _layer(
        self, layer: Any, space: dict[str, Any], path: str, depth: int
    ) -> object:
        """What a module of PyTorch has beside its own attributes."""
        parts: list[object] = []
        kind = _type_of(layer)
        forward = self._forward(layer, space)
        if isinstance(forward, self._kernel):
            forward = getattr(forward, "function")  # noqa: B009
        elif "forward" in space:
            # It may be anything that can be called, of a name that tells nothing.
            parts.append(self._visit(forward, f"{path}.forward", depth))
        own = isinstance(forward, FunctionType | MethodType)
        if own and not _of_library(forward):
            parts.append(self._visit(forward, f"{path}.forward", depth))
        elif _of_library(kind):
            for name, value in sorted(space.items()):
                if not name.startswith("_") and (
                    _is_frozen(value) or isinstance(value, tuple)
                ):
                    read = partial(space.get, name, _GONE)
                    at = f"{path}.{name}", depth + 1
                    parts.append(self._edge(space, name, read, at))
        parts += self._tensors(space, path, depth)
        parts += self._hooks(space, path, depth)
        if space["_modules"]:
            parts.append(self._visit(space["_modules"], f"{path}._modules", depth))
        return tuple(parts)

    def _tensors(
        self, space: dict[str, Any], path: str, depth: int
    ) -> Iterable[object]:
        """The parameters and buffers of a module that are no arguments."""
        for kept in ("_parameters", "_buffers"):
            inner: dict[str, Any] = space.get(kept) or {}
            if id(inner) in self._holders:
                continue
            for name in sorted(inner.keys() & self._wanted):
                read = partial(inner.get, name, _GONE)
                at = f"{path}.{name}", depth + 1
                yield self._edge(inner, name, read, at)

    def _forward(self, layer: Any, space: dict[str, Any]) -> Any:
        """What a call of a module runs: its own `forward`, or that of its class."""
        kind = _type_of(layer)
        found: Any = _GONE
        for holder, read in (
            (layer, partial(space.get, "forward", _GONE)),
            (kind, partial(getattr, kind, "forward", _GONE)),
        ):
            if found is _GONE:
                found = read()
                self._compare(holder, "forward", read, found)
        return found

    def _hooks(self, space: dict[str, Any], path: str, depth: int) -> list[object]:
        """The hooks of a module of PyTorch, and of all, and whether others come."""
        parts: list[object] = []
        everywhere = vars(sys.modules.get("torch.nn.modules.module", object))
        for holder, name in (
            *((space, name) for name in ("_forward_pre_hooks", "_forward_hooks")),
            (everywhere, "_global_forward_pre_hooks"),
            (everywhere, "_global_forward_hooks"),
        ):
            held: Any = holder.get(name, ())
            self._compare(held, "#", held.__len__, len(held))
            if holder is everywhere:
                self._compare(holder, name, partial(holder.get, name), held)
            if held:
                parts.append(self._visit(held, f"{path}.{name}", depth))
        return parts

    def _of_class(
        self,
        kind: type,
        value: Any,
        path: str,
        depth: int,
        taken: AbstractSet[str],
    ) -> list[tuple[str, object]]:
        """The attributes of a class that may be read, of it or of an instance."""
        parts: list[tuple[str, object]] = []
        done = set(taken if value is not None else ())
        for owner in kind.__mro__:
            if _of_library(owner) or _is_installed(owner.__module__):
                continue
            held = vars(owner)
            special = _special_of(owner)
            if value is None:
                special |= held.keys() & taken
            for name in sorted((held.keys() & self._wanted | special) - done):
                if "super" not in self._last.globals:
                    done.add(name)
                at = f"{path}.{name}", depth + 1
                found = self._of_owner(owner, name, kind, value, at)
                parts.extend((name, part) for part in found)
        return parts

    def _of_owner(
        self, owner: type, name: str, kind: type, value: Any, at: tuple[str, int]
    ) -> Iterable[object]:
        """One attribute that a class has."""
        held: Any = vars(owner)[name]
        of_owner = partial(vars(owner).get, name, _GONE)
        if isinstance(held, MemberDescriptorType | GetSetDescriptorType):
            if value is not None:
                yield self._edge(value, name, partial(getattr, value, name, _GONE), at)
        elif isinstance(held, _WRAPPED):
            if isinstance(held, classmethod):
                self._compare(owner, name, of_owner, held)
            else:
                read = partial(getattr, kind, name, _GONE)
                self._compare(kind, name, read, read())
                if getattr_static(kind, name, _GONE) is not held:
                    # What super() finds behind it.
                    self._compare(owner, name, of_owner, held)
            for inner in _functions_of(held):
                yield self._visit(inner, *at)
            space = {} if value is None else _space_of(value)
            if space and isinstance(held, FunctionType | staticmethod | classmethod):
                # An attribute of the instance may come before it.
                self._compare(value, name, partial(space.get, name, _GONE), _GONE)
        elif hasattr(held, "__get__"):
            yield self._edge(owner, name, of_owner, at)
        else:
            holder = kind if value is None else value
            yield self._edge(holder, name, partial(getattr, holder, name, _GONE), at)

    _ways: tuple[tuple[Any, Any], ...] = (
        (FunctionType, _function),
        (MethodType, _method),
        (partial, _partial),
        (ModuleType, _module),
        (type, _class),
        (tuple, _tuple),
        (_BOXES, _box),
        (_GETTERS, _getter),
        (np.ndarray, _array),
        ((BuiltinFunctionType, MethodWrapperType, np.ufunc), _builtin),
    )


def _special_of(kind: type) -> set[str]:
    """The special methods of a class that Python may call for an object of it."""
    held = vars(kind)
    special = {n for n in held if n[:2] == n[-2:] == "__"} - _UNUSED
    if "__dataclass_fields__" in held:
        special -= _COMPARING
    return {n for n in special if isinstance(held[n], FunctionType)}


_WRAPPED = (
    FunctionType,
    staticmethod,
    classmethod,
    property,
    functools.cached_property,
)


def _functions_of(held: Any) -> Iterable[object]:
    """The functions behind an attribute of a class."""
    if isinstance(held, property):
        return [held.fget]
    if isinstance(held, functools.cached_property):
        return [held.func]
    return [getattr(held, "__func__", held)]


def _has_items(kind: type[object]) -> bool:
    return issubclass(kind, Mapping | Sequence | AbstractSet)


def _space_of(value: object) -> dict[str, Any]:
    """The attributes of an object, without running code of its class."""
    get: Any = local if isinstance(value, local) else object
    try:
        return get.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def _held_at(holder: Any, key: Any) -> object:
    """What a dict or a list has at a place."""
    try:
        return holder[key]
    except (KeyError, IndexError):
        return _GONE


def _kind_at(holder: Any, key: Any) -> type[object]:
    return type(_held_at(holder, key))


def _reader(value: Any, space: dict[str, Any], name: str) -> Callable[[], Any]:
    """What reads an attribute that an object has itself."""
    if isinstance(type(value).__getattribute__, FunctionType):
        # Code of the user's class, which is not to be run.
        return partial(space.get, name, _GONE)
    return partial(getattr, value, name, _GONE)


def _spreads(box: Any) -> list[Spread]:
    """What gives the items of a container, and first the keys of a mapping."""
    kind: Any = OrderedDict if isinstance(box, OrderedDict) else dict
    if isinstance(box, kind):
        return [partial(kind.__iter__, box), partial(kind.values, box)]
    if isinstance(box, MappingProxyType):
        return [partial(iter, box), box.values]
    kind = next(k for k in _BOXES if isinstance(box, k))
    return [partial(kind.__iter__, box)]


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_import(name: str, value: object) -> bool:
    """Whether a name of a module is there because a library was imported."""
    if not isinstance(value, ModuleType) or not _is_library(value.__name__):
        return False
    last = value.__name__.rpartition(".")[2]
    return last.lower().startswith(name.lower()) or name == "np"


def own_function(function: Any) -> object:
    """The function that a partial or a method calls in the end."""
    while type(function) in (partial, MethodType):
        function = function.func if hasattr(function, "func") else function.__func__
    return function


class Reads:
    """What a function reads, as it is when this is made.

    Args:
        function: The function.
        kernel: The class of kernels, which are looked into like functions.
        slots: Places of a module's tensors that are arguments.
    """

    def __init__(
        self, function: object, kernel: type, slots: Sequence[Slot] = ()
    ) -> None:
        named, walk = _Named(), None
        # What code is found depends on the names that the code found has.  They add up,
        # since of very much not all is looked at: more names may leave code out.
        while walk is None or walk.named | named != named:
            named = named if walk is None else named | walk.named
            walk = _Walk(function, kernel, named, slots)
        self.key = ReadsKey(walk.key)
        self.entries = ReadList(walk.look.entries)
        self.ways = [
            Way(holder, name, value)
            for (_, name), (holder, _, value) in walk.look.edges.items()
        ]
        """How the code gets at it."""
        self._own = own_function(function)
        self._code = getattr(self._own, "__code__", None)
        self._readers = [read for _, read, _ in walk.look.edges.values()]
        self._spreads = [spread for _, spread, _ in walk.look.boxes]
        self._boxes = [items for _, _, items in walk.look.boxes]
        self._seen = [value for _, _, value in walk.look.edges.values()]
        for items in self._boxes:
            self._seen += [_GONE, *items]
        self._scope: dict[str, Any] = {}
        self.unchanged = self._comparison()
        """Whether all of it is as it was: `not changed()`, and quick if so."""

    def other_code(self) -> bool:
        """Whether the function was given another code."""
        return getattr(self._own, "__code__", None) is not self._code

    def changed(self) -> bool:
        """Whether any of it is another one now."""
        if self.other_code():
            return True
        try:
            now = [read() for read in self._readers]
            for spread in self._spreads:
                now.append(_GONE)
                now.extend(spread())
        except Exception:
            # It cannot be read any more, as a name that was deleted.
            return True
        seen = self._seen
        if len(now) == len(seen) and all(map(is_, now, seen)):
            return False
        return not self._is_alike(now)

    def _is_alike(self, now: list[Any]) -> bool:
        """Whether other objects have the same values; they are then compared next."""
        if len(now) != len(self._seen) or not all(map(_alike, now, self._seen)):
            return False
        self._seen = now
        at = len(self._readers)
        self._scope |= _numbered("seen", now[:at])
        for items in self._boxes:
            items[:] = now[at + 1 : at + 1 + len(items)]
            at += 1 + len(items)
        return True

    def _comparison(self) -> Callable[[], bool]:
        """All comparisons in one generated function, asked before each call."""
        tests = ["own.__code__ is code"] if hasattr(self._own, "__code__") else []
        holders: list[object] = []
        seen = self._seen[: len(self._readers)]
        for at, (read, value) in enumerate(zip(self._readers, seen, strict=True)):
            text, holder = _reading(read, f"holder{at}", value)
            tests.append(f"{text} is seen{at}")
            holders.append(holder)
        boxes = range(len(self._boxes))
        tests += [f"same(spread{at}(), items{at})" for at in boxes]
        self._scope |= {
            "own": self._own,
            "code": self._code,
            "changed": self.changed,
            "same": _same_items,
            **_numbered("seen", seen),
            **_numbered("holder", holders),
            **_numbered("spread", self._spreads),
            **_numbered("items", self._boxes),
        }
        lines = [
            "def unchanged():",
            " try:",
            f"  if {' and '.join(tests) or True}: return True",
            # What cannot be read any more has changed.
            " except Exception: pass",
            " return not changed()",
        ]
        exec("\n".join(lines), self._scope)
        return self._scope["unchanged"]


def _reading(read: Callable[[], Any], name: str, value: object) -> tuple[str, object]:
    """An expression for what a reader gives, and what its name in there stands for.

    Python's own attributes and items are several times as fast as a call.
    """
    if isinstance(read, partial) and value is not _GONE:
        if read.func is getattr:
            holder, key = read.args[:2]
            if key.isidentifier() and not iskeyword(key):
                return f"{name}.{key}", holder
        else:
            # Of a dict's own `get`.
            space, key = getattr(read.func, "__self__", None), read.args[0]
            if type(space) is dict and type(key) is str:
                return f"{name}[{key!r}]", cast(object, space)
    return f"{name}()", cast(object, read)


def _same_items(items: Iterable[Any], seen: Sequence[Any]) -> bool:
    """Whether a container has these items, by identity."""
    now = list(items)
    return len(now) == len(seen) and all(map(is_, now, seen))


def _numbered(name: str, values: Iterable[Any]) -> dict[str, Any]:
    return {f"{name}{at}": value for at, value in enumerate(values)}


def _alike(new: Any, old: Any) -> bool:
    if new is old:
        return True
    both = _is_frozen(new) and _is_frozen(old)
    return both and _frozen_key(new) == _frozen_key(old)
