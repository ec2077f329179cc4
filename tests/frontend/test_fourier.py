"""Fourier transforms are PyTorch's, of real and of complex tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.core.errors import MirageError

Function = Callable[..., Any]
T = torch.fft
GENERATOR = torch.Generator().manual_seed(3)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


X, Z = normal(3, 6, 5), torch.complex(normal(3, 6, 5), normal(3, 6, 5))
SIGNAL, WINDOW = normal(2, 40), normal(8)
NORMS = (None, "backward", "ortho", "forward")


def _of_each_norm(transform: Function, x: torch.Tensor) -> tuple[Function, Any]:
    return lambda t: [transform(t, norm=norm) for norm in NORMS], (x,)


CASES: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    **{
        f"{transform.__name__}, norms": _of_each_norm(transform, x)
        for transform, x in (
            *((T.fft, X), (T.ifft, Z), (T.rfft, X), (T.irfft, Z)),
            *((T.fft2, Z), (T.rfft2, X), (T.irfft2, Z), (T.ifftn, X)),
            *((T.hfft, Z), (T.ihfft, X), (T.hfft2, Z), (T.ihfft2, X)),
            *((T.hfftn, Z), (T.ihfftn, X)),
        )
    },
    "sizes": (
        lambda x, z: (
            T.fft(x, 8, 1),
            T.rfft(x, n=4, dim=0),
            T.irfft(z, 3),
            T.fft2(z, (2, 7)),
            T.rfftn(x, (4, 4), (2, 0)),
            T.irfftn(z, (5, -1), dim=(0, 1)),
            T.fftn(x, s=(9,)),
            T.hfft(z, 7, 1),
            T.hfft(x, n=4),
            T.ihfft(x, n=4, dim=0),
            T.fftn(x, dim=1),
        ),
        (X, Z),
    ),
    "back and forth": (
        lambda x: (T.irfft(T.rfft(x), 5), T.ifft2(T.fft2(x)).real),
        (X,),
    ),
    "of integers": (lambda i: T.rfft(i).abs(), (torch.arange(12).view(2, 6),)),
    "shifts": (
        lambda x, z: (T.fftshift(x), T.ifftshift(z, 1), T.fftshift(z, (0, 2)).abs()),
        (X, Z),
    ),
    "a filter": (
        lambda x: T.irfft(
            T.rfft(x, dim=1) * torch.tensor([1.0, 1, 0, 0])[:, None], 6, 1
        ),
        (X,),
    ),
    "a convolution": (
        lambda x, y: T.irfft(T.rfft(x, n=80) * T.rfft(y, n=80), n=80)[..., :40],
        (SIGNAL, WINDOW),
    ),
    "the real part alone": (lambda x: T.fft(T.fft(x, dim=-1), dim=-2).real, (X,)),
    "a spectral convolution": (
        lambda x, z: T.irfft(
            torch.einsum("bif,iof->bof", T.rfft(x), z[:, :5, :3]), n=5, dim=-1
        ),
        (X[:, :3], Z),
    ),
    "sums of complex numbers": (lambda z: torch.einsum("bii->b", z[:, :5]), (Z,)),
    "power": (lambda x: T.rfft(x, norm="ortho").abs().square().mean(-1), (X,)),
    "stft": (
        lambda x, w: (
            torch.stft(x, 8, 2, window=w, return_complex=True),
            torch.stft(x[0], 8, 4, 8, w, normalized=True, return_complex=True).abs(),
            torch.stft(
                x, 16, window=w, win_length=8, center=False, return_complex=True
            ),
            torch.stft(x, 8, 3, window=w, onesided=False, return_complex=True).real,
            x.stft(8, 8, window=w, pad_mode="constant", return_complex=True),
        ),
        (SIGNAL, WINDOW),
    ),
}


def _framed(x: Any, window: Any, size: int = 8, hop: int = 2, **options: Any) -> Any:
    """The spectrum of a signal, and the signal of that."""
    told = {"return_complex": True, "onesided": options.get("onesided")}
    centered = {n: options[n] for n in ("center", "normalized") if n in options}
    spectrum = torch.stft(x, size, hop, window=window, **told, **centered)
    return torch.istft(spectrum * 2, size, hop, window=window, **options)


CASES["istft"] = (
    lambda x, w: (
        _framed(x, w),
        _framed(x[0], w, normalized=True, length=33),
        _framed(x, w, onesided=False),
        _framed(x, w.square() + 1, center=False),
        _framed(x, w, length=47),
    ),
    (SIGNAL, WINDOW),
)
CASES["istft of a shorter window"] = (
    lambda z, w: torch.istft(z, 10, win_length=8, window=w.abs() + 1),
    (torch.complex(normal(6, 5), normal(6, 5)), WINDOW),
)


@pytest.mark.filterwarnings("ignore:A window was not provided")
@pytest.mark.filterwarnings("ignore:The length of signal is shorter")
@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str) -> None:
    function, given = CASES[name]
    found, expected = mirage.kernel(lambda *xs: function(*xs))(*given), function(*given)
    if isinstance(expected, torch.Tensor):
        found, expected = [found], [expected]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_stft_without_a_window() -> None:
    def function(x: Any) -> Any:
        return torch.stft(x, 8, 2, win_length=6, return_complex=True).abs()

    with pytest.warns(UserWarning, match="window"):
        expected = function(SIGNAL)
    torch.testing.assert_close(mirage.kernel(function)(SIGNAL), expected)


def test_both_parts_are_of_one_call() -> None:
    program = mirage.kernel(lambda x: T.rfft(x).abs()).trace(X.float())
    names = [n.op.name for n in program.applies]
    assert names[:2] == ["rfft_real", "rfft_imag"]
    assert emit(program).count("= torch.fft.rfft(") == 1


REFUSED: dict[str, tuple[Function, torch.Tensor, str]] = {
    "a norm": (lambda x: T.fft(x, norm="both"), X, "norm='both'.*'ortho'"),
    "f16": (T.rfft, X.half(), "rfft of f16.*float32 and float64"),
    "no elements": (lambda x: T.fft(x, 0), X, "fft of 0 elements"),
    "an axis twice": (lambda x: T.fft2(x, dim=(0, -3)), X, "an axis is given twice"),
    "a signal of three axes": (
        lambda x: torch.stft(x, 4, return_complex=True),
        X,
        "stft of f64.3, 6, 5.; expected a signal",
    ),
    "a real transform of complex numbers": (T.rfft, Z, "it is of real ones"),
    "pairs": (lambda x: torch.stft(x[0], 4, return_complex=False), X, "view_as_real"),
    "columns of others": (
        lambda z: torch.istft(z, 16, window=torch.ones(16)),
        Z,
        "istft of .3, 6, 5. with n_fft=16.*columns of 9",
    ),
    "a complex signal": (
        lambda z: torch.istft(z, 6, 2, onesided=False, return_complex=True),
        Z,
        "istft with return_complex=True",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    function, x, said = REFUSED[name]
    with pytest.raises(MirageError, match=said):
        mirage.kernel(lambda t: function(t))(x)
