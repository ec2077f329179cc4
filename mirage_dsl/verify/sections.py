"""Graphs between their library calls: sections that are verified each by itself.

What PyTorch computes is the same function in a candidate and its program, so a result
of it may be any value: an input of what comes behind.  What it is given is an output of
what comes ahead.  If a candidate without its calls equals its program without them, as
functions of their inputs and of all results of calls, then the two are equal: by
induction over the calls in the candidate's order, each is given what the program's is,
so it gives the same.

    a = conv x, w            a' is an input:  b = relu a'     returns b
    b = relu a        ->
    c = conv b, v            c' is an input:  d = relu c'     returns d
    d = relu c

What is not connected then is a section.  Equal layers of a model have equal sections,
and one verification is enough for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_dsl.core.types import TensorType
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import Apply, Input, KernelGraph, Return
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import operands_of, read_by, results_of
from mirage_dsl.ops.definition import Kind


@dataclass(frozen=True)
class Section:
    """A section of a candidate, and the same section of its program.

    Those that differ only in names are equal, and so is what is found of them.
    """

    candidate: KernelGraph = field(compare=False)
    program: KernelGraph = field(compare=False)
    digests: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, candidate: KernelGraph, program: KernelGraph) -> Section:
        """The section of these two graphs."""
        digest = canonical_hash(candidate, schedule=True)
        return cls(candidate, program, (digest, canonical_hash(program)))


def sections_of(candidate: KernelGraph, program: KernelGraph) -> list[Section]:
    """The sections between library calls that compute something.

    None where the two do not call alike, or where one gives a call, or returns, an
    input that the other one does not.
    """
    theirs, ours = _calls(candidate), _calls(program)
    if not ours or theirs.keys() != ours.keys():
        return []
    types = kernel_types(candidate), kernel_types(program)
    if not all(_alike(theirs[n], types[0], ours[n], types[1]) for n in ours):
        return []
    sides = (
        _opened(candidate, [theirs[n] for n in ours], types[0]),
        _opened(program, list(ours.values()), types[1]),
    )
    found: list[Section] = []
    for section in _apart(sides):
        if section.candidate.nodes or section.program.nodes:
            found.append(section)
        elif not _gives_the_same(section):
            return []
    return found


def _calls(graph: KernelGraph) -> dict[str, Apply]:
    """Library operators, by their results."""
    return {
        n.result: n
        for n in graph.nodes
        if isinstance(n, Apply) and n.op.kind is Kind.LIBRARY
    }


def _alike(
    a: Apply,
    types: Mapping[str, TensorType],
    b: Apply,
    others: Mapping[str, TensorType],
) -> bool:
    """Whether calls are of one function, but for which tensors they are given."""
    same = replace(a, op=b.op, operands=b.operands) == b
    made, other = types[a.result], others[b.result]
    same &= a.op.function == b.op.function and a.op.part == b.op.part
    same &= (made.dtype, made.axes) == (other.dtype, other.axes)
    # A call names the axes that it is given; where these are, outputs do not tell.
    same &= [types[v].axes for v in a.values] == [others[v].axes for v in b.values]
    # Tensors are compared as outputs, in their order.
    takes = [[None if isinstance(v, str) else v for v in n.operands] for n in (a, b)]
    return same and takes[0] == takes[1]


def _opened(
    graph: KernelGraph, calls: Sequence[Apply], types: Mapping[str, TensorType]
) -> KernelGraph:
    """A graph whose calls are inputs, and what they are given outputs."""
    made = {call.result for call in calls}
    given = [v for call in calls for v in call.values]
    return replace(
        graph,
        inputs=(*graph.inputs, *(Input(c.result, types[c.result]) for c in calls)),
        nodes=tuple(n for n in graph.nodes if made.isdisjoint(results_of(n))),
        returns=(*graph.returns, *(Return(v, types[v]) for v in given)),
    )


def _apart(sides: tuple[KernelGraph, KernelGraph]) -> Iterator[Section]:
    """Outputs that have nothing that is computed in common, on either side."""
    reached = [[_behind(graph, r.value) for r in graph.returns] for graph in sides]
    groups: list[tuple[list[int], list[set[int]]]] = []
    for at in range(len(sides[0].returns)):
        own = [found[at] for found in reached]
        together = [at]
        apart: list[tuple[list[int], list[set[int]]]] = []
        for returns, nodes in groups:
            if any(not a.isdisjoint(b) for a, b in zip(nodes, own, strict=True)):
                together = [*returns, *together]
                own = [a | b for a, b in zip(nodes, own, strict=True)]
            else:
                apart.append((returns, nodes))
        groups = [*apart, (together, own)]
    for returns, nodes in groups:
        yield _section(sides, sorted(returns), nodes)


def _behind(graph: KernelGraph, value: str) -> set[int]:
    """Numbers of the nodes that a value depends on."""
    makers = {r: at for at, n in enumerate(graph.nodes) for r in results_of(n)}
    found: set[int] = set()
    left = [value]
    while left:
        at = makers.get(left.pop())
        if at is not None and at not in found:
            found.add(at)
            left += operands_of(graph.nodes[at])
    return found


def _section(
    sides: tuple[KernelGraph, KernelGraph], returns: list[int], nodes: list[set[int]]
) -> Section:
    """The graphs of some outputs, with the inputs that either of them reads."""
    kept = [
        [graph.nodes[at] for at in sorted(own)]
        for graph, own in zip(sides, nodes, strict=True)
    ]
    read: set[int] = set()
    for graph, own in zip(sides, kept, strict=True):
        values = read_by(own) | {graph.returns[at].value for at in returns}
        read |= {at for at, i in enumerate(graph.inputs) if i.name in values}
    found = [
        replace(
            graph,
            name="section",
            inputs=tuple(graph.inputs[at] for at in sorted(read)),
            nodes=tuple(own),
            indices=tuple(i for i in graph.indices if i.name in read_by(own)),
            returns=tuple(graph.returns[at] for at in returns),
        )
        for graph, own in zip(sides, kept, strict=True)
    ]
    return Section.of(found[0], found[1])


def _gives_the_same(section: Section) -> bool:
    """Whether outputs for which nothing is computed are the same inputs."""
    places = [
        [[i.name for i in graph.given].index(r.value) for r in graph.returns]
        for graph in (section.candidate, section.program)
    ]
    return places[0] == places[1]
