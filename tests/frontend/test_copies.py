"""Kernels of modules whose attributes lead anywhere, as those of other people do."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import copy
import functools
import pickle
import types
import weakref
from collections import (
    ChainMap,
    Counter,
    OrderedDict,
    UserDict,
    defaultdict,
    deque,
)
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import mirage_dsl as mirage
from mirage_dsl.core.errors import TraceError

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


Case = tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]
"""What a module holds, and its forward."""


class Mixed:
    """A base of modules, by which `__dict__` is an attribute of a class."""


class Net(Mixed, nn.Module):
    """Two layers and a parameter, and what a test adds."""

    def __init__(
        self, init: Callable[[Any], Any], run: Callable[[Any, Any], Any]
    ) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.5))
        self.held: Any = init(self)
        self.run = run

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


def made(case: Case) -> Net:
    torch.manual_seed(0)
    return Net(*case)


class Plain:
    def __init__(self, layer: Any, by: Any = 2.0) -> None:
        self.layer, self.by = layer, by

    def __call__(self, x: Any) -> Any:
        return self.layer(x) * self.by

    def hook(self, _: Any, args: Any, result: Any) -> Any:
        return result + self(args[0])


class Slotted:
    __slots__ = ("__by", "absent", "layer")

    def __init__(self, layer: Any, by: float = 2.0) -> None:
        self.layer, self.__by = layer, by

    def __call__(self, x: Any) -> Any:
        return self.layer(x) * self.__by


@dataclass(frozen=True)
class Key:
    layer: Any
    number: int = 0


class Delegates:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class Layers(list[Any]):
    """A list of the user's."""

    by = 2.0


class Refusing:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Closing(Plain):
    def __del__(self) -> None:
        pass


class Pair(NamedTuple):
    layer: Any
    by: Any


def in_order(layers: Any, x: Any) -> Any:
    for layer in layers:
        x = torch.tanh(layer(x))
    return x


def recursive(net: Any) -> Any:
    layer = net.a

    def run(x: Any, times: int = 3) -> Any:
        return run(torch.tanh(layer(x)), times - 1) if times else x

    return run


def of_each_other(net: Any) -> Any:
    a, b = net.a, net.b

    def one(x: Any, times: int = 3) -> Any:
        return other(torch.tanh(a(x)), times - 1) if times else x

    def other(x: Any, times: int = 3) -> Any:
        return one(torch.tanh(b(x)), times - 1) if times else x

    return [one, other]


def itself(net: Any) -> list[Any]:
    found: list[Any] = [net.a]
    found.append(found)
    return found


def by_key(net: Any, x: Any) -> Any:
    """Of each layer, what a table says of it."""
    for layer in net.children():
        x = layer(x) * net.held.get(layer, 1.0)
    return x


def chosen(net: Any, x: Any) -> Any:
    for layer in net.children():
        x = layer(x) * (2.0 if layer in net.held else 1.0)
    return x


def unregistered(net: Any) -> list[Any]:
    """A module that PyTorch does not know to be one of the net's."""
    hidden = nn.Sequential()
    vars(hidden)["_modules"] = {"inner": net.a}
    hidden.register_forward_hook(lambda _, args, result: result + net.b(args[0]))
    return [hidden]


def hooked(net: Any) -> Any:
    net.a.register_forward_hook(Plain(net.b).hook)
    return net.a.register_forward_hook(
        lambda layer, _, result: result * {net.a: 3.0}[layer]
    )


