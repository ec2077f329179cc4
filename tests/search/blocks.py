"""Hand-built block graphs of known kernels, as the search finds them."""

from __future__ import annotations

from fractions import Fraction

from mirage_dsl.core.types import Axis, Dim, DType, Scalar, TensorType, f16, f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Input,
    KernelGraph,
    Load,
    Operand,
    Return,
    Schedule,
    Split,
    Store,
)
from mirage_dsl.ops.table import OPERATORS


def dim(text: str) -> Dim:
    """`k/grid/loop` to a dim."""
    name, *marks = text.split("/")
    return Dim(name, "grid" in marks, "loop" in marks)


def axes(text: str) -> tuple[Axis, ...]:
    """`m k/loop` to axes of one dim each."""
    return tuple((dim(d),) for d in text.split())


def tensor(text: str, dtype: DType = f16) -> TensorType:
    return TensorType(dtype, axes(text))


def load(result: str, source: str, text: str) -> Load:
    return Load(result, source, axes(text))


def op(result: str, name: str, *operands: Operand, over: str = "") -> Apply:
    attrs = (("over", tuple(over.split())),) if over else ()
    return Apply(result, OPERATORS[name], operands, attrs)


def acc(result: str, operand: str) -> Accumulate:
    return Accumulate(result, operand)


def store(result: str, operand: str, text: str, dtype: DType = f16) -> Store:
    return Store(result, operand, axes(text), dtype)


def block(
    grid: str, loop: str, *nodes: BlockNode, schedule: Schedule | None = None
) -> BlockGraph:
    """A block from `n:64 z:1` and `k:128`."""
    splits = [s.split(":") for s in f"{grid} {loop}".split()]
    cut = tuple(Split(name, int(tile)) for name, tile in splits)
    count = len(grid.split())
    looped = cut[count] if loop else None
    return BlockGraph(cut[:count], looped, nodes, schedule or Schedule())


def graph(
    name: str,
    inputs: dict[str, TensorType],
    nodes: tuple[Apply | BlockGraph, ...],
    returns: dict[str, TensorType],
    **extents: int,
) -> KernelGraph:
    return KernelGraph(
        name,
        tuple(Input(n, t) for n, t in inputs.items()),
        nodes,
        tuple(Return(n, t) for n, t in returns.items()),
        tuple(sorted(extents.items())),
    )


def per(name: str) -> Scalar:
    """1 over an extent."""
    return Scalar(Fraction(1), ((name, -1),))


def rms_linear(
    b: int, tile: int = 64, step: int = 128, schedule: Schedule | None = None
) -> KernelGraph:
    swap = Schedule(4, 5, swap_operands=b > 1)
    kernel = block(
        f"n:{tile}",
        f"k:{step}",
        load("xt", "x", "m k/loop"),
        load("wt", "w", "k/loop n/grid"),
        op("sq", "mul", "xt", "xt"),
        op("p", "matmul", "xt", "wt", over="k"),
        acc("s", "sq"),
        acc("a", "p"),
        op("t", "sum", "s", over="k"),
        op("u", "mul", "t", per("k")),
        op("r", "sqrt", "u"),
        op("o", "div", "a", "r"),
        store("y", "o", "m n/grid"),
        schedule=schedule or swap,
    )
    inputs = {"x": tensor("m k"), "w": tensor("k n")}
    out = {"y": tensor("m n")}
    return graph("rms_linear", inputs, (kernel,), out, m=2 * b, k=4096, n=6144)


def gated_mlp(b: int, tile: int = 32, schedule: Schedule | None = None) -> KernelGraph:
    kernel = block(
        f"n:{tile}",
        "k:128",
        load("xt", "x", "m k/loop"),
        load("ut", "u", "k/loop n/grid"),
        load("vt", "v", "k/loop n/grid"),
        op("p", "matmul", "xt", "ut", over="k"),
        op("q", "matmul", "xt", "vt", over="k"),
        acc("a", "p"),
        acc("c", "q"),
        op("g", "silu", "a"),
        op("o", "mul", "g", "c"),
        store("y", "o", "m n/grid"),
        schedule=schedule or Schedule(4, 4),
    )
    inputs = {"x": tensor("m k"), "u": tensor("k n"), "v": tensor("k n")}
    out = {"y": tensor("m n")}
    return graph("gated_mlp", inputs, (kernel,), out, m=8 * b, k=4096, n=4096)


def lora(b: int) -> KernelGraph:
    kernel = block(
        "n:64",
        "k:256",
        load("xt", "x", "m k/loop"),
        load("wt", "w", "k/loop n/grid"),
        load("at", "a", "k/loop r"),
        load("bt", "b", "r n/grid"),
        op("p", "matmul", "xt", "wt", over="k"),
        op("q", "matmul", "xt", "at", over="k"),
        acc("s", "p"),
        acc("t", "q"),
        Apply("c", OPERATORS["cast"], ("t",), (("dtype", "f16"),)),
        op("d", "matmul", "c", "bt", over="r"),
        op("o", "add", "s", "d"),
        store("y", "o", "m n/grid"),
        schedule=Schedule(4, 4, swap_operands=True),
    )
    inputs = {
        "x": tensor("m k"),
        "w": tensor("k n"),
        "a": tensor("k r"),
        "b": tensor("r n"),
    }
    out = {"y": tensor("m n")}
    return graph("lora", inputs, (kernel,), out, m=b, k=4096, n=4096, r=16)


