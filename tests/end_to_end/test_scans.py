"""Running sums and products along an axis.

A block computes them of a dim that it has whole, or loops over, with what came before
carried from one iteration to the next; what is before and after them is in it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.reference import run_reference
from mirage_dsl.backends.triton.lowering.emit import plan
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import TOLERATED_SPILLS, compile_kernel
from mirage_dsl.core.errors import CheckError, MirageError
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import NumpyDomain, evaluate
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse

Function = Callable[..., Any]
SEEDS = range(20)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


X, Y = normal(6, 21), normal(6, 21).flip(0)


def exclusive(x: Any) -> Any:
    return torch.cat((torch.zeros_like(x[:, :1]), torch.cumsum(x, 1)[:, :-1]), 1)


CASES: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "functions": (
        lambda x: (torch.cumsum(x, 1), torch.cumprod(x, dim=0), torch.cumsum(x, -2)),
        [X],
    ),
    "methods": (lambda x: (x.cumsum(1), x.cumprod(dim=-1)), [X]),
    "of rank 1": (lambda x: torch.cumsum(x, 0), [X[0]]),
    "of merged axes": (lambda x: (x.reshape(-1).cumsum(0), x.cumsum(1)), [X]),
    "along merged axes": (
        lambda x: torch.cumsum(x.reshape(2, 63), 1).reshape(2, 3, 21) * 2,
        [X],
    ),
    "split later": (lambda x: torch.cumsum(x, 1).reshape(6, 3, 7).sum(2), [X]),
    "transposed": (lambda x: torch.cumsum(x.T, 0) + x.T.cumprod(1), [X]),
    "of one element": (lambda x: torch.cumsum(x[:, :1], 1), [X]),
    "of repeated elements": (
        lambda x: torch.cumsum(x[:, :1].expand(6, 4), 1) + 0 * x[:, :4],
        [X],
    ),
    "of a constant": (lambda x: torch.ones_like(x).cumsum(1) * x, [X]),
    "from the end": (lambda x: torch.cumsum(x.flip(1), 1).flip(1), [X]),
    "without the own": (exclusive, [X]),
    "by a mask": (lambda x: torch.cumsum(x * (x > 0), 1), [X]),
    "in another dtype": (
        lambda x: (torch.cumsum(x, 1, dtype=torch.float32), x.cumprod(1)),
        [X.half()],
    ),
    "f64": (lambda x: torch.cumsum(x, 0), [X.double()]),
    "integers": (
        lambda i: (i.cumsum(1), i.cumprod(0), i.cumsum(0, dtype=torch.int32)),
        [(X * 3).int()],
    ),
    "truth": (lambda x: (x > 0).cumsum(1), [X]),
}


@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str) -> None:
    function, tensors = CASES[name]
    found, expected = mirage.kernel(function)(*tensors), function(*tensors)
    if not isinstance(expected, tuple):
        found, expected = (found,), (expected,)
    tolerance = 2e-3 if tensors[0].dtype == torch.float16 else 1e-5
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_as_numpy() -> None:
    def function(x: Any) -> Any:
        return np.cumsum(x), np.cumprod(x, 1), x.cumsum(axis=0), np.cumsum(x > 0, 1)

    x = X.numpy()
    for one, other in zip(mirage.kernel(function)(x), function(x), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mirage.cumsum(x, 1), np.cumsum(x, 1), rtol=1e-5)


def test_an_axis_that_is_not_there_is_an_error() -> None:
    with pytest.raises(MirageError) as error:
        mirage.kernel(lambda x: torch.cumsum(x, 2))(X)
    assert error.value.location is not None


# -- Searched --------------------------------------------------------------------------


def traced(function: Function, *tensors: torch.Tensor) -> KernelGraph:
    specs = [mirage.spec(tuple(t.shape), "float32") for t in tensors]
    return mirage.kernel(function).trace(*specs)


SEARCHED: dict[str, Function] = {
    "sums": lambda x, y: torch.cumsum(x * 2, 1) * y,
    "products": lambda x, y: torch.cumprod(torch.sigmoid(x), 1) + y,
    "of softmax": lambda x, y: torch.cumsum(torch.softmax(x, 1), 1) * y,
    "over the other axis": lambda x, y: torch.cumsum(x * y, 0).sum(1),
    "of sums": lambda x, y: torch.cumsum((x * y).sum(1), 0),
}


@pytest.mark.parametrize("name", SEARCHED)
def test_one_kernel_is_generated(name: str) -> None:
    function = SEARCHED[name]
    program = traced(function, X, Y)
    assert check(program) == []
    assert parse(str(program)) == program
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    assert len(best.mugraph.blocks) == len(best.mugraph.nodes) == 1
    assert parse(str(best.mugraph)) == best.mugraph
    found = TritonExecutable(best.mugraph, interpret=True)(X, Y)[0]
    torch.testing.assert_close(found, function(X, Y), rtol=1e-5, atol=1e-5)


LONG: dict[str, Function] = {
    "sums": lambda x, y: torch.cumsum(torch.exp(x * 2), 1) * y,
    "products": lambda x, y: torch.cumprod(x, 1) + y,
    "by a mask": lambda x, y: torch.cumsum(x * (y > 0), 1),
    "two": lambda x, y: torch.cumsum(torch.cumsum(x, 1) * y, 1),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LONG)
def test_what_is_too_long_for_a_block_is_scanned_in_a_loop(name: str) -> None:
    function = LONG[name]
    spec = mirage.spec((2048, 1 << 17), "float32")
    program = mirage.kernel(function).trace(spec, spec)
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    assert not best.mugraph.applies
    (kernel,) = best.mugraph.blocks
    assert kernel.loop is not None
    assert parse(str(best.mugraph)) == best.mugraph
    reports = mirage.compile_only(best.mugraph, "sm_90")
    assert all(r.spills <= TOLERATED_SPILLS for r in reports)
    # At a few columns more than there are in a whole number of its iterations.
    m, k = 3, 2 * kernel.loop.tile + 5
    names = [n for n, _ in sorted(program.extents, key=lambda e: e[1])]
    small = best.mugraph.with_extents(dict(zip(names, (m, k), strict=True)))
    x, y = torch.rand(m, k) * 2e-3 + 0.999, torch.randn(m, k)
    found = TritonExecutable(small, interpret=True)(x, y)[0]
    exact = function(x.double(), y.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=2e-2)
    torch.testing.assert_close(
        run_reference(small, x, y)[0], found, rtol=1e-3, atol=2e-2
    )


_SCAN = """mirage 1
mugraph f(x: f32[m, k]) -> f32[m, k] where m = 6, k = 21 {{
  y = block grid({grid}){loop} {{
    t = load x[{axes}]
    c = {op} t along({along})
    {end}
  }}
  return y
}}
"""


def block(op: str = "cumsum", along: str = "k", grid: str = "m") -> KernelGraph:
    axes = ", ".join(f"{d}/grid" if d == grid else d for d in "mk")
    end = f"store y: f32[{axes}] = c"
    fields = {"loop": "", "axes": axes, "op": op, "along": along, "end": end}
    return parse(_SCAN.format(grid=f"{grid} / 2", **fields))


@pytest.mark.parametrize("op", ["cumsum", "cumprod"])
def test_a_block_by_hand(op: str) -> None:
    graph = block(op)
    assert check(graph) == []
    expected = getattr(torch, op)(X, 1)
    found = TritonExecutable(graph, interpret=True)(X)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    (computed,) = evaluate(graph, [X.double().numpy()], NumpyDomain())
    np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=1e-5)


def in_loop(op: str, tile: int) -> KernelGraph:
    end = "a = accumulate c concat\n    store y: f32[m/grid, k] = a"
    fields = {"loop": f" loop(k / {tile})", "axes": "m/grid, k/loop", "end": end}
    return parse(_SCAN.format(grid="m / 2", op=op, along="k", **fields))


@pytest.mark.parametrize("tile", [1, 4, 8, 32])
@pytest.mark.parametrize("op", ["cumsum", "cumprod"])
def test_a_scan_goes_on_from_one_iteration_to_the_next(op: str, tile: int) -> None:
    graph = in_loop(op, tile)
    assert check(graph) == []
    assert parse(str(graph)) == graph
    expected = getattr(torch, op)(X, 1)
    found = TritonExecutable(graph, interpret=True)(X)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    (computed,) = evaluate(graph, [X.double().numpy()], NumpyDomain())
    np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=1e-5)
    program = traced(lambda x: getattr(torch, op)(x, 1), X)
    assert mirage.verify(graph, program).ok


@pytest.mark.parametrize("op", ["cumsum", "cumprod"])
def test_what_is_carried_stays_in_the_loop(op: str) -> None:
    """Triton 3.6 takes a sum that joins what is carried as it is for one behind it."""
    graph = in_loop(op, 8)
    emitted = plan(graph)
    compiled = compile_kernel(emitted, emitted.kernels[0], 90)
    (total,) = re.findall(r"(%\w+) = \"tt.reduce\"", str(compiled.asm["ttgir"]))
    read = re.findall(rf"= (\S+) .*{total}\b(?!.*reduce)", str(compiled.asm["ttgir"]))
    assert read == ["math.fma"]
    assert "fma" not in compiled.asm["ptx"]


@pytest.mark.sample(5)
@pytest.mark.parametrize("tile", [1, 4, 8])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: torch.cat([part.cumsum(1) for part in x.split(4, 1)], 1),
        lambda x: torch.cat((x[:, :8].cumsum(1), x[:, 8:].cumsum(1)), 1),
        lambda x: x.cumprod(1),
        lambda x: x.cumsum(0),
        exclusive,
    ],
)
def test_a_wrong_scan_in_a_loop_is_never_accepted(tile: int, wrong: Function) -> None:
    for seed in SEEDS:
        graph = in_loop("cumsum", tile)
        found = mirage.verify(graph, traced(wrong, X), seed=seed, stability=False)
        assert not found.equivalent, seed


@pytest.mark.parametrize(
    ("grid", "loop", "axes", "end"),
    [
        ("k / 4", "", "m, k/grid", "store y: f32[m, k/grid] = c"),
        (
            "k / 8",
            " loop(k / 4)",
            "m, k/grid/loop",
            "a = accumulate c concat\n    store y: f32[m, k/grid] = a",
        ),
    ],
)
def test_a_piece_of_a_dim_is_not_scanned(
    grid: str, loop: str, axes: str, end: str
) -> None:
    fields = {"grid": grid, "loop": loop, "axes": axes, "end": end}
    found = check(parse(_SCAN.format(op="cumsum", along="k", **fields)))
    assert any("a piece of a dim" in str(problem) for problem in found)


def test_graphs_that_are_not_well_formed() -> None:
    text = "mirage 1\nmugraph f(x: f32[m, k]) -> f32[m, k] where m = 6, k = 4 {{\n"
    text += "  y = cumsum x along({})\n  return y\n}}"
    assert check(parse(text.format("(m k)"))) == []
    for along in ("n", "m, k", "(m m)", "1"):
        with pytest.raises((CheckError, mirage.ParseError)):
            parse(text.format(along))


# -- What must not be accepted, and what must be ---------------------------------------

WRONG: dict[str, tuple[Function, Function]] = {
    "the other axis": (lambda x: x.cumsum(1), lambda x: x.cumsum(0)),
    "a product": (lambda x: x.cumsum(1), lambda x: x.cumprod(1)),
    "a sum": (lambda x: x.cumprod(1), lambda x: x.cumsum(1)),
    "from the end": (lambda x: x.cumsum(1), lambda x: x.flip(1).cumsum(1).flip(1)),
    "without the own": (lambda x: x.cumsum(1), exclusive),
    "all": (lambda x: x.cumsum(1), lambda x: x + 0 * x.sum(1, keepdim=True)),
    "of squares": (lambda x: x.cumsum(1) ** 2, lambda x: (x**2).cumsum(1)),
    "twice": (lambda x: x.cumsum(1), lambda x: x.cumsum(1).cumsum(1)),
    "row by row": (
        lambda x: x.reshape(-1).cumsum(0).reshape(12, 12),
        lambda x: x.cumsum(1),
    ),
    "of columns": (
        lambda x: x.reshape(-1).cumsum(0).reshape(12, 12),
        lambda x: x.T.reshape(-1).cumsum(0).reshape(12, 12).T,
    ),
    "in halves": (
        lambda x: x.cumsum(1),
        lambda x: torch.cat((x[:, :6].cumsum(1), x[:, 6:].cumsum(1)), 1),
    ),
}


def _square(function: Function) -> KernelGraph:
    return mirage.kernel(function).trace(mirage.spec((12, 12), "float32"))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_scan_is_never_accepted(name: str) -> None:
    right, wrong = map(_square, WRONG[name])
    for seed in SEEDS:
        found = mirage.verify(wrong, right, seed=seed, stability=False)
        assert not found.equivalent, seed


@pytest.mark.parametrize(
    ("op", "along", "grid"),
    [("cumprod", "k", "m"), ("cumsum", "m", "k"), ("cumprod", "m", "k")],
)
def test_a_wrong_block_is_never_accepted(op: str, along: str, grid: str) -> None:
    program = traced(lambda x: torch.cumsum(x, 1), X)
    graph = block(op, along, grid)
    assert check(graph) == []
    for seed in SEEDS:
        found = mirage.verify(graph, program, seed=seed, stability=False)
        assert not found.equivalent, seed
    assert mirage.verify(block(), program).equivalent


RIGHT: dict[str, tuple[Function, Function]] = {
    "sums are linear": (
        lambda x: torch.cumsum(x * 2 + x.T, 1),
        lambda x: 2 * torch.cumsum(x, 1) + torch.cumsum(x.T, 1),
    ),
    "products": (
        lambda x: torch.cumprod(x * x.T, 1),
        lambda x: torch.cumprod(x, 1) * torch.cumprod(x.T, 1),
    ),
    "the last one": (lambda x: torch.cumsum(x, 1)[:, -1], lambda x: x.sum(1)),
    "by a triangle": (
        lambda x: torch.cumsum(x, 1),
        lambda x: x @ torch.triu(torch.ones_like(x)),
    ),
    "of rows": (
        lambda x: torch.cumsum(x, 1) + torch.cumsum(x.sum(1), 0)[:, None],
        lambda x: torch.cumsum(x.sum(1), 0)[:, None] + x.T.cumsum(0).T,
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_holds_of_scans_is_accepted(name: str) -> None:
    one, other = map(_square, RIGHT[name])
    found = mirage.verify(other, one, stability=False)
    assert found.equivalent, found.reason
