"""Every function against NumPy, at several ranks and axes, on symbolic tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import ShapeError
from mirage_dsl.frontend.namespace import NAMES
from mirage_dsl.ir.graph import Apply
from tests.programs import numpy_functions as n

F = torch.nn.functional
Check = Callable[..., None]

SHAPES = [(5,), (3, 4), (2, 3, 5), (2, 3, 2, 4)]


def given(*shape: int, seed: int = 0, positive: bool = False) -> Any:
    random = np.random.default_rng((seed, *shape))
    values = random.uniform(0.5, 2, shape) if positive else random.normal(size=shape)
    return values.astype(np.float32)


def same(found: Any, expected: Any) -> None:
    assert found.shape == np.shape(expected)
    truth = np.asarray(expected).dtype == np.bool_
    assert found.dtype == (np.bool_ if truth else np.float32)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


UNARY: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "abs": np.abs,
    "neg": np.negative,
    "square": np.square,
    "tanh": np.tanh,
    "sigmoid": n.sigmoid,
    "silu": n.silu,
    "relu": n.relu,
    "gelu": n.gelu,
    "erf": n.erf,
}
POSITIVE: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt,
    "rsqrt": n.rsqrt,
    "log": np.log,
    "reciprocal": np.reciprocal,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*UNARY, *POSITIVE])
def test_functions_of_one_tensor(name: str, shape: tuple[int, ...]) -> None:
    x = given(*shape, positive=name in POSITIVE)
    expected = {**UNARY, **POSITIVE}[name](x.astype(np.float64))
    same(getattr(mirage, name)(x), expected)
    same(mirage.kernel(lambda t: getattr(t, name)())(x), expected)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "pow": np.power,
}
PAIRS = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((2, 1, 4), (3, 1)),
    ((5,), ()),
    ((1,), (2, 3)),
]


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tensors(name: str, a: Any, b: Any) -> None:
    x, y = given(*a, positive=True), given(*b, seed=1, positive=True)
    expected = BINARY[name](x.astype(np.float64), y.astype(np.float64))
    found = mirage.kernel(lambda s, t: getattr(mirage, name)(s, t))(x, y)
    same(found, expected)


def test_python_operators() -> None:
    x, y = given(3, 4, positive=True), given(4, seed=1, positive=True)

    def function(s: Any, t: Any) -> Any:
        return (
            s + t, 1 + s, s - t, 2 - s, s * t, 3 * s, s / t, 1 / s, -s, +s, abs(-s),
            s**2, s**3, s**0.5, s**-0.5, s**-1, s**-2, s**1.5, s**t, 2**s, s**0,
            s @ t, s.T @ s,
        )  # fmt: skip

    found = mirage.kernel(function)(x, y)
    expected = function(x.astype(np.float64), y.astype(np.float64))
    for a, b in zip(found, expected, strict=True):
        same(a, b)


def test_comparisons_with_scalars_are_truth_values() -> None:
    x = given(3, 4)

    def function(t: Any) -> Any:
        return t > 0, t < 0.5, t >= 0.25, t <= 1, t == t, t != t

    for found, expected in zip(mirage.kernel(function)(x), function(x), strict=True):
        same(found, expected)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min", "var", "std"])
def test_reductions(name: str, keepdims: bool) -> None:
    for shape in SHAPES:
        axes: list[Any] = [None, 0, -1, len(shape) - 1]
        axes += [(0, -1)] if len(shape) > 1 else []
        axes += [(1, 2)] if len(shape) > 2 else []
        x = given(*shape)
        for axis in axes:
            options = {"axis": axis, "keepdims": keepdims}
            expected = getattr(np, name)(x.astype(np.float64), **options)
            same(getattr(mirage, name)(x, axis, keepdims), expected)
            same(getattr(mirage, name)(x, dim=axis, keepdim=keepdims), expected)


@pytest.mark.parametrize("count", [1, 2, 3, 6])
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min"])
def test_reductions_over_repeated_elements(name: str, count: int) -> None:
    x = given(3, 1)
    expected = getattr(np, name)(np.repeat(x.astype(np.float64), count, 1), axis=1)
    repeated = mirage.kernel(
        lambda t: getattr(mirage, name)(mirage.broadcast_to(t, (3, count)), 1)
    )
    same(repeated(x), expected)


def test_variance_with_a_correction() -> None:
    x = given(3, 7)
    expected = x.astype(np.float64).var(1, ddof=1)
    same(mirage.var(x, 1, ddof=1), expected)
    same(mirage.var(x, dim=1, unbiased=True), expected)


def test_max_of_two_tensors_is_their_maximum() -> None:
    x, y = given(3, 4), given(3, 4, seed=1)
    same(mirage.max(x, y), np.maximum(x, y))


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_along_every_axis(shape: tuple[int, ...]) -> None:
    x = given(*shape) * 20
    for axis in range(-len(shape), len(shape)):
        expected = n.softmax(x.astype(np.float64), axis)
        same(mirage.softmax(x, axis), expected)
        same(mirage.softmax(x, dim=axis), expected)


def test_softmax_does_not_overflow() -> None:
    x = np.array([[1000.0, 0.0], [-1000.0, -1001.0]], np.float32)
    same(mirage.softmax(x), n.softmax(x.astype(np.float64)))


def test_norms_with_weight_bias_and_eps() -> None:
    x, g, b = given(3, 4, 6), given(6, seed=1), given(6, seed=2)
    t, tg, tb = (torch.from_numpy(a).double() for a in (x, g, b))
    rms = F.rms_norm(t, (6,), tg, 1e-3) + tb
    same(mirage.rms_norm(x, g, b, 1e-3), rms.numpy())
    same(mirage.layer_norm(x, g, b, 1e-3), F.layer_norm(t, (6,), tg, tb, 1e-3).numpy())
    same(mirage.rms_norm(x), n.rms_norm(x.astype(np.float64)))
    same(mirage.layer_norm(x), n.layer_norm(x.astype(np.float64)))
    whole = mirage.layer_norm(x, normalized_shape=(4, 6), eps=1e-5)
    same(whole, F.layer_norm(t, (4, 6)).numpy())
    same(mirage.rms_norm(x, axis=1, eps=None), x / np.sqrt((x * x).mean(1)[:, None]))


def test_norms_over_groups_and_batches() -> None:
    x, g, b = given(3, 6, 2, 2), given(6, seed=1), given(6, seed=2)
    t, tg, tb = (torch.from_numpy(a).double() for a in (x, g, b))
    same(mirage.group_norm(x, 3, g, b), F.group_norm(t, 3, tg, tb, 1e-6).numpy())
    flat = x[:, :, 0, 0]
    same(mirage.group_norm(flat, 2), F.group_norm(t[:, :, 0, 0], 2, eps=1e-6).numpy())
    mean, var = given(6, seed=3), given(6, seed=4, positive=True)
    tm, tv = torch.from_numpy(mean).double(), torch.from_numpy(var).double()
    expected = F.batch_norm(t, tm, tv, tg, tb, eps=1e-6)
    same(mirage.batch_norm(x, mean, var, g, b), expected.numpy())
    own = F.batch_norm(t, None, None, tg, tb, training=True, eps=1e-6)
    same(mirage.batch_norm(x, None, None, g, b), own.numpy())


def test_clamp_where_and_masks() -> None:
    x, y = given(3, 4), given(3, 4, seed=1)
    same(mirage.clamp(x, -0.5, 0.5), np.clip(x, -0.5, 0.5))
    same(mirage.clamp(x, min=0.1), np.maximum(x, 0.1))
    same(mirage.clamp(x, max=0.1), np.minimum(x, 0.1))
    same(
        mirage.kernel(lambda s, t: mirage.where(s > t, s, 0))(x, y),
        np.where(x > y, x, 0),
    )
    masked = mirage.kernel(lambda s, t: s.masked_fill(t > 0, 7.0))(x, y)
    same(masked, np.where(y > 0, 7.0, x))


def test_minus_infinity_masks_a_softmax() -> None:
    x = given(3, 4)
    keep = np.tril(np.ones((3, 4), np.float32))

    def function(t: Any, mask: Any) -> Any:
        return mirage.softmax(mirage.where(mask > 0, t, -math.inf))

    with np.errstate(all="ignore"):
        expected = n.softmax(np.where(keep > 0, x, -math.inf).astype(np.float64))
    same(mirage.kernel(function)(x, keep), expected)


def test_spread_by_the_library_that_is_meant() -> None:
    x = given(3, 5)
    sample, population = (
        x.astype(np.float64).std(1, ddof=1),
        x.astype(np.float64).std(1),
    )
    for function, expected in (
        (lambda t: t.std(dim=1), sample),
        (lambda t: t.std(1, correction=1), sample),
        (lambda t: t.std(axis=1), population),
        (lambda t: t.var(1, unbiased=False) ** 0.5, population),
        (lambda t: mirage.std(t, 1), population),
    ):
        same(mirage.kernel(function)(x), expected)


def test_numpy_scalars_are_numbers() -> None:
    def function(t: Any, scale: Any = None) -> Any:
        return t * (scale or 2.0)

    x = given(3, 4)
    same(mirage.kernel(function)(x, np.float32(0.5)), x / 2)
    # NumPy's own numbers have a format, as arrays have.
    found = mirage.kernel(function)(x, scale=np.float64(0.25))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, x * np.float64(0.25))


def test_concat_stack_split_and_chunk() -> None:
    x, y = given(3, 4), given(3, 2, seed=1)
    same(mirage.concat([x, y, x], axis=1), np.concatenate([x, y, x], 1))
    same(mirage.concat([x, x], dim=0), np.concatenate([x, x], 0))
    for found, expected in zip(mirage.chunk(x, 2, -1), np.split(x, 2, 1), strict=True):
        same(found, expected)
    for found, expected in zip(
        mirage.split(x, [1, 3], 1), (x[:, :1], x[:, 1:]), strict=True
    ):
        same(found, expected)
    assert [c.shape[0] for c in mirage.chunk(given(7, 2), 3)] == [3, 3, 1]
    for found, expected in zip(mirage.unbind(x, 1), x.T, strict=True):
        same(found, expected)


def test_concat_of_axes_of_extent_1() -> None:
    x, row, y = given(3, 4), given(1, 4, seed=1), given(3, 4, seed=2)
    same(mirage.concat([x, row], axis=0), np.concatenate([x, row], 0))
    same(mirage.concat([row, row * 2, x]), np.concatenate([row, row * 2, x], 0))
    same(mirage.stack([x, y, x]), np.stack([x, y, x]))
    same(mirage.stack([x, y], axis=-1), np.stack([x, y], -1))
    points = mirage.kernel(lambda t, u: mirage.stack([t[0, 0], u[1, 2]]))
    same(points(x, y), np.stack([x[0, 0], y[1, 2]]))
    parts = [x[:, 3:], y[:, 1:2], x[:, :2]]
    same(mirage.concat(parts, axis=1), np.concatenate(parts, 1))


def test_a_slice_of_one_element_is_joined_as_it_is() -> None:
    def function(t: Any) -> Any:
        return mirage.concat([t[:, 1:], t[:, :1]], axis=1)

    program = mirage.kernel(function).trace(mirage.spec((3, 4), "float16"))
    names = [n.op.name for n in program.nodes if isinstance(n, Apply)]
    assert names == ["slice", "slice", "concat"]


def test_views() -> None:
    x = given(2, 3, 4)
    views: list[Callable[[Any], Any]] = [
        lambda t: t.T,
        lambda t: t.transpose(2, 0, 1),
        lambda t: t.transpose(),
        lambda t: t.swapaxes(0, 2),
        lambda t: t.reshape(6, 4),
        lambda t: t.reshape(2, -1),
        lambda t: t.reshape((2, 12)),
        lambda t: t[None, 0, ..., 1:3],
        lambda t: t[:, -1],
        lambda t: t[..., None],
        lambda t: t[1:2].squeeze(0),
        lambda t: t[-1, 1:, 2],
        lambda t: t.reshape(2, 3, 2, 2).sum((1, 3)),
        lambda t: t.transpose(1, 0, 2).reshape(3, 8),
    ]
    for view in views:
        same(mirage.kernel(view)(x), view(x))
    same(mirage.kernel(lambda t: t.transpose(0, 1))(x), x.swapaxes(0, 1))
    same(mirage.kernel(lambda t: t.permute(2, 0, 1))(x), x.transpose(2, 0, 1))
    same(mirage.flatten(x, 1), x.reshape(2, 12))
    same(mirage.unflatten(x, 2, (2, 2)), x.reshape(2, 3, 2, 2))
    same(mirage.expand_dims(x, (0, 2)), np.expand_dims(x, (0, 2)))
    same(mirage.squeeze(x[:, :1]), x[:, 0])
    same(mirage.narrow(x, 1, 1, 2), x[:, 1:])


@pytest.mark.parametrize(
    "where", [(0, -1, 1), (1, -3, 2), (0, 0, 3), (0, 1, 3), (0, 0, 5), (1, 2, -1)]
)
def test_narrow_is_pytorchs(where: tuple[int, int, int]) -> None:
    """Below 0 it counts from the end; what is not all inside is refused."""
    x = torch.arange(12.0).reshape(3, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.narrow(*where) * 2

    try:
        expected = function(x)
    except RuntimeError:
        with pytest.raises(ShapeError, match="must lie within it"):
            mirage.kernel(function)(x)
        return
    assert torch.equal(mirage.kernel(function)(x), expected)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("mk,kn->mn", [(3, 4), (4, 5)]),
        ("mk,nk->nm", [(3, 4), (5, 4)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bid,hd->bih", [(2, 3, 4), (5, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("i,i->", [(3,), (3,)]),
        ("ij->ji", [(3, 4)]),
        ("ijk->i", [(3, 4, 2)]),
        ("abk,kcd->abcd", [(2, 3, 4), (4, 2, 5)]),
        ("bij,bkj->bik", [(2, 3, 4), (2, 5, 4)]),
        ("ab,cb->a", [(3, 4), (5, 4)]),
        ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)]),
        ("i,j,k->kij", [(2,), (3,), (4,)]),
        ("...ij,jk->...ik", [(2, 7, 3, 4), (4, 5)]),
        ("...i->...", [(2, 3, 4)]),
        ("ba", [(3, 4)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("ij,kj->ik", [(3, 4), (5, 1)]),
        ("bij,bjk->bik", [(1, 3, 4), (2, 4, 5)]),
        ("ij,ij->ij", [(1, 4), (3, 1)]),
        ("ij,ij->j", [(1, 4), (1, 4)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [given(*s, seed=i) for i, s in enumerate(shapes)]
    doubles = [a.astype(np.float64) for a in arrays]
    same(mirage.einsum(equation, *arrays), np.einsum(equation, *doubles))


@pytest.mark.parametrize(
    ("equation", "kind", "message"),
    [
        ("ii->i", ShapeError, "of extents"),
        ("ij->ii", ShapeError, "stands twice"),
        ("ij->ik", ShapeError, "no operand has the label k"),
        ("ijk->i", ShapeError, "3 labels, but the operand has 2 axes"),
        ("ij,jk->ik", ShapeError, "names 2 operands, found 1"),
    ],
)
def test_einsum_refuses(equation: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        mirage.einsum(equation, given(4, 5))


def test_attention() -> None:
    q, k, v = given(2, 4, 5, 8), given(2, 2, 6, 8, seed=1), given(2, 2, 6, 8, seed=2)
    t = [torch.from_numpy(a).double() for a in (q, k, v)]
    expected = F.scaled_dot_product_attention(*t, enable_gqa=True).numpy()
    found = mirage.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    same(found, expected)


def test_casts() -> None:
    x = given(3, 4)
    half = mirage.kernel(lambda t: t.astype("float16"))(x)
    assert half.dtype == np.float16
    found = mirage.kernel(lambda t: t.to(torch.bfloat16))(x)
    assert str(found.dtype) == "bfloat16"
    program = mirage.kernel(lambda t: t.float() * 2).trace(mirage.spec((3, 4)))
    assert str(program.returns[0].type) == "f32[m, k]"


def test_a_mixture_of_dtypes_is_f32() -> None:
    program = mirage.kernel(lambda a, b: a @ b).trace(
        mirage.spec((3, 4), "float16"), mirage.spec((4, 5), "bfloat16")
    )
    assert str(program.returns[0].type) == "f32[m, n]"


def test_all_functions_are_public() -> None:
    assert set(NAMES) <= set(mirage.__all__)
    for name in mirage.__all__:
        assert getattr(mirage, name) is not None
    assert mirage.functions.softmax is mirage.softmax


def test_type_checkers_know_the_public_names() -> None:
    stub = Path(mirage.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    names = re.findall(r" as (\w+)|^(\w+) = ", stub, re.MULTILINE)
    assert sorted(a or b for a, b in names) == mirage.__all__
