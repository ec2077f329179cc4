"""Shapes of convolutions and pooling, which are computed here, are PyTorch's.

Of any row that only PyTorch computes, numbers that do not fit are refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import Integers
from mirage_dsl.ir.check import check
from mirage_dsl.ops.table import OPERATORS
from tests.programs.windows import ROWS

CASES = 150
Shape = tuple[int, ...]
Drawn = tuple[str, list[Shape], dict[str, Shape]]


def between(draw: random.Random, rank: int, least: int, most: int) -> Shape:
    return tuple(draw.randint(least, most) for _ in range(rank))


def convolution(draw: random.Random) -> Drawn:
    rank, back = draw.randint(1, 3), draw.random() < 0.5
    groups, channels = draw.choice((1, 1, 1, 2, 3)), draw.randint(1, 6)
    taken = channels if back else channels // groups
    if draw.random() < 0.1:
        taken += 1
    made = draw.randint(1, 6)
    own = (taken, made) if back else (made, max(taken, 1))
    x = (draw.randint(1, 2), channels, *between(draw, rank, 1, 7))
    numbers = {
        "stride": between(draw, rank, draw.random() > 0.05, 3),
        "padding": between(draw, rank, 0, 2),
        "dilation": between(draw, rank, 1, 3),
        "groups": (groups,),
    }
    if back:
        numbers["output_padding"] = between(draw, rank, 0, draw.choice((0, 2)))
    name = f"conv_transpose{rank}d" if back else f"conv{rank}d"
    return name, [x, (*own, *between(draw, rank, 1, 4))], numbers


def pooling(draw: random.Random) -> Drawn:
    rank, kind = draw.randint(1, 3), draw.choice(("max", "avg"))
    numbers = {
        "kernel": between(draw, rank, draw.random() > 0.05, 4),
        "stride": between(draw, rank, draw.random() > 0.05, 3),
        "padding": between(draw, rank, 0, 2),
        "ceil": (draw.randint(0, 1),),
    }
    if kind == "max":
        numbers["dilation"] = between(draw, rank, 1, 3)
    else:
        numbers["padded"] = (draw.randint(0, 1),)
    x = (draw.randint(1, 2), draw.randint(1, 3), *between(draw, rank, 1, 9))
    return f"{kind}_pool{rank}d", [x], numbers


def by_pytorch(name: str, shapes: list[Shape], numbers: dict[str, Shape]) -> Any:
    """The shape of what PyTorch computes; None if it computes nothing."""
    tensors = {f"x{i}": torch.zeros(s) for i, s in enumerate(shapes)}
    text = OPERATORS[name].torch.format(*tensors, **numbers)
    try:
        made = eval(text, {"torch": torch, **tensors})
    except (RuntimeError, ValueError):
        return None
    return tuple(made.shape) if made.numel() else None


@pytest.mark.parametrize("drawn", [convolution, pooling])
@pytest.mark.parametrize("seed", range(3))
def test_shapes_are_pytorchs(
    drawn: Callable[[random.Random], Drawn], seed: int
) -> None:
    draw = random.Random(seed)
    refused = 0
    for _ in range(CASES):
        name, shapes, numbers = drawn(draw)
        shape = OPERATORS[name].shape
        assert shape is not None
        wanted = by_pytorch(name, shapes, numbers)
        if wanted is None:
            refused += 1
            with pytest.raises(CheckError):
                shape(shapes, numbers)
        else:
            assert shape(shapes, numbers) == wanted, (name, shapes, numbers)
    assert 0 < refused < CASES


def changed(numbers: Mapping[str, Shape]) -> Iterator[dict[str, Shape]]:
    """One attribute with no number, one less or one more, a 0, or another order."""
    for name, own in numbers.items():
        for other in ((), own[:-1], (*own, 1), (0,) * len(own), (-3,) * len(own)):
            yield {**numbers, name: other}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_numbers_that_do_not_fit_are_refused_in_a_text(name: str) -> None:
    program = ROWS[name].traced
    for node in program.applies:
        for numbers in changed(node.numbers) if node.op.shape is not None else ():
            attrs = dict(node.attrs) | {n: Integers(v) for n, v in numbers.items()}
            other = replace(node, attrs=tuple(attrs.items()))
            nodes = tuple(other if n is node else n for n in program.nodes)
            for found in check(replace(program, nodes=nodes)):
                assert found.rule in ("type", "library-extent"), found
