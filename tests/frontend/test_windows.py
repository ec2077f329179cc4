"""Convolutions, pooling and interpolation as they are traced."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import (
    CheckError,
    DTypeError,
    MirageError,
    ShapeError,
    UnsupportedError,
)
from mirage_dsl.ir.canonical import Renaming, canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import OPERATORS
from tests.programs.windows import MODELS, ROWS, Program

F = torch.nn.functional
PLANE = (2, 4, 6, 8)
PROGRAMS = {**ROWS, **MODELS}


def library(program: Any) -> list[str]:
    return [n.op.name for n in program.applies if n.op.kind is Kind.LIBRARY]


OF_INTEGERS = {"ctc_loss", "gcd"}


def test_there_is_a_program_for_each_row() -> None:
    # What takes integers has arguments of its own: `end_to_end/test_sums_at_indices`
    # for sums at indices, `end_to_end/test_labels` for the others.
    library = {o for o in OPERATORS.values() if o.kind is Kind.LIBRARY}
    rows = {o.function for o in library if not o.indexed}
    assert set(ROWS) == rows - OF_INTEGERS


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_one_operator(name: str) -> None:
    traced = ROWS[name].traced
    assert [n.op.name for n in traced.nodes if hasattr(n, "op")] == [name]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_reference_is_pytorch(name: str) -> None:
    program = PROGRAMS[name]
    inputs = program.inputs(torch.float64)
    traced = program.traced
    assert check(traced) == []
    (found,) = evaluate_numpy(traced, *(i.numpy() for i in inputs))
    np.testing.assert_allclose(found, program.function(*inputs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_texts_are_read_back(name: str) -> None:
    traced = PROGRAMS[name].traced
    assert parse(str(traced)) == traced


@pytest.mark.parametrize("name", ["conv2d", "normed", "blocks"])
def test_names_do_not_count(name: str) -> None:
    traced = PROGRAMS[name].traced
    names = {n: f"{n}_" for n, _ in traced.extents}
    other = Renaming(dims=names).graph(traced)
    assert other != traced
    assert canonical_hash(other) == canonical_hash(traced)


HASHED = {
    "stride": lambda x, w: F.conv2d(x, w, None, (2, 1), 1),
    "strides": lambda x, w: F.conv2d(x, w, None, (1, 2), 1),
    "padding": lambda x, w: F.conv2d(x, w, None, 1, 2),
    "dilation": lambda x, w: F.conv2d(x, w, None, 1, 2, 2),
    "operands": lambda x, w: F.conv2d(w, x, None, 1, 1),
    "plain": lambda x, w: F.conv2d(x, w, None, 1, 1),
}


def test_attributes_count() -> None:
    shapes = ((4, 4, 5, 5), (4, 4, 5, 5))
    hashes = [
        canonical_hash(Program(function, shapes).traced, sizes=False)
        for function in HASHED.values()
    ]
    assert len(set(hashes)) == len(hashes)


# -- Windows and neighbours that lie unevenly ------------------------------------------

UNEVEN: dict[str, Callable[..., Any]] = {
    "one zero more behind": lambda x, w: F.conv2d(x, w[..., :2], padding="same"),
    "in one axis": lambda x, w: F.conv1d(x[..., 0], w[..., 0, :2], padding="same"),
    "a divisor and padding": lambda x, _: F.avg_pool2d(x, 3, 2, 1, divisor_override=4),
    "a divisor and windows beyond": lambda x, _: F.avg_pool2d(
        x, (3, 4), (2, 3), (1, 2), ceil_mode=True, divisor_override=5
    ),
    "a grid of one row": lambda _, w: F.affine_grid(
        w[:2, :2, 0], (2, 1, 1, 4), align_corners=True
    ),
    "points of a grid": lambda x, _: torch.grid_sampler(
        x, x[:, :2].movedim(1, -1), 1, 2, True
    ),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid")
@pytest.mark.parametrize("name", UNEVEN)
def test_windows_that_lie_unevenly(name: str) -> None:
    program = Program(UNEVEN[name], (PLANE, (5, 4, 3, 3)))
    x, w = program.inputs()
    found = mirage.kernel(lambda x, w: UNEVEN[name](x, w))(x, w)
    torch.testing.assert_close(found, UNEVEN[name](x, w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
def test_norms_of_infinite_order_are_the_extremes_of_windows(sign: int) -> None:
    """PyTorch computed powers of that order before, which are 0, 1 and infinite."""
    x = Program(lambda x: x, (PLANE,)).inputs()[0]
    found = mirage.kernel(lambda x: F.lp_pool2d(x, sign * math.inf, (3, 2), 1))(x)
    expected = sign * F.max_pool2d(sign * x.abs(), (3, 2), 1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


FACTORS = (1.3, 0.6, (2.37, 0.5))


WAYS = [
    ("nearest", False, None),
    ("nearest-exact", False, None),
    *(
        (mode, antialias, corners)
        for mode in ("bilinear", "bicubic")
        for antialias in (False, True)
        for corners in (None, True)
    ),
]


@pytest.mark.parametrize(("mode", "antialias", "corners"), WAYS)
def test_factors_that_give_no_whole_extents(
    mode: str, antialias: bool, corners: bool | None
) -> None:
    def function(x: Any) -> Any:
        told: Any = {"mode": mode, "antialias": antialias, "align_corners": corners}
        return [
            *(F.interpolate(x, scale_factor=n, **told) for n in FACTORS),
            F.interpolate(x, (3, 9), **told),
            F.interpolate(x, scale_factor=1.3, recompute_scale_factor=True, **told),
        ]

    x = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(1))
    found, expected = mirage.kernel(function)(x), function(x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# -- Places of the largest elements ----------------------------------------------------


def _there_and_back(rank: int, *args: Any, **options: Any) -> Callable[..., Any]:
    def function(x: torch.Tensor) -> Any:
        pool = getattr(F, f"max_pool{rank}d")
        found, places = pool(x, *args, return_indices=True, **options)
        wide = getattr(F, f"max_unpool{rank}d")(
            found * 2, places, *args, output_size=x.shape[-rank:]
        )
        return found, places, wide

    return function


PLACES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "a line": (_there_and_back(1, 3, 2, 1), (2, 3, 9)),
    "a plane": (_there_and_back(2, 2), (2, 3, 6, 7)),
    "one plane": (_there_and_back(2, (2, 3), (2, 2), (1, 0)), (3, 6, 7)),
    "space": (_there_and_back(3, 2, 1), (2, 2, 3, 4, 5)),
    "apart": (
        lambda x: F.max_pool2d(
            x, 2, 1, dilation=(2, 1), ceil_mode=True, return_indices=True
        ),
        (2, 3, 6, 7),
    ),
    "to a size": (
        lambda x: (
            *F.adaptive_max_pool2d(x, (None, 4), return_indices=True),
            *F.adaptive_max_pool1d(x[0], 9, return_indices=True),
        ),
        (2, 3, 6, 7),
    ),
    "modules": (
        lambda x: torch.nn.MaxUnpool2d(2)(
            *torch.nn.MaxPool2d(2, return_indices=True)(x)
        ),
        (2, 3, 6, 8),
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_of_the_largest_elements(name: str) -> None:
    function, shape = PLACES[name]
    (x,) = Program(function, (shape,)).inputs()
    found, expected = mirage.kernel(lambda t: function(t))(x), function(x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


N = "n"


def test_a_batch_of_any_length_has_places() -> None:
    def function(x: mirage.f32[N, 3, 6, 7]) -> Any:
        return F.max_pool2d(x, 2, return_indices=True)[1]

    kernel = mirage.kernel(dynamic=(N,))(function)
    for count in (1, 4):
        x = torch.randn(count, 3, 6, 7)
        assert torch.equal(kernel(x), function(x))


# -- What is searched ------------------------------------------------------------------

Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]
SEARCHED: dict[str, Case] = {
    "a window of one point at one": (
        lambda x, w, b: F.conv2d(x, w, b),
        ((2, 4, 1, 1), (5, 4, 1, 1), (5,)),
    ),
    "means side by side": (lambda x: F.avg_pool2d(x, (2, 4)), (PLANE,)),
    "largest side by side": (lambda x: F.max_pool2d(x, 2), (PLANE,)),
    "a mean of all": (lambda x: F.adaptive_avg_pool2d(x, 1), (PLANE,)),
    "a mean of all of space": (
        lambda x: F.adaptive_avg_pool3d(x, 1),
        ((2, 3, 4, 4, 6),),
    ),
    "a mean of rows": (lambda x: F.adaptive_avg_pool2d(x, (None, 1)), (PLANE,)),
    "means to a divisor": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (PLANE,)),
    "largest of all": (lambda x: F.adaptive_max_pool2d(x, 1), (PLANE,)),
    "another divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (PLANE,)),
    "an area": (lambda x: F.interpolate(x, (3, 4), mode="area"), (PLANE,)),
    "windows that split axes in two ways": (
        lambda x: F.max_pool2d(x, (3, 2)).sum() + F.max_pool2d(x, (2, 2)),
        ((2, 4, 6, 4),),
    ),
    "one item": (lambda x: F.avg_pool2d(x, 2), (PLANE[1:],)),
}


@pytest.mark.parametrize("name", SEARCHED)
def test_products_and_reductions_are_no_library_operators(name: str) -> None:
    program = Program(*SEARCHED[name])
    assert library(program.traced) == []
    inputs = program.inputs(torch.float64)
    (found,) = evaluate_numpy(program.traced, *(i.numpy() for i in inputs))
    np.testing.assert_allclose(found, program.function(*inputs), rtol=1e-9, atol=1e-12)


POINTS: dict[str, Case] = {
    "a window of one point": (
        lambda x, w, b: F.conv2d(x, w, b),
        (PLANE, (5, 4, 1, 1), (5,)),
    ),
    "one along a line": (lambda x, w: F.conv1d(x, w), ((2, 4, 7), (5, 4, 1))),
    "one in space": (
        lambda x, w: F.conv3d(x, w),
        ((2, 4, 3, 2, 3), (5, 4, 1, 1, 1)),
    ),
    "a transposed one": (
        lambda x, w, b: F.conv_transpose2d(x, w, b),
        (PLANE, (4, 5, 1, 1), (5,)),
    ),
}


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_windows_of_one_point_are_products(name: str, dtype: torch.dtype) -> None:
    program = Program(*POINTS[name])
    inputs = program.inputs(dtype)
    traced = mirage.kernel(program.function).trace(*inputs)
    assert library(traced) == []
    wide = [i.double() for i in inputs]
    (found,) = evaluate_numpy(traced, *(i.numpy() for i in wide))
    np.testing.assert_allclose(found, program.function(*wide), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", POINTS)
def test_those_of_f32_are_left_to_pytorch_which_may_round(name: str) -> None:
    assert len(library(Program(*POINTS[name]).traced)) == 1


LEFT: dict[str, Case] = {
    "one point in groups": (
        lambda x, w: F.conv2d(x, w, groups=2),
        (PLANE, (6, 2, 1, 1)),
    ),
    "one point in steps": (lambda x, w: F.conv2d(x, w, None, 2), (PLANE, (5, 4, 1, 1))),
    "one item": (lambda x, w: F.conv2d(x, w), (PLANE[1:], (5, 4, 3, 3))),
    "as large as before": (
        lambda x, w: F.conv2d(x, w, padding="same", dilation=2),
        (PLANE, (5, 4, 3, 3)),
    ),
    "named valid": (
        lambda x, w: F.conv2d(x, w, padding="valid"),
        (PLANE, (5, 4, 3, 3)),
    ),
    "another divisor": (
        lambda x: F.avg_pool2d(x, 3, 1, divisor_override=2),
        (PLANE,),
    ),
    "windows side by side in space": (
        lambda x: F.max_pool3d(x, 2),
        ((2, 3, 4, 4, 6),),
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_others_are(name: str) -> None:
    program = Program(*LEFT[name])
    assert len(library(program.traced)) == 1
    inputs = program.inputs(torch.float64)
    (found,) = evaluate_numpy(program.traced, *(i.numpy() for i in inputs))
    np.testing.assert_allclose(found, program.function(*inputs), rtol=1e-9, atol=1e-12)


def test_places_by_the_name_in_torch() -> None:
    def largest(x: Any) -> Any:
        return (*torch.adaptive_max_pool1d(x, 3), F.adaptive_max_pool1d(x, 3))

    x = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(mirage.kernel(largest)(x), largest(x))


def test_modules_are_traced() -> None:
    torch.manual_seed(0)
    pool = torch.nn.Sequential(torch.nn.MaxPool2d(3, 2), torch.nn.AdaptiveAvgPool2d(1))
    traced = mirage.kernel(lambda x: pool(x)).trace(torch.zeros(2, 4, 9, 9))
    assert library(traced) == ["max_pool2d"]


# -- Refusals --------------------------------------------------------------------------

REFUSED: dict[str, tuple[type[MirageError], str, Callable[..., Any]]] = {
    "a bias of one": (
        ShapeError,
        r"a bias \(1,\) of a convolution that makes 5 channels",
        lambda x, w: F.conv2d(x, w, w[0, 0, 0, :1]),
    ),
    "steps of what is as large": (
        UnsupportedError,
        "expected a stride of 1",
        lambda x, w: F.conv2d(x, w, stride=2, padding="same"),
    ),
    "a size and a factor": (
        ShapeError,
        "expected one of them, a number or 2",
        lambda x, w: F.interpolate(x, 3, 2) + w.sum(),
    ),
    "a size for one axis": (
        ShapeError,
        "expected one of them, a number or 2",
        lambda x, w: F.interpolate(x, (3,)) + w.sum(),
    ),
    "corners of the nearest": (
        UnsupportedError,
        "mode='nearest' and align_corners",
        lambda x, w: F.interpolate(x, 3, align_corners=True) + w.sum(),
    ),
    "points of space": (
        ShapeError,
        "grid last dimension must be 2",
        lambda x, w: F.grid_sample(x, x[..., :3]) + w.sum(),
    ),
    "channels": (ShapeError, "PyTorch refuses", lambda x, w: F.conv2d(x[:, :2], w)),
    "a window too large": (
        ShapeError,
        "PyTorch refuses",
        lambda x, w: F.max_pool2d(x, 20, 1) + w.sum(),
    ),
    "rank": (ShapeError, "rank 4", lambda x, w: F.conv1d(x, w[..., 0])),
    "windows of itself": (
        UnsupportedError,
        "would be the same dim, of 2 elements; pass the other tensor as an argument",
        lambda x, w: F.conv2d(x, x[..., :3, :3]) + w.sum(),
    ),
    "numbers of a stride": (
        ShapeError,
        "1 or 2 integers",
        lambda x, w: F.conv2d(x, w, None, (1, 1, 1)),
    ),
    "random windows": (
        UnsupportedError,
        "fractional_max_pool2d, whose windows are drawn at random",
        lambda x, w: F.fractional_max_pool2d(x, 2, 3) + w.sum(),
    ),
    "random windows with indices": (
        UnsupportedError,
        "fractional_max_pool2d, whose windows are drawn at random",
        lambda x, w: F.fractional_max_pool2d(x, 2, 3, return_indices=True)[0] * w.sum(),
    ),
    "planes of other windows": (
        ShapeError,
        "max_unpool2d with output_size=.9, 8.",
        lambda x, w: F.max_unpool2d(x, x.long(), 2, output_size=(9, 8)) + w.sum(),
    ),
    "places of others": (
        ShapeError,
        "max_unpool2d of .*; expected a place for each",
        lambda x, w: F.max_unpool2d(x, x[:1].long(), 2) + w.sum(),
    ),
    "truth values": (
        DTypeError,
        "cast",
        lambda x, w: F.conv2d(x > 0, w > 0),
    ),
    "means of another mode": (
        UnsupportedError,
        "antialias=True.*'bilinear' or 'bicubic'",
        lambda x, w: F.interpolate(x, 3, mode="nearest", antialias=True) + w.sum(),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_said(name: str) -> None:
    kind, says, function = REFUSED[name]
    x, w = torch.zeros(PLANE), torch.zeros(5, 4, 3, 3)
    with pytest.raises(kind, match=says) as caught:
        mirage.kernel(function).trace(x, w)
    assert "test_windows.py" in str(caught.value)


TEXT = """mirage 1

