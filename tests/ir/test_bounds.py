"""Bounds hold for all values of random programs, and prove what they should."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

import mirage_dsl as mirage
from mirage_dsl.core.types import Dim, DType, Scalar, bf16, f16, f32, scalar
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.analysis.bounds import GraphBounds, unshifted
from mirage_dsl.ir.builder import BlockBuilder, KernelBuilder
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Apply, KernelGraph, Load, Return, RunningMax
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ops.table import CAST, MUL
from mirage_dsl.rewrite.shifts import stabilise
from tests.programs import mugraphs
from tests.programs.random_programs import random_program

Array = NDArray[np.float64]
EXTENTS = {"m": 5, "n": 7, "k": 8}
LARGE = {"f16": 65504.0, "bf16": 2.0**59, "f32": 2.0**59}


def inputs_of(graph: KernelGraph, random: np.random.Generator) -> list[Array]:
    """Numbers of all sizes, with rows of zeros and single large ones."""
    found: list[Array] = []
    for item in graph.inputs:
        most = LARGE[item.type.dtype.name]
        sizes = dict(graph.extents)
        shape = [math.prod(sizes[d.name] or 1 for d in a) for a in item.type.axes]
        values = random.standard_normal(shape) * random.choice([1e-7, 1.0, most])
        if shape:
            values[..., 0] *= random.choice([0.0, 1.0, most])
            values[0] *= random.choice([0.0, 1.0])
        found.append(np.clip(values, -most, most))
    return found


def hold(graph: KernelGraph, random: np.random.Generator) -> int:
    """Check all that the graph returns; how many of these values are bounded."""
    bounds = GraphBounds(graph).kernel
    with np.errstate(all="ignore"):
        arrays = inputs_of(graph, random)
        values = evaluate_numpy(graph, *arrays, compute=np.float32, round_casts=True)
    bounded = 0
    for item, value in zip(graph.returns, values, strict=True):
        bound = bounds[item.value]
        if math.isfinite(bound.magnitude):
            bounded += 1
            numbers = value[~np.isnan(value)]
            assert np.abs(numbers).max(initial=0) <= bound.magnitude, item
            if bound.least is not None:
                assert numbers.min(initial=math.inf) >= bound.smallest, item
    return bounded


@pytest.mark.parametrize("seed", range(60))
def test_values_of_programs_keep_their_bounds(seed: int) -> None:
    program = random_program(seed)
    graph = trace_function(partial(program.function, mirage), program.specs)
    types = kernel_types(graph)
    every = [n.result for n in graph.nodes if isinstance(n, Apply)]
    returns = tuple(Return(v, types[v]) for v in every)
    random = np.random.default_rng(seed)
    for _ in range(3):
        hold(replace(graph, returns=returns), random)


ONE_OPERAND = ("square", "exp", "tanh", "sigmoid", "silu", "abs", "relu", "neg")
TWO_OPERANDS = ("add", "sub", "mul", "div", "maximum", "minimum")


class Grower:
    """A random block that stores all of its values."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.dtype = self.pick((f16, bf16, f32))
        self.graph = KernelBuilder("grown", **EXTENTS)
        self.inputs = [
            self.graph.input("x", self.dtype, "m, k"),
            self.graph.input("y", self.dtype, "n, k"),
        ]
        self.values: list[str] = []

    def pick(self, choices: tuple[DType, ...]) -> DType:
        return choices[int(self.random.integers(len(choices)))]

    def value(self) -> str:
        return str(self.random.choice(self.values))

    def build(self) -> KernelGraph:
        with self.graph.block() as b:
            self.values = [
                b.load(self.inputs[0], "m, k"),
                b.load(self.inputs[1], "n, k"),
            ]
            for _ in range(14):
                self.values.append(self.grown(b))
            stored = [
                b.store(v, ", ".join(d.name for d in b.type_of(v).dims), dtype=f32)
                for v in self.values
            ]
        return self.graph.returns(*stored).build()

    def grown(self, b: BlockBuilder) -> str:
        choice = self.random.random()
        value = self.value()
        names = b.type_of(value).names
        if choice < 0.3 and "k" in names:
            return self.normed(b, value)
        if choice < 0.45 and "k" in names:
            other = self.value()
            if "k" in b.type_of(other).names:
                operands = [b.cast(v, dtype=self.dtype.name) for v in (value, other)]
                return b.matmul(*operands, over="k")
        if choice < 0.6 and names:
            return b.apply(
                str(self.random.choice(["sum", "max"])), value, over=names[-1]
            )
        if choice < 0.75:
            return b.apply(str(self.random.choice(ONE_OPERAND)), value)
        if choice < 0.85:
            return b.mul(value, scalar(float(self.random.choice([0.125, -2.0]))))
        return b.apply(str(self.random.choice(TWO_OPERANDS)), value, self.value())

    def normed(self, b: BlockBuilder, value: str) -> str:
        """A value over the root of its mean square, or a product of both factors."""
        mean = b.mul(
            b.sum(b.square(value), over="k"), Scalar(scalar(1).value, (("k", -1),))
        )
        root = b.sqrt(b.add(mean, scalar(1e-6)))
        self.values += [mean, root]
        return b.div(value, root)


def test_values_of_blocks_keep_their_bounds() -> None:
    bounded = 0
    for seed in range(150):
        graph = Grower(seed).build()
        bounded += hold(graph, np.random.default_rng(seed))
    assert bounded > 150


