"""Elements joined at indices, by PyTorch's kernels: `index_add`, `scatter_reduce`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import MirageError
from mirage_dsl.ir.analysis.integers import Limit, index_limits
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from tests.end_to_end.tracing import traced

Function = Callable[..., Any]
SEEDS = range(20)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def below(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(4))


def in_place(i: Any, v: Any) -> Any:
    made = torch.zeros(4, 5, 8)
    made.view(20, 8).index_add_(0, i, v.relu())
    return made + 1


def repeated(i: Any, v: Any) -> Any:
    places = i[:, None].expand(-1, 8)
    return torch.zeros(12, 8).scatter_add_(0, places, v)


def with_infinity(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[3, 2] = float("inf")
    return x


X, PLACES, ROWS = normal(12, 8), below(12, 30), normal(30, 8)
EACH = below(12, 30, 8)
CASES: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "rows": (lambda x, i, v: x.index_add(0, i, v), [X, PLACES, ROWS]),
    "scaled": (
        lambda x, i, v: torch.index_add(x, 0, i, v, alpha=-2.0),
        [X, PLACES, ROWS],
    ),
    "columns": (
        lambda x, i, v: x.index_add(-1, i.int(), v),
        [X, below(8, 30), normal(12, 30)],
    ),
    "in the middle": (
        lambda x, i, v: x.index_add(1, i, v),
        [normal(2, 12, 3), PLACES, normal(2, 30, 3)],
    ),
    "of one axis": (
        lambda i, v: torch.zeros(12).index_add_(0, i, v),
        [PLACES, normal(30)],
    ),
    "in place": (in_place, [PLACES, ROWS]),
    "each": (lambda x, i, v: x.scatter_add(0, i, v), [X, EACH, ROWS]),
    "each of a row": (lambda x, i, v: x.scatter_add(1, i.T, v.T), [X.T, EACH, ROWS]),
    "each of more": (
        lambda x, i, v: x.scatter_add(0, i, v),
        [X, EACH, normal(40, 8)],
    ),
    "indices that repeat": (repeated, [PLACES, ROWS]),
    "integers": (
        lambda x, i, v: x.index_add(0, i, v),
        [below(9, 12).int(), PLACES, below(9, 30).int()],
    ),
    "infinity": (
        lambda x, i, v: x.index_add(0, i, v),
        [X, PLACES, with_infinity(ROWS)],
    ),
}


def _scattered(reduce: str, own: bool) -> Function:
    def function(x: Any, i: Any, v: Any) -> Any:
        each = i[:, None].expand(-1, 8)
        return (
            x.scatter_reduce(0, each, v, reduce, include_self=own),
            torch.scatter_reduce(x[:, 0], 0, i, v[:, 0], reduce, include_self=own),
            x.clone().T.scatter_reduce_(1, each.T, v.T, reduce, include_self=own),
        )

    return function


def _reduced(reduce: str, own: bool) -> Function:
    def function(x: Any, i: Any, v: Any) -> Any:
        return (
            x.index_reduce(0, i, v, reduce, include_self=own),
            x.clone().T.index_reduce_(1, i.int(), v.T, reduce, include_self=own),
        )

    return function


FEW, SOME = below(9, 20), normal(20, 8)
"""Places of which some are never met, and what is joined there."""
JOINED: dict[str, tuple[Function, list[torch.Tensor]]] = {
    **{
        f"{name}, {reduce}, {own}": (made(reduce, own), [X, FEW, SOME])
        for own in (True, False)
        for name, made in (("scatter", _scattered), ("index", _reduced))
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        if (name, reduce) != ("index", "sum")
    },
    "each, integers": (
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax", include_self=False),
        [below(9, 12, 8) - 20, below(9, 20, 8), below(9, 20, 8) - 30],
    ),
    "each, infinite": (
        lambda x, i, v: x.scatter_reduce(0, i, v, "amin"),
        [with_infinity(X), below(12, 30, 8), with_infinity(ROWS)],
    ),
    "of numbers": (
        lambda x, i: (
            x.scatter(0, i, 2.5, reduce="multiply"),
            torch.scatter(x, 1, i.T % 8, 2, reduce="add"),
        ),
        [X, FEW[:8, None].expand(8, 8).contiguous()],
    ),
    "in a part": (
        lambda x, i, v: (
            x.scatter_add(0, i, v),
            x.scatter_reduce(0, i, v, "amin"),
            x.scatter(1, i.T % 8, v.T),
            x.clone().scatter_add_(0, i, v),
            torch.scatter(x, 0, i[:1], 3.0),
        ),
        [X, below(12, 3, 5), ROWS],
    ),
    "of scatter": (
        lambda x, i, v: x.scatter(0, i, v, reduce="multiply"),
        [X, EACH, ROWS],
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", JOINED)
def test_joined_as_pytorch(name: str) -> None:
    function, tensors = JOINED[name]
    expected, found = function(*tensors), mirage.kernel(function)(*tensors)
    torch.testing.assert_close(found, expected)
    run = TritonExecutable(traced(function, tensors), interpret=True)(*tensors)
    whole = expected if isinstance(expected, tuple) else (expected,)
    torch.testing.assert_close(tuple(run), whole)


def test_what_is_around_a_largest_element_is_fused() -> None:
    """Attention over the edges of a graph, by the largest score of each node."""

    def function(x: Any, i: Any, v: Any) -> Any:
        most = x.scatter_reduce(0, i[:, None].expand(-1, 8), v * 2, "amax")
        return torch.exp(v * 2 - most[i])

    best = mirage.superoptimize(
        traced(function, [X, PLACES, ROWS]), effort="quick", use_cache=False
    ).best
    assert best.certificate.ok
    assert best.mugraph.blocks
    found = TritonExecutable(best.mugraph, interpret=True)(X, PLACES, ROWS)[0]
    torch.testing.assert_close(found, function(X, PLACES, ROWS))


@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str) -> None:
    function, tensors = CASES[name]
    expected = function(*tensors)
    program = traced(function, tensors)
    assert parse(str(program)) == program
    found = TritonExecutable(program, interpret=True)(*tensors)[0]
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mirage.kernel(function)(*tensors), expected)


AT_CONSTANTS: dict[str, Function] = {
    "a list": lambda x: torch.zeros(4, 8).index_add(0, torch.tensor([1, 2, 0, 3]), x),
    "of some rows": lambda x: x.index_add(0, torch.tensor([1, 2]), x[:2]),
    "halves": lambda x: torch.zeros(2, 8).index_add(0, torch.arange(4) // 2, x),
    "positions": lambda x: x.index_add(0, torch.arange(4), x),
    "columns": lambda x: torch.where(
        x.scatter_add(1, torch.arange(8)[None].expand(4, 8) // 2, x) > x, x, -torch.inf
    ),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", AT_CONSTANTS)
def test_indices_that_are_made_of_nothing(name: str) -> None:
    """What is verified by itself has no inputs then."""
    function, x = AT_CONSTANTS[name], normal(4, 8)
    best = mirage.superoptimize(
        traced(function, [x]), effort="quick", use_cache=False
    ).best
    found = TritonExecutable(best.mugraph, interpret=True)(x)[0]
    torch.testing.assert_close(found, function(x))


def test_what_is_around_a_sum_is_fused() -> None:
    def function(x: Any, i: Any, v: Any) -> Any:
        return torch.tanh(x.index_add(0, i, v * torch.sigmoid(v)))

    tensors = [X, PLACES, ROWS]
    best = mirage.superoptimize(
        traced(function, tensors), effort="quick", use_cache=False
    ).best
    assert best.certificate.ok
    assert [n.op.name for n in best.mugraph.applies] == ["index_sum"]
    assert len(best.mugraph.blocks) == 2
    found = TritonExecutable(best.mugraph, interpret=True)(*tensors)[0]
    torch.testing.assert_close(found, function(*tensors))


def test_random_indices_are_inside() -> None:
    program = traced(CASES["rows"][0], CASES["rows"][1])
    assert index_limits(program) == {"i": Limit(-12, 12)}


REFUSED: dict[str, Function] = {
    "truth values": lambda x, i, v: (x > 0).index_add(0, i, v > 0),
    "an index of floats": lambda x, i, v: x.index_add(0, v[:, 0] + i, v),
    "another dtype": lambda x, i, v: x.index_add(0, i, v.half()),
    "too few rows": lambda x, i, v: x.index_add(0, i, v[:3]),
    "shorter rows": lambda x, i, v: x.index_add(0, i, v[:, :3]),
    "longer indices": lambda x, i, v: x.scatter_add(0, i[:, None].expand(-1, 9), v),
    "means of integers": lambda x, i, v: (
        (x + v[i]).int().index_reduce(0, i, v.int(), "mean")
    ),
    "another reduction": lambda x, i, v: x.index_reduce(0, i, v, "median"),
    "a number that is reduced": lambda x, i, v: (x + v[i]).scatter(
        0, i, 1.0, reduce="add"
    ),
    "an argument in place": lambda x, i, v: x.index_add_(0, i, v),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_where(name: str) -> None:
    with pytest.raises(MirageError) as error:
        mirage.kernel(REFUSED[name])(X, PLACES, ROWS)
    assert error.value.location is not None


WRONG: dict[str, Function] = {
    "the next row": lambda x, i, v: x.index_add(0, (i + 1) % 12, v),
    "other slices": lambda x, i, v: x.index_add(0, i, v.flip(0)),
    "nothing": lambda x, i, v: x + 0 * v[i],
    "the other axis": lambda x, i, v: x.index_add(1, i, v.T),
    "twice": lambda x, i, v: x.index_add(0, i, v) + v[i],
    "the other way": lambda x, i, v: v.index_add(0, i, x),
    "each its own": lambda x, i, v: x + v[i],
    "the largest": lambda x, i, v: x.index_reduce(0, i, v, "amax"),
}


def _square(function: Function) -> KernelGraph:
    given = [mirage.spec((12, 12), "float32")] * 2
    return mirage.kernel(function).trace(
        given[0], mirage.spec((12,), "int64"), given[1]
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_sum_is_never_accepted(name: str) -> None:
    right, wrong = _square(CASES["rows"][0]), _square(WRONG[name])
    for seed in SEEDS:
        found = mirage.verify(wrong, right, seed=seed, stability=False)
        assert not found.equivalent, seed
