"""Draws of integers that are brought beside what a program decides by.

Where integers turn is told backwards, operator by operator (`ir.analysis.integers`), as
far as one input alone says it.  `a * a < 1000000`, `(a ^ 5555) < 100000`, `3 * a < b`,
a sum of products, or `(a * 1103515245 + 12345) >> 16` are turns of another kind.  So
draws are moved, one element of one input at a time, until a program decides otherwise,
and then bisected:

    a * a < 1000000   at  3: holds ... 1000: does not     999 and 1000 are drawn

What jumps over a turn at each step, as a product that is divided, is brought there by
how far one step moves it: what has to be added follows from that modulo the divisor.
All this is evaluated with NumPy, of integers alone, at small sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.types import boolean
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.evaluate import as_format, evaluate, of_rank
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import live
from mirage_dsl.ops.definition import Array, Kind, Operator, Truth
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.verify.reals import RunsDomain

Integers = NDArray[np.int64]

_SHIFT, _MASK = OPERATORS["shift_right"], OPERATORS["bit_and"]
_DIVIDING = (OPERATORS["floor_divide"], OPERATORS["remainder"], _SHIFT, _MASK)
_EXTREMES = (OPERATORS["maximum"], OPERATORS["minimum"], OPERATORS["abs"])
_LESS = (OPERATORS["less"], OPERATORS["less_equal"])
_FARTHEST = 1 << 36
"""How far an element is moved at most."""
_ROUNDS = 3
"""How often an element is moved in each run, of any input: two of them may have to be
beside each other."""
_MOST_MODULI = 4
"""Divisors modulo which what is compared may go round."""
_EACH = 24
"""Runs of each decision; half of them are on either side."""
_FEWEST_RUNS, _MOST_RUNS = 48, 256


# -- Decisions -------------------------------------------------------------------------


@dataclass(frozen=True)
class Decision:
    """What an operator decides by; the first axis of each is over the runs.

    Attributes:
        made: What it comes to, as an integer.
        value: What is compared, or divided.
        other: What it is compared with; 0 of what is divided.
        modulus: What it is divided by; 0 of what is compared.
    """

    made: Integers
    value: Integers
    other: Integers
    modulus: Integers

    @property
    def beyond(self) -> Integers:
        """By how much the value lies beyond the other one."""
        return self.value - self.other


@dataclass(frozen=True)
class _Deciding(RunsDomain):
    """Runs that keep what is decided in them, in the order of evaluation."""

    found: list[Decision] = field(default_factory=list[Decision])

    def elementwise(self, op: Operator, operands: Sequence[Array]) -> Array:
        """The row's semantics, noted."""
        made = super().elementwise(op, operands)
        decision = _decision(op, operands)
        if decision is not None:
            self.found.append(decision)
        return made


def _decision(op: Operator, operands: Sequence[Array]) -> Decision | None:
    """What an operator decides by; None if it decides nothing."""
    if not _decides(op):
        return None
    kind = next((v.dtype for v in operands if v.dtype.kind in "iu"), np.dtype(np.int64))
    rank = max(v.ndim for v in operands)
    first, *rest = (
        of_rank(as_format(v, kind), rank).astype(np.int64) for v in operands
    )
    second = rest[0] if rest else np.zeros_like(first)
    with np.errstate(all="ignore"):
        if op in _DIVIDING:
            modulus = _modulus(op, second)
            quotient = first // np.maximum(modulus, 1)
            return _spread(quotient, first, np.zeros_like(first), modulus)
        made = op.numpy(first, second) if op in _LESS else np.sign(first - second)
        return _spread(made.astype(np.int64), first, second, np.zeros_like(first))


def _decides(op: Operator) -> bool:
    return op in _EXTREMES or op in _DIVIDING or op.truth is Truth.COMPARES


def _modulus(op: Operator, number: Integers) -> Integers:
    """By what an operator divides; 0 where by nothing."""
    if op is _SHIFT:
        return np.where((number > 0) & (number < 62), 1 << (number % 62), 0)
    if op is _MASK:
        return np.where(number & (number + 1) == 0, number + 1, 0)
    return np.maximum(number, 0)


def _spread(*arrays: Integers) -> Decision:
    return Decision(*np.broadcast_arrays(*arrays))


