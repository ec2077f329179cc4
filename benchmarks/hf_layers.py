"""Layers of PyTorch and of Hugging Face's transformers, unchanged, as kernels.

    python -m benchmarks.hf_layers
    python -m benchmarks.hf_layers --only llama --search
    python -m benchmarks.hf_layers --json layers.json

Each layer is made small from its model's configuration, with random weights, given to
`mirage.kernel`, and called as its model calls it.  Printed is for each whether it
traces, whether it is right (in Triton's interpreter, beside eager in float64), and with
--search how many kernels are launched, beside eager's number of operators.

Those of torch.nn are always there; the others need transformers 5, which is not part of
this project.

Exit code 0: all are right; 1: some are not, or do not trace; 2: none fits --only.
"""

# Layers are other people's modules, which no checker knows.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import mirage_dsl as mirage
from benchmarks.kernelbench_search import Checked, compared, eager_launches
from mirage_dsl.core.settings import INTERPRET, Effort
from mirage_dsl.cost.estimate import launched

TOKENS, HIDDEN = 16, 64
"""Of the one sequence, and numbers for each token."""

Built = tuple[nn.Module, dict[str, Any]]
"""A layer, and what its model calls it with."""


@dataclass(frozen=True)
class Layer:
    """A layer to try.

    Attributes:
        name: What it is called here.
        build: Makes it, and its arguments.
    """

    name: str
    build: Callable[[], Built]


@dataclass(frozen=True)
class Row:
    """What became of a layer.

    Attributes:
        name: Of the layer.
        reason: Why it does not trace or run, in one line; empty where it does.
        operators: Of its program.
        check: Its result beside eager's in float64.
        launches: Kernels of what a search found; 0 without a search.
        eager: Operators of eager that compute something.
        seconds: Of all of it.
    """

    name: str
    reason: str = ""
    operators: int = 0
    check: Checked | None = None
    launches: int = 0
    eager: int = 0
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """Whether it runs, and its numbers are eager's."""
        return self.check is not None and self.check.right


# -- torch.nn --------------------------------------------------------------------------


def _sequence() -> torch.Tensor:
    return torch.randn(1, TOKENS, HIDDEN)


def _encoder(**options: Any) -> Built:
    layer = nn.TransformerEncoderLayer(HIDDEN, 4, 128, batch_first=True, **options)
    return layer, {"src": _sequence()}


def _decoder() -> Built:
    layer = nn.TransformerDecoderLayer(HIDDEN, 4, 128, batch_first=True)
    return layer, {"tgt": _sequence(), "memory": torch.randn(1, 8, HIDDEN)}


def _attention() -> Built:
    x = _sequence()
    layer = nn.MultiheadAttention(HIDDEN, 4, batch_first=True)
    return layer, {"query": x, "key": x, "value": x}


def _padded() -> Built:
    layer, given = _encoder()
    mask = torch.zeros(1, TOKENS, dtype=torch.bool)
    mask[:, -3:] = True
    return layer, {**given, "src_key_padding_mask": mask}


def of_torch() -> Iterator[Layer]:
    """The layers of torch.nn."""
    yield Layer("nn.TransformerEncoderLayer", _encoder)
    yield Layer(
        "nn.TransformerEncoderLayer, norm first, GELU",
        lambda: _encoder(norm_first=True, activation="gelu"),
    )
    yield Layer("nn.TransformerEncoderLayer, padded", _padded)
    yield Layer("nn.TransformerDecoderLayer", _decoder)
    yield Layer("nn.MultiheadAttention", _attention)


# -- transformers ----------------------------------------------------------------------

