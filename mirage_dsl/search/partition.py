"""Programs that one kernel cannot hold: where to cut them, and how to join the parts.

The program's operators are put in an order that keeps what follows a product next to
it, and cut into groups.  A segment is a run of groups: a program of its own, which the
driver searches.  Concatenations, and views of computed tensors, are groups for library
kernels.  Where to cut inside of a group that cannot be searched is decided by the bytes
that cross.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import TensorType
from mirage_dsl.cost.footprint import tensor_bytes
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.launches import calls
from mirage_dsl.ir.analysis.layouts import (
    Copied,
    around_libraries,
    copied_for_products,
)
from mirage_dsl.ir.canonical import FreshNames, Renaming, numbered_name
from mirage_dsl.ir.evaluate import NumpyDomain, evaluate
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import Extents, derived_extents
from mirage_dsl.ir.walk import (
    depending,
    live,
    looked_at,
    makers,
    post_order,
    read_by,
    results_of,
    with_operands,
)
from mirage_dsl.ops.definition import Array, Kind, Operator
from mirage_dsl.search.memo import names_of, normal
from mirage_dsl.verify.sizes import input_shape, shrink

CARRIED = 1e6
"""Factor on the bytes of a value that only means something with its row's shift."""


@dataclass(frozen=True)
class Group:
    """Operators that are never parted by choice.

    `library` groups are one node that no block can hold.
    """

    nodes: tuple[ir.Apply, ...]
    library: bool = False

    @property
    def is_product(self) -> bool:
        """Whether it has a product."""
        return any(n.op.kind is Kind.CONTRACTION for n in self.nodes)


