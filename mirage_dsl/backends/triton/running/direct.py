"""The cheapest call: checks, allocations and launches in one generated function.

`kernel[grid](...)` inspects every argument to find the compiled kernel, and Triton's
raw launcher inspects every pointer.  Here one function is made for tensors of certain
shapes, strides, dtypes and alignment on one device: it checks just these, allocates the
outputs, runs library kernels, and starts generated ones, a row of them at a time.
What lies between generated kernels is one allocation and never becomes a tensor.

What a call will do is found out by doing it once on tensors without data.  The emitted
`run` is executed on tensors of the right shapes and strides that have no memory
(PyTorch's `meta` device), and its kernels only note what they are given.  That tells of
every value where it lies, views included, and of every kernel its grid, its strides and
its sizes.  Library calls are left out: their results are new tensors in row-major
order.  For the first one without data PyTorch would import its symbolic shapes and
more, which takes a second, and four where its files are not compiled.

Then the module is bound: its kernels are compiled, and every kernel-level value lies in
the memory of a root: an input, a tensor that the call makes, or, for what only
generated kernels see, the call's one scratch allocation.

A function never writes to memory that it has not allocated itself in the same call, on
the current stream.  So calls may overlap on several streams and in several threads.

**Launches** have no Python in between: `c_launcher.c`, and what it is told of a kernel.

The C source is built by what Triton builds its own launchers with, and kept in Triton's
cache.  Where that fails, or where a compiled kernel does not take the parameters that
are known here, there is no short way, and Triton launches.
"""

