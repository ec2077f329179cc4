"""What a kernel cannot be called in, or with: what watches or changes PyTorch's calls.

A kernel is one call that PyTorch does not see.  Modes and tensors that record what is
called, or compute something else beside it, would go on as if nothing had happened.
"""

# PyTorch's inner functions are untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false
# pyright: reportUnknownLambdaType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

_NO_FUNCTION_MODES = ("DeviceContext",)
"""Function modes that say where new tensors are made, which a kernel decides itself."""

NESTED = (
    "{0} is nested: its rows have lengths of their own, and a program has one extent "
    "for each axis; call the kernel on each of {1}.unbind(), or on "
    "{1}.to_padded_tensor(0.0)"
)
"""Why a nested tensor is refused: what it is, and its name."""

LAYOUT = "{0} has the layout {2}, expected one with strides; pass {1}.to_dense()"
"""Why a tensor of another layout is refused: what it is, its name, its layout."""


def plain_torch(value: object, torch: Any) -> bool:
    """Whether a value is a tensor or a parameter, and of no class of its own."""
    kind = type(value)
    return kind is torch.Tensor or kind is torch.nn.Parameter


def convolutions_round() -> bool:
    """Whether PyTorch may round f32 operands of convolutions to TF32, as by default."""
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    # Later versions refuse the older question where the newer setting was used.
    setting: Any = getattr(torch.backends.cudnn, "conv", None)
    if hasattr(setting, "fp32_precision"):
        return bool(setting.fp32_precision == "tf32")
    return bool(torch.backends.cudnn.allow_tf32)


class _Own(threading.local):
    count = 0


_OWN = _Own()


@contextmanager
def own_mode(mode: Any) -> Generator[None]:
    """Enter a function mode of ours, in which kernels can be called."""
    _OWN.count += 1
    try:
        with mode:
            yield
    finally:
        _OWN.count -= 1


class _Here(threading.local):
    traces = 0


_HERE = _Here()


class _Compiling:
    """Traces that run now, in all threads, and what answered before the first."""

    lock = threading.Lock()
    traces = 0
    asked: Callable[[], bool]


def _is_compiling() -> bool:
    """`torch.compiler.is_compiling` while some trace runs.

    PyTorch's own modules hear what they hear otherwise: a kernel gives what they give
    without a compiler, as zeros for padding where an encoder is to leave it out.
    """
    caller = str(sys._getframe(1).f_globals.get("__name__"))
    if _HERE.traces and not caller.startswith("torch."):
        return True
    return _Compiling.asked()


@contextmanager
def compiling() -> Generator[None]:
    """Let `torch.compiler.is_compiling` be True in this thread, as in a compiler.

    Libraries ask it before they look at data to choose a way, and take the one that
    is right for all data.
    """
    import torch

    with _Compiling.lock:
        if not _Compiling.traces:
            _Compiling.asked = torch.compiler.is_compiling
            torch.compiler.is_compiling = _is_compiling
        _Compiling.traces += 1
    _HERE.traces += 1
    try:
        yield
    finally:
        _HERE.traces -= 1
        with _Compiling.lock:
            _Compiling.traces -= 1
            if not _Compiling.traces:
                torch.compiler.is_compiling = _Compiling.asked


@cache
def _questions() -> tuple[Callable[[], Any], ...]:
    """What is true while some mode may be active; each takes some 30 ns."""
    import torch
    from torch.autograd import forward_ad

    return (
        torch._C._len_torch_dispatch_stack,
        lambda: torch._C._len_torch_function_stack() > _OWN.count,
        torch._C._get_tracing_state,
        torch._C._functorch.peek_interpreter_stack,
        torch._C._is_any_autocast_enabled,
        lambda: forward_ad._current_level + 1,
    )


def in_mode() -> bool:
    """Whether a mode may be active that has a say in a kernel's call."""
    if "torch" not in sys.modules:
        return False
    return any(question() for question in _questions())


def refusal(values: Sequence[Any]) -> str | None:
    """Why a kernel cannot be called now with some values; None if it can.

    Args:
        values: What it is called with; what is no tensor does not count.
    """
    torch = sys.modules.get("torch")
    return None if torch is None else next(_reasons(values, torch), None)


def in_autocast() -> bool:
    """Whether autocast is on for some device."""
    torch = sys.modules.get("torch")
    return torch is not None and torch._C._is_any_autocast_enabled()


def autocast_refusal(device: str) -> str | None:
    """Why autocast on a device forbids to compute there; None if it is off."""
    torch = sys.modules.get("torch")
    kind = device.partition(":")[0]
    if torch is None or not in_autocast() or not torch.is_autocast_enabled(kind):
        return None
    dtype = str(torch.get_autocast_dtype(kind))
    return (
        f"autocast to {dtype} is on, but kernels compute in the dtypes of their "
        f"arguments: switch it off with torch.autocast({kind!r}, enabled=False), and "
        f"cast the arguments, as with x.to({dtype})"
    )


def _reasons(values: Sequence[Any], torch: Any) -> Iterator[str]:
    yield from _of_tensors(values, torch)
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if in_mode():
        yield from _of_modes(tensors, torch)
        found = (autocast_refusal(d) for d in {t.device.type for t in tensors})
        yield from (reason for reason in found if reason is not None)
    found = (memory_refusal(t, "an argument") for t in tensors)
    yield from (reason for reason in found if reason is not None)


