"""Views and gathers moved to what they show elements of: to inputs, and into blocks.

A block can read a view of an input, but cannot look at its own results another way.
Before → after:

    a = matmul x, w                          w1 = slice w[.., 0:n]
    g = slice a[.., 0:n]                     g  = matmul x, w1
    u = slice a[.., n:2n]                    w2 = slice w[.., n:2n]
                                             u  = matmul x, w2

A tensor that is looked at in two ways is computed twice; whether that pays, the cost
model decides.

Where nothing is computed twice and nothing more is looked at, views always move.
Before → after:

    s = sigmoid x                            q = rename x dims(k) to(n)
    r = rename s dims(k) to(n)               r = sigmoid q
    q = rename x dims(k) to(n)

A gather of what was computed element by element picks elements of the operands first.
Before → after, with v gathered along:

    y = sub x, row                           p = gather x, i dim(v)
    g = gather y, i dim(v)                   g = sub p, row

A block that reads what a gather has picked picks it itself, so that it is never
stored.  Before → after:

    g = gather w, i dim(v)                   y = block grid(n / 4) {
    y = block grid(n / 4) {                    a = load i[n/grid]
      t = load g[n/grid, d]            →       b = load w[v, d]
      ..                                       t = gather b, a dim(v)
    }                                          ..

A gather that nothing else reads, by an index that is computed one by one, is a kernel
of its own that computes the index on its way.  Before → after:

    i = block grid(n / 4) {                  g = block grid(n / 4) {
      t = load x[n/grid]                       t = load x[n/grid]
      f = floor t                              f = floor t
      store i = f                     →        b = load w[v]
    }                                          p = gather b, f dim(v)
    g = gather w, i dim(v)                     store g = p
                                             }

Gathers along dims that lie side by side, one of what another has picked, are one along
both.  Before → after:

    g = gather x, i dim(m)                   f = flatten x of(m, k) to(m_k)
    y = block grid(n / 4) {                  y = block grid(n / 4) {
      t = load g[n/grid, k]                    a = load i[n/grid]
      a = load j[n/grid]              →        b = load j[n/grid]
      p = gather t, a dim(k)                   c = a * k + b
      ..                                       t = load f[m_k]
    }                                          p = gather t, c dim(m_k)
                                               ..
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from mirage_dsl.core.hardware import GRID_AXES
from mirage_dsl.core.types import Dim, MemorySpace, extent_scalar
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.canonical import FreshNames, free_name, longer_name, new_name
from mirage_dsl.ir.check import check
from mirage_dsl.ir.infer import apply_type, kernel_types
from mirage_dsl.ir.maps import derived_extents, with_derived_extents
from mirage_dsl.ir.walk import (
    each_dim,
    live,
    makers,
    map_nodes,
    post_order,
    read_by,
    results_of,
    values_of,
    with_operands,
    with_returned,
    without_dead,
)
from mirage_dsl.ir.write import OperatorWriter, flatten
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import AttributeKind, Kind, Operator
from mirage_dsl.rewrite.concats import name_whole_parts, take_apart
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.positions import all_of, from_front, row_major, within

# -- Views -----------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Look:
    """One dim seen another way: under the name `to`, from `start` to before `stop`.

    They count as those of a slice do.  Without a range it is all of it.
    """

    dim: str
    to: str
    start: int = 0
    stop: int | None = None


Looks = tuple[Look, ...]


class _StuckError(Exception):
    """A view that cannot move past an operator."""


_Steps = Generator[tuple[str, Looks], str, str]
"""What makes a value of others, which it asks for as looks see them."""


def sink_views(program: ir.KernelGraph) -> ir.KernelGraph:
    """The same function without views of computed tensors, as far as they can move.

    Sums and maxima over concatenated dims are taken apart before.

    The program itself, if one cannot.
    """
    sinker = _ViewSinker(take_apart(name_whole_parts(program)))
    try:
        names = {r.value: sinker.seen(r.value, ()) for r in sinker.program.returns}
    except _StuckError:
        return sinker.program
    graph = replace(sinker.program, nodes=tuple(sinker.nodes))
    graph = with_returned(graph, names)
    # What is seen in parts may be there already.
    return expand(with_derived_extents(graph))


def share_views(program: ir.KernelGraph) -> ir.KernelGraph:
    """The same function with fewer views of computed tensors.

    A view of what nothing else reads, and what is computed element by element from
    tensors that are seen alike anyway, is computed from their views.
    """
    sharer = _Sharer(program)
    nodes = tuple(sharer.nodes())
    return expand(replace(program, nodes=nodes)) if sharer.moved else program


class _Sharer:
    """What views see of a program, and who reads its values."""

    def __init__(self, program: ir.KernelGraph) -> None:
        self.applies = program.applies
        self.places = {n.result: at for at, n in enumerate(self.applies)}
        self.types = kernel_types(program)
        self.readers = Counter(v for n in self.applies for v in set(n.values))
        self.readers.update(r.value for r in program.returns)
        self.views: dict[tuple[str, Looks], ir.Apply] = {}
        for node in self.applies:
            looks = _looks_of(node)
            if looks:
                self.views.setdefault((node.values[0], looks), node)
        self.taken = values_of(program)
        self.moved = False

    def nodes(self) -> Iterator[ir.Apply]:
        """The operators, each after its operands."""
        made: set[str] = set()
        for node in self.applies:
            looks = _looks_of(node)
            above = self.above(node.values[0], looks) if looks else []
            found = self.seen(above, looks or (), node) if above else [node]
            for one in found:
                if one.result not in made:
                    made.add(one.result)
                    yield one

    def above(self, name: str, looks: Looks) -> list[ir.Apply]:
        """What makes a value of tensors that are seen alike; none if it is not so."""
        found: dict[str, ir.Apply] = {}
        waiting, dims = [name], {k.dim for k in looks}
        while waiting:
            value = waiting.pop()
            if value not in self.places:
                return []
            node = found[value] = self.applies[self.places[value]]
            by_element = node.op.kind is Kind.ELEMENTWISE or node.op is table.CAST
            read = self.viewed(node, looks)
            whole = all(dims.issubset(self.types[v].names) for v in read)
            if not by_element or not whole or self.readers[value] != 1:
                return []
            waiting += [
                v for v in read if v in self.places and (v, looks) not in self.views
            ]
        return sorted(found.values(), key=lambda n: self.places[n.result])

    def viewed(self, node: ir.Apply, looks: Looks) -> list[str]:
        """Its operands that have dims of which something is seen."""
        dims = {k.dim for k in looks}
        return [v for v in node.values if not dims.isdisjoint(self.types[v].names)]

    def seen(
        self, above: list[ir.Apply], looks: Looks, view: ir.Apply
    ) -> Iterator[ir.Apply]:
        """Operators as a view shows the last one, under the name of the view."""
        self.moved = True
        names: dict[str, str] = {}
        for node in above:
            for value in self.viewed(node, looks):
                if value not in names:
                    known = self.views.get((value, looks))
                    if known is None:
                        own = _free_name(value, looks, self.taken)
                        known = replace(view, operands=(value,), result=own)
                    names[value] = known.result
                    yield known
            last = node is above[-1]
            result = view.result if last else _free_name(node.result, looks, self.taken)
            names[node.result] = result
            yield replace(with_operands(node, names), result=result)


@dataclass
class _ViewSinker:
    program: ir.KernelGraph
    nodes: list[ir.Apply] = field(default_factory=list[ir.Apply])
    known: dict[tuple[str, Looks], str] = field(
        default_factory=dict[tuple[str, Looks], str]
    )

    def __post_init__(self) -> None:
        self.makers = makers(self.program)
        self.types = kernel_types(self.program)
        self.extents = derived_extents(self.program)
        self.taken = values_of(self.program)

    def seen(self, name: str, looks: Looks) -> str:
        """The name of `name` as `looks` see it, made if it is not there yet.

        What waits for its operands is on a stack: programs are deeper than Python's.
        """
        asked = self._of_its_dims(name, looks)
        stack = [] if asked in self.known else [(asked, self._made(*asked))]
        answer: str | None = None
        while stack:
            making, steps = stack[-1]
            try:
                operand = self._of_its_dims(
                    *(next(steps) if answer is None else steps.send(answer))
                )
            except StopIteration as made:
                answer = self.known[making] = made.value
                stack.pop()
                continue
            answer = self.known.get(operand)
            if answer is None:
                stack.append((operand, self._made(*operand)))
        return self.known[asked]

    def _of_its_dims(self, name: str, looks: Looks) -> tuple[str, Looks]:
        dims = self.types[name].names
        return name, tuple(sorted(k for k in looks if k.dim in dims))

    def _made(self, name: str, looks: Looks) -> _Steps:
        node = self.makers.get(name)
        if node is None:
            return self._view_of_input(name, looks)
        through = _looks_of(node)
        if through is not None:
            return (yield node.values[0], _composed(through, looks))
        if looks and (node.op.kind is Kind.LIBRARY or node.factored is not None):
            raise _StuckError
        if any(k.dim in node.along for k in looks):
            raise _StuckError
        made = dict(node.attrs).get("to")
        if any(k.dim == made for k in looks):
            return (yield from self._part(node, str(made), looks))
        if {k.to for k in looks} & {*node.over, *self._other_dims(node, looks)}:
            raise _StuckError
        operands: dict[str, str] = {}
        for value in node.values:
            operands[value] = yield value, looks
        moved = with_operands(node, operands)
        result = name if not looks else _free_name(name, looks, self.taken)
        self.nodes.append(replace(moved, result=result))
        return result

    def _part(self, node: ir.Apply, made: str, looks: Looks) -> _Steps:
        """What looks see of a concatenation: of one operand, or of several, joined."""
        (look,) = (k for k in looks if k.dim == made)
        if node.op.kind is not Kind.CONCAT or look.stop is None:
            raise _StuckError
        if look.start < 0 or look.stop <= 0:
            raise _StuckError
        rest = tuple(k for k in looks if k != look)
        parts = list(self._operands_seen(node, look.start, look.stop))
        shown = {n for v, k in parts for n in {*self.types[v].names} - {k.dim}}
        if shown != {*self.types[node.result].names} - {made}:
            # The others alone have a dim, which what reads this one may go over.
            raise _StuckError
        if len(parts) == 1:
            ((value, part),) = parts
            own = replace(part, to=look.to)
            return (
                yield value, (own, *rest) if own != Look(own.dim, own.dim) else rest
            )
        seen: list[str] = []
        for value, k in parts:
            seen.append((yield value, (k, *rest) if k != Look(k.dim, k.dim) else rest))
        result = _free_name(node.result, looks, self.taken)
        attrs: ir.Attrs = (("dims", tuple(k.to for _, k in parts)), ("to", look.to))
        self.nodes.append(
            replace(node, result=result, operands=tuple(seen), attrs=attrs)
        )
        return result

    def _operands_seen(
        self, node: ir.Apply, first: int, stop: int
    ) -> Iterator[tuple[str, Look]]:
        """Operands of a concatenation that lie in a range, and what of them does."""
        joined, start = node.dims("dims"), 0
        for value, dim in zip(node.values, joined, strict=True):
            size = self.extents.get(dim)
            if size is None:
                raise _StuckError
            own = max(first - start, 0), min(stop - start, size)
            if own == (0, size):
                yield value, Look(dim, dim)
            elif own[0] < own[1]:
                to = free_name(dim, self.extents)
                self.extents[to] = own[1] - own[0]
                yield value, Look(dim, to, *own)
            start += size

    def _other_dims(self, node: ir.Apply, looks: Looks) -> set[str]:
        """Dims of the operands that keep their names."""
        names = {n for v in node.values for n in self.types[v].names}
        return names - {k.dim for k in looks}

    def _view_of_input(self, name: str, looks: Looks) -> str:
        whole = [k for k in looks if k.stop is None and k.dim != k.to]
        for look in looks:
            if look.stop is not None:
                attrs: ir.Attrs = (
                    ("dim", look.dim),
                    ("start", look.start),
                    ("stop", look.stop),
                    ("to", look.to),
                )
                name = self._append(table.SLICE, name, attrs, (look,))
        if whole:
            old, new = tuple(k.dim for k in whole), tuple(k.to for k in whole)
            name = self._append(table.RENAME, name, (("dims", old), ("to", new)), whole)
        return name

    def _append(
        self, op: Operator, source: str, attrs: ir.Attrs, looks: Iterable[Look]
    ) -> str:
        result = _free_name(source, looks, self.taken)
        self.nodes.append(ir.Apply(result, op, (source,), attrs))
        return result


def _free_name(value: str, looks: Iterable[Look], taken: set[str]) -> str:
    """A name that is not taken, for what looks see of a value; it is taken then."""
    return longer_name("_".join([value, *(k.to for k in looks)]), taken)


def _looks_of(node: ir.Apply) -> Looks | None:
    """What a view does to its operand's dims; None for what is not to be moved."""
    if node.op.kind is not Kind.VIEW or node.factored is not None:
        return None
    attrs = dict(node.attrs)
    kinds = node.op.attributes
    if any(kind is AttributeKind.DTYPE for kind in kinds.values()):
        return None
    if set(attrs) == {"to"}:
        return None
    old, new = attrs.get("dims"), attrs["to"]
    if isinstance(old, tuple) and isinstance(new, tuple):
        return tuple(sorted(Look(a, b) for a, b in zip(old, new, strict=True)))
    part = node.sliced
    assert part is not None
    return (Look(part.dim, part.to, part.start, part.stop),)


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
    # What counts from the end counts from that of what is shown.
    start = second.start + (first.stop if second.start < 0 else first.start)
    stop = second.stop + (first.stop if second.stop <= 0 else first.start)
    return Look(first.dim, second.to, start, stop)


