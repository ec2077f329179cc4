"""The multi-kernel search: see `search.union.search`."""

from mirage_dsl.search.union.search import MultiKernel, multi_kernel

__all__ = ["MultiKernel", "multi_kernel"]
