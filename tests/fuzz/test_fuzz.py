"""A fixed part of each attack."""

from __future__ import annotations

import time
from importlib.util import find_spec

import pytest

from tests.fuzz.attacks import ATTACKERS, run_case

CASES = 600
"""Of each attacker."""
SECONDS = 8.0
"""CPU time after which no further case is begun."""

THERE = [name for name in ATTACKERS if find_spec(f"tests.fuzz.{name}") is not None]


@pytest.mark.sample(1)
@pytest.mark.parametrize("attacker", THERE)
def test_no_attack_succeeds(attacker: str) -> None:
    started = time.process_time()
    for seed in range(CASES):
        outcome = run_case(attacker, seed)
        assert not outcome.fault, f"{attacker} --first {seed}\n{outcome.fault}"
        if time.process_time() - started > SECONDS:
            break


def test_the_same_seed_makes_the_same_case() -> None:
    first, again = (run_case("functions", 4) for _ in range(2))
    assert first == again
