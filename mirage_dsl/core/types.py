"""Dtypes, named dims, spaces and tensor types.

A dim is a name; its extent stands once, in the graph.  So one μGraph serves all
sizes, and verification at other sizes is evaluation with other extents.
"""

from __future__ import annotations

import math
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from functools import cached_property
from typing import final
from weakref import WeakValueDictionary

from mirage_dsl.core.errors import ShapeError


@dataclass(frozen=True, eq=False)
class DType:
    """A storage format of numbers, or of truth values.

    There is one object for each format, also when it was pickled or copied, so `is`
    tells two of ours apart.  It equals NumPy's and PyTorch's dtype of the same format,
    so that functions may ask for the dtype of a traced tensor as for that of any other.

    Attributes:
        name: Short name, as printed in `.mu` text: `f16`.
        long_name: NumPy's and PyTorch's name: `float16`.
        itemsize: Bytes per element.
        max: Largest finite value.
        epsilon: Distance from 1 to the next larger value; of integers and truth values
            1, since rounding may turn one over.
        min: Smallest finite value.
        smallest: Smallest positive value of full precision; of integers 1.
        is_integer: Whether it holds integers, whose arithmetic wraps around.
    """

    name: str
    long_name: str
    itemsize: int
    max: float
    epsilon: float
    min: float
    smallest: float = 1.0
    is_integer: bool = False

    @cached_property
    def is_float(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.max != 1.0 and not self.is_integer

    @cached_property
    def only_stores(self) -> bool:
        """Whether it holds floats of 8 bits, in which nothing computes.

        They are cast to other floats, which all hold them, and made by conversions.
        """
        return self.is_float and self.itemsize == 1

    @cached_property
    def is_coarse(self) -> bool:
        """Whether it holds integers, or floats of 8 bits."""
        return self.is_integer or self.only_stores

    def is_within(self, other: DType) -> bool:
        """Whether another format of floats is as fine and reaches as far."""
        return self.epsilon >= other.epsilon and self.max <= other.max

    def holds(self, value: Fraction | float) -> bool:
        """Whether a number is in its range, and an integer where it holds these."""
        inside = self.min <= value <= self.max
        return inside and (not self.is_integer or value == int(value))

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"mirage.{self.name}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.name == other.name
        if "dtype" in type(other).__name__.lower() or isinstance(other, type):
            found = dtype_of(other)
            return found is not None and self.name == found.name
        return NotImplemented

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Callable[[str], DType | None], tuple[str]]:
        return dtype_named, (self.name,)

    def __getitem__(self, dims: int | str | tuple[int | str, ...]) -> TensorSpec:
        """The annotation `mirage.f16["m", 4096]`."""
        return TensorSpec(self, dims if isinstance(dims, tuple) else (dims,))


def torch_dtype(dtype: DType) -> str:
    """PyTorch's name of a format, as an expression: `torch.float16`."""
    return f"torch.{dtype.long_name}"


def _float(
    name: str, long_name: str, size: int, most: float, bits: int, low: int
) -> DType:
    return DType(name, long_name, size, most, 2.0**-bits, -most, 2.0**low)


def _integer(name: str, long_name: str, least: int, most: int) -> DType:
    size = (most - least + 1).bit_length() // 8
    return DType(name, long_name, size, most, 1.0, least, is_integer=True)


f8e4m3 = _float("f8e4m3", "float8_e4m3fn", 1, 448.0, 3, -6)
"""It has no infinities: what is beyond its range becomes its largest number."""
f8e5m2 = _float("f8e5m2", "float8_e5m2", 1, 57344.0, 2, -14)
f16 = _float("f16", "float16", 2, 65504.0, 10, -14)
bf16 = _float("bf16", "bfloat16", 2, 3.3895313892515355e38, 7, -126)
f32 = _float("f32", "float32", 4, 3.4028234663852886e38, 23, -126)
f64 = _float("f64", "float64", 8, sys.float_info.max, 52, -1022)
"""Of library kernels and the reference; blocks compute in f32."""
boolean = DType("bool", "bool", 1, 1.0, 1.0, 0.0)
"""Truth values: 1 where something holds, else 0."""
i8 = _integer("i8", "int8", -(2**7), 2**7 - 1)
u8 = _integer("u8", "uint8", 0, 2**8 - 1)
i16 = _integer("i16", "int16", -(2**15), 2**15 - 1)
i32 = _integer("i32", "int32", -(2**31), 2**31 - 1)
i64 = _integer("i64", "int64", -(2**63), 2**63 - 1)
INTEGERS: tuple[DType, ...] = (i8, u8, i16, i32, i64)
NARROW_FLOATS: tuple[DType, ...] = (f8e4m3, f8e5m2)
DTYPES: tuple[DType, ...] = (f16, bf16, f32, f64, *NARROW_FLOATS, boolean, *INTEGERS)
DTYPE_NAMES = ", ".join(d.long_name for d in DTYPES)
"""For messages."""
_BY_NAME = {n: d for d in DTYPES for n in (d.name, d.long_name)}
_BY_NAME["float8_e4m3"] = f8e4m3
"""Mirage's name of it."""


