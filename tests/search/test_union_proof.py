"""The proof of the cheapest DAG on graphs written by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mirage_dsl.search.multi_kernel.exact import prove
from mirage_dsl.search.multi_kernel.graph import Union


def test_what_needs_itself_is_no_solution() -> None:
    """Of x = 1/y and y = 1/x: the cheapest choice is none, the dear one is proved."""
    kids = [[1, -1, -1], [0, -1, -1], [-1, -1, -1], [1, -1, -1]]
    columns = np.zeros(4, np.int64)
    u = SimpleNamespace(
        makes=np.array([0, 1, 1, 2]),
        kids=np.array(kids),
        cost=np.array([1.0, 1.0, 7.0, 0.5]),
        **dict.fromkeys(("kind", "tensor", "layer", "kernel"), columns),
        **dict.fromkeys(("shift", "launch"), columns - 1),
        room=np.zeros((4, 0), np.int64),
        root=2,
    )
    proof: Any = prove(cast("Union", u), seconds=10.0)
    assert proof.optimal
    assert proof.best.enodes == (2, 3)
    assert proof.bound == pytest.approx(7.5)
