"""What the tests of the evaluator share."""

from __future__ import annotations

from typing import Any

import numpy as np

from mirage_dsl.core.types import f16
from mirage_dsl.ir.builder import KernelBuilder, one_over
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph


def draw(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(s) for s in shapes]


def one(graph: KernelGraph, *arrays: Any) -> Any:
    (result,) = evaluate_numpy(graph, *arrays)
    return result


def rms_linear(m: int, k: int, n: int, tm: int, tk: int, tn: int) -> KernelGraph:
    b = KernelBuilder("rms_linear", m=m, k=k, n=n)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    with b.block(grid={"m": tm, "n": tn}, loop=("k", tk)) as block:
        xt, wt = block.load(x, "m/grid, k/loop"), block.load(w, "k/loop, n/grid")
        squares = block.accumulate(block.square(xt))
        product = block.accumulate(block.matmul(xt, wt, over="k"))
        mean = block.mul(block.sum(squares, over="k"), one_over("k"))
        y = block.store(block.mul(product, block.rsqrt(mean)), "m/grid, n/grid")
    return b.returns(y).build()
