"""Small sizes at which a candidate and its program are compared.

Every loop gets at least three iterations and every split three parts: bugs of loops
pass unseen at two.  Dims that may differ do differ.  Tiles have at least two elements.
One set of sizes is a multiple of the tiles; the other leaves ragged tiles, and every
dim has another size in it, so that no number stands for an extent in both.

Values of many dims would be large then.  There dims may be equally long in one of the
two sets, but no two dims are in both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import (
    Axis,
    Dim,
    MemorySpace,
    Scalar,
    TensorType,
    axis_text,
    flat_type,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.integers import (
    Compared,
    compared_positions,
    indexed_too_short,
)
from mirage_dsl.ir.analysis.layouts import PAIR
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.infer import kernel_types, library_dims
from mirage_dsl.ir.maps import (
    derived_extents,
    known_extents,
    loops_inside_grid,
    partial_base,
    products,
    renamings,
    view_nodes,
)
from mirage_dsl.ir.walk import map_nodes, operands_of, results_of
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import FLATTEN, LESS, LESS_EQUAL, WHERE
from mirage_dsl.tile.build import paired_dims
from mirage_dsl.verify.constants import brought_together, literals, with_literals

# -- What two graphs have in common ----------------------------------------------------

Correspondence = tuple[Axis, Axis]
"""An axis of the program and the same axis of the candidate."""


def _counted(graph: ir.KernelGraph) -> frozenset[str]:
    """The positions of a graph."""
    return frozenset(index.name for index in graph.indices)


def _names(graph: ir.KernelGraph, values: AbstractSet[str]) -> set[str]:
    """The dims that some values of a graph have."""
    types = kernel_types(graph)
    return {n for value in values for n in types[value].names}


def interface_difference(
    candidate: ir.KernelGraph, program: ir.KernelGraph
) -> str | None:
    """What differs between the interfaces of two graphs, or None."""
    for what, theirs, ours in (
        ("inputs", candidate.inputs, program.inputs),
        ("outputs", candidate.returns, program.returns),
    ):
        if len(theirs) != len(ours):
            return (
                f"the candidate has {len(theirs)} {what}, the program has {len(ours)}"
            )
    for what, theirs, ours in _interface_types(candidate, program):
        difference = _type_difference(candidate, theirs, program, ours)
        if difference is not None:
            return f"{what}: {difference}"
    return None


def corresponding_axes(
    candidate: ir.KernelGraph, program: ir.KernelGraph
) -> list[Correspondence]:
    """All axes of the interface, those of the program first in each pair."""
    return [
        (ours, theirs)
        for _, theirs_type, ours_type in _interface_types(candidate, program)
        for ours, theirs in zip(ours_type.axes, theirs_type.axes, strict=True)
    ]


def _interface_types(
    candidate: ir.KernelGraph, program: ir.KernelGraph
) -> Iterator[tuple[str, TensorType, TensorType]]:
    for i, (a, b) in enumerate(zip(candidate.inputs, program.inputs, strict=True)):
        yield f"input {i} ({b.name})", a.type, b.type
    for i, (a, b) in enumerate(zip(candidate.returns, program.returns, strict=True)):
        yield f"output {i} ({b.value})", a.type, b.type


def _type_difference(
    candidate: ir.KernelGraph,
    theirs: TensorType,
    program: ir.KernelGraph,
    ours: TensorType,
) -> str | None:
    if theirs.dtype != ours.dtype:
        return f"{theirs.dtype} in the candidate, {ours.dtype} in the program"
    if len(theirs.axes) != len(ours.axes):
        return f"{theirs} in the candidate, {ours} in the program"
    for i, (a, b) in enumerate(zip(theirs.axes, ours.axes, strict=True)):
        found, expected = _extent(candidate, a), _extent(program, b)
        if found != expected:
            return (
                f"axis {i} is {axis_text(a)} = {found or '?'} in the candidate, "
                f"{axis_text(b)} = {expected or '?'} in the program"
            )
    return None


def _extent(graph: ir.KernelGraph, axis: Axis) -> int | None:
    extent = 1
    for dim in axis:
        known = graph.extent_of.get(dim.name)
        if known is None:
            return None
        extent *= known
    return extent


# -- How the extents of two graphs hang together ---------------------------------------
# Dims of both graphs fall into classes of equal extent: dims of corresponding axes, and
# a dim and its renaming.  A dim that is sliced, joined or sliced from is cut into
# *segments* at all places where a slice or a join begins or ends; segments that show
# the same elements are one.  Any sizes of the segments keep both graphs consistent.

Key = tuple[int, str]
"""Side (0: program, 1: candidate) and name of a dim."""

Root = tuple[object, ...]
"""What stands for a class."""

_MOST_CUTS = 64


class Classes:
    """Disjoint sets of keys."""

    def __init__(self) -> None:
        self._parent: dict[tuple[object, ...], tuple[object, ...]] = {}

    def find(self, key: tuple[object, ...]) -> tuple[object, ...]:
        """The representative of a key's set."""
        parent = self._parent.setdefault(key, key)
        if parent == key:
            return key
        root = self.find(parent)
        self._parent[key] = root
        return root

    def join(self, a: tuple[object, ...], b: tuple[object, ...]) -> None:
        """Unite two sets."""
        self._parent[self.find(a)] = self.find(b)


@dataclass(frozen=True)
class Part:
    """The dim `target` is the elements of `source` from `start` to before `stop`."""

    source: Key
    start: int
    stop: int
    target: Key


def parts_of(graph: ir.KernelGraph, side: int) -> Iterator[Part]:
    """Slices and joins as parts, in true extents; an inserted dim is its own part."""
    for node, split in view_nodes(graph):
        attrs = dict(node.attrs)
        to, dims = attrs.get("to"), attrs.get("dims")
        sliced = node.sliced
        if sliced is not None:
            bounds = sliced.bounds(_bound_of(graph, sliced))
            yield Part((side, sliced.dim), *bounds, (side, sliced.to))
        elif isinstance(to, str) and isinstance(dims, tuple):
            if not split.isdisjoint(dims):
                continue
            offset = 0
            for dim in dims:
                extent = _known(graph, dim)
                yield Part((side, to), offset, offset + extent, (side, dim))
                offset += extent
        elif set(attrs) == {"to"}:
            yield Part((side, str(to)), 0, 1, (side, str(to)))


def _bound_of(graph: ir.KernelGraph, sliced: ir.PartOfDim) -> int:
    """The extent of what is sliced, where the slice depends on it."""
    return _known(graph, sliced.dim) if sliced.from_end else 0


def _known(graph: ir.KernelGraph, dim: str) -> int:
    extent = graph.extent_of.get(dim)
    if extent is None:
        raise UnsupportedError(
            f"verification needs the extent of {dim}, which is sliced or joined; "
            "state it"
        )
    return extent


