"""The workloads of the project: plain functions with their sizes, small and full.

They serve the tests and the benchmarks; nothing of the compiler knows them.  Each is
written once against a namespace `m` of functions, so the same text runs on symbolic
tensors (`mirage_dsl`) and on float64 arrays (`tests.programs.reference`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Function = Callable[..., Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Workload:
    """A program at its published sizes and at sizes fit for an interpreter.

    Attributes:
        name: Its short name.
        function: Takes the namespace, then the tensors.
        full: Shape of each tensor, by name, as published, for batch 1.
        small: The same shapes reduced.
        dtype: Storage format.
        batched: Shapes by batch, where the published batches are 1, 8 and 16.
        rows: Of a linear layer, the inputs whose first axis counts the rows.
    """

    name: str
    function: Function
    full: dict[str, Shape]
    small: dict[str, Shape]
    dtype: str = "float16"
    batched: Callable[[int], dict[str, Shape]] | None = None
    rows: tuple[str, ...] = ()

    def at_batch(self, batch: int) -> dict[str, Shape]:
        """The published shapes at a batch."""
        return self.full if self.batched is None else self.batched(batch)

    def at_rows(self, count: int) -> dict[str, Shape]:
        """The published shapes with so many rows, as when a prompt is read."""
        return {
            name: (count, *shape[1:]) if name in self.rows else shape
            for name, shape in self.full.items()
        }


def _rmsnorm_linear(m: Any, x: Any, w: Any) -> Any:
    return m.rms_norm(x) @ w


def _gated_mlp(m: Any, x: Any, w1: Any, w2: Any) -> Any:
    return m.silu(x @ w1) * (x @ w2)


def _lora(m: Any, x: Any, w: Any, a: Any, b: Any) -> Any:
    return x @ w + (x @ a) @ b


def _attention(m: Any, q: Any, k: Any, v: Any) -> Any:
    return m.softmax(q @ k) @ v


def _qknorm(m: Any, q: Any, k: Any, v: Any) -> Any:
    logits = m.rms_norm(q) @ m.transpose(m.rms_norm(k), (0, 2, 1))
    return m.softmax(logits / 8) @ v


def _ntrans(m: Any, x: Any, h: Any, alpha: Any) -> Any:
    return m.rms_norm(x + alpha * (m.rms_norm(h) - x))


def _scaled_attention(m: Any, q: Any, k: Any, v: Any) -> Any:
    scale = 1 / q.shape[-1] ** 0.5
    return m.softmax((q @ m.transpose(k, (0, 2, 1))) * scale) @ v


def _multi_query(m: Any, q: Any, k: Any, v: Any) -> Any:
    return m.softmax(q @ k.T) @ v


def _moe(m: Any, x: Any, a: Any, b: Any) -> Any:
    return m.silu(x @ a) @ b


def _latent_attention(m: Any, q: Any, c: Any, wk: Any, wv: Any) -> Any:
    return m.softmax(q @ (c @ wk).T) @ (c @ wv)


def _layernorm_linear(m: Any, x: Any, g: Any, b: Any, w: Any) -> Any:
    return m.layer_norm(x, weight=g, bias=b) @ w


def _groupnorm_linear(m: Any, x: Any, w: Any) -> Any:
    return m.group_norm(x, 4) @ w


def _batchnorm_linear(m: Any, x: Any, mean: Any, var: Any, w: Any) -> Any:
    return m.batch_norm(x, mean, var) @ w


def _norm_lora(m: Any, x: Any, w: Any, a: Any, b: Any) -> Any:
    y = m.rms_norm(x)
    return y @ w + (y @ a) @ b


def _norm_gain_linear(m: Any, x: Any, g: Any, w: Any) -> Any:
    return m.rms_norm(x, weight=g) @ w


def _silu_gate_linear(m: Any, x: Any, y: Any, w: Any) -> Any:
    return (m.silu(x) * y) @ w


def _norm_gated(m: Any, x: Any, w_up: Any, w_gate: Any) -> Any:
    return (m.rms_norm(x) @ w_up) * (m.rms_norm(x) @ w_gate)


def _exp_two_linear(m: Any, x: Any, a: Any, b: Any) -> Any:
    return m.exp(x @ a) @ b


PAPER: tuple[Workload, ...] = (
    Workload(
        "rmsnorm_linear",
        _rmsnorm_linear,
        {"x": (2, 4096), "w": (4096, 6144)},
        {"x": (5, 96), "w": (96, 80)},
        batched=lambda b: {"x": (2 * b, 4096), "w": (4096, 6144)},
        rows=("x",),
    ),
    Workload(
        "gated_mlp",
        _gated_mlp,
        {"x": (8, 4096), "w1": (4096, 4096), "w2": (4096, 4096)},
        {"x": (8, 64), "w1": (64, 96), "w2": (64, 96)},
        batched=lambda b: {"x": (8 * b, 4096), "w1": (4096, 4096), "w2": (4096, 4096)},
        rows=("x",),
    ),
    Workload(
        "lora",
        _lora,
        {"x": (1, 4096), "w": (4096, 4096), "a": (4096, 16), "b": (16, 4096)},
        {"x": (3, 96), "w": (96, 64), "a": (96, 16), "b": (16, 64)},
        batched=lambda b: {
            "x": (b, 4096),
            "w": (4096, 4096),
            "a": (4096, 16),
            "b": (16, 4096),
        },
        rows=("x",),
    ),
    Workload(
        "gqa",
        _attention,
        {"q": (2, 256, 64), "k": (2, 64, 4096), "v": (2, 4096, 64)},
        {"q": (2, 20, 16), "k": (2, 16, 72), "v": (2, 72, 16)},
        batched=lambda b: {
            "q": (2 * b, 256, 64),
            "k": (2 * b, 64, 4096),
            "v": (2 * b, 4096, 64),
        },
    ),
    Workload(
        "qknorm",
        _qknorm,
        {"q": (2, 256, 64), "k": (2, 4096, 64), "v": (2, 4096, 64)},
        {"q": (2, 20, 16), "k": (2, 72, 16), "v": (2, 72, 16)},
        batched=lambda b: {
            "q": (2 * b, 256, 64),
            "k": (2 * b, 4096, 64),
            "v": (2 * b, 4096, 64),
        },
    ),
    Workload(
        "ntrans",
        _ntrans,
        {"x": (8, 4096), "h": (8, 4096), "alpha": (8, 4096)},
        {"x": (6, 96), "h": (6, 96), "alpha": (6, 96)},
        batched=lambda b: dict.fromkeys(("x", "h", "alpha"), (8 * b, 4096)),
    ),
)
"""The paper's six programs (arXiv 2405.05751, table 4)."""

