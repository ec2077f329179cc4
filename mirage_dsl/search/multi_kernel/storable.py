"""Tensors that one kernel may store for another: all useful values of the program.

The closure without grid and loop holds every value of every equivalent program.  Those
from which the outputs can be reached are worth storing; so are their partial sums over
one cut dim.  Each becomes a value of the program with a definition of its own, by which
every later closure knows its residues and its fingerprint.

For partial sums to be values of the program, some summed dims are cut in two.  A dim
`k` becomes `k#`, the number of the part, and `k'`, the index within the part.  A sum
over `k` is one over both; a sum over `k'` alone is a partial result, which a later
kernel sums over `k#`.  Splitting `k` between blocks is a grid over `k#`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.types import (
    Axis,
    Dim,
    DType,
    Scalar,
    TensorType,
    f16,
    f32,
    promote,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.bounds import (
    Degree,
    NotHomogeneousError,
    applied,
    scaling_of,
)
from mirage_dsl.ir.canonical import Apart, longer_name
from mirage_dsl.ir.infer import apply_type, kernel_types, library_dims
from mirage_dsl.ir.walk import values_of
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.search.budget import UNLIMITED, Budget
from mirage_dsl.search.closure import (
    CONSTANT,
    FUNCTION,
    LOAD,
    NAMES,
    SUM,
    Ints,
    Saturation,
    Workspace,
    saturate,
)
from mirage_dsl.search.space import Output, Space, Value, space_of
from mirage_dsl.search.structures import ROW_OF

# -- Dims cut in two -------------------------------------------------------------------

SHORTEST_PART = 64
MOST_PARTS = 16
"""Placeholders for the extents of the halves of a dim: they only rank structures."""

LONG = 4 * SHORTEST_PART
"""Elements of a sum that is worth splitting between blocks."""

MOST_CUT_DIMS = 3
"""Summed dims that may be split between blocks, the longest ones."""


@dataclass(frozen=True)
class Halves:
    """The names of the two halves of a dim."""

    dim: str

    @property
    def part(self) -> str:
        """The number of the part."""
        return ir.partial_dim(self.dim)

    @property
    def within(self) -> str:
        """The index within the part."""
        return f"{self.dim}'"


def cut_dims(program: ir.KernelGraph) -> tuple[Halves, ...]:
    """The summed dims that are worth splitting between blocks, longest first.

    Of a long sum over several short dims, as those of groups and within groups, it is
    the outermost.  Dims that a view or a concatenation makes or changes stay whole:
    these know them by name.
    """
    sums: list[tuple[str, ...]] = []
    viewed: set[str] = set()
    for node in program.applies:
        viewed.update(node.along)
        if node.op.kind is Kind.LIBRARY:
            viewed.update(library_dims(node))
        elif node.op.kind in (Kind.VIEW, Kind.CONCAT):
            viewed.update(n for _, value in node.attrs for n in ir.named_in(value))
        elif node.op.kind in (Kind.REDUCTION, Kind.CONTRACTION):
            sums.append(node.over)
    length = {d: program.extent_of[d] or 0 for over in sums for d in over}
    long = [d for d in length if d not in viewed and length[d] >= LONG]
    for over in sums:
        lengths = [length[d] for d in over]
        if all(n < LONG for n in lengths) and math.prod(lengths) >= LONG:
            outer = [d for d in over if d not in viewed and length[d] >= MOST_PARTS]
            long += [d for d in outer[:1] if d not in long]
    long.sort(key=lambda d: -length[d])
    return tuple(Halves(d) for d in long[:MOST_CUT_DIMS])


def beside(
    sums: Iterable[Sequence[str]], extent: Callable[[str], int]
) -> dict[str, int]:
    """How many elements sums add for each index of a dim; the fewest, if it varies."""
    found: dict[str, int] = {}
    for over in sums:
        for dim in over:
            others = math.prod(extent(d) for d in over if d != dim)
            found[dim] = min(found.get(dim, others), others)
    return found


def with_halves(program: ir.KernelGraph, cut: Iterable[Halves]) -> ir.KernelGraph:
    """The program over the halves of some dims."""
    names = {h.dim: h for h in cut}
    extents = dict(program.extents)
    others = beside([n.over for n in program.applies], lambda d: extents[d] or 1)
    for dim, half in names.items():
        whole = extents[dim] or 1
        short = SHORTEST_PART if whole >= LONG else SHORTEST_PART // others[dim]
        extents[half.part] = max(1, min(MOST_PARTS, whole // max(1, short)))
        extents[half.within] = -(-whole // (extents[half.part] or 1))
    apart = Apart({dim: (half.part, half.within) for dim, half in names.items()})
    return replace(
        program,
        inputs=tuple(ir.Input(i.name, apart.type(i.type)) for i in program.inputs),
        nodes=tuple(n.summing(apart.names(n.over)) for n in program.applies),
        returns=tuple(ir.Return(r.value, apart.type(r.type)) for r in program.returns),
        indices=tuple(replace(i, axis=apart.axis(i.axis)) for i in program.indices),
        extents=tuple(sorted(extents.items())),
    )


def rejoined(nodes: Iterable[ir.Apply], half: Halves) -> list[ir.Apply]:
    """The nodes over the whole dim again, without those that know its parts."""
    kept: list[ir.Apply] = []
    dropped: set[str] = set()
    for node in nodes:
        both = [n for n in node.over if n in (half.part, half.within)]
        if len(both) == 1 or not dropped.isdisjoint(node.values):
            dropped.add(node.result)
            continue
        over = tuple(
            half.dim if n == half.part else n for n in node.over if n != half.within
        )
        kept.append(node.summing(over))
    return kept


@dataclass(frozen=True)
class Joining:
    """Back from halves to dims, for one kernel."""

    cut: tuple[Halves, ...]

    def name(self, name: str) -> str:
        """The dim that a split of a half splits."""
        for half in self.cut:
            if name in (half.part, half.within):
                return half.dim
        return name

    def over(self, names: tuple[str, ...], gridded: frozenset[str]) -> tuple[str, ...]:
        """The dims that a reduction of halves sums.

        `gridded` are the parts that the grid numbers: there a sum within the part is
        all that the block sees of the dim.
        """
        inside = {h.within: h for h in self.cut}
        kept: list[str] = []
        for name in names:
            half = inside.get(name)
            if half is not None:
                kept.append(half.dim)
        within = {inside[n].part for n in names if n in inside}
        for name in names:
            if name not in inside and name not in within:
                assert name not in gridded
                kept.append(name)
        return tuple(kept)

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Axes with the halves of each dim joined to a piece of it."""
        return tuple(self._axis(axis) for axis in axes)

    def _axis(self, axis: Axis) -> Axis:
        by_name = {d.name: d for d in axis}
        found: list[Dim] = []
        for dim in axis:
            half = next((h for h in self.cut if dim.name in (h.part, h.within)), None)
            if half is None:
                found.append(dim)
            elif dim.name == half.within:
                grid = by_name[half.part].grid if half.part in by_name else True
                found.append(Dim(half.dim, grid, dim.loop))
            elif half.within not in by_name:
                found.append(dim)
        return tuple(found)


