"""The cost model against measured kernels (H100, cold inputs, no dependent launch)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import SearchError
from mirage_dsl.core.hardware import A100, H100, H200, hardware_named
from mirage_dsl.core.types import f16, f32
from mirage_dsl.cost.estimate import _covered, estimate, launched
from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.text.parser import parse
from tests.programs import mugraphs
from tests.search import blocks

MEASURED = [
    ("rms_linear 1", blocks.rms_linear(1), 19.2),
    ("rms_linear 8", blocks.rms_linear(8), 19.1),
    ("rms_linear 16", blocks.rms_linear(16), 19.6),
    ("gated_mlp 1", blocks.gated_mlp(1), 23.9),
    ("gated_mlp 8", blocks.gated_mlp(8), 24.8),
    ("gated_mlp 16", blocks.gated_mlp(16), 26.2),
    ("lora 1", blocks.lora(1), 16.1),
    ("lora 16", blocks.lora(16), 16.1),
    ("attention 1", blocks.attention(1), 26.7),
    ("attention 8", blocks.attention(8), 25.3),
    ("attention 16", blocks.attention(16), 30.7),
    ("split attention 1", blocks.split_attention(1, 16), 7.7),
    ("split attention 8", blocks.split_attention(8, 4), 14.6),
    ("split attention 16", blocks.split_attention(16, 2), 23.2),
    ("qknorm 1", blocks.split_attention(1, 16, norm=True), 8.9),
    ("qknorm 8", blocks.split_attention(8, 4, norm=True), 19.6),
    ("ntrans 1", blocks.ntrans(1), 2.1),
    ("ntrans 8", blocks.ntrans(8), 2.8),
    ("ntrans 16", blocks.ntrans(16), 3.3),
]


def time_of(graph: KernelGraph) -> float:
    return estimate(graph, H100).microseconds


@pytest.mark.parametrize(
    ("graph", "measured"), [m[1:] for m in MEASURED], ids=[m[0] for m in MEASURED]
)
def test_estimates_are_within_a_third_of_measurements(
    graph: KernelGraph, measured: float
) -> None:
    assert 0.65 * measured < time_of(graph) < 1.35 * measured


def staged(stages: int) -> float:
    return time_of(
        blocks.rms_linear(8, schedule=Schedule(4, stages, swap_operands=True))
    )


def test_about_eight_megabytes_in_stages_are_best() -> None:
    times = {n: staged(n) for n in range(2, 9)}
    assert min(times, key=times.__getitem__) in (5, 6)
    assert times[3] > 1.1 * times[5]
    assert times[8] > times[6]


@pytest.mark.parametrize(("batch", "best"), [(1, 16), (8, 4), (16, 2)])
def test_ranking_of_key_splits(batch: int, best: int) -> None:
    times = {
        n: time_of(blocks.split_attention(batch, n)) for n in (2, 4, 8, 16) if n != best
    }
    assert time_of(blocks.split_attention(batch, best)) <= 1.02 * min(times.values())


def test_splitting_the_keys_beats_one_kernel_where_blocks_are_few() -> None:
    assert time_of(blocks.split_attention(1, 16)) < 0.5 * time_of(blocks.attention(1))


def test_long_side_on_the_matrix_unit_is_faster() -> None:
    swapped = blocks.rms_linear(8)
    plain = blocks.rms_linear(8, schedule=Schedule(4, 5))
    assert time_of(swapped) < time_of(plain)


def test_narrow_tiles_lose() -> None:
    times = [time_of(blocks.rms_linear(8, tile=t)) for t in (16, 32, 64)]
    assert times == sorted(times, reverse=True)


def test_time_grows_with_the_bytes() -> None:
    graph = blocks.rms_linear(8)
    larger = graph.with_extents({"k": 8192})
    assert estimate(larger, H100).bytes > 1.9 * estimate(graph, H100).bytes
    assert time_of(larger) > 1.7 * time_of(graph)


def test_bytes_and_flops_of_a_fused_kernel() -> None:
    cost = estimate(blocks.rms_linear(8), H100)
    m, k, n = 16, 4096, 6144
    assert cost.bytes == 2 * (m * k + k * n + m * n)
    assert cost.kernels[0].tensor_flops == 2 * m * k * n
    assert cost.launches == 1
    assert cost.kernels[0].blocks == 96
    assert cost.kernels[0].iterations == 32


def test_views_are_free_and_library_kernels_are_not() -> None:
    x = {"x": blocks.tensor("m k")}
    view = blocks.op("v", "rename", "x")
    view = replace(view, attrs=(("dims", ("k",)), ("to", ("j",))))
    product = blocks.op("y", "matmul", "x", "v", over="m")
    sizes = {"m": 4096, "k": 4096, "j": 4096}
    graph = blocks.graph("g", x, (view, product), {"y": blocks.tensor("k j")}, **sizes)
    cost = estimate(graph, H100)
    assert cost.launches == 1
    least = 1e6 * 2 * 4096**3 / H100.tensor_rate
    assert least < cost.microseconds < 1.3 * least + 4


def test_a_concatenation_takes_the_time_of_its_bytes() -> None:
    """No place of an element is computed, as where operands are repeated."""
    g = KernelBuilder("joined", m=64, n=4096, t=1, d=64)
    x, y = g.input("x", f16, "m, n, d"), g.input("y", f16, "m, t, d")
    graph = g.returns(g.concat(x, y, dims="n, t", to="u")).build()
    moved = 2 * (64 * 4097 * 64 * 2)
    least = 1e6 * moved / H100.dram_rate
    assert least < time_of(graph) < 1.2 * least


def test_intermediates_in_l2_cost_no_dram() -> None:
    cost = estimate(blocks.split_attention(1, 16), H100)
    combine = cost.kernels[1]
    assert combine.dram_bytes == 2 * 256 * 64 * 2
    assert combine.l2_bytes > 10 * combine.dram_bytes


def test_faster_memory_is_faster() -> None:
    times = [estimate(blocks.rms_linear(8), h).microseconds for h in (H200, H100, A100)]
    assert times == sorted(times)


def test_a_loop_that_does_not_wait_covers_a_small_kernel_ahead() -> None:
    plain = mugraphs.side_product(8, 4096, 4096, 16, tile_k=256)
    waiting, covering = estimate(plain, H100), estimate(launched_early(plain), H100)
    assert covering.microseconds < waiting.microseconds - 2
    small, large = covering.kernels
    assert small.covered > 1
    assert small.microseconds + small.covered == waiting.kernels[0].microseconds
    assert large.microseconds < waiting.kernels[1].microseconds
    assert large.covered == 0
    # What joins split keys has to wait.
    split = launched_early(mugraphs.attention(32, 256, 4096, tile_m=64, splits=4))
    assert not any(k.covered for k in estimate(split, H100).kernels)


def test_what_takes_all_memory_is_not_covered() -> None:
    """Only what a kernel does not take from the one behind it is for nothing."""
    plain = mugraphs.side_product(16, 8192, 1024, 1024, tile_k=128, splits=16)
    small, _ = estimate(launched_early(plain), H100).kernels
    assert small.covered > 0
    assert small.microseconds == pytest.approx(1e6 * small.dram_bytes / H100.dram_rate)


@pytest.mark.parametrize(
    ("blocks", "memory", "behind", "covered"),
    [
        (1, 0.0, 50.0, 10.0 - 8.0 / H100.sms),
        (H100.sms // 2, 0.0, 50.0, 6.0),
        (4 * H100.sms, 0.0, 50.0, 2.0),
        (1, 7.0, 50.0, 3.0),
        (1, 12.0, 50.0, 0.0),
        (1, 0.0, 1.5, 1.5),
    ],
)
def test_what_a_loop_covers(
    blocks: int, memory: float, behind: float, covered: float
) -> None:
    some, _ = estimate(mugraphs.side_product(8, 4096, 4096, 16), H100).kernels
    moved = memory * 1e-6 * H100.dram_rate
    ahead = replace(
        some, microseconds=10.0, arithmetic=8.0, blocks=blocks, dram_bytes=moved
    )
    found = _covered(ahead, replace(some, microseconds=behind), H100)
    assert found.covered == pytest.approx(covered)
    assert found.microseconds == pytest.approx(10.0 - covered)


def test_what_does_not_fit_is_marked() -> None:
    cost = estimate(blocks.rms_linear(8, tile=256, step=256), H100)
    assert not cost.feasible
    assert "shared memory" in str(cost.kernels[0].limit)
    assert estimate(blocks.rms_linear(8), H100).feasible


def test_hardware_by_device_name() -> None:
    assert hardware_named("NVIDIA H100 80GB HBM3") is H100


def swapped(swap: bool) -> float:
    """µs of attention with running maxima; 32 rows transposed, or 64 as they are."""
    schedule = Schedule(4, 3, swap_operands=swap)
    rows = 32 if swap else 64
    return time_of(
        mugraphs.attention(2, 256, 4096, tile_m=rows, tile_n=128, schedule=schedule)
    )


def test_transposed_products_that_feed_each_other_are_slow() -> None:
    # Measured on an H200: 1.0 µs an iteration, and 0.5.
    assert swapped(True) > swapped(False)


def test_loads_too_small_to_run_ahead_are_slow() -> None:
    def with_vector(step: int) -> float:
        g = KernelBuilder("scaled", m=16, k=4096, n=6144)
        x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
        s = g.input("s", f16, "k")
        schedule = Schedule(4, 1024 // step, swap_operands=True)
        with g.block(grid={"n": 64}, loop=("k", step), schedule=schedule) as b:
            xt, st = b.load(x, "m, k/loop"), b.load(s, "k/loop")
            scaled = b.cast(b.mul(xt, st), dtype="f16")
            product = b.matmul(scaled, b.load(w, "k/loop, n/grid"), over="k")
            y = b.store(b.accumulate(product), "m, n/grid")
        return time_of(g.returns(y).build())

    # Measured on an H200 with two vectors: 15.5 and 43.2 µs.
    assert with_vector(128) > 1.3 * with_vector(256)


def test_a_concatenation_of_what_kernels_make_is_free() -> None:
    assert estimate(blocks.halves(), H100).launches == 1
    assert estimate(blocks.halves(copied=True), H100).launches == 3


# -- Rows that are far apart -----------------------------------------------------------

ELEMENTWISE = """
mirage 1

