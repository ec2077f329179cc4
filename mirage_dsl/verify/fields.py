"""Finite fields: arithmetic modulo primes, and sign-faithful chains of them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numba import types, vectorize
from numpy.typing import NDArray

from mirage_dsl.core.compiled import compiling, entry, once
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import Scalar
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.integers import Bias, mixed
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ops.definition import Axes
from mirage_dsl.ops.table import ROWSHIFT

# -- Arithmetic modulo primes below 2**31 ----------------------------------------------
# A product of two residues has up to 62 bits, so it fits `int64` exactly; its
# quotient by the prime is found in floating point and corrected by at most one.
# Sums of products take the two halves of a factor apart, and so are reduced only
# at their end.

# Numba's decorators have no types.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false


IntArray = NDArray[np.int64]
Ternary = Callable[[IntArray, IntArray, IntArray], IntArray]

_SAFE = 32768
"""Products of a residue with one of 16 bits whose sum fits 63 bits."""
_NARROW = 16
"""Columns of a second factor below which the product is made on its side."""
_LONG = 64
"""Elements from which on a trial's are inverted, or made powers of, together."""
_DIGITS, _DIGIT = map(np.int64, (4, 256))
"""Residues are numbers of so many digits to this base."""
_MULTIPLY, _POWER, _DRAWN = map(np.int64, range(3))


@once
def _product(a, b, p):
    r = a * b - np.int64(float(a) * float(b) * (1.0 / p)) * p
    if r < 0:
        r += p
    elif r >= p:
        r -= p
    return r


@once
def _raised(a, b, p):
    result = np.int64(1)
    while b > 0:
        if b & 1:
            result = _product(result, a, p)
        a = _product(a, a, p)
        b >>= 1
    return result


def _elementwise(operation, a, b, p):
    """What the public functions below do with one element."""
    if operation == _MULTIPLY:
        return _product(a, b, p)
    if operation == _POWER:
        return _raised(a, b, p)
    state = np.uint64(a) + np.uint64(b) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = state ^ (state >> np.uint64(31))
    return np.int64(((state >> np.uint64(32)) * np.uint64(p)) >> np.uint64(32))


# One function for all, for each that broadcasts takes a tenth of a second to compile.
with compiling():
    _apply: Any = vectorize(["int64(int64, int64, int64, int64)"], cache=True)(
        _elementwise
    )


def _stack(rank: int) -> Any:
    """Numba's type of a contiguous operand, which may be a view of constants."""
    return types.Array(types.int64, rank, "C", readonly=True)


@partial(
    entry,
    types=types.void(
        _stack(3), _stack(3), _stack(1), types.int64[:, ::1], types.int64[:, :, ::1]
    ),
)
def _rows(a, b, primes, sums, out):
    """Products of each row of `a` with a matrix, which is read in order.

    `sums` has room for a row of sums with the low and the high half of factors.
    """
    for batch in range(out.shape[0]):
        p = primes[batch]
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                sums[0, j] = 0
                sums[1, j] = 0
            for k in range(b.shape[1]):
                x = a[batch, i, k]
                for j in range(out.shape[2]):
                    sums[0, j] += x * (b[batch, k, j] & 0xFFFF)
                    sums[1, j] += x * (b[batch, k, j] >> 16)
            for j in range(out.shape[2]):
                total = sums[0, j] % p + (sums[1, j] % p) * 65536
                out[batch, i, j] = total % p


@once
def _inverses(a, p, out):
    """1/a of a row, by the inverse of the product of all that is not 0."""
    total = np.int64(1)
    for i in range(len(a)):
        out[i] = total
        if a[i] != 0:
            total = _product(total, a[i], p)
    inverted = _raised(total, p - 2, p)
    for i in range(len(a) - 1, -1, -1):
        if a[i] == 0:
            out[i] = 0
        else:
            out[i] = _product(out[i], inverted, p)
            inverted = _product(inverted, a[i], p)


@once
def _powers(base, exponents, p, table, out):
    """Powers of one base, by a table of those of each digit of an exponent."""
    for digit in range(_DIGITS):
        power = np.int64(1)
        for j in range(_DIGIT):
            table[digit, j] = power
            power = _product(power, base, p)
        base = power
    for i in range(len(exponents)):
        left, power = exponents[i], np.int64(1)
        for digit in range(_DIGITS):
            power = _product(power, table[digit, left % _DIGIT], p)
            left //= _DIGIT
        out[i] = power


