"""Library kernels: operators at the kernel level, as PyTorch expressions.

PyTorch's own kernels run what a μGraph leaves to pre-defined operators, and on the CPU
they are the reference run.  The rows of the operator table have the expressions.

Where one of PyTorch's functions computes several operators (`ir.analysis.launches`),
that function is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mirage_dsl.core.types import DType, boolean, f64, i64, number, torch_dtype
from mirage_dsl.ir.analysis.launches import (
    EPS,
    SCALE,
    AttentionAxes,
    FusedCall,
    attention_axes,
    factors,
    group_axes,
    linear_axes,
)
from mirage_dsl.ir.analysis.layouts import channels_together, middle, rows_last
from mirage_dsl.ir.graph import Apply
from mirage_dsl.ir.infer import operand_axes
from mirage_dsl.ops.definition import Kind, Operator

Size = Callable[[str], str]
"""Gives the text of an extent."""

HELPERS: Mapping[str, str] = MappingProxyType(
    {
        "shift_of": '''
def shift_of(x, axes):
    """The maximum by which a row of exponents is shifted; finite for a masked row."""
    largest = torch.amax(x, axes)
    lowest = torch.full_like(largest, torch.finfo(largest.dtype).min)
    return torch.where(largest == float("-inf"), lowest, largest)
''',
        "prod_of": '''
def prod_of(x, axes, dtype):
    """The product over axes, of which PyTorch takes one at a time."""
    wide = torch.float32 if dtype.is_floating_point else dtype
    x = x.to(torch.promote_types(dtype, wide))
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis)
    return x.to(dtype)
''',
        "gathered": '''
def gathered(x, index, axis):
    """Elements of x at indices along an axis, of which the result has none."""
    index = index.long()
    index = torch.where(index < 0, index + x.shape[axis], index)
    return torch.take_along_dim(x, index, axis).squeeze(axis)
''',
    }
)
"""Functions that an emitted module defines when an expression calls them."""


LARGE = 1 << 20
"""Elements from which on PyTorch is given repeated parts of a concatenation as tensors
of their own: it copies faster where all parts are contiguous."""


def aligned(value: str, dims: Sequence[str], order: Sequence[str]) -> str:
    """`value` with axes `dims` as a view that broadcasts against axes `order`."""
    present = [d for d in order if d in dims]
    text = value
    if list(dims) != present:
        turns = ", ".join(str(list(dims).index(d)) for d in present)
        text += f".permute({turns})"
    if len(present) < len(order) and present:
        index = ", ".join(":" if d in dims else "None" for d in order)
        text += f"[{index}]"
    return text


@dataclass(frozen=True)
class Argument:
    """An operand: its name, dims and storage format; constants have neither of those.

    Attributes:
        text: A variable, or a number.
        dims: In the order of its axes.
        dtype: None for a constant.
    """

    text: str
    dims: tuple[str, ...] = ()
    dtype: DType | None = None


def expression(
    node: Apply,
    operands: Sequence[Argument],
    result: tuple[str, ...],
    dtype: DType,
    size: Size,
) -> str:
    """The PyTorch expression of a kernel-level operator.

    Args:
        node: The operator.
        operands: Its operands.
        result: Dims of the result.
        dtype: Its storage format.
        size: Gives the text of an extent.
    """
    template = node.op.torch
    match node.op.kind:
        case Kind.ELEMENTWISE:
            if node.is_one_number:
                return _filled(operands[1].text, result, dtype, size)
            return _elementwise(node.op, operands, result, dtype)
        case Kind.REDUCTION:
            axes = tuple(operands[0].dims.index(d) for d in node.over)
            name = torch_dtype(dtype)
            text = template.format(operands[0].text, axes=axes, dtype=name)
            kept = "{dtype}" in template or operands[0].dtype == dtype
            return text if kept else f"{text}.to({name})"
        case Kind.SCAN:
            text = _scanned(template, node.along, operands[0], torch_dtype(dtype), size)
            return aligned(text, operands[0].dims, result)
        case Kind.CONTRACTION:
            return _product(template, operands, result, size)
        case Kind.VIEW:
            return _view(node, operands[0], dtype, size)
        case Kind.GATHER:
            return _gather(node, operands, result)
        case Kind.CONCAT:
            return _concat(node, operands, result, size)
        case Kind.LIBRARY:
            return _library(node, operands, size)


def only_element(operand: Argument, over: Sequence[str], dtype: DType) -> str:
    """What a reduction over axes of one element gives, as a view."""
    text = f"{operand.text}.squeeze({tuple(operand.dims.index(d) for d in over)})"
    return text if operand.dtype == dtype else f"{text}.to({torch_dtype(dtype)})"


def _filled(number: str, dims: Sequence[str], dtype: DType, size: Size) -> str:
    """A tensor of one number."""
    shape = _shape([(d,) for d in dims], size)
    return f"torch.full({shape}, {number}, dtype={torch_dtype(dtype)}, device=device)"


def _condition(operand: Argument, text: str) -> str:
    """What chooses, as truth."""
    if operand.dtype is None:
        return f"torch.full((), {text} != 0, device=device)"
    return text if operand.dtype == boolean else f"{text} != 0"


def _forms(
    op: Operator,
    operands: Sequence[Argument],
    result: tuple[str, ...],
    tensor: str,
    constant: str,
) -> Iterator[str]:
    """What the operands are in an expression, by templates for tensors and numbers."""
    for at, operand in enumerate(operands):
        text = aligned(operand.text, operand.dims, result)
        if op.chooses and at == 0:
            yield _condition(operand, text)
        else:
            yield (constant if operand.dtype is None else tensor).format(text)


def _elementwise(
    op: Operator, operands: Sequence[Argument], result: tuple[str, ...], dtype: DType
) -> str:
    template = op.torch
    tensors = [o for o in operands if o.dtype is not None]
    constants = len(tensors) < len(operands)
    if any(o.dtype.is_integer for o in tensors if o.dtype is not None):
        return _of_integers(op, operands, result, dtype)
    full = any(o.dtype == f64 for o in tensors)
    wide = (".double()" if full else ".float()") * _widened(tensors, dtype, constants)
    # Python's operators take numbers beside tensors; functions take tensors only.
    numbers = bool(tensors) and "torch." not in template
    exact = ", dtype=torch.float64" * (full or dtype == f64)
    constant = "{}" if numbers else f"torch.full((), {{}}{exact}, device=device)"
    forms = _forms(op, operands, result, f"{{}}{wide}", constant)
    name = torch_dtype(dtype)
    text = f"({template.format(*forms, dtype=name)})"
    # Numbers among tensors leave their format alone; tensors of numbers may not.
    kept = numbers or all(o.dtype is not None for o in operands)
    return text if kept and not wide else f"{text}.to({name})"


def _scanned(
    template: str, along: tuple[str, ...], operand: Argument, dtype: str, size: Size
) -> str:
    """A scan of an axis, of which several dims become one."""
    dims = operand.dims
    if len(along) == 1:
        axis = dims.index(along[0])
        return template.format(operand.text, axis=axis, dtype=dtype)
    rest = [d for d in dims if d not in along]
    order = [dims.index(d) for d in (*rest, *along)]
    merged = f"{operand.text}.permute({order}).flatten({len(rest)})"
    found = template.format(merged, axis=len(rest), dtype=dtype)
    sizes = ", ".join(map(size, along))
    back = [order.index(i) for i in range(len(dims))]
    return f"{found}.unflatten({len(rest)}, ({sizes})).permute({back})"


def _of_integers(
    op: Operator, operands: Sequence[Argument], result: tuple[str, ...], dtype: DType
) -> str:
    """Integers compute in their own format, of which constants are too."""
    template = op.torch
    dtypes = (o.dtype for o in operands if o.dtype is not None)
    own = torch_dtype(next(d for d in dtypes if d.is_integer))
    # The constants of integers are integers, which may be written as floats.
    constant = "int({})"
    if "torch." in template:
        constant = f"torch.full((), {{}}, dtype={own}, device=device)"
    forms = _forms(op, operands, result, "{}", constant)
    return f"({template.format(*forms, dtype=torch_dtype(dtype))})"


def _widened(tensors: Sequence[Argument], dtype: DType, constants: bool) -> bool:
    """Whether PyTorch computes in the operands' formats what has to be of f32."""
    if dtype == boolean:
        # It rounds constants to the operands' format, and does not subtract truth.
        return constants
    numbers = [o for o in tensors if o.dtype != boolean]
    return not numbers or any(o.dtype != dtype for o in numbers)


