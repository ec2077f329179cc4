"""The operator table: everything the compiler knows of an operator is one row here.

Adding an operator is adding a row.  `tests/ops` holds each row's facets to each
other: dims to NumPy's, residues to integers, expansions to reference semantics.
"""

# Expansions and gradients are lambdas over any algebra; the laws in `tests/ops` hold
# them, types cannot.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType

import numpy as np

from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import (
    INTEGERS,
    bf16,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i64,
    scalar,
)
from mirage_dsl.ops import makers
from mirage_dsl.ops.definition import (
    AttributeKind,
    Formats,
    Kind,
    Numbers,
    Operator,
    Shape,
    Term,
    Truth,
    WorkOf,
)
from mirage_dsl.ops.makers import (
    ORACLE,
    ORDER,
    ROWS,
    binary,
    comparison,
    concatenation,
    contraction,
    conversion,
    gathering,
    integral,
    library,
    narrowing,
    reduction,
    rounding,
    scan,
    shift,
    ternary,
    unary,
    with_channels_last,
)

OPERATORS: Mapping[str, Operator] = MappingProxyType(ROWS)
"""All rows by name."""

_one, _half = scalar(1), scalar(0.5)
_NAN = "propagate_nan=tl.PropagateNan.ALL"
"""Triton's largest of a number and NaN is otherwise the number."""

# -- Arithmetic ------------------------------------------------------------------------

ADD = binary(
    "add",
    np.add,
    "{0} + {1}",
    torch="{0} + {1}",
    field=lambda f, a, b: f.add(a, b),
    term=Term.ADD,
    sign="+",
    commutative=True,
    gradient=lambda m, x, y, g: (g, g),
    formats=Formats.ANY,
)
SUB = binary(
    "sub",
    np.subtract,
    "{0} - {1}",
    torch="{0} - {1}",
    field=lambda f, a, b: f.sub(a, b),
    term=Term.SUB,
    sign="-",
    gradient=lambda m, x, y, g: (g, m.sub(m.constant(scalar(0)), g)),
    formats=Formats.ANY,
)
MUL = binary(
    "mul",
    np.multiply,
    "{0} * {1}",
    torch="{0} * {1}",
    field=lambda f, a, b: f.mul(a, b),
    term=Term.MUL,
    sign="*",
    truth=Truth.KEEPS,
    commutative=True,
    gradient=lambda m, x, y, g: (m.mul(g, x[1]), m.mul(g, x[0])),
    formats=Formats.ANY,
)
DIV = binary(
    "div",
    np.divide,
    "{0} / {1}",
    torch="{0} / {1}",
    field=lambda f, a, b: f.div(a, b),
    term=Term.DIV,
    flops=4.0,
    sign="/",
    gradient=lambda m, x, y, g: (
        m.div(g, x[1]),
        m.sub(m.constant(scalar(0)), m.div(m.mul(g, y), x[1])),
    ),
    domain=(0.25, 4.0),
)
MAXIMUM = binary(
    "maximum",
    np.maximum,
    f"tl.maximum({{0}}, {{1}}, {_NAN})",
    torch="torch.maximum({0}, {1})",
    field=lambda f, a, b: f.maximum(a, b),
    field_note=ORDER,
    truth=Truth.KEEPS,
    commutative=True,
    formats=Formats.ANY,
)
MINIMUM = binary(
    "minimum",
    np.minimum,
    f"tl.minimum({{0}}, {{1}}, {_NAN})",
    torch="torch.minimum({0}, {1})",
    field=lambda f, a, b: f.sub(
        f.constant(scalar(0)),
        f.maximum(f.sub(f.constant(scalar(0)), a), f.sub(f.constant(scalar(0)), b)),
    ),
    field_note=ORDER,
    truth=Truth.KEEPS,
    commutative=True,
    formats=Formats.ANY,
)
LESS = comparison("less", np.less, "<")
LESS_EQUAL = comparison("less_equal", np.less_equal, "<=")
EQUAL = comparison("equal", np.equal, "==")

WHERE = ternary(
    "where",
    lambda c, a, b: np.where(c != 0, a, b),
    "tl.where({0} != 0, {1}, {2})",
    torch="torch.where({0}, {1}, {2})",
    field=lambda f, c, a, b: f.choose(c, a, b),
    field_note=ORACLE,
    truth=Truth.KEEPS,
    formats=Formats.ANY,
    chooses=True,
)

# -- Functions -------------------------------------------------------------------------

