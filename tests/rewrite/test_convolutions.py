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
    "one channel": (conv2d, (2, 1, 9, 8), (4, 1, 3, 3)),
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
    "rows of another length": ("mul add3, 1*h", "mul add3, 1*n"),
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


def test_convolutions_of_computed_values_are_left() -> None:
    def two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(torch.relu(functional.conv2d(x, w)), w)

    x, w = mirage.spec((2, 3, 9, 8), "float32"), mirage.spec((3, 3, 3, 3), "float32")
    assert windows_given(mirage.kernel(two).bind(x, w).program) is None
