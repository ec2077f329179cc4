"""Windows of signals and frequencies are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import DTypeError, ShapeError

X = torch.randn(9, generator=torch.Generator().manual_seed(5))
W = torch.signal.windows

TAPERS = ("bartlett", "blackman", "hamming", "hann", "kaiser")


def _made(name: str, periodic: bool) -> Callable[[], Any]:
    make = getattr(torch, f"{name}_window")
    return lambda: make(9, periodic=periodic)


MADE: dict[str, Callable[[], Any]] = {
    **{
        f"{name}, {periodic}": _made(name, periodic)
        for periodic in (True, False)
        for name in TAPERS
    },
    "one": lambda: torch.kaiser_window(1) + torch.bartlett_window(1, False),
    "in float64": lambda: torch.blackman_window(9, dtype=torch.float64),
    "as wide": lambda: torch.kaiser_window(9, True, 5.0),
    "as high": lambda: torch.hamming_window(9, False, 0.3, 0.7),
    "frequencies": lambda: torch.fft.fftfreq(9, 0.5),
    "an even number of them": lambda: torch.fft.fftfreq(8)[:, None],
    "half of them": lambda: torch.fft.rfftfreq(17, d=3.0),
    **{
        f"signal.{make.__name__}": lambda make=make: make(9, sym=False)
        for make in (W.bartlett, W.blackman, W.cosine, W.hamming, W.hann, W.kaiser)
    },
    "signal.gaussian": lambda: W.gaussian(9, std=2.0),
    "signal.nuttall": lambda: W.nuttall(9),
}


@pytest.mark.parametrize("name", MADE)
def test_as_pytorch(name: str) -> None:
    def weighed(x: Any) -> Any:
        return x * MADE[name]()

    found, expected = mirage.kernel(weighed)(X), weighed(X)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_windows_are_of_floats() -> None:
    def tapered(x: Any) -> Any:
        return x * torch.hann_window(5, dtype=torch.int64)

    with pytest.raises(
        DTypeError, match=r"a window of torch.int64; expected .* floats"
    ):
        mirage.kernel(tapered)(X)


def test_no_window_is_empty() -> None:
    with pytest.raises(ShapeError, match="a window of 0 elements"):
        mirage.kernel(lambda x: x * torch.hann_window(0))(X)
