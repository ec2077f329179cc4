"""What every backend has to compute, and how near to the evaluator.

`CASES` are small μGraphs that have between them every kind of statement of tile
programs, every row of the operator table in a block and as a library kernel, and what
lies between kernels.  `conform` holds a backend to the evaluator on one of them,
`refusals` to what the protocol says of calls that do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mirage_dsl.backends.base import Backend, Report
from mirage_dsl.core.errors import DTypeError, ShapeError, UnsupportedError
from mirage_dsl.core.types import (
    NARROW_FLOATS,
    DType,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    scalar,
    u8,
)
from mirage_dsl.ir.builder import BlockBuilder, KernelBuilder, one_over
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Apply, KernelGraph, KernelNode, Schedule, Split
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.walk import map_nodes
from mirage_dsl.ops.definition import Kind, Operator, Truth
from mirage_dsl.ops.table import CHANNELS_LAST, GATHER, NARROWINGS, OPERATORS, ROUNDINGS
from tests.backends.running import allowed, as_array, compare, random_inputs
from tests.ops.kinds import is_of_floats
from tests.programs import windows
from tests.programs.mugraphs import (
    attention,
    gated_mlp,
    lora,
    norm_ahead,
    rmsnorm_linear,
    side_product,
)

CUT_OFF = ROUNDINGS[bf16]
"""Triton's interpreter cuts off what a GPU rounds to bf16."""
ELEMENTWISE = [o for o in OPERATORS.values() if is_of_floats(o) and o is not CUT_OFF]
ELEMENTWISE += NARROWINGS.values()
BOTH = ("add", "mul", "abs", "where", "less")
INTEGRAL = [
    o
    for o in OPERATORS.values()
    if o.kind is Kind.ELEMENTWISE
    and (not is_of_floats(o) or o.name in BOTH)
    and o not in NARROWINGS.values()
]
REDUCTIONS = [o for o in OPERATORS.values() if o.kind is Kind.REDUCTION]
STEPWISE = [o for o in REDUCTIONS if o.in_steps]


@dataclass(frozen=True)
class Case:
    """A μGraph and how it is called.

    Attributes:
        graph: The μGraph.
        low: Inputs are uniform from there on, not normal.
        sizes: Extents of symbolic dims, one call for each.
        special: Elements of every input that are not finite, at these places.
        tolerance: Relative to the largest element; that of the coarsest dtype, unless
            given.
        definite: Inputs are positive definite matrices.
        signed: Results have one sign, and are not right with either.
    """

    graph: KernelGraph
    low: float | None = None
    sizes: Sequence[Mapping[str, int]] = ({},)
    special: bool = False
    tolerance: float | None = None
    definite: bool = False
    signed: bool = True

    def inputs(self, sizes: Mapping[str, int]) -> list[torch.Tensor]:
        """Tensors of a call."""
        tensors = random_inputs(self.graph, low=self.low, **dict(sizes))
        if self.definite:
            tensors = [t @ t.mT + torch.eye(len(t.mT)) for t in tensors]
        if self.special:
            for tensor in tensors:
                flat = tensor.reshape(tensor.shape[0], -1)
                flat[0, 0], flat[1, -1], flat[2] = torch.inf, torch.nan, -torch.inf
        return tensors

    @cached_property
    def calls(self) -> list[tuple[list[torch.Tensor], list[NDArray[Any]]]]:
        """Inputs for each of the sizes, and what the evaluator makes of them."""
        made: list[tuple[list[torch.Tensor], list[NDArray[Any]]]] = []
        for sizes in self.sizes:
            inputs = self.inputs(sizes)
            with np.errstate(all="ignore"):
                outputs = evaluate_numpy(self.graph, *map(as_array, inputs))
            made.append((inputs, list(outputs)))
        return made


def conform(backend: Backend, case: Case) -> None:
    """Hold a backend to the evaluator on one case, called as it may be called.

    Raises:
        AssertionError: It computes something else, or changes what it must not.
    """
    for device in _devices(backend):
        executable = backend.compile(case.graph, device)
        for kept, outputs in case.calls:
            inputs = [t.clone().to(device) for t in kept]
            right = _Right(case, inputs, outputs)
            found = executable(*inputs)
            right.hold(found)
            # Of any strides: inputs in wider tensors, outputs in every other element.
            outs = [_gappy(t) for t in found]
            again = executable(*map(_gappy, inputs), out=outs)
            assert all(a is b for a, b in zip(again, outs, strict=True))
            right.hold(outs)
            for before, after in zip(kept, inputs, strict=True):
                assert np.array_equal(as_array(before), as_array(after), equal_nan=True)


def _devices(backend: Backend) -> list[str]:
    on_gpu = torch.cuda.is_available() and backend.takes("cuda")
    return ["cpu", *(["cuda"] if on_gpu else [])]


class _Right:
    """The outputs of a call, by the evaluator in float64."""

    def __init__(
        self, case: Case, inputs: Sequence[torch.Tensor], outputs: list[NDArray[Any]]
    ) -> None:
        self._graph, self._signed = case.graph, case.signed
        self._outputs = outputs if case.signed else list(map(np.abs, outputs))
        self._tolerance = case.tolerance or allowed(case.graph)
        if any(t.is_cuda for t in inputs):
            # Its functions are less precise than a CPU's.
            self._tolerance = max(self._tolerance, 2e-5)

    def hold(self, found: Sequence[torch.Tensor]) -> None:
        """Compare with what was found."""
        outputs = [t.contiguous().cpu() for t in found]
        outputs = outputs if self._signed else [t.abs() for t in outputs]
        compare(self._graph, outputs, self._outputs, self._tolerance)


