"""Modules of PyTorch as kernels: traced with their tensors, and never touched.

Each is compared with its own result in eager mode.
"""

from __future__ import annotations

import copy
import functools
import math
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.utils import parametrizations, parametrize

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import TraceError, UnsupportedError


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class RMSNorm(nn.Module):
    """As models write it."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)
        self.variance_epsilon = eps

    def forward(self, hidden_states: Any) -> Any:
        dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(dtype)


def rotated(x: Any) -> Any:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class Attention(nn.Module):
    def __init__(self, size: int, heads: int, groups: int) -> None:
        super().__init__()
        self.head_dim = size // heads
        self.repeats = heads // groups
        self.q_proj = nn.Linear(size, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(size, groups * self.head_dim, bias=False)
        self.v_proj = nn.Linear(size, groups * self.head_dim, bias=False)
        self.o_proj = nn.Linear(size, size, bias=False)

    def forward(self, x: Any, cos: Any, sin: Any) -> tuple[Any, None]:
        shape = (*x.shape[:-1], -1, self.head_dim)
        q = self.q_proj(x).view(shape).transpose(1, 2)
        k = self.k_proj(x).view(shape).transpose(1, 2)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        q, k = q * cos + rotated(q) * sin, k * cos + rotated(k) * sin
        k = k.repeat_interleave(self.repeats, dim=1)
        v = v.repeat_interleave(self.repeats, dim=1)
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        shares = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        found = (shares @ v).transpose(1, 2).reshape(*x.shape[:-1], -1).contiguous()
        return self.o_proj(found), None


class MLP(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: Any) -> Any:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention(16, 4, 2)
        self.mlp = MLP(16, 24)
        self.input_layernorm = RMSNorm(16)
        self.post_attention_layernorm = RMSNorm(16)

    def forward(self, x: Any, *, position_embeddings: tuple[Any, Any]) -> tuple[Any]:
        cos, sin = position_embeddings
        attended, _ = self.self_attn(self.input_layernorm(x), cos, sin)
        x = x + attended
        return (x + self.mlp(self.post_attention_layernorm(x)),)


class SelfAttention(nn.Module):
    def __init__(self, *, need_weights: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 4, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Any, keys: Any = None, mask: Any = None) -> Any:
        return self.inner(
            *(x, x, x, keys), need_weights=self.need_weights, attn_mask=mask
        )


class Hinted(nn.Module):
    """Attention that is told that its mask is the causal one."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 4, **options)

    def forward(self, x: Any, mask: Any) -> Any:
        return self.inner(
            *(x, x, x), attn_mask=mask, is_causal=True, need_weights=False
        )


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16, bias=False)
        self.b = nn.Linear(16, 16, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Any) -> Any:
        return self.b(torch.relu(self.a(x)))