# PyTorch's and Triton's inner functions and the compiled module have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import ast
import ctypes
import itertools
import logging
import math
import os
import re
from collections import Counter
from collections.abc import (
    Callable,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_dsl.backends.base import Direct, overlaps, span
from mirage_dsl.backends.library import HELPERS
from mirage_dsl.backends.triton.lowering.emit import Launcher, ModulePlan
from mirage_dsl.backends.triton.lowering.kernel import KernelPlan, Param
from mirage_dsl.backends.triton.running.screen import compile_kernel
from mirage_dsl.core.errors import CompileError, MirageError, RefusedError
from mirage_dsl.core.hardware import number_of
from mirage_dsl.core.modes import in_mode, plain_torch
from mirage_dsl.core.types import DType
from mirage_dsl.ir.analysis.launches import calls
from mirage_dsl.ir.analysis.layouts import built, copied_parts
from mirage_dsl.ir.graph import Apply
from mirage_dsl.tile.program import ALIGNMENT

if TYPE_CHECKING:
    import torch


# -- Launches --------------------------------------------------------------------------


log = logging.getLogger("mirage_dsl.backends.triton.direct")

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
POINTER, _WORD, MAP = 8, 4, 128
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
        source = Path(__file__).with_name("c_launcher.c").read_text(encoding="utf-8")
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


def _described(
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
    found += [Parameter(_WORD, value=n) for n in shape]
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


def _startable(compiled: Any) -> bool:
    """Whether a kernel needs nothing at its launch that only Triton provides."""
    meta = compiled.metadata
    odd = (
        getattr(meta, "global_scratch_size", 0),
        getattr(meta, "profile_scratch_size", 0),
        getattr(meta, "launch_cooperative_grid", False),
        getattr(meta, "num_ctas", 1) != 1,
    )
    return not any(odd)


# -- What a call will do ---------------------------------------------------------------


@dataclass
class NotedKernel:
    """Stands for a kernel: notes the grid and the arguments of its one launch."""

    grid: tuple[int, ...] = ()
    arguments: tuple[Any, ...] = ()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.grid = grid
        return self._note

    def _note(self, *arguments: Any, **_options: Any) -> None:
        self.arguments = arguments


@dataclass
class DryRun:
    """What became of one call.

    Attributes:
        values: The tensor of each value of the graph; it has no data.
        kernels: The launches, in order.
    """

    values: dict[str, torch.Tensor]
    kernels: list[NotedKernel]
    _roots: dict[int, str] = field(default_factory=dict[int, str])

    def __post_init__(self) -> None:
        for name, tensor in self.values.items():
            self._roots.setdefault(_memory(tensor), name)

    def root(self, tensor: torch.Tensor) -> str:
        """The value in whose memory a tensor lies: the first one that lies there."""
        return self._roots[_memory(tensor)]

    def offset(self, tensor: torch.Tensor) -> int:
        """Bytes from the start of that value to the tensor's."""
        first = self.values[self.root(tensor)]
        ahead = int(tensor.storage_offset()) * tensor.element_size()
        return ahead - int(first.storage_offset()) * first.element_size()

    def share(self, value: str, other: str) -> bool:
        """Whether two values lie in the memory of one."""
        return self.root(self.values[value]) == self.root(self.values[other])

    def is_own(self, value: str) -> bool:
        """Whether a value has memory of its own, and is no view of another."""
        return self.root(self.values[value]) == value


def out_name(at: int) -> str:
    """The name, among those of values, of the caller's tensor for an output."""
    return f"out {at}"


class _Script(Launcher):
    """Writes `run` so that it returns its variables, without library calls."""

    def lines(self, plan: ModulePlan) -> list[str]:
        return [*self.write(plan.kernels)[:-1], "    return locals()"]

    def _positions(self, size: str) -> str:
        # For `arange` without data PyTorch loads a package that takes seconds.
        return f"torch.empty({size}, dtype=torch.int64, device=device)"

    def _library(self, node: Apply) -> None:
        made = self._inner | self._built | self._flat_values.unmade
        if node.result in made or self._shows(node):
            super()._library(node)
            return
        text = self._allocation(self._types[node.result])
        self._variables[node.result] = self._writer.define(node.result, text)

    @property
    def variables(self) -> dict[str, str]:
        """The variable of each value, those of the caller first."""
        outs = {out_name(at): name for at, name in enumerate(self._outs)}
        return outs | self._variables


def run_dry(plan: ModulePlan, tensors: Sequence[torch.Tensor]) -> DryRun:
    """Do what a call with tensors like these would, without data.

    Args:
        plan: The module.
        tensors: Inputs; behind them those for the outputs, if the module takes such.
    """
    import torch
    import triton

    script = _Script(plan.graph, plan.around, [k.name for k in plan.kernels])
    lines = script.lines(plan)
    kernels = {k.name: NotedKernel() for k in plan.kernels}
    early = triton.language.constexpr(False)
    scope: dict[str, Any] = {"torch": torch, "triton": triton, "EARLY": early}
    scope.update(kernels)
    if any(p.kind == "descriptor" for k in plan.kernels for p in k.params):
        from triton.tools.tensor_descriptor import TensorDescriptor

        scope["TensorDescriptor"] = TensorDescriptor
    exec("\n".join(lines), scope)
    inputs = [
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
        for t in tensors
    ]
    found = scope["run"](*inputs)
    values = {name: found[v] for name, v in script.variables.items()}
    return DryRun(values, list(kernels.values()))


def _memory(tensor: torch.Tensor) -> int:
    """What tensors that share memory have in common."""
    return tensor.untyped_storage()._cdata


# -- Binding ---------------------------------------------------------------------------


APART = 256
"""Bytes to which values in the scratch allocation are aligned."""


@dataclass(frozen=True)
class Binding:
    """What a call does.

    Attributes:
        dry_run: Where each value lies.
        emitted: Values that library calls compute, or views that they or the caller
            see.
        tensors: Values that become tensors.
        space: Bytes of the scratch allocation.
        roots: Whose address a parameter's base is; the scratch allocation is nobody's.
        launches: The generated kernels, in order.
    """

    dry_run: DryRun
    emitted: frozenset[str]
    tensors: frozenset[str]
    space: int
    roots: Sequence[str]
    launches: Sequence[PreparedLaunch]


def bind(plan: ModulePlan, tensors: Sequence[torch.Tensor]) -> Binding | None:
    """Compile a module's kernels for tensors like these, on the current device.

    Behind the inputs are the tensors for the outputs, if the module takes such.

    It is None where a kernel needs something at its launch that only Triton gives.

    Raises:
        CompileError: Triton refuses a kernel, or the device does not take it.
    """
    dry_run = run_dry(plan, tensors)
    if any(n.result not in (plan.around.given or ()) for n in _copied(plan, dry_run)):
        log.info("launching %s through Triton: a part has parts", plan.graph.name)
        return None
    emitted, visible = _visible(plan, dry_run)
    places = _Places(plan, dry_run, visible)
    given = [
        _Given.of(kernel, noted, places)
        for kernel, noted in zip(plan.kernels, dry_run.kernels, strict=True)
    ]
    launches: list[PreparedLaunch] = []
    for kernel, own, compiled in zip(
        plan.kernels, given, _compiled(plan, given), strict=True
    ):
        launch = _launch(kernel, own, compiled)
        if launch is None:
            log.info("launching %s through Triton, as it must be", kernel.name)
            return None
        launches.append(launch)
    return Binding(dry_run, emitted, visible, places.space, places.roots, launches)


def _visible(
    plan: ModulePlan, dry_run: DryRun
) -> tuple[frozenset[str], frozenset[str]]:
    """Results of library calls and views that must happen; values that are tensors."""
    fused = calls(plan.graph, plan.around.types)
    given = plan.around.given or {}
    emitted: set[str] = set()
    visible = {
        r.value for at, r in enumerate(plan.graph.returns) if given.get(r.value) != at
    }
    copied = {node.result for node in _copied(plan, dry_run)}
    whole = built(plan.around.placed)
    for node in reversed(plan.graph.nodes):
        # What lies inside of a library call was not seen.
        if not isinstance(node, Apply) or node.result not in dry_run.values:
            continue
        if node.result in plan.around.flat.unmade:
            continue
        if node.result in visible | copied or dry_run.is_own(node.result):
            emitted.add(node.result)
            visible.add(node.result)
            match = fused.get(node.result)
            read = match.values if match else node.values
            # A part of a concatenation may be there already.
            joins = node.result in whole
            visible |= {
                v for v in read if not (joins and dry_run.share(v, node.result))
            }
    return frozenset(emitted), frozenset(visible)


def _copied(plan: ModulePlan, dry_run: DryRun) -> Iterator[Apply]:
    """Concatenations in other tensors into which parts are copied."""
    placed = plan.around.placed
    whole = built(placed)
    for node in plan.graph.applies:
        within = node.result in whole and not dry_run.is_own(node.result)
        if within and any(True for _ in copied_parts(node, placed)):
            yield node


class _Places:
    """Where values lie."""

    def __init__(
        self, plan: ModulePlan, dry_run: DryRun, visible: frozenset[str]
    ) -> None:
        self._dry_run = dry_run
        self.space = 0
        self.roots: list[str] = [""]
        self._starts: dict[str, int] = {}
        for block in plan.graph.blocks:
            for result in map(plan.around.whole, block.results):
                if result not in visible and dry_run.is_own(result):
                    self._starts[result] = self.space
                    size = dry_run.values[result].untyped_storage().nbytes()
                    self.space += -(-size // APART) * APART

    def of(self, value: str) -> tuple[int, int]:
        """The number of a value's root, and its distance from there in bytes."""
        tensor = self._dry_run.values[value]
        root = self._dry_run.root(tensor)
        offset = self._dry_run.offset(tensor)
        if root in self._starts:
            return 0, self._starts[root] + offset
        if root not in self.roots:
            self.roots.append(root)
        return self.roots.index(root), offset


@dataclass(frozen=True)
class _Given:
    """What a kernel is given.

    Attributes:
        arguments: Its parameters, each with the argument.
        spots: Of each tensor the number of its root, and its distance from there.
        grid: The numbers of blocks.
    """

    arguments: Sequence[tuple[Param, Any]]
    spots: Mapping[str, tuple[int, int]]
    grid: tuple[int, ...]

    @classmethod
    def of(cls, kernel: KernelPlan, noted: NotedKernel, places: _Places) -> _Given:
        """What the dry run has noted, and where that lies."""
        arguments = list(zip(kernel.params, noted.arguments, strict=True))
        tensors = [p for p, _ in arguments if p.dtype is not None]
        spots = {p.name: places.of(p.source) for p in tensors}
        return cls(arguments, spots, tuple(map(int, noted.grid)))

    @property
    def strides(self) -> dict[str, int]:
        """Of its parameters that are strides."""
        return {p.name: a for p, a in self.arguments if p.kind == "stride"}

    @property
    def unaligned(self) -> list[int]:
        """Positions of parameters that point to places that are not aligned."""
        return [
            at
            for at, (p, _) in enumerate(self.arguments)
            if p.kind == "tensor" and self.spots[p.name][1] % ALIGNMENT
        ]


def _compiled(plan: ModulePlan, given: Sequence[_Given]) -> list[Any]:
    """The kernels of a module, compiled at the same time, what is alike once.

    Triton's passes and its assembler let other threads run meanwhile.
    """
    import torch

    arch = number_of(torch.cuda.get_device_capability())

    def one(what: tuple[KernelPlan, _Given]) -> Any:
        kernel, own = what
        strides, unaligned = own.strides, own.unaligned
        return compile_kernel(plan, kernel, arch, strides=strides, unaligned=unaligned)

    keys: list[Hashable] = [
        (kernel.compiled_as, tuple(own.strides.items()), tuple(own.unaligned))
        for kernel, own in zip(plan.kernels, given, strict=True)
    ]
    asked: dict[Hashable, tuple[KernelPlan, _Given]] = {}
    for key, kernel, own in zip(keys, plan.kernels, given, strict=True):
        asked.setdefault(key, (kernel, own))
    # With the first, Triton hashes its own files: not in every thread at once.
    wanted = list(asked.items())
    found = {key: one(what) for key, what in wanted[:1]}
    if others := wanted[1:]:
        with ThreadPoolExecutor(min(len(others), os.cpu_count() or 1)) as threads:
            made = threads.map(one, (what for _, what in others))
            found.update(zip((key for key, _ in others), made, strict=True))
    return [found[key] for key in keys]


def _launch(kernel: KernelPlan, own: _Given, compiled: Any) -> PreparedLaunch | None:
    """A compiled kernel with what it is given, or None if the two do not fit."""
    if not _startable(compiled):
        return None
    try:
        _ = compiled.run  # loads the kernel onto the current device
    except Exception as error:
        raise RefusedError(f"{kernel.name} does not load: {error}") from error
    parameters = _parameters(own.arguments, own.spots, compiled)
    if parameters is None or not takes(compiled, parameters):
        return None
    early = kernel.schedule.pdl
    return PreparedLaunch(kernel.name, compiled, own.grid, parameters, early)


def _parameters(
    given: Sequence[tuple[Any, Any]],
    spots: Mapping[str, tuple[int, int]],
    compiled: Any,
) -> list[Parameter] | None:
    """What the driver is to pass; None where a descriptor cannot be encoded."""
    metas = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
    found: list[Parameter] = []
    for param, argument in given:
        match param.kind:
            case "tensor":
                base, offset = spots[param.name]
                found.append(Parameter(POINTER, base, offset))
            case "descriptor":
                meta = next(metas, None)
                base, offset = spots[param.name]
                shape, strides = argument.shape, argument.strides
                more = meta and _described(
                    meta, param.dtype, shape, strides, base, offset
                )
                if not more or offset % ALIGNMENT:
                    return None
                found += more
            case "size":
                found.append(Parameter(_WORD, value=argument))
            case _:
                pass
    return [*found, *(Parameter(POINTER) for _ in range(SCRATCH))]


# -- Views in one step -----------------------------------------------------------------
# A view takes the host a microsecond, and one that turns, cuts and joins axes takes
# several.  Where the dry run has found how a tensor lies, the shape, the strides and
# the offset of what is seen of it are known, and PyTorch's shortest way makes it.

_SHOWS = frozenset(
    {"contiguous", "expand", "flatten", "narrow", "permute", "reshape", "squeeze"}
    | {"transpose", "unflatten", "unsqueeze", "view"}
)
"""Methods of tensors that may show what they have in another way."""


@dataclass(frozen=True)
class Seen:
    """What is known of the variables of a generated function.

    Attributes:
        parameters: Those that have a value from the start.
        tensors: Stand for those that they hold, without data.
        known: The memories of those that lie just as these.  Others are results of
            calls, of which the dry run has guessed.
        sizes: Variables that hold extents.
    """

    parameters: Sequence[str]
    tensors: Mapping[str, torch.Tensor]
    known: AbstractSet[int]
    sizes: Container[str]


def one_step_views(lines: Sequence[str], seen: Seen) -> list[str]:
    """Statements with one call of `view` for each view, and none that nobody reads.

    Args:
        lines: The statements of a function.
        seen: Its variables.
    """
    (function,) = ast.parse("\n".join(["def call():", *lines])).body
    assert isinstance(function, ast.FunctionDef)
    names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
    views = _OneStep(seen, names)
    body = [made for old in function.body for made in views.statements(old)]
    read: set[str] = set()
    function.body = []
    for statement in reversed(body):
        if _target(statement) in read or not _is_view(statement):
            function.body.append(statement)
            read |= _read(statement)
    function.body.reverse()
    return ast.unparse(ast.fix_missing_locations(function)).split("\n")[1:]


class _OneStep(ast.NodeTransformer):
    """Puts one call of `view` where several views are written.

    Args:
        seen: The variables.
        names: All names in the function.
    """

    def __init__(self, seen: Seen, names: set[str]) -> None:
        self._tensors, self._known = dict(seen.tensors), set(seen.known)
        self._sizes = seen.sizes
        self._names = names
        # What expressions may read: tensors and extents.
        self._scope: dict[str, Any] = {}
        # The variable that others are views of, by memory.
        self._whole: dict[int, str] = {}
        # The variables of views, and what is to give them their values.
        self._views: dict[str, str] = {}
        self._ahead: list[ast.stmt] = []
        self.see(seen.parameters)

    def see(self, names: Iterable[str]) -> None:
        """Take note of variables that have a value from here on."""
        for name in names:
            tensor = self._tensors.get(name)
            if tensor is not None and _memory(tensor) in self._known:
                self._scope[name] = tensor
                self._whole.setdefault(_memory(tensor), name)

    def statements(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """What takes the place of a statement."""
        target = _target(statement)
        if isinstance(statement, ast.Assign):
            if target in self._sizes and _read(statement.value) <= self._scope.keys():
                self._scope[target] = self._value(statement.value)
            yield from self._made_before(statement.value, target)
        yield from self._visited(statement)
        self.see([target])

    def _visited(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """A statement behind the views that it reads and that were not there yet."""
        made = self.visit(statement)
        yield from self._ahead
        self._ahead.clear()
        yield made

    def _made_before(self, value: ast.expr, target: str) -> Iterator[ast.stmt]:
        """A variable for what is made and then turned, as in `call(...).permute(...)`.

        Others see this one, so that the turned one may have no reader.
        """
        guess = self._tensors.get(target)
        if guess is None or _memory(guess) in self._known:
            return
        match value:
            case ast.Call(ast.Attribute(call, "permute") as turn, turns):
                order = [ast.literal_eval(axis) for axis in turns]
            case _:
                return
        made = guess.permute([order.index(axis) for axis in range(len(order))])
        if not made.is_contiguous():
            return
        name = self._new(f"{target}_made")
        self._tensors[name] = made
        self._known.add(_memory(made))
        yield from self._visited(_assigned(name, _contiguous(call)))
        self.see([name])
        turn.value = ast.Name(name, ast.Load())

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return self._in_one(node) or self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return self._in_one(node) or self.generic_visit(node)

    def _in_one(self, node: ast.expr) -> ast.expr | None:
        """What is seen of a variable, by one call; None for other expressions."""
        name = _variable_seen(node)
        read = _read(node)
        if name not in self._scope or not read <= self._scope.keys():
            return None
        if any(n not in self._sizes for n in read - {name}):
            return None
        whole = self._whole[_memory(self._scope[name])]
        has, shown = self._scope[whole], self._value(node)
        if _memory(shown) != _memory(has) or shown.dtype != has.dtype:
            return None
        start = shown.storage_offset() - has.storage_offset()
        layout = tuple(shown.shape), tuple(shown.stride()), start
        if layout == (tuple(has.shape), tuple(has.stride()), 0):
            return ast.Name(whole, ast.Load())
        text = f"view({', '.join(map(str, (whole, *layout)))})"
        if text not in self._views:
            name = self._views[text] = self._new(f"{whole}_seen")
            self._ahead.append(_assigned(name, ast.parse(text, mode="eval").body))
        return ast.Name(self._views[text], ast.Load())

    def _new(self, name: str) -> str:
        """A name that the function does not have yet."""
        numbered = (f"{name}{number or ''}" for number in itertools.count())
        found = next(n for n in numbered if n not in self._names)
        self._names.add(found)
        return found

    def _value(self, node: ast.expr) -> Any:
        return eval(ast.unparse(node), {}, self._scope)


def numbers_apart(
    lines: Sequence[str], fresh: Callable[[str], str]
) -> tuple[list[str], dict[str, str]]:
    """Statements without numbers that become tensors, and these by new names.

    Operands of functions are meant, such as the 0 of `torch.where(mask, 0, x)`: each
    call would make them anew, by a kernel of their own, and nobody else sees them.

    Args:
        lines: The statements of a function.
        fresh: Gives a new name.
    """
    (function,) = ast.parse("\n".join(["def call():", *lines])).body
    found: dict[str, str] = {}
    for call in (n for n in ast.walk(function) if isinstance(n, ast.Call)):
        for at, operand in enumerate(call.args):
            if _is_number(operand):
                text = ast.unparse(operand)
                if text not in found:
                    found[text] = fresh("number")
                call.args[at] = ast.Name(found[text], ast.Load())
    made = ast.unparse(ast.fix_missing_locations(function)).split("\n")[1:]
    return made, {name: text for text, name in found.items()}


def _is_number(node: ast.expr) -> bool:
    """Whether an expression is `torch.full((), ...)` of no variable but the device."""
    match node:
        case ast.Call(ast.Attribute(ast.Name("torch"), "full"), [ast.Tuple([]), _]):
            return _read(node) <= {"torch", "device", "float", "int"}
        case _:
            return False


def _variable_seen(node: ast.expr) -> str:
    """The variable that methods show and indices cut; none of other expressions."""
    while True:
        match node:
            case ast.Call(ast.Attribute(inner, method)) if method in _SHOWS:
                node = inner
            case ast.Subscript(inner):
                node = inner
            case ast.Name(name):
                return name
            case _:
                return ""


def _contiguous(call: ast.expr) -> ast.expr:
    match call:
        case ast.Call(ast.Attribute(_, "contiguous")):
            return call
        case _:
            return ast.Call(ast.Attribute(call, "contiguous", ast.Load()), [], [])


def _assigned(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _target(statement: ast.stmt) -> str:
    """The one variable that a statement gives a value; none of another statement."""
    match statement:
        case ast.Assign([ast.Name(name)]):
            return name
        case _:
            return ""


def _is_view(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign([ast.Name()], ast.Name() | ast.Call(ast.Name("view"))):
            return True
        case _:
            return False


def _read(node: ast.AST) -> set[str]:
    found = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return {n.id for n in found if isinstance(n.ctx, ast.Load)}


# -- The generated function ------------------------------------------------------------

RESERVED = (
    "call",
    "current_device",
    "current_stream",
    "dispatch_modes",
    "empty",
    "first",
    "function_modes",
    "grad_enabled",
    "in_mode",
    "index",
    "levels",
    "observers",
    "same",
    "space",
    "view",
)
"""Names that a generated function uses besides those that no tensor gets."""


def direct_call(plan: ModulePlan, tensors: Sequence[torch.Tensor]) -> Direct | None:
    """What runs the module on tensors like these; None if only Triton can.

    Args:
        plan: The module.
        tensors: Inputs; behind them those for the outputs, if the module takes such.

    Raises:
        CompileError: Triton refuses a kernel, or the device does not take it.
    """
    import torch

    if not tensors or tensors[0].get_device() != torch.cuda.current_device():
        return None
    if compiled() is None or any(t.data_ptr() % ALIGNMENT for t in tensors):
        return None
    try:
        binding = bind(plan, tensors)
    except MirageError:
        raise
    except Exception as error:
        log.info("launching %s through Triton: %s", plan.graph.name, error)
        return None
    if binding is None:
        return None
    writer = _Writer(plan, binding, tensors)
    lines = writer.call()
    scope = writer.scope(tensors)
    exec("\n".join([*lines, writer.results]), scope)
    exec("\n".join([*lines, writer.first]).replace("def call", "def first"), scope)
    return Direct(len(tensors), scope["call"], first=scope["first"])


def _of_guards(name: str) -> Any:
    """What PyTorch's compiler has for its guards; None in versions without it."""
    import torch

    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, name, None)


def _allocator() -> Any:
    """PyTorch's own shortest way to a new tensor on the current device."""
    import torch

    found = _of_guards("_empty_strided_cuda")
    if found is not None:
        return found

    def empty(
        shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")

    return empty


def _reinterpret() -> Any:
    """PyTorch's own shortest way to a view: of what, its shape, strides, and offset.

    The offset is from where the tensor starts, in elements.
    """
    found = _of_guards("_reinterpret_tensor")
    if found is not None:
        return found

    def view(
        tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> torch.Tensor:
        return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)

    return view


_SEEN = ("types", "dtype", "shape", "stride")
"""What a generated function compares of each tensor, with a number behind."""


class _Writer(Launcher):
    """Writes `call` in the place of `run`."""

    def __init__(
        self, plan: ModulePlan, binding: Binding, tensors: Sequence[torch.Tensor]
    ) -> None:
        count = len(plan.graph.inputs) + len(plan.graph.returns)
        seen = [f"{what}{i}" for what in _SEEN for i in range(count)]
        super().__init__(plan.graph, plan.around, (*RESERVED, *seen))
        self._binding = binding
        self._device = tensors[0].get_device()
        self._tensors = tensors
        self._addresses: dict[str, str] = {}
        self._waiting: list[PreparedLaunch] = []
        self._launchers: dict[str, Any] = {}
        self._numbers: Mapping[str, str] = {}
        self.results = self.first = ""

    def call(self) -> list[str]:
        """The lines of `call` but for its end; names are those of `scope`.

        The ends are `results` and `first`: all of them, and the first.
        """
        writer = self._writer
        for item in self._graph.inputs:
            self._variables[item.name] = self._names.fresh(item.name)
        if self._given is not None:
            for at, item in enumerate(self._graph.returns):
                self._outs.append(self._names.fresh(f"{item.value}_out"))
                self._variables[out_name(at)] = self._outs[at]
        writer.line(f"def call({', '.join(self._variables.values())}):")
        writer.indent()
        self._check(dict(self._variables))
        checked = len(writer.lines)
        self._bind_sizes()
        self._count()
        if self._binding.space:
            writer.line(f"space = empty(({self._binding.space},), (1,), torch.uint8)")
            self._addresses[""] = "space.data_ptr()"
        launches = iter(self._binding.launches)
        for node in self._graph.nodes:
            if not isinstance(node, Apply):
                self._allocate([s.result for s in node.stores])
                self._waiting.append(next(launches))
            elif node.result in self._binding.emitted:
                self._start()
                self._library(node)
                self._note_address(node.result)
        self._start()
        results = self._results()
        ends = [f"    return [{', '.join(results)}]", f"    return {results[0]}"]
        body = one_step_views([*writer.lines[checked:], *ends], self._seen())
        body, self._numbers = numbers_apart(body, self._names.fresh)
        *body, self.results, self.first = body
        return [*writer.lines[:checked], *body]

    def _count(self) -> None:
        super()._count()
        # Kernels read them where a view shows them.
        for item in self._graph.indices:
            if item.name in self._variables:
                self._note_address(item.name)

    def _seen(self) -> Seen:
        """The tensors that may be seen in one step, and which lie as is known.

        What the caller has two tensors of keeps its own views, which know of changes to
        each other: `out=`, an input or a result that is returned twice.
        """
        values = self._binding.dry_run.values
        known = {_memory(values[i.name]) for i in self._graph.inputs}
        for node in self._graph.nodes:
            if not isinstance(node, Apply):
                known |= {_memory(values[r]) for r in node.results}
            elif node.result in self._variables and self._is_row_major(node):
                known.add(_memory(values[node.result]))
        held = Counter(_memory(values[i.name]) for i in self._graph.inputs)
        held.update(_memory(values[r.value]) for r in self._graph.returns)
        apart = {memory for memory, times in held.items() if times > 1}
        count = len(self._graph.returns)
        outs = [out_name(at) for at in range(count) if out_name(at) in values]
        apart |= {_memory(values[out]) for out in outs}
        tensors = {
            name: values[value]
            for value, name in self._variables.items()
            if value in values and _memory(values[value]) not in apart
        }
        parameters = [self._variables[i.name] for i in self._graph.inputs]
        return Seen(parameters, tensors, known, frozenset(self._sizes.values()))

    def _is_row_major(self, call: Apply) -> bool:
        """Whether PyTorch may not lay out the result of a call as it likes."""
        return not self._shows(call) and self._types[call.result].layout is None

    def _results(self) -> list[str]:
        """What is returned; in tensors of the caller if there are such."""
        given = self._given
        if given is None:
            return [self._returned(r) for r in self._graph.returns]
        made = [
            "" if given.get(r.value) == at else self._returned(r)
            for at, r in enumerate(self._graph.returns)
        ]
        self._hand_over(made)
        return self._outs

    def _check(self, names: Mapping[str, str]) -> None:
        """Leave, without a trace, if the tensors are not those that this is for."""
        writer = self._writer
        writer.line("try:")
        writer.indent()
        for value, name in names.items():
            address = self._names.fresh(f"{name}_at")
            self._addresses[value] = writer.assign(address, f"{name}.data_ptr()")
        writer.line(f"if {' or '.join(self._differences(list(names.values())))}:")
        writer.indent()
        writer.line("return None")
        writer.dedent()
        writer.dedent()
        # Not tensors, or tensors without memory of their own.
        writer.line("except Exception:")
        writer.indent()
        writer.line("return None")
        writer.dedent()

    def _differences(self, names: Sequence[str]) -> list[str]:
        """What may be true of tensors that this is not for, and around them."""
        addresses = self._addresses.values()
        always = [f"({' | '.join(addresses)}) % {ALIGNMENT}", "observers"]
        always += self._other_overlaps(list(addresses))
        # What was freed lies nowhere.
        always.append(f"not ({' and '.join(addresses)})")
        always.append("current_device() != index")
        # The modes that PyTorch's comparison does not see.
        always.append("dispatch_modes() or function_modes()")
        always.append("levels._current_level >= 0")
        # The comparison aborts for nested tensors.
        always += [f"{name}.is_nested" for name in names]
        tests: list[str] = []
        for at, name in enumerate(names):
            tests += [
                f"type({name}) not in types{at}",
                f"{name}.dtype is not dtype{at}",
                f"{name}.shape != shape{at}",
                f"{name}.stride() != stride{at}",
                f"{name}.get_device() != index",
                # A lazy negation has another key for PyTorch's comparison.
                f"{name}.is_neg()",
            ]
        # With gradients the long way decides whether to refuse.
        grads = " or ".join(f"{n}.requires_grad" for n in names)
        tests.append(f"grad_enabled() and ({grads})")
        tests.append("in_mode()")
        return [*always, f"not same({', '.join(names)}) and ({' or '.join(tests)})"]

    def _other_overlaps(self, addresses: Sequence[str]) -> Iterator[str]:
        """Whether results share other memory with inputs than when this was made."""
        count = len(self._graph.inputs)
        places = list(zip(addresses, self._tensors, strict=True))
        for at, given in places[:count]:
            for to, taken in places[count:]:
                if overlaps([given], [taken]):
                    yield f"{at} != {to}"
                else:
                    yield f"-{span(taken)} < {to} - {at} < {span(given)}"

    def _allocate(self, results: Sequence[str]) -> None:
        """New tensors for what a kernel writes, unless it lies in the scratch."""
        dry_run = self._binding.dry_run
        for result in results:
            like = dry_run.values[result]
            root = dry_run.root(like)
            if root in self._binding.tensors and root not in self._variables:
                self._tensor(root)
            if result in self._binding.tensors and result != root:
                layout = tuple(like.shape), tuple(like.stride()), like.storage_offset()
                self._variables[result] = self._writer.define(
                    result, f"{self._variables[root]}.as_strided{layout}"
                )

    def _complete(self, node: Apply) -> None:
        """Copy what kernels have not stored, into the caller's tensor as well."""
        if node.result not in self._variables:
            view = self._view_of_out(node.result)
            self._variables[node.result] = self._writer.define(node.result, view)
        super()._complete(node)

    def _tensor(self, value: str) -> None:
        like = self._binding.dry_run.values[value]
        layout = f"{tuple(like.shape)}, {tuple(like.stride())}, {like.dtype}"
        self._variables[value] = self._writer.define(value, f"empty({layout})")
        self._note_address(value)

    def _note_address(self, value: str) -> None:
        if value in self._binding.roots:
            self._addresses[value] = f"{self._variables[value]}.data_ptr()"

    def _start(self) -> None:
        """Start the kernels that wait, in one go."""
        if not self._waiting:
            return
        used = sorted({p.base for x in self._waiting for p in x.parameters} - {-1})
        places = {base: at for at, base in enumerate(used)} | {-1: -1}
        launches = [x.rebased(places) for x in self._waiting]
        name = self._names.fresh(f"launch{len(self._launchers)}")
        self._launchers[name] = launcher(launches, self._device, len(used))
        roots = [self._binding.roots[base] for base in used]
        arguments = ["current_stream(index)", *(self._addresses[r] for r in roots)]
        self._writer.line(f"{name}({', '.join(arguments)})")
        self._waiting.clear()

    def scope(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        """What the written functions refer to."""
        import torch
        from torch.autograd import forward_ad

        scope: dict[str, Any] = {
            "torch": torch,
            "empty": _allocator(),
            "view": _reinterpret(),
            "current_device": torch._C._cuda_getDevice,
            "current_stream": torch._C._cuda_getCurrentRawStream,
            "grad_enabled": torch.is_grad_enabled,
            "dispatch_modes": torch._C._len_torch_dispatch_stack,
            "function_modes": torch._C._len_torch_function_stack,
            "in_mode": in_mode,
            "levels": forward_ad,
            "device": tensors[0].device,
            "index": self._device,
            "observers": observers(),
            "same": _comparison(tensors),
            # They are unloaded when nobody refers to them.
            "kept": [x.compiled for x in self._binding.launches],
            **self._launchers,
        }
        for at, tensor in enumerate(tensors):
            # Tensors and parameters stand for each other.
            plain = plain_torch(tensor, torch)
            kinds = (torch.Tensor, torch.nn.Parameter) if plain else (type(tensor),)
            scope[f"types{at}"] = kinds
            scope[f"dtype{at}"] = tensor.dtype
            scope[f"shape{at}"] = tensor.shape
            scope[f"stride{at}"] = tensor.stride()
        for helper in self.helpers:
            exec(HELPERS[helper], scope)
        for name, text in self._numbers.items():
            scope[name] = eval(text, scope)
        if self._numbers and tensors[0].is_cuda:
            # Calls on other streams read them too.
            torch.cuda.current_stream().synchronize()
        return scope


def _comparison(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """PyTorch's own comparison of tensors with these, all at once.

    It may be false for tensors that are alike, as those of another grad mode.  For
    tensors that require gradients it would not tell one mode from another.
    """
    make = _of_guards("TensorGuards")
    if make is not None and not any(t.requires_grad for t in tensors):
        try:
            check = make(
                *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
            ).check
            if check(*tensors) is True:
                return check
        except Exception as error:
            log.info("comparing tensors one by one: %s", error)
    return lambda *_: False


def observers() -> Any:
    """Profilers that want to hear of launches; Triton's own path tells them."""
    from triton import knobs

    return getattr(knobs.runtime.launch_enter_hook, "calls", ())
