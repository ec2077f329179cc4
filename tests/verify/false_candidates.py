"""Mistakes written out by hand, the QK-norm without a contraction among them."""

from __future__ import annotations

from typing import Any

from mirage_dsl.core.types import f16, f32, scalar
from mirage_dsl.ir.builder import KernelBuilder, one_over
from mirage_dsl.ir.graph import KernelGraph
from tests.verify import graphs


def qknorm_without_contraction() -> KernelGraph:
    """A block takes one row of K and nothing is contracted over d."""
    b: Any = KernelBuilder("qknorm", h=2, s=256, d=64, t=4096, e=64)
    q, k = b.input("q", f16, "h, s, d"), b.input("k", f16, "h, t, d")
    v = b.input("v", f16, "h, t, e")
    with b.block(grid={"h": 1, "s": 64}, loop=("t", 64)) as t:
        qt, kt = t.load(q, "h/grid, s/grid, d"), t.load(k, "h/grid, t/loop, d")
        vt = t.load(v, "h/grid, t/loop, e")
        a = t.mul(
            t.sum(t.mul(qt, graphs.rms(t, qt, "d")), over="d"), t.sum(kt, over="d")
        )
        logits = t.mul(t.mul(a, graphs.rms(t, kt, "d")), scalar(0.125))
        e = t.exp(logits)
        total = t.accumulate(t.sum(e, over="t"))
        pv = t.matmul(t.cast(e, dtype="f16"), vt, over="t")
        y = t.store(t.div(t.accumulate(pv), total), "h/grid, s/grid, e")
    return b.returns(y).build()


def softmax_normalised_per_tile() -> KernelGraph:
    """Each iteration divides by its own sum, then all are added."""
    b: Any = KernelBuilder("attention", h=2, s=256, d=64, t=4096, e=64)
    q, k = b.input("q", f16, "h, s, d"), b.input("k", f16, "h, d, t")
    v = b.input("v", f16, "h, t, e")
    with b.block(grid={"h": 1, "s": 64}, loop=("t", 64)) as t:
        qt, kt = t.load(q, "h/grid, s/grid, d"), t.load(k, "h/grid, d, t/loop")
        vt = t.load(v, "h/grid, t/loop, e")
        e = t.exp(t.matmul(qt, kt, over="d"))
        weights = t.cast(t.div(e, t.sum(e, over="t")), dtype="f16")
        y = t.accumulate(t.matmul(weights, vt, over="t"))
        y = t.store(y, "h/grid, s/grid, e")
    return b.returns(y).build()


def splits_combined_without_weights() -> KernelGraph:
    """Flash decoding whose parts have maxima of their own, added as they are."""
    b: Any = KernelBuilder("attention", h=2, s=256, d=64, t=4096, e=64)
    q, k = b.input("q", f16, "h, s, d"), b.input("k", f16, "h, d, t")
    v = b.input("v", f16, "h, t, e")
    with b.block(grid={"h": 1, "s": 64, "t": 1024}, loop=("t", 64)) as t:
        qt, kt = t.load(q, "h/grid, s/grid, d"), t.load(k, "h/grid, d, t/grid/loop")
        vt = t.load(v, "h/grid, t/grid/loop, e")
        logits = t.matmul(qt, kt, over="d")
        m = t.running_max(t.rowshift(logits, over="t"))
        e = t.exp(t.sub(logits, m))
        total = t.accumulate(t.sum(e, over="t"), rescale=m)
        pv = t.accumulate(t.matmul(t.cast(e, dtype="f16"), vt, over="t"), rescale=m)
        o = t.store(pv, "h/grid, s/grid, e, t#/grid", dtype=f32)
        n = t.store(total, "h/grid, s/grid, t#/grid", dtype=f32)
    with b.block(grid={"h": 1, "s": 64}) as c:
        top = c.sum(c.load(o, "h/grid, s/grid, e, t#"), over="t#")
        below = c.sum(c.load(n, "h/grid, s/grid, t#"), over="t#")
        y = c.store(c.div(top, below), "h/grid, s/grid, e", dtype=f16)
    return b.returns(y).build()


def linear_nonlinear_in_loop() -> KernelGraph:
    """An activation inside of the loop, where it meets partial sums only."""
    b: Any = KernelBuilder("gated_mlp", m=8, k=4096, n=4096)
    x = b.input("x", f16, "m, k")
    w1, w2 = b.input("w1", f16, "k, n"), b.input("w2", f16, "k, n")
    with b.block(grid={"n": 64}, loop=("k", 64)) as t:
        xt = t.load(x, "m, k/loop")
        up = t.matmul(xt, t.load(w1, "k/loop, n/grid"), over="k")
        side = t.accumulate(t.matmul(xt, t.load(w2, "k/loop, n/grid"), over="k"))
        y = t.store(t.mul(t.accumulate(t.silu(up)), side), "m, n/grid")
    return b.returns(y).build()


def mean_over_the_wrong_dim() -> KernelGraph:
    b: Any = KernelBuilder("rms_linear", m=16, k=4096, n=6144)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    mean = b.mul(b.sum(b.square(x), over="k"), one_over("n"))
    y = b.mul(x, b.rsqrt(b.add(mean, scalar(1e-6))))
    return b.returns(b.matmul(y, w, over="k")).build()


def mask_forgotten() -> KernelGraph:
    b: Any = KernelBuilder("masked", h=2, s=256, d=64, t=4096, e=64)
    q, k = b.input("q", f16, "h, s, d"), b.input("k", f16, "h, d, t")
    v = b.input("v", f16, "h, t, e")
    b.input("mask", f16, "h, s, t")
    e = b.exp(b.matmul(q, k, over="d"))
    weights = b.div(e, b.sum(e, over="t"))
    return b.returns(b.matmul(weights, v, over="t")).unchecked()


HAND_PICKED: tuple[tuple[graphs.Maker, graphs.Maker], ...] = (
    (graphs.qknorm, qknorm_without_contraction),
    (graphs.attention, softmax_normalised_per_tile),
    (graphs.attention, splits_combined_without_weights),
    (graphs.gated_mlp, linear_nonlinear_in_loop),
    (graphs.rms_linear, mean_over_the_wrong_dim),
    (graphs.masked_attention, mask_forgotten),
)
"""Programs and false candidates."""