# -- Exponentials that must not be stored ----------------------------------------------
# A shift is put back into the block that sums the exponential.  So a value that
# scales with an exponential, and still has the dim over which it will be summed,
# can only stay inside of a block; sums, and partial sums, can be stored beside
# their maxima.


@dataclass(frozen=True)
class Exponentials:
    """What scales with the exponentials of a program whose shifts are stripped.

    Attributes:
        large: Values that must not be stored.
        shifts: What makes a kernel choose a shift, each by a number: an exponential,
            or a tensor of its partial sums, which is weighted by one where it is read.
    """

    large: frozenset[str] = frozenset()
    shifts: Mapping[str, int] = field(default_factory=dict[str, int])


def exponentials(
    halved: ir.KernelGraph, definitions: Sequence[ir.Apply]
) -> Exponentials:
    """Follow every exponential.

    Args:
        halved: The program over halves.
        definitions: Its operators, and those of further values.
    """
    types = kernel_types(replace(halved, nodes=tuple(definitions)))
    parts = {n for n in halved.extent_of if n.endswith("#")}
    large: set[str] = set()
    shifts: dict[str, int] = {}
    products = any(n.op.kind is Kind.CONTRACTION for n in halved.applies)
    for number, node in enumerate(halved.nodes):
        if not isinstance(node, ir.Apply) or node.op is not table.EXP:
            continue
        try:
            summed = set(scaling_of(halved, number, node.result).summed)
        except NotHomogeneousError:
            continue
        shifts.setdefault(node.result, 4 * number + products)
        for name in _scaled(node.result, definitions):
            names = set(types[name].names)
            if (summed - parts) & names:
                large.add(name)
            elif summed & parts & names:
                shifts.setdefault(name, 4 * number + 3)
    return Exponentials(frozenset(large), shifts)


def done_once(shift: Ints) -> NDArray[np.bool_]:
    """Which numbers of shifts are of what one kernel has to do.

    Partial sums are combined in one.  Without products an exponential may be computed
    in several: a later one shifts it as what it is joined to (`rewrite.shifts`).  With
    products that has found nothing so far, and what is proved would take longer.
    """
    return (shift >= 0) & (shift % 2 == 1)


