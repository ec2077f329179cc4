"""Methods, copies, and what functions read besides their arguments."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import TraceError


def half(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(np.float16)


@mirage.kernel
def doubled(x: Any) -> Any:
    return x * 2


def test_methods() -> None:
    class Layer:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @mirage.kernel
        def forward(self, x: Any) -> Any:
            return x * self.scale

    x = half(3, 4)
    a, b = Layer(2), Layer(4)
    np.testing.assert_array_equal(a.forward(x), x * 2)
    np.testing.assert_array_equal(b.forward(x), x * 4)
    assert a.forward is a.forward
    assert isinstance(Layer.forward, mirage.Kernel)


def test_methods_of_classes_and_copies_of_instances() -> None:
    class Layer:
        scale = 2

        @classmethod
        @mirage.kernel
        def shared(cls, x: Any) -> Any:
            return x * cls.scale

        @mirage.kernel
        def own(self, x: Any) -> Any:
            return x * self.scale

    class Wide(Layer):
        scale = 5

    x = half(3, 4)
    np.testing.assert_array_equal(Layer.shared(x), x * 2)
    np.testing.assert_array_equal(Wide.shared(x), x * 5)
    layer = Layer()
    np.testing.assert_array_equal(layer.own(x), x * 2)
    layer.scale = 3
    copied = copy.deepcopy(layer)
    copied.scale = 7
    np.testing.assert_array_equal(copied.own(x), x * 7)
    np.testing.assert_array_equal(layer.own(x), x * 3)

    class Slots:
        __slots__ = ()

        @mirage.kernel
        def own(self, x: Any) -> Any:
            return x

    with pytest.raises(TraceError, match="__slots__"):
        Slots().own(x)


def test_a_kernel_pickles_as_functions_do() -> None:
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert copy.deepcopy(doubled) is doubled
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(mirage.kernel(lambda x: x * 2))


class Holder:
    """Has a function, is no kernel, and no key."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, function: Any) -> None:
        self.function = function


def test_objects_that_have_functions_are_no_kernels() -> None:
    holder = Holder(lambda x: x * 2)
    x = half(3, 4)
    np.testing.assert_array_equal(mirage.kernel(lambda x: holder.function(x))(x), x * 2)


def test_kernels_that_a_kernel_calls_are_looked_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @mirage.kernel
    def inner(x: Any) -> Any:
        return x * FACTOR

    outer = mirage.kernel(lambda x: inner(x) + 1)
    x = half(3, 4)
    np.testing.assert_array_equal(outer(x), x * 2 + 1)
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    np.testing.assert_array_equal(outer(x), x * 4 + 1)


FACTOR = 2.0


def times_factor(x: Any) -> Any:
    return x * FACTOR


def test_what_a_function_reads_from_outside_is_read_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offset: float | None = None
    traces: list[int] = []

    @mirage.kernel
    def function(x: Any) -> Any:
        traces.append(1)
        y = times_factor(x)
        return y if offset is None else y + offset

    x = half(3, 4)
    np.testing.assert_array_equal(function(x), x * 2)
    offset = 1.0
    np.testing.assert_array_equal(function(x), x * 2 + 1)
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    np.testing.assert_array_equal(function(x), x * 4 + 1)
    monkeypatch.setitem(globals(), "times_factor", lambda x: -x)
    np.testing.assert_array_equal(function(x), 1 - x)
    function(x)
    assert len(traces) == 4
    monkeypatch.undo()
    np.testing.assert_array_equal(function(x), x * 2 + 1)
    assert len(traces) == 4


class Held:
    """Has attributes that are read only if code that is found later names them."""

    def __init__(self) -> None:
        self.first = 2.0
        for name in ("second", "third", "fourth", "fifth", "sixth"):
            setattr(self, name, type(name, (), {})())


HELD = Held()


def named_later() -> float:
    others = (HELD.second, HELD.third, HELD.fourth, HELD.fifth, HELD.sixth)
    return float(len(others))


def test_looking_at_very_much_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The more attributes are named, the less of the code behind them is found."""

    def function(x: Any) -> Any:
        return x * HELD.first * named_later()

    for most in range(1, 16):
        monkeypatch.setattr("mirage_dsl.api.reads.MAX_READS", most)
        kernel = mirage.kernel(function)
        assert kernel.reads is not None


class Scaled:
    """A layer that is asked for attributes that it has not."""

    def __init__(self) -> None:
        self.scale = 2.0

    def __call__(self, x: Any) -> Any:
        return x * self.scale * getattr(self, "other", 1.0)


def test_what_is_there_is_watched_before_what_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Absent attributes, of which each object has many, take no room of others."""
    layers = [Scaled() for _ in range(40)]

    def function(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
            for name in ("bias", "gate", "mask", "norm", "rate", "step"):
                x = x + getattr(layer, name, 0.0)
        return x

    monkeypatch.setattr("mirage_dsl.api.reads.MAX_READS", 250)
    kernel = mirage.kernel(effort="none")(function)
    x = np.ones(4, np.float32)
    np.testing.assert_allclose(kernel(x), function(x))
    layers[-1].scale = 3.0
    np.testing.assert_allclose(kernel(x), function(x))
    assert any("too many" in read.why for read in kernel.reads.unwatched)
