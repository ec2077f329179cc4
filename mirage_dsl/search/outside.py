"""Rules of the space of the search, as a given μGraph may break them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    Input,
    KernelGraph,
    Return,
    RunningMax,
    dims_of,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.rename import Renaming
from mirage_dsl.ops.definition import AttributeKind, Kind, Term
from mirage_dsl.ops.table import ROWSHIFT
from mirage_dsl.search.casts import insert_casts
from mirage_dsl.search.saturate import KIND, enabled_kinds
from mirage_dsl.search.segments import _reads_joined
from mirage_dsl.search.space import Space
from mirage_dsl.types import TensorType

MOST_GRID_DIMS = 3

_NEW = (AttributeKind.NEW_DIM, AttributeKind.NEW_DIMS)


def with_program_names(
    mugraph: KernelGraph, program: KernelGraph
) -> KernelGraph | None:
    """The μGraph with the program's names of inputs, their views, and dims.

    None if the inputs' dims do not correspond one by one, or it views inputs in a way
    that the program does not.
    """
    dims: dict[str, str] = {}
    values: dict[str, str] = {}
    for ours, theirs in zip(mugraph.inputs, program.inputs, strict=True):
        if [len(a) for a in ours.type.axes] != [len(a) for a in theirs.type.axes]:
            return None
        dims.update(zip(ours.type.names, theirs.type.names, strict=True))
        values[ours.name] = theirs.name
    # Other values may not take the names of the program's.
    taken = {i.name for i in program.inputs} | {
        n.result for n in program.nodes if isinstance(n, Apply)
    }
    for node in mugraph.nodes:
        names = node.results if isinstance(node, BlockGraph) else (node.result,)
        values.update({n: f"{n}'" for n in names if n in taken and n not in values})
        if isinstance(node, Apply) and node.is_view:
            if node.values[0] not in values:
                return None
            renamed = Renaming(dims, values).apply(node, values)
            twin = next((n for n in program.nodes if _same_view(renamed, n)), None)
            if not isinstance(twin, Apply):
                return None
            values[node.result] = twin.result
            dims.update(zip(_new_dims(node), _new_dims(twin), strict=True))
    return Renaming(dims, values).graph(mugraph)


def _same_view(node: Apply, other: object) -> bool:
    """Whether two views differ at most in the names of new dims."""
    return (
        isinstance(other, Apply)
        and (node.op, node.operands) == (other.op, other.operands)
        and _old_attributes(node) == _old_attributes(other)
    )


def _old_attributes(node: Apply) -> list[object]:
    kinds = node.op.attributes
    return [v for name, v in node.attrs if kinds.get(name) not in _NEW]


def _new_dims(node: Apply) -> tuple[str, ...]:
    kinds = node.op.attributes
    found = [v for name, v in node.attrs if kinds.get(name) in _NEW]
    parts = [v if isinstance(v, tuple) else (str(v),) for v in found]
    return tuple(chain.from_iterable(parts))


def outside(
    mugraph: KernelGraph, space: Space | None, max_kernels: int | None
) -> Iterator[str]:
    """The rules that an expanded μGraph with the program's names breaks.

    Args:
        mugraph: The μGraph.
        space: The program's space as one kernel; None if it has none.
        max_kernels: As it was searched with.
    """
    calls = [n for n in mugraph.nodes if isinstance(n, Apply) and not n.is_view]
    kernels = len(calls) + len(mugraph.blocks)
    if max_kernels and mugraph.blocks and kernels > max_kernels:
        yield (
            f"it has {kernels} kernels, {len(calls)} of them of the library; the "
            f"search was for at most {max_kernels} (max_kernels)"
        )
    if space is None and kernels == 1:
        yield "the program as a whole is not in the space of one kernel"
    outer = kernel_types(mugraph)
    for block in mugraph.blocks:
        name = f"the block of {', '.join(block.results)}"
        for problem in _block_rules(block, outer):
            yield f"{name}: {problem}"
        if space is not None and kernels == 1:
            for problem in _space_rules(block, space):
                yield f"{name}: {problem}"


def _block_rules(block: BlockGraph, outer: dict[str, TensorType]) -> Iterator[str]:
    if len(block.axes) > MOST_GRID_DIMS:
        yield f"its grid splits {len(block.axes)} dims, at most {MOST_GRID_DIMS} are"
    yield from _mixed_splits(block)
    for node in block.nodes:
        if isinstance(node, Apply) and (node.is_view or node.op.kind is Kind.CONCAT):
            yield f"`{node.result}`: a block has no {node.op.name}"
    if _reads_joined(block):
        yield (
            "an operator reads a value that is joined over the loop, which would be "
            "whole without the loop"
        )
    bare = without_casts(block)
    if _hash(insert_casts(bare, outer), outer) != _hash(block, outer):
        yield (
            "its casts are not those that the search places: of computed operands of "
            "products, to the format that they have in the program"
        )


def _mixed_splits(block: BlockGraph) -> Iterator[str]:
    """A dim is split in all tensors or in none."""
    split = {s.dim for s in block.grid}
    loop = None if block.loop is None else block.loop.dim
    for node in block.loads:
        for dim in dims_of(node.axes):
            if dim.name in split and not dim.grid:
                yield f"{node.source} is whole along {dim.name}, which the grid splits"
            if dim.name == loop and not dim.loop:
                yield f"{node.source} is whole along {dim.name}, which the loop splits"


def _space_rules(block: BlockGraph, space: Space) -> Iterator[str]:
    for axis in block.axes:
        names = [s.dim for s in axis]
        if len(axis) > 1 and set(names) not in map(set, space.shared_axes):
            yield (
                f"one axis of its grid splits {' and '.join(names)}; every output has "
                "one dim of such an axis"
            )
        if len(axis) == 1 and names[0] not in space.output_dims:
            yield (
                f"its grid splits {names[0]}, which not every output has; only "
                f"{', '.join(space.output_dims) or 'no dim'} may be split alone"
            )
    if block.loop is not None and block.loop.dim not in space.loop_dims:
        yield f"its loop is over {block.loop.dim}, which no tensor read has"
    enabled = enabled_kinds(space)
    for node in block.nodes:
        if not isinstance(node, Apply) or node.op.term is Term.IDENTITY:
            continue
        known = KIND[node.op.term] in enabled
        if not known and not _only_shifts(block, node):
            yield (
                f"`{node.result}` = {node.op.name}: the search places no operator of "
                "this kind for a program that has none"
            )


def _only_shifts(block: BlockGraph, node: Apply) -> bool:
    """Whether an operator reads or makes shifts of exponents."""
    running = {n.result for n in block.nodes if isinstance(n, RunningMax)}
    running |= {
        n.result
        for n in block.nodes
        if isinstance(n, Accumulate) and n.operand in running
    }
    return node.op is ROWSHIFT or not running.isdisjoint(node.values)


def without_casts(block: BlockGraph) -> BlockGraph:
    """The block before casts, which only the sizing puts in."""
    names: dict[str, str] = {}
    for node in block.nodes:
        if isinstance(node, Apply) and "dtype" in node.op.attributes:
            operand = node.values[0]
            names[node.result] = names.get(operand, operand)
    kept = tuple(n for n in block.nodes if n.result not in names)
    return Renaming().block(replace(block, nodes=kept), names)


def _hash(block: BlockGraph, outer: dict[str, TensorType]) -> str:
    inputs = tuple(Input(n, outer[n]) for n in block.sources)
    returns = tuple(Return(n, outer[n]) for n in block.results)
    return canonical_hash(KernelGraph("", inputs, (block,), returns, ()), sizes=False)
