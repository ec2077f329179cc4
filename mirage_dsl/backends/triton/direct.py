"""The cheapest call: checks, allocations and launches in one generated function.

`kernel[grid](...)` inspects every argument to find the compiled kernel, and Triton's
raw launcher inspects every pointer.  Here one function is made for tensors of certain
shapes, strides, dtypes and alignment on one device: it checks just these, allocates the
outputs, writes the addresses where the driver reads them, and launches.
"""

# PyTorch's and Triton's inner functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from mirage_dsl.backends.triton.launcher import Launcher
from mirage_dsl.backends.triton.loading import ALIGNMENT
from mirage_dsl.backends.triton.plan import KernelPlan, ModulePlan
from mirage_dsl.backends.triton.screen import compile_kernel
from mirage_dsl.errors import CompileError
from mirage_dsl.ir.graph import BlockGraph
from mirage_dsl.types import TensorType

if TYPE_CHECKING:
    import torch

Call = Callable[..., "list[torch.Tensor] | None"]
EARLY_LAUNCH = 6
"""The driver's number of the attribute that lets a launch begin early."""
RESERVED = (
    "call",
    "current_device",
    "current_stream",
    "empty",
    "grad_enabled",
    "launch",
    "stream",
    "torch",
)
"""Names that a generated function uses; tensors get others."""
SCRATCH = 2
"""Pointers that Triton puts after a kernel's own; they are null here."""


def direct_call(plan: ModulePlan, tensors: Sequence[torch.Tensor]) -> Call | None:
    """A function that runs the module on tensors like these; None if there is none.

    It returns None, and does nothing, for tensors that are not like these.  Only
    modules that consist of kernels with pointers to packed, aligned tensors have one.

    Raises:
        CompileError: Triton refuses a kernel, or the device does not take it.
    """
    import torch

    device = tensors[0].device if tensors else None
    if device is None or device.index != torch.cuda.current_device():
        return None
    if not _is_plain(plan, tensors):
        return None
    empty = _allocator()
    major, minor = torch.cuda.get_device_capability(device)
    launches: list[Callable[..., None]] = []
    for kernel in plan.kernels:
        compiled = compile_kernel(plan, kernel, 10 * major + minor)
        launch = _launch_of(compiled, kernel, device.index)
        if launch is None:
            return None
        launches.append(launch)
    writer = _Writer(plan, empty)
    scope = writer.scope(tensors, launches)
    exec("\n".join(writer.call()), scope)
    return scope["call"]


def _is_plain(plan: ModulePlan, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the module was compiled for just such tensors, and has only kernels."""
    if not all(isinstance(n, BlockGraph) for n in plan.graph.nodes):
        return False
    if any(e is None for _, e in plan.around.extents.items()):
        return False
    inputs = dict(zip((i.name for i in plan.graph.inputs), tensors, strict=True))
    if any(t.data_ptr() % ALIGNMENT for t in tensors):
        return False
    for kernel in plan.kernels:
        for param in kernel.params:
            if param.kind == "stride":
                tensor = inputs.get(param.source)
                if tensor is None or tensor.stride(param.axis) != param.value:
                    return False
            elif param.kind != "tensor":
                return False
    return True


def _allocator() -> Any:
    """PyTorch's own shortest way to a new tensor on the current device, or None."""
    import torch

    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, "_empty_strided_cuda", None)


class _Writer(Launcher):
    """Writes `call` in the place of `run`."""

    def __init__(self, plan: ModulePlan, empty: Any) -> None:
        super().__init__(plan.graph, plan.around)
        self._plan = plan
        self._empty = empty
        self._addresses: dict[str, str] = {}

    def call(self) -> list[str]:
        """The lines of `call`; names are those of `scope`."""
        writer = self._writer
        for name in RESERVED:
            self._names.fresh(name)
        for item in self._graph.inputs:
            self._variables[item.name] = self._names.fresh(item.name)
        names = list(self._variables.values())
        writer.line(f"def call({', '.join(names)}):")
        writer.indent()
        writer.line("try:")
        writer.indent()
        for item, name in zip(self._graph.inputs, names, strict=True):
            self._note_address(item.name, name)
        writer.dedent()
        # Not tensors, or tensors without memory of their own.
        writer.line("except Exception:")
        writer.indent()
        writer.line("return None")
        writer.dedent()
        writer.line(f"if {' or '.join(self._tests(names))}:")
        writer.indent()
        writer.line("return None")
        writer.dedent()
        writer.line("stream = current_stream(_index)")
        for at, kernel in enumerate(self._plan.kernels):
            self._start(at, kernel)
        results = [self._returned(r) for r in self._graph.returns]
        writer.line(f"return [{', '.join(results)}]")
        return writer.lines

    def _tests(self, names: Sequence[str]) -> list[str]:
        """What is true of tensors that the function was not made for."""
        tests = [f"({' | '.join(self._addresses.values())}) % {ALIGNMENT}"]
        tests.append("_observers or current_device() != _index")
        for at, name in enumerate(names):
            tests += [
                f"{name}.dtype is not _dtype{at}",
                f"{name}.shape != _shape{at}",
                f"{name}.stride() != _stride{at}",
                f"{name}.device != _device",
            ]
        # With gradients the long way decides whether to refuse.
        grads = " or ".join(f"{n}.requires_grad" for n in names)
        tests.append(f"({grads}) and grad_enabled()")
        return tests

    def _start(self, at: int, kernel: KernelPlan) -> None:
        for store in kernel.block.stores:
            variable = self._names.fresh(store.result)
            self._variables[store.result] = variable
            kind = self._types[store.result]
            self._writer.assign(variable, self._new(kind))
            self._note_address(store.result, variable)
        used = [self._addresses[p.source] for p in _pointers(kernel)]
        self._writer.line(f"launch[{at}](stream, {', '.join(used)})")

    def _note_address(self, value: str, variable: str) -> None:
        name = self._names.fresh(f"{variable}_at")
        self._addresses[value] = self._writer.assign(name, f"{variable}.data_ptr()")

    def _new(self, kind: TensorType) -> str:
        """A new tensor, in memory as its layout says."""
        if self._empty is None:
            return self._allocation(kind).replace("device=device", "device=_device")
        sizes = [_extent(axis, self._extents) for axis in kind.axes]
        steps = [0] * len(sizes)
        step = 1
        for axis in reversed(kind.layout or tuple(range(len(sizes)))):
            steps[axis] = step
            step *= sizes[axis]
        dtype = f"torch.{kind.dtype.long_name}"
        return f"empty({_tuple(sizes)}, {_tuple(steps)}, {dtype})"

    def scope(
        self,
        tensors: Sequence[torch.Tensor],
        launches: Sequence[Callable[..., None]],
    ) -> dict[str, Any]:
        """What `call` refers to."""
        import torch

        scope: dict[str, Any] = {
            "torch": torch,
            "empty": self._empty,
            "current_device": torch._C._cuda_getDevice,
            "current_stream": torch._C._cuda_getCurrentRawStream,
            "launch": tuple(launches),
            "grad_enabled": torch.is_grad_enabled,
            "_device": tensors[0].device,
            "_index": tensors[0].device.index,
            "_observers": _observers(),
        }
        for at, tensor in enumerate(tensors):
            scope[f"_dtype{at}"] = tensor.dtype
            scope[f"_shape{at}"] = tensor.shape
            scope[f"_stride{at}"] = tensor.stride()
        return scope


