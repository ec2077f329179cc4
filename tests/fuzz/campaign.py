"""`make fuzz`: attack the project with random cases, for a time or for a count.

Prints the seeds, so that each fault can be seen again:
`python -m tests.fuzz functions --first 1234 --count 1`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from tests.fuzz.attacks import ATTACKERS, CASE_SECONDS, Outcome, run_case

SHOWN_FAULTS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack as the command line says; 1 if there was a fault."""
    given = _parse(arguments)
    # No attack touches the user's cache.
    with tempfile.TemporaryDirectory(prefix="mirage_dsl-fuzz-") as cache:
        os.environ["MIRAGE_DSL_CACHE_DIR"] = cache
        faults = 0
        for attacker in given.attackers:
            seconds = given.seconds / len(given.attackers)
            faults += _campaign(attacker, given, None if given.count else seconds)
    return 1 if faults else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "attackers", nargs="*", help=f"some of {', '.join(ATTACKERS)}; all unless given"
    )
    parser.add_argument(
        "--seconds", type=float, default=60, help="for all attackers together (60)"
    )
    parser.add_argument("--count", type=int, help="cases of each attacker, not seconds")
    parser.add_argument(
        "--first", type=int, help="the first seed; the cases have the numbers from it"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.attackers if name not in ATTACKERS]
    if unknown:
        parser.error(f"no attacker {unknown[0]!r}; there are {', '.join(ATTACKERS)}")
    given.attackers = given.attackers or list(ATTACKERS)
    if given.first is None:
        given.first = int.from_bytes(os.urandom(4))
    return given


def _campaign(attacker: str, given: argparse.Namespace, seconds: float | None) -> int:
    """All cases of one attacker; the number of faults."""
    started = time.monotonic()
    labels: Counter[str] = Counter()
    faults: list[Outcome] = []
    for outcome in _outcomes(attacker, given, seconds):
        if outcome.fault:
            faults.append(outcome)
            if len(faults) <= SHOWN_FAULTS:
                print(f"FAULT {attacker} --first {outcome.seed}\n{outcome.fault}")
        else:
            labels[outcome.label] += 1
    took = time.monotonic() - started
    said = ", ".join(f"{n} {label}" for label, n in labels.most_common())
    cases = labels.total() + len(faults)
    print(
        f"{attacker}: {cases} cases from seed {given.first} in {took:.0f} s: "
        f"{len(faults)} faults; {said}",
        flush=True,
    )
    if not cases:
        print(f"{attacker}: no case ended in {took:.0f} s: give it more --seconds")
    return len(faults) if cases else 1


def _outcomes(attacker: str, given: argparse.Namespace, seconds: float | None) -> Any:
    """Outcomes of all workers as they come.

    A worker that dies, or gives no sign for much longer than a case may take, was
    ended by its case: a fault, and another worker goes on behind it.
    """
    context = multiprocessing.get_context("spawn")
    received: Any = context.Queue()
    places = [context.Value("q", given.first + i) for i in range(given.jobs)]
    heard = [time.monotonic()] * given.jobs
    end = None if given.count is None else given.first + given.count
    deadline = None if seconds is None else time.time() + seconds

    def start(worker: int) -> BaseProcess:
        task = (attacker, worker, places[worker], given.jobs, end, deadline, received)
        process = context.Process(target=_work, args=task, daemon=True)
        process.start()
        return process

    workers: dict[int, BaseProcess] = {i: start(i) for i in range(given.jobs)}
    while workers:
        try:
            worker, outcome = received.get(timeout=1)
        except queue.Empty:
            for worker, process in list(workers.items()):
                lost = _lost(process, time.monotonic() - heard[worker])
                if lost:
                    seed = places[worker].value
                    process.kill()
                    yield Outcome(attacker, seed, "", lost)
                    places[worker].value = seed + given.jobs
                    heard[worker] = time.monotonic()
                    del workers[worker]
                    if end is None or places[worker].value < end:
                        workers[worker] = start(worker)
            continue
        heard[worker] = time.monotonic()
        if outcome is None:
            workers.pop(worker).join()
        else:
            yield outcome


def _lost(process: BaseProcess, silent: float) -> str:
    """Why a worker will not answer any more; empty if it may."""
    if process.exitcode is not None:
        return f"the process that ran it ended with {process.exitcode}"
    if silent > 2 * CASE_SECONDS:
        return f"the process that ran it gave no sign for {silent:.0f} s"
    return ""


def _work(
    attacker: str,
    worker: int,
    place: Any,
    stride: int,
    end: int | None,
    deadline: float | None,
    results: Any,
) -> None:
    """Run every `stride`-th case from the place on."""
    while (end is None or place.value < end) and (
        deadline is None or time.time() < deadline
    ):
        results.put((worker, run_case(attacker, place.value)))
        place.value += stride
    results.put((worker, None))
