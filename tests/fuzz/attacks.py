"""What an attack is: one case made from a seed, run, and judged by what it must hold.

An attacker is a module of this folder with a function `attack(random)`.  It makes one
case from the random numbers given, and returns a label for the count, such as "right"
or "refused".  It raises `Fault` where a promise was broken; any other exception that
comes out of it is a fault as well.  It knows only the public interface.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from random import Random
from types import FrameType

ATTACKERS = ("functions", "mutants", "texts", "entries")
CASE_SECONDS = 60
"""A case that takes longer counts as a hang."""


class Fault(AssertionError):  # noqa: N818
    """A broken promise, with all that is needed to see it again."""


class Hang(BaseException):
    """A case outlasted its time.  No `except Exception` catches it."""


@dataclass(frozen=True)
class Outcome:
    """What one case came to.

    Attributes:
        attacker: Which attacker made it.
        seed: Makes the same case again.
        label: What the attacker said; empty for a fault.
        fault: The traceback of a fault; empty where there was none.
    """

    attacker: str
    seed: int
    label: str
    fault: str = ""


def run_case(attacker: str, seed: int) -> Outcome:
    """Run one case in this process."""
    attack = import_module(f"tests.fuzz.{attacker}").attack
    try:
        with _limited(CASE_SECONDS):
            return Outcome(attacker, seed, attack(Random(f"{attacker} {seed}")))
    except Hang:
        fault = f"no end after {CASE_SECONDS} s\n{traceback.format_exc()}"
    except Exception:
        fault = traceback.format_exc()
    return Outcome(attacker, seed, "", fault)


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
