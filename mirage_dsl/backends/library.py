"""Library kernels: operators at the kernel level, as PyTorch expressions.

PyTorch's own kernels run what a μGraph leaves to pre-defined operators, and on the CPU
they are the reference run.  The rows of the operator table have the expressions.

Where operators between them compute just what one of PyTorch's functions does, and
nobody sees what lies between, that function is called.  `FUSED` is the table: what a
function computes, as a pattern of rows of the operator table, and how it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mirage_dsl.core.types import DType, Scalar, TensorType, boolean, f64
from mirage_dsl.ir.graph import Apply, KernelGraph, Operand
from mirage_dsl.ir.infer import operand_axes
from mirage_dsl.ir.walk import makers, users
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
    size: Callable[[str], str],
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
        case Kind.GATHER:
            return _gather(template, node, operands, result)
        case Kind.CONCAT:
            return _concat(template, node, operands, result)
        case Kind.LIBRARY:
            return _library(template, node, operands, size)


def _elementwise(
    template: str, operands: Sequence[Argument], result: tuple[str, ...], dtype: DType
) -> str:
    tensors = [o for o in operands if o.dtype is not None]
    constants = len(tensors) < len(operands)
    if any(o.dtype.is_integer for o in tensors if o.dtype is not None):
        return _of_integers(template, operands, result, dtype)
    full = any(o.dtype == f64 for o in tensors)
    wide = (".double()" if full else ".float()") * _widened(tensors, dtype, constants)
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


def _of_integers(
    template: str, operands: Sequence[Argument], result: tuple[str, ...], dtype: DType
) -> str:
    """Integers compute in their own format, of which constants are too."""
    dtypes = (o.dtype for o in operands if o.dtype is not None)
    own = torch_dtype(next(d for d in dtypes if d.is_integer))
    forms: list[str] = []
    for operand in operands:
        if operand.dtype is not None:
            forms.append(aligned(operand.text, operand.dims, result))
        elif "torch." in template:
            forms.append(f"torch.full((), {operand.text}, dtype={own}, device=device)")
        else:
            # The constants of integers are integers, which may be written as floats.
            forms.append(f"int({operand.text})")
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


def _product(
    template: str, operands: Sequence[Argument], result: tuple[str, ...]
) -> str:
    """A product of matrices, or of batches of them, if it is one; else a sum."""
    a, b = operands
    factors = product(a, b, result)
    if factors is not None:
        return template.format(*factors)
    known: dict[str, str] = {}
    left, right = letters(a.dims, known), letters(b.dims, known)
    equation = f"{left},{right}->{letters(result, known)}"
    return f'torch.einsum("{equation}", {a.text}, {b.text})'


def _view(template: str, node: Apply, operand: Argument, dtype: DType) -> str:
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


def _gather(
    template: str,
    node: Apply,
    operands: Sequence[Argument],
    result: tuple[str, ...],
) -> str:
    """Rows by their numbers, or elements along a dim where other dims are shared."""
    source, index = operands
    dim, shared = str(node.attr("dim")), set(source.dims) & set(index.dims)
    if not shared:
        rest = tuple(d for d in source.dims if d != dim)
        rows = aligned(source.text, source.dims, (dim, *rest))
        return f"{rows}[{index.text}.long()]"
    order = (*index.dims, dim, *result[len(index.dims) :])
    texts = [aligned(o.text, o.dims, order) for o in operands]
    return template.format(*texts, axis=len(index.dims))


def _concat(
    template: str,
    node: Apply,
    operands: Sequence[Argument],
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


def _library(
    template: str,
    node: Apply,
    operands: Sequence[Argument],
    size: Callable[[str], str],
) -> str:
    """A call by axes, each of any number of dims; the result has an axis for each."""
    forms = [
        _with_axes(operand, axes.axes, size)
        for operand, axes in zip(operands, operand_axes(node), strict=True)
    ]
    text = template.format(*forms, **node.numbers)
    made = node.axes("gives")
    if all(len(axis) == 1 for axis in made):
        return text
    return f"{text}.reshape({_shape([(n,) for axis in made for n in axis], size)})"


def _with_axes(
    operand: Argument,
    axes: Sequence[tuple[str, ...]],
    size: Callable[[str], str],
) -> str:
    text = aligned(operand.text, operand.dims, [n for axis in axes for n in axis])
    if all(len(axis) == 1 for axis in axes):
        return text
    return f"{text}.reshape({_shape(axes, size)})"


def _shape(axes: Sequence[tuple[str, ...]], size: Callable[[str], str]) -> str:
    sizes = [" * ".join(map(size, axis)) or "1" for axis in axes]
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


def number(value: float) -> str:
    """A constant as an atomic Python expression that reads back exactly."""
    if value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return f"({value!r})" if value < 0 or str(value)[0] == "-" else repr(value)


# -- Several operators at once ---------------------------------------------------------

EPS, ONE_OVER_N = "eps", "1/n"
"""Leaves that stand for constants: any number; one over the summed extents."""


@dataclass(frozen=True)
class Pattern:
    """An operator of patterns; a leaf is a name, the same value wherever it stands."""

    op: str
    operands: tuple[Pattern | str, ...]


Bound = Mapping[Pattern | str, Operand | tuple[str, ...]]
"""What stands for each part of a pattern; the summed dims go by the name `over`."""


@dataclass(frozen=True)
class Match:
    """Operators that are one call.

    Attributes:
        values: What is computed from.
        inner: Results that nobody else sees.
        text: Gives the call, from the values' texts and the text of an extent.
    """

    values: tuple[str, ...]
    inner: frozenset[str]
    text: Callable[[Mapping[str, Argument], Callable[[str], str]], str]


@dataclass(frozen=True)
class Occurrence:
    """A pattern's match, before it is known to be a call.

    Attributes:
        bound: What stands for what.
        types: Of all values.
        result: Its result.
    """

    bound: Bound
    types: Mapping[str, TensorType]
    result: str

    def value(self, leaf: str) -> str:
        """The value that a leaf stands for."""
        found = self.bound[leaf]
        assert isinstance(found, str)
        return found

    @property
    def over(self) -> tuple[str, ...]:
        """The dims that are summed over."""
        found = self.bound.get("over", ())
        assert isinstance(found, tuple)
        return found


def _applied(op: str, *operands: Pattern | str) -> Pattern:
    return Pattern(op, operands)


def _mean(of: Pattern | str) -> Pattern:
    return _applied("mul", _applied("sum", of), ONE_OVER_N)


def _over_root_mean_square(of: Pattern | str, square: Pattern) -> Pattern:
    return _applied("div", of, _applied("sqrt", _applied("add", _mean(square), EPS)))


_EXP = _applied("exp", _applied("sub", "x", _applied("rowshift", "x")))
_SOFTMAX = _applied("div", _EXP, _applied("sum", _EXP))
_SAFE_SOFTMAX = _applied("div", _EXP, _applied("or_one", _applied("sum", _EXP)))
_CENTRED = _applied("sub", "x", _mean("x"))
_SUM_OF_PRODUCT = _applied("add", _applied("matmul", "a", "b"), "c")


# -- Calls -----------------------------------------------------------------------------


def _norm(found: Occurrence, name: str) -> Match | None:
    """A norm over the last axes, or over others that are turned there."""
    types, over = found.types, found.over
    dims = types[found.result].names
    parameters = [p for p in ("weight", "bias") if p in found.bound]
    x = found.value("x")
    mean = found.bound[ONE_OVER_N]
    assert isinstance(mean, Scalar)
    fits = (
        mean == Scalar(1, tuple(sorted((d, -1) for d in over)))
        and set(types[x].names) == set(dims)
        and all(types[found.value(p)].names == over for p in parameters)
    )
    if not fits:
        return None
    order = (*(d for d in dims if d not in over), *over)
    eps = found.bound[EPS]
    assert isinstance(eps, Scalar)
    slots = ("weight",) if name == "rms_norm" else ("weight", "bias")

    def text(values: Mapping[str, Argument], size: Callable[[str], str]) -> str:
        given = values[x]
        shape = ", ".join(map(size, over))
        arguments = [aligned(given.text, given.dims, order), f"({shape},)"]
        for slot in slots:
            has = slot in parameters
            arguments.append(values[found.value(slot)].text if has else "None")
        arguments.append(number(float(eps.value)))
        call = f"torch.{name}({', '.join(arguments)})"
        return aligned(call, order, dims)

    return Match((x, *map(found.value, parameters)), frozenset(), text)


def _rms_norm(found: Occurrence) -> Match | None:
    return _norm(found, "rms_norm")


def _layer_norm(found: Occurrence) -> Match | None:
    return _norm(found, "layer_norm")


def _softmax(found: Occurrence, name: str = "softmax") -> Match | None:
    x, over = found.value("x"), found.over
    dims = found.types[found.result].names
    if len(over) != 1 or set(found.types[x].names) != set(dims):
        return None

    def text(values: Mapping[str, Argument], size: Callable[[str], str]) -> str:
        del size
        given = values[x]
        call = f"torch.{name}({given.text}, {given.dims.index(over[0])})"
        return aligned(call, given.dims, dims)

    return Match((x,), frozenset(), text)


def _safe_softmax(found: Occurrence) -> Match | None:
    return _softmax(found, "_safe_softmax")


def _sum_of_product(found: Occurrence) -> Match | None:
    a, b, c = (found.value(leaf) for leaf in "abc")
    dims = found.types[found.result].names
    left, right = (Argument("", found.types[v].names) for v in (a, b))
    if len(dims) != 2 or product(left, right, dims) is None:
        return None

    def text(values: Mapping[str, Argument], size: Callable[[str], str]) -> str:
        del size
        factors = product(values[a], values[b], dims)
        assert factors is not None
        term = aligned(values[c].text, values[c].dims, dims)
        return f"torch.addmm({term}, {', '.join(factors)})"

    return Match((a, b, c), frozenset(), text)


Function = tuple[Pattern, Callable[[Occurrence], Match | None]]


def _norms(square: Callable[[Pattern | str], Pattern]) -> Iterator[Function]:
    """The norms, given how squares are computed."""
    layer = _over_root_mean_square(_CENTRED, square(_CENTRED))
    scaled = _applied("mul", layer, "weight")
    root_mean_square = _over_root_mean_square("x", square("x"))
    yield _applied("add", scaled, "bias"), _layer_norm
    yield scaled, _layer_norm
    yield layer, _layer_norm
    yield _applied("mul", root_mean_square, "weight"), _rms_norm
    yield root_mean_square, _rms_norm


FUSED: Sequence[Function] = (
    *_norms(lambda x: _applied("square", x)),
    *_norms(lambda x: _applied("mul", x, x)),
    (_SAFE_SOFTMAX, _safe_softmax),
    (_SOFTMAX, _softmax),
    (_SUM_OF_PRODUCT, _sum_of_product),
)
"""Functions by what they compute; those of more operators first."""


# -- Matching --------------------------------------------------------------------------


def fused_calls(
    graph: KernelGraph, types: Mapping[str, TensorType]
) -> dict[str, Match]:
    """The calls that stand for several operators, by their result."""
    search = _Matching(graph, types)
    found: dict[str, Match] = {}
    taken: set[str] = set()
    for node in reversed(graph.nodes):
        if isinstance(node, Apply) and node.result not in taken:
            match = search.best(node)
            if match is not None and not match.inner & taken:
                found[node.result] = match
                taken |= {node.result, *match.inner}
    return found


class _Matching:
    """Looks for patterns in one graph."""

    def __init__(self, graph: KernelGraph, types: Mapping[str, TensorType]) -> None:
        self._types = types
        self._made = makers(graph)
        # Those who see each value; the blocks and the caller have no name.
        self._users = {
            value: {n.result if isinstance(n, Apply) else "" for n in nodes}
            for value, nodes in users(graph.nodes).items()
        }
        for item in graph.returns:
            self._users.setdefault(item.value, set()).add("")

    def best(self, node: Apply) -> Match | None:
        """The call of most operators that ends with a node."""
        for pattern, make in FUSED:
            for bound in self._matches(pattern, node.result, {}):
                inner = {
                    v
                    for p, v in bound.items()
                    if isinstance(p, Pattern) and isinstance(v, str)
                } - {node.result}
                if not self._hidden(inner, node.result) or not self._alike(bound):
                    continue
                match = make(Occurrence(bound, self._types, node.result))
                if match is not None:
                    return Match(match.values, frozenset(inner), match.text)
        return None

    def _hidden(self, inner: set[str], result: str) -> bool:
        """Whether nobody but these operators sees the values between them."""
        return all(self._users[v] <= inner | {result} for v in inner)

    def _alike(self, bound: Bound) -> bool:
        """Whether all values have one format, as these functions want them."""
        values = [v for v in bound.values() if isinstance(v, str)]
        return len({self._types[v].dtype for v in values}) == 1

    def _matches(
        self, pattern: Pattern | str, operand: Operand, bound: Bound
    ) -> Iterator[Bound]:
        """Ways in which an operand is what a pattern says."""
        if pattern in bound:
            if bound[pattern] == operand:
                yield bound
        elif isinstance(pattern, str):
            constant = pattern in {EPS, ONE_OVER_N}
            if constant == isinstance(operand, Scalar):
                yield {**bound, pattern: operand}
        else:
            node = self._made.get(operand) if isinstance(operand, str) else None
            if node is not None and node.op.name == pattern.op:
                yield from self._of_node(pattern, node, bound)

    def _of_node(self, pattern: Pattern, node: Apply, bound: Bound) -> Iterator[Bound]:
        if node.op.kind is Kind.REDUCTION:
            if bound.get("over", node.over) != node.over:
                return
            bound = {**bound, "over": node.over}
        bound = {**bound, pattern: node.result}
        orders = [node.operands]
        if node.op.commutative and len(node.operands) == 2:
            orders.append(node.operands[::-1])
        for operands in orders:
            yield from self._all(pattern.operands, operands, bound)

    def _all(
        self, patterns: Sequence[Pattern | str], operands: Sequence[Operand], b: Bound
    ) -> Iterator[Bound]:
        if not patterns:
            yield b
            return
        for bound in self._matches(patterns[0], operands[0], b):
            yield from self._all(patterns[1:], operands[1:], bound)
