"""Dims get the most general names that a function allows."""

# Names of dims in annotations are no names of types.
# ruff: noqa: F821, UP037

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.frontend.program import DimVar, DimVars, SharedTail, Unifier
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse


def traced(
    function: Any, *shapes: tuple[int | str, ...], **options: Any
) -> KernelGraph:
    graph = trace_function(
        function, [mirage.spec(s, "float32") for s in shapes], **options
    )
    assert check(graph) == []
    assert parse(str(graph)) == graph
    return graph


def inputs(graph: KernelGraph) -> list[str]:
    return [str(i.type) for i in graph.inputs]


def renames(graph: KernelGraph) -> int:
    return sum(n.op.name == "rename" for n in graph.nodes if hasattr(n, "op"))


def agrees(function: Any, *shapes: tuple[int, ...]) -> KernelGraph:
    """The program, once it has given what the function gives on arrays."""
    graph = traced(function, *shapes)
    random = np.random.default_rng(0)
    arrays = [random.normal(size=s) for s in shapes]
    (found,) = evaluate_numpy(graph, *arrays)
    np.testing.assert_allclose(found, function(*arrays), rtol=1e-10, atol=1e-10)
    return graph


def test_a_product_shares_only_the_contracted_dim() -> None:
    graph = agrees(lambda x, w: x @ w, (4, 4), (4, 4))
    assert inputs(graph) == ["f32[m, k]", "f32[k, n]"]
    assert str(graph.returns[0].type) == "f32[m, n]"


def test_unrelated_tensors_of_one_shape_share_nothing() -> None:
    graph = traced(lambda x, y: (x * 2, y * 3), (8, 8), (8, 8))
    assert inputs(graph) == ["f32[m, k]", "f32[n, h]"]


def test_broadcasting_unifies_from_the_right() -> None:
    graph = agrees(lambda x, y: x + y, (3, 5), (5,))
    assert inputs(graph) == ["f32[m, k]", "f32[k]"]


def test_axes_of_extent_1_have_no_dims() -> None:
    graph = agrees(lambda x, y: x + y, (3, 1), (1, 5))
    assert inputs(graph) == ["f32[m, 1]", "f32[1, k]"]
    assert str(graph.returns[0].type) == "f32[m, k]"


def test_batch_dims_are_unified() -> None:
    graph = agrees(lambda q, p: q @ p.swapaxes(-1, -2), (2, 3, 4), (2, 5, 4))
    assert inputs(graph) == ["f32[m, k, n]", "f32[m, h, n]"]


def test_a_product_with_a_broadcast_batch() -> None:
    agrees(lambda q, k: q @ k, (2, 3, 4), (4, 5))
    agrees(lambda q, k: q @ k, (2, 1, 3, 4), (6, 4, 5))
    agrees(lambda q, k: q @ k, (4,), (6, 4, 5))
    agrees(lambda q, k: q @ k, (6, 5, 4), (4,))
    agrees(lambda q, k: q @ k, (7,), (7,))
    agrees(lambda q, k: q @ k, (3, 1), (1, 4))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x,
        lambda x: x @ x.T,
        lambda x: x + x.T,
        lambda x: (x @ x) @ (x @ x),
        lambda x: x.sum(1, keepdims=True) + x.sum(1, keepdims=True).T,
        lambda x: (x @ x.T) @ x,
        lambda x: (x @ x + x.T) * x,
    ],
)
def test_one_tensor_under_two_namings_is_renamed(function: Any) -> None:
    graph = agrees(function, (6, 6))
    assert renames(graph) >= 1


def test_a_view_is_not_renamed_without_need() -> None:
    assert renames(agrees(lambda x: x * x + x, (3, 4))) == 0
    assert renames(agrees(lambda x, w: (x @ w) * (x @ w), (3, 4), (4, 5))) == 0


