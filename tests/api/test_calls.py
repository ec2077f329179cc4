"""The short ways of calls that are like earlier ones."""

from __future__ import annotations

import enum
import functools
import gc
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.api import kernel as kernel_module
from mirage_dsl.api.kernel import BoundKernel
from mirage_dsl.backends.base import Call, Dispatch, Guarded
from mirage_dsl.core.errors import TraceError
from mirage_dsl.core.settings import INTERPRET


class OnGpu:
    """Tells a kernel that CPU tensors are on a GPU, and notes how it runs them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sorted_out = 0
        self.direct_calls = 0
        given = kernel_module.bind_arguments
        executable = vars(BoundKernel)["_executable"]
        prepared = vars(BoundKernel)["prepared"]

        def counting(*args: Any) -> Any:
            self.sorted_out += 1
            return given(*args)

        def guarded(bound: BoundKernel, tensors: Any, out: Any = ()) -> Call[Guarded]:
            def ask(*given: torch.Tensor) -> Any:
                self.direct_calls += 1
                results = given[len(tensors) :]
                return bound.run(given[: len(tensors)], *results)

            run = prepared(bound, tensors, out).run
            return Call(run, Guarded(len(tensors), ask))

        def interpreted(bound: BoundKernel, tensors: Any, *, interpret: bool) -> Any:
            del interpret
            return executable(bound, tensors, interpret=True)

        monkeypatch.setattr(kernel_module, "bind_arguments", counting)
        monkeypatch.setattr(BoundKernel, "_executable", interpreted)
        monkeypatch.setattr(BoundKernel, "prepared", guarded)
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)


def scaled(x: Any, w: Any, factor: float = 1.0) -> Any:
    return x * factor + w


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[OnGpu]:
    with INTERPRET.scope(value=True):
        yield OnGpu(monkeypatch)


def test_calls_alike_are_sorted_out_once(on_gpu: OnGpu) -> None:
    kernel = mirage.kernel(effort="none")(scaled)
    x, w = torch.ones(4, 8), 2 * torch.ones(4, 8)
    calls: list[tuple[tuple[Any, ...], dict[str, Any], float]] = [
        ((x, w, 3.0), {}, 5.0),
        ((x,), {"w": w}, 3.0),
        ((), {"w": w, "x": x}, 3.0),
        ((x, w), {"factor": 0.5}, 2.5),
        ((x, w, 1), {}, 3.0),
        ((x, w, True), {}, 3.0),
        ((w, x), {"factor": -0.0}, 1.0),
    ]
    for number, (args, kwargs, value) in enumerate(calls, 1):
        for _ in range(3):
            found = kernel(*args, **kwargs)
            assert torch.equal(found, value * torch.ones(4, 8))
        assert on_gpu.sorted_out == number
    assert on_gpu.direct_calls == 2 * len(calls)


def test_the_shortest_way_survives_others(on_gpu: OnGpu) -> None:
    kernel = mirage.kernel(effort="none")(scaled)
    x, w, out = torch.ones(4, 8), torch.ones(4, 8), torch.zeros(4, 8)
    for _ in range(2):
        assert kernel(x, w, out=out) is out
    assert torch.equal(out, x + w)
    assert (on_gpu.sorted_out, on_gpu.direct_calls) == (1, 1)
    for _ in range(3):
        kernel(x, w)
        kernel(x, w=w)
        assert kernel(x, w, out=out) is out
    assert (on_gpu.sorted_out, on_gpu.direct_calls) == (3, 8)


def test_a_copy_is_no_argument_on_any_way(on_gpu: OnGpu) -> None:
    kernel = mirage.kernel(effort="none")(lambda x: x.clone())
    x, out = torch.ones(4, 8), torch.zeros(4, 8)
    for _ in range(3):
        assert not np.shares_memory(kernel(x), x)
        assert kernel(x, out=out) is out
    assert torch.equal(out, x)
    assert on_gpu.direct_calls == 4


def test_numbers_in_tensors_are_no_constants(on_gpu: OnGpu) -> None:
    kernel = mirage.kernel(effort="none")(scaled)
    x, w = torch.ones(4, 8), torch.ones(4, 8)
    for factor in (2.0, 3.0):
        found = kernel(x, w, torch.tensor(factor))
        assert torch.equal(found, (factor + 1) * x)
    assert on_gpu.sorted_out == 1


class Mode(enum.Enum):
    TWICE = 2.0
    THRICE = 3.0


def in_a_mode(x: Any, mode: Mode, dtype: torch.dtype = torch.float32) -> Any:
    return (x * mode.value).to(dtype), mode


def test_formats_and_members_are_constants(on_gpu: OnGpu) -> None:
    kernel = mirage.kernel(effort="none")(in_a_mode)
    x = torch.ones(4, 8)
    calls: list[tuple[tuple[Any, ...], torch.dtype]] = [
        ((Mode.TWICE,), torch.float32),
        ((Mode.THRICE,), torch.float32),
        ((Mode.TWICE, torch.float16), torch.float16),
        ((Mode.TWICE, torch.bfloat16), torch.bfloat16),
    ]
    for number, ((mode, *rest), dtype) in enumerate(calls, 1):
        for _ in range(3):
            found, told = kernel(x, mode, *rest)
            assert told is mode
            assert torch.equal(found, (mode.value * x).to(dtype))
            assert found.dtype == dtype
        assert on_gpu.sorted_out == number
    assert on_gpu.direct_calls == 2 * len(calls)


class Scale:
    factor = 2.0


SCALE = Scale()


def test_defaults_may_be_anything_and_are_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def activated(
        x: Any, act: Any = torch.relu, scale: Any = SCALE, rows: Any = slice(0, 2)
    ) -> Any:
        return act(x[rows]) * scale.factor

    kernel = mirage.kernel(effort="none")(activated)
    x = torch.tensor([[-1.0, 2.0], [3.0, -4.0], [5.0, 6.0]])
    assert torch.equal(kernel(x), torch.relu(x[:2]) * 2.0)
    monkeypatch.setattr(Scale, "factor", 3.0)
    assert torch.equal(kernel(x), torch.relu(x[:2]) * 3.0)
    with pytest.raises(TraceError, match="a function may be a default"):
        kernel(x, torch.tanh)


def test_results_may_lie_beside_constants() -> None:
    def summary(x: Any) -> Any:
        named = {"mean": x.mean(0), "kind": "mean", "dtype": x.dtype}
        return x * 2, x.shape[0], x.shape, 0.5, True, named

    x = torch.ones(3, 4)
    doubled, rows, shape, *others, named = mirage.kernel(summary)(x)
    assert torch.equal(doubled, 2 * x)
    assert (type(rows), rows, type(shape), shape) == (int, 3, torch.Size, (3, 4))
    assert others == [0.5, True]
    assert (named["kind"], named["dtype"]) == ("mean", torch.float32)

    def again(x: Any, value: Any) -> Any:
        return x * 2, value + 0

    kernel = mirage.kernel(effort="none")(again)
    found = [repr(kernel(x, v)[1]) for v in (1, 1.0, 0.0, -0.0, 0)]
    assert found == ["1", "1.0", "0.0", "0.0", "0"]
    with pytest.raises(TraceError, match="returns no tensor"):
        mirage.kernel(lambda x: (x.shape[0], 2))(x)


class Pair(NamedTuple):
    a: Any
    b: Any


class Couple(NamedTuple):
    c: Any
    d: Any


def test_containers_that_are_equal_are_not_the_same() -> None:
    def some(x: Any, kind: Any) -> Any:
        both = x * 2, x + 1
        return {0: lambda: Pair(*both), 1: lambda: Couple(*both), 2: lambda: both}[
            kind
        ]()

    def keyed(x: Any, key: Any) -> Any:
        return {key: x * 2}

    x = np.ones((2, 3), np.float32)
    kernel = mirage.kernel(effort="none")(some)
    assert [type(kernel(x, k)) for k in (0, 1, 2)] == [Pair, Couple, tuple]
    kernel = mirage.kernel(effort="none")(keyed)
    keys = [repr(next(iter(kernel(x, key=k)))) for k in (True, 1, 1.0, 0.0, -0.0)]
    assert keys == ["True", "1", "1.0", "0.0", "-0.0"]


def test_a_function_that_wraps_a_kernel_is_itself() -> None:
    @mirage.kernel(effort="none")
    def inner(x: Any) -> Any:
        return x * 2

    @functools.wraps(inner)
    def outer(x: Any) -> Any:
        return inner(x) + 1

    x = np.ones((2, 3), np.float32)
    assert mirage.kernel(effort="none")(outer)(x)[0, 0] == 3.0
    again = mirage.kernel(effort="quick")(inner)
    assert again.options.effort == "quick"


@pytest.mark.parametrize(
    "out", ["swapped", "other keys", "a tuple", "nothing", "one tensor"]
)
def test_results_go_to_the_places_that_they_are_in(out: str) -> None:
    @mirage.kernel(effort="none")
    def both(x: Any) -> Any:
        return {"a": x * 2, "b": x * 3}

    x, a, b = torch.ones(2, 3), torch.empty(2, 3), torch.empty(2, 3)
    both(x, out={"a": a, "b": b})
    assert (float(a[0, 0]), float(b[0, 0])) == (2.0, 3.0)
    given: Any = {
        "swapped": {"b": b, "a": a},
        "other keys": {"c": a, "d": b},
        "a tuple": (a, b),
        "nothing": (),
        "one tensor": a,
    }[out]
    with pytest.raises(mirage.ShapeError, match="expected tensors at a, b"):
        both(x, out=given)


def test_a_call_that_was_being_prepared_when_all_were_forgotten_is_not_kept() -> None:
    calls = Dispatch[Guarded]()
    age, call = calls.age, Call[Guarded](lambda: None)
    calls.forget()
    calls.keep("key", call, age)
    assert calls.find("key") is None
    calls.keep("key", call, calls.age)
    assert calls.find("key") is call


def test_a_first_call_keeps_no_tensor() -> None:
    """Also where dims had to be told apart, which an error says on the way."""

    @mirage.kernel(effort="none")
    def square(x: Any, w: Any) -> Any:
        return x @ w + x

    x, w = torch.ones(4, 4), torch.ones(4, 4)
    gone = weakref.ref(x)
    gc.disable()
    try:
        square(x, w)
        del x
        assert gone() is None
    finally:
        gc.enable()
