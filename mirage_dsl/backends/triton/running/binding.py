"""A module bound to tensors of one kind: its kernels compiled, every address known.

What a call will do is found out by doing it once on tensors without data.  The emitted
`run` is executed on tensors of the right shapes and strides that have no memory
(PyTorch's `meta` device), and its kernels only note what they are given.  That tells of
every value where it lies, views included, and of every kernel its grid, its strides and
its sizes.

Library calls are left out: their results are new tensors in row-major order.  For the
first one without data PyTorch would import its symbolic shapes and more, which takes a
second, and four where its files are not compiled.

Each kernel-level value lies in the memory of a root: an input, a tensor that the call
makes, or, for what only generated kernels see, the call's one scratch allocation.
"""

# PyTorch's and Triton's inner functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mirage_dsl.backends.triton.lowering.launcher import Launcher
from mirage_dsl.backends.triton.lowering.plan import KernelPlan, ModulePlan
from mirage_dsl.backends.triton.running.c_launcher import (
    POINTER,
    SCRATCH,
    WORD,
    Parameter,
    PreparedLaunch,
    described,
    startable,
    takes,
)
from mirage_dsl.backends.triton.running.screen import compile_kernel
from mirage_dsl.core.errors import CompileError
from mirage_dsl.core.hardware import number_of
from mirage_dsl.ir.analysis.calls import calls
from mirage_dsl.ir.analysis.layouts import built, copied_parts
from mirage_dsl.ir.graph import Apply
from mirage_dsl.ops.definition import Kind
from mirage_dsl.tile.sizes import ALIGNMENT

if TYPE_CHECKING:
    import torch


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

    def _library(self, node: Apply) -> None:
        made = self._inner | self._built | self._flat_values.unmade
        if node.result in made or node.op.kind is Kind.VIEW:
            super()._library(node)
            return
        text = self._allocation(self._types[node.result])
        self._variables[node.result] = self._writer.assign(
            self._names.fresh(node.result), text
        )

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

log = logging.getLogger("mirage_dsl.backends.triton.binding")

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
    launches: list[PreparedLaunch] = []
    for kernel, noted in zip(plan.kernels, dry_run.kernels, strict=True):
        launch = _launch(plan, kernel, noted, places)
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


def _launch(
    plan: ModulePlan, kernel: KernelPlan, noted: NotedKernel, places: _Places
) -> PreparedLaunch | None:
    """A compiled kernel with what it is given, or None if the two do not fit."""
    import torch

    given = list(zip(kernel.params, noted.arguments, strict=True))
    spots = {p.name: places.of(p.source) for p, _ in given if p.dtype is not None}
    compiled = compile_kernel(
        plan,
        kernel,
        number_of(torch.cuda.get_device_capability()),
        strides={p.name: a for p, a in given if p.kind == "stride"},
        unaligned=[
            at
            for at, (p, _) in enumerate(given)
            if p.kind == "tensor" and spots[p.name][1] % ALIGNMENT
        ],
    )
    if not startable(compiled):
        return None
    try:
        _ = compiled.run  # loads the kernel onto the current device
    except Exception as error:
        raise CompileError(f"{kernel.name} does not load: {error}") from error
    parameters = _parameters(given, spots, compiled)
    if parameters is None or not takes(compiled, parameters):
        return None
    grid = tuple(map(int, noted.grid))
    return PreparedLaunch(kernel.name, compiled, grid, parameters, kernel.schedule.pdl)


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
                more = meta and described(
                    meta, param.dtype, shape, strides, base, offset
                )
                if not more or offset % ALIGNMENT:
                    return None
                found += more
            case "size":
                found.append(Parameter(WORD, value=argument))
            case _:
                pass
    return [*found, *(Parameter(POINTER) for _ in range(SCRATCH))]
