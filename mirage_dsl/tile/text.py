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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

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
    units, few = (tuple(sorted(dims)) for dims in (program.units, program.few))
    head = {"pieces": program.pieces, "units": units, "few": few}
    yield _INDENT + " ".join(_written(_HEADS["pieces"], head))
    for side in program.sides:
        groups = {r.field: d for r, d in zip(_HEADS["side"], side, strict=True)}
        yield _INDENT + _words("side", *_written(_HEADS["side"], groups))
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
    names = [quoted(getattr(statement, n)) for n in _STEPS[type(statement)].operands]
    match statement:
        case tp.Load():
            return f"load {_read(statement)}"
        case tp.Positions():
            return f"positions [{axis_text(statement.at)}]"
        case tp.Compute():
            return _application(statement)
        case tp.Product():
            return " @ ".join(names)
        case tp.Reduce() | tp.Scan():
            return f"{statement.op.name} {names[0]}"
        case _:
            return f"{_word_of(type(statement))} {', '.join(names)}"


def _details(statement: tp.Assignment | tp.Ask) -> Iterator[str]:
    """What differs from the defaults, each as `word(...)`."""
    said = dict(vars(statement))
    if isinstance(statement, tp.Load) and statement.along is not None:
        said |= vars(statement.along) | {"along": statement.along.dim}
        if not statement.along.holds:
            said |= {"unless": said.pop("under")}
    yield from _written(_STEPS[type(statement)].details, said)
    if isinstance(statement, tp.Compute) and statement.rounded:
        yield "rounded"


def _written(rows: Iterable[_Detail], said: Mapping[str, Any]) -> Iterator[str]:
    """The details of some fields that differ from the defaults, in their order."""
    for row in rows:
        value = said.get(row.field, row.default)
        if value != row.default:
            yield f"{row.name}({row.brackets.show(value)})"


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


def _listed(dims: Iterable[Dim]) -> str:
    return ", ".join(map(str, dims))


def _masked(places: Iterable[tuple[Dim, tp.Number]]) -> str:
    return ", ".join(f"{d}" if when is True else f"{d}: {when}" for d, when in places)


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
    """`over(k/loop)`, `when(warps >= 4)`, `into(total)`, `fill(-inf)`, `rounded`.

    Attributes:
        name: The word.
        value: What stands in the brackets: dims, or several times dims; a number; a
            word; what is masked.  It follows from the word.
    """

    name: Word
    value: Any = None


