"""Families: structures that differ in their grids only, priced together."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Split
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.search.driver import search
from mirage_dsl.search.segments import SegmentSearch
from mirage_dsl.search.sizes import (
    Allowed,
    Sized,
    UnsizedBlock,
    families,
    hull,
    on_grid,
    sizes_of_all,
)
from tests.freeze.frozen import programs
from tests.search import blocks

DIMS = {"rms_linear": "mn", "attention": "zm", "ntrans": "m"}
GRAPHS: dict[str, KernelGraph] = {
    "rms_linear": blocks.rms_linear(8),
    "attention": blocks.attention(8),
    "ntrans": blocks.ntrans(8),
}


def members(name: str) -> list[BlockGraph]:
    """The structure of a graph with each set of some dims as its grid."""
    block = GRAPHS[name].blocks[0]
    sets = [
        some
        for count in range(len(DIMS[name]) + 1)
        for some in itertools.combinations(DIMS[name], count)
    ]
    return [on_grid(block, tuple(Split(d, 1) for d in some)) for some in sets]


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_priced_together_is_as_if_priced_alone(name: str) -> None:
    types, extents = kernel_types(GRAPHS[name]), GRAPHS[name].extent_of
    own = members(name)
    together, alone = Counter[str](), Counter[str]()
    found = sizes_of_all(
        [UnsizedBlock(b) for b in own], types, extents, tally=together, hardware=H100
    )
    each = (
        sizes_of_all([UnsizedBlock(b)], types, extents, tally=alone, hardware=H100)
        for b in own
    )
    assert found == [sizes for one in each for sizes in one]
    assert together == alone
    assert any(found)
    for block, sized in zip(own, found, strict=True):
        for item in sized:
            assert [s.dim for s in item.block.grid] == [s.dim for s in block.grid]
            assert item.block.nodes == block.nodes


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("shortlist", [2, 24])
def test_pricing_at_once_finds_what_pricing_in_two_steps_does(
    name: str, shortlist: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    types, extents = kernel_types(GRAPHS[name]), GRAPHS[name].extent_of
    unsized = [UnsizedBlock(b) for b in members(name)]
    monkeypatch.setattr("mirage_dsl.search.sizes.SHORTLIST", shortlist)

    def found(most: int, worst: float) -> list[list[Sized]]:
        monkeypatch.setattr("mirage_dsl.search.sizes.AT_ONCE", most)
        return sizes_of_all(
            unsized, types, extents, hardware=H100, keep=shortlist, worst=worst
        )

    every = found(0, math.inf)
    assert every == found(10**6, math.inf)
    assert max(map(len, every)) == 2 or shortlist > 2
    best = sorted(own[0].microseconds for own in every if own)
    some = found(0, best[0])
    assert some == found(10**6, best[0])
    assert [len(own) > 0 for own in some].count(True) < len(best) or len(best) == 1


def test_sizes_near_the_best_are_the_first_of_all() -> None:
    types, extents = kernel_types(GRAPHS["attention"]), GRAPHS["attention"].extent_of
    unsized = [UnsizedBlock(b) for b in members("attention")]
    every, near = (
        sizes_of_all(unsized, types, extents, hardware=H100, keep=24, near=factor)
        for factor in (math.inf, 1.2)
    )
    assert near == [
        [s for s in own if s.microseconds <= 1.2 * own[0].microseconds] for own in every
    ]
    assert sum(map(len, near)) < sum(map(len, every))


def test_each_is_held_to_what_is_allowed_of_it() -> None:
    types, extents = kernel_types(GRAPHS["rms_linear"]), {"m": 8, "k": 4096, "n": 4096}
    block = GRAPHS["rms_linear"].blocks[0]
    unsized = [
        UnsizedBlock(block, Allowed(grids=lambda parts, n=n: max(parts) == n))
        for n in (32, 64)
    ]
    for count, sized in zip(
        (32, 64), sizes_of_all(unsized, types, extents, hardware=H100), strict=True
    ):
        assert sized
        for item in sized:
            (split,) = item.block.grid
            assert extents[split.dim] // split.tile == count


def test_families_have_the_same_nodes_but_for_the_grid() -> None:
    first, second = members("rms_linear"), members("attention")
    mixed = [b for pair in itertools.zip_longest(first, second) for b in pair if b]
    assert families(mixed) == [first, second]
    assert {s.dim for s in hull(first).grid} == {"m", "n"}
    assert hull(first[:1]) is first[0]


def test_a_structure_that_loads_all_of_what_it_splits_stands_alone() -> None:
    block = GRAPHS["rms_linear"].blocks[0]
    at = next(i for i, n in enumerate(block.nodes) if n.result == "wt")
    (whole,) = on_grid(replace(block, nodes=(block.nodes[at],)), ()).nodes
    odd = replace(block, nodes=(*block.nodes[:at], whole, *block.nodes[at + 1 :]))
    assert odd != block
    other = on_grid(block, ())
    assert families([odd, other, block]) == [[odd], [other, block]]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["qknorm", "latent_attention"])
def test_what_has_no_room_has_no_sizes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile of more words than registers is not priced: nothing of it would fit."""
    with_room = SegmentSearch._with_room
    sizes: list[list[Sized]] = []

    def watched(
        self: SegmentSearch, segment: KernelGraph, cast: BlockGraph, *rest: Any
    ) -> Any:
        kept = with_room(self, segment, cast, *rest)
        gone = [on_grid(cast, b.grid) for b in rest[-1] if b not in kept]
        sizes.extend(
            sizes_of_all(
                [UnsizedBlock(b, self.constraints.sizes(b)) for b in gone],
                kernel_types(replace(segment, returns=())),
                derived_extents(segment, segment.extent_of),
                hardware=self.hardware,
            )
            if gone
            else []
        )
        return kept

    monkeypatch.setattr(SegmentSearch, "_with_room", watched)
    search(programs()[name], H100, k=1, verify=False)
    assert len(sizes) > 10
    assert not any(sizes)
