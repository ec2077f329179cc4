"""The measure of walks: what counts as a module that is visited, and as a move."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.walks import trace, walk
from mirage_dsl.core.types import packed, scalar
from mirage_dsl.ir.graph import BlockGraph, Schedule, Split
from mirage_dsl.ir.maps import parts
from tests.programs.mugraphs import gated_mlp

TYPES, MAPS = "mirage_dsl.core.types", "mirage_dsl.ir.maps"


def test_calls_within_a_module_are_no_moves() -> None:
    found = walk(lambda: packed((2, 3), (0, 1)))
    assert found.modules == {TYPES}
    assert not found.moves


def test_calls_from_elsewhere_are_no_moves() -> None:
    found = walk(lambda: (scalar(2), parts(5, 2)))
    assert found.modules == {TYPES, MAPS}
    assert not found.moves


def test_generated_code_is_nobodys() -> None:
    split: Split = Split("k", 2)
    assert not walk(lambda: {split: Split("k", 2) == split}).modules


def test_code_of_others_may_stand_between() -> None:
    graph = gated_mlp(5, 40, 36, tile_n=16, tile_k=16)

    def change(block: BlockGraph) -> Schedule:
        assert parts(5, 2) == 3
        return block.schedule

    moves = walk(lambda: graph.with_schedules(change)).moves
    assert moves == {("mirage_dsl.ir.graph", MAPS): 1}


def test_a_trace_goes_through_the_front_end() -> None:
    found = walk(trace)
    assert {"mirage_dsl.frontend.trace", "mirage_dsl.api.kernel"} <= found.modules
    assert all(a != b for a, b in found.moves)
    assert {m for pair in found.moves for m in pair} <= found.modules


MOST = {"tracing": (16, 218), "emission": (14, 305)}
"""Modules that are visited, and moves: little more than there are."""

WALKS = """
import json
from benchmarks.walks import walks

walked = walks().items()
print(json.dumps({n: [len(w.modules), sum(w.moves.values())] for n, w in walked}))
"""


def test_a_reader_does_not_walk_far() -> None:
    """In a process of its own: what other tests have loaded is asked on the way."""
    ran = subprocess.run(
        [sys.executable, "-c", WALKS], capture_output=True, text=True, check=True
    )
    found = json.loads(ran.stdout)
    for name, (modules, moves) in MOST.items():
        assert found[name][0] <= modules, name
        assert found[name][1] <= moves, name