CASES: dict[str, Case] = {
    "an object": (lambda n: Plain(n.a, n.scale), lambda n, x: n.held(x)),
    "its method": (lambda n: Plain(n.a).__call__, lambda n, x: n.held(x)),
    "one with slots": (lambda n: Slotted(n.a), lambda n, x: n.held(x)),
    "a namespace": (
        lambda n: types.SimpleNamespace(layers=[n.a], net=n),
        lambda n, x: n.held.layers[0](x) * n.held.net.scale,
    ),
    "all that it has": (
        lambda n: Plain(n.a),
        lambda n, x: n.held.__dict__["layer"](x) * len(n.__dict__),
    ),
    "one that delegates": (
        lambda n: Delegates(n.a),
        lambda n, x: F.linear(x, n.held.weight, n.held.bias),
    ),
    "one in a closure": (
        lambda n: (lambda o: lambda x: o(x))(Plain(n.a)),
        lambda n, x: n.held(x),
    ),
    "a named tuple": (
        lambda n: Pair(n.a, n.scale),
        lambda n, x: n.held.layer(x) * n.held.by,
    ),
    "an ordered dict": (
        lambda n: OrderedDict(b=n.b, a=n.a),
        lambda n, x: in_order(n.held.values(), x),
    ),
    "a default dict": (
        lambda n: defaultdict(list, one=[n.a]),
        lambda n, x: in_order(n.held["one"], x) + len(n.held.keys()),
    ),
    "a deque": (lambda n: deque([n.b, n.a], 2), lambda n, x: in_order(n.held, x)),
    "a list of the user's": (
        lambda n: Layers([n.b, n.a]),
        lambda n, x: in_order(n.held, x) * n.held.by,
    ),
    "a view of a dict": (
        lambda n: types.MappingProxyType({"b": n.b, "a": n.a}),
        lambda n, x: in_order(n.held.values(), x),
    ),
    "maps in a chain": (
        lambda n: ChainMap({"a": n.a}, {"b": n.b}),
        lambda n, x: n.held["a"](n.held["b"](x)),
    ),
    "a user's dict": (lambda n: UserDict(a=n.a), lambda n, x: n.held["a"](x)),
    "a set": (lambda n: {n.b, n.a, n.b}, lambda n, x: in_order(n.held, x)),
    "a frozen set": (
        lambda n: frozenset([n.b, n.a]),
        lambda n, x: in_order(n.held, x),
    ),
    "membership": (lambda n: {n.b}, chosen),
    "frozen membership": (lambda n: frozenset([n.b]), chosen),
    "keys": (lambda n: {n.a: 2.0, n.b: 3.0}, by_key),
    "counts": (lambda n: Counter({n.a: 2, n.b: 3}), by_key),
    "weak keys": (
        lambda n: weakref.WeakKeyDictionary({n.a: 2.0, n.b: 3.0}),
        by_key,
    ),
    "addresses": (
        lambda n: {id(n.a): 2.0, id(n.b): 3.0},
        lambda n, x: n.a(x) * n.held[id(n.a)] + n.b(x) * n.held.get(id(n.b), 1.0),
    ),
    "keys that have a hash of their own": (
        lambda n: ({Key(n.a): 2.0}, frozenset([Key(n.a, 1)])),
        lambda n, x: n.a(x) * n.held[0][Key(n.a)] * (1 + (Key(n.a, 1) in n.held[1])),
    ),
    "a reference": (lambda n: weakref.ref(n.a), lambda n, x: n.held()(x)),
    "one to a method": (
        lambda n: weakref.WeakMethod(n.a.forward),
        lambda n, x: n.held()(x),
    ),
    "weak values": (
        lambda n: weakref.WeakValueDictionary(a=n.a, scale=n.scale),
        lambda n, x: n.held["a"](x) * n.held["scale"],
    ),
    "a proxy": (
        lambda n: [weakref.proxy(n.a)],
        lambda n, x: n.held[0](x) * n.held[0].weight.sum(),
    ),
    "a method of a dict": (lambda n: {"a": n.a}.get, lambda n, x: n.held("a")(x)),
    "one of a parameter": (lambda n: n.scale.mul, lambda n, x: n.held(x)),
    "a function's attribute": (
        lambda n: functools.update_wrapper(lambda x: x, n.a.forward),
        lambda n, x: n.held.__wrapped__(x),
    ),
    "a recursive function": (recursive, lambda n, x: n.held(x)),
    "functions of each other": (
        of_each_other,
        lambda n, x: n.held[0](x) + n.held[1](x),
    ),
    "a list in itself": (itself, lambda n, x: n.held[1][1][0](x)),
    "an unregistered module": (unregistered, lambda n, x: n.held[0](x)),
    "hooks": (hooked, lambda n, x: n.a(x)),
    "what refuses to be looked at": (
        lambda _: [Refusing(), weakref.proxy(Layers())],
        lambda n, x: n.a(x),
    ),
    "one thing twice": (
        lambda n: (lambda o: [o, (o,), lambda: o])(Plain(n.a)),
        lambda n, x: n.held[0](x) * (n.held[0] is n.held[1][0] is n.held[2]()),
    ),
    "one list twice": (
        lambda n: vars(n).setdefault("again", [n.a]),
        lambda n, x: n.a(x) * (n.held is n.again),
    ),
}


