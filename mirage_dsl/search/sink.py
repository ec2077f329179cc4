"""Views of computed tensors moved to the inputs, where they are free.

A block can read a view of an input, but cannot look at its own results another way.
Before → after:

    a = matmul x, w                          w1 = slice w[.., 0:n]
    g = slice a[.., 0:n]                     g  = matmul x, w1
    u = slice a[.., n:2n]                    w2 = slice w[.., n:2n]
                                             u  = matmul x, w2

A tensor that is looked at in two ways is computed twice; whether that pays, the cost
model decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from mirage_dsl.ir.expand import expand
from mirage_dsl.ir.graph import Apply, Attrs, KernelGraph, Return
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ops.definition import AttributeKind, Kind, Operator
from mirage_dsl.ops.table import RENAME, SLICE
from mirage_dsl.search.concats import take_apart
from mirage_dsl.search.whole_parts import name_whole_parts


@dataclass(frozen=True, order=True)
class Look:
    """One dim seen another way: under the name `to`, from `start` to before `stop`.

    Without a range it is all of it.
    """

    dim: str
    to: str
    start: int = 0
    stop: int | None = None


Looks = tuple[Look, ...]


class _StuckError(Exception):
    """A view that cannot move past an operator."""


def sink_views(program: KernelGraph) -> KernelGraph:
    """The same function without views of computed tensors, as far as they can move.

    Sums and maxima over concatenated dims are taken apart before.

    The program itself, if one cannot.
    """
    sinker = _Sinker(take_apart(name_whole_parts(program)))
    try:
        names = {r.value: sinker.seen(r.value, ()) for r in sinker.program.returns}
    except _StuckError:
        return sinker.program
    returns = tuple(Return(names[r.value], r.type) for r in sinker.program.returns)
    graph = replace(sinker.program, nodes=tuple(sinker.nodes), returns=returns)
    # What is seen in parts may be there already.
    return expand(graph.with_extents(derived_extents(graph, graph.extent_of)))


@dataclass
class _Sinker:
    program: KernelGraph
    nodes: list[Apply] = field(default_factory=list[Apply])
    known: dict[tuple[str, Looks], str] = field(
        default_factory=dict[tuple[str, Looks], str]
    )

    def __post_init__(self) -> None:
        applies = [n for n in self.program.nodes if isinstance(n, Apply)]
        self.makers = {n.result: n for n in applies}
        self.types = kernel_types(self.program)
        self.extents = derived_extents(self.program, self.program.extent_of)
        self.taken = {i.name for i in self.program.inputs} | self.makers.keys()

    def seen(self, name: str, looks: Looks) -> str:
        """The name of `name` as `looks` see it, made if it is not there yet."""
        dims = self.types[name].names
        looks = tuple(sorted(k for k in looks if k.dim in dims))
        if (name, looks) not in self.known:
            self.known[name, looks] = self._made(name, looks)
        return self.known[name, looks]

    def _made(self, name: str, looks: Looks) -> str:
        node = self.makers.get(name)
        if node is None:
            return self._view_of_input(name, looks)
        through = _looks_of(node)
        if through is not None:
            return self.seen(node.values[0], _composed(through, looks))
        made = dict(node.attrs).get("to")
        if any(k.dim == made for k in looks):
            return self._part(node, str(made), looks)
        if {k.to for k in looks} & {*node.over, *self._other_dims(node, looks)}:
            raise _StuckError
        operands = tuple(
            self.seen(o, looks) if isinstance(o, str) else o for o in node.operands
        )
        result = name if not looks else self._fresh(name, looks)
        self.nodes.append(replace(node, result=result, operands=operands))
        return result

    def _part(self, node: Apply, made: str, looks: Looks) -> str:
        """What looks see of a concatenation, if it lies in one of its operands."""
        (look,) = (k for k in looks if k.dim == made)
        if node.op.kind is not Kind.CONCAT or look.stop is None:
            raise _StuckError
        joined, start = node.attr("dims"), 0
        assert isinstance(joined, tuple)
        for value, dim in zip(node.values, joined, strict=True):
            size = self.extents.get(dim)
            if size is None:
                break
            if start <= look.start and look.stop <= start + size:
                own = Look(dim, look.to, look.start - start, look.stop - start)
                if (own.start, own.stop) == (0, size):
                    own = Look(dim, look.to)
                rest = tuple(k for k in looks if k != look)
                return self.seen(value, (own, *rest) if own != Look(dim, dim) else rest)
            start += size
        raise _StuckError

    def _other_dims(self, node: Apply, looks: Looks) -> set[str]:
        """Dims of the operands that keep their names."""
        names = {n for v in node.values for n in self.types[v].names}
        return names - {k.dim for k in looks}

    def _view_of_input(self, name: str, looks: Looks) -> str:
        whole = [k for k in looks if k.stop is None and k.dim != k.to]
        for look in looks:
            if look.stop is not None:
                attrs: Attrs = (
                    ("dim", look.dim),
                    ("start", look.start),
                    ("stop", look.stop),
                    ("to", look.to),
                )
                name = self._append(SLICE, name, attrs, (look,))
        if whole:
            old, new = tuple(k.dim for k in whole), tuple(k.to for k in whole)
            name = self._append(RENAME, name, (("dims", old), ("to", new)), whole)
        return name

    def _append(
        self, op: Operator, source: str, attrs: Attrs, looks: Iterable[Look]
    ) -> str:
        result = self._fresh(source, looks)
        self.nodes.append(Apply(result, op, (source,), attrs))
        return result

    def _fresh(self, name: str, looks: Iterable[Look]) -> str:
        result = "_".join([name, *(k.to for k in looks)])
        while result in self.taken:
            result += "_"
        self.taken.add(result)
        return result


def _looks_of(node: Apply) -> Looks | None:
    """What a view does to its operand's dims; None for what is not to be moved."""
    if node.op.kind is not Kind.VIEW:
        return None
    attrs = dict(node.attrs)
    kinds = node.op.attributes
    if any(kind is AttributeKind.DTYPE for kind in kinds.values()):
        return None
    if set(attrs) == {"to"}:
        return None
    old, new = attrs.get("dims"), attrs["to"]
    if isinstance(old, tuple) and isinstance(new, tuple):
        return tuple(Look(a, b) for a, b in zip(old, new, strict=True))
    start, stop = attrs["start"], attrs["stop"]
    assert isinstance(start, int)
    assert isinstance(stop, int)
    return (Look(str(attrs["dim"]), str(new), start, stop),)


def _composed(first: Looks, second: Looks) -> Looks:
    """The looks of `second` at what `first` shows."""
    after: Mapping[str, Look] = {k.dim: k for k in second}
    found = [_joined(k, after.get(k.to)) for k in first]
    shown = {k.to for k in first}
    return (*found, *(k for k in second if k.dim not in shown))


def _joined(first: Look, second: Look | None) -> Look:
    if second is None:
        return first
    if second.stop is None:
        return replace(first, to=second.to)
    if first.stop is None:
        return replace(second, dim=first.dim)
    start, stop = first.start + second.start, first.start + second.stop
    return Look(first.dim, second.to, start, stop)
