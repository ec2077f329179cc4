"""Emitted blocks in the interpreter against the evaluator: the shapes of lowering."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import DType, bf16, f16, f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.text.parser import parse
from tests.backends.running import check, random_inputs

DTYPES = (f16, bf16, f32)


def elementwise_4d(grid: dict[str, int]) -> KernelGraph:
    g = KernelBuilder("mix", a=4, b=6, c=14, d=16)
    x, y = g.input("x", f32, "a, b, c, d"), g.input("y", f32, "a, b, c, d")
    axes = ", ".join(f"{n}/grid" if n in grid else n for n in "abcd")
    with g.block(grid=grid) as b:
        z = b.add(b.mul(b.load(x, axes), b.load(y, axes)), b.exp(b.load(x, axes)))
        out = b.store(z, axes)
    return g.returns(out).build()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "grid",
    [
        {"a": 1, "b": 1},
        {"a": 1, "b": 1, "c": 1},
        {"a": 3, "b": 1, "c": 2},
        {"d": 5, "b": 3},
        {"c": 7},
    ],
    ids=str,
)
def test_elementwise_4d(grid: dict[str, int]) -> None:
    check(elementwise_4d(grid))


def test_no_grid_at_all() -> None:
    g = KernelBuilder("whole", a=3, b=5)
    x = g.input("x", f32, "a, b")
    with g.block() as b:
        out = b.store(b.square(b.load(x, "a, b")), "a, b")
    check(g.returns(out).build())


def test_broadcast_of_both_sides() -> None:
    """(1, 4, 1, 10) + (1, 1, 4, 10)."""
    g = KernelBuilder("spread", i=4, j=4, k=10)
    x, y = g.input("x", f32, "1, i, 1, k"), g.input("y", f32, "1, 1, j, k")
    with g.block(grid={"k": 3}) as b:
        s = b.add(b.load(x, "1, i, 1, k/grid"), b.load(y, "1, 1, j, k/grid"))
        out = b.store(s, "i, j, k/grid")
    check(g.returns(out, axes="1, i, j, k").build())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batched_product(dtype: DType) -> None:
    """(3, 6, 9) @ (3, 9, 4), the batch as an axis of the tiles and over the grid."""
    for tile in (1, 2, 3):
        g = KernelBuilder("batched", h=3, m=6, k=9, n=4)
        x, y = g.input("x", dtype, "h, m, k"), g.input("y", dtype, "h, k, n")
        with g.block(grid={"h": tile}) as b:
            p = b.matmul(b.load(x, "h/grid, m, k"), b.load(y, "h/grid, k, n"), over="k")
            out = b.store(p, "h/grid, m, n")
        check(g.returns(out).build())


def product(
    m: int,
    k: int,
    n: int,
    tiles: tuple[int, int, int],
    *,
    dtype: DType = f16,
    swap: bool = False,
    layouts: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None),
) -> KernelGraph:
    g = KernelBuilder("product", m=m, k=k, n=n)
    x = g.input("x", dtype, "m, k", layout=layouts[0])
    y = g.input("y", dtype, "k, n", layout=layouts[1])
    schedule = Schedule(swap_operands=swap)
    grid = {"m": tiles[0], "n": tiles[2]}
    with g.block(grid=grid, loop=("k", tiles[1]), schedule=schedule) as b:
        p = b.matmul(b.load(x, "m/grid, k/loop"), b.load(y, "k/loop, n/grid"), over="k")
        out = b.store(b.accumulate(p), "m/grid, n/grid")
    return g.returns(out).build()


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(
    ("sizes", "tiles"),
    [
        ((15, 15, 15), (5, 5, 5)),
        ((96, 96, 57), (32, 32, 19)),
        ((54, 63, 58), (27, 21, 29)),
        ((92, 64, 94), (32, 24, 40)),
        ((1, 40, 33), (1, 16, 16)),
        ((3, 5, 2), (16, 16, 16)),
    ],
    ids=str,
)
def test_ragged_products(
    sizes: tuple[int, int, int], tiles: tuple[int, int, int], swap: bool
) -> None:
    m, k, n = sizes
    check(product(m, k, n, tiles, swap=swap))


@pytest.mark.parametrize(
    "layouts", list(itertools.product([None, (1, 0)], repeat=2)), ids=str
)
def test_row_and_column_major(
    layouts: tuple[tuple[int, ...] | None, tuple[int, ...] | None],
) -> None:
    check(product(20, 24, 18, (8, 8, 8), layouts=layouts))


def test_any_strides() -> None:
    graph = product(12, 20, 10, (8, 8, 8), dtype=f32)
    x = torch.randn(24, 40)[::2, ::2]
    y = torch.randn(1, 10).expand(20, 10)
    check(graph, [x, y])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("groups", [1, 2, 4, 6])
def test_sums_to_groups(axis: int, groups: int) -> None:
    """A sum of 12 x 24 down to some groups, as factor dims of one axis."""
    sizes = [12, 24]
    inner = sizes[axis] // groups
    other = sizes[1 - axis]
    g = KernelBuilder("groups", p=groups, q=inner, o=other)
    axes = ["o", "o"]
    axes[axis] = "(p q)"
    x = g.input("x", f32, ", ".join(axes))
    axes[axis] = "(p/grid q)"
    with g.block(grid={"p": 1}) as b:
        s = b.sum(b.load(x, ", ".join(axes)), over="q")
        out = b.store(s, "p/grid, o")
    check(g.returns(out).build())


def test_merged_axes_in_and_out() -> None:
    g = KernelBuilder("heads", b=2, h=3, d=5, m=4)
    x = g.input("x", f16, "(b m), (h d)")
    with g.block(grid={"b": 1, "h": 2}) as b:
        t = b.load(x, "(b/grid m), (h/grid d)")
        out = b.store(b.div(t, b.sum(b.square(t), over="d")), "h/grid, (b/grid m), d")
    check(g.returns(out, axes="m, b, (h d)").build())


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_accumulators_keep_the_tile(kind: str) -> None:
    """A looped dim that survives is the index within a tile; the last is ragged."""
    g = KernelBuilder("tile", m=6, k=21)
    x = g.input("x", f32, "m, k")
    with g.block(grid={"m": 4}, loop=("k", 8)) as b:
        s = b.accumulate(b.exp(b.load(x, "m/grid, k/loop")), kind)
        out = b.store(b.apply(kind, s, over="k"), "m/grid")
    check(g.returns(out).build())


def test_joined_over_the_loop() -> None:
    g = KernelBuilder("joined", m=6, k=21)
    x = g.input("x", f32, "m, k")
    with g.block(grid={"m": 4}, loop=("k", 8)) as b:
        t = b.square(b.load(x, "m/grid, k/loop"))
        out = b.store(b.accumulate(t, "concat"), "m/grid, k")
        total = b.store(b.sum(b.accumulate(t), over="k"), "m/grid")
    check(g.returns(out, total).build())


def test_joined_over_the_loop_and_then_used() -> None:
    """The value is computed again on the whole dim: a norm in one kernel."""
    g = KernelBuilder("norm", m=6, k=21)
    x, y = g.input("x", f16, "m, k"), g.input("y", f16, "k")
    with g.block(grid={"m": 4}, loop=("k", 8)) as b:
        t = b.mul(b.load(x, "m/grid, k/loop"), b.load(y, "k/loop"))
        total = b.sum(b.accumulate(b.square(t)), over="k")
        out = b.store(b.div(b.accumulate(t, "concat"), b.sqrt(total)), "m/grid, k")
    check(g.returns(out).build())


def test_sums_of_every_iteration_wait_for_the_end() -> None:
    g = KernelBuilder("sums", m=6, k=21)
    x = g.input("x", f16, "m, k")
    with g.block(grid={"m": 4}, loop=("k", 8)) as b:
        t = b.load(x, "m/grid, k/loop")
        s = b.accumulate(b.sum(b.square(t), over="k"), name="total")
        out = b.store(s, "m/grid")
    graph = g.returns(out).build()
    (line,) = [n for n in emit(graph).splitlines() if "tl.sum" in n]
    assert line == "    total = tl.sum(total_tile, axis=1)"
    check(graph)


def test_several_outputs_and_several_orders() -> None:
    g = KernelBuilder("outputs", m=10, n=12)
    x, y = g.input("x", f16, "m, n"), g.input("y", f32, "n, m")
    with g.block(grid={"m": 4}) as b:
        s = b.add(b.load(x, "m/grid, n"), b.load(y, "n, m/grid"))
        first = b.store(s, "n, m/grid", dtype=f16)
        second = b.store(b.max(s, over="n"), "m/grid", dtype=f32)
    check(g.returns(first, second).build())


def test_matrix_times_vector() -> None:
    g = KernelBuilder("vector", m=10, k=24)
    x, y = g.input("x", f16, "m, k"), g.input("y", f16, "k")
    with g.block(grid={"m": 4}, loop=("k", 8)) as b:
        p = b.matmul(b.load(x, "m/grid, k/loop"), b.load(y, "k/loop"), over="k")
        out = b.store(b.accumulate(p), "m/grid")
    check(g.returns(out).build())


def test_products_over_several_dims() -> None:
    """Rows, columns and summands of two dims each."""
    g = KernelBuilder("several", a=2, m=5, i=3, j=6, n=4, c=2)
    x, y = g.input("x", f16, "a, i, m, j"), g.input("y", f16, "j, n, i, c")
    with g.block(grid={"n": 2}, loop=("j", 4)) as b:
        xt, yt = b.load(x, "a, i, m, j/loop"), b.load(y, "j/loop, n/grid, i, c")
        p = b.accumulate(b.matmul(xt, yt, over="i, j"))
        out = b.store(p, "m, a, c, n/grid")
    check(g.returns(out).build())


def test_iterations_past_the_end() -> None:
    """The last block's part is shorter than one iteration."""
    g = KernelBuilder("past", k=21, m=3)
    x = g.input("x", f32, "m, k")
    with g.block(grid={"k": 8}, loop=("k", 3)) as b:
        t = b.load(x, "m, k/grid/loop")
        low = b.accumulate(b.exp(t), "max")
        parts = b.store(b.max(low, over="k"), "m, k#/grid")
        sums = b.store(b.accumulate(b.sum(t, over="k")), "m, k#/grid")
    check(g.returns(parts, sums).build())


