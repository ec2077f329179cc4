"""The arguments of a call: containers and leaves, what is known of tensors, modules.

A module of PyTorch is a function whose parameters and buffers are arguments.  What
calls one is traced on a copy of the module: the same classes and attributes, with
traced tensors in the place of its parameters and buffers.  So the module itself is
never touched, whatever the trace ends in, and whoever calls it meanwhile; and what its
code writes to it is seen, and refused.
"""

# PyTorch's modules and tensors are only partly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import builtins
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from enum import Enum
from itertools import combinations
from operator import index
from types import MethodType
from typing import Any, Literal, SupportsIndex, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import (
    LIBRARIES,
    CompileError,
    DTypeError,
    ShapeError,
    SourceLocation,
    TraceError,
    UnsupportedError,
    location_of_function,
    public_function,
    user_location,
)
from mirage_dsl.core.modes import (
    LAYOUT,
    NESTED,
    memory_refusal,
    refusal,
    without_lazy_bits,
)
from mirage_dsl.core.types import (
    DTYPE_NAMES,
    NUMBERS,
    DType,
    TensorSpec,
    dtype_named,
    dtype_of,
    f32,
    is_name,
    packed,
)
from mirage_dsl.frontend.copies import Copies, Parts, Way, is_kernel_of, space_of
from mirage_dsl.ir.evaluate import numpy_dtype
from mirage_dsl.ir.graph import KernelGraph

STATE = "*state"
"""What a module's tensors are called among the arguments by parameter."""

_HELD = ("_parameters", "_buffers")
_OWN = (*_HELD, "_modules")

_FEW = 64
"""Attributes with more items are not looked through for tensors."""


def is_module(value: object) -> bool:
    """Whether a value is a module of PyTorch (without importing it)."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


@dataclass(frozen=True)
class Slot:
    """Where a module has a parameter, a buffer, or a tensor that is neither.

    Attributes:
        name: As in its `state_dict`, or as it would be there.
        holder: What has it: a dict of the module, or of one in it; a list or dict
            that is an attribute.
        key: Its key or its number there.
    """

    name: str
    holder: Any
    key: Any

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
        ways: How its code gets at what it reads.
    """

    def __init__(
        self,
        module: Any,
        function: Callable[..., Any] | None = None,
        ways: Sequence[Way] = (),
    ) -> None:
        # One that is being copied has nothing yet, but kernels of other methods.
        for path, layer in module.named_modules() if "_modules" in vars(module) else ():
            _refuse_script(layer, path or "the module")
        self.module = module
        self._function = function
        self._ways = ways
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

    def __reduce__(self) -> tuple[type[ModuleFunction], tuple[Any, Any]]:
        return ModuleFunction, (self.module, self._function)

    def slots(self) -> list[Slot]:
        """All places of tensors: parameters and buffers, as `state_dict` orders them.

        And behind them attributes that are tensors, or lists and dicts of these, where
        the others lie on their device: what a module keeps on another one its code
        copies, if it reads it.
        """
        return list(_slots(self.module))

    def tensors(self) -> dict[str, Any]:
        """All tensors by their first name; one that is tied is there once.

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

    def reading(self, ways: Sequence[Way]) -> ModuleFunction:
        """The same, where it is known how its code gets at what it reads."""
        return ModuleFunction(self.module, self._function, ways)

    def on_copy(self, traced: Mapping[str, Any]) -> _Copied:
        """The function on a copy of the module with other tensors, by name.

        Raises:
            TraceError: Its code gets at layers or parameters past the module.
        """
        return _Copied(self, traced, self._ways)

    def of(self, module: Any) -> Callable[..., Any]:
        """The same of another module of the same classes."""
        return module if self._function is None else MethodType(self._function, module)


def _slots(module: Any) -> Iterator[Slot]:
    devices: set[Any] = set()
    layers = [
        (f"{path}." * bool(path), layer) for path, layer in module.named_modules()
    ]
    for prefix, layer in layers:
        for held in _HELD:
            holder: dict[str, Any] = vars(layer)[held]
            for key, tensor in holder.items():
                devices.add(getattr(tensor, "device", None))
                yield Slot(prefix + key, holder, key)
    devices.discard(None)
    for prefix, layer in layers:
        for name, holder, key in _plain_tensors(vars(layer)):
            if {holder[key].device} >= devices:
                yield Slot(prefix + name, holder, key)


def _plain_tensors(space: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Attributes of a module, and items of lists and dicts in them, that are tensors.

    With the name of each, and where it is.  Parameters and buffers are none of them.
    """
    kind: Any = sys.modules["torch"].Tensor
    for name, value in space.items():
        if type(value) is kind and _may_be_given(value):
            yield name, space, name
        elif type(value) in (dict, list) and name not in _OWN and len(value) <= _FEW:
            items = value.items() if type(value) is dict else enumerate(value)
            for key, item in items:
                plain = type(item) is kind and type(key) in (str, int)
                if plain and _may_be_given(item):
                    yield f"{name}.{key}", value, key


def _may_be_given(tensor: Any) -> bool:
    """Whether a tensor is of strides and has data, as arguments are."""
    torch: Any = sys.modules["torch"]
    plain = tensor.layout is torch.strided and not tensor.is_nested
    return plain and not tensor.is_meta


def _refuse_script(layer: Any, path: str) -> None:
    if "ScriptModule" in {kind.__name__ for kind in type(layer).__mro__}:
        raise TraceError.here(
            f"{path} is a module of TorchScript, whose code is not Python's; make a "
            "kernel of the module that it was made from"
        )


