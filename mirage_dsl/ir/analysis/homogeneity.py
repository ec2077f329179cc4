"""How values scale when exponentials of a graph are scaled.

Shifting the exponent of e = exp(s) by m divides e by exp(m).  A value has *degree* w
in e if that divides it by exp(w m).  Several exponentials may be shifted together.  If
all outputs have degree 0, the shift changes nothing, so it may serve to keep e in
range.  The degree of an operator's result follows from its field semantics, run over
degrees.  The logarithm of a value of degree w has degree 0 once w m is added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from mirage_dsl.core.types import Scalar
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    KernelGraph,
    Load,
    RunningMax,
    Store,
    dims_of,
    partial_dim,
)
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ops.definition import Axes
from mirage_dsl.ops.table import LOG

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


def applied(node: Apply, degrees: dict[str, Degree]) -> Degree:
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
    graph: KernelGraph, number: int, result: str, others: Exponentials = ()
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
        self, graph: KernelGraph, number: int, result: str, others: Exponentials
    ) -> None:
        self.graph = graph
        self.scaled = {(number, result), *others}
        self.number = number
        self.result = result
        own = graph.nodes[number]
        self.whole = isinstance(own, Apply)
        grid = own.grid if isinstance(own, BlockGraph) else ()
        self.parts = {partial_dim(s.dim) for s in grid}
        self.found = Scaling()
        self.own_dims = self._own_dims(own)

    def _own_dims(self, own: Apply | BlockGraph) -> frozenset[str]:
        """Dims of the exponential: along others its shift is the same."""
        types = kernel_types(self.graph)
        if isinstance(own, BlockGraph):
            types = block_types(own, types)
        return frozenset(types[self.result].names)

    def run(self) -> Scaling:
        degrees = self.found.kernel_degrees
        for number, node in enumerate(self.graph.nodes):
            if number < self.number:
                continue
            if isinstance(node, Apply):
                self._kernel(number, node, degrees)
            else:
                self._block(number, node)
        if any(degrees.get(r.value) for r in self.graph.returns):
            raise NotHomogeneousError
        return self.found

    def _kernel(self, number: int, node: Apply, degrees: dict[str, Degree]) -> None:
        degree = 1 if number == self.number else applied(node, degrees)
        if any(degrees.get(v) for v in node.values) and node.across:
            if not self.whole:
                raise NotHomogeneousError
            self._summed(node.across, self.number)
        if degree:
            degrees[node.result] = degree

    def _block(self, number: int, block: BlockGraph) -> None:
        degrees: dict[str, Degree] = {}
        for node in block.nodes:
            degree = self._node(node, block, degrees, number)
            if isinstance(node, Store):
                if degree:
                    self.found.kernel_degrees[node.result] = degree
            else:
                is_scaled = (number, node.result) in self.scaled
                degrees[node.result] = 1 if is_scaled else degree
        self.found.block_degrees[number] = {n: d for n, d in degrees.items() if d}

    def _node(
        self,
        node: BlockNode,
        block: BlockGraph,
        degrees: dict[str, Degree],
        number: int,
    ) -> Degree:
        match node:
            case Load():
                degree = self.found.kernel_degrees.get(node.source, 0)
                looped = {d.name for d in dims_of(node.axes) if d.loop}
                if degree and looped & self.parts:
                    raise NotHomogeneousError
                return degree
            case Apply() if node.op is LOG and (taken := degrees.get(node.values[0])):
                self.found.logarithms.setdefault(number, {})[node.result] = taken
                return 0
            case Apply():
                degree = applied(node, degrees)
                if any(degrees.get(v) for v in node.values):
                    self._summed(node.across, number)
                return degree
            case Accumulate():
                return self._accumulated(node, block, degrees, number)
            case RunningMax():
                return _invariant(degrees[node.operand])
            case Store():
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
        node: Accumulate,
        block: BlockGraph,
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
        self, node: Accumulate, block: BlockGraph, degree: Degree
    ) -> Degree:
        if node.reduction is None or block.loop is None:
            return degree
        if node.adds:
            self._summed((block.loop.dim,), self.number)
        return node.reduction.reduced(DegreeAlgebra(), degree, ())
