"""What whole models do beside layers: ask who runs them, and return objects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import TraceError, UnsupportedError

X = torch.randn(4, 6)


class Layer:
    """Keys and values of one layer, as caches of decoders keep them."""

    def __init__(self) -> None:
        self.keys: Any = None
        self.window = torch.tensor(4)
        self.length = 0

    def update(self, keys: Any) -> Any:
        empty = self.keys is None
        self.keys = keys if empty else torch.cat([self.keys, keys], 0)
        self.length += keys.shape[0]
        self.dtype = keys.dtype
        return self.keys


class Cache:
    """Layers, made by the model that is called without a cache."""

    def __init__(self, count: int) -> None:
        self.kind = Layer
        self.layers = [Layer() for _ in range(count)]


def filled(x: Any) -> tuple[Any, Cache]:
    cache = Cache(2)
    for layer in cache.layers:
        x = layer.update(x * 2).sin()
    return x, cache


def of_padding(x: Any, mask: Any) -> Any:
    # As transformers asks: a mask without padding is none.
    if not torch.compiler.is_compiling() and mask.all():
        return x
    return x.masked_fill(~mask, 0.0)


def test_code_that_asks_whether_it_is_compiled_reads_no_data() -> None:
    kernel = mirage.kernel(effort="none")(of_padding)
    for mask in (torch.ones(4, 6, dtype=torch.bool), X > 0):
        torch.testing.assert_close(kernel(X, mask), of_padding(X, mask))
    assert not torch.compiler.is_compiling()


def test_that_it_is_compiled_is_true_in_each_trace_and_only_there() -> None:
    inside, go_on = threading.Event(), threading.Event()
    said: list[bool] = []

    def waiting(x: Any) -> Any:
        inside.set()
        assert go_on.wait(20)
        said.append(torch.compiler.is_compiling())
        return x + 1

    def refused(x: Any) -> Any:
        said.append(torch.compiler.is_compiling())
        return x if x.sum() else x + 1

    thread = threading.Thread(target=lambda: mirage.kernel(waiting)(X))
    thread.start()
    assert inside.wait(20)
    assert not torch.compiler.is_compiling()
    with pytest.raises(TraceError, match="the truth of a tensor"):
        mirage.kernel(refused)(X)
    go_on.set()
    thread.join()
    assert said == [True, True]
    assert not torch.compiler.is_compiling()


def test_objects_that_a_function_makes_are_results() -> None:
    kernel = mirage.kernel(effort="none")(filled)
    seen = [kernel(x) for x in (X, X + 1)]
    for (y, cache), x in zip(seen, (X, X + 1), strict=True):
        expected, wanted = filled(x)
        torch.testing.assert_close(y, expected)
        assert type(cache) is Cache
        assert cache.kind is Layer
        for found, own in zip(cache.layers, wanted.layers, strict=True):
            assert type(found) is Layer
            torch.testing.assert_close(found.keys, own.keys)
            torch.testing.assert_close(found.window, own.window)
            assert (found.length, found.dtype) == (own.length, own.dtype)
            # The model goes on with it.
            torch.testing.assert_close(found.update(x), own.update(x))
    # Each call makes its own.
    assert seen[0][1].layers[0] is not seen[1][1].layers[0]


def test_an_object_at_two_places_is_one() -> None:
    def twice(x: Any) -> Any:
        y, cache = filled(x)
        return y, cache, {"cache": cache, "first": cache.layers[0]}

    _, cache, rest = mirage.kernel(effort="none")(twice)(X)
    assert rest["cache"] is cache
    assert rest["first"] is cache.layers[0]


def test_constants_beside_results() -> None:
    def program(x: Any) -> Any:
        flags = torch.ones(2, dtype=torch.bool)
        return x + 1, x.new_zeros(3), flags, x.new_full((), 7, dtype=torch.int64)

    kernel = mirage.kernel(effort="none")(program)
    for _ in range(2):
        for found, expected in zip(kernel(X), program(X), strict=True):
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected)
            # A call's own: what is written there is in no other.
            found.zero_()


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x


class Held(Layer):
    """One that holds what has no tensors."""

    def __init__(self, x: Any, held: Any) -> None:
        super().__init__()
        self.keys, self.held = x, held


MORE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "slots": (Slotted, r"returns Slotted at \[1\], which is no tensor"),
    "a lock": (lambda x: Held(x, threading.Lock()), r"returns lock at \[1\]\[held\]"),
    "no tensor in it": (lambda x: Held(x, Cache(0)), r"returns Cache at \[1\]\[held\]"),
    "no tensor": (lambda _: Cache(0), r"returns Cache at \[1\], which is no tensor"),
}


@pytest.mark.parametrize("name", MORE)
def test_objects_that_are_more_than_attributes_are_refused(name: str) -> None:
    make, said = MORE[name]

    def program(x: Any) -> Any:
        return x + 1, make(x)

    with pytest.raises(TraceError, match=said):
        mirage.kernel(program)(X)


def test_an_object_that_holds_itself_is_refused() -> None:
    def around(x: Any) -> Any:
        held = Held(x, [])
        held.held.append(held)
        return held

    with pytest.raises(TraceError, match="Held, which holds itself"):
        mirage.kernel(around)(X)


def test_out_takes_what_is_computed_alone() -> None:
    def program(x: Any) -> Any:
        return x + 1, x.new_zeros(3)

    with pytest.raises(UnsupportedError, match="returns more than it computes"):
        mirage.kernel(program)(X, out=(torch.empty(4, 6), torch.empty(3)))
