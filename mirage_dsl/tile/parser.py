"""Reads tile programs from text: the inverse of `printer`.

The language is described in `docs/text-format.md`.  What is read is in the language,
and its numbers, formats and dims are known; whether it is well formed says `check`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, get_args

from mirage_dsl.core.errors import ParseError
from mirage_dsl.core.types import Dim, is_name
from mirage_dsl.ir.graph import LoopBound, Operand, Schedule, Split
from mirage_dsl.ir.text.applications import Resolver
from mirage_dsl.ir.text.forms import (
    ClauseForm,
    DimForm,
    GraphForm,
    Source,
    TypeForm,
    Word,
    counted,
    suggest,
)
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.ops.table import OPERATORS, SUM
from mirage_dsl.tile.printer import VERSION
from mirage_dsl.tile.program import (
    Along,
    Announce,
    Ask,
    Cast,
    Compute,
    Convert,
    Finite,
    Lane,
    Largest,
    Load,
    Loop,
    Mask,
    Merge,
    Note,
    Notes,
    Part,
    Pick,
    Positions,
    Product,
    Reduce,
    Rescale,
    Scan,
    Start,
    Statement,
    Store,
    Tile,
    TileProgram,
    Update,
    Wait,
)
from mirage_dsl.tile.sizes import OPERATIONS, Formula, Number, Order
from mirage_dsl.tile.syntax import (
    ActionForm,
    AskForm,
    AssignForm,
    BareForm,
    BlockForm,
    CallForm,
    CarryForm,
    ChangeForm,
    DetailForm,
    HeadForm,
    LineForm,
    LoopForm,
    NumberForm,
    ProgramForm,
    StoreForm,
    read,
)


def parse(text: str, filename: str = "<tiles>") -> TileProgram:
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


def parse_all(text: str, filename: str = "<tiles>") -> tuple[TileProgram, ...]:
    """All tile programs of a text, in order.

    Raises:
        ParseError: The text is not in the language.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParseError(
            f"expected the text of tile programs, found {type(text).__name__}"
        )
    source = Source(filename, text)
    _require_version(source)
    try:
        return tuple(_Program(form, source).program() for form in read(source))
    except RecursionError:
        raise ParseError(
            "the formulas are nested too deeply; expected what `to_text` writes",
            source.whole(),
        ) from None


def _require_version(source: Source) -> None:
    """Refuse a text of another kind or version before its syntax is looked at."""
    for number, line in enumerate(source.text.split("\n"), 1):
        content = line.split("//")[0].strip()
        if not content:
            continue
        word = Word(content, number, line.index(content[0]) + 1)
        found = re.fullmatch(r"tiles\s+0*([0-9]+)", content)
        if found is None:
            raise source.wrong(
                word,
                f"found `{word}`, expected `tiles {VERSION}`: a text of tile programs "
                "begins with its version",
            )
        if found[1] != str(VERSION):
            raise source.wrong(
                word,
                f"this is version {found[1][:20]} of the text of tile programs; this "
                f"program reads version {VERSION}",
            )
        return
    raise ParseError(f"the text is empty, expected `tiles {VERSION}`", source.whole())


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
        "largest": ("last", "scale"),
        "@": ("batch", "rows", "columns", "over", "wgmma", "precision", "into"),
        "ask": ("tiles", "when"),
        "side": ("rows", "columns", "over"),
        "pieces": ("pieces", "units"),
        "warps": ("warps",),
    }
)
"""The details that a word takes; a reduction takes `over`."""
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

    def dims(self, name: str) -> Order:
        detail = self._given.get(name)
        return () if detail is None else self._program.dims(detail.dims)

    def number(self, name: str, default: Number) -> Number:
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

    def masked(self) -> tuple[tuple[Dim, Number], ...]:
        detail = self._given.get("where")
        if detail is None:
            return ()
        of = self._program
        return tuple(
            (of.dim(m.dim), True if m.when is None else of.number(m.when))
            for m in detail.masked
        )

    def sides(self) -> tuple[Order, ...]:
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
        return self._program.source.wrong(
            self._of, f"`{self._of}` needs `{name}(...)`, found none"
        )


