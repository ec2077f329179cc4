"""Convolutions written out: products of weights and windows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional

import mirage_dsl as mirage
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.windows import convolutions, windows_given, with_windows

Function = Callable[..., torch.Tensor]
Case = tuple[Function, tuple[int, ...], tuple[int, ...]]


def conv1d(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.conv1d(x, w)


def conv2d(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(x, w)


CONVOLUTIONS: dict[str, Case] = {
    "one axis": (conv1d, (2, 3, 17), (5, 3, 4)),
    "one axis, all numbers": (
        lambda x, w: functional.conv1d(x, w, None, 2, 3, 2),
        (2, 3, 19),
        (5, 3, 3),
    ),
    "plane": (conv2d, (2, 3, 9, 8), (4, 3, 3, 2)),
    "plane, all numbers": (
        lambda x, w: functional.conv2d(x, w, None, (2, 1), (1, 2), (1, 2)),
        (2, 3, 9, 8),
        (4, 3, 3, 2),
    ),
    "space": (
        lambda x, w: functional.conv3d(x, w, None, 1, 1),
        (2, 3, 4, 5, 6),
        (4, 3, 2, 3, 2),
    ),
}


def program_of(name: str, dtype: str = "float32") -> KernelGraph:
    function, *shapes = CONVOLUTIONS[name]
    specs = [mirage.spec(shape, dtype) for shape in shapes]
    return mirage.kernel(function).bind(*specs).program


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_it_computes_what_pytorch_does(name: str) -> None:
    function, *shapes = CONVOLUTIONS[name]
    written = with_windows(program_of(name))
    assert not convolutions(written)
    assert not check(written)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape) for shape in shapes]
    (found,) = evaluate_numpy(written, *arrays)
    right = function(*map(torch.from_numpy, arrays)).numpy()
    np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_the_format_stays(dtype: str) -> None:
    assert not check(with_windows(program_of("plane", dtype)))


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 1, 9, 8), (4, 1, 3, 3)),
        ((2, 3, 9, 8), (1, 3, 3, 3)),
        ((2, 3, 9), (4, 3, 9)),
    ],
    ids=str,
)
def test_an_extent_of_one_is_no_dim(shapes: tuple[tuple[int, ...], ...]) -> None:
    """Of one channel, one filter, or one window: they stay PyTorch's call."""
    function = conv1d if len(shapes[0]) == 3 else conv2d
    specs = [mirage.spec(shape, "float32") for shape in shapes]
    program = mirage.kernel(function).bind(*specs).program
    assert with_windows(program) is program
    assert windows_given(program) is None


def test_what_it_cannot_write_stays() -> None:
    """Groups of channels, and convolutions the other way round."""
    x, w = mirage.spec((2, 4, 9, 8), "float32"), mirage.spec((4, 2, 3, 3), "float32")
    for function in (
        lambda x, w: functional.conv2d(x, w, groups=2),
        lambda x, w: functional.conv_transpose2d(x, w),
    ):
        program = mirage.kernel(function).bind(x, w).program
        assert with_windows(program) is program
        assert windows_given(program) is None


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_it_is_verified(name: str) -> None:
    program = program_of(name)
    certificate = mirage.verify(with_windows(program), program)
    assert certificate.ok, certificate


OTHERS = {
    "a stride more": ("mul index2, 2", "mul index2, 3"),
    "an element further": ("sub add, 1", "sub add, 2"),
    "the first row is outside": ("less_equal 0, sub", "less 0, sub"),
    "one row too many": ("less sub, 1*n", "less_equal sub, 1*n"),
    "elements along the other axis": ("remainder index, 1*s", "remainder index, 1*q"),
    "channels of another count": ("mul floor_divide, 1*n", "mul floor_divide, 1*h"),
    "rows of another length": ("mul place, 1*h", "mul place, 1*n"),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", OTHERS)
def test_other_windows_are_refused(name: str, seed: int) -> None:
    def strided(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, w, None, (2, 1), 1)

    x, w = mirage.spec((2, 3, 15, 9), "float32"), mirage.spec((4, 3, 3, 2), "float32")
    program = mirage.kernel(strided).bind(x, w).program
    written = with_windows(program)
    before, after = OTHERS[name]
    assert str(written).count(f"{before}\n") == 1
    wrong = parse(str(written).replace(f"{before}\n", f"{after}\n"))
    assert not mirage.verify(wrong, program, seed=seed).equivalent


def padded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(x, w, None, 1, 1)


ENDS = {
    "inside": (conv2d, (1, 3, 60, 60), "less sub, ", "less next, "),
    "beyond": (padded, (2, 3, 60, 60), "less sub, ", "less next, "),
    "of a long table": (conv2d, (1, 8, 128, 128), "less sub, ", "less next, "),
    "a row of 224": (padded, (2, 3, 224, 224), "less sub, 1*n", "less sub, 223"),
    "rows of 224": (padded, (2, 3, 224, 224), "less sub, 1*n", "less sub, 100"),
    "rows before": (padded, (2, 3, 224, 224), "less_equal 0, sub\n", "less 60, sub\n"),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ENDS)
def test_windows_that_end_too_early_are_refused(name: str, seed: int) -> None:
    """In truth the last windows end with the rows, or one behind them."""
    function, shape, before, after = ENDS[name]
    specs = mirage.spec(shape, "float32"), mirage.spec((5, shape[1], 3, 3), "float32")
    program = mirage.kernel(function).bind(*specs).program
    text = str(with_windows(program))
    lines = text.splitlines(keepends=True)
    (at,) = (i for i, line in enumerate(lines) if before in line)
    lines[at] = lines[at].replace(before, after)
    if "next" in after:
        lines.insert(at, "next = add sub, 1\n")
    assert not mirage.verify(parse("".join(lines)), program, seed=seed).equivalent


HOLES = {
    "rows of 100": ("m1 = floor_divide index2, 100", "fine = less m1, 1"),
    "a hundred rows": (
        "m1 = floor_divide index2, 100",
        "h1 = less m1, 1",
        "h2 = less 1, m1",
        "fine = maximum h1, h2",
    ),
    "one row": ("m1 = mul index2, 64", "h1 = less m1, 6400", "h2 = less 6400, m1",
                "fine = maximum h1, h2"),
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", HOLES)
def test_rows_that_are_left_out_are_seen_at_true_extents(name: str, seed: int) -> None:
    """There are more elements than small sizes have, and no turn of the program's."""
    specs = (
        mirage.spec((2, 3, 224, 224), "float32"),
        mirage.spec((5, 3, 3, 3), "float32"),
    )
    program = mirage.kernel(padded).bind(*specs).program
    lines = str(with_windows(program)).splitlines()
    (at,) = (
        i for i, line in enumerate(lines) if "= where " in line and ", gather" in line
    )
    head, _, rest = lines[at].partition("where ")
    inside, _, values = rest.partition(",")
    lines[at] = f"{head}where kept,{values}"
    lines[at:at] = [*HOLES[name], f"kept = mul {inside}, fine"]
    found = mirage.verify(parse("\n".join(lines)), program, seed=seed)
    assert not found.equivalent


def test_convolutions_of_computed_values_are_left() -> None:
    def two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(torch.relu(functional.conv2d(x, w)), w)

    x, w = mirage.spec((2, 3, 9, 8), "float32"), mirage.spec((3, 3, 3, 3), "float32")
    assert windows_given(mirage.kernel(two).bind(x, w).program) is None
