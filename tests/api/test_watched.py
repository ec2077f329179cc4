"""Constants that a function reads: a change is seen, and so is the way back.

Each case changes something that its function reads.  The kernel must do as the function
does, trace once for each state, and list what it read.
"""

from __future__ import annotations

import array
import collections
import ctypes
import dataclasses
import enum
import functools
import importlib
import operator
import os
import random
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.api import kernel as kernel_module
from mirage_dsl.api.reads import MAX_DEPTH, MAX_ITEMS, Read, Reads
from tests.pace import Stopwatch

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)

Case = tuple[Callable[..., Any], Callable[[], Any], Callable[[], Any]]
"""A function, a change of what it reads, and the change back."""

CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def setting(holder: Any, name: Any, old: Any, new: Any) -> tuple[Any, Any]:
    """Two changes: of an item or an attribute, there and back."""
    put = setattr if isinstance(name, str) and not isinstance(holder, dict) else None
    put = put or operator.setitem
    return lambda: put(holder, name, new), lambda: put(holder, name, old)


@dataclass
class Inner:
    scale: float = 2.0
    unread: float = 1.0


@dataclass
class Config:
    model: Inner = dataclasses.field(default_factory=Inner)
    table: dict[str, Any] = dataclasses.field(default_factory=lambda: {"s": 2.0})


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 2.0


class Mode(enum.Enum):
    SUM = 1
    PRODUCT = 2


class Pair(NamedTuple):
    config: Inner
    shift: float


@case
def a_value_of_a_dict() -> Case:
    cfg = {"s": 2.0}
    return lambda x: x * cfg["s"], *setting(cfg, "s", 2.0, 4.0)


@case
def a_value_of_a_dict_by_get() -> Case:
    cfg: dict[str, float] = {}
    return (
        lambda x: x * cfg.get("s", 3.0),
        lambda: cfg.update(s=5.0),
        lambda: cfg.pop("s"),
    )


@case
def a_value_of_a_dict_by_a_key_that_is_computed() -> Case:
    cfg, keys = {"a": 2.0, "b": 4.0}, ["a", "b"]
    return lambda x: sum(x * cfg[k] for k in keys), *setting(cfg, "b", 4.0, 5.0)


@case
def an_item_of_a_list() -> Case:
    scales = [1.0, 2.0]
    return lambda x: x * scales[-1], *setting(scales, 1, 2.0, 4.0)


@case
def items_of_a_list() -> Case:
    scales = [1.0, 2.0]

    def summed(x: Any) -> Any:
        return sum(x * s for s in scales)

    return summed, lambda: scales.append(7.0), scales.pop


@case
def an_item_inside_a_tuple() -> Case:
    kept = ({"s": [2.0]}, 1.0)
    return lambda x: x * kept[0]["s"][0] + kept[1], *setting(kept[0]["s"], 0, 2.0, 4.0)


@case
def a_set() -> Case:
    names = {"a"}
    return (
        lambda x: x * 2 if "b" in names else x,
        lambda: names.add("b"),
        lambda: names.remove("b"),
    )


@case
def a_deque() -> Case:
    scales = collections.deque([2.0])
    return lambda x: x * scales[0], *setting(scales, 0, 2.0, 4.0)


@case
def an_ordered_dict_in_another_order() -> Case:
    scales = collections.OrderedDict(a=2.0, b=3.0)
    return (
        lambda x: x * next(iter(scales.values())),
        lambda: scales.move_to_end("a"),
        lambda: scales.move_to_end("a", last=False),
    )


@case
def a_view_of_a_dict() -> Case:
    inner = {"s": 2.0}
    seen = types.MappingProxyType(inner)
    return lambda x: x * seen["s"], *setting(inner, "s", 2.0, 4.0)


@case
def a_user_dict() -> Case:
    scales = collections.UserDict({"s": 2.0})
    return lambda x: x * scales["s"], *setting(scales.data, "s", 2.0, 4.0)


@case
def the_sign_of_zero() -> Case:
    cfg = [0.0]
    return (
        lambda x: x / (abs(x) * cfg[0] + 1e-30) * 0 + 1 / np.copysign(1.0, cfg[0]) * x,
        *setting(cfg, 0, 0.0, -0.0),
    )


@case
def true_for_one() -> Case:
    cfg: list[Any] = [1]
    return lambda x: x * 3 if cfg[0] is True else x, *setting(cfg, 0, 1, True)