def product(
    a: Argument, b: Argument, result: tuple[str, ...]
) -> tuple[str, str] | None:
    """Two matrices, or batches of them, whose product is one of values; None if not.

    They are put so that the result has its axes in order without a copy.
    """
    found = factors(a.dims, b.dims, result)
    if found is None:
        return None
    left, right, exchanged = found
    if exchanged:
        a, b = b, a
    return aligned(a.text, a.dims, left), aligned(b.text, b.dims, right)


def _product(
    template: str, operands: Sequence[Argument], result: tuple[str, ...], size: Size
) -> str:
    """A matrix by columns that lie as they are to lie, or batches of matrices."""
    a, b = operands
    for own, matrix in ((a, b), (b, a)):
        text = _of_columns(template, own, matrix, result, size)
        if text is not None:
            return text
    return _of_matrices(template, a, b, result, size)


def _of_matrices(
    template: str, a: Argument, b: Argument, result: tuple[str, ...], size: Size
) -> str:
    """Batches of matrices: dims of rows, of columns and what is summed are one axis."""
    shared = {*a.dims} & {*b.dims}
    batch = [d for d in result if d in shared]
    if next((d for d in result if d not in shared), "") in b.dims:
        a, b = b, a
    rows, columns = (
        [d for d in result if d in own.dims and d not in shared] for own in (a, b)
    )
    summed = tuple(d for d in a.dims if d not in result)
    batches = [(d,) for d in batch]
    # Where there are no batches PyTorch takes any number of axes for rows.
    left, right = [tuple(rows)], [tuple(columns)]
    if not batch:
        left = [(d,) for d in rows]
        right = right if columns else []
    forms = (
        _with_axes(a, (*batches, *left, summed), size),
        _with_axes(b, (*batches, summed, *right), size),
    )
    text = template.format(*forms)
    order = (*batch, *rows, *columns)
    if any(len(axis) != 1 for axis in (*left, *right)):
        text = _by_dims(text, order, size)
    return aligned(text, order, result)


