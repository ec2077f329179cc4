"""One space for all kernels: a single one is its case of one layer."""

from __future__ import annotations

import functools

import pytest

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.search.driver import search
from mirage_dsl.search.programs import kernels_of
from mirage_dsl.search.result import is_one_kernel
from mirage_dsl.search.sizes import Constraints, Sizer
from tests.programs.random_programs import random_program


def random_kernel(seed: int) -> KernelGraph:
    made = random_program(seed)
    return trace_function(functools.partial(made.function, mirage), made.specs)


def chain(products: int) -> KernelGraph:
    """Matrix products, one after the other."""
    lines = ["mirage 1", "mugraph chain(x0: f16[d0, d1]"]
    lines += [f"  , w{i}: f16[d{i}, d{i + 1}]" for i in range(1, products + 1)]
    extents = ", ".join(f"d{i} = 256" for i in range(products + 2))
    last = f"f16[d0, d{products + 1}]"
    lines.append(f") -> {last} where {extents} {{")
    lines += [
        f"  x{i}: f16[d0, d{i + 1}] = matmul x{i - 1}, w{i} over(d{i})"
        for i in range(1, products + 1)
    ]
    return parse("\n".join([*lines, f"  return x{products}", "}"]))


# -- One kernel is the case of one layer -----------------------------------------------


@pytest.mark.parametrize("seed", [60, 67])
def test_one_space_finds_the_best_kernel(seed: int) -> None:
    """As cheap as the best of all structures of one kernel, which are not searched."""
    program = random_kernel(seed)
    found = search(program, H100, k=4, max_kernels=2, verify=False)
    assert found.ledger.found["segments"] == 0
    single = search(program, H100, k=4, max_kernels=1, verify=False)
    assert is_one_kernel(single.best.mugraph)
    assert found.best.cost.microseconds <= 1.001 * single.best.cost.microseconds


@pytest.mark.sample(0)
def test_one_kernel_is_varied_with_each_grid() -> None:
    """The best way to compute a value depends on the grid, and the reverse."""
    program = random_kernel(26)
    found = search(program, H100, k=2, max_kernels=2, verify=False)
    single = search(program, H100, k=2, max_kernels=1, verify=False)
    assert is_one_kernel(single.best.mugraph)
    assert found.best.cost.microseconds <= 1.001 * single.best.cost.microseconds


SPLIT_FOR_NOTHING = """mirage 1
mugraph mean(x: f32[m, k], w: f32[k, n]) -> f32[n] where m = 5, k = 7, n = 4 {
  y = block grid(n / 2) {
    w_t: f32[k, n/grid] = load w
    x_t: f32[m, k] = load x
    s: f32[k] = sum x_t over(m)
    y_t: f32[n/grid] = matmul w_t, s over(k)
    store y: f32[n/grid] = y_t
  }
  return y
}
"""


def test_a_grid_that_costs_more_than_it_saves_is_left_out() -> None:
    split = parse(SPLIT_FOR_NOTHING)
    plan = Sizer(H100, Constraints()).sized(split)
    assert plan is not None
    (block,) = plan.graph.blocks
    assert block.grid == ()
    assert not any(d.grid for n in block.stores for axis in n.axes for d in axis)
    assert plan.microseconds < estimate(split, H100).microseconds


def test_a_grid_that_constraints_ask_for_stays() -> None:
    asked = Constraints(griddims=((2, 1, 1),))
    plan = Sizer(H100, asked).sized(parse(SPLIT_FOR_NOTHING))
    assert plan is not None
    assert asked.admits(plan.graph)
    assert [s.dim for s in plan.graph.blocks[0].grid] == ["n"]


VIEWS = """mirage 1
mugraph views(x: f16[h, w]) -> f16[v] where h = 64, w = 64 {
  x_flat: f16[v] = flatten x of(h, w) to(v)
  y = block grid(v / 128) {
    x_t: f16[v/grid] = load x_flat
    y_t: f32[v/grid] = exp x_t
    store y: f16[v/grid] = y_t
  }
  y_seen: f16[h, w] = unflatten y dim(v) gives(h, w)
  y_flat: f16[v] = flatten y_seen of(h, w) to(v)
  z = block grid(v / 128) {
    a_t: f16[v/grid] = load x_flat
    b_t: f16[v/grid] = load y_flat
    z_t: f32[v/grid] = add a_t, b_t
    store z: f16[v/grid] = z_t
  }
  return z
}
"""


def test_a_view_of_an_input_was_not_left_in_l2() -> None:
    graph = parse(VIEWS)
    types, extents = kernel_types(graph), derived_extents(graph, graph.extent_of)
    sizer = Sizer(H100, Constraints())
    inside = [
        sizer._inside(graph, at, types, extents) for at in range(len(graph.nodes))
    ]
    assert inside[1] == frozenset()
    assert inside[-1] == {"y", "y_seen", "y_flat"}


# -- How many kernels ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("products", "asked", "kernels"),
    [(4, 1, 1), (1, 2, 2), (3, 2, 2), (4, 2, 4), (4, 3, 3), (6, 3, 4), (2, None, 4)],
)
def test_kernels_of_a_space(products: int, asked: int | None, kernels: int) -> None:
    assert kernels_of(chain(products), asked) == kernels
