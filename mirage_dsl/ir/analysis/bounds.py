"""How large values can get, whatever the inputs hold, and how shifts scale them.

Exponentials whose bound says so need no running maximum; others are shifted by one,
which changes nothing where all outputs scale by no power of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod

from mirage_dsl.core.types import DType, Scalar, Types, dtype_named, f32
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import Extents, derived_extents, parts
from mirage_dsl.ir.walk import live, makers, operands_of
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Axes, Kind, Operator, Term

# -- How values scale ------------------------------------------------------------------
# Shifting the exponent of e = exp(s) by m divides e by exp(m).  A value has *degree* w
# in e if that divides it by exp(w m).  Several exponentials may be shifted together.
# If all outputs have degree 0, the shift changes nothing, so it may serve to keep e in
# range.  The degree of an operator's result follows from its field semantics, run over
# degrees.  The logarithm of a value of degree w has degree 0 once w m is added to it.

Degree = int | None
"""None is the degree of the constant 0, which has every degree."""

Exponentials = Collection[tuple[int, str]]
"""Names of exponentials, each behind the number of its block."""


class NotHomogeneousError(Exception):
    """A value that does not scale by one power."""


def _equal(*degrees: Degree) -> Degree:
    known = {d for d in degrees if d is not None}
    if len(known) > 1:
        raise NotHomogeneousError
    return known.pop() if known else None


def _invariant(*degrees: Degree) -> Degree:
    if any(degrees):
        raise NotHomogeneousError
    return 0


class DegreeAlgebra:
    """`FieldAlgebra` over degrees."""

    def constant(self, value: Scalar) -> Degree:
        return None if value.value == 0 else 0

    def add(self, a: Degree, b: Degree) -> Degree:
        return _equal(a, b)

    sub = add

    def mul(self, a: Degree, b: Degree) -> Degree:
        return None if a is None or b is None else a + b

    matmul = mul

    def div(self, a: Degree, b: Degree) -> Degree:
        return None if a is None else a - (b or 0)

    def exp(self, a: Degree) -> Degree:
        return _invariant(a)

    def sqrt(self, a: Degree) -> Degree:
        if a is not None and a % 2:
            raise NotHomogeneousError
        return None if a is None else a // 2

    def maximum(self, a: Degree, b: Degree) -> Degree:
        return _equal(a, b)

    def sum(self, a: Degree, axes: Axes) -> Degree:  # noqa: ARG002
        return a

    max = sum

    def fold(
        self,
        join: Callable[[Degree, Degree], Degree],
        a: Degree,
        axes: Axes,  # noqa: ARG002
    ) -> Degree:
        """That of the elements if it is that of two, and so of any number."""
        return _equal(a, join(a, a))

    def scan(
        self, join: Callable[[Degree, Degree], Degree], a: Degree, axis: int
    ) -> Degree:
        """As of a fold over the axis."""
        return self.fold(join, a, (axis,))

    def shift(self, a: Degree, axes: Axes) -> Degree:  # noqa: ARG002
        return _invariant(a)

    def concat(self, axis: int, *operands: Degree) -> Degree:  # noqa: ARG002
        return _equal(*operands)

    def oracle(self, name: str, *operands: Degree) -> Degree:  # noqa: ARG002
        return _invariant(*operands)

    indicator = oracle

    def choose(self, condition: Degree, a: Degree, b: Degree) -> Degree:
        _invariant(condition)
        return _equal(a, b)


def applied(node: ir.Apply, degrees: dict[str, Degree]) -> Degree:
    """The degree of an operator's result.

    Raises:
        NotHomogeneousError: It has none.
    """
    algebra = DegreeAlgebra()
    operands = [
        degrees.get(o, 0) if isinstance(o, str) else algebra.constant(o)
        for o in node.operands
    ]
    return node.op.without_axes(algebra, *operands)


@dataclass
class Scaling:
    """What scaling exponentials does to the whole graph.

    Attributes:
        summed: Dims of the block over which scaled values are summed.
        accumulators: Accumulators of the block that sum scaled values.
        kernel_degrees: Degrees of kernel-level values, where they are not 0.
        combined: Numbers of the later blocks that sum scaled values over the parts of a
            split dim.
        partial: Those dims over parts.
        block_degrees: By the position of each block, degrees of its values, where they
            are not 0.
        logarithms: By the position of each block, the degrees that its logarithms take
            away, by name.
    """

    summed: list[str] = field(default_factory=list[str])
    accumulators: set[str] = field(default_factory=set[str])
    kernel_degrees: dict[str, Degree] = field(default_factory=dict[str, Degree])
    combined: list[int] = field(default_factory=list[int])
    partial: set[str] = field(default_factory=set[str])
    block_degrees: dict[int, dict[str, Degree]] = field(
        default_factory=dict[int, dict[str, Degree]]
    )
    logarithms: dict[int, dict[str, int]] = field(
        default_factory=dict[int, dict[str, int]]
    )


def scaling_of(
    graph: ir.KernelGraph, number: int, result: str, others: Exponentials = ()
) -> Scaling:
    """Follow the value `result`, an exponential, from the kernel `number` on.

    The shift of an exponential in a block belongs to that block, and to an iteration;
    that of an exponential that is a kernel of its own is one for all.

    Args:
        graph: What to follow it through.
        number: Its kernel.
        result: Its name.
        others: Exponentials of this block or of later ones that are scaled alike.

    Raises:
        NotHomogeneousError: An output, or something on the way, depends on the scale.
    """
    return _Walk(graph, number, result, others).run()


class _Walk:
    def __init__(
        self, graph: ir.KernelGraph, number: int, result: str, others: Exponentials
    ) -> None:
        self.graph = graph
        self.scaled = {(number, result), *others}
        self.number = number
        self.result = result
        own = graph.nodes[number]
        self.whole = isinstance(own, ir.Apply)
        grid = own.grid if isinstance(own, ir.BlockGraph) else ()
        self.parts = {ir.partial_dim(s.dim) for s in grid}
        self.found = Scaling()
        self.own_dims = self._own_dims(own)

    def _own_dims(self, own: ir.Apply | ir.BlockGraph) -> frozenset[str]:
        """Dims of the exponential: along others its shift is the same."""
        types = kernel_types(self.graph)
        if isinstance(own, ir.BlockGraph):
            types = block_types(own, types)
        return frozenset(types[self.result].names)

    def run(self) -> Scaling:
        degrees = self.found.kernel_degrees
        for number, node in enumerate(self.graph.nodes):
            if number < self.number:
                continue
            if isinstance(node, ir.Apply):
                self._kernel(number, node, degrees)
            else:
                self._block(number, node)
        if any(degrees.get(r.value) for r in self.graph.returns):
            raise NotHomogeneousError
        return self.found

    def _kernel(self, number: int, node: ir.Apply, degrees: dict[str, Degree]) -> None:
        degree = 1 if number == self.number else applied(node, degrees)
        if any(degrees.get(v) for v in node.values) and node.across:
            if not self.whole:
                raise NotHomogeneousError
            self._summed(node.across, self.number)
        if degree:
            degrees[node.result] = degree

    def _block(self, number: int, block: ir.BlockGraph) -> None:
        degrees: dict[str, Degree] = {}
        for node in block.nodes:
            degree = self._node(node, block, degrees, number)
            if isinstance(node, ir.Store):
                if degree:
                    self.found.kernel_degrees[node.result] = degree
            else:
                is_scaled = (number, node.result) in self.scaled
                degrees[node.result] = 1 if is_scaled else degree
        self.found.block_degrees[number] = {n: d for n, d in degrees.items() if d}

    def _node(
        self,
        node: ir.BlockNode,
        block: ir.BlockGraph,
        degrees: dict[str, Degree],
        number: int,
    ) -> Degree:
        match node:
            case ir.Load():
                degree = self.found.kernel_degrees.get(node.source, 0)
                looped = {d.name for d in ir.dims_of(node.axes) if d.loop}
                if degree and looped & self.parts:
                    raise NotHomogeneousError
                return degree
            case ir.Apply() if node.op is table.LOG and (
                taken := degrees.get(node.values[0])
            ):
                self.found.logarithms.setdefault(number, {})[node.result] = taken
                return 0
            case ir.Apply():
                degree = applied(node, degrees)
                if any(degrees.get(v) for v in node.values):
                    self._summed(node.across, number)
                return degree
            case ir.Accumulate():
                return self._accumulated(node, block, degrees, number)
            case ir.RunningMax():
                return _invariant(degrees[node.operand])
            case ir.Store():
                return degrees[node.operand]

    def _summed(self, over: tuple[str, ...], number: int) -> None:
        if self.whole or number == self.number:
            self.found.summed += [d for d in over if d not in self.found.summed]
            return
        crossing = self.parts.intersection(over)
        if self.own_dims.intersection(over):
            raise NotHomogeneousError
        if crossing and number not in self.found.combined:
            self.found.combined.append(number)
        self.found.partial |= crossing

    def _accumulated(
        self,
        node: ir.Accumulate,
        block: ir.BlockGraph,
        degrees: dict[str, Degree],
        number: int,
    ) -> Degree:
        degree = degrees[node.operand]
        if not degree:
            return degree
        if self.whole:
            return self._summed_whole(node, block, degree)
        if number != self.number and node.adds and node.rescale is None:
            # All iterations read parts that have one weight each.
            return degree
        if not node.adds or number != self.number or degree != 1:
            raise NotHomogeneousError
        if node.rescale is not None or block.loop is None:
            raise NotHomogeneousError
        self.found.accumulators.add(node.result)
        return degree

    def _summed_whole(
        self, node: ir.Accumulate, block: ir.BlockGraph, degree: Degree
    ) -> Degree:
        if node.reduction is None or block.loop is None:
            return degree
        if node.adds:
            self._summed((block.loop.dim,), self.number)
        return node.reduction.reduced(DegreeAlgebra(), degree, ())


# -- Bounds of one value ---------------------------------------------------------------
# Beside its magnitude, a value has bounds on its 2-norm over some of its dims, so
# that products are bounded by the Cauchy-Schwarz inequality.  Bounds may contain
# *atoms*, sums of squares that the graph itself computes.  Where a value is
# divided by the root of its sum of squares, the atom cancels:
#
#     q̂ = q / sqrt(sum(q * q) / d + eps)  ‖q‖ = atom^(1/2), sqrt(..) ≥ (atom / d)^(1/2)
#                                         so ‖q̂‖ ≤ d^(1/2)
#
# All bounds hold for computed numbers: every operator widens them by more than it
# can err, and what may overflow is unbounded.  Inputs are taken to be finite, and
# where squares of finite inputs overflow f32, at most `LARGEST_INPUT`: a norm of
# larger ones is infinite in any form of the program.  What is no number at all
# stays so with any shift.

LARGEST_INPUT = 2.0**60
LARGEST = 2.0**127
"""What f32 holds; beyond it nothing is known of a value."""
LARGEST_EXPONENT = 88.0

ELEMENT_SLACK = 1 + 2.0**-18
"""More than an elementwise operator can err, relatively."""
SUM_SLACK = 2.0**-10
TERM_SLACK = 2.0**-20
"""More than a sum of terms of one sign can err: of itself, and for each term."""
SMALLEST_SQUARES = 2.0**-60
"""Where squares of inputs may underflow, an atom counts only beside such a constant."""

Powers = frozenset[tuple[str, Fraction]]
"""A product of powers of atoms."""
Terms = Mapping[Powers, float]
"""Bounds that all hold: products of a constant and powers of atoms."""
Dims = frozenset[str]

ONE: Powers = frozenset()
ALL: Dims = frozenset()
HALF = Fraction(1, 2)


@dataclass(frozen=True, eq=False)
class Bound:
    """What is known of a value.

    Attributes:
        norms: Upper bounds of its 2-norm over some dims; over none, of its magnitude.
        least: Lower bounds of a value that is never negative, else None.
        square_of: The bound of the value that this is the square of.
    """

    norms: Mapping[Dims, Terms] = field(default_factory=dict[Dims, Terms])
    least: Terms | None = None
    square_of: Bound | None = None

    @property
    def most(self) -> Terms:
        """Upper bounds of the magnitude."""
        return self.norms.get(ALL, {})

    @property
    def magnitude(self) -> float:
        """An upper bound of the magnitude that is a number."""
        return self.most.get(ONE, math.inf)

    @property
    def smallest(self) -> float:
        """A lower bound that is a number."""
        return 0.0 if self.least is None else self.least.get(ONE, 0.0)


UNKNOWN = Bound()


def constant(value: float) -> Bound:
    """The bound of a number."""
    most = {ALL: {ONE: abs(value)}}
    return Bound(most, {ONE: value} if value >= 0 else None)


def product(a: Terms, b: Terms, slack: float = ELEMENT_SLACK) -> dict[Powers, float]:
    found: dict[Powers, float] = {}
    for left, c in a.items():
        for right, d in b.items():
            powers = dict(left)
            for atom, power in right:
                powers[atom] = powers.get(atom, Fraction(0)) + power
            key = frozenset((n, p) for n, p in powers.items() if p)
            found[key] = min(found.get(key, math.inf), c * d * slack)
    return found


def _power(terms: Terms, exponent: Fraction, slack: float) -> dict[Powers, float]:
    """Bounds of a power; where it is negative, upper from lower ones and vice versa."""
    return {
        frozenset((n, p * exponent) for n, p in powers): c ** float(exponent) * slack
        for powers, c in terms.items()
        if c > 0 or exponent > 0
    }


def widened(*norms: Mapping[Dims, Terms]) -> dict[Dims, Terms]:
    """All bounds together: a norm is a bound of that over fewer dims, too."""
    found: dict[Dims, Terms] = {}
    for over in {ALL, *(d for known in norms for d in known)}:
        terms: dict[Powers, float] = {}
        for known in norms:
            for dims, more in known.items():
                for p, c in more.items() if over <= dims else ():
                    terms[p] = min(terms.get(p, math.inf), c)
        found[over] = terms
    return found


class BoundAlgebra:
    """`FieldAlgebra` over bounds: elementwise operators by their field semantics."""

    def __init__(
        self, dims_of_atom: Mapping[str, Dims], exact: AbstractSet[str] = frozenset()
    ) -> None:
        self._dims_of_atom = dims_of_atom
        self._exact = exact

    def free_of(self, terms: Terms, dims: Dims) -> Terms:
        """The bounds whose atoms are the same all along some dims."""
        return {
            powers: c
            for powers, c in terms.items()
            if all(not self._dims_of_atom[n] & dims for n, _ in powers)
        }

    def constant(self, value: Scalar) -> Bound:
        return constant(value.at({}))

    def add(self, a: Bound, b: Bound) -> Bound:
        norms = {
            over: {p: (c + b.norms[over][p]) * ELEMENT_SLACK for p, c in terms.items()}
            for over, terms in self._shared(a, b).items()
        }
        if a.least is None or b.least is None:
            return Bound(norms)
        least = {ONE: (a.smallest + b.smallest) / ELEMENT_SLACK}
        for terms in (a.least, b.least):
            least.update((p, c / ELEMENT_SLACK) for p, c in terms.items() if p != ONE)
        return Bound(norms, least)

    @staticmethod
    def _shared(a: Bound, b: Bound) -> dict[Dims, Terms]:
        return {
            over: {p: c for p, c in terms.items() if p in b.norms[over]}
            for over, terms in a.norms.items()
            if over in b.norms
        }

    def sub(self, a: Bound, b: Bound) -> Bound:
        return Bound(self.add(a, b).norms)

    def mul(self, a: Bound, b: Bound) -> Bound:
        norms: dict[Dims, Terms] = {}
        for one, other in ((a, b), (b, a)):
            for over, terms in one.norms.items():
                found = product(terms, self.free_of(other.most, over))
                known = norms.get(over, {})
                norms[over] = {
                    p: min(found.get(p, math.inf), known.get(p, math.inf))
                    for p in {*found, *known}
                }
        if a is b:
            return Bound(norms, {}, a)
        if a.least is None or b.least is None:
            return Bound(norms)
        return Bound(norms, product(a.least, b.least, 1 / ELEMENT_SLACK))

    def div(self, a: Bound, b: Bound) -> Bound:
        if b.least is None:
            return UNKNOWN
        inverse = _power(self._reliable(b), Fraction(-1), ELEMENT_SLACK)
        smallest = _power(b.most, Fraction(-1), 1 / ELEMENT_SLACK)
        return self.mul(a, Bound({ALL: inverse}, smallest))

    def _reliable(self, bound: Bound) -> Terms:
        """Lower bounds that hold even where squares underflow."""
        least = bound.least or {}
        if bound.smallest >= SMALLEST_SQUARES:
            return least
        return {p: c for p, c in least.items() if {n for n, _ in p} <= self._exact}

    def sqrt(self, a: Bound) -> Bound:
        if a.least is None:
            return UNKNOWN
        most = _power(a.most, HALF, ELEMENT_SLACK)
        return Bound({ALL: most}, _power(a.least, HALF, 1 / ELEMENT_SLACK))

    def exp(self, a: Bound) -> Bound:
        size = a.magnitude
        if size > LARGEST_EXPONENT:
            return Bound({}, {})
        # The exponent is off by its own size times a rounding.
        slack = math.exp(size * 2.0**-20) * ELEMENT_SLACK
        most = {ONE: math.exp(size) * slack}
        return Bound({ALL: most}, {ONE: math.exp(-size) / slack})

    def maximum(self, a: Bound, b: Bound) -> Bound:
        larger = max(a.magnitude, b.magnitude)
        known = [x for x in (a, b) if x.least is not None]
        smallest = max((x.smallest for x in known), default=0.0)
        most = {ALL: {ONE: larger}} if math.isfinite(larger) else {}
        return Bound(most, {ONE: smallest} if known else None)

    def choose(self, condition: Bound, a: Bound, b: Bound) -> Bound:  # noqa: ARG002
        larger = max(a.magnitude, b.magnitude)
        never_negative = a.least is not None and b.least is not None
        smallest = {ONE: min(a.smallest, b.smallest)} if never_negative else None
        return Bound({ALL: {ONE: larger}} if math.isfinite(larger) else {}, smallest)

    def oracle(self, name: str, *operands: Bound) -> Bound:  # noqa: ARG002
        return UNKNOWN

    def indicator(self, name: str, *operands: Bound) -> Bound:  # noqa: ARG002
        return Bound({ALL: {ONE: 1.0}}, {})


def rounded(
    bound: Bound, dtype: DType, count: Callable[[Iterable[str]], float]
) -> Bound:
    """The bound of a value rounded to a dtype; nothing is known if it may overflow.

    Args:
        bound: Before.
        dtype: To what it is rounded.
        count: How many elements some dims have together.
    """
    if dtype == f32 or not dtype.is_float:
        return bound
    relative, least = 1 + dtype.epsilon, None
    if bound.magnitude * relative >= min(dtype.max, LARGEST):
        return UNKNOWN
    # Below the normal numbers a value at most doubles, if it does not become 0.
    tiny = dtype.epsilon * dtype.smallest
    norms = {
        over: {
            p: c * relative + tiny * math.sqrt(count(over)) if p == ONE else 2 * c
            for p, c in terms.items()
        }
        for over, terms in bound.norms.items()
    }
    if bound.least is not None:
        normal = bound.smallest >= dtype.smallest
        least = {ONE: bound.smallest / relative if normal else 0.0}
    return Bound(norms, least)


def only_numbers(bound: Bound) -> Bound:
    """What holds where the atoms are not the same any more."""
    norms = {d: {ONE: t[ONE]} for d, t in bound.norms.items() if ONE in t}
    return Bound(norms, None if bound.least is None else {ONE: bound.smallest})


# -- Bounds of a graph -----------------------------------------------------------------


@dataclass
class Walk:
    """Bounds of the values of one list of nodes, in order."""

    types: Types
    extents: Extents
    bounds: dict[str, Bound] = field(default_factory=dict[str, Bound])
    squares: dict[str, dict[Dims, Terms]] = field(
        default_factory=dict[str, dict[Dims, Terms]]
    )
    """Norms of values by the atoms that are computed of them."""
    dims_of_atom: dict[str, Dims] = field(default_factory=dict[str, Dims])
    exact: set[str] = field(default_factory=set[str])
    """Atoms of values whose squares f32 holds."""

    def note(self, name: str, bound: Bound) -> None:
        """What is known of a value, its atoms among it; nothing if it may overflow."""
        norms = widened(bound.norms)
        if norms.get(ALL, {}).get(ONE, math.inf) >= LARGEST:
            norms = {}
        else:
            norms = widened(norms, self.squares.get(name, {}))
        self.bounds[name] = Bound(norms, bound.least, bound.square_of)

    def apply(self, node: ir.Apply) -> Bound:
        match node.op.kind:
            case Kind.ELEMENTWISE:
                algebra = BoundAlgebra(self.dims_of_atom, self.exact)
                return node.op.on(algebra, *map(self._operand, node.operands))
            case Kind.REDUCTION:
                return self._reduction(node)
            case Kind.CONTRACTION:
                return self._contraction(node)
            case Kind.VIEW if "dtype" in node.op.attributes:
                dtype = dtype_named(str(node.attr("dtype")))
                assert dtype is not None
                return rounded(self.bounds[node.values[0]], dtype, self.count)
            case Kind.LIBRARY | Kind.SCAN:
                return UNKNOWN
            case _:
                # Other views and concatenations only move elements.
                sizes = [self.bounds[v].magnitude for v in node.values]
                most = max(sizes, default=math.inf)
                return Bound({ALL: {ONE: most}}) if math.isfinite(most) else UNKNOWN

    def _operand(self, operand: object) -> Bound:
        if isinstance(operand, str):
            return self.bounds[operand]
        assert isinstance(operand, Scalar)
        value = operand.known_at(self.extents)
        if value is None or not math.isfinite(value):
            return UNKNOWN
        return constant(value)

    def count(self, names: Iterable[str]) -> float:
        """How many elements some dims have together, at most."""
        sizes = [self.extents.get(n) for n in names]
        return math.prod(math.inf if s is None else s for s in sizes)

    def _reduction(self, node: ir.Apply) -> Bound:
        (value,) = node.values
        bound = self.bounds[value]
        if not node.op.adds:
            return _reduced(node.op, bound)
        count = self.count(node.over)
        slack = 1 + SUM_SLACK + TERM_SLACK * count
        most = {ONE: bound.magnitude * count * slack}
        if bound.least is None:
            return Bound({ALL: most})
        least = {ONE: bound.smallest / slack}
        if bound.square_of is not None:
            self._note_atom(node, bound.square_of, slack)
            atom = frozenset({(node.result, Fraction(1))})
            most, least = {**most, atom: 1.0}, {**least, atom: 1.0}
        return Bound({ALL: most}, least)

    def _note_atom(self, node: ir.Apply, squared: Bound, slack: float) -> None:
        over = frozenset(node.over)
        self.dims_of_atom[node.result] = frozenset(self.types[node.result].names)
        root = frozenset({(node.result, HALF)})
        for name, bound in self.bounds.items():
            if bound is squared and not math.isinf(slack):
                if self.types[name].dtype.max < LARGEST_INPUT:
                    self.exact.add(node.result)
                self.squares.setdefault(name, {})[over] = {root: math.sqrt(slack)}

    def _contraction(self, node: ir.Apply) -> Bound:
        over, count = frozenset(node.over), self.count(node.over)
        algebra = BoundAlgebra(self.dims_of_atom)
        left, right = (
            self._norm(self.bounds[v], over, count, algebra)
            for v in (node.values * 2)[:2]
        )
        return Bound({ALL: product(left, right, 1 + SUM_SLACK + TERM_SLACK * count)})

    @staticmethod
    def _norm(bound: Bound, over: Dims, count: float, algebra: BoundAlgebra) -> Terms:
        """Upper bounds of the 2-norm over some dims."""
        root = math.sqrt(count)
        free = algebra.free_of(bound.most, over)
        found = {p: c * root for p, c in free.items()}
        for dims, terms in bound.norms.items():
            for powers, c in terms.items() if over <= dims else ():
                found[powers] = min(found.get(powers, math.inf), c)
        return found


class GraphBounds:
    """Bounds of all values of a μGraph.

    Attributes:
        kernel: Those of kernel-level values.
        blocks: Those of the values of each block, by its position.
    """

    def __init__(self, graph: ir.KernelGraph) -> None:
        self._types = kernel_types(graph)
        self._extents = derived_extents(graph)
        self.kernel: dict[str, Bound] = {}
        self.blocks: dict[int, dict[str, Bound]] = {}
        for item in graph.inputs:
            most = min(item.type.dtype.max, LARGEST_INPUT)
            self.kernel[item.name] = Bound({ALL: {ONE: most}})
        for item in graph.indices:
            extents = [self._extents.get(d.name) for d in item.axis]
            known = [e for e in extents if e is not None]
            count = prod(known) if len(known) == len(extents) else math.inf
            self.kernel[item.name] = Bound({ALL: {ONE: count}}, {ONE: 0.0})
        for number, node in enumerate(graph.nodes):
            if isinstance(node, ir.Apply):
                self._apply(node)
            else:
                self._block(number, node)

    def _walk(self, types: Types) -> Walk:
        return Walk(types, self._extents)

    def _apply(self, node: ir.Apply) -> None:
        walk = self._walk(self._types)
        walk.bounds.update((v, self.kernel[v]) for v in node.values)
        bound = only_numbers(walk.apply(node))
        dtype = self._types[node.result].dtype
        walk.note(node.result, rounded(bound, dtype, walk.count))
        self.kernel[node.result] = walk.bounds[node.result]

    def _block(self, number: int, block: ir.BlockGraph) -> None:
        walk = self._walk(block_types(block, self._types))
        _walk_block(block, walk, lambda load: self.kernel[load.source])
        self.blocks[number] = walk.bounds
        for store in block.stores:
            kept = only_numbers(walk.bounds[store.operand])
            parted = {d.name for d in ir.dims_of(store.axes) if d.grid or d.loop}
            norms = {d: t for d, t in kept.norms.items() if not d & parted}
            bound = rounded(Bound(norms, kept.least), store.dtype or f32, walk.count)
            self.kernel[store.result] = bound


def magnitudes(
    block: ir.BlockGraph, types: Types, extents: Extents
) -> dict[str, float]:
    """How large the values of a block are at most, whatever finite numbers it loads.

    Args:
        block: The block.
        types: Of its values.
        extents: Of dims.
    """

    def loaded(load: ir.Load) -> Bound:
        return Bound({ALL: {ONE: types[load.result].dtype.max}})

    walk = Walk(types, extents)
    _walk_block(block, walk, loaded)
    return {name: bound.magnitude for name, bound in walk.bounds.items()}


def _walk_block(
    block: ir.BlockGraph, walk: Walk, loaded: Callable[[ir.Load], Bound]
) -> None:
    """Note the bounds of a block's values."""
    # Sums of squares may come after what they bound: so they come first.
    for node in (*live(block.made, _sums_of_squares(block)), *block.made):
        bound = loaded(node) if isinstance(node, ir.Load) else _of(node, block, walk)
        walk.note(node.result, bound)


