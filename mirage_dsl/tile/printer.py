"""Prints tile programs as text, so that `parser` reads the same programs back.

The text is described in `docs/text-format.md`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import assert_never

from mirage_dsl.core.types import Axis, axis_text, is_name, scalar
from mirage_dsl.ir.graph import Operand, Schedule, Split
from mirage_dsl.ir.text.printer import bounds_text
from mirage_dsl.ops.definition import Operator
from mirage_dsl.ops.table import SUM
from mirage_dsl.tile.program import (
    Announce,
    Ask,
    Assignment,
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
from mirage_dsl.tile.sizes import Number

VERSION = 1
"""Version of the text format, in its first line."""

KEYWORDS = frozenset(
    {"tile", "where", "block", "side", "carry", "store", "ask", "wait", "announce"}
    | {"loop", "load", "pick", "rounded", "if", "else", "not"}
)
"""Words that are names of values only between backticks."""

_INDENT = "  "
_WIDTH = 96


def to_text(*programs: TileProgram) -> str:
    """Tile programs as text, ending in a newline."""
    lines = [f"tiles {VERSION}"]
    for program in programs:
        lines += ["", *_program(program)]
    return "\n".join(lines) + "\n"


def quoted(name: str) -> str:
    """A name as it stands in a text: between backticks if it is no plain word.

    Plain words may have parts: `x/mask`, `q.1`.
    """
    first, *parts = re.split(r"[./]", name)
    plain = is_name(first) and all(re.fullmatch(r"\w+", p) for p in parts)
    if plain and name not in KEYWORDS:
        return name
    escaped = re.sub(r"[\\`\x00-\x1f\x7f-\x9f\u2028\u2029]", _escaped, name)
    return f"`{escaped}`"


def _escaped(found: re.Match[str]) -> str:
    sign = found[0]
    return f"\\{sign}" if sign in "\\`" else f"\\u{ord(sign):04x}"


# -- Heads -----------------------------------------------------------------------------


def _program(program: TileProgram) -> Iterator[str]:
    yield from _signature(program)
    yield _INDENT + " ".join(("block", *_block(program)))
    pieces = [_clause("pieces", program.pieces)]
    if program.units:
        pieces.append(_clause("units", sorted(program.units)))
    yield _INDENT + " ".join(pieces)
    for rows, columns, over in program.sides:
        groups = (("rows", rows), ("columns", columns), ("over", over))
        yield _INDENT + _words("side", *(_clause(n, g) for n, g in groups))
    yield f"{_INDENT}warps({program.warps})"
    yield from _lines(program.body, 1)
    yield "}"


def _signature(program: TileProgram) -> list[str]:
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


def _block(program: TileProgram) -> Iterator[str]:
    """The splits, and the parameters that differ from the defaults."""
    if program.grid:
        yield f"grid({_splits(program.grid)})"
    if program.loop is not None:
        yield f"loop({_splits((program.loop,))})"
        if program.bounds:
            yield bounds_text(program.bounds, program.loop.dim)
        if program.whole:
            yield bounds_text(program.whole, program.loop.dim, "whole")
    if program.within_grid:
        yield "within_grid(true)"
    default = Schedule()
    for field in fields(Schedule):
        value = getattr(program.schedule, field.name)
        if value != getattr(default, field.name):
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            yield f"{field.name}({shown})"


def _splits(splits: Iterable[Split]) -> str:
    found = ""
    for split in splits:
        sign = "" if not found else " & " if split.beside else ", "
        found += f"{sign}{split.dim} / {split.tile}"
    return found


# -- Statements ------------------------------------------------------------------------


def _lines(body: Iterable[Statement], depth: int) -> Iterator[str]:
    for statement in body:
        yield _INDENT * depth + statement_text(statement)
        if isinstance(statement, Loop):
            yield from _lines(statement.body, depth + 1)
            yield f"{_INDENT * depth}}}"


def statement_text(statement: Statement) -> str:
    """One line: a statement, or the line that opens a loop."""
    match statement:
        case Store():
            axes = ", ".join(map(axis_text, statement.at))
            name, operand = quoted(statement.result), quoted(statement.operand)
            return f"store {name}: {statement.dtype}[{axes}] = {operand}"
        case Ask():
            return _words("ask", _read(statement), *_details(statement))
        case Start():
            return f"carry {_typed(statement.result, statement.tile)} = " + _number(
                statement.value
            )
        case Rescale():
            return f"{quoted(statement.target)} *= {quoted(statement.scale)}"
        case Update():
            sign = "+=" if statement.op is SUM else f"{statement.op.name}="
            return f"{quoted(statement.target)} {sign} {quoted(statement.operand)}"
        case Wait():
            return "wait"
        case Announce():
            return "announce"
        case Loop():
            part = f"{statement.part} " if statement.part else ""
            return f"loop({statement.dim}) {part}{{"
        case _:
            left = _typed(statement.result, statement.tile)
            return _words(left, "=", _action(statement), *_details(statement))


def _action(statement: Assignment) -> str:
    """What stands right of the `=`, up to the details."""
    match statement:
        case Load():
            return f"load {_read(statement)}"
        case Positions():
            return f"positions [{axis_text(statement.at)}]"
        case Compute():
            return _application(statement)
        case Pick():
            return f"pick {quoted(statement.operand)}, {quoted(statement.other)}"
        case Product():
            return f"{quoted(statement.left)} @ {quoted(statement.right)}"
        case Reduce() | Scan():
            return f"{statement.op.name} {quoted(statement.operand)}"
        case Cast() | Finite() | Convert() | Mask() | Merge() | Lane() | Largest():
            word = type(statement).__name__.lower()
            return f"{word} {quoted(statement.operand)}"
        case _:
            assert_never(statement)


def _details(statement: Assignment | Ask) -> Iterator[str]:
    """What differs from the defaults, each as `word(...)`."""
    match statement:
        case Load():
            yield from _load_details(statement)
        case Product():
            yield from _product_details(statement)
        case Mask():
            yield from _mask_details(statement)
        case Compute():
            yield "rounded" if statement.rounded else ""
        case Merge():
            groups = (", ".join(map(str, side)) for side in statement.sides)
            yield f"sides({'; '.join(groups)})"
        case Lane():
            yield _clause("along", (statement.along,))
            yield f"at({statement.at})"
        case Reduce():
            yield _clause("over", statement.over)
        case Scan():
            yield _clause("along", (statement.along,))
        case Positions():
            pass
        case _:
            yield from _few_details(statement)


def _few_details(
    statement: Cast | Finite | Convert | Pick | Largest | Ask,
) -> Iterator[str]:
    match statement:
        case Cast():
            pass
        case Finite():
            fill = statement.fill
            yield "" if fill == -math.inf else f"fill({_number(fill)})"
        case Convert():
            yield _when(statement.when)
        case Pick():
            yield f"when({statement.when})"
        case Largest():
            yield _named("last", statement.state)
            yield _named("scale", statement.scale)
        case Ask():
            yield f"tiles({statement.tiles})"
            yield _when(statement.when)
        case _:
            assert_never(statement)


def _mask_details(statement: Mask) -> Iterator[str]:
    places = (f"{d}" if w is True else f"{d}: {w}" for d, w in statement.where)
    yield f"fill({_number(statement.fill)})"
    yield f"where({', '.join(places)})" if statement.where else ""
    yield _when(statement.when)


def _load_details(statement: Load) -> Iterator[str]:
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


def _product_details(statement: Product) -> Iterator[str]:
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


def _typed(name: str, tile: Tile) -> str:
    return f"{quoted(name)}: {tile.dtype}[{', '.join(map(str, tile.axes))}]"


def _read(statement: Load | Ask) -> str:
    axes: tuple[Axis, ...] = statement.at
    return f"{quoted(statement.source)}[{', '.join(map(axis_text, axes))}]"


def _application(statement: Compute) -> str:
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


def _when(number: Number) -> str:
    return "" if number is True else f"when({number})"


def _named(word: str, name: str | None) -> str:
    return "" if name is None else f"{word}({quoted(name)})"


__all__ = ["KEYWORDS", "VERSION", "quoted", "statement_text", "to_text"]
