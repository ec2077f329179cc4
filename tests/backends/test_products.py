"""Products of dims in any order are right, and batches of matrices."""

from __future__ import annotations

import random

import pytest
import torch

from mirage_dsl.backends.library import Argument, expression
from mirage_dsl.core.types import f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import Apply

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
