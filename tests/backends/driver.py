"""A driver that is made up: it notes what the compiled c_launcher asks of it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from mirage_dsl.backends.triton.lowering.emit import ModulePlan
from mirage_dsl.backends.triton.lowering.kernel import KernelPlan
from mirage_dsl.backends.triton.running import direct

WORD = ctypes.c_uint64
INVALID_CONTEXT = 201


class Attribute(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("value", ctypes.c_int * 16),
    )


class Config(ctypes.Structure):
    """The driver's description of a launch."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


class Meta:
    num_warps = 8
    shared = 1024
    tensordesc_meta: Sequence[dict[str, Any]] = ()


class Driver:
    """Stands for the driver: notes what is launched.

    A tensor map of it has the address in its first word and then the sizes, the strides
    and the box.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches: list[dict[str, Any]] = []
        self.stream, self.device, self.status = 7, -1, 0
        self.sizes: list[int] = []
        self.attached = True
        self.strides: list[dict[str, int]] = []
        self.parameters: list[list[int]] = []
        """The sizes of the parameters of each compiled kernel, by its function."""
        self.compiling = threading.Lock()
        self._callbacks = [
            ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(self.launch),
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_void_p,
                ctypes.c_int,
                ctypes.c_uint,
                *[ctypes.c_void_p] * 5,
                *[ctypes.c_int] * 4,
            )(self.encode),
            ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2)(self.replace),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)(self.retain),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self.attach),
        ]
        addresses = [ctypes.cast(c, ctypes.c_void_p).value for c in self._callbacks]
        monkeypatch.setattr(direct, "_driver", lambda: addresses)
        monkeypatch.setattr(direct, "_driver_version", lambda: 13000)
        direct.compiled.cache_clear()
        monkeypatch.setattr(direct, "compile_kernel", self.compiled)
        monkeypatch.setattr(direct, "_allocator", lambda: self.empty)
        for name, value in (
            ("_cuda_getDevice", self.current_device),
            ("_cuda_getCurrentRawStream", self.current_stream),
        ):
            monkeypatch.setattr(torch._C, name, value, raising=False)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.device)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
        self.observers: list[object] = []
        monkeypatch.setattr(direct, "observers", lambda: self.observers)

    def current_device(self) -> int:
        return self.device

    def current_stream(self, device: int) -> int:
        assert device == self.device
        return self.stream

    def empty(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        made = torch.empty_strided(shape, strides, dtype=dtype)
        self.sizes.append(made.untyped_storage().nbytes())
        return made

    def compiled(
        self,
        emitted: ModulePlan,
        kernel: KernelPlan,
        _arch: int,
        *,
        strides: dict[str, int],
        unaligned: Sequence[int],
    ) -> Any:
        del emitted
        self.strides.append({**strides, **{f"unaligned{i}": 1 for i in unaligned}})
        sizes: list[int] = []
        meta = Meta()
        meta.tensordesc_meta = []
        for p in kernel.params:
            if p.kind == "tensor":
                sizes.append(8)
            elif p.kind == "descriptor":
                sizes += [128, *[4] * len(p.box), *[8] * len(p.box)]
                meta.tensordesc_meta.append(
                    {"swizzle": 3, "elem_size": 2, "block_size": list(p.box)}
                )
            elif p.kind == "size":
                sizes.append(4)
        # Kernels are compiled in several threads.
        with self.compiling:
            self.parameters.append([*sizes, 8, 8])
            number = len(self.parameters)

        class Compiled:
            run = None
            function = number
            metadata = meta
            asm = {"ptx": ptx_of([*sizes, 8, 8])}  # noqa: RUF012

        return Compiled()

    # -- The driver's functions --------------------------------------------------------

    def launch(self, at: int, function: int, places: int, extra: int | None) -> int:
        if not self.attached:
            return INVALID_CONTEXT
        assert extra is None
        config = Config.from_address(at)
        sizes = self.parameters[function - 1]
        pointers = (ctypes.c_void_p * len(sizes)).from_address(places)
        found = [
            int.from_bytes(ctypes.string_at(p, min(size, 8)), "little")
            for p, size in zip(pointers, sizes, strict=True)
        ]
        maps = [
            tuple((WORD * 16).from_address(p))
            for p, size in zip(pointers, sizes, strict=True)
            if size == 128
        ]
        assert found[-2:] == [0, 0]
        self.launches.append(
            {
                "grid": tuple(config.grid),
                "threads": config.block[0],
                "shared": config.shared,
                "stream": config.stream,
                "early": config.count and config.attributes[0].id,
                "function": function,
                "given": found[:-2],
                "maps": maps,
            }
        )
        return self.status

    def encode(self, at: int, dtype: int, rank: int, *rest: Any) -> int:
        address, sizes, steps, box, ones, *_ = rest
        words = (WORD * 16).from_address(at)
        found = [address or 0, dtype, *(WORD * rank).from_address(sizes)]
        found += (WORD * (rank - 1)).from_address(steps)
        found += (ctypes.c_uint * rank).from_address(box)
        found += (ctypes.c_uint * rank).from_address(ones)
        words[:] = [*found, *[0] * (16 - len(found))]
        return 0

    def replace(self, at: int, address: int) -> int:
        WORD.from_address(at).value = address
        return 0

    def retain(self, at: int, device: int) -> int:
        assert device == self.device
        WORD.from_address(at).value = 5
        return 0

    def attach(self, context: int) -> int:
        self.attached = context == 5
        return 0


def ptx_of(sizes: Sequence[int]) -> str:
    """The head of a kernel with parameters of some sizes."""
    names = {4: ".param .u32 p", 8: ".param .u64 .ptr .global .align 1 p"}
    lines = [names.get(s, f".param .align 64 .b8 p[{s}]") for s in sizes]
    return ".visible .entry kernel(\n\t" + ",\n\t".join(lines) + "\n)\n.reqntid 128\n{"