def _of(
    node: ir.Apply | ir.Accumulate | ir.RunningMax, block: ir.BlockGraph, walk: Walk
) -> Bound:
    """The bound of what a block computes."""
    match node:
        case ir.Apply():
            return walk.apply(node)
        case ir.Accumulate() if node.adds and block.loop is not None:
            bound = walk.bounds[node.operand]
            extent = walk.extents.get(block.loop.dim)
            count = math.inf if extent is None else parts(extent, block.loop.tile)
            slack = 1 + SUM_SLACK + TERM_SLACK * count
            most = {ALL: {ONE: bound.magnitude * count * slack}}
            least = {ONE: bound.smallest / slack}
            return Bound(most, None if bound.least is None else least)
        case ir.Accumulate() if block.loop is not None and node.reduction is not None:
            return _reduced(node.reduction, walk.bounds[node.operand])
        case ir.Accumulate() | ir.RunningMax():
            return only_numbers(walk.bounds[node.operand])


def _sums_of_squares(block: ir.BlockGraph) -> list[str]:
    """The sums of squares of values."""
    squares = {
        n.result
        for n in block.applies
        if n.op is table.SQUARE
        or (n.op is table.MUL and n.operands[0] == n.operands[1])
    }
    return [
        n.result
        for n in block.applies
        if n.op.kind is Kind.REDUCTION and n.op.adds and n.values[0] in squares
    ]