# -- In front of what is computed element by element -----------------------------------


def sink_gathers(program: ir.KernelGraph) -> ir.KernelGraph | None:
    """The program whose gathers pick elements before these are computed with.

    None where no gather can move, or would make more elements than it spares.
    """
    sinking = _GatherSinker(program)
    made = map_nodes(program, sinking.nodes_for)
    return without_dead(made) if made != program else None


class _GatherSinker:
    def __init__(self, program: ir.KernelGraph) -> None:
        self._types = kernel_types(program)
        self._makers = makers(program)
        self._extents = derived_extents(program)
        self._names = FreshNames(program)

    def nodes_for(
        self, node: ir.Apply | ir.BlockGraph
    ) -> list[ir.Apply | ir.BlockGraph]:
        """What stands in the place of a node of the program."""
        if isinstance(node, ir.Apply) and node.op.kind is Kind.GATHER:
            return list(self._sunk(node))
        return [node]

    def _sunk(self, node: ir.Apply) -> list[ir.Apply]:
        """A gather, moved as far as it can be."""
        (source, index), dim = node.values, node.dim("dim")
        if self._types[source].space is MemorySpace.NOWHERE:
            return self._counted(node, index, dim)
        maker = self._makers.get(source)
        if maker is None or not self._spares(source, index, dim):
            return [node]
        if maker.op.kind is not Kind.ELEMENTWISE and maker.op is not table.CAST:
            return [node]
        found: list[ir.Apply] = []
        picked: dict[str, str] = {}
        for value in dict.fromkeys(maker.values):
            if dim in self._types[value].names:
                name = picked[value] = self._names.fresh(f"{value}_at_{index}")
                moved = replace(node, result=name, operands=(value, index))
                found += self._sunk(moved)
        operands = tuple(
            picked.get(o, o) if isinstance(o, str) else o for o in maker.operands
        )
        return [*found, replace(maker, result=node.result, operands=operands)]

    def _counted(self, node: ir.Apply, index: str, dim: str) -> list[ir.Apply]:
        """The positions at indices: they themselves, counted from the start."""
        if self._types[node.values[0]].names != (dim,):
            return [node]
        nodes: list[ir.Apply] = []
        from_front(OperatorWriter(nodes, self._names), index, dim)
        nodes[-1] = replace(nodes[-1], result=node.result)
        return [replace(n, location=node.location) for n in nodes]

    def _spares(self, source: str, index: str, dim: str) -> bool:
        """Whether no more elements are picked than there are."""
        own, picked = set(self._types[source].names), set(self._types[index].names)
        if picked < own:
            return True
        sizes = [
            [self._extents.get(n) for n in names]
            for names in (own, picked | (own - {dim}))
        ]
        if any(e is None for row in sizes for e in row):
            return False
        whole, some = (prod(e or 1 for e in row) for row in sizes)
        return some <= whole


