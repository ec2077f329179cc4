"""Library kernels that compute several operators at once.

Where operators between them compute just what one of PyTorch's functions does, and
nobody sees what lies between, that function is called.  `FUNCTIONS` is the table: what
a function computes, as a pattern of rows of the operator table, and how it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirage_dsl.backends.triton.lowering.library import Value, aligned, product
from mirage_dsl.backends.triton.lowering.tiles import number
from mirage_dsl.core.types import Scalar, TensorType
from mirage_dsl.ir.graph import Apply, KernelGraph, Operand
from mirage_dsl.ir.walk import makers, users
from mirage_dsl.ops.definition import Kind

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
    text: Callable[[Mapping[str, Value], Callable[[str], str]], str]


@dataclass(frozen=True)
class Found:
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


def _norm(found: Found, name: str) -> Match | None:
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

    def text(values: Mapping[str, Value], size: Callable[[str], str]) -> str:
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


def _rms_norm(found: Found) -> Match | None:
    return _norm(found, "rms_norm")


def _layer_norm(found: Found) -> Match | None:
    return _norm(found, "layer_norm")


def _softmax(found: Found, name: str = "softmax") -> Match | None:
    x, over = found.value("x"), found.over
    dims = found.types[found.result].names
    if len(over) != 1 or set(found.types[x].names) != set(dims):
        return None

    def text(values: Mapping[str, Value], size: Callable[[str], str]) -> str:
        del size
        given = values[x]
        call = f"torch.{name}({given.text}, {given.dims.index(over[0])})"
        return aligned(call, given.dims, dims)

    return Match((x,), frozenset(), text)


def _safe_softmax(found: Found) -> Match | None:
    return _softmax(found, "_safe_softmax")


def _sum_of_product(found: Found) -> Match | None:
    a, b, c = (found.value(leaf) for leaf in "abc")
    dims = found.types[found.result].names
    left, right = (Value("", found.types[v].names) for v in (a, b))
    if len(dims) != 2 or product(left, right, dims) is None:
        return None

    def text(values: Mapping[str, Value], size: Callable[[str], str]) -> str:
        del size
        factors = product(values[a], values[b], dims)
        assert factors is not None
        term = aligned(values[c].text, values[c].dims, dims)
        return f"torch.addmm({term}, {', '.join(factors)})"

    return Match((a, b, c), frozenset(), text)


Function = tuple[Pattern, Callable[[Found], Match | None]]


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


FUNCTIONS: Sequence[Function] = (
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
        for pattern, make in FUNCTIONS:
            for bound in self._matches(pattern, node.result, {}):
                inner = {
                    v
                    for p, v in bound.items()
                    if isinstance(p, Pattern) and isinstance(v, str)
                } - {node.result}
                if not self._hidden(inner, node.result) or not self._alike(bound):
                    continue
                match = make(Found(bound, self._types, node.result))
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


__all__ = ["Match", "fused_calls"]
