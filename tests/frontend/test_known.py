"""What is known while a function is traced: masks, indices and numbers of constants."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError

Function = Callable[..., Any]
GENERATOR = torch.Generator().manual_seed(1)
X, S, B = (torch.randn(s, generator=GENERATOR) for s in ((4, 6), (3, 3), (20, 20)))
ARRAY = np.array([True, False, True, True])
ROWS = torch.tensor([2, -1])


def same(function: Function, x: Any) -> None:
    found = mirage.kernel(lambda t: function(t))(x.clone())
    torch.testing.assert_close(found, function(x.clone()))


def written(index: Callable[[], Any], value: Callable[[Any], Any]) -> Function:
    def function(x: Any) -> Any:
        y = x * 1
        y[index()] = value(x)
        return y

    return function


def each_place(x: Any) -> Any:
    y = x * 0
    for i in torch.nonzero(torch.arange(4) > 1):
        y[int(i)] = x[int(i)] * 2
    return y


MASKS: dict[str, Function] = {
    "a list": lambda x: x[torch.tensor([True, False, True, True])],
    "columns": lambda x: x[:, torch.tensor([True, False, True, True, False, False])],
    "every other": lambda x: x[:, torch.arange(6) % 2 == 0] * 2,
    "the last ones": lambda x: x[..., torch.arange(6) > 2],
    "a triangle": lambda x: x[torch.ones(4, 6).tril().bool()],
    "beside an integer": lambda x: x[torch.arange(4) > 1, 2],
    "beside None": lambda x: x[:, [True, False, True] + [False] * 3, None],
    "integers as a mask": lambda x: x[torch.tensor([1, 0, 1, 1]).bool()],
    "an array": lambda x: x[ARRAY] + x[torch.from_numpy(ARRAY)],
    "an array of places": lambda x: x[:, np.array([[4, 0], [-1, 2]])],
    "a tensor of places": lambda x: x[ROWS],
    "columns of triangles": lambda x: x[tuple(torch.tril_indices(4, 6, -1))],
    "masked_select": lambda x: x.masked_select(torch.arange(6) > 3),
    "nonzero": lambda x: x[torch.nonzero(torch.arange(4) > 1).squeeze(1)],
    "where": lambda x: x[torch.where(torch.arange(4) > 1)],
    "nothing": lambda x: torch.cat([x, x[torch.zeros(4, dtype=torch.bool)]]),
    "places in a loop": each_place,
    "a number": written(lambda: torch.arange(4) > 1, lambda _: 2.0),
    "rows": written(lambda: torch.arange(4) > 1, lambda x: x[:2] * 3),
    "rows, an array": written(lambda: ARRAY, lambda x: x[1:] * 3),
    "some columns": written(
        lambda: (slice(None), torch.arange(6) % 2 == 1), lambda x: x[:, :3]
    ),
    "a sum": lambda x: _added(x.clone(), torch.arange(6) % 3 == 0),
}


def _added(y: Any, mask: Any) -> Any:
    y[:, mask] += 1
    return y


def _put(*places: Any, **options: Any) -> Function:
    """A function that puts numbers at places, or adds them."""
    return lambda x: x.index_put(
        tuple(map(torch.tensor, places)), x[0, 0] + 1, **options
    )


def _scattered(mask: Callable[[Any], Any]) -> Function:
    """Elements in order where a mask holds."""
    return lambda x: x.masked_scatter(mask(x), x.flip(0) * 2)


MASKS.update(
    {
        "masked_scatter": _scattered(lambda _: torch.arange(6) % 2 == 0),
        "masked_scatter, data": _scattered(lambda x: x > 0),
        "masked_scatter, rows": _scattered(lambda x: x[:, :1] > 0),
        "masked_scatter_": lambda x: x.clone().masked_scatter_(x < 0, x.abs()),
        "repeats": lambda x: x.repeat_interleave(torch.tensor([1, 0, 3, 2]), dim=0),
        "repeats, a list": lambda x: x[0].repeat_interleave(
            torch.tensor([2] * 6), output_size=12
        ),
        "repeats, one tensor": lambda x: x.repeat_interleave(torch.tensor(2), 1),
        "index_put": _put([0, 1], [2, -1]),
        "index_put, added": _put([0, 0, -1], [2, 2, 1], accumulate=True),
        "index_put of rows, added": _put([1, 1], accumulate=True),
        "scatter_reduce": lambda x: torch.zeros(4, 3).scatter_reduce(
            1, torch.tensor([[0, 1, 2, 0, 1, 2]] * 4), x, "sum"
        ),
    }
)


@pytest.mark.parametrize("name", MASKS)
def test_known_masks(name: str) -> None:
    same(MASKS[name], X)


def test_repeats_that_are_data() -> None:
    counts = torch.tensor([2, 0, 1, 3])

    def function(x: Any, counts: Any) -> Any:
        return x.repeat_interleave(counts, dim=0, output_size=6) * 2

    torch.testing.assert_close(mirage.kernel(function)(X, counts), function(X, counts))
    with pytest.raises(MirageError, match=r"numbers that are data.*output_size="):
        mirage.kernel(lambda x, c: x.repeat_interleave(c, dim=0))(X, counts)


def of_blocks(places: Callable[[], Any], axis: int = 1) -> Function:
    """Elements along an axis of 96 at places, and what is computed of them."""
    return lambda x: x.reshape(-1, 96).index_select(axis, places()) * 2


ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
IN_BLOCKS: dict[str, Callable[[], Any]] = {
    "each eight in another order": lambda: (
        torch.arange(96).view(-1, 8)[:, ORDER].ravel()
    ),
    "in pairs": lambda: torch.arange(96).view(-1, 2).flip(1).reshape(-1),
    "the second half of each six": lambda: torch.arange(96).view(-1, 6)[:, 3:].ravel(),
    "some of each": lambda: torch.arange(96).view(-1, 12)[:, [7, 0, 7]].ravel(),
    "every third": lambda: torch.arange(1, 96, 3),
    "as they are": lambda: torch.arange(96),
    "the other way round": lambda: torch.arange(96).view(8, 12).T.reshape(-1),
    "even ones first": lambda: torch.cat(
        [torch.arange(0, 96, 2), torch.arange(1, 96, 2)]
    ),
}


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_places_alike_in_each_block_are_views(name: str) -> None:
    x = torch.randn(3, 96, generator=GENERATOR)
    function = of_blocks(IN_BLOCKS[name])
    same(function, x)
    graph = mirage.kernel(lambda t: function(t)).trace(mirage.spec((3, 96)))
    for node in graph.applies:
        if node.op.name == "gather":
            # Of a few, where they are not at equal distances.
            (dim,) = (dict(node.attrs)["dim"],)
            assert graph.extent_of[str(dim)] <= 12


NOT_IN_BLOCKS: dict[str, Callable[[], Any]] = {
    "backwards, in bytes": lambda: torch.arange(95, -1, -1, dtype=torch.int8).int(),
    "from another block": lambda: (
        (torch.arange(96).view(-1, 8)[:, ORDER].ravel() + 8) % 96
    ),
    "of some blocks": lambda: torch.arange(48).view(-1, 8)[:, ORDER].ravel(),
    "from the end": lambda: torch.arange(96).view(-1, 8)[:, ORDER].ravel().flip(0),
    "twice": lambda: torch.arange(96).view(-1, 8)[:, ORDER].ravel().repeat(2),
    "beyond a block": lambda: torch.arange(0, 96, 2) // 2 * 2 + torch.arange(48) % 2,
}


@pytest.mark.parametrize("name", NOT_IN_BLOCKS)
def test_other_places_are_right_too(name: str) -> None:
    same(of_blocks(NOT_IN_BLOCKS[name]), torch.randn(3, 96, generator=GENERATOR))
    x = torch.randn(96, 2, generator=GENERATOR)
    places = NOT_IN_BLOCKS[name]
    same(lambda x: x[places()] + 1, x)


def test_places_in_a_tensor_that_is_changed_then() -> None:
    def function(x: Any) -> Any:
        places = torch.arange(96).view(-1, 8)[:, ORDER].reshape(-1)
        x = x * 2
        y = x[:, places]
        x[:, 0] = 5
        y[:, 1] += 1
        return y, x

    x = torch.randn(3, 96, generator=GENERATOR)
    found = mirage.kernel(function)(x.clone())
    torch.testing.assert_close(found, function(x.clone()))


@pytest.mark.parametrize(
    "numbers",
    [[3, 0, 2, 9, 1], [0, 1, 0, 1, 1, 0], [63, 0, 1, 5, 62, 7, 8, 9], [5] * 4],
)
def test_small_numbers_are_parts_of_one(numbers: list[int]) -> None:
    x = torch.randn(3, len(numbers), generator=GENERATOR)
    same(lambda t: t * torch.tensor(numbers), x)
    same(lambda t: t * torch.tensor(numbers, dtype=torch.uint8), x)
    graph = mirage.kernel(lambda t: t * torch.tensor(numbers)).trace(
        mirage.spec((3, len(numbers)))
    )
    assert all(node.op.name != "where" for node in graph.applies)


def test_numbers_that_are_not_small_are_compared() -> None:
    x = torch.randn(3, 6, generator=GENERATOR)
    for numbers in ([-1, 4, 2, 9, 0, 3], [2**40, 1, 5, 3, 8, 2], [0.5, 1, 3, 2, 8, 7]):
        same(lambda t, n=numbers: t * torch.tensor(n), x)


def test_runs_of_places_count_once() -> None:
    same(lambda x: x[torch.ones(20, 20).tril().bool()] * 2, B)
    same(lambda x: x[torch.triu_indices(20, 20, 1).unbind()], B)
    same(lambda x: x[~torch.eye(3, dtype=torch.bool)].view(3, 2), S)


NUMBERS: dict[str, Function] = {
    "item": lambda x: x * torch.arange(4)[2].item(),
    "tolist": lambda x: sum(x * r for r in torch.linspace(0, 1, 4).tolist()),
    "items": lambda x: sum(x * r.item() for r in torch.linspace(0, 1, 4)),
    "int": lambda x: x[: int(torch.tensor([2, 1]).prod())],
    "bounds": lambda x: x[torch.tensor(1) : torch.tensor(3)],
    "an extent": lambda x: x[: torch.tensor(x.shape[0]).item() - 1],
    "a share of an extent": lambda x: x * torch.tensor(1 / x.shape[1]).item(),
    "a branch": lambda x: x * 2 if torch.arange(4).sum() > 3 else x * 3,
    "float": lambda x: x * float(torch.ones(3).sum()),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_known_numbers(name: str) -> None:
    same(NUMBERS[name], X)


def test_an_array_with_other_values_is_another_program() -> None:
    mask = ARRAY.copy()
    kernel = mirage.kernel(lambda x: x[mask] * 2)
    torch.testing.assert_close(kernel(X), X[mask] * 2)
    mask[:] = [False, True, False, False]
    torch.testing.assert_close(kernel(X), X[1:2] * 2)


def test_arrays_of_numpy() -> None:
    x = X.numpy()
    for function in (
        lambda x: x[:, np.arange(6, like=x) < 4],
        lambda x: x[ARRAY][:, np.array([0, 2])],
        lambda x: x[ARRAY, 1],
    ):
        found = mirage.kernel(function)(x)
        np.testing.assert_array_equal(found, function(x))


def test_what_is_not_known_is_refused() -> None:
    for function, text in (
        (lambda x: x[:, torch.arange(5) > 1], "a mask of shape"),
        (lambda x: x[:, np.array([9])], "out of range"),
        (lambda x: x[torch.zeros(600).numpy() > 0], "pass it as an argument"),
        (lambda x: x[:, x[0] > 0], "use where(mask"),
        (lambda x: x[[[0, 1], [1, 0]]], "x[tuple(index)] or x[torch.tensor(index)]"),
        (lambda x: x[[slice(None), 1]], "x[tuple(index)] or x[torch.tensor(index)]"),
        (lambda x: x * x.sum().item(), "item()"),
        (
            lambda x: x.flatten().repeat(9)[torch.arange(216) % 3 != 0].sort(),
            "at most 64",
        ),
        (lambda x: x.flatten().repeat(9)[torch.arange(216) % 3 != 0, None], "runs"),
    ):
        with pytest.raises(MirageError, match=re.escape(text)):
            mirage.kernel(function)(X)
