"""What a reference function is here, and the random arguments that one is tried with.

Arguments are written as texts: `f16 m,k; 2*f32 n; ids v,m`.  Each has a kind, a row of
`KINDS`, and numbers for it, which are sizes by name, as `k/2` or `t+1` too.
"""

# Element types of PyTorch's results are not told to checkers.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

IGNORED = -100
"""The label that losses leave out."""


@dataclass(frozen=True)
class Reference:
    """An operator as one writes it in plain PyTorch.

    Attributes:
        name: What it is called in the table.
        function: It.
        given: Its arguments, as a text.
        sizes: Those of its example, or of a model: `m=1024 k=512`.
        small: At which it is run in Triton's interpreter.
    """

    name: str
    function: Callable[..., Any]
    given: str
    sizes: str
    small: str

    def __str__(self) -> str:
        return self.name

    def arguments(self, *, small: bool) -> tuple[Any, ...]:
        """Random arguments, on the current device; only shapes on the meta device."""
        pairs = (
            one.split("=") for one in (self.small if small else self.sizes).split()
        )
        sizes = {name: int(number) for name, number in pairs}
        found: list[Any] = []
        for term in self.given.split("; "):
            times, _, rest = (
                term.rpartition("*") if term[0].isdigit() else ("1", "", term)
            )
            kind, _, numbers = rest.partition(" ")
            for _ in range(int(times)):
                wanted = [_number(text, sizes) for text in numbers.split(",") if text]
                found.append(KINDS[kind](*wanted))
        return tuple(found)


def _number(text: str, sizes: Mapping[str, int]) -> int:
    """A number, a size, or one divided, multiplied or raised by a number."""
    name, sign, by = re.fullmatch(r"(\w+?)(?:([/x+])(\d+))?", text).groups()  # pyright: ignore[reportOptionalMemberAccess]
    first = int(name) if name.isdigit() else sizes[name]
    second = int(by or 1)
    match sign:
        case "/":
            return first // second
        case "x":
            return first * second
        case "+":
            return first + second
        case _:
            return first


# -- Arguments -------------------------------------------------------------------------


def _normal(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape).to(dtype)


def _integers(dtype: torch.dtype, *shape: int) -> Tensor:
    """Any integers of a format."""
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, shape).to(dtype)


def _scales(dtype: torch.dtype, *shape: int) -> Tensor:
    """Numbers between a half and three halves."""
    return (torch.rand(shape) + 0.5).to(dtype)


def _weights(dtype: torch.dtype, *shape: int) -> Tensor:
    """A matrix [out, in] as layers are initialised: results are as large as inputs."""
    return (torch.randn(shape) / shape[-1] ** 0.5).to(dtype)


def _ids(count: int, *shape: int) -> Tensor:
    """Indices below a number."""
    return torch.randint(0, count, shape)


def _labels(classes: int, *shape: int) -> Tensor:
    """Labels of which some are to be ignored."""
    return torch.where(torch.rand(shape) < 0.2, IGNORED, _ids(classes, *shape))


def _probabilities(*shape: int) -> Tensor:
    """Numbers that sum to 1 along the last axis."""
    return torch.randn(shape).softmax(-1)


def _log_probabilities(*shape: int) -> Tensor:
    return torch.randn(shape).log_softmax(-1)


def _decays(dtype: torch.dtype, *shape: int) -> Tensor:
    """Logarithms of factors below 1."""
    return (-0.2 * torch.rand(shape)).to(dtype)


def _offsets(rows: int, count: int) -> tuple[int, ...]:
    """Where so many parts of rows begin and end; each is longer than the one before."""
    total = count * (count + 1) // 2
    return tuple(rows * (i * (i + 1) // 2) // total for i in range(count + 1))


KINDS: Mapping[str, Callable[..., Any]] = {
    "f32": partial(_normal, torch.float32),
    "f16": partial(_normal, torch.float16),
    "bf16": partial(_normal, torch.bfloat16),
    "f8": partial(_normal, torch.float8_e4m3fn),
    "i8": partial(_integers, torch.int8),
    "i16": partial(_integers, torch.int16),
    "u8": partial(_integers, torch.uint8),
    "scales": partial(_scales, torch.float32),
    "f8scales": partial(_scales, torch.float8_e4m3fn),
    "weights": partial(_weights, torch.float32),
    "f16weights": partial(_weights, torch.float16),
    "bf16weights": partial(_weights, torch.bfloat16),
    "ids": _ids,
    "labels": _labels,
    "p": _probabilities,
    "logp": _log_probabilities,
    "decays": partial(_decays, torch.float32),
    "f16decays": partial(_decays, torch.float16),
    "offsets": _offsets,
}
"""Makers of arguments by name, of the numbers behind it."""
