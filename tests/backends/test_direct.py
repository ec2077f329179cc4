"""The generated call: what it checks, allocates and passes on, without a GPU."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.autograd import forward_ad

import mirage_dsl as mirage
from mirage_dsl.api import kernel as bound_kernel
from mirage_dsl.api import kernel as kernel_module
from mirage_dsl.backends.base import Direct
from mirage_dsl.backends.triton.lowering.emit import plan
from mirage_dsl.backends.triton.lowering.kernel import Variant
from mirage_dsl.backends.triton.running import direct
from mirage_dsl.backends.triton.running.direct import direct_call
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import compile_kernel
from mirage_dsl.core.errors import CompileError, UnsupportedError
from mirage_dsl.core.types import f16, f32
from mirage_dsl.cost.estimate import launched
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.maps import complete_extents, with_symbolic
from mirage_dsl.ir.text.parser import parse
from tests.backends.driver import Driver
from tests.backends.running import random_inputs
from tests.programs import mugraphs
from tests.programs.modes import Calling, Watching


def tensors(rows: int = 8) -> list[torch.Tensor]:
    shapes = ((rows, 64), (64, 96), (64, 96))
    return [torch.zeros(s, dtype=torch.float16) for s in shapes]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    yield Driver(monkeypatch)
    direct.compiled.cache_clear()


def made(graph: KernelGraph, given: Sequence[torch.Tensor]) -> Direct:
    found = direct_call(plan(graph), given)
    assert found is not None
    return found


GRAPH = mugraphs.gated_mlp(8, 64, 96, tile_n=32, tile_k=16)


def test_one_launch(driver: Driver) -> None:
    given = tensors()
    run = made(GRAPH, given)
    found = run.call(*given)
    assert found is not None
    (out,) = found
    assert (out.shape, out.dtype) == ((8, 96), torch.float16)
    (launch,) = driver.launches
    assert launch == {
        "grid": (3, 1, 1),
        "threads": 256,
        "shared": 1024,
        "stream": 7,
        "early": 0,
        "function": 1,
        "given": [t.data_ptr() for t in (*given, out)],
        "maps": [],
    }
    driver.stream = 8
    others = tensors()
    only = run.first(*others)
    assert only is not None
    assert driver.launches[1]["stream"] == 8
    assert driver.launches[1]["given"] == [t.data_ptr() for t in (*others, only)]


def gated_mlp(x: Any, w1: Any, w2: Any) -> Any:
    return mirage.silu(x @ w1) * (x @ w2)


@pytest.fixture
def on_gpu(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Whatever asks takes the CPU for a GPU."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(bound_kernel, "device_kind", Mock(return_value="cuda"))
    monkeypatch.setattr(TritonExecutable, "_check_place", Mock())
    monkeypatch.setattr(TritonExecutable, "_place", Mock(return_value=nullcontext()))
    return driver


def test_a_second_call_prepares_nothing(
    on_gpu: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = mirage.kernel(mugraph=GRAPH)(gated_mlp)
    x, w1, w2 = tensors()
    turned, place = w1.T.contiguous().T, torch.zeros(8, 4, 96).half()[:, 2]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, w1, w2), {}),
        ((x, turned, w2), {}),
        ((x,), {"w2": w2, "w1": w1}),
        ((x, w1, w2), {"out": place}),
    ]
    for args, kwargs in calls:
        kernel(*args, **kwargs)

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a second call is prepared")

    for owner, name in (
        (mirage.Kernel, "_bind"),
        (bound_kernel.BoundKernel, "run"),
        (bound_kernel.BoundKernel, "prepared"),
        (TritonExecutable, "prepared"),
        (TritonExecutable, "__call__"),
    ):
        monkeypatch.setattr(owner, name, refused)
    for args, kwargs in calls * 2:
        on_gpu.launches.clear()
        out = kernel(*args, **kwargs)
        (launch,) = on_gpu.launches
        weights = (args[1:] or (w1, w2))[0]
        given = [x, weights, w2, out]
        assert launch["given"] == [t.data_ptr() for t in given]
        assert (out is place) == ("out" in kwargs)


def leaked() -> torch.Tensor:
    """What a transform of torch.func has left behind."""
    kept: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x.sum()

    torch.func.grad(keep)(torch.ones(8, 64).half())
    return kept[0]


def freed() -> torch.Tensor:
    found = torch.ones(8, 64).half()
    found.untyped_storage().resize_(0)
    return found


def nested(**options: Any) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(8, 64).half()] * 2, **options)


ODD: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "zeros without memory": (
        lambda: torch._efficientzerotensor(8, 64, dtype=torch.float16),
        "without memory",
    ),
    "freed": (freed, "freed or resized"),
    "sparse": (lambda: torch.eye(8, 64).half().to_sparse(), "sparse_coo"),
    "sparse rows": (lambda: torch.eye(8, 64).half().to_sparse_csr(), "sparse_csr"),
    "mkldnn": (lambda: torch.ones(8, 64).to_mkldnn(), "mkldnn"),
    "nested": (nested, "nested"),
    "jagged": (lambda: nested(layout=torch.jagged), "nested"),
    "of an ended transform": (leaked, "has ended"),
    "functional": (
        lambda: torch._to_functional_tensor(torch.ones(8, 64).half()),
        "functionalize",
    ),
}


def lazily_negated() -> torch.Tensor:
    """A tensor whose memory has the numbers with the other sign."""
    found = torch._neg_view(torch.ones(8, 64).half())
    assert found.is_neg()
    return found


@pytest.mark.filterwarnings("ignore:.*(nested|Sparse CSR)")
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("all_at_once", [True, False])
def test_what_has_no_plain_memory_is_refused_after_a_plain_call(
    on_gpu: Driver, monkeypatch: pytest.MonkeyPatch, name: str, all_at_once: bool
) -> None:
    if not all_at_once:
        monkeypatch.delattr("torch._C._dynamo.guards.TensorGuards")
    make, message = ODD[name]
    kernel = mirage.kernel(mugraph=GRAPH)(gated_mlp)
    x, w1, w2 = tensors()
    bound, place = kernel.bind(x, w1, w2), torch.zeros(8, 96).half()
    executable = TritonExecutable(GRAPH)
    direct = made(GRAPH, (x, w1, w2))
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda t: kernel(t, w1, w2),
        lambda t: kernel(x=t, w2=w2, w1=w1),
        lambda t: kernel(t, w1, w2, out=place),
        lambda t: bound(t, w1, w2),
        lambda t: executable(t, w1, w2),
    ]
    for call in calls:
        call(x)
    on_gpu.launches.clear()
    odd = make()
    assert direct.call(odd, w1, w2) is None
    for call in calls:
        with pytest.raises(UnsupportedError, match=message):
            call(odd)
    with pytest.raises(UnsupportedError, match=message):
        kernel(x, w1, w2, out=odd)
    assert not on_gpu.launches


@pytest.mark.parametrize("all_at_once", [True, False])
def test_a_lazy_negation_is_carried_out(
    on_gpu: Driver, monkeypatch: pytest.MonkeyPatch, all_at_once: bool
) -> None:
    if not all_at_once:
        monkeypatch.delattr("torch._C._dynamo.guards.TensorGuards")
    kernel = mirage.kernel(mugraph=GRAPH)(gated_mlp)
    x, w1, w2 = tensors()
    bound, place = kernel.bind(x, w1, w2), torch.zeros(8, 96).half()
    seen: list[torch.Tensor] = []
    resolve = torch.Tensor.resolve_neg

    def resolved(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(resolve(tensor))
        return seen[-1]

    monkeypatch.setattr(torch.Tensor, "resolve_neg", resolved)
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda t: kernel(t, w1, w2),
        lambda t: kernel(x=t, w2=w2, w1=w1),
        lambda t: kernel(t, w1, w2, out=place),
        lambda t: bound(t, w1, w2),
    ]
    for call in calls:
        for given in (x, lazily_negated(), x, lazily_negated()):
            seen.clear()
            call(given)
            read = on_gpu.launches[-1]["given"][0]
            assert read == (seen[0] if given.is_neg() else given).data_ptr()
            assert not given.is_neg() or (seen[0] == -1).all()
    on_gpu.launches.clear()
    assert made(GRAPH, (x, w1, w2)).call(lazily_negated(), w1, w2) is None
    with pytest.raises(UnsupportedError, match="negated"):
        TritonExecutable(GRAPH)(lazily_negated(), w1, w2)
    with pytest.raises(UnsupportedError, match="negated"):
        kernel(x, w1, w2, out=torch._neg_view(place))
    assert not on_gpu.launches


@dataclasses.dataclass
class Given:
    x: Any
    scale: float


CONTAINERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "dict": (
        lambda x, p: gated_mlp(x, p["w1"], p["w2"]),
        lambda x, w1, w2: (x, {"w1": w1, "w2": w2}),
    ),
    "in another order": (
        lambda p, x: gated_mlp(x, p["w1"], p["w2"]),
        lambda x, w1, w2: ({"w2": w2, "w1": w1}, x),
    ),
    "tuple in a list": (
        lambda x, p: gated_mlp(x, *p[0]),
        lambda x, w1, w2: (x, [(w1, w2)]),
    ),
    "dataclass": (
        lambda g, w1, w2: gated_mlp(g.x, w1, w2),
        lambda x, w1, w2: (Given(x, 2.0), w1, w2),
    ),
    "constants": (
        lambda x, n, w1, name, flag, w2: gated_mlp(x, w1, w2),  # noqa: ARG005
        lambda x, w1, w2: (x, 3, w1, "a", True, w2),
    ),
}


def refuse_preparations(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a second call is prepared")

    for owner, name in (
        (kernel_module, "call_key"),
        (mirage.Kernel, "_bind"),
        (bound_kernel.BoundKernel, "run"),
    ):
        monkeypatch.setattr(owner, name, refused)


@pytest.mark.parametrize("keywords", [False, True])
@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_keep_the_short_call(
    on_gpu: Driver, monkeypatch: pytest.MonkeyPatch, name: str, keywords: bool
) -> None:
    function, make = CONTAINERS[name]
    # As the program names its inputs, whatever they lie in.
    kernel = mirage.kernel(effort="none")(function)
    names = list(inspect.signature(function).parameters)

    def call(*given: torch.Tensor, **more: Any) -> Any:
        args = make(*given)
        if keywords:
            return kernel(**dict(zip(names, args, strict=True)), **more)
        return kernel(*args, **more)

    x, w1, w2 = (torch.randn_like(t) for t in tensors())
    place = torch.zeros(8, 96).half()
    expected = call(x, w1, w2)
    call(x, w1, w2, out=place)
    with monkeypatch.context() as patch:
        refuse_preparations(patch)
        call(x, w1, w2, out=place.zero_())
        assert torch.equal(place, expected)
    call(x, w1, w2)
    with monkeypatch.context() as patch:
        refuse_preparations(patch)
        for given in ((x, w1, w2), (x, w2, w1), (w1.T[:8, :64] * 0 + x, w1, w2)):
            found = call(*(t.contiguous() for t in given))
            torch.testing.assert_close(found, gated_eager(*given), rtol=1e-2, atol=1e-2)
    del on_gpu


def gated_eager(x: Any, w1: Any, w2: Any) -> Any:
    return torch.nn.functional.silu(x @ w1) * (x @ w2)


def test_other_containers_are_prepared_anew(on_gpu: Driver) -> None:
    def scaled(p: Any, factor: Any = 1.0) -> Any:
        values = p.values() if isinstance(p, dict) else p
        first, *rest = values
        return (first - rest[0]) * factor

    kernel = mirage.kernel(effort="none")(scaled)
    x, y = torch.randn(8, 64).half(), torch.randn(8, 64).half()
    calls: list[tuple[Any, ...]] = [
        ({"a": x, "b": y},),
        ({"b": x, "a": y},),
        ({1: x, "b": y},),
        ({True: x, "b": y},),
        ([x, y],),
        ((x, y),),
        ((x, y, x),),
        ((x, y), 2),
        ((x, y), 2.0),
        ((x, y), 0.0),
        ((x, y), -0.0),
        ((x, y), True),
    ]
    for given in [*calls, *reversed(calls), *(c for c in calls for _ in range(2))]:
        found, expected = kernel(*given), scaled(*given)
        assert torch.equal(found, expected)
        assert torch.equal(torch.signbit(found), torch.signbit(expected))
    del on_gpu


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        _, w1, w2 = tensors()
        self.up = torch.nn.Parameter(torch.randn_like(w1))
        self.inner = torch.nn.Linear(64, 96, bias=False).half()
        self.register_buffer("unused", torch.zeros(2, dtype=torch.int64))
        del w2

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.silu(x @ self.up) * self.inner(x)


@torch.no_grad()
def test_modules_keep_the_short_call_and_see_their_parameters(
    on_gpu: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Gated()
    kernel = mirage.kernel(effort="none")(module)
    x = torch.randn(8, 64).half()

    def check(short: bool) -> None:
        with monkeypatch.context() as patch:
            if short:
                refuse_preparations(patch)
            torch.testing.assert_close(kernel(x), module(x), rtol=1e-2, atol=1e-2)

    check(short=False)
    check(short=True)
    module.up.mul_(2)
    check(short=True)
    module.up = torch.nn.Parameter(torch.randn(64, 96).half())
    check(short=True)
    module.up.data = torch.randn(64, 96).half()
    check(short=True)
    module.inner.weight = torch.nn.Parameter(torch.randn(96, 64).half())
    check(short=True)
    module.inner = torch.nn.Linear(64, 96, bias=True).half()
    check(short=False)
    check(short=True)
    module.inner.bias = None
    check(short=False)
    check(short=True)
    module.inner.weight = torch.nn.Parameter(module.up.T)
    check(short=False)
    check(short=True)
    module.inner.register_forward_hook(lambda *given: given[-1] * 2)
    check(short=False)
    del on_gpu


def test_another_mugraph_is_prepared_anew(on_gpu: Driver) -> None:
    kernel = mirage.kernel(mugraph=GRAPH)(gated_mlp)
    given = tensors()
    for _ in range(2):
        kernel(*given)
    bound = kernel.bind(*given)
    bound.use(mugraphs.gated_mlp(8, 64, 96, tile_n=16, tile_k=16))
    for _ in range(2):
        kernel(*given)
    assert [launch["grid"][0] for launch in on_gpu.launches] == [3, 3, 6, 6]


def test_what_a_kernel_reads_is_prepared_anew(on_gpu: Driver) -> None:
    cfg = types.SimpleNamespace(scale=2)

    @mirage.kernel(effort="none")
    def scaled(x: Any) -> Any:
        return x * cfg.scale

    x = torch.ones(8, 64).half()
    for scale in (2, 2, 3, 3, 2):
        cfg.scale = scale
        assert (scaled(x) == scale).all()
    assert not on_gpu.launches


def test_other_tensors_are_left_alone(driver: Driver) -> None:
    given = tensors()
    call = made(GRAPH, given).call
    x, w1, w2 = given
    shifted = torch.zeros(8 * 64 + 1, dtype=torch.float16)[1:].view(8, 64)
    odd: list[tuple[Any, ...]] = [
        (tensors(16)[0], w1, w2),
        (x.float(), w1, w2),
        (x, w1.T.contiguous().T, w2),
        (shifted, w1, w2),
        (x.numpy(), w1, w2),
        (x.clone().requires_grad_(), w1, w2),
    ]
    assert [call(*tensors) for tensors in odd] == [None] * len(odd)
    with torch.no_grad():
        assert call(*odd[-1]) is not None
        assert call(x, torch.nn.Parameter(w1), w2) is not None
    with torch.inference_mode():
        assert call(*given) is not None
    driver.device = 1
    assert call(*given) is None
    driver.device = -1
    driver.observers.append("a profiler")
    assert call(*given) is None
    assert len(driver.launches) == 3


class OwnTensor(torch.Tensor):
    pass


@pytest.mark.parametrize("all_at_once", [True, False])
def test_modes_are_left_to_the_long_way(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, all_at_once: bool
) -> None:
    if not all_at_once:
        monkeypatch.delattr("torch._C._dynamo.guards.TensorGuards")
    given = tensors()
    call = made(GRAPH, given).call
    modes: list[Callable[[], Any]] = [
        Watching,
        Calling,
        forward_ad.dual_level,
        lambda: torch.autocast("cpu", torch.bfloat16),
    ]
    for mode in modes:
        with mode():
            assert call(*given) is None
    own = given[0].as_subclass(OwnTensor)
    assert call(own, *given[1:]) is None
    assert not driver.launches
    assert call(*given) is not None


def test_pytorch_compares_all_tensors_at_once() -> None:
    given = tensors()
    same = direct._comparison(given)
    assert same(*given)
    assert same(*tensors())
    x, w1, w2 = given
    for other in (x.float(), x[:4], x.T, x.numpy(), x.clone().requires_grad_()):
        assert not same(other, w1, w2)
    assert not direct._comparison([x.clone().requires_grad_()])(x)


def test_tensors_are_compared_one_by_one_as_well(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("torch._C._dynamo.guards.TensorGuards")
    assert not direct._comparison(tensors())(*tensors())
    test_other_tensors_are_left_alone(driver)


def attention(**flags: bool) -> KernelGraph:
    return mugraphs.attention(
        2, 64, 256, tile_n=64, splits=2, schedule=Schedule(**flags)
    )


def test_kernels_in_turn_share_one_scratch(driver: Driver) -> None:
    q, k, v = (
        torch.zeros(2, a, b, dtype=torch.float16)
        for a, b in ((64, 64), (64, 256), (256, 64))
    )
    out = made(attention(pdl=True), (q, k, v)).first(q, k, v)
    assert out is not None
    first, second = driver.launches
    assert first["early"] == second["early"] == 6
    between = first["given"][3:]
    assert between == second["given"][:-1]
    assert second["given"][-1] == out.data_ptr()
    scratch, result = driver.sizes
    assert result == out.numel() * out.element_size()
    assert all(0 <= at - between[0] < scratch for at in between)
    assert not any((at - between[0]) % 256 for at in between)


def test_descriptors(driver: Driver) -> None:
    described = mugraphs.gated_mlp(
        8, 64, 96, tile_n=32, tile_k=16, schedule=Schedule(descriptors=True)
    )
    given = tensors()
    call = made(described, given).call
    for one in (given, tensors()):
        assert call(*one) is not None
        maps = driver.launches[-1]["maps"]
        shapes = {m[0]: (m[1], m[2:4], m[4]) for m in maps}
        assert shapes[one[0].data_ptr()] == (6, (64, 8), 128)
        assert shapes[one[2].data_ptr()] == (6, (96, 64), 192)
        assert len(maps) == 3
    # What follows a map: the extents, then the strides.
    assert driver.launches[0]["given"][2:6] == [8, 64, 64, 1]


def test_memory_in_another_order(driver: Driver) -> None:
    x, w1, w2 = tensors()
    turned = w1.T.contiguous().T
    assert made(GRAPH, (x, turned, w2)).call(x, turned, w2) is not None
    assert (1, 64) in [
        (s.get("w1_stride0"), s.get("w1_stride1")) for s in driver.strides
    ]


def views() -> KernelGraph:
    g = KernelBuilder("views", m=6, k=12, n=6)
    x = g.input("x", f16, "m, k")
    part = g.slice(x, dim="k", start=3, stop=10, to="j")
    other = g.rename(x, dims="m", to="n")
    with g.block(grid={"m": 4}) as b:
        p = b.matmul(b.load(x, "m/grid, k"), b.load(other, "n, k"), over="k")
        s = b.mul(p, b.sum(b.load(part, "m/grid, j"), over="j"))
        out = b.store(s, "m/grid, n")
    return g.returns(out).build()


def test_views_are_addresses(driver: Driver) -> None:
    x = torch.zeros(6, 12, dtype=torch.float16)
    out = made(views(), (x,)).first(x)
    assert out is not None
    at = x.data_ptr()
    assert sorted(driver.launches[0]["given"]) == sorted(
        [at, at, at + 6, out.data_ptr()]
    )
    assert [n for s in driver.strides for n in s if n.startswith("unaligned")]


def library() -> KernelGraph:
    g = KernelBuilder("mixed", m=6, k=8, n=16)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    with g.block(grid={"m": 2}) as b:
        first = b.store(b.square(b.load(x, "m/grid, k")), "m/grid, k")
    product = g.matmul(first, w, over="k")
    half = g.slice(product, dim="n", start=8, stop=16, to="j")
    with g.block(grid={"m": 2}) as b:
        last = b.store(b.exp(b.load(half, "m/grid, j")), "m/grid, j")
    with g.block(grid={"m": 2}) as b:
        out = b.store(b.exp(b.load(last, "m/grid, j")), "m/grid, j")
    return g.returns(out).returns(product).build()


def with_positions() -> KernelGraph:
    """The caller sees positions, which are a tensor then."""
    g = KernelBuilder("counted", m=6, k=8)
    x, i = g.input("x", f16, "m, k"), g.index("i", "m")
    with g.block(grid={"m": 2}) as b:
        out = b.store(b.exp(b.load(x, "m/grid, k")), "m/grid, k")
    return g.returns(out).returns(i).build()


def test_kernels_read_views_of_positions(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, positions = [torch.zeros(8, 16).half()], torch.arange(8)
    run = made(mugraphs.positions_in_parts(), given)
    count = Mock(return_value=positions)
    monkeypatch.setattr(torch, "arange", count)
    found = run.call(*given)
    assert found is not None
    count.assert_called_once_with(8, device=given[0].device)
    (launch,) = driver.launches
    assert launch["given"] == [t.data_ptr() for t in (*given, positions, *found)]


def test_library_kernels_between(driver: Driver) -> None:
    x, w = torch.zeros(6, 8).half(), torch.ones(8, 16).half()
    found = made(library(), (x, w)).call(x, w)
    assert found is not None
    out, product = found
    assert product.shape == (6, 16)
    squared, *rest = driver.launches
    assert squared["given"][0] == x.data_ptr()
    assert rest[0]["given"][0] == product.data_ptr() + 16
    assert rest[0]["given"][1] == rest[1]["given"][0]
    assert rest[1]["given"][1] == out.data_ptr()


def test_library_calls_alone(driver: Driver) -> None:
    @mirage.kernel
    def weights(q: Any, k: Any, v: Any) -> Any:
        return mirage.softmax(q @ k, -1) @ v, (q * 2)[1:]

    shapes = (6, 8), (8, 12), (12, 8)
    given = [torch.randn(s).half() for s in shapes]
    graph = weights.trace(*map(mirage.spec, shapes))
    call = made(graph, given).call
    found = call(*given)
    assert found is not None
    right = TritonExecutable(graph, interpret=True)(*given)
    assert all(torch.equal(*pair) for pair in zip(found, right, strict=True))
    assert call(*[t.float() for t in given]) is None
    assert not driver.launches


def test_a_dry_run_does_without_what_pytorch_imports_late() -> None:
    script = """
