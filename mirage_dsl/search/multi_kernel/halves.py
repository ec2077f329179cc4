"""A program with some summed dims cut in two, so that partial sums are values of it.

A dim `k` becomes `k#`, the number of the part, and `k'`, the index within the part.
A sum over `k` is one over both; a sum over `k'` alone is a partial result, which a
later kernel sums over `k#`.  Splitting `k` between blocks is a grid over `k#`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_dsl.core.types import Axis, Dim, TensorType
from mirage_dsl.ir.graph import Apply, Attrs, Input, KernelGraph, Return, partial_dim
from mirage_dsl.ir.infer import library_dims
from mirage_dsl.ops.definition import Kind

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
        return partial_dim(self.dim)

    @property
    def within(self) -> str:
        """The index within the part."""
        return f"{self.dim}'"


def cut_dims(program: KernelGraph) -> tuple[Halves, ...]:
    """The summed dims that are worth splitting between blocks, longest first.

    Of a long sum over several short dims, as those of groups and within groups, it is
    the outermost.  Dims that a view or a concatenation makes or changes stay whole:
    these know them by name.
    """
    sums: list[tuple[str, ...]] = []
    viewed: set[str] = set()
    for node in program.nodes:
        assert isinstance(node, Apply)
        viewed.update(node.along)
        if node.op.kind is Kind.LIBRARY:
            viewed.update(library_dims(node))
        elif node.op.kind in (Kind.VIEW, Kind.CONCAT):
            for _, value in node.attrs:
                viewed.update(value if isinstance(value, tuple) else (str(value),))
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


def with_halves(program: KernelGraph, cut: Iterable[Halves]) -> KernelGraph:
    """The program over the halves of some dims."""
    names = {h.dim: h for h in cut}
    extents = dict(program.extents)
    others = beside([n.over for n in program.applies], lambda d: extents[d] or 1)
    for dim, half in names.items():
        whole = extents[dim] or 1
        short = SHORTEST_PART if whole >= LONG else SHORTEST_PART // others[dim]
        extents[half.part] = max(1, min(MOST_PARTS, whole // max(1, short)))
        extents[half.within] = -(-whole // (extents[half.part] or 1))
    inputs = tuple(Input(i.name, _cut_type(i.type, names)) for i in program.inputs)
    nodes = tuple(
        replace(n, attrs=_cut_attrs(n, names)) if isinstance(n, Apply) else n
        for n in program.nodes
    )
    returns = tuple(Return(r.value, _cut_type(r.type, names)) for r in program.returns)
    indices = tuple(replace(i, axis=_cut_axis(i.axis, names)) for i in program.indices)
    return KernelGraph(
        program.name, inputs, nodes, returns, tuple(sorted(extents.items())), indices
    )


def _cut_type(whole: TensorType, names: Mapping[str, Halves]) -> TensorType:
    return replace(whole, axes=tuple(_cut_axis(a, names) for a in whole.axes))


def _cut_axis(axis: Axis, names: Mapping[str, Halves]) -> Axis:
    found: list[Dim] = []
    for dim in axis:
        half = names.get(dim.name)
        both = (dim.name,) if half is None else (half.part, half.within)
        found += [replace(dim, name=n) for n in both]
    return tuple(found)


def _cut_attrs(node: Apply, names: Mapping[str, Halves]) -> Attrs:
    if not node.over:
        return node.attrs
    over: list[str] = []
    for dim in node.over:
        half = names.get(dim)
        over += [dim] if half is None else [half.part, half.within]
    return tuple((k, tuple(over) if k == "over" else v) for k, v in node.attrs)


def rejoined(nodes: Iterable[Apply], half: Halves) -> list[Apply]:
    """The nodes over the whole dim again, without those that know its parts."""
    kept: list[Apply] = []
    dropped: set[str] = set()
    for node in nodes:
        both = [n for n in node.over if n in (half.part, half.within)]
        if len(both) == 1 or not dropped.isdisjoint(node.values):
            dropped.add(node.result)
            continue
        over = tuple(
            half.dim if n == half.part else n for n in node.over if n != half.within
        )
        attrs = tuple((k, over if k == "over" else v) for k, v in node.attrs)
        kept.append(replace(node, attrs=attrs))
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
