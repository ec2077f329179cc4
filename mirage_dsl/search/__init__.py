"""The search for μGraphs: abstract expressions, closure, extraction, sizes, driver."""

from mirage_dsl.core.settings import use_numba_cache

# Before any module of the package defines a jitted function.
use_numba_cache()
