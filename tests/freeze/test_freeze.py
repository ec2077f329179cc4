"""Moves leave the emitted Triton and the results of searches as they are."""

from __future__ import annotations

import pytest

from tests.freeze.frozen import GRAPHS, emitted, found, frozen, golden, programs
from tests.programs.random_programs import SOON
from tests.programs.workloads import WORKLOADS

FROZEN = frozen()
QUICK = {*(w.name for w in WORKLOADS), *(f"random_{seed}" for seed in SOON)}
"""Searched in each run of the tests; `python -m tests.freeze` searches them all.

Tests down the whole road take the same programs, so they are searched once: all tests
of a run have one cache.
"""


@pytest.mark.parametrize("name", GRAPHS)
def test_triton(name: str) -> None:
    assert emitted(name) == golden(name).read_text(), (
        "if the new text is right, run `python -m tests.freeze --update --only triton`"
    )


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", sorted(QUICK))
def test_searches(name: str) -> None:
    assert found(programs()[name], use_cache=True) == FROZEN[name], (
        "if the new results are right, run `python -m tests.freeze --update`"
    )


def test_no_golden_text_is_left_over() -> None:
    assert {f.name for f in golden("x").parent.iterdir()} == {
        golden(name).name for name in GRAPHS
    }
    assert FROZEN.keys() == programs().keys()
