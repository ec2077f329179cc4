"""Dims that always stand side by side are one in what is searched, and run as such."""

# Names of dims in annotations are no names of types.
# ruff: noqa: F821, UP037

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.settings import INTERPRET
from mirage_dsl.core.types import AxisNames
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.layouts import flattened, side_by_side
from mirage_dsl.search.driver import search
from mirage_dsl.search.result import SearchResult

F = torch.nn.functional
SEEDS = range(20)


def behind_a_convolution(x: Any, w: Any, b: Any) -> Any:
    return torch.tanh(F.conv2d(x, w) - b)


def between_two(x: Any, w: Any, b: Any) -> Any:
    return F.max_pool2d(torch.relu(F.conv2d(x, w) + b), 3, stride=1)


def norm_of_many_axes(x: Any, w: Any) -> Any:
    mean = x.mean((2, 3, 4), keepdim=True)
    return (x - mean) * w


def of_five_dims(x: Any, y: Any) -> Any:
    return torch.sigmoid(x) * y + 1.0


def attention_of_planes(x: Any) -> Any:
    rows = x.flatten(2).mT
    scores = torch.softmax(rows @ rows.mT * 0.5, -1)
    return (scores @ rows).mT.reshape(x.shape) * x


def batches(
    x: mirage.f32["b", 3, 5, 3, 7], y: mirage.f32["b", 3, 5, 3, 7]
) -> torch.Tensor:
    return torch.sigmoid(x) * y + 1.0


SHAPES: dict[Any, tuple[tuple[int, ...], ...]] = {
    behind_a_convolution: ((2, 3, 9, 15), (4, 3, 3, 3), (4, 1, 1)),
    attention_of_planes: ((2, 4, 3, 5),),
    between_two: ((2, 3, 8, 12), (4, 3, 3, 3), (4, 1, 1)),
    norm_of_many_axes: ((2, 3, 3, 5, 7), (3, 1, 1, 1)),
    of_five_dims: ((2, 3, 5, 3, 7), (2, 3, 5, 3, 7)),
}
PROGRAMS = list(SHAPES)


def inputs_of(function: Any, seed: int = 0) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(shape) for shape in SHAPES[function]]


@functools.cache
def traced(function: Any) -> KernelGraph:
    return mirage.kernel(function).trace(
        *(mirage.spec(shape, "float32") for shape in SHAPES[function])
    )


@functools.cache
def searched(function: Any) -> SearchResult:
    return search(traced(function), H100, k=2, max_kernels=2)


def views(graph: KernelGraph) -> list[Apply]:
    return [n for n in graph.applies if n.factored is not None]


# -- What is found ---------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("function", PROGRAMS)
def test_kernels_have_fewer_dims(function: Any) -> None:
    best = searched(function).best
    assert best.certificate is not None
    assert best.certificate.ok
    assert best.mugraph.blocks
    assert views(best.mugraph)
    assert parse(str(best.mugraph)) == best.mugraph


def test_no_loop_goes_over_elements_that_have_nothing_to_do_with_each_other() -> None:
    found = searched(of_five_dims)
    assert found.ledger.cut["loops that only join"]
    assert all(b.loop is None for c in found for b in c.mugraph.blocks)


@pytest.mark.sample(2)
@pytest.mark.parametrize("function", PROGRAMS)
def test_what_is_found_computes_what_pytorch_does(function: Any) -> None:
    inputs = inputs_of(function)
    exact = function(*(i.double() for i in inputs))
    for candidate in searched(function):
        (found,) = TritonExecutable(candidate.mugraph, interpret=True)(*inputs)
        assert found.shape == exact.shape
        assert found.is_contiguous() or not function(*inputs).is_contiguous()
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.sample(2)
@pytest.mark.parametrize("function", PROGRAMS)
def test_inputs_may_lie_in_any_order_with_gaps(function: Any) -> None:
    inputs = inputs_of(function)
    exact = function(*(i.double() for i in inputs))
    run = TritonExecutable(searched(function).best.mugraph, interpret=True)
    turned = [i.transpose(-1, -2).contiguous().transpose(-1, -2) for i in inputs]
    apart = [torch.stack([i, i], -1)[..., 0] for i in inputs]
    for other in (turned, apart):
        (found,) = run(*other)
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)


def test_results_go_into_tensors_of_the_caller() -> None:
    x, y = inputs_of(of_five_dims)
    out = torch.zeros_like(x)
    with INTERPRET.scope(True):
        kernel = mirage.kernel(of_five_dims)
        found = kernel(x, y, out=out)
    assert found is out
    torch.testing.assert_close(out, of_five_dims(x, y))


def test_extents_may_be_symbolic() -> None:
    with INTERPRET.scope(True):
        kernel = mirage.kernel(dynamic=("b",))(batches)
        for batch in (2, 3, 5):
            x, y = torch.randn(batch, 3, 5, 3, 7), torch.randn(batch, 3, 5, 3, 7)
            torch.testing.assert_close(kernel(x, y), of_five_dims(x, y))


ONE_IMAGE = """mirage 1

mugraph f(x: f32[1, (g c), h, w]) -> f32[g, c, h_w] where g = 2, c = 3, h = 5, w = 7 {
  x_f: f32[g, c, h_w] = flatten x of(h, w) to(h_w)
  y = block grid(g / 1) {
    x_t: f32[g/grid, c, h_w] = load x_f
    y_t: f32[g/grid, c, h_w] = neg x_t
    store y: f32[g/grid, c, h_w] = y_t
  }
  return y
}
"""


