"""What stands for the order of the reals, which no finite field has.

An order-like operator (a maximum, or something made of it) is a *site*, numbered in
the order of evaluation.  A site is read in one of three ways:

- fresh: its value is a new random number, independent of its operands.  This is right
  for a site on whose value no output depends: a maximum that only shifts exponents.
- `RANK`: a random total order, keyed per trial.  It is associative, commutative and
  idempotent, but knows nothing of arithmetic.
- `PALEY`: max(a, b) is `a` where a - b is a square.  It commutes with adding a
  number, with multiplying by a positive one and with exp, but is not associative.

What holds for reals because of the axioms of one model holds in that model.  An
identity that needs both is rejected: a false rejection, never a false acceptance.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.verify.fields import Trials
from mirage_dsl.verify.modular import IntArray, power, subtract

Hash = NDArray[np.uint64]


class OrderModel(Enum):
    """The reading of sites that are not fresh."""

    RANK = "random total order"
    PALEY = "differences that are squares"


@dataclass
class Order:
    """The reading of all sites of one evaluation, and the count of sites so far."""

    model: OrderModel = OrderModel.RANK
    fresh: frozenset[int] = frozenset()
    sites: int = 0

    def next_site(self) -> int:
        """The number of the site that is being evaluated."""
        self.sites += 1
        return self.sites - 1

    def first_is_larger(
        self, a: IntArray, b: IntArray, trials: Trials, p: IntArray
    ) -> NDArray[np.bool_]:
        """Where `a` is the maximum of `a` and `b`."""
        if self.model is OrderModel.RANK:
            rank_a = hashed("order", trials.keys, [a])
            return rank_a >= hashed("order", trials.keys, [b])
        difference = subtract(a, b, p)
        return power(difference, (p - 1) // 2, p) != p - 1


def mixed(state: Hash) -> Hash:
    """A bijection of 64-bit words without structure (SplitMix64's finaliser)."""
    with np.errstate(over="ignore"):
        state = state + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))


def hashed(name: str, keys: IntArray, operands: Sequence[IntArray]) -> Hash:
    """A random function of the operands, keyed by name and trial."""
    tag = np.uint64(zlib.crc32(name.encode()))
    rank = operands[0].ndim - 1
    state = mixed(mixed(keys.astype(np.uint64)) ^ tag).reshape((-1,) + (1,) * rank)
    for operand in operands:
        state = mixed(state ^ operand.astype(np.uint64))
    return state