SIZES: Mapping[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
OF_ITS_OWN: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {"head_dim": 16},
    "mistral": {"head_dim": 16, "sliding_window": 8},
    "gemma2": {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "gemma3": {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "gpt2": {"n_embd": HIDDEN, "n_head": 4, "n_layer": 2, "n_positions": 64},
    "vit": {"image_size": 32, "patch_size": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v2": {
        "kv_lora_rank": 32,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "head_dim": 8,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "n_group": 1,
        "topk_group": 1,
    },
}
MODELS: Mapping[str, str] = {
    "llama": "Llama",
    "qwen3": "Qwen3",
    "mistral": "Mistral",
    "gemma2": "Gemma2",
    "gemma3": "Gemma3",
    "phi3": "Phi3",
    "olmo2": "Olmo2",
    "gpt2": "GPT2",
    "bert": "Bert",
    "vit": "ViT",
    "mixtral": "Mixtral",
    "deepseek_v2": "DeepseekV2",
    "deepseek_v3": "DeepseekV3",
}
"""Models by their module, with what their classes begin with."""
PARTS: Mapping[str, tuple[str, ...]] = {
    "gpt2": ("Block", "Attention", "MLP"),
    "bert": ("Layer", "Attention"),
    "vit": ("Layer", "Attention", "MLP"),
    "mixtral": ("DecoderLayer", "Attention", "SparseMoeBlock"),
    "deepseek_v3": ("DecoderLayer", "Attention", "MLP", "MoE"),
}
IMPLEMENTATIONS = ("sdpa", "eager")
"""How attention is written: one call of PyTorch's, or products and a softmax."""


def of_transformers() -> Iterator[Layer]:
    """The layers of transformers; none where it is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return
    for model, prefix in MODELS.items():
        for part in PARTS.get(model, ("DecoderLayer", "Attention", "MLP")):
            attends = part not in ("MLP", "MoE", "SparseMoeBlock")
            ways = IMPLEMENTATIONS if attends else IMPLEMENTATIONS[:1]
            # Its logits are capped, which one call of PyTorch's does not do.
            for how in ways[-1:] if model == "gemma2" else ways:
                name = f"{prefix}{part}" + (f", {how}" if attends else "")
                yield Layer(name, lambda m=model, p=part, h=how: _made(m, p, h))


def _config(model: str, prefix: str) -> Any:
    """The configuration of a model, of small sizes."""
    kinds = importlib.import_module("transformers")
    name = "Gemma3TextConfig" if prefix == "Gemma3" else f"{prefix}Config"
    kind = getattr(kinds, name)
    own = OF_ITS_OWN.get(model) or OF_ITS_OWN.get(model.replace("_v3", "_v2"), {})
    own = own if model != "llama" else {}
    return kind(**{**SIZES, **own})


def _made(model: str, part: str, how: str) -> Built:
    """A part of a model, and what the model calls it with."""
    prefix = MODELS[model]
    names = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    config = _config(model, prefix)
    config._attn_implementation = how
    kind = getattr(names, prefix + part)
    x = _sequence()
    if part in ("MLP", "MoE", "SparseMoeBlock"):
        layer = kind(128, config) if model == "gpt2" else kind(config)
        return _filled(layer), _first(layer, x)
    layer = kind(config) if model in ("bert", "vit") else kind(config, 0)
    given = _first(layer, x)
    if model in ("bert", "vit"):
        return _filled(layer), given
    mask = torch.full((TOKENS, TOKENS), float("-inf")).triu(1)
    given["attention_mask"] = mask[None, None]
    if model != "gpt2":
        positions = torch.arange(TOKENS)[None]
        rotary = getattr(names, f"{prefix}RotaryEmbedding")(config)
        kinds = getattr(config, "layer_types", None) if model == "gemma3" else None
        extra = (kinds[0],) if kinds else ()
        given["position_embeddings"] = rotary(x, positions, *extra)
    return _filled(layer), given


def _first(layer: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """The first argument of a layer's forward, by its name."""
    code: Any = layer.forward
    names = code.__wrapped__ if hasattr(code, "__wrapped__") else code
    own = list(inspect.signature(names).parameters)
    return {own[0] if own[0] != "self" else own[1]: x}


def _filled(layer: nn.Module) -> nn.Module:
    """Random weights where a model would load them."""
    for name, parameter in layer.named_parameters():
        scale = 0.3 if parameter.ndim > 1 else 0.1
        nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, scale)
    return layer


# -- Trying ----------------------------------------------------------------------------


def tried(layer: Layer, effort: Effort = "none", budget: float = 20.0) -> Row:
    """What becomes of one layer."""
    began = time.monotonic()
    torch.manual_seed(0)
    try:
        module, given = layer.build()
        module = module.eval()
        with torch.no_grad(), INTERPRET.scope(True):
            exact = copy.deepcopy(module).double()(**tree_map(_double, given))
            plain = copy.deepcopy(module)(**copy.deepcopy(given))
            eager = eager_launches(_Called(copy.deepcopy(module), given), ())
            kernel = mirage.kernel(
                effort=effort, budget_seconds=budget, config={"use_cache": False}
            )(module)
            bound = kernel.bind(**given)
            found = kernel(**given)
            check = compared(*map(tree_leaves, (found, plain, exact)))
            count = len(launched(bound.mugraph)) if effort != "none" else 0
    except Exception as error:
        own = isinstance(error, mirage.MirageError)
        text = str(error.message) if own else f"{type(error).__name__}: {error}"
        reason = text.strip().splitlines()[0] if text.strip() else repr(error)
        return Row(layer.name, reason, seconds=time.monotonic() - began)
    seconds = time.monotonic() - began
    operators = len(bound.program.nodes)
    return Row(layer.name, "", operators, check, count, eager, seconds)


class _Called(nn.Module):
    """A layer with its arguments, to be called without."""

    def __init__(self, layer: nn.Module, given: Mapping[str, Any]) -> None:
        super().__init__()
        self._layer, self._given = layer, given

    def forward(self) -> Any:
        """The layer's result."""
        return self._layer(**self._given)


def _double(value: Any) -> Any:
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floats else value


def line_of(row: Row) -> str:
    """A row of the table."""
    said = row.reason
    if row.check is not None:
        error = f"{row.check.error:.1e}, eager {row.check.eager:.1e}"
        said = f"{'right' if row.right else 'WRONG'} ({error}), "
        said += f"{row.operators} operators"
        said += f", {row.launches} launches" if row.launches else ""
        said += f", eager {row.eager}"
    return f"{row.name:<46} {row.seconds:6.1f} s  {said}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all layers, and print what became of them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hf_layers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="layers with this in their names")
    parser.add_argument("--search", action="store_true", help="search each of them")
    parser.add_argument("--json", type=Path, help="write the rows to this file as well")
    given = parser.parse_args(arguments)
    layers = [*of_torch(), *of_transformers()]
    layers = [one for one in layers if given.only.lower() in one.name.lower()]
    if not layers:
        print("no layer fits --only")
        return 2
    rows: list[Row] = []
    for layer in layers:
        rows.append(tried(layer, "quick" if given.search else "none"))
        print(line_of(rows[-1]), flush=True)
    print(f"{sum(row.right for row in rows)} of {len(rows)} are right")
    if given.json is not None:
        text = json.dumps([asdict(row) for row in rows], indent=1)
        given.json.write_text(text + "\n", encoding="utf-8")
    return int(not all(row.right for row in rows))


if __name__ == "__main__":
    sys.exit(main())
