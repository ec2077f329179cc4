"""One graph that breaks it, for every rule of the checker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_dsl.errors import CheckError, SourceLocation
from mirage_dsl.ir.builder import BlockBuilder, KernelBuilder
from mirage_dsl.ir.check import check, check_or_raise
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Input,
    KernelGraph,
    Load,
    Return,
    RunningMax,
    Split,
    Store,
)
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.types import Dim, Scalar, Space, TensorType, f16, f32

M, K, N = Dim("m"), Dim("k"), Dim("n")
KL, NG, MG = Dim("k", loop=True), Dim("n", grid=True), Dim("m", grid=True)


def program() -> KernelGraph:
    b = KernelBuilder("f", m=4, k=16, n=12)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    return b.returns(b.exp(b.matmul(x, w, over="k", name="p"), name="y")).build()


def blocked(change: Callable[[BlockGraph], BlockGraph] = lambda b: b) -> KernelGraph:
    b = KernelBuilder("f", m=4, k=16, n=12)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    with b.block(grid={"n": 4}, loop=("k", 8)) as block:
        xt = block.load(x, "m, k/loop", name="xt")
        wt = block.load(w, "k/loop, n/grid", name="wt")
        p = block.matmul(xt, wt, over="k", name="p")
        e = block.exp(block.accumulate(p, name="a"), name="e")
        y = block.store(e, "m, n/grid", name="y")
    graph = b.returns(y).build()
    return replace(graph, nodes=(change(graph.blocks[0]),))


def only(graph: KernelGraph, rule: str) -> str:
    """The single diagnostic, which is of `rule`, as text."""
    found = check(graph)
    assert [d.rule for d in found] == [rule], [str(d) for d in found]
    return str(found[0])


def with_node(at: int, node: BlockNode) -> KernelGraph:
    """A node of the block replaced."""

    def change(block: BlockGraph) -> BlockGraph:
        nodes = [*block.nodes]
        nodes[at] = node
        return replace(block, nodes=tuple(nodes))

    return blocked(change)


def with_body(write: Callable[[BlockBuilder, str], str], **grid: int) -> KernelGraph:
    """x[m, k] loaded whole as xt, then what `write` adds; it returns a stored name."""
    b = KernelBuilder("f", m=4, k=16)
    x = b.input("x", f16, "m, k")
    with b.block(grid=grid, loop=("k", 8)) as block:
        y = write(block, x)
    return b.returns(y).unchecked()


def test_well_formed() -> None:
    assert check(program()) == []
    assert check(blocked()) == []
    check_or_raise(blocked())


def test_error_lists_everything_with_the_line() -> None:
    graph = program()
    location = SourceLocation("model.py", 12, "y = x @ w")
    wrong = Apply("p", OPERATORS["matmul"], ("x", "w"), (("over", ("z",)),), location)
    with pytest.raises(CheckError) as error:
        check_or_raise(replace(graph, nodes=(wrong, graph.nodes[1])))
    assert "model.py:12: f is not well formed:" in str(error.value)
    assert "matmul over z: an operand has no such dim (dims: m, k; k, n)" in str(
        error.value
    )


# -- Kernel graphs -------------------------------------------------------------------


def test_unique_names() -> None:
    graph = program()
    twice = replace(graph, nodes=(graph.nodes[0], *graph.nodes))
    assert "2 kernel-level values are called p" in only(twice, "unique-names")


def test_defined() -> None:
    graph = program()
    later = replace(graph, nodes=graph.nodes[::-1])
    assert "p, which y reads, is defined only later" in only(later, "defined")
    gone = replace(graph, nodes=graph.nodes[1:])
    text = only(gone, "defined")
    assert "p, which y reads, is not defined" in text
    assert "expected one of w, x" in text


def test_defined_sources_of_blocks() -> None:
    text = only(with_node(0, Load("xt", "z", ((M,), (KL,)))), "defined")
    assert "z, which y reads, is not defined" in text


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (("add", ("x",), ()), "add takes 2 operands, found 1"),
        (("sum", ("x",), ()), "sum takes the attributes over, found none"),
        (
            ("sum", ("x",), (("over", ("n",)),)),
            "sum over n: an operand has no such dim",
        ),
        (("sum", ("x",), (("over", ()),)), "needs at least one dim in `over`"),
        (("sum", ("x",), (("over", "k"),)), "the attribute over takes dims, found 'k'"),
        (("cast", ("x",), (("dtype", "f8"),)), "unknown dtype f8"),
        (
            ("rename", ("x",), (("dims", ("m",)), ("to", ("a", "b")))),
            "one new name per dim, found 1 dims and 2 names",
        ),
        (
            ("rename", ("x",), (("dims", ("m",)), ("to", ("k",)))),
            "two dims of the result have one name",
        ),
        (
            ("concat", ("x", "w"), (("dims", ("m",)), ("to", "c"))),
            "one dim per operand, found 1 dims and 2 operands",
        ),
        (("exp", (Scalar(Fraction(1)),), ()), "exp needs tensors, found a constant"),
    ],
)
def test_types(node: tuple[str, tuple[str, ...], object], message: str) -> None:
    name, operands, attrs = node
    wrong = Apply("z", OPERATORS[name], operands, attrs)  # type: ignore[arg-type]
    graph = program()
    found = check(replace(graph, nodes=(*graph.nodes, wrong)))
    assert message in next(str(d) for d in found if d.rule == "type")


def test_inputs() -> None:
    graph = program()

    def with_input(kind: TensorType) -> KernelGraph:
        extra = Input("z", kind)
        return replace(graph, inputs=(*graph.inputs, extra))

    twice = with_input(TensorType(f16, ((M,), (M,))))
    assert "input z has the dim m twice" in only(twice, "input")
    piece = with_input(TensorType(f16, ((M,), (KL,))))
    assert "input z has a split dim: f16[m, k/loop]" in only(piece, "input")
    shared = with_input(TensorType(f16, ((M,),), Space.SHARED))
    assert "expected device memory" in only(shared, "input")


def test_extents_are_known_and_positive() -> None:
    graph = program()
    missing = replace(graph, extents=(("k", 16), ("m", 4)))
    assert "the dim n of w has no extent; state it: n =" in only(missing, "extent")
    assert check(graph.with_extents({"n": None})) == []
    assert "has extent 0; expected at least 1" in only(
        graph.with_extents({"n": 0}), "extent"
    )


def split_k(tile: int = 4) -> KernelGraph:
    b = KernelBuilder("f", m=4, k=16)
    x = b.input("x", f32, "m, k")
    with b.block(grid={"k": tile}) as block:
        total = block.sum(block.load(x, "m, k/grid"), over="k")
        parts = block.store(total, "m, k#/grid", name="parts")
    return b.returns(b.sum(parts, over="k#")).build()


def test_derived_extents() -> None:
    graph = split_k()
    text = only(graph.with_extents({"k#": 3}), "derived-extent")
    assert "the dim k# has extent 3, but what makes it gives 4" in text
    assert "set k# = 4" in text


def test_two_blocks_agree_on_parts() -> None:
    graph = split_k()
    (block,) = graph.blocks
    stores = {"parts": "more"}
    nodes = tuple(
        replace(n, result=stores.get(n.result, n.result)) if isinstance(n, Store) else n
        for n in block.nodes
    )
    other = replace(block, grid=(Split("k", 8),), nodes=nodes)
    kind = TensorType(f32, ((M,), (Dim("k#"),)))
    both = replace(
        graph,
        nodes=(block, graph.nodes[1], other),
        returns=(*graph.returns, Return("more", kind)),
        extents=(("k", 16), ("k#", 2), ("m", 4)),
    )
    text = only(both, "derived-extent")
    assert "the block of more stores 2 parts along k#, the block of parts" in text


def test_slices() -> None:
    b = KernelBuilder("f", m=4)
    b.returns(b.slice(b.input("x", f32, "m"), dim="m", start=2, stop=5, to="s"))
    text = only(b.unchecked(), "slice")
    assert "2 to 5 of the dim m of extent 4; expected 0 <= start < stop" in text


def test_returns() -> None:
    graph = program()
    none = replace(graph, returns=(), nodes=())
    assert "f returns nothing; return at least one value" in only(none, "return")
    kind = graph.returns[0].type
    unknown = replace(graph, returns=(*graph.returns, Return("z", kind)))
    assert "returned value z is not defined" in only(unknown, "return")
    other_dims = replace(kind, axes=((M,),))
    text = only(replace(graph, returns=(Return("y", other_dims),)), "return")
    assert "y is returned as f16[m], but it is f16[m, n]" in text
    dtype = Return("y", kind.with_dtype(f32))
    text = only(replace(graph, returns=(dtype,)), "return")
    assert "y is returned as f32, but it is f16; return f16, or cast" in text
    merged = Return("y", replace(kind, axes=((N, M), ())))
    assert check(replace(graph, returns=(merged,))) == []


def test_unused_kernels() -> None:
    graph = program()
    extra = Apply("z", OPERATORS["exp"], ("p",))
    text = only(replace(graph, nodes=(*graph.nodes, extra)), "unused")
    assert "nothing reads z; remove what computes it, or return it" in text


# -- Block graphs --------------------------------------------------------------------


def test_block_names() -> None:
    def twice(block: BlockGraph) -> BlockGraph:
        return replace(block, nodes=(block.nodes[0], *block.nodes))

    assert "the block of y: 2 values are called xt" in only(
        blocked(twice), "unique-names"
    )
    text = only(with_node(4, Apply("e", OPERATORS["exp"], ("x",))), "defined")
    assert "x is a tensor in device memory; load x first" in text
    text = only(with_node(4, Apply("e", OPERATORS["exp"], ("q",))), "defined")
    assert "q is not defined; expected one of a, p, wt, xt" in text
    text = only(with_node(2, Apply("p", OPERATORS["exp"], ("a",))), "defined")
    assert "a is defined only later; move it up" in text


def test_grid() -> None:
    b = KernelBuilder("f", **dict.fromkeys("abcd", 4))
    with b.block(grid=dict.fromkeys("abcd", 2)) as block:
        whole = "a/grid, b/grid, c/grid, d/grid"
        y = block.store(block.load(b.input("x", f32, "a, b, c, d"), whole), whole)
    text = only(b.returns(y).unchecked(), "grid")
    assert "4 grid dims (a, b, c, d), expected at most 3" in text

    def twice(block: BlockGraph) -> BlockGraph:
        return replace(block, grid=(Split("n", 4), Split("n", 4)))

    assert "the grid splits n twice" in only(blocked(twice), "grid")


def test_grid_over_a_dim_and_its_parts() -> None:
    b = KernelBuilder("f", k=4)
    b.extent(**{"k#": 2})
    x, y = b.input("x", f32, "k"), b.input("y", f32, "k#")
    with b.block(grid={"k": 2, "k#": 1}) as block:
        z = block.mul(block.load(x, "k/grid"), block.load(y, "k#/grid"))
        z = block.store(z, "k/grid, k#/grid")
    assert "the grid splits both k and k#" in only(b.returns(z).unchecked(), "grid")


@pytest.mark.parametrize(
    ("grid", "loop", "message"),
    [
        (0, 8, "grid tile 0 of n; expected at least 1"),
        (4, -1, "loop tile -1 of k; expected at least 1"),
        (17, 8, "grid tile 17 of n, which spans only 12; expected at most 16"),
        (4, 17, "loop tile 17 of k, which spans only 16; expected at most 16"),
    ],
)
def test_tiles(grid: int, loop: int, message: str) -> None:
    def change(block: BlockGraph) -> BlockGraph:
        return replace(block, grid=(Split("n", grid),), loop=Split("k", loop))

    assert message in only(blocked(change), "tile")


def test_loop_tile_within_the_grid_part() -> None:
    b = KernelBuilder("f", m=4, k=256)
    with b.block(grid={"k": 32}, loop=("k", 64)) as block:
        xt = block.load(b.input("x", f32, "m, k"), "m, k/grid/loop")
        total = block.accumulate(block.sum(xt, over="k"))
        y = block.store(total, "m, k#/grid")
    text = only(b.returns(y).unchecked(), "tile")
    assert "loop tile 64 of k, which spans only 32" in text


def test_loop_is_used() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        return block.store(block.load(x, "m, k"), "m, k")

    assert "it loops over k, but no load is split by the loop" in only(
        with_body(write), "loop"
    )


def test_loads_iterate_alike() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        part = block.sum(block.load(x, "m, k/grid/loop"), over="k")
        whole = block.sum(block.load(x, "m, k/loop"), over="k")
        return block.store(block.accumulate(block.mul(part, whole)), "m, k#/grid")

    text = only(with_body(write, k=8), "loop")
    assert "k/grid/loop and over k/loop, which take different numbers" in text


def test_pieces() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        rows = block.sum(block.load(x, "m/grid, k/loop"), over="k")
        return block.store(block.accumulate(rows), "m/grid")

    found = check(with_body(write))
    assert {d.rule for d in found} == {"piece"}
    assert "load x as t1: m/grid, but the grid splits nothing" in str(found[0])

    def looped(block: BlockBuilder, x: str) -> str:
        rows = block.sum(block.load(x, "m/loop, k/loop"), over="k m")
        return block.store(block.accumulate(rows), "")

    assert "m/loop, but the loop splits k" in only(with_body(looped), "piece")


def test_types_in_blocks() -> None:
    text = only(with_node(1, Load("wt", "w", ((NG,), (KL,)))), "type")
    assert "load w as wt: load w" in text
    assert "is f16[k, n]" in text
    mixed = Apply("p", OPERATORS["add"], ("xt", "xk"))

    def change(block: BlockGraph) -> BlockGraph:
        extra = Load("xk", "x", ((M,), (K,)))
        return replace(block, nodes=(extra, *block.nodes[:2], mixed, *block.nodes[3:]))

    found = [str(d) for d in check(blocked(change)) if d.rule == "type"]
    assert "operands have different pieces of one dim: k/loop, k" in found[0]


def test_matmul_takes_one_dtype() -> None:
    def change(block: BlockGraph) -> BlockGraph:
        doubled = Apply("x2", OPERATORS["mul"], ("xt", Scalar(Fraction(2))))
        p = Apply("p", OPERATORS["matmul"], ("x2", "wt"), (("over", ("k",)),))
        return replace(block, nodes=(*block.nodes[:2], doubled, p, *block.nodes[3:]))

    text = only(blocked(change), "type")
    assert "matmul takes operands of one dtype, found f32 and f16; cast one" in text


def test_views_in_blocks() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        xt = block.rename(block.load(x, "m, k/loop"), dims="k", to="j")
        return block.store(block.accumulate(block.sum(xt, over="j")), "m")

    text = only(with_body(write), "view")
    assert "rename of k/loop, a piece of a dim; apply rename before the block" in text


def test_stage_mixture() -> None:
    mixed = Apply("e", OPERATORS["add"], ("a", "p"))
    text = only(with_node(4, mixed), "stage")
    assert "it mixes p, a value of the loop body, with a, which exists after" in text
    assert "accumulate p first" in text


def test_accumulators_take_body_values() -> None:
    text = only(with_node(4, Accumulate("e", "a")), "stage")
    assert "an accumulator takes a value of the loop body; a is one after" in text
    before = "a running maximum takes a value of the loop body; xt is one before"

    def write(block: BlockBuilder, x: str) -> str:
        largest = block.running_max(block.load(x, "m, k", name="xt"))
        looped = block.sum(block.load(x, "m, k/loop"), over="k")
        return block.store(block.accumulate(block.mul(looped, largest)), "m, k")

    assert before in only(with_body(write), "stage")


def test_stores_of_body_values() -> None:
    store = Store("y", "p", ((M,), (NG,)), f16)

    def change(block: BlockGraph) -> BlockGraph:
        return replace(block, nodes=(*block.nodes[:3], store))

    text = only(blocked(change), "stage")
    assert "p is a value of the loop body, it differs by iteration" in text
    assert "accumulate p and store the result" in text


def test_rescaling() -> None:
    text = only(with_node(3, Accumulate("a", "p", rescale="xt")), "rescale")
    assert "it is rescaled by xt, which is no running maximum" in text

    def change(kind: str) -> Callable[[BlockGraph], BlockGraph]:
        def inner(block: BlockGraph) -> BlockGraph:
            row = Apply("r", OPERATORS["max"], ("p",), (("over", ("n",)),))
            largest = RunningMax("g", "r")
            a = Accumulate("a", "p", kind, "g")  # type: ignore[arg-type]
            return replace(
                block, nodes=(*block.nodes[:3], row, largest, a, *block.nodes[4:])
            )

        return inner

    assert check(blocked(change("sum"))) == []
    assert "a max accumulator cannot be rescaled" in only(
        blocked(change("max")), "rescale"
    )


def test_rescaling_by_more_dims() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        xt = block.load(x, "m, k/loop")
        largest = block.running_max(block.max(xt, over="k"), name="g")
        total = block.sum(block.exp(block.sub(xt, largest)), over="m k", name="s")
        return block.store(block.accumulate(total, rescale="g"), "")

    assert "g has dims that s lacks: f32[m], f32[]" in only(with_body(write), "rescale")


def test_stores_have_every_grid_dim() -> None:
    def change(block: BlockGraph) -> BlockGraph:
        return replace(block, grid=(Split("n", 4), Split("m", 2)))

    text = only(blocked(change), "store")
    assert "the grid splits m, but the axes have neither m/grid nor m#/grid" in text
    assert "store m#/grid if these are partial results" in text


def test_stores_fit_their_value() -> None:
    found = check(with_node(5, Store("y", "e", ((NG,),), f16)))
    text = str(next(d for d in found if d.rule == "store"))
    assert "its axes have the dims n/grid, but e has m, n/grid" in text
    twice = check(with_node(5, Store("y", "e", ((M,), (M, NG)), f16)))
    assert any("the dim m twice" in str(d) for d in twice)


def test_stores_have_no_looped_dim() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        return block.store(block.accumulate(block.load(x, "m, k/loop")), "m, k")

    text = only(with_body(write), "store")
    assert "t2 has k/loop, the index within a tile of the loop; sum over k" in text


def test_blocks_store_and_use_what_they_compute() -> None:
    def silent(block: BlockGraph) -> BlockGraph:
        return replace(block, nodes=block.nodes[:-1])

    found = check(replace(blocked(silent), returns=()))
    assert "it stores nothing; store a value or remove the block" in str(
        next(d for d in found if d.rule == "store")
    )

    def idle(block: BlockGraph) -> BlockGraph:
        extra = Apply("z", OPERATORS["exp"], ("a",))
        return replace(block, nodes=(*block.nodes[:-1], extra, block.nodes[-1]))

    text = only(blocked(idle), "unused")
    assert "z: nothing in the block reads it; remove it or store it" in text


def test_diagnostics_tell_the_block() -> None:
    (found,) = check(with_node(4, Apply("e", OPERATORS["add"], ("a", "p"))))
    assert (found.name, found.block, found.rule) == ("e", 0, "stage")


def test_dims_made_in_a_block_have_extents() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        whole = block.load(x, "m, k")
        twice = block.concat(whole, whole, dims="m m", to="c")
        twice = block.sum(twice, over="c k")
        looped = block.sum(block.load(x, "m, k/loop"), over="k")
        return block.store(block.mul(block.accumulate(looped), twice), "m")

    graph = with_body(write)
    assert graph.extent_of["c"] == 8
    extents = tuple(item for item in graph.extents if item[0] != "c")
    assert "the dim c of f has no extent" in only(
        replace(graph, extents=extents), "extent"
    )