def _reduced(op: Operator, bound: Bound) -> Bound:
    """What holds of one of the elements; nothing of what is none of them."""
    if not op.selects:
        return UNKNOWN
    kept = only_numbers(bound)
    return Bound({ALL: kept.most}, kept.least)


# -- Exponentials without a running maximum --------------------------------------------


@dataclass(frozen=True)
class Unshifted:
    """An exponential that is in range as it is.

    Attributes:
        result: Its name.
        exponent: The name of its exponent.
        largest: The exponent's magnitude is at most this.
    """

    result: str
    exponent: str
    largest: float

    def __str__(self) -> str:
        return (
            f"{self.result} needs no running maximum: {self.exponent} is between "
            f"-{self.largest:.4g} and {self.largest:.4g} whatever the inputs are"
        )


@dataclass(frozen=True)
class Exposed:
    """An exponential that is summed and may overflow.

    Attributes:
        result: Its name.
        exponent: The name of its exponent.
    """

    result: str
    exponent: str

    def __str__(self) -> str:
        return (
            f"{self.result} has no running maximum: sums of it are infinite where "
            f"{self.exponent} exceeds {LARGEST_EXPONENT:g}"
        )


def needs_no_shift(
    graph: ir.KernelGraph, number: int, node: ir.Apply, found: Scaling
) -> Unshifted | None:
    """Why an exponential stays in range without a shift, or None.

    Nothing that scales with it may overflow, and nothing of it that is rounded to a
    storage dtype may fall below the numbers of full precision.

    Args:
        graph: The μGraph without that shift.
        number: The position of its block, or its own.
        node: The exponential.
        found: What scales with it.
    """
    bounds = GraphBounds(graph)
    largest = bounds.blocks.get(number, bounds.kernel)[node.values[0]].magnitude
    if largest > LARGEST_EXPONENT:
        return None
    outer = kernel_types(graph)
    sound = _in_range(found.kernel_degrees, bounds.kernel, outer)
    for at, degrees in found.block_degrees.items():
        block = graph.nodes[at]
        assert isinstance(block, ir.BlockGraph)
        sound &= _in_range(degrees, bounds.blocks[at], block_types(block, outer))
    return Unshifted(node.result, node.values[0], largest) if sound else None