def _by_source(parts: Sequence[Part]) -> dict[Key, list[Part]]:
    """The parts of each dim, in the order of its elements."""
    found: dict[Key, list[Part]] = {}
    for part in sorted(parts, key=lambda p: (p.start, p.stop)):
        found.setdefault(part.source, []).append(part)
    return found


class ManyPiecesError(UnsupportedError):
    """Slices cut a dim into too many segments."""


class Segments:
    """The segments of all dims, given their true extents and parts."""

    def __init__(
        self, graphs: Sequence[ir.KernelGraph], classes: Classes, parts: Sequence[Part]
    ) -> None:
        self._classes = classes
        self._same = Classes()
        self._cuts: dict[tuple[object, ...], list[int]] = {}
        for part in parts:
            for key in (part.source, part.target):
                extent = _known(graphs[key[0]], key[1])
                self._cuts.setdefault(classes.find(key), [0, extent])
        while any(self._spread(part) for part in parts):
            pass
        for part in parts:
            self._unify(part)
        self._inserted = {
            s for p in parts if p.source == p.target for s in self.of(p.source)
        }

    def _spread(self, part: Part) -> bool:
        """Carry cuts between a part and its source; whether that made new ones."""
        source = self._cuts[self._classes.find(part.source)]
        target = self._cuts[self._classes.find(part.target)]
        down = {c - part.start for c in source if part.start <= c <= part.stop}
        up = {c + part.start for c in target} | {part.start, part.stop}
        new_target, new_source = sorted(down | set(target)), sorted(up | set(source))
        changed = len(new_target) > len(target) or len(new_source) > len(source)
        target[:], source[:] = new_target, new_source
        if len(source) > _MOST_CUTS:
            raise ManyPiecesError(
                f"the slices of {part.source[1]} cut it into more than {_MOST_CUTS} "
                "pieces, too many to verify at small sizes"
            )
        return changed

    def _unify(self, part: Part) -> None:
        source, target = (
            self._classes.find(part.source),
            self._classes.find(part.target),
        )
        first = self._cuts[source].index(part.start)
        for i in range(len(self._cuts[target]) - 1):
            self._same.join((target, i), (source, first + i))

    def cuts(self, key: Key) -> list[int]:
        """Where a dim is cut, its ends included; empty for a dim without cuts."""
        return self._cuts.get(self._classes.find(key), [])

    def of(self, key: Key) -> list[tuple[object, ...]]:
        """The segments of a dim, in order."""
        root = self._classes.find(key)
        count = max(1, len(self._cuts.get(root, [])) - 1)
        return [self._same.find((root, i)) for i in range(count)]

    def lengths(self, key: Key, extent: int) -> list[int]:
        """How long the segments of a dim of this extent are in truth."""
        return [b - a for a, b in pairwise(self.cuts(key) or [0, extent])]

    def is_inserted(self, segment: tuple[object, ...]) -> bool:
        """Whether a segment is an inserted dim, one element long at any size."""
        return segment in self._inserted

    def is_single(self, key: Key, index: int) -> bool:
        """Whether a segment of a cut dim is one element long in truth."""
        cuts = self.cuts(key)
        return bool(cuts) and cuts[index + 1] - cuts[index] == 1


# Slices of one dim that are apart by less than they are long, `x[1:] - x[:-1]`, cut it
# everywhere: where one of them is cut, so is the other, one step further.  Then the dim
# and what is sliced of it first become shorter, all by as much: places near a dim's
# begin stay, those near its end keep their distance from it.  So a program of windows
# is that of shorter rows, which is cut into few segments.

_LEFT = 2
"""Elements that a shortened dim has at least, beside places that are told by number."""


def shortened(
    graphs: tuple[ir.KernelGraph, ir.KernelGraph],
    classes: Classes,
    parts: Sequence[Part],
    kept: Iterable[Key],
) -> tuple[ir.KernelGraph, ir.KernelGraph] | None:
    """Both graphs with long dims, that are sliced, shorter by the same number.

    Args:
        graphs: The program and the candidate.
        classes: Their dims of equal extent.
        parts: All slices and joins.
        kept: Dims whose extents have to stay.

    Returns:
        The graphs, or None if dims are not all as they have to be for that.
    """
    extent = {
        classes.find(key): _known(graphs[key[0]], key[1])
        for part in parts
        for key in (part.source, part.target)
    }
    shorter = _becoming_shorter(classes, parts, extent)
    if shorter is None or not shorter.isdisjoint(map(classes.find, kept)):
        return None
    by = min(extent[root] for root in shorter) - _LEFT
    for part in parts:
        root = classes.find(part.source)
        for place in (part.start, part.stop):
            near = place if _is_left(place, extent[root]) else extent[root] - place
            if root in shorter:
                by = min(by, extent[root] - near - _LEFT)
    if by <= 0:
        return None
    program, candidate = graphs
    return (
        _shorter(program, 0, classes, shorter, by),
        _shorter(candidate, 1, classes, shorter, by),
    )


def _is_left(place: int, extent: int) -> bool:
    """Whether a place is told by its distance from the begin of a dim."""
    return 2 * place < extent


def _becoming_shorter(
    classes: Classes, parts: Sequence[Part], extent: Mapping[Root, int]
) -> set[Root] | None:
    """The classes that have to become shorter; None if others had to stay for that.

    The longest one does, what goes from near its begin to near its end does, and what
    such a dim is a part of.
    """
    shorter = {max(extent, key=lambda root: extent[root])}
    staying: set[Root] = set()
    for _ in extent:
        for part in parts:
            source, target = classes.find(part.source), classes.find(part.target)
            if target in shorter:
                shorter.add(source)
            if source in shorter:
                begin = _is_left(part.start, extent[source])
                spans = begin and not _is_left(part.stop, extent[source])
                (shorter if spans else staying).add(target)
    return shorter if shorter.isdisjoint(staying) else None


def _shorter(
    graph: ir.KernelGraph, side: int, classes: Classes, shorter: set[Root], by: int
) -> ir.KernelGraph:
    """A graph whose dims of some classes have so many fewer elements."""
    extents = {
        name: extent - by
        for name, extent in graph.extent_of.items()
        if extent is not None and classes.find((side, name)) in shorter
    }

    def moved(node: Any) -> Any:
        if isinstance(node, ir.BlockGraph):
            return map_nodes(node, moved)
        sliced = node.sliced if isinstance(node, ir.Apply) else None
        if sliced is None or sliced.dim not in extents:
            return node
        extent = extents[sliced.dim] + by
        places = sliced.bounds(extent)
        return _cut(node, *(p if _is_left(p, extent) else p - by for p in places))

    return map_nodes(graph, moved).with_extents(extents)


