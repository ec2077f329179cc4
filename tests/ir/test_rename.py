"""Renaming changes names and nothing else."""

from __future__ import annotations

import numpy as np

from mirage_dsl.core.types import f16, f32
from mirage_dsl.ir.builder import KernelBuilder, one_over
from mirage_dsl.ir.canonical import Renaming, canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph


def split_mean() -> KernelGraph:
    b = KernelBuilder("f", m=4, k=16)
    x = b.input("x", f16, "m, k")
    with b.block(grid={"k": 4}, loop=("k", 2)) as block:
        xt = block.load(x, "m, k/grid/loop", name="xt")
        s = block.mul(block.sum(xt, over="k"), one_over("k"), name="s")
        block.store(block.accumulate(s, name="a"), "m, k#/grid", dtype=f32, name="p")
    y = b.rename(b.sum("p", over="k#"), dims="m", to="n", name="y")
    return b.returns(y).build()


def test_every_name() -> None:
    graph = split_mean()
    renaming = Renaming(
        dims={"m": "rows", "k": "cols"},
        values={"x": "u", "p": "parts", "y": "mean"},
        inner=({"xt": "tile", "s": "scaled", "a": "total"},),
    )
    found = renaming.graph(graph)
    assert check(found) == []
    assert canonical_hash(found) == canonical_hash(graph)
    assert found.extent_of == {"rows": 4, "cols": 16, "cols#": 4, "n": 4}
    assert found.inputs[0].name == "u"
    assert {"tile", "scaled", "total"} <= {n.result for n in found.blocks[0].nodes}
    xs = np.random.default_rng(0).standard_normal((4, 16))
    np.testing.assert_allclose(evaluate_numpy(found, xs)[0], xs.mean(1))


def test_nothing() -> None:
    assert Renaming().graph(split_mean()) == split_mean()
