"""Garbage is collected rarely while it is asked for, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import ExitStack

import pytest

from mirage_dsl.core.garbage import RARELY, rarely_collected


@pytest.fixture(autouse=True)
def thresholds() -> Generator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_thresholds_come_back_when_the_last_has_ended() -> None:
    gc.set_threshold(600, 11, 12)
    first, second = ExitStack(), ExitStack()
    first.enter_context(rarely_collected())
    second.enter_context(rarely_collected())
    first.close()
    assert gc.get_threshold() == (RARELY, 11, 12)
    second.close()
    assert gc.get_threshold() == (600, 11, 12)


def test_thresholds_come_back_after_a_fault() -> None:
    gc.set_threshold(600, 11, 12)

    @rarely_collected()
    def fails() -> None:
        assert gc.get_threshold() == (RARELY, 11, 12)
        raise ValueError("it is over")

    with pytest.raises(ValueError, match="it is over"):
        fails()
    assert gc.get_threshold() == (600, 11, 12)


@pytest.mark.parametrize("own", [(0, 10, 10), (2 * RARELY, 10, 10)])
def test_what_is_as_rare_already_stays(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with rarely_collected():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_a_search_collects_rarely_and_leaves_no_trace() -> None:
    from mirage_dsl.core.hardware import H100
    from mirage_dsl.search.driver import search
    from tests.search.programs import PROGRAMS

    seen: list[int] = []

    def progress(*_: object) -> None:
        seen.append(gc.get_threshold()[0])

    before = gc.get_threshold()
    search(PROGRAMS["rmslin"](), H100, progress=progress)
    assert set(seen) == {RARELY}
    assert gc.get_threshold() == before
