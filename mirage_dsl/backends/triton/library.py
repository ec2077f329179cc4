"""Library kernels: operators at the kernel level, as PyTorch expressions.

PyTorch's own kernels run what a μGraph leaves to pre-defined operators, and on the CPU
they are the reference run.  `TORCH` has one entry per row of the operator table; a test
holds it complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mirage_dsl.ir.graph import Apply
from mirage_dsl.ops.definition import Kind
from mirage_dsl.types import DType

TORCH: Mapping[str, str] = MappingProxyType(
    {
        "add": "{0} + {1}",
        "sub": "{0} - {1}",
        "mul": "{0} * {1}",
        "div": "{0} / {1}",
        "maximum": "torch.maximum({0}, {1})",
        "minimum": "torch.minimum({0}, {1})",
        "less": "({0} < {1}).to({0}.dtype)",
        "less_equal": "({0} <= {1}).to({0}.dtype)",
        "equal": "({0} == {1}).to({0}.dtype)",
        "where": "torch.where({0} != 0, {1}, {2})",
        "exp": "torch.exp({0})",
        "log": "torch.log({0})",
        "sqrt": "torch.sqrt({0})",
        "abs": "torch.abs({0})",
        "relu": "torch.relu({0})",
        "sigmoid": "torch.sigmoid({0})",
        "tanh": "torch.tanh({0})",
        "silu": "torch.nn.functional.silu({0})",
        "erf": "torch.erf({0})",
        "gelu": "torch.nn.functional.gelu({0})",
        "neg": "-{0}",
        "square": "{0} * {0}",
        "rsqrt": "torch.rsqrt({0})",
        "sum": "torch.sum({0}, {axes}, dtype=torch.float32)",
        "max": "torch.amax({0}, {axes})",
        "rowshift": "shift_of({0}, {axes})",
        "matmul": "torch.einsum({equation}, {0}, {1})",
        "cast": "{0}.to({dtype})",
        "rename": "{0}",
        "slice": "{0}.narrow({axis}, {start}, {count})",
        "concat": "torch.cat(({operands},), {axis})",
    }
)
"""Expression of each operator.

Operands of elementwise operators are aligned and f32; the result is rounded to its
storage format.
"""

HELPERS: Mapping[str, str] = MappingProxyType(
    {
        "shift_of": '''
def shift_of(x, axes):
    """The maximum by which a row of exponents is shifted; 0 for a masked row."""
    largest = torch.amax(x, axes)
    return torch.where(largest == float("-inf"), torch.zeros_like(largest), largest)
'''
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


def expression(
    node: Apply,
    operands: Sequence[tuple[str, tuple[str, ...]]],
    result: tuple[str, ...],
    dtype: DType,
) -> str:
    """The PyTorch expression of a kernel-level operator.

    Args:
        node: The operator.
        operands: Name and dims of each operand; constants have no dims.
        result: Dims of the result.
        dtype: Its storage format.
    """
    template = TORCH[node.op.name]
    match node.op.kind:
        case Kind.ELEMENTWISE:
            return _elementwise(template, operands, result, dtype, node)
        case Kind.REDUCTION:
            name, dims = operands[0]
            axes = tuple(dims.index(d) for d in node.over)
            return f"{template.format(name, axes=axes)}.to({torch_dtype(dtype)})"
        case Kind.CONTRACTION:
            known: dict[str, str] = {}
            a, b = (letters(dims, known) for _, dims in operands)
            equation = f'"{a},{b}->{letters(result, known)}"'
            names = [name for name, _ in operands]
            return template.format(*names, equation=equation)
        case Kind.VIEW:
            return _view(template, node, operands[0], dtype)
        case Kind.CONCAT:
            return _concat(template, node, operands, result)


def _elementwise(
    template: str,
    operands: Sequence[tuple[str, tuple[str, ...]]],
    result: tuple[str, ...],
    dtype: DType,
    node: Apply,
) -> str:
    forms: list[str] = []
    for operand, (name, dims) in zip(node.operands, operands, strict=True):
        if isinstance(operand, str):
            forms.append(f"{aligned(name, dims, result)}.float()")
        else:
            forms.append(f"torch.full((), {name}, device=device)")
    return f"({template.format(*forms)}).to({torch_dtype(dtype)})"


def _view(
    template: str, node: Apply, operand: tuple[str, tuple[str, ...]], dtype: DType
) -> str:
    name, dims = operand
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
    operands: Sequence[tuple[str, tuple[str, ...]]],
    result: tuple[str, ...],
) -> str:
    attrs = dict(node.attrs)
    joined, to = attrs["dims"], str(attrs["to"])
    assert isinstance(joined, tuple)
    forms: list[str] = []
    for (name, dims), dim in zip(operands, joined, strict=True):
        renamed = tuple(to if d == dim else d for d in dims)
        forms.append(aligned(name, renamed, result))
    return template.format(operands=", ".join(forms), axis=result.index(to))
