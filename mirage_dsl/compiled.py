"""How hot functions are compiled: little code, once, then kept on disk.

Numba compiles an `entry` the first time it is called, with every `inner` function that
it uses, and keeps the result under the cache directory (`settings.use_numba_cache`).
What counts is how much there is to compile, some 5 ms a line: loops most of all, then
views of arrays and arguments that are arrays.  So a function has one type of each
argument, takes records of arrays in place of many, and calls nothing of NumPy's.
"""

# Numba has no types for its decorators, its compiler and its configuration.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import gc
import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core.compiler import CompilerBase, DefaultPassBuilder

from mirage_dsl.settings import use_numba_cache

use_numba_cache()

_njit: Any = numba.njit

MODULES = (
    *("compiled", "search/astar", "search/closure", "search/evaluation"),
    *("search/extract", "search/field61", "search/heap", "search/needs"),
    *("search/recording", "search/steps", "search/values", "search/workspace"),
    *("search/union/heuristic", "verify/modular"),
)

_UNUSED = frozenset(
    (
        *("WithLifting", "InlineClosureLikes", "RewriteSemanticConstants"),
        *("DeadBranchPrune", "RewriteDynamicRaises", "MakeFunctionToJitFunction"),
        *("FindLiterallyCalls", "LiteralUnroll", "LiteralPropagationSubPipelinePass"),
        *("InlineOverloads", "NopythonRewrites", "AnnotateTypes"),
        *("NoPythonSupportedFeatureValidation", "DumpParforDiagnostics"),
    )
)
"""Passes for what these functions have not: closures, literals, array expressions."""


def _directory() -> Path:
    """A directory for this very code: Numba does not see that an `inner` changed."""
    digest = hashlib.sha256(numba.__version__.encode())
    for name in MODULES:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return Path(str(config.CACHE_DIR)) / f"code-{digest.hexdigest()[:16]}"


_DIRECTORY = _directory()


@contextmanager
def compiling() -> Generator[None, None, None]:
    """Code that is kept, and that is compiled without garbage being collected.

    The compiler leaves little of it, and looking for it takes a tenth of the time.
    """
    before, collects = config.CACHE_DIR, gc.isenabled()
    config.CACHE_DIR = str(_DIRECTORY)
    gc.disable()
    try:
        yield
    finally:
        config.CACHE_DIR = before
        if collects:
            _keep()
            gc.enable()


def _keep() -> None:
    """Take what is there as old, for it is: it is not looked through again soon."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


class _Compiler(CompilerBase):
    """Numba's compiler, without the passes that find nothing here."""

    def define_pipelines(self) -> list[Any]:
        whole = DefaultPassBuilder.define_nopython_pipeline(self.state)
        whole.passes = [p for p in whole.passes if p[0].__name__ not in _UNUSED]
        return [whole]

    def compile_extra(self, func: Any) -> Any:
        with compiling():
            return super().compile_extra(func)


_OPTIONS = {
    "nogil": True,
    # Division by zero need not raise: nothing divides by data.
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
    "pipeline_class": _Compiler,
}


def entry(function: Any, types: Any = None) -> Any:
    """Compile a function called from Python, on one type of each argument.

    When it is first called, unless its types are given.
    """
    with compiling():
        return _njit(types, cache=True, **_OPTIONS)(function)


inner: Any = _njit(no_cpython_wrapper=True, **_OPTIONS)
"""Compiles a function called from compiled functions only, not from Python."""

once: Any = _njit(no_cpython_wrapper=True, inline="always", **_OPTIONS)
"""Compiles a function called from one place only into that place.

A function of its own takes Numba and LLVM some 20 ms more.
"""
