"""Copies of what a module's attributes lead to, for a trace.

Attributes lead anywhere: through containers, functions and objects to layers and
parameters, for which others stand while a module is traced.  What leads to one of these
is made anew, once, so that what is one object stays one, in cycles too.  What leads to
none is itself.
"""

# What attributes hold may be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import is_not
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
    SimpleNamespace,
)
from typing import Any

Of = Callable[[Any], Any]
"""What stands for a value."""


@dataclass(frozen=True)
class Parts:
    """What something holds, and what makes another one of other values.

    Attributes:
        values: What it holds.
        fill: Makes one of values, or fills the one that was begun.
        begin: Makes one without values, where something in it may hold it.
        hashes: Whether values have to be whole, since they are asked for a hash.
    """

    values: Sequence[Any]
    fill: Callable[[Any, Sequence[Any]], Any]
    begin: Callable[[Of], Any] | None = None
    hashes: bool = False


@dataclass(frozen=True)
class Way:
    """How code gets at something.

    Attributes:
        holder: What has it.
        name: Its name there.
        value: What it is.
    """

    holder: Any
    name: str
    value: Any


class Copies:
    """What stands for all that some attributes lead to.

    Args:
        standing: What stands for objects, by their identity.
        roots: The attributes, with names for people.
        ways: How else the code gets at something.
        parts_of: What an object of another kind holds, and what makes another one.
    """

    def __init__(
        self,
        standing: Mapping[int, Any],
        roots: Sequence[Way],
        ways: Sequence[Way],
        parts_of: Callable[[Any], Parts | None],
    ) -> None:
        self._standing = dict(standing)
        self._parts_of = parts_of
        self._parts: dict[int, tuple[Any, Parts, str]] = {}
        self._begun: list[int] = []
        self._made: list[tuple[str, Any, list[Any]]] = []
        holders = self._found(roots)
        own = self._standing.keys() | self._parts.keys()
        others, self.shared = self._reached(
            # What a class has is no part of its objects; all that they have is.
            way
            for way in ways
            if id(way.holder) not in holders.get(id(way.value), ())
            and not (id(way.holder) in own and space_of(way.holder) is way.value)
        )
        # The code may write to containers: they are not to be the module's.
        boxes = [id(r.value) for r in roots if type(r.value) in _CONTAINERS]
        leading = [holder for key in self._standing for holder in holders.get(key, ())]
        leading += [key for key in boxes if key not in others]
        self._anew: set[int] = set()
        while leading:
            key = leading.pop()
            if key not in self._anew:
                self._anew.add(key)
                leading += holders.get(key, ())

    def _found(self, roots: Sequence[Way]) -> dict[int, list[int]]:
        """Look at all that attributes lead to; what holds each."""
        holders: dict[int, list[int]] = {}
        for root in roots:
            holders.setdefault(id(root.value), []).append(id(root.holder))
        pending = [(root.name, root.value) for root in roots]
        while pending:
            name, item = pending.pop()
            if id(item) in self._parts or id(item) in self._standing:
                continue
            if type(item) is int and item in self._standing:
                # The address of an object, as tables of layers have it for a key.
                self._standing[id(item)] = id(self._standing[item])
            parts = self._look(item)
            if parts is None:
                continue
            self._parts[id(item)] = item, parts, name
            for value in parts.values:
                kind = type(value)
                if kind not in _NOTHING or (kind is int and value in self._standing):
                    holders.setdefault(id(value), []).append(id(item))
                    pending.append((name, value))
        return holders

    def _look(self, item: Any) -> Parts | None:
        return self._parts_of(item) or _parts_of(item)

    def _reached(self, ways: Iterable[Way]) -> tuple[set[int], Way | None]:
        """What ways lead to, and the first to what something else stands for."""
        found: dict[int, Any] = {}
        for way in ways:
            pending = [way.value]
            while pending:
                item = pending.pop()
                if id(item) in self._standing:
                    return set(found), way
                parts = None if id(item) in found else self._look(item)
                if parts is not None:
                    # Kept, so that nothing else gets its identity.
                    found[id(item)] = item, parts
                    pending += parts.values
        return set(found), None

    def of(self, value: Any) -> Any:
        """What stands for a value; it is whole once all are `settled`."""
        key = id(value)
        if key in self._standing or key not in self._anew:
            return self._standing.get(key, value)
        _, parts, _ = self._parts[key]
        if parts.begin is not None:
            made = parts.begin(self.of)
            self._begun.append(key)
        else:
            found = [self.of(v) for v in parts.values]
            if parts.hashes:
                self.settle()
            made = parts.fill(None, found)
        self._standing[key] = made
        return made

    def settle(self) -> None:
        """Fill what was begun: last what asks values for their hash."""
        ready: list[tuple[int, list[Any]]] = []
        while self._begun:
            key = self._begun.pop()
            ready.append((key, [self.of(v) for v in self._parts[key][1].values]))
        for key, found in sorted(ready, key=lambda one: self._parts[one[0]][1].hashes):
            self._parts[key][1].fill(self._standing[key], found)
        for key, _ in ready:
            made = self._standing[key]
            self._made.append((self._parts[key][2], made, _values(made)))

    def changed(self) -> str | None:
        """What was written to since then, for people."""
        for name, made, before in self._made:
            now = _values(made)
            if len(now) != len(before) or any(map(is_not, now, before)):
                kind = "closure" if type(made) is CellType else type(made).__name__
                return f"what its attribute {name} leads to, a {kind.lstrip('_')},"
        return None