def _in_range(values: Iterable[str], bounds: Mapping[str, Bound], types: Types) -> bool:
    """Whether values can neither overflow nor, rounded, lose their precision."""
    for value in values:
        bound, dtype = bounds[value], types[value].dtype
        if math.isinf(bound.magnitude):
            return False
        if dtype != f32 and bound.smallest < dtype.smallest:
            return False
    return True


def shift_row(made: Mapping[str, ir.ValueNode], value: ir.Operand) -> Operator | None:
    """The row of a value that is made to be subtracted from exponents, or None.

    That is what a shift's row gives, so far or in the end, and what joins it with
    anything else, or limits it: whatever is subtracted from all exponents of a row
    cancels.
    """
    by = made.get(value) if isinstance(value, str) else None
    match by:
        case ir.RunningMax():
            return table.ROWSHIFT
        case ir.Accumulate():
            row = shift_row(made, by.operand)
            return row if row is not None and by.reduction is row.shift_of else None
        case ir.Apply() if by.op.shift_of is not None:
            return by.op
        case ir.Apply() if any(by.op is row.join for row in table.shift_rows()):
            rows = (shift_row(made, v) for v in by.values)
            return next((r for r in rows if r is not None and r.join is by.op), None)
        case ir.Apply() if is_limited(by):
            return next((shift_row(made, v) for v in by.values), None)
        case _:
            return None


