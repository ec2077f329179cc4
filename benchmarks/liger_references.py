"""What Liger's forward operators compute, as plain PyTorch, from the definitions.

Liger (https://github.com/linkedin/Liger-Kernel) has a kernel for each of these.  The
functions are written as one writes them who knows the operator, and need nothing of
Liger.
"""

# Element types of PyTorch's results are not told to checkers.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from benchmarks.reference_cases import IGNORED, Reference

# -- Norms and activations -------------------------------------------------------------


def normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * normed(x.float()).to(x.dtype)


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    summed = x + residual
    return rms_norm(summed, weight), summed


def modulated_rms_norm(
    x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor
) -> Tensor:
    return rms_norm(x, weight) * (1 + scale[:, None]) + shift[:, None]


def poly_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A sum of the norms of the powers of its input."""
    found = weight[0] * normed(x**3) + weight[1] * normed(x**2) + weight[2] * normed(x)
    return found + bias


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-6)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.group_norm(x, 8, weight, bias, 1e-6)


def dynamic_tanh(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return gamma * torch.tanh(alpha * x) + beta


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def sparsemax(x: Tensor) -> Tensor:
    """The point of the simplex that is nearest to each row."""
    ordered = torch.sort(x, dim=-1, descending=True)[0]
    count = torch.arange(1, x.shape[-1] + 1, device=x.device)
    inside = 1 + count * ordered > ordered.cumsum(-1)
    size = inside.sum(-1, keepdim=True)
    threshold = ((ordered * inside).sum(-1, keepdim=True) - 1) / size
    return torch.relu(x - threshold)


def relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


def geglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    inner = F.gelu(F.linear(x, gate), approximate="tanh") * F.linear(x, up)
    return F.linear(inner, down)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """With multipliers at the gate and behind it all, as Falcon-H1's."""
    return F.linear(swiglu(F.linear(x, gate) * 0.5, F.linear(x, up)), down) * 2.0


def tiled_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    tiles = x.chunk(4, dim=1)
    made = [F.linear(swiglu(F.linear(t, gate), F.linear(t, up)), down) for t in tiles]
    return torch.cat(made, dim=1)


# -- Positions, tables, narrow weights -------------------------------------------------


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return rotated(q, cos, sin), rotated(k, cos, sin)


def qwen2vl_mrope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Sections of each half turn by time, height and width; angles are [3, b, t, d]."""
    quarter = q.shape[-1] // 8
    sections = [quarter, quarter, 2 * quarter] * 2

    def chosen(angles: Tensor) -> Tensor:
        parts = angles.split(sections, dim=-1)
        found = [part[number % 3] for number, part in enumerate(parts)]
        return torch.cat(found, dim=-1).unsqueeze(1)

    return rotated(q, chosen(cos), chosen(sin)), rotated(k, chosen(cos), chosen(sin))


def llama4_rope(q: Tensor, k: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours are the parts of a complex number; `turns` has them as last axis."""

    def turned(x: Tensor) -> Tensor:
        real, imaginary = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = (part[:, :, None] for part in turns.unbind(-1))
        parts = real * cos - imaginary * sin, real * sin + imaginary * cos
        return torch.stack(parts, dim=-1).flatten(-2).to(x.dtype)

    return turned(q), turned(k)


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    made = F.embedding(ids, weight).clone()
    made[ids == 0] = 0
    return made


def int8_by_int2(x: Tensor, packed: Tensor) -> Tensor:
    """Four weights of -1, 0, 1 or 2 in a byte: rows of four matrices."""
    parts = [(packed >> (2 * i)) & 3 for i in range(4)]
    return x.float() @ (torch.cat(parts).float() - 1)


# -- Attention and its parts -----------------------------------------------------------


def attention_residual(values: Tensor, query: Tensor, weight: Tensor) -> Tensor:
    """Earlier layers, weighed by a softmax of their normed product with a query."""
    keys = normed(values.float()).to(values.dtype) * weight
    scores = (keys.float() * query.float()).sum(-1)
    return (scores.softmax(0)[..., None] * values.float()).sum(0).to(values.dtype)


