"""Tile programs as text: printed, and read back as the same programs.

The language is described in `docs/text-format.md`; the grammar is `syntax.lark`, which
takes types, dims and constants from that of μGraphs.  Text is read into forms, of which
programs are made.  What is read is in the language, and its numbers, formats and dims
are known; whether it is well formed says `check`.
"""

# Lark's annotations leave parts unknown to Pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, assert_never, get_args

from lark import Lark, Token, v_args

from mirage_dsl.core.errors import ParseError
from mirage_dsl.core.types import Axis, Dim, axis_text, is_name, scalar
from mirage_dsl.ir.graph import LoopBound, Operand, Schedule, Split
from mirage_dsl.ir.text.forms import (
    AxisForm,
    ClauseForm,
    DimForm,
    GraphForm,
    Source,
    TypeForm,
    Word,
    counted,
    suggest,
)
from mirage_dsl.ir.text.parser import Resolver
from mirage_dsl.ir.text.printer import bounds_text, schedule_words, splits_text
from mirage_dsl.ir.text.syntax import TypeForms, grammar_beside, read_with, word
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.ops.table import OPERATORS, SUM
from mirage_dsl.tile import program as tp

# -- Printing --------------------------------------------------------------------------


_VERSION = 1
"""Version of the text format, in its first line."""

_KEYWORDS = frozenset(
    {"tile", "where", "block", "side", "carry", "store", "ask", "wait", "announce"}
    | {"loop", "load", "pick", "join", "rounded", "if", "else", "not"}
)
"""Words that are names of values only between backticks."""

_INDENT = "  "
_WIDTH = 96


def to_text(*programs: tp.TileProgram) -> str:
    """Tile programs as text, ending in a newline."""
    lines = [f"tiles {_VERSION}"]
    for program in programs:
        lines += ["", *_program(program)]
    return "\n".join(lines) + "\n"


def quoted(name: str) -> str:
    """A name as it stands in a text: between backticks if it is no plain word.

    Plain words may have parts: `x/mask`, `q.1`.
    """
    first, *parts = re.split(r"[./]", name)
    plain = is_name(first) and all(re.fullmatch(r"\w+", p) for p in parts)
    if plain and name not in _KEYWORDS:
        return name
    escaped = re.sub(r"[\\`\x00-\x1f\x7f-\x9f\u2028\u2029]", _escaped, name)
    return f"`{escaped}`"


def _escaped(found: re.Match[str]) -> str:
    sign = found[0]
    return f"\\{sign}" if sign in "\\`" else f"\\u{ord(sign):04x}"


# -- Heads -----------------------------------------------------------------------------


def _program(program: tp.TileProgram) -> Iterator[str]:
    yield from _signature(program)
    yield _INDENT + " ".join(("block", *_block(program)))
    pieces = [_clause("pieces", program.pieces)]
    if program.units:
        pieces.append(_clause("units", sorted(program.units)))
    if program.few:
        pieces.append(_clause("few", sorted(program.few)))
    yield _INDENT + " ".join(pieces)
    for rows, columns, over in program.sides:
        groups = (("rows", rows), ("columns", columns), ("over", over))
        yield _INDENT + _words("side", *(_clause(n, g) for n, g in groups))
    yield f"{_INDENT}warps({program.warps})"
    yield from _lines(program.body, 1)
    yield "}"


def _signature(program: tp.TileProgram) -> list[str]:
    tensors = [f"{quoted(n)}: {t}" for n, t in program.tensors.items()]
    sizes = ", ".join(
        f"{n} = {'?' if e is None else e}" for n, e in program.extents.items()
    )
    head = f"tile {quoted(program.name)}("
    tail = f") where {sizes} {{" if sizes else ") {"
    one_line = head + ", ".join(tensors) + tail
    if len(one_line) <= _WIDTH or not tensors:
        return [one_line]
    return [head, *(f"{_INDENT * 2}{t}," for t in tensors), tail]


def _block(program: tp.TileProgram) -> Iterator[str]:
    """The splits, and the parameters that differ from the defaults."""
    if program.grid:
        yield f"grid({splits_text(program.grid)})"
    if program.loop is not None:
        yield f"loop({splits_text((program.loop,))})"
        if program.bounds:
            yield bounds_text(program.bounds, program.loop.dim)
        if program.whole:
            yield bounds_text(program.whole, program.loop.dim, "whole")
    if program.within_grid:
        yield "within_grid(true)"
    yield from schedule_words(program.schedule)