mugraph f(x: f32[d, m, v], b: f32[m]) -> f32[d, m, v] where d = 32, m = 64, v = {v} {{
  y = block {splits} {{
    x_t = load x[{x}]
    b_t = load b[{b}]
    s = add x_t, b_t
    store y: f32[{x}] = s
  }}
  return y
}}
"""


def of_rows(splits: str, x: str, b: str, v: int = 513 * 513) -> float:
    return time_of(parse(ELEMENTWISE.format(splits=splits, x=x, b=b, v=v)))


def test_tiles_of_short_rows_megabytes_apart_take_longer() -> None:
    """As measured: 64 bytes of each of a thousand rows streamed at a seventh."""
    apart = of_rows("grid(m / 32, v / 16)", "d, m/grid, v/grid", "m/grid")
    grid = "grid(d / 1, m / 1, v / 4096)"
    together = of_rows(grid, "d/grid, m/grid, v/grid", "m/grid")
    assert apart > 3 * together


def test_rows_that_are_no_whole_sectors_take_longer() -> None:
    """Of tiles that are alike but for where rows begin."""
    tiles = ("grid(d / 1, m / 16, v / 64)", "d/grid, m/grid, v/grid", "m/grid")
    odd, even = of_rows(*tiles, v=513 * 513), of_rows(*tiles, v=514 * 512)
    assert odd / (513 * 513) > even / (514 * 512)


def test_results_of_one_call_are_one_kernel() -> None:
    """PyTorch sorts once, for values and for indices."""

    def both(x: Any) -> Any:
        found = torch.sort(x, dim=-1)
        return found.values, found.indices

    graph = mirage.kernel(both).trace(mirage.spec((4, 1024), "float32"))
    assert len(graph.applies) > 1
    assert len(launched(graph)) == 1
    assert estimate(graph, H100).launches == 1


def library_bytes(function: Any, *shape: int) -> float:
    """Bytes of f32 numbers that the library moves, as a share of a read and a write."""
    graph = mirage.kernel(function).trace(mirage.spec(shape, "float32"))
    elements = 1
    for extent in shape:
        elements *= extent
    return estimate(graph, H200).bytes / (8 * elements)


def test_long_rows_of_a_softmax_are_read_three_times() -> None:
    assert library_bytes(mirage.softmax, 4096, 393216) == pytest.approx(2.0)
    # The rows that are at work at a time fit into L2.
    assert library_bytes(mirage.softmax, 4096, 4096) == pytest.approx(1.0)
    assert library_bytes(mirage.softmax, 16, 500_000) == pytest.approx(1.0)


def test_norms_of_short_rows_and_of_columns_take_longer() -> None:
    def by_axis(axis: int, *shape: int) -> float:
        def norm(x: Any) -> Any:
            return mirage.rms_norm(x, axis=axis)

        graph = mirage.kernel(norm).trace(mirage.spec(shape, "float32"))
        return estimate(graph, H200).microseconds

    # Measured: 47.4 ms.
    assert by_axis(1, 112, 64, 512, 512) == pytest.approx(47_400, rel=0.1)
    assert by_axis(3, 112, 512, 512, 64) < 0.9 * by_axis(1, 112, 64, 512, 512)
    assert by_axis(1, 4096, 8192) < 0.6 * by_axis(0, 8192, 4096)


def time_of_tiles(columns: int, *, summed: bool = False) -> float:
    """Of 1.6e9 numbers in tiles of so many columns, 8192 numbers each."""
    g = KernelBuilder("mapped", m=4096, k=393216)
    x = g.input("x", f32, "m, k")
    grid = {"m": 8192 // columns, "k": columns}
    with g.block(grid=grid, schedule=Schedule(num_warps=8)) as b:
        tile = b.load(x, "m/grid, k/grid")
        if summed:
            tile = b.sub(tile, b.sum(tile, over="k"))
        made = b.store(b.relu(tile), "m/grid, k/grid")
    return estimate(g.returns(made).build(), H200).microseconds


@pytest.mark.parametrize("columns", [2048, 4096, 8192])
def test_long_runs_of_maps_stream_slower(columns: int) -> None:
    """By the 3 to 4 % that were measured."""
    ratio = time_of_tiles(columns) / time_of_tiles(1024)
    assert 1.025 < ratio < 1.04


def test_runs_of_blocks_that_reduce_were_not_measured() -> None:
    several, one = (time_of_tiles(n, summed=True) for n in (1024, 8192))
    assert one < 1.02 * several


def test_many_results_of_few_numbers_take_a_library_long() -> None:
    """Pooling of 2 x 2, which a reduction of PyTorch's makes at 30 results a ns."""

    def pooled(x: Any) -> Any:
        return torch.nn.functional.avg_pool2d(x, 2)

    x = mirage.spec((128, 64, 256, 256), "float32")
    graph = mirage.kernel(pooled).trace(x)
    assert estimate(graph, H200).microseconds == pytest.approx(4368, rel=0.05)
    found = mirage.superoptimize(graph, hardware=H200, use_cache=False)
    assert found.best.mugraph.blocks
    assert found.best.cost.microseconds < 1500


