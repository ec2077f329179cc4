"""Helper processes that wait for the next program after they have served one.

Loading PyTorch and setting up a GPU takes them seconds, longer than many a tuning.  One
of each kind waits for a while, then ends; the end of this process ends it too.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from mirage_dsl.backends.triton.channel import Helper

IDLE_SECONDS = 30.0
"""How long a process waits."""

_Kind = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]


@dataclass
class Spares:
    """The waiting processes, by command and environment."""

    _waiting: dict[_Kind, tuple[Helper, threading.Timer]] = field(
        default_factory=dict[_Kind, tuple[Helper, threading.Timer]]
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, command: Sequence[str]) -> Helper:
        """A process that runs a command: one that waits, or else a new one."""
        with self._lock:
            helper, timer = self._waiting.pop(_kind(command), (None, None))
        if timer is not None:
            timer.cancel()
        if helper is not None:
            if helper.alive:
                return helper
            helper.stop()
        return Helper(command)

    def keep(self, command: Sequence[str], helper: Helper) -> None:
        """Let a process wait that owes no answers, unless one does already."""
        kind = _kind(command)
        timer = threading.Timer(IDLE_SECONDS, self._end, (kind, helper))
        timer.daemon = True
        with self._lock:
            if kind not in self._waiting:
                self._waiting[kind] = helper, timer
                timer.start()
                return
        helper.stop()

    def _end(self, kind: _Kind, helper: Helper) -> None:
        with self._lock:
            if self._waiting.get(kind, (None,))[0] is not helper:
                return
            del self._waiting[kind]
        helper.stop()

    def clear(self) -> None:
        """End all that wait."""
        with self._lock:
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for helper, timer in waiting:
            timer.cancel()
            helper.stop()


def _kind(command: Sequence[str]) -> _Kind:
    return tuple(command), tuple(sorted(os.environ.items()))


SPARES = Spares()
atexit.register(SPARES.clear)

__all__ = ["SPARES", "Spares"]
