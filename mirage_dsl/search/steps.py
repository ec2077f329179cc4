"""Reductions that can be made in steps, as maxima can: the steps, and their results.

A maximum over some dims is a maximum over a part of them first; over the loop's dim it
is one within each tile and one over the iterations, in either order.  Sums need no such
rules, for a sum is a product with σ (`search.terms`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mirage_dsl.search.field61 import function_pair, key_of, word_of
from mirage_dsl.search.space import Space, Value

Pair = tuple[int, int]

REDUCE, IN_TILE, JOIN = range(3)
"""What a step does: reduces dims; reduces the index within the loop's tile, and dims;
joins the iterations."""

MOST_DIMS = 4
"""Dims of a reduction beyond which it is not made in steps."""

WHOLE, TILE, JOINED, DONE = range(4)
"""How much of the loop's dim is reduced: nothing, the index within the tile, the
iterations, everything."""


@dataclass(frozen=True)
class Step:
    """One step: the keys of what it takes, what it reduces, and what it makes.

    Attributes:
        key: Key of the operand.
        over: Dims that it reduces, as a mask.
        way: What it does with them.
        result: Fingerprint of the result.
        names: Dims of the result.
    """

    key: int
    over: int
    way: int
    result: Pair
    names: int


def folded(space: Space, index: int) -> tuple[int, int]:
    """What a reduction reduces and over which dims, nested ones taken as one."""
    value = space.values[index]
    assert value.op is not None
    base, over = value.operands[0], value.over
    while space.values[base].op is value.op:
        over |= space.values[base].over
        base = space.values[base].operands[0]
    return base, over


def word_of_step(value: Value, over: int, state: int = DONE) -> int:
    """What keys the function that reduces `over`, and the loop's dim as far as said."""
    text = f"{value.function} over {over}"
    return word_of(f"{text} as far as {state}" if state in (TILE, JOINED) else text)


@dataclass(frozen=True)
class Steps:
    """The steps of one reduction.

    Attributes:
        value: A value of the program that it makes.
        over: All dims over which it reduces.
        loop: The bit of the loop's dim if that is one of them, else 0.
        base: Fingerprint of what is reduced.
        names: Its dims.
    """

    value: Value
    over: int
    loop: int
    base: Pair
    names: int

    def all(self) -> Iterator[Step]:
        """Every step from every partial result."""
        rest = self.over & ~self.loop
        if self.over.bit_count() > MOST_DIMS:
            whole = WHOLE if self.loop else DONE
            yield self._step(0, whole, self.over, DONE, REDUCE)
            return
        for gone in _subsets(rest):
            for more in _subsets(rest & ~gone):
                yield from self._from(gone, more)

    def _from(self, gone: int, more: int) -> Iterator[Step]:
        """Steps from where `gone` is reduced to where `more` is too."""
        if not self.loop:
            if more:
                yield self._step(gone, DONE, more, DONE, REDUCE)
            return
        if more:
            for state in (WHOLE, TILE, JOINED, DONE):
                yield self._step(gone, state, more, state, REDUCE)
        yield self._step(gone, WHOLE, more | self.loop, DONE, REDUCE)
        yield self._step(gone, WHOLE, more | self.loop, TILE, IN_TILE)
        yield self._step(gone, JOINED, more | self.loop, DONE, IN_TILE)
        if not more:
            yield self._step(gone, WHOLE, 0, JOINED, JOIN)
            yield self._step(gone, TILE, 0, DONE, JOIN)

    def _step(self, gone: int, before: int, over: int, after: int, way: int) -> Step:
        key = key_of(self._pair(gone, before))
        gone |= over & ~self.loop
        names = self.names & ~gone
        if after in (TILE, DONE):
            names &= ~self.loop
        return Step(key, over, way, self._pair(gone, after), names)

    def _pair(self, gone: int, state: int) -> Pair:
        """Fingerprint of a partial result."""
        if state == DONE:
            gone |= self.loop
        if not gone and state in (WHOLE, DONE):
            return self.base
        return function_pair(
            word_of_step(self.value, gone, state), (key_of(self.base),)
        )


def _subsets(mask: int) -> Iterator[int]:
    part = mask
    while True:
        yield part
        if not part:
            return
        part = (part - 1) & mask
