"""Compiles kernels without a GPU and reports what they need.

What the reports show decides whether a configuration is worth timing: spills, loads
that the loop waits for, shared memory, and how many blocks share a multiprocessor.
"""

# Triton has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
import re
import subprocess
import tempfile
import time
from collections.abc import Collection, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from mirage_dsl.backends.base import Report
from mirage_dsl.backends.triton.lowering.emit import ModulePlan, plan
from mirage_dsl.backends.triton.lowering.kernel import KernelPlan, Param
from mirage_dsl.backends.triton.running.interpret import load_module
from mirage_dsl.core.errors import CompileError, RefusedError
from mirage_dsl.core.hardware import (
    BYTES_PER_COPY,
    DEFAULT,
    LATER_ASSEMBLER,
    WARP,
    Architecture,
    architecture_named,
    architecture_numbered,
    number_of,
)
from mirage_dsl.ir.analysis.launches import launched_in_turn
from mirage_dsl.ir.graph import KernelGraph

MODULES = 4
"""How many executed modules are kept, whose kernels are compiled one by one."""

_ASSEMBLER = RLock()
"""Held while Triton uses another assembler than its own choice."""

ELEMENT = {
    "f16": "fp16",
    "bf16": "bf16",
    "f32": "fp32",
    "f8e4m3": "fp8e4nv",
    "f8e5m2": "fp8e5",
    "bool": "i1",
    **{name: name for name in ("i8", "u8", "i16", "i32", "i64")},
}
"""Triton's names of formats, in signatures."""
TOLERATED_SPILLS = 64
"""Bytes of stack that cost nothing measurable: a few values parked outside loops."""
ALIGNED = [["tt.divisibility", 16]]
RIGHT_DESCRIPTORS = (12, 9)
"""From this version on ptxas adds to descriptors of `wgmma` as it should."""
_POINTERS = re.compile(r"tensor<((?:\d+x)+)!tt\.ptr<[a-z]+(\d+)")
_DESCRIPTOR = re.compile(r"(?:or\.b64|add\.s64)\s+(%rd\d+), (%rd\d+), (-?\d+);")
_WGMMA = re.compile(r"wgmma\.mma_async[^{]*\{[^}]*\},\s*(\{[^}]*\}|%rd\d+),\s*(%rd\d+)")


TARGET = DEFAULT.architecture.target
"""What is compiled for where nothing is said."""


@dataclass(frozen=True)
class KernelReport(Report):
    """What a compiled kernel needs, and what became of its loads and products.

    Attributes:
        pipelined_loads: Asynchronous copies in loops.
        sync_loads: Loads in loops that the loop waits for, without those that are too
            small to be copied ahead.
        products: Matrix instructions of the kernel: `wgmma`, `mma`, `fma`, or `none`.
        ptx_bytes: Size of the PTX text.
        cubin_bytes: Size of the machine code.
        seconds: Time of the compilation.
        warps: Of a block.
        target: What it was compiled for.
    """

    registers: int
    shared_bytes: int
    spills: int
    pipelined_loads: int
    sync_loads: int
    products: str
    ptx_bytes: int
    cubin_bytes: int
    seconds: float
    warps: int = 4
    target: str = TARGET

    @property
    def shared_limit(self) -> int:
        """Bytes of shared memory that a block can have."""
        return architecture_named(self.target).shared_per_block

    @property
    def resident(self) -> int:
        """Blocks that share a multiprocessor."""
        own = architecture_named(self.target)
        return own.resident(self.registers, self.shared_bytes, self.warps)

    def rejection(self, least: int = 0) -> str | None:
        """Why the kernel is not worth timing, or None.

        Spilled kernels take 3 to 100 times as long as others, and so do loops that wait
        for each load.  A kernel whose blocks were to run all at once, and of which half
        or fewer of them fit, takes 1.3 to 1.5 times as long as planned.
        """
        if self.spills > TOLERATED_SPILLS:
            return f"{self.name} spills {self.spills} bytes of registers per thread"
        if self.shared_bytes > self.shared_limit:
            return (
                f"{self.name} needs {self.shared_bytes} bytes of shared memory; "
                f"a block has {self.shared_limit}"
            )
        if self.sync_loads:
            return f"{self.name} waits for {self.sync_loads} loads in its loop"
        if 2 * self.resident <= least:
            return (
                f"{self.name}: {self.resident} of its blocks at a time on a "
                f"multiprocessor, {least} are needed for all at once"
            )
        return None


