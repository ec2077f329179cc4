"""Reads the text of tile programs into forms; `parser` makes the programs of them.

The grammar is `syntax.lark`; it takes types, dims and constants from that of μGraphs.
"""

# Lark's annotations leave parts unknown to Pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, v_args

from mirage_dsl.ir.text.forms import (
    AxisForm,
    ClauseForm,
    DimForm,
    Source,
    TypeForm,
    Word,
)
from mirage_dsl.ir.text.syntax import (
    Lines,
    TypeForms,
    read_with,
    word,
)
from mirage_dsl.tile.printer import KEYWORDS

# -- Forms -----------------------------------------------------------------------------


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


# -- Reading ---------------------------------------------------------------------------

DETAILS = (
    *("pieces", "units", "guarded", "batch", "rows", "columns", "over", "sides"),
    *("along", "index", "at"),
    *(
        "buffers",
        "when",
        "wgmma",
        "warps",
        "tiles",
        "by",
        "instead",
        "precision",
        "into",
        "last",
    ),
    *("scale", "fill"),
)
"""Words before a bracket that say more about a statement."""


@v_args(inline=True)
class _Forms(TypeForms):
    """Turns Lark's tree into forms; a method per rule, an absent `[...]` is None."""

    def start(self, _version: Any, *programs: ProgramForm) -> tuple[ProgramForm, ...]:
        return programs

    def program(self, name: Word, *parts: Any) -> ProgramForm:
        tensors, sizes, lines = (p or () for p in parts)
        return ProgramForm(name, tensors, sizes, lines)

    def name(self, token: Token) -> Word:
        return word(token)

    def inputs(self, *items: Any) -> tuple[Any, ...]:
        return items

    typed = lines = dims = inputs

    # -- Lines ---------------------------------------------------------------------

    def block(self, token: Token, *clauses: ClauseForm) -> BlockForm:
        return BlockForm(word(token), clauses)

    def together(self, *parts: Any) -> tuple[Any, ...]:
        return tuple(p for p in parts if not isinstance(p, Token))

    def pieces(self, *details: DetailForm) -> HeadForm:
        return HeadForm(details[0].name, details)

    def side(self, token: Token, *details: DetailForm) -> HeadForm:
        return HeadForm(word(token), details)

    warps = pieces

    def assign(self, name: Word, type_: TypeForm, action: ActionForm) -> AssignForm:
        return AssignForm(name, type_, action)

    def carry(
        self, _carry: Token, name: Word, type_: TypeForm, value: Token
    ) -> CarryForm:
        return CarryForm(name, type_, word(value))

    def store(
        self, _store: Token, name: Word, type_: TypeForm, operand: Word
    ) -> StoreForm:
        return StoreForm(name, type_, operand)

    def ask(
        self,
        _ask: Token,
        source: Word,
        axes: tuple[AxisForm, ...],
        *details: DetailForm,
    ) -> AskForm:
        return AskForm(source, axes, details)

    def change(self, target: Word, sign: Token, operand: Word) -> ChangeForm:
        return ChangeForm(target, word(sign), operand)

    def bare(self, token: Token) -> BareForm:
        return BareForm(word(token))

    def loop(
        self,
        token: Token,
        dim: Token,
        part: Token | None,
        lines: tuple[LineForm, ...],
    ) -> LoopForm:
        return LoopForm(
            word(token), word(dim), None if part is None else word(part), lines
        )

    # -- Right of the `=` ----------------------------------------------------------

    def load(
        self,
        token: Token,
        source: Word,
        axes: tuple[AxisForm, ...],
        *details: DetailForm,
    ) -> ActionForm:
        return ActionForm(word(token), (source,), axes, details=details)

    def positions(self, token: Token, axes: tuple[AxisForm, ...]) -> ActionForm:
        return ActionForm(word(token), (), axes)

    def pick(
        self, token: Token, operand: Word, other: Word, *details: DetailForm
    ) -> ActionForm:
        return ActionForm(word(token), (operand, other), details=details)

    def step(self, token: Token, operand: Word, *details: DetailForm) -> ActionForm:
        return ActionForm(word(token), (operand,), details=details)

    def product(
        self, left: Word, sign: Token, right: Word, *details: DetailForm
    ) -> ActionForm:
        return ActionForm(word(sign), (left, right), details=details)

    def compute(self, call: CallForm, rounded: Token | None) -> ActionForm:
        details = () if rounded is None else (DetailForm(word(rounded)),)
        return ActionForm(None, call=call, details=details)

    def infix(self, left: Word, sign: Token, right: Word) -> CallForm:
        return CallForm(word(sign), (left, right))

    def call(self, function: Token, *arguments: CallForm | Word) -> CallForm:
        return CallForm(word(function), arguments)

    def operand(self, value: Word | Token) -> Word:
        return word(value) if isinstance(value, Token) else value

    # -- Details -------------------------------------------------------------------

    def dims_clause(self, name: Token, dims: tuple[DimForm, ...] | None) -> DetailForm:
        return DetailForm(word(name), dims=dims or ())

    def sides(self, name: Token, *sides: tuple[DimForm, ...]) -> DetailForm:
        return DetailForm(word(name), sides=sides)

    def number_clause(self, name: Token, number: NumberForm) -> DetailForm:
        return DetailForm(word(name), number=number)

    def name_clause(self, name: Token, value: Word) -> DetailForm:
        return DetailForm(word(name), word=value)

    def fill_clause(self, name: Token, value: Token) -> DetailForm:
        return DetailForm(word(name), word=word(value))

    def where_clause(self, name: Token, *masked: MaskedForm) -> DetailForm:
        return DetailForm(word(name), masked=masked)

    def masked(self, dim: DimForm, when: NumberForm | None) -> MaskedForm:
        return MaskedForm(dim, when)

    # -- Numbers -------------------------------------------------------------------

    def integer(self, token: Token) -> NumberForm:
        return NumberForm(word(token))

    word = integer

    def question(self, name: Token, dim: DimForm) -> NumberForm:
        return NumberForm(word(name), (dim,))

    def function(self, name: Token, *args: NumberForm) -> NumberForm:
        return NumberForm(word(name), args)

    def operation(self, left: NumberForm, sign: Token, right: NumberForm) -> NumberForm:
        return NumberForm(word(sign), (left, right))

    def opposite(self, sign: Token, number: NumberForm) -> NumberForm:
        return NumberForm(word(sign), (number,))

    def either(
        self, yes: NumberForm, sign: Token, condition: NumberForm, no: NumberForm
    ) -> NumberForm:
        return NumberForm(word(sign), (condition, yes, no))


@cache
def _grammar() -> Lark:
    text = Path(__file__).with_name("syntax.lark").read_text(encoding="utf-8")
    return Lark(
        text,
        parser="lalr",
        postlex=Lines(),
        maybe_placeholders=True,
        transformer=_Forms(),
        import_paths=[str(Path(__file__).parents[1] / "ir" / "text")],
    )


def read(source: Source) -> tuple[ProgramForm, ...]:
    """The forms of a text.

    Raises:
        ParseError: The text is not in the language.
    """
    return read_with(_grammar(), source, KEYWORDS | {*DETAILS})