# -- As inputs -------------------------------------------------------------------------
# A search knows nothing of gathers: what they pick is as good as an input to it where
# it can be picked before anything else is computed, and blocks pick it in the end.


@dataclass(frozen=True)
class GathersGiven:
    """A program some of whose gathers are done before it.

    Attributes:
        program: It has an input for what each of them picks.
        picked: The names of these inputs.
        ahead: These gathers and what their indices are computed by.
    """

    program: ir.KernelGraph
    picked: frozenset[str]
    ahead: tuple[ir.Apply, ...]

    def restored(self, graph: ir.KernelGraph) -> ir.KernelGraph:
        """A μGraph of the program as one of the whole, its gathers done by blocks.

        One that reads nothing of what they pick stays as it is.
        """
        if self.picked.isdisjoint(i.name for i in graph.inputs):
            return graph
        inputs = tuple(i for i in graph.inputs if i.name not in self.picked)
        names, renamed = FreshNames(graph), dict[str, str]()
        nodes: list[ir.Apply] = []
        for node in self.ahead:
            if node.result not in self.picked:
                renamed[node.result] = names.fresh(node.result)
            made = with_operands(node, renamed)
            nodes.append(replace(made, result=renamed.get(node.result, node.result)))
        whole = replace(graph, inputs=inputs, nodes=(*nodes, *graph.nodes))
        return without_dead(whole)


