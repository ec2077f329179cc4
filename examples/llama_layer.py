"""A decoder layer of LLaMA-3-8B, one decode step: plain PyTorch, then as kernels.

The layer is written twice on the same weights and the same KV cache: as anyone writes
it in PyTorch, and with its five parts as `@mirage.kernel` functions, whose bodies are
the same lines.  On a GPU the kernels are searched and tuned at their first call; on
the CPU the reference semantics run, which is how this file checks itself:

    python examples/llama_layer.py

`python -m benchmarks.layer` measures both on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import mirage_dsl as mirage

T = TypeVar("T", "Layer", "State")
EPS = 1e-5
THETA = 500_000.0


@dataclass(frozen=True)
class Config:
    """Sizes of a layer; the defaults are LLaMA-3-8B's.

    Attributes:
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key and value heads; each serves `heads / kv_heads` query heads.
        head: Width of a head.
        inner: Width of the MLP.
        positions: Length of the KV cache; the step is at the last position.
    """

    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head: int = 128
    inner: int = 14336
    positions: int = 4096


LLAMA_3_8B = Config()
SMALL = Config(hidden=64, heads=8, kv_heads=2, head=16, inner=96, positions=32)


@dataclass(frozen=True)
class Layer:
    """Weights of a layer, stored as `torch.nn.Linear` stores them: (out, in)."""

    attention_gain: Tensor
    qkv: Tensor
    output: Tensor
    mlp_gain: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True)
class State:
    """What a step reads and writes beside the weights.

    Attributes:
        x: The residual stream, (batch, hidden).
        cache: Keys and values, (2, batch, kv_heads, positions, head).
        cos: Cosines of the rotary angles at the step's position, (2, 1, 1, head / 2):
            those of queries and keys, and those of values, whose angles are 0.
        sin: Sines likewise.
    """

    x: Tensor
    cache: Tensor
    cos: Tensor
    sin: Tensor


# -- In plain PyTorch ------------------------------------------------------------------


def norm(x: Tensor, gain: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], gain, EPS)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding: the two halves of a head are the sides of its angles."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def plain_qkv(x: Tensor, gain: Tensor, qkv: Tensor) -> Tensor:
    return F.linear(norm(x, gain), qkv)


def plain_attention(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    batch, groups, _, head = keys.shape
    heads = qkv.view(batch, -1, head)
    q, k, v = heads.split([heads.shape[1] - 2 * groups, groups, groups], 1)
    keys[:, :, -1] = rotated(k, cos[0], sin[0])
    values[:, :, -1] = v
    q = rotated(q, cos[0], sin[0]).unsqueeze(2)
    a = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
    return a.reshape(batch, -1)


def plain_projection(a: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    return x + F.linear(a, weight)


def plain_mlp(x: Tensor, gain: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    h = norm(x, gain)
    return F.silu(F.linear(h, gate)) * F.linear(h, up)


def plain_step(
    layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """The layer's output; the caches get the step's keys and values."""
    qkv = plain_qkv(x, layer.attention_gain, layer.qkv)
    a = plain_attention(qkv, cos, sin, keys, values)
    x = plain_projection(a, layer.output, x)
    h = plain_mlp(x, layer.mlp_gain, layer.gate, layer.up)
    return plain_projection(h, layer.down, x)


def plain_layer(layer: Layer, state: State) -> Tensor:
    return plain_step(layer, state.x, state.cos, state.sin, *state.cache)


# -- As kernels ------------------------------------------------------------------------


@mirage.kernel(overlap=True)
def norm_qkv(x, gain, qkv):
    return plain_qkv(x, gain, qkv)


@mirage.kernel(overlap=True)
def new_entries(qkv, cos, sin, groups):
    """The step's keys and values, (2, batch, groups, head)."""
    both = qkv.view(qkv.shape[0], -1, groups, 2 * cos.shape[-1])[:, -2:]
    return rotated(both.transpose(0, 1), cos, sin)


