"""A decoder layer of LLaMA-3-8B on a GPU: one decode step, beside PyTorch.

    python -m benchmarks.layer --compile default max-autotune --json layer.json
    python -m benchmarks.layer --reuse layer.json            # tunes nothing anew

The layer of `examples/llama_layer.py`, with a KV cache of 4096 positions.  Its five
parts are tuned and timed one by one, each beside plain PyTorch and beside a kernel that
only reads the part's bytes; then the whole layer, beside PyTorch's eager mode and
`torch.compile`.  Times are medians inside CUDA graphs; every call finds its weights and
its cache out of the L2 cache.  Errors are relative to the layer in float64.
"""

# PyTorch's compiler is only partly typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mirage_dsl as mirage
from benchmarks.floor import read_floor
from examples import llama_layer as llama
from examples.llama_layer import LLAMA_3_8B, Layer, State
from mirage_dsl.tune.timing import Time, time_call, time_sets

MODES = {
    "default": "default",
    "max-autotune": "max-autotune-no-cudagraphs",
}
"""The modes of torch.compile; the graphs are captured here."""

SETS = 2
"""Layers whose weights are used in turn: one has many times the L2 cache's size."""

CHAIN = 3
"""How often each is called in the CUDA graph whose outputs are held to float64."""


@dataclass(frozen=True)
class Part:
    """A part of the layer.

    Attributes:
        kernels: Its kernels, each with its arguments.
        fused: The part as these kernels.
        plain: The part in plain PyTorch.
        tensors: Arguments of both.
    """

    kernels: Sequence[tuple[mirage.Kernel, Sequence[Any]]]
    fused: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    tensors: Sequence[Tensor]


@dataclass
class PartRow:
    """Times of one part in µs, and what its kernels are."""

    name: str
    ours: Time | None = None
    floor: Time | None = None
    eager: Time | None = None
    bytes: int = 0
    tuning_seconds: float = 0.0
    timed: int = 0
    mugraphs: list[str] = field(default_factory=list[str])


@dataclass
class Row:
    """The layer at one batch; times in µs.

    Attributes:
        note: What a reader of the figures must know.
    """

    batch: int
    note: str = ""
    parts: list[PartRow] = field(default_factory=list[PartRow])
    ours: Time | None = None
    floor: Time | None = None
    eager: Time | None = None
    compiled: dict[str, Time] = field(default_factory=dict[str, Time])
    error: float = 0.0
    eager_error: float = 0.0
    cache_error: float = 0.0
    eager_cache_error: float = 0.0

    def take_errors(self, **errors: float) -> None:
        """Keep the largest, of several layers."""
        for name, error in errors.items():
            setattr(self, name, max(error, getattr(self, name)))


def parts_of(layer: Layer, state: State) -> Iterator[tuple[str, Part]]:
    """The parts, with inputs as the layer would give them."""
    x, cache = state.x, state.cache
    turn = (state.cos, state.sin)
    qkv = llama.plain_qkv(x, layer.attention_gain, layer.qkv)
    a = _plain_attention(qkv, *turn, cache)
    h = llama.plain_mlp(x, layer.mlp_gain, layer.gate, layer.up)

    def one(kernel: mirage.Kernel, plain: Any, *tensors: Tensor) -> Part:
        return Part([(kernel, tensors)], kernel, plain, tensors)

    gain = layer.attention_gain
    yield "norm + QKV", one(llama.norm_qkv, llama.plain_qkv, x, gain, layer.qkv)
    kernels = [
        (llama.new_entries, (qkv, *turn, cache.shape[2])),
        (llama.attention, (qkv, state.cos[0], state.sin[0], *cache)),
    ]
    tensors = (qkv, *turn, cache)
    yield "attention", Part(kernels, llama.fused_attention, _plain_attention, tensors)
    plain = llama.plain_projection
    yield "output + residual", one(llama.projection, plain, a, layer.output, x)
    gain, gate, up = layer.mlp_gain, layer.gate, layer.up
    yield "norm + MLP", one(llama.gated_mlp, llama.plain_mlp, x, gain, gate, up)
    yield "down + residual", one(llama.projection, plain, h, layer.down, x)


def _plain_attention(qkv: Tensor, cos: Tensor, sin: Tensor, cache: Tensor) -> Tensor:
    """`plain_attention` with the arguments of `fused_attention`."""
    return llama.plain_attention(qkv, cos, sin, *cache)


# -- Tuning ----------------------------------------------------------------------------


def _tune(part: Part, row: PartRow) -> None:
    """Search for the part's kernels and tune them."""
    start = time.perf_counter()
    for kernel, arguments in part.kernels:
        bound = kernel.bind(*arguments)
        bound.search()
        row.timed += len(bound.tuning.measured) if bound.tuning else 0
        row.mugraphs.append(str(bound.mugraph))
    row.tuning_seconds = time.perf_counter() - start


def _take(part: Part, row: PartRow) -> None:
    """Use the kernels that an earlier run found."""
    for (kernel, arguments), text in zip(part.kernels, row.mugraphs, strict=True):
        kernel.bind(*arguments).use(text)


def _known(file: Path | None, batch: int) -> dict[str, PartRow]:
    """The parts of an earlier run."""
    if file is None:
        return {}
    rows = json.loads(file.read_text())["rows"]
    parts = [p for row in rows if row["batch"] == batch for p in row["parts"]]
    return {
        p["name"]: PartRow(
            p["name"],
            tuning_seconds=p["tuning_seconds"],
            timed=p["timed"],
            mugraphs=p["mugraphs"],
        )
        for p in parts
    }


