"""Reads `.mu` text into a tree of its forms; `elaborate` makes the graph of it.

The grammar is `syntax.lark`.  Lark, its trees and its errors stay inside this module.
"""

# Lark's annotations leave parts unknown to Pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from mirage_dsl.ir.forms import (
    AccumulateForm,
    ApplyForm,
    AssignForm,
    AxisForm,
    BlockForm,
    ClauseForm,
    ConstantForm,
    DimForm,
    ExprForm,
    GraphForm,
    InfixForm,
    LoadForm,
    NameForm,
    ReturnForm,
    RunningForm,
    StoreForm,
    TargetForm,
    TypeForm,
)
from mirage_dsl.ir.parse_errors import INFIX, Source, Word, unexpected


def _word(token: Token) -> Word:
    return Word(str(token), token.line or 1, token.column or 1)


@v_args(inline=True)
class _Forms(Transformer[Token, Any]):
    """Turns Lark's tree into forms; a method per rule, an absent `[...]` is None."""

    def start(self, _version: Any, graph: GraphForm) -> GraphForm:
        return graph

    def graph(self, name: Token, *parts: Any) -> GraphForm:
        inputs, returns, sizes, statements = (p or () for p in parts)
        return GraphForm(_word(name), inputs, returns, sizes, statements)

    def typed_name(self, name: Token, type_: TypeForm) -> tuple[Word, TypeForm]:
        return _word(name), type_

    def where(self, sizes: Any) -> tuple[tuple[Word, Word], ...]:
        return sizes or ()

    def size(self, name: Token, extent: Token) -> tuple[Word, Word]:
        return _word(name), _word(extent)

    def type(self, dtype: Token, axes: Any, layout: Any) -> TypeForm:
        return TypeForm(_word(dtype), axes or (), layout)

    def axis(self, *parts: DimForm | Token) -> AxisForm:
        dims = tuple(p for p in parts if isinstance(p, DimForm))
        number = next((_word(p) for p in parts if isinstance(p, Token)), None)
        return AxisForm(dims, number)

    def dim(self, name: Token, *pieces: Token) -> DimForm:
        return DimForm(_word(name), tuple(map(_word, pieces)))

    def bracket(self, axes: Any) -> tuple[AxisForm, ...]:
        return axes or ()

    def layout(self, *numbers: Token | None) -> tuple[Word, ...]:
        return tuple(_word(n) for n in numbers if n is not None)

    def inputs(self, *items: Any) -> tuple[Any, ...]:
        return items

    types = sizes = axes = statements = values = targets = clause_values = inputs
    together = inputs

    def returns(self, keyword: Token, values: Any) -> ReturnForm:
        return ReturnForm(_word(keyword), tuple(v.name for v in values or ()))

    def store(self, name: NameForm, type_: TypeForm, operand: ExprForm) -> StoreForm:
        return StoreForm(name.name, type_.dtype, type_.axes, operand)

    def store_axes(
        self, name: NameForm, axes: Any, operand: ExprForm | None
    ) -> StoreForm:
        return StoreForm(name.name, None, axes or (), operand or name)

    def assign(self, targets: tuple[TargetForm, ...], right: Any) -> AssignForm:
        return AssignForm(targets, right)

    def target(self, name: NameForm, type_: TypeForm | None) -> TargetForm:
        return TargetForm(name.name, type_)

    def block(self, *parts: Any) -> BlockForm:
        return BlockForm(parts[:-1], parts[-1])

    def load(self, source: NameForm, axes: Any) -> LoadForm:
        return LoadForm(source.name, axes)

    def accumulate(
        self, operand: ExprForm, kind: Token | None, rescale: NameForm | None
    ) -> AccumulateForm:
        how = None if kind is None else _word(kind)
        return AccumulateForm(operand, how, rescale.name if rescale else None)

    def running(self, _max: Token, operand: ExprForm) -> RunningForm:
        return RunningForm(operand)

    def apply(self, function: Token, *parts: Any) -> ApplyForm:
        clauses = tuple(p for p in parts if isinstance(p, ClauseForm))
        arguments = parts[: len(parts) - len(clauses)]
        return ApplyForm(_word(function), arguments, clauses)

    call = apply

    def called(self, call: ApplyForm, *clauses: ClauseForm) -> ApplyForm:
        return ApplyForm(call.function, call.arguments, clauses)

    def clause(self, name: Token, values: Any) -> ClauseForm:
        return ClauseForm(_word(name), values or ())

    def block_clause(self, name: Token, *groups: Any) -> ClauseForm:
        given = [g for g in groups if g is not None]
        values = tuple(v for group in given for v in group)
        places = [at for group in given for at in range(len(group))]
        beside = tuple(i for i, at in enumerate(places) if at > 0)
        return ClauseForm(_word(name), values, beside)

    def clause_value(self, value: Token, divisor: Token | None = None) -> Any:
        return _word(value), None if divisor is None else _word(divisor)

    def infix(self, left: ExprForm, sign: Token, right: ExprForm) -> InfixForm:
        return InfixForm(left, _word(sign), right)

    def constant(self, text: Token) -> ConstantForm:
        return ConstantForm(_word(text))

    def value(self, name: Token) -> NameForm:
        return NameForm(_word(name))


class _Lines:
    """Drops the ends of lines that do not end a statement."""

    always_accept = ("_NL", "RBRACE")
    _open = frozenset({"LPAR", "LSQB"})
    _close = frozenset({"RPAR", "RSQB"})
    _continued = INFIX | {"_NL", "LBRACE", "COMMA", "ASSIGN", "ARROW"}

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        depth, previous = 0, "_NL"
        for token in stream:
            depth += (token.type in self._open) - (token.type in self._close)
            if token.type == "_NL" and (depth > 0 or previous in self._continued):
                continue
            if token.type == "RBRACE" and previous not in {"_NL", "LBRACE"}:
                yield Token.new_borrow_pos("_NL", "", token)
            previous = token.type
            yield token


@cache
def _grammar() -> Lark:
    text = Path(__file__).with_name("syntax.lark").read_text(encoding="utf-8")
    # Forms are made while parsing, so no tree is built.
    return Lark(
        text,
        parser="lalr",
        postlex=_Lines(),
        maybe_placeholders=True,
        transformer=_Forms(),
    )


def read(source: Source) -> GraphForm:
    """The forms of a text.

    Raises:
        ParseError: The text is not in the language.
    """
    try:
        forms: Any = _grammar().parse(source.text)
    except UnexpectedToken as error:
        found = _word(error.token)
        at_end = error.token.type == "$END"
        expected = frozenset(error.accepts or error.expected)
        raise unexpected(source, None if at_end else found, expected) from None
    except UnexpectedCharacters as error:
        found = Word(error.char, error.line, error.column)
        hint = "; comments begin with `//`" if error.char == "#" else ""
        message = f"`{found}` is no sign of the language{hint}"
        raise source.wrong(found, message) from None
    except UnexpectedInput:
        raise unexpected(source, None, frozenset()) from None
    return forms
