"""The forms of `.mu` text, as `syntax` reads them and `elaborate` takes them."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_dsl.ir.text.errors import Word


@dataclass(frozen=True)
class DimForm:
    """`k/grid/loop`."""

    name: Word
    pieces: tuple[Word, ...]


@dataclass(frozen=True)
class AxisForm:
    """`k/loop`, `(h d)`, or a number, which must be 1."""

    dims: tuple[DimForm, ...]
    number: Word | None


@dataclass(frozen=True)
class TypeForm:
    """`f16[m, k/loop] layout(1, 0)`."""

    dtype: Word
    axes: tuple[AxisForm, ...]
    layout: tuple[Word, ...] | None


@dataclass(frozen=True)
class BoundForm:
    """`d <= n - 5`, `d <= n | d <= 6`: what comes last is the dim and its number."""

    loop: Word
    sign: Word
    dim: Word
    offset_sign: Word | None
    offset: Word | None
    also: tuple[Word, Word] | None = None


@dataclass(frozen=True)
class SettledForm:
    """`near == 1 if d <= n`."""

    value: Word
    number: Word
    bound: BoundForm


@dataclass(frozen=True)
class ClauseForm:
    """`over(k)`, `grid(m / 16, n / 64)`: names or numbers, some with a divisor.

    A merged axis, `(h d)`, is one word.

    `beside` has the positions of values that `&` joins to the value before, `bounds`
    what stands in `while(d <= n)`, `settled` in `settled(near == 1 if d <= n)`.
    """

    name: Word
    values: tuple[tuple[Word, Word | None], ...]
    beside: tuple[int, ...] = ()
    bounds: tuple[BoundForm, ...] = ()
    settled: tuple[SettledForm, ...] = ()


@dataclass(frozen=True)
class NameForm:
    """A value by its name."""

    name: Word


@dataclass(frozen=True)
class ConstantForm:
    """`1/k`."""

    text: Word


@dataclass(frozen=True)
class InfixForm:
    """`a * b`."""

    left: ExprForm
    sign: Word
    right: ExprForm


@dataclass(frozen=True)
class ApplyForm:
    """`matmul x, w over(k)` or `matmul(x, w)`."""

    function: Word
    arguments: tuple[ExprForm, ...]
    clauses: tuple[ClauseForm, ...] = ()


ExprForm = NameForm | ConstantForm | InfixForm | ApplyForm


@dataclass(frozen=True)
class IndexForm:
    """`index n`, `index (h d)`."""

    keyword: Word
    axis: AxisForm


@dataclass(frozen=True)
class LoadForm:
    """`load x[m, k/loop]`."""

    source: Word
    axes: tuple[AxisForm, ...] | None


@dataclass(frozen=True)
class AccumulateForm:
    """`accumulate e rescale m`."""

    operand: ExprForm
    kind: Word | None
    rescale: Word | None


@dataclass(frozen=True)
class RunningForm:
    """`running max t`."""

    operand: ExprForm


@dataclass(frozen=True)
class BlockForm:
    """`block grid(n / 64) { ... }`."""

    clauses: tuple[ClauseForm, ...]
    statements: tuple[StatementForm, ...]


@dataclass(frozen=True)
class TargetForm:
    """What stands left of `=`."""

    name: Word
    type: TypeForm | None


@dataclass(frozen=True)
class AssignForm:
    """`a: f32[m] = ...`."""

    targets: tuple[TargetForm, ...]
    right: BlockForm | IndexForm | LoadForm | AccumulateForm | RunningForm | ExprForm


@dataclass(frozen=True)
class StoreForm:
    """`store y: f16[m, n/grid] = q`, or `store y[m, n/grid]` without a dtype."""

    name: Word
    dtype: Word | None
    axes: tuple[AxisForm, ...]
    operand: ExprForm


@dataclass(frozen=True)
class ReturnForm:
    """`return y`."""

    keyword: Word
    values: tuple[Word, ...]


StatementForm = AssignForm | StoreForm | ReturnForm


@dataclass(frozen=True)
class GraphForm:
    """A whole text."""

    name: Word
    inputs: tuple[tuple[Word, TypeForm], ...]
    returns: tuple[TypeForm, ...]
    sizes: tuple[tuple[Word, Word], ...]
    statements: tuple[StatementForm, ...]
