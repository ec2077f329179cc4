"""Products of dims in any order are right, and batches of matrices."""

from __future__ import annotations

import random

import pytest
import torch

from mirage_dsl.backends.library import Argument, expression
from mirage_dsl.core.types import f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import Apply
from mirage_dsl.ir.text.parser import parse
from tests.backends.running import check

EXTENTS = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 2, "f": 3}


def text_of(first: str, second: str, over: str, result: str) -> str:
    """The expression of a product whose operands and result have dims of one letter."""
    g = KernelBuilder("product", **EXTENTS)
    x, y = (g.input(n, f32, ", ".join(d)) for n, d in (("x", first), ("y", second)))
    z = g.matmul(x, y, over=", ".join(over))
    node = g.returns(z).build().nodes[0]
    assert isinstance(node, Apply)
    operands = [Argument("x", tuple(first), f32), Argument("y", tuple(second), f32)]
    return expression(node, operands, tuple(result), f32, lambda d: str(EXTENTS[d]))


@pytest.mark.parametrize("seed", range(60))
def test_any_product_is_one_of_matrices(seed: int) -> None:
    """Each dim is summed, of a batch, of rows or of columns, at any place."""
    rng = random.Random(seed)
    roles = {d: rng.choice(["sum", "batch", "row", "column"]) for d in EXTENTS}
    roles["a"], roles["b"] = "sum", rng.choice(["row", "column"])

    def dims(*kinds: str) -> str:
        found = [d for d in EXTENTS if roles[d] in kinds]
        return "".join(rng.sample(found, len(found)))

    first, second = dims("sum", "batch", "row"), dims("sum", "batch", "column")
    over, result = dims("sum"), dims("batch", "row", "column")
    text = text_of(first, second, over, result)
    assert "einsum" not in text
    x = torch.randn([EXTENTS[d] for d in first], dtype=torch.float64)
    y = torch.randn([EXTENTS[d] for d in second], dtype=torch.float64)
    found = eval(text, {"torch": torch, "x": x, "y": y})
    torch.testing.assert_close(found, torch.einsum(f"{first},{second}->{result}", x, y))


@pytest.mark.parametrize(
    ("operands", "text"),
    [
        (("abc", "cd", "c", "abd"), "torch.matmul(x, y)"),
        (("ab", "b", "b", "a"), "torch.matmul(x, y)"),
        (("abc", "abd", "b", "acd"), "torch.matmul(x.permute(0, 2, 1), y)"),
    ],
)
def test_a_simple_product_is_written_simply(
    operands: tuple[str, str, str, str], text: str
) -> None:
    assert text_of(*operands) == text


RAGGED = """mirage 1

mugraph ragged(x: f16[m, (a b)], w: f16[n, (a b)]) -> f32[m, n]
where m = 8, a = {a}, b = 16, n = 16 {{
  y = block grid(n / 16) loop(a / 8) {{
    x_t = load x[m, (a/loop b)]
    xe = add x_t, 1
    xx = cast xe dtype(f16)
    w_t = load w[n/grid, (a/loop b)]
    we = add w_t, 1
    v = cast we dtype(f16)
    q = matmul xx, v over(b)
    qa = accumulate q
    qo = sum qa over(a)
    store y: f32[m, n/grid] = qo
  }}
  return y
}}
"""
TALL = """mirage 1

mugraph tall(x: f16[r, b], w: f16[n, b]) -> f32[n] where r = {a}, b = 16, n = 16 {{
  y = block grid(n / 16) loop(r / 16) {{
    x_t = load x[r/loop, b]
    xe = add x_t, 1
    xx = cast xe dtype(f16)
    w_t = load w[n/grid, b]
    we = add w_t, 1
    v = cast we dtype(f16)
    q = matmul xx, v over(b)
    qa = accumulate q
    qo = sum qa over(r)
    store y: f32[n/grid] = qo
  }}
  return y
}}
"""


@pytest.mark.parametrize("text", [RAGGED, TALL])
@pytest.mark.parametrize("a", [32, 36, 40, 44])
def test_nothing_outside_of_a_part_is_added_to_a_carried_tile(
    text: str, a: int
) -> None:
    """Both factors are 1 there, and the last iteration has fewer parts or rows."""
    check(parse(text.format(a=a)))