def with_gathers_given(
    program: ir.KernelGraph, *, hidden: bool = False
) -> GathersGiven | None:
    """The program without gathers that need nothing of what it computes.

    They are gathers of inputs, of views of these, and of what such gathers pick, by
    integers that are inputs or are computed of inputs one by one.  None where there are
    none.

    Args:
        program: The program.
        hidden: Also without what chooses constants in the place of some elements.
    """
    types = kernel_types(program)
    there = {i.name for i in program.inputs}
    alone = {i.name for i in program.given}
    returned = {r.value for r in program.returns}
    picked: list[ir.Apply] = []
    for node in program.applies:
        if node.op.kind is Kind.GATHER and node.result not in returned:
            known = there.union(n.result for n in picked)
            if node.values[0] in known and node.values[1] in alone:
                picked.append(node)
                if types[node.result].dtype.is_integer:
                    alone.add(node.result)
        elif hidden and _hides(node, picked) and node.values[0] in alone:
            picked.append(node)
        elif node.is_view and there.issuperset(node.values):
            there.add(node.result)
        if _is_by_element(node) and alone.issuperset(node.values):
            alone.add(node.result)
    if not picked:
        return None
    done = {n.result for n in picked}
    rest = [n for n in program.nodes if done.isdisjoint(results_of(n))]
    rest = live(rest, returned)
    given = [n.result for n in picked if n.result in read_by(rest)]
    inputs = [ir.Input(n, types[n].in_memory) for n in given]
    opened = replace(program, inputs=(*program.inputs, *inputs), nodes=tuple(rest))
    return GathersGiven(opened, frozenset(given), tuple(live(program.applies, given)))


