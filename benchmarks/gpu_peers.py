"""What the workloads are measured beside: other ways to compute them on a GPU.

A peer gets its inputs in the layouts that it likes, prepared outside of what is timed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import torch_functions
from tests.programs.workloads import Workload

Call = Callable[..., Any]
Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class Peer:
    """Another way to compute a workload.

    Attributes:
        name: Of the system.
        call: Takes what `prepare` gives.
        prepare: The inputs in the layout that it likes.
        restore: Its output with the workload's shape.
        whole: Whether it computes all of the program.
    """

    name: str
    call: Call
    prepare: Callable[[Tensors], Tensors] = list
    restore: Callable[[Tensor], Tensor] = lambda out: out
    whole: bool = True

    def out(self, tensors: Tensors) -> Tensor:
        """The workload's result."""
        return self.restore(self.call(*self.prepare(tensors)))


def unfused(workload: Workload) -> Call:
    """The program as users write it, operator by operator."""
    return functools.partial(workload.function, torch_functions)


def peers(workload: Workload, names: Sequence[str]) -> Iterator[Peer]:
    """Eager, by whose errors results are right, and the peers that are asked for."""
    yield Peer("eager", unfused(workload))
    if "compile" in names:
        yield Peer("compile", _compiled(unfused(workload)))
    attention = ATTENTION.get(workload.name)
    for name, backend in BACKENDS.items():
        if attention is not None and name in names:
            yield attention.peer(name, backend)
    products = PRODUCTS.get(workload.name)
    if products is not None and "cublas" in names:
        yield Peer("cublas", _bare(workload, products), whole=False)
    for name in OPTIONAL:
        if name in names:
            yield from optional_peer(workload, name)


def optional_peer(workload: Workload, name: str) -> Iterator[Peer]:
    """A peer that need not be installed, nor have the workload.

    Where it is installed and cannot be imported, the call says why.
    """
    package, module = OPTIONAL[name]
    if importlib.util.find_spec(package) is None:
        return
    try:
        functions: Mapping[str, Call] = importlib.import_module(module).FUNCTIONS
    except Exception as error:
        yield Peer(name, functools.partial(_refuse, package, error))
    else:
        if workload.name in functions:
            yield Peer(name, functions[workload.name])


def _refuse(package: str, error: Exception, *_: Tensor) -> Tensor:
    raise RuntimeError(f"{package} cannot be imported: {error}") from error


OPTIONAL: Mapping[str, tuple[str, str]] = {
    "liger": ("liger_kernel", "benchmarks.liger_functions"),
    "helion": ("helion", "benchmarks.helion_functions"),
}
"""The package of each optional peer, and where its workloads are written with it."""


def _compiled(call: Call) -> Call:
    # One program after the other is compiled for fixed shapes; CUDA graphs are ours.
    torch._dynamo.reset()
    return torch.compile(call, mode="max-autotune-no-cudagraphs", dynamic=False)


# -- Attention -------------------------------------------------------------------------

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def _same(x: Tensor) -> Tensor:
    return x


def _normed(x: Tensor) -> Tensor:
    return torch_functions.rms_norm(x)


@dataclass(frozen=True)
class Attention:
    """How a workload is put to `scaled_dot_product_attention`.

    Attributes:
        scale: Of the logits.
        keys_last: Whether K comes as (.., d, n), and is wanted as (.., n, d).
        normed: Whether the rows of Q and K are normalised first.
    """

    scale: float | None
    keys_last: bool = False
    normed: bool = False

    def peer(self, name: str, backend: SDPBackend) -> Peer:
        """The peer with one of PyTorch's backends."""
        norm = _compiled(_normed) if self.normed else _same

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    norm(q),
                    norm(k),
                    v,
                    scale=self.scale,
                    enable_gqa=q.shape[1] != k.shape[1],
                )

        return Peer(name, call, self._heads, lambda out: out[0])

    def _heads(self, tensors: Tensors) -> Tensors:
        """One batch of so many heads, each (rows, d), contiguous."""
        q, k, v = tensors
        if self.keys_last:
            k = k.transpose(-1, -2).contiguous()
        return [
            t.view(1, -1, *t.shape[-2:]) if t.dim() == 3 else t.view(1, 1, *t.shape)
            for t in (q, k, v)
        ]


ATTENTION = {
    "gqa": Attention(scale=1.0, keys_last=True),
    "qknorm": Attention(scale=0.125, normed=True),
    "mha": Attention(scale=None),
    "mqa": Attention(scale=1.0),
    "decode_attention": Attention(scale=None),
}

# -- Bare products ---------------------------------------------------------------------

PRODUCTS = {
    "rmsnorm_linear": ("w",),
    "gated_mlp": ("w1", "w2"),
    "lora": ("w",),
    "lora_small": ("w",),
    "moe": ("a",),
    "layernorm_linear": ("w",),
    "groupnorm_linear": ("w",),
    "batchnorm_linear": ("w",),
    "norm_lora": ("w",),
    "norm_gain_linear": ("w",),
    "silu_gate_linear": ("w",),
    "norm_gated": ("w_up", "w_gate"),
    "qwen_linear": ("w",),
    "rmsnorm_linear_f32": ("w",),
}
"""The weights by which each workload multiplies its first input."""


def _bare(workload: Workload, weights: Sequence[str]) -> Call:
    names = list(workload.full)
    places = [names.index(w) for w in weights]

    def call(*tensors: Tensor) -> list[Tensor]:
        return [tensors[0] @ tensors[i] for i in places]

    return call
