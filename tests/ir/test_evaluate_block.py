"""The evaluator against plain NumPy, on hand-built block graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage_dsl.core.types import f16, f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from tests.ir.evaluation import draw, one, rms_linear

RAGGED = [(16, 32, 8, 4), (13, 29, 5, 4), (7, 11, 16, 16), (9, 30, 1, 7)]
"""Extents m, k and tiles of m and k: even, ragged, larger than the extent."""


def softmax(s: Any) -> Any:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(("m", "k", "tm", "tk"), RAGGED)
def test_rms_linear_in_one_kernel(m: int, k: int, tm: int, tk: int) -> None:
    xs, ws = draw((m, k), (k, 10))
    expected = xs / np.sqrt((xs**2).mean(1, keepdims=True)) @ ws
    found = one(rms_linear(m, k, 10, tm, tk, 4), xs, ws)
    np.testing.assert_allclose(found, expected)


def test_other_sizes_by_extents() -> None:
    graph = rms_linear(16, 32, 10, 4, 8, 4).with_extents({"m": 5, "k": 19})
    xs, ws = draw((5, 19), (19, 10))
    expected = xs / np.sqrt((xs**2).mean(1, keepdims=True)) @ ws
    np.testing.assert_allclose(one(graph, xs, ws), expected)


def test_gated_mlp_with_two_accumulators() -> None:
    b = KernelBuilder("gated", m=6, k=20, n=14)
    x = b.input("x", f16, "m, k")
    w1, w2 = b.input("w1", f16, "k, n"), b.input("w2", f16, "k, n")
    with b.block(grid={"n": 4}, loop=("k", 6)) as block:
        xt = block.load(x, "m, k/loop")
        parts = [
            block.accumulate(
                block.matmul(xt, block.load(w, "k/loop, n/grid"), over="k")
            )
            for w in (w1, w2)
        ]
        y = block.store(block.mul(block.silu(parts[0]), parts[1]), "m, n/grid")
    xs, u, v = draw((6, 20), (20, 14), (20, 14))
    gate = xs @ u
    expected = gate / (1 + np.exp(-gate)) * (xs @ v)
    found = one(b.returns(y).build(), xs, u, v)
    np.testing.assert_allclose(found, expected)


def attention(rows: int, keys: int, tm: int, tn: int, *, split: int = 0) -> KernelGraph:
    """Online softmax; with `split` in two kernels, over parts of the keys."""
    b = KernelBuilder("attention", h=2, m=rows, d=8, n=keys, e=6)
    q, k = b.input("q", f32, "h, m, d"), b.input("k", f32, "h, n, d")
    v = b.input("v", f32, "h, n, e")
    grid = {"h": 1, "m": tm} | ({"n": split} if split else {})
    n = "n/grid/loop" if split else "n/loop"
    with b.block(grid=grid, loop=("n", tn)) as block:
        qt = block.load(q, "h/grid, m/grid, d")
        kt = block.load(k, f"h/grid, {n}, d")
        vt = block.load(v, f"h/grid, {n}, e")
        s = block.matmul(qt, kt, over="d")
        m = block.running_max(block.rowshift(s, over="n"))
        p = block.exp(block.sub(s, m))
        top = block.accumulate(block.matmul(p, vt, over="n"), rescale=m)
        bottom = block.accumulate(block.sum(p, over="n"), rescale=m)
        if not split:
            y = block.store(block.div(top, bottom), "h/grid, m/grid, e")
            return_dims = "h, m, e"
        else:
            last = block.accumulate(m, "max")
            tops = block.store(top, "n#/grid, h/grid, m/grid, e")
            bottoms = block.store(bottom, "n#/grid, h/grid, m/grid")
            lasts = block.store(last, "h/grid, m/grid, n#/grid")
    if split:
        with b.block(grid={"h": 1, "m": 2}) as block:
            tops = block.load(tops, "n#, h/grid, m/grid, e")
            bottoms = block.load(bottoms, "n#, h/grid, m/grid")
            lasts = block.load(lasts, "h/grid, m/grid, n#")
            shift = block.rowshift(lasts, over="n#")
            weight = block.exp(block.sub(lasts, shift))
            top = block.matmul(tops, weight, over="n#")
            bottom = block.sum(block.mul(bottoms, weight), over="n#")
            y = block.store(block.div(top, bottom), "h/grid, m/grid, e")
        return_dims = "h, m, e"
    return b.returns(y, axes=return_dims).build()


@pytest.mark.parametrize(("rows", "keys", "tm", "tn"), RAGGED)
@pytest.mark.parametrize("split", [0, 3, 8])
@pytest.mark.parametrize("ramp", [0.0, 40.0, -40.0])
def test_online_softmax(
    rows: int, keys: int, tm: int, tn: int, split: int, ramp: float
) -> None:
    q, k, v = draw((2, rows, 8), (2, keys, 8), (2, keys, 6))
    k = k + ramp * np.arange(keys)[:, None] / keys
    expected = softmax(q @ k.transpose(0, 2, 1)) @ v
    found = one(attention(rows, keys, tm, tn, split=split), q, k, v)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_rescaling_starts_from_masked_tiles() -> None:
    """Nothing but -inf in the first tiles, then logits far below zero."""
    b = KernelBuilder("f", m=2, n=12)
    s = b.input("s", f32, "m, n")
    with b.block(grid={"m": 1}, loop=("n", 3)) as block:
        st = block.load(s, "m/grid, n/loop")
        m = block.running_max(block.max(st, over="n"))
        p = block.sum(block.exp(block.sub(st, m)), over="n")
        total = block.accumulate(p, rescale=m)
        last = block.accumulate(m, "max")
        y = block.store(block.add(block.log(total), last), "m/grid")
    logits = np.full((2, 12), -np.inf)
    logits[0, 7:] = -1000.0
    logits[1, 11] = -5000.0
    found = one(b.returns(y).build(), logits)
    np.testing.assert_allclose(found, [-1000 + np.log(5), -5000])


@pytest.mark.parametrize("tile", [4, 5, 30])
def test_split_contraction_in_two_kernels(tile: int) -> None:
    b = KernelBuilder("split_k", m=6, k=18, n=7)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    with b.block(grid={"k": tile, "n": 4}, loop=("k", 3)) as block:
        xt = block.load(x, "m, k/grid/loop")
        wt = block.load(w, "k/grid/loop, n/grid")
        part = block.accumulate(block.matmul(xt, wt, over="k"))
        parts = block.store(part, "m, k#/grid, n/grid", dtype=f32)
    total = b.sum(parts, over="k#")
    graph = b.returns(b.exp(total), axes="n, m").build()
    assert graph.extent_of["k#"] == -(-18 // tile)
    xs, ws = draw((6, 18), (18, 7))
    np.testing.assert_allclose(one(graph, xs, ws), np.exp(xs @ ws).T)
    # At other sizes, the number of parts follows.
    xs, ws = draw((6, 31), (31, 7))
    np.testing.assert_allclose(
        one(graph.with_extents({"k": 31}), xs, ws), np.exp(xs @ ws).T
    )


@pytest.mark.parametrize(("grid", "loop"), [(8, 4), (8, 3), (5, 3), (30, 7), (7, 7)])
def test_grid_and_loop_on_one_dim(grid: int, loop: int) -> None:
    """Partial maxima and sums, with iterations that lie wholly outside."""
    b = KernelBuilder("f", m=3, k=22)
    x = b.input("x", f32, "m, k")
    with b.block(grid={"k": grid}, loop=("k", loop)) as block:
        xt = block.load(x, "m, k/grid/loop")
        counted = block.accumulate(block.exp(block.max(block.mul(xt, 0), over="k")))
        total = block.sum(block.accumulate(block.exp(xt)), over="k")
        largest = block.max(block.accumulate(block.sub(xt, 9), "max"), over="k")
        whole = block.accumulate(xt, "concat")
        outs = [
            block.store(counted, "m, k#/grid"),
            block.store(total, "m, k#/grid"),
            block.store(largest, "k#/grid, m"),
            block.store(block.exp(whole), "k/grid, m"),
        ]
    iterations, total, largest, whole = evaluate_numpy(
        b.returns(*outs).build(), *draw((3, 22))
    )
    (xs,) = draw((3, 22))
    cuts = list(range(0, 22, grid))
    chunks = [xs[:, c : c + grid] for c in cuts]
    steps = [-(-c.shape[1] // loop) for c in chunks]
    np.testing.assert_allclose(iterations, np.broadcast_to(steps, (3, len(cuts))))
    sums = [np.exp(c).sum(1) for c in chunks]
    np.testing.assert_allclose(total, np.stack(sums, 1))
    np.testing.assert_allclose(largest, np.stack([c.max(1) - 9 for c in chunks]))
    np.testing.assert_allclose(whole, np.exp(xs).T)


def test_three_grid_dims_and_merged_axes() -> None:
    b = KernelBuilder("f", b=3, h=4, s=5, d=7)
    x, y = b.input("x", f32, "b, s, (h d)"), b.input("y", f32, "(h d), 1")
    with b.block(grid={"b": 2, "s": 2, "h": 3}) as block:
        xt = block.load(x, "b/grid, s/grid, (h/grid d)")
        yt = block.load(y, "(h/grid d), 1")
        z = block.store(block.mul(xt, yt), "(b/grid s/grid), h/grid, d")
    graph = b.returns(z, axes="(b s), (h d)").build()
    xs, ys = draw((3, 5, 28), (28, 1))
    np.testing.assert_allclose(one(graph, xs, ys), (xs * ys[:, 0]).reshape(15, 28))


def test_values_before_the_loop() -> None:
    b = KernelBuilder("f", m=5, k=12, n=9)
    x, w = b.input("x", f32, "m, k"), b.input("w", f32, "n, k")
    g = b.input("g", f32, "k")
    with b.block(grid={"m": 2}, loop=("n", 4)) as block:
        xt = block.mul(block.load(x, "m/grid, k"), block.load(g))
        wt = block.load(w, "n/loop, k")
        logits = block.matmul(block.sub(xt, 1), wt, over="k")
        e = block.sum(block.accumulate(block.exp(logits)), over="n")
        y = block.store(block.mul(e, block.sum(xt, over="k")), "m/grid")
    xs, ws, gs = draw((5, 12), (9, 12), (12,))
    scaled = xs * gs
    expected = np.exp((scaled - 1) @ ws.T).sum(1) * scaled.sum(1)
    np.testing.assert_allclose(one(b.returns(y).build(), xs, ws, gs), expected)


def test_whole_and_split_loads_of_one_tensor() -> None:
    """A grid over n, with statistics over all of n in every block."""
    b = KernelBuilder("f", m=4, n=11)
    x = b.input("x", f32, "m, n")
    with b.block(grid={"n": 3}, loop=("n", 4)) as block:
        mine, all_of_it = block.load(x, "m, n/grid"), block.load(x, "m, n/loop")
        total = block.sum(block.accumulate(all_of_it), over="n")
        y = block.store(block.div(mine, total), "m, n/grid")
    (xs,) = draw((4, 11))
    expected = xs / xs.sum(1, keepdims=True)
    np.testing.assert_allclose(one(b.returns(y).build(), xs), expected)


def test_concatenation_along_the_loop() -> None:
    b = KernelBuilder("f", m=4, n=10, k=3)
    x, w = b.input("x", f32, "m, k"), b.input("w", f32, "k, n")
    with b.block(grid={"m": 3}, loop=("n", 4)) as block:
        product = block.matmul(
            block.load(x, "m/grid, k"), block.load(w, "k, n/loop"), over="k"
        )
        rows = block.accumulate(product, "concat")
        shifted = block.sub(rows, block.rowshift(rows, over="n"))
        y = block.store(block.exp(shifted), "m/grid, n")
    xs, ws = draw((4, 3), (3, 10))
    logits = xs @ ws
    expected = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(one(b.returns(y).build(), xs, ws), expected)


@pytest.mark.parametrize("tile", [4, 5])
def test_concat_of_a_looped_piece_with_a_whole_dim(tile: int) -> None:
    """LoRA as one product: (X | XA) @ (W / B), the second term once per iteration."""
    b = KernelBuilder("lora", m=3, k=13, n=6, r=2)
    x, w = b.input("x", f32, "m, k"), b.input("w", f32, "k, n")
    a, c = b.input("a", f32, "k, r"), b.input("b", f32, "r, n")
    with b.block(grid={"n": 4}, loop=("k", tile)) as block:
        xt, wt = block.load(x, "m, k/loop"), block.load(w, "k/loop, n/grid")
        xa = block.matmul(xt, block.load(a, "k/loop, r"), over="k")
        left = block.concat(xt, xa, dims="k r", to="c")
        right = block.concat(wt, block.load(c, "r, n/grid"), dims="k r", to="c")
        y = block.store(
            block.accumulate(
                block.matmul(block.cast(left, dtype="f32"), right, over="c")
            ),
            "m, n/grid",
        )
    xs, ws, low, up = draw((3, 13), (13, 6), (13, 2), (2, 6))
    graph = b.extent(c=tile + 2).returns(y).build()
    found = one(graph, xs, ws, low, up)
    np.testing.assert_allclose(found, xs @ ws + xs @ low @ up)
