"""What Helion's examples compute, as plain PyTorch: written anew from the definitions.

Helion (https://github.com/pytorch/helion) has an example for each of these operators.
Its own references are other people's code and no part of this project; these are
written as one writes them who knows the operator, and need nothing of Helion.  Examples
of random numbers (dropout) have none.

Ragged batches come with their offsets as numbers, since shapes are those of a kernel.
"""

# Element types of PyTorch's results are not told to checkers.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from benchmarks.reference_cases import Reference

# -- Elementwise, sums, norms ----------------------------------------------------------


def scaled(x: Tensor) -> Tensor:
    return x * 2.0


def column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def row_sum(x: Tensor) -> Tensor:
    return x.sum(-1)


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, dim=-1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-4)


def welford(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
    return (x - mean) * torch.rsqrt(variance + 1e-5) * weight + bias


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
    return (wide * scale * weight).to(x.dtype)


def se_block(x: Tensor, w: Tensor) -> Tensor:
    return 2 * x * torch.sigmoid(x @ w)


def squeeze_excitation(x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    return x * torch.sigmoid(torch.relu(x @ down) @ up)


def geglu(gate: Tensor, value: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh") * value


def swiglu(gate: Tensor, value: Tensor) -> Tensor:
    return F.silu(gate) * value


def geglu_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(geglu(F.linear(x, gate), F.linear(x, up)), down)


def swiglu_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(swiglu(F.linear(x, gate), F.linear(x, up)), down)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def rotated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return x * cos[:, None] + turned * sin[:, None]

    return rotated(q), rotated(k)


def concatenate(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y], dim=1)


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    return F.embedding(ids, weight)


# -- Products --------------------------------------------------------------------------


def addmm(bias: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return torch.addmm(bias, x, w)


def linear(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, w.T, bias)


def matmul_relu(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(x @ w + bias)


def transposed_matmul(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.T


def matmul_layernorm(x: Tensor, w: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    made = (x @ w).float()
    return F.layer_norm(made, made.shape[-1:], weight.float(), bias.float()).half()


def residual_gelu(x: Tensor, w: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    made = (x.float() @ w.float()) * 1.25 + residual.float() * 0.5 + bias.float()
    return F.gelu(made).to(x.dtype)


def gelu_aux(x: Tensor, w: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    made = (x.float() @ w.float()) * 1.25 + bias.float()
    return F.gelu(made).to(x.dtype), made.to(x.dtype)


def bf16_by_int16(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.to(torch.bfloat16)


def int16_by_bf16(x: Tensor, w: Tensor) -> Tensor:
    return x.to(torch.bfloat16) @ w


def int4_gemm(x: Tensor, packed: Tensor) -> Tensor:
    """Rows 2j and 2j + 1 of the weight share a byte, low half first."""
    low, high = (packed << 4) >> 4, packed >> 4
    weight = torch.stack([low, high], dim=1).reshape(-1, packed.shape[1])
    return x @ weight.to(x.dtype)


def fp8_gemm(x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor) -> Tensor:
    column_major = w.T.contiguous().T
    return torch._scaled_mm(  # pyright: ignore[reportPrivateUsage]
        x, column_major, scale_x, scale_w, out_dtype=torch.bfloat16
    )


def four_bit(nibbles: Tensor) -> Tensor:
    """The number that four bits mean: a sign, two bits of exponent, one of fraction."""
    code = (nibbles & 7).float()
    size = torch.where(
        code < 4, code * 0.5, torch.where(code < 6, code - 2.0, code * 2.0 - 8.0)
    )
    return torch.where((nibbles & 8) != 0, -size, size)


def nvfp4_weight(packed: Tensor, scale: Tensor) -> Tensor:
    """A matrix of four-bit numbers, two to a byte along rows, a scale for each 16."""
    rows, width = packed.shape
    pairs = torch.stack([four_bit(packed), four_bit(packed >> 4)], dim=-1)
    groups = pairs.reshape(rows, width // 8, 16) * scale.float()[:, :, None]
    return groups.reshape(rows, 2 * width)


def nvfp4_w4a16(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    return (x.float() @ nvfp4_weight(packed, scale).T).to(x.dtype)


def nvfp4_w4a4(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor) -> Tensor:
    product = nvfp4_weight(x, x_scale) @ nvfp4_weight(w, w_scale).T
    return product.to(torch.bfloat16)


def nvfp4_gemv(packed: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    return (nvfp4_weight(packed, scale) @ x.float()).to(x.dtype)


def gather_gemv(w: Tensor, ids: Tensor, x: Tensor) -> Tensor:
    return w[ids] @ x


def grouped_gemm(w: Tensor, *groups: Tensor) -> Tensor:
    return torch.cat([group @ w for group in groups], dim=0)


def moe_matmul(x: Tensor, w: Tensor, expert: Tensor) -> Tensor:
    """Each token by the matrix of its own expert."""
    made = torch.zeros(x.shape[0], w.shape[2], dtype=x.dtype, device=x.device)
    for number in range(w.shape[0]):
        made = torch.where((expert == number)[:, None], x @ w[number], made)
    return made


# -- Attention -------------------------------------------------------------------------


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def attention_and_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q.float() @ k.float().transpose(-2, -1) / math.sqrt(q.shape[-1])
    made = torch.softmax(scores, dim=-1).to(v.dtype) @ v
    return made, torch.logsumexp(scores, dim=-1) * math.log2(math.e)


def causal_attention_and_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q.float() @ k.float().transpose(-2, -1) / math.sqrt(q.shape[-1])
    here = torch.arange(q.shape[-2], device=q.device)
    scores = scores.masked_fill(here[:, None] < here, -torch.inf)
    made = torch.softmax(scores, dim=-1).to(v.dtype) @ v
    return made, torch.logsumexp(scores, dim=-1) * math.log2(math.e)


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def flex_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention whose scores a function of the positions changes: slopes, a cap."""
    heads, tokens = q.shape[1], q.shape[2]
    here = torch.arange(tokens, device=q.device)
    slopes = torch.exp2(-8.0 * (torch.arange(heads, device=q.device) + 1) / heads)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    scores = scores + slopes[:, None, None] * (here - here[:, None])
    scores = 20.0 * torch.tanh(scores / 20.0)
    return torch.softmax(scores, dim=-1) @ v


def fp8_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q.float() @ k.float().transpose(-2, -1)) / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores, dim=-1).to(torch.float8_e4m3fn)
    return (weights.float() @ v.float()).to(torch.float8_e4m3fn)


def exclusive_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention without what lies along each token's own value."""
    made = F.scaled_dot_product_attention(q, k, v).float()
    own = F.normalize(v.float(), dim=-1, eps=1e-6)
    return (made - (made * own).sum(-1, keepdim=True) * own).to(q.dtype)


# -- Losses ----------------------------------------------------------------------------


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def kl_div(log_q: Tensor, p: Tensor) -> Tensor:
    return F.kl_div(log_q, p, reduction="batchmean")


def jsd(log_q: Tensor, log_p: Tensor) -> Tensor:
    q, p = log_q.exp(), log_p.exp()
    log_m = (0.5 * (q + p)).log()
    return 0.5 * (p * (log_p - log_m) + q * (log_q - log_m)).sum(-1).mean()


def fused_linear_jsd(x: Tensor, w: Tensor, y: Tensor, u: Tensor) -> Tensor:
    student = torch.log_softmax((x @ w.T).float(), dim=-1)
    teacher = torch.log_softmax((y @ u.T).float(), dim=-1)
    return jsd(student, teacher)


def grpo_loss(
    logits: Tensor,
    ids: Tensor,
    old: Tensor,
    reference: Tensor,
    advantages: Tensor,
    mask: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Clipped policy gradient of chosen tokens, with a penalty for leaving a policy."""
    log_p = (logits[:, :-1] / 0.9).log_softmax(dim=-1)
    own = log_p.gather(-1, ids[:, :, None])[:, :, 0]
    ratio = torch.exp(own - old)
    plain = ratio * advantages[:, None]
    clipped = ratio.clamp(0.8, 1.4) * advantages[:, None]
    away = reference - own
    penalty = (away.exp() - away - 1) * mask
    loss = -torch.min(plain, clipped) * mask + 0.2 * penalty
    return loss, penalty, (plain < clipped).float()


# -- Segments and ragged batches -------------------------------------------------------


def segment_sum(ids: Tensor, x: Tensor) -> Tensor:
    places = ids[:, None].expand(-1, x.shape[1])
    made = torch.zeros(100, x.shape[1], device=x.device)
    return made.scatter_add_(0, places, x)


def jagged_sum(x: Tensor, offsets: Sequence[int]) -> Tensor:
    return torch.stack([x[a:b].sum(0) for a, b in pairwise(offsets)])


def jagged_mean(x: Tensor, offsets: Sequence[int]) -> Tensor:
    return torch.stack([x[a:b].mean(0) for a, b in pairwise(offsets)])


def jagged_softmax(x: Tensor, offsets: Sequence[int]) -> Tensor:
    return torch.cat([torch.softmax(x[a:b], dim=0) for a, b in pairwise(offsets)])


def jagged_layer_norm(x: Tensor, offsets: Sequence[int]) -> Tensor:
    parts = [x[a:b] for a, b in pairwise(offsets)]
    return torch.cat([F.layer_norm(part, part.shape, eps=1e-6) for part in parts])


def jagged_dense_add(x: Tensor, offsets: Sequence[int], dense: Tensor) -> Tensor:
    made = dense.clone()
    for row, (a, b) in enumerate(pairwise(offsets)):
        made[row, : b - a] += x[a:b]
    return made


def jagged_dense_bmm(
    x: Tensor, offsets: Sequence[int], w: Tensor, bias: Tensor
) -> Tensor:
    parts = [x[a:b] @ w[i] + bias[i] for i, (a, b) in enumerate(pairwise(offsets))]
    return torch.cat(parts)


def jagged_hstu(q: Tensor, k: Tensor, v: Tensor, offsets: Sequence[int]) -> Tensor:
    """Attention by SiLU in place of softmax, of ragged batches, causal."""
    found: list[Tensor] = []
    for a, b in pairwise(offsets):
        queries, keys, values = (t[a:b].transpose(0, 1) for t in (q, k, v))
        scores = F.silu(queries @ keys.transpose(-2, -1) / q.shape[-1] ** 2)
        weights = torch.tril(scores / (b - a))
        found.append((weights @ values).transpose(0, 1))
    return torch.cat(found)


# -- Recurrences, chunk by chunk -------------------------------------------------------


def mamba2_chunk_scan(
    cb: Tensor, x: Tensor, dt: Tensor, decay: Tensor, c: Tensor, states: Tensor
) -> Tensor:
    """The outputs of a state space model, of each chunk's start and what is in it."""
    batch, chunks, groups, size, _ = cb.shape
    heads = x.shape[2]
    cb = cb.repeat_interleave(heads // groups, dim=2)
    c = c.repeat_interleave(heads // groups, dim=2)
    passed = torch.exp(decay[..., :, None] - decay[..., None, :]).permute(0, 2, 1, 3, 4)
    weights = torch.tril(cb * passed).to(x.dtype)
    parts = x.reshape(batch, chunks, size, heads, -1)
    own = torch.einsum("bchls,bhcs,bcshp->bclhp", weights, dt, parts)
    c = c.reshape(batch, chunks, size, heads, -1)
    before = torch.einsum("bclhn,bchpn->bclhp", c, states)
    before = before * torch.exp(decay.permute(0, 2, 3, 1))[..., None]
    return (own + before).reshape(x.shape)


def mamba2_chunk_state(b: Tensor, x: Tensor, dt: Tensor, decay: Tensor) -> Tensor:
    """What each chunk adds to the state."""
    batch, heads, chunks, size = dt.shape
    b = b.repeat_interleave(heads // b.shape[2], dim=2)
    b = b.reshape(batch, chunks, size, heads, -1)
    parts = x.reshape(batch, chunks, size, heads, -1)
    left = torch.exp(decay[..., -1:] - decay).to(x.dtype)
    return torch.einsum("bclhn,bhcl,bhcl,bclhp->bchpn", b, left, dt, parts)


def gated_delta_states(k: Tensor, w: Tensor, u: Tensor, g: Tensor) -> Tensor:
    """The state before each of 4 chunks of a gated delta rule."""
    batch, tokens, heads, width = k.shape
    size = tokens // 4
    state = torch.zeros(batch, heads, width, u.shape[-1], device=k.device)
    found: list[Tensor] = []
    for start in range(0, tokens, size):
        found.append(state.to(k.dtype))
        here = slice(start, start + size)
        seen = torch.einsum("bchk,bhkv->bchv", w[:, here].float(), state)
        last = g[:, start + size - 1]
        new = (u[:, here].float() - seen) * torch.exp(last[:, None] - g[:, here])[
            ..., None
        ]
        kept = state * torch.exp(last)[..., None, None]
        state = kept + torch.einsum("bchk,bchv->bhkv", k[:, here].float(), new)
    return torch.stack(found, dim=1)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Attention without softmax by 4 chunks; scores fade by head and time."""
    size = q.shape[2] // 4
    state = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3], device=q.device)
    found: list[Tensor] = []
    for start in range(0, q.shape[2], size):
        here = slice(start, start + size)
        queries, keys, values = q[:, :, here], k[:, :, here], v[:, :, here]
        faded = g[:, :, here].cumsum(-1)
        passed = torch.exp(faded[..., :, None] - faded[..., None, :])
        own = torch.tril(queries @ keys.transpose(-2, -1) * passed) @ values
        found.append(own + (queries * torch.exp(faded)[..., None]) @ state)
        last = faded[..., -1:]
        kept = keys * torch.exp(last - faded)[..., None]
        state = state * torch.exp(last)[..., None] + kept.transpose(-2, -1) @ values
    return torch.cat(found, dim=2)


def vanilla_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention without softmax: what is seen is a sum of outer products."""
    return torch.tril(q @ k.transpose(-2, -1)) @ v


def retention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear attention that fades by a factor of its own for each head."""
    heads, tokens = q.shape[1], q.shape[2]
    here = torch.arange(tokens, device=q.device)
    rates = torch.log(1 - torch.exp2(-5.0 - torch.arange(heads, device=q.device)))
    faded = torch.exp(rates[:, None, None] * (here[:, None] - here))
    return torch.tril(q @ k.transpose(-2, -1) * faded) @ v


def gated_linear_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Linear attention whose state fades feature by feature."""
    faded = g.cumsum(2)
    scores = (q * torch.exp(faded)) @ (k * torch.exp(-faded)).transpose(-2, -1)
    return torch.tril(scores) @ v


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None = None
) -> Tensor:
    """A state of keys and values; each token corrects what is under its key."""
    state = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3], device=q.device)
    found: list[Tensor] = []
    for t in range(q.shape[2]):
        if g is not None:
            fade = torch.exp(g[:, :, t])
            state = state * (fade[..., None] if g.ndim == 4 else fade[..., None, None])
        key = k[:, :, t, :, None]
        error = v[:, :, t, None, :] - (key * state).sum(2, keepdim=True)
        state = state + beta[:, :, t, None, None] * key * error
        found.append((q[:, :, t, :, None] * state).sum(2))
    return torch.stack(found, dim=2)


# -- With arguments and sizes ----------------------------------------------------------

_CUBE, _SMALL = "m=1024 k=1024 n=1024", "m=32 k=64 n=48"
_MLP, _SMALL_MLP = "t=1024 h=1024 n=4096", "t=16 h=32 n=64"
_HEADS, _SMALL_HEADS = "b=2 h=32 t=1024 d=64", "b=1 h=2 t=32 d=32"
_ROWS, _SMALL_ROWS = "r=1024 m=128 b=16", "r=48 m=16 b=4"
_CHUNKS = "b=8 h=80 g=1 c=16 s=256 t=4096 p=64 n=128"
_SMALL_CHUNKS = "b=1 h=4 g=2 c=2 s=16 t=32 p=16 n=16"
_QKV = "f32 b,h,t,d; weights b,h,t,d; f32 b,h,t,d"
_LINEAR, _SMALL_LINEAR = "b=4 h=16 t=1024 d=64", "b=1 h=2 t=32 d=16"
_STEPS, _FEW_STEPS = "b=4 h=16 t=16 d=64", "b=1 h=2 t=4 d=16"

REFERENCES = (
    Reference("add", torch.add, "2*f16 m,n", "m=4096 n=4096", "m=32 n=64"),
    Reference("exp", torch.exp, "f32 n", "n=16777216", "n=512"),
    Reference("vector scale", scaled, "f16 n", "n=1048576", "n=512"),
    Reference("sum", row_sum, "f32 m,n", "m=5120 n=2560", "m=32 n=64"),
    Reference("long sum", row_sum, "f32 m,n", "m=4 n=130000", "m=4 n=4000"),
    Reference("column sum", column_sum, "f16 m,n", "m=8192 n=64", "m=64 n=32"),
    Reference("softmax", softmax, "f16 m,n", "m=4096 n=2560", "m=32 n=64"),
    Reference(
        "batch softmax", softmax, "f16 b,m,n", "b=16 m=512 n=1024", "b=4 m=16 n=64"
    ),
    Reference(
        "layer norm", layer_norm, "f16 m,n; 2*f16 n", "m=4096 n=10240", "m=32 n=64"
    ),
    Reference("welford", welford, "f32 m,n; 2*f32 n", "m=262144 n=1024", "m=32 n=64"),
    Reference("rms norm", rms_norm, "f16 m,n; f16 n", "m=2048 n=4096", "m=32 n=64"),
    Reference("geglu", geglu, "2*f16 m,n", "m=8192 n=4096", "m=32 n=64"),
    Reference("swiglu", swiglu, "2*f16 m,n", "m=8192 n=4096", "m=32 n=64"),
    Reference(
        "concatenate", concatenate, "f32 m,n; f32 m,k", "m=1500 n=400 k=600", _SMALL
    ),
    Reference(
        "embedding",
        embedding,
        "ids v,b,m; f32 v,n",
        "v=16 b=256 m=32 n=64",
        "v=16 b=4 m=8 n=32",
    ),
    Reference(
        "rope",
        rope,
        "f16 1,h,t,d; f16 1,g,t,d; 2*f16 1,t,d",
        "h=32 g=8 t=2048 d=128",
        "h=4 g=2 t=16 d=32",
    ),
    Reference("matmul", torch.matmul, "f16 m,k; f16 k,n", _CUBE, _SMALL),
    Reference("addmm", addmm, "f16 1; f16 m,k; f16 k,n", _CUBE, _SMALL),
    Reference("linear", linear, "f16 m,k; f16 k,n; f16 n", _CUBE, _SMALL),
    Reference("matmul relu", matmul_relu, "f16 m,k; f16 k,n; f16 n", _CUBE, _SMALL),
    Reference(
        "matmul split-k",
        torch.matmul,
        "f16 m,k; f16 k,n",
        "m=64 k=32768 n=64",
        "m=16 k=1024 n=32",
    ),
    Reference(
        "split-k barrier",
        transposed_matmul,
        "f32 m,k; f32 n,k",
        "m=16 k=4096 n=16",
        "m=16 k=512 n=16",
    ),
    Reference(
        "bmm",
        torch.bmm,
        "f16 b,m,k; f16 b,k,n",
        "b=16 m=512 k=768 n=1024",
        "b=4 m=16 k=32 n=48",
    ),
    Reference(
        "broadcast matmul",
        torch.matmul,
        "f16 b,m,k; f16 k,n",
        "b=16 m=512 k=768 n=1024",
        "b=4 m=16 k=32 n=48",
    ),
    Reference(
        "matmul layer norm",
        matmul_layernorm,
        "f16 m,k; f16 k,n; 2*f16 n",
        "m=2048 k=1024 n=400",
        _SMALL,
    ),
    Reference(
        "matmul residual gelu",
        residual_gelu,
        "f16 m,k; f16weights k,n; f16 n; f16 m,n",
        _CUBE,
        _SMALL,
    ),
    Reference(
        "matmul gelu aux", gelu_aux, "f16 m,k; f16weights k,n; f16 n", _CUBE, _SMALL
    ),
    Reference("se block", se_block, "f16 m,k; f16weights k,k", _CUBE, _SMALL),
    Reference(
        "squeeze and excitation",
        squeeze_excitation,
        "f16 m,n; f16weights n,k; f16weights k,n",
        _CUBE,
        _SMALL,
    ),
    Reference(
        "geglu mlp",
        geglu_mlp,
        "f16 t,h; 2*f16weights n,h; f16weights h,n",
        _MLP,
        _SMALL_MLP,
    ),
    Reference(
        "swiglu mlp",
        swiglu_mlp,
        "f16 t,h; 2*f16weights n,h; f16weights h,n",
        _MLP,
        _SMALL_MLP,
    ),
    Reference(
        "gather gemv",
        gather_gemv,
        "f16 e,s,s; ids e,n; f16 s",
        "e=8 s=2048 n=2",
        "e=4 s=64 n=2",
    ),
    Reference(
        "grouped gemm",
        grouped_gemm,
        "bf16 k,n; bf16 m,k; bf16 mx2,k; bf16 mx3,k; bf16 mx4,k",
        "m=64 k=256 n=128",
        "m=16 k=32 n=48",
    ),
    Reference(
        "moe matmul",
        moe_matmul,
        "f16 t,k; f16 e,k,n; ids e,t",
        "t=1000 k=500 n=200 e=8",
        "t=32 k=64 n=32 e=4",
    ),
    Reference("bf16 x int16 gemm", bf16_by_int16, "bf16 m,k; i16 k,n", _CUBE, _SMALL),
    Reference("int16 x bf16 gemm", int16_by_bf16, "i16 m,k; bf16 k,n", _CUBE, _SMALL),
    Reference(
        "int4 gemm", int4_gemm, "bf16 m,k; i8 k/2,n", "m=256 k=512 n=1024", _SMALL
    ),
    Reference("fp8 gemm", fp8_gemm, "f8 m,k; f8 k,n; 2*scales 1", _CUBE, _SMALL),
    Reference(
        "fp8 matmul", fp8_gemm, "f8 m,k; f8 k,n; scales m,1; scales 1,n", _CUBE, _SMALL
    ),
    Reference(
        "nvfp4 w4a16",
        nvfp4_w4a16,
        "bf16 m,k; u8 n,k/2; f8scales n,k/16",
        "m=256 k=512 n=1024",
        _SMALL,
    ),
    Reference(
        "nvfp4 w4a4",
        nvfp4_w4a4,
        "u8 m,k/2; f8scales m,k/16; u8 n,k/2; f8scales n,k/16",
        "m=256 k=512 n=1024",
        _SMALL,
    ),
    Reference(
        "nvfp4 gemv",
        nvfp4_gemv,
        "u8 m,k/2; f8scales m,k/16; bf16 k",
        "m=4096 k=4096",
        _SMALL,
    ),
    Reference("attention", attention, "3*f16 b,h,t,d", _HEADS, _SMALL_HEADS),
    Reference(
        "attention, lse", attention_and_lse, "3*f16 b,h,t,d", _HEADS, _SMALL_HEADS
    ),
    Reference(
        "causal attention, lse",
        causal_attention_and_lse,
        "3*f16 b,h,t,d",
        _HEADS,
        _SMALL_HEADS,
    ),
    Reference(
        "biased attention",
        biased_attention,
        "3*f16 b,h,t,d; f16 t,t",
        _HEADS,
        _SMALL_HEADS,
    ),
    Reference(
        "blackwell attention",
        causal_attention,
        "3*bf16 b,h,t,d",
        "b=4 h=32 t=2048 d=128",
        _SMALL_HEADS,
    ),
    Reference("flex attention", flex_attention, "3*f32 b,h,t,d", _HEADS, _SMALL_HEADS),
    Reference(
        "fp8 attention",
        fp8_attention,
        "3*f8 b,h,t,d",
        "b=1 h=2 t=256 d=64",
        _SMALL_HEADS,
    ),
    Reference(
        "exclusive attention",
        exclusive_attention,
        "3*bf16 b,h,t,d",
        _HEADS,
        _SMALL_HEADS,
    ),
    Reference(
        "cross entropy",
        cross_entropy,
        "f32 t,v; ids v,t",
        "t=16384 v=131072",
        "t=32 v=128",
    ),
    Reference("kl div", kl_div, "logp t,v; p t,v", "t=4096 v=32000", "t=32 v=128"),
    Reference("jsd", jsd, "2*logp t,v", "t=4096 v=32000", "t=32 v=128"),
    Reference(
        "fused linear jsd",
        fused_linear_jsd,
        "f32 m,k; weights n,k; f32 m,k; weights n,k",
        "m=1024 k=4096 n=32000",
        _SMALL,
    ),
    Reference(
        "grpo loss",
        grpo_loss,
        "f32 b,t+1,v; ids v,b,t; 2*f32 b,t; f32 b; scales b,t",
        "b=8 t=1024 v=12800",
        "b=2 t=8 v=64",
    ),
    Reference(
        "segment reduction",
        segment_sum,
        "ids 100,r; f32 r,m",
        "r=2000 m=128",
        _SMALL_ROWS,
    ),
    Reference("jagged sum", jagged_sum, "f32 r,m; offsets r,b", _ROWS, _SMALL_ROWS),
    Reference("jagged mean", jagged_mean, "f32 r,m; offsets r,b", _ROWS, _SMALL_ROWS),
    Reference(
        "jagged softmax", jagged_softmax, "f32 r,m; offsets r,b", _ROWS, _SMALL_ROWS
    ),
    Reference(
        "jagged layer norm",
        jagged_layer_norm,
        "f32 r,m; offsets r,b",
        _ROWS,
        _SMALL_ROWS,
    ),
    Reference(
        "jagged dense add",
        jagged_dense_add,
        "f32 r; offsets r,b; f32 b,r",
        "r=512 b=8",
        "r=40 b=4",
    ),
    Reference(
        "jagged dense bmm",
        jagged_dense_bmm,
        "f32 r,m; offsets r,b; f32 b,m,m; f32 b,m",
        _ROWS,
        _SMALL_ROWS,
    ),
    Reference(
        "jagged hstu attention",
        jagged_hstu,
        "3*f32 r,h,d; offsets r,b",
        "r=1024 h=4 d=64 b=4",
        "r=36 h=2 d=16 b=3",
    ),
    Reference(
        "mamba2 chunk scan",
        mamba2_chunk_scan,
        "f16 b,c,g,s,s; f16 b,t,h,p; f16 b,h,c,s; f16decays b,h,c,s; f16 b,t,g,n; "
        "f16 b,c,h,p,n",
        _CHUNKS,
        _SMALL_CHUNKS,
    ),
    Reference(
        "mamba2 chunk state",
        mamba2_chunk_state,
        "f16 b,t,g,n; f16 b,t,h,p; f16 b,h,c,s; f16decays b,h,c,s",
        _CHUNKS,
        _SMALL_CHUNKS,
    ),
    Reference(
        "gated delta states",
        gated_delta_states,
        "bf16 b,t,h,d; bf16weights b,t,h,d; bf16 b,t,h,d; decays b,t,h",
        "b=8 t=1024 h=16 d=64",
        "b=1 t=64 h=2 d=16",
    ),
    Reference(
        "vanilla linear attention",
        vanilla_linear_attention,
        _QKV,
        _LINEAR,
        _SMALL_LINEAR,
    ),
    Reference("retention", retention, _QKV, _LINEAR, _SMALL_LINEAR),
    Reference(
        "simple gated linear attention",
        linear_attention,
        f"{_QKV}; decays b,h,t",
        _LINEAR,
        _SMALL_LINEAR,
    ),
    Reference(
        "mamba2 ssd",
        linear_attention,
        f"{_QKV}; decays b,h,t",
        "b=4 h=16 t=512 d=64",
        _SMALL_LINEAR,
    ),
    Reference(
        "gated linear attention",
        gated_linear_attention,
        f"{_QKV}; decays b,h,t,d",
        "b=4 h=16 t=128 d=64",
        _SMALL_LINEAR,
    ),
    Reference("delta rule", delta_rule, f"{_QKV}; scales b,h,t", _STEPS, _FEW_STEPS),
    Reference(
        "gated delta rule",
        delta_rule,
        f"{_QKV}; scales b,h,t; decays b,h,t",
        _STEPS,
        _FEW_STEPS,
    ),
    Reference(
        "kimi delta attention",
        delta_rule,
        f"{_QKV}; scales b,h,t; decays b,h,t,d",
        _STEPS,
        _FEW_STEPS,
    ),
)
"""The operators of Helion's examples."""
