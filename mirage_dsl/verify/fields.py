"""Sign-faithful chains of primes, and the random choices of a set of trials.

A chain p_(i+1) = 2 p_i + 1 allows one exponential per link: exp takes residues
modulo p_i to powers of an element of order p_i modulo p_(i+1), so it turns sums into
products exactly.  The lowest prime is -1 modulo 8 and modulo every odd prime up to a
limit l, and then so is every prime of the chain.  So in each field all integers with
prime factors up to l are squares, -1 is not, and exponentials are squares: being a
square plays the part of being positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from mirage_dsl.verify.modular import IntArray, power

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
    """

    primes: IntArray
    omegas: IntArray
    units: IntArray
    keys: IntArray

    @property
    def fields(self) -> int:
        """Length of the chain."""
        return self.primes.shape[0]

    @property
    def count(self) -> int:
        """Number of trials."""
        return self.primes.shape[1]


def draw_trials(chain: tuple[int, ...], count: int, rng: np.random.Generator) -> Trials:
    """`count` trials over one chain."""
    primes = np.repeat(np.array(chain, dtype=np.int64)[:, None], count, axis=1)
    # p_i = (p_(i+1) - 1) / 2, so every square but 1 has order p_i.
    bases = rng.integers(2, primes - 1)
    omegas = power(bases, np.full_like(primes, 2), primes)
    omegas[0] = 1
    units = rng.integers(2, primes - 1)
    keys = rng.integers(0, 2**62, count)
    return Trials(primes, omegas, units, keys)