@case
def an_attribute_of_a_nested_object() -> Case:
    cfg = Config()
    return lambda x: x * cfg.model.scale, *setting(cfg.model, "scale", 2.0, 4.0)


@case
def a_nested_object() -> Case:
    cfg = Config()
    return lambda x: x * cfg.model.scale, *setting(cfg, "model", cfg.model, Inner(4.0))


@case
def a_dict_of_a_dataclass() -> Case:
    cfg = Config()
    return lambda x: x * cfg.table["s"], *setting(cfg.table, "s", 2.0, 4.0)


@case
def a_named_tuple() -> Case:
    kept = Pair(Inner(), 1.0)
    return lambda x: x * kept.config.scale + kept.shift, *setting(
        kept.config, "scale", 2.0, 4.0
    )


@case
def a_namespace() -> Case:
    cfg = types.SimpleNamespace(scale=2.0)
    return lambda x: x * cfg.scale, *setting(cfg, "scale", 2.0, 4.0)


@case
def a_slot() -> Case:
    cfg = Slotted()
    return lambda x: x * cfg.scale, *setting(cfg, "scale", 2.0, 4.0)


@case
def an_attribute_of_a_class() -> Case:
    class Base:
        scale = 2.0

    class Derived(Base):
        pass

    return lambda x: x * Derived.scale, *setting(Base, "scale", 2.0, 4.0)


@case
def an_attribute_of_the_class_of_an_object() -> Case:
    class Layer:
        scale = 2.0

    layer = Layer()
    return lambda x: x * layer.scale, *setting(Layer, "scale", 2.0, 4.0)


@case
def an_attribute_that_comes_before_that_of_the_class() -> Case:
    class Layer:
        scale = 2.0

    layer = Layer()

    def change() -> None:
        layer.scale = 4.0

    return lambda x: x * layer.scale, change, lambda: delattr(layer, "scale")


@case
def an_attribute_by_its_name() -> Case:
    cfg = Inner()
    return lambda x: x * getattr(cfg, "scale"), *setting(cfg, "scale", 2.0, 4.0)  # noqa: B009


@case
def an_attribute_that_may_be_missing() -> Case:
    cfg = types.SimpleNamespace()

    def change() -> None:
        cfg.scale = 4.0

    return (
        lambda x: x * getattr(cfg, "scale", 1.5),
        change,
        lambda: delattr(cfg, "scale"),
    )


@case
def an_attribute_whose_absence_is_caught() -> Case:
    cfg = types.SimpleNamespace()

    def scaled(x: Any) -> Any:
        try:
            return x * cfg.scale
        except AttributeError:
            return x

    def change() -> None:
        cfg.scale = 4.0

    return scaled, change, lambda: delattr(cfg, "scale")


@case
def attributes_by_names_in_a_list() -> Case:
    cfg, names = Inner(), ["scale"]

    def summed(x: Any) -> Any:
        return sum(x * getattr(cfg, name) for name in names)

    return summed, *setting(cfg, "scale", 2.0, 4.0)


@case
def all_attributes() -> Case:
    cfg = types.SimpleNamespace(scale=2.0)

    def change() -> None:
        cfg.more = 3.0

    return lambda x: x * sum(vars(cfg).values()), change, lambda: delattr(cfg, "more")


@case
def a_dataclass_as_a_dict() -> Case:
    cfg = Inner()
    return lambda x: x * dataclasses.asdict(cfg)["scale"], *setting(
        cfg, "scale", 2.0, 4.0
    )


@case
def a_property() -> Case:
    class Layer:
        inner = 2.0

        @property
        def scale(self) -> float:
            return self.inner * 2

    layer = Layer()
    return lambda x: x * layer.scale, *setting(layer, "inner", 2.0, 4.0)


@case
def a_method_of_an_object() -> Case:
    class Layer:
        def __init__(self) -> None:
            self.scale = 2.0

        def factor(self) -> float:
            return self.scale

        def __call__(self, x: Any) -> Any:
            return x * self.factor()

    layer = Layer()
    return lambda x: layer(x), *setting(layer, "scale", 2.0, 4.0)


@case
def a_method_that_is_replaced() -> Case:
    class Layer:
        def factor(self) -> float:
            return 2.0

    layer, old = Layer(), Layer.factor
    return lambda x: x * layer.factor(), *setting(Layer, "factor", old, lambda _: 4.0)


@case
def a_bound_method() -> Case:
    layer = Config()

    def forward(self: Any, x: Any) -> Any:
        return x * self.model.scale

    return types.MethodType(forward, layer), *setting(layer.model, "scale", 2.0, 4.0)