CIRCLE: tuple[Workload, ...] = (
    Workload(
        "lora_small",
        _lora,
        {"x": (16, 256), "w": (256, 4096), "a": (256, 16), "b": (16, 4096)},
        {"x": (4, 32), "w": (32, 48), "a": (32, 16), "b": (16, 48)},
        batched=lambda b: {
            "x": (16 * b, 256),
            "w": (256, 4096),
            "a": (256, 16),
            "b": (16, 4096),
        },
        rows=("x",),
    ),
    Workload(
        "mha",
        _scaled_attention,
        {"q": (32, 16, 64), "k": (32, 4096, 64), "v": (32, 4096, 64)},
        {"q": (3, 16, 16), "k": (3, 40, 16), "v": (3, 40, 16)},
        batched=lambda b: {
            "q": (32 * b, 16, 64),
            "k": (32 * b, 4096, 64),
            "v": (32 * b, 4096, 64),
        },
    ),
    Workload(
        "mqa",
        _multi_query,
        {"q": (1, 1024, 64), "k": (4096, 64), "v": (4096, 64)},
        {"q": (1, 24, 16), "k": (40, 16), "v": (40, 16)},
        batched=lambda b: {"q": (b, 1024, 64), "k": (4096, 64), "v": (4096, 64)},
    ),
    Workload(
        "decode_attention",
        _scaled_attention,
        {"q": (64, 1, 128), "k": (64, 4096, 128), "v": (64, 4096, 128)},
        {"q": (3, 1, 32), "k": (3, 40, 32), "v": (3, 40, 32)},
    ),
    Workload(
        "moe",
        _moe,
        {"x": (8, 8, 4096), "a": (8, 4096, 4096), "b": (8, 4096, 4096)},
        {"x": (3, 8, 32), "a": (3, 32, 48), "b": (3, 48, 32)},
    ),
    Workload(
        "latent_attention",
        _latent_attention,
        {"q": (16, 128), "c": (4096, 512), "wk": (512, 128), "wv": (512, 128)},
        {"q": (16, 16), "c": (48, 32), "wk": (32, 16), "wv": (32, 16)},
    ),
    Workload(
        "layernorm_linear",
        _layernorm_linear,
        {"x": (16, 4096), "g": (4096,), "b": (4096,), "w": (4096, 6144)},
        {"x": (5, 64), "g": (64,), "b": (64,), "w": (64, 48)},
        rows=("x",),
    ),
    Workload(
        "groupnorm_linear",
        _groupnorm_linear,
        {"x": (16, 4096), "w": (4096, 6144)},
        {"x": (5, 64), "w": (64, 48)},
        rows=("x",),
    ),
    Workload(
        "batchnorm_linear",
        _batchnorm_linear,
        {"x": (16, 4096), "mean": (4096,), "var": (4096,), "w": (4096, 6144)},
        {"x": (5, 64), "mean": (64,), "var": (64,), "w": (64, 48)},
        rows=("x",),
    ),
    Workload(
        "norm_lora",
        _norm_lora,
        {"x": (16, 4096), "w": (4096, 4096), "a": (4096, 16), "b": (16, 4096)},
        {"x": (5, 64), "w": (64, 48), "a": (64, 16), "b": (16, 48)},
        rows=("x",),
    ),
    Workload(
        "norm_gain_linear",
        _norm_gain_linear,
        {"x": (16, 3584), "g": (3584,), "w": (3584, 4608)},
        {"x": (5, 56), "g": (56,), "w": (56, 72)},
        rows=("x",),
    ),
    Workload(
        "silu_gate_linear",
        _silu_gate_linear,
        {"x": (1, 18944), "y": (1, 18944), "w": (18944, 3584)},
        {"x": (1, 74), "y": (1, 74), "w": (74, 56)},
        rows=("x", "y"),
    ),
    Workload(
        "norm_gated",
        _norm_gated,
        {"x": (16, 4096), "w_up": (4096, 14336), "w_gate": (4096, 14336)},
        {"x": (5, 64), "w_up": (64, 48), "w_gate": (64, 48)},
        rows=("x",),
    ),
    Workload(
        "exp_two_linear",
        _exp_two_linear,
        {"x": (16, 1024), "a": (1024, 1024), "b": (1024, 1024)},
        {"x": (5, 32), "a": (32, 48), "b": (48, 32)},
        rows=("x",),
    ),
    Workload(
        "qwen_linear",
        _rmsnorm_linear,
        {"x": (16, 2048), "w": (2048, 2560)},
        {"x": (5, 33), "w": (33, 77)},
        dtype="bfloat16",
        rows=("x",),
    ),
    Workload(
        "rmsnorm_linear_f32",
        _rmsnorm_linear,
        {"x": (16, 1000), "w": (1000, 4099)},
        {"x": (5, 77), "w": (77, 50)},
        dtype="float32",
        rows=("x",),
    ),
)
"""The wider circle of the paper: other norms, attentions, sizes and dtypes."""

WORKLOADS: tuple[Workload, ...] = PAPER + CIRCLE