def _hides(node: ir.Apply, picked: Iterable[ir.Apply]) -> bool:
    """Whether a node chooses a constant in the place of some of what was picked."""
    if node.op is not table.WHERE or len(node.values) != 2:
        return False
    return node.values[0] == node.operands[0] and node.values[1] in {
        n.result for n in picked
    }


# -- Into blocks -----------------------------------------------------------------------


def fuse_gathers(graph: ir.KernelGraph) -> ir.KernelGraph | None:
    """The μGraph whose blocks pick elements themselves; None where none can."""
    made = map_nodes(graph, _Fusing(graph).fused)
    if made == graph:
        return None
    made = with_derived_extents(without_dead(made))
    return None if check(made) else made


def gathers_as_kernels(graph: ir.KernelGraph) -> ir.KernelGraph | None:
    """The μGraph whose gathers are blocks, with what computes their indices.

    Sizes of these blocks are still to be chosen.  None where all gathers stay PyTorch's
    calls: their indices are there already, or are no simple functions of what is.
    """
    gathers = [node for node in graph.applies if node.op.kind is Kind.GATHER]
    if not gathers:
        return None
    fusing = _Fusing(graph)
    ahead = {
        node.result
        for gather in gathers
        for node in fusing.chain(gather)
        if node is not gather
    }

    def made(node: ir.KernelNode) -> list[ir.KernelNode]:
        return [node] if results_of(node)[0] in ahead else fusing.kernel(node)

    kernels = map_nodes(graph, made)
    return fuse_gathers(kernels) if kernels != graph else None


