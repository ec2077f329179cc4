"""Library functions in the place of several operators: when, and right results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirage_dsl as mirage
from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.core.types import f16, f32
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


def by_columns(x: Any) -> Any:
    return mirage.rms_norm(x, axis=0)


def by_columns_first(x: Any) -> Any:
    return mirage.softmax(x, axis=0)


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


def residual(x: Any, w: Any, y: Any) -> Any:
    return y + x @ w


def turned(x: Any, w: Any, b: Any) -> Any:
    return (x @ w + b).T


@pytest.mark.parametrize(
    ("function", "shapes", "call"),
    [
        (attended, ((2, 4, 8), (2, 8, 6), (2, 6, 5)), "torch.softmax(matmul1, 2)"),
        (
            attended_where,
            ((2, 4, 8), (2, 6, 8), (2, 6, 5), (4, 6)),
            "torch._safe_softmax(add1, 2)",
        ),
        (by_columns, ((6, 8),), "torch.rms_norm(x.permute(1, 0), (6,), None, 1e-06)"),
        (by_columns_first, ((6, 8),), "torch.softmax(x, 0)"),
        (mirrored, ((6, 8), (8,)), "torch.rms_norm(x, (8,), w, 1e-05)"),
        (multiplied, ((6, 8),), "torch.layer_norm(x, (8,), None, None, 1e-05)"),
        (layer, ((6, 8), (8,), (8,)), "torch.layer_norm(x, (8,), w, b, 1e-06)"),
        (scaled, ((6, 8), (8,)), "torch.layer_norm(x, (8,), w, None, 1e-06)"),
        (grouped, ((4, 6),), "(2,), None, None, 1e-06)"),
        (residual, ((6, 8), (8, 4), (6, 4)), "torch.addmm(y, x, w)"),
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


def no_eps(x: Any) -> Any:
    return mirage.rms_norm(x, eps=None)


def along_rows(x: Any, w: Any) -> Any:
    return mirage.rms_norm(x) * w


def other_mean(x: Any) -> Any:
    return x / mirage.sqrt(mirage.sum(mirage.square(x), -1, keepdims=True) * 0.5 + 1e-6)


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
        (seen_inside, ((6, 8),)),
        (of_another, ((6, 8), (6, 8))),
    ],
)
def test_other_operators_are_called_singly(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]
) -> None:
    graph = traced(function, *shapes)
    assert "torch.rms_norm(" not in emit(graph)
    check(graph)


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