@mirage.kernel(overlap=True)
def attention(qkv, cos, sin, keys, values):
    """The queries are rotated here; groups of them share a head of the cache."""
    batch, groups, _, head = keys.shape
    heads = qkv.view(batch, -1, head)[:, : -2 * groups]
    q = rotated(heads.reshape(batch, groups, -1, head), cos, sin)
    return F.scaled_dot_product_attention(q, keys, values).reshape(batch, -1)


@mirage.kernel(overlap=True)
def projection(a, weight, x):
    return plain_projection(a, weight, x)


@mirage.kernel(overlap=True)
def gated_mlp(x, gain, gate, up):
    return plain_mlp(x, gain, gate, up)


def fused_attention(qkv: Tensor, cos: Tensor, sin: Tensor, cache: Tensor) -> Tensor:
    """As `plain_attention`, in kernels; the first one writes into the cache."""
    new_entries(qkv, cos, sin, cache.shape[2], out=cache[:, :, :, -1])
    return attention(qkv, cos[0], sin[0], *cache)


def fused_layer(layer: Layer, state: State) -> Tensor:
    """As `plain_layer`, in kernels."""
    qkv = norm_qkv(state.x, layer.attention_gain, layer.qkv)
    a = fused_attention(qkv, state.cos, state.sin, state.cache)
    x = projection(a, layer.output, state.x)
    h = gated_mlp(x, layer.mlp_gain, layer.gate, layer.up)
    return projection(h, layer.down, x)


def in_double(tensors: T) -> T:
    """Copies of all tensors of a layer or a state in float64."""
    copies = {f.name: getattr(tensors, f.name).double() for f in fields(tensors)}
    return type(tensors)(**copies)


# -- Random tensors --------------------------------------------------------------------


def random_layer(config: Config, dtype: torch.dtype, device: str, seed: int) -> Layer:
    """Weights that keep the residual stream about as large as it is."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=generator, device=device)
        return (drawn * shape[-1] ** -0.5).to(dtype)

    def gain() -> Tensor:
        drawn = torch.rand(config.hidden, generator=generator, device=device)
        return (drawn + 0.5).to(dtype)

    width = config.heads * config.head
    return Layer(
        attention_gain=gain(),
        qkv=normal(width + 2 * config.kv_heads * config.head, config.hidden),
        output=normal(config.hidden, width),
        mlp_gain=gain(),
        gate=normal(config.inner, config.hidden),
        up=normal(config.inner, config.hidden),
        down=normal(config.hidden, config.inner),
    )


def random_state(
    config: Config, batch: int, dtype: torch.dtype, device: str, seed: int
) -> State:
    """A residual stream and a cache that is full but for the last position."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    steps = torch.arange(0, 1, 2 / config.head, dtype=torch.float64)
    angles = (config.positions - 1) * THETA**-steps
    angles = torch.stack([angles, torch.zeros_like(angles)])[:, None, None]
    return State(
        x=normal(batch, config.hidden),
        cache=normal(2, batch, config.kv_heads, config.positions, config.head),
        cos=angles.cos().to(device, dtype),
        sin=angles.sin().to(device, dtype),
    )


def relative(found: Tensor, expected: Tensor) -> float:
    difference = found.double() - expected.double()
    return float(difference.norm() / expected.double().norm())


def main() -> None:
    """Both layers against float64: at full size on a GPU, else at a small one."""
    cuda = torch.cuda.is_available()
    config, dtype = (LLAMA_3_8B, torch.float16) if cuda else (SMALL, torch.float32)
    device = "cuda" if cuda else "cpu"
    layer = random_layer(config, dtype, device, seed=0)
    states = [random_state(config, 2, dtype, device, seed=1) for _ in range(2)]
    exact = plain_layer(in_double(layer), in_double(states[0]))
    plain, fused = plain_layer(layer, states[0]), fused_layer(layer, states[1])
    print(f"plain: relative error {relative(plain, exact):.1e}")
    print(f"fused: relative error {relative(fused, exact):.1e}")
    print(f"caches differ by {relative(states[1].cache, states[0].cache):.1e}")


if __name__ == "__main__":
    main()