def _scaled(exponential: str, definitions: Sequence[ir.Apply]) -> set[str]:
    """Values that scale with an exponential."""
    degrees: dict[str, Degree] = {exponential: 1}
    for node in definitions:
        if node.result == exponential:
            continue
        try:
            degrees[node.result] = applied(node, degrees)
        except NotHomogeneousError:
            # Neither with it nor without it: as bad.
            degrees[node.result] = 1
    return {name for name, degree in degrees.items() if degree}


# -- Tensors that may be stored --------------------------------------------------------

MOST_TENSORS = 96
"""Tensors between kernels beyond which the largest are left out."""

MOST_VALUES = 400
"""Values of all equivalent programs beyond which only the program's own are looked at.

Long runs of sums and products of one shape have thousands, nearly all of them the
program in another order, and each would be there once for every kernel and layer."""


@dataclass(frozen=True)
class Candidates:
    """A program with its storable values.

    Attributes:
        program: The program without shifts.
        cut: Dims of which partial sums are known.
        definitions: The operators of the program, over halves, and of the values.
        names: Of the values.
        shifts: What makes a kernel choose a shift (`exponentials`).
        own: Whether kernels compute the program's own values only.
        complete: Whether none was left out.
        counters: Figures for the ledger.
    """

    program: ir.KernelGraph
    cut: tuple[Halves, ...]
    definitions: tuple[ir.Apply, ...]
    names: tuple[str, ...]
    shifts: Mapping[str, int]
    own: bool
    complete: bool
    counters: dict[str, int]

    @property
    def formats(self) -> dict[str, DType]:
        """The format of each value in the unfused program."""
        halved = with_halves(self.program, self.cut)
        types = kernel_types(replace(halved, nodes=self.definitions))
        return {name: types[name].dtype for name in self.names}

    def space(self, whole: Halves | None = None) -> Space:
        """The space in which all values, and the outputs, may be read and stored.

        With `whole`, that dim is not cut, and values partial in it are left out.
        """
        cut = tuple(h for h in self.cut if h != whole)
        base, halved = space_with_halves(self.program, cut)
        nodes = self.definitions
        if whole is not None:
            nodes = tuple(rejoined(nodes, whole))
        known = {n.result for n in nodes}
        names = tuple(n for n in self.names if n in known)
        return _extended_space(base, replace(halved, nodes=nodes), names)


def space_with_halves(
    program: ir.KernelGraph, cut: tuple[Halves, ...]
) -> tuple[Space, ir.KernelGraph]:
    """The space of a program over halves, all its values being outputs."""
    halved = with_halves(program, cut)
    space = space_of(halved)
    pairs = tuple(
        (space.dims.index(h.part), space.dims.index(h.within))
        for h in cut
        if h.part in space.dims
    )
    return replace(space, halves=pairs), halved


def candidates(
    program: ir.KernelGraph,
    cut: tuple[Halves, ...],
    w: Workspace,
    *,
    unshifted: bool = False,
    seed: int = 0,
    budget: Budget = UNLIMITED,
) -> Candidates:
    """The storable values of a program without shifts.

    Args:
        program: Primitive operators only.
        cut: Dims that may be split between blocks where they are summed.
        w: Arrays of the closure.
        unshifted: Whether exponentials had shifts; then they are not stored.
        seed: Of the closure.
        budget: Of the closure.

    Raises:
        UnsupportedError: A value that no block graph can compute.
    """
    space, halved = space_with_halves(program, cut)
    everything = _all_values(space)
    targets = len(space.outputs)
    plain = saturate(everything, None, w, seed=seed, budget=budget)
    own = len(plain.shape) > MOST_VALUES
    if own:
        plain = saturate(everything, None, w, seed=seed, budget=budget, own=True)
    chooser = _Chooser(everything, plain, targets)
    wanted = chooser.wanted()
    kept = chooser.smallest(wanted)
    definer = _Definer(chooser, halved)
    names = tuple(definer.name(n) for n in kept)
    shifts: Mapping[str, int] = {}
    if unshifted:
        found = exponentials(halved, definer.nodes)
        names, shifts = tuple(n for n in names if n not in found.large), found.shifts
    return Candidates(
        program,
        cut,
        tuple(definer.nodes),
        names,
        shifts,
        own,
        plain.complete and len(kept) == len(wanted),
        {
            **{f"plain_{k}": v for k, v in plain.counters.items() if k == "nodes"},
            "tensors_between_kernels": len(names),
        },
    )