class _Program:
    """Makes a program of its form."""

    def __init__(self, form: ProgramForm, source: Source) -> None:
        self.form = form
        self.source = source
        head = GraphForm(form.name, (), (), form.sizes, ())
        self.resolver = Resolver(source, head)

    def program(self) -> TileProgram:
        form, heads = self.form, _Heads(self)
        tensors = {
            self.name(n): self.resolver.type(t, pieces=False) for n, t in form.tensors
        }
        if len(tensors) < len(form.tensors):
            raise self.source.wrong(form.name, "a tensor is named twice in the header")
        body = tuple(s for line in form.lines for s in self._line(line, heads))
        return TileProgram(
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

    def dims(self, forms: Iterable[DimForm]) -> Order:
        return tuple(self.dim(f) for f in forms)

    def tile(self, form: TypeForm) -> Tile:
        """The type of a value: one piece for each axis, no layout."""
        found = self.resolver.type(form, pieces=True)
        if form.layout is not None or any(len(a) != 1 for a in found.axes):
            raise self.source.wrong(
                form.dtype,
                f"found {found}, expected a tile: one piece for each axis, slowest "
                "first, and no layout",
            )
        return Tile(found.dtype, tuple(d for axis in found.axes for d in axis))

    def fill(self, word: Word) -> float:
        """A number without extents."""
        found = self.resolver.constant(word)
        if found.extents:
            raise self.source.wrong(word, f"found {word}, expected a plain number")
        return found.at({})

    def number(self, form: NumberForm) -> Number:
        """A formula, or a number."""
        word, args = form.word, form.args
        if not args:
            return self._leaf(word)
        if word.text in ("lanes", "loose", "ends"):
            (dim,) = args
            assert isinstance(dim, DimForm)
            return Formula(word.text, (self.dim(dim),))
        op = _SIGNS.get(word.text)
        if op is None:
            raise self.source.wrong(
                word,
                f"unknown function {word}{suggest(word.text, _SIGNS, 'functions')}",
            )
        found = tuple(self.number(a) for a in args if isinstance(a, NumberForm))
        expected = OPERATIONS[op].text.count("{")
        if len(found) != expected:
            raise self.source.wrong(
                word, f"`{word}` takes {expected} numbers, found {len(found)}"
            )
        return Formula(op, found)

    def _leaf(self, word: Word) -> Number:
        match word.text:
            case "warps" | "stages":
                return Formula(word.text)
            case "True" | "False" | "true" | "false":
                return word.text in ("True", "true")
            case text if text.isdecimal():
                return self.resolver.integer(word, 0)
            case text:
                known = ("warps", "stages", "lanes", "loose", "ends", "True", "False")
                hint = suggest(text, known, "numbers")
                raise self.source.wrong(word, f"found {word}, expected a number{hint}")

    # -- Lines ---------------------------------------------------------------------

    def _line(self, line: LineForm, heads: _Heads | None) -> list[Statement]:
        if isinstance(line, BlockForm | HeadForm):
            if heads is None:
                raise self.source.wrong(
                    line.word, f"`{line.word}` stands before the loop, found it inside"
                )
            heads.add(line)
            return []
        return [self._statement(line)]

    def notes(self, word: Word) -> Notes:
        """The line of the text, for errors."""
        place = self.source.at(word)
        return (Note(place.text.strip(), place),)

    def _statement(self, line: LineForm) -> Statement:
        match line:
            case AssignForm():
                return _Assigned(self, line).statement()
            case CarryForm():
                value, notes = self.fill(line.value), self.notes(line.name)
                return Start(self.name(line.name), self.tile(line.type), value, notes)
            case StoreForm():
                return self._store(line)
            case AskForm():
                return self._ask(line)
            case ChangeForm():
                return self._change(line)
            case BareForm():
                of = Wait if line.word.text == "wait" else Announce
                return of(self.notes(line.word))
            case LoopForm():
                body = tuple(s for inner in line.lines for s in self._line(inner, None))
                dim = self.resolver.dim_name(line.dim)
                word = None if line.part is None else line.part.text
                part = next(p for p in get_args(Part) if p == (word or ""))
                return Loop(dim, body, part, self.notes(line.word))
            case BlockForm() | HeadForm():
                raise AssertionError(line)

    def _store(self, line: StoreForm) -> Store:
        if line.type.layout is not None:
            raise self.source.wrong(
                line.type.layout[0] if line.type.layout else line.name,
                "a store has no layout; it stands with the tensor in the header",
            )
        axes = self.resolver.axes(line.type.axes, pieces=True)
        dtype = self.resolver.dtype(line.type.dtype)
        operand = self.name(line.operand)
        return Store(self.name(line.name), operand, axes, dtype, self.notes(line.name))

    def _ask(self, line: AskForm) -> Ask:
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
        return Ask(self.name(word), axes, tiles, when, self.notes(word))

    def _change(self, line: ChangeForm) -> Statement:
        target, operand = self.name(line.target), self.name(line.operand)
        notes = self.notes(line.target)
        if line.sign.text == "*=":
            return Rescale(target, operand, notes)
        if line.sign.text == "+=":
            return Update(target, operand, SUM, notes)
        reductions = {n: o for n, o in OPERATORS.items() if o.in_steps}
        reduction = reductions.get(line.sign.text.removesuffix("="))
        if reduction is None:
            signs = ["+=", "*=", *(f"{n}=" for n in reductions if n != SUM.name)]
            raise self.source.wrong(
                line.sign,
                f"{line.sign} is no sign of an update"
                + suggest(line.sign.text, signs, "signs"),
            )
        return Update(target, operand, reduction, notes)


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
        self.pieces: Order = ()
        self.units: frozenset[Dim] = frozenset()
        self.sides: list[tuple[Order, Order, Order]] = []
        self.warps: Number = self.schedule.num_warps

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
            case _:
                self.warps = details.number("warps", self.warps)

    def _block(self, line: BlockForm) -> None:
        given: set[str] = set()
        for clause in line.clauses:
            if clause.name.text in given:
                raise self._source.wrong(clause.name, f"{clause.name} is given twice")
            given.add(clause.name.text)
            match clause.name.text:
                case "grid":
                    self.grid = self._splits(clause)
                case "loop":
                    self.loop = self._loop(clause)
                case "while":
                    resolver = self._program.resolver
                    found = (resolver.bound(b, self.loop) for b in clause.bounds)
                    self.bounds = tuple(found)
                case "whole":
                    resolver = self._program.resolver
                    found = (resolver.bound(b, self.loop) for b in clause.bounds)
                    self.whole = tuple(found)
                case "within_grid":
                    self.within_grid = self._parameter(clause, default=False)
                case _:
                    self._scheduled(clause)

    def _loop(self, clause: ClauseForm) -> Split:
        splits = self._splits(clause)
        if len(splits) != 1:
            raise self._source.wrong(
                clause.name, f"loop takes one dim, found {len(splits)}"
            )
        return splits[0]

    def _splits(self, clause: ClauseForm) -> tuple[Split, ...]:
        found: list[Split] = []
        for at, (dim, tile) in enumerate(clause.values):
            if tile is None:
                raise self._source.wrong(
                    dim, f"{clause.name} needs a tile: {clause.name}({dim} / 64)"
                )
            name = self._program.resolver.dim_name(dim)
            beside = at in clause.beside
            integer = self._program.resolver.integer(tile, 1)
            found.append(Split(name, integer, beside))
        return tuple(found)

    def _scheduled(self, clause: ClauseForm) -> None:
        known = {f.name: getattr(Schedule(), f.name) for f in fields(Schedule)}
        name = clause.name
        if name.text not in known:
            options = ("grid", "loop", "within_grid", *known)
            hint = suggest(name.text, options, "parameters")
            raise self._source.wrong(name, f"a block has no parameter {name}{hint}")
        value = self._parameter(clause, default=known[name.text])
        self.schedule = replace(self.schedule, **{name.text: value})

    def _parameter(self, clause: ClauseForm, *, default: bool | int) -> Any:
        """The value of a parameter, of the type of its default."""
        name = clause.name
        if len(clause.values) != 1:
            raise self._source.wrong(
                name, f"{name} takes one value, found {len(clause.values)}"
            )
        ((word, _),) = clause.values
        if not isinstance(default, bool):
            return self._program.resolver.integer(word, 0)
        if word.text not in ("true", "false"):
            raise self._source.wrong(word, f"{name} is true or false, found {word}")
        return word.text == "true"


class _Assigned:
    """Makes a statement of the form `x: f32[m] = ...`."""

    def __init__(self, program: _Program, line: AssignForm) -> None:
        self._of, self._source = program, program.source
        self._action: ActionForm = line.action
        self._result = program.name(line.name)
        self._tile = program.tile(line.type)
        self._notes: Notes = program.notes(line.name)
        word = line.action.word
        self._word = line.name if word is None else word

    def statement(self) -> Statement:
        word = self._action.word
        if word is None:
            return self._compute()
        make = self._makers().get(word.text)
        scan = _rows(Kind.SCAN).get(word.text)
        known = _DETAILS.get(word.text, ("over",) if scan is None else ("along",))
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

    def _makers(self) -> Mapping[str, Callable[[_Details], Statement]]:
        return {
            "load": self._load,
            "positions": self._positions,
            "pick": self._pick,
            "cast": lambda _: Cast(*self._plain()),
            "finite": self._finite,
            "convert": self._convert,
            "mask": self._mask,
            "merge": self._merge,
            "lane": self._lane,
            "largest": self._largest,
            "@": self._product,
        }

    def _plain(self) -> tuple[str, Tile, str, Notes]:
        return self._result, self._tile, self._operands()[0], self._notes

    def _operands(self) -> tuple[str, ...]:
        return tuple(self._of.name(v) for v in self._action.values)

    def _load(self, details: _Details) -> Load:
        axes = self._of.resolver.axes(self._action.axes, pieces=True)
        return Load(
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

    def _along(self, details: _Details) -> Along | None:
        dims, index = details.dims("along"), details.name("index")
        if not dims and index is None:
            return None
        if index is None:
            raise details.missing("index")
        if len(dims) != 1:
            raise details.missing("along")
        known = details.choice("known", ("no", "apart", "in_row"))
        under, unless = details.name("under"), details.name("unless")
        return Along(dims[0], index, known, under or unless, unless is None)

    def _positions(self, _: _Details) -> Positions:
        (axis,) = self._of.resolver.axes(self._action.axes, pieces=True)
        return Positions(self._result, self._tile, axis, self._notes)

    def _finite(self, details: _Details) -> Finite:
        fill = details.word("fill")
        (operand,) = self._operands()
        neutral = -math.inf if fill is None else self._of.fill(fill)
        return Finite(self._result, self._tile, operand, neutral, self._notes)

    def _pick(self, details: _Details) -> Pick:
        if not details.has("when"):
            raise details.missing("when")
        operand, other = self._operands()
        when = details.number("when", True)
        return Pick(self._result, self._tile, operand, other, when, self._notes)

    def _convert(self, details: _Details) -> Convert:
        (operand,), when = self._operands(), details.number("when", True)
        return Convert(self._result, self._tile, operand, when, self._notes)

    def _mask(self, details: _Details) -> Mask:
        fill = self._of.fill(details.require("fill"))
        where, when = details.masked(), details.number("when", True)
        (operand,) = self._operands()
        return Mask(self._result, self._tile, operand, fill, where, when, self._notes)

    def _merge(self, details: _Details) -> Merge:
        if not details.has("sides"):
            raise details.missing("sides")
        (operand,) = self._operands()
        return Merge(self._result, self._tile, operand, details.sides(), self._notes)

    def _lane(self, details: _Details) -> Lane:
        dims, at = details.dims("along"), details.number("at", -1)
        if len(dims) != 1:
            raise details.missing("along")
        if not isinstance(at, int) or at < 0:
            raise details.missing("at")
        (operand,) = self._operands()
        return Lane(self._result, self._tile, operand, dims[0], at, self._notes)

    def _largest(self, details: _Details) -> Largest:
        last, scale = self._of.name(details.require("last")), details.name("scale")
        (operand,) = self._operands()
        return Largest(self._result, self._tile, operand, last, scale, self._notes)

    def _product(self, details: _Details) -> Product:
        left, right = self._operands()
        return Product(
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

    def _reduce(self, word: Word, details: _Details) -> Reduce:
        op = self._reduction(word)
        assert op is not None
        if not details.has("over"):
            raise details.missing("over")
        (operand,), over = self._operands(), details.dims("over")
        return Reduce(self._result, self._tile, op, operand, over, self._notes)

    def _scan(self, op: Operator, details: _Details) -> Scan:
        dims = details.dims("along")
        if len(dims) != 1:
            raise details.missing("along")
        (operand,) = self._operands()
        return Scan(self._result, self._tile, op, operand, dims[0], self._notes)

    # -- Arithmetic ----------------------------------------------------------------

    def _compute(self) -> Compute:
        form, inner = self._action.call, None
        assert form is not None
        op = self._operator(form)
        arguments = form.arguments
        if len(arguments) == 1 and isinstance(arguments[0], CallForm):
            inner, arguments = self._operator(arguments[0]), arguments[0].arguments
        operands = tuple(self._operand(a) for a in arguments)
        return Compute(
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


__all__ = ["parse", "parse_all"]