def neighborhood_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each token sees three on either side."""
    here = torch.arange(q.shape[-2], device=q.device)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    far = (here[:, None] - here).abs() > 3
    return scores.masked_fill(far, -torch.inf).softmax(-1) @ v


def multi_token_attention(scores: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Weights of attention, of which neighbours are mixed by a convolution."""
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    p = scores.masked_fill(~seen, -1e9).softmax(-1)
    mixed = F.conv2d(p, weight, bias, padding=weight.shape[-1] // 2)
    return mixed.masked_fill(~seen, 0.0)


def hyper_connections(
    x: Tensor, phi: Tensor, bias: Tensor, alpha: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients of 4 streams of a residual; the third is scaled to row sums of 1."""
    flat = x.flatten(-2).float()
    mixed = normed(flat) @ phi
    before = torch.sigmoid(mixed[..., :4] * alpha[0] + bias[:4])
    behind = 2 * torch.sigmoid(mixed[..., 4:8] * alpha[1] + bias[4:8])
    matrix = (mixed[..., 8:] * alpha[2] + bias[8:]).unflatten(-1, (4, 4))
    matrix = matrix.softmax(-1)
    for _ in range(3):
        matrix = matrix / (matrix.sum(-2, keepdim=True) + 1e-6)
        matrix = matrix / (matrix.sum(-1, keepdim=True) + 1e-6)
    return before, behind, matrix


def fused_moe(
    x: Tensor, gate_up: Tensor, down: Tensor, experts: Tensor, shares: Tensor
) -> Tensor:
    """Each token by all of its experts, with its share of each."""
    made = torch.zeros_like(x)
    for number in range(gate_up.shape[0]):
        share = ((experts == number) * shares).sum(-1, keepdim=True)
        gate, up = F.linear(x, gate_up[number]).chunk(2, dim=-1)
        made = made + share * F.linear(F.silu(gate) * up, down[number])
    return made


# -- Losses ----------------------------------------------------------------------------


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """With smoothed labels, and a penalty for large sums of exponentials."""
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, label_smoothing=0.1)
    there = labels != IGNORED
    squares = torch.where(there, torch.logsumexp(logits, dim=-1) ** 2, 0.0)
    penalty = 1e-4 * squares.sum() / there.sum()
    return loss + penalty, penalty


def fused_linear_cross_entropy(x: Tensor, w: Tensor, labels: Tensor) -> Tensor:
    """Of logits that are capped."""
    logits = 30.0 * torch.tanh(F.linear(x, w).float() / 30.0)
    return F.cross_entropy(logits, labels, ignore_index=IGNORED)


def fused_linear_scaled_cross_entropy(
    x: Tensor, w: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss of each token, and the entropy of what was predicted."""
    log_p = (F.linear(x, w).float() / 0.7).log_softmax(-1)
    loss = F.nll_loss(log_p, labels, ignore_index=IGNORED, reduction="none")
    entropy = -(log_p.exp() * log_p).sum(-1)
    return loss, torch.where(labels != IGNORED, entropy, 0.0)


def vocab_parallel_cross_entropy(
    logits: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What one rank, with the first columns, gives to the collectives."""
    largest = logits.float().max(-1, keepdim=True)[0]
    shifted = logits.float() - largest
    inside = labels < logits.shape[-1]
    own = shifted.gather(-1, torch.where(inside, labels, 0)[:, None])[:, 0]
    return largest[:, 0], shifted.exp().sum(-1), torch.where(inside, own, 0.0)


def jsd(log_q: Tensor, log_p: Tensor, labels: Tensor) -> Tensor:
    """Jensen and Shannon's divergence of the tokens that count."""
    log_m = torch.log(torch.lerp(log_q.exp(), log_p.exp(), 0.5))
    near = F.kl_div(log_m, log_p, reduction="none", log_target=True)
    far = F.kl_div(log_m, log_q, reduction="none", log_target=True)
    there = labels != IGNORED
    each = torch.where(there, 0.5 * (near + far).sum(-1), 0.0)
    return each.sum() / there.sum().clamp(min=1)


def fused_linear_jsd(
    x: Tensor, w: Tensor, y: Tensor, u: Tensor, labels: Tensor
) -> Tensor:
    student = F.linear(x, w).float().log_softmax(-1)
    teacher = F.linear(y, u).float().log_softmax(-1)
    return jsd(student, teacher, labels)


def kl_div(log_q: Tensor, p: Tensor) -> Tensor:
    return F.kl_div(log_q, p, reduction="batchmean")


def total_variation(p: Tensor, q: Tensor, labels: Tensor) -> Tensor:
    there = labels != IGNORED
    each = torch.where(there[:, None], (p - q).abs() / 2, 0.0)
    return each.sum() / there.sum().clamp(min=1)


def grpo_loss(
    logits: Tensor, ids: Tensor, old: Tensor, reference: Tensor, advantages: Tensor
) -> tuple[Tensor, Tensor]:
    """Clipped policy gradient of chosen tokens, with a penalty for leaving a policy."""
    scores = logits[:, :-1].float() / 0.9
    own = scores.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - scores.logsumexp(-1)
    ratio = torch.exp(own - old)
    gain = advantages.unsqueeze(1)
    loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
    penalty = torch.expm1(reference - own) - (reference - own)
    return loss + 0.04 * penalty, penalty


# -- With arguments and sizes ----------------------------------------------------------

_MLP, _SMALL_MLP = "b=1 t=2048 h=4096 n=11008", "b=1 t=16 h=32 n=64"
_PLANE, _SMALL = "t=4096 n=4096", "t=32 n=64"
_VOCABULARY, _SMALL_VOCABULARY = "t=4096 v=32000 h=4096", "t=32 v=128 h=32"
_ROPE, _SMALL_ROPE = "b=1 h=32 g=8 t=2048 d=128", "b=2 h=4 g=2 t=8 d=16"

REFERENCES = (
    Reference(
        "attention residual",
        attention_residual,
        "bf16 l,b,t,n; 2*bf16 n",
        "l=8 b=2 t=1024 n=1024",
        "l=4 b=2 t=8 n=32",
    ),
    Reference(
        "cross entropy",
        cross_entropy,
        "f32 t,v; labels v,t",
        _VOCABULARY,
        _SMALL_VOCABULARY,
    ),
    Reference("dynamic tanh", dynamic_tanh, "f32 t,n; f32 1; 2*f32 n", _PLANE, _SMALL),
    Reference(
        "embedding", embedding, "ids v,t; f32 v,h", _VOCABULARY, _SMALL_VOCABULARY
    ),
    Reference(
        "fused add rms norm",
        fused_add_rms_norm,
        "2*f16 t,n; f16 n",
        _PLANE,
        _SMALL,
    ),
    Reference(
        "fused linear cross entropy",
        fused_linear_cross_entropy,
        "bf16 t,h; bf16weights v,h; labels v,t",
        _VOCABULARY,
        _SMALL_VOCABULARY,
    ),
    Reference(
        "fused linear jsd",
        fused_linear_jsd,
        "f32 t,h; weights v,h; f32 t,h; weights v,h; labels v,t",
        _VOCABULARY,
        _SMALL_VOCABULARY,
    ),
    Reference(
        "fused linear scaled cross entropy",
        fused_linear_scaled_cross_entropy,
        "f32 t,h; weights v,h; labels v,t",
        _VOCABULARY,
        _SMALL_VOCABULARY,
    ),
    Reference(
        "fused moe",
        fused_moe,
        "f32 t,h; weights e,n,h; weights e,h,n/2; ids e,t,2; p t,2",
        "t=2048 h=1024 n=2048 e=8",
        "t=16 h=32 n=64 e=4",
    ),
    Reference(
        "fused neighborhood attention",
        neighborhood_attention,
        "3*f32 b,h,t,d",
        "b=2 h=8 t=1024 d=64",
        "b=1 h=2 t=16 d=16",
    ),
    Reference(
        "geglu", geglu, "f16 b,t,h; 2*f16weights n,h; f16weights h,n", _MLP, _SMALL_MLP
    ),
    Reference(
        "group norm",
        group_norm,
        "f32 b,n,t; 2*f32 n",
        "b=16 n=32 t=4096",
        "b=2 n=16 t=32",
    ),
    Reference(
        "grpo loss",
        grpo_loss,
        "f32 b,t+1,v; ids v,b,t; 2*f32 b,t; f32 b",
        "b=8 t=1024 v=32000",
        "b=2 t=8 v=64",
    ),
    Reference("jsd", jsd, "2*logp t,v; labels v,t", _VOCABULARY, _SMALL_VOCABULARY),
    Reference("kl div", kl_div, "logp t,v; p t,v", _VOCABULARY, _SMALL_VOCABULARY),
    Reference("layer norm", layer_norm, "f32 t,n; 2*f32 n", _PLANE, _SMALL),
    Reference(
        "llama4 rope",
        llama4_rope,
        "f32 b,t,h,d; f32 b,t,g,d; f32 b,t,d/2,2",
        _ROPE,
        _SMALL_ROPE,
    ),
    Reference(
        "hyper connections",
        hyper_connections,
        "f32 b,t,4,c; weights cx4,24; f32 24; f32 3",
        "b=2 t=1024 c=1024",
        "b=1 t=8 c=16",
    ),
    Reference(
        "mlp", mlp, "f16 b,t,h; 2*f16weights n,h; f16weights h,n", _MLP, _SMALL_MLP
    ),
    Reference(
        "int8 x int2 gemm",
        int8_by_int2,
        "i8 t,n; u8 n/4,h",
        "t=16 n=2048 h=4096",
        "t=16 n=64 h=32",
    ),
    Reference(
        "modulated rms norm",
        modulated_rms_norm,
        "bf16 b,t,n; bf16 n; 2*bf16 b,n",
        "b=4 t=1024 n=4096",
        "b=2 t=8 n=64",
    ),
    Reference(
        "multi token attention",
        multi_token_attention,
        "f32 b,h,t,t; weights h,h,3,3; f32 h",
        "b=2 h=8 t=512",
        "b=1 h=4 t=16",
    ),
    Reference("poly norm", poly_norm, "f32 t,n; f32 3; f32 1", _PLANE, _SMALL),
    Reference(
        "qwen2vl mrope",
        qwen2vl_mrope,
        "f32 b,h,t,d; f32 b,g,t,d; 2*f32 3,b,t,d",
        _ROPE,
        _SMALL_ROPE,
    ),
    Reference("relu squared", relu_squared, "f32 t,n", _PLANE, _SMALL),
    Reference("rms norm", rms_norm, "bf16 t,n; bf16 n", _PLANE, _SMALL),
    Reference(
        "rope", rope, "f16 b,h,t,d; f16 b,g,t,d; 2*f16 b,t,d", _ROPE, _SMALL_ROPE
    ),
    Reference("softmax", softmax, "f32 t,n", _PLANE, _SMALL),
    Reference("sparsemax", sparsemax, "f32 t,n", "t=4096 n=2048", _SMALL),
    Reference("swiglu", swiglu, "2*f16 t,n", _PLANE, _SMALL),
    Reference(
        "tiled mlp",
        tiled_mlp,
        "f16 b,t,h; 2*f16weights n,h; f16weights h,n",
        _MLP,
        _SMALL_MLP,
    ),
    Reference(
        "tvd", total_variation, "2*p t,v; labels v,t", _VOCABULARY, _SMALL_VOCABULARY
    ),
    Reference(
        "vocab parallel cross entropy",
        vocab_parallel_cross_entropy,
        "bf16 t,v; ids 131072,t",
        _VOCABULARY,
        _SMALL_VOCABULARY,
    ),
)
"""The forward operators of Liger."""
