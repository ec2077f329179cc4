"""Cutting a program and joining the parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.types import Dim, TensorType, f16
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ops.definition import Kind
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.search import partition
from mirage_dsl.search.partition import (
    Cutter,
    Group,
    computed_again,
    shift_carriers,
)
from mirage_dsl.verify.verifier import verify
from tests.search import blocks
from tests.search.blocks import op, tensor


def renamed(result: str, source: str, old: str, new: str) -> Apply:
    attrs = (("dims", (old,)), ("to", (new,)))
    return Apply(result, op("v", "rename", source).op, (source,), attrs)


def sliced(result: str, source: str, dim: str, part: slice, to: str) -> Apply:
    attrs = (("dim", dim), ("start", part.start), ("stop", part.stop), ("to", to))
    return Apply(result, op("v", "slice", source).op, (source,), attrs)


def concat(result: str, first: str, second: str, dims: str, to: str) -> Apply:
    attrs = (("dims", tuple(dims.split())), ("to", to))
    return Apply(result, op("v", "concat").op, (first, second), attrs)


def attention() -> KernelGraph:
    inputs = {"q": tensor("m d"), "k": tensor("n d"), "v": tensor("n c")}
    return blocks.graph(
        "attention",
        inputs,
        blocks.SAFE_ATTENTION,
        {"o": tensor("m c")},
        m=5,
        d=4,
        n=6,
        c=3,
    )


def two_layers() -> KernelGraph:
    nodes = (
        op("a", "matmul", "x", "u", over="k"),
        op("b", "silu", "a"),
        op("c", "matmul", "b", "w", over="n"),
        op("d", "add", "c", "x"),
    )
    inputs = {"x": tensor("m k"), "u": tensor("k n"), "w": tensor("n k")}
    return blocks.graph("mlp", inputs, nodes, {"d": tensor("m k")}, m=3, k=4, n=7)


def sliced_and_joined() -> KernelGraph:
    """A product cut in two halves, one of them a gate, then both joined again."""
    nodes = (
        renamed("y", "x", "m", "i"),
        op("a", "matmul", "x", "w", over="k"),
        sliced("g", "a", "n", slice(0, 4), "r"),
        sliced("u", "a", "n", slice(4, 8), "r"),
        op("t", "silu", "g"),
        op("z", "mul", "t", "u"),
        concat("j", "z", "u", "r r", "q"),
        op("s", "sum", "j", over="m"),
        op("o", "matmul", "s", "e", over="q"),
        op("p", "sum", "y", over="i"),
    )
    inputs = {"x": tensor("m k"), "w": tensor("k n"), "e": tensor("q c")}
    returns = {"o": tensor("c"), "p": tensor("k")}
    sizes = {"m": 3, "i": 3, "k": 5, "n": 8, "r": 4, "q": 8, "c": 2}
    return blocks.graph("joined", inputs, nodes, returns, **sizes)


def attention_on_joined() -> KernelGraph:
    """Keys and values of a cache and of a step; a sink that has no value."""
    nodes = (
        concat("keys", "k", "k1", "n t", "u"),
        op("s", "matmul", "q", "keys", over="d"),
        concat("z", "s", "sinks", "u i", "j"),
        op("h", "rowshift", "z", over="j"),
        op("f", "sub", "z", "h"),
        op("e", "exp", "f"),
        op("l", "sum", "e", over="j"),
        op("p", "div", "e", "l"),
        sliced("r", "p", "j", slice(0, 9), "u"),
        concat("values", "v", "v1", "n t", "u"),
        op("o", "matmul", "r", "values", over="u"),
    )
    names = {"q": "m d", "k": "n d", "k1": "t d", "v": "n c", "v1": "t c"}
    inputs = {n: tensor(d) for n, d in {**names, "sinks": "m i"}.items()}
    sizes = {"m": 5, "d": 4, "n": 7, "t": 2, "u": 9, "i": 1, "j": 10, "c": 3}
    return blocks.graph("sinks", inputs, nodes, {"o": tensor("m c")}, **sizes)


PROGRAMS = {
    "attention": attention(),
    "attention on joined tensors": attention_on_joined(),
    "two layers": two_layers(),
    "slices and concat": sliced_and_joined(),
}


def run(graph: KernelGraph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays: list[np.ndarray] = []
    for item in graph.inputs:
        shape = [graph.extent_of[d.name] or 0 for d in item.type.dims]
        arrays.append(rng.uniform(0.5, 1.5, shape))
    return evaluate_numpy(graph, *arrays)


def assert_equal(found: KernelGraph, program: KernelGraph) -> None:
    assert check(found) == []
    for a, b in zip(run(found), run(program), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def segments(cutter: Cutter, groups: Sequence[Group]) -> list[KernelGraph]:
    return [cutter.segment(a.nodes) for a in groups]


@pytest.mark.parametrize("name", PROGRAMS)
def test_joined_atoms_compute_the_program(name: str) -> None:
    cutter = Cutter(PROGRAMS[name])
    parts = segments(cutter, cutter.groups)
    assert len(parts) > 1
    for part in parts:
        assert check(part) == []
    assert_equal(cutter.join(parts), PROGRAMS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_cut_joins_to_the_program(name: str) -> None:
    cutter = Cutter(PROGRAMS[name])
    order = cutter.order
    for cuts in itertools.combinations(range(1, len(order)), 2):
        edges = (0, *cuts, len(order))
        runs = [order[i:j] for i, j in itertools.pairwise(edges)]
        parts = [cutter.segment(r) for r in runs]
        assert_equal(cutter.join(parts), PROGRAMS[name])


def test_what_no_block_can_hold_is_an_atom_of_its_own() -> None:
    cutter = Cutter(sliced_and_joined())
    library = [a for a in cutter.groups if a.library]
    assert sorted(a.nodes[0].result for a in library) == ["g", "j", "u"]
    for group in cutter.groups:
        if not group.library:
            kinds = {n.op.kind for n in group.nodes}
            assert not kinds & {Kind.VIEW, Kind.CONCAT}


@pytest.mark.parametrize("late", [False, True])
def test_concatenations_of_inputs_part_nothing(late: bool) -> None:
    order = [n.result for n in Cutter(attention_on_joined(), late=late).order]
    assert order[:2] == ["keys", "values"]
    assert order[2:4] == ["s", "z"]


def test_what_precedes_and_follows_products_is_apart_from_them() -> None:
    cutter = Cutter(two_layers())
    names = [[n.result for n in a.nodes] for a in cutter.groups]
    assert names == [["a"], ["b"], ["c"], ["d"]]


def test_a_norm_is_apart_from_the_product_behind_it() -> None:
    """Though least crosses before the norm: what it normalises is read later, too."""
    nodes = (
        op("a", "matmul", "x", "u", over="k"),
        op("r", "add", "a", "y"),
        op("q", "mul", "r", "r"),
        op("t", "sum", "q", over="n"),
        op("v", "div", "r", "t"),
        op("c", "matmul", "v", "w", over="n"),
        op("z", "sum", "c", over="i"),
        op("d", "add", "z", "r"),
    )
    names = {"x": "m k", "u": "k n", "y": "m n", "w": "n i"}
    inputs = {n: tensor(d) for n, d in names.items()}
    sizes = {"m": 3, "k": 4, "n": 7, "i": 5}
    program = blocks.graph("norm", inputs, nodes, {"d": tensor("m n")}, **sizes)
    groups = [[n.result for n in a.nodes] for a in Cutter(program).groups]
    assert groups == [["a"], ["r"], ["q", "t", "v"], ["c"], ["z", "d"]]


def gated() -> KernelGraph:
    nodes = (
        op("a", "matmul", "x", "u", over="k"),
        op("s", "silu", "a"),
        op("b", "matmul", "x", "w", over="k"),
        op("y", "mul", "s", "b"),
    )
    inputs = {"x": tensor("m k"), "u": tensor("k n"), "w": tensor("k n")}
    return blocks.graph("gated", inputs, nodes, {"y": tensor("m n")}, m=3, k=4, n=7)


def test_operators_can_wait_for_the_products_that_they_join() -> None:
    late = Cutter(gated(), late=True)
    assert [n.result for n in late.order] == ["a", "b", "s", "y"]
    assert [[n.result for n in a.nodes] for a in late.groups][-1] == ["s", "y"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_late_order_computes_the_program(name: str) -> None:
    cutter = Cutter(PROGRAMS[name], late=True)
    assert_equal(cutter.join(segments(cutter, cutter.groups)), PROGRAMS[name])


def test_cuts_do_not_part_a_shift_from_its_exponential() -> None:
    program = attention()
    carriers = shift_carriers(program)
    assert carriers == {"t", "f", "e", "l"}
    cutter = Cutter(program)
    ends = {a.nodes[-1].result for a in cutter.groups}
    assert not ends & carriers
    assert [n.result for n in cutter.groups[0].nodes] == ["s"]


def test_slices_of_joined_dims_keep_the_extents_of_parts() -> None:
    assert shift_carriers(attention_on_joined()) == {"h", "f", "e", "l"}


def test_halves_cut_where_little_crosses() -> None:
    nodes = (
        op("a", "mul", "x", "x"),
        op("b", "sum", "a", over="k"),
        op("c", "sqrt", "b"),
        op("d", "mul", "c", "w"),
    )
    inputs = {"x": tensor("m k"), "w": tensor("m k")}
    sizes = {"m": 64, "k": 512}
    graph = blocks.graph("g", inputs, nodes, {"d": tensor("m k")}, **sizes)
    cutter = Cutter(graph)
    (group,) = cutter.groups
    left, right = cutter.halves(group)
    assert [n.result for n in left.nodes] == ["a", "b"]
    assert [n.result for n in right.nodes] == ["c", "d"]


def test_outputs_keep_their_returned_axes() -> None:
    x = TensorType(f16, ((Dim("m"),), (Dim("k"),)))
    y = TensorType(f16, ((Dim("k"), Dim("m")),))
    nodes = (op("a", "mul", "x", "x"), op("y", "exp", "a"))
    graph = blocks.graph("g", {"x": x}, nodes, {"y": y}, m=2, k=3)
    cutter = Cutter(graph)
    (part,) = segments(cutter, cutter.groups)
    assert part.returns == graph.returns


def test_an_atom_is_cut_around_what_pytorch_computes_at_once() -> None:
    def normed(x: Any, w: Any, b: Any) -> Any:
        return mirage.exp(mirage.group_norm(mirage.relu(x) * 2, 4, w, b)) + 1

    shapes = ((2, 8, 1 << 12), (8,), (8,))
    specs = [mirage.spec(shape, "float32") for shape in shapes]
    cutter = Cutter(mirage.kernel(normed).trace(*specs))
    (group,) = cutter.groups
    ((before, rest),) = cutter.at_calls(group)
    ((call, after),) = cutter.at_calls(rest)
    assert not list(cutter.at_calls(call))
    assert [n.op.name for n in before.nodes] == ["relu", "mul"]
    assert [n.op.name for n in after.nodes] == ["exp", "add"]
    parts = [cutter.segment(part.nodes) for part in (before, call, after)]
    assert [k.call for k in estimate(parts[1], H100).kernels] == ["group_norm"]
    assert verify(cutter.join(parts), cutter.program).ok


@pytest.mark.parametrize("first", [1, 16])
@pytest.mark.parametrize("program", [attention, attention_on_joined])
def test_near_a_shift_the_same_is_carried_as_in_the_whole_program(
    program: Callable[[], KernelGraph], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few operators are looked at first."""
    monkeypatch.setattr(partition, "FIRST_NEAR", first)
    graph = program()
    assert Cutter(graph).carriers == shift_carriers(graph) != frozenset()


