"""Fourier transforms, by PyTorch's kernels along one axis after the other.

A complex tensor is a pair here, its real and its imaginary part, which is None of a
real one, so that a transform is two operators of one call.  What is computed of its
parts is searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    UnsupportedError,
)
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function
from mirage_dsl.frontend.constructors import arange
from mirage_dsl.frontend.functions import as_floats, as_tensor, named
from mirage_dsl.frontend.layers import fold
from mirage_dsl.frontend.program import shape_text
from mirage_dsl.frontend.rearranging import pad, roll, unfold
from mirage_dsl.frontend.recorder import (
    around,
    flat_arguments,
    integer,
    normal_axes,
    normal_axis,
)
from mirage_dsl.frontend.tensor import Tensor

Pair = tuple[Any, Any]
"""A real and an imaginary part, which is None of a real tensor."""

# -- Along one axis --------------------------------------------------------------------

_FACTORS: Mapping[str, tuple[float, float]] = {
    "backward": (0.0, 0.0),
    "ortho": (-0.5, 0.5),
    "forward": (-1.0, 1.0),
}
"""Powers of the number of elements by which transforms, and their inverses, are scaled.

PyTorch's kernels scale as `backward` does.
"""


def _factor(norm: str | None, count: int, *, inverse: bool) -> float:
    if norm not in (*_FACTORS, None):
        raise UnsupportedError.here(
            f"a Fourier transform with norm={norm!r}; expected one of "
            f"{', '.join(map(repr, _FACTORS))}"
        )
    return float(count) ** _FACTORS[norm or "backward"][inverse]


def _part(what: str, x: Any) -> Tensor:
    """A part of a tensor, in a dtype that PyTorch transforms."""
    x = as_floats(as_tensor(what, x))
    f.require_float(what, x)
    return x


def _parts(what: str, x: Pair) -> tuple[Tensor, Tensor]:
    """Both parts of a tensor."""
    real, imag = x
    real = _part(what, real)
    return real, real * 0.0 if imag is None else _part(what, imag)


def _along(
    name: str, parts: Sequence[Tensor], n: Any, dim: int, norm: str | None
) -> Any:
    """A transform along one axis.

    Args:
        name: PyTorch's.
        parts: Of the tensor: one if it takes real tensors, else two.
        n: How many elements count, with zeros behind those that there are.
        dim: The axis.
        norm: How it is scaled.
    """
    x, inverse = parts[0], "i" in name
    at = normal_axis(dim, x.ndim, name)
    there = integer(x.shape[at], "an extent")
    default = 2 * (there - 1) if name == "irfft" else there
    count = default if n is None else integer(n, "n")
    if count < 1:
        raise ShapeError.here(
            f"{name} of {count} elements of {shape_text(x.handle)}; expected 1 or more"
        )
    rows = (name,) if name == "irfft" else (f"{name}_real", f"{name}_imag")
    handles = [part.handle for part in parts]
    made = (
        x.recorder.library_by_groups(
            row, handles, around(at), {0: 0, 2: 0}, {"n": count}
        )
        for row in rows
    )
    found: list[Any] = [Tensor.made(x.recorder, part, None) for part in made]
    scale = _factor(norm, count, inverse=inverse)
    found = [part if scale == 1 else part * scale for part in found]
    return found[0] if name == "irfft" else (found[0], found[1])


def _of_real(what: str, x: Pair) -> Tensor:
    if x[1] is not None:
        raise DTypeError.here(
            f"{what} of a complex tensor; it is of real ones: take z.real, or fft"
        )
    return _part(what, x[0])


def fft(input: Pair, n: Any = None, dim: int = -1, norm: str | None = None) -> Pair:
    """The Fourier transform along an axis."""
    return _along("fft", _parts("fft", input), n, dim, norm)


def ifft(input: Pair, n: Any = None, dim: int = -1, norm: str | None = None) -> Pair:
    """Its inverse."""
    return _along("ifft", _parts("ifft", input), n, dim, norm)


def rfft(input: Pair, n: Any = None, dim: int = -1, norm: str | None = None) -> Pair:
    """The half of the transform of a real tensor that is not the other's conjugate."""
    return _along("rfft", (_of_real("rfft", input),), n, dim, norm)