@dataclass(frozen=True)
class ActionForm:
    """What stands right of `=`: a word, what it is applied to, and details.

    Or `ask w[k/loop, n/grid] tiles(2)`, which is a line.

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
    | ActionForm
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


# -- Details ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Brackets:
    """How what stands in the brackets of a detail is written, and read."""

    show: Callable[[Any], str]
    read: Callable[[_Program, DetailForm], Any]


def _choice(*options: str) -> _Brackets:
    """One of some words."""
    return _Brackets(str, lambda of, form: of.choice(form, options))


_DIMS = _Brackets(_listed, lambda of, form: of.dims(form.value))
_DIM = _Brackets(str, lambda of, form: of.one_dim(form))
_SIDES = _Brackets(
    lambda sides: "; ".join(map(_listed, sides)),
    lambda of, form: tuple(map(of.dims, form.value)),
)
_NUMBER = _Brackets(str, lambda of, form: of.number(form.value))
_COUNT = _Brackets(str, lambda of, form: of.count(form))
_FILL = _Brackets(_number, lambda of, form: of.fill(form.value))
_MASKED = _Brackets(_masked, lambda of, form: of.masked(form.value))
_NAME = _Brackets(quoted, lambda of, form: of.name(form.value))

_NEEDED = object()
"""The default of what has to be said."""


@dataclass(frozen=True)
class _Detail:
    """What is said of a statement behind its operands, as `word(...)`.

    Attributes:
        field: Of the statement.
        brackets: How it is written and read.
        default: What the field is where nothing is said, or `_NEEDED`.
        word: The word, if that is not the field's name.
    """

    field: str
    brackets: _Brackets
    default: Any = _NEEDED
    word: str = ""

    @property
    def name(self) -> str:
        """The word."""
        return self.word or self.field


@dataclass(frozen=True)
class _Step:
    """What stands right of `=` in a kind of statement.

    Attributes:
        operands: The fields that are named behind its word, in order.
        details: What is said behind them.
    """

    operands: tuple[str, ...] = ("operand",)
    details: tuple[_Detail, ...] = ()


_ALONG = (
    _Detail("along", _DIM, None),
    _Detail("index", _NAME, None),
    _Detail("known", _choice("no", "apart", "in_row"), "no"),
    _Detail("under", _NAME, None),
    _Detail("unless", _NAME, None),
)
"""What is said of a load at data (`tile.program.Along`)."""
_WHEN = _Detail("when", _NUMBER, True)
_STEPS: Mapping[type, _Step] = {
    tp.Load: _Step(
        ("source",),
        (
            *_ALONG,
            _Detail("via", _choice("pointer", "descriptor"), "pointer", word="by"),
            _Detail("guarded", _DIMS, ()),
            _Detail("buffers", _NUMBER, 0),
            _WHEN,
            _Detail("instead", _NAME, None),
            _Detail("early", _COUNT, 0),
        ),
    ),
    tp.Positions: _Step(()),
    tp.Compute: _Step(()),
    tp.Cast: _Step(),
    tp.Finite: _Step(details=(_Detail("fill", _FILL, -math.inf),)),
    tp.Convert: _Step(details=(_WHEN,)),
    tp.Mask: _Step(
        details=(_Detail("fill", _FILL), _Detail("where", _MASKED, ()), _WHEN)
    ),
    tp.Merge: _Step(details=(_Detail("sides", _SIDES),)),
    tp.Lane: _Step(details=(_Detail("along", _DIM), _Detail("at", _COUNT))),
    tp.Join: _Step(("operand", "other"), (_Detail("along", _DIM),)),
    tp.Pick: _Step(("operand", "other"), (_Detail("when", _NUMBER),)),
    tp.Reduce: _Step(
        details=(_Detail("over", _DIMS), _Detail("halves", _NUMBER, False))
    ),
    tp.Scan: _Step(details=(_Detail("along", _DIM),)),
    tp.Product: _Step(
        ("left", "right"),
        (
            *(_Detail(name, _DIMS, ()) for name in ("batch", "rows", "columns")),
            _Detail("over", _DIMS),
            _Detail("wgmma", _NUMBER, False),
            _Detail("precision", _choice("storage", "tf32", "ieee"), "storage"),
            _Detail("into", _NAME, None),
        ),
    ),
    tp.Largest: _Step(
        details=(_Detail("state", _NAME, word="last"), _Detail("scale", _NAME, None))
    ),
    tp.Ask: _Step((), (_Detail("tiles", _COUNT), _WHEN)),
}
"""Statements of the form `x: f32[m] = ...`, and `ask`."""
_HEADS: Mapping[str, tuple[_Detail, ...]] = {
    "side": (
        *(_Detail(name, _DIMS, ()) for name in ("rows", "columns")),
        _Detail("over", _DIMS),
    ),
    "pieces": (
        _Detail("pieces", _DIMS),
        *(_Detail(name, _DIMS, ()) for name in ("units", "few")),
    ),
    "warps": (_Detail("warps", _NUMBER),),
}
"""Lines about pieces, and what is said in them."""


def _word_of(kind: type) -> str:
    """The word that a step begins with."""
    return "@" if kind is tp.Product else kind.__name__.lower()


_BY_OPERATOR = {Kind.REDUCTION: tp.Reduce, Kind.SCAN: tp.Scan}
"""Steps whose word is an operator's name."""
_BY_WORD: Mapping[str, type[Any]] = {
    _word_of(kind): kind
    for kind in _STEPS
    if kind not in (tp.Compute, tp.Ask, *_BY_OPERATOR.values())
}
"""The other ones; arithmetic has no word."""