import sys, torch
from mirage_dsl.backends.triton.lowering.emit import plan
from mirage_dsl.backends.triton.running.direct import run_dry
from tests.backends.test_direct import library, with_positions

given = torch.zeros(6, 8).half(), torch.ones(8, 16).half()
run_dry(plan(library()), given)
run_dry(plan(with_positions()), (torch.zeros(6, 8).half(),))
print("symbolic_shapes" in " ".join(sys.modules))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"


def test_parts_are_stored_into_their_whole(driver: Driver) -> None:
    g = KernelBuilder("joined", m=6, k=16)
    x = g.input("x", f16, "m, k")
    with g.block(grid={"m": 2}) as b:
        t = b.load(x, "m/grid, k")
        parts = [b.store(v, "m/grid, k", dtype=f16) for v in (b.square(t), b.neg(t))]
    whole = g.concat(*parts, dims="k, k", to="j")
    given = torch.zeros(6, 16).half()
    out = made(g.returns(whole).build(), (given,)).first(given)
    assert out is not None
    at = out.data_ptr()
    (launch,) = driver.launches
    assert launch["given"] == [given.data_ptr(), at, at + 32]
    assert len(driver.sizes) == 1


def test_results_in_tensors_of_the_caller(driver: Driver) -> None:
    given = tensors()
    cache = torch.zeros(8, 4, 96).half()
    place = cache[:, 2]
    found = direct_call(plan(GRAPH, Variant(out=True)), (*given, place))
    assert found is not None
    assert found.count == 4
    assert found.first(*given, place) is place
    (launch,) = driver.launches
    assert launch["given"] == [t.data_ptr() for t in (*given, place)]
    (strides,) = driver.strides
    assert (strides["y_stride0"], strides["y_stride1"]) == (384, 1)
    assert not driver.sizes
    assert found.call(*given, cache[0]) is None