def test_symbolic_extents() -> None:
    g = KernelBuilder("symbolic", m=None, k=None, n=18)
    x, y = g.input("x", f16, "m, k"), g.input("y", f16, "k, n")
    with g.block(grid={"m": 8, "n": 8}, loop=("k", 16)) as b:
        p = b.matmul(b.load(x, "m/grid, k/loop"), b.load(y, "k/loop, n/grid"), over="k")
        out = b.store(b.accumulate(p), "m/grid, n/grid")
    graph = g.returns(out).build()
    for m, k in ((8, 16), (5, 3), (33, 40)):
        check(graph, random_inputs(graph, m=m, k=k))


def test_f32_products_are_summed_tile_by_tile() -> None:
    """One chain of additions would round every product at the size of the sum."""
    from mirage_dsl.backends.triton.lowering.emit import plan
    from mirage_dsl.backends.triton.running.screen import compile_kernel

    emitted = plan(product(32, 256, 32, (32, 32, 32), dtype=f32))
    ttgir = compile_kernel(emitted, emitted.kernels[0], 90).asm["ttgir"]
    (dot,) = re.findall(r"(%\w+) = tt\.dot .*", ttgir)
    assert re.search(rf"arith\.addf %\w+, {dot} ", ttgir)
    assert "inputPrecision = tf32" not in ttgir