class Doubled(nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight * 2


def parametrized() -> nn.Module:
    layer = nn.Linear(16, 4)
    parametrize.register_parametrization(layer, "weight", Doubled())
    return layer


def hooked() -> nn.Module:
    layer = nn.Linear(16, 4)
    layer.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    layer.register_forward_hook(lambda _, args, result: result * 2 + args[0][..., :4])
    return layer


class Holding(nn.Module):
    """Layers and parameters behind functions in attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"a": nn.Linear(16, 8), "b": nn.Linear(8, 16)})
        self.scale = nn.Parameter(torch.full((16,), 0.5))
        layers, scale = self.layers, self.scale
        self.closure = lambda x: layers["b"](torch.relu(layers.a(x)))  # type: ignore[operator]
        self.default = lambda x, by=scale: x * by
        self.named = {"of": lambda x, *, by=scale: x + by}
        self.partial = functools.partial(F.linear, weight=self.layers["a"].weight)
        self.inner = lambda x: self.closure(self.default(x))

    def forward(self, x: Any) -> Any:
        return self.named["of"](self.inner(x)), self.partial(x)


def hooked_by_its_layers() -> nn.Module:
    module = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    down, up = nn.Linear(16, 2), nn.Linear(2, 16)
    module[0].add_module("down", down)
    module[0].add_module("up", up)
    module[0].register_forward_hook(lambda _, args, out: out + up(down(args[0])))
    return module


X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))
COS, SIN = torch.cos(X[0, :, :4]), torch.sin(X[0, :, :4])
causal = nn.Transformer.generate_square_subsequent_mask
PADDED = torch.zeros(2, 6)
PADDED[0, 4:] = float("-inf")

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], dict[str, Any]]] = {
    "linear": (lambda: nn.Linear(16, 4), (X,), {}),
    "linear by keyword": (lambda: nn.Linear(16, 4), (), {"input": X}),
    "norm and linear": (
        lambda: nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 4)),
        (X,),
        {},
    ),
    "rms norm": (lambda: RMSNorm(16), (X,), {}),
    "its rms norm": (lambda: nn.RMSNorm(16), (X,), {}),
    "group norm": (lambda: nn.GroupNorm(2, 6), (X,), {}),
    "batch norm": (lambda: nn.BatchNorm1d(6), (X,), {}),
    "mlp": (lambda: MLP(16, 24), (X,), {}),
    "decoder": (DecoderLayer, (X,), {"position_embeddings": (COS, SIN)}),
    "attention": (lambda: SelfAttention(need_weights=False), (X,), {}),
    "weights": (lambda: SelfAttention(need_weights=True), (X,), {}),
    "padded": (lambda: SelfAttention(need_weights=False), (X, PADDED), {}),
    "padded truths": (lambda: SelfAttention(need_weights=True), (X, PADDED < 0), {}),
    "masked": (
        lambda: SelfAttention(need_weights=False),
        (X, None, torch.randn(6, 6)),
        {},
    ),
    "unbatched": (lambda: SelfAttention(need_weights=True), (X[0],), {}),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
        (X,),
        {},
    ),
    "encoder, norms first": (
        lambda: nn.TransformerEncoderLayer(
            16, 4, 32, batch_first=True, norm_first=True, activation="gelu"
        ),
        (X,),
        {},
    ),
    "hint, joined key": (lambda: Hinted(add_bias_kv=True), (X, causal(2)), {}),
    "hint, key of zeros": (lambda: Hinted(add_zero_attn=True), (X, causal(2)), {}),
    "encoder, masked": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2
        ),
        (X, causal(6)),
        {},
    ),
    "transformer, masked": (
        lambda: nn.Transformer(16, 4, 1, 1, 32, batch_first=True),
        (X, X + 1, None, causal(6)),
        {},
    ),
    "dropout in eval mode": (
        lambda: nn.Sequential(nn.Linear(16, 4), nn.Dropout(0.5)),
        (X,),
        {},
    ),
    "tied": (Tied, (X,), {}),
    "parametrized": (parametrized, (X,), {}),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(16, 4)), (X,), {}),
    "spectral norm": (
        lambda: parametrizations.spectral_norm(nn.Linear(16, 4)),
        (X,),
        {},
    ),
    "hooks": (hooked, (X,), {}),
    "functions in attributes": (Holding, (X,), {}),
    "hooks that hold layers": (hooked_by_its_layers, (X,), {}),
    "a copy": (lambda: copy.deepcopy(MLP(16, 24)), (X,), {}),
}


def assert_like(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        for mine, right in zip(found, expected, strict=True):
            assert_like(mine, right)
    elif expected is not None:
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_modules_do_as_in_eager_mode(name: str) -> None:
    make, args, kwargs = MODULES[name]
    module = make().eval()
    held = {n: (t, t.clone()) for n, t in module.state_dict(keep_vars=True).items()}
    attributes = {n: dict(vars(m)) for n, m in module.named_modules()}
    expected = module(*args, **kwargs)
    kernel = mirage.kernel(effort="none")(module)
    for _ in range(2):
        assert_like(kernel(*args, **kwargs), expected)
    bound = kernel.bind(*args, **kwargs)
    tensors = [*bound_tensors(args, kwargs), *unique(module)]
    executable = TritonExecutable(bound.mugraph, interpret=True)
    outputs = bound.trace.rebuild(executable(*tensors))
    assert_like(outputs, expected)
    # All is as it was.
    for n, t in module.state_dict(keep_vars=True).items():
        assert t is held[n][0]
        assert torch.equal(t, held[n][1])
    assert attributes == {n: dict(vars(m)) for n, m in module.named_modules()}


def bound_tensors(args: Any, kwargs: Any) -> list[Any]:
    flat: list[Any] = []
    for value in (*args, *kwargs.values()):
        flat += value if isinstance(value, tuple) else [value]
    return [t for t in flat if t is not None]


def unique(module: nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers in the order of kernels, which is that of modules."""
    found: dict[int, torch.Tensor] = {}
    for layer in module.modules():
        own = (*layer._parameters.values(), *layer._buffers.values())
        found.update({id(t): t for t in own if t is not None})
    return list(found.values())


def test_names_of_parameters_are_those_of_the_module() -> None:
    program = mirage.kernel(nn.Sequential(nn.LayerNorm(16), Tied())).trace(X)
    names = [i.name for i in program.inputs]
    assert names == ["input", "x0_weight", "x0_bias", "x1_a_weight"]
    assert [i.name for i in mirage.kernel(MLP(16, 8)).trace(X).inputs] == [
        *("x", "gate_proj_weight", "up_proj_weight", "down_proj_weight"),
    ]


def test_what_functions_in_attributes_hold_is_watched() -> None:
    module = Holding().eval()
    kernel = mirage.kernel(effort="none")(module)
    assert_like(kernel(X), module(X))
    with torch.no_grad():
        module.scale.mul_(3)
        assert_like(kernel(X), module(X))
        module.layers["a"].weight.add_(1)
        assert_like(kernel(X), module(X))
        by = 2.0
        module.default = lambda x: x * by
        assert_like(kernel(X), module(X))
        by = 3.0
        assert_like(kernel(X), module(X))
        module.partial = functools.partial(torch.add, other=module.scale)
        assert_like(kernel(X), module(X))


class InClass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.scale = 2.0

    @mirage.kernel(effort="none")
    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.scale


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = InClass(), InClass()

    def forward(self, x: Any) -> Any:
        return self.a(x) - self.b(x)


def by_hand(layer: InClass, x: Any) -> Any:
    return F.linear(x, layer.inner.weight, layer.inner.bias) * layer.scale


def test_a_method_in_the_class() -> None:
    layer = InClass()
    assert_like(layer(X), by_hand(layer, X))
    other = copy.deepcopy(layer)
    other.inner.weight.mul_(3)
    assert_like(other(X), by_hand(other, X))
    assert_like(layer(X), by_hand(layer, X))
    outer = Outer()
    for run in (outer, mirage.kernel(effort="none")(outer)):
        assert_like(run(X), by_hand(outer.a, X) - by_hand(outer.b, X))
    assert isinstance(outer.a.inner.weight, nn.Parameter)
    assert "_Method" in type(outer.a.forward).__name__


def test_a_bound_method() -> None:
    layer = nn.Linear(16, 4)
    kernel = mirage.kernel(effort="none")(layer.forward)
    assert_like(kernel(X), layer(X))


class Holds(nn.Module):
    """Has kernels of a part, of a method of a part, and of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        options = mirage.kernel(effort="none")
        self.whole, self.method = options(self.inner), options(self.inner.forward)
        self.own = options(self)

    def forward(self, x: Any) -> Any:
        return self.inner(x) * 2


def again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("copied", [copy.deepcopy, again])
def test_a_copy_has_kernels_of_its_own_parts(copied: Callable[[Any], Any]) -> None:
    layer = Holds()
    for kernel in (layer.whole, layer.method, layer.own):
        kernel(X)
    other = copied(layer)
    other.inner.weight.mul_(3)
    for held in (layer, other):
        assert_like(held.whole(X), held.inner(X))
        assert_like(held.method(X), held.inner(X))
        assert_like(held.own(X), held(X))
    kernel = copied(layer.whole)
    assert kernel.options.effort == "none"
    layer.inner.weight.mul_(5)
    assert_like(kernel(X), kernel.function.module(X))
    assert kernel.function.module is not layer.inner


class Calls(Holds):
    """Calls the kernels of its part."""

    def forward(self, x: Any) -> Any:
        return self.whole(x) + self.method(x) * self.inner(x)


def test_kernels_of_layers_within_a_kernel() -> None:
    layer = nn.Sequential(Calls(), nn.Linear(16, 4))
    other = copy.deepcopy(layer)
    layer[1].forward = mirage.kernel(effort="none")(layer[1].forward)
    kernel = mirage.kernel(effort="none")(layer)
    for _ in range(2):
        assert_like(kernel(X), other(X))
        for one in (layer, other):
            one[0].get_parameter("inner.weight").mul_(2)


class Several(nn.Module):
    """Has several methods that are kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    @mirage.kernel(effort="none")
    def forward(self, x: Any) -> Any:
        return self.inner(x)

    @mirage.kernel(effort="none")
    def other(self, x: Any) -> Any:
        return self.inner(x) * 2


@pytest.mark.parametrize("copied", [copy.deepcopy, again])
def test_a_copy_has_several_kernels(copied: Callable[[Any], Any]) -> None:
    layer = Several()
    layer(X)
    layer.other(X)
    other = copied(layer)
    other.inner.weight.mul_(3)
    for held in (layer, other):
        assert_like(held(X), held.inner(X))
        assert_like(held.other(X), held.inner(X) * 2)


class Listed(nn.Module):
    """Finds its layers in a container that PyTorch does not know."""

    def __init__(self, held: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.empty = nn.Sequential()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.held = held(self.first, self.second)

    def forward(self, x: Any) -> Any:
        held = self.held.values() if isinstance(self.held, dict) else self.held
        for item in held:
            layer = item[1] if isinstance(item, tuple) else item
            x = x @ layer if isinstance(layer, torch.Tensor) else layer(x)
        return self.empty(x)


HELD: dict[str, Callable[[Any, Any], Any]] = {
    "a list": lambda a, b: [b, a],
    "a tuple": lambda a, b: (b, a, b),
    "a dict": lambda a, b: {"b": b, "a": a},
    "pairs": lambda a, b: [("b", b), ("a", a)],
    "methods": lambda a, b: [b.forward, torch.relu, a.forward],
    "parameters": lambda a, b: ((0, b.weight), (1, a.weight)),
}


@pytest.mark.parametrize("held", HELD)
def test_layers_in_containers_are_the_copies(held: str) -> None:
    layer = Listed(HELD[held])
    kernel = mirage.kernel(effort="none")(layer)
    assert_like(kernel(X), layer(X))
    layer.first.weight.mul_(3)
    assert_like(kernel(X), layer(X))
    layer.held = HELD[held](layer.second, layer.first)
    assert_like(kernel(X), layer(X))
    if isinstance(layer.held, list):
        layer.held.pop()
        assert_like(kernel(X), layer(X))


class Scaled:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, x: Any) -> Any:
        return x * self.scale

    def half(self, x: Any) -> Any:
        return x * (self.scale / 2)


@pytest.mark.parametrize("copied", [copy.deepcopy, again])
def test_a_copy_has_kernels_of_its_own_objects(copied: Callable[[Any], Any]) -> None:
    scaled = Scaled(4.0)
    held = scaled, mirage.kernel(scaled), mirage.kernel(scaled.half)
    other, called, half = copied(held)
    other.scale = 10.0
    assert_like(called(X), X * 10)
    assert_like(half(X), X * 5)
    assert_like(held[1](X), X * 4)
    assert_like(held[2](X), X * 2)


def test_what_is_changed_is_seen() -> None:
    layer = InClass()
    kernel = mirage.kernel(effort="none")(Outer())
    kernel.function.module.b = layer

    def check() -> None:
        outer = kernel.function.module
        for _ in range(2):
            assert_like(layer(X), by_hand(layer, X))
            assert_like(kernel(X), by_hand(outer.a, X) - by_hand(outer.b, X))

    check()
    layer.inner.weight.mul_(2)
    check()
    layer.inner.weight.data = torch.randn(16, 16)
    check()
    layer.inner.weight = nn.Parameter(torch.randn(16, 16))
    check()
    layer.inner = nn.Linear(16, 16)
    check()
    layer.inner.bias = None
    check()
    layer.scale = 5.0
    check()
    layer.inner.bias = nn.Parameter(torch.randn(16))
    check()
    layer.load_state_dict(InClass().state_dict())
    check()
    layer.inner.weight = kernel.function.module.a.inner.weight
    check()


class Plain(nn.Module):
    """Tensors in attributes that are neither parameters nor buffers."""

    def __init__(self, *, holds: bool = True) -> None:
        super().__init__()
        self.angles = torch.polar(torch.ones(8), torch.linspace(0, 1, 8))
        self.causal: Any = torch.ones(16, 16).tril() == 1
        self.unread: Any = torch.ones(3, device="meta")
        if holds:
            self.scale = nn.Parameter(torch.randn(16))

    def forward(self, x: Any) -> Any:
        pairs = torch.view_as_complex(x.reshape(-1, 8, 2)) * self.angles
        turned = torch.view_as_real(pairs).flatten(1)
        scores = turned @ turned.T
        if self.causal is not None:
            scores = scores.masked_fill(~self.causal, 0.0)
        return scores


@pytest.mark.parametrize("holds", [True, False])
def test_attributes_that_are_tensors_are_arguments(holds: bool) -> None:
    module = Plain(holds=holds)
    kernel = mirage.kernel(effort="none")(module)
    x = torch.randn(16, 16)

    def check(traces: int) -> None:
        for _ in range(2):
            assert_like(kernel(x), module(x))
        assert len(kernel._bound) == traces

    check(1)
    module.causal = ~module.causal
    check(1)
    module.angles.mul_(2)
    check(1)
    module.causal = module.causal[:1]
    check(2)
    module.causal = None
    check(3)
    module.causal = module.scale.detach()[0] > 9 if holds else torch.tensor(False)
    check(4)
    module.causal = None
    check(4)
    # One of strides, which is read nowhere, is one more argument.
    module.unread = torch.ones(3)
    check(5)
    module.unread = torch.ones(3, device="meta")
    check(5)


class Caching(nn.Module):
    """What it has computed once it keeps by device, and more in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(16))
        self.cache: dict[str, Any] = {}
        self.held = [torch.ones(16), torch.arange(16.0), 3]

    def forward(self, x: Any) -> Any:
        key = str(x.device)
        if key not in self.cache:
            self.cache[key] = self.scale * 2
        return x * self.held[0] + self.held[1] * self.held[2] + self.cache[key]


def test_lists_and_dicts_of_tensors_hold_arguments() -> None:
    module, x = Caching(), torch.randn(4, 16)
    with pytest.raises(TraceError, match="sets cache while it runs"):
        mirage.kernel(effort="none")(module)(x)
    module(x)
    kernel = mirage.kernel(effort="none")(module)

    def check() -> None:
        for _ in range(2):
            assert_like(kernel(x), module(x))

    check()
    module.held[1].mul_(2)
    check()
    module.cache = {str(x.device): torch.zeros(16)}
    check()
    module.held[0] = torch.randn(16)
    check()
    module.held[0], module.held[1] = module.held[1], module.held[0]
    check()
    assert len(kernel._bound) == 1
    assert all(read.watched for read in kernel.reads)
    module.held[2] = 5
    check()
    module.held = [torch.randn(16), *module.held[1:]]
    check()
    module.held.append(torch.ones(3))
    check()
    module.held[0] = module.held[1]
    check()


def test_hooks_of_all_modules_are_seen() -> None:
    layer = nn.Sequential(nn.Linear(16, 4))
    kernel = mirage.kernel(effort="none")(layer)
    assert_like(kernel(X), layer(X))
    for register in (
        lambda: register_module_forward_hook(lambda *given: given[-1] + 1),
        lambda: register_module_forward_pre_hook(lambda _, args: (args[0] * 2,)),
    ):
        hook = register()
        try:
            assert_like(kernel(X), layer(X))
        finally:
            hook.remove()
        assert_like(kernel(X), layer(X))


def test_functional_call_inside() -> None:
    layer = MLP(16, 24)
    kernel = mirage.kernel(effort="none")(
        lambda x, weights: torch.func.functional_call(layer, weights, (x,))
    )
    weights = {n: torch.randn_like(p) for n, p in layer.named_parameters()}
    expected = torch.func.functional_call(layer, weights, (X,))
    assert_like(kernel(X, weights), expected)
    assert all(isinstance(p, nn.Parameter) for p in layer.parameters())


def filled(function: Any) -> Any:
    """A wrapper that fills in what a call leaves out, as libraries of models do."""

    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("scale") is None:
            kwargs["scale"] = self.scale
        return function(self, *args, **kwargs)

    return wrapper


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 4)
        self.scale = 3.0

    @filled
    def forward(self, x: Any, y: Any = None, scale: float | None = None) -> Any:
        assert scale is not None
        found = self.inner(x) * scale
        return found if y is None else found + self.inner(y)


def test_a_wrapper_sees_the_call_as_it_is() -> None:
    layer = Wrapped()
    layer.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, "y": args[0]} if args else kwargs),
        with_kwargs=True,
    )
    kernel = mirage.kernel(effort="none")(layer)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X,), {}),
        ((), {"x": X}),
        ((), {"x": X, "scale": 5.0}),
        ((), {"y": X, "x": X + 1}),
    ]
    for args, kwargs in calls:
        for _ in range(2):
            assert_like(kernel(*args, **kwargs), layer(*args, **kwargs))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.seen = 0, list[Any]()
        self.register_buffer("total", torch.zeros(16))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


class SetsAttribute(Counting):
    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x + self.total


class FillsList(Counting):
    def forward(self, x: Any) -> Any:
        self.seen.append(x)
        return x + self.total


class SetsBuffer(Counting):
    def forward(self, x: Any) -> Any:
        self.total = self.total + x[0, 0]
        return x


class WritesBuffer(Counting):
    def forward(self, x: Any) -> Any:
        self.total += x[0, 0]
        return x


class Counts(Counting):
    def forward(self, x: Any) -> Any:
        self.steps.add_(1)
        return x + self.total


class Fails(Counting):
    def forward(self, x: Any) -> Any:
        self.total = x
        raise ValueError("mine")


WRITING: dict[str, tuple[Callable[[], nn.Module], Any, str]] = {
    "attribute": (SetsAttribute, TraceError, "sets calls while"),
    "list": (FillsList, TraceError, "sets seen while"),
    "buffer": (SetsBuffer, TraceError, "sets buffer"),
    "in place": (WritesBuffer, TraceError, "changes an argument"),
    "counter": (Counts, TraceError, "changes an argument"),
    "error": (Fails, ValueError, "mine"),
    "batch norm": (lambda: nn.BatchNorm1d(6), TraceError, r"statistics in training"),
    "dropout": (lambda: nn.Dropout(0.5), UnsupportedError, "no random numbers"),
    "old weight norm": (
        lambda: nn.utils.weight_norm(nn.Linear(16, 4)),  # pyright: ignore[reportDeprecated]
        TraceError,
        "sets weight",
    ),
    "lazy": (lambda: nn.LazyLinear(3), TraceError, "no shape yet"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", WRITING)
def test_what_a_module_writes_to_itself_is_refused_and_not_done(name: str) -> None:
    make, error, message = WRITING[name]
    module = make().train()
    before = {n: dict(vars(m)) for n, m in module.named_modules()}
    state = {n: repr(t) for n, t in module.state_dict().items()}
    with pytest.raises(error, match=message):
        mirage.kernel(module)(X)
    assert before == {n: dict(vars(m)) for n, m in module.named_modules()}
    assert state == {n: repr(t) for n, t in module.state_dict().items()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_has_no_python_code_is_refused() -> None:
    with pytest.raises(TraceError, match="TorchScript"):
        mirage.kernel(torch.jit.script(nn.Linear(16, 4)))


def test_gradients_are_refused() -> None:
    kernel = mirage.kernel(nn.Linear(16, 4))
    with (
        torch.enable_grad(),
        pytest.raises(UnsupportedError, match=r"weight requires grad.*no_grad"),
    ):
        kernel(X)


def test_other_threads_see_the_module_as_it_is() -> None:
    started, ended = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 4)

        def forward(self, x: Any) -> Any:
            started.set()
            assert ended.wait(20)
            return self.inner(x)

    module = Slow()
    found: list[Any] = []

    def trace() -> None:
        with torch.no_grad():
            found.append(mirage.kernel(effort="none")(module)(X))

    thread = threading.Thread(target=trace)
    expected = module.inner(X)
    thread.start()
    assert started.wait(20)
    assert_like(module.inner(X), expected)
    ended.set()
    thread.join()
    assert_like(found[0], expected)


@dataclass
class Weights:
    w: Any
    scale: float = 1.0
    bias: Any = None


@dataclass(frozen=True)
class Result:
    y: Any
    rest: Any


def test_dataclasses_as_arguments_and_results() -> None:
    def program(x: Any, p: Weights) -> Result:
        y = x @ p.w * p.scale
        return Result(y if p.bias is None else y + p.bias, (x, None))

    kernel = mirage.kernel(effort="none")(program)
    for p in (
        Weights(torch.randn(16, 4)),
        Weights(torch.randn(16, 4), 3.0),
        Weights(torch.randn(16, 4), 3.0, torch.randn(4)),
    ):
        found, expected = kernel(X, p), program(X, p)
        assert type(found) is Result
        assert_like(found.y, expected.y)
        assert found.rest[1] is None


def test_a_layer_made_in_the_function_has_a_message() -> None:
    with pytest.raises(TraceError, match=r"nn.Parameter that is made.*make it outside"):
        mirage.kernel(lambda x: torch.nn.Linear(6, 2)(x))(torch.ones(4, 6))
