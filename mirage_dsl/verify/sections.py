"""Sections of a candidate and its program, of which each is verified by itself.

They are what lies between library calls, and in long programs also what lies between
values that both graphs have.

What PyTorch computes is the same function in a candidate and its program, so a result
of it may be any value: an input of what comes behind.  What it is given is an output of
what comes ahead.  A value that both have under one name and type may be cut as well: an
output of what computes it in the candidate, an input of what reads it there.  If each
output of a section is the same function of the section's inputs on both sides, then the
graphs are equal: by induction over the candidate's order, each call is given what the
program's is, and each value is made of what the program makes its own of.

    a = conv x, w            a' is an input:  b = relu a'     returns b
    b = relu a        ->
    c = conv b, v            c' is an input:  d = relu c'     returns d
    d = relu c

Equal layers of a model have equal sections, and one verification is enough for all of
them.  Where some sections are wrong, inaccurate, or not verified in time, the program's
own can stand in their places.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from mirage_dsl.core.errors import CheckError, MirageError
from mirage_dsl.core.types import Axis, Dim, TensorType
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.canonical import canonical_hash, canonical_names
from mirage_dsl.ir.infer import kernel_types, operand_axes
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.walk import (
    operands_of,
    read_by,
    results_of,
    with_operands,
    with_returned,
    without_dead,
)
from mirage_dsl.ops.definition import Kind

_LONG = 64
"""Operators of a program from which on it is cut at all values that both graphs have.