def test_tf32_is_asked_for() -> None:
    graph = product(32, 256, 32, (32, 32, 32), dtype=f32)
    assert "tf32" not in emit(graph)
    asked = parse(str(graph).replace("loop(k / 32)", "loop(k / 32) allow_tf32(true)"))
    assert asked != graph
    assert re.search(r"tl\.dot\(.*, \w+, input_precision=\"tf32\"\)", emit(asked))
    assert parse(str(asked)) == asked


@pytest.mark.gpu
def test_f32_products_err_as_pytorch_does() -> None:
    x, y = (torch.randn(s, device="cuda") for s in ((16, 4096), (4096, 512)))
    (found,) = TritonExecutable(product(16, 4096, 512, (16, 128, 32), dtype=f32))(x, y)
    exact = x.double() @ y.double()
    errors = [(v.double() - exact).norm() for v in (found, x @ y)]
    assert errors[0] < 2 * errors[1]


def test_wide_offsets_compute_the_same() -> None:
    from mirage_dsl.backends.triton.lowering.emit import plan
    from mirage_dsl.backends.triton.lowering.kernel import Variant
    from mirage_dsl.backends.triton.running.interpret import interpreting, load_module

    graph = product(20, 24, 18, (8, 16, 8), dtype=f32)
    wide = plan(graph, Variant(wide=True))
    assert "int64" in wide.source
    tensors = random_inputs(graph)
    with interpreting():
        (found,) = load_module(wide.source, interpret=True).run(*tensors)
    torch.testing.assert_close(found, tensors[0] @ tensors[1])