def integer_part(program: ir.KernelGraph) -> ir.KernelGraph | None:
    """What a program decides by integers that are inputs; None if nothing.

    Positions that hang on no input decide as well: of these no draw says anything.
    """
    types = kernel_types(program)
    whole = {n for n, t in types.items() if t.dtype.is_integer or t.dtype == boolean}
    items = [i for i in program.inputs if i.name in whole]
    known = {*(i.name for i in items), *(i.name for i in program.indices)}
    wanted: list[str] = []
    for node in program.applies:
        if node.op.kind is Kind.LIBRARY or not known.issuperset(node.values):
            continue
        if node.result in whole:
            known.add(node.result)
            wanted += [node.result] if _decides(node.op) else []
    nodes = live((n for n in program.applies if n.result in known), wanted)
    read = {value for node in nodes for value in node.values}
    inputs = tuple(i for i in items if i.name in read and i.type.dtype.is_integer)
    if not inputs:
        return None
    given = tuple(i for i in items if i.name in read)
    return replace(program, inputs=given, nodes=tuple(nodes), returns=())


def runs_of(part: ir.KernelGraph) -> int:
    """How many runs it takes for each decision to be met from both sides."""
    decisions = sum(_decides(node.op) for node in part.applies)
    return min(max(_EACH * decisions, _FEWEST_RUNS), _MOST_RUNS)


# -- Moves -----------------------------------------------------------------------------