@dataclass(frozen=True)
class Cutter:
    """A program prepared for cutting; its nodes are `Apply` nodes only.

    Attributes:
        program: The program.
        late: Whether operators other than products come right before what reads them,
            so that those between several products and their result are neighbours.
    """

    program: ir.KernelGraph
    late: bool = False

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """Types of all values."""
        return kernel_types(self.program)

    @cached_property
    def extents(self) -> Extents:
        """Extents of all dims."""
        return derived_extents(self.program)

    @cached_property
    def copied(self) -> Copied:
        """What library kernels copy for products, as the program's values lie."""
        types = around_libraries(self.program, self.types, self.extents)
        return copied_for_products(self.program, types, self.extents)

    @cached_property
    def free(self) -> dict[str, ir.Apply]:
        """Views of inputs: every segment makes those that it needs."""
        there = looked_at(self.program)
        return {n.result: n for n in self.program.applies if n.result in there}

    @cached_property
    def order(self) -> tuple[ir.Apply, ...]:
        """All other nodes that the outputs need, each after its operands.

        Depth first, so a product's consumers come as early as they can.  Views come
        right after what they look at, and concatenations of inputs first, so as not to
        part what reads them.
        """
        nodes = _postponed(self._early) if self.late else self._early
        return tuple(sorted(nodes, key=lambda n: n.result not in self._rearranged))

    @cached_property
    def _rearranged(self) -> frozenset[str]:
        """Concatenations and views of them that nothing is computed for."""
        there = looked_at(self.program)
        for node in self._early:
            moves = node.op.kind is Kind.CONCAT or node.is_view
            if moves and there.issuperset(node.values):
                there.add(node.result)
        return frozenset(there)

    @cached_property
    def _early(self) -> tuple[ir.Apply, ...]:
        depth_first = self._depth_first()
        places: dict[str, int] = {}
        for at, node in enumerate(depth_first):
            above = places.get(node.values[0]) if node.is_view else None
            places[node.result] = at if above is None else above
        return tuple(sorted(depth_first, key=lambda n: places[n.result]))

    def _depth_first(self) -> tuple[ir.Apply, ...]:
        made = makers(self.program)
        computed = {v: n for v, n in made.items() if v not in self.free}
        return tuple(post_order(computed, (r.value for r in self.program.returns)))

    @cached_property
    def returned(self) -> dict[str, TensorType]:
        """Returned values, each with the type of its first return."""
        return {r.value: r.type for r in reversed(self.program.returns)}

    @cached_property
    def carriers(self) -> frozenset[str]:
        """Values that change with the shifts, so they mean nothing by themselves.

        A shift cancels soon: what is near it is evaluated, and more of what is made of
        it as long as something still changes there.
        """
        found: set[str] = set()
        seen: set[str] = set()
        for node in self.order:
            if node.op.shift_of is not None and node.result not in seen:
                own, near = self._carriers_near(node)
                found |= own
                seen |= near
        return frozenset(found)

    def _carriers_near(self, shift: ir.Apply) -> tuple[frozenset[str], set[str]]:
        """What changes with a shift, and all that was looked at for it."""
        made = depending(self.order, {shift.result}) - {shift.result}
        after = [n for n in self.order if n.result in made]
        count = FIRST_NEAR
        while True:
            near = (shift, *after[:count])
            own, seen = _carriers(self.segment(near)), {n.result for n in near}
            if count >= len(after) or all(self._read_in[name] <= seen for name in own):
                return own, seen
            count *= 4

    def crossing(self, nodes: Sequence[ir.Apply], at: int) -> float:
        """Bytes made before position `at` of `nodes` and read at or after it."""
        return sum(
            tensor_bytes(self.types[v], self.extents)
            * (CARRIED if v in self.carriers else 1.0)
            for v in sorted(_crossing(nodes, at))
        )

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The program cut at library nodes, between products and around them all."""
        found: list[Group] = []
        run: list[ir.Apply] = []
        for node in self.order:
            if node.stands_alone or node.result in self._filled:
                found += self._between_products(run)
                found.append(Group((node,), library=True))
                run = []
            else:
                run.append(node)
        return (*found, *self._between_products(run))

    @cached_property
    def _filled(self) -> frozenset[str]:
        """Tensors of one number that only concatenations read: they go with these."""
        joins = {n.result for n in self._early if n.op.kind is Kind.CONCAT}
        numbers = (n.result for n in self._early if n.is_one_number)
        read = ((name, self._read_in[name]) for name in numbers)
        own = self.returned.keys()
        return frozenset(n for n, by in read if by and by <= joins and n not in own)

    def _between_products(self, nodes: list[ir.Apply]) -> list[Group]:
        at = [i for i, n in enumerate(nodes) if n.op.kind is Kind.CONTRACTION]
        cuts: set[int] = set()
        for first, second in pairwise(at):
            places = range(first + 1, second + 1)
            sizes = [self.crossing(nodes, p) for p in places]
            smallest = min(sizes)
            equal = [p for p, s in zip(places, sizes, strict=True) if s == smallest]
            cuts.update((equal[0], equal[-1]))
            if not _crossing(nodes, second) & self.carriers:
                # No kernel may hold both a norm of long rows and the product of it.
                cuts.add(second)
        if at:
            around = {at[0], at[-1] + 1} - {0, len(nodes)}
            cuts.update(p for p in around if not _crossing(nodes, p) & self.carriers)
        edges = [0, *sorted(cuts), len(nodes)]
        return [Group(tuple(nodes[i:j])) for i, j in pairwise(edges) if i < j]

    @cached_property
    def _calls(self) -> tuple[frozenset[str], ...]:
        """Results of the operators that a single function of PyTorch's computes."""
        found = calls(self.program, self.types)
        return tuple(c.inner | {c.result} for c in found.values())

    def at_calls(self, group: Group) -> Iterator[tuple[Group, Group]]:
        """A group in two, each before or after one of PyTorch's functions."""
        made = {n.result for n in group.nodes}
        for own in self._calls:
            if not made > own:
                continue
            behind = depending(group.nodes, own) - own
            call = [n for n in group.nodes if n.result in own]
            after = [n for n in group.nodes if n.result in behind]
            before = [n for n in group.nodes if n.result not in own | behind]
            if before:
                yield Group(tuple(before)), Group((*call, *after))
            else:
                yield Group(tuple(call)), Group(tuple(after))

    def halves(self, group: Group) -> tuple[Group, Group]:
        """A group in two, where the fewest bytes cross; if equal, near the middle."""
        count = len(group.nodes)
        places = range(1, count)
        best = min(
            places, key=lambda p: (self.crossing(group.nodes, p), abs(2 * p - count))
        )
        return Group(group.nodes[:best]), Group(group.nodes[best:])

    @cached_property
    def _places(self) -> Mapping[str, int]:
        """Where each result is computed."""
        return {n.result: at for at, n in enumerate(self._early)}

    @cached_property
    def _read_in(self) -> Mapping[str, set[str]]:
        """By a result, those of the nodes that read it."""
        found: dict[str, set[str]] = {n.result: set() for n in self._early}
        for node in self._early:
            for value in found.keys() & node.values:
                found[value].add(node.result)
        return found

    def needed(self, nodes: Sequence[ir.Apply]) -> frozenset[str]:
        """Results of some nodes that other nodes read, or the program returns."""
        made = {n.result for n in nodes}
        read = {n for n in made if not self._read_in[n] <= made}
        return frozenset(read | (made & self.returned.keys()))

    def segment(self, nodes: Sequence[ir.Apply]) -> ir.KernelGraph:
        """The program of some nodes: from what they read to what others need.

        Their order does not count, so that equal segments are known to be equal.
        """
        made = {n.result for n in nodes}
        nodes = sorted(nodes, key=lambda n: self._places[n.result])
        read_later = {n for n in made if not self._read_in[n] <= made}
        views = self._views(read_by(nodes))
        read = read_by((*views, *nodes))
        own = {n.result for n in views} | made
        sources = [i for i in self.program.inputs if i.name in read]
        computed = (read - own) & self._places.keys()
        sources += [
            ir.Input(name, self.types[name].in_memory)
            for name in sorted(computed, key=self._places.__getitem__)
        ]
        returns: list[ir.Return] = []
        for node in nodes:
            name = node.result
            if name in read_later:
                returns.append(ir.Return(name, self.types[name].in_memory))
            elif name in self.returned:
                returns.append(ir.Return(name, self.returned[name]))
        return ir.KernelGraph(
            self.program.name,
            tuple(sources),
            (*views, *nodes),
            tuple(returns),
            self.program.extents,
            tuple(i for i in self.program.indices if i.name in read),
        )

    def _views(self, names: set[str]) -> tuple[ir.Apply, ...]:
        return tuple(live(self.free.values(), names))

    def made_before(self, segment: ir.KernelGraph, most: float) -> frozenset[str]:
        """Inputs of a segment that an earlier one makes, of fewer bytes than `most`."""
        own = {i.name for i in self.program.given}
        extents = derived_extents(segment)
        return frozenset(
            i.name
            for i in segment.inputs
            if i.name not in own and tensor_bytes(i.type, extents) < most
        )

    def join(self, parts: Sequence[ir.KernelGraph]) -> ir.KernelGraph:
        """The μGraph that runs the μGraphs of successive segments.

        Their numbers of parts `k#` may differ, see `Sizer.joined`.
        """
        nodes: list[ir.KernelNode] = []
        extents = dict(self.program.extents)
        made: set[str] = set()
        own = {i.name for i in self.program.given} | self.types.keys()
        wanted = {r.value for r in self.program.returns}
        views = self._views(wanted)
        for part in (*parts, replace(self.program, nodes=views)):
            for node in apart(part, own, made).nodes:
                results = results_of(node)
                if not made.issuperset(results):
                    nodes.append(node)
                    made.update(results)
        for part in parts:
            extents.update(part.extents)
        return replace(
            self.program, nodes=tuple(nodes), extents=tuple(sorted(extents.items()))
        )


