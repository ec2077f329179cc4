"""Triton as a backend: what `backends.base` asks of one.

On a GPU kernels are compiled and launched.  Tensors of the CPU are computed by Triton's
interpreter where the settings say so, which is slow; where they do not, nothing of what
is below is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mirage_dsl.backends.base import Backend
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.settings import INTERPRET
from mirage_dsl.ir.graph import KernelGraph

if TYPE_CHECKING:
    from mirage_dsl.backends.triton.running.launch import TritonExecutable
    from mirage_dsl.backends.triton.running.screen import KernelReport

DEVICES = ("cpu", "cuda")
_COMPILING = ("torch", "triton.compiler", "triton.tools.tensor_descriptor")
"""What is imported before the first kernel is compiled."""


class Triton(Backend):
    """Kernels in Triton, library kernels by PyTorch."""

    name = "triton"
    packages = ("triton",)
    tuned = True

    def takes(self, device: str) -> bool:
        """CUDA tensors, and those of the CPU where kernels are to be interpreted."""
        return device == "cuda" or INTERPRET.get()

    def emit(self, graph: KernelGraph) -> str:
        """A Python module: kernels, and a function `run` that launches them."""
        from mirage_dsl.backends.triton.lowering.emit import emit

        return emit(graph)

    def compile(
        self, graph: KernelGraph, device: str, *, most: Mapping[str, int] | None = None
    ) -> TritonExecutable:
        """What launches the module, or interprets it on the CPU."""
        from mirage_dsl.backends.triton.running.launch import TritonExecutable

        if device not in DEVICES:
            raise UnsupportedError(
                f"device={device!r}; Triton runs on one of {', '.join(DEVICES)}"
            )
        return TritonExecutable(graph, interpret=device == "cpu", most=most)

    def report(
        self, graph: KernelGraph, target: str | None = None
    ) -> list[KernelReport]:
        """What ptxas made of each kernel."""
        from mirage_dsl.backends.triton.running.screen import compile_only

        return compile_only(graph) if target is None else compile_only(graph, target)

    def load(self, device: str | None = None) -> None:
        """Import the compiler; for a GPU start Triton's driver too."""
        for name in _COMPILING:
            importlib.import_module(name)
        if device == "cuda":
            from triton.runtime.driver import driver

            active: Any = driver.active
            active.get_current_device()