@partial(
    entry,
    types=types.void(
        types.int64[::1], _stack(2), _stack(1), types.int64[:, ::1], types.int64[:, ::1]
    ),
)
def _together(bases, a, primes, table, out):
    """Powers of a row's base with its elements as exponents; inverses for base 0."""
    for row in range(out.shape[0]):
        if bases[row] == 0:
            _inverses(a[row], primes[row], out[row])
        else:
            _powers(bases[row], a[row], primes[row], table, out[row])


def _least(a: IntArray, b: IntArray) -> IntArray:
    """The one that is no negative number: negative ones are large without signs."""
    return np.minimum(a.view(np.uint64), b.view(np.uint64)).view(np.int64)


def add(a: IntArray, b: IntArray, p: IntArray) -> IntArray:
    """Sum."""
    total = a + b
    return _least(total, total - p)


def subtract(a: IntArray, b: IntArray, p: IntArray) -> IntArray:
    """Difference."""
    left = a - b
    return _least(left, left + p)


def multiply(a: IntArray, b: IntArray, p: IntArray) -> IntArray:
    """Product."""
    return _apply(_MULTIPLY, a, b, p)


def power(base: IntArray, exponent: IntArray, p: IntArray) -> IntArray:
    """Power; exponents are not reduced."""
    return _apply(_POWER, base, exponent, p)


def drawn(key: Any, index: IntArray, p: Any) -> IntArray:
    """Random residues, each by its index."""
    return _apply(_DRAWN, key, index, p)


def inverse(a: IntArray, p: IntArray) -> IntArray:
    """1/a, and 0 where `a` is 0."""
    if not _is_long(a, p):
        return power(a, p - 2, p)
    return _by_trial(np.zeros(len(p), np.int64), a, p)


def exponential(base: IntArray, exponent: IntArray, p: IntArray) -> IntArray:
    """Powers of one base for each trial.

    Args:
        base: One for each trial, with axes to broadcast; not 0.
        exponent: Residues, which are not reduced.
        p: A prime for each trial, as the base.
    """
    if not _is_long(exponent, p):
        return power(base, exponent, p)
    return _by_trial(base.reshape(-1), exponent, p)


def _is_long(a: IntArray, p: IntArray) -> bool:
    """Whether there are primes by the first axis, and many elements for each."""
    by_trial = p.ndim == a.ndim > 0 and p.size == len(p) == len(a)
    return by_trial and a.size >= _LONG * len(a)


def _by_trial(bases: IntArray, a: IntArray, p: IntArray) -> IntArray:
    """What `_together` makes of the elements of each trial."""
    rows = np.ascontiguousarray(a, np.int64).reshape(len(bases), -1)
    out, table = np.empty_like(rows), np.empty((int(_DIGITS), int(_DIGIT)), np.int64)
    _together(bases, rows, np.ascontiguousarray(p.reshape(-1)), table, out)
    return out.reshape(a.shape)


def matmul(a: IntArray, b: IntArray, p: IntArray) -> IntArray:
    """Matrix product of the last two axes; `p` has the leading ones."""
    if a.shape[-1] > _SAFE:
        left = matmul(a[..., :_SAFE], b[..., :_SAFE, :], p)
        right = matmul(a[..., _SAFE:], b[..., _SAFE:, :], p)
        return add(left, right, p[..., None, None])
    if b.shape[-1] < min(a.shape[-2], _NARROW):
        # Rows of the second factor should be long.
        flipped = matmul(np.swapaxes(b, -1, -2), np.swapaxes(a, -1, -2), p)
        return np.swapaxes(flipped, -1, -2)
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], np.shape(p))
    out = np.empty((*leading, a.shape[-2], b.shape[-1]), np.int64)
    _rows(
        _stacked(a, (*leading, *a.shape[-2:]), 2),
        _stacked(b, (*leading, *b.shape[-2:]), 2),
        _stacked(p, leading, 0),
        np.empty((2, b.shape[-1]), np.int64),
        out.reshape(-1, *out.shape[-2:]),
    )
    return out