EXP = unary(
    "exp",
    np.exp,
    f"tl.exp2({{0}} * {math.log2(math.e)})",
    torch="torch.exp({0})",
    field=lambda f, x: f.exp(x),
    flops=4.0,
    gradient=lambda m, x, y, g: (m.mul(g, y),),
)
LOG = unary(
    "log",
    np.log,
    "tl.log({0})",
    torch="torch.log({0})",
    flops=4.0,
    gradient=lambda m, x, y, g: (m.div(g, x[0]),),
    domain=(0.25, 4.0),
)
SQRT = unary(
    "sqrt",
    np.sqrt,
    "tl.sqrt({0})",
    torch="torch.sqrt({0})",
    field=lambda f, x: f.sqrt(x),
    flops=4.0,
    gradient=lambda m, x, y, g: (m.div(m.mul(g, m.constant(_half)), y),),
    domain=(0.25, 4.0),
)
ABS = unary(
    "abs",
    np.abs,
    "tl.abs({0})",
    torch="torch.abs({0})",
    formats=Formats.ANY,
    domain=(0.25, 4.0),
)
RELU = unary(
    "relu",
    lambda x: np.maximum(x, 0),
    f"tl.maximum({{0}}, 0.0, {_NAN})",
    torch="torch.relu({0})",
    field=lambda f, x: f.maximum(x, f.constant(scalar(0))),
    domain=(0.25, 4.0),
)
SIGMOID = unary(
    "sigmoid",
    makers.stable_sigmoid,
    "tl.sigmoid({0})",
    torch="torch.sigmoid({0})",
    field=makers.sigmoid_field,
    flops=8.0,
    gradient=lambda m, x, y, g: (m.mul(g, m.mul(y, m.sub(m.constant(_one), y))),),
)
TANH = unary(
    "tanh",
    np.tanh,
    "tanh({0})",
    torch="torch.tanh({0})",
    field=makers.tanh_field,
    flops=18.0,
    gradient=lambda m, x, y, g: (m.mul(g, m.sub(m.constant(_one), m.mul(y, y))),),
)
SILU = unary(
    "silu",
    lambda x: x * makers.stable_sigmoid(x),
    "{0} * tl.sigmoid({0})",
    torch="torch.nn.functional.silu({0})",
    field=lambda f, x: f.mul(x, makers.sigmoid_field(f, x)),
    flops=9.0,
    gradient=makers.silu_gradient,
)
ERF = unary(
    "erf",
    makers.erf,
    "tl.erf({0})",
    torch="torch.erf({0})",
    flops=12.0,
    gradient=lambda m, x, y, g: (m.mul(g, makers.bell(m, x[0])),),
)
GELU = unary(
    "gelu",
    lambda x: 0.5 * x * (1.0 + makers.erf(x * math.sqrt(0.5))),
    "0.5 * {0} * (1.0 + tl.erf({0} * 0.7071067811865476))",
    torch="torch.nn.functional.gelu({0})",
    flops=15.0,
)

POWER = binary(
    "power",
    np.power,
    "power({0}, {1})",
    torch="{0} ** {1}",
    field=lambda f, a, b: f.oracle("power", a, b),
    field_note=ORACLE,
    flops=60.0,
    domain=(0.25, 4.0),
)

LOG2 = unary(
    "log2",
    np.log2,
    "tl.log2({0})",
    torch="torch.log2({0})",
    field=makers.log2_field,
    field_note="exact but for `log`, which is an oracle",
    flops=4.0,
    gradient=lambda m, x, y, g: (
        m.div(m.mul(g, m.constant(scalar(1 / math.log(2)))), x[0]),
    ),
    domain=(0.25, 4.0),
)
LOG1P = unary(
    "log1p",
    np.log1p,
    "log1p({0})",
    torch="torch.log1p({0})",
    field=makers.log1p_field,
    field_note="exact but for `log`, which is an oracle",
    flops=16.0,
    gradient=lambda m, x, y, g: (m.div(g, m.add(m.constant(_one), x[0])),),
    domain=(-0.75, 4.0),
)
EXPM1 = unary(
    "expm1",
    np.expm1,
    "expm1({0})",
    torch="torch.expm1({0})",
    field=lambda f, x: f.sub(f.exp(x), f.constant(_one)),
    flops=16.0,
    gradient=lambda m, x, y, g: (m.mul(g, m.add(y, m.constant(_one))),),
)
SIN = unary("sin", np.sin, "tl.sin({0})", torch="torch.sin({0})", flops=8.0)
COS = unary("cos", np.cos, "tl.cos({0})", torch="torch.cos({0})", flops=8.0)
ATAN2 = binary(
    "atan2",
    np.arctan2,
    "atan2({0}, {1})",
    torch="torch.atan2({0}, {1})",
    field=lambda f, a, b: f.oracle("atan2", a, b),
    field_note=ORACLE,
    flops=80.0,
    gradient=lambda m, x, y, g: makers.atan2_gradient(m, x, g),
    domain=(0.25, 4.0),
)
FLOOR = unary("floor", np.floor, "tl.floor({0})", torch="torch.floor({0})", steps=True)
ROUND = unary(
    "round",
    np.rint,
    "round_even({0})",
    torch="torch.round({0})",
    flops=6.0,
    steps=True,
)
FMOD = binary(
    "fmod",
    np.fmod,
    "fmod({0}, {1})",
    torch="torch.fmod({0}, {1})",
    field=lambda f, a, b: f.oracle("fmod", a, b),
    field_note=ORACLE,
    flops=100.0,
    steps=True,
    domain=(0.25, 4.0),
)

OR_ONE = unary(
    "or_one",
    lambda x: np.where(x == 0, np.ones_like(x), x),
    "tl.where({0} == 0, 1.0, {0})",
    torch="torch.where({0} == 0, 1.0, {0})",
    field=makers.or_one_field,
    domain=(0.25, 4.0),
)
"""What a sum of exponentials is divided by: masked rows, which are 0, stay so."""