def test_an_axis_of_one_element_does_not_stand_for_one_of_two_dims() -> None:
    """The input has as many axes as dims, and not one for each."""
    x = torch.arange(210.0).reshape(1, 6, 5, 7)
    run = TritonExecutable(parse(ONE_IMAGE), interpret=True)
    for given in (x, x.mT.contiguous().mT, torch.stack([x, x], -1)[..., 0]):
        (found,) = run(given)
        assert torch.equal(found, -x.reshape(2, 3, 35))


# -- Which dims ------------------------------------------------------------------------


def groups_of(text: str) -> list[tuple[str, ...]]:
    graph = parse(f"mirage 1\n\nmugraph f{text}")
    return sorted(side_by_side(expand(graph)).values())


HEAD = "(x: f32[a, b, c]{more}) -> f32[{to}] where a = 4, b = 6, c = 8{extents}"


def body(lines: str, to: str = "a, b, c", more: str = "", extents: str = "") -> str:
    return f"{HEAD.format(to=to, more=more, extents=extents)} {{\n{lines}\n}}\n"


def test_all_of_an_elementwise_program_is_one_dim() -> None:
    assert groups_of(body("y = exp x\nreturn y")) == [("a", "b", "c")]


def test_what_some_value_has_a_part_of_stays_apart() -> None:
    lines = "y = add x, w\nreturn y"
    assert groups_of(body(lines, more=", w: f32[b]")) == []
    assert groups_of(body(lines, more=", w: f32[b, c]")) == [("b", "c")]
    assert groups_of(body(lines, more=", w: f32[c]")) == [("a", "b")]


def test_what_is_summed_is_apart_from_what_is_not() -> None:
    lines = "y = sum x over(c)\nreturn y"
    assert groups_of(body(lines, to="a, b")) == [("a", "b")]
    lines = "y = sum x over(b, c)\nreturn y"
    assert groups_of(body(lines, to="a")) == [("b", "c")]


def test_other_orders_in_memory_keep_dims_apart() -> None:
    assert groups_of(body("y = exp x\nreturn y", to="b, a, c")) == []
    lines = "y = add x, w\nreturn y"
    assert groups_of(body(lines, more=", w: f32[c, a, b]")) == [("a", "b")]
    assert groups_of(body(lines, more=", w: f32[a, b, c] layout(0, 2, 1)")) == []


def test_dims_that_operators_name_stay() -> None:
    lines = "y = cumsum x along(c)\nreturn y"
    assert groups_of(body(lines)) == [("a", "b")]
    lines = "y = exp x\nz = slice y dim(c) start(0) stop(4) to(e)\nreturn z"
    assert groups_of(body(lines, to="a, b, e")) == [("a", "b")]
    lines = "y = matmul x, w over(c)\nreturn y"
    assert groups_of(body(lines, "a, b, n", ", w: f32[c, n]", ", n = 8")) == []


def test_dims_are_one_where_they_are_under_other_names() -> None:
    lines = "y = rename x dims(b, c) to(s, t)\nz = exp y\nw = add x, z\nreturn w"
    both = [("b", "c"), ("s", "t")]
    assert groups_of(body(lines, to="a, b, c, s, t")) == both
    assert groups_of(body(lines, to="b, c, a, s, t")) == both
    assert groups_of(body(lines, to="a, b, s, c, t")) == []
    assert groups_of(body(lines, to="a, b, c, t, s")) == []
    turned = lines.replace("(s, t)", "(t, s)")
    assert groups_of(body(turned, to="a, b, c, s, t")) == []
    single = "y = rename x dims(c) to(t)\nw = add x, y\nreturn w"
    assert groups_of(body(single, to="a, b, c, t")) == [("a", "b")]
    summed = lines.replace("return w", "v = sum w over(s, t)\nreturn v")
    assert groups_of(body(summed, to="a, b, c")) == both


# -- That it is the same function ------------------------------------------------------


@pytest.mark.parametrize("function", PROGRAMS)
def test_flattened_and_taken_apart_again_is_the_same(function: Any) -> None:
    program = expand(traced(function))
    found = flattened(program)
    assert found is not None
    arrays = [np.asarray(i, np.float64) for i in inputs_of(function)]
    again = found.restored(found.program)
    for a, b in zip(
        evaluate_numpy(program, *arrays), evaluate_numpy(again, *arrays), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def mutants(graph: KernelGraph) -> Iterator[KernelGraph]:
    """Views that take dims apart, or make them one, in another order."""
    for at, node in enumerate(graph.nodes):
        if not isinstance(node, Apply) or node.factored is None:
            continue
        attrs = dict(node.attrs)
        name = "of" if node.factored.flattens else "gives"
        attrs[name] = AxisNames(node.axes(name)[::-1])
        other = replace(node, attrs=tuple(sorted(attrs.items())))
        yield replace(graph, nodes=(*graph.nodes[:at], other, *graph.nodes[at + 1 :]))


@pytest.mark.sample(1)
@pytest.mark.parametrize("function", PROGRAMS)
def test_dims_in_another_order_are_refused_under_every_seed(function: Any) -> None:
    """Also by the type rules, where these dims are not side by side so."""
    count = 0
    for mutant in mutants(searched(function).best.mugraph):
        try:
            mutant = parse(str(mutant))
        except CheckError:
            continue
        for seed in SEEDS:
            found = mirage.verify(mutant, traced(function), seed=seed)
            assert not found.equivalent
            count += 1
    assert count
