"""The workloads' μGraphs: interpreted, compiled for GPUs, and as golden source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from mirage_dsl.backends.triton.lowering.emit import emit, plan
from mirage_dsl.backends.triton.lowering.kernel import Variant
from mirage_dsl.backends.triton.running import screen
from mirage_dsl.backends.triton.running.interpret import interpreting, load_module
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import (
    KernelReport,
    compile_kernel,
    compile_only,
)
from mirage_dsl.core.errors import (
    CompileError,
    DTypeError,
    ShapeError,
    UnsupportedError,
)
from mirage_dsl.core.types import bf16, f16, f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph, Schedule
from tests.backends.running import (
    allowed,
    as_array,
    check,
    compare,
    random_inputs,
)
from tests.programs import mugraphs

SWAP = Schedule(swap_operands=True)

SMALL: dict[str, KernelGraph] = {
    "rmsnorm_linear": mugraphs.rmsnorm_linear(8, 64, 96, tile_n=32, tile_k=16),
    "rmsnorm_linear-grid2": mugraphs.rmsnorm_linear(
        10, 64, 90, tile_n=32, tile_k=24, tile_m=4
    ),
    "rmsnorm_linear-1row": mugraphs.rmsnorm_linear(
        1, 60, 90, tile_n=32, tile_k=16, dtype=bf16
    ),
    "rmsnorm_linear-columns": mugraphs.rmsnorm_linear(
        8, 60, 40, tile_n=16, tile_k=16, layouts=((1, 0), (1, 0))
    ),
    "rmsnorm_linear-swap": mugraphs.rmsnorm_linear(
        7, 60, 90, tile_n=32, tile_k=16, schedule=SWAP
    ),
    "gated_mlp": mugraphs.gated_mlp(8, 64, 96, tile_n=32, tile_k=16),
    "gated_mlp-swap": mugraphs.gated_mlp(
        5, 60, 90, tile_n=32, tile_k=16, dtype=f32, schedule=SWAP
    ),
    "lora": mugraphs.lora(4, 64, 96, 8, tile_n=32, tile_k=16),
    "lora-swap": mugraphs.lora(5, 60, 90, 8, tile_n=32, tile_k=16, schedule=SWAP),
    "attention": mugraphs.attention(2, 32, 48, 16, tile_m=16, tile_n=16),
    "attention-ragged": mugraphs.attention(
        2, 30, 45, 12, tile_m=16, tile_n=16, dtype=f32
    ),
    "attention-bf16": mugraphs.attention(
        2, 30, 45, 12, tile_m=16, tile_n=16, dtype=bf16
    ),
    "attention-swap": mugraphs.attention(
        1, 3, 45, 12, tile_m=3, tile_n=16, schedule=SWAP
    ),
    "attention-unsafe": mugraphs.attention(
        2, 30, 45, 12, tile_m=16, tile_n=16, safe=False, dtype=bf16
    ),
    "flash_decoding": mugraphs.attention(
        2, 5, 50, 12, tile_m=5, tile_n=8, splits=3, dtype=f32
    ),
    "flash_decoding-unsafe": mugraphs.attention(
        2, 30, 45, 12, tile_m=16, tile_n=8, splits=2, safe=False, dtype=f32
    ),
    "qknorm": mugraphs.attention(
        2, 30, 45, 12, tile_m=16, tile_n=8, splits=2, keys_last=False, norm=True
    ),
    "ntrans": mugraphs.ntrans(5, 30),
    "ntrans-rows": mugraphs.ntrans(5, 30, tile_m=2, dtype=f32),
    "split_k": mugraphs.split_k(
        20, 100, 40, tile_m=16, tile_n=16, part_k=48, tile_k=16
    ),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", SMALL)
def test_interpreted(name: str) -> None:
    check(SMALL[name])


def test_running_maxima_keep_large_logits_in_range() -> None:
    graph = SMALL["attention-ragged"]
    q, k, v = random_inputs(graph)
    check(graph, [q * 100, k * 10, v], tolerance=1e-4)


def test_rows_that_are_masked_at_first() -> None:
    """A first tile of -inf logits must not spoil what follows."""
    graph = mugraphs.attention(1, 4, 32, 8, tile_m=4, tile_n=8, dtype=f32)
    q, k, v = torch.ones(1, 4, 8), torch.randn(1, 8, 32), torch.randn(1, 32, 8)
    k[:, 0, :8] = float("-inf")
    check(graph, [q, k, v])


def test_tensor_descriptors_compute_the_same() -> None:
    """Boxes padded, cut by the grid and past the end; keys reached by two splits."""
    tma = Schedule(descriptors=True)
    graphs = [
        mugraphs.rmsnorm_linear(1, 64, 96, tile_n=32, tile_k=24, schedule=tma),
        mugraphs.rmsnorm_linear(
            7, 64, 96, tile_n=24, tile_k=24, tile_m=3, schedule=tma
        ),
        mugraphs.lora(8, 64, 96, 8, tile_n=32, tile_k=16, schedule=tma),
        mugraphs.attention(2, 30, 48, 24, tile_m=16, tile_n=8, splits=3, schedule=tma),
        mugraphs.attention(2, 30, 48, 24, tile_m=16, tile_n=7, splits=3, schedule=tma),
        mugraphs.rmsnorm_linear(
            8, 64, 48, tile_n=16, tile_k=16, layouts=((1, 0), (1, 0)), schedule=tma
        ),
    ]
    for graph in graphs:
        assert "TensorDescriptor(" in emit(graph)
        check(graph)


def test_tensors_that_descriptors_cannot_express_use_pointers() -> None:
    tma = Schedule(descriptors=True)
    graph = mugraphs.rmsnorm_linear(8, 64, 96, tile_n=32, tile_k=16, schedule=tma)
    x, w = random_inputs(graph)
    check(graph, [x.T.contiguous().T, w])
    check(graph, [x, torch.nn.functional.pad(w, (1, 0))[:, 1:]])


@pytest.mark.parametrize("tile_k", [32, 64])
def test_tiles_lie_in_shared_memory_where_the_copy_engine_may_write(
    tile_k: int,
) -> None:
    """The second stage of a tile of 64 bytes would not be at a multiple of 128."""
    g = KernelBuilder("scaled", m=16, k=256, n=96)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    gain = g.input("gain", f16, "k")
    tma = Schedule(descriptors=True, num_stages=3)
    with g.block(grid={"n": 32}, loop=("k", tile_k), schedule=tma) as b:
        xt, gt = b.load(x, "m, k/loop"), b.load(gain, "k/loop")
        scaled = b.cast(b.mul(xt, gt), dtype="f16")
        total = b.matmul(scaled, b.load(w, "k/loop, n/grid"), over="k")
        y = b.store(b.accumulate(total), "m, n/grid")
    graph = g.returns(y).build()
    assert ("gain_desc" in emit(graph)) == (tile_k == 64)
    check(graph)


# -- Compiled without a GPU ----------------------------------------------------------

HOPPER: dict[str, Callable[[], KernelGraph]] = {
    "rmsnorm_linear": lambda: mugraphs.rmsnorm_linear(
        16, 4096, 6144, schedule=Schedule(num_stages=5, swap_operands=True)
    ),
    "gated_mlp": lambda: mugraphs.gated_mlp(
        64, 4096, 4096, schedule=Schedule(num_stages=4)
    ),
    "lora": lambda: mugraphs.lora(
        8, 4096, 4096, schedule=Schedule(num_stages=4, swap_operands=True)
    ),
    "attention": lambda: mugraphs.attention(16, 256, 4096, tile_n=128, splits=4),
    "descriptors": lambda: mugraphs.gated_mlp(
        64, 4096, 4096, schedule=Schedule(num_stages=4, descriptors=True)
    ),
    "split_k": lambda: mugraphs.split_k(
        64, 4096, 4096, tile_m=64, tile_n=64, part_k=1024, tile_k=64
    ),
}


@pytest.mark.parametrize("descriptors", [False, True])
def test_offsets_of_64_bits_compute_the_same(descriptors: bool) -> None:
    """With pieces that move in the grid, in the loop, in both, and not at all."""
    schedule = Schedule(descriptors=descriptors, pdl=True, prefetch=2)
    graphs = [
        mugraphs.norm_ahead(16, 256, 128, schedule=schedule),
        mugraphs.side_product(16, 256, 128, 16, schedule=schedule),
        mugraphs.attention(2, 64, 128, 64, splits=2, schedule=schedule),
    ]
    for graph in graphs:
        emitted = plan(graph, Variant(wide=True))
        assert "int64" in emitted.source
        for kernel in emitted.kernels:
            compile_kernel(emitted, kernel, 90)
        inputs = random_inputs(graph)
        with interpreting():
            found = load_module(emitted.source, interpret=True).run(*inputs)
        right = evaluate_numpy(graph, *[as_array(t) for t in inputs])
        compare(graph, found, right, allowed(graph))


@pytest.mark.parametrize("name", HOPPER)
def test_compiled_for_hopper(name: str) -> None:
    """The matrix unit is used, all loads of the loop are pipelined, nothing spills."""
    first, *others = compile_only(HOPPER[name]())
    assert first.products == "wgmma"
    assert first.pipelined_loads >= 2
    assert [r.rejection() for r in (first, *others)] == [None] * (1 + len(others))


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_compiled_for_ampere(dtype: object) -> None:
    assert dtype in (f32, bf16)
    graph = mugraphs.rmsnorm_linear(
        2, 512, 512, tile_k=32, dtype=bf16 if dtype == bf16 else f32
    )
    (report,) = compile_only(graph, "sm_80")
    assert report.sync_loads == 0


def test_kernels_start_in_turn_where_the_architecture_knows_no_other_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A text from a newer GPU runs there as well."""
    schedule = Schedule(pdl=True, prefetch=2, descriptors=True)
    graph = mugraphs.norm_ahead(16, 256, 128, schedule=schedule)
    assert len(compile_only(graph, "sm_80")) == 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, early in (((8, 0), False), ((9, 0), True), ((12, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda c=capability: c)
        assert ("gdc_wait" in TritonExecutable(graph).source) == early
        assert TritonExecutable(graph).graph == graph


def test_programmatic_launch_and_ragged_tiles_compile() -> None:
    compile_only(mugraphs.rmsnorm_linear(3, 500, 500, schedule=Schedule(pdl=True)))
    compile_only(mugraphs.attention(2, 50, 300, 24, tile_m=16, tile_n=32, splits=3))


def test_screening_rejects_what_is_slow() -> None:
    good = KernelReport("k", 64, 1000, 0, 2, 0, "wgmma", 1, 1, 0.1)
    assert good.rejection() is None
    bad = KernelReport("k", 32, 1000, 4000, 2, 0, "wgmma", 1, 1, 0.1)
    assert "spills 4000 bytes" in str(bad.rejection())
    bad = KernelReport("k", 64, 1000, 0, 0, 3, "mma", 1, 1, 0.1)
    assert "waits for 3 loads" in str(bad.rejection())
    bad = KernelReport("k", 64, 300_000, 0, 2, 0, "mma", 1, 1, 0.1)
    assert "shared memory" in str(bad.rejection())


def test_a_mask_too_small_to_be_copied_ahead_is_no_reason() -> None:
    """Attention with one for each key waits for 64 bytes; refused, it was slow."""
    graph = mugraphs.masked_attention(
        1, "each key", heads=4, length=256, width=64, tile=64
    )
    (report,) = compile_only(graph)
    assert report.rejection() is None
    assert report.pipelined_loads == 2


def test_a_larger_load_that_the_loop_waits_for_is_one() -> None:
    ttgir = """
      scf.for %i = %a to %b {
        %x = tt.load %p : tensor<SHAPEx!tt.ptr<FORMAT>, #blocked> loc(#loc1)
      }
      %y = tt.load %p : tensor<128x64x!tt.ptr<f16>, #blocked>
    """
    for shape, dtype, waits in (
        ("64", "i8", 0),
        ("64", "i64", 1),
        ("128x64", "f16", 1),
        ("32x8", "bf16", 1),
        ("16x8", "f8E4M3FN", 0),
    ):
        text = ttgir.replace("SHAPE", shape).replace("FORMAT", dtype)
        assert screen._loads_in_loops(text, 512) == (0, waits)


def test_shared_memory_is_that_of_the_target() -> None:
    report = KernelReport("k", 64, 200 * 1024, 0, 2, 0, "mma", 1, 1, 0.1)
    assert report.rejection() is None
    assert "a block has 166912" in str(replace(report, target="sm_80").rejection())


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "resident"),
    [
        (64, 1000, 4, 8),
        (255, 1000, 4, 2),
        (168, 1000, 12, 1),
        (129, 1000, 4, 3),
        (32, 110 * 1024, 4, 2),
        (32, 113 * 1024, 4, 2),
        (32, 114 * 1024, 4, 1),
        (16, 0, 32, 2),
        (16, 0, 1, 32),
    ],
)
def test_blocks_that_share_a_multiprocessor(
    registers: int, shared: int, warps: int, resident: int
) -> None:
    report = KernelReport(
        "k", registers, shared, 0, 2, 0, "wgmma", 1, 1, 0.1, warps=warps
    )
    assert report.resident == resident