def _stacked(a: IntArray, shape: tuple[int, ...], kept: int) -> IntArray:
    """`a` broadcast to `shape`, all but its last `kept` axes merged into one."""
    whole = np.broadcast_to(a, shape)
    count = math.prod(shape[: len(shape) - kept])
    merged = whole.reshape(count, *shape[len(shape) - kept :])
    return np.ascontiguousarray(merged, dtype=np.int64)


# -- Chains of primes, random choices --------------------------------------------------
# A chain p_(i+1) = 2 p_i + 1 allows one exponential per link: exp takes residues
# modulo p_i to powers of an element of order p_i modulo p_(i+1), so it turns sums into
# products exactly.  The lowest prime is -1 modulo 8 and modulo every odd prime up to a
# limit l, and then so is every prime of the chain.  So in each field all integers with
# prime factors up to l are squares, -1 is not, and exponentials are squares: being a
# square plays the part of being positive.

LOWEST_PRIMES: Mapping[int, tuple[int, ...]] = MappingProxyType(
    {
        1: (2133931799, 1939937999, 1823541719, 1784742959),
        2: (1057776719, 1041440399, 974053079, 969968999),
        3: (392071679, 330810479, 265465199, 232792559),
        4: (251891639, 236155919, 198438239, 162522359),
        5: (37800839, 20235599, 19893719, 8158919),
        6: (40158719, 38199839, 19099919, 16595879),
    }
)
"""The lowest primes of the chains, by number of fields."""

MOST_FIELDS = max(LOWEST_PRIMES)


def chain_from(lowest: int, fields: int) -> tuple[int, ...]:
    """The primes of a chain, low to top."""
    primes = [lowest]
    while len(primes) < fields:
        primes.append(2 * primes[-1] + 1)
    return tuple(primes)


