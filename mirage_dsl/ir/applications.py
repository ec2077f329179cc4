"""Scopes of a `.mu` text, and operators applied in them.

An application, flat or nested or infix, becomes one `Apply` node per operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count

from mirage_dsl.errors import CheckError
from mirage_dsl.ir.forms import (
    ApplyForm,
    ClauseForm,
    ConstantForm,
    ExprForm,
    InfixForm,
    NameForm,
    TypeForm,
)
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    AttrValue,
    BlockGraph,
    BlockNode,
    Load,
    Operand,
    RunningMax,
)
from mirage_dsl.ir.infer import apply_type, block_node_type
from mirage_dsl.ir.parse_errors import Word, counted, suggest
from mirage_dsl.ir.resolve import RESERVED, Resolver, same_type, shown
from mirage_dsl.ops.definition import AttributeKind, Kind, Operator, Term
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.types import Scalar, TensorType

_STRUCTURAL = ("load", "accumulate", "running max", "block")
_SIGNS = {op.sign: op for op in OPERATORS.values() if op.sign is not None}
_SWAPPED = {">": "<", ">=": "<="}
_MANY = (AttributeKind.DIMS, AttributeKind.NEW_DIMS)


@dataclass
class Scope:
    """The values of a kernel graph, or of a block, and the nodes that make them.

    Attributes:
        resolver: Dims and the text.
        taken: Names that fresh values must not have.
        block: Grid and loop, where this is the scope of a block.
        outer: Types of the kernel-level values, where this is the scope of a block.
        targets: Where each value is defined, also those that are not yet.
        types: Types of the values so far.
        nodes: Nodes so far.
    """

    resolver: Resolver
    taken: set[str]
    block: BlockGraph | None = None
    outer: Mapping[str, TensorType] = field(default_factory=dict[str, TensorType])
    types: dict[str, TensorType] = field(default_factory=dict[str, TensorType])
    nodes: list[BlockNode] = field(default_factory=list[BlockNode])
    targets: Mapping[str, Word] = field(default_factory=dict[str, Word])

    def define(self, name: Word, type_: TensorType) -> None:
        """Enter a value."""
        source = self.resolver.source
        if name.text in RESERVED:
            raise source.wrong(name, f"{name} is a number and cannot name a value")
        if name.text in self.types:
            raise source.wrong(name, f"{name} is defined twice; names are given once")
        self.types[name.text] = type_

    def add(
        self,
        node: Load | Apply | Accumulate | RunningMax,
        name: Word,
        stated: TypeForm | None = None,
    ) -> None:
        """Append a node, infer its type and hold it to the stated one."""
        inferred = self._infer(node, name)
        if stated is not None:
            type_ = self.resolver.type(stated, pieces=self.block is not None)
            if not same_type(type_, inferred, ordered=isinstance(node, Load)):
                raise self.resolver.source.ill_typed(
                    stated.dtype, f"{name} is {shown(inferred)}, not {shown(type_)}"
                )
        self.define(name, inferred)
        self.nodes.append(node)

    def _infer(
        self, node: Load | Apply | Accumulate | RunningMax, name: Word
    ) -> TensorType:
        try:
            if self.block is not None:
                return block_node_type(node, self.block, self.types, self.outer)
            assert isinstance(node, Apply)
            operands = [self.types[v] for v in node.values]
            return apply_type(node, operands, in_block=False)
        except (CheckError, ValueError) as error:
            message = error.message if isinstance(error, CheckError) else str(error)
            place = node.location if isinstance(node, Apply) else None
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
            hint = suggest(name.text, self.types, "values")
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

    def operand(self, form: ExprForm, name: Word) -> Operand:
        """The value or constant of an expression."""
        match form:
            case NameForm():
                text = form.name.text
                if text not in self.types and self.resolver.is_dim(text):
                    return Scalar(Fraction(1), ((text, 1),))
                return self.lookup(form.name)
            case ConstantForm():
                return self.resolver.constant(form.text, self.types)
            case InfixForm() | ApplyForm():
                call = self._call(form, name, None)
                if isinstance(call, Scalar):
                    return call
                fresh = self._fresh(name)
                self.add(call.node(self, fresh), fresh)
                return fresh.text

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

    def _fresh(self, name: Word) -> Word:
        base = name.text.rstrip("#")
        free = (f"{base}_{i}" for i in count(1))
        text = next(t for t in free if t not in self.taken)
        self.taken.add(text)
        return Word(text, name.line, name.column)

    def _call(
        self, form: InfixForm | ApplyForm, name: Word, stated: TypeForm | None
    ) -> _Call | Scalar:
        """An operator and its operands, or the constant that they make."""
        given: dict[str, AttrValue] = {}
        if isinstance(form, InfixForm):
            sign, left, right = form.sign.text, form.left, form.right
            if sign in _SWAPPED:
                sign, left, right = _SWAPPED[sign], right, left
            op, place = _SIGNS[sign], form.sign
            a, b = self.operand(left, name), self.operand(right, name)
            if isinstance(a, Scalar) and isinstance(b, Scalar):
                return self._folded(op, a, b, place)
            operands: tuple[Operand, ...] = (a, b)
        else:
            op, place = self._operator(form.function), form.function
            given, operands = self._applied(op, form, name)
        for missing in (n for n in op.attributes if n not in given):
            if op.kind is not Kind.CONTRACTION:
                raise self.resolver.source.wrong(
                    place, f"{op.name} needs {missing}(...) behind its operands"
                )
            given[missing] = self._summed_dims(op, operands, place, stated)
        return _Call(op, operands, tuple(sorted(given.items())), place)

    def _applied(
        self, op: Operator, form: ApplyForm, name: Word
    ) -> tuple[dict[str, AttrValue], tuple[Operand, ...]]:
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
        if op.term is Term.MUL:
            return a.times(b)
        if op.term is Term.DIV and b.value and isinstance(b.value, Fraction):
            powers = tuple((n, -p) for n, p in b.extents)
            return a.times(Scalar(1 / b.value, powers))
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
    ) -> dict[str, AttrValue]:
        """Attributes by name, from clauses and from arguments behind the operands."""
        source = self.resolver.source
        given: dict[str, AttrValue] = {}
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
        operands: Sequence[Operand],
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
    operands: tuple[Operand, ...]
    attrs: tuple[tuple[str, AttrValue], ...]
    place: Word

    def node(self, scope: Scope, name: Word) -> Apply:
        place = scope.resolver.source.at(self.place)
        return Apply(name.text, self.op, self.operands, self.attrs, place)


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