# -- Measuring -------------------------------------------------------------------------


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _measure_part(part: Part, row: PartRow) -> None:
    row.bytes = _bytes(part.tensors)
    row.ours = time_call(part.fused, part.tensors)
    row.eager = time_call(part.plain, part.tensors)
    row.floor = read_floor(row.bytes)


def _captured(sets: Sequence[tuple[Layer, State]]) -> list[Tensor]:
    """Outputs of a chain in a CUDA graph, where kernels of successive calls overlap."""
    for layer, state in sets:
        llama.fused_layer(layer, state)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [llama.fused_layer(*s) for _ in range(CHAIN) for s in sets]
    graph.replay()
    torch.cuda.synchronize()
    return outputs


def _errors(row: Row, layers: Sequence[Layer]) -> None:
    """Both layers against float64, each on its own copies of the caches."""
    seeds = range(len(layers))
    ours, plain = ([_state(row.batch, seed) for seed in seeds] for _ in range(2))
    found = _captured(list(zip(layers, ours, strict=True)))
    for at, layer in enumerate(layers):
        exact = llama.in_double(_state(row.batch, at))
        right = llama.plain_layer(llama.in_double(layer), exact)
        eager = llama.plain_layer(layer, plain[at])
        row.take_errors(
            error=max(llama.relative(y, right) for y in found[at :: len(layers)]),
            eager_error=llama.relative(eager, right),
            cache_error=_last_error(ours[at], exact),
            eager_cache_error=_last_error(plain[at], exact),
        )


def _last_error(found: State, exact: State) -> float:
    """The error of the cache where the step writes."""
    last = (slice(None),) * 3 + (-1,)
    return llama.relative(found.cache[last], exact.cache[last])


def _state(batch: int, seed: int) -> State:
    return llama.random_state(LLAMA_3_8B, batch, torch.float16, "cuda", seed)


def measure(
    layers: Sequence[Layer],
    batch: int,
    modes: Sequence[str],
    known: Mapping[str, PartRow],
) -> Row:
    """The layer at one batch."""
    row = Row(batch)
    states = [_state(batch, seed) for seed in range(len(layers))]
    for name, part in parts_of(layers[0], states[0]):
        found = known.get(name, PartRow(name))
        (_take if name in known else _tune)(part, found)
        _measure_part(part, found)
        row.parts.append(found)
        print(_part_line(found), flush=True)
    _errors(row, layers)
    sets = list(zip(layers, states, strict=True))
    row.ours = time_sets(llama.fused_layer, sets)
    row.eager = time_sets(llama.plain_layer, sets)
    row.floor = read_floor(_bytes((*astuple(layers[0]), *astuple(states[0]))))
    for mode in modes:
        row.compiled[mode] = _compiled(sets, mode)
    return row


def _compiled(sets: Sequence[tuple[Layer, State]], mode: str) -> Time:
    """The time of torch.compile, with caches in two tensors.

    Where keys and values are parts of one tensor it copies all of it at every step.
    """
    torch.compiler.reset()
    step = torch.compile(llama.plain_step, mode=MODES[mode], dynamic=False)
    apart = [
        (layer, state.x, state.cos, state.sin, *(c.clone() for c in state.cache))
        for layer, state in sets
    ]
    return time_sets(step, apart)


# -- The table -------------------------------------------------------------------------


def _shown(value: Time | None) -> str:
    return f"{value.median:8.2f}" if value else "       -"


def _part_line(row: PartRow) -> str:
    return (
        f"  {row.name:18s} {_shown(row.ours)} {_shown(row.eager)} {_shown(row.floor)}"
        f"   {row.timed} timed in {row.tuning_seconds:.0f} s"
    )


def _line(row: Row) -> str:
    total = sum(p.ours.median for p in row.parts if p.ours)
    modes = ", ".join(f"compile {m} {t.median:.2f}" for m, t in row.compiled.items())
    return (
        f"batch {row.batch:3d}           {_shown(row.ours)} {_shown(row.eager)} "
        f"{_shown(row.floor)}   sum of parts {total:.2f}; {modes}; "
        f"error {row.error:.1e}, eager's {row.eager_error:.1e}; "
        f"cache's {row.cache_error:.1e}, {row.eager_cache_error:.1e}"
    )


def _document(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
        "rows": [asdict(r) for r in rows],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.layer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--batches",
        nargs="+",
        type=int,
        default=[1, 8, 16],
        metavar="B",
        help="(default: 1 8 16)",
    )
    parser.add_argument(
        "--compile",
        nargs="*",
        choices=list(MODES),
        default=[],
        metavar="MODE",
        help=f"modes of torch.compile to measure beside: {', '.join(MODES)} "
        "(default: none)",
    )
    parser.add_argument(
        "--reuse",
        type=Path,
        metavar="FILE",
        help="take the kernels from an earlier run's JSON in place of tuning",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where all figures are written"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune, measure and print each batch."""
    options = _parser().parse_args(arguments)
    if not torch.cuda.is_available():
        print("benchmarks.layer needs a CUDA device; none was found", file=sys.stderr)
        return 2
    layers = [
        llama.random_layer(LLAMA_3_8B, torch.float16, "cuda", seed)
        for seed in range(SETS)
    ]
    rows: list[Row] = []
    print(f"{torch.cuda.get_device_name()}; µs: ours, eager, floor")
    for batch in options.batches:
        known = _known(options.reuse, batch)
        rows.append(measure(layers, batch, options.compile, known))
        print(_line(rows[-1]), flush=True)
        if options.json:
            text = json.dumps(_document(rows), indent=1)
            options.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
