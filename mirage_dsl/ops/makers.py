"""Makers of rows: what the rows of the operator table have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np

from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import DType, scalar, torch_dtype
from mirage_dsl.ops.definition import (
    Algebra,
    Array,
    AttributeKind,
    Axes,
    BinaryField,
    ConcatField,
    ContractionField,
    ElementAlgebra,
    FieldAlgebra,
    Formats,
    Kind,
    Numbers,
    Operator,
    ReductionField,
    ScanField,
    Shape,
    Term,
    TernaryField,
    Truth,
    UnaryField,
    V,
    WorkOf,
)

# -- Formulas that are longer than a line ----------------------------------------------

_ONE = scalar(1)


def sigmoid_field(f: Algebra[V], x: V) -> V:
    """The logistic function through the exponential, over any algebra."""
    one = f.constant(_ONE)
    return f.div(one, f.add(one, f.exp(f.sub(f.constant(scalar(0)), x))))


def tanh_field(f: Algebra[V], x: V) -> V:
    """The hyperbolic tangent through the exponential, over any algebra."""
    return f.sub(
        f.mul(f.constant(scalar(2)), sigmoid_field(f, f.add(x, x))), f.constant(_ONE)
    )


def or_one_field(f: ElementAlgebra[V], x: V) -> V:
    """X times a random number, the same wherever it is asked for, over any algebra.

    So it is told from x itself, and scales as x does.
    """
    return f.mul(x, f.oracle("or_one", f.constant(_ONE)))


def min_field(f: FieldAlgebra[V], a: V, axes: Axes) -> V:
    """The minimum as minus the maximum of the negatives, over any algebra of arrays."""
    zero = f.constant(scalar(0))
    return f.sub(zero, f.max(f.sub(zero, a), axes))


def silu_gradient(m: Algebra[V], x: Sequence[V], y: V, g: V) -> tuple[V, ...]:
    """The upstream gradient times the slope of x * sigmoid(x)."""
    one = m.constant(_ONE)
    gate = sigmoid_field(m, x[0])
    return (m.mul(g, m.add(gate, m.mul(y, m.sub(one, gate)))),)


def bell(m: Algebra[V], x: V) -> V:
    """The slope of the error function."""
    square = m.sub(m.constant(scalar(0)), m.mul(x, x))
    return m.mul(m.exp(square), m.constant(scalar(2 / math.sqrt(math.pi))))


def logarithm(f: ElementAlgebra[V], x: V) -> V:
    """The natural logarithm as the row `log` has it, an oracle by that name."""
    return f.oracle("log", x)


def log1p_field(f: ElementAlgebra[V], x: V) -> V:
    """The logarithm of one plus x, over any algebra."""
    return logarithm(f, f.add(f.constant(_ONE), x))


def log2_field(f: ElementAlgebra[V], x: V) -> V:
    """The logarithm over that of 2, over any algebra."""
    return f.mul(logarithm(f, x), f.constant(scalar(1 / math.log(2))))


def atan2_gradient(m: Algebra[V], x: Sequence[V], g: V) -> tuple[V, V]:
    """The upstream gradient times the slopes of the angle of a point."""
    rise, run = x
    square = m.add(m.mul(rise, rise), m.mul(run, run))
    turned = m.sub(m.constant(scalar(0)), m.div(m.mul(g, rise), square))
    return m.div(m.mul(g, run), square), turned


_ERF_STEPS = 128
"""Places in 1 at which the error function is known."""
_ERF_END = 6
"""From here on it is 1 in float64."""


@cache
def _erf_series() -> tuple[Array, ...]:
    """The first coefficients of its Taylor series at each of these places.

    Of the derivative d = exp(-x * x) * 2 / sqrt(pi), those of higher order follow from
    d' = -2 * x * d.
    """
    places = np.arange(_ERF_END * _ERF_STEPS + 1) / _ERF_STEPS
    values = np.array([math.erf(place) for place in places])
    slopes = [2 / math.sqrt(math.pi) * np.exp(-places * places)]
    slopes.append(-2 * places * slopes[0])
    for order in range(2, 7):
        known = places * slopes[-1] + (order - 1) * slopes[-2]
        slopes.append(-2 * known)
    return values, *(s / math.factorial(at + 1) for at, s in enumerate(slopes))


def erf(x: Array) -> Array:
    """The error function, element by element, to two roundings of float64."""
    values = np.asarray(x)
    wide = values.astype(np.float64)
    size = np.minimum(np.abs(wide), _ERF_END)
    nearest = np.rint(np.nan_to_num(size) * _ERF_STEPS).astype(np.int64)
    rest = size - nearest / _ERF_STEPS
    first, *others = _erf_series()
    found = np.zeros_like(rest)
    for coefficients in reversed(others):
        found = found * rest + coefficients[nearest]
    found = found * rest + first[nearest]
    return np.copysign(found, wide).astype(values.dtype)


def stable_sigmoid(x: Array) -> Array:
    """The logistic function, without overflow for any operand."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, 1.0) / (1.0 + small), dtype=small.dtype)


