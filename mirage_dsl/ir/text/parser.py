"""Reads a μGraph from `.mu` text: the inverse of `printer`.

The language is described in `docs/text-format.md`.  `syntax` reads its forms, and a
graph is made of them here: names are resolved, what the text leaves out (`over`, types,
derived extents) is inferred, and what it states of types is checked.  The first error
is raised with its place.  Values inside expressions get fresh names, `r_1`, `r_2` for a
result `r`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, Protocol

from mirage_dsl.core.errors import CheckError, ParseError
from mirage_dsl.core.types import (
    DTYPES,
    MAX_EXTENT,
    NUMBERS,
    Axis,
    AxisNames,
    Dim,
    DType,
    Integers,
    Scalar,
    TensorType,
    Types,
    axis_text,
    bounded,
    dtype_named,
    extent_scalar,
    is_name,
    parse_scalar,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.infer import apply_type, block_node_type, check_store, store_type
from mirage_dsl.ir.maps import complete_extents, partial_base
from mirage_dsl.ir.text.forms import (
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
    StatementForm,
    StoreForm,
    TargetForm,
    TypeForm,
    Word,
    clipped,
    closest,
    counted,
    suggest,
)
from mirage_dsl.ir.text.printer import VERSION
from mirage_dsl.ops.definition import AttributeKind, Kind, Operator, Term
from mirage_dsl.ops.table import OPERATORS

# -- Dims, types, numbers, constants ---------------------------------------------------


class Resolver:
    """Knows the dims of a text.

    Attributes:
        source: The text.
        extents: What the header says of extents.
        made: Dims that nodes have made so far.
    """

    def __init__(self, source: Source, form: GraphForm) -> None:
        self.source = source
        self.extents: dict[str, int | None] = {}
        self.made: set[str] = set()
        for name, extent in form.sizes:
            if name.text in self.extents:
                raise source.wrong(name, f"dim {name} has two extents")
            symbolic = extent.text == "?"
            self.extents[name.text] = None if symbolic else self.integer(extent, 1)

    def integer(self, word: Word, least: int) -> int:
        """The number that `word` is."""
        digits = word.text.lstrip("0") or "0"
        if not word.text.isdecimal() or (least == 1 and digits == "0"):
            kind = "a positive integer" if least == 1 else "an integer"
            if least == 0:
                kind += " that is not negative"
            raise self.source.wrong(word, f"found {word}, expected {kind}")
        if len(digits) > len(str(MAX_EXTENT)) or int(digits) > MAX_EXTENT:
            raise self.source.wrong(
                word, f"found {word}, expected at most {MAX_EXTENT} (2**63 - 1)"
            )
        return int(digits)

    def signed(self, word: Word) -> int:
        """The number that `word` is, which may be negative."""
        if not word.text.startswith("-"):
            return self.integer(word, 0)
        return -self.integer(Word(word.text[1:], word.line, word.column), 0)

    def is_dim(self, name: str) -> bool:
        """Whether a dim of that name is known; `k#` is where `k` is."""
        names = (name.removesuffix("#" * n) for n in range(name.count("#") + 1))
        return any(n in self.extents or n in self.made for n in names)

    def dim_name(self, word: Word) -> str:
        """The name of a known dim."""
        if self.is_dim(word.text):
            return word.text
        close = closest(word.text, [*self.extents, *sorted(self.made)])
        hint = f"did you mean `{close}`?" if close else f"state it: where {word} = 64"
        raise self.source.wrong(word, f"no extent is given for dim {word}; {hint}")

    def dtype(self, word: Word) -> DType:
        """The dtype called `word`."""
        found = dtype_named(word.text)
        if found is None:
            hint = suggest(word.text, [d.name for d in DTYPES], "dtypes")
            raise self.source.wrong(word, f"unknown dtype {word}{hint}")
        return found

    def dim(self, form: DimForm, *, pieces: bool) -> Dim:
        """A known dim, and its pieces; without `pieces` it must be whole."""
        given = [p.text for p in form.pieces]
        for piece in form.pieces:
            if piece.text not in ("grid", "loop"):
                hint = suggest(piece.text, ("grid", "loop"), "pieces")
                raise self.source.wrong(piece, f"unknown piece /{piece}{hint}")
        if given not in ([], ["grid"], ["loop"], ["grid", "loop"]):
            raise self.source.wrong(
                form.pieces[-1],
                f"a dim has at most {form.name}/grid/loop, in this order",
            )
        if given and not pieces:
            raise self.source.wrong(
                form.name,
                f"only values inside of a block have pieces of dims, found "
                f"{form.name}/{given[0]}; write {form.name}",
            )
        return Dim(self.dim_name(form.name), "grid" in given, "loop" in given)

    def each_once(self, clauses: Iterable[ClauseForm]) -> Iterator[ClauseForm]:
        """What a block says of itself, each of it once."""
        given: set[str] = set()
        for clause in clauses:
            if clause.name.text in given:
                raise self.source.wrong(clause.name, f"{clause.name} is given twice")
            given.add(clause.name.text)
            yield clause

    def splits(self, clause: ClauseForm) -> tuple[ir.Split, ...]:
        """What is split into tiles."""
        found: list[ir.Split] = []
        for at, (dim, tile) in enumerate(clause.values):
            name = self.dim_name(dim)
            if tile is None:
                raise self.source.wrong(
                    dim, f"{clause.name} needs a tile: {clause.name}({dim} / 64)"
                )
            found.append(ir.Split(name, self.integer(tile, 1), at in clause.beside))
        return tuple(found)

    def loop(self, clause: ClauseForm) -> ir.Split:
        """What a loop iterates over."""
        splits = self.splits(clause)
        if len(splits) != 1:
            raise self.source.wrong(
                clause.name, f"loop takes one dim, found {len(splits)}"
            )
        return splits[0]

    def scheduled(
        self, schedule: ir.Schedule, clause: ClauseForm, *others: str
    ) -> ir.Schedule:
        """A schedule with another parameter; `others` are none, but might be meant."""
        known = {field.name: field.default for field in fields(ir.Schedule)}
        name = clause.name
        if name.text not in known:
            hint = suggest(name.text, ("grid", "loop", *others, *known), "parameters")
            raise self.source.wrong(name, f"a block has no parameter {name}{hint}")
        value = self.parameter(clause, like=known[name.text])
        return replace(schedule, **{name.text: value})

    def parameter(self, clause: ClauseForm, *, like: object) -> Any:
        """The value of a parameter: a truth value if `like` is one, or a number."""
        name = clause.name
        if len(clause.values) != 1:
            raise self.source.wrong(
                name, f"{name} takes one value, found {len(clause.values)}"
            )
        ((word, _),) = clause.values
        if not isinstance(like, bool):
            return self.integer(word, 0)
        if word.text not in ("true", "false"):
            raise self.source.wrong(word, f"{name} is true or false, found {word}")
        return word.text == "true"

    def bounds(
        self, clause: ClauseForm, loop: ir.Split | None
    ) -> tuple[ir.LoopBound, ...]:
        """All that iterations have to meet."""
        return tuple(self.bound(form, loop) for form in clause.bounds)

    def bound(self, form: BoundForm, loop: ir.Split | None) -> ir.LoopBound:
        """What iterations have to meet."""
        for name in (form.loop, *(form.also or ())[:1]):
            if loop is None or self.dim_name(name) != loop.dim:
                what = "nothing" if loop is None else loop.dim
                raise self.source.wrong(
                    name, f"found {name}, but the loop before it is over {what}"
                )
        offset = 0 if form.offset is None else self.integer(form.offset, 0)
        if form.offset_sign is not None and form.offset_sign.text == "-":
            offset = -offset
        also = None if form.also is None else self.integer(form.also[1], 0)
        return ir.LoopBound(
            self.dim_name(form.dim), form.sign.text == "<=", offset, also
        )

    def settled(self, form: SettledForm, loop: ir.Split | None) -> ir.Settled:
        """A mask that some iterations do without."""
        if form.number.text not in ("0", "1"):
            raise self.source.wrong(
                form.number, f"a truth value is 0 or 1, found {form.number}"
            )
        holds = form.number.text == "1"
        return ir.Settled(form.value.text, holds, self.bound(form.bound, loop))

    def axes(self, forms: Iterable[AxisForm], *, pieces: bool) -> tuple[Axis, ...]:
        """Axes; without `pieces` every dim must be whole."""
        return tuple(self._axis(f, pieces=pieces) for f in forms)

    def _axis(self, form: AxisForm, *, pieces: bool) -> Axis:
        if form.number is not None and form.number.text != "1":
            raise self.source.wrong(
                form.number,
                f"an axis is a dim or 1, found {form.number}; name a dim and give its "
                f"extent after `where`: d = {form.number}",
            )
        return tuple(self.dim(d, pieces=pieces) for d in form.dims)

    def type(self, form: TypeForm, *, pieces: bool) -> TensorType:
        """A type; without `pieces` every dim must be whole."""
        axes = self.axes(form.axes, pieces=pieces)
        layout = None
        if form.layout is not None:
            layout = tuple(self.integer(n, 0) for n in form.layout)
            if sorted(layout) != list(range(len(axes))):
                raise self.source.wrong(
                    form.layout[0] if form.layout else form.dtype,
                    f"layout{layout} does not name each of the {len(axes)} axes once",
                )
        return TensorType(self.dtype(form.dtype), axes, layout=layout)

    def constant(self, word: Word, values: Collection[str] = ()) -> Scalar:
        """A constant; `values` are names that someone may have taken for dims."""
        try:
            number = parse_scalar(word.text)
        except ValueError as error:
            raise self.source.wrong(word, str(error)) from None
        for name, power in number.extents:
            if not self.is_dim(name) and name in values:
                sign = "*" if power > 0 else "/"
                raise self.source.wrong(
                    word,
                    f"{word} without spaces is one constant, and {name} is no dim; for "
                    f"the value {name} write spaces around the `{sign}`",
                )
            self.dim_name(Word(name, word.line, word.column))
        return number

    def attribute(self, kind: AttributeKind, form: ClauseForm) -> ir.AttrValue:
        """The value of an attribute that is written `name(...)`."""
        for value, divisor in form.values:
            if divisor is not None:
                raise self.source.wrong(
                    divisor,
                    f"{form.name} takes no division, write {form.name}({value})",
                )
        words = [value for value, _ in form.values]
        if kind in (AttributeKind.DIMS, AttributeKind.NEW_DIMS):
            return tuple(self._attribute_dim(kind, w) for w in words)
        if kind in (AttributeKind.AXES, AttributeKind.NEW_AXES):
            return AxisNames(tuple(self._attribute_axis(kind, w) for w in words))
        if kind is AttributeKind.INTEGERS:
            return Integers(tuple(self.integer(w, 0) for w in words))
        if len(words) != 1:
            raise self.source.wrong(
                form.name, f"{form.name} takes one value, found {len(words)}"
            )
        (word,) = words
        match kind:
            case AttributeKind.INTEGER:
                return self.signed(word)
            case AttributeKind.DTYPE:
                return self.dtype(word).name
            case _:
                return self._attribute_dim(kind, word)

    def _attribute_axis(self, kind: AttributeKind, word: Word) -> tuple[str, ...]:
        """The dims of an axis: `k`, `(h d)`, or none of `1`."""
        one = AttributeKind.DIM if kind is AttributeKind.AXES else AttributeKind.NEW_DIM
        names = word.text.strip("()").split()
        words = [Word(n, word.line, word.column) for n in names if n != "1"]
        return tuple(self._attribute_dim(one, w) for w in words)

    def _attribute_dim(self, kind: AttributeKind, word: Word) -> str:
        if not is_name(word.text):
            raise self.source.wrong(word, f"found {word}, expected the name of a dim")
        if kind in (AttributeKind.NEW_DIM, AttributeKind.NEW_DIMS):
            self.made.add(word.text)
            return word.text
        return self.dim_name(word)


def same_type(stated: TensorType, inferred: TensorType, *, ordered: bool) -> bool:
    """Whether a stated type is the inferred one, but for space and layout.

    The order of dims counts only where they lie in memory (`ordered`).
    """
    if stated.dtype != inferred.dtype:
        return False
    if ordered:
        return stated.axes == inferred.axes
    return stated.is_flat and sorted(stated.dims) == sorted(inferred.dims)


def shown(type_: TensorType) -> str:
    """A type without its layout."""
    return f"{type_.dtype}[{', '.join(map(axis_text, type_.axes))}]"


# -- Scopes and applications -----------------------------------------------------------
# An application, flat or nested or infix, becomes one `Apply` node per operator.

_STRUCTURAL = ("load", "accumulate", "running max", "block")
_SIGNS = {op.sign: op for op in OPERATORS.values() if op.sign is not None}
_SWAPPED = {">": "<", ">=": "<="}
_MANY = (
    AttributeKind.DIMS,
    AttributeKind.NEW_DIMS,
    AttributeKind.AXES,
    AttributeKind.NEW_AXES,
    AttributeKind.INTEGERS,
)
_DEEPEST = 100
"""How deep expressions may be nested; a chain `a + b + c` is not nested."""


@dataclass
class Scope:
    """The values of a kernel graph, or of a block, and the nodes that make them.

    Attributes:
        resolver: Dims and the text.
        taken: Names that fresh values must not have, each with the last number that
            one was given behind it.
        block: Grid and loop, where this is the scope of a block.
        outer: Types of the kernel-level values, where this is the scope of a block.
        targets: Where each value is defined, also those that are not yet.
        types: Types of the values so far.
        nodes: Nodes so far.
        depth: How many operators the expression that is read stands inside of.
    """

    resolver: Resolver
    taken: dict[str, int]
    block: ir.BlockGraph | None = None
    outer: Types = field(default_factory=dict[str, TensorType])
    types: dict[str, TensorType] = field(default_factory=dict[str, TensorType])
    nodes: list[ir.BlockNode] = field(default_factory=list[ir.BlockNode])
    targets: Mapping[str, Word] = field(default_factory=dict[str, Word])
    depth: int = 0

    def define(self, name: Word, type_: TensorType) -> None:
        """Enter a value."""
        source = self.resolver.source
        if name.text in NUMBERS:
            raise source.wrong(name, f"{name} is a number and cannot name a value")
        if name.text in self.types:
            raise source.wrong(name, f"{name} is defined twice; names are given once")
        self.types[name.text] = type_

    def add(
        self,
        node: ir.ValueNode,
        name: Word,
        stated: TypeForm | None = None,
    ) -> None:
        """Append a node, infer its type and hold it to the stated one."""
        inferred = self._infer(node, name)
        if stated is not None:
            type_ = self.resolver.type(stated, pieces=self.block is not None)
            if not same_type(type_, inferred, ordered=isinstance(node, ir.Load)):
                raise self.resolver.source.ill_typed(
                    stated.dtype, f"{name} is {shown(inferred)}, not {shown(type_)}"
                )
        self.define(name, inferred)
        self.nodes.append(node)

    def _infer(self, node: ir.ValueNode, name: Word) -> TensorType:
        try:
            if self.block is not None:
                return block_node_type(node, self.block, self.types, self.outer)
            assert isinstance(node, ir.Apply)
            operands = [self.types[v] for v in node.values]
            return apply_type(node, operands, in_block=False)
        except (CheckError, ValueError) as error:
            message = error.message if isinstance(error, CheckError) else str(error)
            place = node.location if isinstance(node, ir.Apply) else None
            source = self.resolver.source
            raise CheckError(message, place or source.at(name)) from None

    def lookup(self, name: Word) -> str:
        """The name of a value of this scope."""
        if name.text in self.types:
            return name.text
        if name.text in self.targets:
            message = self._too_early(name, self.targets[name.text])
        elif name.text in self.outer:
            message = (
                f"{name} is a tensor outside of the block; load it first: "
                f"{name}_tile = load {name}[...]"
            )
        else:
            op = OPERATORS.get(name.text)
            hint = suggest(name.text, self.types, "values")
            if op is not None:
                hint = f"; the operator {op.name} has its operands behind it"
            message = f"unknown value {name}{hint}"
        raise self.resolver.source.wrong(name, message)

    @staticmethod
    def _too_early(name: Word, target: Word) -> str:
        """What is wrong with the use of a value that is not defined yet."""
        if target.line > name.line:
            return (
                f"{name} is used before line {target.line} defines it; move that line "
                "up, above this one"
            )
        return (
            f"{name} is defined by itself; name a value that is defined above this line"
        )

    # -- Expressions ---------------------------------------------------------------

    def value(self, form: ExprForm, name: Word) -> str:
        """The value of an expression; inner results are named after `name`."""
        operand = self.operand(form, name)
        if isinstance(operand, Scalar):
            raise self.resolver.source.wrong(
                place_of(form), f"found the constant {operand}, expected a value"
            )
        return operand

    def operand(self, form: ExprForm, name: Word) -> ir.Operand:
        """The value or constant of an expression."""
        match form:
            case NameForm():
                text = form.name.text
                if text not in self.types and self.resolver.is_dim(text):
                    return extent_scalar(text)
                return self.lookup(form.name)
            case ConstantForm():
                return self.resolver.constant(form.text, self.types)
            case InfixForm() | ApplyForm():
                return self._inner(self._call(form, name, None), name)

    def assign(self, name: Word, stated: TypeForm | None, form: ExprForm) -> None:
        """The statement `name = form`."""
        source = self.resolver.source
        match form:
            case NameForm():
                self.lookup(form.name)
                raise source.wrong(
                    form.name,
                    f"{name} would be a second name of {form.name}; use {form.name}",
                )
            case ConstantForm():
                raise source.wrong(
                    form.text,
                    f"{name} would be a constant; write {form.text} where it is used",
                )
            case InfixForm() | ApplyForm():
                call = self._call(form, name, stated)
                if isinstance(call, Scalar):
                    raise source.wrong(
                        place_of(form), f"{name} would be the constant {call}"
                    )
                self.add(call.node(self, name), name, stated)

    def _inner(self, call: _Call | Scalar, name: Word) -> ir.Operand:
        """The value of an operator inside of an expression."""
        if isinstance(call, Scalar):
            return call
        fresh = self._fresh(name)
        self.add(call.node(self, fresh), fresh)
        return fresh.text

    def _fresh(self, name: Word) -> Word:
        base = name.text.rstrip("#")
        number = self.taken.get(base, 0) + 1
        while (text := f"{base}_{number}") in self.taken:
            number += 1
        self.taken[base], self.taken[text] = number, 0
        return Word(text, name.line, name.column)

    def _call(
        self, form: InfixForm | ApplyForm, name: Word, stated: TypeForm | None
    ) -> _Call | Scalar:
        """An operator and its operands, or the constant that they make."""
        if self.depth == _DEEPEST:
            raise self.resolver.source.wrong(
                place_of(form),
                f"expressions are nested too deeply, more than {_DEEPEST} operators; "
                "name the inner ones on lines of their own",
            )
        self.depth += 1
        if isinstance(form, InfixForm):
            call = self._chain(form, name, stated)
        else:
            op = self._operator(form.function)
            given, operands = self._applied(op, form, name)
            call = self._completed(op, operands, given, form.function, stated)
        self.depth -= 1
        return call

    def _chain(
        self, form: InfixForm, name: Word, stated: TypeForm | None
    ) -> _Call | Scalar:
        """The last operator of `a + b + c`; those before it become values."""
        chain = [form]
        while isinstance(chain[-1].left, InfixForm):
            chain.append(chain[-1].left)
        left = self.operand(chain[-1].left, name)
        for inner in reversed(chain[1:]):
            left = self._inner(self._infix(inner, left, name, None), name)
        return self._infix(form, left, name, stated)

    def _infix(
        self, form: InfixForm, left: ir.Operand, name: Word, stated: TypeForm | None
    ) -> _Call | Scalar:
        """An infix operator, whose left operand is read already."""
        sign, a, b = form.sign.text, left, self.operand(form.right, name)
        if sign in _SWAPPED:
            sign, a, b = _SWAPPED[sign], b, a
        op = _SIGNS[sign]
        if isinstance(a, Scalar) and isinstance(b, Scalar):
            return self._folded(op, a, b, form.sign)
        return self._completed(op, (a, b), {}, form.sign, stated)

    def _completed(
        self,
        op: Operator,
        operands: tuple[ir.Operand, ...],
        given: dict[str, ir.AttrValue],
        place: Word,
        stated: TypeForm | None,
    ) -> _Call:
        """The operator with the attributes that are left out."""
        for missing in (n for n in op.attributes if n not in given):
            if op.kind is not Kind.CONTRACTION:
                raise self.resolver.source.wrong(
                    place, f"{op.name} needs {missing}(...) behind its operands"
                )
            given[missing] = self._summed_dims(op, operands, place, stated)
        return _Call(op, operands, tuple(sorted(given.items())), place)

    def _applied(
        self, op: Operator, form: ApplyForm, name: Word
    ) -> tuple[dict[str, ir.AttrValue], tuple[ir.Operand, ...]]:
        """Attributes and operands that an application gives."""
        arity = op.arity if op.arity >= 0 else len(form.arguments)
        given = self._attributes(op, form, form.arguments[arity:])
        operands = tuple(self.operand(a, name) for a in form.arguments[:arity])
        if len(operands) != arity:
            raise self.resolver.source.wrong(
                form.function,
                f"{op.name} takes {counted(arity, 'operand')}, found {len(operands)}",
            )
        return given, operands

    def _folded(self, op: Operator, a: Scalar, b: Scalar, place: Word) -> Scalar:
        """The product or quotient of two constants."""
        factor = b if op.term is Term.MUL else None
        if op.term is Term.DIV and b.value and isinstance(b.value, Fraction):
            factor = b.inverse
        if factor is not None:
            try:
                return bounded(a.times(factor))
            except ValueError as error:
                raise self.resolver.source.wrong(place, str(error)) from None
        raise self.resolver.source.wrong(
            place, f"{a} {place} {b}: write the constant that it makes"
        )

    def _operator(self, name: Word) -> Operator:
        found = OPERATORS.get(name.text)
        if found is not None:
            return found
        if name.text in self.types:
            message = (
                f"{name} is a value, expected an operator in front of its operands"
            )
        else:
            hint = suggest(name.text, [*OPERATORS, *_STRUCTURAL], "operators")
            message = f"unknown operator {name}{hint}"
        raise self.resolver.source.wrong(name, message)

    def _attributes(
        self, op: Operator, form: ApplyForm, extra: Sequence[ExprForm]
    ) -> dict[str, ir.AttrValue]:
        """Attributes by name, from clauses and from arguments behind the operands."""
        source = self.resolver.source
        given: dict[str, ir.AttrValue] = {}
        for clause in form.clauses:
            name = clause.name
            if name.text not in op.attributes:
                hint = suggest(name.text, op.attributes, "attributes")
                raise source.wrong(name, f"{op.name} has no attribute {name}{hint}")
            if name.text in given:
                raise source.wrong(name, f"{name} is given twice")
            kind = op.attributes[name.text]
            given[name.text] = self.resolver.attribute(kind, clause)
        left = [n for n in op.attributes if n not in given]
        for clause in self._positional(op, form.function, left, extra):
            kind = op.attributes[clause.name.text]
            given[clause.name.text] = self.resolver.attribute(kind, clause)
        return given

    def _positional(
        self, op: Operator, place: Word, left: list[str], extra: Sequence[ExprForm]
    ) -> list[ClauseForm]:
        """Arguments behind the operands, as clauses: `sum(s, k)` has `over(k)`."""
        if not extra:
            return []
        words = [place_of(e) for e in extra]
        plain = all(isinstance(e, NameForm | ConstantForm) for e in extra)
        names = [Word(n, place.line, place.column) for n in left]
        if plain and len(left) == 1 and op.attributes[left[0]] in _MANY:
            return [ClauseForm(names[0], tuple((w, None) for w in words))]
        single = not any(op.attributes[n] in _MANY for n in left)
        if plain and single and len(words) <= len(names):
            pairs = zip(names, words, strict=False)
            return [ClauseForm(n, ((w, None),)) for n, w in pairs]
        raise self.resolver.source.wrong(
            words[0],
            f"{op.name} takes {counted(op.arity, 'operand')}, "
            f"found {op.arity + len(extra)}",
        )

    def _summed_dims(
        self,
        op: Operator,
        operands: Sequence[ir.Operand],
        place: Word,
        stated: TypeForm | None,
    ) -> tuple[str, ...]:
        """The dims that a contraction without `over` sums over.

        These are the shared dims that the stated type lacks, or the only shared one.
        """
        source = self.resolver.source
        types = [self.types[o] for o in operands if isinstance(o, str)]
        if len(types) < len(operands):
            raise source.wrong(place, f"{op.name} takes tensors, found a constant")
        first, *others = types
        shared = [n for n in first.names if all(n in t.names for t in others)]
        if not shared:
            listed = " and ".join(shown(t) for t in types)
            raise source.ill_typed(place, f"{op.name}: no dim is shared by {listed}")
        if stated is not None:
            kept = {d.name.text for axis in stated.axes for d in axis.dims}
            summed = [n for n in shared if n not in kept]
            if summed:
                return tuple(summed)
        if len(shared) == 1:
            return tuple(shared)
        raise source.ill_typed(
            place,
            f"{op.name}: the operands share the dims {', '.join(shared)}; "
            f"say which are summed, as in over({shared[0]})",
        )


@dataclass(frozen=True)
class _Call:
    """An operator with its operands and attributes, and where it stands."""

    op: Operator
    operands: tuple[ir.Operand, ...]
    attrs: tuple[tuple[str, ir.AttrValue], ...]
    place: Word

    def node(self, scope: Scope, name: Word) -> ir.Apply:
        place = scope.resolver.source.at(self.place)
        return ir.Apply(name.text, self.op, self.operands, self.attrs, place)


def place_of(form: ExprForm) -> Word:
    """The word at which an error in an expression is shown."""
    match form:
        case NameForm():
            return form.name
        case ConstantForm():
            return form.text
        case InfixForm():
            return form.sign
        case ApplyForm():
            return form.function


# -- Forms become a graph --------------------------------------------------------------


def elaborate(form: GraphForm, source: Source) -> ir.KernelGraph:
    """The graph that the forms describe.

    Raises:
        ParseError: A name, number or form that the language does not have.
        CheckError: A type rule does not hold, or a stated type is another.
    """
    return _Kernel(form, source).graph()


class _Kernel:
    """Elaborates the statements of a kernel graph."""

    def __init__(self, form: GraphForm, source: Source) -> None:
        self.form = form
        self.source = source
        self.resolver = Resolver(source, form)
        taken = dict.fromkeys(re.findall(r"[^\W\d]\w*", source.text), 0)
        self.scope = Scope(self.resolver, taken, targets=_targets(form.statements))
        self.nodes: list[ir.KernelNode] = []
        self.indices: list[ir.Index] = []
        self.returns: tuple[ir.Return, ...] | None = None
        self.result_dtypes = self._result_dtypes()

    def _result_dtypes(self) -> dict[str, DType]:
        """Dtypes that the header gives to returned values."""
        returned = [s for s in self.form.statements if isinstance(s, ReturnForm)]
        names = [v.text for r in returned[:1] for v in r.values]
        dtypes = [self.resolver.dtype(t.dtype) for t in self.form.returns]
        return dict(zip(names, dtypes, strict=False))

    def graph(self) -> ir.KernelGraph:
        inputs: list[ir.Input] = []
        for name, constant, form in self.form.inputs:
            type_ = self.resolver.type(form, pieces=False)
            self.scope.define(name, type_)
            where = self.source.at(name)
            inputs.append(ir.Input(name.text, type_, constant is not None, where))
        for statement in self.form.statements:
            self._statement(statement)
        if self.returns is None:
            raise self.source.wrong(
                self.form.name, f"{self.form.name} has no `return` at its end"
            )
        graph = ir.KernelGraph(
            self.form.name.text,
            tuple(inputs),
            tuple(self.nodes),
            self.returns,
            (),
            tuple(self.indices),
        )
        return complete_extents(graph, self.resolver.extents)

    def _statement(self, statement: StatementForm) -> None:
        if self.returns is not None:
            raise self.source.wrong(
                _first_word(statement), "nothing may follow `return` but `}`"
            )
        match statement:
            case ReturnForm():
                self.returns = self._returned(statement)
            case StoreForm():
                raise self.source.wrong(
                    statement.name, "`store` stands in a block, found it outside"
                )
            case AssignForm():
                self._assign(statement)

    def _assign(self, statement: AssignForm) -> None:
        match statement.right:
            case BlockForm() as form:
                self._block(statement, form)
            case IndexForm() as form:
                self._index(_only_target(statement, self.source), form)
            case LoadForm() | AccumulateForm() | RunningForm():
                raise self.source.wrong(
                    statement.targets[0].name,
                    "`load`, `accumulate` and `running max` stand in a block, found "
                    "one outside",
                )
            case right:
                target = _only_target(statement, self.source)
                self.scope.assign(target.name, target.type, right)
                self.nodes += (n for n in self.scope.nodes if isinstance(n, ir.Apply))
                self.scope.nodes.clear()

    def _index(self, target: TargetForm, form: IndexForm) -> None:
        if target.type is not None:
            raise self.source.wrong(
                target.type.dtype, "an index value has no type; write `i = index n`"
            )
        (axis,) = self.resolver.axes((form.axis,), pieces=False)
        found = ir.Index(target.name.text, axis, self.source.at(target.name))
        self.scope.define(target.name, found.type)
        self.indices.append(found)

    def _returned(self, form: ReturnForm) -> tuple[ir.Return, ...]:
        # Nodes make dims, so what the header returns is resolved after them.
        types = [self.resolver.type(t, pieces=False) for t in self.form.returns]
        if len(types) != len(form.values):
            place = form.values[0] if form.values else self.form.name
            raise self.source.wrong(
                place,
                f"{counted(len(form.values), 'value')} returned, but "
                f"{counted(len(types), 'type')} behind `->` in the header",
            )
        for value, type_ in zip(form.values, types, strict=True):
            have = self.scope.types[self.scope.lookup(value)]
            if sorted(have.names) != sorted(type_.names):
                raise self.source.ill_typed(
                    value,
                    f"{value} is {shown(have)}, the header returns {shown(type_)}",
                )
        pairs = zip(form.values, types, strict=True)
        return tuple(ir.Return(v.text, t, self.source.at(v)) for v, t in pairs)

    def _block(self, statement: AssignForm, form: BlockForm) -> None:
        block = _Block(self, form, statement.targets[0].name).graph()
        targets = {t.name.text: t for t in statement.targets}
        if sorted(targets) != sorted(block.results):
            raise self.source.wrong(
                statement.targets[0].name,
                f"the block stores {', '.join(block.results) or 'nothing'}, the line "
                f"names {', '.join(targets)}",
            )
        for store in block.stores:
            target, type_ = targets[store.result], store_type(store)
            self.scope.define(target.name, type_)
            if target.type is None:
                continue
            stated = self.resolver.type(target.type, pieces=False)
            if not same_type(stated, type_, ordered=True):
                raise self.source.ill_typed(
                    target.type.dtype,
                    f"{target.name} is {shown(type_)}, not {shown(stated)}",
                )
        self.nodes.append(block)


class _Block:
    """Elaborates one block."""

    def __init__(self, kernel: _Kernel, form: BlockForm, name: Word) -> None:
        self.kernel = kernel
        self.source = kernel.source
        self.resolver = kernel.resolver
        self.form = form
        self.stores: set[str] = set()
        block = ir.BlockGraph((), None, (), location=self.source.at(name))
        for clause in self.resolver.each_once(form.clauses):
            block = self._with_clause(block, clause)
        outer = kernel.scope.types
        targets = _targets(form.statements)
        self.scope = Scope(
            self.resolver, kernel.scope.taken, block, outer, targets=targets
        )
        self.block = block

    def graph(self) -> ir.BlockGraph:
        for statement in self.form.statements:
            self._statement(statement)
        return replace(self.block, nodes=tuple(self.scope.nodes))

    # -- grid, loop and schedule ---------------------------------------------------

    def _with_clause(self, block: ir.BlockGraph, clause: ClauseForm) -> ir.BlockGraph:
        match clause.name.text:
            case "grid":
                return replace(block, grid=self.resolver.splits(clause))
            case "while":
                return replace(block, bounds=self.resolver.bounds(clause, block.loop))
            case "settled":
                known = (self.resolver.settled(s, block.loop) for s in clause.settled)
                return replace(block, settled=tuple(known))
            case "loop":
                return replace(block, loop=self.resolver.loop(clause))
            case _:
                schedule = self.resolver.scheduled(block.schedule, clause)
                return replace(block, schedule=schedule)

    # -- statements ----------------------------------------------------------------

    def _statement(self, statement: StatementForm) -> None:
        match statement:
            case ReturnForm():
                raise self.source.wrong(
                    _first_word(statement),
                    "`return` stands at the end of the graph; a block ends in `store`",
                )
            case StoreForm():
                self._store(statement)
            case AssignForm():
                self._assign(statement)

    def _assign(self, statement: AssignForm) -> None:
        target = _only_target(statement, self.source)
        name, scope = target.name, self.scope
        place = self.source.at(name)
        match statement.right:
            case BlockForm():
                raise self.source.wrong(name, "a block cannot hold another block")
            case IndexForm() as form:
                raise self.source.wrong(
                    form.keyword,
                    "`index` stands outside of blocks; load a tile of it here",
                )
            case LoadForm() as form:
                scope.add(self._load(form, statement), name, target.type)
            case AccumulateForm() as form:
                operand = scope.value(form.operand, name)
                rescale = None if form.rescale is None else scope.lookup(form.rescale)
                kind = "sum" if form.kind is None else self._kind(form.kind)
                node = ir.Accumulate(name.text, operand, kind, rescale, place)
                scope.add(node, name, target.type)
            case RunningForm() as form:
                operand = scope.value(form.operand, name)
                scope.add(ir.RunningMax(name.text, operand, place), name, target.type)
            case right:
                scope.assign(name, target.type, right)

    def _kind(self, word: Word) -> str:
        if word.text not in ir.accumulator_kinds():
            hint = suggest(word.text, ir.accumulator_kinds(), "ways")
            raise self.source.wrong(
                word,
                f"found `{clipped(word.text)}`, expected how iterations are "
                f"accumulated{hint}",
            )
        return word.text

    def _load(self, form: LoadForm, statement: AssignForm) -> ir.Load:
        target = statement.targets[0]
        outer = self.kernel.scope.lookup(form.source)
        axes = form.axes
        if axes is None and target.type is not None:
            axes = target.type.axes
        if axes is None:
            known = ", ".join(axis_text(a) for a in self.scope.outer[outer].axes)
            raise self.source.wrong(
                form.source,
                f"which part of {outer}? write {outer}[{known}], with /grid and /loop "
                "behind the dims that are split",
            )
        place = self.source.at(form.source)
        pieces = self.resolver.axes(axes, pieces=True)
        return ir.Load(target.name.text, outer, pieces, place)

    def _store(self, form: StoreForm) -> None:
        name = form.name
        if name.text in self.stores:
            raise self.source.wrong(name, f"{name} is stored twice")
        self.stores.add(name.text)
        operand = self.scope.value(form.operand, name)
        have = self.scope.types[operand]
        if form.dtype is not None:
            dtype = self.resolver.dtype(form.dtype)
        else:
            dtype = self.kernel.result_dtypes.get(name.text, have.dtype)
        axes = self.resolver.axes(form.axes, pieces=True)
        self._check_stored(place_of(form.operand), name, have, axes)
        node = ir.Store(name.text, operand, axes, dtype, self.source.at(name))
        try:
            check_store(node, self.block)
        except CheckError as error:
            raise self.source.ill_typed(name, error.message) from None
        self.scope.nodes.append(node)

    def _check_stored(
        self, place: Word, name: Word, have: TensorType, axes: tuple[Axis, ...]
    ) -> None:
        """The dims of a store are those of its operand, and any `k#`."""
        stored = [
            d
            for d in ir.dims_of(axes)
            if not d.grid or d.loop or partial_base(d.name, self.block) is None
        ]
        if sorted(stored) != sorted(have.dims):
            listed = ", ".join(map(axis_text, axes))
            raise self.source.ill_typed(
                place, f"{place} is {shown(have)}, but {name} is stored as [{listed}]"
            )


def _only_target(statement: AssignForm, source: Source) -> TargetForm:
    """The target of a statement that has one result."""
    first, *others = statement.targets
    if others:
        raise source.wrong(
            others[0].name, "only a block has several results, found several names"
        )
    return first


def _targets(statements: Iterable[StatementForm]) -> dict[str, Word]:
    """Where each value is defined first."""
    found: dict[str, Word] = {}
    for statement in statements:
        if isinstance(statement, AssignForm):
            for target in statement.targets:
                found.setdefault(target.name.text, target.name)
    return found


def _first_word(statement: StatementForm) -> Word:
    """A word by which to show a statement."""
    match statement:
        case ReturnForm():
            return statement.keyword
        case StoreForm():
            return statement.name
        case AssignForm():
            return statement.targets[0].name


# -- Reading ---------------------------------------------------------------------------


def parse(text: str, filename: str = "<mu>") -> ir.KernelGraph:
    """The graph that `text` describes.

    Args:
        text: `.mu` text.
        filename: Its name, for messages.

    Raises:
        ParseError: The text is not in the language.
        CheckError: A type rule does not hold, or a stated type is another.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParseError(f"expected the text of a μGraph, found {type(text).__name__}")
    # Lark is imported with the first text that is read.
    from mirage_dsl.ir.text.syntax import read

    source = Source(filename, text)
    source.require_version("mirage", VERSION)
    try:
        return elaborate(read(source), source)
    except RecursionError:
        raise ParseError(
            "the expressions are nested too deeply; name the inner ones on lines of "
            "their own",
            source.whole(),
        ) from None


# -- What is taken for a graph ---------------------------------------------------------


class HasMugraph(Protocol):
    """A candidate of a search, or a bound kernel."""

    @property
    def mugraph(self) -> ir.KernelGraph:
        """The μGraph."""
        ...


GraphLike = ir.KernelGraph | str | HasMugraph


def graph_of(given: GraphLike, *attributes: str) -> ir.KernelGraph:
    """The graph that a user means.

    Args:
        given: A graph, its `.mu` text, or an object that has one.
        *attributes: Where such objects have it; `mugraph` unless given.

    Raises:
        CheckError: It is none of these.
        ParseError: The text is not in the language.
    """
    if isinstance(given, ir.KernelGraph):
        return given
    if isinstance(given, str):
        return parse(given)
    for attribute in attributes or ("mugraph",):
        found = getattr(given, attribute, None)
        if isinstance(found, ir.KernelGraph):
            return found
    raise CheckError(
        f"expected a program or a μGraph, its text, or a candidate of a search; found "
        f"{type(given).__name__}"
    )
