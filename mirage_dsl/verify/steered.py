"""Draws of integers that are brought beside what a program decides by.

Where integers turn is told backwards, operator by operator (`ir.analysis.integers`), as
far as one input alone says it.  `a * a < 1000000`, `(a ^ 5555) < 100000`, `3 * a < b`,
a sum of products, or `(a * 1103515245 + 12345) >> 16` are turns of another kind.  So
draws are moved, one element of one input at a time, until a program decides otherwise,
and what lies between is cut into parts:

    a * a < 1000000   at  3: holds ... 1000: does not     999 and 1000 are drawn

What jumps over a turn at each step, as a product that is divided, is brought there by
how far one step moves it: what has to be added follows from that modulo the divisor.
Where nothing follows, elements are moved by steps of a divisor, from beside a multiple
of it, and ever nearer to the turn by single bits and any other numbers:

    a % 1000 * (a // 1000) < 50000   at  1: holds   1001 ... 50000001: does not

Floats that become integers are moved as integers are: what they become is a random
function of theirs, which is told its values (`fields.Conversions`).  All this is
evaluated with NumPy, of integers alone, at small sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.types import DType, TensorType, boolean, i32
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.integers import CONVERSIONS, Limit
from mirage_dsl.ir.evaluate import as_format, evaluate, of_rank
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import live, repeats, with_operands
from mirage_dsl.ops.definition import Array, Kind, Operator, Truth
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.verify.reals import TOGETHER, RunsDomain, largest_value

Integers = NDArray[np.int64]

_SHIFT, _MASK = OPERATORS["shift_right"], OPERATORS["bit_and"]
_DIVIDING = (OPERATORS["floor_divide"], OPERATORS["remainder"], _SHIFT, _MASK)
_EXTREMES = (OPERATORS["maximum"], OPERATORS["minimum"], OPERATORS["abs"])
_LESS = (OPERATORS["less"], OPERATORS["less_equal"])
_FARTHEST = 1 << 36
"""How far an element is moved at most."""
_FEWEST_NUMBERS, _MOST_NUMBERS = 4, 64
"""How many numbers are tried at once in the place of an element, or about so many."""
_BY_ONE = 0.25
"""How often elements are moved by steps of 1 where something is divided."""
_ENOUGH = 0.75
"""What part of the runs is enough, if each third of them is brought elsewhere."""
_DESCENTS = 6
"""How often it is moved nearer at last."""
_ROUNDS = 4
"""How often an element is moved in each run, of any input: two of them may have to be
beside each other."""
_MOST_MODULI = 4
"""Divisors modulo which what is compared may go round."""
_EACH = 24
"""Runs of each decision; half of them are on either side."""
_FEWEST_RUNS, _MOST_RUNS = 48, 256
_MOST_ELEMENTS = 1 << 20
"""Of a tensor in all runs: where it is large there are fewer."""


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
    def arrays(self) -> tuple[Integers, Integers, Integers, Integers]:
        """All of them."""
        return self.made, self.value, self.other, self.modulus

    @property
    def beyond(self) -> Integers:
        """By how much the value lies beyond the other one."""
        return self.value - self.other


_Deciders = tuple[Operator, Sequence[Array]]
"""What decides, and of what."""


@dataclass(frozen=True)
class _Deciding(RunsDomain):
    """Runs that keep what is decided in them, in the order of evaluation."""

    found: list[_Deciders] = field(default_factory=list[_Deciders])

    def elementwise(self, op: Operator, operands: Sequence[Array]) -> Array:
        """The row's semantics, noted."""
        if _decides(op):
            self.found.append((op, operands))
        return super().elementwise(op, operands)