class _Fusing:
    def __init__(self, graph: ir.KernelGraph) -> None:
        self._types = dict(kernel_types(graph))
        self._names, self._dims = FreshNames(graph), set(derived_extents(graph))
        self._flat: dict[tuple[str, tuple[str, ...]], ir.Apply] = {}
        self._kernels: Mapping[str, ir.Apply] = makers(graph)
        self._stored: Mapping[str, tuple[ir.BlockGraph, ir.Store]] = {
            store.result: (block, store)
            for block in graph.blocks
            for store in block.stores
        }

    def fused(self, node: ir.KernelNode) -> list[ir.KernelNode]:
        """A block that picks what it loads of gathers, and views that it needs then."""
        if isinstance(node, ir.Apply):
            return [node]
        there = set(self._flat)
        made = map_nodes(node, self._node)
        views = [view for key, view in self._flat.items() if key not in there]
        return [*views, node if made == node else without_twins(made)]

    def kernel(self, node: ir.KernelNode) -> list[ir.KernelNode]:
        """A gather as a block that stores what it loads of it; others as they are."""
        if not isinstance(node, ir.Apply) or node.op.kind is not Kind.GATHER:
            return [node]
        kind, (source, index) = self._types[node.result], node.values
        known = self._types[source].space is MemorySpace.NOWHERE
        pays = self._is_alone(index) or len(self.chain(node)) > 1
        if known or len(kind.names) > GRID_AXES or not pays:
            return [node]
        picked = self._names.fresh(node.result)
        load = ir.Load(self._names.fresh(f"{node.result}_t"), picked, kind.axes)
        grid = tuple(ir.Split(name, 1) for name in kind.names)
        axes = ir.gridded(kind.axes, set(kind.names))
        store = ir.Store(node.result, load.result, axes, kind.dtype)
        block = ir.BlockGraph(grid, None, (replace(load, axes=axes), store))
        return [replace(node, result=picked), block]

    def _node(self, node: ir.BlockNode) -> list[ir.BlockNode]:
        made = self._kernels.get(node.source) if isinstance(node, ir.Load) else None
        gather = None if made is None else self._gather_of(made)
        if made is None or gather is None:
            return [node]
        assert isinstance(node, ir.Load)
        if self._types[gather.values[0]].space is MemorySpace.NOWHERE:
            return [node]
        nodes: list[ir.BlockNode] = []
        pieces = {d.name: d for d in ir.dims_of(node.axes)}
        if made is gather:
            picked = self._picked(gather, pieces, nodes)
            return [*nodes, replace(picked, result=node.result)]
        condition = made.values[0]
        names = {condition: self._copied(condition, pieces, nodes)}
        picked = self._picked(gather, pieces, nodes)
        names[gather.result] = self._again(picked, {}, nodes)
        return [*nodes, replace(with_operands(made, names), result=node.result)]

    def _gather_of(self, node: ir.Apply) -> ir.Apply | None:
        """The gather that a node is, or some elements of which it hides."""
        if node.op.kind is Kind.GATHER:
            return node
        found = (self._kernels.get(value) for value in node.values[1:])
        gathers = [n for n in found if n is not None and n.op.kind is Kind.GATHER]
        hides = _hides(node, gathers) and self._is_alone(node.values[0])
        return gathers[0] if hides else None

    def _picked(
        self, gather: ir.Apply, pieces: Mapping[str, Dim], nodes: list[ir.BlockNode]
    ) -> ir.Apply:
        """A gather in the block, of these pieces."""
        chain = self.chain(gather)
        if len(chain) > 1:
            return self._along_several(chain, pieces, nodes)
        (source, index), dim = gather.values, gather.dim("dim")
        at = self._copied(index, pieces, nodes)
        table = self._loaded(source, {**pieces, dim: Dim(dim)}, nodes)
        return replace(gather, operands=(table, at))

    def chain(self, gather: ir.Apply) -> list[ir.Apply]:
        """A gather, and those ahead that picked along dims beside its own.

        In the order of these dims.
        """
        found, source = [gather], gather.values[0]
        while source in self._kernels:
            node = self._kernels[source]
            if node.op.kind is not Kind.GATHER:
                break
            picked = {n.dim("dim") for n in found}
            if not picked.isdisjoint(self._types[node.values[1]].names):
                # Its index is picked from too.
                return [gather]
            source = node.values[0]
            found.append(node)
            names = self._types[source].names
            places = sorted(
                names.index(dim) for n in found if (dim := n.dim("dim")) in names
            )
            first = range(places[0], places[0] + len(found)) if places else range(0)
            in_memory = self._types[source].space is MemorySpace.DEVICE
            if not in_memory or places != list(first):
                return [gather]
        names = self._types[source].names
        return sorted(found, key=lambda n: names.index(n.dim("dim")))

    def _along_several(
        self,
        chain: Sequence[ir.Apply],
        pieces: Mapping[str, Dim],
        nodes: list[ir.BlockNode],
    ) -> ir.Apply:
        """Gathers along dims side by side as one, in the block."""
        made = {n.result for n in chain}
        (source,) = (n.values[0] for n in chain if n.values[0] not in made)
        dims = tuple(n.dim("dim") for n in chain)
        flat, whole = self._flattened(source, dims)
        write = OperatorWriter(nodes, self._names)
        places: list[str] = []
        there: list[str] = []
        for node, dim in zip(chain, dims, strict=True):
            index = self._copied(node.values[1], pieces, nodes)
            places.append(from_front(write, index, dim))
            there.append(all_of(write, within(write, places[-1], dim)))
        place, inside = row_major(write, places, dims), all_of(write, there)
        # An index outside is one of no element, and not that of a neighbour.
        at = write("at", table.WHERE, inside, place, extent_scalar(*dims))
        picked = self._loaded(flat, {**pieces, whole: Dim(whole)}, nodes)
        return replace(chain[-1], operands=(picked, at), attrs=(("dim", whole),))

    def _flattened(self, source: str, dims: tuple[str, ...]) -> tuple[str, str]:
        """A tensor with several dims as one, made once, and that dim."""
        if (source, dims) not in self._flat:
            dim = new_name("_".join(dims), self._dims)
            view = flatten(self._names.fresh(f"{source}_flat"), source, dims, dim)
            self._flat[source, dims] = view
            self._types[view.result] = apply_type(
                view, [self._types[source]], in_block=False
            )
        view = self._flat[source, dims]
        return view.result, view.dim("to")

    def _loaded(
        self, tensor: str, pieces: Mapping[str, Dim], nodes: list[ir.BlockNode]
    ) -> str:
        """The name of a new load of some pieces."""
        cut = each_dim(self._types[tensor].axes, lambda d: pieces[d.name])
        nodes.append(ir.Load(self._names.fresh(f"{tensor}_at"), tensor, cut))
        return nodes[-1].result

    # -- Indices -------------------------------------------------------------------
    # What is computed of them one by one, or they of floats, is computed again in the
    # block.

    def _copied(
        self, tensor: str, pieces: Mapping[str, Dim], nodes: list[ir.BlockNode]
    ) -> str:
        """The name of the pieces of an index in the block."""
        if self._is_alone(tensor):
            if tensor in self._kernels:
                node = self._kernels[tensor]
                if node.op.kind is Kind.GATHER:
                    return self._again(self._picked(node, pieces, nodes), {}, nodes)
                names = {v: self._copied(v, pieces, nodes) for v in node.values}
                return self._again(node, names, nodes)
            block, store = self._stored[tensor]
            return self._inner(block, store.operand, pieces, nodes)
        return self._loaded(tensor, pieces, nodes)

    def _inner(
        self,
        block: ir.BlockGraph,
        value: str,
        pieces: Mapping[str, Dim],
        nodes: list[ir.BlockNode],
    ) -> str:
        """The same of a value of another block."""
        node = makers(block)[value]
        if isinstance(node, ir.Load):
            return self._copied(node.source, pieces, nodes)
        assert isinstance(node, ir.Apply)
        names = {v: self._inner(block, v, pieces, nodes) for v in node.values}
        return self._again(node, names, nodes)

    def _again(
        self, node: ir.Apply, names: Mapping[str, str], nodes: list[ir.BlockNode]
    ) -> str:
        copied = with_operands(node, names)
        nodes.append(replace(copied, result=self._names.fresh(node.result)))
        return nodes[-1].result

    def _is_alone(self, tensor: str) -> bool:
        """Whether a tensor is computed of others one by one."""
        if tensor in self._kernels:
            node = self._kernels[tensor]
            if node.op.kind is Kind.GATHER:
                source = self._types[node.values[0]]
                return source.dtype.is_integer and source.space is MemorySpace.DEVICE
            return _is_by_element(node)
        if tensor not in self._stored:
            return False
        block, store = self._stored[tensor]
        needed = post_order(makers(block), [store.operand])
        return all(isinstance(n, ir.Load) or _is_by_element(n) for n in needed)


def without_twins(block: ir.BlockGraph) -> ir.BlockGraph:
    """The block with one of all loads that are equal, and of all operators.

    Also of those with their operands swapped where that changes nothing.
    """
    first, names = dict[ir.ValueNode, str](), dict[str, str]()

    def kept(node: ir.BlockNode) -> list[ir.BlockNode]:
        node = with_operands(node, names)
        if not isinstance(node, ir.Load | ir.Apply):
            return [node]
        alike = replace(node, result="")
        if isinstance(alike, ir.Apply) and alike.op.commutative:
            alike = replace(alike, operands=tuple(sorted(alike.operands, key=str)))
        known = first.setdefault(alike, node.result)
        if known != node.result:
            names[node.result] = known
        return [node] if known == node.result else []

    return map_nodes(block, kept)


def _is_by_element(node: ir.ValueNode) -> bool:
    """Whether a node computes each element of one of each operand."""
    return isinstance(node, ir.Apply) and node.op.kind is Kind.ELEMENTWISE