def is_limited(node: ir.Apply) -> bool:
    """Whether a node is a value with a constant as its least or its largest."""
    return node.op in (table.MAXIMUM, table.MINIMUM) and len(node.values) < len(
        node.operands
    )


def is_shifted(made: Mapping[str, ir.ValueNode], exponent: str) -> bool:
    """Whether an exponent has a shift already.

    One that was shifted before it was scaled has: (x - max) / 3 is at most 0 too.  So
    is x - max x whatever else is done with that maximum.
    """
    by = made.get(exponent)
    if not isinstance(by, ir.Apply):
        return False
    if by.op is table.SUB:
        whole, row = by.operands
        largest = made.get(row) if isinstance(row, str) else None
        if isinstance(largest, ir.Apply) and largest.op is table.MAX:
            return largest.operands == (whole,)
        return any(shift_row(made, o) is not None for o in by.operands)
    scaled = _scaled(by)
    return scaled is not None and is_shifted(made, scaled)


def _scaled(node: ir.Apply) -> str | None:
    """What a node multiplies by a positive constant, or divides by one."""
    if node.op not in (table.MUL, table.DIV):
        return None
    match node.operands:
        case (str(value), Scalar() as factor):
            positive = 0 < factor.value < math.inf
        case (Scalar() as factor, str(value)) if node.op is table.MUL:
            positive = 0 < factor.value < math.inf
        case _:
            return None
    return value if positive else None