# -- Integers --------------------------------------------------------------------------

FLOOR_DIVIDE = integral(
    "floor_divide",
    np.floor_divide,
    "floor_divide({0}, {1})",
    torch="torch.div({0}, {1}, rounding_mode='floor')",
    flops=20.0,
)
REMAINDER = integral(
    "remainder",
    np.remainder,
    "remainder({0}, {1})",
    torch="torch.remainder({0}, {1})",
    flops=20.0,
)
BIT_AND = integral(
    "bit_and", np.bitwise_and, "{0} & {1}", torch="{0} & {1}", commutative=True
)
BIT_OR = integral(
    "bit_or", np.bitwise_or, "{0} | {1}", torch="{0} | {1}", commutative=True
)
BIT_XOR = integral(
    "bit_xor", np.bitwise_xor, "{0} ^ {1}", torch="{0} ^ {1}", commutative=True
)
SHIFT_LEFT = integral(
    "shift_left", np.left_shift, "{0} << {1}", torch="{0} << {1}", moves_bits=True
)
SHIFT_RIGHT = integral(
    "shift_right", np.right_shift, "{0} >> {1}", torch="{0} >> {1}", moves_bits=True
)
CONVERSIONS = {dtype: conversion(dtype) for dtype in (f32, f64, *INTEGERS)}
"""`to_i32` and so on: between integers and floats, by the format of the result.

Casts are between floats, and round; the search may leave them out, but never these.
"""

# -- Floats of 8 bits ------------------------------------------------------------------

NARROWINGS = {
    f8e4m3: narrowing(f8e4m3, "to_f8e4m3({0})", saturates=True),
    f8e5m2: narrowing(f8e5m2, "to_f8e5m2({0})", saturates=False),
}
"""`to_f8e4m3` and `to_f8e5m2`, which round; casts go back to other floats."""

# -- Roundings that show ---------------------------------------------------------------

ROUNDINGS = {dtype: rounding(dtype) for dtype in (f16, bf16)}
"""`round_f16` and `round_bf16`: what a narrowing cast does where a program sees it."""

# -- Derived rows: the search sees their expansions ------------------------------------

NEG = unary(
    "neg",
    np.negative,
    "-{0}",
    torch="-{0}",
    field=lambda f, x: f.sub(f.constant(scalar(0)), x),
    expansion=lambda m, x: m.mul(x, m.constant(scalar(-1))),
    gradient=lambda m, x, y, g: (m.sub(m.constant(scalar(0)), g),),
    formats=Formats.ANY,
)
SQUARE = unary(
    "square",
    np.square,
    "{0} * {0}",
    torch="{0} * {0}",
    field=lambda f, x: f.mul(x, x),
    truth=Truth.KEEPS,
    expansion=lambda m, x: m.mul(x, x),
    gradient=lambda m, x, y, g: (m.mul(g, m.add(x[0], x[0])),),
    formats=Formats.ANY,
)
RSQRT = unary(
    "rsqrt",
    lambda x: 1.0 / np.sqrt(x),
    "tl.rsqrt({0})",
    torch="torch.rsqrt({0})",
    field=lambda f, x: f.div(f.constant(_one), f.sqrt(x)),
    flops=4.0,
    expansion=lambda m, x: m.div(m.constant(_one), m.sqrt(x)),
    gradient=lambda m, x, y, g: (
        m.div(m.mul(m.mul(g, y), m.constant(scalar(-0.5))), x[0]),
    ),
    domain=(0.25, 4.0),
)

# -- Operators on dims -----------------------------------------------------------------

SUM = reduction(
    "sum",
    lambda a, axes: np.sum(a, axis=axes),
    join=ADD,
    neutral=0.0,
    field=lambda f, a, axes: f.sum(a, axes),
    term=Term.SUM,
    triton="tl.sum({0}, axis={axis})",
    torch="torch.sum({0}, {axes}, dtype={dtype})",
    formats=Formats.ANY,
)
MAX = reduction(
    "max",
    lambda a, axes: np.max(a, axis=axes),
    join=MAXIMUM,
    neutral=-math.inf,
    field=lambda f, a, axes: f.max(a, axes),
    torch="torch.amax({0}, {axes})",
    truth=Truth.KEEPS,
    selects=True,
    formats=Formats.ANY,
)
MIN = reduction(
    "min",
    lambda a, axes: np.min(a, axis=axes),
    join=MINIMUM,
    neutral=math.inf,
    field=makers.min_field,
    torch="torch.amin({0}, {axes})",
    truth=Truth.KEEPS,
    selects=True,
    formats=Formats.ANY,
)
PROD = reduction(
    "prod",
    lambda a, axes: np.prod(a, axis=axes),
    join=MUL,
    neutral=1.0,
    torch="prod_of({0}, {axes}, {dtype})",
    truth=Truth.KEEPS,
    formats=Formats.ANY,
)
CUMSUM = scan(
    "cumsum",
    lambda a, axis: np.cumsum(a, axis, dtype=a.dtype),
    join=ADD,
    torch="torch.cumsum({0}, {axis}, dtype={dtype})",
)
CUMPROD = scan(
    "cumprod",
    lambda a, axis: np.cumprod(a, axis, dtype=a.dtype),
    join=MUL,
    torch="torch.cumprod({0}, {axis}, dtype={dtype})",
)