def test_results_where_inputs_lie_are_other_calls(driver: Driver) -> None:
    x, w, v = tensors(96)[:1] + [torch.zeros(64, 64).half() for _ in range(2)]
    graph = mugraphs.gated_mlp(96, 64, 64, tile_n=32, tile_k=16)
    place = torch.zeros(96, 64).half()
    apart = direct_call(plan(graph, Variant(out=True)), (x, w, v, place))
    assert apart is not None
    assert apart.first(x, w, v, place) is place
    assert apart.call(x, w, v, x) is None
    whole = torch.zeros(192, 64).half()
    assert apart.call(whole[:96], w, v, whole[95:191]) is None
    assert apart.call(whole[95:191], w, v, whole[:96]) is None
    assert apart.call(whole[:96], w, v, whole[96:]) is not None
    within = direct_call(plan(graph, Variant(out=True)), (x, w, v, x))
    assert within is not None
    assert within.first(x, w, v, x) is x
    assert within.call(x, w, v, place) is None
    assert driver.launches


def test_results_that_are_copied(driver: Driver) -> None:
    x, w = torch.zeros(6, 8).half(), torch.ones(8, 16).half()
    outs = torch.zeros(6, 8).half(), torch.zeros(6, 16).half()
    found = direct_call(plan(library(), Variant(out=True)), (x, w, *outs))
    assert found is not None
    returned = found.call(x, w, *outs)
    assert returned is not None
    assert all(a is b for a, b in zip(returned, outs, strict=True))
    assert driver.launches[-1]["given"][-1] == outs[0].data_ptr()
    # The library's product has memory of its own; it is copied at the end.
    assert driver.launches[1]["given"][0] != outs[1].data_ptr() + 16


