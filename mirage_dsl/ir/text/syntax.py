"""Reads `.mu` text into a tree of its forms; `parser` makes the graph of it.

The grammar is `syntax.lark`.  Texts of other levels import rules from it, and share
what makes forms of types (`TypeForms`), what ends a statement (`Lines`) and the errors
(`read_with`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from mirage_dsl.ir.text.forms import (
    INFIX,
    KEYWORDS,
    AccumulateForm,
    ApplyForm,
    AssignForm,
    AxisForm,
    BlockForm,
    BoundForm,
    ClauseForm,
    ConstantForm,
    DimForm,
    ExprForm,
    GraphForm,
    IndexForm,
    InfixForm,
    LoadForm,
    NameForm,
    ReturnForm,
    RunningForm,
    SettledForm,
    Source,
    StoreForm,
    TargetForm,
    TypeForm,
    Word,
    unexpected,
)

# Lark's annotations leave parts unknown to Pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false


def word(token: Token) -> Word:
    """A token as a piece of the text."""
    return Word(str(token), token.line or 1, token.column or 1)


class TypeForms(Transformer[Token, Any]):
    """Turns Lark's trees of types into forms; an absent `[...]` is None."""

    def typed_name(
        self, name: Token, constant: Token | None, type_: TypeForm
    ) -> tuple[Word, Word | None, TypeForm]:
        return word(name), None if constant is None else word(constant), type_

    def where(self, sizes: Any) -> tuple[tuple[Word, Word], ...]:
        return sizes or ()

    def size(self, name: Token, extent: Token) -> tuple[Word, Word]:
        return word(name), word(extent)

    def type(self, dtype: Token, axes: Any, layout: Any) -> TypeForm:
        return TypeForm(word(dtype), axes or (), layout)

    def axis(self, *parts: DimForm | Token) -> AxisForm:
        dims = tuple(p for p in parts if isinstance(p, DimForm))
        number = next((word(p) for p in parts if isinstance(p, Token)), None)
        return AxisForm(dims, number)

    def dim(self, name: Token, *pieces: Token) -> DimForm:
        return DimForm(word(name), tuple(map(word, pieces)))

    def bracket(self, axes: Any) -> tuple[AxisForm, ...]:
        return axes or ()

    def layout(self, *numbers: Token | None) -> tuple[Word, ...]:
        return tuple(word(n) for n in numbers if n is not None)

    def inputs(self, *items: Any) -> tuple[Any, ...]:
        return items

    sizes = axes = together = inputs

    def clause_value(self, value: Token, divisor: Token | None = None) -> Any:
        return word(value), None if divisor is None else word(divisor)

    def clause_axis(self, *names: Token) -> tuple[Word, None]:
        text = f"({' '.join(map(str, names))})"
        return Word(text, names[0].line or 1, names[0].column or 1), None

    def block_clause(self, name: Token, *groups: Any) -> ClauseForm:
        given = [g for g in groups if g is not None]
        values = tuple(v for group in given for v in group)
        places = [at for group in given for at in range(len(group))]
        beside = tuple(i for i, at in enumerate(places) if at > 0)
        return ClauseForm(word(name), values, beside)

    def bound(self, loop: Token, sign: Token, dim: Token, *offset: Any) -> BoundForm:
        *given, also = offset
        words = [word(t) for t in given if t is not None]
        plus, number = words or (None, None)
        return BoundForm(word(loop), word(sign), word(dim), plus, number, also)

    def also(self, *tokens: Token) -> tuple[Word, Word]:
        loop, _, number = tokens[-3:]
        return word(loop), word(number)

    def while_clause(self, name: Token, *bounds: BoundForm) -> ClauseForm:
        return ClauseForm(word(name), (), (), bounds)

    def settled(
        self, value: NameForm, _equal: Token, number: Token, bound: BoundForm
    ) -> SettledForm:
        return SettledForm(value.name, word(number), bound)

    def settled_clause(self, name: Token, *settled: SettledForm) -> ClauseForm:
        return ClauseForm(word(name), (), settled=settled)


