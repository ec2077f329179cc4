"""How hot functions are compiled: little code, once, then kept on disk.

Numba compiles an `entry` the first time it is called, with every `inner` function that
it uses, and keeps the result under the cache directory (`settings.use_numba_cache`).
What counts is how much there is to compile, some 5 ms a line: loops most of all, then
views of arrays and arguments that are arrays.  So a function has one type of each
argument, takes records of arrays in place of many, and calls nothing of NumPy's.

What is kept is machine code in pickles, so it is signed, and nothing is loaded that
this machine did not write.  What is damaged, or cannot be kept, is compiled again.
"""

# Numba has no types for its decorators, its compiler and its configuration.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import gc
import hashlib
import pickle
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.compiler import CompilerBase, DefaultPassBuilder

from mirage_dsl.core.files import (
    is_signed,
    read_regular,
    signature,
    unusable,
    write_whole,
)
from mirage_dsl.core.settings import CACHE_DIR, use_numba_cache

use_numba_cache()

_njit: Any = numba.njit

MODULES = (
    *("core/compiled", "search/closure", "search/extract", "search/multi_kernel/dags"),
    *("search/useful", "verify/fields"),
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
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(numba.__version__.encode())
    for name in MODULES:
        digest.update((package / f"{name}.py").read_bytes())
    return Path(str(config.CACHE_DIR)) / f"code-{digest.hexdigest()[:16]}"


def _root() -> Path:
    """The directory of which to say that it cannot be used."""
    numbas, ours = Path(str(config.CACHE_DIR)), CACHE_DIR.get()
    return ours if numbas.is_relative_to(ours) else numbas


_ROOT = _root()
_DIRECTORY = _directory()
_MARK = 32
"""Bytes of a signature."""


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


class _SignedFiles(IndexDataCacheFile):
    """Numba's index and code of one function, each with a signature ahead of it."""

    def _load_index(self) -> dict[Any, Any]:
        found = _signed_content(Path(self._index_path))
        if found is None:
            return {}
        version, stamp, overloads = pickle.loads(found)
        fresh = (version, stamp) == (self._version, self._source_stamp)
        return overloads if fresh else {}

    def _save_index(self, overloads: dict[Any, Any]) -> None:
        data = self._dump((self._version, self._source_stamp, overloads))
        _write_signed(Path(self._index_path), data)

    def _load_data(self, name: str) -> Any:
        found = _signed_content(Path(self._data_path(name)))
        return None if found is None else pickle.loads(found)

    def _save_data(self, name: str, data: Any) -> None:
        _write_signed(Path(self._data_path(name)), self._dump(data))


class _Kept(FunctionCache):
    """Compiled code of one function on disk; what is not there is compiled."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        locator = self._impl.locator
        self._cache_file = _SignedFiles(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=locator.get_source_stamp(),
        )

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            unusable(_ROOT, error)


def _signed_content(file: Path) -> bytes | None:
    """What `_write_signed` wrote to a file; None if it did not."""
    try:
        whole, _ = read_regular(file)
    except OSError:
        return None
    mark, data = whole[:_MARK], whole[_MARK:]
    return data if is_signed(mark, file.name.encode(), data) else None


def _write_signed(file: Path, data: bytes) -> None:
    write_whole(file, signature(file.name.encode(), data) + data)


def entry(function: Any, types: Any = None) -> Any:
    """Compile a function called from Python, on one type of each argument.

    When it is first called, unless its types are given.
    """
    with compiling():
        dispatcher = _njit(**_OPTIONS)(function)
        try:
            dispatcher._cache = _Kept(function)
        except (OSError, RuntimeError) as error:
            # Numba says so of directories that it cannot write.
            unusable(_ROOT, error)
        if types is not None:
            dispatcher.compile(types)
            dispatcher.disable_compile()
        return dispatcher


inner: Any = _njit(no_cpython_wrapper=True, **_OPTIONS)
"""Compiles a function called from compiled functions only, not from Python."""

once: Any = _njit(no_cpython_wrapper=True, inline="always", **_OPTIONS)
"""Compiles a function called from one place only into that place.

A function of its own takes Numba and LLVM some 20 ms more.
"""
