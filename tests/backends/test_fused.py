"""Library functions in the place of several operators: when, and right results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.types import f16, f32
from mirage_dsl.cost.estimate import estimate, launched
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph
from tests.backends.running import check


def traced(function: Callable[..., Any], *shapes: tuple[int, ...]) -> KernelGraph:
    specs = [mirage.spec(shape, "float16") for shape in shapes]
    return mirage.kernel(function).trace(*specs)


def attended(q: Any, k: Any, v: Any) -> Any:
    return mirage.softmax(q @ k) @ v


def attended_where(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return mirage.scaled_dot_product_attention(q, k, v, mask, scale=1.0)


def attended_in_batches(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return mirage.scaled_dot_product_attention(q, k, v, mask)


def attended_in_groups(q: Any, k: Any, v: Any) -> Any:
    return mirage.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def attended_backwards(q: Any, k: Any, v: Any) -> Any:
    return mirage.einsum("nq,ne->eq", mirage.softmax(k @ q.T, axis=0), v)


def attended_to_one_tensor(x: Any, w: Any) -> Any:
    """Values have the channels of keys, under the same name."""
    q, k, v = (x @ w).unflatten(1, (3, 2, -1)).permute(1, 2, 0, 3)
    return mirage.softmax(q @ k.mT * 0.5) @ v


def attended_by_one_dim(x: Any, v: Any) -> Any:
    logits = mirage.einsum("qft,kft->qk", x, x * 2)
    values = v + mirage.sum(x, 1, keepdims=True)
    return mirage.einsum("qk,kgt->qgt", mirage.softmax(logits), values)


def with_bias(x: Any, w: Any, b: Any) -> Any:
    return x @ w.T + b


def by_columns(x: Any) -> Any:
    return mirage.rms_norm(x, axis=0)


def by_columns_first(x: Any) -> Any:
    return mirage.softmax(x, axis=0)


def by_planes(x: Any) -> Any:
    return mirage.softmax(x, axis=(1, 3))


def mirrored(x: Any, w: Any) -> Any:
    mean = mirage.mean(mirage.square(x), -1, keepdims=True)
    return w * (x / mirage.sqrt(1e-5 + mean))


def multiplied(x: Any) -> Any:
    centred = x - mirage.mean(x, -1, keepdims=True)
    variance = mirage.mean(centred * centred, -1, keepdims=True)
    return centred / mirage.sqrt(variance + 1e-5)


def layer(x: Any, w: Any, b: Any) -> Any:
    return mirage.layer_norm(x, w, b)


def scaled(x: Any, w: Any) -> Any:
    return mirage.layer_norm(x, w)


def grouped(x: Any) -> Any:
    return mirage.group_norm(x, 3)


def grouped_and_scaled(x: Any, w: Any, b: Any) -> Any:
    return mirage.group_norm(x, 3, w, b)


def per_channel(x: Any, w: Any) -> Any:
    return mirage.group_norm(x, x.shape[1], w)


def evaluated(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
    return mirage.batch_norm(x, mean * mean, var * var, w, b)


def evaluated_plainly(x: Any, mean: Any, var: Any) -> Any:
    return mirage.batch_norm(x, mean * mean, var * var)


def of_other_channels(x: Any, mean: Any, var: Any) -> Any:
    return (x - mean) / mirage.sqrt(1e-5 + var * var)[:, None]


def of_heads(x: Any, w: Any, b: Any) -> Any:
    return mirage.einsum("mk,hdk->mhd", x, w) + b


def first_place(x: Any) -> Any:
    return mirage.argmax(x, 1)


def first_least_place(x: Any) -> Any:
    return mirage.argmin(x, -1, keepdims=True)


def some_place(x: Any) -> Any:
    """Of the second largest, which is another function's."""
    largest = mirage.max(x, 1, keepdims=True)
    there = x == mirage.max(mirage.where(x == largest, -1e4, x), 1, keepdims=True)
    return mirage.min(mirage.where(there, mirage.arange(x.shape[1]), 1 << 30), 1)


def averaged(x: Any) -> Any:
    return mirage.mean(x, (0, 2))


def averaged_wholly(x: Any) -> Any:
    return mirage.mean(x)


def logarithmic(x: Any) -> Any:
    below = x - mirage.max(x, 0, keepdims=True)
    return below - mirage.log(mirage.sum(mirage.exp(below), 0, keepdims=True))


def residual(x: Any, w: Any, y: Any) -> Any:
    return y + x @ w


def biased(x: Any, w: Any, b: Any) -> Any:
    return x @ w + b


def turned(x: Any, w: Any, b: Any) -> Any:
    return (x @ w + b).T


_ATTENTION = "torch.nn.functional.scaled_dot_product_attention"