mugraph f(
    x: f32[n, c, h, w],
    k: f32[o, c2, r, s]
) -> f32[n, o, p, q] where n = 2, c = 4, h = 6, w = 8,
    o = 5, c2 = 4, r = 3, s = 3, p = 4, q = 6 {
  y: f32[n, o, p, q] = conv2d x, k of(n, c, h, w) by(o, c2, r, s) gives(n, o, p, q) \
stride(1, 1) padding(0, 0) dilation(1, 1) groups(1)
  return y
}
"""

WRONG = {
    "another extent": ("p = 4", "p = 5", "gives the shape"),
    "another stride": ("stride(1, 1)", "stride(2, 1)", "gives the shape"),
    "a symbolic extent": ("h = 6", "h = ?", "symbolic"),
    "a dim left out": ("of(n, c, h, w)", "of(n, c, h)", "names the dims"),
    "a dim twice": ("gives(n, o, p, q)", "gives(n, o, p, p)", "one name"),
    "groups": ("groups(1)", "groups(3)", "in groups=3 are for 12 channels"),
}


@pytest.mark.parametrize("name", WRONG)
def test_texts_with_other_extents_are_refused(name: str) -> None:
    before, after, says = WRONG[name]
    assert check(TEXT) == []
    text = TEXT.replace(before, after)
    try:
        found = [str(d) for d in check(text)]
    except CheckError as error:
        found = [error.message]
    assert any(says in f for f in found), found


def test_a_batch_may_be_symbolic() -> None:
    assert check(TEXT.replace("n = 2", "n = ?")) == []


def test_no_block_holds_one() -> None:
    inside = TEXT.replace(
        "  y: f32[n, o, p, q] = conv2d x, k",
        "  y = block grid(n / 1) {\n    a = load x[n/grid, c, h, w]\n"
        "    b = load k[o, c2, r, s]\n    v = conv2d a, b",
    ).replace("groups(1)\n", "groups(1)\n    store y[n/grid, o, p, q] = v\n  }\n")
    with pytest.raises(CheckError, match="only PyTorch computes conv2d"):
        parse(inside)