def dtype_named(name: str) -> DType | None:
    """The dtype called `name` (`f16` or `float16`), or None."""
    return _BY_NAME.get(name)


def dtype_of(value: object) -> DType | None:
    """The dtype meant by one of ours, of NumPy, PyTorch or Python, or by a name."""
    if isinstance(value, DType):
        return value
    if value is int or value is float:
        return i64 if value is int else f64
    name = getattr(value, "__name__", None) or getattr(value, "name", None)
    return dtype_named(str(name or value).removeprefix("torch."))


def promote(*dtypes: DType) -> DType:
    """The dtype that holds all of `dtypes`, as PyTorch has it; equal ones stay.

    Truth values go with any numbers, and integers with any floats.  Of two integer
    formats it is the larger one, of i8 and u8 i16; of two floats f32, or f64.  Floats
    of 8 bits go with any others, two different ones with f16.
    """
    numbers = [d for d in dtypes if d is not boolean] or [boolean]
    numbers = [d for d in numbers if not d.is_integer] or numbers
    first, *rest = [d for d in numbers if not d.only_stores] or numbers
    if all(d is first for d in rest):
        return first
    if first.only_stores:
        return f16
    if first.is_integer:
        largest = max((first, *rest), key=lambda d: d.itemsize)
        return i16 if largest.itemsize == 1 else largest
    return f64 if f64 in (first, *rest) else f32


@dataclass(frozen=True)
class TensorSpec:
    """What a user states of a tensor: dtype and, per axis, an extent or a dim name.

    `strides` are in elements, None for row-major.

    Raises:
        ShapeError: An extent below 1, or more bytes than there can be.
    """

    dtype: DType
    shape: tuple[int | str, ...]
    strides: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        size = self.dtype.itemsize
        for extent in self.shape:
            if isinstance(extent, str):
                continue
            size *= extent
            if extent < 1 or size > MAX_EXTENT:
                shown = ", ".join(
                    e if isinstance(e, str) else shown_integer(e) for e in self.shape
                )
                what = "extents must be 1 or more"
                if extent >= 1:
                    what = f"a tensor has at most {MAX_EXTENT} (2**63 - 1) bytes"
                raise ShapeError(f"shape ({shown}): {what}")