@pytest.mark.parametrize(
    ("function", "shapes", "call"),
    [
        (attended, ((2, 4, 8), (2, 8, 6), (2, 6, 5)), f"{_ATTENTION}(q.reshape"),
        (attended, ((4, 8), (8, 6), (6, 5)), f"{_ATTENTION}(q.reshape((1, 1, 4, 8))"),
        (
            attended_where,
            ((2, 4, 8), (2, 6, 8), (2, 6, 5), (4, 6)),
            "attn_mask=mask[None, :, :].reshape((1, 1, 4, 6)), scale=1.0)",
        ),
        (
            attended_in_batches,
            ((2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 5), (2, 1, 4, 6)),
            "(q, k, v, attn_mask=",
        ),
        (
            attended_in_batches,
            ((2, 3, 2, 4, 8), (2, 3, 2, 6, 8), (2, 3, 2, 6, 5), (3, 1, 4, 6)),
            ".expand((2, 3, 2, 4, 6)).reshape((2 * 3, 2, 4, 6))",
        ),
        (
            attended_in_groups,
            ((2, 4, 3, 8), (2, 2, 6, 8), (2, 2, 6, 5)),
            "(2, 2, 2 * 3, 8)",
        ),
        (
            attended,
            ((2, 1, 8), (2, 8, 6), (2, 6, 5)),
            "q.reshape((2, 8)).reshape((1, 2, 1, 8))",
        ),
        (attended_backwards, ((4, 8), (6, 8), (6, 5)), _ATTENTION),
        (attended_to_one_tensor, ((4, 6), (6, 24)), "scale=0.5)"),
        (with_bias, ((2, 3, 8), (5, 8), (5,)), ".linear(x, w, b)"),
        (with_bias, ((8,), (5, 8), (5,)), ".linear(x, w, b)"),
        (by_columns, ((6, 8),), "torch.rms_norm(x.permute(1, 0), (6,), None, 1e-06)"),
        (by_columns_first, ((6, 8),), "torch.softmax(x, 0)"),
        (
            by_planes,
            ((2, 3, 4, 5),),
            ".reshape((2 * 4, 3 * 5)), 1).reshape((2, 4, 3, 5))",
        ),
        (mirrored, ((6, 8), (8,)), "torch.rms_norm(x, (8,), w, 1e-05)"),
        (multiplied, ((6, 8),), "torch.layer_norm(x, (8,), None, None, 1e-05)"),
        (layer, ((6, 8), (8,), (8,)), "torch.layer_norm(x, (8,), w, b, 1e-06)"),
        (scaled, ((6, 8), (8,)), "torch.layer_norm(x, (8,), w, None, 1e-06)"),
        (grouped, ((4, 6),), "(2,), None, None, 1e-06)"),
        (
            grouped_and_scaled,
            ((4, 6, 5, 2), (6,), (6,)),
            ".reshape((4, 3 * 2, 5 * 2)), 3, w.reshape((3, 2)).reshape((3 * 2,)), ",
        ),
        (per_channel, ((4, 6, 5), (6,)), "group_norm(x, 6, w, None, 1e-06)"),
        (averaged, ((4, 6, 5),), "torch.mean(x, (0, 2))"),
        (of_heads, ((6, 8), (2, 3, 8), (2, 3)), ".linear(x, w.reshape((2 * 3, 8))"),
        (averaged_wholly, ((4, 6),), "torch.mean(x, (0, 1))"),
        (logarithmic, ((6, 8),), "torch.log_softmax(x, 0)"),
        (first_place, ((4, 6, 5),), "torch.argmax(x, 1)"),
        (first_least_place, ((4, 6),), "torch.argmin(x, 1)"),
        (residual, ((6, 8), (8, 4), (6, 4)), "torch.addmm(y, x, w)"),
        (biased, ((6, 8), (8, 4), (4,)), "torch.addmm(b, x, w)"),
        (turned, ((6, 8), (8, 4), (4,)), "torch.addmm("),
    ],
)
def test_one_call(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], call: str
) -> None:
    graph = traced(function, *shapes)
    source = emit(graph)
    assert call in source
    calls = source.count("torch.") - source.count("torch.matmul")
    assert calls == 1, source
    check(graph)


@pytest.mark.parametrize(
    ("function", "shapes", "call"),
    [
        (
            evaluated,
            ((4, 6, 5, 2), *((6,),) * 4),
            "torch.batch_norm(x, ",
        ),
        (evaluated, ((4, 6), *((6,),) * 4), "batch_norm(x.reshape((4, 6, 1)), "),
        (
            evaluated_plainly,
            ((4, 6, 5), (6,), (6,)),
            "torch.batch_norm(x, None, None, ",
        ),
    ],
)
def test_a_norm_with_given_statistics_is_one_call(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], call: str
) -> None:
    graph = traced(function, *shapes)
    assert call in emit(graph)
    assert len(launched(graph)) == 3
    check(graph)


def test_a_norm_of_other_channels_is_none() -> None:
    graph = traced(of_other_channels, (4, 4), (4,), (4,))
    assert "batch_norm" not in emit(graph)
    check(graph)


def test_the_first_position_is_that_of_nan() -> None:
    graph = traced(first_place, (3, 4))
    scope: dict[str, Any] = {}
    exec(emit(graph), scope)
    nan, inf = float("nan"), float("inf")
    rows = [[1.0, nan, inf, nan], [2.0, 5.0, 5.0, 1.0], [-inf] * 4]
    x = torch.tensor(rows, dtype=torch.float16)
    (found,) = scope["run"](x)
    assert found.tolist() == [1, 1, 0]
    assert found.dtype == torch.int64