def total_of(op: Operator) -> Operator | None:
    """The reduction made in steps that joins elements as a scan does; None for none."""
    return next(
        (
            row
            for row in OPERATORS.values()
            if row.kind is Kind.REDUCTION and row.in_steps and row.join is op.join
        ),
        None,
    )


ROWSHIFT = shift(
    "rowshift",
    MAX,
    triton="tl.max({0}, axis={axis})",
    torch="shift_of({0}, {axes})",
)
"""The shift that is put back: of what is exponentiated, whatever stood there before.

What a `RunningMax` has seen of it so far is a shift as well.
"""


def shift_rows() -> tuple[Operator, ...]:
    """The rows that shift exponents."""
    return tuple(o for o in OPERATORS.values() if o.shift_of is not None)


MATMUL = contraction(
    "matmul",
    np.matmul,
    "tl.dot({0}, {1})",
    torch="torch.matmul({0}, {1})",
    field=lambda f, a, b: f.matmul(a, b),
    sign="@",
    join=ADD,
)
CAST = makers.view(
    "cast",
    "{0}.to({dtype})",
    {"dtype": AttributeKind.DTYPE},
    term=Term.IDENTITY,
    field_note="rounding is outside of the algebra; stability measures it",
    triton="{0}.to({dtype})",
    flops=0.5,
)
RENAME = makers.view(
    "rename",
    "{0}",
    {"dims": AttributeKind.DIMS, "to": AttributeKind.NEW_DIMS},
    term=Term.IDENTITY,
)
SLICE = makers.view(
    "slice",
    "{0}.narrow({axis}, {start}, {count})",
    {
        "dim": AttributeKind.DIM,
        "start": AttributeKind.INTEGER,
        "stop": AttributeKind.INTEGER,
        "to": AttributeKind.NEW_DIM,
    },
)
INSERT = makers.view(
    "insert",
    "{0}.unsqueeze(0)",
    {"to": AttributeKind.NEW_DIM},
    term=Term.IDENTITY,
)
FLATTEN = makers.view(
    "flatten",
    "{0}.flatten({axis}, {last})",
    {"of": AttributeKind.AXES, "to": AttributeKind.NEW_DIM},
)
UNFLATTEN = makers.view(
    "unflatten",
    "{0}.unflatten({axis}, {sizes})",
    {"dim": AttributeKind.DIM, "gives": AttributeKind.NEW_AXES},
)
GATHER = gathering(
    "gather",
    makers.gathered,
    torch="gathered({0}, {1}, {axis})",
    # To algebras that know no elements: one of `a`, and `b` decides which one.
    field=lambda f, a, b: f.choose(b, a, a),
)
CONCAT = concatenation(
    "concat",
    lambda axis, *arrays: np.concatenate(arrays, axis),
    torch="torch.cat(({operands},), {axis})",
    field=lambda f, axis, *arrays: f.concat(axis, *arrays),
)

# -- What only PyTorch computes --------------------------------------------------------
# Operands are batches; `gives` has the axes of the result.  Biases are added behind.


def _each_of(operand: int) -> WorkOf:
    """A product for each element of a tensor and what a kernel holds for it."""

    def work(shapes: Sequence[Shape], numbers: Numbers, result: Shape) -> float:
        del numbers
        tensors = (*shapes, result)
        return math.prod(tensors[operand]) * math.prod(tensors[1][1:])

    return work


def _each_window(shapes: Sequence[Shape], numbers: Numbers, result: Shape) -> float:
    """An operation for each element of each window."""
    del shapes
    return math.prod(result) * math.prod(numbers["kernel"])


def _each_element(shapes: Sequence[Shape], numbers: Numbers, result: Shape) -> float:
    """An operation for each element that is read or made."""
    del numbers
    return math.prod(shapes[0]) + math.prod(result)


def _each_step(shapes: Sequence[Shape], numbers: Numbers, result: Shape) -> float:
    """A product for each weight in each step of each sequence."""
    del numbers, result
    return math.prod(shapes[0][:2]) * sum(math.prod(s) for s in shapes if len(s) == 2)


def _of_steps(text: str, shapes: Sequence[Shape], numbers: Numbers) -> Shape:
    """The shape of a recurrent layer's result, of which PyTorch makes one step.

    Raises:
        CheckError: The shapes do not fit.
    """
    x, *rest = shapes
    batch = x[1]
    states = [s for s in rest if len(s) == 3]
    if any(s[1] != batch for s in states):
        raise CheckError(f"states {states} of another batch than {batch}")
    steps = [(1, 1, s[2]) if s is x else (s[0], 1, s[2]) for s in (x, *states)]
    weights = [s for s in rest if len(s) != 3]
    found = makers.shape_by_torch(text, (*steps, *weights), numbers)
    made = (found[0], batch) if text.endswith(("[1]", "[2]")) else x[:2]
    return (*made, found[2])