# -- Statements ------------------------------------------------------------------------


def _lines(body: Iterable[tp.Statement], depth: int) -> Iterator[str]:
    for statement in body:
        yield _INDENT * depth + statement_text(statement)
        if isinstance(statement, tp.Loop):
            yield from _lines(statement.body, depth + 1)
            yield f"{_INDENT * depth}}}"


def statement_text(statement: tp.Statement) -> str:
    """One line: a statement, or the line that opens a loop."""
    match statement:
        case tp.Store():
            axes = ", ".join(map(axis_text, statement.at))
            name, operand = quoted(statement.result), quoted(statement.operand)
            return f"store {name}: {statement.dtype}[{axes}] = {operand}"
        case tp.Ask():
            return _words("ask", _read(statement), *_details(statement))
        case tp.Start():
            return f"carry {_typed(statement.result, statement.tile)} = " + _number(
                statement.value
            )
        case tp.Rescale():
            return f"{quoted(statement.target)} *= {quoted(statement.scale)}"
        case tp.Update():
            sign = "+=" if statement.op is SUM else f"{statement.op.name}="
            return f"{quoted(statement.target)} {sign} {quoted(statement.operand)}"
        case tp.Wait():
            return "wait"
        case tp.Announce():
            return "announce"
        case tp.Loop():
            part = f"{statement.part} " if statement.part else ""
            return f"loop({statement.dim}) {part}{{"
        case _:
            left = _typed(statement.result, statement.tile)
            return _words(left, "=", _action(statement), *_details(statement))


def _action(statement: tp.Assignment) -> str:
    """What stands right of the `=`, up to the details."""
    match statement:
        case tp.Load():
            return f"load {_read(statement)}"
        case tp.Positions():
            return f"positions [{axis_text(statement.at)}]"
        case tp.Compute():
            return _application(statement)
        case tp.Pick() | tp.Join():
            word = type(statement).__name__.lower()
            return f"{word} {quoted(statement.operand)}, {quoted(statement.other)}"
        case tp.Product():
            return f"{quoted(statement.left)} @ {quoted(statement.right)}"
        case tp.Reduce() | tp.Scan():
            return f"{statement.op.name} {quoted(statement.operand)}"
        case (
            tp.Cast()
            | tp.Finite()
            | tp.Convert()
            | tp.Mask()
            | tp.Merge()
            | tp.Lane()
            | tp.Largest()
        ):
            word = type(statement).__name__.lower()
            return f"{word} {quoted(statement.operand)}"
        case _:
            assert_never(statement)


def _details(statement: tp.Assignment | tp.Ask) -> Iterator[str]:
    """What differs from the defaults, each as `word(...)`."""
    match statement:
        case tp.Load():
            yield from _load_details(statement)
        case tp.Product():
            yield from _product_details(statement)
        case tp.Mask():
            yield from _mask_details(statement)
        case tp.Compute():
            yield "rounded" if statement.rounded else ""
        case tp.Merge():
            groups = (", ".join(map(str, side)) for side in statement.sides)
            yield f"sides({'; '.join(groups)})"
        case tp.Lane():
            yield _clause("along", (statement.along,))
            yield f"at({statement.at})"
        case tp.Reduce():
            yield _clause("over", statement.over)
            yield "" if statement.halves is False else f"halves({statement.halves})"
        case tp.Scan() | tp.Join():
            yield _clause("along", (statement.along,))
        case tp.Positions():
            pass
        case _:
            yield from _few_details(statement)


def _few_details(
    statement: tp.Cast | tp.Finite | tp.Convert | tp.Pick | tp.Largest | tp.Ask,
) -> Iterator[str]:
    match statement:
        case tp.Cast():
            pass
        case tp.Finite():
            fill = statement.fill
            yield "" if fill == -math.inf else f"fill({_number(fill)})"
        case tp.Convert():
            yield _when(statement.when)
        case tp.Pick():
            yield f"when({statement.when})"
        case tp.Largest():
            yield _named("last", statement.state)
            yield _named("scale", statement.scale)
        case tp.Ask():
            yield f"tiles({statement.tiles})"
            yield _when(statement.when)
        case _:
            assert_never(statement)


