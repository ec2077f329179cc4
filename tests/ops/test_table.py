"""Laws that hold the facets of every row of the operator table to each other."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import string
from collections.abc import Callable, Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mirage_dsl.backends.library import HELPERS
from mirage_dsl.backends.triton.lowering.emit import FUNCTIONS, functions_called
from mirage_dsl.core.types import Dim, MemorySpace, Scalar, f32, flat_type
from mirage_dsl.ir.graph import Apply
from mirage_dsl.ir.infer import apply_type
from mirage_dsl.ops.definition import AttributeKind, Kind, Operator
from mirage_dsl.ops.makers import joining
from mirage_dsl.ops.table import OPERATORS
from tests.ops.kinds import is_of_floats

Array = NDArray[Any]
ROWS = list(OPERATORS.values())
ELEMENTWISE = [o for o in ROWS if is_of_floats(o)]
REDUCTIONS = [o for o in ROWS if o.kind is Kind.REDUCTION]
SCANS = [o for o in ROWS if o.kind is Kind.SCAN]
CONTRACTIONS = [o for o in ROWS if o.kind is Kind.CONTRACTION]
WITHOUT_GRADIENT = {
    *("less", "less_equal", "equal"),
    # These need a comparison, a logarithm or the error function, which the algebra of
    # gradients does not have.
    *("maximum", "minimum", "where", "abs", "relu", "gelu", "power", "or_one"),
    # Of these it is another function that the algebra has not, or 0 almost everywhere.
    *("sin", "cos", "floor", "round", "fmod", "round_f16", "round_bf16"),
}


class Floats:
    """The algebra of expansions and gradients, over NumPy arrays."""

    add = staticmethod(np.add)
    sub = staticmethod(np.subtract)
    mul = staticmethod(np.multiply)
    div = staticmethod(np.divide)
    exp = staticmethod(np.exp)
    sqrt = staticmethod(np.sqrt)
    maximum = staticmethod(np.maximum)

    def constant(self, value: Scalar) -> float:
        return value.at({})


def named(rows: list[Operator]) -> Any:
    return pytest.mark.parametrize("op", rows, ids=lambda o: o.name)


def operands_of(op: Operator, shape: tuple[int, ...] = (5, 7)) -> list[Array]:
    """Random operands in the row's domain, away from its ends."""
    rng = np.random.default_rng(len(op.name))
    low, high = op.domain
    gap = 0.05 * (high - low)
    return [rng.uniform(low + gap, high - gap, shape) for _ in range(op.arity)]


def typed(names: str) -> Any:
    return flat_type(f32, tuple(map(Dim, names)), MemorySpace.DEVICE)


# -- Names and attributes --------------------------------------------------------------


@named(ROWS)
def test_names_are_words(op: Operator) -> None:
    assert op.name.isidentifier()
    assert OPERATORS[op.name] is op
    assert all(a.isidentifier() for a in op.attributes)


def test_signs_stand_for_one_row_each() -> None:
    signs = [o.sign for o in ROWS if o.sign is not None]
    assert len(signs) == len(set(signs))
    assert {"+", "-", "*", "/", "@", "<", "<=", "=="} == set(signs)


@named([*REDUCTIONS, *CONTRACTIONS])
def test_sums_name_their_dims(op: Operator) -> None:
    assert op.attributes == {"over": AttributeKind.DIMS}


@named(ROWS)
def test_cost(op: Operator) -> None:
    views = ("rename", "slice", "insert", "flatten", "unflatten")
    moves_only = op.kind is Kind.CONCAT or op.name in views
    assert op.flops == 0 if moves_only else op.flops > 0


# -- Types -----------------------------------------------------------------------------

SIZES = {"b": 2, "m": 3, "k": 5, "n": 4}


@named(ELEMENTWISE)
def test_broadcast_is_that_of_numpy(op: Operator) -> None:
    names = ["bmn", "mn", "n"][: op.arity]
    node = Apply("y", op, tuple(names))
    inferred = apply_type(node, [typed(n) for n in names], in_block=False)
    arrays = [np.full([SIZES[d] for d in n], 0.5) for n in names]
    assert op.numpy(*arrays).shape == tuple(SIZES[d] for d in inferred.names)


@named(REDUCTIONS)
@pytest.mark.parametrize("over", ["m", "bk", "bmk"])
def test_reduction_drops_its_axes(op: Operator, over: str) -> None:
    node = Apply("y", op, ("x",), (("over", tuple(over)),))
    inferred = apply_type(node, [typed("bmk")], in_block=False)
    axes = tuple("bmk".index(d) for d in over)
    found = op.numpy(np.zeros([SIZES[d] for d in "bmk"]), axes)
    assert found.shape == tuple(SIZES[d] for d in inferred.names)