class Steering:
    """Runs in which one decision each is brought beside its turn.

    Args:
        graph: The integer part of a program.
        drawn: Its inputs; the first axis of each is over the runs.
        others: The same, drawn again: what elements are moved to.
        rng: What is moved.
    """

    def __init__(
        self,
        graph: ir.KernelGraph,
        drawn: Sequence[Array],
        others: Sequence[Array],
        rng: np.random.Generator,
    ) -> None:
        self._graph, self._drawn, self._others = graph, list(drawn), others
        self._rng = rng
        self._runs = np.arange(len(drawn[0]))
        self._movable = [
            at for at, i in enumerate(graph.inputs) if i.type.dtype.is_integer
        ]
        self._sizes = np.array([v[0].size for v in drawn])
        # Which input is moved in each run, which element of it, and of what is decided
        # the element that tells.
        self._input = self._place = self._told = np.zeros_like(self._runs)

    def run(self) -> list[Array]:
        """The inputs."""
        first = self._rng.integers(len(self._movable), size=len(self._runs))
        place = self._rng.integers(self._sizes.max(), size=len(self._runs))
        for at in self._movable:
            self._input = np.full_like(self._runs, at)
            self._place = place % self._sizes[at]
            self._bring_near()
        for number in range(_ROUNDS):
            turn = (first + number) % len(self._movable)
            self._input = np.take(self._movable, turn)
            # Inputs of one shape meet where they are moved.
            self._place = place % self._sizes[self._input]
            self._bisect()
            self._step()
        return self._drawn

    def _state(self) -> Decision:
        """By run, all elements of the decision that is brought beside its turn."""
        domain = _Deciding(checked=False)
        evaluate(self._graph, self._drawn, domain)
        width = max(math.prod(d.made.shape[1:]) for d in domain.found)
        runs = len(self._runs)
        state = [np.zeros((runs, width), np.int64) for _ in range(4)]
        for number, d in enumerate(domain.found):
            own = self._runs[number :: len(domain.found)]
            arrays = d.made, d.value, d.other, d.modulus
            for into, values in zip(state, arrays, strict=True):
                spread = np.broadcast_to(values, (runs, *values.shape[1:]))
                flat = spread.reshape(runs, -1)[own]
                into[own, : flat.shape[1]] = flat
        return Decision(*state)

    def _at(self, state: Decision) -> Decision:
        """Of the elements of each run the one that tells."""
        place = (self._runs, self._told)
        arrays = state.made, state.value, state.other, state.modulus
        return Decision(*(a[place] for a in arrays))

    def _elements(self, arrays: Sequence[Array]) -> Integers:
        """What is moved."""
        found = np.zeros(len(self._runs), np.int64)
        for at in self._movable:
            runs = self._runs[self._input == at]
            flat = arrays[at].reshape(len(self._runs), -1)
            found[runs] = flat[runs, self._place[runs]]
        return found

    def _put(self, values: Integers) -> None:
        """Other numbers in its place."""
        for at in self._movable:
            runs, array = self._runs[self._input == at], self._drawn[at]
            flat = array.reshape(len(self._runs), -1).copy()
            flat[runs, self._place[runs]] = values[runs].astype(flat.dtype)
            self._drawn[at] = flat.reshape(array.shape)

    def _bring_near(self) -> None:
        """Other numbers where what is moved is so far that what is made of it wraps."""
        values, others = self._elements(self._drawn), self._elements(self._others)
        lengths = self._rng.integers(_FARTHEST.bit_length(), size=len(values))
        few = self._rng.integers(-_FARTHEST, _FARTHEST, len(values)) >> lengths
        for other in (others, few):
            far = (values < -_FARTHEST) | (values > _FARTHEST)
            values = np.where(far, other, values)
        self._put(values)

    def _bisect(self) -> None:
        """Move an element of each run until its decision comes out otherwise."""
        start, before = self._elements(self._drawn), self._state()
        end = self._other_way(start, before)
        made = self._at(before).made
        while (apart := np.abs(end - start) > 1).any():
            middle = (start & end) + ((start ^ end) >> 1)
            self._put(middle)
            stays = self._at(self._state()).made == made
            start = np.where(stays & apart, middle, start)
            end = np.where(~stays & apart, middle, end)
        self._put(np.where(self._rng.random(len(start)) < 0.5, start, end))

    def _other_way(self, start: Integers, before: Decision) -> Integers:
        """Numbers at which a decision comes out otherwise, and which element says so.

        The same numbers where none was found.
        """
        found, known = start, self._told
        for end in self._ends(start):
            self._put(end)
            after = self._state()
            differs = np.asarray(after.made != before.made, np.bool_)
            moves = differs | (after.beyond != before.beyond)
            # The one that told before, if it does again; else one that moves at least.
            chance = np.asarray(self._rng.random(differs.shape), np.float64)
            chance[self._runs, known] += 1
            told = np.argmax(np.where(moves, chance + 2 * differs, 0.0), axis=1)
            fitting = moves.any(axis=1) & (found == start)
            self._told = np.where(fitting, told, self._told)
            found = np.where(differs.any(axis=1) & (found == start), end, found)
        return found

    def _ends(self, start: Integers) -> Iterator[Integers]:
        """Where an element may be moved: to another draw, and by numbers of any length.

        Not too far.
        """
        kinds = [
            np.iinfo(v.dtype) if v.dtype.kind in "iu" else None for v in self._drawn
        ]
        least, most = (
            np.array([(k.min, k.max)[end] if k else end for k in kinds])[self._input]
            for end in (0, 1)
        )
        drawn = self._elements(self._others)
        with np.errstate(over="ignore"):
            near = np.clip(drawn - start, -_FARTHEST, _FARTHEST)
            yield np.where((drawn < start) == (near < 0), start + near, start)
        for sign in (1, -1):
            by = sign * (
                1 << self._rng.integers(_FARTHEST.bit_length(), size=len(start))
            )
            yield np.clip(start + by, least, most)

    def _step(self) -> None:
        """Move it by as much as brings beside a turn what jumps over that."""
        start, before = self._elements(self._drawn), self._at(self._state())
        targets = self._rng.integers(-1, 1, len(start))
        with np.errstate(over="ignore"):
            self._put(start + 1)
            steps = self._at(self._state()).beyond - before.beyond
            by = targets - before.beyond
        # What moves bits is brought there by the bits in which it differs.
        ways = [start ^ before.value ^ (before.other + targets)]
        for modulus in self._moduli():
            own = np.where(before.modulus > 0, before.modulus, modulus)
            ways.append(start + _lacking(by, steps, own))
        found, there = start, _is_beside(before)
        for moved in ways:
            self._put(np.where(there, found, moved))
            reached = _is_beside(self._at(self._state()))
            found = np.where(reached & ~there, moved, found)
            there |= reached
        self._put(found)

    def _moduli(self) -> list[int]:
        """What is divided by, and 0."""
        some = np.unique(self._state().modulus)[::-1]
        return [*(int(m) for m in some[:_MOST_MODULI] if m > 1), 0]


def _lacking(by: Integers, steps: Integers, moduli: Integers) -> Integers:
    """How many steps make up so much, modulo numbers; 0 where none do."""
    each = zip(by.tolist(), steps.tolist(), moduli.tolist(), strict=True)
    found = [_solution(*one) for one in each]
    return np.array([n if abs(n) < _FARTHEST else 0 for n in found], np.int64)


def _is_beside(decision: Decision) -> NDArray[np.bool_]:
    """Where what decides is beside a turn: of a period, or of what it is beside."""
    modulus = np.maximum(decision.modulus, 1)
    at_end = (decision.beyond + 1) % modulus < 2
    return np.where(decision.modulus > 1, at_end, np.abs(decision.beyond) < 2)


def _solution(by: int, step: int, modulus: int) -> int:
    """The least n for which n steps make up so much, modulo a number if it is not 0.

    0 where there is none.
    """
    if not step or not modulus:
        return by // step if step else 0
    common = math.gcd(step, modulus)
    if by % common:
        return 0
    rest = modulus // common
    found = by // common * pow(step // common, -1, rest) % rest
    return found if 2 * found < rest else found - rest
