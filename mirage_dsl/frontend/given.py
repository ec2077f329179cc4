"""The tensors of a call: where they are, how they lie in memory."""

# PyTorch's tensors are only partly typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirage_dsl.core.errors import (
    CompileError,
    DTypeError,
    ShapeError,
    UnsupportedError,
)
from mirage_dsl.core.modes import refusal
from mirage_dsl.core.types import dtype_of
from mirage_dsl.frontend.location import user_location
from mirage_dsl.ir.graph import KernelGraph


def is_torch(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" or hasattr(
        value, "requires_grad"
    )


def refuse_modes(values: Sequence[Any]) -> None:
    """Refuse to be called in modes, and with tensors, that a kernel would pass by.

    Raises:
        UnsupportedError: There is one.
    """
    reason = refusal(values)
    if reason is not None:
        raise UnsupportedError(reason, user_location())


def device_kind(tensors: Sequence[Any]) -> str:
    """`cuda` or `cpu`.

    Raises:
        CompileError: Tensors on several devices, or on one that is neither.
    """
    devices = {str(t.device) for t in tensors if is_torch(t)}
    kinds = {d.partition(":")[0] for d in devices}
    if len(devices) > 1 or not kinds <= {"cpu", "cuda"}:
        raise CompileError(
            f"the tensors are on {', '.join(sorted(devices))}; expected one CUDA "
            "device, or the CPU: move them with .to(device)"
        )
    if "cuda" in kinds and not all(map(is_torch, tensors)):
        raise CompileError(
            "CUDA tensors together with NumPy arrays; convert the arrays with "
            "torch.from_numpy(array).cuda()"
        )
    return "cuda" if "cuda" in kinds else "cpu"


def check_dtypes(program: KernelGraph, tensors: Sequence[Any]) -> None:
    """Refuse tensors of other dtypes than the inputs.

    Raises:
        DTypeError: One is.
    """
    for given, tensor in zip(program.inputs, tensors, strict=True):
        if dtype_of(tensor.dtype) != given.type.dtype:
            raise DTypeError(
                f"input {given.name} of {program.name} is {tensor.dtype}, expected "
                f"{given.type.dtype.long_name}; convert it, or bind with tensors like "
                "it",
                user_location(),
            )


def as_torch(tensor: Any) -> Any:
    """The tensor, or PyTorch's view of an array."""
    if is_torch(tensor):
        return tensor
    from mirage_dsl.frontend.reference import to_torch

    return to_torch(tensor)


def copied(found: Sequence[Any], taken: Sequence[Any], out: Any) -> Any:
    """`out`, with the results in its tensors.

    Raises:
        ShapeError: Their shapes do not fit.
        DTypeError: Their dtypes do not.
    """
    shapes = [[tuple(t.shape) for t in ts] for ts in (found, taken)]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"out has the shapes {shapes[1]}, expected {shapes[0]}", user_location()
        )
    dtypes = [[dtype_of(t.dtype) for t in ts] for ts in (found, taken)]
    if dtypes[0] != dtypes[1]:
        raise DTypeError(
            f"out has the dtypes {[str(t.dtype) for t in taken]}, expected "
            f"{[str(t.dtype) for t in found]}",
            user_location(),
        )
    for result, target in zip(found, taken, strict=True):
        target[...] = result
    return out