def _mask_details(statement: tp.Mask) -> Iterator[str]:
    places = (f"{d}" if w is True else f"{d}: {w}" for d, w in statement.where)
    yield f"fill({_number(statement.fill)})"
    yield f"where({', '.join(places)})" if statement.where else ""
    yield _when(statement.when)


def _load_details(statement: tp.Load) -> Iterator[str]:
    if statement.along is not None:
        yield f"along({statement.along.dim})"
        yield _named("index", statement.along.index)
        if statement.along.known != "no":
            yield f"known({statement.along.known})"
        side = "under" if statement.along.holds else "unless"
        yield _named(side, statement.along.under)
    if statement.via != "pointer":
        yield f"by({statement.via})"
    if statement.guarded:
        yield _clause("guarded", statement.guarded)
    if statement.buffers != 0:
        yield f"buffers({statement.buffers})"
    yield _when(statement.when)
    yield _named("instead", statement.instead)


def _product_details(statement: tp.Product) -> Iterator[str]:
    groups = ("batch", "rows", "columns", "over")
    yield from (_clause(n, getattr(statement, n)) for n in groups)
    if statement.wgmma is not False:
        yield f"wgmma({statement.wgmma})"
    if statement.precision != "storage":
        yield f"precision({statement.precision})"
    yield _named("into", statement.into)


# -- Words -----------------------------------------------------------------------------


def _words(*words: str) -> str:
    return " ".join(w for w in words if w)


def _typed(name: str, tile: tp.Tile) -> str:
    return f"{quoted(name)}: {tile.dtype}[{', '.join(map(str, tile.axes))}]"


def _read(statement: tp.Load | tp.Ask) -> str:
    axes: tuple[Axis, ...] = statement.at
    return f"{quoted(statement.source)}[{', '.join(map(axis_text, axes))}]"


def _application(statement: tp.Compute) -> str:
    if statement.inner is None:
        return _applied(statement.op, statement.operands)
    return f"{statement.op.name}({_applied(statement.inner, statement.operands)})"


def _applied(op: Operator, operands: tuple[Operand, ...]) -> str:
    shown = [quoted(o) if isinstance(o, str) else str(o) for o in operands]
    if op.sign is not None and len(shown) == 2:
        return f" {op.sign} ".join(shown)
    return f"{op.name}({', '.join(shown)})"


def _number(value: float) -> str:
    return str(scalar(value))


def _clause(name: str, dims: Iterable[object]) -> str:
    shown = ", ".join(map(str, dims))
    return f"{name}({shown})" if shown or name in ("pieces", "over") else ""


def _when(number: tp.Number) -> str:
    return "" if number is True else f"when({number})"


def _named(word: str, name: str | None) -> str:
    return "" if name is None else f"{word}({quoted(name)})"


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
    *("pieces", "units", "few", "guarded", "batch", "rows", "columns", "over", "sides"),
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
    return grammar_beside(Path(__file__), _Forms())


def read(source: Source) -> tuple[ProgramForm, ...]:
    """The forms of a text.

    Raises:
        ParseError: The text is not in the language.
    """
    return read_with(_grammar(), source, _KEYWORDS | {*DETAILS})


# -- Programs from forms ---------------------------------------------------------------


def parse(text: str, filename: str = "<tiles>") -> tp.TileProgram:
    """The one tile program that `text` describes.

    Args:
        text: A text as `printer.to_text` writes it.
        filename: Its name, for messages.

    Raises:
        ParseError: The text is not in the language, or has another number of programs.
    """
    found = parse_all(text, filename)
    if len(found) != 1:
        source = Source(filename, text)
        raise ParseError(
            f"found {counted(len(found), 'tile program')}, expected one",
            source.whole(),
        )
    return found[0]


