"""μGraphs written by hand: the known good ways to compute the workloads.

They serve the tests of every level and the checks on a GPU; nothing of the compiler
knows them.  Sizes, tiles and schedule are parameters.
"""

from __future__ import annotations

from mirage_dsl.core.types import DType, Scalar, f16, f32
from mirage_dsl.ir.builder import BlockBuilder, KernelBuilder, one_over
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.text.parser import parse

EPS = 1e-6


def inverse_rms(b: BlockBuilder, squares: str, dim: str) -> str:
    """1 / sqrt(mean + eps) of a sum of squares over `dim`."""
    mean = b.mul(squares, one_over(dim))
    return b.rsqrt(b.add(mean, EPS))


def rmsnorm_linear(
    m: int,
    k: int,
    n: int,
    *,
    tile_n: int = 64,
    tile_k: int = 128,
    tile_m: int | None = None,
    dtype: DType = f16,
    schedule: Schedule | None = None,
    layouts: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None),
) -> KernelGraph:
    """rms_norm(x) @ w, the norm folded into the product."""
    g = KernelBuilder("rmsnorm_linear", m=m, k=k, n=n)
    x = g.input("x", dtype, "m, k", layout=layouts[0])
    w = g.input("w", dtype, "k, n", layout=layouts[1])
    grid = {"n": tile_n} if tile_m is None else {"n": tile_n, "m": tile_m}
    rows = "m" if tile_m is None else "m/grid"
    with g.block(grid=grid, loop=("k", tile_k), schedule=schedule) as b:
        xt = b.load(x, f"{rows}, k/loop", name="xt")
        wt = b.load(w, "k/loop, n/grid", name="wt")
        squares = b.accumulate(b.square(xt), name="squares")
        product = b.accumulate(b.matmul(xt, wt, over="k"), name="product")
        scale = inverse_rms(b, b.sum(squares, over="k"), "k")
        y = b.store(b.mul(product, scale), f"{rows}, n/grid", name="y")
    return g.returns(y).build()


def gated_mlp(
    m: int,
    k: int,
    n: int,
    *,
    tile_n: int = 32,
    tile_k: int = 128,
    dtype: DType = f16,
    schedule: Schedule | None = None,
) -> KernelGraph:
    """silu(x @ w1) * (x @ w2) in one kernel."""
    g = KernelBuilder("gated_mlp", m=m, k=k, n=n)
    x = g.input("x", dtype, "m, k")
    w1 = g.input("w1", dtype, "k, n")
    w2 = g.input("w2", dtype, "k, n")
    with g.block(grid={"n": tile_n}, loop=("k", tile_k), schedule=schedule) as b:
        xt = b.load(x, "m, k/loop", name="xt")
        w1t = b.load(w1, "k/loop, n/grid", name="w1t")
        w2t = b.load(w2, "k/loop, n/grid", name="w2t")
        gate = b.accumulate(b.matmul(xt, w1t, over="k"), name="gate")
        up = b.accumulate(b.matmul(xt, w2t, over="k"), name="up")
        y = b.store(b.mul(b.silu(gate), up), "m, n/grid", name="y")
    return g.returns(y).build()


def lora(
    m: int,
    k: int,
    n: int,
    r: int = 16,
    *,
    tile_n: int = 64,
    tile_k: int = 128,
    dtype: DType = f16,
    schedule: Schedule | None = None,
) -> KernelGraph:
    """A low-rank adapter, x @ w + (x @ a) @ b, in one kernel."""
    g = KernelBuilder("lora", m=m, k=k, n=n, r=r)
    x = g.input("x", dtype, "m, k")
    w = g.input("w", dtype, "k, n")
    a = g.input("a", dtype, "k, r")
    b_ = g.input("b", dtype, "r, n")
    with g.block(grid={"n": tile_n}, loop=("k", tile_k), schedule=schedule) as b:
        xt = b.load(x, "m, k/loop", name="xt")
        wt = b.load(w, "k/loop, n/grid", name="wt")
        at = b.load(a, "k/loop, r", name="at")
        bt = b.load(b_, "r, n/grid", name="bt")
        base = b.accumulate(b.matmul(xt, wt, over="k"), name="base")
        low = b.accumulate(b.matmul(xt, at, over="k"), name="low")
        low = b.cast(low, dtype=dtype.name)
        y = b.add(base, b.matmul(low, bt, over="r"))
        out = b.store(y, "m, n/grid", name="y")
    return g.returns(out).build()