ATTENTION = {"q": tensor("z m d"), "k": tensor("z d n"), "v": tensor("z n e")}

SAFE_ATTENTION = (
    op("s", "matmul", "q", "k", over="d"),
    op("t", "rowshift", "s", over="n"),
    op("f", "sub", "s", "t"),
    op("e", "exp", "f"),
    op("l", "sum", "e", over="n"),
    op("p", "div", "e", "l"),
    op("o", "matmul", "p", "v", over="n"),
)
"""The operators of attention, with a shift."""


def attention(b: int, rows: int = 64, step: int = 128) -> KernelGraph:
    """Numerator and denominator accumulate over the keys."""
    kernel = block(
        f"z:1 m:{rows}",
        f"n:{step}",
        load("qt", "q", "z/grid m/grid d"),
        load("kt", "k", "z/grid d n/loop"),
        load("vt", "v", "z/grid n/loop e"),
        op("s", "matmul", "qt", "kt", over="d"),
        op("e", "exp", "s"),
        Apply("c", OPERATORS["cast"], ("e",), (("dtype", "f16"),)),
        op("p", "matmul", "c", "vt", over="n"),
        op("l", "sum", "e", over="n"),
        acc("a", "p"),
        acc("t", "l"),
        op("o", "div", "a", "t"),
        store("y", "o", "z/grid m/grid e"),
        schedule=Schedule(4, 3),
    )
    out = {"y": tensor("z m e")}
    return graph(
        "attention", ATTENTION, (kernel,), out, z=2 * b, m=256, d=64, n=4096, e=64
    )


def _split_body() -> tuple[BlockNode, ...]:
    return (
        op("s", "matmul", "qt", "kt", over="d"),
        op("e", "exp", "s"),
        Apply("c", OPERATORS["cast"], ("e",), (("dtype", "f16"),)),
        op("p", "matmul", "c", "vt", over="n"),
        op("l", "sum", "e", over="n"),
        acc("a", "p"),
        acc("t", "l"),
        Store("num", "a", axes("z/grid m/grid e n#/grid"), f32),
        Store("den", "t", axes("z/grid m/grid n#/grid"), f32),
    )


def split_attention(b: int, parts: int, *, norm: bool = False) -> KernelGraph:
    """Keys split between blocks, and a second kernel that combines the parts."""
    loads: tuple[BlockNode, ...] = (
        load("qt", "q", "z/grid m/grid d"),
        load("kt" if not norm else "k0", "k", "z/grid d n/grid/loop"),
        load("vt", "v", "z/grid n/grid/loop e"),
    )
    if norm:
        loads += (
            op("k1", "mul", "k0", "k0"),
            op("k2", "sum", "k1", over="d"),
            op("k3", "mul", "k2", per("d")),
            op("k4", "sqrt", "k3"),
            op("k5", "div", "k0", "k4"),
            Apply("kt", OPERATORS["cast"], ("k5",), (("dtype", "f16"),)),
        )
    first = block(
        f"z:1 m:64 n:{4096 // parts}",
        "n:128",
        *loads,
        *_split_body(),
        schedule=Schedule(4, 3),
    )
    second = block(
        "z:1 m:16",
        "",
        load("x", "num", "z/grid m/grid e n#"),
        load("w", "den", "z/grid m/grid n#"),
        op("f", "sum", "x", over="n#"),
        op("g", "sum", "w", over="n#"),
        op("o", "div", "f", "g"),
        store("y", "o", "z/grid m/grid e"),
    )
    sizes = {"z": 2 * b, "m": 256, "d": 64, "n": 4096, "e": 64, "n#": parts}
    return graph(
        "attention", ATTENTION, (first, second), {"y": tensor("z m e")}, **sizes
    )


def ntrans(b: int, warps: int = 16) -> KernelGraph:
    kernel = block(
        "m:1",
        "",
        load("xt", "x", "m/grid h"),
        load("ht", "h", "m/grid h"),
        load("at", "a", "m/grid h"),
        op("h2", "mul", "ht", "ht"),
        op("hs", "sum", "h2", over="h"),
        op("hm", "mul", "hs", per("h")),
        op("hr", "sqrt", "hm"),
        op("hn", "div", "ht", "hr"),
        op("u", "sub", "hn", "xt"),
        op("v", "mul", "at", "u"),
        op("w", "add", "xt", "v"),
        op("w2", "mul", "w", "w"),
        op("ws", "sum", "w2", over="h"),
        op("wm", "mul", "ws", per("h")),
        op("wr", "sqrt", "wm"),
        op("o", "div", "w", "wr"),
        store("y", "o", "m/grid h"),
        schedule=Schedule(warps, 2),
    )
    inputs = {n: tensor("m h") for n in ("x", "h", "a")}
    return graph("ntrans", inputs, (kernel,), {"y": tensor("m h")}, m=8 * b, h=4096)


def halves(*, copied: bool = False) -> KernelGraph:
    """A block whose two results are joined; `copied`: one through another kernel."""
    g = KernelBuilder("halves", m=64, k=4096)
    x = g.input("x", f16, "m, k")
    with g.block(grid={"m": 1}) as b:
        t = b.load(x, "m/grid, k")
        parts = [b.store(v, "m/grid, k", dtype=f16) for v in (b.square(t), b.neg(t))]
    last = g.exp(parts[1]) if copied else parts[1]
    return g.returns(g.concat(parts[0], last, dims="k, k", to="j")).build()