def _of_columns(
    template: str, own: Argument, matrix: Argument, result: tuple[str, ...], size: Size
) -> str | None:
    """A matrix by columns that lie behind the summed dim; None for other products.

    Columns of several dims are one axis meanwhile, and so are batches, so that PyTorch
    multiplies as many matrices as there are, and copies none.
    """
    around = middle(own.dims, matrix.dims, result)
    if around is None:
        return None
    before, after = around
    rows = next(d for d in matrix.dims if d in result)
    if result != (*before, rows, *after):
        return None
    summed = own.dims[len(before)]
    left = aligned(matrix.text, matrix.dims, (rows, summed))
    right = own.text
    if len(after) > 1:
        right += f".flatten({len(before) + 1})"
    text = template.format(left, right)
    if len(after) > 1:
        text += f".unflatten({len(before) + 1}, ({', '.join(map(size, after))}))"
    return text


def _view(node: Apply, operand: Argument, dtype: DType, size: Size) -> str:
    name, dims = operand.text, operand.dims
    fields: dict[str, object] = {"dtype": torch_dtype(dtype)}
    if node.factored is not None:
        factors = node.factored.factors
        if node.factored.copies(dims):
            moved = [d for d in dims if d not in factors[1:]]
            at = moved.index(factors[0])
            moved[at + 1 : at + 1] = factors[1:]
            name = f"{name}.permute({[dims.index(d) for d in moved]})"
            dims = tuple(moved)
        first = factors[0] if node.factored.flattens else node.factored.whole
        at = dims.index(first)
        sizes = f"({', '.join(map(size, factors))})"
        fields.update(axis=at, last=at + len(factors) - 1, sizes=sizes)
    part = node.sliced
    if part is not None:
        begin = str(part.start)
        if part.start < 0:
            extent = size(part.dim)
            known = extent.isdigit()
            begin = (
                str(int(extent) + part.start) if known else f"{extent} - {-part.start}"
            )
        count = part.length(None)
        count_text = size(part.to) if count is None else str(count)
        fields.update(axis=dims.index(part.dim), start=begin, count=count_text)
    return node.op.torch.format(name, **fields)