def bare(block: Callable[[BlockBuilder, str, str], str], dtype: DType) -> float:
    """The bound of a value made of an x[m, k] and a y[n, k]."""
    g = KernelBuilder("bare", m=5, n=7, k=64)
    x, y = g.input("x", dtype, "m, k"), g.input("y", dtype, "n, k")
    with g.block() as b:
        value = block(b, b.load(x, "m, k"), b.load(y, "n, k"))
        axes = ", ".join(d.name for d in b.type_of(value).dims)
        out = b.store(value, axes, dtype=f32)
    graph = g.returns(out).build()
    return GraphBounds(graph).blocks[0][value].magnitude


def unit(b: BlockBuilder, value: str, eps: float) -> str:
    mean = b.mul(
        b.sum(b.square(value), over="k"), Scalar(scalar(1).value, (("k", -1),))
    )
    return b.rsqrt(b.add(mean, scalar(eps)) if eps else mean)


def cosine(b: BlockBuilder, x: str, y: str, eps: float = 1e-6) -> str:
    """Normalised before the product, and after it."""
    return b.mul(
        b.matmul(b.mul(x, unit(b, x, eps)), b.cast(y, dtype="f32"), over="k"),
        unit(b, y, eps),
    )


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
def test_products_of_normalised_rows_are_bounded(dtype: DType) -> None:
    assert 64 < bare(cosine, dtype) < 64.5


@pytest.mark.parametrize(("dtype", "largest"), [(f16, 8.01), (f32, math.inf)], ids=str)
def test_without_eps_squares_must_not_underflow(dtype: DType, largest: float) -> None:
    """In f16 they cannot; in others a row of tiny numbers has the sum of squares 0."""

    def normed(b: BlockBuilder, x: str, y: str) -> str:
        row = b.div(x, b.sqrt(b.sum(b.square(x), over="k")))
        return b.mul(b.mul(row, 8.0), b.tanh(b.sum(y, over="k")))

    assert bare(normed, dtype) <= largest * 3.01


def test_the_norm_of_another_value_is_no_bound() -> None:
    def wrong(b: BlockBuilder, x: str, y: str) -> str:
        return b.mul(b.matmul(x, y, over="k"), unit(b, b.neg(x), 1e-6))

    assert bare(wrong, f16) > 1e6


def test_rounding_counts() -> None:
    """Rows of f16 subnormals double at most; others grow by half an epsilon."""

    def rounded(b: BlockBuilder, x: str, y: str) -> str:
        half = b.cast(b.mul(x, unit(b, x, 1e-6)), dtype="f16")
        return b.matmul(half, b.cast(b.mul(y, unit(b, y, 1e-6)), dtype="f16"), over="k")

    assert 64.05 < bare(rounded, f16) < 65


def with_gain(graph: KernelGraph) -> KernelGraph:
    """The first kernel multiplies what it casts first by a learned weight."""
    block, *others = graph.blocks
    given = replace(
        graph.inputs[0],
        name="gain",
        type=replace(graph.inputs[0].type, axes=((Dim("d"),),)),
    )
    load = Load("weight", "gain", ((Dim("d"),),))
    at, cast = next(
        (i, n)
        for i, n in enumerate(block.nodes)
        if isinstance(n, Apply) and n.op is CAST
    )
    gained = Apply("gained", MUL, (cast.operands[0], "weight"))
    nodes = list(block.nodes)
    nodes[at : at + 1] = [load, gained, replace(cast, operands=("gained",))]
    block = replace(block, nodes=tuple(nodes))
    return replace(graph, inputs=(*graph.inputs, given), nodes=(block, *others))


def attention(dtype: DType = f16, *, norm: bool = True, d: int = 64) -> KernelGraph:
    return mugraphs.attention(
        1, 32, 96, d=d, tile_m=16, tile_n=16, splits=2, norm=norm, safe=False,
        keys_last=False, dtype=dtype,
    )  # fmt: skip


def has_maximum(graph: KernelGraph | None) -> bool:
    assert graph is not None
    return any(isinstance(n, RunningMax) for b in graph.blocks for n in b.nodes)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_bounded_exponentials_get_no_maximum(dtype: DType) -> None:
    graph = attention(dtype)
    assert stabilise(graph) == graph
    (why,) = unshifted(graph)
    assert 8 < why.largest < 8.1
    assert "needs no running maximum" in str(why)


def test_others_get_one() -> None:
    assert has_maximum(stabilise(attention(norm=False)))
    assert not list(unshifted(attention(norm=False)))


def test_a_learned_weight_ends_the_bound() -> None:
    graph = with_gain(attention())
    check_or_raise(graph)
    assert has_maximum(stabilise(graph))


def test_exponentials_that_f16_cannot_hold_get_one() -> None:
    """Logits up to 16: exp(16) overflows, and exp(-16) is no normal number."""
    assert has_maximum(stabilise(attention(d=256)))
    assert stabilise(attention(bf16, d=256)) == attention(bf16, d=256)


def test_bounded_attention_is_right_for_all_inputs() -> None:
    """Rows of zeros, rows that point the same or the other way, large numbers."""
    graph = attention()
    random = np.random.default_rng(3)
    q, v = random.standard_normal((1, 32, 64)), random.standard_normal((1, 96, 64))
    k = np.repeat(q, 3, axis=1) * random.choice([-1.0, 1.0], (1, 96, 1))
    for scale in (1.0, 0.0, 1e-7, 6e3):
        arrays = [np.float16(x) for x in (q * scale, k * scale, v)]
        exact = evaluate_numpy(graph, *arrays)
        found = evaluate_numpy(graph, *arrays, compute=np.float32, round_casts=True)
        for one, other in zip(found, exact, strict=True):
            assert np.abs(one - other).max() <= 3e-3 * np.abs(other).max()
