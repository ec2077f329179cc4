"""Times of kernels written by hand in Triton, measured on an H100, as μGraphs.

Cold inputs, one call inside a CUDA graph, no dependent launches; all configurations
whose description says how they were tiled.  They were measured before this project's
own kernels existed and are no output of its generator, so they show how well the cost
model's physics carries over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mirage_dsl.core.types import f16, f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Schedule, Split
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.rewrite.loops import split_loop
from tests.programs import mugraphs


@dataclass(frozen=True)
class Figure:
    """One measured kernel.

    Attributes:
        workload: What it computes.
        batch: The published batch.
        form: How, in words.
        graph: The same as a μGraph.
        microseconds: Measured.
    """

    workload: str
    batch: int
    form: str
    graph: KernelGraph
    microseconds: float


def figures() -> list[Figure]:
    """All of them."""
    makers = (_norm_linear, _gated, _bare, _lora, _gqa, _qknorm, _ntrans)
    return [f for maker in makers for f in maker()]


def _schedule(stages: int, flags: str = "", warps: int = 4) -> Schedule:
    """`T` transposes products, `D` loads by descriptors, `S` shares tiles."""
    return Schedule(
        warps,
        stages,
        swap_operands="T" in flags,
        descriptors="D" in flags,
        second_load="S" not in flags,
    )


def split(graph: KernelGraph, parts: int) -> KernelGraph:
    """A μGraph of one kernel with its loop in `parts`, which a second kernel joins."""
    halves = split_loop(graph, 0)
    assert halves is not None
    first, second = halves.nodes
    assert isinstance(first, BlockGraph)
    assert isinstance(second, BlockGraph)
    *grid, last = first.grid
    extent = halves.extent_of[last.dim]
    assert extent is not None
    first = replace(first, grid=(*grid, Split(last.dim, extent // parts)))
    own = {s.dim: s.tile for s in grid}
    whole = {n: e or 1 for n, e in halves.extents}
    cuts = [Split(s.dim, own.get(s.dim, whole[s.dim])) for s in second.grid]
    second = replace(second, grid=tuple(cuts))
    sized = replace(halves, nodes=(first, second))
    return sized.with_extents(derived_extents(sized, sized.extent_of))


# -- Products that stream weights ------------------------------------------------------


def _norm_linear() -> Iterator[Figure]:
    def one(b: int, form: str, measured: float, stages: int, flags: str) -> Figure:
        schedule = _schedule(stages, flags)
        graph = mugraphs.rmsnorm_linear(2 * b, 4096, 6144, schedule=schedule)
        return Figure("rmsnorm_linear", b, form, graph, measured)

    def parted(b: int, measured: float) -> Figure:
        graph = mugraphs.rmsnorm_linear(
            2 * b, 4096, 6144, schedule=_schedule(3, "" if b == 1 else "T")
        )
        return Figure("rmsnorm_linear", b, "2 parts", split(graph, 2), measured)

    yield one(1, "descriptors", 19.2, 5, "D")
    yield one(1, "pointers, one copy of x", 28.0, 5, "S")
    yield one(1, "transposed, descriptors", 20.0, 5, "TD")
    yield parted(1, 20.6)
    for stages, measured in ((3, 22.6), (4, 19.5), (5, 19.1), (6, 19.7), (8, 21.3)):
        yield one(8, f"transposed, {stages} stages", measured, stages, "T")
    yield one(8, "descriptors", 19.6, 5, "D")
    yield one(8, "pointers, one copy of x", 30.0, 5, "S")
    yield parted(8, 22.9)
    yield Figure("rmsnorm_linear", 8, "norm first", _norm_first(16), 20.9)
    yield one(16, "transposed", 19.6, 5, "T")
    yield one(16, "descriptors", 20.1, 5, "D")
    yield one(16, "pointers, one copy of x", 46.3, 5, "S")
    yield Figure("rmsnorm_linear", 16, "norm first", _norm_first(32), 21.2)
    yield parted(16, 21.9)


def _norm_first(m: int) -> KernelGraph:
    """The norm in a kernel of its own, then the product."""
    g = KernelBuilder("norm_first", m=m, k=4096, n=6144)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    with g.block(grid={"m": 1}, schedule=Schedule(8, 1)) as b:
        row = b.load(x, "m/grid, k")
        unit = mugraphs.inverse_rms(b, b.sum(b.square(row), over="k"), "k")
        z = b.store(b.mul(row, unit), "m/grid, k", dtype=f16, name="z")
    with g.block(grid={"n": 64}, loop=("k", 128), schedule=_schedule(5, "T")) as b:
        product = b.matmul(
            b.load(z, "m, k/loop"), b.load(w, "k/loop, n/grid"), over="k"
        )
        y = b.store(b.accumulate(product), "m, n/grid", dtype=f16, name="y")
    return g.returns(y).build()


def _gated() -> Iterator[Figure]:
    def one(
        b: int, form: str, measured: float, tile: int, stages: int, flags: str
    ) -> Figure:
        graph = mugraphs.gated_mlp(
            8 * b, 4096, 4096, tile_n=tile, schedule=_schedule(stages, flags)
        )
        return Figure("gated_mlp", b, form, graph, measured)

    def parted(b: int, measured: float) -> Figure:
        graph = mugraphs.gated_mlp(8 * b, 4096, 4096, schedule=_schedule(3, "D"))
        return Figure("gated_mlp", b, "2 parts", split(graph, 2), measured)

    yield one(1, "transposed, descriptors", 23.9, 64, 4, "TD")
    yield one(1, "descriptors", 24.0, 32, 4, "D")
    yield one(1, "pointers", 26.1, 32, 4, "")
    yield parted(1, 25.5)
    yield one(8, "descriptors", 24.8, 32, 4, "D")
    yield one(8, "pointers", 25.5, 32, 4, "")
    yield parted(8, 29.3)
    yield one(16, "descriptors", 26.3, 32, 4, "D")
    yield one(16, "pointers", 27.2, 32, 4, "")
    yield one(16, "3 stages", 31.2, 32, 3, "D")
    yield parted(16, 34.2)


def _product(m: int, k: int, n: int, step: int, schedule: Schedule) -> KernelGraph:
    g = KernelBuilder("product", m=m, k=k, n=n)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    with g.block(grid={"n": 64}, loop=("k", step), schedule=schedule) as b:
        product = b.matmul(
            b.load(x, "m, k/loop"), b.load(w, "k/loop, n/grid"), over="k"
        )
        y = b.store(b.accumulate(product), "m, n/grid", dtype=f16, name="y")
    return g.returns(y).build()


def _bare() -> Iterator[Figure]:
    for m, pointers, descriptors in (
        (16, 13.5, 13.5),
        (8, 14.0, 13.4),
        (1, 15.5, 13.2),
    ):
        one = _product(m, 4096, 4096, 128, _schedule(6, "T"))
        yield Figure("product", m, "pointers", one, pointers)
        other = _product(m, 4096, 4096, 256, _schedule(4, "TD"))
        yield Figure("product", m, "descriptors", other, descriptors)
    deep = _product(16, 4096, 6144, 128, _schedule(5, "T"))
    yield Figure("product", 16, "6144 columns", deep, 18.7)


def _lora() -> Iterator[Figure]:
    for b in (1, 8, 16):
        graph = mugraphs.lora(b, 4096, 4096, tile_k=256, schedule=_schedule(4, "TD"))
        yield Figure("lora", b, "one kernel", graph, 16.1)
        yield Figure("lora", b, "small product first", _lora_first(b), 17.4)


def _lora_first(m: int) -> KernelGraph:
    """The small product by four blocks, read after the loop of the large one."""
    g = KernelBuilder("lora_first", m=m, k=4096, n=4096, r=16)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    a, c = g.input("a", f16, "k, r"), g.input("c", f16, "r, n")
    with g.block(grid={"k": 1024}, loop=("k", 256), schedule=_schedule(4)) as b:
        low = b.matmul(
            b.load(x, "m, k/grid/loop"), b.load(a, "k/grid/loop, r"), over="k"
        )
        parts = b.store(b.accumulate(low), "k#/grid, m, r", dtype=f32, name="parts")
    with g.block(grid={"n": 64}, loop=("k", 256), schedule=_schedule(4, "TD")) as b:
        product = b.matmul(
            b.load(x, "m, k/loop"), b.load(w, "k/loop, n/grid"), over="k"
        )
        low = b.sum(b.load(parts, "k#, m, r"), over="k#")
        low = b.matmul(b.cast(low, dtype="f16"), b.load(c, "r, n/grid"), over="r")
        total = b.add(b.accumulate(product), low)
        y = b.store(total, "m, n/grid", dtype=f16, name="y")
    return g.returns(y).build()


# -- Attention -------------------------------------------------------------------------


def _attention(
    b: int,
    splits: int,
    tile: int,
    stages: int,
    flags: str = "",
    *,
    safe: bool = False,
    norm: bool = False,
    rows: int = 64,
    warps: int = 4,
) -> KernelGraph:
    return mugraphs.attention(
        2 * b,
        256,
        4096,
        tile_m=rows,
        tile_n=tile,
        splits=splits,
        safe=safe,
        norm=norm,
        keys_last=not norm,
        schedule=_schedule(stages, flags, warps),
    )


def _gqa() -> Iterator[Figure]:
    for splits, measured in ((16, 7.9), (8, 8.1), (32, 13.0), (1, 26.7)):
        graph = _attention(1, splits, 64, 4)
        yield Figure("gqa", 1, f"{splits} parts", graph, measured)
    graph = _attention(1, 8, 128, 3, "D", safe=True)
    yield Figure("gqa", 1, "8 parts, running maximum", graph, 9.0)
    for splits, measured in ((4, 14.7), (2, 17.3), (8, 18.0), (1, 25.3)):
        graph = _attention(8, splits, 128, 3, "D")
        yield Figure("gqa", 8, f"{splits} parts", graph, measured)
    yield Figure("gqa", 8, "4 stages", _attention(8, 4, 128, 4, "D"), 19.7)
    graph = _attention(8, 4, 128, 3, "D", safe=True)
    yield Figure("gqa", 8, "4 parts, running maximum", graph, 15.5)
    for splits, measured in ((2, 23.3), (1, 30.7), (4, 31.0)):
        graph = _attention(16, splits, 64, 5)
        yield Figure("gqa", 16, f"{splits} parts", graph, measured)
    for stages, measured in ((3, 27.1), (2, 42.0)):
        graph = _attention(16, 2, 64, stages)
        yield Figure("gqa", 16, f"{stages} stages", graph, measured)
    for stages, measured in ((3, 24.3), (4, 35.1)):
        graph = _attention(16, 2, 128, stages, "D", safe=True)
        form = f"running maximum, {stages} stages"
        yield Figure("gqa", 16, form, graph, measured)
    wide = _attention(16, 2, 128, 3, "D", rows=128, warps=8)
    yield Figure("gqa", 16, "8 warps", wide, 28.7)


def _qknorm() -> Iterator[Figure]:
    for safe, measured in ((False, 8.9), (True, 9.8)):
        graph = _attention(1, 16, 64, 3, safe=safe, norm=True)
        yield Figure("qknorm", 1, _maximum(safe), graph, measured)
    for safe, measured in ((False, 19.6), (True, 21.6)):
        graph = _attention(8, 4, 128, 3, "D", safe=safe, norm=True)
        yield Figure("qknorm", 8, _maximum(safe), graph, measured)
    for safe, measured in ((False, 30.3), (True, 35.2)):
        graph = _attention(16, 4, 128, 3, "D", safe=safe, norm=True, rows=128)
        yield Figure("qknorm", 16, _maximum(safe), graph, measured)
    graph = _attention(16, 4, 128, 4, "D", norm=True, rows=128)
    yield Figure("qknorm", 16, "4 stages", graph, 45.4)


def _maximum(safe: bool) -> str:
    return "running maximum" if safe else "no maximum"


def _ntrans() -> Iterator[Figure]:
    for b, measured in ((1, 2.1), (8, 2.8), (16, 3.3)):
        graph = mugraphs.ntrans(8 * b, 4096, schedule=Schedule(16, 1))
        yield Figure("ntrans", b, "one row a block", graph, measured)
