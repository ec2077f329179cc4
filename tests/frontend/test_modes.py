"""Modes around a call, and tensors of other classes: refused, or as in eager."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812

import mirage_dsl as mirage
from mirage_dsl.core.errors import TraceError, UnsupportedError
from mirage_dsl.core.modes import in_mode
from tests.programs.modes import Calling, Watching

# Importing forward-mode AD and `torch.jit.trace` warn of themselves.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

X, W = torch.randn(4, 8), torch.randn(8, 4)


def product(x: Any, w: Any) -> Any:
    return x @ w


def within(mode: Callable[[], Any], call: Callable[..., Any]) -> Any:
    with mode():
        return call(X, W)


def faked(call: Callable[..., Any]) -> Any:
    with FakeTensorMode() as mode:
        x = mode.from_tensor(X)
    return call(x, x.T)


def with_dual(call: Callable[..., Any]) -> Any:
    with forward_ad.dual_level():
        return call(forward_ad.make_dual(X, X), W)


MODES: dict[str, tuple[Callable[[Callable[..., Any]], Any], str]] = {
    "make_fx": (lambda k: make_fx(lambda x: k(x, W))(X), "make_fx is tracing"),
    "fake make_fx": (
        lambda k: make_fx(lambda x: k(x, W), tracing_mode="fake")(X),
        "FakeTensor",
    ),
    "jit": (lambda k: torch.jit.trace(lambda x: k(x, W), (X,)), "jit.trace is tracing"),
    "fx": (lambda k: torch.fx.symbolic_trace(lambda x: k(x, W)), r"torch\.fx\.Proxy"),
    "FakeTensorMode": (lambda k: within(FakeTensorMode, k), "FakeTensorMode is active"),
    "fake tensors": (faked, "FakeTensor, which has no data"),
    "vmap": (lambda k: torch.vmap(lambda x: k(x, W))(X[None]), r"func.*\(vmap\)"),
    "grad": (lambda k: torch.func.grad(lambda x: k(x, W).sum())(X), r"\(grad\)"),
    "jvp": (lambda k: torch.func.jvp(lambda x: k(x, W), (X,), (X,)), r"\(jvp\)"),
    "dual": (with_dual, "dual tensor"),
    "dispatch": (lambda k: within(Watching, k), "Watching is active"),
    "functions": (lambda k: within(Calling, k), "Calling is active"),
    "autocast": (
        lambda k: within(lambda: torch.autocast("cpu", torch.bfloat16), k),
        r"autocast to torch\.bfloat16 is on.*enabled=False.*x\.to\(torch\.bfloat16\)",
    ),
}  # fmt: skip
HARMLESS: dict[str, Callable[[], Any]] = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast that is off": lambda: torch.autocast("cpu", enabled=False),
    "autocast elsewhere": lambda: torch.autocast("xpu", torch.bfloat16, enabled=False),
    "a device": lambda: torch.device("cpu"),
    "a dual level": forward_ad.dual_level,
}


@pytest.mark.parametrize("name", MODES)
def test_modes_are_refused_in_one_sentence(name: str) -> None:
    run, message = MODES[name]
    kernel = mirage.kernel(product)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=message) as error:
            run(kernel)
        assert error.value.location is not None
        assert "\n" not in error.value.message
        # A call that was made before does not hide the mode.
        assert torch.allclose(kernel(X, W), X @ W, atol=1e-5)
    with pytest.raises(UnsupportedError, match=message):
        run(kernel.bind(X, W))


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_modes(name: str) -> None:
    found = within(HARMLESS[name], mirage.kernel(product))
    assert torch.allclose(found, X @ W, atol=1e-5)
    assert not in_mode()


def test_autocast_while_tracing() -> None:
    def inside(x: Any, w: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ w

    def off(x: Any, w: Any) -> Any:
        with torch.autocast(device_type=x.device.type, enabled=False):
            return x @ w

    with pytest.raises(UnsupportedError, match="autocast") as error:
        mirage.kernel(inside)(X, W)
    assert error.value.location is not None
    assert "return x @ w" in error.value.location.text
    assert torch.allclose(mirage.kernel(off)(X, W), X @ W, atol=1e-5)


def test_what_pytorch_compares_tells_modes_apart() -> None:
    """The shortest calls leave these modes to PyTorch's comparison of tensors."""
    guards: Any = torch._C._dynamo.guards
    check = guards.TensorGuards(
        X, dynamic_dims_sizes=None, dynamic_dims_strides=None
    ).check
    assert check(X) is True
    seen: list[bool] = []

    def look(x: Any, *_: Any) -> Any:
        seen.append(check(x if type(x) is torch.Tensor else X))
        return x * 1

    torch.jit.trace(look, (X,), check_trace=False)
    torch.vmap(look)(X)
    torch.func.jvp(look, (X,), (X,))
    torch.func.grad(lambda x: look(x).sum())(X)
    within(lambda: torch.autocast("cpu"), lambda *_: seen.append(check(X)))
    assert len(seen) >= 5
    assert not any(seen)
    assert check(X.as_subclass(Plain)) is not True