def _cut(node: ir.Apply, start: int, stop: int) -> ir.Apply:
    """The slice with these bounds, counted from the front."""
    attrs = {**dict(node.attrs), "start": start, "stop": stop}
    return replace(node, attrs=tuple(sorted(attrs.items())))


# -- Small sizes -----------------------------------------------------------------------

_WHOLE = (2, 3, 4, 5, 7, 11, 13)
_SPLIT = (6, 8, 9, 10, 12, 14, 15, 16, 18, 20, 21, 22)
_TWICE = (18, 27, 24, 30, 36, 45, 42)
_RAGGED = (5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20)
_TINY = (5, 6, 7, 8, 9, 10, 11, 12)
_TINY_TWICE = (13, 14, 15, 16, 17, 18)
_FARTHEST = 64
"""What indices of one dim are apart at most, for which it is long enough."""
_FARTHEST_INDEX = 1024
"""The same of what nothing but an index makes longer: a table may be long."""
_LENGTHENED = 8
"""How often dims are made longer for what they are indexed by."""
_TIGHTENED = 4
"""How often dims are made as long for windows as in truth."""
_OVERHANG = 16
"""Windows end behind what they are windows of by so many elements at most."""
_SLACK = 3
"""Elements between the last window and the end of what it is one of, at most."""
_BEYOND = 2
"""Elements behind the farthest of such indices, so that they have places to be at."""
_ROW_OF_DATA = 16
"""Elements of a row of which a mask of data, that hides every other one, leaves some:
of hundreds of rows all have one."""
_WIDEST_GAP = 3
"""How far numbers beside positions are apart at most."""
_RAGGED_TWICE = (14, 13, 19, 16, 20, 22, 23)
_WIDE = ((2, 3), (3, 2), (2, 4), (4, 2), (3, 4), (4, 3), (2, 5), (5, 2), (3, 5), (5, 3))
_WIDE_SPLIT = ((6, 5), (6, 7), (8, 5), (6, 8), (8, 7), (9, 5), (9, 7), (10, 5), (10, 7))
"""Sizes of dims of wide values, whole and split: in the one set, and in the other."""
_LONGEST = 32
"""The most of a factor of a dim that is cut as well; its segments have the square."""
_EQUATION_EFFORT = 1.0
"""For such sizes, by the solver's own measure, which is about a second."""

MOST_ELEMENTS = 1 << 14
"""Elements of a value above which it is wide."""


@dataclass(frozen=True)
class Shrunk:
    """A program and a candidate at small sizes, with the same interface."""

    program: ir.KernelGraph
    candidate: ir.KernelGraph

    @property
    def sizes(self) -> dict[str, int]:
        """Extents of the program's dims, then of the candidate's own."""
        both = {**self.candidate.extent_of, **self.program.extent_of}
        return known_extents(both)


def shrink(
    candidate: ir.KernelGraph,
    program: ir.KernelGraph,
    *,
    ragged: bool,
    seed: int,
    tiny: bool = False,
    whole: bool = False,
) -> Shrunk:
    """Both graphs at small sizes.

    Args:
        candidate: Has the program's interface.
        program: The program.
        ragged: Leave the last tile of each split incomplete.
        seed: Decides which dim gets which size.
        tiny: As small as serves, for arithmetic that is slow.
        whole: No window of the program is outside as a whole, and no row masked, or
            hardly any by a mask that is data.

    Raises:
        UnsupportedError: The graphs relate extents in a way that cannot be shrunk.
    """
    if tiny:
        return _Shrinking(candidate, program, ragged, seed, tiny, whole).run({})
    even, other = _even(candidate, program, seed, whole)
    if not ragged:
        return even
    return _Shrinking(candidate, program, ragged, seed, tiny, whole).run(other)


@lru_cache(maxsize=4)
def _even(
    candidate: ir.KernelGraph, program: ir.KernelGraph, seed: int, whole: bool
) -> tuple[Shrunk, Mapping[tuple[object, ...], int]]:
    """Both graphs without incomplete tiles, and the sizes that ragged ones avoid."""
    shrinking = _Shrinking(candidate, program, False, seed, False, whole)
    shrunk = shrinking.run({})
    return shrunk, shrinking.sizes


def input_shape(graph: ir.KernelGraph, item: ir.Input) -> tuple[int, ...]:
    """The shape in which a caller passes an input."""
    return item.type.shape_at(known_extents(graph.extent_of))


