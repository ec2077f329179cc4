"""Bounds of the values of a μGraph, from those of its inputs on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from mirage_dsl.ir.bounds import (
    ALL,
    HALF,
    LARGEST,
    LARGEST_INPUT,
    ONE,
    SUM_SLACK,
    TERM_SLACK,
    UNKNOWN,
    Bound,
    BoundAlgebra,
    Dims,
    Terms,
    constant,
    only_numbers,
    product,
    rounded,
    widened,
)
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    KernelGraph,
    Load,
    RunningMax,
    Store,
    dims_of,
)
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import derived_extents, parts
from mirage_dsl.ops.definition import Kind, Term
from mirage_dsl.types import Scalar, TensorType, dtype_named, f32


@dataclass
class Walk:
    """Bounds of the values of one list of nodes, in order."""

    types: Mapping[str, TensorType]
    extents: Mapping[str, int | None]
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

    def apply(self, node: Apply) -> Bound:
        match node.op.kind:
            case Kind.ELEMENTWISE:
                algebra = BoundAlgebra(self.dims_of_atom, self.exact)
                return node.op.field(algebra, *map(self._operand, node.operands))
            case Kind.REDUCTION:
                return self._reduction(node)
            case Kind.CONTRACTION:
                return self._contraction(node)
            case Kind.VIEW if "dtype" in node.op.attributes:
                dtype = dtype_named(str(node.attr("dtype")))
                assert dtype is not None
                return rounded(self.bounds[node.values[0]], dtype, self.count)
            case _:
                # Other views and concatenations only move elements.
                sizes = [self.bounds[v].magnitude for v in node.values]
                most = max(sizes, default=math.inf)
                return Bound({ALL: {ONE: most}}) if math.isfinite(most) else UNKNOWN

    def _operand(self, operand: object) -> Bound:
        if isinstance(operand, str):
            return self.bounds[operand]
        assert isinstance(operand, Scalar)
        known = {n: self.extents.get(n) for n, _ in operand.extents}
        sizes = {n: e for n, e in known.items() if e is not None}
        value = operand.at(sizes) if len(sizes) == len(known) else math.inf
        return constant(value) if math.isfinite(value) else UNKNOWN

    def count(self, names: Iterable[str]) -> float:
        """How many elements some dims have together, at most."""
        sizes = [self.extents.get(n) for n in names]
        return math.prod(math.inf if s is None else s for s in sizes)

    def _reduction(self, node: Apply) -> Bound:
        (value,) = node.values
        bound = self.bounds[value]
        if node.op.term is not Term.SUM:
            kept = only_numbers(bound)
            return Bound({ALL: kept.most}, kept.least)
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

    def _note_atom(self, node: Apply, squared: Bound, slack: float) -> None:
        over = frozenset(node.over)
        self.dims_of_atom[node.result] = frozenset(self.types[node.result].names)
        root = frozenset({(node.result, HALF)})
        for name, bound in self.bounds.items():
            if bound is squared and not math.isinf(slack):
                if self.types[name].dtype.max < LARGEST_INPUT:
                    self.exact.add(node.result)
                self.squares.setdefault(name, {})[over] = {root: math.sqrt(slack)}

    def _contraction(self, node: Apply) -> Bound:
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

    def __init__(self, graph: KernelGraph) -> None:
        self._graph = graph
        self._types = kernel_types(graph)
        self._extents = derived_extents(graph, graph.extent_of)
        self.kernel: dict[str, Bound] = {}
        self.blocks: dict[int, dict[str, Bound]] = {}
        for item in graph.inputs:
            most = min(item.type.dtype.max, LARGEST_INPUT)
            self.kernel[item.name] = Bound({ALL: {ONE: most}})
        for number, node in enumerate(graph.nodes):
            if isinstance(node, Apply):
                self._apply(node)
            else:
                self._block(number, node)

    def _walk(self, types: Mapping[str, TensorType]) -> Walk:
        return Walk(types, self._extents)

    def _apply(self, node: Apply) -> None:
        walk = self._walk(self._types)
        walk.bounds.update((v, self.kernel[v]) for v in node.values)
        bound = only_numbers(walk.apply(node))
        dtype = self._types[node.result].dtype
        walk.note(node.result, rounded(bound, dtype, walk.count))
        self.kernel[node.result] = walk.bounds[node.result]

    def _block(self, number: int, block: BlockGraph) -> None:
        walk = self._walk(block_types(block, self._types))
        for _ in range(2):
            # Sums of squares may come after what they bound, so go round twice.
            for node in block.nodes:
                if not isinstance(node, Store):
                    walk.note(node.result, self._of_node(node, block, walk))
        self.blocks[number] = walk.bounds
        for store in block.stores:
            kept = only_numbers(walk.bounds[store.operand])
            parted = {d.name for d in dims_of(store.axes) if d.grid or d.loop}
            norms = {d: t for d, t in kept.norms.items() if not d & parted}
            bound = rounded(Bound(norms, kept.least), store.dtype or f32, walk.count)
            self.kernel[store.result] = bound

    def _of_node(
        self,
        node: Load | Apply | Accumulate | RunningMax,
        block: BlockGraph,
        walk: Walk,
    ) -> Bound:
        match node:
            case Load():
                return self.kernel[node.source]
            case Apply():
                return walk.apply(node)
            case Accumulate() if node.kind == "sum" and block.loop is not None:
                bound = walk.bounds[node.operand]
                extent = self._extents.get(block.loop.dim)
                count = math.inf if extent is None else parts(extent, block.loop.tile)
                slack = 1 + SUM_SLACK + TERM_SLACK * count
                most = {ALL: {ONE: bound.magnitude * count * slack}}
                least = {ONE: bound.smallest / slack}
                return Bound(most, None if bound.least is None else least)
            case Accumulate() | RunningMax():
                return only_numbers(walk.bounds[node.operand])
