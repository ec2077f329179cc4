"""What an operator is: one record with all its facets.

The table in `ops.table` has one `Operator` per row.  The printer, parser, tracer,
search, verifier and backends read these records and name no operator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar, cast

from numpy.typing import NDArray

from mirage_dsl.core.types import DType, Scalar

Array = NDArray[Any]
V = TypeVar("V")


class Kind(Enum):
    """How an operator treats dims; it decides the type rule and the evaluation.

    ELEMENTWISE: operands broadcast by name; the result has the union of their dims.
    REDUCTION: one operand; attribute `over` names the dims that vanish.
    SCAN: one operand; each element becomes what it and all before it along the one
        axis of attribute `along` make together.
    CONTRACTION: two operands; the sum of their product over the shared dims named by
        `over`; the other shared dims are batch dims.
    VIEW: one operand; the same elements under another type, without arithmetic.
    GATHER: the elements of the first operand whose indices along the dim `dim` are what
        the second one, of integers, holds.  The result has the dims of the second
        operand, and those of the first but `dim`; shared ones go by name.  Negative
        indices count from the end.
    LIBRARY: what only PyTorch computes: no block can contain it.  Attributes `of` and
        `by` name the dims of the axes of the first and of the second operand as PyTorch
        is to see them, `gives` those of the result.  With any number of operands `of`
        has the axes of all of them, and `ranks` says how many each one has.
    CONCAT: operands joined into the new dim `to`; attribute `dims` names the dim of
        each operand that is joined; all other dims are shared.
    """

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    SCAN = "scan"
    CONTRACTION = "contraction"
    VIEW = "view"
    GATHER = "gather"
    CONCAT = "concat"
    LIBRARY = "library"


class AttributeKind(Enum):
    """What the value of an attribute is, and so how it is written.

    DIMS: a tuple of names of dims that an operand has; NEW_DIMS: of dims that the
    result gets.  DIM, NEW_DIM: one name.  AXES: axes, by the dims of operands;
    NEW_AXES: those of the result.  INTEGER; INTEGERS: several; DTYPE: a dtype's short
    name.
    """

    DIMS = "dims"
    NEW_DIMS = "new dims"
    DIM = "dim"
    NEW_DIM = "new dim"
    AXES = "axes"
    NEW_AXES = "new axes"
    INTEGER = "integer"
    INTEGERS = "integers"
    DTYPE = "dtype"


class Term(Enum):
    """The abstract expression of an operator (paper, section 4.3).

    ADD to DIV: field operations on the operands' abstract expressions.
    SUM: times the formal constant of the dims summed; CONTRACT: product, then SUM.
    FUNCTION: an uninterpreted function of the operands, keyed by name and attributes.
    IDENTITY: the operand itself.
    """

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    SUM = "sum"
    CONTRACT = "contract"
    FUNCTION = "function"
    IDENTITY = "identity"


class Truth(Enum):
    """When the result of an operator is truth values, 1 or 0.

    COMPARES: always.  KEEPS: where all operands are truth values, constants 1 and 0
    among them.
    """

    COMPARES = "compares"
    KEEPS = "keeps"


class Formats(Enum):
    """In which formats an operator computes.

    FLOATS: in floats.  INTEGERS: in integers.  ANY: in either.  Integers are all of one
    format, which the result has too, and wrap around.  Truth values count as floats.
    """

    FLOATS = "floats"
    INTEGERS = "integers"
    ANY = "any"


Axes = tuple[int, ...]
"""Positions of axes."""


class Algebra(Protocol[V]):
    """The arithmetic in which field semantics and expansions are written.

    Values broadcast against each other.
    """

    def constant(self, value: Scalar) -> V: ...
    def add(self, a: V, b: V) -> V: ...
    def sub(self, a: V, b: V) -> V: ...
    def mul(self, a: V, b: V) -> V: ...
    def div(self, a: V, b: V) -> V: ...
    def exp(self, a: V) -> V: ...
    def sqrt(self, a: V) -> V: ...
    def maximum(self, a: V, b: V) -> V: ...


class ElementAlgebra(Algebra[V], Protocol[V]):
    """What is done element by element beyond arithmetic.

    `oracle` is a random function of its operands, keyed by `name`: sound for any
    function, complete only up to rewriting inside it.  `indicator` is an oracle with
    values 0 and 1; `choose` takes `a` where such a condition is 1.
    """

    def oracle(self, name: str, *operands: V) -> V: ...
    def indicator(self, name: str, *operands: V) -> V: ...
    def choose(self, condition: V, a: V, b: V) -> V: ...


class FieldAlgebra(ElementAlgebra[V], Protocol[V]):
    """What residues can do with whole arrays; `verify` implements it.

    `fold` joins the elements along axes, which vanish, by an associative and
    commutative function, and `scan` each one with all before it along an axis.
    `matmul` multiplies (batch, m, k) by (batch, k, n).  `shift` is a fresh random value
    at each call, with the axes dropped.
    """

    def sum(self, a: V, axes: Axes) -> V: ...
    def max(self, a: V, axes: Axes) -> V: ...
    def fold(self, join: Callable[[V, V], V], a: V, axes: Axes) -> V: ...
    def scan(self, join: Callable[[V, V], V], a: V, axis: int) -> V: ...
    def matmul(self, a: V, b: V) -> V: ...
    def shift(self, a: V, axes: Axes) -> V: ...
    def concat(self, axis: int, *operands: V) -> V: ...


class UnaryField(Protocol):
    """Field semantics of one operand."""

    def __call__(self, f: ElementAlgebra[V], a: V, /) -> V: ...


class BinaryField(Protocol):
    """Field semantics of two operands."""

    def __call__(self, f: ElementAlgebra[V], a: V, b: V, /) -> V: ...


class TernaryField(Protocol):
    """Field semantics of three operands."""

    def __call__(self, f: ElementAlgebra[V], a: V, b: V, c: V, /) -> V: ...


class ReductionField(Protocol):
    """Field semantics of a reduction over axes, which vanish."""

    def __call__(self, f: FieldAlgebra[V], a: V, axes: Axes, /) -> V: ...


class ScanField(Protocol):
    """Field semantics of a scan along an axis."""

    def __call__(self, f: FieldAlgebra[V], a: V, axis: int, /) -> V: ...


class ContractionField(Protocol):
    """Field semantics of a contraction of (batch, m, k) and (batch, k, n)."""

    def __call__(self, f: FieldAlgebra[V], a: V, b: V, /) -> V: ...


class ConcatField(Protocol):
    """Field semantics of operands joined along an axis."""

    def __call__(self, f: FieldAlgebra[V], axis: int, /, *operands: V) -> V: ...


Field = (
    UnaryField
    | BinaryField
    | TernaryField
    | ReductionField
    | ScanField
    | ContractionField
    | ConcatField
)
"""Field semantics of an operator; its kind and arity say which."""

Shape = tuple[int, ...]
Numbers = Mapping[str, tuple[int, ...]]
"""The attributes of a library operator that are integers, by name."""

ShapeOf = Callable[[Sequence[Shape], Numbers], Shape]
WorkOf = Callable[[Sequence[Shape], Numbers, Shape], float]


@dataclass(frozen=True, eq=False)
class Operator:
    """One row of the operator table.

    Attributes:
        name: Its name in `.mu` text and in `mirage`'s functions.
        kind: How it treats dims.
        arity: Number of operands.
        numpy: Reference semantics on NumPy arrays.  Elementwise: broadcasting arrays.
            Reduction: `(array, axes)`, dropping the axes.  Scan: `(array, axis)`.
            Contraction: matrix product of (batch, m, k) and (batch, k, n).  View and
            concat: the identity and `(axis, *arrays)`; the evaluator moves the dims.
            Library: the arrays, and the attributes that are integers by name.
        field: The same over residues, first argument the algebra; called through `on`,
            `reduced`, `scanned`, `contracted` and `joined`.
        field_note: `exact`, or why the surrogate is safe.
        term: Its abstract expression.
        triton: Emission template; `{0}`, `{1}` are names of operands, `{axis}` an
            axis, `{dtype}` a Triton dtype.  Names only, never expressions.
        torch: PyTorch expression of a library kernel, in the same form; `{axes}` are
            several axes, and those of a library operator that are integers go by their
            names.  Operands of elementwise operators are aligned, and f32
            unless they have the result's format, in which PyTorch computes as if in
            f32 and rounds.
        flops: f32 operations per element of the result (of the operand, for a
            reduction; per product, for a contraction; as `work` tells, for a library
            operator), for the cost model.
        sign: Python's infix sign, or None.
        attributes: The attributes it requires, in the order of printing.
        truth: When its result is truth values; None for never.
        formats: The formats that it takes.
        gives: The format of its result, where that is not the operands'.
        chooses: Its first operand is a condition, in a format of its own.
        commutative: Operands may be swapped.
        moves_bits: By how many its second operand says, fewer than the format has.
        join: Of a reduction, scan or contraction: the associative and commutative
            operator on the results of two parts that gives that of both.
        neutral: Of a reduction: what an element that does not exist counts as.  It
            changes nothing that it is joined with.
        selects: Of a reduction: its result is one of the elements.
        in_steps: Of a reduction: reducing the results of parts is what `join` makes of
            them, so parts may be reduced first, in any order, and an accumulator of
            the row's name joins those of a loop.
        shift_of: Of a shift, by which exponents are kept in range: the reduction whose
            value it has.  That value cancels: no output may depend on it, so any other
            number would serve.  Its `join` with anything else is a shift too, and where
            its value is `neutral`, all being masked, it stands as a finite number.
        expansion: For a derived row: the same function by other rows, first argument
            an `Algebra`.  The search expands derived rows.
        gradient: `(algebra, operands, result, upstream)` to one gradient per operand,
            where known.
        shape: Of a library operator: the shape of the result, of those of the operands
            and the attributes that are integers.
        work: Of a library operator: how often `flops` operations are made, of the same
            and the shape of the result.
        on_matrix_units: Of a library operator: it multiplies there.
        part: Of a library operator: the end of `torch`, by which it takes one of the
            results of what stands before; rows that differ in it alone share a call.
        carried: Of a library operator: how many of the first axes of the first operand
            are those of the result, each of its elements computed apart, so that their
            extents may be symbolic.
        channels_last_of: Of a library operator: the row that it computes the same as,
            with tensors whose second axis is the fastest in memory, and the others in
            their order.
        pools: Of a library operator: the reduction of each window; a sum is divided by
            how many elements there are.
        convolves: Of a library operator: it is the sum of products of windows of all
            channels of a group with weights, its second operand.
        indexed: Of a library operator: its second operand holds indices, integers of
            any format, along an axis of `size` elements of the result.
        steps: Its result moves in steps, where an operand moves as little as it may.
        domain: Open interval of operand values on which the function is smooth, for
            the laws in `tests/ops`.
    """

    name: str
    kind: Kind
    arity: int
    numpy: Callable[..., Array]
    field: Field
    field_note: str
    term: Term
    triton: str
    torch: str
    flops: float
    sign: str | None = None
    attributes: Mapping[str, AttributeKind] = dataclasses.field(
        default_factory=dict[str, AttributeKind]
    )
    truth: Truth | None = None
    formats: Formats = Formats.FLOATS
    gives: DType | None = None
    chooses: bool = False
    commutative: bool = False
    moves_bits: bool = False
    join: Operator | None = None
    neutral: float | None = None
    selects: bool = False
    in_steps: bool = False
    shift_of: Operator | None = None
    expansion: Callable[..., Any] | None = None
    gradient: Callable[..., tuple[Any, ...]] | None = None
    shape: ShapeOf | None = None
    work: WorkOf | None = None
    on_matrix_units: bool = False
    part: str = ""
    carried: int = 0
    channels_last_of: Operator | None = None
    pools: Operator | None = None
    convolves: bool = False
    indexed: bool = False
    steps: bool = False
    domain: tuple[float, float] = (-4.0, 4.0)

    @property
    def adds(self) -> bool:
        """Whether it is a sum, or a sum of products, over dims."""
        return self.term in (Term.SUM, Term.CONTRACT)

    @property
    def jumps(self) -> bool:
        """Whether what an operand's last bits are can change the result by a step."""
        narrow = self.gives is not None and self.gives.is_coarse
        return self.steps or narrow or self.truth is Truth.COMPARES

    @property
    def function(self) -> str:
        """The name of the row that says what it computes, wherever tensors lie."""
        return (self.channels_last_of or self).name

    def on(self, algebra: ElementAlgebra[V], *operands: V) -> V:
        """The field semantics of an elementwise operator or of a view."""
        match operands:
            case (a,):
                return cast("UnaryField", self.field)(algebra, a)
            case (a, b):
                return cast("BinaryField", self.field)(algebra, a, b)
            case (a, b, c):
                return cast("TernaryField", self.field)(algebra, a, b, c)
            case _:
                raise AssertionError(self)

    def reduced(self, algebra: FieldAlgebra[V], a: V, axes: Axes) -> V:
        """The field semantics of a reduction."""
        return cast("ReductionField", self.field)(algebra, a, axes)

    def scanned(self, algebra: FieldAlgebra[V], a: V, axis: int) -> V:
        """The field semantics of a scan."""
        return cast("ScanField", self.field)(algebra, a, axis)

    def contracted(self, algebra: FieldAlgebra[V], a: V, b: V) -> V:
        """The field semantics of a contraction."""
        return cast("ContractionField", self.field)(algebra, a, b)

    def joined(self, algebra: FieldAlgebra[V], axis: int, *operands: V) -> V:
        """The field semantics of a concatenation."""
        return cast("ConcatField", self.field)(algebra, axis, *operands)

    def without_axes(self, algebra: FieldAlgebra[V], *operands: V) -> V:
        """The field semantics of any kind, in an algebra that asks for no axes."""
        match self.kind:
            case Kind.ELEMENTWISE | Kind.VIEW | Kind.GATHER:
                return self.on(algebra, *operands)
            case Kind.REDUCTION:
                return self.reduced(algebra, operands[0], ())
            case Kind.SCAN:
                return self.scanned(algebra, operands[0], 0)
            case Kind.CONTRACTION:
                return self.contracted(algebra, operands[0], operands[1])
            case Kind.CONCAT:
                return self.joined(algebra, 0, *operands)
            case Kind.LIBRARY:
                return algebra.oracle(self.function, *operands)

    def __repr__(self) -> str:
        return f"<operator {self.name}>"

    def __reduce__(self) -> tuple[Callable[[str], Operator], tuple[str]]:
        """Pickled by name, since the facets are functions."""
        return operator_named, (self.name,)


def operator_named(name: str) -> Operator:
    """The row of the table called `name`, as unpickling needs it."""
    from mirage_dsl.ops.table import OPERATORS

    return OPERATORS[name]
