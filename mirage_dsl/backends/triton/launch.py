"""A μGraph ready to run: compiled once, then called on tensors."""

# Emitted modules have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirage_dsl.backends.triton.emit import FAR, plan
from mirage_dsl.backends.triton.interpret import interpreting, load_module
from mirage_dsl.backends.triton.loading import ALIGNMENT
from mirage_dsl.backends.triton.plan import ModulePlan
from mirage_dsl.errors import CompileError, DTypeError, ShapeError
from mirage_dsl.ir.graph import Input, KernelGraph
from mirage_dsl.ir.maps import bind_extents

if TYPE_CHECKING:
    import torch


Key = tuple[tuple[object, ...], ...]
Run = Callable[..., "list[torch.Tensor]"]


@dataclass(frozen=True)
class Variant:
    """A form of the module: offsets of 64 bits; pointers instead of descriptors."""

    wide: bool = False
    pointers: bool = False


class Executable:
    """Runs one μGraph.

    Tensors are checked on every call; strides are free.  All work goes to the current
    stream, and nothing waits for it, so calls can be captured in a CUDA graph once
    they have run.

    Args:
        graph: What to run.
        interpret: Run the emitted kernels on the CPU, in Triton's interpreter.

    Raises:
        UnsupportedError: Triton cannot express something of the graph.
    """

    def __init__(self, graph: KernelGraph, *, interpret: bool = False) -> None:
        self.graph = graph
        self.interpret = interpret
        self._variants: dict[Variant, tuple[ModulePlan, Run | None]] = {}
        self._known: dict[Key, Variant] = {}
        self.source = self._plan(Variant()).source
        """The emitted module, for tensors as the inputs' types describe them."""

    def _plan(self, variant: Variant) -> ModulePlan:
        if variant not in self._variants:
            made = plan(self.graph, wide=variant.wide, pointers=variant.pointers)
            self._variants[variant] = (made, None)
        return self._variants[variant][0]

    def _run(self, variant: Variant) -> Run:
        made = self._plan(variant)
        run = self._variants[variant][1]
        if run is None:
            run = vars(load_module(made.source, interpret=self.interpret))["run"]
            self._variants[variant] = (made, run)
        return run

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """The outputs, in order, as new tensors.

        Raises:
            ShapeError: Tensors that do not fit the inputs' types.
            DTypeError: A dtype other than the input's.
            CompileError: Tensors on the wrong device, or a kernel that does not
                compile or start.
        """
        key = tuple(
            (t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % ALIGNMENT == 0)
            for t in tensors
        )
        variant = self._known.get(key)
        if variant is None:
            variant = self._check(tensors)
            self._known[key] = variant
        run = self._run(variant)
        try:
            if self.interpret:
                with interpreting():
                    return run(*tensors)
            return run(*tensors)
        except Exception as error:
            raise CompileError(
                f"{self.graph.name} does not run: {type(error).__name__}: {error}"
            ) from error

    def _check(self, tensors: Sequence[torch.Tensor]) -> Variant:
        """The variant for these tensors, once they are known to fit."""
        bind_extents(self.graph, [tuple(t.shape) for t in tensors])
        for item, tensor in zip(self.graph.inputs, tensors, strict=True):
            self._check_one(item, tensor, tensors[0])
        described = {
            p.source
            for kernel in self._plan(Variant()).kernels
            for p in kernel.params
            if p.kind == "descriptor"
        }
        return Variant(
            wide=any(_span(t) >= FAR for t in tensors),
            pointers=not all(
                _fits_descriptor(item, tensor)
                for item, tensor in zip(self.graph.inputs, tensors, strict=True)
                if item.name in described
            ),
        )

    def _check_one(
        self, item: Input, tensor: torch.Tensor, first: torch.Tensor
    ) -> None:
        what = f"input {item.name} of {self.graph.name}"
        if str(tensor.dtype) != f"torch.{item.type.dtype.long_name}":
            raise DTypeError(
                f"{what} is {tensor.dtype}, expected torch.{item.type.dtype.long_name}"
            )
        if tensor.device != first.device:
            raise CompileError(
                f"{what} is on {tensor.device} and {self.graph.inputs[0].name} on "
                f"{first.device}; move them to one device"
            )
        kind = "cpu" if self.interpret else "cuda"
        if tensor.device.type != kind:
            raise CompileError(
                f"{what} is on {tensor.device}, expected a {kind} device"
                + (" for the interpreter" if self.interpret else "")
            )
        if any(s < 0 for s in tensor.stride()):
            raise ShapeError(f"{what} has negative strides {tensor.stride()}")


def _span(tensor: torch.Tensor) -> int:
    """One more than the largest offset of an element."""
    if tensor.numel() < FAR and tensor.is_contiguous():
        return tensor.numel()
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((n - 1) * s for n, s in sizes)


def _fits_descriptor(item: Input, tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in memory as its type says, aligned for the copy engine."""
    order = item.type.layout or tuple(range(tensor.dim()))
    *outer, last = (tensor.stride(a) for a in order)
    size = tensor.element_size()
    return (
        last == 1
        and tensor.data_ptr() % ALIGNMENT == 0
        and all(s * size % ALIGNMENT == 0 for s in outer)
    )


__all__ = ["Executable", "Variant"]
