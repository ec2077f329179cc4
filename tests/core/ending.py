"""Whether processes end."""

from __future__ import annotations

import time
from pathlib import Path


def ends(process: int) -> bool:
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
