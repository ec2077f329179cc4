"""The process that runs candidates, as the tuner sees it: it may crash, hang, be late.

The worker's side is `trial_worker`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from mirage_dsl.tune.channel import SPARES, Helper
from mirage_dsl.tune.messages import Final, Task, Timing, Trial

WORKER = ("-m", "mirage_dsl.tune.trial_worker")
"""What Python runs."""


class TrialProcess:
    """Holds one program; started anew after it died.

    Args:
        task: The program and its inputs.

    Attributes:
        ready_at: The reading of `time.monotonic()` at which the process that runs now
            could have begun to judge, once that is known.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._helper: Helper | None = None
        self.ready_at: float | None = None

    def start(self) -> None:
        """Begin, without waiting until it is ready."""
        if self._helper is not None:
            return
        self._helper = SPARES.take(WORKER)
        self.ready_at = None
        with suppress(BrokenPipeError):
            self._helper.send(self._task)

    def prepare(self, seconds: float) -> str:
        """Wait until it can judge; why it cannot, or nothing."""
        self.start()
        if self.ready_at is not None:
            return ""
        assert self._helper is not None
        try:
            with _deadline(self._helper, seconds):
                self.ready_at = self._helper.receive()
        except EOFError:
            return self._ended()
        except TimeoutError:
            self.stop()
            return f"the process that runs it was not ready within {seconds:.1f} s"
        return ""

    def judge(self, trial: Trial, seconds: float) -> Timing:
        """Run one candidate in the process, which is ready.

        Raises:
            TimeoutError: It took longer; the process is gone.
        """
        started = time.monotonic()
        try:
            timing: Timing = self._answer(trial, seconds)
        except (EOFError, BrokenPipeError):
            return Timing(0, reason=self._ended())
        return replace(timing, seconds=time.monotonic() - started)

    def finals(self, final: Final, seconds: float) -> list[Timing] | None:
        """Run candidates in turns in the process, which is ready; None if that fails.

        Raises:
            TimeoutError: It took longer; the process is gone.
        """
        try:
            return self._answer(final, seconds)
        except (EOFError, BrokenPipeError):
            self.stop()
            return None

    def _answer(self, request: Trial | Final, seconds: float) -> Any:
        assert self._helper is not None
        assert self.ready_at is not None
        try:
            with _deadline(self._helper, seconds):
                self._helper.send(request)
                return self._helper.receive()
        except TimeoutError:
            self.stop()
            raise

    def _ended(self) -> str:
        return f"the process that ran it ended with {self.stop()}"

    def rest(self) -> None:
        """Leave the process to the next program, if it waits for requests."""
        helper, self._helper = self._helper, None
        if helper is None:
            return
        if self.ready_at is not None and helper.alive:
            with suppress(BrokenPipeError):
                helper.send(None)
            SPARES.keep(WORKER, helper)
        else:
            helper.stop()
        self.ready_at = None

    def stop(self) -> int | None:
        """End the process; its exit status."""
        helper, self._helper = self._helper, None
        self.ready_at = None
        return None if helper is None else helper.stop()


@contextmanager
def _deadline(helper: Helper, seconds: float) -> Generator[None, None, None]:
    """Kill the process if the block takes longer.

    Raises:
        TimeoutError: It did.
    """
    expired = threading.Event()

    def kill() -> None:
        expired.set()
        helper.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (EOFError, BrokenPipeError):
        if expired.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()


__all__ = ["TrialProcess"]
