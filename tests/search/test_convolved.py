"""Convolutions searched as products of weights and windows: kernels of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.core.hardware import H100
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.rewrite.windows import convolutions
from mirage_dsl.search.driver import search
from mirage_dsl.tile.build import certain_of, programs
from mirage_dsl.tile.program import Load, Product, walk
from mirage_dsl.verify.verifier import verify
from tests.backends.running import check, random_inputs


def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(x, w)


def gated(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.hardswish(functional.conv2d(x, w, b, padding=1))


def searched(
    x: tuple[int, ...], w: tuple[int, ...], dtype: str = "float32"
) -> KernelGraph:
    specs = [mirage.spec(shape, dtype) for shape in (x, w, w[:1])]
    program = mirage.kernel(gated).bind(*specs).program
    best = search(program, H100, k=1, budget_seconds=60).best
    assert best.certificate is not None
    assert best.certificate.ok
    return best.mugraph


def test_a_convolution_is_one_kernel_with_what_follows() -> None:
    """By PyTorch's calls it is five kernels on an H100, and takes three times as long.

    f32 is rounded as PyTorch rounds that of convolutions, and picked in one stage.
    """
    found = searched((64, 8, 128, 128), (64, 8, 3, 3))
    (block,) = found.blocks
    assert not convolutions(found)
    assert block.gathered
    assert block.schedule.allow_tf32
    assert block.loop is None or block.schedule.num_stages == 1


def test_products_round_as_pytorch_lets_convolutions() -> None:
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        found = searched((64, 8, 128, 128), (64, 8, 3, 3))
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
    assert not any(b.schedule.allow_tf32 for b in found.blocks)


def cut_off(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(functional.hardswish(functional.conv2d(x, w, b)))


def test_rows_of_which_little_is_left_refuse_no_kernel() -> None:
    """What a row has of one small number was right by chance in some of the runs.

    Verdicts of three seeds in twelve were `unstable`.
    """
    shapes = (128, 8, 128, 128), (64, 8, 3, 3), (64,)
    program = mirage.kernel(cut_off).trace(*(mirage.spec(s, "float32") for s in shapes))
    found = search(program, H100, k=1, budget_seconds=60).best.mugraph
    assert not convolutions(found)
    for seed in range(12):
        assert verify(found, program, seed=seed).ok


def test_products_read_windows_as_they_are_loaded() -> None:
    """The load itself reads 0 outside; without padding nothing is compared at all."""
    found = searched((64, 8, 128, 128), (64, 8, 3, 3))
    (program,) = programs(found)
    statements = [s for s, _ in walk(program.body)]
    (windows,) = (s for s in statements if isinstance(s, Load) and s.along)
    (product,) = (s for s in statements if isinstance(s, Product))
    assert windows.along is not None
    assert windows.along.known == "apart"
    assert windows.along.under is not None
    assert any(n.startswith(windows.result) for n in (product.left, product.right))


def test_conditions_that_hold_everywhere_are_left_out() -> None:
    specs = [mirage.spec(s, "float32") for s in ((8, 4, 66, 66), (16, 4, 3, 3))]
    asked = mirage.kernel(plain).bind(*specs).program
    best = search(asked, H100, k=1, budget_seconds=60).best.mugraph
    assert certain_of(best)
    (tiles,) = programs(best)
    (load,) = (s for s, _ in walk(tiles.body) if isinstance(s, Load) and s.along)
    assert load.along is not None
    assert load.along.under is None
    # At other extents, as of trials, some windows are outside.
    short = replace(
        best, extents=tuple((n, 3 if e == 66 else e) for n, e in best.extents)
    )
    assert certain_of(short) != certain_of(best)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_kernel_computes_it(dtype: str) -> None:
    found = searched((2, 3, 20, 18), (4, 3, 3, 2), dtype)
    assert found.blocks
    check(found, random_inputs(found))
    assert all(r.spills == 0 for r in compile_only(found, "sm_90"))


def test_libraries_are_slow_with_few_channels() -> None:
    """An H100 makes 40 * 10**12 operations a second of 3 channels, 317 of 64."""
    few, many = (
        mirage.kernel(plain).bind(*(mirage.spec(s, "float32") for s in shapes)).program
        for shapes in (
            ((64, 4, 128, 128), (64, 4, 3, 3)),
            ((64, 64, 128, 128), (64, 64, 3, 3)),
        )
    )
    took, longer = (estimate(p, H100).kernels[0].arithmetic for p in (few, many))
    assert longer < 4 * took


def test_blocks_do_not_copy_f64() -> None:
    x, w = mirage.spec((2, 3, 7, 6), "float64"), mirage.spec((4, 3, 3, 3), "float64")
    found = mirage.kernel(plain).bind(x, w).search(effort="quick", use_cache=False)
    assert not found.best.mugraph.blocks