def test_self_attention_renames_the_rows_of_keys_and_values_alike() -> None:
    def attention(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
        q, k, v = x @ wq, x @ wk, x @ wv
        return (q @ k.T) @ v

    graph = agrees(attention, (5, 4), (4, 6), (4, 6), (4, 7))
    views = [n for n in graph.nodes if getattr(n, "op", None) and n.op.name == "rename"]
    assert len(views) == 2
    assert views[0].attrs == views[1].attrs


def test_reshapes_factor_dims_everywhere() -> None:
    graph = agrees(lambda x, w: (x @ w).reshape(3, 2, 5), (3, 4), (4, 10))
    assert inputs(graph) == ["f32[m, k]", "f32[k, (n h)]"]


def test_merged_axes_meet_a_split_one() -> None:
    graph = agrees(lambda x, w: x.reshape(3, 10) @ w, (3, 2, 5), (10, 4))
    assert inputs(graph) == ["f32[m, k, n]", "f32[(k n), h]"]


def test_two_factorings_get_their_common_refinement() -> None:
    def function(x: Any, y: Any) -> Any:
        return x.reshape(3, 4, 6).sum(1).sum(1) + y.reshape(3, 8, 3).sum(1).sum(1)

    agrees(function, (3, 24), (3, 24))

    def shared(x: Any) -> Any:
        return x.reshape(4, 6).sum(1).sum(0) + x.reshape(8, 3).sum(0).sum(0)

    graph = agrees(shared, (24,))
    assert inputs(graph) == ["f32[(m k n)]"]


def test_factorings_without_common_refinement_are_views() -> None:
    def both(x: Any) -> Any:
        return (x.reshape(4, 6) ** 2).sum(0).sum() + (x.reshape(6, 4).sum(0) ** 3).sum()

    graph = agrees(both, (24,))
    assert [n.op.name for n in graph.applies].count("unflatten") == 1
    agrees(lambda x, y: x.reshape(4, 6) * y + x.reshape(6, 4)[:4, :1], (24,), (4, 6))
    agrees(lambda x, y: x.reshape(24) + y.reshape(24), (4, 6), (3, 8))
    agrees(lambda x, y: x.reshape(2, 24) @ y.reshape(24, 2), (2, 4, 6), (3, 8, 2))


def test_axes_of_unknown_extent_that_are_split_elsewhere_name_the_line() -> None:
    with pytest.raises(UnsupportedError, match="row-major") as error:
        traced(lambda x: x.reshape(2, x.shape[0], 2), ("m", 4))
    assert error.value.location is not None
    assert "x.reshape(2, " in error.value.location.text


def test_a_transpose_then_a_merge_keeps_the_order_of_elements() -> None:
    agrees(
        lambda x: x.transpose(1, 0, 2).reshape(4, 10) if x.ndim == 3 else x, (2, 4, 5)
    )


def test_attention_heads_from_one_projection() -> None:
    def heads(x: Any, w: Any) -> Any:
        y = x @ w
        q, k, v = y[:, :12], y[:, 12:24], y[:, 24:]
        q, k, v = (t.reshape(5, 3, 4).swapaxes(0, 1) for t in (q, k, v))
        return ((q @ k.swapaxes(1, 2)) @ v).swapaxes(0, 1).reshape(5, 12)

    agrees(heads, (5, 7), (7, 36))


def test_slices_of_a_merged_axis() -> None:
    agrees(lambda x: x.reshape(6, 4).reshape(24)[8:20], (24,))
    agrees(lambda x: x.reshape(24)[7:8] * 2, (6, 4))
    agrees(lambda x: x.reshape(24)[13], (6, 4))


def test_a_slice_through_a_split_dim_sees_it_as_one() -> None:
    graph = agrees(lambda x: x.reshape(24)[3:9], (6, 4))
    assert [n.op.name for n in graph.applies] == ["flatten", "slice"]


def test_expanded_axes_are_free() -> None:
    def function(x: Any) -> Any:
        return mirage.sum(mirage.expand(x[:, None, :], (3, 5, 4)), 1)

    graph = traced(function, (3, 4))
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(evaluate_numpy(graph, x)[0], 5 * x)


def test_grouped_query_attention_by_repeating() -> None:
    def function(q: Any, keys: Any) -> Any:
        return q @ mirage.swapaxes(mirage.repeat_interleave(keys, 3, 0), -1, -2)

    graph = traced(function, (6, 4, 8), (2, 5, 8))
    assert inputs(graph) == ["f32[(m k), n, h]", "f32[m, d, h]"]
    random = np.random.default_rng(0)
    q, k = random.normal(size=(6, 4, 8)), random.normal(size=(2, 5, 8))
    expected = q @ np.repeat(k, 3, 0).swapaxes(-1, -2)
    np.testing.assert_allclose(evaluate_numpy(graph, q, k)[0], expected)


def test_an_expanded_output_has_elements_of_its_own() -> None:
    graph = traced(lambda x: mirage.expand(x[:, None], (3, 5)), (3,))
    assert graph.nodes[-1].op.name == "concat"
    with pytest.raises(UnsupportedError, match="expand"):
        traced(lambda x: mirage.expand(x[:, None], (3, 65)), (3,))


def test_annotated_names_come_first() -> None:
    def function(x: mirage.f32["tokens", "d"], w: mirage.f32["d", "out"]) -> Any:
        return x @ w

    graph = traced(function, (4, 5), (5, 6))
    assert inputs(graph) == ["f32[tokens, d]", "f32[d, out]"]


def test_a_name_on_two_axes_that_differ_is_numbered() -> None:
    def function(q: mirage.f32["s", "d"], k: mirage.f32["s", "d"]) -> Any:
        return q @ k.T

    assert inputs(traced(function, (4, 5), (4, 5))) == ["f32[s, d]", "f32[s2, d]"]


def test_symbolic_extents_are_unified() -> None:
    graph = traced(lambda x, y, w: (x + y) @ w, ("m", 5), ("m", 5), (5, 6))
    assert inputs(graph) == ["f32[m, k]", "f32[m, k]", "f32[k, n]"]
    assert graph.extent_of == {"m": None, "k": 5, "n": 6}
    sized = graph.with_extents({"m": 3})
    x, y, w = np.ones((3, 5)), np.ones((3, 5)), np.ones((5, 6))
    np.testing.assert_allclose(evaluate_numpy(sized, x, y, w)[0], 10.0)


def test_a_symbolic_dim_that_meets_a_number_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="symbolic"):
        traced(lambda x, y: x + y, ("m", 5), (4, 5))


