"""Sums taken another way: products of sums multiplied out, variances from parts.

**Multiplied out.**  The axioms behind S (`search.useful`) cancel nothing and keep
products of sums whole, so that S stays small.  What they miss is had by searching a
second form of the program, in which one law is applied wherever it helps:

    Σ_n Π_i (Σ_j a_ij)  =  Σ over the products of terms, each summed by itself,

with what does not depend on n moved out of Σ_n, Σ_n 1 = n, and like terms collected.

    Σ_n (x - m)², m = Σ_n x / n     ->  Σ_n x² - Σ_n x * m        one pass over n
    Σ_k (x - c)², x[m, k], c[n, k]  ->  Σ_k x² - 2 Σ_k x c + Σ_k c²     a product

It helps if fewer sums over a dim wait for each other and some output lacks the dim, or
if no value has all the dims that the product of sums has.  Cancellation makes such
forms less accurate; that is for the stability verdict to judge.

**In parts.**  Variances of long rows are combined from the means and variances of their
parts.  A block that centres a row holds all of it, or waits until other blocks have its
mean.  Parts need not wait: about its own mean each has a sum of squares, and whatever a
row is centred about, these say what its squares are.  Before → after, with r = (o, i),
c any value without i, and a, q all that the rest has to know of the parts:

    s = sum x over(o, i)                   a = sum x over(i)
    t = sum (x - c)² over(o, i)     ->     q = sum (x - a / |i|)² over(i)
                                           s = sum a over(o)
                                           t = sum (q + (a - |i| c)² / |i|) over(o)

Nothing large is subtracted, so it is about as accurate as what was written; and of sums
of parts the whole sum is as it was, where means of parts would be rounded once more.
A dim of which all would be too long is cut into `o` and `i` of lengths that divide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import prod

from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import (
    Dim,
    MemorySpace,
    Scalar,
    TensorType,
    extent_scalar,
    f32,
    f64,
    flat_type,
)
from mirage_dsl.core.work import look
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.canonical import Apart, FreshNames, free_name
from mirage_dsl.ir.check import check
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents, with_derived_extents
from mirage_dsl.ir.walk import (
    depending,
    live,
    looked_at,
    makers,
    renamed,
    with_operands,
)
from mirage_dsl.ir.write import OperatorWriter, flatten, unflatten
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Kind, Operator, Term
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
        powers = Scalar(Fraction(1), powers).times(extent_scalar(dim)).extents
    gone = over & dims
    if inside:
        if len(inside) == 1 and inside[0].over:
            gone, inside = gone | set(inside[0].over), inside[0].inside
        left = tuple(sorted(dims - gone))
        outside.append(TermFactor(left, "", False, inside, tuple(sorted(gone))))
    return tuple(sorted(outside)), powers


# -- Programs multiplied out -----------------------------------------------------------

MOST_TERMS = 16
"""Terms of a sum beyond which it is not multiplied out."""


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

    program: ir.KernelGraph
    loops: frozenset[str] | None = None

    def serves(self, loop: str | None) -> bool:
        """Whether blocks that iterate over a dim, or none, are worth a search."""
        return self.loops is None or loop in self.loops


def forms(program: ir.KernelGraph) -> list[Form]:
    """The forms of a program that are worth a search, itself first.

    Args:
        program: Primitive operators only.
    """
    other = multiplied_out(program)
    return [Form(program), *([] if other is None else [other])]


def multiplied_out(program: ir.KernelGraph) -> Form | None:
    """The form of a program with sums of products of sums multiplied out.

    None where that helps nowhere.

    Args:
        program: Primitive operators only.
    """
    nodes = program.applies
    if len(nodes) < len(program.nodes) or not any(n.op.term in _LINEAR for n in nodes):
        return None
    reader = _Reader(program)
    changed: list[ir.Apply] = []
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
    _known: dict[ir.Operand, Polynomial] = field(
        default_factory=dict[ir.Operand, Polynomial]
    )

    def of(self, operand: ir.Operand) -> Polynomial:
        """The polynomial of an operand.

        Raises:
            OverflowError: It has too many terms.
        """
        if operand not in self._known:
            look()
            self._known[operand] = self._made(operand)
        return self._known[operand]

    def _made(self, operand: ir.Operand) -> Polynomial:
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

    def summed(self, node: ir.Apply) -> Polynomial:
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

    program: ir.KernelGraph
    loops: set[str] = field(default_factory=set[str])
    spread: bool = False
    _depths: dict[tuple[str, str], int] = field(
        default_factory=dict[tuple[str, str], int]
    )
    _spreads: dict[str, bool] = field(default_factory=dict[str, bool])
    _count: int = 0

    @cached_property
    def makers(self) -> dict[str, ir.Apply]:
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

    def expanded(self, node: ir.Apply) -> list[ir.Apply] | None:
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
        return _TermsWriter(self, node).nodes_of(found)

    def _helps(self, node: ir.Apply, found: Polynomial) -> bool:
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


class _TermsWriter:
    """Writes a polynomial as operators that end in the result of a node."""

    def __init__(self, reader: _Reader, node: ir.Apply) -> None:
        self.reader, self.node = reader, node
        self.nodes: list[ir.Apply] = []
        self.known: dict[object, str] = {}

    def nodes_of(self, whole: Polynomial) -> list[ir.Apply]:
        """All nodes; the last one has the name of the node that they replace."""
        terms = sorted(whole.items(), key=lambda t: (t[1] < 0, t[0]))
        total: ir.Operand | None = None
        for (atoms, powers), number in terms:
            sign = -1 if number < 0 and total is not None else 1
            term = self.term(atoms, Scalar(sign * number, powers))
            if total is None:
                total = term
            else:
                total = self.apply(table.ADD if sign > 0 else table.SUB, total, term)
        self.nodes[-1] = replace(self.nodes[-1], result=self.node.result)
        return self.nodes

    def term(self, atoms: tuple[TermFactor, ...], factor: Scalar) -> ir.Operand:
        """A product of atoms and a constant.

        Sums are divided by the extents that they are sums over where these are below
        the line anyway: the program often has that mean already.
        """
        parts: list[ir.Operand] = []
        below: list[str] = []
        for atom in atoms:
            if atom.inverted:
                below.append(atom.value)
                continue
            value: ir.Operand = self.atom(atom)
            powers = dict(factor.extents)
            if atom.over and all(powers.get(d, 0) < 0 for d in atom.over):
                mean = extent_scalar(*atom.over).inverse
                for dim in atom.over:
                    factor = factor.times(extent_scalar(dim))
                value = self.apply(table.MUL, value, mean)
            parts.append(value)
        if factor != Scalar(Fraction(1)) or not parts:
            parts.append(factor)

        return self.product(parts, below)

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
            return self.apply(table.MATMUL, *factors, over=atom.over)
        total = self.product(factors or [Scalar(Fraction(1))], below)
        return self.apply(table.SUM, total, over=atom.over)

    def product(
        self, factors: Sequence[ir.Operand], below: Sequence[str]
    ) -> ir.Operand:
        """A product of some factors, at least one, divided by others."""
        total = factors[0]
        for factor in factors[1:]:
            total = self.apply(table.MUL, total, factor)
        for value in below:
            total = self.apply(table.DIV, total, value)
        return total

    def apply(
        self, op: Operator, *operands: ir.Operand, over: tuple[str, ...] = ()
    ) -> str:
        """The result of an operator, written once."""
        key = op.name, operands, over
        if key not in self.known:
            name = self.known[key] = self.reader.fresh(self.node.result)
            attrs = (("over", over),) if over else ()
            self.nodes.append(ir.Apply(name, op, operands, attrs, self.node.location))
        return self.known[key]


# -- Variances in parts ----------------------------------------------------------------

LONGEST = 4096
"""Elements of a part, where nobody says."""

SHORTEST = 64
"""Parts of fewer elements say little less than their elements do."""

WHOLE = 4
"""Elements of which parts are whole multiples, where they can be."""


@dataclass(frozen=True)
class InParts:
    """A program whose rows are in parts.

    Attributes:
        program: It has the inputs of the whole, and returns both dims of one that is
            cut.
        whole: The program that it was made of.
        statistics: The values that are all that the rest knows of the parts.
        length: Elements of a part.
        cut: The dim that is two, with these, if there is one.
    """

    program: ir.KernelGraph
    whole: ir.KernelGraph
    statistics: tuple[str, ...]
    length: int
    cut: Cut | None

    @property
    def first(self) -> frozenset[str]:
        """The values that the statistics are made of, and they themselves."""
        nodes = live(self.program.applies, self.statistics)
        return frozenset(n.result for n in nodes)

    def restored(self, graph: ir.KernelGraph) -> ir.KernelGraph:
        """A μGraph of the program as one of the whole."""
        if self.cut is None:
            return replace(graph, returns=self.whole.returns)
        nodes = list(graph.nodes)
        for own, wanted in zip(graph.returns, self.whole.returns, strict=True):
            if own.value != wanted.value:
                nodes.append(self.cut.undone(own.value, wanted.value))
        restored = replace(graph, nodes=tuple(nodes), returns=self.whole.returns)
        return with_derived_extents(restored)


@dataclass(frozen=True)
class Cut:
    """A dim, and the two of which it is made.

    Attributes:
        dim: Its name.
        parts: Names of the dim over parts and of the dim within one.
        count: How many parts there are.
        length: Elements of a part.
    """

    dim: str
    parts: tuple[str, str]
    count: int
    length: int

    @property
    def apart(self) -> Apart:
        """The two in the place of the one."""
        return Apart({self.dim: self.parts})

    def type(self, kind: TensorType) -> TensorType:
        """The type of a tensor with both."""
        dims = tuple(map(Dim, self.apart.names(kind.names)))
        return flat_type(kind.dtype, dims, MemorySpace.DEVICE)

    def view(self, made: str, value: str) -> ir.Apply:
        """A value seen with both."""
        return unflatten(made, value, self.dim, self.parts)

    def undone(self, value: str, made: str) -> ir.Apply:
        """A value that has both seen with the one."""
        return flatten(made, value, self.parts, self.dim)


def combined_variances(program: ir.KernelGraph) -> ir.KernelGraph | None:
    """The program with the squares of long rows combined from those of parts."""
    found = in_parts(program)
    return None if found is None else found.restored(found.program)


def in_parts(program: ir.KernelGraph, longest: int = LONGEST) -> InParts | None:
    """The program with rows in parts; None where no squares of long rows are summed.

    Args:
        program: Primitive operators only, of known extents.
        longest: Elements that a part has at most.
    """
    squares = _Squares.of(program)
    part = None if squares is None else _Places(program, squares).part(longest)
    if squares is None or part is None:
        return None
    found = _PartsWriter(program, squares, part).found()
    return None if found is None or check(found.program) else found


def _divisor(extent: int, most: int) -> int:
    """The largest divisor up to `most`; one that is whole words of memory, if any is.

    Where all rows begin in the middle of a sector, loads and stores are of few bytes.
    """
    found = [n for n in range(min(most, extent), 1, -1) if extent % n == 0]
    whole = [n for n in found if n % WHOLE == 0 and n >= SHORTEST]
    return (whole or found or [1])[0]


def row_length(program: ir.KernelGraph) -> int:
    """Elements of the rows whose squares wait for their sums; 0 where none do."""
    squares = _Squares.of(program)
    if squares is None:
        return 0
    extents = derived_extents(program)
    return prod(extents[d] or 0 for d in squares.over)


def read_in_turn(program: ir.KernelGraph) -> list[frozenset[str]]:
    """What is read for sums of rows, each time before more of the row is read.

    The inputs of a value for its mean, and again for its squares where those of some
    result wait for them; nothing where no squares of rows are summed.
    """
    squares = _Squares.of(program)
    if squares is None:
        return []
    above = live(program.applies, [squares.value])
    read = {v for n in above for v in n.values} | {squares.value}
    inputs = frozenset(i.name for i in program.inputs if i.name in read)
    long = any(set(squares.over) & set(r.type.names) for r in program.returns)
    return [inputs] * (2 if long else 1)


# -- Sums of squares -------------------------------------------------------------------


@dataclass(frozen=True)
class _Squares:
    """A sum of squares of a value about some centre that waits for the value's sum.

    Attributes:
        value: The value.
        over: The dims of the rows.
    """

    value: str
    over: tuple[str, ...]

    @staticmethod
    def of(program: ir.KernelGraph) -> _Squares | None:
        """The first sum of squares of floats in a program."""
        made, types = makers(program), kernel_types(program)
        for node in program.applies:
            for value, centre in _centred(node, made):
                kind = types[value]
                over = tuple(d for d in node.over if d in kind.names)
                found = _Squares(value, over)
                if kind.dtype.is_float and found.waits(program, centre):
                    return found
        return None

    def waits(self, program: ir.KernelGraph, centre: str) -> bool:
        """Whether the centre depends on a sum of the value over the rows."""
        rows = set(self.over)
        sums = [
            n.result
            for n in program.applies
            if n.op is table.SUM and n.operands == (self.value,) and rows <= set(n.over)
        ]
        return bool(rows) and centre in depending(program.applies, sums)


def _centred(node: ir.Apply, made: Mapping[str, ir.Apply]) -> Iterator[tuple[str, str]]:
    """Each value and centre of whose difference a node sums squares."""
    square = made.get(node.values[0]) if node.op is table.SUM else None
    if square is None or square.op is not table.MUL:
        return
    first, second = square.operands
    difference = made.get(first) if isinstance(first, str) else None
    if first != second or difference is None or difference.op is not table.SUB:
        return
    value, centre = difference.operands
    if isinstance(value, str) and isinstance(centre, str):
        yield value, centre
        yield centre, value


@dataclass(frozen=True)
class _Part:
    """What a part of a row is: its dims, its elements, and the dim that was cut."""

    inner: frozenset[str]
    length: int
    cut: Cut | None


@dataclass(frozen=True)
class _Places:
    """Where the rows of a value lie in memory, and which dims are of the parts."""

    program: ir.KernelGraph
    squares: _Squares

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """Types of all values."""
        return kernel_types(self.program)

    def part(self, longest: int) -> _Part | None:
        """What a part is; None if it is the row, or short."""
        extents = derived_extents(self.program)
        inner: list[str] = []
        length, cut = 1, None
        for dim in reversed(self._in_memory()):
            extent = extents[dim]
            if extent is None:
                return None
            if length * extent <= longest:
                inner.append(dim)
                length *= extent
                continue
            some = _divisor(extent, longest // length)
            if some > 1 and self._may_cut(dim):
                cut = self._cut(dim, extent // some, some)
                inner.append(cut.parts[1])
                length *= some
            break
        whole = cut is None and len(inner) == len(self.squares.over)
        short = length < SHORTEST
        return None if whole or short else _Part(frozenset(inner), length, cut)

    def _in_memory(self) -> tuple[str, ...]:
        """The dims of the rows, in the order of an input that has them all, if any."""
        own = set(self.squares.over)
        made = live(self.program.applies, [self.squares.value])
        read = {v for n in made for v in n.values} | {self.squares.value}
        names = [i.type.names for i in self.program.inputs if i.name in read]
        names.append(self.types[self.squares.value].names)
        order = next(n for n in names if own <= set(n))
        return tuple(n for n in order if n in own)

    def _may_cut(self, dim: str) -> bool:
        """Whether nothing that is computed takes the dim for what it is."""
        there = looked_at(self.program)
        computed = [n for n in self.program.applies if n.result not in there]
        named = [
            value
            for node in computed
            for name, value in node.attrs
            if name != "over" or node.op.kind is Kind.CONTRACTION
        ]
        indexed = any(dim in i.type.names for i in self.program.indices)
        if indexed or any(dim in ir.named_in(value) for value in named):
            return False
        read = {v for n in computed for v in n.values} & there
        kinds = [self.types[v] for v in sorted(read)]
        kinds += [r.type for r in self.program.returns]
        returned = {r.value for r in self.program.returns if dim in r.type.names}
        return returned.isdisjoint(there) and all(
            kind.order == tuple(range(len(kind.axes)))
            and all(len(axis) == 1 for axis in kind.axes if Dim(dim) in axis)
            for kind in kinds
            if dim in kind.names
        )

    def _cut(self, dim: str, count: int, length: int) -> Cut:
        taken = set(self.program.extent_of)
        outer = free_name(f"{dim}_part", taken)
        inner = free_name(f"{dim}_in", {*taken, outer})
        return Cut(dim, (outer, inner), count, length)


def _computed_again(
    program: ir.KernelGraph, value: str, statistics: Sequence[str]
) -> ir.KernelGraph:
    """The program in which the parts alone read a copy of a value without sums.

    So it is computed twice, element by element, and not stored.
    """
    there = looked_at(program)
    above = live(program.applies, [value])
    made = {n.result for n in above if n.result not in there}
    if any(
        n.op.kind is not Kind.ELEMENTWISE and n.op is not table.CAST
        for n in above
        if n.result in made
    ):
        return program
    names = FreshNames(program)
    copies = {name: names.fresh(f"{name}_again") for name in sorted(made)}
    ahead = {n.result for n in live(program.applies, statistics)} - made
    nodes: list[ir.Apply] = []
    for node in program.applies:
        own = with_operands(node, copies)
        nodes.append(own if node.result in ahead else node)
        if node.result in made:
            nodes.append(replace(own, result=copies[node.result]))
    # Where nothing but the parts reads the value, the copy is the only one.
    kept = live(nodes, [r.value for r in program.returns])
    return replace(program, nodes=tuple(kept))


# -- The program in parts --------------------------------------------------------------


@dataclass
class _PartsWriter:
    """Writes the program node by node."""

    program: ir.KernelGraph
    squares: _Squares
    part: _Part
    nodes: list[ir.Apply] = field(default_factory=list[ir.Apply])
    seen: dict[str, str] = field(default_factory=dict[str, str])
    """Inputs as they are seen with the dims of a cut."""

    def __post_init__(self) -> None:
        self.inner, self.cut = self.part.inner, self.part.cut
        self.names = FreshNames(self.program)
        self.types = kernel_types(self.program)
        self.made = makers(self.program)
        self.over = self._both(self.squares.over)
        self.free = looked_at(self.program)
        self.length = extent_scalar(*self.inner)
        self.share = self.length.inverse

    def found(self) -> InParts | None:
        """The program in parts."""
        for item in self.program.inputs:
            self._see_cut(item.name)
        if self.squares.value not in self.made:
            self._statistics()
        for node in self.program.applies:
            if node.result in self.free:
                self.nodes.append(node)
                self._see_cut(node.result)
            else:
                self._write(node)
            if node.result == self.squares.value:
                self._statistics()
        statistics = (self.total, self.sum)
        written = self._returning()
        program = expand(written)
        kept = {n.result for n in program.applies}.issuperset(statistics)
        if not kept or program.returns != written.returns:
            # Some of them are equal to what the program has anyway.
            return None
        program = _computed_again(program, self.squares.value, statistics)
        return InParts(program, self.program, statistics, self.part.length, self.cut)

    def _see_cut(self, value: str) -> None:
        """Look at an input, or a view of one, with both dims of the cut."""
        if self.cut is not None and self.cut.dim in self.types[value].names:
            self.seen[value] = self.names.fresh(f"{value}_parts")
            self.nodes.append(self.cut.view(self.seen[value], value))

    def _both(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(names) if self.cut is None else self.cut.apart.names(names)

    # -- The parts ---------------------------------------------------------------------

    def _statistics(self) -> None:
        """The sum of each part, and that of squares about its mean, in f32."""
        value = self.seen.get(self.squares.value, self.squares.value)
        kind = self.types[self.squares.value].dtype
        if kind not in (f32, f64):
            value = self._node("wide", table.CAST, value, dtype=f32.name)
        over = tuple(d for d in self.over if d in self.inner)
        self.total = self._node("part", table.SUM, value, over=over)
        mean = self._node("mean", table.MUL, self.total, self.share)
        difference = self._node("off", table.SUB, value, mean)
        square = self._node("off2", table.MUL, difference, difference)
        self.sum = self._node("squares", table.SUM, square, over=over)

    # -- The rest ----------------------------------------------------------------------

    def _write(self, node: ir.Apply) -> None:
        """A node, by the parts if it sums the value, or its squares, over them."""
        node = node if self.cut is None else self.cut.apart.apply(node)
        whole = self.inner < set(node.over)
        centre = self._centre(node) if whole else None
        rest = node.summing(tuple(d for d in node.over if d not in self.inner))
        if whole and node.op is table.SUM and node.operands == (self.squares.value,):
            self.nodes.append(replace(rest, operands=(self.total,)))
        elif centre is not None:
            long = self._node("centre", table.MUL, centre, self.length)
            off = self._node("apart", table.SUB, self.total, long)
            square = self._node("apart2", table.MUL, off, off)
            weighted = self._node("weighted", table.MUL, square, self.share)
            joined = self._node("joined", table.ADD, self.sum, weighted)
            self.nodes.append(replace(rest, operands=(joined,)))
        else:
            self.nodes.append(with_operands(node, self.seen))

    def _centre(self, node: ir.Apply) -> str | None:
        """What the squares that a node sums are about, if that lacks the part."""
        for value, centre in _centred(node, self.made):
            names = self._both(self.types[centre].names)
            if value == self.squares.value and self.inner.isdisjoint(names):
                return self.seen.get(centre, centre)
        return None

    def _node(
        self, base: str, op: Operator, *operands: ir.Operand, **attrs: ir.AttrValue
    ) -> str:
        """An operator on values as they are seen with the dims of the cut."""
        seen = renamed(operands, self.seen)
        write = OperatorWriter(self.nodes, self.names)
        return write(f"{self.squares.value}_{base}", op, *seen, **attrs)

    # -- What is returned --------------------------------------------------------------

    def _returning(self) -> ir.KernelGraph:
        """The program, whose results have the formats that they had."""
        graph = replace(self.program, nodes=tuple(self.nodes))
        if self.cut is not None:
            sizes = (self.cut.count, self.cut.length)
            graph = graph.with_extents(dict(zip(self.cut.parts, sizes, strict=True)))
        types = kernel_types(replace(graph, returns=()))
        own = {r.value: self._returned(r) for r in self.program.returns}
        new = {old: made.value for old, made in own.items() if made.value != old}
        casts: list[ir.Apply] = []
        for old, made in own.items():
            if types[old].dtype != made.type.dtype:
                new[old] = self.names.fresh(f"{old}_wide")
                attrs: ir.Attrs = (("dtype", made.type.dtype.name),)
                casts.append(ir.Apply(made.value, table.CAST, (new[old],), attrs))
        nodes = [
            replace(with_operands(n, new), result=new.get(n.result, n.result))
            for n in self.nodes
        ]
        returns = tuple(own[r.value] for r in self.program.returns)
        return replace(graph, nodes=(*nodes, *casts), returns=returns)

    def _returned(self, item: ir.Return) -> ir.Return:
        """A result with the dims that it has in parts."""
        if self.cut is None or self.cut.dim not in item.type.names:
            return item
        name = self.names.fresh(f"{item.value}_parts")
        return replace(item, value=name, type=self.cut.type(item.type))
