"""What is known of an argument before tracing: dtype, shape, strides, names of dims."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Literal, SupportsIndex

import numpy as np

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    SourceLocation,
    TraceError,
    UnsupportedError,
)
from mirage_dsl.core.modes import NESTED
from mirage_dsl.core.types import (
    DType,
    TensorSpec,
    dtype_named,
    dtype_of,
    f32,
    is_name,
    packed,
)

Static = bool | int | float | str | None
"""Arguments that are constants of the program."""


@dataclass(frozen=True)
class Origin:
    """What a function is called with, and so what its traced tensors are like.

    Attributes:
        library: `torch`, also where specs are given; `numpy`; or none of both, for
            graphs that are built by hand.
        device: Of PyTorch's tensors: as text, with its number.
    """

    library: Literal["torch", "numpy", ""] = ""
    device: str = "cuda:0"

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
    return Origin("torch" if specs else "numpy")


def spec(
    shape: Sequence[int | str],
    dtype: DType | str = "float16",
    strides: Sequence[int] | None = None,
) -> TensorSpec:
    """A tensor argument without data, for `bind` and `trace`.

    Args:
        shape: Extent per axis; a name stands for a symbolic extent.
        dtype: `float16`, `bfloat16`, `float32`, `bool`, or `mirage.f16` and so on.
        strides: In elements; row-major unless given.
    """
    found = dtype_of(dtype)
    if found is None:
        raise DTypeError(
            f"unknown dtype {dtype}; expected float16, bfloat16, float32 or bool"
        )
    given: Any = shape
    listed = isinstance(given, Iterable) and not isinstance(given, str)
    extents: tuple[Any, ...] = tuple(given) if listed else ()  # pyright: ignore[reportUnknownArgumentType]
    fit = all(isinstance(e, SupportsIndex | str) for e in extents)
    if not listed or not fit or any(isinstance(e, bool) for e in extents):
        raise ShapeError(
            f"shape {shape!r}: expected a tuple of integers, and names for symbolic "
            "extents, such as (16, 4096) or ('m', 4096)"
        )
    extents = tuple(e if isinstance(e, str) else index(e) for e in extents)
    return TensorSpec(found, extents, None if strides is None else tuple(strides))


def is_tensor_like(value: object) -> bool:
    """A NumPy array, a PyTorch tensor, or anything with their shape and dtype.

    NumPy's scalars are numbers, as Python's are.  Nested tensors have no shape, and do
    not say so as Python expects.
    """
    return getattr(value, "is_nested", False) is True or (
        hasattr(value, "shape")
        and hasattr(value, "dtype")
        and not isinstance(value, builtins.int | builtins.float | np.generic)
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
            f"argument {name} is {long_name}; expected float16, bfloat16, float32 or "
            f"bool: {how}",
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
            f"argument {name} has the layout {layout}, expected one with strides; pass "
            f"{name}.to_dense()",
            location,
        )
    shape = tuple(int(extent) for extent in value.shape)
    if 0 in shape:
        raise ShapeError(
            f"argument {name} has the shape {shape}: empty tensors are not supported; "
            "skip the call",
            location,
        )
    return TensorSpec(dtype, shape, _strides(value, shape))


def _is_own_array(value: object) -> bool:
    """Whether it is an array of a class that may compute in another way."""
    kind = type(value)
    return issubclass(kind, np.ndarray) and kind not in (np.ndarray, np.memmap)


def _strides(value: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of a dense array with the same order of axes; None if it is row-major.

    Gaps between elements do not count: kernels take tensors of any strides.
    """
    if hasattr(value, "stride"):
        strides = tuple(int(s) for s in value.stride())
    elif getattr(value, "strides", None) is not None:
        strides = tuple(int(s) // int(value.itemsize) for s in value.strides)
    else:
        return None
    order = order_of(shape, strides)
    return None if order == tuple(range(len(shape))) else packed(shape, order)


def order_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Axes from the slowest to the fastest; first those that repeat the same memory."""
    units = [i for i, extent in enumerate(shape) if extent == 1]
    order = [i for i, extent in enumerate(shape) if extent != 1]
    order.sort(key=lambda i: (strides[i] != 0, -abs(strides[i]), i))
    if order == sorted(order):
        return tuple(range(len(shape)))
    return (*units, *order)


def static_argument(value: Any, name: str, location: SourceLocation | None) -> Static:
    """A constant argument.

    Raises:
        TraceError: It is neither a constant nor a tensor.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return float(value)
    raise TraceError(
        f"argument {name} is {_described(value)}; expected a tensor (PyTorch, NumPy or "
        "mirage.spec), a number, or tuples, lists and dicts of these",
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
