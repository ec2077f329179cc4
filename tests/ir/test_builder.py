"""The builder: names, axes and errors where a node is added."""

from __future__ import annotations

from fractions import Fraction

import pytest

from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import Dim, MemorySpace, Scalar, bf16, f16, f32
from mirage_dsl.ir.builder import KernelBuilder, axes_from, dim_from, one_over
from mirage_dsl.ir.graph import Apply, Return, Schedule, Split, Store


def test_axes_as_text() -> None:
    h, d = Dim("h", grid=True), Dim("d")
    expected = (
        (Dim("m"),),
        (h, d),
        (),
        (Dim("k", grid=True, loop=True),),
        (Dim("n#"),),
    )
    assert axes_from("m, (h/grid d), 1, k/grid/loop, n#") == expected
    assert axes_from(["m", ("h/grid", d), (), ("k/grid/loop",), ("n#",)]) == expected
    assert axes_from("") == ()


@pytest.mark.parametrize(
    "text", ["m n", "m,,n", "(m", "m/loop/grid", "m/gird", "/grid"]
)
def test_axes_that_are_none(text: str) -> None:
    with pytest.raises(CheckError, match="found the"):
        axes_from(text)


def test_dim_flags() -> None:
    assert dim_from("k/loop") == Dim("k", loop=True)
    with pytest.raises(CheckError, match=r"expected a name, then perhaps /grid"):
        dim_from("k/block")


def test_program() -> None:
    b = KernelBuilder("f", m=4)
    x = b.extent(k=8).input("x", f16, [("m",), ("k",)])
    y = b.mul(b.sum(b.square(x), over="k"), one_over("k"), name="mean")
    graph = b.returns(y).build()
    square, total, mean = (n for n in graph.nodes if isinstance(n, Apply))
    assert (square.result, total.result, mean.result) == ("t1", "t2", "mean")
    assert mean.operands == ("t2", Scalar(Fraction(1), (("k", -1),)))
    assert graph.extents == (("k", 8), ("m", 4))
    assert graph.returns == (Return("mean", b.type_of("mean")),)


def test_attributes_of_every_kind() -> None:
    b = KernelBuilder("f", m=4, k=8)
    x = b.input("x", f16, "m, k")
    both = b.sum(x, over="m, k")
    assert b.type_of(both).dims == ()
    renamed = b.rename(x, dims=("m", "k"), to="p q")
    assert b.type_of(renamed).names == ("p", "q")
    cut = b.slice(x, dim="k", start=2, stop=4, to="c")
    assert b.type_of(cut).names == ("m", "c")
    joined = b.concat(cut, x, dims="c k", to="j")
    assert b.type_of(joined).names == ("m", "j")
    assert b.type_of(b.cast(x, dtype="bf16")).dtype == bf16


def test_block_with_its_defaults() -> None:
    b = KernelBuilder("f", m=4, k=8)
    x = b.input("x", f16, "m, k")
    schedule = Schedule(num_warps=8)
    with b.block(grid={"m": 2}, loop=("k", 4), schedule=schedule) as block:
        xt = block.load(x, "m/grid, k/loop")
        assert block.type_of(xt).space is MemorySpace.SHARED
        y = block.store(block.accumulate(block.sum(xt, over="k")))
        z = block.store(block.sum(block.load(x, "m/grid, k"), over="k"), dtype=f32)
    (node,) = b.returns(y, z).build().blocks
    assert node.grid == (Split("m", 2),)
    assert node.loop == Split("k", 4)
    assert node.schedule == schedule
    first, second = node.stores
    assert first == Store(y, first.operand, ((Dim("m", grid=True),),), f16)
    assert (second.result, second.dtype) == (z, f32)
    assert b.type_of(y).names == ("m",)


def test_a_block_that_fails_is_not_added() -> None:
    b = KernelBuilder("f", m=4)
    x = b.input("x", f16, "m")
    block = b.block()

    def write() -> None:
        with block:
            block.exp(block.load(x))
            block.exp("y")

    with pytest.raises(CheckError, match="unknown value y"):
        write()
    assert b.returns(b.exp(x)).build().blocks == ()


def test_names() -> None:
    b = KernelBuilder("f", m=4)
    b.input("t1", f16, "m")
    assert b.exp("t1") == "t2"
    with pytest.raises(CheckError, match="a value is called t1 already"):
        b.exp("t2", name="t1")


def test_errors_where_the_node_is_added() -> None:
    b = KernelBuilder("f", m=4, k=8, n=2)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "n, k")
    with pytest.raises(CheckError, match="matmul over m: an operand has no such dim"):
        b.matmul(x, w, over="m")
    with pytest.raises(CheckError, match="no operator is called matmull; did you mean"):
        b.apply("matmull", x, w)
    with pytest.raises(CheckError, match="no operator is called zzz; known: add, sub"):
        b.apply("zzz", x)
    with pytest.raises(AttributeError, match="KernelBuilder has no operator matmull"):
        b.matmull(x, w)
    with pytest.raises(CheckError, match="unknown value z; known: x, w"):
        b.exp("z")
    with b.block() as block, pytest.raises(CheckError, match="unknown value z"):
        block.load("z")


def test_build_checks_everything_else() -> None:
    b = KernelBuilder("f", m=4)
    x = b.input("x", f16, "m, k")
    b.exp(x)
    with pytest.raises(CheckError, match="the dim k of x has no extent") as error:
        b.build()
    assert "f returns nothing" in error.value.message
    assert "nothing reads t1" in error.value.message