@named(CONTRACTIONS)
def test_contraction_is_batched(op: Operator) -> None:
    node = Apply("y", op, ("x", "w"), (("over", ("k",)),))
    inferred = apply_type(node, [typed("bmk"), typed("bkn")], in_block=False)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal([SIZES[d] for d in n]) for n in ("bmk", "bkn"))
    found = op.numpy(x, w)
    assert found.shape == tuple(SIZES[d] for d in inferred.names)
    np.testing.assert_allclose(found, np.einsum("bmk,bkn->bmn", x, w))


@named(ELEMENTWISE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_is_kept(op: Operator, dtype: type) -> None:
    found = op.numpy(*(a.astype(dtype) for a in operands_of(op)))
    assert found.dtype == dtype


@named(REDUCTIONS)
def test_reduction_keeps_the_dtype(op: Operator) -> None:
    assert op.numpy(np.ones((2, 3), np.float32), (1,)).dtype == np.float32


# -- Values ----------------------------------------------------------------------------


@named([o for o in ROWS if o.expansion is not None])
def test_expansion_is_the_same_function(op: Operator) -> None:
    assert op.expansion is not None
    operands = operands_of(op)
    expanded = op.expansion(Floats(), *operands)
    np.testing.assert_allclose(expanded, op.numpy(*operands), rtol=1e-12)


@named([o for o in ELEMENTWISE if o.arity == 2])
def test_commutative_rows_and_no_others(op: Operator) -> None:
    a, b = operands_of(op)
    symmetric = np.array_equal(op.numpy(a, b), op.numpy(b, a))
    assert symmetric or not op.commutative
    # Over residues, `equal` is an oracle keyed on its operands in their order.
    assert op.commutative or not symmetric or op.name == "equal"


@named([o for o in ELEMENTWISE if o.name not in WITHOUT_GRADIENT])
def test_gradient_is_the_slope(op: Operator) -> None:
    assert op.gradient is not None
    operands = operands_of(op)
    upstream = np.random.default_rng(1).standard_normal(operands[0].shape)
    result = op.numpy(*operands)
    found = op.gradient(Floats(), operands, result, upstream)
    assert len(found) == op.arity
    step = 1e-5
    for i, gradient in enumerate(found):
        sides = []
        for sign in (1, -1):
            moved = list(operands)
            moved[i] = moved[i] + sign * step
            sides.append(op.numpy(*moved))
        slope = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(gradient, upstream * slope, rtol=1e-5, atol=1e-8)


@named([o for o in ELEMENTWISE if o.name in WITHOUT_GRADIENT])
def test_rows_said_to_have_no_gradient_have_none(op: Operator) -> None:
    assert op.gradient is None


@pytest.mark.parametrize("name", ["sigmoid", "silu", "gelu", "tanh", "relu", "erf"])
def test_activations_stay_finite_far_out(name: str) -> None:
    far = np.array([-1e4, -100.0, 0.0, 100.0, 1e4], np.float32)
    assert np.isfinite(OPERATORS[name].numpy(far)).all()


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1e-3, 0.1, 1.0, 3.0, 10.0])
def test_erf_is_that_of_the_standard_library(scale: float) -> None:
    places = scale * np.random.default_rng(3).normal(size=5000)
    exact = np.array([math.erf(place) for place in places])
    found = OPERATORS["erf"].numpy(places)
    assert (np.abs(found - exact) <= 2 * np.spacing(np.abs(exact))).all()


def test_erf_of_what_is_no_number() -> None:
    places = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
    found = OPERATORS["erf"].numpy(places)
    np.testing.assert_array_equal(found, [np.nan, 1.0, -1.0, 0.0, -0.0])
    assert np.signbit(found[4])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_shift_of_a_masked_row_is_finite_and_low(dtype: type) -> None:
    rows = np.array([[-np.inf, -np.inf], [-3000.0, 3.0]], dtype)
    masked, seen = OPERATORS["rowshift"].numpy(rows, (1,))
    assert np.isfinite(masked)
    assert masked < -3000
    assert seen == 3


# -- Emission --------------------------------------------------------------------------


class Tile(np.ndarray):
    """An array with Triton's way to cast."""

    def to(self, dtype: Any) -> Array:
        return self.astype(dtype)


class PropagateNan(Enum):
    """Whether the larger of a number and NaN is NaN."""

    NONE = np.fmax, np.fmin
    ALL = np.maximum, np.minimum


class Language:
    """`triton.language` on arrays: NumPy's functions, and those that it lacks."""

    PropagateNan = PropagateNan
    bfloat16 = ml_dtypes.bfloat16

    def __getattr__(self, name: str) -> Any:
        return np.float64 if name == "float32" else getattr(np, name)

    @staticmethod
    def cast(x: Array, dtype: Any) -> Array:
        return x.astype(dtype)

    @staticmethod
    def rsqrt(x: Array) -> Array:
        return 1 / np.sqrt(x)

    @staticmethod
    def sigmoid(x: Array) -> Array:
        return 1 / (1 + np.exp(-x))

    @staticmethod
    def maximum(x: Array, y: Array, propagate_nan: Any = PropagateNan.NONE) -> Array:
        return propagate_nan.value[0](x, y)

    @staticmethod
    def minimum(x: Array, y: Array, propagate_nan: Any = PropagateNan.NONE) -> Array:
        return propagate_nan.value[1](x, y)

    @staticmethod
    def reduce(x: Array, axis: int, join: Callable[..., Array]) -> Array:
        return functools.reduce(join, np.moveaxis(x, axis, 0))

    @staticmethod
    def associative_scan(x: Array, axis: int, join: Callable[..., Array]) -> Array:
        found = itertools.accumulate(np.moveaxis(x, axis, 0), join)
        return np.moveaxis(np.stack(list(found)), 0, axis)

    erf = staticmethod(OPERATORS["erf"].numpy)
    static_range = staticmethod(range)


