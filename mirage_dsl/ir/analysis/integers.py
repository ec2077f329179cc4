"""Inputs of integers and truth values: what indices may be, and values that are drawn.

Where what is computed of an integer turns, as at 100 in `x < 100`, numbers are drawn
beside: few of those that are taken at random come near.

Integers are computed as they are, by NumPy, in their formats and with the wrap-around
of these.  So what is no arithmetic of rings (shifts, comparisons, floor division) is
exact in verification too.  Where they become floats they become residues.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.types import DType, Scalar, TensorType, boolean, i32, i64, scalar
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.ranges import (
    Whole,
    range_of,
    range_of_format,
    range_of_number,
)
from mirage_dsl.ir.evaluate import NumpyDomain
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Array, Kind, Operator, Truth

# -- Indices ---------------------------------------------------------------------------
# An index is computed of inputs: `lengths - 1`, `pos % window`, `table[pos // 16]`.
# What inputs have to be is told backwards, operator by operator, where intervals do.

_MANY = 1 << 40
"""Beyond all extents."""

_NAMES = (
    "less",
    "remainder",
    "floor_divide",
    "bit_and",
    "shift_right",
    "neg",
    "max",
    "min",
    "abs",
)
LESS, REMAINDER, FLOOR_DIVIDE, BIT_AND, SHIFT_RIGHT, NEG, MAX, MIN, ABS = (
    table.OPERATORS[name] for name in _NAMES
)
CONVERSIONS = frozenset(
    op for name, op in table.OPERATORS.items() if name.startswith(("to_i", "to_u"))
)


_EXTREMES = (table.MAXIMUM, table.MINIMUM)
_DECIDING = (*_EXTREMES, ABS, FLOOR_DIVIDE, SHIFT_RIGHT, REMAINDER)
"""Operators that go one way or the other, beside comparisons."""
_SUMS = ("sum", "cumsum")
_SELECTIONS = ("max", "min")
_MOST_TRIED = 1 << 16
"""Numbers of which it is computed whether they will do as an index."""
_FEW_INDICES = 8
"""How many numbers may be all that intervals tell of those that will do."""
_FEW = 3
"""Numbers at either end of a turn that may lie outside of what is indexed, and numbers
that an input is drawn of at least, or hardly any two are told apart."""
_MULTIPLES = 4
"""How many multiples of what numbers are divided by they are close to."""
_ANCHORS = (0, 128)
"""Numbers that two are close to at once, so that they are close to each other."""
_FIRST_STEP = 1 << 20
"""By how much numbers are changed at first, where inputs for indices are looked for."""
_POWERS_OF_TWO = tuple(1 << n for n in range(42))
_MOST_STEPS = 200
"""How often they are changed, each of them both ways."""
_MADE, _FOUND = "", " "
"""Among names of inputs: integers that are made of floats, and positions that data
choose."""


@dataclass(frozen=True)
class Limit:
    """What an index may be.

    Attributes:
        start: The least.
        stop: One more than the largest.
        period: Where it is not 0, numbers that are multiples of it further on will do
            as well: what is read is the remainder.
        among: Where there are any, the numbers within it that will do.
        of_any_size: Of numbers that are far apart mostly, small ones are drawn as well:
            what several add up to is clamped.
    """

    start: int
    stop: int
    period: int = 0
    among: tuple[int, ...] = ()
    of_any_size: bool = False

    def moved(self, by: int) -> Limit:
        """The limit of a number to which `by` is added."""
        return replace(self, start=self.start - by, stop=self.stop - by)

    def divided(self, by: int) -> Limit:
        """The limit of a number that is multiplied by a positive one."""
        period = self.period // by if self.period % by == 0 else 0
        return Limit(-(-self.start // by), -(-self.stop // by), period)

    def times(self, by: int) -> Limit:
        """The limit of a number that is divided by a positive one, rounded down."""
        return Limit(self.start * by, self.stop * by, self.period * by)

    @property
    def from_front(self) -> range:
        """Without what counts from the end, if anything else is left."""
        return range(max(self.start, 0) if self.stop > 0 else self.start, self.stop)

    @property
    def is_empty(self) -> bool:
        """Whether no number is within it."""
        return self.start >= self.stop


def index_limits(graph: ir.KernelGraph) -> dict[str, Limit]:
    """By input of integers, what an index made of it may be; extents have to be known.

    Negative ones count from the end, unless a choice puts others in their place.  Where
    several inputs add up to an index each has its share.  An input is not among them if
    what it holds does not matter, as that of `pos % window`.  Where intervals do not
    tell, as of `(31 * i + 7) % 1000`, numbers are tried; what is made of several inputs
    so may still lie outside: it has the limit of the index itself.
    """
    return dict(_index_limits(graph))


@lru_cache(maxsize=64)
def _index_limits(graph: ir.KernelGraph) -> Mapping[str, Limit]:
    limits = _Limits(graph)
    items = [item for item in graph.inputs if item.name in limits.found]
    found = {i.name: limits.found[i.name] for i in items}
    some = {item.name: _inside_of(graph, item, found[item.name]) for item in items}
    alone = bool(some) and all(some.values())
    boxes = None if alone else limits.boxes()
    made = limits.made_of_bounded()
    if boxes is not None:
        return made | boxes
    return made | {i.name: _tried(graph, i, found[i.name], some[i.name]) for i in items}


def _within_format(item: ir.Input, limit: Limit) -> range:
    """Numbers of a limit, of which some are left out where they are many."""
    least = max(limit.start, int(item.type.dtype.min))
    most = min(limit.stop - 1, int(item.type.dtype.max))
    return range(least, most + 1, max((most - least) // _MOST_TRIED, 1))


def _inside_of(graph: ir.KernelGraph, item: ir.Input, limit: Limit) -> frozenset[int]:
    """Those that a graph brings inside, if what is indexed is made of them alone."""
    return brought_inside(graph, item, _within_format(item, limit))


def _tried(
    graph: ir.KernelGraph, item: ir.Input, limit: Limit, inside: frozenset[int]
) -> Limit:
    """A limit, with the numbers that will do where not all within it seem to."""
    within = _within_format(item, limit)
    if not inside and limit.stop - limit.start > _MOST_TRIED:
        return replace(limit, of_any_size=True)
    all_inside = len(inside) == len(within)
    if all_inside and len(within) > _FEW_INDICES:
        return limit
    some = range(min(_MOST_TRIED, int(item.type.dtype.max)))
    further = brought_inside(graph, item, some) - inside
    if all_inside and not further:
        return limit
    return replace(limit, among=tuple(sorted(inside | further)))


def indexed_too_short(graph: ir.KernelGraph, few_up_to: int = 0) -> dict[str, int]:
    """By dim that is indexed, how many elements it lacks for all indices to be inside.

    `p` and `p + 9` are both inside of no axis of less than ten elements, nor are ten
    positions of another axis.

    Args:
        graph: Its extents have to be known.
        few_up_to: Where no dim lacks any, how many it may lack for several numbers of
            each input: of an axis of four `16 * p + q` is inside for one `p` alone, and
            what is read is the same where it should be `17 * p + q`.
    """
    limits = _Limits(graph)
    if limits.lacking or not few_up_to:
        return limits.lacking
    return limits.lacking_for_few(few_up_to)


def drawn_of_few(graph: ir.KernelGraph) -> bool:
    """Whether an input of integers has hardly any numbers for indices to be inside."""
    items = {i.name: int(i.type.dtype.max) for i in graph.inputs}
    limits = index_limits(graph).items()
    return any(_is_narrow(li) for n, li in limits if items.get(n, _FEW) >= _FEW)


def index_outside(graph: ir.KernelGraph) -> str | None:
    """An index that no numbers of inputs were found to bring inside; None for none."""
    return _Limits(graph).outside(index_limits(graph))


def _is_narrow(limit: Limit) -> bool:
    count = len(limit.among) or limit.stop - limit.start
    return count < _FEW and not limit.period


@dataclass(frozen=True)
class Compared:
    """A comparison of positions, as far as intervals tell.

    Attributes:
        result: Its value.
        below: By how much the first operand is below the second one everywhere, more
            than it takes to come out the same everywhere; at most 0 if it is not.
        above: The same of how much it is above.
        first: The dims that make the first operand reach further, and not the second.
        second: Those of the second.
    """

    result: str
    below: int
    above: int
    first: frozenset[str]
    second: frozenset[str]


def compared_positions(graph: ir.KernelGraph) -> list[Compared]:
    """The comparisons of positions outside of blocks; extents have to be known."""
    limits = _Limits(graph)
    found = map(limits.compared, graph.applies)
    return [comparison for comparison in found if comparison is not None]


Turns = tuple[range, ...]
"""Numbers beside which something turns."""


@dataclass(frozen=True)
class AllTurns:
    """Where what two graphs compute of integers turns.

    Attributes:
        inputs: Of each input.
        made: Of integers that are made of floats.
        made_within: What these may be, where indices are made of them.
    """

    inputs: tuple[Turns, ...] = ()
    made: Turns = ()
    made_within: Limit | None = None

    def __bool__(self) -> bool:
        return bool(self.made) or any(self.inputs)


def turns_of(program: ir.KernelGraph, candidate: ir.KernelGraph) -> AllTurns:
    """Where what one of two graphs of one interface computes of integers turns.

    That is beside numbers and positions that integers are compared with, where they
    come close to each other, and where a maximum or a minimum changes hands.  Extents
    have to be known.
    """
    ours, theirs = _turns(program), _turns(candidate)
    limits = index_limits(program)
    both = zip(program.inputs, ours.inputs, theirs.inputs, strict=True)
    return AllTurns(
        tuple(
            _inside(program, item, {*one, *other}, limits.get(item.name))
            for item, one, other in both
        ),
        _all_inside({*ours.made, *theirs.made}, limits.get(_MADE)),
        limits.get(_MADE),
    )


def _all_inside(turns: set[range], limit: Limit | None) -> Turns:
    """What of numbers is within a limit, if there is any, and in a format at all."""
    least, most = (
        (limit.start, limit.stop - 1) if limit else (int(i64.min), int(i64.max))
    )
    inside = _cut(turns, least, most)
    return tuple(sorted(inside, key=_ends))


def turn_elsewhere(program: ir.KernelGraph, candidate: ir.KernelGraph) -> bool:
    """Whether indices turn beside other numbers in a candidate than in its program.

    Those that are the same at other extents count: not 0, and not an extent.  Extents
    have to be known.
    """
    limits = index_limits(program)
    ours, theirs = (_Limits(g).turns(fixed=True) for g in (program, candidate))
    return any(
        item.name in limits
        and set(ours.get(item.name, ())) != set(theirs.get(other.name, ()))
        for item, other in zip(program.inputs, candidate.inputs, strict=True)
    )


def numbers_of_found(graph: ir.KernelGraph) -> frozenset[range]:
    """Beside which numbers positions turn that data choose, as of the largest element.

    Draws can not bring such positions there.  Extents have to be known.
    """
    if not graph.indices and all(n.op.kind is not Kind.LIBRARY for n in graph.applies):
        return frozenset()
    limits = _Limits(graph)
    types = {0: kernel_types(graph)}
    for number, node in enumerate(graph.nodes, 1):
        if isinstance(node, ir.BlockGraph):
            types[number] = block_types(node, types[0])
    return frozenset(limits.found_beside(types))


@lru_cache(maxsize=32)
def _turns(graph: ir.KernelGraph) -> AllTurns:
    """Those of one graph, wherever its formats end."""
    found = _Limits(graph).turns()
    return AllTurns(
        tuple(tuple(found.get(item.name, ())) for item in graph.inputs),
        tuple(found.get(_MADE, ())),
    )


def _inside(
    program: ir.KernelGraph, item: ir.Input, turns: set[range], limit: Limit | None
) -> Turns:
    """What of the numbers an input may be."""
    dtype = item.type.dtype
    if not turns or not dtype.is_integer:
        return ()
    whole = _cut(turns, int(dtype.min), int(dtype.max))
    if limit is None:
        return tuple(sorted(whole, key=_ends))
    cut = _cut(whole, limit.start, limit.stop - 1) if not limit.among else set[range]()
    ends = {n for r in whole for n in (*r[:_FEW], *r[-_FEW:])}
    beyond = sorted(n for n in ends if not any(n in r for r in cut))
    cut |= {range(n, n + 1) for n in brought_inside(program, item, beyond)}
    return tuple(sorted(cut, key=_ends))


def _cut(turns: set[range], least: int, most: int) -> set[range]:
    """What of ranges lies between two numbers."""
    cut = {range(max(r.start, least), min(r.stop, most + 1)) for r in turns}
    return {r for r in cut if r}


def brought_inside(
    graph: ir.KernelGraph, item: ir.Input, numbers: Sequence[int]
) -> frozenset[int]:
    """Which numbers a graph brings inside of all that it indexes by what they give.

    As those that stand for no index, `x[where(label == -100, 0, label)]`.  None where
    an index is made of more than the input, element by element.  Extents have to be
    known.
    """
    found = _OfNumbers(graph, np.asarray(numbers, item.type.dtype.long_name))
    found.made[item.name] = found.numbers
    for node in graph.nodes:
        found.read(node)
    return frozenset(found.numbers[found.inside].tolist())


class _OfNumbers:
    """What a graph computes of numbers, element by element, in the place of an input.

    Attributes:
        numbers: The numbers.
        inside: For which of them all that is indexed has an element.
        made: What is computed of them.

    An element is of one element of the input alone, or not made: `x[1:] - x[:-1]` is of
    two, as what comes through different views meets there.
    """

    def __init__(self, graph: ir.KernelGraph, numbers: NDArray[Any]) -> None:
        self.numbers = numbers
        self.inside = np.ones(len(numbers), np.bool_)
        self.made: dict[str, NDArray[Any]] = {}
        self._views: dict[str, tuple[ir.Apply, ...]] = {}
        self._others = set[str]()
        extents = derived_extents(graph, graph.extent_of)
        self._extents = {n: e for n, e in extents.items() if e is not None}
        self._domain = NumpyDomain()

    def read(self, node: ir.KernelNode) -> None:
        """Take account of a node."""
        read = set(node.sources if isinstance(node, ir.BlockGraph) else node.values)
        if read.isdisjoint(self.made.keys() | self._others):
            return
        if isinstance(node, ir.BlockGraph):
            # It may index by them.
            self.inside[:] = False
            return
        self._index(node)
        views = {self._views.get(value, ()) for value in read}
        if read <= self.made.keys() and _of_elements(node) and len(views) == 1:
            self.made[node.result] = self._computed(node)
            own = (node,) if node.op.kind is Kind.VIEW else ()
            self._views[node.result] = (*views.pop(), *own)
        else:
            self._others.add(node.result)

    def _index(self, node: ir.Apply) -> None:
        _, size = _indexed_axis(node, self._extents)
        index = node.values[-1]
        if size is not None and index in self._others:
            self.inside[:] = False
        elif size is not None and index in self.made:
            self.inside &= (-size <= self.made[index]) & (self.made[index] < size)

    def _computed(self, node: ir.Apply) -> NDArray[Any]:
        operands = [
            self.made[o]
            if isinstance(o, str)
            else self._domain.constant(o, self._extents)
            for o in node.operands
        ]
        if node.op.kind is Kind.VIEW:
            return operands[0]
        return self._domain.elementwise(node.op, operands)


def _of_elements(node: ir.Apply) -> bool:
    """Whether each element of a result is made of one of each operand, of integers."""
    kinds = (Kind.ELEMENTWISE, Kind.VIEW)
    return node.op.kind in kinds and "dtype" not in node.op.attributes


def _indexed_axis(
    node: ir.Apply, extents: Mapping[str, int | None]
) -> tuple[str, int | None]:
    """The dim that a node has indices of, if it has a name, and its extent."""
    if node.op.indexed:
        (extent,) = node.numbers["size"]
        return "", extent
    dim = str(node.attr("dim")) if node.op.kind is Kind.GATHER else ""
    return dim, extents.get(dim)


def _ends(numbers: range) -> tuple[int, int]:
    return numbers.start, numbers.stop


class _Limits:
    """Tells limits backwards from what is indexed; `found` are those of inputs.

    `lacking` says of dims how many elements more it takes for limits of one input, as
    of what is indexed by a number beside it too, to have a number in common; and for
    all positions of other dims that they are indexed by to be inside.
    """

    def __init__(self, graph: ir.KernelGraph) -> None:
        self._types = kernel_types(graph)
        self._extents = derived_extents(graph, graph.extent_of)
        self._inputs = {i.name for i in graph.inputs}
        self._positions = {
            i.name: math.prod(self._extents[d.name] or 1 for d in i.axis)
            for i in graph.indices
            if all(self._extents[d.name] is not None for d in i.axis)
        }
        self._made: Made = {}
        self._known = _Ranges(self._made, self._extents, self._positions, {})
        unlimited = {n: _UNLIMITED for n in self._inputs if self._is_of_integers(n)}
        self._clamped = replace(self._known, given=unlimited, of_floats=_UNLIMITED)
        self._gathers: list[_Gather] = []
        self.found: dict[str, Limit] = {}
        self._conversions: dict[str, Limit] = {}
        self._choosing = self._through_positions = False
        self.lacking: dict[str, int] = {}
        # The dim that is indexed now; by input, all dims that it indexes.
        self._dim = ""
        self._indexed: dict[str, set[str]] = {}
        self._nodes = tuple(_levels(graph))
        for level, node in self._nodes:
            self._made[0 if isinstance(node, ir.Store) else level, node.result] = (
                level,
                node,
            )
        for level, node in self._nodes:
            if isinstance(node, ir.Apply):
                self._index(level, node)

    def found_beside(self, types: Mapping[int, Mapping[str, TensorType]]) -> set[range]:
        """By which integers positions that data choose come close to a number.

        No limit of an index is told after this.

        Args:
            types: Of the values of each level.
        """
        found: set[range] = set()
        self._through_positions = True
        for level, operand, other, near in self._compared(exactly=True):
            if isinstance(other, str) or isinstance(operand, Scalar):
                continue
            if types[level][operand].dtype.is_integer:
                self.found, self._conversions = {}, {}
                self._hold(level, operand, near)
                limit = self._conversions.get(_FOUND)
                found |= {range(limit.start, limit.stop)} if limit else set()
        return found

    def turns(self, *, fixed: bool = False) -> dict[str, list[range]]:
        """By input, the numbers by which what is compared comes close to the other.

        Of a remainder also those of the periods on both sides, where signs are others.
        No limit of an index is told after this.

        Args:
            fixed: Only those that are the same at all extents, whatever these are.
        """
        turns: dict[str, list[range]] = {}
        self._dim, self._indexed, self._conversions = "", {}, {}
        for level, operand, other, near in self._compared(exactly=fixed):
            if (
                fixed
                and isinstance(other, Scalar)
                and (other.extents or not other.value)
            ):
                continue
            self.found, self._conversions = {}, {}
            self._hold(level, operand, near)
            for name, limit in (self.found | self._conversions).items():
                for by in {0, limit.period, -limit.period}:
                    there = range(limit.start + by, limit.stop + by)
                    turns.setdefault(name, []).append(there)
        return turns

    def _compared(
        self, *, exactly: bool
    ) -> Iterator[tuple[int, ir.Operand, ir.Operand, Limit]]:
        """Values that are compared, with what, and what is close to that.

        Of two of which nothing is known either is close to some numbers.  What is
        divided is close to the first multiples.

        Args:
            exactly: Close are those alone between which a comparison turns, which are
                others for `<` than for `<=`.
        """
        for level, node in self._nodes:
            if not isinstance(node, ir.Apply) or len(node.operands) != 2:
                continue
            for near in self._multiples(node):
                yield level, *node.operands, near
            if node.op.truth is not Truth.COMPARES and node.op not in _EXTREMES:
                continue
            known = [self._range(level, o) for o in node.operands]
            both = [(n, n) for n in _ANCHORS] if known == [None, None] else []
            pairs = zip(node.operands, node.operands[::-1], known[::-1], strict=True)
            for operand, other, near in pairs:
                by = (1, 2) if not exactly else _around(node, operand)
                for least, most in both if near is None else [near]:
                    yield level, operand, other, Limit(least - by[0], most + by[1])

    def _multiples(self, node: ir.Apply) -> list[Limit]:
        """What is close to multiples of the number that a node divides by, if any."""
        number = ir.integer_of(node.operands[1], self._extents)
        if number is None or number < 0:
            return []
        if node.op is SHIFT_RIGHT:
            number = 1 << min(number, 63)
        elif node.op is BIT_AND:
            number = number + 1 if number & (number + 1) == 0 else 0
        elif node.op not in (FLOOR_DIVIDE, REMAINDER):
            return []
        ends = [number * times for times in range(_MULTIPLES)] if number > 1 else []
        return [Limit(end - 1, end + 1) for end in ends]

    def _index(self, level: int, node: ir.Apply) -> None:
        """What an index has to be within, if a node has one."""
        if not node.op.indexed and node.op.kind is not Kind.GATHER:
            return
        self._dim, extent = _indexed_axis(node, self._extents)
        index = node.values[1]
        if extent is not None:
            choice = self._without_negative(level, index)
            self._gathers.append(_Gather(level, index, self._dim, extent, node.result))
            self._reach(level, choice or index, extent)
            self._hold(level, index, Limit(0 if choice else -extent, extent))

    def boxes(self) -> dict[str, Limit] | None:
        """Limits of inputs that keep all indices inside together.

        None where those that are found do so already, or no numbers do.
        """
        tried = self._together
        boxes = None if self._serves() else tried.grown()
        if boxes is None:
            return None
        ends = {n: (int(b.least), int(b.most) + 1) for n, b in boxes.items()}
        found = {
            n: Limit(start, stop, of_any_size=stop - start > _MOST_TRIED)
            for n, (start, stop) in ends.items()
        }
        better = tried.undecided(found) > tried.undecided(self.found)
        inside = not self._hardly_varies() and not tried.outside(self.found)
        return None if inside and not better else found

    def made_of_bounded(self) -> dict[str, Limit]:
        """What integers may be that indices are made of, and floats with bounds."""
        found = [
            self._known.of(where, node.result)
            for gather in self._gathers
            for where, _, node in _ancestors(self._made, gather.level, gather.index)
            if isinstance(node, ir.Apply)
            and node.op in CONVERSIONS
            and not self._is_whole(where, node.operands[0])
        ]
        known = [value for value in found if value is not None]
        if not known:
            return {}
        least, most = max(v.least for v in known), min(v.most for v in known)
        return {_MADE: Limit(int(least), max(int(least), int(most)) + 1)}

    def _is_whole(self, level: int, value: ir.Operand) -> bool:
        """Whether a value is known to be of integers; those of blocks' are not told."""
        if level or isinstance(value, Scalar):
            return True
        dtype = self._types[value].dtype
        return dtype.is_integer or dtype == boolean

    def lacking_for_few(self, few_up_to: int) -> dict[str, int]:
        """By dim how many elements it lacks for a few numbers of each input."""
        return {} if self._serves() else self._together.lacking(few_up_to)

    def _serves(self) -> bool:
        """Whether what is found serves: indices are inside, inputs several numbers.

        And what they meet on their way is decided either way.
        """
        tried = self._together
        reaching = tried.undecided(self.found) == tried.undecided({})
        return reaching and not self._hardly_varies() and not tried.outside(self.found)

    def _hardly_varies(self) -> bool:
        """Whether an input has hardly any numbers."""
        return any(map(_is_narrow, self.found.values()))

    @cached_property
    def _together(self) -> _Boxes:
        return _Boxes(self._gathers, self._known, self._formats())

    def outside(self, limits: Mapping[str, Limit]) -> str | None:
        """An index that is not always inside within limits, and of what it is one."""
        gather = next(iter(self._together.outside(limits)), None)
        if gather is None:
            return None
        dim = f" of dim {gather.dim}" if gather.dim else ""
        return f"{gather.index}, for one{dim} of {gather.extent} in {gather.result}"

    def _formats(self) -> dict[str, Whole]:
        """What numbers inputs may be, and integers that are made of floats."""
        types = {n: t.dtype for n, t in self._types.items() if self._is_of_integers(n)}
        ranges = {name: range_of_format(dtype) for name, dtype in types.items()}
        whole = {
            n: Whole(max(r.least, -_MANY), min(r.most, _MANY))
            for n, r in ranges.items()
            if r is not None
        }
        return whole | {_MADE: Whole(-_MANY, _MANY)}

    def _reach(self, level: int, index: ir.Operand, extent: int) -> None:
        """Note how far an index lies outside, whatever the inputs are.

        Of positions all have to be inside, and so has what is clamped where several
        elements of inputs make one index; of others some.
        """
        ends = self._clamped.of(level, index)
        if not self._dim or ends is None or ends.least < -_MANY:
            return
        if self._is_chosen_by_positions(level, index):
            return
        least, most = ends.least, ends.most
        every = most < _MANY and not self._is_of_one(level, index)
        by = (max(most + 1, -least) if every else least + 1) - extent
        if by > 0:
            self.lacking[self._dim] = max(self.lacking.get(self._dim, 0), int(by))

    def _is_chosen_by_positions(self, level: int, index: ir.Operand) -> bool:
        """Whether positions choose what an index is, which keeps it inside."""
        return any(
            isinstance(node, ir.Apply)
            and node.op is table.WHERE
            and not self._reads_inputs(where, node.operands[0])
            for where, _, node in _ancestors(self._made, level, index)
        )

    def _reads_inputs(self, level: int, value: ir.Operand) -> bool:
        """Whether a value is made of inputs."""
        made = _ancestors(self._made, level, value)
        return any(name in self._inputs for _, name, _ in made)

    def _is_of_one(self, level: int, value: ir.Operand) -> bool:
        """Whether each element is made of one element of an input, and of no other."""
        if isinstance(value, Scalar) or value in self._positions:
            return False
        level, node = self._made.get((level, value), (level, None))
        if isinstance(node, ir.Load):
            return self._is_of_one(0, node.source)
        if node is None:
            return self._is_of_integers(value)
        if not isinstance(node, ir.Apply) or node.op.kind is Kind.GATHER:
            return True
        if node.op.kind in (Kind.REDUCTION, Kind.SCAN):
            return False
        return len(node.values) == 1 and self._is_of_one(level, node.values[0])

    def compared(self, node: ir.Apply) -> Compared | None:
        """What is known of a comparison of positions."""
        if node.op not in (LESS, table.LESS_EQUAL, table.EQUAL):
            return None
        first, second = (self._range(0, o) for o in node.operands)
        if first is None or second is None:
            return None
        below = second[0] - first[1] + (node.op is table.LESS_EQUAL)
        above = first[0] - second[1] + (node.op is LESS)
        ours, theirs = map(self._lengthening, node.operands)
        return Compared(node.result, below, above, ours - theirs, theirs - ours)

    def _lengthening(self, operand: ir.Operand) -> frozenset[str]:
        """The dims that make positions, or a number, reach further."""
        if isinstance(operand, Scalar):
            return frozenset(name for name, _ in operand.extents)
        return frozenset(self._types[operand].names)

    def _without_negative(self, level: int, index: str) -> ir.Operand | None:
        """What an index is made of where a number replaces what of it is below 0."""
        choice = self._maker(level, index)
        if choice is None or choice.op is not table.WHERE:
            return None
        holds, number, value = choice.operands
        test = self._maker(level, str(holds))
        if test is None or test.op is not LESS:
            return None
        replaced = test.operands == (value, scalar(0)) and isinstance(number, Scalar)
        return value if replaced else None

    def _maker(self, level: int, value: str) -> ir.Apply | None:
        _, node = self._made.get((level, value), (level, None))
        return node if isinstance(node, ir.Apply) else None

    def _hold(self, level: int, value: ir.Operand, limit: Limit) -> None:
        """Limit what a value is made of, so that it is within a limit."""
        if isinstance(value, Scalar):
            return
        where, node = self._made.get((level, value), (level, None))
        match node:
            case None:
                if self._choosing and value in self._positions:
                    self._conversions[_FOUND] = limit
                self._input(value, limit)
            case ir.Load():
                self._hold(0, node.source, limit)
            case ir.Accumulate() if node.reduction is not None and not node.adds:
                self._chosen(where, node.operand, limit)
            case ir.Store() | ir.Accumulate():
                self._hold(where, node.operand, limit)
            case ir.Apply():
                self._within(where, node, limit)
            case _:
                pass

    def _is_of_integers(self, name: str) -> bool:
        """Whether a value is an input of integers."""
        return name in self._inputs and self._types[name].dtype.is_integer

    def _input(self, name: str, limit: Limit) -> None:
        if not self._is_of_integers(name):
            return
        known = self.found.get(name, limit)
        both = Limit(max(known.start, limit.start), min(known.stop, limit.stop))
        dims = self._indexed.setdefault(name, set())
        dims |= {self._dim} - {""}
        for dim in dims if both.is_empty else ():
            by = both.start - both.stop + 1
            self.lacking[dim] = max(self.lacking.get(dim, 0), by)
        same = known.period == limit.period
        self.found[name] = (
            known
            if both.is_empty
            else replace(both, period=known.period if same else 0)
        )

    def _within(self, level: int, node: ir.Apply, limit: Limit) -> None:
        """Limit the operands of an operator, so that its result is within a limit."""
        op, operands = node.op, node.operands
        if op.kind is Kind.LIBRARY:
            self._conversions[_FOUND] = limit
        elif op in (MAX, MIN):
            self._chosen(level, operands[0], limit)
        else:
            self._within_elements(level, node, limit)

    def _within_elements(self, level: int, node: ir.Apply, limit: Limit) -> None:
        """The same of what moves elements, or computes each of its own operands."""
        op, operands = node.op, node.operands
        if op in (table.ADD, table.SUB):
            self._sum(level, operands, limit, -1 if op is table.SUB else 1)
        elif op is NEG:
            self._hold(level, operands[0], Limit(1 - limit.stop, 1 - limit.start))
        elif op is table.WHERE:
            self._either(level, operands[1:], limit)
        elif op in CONVERSIONS:
            self._conversions[_MADE] = limit
            self._hold(level, operands[0], limit)
        elif op.kind is Kind.GATHER:
            self._hold(level, operands[0], limit)
        elif op.kind in (Kind.VIEW, Kind.CONCAT):
            for operand in operands:
                self._hold(level, operand, limit)
        elif op.kind is Kind.ELEMENTWISE and op.truth is not Truth.COMPARES:
            self._by_number(level, op, operands, limit)

    def _chosen(self, level: int, value: ir.Operand, limit: Limit) -> None:
        """Limit what one element is taken of, by its size."""
        before, self._choosing = self._choosing, True
        self._hold(level, value, limit)
        self._choosing = before

    def _either(self, level: int, operands: Sequence[ir.Operand], limit: Limit) -> None:
        """Operands of which one is chosen: what either of them may be made of."""
        before, ways = self.found, list[dict[str, Limit]]()
        for operand in operands:
            self.found = {}
            self._hold(level, operand, limit)
            ways.append(self.found)
        self.found = before
        for name in {n: None for way in ways for n in way}:
            found = [way[name] for way in ways if name in way]
            start, stop = min(f.start for f in found), max(f.stop for f in found)
            self._input(name, replace(found[0], start=start, stop=stop))

    def _by_number(
        self, level: int, op: Operator, operands: Sequence[ir.Operand], limit: Limit
    ) -> None:
        """Where one operand is a number that is known."""
        value, number = operands[0], ir.integer_of(operands[-1], self._extents)
        if op is table.MUL and number is None:
            value, number = operands[-1], ir.integer_of(operands[0], self._extents)
        if number is None or (number <= 0 and op not in _EXTREMES):
            self._each(level, op, operands, limit)
            return
        if op is table.MUL:
            limit = limit.divided(number)
        elif op in (FLOOR_DIVIDE, SHIFT_RIGHT):
            limit = limit.times(number if op is FLOOR_DIVIDE else 1 << min(number, 63))
        elif op is REMAINDER or (op is BIT_AND and number & (number + 1) == 0):
            period = number if op is REMAINDER else number + 1
            within = Limit(max(limit.start, 0), min(limit.stop, period), period)
            if (within.start, within.stop) == (0, period):
                return
            limit = limit if within.is_empty else within
        elif op is table.MINIMUM and number < limit.stop:
            limit = replace(limit, stop=_MANY)
        elif op is table.MAXIMUM and number >= limit.start:
            limit = replace(limit, start=-_MANY)
        self._hold(level, value, limit)

    def _each(
        self, level: int, op: Operator, operands: Sequence[ir.Operand], limit: Limit
    ) -> None:
        """All operands; of a maximum or a minimum one may lie beyond a limit.

        That is where the other one keeps the result inside.
        """
        ends = [self._clamped.of(level, operand) for operand in operands]
        for operand, other in zip(operands, ends[::-1], strict=True):
            own = limit
            if other is not None and op is table.MINIMUM and other.most < limit.stop:
                own = replace(limit, stop=_MANY)
            if other is not None and op is table.MAXIMUM and other.least >= limit.start:
                own = replace(limit, start=-_MANY)
            self._hold(level, operand, own)

    def _sum(
        self, level: int, operands: Sequence[ir.Operand], limit: Limit, sign: int
    ) -> None:
        """Both operands of a sum, or of a difference."""
        known = [self._range(level, o) for o in operands]
        for at, (operand, other) in enumerate(zip(operands, known[::-1], strict=True)):
            own = limit
            if other is not None:
                least, most = other
                if not at and sign < 0:
                    least, most = -most, -least
                own = Limit(limit.start - least, limit.stop - most, limit.period)
                if own.is_empty and known[at] is None and self._dim:
                    by = own.start - own.stop + 1
                    self.lacking[self._dim] = max(self.lacking.get(self._dim, 0), by)
                own = own if not own.is_empty else limit.moved(least)
                if at and sign < 0:
                    own = Limit(1 - own.stop, 1 - own.start, limit.period)
            elif known[at] is None and sign > 0:
                half = -(-limit.stop // 2)
                own = Limit(0, max(half if not at else limit.stop - half + 1, 1))
            if known[at] is None or self._through_positions:
                self._hold(level, operand, own)

    def _range(self, level: int, value: ir.Operand) -> tuple[int, int] | None:
        """The least and the largest that a value can be, where that is known."""
        known = self._known.of(level, value)
        return known and (int(known.least), int(known.most))


# -- Ranges of what indices are made of ------------------------------------------------


def _around(node: ir.Apply, operand: ir.Operand) -> tuple[int, int]:
    """How far before and behind what it meets numbers are between which it turns.

    `x < 5` turns between 4 and 5, `x <= 5` and `5 < x` between 5 and 6.
    """
    if node.op not in (LESS, table.LESS_EQUAL):
        return 1, 2
    before = (node.op is LESS) == (operand is node.operands[0])
    return (1, 1) if before else (0, 2)


Made = dict[tuple[int, str], tuple[int, ir.BlockNode]]
"""By level and name what makes a value, and at which level."""
Boxes = Mapping[str, Whole]
"""By input a range; by `_MADE`, that of integers that are made of floats."""

_UNLIMITED = Whole(-(1 << 200), 1 << 200)
"""More than operators on indices bring back below `_MANY`."""
_DEEPEST = 100
"""How many operators ranges are told through."""
_BOUNDED = {
    "sigmoid": Whole(0, 1),
    "tanh": Whole(-1, 1),
    "erf": Whole(-1, 1),
    "sin": Whole(-1, 1),
    "cos": Whole(-1, 1),
}
"""Floats that are never further."""


def _ancestors(
    made: Made, level: int, value: ir.Operand
) -> Iterator[tuple[int, str, ir.BlockNode | None]]:
    """A value and all that it is made of, with the levels and the nodes."""
    waiting: list[tuple[int, ir.Operand]] = [(level, value)]
    seen = set[tuple[int, ir.Operand]]()
    while waiting:
        level, value = waiting.pop()
        if isinstance(value, Scalar) or (level, value) in seen:
            continue
        seen.add((level, value))
        where, node = made.get((level, value), (level, None))
        yield where, value, node
        if isinstance(node, ir.Load):
            waiting.append((0, node.source))
        elif isinstance(node, ir.Apply):
            waiting += [(where, operand) for operand in node.operands]


@dataclass
class _Ranges:
    """Between which numbers values are.

    Attributes:
        made: What makes them.
        extents: Of the graph's dims.
        positions: How many elements indices of dims have.
        given: Ranges of inputs.
        of_floats: The range of integers that are made of floats of which nothing is
            known; None for those of which something is told by the floats.
        anything: What is known of what nothing is known of.
    """

    made: Made
    extents: Mapping[str, int | None]
    positions: Mapping[str, int]
    given: Boxes
    of_floats: Whole | None = None
    anything: Whole | None = None
    known: dict[tuple[int, str], Whole | None] = field(
        default_factory=dict[tuple[int, str], Whole | None], init=False
    )

    def of(self, level: int, value: ir.Operand, depth: int = 0) -> Whole | None:
        """What is known of a value."""
        if isinstance(value, Scalar):
            return range_of_number(ir.integer_of(value, self.extents))
        if (level, value) not in self.known:
            found = self._found(level, value, depth)
            self.known[level, value] = self.anything if found is None else found
        return self.known[level, value]

    def _found(self, level: int, value: str, depth: int) -> Whole | None:
        if value in self.positions:
            return Whole(0, self.positions[value] - 1)
        where, node = self.made.get((level, value), (level, None))
        if node is None:
            return self.given.get(value)
        if isinstance(node, ir.Load):
            return self.of(0, node.source, depth)
        if not isinstance(node, ir.Apply) or depth == _DEEPEST:
            return None
        if node.op.name in _BOUNDED:
            return _BOUNDED[node.op.name]
        given = [self.of(where, o, depth + 1) for o in node.operands]
        if node.op in CONVERSIONS and given == [None]:
            return self._of_float(where, node.operands[0])
        if node.op.kind in (Kind.REDUCTION, Kind.SCAN):
            return self._joined(node, given[0])
        return range_of(node.op, given)

    def _of_float(self, level: int, value: ir.Operand) -> Whole | None:
        """The range of an integer made of a float, which may be clamped on its way."""
        known = self._with_floats.of(level, value)
        least, most = (known.least, known.most) if known else (-_MANY, _MANY)
        given = self.of_floats
        if given is not None and given.least <= most and least <= given.most:
            return Whole(max(least, given.least), min(most, given.most))
        return None if least <= -_MANY or most >= _MANY else Whole(least, most)

    @cached_property
    def _with_floats(self) -> _Ranges:
        return replace(self, anything=_UNLIMITED)

    def _joined(self, node: ir.Apply, value: Whole | None) -> Whole | None:
        """What numbers of a range are together: their sum, or one of them."""
        if value is None or node.op.name not in (*_SUMS, *_SELECTIONS):
            return None
        extents = [self.extents.get(d) for d in (*node.over, *node.along)]
        if node.op.name in _SELECTIONS:
            return value
        if None in extents:
            return None
        count = math.prod(e for e in extents if e is not None)
        least = 1 if node.along else count
        ends = [n * by for n in (value.least, value.most) for by in (least, count)]
        return Whole(min(ends), max(ends))


@dataclass(frozen=True)
class _Gather:
    """An index, and of how many elements of which dim, which may have no name."""

    level: int
    index: str
    dim: str
    extent: int
    result: str


class _Boxes:
    """Ranges of inputs for all indices to be inside, found by trying.

    First one number for each input, by steps that grow and shrink; then enough beside
    it for choices to come out either way, and as many as there are.

    Args:
        gathers: What is indexed.
        known: What indices are made of.
        formats: What numbers inputs may be.
    """

    def __init__(
        self, gathers: Sequence[_Gather], known: _Ranges, formats: Boxes
    ) -> None:
        self._known = known
        read = {gather: self._read(gather, formats) for gather in gathers}
        self._gathers = [gather for gather, names in read.items() if names]
        self._formats = {n: formats[n] for names in read.values() for n in names}
        self._choices = self._chosen()

    def _chosen(self) -> list[tuple[int, ir.Apply]]:
        """What decides between numbers on the way to an index, with its level."""
        found = {
            (where, node.result): (where, node)
            for gather in self._gathers
            for where, _, node in _ancestors(
                self._known.made, gather.level, gather.index
            )
            if isinstance(node, ir.Apply) and self._decides(node)
        }
        return list(found.values())

    @staticmethod
    def _decides(node: ir.Apply) -> bool:
        """Whether a node decides by more than one number, beside which is drawn."""
        of_one = node.op is table.EQUAL and any(
            isinstance(o, Scalar) for o in node.operands
        )
        compares = node.op.truth is Truth.COMPARES and not of_one
        return compares or node.op in _DECIDING

    def _read(self, gather: _Gather, formats: Boxes) -> list[str]:
        """The inputs that an index is made of."""
        found: dict[str, None] = {}
        for _, value, node in _ancestors(self._known.made, gather.level, gather.index):
            if node is None and value in formats:
                found[value] = None
            elif isinstance(node, ir.Apply) and node.op in CONVERSIONS:
                found[_MADE] = None
        return list(found)

    def outside(self, limits: Mapping[str, Limit]) -> dict[_Gather, int]:
        """How far indices may be outside within limits, where they may be."""
        return self._outside(self._within(limits))

    def undecided(self, limits: Mapping[str, Limit]) -> int:
        """How many choices come out either way within limits."""
        boxes = self._within(limits)
        return sum(self._is_undecided(choice, boxes) for choice in self._choices)

    def _within(self, limits: Mapping[str, Limit]) -> dict[str, Whole]:
        boxes = dict(self._formats)
        for name, limit in limits.items():
            most = limit.stop - 1
            if limit.period or limit.among or name not in boxes:
                continue
            own = boxes[name]
            boxes[name] = Whole(max(own.least, limit.start), min(own.most, most))
        return boxes

    def grown(self) -> dict[str, Whole] | None:
        """The ranges; without those of inputs that may be anything, None for none."""
        point = self._point()
        if self._distance(point):
            return None
        boxes = {name: Whole(n, n) for name, n in point.items()}
        for name in boxes:
            few = {**boxes, name: self._few(name, point[name])}
            boxes = boxes if self._outside(few) else few
        for choice in self._choices:
            boxes = self._reaching(choice, boxes, self._outside) or boxes
        steps = {(name, side): 1 for name in boxes for side in (1, -1)}
        while any(steps.values()):
            for (name, side), step in steps.items():
                more = self._wider(boxes[name], self._formats[name], side * step)
                grows = bool(step) and more != boxes[name]
                if grows and not self._outside({**boxes, name: more}):
                    boxes[name], steps[name, side] = more, 2 * step
                else:
                    steps[name, side] = step // 2 if grows else 0
        return {n: b for n, b in boxes.items() if b != self._formats[n]}

    def lacking(self, most: int) -> dict[str, int]:
        """By dim how many elements it lacks for a few numbers of each input.

        And for choices to come out either way, where it takes no more than `most`.
        """

        def too_many(boxes: Boxes) -> bool:
            return any(by > most for by in self._lacking(boxes).values())

        boxes = {name: self._few(name, n) for name, n in self._point().items()}
        for choice in self._choices:
            boxes = self._reaching(choice, boxes, too_many) or boxes
        return {dim: by for dim, by in self._lacking(boxes).items() if by <= most}

    def _lacking(self, boxes: Boxes) -> dict[str, int]:
        found: dict[str, int] = {}
        for gather, by in self._outside(boxes).items():
            if gather.dim:
                found[gather.dim] = max(found.get(gather.dim, 0), by)
        return found

    def _few(self, name: str, number: int) -> Whole:
        """A few numbers about one."""
        whole, box = self._formats[name], Whole(number, number)
        for by in (_FEW // 2, -(_FEW // 2)):
            box = self._wider(box, whole, by)
        return box

    def _reaching(
        self,
        choice: tuple[int, ir.Apply],
        boxes: dict[str, Whole],
        refused: Callable[[Boxes], object],
    ) -> dict[str, Whole] | None:
        """Ranges of which one is so much wider that a choice comes out either way.

        None where none is, or all are refused.
        """
        if self._is_undecided(choice, boxes):
            return None
        for name, side in itertools.product(boxes, (1, -1)):
            wider = self._least_reaching(choice, boxes, name, side)
            if wider is not None and not refused(wider):
                return wider
        return None

    def _least_reaching(
        self, choice: tuple[int, ir.Apply], boxes: Boxes, name: str, side: int
    ) -> dict[str, Whole] | None:
        """Ranges of which one is wider at a side, by as little as serves a choice."""

        def widened(by: int) -> dict[str, Whole]:
            wider = self._wider(boxes[name], self._formats[name], side * by)
            return {**boxes, name: wider}

        def serves(by: int) -> bool:
            return self._is_undecided(choice, widened(by))

        if not serves(_POWERS_OF_TWO[-1]):
            return None
        most = _POWERS_OF_TWO[bisect_left(_POWERS_OF_TWO, True, key=serves)]
        numbers = range(most // 2 + 1, most + 1)
        return widened(numbers[bisect_left(numbers, True, key=serves)])

    def _is_undecided(self, choice: tuple[int, ir.Apply], boxes: Boxes) -> bool:
        """Whether a choice comes out either way in ranges, as far as these tell."""
        (where, node), ranges = choice, self._ranges(boxes)
        given = [ranges.of(where, operand) for operand in node.operands]
        known = [value for value in given if value is not None]
        if len(known) < len(given):
            return False
        if node.op in _EXTREMES:
            first, second = known
            return first.least < second.most and second.least < first.most
        if node.op is ABS:
            return known[0].least < 0 < known[0].most
        found = range_of(node.op, known)
        if node.op is REMAINDER:
            return found != known[0]
        return found is not None and found.least < found.most

    @staticmethod
    def _wider(box: Whole, whole: Whole, by: int) -> Whole:
        """A range with so many more numbers at one side, as far as there are any."""
        if by > 0:
            return replace(box, most=min(box.most + by, whole.most))
        return replace(box, least=max(box.least + by, whole.least))

    def _point(self) -> dict[str, int]:
        """A number for each input with which indices are inside, or nearly."""
        point = {n: int(max(0, w.least)) for n, w in self._formats.items()}
        by, step = self._distance(point), _FIRST_STEP
        for _ in range(_MOST_STEPS):
            if not by or not step:
                break
            nearer = False
            for name, side in itertools.product(point, (1, -1)):
                whole = self._formats[name]
                moved = min(max(point[name] + side * step, whole.least), whole.most)
                there = {**point, name: int(moved)}
                distance = self._distance(there)
                if distance < by:
                    point, by, nearer = there, distance, True
            step = 2 * step if nearer else step // 2
        return point

    def _distance(self, point: Mapping[str, int]) -> int:
        boxes = {name: Whole(n, n) for name, n in point.items()}
        return sum(self._outside(boxes).values())

    def _ranges(self, boxes: Boxes) -> _Ranges:
        return replace(self._known, given=boxes, of_floats=boxes.get(_MADE))

    def _outside(self, boxes: Boxes) -> dict[_Gather, int]:
        """How far indices lie outside, where they do."""
        ranges, found = self._ranges(boxes), dict[_Gather, int]()
        for gather in self._gathers:
            index = ranges.of(gather.level, gather.index)
            by = _MANY
            if index is not None:
                by = max(index.most - gather.extent + 1, -gather.extent - index.least)
            if by > 0:
                found[gather] = int(by)
        return found


def _levels(graph: ir.KernelGraph) -> Iterator[tuple[int, ir.BlockNode]]:
    """All nodes with the number of their level: 0, or one for each block."""
    for number, node in enumerate(graph.nodes, 1):
        if isinstance(node, ir.Apply):
            yield 0, node
        else:
            yield from ((number, inner) for inner in node.nodes)


# -- Values drawn ----------------------------------------------------------------------

SMALL = 4
"""Half of the integers that are drawn lie below it, so that some are equal."""
_STEPS = 64.0
_SMALL_BITS = 10
"""Of small ones among numbers of any size, at most."""
_WORD = 64
"""Bits of a random number."""
_LONG = 64
"""Ranges of more numbers turn between their ends too, where chance does not come."""
_PARTS = 6
"""Of such a range, at the ends of which it turns: what a quotient of it is within is
three numbers, or two."""
_MOST_LONG = 1 << 62


@dataclass(frozen=True)
class Bias:
    """Which way numbers are drawn; arrays broadcast with the random ones.

    Limits of indices come before it.

    Attributes:
        turned: Where most are beside turns, so that several inputs are at once.
        far: Where none of the others are small.
        sign: 1 and -1 where all numbers are at least 0, or below it, if their format
            has such; 0 where they are any.  Chance hardly ever brings whole rows there.
    """

    turned: NDArray[np.bool_] | bool = False
    far: NDArray[np.bool_] | bool = False
    sign: NDArray[np.int64] | int = 0
    ends: NDArray[np.bool_] | bool = True


UNBIASED = Bias()


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit words without structure (SplitMix64's finaliser)."""
    with np.errstate(over="ignore"):
        words = words + np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return words ^ (words >> np.uint64(31))


def any_integers(
    rng: np.random.Generator,
    dtype: DType,
    shape: tuple[int, ...],
    limit: Limit | None = None,
    turns: Turns = (),
    bias: Bias = UNBIASED,
) -> NDArray[Any]:
    """Random numbers of a format of integers, or truth values; within limits, if any.

    Half of them are small, so that comparisons meet equal ones and products do not wrap
    around; of the others half are beside turns, if there are any, and the rest of any
    size, some as large or as small as the format allows.
    """
    words = rng.integers(0, 2**62, shape)
    return of_words(dtype, words, limit, turns, bias=bias)


Trues = tuple[int, int]
"""How many truth values are true, of how many."""
HALF: Trues = (1, 2)


def of_words(
    dtype: DType,
    words: NDArray[np.int64],
    limit: Limit | None,
    turns: Turns,
    trues: Trues = HALF,
    bias: Bias = UNBIASED,
) -> NDArray[Any]:
    """A number of a format for each random number from 0 on.

    Within limits they are indices, which count from the end where they are negative.
    Of truth values so many are true of so many.
    """
    if limit is not None:
        return beside(_indices(dtype, words, limit), words, turns, bias)
    if dtype == boolean:
        return words % trues[1] >= trues[1] - trues[0]
    least = max(int(dtype.min), -SMALL)
    small = words // 2 % (SMALL - least) + least
    is_small = (words % 2 == 0) & np.logical_not(bias.far)
    found = np.where(
        is_small, small.astype(dtype.long_name), _large(dtype, words, bias)
    )
    return _signed(dtype, beside(found, words, turns, bias), bias)


def _signed(dtype: DType, values: NDArray[Any], bias: Bias) -> NDArray[Any]:
    """Numbers of the signs that they are to have."""
    if dtype.min == 0:
        return values
    other = np.where(values < 0, -1, 1) * bias.sign < 0
    return np.where(other, ~values, values)


def _large(dtype: DType, words: NDArray[np.int64], bias: Bias) -> NDArray[Any]:
    """Numbers of a format: half of any size, a quarter of any length, and its ends."""
    bits = 8 * dtype.itemsize
    state = mixed(words.astype(np.uint64))
    kind = state % np.uint64(8)
    of_any_length = (kind == 2) | (kind == 3)
    shorter = np.where(of_any_length, state // np.uint64(8) % np.uint64(bits), 0)
    found = mixed(state) >> (shorter + np.uint64(_WORD - bits)).astype(np.uint64)
    negative = of_any_length & (state >> np.uint64(_WORD - 1) == 1)
    found = np.where(negative, ~found, found).astype(dtype.long_name)
    ends = np.where(kind == 0, int(dtype.min), int(dtype.max))
    return np.where((kind < 2) & bias.ends, ends.astype(dtype.long_name), found)


def fitted(
    dtype: DType, values: Array, limit: Limit | None = None, turns: Turns = ()
) -> Array:
    """Random floats as values that an input may have, near them if it can be.

    Floats are left as they are: rounding them is up to whoever runs a graph.
    """
    if dtype.is_float:
        return values
    steps = np.rint(np.abs(values) * _STEPS)
    if dtype == boolean:
        return np.asarray(steps % 2, values.dtype)
    if limit is not None:
        found = _indices(dtype, steps, limit)
    else:
        signed = np.where(values < 0, -steps, steps)
        found = np.clip(signed, dtype.min, min(dtype.max, 2.0**62))
    words = steps.astype(np.int64)
    return beside(found.astype(dtype.long_name), words, turns)


def beside(
    values: NDArray[Any],
    words: NDArray[np.int64],
    turns: Turns,
    bias: Bias = UNBIASED,
) -> NDArray[Any]:
    """Values for random numbers, of which some are beside turns, each turn as often.

    That is a quarter of them, or three quarters.
    """
    if not turns:
        return values
    state = mixed(words.astype(np.uint64))
    which = (state % np.uint64(len(turns))).astype(np.int64)
    # Another one, so that what is picked does not hang on which turn it is.
    further = (mixed(state) >> np.uint64(1)).astype(np.int64)
    starts = np.array([r.start for r in turns], np.int64)
    counts = np.array([min(_count(r), _MOST_LONG) for r in turns], np.int64)
    close = starts[which] + further % counts[which]
    if counts.max() > _LONG:
        ends = np.array([_ends_of_parts(r) for r in turns], np.int64)
        at_ends = (counts[which] > _LONG) & (further // ends.shape[1] % 2 == 0)
        close = np.where(at_ends, ends[which, further % ends.shape[1]], close)
    taken = np.where(bias.turned, words % 8 < 6, words % 4 == 1)
    return np.where(taken, close.astype(values.dtype), values)


def rare_numbers(turns: Turns) -> int:
    """How many numbers beside turns have to be drawn for each turn to be seen."""
    counts = map(_count, turns)
    return sum(2 * (_PARTS + 1) if n > _LONG else min(n, 3) for n in counts)


def _count(numbers: range) -> int:
    """How many numbers there are, which may be more than `len` counts."""
    return max(numbers.stop - numbers.start, 0)


def _ends_of_parts(numbers: range) -> list[int]:
    """The numbers on either side of where parts of a long range begin or end."""
    start, count = numbers.start, _count(numbers)
    ends = [start + count * part // _PARTS for part in range(_PARTS + 1)]
    return [
        min(max(e, start), numbers.stop - 1) for end in ends for e in (end - 1, end)
    ]


def _indices(dtype: DType, words: Array, limit: Limit) -> Array:
    """Indices of an axis, which count from its end where they are negative."""
    if limit.among:
        among = np.asarray(limit.among, dtype.long_name)
        return among[(words % len(among)).astype(np.int64)]
    least = max(limit.start, int(dtype.min))
    most = min(limit.stop - 1, int(dtype.max))
    count = max(most - least + 1, 1)
    further = min((int(dtype.max) - most) // limit.period, 3) if limit.period else 0
    times = words // count % (max(further, 0) + 1)
    drawn = words % count + least + times * limit.period
    if limit.of_any_size:
        drawn = np.where(
            words % 2 == 0, np.clip(_small(words // 2), least, most), drawn
        )
    return drawn.astype(dtype.long_name)


def _small(words: Array) -> Array:
    """Numbers of any length up to some bits, of both signs.

    What clamps numbers leaves hardly any of those that may be anything.
    """
    words = words.astype(np.int64)
    lengths, words = words % (_SMALL_BITS + 1), words // (_SMALL_BITS + 1)
    sizes = (words >> 1) % (1 << _SMALL_BITS) >> lengths
    return np.where(words % 2 == 0, sizes, -sizes)


def of_floats(
    dtype: DType,
    words: NDArray[np.int64],
    turns: AllTurns,
    bias: Bias = UNBIASED,
) -> NDArray[Any]:
    """An integer for each random number, where floats become integers.

    Floats of one value are one number, whichever format it is cut to.  0 and 1 are
    themselves, as truth values are.
    """
    small = np.where(words % 4 == 0, words // 4 % (2 * SMALL), _small(words // 4))
    small = np.where(bias.far, _large(i32, words, bias), small)
    within = turns.made_within
    drawn = small if within is None else _indices(dtype, words, within)
    found = beside(drawn.astype(dtype.long_name), words, turns.made, bias)
    found = found if within is not None else _signed(dtype, found, bias)
    return np.where(words < 2, words.astype(found.dtype), found)