def _all_values(space: Space) -> Space:
    """The space with every value as an output, the program's first."""
    returned = {o.value for o in space.outputs}
    others = tuple(
        Output(i, v.name, v.type)
        for i, v in enumerate(space.values)
        if v.op is not None and v.type is not None and i not in returned
    )
    outputs = (*space.outputs, *others)
    return replace(space, outputs=outputs, targets=len(space.outputs))


class _Chooser:
    """Finds the nodes of the plain closure that are worth storing."""

    def __init__(self, space: Space, plain: Saturation, targets: int) -> None:
        self.space, self.plain = space, plain
        self.names = [int(s) & NAMES for s in plain.shape]
        self.roots = {n for some in plain.roots[:targets] for n in some}

    def partial(self, node: int) -> int:
        """The mask of the parts of a partial value; 0 of a whole one."""
        found = 0
        for part, within in self.space.halves:
            if self.names[node] >> part & 1 and not self.names[node] >> within & 1:
                found |= 1 << part
        return found

    def wanted(self) -> list[int]:
        """Whole values that help to reach the outputs, and their partial sums."""
        edges = self.plain.edges.tolist()
        ways: dict[int, list[list[int]]] = {}
        seeds: set[int] = set()
        for node, kind, a, b, c, _ in edges:
            ways.setdefault(node, []).append([o for o in (a, b, c) if o >= 0])
            if kind in (LOAD, CONSTANT):
                seeds.add(node)
        whole = {n for n in range(len(self.names)) if not self.partial(n)}
        reached = set(self.roots)
        stack = list(reached)
        while stack:
            for way in ways[stack.pop()]:
                if whole.issuperset(way):
                    stack.extend(set(way) - reached)
                    reached.update(way)
        parts = {
            a
            for node, kind, a, _, _, over in edges
            if kind == SUM and node in reached and self.partial(a) == over
        }
        return sorted((reached | parts) - seeds)

    def smallest(self, wanted: list[int]) -> list[int]:
        """As many as there may be: the program's own, then the smallest ones."""
        own = {n for some in self.plain.roots for n in some}
        order = sorted(wanted, key=lambda n: (n not in own, self.elements(n), n))
        return sorted(order[:MOST_TENSORS])

    def elements(self, node: int) -> float:
        names = self.space.names(self.names[node])
        return float(np.prod([float(self.space.extent(n)) for n in names]))


class _Definer:
    """Gives nodes of the plain closure names, and kernel-level definitions.

    A node is defined by its first edge, whose operands are older than the node, and not
    partial if that is possible.
    """

    def __init__(self, chooser: _Chooser, halved: ir.KernelGraph) -> None:
        space, plain = chooser.space, chooser.plain
        self.space, self.plain = space, plain
        self.nodes = [*halved.applies]
        self.types = dict(kernel_types(halved))
        self.taken = values_of(halved)
        self.known: dict[int, str | Scalar] = {}
        for output, nodes in zip(space.outputs, plain.roots, strict=True):
            name = space.values[output.value].name
            self.known.update(dict.fromkeys(nodes, name))
        self.first: dict[int, list[int]] = {}
        self.whole: dict[int, list[int]] = {}
        edges: list[list[int]] = plain.edges.tolist()
        for row in edges:
            self.first.setdefault(row[0], row)
            if max(row[2:5]) < row[0] and not any(
                chooser.partial(o) for o in row[2:5] if o >= 0
            ):
                self.whole.setdefault(row[0], row)
            if row[1] in (LOAD, CONSTANT):
                value = space.values[row[5]]
                self.known[row[0]] = value.constant or value.name

    def name(self, node: int) -> str:
        """The name of a node's value, defined if it has no definition yet."""
        found = self.operand(node)
        assert isinstance(found, str)
        return found

    def operand(self, node: int) -> str | Scalar:
        """The same, or a constant."""
        if node not in self.known:
            self.known[node] = self.define(node)
        return self.known[node]

    def define(self, node: int) -> str:
        _, kind, a, b, c, arg = self.whole.get(node, self.first[node])
        operands = tuple(self.operand(o) for o in (a, b, c) if o >= 0)
        if kind == FUNCTION:
            value = self.space.values[self.plain.sites[arg]]
            assert value.op is not None
            op, over = value.op, self.plain.site_over[arg]
            attrs = self.space.attributes(over, self.plain.site_along[arg])
        else:
            op = ROW_OF[kind]
            attrs = self.space.attributes(arg if "over" in op.attributes else 0)
        operands = self.wide(operands)
        if op.kind is Kind.CONTRACTION:
            op, operands = self.product(f"u{node}_each", op, operands)
        return self.add(ir.Apply(f"u{node}", op, operands, attrs))

    def product(
        self, each: str, op: Operator, operands: tuple[str | Scalar, ...]
    ) -> tuple[Operator, tuple[str | Scalar, ...]]:
        """A product of floats of one format; of integers the sum of what is multiplied.

        Closures know values, which have no format.
        """
        names = [o for o in operands if isinstance(o, str)]
        wide = promote(*(self.types[n].dtype for n in names))
        if wide.is_integer:
            return table.SUM, (self.add(ir.Apply(each, table.MUL, operands)),)
        return op, tuple(self.cast(n, wide) for n in names)

    def wide(self, operands: tuple[str | Scalar, ...]) -> tuple[str | Scalar, ...]:
        """The operands, those that are only stored in f16, which holds them all."""
        return tuple(
            self.cast(o, f16)
            if isinstance(o, str) and self.types[o].dtype.only_stores
            else o
            for o in operands
        )

    def cast(self, name: str, dtype: DType) -> str:
        """The value in another format of floats."""
        if self.types[name].dtype == dtype:
            return name
        attrs = (("dtype", dtype.name),)
        return self.add(ir.Apply(f"{name}_{dtype}", table.CAST, (name,), attrs))

    def add(self, node: ir.Apply) -> str:
        """Append a definition under a free name, which is returned."""
        name = longer_name(node.result, self.taken)
        node = replace(node, result=name)
        types = [self.types[v] for v in node.values]
        self.types[name] = apply_type(node, types, in_block=False)
        self.nodes.append(node)
        return name


