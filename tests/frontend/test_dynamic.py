"""Dynamic dims: what is found for rounded extents serves all that round to the same."""

# Names of dims in annotations are no names of types.
# ruff: noqa: F821, UP037

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.frontend.dynamic import Executables, free_dims, resized, rounded
from mirage_dsl.frontend.trace import bind_arguments
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.parser import parse
from mirage_dsl.settings import INTERPRET
from mirage_dsl.types import TensorSpec
from mirage_dsl.verify.verifier import verify

torch = pytest.importorskip("torch")
K, N = 64, 48


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    with INTERPRET.scope(value=True):
        yield


def half(*shape: int, seed: int = 0) -> Any:
    drawn = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return torch.from_numpy((0.5 * drawn).astype(np.float16))


def norm_linear(x: mirage.f16["m", "k"], w: mirage.f16["k", "n"]) -> Any:
    return mirage.rms_norm(x) @ w


def attention(
    q: mirage.f16["b", "n", 16],
    k: mirage.f16["b", 16, "s"],
    v: mirage.f16["b", "s", 16],
) -> Any:
    return torch.softmax(q @ k, -1) @ v


def centred(x: mirage.f16["m", "k"]) -> Any:
    return x - x.mean(0, keepdims=True)


def joined(
    x: mirage.f16["m", "k"], y: mirage.f16[8, "k"], z: mirage.f16["n", "k"]
) -> Any:
    return torch.cat([torch.erf(x), y]) + z, torch.erf(x)


def gram(x: mirage.f16["m", "k"]) -> Any:
    return torch.softmax(x @ x.T, -1) @ x


def lengthened(x: mirage.f16["m", "k"], y: mirage.f16[8, "k"]) -> Any:
    return torch.cat([torch.erf(x), y]) * 2.0


def total(x: mirage.f16["m", "k"]) -> Any:
    return x.sum(-1)


def close(found: Any, kernel: mirage.Kernel, *tensors: Any) -> None:
    expected = kernel.reference(*(t.numpy() for t in tensors))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-2, atol=1e-2)


def shape_of(m: int) -> list[tuple[int, ...]]:
    return [(m, K), (K, N)]


# -- One search for a range of extents -------------------------------------------------


@pytest.mark.parametrize(
    ("extent", "expected"), [(1, 1), (2, 2), (3, 4), (16, 16), (17, 32), (4097, 8192)]
)
def test_extents_are_rounded_up_to_powers_of_two(extent: int, expected: int) -> None:
    specs = mirage.spec((extent, K)), mirage.spec((K, N))
    arguments = bind_arguments(norm_linear, specs, {})
    assert [s.shape for s in rounded(arguments, ("m",)).specs] == [
        (expected, K),
        (K, N),
    ]
    assert rounded(arguments, ()) is arguments


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


@pytest.mark.parametrize("m", [16, 9, 13, 1, 3, 40])
def test_rows_of_a_product(m: int) -> None:
    kernel = mirage.kernel(dynamic=("m",))(norm_linear)
    x, w = half(m, K), half(K, N)
    close(kernel(x, w), kernel, x, w)


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


# -- One compiled kernel ---------------------------------------------------------------

PRODUCT = """
mirage 1
mugraph product(a: f16[i, j], b: f16[j, l]) -> f16[i, l]
where i = 16, j = 64, l = 48 {
  y = block grid(l / 16) loop(j / 32) {
    a_t: f16[i, j/loop] = load a
    b_t: f16[j/loop, l/grid] = load b
    p: f32[i, l/grid] = matmul a_t, b_t over(j)
    s: f32[i, l/grid] = accumulate p
    store y: f16[i, l/grid] = s
  }
  return y
}
"""


JOINED = """
mirage 1
mugraph lengthened(x: f16[m, k], y: f16[n, k]) -> f16[h, k] where m = 8, n = 8, k = 64 {
  u = block grid(k / 16) {
    x_t: f16[m, k/grid] = load x
    e: f32[m, k/grid] = erf x_t
    d: f32[m, k/grid] = mul e, 2
    store u: f16[m, k/grid] = d
  }
  v: f16[n, k] = mul y, 2
  both: f16[h, k] = concat u, v dims(m, n) to(h)
  return both
}
"""

PARTS = """
mirage 1
mugraph total(x: f16[m, k]) -> f16[m] where m = 16, k = 64 {
  parts = block grid(k / 16) {
    x_t: f16[m, k/grid] = load x
    p: f32[m] = sum x_t over(k)
    store parts: f32[k#/grid, m] = p
  }
  y = block grid(m / 8) {
    p_t: f32[k#, m/grid] = load parts
    s: f32[m/grid] = sum p_t over(k#)
    store y: f16[m/grid] = s
  }
  return y
}
"""


def linear(x: mirage.f16["m", "k"], w: mirage.f16["k", "n"]) -> Any:
    return x @ w


def executables() -> Executables:
    kernel = mirage.kernel(dynamic=("m",))(linear)
    program = kernel.trace(*map(mirage.spec, shape_of(16)))
    return Executables(program, parse(PRODUCT))


