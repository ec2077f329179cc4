"""Type rules: the type of every value of a graph follows from its nodes.

A rule that does not hold raises `CheckError` with a message without a place; `check`
adds the place and collects all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_dsl.errors import CheckError
from mirage_dsl.ir.axes import check_apply, check_load, check_store
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    AttrValue,
    BlockGraph,
    BlockNode,
    KernelGraph,
    Load,
    RunningMax,
    Store,
)
from mirage_dsl.ops.definition import AttributeKind, Kind
from mirage_dsl.types import (
    Dim,
    DType,
    MemorySpace,
    Scalar,
    TensorType,
    axis_text,
    dtype_named,
    f32,
    flat_type,
    promote,
)


def union_dims(types: Sequence[TensorType]) -> tuple[Dim, ...]:
    """The dims of a broadcast: those of all operands, in order of appearance.

    Raises:
        CheckError: Two operands have different pieces of one dim.
    """
    found: dict[str, Dim] = {}
    for dim in (d for t in types for d in t.dims):
        other = found.setdefault(dim.name, dim)
        if other != dim:
            raise CheckError(
                f"operands have different pieces of one dim: {other}, {dim}"
            )
    return tuple(found.values())


def _without(dims: tuple[Dim, ...], over: tuple[str, ...]) -> tuple[Dim, ...]:
    return tuple(d for d in dims if d.name not in over)


def _result_dtype(node: Apply, types: Sequence[TensorType], in_block: bool) -> DType:
    if node.op.kind is Kind.VIEW or node.op.kind is Kind.CONCAT:
        return promote(*(t.dtype for t in types))
    if in_block or not types:
        return f32
    return promote(*(t.dtype for t in types))


def apply_type(
    node: Apply, types: Sequence[TensorType], *, in_block: bool
) -> TensorType:
    """The type of an operator's result.

    Args:
        node: The operator node.
        types: Types of `node.values`, in order.
        in_block: Inside a block all arithmetic gives f32 in registers; at the kernel
            level a result has the promoted dtype of its operands.

    Raises:
        CheckError: The operands do not fit the operator.
    """
    _check_form(node)
    space = MemorySpace.REGISTER if in_block else MemorySpace.DEVICE
    dtype = _result_dtype(node, types, in_block)
    match node.op.kind:
        case Kind.ELEMENTWISE:
            return flat_type(dtype, union_dims(types), space)
        case Kind.REDUCTION:
            _check_over(node, types)
            return flat_type(dtype, _without(types[0].dims, node.over), space)
        case Kind.CONTRACTION:
            _check_over(node, types)
            dims = _without(union_dims(types), node.over)
            if in_block and types[0].dtype != types[1].dtype:
                raise CheckError(
                    f"{node.op.name} takes operands of one dtype, "
                    f"found {types[0].dtype} and {types[1].dtype}; cast one of them"
                )
            return flat_type(dtype, dims, space)
        case Kind.VIEW:
            return _view_type(node, types[0], space)
        case Kind.CONCAT:
            return _concat_type(node, types, space)


def _check_form(node: Apply) -> None:
    op, given = node.op, {name for name, _ in node.attrs}
    if op.arity >= 0 and len(node.operands) != op.arity:
        raise CheckError(
            f"{op.name} takes {op.arity} operands, found {len(node.operands)}"
        )
    if given != set(op.attributes):
        expected = ", ".join(op.attributes) or "none"
        raise CheckError(
            f"{op.name} takes the attributes {expected}, "
            f"found {', '.join(sorted(given)) or 'none'}"
        )
    for name, value in node.attrs:
        distinct = op.kind is not Kind.CONCAT
        if not _fits(value, op.attributes[name], distinct):
            raise CheckError(
                f"{op.name}: the attribute {name} takes {op.attributes[name].value}, "
                f"found {value!r}"
            )
    constants = any(isinstance(o, Scalar) for o in node.operands)
    if constants and (op.kind is not Kind.ELEMENTWISE or not node.values):
        raise CheckError(f"{op.name} needs tensors, found a constant")


def _fits(value: AttrValue, kind: AttributeKind, distinct: bool) -> bool:
    match kind:
        case AttributeKind.DIMS | AttributeKind.NEW_DIMS:
            if not isinstance(value, tuple):
                return False
            return not distinct or len(set(value)) == len(value)
        case AttributeKind.INTEGER:
            return isinstance(value, int)
        case AttributeKind.DIM | AttributeKind.NEW_DIM | AttributeKind.DTYPE:
            return isinstance(value, str)


def _check_over(node: Apply, types: Sequence[TensorType]) -> None:
    for name in node.over:
        if any(name not in t.names for t in types):
            have = "; ".join(", ".join(t.names) or "no dims" for t in types)
            raise CheckError(
                f"{node.op.name} over {name}: an operand has no such dim (dims: {have})"
            )
    if not node.over:
        raise CheckError(f"{node.op.name} needs at least one dim in `over`")


def _view_type(node: Apply, source: TensorType, space: MemorySpace) -> TensorType:
    attrs = dict(node.attrs)
    if "dtype" in attrs:
        dtype = dtype_named(str(attrs["dtype"]))
        if dtype is None:
            raise CheckError(f"unknown dtype {attrs['dtype']}")
        return flat_type(dtype, source.dims, space)
    if set(attrs) == {"to"}:
        new = str(attrs["to"])
        if new in source.names:
            raise CheckError(f"{node.op.name}: the operand has a dim {new} already")
        return flat_type(source.dtype, (Dim(new), *source.dims), space)
    if "dims" in attrs:
        old, new = attrs["dims"], attrs["to"]
        assert isinstance(old, tuple)
        assert isinstance(new, tuple)
        if len(old) != len(new):
            raise CheckError(
                f"{node.op.name} takes one new name per dim, "
                f"found {len(old)} dims and {len(new)} names"
            )
        names = dict(zip(old, new, strict=True))
    else:
        names = {str(attrs["dim"]): str(attrs["to"])}
    for name in names:
        if name not in source.names:
            raise CheckError(f"{node.op.name}: the operand has no dim {name}")
    dims = tuple(replace(d, name=names.get(d.name, d.name)) for d in source.dims)
    if len({d.name for d in dims}) != len(dims):
        raise CheckError(f"{node.op.name}: two dims of the result have one name")
    return flat_type(source.dtype, dims, space)


def _concat_type(
    node: Apply, types: Sequence[TensorType], space: MemorySpace
) -> TensorType:
    joined, to = dict(node.attrs)["dims"], str(node.attr("to"))
    assert isinstance(joined, tuple)
    if len(joined) != len(types) or not types:
        raise CheckError(
            f"{node.op.name} takes one dim per operand, "
            f"found {len(joined)} dims and {len(types)} operands"
        )
    rest: list[TensorType] = []
    for t, name in zip(types, joined, strict=True):
        if name not in t.names:
            raise CheckError(f"{node.op.name}: an operand has no dim {name}")
        rest.append(flat_type(t.dtype, _without(t.dims, (name,)), space))
    at = types[0].names.index(joined[0])
    others = list(union_dims(rest))
    if to in {d.name for d in others}:
        raise CheckError(f"{node.op.name}: another dim is called {to} already")
    others.insert(at, Dim(to))
    return flat_type(promote(*(t.dtype for t in types)), tuple(others), space)


def block_types(
    block: BlockGraph, outer: Mapping[str, TensorType]
) -> dict[str, TensorType]:
    """Types of all values of a block, given those of the kernel level.

    Raises:
        CheckError: A type rule does not hold.
    """
    types: dict[str, TensorType] = {}
    for node in block.nodes:
        inferred = block_node_type(node, block, types, outer)
        if not isinstance(node, Store):
            types[node.result] = inferred
    return types


def block_node_type(
    node: BlockNode,
    block: BlockGraph,
    types: Mapping[str, TensorType],
    outer: Mapping[str, TensorType],
) -> TensorType:
    """The type of one node's result; for a store, that of the tensor it writes.

    Args:
        node: The node.
        block: The block that it stands in.
        types: Types of the block's values so far.
        outer: Types of the kernel-level values.

    Raises:
        CheckError: A type rule does not hold.
    """
    match node:
        case Load():
            result = _load_type(node, outer)
            check_load(node, block)
            return result
        case Apply():
            operands = [_lookup(v, types) for v in node.values]
            result = apply_type(node, operands, in_block=True)
            check_apply(node, operands, result, block)
            return result
        case Accumulate():
            return _accumulator_type(node, types, block)
        case RunningMax():
            dims = _lookup(node.operand, types).dims
            return flat_type(f32, dims, MemorySpace.REGISTER)
        case Store():
            _lookup(node.operand, types)
            check_store(node, block)
            return store_type(node)


def _lookup(name: str, types: Mapping[str, TensorType]) -> TensorType:
    if name not in types:
        raise CheckError(f"unknown value {name}")
    return types[name]


def _load_type(node: Load, outer: Mapping[str, TensorType]) -> TensorType:
    source = _lookup(node.source, outer)
    whole = tuple(tuple(d.whole for d in axis) for axis in node.axes)
    if whole != source.axes:
        found = ", ".join(map(axis_text, whole))
        raise CheckError(f"load {node.source}[{found}], but {node.source} is {source}")
    return TensorType(source.dtype, node.axes, MemorySpace.SHARED)


def _accumulator_type(
    node: Accumulate, types: Mapping[str, TensorType], block: BlockGraph
) -> TensorType:
    operand = _lookup(node.operand, types)
    dims = operand.dims
    if node.kind == "concat":
        if block.loop is None or not any(d.loop for d in dims):
            raise CheckError(
                f"accumulate {node.operand}: concatenation needs a looped dim"
            )
        return flat_type(
            operand.dtype,
            tuple(replace(d, loop=False) for d in dims),
            MemorySpace.SHARED,
        )
    return flat_type(f32, dims, MemorySpace.REGISTER)


def store_type(node: Store) -> TensorType:
    """The kernel-level type of what a store writes."""
    axes = tuple(tuple(d.whole for d in axis) for axis in node.axes)
    return TensorType(node.dtype, axes, MemorySpace.DEVICE)


def kernel_types(graph: KernelGraph) -> dict[str, TensorType]:
    """Types of all kernel-level values.

    Raises:
        CheckError: A type rule does not hold.
    """
    # Kept beside the fields, as `cached_property` does: graphs never change.
    known = graph.__dict__.get("_kernel_types")
    if known is None:
        known = graph.__dict__["_kernel_types"] = _kernel_types(graph)
    return dict(known)


def _kernel_types(graph: KernelGraph) -> dict[str, TensorType]:
    types = {i.name: i.type for i in graph.inputs}
    for node in graph.nodes:
        match node:
            case Apply():
                operands = [_lookup(v, types) for v in node.values]
                types[node.result] = apply_type(node, operands, in_block=False)
            case BlockGraph():
                for store in node.stores:
                    types[store.result] = store_type(store)
    return types


__all__ = [
    "apply_type",
    "block_node_type",
    "block_types",
    "kernel_types",
    "store_type",
    "union_dims",
]
