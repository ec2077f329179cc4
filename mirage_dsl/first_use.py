"""What happens once on a machine: Numba compiles the search."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_dsl.ir.parser import parse

if TYPE_CHECKING:
    from mirage_dsl.search.driver import Progress

_log = logging.getLogger(__name__)

_SMALL = """
mirage 1

mugraph small(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 4, k = 64, n = 64 {
  y: f16[m, n] = matmul x, w over(k)
  return y
}
"""


def compile_search(version: str, progress: Progress | None) -> None:
    """Let Numba compile the search where it has not yet, outside of any budget.

    Takes some seconds, once for each version of the code on a machine.

    Args:
        version: Of the code.
        progress: Told of it.
    """
    directory = Path(os.environ["NUMBA_CACHE_DIR"])
    marker = directory / f"compiled-{version.replace(' ', '-')}"
    if marker.exists():
        return
    if progress is None:
        _log.warning("compiling the search for this machine, once; some seconds")
    else:
        progress("compiling the search (once)", 0, 1, None)
    from mirage_dsl.search.driver import search
    from mirage_dsl.search.union import multi_kernel

    search(parse(_SMALL), k=1)
    multi_kernel(parse(_SMALL), max_kernels=2, keep=1)
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        marker.touch()
        for old in set(directory.glob("compiled-*")) - {marker}:
            old.unlink()