Trials of a whole take as long as it is, and their fields grow with its exponentials.
"""

_Outputs = tuple[ir.Return, ir.Return]
"""What a candidate computes, and what of its program it has to be equal to."""

_Types = tuple[Mapping[str, TensorType], Mapping[str, TensorType]]
"""Types of the values of a candidate, and of its program."""

_Known = dict[str, tuple[TensorType, TensorType]]
"""Values that both have, and their types on either side."""


@dataclass(frozen=True)
class Section:
    """A section of a candidate, and the same section of its program.

    Those that differ only in names are equal, and so is what is found of them.
    """

    candidate: ir.KernelGraph = field(compare=False)
    program: ir.KernelGraph = field(compare=False)
    digests: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, candidate: ir.KernelGraph, program: ir.KernelGraph) -> Section:
        """The section of these two graphs."""
        digest = canonical_hash(candidate, schedule=True)
        return cls(candidate, program, (digest, canonical_hash(program)))

    @property
    def elements(self) -> int:
        """How many numbers its program is given and returns; symbolic extents are 1."""
        size = derived_extents(self.program, self.program.extent_of)
        types = [t.type for t in (*self.program.given, *self.program.returns)]
        return sum(math.prod(size.get(d) or 1 for d in t.names) for t in types)

    @property
    def is_one_graph(self) -> bool:
        """Whether both sides are the same."""
        if self.candidate.nodes or self.program.nodes:
            return self.digests[0] == self.digests[1]
        return _returned(self.candidate) == _returned(self.program)


def _returned(graph: ir.KernelGraph) -> list[tuple[int, list[int]]]:
    """What a graph that computes nothing returns of its inputs.

    Of each output the number of the input and the order in which it has the input's
    dims: empty where they lie as they do there, which may be one dim for several.
    """
    given = {i.name: (at, i.type.names) for at, i in enumerate(graph.given)}
    found: list[tuple[int, list[int]]] = []
    for output in graph.returns:
        at, names = given[output.value]
        order = [names.index(name) for name in output.type.names]
        found.append((at, [] if order == sorted(order) else order))
    return found


def sections_of(
    candidate: ir.KernelGraph, program: ir.KernelGraph
) -> list[Section] | None:
    """The sections that are not the same graph on both sides.

    Those of most elements, in all places where they are, are the first: there may not
    be time to verify all.  None where the two cannot be cut: they do not call alike, or
    one gives a call, or returns, an input that the other one does not.
    """
    cutting = _cutting(candidate, program)
    if cutting is None:
        return None
    found = [part.section for part in cutting.parts if not part.section.is_one_graph]
    if not all(s.candidate.nodes or s.program.nodes for s in found):
        return None
    places = Counter(found)
    return sorted(found, key=lambda s: s.elements * places[s], reverse=True)


def has_parts(candidate: ir.KernelGraph, program: ir.KernelGraph) -> bool:
    """Whether a candidate is cut into several sections, some of which may be right."""
    try:
        found = sections_of(candidate, program)
    except MirageError:
        return False
    return found is not None and len(found) > 1


# -- Cutting ---------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _cutting(candidate: ir.KernelGraph, program: ir.KernelGraph) -> _Cutting | None:
    """A candidate and its program cut; what is verified in part is cut again."""
    return _Cutting.of(candidate, program)


@dataclass(frozen=True)
class _Part:
    """A section, and what it is in the candidate.

    Attributes:
        own: Numbers of the nodes of the candidate.
        outputs: What they compute, and what of the program that is.
        given: What they read that other parts compute.
        section: The graphs of both sides.
    """

    own: Sequence[int]
    outputs: Sequence[_Outputs]
    given: Sequence[str]
    section: Section


@dataclass(frozen=True)
class _Cutting:
    """A candidate and its program, cut at their calls and at known values.

    Nodes of the candidate are in one part where one of them reads of the other what is
    not known.

    Attributes:
        sides: The two graphs.
        opened: The same without calls: these are inputs, and what they are given
            outputs.
        known: Where else they are cut.
    """

    sides: tuple[ir.KernelGraph, ir.KernelGraph]
    opened: tuple[ir.KernelGraph, ir.KernelGraph]
    known: _Known

    @classmethod
    def of(cls, candidate: ir.KernelGraph, program: ir.KernelGraph) -> _Cutting | None:
        """The two cut; None where they do not call alike, or cannot be cut."""
        sides = _once(candidate), _once(program)
        theirs, ours = _calls(sides[0]), _calls(sides[1])
        if theirs.keys() != ours.keys():
            return None
        types = kernel_types(sides[0]), kernel_types(sides[1])
        if not all(_alike(theirs[n], types[0], ours[n], types[1]) for n in ours):
            return None
        known = _in_both(sides, types) if len(program.applies) > _LONG else {}
        if not ours and not known:
            return None
        opened = (
            _opened(sides[0], [theirs[n] for n in ours], types[0]),
            _opened(sides[1], list(ours.values()), types[1]),
        )
        return cls(sides, opened, known)

    @cached_property
    def makers(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """On either side by a value, the number of the node that computes it."""
        found = [
            {r: at for at, n in enumerate(graph.nodes) for r in results_of(n)}
            for graph in self.opened
        ]
        return found[0], found[1]

    @cached_property
    def parts(self) -> Sequence[_Part]:
        """The parts; values that are not computed are one each."""
        homes = self._homes()
        outputs: dict[int | str, dict[_Outputs, None]] = {}
        for pair in self._outputs():
            value = pair[0].value
            at = self.makers[0].get(value)
            home = value if at is None else min(homes[at])
            outputs.setdefault(home, {})[pair] = None
        return [
            self._part(
                sorted(homes[home]) if isinstance(home, int) else [], list(pairs)
            )
            for home, pairs in outputs.items()
        ]

    def _homes(self) -> dict[int, set[int]]:
        """By the number of a node of the candidate, those in a part with it."""
        makers = self.makers[0]
        homes: dict[int, set[int]] = {}
        for at, node in enumerate(self.opened[0].nodes):
            read = [v for v in operands_of(node) if v in makers and v not in self.known]
            own = {at}.union(*(homes[makers[value]] for value in read))
            homes.update(dict.fromkeys(own, own))
        return homes

    def _outputs(self) -> Iterator[_Outputs]:
        """What the candidate computes, and what of the program it has to be."""
        for name in self.makers[0]:
            if name in self.known:
                own, other = self.known[name]
                yield ir.Return(name, own), ir.Return(name, other)
        yield from zip(*(graph.returns for graph in self.opened), strict=True)

    def _part(self, own: Sequence[int], outputs: Sequence[_Outputs]) -> _Part:
        """The part of some outputs, with the inputs that either side of it reads."""
        nodes = [self.opened[0].nodes[at] for at in own]
        made = {r for n in nodes for r in results_of(n)}
        read = dict.fromkeys(v for n in nodes for v in operands_of(n))
        given = [v for v in read if v in self.known and v not in made]
        behind = self._behind([b.value for _, b in outputs], given)
        found = [
            replace(
                graph,
                name="section",
                inputs=(
                    *graph.inputs,
                    *(ir.Input(n, self.known[n][side]) for n in given),
                ),
                nodes=tuple(kept),
                returns=tuple(pair[side] for pair in outputs),
            )
            for side, (graph, kept) in enumerate(
                zip(self.opened, (nodes, behind), strict=True)
            )
        ]
        used = [read_by(g.nodes) | {r.value for r in g.returns} for g in found]
        found = [
            replace(g, indices=tuple(i for i in g.indices if i.name in values))
            for g, values in zip(found, used, strict=True)
        ]
        places = {
            at
            for graph, values in zip(found, used, strict=True)
            for at, i in enumerate(graph.inputs)
            if i.name in values
        }
        candidate, program = (
            _of_its_dims(
                replace(g, inputs=tuple(g.inputs[at] for at in sorted(places)))
            )
            for g in found
        )
        return _Part(own, outputs, given, Section.of(candidate, program))

    def _behind(
        self, values: Sequence[str], given: Sequence[str]
    ) -> list[ir.KernelNode]:
        """Nodes of the program that values depend on, up to what is given."""
        found: set[int] = set()
        left = list(values)
        while left:
            value = left.pop()
            at = None if value in given else self.makers[1].get(value)
            if at is not None and at not in found:
                found.add(at)
                left += operands_of(self.opened[1].nodes[at])
        return [self.opened[1].nodes[at] for at in sorted(found)]


def _once(graph: ir.KernelGraph) -> ir.KernelGraph:
    """The graph with one call, and one view, in the place of those that are equal."""
    names: dict[str, str] = {}
    found: dict[ir.Apply, str] = {}
    nodes: list[ir.KernelNode] = []
    for node in graph.nodes:
        read = with_operands(node, names)
        if isinstance(read, ir.Apply) and (
            read.op.kind is Kind.LIBRARY or read.is_view
        ):
            known = found.setdefault(replace(read, result=""), read.result)
            if known != read.result:
                names[read.result] = known
                continue
        nodes.append(read)
    return with_returned(replace(graph, nodes=tuple(nodes)), names)


def _calls(graph: ir.KernelGraph) -> dict[str, ir.Apply]:
    """Library operators, by their results."""
    return {
        n.result: n
        for n in graph.nodes
        if isinstance(n, ir.Apply) and n.op.kind is Kind.LIBRARY
    }


def _alike(
    a: ir.Apply,
    types: Mapping[str, TensorType],
    b: ir.Apply,
    others: Mapping[str, TensorType],
) -> bool:
    """Whether calls are of one function, but for which tensors they are given."""
    same = replace(a, op=b.op, operands=b.operands) == b
    made, other = types[a.result], others[b.result]
    same &= a.op.function == b.op.function and a.op.part == b.op.part
    same &= (made.dtype, made.axes) == (other.dtype, other.axes)
    # A call names the axes that it is given; which there are, outputs do not tell.
    theirs = [kind.axes for _, kind in _given_to(a, types)]
    same &= theirs == [kind.axes for _, kind in _given_to(b, others)]
    # Tensors are compared as outputs, in their order.
    takes = [[None if isinstance(v, str) else v for v in n.operands] for n in (a, b)]
    return same and takes[0] == takes[1]


def _given_to(
    call: ir.Apply, types: Mapping[str, TensorType]
) -> Iterator[tuple[str, TensorType]]:
    """What a call is given, with its axes in the order in which the call names them.

    It may be computed with its axes in another one on either side.
    """
    for value, axes in zip(call.values, operand_axes(call), strict=True):
        kind, names = types[value], axes.names
        if kind.layout is None and {*kind.names} <= {*names}:
            order = sorted(kind.axes, key=lambda a: [names.index(d.name) for d in a])
            kind = replace(kind, axes=tuple(order))
        yield value, kind


def _opened(
    graph: ir.KernelGraph, calls: Sequence[ir.Apply], types: Mapping[str, TensorType]
) -> ir.KernelGraph:
    """A graph whose calls are inputs, and what they are given outputs."""
    made = {call.result for call in calls}
    opened = replace(
        graph,
        inputs=(*graph.inputs, *(ir.Input(c.result, types[c.result]) for c in calls)),
        nodes=tuple(n for n in graph.nodes if made.isdisjoint(results_of(n))),
        returns=(
            *graph.returns,
            *(ir.Return(*item) for call in calls for item in _given_to(call, types)),
        ),
    )
    # An extent may follow from what another section computes.
    return opened.with_extents(derived_extents(graph, graph.extent_of))


def _in_both(sides: tuple[ir.KernelGraph, ir.KernelGraph], types: _Types) -> _Known:
    """What both compute under one name, of corresponding axes, but for calls.

    Nor is it views that make one dim of several, or several of one: behind a cut there
    nothing says that one is as long as the others together.
    """
    made = [
        {
            result
            for node in graph.nodes
            if not (isinstance(node, ir.Apply) and node.factored is not None)
            for result in results_of(node)
        }
        for graph in sides
    ]
    sizes = [derived_extents(graph, graph.extent_of) for graph in sides]
    found: _Known = {}
    for name in sorted(made[0] & made[1] - _calls(sides[1]).keys()):
        own = types[0][name], types[1][name]
        axes = _in_pairs(own[0], sizes[0], own[1], sizes[1])
        if axes is not None and own[0].dtype == own[1].dtype:
            found[name] = replace(own[0], axes=axes[0]), replace(own[1], axes=axes[1])
    return found


def _in_pairs(
    a: TensorType,
    sizes: Mapping[str, int | None],
    b: TensorType,
    others: Mapping[str, int | None],
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]] | None:
    """The axes of types such that each is as long as the other's; None if none are.

    One of the two may have one dim where the other one has several.
    """
    if a.axes == b.axes:
        return a.axes, b.axes
    if a.layout is not None or b.layout is not None:
        return None
    left, right = list(a.dims), list(b.dims)
    axes: tuple[list[Axis], list[Axis]] = [], []
    while left and right:
        x, y = [left.pop(0)], [right.pop(0)]
        if x != y and (x[0] in b.dims or y[0] in a.dims):
            return None
        while (m := _size(x, sizes)) != (n := _size(y, others)):
            shorter, rest = (x, left) if m < n else (y, right)
            if not rest:
                return None
            shorter.append(rest.pop(0))
        if min(len(x), len(y)) > 1 or math.isnan(m):
            return None
        axes[0].append(tuple(x))
        axes[1].append(tuple(y))
    return None if left or right else (tuple(axes[0]), tuple(axes[1]))


def _size(axis: Sequence[Dim], sizes: Mapping[str, int | None]) -> float:
    """The extent of dims together; no number if one is not known."""
    found = [sizes.get(dim.name) for dim in axis]
    return math.prod(math.nan if size is None else float(size) for size in found)


def _of_its_dims(graph: ir.KernelGraph) -> ir.KernelGraph:
    """A section without the extents of dims that only others have.

    Dims that may differ in extent do at small sizes, so those would make others longer.
    """
    used = canonical_names(graph).dims
    return replace(graph, extents=tuple((n, e) for n, e in graph.extents if n in used))


# -- The program's sections in a candidate ---------------------------------------------


def mended(
    candidate: ir.KernelGraph,
    program: ir.KernelGraph,
    is_right: Callable[[Section], bool],
) -> ir.KernelGraph | None:
    """The candidate with the program's nodes for sections that are not right.

    What only such sections read is not stored any more.  None where there is no such
    graph, or no block graph of the candidate in it.
    """
    cutting = _cutting(candidate, program)
    if cutting is None or not _have_one_interface(*cutting.sides):
        return None
    lost = _lost(cutting, is_right)
    kept = [
        cutting.opened[0].nodes[at]
        for number, part in enumerate(cutting.parts)
        if number not in lost
        for at in part.own
    ]
    if not any(isinstance(node, ir.BlockGraph) for node in kept):
        return None
    ends = {pair for number in lost for pair in cutting.parts[number].outputs}
    pairs = zip(*(graph.returns for graph in cutting.opened), strict=True)
    values = iter([(b if (a, b) in ends else a).value for a, b in pairs])
    returns = tuple(replace(r, value=next(values)) for r in cutting.sides[0].returns)
    calls = [_given(call, values) for call in _calls(cutting.sides[1]).values()]
    nodes = _in_order(cutting, [*kept, *calls], [r.value for r in returns])
    if nodes is None:
        return None
    candidate, program = cutting.opened
    graph = replace(
        cutting.sides[0],
        nodes=tuple(nodes),
        indices=tuple({i.name: i for g in cutting.sides for i in g.indices}.values()),
        returns=returns,
        extents=tuple(sorted({*program.extents, *candidate.extents})),
    )
    try:
        kernel_types(graph)
    except CheckError:
        return None
    return without_dead(graph)


def _given(call: ir.Apply, values: Iterator[str]) -> ir.Apply:
    """A call of other values, as many as it has."""
    operands = (next(values) if isinstance(o, str) else o for o in call.operands)
    return replace(call, operands=tuple(operands))


def _in_order(
    cutting: _Cutting, kept: Sequence[ir.KernelNode], values: Sequence[str]
) -> list[ir.KernelNode] | None:
    """What computes values: nodes that are kept, and else those of the program.

    None if the program's read what is kept but not known to be theirs, or in a circle.
    """
    own = {r: node for node in kept for r in results_of(node)}
    makers = {r: n for n in cutting.opened[1].nodes for r in results_of(n)} | own
    same = {n for n, (a, b) in cutting.known.items() if a.axes == b.axes}
    same |= _calls(cutting.sides[1]).keys()
    found: dict[str, ir.KernelNode] = {}
    begun: set[str] = set()
    left = list(reversed(values))
    while left:
        value = left[-1]
        node = makers.get(value)
        name = value if node is None else results_of(node)[0]
        if node is None or name in found:
            left.pop()
            continue
        waiting = [v for v in operands_of(node) if v in makers]
        waiting = [v for v in waiting if results_of(makers[v])[0] not in found]
        if not waiting:
            found[name] = node
            left.pop()
            continue
        if name in begun:
            return None
        begun.add(name)
        if value not in own and any(
            v in own and v not in same for v in operands_of(node)
        ):
            return None
        left += waiting
    return list(found.values())


def _have_one_interface(candidate: ir.KernelGraph, program: ir.KernelGraph) -> bool:
    """Whether what is given has one name and type on both sides."""
    given = [{i.name: i.type for i in graph.given} for graph in (candidate, program)]
    extents = dict(program.extents)
    same = all(extents.get(n, e) == e for n, e in candidate.extents)
    return same and all(given[0].get(n, t) == t for n, t in given[1].items())


def _lost(cutting: _Cutting, is_right: Callable[[Section], bool]) -> set[int]:
    """Numbers of the parts that are not right, or see a lost value in another shape."""
    parts = cutting.parts
    reshaped = {n for n, (a, b) in cutting.known.items() if a.axes != b.axes}
    touched = [
        reshaped & {*part.given, *(a.value for a, _ in part.outputs)} for part in parts
    ]
    lost: set[int] = set()
    more = {
        number
        for number, part in enumerate(parts)
        if not (part.section.is_one_graph or is_right(part.section))
    }
    while more:
        lost |= more
        seen = set[str]().union(*(touched[number] for number in lost))
        more = {n for n, own in enumerate(touched) if own & seen} - lost
    return lost