def _of_tensors(values: Sequence[Any], torch: Any) -> Iterator[str]:
    """Tensors, and what stands for them, that PyTorch would treat in their own way."""
    own = result_class(values)
    for value in values:
        if type(value).__module__ == "torch.fx.proxy":
            yield (
                "a torch.fx.Proxy stands for an argument: a kernel cannot be traced "
                "symbolically; wrap the function that calls it with torch.fx.wrap"
            )
        if not isinstance(value, torch.Tensor):
            continue
        if value.is_nested:
            yield NESTED.format("an argument", "x")
        if plain_torch(value, torch):
            continue
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if kind.__name__ == "DTensor":
            yield (
                f"an argument is a {name}, whose parts are on several devices; call "
                "the kernel on x.to_local(), and DTensor.from_local on the result"
            )
        if kind.__name__ == "FakeTensor":
            yield (
                f"an argument is a {name}, which has no data to compute with; call the "
                "kernel outside of FakeTensorMode, or bind it with mirage.spec"
            )
        if own is not None and not issubclass(own, kind):
            yield (
                f"arguments are of the classes {kind.__name__} and {own.__name__}, and "
                "PyTorch knows no class for a result; pass x.as_subclass(torch.Tensor)"
            )
        if _changes_calls(kind, torch):
            yield (
                f"an argument is a {name}, a tensor with a __torch_function__ or "
                "__torch_dispatch__ of its own, which a kernel would pass by; pass "
                "x.as_subclass(torch.Tensor), or the plain tensor inside of it"
            )


def memory_refusal(tensor: Any, what: str, name: str = "x") -> str | None:
    """Why a tensor's values are not what lies at its address; None if they are.

    That of a lazy negation, which `without_lazy_bits` carries out, is none of them.

    Args:
        tensor: Of PyTorch.
        what: What it is.
        name: What it is called.
    """
    import torch

    if tensor.is_nested:
        return NESTED.format(what, name)
    if tensor.layout is not torch.strided:
        return LAYOUT.format(what, name, tensor.layout)
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return (
            f"{what} stands for a tensor inside a transform of torch.func, which has "
            "ended; return tensors from the function that is transformed"
        )
    if torch._is_functional_tensor(tensor):  # pyright: ignore[reportPrivateImportUsage]
        return (
            f"{what} stands for a tensor while PyTorch removes in-place operators; "
            "call the kernel outside of torch.func.functionalize"
        )
    if tensor._is_zerotensor():
        return (
            f"{what} is a tensor of zeros without memory; pass {name}.clone() or "
            f"torch.zeros_like({name})"
        )
    if tensor.device.type == "meta" or 0 in tensor.shape:
        return None
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((n - 1) * s for n, s in steps)
    needed = (last + 1) * tensor.element_size()
    found = tensor.untyped_storage().nbytes()
    if found < needed:
        return (
            f"{what} has a storage of {found} bytes, and its elements need {needed}: "
            "it was freed or resized; call the kernel while the tensor has its data"
        )
    return None


def without_lazy_bits(tensor: Any) -> Any:
    """The tensor, or a copy of what is to be negated or conjugated when it is read."""
    lazy = getattr(tensor, "is_neg", None)
    if lazy is None or not (lazy() or tensor.is_conj()):
        return tensor
    return tensor.resolve_conj().resolve_neg()


def _changes_calls(kind: Any, torch: Any) -> bool:
    """Whether a class of tensors sees the calls of PyTorch's functions."""
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    usual = (
        torch.Tensor.__torch_function__.__func__,
        torch._C._disabled_torch_function_impl,
    )
    dispatch = getattr(kind, "__torch_dispatch__", None)
    none = torch._C._disabled_torch_dispatch_impl
    return function not in usual or dispatch not in (None, none)


def _of_modes(tensors: Sequence[Any], torch: Any) -> Iterator[str]:
    """Modes around a call."""
    from torch.autograd import forward_ad
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    outside = "call the kernel outside of it"
    for mode in _get_current_dispatch_mode_stack():
        name = type(mode).__name__
        known = "make_fx is tracing" if "Proxy" in name else f"{name} is active"
        yield f"{known}, which does not see what a kernel computes; {outside}"
    for mode in torch.overrides._get_current_function_mode_stack():
        if type(mode).__name__ not in _NO_FUNCTION_MODES:
            name = type(mode).__name__
            yield f"{name} is active, which does not see what a kernel calls; {outside}"
    if torch._C._get_tracing_state() is not None:
        yield (
            "torch.jit.trace is tracing, which would keep a kernel's result as a "
            f"constant; {outside}"
        )
    transform = torch._C._functorch.peek_interpreter_stack()
    if transform is not None:
        yield (
            f"a transform of torch.func is active ({transform.key().name.lower()}), "
            f"which kernels do not support; {outside}, and give batches as an axis"
        )
    if forward_ad._current_level >= 0:
        duals = (forward_ad.unpack_dual(t).tangent is not None for t in tensors)
        if any(duals):
            yield (
                "an argument is a dual tensor of forward-mode AD, but kernels have no "
                "derivatives yet; pass torch.autograd.forward_ad.unpack_dual(x).primal"
            )


def result_class(values: Sequence[Any]) -> type | None:
    """The class of tensors that PyTorch's functions make of some.

    Returns:
        None for plain tensors, and where there is no such class.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    disabled = torch._C._disabled_torch_function_impl
    kinds = {
        type(v)
        for v in values
        if isinstance(v, torch.Tensor) and type(v).__torch_function__ is not disabled
    }
    most = max(kinds, key=lambda kind: len(kind.__mro__), default=None)
    return None if most is torch.Tensor else most