def test_what_is_too_large_at_small_extents_is_not_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = attention_on_joined()
    few = shift_carriers(program)
    monkeypatch.setattr(partition, "MOST_EVALUATED", 1)
    assert few < shift_carriers(program)


# -- What is computed twice ------------------------------------------------------------


def norm_of_groups(x: Any, w: Any) -> Any:
    return torch.nn.functional.silu(torch.nn.functional.group_norm(x, 2, w))


def normed_groups() -> KernelGraph:
    specs = mirage.spec((2, 6, 5, 7), "float32"), mirage.spec((6,), "float32")
    return expand(mirage.kernel(norm_of_groups).trace(*specs))


def test_what_is_cheap_is_not_stored_for_after_a_sum() -> None:
    """The deviations from the mean are computed again behind their variance."""
    program = normed_groups()
    found = computed_again(program)
    assert found is not None
    assert len(found.nodes) == len(program.nodes) + 1
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s) for s in ((2, 6, 5, 7), (6,))]
    for a, b in zip(
        evaluate_numpy(program, *arrays), evaluate_numpy(found, *arrays), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert computed_again(attention()) is None


def test_only_values_of_few_dims_cross_then() -> None:
    """Between all kernels of a norm; otherwise its deviations are stored."""
    sizes = []
    for program in (computed_again(normed_groups()), normed_groups()):
        assert program is not None
        cutter = Cutter(program, late=True)
        at = next(i for i, n in enumerate(cutter.order) if n.op.name in ("div", "sqrt"))
        sizes.append(cutter.crossing(cutter.order, at))
    assert sizes[0] * 10 < sizes[1]
