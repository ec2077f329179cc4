"""Formulas: text, folding, and one value at a size as in an array of sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mirage_dsl.core.types import Dim
from mirage_dsl.tile.program import (
    STAGES,
    WARPS,
    Number,
    all_of,
    any_of,
    either,
    ends,
    fold,
    greatest,
    lanes,
    least,
    loose,
    opposite,
    product,
    value,
)

M, K = Dim("m", grid=True), Dim("k", loop=True)


@dataclass
class Sizes:
    """Sizes of two pieces, one number each or arrays of them."""

    rows: Any
    summed: Any
    ragged: Any
    warps: Any
    stages: Any = 3

    def lanes(self, dim: Dim) -> Any:
        return self.rows if dim == M else self.summed

    def loose(self, dim: Dim) -> Any:
        return self.ragged if dim in (M, K) else False

    def ends(self, dim: Dim) -> Any:
        return self.lanes(dim) == 16


TALL = all_of([fold("ge", lanes(M), 64), fold("ge", WARPS, 4)])
FORMULAS: list[tuple[Number, str]] = [
    (TALL, "lanes(m/grid) >= 64 & warps >= 4"),
    (opposite(TALL), "not (lanes(m/grid) >= 64 & warps >= 4)"),
    (
        either(TALL, STAGES, greatest(fold("sub", STAGES, 1), 1)),
        "stages if lanes(m/grid) >= 64 & warps >= 4 else max(stages - 1, 1)",
    ),
    (
        any_of([all_of([loose(K), opposite(ends(K))]), loose(M)]),
        "loose(k/loop) & not ends(k/loop) | loose(m/grid)",
    ),
    (
        least(16, fold("div", product([lanes(M), lanes(K)]), 64)),
        "min(16, lanes(m/grid) * lanes(k/loop) div 64)",
    ),
    (
        product([fold("sub", lanes(M), fold("sub", lanes(K), 1)), 2]),
        "(lanes(m/grid) - (lanes(k/loop) - 1)) * 2",
    ),
    (fold("gt", fold("add", lanes(M), WARPS), 3), "lanes(m/grid) + warps > 3"),
]


@pytest.mark.parametrize(("formula", "text"), FORMULAS)
def test_text(formula: Number, text: str) -> None:
    assert str(formula) == text


@pytest.mark.parametrize(("formula", "text"), FORMULAS)
def test_arrays_hold_what_each_point_has(formula: Number, text: str) -> None:
    """The text, read as Python, is one more way to the same number."""
    points = [
        Sizes(rows, summed, ragged, warps)
        for rows in (16, 64, 128)
        for summed in (1, 16)
        for ragged in (False, True)
        for warps in (1, 4)
    ]
    every = Sizes(
        *(
            np.array([getattr(p, name) for p in points])
            for name in ("rows", "summed", "ragged", "warps", "stages")
        )
    )
    alone = [value(formula, p) for p in points]
    assert value(formula, every).tolist() == alone
    read = (
        text.replace("&", "and")
        .replace("|", "or")
        .replace("/grid", "")
        .replace("div", "//")
    )
    read = read.replace("/loop", "")
    for point, found in zip(points, alone, strict=True):
        names: dict[str, Any] = {
            **{n: getattr(point, n) for n in ("lanes", "loose", "ends")},
            "warps": point.warps,
            "stages": point.stages,
            "m": M,
            "k": K,
        }
        assert eval(read, names) == found
        assert type(found) in (int, bool)


def test_what_is_known_is_folded() -> None:
    tall = fold("ge", lanes(M), 64)
    assert fold("and", True, tall) == tall
    assert fold("and", tall, False) is False
    assert fold("or", tall, True) is True
    assert fold("or", False, tall) == tall
    assert fold("and", tall, tall) == tall
    assert product([lanes(M), 1]) == lanes(M)
    assert opposite(opposite(tall)) == tall
    assert fold("and", tall, opposite(tall)) is False
    assert fold("or", opposite(tall), tall) is True
    assert either(True, 3, tall) == 3
    assert either(tall, 2, 2) == 2
    assert all_of([]) is True
    assert any_of([]) is False
    assert greatest(3, 1) == 3
    assert least(3, 1) == 1
