"""The evaluator against plain NumPy, on programs: dims, rounding, errors."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mirage_dsl.core.errors import CheckError, DTypeError, ShapeError
from mirage_dsl.core.types import bf16, f32
from mirage_dsl.ir.builder import KernelBuilder, one_over
from mirage_dsl.ir.evaluate import evaluate_numpy
from tests.ir.evaluation import draw, one, rms_linear

# -- Programs --------------------------------------------------------------------------


def test_program_with_mean_and_broadcast() -> None:
    b = KernelBuilder("rms", m=5, k=12)
    x, g = b.input("x", f32, "m, k"), b.input("g", f32, "k")
    mean = b.mul(b.sum(b.square(x), over="k"), one_over("k"))
    graph = b.returns(b.mul(b.mul(x, b.rsqrt(mean)), g)).build()
    xs, gs = draw((5, 12), (12,))
    expected = xs / np.sqrt((xs**2).mean(1, keepdims=True)) * gs
    np.testing.assert_allclose(one(graph, xs, gs), expected)


def test_batched_matmul_over_two_dims() -> None:
    b = KernelBuilder("f", b=2, m=3, k=4, j=5, n=6)
    x, y = b.input("x", f32, "b, m, k, j"), b.input("y", f32, "j, n, b, k")
    graph = b.returns(b.matmul(x, y, over="k, j"), axes="n, m, b").build()
    xs, ys = draw((2, 3, 4, 5), (5, 6, 2, 4))
    np.testing.assert_allclose(one(graph, xs, ys), np.einsum("bmkj,jnbk->nmb", xs, ys))


def test_merged_and_unit_axes_on_both_sides() -> None:
    b = KernelBuilder("f", h=3, d=4, m=5)
    x = b.input("x", f32, "m, 1, (h d)")
    graph = b.returns(b.exp(x), axes="h, (d m), 1").build()
    (xs,) = draw((5, 1, 12))
    expected = np.exp(xs).reshape(5, 3, 4).transpose(1, 2, 0).reshape(3, 20, 1)
    np.testing.assert_allclose(one(graph, xs), expected)


def test_rename_lets_a_tensor_meet_itself() -> None:
    b = KernelBuilder("gram", m=4, k=6)
    x = b.input("x", f32, "m, k")
    y = b.rename(x, dims="m", to="n")
    graph = b.returns(b.matmul(x, y, over="k")).build()
    assert graph.extent_of["n"] == 4
    (xs,) = draw((4, 6))
    np.testing.assert_allclose(one(graph, xs), xs @ xs.T)


def test_slice_and_concat() -> None:
    b = KernelBuilder("rotate_half", m=4, d=6)
    x = b.input("x", f32, "m, d")
    low = b.slice(x, dim="d", start=0, stop=3, to="lo")
    high = b.slice(x, dim="d", start=3, stop=6, to="hi")
    graph = b.returns(b.concat(b.neg(high), low, dims="hi lo", to="r")).build()
    assert graph.extent_of["r"] == 6
    (xs,) = draw((4, 6))
    expected = np.concatenate([-xs[:, 3:], xs[:, :3]], 1)
    np.testing.assert_allclose(one(graph, xs), expected)


def test_a_dim_of_extent_1_is_inserted_to_be_joined() -> None:
    b = KernelBuilder("append", m=3, n=4, r=5)
    x, y = b.input("x", f32, "n, m"), b.input("y", f32, "m")
    row = b.insert(y, to="one")
    assert b.type_of(row).names == ("one", "m")
    graph = b.returns(b.concat(x, row, dims="n one", to="r")).build()
    assert (graph.extent_of["one"], graph.extent_of["r"]) == (1, 5)
    xs, ys = draw((4, 3), (3,))
    np.testing.assert_allclose(one(graph, xs, ys), np.concatenate([xs, ys[None]]))
    with pytest.raises(CheckError, match="has a dim m already"):
        b.insert(y, to="m")


def test_concat_broadcasts_an_operand_without_a_dim() -> None:
    b = KernelBuilder("f", m=3, i=2, j=4)
    x, y = b.input("x", f32, "m, i"), b.input("y", f32, "j")
    graph = b.returns(b.concat(x, y, dims="i j", to="c"), axes="m, c").build()
    xs, ys = draw((3, 2), (4,))
    expected = np.concatenate([xs, np.broadcast_to(ys, (3, 4))], 1)
    np.testing.assert_allclose(one(graph, xs, ys), expected)


def test_infinite_constants_and_masked_rows() -> None:
    b = KernelBuilder("f", m=3, n=5)
    x, keep = b.input("x", f32, "m, n"), b.input("keep", f32, "m, n")
    s = b.where(keep, x, float("-inf"))
    e = b.exp(b.sub(s, b.rowshift(s, over="n")))
    graph = b.returns(b.sum(e, over="n")).build()
    xs, keeps = draw((3, 5))[0], np.tri(3, 5, -1)
    found = one(graph, xs, keeps)
    assert found[0] == 0
    assert np.isfinite(found).all()


# -- Rounding, dtypes and errors -----------------------------------------------------


def test_rounding_models_storage() -> None:
    xs, ws = draw((8, 16), (16, 10))
    graph = rms_linear(8, 16, 10, 4, 8, 4)
    exact = one(graph, xs, ws)
    (rounded,) = evaluate_numpy(graph, xs, ws, compute=np.float32, round_casts=True)
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded, rounded.astype(np.float16))
    np.testing.assert_allclose(rounded, exact, rtol=2e-2, atol=2e-3)
    assert np.abs(rounded - exact).max() > 1e-5


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_arrays_of_any_float_dtype(dtype: Any) -> None:
    b = KernelBuilder("f", m=4)
    graph = b.returns(b.add(b.input("x", bf16, "m"), 1)).build()
    xs = np.asarray([0.5, 1, 2, -3], dtype)
    assert one(graph, xs).tolist() == [1.5, 2, 3, -2]


def test_symbolic_extents_come_from_the_arrays() -> None:
    b = KernelBuilder("f", m=None, h=None, d=4)
    x, y = b.input("x", f32, "m, (h d)"), b.input("y", f32, "h, 1")
    graph = b.returns(b.mul(x, y), axes="m, h, d").build()
    xs, ys = draw((2, 12), (3, 1))
    expected = xs.reshape(2, 3, 4) * ys
    np.testing.assert_allclose(one(graph, xs, ys), expected)


def test_values_are_kept_only_until_they_are_read_last() -> None:
    b = KernelBuilder("f", m=1 << 17)
    value = b.input("x", f32, "m")
    for _ in range(40):
        value = b.add(value, 1)
    graph, xs = b.returns(value).build(), np.zeros(1 << 17)
    tracemalloc.start()
    assert one(graph, xs)[0] == 40
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * xs.nbytes


def test_errors_name_the_input() -> None:
    graph = rms_linear(8, 16, 10, 4, 8, 4)
    xs, ws = draw((8, 16), (16, 10))
    with pytest.raises(ShapeError, match=r"takes 2 tensors \(x, w\), found 1"):
        evaluate_numpy(graph, xs)
    with pytest.raises(ShapeError, match=r"input w: axis k has extent 15, expected 16"):
        evaluate_numpy(graph, xs, ws[:15])
    with pytest.raises(ShapeError, match=r"input x of rms_linear has 2 axes .*\(8,\)"):
        evaluate_numpy(graph, xs[:, 0], ws)
    with pytest.raises(DTypeError, match="found an array of complex128"):
        evaluate_numpy(graph, xs * 1j, ws)


def test_unit_axis_and_undetermined_extents_are_refused() -> None:
    b = KernelBuilder("f", m=None, k=None)
    graph = b.returns(b.exp(b.input("x", f32, "(m k), 1"))).build()
    with pytest.raises(ShapeError, match="does not determine m and k"):
        evaluate_numpy(graph, np.ones((6, 1)))
    with pytest.raises(ShapeError, match="input x: axis 1 has extent 2, expected 1"):
        evaluate_numpy(graph.with_extents({"m": 2, "k": 3}), np.ones((6, 2)))


def test_a_graph_that_is_not_well_formed_is_explained() -> None:
    b = KernelBuilder("f", m=4)
    b.returns(b.mul(b.input("x", f32, "m"), one_over("z")))
    with pytest.raises(CheckError, match="the dim z of t1 has no extent"):
        evaluate_numpy(b.unchecked(), np.ones(4))
