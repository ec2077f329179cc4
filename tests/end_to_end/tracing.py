"""Functions on tensors as programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import mirage_dsl as mirage
from mirage_dsl.ir.graph import KernelGraph


def traced(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor]
) -> KernelGraph:
    """The program of a function of tensors of these shapes and dtypes."""
    names = (str(t.dtype).removeprefix("torch.") for t in tensors)
    specs = [
        mirage.spec(tuple(t.shape), n) for t, n in zip(tensors, names, strict=True)
    ]
    return mirage.kernel(function).trace(*specs)