def unshifted(graph: ir.KernelGraph) -> Iterator[Unshifted]:
    """The exponentials of a μGraph that have no shift and need none."""
    for number, node in _all_bare(graph):
        try:
            found = scaling_of(graph, number, node.result)
        except NotHomogeneousError:
            continue
        if found.summed or found.accumulators:
            why = needs_no_shift(graph, number, node, found)
            if why is not None:
                yield why


def exposed(graph: ir.KernelGraph) -> Iterator[Exposed]:
    """The exponentials of a μGraph that are summed, have no shift, and may need one."""
    safe = {(u.result, u.exponent) for u in unshifted(graph)}
    origins = _Origins(graph)
    for number, node in _all_bare(graph):
        exponent = node.values[0]
        known = (node.result, exponent) in safe
        if known or origins.is_below_maximum(number, exponent):
            continue
        if _is_summed(graph, number, node):
            yield Exposed(node.result, exponent)


class _Origins:
    """Where values come from, through the kernels that stored and loaded them."""

    def __init__(self, graph: ir.KernelGraph) -> None:
        self._outer = makers(graph)
        self._blocks = {
            at: makers(node)
            for at, node in enumerate(graph.nodes)
            if isinstance(node, ir.BlockGraph)
        }
        self._stored = {
            store.result: (at, store.operand)
            for at, node in enumerate(graph.nodes)
            if isinstance(node, ir.BlockGraph)
            for store in node.stores
        }

    def is_below_maximum(self, number: int, exponent: str) -> bool:
        """Whether an exponent is x - max x, whichever kernels compute that.

        Args:
            number: Of the kernel that has the exponential.
            exponent: In its block, or at the kernel level.
        """
        place = self._origin((number, exponent))
        node = self._node(place)
        if not isinstance(node, ir.Apply) or node.op is not table.SUB:
            return False
        whole, row = node.operands
        if not (isinstance(whole, str) and isinstance(row, str)):
            return False
        largest = self._origin((place[0], row))
        below = self._maximum_of(largest)
        while below is not None:
            largest = self._origin(below)
            below = self._maximum_of(largest)
        return largest == self._origin((place[0], whole)) != place

    def _node(self, place: tuple[int, str]) -> ir.ValueNode | None:
        at, name = place
        return self._blocks.get(at, self._outer).get(name)

    def _origin(self, place: tuple[int, str]) -> tuple[int, str]:
        """The place where a value is computed; inputs are of no kernel."""
        at, name = place
        while True:
            node = self._node((at, name)) if at in self._blocks else None
            if isinstance(node, ir.Load):
                at, name = -1, node.source
            elif node is None and name in self._stored:
                at, name = self._stored[name]
            else:
                return (at if node is not None else -1), name

    def _maximum_of(self, place: tuple[int, str]) -> tuple[int, str] | None:
        """What a value is the maximum of, within finite numbers; or None."""
        match self._node(place):
            case ir.Accumulate(operand=operand, reduction=reduction):
                return (place[0], operand) if reduction is table.MAX else None
            case ir.Apply(op=op, operands=operands):
                limited = (
                    op in (table.MAXIMUM, table.MINIMUM) and len(set(operands)) > 1
                )
                constants = [o for o in operands if isinstance(o, Scalar)]
                values = [o for o in operands if isinstance(o, str)]
                largest = op is table.MAX or op.shift_of is table.MAX
                if largest or (limited and len(constants) == 1):
                    return place[0], values[0]
                return None
            case _:
                return None


