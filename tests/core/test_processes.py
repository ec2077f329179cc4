"""Helper processes end at once, whatever their children do, or wait for more."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mirage_dsl.core import processes
from mirage_dsl.core.processes import Helper, Spares
from tests.core.ending import ends

WITH_A_CHILD = """
import os, sys, time
from mirage_dsl.core.processes import send
child = os.fork()
if not child:
    time.sleep(60)
    os._exit(0)
send(sys.stdout.buffer, child)
time.sleep(60)
"""


def test_children_end_with_their_helper(tmp_path: Path) -> None:
    file = tmp_path / "helper.py"
    file.write_text(WITH_A_CHILD)
    helper = Helper((str(file),))
    child = helper.receive()
    started = time.monotonic()
    assert helper.stop() < 0
    assert time.monotonic() - started < 5.0
    assert ends(child)


BUSY = """
import os, sys, time
from mirage_dsl.core.processes import arriving, send
for request in arriving(sys.stdin.buffer):
    send(sys.stdout.buffer, os.getpid())
    time.sleep(request)
"""
FAILING = """
from mirage_dsl.core.processes import arriving, own_channel
for request in arriving(own_channel()[0]):
    raise SystemExit(request)
"""


def given_up(helper: Helper) -> None:
    """What becomes of a helper whose owner is killed: its pipe is closed."""
    stdin = vars(helper)["_process"].stdin
    stdin.close()


def test_a_helper_ends_with_its_owner_whatever_it_does(tmp_path: Path) -> None:
    file = tmp_path / "busy.py"
    file.write_text(BUSY)
    helper = Helper((str(file),))
    helper.send(0)
    process = helper.receive()
    helper.send(60)
    assert helper.receive() == process
    given_up(helper)
    try:
        assert ends(process)
    finally:
        helper.stop()


def test_a_helper_that_ends_itself_has_its_exit_status(tmp_path: Path) -> None:
    file = tmp_path / "failing.py"
    file.write_text(FAILING)
    helper = Helper((str(file),))
    helper.send(3)
    assert vars(helper)["_process"].wait(10) == 3
    helper.stop()


ECHO = """
import os, sys
from mirage_dsl.core.processes import receive, send
while True:
    receive(sys.stdin.buffer)
    send(sys.stdout.buffer, os.getpid())
"""


def asked(helper: Helper) -> int:
    helper.send("who are you?")
    return helper.receive()


@pytest.fixture
def echo(tmp_path: Path) -> tuple[str, ...]:
    file = tmp_path / "echo.py"
    file.write_text(ECHO)
    return (str(file),)


def test_a_process_that_waits_is_used_again(
    echo: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    spares = Spares()
    first = spares.take(echo)
    process = asked(first)
    spares.keep(echo, first)
    again, other = spares.take(echo), spares.take(echo)
    assert asked(again) == process
    assert asked(other) != process
    spares.keep(echo, again)
    spares.keep(echo, other)
    assert not other.alive, "one of a kind is enough"
    monkeypatch.setenv("SOMETHING", "else")
    elsewhere = spares.take(echo)
    assert asked(elsewhere) != process, "it would see the old environment"
    elsewhere.stop()
    spares.clear()
    assert not again.alive


def test_a_process_does_not_wait_for_ever_nor_when_it_is_dead(
    echo: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    spares = Spares()
    helper = spares.take(echo)
    asked(helper)
    spares.keep(echo, helper)
    helper.kill()
    while helper.alive:
        time.sleep(0.01)
    helper = spares.take(echo)
    asked(helper)
    monkeypatch.setattr(processes, "IDLE_SECONDS", 0.05)
    spares.keep(echo, helper)
    for _ in range(100):
        if not helper.alive:
            return
        time.sleep(0.05)
    pytest.fail("it waits for ever")


LOADING = """
import sys, time
from mirage_dsl.core.processes import receive, send
time.sleep(30)
"""


def test_who_sends_a_program_does_not_wait_until_a_helper_has_loaded(
    tmp_path: Path,
) -> None:
    file = tmp_path / "loading.py"
    file.write_text(LOADING)
    helper = Helper((str(file),))
    started = time.monotonic()
    helper.send(bytes(500_000))
    assert time.monotonic() - started < 5.0
    helper.stop()