def gathered(values: Array, index: Array, axis: int) -> Array:
    """The elements at indices along an axis, which has the index's extent then.

    Both have as many axes, and broadcast along all others.

    Raises:
        IndexError: An index is outside.
    """
    wanted = index.astype(np.int64)
    both = zip(values.shape, wanted.shape, strict=True)
    apart = [min(sizes) == 1 for at, sizes in enumerate(both) if at != axis]
    if not all(apart):
        return np.take_along_axis(values, wanted, axis)
    # Positions are the same for all rows: whole rows are taken.
    own = [a for a in range(values.ndim) if a != axis and values.shape[a] > 1]
    rows = values.transpose(
        (axis, *own, *(a for a in range(values.ndim) if a not in (axis, *own)))
    ).reshape(values.shape[axis], -1)
    others = [a for a in range(wanted.ndim) if a not in own]
    found = rows[wanted.reshape(-1)].reshape(
        *(wanted.shape[a] for a in others), *(values.shape[a] for a in own)
    )
    return found.transpose(np.argsort([*others, *own]))


def finite(of: Operator) -> Callable[[Array, Axes], Array]:
    """A reduction with a finite number in the place of its neutral element.

    No other value is beyond that number, so that it can still be joined with one.
    """

    def reduced(a: Array, axes: Axes) -> Array:
        found = of.numpy(a, axes)
        limits = np.finfo(found.dtype)
        edge = limits.min if of.neutral == -math.inf else limits.max
        return np.where(found == of.neutral, edge, found)

    return reduced


# -- Makers of rows --------------------------------------------------------------------

EXACT = "exact"
ORACLE = (
    "random oracle: equal operands give equal values, and of one operand 0 and 1 give "
    "what they do if that is an integer; nothing else is assumed"
)
ON_INTEGERS = "exact on integers, which verification carries beside their residues"
ORDER = "a fixed random order per trial: axioms of a total order, no more"

JOIN_PREFIX = "join_"
"""What the names of functions begin with by which emitted modules join elements."""

ROWS: dict[str, Operator] = {}
"""The rows entered so far, by name."""


def known_values(name: str) -> tuple[tuple[int, int], ...]:
    """Where the unknown function of a row is known: arguments and values.

    Lanes outside of a tensor hold zeros, and no mask is put where what functions make
    of them is neutral: random functions that stand for these have to know that.  So 0
    and 1, of which the logarithm of 1 + x is one, have their true values if those are
    integers.  Nothing is known by names that are no row's.
    """
    found = ROWS.get(name)
    if found is None or found.kind is not Kind.ELEMENTWISE or found.arity != 1:
        return ()
    with np.errstate(all="ignore"):
        values = [(at, float(found.numpy(np.asarray(float(at))))) for at in (0, 1)]
    return tuple((at, int(v)) for at, v in values if v.is_integer())


def row(operator: Operator) -> Operator:
    """Enter a row."""
    assert operator.name not in ROWS, operator.name
    ROWS[operator.name] = operator
    return operator


