"""Workers: what they give back, what they lose, and who does it then."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Generator
from concurrent.futures import BrokenExecutor

import pytest

from mirage_dsl.core.settings import THREADS
from mirage_dsl.core.work import OutOfTimeError, spread, until
from mirage_dsl.store.workers import _NUMBERS, Workers, _Done, workers_to_spare


@pytest.fixture(name="workers", scope="module")
def _workers() -> Generator[Workers]:
    workers = Workers(2)
    yield workers
    workers.shutdown(cancel_futures=True)


def test_results_and_errors_are_those_of_the_work(workers: Workers) -> None:
    asked = [workers.submit(pow, 2, i) for i in range(9)]
    assert [future.result() for future in asked] == [2**i for i in range(9)]
    assert workers.submit(int, "z", base=36).result() == 35
    with pytest.raises(ZeroDivisionError):
        workers.submit(operator.truediv, 1, 0).result()


def test_what_cannot_be_sent_or_is_lost_says_so(workers: Workers) -> None:
    with pytest.raises(Exception, match="pickle"):
        workers.submit(lambda: None).result()
    with pytest.raises(BrokenExecutor, match="ended with 3"):
        workers.submit(os._exit, 3).result()
    assert workers.submit(abs, -1).result() == 1


def test_who_waits_works_as_well(workers: Workers) -> None:
    found: dict[int, int] = {}
    spread(abs, range(-40, 0), workers, found.__setitem__, here=True)
    assert found == {at: 40 - at for at in range(40)}


def test_who_waits_for_too_long_goes_on(workers: Workers) -> None:
    found: dict[int, None] = {}
    started = time.monotonic()
    with pytest.raises(OutOfTimeError), until(started + 0.3):
        spread(time.sleep, [20.0, 20.0], workers, found.__setitem__)
    assert time.monotonic() - started < 5.0
    assert not found


def test_what_nobody_waits_for_ends_and_the_helper_is_used_again() -> None:
    first = Workers(2)
    process = first.submit(os.getppid).result()
    begun = first.submit(time.sleep, 60)
    waiting = [first.submit(time.sleep, 60) for _ in range(5)]
    while not begun.running():
        time.sleep(0.01)
    first.shutdown(cancel_futures=True)
    assert isinstance(begun.exception(), BrokenExecutor)
    assert waiting[-1].cancelled()
    with pytest.raises(RuntimeError, match="no work"):
        first.submit(abs, 1)
    with Workers(2) as second:
        assert second.submit(os.getppid).result() == process


def test_late_answers_to_what_was_given_up_are_nobodys() -> None:
    """They arrive when the helper works for another program."""
    before = next(_NUMBERS)
    with Workers(2) as first:
        assert first.submit(abs, -1).result() == 1
    with Workers(2) as second:
        late = _Done(before + 1, error=BrokenExecutor("it was given up"))
        vars(second)["_sender"].events.put(late)
        assert second.submit(abs, -2).result(timeout=60.0) == 2
    assert next(_NUMBERS) == before + 3, "one for each job, whoever asked for it"


def test_work_is_done_here_where_the_helper_is_lost() -> None:
    workers, found = Workers(2), dict[int, int]()
    vars(workers)["_sender"]._helper.kill()
    spread(abs, [-1, -2, -3], workers, found.__setitem__)
    workers.shutdown()
    assert found == {0: 1, 1: 2, 2: 3}


@pytest.mark.sample(0)
def test_there_are_workers_where_there_are_cores_for_them() -> None:
    with THREADS.scope(2), workers_to_spare() as none:
        assert none is None
    with THREADS.scope(4), workers_to_spare() as some:
        assert some is not None
        assert some.submit(abs, -2).result() == 2
