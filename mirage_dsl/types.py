"""Dtypes, named dims, spaces and tensor types.

A dim is a name; its extent stands once, in the graph.  So one μGraph serves all
sizes, and verification at other sizes is evaluation with other extents.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from functools import cached_property


@dataclass(frozen=True, eq=False)
class DType:
    """A floating-point storage format.

    It equals NumPy's and PyTorch's dtype of the same format, so that functions may ask
    for the dtype of a traced tensor as for that of any other.

    Attributes:
        name: Short name, as printed in `.mu` text: `f16`.
        long_name: NumPy's and PyTorch's name: `float16`.
        itemsize: Bytes per element.
        max: Largest finite value.
        epsilon: Distance from 1 to the next larger value.
    """

    name: str
    long_name: str
    itemsize: int
    max: float
    epsilon: float

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

    def __hash__(self) -> int:
        return hash(self.name)

    def __getitem__(self, dims: int | str | tuple[int | str, ...]) -> TensorSpec:
        """The annotation `mirage.f16["m", 4096]`."""
        return TensorSpec(self, dims if isinstance(dims, tuple) else (dims,))


f16 = DType("f16", "float16", 2, 65504.0, 2.0**-10)
bf16 = DType("bf16", "bfloat16", 2, 3.3895313892515355e38, 2.0**-7)
f32 = DType("f32", "float32", 4, 3.4028234663852886e38, 2.0**-23)
DTYPES: tuple[DType, ...] = (f16, bf16, f32)
_BY_NAME = {n: d for d in DTYPES for n in (d.name, d.long_name)}


def dtype_named(name: str) -> DType | None:
    """The dtype called `name` (`f16` or `float16`), or None."""
    return _BY_NAME.get(name)


def dtype_of(value: object) -> DType | None:
    """The dtype meant by one of ours, of NumPy, of PyTorch, or by a name."""
    if isinstance(value, DType):
        return value
    name = getattr(value, "__name__", None) or getattr(value, "name", None)
    return dtype_named(str(name or value).removeprefix("torch."))


def promote(*dtypes: DType) -> DType:
    """The dtype that holds all of `dtypes`: equal ones stay, a mixture is f32."""
    first, *rest = dtypes
    return first if all(d == first for d in rest) else f32


@dataclass(frozen=True)
class TensorSpec:
    """What a user states of a tensor: dtype and, per axis, an extent or a dim name.

    `strides` are in elements, None for row-major.
    """

    dtype: DType
    shape: tuple[int | str, ...]
    strides: tuple[int, ...] | None = None


def packed(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps, with axes from the slowest to the fastest in `order`."""
    step, found = 1, dict[int, int]()
    for axis in reversed(order):
        found[axis] = step
        step *= shape[axis]
    return tuple(found[axis] for axis in range(len(shape)))


class MemorySpace(Enum):
    """The memory that a value lives in."""

    DEVICE = "device"
    SHARED = "shared"
    REGISTER = "register"


@dataclass(frozen=True, order=True)
class Dim:
    """A named index of a tensor, or the piece of one that a block sees.

    `grid`: only the part of the block's coordinate; `loop`: only the part of one
    iteration; both: the iteration's part of the block's part.  At the kernel level
    both are False.  Written `k`, `k/grid`, `k/loop`, `k/grid/loop`.

    The name `k#` is the dim that runs over the blocks between which `k` was split:
    partial sums over `k` are stored along it, and a later kernel sums it.
    """

    name: str
    grid: bool = False
    loop: bool = False

    def __str__(self) -> str:
        return self.name + "/grid" * self.grid + "/loop" * self.loop

    @property
    def whole(self) -> Dim:
        """The unsplit dim of the same name."""
        return Dim(self.name)


Axis = tuple[Dim, ...]
"""Dims in row-major order whose product is one axis; `()` has extent 1."""


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

    def dim(self, name: str) -> Dim | None:
        """The dim called `name`, or None where the type has none."""
        return next((d for d in self.dims if d.name == name), None)

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same type with another element format."""
        return replace(self, dtype=dtype)

    def __str__(self) -> str:
        axes = ", ".join(axis_text(a) for a in self.axes)
        order = "" if self.layout is None else f" layout{self.layout}"
        return f"{self.dtype}[{axes}]{order}"


def axis_text(axis: Axis) -> str:
    """`1`, `k/loop` or `(h d)`."""
    if not axis:
        return "1"
    if len(axis) == 1:
        return str(axis[0])
    return f"({' '.join(map(str, axis))})"


def flat_type(dtype: DType, dims: tuple[Dim, ...], space: MemorySpace) -> TensorType:
    """A type with one dim per axis."""
    return TensorType(dtype, tuple((d,) for d in dims), space)


@dataclass(frozen=True)
class Scalar:
    """A constant operand: `value` times integer powers of extents.

    The mean over `k` multiplies by `Scalar(1, (("k", -1),))`, so it stays right at
    every size.  `value` is exact: a float is the dyadic fraction that it stores; only
    the infinities stay floats.  `extents` is sorted by name and has no zero power.
    """

    value: Fraction | float
    extents: tuple[tuple[str, int], ...] = ()

    def at(self, extents: Mapping[str, int]) -> float:
        """The number at the given extents."""
        number = self.value
        for name, power in self.extents:
            number *= Fraction(extents[name]) ** power
        return float(number)

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
_POWER = re.compile(r"(?P<sign>[*/])(?P<name>[^\W\d]\w*#*)(?:\^(?P<power>\d+))?")


def _number(digits: str, by: int, text: str) -> Fraction | float:
    if digits.lstrip("+-").isdecimal() and by:
        return Fraction(int(digits), by)
    try:
        value = float(digits)
        return value if digits.endswith("inf") else Fraction(value) / by
    except (ValueError, ArithmeticError):
        raise ValueError(f"not a constant: {text}") from None


def parse_scalar(text: str) -> Scalar:
    """The constant that prints as `text`: `3`, `0.5`, `1/3`, `-inf`, `2*k^2/m`.

    Raises:
        ValueError: `text` is not a constant.
    """
    number = _NUMBER.match(text)
    if number is None:
        raise ValueError(f"not a constant: {text}")
    result = Scalar(_number(number["value"], int(number["by"] or 1), text))
    at = number.end()
    while at < len(text):
        factor = _POWER.match(text, at)
        if factor is None:
            raise ValueError(f"not a constant: {text}")
        power = int(factor["power"] or 1) * (1 if factor["sign"] == "*" else -1)
        result = result.times(Scalar(Fraction(1), ((factor["name"], power),)))
        at = factor.end()
    return result


def scalar(value: float | Fraction) -> Scalar:
    """The constant `value`, without extents.

    Raises:
        ValueError: `value` is not a number.
    """
    if isinstance(value, float) and math.isinf(value):
        return Scalar(value)
    return Scalar(Fraction(value))