# -- Reading ---------------------------------------------------------------------------


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

    def step(self, token: Token, *parts: Any) -> ActionForm:
        values = tuple(p for p in parts if isinstance(p, Word))
        details = tuple(p for p in parts if isinstance(p, DetailForm))
        axes = next((p for p in parts if isinstance(p, tuple)), ())
        return ActionForm(word(token), values, axes, details=details)

    load = positions = pick = ask = step

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
        return DetailForm(word(name), dims or ())

    def sides(self, name: Token, *sides: tuple[DimForm, ...]) -> DetailForm:
        return DetailForm(word(name), sides)

    def number_clause(self, name: Token, number: NumberForm) -> DetailForm:
        return DetailForm(word(name), number)

    def name_clause(self, name: Token, value: Word) -> DetailForm:
        return DetailForm(word(name), value)

    def fill_clause(self, name: Token, value: Token) -> DetailForm:
        return DetailForm(word(name), word(value))

    def where_clause(self, name: Token, *masked: MaskedForm) -> DetailForm:
        return DetailForm(word(name), masked)

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
    rows = (*(s.details for s in _STEPS.values()), *_HEADS.values())
    return read_with(_grammar(), source, _KEYWORDS | {d.name for r in rows for d in r})


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


_SIGNS: Mapping[str, str] = MappingProxyType(
    {"|": "or", "&": "and", "not": "not", ">=": "ge", ">": "gt", "+": "add"}
    | {"-": "sub", "*": "mul", "div": "div", "if": "if", "max": "max", "min": "min"}
)
"""What operations of formulas are called in texts."""


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

    # -- Details -------------------------------------------------------------------

    def details(
        self, of: Word, given: Iterable[DetailForm], rows: Sequence[_Detail]
    ) -> dict[str, Any]:
        """What is said of a statement, or of a line, by the names of fields."""
        known, said = {row.name: row for row in rows}, dict[str, Any]()
        for form in given:
            name = form.name
            if name.text not in known:
                hint = suggest(name.text, known, "details")
                raise self.source.wrong(name, f"`{of}` takes no `{name}`{hint}")
            row = known[name.text]
            if row.field in said:
                raise self.source.wrong(name, f"`{name}` is given twice")
            said[row.field] = row.brackets.read(self, form)
        for row in rows:
            if row.default is _NEEDED and row.field not in said:
                raise self.missing(of, row.name)
        return {row.field: said.get(row.field, row.default) for row in rows}

    def missing(self, of: Word, name: str) -> ParseError:
        return self.source.wrong(of, f"`{of}` needs `{name}(...)`, found none")

    def one_dim(self, form: DetailForm) -> Dim:
        dims = self.dims(form.value)
        if len(dims) != 1:
            what = f"`{form.name}` takes one dim, found {len(dims)}"
            raise self.source.wrong(form.name, what)
        return dims[0]

    def count(self, form: DetailForm) -> int:
        """A number that no size changes."""
        found = self.number(form.value)
        if isinstance(found, tp.Formula):
            what = f"{form.name}({found}): expected a plain number"
            raise self.source.wrong(form.name, what)
        return found

    def choice(self, form: DetailForm, options: Sequence[str]) -> str:
        """One of some words."""
        found: Word = form.value
        if found.text not in options:
            hint = suggest(found.text, options, "choices")
            raise self.source.wrong(found, f"unknown {form.name} `{found}`{hint}")
        return found.text

    def masked(self, forms: Iterable[MaskedForm]) -> tuple[tuple[Dim, tp.Number], ...]:
        """Pieces, each with when it is masked."""
        return tuple(
            (self.dim(m.dim), True if m.when is None else self.number(m.when))
            for m in forms
        )

    # -- Numbers -------------------------------------------------------------------

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
                    self.name(line.name), self.tile(line.type), value, notes=notes
                )
            case StoreForm():
                return self._store(line)
            case ActionForm():
                return self._ask(line)
            case ChangeForm():
                return self._change(line)
            case BareForm():
                of = tp.Wait if line.word.text == "wait" else tp.Announce
                return of(notes=self.notes(line.word))
            case LoopForm():
                body = tuple(s for inner in line.lines for s in self._line(inner, None))
                dim = self.resolver.dim_name(line.dim)
                word = None if line.part is None else line.part.text
                part = next(p for p in get_args(tp.Part) if p == (word or ""))
                return tp.Loop(dim, body, part, notes=self.notes(line.word))
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
            self.name(line.name), operand, axes, dtype, notes=self.notes(line.name)
        )

    def _ask(self, line: ActionForm) -> tp.Ask:
        word, (source,) = line.word, line.values
        assert word is not None
        said = self.details(word, line.details, _STEPS[tp.Ask].details)
        axes = self.resolver.axes(line.axes, pieces=True)
        return tp.Ask(self.name(source), axes, notes=self.notes(word), **said)

    def _change(self, line: ChangeForm) -> tp.Statement:
        target, operand = self.name(line.target), self.name(line.operand)
        notes = self.notes(line.target)
        if line.sign.text == "*=":
            return tp.Rescale(target, operand, notes=notes)
        if line.sign.text == "+=":
            return tp.Update(target, operand, SUM, notes=notes)
        reductions = {n: o for n, o in OPERATORS.items() if o.in_steps}
        reduction = reductions.get(line.sign.text.removesuffix("="))
        if reduction is None:
            signs = ["+=", "*=", *(f"{n}=" for n in reductions if n != SUM.name)]
            raise self.source.wrong(
                line.sign,
                f"{line.sign} is no sign of an update"
                + suggest(line.sign.text, signs, "signs"),
            )
        return tp.Update(target, operand, reduction, notes=notes)


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
        kind = word.text if word.text in _HEADS else "pieces"
        said = self._program.details(word, line.details, _HEADS[kind])
        match kind:
            case "side":
                self.sides.append((said["rows"], said["columns"], said["over"]))
            case "pieces":
                self.pieces = said["pieces"]
                self.units, self.few = frozenset(said["units"]), frozenset(said["few"])
            case _:
                self.warps = said["warps"]

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
        action, word = self._action, self._action.word
        if word is None:
            return self._compute()
        kind, said = self._kind(word)
        row = _STEPS[kind]
        names = map(self._of.name, action.values)
        said |= dict(zip(row.operands, names, strict=True))
        said |= self._of.details(word, action.details, row.details)
        if kind in (tp.Load, tp.Positions):
            said["at"] = self._of.resolver.axes(action.axes, pieces=True)
        if kind is tp.Load:
            said["along"] = self._along(word, said)
        elif kind is tp.Positions:
            said["at"] = self._one_axis(word, said["at"])
        return kind(result=self._result, tile=self._tile, notes=self._notes, **said)

    def _kind(self, word: Word) -> tuple[type[Any], dict[str, Any]]:
        """The class of a step, and its operator, if it has one."""
        if word.text in _BY_WORD:
            return _BY_WORD[word.text], {}
        op = OPERATORS.get(word.text)
        if op is not None and op.kind in _BY_OPERATOR:
            return _BY_OPERATOR[op.kind], {"op": op}
        named = (n for n, o in OPERATORS.items() if o.kind in _BY_OPERATOR)
        hint = suggest(word.text, (*_BY_WORD, *named), "steps")
        raise self._source.wrong(word, f"unknown step `{word}`{hint}")

    def _along(self, word: Word, said: dict[str, Any]) -> tp.Along | None:
        """Where a load is along a dim at data, of what is said of it."""
        dim, index, known, under, unless = (said.pop(d.field) for d in _ALONG)
        if dim is None and index is None:
            return None
        if dim is None or index is None:
            raise self._of.missing(word, "along" if dim is None else "index")
        return tp.Along(dim, index, known, under or unless, unless is None)

    def _one_axis(self, word: Word, axes: tuple[Axis, ...]) -> Axis:
        if len(axes) != 1:
            what = f"`{word}` is of one axis, found {len(axes)}"
            raise self._source.wrong(word, what)
        return axes[0]

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
            notes=self._notes,
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
