"""Helper processes end at once, whatever their children do."""

from __future__ import annotations

import time
from pathlib import Path

from mirage_dsl.backends.triton.channel import Helper

WITH_A_CHILD = """
import os, sys, time
from mirage_dsl.backends.triton.channel import send
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
    assert _ends(child)


def _ends(process: int) -> bool:
    """Whether a process ends soon; as no child of ours it cannot be waited for."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]
        except FileNotFoundError:
            return True
        if state.split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False