@case
def what_an_object_passes_to_a_helper() -> Case:
    cfg = Inner()

    def helper(x: Any, given: Any) -> Any:
        return x * given.scale

    return lambda x: helper(x, cfg), *setting(cfg, "scale", 2.0, 4.0)


@case
def an_object_with_special_methods() -> Case:
    class Table:
        def __init__(self) -> None:
            self.values = [2.0]

        def __getitem__(self, at: int) -> float:
            return self.values[at]

        def __getattr__(self, name: str) -> float:
            return self[int(name[1:])]

    table = Table()
    return lambda x: x * table[0] + x * table.s0, *setting(table.values, 0, 2.0, 4.0)


@case
def a_dict_with_attributes() -> Case:
    class Names(dict[str, float]):
        __getattr__ = dict.__getitem__

    names = Names(scale=2.0)
    return lambda x: x * names.scale, *setting(names, "scale", 2.0, 4.0)


@case
def a_class_that_is_made() -> Case:
    class Made:
        factor = 2.0

        def __init__(self) -> None:
            self.scale = self.factor

    return lambda x: x * Made().scale, *setting(Made, "factor", 2.0, 4.0)


@case
def a_member_of_an_enumeration() -> Case:
    cfg = types.SimpleNamespace(mode=Mode.SUM)
    return (
        lambda x: x + 2 if cfg.mode is Mode.SUM else x * 2,
        *setting(cfg, "mode", Mode.SUM, Mode.PRODUCT),
    )


@case
def defaults() -> Case:
    def scaled(x: Any, s: float = 2.0) -> Any:
        return x * s

    return scaled, *setting(scaled, "__defaults__", (2.0,), (4.0,))


@case
def a_default_by_keyword() -> Case:
    def scaled(x: Any, *, s: float = 2.0) -> Any:
        return x * s

    return scaled, *setting(scaled, "__kwdefaults__", {"s": 2.0}, {"s": 4.0})


@case
def a_default_that_is_changed() -> Case:
    def scaled(x: Any, cfg: Any = [2.0]) -> Any:  # noqa: B006
        return x * cfg[0]

    return scaled, *setting(scaled.__defaults__[0], 0, 2.0, 4.0)  # type: ignore[index]


@case
def defaults_of_a_helper() -> Case:
    def helper(x: Any, s: float = 2.0, *, t: Any = (1.0,)) -> Any:
        return x * s + t[0]

    return lambda x: helper(x), *setting(
        helper, "__kwdefaults__", {"t": (1.0,)}, {"t": (3.0,)}
    )


@case
def code_of_a_helper() -> Case:
    def helper(x: Any) -> Any:
        return x * 2

    def other(x: Any) -> Any:
        return x * 5

    return lambda x: helper(x), *setting(
        helper, "__code__", helper.__code__, other.__code__
    )


@case
def a_helper_of_a_helper() -> Case:
    cfg = {"s": 2.0}

    def inner(x: Any) -> Any:
        return x * cfg["s"]

    def outer(x: Any) -> Any:
        return next(inner(x) for _ in range(1))

    return lambda x: outer(x), *setting(cfg, "s", 2.0, 4.0)


@case
def a_function_inside() -> Case:
    cfg = Inner()

    def outer(x: Any) -> Any:
        def inside() -> float:
            return (lambda: cfg.scale)()

        return x * inside()

    return outer, *setting(cfg, "scale", 2.0, 4.0)