def chains_for(fields: int, count: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """`count` chains, different ones as far as the table has them."""
    table = LOWEST_PRIMES[fields]
    start = seed % len(table)
    return tuple(
        chain_from(table[(start + i) % len(table)], fields) for i in range(count)
    )


class Conversions:
    """What some floats become as integers; all others become what is drawn for them.

    Args:
        wanted: What a program is to make of floats, in the order in which it does; None
            of those that it may make anything of.
    """

    def __init__(self, wanted: Sequence[IntArray | None] = ()) -> None:
        self._wanted = list(wanted)
        self._floats, self._made = (np.full(1, -1, np.int64) for _ in range(2))

    def of(self, floats: IntArray, drawn: NDArray[Any]) -> NDArray[Any]:
        """The integers, equal for equal residues of a trial."""
        trial = np.arange(len(floats)).reshape((-1,) + (1,) * (floats.ndim - 1))
        keys = (trial << 32) + floats
        if self._wanted:
            self._note(keys, floats > 1, self._wanted.pop(0))
        at = np.minimum(np.searchsorted(self._floats, keys), len(self._floats) - 1)
        made = self._made[at].astype(drawn.dtype)
        return np.where(self._floats[at] == keys, made, drawn)

    def _note(
        self, keys: IntArray, free: NDArray[np.bool_], wanted: IntArray | None
    ) -> None:
        """What is wanted of floats that nothing is known of; 0 and 1 are themselves."""
        if wanted is not None and wanted.shape == keys.shape:
            floats = np.append(self._floats, keys[free])
            self._floats, first = np.unique(floats, return_index=True)
            self._made = np.append(self._made, wanted[free])[first]


@dataclass(frozen=True)
class Trials:
    """Independent random interpretations of the functions, one per trial.

    Both sides of a comparison share them.  The first axis of each array but `keys`
    is the field, low to top; the last is the trial.

    Attributes:
        primes: The field's modulus.
        omegas: An element of order `primes[i - 1]` modulo `primes[i]`; 1 for i = 0.
        units: The factor of square roots of non-squares.
        keys: Keys of the random functions.
        conversions: What floats become as integers, if draws of it are steered.
    """

    primes: IntArray
    omegas: IntArray
    units: IntArray
    keys: IntArray
    conversions: Conversions | None = None

    @property
    def fields(self) -> int:
        """Length of the chain."""
        return self.primes.shape[0]

    @property
    def count(self) -> int:
        """Number of trials."""
        return self.primes.shape[1]

    def words(self, name: str) -> NDArray[np.uint64]:
        """What the values of random functions of a name are made of, one per trial."""
        if name not in self._words:
            tag = np.uint64(zlib.crc32(name.encode()))
            self._words[name] = mixed(mixed(self.keys.astype(np.uint64)) ^ tag)
        return self._words[name]

    @cached_property
    def _words(self) -> dict[str, NDArray[np.uint64]]:
        return {}

    def bias(self, rank: int) -> Bias:
        """How integers are drawn, of so many axes beside that of the trials."""
        kinds = (self.keys % KINDS).reshape((-1,) + (1,) * rank)
        return Bias(_TURNED[kinds], _FAR[kinds], _SIGN[kinds], _ENDS[kinds])


_TURNED = np.array([0, 1, 0, 1, 0, 0, 0], np.bool_)
_FAR = np.array([0, 0, 1, 0, 0, 1, 1], np.bool_)
_SIGN = np.array([0, 0, 1, 0, -1, -1, 0], np.int64)
_ENDS = np.array([1, 1, 1, 1, 1, 1, 0], np.bool_)
KINDS = len(_SIGN)
"""Of trials: integers are drawn otherwise in each."""


def draw_trials(chain: tuple[int, ...], count: int, rng: np.random.Generator) -> Trials:
    """`count` trials over one chain."""
    primes = np.repeat(np.array(chain, dtype=np.int64)[:, None], count, axis=1)
    # p_i = (p_(i+1) - 1) / 2, so every square but 1 has order p_i.
    bases = rng.integers(2, primes - 1)
    omegas = power(bases, np.full_like(primes, 2), primes)
    omegas[0] = 1
    units = rng.integers(2, primes - 1)
    kinds = (np.arange(count) + rng.integers(KINDS)) % KINDS
    keys = KINDS * rng.integers(0, 2**60, count) + kinds
    return Trials(primes, omegas, units, keys)


# -- What a graph asks of a chain ------------------------------------------------------
# Found without numbers: the field semantics of the operators run over an algebra of
# depths: how many exponentials lie on the deepest path to a value, how many lie between
# a square root and it, and whether choices (maxima, conditions) were made on the way.


@dataclass(frozen=True)
class Depth:
    """What was found on the paths to a value.

    Attributes:
        exps: Exponentials on the deepest path since the last random function.
        roots: Numbers of exponentials between a square root and the value.
        choices: Whether a choice has two outcomes, so that trials must meet both.
    """

    exps: int = 0
    roots: frozenset[int] = frozenset()
    choices: bool = False

    def joined(self, *others: Depth) -> Depth:
        """What lies on the paths to any of the values."""
        both = (self, *others)
        return Depth(
            max(d.exps for d in both),
            frozenset[int]().union(*(d.roots for d in both)),
            any(d.choices for d in both),
        )


class DepthAlgebra:
    """`FieldAlgebra` over depths."""

    def constant(self, value: Scalar) -> Depth:  # noqa: ARG002
        return Depth()

    def _join(self, a: Depth, b: Depth) -> Depth:
        return a.joined(b)

    add = sub = mul = div = matmul = _join

    def exp(self, a: Depth) -> Depth:
        return Depth(a.exps + 1, frozenset(r + 1 for r in a.roots), a.choices)

    def sqrt(self, a: Depth) -> Depth:
        return Depth(a.exps, a.roots | {0}, a.choices)

    def maximum(self, a: Depth, b: Depth) -> Depth:
        return _chosen(a, b)

    def sum(self, a: Depth, axes: Axes) -> Depth:  # noqa: ARG002
        return a

    def max(self, a: Depth, axes: Axes) -> Depth:  # noqa: ARG002
        return _chosen(a)

    def fold(
        self,
        join: Callable[[Depth, Depth], Depth],
        a: Depth,
        axes: Axes,  # noqa: ARG002
    ) -> Depth:
        """Of any number of elements, unless each one nests exponentials deeper."""
        pair = join(a, a)
        if join(pair, pair) != pair:
            raise UnsupportedError(
                "a reduction joins its elements by exponentials of exponentials, as "
                "deep as it has elements; no chain of fields is that long"
            )
        return pair

    def scan(self, join: Callable[[Depth, Depth], Depth], a: Depth, axis: int) -> Depth:
        """As of a fold over the axis."""
        return self.fold(join, a, (axis,))

    def shift(self, a: Depth, axes: Axes) -> Depth:  # noqa: ARG002
        return Depth()

    def concat(self, axis: int, *operands: Depth) -> Depth:  # noqa: ARG002
        return Depth().joined(*operands)

    def oracle(self, name: str, *operands: Depth) -> Depth:  # noqa: ARG002
        return Depth(0, _rooted(*operands), any(d.choices for d in operands))

    def indicator(self, name: str, *operands: Depth) -> Depth:  # noqa: ARG002
        return Depth(0, _rooted(*operands), True)

    def choose(self, condition: Depth, a: Depth, b: Depth) -> Depth:
        chosen = _chosen(a, b)
        return Depth(chosen.exps, chosen.roots | _rooted(condition), True)


def _rooted(*operands: Depth) -> frozenset[int]:
    # A random function needs only the top component, where a root is 0 links away.
    return frozenset({0}) if any(d.roots for d in operands) else frozenset()


def _chosen(*operands: Depth) -> Depth:
    joined = Depth().joined(*operands)
    return Depth(joined.exps, joined.roots, True)


def graph_depth(graph: ir.KernelGraph) -> Depth:
    """What evaluating a graph asks for.

    The chain must serve every value: a random function starts anew with its result,
    but first reads an operand that may lie deep.
    """
    values = {i.name: Depth() for i in graph.given}
    deepest = 0
    for node in graph.nodes:
        match node:
            case ir.Apply():
                values[node.result] = _applied(node, values)
                deepest = max(deepest, values[node.result].exps)
            case ir.BlockGraph():
                inside, stored = _block(node, values)
                values.update(stored)
                deepest = max(deepest, *(d.exps for d in inside.values()))
    outputs = Depth().joined(*(values[r.value] for r in graph.returns))
    return replace(outputs, exps=deepest)


def orders_floats(graph: ir.KernelGraph) -> bool:
    """Whether something hangs on which of floats is larger, which no field tells."""
    outer = kernel_types(graph)
    levels = [(graph.applies, outer)]
    levels += [(b.applies, block_types(b, outer)) for b in graph.blocks]
    if any(isinstance(n, ir.RunningMax) for b in graph.blocks for n in b.nodes):
        return True
    for nodes, known in levels:
        for node in nodes:
            decide = node.values[: node.op.chooses or None]
            floats = any(known[v].dtype.is_float for v in decide)
            if floats and _applied(node, dict.fromkeys(node.values, Depth())).choices:
                return True
    return False


def _applied(node: ir.Apply, values: Mapping[str, Depth]) -> Depth:
    algebra = DepthAlgebra()
    operands = [
        values[o] if isinstance(o, str) else algebra.constant(o) for o in node.operands
    ]
    return node.op.without_axes(algebra, *operands)


def _block(
    block: ir.BlockGraph, outer: Mapping[str, Depth]
) -> tuple[dict[str, Depth], dict[str, Depth]]:
    """Depths of the values inside of a block, and of those that it stores."""
    values: dict[str, Depth] = {}
    stored: dict[str, Depth] = {}
    running: set[str] = set()
    for node in block.nodes:
        match node:
            case ir.Load():
                values[node.result] = outer[node.source]
            case ir.Apply():
                values[node.result] = _applied(node, values)
            case ir.Accumulate():
                of_running = (
                    node.operand in running and node.reduction is ROWSHIFT.shift_of
                )
                kept = values[node.operand]
                values[node.result] = kept if of_running else _accumulated(node, values)
            case ir.RunningMax():
                values[node.result] = Depth()
                running.add(node.result)
            case ir.Store():
                stored[node.result] = values[node.operand]
    return values, stored


def _accumulated(node: ir.Accumulate, values: Mapping[str, Depth]) -> Depth:
    value = values[node.operand]
    if node.reduction is None:
        return value
    if node.rescale is None:
        return node.reduction.reduced(DepthAlgebra(), value, ())
    return value.joined(DepthAlgebra().exp(values[node.rescale]))
