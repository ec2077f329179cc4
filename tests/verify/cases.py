"""The bed of false candidates: wrong μGraphs made from right ones, at several sizes.

`python -m benchmarks.bed` runs all of it, the tests a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

import mirage_dsl as mirage
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.verify.sizes import Shrunk, input_shape, shrink
from tests.programs import mugraphs
from tests.programs.mutations import mutations
from tests.programs.workloads import WORKLOADS, Shape
from tests.verify import graphs

_WORKLOADS = {w.name: w for w in WORKLOADS}


@dataclass(frozen=True)
class Right:
    """A right μGraph and its program."""

    name: str
    program: KernelGraph
    candidate: KernelGraph


@dataclass(frozen=True)
class Wrong:
    """A mutation that float64 tells from the program."""

    name: str
    what: str
    program: KernelGraph
    candidate: KernelGraph


def traced(name: str, *shapes: Shape) -> KernelGraph:
    """A workload at other shapes."""
    function = _WORKLOADS[name].function
    names = ", ".join(_WORKLOADS[name].full)
    scope = {"function": function, "m": mirage}
    source = eval(f"lambda {names}: function(m, {names})", scope)
    return trace_function(source, [mirage.spec(s, "float16") for s in shapes])


def _attention(
    name: str, h: int, m: int, n: int, d: int, **how: object
) -> tuple[str, KernelGraph, KernelGraph]:
    keys = (h, n, d) if name == "qknorm" else (h, d, n)
    program = traced(name, (h, m, d), keys, (h, n, d))
    norm = name == "qknorm"
    made = mugraphs.attention(h, m, n, d, keys_last=not norm, norm=norm, **how)  # type: ignore[arg-type]
    return f"{name} {h}x{m}x{n}x{d} {how}", program, made


def right_ones() -> Iterator[Right]:
    """Right μGraphs at sizes that differ in loops, splits and ragged tiles."""
    for make, candidate in graphs.RIGHT:
        yield Right(candidate.__name__, make(), candidate())
    for m, k, n, tile in ((5, 96, 80, 32), (16, 3584, 4608, 96)):
        yield Right(
            f"rmsnorm_linear {m}x{k}x{n}",
            traced("rmsnorm_linear", (m, k), (k, n)),
            mugraphs.rmsnorm_linear(m, k, n, tile_n=16, tile_k=tile, tile_m=4),
        )
        yield Right(
            f"gated_mlp {m}x{k}x{n}",
            traced("gated_mlp", (m, k), (k, n), (k, n)),
            mugraphs.gated_mlp(m, k, n, tile_n=16, tile_k=tile),
        )
        yield Right(
            f"lora {m}x{k}x{n}",
            traced("lora", (m, k), (k, n), (k, 8), (8, n)),
            mugraphs.lora(m, k, n, 8, tile_n=16, tile_k=tile),
        )
    for m, k in ((6, 96), (128, 4096)):
        yield Right(
            f"ntrans {m}x{k}",
            traced("ntrans", (m, k), (m, k), (m, k)),
            mugraphs.ntrans(m, k, tile_m=2),
        )
    for size in ((2, 20, 72, 16), (32, 256, 4096, 64)):
        for how in ({}, {"splits": 4}, {"safe": False}, {"safe": False, "splits": 4}):
            small = {"tile_m": 8, "tile_n": 8 if size[2] == 72 else 64, **how}
            yield Right(*_attention("gqa", *size, **small))
        yield Right(*_attention("qknorm", *size, **small))


def draws(small: Shrunk, seed: int) -> Iterator[list[np.ndarray]]:
    """Inputs near 1, signs mixed or not."""
    rng = np.random.default_rng(seed)
    for low in (-1.5, 0.25):
        yield [
            rng.uniform(low, 1.5, input_shape(small.program, i))
            for i in small.program.inputs
        ]


def differs(candidate: KernelGraph, program: KernelGraph) -> bool:
    """Whether float64 tells them apart at small sizes."""
    small = shrink(candidate, program, ragged=False, seed=11)
    for inputs in draws(small, 12):
        expected = evaluate_numpy(small.program, *inputs)
        found = evaluate_numpy(small.candidate, *inputs)
        for a, b in zip(expected, found, strict=True):
            if np.isfinite(a).all() and not np.allclose(a, b, rtol=1e-6, atol=1e-9):
                return True
    return False


def wrong_ones(keep: Callable[[int], bool] = lambda _: True) -> Iterator[Wrong]:
    """Distinct wrong μGraphs; `keep` chooses mutations by their number."""
    seen: set[tuple[str, str]] = set()
    number = 0
    for right in right_ones():
        for mutation in mutations(right.candidate):
            number += 1
            if not keep(number):
                continue
            key = (canonical_hash(mutation.graph), canonical_hash(right.program))
            if key in seen:
                continue
            seen.add(key)
            if differs(mutation.graph, right.program):
                yield Wrong(right.name, mutation.what, right.program, mutation.graph)