def packed(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps, with axes from the slowest to the fastest in `order`."""
    step, found = 1, dict[int, int]()
    for axis in reversed(order):
        found[axis] = step
        step *= shape[axis]
    return tuple(found[axis] for axis in range(len(shape)))


class MemorySpace(Enum):
    """The memory that a value lives in; an index value lives in none."""

    DEVICE = "device"
    SHARED = "shared"
    REGISTER = "register"
    NOWHERE = "no"


_DIMS: WeakValueDictionary[tuple[str, bool, bool], Dim] = WeakValueDictionary()
_NEW_DIM = threading.Lock()


@final
@dataclass(frozen=True, eq=False, init=False)
class Dim:
    """A named index of a tensor, or the piece of one that a block sees.

    `grid`: only the part of the block's coordinate; `loop`: only the part of one
    iteration; both: the iteration's part of the block's part.  At the kernel level
    both are False.  Written `k`, `k/grid`, `k/loop`, `k/grid/loop`.

    The name `k#` is the dim that runs over the blocks between which `k` was split:
    partial sums over `k` are stored along it, and a later kernel sums it.

    Equal dims are one object, so that tables of them compare no names.
    """

    name: str
    grid: bool = False
    loop: bool = False

    def __new__(cls, name: str, grid: bool = False, loop: bool = False) -> Dim:
        key = name, grid, loop
        found = _DIMS.get(key)
        if found is not None:
            return found
        with _NEW_DIM:
            found = _DIMS.get(key)
            if found is None:
                found = _DIMS[key] = object.__new__(cls)
                found.__dict__.update(name=name, grid=grid, loop=loop)
            return found

    def __reduce__(self) -> tuple[type[Dim], tuple[str, bool, bool]]:
        return Dim, (self.name, self.grid, self.loop)

    def __lt__(self, other: Dim) -> bool:
        mine = self.name, self.grid, self.loop
        return mine < (other.name, other.grid, other.loop)

    def __str__(self) -> str:
        return self.name + "/grid" * self.grid + "/loop" * self.loop

    @property
    def whole(self) -> Dim:
        """The unsplit dim of the same name."""
        return Dim(self.name)


Axis = tuple[Dim, ...]
"""Dims in row-major order whose product is one axis; `()` has extent 1."""


NAME = r"[^\W\d]\w*#*"
"""What a name of a value or a dim matches."""
NUMBERS = frozenset({"inf", "nan"})
"""Not usable as names: they are numbers."""
_NAME = re.compile(NAME)


def is_name(text: str) -> bool:
    """Whether a value or a dim may be called `text`."""
    return _NAME.fullmatch(text) is not None and text not in NUMBERS


MAX_EXTENT = 2**63 - 1
"""The largest extent, and the most bytes that a tensor has."""
LARGEST_INDEX = 2**30
"""The most positions along an axis: blocks count in 32 bits, lanes beyond it too."""


def shown_integer(number: int) -> str:
    """The number, or how long it is where nobody would read it."""
    bits = number.bit_length()
    return str(number) if bits <= 128 else f"a number of {bits} bits"


@dataclass(frozen=True)
class TensorType:
    """Dtype, axes and space of a value.

    Attributes:
        dtype: Element format.
        axes: Each axis is a row-major product of dims, `()` where the extent is 1.
        space: Memory of the value.
        layout: Axes from the slowest to the fastest in memory; None is row-major.
            Only device tensors have one.
    """

    dtype: DType
    axes: tuple[Axis, ...]
    space: MemorySpace = MemorySpace.DEVICE
    layout: tuple[int, ...] | None = None

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """All dims, in axis order."""
        return tuple(d for axis in self.axes for d in axis)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all dims, in axis order."""
        return tuple(d.name for d in self.dims)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Axes from the slowest to the fastest in memory."""
        return self.layout or tuple(range(len(self.axes)))

    @property
    def is_flat(self) -> bool:
        """Whether each axis is one dim."""
        return all(len(axis) == 1 for axis in self.axes)

    @property
    def in_memory(self) -> TensorType:
        """The type of a tensor between kernels: one dim for each axis."""
        return flat_type(self.dtype, self.dims, MemorySpace.DEVICE)

    def dim(self, name: str) -> Dim | None:
        """The dim called `name`, or None where the type has none."""
        return next((d for d in self.dims if d.name == name), None)

    def shape_at(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        """The extents of all axes, of those of the dims."""
        return tuple(math.prod(extents[d.name] for d in axis) for axis in self.axes)

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same type with another element format."""
        return replace(self, dtype=dtype)

    def __str__(self) -> str:
        axes = ", ".join(axis_text(a) for a in self.axes)
        order = "" if self.layout is None else f" layout{self.layout}"
        return f"{self.dtype}[{axes}]{order}"


Types = Mapping[str, TensorType]
"""Of values, by their names."""


def axis_text(axis: Axis) -> str:
    """`1`, `k/loop` or `(h d)`."""
    if not axis:
        return "1"
    if len(axis) == 1:
        return str(axis[0])
    return f"({' '.join(map(str, axis))})"


@dataclass(frozen=True)
class AxisNames:
    """The axes of a tensor in an order, each by the names of its dims.

    An attribute of operators that know axes by their places, as PyTorch's do.
    """

    axes: tuple[tuple[str, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The dims of all axes, in order."""
        return tuple(name for axis in self.axes for name in axis)

    def each(self, rename: Callable[[str], str]) -> AxisNames:
        """The same axes with every name changed."""
        return AxisNames(tuple(tuple(map(rename, axis)) for axis in self.axes))

    def __str__(self) -> str:
        """`n, c, (h0 h1), 1`, as axes are written in types."""
        return ", ".join(axis_text(tuple(map(Dim, axis))) for axis in self.axes)


@dataclass(frozen=True)
class Integers:
    """Several integers that are one attribute, as the strides of a window."""

    numbers: tuple[int, ...]

    def __str__(self) -> str:
        """`2, 2`."""
        return ", ".join(map(str, self.numbers))


def flat_type(dtype: DType, dims: tuple[Dim, ...], space: MemorySpace) -> TensorType:
    """A type with one dim per axis."""
    return TensorType(dtype, tuple((d,) for d in dims), space)


_OVERFLOW = Fraction(2) ** 128 - Fraction(2) ** 103
_UNDERFLOW = Fraction(1, 2**150)
"""What is rounded to infinity, and to 0, in f32."""
_MODERATE = Fraction(2) ** 126


@dataclass(frozen=True, eq=False)
class Scalar:
    """A constant operand: `value` times integer powers of extents.

    The mean over `k` multiplies by `Scalar(1, (("k", -1),))`, so it stays right at
    every size.  `value` is exact: a float is the dyadic fraction that it stores; only
    the infinities and -0.0, which is not the constant 0, stay floats.  `extents` is
    sorted by name and has no zero power.
    """

    value: Fraction | float
    extents: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.value, float) and not _stays_float(self.value):
            object.__setattr__(self, "value", Fraction(self.value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scalar):
            return NotImplemented
        # -0.0 is the only zero that is a float.
        zeros = self.value or type(self.value) is type(other.value)
        return bool(zeros) and (self.value, self.extents) == (
            other.value,
            other.extents,
        )

    def __hash__(self) -> int:
        return hash((self.value, self.extents))

    def at(self, extents: Mapping[str, int]) -> float:
        """The number at the given extents, as arithmetic takes it.

        That is in f32: a number beyond its range is infinite, and one that is nearer to
        0 than any of its numbers is 0 with its sign.
        """
        found = self.known_at(extents)
        if found is None:
            raise KeyError(self.extents)
        return found

    def known_at(self, extents: Mapping[str, int | None]) -> float | None:
        """The number as `at` has it, or None where an extent in it is not known."""
        number = self.exact_at(extents)
        if not isinstance(number, Fraction):
            return number
        if abs(number) >= _OVERFLOW:
            return math.inf if number > 0 else -math.inf
        if abs(number) > _UNDERFLOW:
            return float(number)
        return -0.0 if number < 0 else 0.0

    def exact_at(self, extents: Mapping[str, int | None]) -> Fraction | float | None:
        """The number itself, or None where an extent in it is not known."""
        number = self.value
        for name, power in self.extents:
            extent = extents.get(name)
            if extent is None:
                return None
            if isinstance(number, Fraction):
                number *= Fraction(extent) ** power
        return number

    @property
    def inverse(self) -> Scalar:
        """One over it, which is a fraction other than 0."""
        powers = tuple((name, -power) for name, power in self.extents)
        return Scalar(1 / self.value, powers)

    @property
    def is_moderate(self) -> bool:
        """Whether it and its inverse are in the range of f32, and precise there."""
        return 1 / _MODERATE <= abs(self.value) <= _MODERATE

    def rename(self, names: Mapping[str, str]) -> Scalar:
        """The same constant with dims renamed; names not listed stay."""
        renamed = sorted((names.get(n, n), p) for n, p in self.extents)
        return Scalar(self.value, tuple(renamed))

    def times(self, other: Scalar) -> Scalar:
        """The product."""
        powers = dict(self.extents)
        for name, power in other.extents:
            powers[name] = powers.get(name, 0) + power
        kept = tuple(sorted((n, p) for n, p in powers.items() if p))
        return Scalar(self.value * other.value, kept)

    def __str__(self) -> str:
        text = _number_text(self.value)
        for name, power in self.extents:
            text += "*" if power > 0 else "/"
            text += name if abs(power) == 1 else f"{name}^{abs(power)}"
        return text


def number(value: float) -> str:
    """A number as an atomic Python expression that reads back exactly."""
    if value in (math.inf, -math.inf):
        return f'float("{value}")'
    return f"({value!r})" if value < 0 or str(value)[0] == "-" else repr(value)


def _stays_float(value: float) -> bool:
    """Whether no fraction is that number: an infinity, or a zero below zero."""
    return math.isinf(value) or (value == 0 and math.copysign(1, value) < 0)


def _number_text(value: Fraction | float) -> str:
    """Decimal where that is exact, else a fraction."""
    if isinstance(value, float):
        return repr(value)
    if value.denominator == 1 and abs(value) < 2**53:
        return str(value)
    try:
        number = float(value)
    except OverflowError:
        return str(value)
    return repr(number) if Fraction(number) == value else str(value)


_NUMBER = re.compile(
    r"(?P<value>[+-]?(?:inf|[\d.]+(?:[eE][+-]?\d+)?))(?:/(?P<by>\d+))?"
)
_POWER = re.compile(rf"(?P<sign>[*/])(?P<name>{NAME})(?:\^(?P<power>\d+))?")
_LONGEST = 1000
"""Digits that a number of a constant may have."""
_BITS = 1100
"""Bits that numerator and denominator of a constant may have: those of any float."""
_MAX_POWER = 64
"""The highest power of an extent in a constant."""


def _number(digits: str, by: str | None) -> Fraction | float:
    """The number that is written so.

    Raises:
        ValueError: It is none.
    """
    if digits.endswith("inf"):
        return float(digits)
    exact = int(digits) if digits.lstrip("+-").isdecimal() else float(digits)
    if isinstance(exact, float) and _stays_float(exact) and not exact:
        return exact / int(by or 1)
    try:
        return Fraction(exact) / int(by or 1)
    except ArithmeticError:
        raise ValueError from None


def bounded(number: Scalar) -> Scalar:
    """The constant itself.

    Raises:
        ValueError: No float comes near its value, or its powers are high.
    """
    high = [f"{n}^{abs(p)}" for n, p in number.extents if abs(p) > _MAX_POWER]
    if high:
        raise ValueError(
            f"a constant with {high[0]}; expected powers up to {_MAX_POWER}"
        )
    value = number.value
    if isinstance(value, Fraction):
        size = max(value.numerator.bit_length(), value.denominator.bit_length())
        if size > _BITS or abs(value) > sys.float_info.max:
            raise ValueError(
                "a constant that is beyond floats; expected at most "
                f"{sys.float_info.max}, and numerators and denominators of up to "
                f"{_BITS} bits"
            )
    return number


def parse_scalar(text: str) -> Scalar:
    """The constant that prints as `text`: `3`, `0.5`, `1/3`, `-inf`, `2*k^2/m`.

    Raises:
        ValueError: `text` is not a constant, or one out of range.
    """
    shown = text if len(text) < 80 else f"{text[:77]}..."
    wrong = ValueError(
        f"{shown} is not a constant; constants are like 3, 0.5, 1/3, 1/k"
    )
    number = _NUMBER.match(text)
    if number is None or number.end() > _LONGEST:
        raise wrong
    try:
        value = _number(number["value"], number["by"])
    except ValueError:
        raise wrong from None
    powers: Counter[str] = Counter()
    at = number.end()
    while at < len(text):
        factor = _POWER.match(text, at)
        if factor is None or len(factor["power"] or "") > _LONGEST:
            raise wrong
        power = int(factor["power"] or 1)
        powers[factor["name"]] += power if factor["sign"] == "*" else -power
        at = factor.end()
    return bounded(Scalar(value, tuple(sorted((n, p) for n, p in powers.items() if p))))


def extent_scalar(*dims: str) -> Scalar:
    """The product of the extents of some dims, as a constant."""
    return Scalar(Fraction(1), tuple((dim, 1) for dim in sorted(dims)))


def scalar(value: float | Fraction) -> Scalar:
    """The constant `value`, without extents.

    Raises:
        ValueError: `value` is not a number.
    """
    if isinstance(value, float) and _stays_float(value):
        return Scalar(value)
    return Scalar(Fraction(value))