def test_a_thread_without_a_context_gets_one(driver: Driver) -> None:
    given = tensors()
    run = made(GRAPH, given)
    driver.attached = False
    assert run.call(*given) is not None
    assert driver.attached
    assert len(driver.launches) == 1


def test_a_launch_that_fails_says_so(driver: Driver) -> None:
    given = tensors()
    run = made(GRAPH, given)
    driver.status = 701
    with pytest.raises(CompileError, match=r"kernel0 does not start: CUDA error 701"):
        run.call(*given)


def test_kernels_of_another_form_are_left_to_triton(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    del driver
    given = tensors()
    monkeypatch.setattr(direct, "SCRATCH", 3)
    monkeypatch.setattr(direct, "SCRATCH", 3)
    assert direct_call(plan(GRAPH), given) is None


def test_without_the_compiled_module_triton_launches(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    del driver
    monkeypatch.setattr(direct, "_driver", lambda: None)
    direct.compiled.cache_clear()
    assert direct_call(plan(GRAPH), tensors()) is None


@pytest.mark.parametrize("descriptors", [False, True])
def test_the_installed_triton_takes_these_parameters(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, descriptors: bool
) -> None:
    """Compiled for real; only loading it is made up."""
    loaded: list[Any] = []

    def real(*args: Any, **options: Any) -> Any:
        compiled = compile_kernel(*args, **options)
        loaded.append(compiled)
        driver.parameters.append(sizes_in(compiled.asm["ptx"]))

        class Loaded:
            run, function = None, len(driver.parameters)
            metadata, asm = compiled.metadata, compiled.asm

        return Loaded()

    monkeypatch.setattr(direct, "compile_kernel", real)
    schedule = Schedule(descriptors=descriptors, pdl=True)
    graph = mugraphs.gated_mlp(8, 64, 96, tile_n=32, tile_k=16, schedule=schedule)
    given = tensors()
    out = made(graph, given).first(*given)
    assert out is not None
    (launch,) = driver.launches
    assert len(launch["maps"]) == 3 * descriptors
    ptx = str(loaded[0].asm["ptx"])
    first_access = re.search(r"\b(ld\.global|cp\.async|st\.global)", ptx)
    assert first_access is not None
    assert ptx.index("griddepcontrol.wait") < first_access.start()


def sizes_in(ptx: str) -> list[int]:
    """Sizes of a kernel's parameters, read line by line."""
    head = ptx[ptx.index(".entry") :]
    found: list[int] = []
    for line in head[: head.index(")")].splitlines()[1:]:
        array = re.search(r"\[(\d+)\]", line)
        bits = re.search(r"\.[ub](8|32|64)\b", line)
        if bits:
            found.append(int(array[1]) if array else int(bits[1]) // 8)
    return found


def test_launches_of_nothing_are_left_out(driver: Driver) -> None:
    given = tensors()
    bound = direct.bind(plan(GRAPH), given)
    assert bound is not None
    (launch,) = bound.launches
    empty = dataclasses.replace(launch, grid=(0, 3))
    start = direct.launcher([empty], -1, len(bound.roots))
    start(7, *range(len(bound.roots)))
    assert not driver.launches


def growing() -> tuple[KernelGraph, dict[str, int]]:
    """Attention between whose parts the keys, of a symbolic number, are split."""
    graph = mugraphs.attention(2, 64, 256, tile_n=64, splits=2)
    complete = complete_extents(graph, graph.extent_of)
    return with_symbolic(graph, {"n"}), {n: e for n, e in complete.extents if e}


FLATTENED = parse("""mirage 1

mugraph flattened(x: f16[m, k]) -> f16[m, k] where m = 8, k = 32, i = 16, o = 2 {
  parts: f16[m, o, i] = unflatten x dim(k) gives(o, i)
  stored = block grid(m / 4) {
    tile: f16[m/grid, o, i] = load parts
    t1 = exp tile
    store stored: f16[m/grid, o, i] = t1
  }
  y: f16[m, k] = flatten stored of(o, i) to(k)
  return y
}
""")
"""The result is a view of what a kernel stores."""

EVERY: dict[str, tuple[KernelGraph, dict[str, int]]] = {
    "flattened": (FLATTENED, {}),
    "symbolic parts": growing(),
    "library": (library(), {}),
    "views": (views(), {}),
    "early": (attention(pdl=True), {}),
    "descriptors": (attention(descriptors=True, pdl=True), {}),
}


@pytest.mark.parametrize("out", [False, True], ids=["new", "out"])
@pytest.mark.parametrize("name", EVERY)
def test_every_name_of_a_generated_call_is_defined(
    name: str, out: bool, driver: Driver
) -> None:
    graph, most = EVERY[name]
    made = plan(graph, Variant(out=out), most=most)
    inputs = random_inputs(graph, **most)
    outputs = TritonExecutable(graph, interpret=True, most=most)(*inputs) if out else []
    given = (*inputs, *outputs)
    found = direct_call(made, given)
    assert found is not None
    assert found.call(*given) is not None
    assert len(driver.launches) == len(made.kernels)


# -- Concatenations in tensors that others made ----------------------------------------


def joined(*, nested: bool) -> KernelGraph:
    """A part that a kernel stores between two that are copied, maybe within another."""
    g = KernelBuilder("joined", m=8, k=16, n=8)
    x, y = g.input("x", f16, "k, m"), g.input("y", f16, "n, m")
    with g.block(grid={"k": 2}) as b:
        load = b.load(x, "k/grid, m")
        part = b.store(b.square(load), "k/grid, m", dtype=f16)
    whole = g.concat(y, part, y, dims="n, k, n", to="j")
    if nested:
        with g.block(grid={"k": 2}) as b:
            load = b.load(x, "k/grid, m")
            other = b.store(b.neg(load), "k/grid, m", dtype=f16)
        whole = g.concat(other, whole, dims="k, j", to="p")
    return g.returns(whole).build()


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("begin", [0, 8])
def test_parts_are_copied_into_a_tensor_of_the_caller(begin: int) -> None:
    x, y = torch.ones(16, 8).half(), torch.arange(64.0).reshape(8, 8).half()
    memory = torch.zeros(32 + begin, 8).half()
    out = memory[begin:]
    found = direct_call(plan(joined(nested=False), Variant(out=True)), [x, y, out])
    assert found is not None
    (result,) = found.call(x, y, out)
    assert result is out
    # Kernels are not launched here: what they would store is what it was.
    assert torch.equal(out, torch.cat([y, torch.zeros(16, 8).half(), y]))
    assert not memory[:begin].any()


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("out", [False, True])
def test_parts_of_a_part_are_left_to_the_long_way(out: bool) -> None:
    tensors = [torch.ones(16, 8).half(), torch.ones(8, 8).half()]
    given = [*tensors, *([torch.zeros(48, 8).half()] if out else [])]
    assert direct_call(plan(joined(nested=True), Variant(out=out)), given) is None


# -- Views in one step -----------------------------------------------------------------


def heads(x: Any, w: Any) -> Any:
    """Attention without a softmax, of three parts of one product."""
    q, k, v = (x @ w).view(2, 5, 3, 4, 8).permute(2, 0, 3, 1, 4)
    made = torch.relu(q @ k.transpose(-1, -2)) @ v
    return made.transpose(1, 2).reshape(2, 5, 32)


def steps(x: Any, w: Any) -> Any:
    """A recurrent cell, whose steps are parts of a tensor."""
    state, made = torch.zeros_like(x[0]), []
    for step in range(3):
        state = torch.tanh(torch.cat((x[step], state), 1) @ w)
        made.append(state)
    return torch.stack(made)


def windows(x: Any, w: Any) -> Any:
    """Parts of planes, which are rows, and planes again."""
    parts = x.view(2, 2, 3, 2, 3, 4).transpose(2, 3).reshape(2, 4, 9, 4)
    mixed = torch.relu(torch.einsum("bpic,ji->bpjc", parts, w))
    return mixed.view(2, 2, 2, 3, 3, 4).transpose(2, 3).reshape(2, 6, 6, 4)


def chosen(x: Any, w: Any) -> Any:
    """Numbers beside tensors, and a tensor of one number."""
    padded = torch.nn.functional.pad(x, (1, 2)) @ w
    return torch.where(padded > 0.5, padded, -1.0) + torch.where(padded > 0, 2.0, 3.0)


@pytest.mark.usefixtures("driver")
def test_numbers_that_become_tensors_are_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    specs = (mirage.spec(s, "float32") for s in ((4, 5), (8, 3)))
    graph = mirage.kernel(chosen).trace(*specs)
    given = [torch.randn(4, 5), torch.randn(8, 3)]
    run = made(graph, given)
    filled: list[Any] = []
    full = torch.full

    def counted(shape: Any, *more: Any, **options: Any) -> Any:
        filled.append(shape)
        return full(shape, *more, **options)

    monkeypatch.setattr(torch, "full", counted)
    for _ in range(2):
        given = [torch.randn(4, 5), torch.randn(8, 3)]
        (found,) = run.call(*given) or [None]
        torch.testing.assert_close(found, chosen(*given))
    # What is padded with, and not the numbers of which something is chosen.
    assert () not in filled
    assert len(filled) <= 4


VIEWED = {
    "heads": (heads, ((2, 5, 16), (16, 96)), 7),
    "steps": (steps, ((3, 4, 6), (12, 6)), 8),
    "windows": (windows, ((2, 6, 6, 4), (9, 9)), 4),
}


@pytest.mark.parametrize("name", VIEWED)
def test_what_is_seen_of_a_tensor_is_one_view(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    del driver
    function, shapes, most = VIEWED[name]
    seen: list[tuple[Any, ...]] = []
    view = direct._reinterpret()

    def counted(*given: Any) -> Any:
        seen.append(given)
        return view(*given)

    monkeypatch.setattr(direct, "_reinterpret", lambda: counted)
    graph = mirage.kernel(function).trace(*(mirage.spec(s, "float32") for s in shapes))
    given = [torch.randn(s) for s in shapes]
    run = made(graph, given)
    for _ in range(2):
        given = [torch.randn(s) for s in shapes]
        seen.clear()
        (found,) = run.call(*given) or [None]
        torch.testing.assert_close(found, function(*given))
        assert 0 < len(seen) <= most
        assert len({(id(g[0]), *g[1:]) for g in seen}) == len(seen)


def test_a_view_without_pytorchs_shortest_way() -> None:
    x = torch.arange(24.0).reshape(4, 6)[1:]
    guards = types.SimpleNamespace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._C._dynamo, "guards", guards)
        plain = direct._reinterpret()
    for view in (plain, direct._reinterpret()):
        assert torch.equal(view(x, (3, 2), (1, 6), 2), x[:2, 2:5].T)


@pytest.mark.usefixtures("driver")
def test_what_the_caller_has_twice_keeps_its_own_views() -> None:
    """A change of the one is known to the other, as in eager."""

    def turned(x: Any) -> Any:
        y = torch.exp(x)
        return x.T, y, y.T

    x = torch.randn(3, 4)
    run = made(mirage.kernel(turned).trace(mirage.spec((3, 4), "float32")), [x])
    of_x, y, of_y = run.call(x) or [None] * 3
    assert (of_x._base is x, of_y._base is y) == (True, True)
    y.add_(1)
    assert of_y._version == y._version == 1


def single(x: Any) -> Any:
    return torch.tanh(x[1]) + x[2]


def returned(x: Any) -> Any:
    """The caller may change these, and not what they were made of."""
    return x[:1].sum(0), x[1:2].amax(0).T


@pytest.mark.parametrize(("function", "kernels"), [(single, 2), (returned, 2)])
def test_the_only_element_of_a_reduction_is_a_view(
    driver: Driver, function: Callable[..., Any], kernels: int
) -> None:
    del driver
    graph = mirage.kernel(function).trace(mirage.spec((3, 4, 4), "float32"))
    assert len(launched(graph)) == kernels
    x = torch.randn(3, 4, 4)
    found = made(graph, [x]).call(x)
    assert found is not None
    wanted = function(x)
    for own, other in zip(found, wanted if len(found) > 1 else [wanted], strict=True):
        torch.testing.assert_close(own, other)
        assert own.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_what_a_kernel_reads_of_one_element_is_aligned(driver: Driver) -> None:
    """It is compiled for that: `x[1]` lies where it lies, and is no multiple of 16."""
    g = KernelBuilder("row", t=3, n=5)
    x = g.input("x", f32, "t, n")
    part = g.slice(x, dim="t", start=1, stop=2, to="u")
    row = g.sum(part, over="u")
    with g.block(grid={"n": 5}) as b:
        y = b.store(b.exp(b.load(row, "n/grid")), "n/grid", dtype=f32)
    graph = g.returns(y).build()
    given = [torch.randn(3, 5)]
    run = made(graph, given)
    assert run.call(*given) is not None
    (launch,) = driver.launches
    assert not any(address % 16 for address in launch["given"])