def test_refusals_name_what_they_refuse() -> None:
    g = KernelBuilder("far", m=None, k=8)
    x = g.input("x", f32, "m, k")
    with g.block(grid={"k": 4}) as b:
        out = b.store(b.load(x, "m, k/grid"), "m, k/grid")
    with pytest.raises(UnsupportedError, match="dim m is symbolic"):
        emit(g.returns(out).build())
    g = KernelBuilder("huge", m=4096, k=4096)
    x = g.input("x", f32, "m, k")
    with g.block() as b:
        out = b.store(b.sum(b.load(x, "m, k"), over="k"), "m")
    with pytest.raises(UnsupportedError, match="16777216 elements"):
        emit(g.returns(out).build())


def concatenated(*, reduce: bool) -> KernelGraph:
    """X @ w + (x @ a) @ b as one product of joined operands; or norms of them."""
    g = KernelBuilder("joined_operands", m=5, k=24, n=20, r=4)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    a, c = g.input("a", f16, "k, r"), g.input("b", f16, "r, n")
    with g.block(grid={"n": 8}, loop=("k", 8)) as b:
        xt, wt = b.load(x, "m, k/loop"), b.load(w, "k/loop, n/grid")
        at, bt = b.load(a, "k/loop, r"), b.load(c, "r, n/grid")
        low = b.cast(b.matmul(xt, at, over="k"), dtype="f16")
        left = b.concat(xt, low, dims="k, r", to="j")
        right = b.concat(wt, bt, dims="k, r", to="j")
        if reduce:
            both = b.mul(b.cast(left, dtype="f32"), b.exp(right))
            p = b.add(b.sum(both, over="j"), b.max(both, over="j"))
        else:
            p = b.matmul(left, right, over="j")
        out = b.store(b.accumulate(p), "m, n/grid")
    return g.returns(out).build()


@pytest.mark.parametrize("reduce", [False, True])
def test_concatenated_operands(reduce: bool) -> None:
    graph = concatenated(reduce=reduce)
    check(graph, tolerance=2e-2)
    if not reduce:
        assert emit(graph).count("tl.dot") == 3


def test_a_joined_value_cannot_be_stored() -> None:
    g = KernelBuilder("stored", m=4, a=8, c=8)
    x, y = g.input("x", f32, "m, a"), g.input("y", f32, "m, c")
    with g.block(grid={"m": 2}) as b:
        j = b.concat(b.load(x, "m/grid, a"), b.load(y, "m/grid, c"), dims="a c", to="j")
        out = b.store(j, "m/grid, j")
    with pytest.raises(UnsupportedError, match="concatenate at the kernel level"):
        emit(g.returns(out).build())


@pytest.mark.parametrize("flags", [{}, {"swap_operands": True}, {"descriptors": True}])
def test_one_row_takes_the_matrix_unit(flags: dict[str, bool]) -> None:
    """An axis of extent 1 has no dim; the product is one of matrices all the same."""
    g = KernelBuilder("row", k=64, n=48, r=16)
    x, w = g.input("x", f16, "1, k"), g.input("w", f16, "k, n")
    a, c = g.input("a", f16, "k, r"), g.input("b", f16, "r, n")
    schedule = Schedule(**flags)
    with g.block(grid={"n": 16}, loop=("k", 16), schedule=schedule) as b:
        xt = b.load(x, "1, k/loop")
        p = b.accumulate(b.matmul(xt, b.load(w, "k/loop, n/grid"), over="k"))
        low = b.accumulate(b.matmul(xt, b.load(a, "k/loop, r"), over="k"))
        low = b.cast(low, dtype="f16")
        y = b.add(p, b.matmul(low, b.load(c, "r, n/grid"), over="r"))
        total = b.sum(b.accumulate(b.square(xt)), over="k")
        out = b.store(b.mul(y, b.rsqrt(total)), "1, n/grid")
    graph = g.returns(out).build()
    assert emit(graph).count("tl.dot") == 3
    check(graph)


def test_offsets_are_wide_where_symbolic_extents_call_for_it() -> None:
    """What lies far may be neither an input nor known when the kernel is written."""
    g = KernelBuilder("outer", m=None, n=None)
    x, y = g.input("x", f16, "m"), g.input("y", f16, "n")
    with g.block(grid={"m": 8, "n": 8}) as b:
        out = b.store(b.mul(b.load(x, "m/grid"), b.load(y, "n/grid")), "m/grid, n/grid")
    executable = TritonExecutable(g.returns(out).build(), interpret=True)
    one = torch.ones(1, dtype=torch.float16)
    for extent, wide in ((1 << 15, False), (1 << 16, True)):
        given = [one.expand(extent), one.expand(extent)]
        assert executable._check(given, ()).wide == wide
