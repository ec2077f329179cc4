"""Casts before products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mirage_dsl.core.types import DType, TensorType, bf16, f16, f32
from mirage_dsl.ir.graph import Apply, BlockGraph, BlockNode, KernelGraph
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.casts import (
    coarse_tensors,
    insert_casts,
    without_narrow_vectors,
)
from mirage_dsl.verify.reals import RunsDomain, evaluate_runs
from tests.search import blocks


def without_casts(graph: KernelGraph) -> BlockGraph:
    block = graph.blocks[0]
    names = {
        n.result: n.values[0]
        for n in block.nodes
        if isinstance(n, Apply) and n.op.name == "cast"
    }
    kept: list[BlockNode] = []
    for node in block.nodes:
        if isinstance(node, Apply) and node.result not in names:
            operands = tuple(
                names.get(o, o) if isinstance(o, str) else o for o in node.operands
            )
            kept.append(replace(node, operands=operands))
        elif not isinstance(node, Apply):
            kept.append(node)
    return replace(block, nodes=tuple(kept))


def casts(block: BlockGraph) -> list[Apply]:
    return [n for n in block.nodes if isinstance(n, Apply) and n.op.name == "cast"]


@pytest.mark.parametrize(
    "graph",
    [
        blocks.lora(1),
        blocks.attention(1),
        blocks.split_attention(1, 4, norm=True),
        blocks.rms_linear(1),
    ],
)
def test_casts_are_restored_and_typed(graph: KernelGraph) -> None:
    outer = kernel_types(graph)
    block = insert_casts(without_casts(graph), outer)
    assert len(casts(block)) == len(casts(graph.blocks[0]))
    types = block_types(block, outer)
    for node in block.nodes:
        if isinstance(node, Apply) and node.over and node.op.arity == 2:
            assert {types[v].dtype for v in node.values} == {f16}


@pytest.mark.parametrize("graph", [blocks.lora(1), blocks.attention(1)])
def test_idempotent(graph: KernelGraph) -> None:
    outer = kernel_types(graph)
    once = insert_casts(without_casts(graph), outer)
    assert insert_casts(once, outer) == once
    assert insert_casts(graph.blocks[0], outer) == graph.blocks[0]


def product_of_square(x: DType, w: DType) -> tuple[BlockGraph, dict[str, TensorType]]:
    block = blocks.block(
        "n:64",
        "",
        blocks.load("xt", "x", "m k"),
        blocks.load("wt", "w", "k n/grid"),
        blocks.op("s", "mul", "xt", "xt"),
        blocks.op("p", "matmul", "s", "wt", over="k"),
        blocks.store("y", "p", "m n/grid"),
    )
    return block, {"x": blocks.tensor("m k", x), "w": blocks.tensor("k n", w)}


@pytest.mark.parametrize(
    ("x", "w", "expected"),
    [
        (f16, f16, [("s", "f16")]),
        (bf16, bf16, [("s", "bf16")]),
        (f32, f32, []),
        (f32, f16, [("wt", "f32")]),
        (f16, bf16, [("wt", "f32")]),
    ],
)
def test_target_is_the_format_of_the_unfused_program(
    x: DType, w: DType, expected: list[tuple[str, str]]
) -> None:
    block, outer = product_of_square(x, w)
    found = casts(insert_casts(block, outer))
    assert [(c.values[0], c.attr("dtype")) for c in found] == expected


def test_one_cast_serves_two_products_and_stays_in_its_stage() -> None:
    block = blocks.block(
        "n:64",
        "k:64",
        blocks.load("gt", "g", "k/loop"),
        blocks.load("xt", "x", "m k/loop"),
        blocks.load("wt", "w", "k/loop n/grid"),
        blocks.op("s", "mul", "xt", "gt"),
        blocks.op("p", "matmul", "s", "wt", over="k"),
        blocks.op("q", "matmul", "s", "wt", over="k"),
        blocks.op("r", "mul", "p", "q"),
        blocks.acc("a", "r"),
        blocks.store("y", "a", "m n/grid"),
    )
    outer = {
        "x": blocks.tensor("m k"),
        "w": blocks.tensor("k n"),
        "g": blocks.tensor("k"),
    }
    result = insert_casts(block, outer)
    assert len(casts(result)) == 1
    names = [n.result for n in result.nodes]
    assert names[names.index("s") + 1] == casts(result)[0].result


WORDS = """mirage 1

mugraph words(x: {x}[m, k], w: {w}[k, n]) -> f32[m, n] where m = 4, k = 64, n = 32 {{
  y = block grid(n / 16) loop(k / 32) {{
    x_t = load x[m, k/loop]
    w_t = load w[k/loop, n/grid]
    {made}
    f = to_f32 b
    q = matmul x_t, f over(k)
    s = accumulate q
    store y[m, n/grid] = s
  }}
  return y
}}
"""
SMALL = {
    "b = bit_and w_t, 15": True,
    "a = shift_right w_t, 4\n    c = bit_and a, 15\n    b = sub c, 8": True,
    "b = bit_and w_t, 255": True,
    "b = bit_and w_t, 256": True,
    "b = bit_and w_t, 511": False,
    "b = shift_right w_t, 4": False,
    "b = sub w_t, 8": False,
    "b = remainder w_t, 100": True,
    "b = bit_and w_t, -2": False,
}


@pytest.mark.parametrize("x", ["f16", "bf16"])
@pytest.mark.parametrize("w", ["i32", "i64", "i16"])
@pytest.mark.parametrize("made", SMALL)
def test_small_integers_of_wide_formats_go_with_any(made: str, w: str, x: str) -> None:
    """All floats hold them, so that products need not be of f32."""
    text = WORDS.format(x=x, w=w, made=made)
    # Operands of one format first, as the text has to have.
    product = f"g = cast f dtype({x})\n    q = matmul x_t, g"
    text = text.replace("q = matmul x_t, f", product)
    graph = parse(text)
    outer = kernel_types(graph)
    block = insert_casts(without_casts(graph), outer)
    found = {n.attr("dtype") for n in casts(block)}
    assert found == ({x} if SMALL[made] else {"f32"})


COMPUTED = """mirage 1