@case
def a_decorated_helper() -> Case:
    cfg = {"s": 2.0, "t": 3.0}

    def scaled(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(x: Any) -> Any:
            return function(x) * cfg["t"]

        return wrapper

    @scaled
    def helper(x: Any) -> Any:
        return x * cfg["s"]

    return lambda x: helper(x), *setting(cfg, "t", 3.0, 4.0)


OF_THE_MODULE = {"by": 2.0}


@case
def a_wrapper_of_the_library_s() -> Case:
    by = [2.0]

    @functools.wraps(torch.nn.functional.relu)
    def wrapper(x: Any) -> Any:
        return x * by[0]

    return lambda x: wrapper(x), *setting(by, 0, 2.0, 4.0)


@case
def a_wrapper_of_an_installed_package_s() -> Case:
    @functools.wraps(pytest.approx)
    def wrapper(x: Any) -> Any:
        return x * OF_THE_MODULE["by"]

    return lambda x: wrapper(x), *setting(OF_THE_MODULE, "by", 2.0, 4.0)


@case
def a_partial() -> Case:
    cfg = Inner()

    def helper(x: Any, given: Any, *, more: Any) -> Any:
        return x * given.scale + more[0]

    made = functools.partial(helper, given=cfg, more=[1.0])
    return lambda x: made(x), *setting(made.keywords["more"], 0, 1.0, 4.0)


@case
def a_kernel_that_is_a_partial() -> Case:
    cfg = Inner()

    def helper(given: Any, x: Any) -> Any:
        return x * given.scale

    return functools.partial(helper, cfg), *setting(cfg, "scale", 2.0, 4.0)


@case
def a_method_of_a_dict() -> Case:
    cfg = {"s": 2.0}
    get = cfg.get
    return lambda x: x * get("s", 1.0), *setting(cfg, "s", 2.0, 4.0)


@case
def a_dict_of_functions() -> Case:
    table = {"act": torch.exp}
    return lambda x: table["act"](x), *setting(table, "act", torch.exp, torch.tanh)


@case
def a_number_of_numpy() -> Case:
    cfg = types.SimpleNamespace(s=np.float32(2.0))
    return lambda x: x * cfg.s, *setting(cfg, "s", np.float32(2.0), np.float32(4.0))


@case
def an_array_without_axes() -> Case:
    scale = np.array(2.0)
    return lambda x: x * float(scale), *setting(scale, (), 2.0, 4.0)


@case
def an_array() -> Case:
    scales = np.array([1.0, 2.0])
    return lambda x: x * scales[1].item(), *setting(scales, 1, 2.0, 4.0)


@case
def a_tensor_without_axes() -> Case:
    scale = torch.tensor(2.0)
    return lambda x: x * scale.item(), lambda: scale.fill_(4), lambda: scale.fill_(2)


@case
def a_module() -> Case:
    config = types.ModuleType("config_of_a_test")
    config.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: x * config.scale, *setting(config, "scale", 2.0, 4.0)


@case
def a_module_that_is_imported_inside() -> Case:
    config = types.ModuleType("config_of_a_test")
    config.scale = 2.0  # type: ignore[attr-defined]
    sys.modules["config_of_a_test"] = config

    def scaled(x: Any) -> Any:
        import config_of_a_test  # type: ignore[import-not-found]

        return x * config_of_a_test.scale

    return scaled, *setting(config, "scale", 2.0, 4.0)


@case
def a_name_that_is_imported_inside() -> Case:
    config = types.ModuleType("config_of_a_test")
    config.scale = 2.0  # type: ignore[attr-defined]
    sys.modules["config_of_a_test"] = config

    def scaled(x: Any) -> Any:
        from config_of_a_test import scale  # type: ignore[import-not-found]

        return x * scale

    return scaled, *setting(config, "scale", 2.0, 4.0)


@case
def a_variable_of_the_environment() -> Case:
    def change() -> None:
        os.environ["SCALE_OF_A_TEST"] = "4"

    return (
        lambda x: x * float(os.environ.get("SCALE_OF_A_TEST", "2")),
        change,
        lambda: os.environ.pop("SCALE_OF_A_TEST"),
    )


@case
def a_variable_by_getenv_and_a_helper() -> Case:
    prefix = "SCALE_OF"

    def helper(name: str) -> float:
        return float(os.getenv(f"{prefix}_{name}") or 2)

    def change() -> None:
        os.environ["SCALE_OF_TEST"] = "4"

    return lambda x: x * helper("TEST"), change, lambda: os.environ.pop("SCALE_OF_TEST")


@case
def a_layer_of_pytorch() -> Case:
    layer = torch.nn.Sequential(torch.nn.LeakyReLU(0.5))
    return lambda x: layer(x), *setting(layer[0], "negative_slope", 0.5, 0.25)


@case
def a_layer_of_ones_own() -> Case:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 2.0

        def forward(self, x: Any) -> Any:
            return x * self.scale

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([Layer()])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    model = Model()
    return lambda x: model(x), *setting(model.layers[0], "scale", 2.0, 4.0)


class _Doubling(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2.0


class _Inner(_Doubling):
    """Of which the next cases have the class's own function changed."""


def _tripled(_: Any, x: Any) -> Any:
    return x * 3.0


@case
def a_forward_of_the_module_itself() -> Case:
    model = torch.nn.Sequential(_Doubling())
    change, _ = setting(model[0], "forward", None, types.MethodType(_tripled, model[0]))
    return lambda x: model(x), change, lambda: delattr(model[0], "forward")


@case
def the_forward_of_its_class() -> Case:
    model = torch.nn.Sequential(_Inner())
    inherited = _Doubling.forward
    return lambda x: model(x), *setting(_Inner, "forward", inherited, _tripled)


@case
def the_forward_of_a_layer_of_pytorch() -> Case:
    model = torch.nn.Sequential(torch.nn.Identity())
    change, _ = setting(model[0], "forward", None, lambda x: x * 3.0)
    return lambda x: model(x), change, lambda: delattr(model[0], "forward")


@case
def an_attribute_of_the_class_beside_that_of_the_object() -> Case:
    class Layer:
        scale = 2.0

    layer = Layer()
    layer.scale = 3.0
    return lambda x: x * type(layer).scale * layer.scale, *setting(
        Layer, "scale", 2.0, 4.0
    )


@case
def what_a_class_above_reads() -> Case:
    class Base:
        inner = 2.0

        def factor(self) -> float:
            return Base.inner

    class Derived(Base):
        def factor(self) -> float:
            return super().factor() + 1

    layer = Derived()
    return lambda x: x * layer.factor(), *setting(Base, "inner", 2.0, 4.0)


@case
def a_method_that_super_finds() -> Case:
    class Base:
        def factor(self) -> float:
            return 2.0

    class Derived(Base):
        def factor(self) -> float:
            return super().factor() + 1

    def other(_: Base) -> float:
        return 4.0

    layer = Derived()
    return lambda x: x * layer.factor(), *setting(Base, "factor", Base.factor, other)


@case
def an_attribute_of_a_metaclass() -> Case:
    class Meta(type):
        factor = 2.0

    class Layer(metaclass=Meta):
        pass

    return lambda x: x * Layer.factor, *setting(Meta, "factor", 2.0, 4.0)


@case
def a_property_of_a_metaclass() -> Case:
    class Meta(type):
        held = 2.0

        @property
        def factor(cls) -> float:
            return cls.held * 2

    class Layer(metaclass=Meta):
        pass

    return lambda x: x * Layer.factor, *setting(Meta, "held", 2.0, 4.0)


@case
def a_method_that_a_derived_class_gets() -> Case:
    class Base:
        def factor(self) -> float:
            return 2.0

    class Derived(Base):
        pass

    layer = Derived()

    def change() -> None:
        Derived.factor = lambda _: 4.0  # type: ignore[method-assign]

    return lambda x: x * layer.factor(), change, lambda: delattr(Derived, "factor")


@case
def methods_of_classes() -> Case:
    class Layer:
        inner = 2.0
        table = (1.0,)

        @classmethod
        def factor(cls) -> float:
            return cls.inner

        @staticmethod
        def shift() -> float:
            return Layer.table[0]

    layer = Layer()
    return lambda x: x * layer.factor() + Layer.shift(), *setting(
        Layer, "table", (1.0,), (4.0,)
    )


@case
def the_class_of_an_object() -> Case:
    class One:
        def factor(self) -> float:
            return 2.0

    class Other:
        def factor(self) -> float:
            return 4.0

    layer = One()
    return lambda x: x * layer.factor(), *setting(layer, "__class__", One, Other)


@case
def an_attribute_instead_of_a_computed_one() -> Case:
    class Layer:
        def __getattr__(self, name: str) -> float:
            return float(len(name))

    layer = Layer()

    def change() -> None:
        layer.scale = 2.0

    return lambda x: x * layer.scale, change, lambda: delattr(layer, "scale")


@case
def an_attribute_of_a_function() -> Case:
    def helper(x: Any) -> Any:
        return x * helper.scale  # type: ignore[attr-defined]

    helper.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: helper(x), *setting(helper, "scale", 2.0, 4.0)


@case
def an_attribute_of_a_kernel() -> Case:
    @mirage.kernel
    def helper(x: Any) -> Any:
        return x

    helper.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: x * helper.scale, *setting(helper, "scale", 2.0, 4.0)


@case
def attributes_by_an_operator() -> Case:
    cfg = Config()
    get = operator.attrgetter("model.scale")
    return lambda x: x * get(cfg), *setting(cfg.model, "scale", 2.0, 4.0)


@case
def what_a_thread_has() -> Case:
    state = threading.local()
    state.scale = 2.0
    return lambda x: x * state.scale, *setting(state, "scale", 2.0, 4.0)


@case
def bytes_that_change() -> Case:
    scales = bytearray(b"\x02")
    return lambda x: x * scales[0], *setting(scales, 0, 2, 4)


@case
def an_array_of_the_standard_library() -> Case:
    scales = array.array("d", [2.0])
    return lambda x: x * scales[0], *setting(scales, 0, 2.0, 4.0)


@case
def a_module_by_its_name() -> Case:
    config = types.ModuleType("config_of_a_test")
    config.scale = 2.0  # type: ignore[attr-defined]
    sys.modules["config_of_a_test"] = config

    def scaled(x: Any) -> Any:
        return x * importlib.import_module("config_of_a_test").scale

    return scaled, *setting(config, "scale", 2.0, 4.0)


@case
def an_argument_of_the_command_line() -> Case:
    old = len(sys.argv)

    def change() -> None:
        sys.argv.append("more")

    return lambda x: x * (len(sys.argv) - old + 1), change, sys.argv.pop


@case
def a_function_of_a_library_under_a_name() -> Case:
    space: dict[str, Any] = {"act": torch.exp}
    return eval("lambda x: act(x)", space), *setting(
        space, "act", torch.exp, torch.tanh
    )


@case
def a_name_that_may_be_missing() -> Case:
    space: dict[str, Any] = {}
    text = """def scaled(x):
    try:
        return x * SCALE
    except NameError:
        return x
"""
    exec(text, space)

    def change() -> None:
        space["SCALE"] = 4.0

    return space["scaled"], change, lambda: space.pop("SCALE")


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each trace."""
    found: list[int] = []
    trace = kernel_module.trace_call

    def counted(*args: Any, **kwargs: Any) -> Any:
        found.append(1)
        return trace(*args, **kwargs)

    monkeypatch.setattr(kernel_module, "trace_call", counted)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen_and_so_is_the_way_back(name: str, traces: list[int]) -> None:
    function, change, undo = CASES[name]()
    kernel = mirage.kernel(function)
    x = torch.from_numpy(X)

    def agree() -> None:
        torch.testing.assert_close(kernel(x), function(x))

    agree()
    before = function(x)
    for _ in range(2):
        change()
        agree()
        assert not torch.equal(function(x), before)
        agree()
        undo()
        agree()
        agree()
    assert len(traces) == 2
    assert kernel.reads
    assert all(read.watched for read in kernel.reads), kernel.reads


def test_what_reads_nothing_is_not_looked_at() -> None:
    for function in (
        lambda x: torch.relu(x) * 2 + np.pi,
        lambda x: mirage.rms_norm(x).sum(-1, keepdims=True),
        lambda x: max(len(x.shape), 2) * x,
    ):
        kernel = mirage.kernel(function)
        kernel(torch.from_numpy(X))
        assert kernel.reads == ()
        assert repr(kernel.reads) == "<reads nothing>"


def test_a_program_that_is_the_same_is_compiled_once(traces: list[int]) -> None:
    cfg = Config()
    kernel = mirage.kernel(lambda x: x * 2 if cfg.model.scale > 1 else x)
    first = kernel.bind(X)
    cfg.model.scale = 3.0
    assert kernel.bind(X) is first
    assert len(traces) == 2
    cfg.model.unread = 7.0
    assert kernel.bind(X) is first
    cfg.model = Inner(3.0)
    cfg.table = {}
    assert kernel.bind(X) is first
    assert len(traces) == 2


def test_what_the_function_fills_once_is_traced_once_more(traces: list[int]) -> None:
    class Layer:
        scale = 2.0

        @functools.cached_property
        def factor(self) -> float:
            return self.scale + 1

    layer, seen, cache = Layer(), [], {}

    def scaled(x: Any) -> Any:
        seen.append(1)
        cache.setdefault(layer.factor, layer.factor)
        return x * cache[layer.factor] * layer.scale

    kernel = mirage.kernel(scaled)
    for scale in (2.0, 5.0, 2.0, 5.0):
        layer.scale = scale
        for _ in range(3):
            np.testing.assert_allclose(kernel(X), X * 3 * scale, rtol=1e-6)
    assert len(traces) == len(seen) == 3
    (unwatched,) = kernel.reads.unwatched
    assert unwatched.name == "seen"
    assert "only puts" in unwatched.why


def counter_of_an_object() -> Callable[..., Any]:
    layer = types.SimpleNamespace(calls=0)

    def counting(x: Any) -> Any:
        layer.calls += 1
        return x * layer.calls

    return counting


def counter_of_a_closure() -> Callable[..., Any]:
    calls = 0

    def counting(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return x * calls

    return counting


def counter_in_a_dict() -> Callable[..., Any]:
    calls = {"n": 0}

    def counting(x: Any) -> Any:
        calls["n"] += 1
        return x * calls["n"]

    return counting


def length_of_a_list() -> Callable[..., Any]:
    calls: list[int] = []

    def counting(x: Any) -> Any:
        calls.append(1)
        return x * len(calls)

    return counting


def a_flag_that_turns() -> Callable[..., Any]:
    state = types.SimpleNamespace(flag=False)

    def turning(x: Any) -> Any:
        state.flag = not state.flag
        return x if state.flag else x * 2

    return turning


@pytest.mark.parametrize(
    "make",
    [
        counter_of_an_object,
        counter_of_a_closure,
        counter_in_a_dict,
        length_of_a_list,
        a_flag_that_turns,
    ],
)
def test_what_the_function_changes_at_each_call(
    make: Callable[[], Callable[..., Any]],
) -> None:
    function, kernel = make(), mirage.kernel(make())
    for _ in range(5):
        np.testing.assert_allclose(kernel(X), function(X), rtol=1e-6)


def test_what_others_change_during_a_trace_is_seen() -> None:
    cfg = Inner()

    def others(value: float) -> Iterator[None]:
        cfg.scale = value
        yield

    def scaled(x: Any) -> Any:
        y = x * cfg.scale
        next(meanwhile, None)
        return y

    meanwhile = others(7.0)
    kernel = mirage.kernel(scaled)
    np.testing.assert_allclose(kernel(X), X * 2, rtol=1e-6)
    np.testing.assert_allclose(kernel(X), X * 7, rtol=1e-6)
    cfg.scale = 3.0
    np.testing.assert_allclose(kernel(X), X * 3, rtol=1e-6)
    cfg.scale = 2.0
    np.testing.assert_allclose(kernel(X), X * 2, rtol=1e-6)


class Deep:
    def __init__(self, depth: int) -> None:
        self.scale = 2.0
        self.inner = Deep(depth - 1) if depth else None


UNWATCHED: dict[str, tuple[Callable[[], Callable[..., Any]], str, str]] = {}


def unwatched(name: str, why: str) -> Callable[[Any], Any]:
    def keep(make: Callable[[], Callable[..., Any]]) -> Any:
        UNWATCHED[make.__name__] = make, name, why
        return make

    return keep


@unwatched("time.time", "read once")
def the_clock() -> Callable[..., Any]:
    return lambda x: x * time.time()


@unwatched("random.random", "read once")
def chance() -> Callable[..., Any]:
    return lambda x: x * random.random()


@unwatched("draw", "read once")
def a_function_of_a_library() -> Callable[..., Any]:
    draw = time.monotonic
    return lambda x: x * draw()


@unwatched("rng", "Generator")
def a_generator_of_numbers() -> Callable[..., Any]:
    rng = np.random.default_rng(0)
    return lambda x: x * rng.random()


@unwatched("steps", "list_iterator")
def an_iterator() -> Callable[..., Any]:
    steps: Iterator[float] = iter([1.0, 2.0])
    return lambda x: x * next(steps)


@unwatched("held", "c_float")
def memory_of_c() -> Callable[..., Any]:
    held = ctypes.c_float(2.0)
    return lambda x: x * held.value


@unwatched("table", str(MAX_ITEMS))
def a_long_list() -> Callable[..., Any]:
    table = [1.0] * (MAX_ITEMS + 1)
    return lambda x: x * table[3]


@unwatched("table[99]", "more than")
def many_lists() -> Callable[..., Any]:
    table = [[1.0] * 50 for _ in range(100)]
    return lambda x: x * table[3][4]


@unwatched("weights", "bytes")
def a_large_array() -> Callable[..., Any]:
    weights = np.ones(2048)
    return lambda x: x * float(weights.sum())


@unwatched("weights", "tensor of up to")
def a_large_tensor() -> Callable[..., Any]:
    weights = torch.ones(2048)
    return lambda x: x * weights.sum().item()


@unwatched("deep" + ".inner" * (MAX_DEPTH + 1), f"deeper than {MAX_DEPTH}")
def a_deep_object() -> Callable[..., Any]:
    deep = Deep(MAX_DEPTH + 2)

    def scaled(x: Any) -> Any:
        found = deep
        while found.inner is not None:
            found = found.inner
        return x * found.scale

    return scaled


class Refusing:
    scale = 2.0

    def __getattribute__(self, name: str) -> Any:
        if name == "scale":
            return 2.0
        raise RuntimeError(name)


@unwatched("cfg", "RuntimeError")
def an_object_that_refuses_to_be_looked_at() -> Callable[..., Any]:
    cfg = Refusing()
    return lambda x: x * cfg.scale


@pytest.mark.parametrize("name", UNWATCHED)
def test_what_cannot_be_watched_is_said(name: str) -> None:
    make, named, why = UNWATCHED[name]
    kernel = mirage.kernel(make())
    kernel(X)
    found = {read.name: read for read in kernel.reads.unwatched}
    assert named in found, kernel.reads
    assert not found[named].watched
    assert why in found[named].why
    assert f"# not watched: {found[named].why}" in repr(kernel.reads)


def test_reads_say_what_was_read() -> None:
    cfg = Config()

    def helper(x: Any) -> Any:
        return x * cfg.model.scale

    kernel = mirage.kernel(lambda x: helper(x) + cfg.table["s"])
    names = {read.name: read.value for read in kernel.reads}
    assert names["cfg.model.scale"] == 2.0
    assert names["cfg.table"] == {"s": 2.0}
    assert names["helper"] is helper
    assert not any("unread" in name for name in names)
    assert "cfg.model.scale = 2.0" in repr(kernel.reads).splitlines()
    cfg.model.scale = 4.0
    assert Read("cfg.model.scale", 4.0) in kernel.reads


def test_arguments_that_are_equal_and_not_the_same() -> None:
    kernel = mirage.kernel(lambda x, s: x * 0 + np.copysign(1.0, s))
    assert (kernel(X, 0.0) == 1).all()
    assert (kernel(X, -0.0) == -1).all()


def test_looking_costs_little() -> None:
    """Well below a microsecond for each constant."""
    cfg = types.SimpleNamespace(**{f"c{i}": float(i) for i in range(20)})
    names = " + ".join(f"cfg.c{i}" for i in range(20))
    kernel = mirage.kernel(eval(f"lambda x: x * ({names})", {"cfg": cfg}))
    kernel(X)
    count = sum(read.watched for read in kernel.reads)
    assert count == 20
    seconds: list[float] = []
    for _ in range(3):
        watch = Stopwatch()
        for _ in range(2000):
            kernel._unchanged()
        seconds.append(watch.seconds / 2000)
    assert min(seconds) / count < 5e-7


def test_what_is_equal_is_compared_by_identity_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cfg = types.SimpleNamespace(scale=1e3, table=[1e3, 2e3], **{"class": 1e3})
    kernel = mirage.kernel(
        lambda x: x * cfg.scale + cfg.table[1] + getattr(cfg, "class")
    )
    kernel(X)
    slow: list[bool] = []
    changed = Reads.changed

    def counting(reads: Reads) -> bool:
        slow.append(changed(reads))
        return slow[-1]

    monkeypatch.setattr(Reads, "changed", counting)
    kernel = mirage.kernel(kernel.function)
    kernel(X)
    slow.clear()
    assert kernel._unchanged()
    assert not slow
    cfg.scale, cfg.table[1] = float("1e3"), float("2e3")
    assert kernel._unchanged()
    assert slow == [False]
    assert kernel._unchanged()
    assert slow == [False]
    vars(cfg)["class"] = 2.0
    assert not kernel._unchanged()
    assert slow == [False, True]


def test_other_code_of_the_function_itself() -> None:
    def two(x: Any) -> Any:
        return x * 2

    def three(x: Any) -> Any:
        return x * 3

    class Layer:
        def two(self, x: Any) -> Any:
            return x * 2

    layer = Layer()
    first, second = two.__code__, three.__code__
    for function, held, other in (
        (two, two, second),
        (layer.two, Layer.two, (lambda _, x: x * 3).__code__),
    ):
        kernel, own = mirage.kernel(effort="none")(function), held.__code__
        assert not kernel.reads or function is not two
        for code, factor in ((own, 2), (other, 3), (other, 3), (own, 2)):
            held.__code__ = code
            for _ in range(2):
                np.testing.assert_array_equal(kernel(X), X * factor)
    assert two.__code__ is first


def test_the_default_dtype_is_seen() -> None:
    kernel = mirage.kernel(effort="none")(lambda x: x / 2 + torch.zeros(3))
    x = torch.arange(3)
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            for _ in range(2):
                assert kernel(x).dtype == dtype
    finally:
        torch.set_default_dtype(torch.float32)
