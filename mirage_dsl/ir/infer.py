"""Type rules: the type of every value of a graph follows from its nodes.

A rule that does not hold raises `CheckError` with a message without a place; `check`
adds the place and collects all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, pairwise
from math import prod

from mirage_dsl.core.errors import CheckError, TruthError
from mirage_dsl.core.types import (
    AxisNames,
    Dim,
    DType,
    Integers,
    MemorySpace,
    Scalar,
    TensorType,
    Types,
    axis_text,
    boolean,
    dtype_named,
    f32,
    f64,
    flat_type,
    promote,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.maps import partial_base
from mirage_dsl.ops.definition import AttributeKind, Formats, Kind, Operator, Truth

# -- Grids whose axes split several dims -----------------------------------------------
# Block i of such an axis has tile i of `a` and tile i of `b`; where one of them
# has fewer tiles, the last blocks have nothing of it.  No value may depend on two
# of the dims, and none of them is reduced: then the tiles of one dim could as
# well be computed by blocks of their own, and evaluation and verification need
# not know that they are not.


def check_load(node: ir.Load, block: ir.BlockGraph) -> None:
    """A load has a part of one dim of an axis.

    Raises:
        CheckError: It has parts of two, or iterates over a part.
    """
    for axis, parts in _parts(ir.dims_of(node.axes), block):
        if len(parts) > 1:
            raise _meeting(f"load {node.source}", parts, axis)
        if any(d.loop for d in parts):
            raise _alone(f"load {node.source}: the loop splits {parts[0]}", parts, axis)


def check_apply(
    node: ir.Apply,
    operands: Sequence[TensorType],
    result: TensorType,
    block: ir.BlockGraph,
) -> None:
    """The dims of an axis stay apart, and parts of them stay what they are.

    Raises:
        CheckError: Two of them meet, or a part is reduced, renamed or joined.
    """
    for axis, parts in _parts((d for t in operands for d in t.dims), block):
        if len(parts) > 1:
            raise _meeting(node.op.name, parts, axis)
        if parts[0] not in result.dims:
            raise _alone(f"{node.op.name} takes away {parts[0]}", parts, axis)


def check_store(node: ir.Store, block: ir.BlockGraph) -> None:
    """A store has one dim of an axis: a part, or the number of parts of one.

    Raises:
        CheckError: It has several.
    """
    for axis, found in _parts(ir.dims_of(node.axes), block, numbers=True):
        if len(found) > 1:
            raise _meeting(f"store {node.result}", found, axis)


def _parts(
    dims: Iterable[Dim], block: ir.BlockGraph, *, numbers: bool = False
) -> Iterator[tuple[Sequence[ir.Split], list[Dim]]]:
    """The parts of dims that share an axis with others, by axis.

    With `numbers` also the dims `k#` that number such parts.
    """
    if len(block.axes) == len(block.grid):
        return
    found: dict[int, list[Dim]] = {}
    for dim in dict.fromkeys(d for d in dims if d.grid):
        base = partial_base(dim.name, block) if numbers else None
        at = block.axis_of.get(base or dim.name)
        if at is not None:
            found.setdefault(at, []).append(dim)
    for at, parts in sorted(found.items()):
        if len(block.axes[at]) > 1:
            yield block.axes[at], parts


def _meeting(what: str, parts: Sequence[Dim], axis: Sequence[ir.Split]) -> CheckError:
    return CheckError(
        f"{what}: {_listed(parts)} meet, but one axis of the grid splits "
        f"{_listed(s.dim for s in axis)}, so a block has tiles of equal number only; "
        "give each an axis of its own"
    )


def _alone(what: str, parts: Sequence[Dim], axis: Sequence[ir.Split]) -> CheckError:
    return CheckError(
        f"{what}, but one axis of the grid splits {_listed(s.dim for s in axis)}; "
        f"give {parts[0].name} an axis of its own"
    )


def _listed(dims: Iterable[Dim | str]) -> str:
    return " and ".join(map(str, dims))


# -- Types of nodes --------------------------------------------------------------------


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


def result_dtype(
    op: Operator, operands: Sequence[DType | Scalar], *, in_block: bool = False
) -> DType:
    """The element format of an operator's result, but of a cast.

    Args:
        op: The operator.
        operands: The dtypes of its operands, and constants.
        in_block: Inside a block all numbers that are computed are f32.
    """
    dtypes = [o for o in operands if isinstance(o, DType)]
    # What is chosen of integers is an integer, whatever the condition is.
    whole = op.chooses and any(d.is_integer for d in dtypes)
    found = promote(*(d for d in dtypes if d.is_integer or not whole))
    if op.kind is Kind.VIEW or op.kind is Kind.CONCAT:
        return found
    moves = op.kind is Kind.GATHER or op.indexed
    if moves and isinstance(operands[0], DType):
        return operands[0]
    if op.truth is Truth.COMPARES:
        return boolean
    if op.gives is not None:
        return op.gives
    if found is boolean:
        return boolean if _is_truth(op, operands) else f32
    return f32 if in_block and not found.is_integer else found


def _is_truth(op: Operator, operands: Sequence[DType | Scalar]) -> bool:
    """Whether the result of truth values and constants is truth values."""
    either = (Scalar(Fraction(0)), Scalar(Fraction(1)))
    constants = (o for o in operands if isinstance(o, Scalar))
    return op.truth is Truth.KEEPS and all(c in either for c in constants)


def apply_type(
    node: ir.Apply, types: Sequence[TensorType], *, in_block: bool
) -> TensorType:
    """The type of an operator's result.

    Args:
        node: The operator node.
        types: Types of `node.values`, in order.
        in_block: Inside a block all arithmetic gives f32 in registers; at the kernel
            level a result has the promoted dtype of its operands.  What compares gives
            truth values at both.

    Raises:
        CheckError: The operands do not fit the operator.
    """
    _check_form(node)
    space = MemorySpace.REGISTER if in_block else MemorySpace.DEVICE
    dtype = _apply_dtype(node, types, in_block=in_block)
    match node.op.kind:
        case Kind.ELEMENTWISE:
            return flat_type(dtype, union_dims(types), space)
        case Kind.REDUCTION:
            _check_over(node, types)
            return flat_type(dtype, _without(types[0].dims, node.over), space)
        case Kind.SCAN:
            _check_along(node, types[0], space)
            return flat_type(dtype, types[0].dims, space)
        case Kind.CONTRACTION:
            _check_contraction(node, types)
            return flat_type(dtype, _without(union_dims(types), node.over), space)
        case Kind.VIEW if node.factored is not None:
            return _factored_type(node, types[0], space, node.factored)
        case Kind.VIEW:
            return _view_type(node, types[0], space)
        case Kind.GATHER:
            return _gather_type(node, types[0], types[1], space)
        case Kind.CONCAT:
            return _concat_type(node, types, space)
        case Kind.LIBRARY:
            return _library_type(node, types, space)


def _apply_dtype(
    node: ir.Apply, types: Sequence[TensorType], *, in_block: bool
) -> DType:
    """The format of a result of operands in formats that go together."""
    given = iter(types)
    operands = [
        o if isinstance(o, Scalar) else next(given).dtype for o in node.operands
    ]
    check_numbers(node.op, operands)
    if not in_block:
        check_narrow(node.op, operands)
    elif node.op.gives is not None:
        _check_in_block(node.op.name, node.op.gives)
    return result_dtype(node.op, operands, in_block=in_block)


def _check_contraction(node: ir.Apply, types: Sequence[TensorType]) -> None:
    _check_over(node, types)
    left, right = types[0].dtype, types[1].dtype
    if boolean in (left, right):
        raise TruthError(
            f"{node.op.name} takes numbers, found {left} and {right}; cast the truth "
            "values"
        )
    if left.only_stores or right.only_stores:
        raise CheckError(
            f"{node.op.name} takes floats of 16 bits or more, found {left} and "
            f"{right}; cast them to f16"
        )
    if left is not right:
        raise CheckError(
            f"{node.op.name} takes operands of one dtype, found {left} and {right}; "
            "cast one of them"
        )


def checked_dtype(op: Operator, operands: Sequence[DType | Scalar]) -> DType:
    """The element format of an operator's result, outside of blocks and but of a cast.

    Raises:
        CheckError: The operator does not take operands of these formats.
    """
    check_numbers(op, operands)
    check_narrow(op, operands)
    return result_dtype(op, operands)


def check_narrow(op: Operator, operands: Sequence[DType | Scalar]) -> None:
    """Outside of blocks nothing computes in floats of 8 bits, as in PyTorch.

    Raises:
        CheckError: It does.
    """
    narrow = [o for o in operands if isinstance(o, DType) and o.only_stores]
    moves = op.kind in (Kind.VIEW, Kind.GATHER)
    moves = moves or (op.kind is Kind.CONCAT and len(set(operands)) == 1)
    if narrow and not moves:
        raise CheckError(
            f"{op.name} of {narrow[0].long_name}, in which nothing computes; cast it, "
            "as with .to(torch.float16)"
        )


def check_numbers(op: Operator, operands: Sequence[DType | Scalar]) -> None:
    """An operator takes the formats of its operands; integers are all of one.

    Raises:
        CheckError: It does not, or it moves bits by as many as there are.
    """
    taken = operands[1:] if op.chooses else operands
    dtypes = [o for o in taken if isinstance(o, DType)]
    integers = [d for d in dtypes if d.is_integer]
    if op.chooses and isinstance(operands[0], DType) and operands[0].is_integer:
        raise CheckError(
            f"{op.name} of a condition in {operands[0]}; compare it with 0"
        )
    if op.kind is Kind.GATHER or op.indexed:
        if not (isinstance(operands[1], DType) and operands[1].is_integer):
            raise CheckError(f"{op.name} by {operands[1]}, expected integers")
        return
    if not integers:
        if op.formats is Formats.INTEGERS and dtypes:
            raise CheckError(
                f"{op.name} takes integers, found {dtypes[0]}; convert it, as by to_i32"
            )
        return
    if op.attributes.get("dtype") or (
        op.formats is Formats.FLOATS and op.kind not in (Kind.VIEW, Kind.CONCAT)
    ):
        raise CheckError(f"{op.name} takes floats, found {integers[0]}; use to_f32")
    other = next((d for d in dtypes if d != integers[0]), None)
    if other is not None:
        raise CheckError(
            f"{op.name} takes integers of one format, found {integers[0]} and {other}; "
            f"convert one, as by to_{integers[0]}"
        )
    _check_constants(op, taken, integers[0])


def _check_constants(
    op: Operator, operands: Sequence[DType | Scalar], dtype: DType
) -> None:
    """Constants beside integers are of their format, and move bits by less than all."""
    for number in (o for o in operands if isinstance(o, Scalar)):
        if not number.extents and not dtype.holds(number.value):
            raise CheckError(
                f"{op.name} of {dtype} and {number}, which that format does not hold"
            )
    count, bits = operands[-1], 8 * dtype.itemsize
    if not op.moves_bits or isinstance(count, DType):
        return
    if count.extents or not 0 <= count.value < bits:
        raise CheckError(
            f"{op.name} of {dtype} by {count}, expected 0 to {bits - 1}: beyond, its "
            "result is undefined on a GPU"
        )


def _check_form(node: ir.Apply) -> None:
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


def _fits(value: ir.AttrValue, kind: AttributeKind, distinct: bool) -> bool:
    match kind:
        case AttributeKind.DIMS | AttributeKind.NEW_DIMS:
            if not isinstance(value, tuple):
                return False
            return not distinct or len(set(value)) == len(value)
        case AttributeKind.AXES | AttributeKind.NEW_AXES:
            return isinstance(value, AxisNames)
        case AttributeKind.INTEGER:
            return isinstance(value, int)
        case AttributeKind.INTEGERS:
            return isinstance(value, Integers)
        case AttributeKind.DIM | AttributeKind.NEW_DIM | AttributeKind.DTYPE:
            return isinstance(value, str)


def _check_over(node: ir.Apply, types: Sequence[TensorType]) -> None:
    for name in node.over:
        if any(name not in t.names for t in types):
            have = "; ".join(", ".join(t.names) or "no dims" for t in types)
            raise CheckError(
                f"{node.op.name} over {name}: an operand has no such dim (dims: {have})"
            )
    if not node.over:
        raise CheckError(f"{node.op.name} needs at least one dim in `over`")


def _check_along(node: ir.Apply, source: TensorType, space: MemorySpace) -> None:
    axes = node.axes("along")
    if len(axes) != 1 or not axes[0] or len(set(axes[0])) < len(axes[0]):
        raise CheckError(f"{node.op.name} goes along one axis, found {axes}")
    missing = [name for name in node.along if name not in source.names]
    if missing:
        raise CheckError(
            f"{node.op.name} along {missing[0]}: the operand has no such dim (dims: "
            f"{', '.join(source.names) or 'none'})"
        )
    if len(node.along) > 1 and space is not MemorySpace.DEVICE:
        raise CheckError(
            f"{node.op.name} along several dims in a block: it goes along one; put it "
            "at the kernel level"
        )


def _cast_dtype(name: str) -> DType:
    dtype = dtype_named(name)
    if dtype is None:
        raise CheckError(f"unknown dtype {name}")
    if dtype == boolean:
        raise CheckError("cast to bool: compare with 0 instead")
    if dtype.is_integer:
        raise CheckError(f"cast to {dtype}: casts are between floats; use to_{dtype}")
    if dtype.only_stores:
        raise CheckError(f"cast to {dtype}: rounding to 8 bits is to_{dtype}")
    return dtype


def _check_in_block(what: str, dtype: DType) -> None:
    if dtype is f64:
        raise CheckError(
            f"{what} in f64: a block computes in f32; use a library kernel, or f32"
        )


def _view_type(node: ir.Apply, source: TensorType, space: MemorySpace) -> TensorType:
    attrs = dict(node.attrs)
    if "dtype" in attrs:
        dtype = _cast_dtype(str(attrs["dtype"]))
        if space is not MemorySpace.DEVICE:
            _check_in_block("cast", dtype)
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


def _factored_type(
    node: ir.Apply, source: TensorType, space: MemorySpace, factored: ir.Factored
) -> TensorType:
    """Several dims as one, where the first of them is, or one as several."""
    whole, factors = (factored.whole,), factored.factors
    if space is not MemorySpace.DEVICE:
        raise CheckError(f"{node.op.name} in a block: put it between kernels")
    old, new = (factors, whole) if factored.flattens else (whole, factors)
    names = source.names
    if len(factors) < 2 or len({*old}) < len(old) or not {*old} <= {*names}:
        raise CheckError(
            f"{node.op.name} of {', '.join(old) or 'no dim'}: expected dims of the "
            f"operand, several as one, found {', '.join(names) or 'no dims'}"
        )
    rest = [n for n in names if n not in old]
    at = len([n for n in names[: names.index(old[0])] if n not in old])
    names = (*rest[:at], *new, *rest[at:])
    if len(set(names)) < len(names):
        raise CheckError(f"{node.op.name}: two dims of the result have one name")
    return flat_type(source.dtype, tuple(map(Dim, names)), space)


def _gather_type(
    node: ir.Apply, source: TensorType, index: TensorType, space: MemorySpace
) -> TensorType:
    dim = node.dim("dim")
    if dim not in source.names:
        raise CheckError(f"{node.op.name}: the operand has no dim {dim}")
    piece = source.dim(dim)
    if piece != Dim(dim):
        raise CheckError(
            f"{node.op.name} along {piece}: an index may be anywhere in {dim}, so all "
            f"of {dim} has to be there"
        )
    if dim in index.names:
        raise CheckError(
            f"{node.op.name}: the index has the dim {dim} too; rename it there"
        )
    union_dims((index, source))
    # In the order of what is picked from, the index's own dims in the place of `dim`.
    at = source.names.index(dim)
    own = tuple(d for d in index.dims if d.name not in source.names)
    dims = (*source.dims[:at], *own, *source.dims[at + 1 :])
    return flat_type(source.dtype, dims, space)


def _concat_type(
    node: ir.Apply, types: Sequence[TensorType], space: MemorySpace
) -> TensorType:
    joined, to = node.dims("dims"), node.dim("to")
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
    # A part may lack dims along which it repeats; the widest one has the axes in order.
    widest = max(range(len(types)), key=lambda part: len(types[part].dims))
    at = types[widest].names.index(joined[widest])
    others = list(union_dims([rest[widest], *rest]))
    if to in {d.name for d in others}:
        raise CheckError(f"{node.op.name}: another dim is called {to} already")
    others.insert(at, Dim(to))
    return flat_type(promote(*(t.dtype for t in types)), tuple(others), space)


def _library_type(
    node: ir.Apply, types: Sequence[TensorType], space: MemorySpace
) -> TensorType:
    op = node.op
    if space is not MemorySpace.DEVICE:
        raise CheckError(
            f"only PyTorch computes {op.name}, so no block holds it; put it between "
            "kernels"
        )
    known = operand_axes(node)
    if len(known) != len(types) or not types:
        raise CheckError(
            f"{op.name} has {len(types)} operands, and axes of {len(known)}"
        )
    for at, (kind, axes) in enumerate(zip(types, known, strict=True)):
        if sorted(axes.names) != sorted(kind.names):
            raise CheckError(
                f"{op.name} names the dims {', '.join(axes.names) or 'none'} of an "
                f"operand that has {', '.join(kind.names) or 'none'}"
            )
        index = at == 1 and node.op.indexed and kind.dtype.is_integer
        same = kind.dtype != boolean and kind.dtype == types[0].dtype
        if not (same or index):
            kinds = {t.dtype for t in types}
            raise (TruthError if boolean in kinds else CheckError)(
                f"{op.name} takes numbers of one dtype, found "
                f"{' and '.join(t.dtype.name for t in types)}; cast one of them"
            )
    made = node.attr("gives")
    assert isinstance(made, AxisNames)
    if len(set(made.names)) != len(made.names):
        raise CheckError(f"{op.name}: two dims of the result have one name")
    return flat_type(op.gives or types[0].dtype, tuple(map(Dim, made.names)), space)


def operand_axes(node: ir.Apply) -> list[AxisNames]:
    """The axes of the operands of a library operator, in their order."""
    kinds, ranks = node.op.attributes, node.numbers.get("ranks")
    if ranks is not None:
        axes, ends = node.axes("of"), [0, *accumulate(ranks)]
        return [AxisNames(axes[start:stop]) for start, stop in pairwise(ends)]
    values = [node.attr(n) for n, kind in kinds.items() if kind is AttributeKind.AXES]
    return [value for value in values if isinstance(value, AxisNames)]


def library_dims(node: ir.Apply) -> Iterator[str]:
    """The dims of a library operator's operands and result, in their axes' order."""
    for axes in operand_axes(node):
        yield from axes.names
    made = node.attr("gives")
    assert isinstance(made, AxisNames)
    yield from made.names


def library_shapes(
    node: ir.Apply, extents: Mapping[str, int]
) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """The shapes of the operands of a library operator as it sees them, and its own.

    Args:
        node: The operator.
        extents: Of all of its dims.
    """

    def shape(axes: AxisNames) -> tuple[int, ...]:
        return tuple(prod(extents[n] for n in axis) for axis in axes.axes)

    made = node.attr("gives")
    assert isinstance(made, AxisNames)
    return [shape(axes) for axes in operand_axes(node)], shape(made)


def block_types(block: ir.BlockGraph, outer: Types) -> dict[str, TensorType]:
    """Types of all values of a block, given those of the kernel level.

    Raises:
        CheckError: A type rule does not hold.
    """
    # Kept beside the fields, as of kernel graphs, with the types that they follow from.
    given = tuple(outer.get(s) for s in block.sources)
    known = block.__dict__.get("_block_types")
    if known is None or known[0] != given:
        known = block.__dict__["_block_types"] = given, _block_types(block, outer)
    return dict(known[1])


def keep_block_types(block: ir.BlockGraph, outer: Types, types: Types) -> None:
    """Spare `block_types` a block whose types somebody inferred while making it."""
    given = tuple(outer.get(s) for s in block.sources)
    block.__dict__["_block_types"] = given, dict(types)


def _block_types(block: ir.BlockGraph, outer: Types) -> dict[str, TensorType]:
    types: dict[str, TensorType] = {}
    for node in block.nodes:
        inferred = block_node_type(node, block, types, outer)
        if not isinstance(node, ir.Store):
            types[node.result] = inferred
    return types


def block_node_type(
    node: ir.BlockNode, block: ir.BlockGraph, types: Types, outer: Types
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
        case ir.Load():
            result = _load_type(node, outer)
            check_load(node, block)
            return result
        case ir.Apply():
            operands = [_lookup(v, types) for v in node.values]
            result = apply_type(node, operands, in_block=True)
            check_apply(node, operands, result, block)
            return result
        case ir.Accumulate():
            return _accumulator_type(node, types, block)
        case ir.RunningMax():
            operand = _lookup(node.operand, types)
            if operand.dtype.is_integer:
                raise CheckError(f"running max of {operand.dtype}; use to_f32")
            dims = operand.dims
            return flat_type(f32, dims, MemorySpace.REGISTER)
        case ir.Store():
            check_stored(node, _lookup(node.operand, types).dtype)
            check_store(node, block)
            return store_type(node)


def check_stored(node: ir.Store, stored: DType) -> None:
    """A store rounds floats to other floats, but to none of 8 bits.

    Raises:
        CheckError: It is to do something else.
    """
    _check_in_block(f"store {node.result}", node.dtype)
    own = stored.is_integer or node.dtype.is_integer or node.dtype.only_stores
    if own and stored != node.dtype:
        raise CheckError(
            f"store {node.result}: {node.operand} is {stored}, the tensor "
            f"{node.dtype}; convert it, as by to_{node.dtype}"
        )


def _lookup(name: str, types: Types) -> TensorType:
    if name not in types:
        raise CheckError(f"unknown value {name}")
    return types[name]


def _load_type(node: ir.Load, outer: Types) -> TensorType:
    source = _lookup(node.source, outer)
    whole = tuple(tuple(d.whole for d in axis) for axis in node.axes)
    if whole != source.axes:
        found = ", ".join(map(axis_text, whole))
        raise CheckError(f"load {node.source}[{found}], but {node.source} is {source}")
    _check_in_block(f"load {node.source}", source.dtype)
    if source.space is MemorySpace.NOWHERE:
        return TensorType(source.dtype, node.axes, MemorySpace.REGISTER)
    return TensorType(source.dtype, node.axes, MemorySpace.SHARED)


def _accumulator_type(
    node: ir.Accumulate, types: Types, block: ir.BlockGraph
) -> TensorType:
    operand = _lookup(node.operand, types)
    dims = operand.dims
    if not ir.is_accumulated(node.kind):
        raise CheckError(
            f"accumulate {node.operand}: found {node.kind!r}, expected what iterations "
            f"are accumulated by: {', '.join(ir.accumulator_kinds())}"
        )
    reduction = node.reduction
    if reduction is None:
        if block.loop is None or not any(d.loop for d in dims):
            raise CheckError(
                f"accumulate {node.operand}: concatenation needs a looped dim"
            )
        return flat_type(
            operand.dtype,
            tuple(replace(d, loop=False) for d in dims),
            MemorySpace.SHARED,
        )
    if operand.dtype.is_integer and node.rescale is not None:
        raise CheckError(f"accumulate {node.operand}: integers are not rescaled")
    dtype = result_dtype(reduction, [operand.dtype], in_block=True)
    return flat_type(dtype, dims, MemorySpace.REGISTER)


def store_type(node: ir.Store) -> TensorType:
    """The kernel-level type of what a store writes."""
    axes = tuple(tuple(d.whole for d in axis) for axis in node.axes)
    return TensorType(node.dtype, axes, MemorySpace.DEVICE)


def kernel_types(graph: ir.KernelGraph) -> dict[str, TensorType]:
    """Types of all kernel-level values.

    Raises:
        CheckError: A type rule does not hold.
    """
    # Kept beside the fields, as `cached_property` does: graphs never change.
    known = graph.__dict__.get("_kernel_types")
    if known is None:
        known = graph.__dict__["_kernel_types"] = _kernel_types(graph)
    return dict(known)


def _kernel_types(graph: ir.KernelGraph) -> dict[str, TensorType]:
    types = {i.name: i.type for i in graph.given}
    for node in graph.nodes:
        match node:
            case ir.Apply():
                operands = [_lookup(v, types) for v in node.values]
                types[node.result] = apply_type(node, operands, in_block=False)
            case ir.BlockGraph():
                for store in node.stores:
                    types[store.result] = store_type(store)
    return types
