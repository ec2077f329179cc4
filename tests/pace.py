"""Seconds of a machine of known speed: in those are the limits of tests stated.

A host that others share gives a third of its speed for minutes on end. A test whose
limit is in seconds of its own clock fails there, whatever the code does; one whose
limit is generous enough for such a host sees nothing anywhere else. So a short load of
the same kind of work (tuples, dictionaries, calls) is timed beside what is tested.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

NOMINAL_SECONDS = 0.0025
"""What the load takes on the nominal machine.  The limits were set where the suite took
390 s; this is by that ratio, where it took 1331 s the load takes 0.0081."""


def _load() -> int:
    table: dict[tuple[int, int], tuple[int, ...]] = {}
    for i in range(10_000):
        key = (i % 997, i & 7)
        table[key] = (*table.get(key, ())[-2:], i)
    return len(table)


def _seconds_of_load() -> float:
    began = time.process_time()
    _load()
    return time.process_time() - began


def slowness() -> float:
    """How many times longer than on the nominal machine work takes now; at least 1."""
    taken = statistics.median(_seconds_of_load() for _ in range(9))
    return max(1.0, taken / NOMINAL_SECONDS)


def nominal_clock() -> Callable[[], float]:
    """Processor time of this process from now on, as on the nominal machine."""
    pace = slowness()
    return lambda: time.process_time() / pace


class Stopwatch:
    """Processor time since it was made, as on the nominal machine.

    The machine's speed is the mean of that at both ends: it may change in between.
    """

    def __init__(self) -> None:
        self._slowness = slowness()
        self._began = time.process_time()

    @property
    def seconds(self) -> float:
        taken = time.process_time() - self._began
        return 2 * taken / (self._slowness + slowness())