# It changes the class; as a decorator it would hide its type from subclasses.
v_args(inline=True)(TypeForms)


@v_args(inline=True)
class _Forms(TypeForms):
    """Turns Lark's tree into forms; a method per rule, an absent `[...]` is None."""

    def start(self, _version: Any, graph: GraphForm) -> GraphForm:
        return graph

    def graph(self, name: Token, *parts: Any) -> GraphForm:
        inputs, returns, sizes, statements = (p or () for p in parts)
        return GraphForm(word(name), inputs, returns, sizes, statements)

    def statements(self, *items: Any) -> tuple[Any, ...]:
        return items

    types = values = targets = clause_values = statements

    def returns(self, keyword: Token, values: Any) -> ReturnForm:
        return ReturnForm(word(keyword), tuple(v.name for v in values or ()))

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

    def index(self, keyword: Token, axis: AxisForm) -> IndexForm:
        return IndexForm(word(keyword), axis)

    def accumulate(
        self, operand: ExprForm, kind: Token | None, rescale: NameForm | None
    ) -> AccumulateForm:
        how = None if kind is None else word(kind)
        return AccumulateForm(operand, how, rescale.name if rescale else None)

    def running(self, _max: Token, operand: ExprForm) -> RunningForm:
        return RunningForm(operand)

    def apply(self, function: Token, *parts: Any) -> ApplyForm:
        clauses = tuple(p for p in parts if isinstance(p, ClauseForm))
        arguments = parts[: len(parts) - len(clauses)]
        return ApplyForm(word(function), arguments, clauses)

    call = apply

    def called(self, call: ApplyForm, *clauses: ClauseForm) -> ApplyForm:
        return ApplyForm(call.function, call.arguments, clauses)

    def clause(self, name: Token, values: Any) -> ClauseForm:
        return ClauseForm(word(name), values or ())

    def infix(self, left: ExprForm, sign: Token, right: ExprForm) -> InfixForm:
        return InfixForm(left, word(sign), right)

    def constant(self, text: Token) -> ConstantForm:
        return ConstantForm(word(text))

    def value(self, name: Token) -> NameForm:
        return NameForm(word(name))


class Lines:
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
    return grammar_beside(Path(__file__), _Forms())


def grammar_beside(module: Path, forms: Any) -> Lark:
    """The grammar that lies beside a module, which may import rules of this one.

    Forms are made while parsing, so no tree is built.
    """
    return Lark(
        module.with_name("syntax.lark").read_text(encoding="utf-8"),
        parser="lalr",
        postlex=Lines(),
        maybe_placeholders=True,
        transformer=forms,
        import_paths=[str(Path(__file__).parent)],
    )


def read(source: Source) -> GraphForm:
    """The forms of a text.

    Raises:
        ParseError: The text is not in the language.
    """
    return read_with(_grammar(), source, KEYWORDS)


def _visible(sign: str) -> str:
    """A sign in a message; by its name if it looks like a space, or like nothing."""
    if sign.isprintable() and not sign.isspace():
        return f"`{sign}`"
    return f"{unicodedata.name(sign, 'a sign')} (U+{ord(sign):04X})"


def read_with(grammar: Lark, source: Source, keywords: Collection[str]) -> Any:
    """What a grammar makes of a text, whose keywords are given for suggestions.

    Raises:
        ParseError: The text is not in the language.
    """
    try:
        return grammar.parse(source.text)
    except UnexpectedToken as error:
        found = None if error.token.type == "$END" else word(error.token)
        expected = frozenset(error.accepts or error.expected)
        raise unexpected(source, found, expected, keywords) from None
    except UnexpectedCharacters as error:
        found = Word(error.char, error.line, error.column)
        hint = "; comments begin with `//`" if error.char == "#" else ""
        message = f"{_visible(error.char)} is no sign of the language{hint}"
        raise source.wrong(found, message) from None
    except UnexpectedInput:
        raise unexpected(source, None, frozenset(), keywords) from None