def parse_all(text: str, filename: str = "<tiles>") -> tuple[tp.TileProgram, ...]:
    """All tile programs of a text, in order.

    Raises:
        ParseError: The text is not in the language.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParseError(
            f"expected the text of tile programs, found {type(text).__name__}"
        )
    source = Source(filename, text)
    source.require_version("tiles", _VERSION)
    try:
        return tuple(_Program(form, source).program() for form in read(source))
    except RecursionError:
        raise ParseError(
            "the formulas are nested too deeply; expected what `to_text` writes",
            source.whole(),
        ) from None


_DETAILS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "load": (
            *("along", "index", "known", "under", "unless"),
            *("by", "guarded", "buffers", "when", "instead"),
        ),
        "positions": (),
        "pick": ("when",),
        "cast": (),
        "finite": ("fill",),
        "convert": ("when",),
        "mask": ("fill", "where", "when"),
        "merge": ("sides",),
        "lane": ("along", "at"),
        "join": ("along",),
        "largest": ("last", "scale"),
        "@": ("batch", "rows", "columns", "over", "wgmma", "precision", "into"),
        "ask": ("tiles", "when"),
        "side": ("rows", "columns", "over"),
        "pieces": ("pieces", "units", "few"),
        "warps": ("warps",),
    }
)
"""The details that a word takes."""
_REDUCTION = ("over", "halves")
"""Those of a reduction, whose word is its operator's name."""
_SIGNS: Mapping[str, str] = MappingProxyType(
    {"|": "or", "&": "and", "not": "not", ">=": "ge", ">": "gt", "+": "add"}
    | {"-": "sub", "*": "mul", "div": "div", "if": "if", "max": "max", "min": "min"}
)
"""What operations of formulas are called in texts."""


class _Details:
    """The details of one statement, each asked for by its name."""

    def __init__(
        self,
        program: _Program,
        of: Word,
        given: Iterable[DetailForm],
        known: Iterable[str],
    ) -> None:
        self._program, self._of = program, of
        self._given: dict[str, DetailForm] = {}
        source, allowed = program.source, list(known)
        for detail in given:
            name = detail.name
            if name.text not in allowed:
                hint = suggest(name.text, allowed, "details")
                raise source.wrong(name, f"`{of}` takes no `{name}`{hint}")
            if name.text in self._given:
                raise source.wrong(name, f"`{name}` is given twice")
            self._given[name.text] = detail

    def has(self, name: str) -> bool:
        return name in self._given

    def dims(self, name: str) -> tp.Order:
        detail = self._given.get(name)
        return () if detail is None else self._program.dims(detail.dims)

    def number(self, name: str, default: tp.Number) -> tp.Number:
        detail = self._given.get(name)
        if detail is None or detail.number is None:
            return default
        return self._program.number(detail.number)

    def word(self, name: str) -> Word | None:
        detail = self._given.get(name)
        return None if detail is None else detail.word

    def name(self, name: str) -> str | None:
        found = self.word(name)
        return None if found is None else self._program.name(found)

    def choice(self, name: str, options: tuple[str, ...]) -> Any:
        """One of some words, the first by default."""
        found = self.word(name)
        if found is None:
            return options[0]
        if found.text not in options:
            hint = suggest(found.text, options, "choices")
            raise self._program.source.wrong(found, f"unknown {name} `{found}`{hint}")
        return found.text

    def masked(self) -> tuple[tuple[Dim, tp.Number], ...]:
        detail = self._given.get("where")
        if detail is None:
            return ()
        of = self._program
        return tuple(
            (of.dim(m.dim), True if m.when is None else of.number(m.when))
            for m in detail.masked
        )

    def sides(self) -> tuple[tp.Order, ...]:
        detail = self._given.get("sides")
        given = () if detail is None else detail.sides
        return tuple(self._program.dims(side) for side in given)

    def require(self, name: str) -> Word:
        """The word of a detail that must be there."""
        found = self.word(name)
        if found is None:
            raise self.missing(name)
        return found

    def missing(self, name: str) -> ParseError:
        return self.refused(f"needs `{name}(...)`, found none")

    def refused(self, what: str) -> ParseError:
        return self._program.source.wrong(self._of, f"`{self._of}` {what}")