def _extended_space(
    space: Space, extended: ir.KernelGraph, names: tuple[str, ...]
) -> Space:
    """The space of the extended program, in which the named values may be stored."""
    own = {v.name for v in space.values}
    types = kernel_types(extended)
    targets = [space.values[o.value].name for o in space.outputs]
    wanted = dict.fromkeys((*targets, *names))
    found = space_of(
        replace(extended, returns=tuple(ir.Return(n, types[n]) for n in wanted))
    )
    index = {v.name: i for i, v in enumerate(found.values)}
    values = [_with_joined_halves(v, space) if v.is_load else v for v in found.values]
    for name in wanted:
        value = values[index[name]]
        assert value.type is not None
        own_format = value.type.dtype.is_integer or value.type.dtype.only_stores
        kept = name in own or own_format
        stored = value.type if kept else value.type.with_dtype(f32)
        values[index[name]] = replace(value, type=_stored_type(stored, space))
    returned = {r.value: r.type for r in space.program.returns}
    for output in space.outputs:
        at = index[space.values[output.value].name]
        values[at] = replace(values[at], type=returned[output.name])
    halves = tuple(
        (found.dims.index(space.dims[a]), found.dims.index(space.dims[b]))
        for a, b in space.halves
    )
    outputs = tuple(Output(index[n], n, _type_of(values[index[n]])) for n in wanted)
    return Space(
        found.program,
        found.dims,
        tuple(values),
        outputs,
        frozenset(index[n] for n in wanted),
        halves,
        len(targets),
    )


def _type_of(value: Value) -> TensorType:
    assert value.type is not None
    return value.type


def _with_joined_halves(tensor: Value, space: Space) -> Value:
    """The halves of a dim on one axis, also of a view: it has those of its operand."""
    parts = {space.dims[b]: space.dims[a] for a, b in space.halves}
    kind = _type_of(tensor)
    joined = any(len(axis) > 1 for axis in kind.axes)
    if joined or parts.keys().isdisjoint(kind.names):
        return tensor
    axes: dict[str, Axis] = {}
    for dim in kind.dims:
        first = parts.get(dim.name, dim.name)
        axes[first] = (*axes.get(first, ()), dim)
    return replace(tensor, type=replace(kind, axes=tuple(axes.values())))


def _stored_type(whole: TensorType, space: Space) -> TensorType:
    """One dim per axis, the halves of a dim on one; numbers of parts come first."""
    order = {n: i for i, n in enumerate(space.outputs[0].type.names)}
    names = sorted(whole.names, key=lambda n: order.get(n, len(order)))
    parts = {space.dims[a]: space.dims[b] for a, b in space.halves}
    first: list[Axis] = []
    rest: list[Axis] = []
    for name in names:
        if name in parts.values():
            continue
        within = parts.get(name)
        if within is None:
            rest.append((Dim(name),))
        elif within in names:
            rest.append((Dim(name), Dim(within)))
        else:
            first.append((Dim(name),))
    return replace(whole, axes=(*first, *rest))
