"""Library kernels: operators at the kernel level, as PyTorch expressions.

PyTorch's own kernels run what a μGraph leaves to pre-defined operators, and on the CPU
they are the reference run.  The rows of the operator table have the expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mirage_dsl.core.types import DType, boolean
from mirage_dsl.ir.graph import Apply
from mirage_dsl.ops.definition import Kind

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
    x = x.to(torch.promote_types(dtype, torch.float32))
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis)
    return x.to(dtype)
''',
        "joined": '''
def joined(parts, axis):
    """Tensors one after the other, repeated where only others have an axis."""
    first = (p.narrow(axis, 0, 1) for p in parts)
    shape = list(torch.broadcast_shapes(*(p.shape for p in first)))
    shape[axis] = -1
    return torch.cat([p.expand(shape) for p in parts], axis)
''',
    }
)
"""Functions that an emitted module defines when an expression calls them."""


def torch_dtype(dtype: DType) -> str:
    """PyTorch's name of a dtype."""
    return f"torch.{dtype.long_name}"


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


def letters(dims: Sequence[str], known: dict[str, str]) -> str:
    """The einsum letters of dims, given out in order of appearance."""
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for dim in dims:
        if dim not in known:
            known[dim] = alphabet[len(known)]
    return "".join(known[d] for d in dims)


@dataclass(frozen=True)
class Value:
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
    node: Apply, operands: Sequence[Value], result: tuple[str, ...], dtype: DType
) -> str:
    """The PyTorch expression of a kernel-level operator.

    Args:
        node: The operator.
        operands: Its operands.
        result: Dims of the result.
        dtype: Its storage format.
    """
    template = node.op.torch
    match node.op.kind:
        case Kind.ELEMENTWISE:
            return _elementwise(template, operands, result, dtype)
        case Kind.REDUCTION:
            axes = tuple(operands[0].dims.index(d) for d in node.over)
            name = torch_dtype(dtype)
            text = template.format(operands[0].text, axes=axes, dtype=name)
            kept = "{dtype}" in template or operands[0].dtype == dtype
            return text if kept else f"{text}.to({name})"
        case Kind.CONTRACTION:
            return _product(template, operands, result)
        case Kind.VIEW:
            return _view(template, node, operands[0], dtype)
        case Kind.CONCAT:
            return _concat(template, node, operands, result)


def _elementwise(
    template: str, operands: Sequence[Value], result: tuple[str, ...], dtype: DType
) -> str:
    tensors = [o for o in operands if o.dtype is not None]
    constants = len(tensors) < len(operands)
    wide = ".float()" if _widened(tensors, dtype, constants) else ""
    # Python's operators take numbers beside tensors; functions take tensors only.
    numbers = bool(tensors) and "torch." not in template
    forms: list[str] = []
    for operand in operands:
        if operand.dtype is not None:
            forms.append(f"{aligned(operand.text, operand.dims, result)}{wide}")
        elif numbers:
            forms.append(operand.text)
        else:
            forms.append(f"torch.full((), {operand.text}, device=device)")
    name = torch_dtype(dtype)
    text = f"({template.format(*forms, dtype=name)})"
    # Numbers among tensors leave their format alone; tensors of numbers may not.
    kept = numbers or all(o.dtype is not None for o in operands)
    return text if kept and not wide else f"{text}.to({name})"


def _widened(tensors: Sequence[Value], dtype: DType, constants: bool) -> bool:
    """Whether PyTorch computes in the operands' formats what has to be of f32."""
    if dtype == boolean:
        # It rounds constants to the operands' format, and does not subtract truth.
        return constants
    numbers = [o for o in tensors if o.dtype != boolean]
    return not numbers or any(o.dtype != dtype for o in numbers)


def product(a: Value, b: Value, result: tuple[str, ...]) -> tuple[str, str] | None:
    """Two matrices, or batches of them, whose product is one of values; None if not.

    They are put so that the result has its axes in order without a copy.
    """
    summed = set(a.dims) - set(result)
    batch = tuple(d for d in result if d in a.dims and d in b.dims)
    rest = result[len(batch) :]
    if rest and rest[0] not in a.dims:
        a, b = b, a
    wanted = (*batch, *rest[:1], *summed), (*batch, *summed, *rest[1:])
    sets = set(a.dims) == set(wanted[0]), set(b.dims) == set(wanted[1])
    if len(rest) != 2 or len(summed) != 1 or not all(sets):
        return None
    return aligned(a.text, a.dims, wanted[0]), aligned(b.text, b.dims, wanted[1])


def _product(template: str, operands: Sequence[Value], result: tuple[str, ...]) -> str:
    """A product of matrices, or of batches of them, if it is one; else a sum."""
    a, b = operands
    factors = product(a, b, result)
    if factors is not None:
        return template.format(*factors)
    known: dict[str, str] = {}
    left, right = letters(a.dims, known), letters(b.dims, known)
    equation = f"{left},{right}->{letters(result, known)}"
    return f'torch.einsum("{equation}", {a.text}, {b.text})'


def _view(template: str, node: Apply, operand: Value, dtype: DType) -> str:
    name, dims = operand.text, operand.dims
    attrs = dict(node.attrs)
    fields: dict[str, object] = {"dtype": torch_dtype(dtype)}
    if "start" in attrs:
        start, stop = attrs["start"], attrs["stop"]
        assert isinstance(start, int)
        assert isinstance(stop, int)
        fields.update(axis=dims.index(str(attrs["dim"])), start=start)
        fields["count"] = stop - start
    return template.format(name, **fields)


def _concat(
    template: str,
    node: Apply,
    operands: Sequence[Value],
    result: tuple[str, ...],
) -> str:
    attrs = dict(node.attrs)
    joined, to = attrs["dims"], str(attrs["to"])
    assert isinstance(joined, tuple)
    forms: list[str] = []
    for operand, dim in zip(operands, joined, strict=True):
        renamed = tuple(to if d == dim else d for d in operand.dims)
        forms.append(aligned(operand.text, renamed, result))
    if any(len(o.dims) < len(result) for o in operands):
        return f"joined(({', '.join(forms)},), {result.index(to)})"
    return template.format(operands=", ".join(forms), axis=result.index(to))