def computed_again(program: ir.KernelGraph) -> ir.KernelGraph | None:
    """The program that stores less between kernels, for values are computed twice.

    What is computed element by element of inputs, and of values of fewer dims, is
    computed once more for what reads it behind a reduction of it.  None where nothing
    is.  Before → after:

        c = sub x, mean                          c  = sub x, mean
        s = sum (c * c) over(k)                  s  = sum (c * c) over(k)
        y = c / sqrt(s)                          c2 = sub x, mean
                                                 y  = c2 / sqrt(s)
    """
    types, there = kernel_types(program), looked_at(program)
    cheap: dict[str, ir.Apply] = {}
    names = FreshNames(program)
    nodes: list[ir.Apply] = []
    for node in program.applies:
        copies: dict[str, str] = {}
        for value in node.values:
            maker = cheap.get(value)
            if maker is None or not _behind_sums(program, value, node):
                continue
            copies[value] = names.fresh(f"{value}_again")
            nodes.append(replace(maker, result=copies[value]))
        nodes.append(with_operands(node, copies))
        own = types[node.result].names
        near = (v in there or len(types[v].names) < len(own) for v in node.values)
        if node.op.kind is Kind.ELEMENTWISE and all(near):
            cheap[node.result] = node
    if len(nodes) == len(program.nodes):
        return None
    return replace(program, nodes=tuple(nodes))


