"""Launches without Python in between: `c_launcher.c`, and what it is told of a kernel.

The C source is built by what Triton builds its own launchers with, and kept in Triton's
cache.  Where that fails, or where a compiled kernel does not take the parameters that
are known here, there is no short way, and Triton launches.
"""

# Triton and the compiled module have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import ctypes
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from mirage_dsl.core.errors import CompileError
from mirage_dsl.core.types import DType

log = logging.getLogger("mirage_dsl.backends.triton.c_launcher")

NAME = "mirage_dsl_c_launcher"
DRIVER = (
    "cuLaunchKernelEx",
    "cuTensorMapEncodeTiled",
    "cuTensorMapReplaceAddress",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
)
"""Functions of the driver, in the order in which the module takes them."""
ELEMENTS = {"f16": 6, "f32": 7, "bf16": 9, "f8e4m3": 0, "f8e5m2": 0}
"""The driver's numbers of element types; what it does not know are bytes to it."""
SMALL_BYTES = 128 << 10
LARGE_FLAG = 21
"""A bit of a map's second word, which older drivers set for small tensors too."""
LAST_OLD_DRIVER = 13010
POINTER, WORD, MAP = 8, 4, 128
"""Sizes of parameters in bytes."""
SCRATCH = 2
"""Pointers that Triton puts after a kernel's own; they are null here."""


@cache
def compiled() -> Any:
    """The compiled module, or None where it cannot be had."""
    functions = _driver()
    if functions is None:
        return None
    try:
        import triton.backends.nvidia
        from triton.runtime.build import compile_module_from_src

        place = triton.backends.nvidia.__file__
        assert place is not None
        source = Path(__file__).with_suffix(".c").read_text(encoding="utf-8")
        headers = [str(Path(place).parent / "include")]
        module: Any = compile_module_from_src(
            src=source, name=NAME, include_dirs=headers
        )
    except Exception as error:
        log.info("launching through Triton: c_launcher.c does not compile: %s", error)
        return None
    module.bind(*functions)
    return module


def _driver() -> Sequence[int] | None:
    """Addresses of the driver's functions, or None."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        found = [ctypes.cast(library[name], ctypes.c_void_p).value for name in DRIVER]
    except (OSError, AttributeError):
        return None
    return [address or 0 for address in found]


@cache
def _driver_version() -> int:
    version = ctypes.c_int(0)
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value


@dataclass(frozen=True)
class Parameter:
    """A parameter as the driver takes it.

    Attributes:
        size: In bytes.
        base: Which of the call's addresses it is relative to; -1 for a number.
        value: The number, or what is added to the address.
        map: A tensor map that lacks the address.
    """

    size: int
    base: int = -1
    value: int = 0
    map: bytes | None = None


def takes(compiled: Any, parameters: Sequence[Parameter]) -> bool:
    """Whether a compiled kernel takes just these, as its PTX declares them."""
    head = re.search(r"\.entry\s+\w+\s*\((.*?)\)", str(compiled.asm["ptx"]), re.DOTALL)
    if head is None:
        return False
    declared = re.findall(r"\.[bsuf](\d+)[^,\[]*?(?:\[(\d+)\])?\s*(?:,|$)", head[1])
    sizes = [int(bits) // 8 * int(count or 1) for bits, count in declared]
    return sizes == [p.size for p in parameters]


def described(
    meta: Mapping[str, Any],
    dtype: DType,
    shape: Sequence[int],
    strides: Sequence[int],
    base: int,
    offset: int,
) -> list[Parameter] | None:
    """The parameters of a tensor descriptor: a map, the extents, the strides.

    Args:
        meta: What the compiler chose: how the copies lie in shared memory.
        dtype: Element type.
        shape: Of the tensor.
        strides: In elements; the last one is 1.
        base: Which of the call's addresses.
        offset: Of the tensor from there, in bytes.
    """
    size = dtype.itemsize
    if meta["elem_size"] != size or meta.get("fp4_padded") or meta.get("is_im2col"):
        return None
    steps = tuple(size * s for s in strides[:-1])
    module = compiled()
    box = tuple(meta["block_size"])
    try:
        map_ = module.tensor_map(
            ELEMENTS[dtype.name], meta["swizzle"], 0, tuple(shape), steps, box
        )
    except ValueError as error:
        log.info("launching through Triton: no tensor map: %s", error)
        return None
    last = sum((n - 1) * s for n, s in zip(shape, (*steps, size), strict=True))
    if last + 1 < SMALL_BYTES and _driver_version() <= LAST_OLD_DRIVER:
        word = int.from_bytes(map_[8:16], "little") & ~(1 << LARGE_FLAG)
        map_ = map_[:8] + word.to_bytes(8, "little") + map_[16:]
    found = [Parameter(MAP, base, offset, map_)]
    found += [Parameter(WORD, value=n) for n in shape]
    found += [Parameter(POINTER, value=s) for s in strides]
    return found


@dataclass(frozen=True)
class PreparedLaunch:
    """A compiled kernel with its parameters."""

    name: str
    compiled: Any
    grid: Sequence[int]
    parameters: Sequence[Parameter]
    early: bool

    def rebased(self, places: Mapping[int, int]) -> PreparedLaunch:
        """The same with other numbers for the addresses."""
        moved = [replace(p, base=places[p.base]) for p in self.parameters]
        return replace(self, parameters=moved)

    def description(self) -> tuple[object, ...]:
        """As the compiled module takes it."""
        meta = self.compiled.metadata
        return (
            self.name,
            self.compiled.function,
            (*self.grid, 1, 1)[:3],
            32 * meta.num_warps,
            meta.shared,
            self.early,
            tuple((p.base, p.value, p.map) for p in self.parameters),
        )


def launcher(launches: Sequence[PreparedLaunch], device: int, bases: int) -> Any:
    """What starts kernels in turn, given a stream and the addresses of tensors."""
    kernels = tuple(x.description() for x in launches if math.prod(x.grid))
    return compiled().Launches(CompileError, device, bases, kernels)


def startable(compiled: Any) -> bool:
    """Whether a kernel needs nothing at its launch that only Triton provides."""
    meta = compiled.metadata
    odd = (
        getattr(meta, "global_scratch_size", 0),
        getattr(meta, "profile_scratch_size", 0),
        getattr(meta, "launch_cooperative_grid", False),
        getattr(meta, "num_ctas", 1) != 1,
    )
    return not any(odd)