def _gather(node: Apply, operands: Sequence[Argument], result: tuple[str, ...]) -> str:
    """Rows by their numbers, or elements along a dim where other dims are shared."""
    source, index = operands
    dim = node.dim("dim")
    at = source.dims.index(dim)
    own = [d for d in index.dims if d not in source.dims]
    if len(own) == len(index.dims):
        return f"{source.text}[{':, ' * at}{index.text}.long()]"
    at += len(own)
    order = (*result[:at], dim, *result[at:])
    texts = [aligned(o.text, o.dims, order) for o in operands]
    return node.op.torch.format(*texts, axis=at)


def _concat(
    node: Apply, operands: Sequence[Argument], result: tuple[str, ...], size: Size
) -> str:
    """Operands one after the other, repeated where only others have an axis."""
    joined, to = node.dims("dims"), node.dim("to")
    forms: list[str] = []
    known = {d: size(d) for d in (*result, *joined) if d != to}
    extents = {d: int(e) if e.isdigit() else LARGE for d, e in known.items()}
    others = math.prod(extents[d] for d in result if d != to)
    large = others * sum(extents[d] for d in joined) >= LARGE
    for operand, dim in zip(operands, joined, strict=True):
        renamed = tuple(to if d == dim else d for d in operand.dims)
        text = aligned(operand.text, renamed, result)
        if len(operand.dims) < len(result):
            shape = [(dim if d == to else d,) for d in result]
            text += f".expand({_shape(shape, size)})" + ".contiguous()" * large
        forms.append(text)
    return node.op.torch.format(operands=", ".join(forms), axis=result.index(to))


def _library(node: Apply, operands: Sequence[Argument], size: Size) -> str:
    """A call by axes, each of any number of dims; the result has an axis for each."""
    forms = [
        _with_axes(operand, axes.axes, size)
        for operand, axes in zip(operands, operand_axes(node), strict=True)
    ]
    text = node.op.torch.format(*forms, operands=", ".join(forms), **node.numbers)
    made = node.axes("gives")
    if all(len(axis) == 1 for axis in made):
        return text
    return _by_dims(text, [n for axis in made for n in axis], size)


def _with_axes(operand: Argument, axes: Sequence[tuple[str, ...]], size: Size) -> str:
    text = aligned(operand.text, operand.dims, [n for axis in axes for n in axis])
    if all(len(axis) == 1 for axis in axes):
        return text
    return f"{text}.reshape({_shape(axes, size)})"


def _by_dims(text: str, dims: Iterable[str], size: Size) -> str:
    """A tensor with one axis for each dim."""
    return f"{text}.reshape({_shape([(d,) for d in dims], size)})"


def _shape(axes: Sequence[tuple[str, ...]], size: Size) -> str:
    sizes = [" * ".join(map(size, axis)) or "1" for axis in axes]
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


# -- Several operators at once ---------------------------------------------------------

Values = Mapping[str, Argument]


def call_text(
    call: FusedCall, values: Values, size: Size, lies: tuple[str, ...]
) -> str:
    """The expression of a call.

    Args:
        call: The call.
        values: What it is computed from, by name.
        size: Gives the text of an extent.
        lies: Dims of the result as they are to lie in memory, as far as it may choose.
    """
    match call.name:
        case "layer_norm" | "rms_norm":
            return _norm(call, values, size)
        case "group_norm":
            return _group_norm(call, values, size)
        case "batch_norm":
            return _batch_norm(call, values, size)
        case "argmax" | "argmin":
            return _first_position(call, values)
        case "mean":
            return _mean(call, values)
        case "softmax" | "_safe_softmax" | "log_softmax":
            return _softmax(call, values, size)
        case "addmm":
            return _sum_of_product(call, values)
        case "linear":
            return _linear(call, values, size, lies)
        case _:
            return _attention(call, values, size)


