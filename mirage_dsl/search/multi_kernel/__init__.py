"""The multi-kernel search: see `search.multi_kernel.search`."""

from mirage_dsl.search.multi_kernel.search import MultiKernel, multi_kernel

__all__ = ["MultiKernel", "multi_kernel"]
