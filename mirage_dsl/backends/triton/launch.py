"""A μGraph ready to run: compiled once, then called on tensors."""

# Emitted modules have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirage_dsl.backends.triton.emit import FAR, plan
from mirage_dsl.backends.triton.interpret import interpreting, load_module
from mirage_dsl.backends.triton.plan import ModulePlan
from mirage_dsl.errors import CompileError, DTypeError, MirageError, ShapeError
from mirage_dsl.ir.graph import Input, KernelGraph
from mirage_dsl.ir.maps import bind_extents

if TYPE_CHECKING:
    import torch


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
        self._plans: dict[bool, ModulePlan] = {}
        self._modules: dict[bool, object] = {}
        self._checked: set[tuple[object, ...]] = set()
        self._plan_for(wide=False)

    @property
    def source(self) -> str:
        """The emitted module."""
        return self._plan_for(wide=False).source

    def _plan_for(self, *, wide: bool) -> ModulePlan:
        if wide not in self._plans:
            self._plans[wide] = plan(self.graph, wide=wide)
        return self._plans[wide]

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """The outputs, in order, as new tensors.

        Raises:
            ShapeError: Tensors that do not fit the inputs' types.
            DTypeError: A dtype other than the input's.
            CompileError: Tensors on the wrong device, or a kernel that does not
                compile or start.
        """
        wide = self._check(tensors)
        if wide not in self._modules:
            source = self._plan_for(wide=wide).source
            self._modules[wide] = load_module(source, interpret=self.interpret)
        run = vars(self._modules[wide])["run"]
        try:
            if self.interpret:
                with interpreting():
                    return run(*tensors)
            return run(*tensors)
        except MirageError:
            raise
        except Exception as error:
            raise CompileError(
                f"{self.graph.name} does not run: {type(error).__name__}: {error}"
            ) from error

    def _check(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether offsets need 64 bits, once the tensors are known to fit."""
        key = tuple((t.shape, t.stride(), t.dtype, t.device) for t in tensors)
        if key not in self._checked:
            bind_extents(self.graph, [tuple(t.shape) for t in tensors])
            for item, tensor in zip(self.graph.inputs, tensors, strict=True):
                self._check_one(item, tensor, tensors[0])
            self._checked.add(key)
        return any(_span(t) >= FAR for t in tensors)

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


__all__ = ["Executable"]