# -- Classes of tensors -----------------------------------------------------------


class OwnArray(np.ndarray[Any, Any]):
    pass


class Plain(torch.Tensor):
    pass


class Derived(Plain):
    pass


class Other(torch.Tensor):
    pass


class Overriding(torch.Tensor):
    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def several(x: Any, w: Any) -> Any:
    return x * 2, w + 1, x @ w


CLASSES: dict[str, tuple[Any, Any]] = {
    "plain": (X, W),
    "subclass": (X.as_subclass(Plain), W),
    "second": (X, W.as_subclass(Plain)),
    "derived": (X.as_subclass(Plain), W.as_subclass(Derived)),
    "parameter": (torch.nn.Parameter(X, requires_grad=False), W),
    "both": (torch.nn.Parameter(X, requires_grad=False), W.as_subclass(Plain)),
}


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("name", CLASSES)
def test_results_are_of_the_class_that_eager_gives(
    name: str, interpreted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if interpreted:
        monkeypatch.setenv("MIRAGE_DSL_INTERPRET", "1")
    given = CLASSES[name]
    expected = several(*given)
    found = mirage.kernel(effort="none")(several)(*given)
    assert [type(t) for t in found] == [type(t) for t in expected]
    for one, other in zip(found, expected, strict=True):
        plain = [t.as_subclass(torch.Tensor) for t in (one, other)]
        assert torch.allclose(*plain, atol=1e-5)


def test_functions_take_subclasses() -> None:
    found = mirage.softmax(X.as_subclass(Plain))
    assert type(found) is Plain
    assert torch.allclose(found.as_subclass(torch.Tensor), X.softmax(-1), atol=1e-6)


def test_classes_that_a_kernel_would_pass_by_are_refused() -> None:
    kernel = mirage.kernel(product)
    with pytest.raises(UnsupportedError, match=r"Overriding.*as_subclass"):
        kernel(X.as_subclass(Overriding), W)
    with pytest.raises(
        UnsupportedError, match=r"classes (Plain and Other|Other and Pl)"
    ):
        kernel(X.as_subclass(Plain), W.as_subclass(Other))
    with pytest.raises(UnsupportedError, match=r"OwnArray.*np\.asarray"):
        kernel(X.numpy().view(OwnArray), W.numpy())


@mirage.kernel
def decorated(x: Any, w: Any) -> Any:
    return x @ w


def test_copies_and_pickles_still_work() -> None:
    kernel = pickle.loads(pickle.dumps(copy.deepcopy(decorated)))
    assert torch.allclose(kernel(X, W), X @ W, atol=1e-5)


# -- Tensors of one constant ------------------------------------------------------

CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "ones": lambda x: x + x.new_ones(8),
    "zeros": lambda x: x.new_zeros(4, 1) + x,
    "zeros_like": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "wider": lambda x: x * x.new_full((4, 8), 0.5, dtype=torch.float32),
    "rank 0": lambda x: torch.maximum(x, x.new_tensor(0.5)),
    "folded": lambda x: torch.full_like(x, 2.0) * 3 + x.new_ones(x.shape).exp() * x,
    "a mask": lambda x: x.masked_fill(torch.ones_like(x, dtype=torch.bool), 2.0),
    "viewed": lambda x: torch.ones_like(x).view(8, 4).t()[:, 2:3] * x,
    "on its device": lambda x: x + x.new_zeros(8, device=x.device, requires_grad=False),
    "empty": lambda x: x.new_empty(4, 8) * 0 + x,
    "reduced": lambda x: torch.ones_like(x).sum(1, keepdim=True) * x,
    "averaged": lambda x: x * torch.full((8,), -1.0).softmax(0) + torch.ones(()).mean(),
    "infinite": lambda x: x.clamp(max=2) + torch.zeros(8).log().exp(),
    "a kernel": lambda x: F.conv1d(x[:, None].float(), torch.ones(1, 1, 3) / 3),
    "a kernel of one": lambda x: F.conv1d(x[:, None].float(), torch.ones(1, 1, 1) * 2),
    "an image": lambda x: F.conv1d(torch.ones(1, 1, 10), torch.ones(1, 1, 3)) + x,
    "expanded": lambda x: F.max_pool1d(x[:, :1].float().expand(4, 8), 3, 1),
    "pooled": lambda x: x + F.avg_pool1d(torch.ones(1, 1, 16), 2)[0].to(x.dtype),
    "averaged with zeros": lambda x: x + F.avg_pool1d(x.new_ones(1, 4, 8), 3, 1, 1)[0],
    "interpolated": lambda x: x + F.interpolate(x.new_zeros(1, 4, 4), size=8)[0],
    "repeated": lambda x: x + x.new_ones(4).repeat(2) * torch.tile(x.new_ones(4), (2,)),
    "rolled": lambda x: x + x.new_zeros(4, 8).roll(1, 0) + torch.ones(8).flip(0),
    "counted": lambda x: (
        x * torch.zeros(8).scatter_add(0, torch.arange(8) // 2, torch.ones(8))
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", CONSTANTS)
def test_tensors_of_one_constant(name: str, dtype: torch.dtype) -> None:
    x = X.to(dtype)
    found, expected = mirage.kernel(CONSTANTS[name])(x), CONSTANTS[name](x)
    if name == "empty":
        expected = x
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=5e-3)


def test_constants_that_are_no_operands_are_refused() -> None:
    with pytest.raises(TraceError, match="returns a tensor of one constant"):
        mirage.kernel(lambda x: x.new_zeros(3))(X)
    with pytest.raises(UnsupportedError, match="moved to cuda"):
        mirage.kernel(lambda x: x + x.new_zeros(8, device="cuda"))(X)


def test_lazy_negations_are_as_in_eager() -> None:
    z = torch.randn(4, 8, dtype=torch.complex64)
    kernel = mirage.kernel(product)
    lazy = z.conj().imag
    assert lazy.is_neg()
    for call in (kernel, kernel.bind(X, W), kernel.reference):
        for _ in range(2):
            assert torch.allclose(call(lazy, W), lazy @ W, atol=1e-5)
            assert torch.allclose(call(X, W), X @ W, atol=1e-5)
    graph = mirage.new_kernel_graph()
    graph.mark_output(
        graph.matmul(
            graph.new_input(dims=(4, 8), dtype=mirage.float32),
            graph.new_input(dims=(8, 4), dtype=mirage.float32),
        )
    )
    for run in (graph, graph.compile()):
        assert torch.allclose(run(inputs=[lazy, W])[0], lazy @ W, atol=1e-5)


@pytest.mark.parametrize("size", [0, 64])
def test_a_storage_that_is_too_small(size: int) -> None:
    x = X.clone()
    x.untyped_storage().resize_(size)
    kernel = mirage.kernel(product)
    for call in (kernel, kernel.bind(X, W), kernel.reference):
        with pytest.raises(UnsupportedError, match=f"{size} bytes.*need 128"):
            call(x, W)
    with pytest.raises(UnsupportedError, match=r"out= .* need 128"):
        kernel(torch.randn(4, 4), torch.randn(4, 8), out=x)
