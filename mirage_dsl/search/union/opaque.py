"""Programs that look at computed tensors in other ways, or concatenate them.

No block can do that, so such a node, here called opaque, parts the program: its result
is a tensor that kernels may read, as if it were an input, and its operands are tensors
that kernels have to store.  In between it costs nothing, or a library kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage_dsl.ir.graph import Apply, Input, KernelGraph, Return
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ops.definition import Kind
from mirage_dsl.types import MemorySpace, TensorType, flat_type


@dataclass(frozen=True)
class Opened:
    """A program parted at its opaque nodes.

    Attributes:
        program: What kernels have to compute, the opaque nodes' results given.
        opaque: The opaque nodes, operands under the names that are stored.
        wanted: What has to be there in the end.
    """

    program: KernelGraph
    opaque: tuple[Apply, ...]
    wanted: tuple[str, ...]


def opened(program: KernelGraph) -> Opened:
    """Part a program of operators only."""
    types = kernel_types(program)
    origin = uncast(program)
    there = {i.name for i in program.inputs}
    opaque: list[Apply] = []
    kept: list[Apply] = []
    for node in program.nodes:
        assert isinstance(node, Apply)
        if node.is_view and node.values[0] in there:
            there.add(node.result)
            kept.append(node)
        elif node.is_view or node.op.kind is Kind.CONCAT:
            operands = tuple(
                origin.get(o, o) if isinstance(o, str) else o for o in node.operands
            )
            opaque.append(replace(node, operands=operands))
        else:
            kept.append(node)
    given = {n.result for n in opaque}
    returned = {r.value: r for r in program.returns if r.value not in given}
    stored = dict.fromkeys(v for n in opaque for v in n.values)
    others = [
        Return(v, _stored(types[v]))
        for v in stored
        if v not in {*given, *there, *(origin.get(r, r) for r in returned)}
    ]
    inputs = [Input(n.result, _stored(types[n.result])) for n in opaque]
    parted = replace(
        program,
        inputs=(*program.inputs, *inputs),
        nodes=tuple(kept),
        returns=(*returned.values(), *others),
    )
    wanted = dict.fromkeys(origin.get(r.value, r.value) for r in program.returns)
    return Opened(parted, tuple(opaque), tuple(w for w in wanted if w not in there))


def uncast(program: KernelGraph) -> Mapping[str, str]:
    """What each result of a cast is the cast of, in the end."""
    origin: dict[str, str] = {}
    for node in program.nodes:
        if isinstance(node, Apply) and "dtype" in node.op.attributes:
            source = node.values[0]
            origin[node.result] = origin.get(source, source)
    return origin


def _stored(kind: TensorType) -> TensorType:
    """The type of a tensor between kernels: one dim per axis."""
    return flat_type(kind.dtype, kind.dims, MemorySpace.DEVICE)
