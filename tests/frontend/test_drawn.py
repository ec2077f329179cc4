"""Random numbers of PyTorch's that a traced function draws: none is frozen into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import mirage_dsl as mirage
from mirage_dsl.core.errors import UnsupportedError

X = torch.arange(12.0).reshape(4, 3)

READ: dict[str, Callable[[Any], Any]] = {
    "a number": lambda x: x + torch.rand(()).item(),
    "a list": lambda x: x + torch.randn(3).tolist()[0],
    "a condition": lambda x: x if torch.rand([]) < 0.5 else -x,
    "a truth value": lambda x: x if torch.randint(0, 2, (1,)) else -x,
    "an index": lambda x: x[torch.randperm(4)],
    "one of several": lambda x: x[:, torch.randint(0, 3, (2,))],
    "a factor": lambda x: 2 * torch.rand(3) * x,
    "an operand": lambda x: x * torch.rand(3),
    "a part": lambda x: torch.cat([x, torch.rand(1, 3)]),
    "a weight": lambda x: F.linear(x, torch.rand(2, 3)),
    "a result": lambda x: (x * 2, torch.rand(3)),
    "of their own generator": lambda x: x[torch.randperm(4, generator=GENERATOR)],
}
GENERATOR = torch.Generator().manual_seed(1)


@pytest.mark.parametrize("name", READ)
def test_what_reads_random_numbers_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="random numbers") as caught:
        mirage.kernel(READ[name])(X)
    assert caught.value.location is not None


def test_numbers_that_nothing_reads_are_none_of_a_kernel() -> None:
    """As where a model draws whether it drops a layer, and does not in evaluation."""

    def function(x: Any, training: bool = False) -> Any:
        drawn = torch.rand([])
        return x if training and drawn < 0.1 else x * 2

    torch.testing.assert_close(mirage.kernel(function)(X), X * 2)
