"""Repeating, shifting, padding and cutting tensors, as PyTorch and NumPy do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import ShapeError

F = torch.nn.functional
X = torch.arange(2 * 3 * 6, dtype=torch.float32).reshape(2, 3, 6) + 1

TORCH: dict[str, Callable[[Any], Any]] = {
    "repeat": lambda x: x.repeat(2, 1, 3) * 2,
    "repeat by more axes": lambda x: x.repeat(2, 1, 1, 2),
    "repeat is a copy": lambda x: (x.repeat(1, 1, 1).mul_(2), x + 0),
    "tile": lambda x: torch.tile(x, (2,)) + x.tile(1, 2),
    "what is empty": lambda x: (
        torch.cat([x[:0].flatten(), x[0, 0]]),
        torch.cat([x[:0].roll(1, 0).flip(0), x]),
        torch.cat([x[:0].split(2)[0], x]),
        torch.cat([x[:0, ::2], x[:, ::2]]),
        torch.cat([x[:, :, :0].mT.reshape(-1), x[0, 0]]),
    ),
    "roll": lambda x: torch.roll(x, (1, -2), (0, 2)),
    "roll of all": lambda x: x[1, 2].roll(4),
    "flip": lambda x: x.flip(0, -1) + torch.flip(x, (1,)),
    "fliplr": lambda x: torch.fliplr(x) - torch.flipud(x),
    "pad": lambda x: F.pad(x, (1, 2)),
    "pad with a number": lambda x: F.pad(x, (0, 9, 2, 0), value=-1.5),
    "pad by less": lambda x: F.pad(x, (-1, 2, 1, -1)),
    "reflect": lambda x: F.pad(x, (2, 3), mode="reflect"),
    "replicate": lambda x: F.pad(x, (2, 1), mode="replicate"),
    "circular": lambda x: F.pad(x, (2, 1), mode="circular"),
    "unfold": lambda x: x.unfold(2, 2, 2).unfold(1, 3, 3),
    "unfold with a rest": lambda x: x.unfold(-1, 4, 4) * 2,
    "windows": lambda x: x.unfold(2, 3, 1),
    "long windows": lambda x: x.reshape(2, -1).repeat(2, 4).unfold(1, 20, 3)[:, 1:] * 2,
    "many windows": lambda x: x.reshape(36).repeat(4).unfold(0, 5, 2),
    "of a rank at least": lambda x: (
        torch.atleast_1d(x.sum()),
        torch.atleast_2d(x[0, 0]),
        torch.atleast_3d(x[0]),
        *torch.atleast_2d(x[0, 0], x),
        *torch.atleast_3d([x.sum(), x[0, 0]]),
    ),
    "pieces": lambda x: (
        *x.split_with_sizes([2, 3, 1], 2),
        *torch.unsafe_split(x, 2, 1),
        *x.unsafe_chunk(2, 2),
    ),
    "filled": lambda x: torch.fill(x, 2.5) + torch.real(x),
    "no differences": lambda x: torch.diff(x * 2, 0, prepend=x),
    "tensor_split": lambda x: torch.cat(torch.tensor_split(x, 4, -1)[::3], -1),
    "tensor_split at": lambda x: x.tensor_split((1, 4), 2)[1],
    "hsplit": lambda x: torch.hsplit(x, 3)[1],
    "hstack": lambda x: torch.hstack([x, x[:, :1]]),
    "vstack": lambda x: torch.vstack([x[0, 0], x[1, 2]]),
    "column_stack": lambda x: torch.column_stack([x[0, 0], x[1].T]),
    "nothing ahead": lambda x: torch.cat([torch.empty(0), x, torch.zeros(0)], -1),
    "nothing of an axis": lambda x: torch.cat([x[..., :0], x, x[:, :, 9:]], -1),
    "nothing, counted": lambda x: x * x[:, 3:].shape[1] + x[5:].numel() + 1,
    "rank 6": lambda x: x.view(2, 1, 3, 2, 3, 1).transpose(0, 4).softmax(2),
    "expanded": lambda x: x[:, None].expand(2, 4, 3, 6),
    "expanded rows": lambda x: (x[0].expand(5, -1, -1), x[:1, :, :1].expand(2, 3, 6)),
    "dstack": lambda x: torch.dstack([x[0], x[1]]) + torch.dstack([x[0], x[0]]),
    "dsplit": lambda x: torch.dsplit(x, 3)[1],
    "rot90": lambda x: tuple(torch.rot90(x, k, (2, 0)) for k in range(-1, 4)),
    "diff": lambda x: (x * x).diff(2, 1) + torch.diff(x[:, :1], append=x[:, :1, :1]),
    "diff of truths": lambda x: torch.diff(x % 4 > 1).float(),
    "take": lambda x: x.take(torch.tensor([[35, 0], [-1, 7]])),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :, :2], 2, 1, 5, 2),
    "select_scatter": lambda x: x.select_scatter(x[0], 0, -1),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x * 1, x[:1, :, :1] * 2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(4, 3, 3), 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x.reshape(1, 1, 6, 6), 3),
    "channel_shuffle": lambda x: F.channel_shuffle(x.reshape(1, 6, 6), 3),
    "repeat_interleave of all": lambda x: x.repeat_interleave(2) + 1,
    "no axis to squeeze": lambda x: x.squeeze(0)[None].squeeze((0, 1)),
    "like another": lambda x: x.view_as(x.reshape(6, 6)) * 2,
}


def same(function: Callable[[Any], Any]) -> None:
    found = mirage.kernel(lambda x: function(x))(X.clone())
    expected = function(X.double())
    several = isinstance(found, tuple)
    pairs = zip(found, expected, strict=True) if several else [(found, expected)]
    for a, b in pairs:
        torch.testing.assert_close(a, b.float())


def test_what_is_empty_has_a_format() -> None:
    def joined(x: Any) -> Any:
        return (
            torch.cat([torch.empty(0, dtype=torch.float64), x]),
            torch.cat([x[:0].double(), x, x[:0]]),
            torch.cat([torch.empty(0), x.half(), x.half()]),
            torch.cat([x[:0], (x * 4).int()]),
        )

    found = mirage.kernel(joined)(X)
    torch.testing.assert_close(found, joined(X))


@pytest.mark.parametrize("name", TORCH)
def test_functions_of_torch(name: str) -> None:
    same(TORCH[name])


NUMPY: dict[str, Callable[[Any], Any]] = {
    "roll": lambda x: np.roll(x, 2, 1) + np.roll(x, shift=1, axis=0),
    "diff": lambda x: np.diff(x, axis=1) + np.diff(x, n=2, axis=1).sum(),
    "pad": lambda x: np.pad(x, ((1, 0), (0, 2), (1, 1))) + np.pad(x, 1)[1:],
    "pad the edges": lambda x: np.pad(x, 1, mode="edge"),
    "flip": lambda x: np.flip(x, 0) + np.flip(x),
    "tile": lambda x: np.tile(x, (2, 1, 1)) * 2,
    "trace": lambda x: np.trace(x[:, :2]) + x.trace(),
    "stacks": lambda x: np.vstack([np.hstack([x[0], x[1]]), np.hstack([x[1], x[0]])]),
}


@pytest.mark.parametrize("name", NUMPY)
def test_functions_of_numpy(name: str) -> None:
    x = X.numpy()
    found = mirage.kernel(lambda t: NUMPY[name](t))(x)
    np.testing.assert_array_equal(found, NUMPY[name](x))


def test_windows_are_views() -> None:
    def read(x: Any, step: int) -> Any:
        y = x * 2
        windows = y.unfold(2, 3, step)
        y += 1
        return windows

    for step in (1, 2):
        with pytest.raises(mirage.MirageError, match="may share memory"):
            same(lambda x, step=step: read(x, step))
    same(lambda x: read(x, 3))


def test_what_is_not_possible_says_why() -> None:
    large = mirage.spec((4, 100), "float32")
    for function, text in (
        (lambda x: x[None].expand(65, 4, 100), "expand the result"),
        (lambda x: F.pad(x, (1, 1), mode="wrap"), "one of the modes"),
        (lambda x: x[:0], "one constant"),
        (lambda x: F.pad(x[:, :0], (1, 1)), "empty along axis 1"),
        (lambda x: torch.diagflat(x[0, :0], 1), "empty along axis"),
    ):
        with pytest.raises(mirage.MirageError, match=text):
            mirage.kernel(function).trace(large)
    with pytest.raises(ShapeError, match="not as many elements to reflect"):
        same(lambda x: F.pad(x, (6, 0), mode="reflect"))