def _behind_sums(program: ir.KernelGraph, value: str, node: ir.Apply) -> bool:
    """Whether an operator that reads a value depends on a reduction of it too."""
    behind = depending(program.applies, {value})
    kinds = (Kind.REDUCTION, Kind.CONTRACTION)
    summed = {
        n.result for n in program.applies if n.result in behind and n.op.kind in kinds
    }
    return not depending(program.applies, summed).isdisjoint(node.values)


def _crossing(nodes: Sequence[ir.Apply], at: int) -> set[str]:
    """Values made before position `at` and read at or after it."""
    made = {n.result for n in nodes[:at]}
    return read_by(nodes[at:]) & made


def _postponed(nodes: Sequence[ir.Apply]) -> tuple[ir.Apply, ...]:
    """The nodes, those that are no products right before the first that reads them.

    u = x @ a                 u = x @ a
    s = silu u                v = x @ b
    v = x @ b        ->       s = silu u
    y = s * v                 y = s * v
    """
    found: list[ir.Apply] = []
    for node in reversed(nodes):
        readers = (i for i, n in enumerate(found) if node.result in n.values)
        product = node.op.kind is Kind.CONTRACTION
        found.insert(0 if product else next(readers, 0), node)
    return tuple(found)


MOST_EVALUATED = 1 << 22
"""Elements of a value that is evaluated to see what shifts do: windows over windows
leave no small extents."""


@dataclass(frozen=True)
class _Shifted(NumpyDomain):
    """Floats, but that every row's shift is off by some random number."""

    seed: int = 0
    stand_ins: bool = True

    def reduce(self, op: Operator, value: Array, axes: tuple[int, ...]) -> Array:
        found = super().reduce(op, value, axes)
        if op.shift_of is None:
            return found
        noise = np.random.default_rng(self.seed).uniform(-1.0, 1.0, found.shape)
        return found + noise


FIRST_NEAR = 16
"""Operators made of a shift among which it mostly cancels."""


def _carriers(program: ir.KernelGraph) -> frozenset[str]:
    """`shift_carriers`, once for programs that differ only in names."""
    names = names_of(program)
    found = _normal_carriers(normal(program, names))
    return frozenset(names.values[int(name.removeprefix("v"))] for name in found)


@lru_cache(maxsize=256)
def _normal_carriers(program: ir.KernelGraph) -> frozenset[str]:
    return shift_carriers(program)


def shift_carriers(program: ir.KernelGraph) -> frozenset[str]:
    """Values that change when the shift of a row does, found by evaluation.

    The shift of a safe softmax cancels in the end; a value in which it has not must
    not leave its kernel, for the next one could shift otherwise.  All that is made of
    a shift counts where the program cannot be evaluated at small extents.
    """
    nodes = program.applies
    shifts = {n.result for n in nodes if n.op.shift_of is not None}
    if not shifts:
        return frozenset()
    try:
        small = shrink(program, program, ragged=False, seed=0, tiny=True).program
    except UnsupportedError:
        return frozenset(depending(nodes, shifts))
    types = kernel_types(small)
    extents = derived_extents(small)
    sizes = (math.prod(extents[d] or 1 for d in t.names) for t in types.values())
    if max(sizes) > MOST_EVALUATED:
        return frozenset(depending(nodes, shifts))
    names = [n.result for n in nodes]
    probe = replace(small, returns=tuple(ir.Return(n, types[n]) for n in names))
    rng = np.random.default_rng(0)
    arrays: list[Array] = [
        rng.uniform(0.5, 1.5, input_shape(small, i)) for i in small.inputs
    ]
    first, second = (
        evaluate(probe, arrays, _Shifted(seed=s, checked=False)) for s in (1, 2)
    )
    return frozenset(
        name
        for name, a, b in zip(names, first, second, strict=True)
        if not np.allclose(a, b, rtol=1e-6, atol=1e-9)
    )


def apart(
    graph: ir.KernelGraph, program: AbstractSet[str], taken: AbstractSet[str]
) -> ir.KernelGraph:
    """A part of a program, its own tensors called unlike those of other parts.

    Args:
        graph: The part.
        program: Tensors of the program: these keep their names.
        taken: Names that other parts use.
    """
    made = [name for node in graph.nodes for name in results_of(node)]
    used = {*taken, *program, *made}
    names: dict[str, str] = {}
    for name in made:
        if name in taken and name not in program:
            names[name] = numbered_name(re.sub(r"_\d+$", "", name), used, 2)
    return Renaming(values=names).graph(graph) if names else graph