mugraph computed(x: f16[m, k], w: {w}[k, n]) -> f32[m, n] where m = 4, k = 64, n = 32 {{
  y = block grid(n / 16) loop(k / 32) {{
    x_t = load x[m, k/loop]
    w_t = load w[k/loop, n/grid]
    b = bit_and w_t, {mask}
    f = to_f32 b
    c = {made}
    g = cast c dtype(f32)
    h = cast x_t dtype(f32)
    q = matmul h, g over(k)
    s = accumulate q
    store y[m, n/grid] = s
  }}
  return y
}}
"""


@pytest.mark.parametrize(
    ("w", "mask", "made", "of"),
    [
        ("i32", 15, "sub f, 8", f16),
        ("i32", 15, "mul f, 16", f16),
        ("i32", 15, "mul f, 0.5", f32),
        ("i32", 15, "mul f, f", f16),
        ("i32", 31, "mul f, f", f32),
        ("i32", 15, "exp f", f32),
        ("i32", 15, "div f, 3", f32),
        ("u8", 15, "mul f, 0.5", f16),
        ("u8", 255, "mul f, f", f16),
        ("u8", 255, "mul f, 300", f32),
    ],
)
def test_what_is_computed_of_small_integers_is_as_in_the_program(
    w: str, mask: int, made: str, of: DType
) -> None:
    """Of f32, unless it is as small, or of bytes and no infinity of f16."""
    graph = parse(COMPUTED.format(w=w, mask=mask, made=made))
    outer = kernel_types(graph)
    block = insert_casts(without_casts(graph), outer)
    types = block_types(block, outer)
    (product,) = (n for n in block.nodes if isinstance(n, Apply) and n.result == "q")
    assert {types[v].dtype for v in product.values} == {of}


ROUNDED = """mirage 1
mugraph f(x: f16[m, k], t: f32[{t}], w: f16[k, n]) -> f16[m, n]
where m = 32, k = 32, n = 32 {{
  i = index k
  {lines}
  return y
}}
"""


@pytest.mark.parametrize(
    ("t", "lines", "expected"),
    [
        ("k", "a = mul x, t\n b = cast a dtype(f16)\n y = matmul b, w over(k)", ["t"]),
        ("k", "b = cast t dtype(f16)\n a = mul x, b\n y = matmul a, w over(k)", ["t"]),
        ("k", "a = mul x, t\n v = cast w dtype(f32)\n y = matmul a, v over(k)", []),
        ("n", "a = matmul x, w over(k)\n y = mul a, t", []),
        (
            "k",
            "p = to_f32 i\n a = mul t, p\n b = cast a dtype(f16)\n c = mul x, b\n"
            "y = matmul c, w over(k)",
            ["t", "i"],
        ),
        (
            "k",
            "b = cast t dtype(f16)\n a = mul x, b\n c = mul a, t\n"
            "v = cast w dtype(f32)\n y = matmul c, v over(k)",
            [],
        ),
    ],
)
def test_what_is_rounded_ahead_of_products_is_coarse(
    t: str, lines: str, expected: list[str]
) -> None:
    program = parse(ROUNDED.format(t=t, lines=lines))
    assert coarse_tensors(program) == dict.fromkeys(expected, f16)


def test_coarse_tensors_go_with_products_of_two_bytes() -> None:
    block, outer = product_of_square(f32, f16)
    found = casts(insert_casts(block, outer, coarse={"x": f16}))
    assert [(c.values[0], c.attr("dtype")) for c in found] == [("s", "f16")]


VECTOR = """mirage 1

mugraph f(x: f16[m, k], v: f16[{dims}]) -> f16[{gives}] where m = 64, k = 64, n = 64 {{
  y = block grid(m / 16) {{
    a = load x[m/grid, k]
    b = load v[{dims}]
    s = mul a, a
    c = cast s dtype(f16)
    p = matmul c, b over(k)
    store y: f16[{stored}] = p
  }}
  return y
}}
"""


def test_a_product_of_a_cast_with_a_vector_is_a_sum_as_well() -> None:
    graph = parse(VECTOR.format(dims="k", gives="m", stored="m/grid"))
    found = without_narrow_vectors(graph)
    assert found is not None
    assert not casts(found.blocks[0])
    rng = np.random.default_rng(0)
    x, v = rng.integers(257, 400, (1, 64, 64)) * 1.0, rng.uniform(1, 2, (1, 64)) / 1024
    (before,), (after,) = (
        evaluate_runs(g, [x, v], RunsDomain(np.float32, round_casts=True))
        for g in (graph, found)
    )
    assert np.isinf(before).all()
    np.testing.assert_allclose(after[0], (x * x)[0] @ v[0], rtol=1e-3)


def test_products_of_matrices_keep_their_casts() -> None:
    graph = parse(VECTOR.format(dims="k, n", gives="m, n", stored="m/grid, n"))
    assert without_narrow_vectors(graph) is None