def _pointers(kernel: KernelPlan) -> list[Any]:
    return [p for p in kernel.params if p.kind == "tensor"]


def _extent(axis: Any, extents: Any) -> int:
    size = 1
    for dim in axis:
        size *= extents[dim.name]
    return size


def _tuple(values: Sequence[int]) -> str:
    return f"({', '.join(map(str, values))}{',' * (len(values) == 1)})"


# -- The driver ------------------------------------------------------------------------


class _Attribute(ctypes.Structure):
    """A launch attribute; its value is a union of 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_int * 16),
    )


class _Config(ctypes.Structure):
    """How to launch: the driver's own structure."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class _Arguments(threading.local):
    """What the driver reads at a launch: for each thread its own.

    Args:
        pointers: How many the kernel takes.
        grid: Number of blocks along each axis.
        threads: Of a block.
        shared: Bytes of shared memory of a block.
        early: Whether the launch may begin before the kernel ahead of it has ended.
    """

    def __init__(
        self,
        pointers: int,
        grid: Sequence[int],
        threads: int,
        shared: int,
        *,
        early: bool,
    ) -> None:
        self.values = (ctypes.c_uint64 * pointers)()
        count = pointers + SCRATCH
        self._null = ctypes.c_uint64(0)
        size = ctypes.sizeof(ctypes.c_uint64)
        first = ctypes.addressof(self.values)
        places = [first + size * i for i in range(pointers)]
        places += [ctypes.addressof(self._null)] * SCRATCH
        self.places = (ctypes.c_void_p * count)(*places)
        self._attribute = _Attribute(EARLY_LAUNCH)
        self._attribute.value[0] = 1
        self.config = _Config(
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(threads, 1, 1),
            shared,
            None,
            ctypes.pointer(self._attribute),
            int(early),
        )
        self.reference = ctypes.byref(self.config)


@cache
def _driver() -> Any:
    """The driver's function that launches kernels, or None."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    except (OSError, AttributeError):
        return None


def _observers() -> Any:
    """Profilers that want to hear of launches; Triton's own path tells them."""
    from triton import knobs

    return getattr(knobs.runtime.launch_enter_hook, "calls", ())


def _launch_of(
    compiled: Any, kernel: KernelPlan, device: int
) -> Callable[..., None] | None:
    """What launches a compiled kernel on a stream with addresses; None if it cannot.

    Raises:
        CompileError: The device does not take the kernel.
    """
    meta = compiled.metadata
    odd = (
        getattr(meta, "global_scratch_size", 0),
        getattr(meta, "profile_scratch_size", 0),
        getattr(meta, "launch_cooperative_grid", False),
        getattr(meta, "num_ctas", 1) != 1,
    )
    start = _driver()
    if any(odd) or start is None:
        return None
    try:
        _ = compiled.run  # loads the kernel onto the current device
    except Exception as error:
        raise CompileError(f"{kernel.name} on device {device}: {error}") from error
    grid = [int(g) for g in kernel.grid] + [1] * (3 - len(kernel.grid))
    arguments = _Arguments(
        len(_pointers(kernel)),
        grid,
        32 * meta.num_warps,
        meta.shared,
        early=kernel.schedule.pdl,
    )
    function = ctypes.c_void_p(compiled.function)

    def launch(stream: int, *pointers: int) -> None:
        arguments.values[:] = pointers
        arguments.config.stream = stream
        status = start(arguments.reference, function, arguments.places, None)
        if status:
            raise CompileError(f"{kernel.name} does not start: CUDA error {status}")

    return launch


__all__ = ["direct_call"]