WINDOWS = """mirage 1
mugraph f(x: f32[m, k], i: i64[n, w]) -> f32[m, n]
where m = 12288, k = 65536, n = 65536, w = 8 {
  rows = index n
  columns = index w
  y = block grid(n / 512, m / 1) {
    t = load x[m/grid, k]
    AT
    inside = less_equal 0, at
    place = where inside, at, 0
    p = gather t, place dim(k)
    v = where inside, p, -inf
    l = max v over(w)
    store y: f32[m/grid, n/grid] = l
  }
  return y
}
"""


def memory_of(at: str, text: str = WINDOWS) -> float:
    """µs of the memory's work for windows of positions."""
    loads = "r = load rows[n/grid]\n    c = load columns[w]\n    "
    (kernel,) = estimate(parse(text.replace("AT", loads + at)), H100).kernels
    return kernel.memory


def test_positions_that_follow_one_another_are_read_as_rows_are() -> None:
    """Windows of eight took 2.5 ms; by an index that is data they may lie anywhere."""
    steps = "a = add r, c\n    at = sub a, 4"
    windows = memory_of(steps)
    assert 2000 < windows < 3000
    assert memory_of("at = load i[n/grid, w]") > 3 * windows
    columns = "b = mul r, 512\n    d = mul c, 512\n    a = add b, d\n    at = sub a, 4"
    assert memory_of(columns) > 3 * windows