def compile_only(
    graph: KernelGraph,
    target: str = TARGET,
    *,
    kernels: Sequence[int] | None = None,
) -> list[KernelReport]:
    """Compile all kernels of a μGraph for `target`; no GPU is needed.

    Args:
        graph: The μGraph.
        target: Such as `sm_90`.
        kernels: The numbers of those to compile, in this order; all unless given.

    Returns:
        What is known of each kernel, in launch order.

    Raises:
        UnsupportedError: An unknown target, or something that Triton cannot express.
        CompileError: Triton refuses a kernel.
    """
    emitted = plan(for_architecture(graph, architecture_named(target).number))
    order = range(len(emitted.kernels)) if kernels is None else kernels
    known: dict[Hashable, KernelReport] = {}
    found: dict[int, KernelReport] = {}
    for at in order:
        kernel = emitted.kernels[at]
        if kernel.compiled_as not in known:
            known[kernel.compiled_as] = _report(emitted, kernel, target)
        found[at] = replace(known[kernel.compiled_as], name=kernel.name)
    return [found[at] for at in sorted(found)]


def for_architecture(graph: KernelGraph, arch: int) -> KernelGraph:
    """Without early launches where the architecture, 90 for 9.0, has none."""
    early = architecture_numbered(arch).early_launches
    return graph if early else launched_in_turn(graph)


