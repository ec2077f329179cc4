"""The workloads with Liger's kernels, where `liger_kernel` is installed."""

from __future__ import annotations

from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction
from torch import Tensor

EPS = 1e-6


def _norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
    return LigerRMSNormFunction.apply(x, weight, EPS)


def rmsnorm_linear(x: Tensor, w: Tensor) -> Tensor:
    return _norm(x) @ w


def gated_mlp(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return LigerSiLUMulFunction.apply(x @ w1, x @ w2)


def norm_gain_linear(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    return _norm(x, g) @ w


def norm_lora(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    y = _norm(x)
    return y @ w + (y @ a) @ b


FUNCTIONS = {
    f.__name__: f for f in (rmsnorm_linear, gated_mlp, norm_gain_linear, norm_lora)
}