def _norm(call: FusedCall, values: Values, size: Size) -> str:
    dims, over = call.dims(call.result), call.over
    given = values[call.value("x")]
    order = rows_last(given.dims, over)
    shape = ", ".join(map(size, over))
    arguments = [aligned(given.text, given.dims, order), f"({shape},)"]
    for slot in ("weight",) if call.name == "rms_norm" else ("weight", "bias"):
        has = slot in call.bound
        arguments.append(values[call.value(slot)].text if has else "None")
    arguments.append(number(float(call.constant(EPS).value)))
    return aligned(f"torch.{call.name}({', '.join(arguments)})", order, dims)


def _of_channels(
    call: FusedCall,
    slots: Iterable[str],
    channels: tuple[str, ...],
    values: Values,
    size: Size,
) -> Iterator[str]:
    """Parameters of a norm as vectors of its channels, as far as it has them."""
    for slot in slots:
        has = slot in call.bound
        yield _with_axes(values[call.value(slot)], (channels,), size) if has else "None"


def _group_norm(call: FusedCall, values: Values, size: Size) -> str:
    """A norm of groups of channels, which are one axis behind that of batches."""
    axes = group_axes(call)
    assert axes is not None
    channels = (*axes.groups, *axes.channels)
    x = _with_axes(values[call.value("x")], (axes.batch, channels, axes.places), size)
    arguments = [x, " * ".join(map(size, axes.groups))]
    arguments += _of_channels(call, ("weight", "bias"), channels, values, size)
    arguments.append(number(float(call.constant(EPS).value)))
    text = f"torch.nn.functional.group_norm({', '.join(arguments)})"
    text = _by_dims(text, axes.order, size)
    return aligned(text, axes.order, call.dims(call.result))


def _mean(call: FusedCall, values: Values) -> str:
    given = values[call.value("x")]
    axes = tuple(given.dims.index(d) for d in call.over)
    kept = tuple(d for d in given.dims if d not in call.over)
    return aligned(f"torch.mean({given.text}, {axes})", kept, call.dims(call.result))


def _first_position(call: FusedCall, values: Values) -> str:
    given, (over,) = values[call.value("x")], call.over
    kept = tuple(d for d in given.dims if d != over)
    text = f"torch.{call.name}({given.text}, {given.dims.index(over)})"
    dtype = call.types[call.result].dtype
    if dtype != i64:
        text += f".to({torch_dtype(dtype)})"
    return aligned(text, kept, call.dims(call.result))


def _softmax(call: FusedCall, values: Values, size: Size) -> str:
    """A softmax of one axis; several are one, behind all others."""
    given, over = values[call.value("x")], call.over
    dims = call.dims(call.result)
    if len(over) == 1:
        text = f"torch.{call.name}({given.text}, {given.dims.index(over[0])})"
        return aligned(text, given.dims, dims)
    rest = tuple(d for d in given.dims if d not in over)
    x = _with_axes(given, (rest, over), size)
    order = (*rest, *over)
    text = _by_dims(f"torch.{call.name}({x}, 1)", order, size)
    return aligned(text, order, dims)


def _sum_of_product(call: FusedCall, values: Values) -> str:
    a, b, c = (values[call.value(leaf)] for leaf in "abc")
    dims = call.dims(call.result)
    found = product(a, b, dims)
    assert found is not None
    # A vector is added where the product is stored, a matrix of one row copied first.
    added = c.text if c.dims == dims[-1:] else aligned(c.text, c.dims, dims)
    return f"torch.addmm({added}, {', '.join(found)})"


def _linear(call: FusedCall, values: Values, size: Size, lies: tuple[str, ...]) -> str:
    """A linear layer of rows, or of columns where its result is to have these last."""
    axes = linear_axes(call)
    assert axes is not None
    given = values[call.value("a")]
    around = middle(given.dims, call.dims(call.value("b")), call.dims(call.result))
    if around is not None and lies == (*around[0], *axes.made, *around[1]):
        return _linear_of_columns(call, values, size, lies)
    order = tuple(d for d in given.dims if d in axes.rows)
    rows = [(d,) for d in order]
    x = _with_axes(given, (*rows, axes.summed), size)
    weight = _with_axes(values[call.value("b")], (axes.made, axes.summed), size)
    bias = _with_axes(values[call.value("c")], (axes.made,), size)
    text = f"torch.nn.functional.linear({x}, {weight}, {bias})"
    if len(axes.made) > 1:
        text = _by_dims(text, (*order, *axes.made), size)
    return aligned(text, (*order, *axes.made), call.dims(call.result))