def test_positions_of_another_element_are_no_call() -> None:
    graph = traced(some_place, (3, 4))
    assert "torch.arg" not in emit(graph)
    check(graph)


def no_eps(x: Any) -> Any:
    return mirage.rms_norm(x, eps=None)


def along_rows(x: Any, w: Any) -> Any:
    return mirage.rms_norm(x) * w


def other_mean(x: Any) -> Any:
    return x / mirage.sqrt(mirage.sum(mirage.square(x), -1, keepdims=True) * 0.5 + 1e-6)


def sum_of_more(x: Any) -> Any:
    return mirage.sum(x, -1) * (1 / 6)


def seen_inside(x: Any) -> Any:
    mean = mirage.mean(mirage.square(x), -1, keepdims=True)
    return x / mirage.sqrt(mean + 1e-6), mean


def of_another(x: Any, y: Any) -> Any:
    mean = mirage.mean(mirage.square(x), -1, keepdims=True)
    return y / mirage.sqrt(mean + 1e-6)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (no_eps, ((6, 8),)),
        (other_mean, ((6, 8),)),
        (sum_of_more, ((6, 8),)),
        (seen_inside, ((6, 8),)),
        (of_another, ((6, 8), (6, 8))),
        # A dim that the logits sum over, and that the values have too, is no batch.
        (attended_by_one_dim, ((4, 3, 2), (4, 5, 2))),
    ],
)
def test_other_operators_are_called_singly(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]
) -> None:
    graph = traced(function, *shapes)
    source = emit(graph)
    assert "torch.rms_norm(" not in source
    assert _ATTENTION not in source
    assert function is not sum_of_more or "torch.mean(" not in source
    check(graph)


def weights_too(q: Any, k: Any, v: Any) -> Any:
    weights = mirage.softmax(q @ k.T)
    return weights @ v, weights


def masked_by_rows_of_groups(q: Any, k: Any, v: Any, mask: Any) -> Any:
    logits = mirage.einsum("gqd,nd->gqn", q, k) + mask
    return mirage.einsum("gqn,ne->gqe", mirage.softmax(logits), v)


def over_two_dims(q: Any, k: Any, v: Any) -> Any:
    logits = mirage.einsum("qab,nab->qn", q, k)
    return mirage.softmax(logits) @ v


def other_rows(q: Any, k: Any, v: Any) -> Any:
    logits = mirage.einsum("qd,nd->qn", q, k)
    return mirage.einsum("qn,qe->ne", mirage.softmax(logits), v)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (weights_too, ((4, 8), (6, 8), (6, 5))),
        (masked_by_rows_of_groups, ((2, 4, 8), (6, 8), (6, 5), (2, 4, 6))),
        (over_two_dims, ((4, 2, 8), (6, 2, 8), (6, 5))),
        (other_rows, ((4, 8), (6, 8), (4, 5))),
    ],
)
def test_other_attention_is_called_in_parts(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]
) -> None:
    graph = traced(function, *shapes)
    assert _ATTENTION not in emit(graph)
    check(graph)


def test_a_call_is_priced_as_one() -> None:
    shapes = ((2, 8, 512, 64),) * 3

    def attended(q: Any, k: Any, v: Any) -> Any:
        return mirage.scaled_dot_product_attention(q, k, v)

    def seen(q: Any, k: Any, v: Any) -> Any:
        weights = mirage.softmax(mirage.einsum("abqd,abnd->abqn", q, k))
        return mirage.einsum("abqn,abne->abqe", weights, v), weights

    one, parts = (estimate(traced(f, *shapes), H100) for f in (attended, seen))
    assert [k.call for k in one.kernels] == ["scaled_dot_product_attention"]
    assert [k.call for k in parts.kernels] == ["", "softmax", ""]
    assert one.launches == len(launched(traced(attended, *shapes))) == 1
    assert one.bytes == 4 * 2 * 8 * 512 * 64 * 2
    assert one.microseconds < parts.microseconds


def test_a_weight_of_rows_stays_apart() -> None:
    graph = traced(along_rows, (6, 8), (6, 1))
    assert "torch.rms_norm(x, (8,), None, 1e-06)" in emit(graph)
    check(graph)


def test_a_block_sees_what_lies_between() -> None:
    g = KernelBuilder("seen", m=6, k=8)
    x = g.input("x", f16, "m, k")
    e = g.exp(g.sub(x, g.rowshift(x, over="k")))
    y = g.div(e, g.sum(e, over="k"))
    with g.block(grid={"m": 2}) as b:
        out = b.store(b.square(b.load(e, "m/grid, k")), "m/grid, k", dtype=f16)
    graph = g.returns(y).returns(out).build()
    assert "softmax" not in emit(graph)
    check(graph)


def test_values_of_several_formats_stay_apart() -> None:
    g = KernelBuilder("formats", m=6, k=8, n=4)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    y = g.input("y", f32, "m, n")
    graph = g.returns(g.add(g.matmul(x, w, over="k"), y)).build()
    assert "addmm" not in emit(graph)
    check(graph)
