"""What is said of reductions by rules and algebras that see no elements."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mirage_dsl.core.errors import CheckError, UnsupportedError
from mirage_dsl.core.types import f32
from mirage_dsl.ir.analysis.bounds import GraphBounds, NotHomogeneousError, scaling_of
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.verify.fields import Depth, DepthAlgebra
from mirage_dsl.verify.verifier import trial_error, verify
from tests.backends.test_reductions import FORMS


def quotient(name: str) -> KernelGraph:
    """exp(x) over a reduction of it: free of a shift of x, if that scales alike."""
    g = KernelBuilder("quotient", m=4, k=6)
    e = g.exp(g.input("x", f32, "m, k"), name="e")
    whole = g.apply(OPERATORS[name], e, over="k")
    return g.returns(g.div(e, whole)).build()


@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_what_scales_like_an_element_may_be_shifted(name: str) -> None:
    assert scaling_of(quotient(name), 0, "e").summed == ["k"]


def test_a_product_scales_by_as_many_factors_as_it_has() -> None:
    with pytest.raises(NotHomogeneousError):
        scaling_of(quotient("prod"), 0, "e")


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("name", ["min", "max", "prod"])
def test_bounds_hold_of_what_is_reduced(name: str, looped: bool) -> None:
    g = KernelBuilder("bounded", m=4, k=6)
    x = g.input("x", f32, "m, k")
    with g.block(grid={"m": 2}, loop=("k", 2) if looped else None) as b:
        t = b.mul(b.sigmoid(b.load(x, "m/grid, k/loop" if looped else "m/grid, k")), 3)
        y = b.apply(OPERATORS[name], t, over="k", name="y")
        total = b.accumulate(y, name, name="total") if looped else y
        out = b.store(total, "m/grid", dtype=f32)
    bounds = GraphBounds(g.returns(out).build()).blocks[0]
    found = bounds["total" if looped else "y"].magnitude
    largest = 3.0**6 if name == "prod" else 3.0
    assert found >= largest
    assert math.isinf(found) or name != "prod"


def test_depths_of_products_are_those_of_two_factors() -> None:
    algebra, deep = DepthAlgebra(), Depth(exps=2)
    assert OPERATORS["prod"].reduced(algebra, deep, ()) == deep
    with pytest.raises(UnsupportedError, match="no chain of fields"):
        algebra.fold(lambda a, b: algebra.exp(algebra.add(a, b)), deep, ())


def program(name: str) -> KernelGraph:
    g = KernelBuilder("program", m=4, k=6)
    x = g.input("x", f32, "m, k")
    return g.returns(g.apply(OPERATORS[name], g.mul(x, x), over="k")).build()


def test_a_product_is_less_certain_than_a_sum() -> None:
    """Its degree is that of a factor, times the number of factors."""
    bounds = [
        verify(program(n), squares_apart(n), stability=False).error_bound
        for n in ("sum", "prod")
    ]
    assert np.log(bounds[1]) > np.log(bounds[0]) + 1


@pytest.mark.parametrize("form", ["tiles", "iterations"])
def test_factors_in_tiles_and_loops_count(form: str) -> None:
    """A candidate that multiplies is no more certain than its program."""
    graph = FORMS[form](OPERATORS["prod"], f32)
    plain = verify(graph, graph, stability=False, seed=3).error_bound
    other = FORMS[form](OPERATORS["sum"], f32)
    assert plain > verify(other, other, stability=False, seed=3).error_bound


def test_a_bound_of_more_terms_than_floats_can_say_is_1() -> None:
    assert trial_error(10**400, 11) == 1.0


def squares_apart(name: str) -> KernelGraph:
    """The same function as `program`, which is another graph."""
    g = KernelBuilder("program", m=4, k=6)
    x = g.input("x", f32, "m, k")
    if name == "prod":
        part = g.apply(OPERATORS[name], x, over="k")
        return g.returns(g.mul(part, part)).build()
    return g.returns(g.matmul(x, x, over="k")).build()


@pytest.mark.parametrize("kind", ["rowshift", "exp", "smallest", ""])
def test_iterations_are_accumulated_by_rows_made_in_steps(kind: str) -> None:
    g = KernelBuilder("accumulated", m=4, k=6)
    x = g.input("x", f32, "m, k")
    with (
        pytest.raises(CheckError, match=r"expected .* sum, max, min, prod, concat"),
        g.block(grid={"m": 2}, loop=("k", 2)) as b,
    ):
        b.accumulate(b.load(x, "m/grid, k/loop"), kind)
