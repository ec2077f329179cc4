"""The functions of `mirage` on PyTorch tensors: the unfused program, as users write it.

Same names as `tests.programs.reference`, so a workload's text runs on them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def exp(x: Tensor) -> Tensor:
    return torch.exp(x)


def tanh(x: Tensor) -> Tensor:
    return torch.tanh(x)


def silu(x: Tensor) -> Tensor:
    return torch.nn.functional.silu(x)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    return torch.softmax(x, axis)


def transpose(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.permute(axes)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def group_norm(x: Tensor, groups: int, eps: float = 1e-6) -> Tensor:
    return torch.nn.functional.group_norm(x, groups, eps=eps)


def batch_norm(x: Tensor, mean: Tensor, var: Tensor, eps: float = 1e-6) -> Tensor:
    return torch.nn.functional.batch_norm(x, mean, var, eps=eps)