def test_screening_rejects_lost_occupancy() -> None:
    one = KernelReport("k", 128, 120 * 1024, 0, 2, 0, "wgmma", 1, 1, 0.1)
    assert one.rejection() is None
    assert one.rejection(least=1) is None
    assert "1 of its blocks at a time" in str(one.rejection(least=2))
    assert replace(one, shared_bytes=100 * 1024).rejection(least=2) is None


def test_reports_know_what_they_are_of() -> None:
    (report,) = compile_only(SMALL["ntrans"], "sm_80")
    assert (report.target, report.warps) == ("sm_80", 4)
    assert report.resident >= 4


def test_targets_are_checked() -> None:
    with pytest.raises(UnsupportedError, match="expected one like sm_90"):
        compile_only(SMALL["ntrans"], "gfx942")


# -- Calls ---------------------------------------------------------------------------


def test_calls_are_checked() -> None:
    graph = SMALL["lora"]
    run = TritonExecutable(graph, interpret=True)
    tensors = random_inputs(graph)
    with pytest.raises(ShapeError, match="takes 4 tensors"):
        run(*tensors[:3])
    with pytest.raises(ShapeError, match="input x"):
        run(tensors[0][:, :5], *tensors[1:])
    with pytest.raises(DTypeError, match=r"expected torch\.float16"):
        run(tensors[0].float(), *tensors[1:])
    with pytest.raises(CompileError, match="expected a cuda device"):
        TritonExecutable(graph)(*tensors)