def irfft(input: Pair, n: Any = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The real tensor of such a half."""
    return _along("irfft", _parts("irfft", input), n, dim, norm)


_BACK: Mapping[str | None, str] = {
    None: "forward",
    "backward": "forward",
    "ortho": "ortho",
    "forward": "backward",
}
"""How an inverse is scaled as the transform itself, by how that is."""


def _other_norm(norm: str | None) -> str:
    _factor(norm, 1, inverse=False)
    return _BACK[norm]


def hfft(input: Pair, n: Any = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The real transform of a signal of which the other half is the conjugate."""
    real, imag = _parts("hfft", input)
    return irfft((real, -imag), n, dim, _other_norm(norm))


def ihfft(input: Pair, n: Any = None, dim: int = -1, norm: str | None = None) -> Pair:
    """The half of such a signal, of its real transform."""
    real, imag = rfft((_of_real("ihfft", input), None), n, dim, _other_norm(norm))
    return real, -imag


_NAMES = named(fft, hfft, ifft, ihfft, irfft, rfft)

# -- Along several ---------------------------------------------------------------------


def _axes(what: str, x: Any, s: Any, dim: Any) -> tuple[list[int], list[Any]]:
    """The axes of a transform, and how many elements of each count, if that is told."""
    if dim is None:
        dim = tuple(range(x.ndim) if s is None else range(-len(s), 0))
    axes = list(normal_axes(flat_arguments((dim,)), x.ndim, what))
    counts: list[Any] = [None] * len(axes) if s is None else [*flat_arguments((s,))]
    if len(counts) != len(axes):
        raise ShapeError.here(
            f"{what}: {len(counts)} numbers of elements for {len(axes)} axes"
        )
    # Of all elements that there are, PyTorch says -1.
    return axes, [None if n == -1 else n for n in counts]


def _all_along(name: str, dims: Any) -> Function:
    """A transform of several axes: complex ones along all but the last, and that."""
    last, other = _NAMES[name], ifft if "i" in name else fft
    backwards = name in ("rfft", "ihfft")

    def function(
        input: Pair, s: Any = None, dim: Any = dims, norm: str | None = None
    ) -> Any:
        axes, counts = _axes(name, input[0], s, dim)
        steps: list[tuple[Function, Any, int]]
        steps = [(other, n, at) for n, at in zip(counts, axes, strict=True)]
        steps[-1] = (last, counts[-1], axes[-1])
        found: Any = input
        for transform, count, axis in reversed(steps) if backwards else steps:
            found = transform(found, count, axis, norm)
        return found

    return function


def _shift(sign: int) -> Function:
    """The tensor rolled by half of each axis, forwards or back."""

    def shifted(input: Pair, dim: Any = None) -> Any:
        real, imag = input
        axes = list(normal_axes(dim, real.ndim, "fftshift"))
        shifts = [sign * (int(real.shape[at]) // 2) for at in axes]
        found = roll(real, shifts, axes)
        return found if imag is None else (found, roll(imag, shifts, axes))

    return shifted


# -- Frames ----------------------------------------------------------------------------


def _frames(
    n_fft: Any, hop_length: Any, normalized: bool
) -> tuple[int, int, str | None]:
    """How long windows are, how far apart, and how their transforms are scaled."""
    size = integer(n_fft, "n_fft")
    hop = size // 4 if hop_length is None else integer(hop_length, "hop_length")
    return size, hop, "ortho" if normalized else None


def _window(window: Any, n_fft: int, win_length: Any, like: Tensor) -> Any:
    """A window of `n_fft` elements, with zeros at both sides; None for ones."""
    length = n_fft if win_length is None else integer(win_length, "win_length")
    if window is None and length == n_fft:
        return None
    if window is None:
        window = f.to(f.equal(arange(length), arange(length)), like)
    if int(window.shape[0]) != length or not 0 < length <= n_fft:
        raise ShapeError.here(
            f"a window {tuple(window.shape)} for win_length={length} and "
            f"n_fft={n_fft}; expected a vector of win_length elements, n_fft at most"
        )
    left = (n_fft - length) // 2
    return pad(window, (left, n_fft - length - left)) if length < n_fft else window


def _ones(x: Tensor) -> Any:
    """A matrix of ones in the shape of the last two axes."""
    at = arange(x.shape[-2])
    return f.expand(f.to(f.expand_dims(f.equal(at, at), 1), x), *tuple(x.shape)[-2:])


def stft(
    input: Pair,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Pair:
    """The transforms of windows along an axis, as columns.

    Raises:
        UnsupportedError: The signal is complex, or its result is to be pairs.
    """
    if input[1] is not None or not return_complex or align_to_window:
        raise UnsupportedError.here(
            "stft of a complex signal, without return_complex=True, or with "
            "align_to_window; pass return_complex=True, and take view_as_real of it"
        )
    x = _part("stft", input[0])
    n_fft, hop, norm = _frames(n_fft, hop_length, normalized)
    if x.ndim not in (1, 2):
        raise ShapeError.here(
            f"stft of {shape_text(x.handle)}; expected a signal, or a batch of them"
        )
    if center:
        lead = f.reshape(x, *(1,) * (3 - x.ndim), *x.shape)
        padded = pad(lead, (n_fft // 2, n_fft // 2), mode=pad_mode)
        x = f.reshape(padded, *tuple(x.shape)[:-1], -1)
    frames = unfold(x, -1, n_fft, hop)
    window = _window(window, n_fft, win_length, x)
    frames = frames if window is None else frames * window
    transform = fft if onesided is False else rfft
    found = transform((frames, None), norm=norm)
    return f.swapaxes(found[0], -1, -2), f.swapaxes(found[1], -1, -2)


def istft(
    input: Pair,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    """The signal of such columns: windows are added where they were, and weighed.

    Where no window has any weight the result is not finite; PyTorch raises an error.
    """
    real, imag = _parts("istft", input)
    n_fft, hop, norm = _frames(n_fft, hop_length, normalized)
    count = integer(real.shape[-1], "an extent")
    half = real.shape[-2] != n_fft if onesided is None else onesided
    rows = n_fft // 2 + 1 if half else n_fft
    if real.ndim not in (2, 3) or real.shape[-2] != rows or hop < 1:
        raise ShapeError.here(
            f"istft of {tuple(real.shape)} with n_fft={n_fft}, hop_length={hop}, "
            f"onesided={half}; expected columns of {rows} elements, and a positive hop"
        )
    if return_complex or (window is not None and not isinstance(window, Tensor)):
        raise UnsupportedError.here(
            "istft with return_complex=True or with a complex window; take ifft of "
            "the columns, and add its windows with index_add"
        )
    # Of both halves PyTorch reads the first one alone.
    whole = (f.narrow(part, -2, 0, n_fft // 2 + 1) for part in (real, imag))
    frames = irfft((next(whole), next(whole)), n_fft, -2, norm)
    start = n_fft // 2 if center else 0
    stop = n_fft + hop * (count - 1) - start if length is None else start + length
    window = _window(window, n_fft, win_length, real)
    return _overlapped(frames, window, hop, (start, stop))


def _overlapped(frames: Any, window: Any, hop: int, part: tuple[int, int]) -> Any:
    """A part of what columns are that are weighed, and added a step apart.

    Each element is over the sum of the squares that it was weighed by.
    """
    size, count = (integer(n, "an extent") for n in frames.shape[-2:])
    wide = size + hop * (count - 1)
    share = _ones(frames)
    if window is not None:
        column = f.expand_dims(window, 1)
        frames, share = frames * column, share * f.square(column)

    def added(columns: Any) -> Any:
        batch = f.reshape(columns, -1, size, count)
        found = fold(batch, (1, wide), (1, size), 1, 0, (1, hop))
        return f.reshape(found, *columns.shape[:-2], wide)

    start, stop = part
    inside = slice(start, min(stop, wide))
    found = added(frames)[..., inside] / added(share)[..., inside]
    return pad(found, (0, stop - wide)) if stop > wide else found


# -- Names -----------------------------------------------------------------------------

_TRANSFORMS: Mapping[str, Function] = {
    **_NAMES,
    "fftshift": _shift(1),
    "ifftshift": _shift(-1),
    **{f"{name}2": _all_along(name, (-2, -1)) for name in _NAMES},
    **{f"{name}n": _all_along(name, None) for name in _NAMES},
}
FOURIER: Mapping[str, Function] = {
    **{f"fft_{name}": function for name, function in _TRANSFORMS.items()},
    **named(istft, stft),
}
"""By PyTorch's names."""