def _gappy(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements as every other one of a larger tensor."""
    shape = [2 * n for n in tensor.shape]
    whole = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    part = whole[tuple(slice(1, None, 2) for _ in tensor.shape)]
    return part.copy_(tensor)


def refusals(backend: Backend) -> None:
    """Hold a backend to the errors of the protocol.

    Raises:
        AssertionError: Something is not refused, or without a word of what is wrong.
    """
    graph = CASES["several stores"].graph
    run, x = backend.compile(graph, "cpu"), torch.ones((6, 10))
    good = [torch.empty(6, 10), torch.empty(6)]
    with pytest.raises(ShapeError, match="takes 1 tensors"):
        run(x, x)
    with pytest.raises(ShapeError, match=r"\bk\b.*\b11\b"):
        run(torch.ones(6, 11))
    with pytest.raises(DTypeError, match=r"input x .*float16, expected .*float32"):
        run(x.half())
    with pytest.raises(ShapeError, match="1 tensors; it returns 2"):
        run(x, out=good[:1])
    with pytest.raises(ShapeError, match=r"\(6,\), expected \(6, 10\)"):
        run(x, out=good[::-1])
    with pytest.raises(DTypeError, match=r"out of .*float64"):
        run(x, out=[good[0].double(), good[1]])
    # What was refused has left nothing behind.
    compare(graph, run(x), evaluate_numpy(graph, as_array(x)), 3e-6)
    whole = KernelBuilder("whole", m=None, k=8)
    t = whole.input("x", f32, "m, k")
    with whole.block(grid={"k": 4}) as b:
        out = b.store(b.sum(b.load(t, "m, k/grid"), over="m"), "k/grid")
    symbolic = whole.returns(out).build()
    with suppress(UnsupportedError):
        # Not all need to know how long a tile is.
        x, free = torch.randn(13, 8), backend.compile(symbolic, "cpu")
        compare(symbolic, free(x), evaluate_numpy(symbolic, as_array(x)), 3e-6)
    bounded = backend.compile(symbolic, "cpu", most={"m": 12})
    for m in (12, 5):
        x = torch.randn(m, 8)
        compare(symbolic, bounded(x), evaluate_numpy(symbolic, as_array(x)), 3e-6)
    with pytest.raises(ShapeError, match=r"\bm\b.*13.*12 at most"):
        bounded(torch.ones(13, 8))


def speaks(backend: Backend) -> None:
    """Hold a backend to what the protocol says of texts and reports.

    Raises:
        AssertionError: It does otherwise.
    """
    graph = CASES["several kernels"].graph
    assert backend.emit(graph)
    assert backend.emit(graph) == backend.emit(graph)
    assert backend.compile(graph, "cpu").source
    assert backend.compile(graph, "cpu").graph == graph
    backend.load()
    reports = backend.report(graph)
    assert len(reports) == len(graph.blocks)
    assert len({r.name for r in reports}) == len(reports)
    for report in reports:
        assert isinstance(report, Report)
        known = (report.registers, report.shared_bytes, report.spills)
        assert all(n is None or (isinstance(n, int) and n >= 0) for n in known)
        assert report.rejection() is None


# -- Rows ------------------------------------------------------------------------------


def _low(op: Operator) -> float | None:
    return op.domain[0] if op.domain[0] > 0 else None


def _rows() -> Iterator[tuple[str, Case]]:
    """Every row in a block, with operands of different dims, and in none."""
    for op in ELEMENTWISE:
        yield f"row {op.name}", Case(_row(op, f32), low=_low(op))
    for op in INTEGRAL:
        for dtype in (i8, u8, i32, i64):
            graph = _row(op, dtype)
            yield f"row {op.name} of {dtype}", Case(graph)
    for op in REDUCTIONS:
        g = KernelBuilder(f"row_{op.name}", m=6, n=10, k=5)
        x = g.input("x", f32, "m, n, k")
        with g.block(grid={"n": 4}) as b:
            # What lies outside is no zero any more.
            t = b.sub(b.load(x, "m, n/grid, k"), 5.0)
            out = b.store(b.apply(op, t, over="m, k"), "n/grid")
        alone = g.apply(op, x, over="m, k")
        yield f"row {op.name}", Case(g.returns(out, alone).build())


def _row(op: Operator, dtype: DType) -> KernelGraph:
    g = KernelBuilder(f"row_{op.name}", m=6, n=10)
    axes = ["m, n", "n", "n, m"][: op.arity]
    pieces = ["m/grid, n", "n", "n, m/grid"]
    dtypes = [boolean if op.chooses and dtype.is_integer else dtype, dtype, dtype]
    names = [g.input(f"x{i}", dtypes[i], a) for i, a in enumerate(axes)]
    made = op.gives or dtype
    if dtype.is_integer and op.truth is Truth.COMPARES:
        made = boolean
    outs: list[str] = []
    if made != f64:
        with g.block(grid={"m": 4}) as b:
            loads = [b.load(x, p) for x, p in zip(names, pieces, strict=False)]
            outs.append(b.store(b.apply(op, *loads), "m/grid, n", dtype=made))
    return g.returns(*outs, g.apply(op, *names)).build()


def _accumulators() -> Iterator[tuple[str, Case]]:
    """Each over tiles and over iterations, on infinities and NaN too."""
    for op in STEPWISE:
        g = KernelBuilder(f"accumulated_{op.name}", m=5, k=11)
        x = g.input("x", f32, "m, k")
        with g.block(grid={"m": 3}, loop=("k", 4)) as b:
            t = b.add(b.sub(b.load(x, "m/grid, k/loop"), 0.5), 0.5)
            inside = b.accumulate(b.apply(op, t, over="k"), op.name)
            between = b.apply(op, b.accumulate(t, op.name), over="k")
            outs = [b.store(v, "m/grid") for v in (inside, between)]
        graph = g.returns(*outs).build()
        yield f"accumulate {op.name}", Case(graph, low=0.5)
        yield f"special {op.name}", Case(graph, low=0.5, special=True)


# -- Blocks ----------------------------------------------------------------------------

SCHEDULES = {
    "plain": Schedule(),
    "swapped": Schedule(swap_operands=True),
    "boxes": Schedule(descriptors=True),
    "one load": Schedule(second_load=False),
    "early": Schedule(pdl=True, prefetch=2),
}


def _blocks() -> Iterator[tuple[str, Case]]:
    for name, schedule in SCHEDULES.items():
        graph = rmsnorm_linear(3, 72, 40, tile_n=32, tile_k=32, schedule=schedule)
        yield f"norm {name}", Case(graph)
        graph = attention(1, 20, 40, 24, tile_m=16, tile_n=16, schedule=schedule)
        yield f"attention {name}", Case(graph)
    for dtype in (f32, bf16):
        graph = rmsnorm_linear(3, 50, 70, tile_n=32, tile_k=16, dtype=dtype)
        yield f"norm {dtype}", Case(graph)
    tf32 = Schedule(allow_tf32=True)
    graph = rmsnorm_linear(3, 32, 32, tile_n=32, tile_k=16, dtype=f32, schedule=tf32)
    yield "norm tf32", Case(graph, tolerance=2e-3)
    layouts = ((1, 0), (1, 0))
    graph = rmsnorm_linear(20, 40, 36, tile_n=32, tile_m=16, tile_k=16, layouts=layouts)
    yield "column-major", Case(graph)
    yield "gated", Case(gated_mlp(5, 40, 36, tile_n=16, tile_k=16))
    yield "lora", Case(lora(5, 40, 36, tile_n=16, tile_k=16))
    yield "unsafe", Case(attention(1, 20, 40, 4, tile_m=16, tile_n=16, safe=False))
    yield "query norm", Case(_query_norm())
    for dtype in NARROW_FLOATS:
        yield f"weights in {dtype}", Case(_narrow_weights(dtype))
        yield f"rounded to {dtype}", Case(_rounded_rows(dtype))
    yield "several stores", Case(_several_stores())
    yield "batched", Case(_batched())
    yield "batch inside", Case(_merged_sides())
    yield from ((f"batch of {t} summed", Case(summed_batch(t))) for t in (2, 4, 16))
    yield "one row", Case(_one_row())
    yield "masked rows", Case(_masked_rows())
    yield "casts", Case(_casts())
    yield "truth", Case(_truth())
    yield "gathers", Case(_gathers())
    yield "scans", Case(_scans(), low=0.1)
    yield "gathers in a block", Case(_picked())
    yield "joined elements", Case(_joined_elements())
    yield "pages of a table", Case(_pages(), tolerance=2e-2)
    yield "beside", Case(_beside())
    yield "joined operands", Case(_joined_operands(), tolerance=2e-2)
    yield "joined iterations", Case(_joined_iterations())
    yield "scalar", Case(_scalar())
    yield "ones", Case(_ones())


def _query_norm() -> KernelGraph:
    return attention(1, 20, 24, 24, tile_m=16, tile_n=16, norm=True, keys_last=False)


def _several_stores() -> KernelGraph:
    """One from before the loop in another order, one from after it; ragged."""
    g = KernelBuilder("stores", m=6, k=10)
    x = g.input("x", f32, "m, k")
    with g.block(grid={"m": 4}) as b:
        t = b.load(x, "m/grid, k")
        first = b.store(b.square(t), "m/grid, k")
        second = b.store(b.mul(b.sum(t, over="k"), one_over("k")), "m/grid")
    return g.returns(first, second).build()


def _narrow_weights(dtype: DType) -> KernelGraph:
    """Floats of 8 bits, one factor of a product and of other arithmetic; ragged."""
    g = KernelBuilder(f"weights_{dtype}", m=5, k=40, n=36)
    x, w = g.input("x", f16, "m, k"), g.input("w", dtype, "k, n")
    with g.block(grid={"n": 16}, loop=("k", 16)) as b:
        part = b.load(w, "k/loop, n/grid")
        wide = b.apply("cast", part, dtype="f16")
        total = b.accumulate(b.matmul(b.load(x, "m, k/loop"), wide, over="k"))
        sizes = b.accumulate(b.sum(b.square(part), over="k"))
        outs = [b.store(total, "m, n/grid", dtype=f16)]
        outs.append(b.store(sizes, "n/grid", dtype=f32))
    wide = g.apply("cast", w, dtype="f32")
    return g.returns(*outs, g.sum(g.square(wide), over="k")).build()


def _rounded_rows(dtype: DType) -> KernelGraph:
    """Rows scaled to the largest number of 8 bits; one that goes on in the block."""
    g = KernelBuilder(f"rounded_{dtype}", m=6, k=10)
    x = g.input("x", f32, "m, k")
    with g.block(grid={"m": 4}) as b:
        t = b.load(x, "m/grid, k")
        most = b.apply("max", b.apply("abs", t), over="k")
        scale = b.div(b.mul(most, 0.5), dtype.max)
        # Half of the largest number and more is beyond the format.
        narrow = b.apply(f"to_{dtype}", b.div(t, scale))
        back = b.mul(
            b.apply("minimum", b.apply("cast", narrow, dtype="f32"), 9.0), scale
        )
        outs = [b.store(narrow, "m/grid, k", dtype=dtype)]
        outs += [b.store(back, "m/grid, k"), b.store(scale, "m/grid, 1")]
    return g.returns(*outs).build()


def _batched() -> KernelGraph:
    g = KernelBuilder("batched", h=3, m=6, k=9, n=4)
    x, y = g.input("x", f16, "h, m, k"), g.input("y", f16, "h, k, n")
    with g.block(grid={"h": 2}) as b:
        p = b.matmul(b.load(x, "h/grid, m, k"), b.load(y, "h/grid, k, n"), over="k")
        out = b.store(p, "h/grid, n, m")
    return g.returns(out).build()


def summed_batch(tile: int, *, groups: int = 6, rows: int = 5) -> KernelGraph:
    """Products of so many groups at once, each with factors of its own, then summed."""
    g = KernelBuilder("summed", g=groups, m=rows, k=16, n=36)
    x, w = g.input("x", f16, "m, g, k"), g.input("w", f16, "g, k, n")
    scale = g.input("scale", f16, "g, n")
    with g.block(grid={"n": 16}, loop=("g", tile)) as b:
        left, right = b.load(x, "m, g/loop, k"), b.load(w, "g/loop, k, n/grid")
        factor = b.load(scale, "g/loop, n/grid")
        part = b.mul(b.matmul(left, right, over="k"), factor)
        out = b.store(b.accumulate(b.sum(part, over="g")), "m, n/grid", dtype=f16)
    return g.returns(out).build()


def _merged_sides() -> KernelGraph:
    """Rows, and what is summed over, of two axes each."""
    g = KernelBuilder("merged", m=3, h=6, j=5, k=8, n=20)
    x, y = g.input("x", f32, "m, h, j, k"), g.input("y", f32, "j, k, n")
    with g.block(grid={"n": 16}) as b:
        left, right = b.load(x, "m, h, j, k"), b.load(y, "j, k, n/grid")
        out = b.store(b.matmul(left, right, over="j, k"), "m, h, n/grid")
    return g.returns(out).build()


def _one_row() -> KernelGraph:
    """A vector that is a row for the matrix unit, and one that is none."""
    g = KernelBuilder("row", k=40, n=24, r=9)
    x, w, v = (
        g.input("x", f16, "1, k"),
        g.input("w", f16, "k, n"),
        g.input("v", f16, "k"),
    )
    with g.block(grid={"n": 16}, loop=("k", 16)) as b:
        xt, wt = b.load(x, "1, k/loop"), b.load(w, "k/loop, n/grid")
        p = b.accumulate(b.matmul(xt, wt, over="k"))
        q = b.accumulate(b.matmul(xt, b.load(v, "k/loop"), over="k"))
        out = b.store(b.add(p, q), "1, n/grid")
    return g.returns(out).build()


def _masked_rows() -> KernelGraph:
    """Rows of -inf, at once and tile by tile: their exponentials are 0, not NaN."""
    g = KernelBuilder("masked", m=8, k=11)
    x, keep = g.input("x", f32, "m, k"), g.input("keep", f32, "m")
    low = float("-inf")

    def masked(b: BlockBuilder, axes: str) -> str:
        t, whole = b.load(x, axes), b.less(0.0, b.load(keep, "m/grid"))
        return b.where(whole, b.where(b.less(t, 0.5), t, low), low)

    with g.block(grid={"m": 2}) as b:
        t = masked(b, "m/grid, k")
        at_once = b.store(b.exp(b.sub(t, b.rowshift(t, over="k"))), "m/grid, k")
    with g.block(grid={"m": 2}, loop=("k", 2)) as b:
        t = masked(b, "m/grid, k/loop")
        largest = b.running_max(b.rowshift(t, over="k"))
        total = b.sum(b.exp(b.sub(t, largest)), over="k")
        total = b.accumulate(total, rescale=largest)
        tiled = b.store(b.or_one(total), "m/grid")
    return g.returns(at_once, tiled).build()


def _casts() -> KernelGraph:
    """Rounded between operators and in stores, and read again."""
    g = KernelBuilder("casts", m=6, k=10)
    x = g.input("x", f32, "m, k")
    with g.block(grid={"m": 4}) as b:
        t = b.load(x, "m/grid, k")
        narrow = b.cast(b.cast(t, dtype="bf16"), dtype="f32")
        half = b.store(b.square(t), "m/grid, k", dtype=f16)
        out = b.store(b.add(t, narrow), "m/grid, k")
    with g.block(grid={"m": 3}) as b:
        again = b.store(b.add(b.load(half, "m/grid, k"), 0.0), "m/grid, k", dtype=f32)
    return g.returns(out, again, g.cast(x, dtype="f16")).build()


def _truth() -> KernelGraph:
    """Truth values that are read, computed and stored."""
    g = KernelBuilder("truth", m=6, k=10)
    x, keep = g.input("x", f32, "m, k"), g.input("keep", boolean, "m, k")
    with g.block(grid={"m": 4}) as b:
        t, kept = b.load(x, "m/grid, k"), b.load(keep, "m/grid, k")
        both = b.mul(kept, b.less(0.0, t))
        first = b.store(both, "m/grid, k", dtype=boolean)
        second = b.store(b.where(kept, t, 0.5), "m/grid, k", dtype=f32)
    return g.returns(first, second).build()


def _gathers() -> KernelGraph:
    """Elements at indices that are data: rows, columns, and one of each row."""
    g = KernelBuilder("gathers", m=6, k=10, n=7, c=4)
    x, w = g.input("x", f32, "m, k"), g.input("w", f16, "k, c")
    rows, ids = g.input("rows", i32, "n"), g.input("ids", i64, "m")
    some = g.apply(GATHER, x, rows, dim="m")
    with g.block(grid={"n": 4}) as b:
        out = b.store(b.exp(b.load(some, "n/grid, k")), "n/grid, k")
    shared = g.apply(GATHER, x, ids, dim="k")
    return g.returns(out, shared, g.apply(GATHER, w, ids, dim="k")).build()


def _scans() -> KernelGraph:
    """Along rows, columns, an axis of several dims, and one element; of integers."""
    g = KernelBuilder("scans", m=6, k=13, u=1)
    x, i, y = (
        g.input("x", f32, "m, k"),
        g.input("i", i32, "m, k"),
        g.input("y", f16, "u"),
    )
    with g.block(grid={"m": 4}) as b:
        t = b.load(x, "m/grid, k")
        rows = b.cumsum(t, along="k")
        out = b.store(b.mul(b.cumprod(t, along="k"), rows), "m/grid, k")
        whole = b.cumsum(b.load(i, "m/grid, k"), along="k")
        counted = b.store(whole, "k, m/grid", dtype=i32)
    with g.block(grid={"k": 4}) as b:
        columns = b.cumsum(b.load(x, "m, k/grid"), along="m")
        ones = b.cumsum(b.load(y, "u"), along="u")
        other = b.store(b.add(columns, ones), "k/grid, m, u", dtype=f32)
    merged = g.cumsum(x, along="(k m)"), g.cumprod(x, along="k")
    return g.returns(out, counted, other, *merged).build()


def _picked() -> KernelGraph:
    """Rows at computed indices, one element of each row, and the rows themselves."""
    g = KernelBuilder("picked", m=6, k=10, n=7, c=4)
    x, w = g.input("x", f32, "m, k"), g.input("w", f16, "k, c")
    rows, ids = g.input("rows", i32, "n"), g.input("ids", i64, "m")
    with g.block(grid={"n": 4}, loop=("k", 4)) as b:
        at = b.add(b.load(rows, "n/grid"), scalar(-1))
        some = b.apply(GATHER, b.load(x, "m, k/loop"), at, dim="m")
        total = b.accumulate(b.sum(some, over="k"))
        first = b.store(total, "n/grid", dtype=f32)
    with g.block(grid={"m": 4}) as b:
        at, xt = b.load(ids, "m/grid"), b.load(x, "m/grid, k")
        one = b.apply(GATHER, xt, at, dim="k")
        row = b.apply(GATHER, b.load(w, "k, c"), at, dim="k")
        second = b.mul(b.sub(one, b.sum(xt, over="k")), row)
        second = b.store(second, "c, m/grid", dtype=f32)
    return g.returns(first, second).build()


_JOINED = """mirage 1
mugraph joined(x: f32[m, h], y: f32[m, t]) -> f32[m, d], f32[m]
    where m = 6, h = 7, t = 5, d = 12 {
  i = index d
  y1, y2 = block grid(m / 4) loop(d / 8) {
    at = load i[d/loop]
    first = less at, 1*h
    ahead = where first, at, 0
    back = sub at, 1*h
    behind = where first, 0, back
    xt = load x[m/grid, h]
    yt = load y[m/grid, t]
    a = gather xt, ahead dim(h)
    b = gather yt, behind dim(t)
    c = where first, a, b
    w = mul c, c
    s = sum w over(d)
    whole = accumulate w concat
    total = accumulate s
    store y1: f32[m/grid, d] = whole
    store y2: f32[m/grid] = total
  }
  return y1, y2
}
"""


def _joined_elements() -> KernelGraph:
    """Elements of two tensors at positions that are known, and lanes left out."""
    return parse(_JOINED)


def _pages() -> KernelGraph:
    """Products with pages of a cache, by an index of each iteration."""
    g = KernelBuilder("pages", b=3, p=6, s=16, d=16, n=4)
    q, cache = g.input("q", f16, "b, d"), g.input("k", f16, "p, s, d")
    table = g.input("table", i32, "b, n")
    with g.block(grid={"b": 1}, loop=("n", 1)) as b:
        at = b.load(table, "b/grid, n/loop")
        keys = b.apply(GATHER, b.load(cache, "p, s, d"), at, dim="p")
        dots = b.matmul(b.load(q, "b/grid, d"), keys, over="d")
        summed = b.matmul(b.cast(b.exp(dots), dtype="f16"), keys, over="s")
        total = b.accumulate(b.sum(summed, over="n"))
        out = b.store(total, "b/grid, d", dtype=f16)
    return g.returns(out).build()


def _beside() -> KernelGraph:
    """Dims of different numbers of parts along one axis of the grid."""
    g = KernelBuilder("beside", m=5, k=24, a=70, c=9)
    x, wa, wc = (
        g.input(n, f16, t) for n, t in (("x", "m, k"), ("w", "k, a"), ("v", "k, c"))
    )
    grid = (Split("a", 16), Split("c", 2, beside=True), Split("m", 4))
    with g.block(grid=grid, loop=("k", 16)) as b:
        xt = b.load(x, "m/grid, k/loop")
        pa = b.accumulate(b.matmul(xt, b.load(wa, "k/loop, a/grid"), over="k"))
        pc = b.accumulate(b.matmul(xt, b.load(wc, "k/loop, c/grid"), over="k"))
        outs = b.store(pa, "m/grid, a/grid"), b.store(pc, "c/grid, m/grid")
    return g.returns(*outs).build()


_PARTS_OF_BYTES = """mirage 1

mugraph parts(x: f16[{m}, ({x})], q: u8[n, d]) -> f32[{m}, d]
where {rows}n = {n}, h = {count}, d = 24 {{
  i = index h
  y = block grid(d / 16) loop(n / 16) {schedule} {{
    i_t = load i[h]
    j = mul i_t, {bits}
    k = to_u8 j
    x_t = load x[{m}, ({x_t})]
    q_t = load q[n/loop, d/grid]
    a = shift_right q_t, k
    b = bit_and a, {mask}
    c = to_f32 b
    v = cast c dtype(f16)
    {product}
    u = accumulate p
    store y[{m}, d/grid] = u
  }}
  return y
}}
"""
MULTIPLIED = "p = matmul x_t, v over(n, h)"
SUMMED = "e = mul x_t, v\n    p = sum e over(n, h)"
BEHIND = "p0 = matmul x_t, v over(n)\n    p = sum p0 over(h)"


def parts_of_bytes(
    count: int = 2,
    bits: int = 4,
    rows: int = 5,
    n: int = 48,
    product: str = MULTIPLIED,
    *,
    slowest: bool = False,
    schedule: str = "",
) -> KernelGraph:
    """Several numbers of few bits for each byte, next to each other in what is summed.

    Args:
        count: How many.
        bits: Of each.
        rows: Of the other factor; one is none.
        n: Rows of bytes.
        product: How the sum is made.
        slowest: Whether all first numbers come first in the other factor.
        schedule: Of the block.
    """
    text = _PARTS_OF_BYTES.format(
        count=count,
        bits=bits,
        mask=2**bits - 1,
        n=n,
        m="m" if rows > 1 else "1",
        rows=f"m = {rows}, " if rows > 1 else "",
        x="h n" if slowest else "n h",
        x_t="h n/loop" if slowest else "n/loop h",
        product=product,
        schedule=schedule,
    )
    return parse(text)


def _parts_of_bytes() -> Iterator[tuple[str, KernelGraph]]:
    swapped = "swap_operands(true)"
    yield "halves of bytes", parts_of_bytes()
    yield "halves of bytes swapped", parts_of_bytes(schedule=swapped)
    yield "halves of bytes ragged", parts_of_bytes(n=40)
    yield "halves of bytes slowest", parts_of_bytes(slowest=True)
    yield "halves of bytes, one row", parts_of_bytes(rows=1)
    yield "halves of bytes summed", parts_of_bytes(product=SUMMED)
    yield "halves of bytes summed, one row", parts_of_bytes(rows=1, product=SUMMED)
    yield "halves of bytes summed later", parts_of_bytes(product=BEHIND)
    yield "quarters of bytes", parts_of_bytes(4, 2)
    yield "quarters of bytes ragged", parts_of_bytes(4, 2, n=40, schedule=swapped)
    yield "three parts of bytes", parts_of_bytes(3, 2)
    yield "three parts of bytes, one row", parts_of_bytes(3, 2, rows=1, n=40)


_PAIRS_OF_BYTES = """mirage 1

mugraph pairs(
  x: f16[m, (a b)], w: {dtype}[(a b), (d p)], c: f16[(d p)]
) -> f32[m, (d p)] where m = {rows}, a = {a}, b = 16, d = {d}, p = 2 {{
  y = block grid(d / 16) loop(a / 4) {schedule} {{
    x_t = load x[m, (a/loop b)]
    w_t = load w[(a/loop b), (d/grid p)]
    c_t = load c[(d/grid p)]
    {convert}
    q = matmul x_t, v over(b)
    s = accumulate q
    t = sum s over(a)
    u = mul t, c_t
    store y[m, (d/grid p)] = u
  }}
  return y
}}
"""
FLOATS = "v = cast w_t dtype(f16)"
WHOLE = "f = to_f32 w_t\n    v = cast f dtype(f16)"


def pairs_of_bytes(
    dtype: str = "f8e4m3", rows: int = 5, a: int = 8, d: int = 32, schedule: str = ""
) -> KernelGraph:
    """A product with bytes of which two in a row are kept together.

    Args:
        dtype: Of the bytes.
        rows: Of the other factor.
        a: Parts of what is summed.
        d: Pairs in a row of bytes.
        schedule: Of the block.
    """
    convert = FLOATS if dtype.startswith("f") else WHOLE
    fields = {"rows": rows, "a": a, "d": d, "schedule": schedule}
    return parse(_PAIRS_OF_BYTES.format(dtype=dtype, convert=convert, **fields))


_PAIRS_OF_HALVES = """mirage 1

mugraph halves(
  x: f16[m, (a n h)], w: u8[(a n), (d p)], s: f16[a, (d p)]
) -> f32[m, (d p)] where m = 5, a = {a}, n = 16, h = 2, d = 24, p = 2 {{
  i = index h
  y = block grid(d / 16) loop(a / 4) {{
    i_t = load i[h]
    j = mul i_t, 4
    k = to_u8 j
    x_t = load x[m, (a/loop n h)]
    w_t = load w[(a/loop n), (d/grid p)]
    s_t = load s[a/loop, (d/grid p)]
    r = shift_right w_t, k
    b = bit_and r, 15
    c = to_i8 b
    e = sub c, 8
    f = to_f32 e
    v = cast f dtype(f16)
    q = matmul x_t, v over(n, h)
    g = mul q, s_t
    z = accumulate g
    t = sum z over(a)
    store y[m, (d/grid p)] = t
  }}
  return y
}}
"""


def pairs_of_halves(a: int = 8) -> KernelGraph:
    """The same with halves of bytes, and a scale for each part of what is summed."""
    return parse(_PAIRS_OF_HALVES.format(a=a))


_DEALT_BYTES = """mirage 1

mugraph dealt(x: f16[m, (a b p)], w: constant {dtype}[n, (a b p)]) -> f32[m, n]
where m = {rows}, a = {a}, b = {b}, p = 2, n = {n} {{
  y = block grid(n / 16) loop(a / {parts}) {schedule} {{
    x_t = load x[m, (a/loop b p)]
    w_t = load w[n/grid, (a/loop b p)]
    {convert}
    q = matmul v, x_t over(b, p)
    s = accumulate q
    t = sum s over(a)
    store y[m, n/grid] = t
  }}
  return y
}}
"""


def dealt_bytes(
    dtype: str = "f8e4m3",
    rows: int = 5,
    *,
    a: int = 16,
    b: int = 32,
    n: int = 48,
    parts: int = 8,
    warps: int = 8,
    stages: int = 1,
    early: str = "",
) -> KernelGraph:
    """A product with bytes that lie together along what is summed.

    Args:
        dtype: Of the bytes.
        rows: Of the other factor.
        a: Parts of what is summed.
        b: Pairs of bytes in a part.
        n: Rows of bytes.
        parts: In an iteration.
        warps: Of a block.
        stages: Of the loop.
        early: What the schedule says besides.
    """
    convert = FLOATS if dtype.startswith("f") else WHOLE
    return parse(
        _DEALT_BYTES.format(
            dtype=dtype,
            convert=convert,
            rows=rows,
            a=a,
            b=b,
            n=n,
            parts=parts,
            schedule=f"num_warps({warps}) num_stages({stages}) {early}",
        )
    )


_DEALT_HALVES = """mirage 1

mugraph dealt(
  x: f16[m, (a b p h)], w: constant u8[n, (a b p)], s: constant f16[n, a]
) -> f32[m, n] where m = {rows}, a = {a}, b = 32, p = 2, h = 2, n = 32 {{
  i = index h
  y = block grid(n / 16) loop(a / {parts}) {schedule} {{
    i_t = load i[h]
    j = mul i_t, 4
    k = to_u8 j
    x_t = load x[m, (a/loop b p h)]
    w_t = load w[n/grid, (a/loop b p)]
    s_t = load s[n/grid, a/loop]
    r = shift_right w_t, k
    c = bit_and r, 15
    d = to_i8 c
    e = sub d, 8
    f = to_f32 e
    v = cast f dtype(f16)
    q = matmul v, x_t over(b, p, h)
    g = mul q, s_t
    z = accumulate g
    t = sum z over(a)
    store y[m, n/grid] = t
  }}
  return y
}}
"""


def dealt_halves(
    rows: int = 5,
    *,
    a: int = 16,
    parts: int = 4,
    warps: int = 4,
    stages: int = 1,
    early: str = "",
) -> KernelGraph:
    """The same with halves of bytes, and a scale for each part of what is summed."""
    schedule = f"num_warps({warps}) num_stages({stages}) {early}"
    return parse(_DEALT_HALVES.format(rows=rows, a=a, parts=parts, schedule=schedule))


_EIGHTHS = """mirage 1

mugraph of_words(
  x: f16[m, (a n h)], w: {dtype}[(a n), d], s: f16[a, d]
) -> f32[m, d] where m = {rows}, a = 8, n = 16, h = {h}, d = 32 {{
  i = index h
  y = block grid(d / 16) loop(a / 4) {{
    i_t = load i[h]
    j = mul i_t, {bits}
    k = {shift}
    x_t = load x[m, (a/loop n h)]
    w_t = load w[(a/loop n), d/grid]
    s_t = load s[a/loop, d/grid]
    {word}r = {shifted}
    c = bit_and r, {mask}
    e = sub c, {less}
    f = to_f32 e
    g = cast f dtype(f16)
    q = matmul x_t, g over(n, h)
    u = mul q, s_t
    z = accumulate u
    t = sum z over(a)
    store y[m, d/grid] = t
  }}
  return y
}}
"""


def eighths_of_words(
    rows: int = 5,
    *,
    dtype: str = "i32",
    h: int = 8,
    bits: int = 4,
    mask: int = 15,
    less: int = 8,
    wide: bool = False,
) -> KernelGraph:
    """A product with parts of words, along what is summed.

    Args:
        rows: Of the other factor.
        dtype: Of the words.
        h: Parts of each that are taken.
        bits: From one part to the next.
        mask: The bits that are left of a part.
        less: What is subtracted.
        wide: Whether the words are of 64 bits when they are shifted.
    """
    own = "i64" if wide else dtype
    return parse(
        _EIGHTHS.format(
            dtype=dtype,
            rows=rows,
            h=h,
            bits=bits,
            mask=mask,
            less=less,
            word="v = to_i64 w_t\n    " if wide else "",
            shifted="shift_right v, k" if wide else "shift_right w_t, k",
            shift="add j, 0" if own == "i64" else f"to_{own} j",
        )
    )


def _pairs_of_bytes() -> Iterator[tuple[str, KernelGraph]]:
    yield "eighths of words", eighths_of_words()
    yield "eighths of words, as wide ones, one row", eighths_of_words(1, wide=True)
    for dtype in ("f8e4m3", "f8e5m2", "u8", "i8"):
        yield f"dealt {dtype}", dealt_bytes(dtype)
    yield "dealt bytes, one row", dealt_bytes(rows=1, parts=16)
    yield "dealt bytes, eight rows", dealt_bytes(rows=8, warps=4)
    yield "dealt halves of bytes", dealt_halves()
    yield "dealt halves of bytes, one row", dealt_halves(1, parts=8)
    yield (
        "dealt halves of bytes, one row in eight columns",
        dealt_halves(1, parts=2, warps=2),
    )
    early = "pdl(true) early(2)"
    yield "dealt halves of bytes, some early", dealt_halves(early=early)
    yield "dealt halves of bytes, one row, some early", dealt_halves(1, early=early)
    yield "dealt bytes, one row, some early", dealt_bytes(rows=1, early=early)
    for dtype in ("f8e4m3", "f8e5m2", "u8", "i8"):
        yield f"pairs of {dtype}", pairs_of_bytes(dtype)
    yield "pairs of bytes swapped", pairs_of_bytes(schedule="swap_operands(true)")
    yield "pairs of bytes ragged", pairs_of_bytes(d=20, a=6)
    yield "pairs of bytes, one row", pairs_of_bytes(rows=1)
    yield "pairs of halves of bytes", pairs_of_halves()
    yield "pairs of halves of bytes ragged", pairs_of_halves(6)


_EARLY = """mirage 1

mugraph linear(x: f16[m, k], w: constant f16[k, n], b: constant f16[n]) -> f32[m, n]
where m = 20, k = {k}, n = {n} {{
  y = block grid(m / 16, n / 16) loop(k / 16) num_stages(1) pdl(true) early({early}) {{
    x_t = load x[m/grid, k/loop]
    w_t = load w[k/loop, n/grid]
    b_t = load b[n/grid]
    p = matmul x_t, w_t over(k)
    s = accumulate p
    z = add s, b_t
    store y[m/grid, n/grid] = z
  }}
  return y
}}
"""


def loaded_early(k: int = 70, n: int = 24, *, early: int = 2) -> KernelGraph:
    """A product whose weights are loaded before the wait, of so many iterations."""
    return parse(_EARLY.format(k=k, n=n, early=early))


def _joined_operands() -> KernelGraph:
    """A product of joined operands, of which one is computed."""
    g = KernelBuilder("joined", m=5, k=24, n=20, r=4)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    a, c = g.input("a", f16, "k, r"), g.input("b", f16, "r, n")
    with g.block(grid={"n": 8}, loop=("k", 8)) as b:
        xt, wt = b.load(x, "m, k/loop"), b.load(w, "k/loop, n/grid")
        low = b.matmul(xt, b.load(a, "k/loop, r"), over="k")
        left = b.concat(xt, b.cast(low, dtype="f16"), dims="k, r", to="j")
        right = b.concat(wt, b.load(c, "r, n/grid"), dims="k, r", to="j")
        out = b.store(b.accumulate(b.matmul(left, right, over="j")), "m, n/grid")
    return g.returns(out).build()


def _joined_iterations() -> KernelGraph:
    """What iterations compute, stored piece by piece, within the grid's part too."""
    g = KernelBuilder("pieces", m=5, k=21)
    x = g.input("x", f32, "m, k")
    with g.block(grid={"m": 2}, loop=("k", 4)) as b:
        t = b.exp(b.load(x, "m/grid, k/loop"))
        first = b.store(b.accumulate(t, "concat"), "k, m/grid")
    with g.block(grid={"k": 8}, loop=("k", 3)) as b:
        t = b.neg(b.load(first, "k/grid/loop, m"))
        second = b.store(b.accumulate(t, "concat"), "m, k/grid")
    return g.returns(first, second).build()


def _scalar() -> KernelGraph:
    g = KernelBuilder("total", m=6, k=10)
    x, y = g.input("x", f32, "m, k"), g.input("y", f32, "")
    with g.block(loop=("k", 4)) as b:
        t = b.mul(b.load(x, "m, k/loop"), b.load(y, ""))
        out = b.store(b.accumulate(b.sum(t, over="m, k")), "")
    return g.returns(out).build()


def _ones() -> KernelGraph:
    """Axes of extent 1, with and without a dim, and blocks of one element."""
    g = KernelBuilder("ones", m=5, u=1)
    x, y = g.input("x", f32, "1, m, u"), g.input("y", f32, "u, 1")
    with g.block(grid={"m": 1}) as b:
        z = b.add(b.load(x, "1, m/grid, u"), b.load(y, "u, 1"))
        out = b.store(z, "m/grid, 1, u")
    return g.returns(out).build()


# -- Several kernels -------------------------------------------------------------------


def _kernels() -> Iterator[tuple[str, Case]]:
    for schedule in (Schedule(), Schedule(pdl=True, prefetch=1)):
        name = "early" if schedule.pdl else "in turn"
        graph = attention(
            1, 20, 80, 24, tile_m=16, tile_n=16, splits=3, schedule=schedule
        )
        yield f"split attention {name}", Case(graph)
        graph = side_product(5, 40, 36, 9, tile_n=16, tile_k=16, schedule=schedule)
        yield f"side product {name}", Case(graph)
        # No lane outside, so that tiles are asked for ahead.
        graph = norm_ahead(16, 64, 32, tile_n=16, tile_k=16, schedule=schedule)
        yield f"norm ahead {name}", Case(graph)
    for early in (1, 5):
        yield f"loaded early, {early}", Case(loaded_early(early=early))
    yield "several kernels", Case(_chain(), low=0.1, tolerance=1e-2)
    yield "joins between", Case(_joins())
    yield "flat", Case(parse(FLAT))
    yield "library alone", Case(_library())
    yield "bounded", Case(parse(_BOUNDED.lstrip()))
    yield "settled", Case(parse(_SETTLED.lstrip()))
    yield "positions", Case(_positions(m=5, k=21))
    ragged = [{"m": m, "k": k} for m, k in ((5, 21), (1, 8))]
    yield "symbolic positions", Case(_positions(m=None, k=None), sizes=ragged)
    symbolic = [{"m": m, "k": k} for m, k in ((5, 33), (1, 8), (9, 21))]
    yield "symbolic", Case(_symbolic(), sizes=symbolic)


def _chain() -> KernelGraph:
    """Library kernels, views and blocks in turn; merged and turned axes."""
    g = KernelBuilder("chain", h=2, m=6, k=8)
    x = g.input("x", f16, "m, (h k)")
    e = g.exp(g.mul(x, 0.25))
    with g.block(grid={"h": 1}) as b:
        t = b.load(e, "m, h/grid, k")
        first = b.store(b.mul(t, b.sum(t, over="m")), "h/grid, k, m")
        second = b.store(b.max(t, over="k"), "(m h/grid)")
    part = g.slice(first, dim="k", start=3, stop=8, to="j")
    with g.block(grid={"m": 4}) as b:
        total = b.sum(b.load(part, "h, j, m/grid"), over="j")
        out = b.store(b.sub(total, b.load(second, "(m/grid h)")), "m/grid, h")
    return g.returns(g.sum(out, over="h")).returns(second, axes="h, m").build()


FLAT = """mirage 1

mugraph flat(x: f32[m, h, k]) -> f32[m, q], f32[m, h, k] where m = 6, h = 3, k = 8 {
  x_flat = flatten x of(h, k) to(q)
  y = block grid(m / 4, q / 16) {
    t: f32[m/grid, q/grid] = load x_flat
    s: f32[m/grid, q/grid] = square t
    store y: f32[m/grid, q/grid] = s
  }
  z = unflatten y dim(q) gives(h, k)
  return y, z
}
"""
"""Dims as one, and one as several."""


def _joins() -> KernelGraph:
    """Parts of a concatenation that kernels make, and one that none makes."""
    g = KernelBuilder("parts", m=6, k=16, n=16)
    x, y = g.input("x", f32, "m, k"), g.input("y", f32, "n, m")
    with g.block(grid={"m": 4}) as b:
        t = b.load(x, "m/grid, k")
        one, two = b.store(b.square(t), "m/grid, k"), b.store(b.neg(t), "k, m/grid")
    whole = g.concat(y, one, two, dims="n, k, k", to="j")
    renamed = g.insert(g.rename(one, dims="k", to="n"), to="u")
    with g.block(grid={"m": 4}, loop=("j", 16)) as b:
        t = b.accumulate(b.max(b.load(whole, "j/loop, m/grid"), over="j"), "max")
        out = b.store(t, "m/grid")
    return g.returns(whole, out, renamed).build()


def _positions(**extents: int | None) -> KernelGraph:
    """Positions along an axis of two dims and in the loop, and for the library."""
    g = KernelBuilder("positions", h=3, **extents)
    x = g.input("x", f32, "(m h), k")
    i, j = g.index("i", "(m h)"), g.index("j", "k")
    late = g.where(g.less(j, 4), x, 0.0)
    with g.block(grid={"m": 2}, loop=("k", 4)) as b:
        rows, columns = b.load(i, "(m/grid h)"), b.load(j, "k/loop")
        seen = b.less_equal(columns, b.mul(rows, 2))
        t = b.where(seen, b.load(late, "k/loop, m/grid, h"), b.to_f32(columns))
        summed = b.sum(b.accumulate(t), over="k")
        total = b.store(summed, "m/grid, h", dtype=f32)
    return g.returns(total).build()


_BOUNDED = """
mirage 1
mugraph sums(x: f32[n, d]) -> f32[n], f32[d#, n] where n = 37, d = 53 {
  j = index d
  i = index n
  y = block grid(n / 4) loop(d / 8) while(d <= n + 2, d >= n - 9) {
    xt = load x[n/grid, d/loop]
    it = load i[n/grid]
    jt = load j[d/loop]
    s = where(jt <= it + 2, where(it <= jt + 9, xt, 0), 0)
    t = sum s over(d)
    a = accumulate t
    store y: f32[n/grid] = a
  }
  z = block grid(n / 16, d / 20) loop(d / 8) while(d >= n + 3) {
    xt = load x[n/grid, d/grid/loop]
    it = load i[n/grid]
    jt = load j[d/grid/loop]
    s = where(it + 3 <= jt, exp(xt), 0)
    a = accumulate s
    t = sum a over(d)
    store z: f32[d#/grid, n/grid] = t
  }
  return y, z
}
"""
"""Iterations that a block's place leaves out, of the whole dim and of its part."""


_SETTLED = """
mirage 1
mugraph sums(x: f32[n, d]) -> f32[n], f32[d#, n] where n = 37, d = 153 {
  j = index d
  i = index n
  y = block grid(n / 4) loop(d / 8) while(d <= n + 42, d >= n - 9) \
    settled(low == 1 if d <= n + 42, high == 1 if d >= n - 9) {
    xt = load x[n/grid, d/loop]
    it = load i[n/grid]
    jt = load j[d/loop]
    low = jt <= it + 42
    high = it <= jt + 9
    s = where(low, where(high, xt, 0), 0)
    t = sum s over(d)
    a = accumulate t
    store y: f32[n/grid] = a
  }
  z = block grid(n / 16, d / 60) loop(d / 8) while(d >= n + 3) \
    settled(late == 1 if d >= n + 3) {
    xt = load x[n/grid, d/grid/loop]
    it = load i[n/grid]
    jt = load j[d/grid/loop]
    late = it + 3 <= jt
    s = where(late, exp(xt), 0)
    a = accumulate s
    t = sum a over(d)
    store z: f32[d#/grid, n/grid] = t
  }
  return y, z
}
"""
"""Iterations that do without a mask: between others, and behind them."""


def _library() -> KernelGraph:
    """A program as it was traced: no block at all."""
    g = KernelBuilder("library", m=6, k=10, n=4)
    x, w = g.input("x", f32, "m, k"), g.input("w", f32, "k, n")
    e = g.exp(g.sub(x, g.rowshift(x, over="k")))
    y = g.matmul(g.div(e, g.sum(e, over="k")), w, over="k")
    return g.returns(y, axes="(n m)").returns(x).build()


def _symbolic() -> KernelGraph:
    """Symbolic extents in the grid, the loop, numbers of parts and constants."""
    g = KernelBuilder("symbolic", m=None, k=None)
    x = g.input("x", f32, "m, k")
    with g.block(grid={"k": 8, "m": 4}, loop=("k", 4)) as b:
        s = b.accumulate(b.sum(b.load(x, "m/grid, k/grid/loop"), over="k"))
        parts = b.store(s, "m/grid, k#/grid")
    with g.block(grid={"m": 4}, loop=("k#", 2)) as b:
        s = b.sum(b.accumulate(b.load(parts, "m/grid, k#/loop")), over="k#")
        out = b.store(b.mul(s, one_over("k")), "m/grid")
    return g.returns(out).build()


def _windows() -> Iterator[tuple[str, Case]]:
    """Operators that only PyTorch computes, which every host calls."""
    yield "gcd alone", Case(windows.divisors())
    for name, program in windows.ROWS.items():
        how = {"definite": program.definite, "signed": program.signed}
        yield f"{name} alone", Case(program.traced, **how)
        turned = map_nodes(program.traced, _channels_last)
        if turned != program.traced:
            yield f"{name} with channels last alone", Case(turned)


def _channels_last(node: KernelNode) -> KernelNode:
    if isinstance(node, Apply) and node.op in CHANNELS_LAST:
        return replace(node, op=CHANNELS_LAST[node.op])
    return node


def _all() -> Iterator[tuple[str, Case]]:
    yield from _rows()
    yield from _windows()
    yield from _accumulators()
    yield from _blocks()
    yield from ((n, Case(g, tolerance=4e-3)) for n, g in _parts_of_bytes())
    yield from ((n, Case(g, tolerance=4e-3)) for n, g in _pairs_of_bytes())
    yield from _kernels()


CASES: Mapping[str, Case] = dict(_all())
"""What every backend has to compute."""


def ill_formed() -> list[str]:
    """Cases that the checker refuses, which would say nothing of a backend."""
    return [name for name, case in CASES.items() if check(case.graph)]