# -- Golden source -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rmsnorm_linear", "attention"])
def test_golden_source(name: str, golden: Callable[[str, str], None]) -> None:
    graph = {
        "rmsnorm_linear": lambda: mugraphs.rmsnorm_linear(16, 4096, 6144, dtype=f16),
        "attention": lambda: mugraphs.attention(2, 250, 1000, tile_n=128),
    }[name]()
    golden(f"{name}.py.txt", emit(graph))


@pytest.mark.parametrize("swap", [False, True])
def test_products_of_two_kinds_do_not_share_a_tile(swap: bool) -> None:
    """The product by w reads x asynchronously from 64 rows on, that by a does not."""
    graph = mugraphs.lora(
        64, 128, 256, 16, tile_n=64, tile_k=64, schedule=Schedule(swap_operands=swap)
    )
    shared = mugraphs.lora(
        16, 128, 256, 16, tile_n=32, tile_k=64, schedule=Schedule(swap_operands=swap)
    )
    # Not swapped, both products have the 64 rows of x; swapped, one has 16 of a.
    assert ("# once more" in emit(graph)) == swap
    assert "# once more" not in emit(shared)
    check(graph, random_inputs(graph))


def test_products_of_many_rows_get_more_warps() -> None:
    graph = mugraphs.rmsnorm_linear(512, 64, 64, tile_n=32, tile_k=32)
    (kernel,) = plan(graph).kernels
    assert kernel.schedule.num_warps == 8


def test_products_outside_loops_get_a_warp_for_sixteen_rows() -> None:
    g = KernelBuilder("product", m=128, k=64, n=64)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    with g.block(grid={"n": 32}) as b:
        product = b.matmul(b.load(x, "m, k"), b.load(w, "k, n/grid"), over="k")
        out = b.store(product, "m, n/grid")
    (kernel,) = plan(g.returns(out).build()).kernels
    assert kernel.schedule.num_warps == 8
