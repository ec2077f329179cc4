"""What a trace records: values, constants, and one step per operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mirage_dsl.core.errors import SourceLocation
from mirage_dsl.core.types import DType
from mirage_dsl.frontend.dims import Atom, Atoms, Extent, product
from mirage_dsl.ops.definition import Operator

Axes = tuple[Atoms, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """What one step computes, or an input: dims and dtype, without axis order."""

    dims: Atoms
    dtype: DType


@dataclass(frozen=True)
class Number:
    """A constant operand: `value` times powers of extents."""

    value: Fraction | float
    powers: tuple[tuple[Atom, int], ...] = ()


@dataclass(frozen=True)
class Handle:
    """A value as the user sees it: with axes.

    An axis may hold atoms that the value has not: the value is the same all along
    them, as after `expand`.
    """

    value: Value
    axes: Axes

    @property
    def shape(self) -> tuple[Extent, ...]:
        """Extents of the axes."""
        return tuple(product(axis) for axis in self.axes)


@dataclass(frozen=True)
class Over:
    """Detail of a reduction or contraction."""

    atoms: Atoms


@dataclass(frozen=True)
class Renaming:
    """Detail of `rename`: old and new atoms."""

    pairs: tuple[tuple[Atom, Atom], ...]


@dataclass(frozen=True)
class Cut:
    """Detail of `slice`: elements of the axis `source` become the axis `target`."""

    source: Atoms
    start: int
    target: Atoms


@dataclass(frozen=True)
class Join:
    """Detail of `concat`: one axis per operand, and the axis of the result."""

    parts: tuple[Atoms, ...]
    target: Atoms


@dataclass(frozen=True)
class Inserted:
    """Detail of `insert`: the new axis, of extent 1."""

    target: Atoms


@dataclass(frozen=True)
class Casting:
    """Detail of `cast`."""

    dtype: DType


Detail = Over | Renaming | Cut | Inserted | Join | Casting | None


@dataclass(frozen=True)
class Step:
    """One operator."""

    result: Value
    op: Operator
    operands: tuple[Value | Number, ...]
    detail: Detail
    location: SourceLocation | None

    @property
    def results(self) -> tuple[Value, ...]:
        """What the step computes."""
        return (self.result,)


@dataclass(frozen=True)
class BlockLoad:
    """An input of a hand-written block: axes that a grid dim or the loop splits."""

    result: Value
    source: Value
    grid: tuple[Atoms, ...]
    loop: Atoms | None


@dataclass(frozen=True)
class BlockAccumulator:
    """A sum or maximum over the iterations of a hand-written block."""

    result: Value
    operand: Value
    kind: str


@dataclass(frozen=True)
class BlockStore:
    """An output of a hand-written block, with the axes of the tensor it writes.

    `partial` maps a dim over blocks to the axis that the grid splits and the operand
    lacks.
    """

    result: Value
    operand: Value
    axes: Axes
    partial: tuple[tuple[Atom, Atoms], ...]


BlockItem = Step | BlockLoad | BlockAccumulator | BlockStore


@dataclass(frozen=True)
class BlockStep:
    """A hand-written block: its grid and loop as axes with numbers of parts."""

    grid: tuple[tuple[tuple[Atoms, ...], int], ...]
    loop: tuple[Atoms, int] | None
    items: tuple[BlockItem, ...]
    num_warps: int
    location: SourceLocation | None

    @property
    def results(self) -> tuple[Value, ...]:
        """What the block writes."""
        return tuple(i.result for i in self.items if isinstance(i, BlockStore))

    @property
    def operands(self) -> tuple[Value, ...]:
        """What the block reads."""
        return tuple(i.source for i in self.items if isinstance(i, BlockLoad))


def extent_text(extent: Extent) -> str:
    """An extent for a message."""
    return "?" if extent is None else str(extent)


def shape_of(shape: Sequence[Extent]) -> str:
    """A shape for a message."""
    return f"({', '.join(map(extent_text, shape))}{',' if len(shape) == 1 else ''})"


def shape_text(x: Handle) -> str:
    """Dtype and shape of a value for a message: `f16[16, 4096]`."""
    return f"{x.value.dtype}[{', '.join(map(extent_text, x.shape))}]"