APART = """mirage 1
mugraph f(x: f32[b, m, k]) -> f32[b, m, n]
where b = 64, m = 192, k = 65536, n = 65536, w = 8 {
  rows = index n
  columns = index w
  y = block grid(n / 64, b / 1) loop(m / 16) num_warps(16) {
    r = load rows[n/grid]
    c = load columns[w]
    d = mul c, 3
    a = add r, d
    at = sub a, 4
    inside = less_equal 0, at
    t = load x[b/grid, m/loop, k]
    place = where inside, at, 0
    p = gather t, place dim(k)
    v = where inside, p, -inf
    l = max v over(w)
    all = accumulate l concat
    store y: f32[b/grid, m, n/grid] = all
  }
  return y
}
"""


def test_rows_between_windows_and_their_elements_part_neighbours() -> None:
    """As seen, 13 ms with 16 rows there; of tiles with a row each, 2.5."""
    parted, alone = parse(APART), parse(APART.replace("m / 16", "m / 1"))
    times = [estimate(g, H100).kernels[0].memory for g in (parted, alone)]
    assert times[0] > 3 * times[1]


COPIED_ON = """mirage 1

mugraph f(x: f32[m, k]) -> f32[m, k] where m = 32768, k = {k} {{
  y = block grid(m / {rows}) loop(k / {run}) num_warps(8) num_stages({stages}) {{
    x_t: f32[m/grid, k/loop] = load x
    v: f32[m/grid, k/loop] = add x_t, 1
    a: f32[m/grid, k] = accumulate v concat
    store y: f32[m/grid, k] = a
  }}
  return y
}}
"""