def _decision(
    deciders: _Deciders, rows: Integers, told: Integers | None = None
) -> Decision:
    """What is decided in some of the runs: of all elements, or of one in each column.

    The last axis is over the elements.
    """
    op, operands = deciders
    kind = next((v.dtype for v in operands if v.dtype.kind in "iu"), np.dtype(np.int64))
    rank = max(v.ndim for v in operands)
    # What is the same in all runs is there once.
    picked = [of_rank(v, rank)[rows % len(v)] for v in operands]
    flat = [v.reshape(*rows.shape, -1) for v in np.broadcast_arrays(*picked)]
    if told is not None:
        columns = np.arange(len(told))
        flat = [v[:, columns, told][..., None] for v in flat]
    first, *rest = (as_format(v, kind).astype(np.int64) for v in flat)
    second, zeros = rest[0] if rest else np.zeros_like(first), np.zeros_like(first)
    with np.errstate(all="ignore"):
        if op in _DIVIDING:
            modulus = _modulus(op, second)
            return Decision(first // np.maximum(modulus, 1), first, zeros, modulus)
        made = op.numpy(first, second) if op in _LESS else np.sign(first - second)
        return Decision(made.astype(np.int64), first, second, zeros)


def _decides(op: Operator) -> bool:
    return op in _EXTREMES or op in _DIVIDING or op.truth is Truth.COMPARES


def _modulus(op: Operator, number: Integers) -> Integers:
    """By what an operator divides; 0 where by nothing."""
    if op is _SHIFT:
        return np.where((number > 0) & (number < 62), 1 << (number % 62), 0)
    if op is _MASK:
        return np.where(number & (number + 1) == 0, number + 1, 0)
    return np.maximum(number, 0)


def integer_part(program: ir.KernelGraph) -> ir.KernelGraph | None:
    """What a program decides by integers that it is given, or makes of floats.

    Floats of which it makes integers are inputs too, of a format that all of these
    have.  None if nothing is decided; positions that hang on no input decide as well:
    of these no draw says anything.
    """
    types, names = kernel_types(program), repeats(program)
    whole = {n for n, t in types.items() if not t.dtype.is_float}
    items = [i for i in program.inputs if i.name in whole]
    known = {*(i.name for i in items), *(i.name for i in program.indices)}
    items += _as_integers(program, types)
    of_floats = {i.name for i in items} - whole
    wanted: list[str] = []
    nodes: list[ir.Apply] = []
    for node in program.applies:
        own = with_operands(node, names)
        ready = known | of_floats if node.op in CONVERSIONS else known
        usable = node.result in whole and node.op.kind is not Kind.LIBRARY
        if usable and node.result not in names and ready.issuperset(own.values):
            known.add(own.result)
            nodes.append(own)
            wanted += [own.result] if _decides(own.op) else []
    nodes = live(nodes, wanted)
    read = {value for node in nodes for value in node.values}
    given = tuple(i for i in items if i.name in read)
    if all(i.type.dtype == boolean for i in given):
        return None
    return replace(program, inputs=given, nodes=tuple(nodes), returns=())


def floats_made_whole(program: ir.KernelGraph) -> list[tuple[str, DType]]:
    """Floats that become integers, and of what format, in the order of evaluation.

    Equal ones have one name.
    """
    types, names = kernel_types(program), repeats(program)
    made = (
        (n.values[0], types[n.result].dtype)
        for n in program.applies
        if n.op in CONVERSIONS and n.values and types[n.values[0]].dtype.is_float
    )
    return [(names.get(value, value), dtype) for value, dtype in made]


def _as_integers(
    program: ir.KernelGraph, types: Mapping[str, TensorType]
) -> list[ir.Input]:
    """Floats of which integers are made, as inputs of 32 bits, or fewer."""
    formats: dict[str, DType] = {}
    for name, own in floats_made_whole(program):
        formats[name] = min(own, formats.get(name, i32), key=lambda f: f.itemsize)
    return [ir.Input(n, types[n].in_memory.with_dtype(f)) for n, f in formats.items()]


def runs_of(part: ir.KernelGraph) -> int:
    """How many runs it takes for each decision to be met from both sides."""
    decisions = _decisions(part)
    wanted = min(max(_EACH * decisions, _FEWEST_RUNS), _MOST_RUNS)
    return min(wanted, max(_MOST_ELEMENTS // largest_value(part), decisions))


def _decisions(part: ir.KernelGraph) -> int:
    return sum(_decides(node.op) for node in part.applies)


# -- Moves -----------------------------------------------------------------------------


class Steering:
    """Runs in which one decision each is brought beside its turn.

    Args:
        graph: The integer part of a program.
        drawn: Its inputs; the first axis of each is over the runs.
        rng: What is moved.
        limits: By input what it may be, if not all that its format has.
    """

    def __init__(
        self,
        graph: ir.KernelGraph,
        drawn: Sequence[Array],
        rng: np.random.Generator,
        limits: Mapping[str, Limit] = MappingProxyType({}),
    ) -> None:
        self._graph, self._drawn, self._rng = graph, list(drawn), rng
        self._runs = np.arange(len(drawn[0]))
        dtypes = [i.type.dtype for i in graph.inputs]
        self._movable = [at for at, dtype in enumerate(dtypes) if dtype.is_integer]
        ends = [_ends_of(i.type.dtype, limits.get(i.name)) for i in graph.inputs]
        self._ends = np.array(ends, np.int64).T
        self._sizes = np.array([v[0].size for v in drawn])
        numbers = TOGETHER // (len(self._runs) * largest_value(graph))
        self._numbers = min(max(numbers, _FEWEST_NUMBERS), _MOST_NUMBERS)
        # Which input is moved in each run, which element of it, of what is decided the
        # element that tells, and whether it is beside its turn.
        self._input = self._place = self._told = np.zeros_like(self._runs)
        self._there = np.zeros_like(self._runs, np.bool_)
        # By how much what decides is to be beyond what it is compared with.
        self._decisions = _decisions(graph)
        self._targets = self._runs // self._decisions % 3 - 1
        self._moduli = np.zeros(0, np.int64)

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
            self._step(self._cross())
            no_other_way = len(self._movable) == 1 and not len(self._moduli)
            if self._are_enough():
                return self._drawn
            if no_other_way:
                break
        self._descend()
        return self._drawn

    def _tried(self, values: Integers, *, told: bool = False) -> Decision:
        """What is decided with each of some numbers in the place of what is moved.

        By number and run, of all elements of the decision that is brought beside its
        turn, or of the one that tells.
        """
        domain = _Deciding(checked=False)
        evaluate(self._graph, self._with(values), domain)
        rows = np.arange(len(values))[:, None] * len(self._runs)
        parts: list[tuple[Integers, Decision]] = []
        for number, deciders in enumerate(domain.found):
            own = self._runs[number :: self._decisions]
            place = self._told[own] if told else None
            parts.append((own, _decision(deciders, rows + own, place)))
        width = max(part.made.shape[-1] for _, part in parts)
        state = [np.zeros((*values.shape, width), np.int64) for _ in range(4)]
        for own, part in parts:
            for into, found in zip(state, part.arrays, strict=True):
                into[:, own, : found.shape[-1]] = found
        return Decision(*(a[..., 0] for a in state) if told else state)

    def _elements(self) -> Integers:
        """What is moved."""
        found = np.zeros(len(self._runs), np.int64)
        for at in self._movable:
            runs = self._runs[self._input == at]
            flat = self._drawn[at].reshape(len(self._runs), -1)
            found[runs] = flat[runs, self._place[runs]]
        return found

    def _with(self, values: Integers) -> list[Array]:
        """The inputs with other numbers in its place, one after the other.

        What an input may not be becomes the nearest that it may.
        """
        found: list[Array] = []
        values = np.clip(values, *self._ends[:, self._input])
        for at, array in enumerate(self._drawn):
            copies = np.repeat(array[None], len(values), axis=0)
            if at in self._movable:
                runs = self._runs[self._input == at]
                flat = copies.reshape(*values.shape, -1)
                flat[:, runs, self._place[runs]] = values[:, runs].astype(array.dtype)
            found.append(copies.reshape(-1, *array.shape[1:]))
        return found

    def _put(self, values: Integers) -> None:
        """Other numbers in its place, one in each run."""
        self._drawn = self._with(values[None])

    def _bring_near(self) -> None:
        """Other numbers where what is moved is so far that what is made of it wraps."""
        values = self._elements()
        far = (values < -_FARTHEST) | (values > _FARTHEST)
        self._put(np.where(far & ~self._there, self._near(len(values)), values))

    def _near(self, *shape: int) -> Integers:
        """Numbers of any length, not too far from 0."""
        lengths = self._rng.integers(_FARTHEST.bit_length(), size=shape)
        return self._rng.integers(-_FARTHEST, _FARTHEST, shape) >> lengths

    def _cross(self) -> list[Integers]:
        """What is moved, and numbers of which a decision of each run lies between.

        They are found by steps of 1 or of what is divided by: those beside the nearest
        place on one side, of which it is looked for ever more closely.
        """
        self._bring_near()
        found = self._elements()
        start, steps = self._start(found)
        rungs = self._rungs(start, steps)
        state = self._tried(start + steps * rungs)
        moduli = np.unique(state.modulus)
        self._moduli = moduli[moduli > 1][-_MOST_MODULI:]
        differs = state.made != state.made[0]
        moves = differs | (state.beyond != state.beyond[0])
        self._tell(differs.any(axis=0), moves.any(axis=0))
        stays, crosses = self._nearest(rungs, differs[:, self._runs, self._told])
        made, parts = state.made[0, self._runs, self._told], self._numbers
        while (np.abs(crosses - stays) > 1).any():
            ends = np.arange(parts + 1)[:, None]
            points = stays + (crosses - stays) * ends // parts
            other = self._tried(start + steps * points[1:-1], told=True).made != made
            first = np.where(other.any(axis=0), np.argmax(other, axis=0) + 1, parts)
            stays, crosses = points[first - 1, self._runs], points[first, self._runs]
        return [found, start + steps * stays, start + steps * crosses]

    def _nearest(
        self, rungs: Integers, differs: NDArray[np.bool_]
    ) -> tuple[Integers, Integers]:
        """The least of numbers of steps that make a difference, and the last before.

        On one side if there are any; 0 and 0 where there are none, or are not needed.
        """
        sides, far = self._rng.choice((-1, 1), rungs.shape[1]), np.abs(rungs)
        chosen = far + 2 * _FARTHEST * (np.sign(rungs) != sides)
        usable = differs & ~self._there
        at = np.argmin(np.where(usable, chosen, 4 * _FARTHEST), axis=0)
        crosses = rungs[at, self._runs] * usable[at, self._runs]
        before = (np.sign(rungs) == np.sign(crosses)) & (far < np.abs(crosses))
        stays = np.sign(crosses) * np.where(before, far, 0).max(axis=0)
        return stays, crosses

    def _start(self, found: Integers) -> tuple[Integers, Integers]:
        """From where elements are moved, and by what steps.

        In steps of what is divided by from beside a multiple of it.
        """
        steps = np.ones_like(found)
        if len(self._moduli):
            by_one = self._rng.random(len(found)) < _BY_ONE
            moduli = self._rng.choice(self._moduli, len(found))
            steps = np.where(by_one | self._there, 1, moduli)
        near = found - found % steps + self._rng.integers(-1, 2, len(found))
        return np.where(steps > 1, near, found), steps

    def _rungs(self, start: Integers, steps: Integers) -> Integers:
        """How many steps each is moved at first: none, and by numbers of any length.

        And to such numbers.
        """
        least, most = self._ends[:, self._input]
        back = (start - np.maximum(start - _FARTHEST, least)) // steps
        far = (np.minimum(start + _FARTHEST, most) - start) // steps
        apart = max(4 * _FARTHEST.bit_length() // self._numbers, 1)
        lengths = 1 << np.arange(0, _FARTHEST.bit_length(), apart)
        ends = np.concatenate([-lengths, lengths])[:, None]
        none = np.zeros((1, len(start)), np.int64)
        by = np.broadcast_to(ends, (len(ends), len(start)))
        rungs = np.concatenate([none, by, (ends - start) // steps])
        return np.clip(rungs, -np.maximum(back, 0), np.maximum(far, 0))

    def _tell(self, differs: NDArray[np.bool_], moves: NDArray[np.bool_]) -> None:
        """Choose the element that tells: the same as before, or any, that crosses.

        One that moves at least where none does.
        """
        chance = self._rng.random(differs.shape)
        chance[self._runs, self._told] += 1
        told = np.argmax(np.where(moves, chance + 2 * differs, 0.0), axis=1)
        new = moves.any(axis=1) & ~self._there
        self._told = np.where(new, told, self._told)

    def _step(self, found: list[Integers]) -> None:
        """Move it from one of some numbers to beside a turn that it jumps over."""
        both = np.array([*found, *(values + 1 for values in found)])
        state = self._tried(both, told=True)
        at = np.argmin(self._lacking(state)[: len(found)], axis=0)
        start = both[at, self._runs]
        before, after = (
            Decision(*(a[which, self._runs] for a in state.arrays))
            for which in (at, at + len(found))
        )
        divided = before.modulus > 0
        targets = np.where(divided, np.minimum(self._targets, 0), self._targets)
        with np.errstate(over="ignore"):
            steps, by = after.beyond - before.beyond, targets - before.beyond
        # What moves bits is brought there by the bits in which it differs.
        ways = [start, start ^ before.value ^ (before.other + targets)]
        for modulus in (*self._moduli, 0):
            own = np.where(divided, before.modulus, modulus)
            ways.append(start + _in_steps(by, steps, own))
        self._take(ways)

    def _are_enough(self) -> bool:
        """Whether of each decision most runs are where they are to be."""
        by_decision = (
            self._there[n :: self._decisions] for n in range(self._decisions)
        )
        return all(there.mean() > _ENOUGH for there in by_decision if len(there))

    def _descend(self) -> None:
        """Move it ever nearer to a turn, bit by bit or by chance."""
        for _ in range(_DESCENTS):
            before = self._elements()
            self._take([before])
            if self._are_enough() or (self._elements() == before).all():
                break

    def _take(self, ways: list[Integers]) -> None:
        """Move it to what is nearest to a turn, of some numbers and of any others."""
        places = self._rng.permutation(_FARTHEST.bit_length())[: self._numbers]
        bits = 1 << places[:, None]
        some = ways[0] + self._near(self._numbers, len(self._runs))
        tried = np.concatenate([np.array(ways), ways[0] ^ bits, some])
        lacking = self._lacking(self._tried(tried, told=True))
        self._put(tried[np.argmin(lacking, axis=0), self._runs])
        self._there = lacking.min(axis=0) == 0

    def _lacking(self, state: Decision) -> Integers:
        """How far what decides is from where it is to be: a number, or one of a period.

        On the other side of a turn it is farther than any on its own.
        """
        targets = self._targets
        periods = np.maximum(state.modulus, 1)
        rest = (state.beyond - np.minimum(targets, 0)) % periods
        apart = np.minimum(np.abs(state.beyond - targets), _FARTHEST)
        other = (targets != 0) & (np.sign(state.beyond) != targets)
        apart = np.where(other, apart + _FARTHEST, apart)
        return np.where(state.modulus > 1, np.minimum(rest, periods - rest), apart)


def _ends_of(dtype: DType, limit: Limit | None) -> tuple[int, int]:
    """The least and the most that an input may be."""
    least, most = int(dtype.min), int(dtype.max)
    if limit is None:
        return least, most
    return max(limit.start, least), min(limit.stop - 1, most)


def _in_steps(by: Integers, steps: Integers, moduli: Integers) -> Integers:
    """How many steps make up so much, modulo numbers; 0 where none do."""
    each = zip(by.tolist(), steps.tolist(), moduli.tolist(), strict=True)
    found = [_solution(*one) for one in each]
    return np.array([n if abs(n) < _FARTHEST else 0 for n in found], np.int64)


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