def _convolved(text: str, shapes: Sequence[Shape], numbers: Numbers) -> Shape:
    """The shape of a convolution, which PyTorch loads a package for that takes seconds.

    Raises:
        CheckError: The shapes do not fit.
    """
    del text
    (batch, channels, *_), (made, taken, *_) = shapes
    (groups,) = numbers["groups"]
    if groups < 1 or channels != groups * taken or made % groups:
        raise CheckError(
            f"weights {shapes[1]} in groups={groups} are for {groups * taken} "
            f"channels, and each group makes as many: found {channels}, and {made} made"
        )
    found = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1 if min(s, d, k, p + 1) > 0 else 0
        for n, k, s, p, d in _axes_of_windows(shapes, numbers)
    ]
    return _with_windows("a convolution", (batch, made, *found), shapes, numbers)


def _axes_of_windows(
    shapes: Sequence[Shape], numbers: Numbers, *more: str
) -> Iterator[tuple[int, ...]]:
    """Of each axis the extent, the window, its stride, padding and dilation, and more.

    Windows are those of the second operand, behind its first two axes.
    """
    names = ("stride", "padding", "dilation", *more)
    given = (numbers[name] for name in names)
    return zip(shapes[0][2:], shapes[1][2:], *given, strict=True)


def _with_windows(
    what: str, found: Shape, shapes: Sequence[Shape], numbers: Numbers
) -> Shape:
    """The shape of what windows make, if there is one along each axis.

    Raises:
        CheckError: There is none.
    """
    if min(found[2:]) < 1:
        raise CheckError(_no_window(what, shapes, numbers))
    return found


def _convolved_back(text: str, shapes: Sequence[Shape], numbers: Numbers) -> Shape:
    """The shape of a transposed convolution, as `_convolved` of a plain one.

    Raises:
        CheckError: The shapes do not fit.
    """
    del text
    (batch, channels, *_), (taken, made, *_) = shapes
    (groups,) = numbers["groups"]
    if groups < 1 or channels != taken or taken % groups:
        raise CheckError(
            f"weights {shapes[1]} in groups={groups} are for {taken} channels, as many "
            f"in each group: found {channels}"
        )
    found = [
        (n - 1) * s - 2 * p + d * (k - 1) + more + 1
        if min(s, d, k, p + 1, more + 1) > 0 and more < max(s, d)
        else 0
        for n, k, s, p, d, more in _axes_of_windows(shapes, numbers, "output_padding")
    ]
    shape = (batch, groups * made, *found)
    return _with_windows("a transposed convolution", shape, shapes, numbers)


def _pooled(text: str, shapes: Sequence[Shape], numbers: Numbers) -> Shape:
    """The shape of what pooling makes, as `_convolved` of a convolution.

    PyTorch is asked where its versions, or its kinds of pooling, differ in what they
    refuse: windows longer than an axis, and much padding.

    Raises:
        CheckError: The shapes do not fit.
    """
    batch, channels, *extents = shapes[0]
    ones = (1,) * len(extents)
    given = (numbers[n] for n in ("kernel", "stride", "padding"))
    axes = list(zip(extents, *given, numbers.get("dilation", ones), strict=True))
    if any(min(s, d, k, p + 1) < 1 or 2 * p > k or n < k for n, k, s, p, d in axes):
        return makers.shape_by_torch(text, shapes, numbers)
    up = bool(numbers["ceil"][0])
    found = [_windows(*axis, up=up) for axis in axes]
    return _with_windows("pooling", (batch, channels, *found), shapes, numbers)


def _windows(n: int, k: int, s: int, p: int, d: int, *, up: bool) -> int:
    """How many windows there are; rounded up, one may end outside, but begin inside."""
    found = (n + 2 * p - d * (k - 1) - 1 + (s - 1) * up) // s + 1
    return found - (up and (found - 1) * s >= n + p)


def _no_window(what: str, shapes: Sequence[Shape], numbers: Numbers) -> str:
    said = ", ".join(f"{name}={value}" for name, value in numbers.items())
    operands = " by ".join(map(str, shapes))
    return f"{what} of {operands} has no window inside with {said}"


def _of_unknowns(text: str, shapes: Sequence[Shape], numbers: Numbers) -> Shape:
    """The shape of solutions, a column for each right side.

    Raises:
        CheckError: Matrices and right sides have not as many rows.
    """
    del text, numbers
    matrices, sides = shapes
    if matrices[:2] != sides[:2]:
        raise CheckError(f"matrices {matrices} with right sides {sides}")
    return (matrices[0], matrices[2], sides[2])


def _of_sequences(text: str, shapes: Sequence[Shape], numbers: Numbers) -> Shape:
    """A number for each sequence, which are the second axis of the first operand.

    Raises:
        CheckError: The operands are not of as many sequences.
    """
    del text, numbers
    x, targets, *lengths = shapes
    batch = x[1]
    if len(x) != 3 or any(n != (batch,) for n in lengths):
        raise CheckError(f"lengths {lengths} of {batch} sequences")
    if len(targets) > 1 and targets[0] != batch:
        raise CheckError(f"targets {targets} of {batch} sequences")
    return (batch,)


