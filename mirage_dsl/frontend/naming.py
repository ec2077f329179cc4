"""From recorded steps to a kernel graph: live steps only, named and typed."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_dsl.frontend.blocks import add_block
from mirage_dsl.frontend.nodes import Builder, DimNames, TracedInput
from mirage_dsl.frontend.recorder import Recorder
from mirage_dsl.frontend.steps import BlockStep, BlockStore, Handle, Step, Value
from mirage_dsl.ir.graph import KernelGraph, partial_dim


def build_graph(
    name: str,
    recorder: Recorder,
    inputs: Sequence[TracedInput],
    outputs: Sequence[Handle],
) -> KernelGraph:
    """The kernel graph of a finished trace.

    Raises:
        UnsupportedError: The dims have no common factors, or an output is expanded.
    """
    recorder.dims.settle()
    steps = _live(recorder.steps, outputs)
    names = DimNames(recorder.dims, {i.name for i in inputs})
    for traced in inputs:
        names.visit(a for axis in traced.handle.axes for a in axis)
    for step in steps:
        _visit(names, step)
    builder = Builder(names)
    declared = tuple(builder.input(i) for i in inputs)
    for step in steps:
        if isinstance(step, Step):
            builder.apply(step)
        else:
            add_block(builder, step)
    returns = tuple(builder.output(o) for o in outputs)
    extents = tuple(sorted(names.extents().items()))
    return KernelGraph(name, declared, tuple(builder.nodes), returns, extents)


def _visit(names: DimNames, step: Step | BlockStep) -> None:
    """Name the dims of a step."""
    if isinstance(step, Step):
        names.visit(step.result.dims)
        return
    for item in step.items:
        if isinstance(item, BlockStore):
            for atom, axis in item.partial:
                names.visit(axis)
                names.assign(atom, partial_dim(names.of(axis)[0]))
        names.visit(item.result.dims)


def _live(
    steps: Sequence[Step | BlockStep], outputs: Sequence[Handle]
) -> list[Step | BlockStep]:
    """The steps that an output depends on, in order."""
    needed = {o.value for o in outputs}
    kept: list[Step | BlockStep] = []
    for step in reversed(steps):
        if any(result in needed for result in step.results):
            needed.update(v for v in step.operands if isinstance(v, Value))
            kept.append(step)
    return kept[::-1]