class _Shrinking:
    def __init__(
        self,
        candidate: ir.KernelGraph,
        program: ir.KernelGraph,
        ragged: bool,
        seed: int,
        tiny: bool,
        whole: bool = False,
    ) -> None:
        self.graphs = (program, candidate)
        self.ragged = ragged
        self.tiny = tiny
        self.whole = whole
        self.seed = seed
        self.rng = np.random.default_rng([seed, int(ragged), 77])
        self.classes = Classes()
        self.products: list[tuple[Key, list[Key]]] = []
        for side, graph in enumerate(self.graphs):
            for old, new in renamings(graph):
                self.classes.join((side, old), (side, new))
        for ours, theirs in corresponding_axes(candidate, program):
            self._relate(ours, theirs)
        for side, graph in enumerate(self.graphs):
            for view in products(graph):
                factors: list[Key] = [(side, name) for name in view.factors]
                self.products.append(((side, view.whole), factors))
        self._relate_library()
        self._relate_constants()
        parts = self._all_parts()
        self._relate_cuts(parts)
        self.segments = self._segments(parts)
        self.sizes: dict[tuple[object, ...], int] = {}
        self.wide = False
        # By class, the least extent that indices beside each other ask for.
        self.least: dict[tuple[object, ...], int] = {}

    def _all_parts(self) -> list[Part]:
        return [p for side in (0, 1) for p in parts_of(self.graphs[side], side)]

    def _segments(self, parts: Sequence[Part]) -> Segments:
        """The segments, of shorter dims where there are too many."""
        try:
            return Segments(self.graphs, self.classes, parts)
        except ManyPiecesError:
            bound = [
                key for whole, factors in self.products for key in (whole, *factors)
            ]
            found = shortened(self.graphs, self.classes, parts, bound)
            if found is None:
                raise
        self.graphs = found
        return Segments(self.graphs, self.classes, self._all_parts())

    def _relate(self, ours: Axis, theirs: Axis) -> None:
        left: list[Key] = [(0, d.name) for d in ours]
        right: list[Key] = [(1, d.name) for d in theirs]
        if len(left) == len(right):
            for a, b in zip(left, right, strict=True):
                self._same_extent(a, b)
                self.classes.join(a, b)
        elif len(left) == 1:
            self.products.append((left[0], right))
        elif len(right) == 1:
            self.products.append((right[0], left))
        else:
            for one, other in self._alike(ours, theirs):
                self._relate(one, other)

    def _alike(self, ours: Axis, theirs: Axis) -> list[tuple[Axis, Axis]]:
        """An axis in parts that are as long on both sides, from the outermost on.

        Raises:
            UnsupportedError: In no part one of them is a dim alone.
        """
        program, candidate = (graph.extent_of for graph in self.graphs)
        sides = [(program, list(ours)), (candidate, list(theirs))]
        found: list[tuple[Axis, Axis]] = []
        while all(left for _, left in sides):
            own: tuple[list[Dim], list[Dim]] = ([], [])
            sizes = [1, 1]
            while not own[1] or sizes[0] != sizes[1]:
                at = int(sizes[1] < sizes[0] or (bool(own[0]) and not own[1]))
                extents, left = sides[at]
                if not left or (extent := extents.get(left[0].name)) is None:
                    raise self._cut_otherwise(ours, theirs)
                own[at].append(left.pop(0))
                sizes[at] *= extent
            if min(map(len, own)) > 1:
                raise self._cut_otherwise(ours, theirs)
            found.append((tuple(own[0]), tuple(own[1])))
        if any(left for _, left in sides):
            raise self._cut_otherwise(ours, theirs)
        return found

    @staticmethod
    def _cut_otherwise(ours: Axis, theirs: Axis) -> UnsupportedError:
        return UnsupportedError(
            f"the axis {' '.join(d.name for d in ours)} of the program is cut "
            f"otherwise in the candidate: {' '.join(d.name for d in theirs)}"
        )

    def _relate_library(self) -> None:
        """Library operators that are alike have the same sizes.

        The sizes of a result follow from nothing else here: any will do for a random
        function, if they are the same on both sides.
        """
        first: dict[tuple[object, ...], list[Key]] = {}
        for side, graph in enumerate(self.graphs):
            for node in graph.applies:
                if node.op.kind is Kind.LIBRARY:
                    keys = [(side, name) for name in library_dims(node)]
                    sizes = [graph.extent_of.get(name) for _, name in keys]
                    numbers = tuple(sorted(node.numbers.items()))
                    alike = (node.op.function, numbers, tuple(sizes))
                    for a, b in zip(first.setdefault(alike, keys), keys, strict=True):
                        self.classes.join(a, b)

    def _relate_constants(self) -> None:
        """A dim that is no tensor's is the program's, of that name and extent.

        That is one of which constants know alone, whose elements are all alike, or
        positions: of windows, say, that are gathered.  At its true extent it is as
        long on both sides.  Positions are as long as all those of the program that
        there are so many of: names say nothing of which windows are whose.
        """
        program, candidate = self.graphs
        counted, values = _counted(candidate), kernel_types(candidate).keys()
        tensors, free = _names(candidate, values - counted), _names(candidate, counted)
        ours = {self.classes.find((0, name)) for name, _ in program.extents}
        free = {n for n in free if self.classes.find((1, n)) not in ours}
        passed = {i.name for i in program.inputs} | {r.value for r in program.returns}
        others = _names(program, _counted(program)) - _names(program, passed)
        for name, extent in candidate.extents:
            if extent is None:
                continue
            as_long = [n for n in sorted(others) if program.extent_of.get(n) == extent]
            if name in free and as_long:
                for other in as_long:
                    self.classes.join((0, other), (1, name))
            elif program.extent_of.get(name) == extent and (
                name in free or name not in tensors
            ):
                self.classes.join((0, name), (1, name))

    def _relate_cuts(self, parts: Sequence[Part]) -> None:
        """Dims that are cut, and made alike of the same dims, are the same.

        A dim that is a product and is cut as well is as long on both sides, but an
        equation does not say that its segments and its factors are.
        """
        cut = {key for part in parts for key in (part.source, part.target)}
        wholes = [(whole, f) for whole, f in self.products if whole in cut]
        known = cut | {factor for _, factors in wholes for factor in factors}
        # What is made of dims that became the same may become so in turn.
        for _ in known:
            first: dict[Root, Key] = {}
            before = [self.classes.find(key) for key in sorted(known)]
            for whole, factors in wholes:
                made = ("product", *map(self.classes.find, factors))
                self._made_alike(first, made, whole)
                long = [self.graphs[side].extent_of.get(n) for side, n in factors]
                for at, factor in enumerate(factors):
                    made = ("factor", self.classes.find(whole), *long, at)
                    self._made_alike(first, made, factor)
            for part in parts:
                made = ("slice", self.classes.find(part.source), part.start, part.stop)
                self._made_alike(first, made, part.target)
            for source, own in _by_source(parts).items():
                found = [(p.start, self.classes.find(p.target)) for p in own]
                self._made_alike(first, ("join", *found), source)
            if before == [self.classes.find(key) for key in sorted(known)]:
                break

    def _made_alike(self, first: dict[Root, Key], made: Root, key: Key) -> None:
        other = first.setdefault(made, key)
        extents = {self.graphs[side].extent_of.get(n) for side, n in (other, key)}
        if len(extents) == 1 and None not in extents:
            self.classes.join(key, other)

    def _same_extent(self, a: Key, b: Key) -> None:
        found = [self.graphs[side].extent_of.get(name) for side, name in (a, b)]
        if found[0] != found[1]:
            raise UnsupportedError(
                f"{a[1]} = {found[0]} of the program is {b[1]} = {found[1]} in the "
                "candidate: an axis is cut into other dims"
            )

    def run(self, other: Mapping[tuple[object, ...], int]) -> Shrunk:
        """Both graphs, where no segment is as long as among `other` sizes."""
        self._choose_sizes(other)
        self._lengthen(other)
        shrunk = [self._resized(side) for side in (0, 1)]
        if not self.tiny and max(map(_most_elements, shrunk)) > MOST_ELEMENTS:
            self.wide, self.sizes, self.least = True, {}, {}
            self._choose_sizes(other)
            self._lengthen(other)
            shrunk = [self._resized(side) for side in (0, 1)]
        found = literals(shrunk[0]) | literals(shrunk[1])
        if not found:
            return Shrunk(*shrunk)
        numbers = brought_together(found, self._widest_gap())
        program, candidate = (with_literals(graph, numbers) for graph in shrunk)
        return Shrunk(program, candidate)

    def _widest_gap(self) -> int:
        """How far numbers beside positions are apart at most.

        Otherwise in the two sets of sizes: what is one element wide in one of them, and
        hides what becomes of the next one, is wider in the other.
        """
        gaps = np.random.default_rng([self.seed, 78]).permutation(_WIDEST_GAP) + 1
        return int(gaps[int(self.ragged)])

    # -- Sizes of segments ----------------------------------------------------------

    def _choose_sizes(self, other: Mapping[tuple[object, ...], int]) -> None:
        """A size for each segment, not the one that it has among `other` sizes."""
        coarse = {self.classes.find(whole) for whole, _ in self.products}
        keys = [k for k in self._keys() if self.classes.find(k) not in coarse]
        demands = self._demands()
        # First what has to be long for its indices: it may be a part of another dim.
        roots = {k: self.classes.find(k) for k in keys}
        keys.sort(key=lambda k: (roots[k] not in self.least, -demands.get(roots[k], 0)))
        pools = self._pools()
        unseen, summed = self._unseen(), self._summed()
        self.sizes.update(self._bound_sizes(other))
        # Tile programs take pairs apart, so they have to be pairs here too.
        for name in paired_dims(self.graphs[1]):
            (first, *others) = self.segments.of((1, name))
            if not others:
                self.sizes.setdefault(first, PAIR)
        taken = set(self.sizes.values())
        for key in keys:
            demand = demands.get(self.classes.find(key), 0)
            for i, segment in enumerate(self.segments.of(key)):
                if segment in self.sizes:
                    continue
                pool = pools[demand if i == 0 else 0]
                chosen = self._long_enough(pool, key) if i == 0 else pool
                single = self.segments.is_single(key, i) and not demand
                single = single or self.segments.is_inserted(segment)
                if self.classes.find(key) in unseen and not demand:
                    self.sizes[segment] = 1 if single else 2 + len(self.sizes) % 2
                    continue
                avoided = {other.get(segment, 0)}
                if self.classes.find(key) in summed:
                    avoided.add(2)
                if not self.wide:
                    avoided |= taken
                size = 1 if single else _first_free(chosen or taken, avoided)
                if self.wide and size in pool:
                    # Wide pools have each pair of sizes once.
                    pool.remove(size)
                taken.add(size)
                self.sizes[segment] = size

    # An index beside another one, `p + 9` beside `p`, has to be inside as well, and so
    # have all positions of a dim in another one, or no element of the program has a
    # value.

    def _long_enough(self, pool: list[int], key: Key) -> list[int]:
        """Those of some sizes that indices of a dim leave, or the least one."""
        least = self.least.get(self.classes.find(key))
        if least is None:
            return pool
        return [size for size in pool if size >= least] or [least]

    def _lengthen(self, other: Mapping[tuple[object, ...], int]) -> None:
        """Longer dims for indices too far apart, and for masks, up to a limit."""
        program = self.graphs[0]
        gathers = any(n.op.kind is Kind.GATHER for n in program.applies)
        masked = self.whole and hides_by_data(program)
        if not gathers and not program.indices and not masked:
            return
        self._lengthen_what_lacks(other)
        before = dict(self.sizes)
        self._tighten()
        if self.sizes != before and any(self._lacking()):
            self.sizes = before

    def _lengthen_what_lacks(self, other: Mapping[tuple[object, ...], int]) -> None:
        """Longer dims, until none lacks any; what indexes one may become longer too.

        Not where it does not help, as for an index that is the extent.
        """
        before: Mapping[str, int] = {}
        for _ in range(_LENGTHENED):
            lacking, tables = self._lacking()
            most = {d: _FARTHEST_INDEX if d in tables else _FARTHEST for d in lacking}
            if not lacking or any(by > most[dim] for dim, by in lacking.items()):
                return
            if all(by >= before.get(dim, by + 1) for dim, by in lacking.items()):
                return
            sizes, before = self.sizes, lacking
            for dim, by in lacking.items():
                self._demand((0, dim), by + _BEYOND)
            self.sizes = {}
            self._choose_sizes(other)
            longer = {s for dim in lacking for s in self.segments.of((0, dim))}
            if any(self.sizes[s] > n for s, n in sizes.items() if s not in longer):
                # Which may be what reaches further now.
                before = {}

    def _tighten(self) -> None:
        """Windows end as close to the end of what they are windows of as in truth.

        Or a mask that ends too early hides what no window meets, and of windows that
        are mostly outside little is seen.
        """
        program, demands = self.graphs[0], self._demands()
        counted = {d.name for index in program.indices for d in index.axis}
        for _ in range(_TIGHTENED):
            small = self._with_small_literals()
            changes = _slack_lacking(program, small)
            for dim, by in changes.items():
                key: Key = (0, dim)
                segments = self.segments.of(key)
                free = dim not in counted and not demands.get(self.classes.find(key))
                # A product has no size of its own.
                known = len(segments) == 1 and segments[0] in self.sizes
                if free and known and self.sizes[segments[0]] + by > 0:
                    self.sizes[segments[0]] += by
            if not any(changes.values()):
                return

    def _lacking(self) -> tuple[dict[str, int], dict[str, int]]:
        """By dim how many elements it lacks; and by dim of these that is indexed."""
        small, asked = self._with_small_literals(), self.graphs[0]
        tables = indexed_too_short(small, _FARTHEST_INDEX)
        lacking = [tables, _reached(small), _narrower_than_windows(asked, small)]
        if self.whole:
            lacking += [_outside(small), _emptied(small)]
        else:
            # Rows long enough for windows, and so many windows that some are outside,
            # would follow each other without end.
            lacking.append(_turned_otherwise(asked, small))
        found: dict[str, int] = {}
        for dim, by in (item for each in lacking for item in each.items()):
            found[dim] = max(found.get(dim, 0), by)
        return found, tables

    def _with_small_literals(self) -> ir.KernelGraph:
        """The program at these sizes, and what positions are compared with."""
        program, candidate = (self._resized(side) for side in (0, 1))
        beside = literals(program) | literals(candidate)
        return with_literals(program, brought_together(beside, self._widest_gap()))

    def _demand(self, key: Key, by: int) -> None:
        """A dim that is longer by at least so many; of a product, its first factor."""
        root, extent = self.classes.find(key), self._extent(key)
        for whole, factors in self.products:
            if self.classes.find(whole) == root:
                rest = extent // self._extent(factors[0])
                self._demand(factors[0], -(-by // rest))
                return
        self.least[root] = max(self.least.get(root, 0), extent + by)

    # A dim that is cut by slices or joins and is a product too, or two products, takes
    # no sizes at will: those of its segments and factors have to go with each other.

    def _bound_products(self) -> list[tuple[Key, list[Key]]]:
        """The products whose dims cannot be of any sizes."""
        find = self.classes.find
        ways: dict[Root, set[tuple[Root, ...]]] = {}
        for whole, factors in self.products:
            ways.setdefault(find(whole), set()).add(tuple(map(find, factors)))
        bound = {
            find(whole)
            for whole, _ in self.products
            if self.segments.cuts(whole) or len(ways[find(whole)]) > 1
        }
        waiting = list(bound)
        while waiting:
            for factors in ways.get(waiting.pop(), ()):
                for factor in factors:
                    if factor in ways and factor not in bound:
                        bound.add(factor)
                        waiting.append(factor)
        return [p for p in self.products if find(p[0]) in bound]

    def _bound_sizes(
        self, other: Mapping[tuple[object, ...], int]
    ) -> dict[tuple[object, ...], int]:
        """Small sizes of the segments of dims that cannot be of any sizes.

        They are others than among `other` sizes, if there are such.

        Raises:
            UnsupportedError: No small sizes go with each other.
        """
        found = self._bound_products()
        if not found:
            return {}
        for avoided in (other, dict[tuple[object, ...], int]()):
            sizes = _Equations(self, found, avoided).solved()
            if sizes is not None:
                return sizes
        names = ", ".join(dict.fromkeys(whole[1] for whole, _ in found))
        raise UnsupportedError(
            f"{names}: no small extents fit how these dims are both cut and split"
        )

    def _unseen(self) -> set[tuple[object, ...]]:
        """Classes of dims that nothing but library operators sees.

        A random function tells axes apart that are equally long, and its operands have
        many of them.
        """
        seen: set[tuple[object, ...]] = set()
        made: set[tuple[object, ...]] = set()
        for side, graph in enumerate(self.graphs):
            types = kernel_types(graph)
            for node in graph.nodes:
                names = {n for v in operands_of(node) for n in types[v].names}
                names.update(n for v in results_of(node) for n in types[v].names)
                library = isinstance(node, ir.Apply) and node.op.kind is Kind.LIBRARY
                found = made if library else seen
                found.update(self.classes.find((side, n)) for n in names)
        return made - seen

    def _summed(self) -> set[tuple[object, ...]]:
        """Classes of dims that are reduced.

        Of two elements a norm knows the order alone, and its error is one of luck.
        """
        return {
            self.classes.find((side, name))
            for side, graph in enumerate(self.graphs)
            for node in graph.applies
            if node.op.kind is Kind.REDUCTION and self.products
            for name in node.over
        }

    def _keys(self) -> list[Key]:
        partial = {(1, name) for name in _partial_dims(self.graphs[1])}
        found: list[Key] = []
        for side, graph in enumerate(self.graphs):
            found += [(side, n) for n in graph.extent_of if (side, n) not in partial]
        return found

    def _demands(self) -> dict[tuple[object, ...], int]:
        """By class: 0 for whole, 1 for split, 2 for split by grid and loop at once."""
        found: dict[tuple[object, ...], int] = {}
        for side, graph in enumerate(self.graphs):
            for name, demand in _split_demands(graph).items():
                key = self.classes.find((side, name))
                found[key] = max(found.get(key, 0), demand)
        return found

    def least_when_split(self) -> dict[tuple[object, ...], int]:
        """By class of dims that a grid or loop splits, the least extent for it."""
        pools = self._pools()
        return {root: min(pools[d]) for root, d in self._demands().items() if d}

    def _pools(self) -> list[list[int]]:
        """Sizes for each demand, the smallest ones in random order."""
        split = (_RAGGED, _RAGGED_TWICE) if self.ragged else (_SPLIT, _TWICE)
        if self.tiny:
            split = (_TINY, _TINY_TWICE)
        pools: list[list[int]] = []
        if self.wide:
            own = ([pair[self.ragged] for pair in p] for p in (_WIDE, _WIDE_SPLIT))
            twice: list[int] = [*(_RAGGED_TWICE if self.ragged else _TWICE)]
            return [*own, twice, [19, 23, 27] if self.ragged else [12, 18, 16]]
        for pool in (_WHOLE, *split):
            head: list[int] = list(pool[: 2 if self.tiny else 4])
            self.rng.shuffle(head)
            pools.append(head + list(pool[4:]))
        # A dim whose parts are split once more by a later kernel.
        pools.append([2 * 6, 2 * 9, 2 * 8] if not self.ragged else [19, 23, 27])
        return pools

    def _extent(self, key: Key) -> int:
        for whole, factors in self.products:
            if self.classes.find(whole) == self.classes.find(key):
                return math.prod(self._extent(f) for f in factors)
        return sum(self.sizes[s] for s in self.segments.of(key))

    # -- Graphs at these sizes ------------------------------------------------------

    def _resized(self, side: int) -> ir.KernelGraph:
        graph = self.graphs[side]
        partial = _partial_dims(graph)
        extents: dict[str, int | None] = {
            n: None if n in partial else self._extent((side, n))
            for n in graph.extent_of
        }
        nodes: list[ir.KernelNode] = []
        for node in graph.nodes:
            if isinstance(node, ir.Apply):
                nodes.append(self._moved_slice(node, side))
                continue
            block = self._resized_block(node, extents, side)
            nodes.append(block)
            so_far = replace(graph, nodes=tuple(nodes))
            extents.update(derived_extents(so_far, extents))
        resized = replace(graph, nodes=tuple(nodes)).with_extents(extents)
        return resized.with_extents(derived_extents(resized, resized.extent_of))

    def _moved_slice(self, node: ir.Apply, side: int) -> ir.Apply:
        sliced = node.sliced
        if sliced is None:
            return node
        key = (side, sliced.dim)
        cuts, segments = self.segments.cuts(key), self.segments.of(key)
        if not self.sizes.keys() >= set(segments):
            raise UnsupportedError(
                f"{node.result} is a slice of {key[1]}, which runs over the parts of a "
                "split dim; verification needs all of these parts"
            )
        sizes = [self.sizes[s] for s in segments]
        places = sliced.bounds(_bound_of(self.graphs[side], sliced))
        return _cut(node, *(sum(sizes[: cuts.index(place)]) for place in places))

    def _resized_block(
        self, block: ir.BlockGraph, extents: Mapping[str, int | None], side: int
    ) -> ir.BlockGraph:
        grid = tuple(
            replace(s, tile=self._tile(_sure(extents, s.dim), self._parts(s, block)))
            for s in block.grid
        )
        resized = replace(block, grid=grid)
        loop = block.loop
        if loop is not None:
            span = _sure(extents, loop.dim)
            split = resized.grid_split(loop.dim)
            if split is not None and loops_inside_grid(block):
                span = min(span, split.tile)
            loop = replace(loop, tile=self._tile(span, None))
        return map_nodes(
            replace(resized, loop=loop),
            lambda n: self._moved_slice(n, side) if isinstance(n, ir.Apply) else n,
        )

    def _parts(self, split: ir.Split, block: ir.BlockGraph) -> int | None:
        """More parts than three, where a later kernel splits the partial dim."""
        demands = _split_demands(self.graphs[1])
        for store in block.stores:
            for dim in ir.dims_of(store.axes):
                if partial_base(dim.name, block) == split.dim and dim.name in demands:
                    return 6
        return None

    def _tile(self, extent: int, parts: int | None) -> int:
        """The largest tile of which there are `parts` or three; even if it can be."""
        parts = parts or 3
        even = [t for t in range(2, extent // parts + 1) if extent % t == 0]
        if even and not self.ragged:
            return even[-1]
        tile = -(-extent // parts)
        while tile > 1 and -(-extent // tile) < parts:
            tile -= 1
        # What is as long as several dims together may be a multiple of the tile.
        ragged = (t for t in range(tile, 1, -1) if extent % t)
        return next(ragged, tile) if self.ragged and self.products else tile


# -- Positions -------------------------------------------------------------------------

_MOST_POSITIONS = 1 << 22
"""More positions than these are not looked at one by one."""


def made_of_positions(graph: ir.KernelGraph, value: str) -> ir.KernelGraph | None:
    """What computes a value; None if it is of data, or of too many elements."""
    types, wanted = kernel_types(graph), {value}
    nodes: list[ir.Apply] = []
    for node in reversed(graph.nodes):
        if isinstance(node, ir.Apply) and node.result in wanted:
            nodes.append(node)
            wanted.update(node.values)
    indices = tuple(i for i in graph.indices if i.name in wanted)
    known = {n.result for n in nodes} | {i.name for i in indices}
    sizes = [[graph.extent_of.get(n) for n in types[v].names] for v in wanted]
    most = max(math.prod(n or math.inf for n in size) for size in sizes)
    if wanted != known or most > _MOST_POSITIONS:
        return None
    kind = flat_type(types[value].dtype, types[value].dims, MemorySpace.DEVICE)
    returns = (ir.Return(value, kind),)
    made = tuple(reversed(nodes))
    return replace(graph, inputs=(), nodes=made, returns=returns, indices=indices)


def _reached(graph: ir.KernelGraph) -> dict[str, int]:
    """By dim how many elements it lacks for places that a mask chooses to be inside.

    `where(4 <= k, k - 4, 0)` is never below 0, which intervals alone do not tell.
    """
    made, found = {n.result: n for n in graph.applies}, dict[str, int]()
    for node in graph.applies:
        index = made.get(node.values[1]) if node.op.kind is Kind.GATHER else None
        if index is None or index.op is not WHERE:
            continue
        dim, (names, at) = str(node.attr("dim")), _positions_of(graph, index.result)
        by = int(max(at.max() + 1, -at.min())) if names else 0
        by -= _sure(graph.extent_of, dim)
        if by > 0:
            found[dim] = max(found.get(dim, 0), by)
    return found


def _turned_otherwise(program: ir.KernelGraph, small: ir.KernelGraph) -> dict[str, int]:
    """By dim how many elements it lacks for masks to turn where they do in truth.

    A range of positions that begins behind the end of a dim hides what a candidate
    makes of them, and windows that are partly outside what they are windows of have few
    elements to tell.

    Args:
        program: At its own sizes.
        small: The same at small ones.
    """
    found: dict[str, int] = {}
    for margin in _margins(program, small):
        settled = margin.truth is not None and margin.truth > 0
        dims, lacks = margin.less, margin.now
        if settled:
            dims, lacks = margin.more, 1 - margin.now
        if dims and 0 < lacks <= _FARTHEST:
            longest = max(sorted(dims), key=lambda d: program.extent_of[d] or 0)
            found[longest] = max(found.get(longest, 0), lacks)
    return found


def _slack_lacking(program: ir.KernelGraph, small: ir.KernelGraph) -> dict[str, int]:
    """By dim how many more elements, or fewer, make it as long for windows as in truth.

    Where they end behind it by little, or ahead of it; up to so many elements ahead.

    Args:
        program: At its own sizes.
        small: The same at small ones.
    """
    found: dict[str, int] = {}
    for margin in _margins(program, small):
        if margin.truth is None or margin.truth < -_OVERHANG or len(margin.more) != 1:
            continue
        (dim,) = margin.more
        lacks = min(margin.truth, _SLACK) - margin.now
        found[dim] = max(found.get(dim, lacks), lacks)
    return found


class _Margin(NamedTuple):
    """By how much one side of a comparison of positions is beyond the other everywhere.

    Attributes:
        now: At small sizes.
        truth: At the program's own, where these are known.
        less: Dims of which more elements make it less.
        more: Dims of which they make it more.
    """

    now: int
    truth: int | None
    less: frozenset[str]
    more: frozenset[str]


def _margins(program: ir.KernelGraph, small: ir.KernelGraph) -> Iterator[_Margin]:
    """Those of all comparisons, either way."""
    truth = _comparisons(program)
    for now in compared_positions(small):
        known = truth.get(now.result)
        below, above = (known.below, known.above) if known else (None, None)
        yield _Margin(now.below, below, now.first, now.second)
        yield _Margin(now.above, above, now.second, now.first)


@lru_cache(maxsize=4)
def _comparisons(program: ir.KernelGraph) -> Mapping[str, Compared]:
    """The comparisons of positions, by result; none where extents are unknown."""
    if any(extent is None for _, extent in program.extents):
        return {}
    return {c.result: c for c in compared_positions(program)}


def _narrower_than_windows(
    program: ir.KernelGraph, small: ir.KernelGraph
) -> dict[str, int]:
    """By dim how many elements it lacks to be longer than positions in it, as in truth.

    A window that is as wide as all that it is a window of hides which elements it has.

    Args:
        program: At its own sizes.
        small: The same at small ones.
    """
    counted = {d.name for index in program.indices for d in index.axis}
    types, found = kernel_types(program), dict[str, int]()
    joined = (n for n in program.applies if n.op is FLATTEN)
    factors = {str(n.attr("to")): n.axes("of") for n in joined}
    for node in program.applies:
        if node.op.kind is not Kind.GATHER:
            continue
        dim = str(node.attr("dim"))
        for name in counted.intersection(types[node.values[1]].names):
            by = _sure(small.extent_of, name) + 1 - _sure(small.extent_of, dim)
            longer = (program.extent_of[name] or 0) < (program.extent_of[dim] or 0)
            if longer and by > 0:
                # Of channels, which both may have, no more would help.
                last = factors[dim][-1][-1] if dim in factors else dim
                rows = _sure(small.extent_of, dim) // _sure(small.extent_of, last)
                found[last] = max(found.get(last, 0), -(-by // rows))
    return found


def _outside(graph: ir.KernelGraph) -> dict[str, int]:
    """By dim how many elements it lacks, so that each window has one that exists.

    A dim of which windows are is too short for the last ones, or their own is for the
    first ones, which begin ahead of it.
    """
    chosen = {n.result for n in graph.applies if n.op is WHERE}
    reductions = (n for n in graph.applies if n.op.kind is Kind.REDUCTION)
    reduced = {d for n in reductions if n.values[0] in chosen for d in n.over}
    found: dict[str, int] = {}
    for node in graph.applies:
        if node.op not in (LESS, LESS_EQUAL):
            continue
        small, large = node.operands
        if isinstance(small, str) and isinstance(large, Scalar):
            names, at = _positions_of(graph, small)
            over = tuple(i for i, n in enumerate(names) if n in reduced)
            for dim, _ in large.extents if over else ():
                last = int(at.min(axis=over).max())
                by = last - (graph.extent_of.get(dim) or 0) + 1
                found[dim] = max(found.get(dim, 0), by)
        elif isinstance(large, str) and large != small:
            names, at = _positions_of(graph, large)
            over = tuple(i for i, n in enumerate(names) if n in reduced)
            if len(over) == 1:
                dim, by = names[over[0]], -int(at.max(axis=over).min())
                found[dim] = max(found.get(dim, 0), by)
    return {dim: by for dim, by in found.items() if by > 0}


def _emptied(graph: ir.KernelGraph) -> dict[str, int]:
    """By dim how many elements it lacks, where a mask leaves rows without any.

    Of a window around each row, rows far behind the last column have none; of a mask
    that is data, short rows.
    """
    reduced = _reduced(graph)
    found: dict[str, int] = {}
    for node, condition, at in _hidden(graph):
        names, holds = _positions_of(graph, condition)
        if names:
            over = tuple(i for i, n in enumerate(names) if n in reduced)
            hidden = (holds != 0) != bool(at)
            if over and hidden.all(axis=over).any():
                found[names[over[-1]]] = 1
            continue
        rows = [d for d in kernel_types(graph)[node.result].names if d in reduced]
        lacks = _ROW_OF_DATA - (graph.extent_of[rows[-1]] or 1) if rows else 0
        if lacks > 0:
            found[rows[-1]] = lacks
    return found


def hides_by_data(graph: ir.KernelGraph) -> bool:
    """Whether a mask that is data may leave nothing of what is reduced."""
    hidden = (condition for _, condition, _ in _hidden(graph))
    return bool(_reduced(graph)) and any(
        made_of_positions(graph, condition) is None for condition in hidden
    )


def _reduced(graph: ir.KernelGraph) -> set[str]:
    reductions = (n for n in graph.applies if n.op.kind is Kind.REDUCTION)
    return {d for n in reductions for d in n.over}


def _hidden(graph: ir.KernelGraph) -> Iterator[tuple[ir.Apply, str, int]]:
    """The choices of infinities, by which conditions; 0 where these hold, else 1."""
    for node in graph.applies:
        condition = node.operands[0] if node.op is WHERE else None
        for at, other in enumerate(node.operands[1:] if condition else ()):
            if isinstance(condition, str) and _is_infinite(other):
                yield node, condition, at


def _is_infinite(operand: ir.Operand) -> bool:
    return isinstance(operand, Scalar) and math.isinf(operand.value)


def _positions_of(
    graph: ir.KernelGraph, value: str
) -> tuple[tuple[str, ...], NDArray[Any]]:
    """The dims of positions, and the positions; none where there are none."""
    made = made_of_positions(graph, value)
    if made is None:
        return (), np.zeros(())
    (at,) = evaluate_numpy(made)
    return made.returns[0].type.names, at


class _Equations:
    """Sizes of segments such that what is cut is as long as what it is split into.

    Args:
        shrinking: The dims, their classes and segments.
        found: The products.
        avoided: Sizes that segments are not to have.
    """

    def __init__(
        self,
        shrinking: _Shrinking,
        found: list[tuple[Key, list[Key]]],
        avoided: Mapping[tuple[object, ...], int],
    ) -> None:
        from ortools.sat.python import cp_model

        self._of, self._avoided = shrinking, avoided
        self._cp: Any = cp_model
        self._model: Any = cp_model.CpModel()
        self._sizes: dict[tuple[object, ...], Any] = {}
        self._demands = shrinking.least_when_split()
        for whole, factors in found:
            lengths = [self._length(factor) for factor in factors]
            most = _LONGEST ** len(factors)
            product = self._model.new_int_var(1, most, "")
            self._model.add_multiplication_equality(product, lengths)
            self._model.add(product == self._length(whole))
        weights = shrinking.rng.integers(4, 8, len(self._sizes)).tolist()
        sizes = list(self._sizes.values())
        self._model.minimize(self._cp.LinearExpr.weighted_sum(sizes, weights))

    def _length(self, key: Key) -> Any:
        """The extent of a dim: of its segments together."""
        side, name = key
        extent = _known(self._of.graphs[side], name)
        segments = self._of.segments.of(key)
        lengths = self._of.segments.lengths(key, extent)
        found = sum(map(self._segment, segments, lengths))
        least = self._demands.get(self._of.classes.find(key), 0)
        if least:
            self._model.add(found >= min(least, extent))
        return found

    def _segment(self, segment: tuple[object, ...], length: int) -> Any:
        """The size of a segment; one that is a single element is one."""
        if segment not in self._sizes:
            least, most = min(2, length), 1 if length == 1 else _LONGEST**2
            size = self._model.new_int_var(least, most, "")
            self._sizes[segment] = size
            if length > 1 and segment in self._avoided:
                self._model.add(size != self._avoided[segment])
        return self._sizes[segment]

    def solved(self) -> dict[tuple[object, ...], int] | None:
        """The sizes, the smallest that were found; None if there are none."""
        solver: Any = self._cp.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = _EQUATION_EFFORT
        if solver.solve(self._model) not in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            return None
        return {segment: solver.value(v) for segment, v in self._sizes.items()}


def _most_elements(graph: ir.KernelGraph) -> int:
    """Of the largest value at the kernel level."""
    extents = derived_extents(graph, graph.extent_of)
    return max(
        math.prod(_sure(extents, n) for n in kind.names)
        for kind in kernel_types(graph).values()
    )


def _sure(extents: Mapping[str, int | None], name: str) -> int:
    extent = extents.get(name)
    assert extent is not None, name
    return extent


def _first_free(pool: Iterable[int], taken: set[int]) -> int:
    for size in pool:
        if size not in taken:
            return size
    size = max(pool) + 1
    while size in taken:
        size += 1
    return size


def _partial_dims(graph: ir.KernelGraph) -> set[str]:
    """Dims over the parts of a split dim."""
    return {
        d.name
        for block in graph.blocks
        for store in block.stores
        for d in ir.dims_of(store.axes)
        if partial_base(d.name, block) is not None
    }


def _split_demands(graph: ir.KernelGraph) -> dict[str, int]:
    found: dict[str, int] = {}
    partial = _partial_dims(graph)
    for block in graph.blocks:
        for split in block.grid:
            found[split.dim] = max(found.get(split.dim, 0), 1)
        if block.loop is not None:
            name = block.loop.dim
            twice = block.grid_split(name) is not None and loops_inside_grid(block)
            found[name] = max(found.get(name, 0), 2 if twice else 1)
    for block in graph.blocks:
        for split in block.grid:
            if f"{split.dim}#" in partial and f"{split.dim}#" in found:
                found[split.dim] = 3
    return found