def in_triton(text: str, names: dict[str, Any]) -> Array:
    """What a template computes, which is an expression."""
    scope: dict[str, Any] = {
        "tl": Language(),
        "triton": SimpleNamespace(jit=lambda f: f),
    }
    for function in functions_called([text]):
        exec(function, scope)
    return np.asarray(eval(text, scope, names), np.float64)


def fields_of(template: str) -> set[str]:
    parts = list(string.Formatter().parse(template))
    assert not any(spec or conversion for _, _, spec, conversion in parts)
    return {name for _, name, _, _ in parts if name is not None}


@named([o for o in ROWS if o.triton])
def test_template_takes_names(op: Operator) -> None:
    operands = {str(i) for i in range(op.arity)}
    extra = {
        Kind.REDUCTION: {"axis"},
        Kind.SCAN: {"axis"},
        Kind.VIEW: {"dtype"} & op.attributes.keys(),
    }
    assert fields_of(op.triton) == operands | extra.get(op.kind, set())
    names = [f"x{i}" for i in range(op.arity)]
    text = op.triton.format(*names, axis="at", dtype="tl.float16")
    used = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
    joins = set() if op.join is None else {joining(op.join)}
    assert used <= {*names, "at", "tl", *FUNCTIONS, *joins}
    assert used >= set(names)


@named(ROWS)
def test_library_expression_takes_names(op: Operator) -> None:
    operands = {str(i) for i in range(op.arity)} or {"operands"}
    extra = {"axes", "axis", "dtype", "start", "count", "last", "sizes"}
    fields = {name.removesuffix("[0]") for name in fields_of(op.torch)}
    if op.kind is Kind.LIBRARY:
        integers = AttributeKind.INTEGERS
        extra = {n for n, kind in op.attributes.items() if kind is integers}
        extra -= {"ranks"}
        assert extra <= fields
    assert operands <= fields <= operands | extra


def reference_of(op: Operator, operands: Sequence[Array]) -> Array:
    """The reference semantics; of what goes over axes, over the second one."""
    if op.kind is Kind.REDUCTION:
        return op.numpy(*operands, (1,))
    return op.numpy(*operands, 1) if op.kind is Kind.SCAN else op.numpy(*operands)


@named([*ELEMENTWISE, *REDUCTIONS, *SCANS])
def test_library_expression_computes_the_reference(op: Operator) -> None:
    operands = operands_of(op)
    names = {f"x{i}": torch.from_numpy(a) for i, a in enumerate(operands)}
    if op.chooses:
        names["x0"] = names["x0"] != 0
    text = op.torch.format(*names, axes=(1,), axis=1, dtype="torch.float64")
    scope: dict[str, Any] = {"torch": torch}
    for helper in HELPERS.values():
        exec(helper, scope)
    found = eval(text, scope, names)
    expected = reference_of(op, operands)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-14)


@named([o for o in ELEMENTWISE if o.arity and o.name != "where"])
def test_template_does_with_nan_what_the_reference_does(op: Operator) -> None:
    operands = [np.array([np.nan, 1.0, np.nan]), np.array([1.0, np.nan, np.nan])]
    names = {f"x{i}": a.view(Tile) for i, a in enumerate(operands[: op.arity])}
    found = in_triton(op.triton.format(*names), names)
    np.testing.assert_array_equal(
        np.isnan(found),
        np.isnan(np.asarray(op.numpy(*operands[: op.arity]), np.float64)),
    )


@named([*ELEMENTWISE, *REDUCTIONS, *SCANS])
def test_template_computes_the_reference(op: Operator) -> None:
    operands = operands_of(op)
    names = {f"x{i}": a.view(Tile) for i, a in enumerate(operands)}
    text = op.triton.format(*names, axis="1")
    found = in_triton(text, names)
    expected = reference_of(op, operands)
    rtol = 1e-9 if op.name in SERIES else 1e-12
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-14)


SERIES = ("expm1", "tanh")
"""Near 0 they are series, which end where f32 tells no difference."""


def test_the_sigmoid_of_what_is_far_below_0_is_what_it_is() -> None:
    x = np.array([-700.0, -80.0, -20.0, 0.0, 20.0])
    expected = np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))
    found = OPERATORS["sigmoid"].numpy(x)
    np.testing.assert_allclose(found, expected, rtol=1e-15)