def assert_like_eager(kernel: Any, net: Any) -> None:
    torch.testing.assert_close(kernel(X), net(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_what_attributes_lead_to_is_as_in_eager_mode(name: str) -> None:
    net = Net(*CASES[name])
    kernel = mirage.kernel(effort="none")(net)
    for _ in range(2):
        assert_like_eager(kernel, net)
    for tensor in net.parameters():
        tensor.add_(0.25)
    assert_like_eager(kernel, net)


CHANGES: dict[str, tuple[Callable[[Any], Any], Any, Callable[[Any], Any]]] = {
    "a number": (
        lambda n: Plain(n.a),
        lambda n, x: n.held(x),
        lambda n: setattr(n.held, "by", 3.0),
    ),
    "a layer": (
        lambda n: Plain(n.a),
        lambda n, x: n.held(x),
        lambda n: setattr(n.held, "layer", n.b),
    ),
    "a parameter": (
        lambda n: Plain(n.a, n.scale),
        lambda n, x: n.held(x),
        lambda n: setattr(n.held, "by", n.a.bias),
    ),
    "an item": (
        lambda n: deque([n.a, n.b]),
        lambda n, x: in_order(n.held, x),
        lambda n: n.held.rotate(1),
    ),
    "another object": (
        lambda n: Plain(n.a),
        lambda n, x: n.held(x),
        lambda n: setattr(n, "held", Slotted(n.b, 3.0)),
    ),
    "a number of an unregistered module": (
        lambda _: [nn.PReLU()],
        lambda n, x: n.a(x) * n.held[0].weight.item(),
        lambda n: n.held[0].weight.add_(1),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_there_is_seen(name: str) -> None:
    init, run, change = CHANGES[name]
    net = Net(init, run)
    kernel = mirage.kernel(effort="none")(net)
    assert_like_eager(kernel, net)
    change(net)
    for _ in range(2):
        assert_like_eager(kernel, net)


def doubled(function: Any, by: float) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * by

    return wrapper


def hooking(layer: Any, old: Any, *args: Any) -> Any:
    return old(*args) * layer.by


FORWARDS: dict[str, Callable[[Any, Any], Any]] = {
    "wraps": lambda layer, old: doubled(old, layer.by),
    "partial": lambda layer, old: functools.partial(hooking, layer, old),
    "updated": lambda layer, old: functools.update_wrapper(
        functools.partial(hooking, layer, old), old
    ),
    "object": lambda layer, old: Plain(old, layer.by),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_another_forward_of_a_layer_is_seen(name: str) -> None:
    net: Any = Net(lambda n: n.a.forward, lambda n, x: n.a(x))
    kernel = mirage.kernel(effort="none")(net)
    assert_like_eager(kernel, net)
    for by in 2.0, 3.0:
        net.a.by = by
        net.a.forward = FORWARDS[name](net.a, net.held)
        assert_like_eager(kernel, net)
    net.a.by = 4.0
    assert_like_eager(kernel, net)
    del net.a.forward
    assert_like_eager(kernel, net)


def test_a_parameter_that_a_closure_holds_is_no_more_the_module_s() -> None:
    net = Net(lambda n: functools.partial(torch.mul, n.scale), lambda n, x: n.held(x))
    kernel = mirage.kernel(effort="none")(net)
    assert_like_eager(kernel, net)
    net.scale.add_(1)
    assert_like_eager(kernel, net)
    assert len(kernel._bound) == 1
    old, net.scale = net.scale, nn.Parameter(torch.ones(8))
    with pytest.raises(TraceError, match="no argument of the function"):
        kernel(X)
    net.b.scale = old
    assert_like_eager(kernel, net)


def counting(net: Any) -> Any:
    layer = net.a

    def run(x: Any) -> Any:
        nonlocal layer
        layer = net.b if layer is net.a else net.a
        return layer(x)

    return run


def filled_by_a_hook(net: Any) -> list[Any]:
    found: list[Any] = []
    net.a.register_forward_hook(lambda *given: found.append(given[2]))
    return found


def counted(function: Any, x: Any) -> Any:
    function.calls = getattr(function, "calls", 0) + 1
    return function(x) * function.calls


def cached(held: Any, x: Any) -> Any:
    held.by = held.by + 1
    return held(x)


WRITES: dict[str, tuple[Case, str]] = {
    "an object": (
        (lambda n: Plain(n.a), lambda n, x: cached(n.held, x)),
        "changes what its attribute held leads to, a Plain, while",
    ),
    "a list in a dict": (
        (
            lambda n: {"c": [n.a, n.b]},
            lambda n, x: (n.held["c"].reverse(), in_order(n.held["c"], x))[1],
        ),
        "held leads to, a list, while",
    ),
    "a deque": (
        (lambda _: deque([1.0]), lambda n, x: (n.held.append(x), n.a(x))[1]),
        "held leads to, a deque, while",
    ),
    "a closure": (
        (counting, lambda n, x: n.held(x)),
        "held leads to, a closure, while",
    ),
    "a function": (
        (lambda n: lambda x: n.a(x), lambda n, x: counted(n.held, x)),
        "held leads to, a function, while",
    ),
    "the module, from elsewhere": (
        (
            lambda n: deque([n]),
            lambda n, x: (setattr(n.held[0], "more", 1.0), n.a(x) * n.more)[1],
        ),
        "sets more while",
    ),
    "a list that a hook fills": (
        (filled_by_a_hook, lambda n, x: n.a(x) + len(n.held)),
        "sets held while",
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_what_attributes_lead_to_are_refused(name: str) -> None:
    case, message = WRITES[name]
    net, untouched = made(case), made(case)
    with pytest.raises(TraceError, match=message):
        mirage.kernel(effort="none")(net)(X)
    assert torch.equal(net(X), untouched(X))


REGISTRY: dict[str, Any] = {}
"""What a module of Python's has."""


class Registered(nn.Module):
    known: dict[Any, float] = {}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.known[self.a] = 2.0

    def forward(self, x: Any) -> Any:
        return self.a(x) * self.known.get(self.a, 1.0)


def in_registry(value: Callable[[Any], Any], run: Callable[[Any, Any], Any]) -> Any:
    return Net(lambda n: REGISTRY.setdefault("of", value(n)), run)


def counted_elsewhere(net: Any, x: Any) -> Any:
    REGISTRY["of"].by += 1
    return net.held(x)


PAST: dict[str, tuple[Callable[[], Any], str]] = {
    "of a module of Python's": (
        lambda: in_registry(
            lambda n: [n.a], lambda n, x: n.a(x) * (n.a in REGISTRY["of"])
        ),
        "Net reads REGISTRY, which leads to a layer",
    ),
    "written to by way of it": (
        lambda: in_registry(lambda n: Plain(n.a), counted_elsewhere),
        "Net reads REGISTRY",
    ),
    "of a class": (Registered, "Registered reads Registered.known"),
    "of an object that ends": (
        lambda: Net(
            lambda n: Closing(n.a), lambda n, x: n.a(x) * (n.held.layer is n.a)
        ),
        "Net reads Closing.layer",
    ),
}


@pytest.mark.parametrize("name", PAST)
def test_layers_past_the_attributes_are_refused(name: str) -> None:
    make, message = PAST[name]
    REGISTRY.clear()
    net = make()
    with pytest.raises(TraceError, match=message):
        mirage.kernel(effort="none")(net)(X)


def test_hooks_of_all_modules_that_hold_a_layer_are_refused() -> None:
    net = Net(lambda _: None, lambda n, x: n.a(x))
    kernel = mirage.kernel(effort="none")(net)
    assert_like_eager(kernel, net)
    handle = register_module_forward_hook(
        lambda layer, _, result: result * 2 if layer is net.a else result
    )
    try:
        with pytest.raises(TraceError, match="reads _global_forward_hooks"):
            kernel(X)
    finally:
        handle.remove()
    assert_like_eager(kernel, net)


def test_a_container_of_others_is_theirs_as_well() -> None:
    net = in_registry(
        lambda _: [2.0],
        lambda n, x: n.a(x) * sum(REGISTRY["of"]) * (n.held is REGISTRY["of"]),
    )
    kernel = mirage.kernel(effort="none")(net)
    assert_like_eager(kernel, net)
    net.held.append(3.0)
    assert_like_eager(kernel, net)


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.held = Plain(self.a, {self.a: 2.0})
        self.forms = functools.partial(F.linear, weight=self.a.weight), {self.a}

    def forward(self, x: Any) -> Any:
        form, layers = self.forms
        return self.held.layer(x) * self.held.by[self.a] + form(x) * (self.a in layers)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
)
def test_copies_of_kernels_have_objects_of_their_own(
    copied: Callable[[Any], Any],
) -> None:
    net = Held()
    kernel = mirage.kernel(effort="none")(net)
    assert_like_eager(kernel, net)
    other = copied(kernel)
    module = other.function.module
    module.held.by[module.a] = 5.0
    module.a.weight.add_(1)
    assert_like_eager(other, module)
    assert_like_eager(kernel, net)
    assert not torch.allclose(module(X), net(X))