def test_reshapes_beside_symbolic_dims() -> None:
    def function(x: Any) -> Any:
        y = x.reshape(x.shape[0], 2, 3, x.shape[2])
        return y.reshape(-1, 6, 5).reshape(x.shape[0], -1)

    graph = traced(function, ("b", 6, 5))
    assert str(graph.returns[0].type) == "f32[b, (m k n)]"
    merged = traced(lambda x: x.reshape(-1, 6), ("b", "s", 6))
    assert str(merged.returns[0].type) == "f32[(b s), m]"


def test_a_mean_follows_the_extents() -> None:
    graph = traced(lambda x: x.mean(-1), (4, 5))
    large = graph.with_extents({"k": 7})
    x = np.random.default_rng(0).normal(size=(4, 7))
    np.testing.assert_allclose(evaluate_numpy(large, x)[0], x.mean(-1))


def test_dividing_by_a_shape_follows_the_extents() -> None:
    graph = traced(lambda x: x.sum(-1) / x.shape[-1], (4, 5))
    large = graph.with_extents({"k": 7})
    x = np.random.default_rng(0).normal(size=(4, 7))
    np.testing.assert_allclose(evaluate_numpy(large, x)[0], x.mean(-1))


def test_layouts_follow_strides() -> None:
    given = [mirage.spec((4, 5), "float32", strides=(1, 4))]
    graph = trace_function(lambda x: x * 2, given)
    assert graph.inputs[0].type.layout == (1, 0)
    for strides, layout in (((10, 2), None), ((2, 8), (1, 0)), ((1, 0), (1, 0))):
        gaps = mirage.spec((4, 5), "float32", strides)
        graph = trace_function(lambda x: x * 2, [gaps])
        assert graph.inputs[0].type.layout == layout


def test_a_refused_unification_changes_nothing() -> None:
    dims = Unifier()
    a, b, c = dims.fresh(4), dims.fresh(4), dims.fresh(8)
    assert dims.unify(group=(a, b)) is None
    assert dims.unify([((c,), (a, dims.fresh(2))), ((a,), (b,))]) is not None
    assert dims.resolve((a, b, c)) == (a, b, c)


def test_a_tail_is_shared_once_one_member_is_split() -> None:
    dims = Unifier()
    source, target = dims.fresh(24), dims.fresh(8)
    assert dims.unify(tail=SharedTail(((source,), (target,)), (8, 16))) is None
    dims.regroup((target,), (2, 4))
    assert [a.extent for a in dims.resolve((source,))] == [6, 4]
    assert dims.resolve((source,))[1] is dims.resolve((target,))[1]


def extents_of(dims: Unifier, *vars: DimVar) -> list[Any]:
    return [a.extent for a in dims.resolve(vars)]


