"""The forms of the text of tile programs, as `syntax` reads them."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_dsl.ir.text.forms import AxisForm, ClauseForm, DimForm, TypeForm, Word


@dataclass(frozen=True)
class NumberForm:
    """A number, a question about sizes, or an operation on numbers.

    `word` is the number, the question or the sign.
    """

    word: Word
    args: tuple[NumberForm | DimForm, ...] = ()


@dataclass(frozen=True)
class CallForm:
    """`exp(a - b)`: an operator, by name or by sign, and what it is applied to."""

    operator: Word
    arguments: tuple[CallForm | Word, ...]


@dataclass(frozen=True)
class MaskedForm:
    """`k/loop: not ends(k/loop)`: a piece, and when it is masked."""

    dim: DimForm
    when: NumberForm | None


@dataclass(frozen=True)
class DetailForm:
    """`over(k/loop)`, `when(warps >= 4)`, `into(total)`, `fill(-inf)`, `rounded`."""

    name: Word
    dims: tuple[DimForm, ...] = ()
    number: NumberForm | None = None
    word: Word | None = None
    masked: tuple[MaskedForm, ...] = ()
    sides: tuple[tuple[DimForm, ...], ...] = ()


@dataclass(frozen=True)
class ActionForm:
    """What stands right of `=`: a word, what it is applied to, and details.

    Attributes:
        word: `load`, `pick`, `cast`, `sum`, `@` ...; None for arithmetic.
        values: Names of values.
        axes: Of a tensor that is read.
        call: Arithmetic.
        details: In the order of the text.
    """

    word: Word | None
    values: tuple[Word, ...] = ()
    axes: tuple[AxisForm, ...] = ()
    call: CallForm | None = None
    details: tuple[DetailForm, ...] = ()


@dataclass(frozen=True)
class AssignForm:
    """`x: f16[m, k/loop] = load x[m, k/loop]`."""

    name: Word
    type: TypeForm
    action: ActionForm


@dataclass(frozen=True)
class CarryForm:
    """`carry total: f32[m] = 0.0`."""

    name: Word
    type: TypeForm
    value: Word


@dataclass(frozen=True)
class StoreForm:
    """`store y: f16[m, n/grid] = total`."""

    name: Word
    type: TypeForm
    operand: Word


@dataclass(frozen=True)
class AskForm:
    """`ask w[k/loop, n/grid] tiles(2)`."""

    source: Word
    axes: tuple[AxisForm, ...]
    details: tuple[DetailForm, ...]


@dataclass(frozen=True)
class ChangeForm:
    """`total += x`, `total *= x`, `total max= x`."""

    target: Word
    sign: Word
    operand: Word


@dataclass(frozen=True)
class BareForm:
    """`wait`, `announce`."""

    word: Word


@dataclass(frozen=True)
class LoopForm:
    """`loop(k) { ... }`, `loop(k) whole { ... }`."""

    word: Word
    dim: Word
    part: Word | None
    lines: tuple[LineForm, ...]


@dataclass(frozen=True)
class BlockForm:
    """`block grid(n / 64) loop(k / 64) num_warps(4)`."""

    word: Word
    clauses: tuple[ClauseForm, ...]


@dataclass(frozen=True)
class HeadForm:
    """Lines about pieces: `pieces(m, k/loop) units(m)`, `side rows(m)`, `warps(4)`."""

    word: Word
    details: tuple[DetailForm, ...]


LineForm = (
    BlockForm
    | HeadForm
    | AssignForm
    | CarryForm
    | StoreForm
    | AskForm
    | ChangeForm
    | BareForm
    | LoopForm
)


@dataclass(frozen=True)
class ProgramForm:
    """One tile program."""

    name: Word
    tensors: tuple[tuple[Word, TypeForm], ...]
    sizes: tuple[tuple[Word, Word], ...]
    lines: tuple[LineForm, ...]