def _each_alignment(shapes: Sequence[Shape], numbers: Numbers, result: Shape) -> float:
    """An operation for each step, and each label with a blank beside it."""
    del numbers, result
    return math.prod(shapes[0]) + 2 * shapes[0][0] * math.prod(shapes[1])


def _each_column(shapes: Sequence[Shape], numbers: Numbers, result: Shape) -> float:
    """An operation for each element of a matrix and each of its columns."""
    del numbers, result
    return math.prod(shapes[0]) * shapes[0][-1]


_POOLED = 40.0
"""What PyTorch's pooling spends on an element of a window, and more than memory takes:
an H100 gets through 0.6 to 0.84 of 10**12 a second, of one to three axes."""

_SORTED = 32.0
"""Operations on an element that is sorted among thousands."""

_SPECIAL = 40.0
"""Operations on an element that goes through a series or a quotient of polynomials."""

SPECIAL = (
    *("airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "digamma"),
    *("erfc", "erfcx", "erfinv", "gammaln", "i0", "i0e", "i1", "i1e", "log_ndtr"),
    *(f"modified_bessel_{kind}" for kind in ("i0", "i1", "k0", "k1")),
    *("ndtr", "ndtri", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1"),
    "spherical_bessel_j0",
)
"""Rows by the names of `torch.special`."""

SPECIAL_OF_TWO = (
    *(f"chebyshev_polynomial_{kind}" for kind in "tuvw"),
    *(f"shifted_chebyshev_polynomial_{kind}" for kind in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l"),
    *("legendre_polynomial_p", "gammainc", "gammaincc", "zeta"),
)
"""The same of two tensors."""

_F = "torch.nn.functional."
_SCALED = {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}
"""How PyTorch interpolates between so many neighbours, but for the nearest ones."""

_LAST = {2: "torch.channels_last", 3: "torch.channels_last_3d"}
"""PyTorch's names of how tensors lie whose channels are last in memory."""

_EXTENTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "": ("{size}", ("size",)),
    "_by": (
        "scale_factor=[a / b for a, b in zip({over}, {under})]",
        ("over", "under"),
    ),
}
"""How the extents of a result are told: as they are, or by factors that are quotients
of integers, by which PyTorch also finds where the neighbours are."""


def _interpolation(mode: str, rank: int) -> None:
    """The rows of a way to interpolate over so many axes.

    Of planes there are those that take means of more neighbours where there are fewer
    results than elements.
    """
    exact = mode.startswith("nearest")
    corners = "" if exact else ", align_corners=bool({corners[0]})"
    name = f"upsample_{mode.replace('-', '_')}{rank}d"
    means = ("", "_of_means") if mode in ("bilinear", "bicubic") else ("",)
    for (by, (told, numbers)), mean in product(_EXTENTS.items(), means):
        antialias = ", antialias=True" if mean else ""
        library(
            name + by + mean,
            f'{_F}interpolate({{0}}, {told}, mode="{mode}"{corners}{antialias})',
            *(numbers if exact else (*numbers, "corners")),
            work=_each_element,
            flops=1.0 if exact else 8.0,
            carried=2,
        )


for _rank in (1, 2, 3):
    _conv = library(
        f"conv{_rank}d",
        f"{_F}conv{_rank}d({{0}}, {{1}}, None, {{stride}}, {{padding}}, {{dilation}}, "
        "{groups[0]})",
        *("stride", "padding", "dilation", "groups"),
        arity=2,
        work=_each_of(2),
        flops=2.0,
        on_matrix_units=True,
        shape=_convolved,
        convolves=True,
    )
    _transposed = library(
        f"conv_transpose{_rank}d",
        f"{_F}conv_transpose{_rank}d({{0}}, {{1}}, None, {{stride}}, {{padding}}, "
        "{output_padding}, {groups[0]}, {dilation})",
        *("stride", "padding", "output_padding", "dilation", "groups"),
        arity=2,
        work=_each_of(0),
        flops=2.0,
        on_matrix_units=True,
        shape=_convolved_back,
    )
    if _rank in _LAST:
        for _plain in (_conv, _transposed):
            with_channels_last(_plain, _LAST[_rank])
    library(
        f"max_pool{_rank}d",
        f"{_F}max_pool{_rank}d({{0}}, {{kernel}}, {{stride}}, {{padding}}, "
        "{dilation}, bool({ceil[0]}))",
        *("kernel", "stride", "padding", "dilation", "ceil"),
        work=_each_window,
        flops=_POOLED,
        carried=2,
        shape=_pooled,
        pools=MAX,
    )
    library(
        f"avg_pool{_rank}d",
        f"{_F}avg_pool{_rank}d({{0}}, {{kernel}}, {{stride}}, {{padding}}, "
        "bool({ceil[0]}), bool({padded[0]}))",
        *("kernel", "stride", "padding", "ceil", "padded"),
        work=_each_window,
        flops=_POOLED,
        carried=2,
        shape=_pooled,
        pools=SUM,
    )
    for _suffix, _part in (("found", "[0]"), ("places", "[1]")):
        library(
            f"max_pool{_rank}d_{_suffix}",
            f"{_F}max_pool{_rank}d({{0}}.unflatten(1, {{plane}}), {{kernel}}, "
            "{stride}, {padding}, {dilation}, bool({ceil[0]}), True)",
            *("plane", "kernel", "stride", "padding", "dilation", "ceil"),
            work=_each_window,
            flops=_POOLED,
            gives=i64 if _suffix == "places" else None,
            part=f"{_part}.flatten(1)",
        )
        library(
            f"adaptive_max_pool{_rank}d_{_suffix}",
            f"{_F}adaptive_max_pool{_rank}d({{0}}.unflatten(1, {{plane}}), {{size}}, "
            "True)",
            *("plane", "size"),
            work=_each_element,
            gives=i64 if _suffix == "places" else None,
            part=f"{_part}.flatten(1)",
        )
    for _pool in ("avg", "max"):
        library(
            f"adaptive_{_pool}_pool{_rank}d",
            f"{_F}adaptive_{_pool}_pool{_rank}d({{0}}, {{size}})",
            "size",
            work=_each_element,
            carried=2,
        )
    for _mode in ("nearest", "nearest-exact", *_SCALED[_rank]):
        _interpolation(_mode, _rank)

library(
    "fold",
    f"{_F}fold({{0}}, {{size}}, {{kernel}}, {{dilation}}, {{padding}}, {{stride}})",
    *("size", "kernel", "dilation", "padding", "stride"),
    work=_each_element,
)
for _mode in ("bilinear", "nearest", "bicubic"):
    library(
        f"grid_sample_{_mode}",
        f'{_F}grid_sample({{0}}, {{1}}, "{_mode}", '
        '("zeros", "border", "reflection")[{padding[0]}], bool({corners[0]}))',
        *("padding", "corners"),
        arity=2,
        work=_each_element,
        flops=32.0,
    )

# Along the second of three axes: what is before it, it, and what is behind.  Orders are
# those of equal elements too, but for the largest ones.

library("flip", "torch.flip({0}, (1,))", work=_each_element, formats=Formats.ANY)
for _name, _call, _numbers in (
    (
        "sort",
        "torch.sort({0}, stable=True, dim=1, descending=bool({descending[0]}))",
        ("descending",),
    ),
    ("topk", "torch.topk({0}, {k[0]}, 1, bool({largest[0]}))", ("k", "largest")),
    ("kthvalue", "torch.kthvalue({0}, {k[0]}, 1, True)", ("k",)),
    ("median", "torch.median({0}, 1, True)", ()),
    ("mode", "torch.mode({0}, 1, True)", ()),
    ("cummax", "torch.cummax({0}, 1)", ()),
    ("cummin", "torch.cummin({0}, 1)", ()),
):
    for _prefix, _part in (("", ".values"), ("arg", ".indices")):
        library(
            _prefix + _name,
            _call,
            *_numbers,
            work=_each_element,
            flops=_SORTED,
            formats=Formats.ANY,
            gives=i64 if _prefix else None,
            part=_part,
        )

library(
    "logcumsumexp", "torch.logcumsumexp({0}, 1)", work=_each_element, flops=_SPECIAL
)

# Functions of each element apart, that only PyTorch computes as precisely as it does.

for _name in SPECIAL:
    library(_name, f"torch.special.{_name}({{0}})", work=_each_element, flops=_SPECIAL)
for _name in SPECIAL_OF_TWO:
    library(
        _name,
        f"torch.special.{_name}({{0}}, {{1}})",
        arity=2,
        work=_each_element,
        flops=_SPECIAL,
    )
library(
    "gcd",
    "torch.gcd({0}, {1})",
    arity=2,
    work=_each_element,
    flops=_SPECIAL,
    formats=Formats.INTEGERS,
)
library(
    "polygamma",
    "torch.special.polygamma({n[0]}, {0})",
    "n",
    work=_each_element,
    flops=_SPECIAL,
)

# Inverses and factors of batches of matrices, the last two of three axes, with how many
# operations each column costs each element, about.

for _call, _results, _numbers, _flops in (
    ("inv({0})", {"inv": ""}, (), 2.0),
    ("det({0})", {"det": ""}, (), 0.7),
    (
        "slogdet({0})",
        {"slogdet_sign": ".sign", "slogdet": ".logabsdet"},
        (),
        0.7,
    ),
    ("cholesky({0}, upper=bool({upper[0]}))", {"cholesky": ""}, ("upper",), 0.3),
    (
        "qr({0}, ('reduced', 'complete')[{whole[0]}])",
        {"qr_q": ".Q", "qr_r": ".R"},
        ("whole",),
        4.0,
    ),
    (
        "svd({0}, bool({whole[0]}))",
        {"svd_u": ".U", "svd_s": ".S", "svd_v": ".Vh"},
        ("whole",),
        16.0,
    ),
    ("svdvals({0})", {"svdvals": ""}, (), 8.0),
    (
        "eigh({0}, 'LU'[{upper[0]}])",
        {"eigh": ".eigenvalues", "eigh_vectors": ".eigenvectors"},
        ("upper",),
        9.0,
    ),
    ("eigvalsh({0}, 'LU'[{upper[0]}])", {"eigvalsh": ""}, ("upper",), 4.0),
    ("matrix_exp({0})", {"matrix_exp": ""}, (), 16.0),
    (
        "lu({0}, pivot=bool({pivot[0]}))",
        {"lu_p": ".P", "lu_l": ".L", "lu_u": ".U"},
        ("pivot",),
        0.7,
    ),
):
    for _name, _part in _results.items():
        library(
            _name,
            f"torch.linalg.{_call}",
            *_numbers,
            work=_each_column,
            flops=_flops,
            part=_part,
        )
for _name, _call, _numbers in (
    ("solve", "solve({0}, {1})", ()),
    (
        "solve_triangular",
        "solve_triangular({0}, {1}, upper=bool({upper[0]}), left=bool({left[0]}), "
        "unitriangular=bool({ones[0]}))",
        ("upper", "left", "ones"),
    ),
):
    library(
        _name,
        f"torch.linalg.{_call}",
        *_numbers,
        arity=2,
        work=_each_column,
        flops=2.0,
    )

library(
    "lstsq",
    "torch.linalg.lstsq({0}, {1})",
    arity=2,
    work=_each_column,
    flops=4.0,
    part=".solution",
    shape=_of_unknowns,
)

# Fourier transforms of so many elements along the second of three axes, of real tensors
# and of pairs of them; results are pairs of parts, each a row, or real.


def _each_halving(shapes: Sequence[Shape], numbers: Numbers, result: Shape) -> float:
    """An operation for each element and each time that the axis can be halved."""
    del shapes
    return math.prod(result) * math.log2(max(2, *numbers["n"]))


for _name, _arity in (("fft", 2), ("ifft", 2), ("rfft", 1), ("irfft", 2)):
    _operand = "torch.complex({0}, {1})" if _arity == 2 else "{0}"
    for _part in ("",) if _name == "irfft" else ("real", "imag"):
        library(
            f"{_name}_{_part}" if _part else _name,
            f"torch.fft.{_name}({_operand}, {{n[0]}}, 1)",
            "n",
            arity=_arity,
            work=_each_halving,
            flops=5.0,
            part=f".{_part}" if _part else "",
        )

# Elements summed at indices along the second of three axes: elements and indices.  What
# is joined otherwise is 0 where no index is.

for _name, _call in (
    ("index_sum", "index_add"),
    ("scatter_sum", "scatter_add"),
    ("scatter_last", "scatter"),
):
    library(
        _name,
        "torch.zeros(({0}.shape[0], {size[0]}, {0}.shape[2]), dtype={0}.dtype, "
        f"device={{0}}.device).{_call}(1, {{1}}.long(), {{0}})",
        "size",
        arity=2,
        work=_each_element,
        formats=Formats.ANY,
        indexed=True,
    )

for _kind, _spread in (("index", "[None, :, None].expand_as({0})"), ("scatter", "")):
    for _join in ("amax", "amin", "prod"):
        library(
            f"{_kind}_{_join}",
            "torch.zeros(({0}.shape[0], {size[0]}, {0}.shape[2]), dtype={0}.dtype, "
            f"device={{0}}.device).scatter_reduce(1, {{1}}.long(){_spread}, {{0}}, "
            f'"{_join}", include_self=False)',
            "size",
            arity=2,
            work=_each_element,
            formats=Formats.ANY,
            indexed=True,
        )

# Steps of sequences, the labels that they are to give, and how many count of either:
# integers in the format of the first.

library(
    "ctc_loss",
    f"{_F}ctc_loss(({{operands}},)[:1][0], "
    "*[n.long() for n in ({operands},)[1:]], {blank[0]}, 'none', bool({infinite[0]}))",
    *("blank", "infinite"),
    arity=-1,
    work=_each_alignment,
    flops=8.0,
    carried=0,
    shape=_of_sequences,
)

# Recurrent layers: the input, the states, then the weights of each layer.  On a GPU the
# states and the weights have to be contiguous.

_ONE_STATE = "({operands},)[1:2][0].contiguous()"
for _name, _states, _results in (
    (
        "lstm",
        "[s.contiguous() for s in ({operands},)[1:3]]",
        ("lstm", "lstm_state", "lstm_memory"),
    ),
    *((n, _ONE_STATE, (n, f"{n}_state")) for n in ("gru", "rnn_tanh", "rnn_relu")),
):
    _weights = "[3:]" if _name == "lstm" else "[2:]"
    for _at, _result in enumerate(_results):
        library(
            _result,
            f"torch.{_name}(({{operands}},)[:1][0], {_states}, "
            f"[w.contiguous() for w in ({{operands}},){_weights}], "
            "bool({biased[0]}), {layers[0]}, 0.0, "
            "False, bool({bidirectional[0]}), False)",
            *("biased", "layers", "bidirectional"),
            arity=-1,
            work=_each_step,
            flops=2.0,
            carried=0,
            on_matrix_units=True,
            part=f"[{_at}]",
            shape=_of_steps,
        )

CHANNELS_LAST: Mapping[Operator, Operator] = MappingProxyType(
    {o.channels_last_of: o for o in OPERATORS.values() if o.channels_last_of}
)
"""The rows with channels last, by those that they compute the same as."""
