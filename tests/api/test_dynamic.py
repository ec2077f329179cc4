"""Dynamic dims: what is found for rounded extents serves all that round to the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.api.kernel import free_dims, resized, rounded
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.settings import INTERPRET
from mirage_dsl.core.types import TensorSpec
from mirage_dsl.frontend.arguments import bind_arguments
from mirage_dsl.ir.check import check
from mirage_dsl.ir.text.parser import parse
from tests.api.dynamic_programs import (
    HALVES,
    PRODUCT,
    K,
    N,
    attention,
    centred,
    close,
    copies_multiplied,
    gram,
    half,
    joined,
    linear,
    norm_linear,
    positive,
    shape_of,
)

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    with INTERPRET.scope(value=True):
        yield


# -- One search for a range of extents -------------------------------------------------


ROUNDED = {1: 1, 2: 2, 3: 4, 16: 16, 17: 32, 64: 64, 65: 80, 96: 96, 97: 112, 128: 128}
ROUNDED |= {129: 160, 300: 320, 512: 512, 4097: 5120, 5000: 5120}


@pytest.mark.parametrize(("extent", "expected"), ROUNDED.items())
def test_extents_are_rounded_up(extent: int, expected: int) -> None:
    specs = mirage.spec((extent, K)), mirage.spec((K, N))
    arguments = bind_arguments(norm_linear, specs, {})
    assert [s.shape for s in rounded(arguments, ("m",)).specs] == [
        (expected, K),
        (K, N),
    ]


def test_extents_stay_where_no_dim_is_dynamic() -> None:
    specs = mirage.spec((5000, K)), mirage.spec((K, N))
    program = mirage.kernel(norm_linear).trace(*specs)
    assert 5000 in program.extent_of.values()
    program = mirage.kernel(dynamic="m")(norm_linear).trace(*specs)
    assert None in program.extent_of.values()
    assert 5000 not in program.extent_of.values()


def test_the_order_of_axes_in_memory_is_kept() -> None:
    x = torch.zeros(K, 5, dtype=torch.float16).T
    arguments = bind_arguments(norm_linear, (x, half(K, N)), {})
    first = rounded(arguments, ("m",)).specs[0]
    assert first == TensorSpec(first.dtype, (8, K), (1, 8))


def test_extents_that_round_to_the_same_share_one_search() -> None:
    kernel = mirage.kernel(dynamic=("m",))(norm_linear)
    bound = kernel.bind(*map(mirage.spec, shape_of(9)))
    assert bound is kernel.bind(*map(mirage.spec, shape_of(16)))
    assert bound is not kernel.bind(*map(mirage.spec, shape_of(17)))
    assert bound.program.extent_of["m"] is None
    assert bound.mugraph.extent_of["m"] == 16


@pytest.mark.sample(2)
@pytest.mark.parametrize("m", [16, 9, 13, 1, 3, 40])
def test_rows_of_a_product(m: int) -> None:
    kernel = mirage.kernel(dynamic=("m",))(norm_linear)
    x, w = half(m, K), half(K, N)
    close(kernel(x, w), kernel, x, w)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("b", "n", "s"), [(2, 32, 128), (2, 21, 100), (3, 17, 65)])
def test_batches_queries_and_keys_of_attention(b: int, n: int, s: int) -> None:
    kernel = mirage.kernel(dynamic=("b", "n", "s"))(attention)
    tensors = half(b, n, 16), half(b, 16, s), half(b, s, 16)
    close(kernel(*tensors), kernel, *tensors)


@pytest.mark.parametrize("m", [8, 7, 5])
def test_a_mean_over_a_dynamic_dim(m: int) -> None:
    kernel = mirage.kernel(dynamic=("m",))(centred)
    x = half(m, K)
    close(kernel(x), kernel, x)


def test_a_product_of_unknown_many_copies_is_refused() -> None:
    kernel = mirage.kernel(dynamic=("m",))(copies_multiplied)
    with pytest.raises(UnsupportedError, match="whose extent is not known") as caught:
        kernel.trace(mirage.spec((5, K)), mirage.spec((K,)))
    assert caught.value.location is not None
    assert "mirage.prod" in caught.value.location.text


@pytest.mark.parametrize("m", [16, 9])
def test_dims_that_follow_from_dynamic_ones(m: int) -> None:
    kernel = mirage.kernel(dynamic=("m", "n"))(joined)
    tensors = half(m, K), half(8, K), half(m + 8, K)
    for found, expected in zip(
        kernel(*tensors), kernel.reference(*(t.numpy() for t in tensors)), strict=True
    ):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("m", [16, 9])
def test_a_dim_that_meets_itself(m: int) -> None:
    kernel = mirage.kernel(dynamic=("m",))(gram)
    x = half(m, 16)
    close(kernel(x), kernel, x)


# -- Given μGraphs ---------------------------------------------------------------------


def test_dims_of_a_given_mugraph_are_found_by_place() -> None:
    kernel = mirage.kernel(dynamic=("m",))(linear)
    program = kernel.trace(*map(mirage.spec, shape_of(16)))
    graph = parse(PRODUCT)
    assert free_dims(graph, program) == {"i"}
    assert resized(graph, {"i"}, shape_of(5)) == graph.with_extents({"i": 5})


def test_longer_loops_load_nothing_early() -> None:
    text = PRODUCT.replace("loop(j / 32)", "loop(j / 32) num_stages(1) early(1)")
    for iterations, early in ((8, 1), (9, 0)):
        k = 32 * iterations
        graph = resized(parse(text), {"j"}, [(16, k), (k, N)])
        assert graph.blocks[0].schedule.early == early
        assert check(graph) == []


@pytest.mark.parametrize("m", [16, 9, 40])
def test_a_pinned_mugraph_serves_every_extent(m: int) -> None:
    kernel = mirage.kernel(dynamic=("m",), mugraph=PRODUCT)(linear)
    x, w = half(m, K), half(K, N)
    close(kernel(x, w), kernel, x, w)
    bound = kernel.bind(x, w)
    assert "grid(l / 16)" in str(bound.mugraph)


def test_what_holds_at_one_extent_only_does_not_serve_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kernel = mirage.kernel(dynamic=("m",), mugraph=HALVES)(positive)
    close(kernel(half(8, K)), kernel, half(8, K))
    assert "library kernels" not in caplog.text
    close(kernel(half(7, K)), kernel, half(7, K))
    assert "positive with k = 64, m = 7 is left to library kernels" in caplog.text


def test_without_a_search_the_program_runs_at_each_extent() -> None:
    kernel = mirage.kernel(dynamic=("m",), effort="none")(norm_linear)
    for m in (16, 9):
        x, w = half(m, K), half(K, N)
        close(kernel(x, w), kernel, x, w)
        assert not kernel.bind(x, w).mugraph.blocks


def test_a_dim_that_is_none_of_the_arguments_is_refused() -> None:
    kernel = mirage.kernel(dynamic=("rows",))(linear)
    with pytest.raises(mirage.MirageError, match="rows"):
        kernel(half(4, K), half(K, N))


# -- On a GPU --------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (norm_linear, lambda m: [(m, 256), (256, 512)]),
        (attention, lambda m: [(2, 2 * m, 16), (2, 16, 1024), (2, 1024, 16)]),
        (gram, lambda m: [(m, 64)]),
        (centred, lambda m: [(m, 64)]),
    ],
)
def test_a_tuned_kernel_serves_other_extents(function: Any, shapes: Any) -> None:
    dim = "n" if function is attention else "m"
    kernel = mirage.kernel(dynamic=(dim,))(function)
    found: set[int] = set()
    for m in (32, 17, 23, 31):
        tensors = [half(*s).cuda() for s in shapes(m)]
        close(kernel(*tensors).cpu(), kernel, *(t.cpu() for t in tensors))
        found.add(id(kernel.bind(*tensors)))
    assert len(found) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch.broadcast_to(w, x.shape) * x,
        lambda x, w: torch.broadcast_to(w, (x.shape[0], 8)) * x,
        lambda x, w: torch.reshape(x, (x.shape[0], 2, 4)).sum(-1) * w[:2],
        lambda x, w: w.broadcast_to(x.size()) * x,
        lambda x, w: w.expand(x.size(0), -1) * x,
    ],
)
def test_functions_of_torch_take_dynamic_extents(function: Any) -> None:
    def called(x: Any, w: Any) -> Any:
        return function(x, w)

    called.__annotations__ = {"x": mirage.f32["m", 8], "w": mirage.f32[8]}

    kernel = mirage.kernel(effort="none", dynamic="m")(called)
    w = torch.randn(8)
    for rows in (4, 6, 1):
        x = torch.randn(rows, 8)
        assert torch.allclose(kernel(x, w), function(x, w), atol=1e-6)
