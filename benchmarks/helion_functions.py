"""The workloads as Helion kernels, where `helion` is installed.

Written as its users would: one fused kernel each, the rest left to its own tuning,
whose effort `HELION_AUTOTUNE_EFFORT` sets.
"""

from __future__ import annotations

import helion
import helion.language as hl
import torch
from torch import Tensor

EPS = 1e-6


@helion.kernel(static_shapes=True)
def rmsnorm_linear(x: Tensor, w: Tensor) -> Tensor:
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([m, n]):
        product = hl.zeros([rows, columns], dtype=torch.float32)
        squares = hl.zeros([rows], dtype=torch.float32)
        for inner in hl.tile(k):
            part = x[rows, inner]
            product = torch.addmm(product, part, w[inner, columns])
            wide = part.to(torch.float32)
            squares = squares + torch.sum(wide * wide, -1)
        factor = torch.rsqrt(squares / k + EPS)
        out[rows, columns] = (product * factor[:, None]).to(x.dtype)
    return out


@helion.kernel(static_shapes=True)
def gated_mlp(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    m, k = x.size()
    n = w1.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([m, n]):
        gate = hl.zeros([rows, columns], dtype=torch.float32)
        value = hl.zeros([rows, columns], dtype=torch.float32)
        for inner in hl.tile(k):
            part = x[rows, inner]
            gate = torch.addmm(gate, part, w1[inner, columns])
            value = torch.addmm(value, part, w2[inner, columns])
        out[rows, columns] = (gate * torch.sigmoid(gate) * value).to(x.dtype)
    return out


@helion.kernel(static_shapes=True)
def ntrans(x: Tensor, h: Tensor, alpha: Tensor) -> Tensor:
    m, k = x.size()
    out = torch.empty_like(x)
    for rows in hl.tile(m):
        base = x[rows, :].to(torch.float32)
        step = h[rows, :].to(torch.float32)
        norm = torch.rsqrt(torch.sum(step * step, -1) / k + EPS)
        moved = base + alpha[rows, :].to(torch.float32) * (step * norm[:, None] - base)
        norm = torch.rsqrt(torch.sum(moved * moved, -1) / k + EPS)
        out[rows, :] = (moved * norm[:, None]).to(x.dtype)
    return out


FUNCTIONS = {"rmsnorm_linear": rmsnorm_linear, "gated_mlp": gated_mlp, "ntrans": ntrans}