def _linear_of_columns(
    call: FusedCall, values: Values, size: Size, lies: tuple[str, ...]
) -> str:
    """A weight and a bias by a batch of matrices that are not turned."""
    axes = linear_axes(call)
    assert axes is not None
    (made,), (summed,) = axes.made, axes.summed
    at = lies.index(made)
    before, after = lies[:at], lies[at + 1 :]
    x = _with_axes(values[call.value("a")], (before, (summed,), after), size)
    weight = values[call.value("b")]
    weight = aligned(weight.text, weight.dims, (made, summed))
    batches = " * ".join(map(size, before))
    bias = f"{values[call.value('c')].text}[None, :, None]"
    text = f"torch.baddbmm({bias}, {weight}.expand({batches}, -1, -1), {x})"
    text = _by_dims(text, lies, size)
    return aligned(text, lies, call.dims(call.result))


PLACES = 3
"""Axes of places that PyTorch's norms of channels take as they are."""
_CUDNN = "torch.backends.cudnn.enabled"


def _batch_norm(call: FusedCall, values: Values, size: Size) -> str:
    """A norm with statistics that are given, of channels behind an axis of batches."""
    given = values[call.value("x")]
    channels = call.dims(call.value("mean"))
    order = channels_together(given.dims, channels)
    at = order.index(channels[0])
    places: Sequence[tuple[str, ...]] = [order[at + len(channels) :]]
    if 0 < len(places[0]) <= PLACES:
        places = [(d,) for d in places[0]]
    axes = (order[:at], channels, *places)
    slots = ("weight", "bias", "mean", "var")
    arguments = [
        _with_axes(given, axes, size),
        *_of_channels(call, slots, channels, values, size),
    ]
    eps = number(float(call.constant(EPS).value))
    text = f"torch.batch_norm({', '.join(arguments)}, False, 0.0, {eps}, {_CUDNN})"
    if any(len(axis) != 1 for axis in axes):
        text = _by_dims(text, order, size)
    return aligned(text, order, call.dims(call.result))


def is_seen_whole(call: FusedCall) -> bool:
    """Whether a call is attention whose result is what PyTorch gives, and no view."""
    attends = call.name == "scaled_dot_product_attention"
    axes = attention_axes(call) if attends else None
    if axes is None or not _has_four_dims(axes):
        return False
    return (*axes.batch, *axes.rows, axes.made) == call.dims(call.result)


def _has_four_dims(axes: AttentionAxes) -> bool:
    """Whether each axis of attention is one dim."""
    return len(axes.batch) == 2 and len(axes.rows) == 1


def _attention(call: FusedCall, values: Values, size: Size) -> str:
    """Attention of four axes, as PyTorch's fused kernels want it."""
    axes = attention_axes(call)
    assert axes is not None
    batches = axes.batch[:-1], axes.batch[-1:]

    def shaped(leaf: str, *matrix: tuple[str, ...]) -> str:
        return _with_axes(values[call.value(leaf)], (*batches, *matrix), size)

    columns, features, made = (axes.columns,), (axes.features,), (axes.made,)
    arguments = [
        shaped("q", axes.rows, features),
        shaped("k", columns, features),
        shaped("v", columns, made),
    ]
    if "mask" in call.bound:
        mask = values[call.value("mask")]
        order = (*axes.batch, *axes.rows, axes.columns)
        text = aligned(mask.text, mask.dims, order)
        there = mask.dims
        if len(batches[0]) > 1 and not set(there).isdisjoint(batches[0]):
            text += f".expand({_shape([(d,) for d in order], size)})"
            there = order
        own = (*batches, axes.rows, columns)
        shape = [tuple(d for d in axis if d in there) for axis in own]
        text += f".reshape({_shape(shape, size)})"
        arguments.append(f"attn_mask={text}")
    scale = float(call.constant(SCALE).value) if SCALE in call.bound else 1.0
    arguments.append(f"scale={number(scale)}")
    text = f"torch.nn.functional.{call.name}({', '.join(arguments)})"
    order = (*axes.batch, *axes.rows, axes.made)
    if not _has_four_dims(axes):
        text = _by_dims(text, order, size)
    return aligned(text, order, call.dims(call.result))
