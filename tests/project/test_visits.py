"""How far a reader has to go to follow a call."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from benchmarks.visits import trace, visits_of

found = visits_of(trace)
print(len(found.modules), found.moves.total())
"""


def test_tracing_stays_within_few_modules() -> None:
    """Without PyTorch, whose tensors are asked for each attribute."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    modules, moves = map(int, ran.stdout.split())
    assert modules <= 23
    assert moves <= 330