@pytest.mark.parametrize(
    ("k", "run", "stages", "measured"),
    [
        (3968, 16, 1, 603),
        (3968, 64, 1, 397),
        (3968, 1024, 1, 401),
        (3972, 16, 1, 1107),
        (3972, 64, 1, 523),
        (3972, 256, 1, 435),
        (3970, 64, 1, 562),
        (3970, 256, 1, 498),
        (3969, 16, 1, 1102),
        (3969, 64, 1, 630),
        (3969, 256, 1, 677),
        (3969, 16, 2, 1300),
        (3969, 64, 2, 1274),
        (3969, 1024, 2, 444),
    ],
)
def test_loops_that_store_parts_of_lines(
    k: int, run: int, stages: int, measured: float
) -> None:
    """Of rows that begin anywhere; measured in µs on an H100, in tiles of 4096."""
    text = COPIED_ON.format(k=k, rows=4096 // run, run=run, stages=stages)
    assert 0.75 * measured < time_of(parse(text)) < 1.25 * measured


def test_operands_of_products_are_copied_by_words_as_fast_as_others() -> None:
    """Measured on an H100: 21 µs; by the rate of rows that are mapped it were 43."""
    text = """mirage 1

mugraph f(x: f32[m, k], w: f32[k, n]) -> f32[m, n] where m = 16, k = 1000, n = 4099 {
  y = block grid(n / 32) loop(k / 128) num_stages(5) {
    x_t: f32[m, k/loop] = load x
    w_t: f32[k/loop, n/grid] = load w
    p: f32[m, n/grid] = matmul x_t, w_t over(k)
    a: f32[m, n/grid] = accumulate p
    store y: f32[m, n/grid] = a
  }
  return y
}
"""
    assert 0.75 * 21 < time_of(parse(text)) < 1.25 * 21


def looked_up(tile: int, rows: int, numbers: int = 16) -> KernelGraph:
    """Halves of bytes as places in a table, 4096 by 4096, times a vector."""
    return parse(f"""
mirage 1

mugraph f(x: f16[1, (m h)], q: u8[k, m], table: f32[n]) -> f32[1, k]
where m = 2048, h = 2, k = 4096, n = {numbers} {{
  p = index h
  y = block grid(k / {rows}) loop(m / {tile}) {{
    x_t: f16[1, (m/loop h)] = load x
    xf: f32[m/loop, h] = cast x_t dtype(f32)
    p_t: i64[h] = load p
    s4: i64[h] = mul p_t, 4
    s: u8[h] = to_u8 s4
    q_t: u8[k/grid, m/loop] = load q
    half: u8[k/grid, m/loop, h] = shift_right q_t, s
    four: u8[k/grid, m/loop, h] = bit_and half, 15
    i: i64[k/grid, m/loop, h] = to_i64 four
    table_t: f32[n] = load table
    g: f32[k/grid, m/loop, h] = gather table_t, i dim(n)
    v2: f32[k/grid] = matmul g, xf over(m, h)
    v3: f32[k/grid] = accumulate v2
    store y: f32[1, k/grid] = v3
  }}
  return y
}}
""")


@pytest.mark.parametrize(
    ("tile", "rows", "measured"), [(512, 8, 23.5), (256, 8, 24.1), (512, 4, 24.3)]
)
def test_small_tables_are_in_l1(tile: int, rows: int, measured: float) -> None:
    found = estimate(looked_up(tile, rows), H100).microseconds
    assert found == pytest.approx(measured, rel=0.3)


def test_long_tables_are_not() -> None:
    assert estimate(looked_up(512, 8, 2**16), H100).microseconds > 200


@pytest.mark.parametrize("axes", [("b", "m"), ("m", "b")])
def test_what_hangs_on_an_unknown_extent_has_no_price(axes: tuple[str, str]) -> None:
    """Nor is a product's copying looked into, which needs all of them."""
    outer, inner = axes
    source = f"""mirage 1

    mugraph f(x: f32[{outer}, {inner}, k], w: f32[k, n]) -> f32[r, n]
    where b = 3, m = 4, k = 8, n = 5 {{
      flat: f32[r, k] = flatten x of({outer}, {inner}) to(r)
      y: f32[r, n] = matmul flat, w over(k)
      return y
    }}
    """
    graph = parse(source)
    assert estimate(graph, H100).launches == 1
    unknown = {"b", "r"}
    extents = tuple((d, None if d in unknown else e) for d, e in graph.extents)
    with pytest.raises(SearchError, match="is not known"):
        estimate(replace(graph, extents=extents), H100)


def distances(rows: int, piece: int, warps: int) -> KernelGraph:
    """Of rows that lie together, in a loop over pieces of them."""
    return parse(f"""mirage 1

mugraph f(x: f32[m, k], y: f32[m, k], z: f32[m, k]) -> f32[m], f32[m]
where m = 32768, k = 8192 {{
  d, e = block grid(m / {rows}) loop(k / {piece}) num_warps({warps}) num_stages(4) {{
    xt: f32[m/grid, k/loop] = load x
    yt: f32[m/grid, k/loop] = load y
    zt: f32[m/grid, k/loop] = load z
    v1: f32[m/grid, k/loop] = sub xt, yt
    v2: f32[m/grid, k/loop] = mul v1, v1
    v3: f32[m/grid, k/loop] = sub xt, zt
    v4: f32[m/grid, k/loop] = mul v3, v3
    v5: f32[m/grid, k/loop] = accumulate v2
    v6: f32[m/grid, k/loop] = accumulate v4
    v7: f32[m/grid] = sum v5 over(k)
    v8: f32[m/grid] = sum v6 over(k)
    store d: f32[m/grid] = v7
    store e: f32[m/grid] = v8
  }}
  return d, e
}}
""")


@pytest.mark.parametrize(
    ("rows", "piece", "warps", "measured"),
    [(64, 16, 16, 1324), (32, 32, 16, 792), (16, 64, 16, 743), (8, 128, 16, 738)],
)
def test_short_pieces_of_rows_are_read_slowly(
    rows: int, piece: int, warps: int, measured: float
) -> None:
    """As a loop over such pieces was seen to take on an H200."""
    found = estimate(distances(rows, piece, warps), H200).microseconds
    assert found == pytest.approx(measured, rel=0.1)