def changed_at_random(random: np.random.Generator, dims: Unifier, some: Some) -> None:
    """One more thing that must hold of variables, or why it cannot."""
    before = dims.resolve(some.vars)
    one, other, *rest = random.permutation(len(some.vars))
    a, b = some.vars[one], some.vars[other]
    kind = random.integers(5)
    if kind == 0:
        reason = dims.unify([((a,), (b,))]) if a.extent == b.extent else None
    elif kind == 1:
        group = tuple(some.vars[i] for i in rest[: random.integers(2, 4)])
        reason = dims.unify(group=group)
        some.groups += [group] if reason is None else []
    elif kind == 2:
        reason = dims.unify(renamed=[(a, b)]) if a.extent == b.extent else None
        some.pairs += [(a, b)] if a.extent == b.extent and reason is None else []
    elif kind == 3:
        tail = SharedTail(((a,), (b,)), len(some.tails))
        reason = dims.unify(tail=tail)
        some.tails += [tail] if reason is None else []
    else:
        reason = None
        try:
            dims.regroup((a,), [a.extent // 2, 2] if one % 2 else [3, a.extent // 3])
        except UnsupportedError as error:
            reason = error
    if reason is not None:
        assert dims.resolve(some.vars) == before


@dataclass
class Some:
    """Variables, and what must hold of them."""

    vars: list[DimVar]
    groups: list[DimVars] = field(default_factory=list[DimVars])
    pairs: list[DimVars] = field(default_factory=list[DimVars])
    tails: list[SharedTail] = field(default_factory=list[SharedTail])

    def holds(self, dims: Unifier) -> None:
        for group in self.groups:
            found = dims.resolve(group)
            assert len(set(found)) == len(found)
        for old, new in self.pairs:
            assert extents_of(dims, old) == extents_of(dims, new)
        for tail in self.tails:
            ends = {dims.resolve(member)[1:] for member in tail.members}
            assert len(ends) == 1


def test_all_that_must_hold_of_variables_does_after_each_change() -> None:
    held = [0, 0, 0]
    for seed in range(40):
        random, dims = np.random.default_rng(seed), Unifier()
        some = Some([dims.fresh(int(e)) for e in random.choice([24, 72], 14)])
        for _ in range(40):
            changed_at_random(random, dims, some)
            some.holds(dims)
        kinds = some.groups, some.pairs, some.tails
        held = [n + len(kind) for n, kind in zip(held, kinds, strict=True)]
    assert min(held) > 40


def test_one_trace_finds_all_slices_that_stand_by_themselves() -> None:
    calls: list[int] = []

    def rolled(x: Any) -> Any:
        calls.append(1)
        for shift in range(1, 8):
            parts = [x[:, shift:], x[:, :shift]]
            x = (x + mirage.concatenate(parts, 1)).reshape(2, 4, 7, 5)
            x = (x - x.sum(2, keepdims=True)).reshape(2, 28, 5)
        return x

    graph = traced(rolled, (2, 28, 5))
    assert len(calls) <= 4
    x = np.random.default_rng(0).standard_normal((2, 28, 5))
    np.testing.assert_allclose(
        evaluate_numpy(graph, x)[0], rolled_by_hand(x), rtol=1e-9
    )


def rolled_by_hand(x: Any) -> Any:
    for shift in range(1, 8):
        x = (x + np.roll(x, -shift, 1)).reshape(2, 4, 7, 5)
        x = (x - x.sum(2, keepdims=True)).reshape(2, 28, 5)
    return x


def test_writes_of_a_loop_are_traced_a_few_times_and_not_once_each() -> None:
    calls: list[int] = []

    def written(x: Any) -> Any:
        calls.append(1)
        flat = (x + 1).reshape(-1)
        for at in range(0, 36, 3):
            flat[at : at + 2] = flat[at : at + 2] * 2
        return flat.reshape(6, 6)

    graph = traced(written, (6, 6))
    assert len(calls) <= 6
    x = np.random.default_rng(0).standard_normal((6, 6))
    np.testing.assert_allclose(evaluate_numpy(graph, x)[0], written(x))


@pytest.mark.parametrize("transposed", [False, True])
def test_an_axis_that_is_split_otherwise_keeps_rows_and_columns_apart(
    transposed: bool,
) -> None:
    def function(k: Any) -> Any:
        # Six heads are two times three here, and three times two there.
        rows, columns = k.repeat(1, 2, 1, 1), k.repeat_interleave(2, 1)
        return columns @ rows.mT if transposed else rows @ columns.mT

    graph = traced(function, (1, 3, 4, 5))
    k = np.random.default_rng(0).standard_normal((1, 3, 4, 5))
    rows, columns = np.tile(k, (1, 2, 1, 1)), np.repeat(k, 2, 1)
    if transposed:
        rows, columns = columns, rows
    (found,) = evaluate_numpy(graph, k)
    np.testing.assert_allclose(found, rows @ columns.swapaxes(-1, -2))