class _Program:
    """Makes a program of its form."""

    def __init__(self, form: ProgramForm, source: Source) -> None:
        self.form = form
        self.source = source
        head = GraphForm(form.name, (), (), form.sizes, ())
        self.resolver = Resolver(source, head)

    def program(self) -> tp.TileProgram:
        form, heads = self.form, _Heads(self)
        tensors = {
            self.name(n): self.resolver.type(t, pieces=False) for n, t in form.tensors
        }
        if len(tensors) < len(form.tensors):
            raise self.source.wrong(form.name, "a tensor is named twice in the header")
        body = tuple(s for line in form.lines for s in self._line(line, heads))
        return tp.TileProgram(
            self.name(form.name),
            heads.grid,
            heads.loop,
            heads.within_grid,
            tensors,
            self.resolver.extents,
            heads.schedule,
            heads.pieces,
            heads.units,
            tuple(heads.sides),
            heads.warps,
            body,
            bounds=heads.bounds,
            whole=heads.whole,
            few=heads.few,
        )

    # -- Words ---------------------------------------------------------------------

    def name(self, word: Word) -> str:
        """The name that a word is, without its backticks."""
        text = word.text
        if not text.startswith("`"):
            if not is_name(re.split(r"[./]", text)[0]):
                raise self.source.wrong(word, f"found {word}, expected a name")
            return text
        return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", _unescaped, text[1:-1])

    def dim(self, form: DimForm) -> Dim:
        """A known dim, with its pieces."""
        return self.resolver.dim(form, pieces=True)

    def dims(self, forms: Iterable[DimForm]) -> tp.Order:
        return tuple(self.dim(f) for f in forms)

    def tile(self, form: TypeForm) -> tp.Tile:
        """The type of a value: one piece for each axis, no layout."""
        found = self.resolver.type(form, pieces=True)
        if form.layout is not None or any(len(a) != 1 for a in found.axes):
            raise self.source.wrong(
                form.dtype,
                f"found {found}, expected a tile: one piece for each axis, slowest "
                "first, and no layout",
            )
        return tp.Tile(found.dtype, tuple(d for axis in found.axes for d in axis))

    def fill(self, word: Word) -> float:
        """A number without extents."""
        found = self.resolver.constant(word)
        if found.extents:
            raise self.source.wrong(word, f"found {word}, expected a plain number")
        return found.at({})

    def number(self, form: NumberForm) -> tp.Number:
        """A formula, or a number."""
        word, args = form.word, form.args
        if not args:
            return self._leaf(word)
        if word.text in ("lanes", "loose", "ends"):
            (dim,) = args
            assert isinstance(dim, DimForm)
            return tp.Formula(word.text, (self.dim(dim),))
        op = _SIGNS.get(word.text)
        if op is None:
            raise self.source.wrong(
                word,
                f"unknown function {word}{suggest(word.text, _SIGNS, 'functions')}",
            )
        found = tuple(self.number(a) for a in args if isinstance(a, NumberForm))
        expected = tp.OPERATIONS[op].text.count("{")
        if len(found) != expected:
            raise self.source.wrong(
                word, f"`{word}` takes {expected} numbers, found {len(found)}"
            )
        return tp.Formula(op, found)

    def _leaf(self, word: Word) -> tp.Number:
        match word.text:
            case "warps" | "stages":
                return tp.Formula(word.text)
            case "True" | "False" | "true" | "false":
                return word.text in ("True", "true")
            case text if text.isdecimal():
                return self.resolver.integer(word, 0)
            case text:
                known = ("warps", "stages", "lanes", "loose", "ends", "True", "False")
                hint = suggest(text, known, "numbers")
                raise self.source.wrong(word, f"found {word}, expected a number{hint}")

    # -- Lines ---------------------------------------------------------------------

    def _line(self, line: LineForm, heads: _Heads | None) -> list[tp.Statement]:
        if isinstance(line, BlockForm | HeadForm):
            if heads is None:
                raise self.source.wrong(
                    line.word, f"`{line.word}` stands before the loop, found it inside"
                )
            heads.add(line)
            return []
        return [self._statement(line)]

    def notes(self, word: Word) -> tp.Notes:
        """The line of the text, for errors."""
        place = self.source.at(word)
        return (tp.Note(place.text.strip(), place),)

    def _statement(self, line: LineForm) -> tp.Statement:
        match line:
            case AssignForm():
                return _Assigned(self, line).statement()
            case CarryForm():
                value, notes = self.fill(line.value), self.notes(line.name)
                return tp.Start(
                    self.name(line.name), self.tile(line.type), value, notes
                )
            case StoreForm():
                return self._store(line)
            case AskForm():
                return self._ask(line)
            case ChangeForm():
                return self._change(line)
            case BareForm():
                of = tp.Wait if line.word.text == "wait" else tp.Announce
                return of(self.notes(line.word))
            case LoopForm():
                body = tuple(s for inner in line.lines for s in self._line(inner, None))
                dim = self.resolver.dim_name(line.dim)
                word = None if line.part is None else line.part.text
                part = next(p for p in get_args(tp.Part) if p == (word or ""))
                return tp.Loop(dim, body, part, self.notes(line.word))
            case BlockForm() | HeadForm():
                raise AssertionError(line)

    def _store(self, line: StoreForm) -> tp.Store:
        if line.type.layout is not None:
            raise self.source.wrong(
                line.type.layout[0] if line.type.layout else line.name,
                "a store has no layout; it stands with the tensor in the header",
            )
        axes = self.resolver.axes(line.type.axes, pieces=True)
        dtype = self.resolver.dtype(line.type.dtype)
        operand = self.name(line.operand)
        return tp.Store(
            self.name(line.name), operand, axes, dtype, self.notes(line.name)
        )

    def _ask(self, line: AskForm) -> tp.Ask:
        word = line.source
        details = _Details(
            self, replace(word, text="ask"), line.details, _DETAILS["ask"]
        )
        if not details.has("tiles"):
            raise details.missing("tiles")
        tiles = details.number("tiles", 0)
        if not isinstance(tiles, int):
            raise self.source.wrong(word, f"tiles({tiles}): expected a plain number")
        axes = self.resolver.axes(line.axes, pieces=True)
        when = details.number("when", True)
        return tp.Ask(self.name(word), axes, tiles, when, self.notes(word))

    def _change(self, line: ChangeForm) -> tp.Statement:
        target, operand = self.name(line.target), self.name(line.operand)
        notes = self.notes(line.target)
        if line.sign.text == "*=":
            return tp.Rescale(target, operand, notes)
        if line.sign.text == "+=":
            return tp.Update(target, operand, SUM, notes)
        reductions = {n: o for n, o in OPERATORS.items() if o.in_steps}
        reduction = reductions.get(line.sign.text.removesuffix("="))
        if reduction is None:
            signs = ["+=", "*=", *(f"{n}=" for n in reductions if n != SUM.name)]
            raise self.source.wrong(
                line.sign,
                f"{line.sign} is no sign of an update"
                + suggest(line.sign.text, signs, "signs"),
            )
        return tp.Update(target, operand, reduction, notes)


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else found[2]


