"""One graph that breaks it, for every rule of kernel graphs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_dsl.core.errors import CheckError, SourceLocation
from mirage_dsl.core.types import Dim, MemorySpace, Scalar, TensorType, f16, f32
from mirage_dsl.ir.builder import KernelBuilder, one_over
from mirage_dsl.ir.check import check, check_or_raise
from mirage_dsl.ir.graph import (
    Apply,
    Input,
    KernelGraph,
    Load,
    Return,
    Split,
    Store,
)
from mirage_dsl.ops.table import OPERATORS
from tests.ir.checking import (
    KL,
    M,
    N,
    blocked,
    only,
    program,
    with_node,
)


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
    wrong = Apply("z", OPERATORS[name], operands, attrs)
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
    shared = with_input(TensorType(f16, ((M,),), MemorySpace.SHARED))
    assert "expected device memory" in only(shared, "input")


def test_extents_are_known_and_positive() -> None:
    graph = program()
    missing = replace(graph, extents=(("k", 16), ("m", 4)))
    assert "the dim n of w has no extent; state it: n =" in only(missing, "extent")
    assert check(graph.with_extents({"n": None})) == []
    b = KernelBuilder("f", m=4)
    b.returns(b.mul(b.input("x", f32, "m"), one_over("z")))
    assert "the dim z of t1 has no extent" in only(b.unchecked(), "extent")
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
    assert "the dim k# has extent 3, but the block of parts gives it 4" in text
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
    assert "the dim k# has extent 2, but the block of parts gives it 4" in text


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
