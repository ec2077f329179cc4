"""Many problems beside one GPU: prepared in several processes, timed one at a time.

A problem is traced, searched and compiled by a process of its own, as many of them at
once as there are cores for it.  What is measured runs in turns (`Shared.turn`), and who
puts data on the GPU waits for room there (`Shared.room`).  Both are files in a folder,
so a process that died keeps nobody waiting.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

T = TypeVar("T")

POLL = 0.02
"""Seconds between two looks at what is waited for."""

# -- What processes share --------------------------------------------------------------


@dataclass
class Shared:
    """The GPU, as processes share it.

    Attributes:
        folder: Where its files are; alike for all processes.
        room_bytes: How many bytes of data there may be on the GPU.
        waited: Seconds that this process has waited for others so far.
    """

    folder: Path
    room_bytes: int
    waited: float = field(default=0.0, compare=False)

    @contextmanager
    def turn(self) -> Generator[None, None, None]:
        """While this lasts, no other process has its turn."""
        with self._lock("turn"):
            yield

    @contextmanager
    def long_turn(self, wanted: int) -> Generator[None, None, None]:
        """A turn of seconds, with room for so many bytes.

        Of those that want such, one at a time waits among the others.
        """
        with self._lock("long"), self.room(wanted), self.turn():
            yield

    @contextmanager
    def _lock(self, name: str) -> Generator[None, None, None]:
        began = time.monotonic()
        with FileLock(self.folder / f"{name}.lock", poll_interval=POLL):
            self.waited += time.monotonic() - began
            yield

    @contextmanager
    def room(self, wanted: int) -> Generator[None, None, None]:
        """Room for so many bytes, in the order in which it was asked for.

        Who wants more than there is gets all of it.
        """
        began = time.monotonic()
        own = [os.getpid(), min(wanted, self.room_bytes), time.monotonic_ns()]
        with self._held() as held:
            held.append(own)
        while not self._fits(own):
            time.sleep(POLL)
        self.waited += time.monotonic() - began
        try:
            yield
        finally:
            with self._held() as held:
                held.remove(own)

    def _fits(self, own: list[int]) -> bool:
        """Whether there is room for all that asked up to then."""
        with self._held() as held:
            held[:] = [one for one in held if _lives(one[0])]
            upto = held[: held.index(own) + 1]
        return sum(one[1] for one in upto) <= self.room_bytes

    @contextmanager
    def _held(self) -> Generator[list[list[int]], None, None]:
        """Process, bytes and number of all that asked, the first one first."""
        path = self.folder / "room.json"
        with FileLock(self.folder / "room.lock", poll_interval=POLL):
            held = json.loads(path.read_text()) if path.exists() else []
            yield held
            path.write_text(json.dumps(held))


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# -- Their order -----------------------------------------------------------------------


def mixed(problems: Sequence[tuple[int, Path]], seed: int) -> list[tuple[int, Path]]:
    """The problems so that those ahead of any cut are a broad sample.

    Each level has its share of them, and in a level the kinds take turns: problems
    whose names begin with the same word.
    """
    generator = random.Random(seed)
    placed: list[tuple[float, int, Path]] = []
    for level in sorted({level for level, _ in problems}):
        kinds: dict[str, list[Path]] = {}
        for file in (file for at, file in problems if at == level):
            kinds.setdefault(_kind(file), []).append(file)
        groups = list(kinds.values())
        generator.shuffle(groups)
        for group in groups:
            generator.shuffle(group)
        order = [f for turn in zip_longest(*groups) for f in turn if f is not None]
        placed += [
            ((at + 0.5) / len(order), level, file) for at, file in enumerate(order)
        ]
    return [(level, file) for _, level, file in sorted(placed)]


def _kind(file: Path) -> str:
    words = re.findall(r"[A-Za-z]+", file.stem)
    return words[0].lower() if words else ""


# -- All of them -----------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """How long it may take, in seconds, and how many at once.

    Attributes:
        problem: One problem, from the start of its process.
        whole: All of them: what is not done then is left to another run.
        jobs: Processes at a time.
    """

    problem: float
    whole: float = float("inf")
    jobs: int = 1


def each(
    problems: Sequence[tuple[int, Path]],
    limits: Limits,
    one: Callable[[int, Path, float], T | None],
) -> Iterator[tuple[int, Path, T | None]]:
    """What becomes of each problem, as it is known, as long as there is time.

    Those that the end of all found at work are left out; with None are those that took
    longer than one may.

    Args:
        problems: In the order in which they are begun.
        limits: How long, and how many at once.
        one: Given a problem and its seconds, what becomes of it; None if it was not
            done in time.  Called in threads.
    """
    ends = time.monotonic() + limits.whole
    left = iter(problems)
    running: dict[Future[tuple[T | None, bool]], tuple[int, Path]] = {}

    def run(level: int, file: Path) -> tuple[T | None, bool]:
        seconds = min(limits.problem, ends - time.monotonic())
        found = one(level, file, seconds) if seconds > 0 else None
        return found, found is not None or seconds == limits.problem

    with ThreadPoolExecutor(limits.jobs) as pool:
        while True:
            while len(running) < limits.jobs and time.monotonic() < ends:
                problem = next(left, None)
                if problem is None:
                    break
                running[pool.submit(run, *problem)] = problem
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                level, file = running.pop(future)
                found, counts = future.result()
                if counts:
                    yield level, file, found