class _Heads:
    """What stands before the statements: splits, schedule, pieces."""

    def __init__(self, program: _Program) -> None:
        self._program, self._source = program, program.source
        self._seen: set[str] = set()
        self.grid: tuple[Split, ...] = ()
        self.loop: Split | None = None
        self.within_grid = False
        self.bounds: tuple[LoopBound, ...] = ()
        self.whole: tuple[LoopBound, ...] = ()
        self.schedule = Schedule()
        self.pieces: tp.Order = ()
        self.units: frozenset[Dim] = frozenset()
        self.few: frozenset[Dim] = frozenset()
        self.sides: list[tuple[tp.Order, tp.Order, tp.Order]] = []
        self.warps: tp.Number = self.schedule.num_warps

    def add(self, line: BlockForm | HeadForm) -> None:
        word = line.word
        if word.text != "side" and word.text in self._seen:
            raise self._source.wrong(word, f"`{word}` is given twice")
        self._seen.add(word.text)
        if isinstance(line, BlockForm):
            self._block(line)
            return
        known = _DETAILS.get(word.text, ("pieces",))
        details = _Details(self._program, word, line.details, known)
        match word.text:
            case "side":
                self.sides.append(
                    (
                        details.dims("rows"),
                        details.dims("columns"),
                        details.dims("over"),
                    )
                )
            case "pieces":
                self.pieces = details.dims("pieces")
                self.units = frozenset(details.dims("units"))
                self.few = frozenset(details.dims("few"))
            case _:
                self.warps = details.number("warps", self.warps)

    def _block(self, line: BlockForm) -> None:
        resolver = self._program.resolver
        for clause in resolver.each_once(line.clauses):
            match clause.name.text:
                case "grid":
                    self.grid = resolver.splits(clause)
                case "loop":
                    self.loop = resolver.loop(clause)
                case "while":
                    self.bounds = resolver.bounds(clause, self.loop)
                case "whole":
                    self.whole = resolver.bounds(clause, self.loop)
                case "within_grid":
                    self.within_grid = resolver.parameter(clause, like=False)
                case _:
                    other = "within_grid"
                    self.schedule = resolver.scheduled(self.schedule, clause, other)


