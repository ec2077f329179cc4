"""Another form of a program: sums of products of sums, multiplied out.

The axioms behind S (`search.useful`) cancel nothing and keep products of sums
whole, so that S stays small.  What they miss is had by searching a second form of the
program, in which one law is applied wherever it helps:

    Σ_n Π_i (Σ_j a_ij)  =  Σ over the products of terms, each summed by itself,

with what does not depend on n moved out of Σ_n, Σ_n 1 = n, and like terms collected.

    Σ_n (x - m)², m = Σ_n x / n     ->  Σ_n x² - Σ_n x * m        one pass over n
    Σ_k (x - c)², x[m, k], c[n, k]  ->  Σ_k x² - 2 Σ_k x c + Σ_k c²     a product

It helps if fewer sums over a dim wait for each other and some output lacks the dim, or
if no value has all the dims that the product of sums has.  Cancellation makes such
forms less accurate; that is for the stability verdict to judge.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import Scalar
from mirage_dsl.core.work import look
from mirage_dsl.ir.graph import Apply, KernelGraph, Operand
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import depending, makers
from mirage_dsl.ops.definition import Operator, Term
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.rewrite.expand import expand

# -- Polynomials of values -------------------------------------------------------------
# Like terms are collected: numbers and powers of extents are exact, so that terms
# cancel.

Powers = tuple[tuple[str, int], ...]
Product = tuple[tuple["TermFactor", ...], Powers]
"""Factors in order, with repetition, and powers of extents."""
Polynomial = dict[Product, Fraction]


@dataclass(frozen=True, order=True)
class TermFactor:
    """A factor: a value, its inverse, or the sum of a product of factors over dims.

    Attributes:
        dims: The dims that it has, sorted.
        value: The value's name; of a sum, "".
        inverted: Whether it stands below the line.
        inside: The factors of which it is the sum.
        over: The dims over which it is summed, sorted.
    """

    dims: tuple[str, ...]
    value: str
    inverted: bool = False
    inside: tuple[TermFactor, ...] = ()
    over: tuple[str, ...] = ()


def added(a: Polynomial, b: Polynomial, sign: int) -> Polynomial:
    """A + sign * b."""
    found = dict(a)
    for term, number in b.items():
        found[term] = found.get(term, Fraction(0)) + sign * number
    return {term: number for term, number in found.items() if number}


def multiplied(a: Polynomial, b: Polynomial) -> Polynomial:
    """The product."""
    found: Polynomial = {}
    for (first, p), x in a.items():
        for (second, q), y in b.items():
            powers = Scalar(x, p).times(Scalar(y, q)).extents
            term = tuple(sorted((*first, *second))), powers
            found[term] = found.get(term, Fraction(0)) + x * y
    return {term: number for term, number in found.items() if number}


def summed(
    atoms: tuple[TermFactor, ...], powers: Powers, over: frozenset[str]
) -> Product:
    """The sum of a product over some dims, with all that is constant moved out."""
    inside = tuple(a for a in atoms if over & set(a.dims))
    outside = [a for a in atoms if not over & set(a.dims)]
    dims = {d for a in inside for d in a.dims}
    for dim in sorted(over - dims):
        powers = Scalar(Fraction(1), powers).times(extent_power(dim, 1)).extents
    gone = over & dims
    if inside:
        if len(inside) == 1 and inside[0].over:
            gone, inside = gone | set(inside[0].over), inside[0].inside
        left = tuple(sorted(dims - gone))
        outside.append(TermFactor(left, "", False, inside, tuple(sorted(gone))))
    return tuple(sorted(outside)), powers


def extent_power(dim: str, power: int) -> Scalar:
    """A power of an extent."""
    return Scalar(Fraction(1), ((dim, power),))


# -- Programs multiplied out -----------------------------------------------------------

MOST_TERMS = 16
"""Terms of a sum beyond which it is not multiplied out."""

_OF_TERM = {op.term: op for op in OPERATORS.values() if op.expansion is None}
_LINEAR = (Term.ADD, Term.SUB)
_OPEN = (*_LINEAR, Term.MUL, Term.DIV, Term.SUM, Term.CONTRACT)


@dataclass(frozen=True)
class Form:
    """A form of a program, which computes the same.

    Attributes:
        program: The form.
        loops: The dims over which a block must iterate for it to help; None if it may
            help whatever the loop.
    """

    program: KernelGraph
    loops: frozenset[str] | None = None

    def serves(self, loop: str | None) -> bool:
        """Whether blocks that iterate over a dim, or none, are worth a search."""
        return self.loops is None or loop in self.loops


def forms(program: KernelGraph) -> list[Form]:
    """The forms of a program that are worth a search, itself first.

    Args:
        program: Primitive operators only.
    """
    other = multiplied_out(program)
    return [Form(program), *([] if other is None else [other])]


def multiplied_out(program: KernelGraph) -> Form | None:
    """The form of a program with sums of products of sums multiplied out.

    None where that helps nowhere.

    Args:
        program: Primitive operators only.
    """
    nodes = program.applies
    if len(nodes) < len(program.nodes) or not any(n.op.term in _LINEAR for n in nodes):
        return None
    reader = _Reader(program)
    changed: list[Apply] = []
    for node in nodes:
        written = reader.expanded(node)
        changed += [node] if written is None else written
    if changed == [*nodes]:
        return None
    try:
        form = expand(replace(program, nodes=tuple(changed)))
    except CheckError:
        return None
    return Form(form, None if reader.spread else frozenset(reader.loops))


@dataclass
class _Polynomials:
    """Values as polynomials of what does not depend on sums over some dims.

    Attributes:
        reader: The program.
        over: The dims.
        crossed: Whether a product of two sums was multiplied out.
    """

    reader: _Reader
    over: frozenset[str]
    crossed: bool = False
    _known: dict[Operand, Polynomial] = field(default_factory=dict[Operand, Polynomial])

    def of(self, operand: Operand) -> Polynomial:
        """The polynomial of an operand.

        Raises:
            OverflowError: It has too many terms.
        """
        if operand not in self._known:
            look()
            self._known[operand] = self._made(operand)
        return self._known[operand]

    def _made(self, operand: Operand) -> Polynomial:
        if isinstance(operand, Scalar):
            assert isinstance(operand.value, Fraction)
            return {((), operand.extents): operand.value}
        node = self.reader.makers.get(operand)
        if node is None or not self._opens(operand):
            return self._single(TermFactor(self.reader.dims(operand), operand))
        match node.op.term:
            case Term.ADD | Term.SUB:
                sign = 1 if node.op.term is Term.ADD else -1
                return added(self.of(node.operands[0]), self.of(node.operands[1]), sign)
            case Term.MUL:
                return self._product(*(self.of(o) for o in node.operands))
            case Term.DIV:
                divisor = node.operands[1]
                assert isinstance(divisor, str)
                below = TermFactor(self.reader.dims(divisor), divisor, inverted=True)
                return self._product(self.of(node.operands[0]), self._single(below))
            case _:
                return self.summed(node)

    def summed(self, node: Apply) -> Polynomial:
        """The polynomial of a sum or of a contraction, taken apart in any case."""
        whole = self.of(node.operands[0])
        if len(node.operands) > 1:
            whole = self._product(whole, self.of(node.operands[1]))
        found: Polynomial = {}
        for (atoms, powers), number in whole.items():
            term = summed(atoms, powers, frozenset(node.over))
            found[term] = found.get(term, Fraction(0)) + number
        return {term: number for term, number in found.items() if number}

    def _opens(self, value: str) -> bool:
        """Whether a value is more than a factor."""
        node = self.reader.makers.get(value)
        if node is None or node.op.term not in _OPEN:
            return False
        if any(isinstance(o, Scalar) and not _is_exact(o) for o in node.operands):
            return False
        if node.op.term is Term.DIV and not isinstance(node.operands[1], str):
            return False
        if any(self.reader.depth(value, d) for d in self.over):
            return True
        return self.reader.spreads(value)

    def _single(self, atom: TermFactor) -> Polynomial:
        return {((atom,), ()): Fraction(1)}

    def _product(self, a: Polynomial, b: Polynomial) -> Polynomial:
        self.crossed |= len(a) > 1 and len(b) > 1
        if len(a) * len(b) > MOST_TERMS:
            raise OverflowError
        return multiplied(a, b)


def _is_exact(number: Scalar) -> bool:
    return isinstance(number.value, Fraction)


@dataclass
class _Reader:
    """What a program's values depend on.

    Attributes:
        program: The program.
        loops: Dims over which fewer sums wait for each other.
        spread: Whether values of many dims were avoided.
    """

    program: KernelGraph
    loops: set[str] = field(default_factory=set[str])
    spread: bool = False
    _depths: dict[tuple[str, str], int] = field(
        default_factory=dict[tuple[str, str], int]
    )
    _spreads: dict[str, bool] = field(default_factory=dict[str, bool])
    _count: int = 0

    @cached_property
    def makers(self) -> dict[str, Apply]:
        return makers(self.program)

    @cached_property
    def _dims(self) -> dict[str, tuple[str, ...]]:
        types = kernel_types(self.program)
        return {name: tuple(sorted(kind.names)) for name, kind in types.items()}

    def dims(self, value: str) -> tuple[str, ...]:
        """The dims of a value, sorted."""
        return self._dims[value]

    def depth(self, value: str, dim: str) -> int:
        """How many sums over a dim wait for each other on the way to a value."""
        key = value, dim
        if key not in self._depths:
            node = self.makers.get(value)
            below = [] if node is None else [self.depth(o, dim) for o in node.values]
            own = node is not None and dim in node.over
            self._depths[key] = max(below, default=0) + own
        return self._depths[key]

    def spreads(self, value: str) -> bool:
        """Whether it is made of a sum that has more dims than each of its terms."""
        if value not in self._spreads:
            self._spreads[value] = self._is_spread(value)
        return self._spreads[value]

    def _is_spread(self, value: str) -> bool:
        node = self.makers.get(value)
        if node is None or node.op.term not in (*_LINEAR, Term.MUL):
            return False
        if node.op.term in _LINEAR:
            own = self.dims(value)
            return all(
                isinstance(o, str) and self.dims(o) != own for o in node.operands
            )
        return any(self.spreads(o) for o in node.values)

    def expanded(self, node: Apply) -> list[Apply] | None:
        """The nodes of a sum multiplied out; None where that does not help."""
        if node.op.term not in (Term.SUM, Term.CONTRACT):
            return None
        polynomials = _Polynomials(self, frozenset(node.over))
        try:
            found = polynomials.summed(node)
        except OverflowError:
            return None
        if not polynomials.crossed or not found or not self._helps(node, found):
            return None
        return _Writer(self, node).nodes_of(found)

    def _helps(self, node: Apply, found: Polynomial) -> bool:
        """Whether a form of a sum helps; keeps in mind how."""
        atoms = {a for term, _ in found for a in term}
        loops = {
            dim
            for dim in set(node.over) - self._kept(node.result)
            if max(self._depth_of(a, dim) for a in atoms) < self.depth(node.result, dim)
        }
        whole = {d for v in node.values for d in self.dims(v)}
        factors = {f for a in atoms for f in a.inside or (a,)}
        spread = all(set(f.dims) != whole for f in factors)
        self.loops |= loops
        self.spread |= spread
        return bool(loops) or spread

    def _kept(self, value: str) -> set[str]:
        """Dims of all outputs made of a value: they are in memory as a whole anyway."""
        made = depending(self.program.nodes, [value])
        names = {r.value for r in self.program.returns} & made
        rows = [set(self.dims(name)) for name in names]
        return set[str].intersection(*rows) if rows else set()

    def _depth_of(self, atom: TermFactor, dim: str) -> int:
        if not atom.over:
            return self.depth(atom.value, dim)
        return (dim in atom.over) + max(self._depth_of(a, dim) for a in atom.inside)

    def fresh(self, stem: str) -> str:
        """A name that the program does not have."""
        while True:
            self._count += 1
            name = f"{stem}_{self._count}"
            if name not in self._dims:
                return name


class _Writer:
    """Writes a polynomial as operators that end in the result of a node."""

    def __init__(self, reader: _Reader, node: Apply) -> None:
        self.reader, self.node = reader, node
        self.nodes: list[Apply] = []
        self.known: dict[object, str] = {}

    def nodes_of(self, whole: Polynomial) -> list[Apply]:
        """All nodes; the last one has the name of the node that they replace."""
        terms = sorted(whole.items(), key=lambda t: (t[1] < 0, t[0]))
        total: Operand | None = None
        for (atoms, powers), number in terms:
            sign = -1 if number < 0 and total is not None else 1
            term = self.term(atoms, Scalar(sign * number, powers))
            if total is None:
                total = term
            else:
                total = self.apply(Term.ADD if sign > 0 else Term.SUB, total, term)
        self.nodes[-1] = replace(self.nodes[-1], result=self.node.result)
        return self.nodes

    def term(self, atoms: tuple[TermFactor, ...], factor: Scalar) -> Operand:
        """A product of atoms and a constant.

        Sums are divided by the extents that they are sums over where these are below
        the line anyway: the program often has that mean already.
        """
        parts: list[Operand] = []
        below: list[str] = []
        for atom in atoms:
            if atom.inverted:
                below.append(atom.value)
                continue
            value: Operand = self.atom(atom)
            powers = dict(factor.extents)
            if atom.over and all(powers.get(d, 0) < 0 for d in atom.over):
                mean = Scalar(Fraction(1), tuple((d, -1) for d in atom.over))
                for dim in atom.over:
                    factor = factor.times(extent_power(dim, 1))
                value = self.apply(Term.MUL, value, mean)
            parts.append(value)
        if factor != Scalar(Fraction(1)) or not parts:
            parts.append(factor)
        total = parts[0]
        for part in parts[1:]:
            total = self.apply(Term.MUL, total, part)
        for value in below:
            total = self.apply(Term.DIV, total, value)
        return total

    def atom(self, atom: TermFactor) -> str:
        """A value, or a sum of a product."""
        if not atom.over:
            return atom.value
        factors = [self.atom(a) for a in atom.inside if not a.inverted]
        names = [set(a.dims) for a in atom.inside if not a.inverted]
        below = [a.value for a in atom.inside if a.inverted]
        contracts = (
            len(factors) == 2
            and not below
            and names[0] != names[1]
            and set(atom.over) <= names[0] & names[1]
        )
        if contracts:
            return self.apply(Term.CONTRACT, *factors, over=atom.over)
        total: Operand = factors[0] if factors else Scalar(Fraction(1))
        for other in factors[1:]:
            total = self.apply(Term.MUL, total, other)
        for other in below:
            total = self.apply(Term.DIV, total, other)
        return self.apply(Term.SUM, total, over=atom.over)

    def apply(self, term: Term, *operands: Operand, over: tuple[str, ...] = ()) -> str:
        """The result of an operator, written once."""
        op: Operator = _OF_TERM[term]
        key = op.name, operands, over
        if key not in self.known:
            name = self.known[key] = self.reader.fresh(self.node.result)
            attrs = (("over", over),) if over else ()
            self.nodes.append(Apply(name, op, operands, attrs, self.node.location))
        return self.known[key]