def _refuse_lazy(slot: Slot, name: str) -> None:
    if "Uninitialized" in type(slot.tensor).__name__:
        raise TraceError.here(
            f"{slot.name} of {name} has no shape yet: call the module once, on tensors "
            "like those of the kernel, before it is a kernel"
        )


class _Copied:
    """A function on a copy of its module, for one trace."""

    def __init__(
        self, function: ModuleFunction, traced: Mapping[str, Any], ways: Sequence[Way]
    ) -> None:
        self._function = function
        self.__name__ = function.__name__
        self.__signature__ = function.__signature__
        own = function.tensors()
        self._traced = {id(own[name]): value for name, value in traced.items()}
        self._layers: list[tuple[str, Any, dict[str, Any]]] = []
        # All are there before one is filled, for attributes lead anywhere.
        self._copies = {
            id(layer): object.__new__(type(layer))
            for layer in function.module.modules()
        }
        self._kept: list[tuple[str, Any, int]] = []
        named = list(function.module.named_modules())
        roots = [
            Way(layer, f"{path}.{name}" if path else name, value)
            for path, layer in named
            for name, value in vars(layer).items()
            if name not in _OWN
        ]
        standing = {**self._traced, **self._copies}
        self._held = Copies(standing, roots, self._past(ways), _parts_of)
        self._refuse_shared()
        for path, layer in named:
            self._fill(layer, path)
        self._held.settle()
        for path, layer in named:
            copy = self._copies[id(layer)]
            before = {n: _content(v) for n, v in vars(copy).items()}
            self._layers.append((path, copy, before))
        self._copy = self._copies[id(function.module)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function.of(self._copy)(*args, **kwargs)

    def _past(self, ways: Sequence[Way]) -> list[Way]:
        """The ways that go not by where modules keep their own."""
        layers = list(self._function.module.modules())
        kept = {id(vars(layer)[name]) for layer in layers for name in _OWN}
        spaces = kept | {id(vars(layer)) for layer in layers}
        return [
            way
            for way in ways
            if id(way.holder) not in spaces
            and not (id(way.holder) in self._copies and id(way.value) in kept)
        ]

    def _refuse_shared(self) -> None:
        way = self._held.shared
        if way is None:
            return
        owner = way.holder if isinstance(way.holder, type) else type(way.holder)
        of = "" if owner is dict else f"{owner.__name__}."
        raise TraceError(
            f"{self.__name__} reads {of}{way.name}, which leads to a layer or a "
            "parameter of the module past its attributes, but it is traced on a copy "
            "of the module, in which others stand for these; keep it in an attribute "
            "of the module: as it is, in a container, or in an object of a plain class "
            "without __del__",
            location_of_function(self._function.reads),
        )

    def _fill(self, layer: Any, path: str) -> None:
        copy = self._copies[id(layer)]
        inside = f"{path}." if path else ""
        space = {n: self._held.of(v) for n, v in vars(layer).items()}
        for held in _HELD:
            space[held] = {
                key: self._tensor(value, inside + key)
                for key, value in vars(layer)[held].items()
            }
        space["_modules"] = {
            key: None if child is None else self._copies[id(child)]
            for key, child in vars(layer)["_modules"].items()
        }
        vars(copy).update(space)
        if "TransformerEncoder" in {kind.__name__ for kind in type(layer).__mro__}:
            # Unasked it takes traced tensors where others are nested ones.
            copy.mask_check = True

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
        for path, layer, before in self._layers:
            now = {n: _content(v) for n, v in vars(layer).items()}
            for name in {**before, **now}:
                # The copy makes kernels of its methods.
                own = is_kernel_of(vars(layer).get(name), layer)
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
        changed = self._held.changed()
        if changed is not None:
            _refuse_change(self.__name__, f"changes {changed}", location)


def _parts_of(item: Any) -> Parts | None:
    """What a kernel runs, which is what it is in a trace."""
    # Objects are not asked for their class: that may be code of theirs.
    if issubclass(type(item), ModuleFunction):
        return Parts([item.module], lambda _, found: item.of(found[0]))
    if type(item).__module__.partition(".")[0] != __name__.partition(".")[0]:
        return None
    return Parts([space_of(item).get("function")], lambda _, found: found[0])


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


# -- Containers ------------------------------------------------------------------------

_DEEPEST = 100
"""How deeply containers may lie in each other."""


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a tuple or a list."""
    # A traced tensor has a class to show, which is neither.
    return issubclass(type(value), tuple | list)


def items_of(node: object) -> Iterator[tuple[str, Any]] | None:
    """Children of a container with the names of their places; None for a leaf."""
    if is_sequence(node):
        return ((str(i), child) for i, child in enumerate(node))
    if issubclass(type(node), dict):
        entries = cast(dict[Any, Any], node)
        return ((str(key), child) for key, child in entries.items())
    if is_record(node):
        return ((name, getattr(node, name)) for name in fields_of(node))
    return None


def is_record(node: object) -> bool:
    """Whether a value is a dataclass of the user's, which holds what its fields do."""
    kind = type(node)
    if not hasattr(kind, "__dataclass_fields__"):
        return False
    return kind.__module__.partition(".")[0] not in LIBRARIES


def is_plain_object(node: object) -> bool:
    """Whether a value is an object of a user's class that is what its attributes are.

    What says itself how it is copied, and classes with slots, may be more.
    """
    kind = type(node)
    if kind.__module__.partition(".")[0] in LIBRARIES | {"builtins"}:
        return False
    own = ("__reduce__", "__reduce_ex__", "__getstate__", "__copy__")
    usual = all(getattr(kind, n, None) is getattr(object, n, None) for n in own)
    slots = any(vars(base).get("__slots__") for base in kind.__mro__)
    return usual and not slots and hasattr(node, "__dict__") and not is_module(node)


@dataclass(frozen=True)
class Made:
    """An object that a function makes and returns, as a leaf of what it returns.

    Attributes:
        kind: Its class.
        attributes: By name, with a `Leaf` in the place of every tensor.
    """

    kind: type
    attributes: dict[str, Any]

    def again(self, leaf: Callable[[str, Any], Any]) -> Any:
        """Another one of the class, with every leaf replaced by `leaf(path, leaf)`."""
        made = object.__new__(self.kind)
        vars(made).update(map_leaves(self.attributes, leaf))
        return made


def fields_of(node: Any) -> list[str]:
    """The fields of a dataclass that have a value."""
    return [f.name for f in fields(node) if hasattr(node, f.name)]


def leaves_of(node: object) -> list[Any]:
    """Everything in nested containers that is no container, in order.

    Raises:
        TraceError: Containers lie in each other too deeply.
    """
    return [leaf for _, leaf in placed_leaves(node)]


def placed_leaves(node: object) -> list[tuple[str, Any]]:
    """Everything in nested containers that is no container, with its place, in order.

    A place is the places from the outside in, joined by underscores.

    Raises:
        TraceError: Containers lie in each other too deeply.
    """
    found: list[tuple[str, Any]] = []
    _place_leaves(node, "", 0, found)
    return found


def _place_leaves(
    node: object, path: str, depth: int, found: list[tuple[str, Any]]
) -> None:
    items = items_of(node)
    if items is None:
        found.append((path, node))
        return
    _require_flat(depth)
    for place, child in items:
        inner = f"{path}_{place}" if path else place
        _place_leaves(child, inner, depth + 1, found)


def _require_flat(depth: int) -> None:
    if depth > _DEEPEST:
        raise TraceError.here(
            f"containers lie in each other more than {_DEEPEST} deep, or one in "
            "itself; pass flatter ones"
        )


def places_of(node: object) -> tuple[str, ...]:
    """Where the leaves of nested containers are, in order."""
    return tuple(place for place, _ in placed_leaves(node))


def same_containers(a: Any, b: Any) -> bool:
    """Whether nested containers are of the same types, with the same keys.

    Equal leaves are to be of the same types and signs, too.
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, Made):
        return a.kind is b.kind and same_containers(a.attributes, b.attributes)
    children, others = items_of(a), items_of(b)
    if children is None or others is None:
        # 0.0 and -0.0 are equal.
        return not isinstance(a, float) or repr(a) == repr(b)
    if isinstance(a, dict) and [*map(repr, a)] != [*map(repr, b)]:
        return False
    pairs = zip(children, others, strict=True)
    return all(same_containers(mine, other) for (_, mine), (_, other) in pairs)


def map_leaves(
    node: Any, function: Callable[[str, Any], Any], path: str = "", depth: int = 0
) -> Any:
    """The same containers with every leaf replaced by `function(path, leaf)`.

    A path is the places from the outside in, joined by underscores.

    Raises:
        TraceError: Containers lie in each other too deeply.
    """
    items = items_of(node)
    if items is None:
        return function(path, node)
    _require_flat(depth)
    done = [
        map_leaves(child, function, f"{path}_{place}" if path else place, depth + 1)
        for place, child in items
    ]
    if isinstance(node, dict):
        return _with_values(cast(dict[Any, Any], node), done)
    if is_record(node):
        made = copy(node)
        for name, value in zip(fields_of(node), done, strict=True):
            # Also where it is frozen.
            object.__setattr__(made, name, value)
        return made
    if hasattr(node, "_fields"):
        return type(node)(*done)
    # The shape of a traced tensor has PyTorch's class to show.
    return node.__class__(done)


def _with_values(node: dict[Any, Any], values: Sequence[Any]) -> dict[Any, Any]:
    """A dict of the same class and keys; one of a user's may have more than items."""
    items = zip(node, values, strict=True)
    if type(node) is dict:
        return dict(items)
    made = copy(node)
    for key, value in items:
        made[key] = value
    return made


# -- What is known of a tensor ---------------------------------------------------------

CONSTANTS = (type(None), bool, int, float, str)
"""Types of arguments that are constants of the program, and told by comparing them."""


def is_symbol(value: object) -> bool:
    """Whether a value is one of few, with a name: a format, a device, a member."""
    if isinstance(value, type):
        return issubclass(value, np.generic)
    return _has_symbols(type(value))


@functools.lru_cache(maxsize=256)
def _has_symbols(kind: type) -> bool:
    """Whether values of a type are symbols; asked for each container of a call."""
    torch = sys.modules.get("torch")
    of_torch: tuple[type, ...] = ()
    if torch is not None:
        of_torch = torch.dtype, torch.device, torch.layout, torch.memory_format
    return issubclass(kind, (Enum, DType, np.dtype, *of_torch))


def is_constant(value: object) -> bool:
    """Whether an argument is a constant, and told by comparing it."""
    return type(value) in CONSTANTS or is_symbol(value)


def is_static(value: object) -> bool:
    """Whether an argument may be a constant; numbers of NumPy's have a format."""
    numbers = np.bool_ | np.integer | np.floating
    return isinstance(value, (*CONSTANTS, numbers)) or is_symbol(value)


@dataclass(frozen=True)
class Origin:
    """What a function is called with, and so what its traced tensors are like.

    Attributes:
        library: `torch`, also where specs are given; `numpy`; or none of both, for
            graphs that are built by hand.
        device: Of PyTorch's tensors: as text, with its number.
        of_specs: Whether specs are given, for tensors of either library.
    """

    library: Literal["torch", "numpy", ""] = ""
    device: str = "cuda:0"
    of_specs: bool = False

    @property
    def torch(self) -> Any:
        """PyTorch, if tensors are to be like its own and it is loaded."""
        return sys.modules.get("torch") if self.library == "torch" else None

    def default_dtype(self) -> DType | None:
        """The floats that truth values become; None where it is none of ours."""
        if self.library == "numpy":
            return None
        return f32 if self.torch is None else dtype_of(self.torch.get_default_dtype())


def origin_of(tensors: Sequence[Any]) -> Origin:
    """What the tensors of a call are like: PyTorch's if one is, or all are specs."""
    devices = [str(t.device) for t in tensors if hasattr(t, "requires_grad")]
    if devices:
        return Origin("torch", devices[0])
    specs = all(isinstance(t, TensorSpec) for t in tensors)
    return Origin("torch" if specs else "numpy", of_specs=specs)


@public_function("mirage.spec")
def spec(
    shape: Sequence[int | str],
    dtype: DType | str = "float16",
    strides: Sequence[int] | None = None,
) -> TensorSpec:
    """A tensor argument without data, for `bind` and `trace`.

    Args:
        shape: Extent per axis; a name stands for a symbolic extent.
        dtype: `float16`, `int32`, `bool`, or `mirage.f16` and so on.
        strides: In elements; row-major unless given.
    """
    found = dtype_of(dtype)
    if found is None:
        raise DTypeError(f"unknown dtype {dtype}; expected one of {DTYPE_NAMES}")
    given: Any = shape
    listed = isinstance(given, Iterable) and not isinstance(given, str)
    extents: tuple[Any, ...] = tuple(given) if listed else ()
    fit = all(isinstance(e, SupportsIndex | str) for e in extents)
    if not listed or not fit or any(isinstance(e, bool) for e in extents):
        raise ShapeError(
            f"shape {shape!r}: expected a tuple of integers, and names for symbolic "
            "extents, such as (16, 4096) or ('m', 4096)"
        )
    extents = tuple(e if isinstance(e, str) else index(e) for e in extents)
    if strides is None:
        return TensorSpec(found, extents)
    steps: tuple[Any, ...] = tuple(strides)
    if len(steps) != len(extents) or not all(
        isinstance(step, SupportsIndex) for step in steps
    ):
        raise ShapeError(
            f"strides {strides!r} of shape {shape!r}: expected an integer for each axis"
        )
    return TensorSpec(found, extents, tuple(map(index, steps)))


def is_tensor_like(value: object) -> bool:
    """A NumPy array, a PyTorch tensor, or anything with their shape and dtype.

    NumPy's scalars are numbers, as Python's are.  Nested tensors have no shape, and do
    not say so as Python expects.
    """
    return getattr(value, "is_nested", False) is True or (
        hasattr(value, "shape")
        and hasattr(value, "dtype")
        and not isinstance(value, builtins.int | builtins.float | np.generic | type)
        and getattr(value, "ndim", None) is not None
    )


def spec_of(value: Any, name: str, location: SourceLocation | None) -> TensorSpec:
    """The spec of an array or tensor.

    Raises:
        DTypeError: Its dtype is none of ours.
        UnsupportedError: It is sparse or nested, or otherwise without strides.
        ShapeError: It is empty.
    """
    if getattr(value, "is_nested", False) is True:
        reason = NESTED.format(f"argument {name}", name)
        raise UnsupportedError(reason, location)
    long_name = str(value.dtype).removeprefix("torch.")
    dtype = dtype_named(long_name)
    if dtype is None:
        way = ".to(torch.float16)" if hasattr(value, "stride") else ".astype('float16')"
        how = f"convert it, as with {name}{way}"
        raise DTypeError(
            f"argument {name} is {long_name}; expected one of {DTYPE_NAMES}: {how}",
            location,
        )
    if _is_own_array(value):
        raise UnsupportedError(
            f"argument {name} is {_described(value)}, an array with operators of its "
            f"own; pass np.asarray({name})",
            location,
        )
    layout = str(getattr(value, "layout", "torch.strided"))
    if layout != "torch.strided":
        raise UnsupportedError(
            LAYOUT.format(f"argument {name}", name, layout), location
        )
    shape = tuple(int(extent) for extent in value.shape)
    if 0 in shape:
        raise ShapeError(
            f"argument {name} has the shape {shape}: programs have no empty tensors; "
            "call the kernel of a function of PyTorch's or NumPy's alone, which runs "
            "as it is then, or skip the call",
            location,
        )
    return TensorSpec(dtype, shape, _strides(value, shape))


def is_empty(value: object) -> bool:
    """Whether it is an array or a tensor, of those that are taken, without elements."""
    plain = is_tensor_like(value) and not getattr(value, "is_nested", False)
    strided = str(getattr(value, "layout", "torch.strided")) == "torch.strided"
    return plain and strided and 0 in getattr(value, "shape", ())


def _is_own_array(value: object) -> bool:
    """Whether it is an array of a class that may compute in another way."""
    kind = type(value)
    return issubclass(kind, np.ndarray) and kind not in (np.ndarray, np.memmap)


def _strides(value: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of a dense array with the same order of axes; None if it is row-major.

    Gaps between elements do not count: kernels take tensors of any strides.
    """
    strides = strides_of(value)
    if strides is None:
        return None
    order = order_of(shape, strides)
    return None if order == tuple(range(len(shape))) else packed(shape, order)


def known_shapes(specs: Sequence[TensorSpec]) -> list[tuple[int, ...]] | None:
    """The shapes of specs; None if there are names of dims among the extents."""
    shapes = [tuple(e for e in s.shape if isinstance(e, int)) for s in specs]
    same = all(len(a) == len(s.shape) for a, s in zip(shapes, specs, strict=True))
    return shapes if same else None


def strides_of(value: Any) -> tuple[int, ...] | None:
    """Strides of an array, a tensor or a spec, in elements; None where none are known.

    A spec without strides is row-major; one with names for extents has none.
    """
    if isinstance(value, TensorSpec):
        shape = [e for e in value.shape if isinstance(e, int)]
        if len(shape) != len(value.shape) or value.strides is not None:
            return value.strides
        return packed(shape, range(len(shape)))
    if hasattr(value, "stride"):
        return tuple(int(s) for s in value.stride())
    if getattr(value, "strides", None) is not None:
        return tuple(int(s) // int(value.itemsize) for s in value.strides)
    return None


def order_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Axes from the slowest to the fastest; first those that repeat the same memory."""
    units = [i for i, extent in enumerate(shape) if extent == 1]
    order = [i for i, extent in enumerate(shape) if extent != 1]
    order.sort(key=lambda i: (strides[i] != 0, -abs(strides[i]), i))
    if order == sorted(order):
        return tuple(range(len(shape)))
    return (*units, *order)


def kept_back(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments that a function of PyTorch's was called with and does not hand on.

    Of `l1_loss` that is the weight.
    """
    known = _parameters_of(function)
    left = [name for name in known[len(args) :] if name not in kwargs]
    frame = inspect.currentframe() if left else None
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    given = {} if frame is None else frame.f_locals
    return {name: given[name] for name in left if given.get(name) is not None}


@functools.cache
def _parameters_of(function: Any) -> tuple[str, ...]:
    """The parameters of a function that Python runs; none of others."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ()
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


_BITS = 1024
"""How long an integer may be: float64 has no larger ones."""


def static_argument(value: Any, name: str, location: SourceLocation | None) -> object:
    """A constant argument.

    Raises:
        TraceError: It is neither a constant nor a tensor.
    """
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise TraceError(
            f"argument {name} is an integer of {value.bit_length()} bits, beyond the "
            f"range of every float; expected at most {_BITS} bits",
            location,
        )
    if is_static(value):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return float(value)
    instead = "; a function may be a default, or come from where the kernel is defined"
    raise TraceError(
        f"argument {name} is {_described(value)}; expected a tensor (PyTorch, NumPy or "
        "mirage.spec), a number, a text, a dtype, a member of an Enum, or tuples, "
        f"lists and dicts of these{instead if callable(value) else ''}",
        location,
    )


def _described(value: object) -> str:
    kind = type(value)
    shown = kind.__qualname__
    return shown if kind.__module__ == "builtins" else f"{kind.__module__}.{shown}"


def annotations_of(function: Callable[..., Any]) -> dict[str, TensorSpec | DType]:
    """Annotations that speak of tensors, by parameter; texts are evaluated."""
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    given: Mapping[str, Any] = getattr(function, "__annotations__", {})
    found: dict[str, TensorSpec | DType] = {}
    for name, annotation in given.items():
        value = annotation
        if isinstance(annotation, str):
            value = _evaluated(annotation, function)
        if name != "return" and isinstance(value, TensorSpec | DType):
            found[name] = value
    return found


def _evaluated(text: str, function: Callable[..., Any]) -> Any:
    names: dict[str, Any] = dict(getattr(function, "__globals__", {}))
    code, cells = (
        getattr(function, "__code__", None),
        getattr(function, "__closure__", None),
    )
    if code is not None and cells:
        for name, cell in zip(code.co_freevars, cells, strict=True):
            try:
                names[name] = cell.cell_contents
            except ValueError:
                continue
    try:
        return eval(text, names)
    except Exception:
        # An annotation for other tools, as of names that exist for type checkers only.
        return None


class AnnotationCheck:
    """Checks arguments against annotations; one name has one extent in a call."""

    def __init__(self, location: SourceLocation | None) -> None:
        self._location = location
        self._extents: dict[str, tuple[int | str, str]] = {}

    def names(
        self, name: str, found: TensorSpec, stated: TensorSpec | DType
    ) -> tuple[str | None, ...]:
        """The names that the annotation gives to the axes of an argument.

        Raises:
            DTypeError: Another dtype than stated.
            ShapeError: Another shape than stated.
        """
        dtype = stated if isinstance(stated, DType) else stated.dtype
        if found.dtype != dtype:
            raise DTypeError(
                f"argument {name} is {found.dtype}, but annotated as {dtype}; convert "
                "the argument or correct the annotation",
                self._location,
            )
        if isinstance(stated, DType):
            return (None,) * len(found.shape)
        if len(stated.shape) != len(found.shape):
            raise ShapeError(
                f"argument {name} has the shape {found.shape}, but is annotated with "
                f"{len(stated.shape)} axes {stated.shape}",
                self._location,
            )
        for axis, (have, want) in enumerate(
            zip(found.shape, stated.shape, strict=True)
        ):
            self._check(name, axis, have, want)
        names = tuple(w if isinstance(w, str) else None for w in stated.shape)
        for dim in names:
            if dim is not None and not (is_name(dim) and dim.isidentifier()):
                raise ShapeError(
                    f"argument {name} is annotated with the dim name {dim!r}; names "
                    "are identifiers, as in m or tokens",
                    self._location,
                )
        return names

    def _check(self, name: str, axis: int, have: int | str, want: int | str) -> None:
        place = f"axis {axis} of {name}"
        if isinstance(want, int):
            if have != want:
                raise ShapeError(
                    f"{place} has extent {have}, but is annotated as {want}; pass "
                    "another tensor or correct the annotation",
                    self._location,
                )
            return
        known, first = self._extents.setdefault(want, (have, place))
        if known != have:
            raise ShapeError(
                f"the dim {want} has extent {known} at {first} and {have} at {place}; "
                "axes with one name must have one extent",
                self._location,
            )


# -- Sorting arguments out -------------------------------------------------------------

Function = Callable[..., Any]


@dataclass(frozen=True)
class Leaf:
    """The place of a tensor in the structure of arguments, or of what is returned.

    Attributes:
        index: Its number.
        complex: Whether it is complex, and the tensor of that number its parts along a
            last axis.
        number: Whether NumPy returns a number there, and no array.
    """

    index: int
    complex: bool = False
    number: bool = False


@dataclass(frozen=True)
class Filled:
    """The place of a returned tensor of one constant, which no program computes.

    Attributes:
        number: Its elements.
        shape: Its extents.
        dtype: Its format.
    """

    number: float
    shape: tuple[int, ...]
    dtype: DType

    def like(self, output: Any) -> Any:
        """The tensor, of the library and on the device of another result."""
        if not is_torch(output):
            return np.full(self.shape, self.number, numpy_dtype(self.dtype))
        dtype = getattr(sys.modules["torch"], self.dtype.long_name)
        return output.new_full(self.shape, self.number, dtype=dtype)


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, by parameter, with tensors taken out.

    Attributes:
        values: Arguments by parameter; a `Leaf` stands for a tensor.
        names: Names of the tensors.
        specs: Specs of the tensors.
        hints: Annotated name per axis, of every tensor.
        tensors: What was passed for each tensor: it, or its spec.
        origin: What they are like.
        form: How many were given by position, and the names of the others, where the
            function may see that; those not given are then not handed on.
        copied: Names of tensors that were copied for the call.
    """

    values: Mapping[str, Any]
    names: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    hints: tuple[tuple[str | None, ...], ...]
    tensors: tuple[Any, ...]
    origin: Origin
    form: tuple[int, tuple[str, ...]] | None = None
    copied: frozenset[str] = frozenset()

    @property
    def constants(self) -> object:
        """What the program depends on beside the specs of its tensors, as a key."""
        return _frozen(dict(self.values)), self.form


PARAMETERS = "parameters"
"""What stands for all tensors of a module, where arguments are named."""


def tensors_named(arguments: Arguments, wanted: Iterable[str], name: str) -> set[str]:
    """Names of the tensors of some arguments, with all that are in them.

    Args:
        arguments: Those of a call.
        wanted: Names of arguments; `parameters` stands for what a module has itself.
        name: What is called.

    Raises:
        TraceError: One is no argument.
    """
    values, found = dict(arguments.values), set[str]()
    own = values.pop(STATE, None)
    if own is not None and PARAMETERS not in values:
        values[PARAMETERS] = own
    for argument in wanted:
        if argument not in values:
            raise TraceError.here(
                f"constant={argument!r} is no argument of {name}; "
                f"expected some of {', '.join(values)}"
            )
        leaves = leaves_of(values[argument])
        found |= {arguments.names[x.index] for x in leaves if isinstance(x, Leaf)}
    return found


def _frozen(node: Any) -> object:
    """Constants and places of tensors, as a key; a tensor's place is its number."""
    items = items_of(node)
    if items is not None:
        return type(node).__name__, tuple((p, _frozen(c)) for p, c in items)
    if isinstance(node, Leaf):
        return node
    if not is_static(node):
        # A default, which is watched.
        return type(node).__name__
    # 0.0 and -0.0 are equal, and NaN is not itself.
    return type(node).__name__, node if is_symbol(node) else repr(node)


def bind_arguments(
    function: Function,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    location: SourceLocation | None = None,
) -> Arguments:
    """Sort out the arguments of a call: tensors, and constants of the program.

    Args:
        function: What is called.
        args: Arguments by position.
        kwargs: Arguments by keyword.
        location: The line that errors name; that of the call unless given.

    Raises:
        TraceError: They do not fit the signature, or one is neither.
        DTypeError: A tensor of a dtype that is not supported.
        ShapeError: An argument that is not as annotated.
    """
    location = location or user_location() or location_of_function(function)
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TraceError(
            f"call of {name_of(function)}{signature}: {error}", location
        ) from None
    passed = frozenset(bound.arguments)
    bound.apply_defaults()
    binder = _Binder(location, AnnotationCheck(location), annotations_of(function))
    values = {
        name: binder.bind(name, value, passed=name in passed)
        for name, value in bound.arguments.items()
    }
    if isinstance(function, ModuleFunction):
        values[STATE] = binder.bind("", function.tensors())
    return Arguments(
        values,
        tuple(binder.names),
        tuple(binder.specs),
        tuple(binder.hints),
        tuple(binder.tensors),
        origin_of(binder.tensors),
        (len(args), tuple(kwargs)) if _sees_form(function) else None,
        frozenset(binder.copied),
    )


def _sees_form(function: Function) -> bool:
    """Whether a call runs hooks or a wrapper, which may have another signature."""
    return isinstance(function, ModuleFunction) or hasattr(function, "__wrapped__")


class _Binder:
    def __init__(
        self,
        location: SourceLocation | None,
        check: AnnotationCheck,
        annotations: Mapping[str, Any],
    ) -> None:
        self._location = location
        self._check = check
        self._annotations = annotations
        self.names: list[str] = []
        self.specs: list[TensorSpec] = []
        self.hints: list[tuple[str | None, ...]] = []
        self.tensors: list[Any] = []
        self.copied: set[str] = set()

    def bind(self, parameter: str, value: Any, *, passed: bool = True) -> Any:
        """One argument, tensors replaced by their places.

        Defaults may be anything: they are watched as all that the function reads.
        """
        stated = self._annotations.get(parameter)

        def leaf(path: str, found: Any) -> Any:
            if not isinstance(found, TensorSpec) and not is_tensor_like(found):
                if stated is not None and passed:
                    raise TraceError(
                        f"argument {path} is {type(found).__name__}, but is annotated "
                        "as a tensor",
                        self._location,
                    )
                if passed or is_static(found):
                    return static_argument(found, path, self._location)
                return found
            paired = has_pairs(found)
            copied = is_conjugated(found)
            found = to_pairs(found)
            given = (
                found
                if isinstance(found, TensorSpec)
                else spec_of(found, path, self._location)
            )
            hints: tuple[str | None, ...] = (None,) * len(given.shape)
            if stated is not None:
                hints = self._check.names(path, given, stated)
            self.names.append(self._unique(path))
            self.specs.append(given)
            self.hints.append(hints)
            self.tensors.append(found)
            self.copied |= {self.names[-1]} if copied else set()
            return Leaf(len(self.names) - 1, paired)

        return map_leaves(value, leaf, parameter)

    def _unique(self, path: str) -> str:
        cleaned = "".join(c if c.isalnum() else "_" for c in path)
        name = cleaned if cleaned[:1].isalpha() else f"x{cleaned}"
        while name in self.names or name in NUMBERS:
            name += "_"
        return name


def name_of(function: Function) -> str:
    name = str(getattr(function, "__name__", "program"))
    return name if is_name(name) else "program"


def without_strides(arguments: Arguments) -> Arguments:
    """The same arguments, all of them row-major."""
    specs = tuple(replace(s, strides=None) for s in arguments.specs)
    return replace(arguments, specs=specs)


# -- Tensors of a call -----------------------------------------------------------------


def is_array(value: object) -> bool:
    """Whether a value is a NumPy array or a PyTorch tensor (without importing them)."""
    torch = sys.modules.get("torch")
    kinds: Any = np.ndarray if torch is None else (np.ndarray, torch.Tensor)
    return isinstance(value, kinds) and getattr(value, "ndim", 0) > 0


def is_torch(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" or hasattr(
        value, "requires_grad"
    )


def refuse_modes(values: Sequence[Any]) -> None:
    """Refuse to be called in modes, and with tensors, that a kernel would pass by.

    Raises:
        UnsupportedError: There is one.
    """
    reason = refusal(values)
    if reason is not None:
        raise UnsupportedError.here(reason)


def device_kind(tensors: Sequence[Any]) -> str:
    """`cuda` or `cpu`.

    Raises:
        CompileError: Tensors on several devices, or on one that is neither.
    """
    devices = {str(t.device) for t in tensors if is_torch(t)}
    kinds = {d.partition(":")[0] for d in devices}
    if len(devices) > 1 or not kinds <= {"cpu", "cuda"}:
        raise CompileError(
            f"the tensors are on {', '.join(sorted(devices))}; expected one CUDA "
            "device, or the CPU: move them with .to(device)"
        )
    if "cuda" in kinds and not all(map(is_torch, tensors)):
        raise CompileError(
            "CUDA tensors together with NumPy arrays; convert the arrays with "
            "torch.from_numpy(array).cuda()"
        )
    return "cuda" if "cuda" in kinds else "cpu"


def check_dtypes(program: KernelGraph, tensors: Sequence[Any]) -> None:
    """Refuse tensors of other dtypes than the inputs.

    Raises:
        DTypeError: One is.
    """
    for given, tensor in zip(program.inputs, tensors, strict=True):
        if dtype_of(tensor.dtype) != given.type.dtype:
            raise DTypeError.here(
                f"input {given.name} of {program.name} is {tensor.dtype}, expected "
                f"{given.type.dtype.long_name}; convert it, or bind with tensors like "
                "it"
            )


def as_torch(tensor: Any) -> Any:
    """The tensor, or PyTorch's view of an array."""
    if is_torch(tensor):
        return tensor
    return to_torch(tensor)


def check_out(taken: Sequence[Any]) -> None:
    """Refuse what cannot take results.

    Raises:
        TraceError: No tensor, or an array that cannot be written to.
        UnsupportedError: A tensor without memory of its own for each element, or one
            of which gradients are asked for.
    """
    reasons = (*map(_no_place, taken), _one_place(taken))
    for reason in reasons:
        if reason is not None:
            raise UnsupportedError.here(f"out= {reason}")


@dataclass(frozen=True)
class _Memory:
    """Where a tensor lies, for NumPy to compare; nothing is read there."""

    __array_interface__: dict[str, Any]


_WORK = 1 << 16
"""Steps after which two tensors count as apart."""


def _one_place(taken: Sequence[Any]) -> str | None:
    """Why two tensors cannot both take results: they have elements at one place."""
    for one, other in combinations(map(_memory, taken) if len(taken) > 1 else (), 2):
        try:
            # NumPy's annotations know of no limit.
            shared = cast(Any, np).shares_memory(one, other, max_work=_WORK)
        except np.exceptions.TooHardError:
            shared = False
        if shared:
            return (
                "has two tensors that share memory, of which one result would be "
                "written over the other; give tensors of their own"
            )
    return None


def _memory(target: Any) -> NDArray[Any]:
    if isinstance(target, np.ndarray):
        return cast("NDArray[Any]", target)
    size = target.element_size()
    interface = {
        "version": 3,
        "data": (target.data_ptr(), False),
        "shape": tuple(target.shape),
        "strides": tuple(s * size for s in target.stride()),
        "typestr": f"|V{size}",
    }
    return np.asarray(_Memory(interface))


def _no_place(target: Any) -> str | None:
    """Why nothing can be written there; None if it can."""
    if isinstance(target, np.ndarray):
        if not target.flags.writeable:
            return "is a NumPy array that is read-only; give a copy of it"
        return None
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(target, torch.Tensor):
        return (
            f"has {_described(target)}; expected tensors for the results, in the "
            "places where the function returns them"
        )
    reason = memory_refusal(target, "has a tensor that", "out")
    if reason is not None:
        return reason
    if target.is_neg():
        return "has a tensor that is to be negated when it is read; give a plain one"
    if target.requires_grad and torch.is_grad_enabled():
        return (
            "has a tensor that requires grad, but kernels have no gradients yet; give "
            "out.detach(), or call the kernel under torch.no_grad()"
        )
    repeated = any(
        n > 1 and not s for n, s in zip(target.shape, target.stride(), strict=True)
    )
    if repeated:
        return (
            "has a tensor with several elements at one place in memory, as expand "
            "makes it; give out.clone()"
        )
    return None


def copied(found: Sequence[Any], taken: Sequence[Any], out: Any) -> Any:
    """`out`, with the results in its tensors.

    Raises:
        ShapeError: Their shapes do not fit.
        DTypeError: Their dtypes do not.
    """
    shapes = [[tuple(t.shape) for t in ts] for ts in (found, taken)]
    if shapes[0] != shapes[1]:
        raise ShapeError.here(f"out has the shapes {shapes[1]}, expected {shapes[0]}")
    dtypes = [[dtype_of(t.dtype) for t in ts] for ts in (found, taken)]
    if dtypes[0] != dtypes[1]:
        raise DTypeError.here(
            f"out has the dtypes {[str(t.dtype) for t in taken]}, expected "
            f"{[str(t.dtype) for t in found]}"
        )
    for result, target in zip(found, taken, strict=True):
        if is_torch(target):
            target.copy_(as_torch(result))
        else:
            target[...] = to_numpy(result)
    return out


def has_pairs(tensor: Any) -> bool:
    """Whether it is one of PyTorch's complex tensors, with memory of the usual kind."""
    found = getattr(getattr(tensor, "dtype", None), "is_complex", False)
    return found is True and str(tensor.layout) == "torch.strided"


def is_conjugated(tensor: Any) -> bool:
    """Whether a complex tensor is conjugated when it is read: its parts are a copy."""
    return has_pairs(tensor) and tensor.is_conj()


def to_pairs(tensor: Any) -> Any:
    """The parts of a complex tensor, in its memory; others as they are."""
    if not has_pairs(tensor):
        return tensor
    import torch

    return torch.view_as_real(tensor.resolve_conj())


def to_complex(pairs: Any) -> Any:
    """The complex tensor with these parts, in their memory if that is possible."""
    import torch

    *others, last = pairs.stride()
    fits = last == 1 and not any(n % 2 for n in (*others, pairs.storage_offset()))
    return torch.view_as_complex(
        pairs if fits else pairs.clone(memory_format=torch.contiguous_format)
    )


def to_numpy(value: Any) -> Any:
    """An array on the same memory; what NumPy has not is as `ml_dtypes` has it."""
    if not is_torch(value):
        return value
    value = without_lazy_bits(value.detach())
    dtype = dtype_of(value.dtype)
    if dtype is None or dtype.name not in _AS_PATTERNS:
        return value.numpy()
    import torch

    bits = value.view(getattr(torch, _AS_PATTERNS[dtype.name])).numpy()
    return bits.view(numpy_dtype(dtype))


def to_torch(array: Any) -> Any:
    """A PyTorch tensor on the same memory."""
    import torch

    array = np.ascontiguousarray(array).reshape(array.shape)
    dtype = dtype_of(array.dtype)
    if dtype is None or dtype.name not in _AS_PATTERNS:
        return torch.from_numpy(array)
    bits = torch.from_numpy(array.view(_AS_PATTERNS[dtype.name]))
    return bits.view(getattr(torch, dtype.long_name))


_AS_PATTERNS = {"bf16": "int16", "f8e4m3": "uint8", "f8e5m2": "uint8"}
"""As what floats that NumPy has not go between it and PyTorch."""