def unary(
    name: str,
    numpy: Callable[[Array], Array],
    triton: str,
    *,
    torch: str,
    field: UnaryField | None = None,
    field_note: str = EXACT,
    flops: float = 1.0,
    **facets: Any,
) -> Operator:
    """A row of one operand; without `field` the residue semantics is an oracle."""

    def unknown(f: ElementAlgebra[V], x: V) -> V:
        return f.oracle(name, x)

    return row(
        Operator(
            name=name,
            kind=Kind.ELEMENTWISE,
            arity=1,
            numpy=numpy,
            field=field or unknown,
            field_note=field_note if field else ORACLE,
            term=Term.FUNCTION,
            triton=triton,
            torch=torch,
            flops=flops,
            **facets,
        )
    )


def binary(
    name: str,
    numpy: Callable[[Array, Array], Array],
    triton: str,
    *,
    torch: str,
    field: BinaryField,
    term: Term = Term.FUNCTION,
    field_note: str = EXACT,
    flops: float = 1.0,
    **facets: Any,
) -> Operator:
    """A row of two operands."""
    return row(
        Operator(
            name=name,
            kind=Kind.ELEMENTWISE,
            arity=2,
            numpy=numpy,
            field=field,
            field_note=field_note,
            term=term,
            triton=triton,
            torch=torch,
            flops=flops,
            **facets,
        )
    )


def ternary(
    name: str,
    numpy: Callable[[Array, Array, Array], Array],
    triton: str,
    *,
    torch: str,
    field: TernaryField,
    **facets: Any,
) -> Operator:
    """A row of three operands."""
    return row(
        Operator(
            name=name,
            kind=Kind.ELEMENTWISE,
            arity=3,
            numpy=numpy,
            field=field,
            term=Term.FUNCTION,
            triton=triton,
            torch=torch,
            flops=1.0,
            **facets,
        )
    )


def comparison(
    name: str, numpy: Callable[[Array, Array], Array], sign: str
) -> Operator:
    """A row that is 1 where the comparison holds and 0 elsewhere."""

    def field(f: ElementAlgebra[V], a: V, b: V) -> V:
        return f.indicator(name, a, b)

    return binary(
        name,
        lambda a, b: np.asarray(numpy(a, b), dtype=np.result_type(a, b)),
        f"({{0}} {sign} {{1}}).to(tl.float32)",
        torch=f"({{0}} {sign} {{1}}).to({{dtype}})",
        field=field,
        field_note=ORACLE,
        sign=sign,
        truth=Truth.COMPARES,
        formats=Formats.ANY,
    )


