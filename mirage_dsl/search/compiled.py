"""How the search's hot functions are compiled: little code, once, then kept on disk.

Numba compiles an `entry` the first time it is called, with every `inner` function that
it uses, and keeps the result under the cache directory (`settings.use_numba_cache`).
"""

# Numba has no types for its decorators and its configuration.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numba
from numba.core import config

_njit: Any = numba.njit

_MODULES = (
    *("astar", "closure", "compiled", "evaluation", "extract"),
    *("field61", "heap", "recording", "steps", "values", "workspace"),
    *("union/graph", "union/heuristic"),
)


def _directory() -> Path:
    """A directory for this very code: Numba does not see that an `inner` changed."""
    digest = hashlib.sha256()
    for name in _MODULES:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return Path(str(config.CACHE_DIR)) / f"search-{digest.hexdigest()[:16]}"


_DIRECTORY = _directory()


def entry(function: Any) -> Any:
    """Compile a function called from Python, on few types."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_DIRECTORY)
    try:
        # Division by zero need not raise: nothing divides by data.
        return _njit(cache=True, nogil=True, error_model="numpy")(function)
    finally:
        config.CACHE_DIR = before


_INNER = {
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}

inner: Any = _njit(**_INNER)
"""Compiles a function called from compiled functions only, not from Python."""

once: Any = _njit(**_INNER, inline="always")
"""Compiles a function called from one place only into that place.

A function of its own takes Numba and LLVM some 20 ms more.
"""


def is_compiled() -> bool:
    """Whether an earlier search has left its compiled code."""
    return next(_DIRECTORY.glob("*/astar.search-*.nbc"), None) is not None