def _values(made: Any) -> list[Any]:
    """What something holds, but kernels of its own methods, which it makes itself."""
    parts = _parts_of(made)
    values = () if parts is None else parts.values
    return [v for v in values if not is_kernel_of(v, made)]


def is_kernel_of(value: Any, owner: Any) -> bool:
    """Whether a value is a kernel that an object keeps of a method of its own."""
    return space_of(value).get("__self__") is owner


# -- What holds something --------------------------------------------------------------


class _Set(set[Any]):
    """A set that is walked in the order of another one.

    Its own is that of its items in memory, where those of a copy lie otherwise.
    """

    order: Sequence[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        whole = len(self.order) == len(self)
        return iter(self.order) if whole else super().__iter__()


class _FrozenSet(frozenset[Any]):
    """The same of one that does not change."""

    order: Sequence[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.order)


_REFERENCES: Sequence[Any] = (weakref.ref, weakref.WeakMethod, weakref.KeyedRef)
_CONTAINERS = (list, dict, set, OrderedDict, defaultdict, deque)
_NOTHING = frozenset(
    {NoneType, bool, int, float, complex, str, bytes, type, ModuleType, CodeType}
)
"""Types of what holds nothing that is looked at, and is there often."""


def _parts_of(item: Any) -> Parts | None:
    kind = type(item)
    if kind in _NOTHING or issubclass(kind, type):
        return None
    for kinds, parts_of in _WAYS:
        if issubclass(kind, kinds):
            return parts_of(item)
    return _of_object(item)


def _of_tuple(item: Any) -> Parts | None:
    if state_of(item)[0]:
        return None
    kind: Any = type(item)

    def fill(_: Any, values: Sequence[Any]) -> Any:
        return tuple.__new__(kind, values)

    return Parts(list(tuple.__iter__(item)), fill)


def _of_list(item: Any) -> Parts:
    kind: Any = type(item)
    base: Any = next(base for base in (list, deque) if issubclass(kind, base))
    items, (state, restore) = list(base.__iter__(item)), state_of(item)
    number = len(items)

    def begin(_: Of) -> Any:
        made = base.__new__(kind)
        if base is deque:
            deque.__init__(made, (), item.maxlen)
        return made

    def fill(made: Any, values: Sequence[Any]) -> None:
        base.extend(made, values[:number])
        restore(made, values[number:])

    return Parts([*items, *state], fill, begin)


def _of_dict(item: Any) -> Parts:
    kind: Any = type(item)
    kinds = OrderedDict, defaultdict, dict
    base: Any = next(base for base in kinds if issubclass(kind, base))
    keys, (state, restore) = list(base.__iter__(item)), state_of(item)
    number = len(keys)
    factory = [item.default_factory] if base is defaultdict else []

    def fill(made: Any, values: Sequence[Any]) -> None:
        for key, value in zip(values[:number], values[number:], strict=False):
            base.__setitem__(made, key, value)
        rest = values[2 * number :]
        if factory:
            made.default_factory = rest[0]
        restore(made, rest[len(factory) :])

    def begin(_: Of) -> Any:
        return base.__new__(kind)

    values = [*keys, *base.values(item), *factory, *state]
    return Parts(values, fill, begin, hashes=True)


def _of_set(item: Any) -> Parts | None:
    def fill(made: _Set, values: Sequence[Any]) -> None:
        made.update(values)
        made.order = values

    if type(item) not in (set, _Set):
        return None
    return Parts(list(item), fill, lambda _: _Set(), hashes=True)


def _of_frozenset(item: Any) -> Parts | None:
    def fill(_: Any, values: Sequence[Any]) -> _FrozenSet:
        made = _FrozenSet(values)
        made.order = values
        return made

    return Parts(list(item), fill, hashes=True) if type(item) is frozenset else None


def _of_view(item: Any) -> Parts:
    number = len(item)

    def fill(_: Any, found: Sequence[Any]) -> Any:
        pairs = zip(found[:number], found[number:], strict=True)
        return MappingProxyType(dict(pairs))

    return Parts([*item, *item.values()], fill, hashes=True)


def _of_partial(item: Any) -> Parts:
    kind, names = type(item), list(vars(item))

    def begin(_: Of) -> Any:
        # Python asks for something to call; what it is comes with the rest.
        return partial[Any].__new__(kind, id)

    def fill(made: Any, values: Sequence[Any]) -> None:
        space = dict(zip(names, values[3:], strict=True))
        made.__setstate__((*values[:3], space))

    values = [item.func, item.args, item.keywords, *vars(item).values()]
    return Parts(values, fill, begin)


def _of_method(item: MethodType) -> Parts:
    return Parts([item.__func__, item.__self__], lambda _, v: MethodType(v[0], v[1]))


def _of_builtin(item: Any) -> Parts | None:
    owner = getattr(item, "__self__", None)
    if owner is None or issubclass(type(owner), ModuleType | type):
        return None
    return Parts([owner], lambda _, v: getattr(v[0], item.__name__))


def _of_reference(item: Any) -> Parts | None:
    kind: Any = type(item)
    target = item()
    if target is None or kind not in _REFERENCES:
        return None
    # That of a dict whose values are weak also has the key.
    more = (None, item.key) if hasattr(item, "key") else ()

    def fill(_: Any, values: Sequence[Any]) -> Any:
        return kind(values[0], *more)

    return Parts([target], fill)


def _of_proxy(item: Any) -> Parts | None:
    try:
        # All other attributes may be of the target's class.
        target = item.__init__.__self__
    except ReferenceError:
        # It is there no more.
        return None
    return Parts([target], lambda _, v: weakref.proxy(v[0]))


def _of_cell(item: CellType) -> Parts | None:
    def fill(made: CellType, values: Sequence[Any]) -> None:
        made.cell_contents = values[0]

    try:
        return Parts([item.cell_contents], fill, lambda _: CellType())
    except ValueError:
        # Nothing is there yet.
        return None


def _of_function(item: FunctionType) -> Parts:
    """Its defaults, the cells of its closure, and its attributes."""
    cells, names = item.__closure__ or (), list(vars(item))

    def begin(of: Of) -> FunctionType:
        closure = tuple(map(of, cells)) or None
        of_code = item.__code__, item.__globals__, item.__name__
        made = FunctionType(*of_code, None, closure)
        made.__qualname__, made.__module__ = item.__qualname__, item.__module__
        return made

    def fill(made: FunctionType, values: Sequence[Any]) -> None:
        made.__defaults__, made.__kwdefaults__ = values[:2]
        vars(made).update(zip(names, values[2 + len(cells) :], strict=True))

    held = item.__defaults__, item.__kwdefaults__
    return Parts([*held, *cells, *vars(item).values()], fill, begin)


def _of_object(item: Any) -> Parts | None:
    """An object that is what its attributes are, also those with slots."""
    kind = type(item)
    base: Any = _base_of(kind)
    if base is None:
        return None

    def begin(_: Of) -> Any:
        return base.__new__(kind)

    return Parts(*state_of(item), begin)


@lru_cache(maxsize=1024)
def _base_of(kind: type) -> type | None:
    """What makes objects of a class, without its code; None where more is in them."""
    if hasattr(kind, "__del__"):
        # It would be run for the copy as well.
        return None
    for base in (object, SimpleNamespace):
        try:
            base.__new__(kind)
        except TypeError:
            # Python refuses it where another class made in C is to do it.
            continue
        return base
    return None


State = tuple[list[Any], Callable[[Any, Sequence[Any]], None]]


def state_of(item: Any) -> State:
    """The values of an object's attributes, and what gives others to another one.

    No code of its class runs.
    """
    places = [d for kind in type(item).__mro__ for d in _slots_of(kind)]
    held = [(d, found) for d in places for found in _in_slot(d, item)]
    space = space_of(item)
    names = list(space)

    def restore(made: Any, values: Sequence[Any]) -> None:
        for (place, _), value in zip(held, values, strict=False):
            place.__set__(made, value)
        space_of(made).update(zip(names, values[len(held) :], strict=True))

    return [*(found for _, found in held), *space.values()], restore


def space_of(item: Any) -> dict[str, Any]:
    """The attributes that an object has in a dict of its own."""
    try:
        return object.__getattribute__(item, "__dict__")
    except AttributeError:
        return {}


def _slots_of(kind: type) -> list[Any]:
    """Where the objects of a class, one of Python's, have attributes with slots."""
    names = vars(kind).get("__slots__", ())
    if not names:
        return []
    return [v for v in vars(kind).values() if isinstance(v, MemberDescriptorType)]


def _in_slot(place: Any, item: Any) -> list[Any]:
    try:
        return [place.__get__(item)]
    except AttributeError:
        return []


_WAYS: tuple[tuple[Any, Callable[[Any], Parts | None]], ...] = (
    (tuple, _of_tuple),
    ((list, deque), _of_list),
    (dict, _of_dict),
    (set, _of_set),
    (frozenset, _of_frozenset),
    (MappingProxyType, _of_view),
    (partial, _of_partial),
    (MethodType, _of_method),
    ((BuiltinMethodType, MethodWrapperType), _of_builtin),
    (weakref.ref, _of_reference),
    (weakref.ProxyTypes, _of_proxy),
    (CellType, _of_cell),
    (FunctionType, _of_function),
)
