"""The μGraphs of `examples/`: well formed, printed back, and right at small sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Split
from mirage_dsl.ir.maps import complete_extents, stated_extents
from mirage_dsl.ir.text.parser import parse

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.mu"))

Array = NDArray[Any]


def rms(x: Array) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True))


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def lora(x: Array, w: Array, a: Array, b: Array) -> Array:
    return x @ w + (x @ a) @ b


def qknorm(scale: float) -> Callable[..., Array]:
    return lambda q, k, v: softmax(rms(q) @ rms(k).swapaxes(1, 2) * scale) @ v


@dataclass(frozen=True)
class Small:
    """A formula, and small sizes at which an example is compared with it.

    Tiles are by dim, one for the grid and one for the loop.
    """

    formula: Callable[..., Array | tuple[Array, ...]]
    extents: Mapping[str, int]
    grid: Mapping[str, int]
    loop: Mapping[str, int]


LINEAR = {"m": 5, "k": 24, "n": 12}
ATTENTION = {"b": 2, "m": 6, "d": 4, "n": 24}
GQA = Small(
    lambda q, k, v: softmax(q @ k) @ v, ATTENTION, {"b": 1, "m": 4, "n": 9}, {"n": 3}
)
RMS_LINEAR = Small(lambda x, w: rms(x) @ w, LINEAR, {"m": 2, "n": 4}, {"k": 7})
SMALL = {
    "exp_mlp_split_k": Small(
        lambda x, a, b: np.exp(x @ a) @ b,
        {**LINEAR, "r": 3},
        {"k": 5, "n": 4},
        {},
    ),
    "gated_down": Small(lambda x, y, w: (silu(x) * y) @ w, LINEAR, {"n": 5}, {"k": 7}),
    "gated_mlp": Small(
        lambda x, w1, w2: silu(x @ w1) * (x @ w2), LINEAR, {"n": 4}, {"k": 8}
    ),
    "gqa_running_max": GQA,
    "gqa_split_kv": GQA,
    "gqa_split_kv_running_max": GQA,
    "lora": Small(lora, {**LINEAR, "r": 3}, {"n": 4}, {"k": 7}),
    # The concatenation repeats the update in a last, ragged chunk too.
    "lora_concatenated": Small(lora, {**LINEAR, "r": 3}, {"n": 4}, {"k": 7}),
    "qknorm_split_kv": replace(GQA, formula=qknorm(0.125)),
    "qknorm_split_kv_four_rows": replace(GQA, formula=qknorm(128**-0.5)),
    "rms_gain_linear": Small(
        lambda x, g, w: (rms(x) * g) @ w, LINEAR, {"n": 5}, {"k": 7}
    ),
    "rms_gated": Small(
        lambda x, up, gate: (rms(x) @ up) * (rms(x) @ gate), LINEAR, {"n": 4}, {"k": 8}
    ),
    "rms_linear": RMS_LINEAR,
    "rms_linear_column_major": RMS_LINEAR,
    "rms_linear_two_grid_dims": RMS_LINEAR,
    "rms_lora": Small(
        lambda x, w, a, b: lora(rms(x), w, a, b),
        {**LINEAR, "r": 3},
        {"n": 4},
        {"k": 7},
    ),
    "rms_qkv": Small(
        lambda x, q, k, v: (rms(x) @ q, rms(x) @ k, rms(x) @ v),
        {"m": 5, "k": 24, "a": 14, "b": 11, "c": 3},
        {"a": 4, "b": 2, "c": 2},
        {"k": 7},
    ),
}


def at_small_size(graph: KernelGraph, small: Small) -> KernelGraph:
    def shrunk(block: BlockGraph) -> BlockGraph:
        grid = tuple(replace(s, tile=small.grid[s.dim]) for s in block.grid)
        loop = block.loop and Split(block.loop.dim, small.loop[block.loop.dim])
        return replace(block, grid=grid, loop=loop)

    nodes = tuple(shrunk(n) if isinstance(n, BlockGraph) else n for n in graph.nodes)
    stated = {**stated_extents(graph), **small.extents}
    return complete_extents(replace(graph, nodes=nodes), stated)


def inputs_of(graph: KernelGraph, scale: float = 1.0) -> list[Array]:
    rng = np.random.default_rng(7)
    sizes = {n: e for n, e in graph.extents if e is not None}
    shapes = [
        [int(np.prod([sizes[d.name] for d in axis])) for axis in i.type.axes]
        for i in graph.inputs
    ]
    return [rng.standard_normal(shape) * scale for shape in shapes]


def read(path: Path) -> KernelGraph:
    return parse(path.read_text(encoding="utf-8"), path.name)


def test_every_example_has_a_formula() -> None:
    assert {f.stem for f in FILES} == SMALL.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda f: f.stem)
def test_well_formed(path: Path) -> None:
    assert check(read(path)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda f: f.stem)
def test_prints_back_without_its_comments(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    assert str(parse(text)) == "".join(s for s in lines if not s.startswith("//"))


@pytest.mark.parametrize("path", FILES, ids=lambda f: f.stem)
def test_equals_its_formula(path: Path) -> None:
    small = SMALL[path.stem]
    graph = at_small_size(read(path), small)
    assert check(graph) == []
    arrays = inputs_of(graph)
    right = small.formula(*arrays)
    outputs = right if isinstance(right, tuple) else (right,)
    for found, expected in zip(evaluate_numpy(graph, *arrays), outputs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["gqa_running_max", "gqa_split_kv_running_max"])
def test_running_maximum_keeps_large_logits_finite(name: str) -> None:
    graph = at_small_size(read(EXAMPLES / f"{name}.mu"), SMALL[name])
    arrays = inputs_of(graph, 40.0)
    (found,) = evaluate_numpy(graph, *arrays)
    np.testing.assert_allclose(found, GQA.formula(*arrays), rtol=1e-9)
