"""Programs and right μGraphs, built by hand, for the tests of verification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirage_dsl.core.types import f16, f32, scalar
from mirage_dsl.ir.builder import KernelBuilder, one_over
from mirage_dsl.ir.graph import KernelGraph

Maker = Callable[[], KernelGraph]
_EPS = scalar(1e-6)


def rms(b: Any, x: str, over: str) -> str:
    """The reciprocal root mean square."""
    mean = b.mul(b.sum(b.square(x), over=over), one_over(over))
    return b.rsqrt(b.add(mean, _EPS))


def rms_linear() -> KernelGraph:
    b: Any = KernelBuilder("rms_linear", m=16, k=4096, n=6144)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    return b.returns(b.matmul(b.mul(x, rms(b, x, "k")), w, over="k")).build()


def rms_linear_fused() -> KernelGraph:
    b: Any = KernelBuilder("rms_linear", m=16, k=4096, n=6144)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    with b.block(grid={"n": 64}, loop=("k", 128)) as t:
        xt, wt = t.load(x, "m, k/loop"), t.load(w, "k/loop, n/grid")
        squares = t.accumulate(t.square(xt))
        product = t.accumulate(t.matmul(xt, wt, over="k"))
        mean = t.mul(t.sum(squares, over="k"), one_over("k"))
        y = t.store(t.mul(product, t.rsqrt(t.add(mean, _EPS))), "m, n/grid")
    return b.returns(y).build()


def gated_mlp() -> KernelGraph:
    b: Any = KernelBuilder("gated_mlp", m=8, k=4096, n=4096)
    x = b.input("x", f16, "m, k")
    w1, w2 = b.input("w1", f16, "k, n"), b.input("w2", f16, "k, n")
    gate = b.silu(b.matmul(x, w1, over="k"))
    return b.returns(b.mul(gate, b.matmul(x, w2, over="k"))).build()


def gated_mlp_fused() -> KernelGraph:
    b: Any = KernelBuilder("gated_mlp", m=8, k=4096, n=4096)
    x = b.input("x", f16, "m, k")
    w1, w2 = b.input("w1", f16, "k, n"), b.input("w2", f16, "k, n")
    with b.block(grid={"n": 64}, loop=("k", 64)) as t:
        xt = t.load(x, "m, k/loop")
        up = t.accumulate(t.matmul(xt, t.load(w1, "k/loop, n/grid"), over="k"))
        side = t.accumulate(t.matmul(xt, t.load(w2, "k/loop, n/grid"), over="k"))
        y = t.store(t.mul(t.silu(up), side), "m, n/grid")
    return b.returns(y).build()


def lora() -> KernelGraph:
    b: Any = KernelBuilder("lora", m=1, k=4096, n=4096, r=16)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    a, c = b.input("a", f16, "k, r"), b.input("b", f16, "r, n")
    low = b.matmul(b.matmul(x, a, over="k"), c, over="r")
    return b.returns(b.add(b.matmul(x, w, over="k"), low)).build()


def lora_fused() -> KernelGraph:
    b: Any = KernelBuilder("lora", m=1, k=4096, n=4096, r=16)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    a, c = b.input("a", f16, "k, r"), b.input("b", f16, "r, n")
    with b.block(grid={"n": 64}, loop=("k", 64)) as t:
        xt, ct = t.load(x, "m, k/loop"), t.load(c, "r, n/grid")
        main = t.matmul(xt, t.load(w, "k/loop, n/grid"), over="k")
        xa = t.cast(t.matmul(xt, t.load(a, "k/loop, r"), over="k"), dtype="f16")
        both = t.accumulate(t.add(main, t.matmul(xa, ct, over="r")))
        y = t.store(both, "m, n/grid")
    return b.returns(y).build()


def lora_joined() -> KernelGraph:
    """LoRA with joined operands: (x, x a) times (w over b)."""
    b: Any = KernelBuilder("lora", m=1, k=4096, n=4096, r=16)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    a, c = b.input("a", f16, "k, r"), b.input("b", f16, "r, n")
    b.extent(j=4112)
    left = b.concat(x, b.matmul(x, a, over="k"), dims=("k", "r"), to="j")
    right = b.concat(w, c, dims=("k", "r"), to="j")
    return b.returns(b.matmul(left, right, over="j")).build()


def _attention_inputs(b: Any) -> tuple[str, str, str]:
    return (
        b.input("q", f16, "h, s, d"),
        b.input("k", f16, "h, d, t"),
        b.input("v", f16, "h, t, e"),
    )


_ATTENTION = {"h": 2, "s": 256, "d": 64, "t": 4096, "e": 64}


def attention() -> KernelGraph:
    """Softmax as the front end traces it, with a shift."""
    b: Any = KernelBuilder("attention", **_ATTENTION)
    q, k, v = _attention_inputs(b)
    logits = b.matmul(q, k, over="d")
    e = b.exp(b.sub(logits, b.rowshift(logits, over="t")))
    weights = b.div(e, b.sum(e, over="t"))
    return b.returns(b.matmul(weights, v, over="t")).build()


def attention_with_max() -> KernelGraph:
    """Softmax as a user writes it, with a maximum."""
    b: Any = KernelBuilder("attention", **_ATTENTION)
    q, k, v = _attention_inputs(b)
    logits = b.matmul(q, k, over="d")
    e = b.exp(b.sub(logits, b.max(logits, over="t")))
    weights = b.div(e, b.sum(e, over="t"))
    return b.returns(b.matmul(weights, v, over="t")).build()


def attention_unshifted() -> KernelGraph:
    b: Any = KernelBuilder("attention", **_ATTENTION)
    q, k, v = _attention_inputs(b)
    e = b.exp(b.matmul(q, k, over="d"))
    weights = b.div(e, b.sum(e, over="t"))
    return b.returns(b.matmul(weights, v, over="t")).build()


def attention_loop() -> KernelGraph:
    """One kernel, no running maximum."""
    b: Any = KernelBuilder("attention", **_ATTENTION)
    q, k, v = _attention_inputs(b)
    with b.block(grid={"h": 1, "s": 64}, loop=("t", 64)) as t:
        qt, kt = t.load(q, "h/grid, s/grid, d"), t.load(k, "h/grid, d, t/loop")
        vt = t.load(v, "h/grid, t/loop, e")
        e = t.exp(t.matmul(qt, kt, over="d"))
        total = t.accumulate(t.sum(e, over="t"))
        pv = t.matmul(t.cast(e, dtype="f16"), vt, over="t")
        y = t.store(t.div(t.accumulate(pv), total), "h/grid, s/grid, e")
    return b.returns(y).build()


def attention_online() -> KernelGraph:
    """One kernel with a running maximum."""
    b: Any = KernelBuilder("attention", **_ATTENTION)
    q, k, v = _attention_inputs(b)
    with b.block(grid={"h": 1, "s": 64}, loop=("t", 64)) as t:
        qt, kt = t.load(q, "h/grid, s/grid, d"), t.load(k, "h/grid, d, t/loop")
        vt = t.load(v, "h/grid, t/loop, e")
        logits = t.matmul(qt, kt, over="d")
        m = t.running_max(t.rowshift(logits, over="t"))
        e = t.exp(t.sub(logits, m))
        total = t.accumulate(t.sum(e, over="t"), rescale=m)
        pv = t.matmul(t.cast(e, dtype="f16"), vt, over="t")
        y = t.store(t.div(t.accumulate(pv, rescale=m), total), "h/grid, s/grid, e")
    return b.returns(y).build()


def sums_of_parts(b: Any, q: str, k: str, v: str) -> tuple[str, str]:
    """Numerators and denominators of attention, one for each part of the keys."""
    with b.block(grid={"h": 1, "s": 64, "t": 1024}, loop=("t", 64)) as t:
        qt, kt = t.load(q, "h/grid, s/grid, d"), t.load(k, "h/grid, d, t/grid/loop")
        vt = t.load(v, "h/grid, t/grid/loop, e")
        e = t.exp(t.matmul(qt, kt, over="d"))
        total = t.accumulate(t.sum(e, over="t"))
        pv = t.matmul(t.cast(e, dtype="f16"), vt, over="t")
        o = t.store(t.accumulate(pv), "h/grid, s/grid, e, t#/grid", dtype=f32)
        return o, t.store(total, "h/grid, s/grid, t#/grid", dtype=f32)


def flash_decoding() -> KernelGraph:
    """Keys split over the grid and the loop, no maximum; a second kernel combines."""
    b: Any = KernelBuilder("attention", **_ATTENTION)
    o, l = sums_of_parts(b, *_attention_inputs(b))  # noqa: E741
    with b.block(grid={"h": 1, "s": 64}) as c:
        ot = c.load(o, "h/grid, s/grid, e, t#")
        lt = c.load(l, "h/grid, s/grid, t#")
        mean = c.div(c.sum(ot, over="t#"), c.sum(lt, over="t#"))
        y = c.store(mean, "h/grid, s/grid, e", dtype=f16)
    return b.returns(y).build()


def flash_decoding_online() -> KernelGraph:
    """Keys split over the grid, a running maximum in each part (R6)."""
    b: Any = KernelBuilder("attention", **_ATTENTION)
    q, k, v = _attention_inputs(b)
    with b.block(grid={"h": 1, "s": 64, "t": 1024}, loop=("t", 64)) as t:
        qt, kt = t.load(q, "h/grid, s/grid, d"), t.load(k, "h/grid, d, t/grid/loop")
        vt = t.load(v, "h/grid, t/grid/loop, e")
        logits = t.matmul(qt, kt, over="d")
        m = t.running_max(t.rowshift(logits, over="t"))
        e = t.exp(t.sub(logits, m))
        total = t.accumulate(t.sum(e, over="t"), rescale=m)
        pv = t.matmul(t.cast(e, dtype="f16"), vt, over="t")
        pv = t.accumulate(pv, rescale=m)
        last = t.accumulate(m, kind="max")
        o = t.store(pv, "h/grid, s/grid, e, t#/grid", dtype=f32)
        l = t.store(total, "h/grid, s/grid, t#/grid", dtype=f32)  # noqa: E741
        p = t.store(last, "h/grid, s/grid, t#/grid", dtype=f32)
    with b.block(grid={"h": 1, "s": 64}) as c:
        ot = c.load(o, "h/grid, s/grid, e, t#")
        lt = c.load(l, "h/grid, s/grid, t#")
        pt = c.load(p, "h/grid, s/grid, t#")
        weight = c.exp(c.sub(pt, c.rowshift(pt, over="t#")))
        top = c.sum(c.mul(ot, weight), over="t#")
        below = c.sum(c.mul(lt, weight), over="t#")
        y = c.store(c.div(top, below), "h/grid, s/grid, e", dtype=f16)
    return b.returns(y).build()


def masked_attention() -> KernelGraph:
    b: Any = KernelBuilder("masked", **_ATTENTION)
    q, k, v = _attention_inputs(b)
    mask = b.input("mask", f16, "h, s, t")
    logits = b.where(mask, b.matmul(q, k, over="d"), scalar(float("-inf")))
    e = b.exp(b.sub(logits, b.rowshift(logits, over="t")))
    weights = b.div(e, b.sum(e, over="t"))
    return b.returns(b.matmul(weights, v, over="t")).build()


def masked_attention_online() -> KernelGraph:
    b: Any = KernelBuilder("masked", **_ATTENTION)
    q, k, v = _attention_inputs(b)
    mask = b.input("mask", f16, "h, s, t")
    with b.block(grid={"h": 1, "s": 64}, loop=("t", 64)) as t:
        qt, kt = t.load(q, "h/grid, s/grid, d"), t.load(k, "h/grid, d, t/loop")
        vt, mt = t.load(v, "h/grid, t/loop, e"), t.load(mask, "h/grid, s/grid, t/loop")
        dot = t.matmul(qt, kt, over="d")
        logits = t.where(mt, dot, scalar(float("-inf")))
        m = t.running_max(t.rowshift(logits, over="t"))
        e = t.exp(t.sub(logits, m))
        total = t.accumulate(t.sum(e, over="t"), rescale=m)
        pv = t.matmul(t.cast(e, dtype="f16"), vt, over="t")
        y = t.store(t.div(t.accumulate(pv, rescale=m), total), "h/grid, s/grid, e")
    return b.returns(y).build()


_QKNORM = {"h": 2, "s": 256, "d": 64, "t": 4096, "e": 64}


def _qknorm_inputs(b: Any) -> tuple[str, str, str]:
    return (
        b.input("q", f16, "h, s, d"),
        b.input("k", f16, "h, t, d"),
        b.input("v", f16, "h, t, e"),
    )


def qknorm() -> KernelGraph:
    b: Any = KernelBuilder("qknorm", **_QKNORM)
    q, k, v = _qknorm_inputs(b)
    qn, kn = b.mul(q, rms(b, q, "d")), b.mul(k, rms(b, k, "d"))
    logits = b.mul(b.matmul(qn, kn, over="d"), scalar(0.125))
    e = b.exp(b.sub(logits, b.rowshift(logits, over="t")))
    weights = b.div(e, b.sum(e, over="t"))
    return b.returns(b.matmul(weights, v, over="t")).build()


def qknorm_fused() -> KernelGraph:
    b: Any = KernelBuilder("qknorm", **_QKNORM)
    q, k, v = _qknorm_inputs(b)
    with b.block(grid={"h": 1, "s": 64}, loop=("t", 64)) as t:
        qt, kt = t.load(q, "h/grid, s/grid, d"), t.load(k, "h/grid, t/loop, d")
        vt = t.load(v, "h/grid, t/loop, e")
        dot = t.matmul(qt, kt, over="d")
        scale = t.mul(rms(t, qt, "d"), scalar(0.125))
        logits = t.mul(t.mul(dot, scale), rms(t, kt, "d"))
        m = t.running_max(t.rowshift(logits, over="t"))
        e = t.exp(t.sub(logits, m))
        total = t.accumulate(t.sum(e, over="t"), rescale=m)
        pv = t.matmul(t.cast(e, dtype="f16"), vt, over="t")
        y = t.store(t.div(t.accumulate(pv, rescale=m), total), "h/grid, s/grid, e")
    return b.returns(y).build()


def ntrans() -> KernelGraph:
    b: Any = KernelBuilder("ntrans", m=8, n=4096)
    x, h, alpha = (b.input(name, f16, "m, n") for name in ("x", "h", "alpha"))
    hn = b.mul(h, rms(b, h, "n"))
    y = b.add(x, b.mul(alpha, b.sub(hn, x)))
    return b.returns(b.mul(y, rms(b, y, "n"))).build()


def ntrans_fused() -> KernelGraph:
    b: Any = KernelBuilder("ntrans", m=8, n=4096)
    x, h, alpha = (b.input(name, f16, "m, n") for name in ("x", "h", "alpha"))
    with b.block(grid={"m": 1}) as t:
        xt, ht, at = (t.load(v, "m/grid, n") for v in (x, h, alpha))
        hn = t.mul(ht, rms(t, ht, "n"))
        y = t.add(xt, t.mul(at, t.sub(hn, xt)))
        z = t.store(t.mul(y, rms(t, y, "n")), "m/grid, n")
    return b.returns(z).build()


def linear() -> KernelGraph:
    b: Any = KernelBuilder("linear", m=16, k=4096, n=512)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    return b.returns(b.matmul(x, w, over="k")).build()


def split_k() -> KernelGraph:
    b: Any = KernelBuilder("linear", m=16, k=4096, n=512)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    with b.block(grid={"n": 64, "k": 1024}, loop=("k", 128)) as t:
        xt, wt = t.load(x, "m, k/grid/loop"), t.load(w, "k/grid/loop, n/grid")
        p = t.accumulate(t.matmul(xt, wt, over="k"))
        partial = t.store(p, "m, n/grid, k#/grid", dtype=f32)
    return b.returns(b.cast(b.sum(partial, over="k#"), dtype="f16")).build()


RIGHT: tuple[tuple[Maker, Maker], ...] = (
    (rms_linear, rms_linear_fused),
    (gated_mlp, gated_mlp_fused),
    (lora, lora_fused),
    (lora, lora_joined),
    (attention, attention_loop),
    (attention, attention_online),
    (attention, attention_unshifted),
    (attention, attention_with_max),
    (attention_with_max, attention_online),
    (attention_with_max, attention_with_max),
    (attention, flash_decoding),
    (attention, flash_decoding_online),
    (masked_attention, masked_attention_online),
    (qknorm, qknorm_fused),
    (ntrans, ntrans_fused),
    (linear, split_k),
)
"""Programs and right candidates."""