def compile_kernel(
    emitted: ModulePlan,
    kernel: KernelPlan,
    arch: int,
    *,
    strides: Mapping[str, int] | None = None,
    unaligned: Collection[int] = (),
) -> Any:
    """Triton's compiled kernel for one architecture.

    Args:
        emitted: The module.
        kernel: One of its kernels.
        arch: 90 for 9.0.
        strides: Values of the parameters that are strides; those of packed tensors if
            there are none.
        unaligned: Positions of parameters that point to places that are not aligned.

    Raises:
        CompileError: Triton refuses the kernel.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    own = architecture_numbered(arch)
    source = _source(emitted, kernel, own, strides or {}, unaligned)
    options = {
        "num_warps": kernel.schedule.num_warps,
        "num_stages": kernel.schedule.num_stages,
        "enable_fp_fusion": True,
    }
    if kernel.registers is not None:
        options["maxnreg"] = kernel.registers
    if kernel.schedule.pdl and own.early_launches:
        options["launch_pdl"] = True

    def compiled() -> Any:
        target = GPUTarget("cuda", arch, WARP)
        try:
            return triton.compile(source, target=target, options=options)
        except Exception as error:
            raise RefusedError(f"Triton refuses {kernel.name}: {error}") from error

    found = compiled()
    if not _has_right_ptxas(arch) and _is_miscompiled(found.asm["ptx"]):
        with later_assembler(kernel.name):
            found = compiled()
    return found


def _source(
    emitted: ModulePlan,
    kernel: KernelPlan,
    own: Architecture,
    strides: Mapping[str, int],
    unaligned: Collection[int],
) -> Any:
    """What Triton compiles: the function, and what is known of its parameters."""
    from triton.compiler import ASTSource

    module = _module(emitted.source, own.early_launches)
    constants = {p.name: p.value or 0 for p in kernel.params if p.kind == "stride"}
    pointers = [i for i, p in enumerate(kernel.params) if p.kind == "tensor"]
    return ASTSource(
        getattr(module, kernel.name),
        signature={p.name: _signature(p) for p in kernel.params},
        constexprs={**constants, **strides},
        attrs={(i,): ALIGNED for i in pointers if i not in unaligned},
    )


@lru_cache(maxsize=MODULES)
def _module(source: str, early: bool) -> ModuleType:
    """An emitted module, which is executed once for all of its kernels."""
    import triton

    module = load_module(source)
    if "EARLY" in vars(module):
        # As for that architecture, whatever GPU is here.
        vars(module)["EARLY"] = triton.language.constexpr(early)
    return module


def ptxas_version(arch: int) -> tuple[int, ...]:
    """That of the assembler which Triton uses for an architecture, 90 for 9.0."""
    from triton.backends.nvidia.compiler import get_ptxas

    return _version(get_ptxas(arch))


def _has_right_ptxas(arch: int) -> bool:
    version = ptxas_version(arch)
    return version >= RIGHT_DESCRIPTORS


def _version(tool: Any) -> tuple[int, ...]:
    return tuple(map(int, tool.version.split(".")))


@contextmanager
def later_assembler(name: str) -> Generator[None]:
    """Let Triton use the later ptxas, which it carries for newer GPUs, for all.

    Raises:
        CompileError: That one is too old as well; it names the kernel, `name`.
    """
    from triton import knobs
    from triton.backends.nvidia.compiler import get_ptxas_version

    later = getattr(knobs.nvidia, LATER_ASSEMBLER)
    if _version(later) < RIGHT_DESCRIPTORS:
        raise RefusedError(
            f"{name} would read wrong shared memory: two of its dots read one place "
            "by different layouts, which ptxas before 12.9 gets wrong; use other "
            "tiles, or name a later ptxas in TRITON_PTXAS_PATH"
        )
    with _ASSEMBLER, knobs.nvidia.scope():
        knobs.nvidia.ptxas = later.path
        # Keys of Triton's cache name the version, which Triton looks up once.
        get_ptxas_version.cache_clear()
        try:
            yield
        finally:
            get_ptxas_version.cache_clear()


def miscompiled(emitted: ModulePlan) -> list[str]:
    """Kernels that Triton's own launch on the current GPU would get wrong.

    Raises:
        CompileError: Triton refuses a kernel.
    """
    import torch

    arch = number_of(torch.cuda.get_device_capability())
    if emitted.source.count("tl.dot(") < 2 or _has_right_ptxas(arch):
        return []
    compiled = {k.name: compile_kernel(emitted, k, arch) for k in emitted.kernels}
    return [n for n, kernel in compiled.items() if _is_miscompiled(kernel.asm["ptx"])]


def _is_miscompiled(ptx: str) -> bool:
    """Whether ptxas 12.8, which Triton 3.6 and 3.7 use, gets this wrong.

    A descriptor of `wgmma` is an address plus a constant of 64 bits.  Where two dots
    read one place in shared memory by different layouts, the constants differ in their
    upper halves; ptxas then adds the address to the upper half too, and the kernel
    reads anywhere.  Of 15 kernels with two dots that were run on an H200, those 6 were
    wrong or ended in an illegal memory access that this finds.
    """
    parts = {m[1]: (m[2], int(m[3]) >> 32) for m in _DESCRIPTOR.finditer(ptx)}
    upper: dict[str, int] = {}
    return any(
        upper.setdefault(base, constant) != constant
        for match in _WGMMA.finditer(ptx)
        for base, constant in (parts[m] for m in match.groups() if m in parts)
    )


def _signature(param: Param) -> str:
    if param.kind == "stride":
        return "constexpr"
    if param.dtype is None:
        return "i32"
    element = ELEMENT[param.dtype.name]
    if param.kind == "descriptor":
        return f"tensordesc<{element}{list(param.box)}>"
    return f"*{element}"


def _report(emitted: ModulePlan, kernel: KernelPlan, target: str) -> KernelReport:
    start = time.perf_counter()
    compiled = compile_kernel(emitted, kernel, architecture_named(target).number)
    seconds = time.perf_counter() - start
    ttgir, ptx = str(compiled.asm["ttgir"]), str(compiled.asm["ptx"])
    cubin = bytes(compiled.asm["cubin"])
    registers, stack = _resources(cubin)
    threads = WARP * int(compiled.metadata.num_warps)
    asynchronous, synchronous = _loads_in_loops(ttgir, threads * BYTES_PER_COPY)
    return KernelReport(
        name=kernel.name,
        registers=registers,
        shared_bytes=int(compiled.metadata.shared),
        spills=stack,
        pipelined_loads=asynchronous,
        sync_loads=synchronous,
        products=_products(ptx, ttgir),
        ptx_bytes=len(ptx),
        cubin_bytes=len(cubin),
        seconds=seconds,
        warps=int(compiled.metadata.num_warps),
        target=target,
    )


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes per thread, as the tool beside Triton reads them."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = knobs.nvidia.cuobjdump.path
        done = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=False
        )
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    if found is None:
        name = Path(tool).name
        raise CompileError(f"{name} reports no resources: {done.stderr.strip()}")
    return int(found[1]), int(found[2])


def _loads_in_loops(ttgir: str, least: int) -> tuple[int, int]:
    """Asynchronous copies and plain loads inside `scf.for`, by nesting of braces.

    Args:
        ttgir: The kernel.
        least: Bytes from which on a tile could be copied ahead; smaller ones, as a mask
            of 64 truth values, do not count.
    """
    asynchronous = synchronous = 0
    depth, inside = 0, list[int]()
    for line in ttgir.splitlines():
        code = line.split(" loc(")[0]
        if "scf.for" in code:
            inside.append(depth)
        if inside:
            asynchronous += "async_copy_global_to_local" in code
            asynchronous += "async_tma_copy_global_to_local" in code
            if re.search(r"\btt\.load\b", code):
                synchronous += _bytes_of_tile(code) >= least
        depth += code.count("{") - code.count("}")
        if inside and depth <= inside[-1]:
            inside.pop()
    return asynchronous, synchronous


def _bytes_of_tile(load: str) -> float:
    """How many bytes a `tt.load` asks for; infinite where its type says nothing."""
    found = _POINTERS.search(load)
    if found is None:
        return math.inf
    shape = map(int, found[1].split("x")[:-1])
    return math.prod(shape) * max(int(found[2]), 8) // 8


def _products(ptx: str, ttgir: str) -> str:
    for name, mark in (("wgmma", "wgmma.mma_async"), ("mma", "mma.sync")):
        if mark in ptx:
            return name
    return "fma" if "tt.dot" in ttgir else "none"
