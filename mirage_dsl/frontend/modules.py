"""Modules of PyTorch as functions: their parameters and buffers are arguments.

A function that calls a module is traced on a copy of the module: the same classes and
attributes, with traced tensors in the place of its parameters and buffers.  So the
module itself is never touched, whatever the trace ends in, and whoever calls it
meanwhile; and what its code writes to it is seen, and refused.
"""

# PyTorch's modules are only partly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

from mirage_dsl.core.errors import SourceLocation, TraceError, user_location
from mirage_dsl.core.types import dtype_named

STATE = "*state"
"""What parameters and buffers are called among the arguments by parameter."""

_HELD = ("_parameters", "_buffers")


def is_module(value: object) -> bool:
    """Whether a value is a module of PyTorch (without importing it)."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


@dataclass(frozen=True)
class Slot:
    """Where a module has a parameter or a buffer.

    Attributes:
        name: As in its `state_dict`.
        holder: The dict of the module, or of one in it, that has it.
        key: Its key there.
    """

    name: str
    holder: dict[str, Any]
    key: str

    @property
    def tensor(self) -> Any:
        """What is there now; None where the module was made without it."""
        return self.holder[self.key]

    @property
    def is_argument(self) -> bool:
        """Whether there is a tensor, of a dtype that programs have."""
        tensor = self.tensor
        if tensor is None:
            return False
        named = dtype_named(str(tensor.dtype).removeprefix("torch."))
        return named is not None or tensor.dtype.is_complex


class ModuleFunction:
    """A function of a module's arguments, whose tensors are arguments as well.

    Args:
        module: The module.
        function: A function whose first argument is the module; calls of the module
            itself, with its hooks, unless given.
    """

    def __init__(self, module: Any, function: Callable[..., Any] | None = None) -> None:
        # One that is being copied has nothing yet.
        for path, layer in module.named_modules() if vars(module) else ():
            _refuse_script(layer, path or "the module")
        self.module = module
        self._function = function
        bound = self.reads
        functools.update_wrapper(self, bound, updated=())
        self.__name__ = type(module).__name__
        self.__signature__ = inspect.signature(bound)

    @property
    def reads(self) -> Callable[..., Any]:
        """What is run in the end, to look at what it reads."""
        if self._function is None:
            return self.module.forward
        return MethodType(self._function, self.module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            return self.module(*args, **kwargs)
        return self._function(self.module, *args, **kwargs)

    def slots(self) -> list[Slot]:
        """All places of parameters and buffers, as `state_dict` orders them."""
        return list(_slots(self.module))

    def tensors(self) -> dict[str, Any]:
        """Parameters and buffers by their first name; one that is tied is there once.

        Raises:
            TraceError: One has no shape yet.
        """
        found: dict[str, Any] = {}
        seen: set[int] = set()
        for slot in _slots(self.module):
            _refuse_lazy(slot, self.__name__)
            if slot.is_argument and id(slot.tensor) not in seen:
                seen.add(id(slot.tensor))
                found[slot.name] = slot.tensor
        return found

    def on_copy(self, traced: Mapping[str, Any]) -> _Copied:
        """The function on a copy of the module with other tensors, by name."""
        return _Copied(self, traced)

    def run_on(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        """What it gives for another module of the same classes."""
        if self._function is None:
            return module(*args, **kwargs)
        return self._function(module, *args, **kwargs)


def _slots(module: Any) -> Iterator[Slot]:
    for path, layer in module.named_modules():
        prefix = f"{path}." if path else ""
        for held in _HELD:
            holder: dict[str, Any] = vars(layer)[held]
            for key in holder:
                yield Slot(prefix + key, holder, key)


def _refuse_script(layer: Any, path: str) -> None:
    if "ScriptModule" in {kind.__name__ for kind in type(layer).__mro__}:
        raise TraceError(
            f"{path} is a module of TorchScript, whose code is not Python's; make a "
            "kernel of the module that it was made from",
            user_location(),
        )


def _refuse_lazy(slot: Slot, name: str) -> None:
    if "Uninitialized" in type(slot.tensor).__name__:
        raise TraceError(
            f"{slot.name} of {name} has no shape yet: call the module once, on tensors "
            "like those of the kernel, before it is a kernel",
            user_location(),
        )


class _Copied:
    """A function on a copy of its module, for one trace."""

    def __init__(self, function: ModuleFunction, traced: Mapping[str, Any]) -> None:
        self._function = function
        self.__name__ = function.__name__
        self.__signature__ = function.__signature__
        own = function.tensors()
        self._traced = {id(own[name]): value for name, value in traced.items()}
        self._layers: list[tuple[str, Any, dict[str, Any]]] = []
        self._known: dict[int, Any] = {}
        self._kept: list[tuple[str, Any, int]] = []
        self._copy = self._copied(function.module, "")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function.run_on(self._copy, *args, **kwargs)

    def _copied(self, layer: Any, path: str) -> Any:
        if id(layer) in self._known:
            return self._known[id(layer)]
        copy = self._known[id(layer)] = object.__new__(type(layer))
        inside = f"{path}." if path else ""
        space = {n: self._own_container(v) for n, v in vars(layer).items()}
        for held in _HELD:
            space[held] = {
                key: self._tensor(value, inside + key)
                for key, value in space[held].items()
            }
        for name, value in list(space.items()):
            if isinstance(value, MethodType) and value.__self__ is layer:
                space[name] = MethodType(value.__func__, copy)
            elif getattr(value, "__self__", None) is layer:
                # A kernel of the layer: the copy makes its own.
                del space[name]
        vars(copy).update(space)
        vars(copy)["_modules"] = {
            key: None if child is None else self._copied(child, inside + key)
            for key, child in vars(layer)["_modules"].items()
        }
        before = {n: _content(v) for n, v in vars(copy).items()}
        self._layers.append((path, copy, before))
        return copy

    def _own_container(self, value: Any) -> Any:
        """A container of its own for the copy, so that the module's is not written to.

        In a list, traced tensors stand for parameters, and references for those to
        them: recurrent layers keep their weights so too.
        """
        if type(value) is list:
            return [self._standing_for(item) for item in cast("list[Any]", value)]
        return value.copy() if type(value) in (dict, set) else value

    def _standing_for(self, item: Any) -> Any:
        if isinstance(item, weakref.ref):
            own = self._traced.get(id(item()))
            return item if own is None else weakref.ref(own)
        return self._traced.get(id(item), item)

    def _tensor(self, tensor: Any, name: str) -> Any:
        if id(tensor) in self._traced or tensor is None:
            return self._traced.get(id(tensor))
        kept = tensor.detach().clone()
        self._kept.append((name, kept, kept._version))
        return kept

    def refuse_changes(self, location: SourceLocation | None) -> None:
        """Refuse that the module was written to: its copy was, and nobody sees that.

        Raises:
            TraceError: It was.
        """
        for name, tensor, version in self._kept:
            if tensor._version != version:
                _refuse_change(self.__name__, f"changes its buffer {name}", location)
        for path, copy, before in self._layers:
            now = {n: _content(v) for n, v in vars(copy).items()}
            for name in {**before, **now}:
                # The copy makes kernels of its methods.
                own = getattr(vars(copy).get(name), "__self__", None) is copy
                if own or before.get(name) == now.get(name):
                    continue
                if name in _HELD:
                    pairs = zip(before[name], now[name], strict=False)
                    other = next((k for (k, a), (_, b) in pairs if a != b), "others")
                    what = f"{name[1:-1]} {other}"
                else:
                    what = name
                where = f"{path}.{what}" if path else what
                _refuse_change(self.__name__, f"sets {where}", location)


def _refuse_change(name: str, what: str, location: SourceLocation | None) -> None:
    raise TraceError(
        f"{name} {what} while it runs, but a kernel runs its code once, when it is "
        "traced: return what is to be kept, and store it outside of the kernel; in "
        "training, statistics as those of batch norm are such a change",
        location or user_location(),
    )


def _content(value: Any) -> Any:
    """What an attribute is, by identity; of containers what they hold."""
    if type(value) is dict:
        return [(key, id(item)) for key, item in value.items()]
    if type(value) in (list, set):
        return [id(item) for item in value]
    return id(value)


__all__ = ["STATE", "ModuleFunction", "Slot", "is_module"]