class _Assigned:
    """Makes a statement of the form `x: f32[m] = ...`."""

    def __init__(self, program: _Program, line: AssignForm) -> None:
        self._of, self._source = program, program.source
        self._action: ActionForm = line.action
        self._result = program.name(line.name)
        self._tile = program.tile(line.type)
        self._notes: tp.Notes = program.notes(line.name)

    def statement(self) -> tp.Statement:
        word = self._action.word
        if word is None:
            return self._compute()
        make = self._makers().get(word.text)
        scan = _rows(Kind.SCAN).get(word.text)
        known = _REDUCTION if scan is None else ("along",)
        known = _DETAILS.get(word.text, known)
        if make is None and scan is None and self._reduction(word) is None:
            options = (*self._makers(), *_rows(Kind.REDUCTION), *_rows(Kind.SCAN))
            raise self._source.wrong(
                word,
                f"unknown step `{word}`{suggest(word.text, options, 'steps')}",
            )
        details = _Details(self._of, word, self._action.details, known)
        if scan is not None:
            return self._scan(scan, details)
        return self._reduce(word, details) if make is None else make(details)

    def _makers(self) -> Mapping[str, Callable[[_Details], tp.Statement]]:
        return {
            "load": self._load,
            "positions": self._positions,
            "pick": self._pick,
            "cast": lambda _: tp.Cast(*self._plain()),
            "finite": self._finite,
            "convert": self._convert,
            "mask": self._mask,
            "merge": self._merge,
            "lane": self._lane,
            "join": self._join,
            "largest": self._largest,
            "@": self._product,
        }

    def _plain(self) -> tuple[str, tp.Tile, str, tp.Notes]:
        return self._result, self._tile, self._operands()[0], self._notes

    def _operands(self) -> tuple[str, ...]:
        return tuple(self._of.name(v) for v in self._action.values)

    def _load(self, details: _Details) -> tp.Load:
        axes = self._of.resolver.axes(self._action.axes, pieces=True)
        return tp.Load(
            self._result,
            self._tile,
            self._operands()[0],
            axes,
            details.choice("by", ("pointer", "descriptor")),
            details.dims("guarded"),
            details.number("buffers", 0),
            details.number("when", True),
            details.name("instead"),
            self._along(details),
            self._notes,
        )

    def _along(self, details: _Details) -> tp.Along | None:
        dims, index = details.dims("along"), details.name("index")
        if not dims and index is None:
            return None
        if index is None:
            raise details.missing("index")
        if len(dims) != 1:
            raise details.missing("along")
        known = details.choice("known", ("no", "apart", "in_row"))
        under, unless = details.name("under"), details.name("unless")
        return tp.Along(dims[0], index, known, under or unless, unless is None)

    def _positions(self, details: _Details) -> tp.Positions:
        axes = self._of.resolver.axes(self._action.axes, pieces=True)
        if len(axes) != 1:
            raise details.refused(f"is of one axis, found {len(axes)}")
        return tp.Positions(self._result, self._tile, axes[0], self._notes)

    def _finite(self, details: _Details) -> tp.Finite:
        fill = details.word("fill")
        (operand,) = self._operands()
        neutral = -math.inf if fill is None else self._of.fill(fill)
        return tp.Finite(self._result, self._tile, operand, neutral, self._notes)

    def _pick(self, details: _Details) -> tp.Pick:
        if not details.has("when"):
            raise details.missing("when")
        operand, other = self._operands()
        when = details.number("when", True)
        return tp.Pick(self._result, self._tile, operand, other, when, self._notes)

    def _convert(self, details: _Details) -> tp.Convert:
        (operand,), when = self._operands(), details.number("when", True)
        return tp.Convert(self._result, self._tile, operand, when, self._notes)

    def _mask(self, details: _Details) -> tp.Mask:
        fill = self._of.fill(details.require("fill"))
        where, when = details.masked(), details.number("when", True)
        (operand,) = self._operands()
        return tp.Mask(
            self._result, self._tile, operand, fill, where, when, self._notes
        )

    def _merge(self, details: _Details) -> tp.Merge:
        if not details.has("sides"):
            raise details.missing("sides")
        (operand,) = self._operands()
        return tp.Merge(self._result, self._tile, operand, details.sides(), self._notes)

    def _lane(self, details: _Details) -> tp.Lane:
        dims, at = details.dims("along"), details.number("at", -1)
        if len(dims) != 1:
            raise details.missing("along")
        if not isinstance(at, int) or at < 0:
            raise details.missing("at")
        (operand,) = self._operands()
        return tp.Lane(self._result, self._tile, operand, dims[0], at, self._notes)

    def _join(self, details: _Details) -> tp.Join:
        dims = details.dims("along")
        if len(dims) != 1:
            raise details.missing("along")
        first, second = self._operands()
        return tp.Join(self._result, self._tile, first, second, dims[0], self._notes)

    def _largest(self, details: _Details) -> tp.Largest:
        last, scale = self._of.name(details.require("last")), details.name("scale")
        (operand,) = self._operands()
        return tp.Largest(self._result, self._tile, operand, last, scale, self._notes)

    def _product(self, details: _Details) -> tp.Product:
        left, right = self._operands()
        return tp.Product(
            self._result,
            self._tile,
            left,
            right,
            details.dims("batch"),
            details.dims("rows"),
            details.dims("columns"),
            details.dims("over"),
            details.number("wgmma", False),
            details.choice("precision", ("storage", "tf32", "ieee")),
            details.name("into"),
            self._notes,
        )

    def _reduction(self, word: Word) -> Operator | None:
        return _rows(Kind.REDUCTION).get(word.text)

    def _reduce(self, word: Word, details: _Details) -> tp.Reduce:
        op = self._reduction(word)
        assert op is not None
        if not details.has("over"):
            raise details.missing("over")
        (operand,), over = self._operands(), details.dims("over")
        halves = details.number("halves", False)
        return tp.Reduce(
            self._result, self._tile, op, operand, over, halves, self._notes
        )

    def _scan(self, op: Operator, details: _Details) -> tp.Scan:
        dims = details.dims("along")
        if len(dims) != 1:
            raise details.missing("along")
        (operand,) = self._operands()
        return tp.Scan(self._result, self._tile, op, operand, dims[0], self._notes)

    # -- Arithmetic ----------------------------------------------------------------

    def _compute(self) -> tp.Compute:
        form, inner = self._action.call, None
        assert form is not None
        op = self._operator(form)
        arguments = form.arguments
        if len(arguments) == 1 and isinstance(arguments[0], CallForm):
            inner, arguments = self._operator(arguments[0]), arguments[0].arguments
        operands = tuple(self._operand(a) for a in arguments)
        return tp.Compute(
            self._result,
            self._tile,
            op,
            operands,
            inner,
            bool(self._action.details),
            self._notes,
        )

    def _operator(self, form: CallForm) -> Operator:
        word = form.operator
        rows = {
            key: op
            for op in OPERATORS.values()
            if op.kind is Kind.ELEMENTWISE
            for key in (op.name, op.sign)
            if key is not None
        }
        found = rows.get(word.text)
        if found is None:
            hint = suggest(word.text, rows, "operators")
            raise self._source.wrong(word, f"unknown operator `{word}`{hint}")
        if found.arity not in (-1, len(form.arguments)):
            raise self._source.wrong(
                word,
                f"{found.name} takes {counted(found.arity, 'operand')}, found "
                f"{len(form.arguments)}",
            )
        return found

    def _operand(self, form: CallForm | Word) -> Operand:
        if isinstance(form, CallForm):
            raise self._source.wrong(
                form.operator,
                "found an operation in another one of several operands; name its "
                "result on a line of its own",
            )
        if form.text.startswith("`") or is_name(re.split(r"[./]", form.text)[0]):
            return self._of.name(form)
        return self._of.resolver.constant(form)


def _rows(kind: Kind) -> dict[str, Operator]:
    return {n: op for n, op in OPERATORS.items() if op.kind is kind}