def attention(
    h: int,
    m: int,
    n: int,
    d: int = 64,
    *,
    tile_m: int = 64,
    tile_n: int = 64,
    splits: int = 1,
    safe: bool = True,
    keys_last: bool = True,
    norm: bool = False,
    factor: Scalar | None = None,
    dtype: DType = f16,
    schedule: Schedule | None = None,
) -> KernelGraph:
    """softmax(q @ k) @ v, with keys and values looped over.

    Args:
        h: Heads times batch.
        m: Queries.
        n: Keys.
        d: Elements of a head.
        tile_m: Queries of a block.
        tile_n: Keys of an iteration.
        splits: Between how many blocks the keys are split; a second kernel joins.
        safe: Keep running maxima.
        keys_last: The keys are (h, d, n), not (h, n, d).
        norm: Normalise queries and keys by their root mean square; logits / 8.
        factor: Of the logits.
        dtype: Storage format.
        schedule: Of the first kernel; the second overlaps if the first does.
    """
    g = KernelBuilder("attention", h=h, m=m, n=n, d=d, e=d)
    q = g.input("q", dtype, "h, m, d")
    k = g.input("k", dtype, "h, d, n" if keys_last else "h, n, d")
    v = g.input("v", dtype, "h, n, e")
    parts = {} if splits == 1 else {"n": -(-n // splits)}
    keys = "n/grid/loop" if parts else "n/loop"
    grid = {"h": 1, "m": tile_m, **parts}
    with g.block(grid=grid, loop=("n", tile_n), schedule=schedule) as b:
        stored = _attention_block(
            b,
            (q, k, v),
            keys,
            dtype,
            safe=safe,
            keys_last=keys_last,
            norm=norm,
            factor=factor,
            split=splits > 1,
        )
    if splits > 1:
        joining = Schedule(pdl=schedule is not None and schedule.pdl)
        with g.block(grid={"h": 1, "m": min(tile_m, 16)}, schedule=joining) as b:
            stored = (_join_splits(b, stored, dtype),)
    return g.returns(*stored).build()


def _logits(b: BlockBuilder, qt: str, kt: str, dtype: DType, *, norm: bool) -> str:
    """The product q @ k; if `norm`, of normalised rows, k's factor applied after."""
    if not norm:
        return b.matmul(qt, kt, over="d", name="logits")
    unit = inverse_rms(b, b.sum(b.square(qt), over="d"), "d")
    scaled = b.mul(b.mul(qt, unit), 0.125)
    qt = b.cast(scaled, dtype=dtype.name)
    logits = b.matmul(qt, kt, over="d", name="logits")
    unit = inverse_rms(b, b.sum(b.square(kt), over="d"), "d")
    return b.mul(logits, unit)


def _attention_block(
    b: BlockBuilder,
    inputs: tuple[str, str, str],
    keys: str,
    dtype: DType,
    *,
    safe: bool,
    keys_last: bool,
    norm: bool,
    factor: Scalar | None,
    split: bool,
) -> tuple[str, ...]:
    q, k, v = inputs
    qt = b.load(q, "h/grid, m/grid, d", name="qt")
    kt = b.load(
        k, f"h/grid, d, {keys}" if keys_last else f"h/grid, {keys}, d", name="kt"
    )
    vt = b.load(v, f"h/grid, {keys}, e", name="vt")
    logits = _logits(b, qt, kt, dtype, norm=norm)
    logits = logits if factor is None else b.mul(logits, factor, name="scores")
    largest = None
    weights = b.exp(logits) if not safe else ""
    if safe:
        largest = b.running_max(b.rowshift(logits, over="n"), name="largest")
        weights = b.exp(b.sub(logits, largest))
    total = b.accumulate(b.sum(weights, over="n"), rescale=largest, name="total")
    weights = b.cast(weights, dtype=dtype.name)
    out = b.accumulate(b.matmul(weights, vt, over="n"), rescale=largest, name="out")
    if not split:
        return (b.store(b.div(out, total), "h/grid, m/grid, e", name="y"),)
    parts = [
        b.store(out, "h/grid, m/grid, e, n#/grid", dtype=f32, name="outs"),
        b.store(total, "h/grid, m/grid, n#/grid", dtype=f32, name="totals"),
    ]
    if largest is not None:
        peak = b.accumulate(largest, "max")
        parts.append(b.store(peak, "h/grid, m/grid, n#/grid", dtype=f32, name="peaks"))
    return tuple(parts)


def _join_splits(b: BlockBuilder, parts: tuple[str, ...], dtype: DType) -> str:
    outs = b.load(parts[0], "h/grid, m/grid, e, n#")
    totals = b.load(parts[1], "h/grid, m/grid, n#")
    if len(parts) == 3:
        peaks = b.load(parts[2], "h/grid, m/grid, n#")
        weight = b.exp(b.sub(peaks, b.rowshift(peaks, over="n#")))
        outs, totals = b.mul(outs, weight), b.mul(totals, weight)
    y = b.div(b.sum(outs, over="n#"), b.sum(totals, over="n#"))
    return b.store(y, "h/grid, m/grid, e", dtype=dtype, name="y")


def norm_ahead(
    m: int,
    k: int,
    n: int,
    *,
    tile_n: int = 64,
    tile_k: int = 64,
    columns: bool = False,
    schedule: Schedule | None = None,
) -> KernelGraph:
    """X / rms(X) @ w, where a small kernel computes the norm.

    `schedule` is the large one's; with `columns`, those of w lie together.
    """
    g = KernelBuilder("norm_ahead", m=m, k=k, n=n)
    x = g.input("x", f16, "m, k")
    w = g.input("w", f16, "k, n", layout=(1, 0) if columns else None)
    with g.block(grid={"m": 1}) as b:
        xt = b.load(x, "m/grid, k")
        scale = inverse_rms(b, b.sum(b.square(xt), over="k"), "k")
        normed = b.store(b.mul(xt, scale), "m/grid, k", dtype=f16, name="normed")
    grid = {"n": tile_n}
    with g.block(grid=grid, loop=("k", tile_k), schedule=schedule) as b:
        nt, wt = b.load(normed, "m, k/loop"), b.load(w, "k/loop, n/grid")
        product = b.accumulate(b.matmul(nt, wt, over="k"))
        y = b.store(product, "m, n/grid", dtype=f16, name="y")
    return g.returns(y).build()


def side_product(
    m: int,
    k: int,
    n: int,
    h: int,
    *,
    tile_n: int = 64,
    tile_k: int = 64,
    splits: int = 2,
    schedule: Schedule | None = None,
) -> KernelGraph:
    """X @ w + (x @ a) @ b, where a small kernel computes x @ a, split over k.

    The large one needs its result after the loop only.  `schedule` is the large one's;
    the small one starts early if it does, so that it may be an inner part of a chain.
    """
    g = KernelBuilder("side_product", m=m, k=k, n=n, h=h)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    a, b_ = g.input("a", f16, "k, h"), g.input("b", f16, "h, n")
    early = Schedule(num_stages=2, pdl=schedule is not None and schedule.pdl)
    with g.block(grid={"k": -(-k // splits)}, loop=("k", tile_k), schedule=early) as b:
        xt, at = b.load(x, "m, k/grid/loop"), b.load(a, "k/grid/loop, h")
        small = b.accumulate(b.matmul(xt, at, over="k"))
        parts = b.store(small, "k#/grid, m, h", dtype=f32, name="parts")
    grid = {"n": tile_n}
    with g.block(grid=grid, loop=("k", tile_k), schedule=schedule) as b:
        xt, wt = b.load(x, "m, k/loop"), b.load(w, "k/loop, n/grid")
        large = b.accumulate(b.matmul(xt, wt, over="k"))
        small = b.sum(b.load(parts, "k#, m, h", name="parts_t"), over="k#")
        bt = b.load(b_, "h, n/grid")
        added = b.matmul(b.cast(small, dtype="f16"), bt, over="h")
        y = b.store(b.add(large, added), "m, n/grid", dtype=f16, name="y")
    return g.returns(y).build()


def ntrans(
    m: int,
    k: int,
    *,
    tile_m: int = 1,
    dtype: DType = f16,
    schedule: Schedule | None = None,
) -> KernelGraph:
    """rms(x + alpha * (rms(h) - x)), a whole row in a block."""
    g = KernelBuilder("ntrans", m=m, k=k)
    tensors = [g.input(name, dtype, "m, k") for name in ("x", "h", "alpha")]
    with g.block(grid={"m": tile_m}, schedule=schedule) as b:
        x, h, alpha = (b.load(t, "m/grid, k") for t in tensors)
        unit = inverse_rms(b, b.sum(b.square(h), over="k"), "k")
        mixed = b.add(x, b.mul(alpha, b.sub(b.mul(h, unit), x)))
        unit = inverse_rms(b, b.sum(b.square(mixed), over="k"), "k")
        y = b.store(b.mul(mixed, unit), "m/grid, k", name="y")
    return g.returns(y).build()


def split_k(
    m: int,
    k: int,
    n: int,
    *,
    tile_m: int = 32,
    tile_n: int = 32,
    part_k: int = 64,
    tile_k: int = 32,
    dtype: DType = f16,
    schedule: Schedule | None = None,
) -> KernelGraph:
    """The product x @ w with k split between blocks, and a second kernel that sums."""
    g = KernelBuilder("split_k", m=m, k=k, n=n)
    x, w = g.input("x", dtype, "m, k"), g.input("w", dtype, "k, n")
    grid = {"m": tile_m, "n": tile_n, "k": part_k}
    with g.block(grid=grid, loop=("k", tile_k), schedule=schedule) as b:
        xt = b.load(x, "m/grid, k/grid/loop")
        wt = b.load(w, "k/grid/loop, n/grid")
        product = b.accumulate(b.matmul(xt, wt, over="k"))
        parts = b.store(product, "k#/grid, m/grid, n/grid", dtype=f32)
    with g.block(grid={"m": tile_m, "n": tile_n}) as b:
        total = b.sum(b.load(parts, "k#, m/grid, n/grid"), over="k#")
        y = b.store(total, "m/grid, n/grid", dtype=dtype)
    return g.returns(y).build()


def odd_parts(m: int, k: int) -> KernelGraph:
    """Two parts of a concatenation, the second one of which another kernel reads."""
    g = KernelBuilder("odd", m=m, k=k)
    x = g.input("x", f16, "m, k")
    with g.block(grid={"m": 2}) as b:
        t = b.load(x, "m/grid, k")
        first, second = (
            b.store(v, "m/grid, k", dtype=f16) for v in (b.square(t), b.neg(t))
        )
    with g.block(grid={"m": 3}) as b:
        again = b.store(b.exp(b.load(second, "m/grid, k")), "m/grid, k", dtype=f16)
    joined = g.concat(first, second, again, dims="k, k, k", to="j")
    return g.returns(joined).build()


def positions_in_parts() -> KernelGraph:
    """A kernel reads positions of which a view makes two dims."""
    g = KernelBuilder("counted", a=2, b=4, k=16, m=8)
    x, i = g.input("x", f16, "(a b), k"), g.index("i", "m")
    parts = g.unflatten(i, dim="m", gives="a, b")
    with g.block(grid={"a": 1}) as b:
        t = b.load(x, "(a/grid b), k")
        moved = b.add(t, b.to_f32(b.load(parts, "a/grid, b")))
        out = b.store(moved, "a/grid, b, k", dtype=f16)
    return g.returns(out).build()


_MASKED = """mirage 1
mugraph masked(
    q: f16[b, h, n, d], k: f16[b, h, m, d], v: f16[b, h, m, d]MASK
) -> f16[b, h, n, d]
where b = {batches}, h = {heads}, n = {length}, m = {length}, d = {width} {{
INDICES
  y = block grid(b / 1, h / 1, n / {tile}) loop(m / 64)BOUND {{
    q_t = load q[b/grid, h/grid, n/grid, d]
    k_t = load k[b/grid, h/grid, m/loop, d]
    v_t = load v[b/grid, h/grid, m/loop, d]
SEEN
    s = matmul q_t, k_t over(d)
    w = where(seen, s, -inf)
    t = rowshift w over(m)
    top = running max t
    p = exp(w - top)
    p16 = cast p dtype(f16)
    o = matmul p16, v_t over(m)
    os = accumulate o rescale top
    l = sum p over(m)
    ls = accumulate l rescale top
    z = os / ls
    store y: f16[b/grid, h/grid, n/grid, d] = z
  }}
  return y
}}
"""
_MASKS = {
    "causal": {
        "INDICES": "  i = index n\n  j = index m",
        "BOUND": " while(m <= n)",
        "SEEN": """
    i_t = load i[n/grid]
    j_t = load j[m/loop]
    seen = j_t <= i_t""",
    },
    "each pair": {
        "MASK": ", mask: bool[1, 1, n, m]",
        "SEEN": "    seen = load mask[1, 1, n/grid, m/loop]",
    },
    "each key": {
        "MASK": ", mask: bool[m]",
        "SEEN": "    seen = load mask[m/loop]",
    },
}


def masked_attention(
    batches: int,
    mask: str,
    *,
    heads: int = 32,
    length: int = 2048,
    width: int = 128,
    tile: int = 128,
) -> KernelGraph:
    """Attention whose mask is causal, or a truth value of each pair or of each key."""
    text = _MASKED.format(
        batches=batches, heads=heads, length=length, width=width, tile=tile
    )
    for place in ("INDICES", "MASK", "BOUND", "SEEN"):
        text = text.replace(place, _MASKS[mask].get(place, ""))
    return parse(text)