def integral(
    name: str,
    numpy: Callable[[Array, Array], Array],
    triton: str,
    *,
    torch: str,
    flops: float = 1.0,
    commutative: bool = False,
    moves_bits: bool = False,
) -> Operator:
    """A row on two integers that is no arithmetic of rings.

    Verification computes it on the integers themselves.
    """

    def computed(a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return numpy(a, b)

    def field(f: ElementAlgebra[V], a: V, b: V) -> V:
        if commutative:
            return f.oracle(name, f.add(a, b), f.mul(a, b))
        return f.oracle(name, a, b)

    return binary(
        name,
        computed,
        triton,
        torch=torch,
        field=field,
        field_note=ON_INTEGERS,
        flops=flops,
        formats=Formats.INTEGERS,
        commutative=commutative,
        moves_bits=moves_bits,
    )


def conversion(dtype: DType) -> Operator:
    """A row that gives the same numbers as integers of a format, or integers as floats.

    Of floats it takes the part before the point; what does not fit wraps around.
    """
    name = f"to_{dtype.name}"

    def converted(a: Array) -> Array:
        if not dtype.is_integer:
            return a.astype(np.float64)
        with np.errstate(all="ignore"):
            # Floats beyond 64 bits have no integer, here or on a GPU.
            whole = a.astype(np.int64) if a.dtype.kind == "f" else a
            return whole.astype(dtype.long_name)

    return unary(
        name,
        converted,
        f"{{0}}.to(tl.{dtype.long_name})",
        torch=f"{{0}}.to({torch_dtype(dtype)})",
        field=lambda f, a: f.oracle(name, a),
        flops=0.5,
        formats=Formats.ANY if dtype.is_integer else Formats.INTEGERS,
        gives=dtype,
    )


def narrowing(dtype: DType, triton: str, *, saturates: bool) -> Operator:
    """A row that gives the nearest numbers of 8 bits.

    What is beyond them is the largest one, or infinite in a format that has infinities;
    PyTorch 2.13 does the same, 2.11 makes NaN of what exceeds f8e4m3.
    Unlike a cast it is never left out: rounding to 8 bits is what a program asks for.
    """
    name = f"to_{dtype.name}"
    number = np.dtype(getattr(ml_dtypes, dtype.long_name))
    limits = f".clamp({dtype.min}, {dtype.max})" * saturates

    def converted(a: Array) -> Array:
        inside = np.clip(a, dtype.min, dtype.max) if saturates else a
        with np.errstate(all="ignore"):
            return inside.astype(np.float32).astype(number).astype(np.float64)

    return unary(
        name,
        converted,
        triton,
        torch=f"{{0}}{limits}.to({torch_dtype(dtype)})",
        field=lambda f, a: f.oracle(name, a),
        field_note=ORACLE,
        flops=2.0,
        gives=dtype,
    )


def rounding(dtype: DType) -> Operator:
    """A row that gives the nearest numbers of a format, in the operand's own format.

    Unlike a cast it is never left out: it is where a program sees what is lost.
    """
    number = np.dtype(getattr(ml_dtypes, dtype.long_name, dtype.long_name))

    def rounded(a: Array) -> Array:
        with np.errstate(all="ignore"):
            return a.astype(np.float32).astype(number).astype(a.dtype)

    return unary(
        f"round_{dtype.name}",
        rounded,
        f"{{0}}.to(tl.{dtype.long_name}).to(tl.float32)",
        torch=f"{{0}}.to({torch_dtype(dtype)}).to({{0}}.dtype)",
    )


def view(
    name: str,
    torch: str,
    attributes: Mapping[str, AttributeKind],
    *,
    term: Term = Term.FUNCTION,
    field_note: str = EXACT,
    triton: str = "{0}",
    flops: float = 0.0,
) -> Operator:
    """A row that gives the same elements under other dims, or in another format."""

    def unchanged(f: ElementAlgebra[V], a: V) -> V:
        del f
        return a

    return row(
        Operator(
            name=name,
            kind=Kind.VIEW,
            arity=1,
            numpy=np.asarray,
            field=unchanged,
            field_note=field_note,
            term=term,
            triton=triton,
            torch=torch,
            flops=flops,
            attributes=attributes,
        )
    )


def reduction(
    name: str,
    numpy: Callable[[Array, Axes], Array],
    *,
    join: Operator,
    neutral: float,
    torch: str,
    triton: str | None = None,
    field: ReductionField | None = None,
    **facets: Any,
) -> Operator:
    """A row that joins all elements along dims.

    Without `field` and `triton` it joins them by the facets of `join`.
    """

    def folded(f: FieldAlgebra[V], a: V, axes: Axes) -> V:
        return f.fold(lambda x, y: join.on(f, x, y), a, axes)

    call = f"tl.reduce({{0}}, {{axis}}, {joining(join)})"
    facets.setdefault("term", Term.FUNCTION)
    facets.setdefault("in_steps", True)
    facets.setdefault("field_note", join.field_note)
    facets.setdefault("flops", join.flops)
    return row(
        Operator(
            name=name,
            kind=Kind.REDUCTION,
            arity=1,
            numpy=numpy,
            field=field or folded,
            triton=triton or call,
            torch=torch,
            attributes={"over": AttributeKind.DIMS},
            join=join,
            neutral=neutral,
            **facets,
        )
    )


def scan(
    name: str,
    numpy: Callable[[Array, int], Array],
    *,
    join: Operator,
    torch: str,
    field: ScanField | None = None,
) -> Operator:
    """A row that joins each element with all before it along an axis.

    Without `field` it joins them by that of `join`.
    """

    def scanned(f: FieldAlgebra[V], a: V, axis: int) -> V:
        return f.scan(lambda x, y: join.on(f, x, y), a, axis)

    return row(
        Operator(
            name=name,
            kind=Kind.SCAN,
            arity=1,
            numpy=numpy,
            field=field or scanned,
            field_note=join.field_note,
            term=Term.FUNCTION,
            triton=f"tl.associative_scan({{0}}, {{axis}}, {joining(join)})",
            torch=torch,
            flops=2 * join.flops,
            attributes={"along": AttributeKind.AXES},
            join=join,
            formats=Formats.ANY,
        )
    )


def shift(name: str, of: Operator, *, triton: str, torch: str) -> Operator:
    """A row that shifts exponents by the value of a reduction.

    Args:
        name: Of the row.
        of: The reduction; its neutral element is an infinity.
        triton: As of all rows; `neutral` where all is masked.
        torch: The same, but finite there.
    """
    assert of.join is not None
    assert of.neutral is not None
    return reduction(
        name,
        finite(of),
        join=of.join,
        neutral=of.neutral,
        field=lambda f, a, axes: f.shift(a, axes),
        field_note="a fresh random value at every site: no output may depend on it",
        triton=triton,
        torch=torch,
        selects=of.selects,
        in_steps=False,
        shift_of=of,
    )


def contraction(
    name: str,
    numpy: Callable[[Array, Array], Array],
    triton: str,
    *,
    torch: str,
    field: ContractionField,
    **facets: Any,
) -> Operator:
    """A row that sums products along dims."""
    return row(
        Operator(
            name=name,
            kind=Kind.CONTRACTION,
            arity=2,
            numpy=numpy,
            field=field,
            field_note=EXACT,
            term=Term.CONTRACT,
            triton=triton,
            torch=torch,
            flops=2.0,
            attributes={"over": AttributeKind.DIMS},
            commutative=True,
            **facets,
        )
    )


def concatenation(
    name: str, numpy: Callable[..., Array], *, torch: str, field: ConcatField
) -> Operator:
    """A row that joins its operands along dims; blocks take it apart."""
    return row(
        Operator(
            name=name,
            kind=Kind.CONCAT,
            arity=-1,
            numpy=numpy,
            field=field,
            field_note=EXACT,
            term=Term.FUNCTION,
            triton="",
            torch=torch,
            flops=0.0,
            attributes={"dims": AttributeKind.DIMS, "to": AttributeKind.NEW_DIM},
        )
    )


def library(
    name: str,
    torch: str,
    *numbers: str,
    work: WorkOf,
    arity: int = 1,
    flops: float = 1.0,
    carried: int = 1,
    part: str = "",
    shape: Callable[[str, Sequence[Shape], Numbers], Shape] | None = None,
    **facets: Any,
) -> Operator:
    """A row of what only PyTorch computes, in any generality.

    Its values, its shapes and its launch are all of the one expression `torch`, with
    PyTorch's own tensors: on the CPU, without data, and where the operands are.

    Args:
        name: Of the row.
        torch: The expression.
        numbers: Attributes that are integers.
        work: How often `flops` operations are made.
        arity: One operand, two, or any number (-1).
        flops: Operations.
        carried: Axes of the first operand along which each element is apart.
        part: What is taken of the expression's results.
        shape: What gives the result's shape by the expression, if not just PyTorch.
        facets: Others; integers that it `gives` are indices along the second axis of
            the first operand.
    """
    torch += part

    def unknown(f: ElementAlgebra[V], *operands: V) -> V:
        return f.oracle(name, *operands)

    return row(
        Operator(
            name=name,
            kind=Kind.LIBRARY,
            arity=arity,
            numpy=partial(_run_by_torch, torch),
            field=unknown,
            field_note="random oracle: a function of all elements of its operands",
            term=Term.FUNCTION,
            triton="",
            torch=torch,
            flops=flops,
            attributes=_library_attributes(arity, numbers),
            shape=partial(_shape_told, shape or shape_by_torch, torch),
            work=work,
            part=part,
            carried=carried,
            **facets,
        )
    )


def with_channels_last(plain: Operator, memory_format: str) -> Operator:
    """A row that computes the same with tensors whose channels lie last in memory.

    Operands that lie otherwise are copied first.

    Args:
        plain: The row, of two operands.
        memory_format: PyTorch's name of how such tensors lie.
    """
    moved = f".contiguous(memory_format={memory_format})"
    text = plain.torch.replace("{0}", "{0}" + moved).replace("{1}", "{1}" + moved)
    text += moved
    return row(
        replace(
            plain,
            name=f"{plain.name}_channels_last",
            numpy=partial(_run_by_torch, text),
            torch=text,
            channels_last_of=plain,
        )
    )


def _library_attributes(arity: int, numbers: Sequence[str]) -> dict[str, AttributeKind]:
    """The axes of operands and result, and the integers; of any number also ranks."""
    ranks = ("ranks",) if arity < 0 else ()
    return {
        **dict.fromkeys(("of", "by")[: abs(arity)], AttributeKind.AXES),
        "gives": AttributeKind.NEW_AXES,
        **dict.fromkeys((*ranks, *numbers), AttributeKind.INTEGERS),
    }


def _run_by_torch(text: str, *arrays: Array, **numbers: tuple[int, ...]) -> Array:
    """The value of a library operator's expression, on the CPU."""
    import torch

    # Torch's annotations leave arrays open.
    tensors = [
        torch.from_numpy(np.array(a))  # pyright: ignore[reportUnknownMemberType]
        for a in arrays
    ]
    return np.asarray(_by_torch(text, tensors, numbers).numpy())


@cache
def _shape_of_call(
    text: str, shapes: tuple[Shape, ...], numbers: tuple[tuple[str, Shape], ...]
) -> Shape:
    import torch

    # Methods of traced tensors come here from inside of the trace's function mode.
    with torch._C.DisableTorchFunction():
        tensors = [torch.empty(shape, device="meta") for shape in shapes]
        return tuple(_by_torch(text, tensors, dict(numbers)).shape)


_REFUSALS = (
    *(ArithmeticError, AssertionError, IndexError),
    *(RuntimeError, TypeError, ValueError),
)
"""What PyTorch raises at shapes and numbers that do not go together."""


def _shape_told(
    tell: Callable[[str, Sequence[Shape], Numbers], Shape],
    text: str,
    shapes: Sequence[Shape],
    numbers: Numbers,
) -> Shape:
    """What a function tells of a result's shape.

    Raises:
        CheckError: The shapes do not fit, or there are more or fewer numbers than axes.
    """
    try:
        return tell(text, shapes, numbers)
    except (IndexError, ValueError):
        said = " ".join(f"{n}({', '.join(map(str, v))})" for n, v in numbers.items())
        operands = " by ".join(map(str, shapes))
        raise CheckError(
            f"found {said} for {operands}, expected as many numbers each as PyTorch's "
            "function has axes to move along"
        ) from None


def shape_by_torch(text: str, shapes: Sequence[Shape], numbers: Numbers) -> Shape:
    """The shape that PyTorch gives, computed without data.

    Raises:
        CheckError: PyTorch refuses these shapes.
    """
    try:
        return _shape_of_call(text, tuple(shapes), tuple(sorted(numbers.items())))
    except _REFUSALS as error:
        reason = str(error).strip().partition("\n")[0]
        raise CheckError(f"PyTorch refuses these shapes: {reason}") from None


def _by_torch(text: str, tensors: Sequence[Any], numbers: Numbers) -> Any:
    import torch

    names = {f"x{i}": x for i, x in enumerate(tensors)}
    called = text.format(*names, operands=", ".join(names), **numbers)
    return eval(called, {"torch": torch, **names})


def gathering(
    name: str,
    numpy: Callable[[Array, Array, int], Array],
    *,
    torch: str,
    field: BinaryField,
) -> Operator:
    """A row that takes elements at indices that are data; a library kernel."""
    return row(
        Operator(
            name=name,
            kind=Kind.GATHER,
            arity=2,
            numpy=numpy,
            field=field,
            field_note=ON_INTEGERS,
            term=Term.FUNCTION,
            triton="",
            torch=torch,
            flops=0.5,
            attributes={"dim": AttributeKind.DIM},
            formats=Formats.ANY,
        )
    )


def joining(join: Operator) -> str:
    """The name of the function that an emitted module defines for a join."""
    return f"{JOIN_PREFIX}{join.name}"