def _is_summed(graph: ir.KernelGraph, number: int, node: ir.Apply) -> bool:
    """Whether something in proportion to an exponential is summed."""
    kernel: set[str] = set()
    for at, outer in enumerate(graph.nodes):
        nodes: Sequence[ir.BlockNode] = (
            (outer,) if isinstance(outer, ir.Apply) else outer.nodes
        )
        found = kernel if isinstance(outer, ir.Apply) else set[str]()
        for inner in nodes:
            if at == number and inner is node:
                found.add(node.result)
            elif not found.isdisjoint(operands_of(inner)):
                if _sums(inner):
                    return True
                if (
                    not isinstance(inner, ir.Apply)
                    or inner.op.term is not Term.FUNCTION
                ):
                    (kernel if isinstance(inner, ir.Store) else found).add(inner.result)
            elif isinstance(inner, ir.Load) and inner.source in kernel:
                found.add(inner.result)
    return False


def _sums(node: ir.BlockNode) -> bool:
    if isinstance(node, ir.Apply):
        return node.op.adds
    return isinstance(node, ir.Accumulate) and node.adds


def bare(level: ir.KernelGraph | ir.BlockGraph) -> list[ir.Apply]:
    """The exponentials of a level that have no shift."""
    made = makers(level)
    return [
        n
        for n in level.applies
        if n.op is table.EXP and n.values and not is_shifted(made, n.values[0])
    ]


def _all_bare(graph: ir.KernelGraph) -> Iterator[tuple[int, ir.Apply]]:
    """The exponentials without a shift, each behind the number of its kernel."""
    outer = {n.result for n in bare(graph)}
    for number, kernel in enumerate(graph.nodes):
        if isinstance(kernel, ir.BlockGraph):
            yield from ((number, node) for node in bare(kernel))
        elif kernel.result in outer:
            yield number, kernel
