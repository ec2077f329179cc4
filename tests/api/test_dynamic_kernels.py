"""One compiled kernel for several extents of dynamic dims."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.api.kernel import Executables
from mirage_dsl.backends.triton.lowering.emit import plan
from mirage_dsl.backends.triton.running import launch
from mirage_dsl.backends.triton.running.screen import compile_kernel
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.settings import INTERPRET
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import with_symbolic
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.verify.verifier import verify
from tests.api.dynamic_programs import (
    BOXES,
    JOINED,
    JOINED_PARTS,
    PARTS,
    PRODUCT,
    K,
    N,
    centred,
    close,
    gram,
    half,
    joined,
    lengthened,
    linear,
    shape_of,
    summed,
    total,
    turned,
)


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    with INTERPRET.scope(value=True):
        yield


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
def test_dims_that_blocks_hold_whole(
    function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a GPU would choose among the candidates may have no block.
    monkeypatch.setattr("mirage_dsl.tune.tuner.has_gpu", lambda: False)
    kernel = mirage.kernel(dynamic=("m",))(function)
    bound = kernel.bind(mirage.spec((8, K)))
    made = Executables(bound.program, bound.mugraph)
    run = [made.make([(m, K)], interpret=True) for m in (8, 7, 5, 1)]
    assert run[1] is run[2] is run[3]
    assert [r.graph.extent_of["m"] for r in run] == [8, None, None, None]
    for m, executable in zip((8, 7, 5, 1), run, strict=True):
        x = half(m, K)
        close(executable(x)[0], kernel, x)


def test_its_own_extents_have_their_own_kernel() -> None:
    """Also where the text leaves out extents that follow, as that of k#."""
    program = mirage.kernel(dynamic=("k",))(total).trace(mirage.spec((64, 16)))
    own = Executables(program, parse(PARTS)).make([(64, 16)], interpret=True)
    assert own.graph.nodes == parse(PARTS).nodes
    assert own.graph.extent_of["k"] == 64


def test_parts_of_a_dim_that_is_summed_across_blocks() -> None:
    kernel = mirage.kernel(dynamic=("k",), mugraph=PARTS)(total)
    for k in (64, 49, 48, 33, 20):
        x = half(k, 16)
        close(kernel(x), kernel, x)
    bound = kernel.bind(half(64, 16))
    made = Executables(bound.program, bound.mugraph)
    run = [made.make([(k, 16)], interpret=True) for k in (64, 49, 33)]
    assert [r.graph.extent_of["k"] for r in run] == [64, None, None]
    assert run[1] is run[2]


def test_extents_of_one_kind_are_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []

    def spy(candidate: KernelGraph, program: KernelGraph) -> Any:
        seen.append(candidate.extent_of["k"])
        return verify(candidate, program)

    monkeypatch.setattr(sys.modules[verify.__module__], "verify", spy)
    kernel = mirage.kernel(dynamic=("k",))(total)
    made = Executables(kernel.trace(mirage.spec((64, 16))), parse(PARTS))
    for k in (64, 63, 50, 49, 48, 33, 32, 31, 17, 16, 15, 9, 2, 1):
        made.make([(k, 16)], interpret=True)
    # Parts of 16: ragged or not, of three and more, two, and one; one element.
    assert seen == [63, 48, 32, 31, 16, 15, 1]


@pytest.mark.parametrize("along", [False, True])
def test_what_lies_along_a_dynamic_dim_is_compiled_for_each_extent(
    along: bool,
) -> None:
    kernel = mirage.kernel(dynamic=("k",))(total)
    bound = kernel.bind(half(16, 64).T if along else half(64, 16))
    made = Executables(bound.program, bound.mugraph)
    found = made.make([(49, 16)], interpret=True).graph.extent_of["k"]
    assert found == (49 if along else None)


def test_tensor_descriptors_of_symbolic_extents() -> None:
    program = mirage.kernel(dynamic=("k",))(turned).trace(
        mirage.spec((256, 64)), mirage.spec((256, 64))
    )
    made = Executables(program, parse(BOXES))
    run = [made.make([(k, 64), (k, 64)], interpret=True) for k in (255, 192, 129, 65)]
    assert all(r is run[0] for r in run)
    assert run[0].source.count("_desc.load") == 2
    assert "[k_size, 64]" in run[0].source
    for k, executable in zip((255, 192, 129, 65), run, strict=True):
        x, y = half(k, 64), half(k, 64, seed=1)
        (found,) = executable(x, y)
        np.testing.assert_allclose(
            found.float(), x.float().T @ y.float(), rtol=1e-2, atol=2e-2
        )


def test_tensor_descriptors_of_symbolic_extents_compile() -> None:
    graph = parse(BOXES)
    most = {n: e for n, e in graph.extents if e is not None}
    made = plan(with_symbolic(graph, ["k"]), most=most)
    assert compile_kernel(made, made.kernels[0], 90).asm["cubin"]


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


@pytest.mark.parametrize("text", [JOINED, JOINED_PARTS])
def test_dims_that_are_joined(text: str) -> None:
    """Kernels store into the whole, wherever their part starts."""
    function = lengthened if text == JOINED else summed
    kernel = mirage.kernel(dynamic=("m",), mugraph=text)(function)
    bound = kernel.bind(mirage.spec((16, K)), mirage.spec((8, K)))
    made = Executables(bound.program, bound.mugraph)
    run = [made.make([(m, K), (8, K)], interpret=True) for m in (15, 11, 9)]
    assert run[0] is run[1] is run[2]
    assert "cat(" not in run[0].source
    for m, executable in zip((15, 11, 9), run, strict=True):
        x, y = half(m, K), half(8, K, seed=1)
        close(executable(x, y)[0], kernel, x, y)


def test_what_cannot_be_shared_is_compiled_for_each_extent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(graph: KernelGraph, *args: Any, **options: Any) -> Any:
        if graph.extent_of["i"] is None:
            raise UnsupportedError("i is symbolic")
        return plan(graph, *args, **options)

    monkeypatch.setattr(launch, "plan", refusing)
    made = executables()
    with caplog.at_level(logging.INFO, logger="mirage_dsl"):
        graphs = [made.make(shape_of(m), interpret=True).graph for m in (16, 9, 12)]
    assert [g.extent_of["i"] for g in graphs] == [16, 9, 12]
    assert len([r for r in caplog.records if "for each extent" in r.message]) == 1


REPEATED: list[Callable[[Any, Any], Any]] = [
    lambda x, w: w.broadcast_to(x.shape).sum(0) + x,
    lambda x, w: w.expand(x.shape[0], -1).sum(0) * x,
    lambda x, w: torch.softmax(w.expand_as(x), 0) + x,
    lambda x, w: (w.expand(x.shape[0], 8) * 2.0).mean(0) + x,
]


@pytest.mark.parametrize("function", REPEATED)
def test_rows_repeated_along_a_dynamic_dim_are_counted(
    function: Callable[[Any, Any], Any],
) -> None:
    def repeated(x: mirage.f32["m", 8], w: mirage.f32[8]) -> Any:  # noqa: F821, UP037
        return function(x, w)

    shapes = mirage.spec((5, 8), "float32"), mirage.spec((8,), "float32")
    program = mirage.kernel(dynamic=("m",))(repeated).trace(*shapes)
    for rows in (1, 5, 40):
        x, w = torch.randn(rows, 8), torch.randn(8)
        (found,) = evaluate_numpy(program.with_extents({"m": rows}), x, w)
        expected = function(x.double(), w.double())
        torch.testing.assert_close(torch.from_numpy(found).double(), expected)
