"""How a repeated call takes its tensors out of what it is given, in generated code.

A call is given tensors, constants, containers of both, and the module that it belongs
to.  For the next call that is alike, a function is written that looks whether it is:
the same types, keys and lengths of containers, the same constants, the same places of
parameters in the module.  It hands the tensors, in the order of the program's inputs,
to the call that compares these.  It looks where tensors are now and keeps none, so one
that was replaced is seen.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from mirage_dsl.backends.dispatch import Guarded
from mirage_dsl.frontend.arguments import (
    fields_of,
    is_record,
    is_sequence,
    leaves_of,
    map_leaves,
)
from mirage_dsl.frontend.modules import ModuleFunction, Slot

CONSTANTS = (type(None), bool, int, float, str)
"""Types of arguments, beside tensors, of calls that are prepared."""


def tensor_places(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[int]:
    """Where the tensors of a call are among its leaves, in the parameters' order.

    Leaves are counted first of arguments by position, then of those by keyword.
    """
    given = (*args, *kwargs.values())
    counter = count()

    def number(_: str, leaf: Any) -> int:
        del leaf
        return next(counter)

    numbers = [map_leaves(value, number) for value in given]
    named = dict(zip(kwargs, numbers[len(args) :], strict=True))
    bound = inspect.signature(function).bind(*numbers[: len(args)], **named)
    flat = leaves_of(given)
    places = leaves_of(list(bound.arguments.values()))
    return [at for at in places if type(flat[at]) not in CONSTANTS]


def short_call(
    given: Sequence[Any],
    names: Sequence[str],
    order: Sequence[int],
    function: Callable[..., Any],
    guarded: Guarded,
) -> Guarded:
    """What serves calls like one, and tells by itself whether it is meant.

    Args:
        given: What it was given: by position, then by keyword.
        names: The keywords.
        order: Which tensors the guarded call takes: numbers of the leaves of `given`,
            and behind these of the module's tensors.
        function: What is called.
        guarded: The call for its tensors.
    """
    writer = _Writer(guarded.call)
    arguments = [writer.argument() for _ in given]
    for name, value in zip(arguments, given, strict=True):
        writer.take(value, name)
    if isinstance(function, ModuleFunction):
        writer.take_slots(function.slots())
    call = writer.function(arguments, [writer.leaves[at] for at in order])
    return Guarded(len(given) - len(names), call, tuple(names))


class _Writer:
    """Writes a function that gives None for what is not alike."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.leaves: list[str] = []
        self._scope: dict[str, Any] = {"call": call}
        self._lines: list[str] = []
        self._numbers = count()

    def argument(self) -> str:
        """A name for an argument or a value."""
        return f"x{next(self._numbers)}"

    def _kept(self, value: Any) -> str:
        name = f"k{next(self._numbers)}"
        self._scope[name] = value
        return name

    def _unless(self, condition: str) -> None:
        self._lines += [f"  if not ({condition}):", "   return None"]

    def _read(self, expression: str) -> str:
        name = self.argument()
        self._lines.append(f"  {name} = {expression}")
        return name

    def take(self, value: Any, name: str) -> None:
        """Look at an argument and all in it."""
        if type(value) in CONSTANTS:
            self.leaves.append("")
            self._constant(value, name)
            return
        parts = self._parts(value, name)
        if parts is None:
            self.leaves.append(name)
            return
        for item, where in parts:
            self.take(item, self._read(where))

    def _constant(self, value: Any, name: str) -> None:
        if value is None or isinstance(value, bool):
            self._unless(f"{name} is {value}")
        else:
            kind, known = self._kept(type(value)), self._kept(value)
            same = f"type({name}) is {kind} and {name} == {known}"
            # 0.0 and -0.0 are equal.
            zero = type(value) is float and not value
            text = f" and repr({name}) == {repr(value)!r}" if zero else ""
            self._unless(same + text)

    def _parts(self, value: Any, name: str) -> list[tuple[Any, str]] | None:
        """What lies in a container, and how it is read; None for a leaf."""
        sequence, record = bool(is_sequence(value)), is_record(value)
        if not (sequence or record or issubclass(type(value), dict)):
            return None
        self._unless(f"type({name}) is {self._kept(type(value))}")
        if sequence:
            self._unless(f"len({name}) == {len(value)}")
            return [(item, f"{name}[{at}]") for at, item in enumerate(value)]
        if record:
            fields = fields_of(value)
            return [(getattr(value, f), f"{name}.{f}") for f in fields]
        keys: list[Any] = list(value)
        self._unless(f"[*{name}] == {self._kept(keys)}")
        return [(value[key], f"{name}[{self._kept(key)}]") for key in keys]

    def take_slots(self, slots: Sequence[Slot]) -> None:
        """Look at the places of parameters and buffers, as they were when traced."""
        holders = {id(slot.holder): slot.holder for slot in slots}
        names = {at: self._kept(holder) for at, holder in holders.items()}
        for at, holder in holders.items():
            self._unless(f"len({names[at]}) == {len(holder)}")
        first: dict[int, str] = {}
        for slot in slots:
            where = f"{names[id(slot.holder)]}[{slot.key!r}]"
            if slot.tensor is None:
                self._unless(f"{where} is None")
            elif id(slot.tensor) in first:
                self._unless(f"{where} is {first[id(slot.tensor)]}")
            elif slot.is_argument:
                first[id(slot.tensor)] = self._read(where)
                self.leaves.append(first[id(slot.tensor)])

    def function(self, arguments: Sequence[str], tensors: Sequence[str]) -> Any:
        """The function; it ends in the call with some of the leaves."""
        lines = [f"def take({', '.join(arguments)}):"]
        if self._lines:
            # Other things than those that were there, or none.
            lines += [" try:", *self._lines, " except Exception:", "  return None"]
        lines.append(f" return call({', '.join(tensors)})")
        exec("\n".join(lines), self._scope)
        return self._scope["take"]


__all__ = ["CONSTANTS", "short_call", "tensor_places"]