def test_other_extents_share_a_compiled_kernel() -> None:
    made = executables()
    own = made.make(shape_of(16), interpret=True)
    others = [made.make(shape_of(m), interpret=True) for m in (9, 15, 12)]
    assert own.graph == parse(PRODUCT)
    assert others[0].graph.extent_of["i"] is None
    assert others[0] is others[1] is others[2]
    assert made.at(shape_of(9), interpret=True) is others[0]
    assert made.at(shape_of(10), interpret=True) is None
    for m in (9, 15, 12):
        x, w = half(m, K), half(K, N)
        (found,) = others[0](x, w)
        np.testing.assert_allclose(found, x.float() @ w.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("function", [centred, gram])
def test_dims_that_blocks_hold_whole(function: Any) -> None:
    kernel = mirage.kernel(dynamic=("m",))(function)
    bound = kernel.bind(mirage.spec((8, K)))
    made = Executables(bound.program, bound.mugraph)
    run = [made.make([(m, K)], interpret=True) for m in (8, 7, 5, 1)]
    assert run[1] is run[2] is run[3]
    assert [r.graph.extent_of["m"] for r in run] == [8, None, None, None]
    for m, executable in zip((8, 7, 5, 1), run, strict=True):
        x = half(m, K)
        close(executable(x)[0], kernel, x)


def test_parts_of_a_dim_that_is_summed_across_blocks() -> None:
    kernel = mirage.kernel(dynamic=("k",), mugraph=PARTS)(total)
    for k in (64, 49, 48, 33, 20):
        x = half(16, k)
        close(kernel(x), kernel, x)
    bound = kernel.bind(half(16, 64))
    made = Executables(bound.program, bound.mugraph)
    run = [made.make([(16, k)], interpret=True) for k in (49, 33)]
    assert run[0] is run[1]


def test_extents_of_one_kind_are_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []

    def spy(candidate: KernelGraph, program: KernelGraph) -> Any:
        seen.append(candidate.extent_of["k"])
        return verify(candidate, program)

    monkeypatch.setattr(sys.modules[verify.__module__], "verify", spy)
    kernel = mirage.kernel(dynamic=("k",))(total)
    made = Executables(kernel.trace(mirage.spec((16, 64))), parse(PARTS))
    for k in (64, 63, 50, 49, 48, 33, 32, 31, 17, 16, 15, 9, 2, 1):
        made.make([(16, k)], interpret=True)
    # Parts of 16: ragged or not, of three and more, two, and one; one element.
    assert seen == [63, 48, 32, 31, 16, 15, 1]


def test_longer_extents_than_it_was_compiled_for_are_refused() -> None:
    shared = executables().make(shape_of(9), interpret=True)
    with pytest.raises(mirage.MirageError, match=r"dim i .* extent 17.* 16 at most"):
        shared(half(17, K), half(K, N))


def test_longer_extents_than_the_typical_ones_have_their_own_kernel() -> None:
    """Where rounded extents contradict each other, those of the first call count."""
    kernel = mirage.kernel(dynamic=("m", "n"))(joined)
    for m in (9, 16, 12):
        tensors = half(m, K), half(8, K), half(m + 8, K)
        found = kernel(*tensors)[1]
        expected = kernel.reference(*(t.numpy() for t in tensors))[1]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-2, atol=1e-2)


def test_what_cannot_be_shared_is_compiled_for_each_extent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kernel = mirage.kernel(dynamic=("m",), mugraph=JOINED)(lengthened)
    bound = kernel.bind(mirage.spec((8, K)), mirage.spec((8, K)))
    made = Executables(bound.program, bound.mugraph)
    with caplog.at_level(logging.INFO, logger="mirage_dsl"):
        graphs = [made.make([(m, K), (8, K)], interpret=True).graph for m in (8, 7, 6)]
    assert [g.extent_of["m"] for g in graphs] == [8, 7, 6]
    assert len([r for r in caplog.records if "for each extent" in r.message]) == 1


# -- Given μGraphs ---------------------------------------------------------------------


def test_dims_of_a_given_mugraph_are_found_by_place() -> None:
    kernel = mirage.kernel(dynamic=("m",))(linear)
    program = kernel.trace(*map(mirage.spec, shape_of(16)))
    graph = parse(PRODUCT)
    assert free_dims(graph, program) == {"i"}
    assert resized(graph, {"i"}, shape_of(5)) == graph.with_extents({"i": 5})


@pytest.mark.parametrize("m", [16, 9, 40])
def test_a_pinned_mugraph_serves_every_extent(m: int) -> None:
    kernel = mirage.kernel(dynamic=("m",), mugraph=PRODUCT)(linear)
    x, w = half(m, K), half(K, N)
    close(kernel(x, w), kernel, x, w)
    bound = kernel.bind(x, w)
    assert "grid(l / 16)" in str(bound.mugraph)


HALVES = """
mirage 1
mugraph positive(x: f16[m, k]) -> f16[r, k] where m = 8, k = 64 {
  low: f16[p, k] = slice x dim(m) start(0) stop(4) to(p)
  high: f16[q, k] = slice x dim(m) start(4) stop(8) to(q)
  y = block grid(k / 16) {
    low_t: f16[p, k/grid] = load low
    low_y: f32[p, k/grid] = relu low_t
    store y: f16[p, k/grid] = low_y
  }
  z: f16[q, k] = relu high
  both: f16[r, k] = concat y, z dims(p, q) to(r)
  return both
}
"""


def positive(x: mirage.f16["m", "k"]) -> Any:
    return torch.relu(x)


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
        (attention, lambda m: [(2, 4 * m, 16), (2, 16, 1024), (2, 1024, 16)]),
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
