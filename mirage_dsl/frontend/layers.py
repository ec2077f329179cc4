"""PyTorch's layers: of windows, recurrent ones, attention; its losses and distances.

Of functions of windows (convolutions, pooling, interpolation), what no generated kernel
computes becomes a library operator, which PyTorch runs; what is a product or a
reduction of whole axes becomes that, so that it is searched.

A recurrent layer, or several of them, is one call of PyTorch, of which each result is
an operator of its own.  A cell is its formula, so that it is searched, and so is what
`nn.MultiheadAttention` computes, of projections, masks and weights; and so are losses
and distances, with PyTorch's arguments.  Losses of labels, which are integers, stand
elsewhere: they gather.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    UnsupportedError,
)
from mirage_dsl.core.types import boolean, f32, promote
from mirage_dsl.frontend import composites as c
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function, is_sequence
from mirage_dsl.frontend.composites import einsum
from mirage_dsl.frontend.constructors import CONSTRUCTORS
from mirage_dsl.frontend.elementary import log1p, xlogy
from mirage_dsl.frontend.functions import (
    as_tensor,
    formulas,
    is_condition,
    is_float,
    named,
)
from mirage_dsl.frontend.places import scattered
from mirage_dsl.frontend.program import DimVars, Handle, shape_text
from mirage_dsl.frontend.rearranging import (
    broadcast_tensors,
    pad,
    unfold,
    windows_along,
)
from mirage_dsl.frontend.recorder import integer
from mirage_dsl.frontend.tensor import Tensor, refuse, refused
from mirage_dsl.ops.table import OPERATORS

_RANKS = (1, 2, 3)


def _several(value: Any, rank: int, what: str) -> tuple[int, ...]:
    """An integer for each axis of a window, of which one may be given for all."""
    given = tuple(value) if is_sequence(value) else (value,)
    if len(given) not in (1, rank):
        raise ShapeError.here(
            f"{what} of {rank} axes takes 1 or {rank} integers, found {len(given)}"
        )
    found = tuple(integer(n, what) for n in given)
    return found * (rank // len(found))


def _by_name(what: str, rank: int, **given: Any) -> dict[str, tuple[int, ...]]:
    """Arguments of windows by their names, each an integer for each axis."""
    return {n: _several(v, rank, f"{n} of {what}") for n, v in given.items()}


def _called(
    name: str,
    operands: Sequence[Tensor],
    numbers: Mapping[str, tuple[int, ...]],
    kept: Mapping[int, DimVars],
) -> Tensor:
    """A library operator's result.

    Args:
        name: Of its row.
        operands: With the axes that it knows by their places.
        numbers: Its attributes that are integers.
        kept: By the places of axes of the result, the axes that they are.
    """
    for operand in operands:
        if operand.handle.value.dtype == boolean:
            raise DTypeError.here(f"{name} of truth values; cast them to numbers")
    recorder = operands[0].recorder
    handles = [operand.handle for operand in operands]
    made = recorder.library(OPERATORS[name], handles, numbers, kept)
    return Tensor.made(recorder, made, operands)


def _batched(function: Callable[[Tensor], Tensor], x: Any, rank: int, what: str) -> Any:
    """A function of a batch, of one item too; it has channels and so many axes.

    Raises:
        ShapeError: The tensor has another rank.
    """
    x = as_tensor(what, x)
    if x.ndim == rank + 2:
        return function(x)
    if x.ndim != rank + 1:
        raise ShapeError.here(
            f"{what} takes a tensor of rank {rank + 1} or {rank + 2}, found rank "
            f"{x.ndim}"
        )
    return f.squeeze(function(f.unsqueeze(x, 0)), 0)


# -- Convolutions ----------------------------------------------------------------------


def _biased(x: Tensor, bias: Any) -> Any:
    if bias is None:
        return x
    if tuple(bias.shape) != (x.shape[1],):
        raise ShapeError.here(
            f"a bias {tuple(bias.shape)} of a convolution that makes {x.shape[1]} "
            "channels; expected a number for each"
        )
    return x + c.per_channel(x, bias)


def _weight(weight: Any, rank: int, what: str) -> tuple[Tensor, tuple[int, ...]]:
    """The weight of a convolution, and its window."""
    weight = as_tensor(what, weight)
    if weight.ndim != rank + 2:
        raise ShapeError.here(
            f"{what} takes a weight of rank {rank + 2}, found rank {weight.ndim}"
        )
    return weight, tuple(int(n) for n in weight.shape[2:])


def _of_channels(x: Tensor, weight: Tensor, made: str) -> Any:
    """A product over channels for each point: what a window of one point is.

    The first axes of the weight are in `made`: k for channels made, c for those taken.
    """
    rank = x.ndim - 2
    flat = f.reshape(weight, tuple(weight.shape[:2]))
    axes = "xyz"[:rank]
    return einsum(f"nc{axes},{made}->nk{axes}", x, flat)


def _conv(
    rank: int,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> Any:
    """PyTorch's convolution over so many axes."""
    what = f"conv{rank}d"
    weight, window = _weight(weight, rank, what)
    numbers = _by_name(what, rank, dilation=dilation, stride=stride)
    steps = numbers["stride"]
    if padding == "same" and set(steps) != {1}:
        raise UnsupportedError.here(
            f"{what} with padding='same' and stride={steps}; expected a stride of 1"
        )
    both = [d * (n - 1) for d, n in zip(numbers["dilation"], window, strict=True)]
    odd = [n % 2 for n in both]
    if padding == "same" and any(odd):
        # The side behind has one more.
        x = pad(x, [n for more in reversed(odd) for n in (0, more)])
    words = {"same": [n // 2 for n in both], "valid": 0}
    around = words.get(padding, padding) if isinstance(padding, str) else padding
    numbers |= _by_name(what, rank, padding=around) | _by_name(what, 1, groups=groups)

    def run(x: Tensor) -> Any:
        kept = {0: x.handle.axes[0], 1: weight.handle.axes[0]}
        return _biased(_windowed(what, x, weight, "kc", numbers, kept), bias)

    return _batched(run, x, rank, what)


def _conv_transpose(
    rank: int,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Any = 1,
    dilation: Any = 1,
) -> Any:
    """PyTorch's transposed convolution over so many axes."""
    what = f"conv_transpose{rank}d"
    weight, _ = _weight(weight, rank, what)
    numbers = _by_name(
        what,
        rank,
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
    ) | _by_name(what, 1, groups=groups)

    def run(x: Tensor) -> Any:
        kept = {0: x.handle.axes[0]}
        if numbers["groups"] == (1,):
            kept[1] = weight.handle.axes[1]
        return _biased(_windowed(what, x, weight, "ck", numbers, kept), bias)

    return _batched(run, x, rank, what)


def _windowed(
    what: str,
    x: Tensor,
    weight: Tensor,
    made: str,
    numbers: Mapping[str, tuple[int, ...]],
    kept: dict[int, DimVars],
) -> Any:
    """A convolution, or the product that it is; `made` as `_of_channels` has it."""
    own = _is_product(weight.shape[2:], numbers) and _is_exact(x)
    if own and x.shape[1] == weight.shape[made.index("c")]:
        return _of_channels(x, weight, made)
    return _called(what, (x, weight), numbers, kept)


def _is_product(window: Sequence[int], numbers: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a window of one point meets every point once, and all channels."""
    one = (*window, *numbers["stride"], *numbers["groups"])
    none = (*numbers["padding"], *numbers.get("output_padding", ()))
    return set(one) == {1} and not any(none)


def _is_exact(x: Tensor) -> bool:
    """Whether PyTorch computes a convolution as exactly as a product of its points.

    It rounds those of f32 to TF32 by default, but no products: these take many times
    as long then, which matters where there are many points.
    """
    return x.handle.value.dtype != f32 or all(n == 1 for n in x.shape[2:])


# -- Pooling ---------------------------------------------------------------------------


def _over_windows(x: Tensor, window: Sequence[int], reduce: Function) -> Any | None:
    """A reduction of windows that lie side by side; None if axes do not split so.

    Those in space are left to PyTorch: of eight dims a search has too many ways to
    split, and comes to no end.
    """
    sizes = x.shape[2:]
    known = [n if isinstance(n, int) else 0 for n in sizes]
    if any(not n or n % w for n, w in zip(known, window, strict=True)):
        return None
    axes = tuple(range(2, 2 + len(window)))
    if tuple(known) == tuple(window):
        return reduce(x, axes, keepdims=True)
    if len(window) > 2:
        return None
    pairs = [(n // w, w) for n, w in zip(known, window, strict=True)]
    shape = (*x.shape[:2], *(n for pair in pairs for n in pair))
    try:
        split = f.reshape(x, shape)
    except UnsupportedError:
        return None
    return reduce(split, tuple(2 * a - 1 for a in axes))


def _pool(kind: str, rank: int, x: Any, numbers: Mapping[str, tuple[int, ...]]) -> Any:
    """A pooling operator of rows `avg_pool` and `max_pool`."""
    window = numbers["kernel"]
    plain = numbers["stride"] == window and not any(numbers["padding"])
    plain &= set(numbers.get("dilation", (1,))) == {1}

    def run(x: Tensor) -> Any:
        reduce = f.mean if kind == "avg_pool" else f.max
        found = _over_windows(x, window, reduce) if plain else None
        return _pooled(f"{kind}{rank}d", x, numbers) if found is None else found

    return _batched(run, x, rank, f"{kind}{rank}d")


def _pooled(name: str, x: Tensor, numbers: Mapping[str, tuple[int, ...]]) -> Tensor:
    """A library operator that leaves the batch and the channels as they are."""
    return _called(name, (x,), numbers, dict(enumerate(x.handle.axes[:2])))


def _max_pool(
    rank: int,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """PyTorch's largest elements of windows over so many axes."""
    what = f"max_pool{rank}d"
    numbers = _windows(what, rank, kernel_size, stride, padding, ceil_mode)
    numbers |= _by_name(what, rank, dilation=dilation)
    if return_indices:
        return _with_places(what, rank, x, lambda _: numbers)
    return _pool("max_pool", rank, x, numbers)


def _avg_pool(
    rank: int,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """PyTorch's means of windows over so many axes."""
    what = f"avg_pool{rank}d"
    numbers = _windows(what, rank, kernel_size, stride, padding, ceil_mode)
    if divisor_override is None:
        numbers["padded"] = (int(count_include_pad),)
        return _pool("avg_pool", rank, x, numbers)
    if not divisor_override:
        raise ShapeError.here(f"{what} with divisor_override=0")
    factor = math.prod(numbers["kernel"]) / divisor_override
    x = _with_zeros(what, rank, x, numbers)
    plain = {**numbers, "padding": (0,) * rank, "ceil": (0,), "padded": (1,)}
    return _pool("avg_pool", rank, x, plain) * factor


def _with_zeros(
    what: str, rank: int, x: Any, numbers: Mapping[str, tuple[int, ...]]
) -> Any:
    """The tensor with the zeros around it that windows reach, in each of them."""
    x = as_tensor(what, x)
    columns = zip(
        (integer(n, f"an extent of {what}") for n in x.shape[-rank:]),
        *(numbers[name] for name in ("kernel", "stride", "padding")),
        strict=True,
    )
    around: list[int] = []
    for extent, window, step, side in columns:
        rest = extent + 2 * side - window
        count = (-(-rest // step) if numbers["ceil"][0] else rest // step) + 1
        if numbers["ceil"][0] and (count - 1) * step >= extent + side:
            # A window begins in the tensor, or before it.
            count -= 1
        behind = (count - 1) * step + window - extent - side
        around = [side, max(behind, side), *around]
    return pad(x, around) if any(around) else x


def _windows(
    what: str, rank: int, kernel: Any, stride: Any, padding: Any, ceil: bool
) -> dict[str, tuple[int, ...]]:
    """What all kinds of windows have."""
    window = _several(kernel, rank, f"kernel_size of {what}")
    steps = window if stride is None or stride == () else stride
    numbers = _by_name(what, rank, stride=steps, padding=padding)
    return {"kernel": window, **numbers, "ceil": (int(ceil),)}


def _adaptive_pool(
    kind: str, rank: int, x: Any, output_size: Any, return_indices: bool = False
) -> Any:
    """PyTorch's pooling to a size."""
    what = f"adaptive_{kind}_pool{rank}d"

    def size_of(x: Tensor) -> tuple[int, ...]:
        wanted = output_size if is_sequence(output_size) else (output_size,) * rank
        pairs = zip(wanted, x.shape[2:], strict=True)
        return _several([n if w is None else w for w, n in pairs], rank, what)

    if return_indices:
        return _with_places(what, rank, x, lambda x: {"size": size_of(x)})

    def run(x: Tensor) -> Any:
        size = size_of(x)
        reduce = f.mean if kind == "avg" else f.max
        found = None
        if all(isinstance(n, int) for n in x.shape[2:]):
            known = [int(n) for n in x.shape[2:]]
            if not any(n % s for n, s in zip(known, size, strict=True)):
                window = [n // s for n, s in zip(known, size, strict=True)]
                found = _over_windows(x, window, reduce)
        return _pooled(what, x, {"size": size}) if found is None else found

    return _batched(run, x, rank, what)


# -- Largest elements, and where they were ---------------------------------------------
# Operators see two axes: of all planes, and of the elements of a plane, in which places
# are counted.


def _with_places(
    what: str,
    rank: int,
    x: Any,
    numbers_of: Callable[[Tensor], Mapping[str, tuple[int, ...]]],
) -> tuple[Any, Any]:
    """The largest elements of windows over so many axes, and their places in planes.

    Args:
        what: How they are called.
        rank: Of a plane.
        x: The tensor.
        numbers_of: What of a batch makes the operators' integers.
    """

    def part(name: str) -> Callable[[Tensor], Any]:
        def run(x: Tensor) -> Any:
            plane = _several(list(x.shape[2:]), rank, f"planes of {what}")
            numbers = {"plane": plane, **numbers_of(x)}
            flat = f.flatten(f.flatten(x, 2), 0, 1)
            made = _called(f"{what}_{name}", (flat,), numbers, {0: flat.handle.axes[0]})
            extents = _pooled_plane(what, plane, numbers)
            whole = Handle(made.handle.value, (*x.handle.axes[:2], made.handle.axes[1]))
            return f.unflatten(Tensor.made(x.recorder, whole, (x,)), 2, extents)

        return run

    found = (_batched(part(name), x, rank, what) for name in ("found", "places"))
    return next(found), next(found)


def _pooled_plane(
    what: str, plane: tuple[int, ...], numbers: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...]:
    """The extents of what a pooling makes of a plane."""
    if "size" in numbers:
        return numbers["size"]
    shape = OPERATORS[what].shape
    assert shape is not None
    plain = {name: n for name, n in numbers.items() if name != "plane"}
    return shape([(1, 1, *plane)], plain)[2:]


def _max_unpool(
    rank: int,
    x: Any,
    indices: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
) -> Any:
    """PyTorch's planes of zeros with elements at their places in them."""
    what = f"max_unpool{rank}d"
    x, places = as_tensor(what, x), as_tensor(what, indices)
    if tuple(x.shape) != tuple(places.shape):
        raise ShapeError.here(
            f"{what} of {tuple(x.shape)} at {tuple(places.shape)}; expected a place "
            "for each element"
        )
    numbers = _windows(what, rank, kernel_size, stride, padding, ceil=False)
    plane = _unpooled(what, rank, x, numbers, output_size)
    given = (f.flatten(t, -rank, -1) for t in (x, places))
    found = scattered(next(given), next(given), math.prod(plane))
    return f.unflatten(Tensor.made(x.recorder, found.handle, (x,)), -1, plane)


def _unpooled(
    what: str,
    rank: int,
    x: Tensor,
    numbers: Mapping[str, tuple[int, ...]],
    output_size: Any,
) -> tuple[int, ...]:
    """The extents of the planes of which windows were taken.

    Raises:
        ShapeError: They are asked to be such that there were not as many windows.
    """
    known = [integer(n, f"an extent of {what}") for n in x.shape[-rank:]]
    steps = numbers["stride"]
    columns = zip(known, steps, numbers["kernel"], numbers["padding"], strict=True)
    default = tuple((n - 1) * step + k - 2 * p for n, step, k, p in columns)
    if output_size is None:
        return default
    asked = _several(list(output_size)[-rank:], rank, f"output_size of {what}")
    if any(abs(a - d) >= s for a, d, s in zip(asked, default, steps, strict=True)):
        raise ShapeError.here(
            f"{what} with output_size={tuple(output_size)}; expected extents less "
            f"than a stride of {steps} from {default}"
        )
    return asked


# -- Norms of windows ------------------------------------------------------------------


def _lp_pool(
    rank: int,
    x: Any,
    norm_type: float,
    kernel_size: Any,
    stride: Any = None,
    ceil_mode: bool = False,
) -> Any:
    """PyTorch's norms of windows over so many axes, by roots of sums of powers."""
    if math.isinf(norm_type):
        sign = math.copysign(1, norm_type)
        sizes = f.abs(x) * sign
        return _max_pool(rank, sizes, kernel_size, stride, 0, 1, ceil_mode) * sign
    window = _several(kernel_size, rank, f"kernel_size of lp_pool{rank}d")
    powers = f.pow(x, norm_type)
    found = _avg_pool(rank, powers, window, stride, 0, ceil_mode) * math.prod(window)
    return f.pow(found, 1 / norm_type)


# -- Elements at points, and columns as windows ----------------------------------------


def grid_sample(
    input: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Any:
    """PyTorch's elements at points of a plane or of space, from -1 to 1."""
    x, points = as_tensor("grid_sample", input), as_tensor("grid_sample", grid)
    paddings = ("zeros", "border", "reflection")
    if mode not in ("bilinear", "nearest", "bicubic") or padding_mode not in paddings:
        raise UnsupportedError.here(
            f"grid_sample with mode={mode!r}, padding_mode={padding_mode!r}; PyTorch "
            "has no such ones"
        )
    numbers = {
        "padding": (paddings.index(padding_mode),),
        "corners": (int(bool(align_corners)),),
    }
    kept = dict(enumerate(x.handle.axes[:2]))
    return _called(f"grid_sample_{mode}", (x, points), numbers, kept)


def _sampler(
    input: Any,
    grid: Any,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Any:
    """The same, with the numbers that PyTorch gives to modes."""
    modes = ("bilinear", "nearest", "bicubic")[interpolation_mode]
    paddings = ("zeros", "border", "reflection")[padding_mode]
    return grid_sample(input, grid, modes, paddings, align_corners)


def affine_grid(theta: Any, size: Any, align_corners: bool | None = None) -> Any:
    """PyTorch's points of planes or of space that affine maps move."""
    maps = as_tensor("affine_grid", theta)
    batch, _, *extents = (integer(n, "an extent of affine_grid") for n in size)
    rank = len(extents)
    if tuple(maps.shape) != (batch, rank, rank + 1) or rank not in (2, 3):
        raise ShapeError.here(
            f"affine_grid of {tuple(maps.shape)} to {tuple(size)}: expected a 2 by 3 "
            "matrix for each plane, or a 3 by 4 one for each space"
        )
    points = [CONSTRUCTORS["ones"](*extents, dtype=theta.dtype)]
    for axis, extent in enumerate(extents):
        # A single one is in the middle.
        end = 1.0 if extent > 1 else 0.0
        along = CONSTRUCTORS["linspace"](-end, end, extent, dtype=theta.dtype)
        # Without corners the ends are half a pixel inside.
        along = along if align_corners else along * ((extent - 1) / extent)
        placed = f.reshape(along, *(-1 if i == axis else 1 for i in range(rank)))
        points.insert(0, f.expand(placed, *extents))
    flat = f.reshape(f.stack(points, -1), 1, -1, rank + 1)
    return f.reshape(f.matmul(flat, maps.mT), batch, *extents, rank)


def fold(
    input: Any,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Any:
    """PyTorch's sums of windows that are columns, where they were."""
    numbers = {
        "size": _several(output_size, 2, "output_size of fold"),
        "kernel": _several(kernel_size, 2, "kernel_size of fold"),
        **_by_name("fold", 2, dilation=dilation, padding=padding, stride=stride),
    }

    def run(x: Tensor) -> Tensor:
        return _called("fold", (x,), numbers, {0: x.handle.axes[0]})

    return _batched(run, input, 1, "fold")


# -- Windows as columns ----------------------------------------------------------------


def im2col(
    x: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Any:
    """The windows of planes as columns, PyTorch's `torch.nn.functional.unfold`."""
    what = "unfold"
    window = _several(kernel_size, 2, f"kernel_size of {what}")
    numbers = _by_name(what, 2, dilation=dilation, padding=padding, stride=stride)
    apart, around, steps = numbers.values()
    if min(*window, *apart, *steps) < 1 or min(around) < 0:
        raise ShapeError.here(
            f"{what} with kernel_size={window}, dilation={apart}, padding={around}, "
            f"stride={steps}; expected positive numbers, and a padding of 0 or more"
        )

    def run(x: Tensor) -> Any:
        if any(around):
            x = pad(x, [n for n in reversed(around) for _ in range(2)])
        for axis, size, step, gap in zip((2, 3), window, steps, apart, strict=True):
            side_by_side = gap == 1 and step == size
            x = (
                unfold(x, axis, size, step)
                if side_by_side
                else windows_along(x, axis, size, step, gap)
            )
        batch, channels, rows, columns, *_ = x.shape
        found = f.permute(x, 0, 1, 4, 5, 2, 3)
        wide = channels * math.prod(window)
        return f.reshape(found, batch, wide, rows * columns).clone()

    return _batched(run, x, 2, what)


def local_response_norm(
    x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    """X over a power of the mean square of so many channels about each."""
    x = as_tensor("local_response_norm", x)
    if x.ndim < 3:
        raise ShapeError.here(
            f"local_response_norm of a tensor of rank {x.ndim}; expected 3 or more"
        )
    behind = [0] * (2 * (x.ndim - 2))
    wide = pad(f.square(x), [*behind, size // 2, (size - 1) // 2])
    mean = f.mean(windows_along(wide, 1, size, 1), -1)
    return x / f.pow(mean * alpha + k, beta)


# -- Interpolation ---------------------------------------------------------------------

_MODES = {
    "nearest": "nearest",
    "nearest-exact": "nearest_exact",
    "linear": "linear",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
    "trilinear": "trilinear",
}
"""PyTorch's names of modes, and what the rows are called by."""


def interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """PyTorch's interpolation to a size, or by a factor."""
    x = as_tensor("interpolate", x)
    rank = x.ndim - 2
    plain, kind = f"upsample_{_MODES.get(mode, mode)}{rank}d", "_of_means" * antialias
    name = plain + kind
    if (mode != "area" or antialias) and name not in OPERATORS:
        raise UnsupportedError.here(
            f"interpolate with mode={mode!r}, antialias={antialias} of a tensor of "
            f"rank {x.ndim}; expected a mode of PyTorch's for that rank, and antialias "
            "with 'bilinear' or 'bicubic'"
        )
    if align_corners is not None and "corners" not in getattr(
        OPERATORS.get(name), "attributes", ()
    ):
        raise UnsupportedError.here(
            f"interpolate with mode={mode!r} and align_corners; it goes with linear, "
            "bilinear, bicubic and trilinear"
        )
    wanted, factors = _size(x, size, scale_factor)
    if mode == "area":
        return _adaptive_pool("avg", rank, x, wanted)
    numbers = {"size": wanted}
    if factors and not recompute_scale_factor:
        name = f"{plain}_by{kind}"
        over, under = zip(*(n.as_integer_ratio() for n in factors), strict=True)
        numbers = {"over": over, "under": under}
    if "corners" in OPERATORS[name].attributes:
        numbers["corners"] = (int(bool(align_corners)),)
    return _pooled(name, x, numbers)


def _size(
    x: Tensor, size: Any, scale: Any
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The extents to interpolate to, and factors if they give no whole ones."""
    rank = x.ndim - 2
    counts = [
        len(n) if is_sequence(n) else rank for n in (size, scale) if n is not None
    ]
    if counts != [rank]:
        raise ShapeError.here(
            f"interpolate of {shape_text(x.handle)} with size={size}, "
            f"scale_factor={scale}; expected one of them, a number or {rank}"
        )
    if size is not None:
        return _several(size, rank, "size of interpolate"), ()
    factors = [float(s) for s in (scale if is_sequence(scale) else (scale,) * rank)]
    known = [integer(n, "an extent of interpolate") for n in x.shape[2:]]
    exact = [n * s for n, s in zip(known, factors, strict=True)]
    whole = all(e == int(e) for e in exact)
    return tuple(map(math.floor, exact)), () if whole else tuple(factors)


def _ranked(name: str, function: Function) -> dict[str, Function]:
    """A function for each number of axes, by PyTorch's names."""
    return {f"{name}{rank}d": partial(function, rank) for rank in _RANKS}


def _with_indices(name: str, function: Function) -> dict[str, Function]:
    """The same that give indices too."""
    given = partial(_returning, function)
    found = _ranked(name, given)
    return {f"{name}_with_indices": function for name, function in found.items()}


def _returning(function: Function, rank: int, *args: Any, **options: Any) -> Any:
    return function(rank, *args, **{**options, "return_indices": True})


WINDOWS: dict[str, Function] = {
    **_ranked("conv", _conv),
    **_ranked("conv_transpose", _conv_transpose),
    **_ranked("max_pool", _max_pool),
    **_ranked("avg_pool", _avg_pool),
    **_ranked("lp_pool", _lp_pool),
    **_ranked("adaptive_avg_pool", partial(_adaptive_pool, "avg")),
    **_ranked("adaptive_max_pool", partial(_adaptive_pool, "max")),
    **_with_indices("adaptive_max_pool", partial(_adaptive_pool, "max")),
    **_with_indices("max_pool", _max_pool),
    **{
        f"fractional_max_pool{rank}d{kind}": refused(
            f"fractional_max_pool{rank}d, whose windows are drawn at random,",
            "use adaptive_max_pool, whose windows are known",
        )
        for rank in _RANKS
        for kind in ("", "_with_indices")
    },
    **_ranked("max_unpool", _max_unpool),
    "affine_grid_generator": affine_grid,
    **formulas(
        constant_pad_nd=lambda input, pads, value=0: pad(input, pads, "constant", value)
    ),
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), _sampler),
    **named(affine_grid, fold, grid_sample, interpolate, local_response_norm),
    "upsample": interpolate,
}
"""By PyTorch's names."""


# -- Recurrent layers ------------------------------------------------------------------


def _whole(x: Any, what: str) -> Tensor:
    """The tensor with elements of its own, as what starts with zeros has to have."""
    x = as_tensor(what, x)
    return Tensor.made(x.recorder, x.recorder.spread(x.handle), ())


def _layers(
    name: str,
    results: Sequence[str],
    x: Any,
    state: Any,
    weights: Any,
    biased: Any,
    layers: Any = None,
    dropout: Any = None,
    train: Any = None,
    bidirectional: Any = None,
    batch_first: Any = None,
) -> tuple[Tensor, ...]:
    """The results of layers: of all steps, and the last states of each layer."""
    if batch_first is None:
        refuse(f"{name} of packed sequences", "pad them, and mask what is behind")
    if train and dropout:
        refuse(f"{name} with dropout in training", "call .eval() on the module")
    states = tuple(state) if is_sequence(state) else (state,)
    # Steps come first in memory too: what all steps give is seen otherwise, not copied.
    x = f.swapaxes(x, 0, 1) if batch_first else x
    operands = [_whole(t, name) for t in (x, *states, *weights)]
    numbers = {
        "ranks": tuple(t.ndim for t in operands),
        "biased": (int(biased),),
        "layers": (int(layers),),
        "bidirectional": (int(bidirectional),),
    }
    all_steps, *last = (
        _result(result, operands, numbers, last=at > 0)
        for at, result in enumerate(results)
    )
    return (f.swapaxes(all_steps, 0, 1) if batch_first else all_steps, *last)


def _result(
    name: str,
    operands: Sequence[Tensor],
    numbers: Mapping[str, tuple[int, ...]],
    *,
    last: bool,
) -> Tensor:
    """A result of layers: the last states of each, or else what all steps give."""
    recorder, axes = operands[0].recorder, operands[0].handle.axes
    kept: dict[int, DimVars] = {1: axes[1]} if last else {0: axes[0], 1: axes[1]}
    handles = [t.handle for t in operands]
    made = recorder.library(OPERATORS[name], handles, numbers, kept)
    return Tensor.made(recorder, made, ())


# -- Recurrent cells -------------------------------------------------------------------


def _gates(x: Any, h: Any, *weights: Any) -> tuple[Any, Any]:
    """The products of the input and of the state with their weights."""
    w_x, w_h, *biases = weights
    b_x, b_h = biases or (None, None)
    return f.linear(x, w_x, b_x), f.linear(h, w_h, b_h)


def _lstm_cell(x: Any, state: Any, *weights: Any) -> tuple[Any, Any]:
    """One step of a long short-term memory: its state and what it remembers."""
    h, c = state
    ours, theirs = _gates(x, h, *weights)
    enter, forget, new, leave = f.chunk(ours + theirs, 4, -1)
    kept = f.sigmoid(forget) * c + f.sigmoid(enter) * f.tanh(new)
    return f.sigmoid(leave) * f.tanh(kept), kept


def _gru_cell(x: Any, h: Any, *weights: Any) -> Any:
    """One step of gated recurrent units."""
    ours, theirs = (f.chunk(gates, 3, -1) for gates in _gates(x, h, *weights))
    reset = f.sigmoid(ours[0] + theirs[0])
    update = f.sigmoid(ours[1] + theirs[1])
    new = f.tanh(ours[2] + reset * theirs[2])
    return new + update * (h - new)


def _rnn_cell(activation: Function, x: Any, h: Any, *weights: Any) -> Any:
    """One step of a plain recurrent layer."""
    ours, theirs = _gates(x, h, *weights)
    return activation(ours + theirs)


RECURRENT: Mapping[str, Function] = {
    "lstm": partial(_layers, "lstm", ("lstm", "lstm_state", "lstm_memory")),
    "gru": partial(_layers, "gru", ("gru", "gru_state")),
    "rnn_tanh": partial(_layers, "rnn_tanh", ("rnn_tanh", "rnn_tanh_state")),
    "rnn_relu": partial(_layers, "rnn_relu", ("rnn_relu", "rnn_relu_state")),
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "rnn_tanh_cell": partial(_rnn_cell, f.tanh),
    "rnn_relu_cell": partial(_rnn_cell, f.relu),
}
"""By PyTorch's names."""


# -- Attention of several heads --------------------------------------------------------


@dataclass(frozen=True)
class _Attention:
    """The arguments of `multi_head_attention_forward`, as PyTorch orders them.

    Tensors are [length, batch, channels], or without the batch.
    """

    query: Any
    key: Any
    value: Any
    embed_dim_to_check: int
    num_heads: int
    in_proj_weight: Any
    in_proj_bias: Any
    bias_k: Any
    bias_v: Any
    add_zero_attn: bool
    dropout_p: float
    out_proj_weight: Any
    out_proj_bias: Any
    training: bool = True
    key_padding_mask: Any = None
    need_weights: bool = True
    attn_mask: Any = None
    use_separate_proj_weight: bool = False
    q_proj_weight: Any = None
    k_proj_weight: Any = None
    v_proj_weight: Any = None
    static_k: Any = None
    static_v: Any = None
    average_attn_weights: bool = True
    is_causal: bool = False

    def check(self) -> None:
        """Refuse what is more than projections, masks and attention.

        Raises:
            UnsupportedError: There is such an argument; it is named.
        """
        masks = [m for m in (self.attn_mask, self.key_padding_mask) if m is not None]
        odd = {
            "a mask of integers": not all(
                is_condition(m) or is_float(m) for m in masks
            ),
            "one of bias_k and bias_v": (self.bias_k is None) != (self.bias_v is None),
            "dropout_p while training": self.training and self.dropout_p,
            "is_causal without attn_mask": self.is_causal and self.attn_mask is None,
        }
        found = [name for name, given in odd.items() if given]
        if found:
            raise UnsupportedError.here(
                f"multi_head_attention_forward with {found[0]} cannot be traced; call "
                "scaled_dot_product_attention on keys and values as they are to be"
            )

    def projected(self) -> list[Any]:
        """Queries, keys and values as [batch, heads, length, channels of one]."""
        q, *others = self._projections()
        biases, given = (self.bias_k, self.bias_v), (self.static_k, self.static_v)
        pairs = zip(others, biases, strict=True)
        heads = [self._of_heads(q), *(self._of_heads(_more(t, b)) for t, b in pairs)]
        shape = heads[0].shape[:2]
        for at, fixed in enumerate(given, 1):
            heads[at] = heads[at] if fixed is None else fixed.unflatten(0, shape)
        if self.add_zero_attn:
            heads[1:] = [pad(t, (0, 0, 0, 1)) for t in heads[1:]]
        return heads

    def _of_heads(self, x: Any) -> Any:
        return x.unflatten(2, (self.num_heads, -1)).permute(1, 2, 0, 3)

    def _projections(self) -> Iterable[Any]:
        """Queries, keys and values; of one tensor they are one product."""
        bias, given = self.in_proj_bias, (self.query, self.key, self.value)
        weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        if not self.use_separate_proj_weight:
            if self.query is self.key is self.value:
                rows = self._batched(self.query)
                return f.linear(rows, self.in_proj_weight, bias).chunk(3, -1)
            weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        each = zip(map(self._batched, given), weights, biases, strict=True)
        return [f.linear(t, w, b) for t, w, b in each]

    def _batched(self, x: Any) -> Any:
        return x.unsqueeze(1) if self.query.ndim == 2 else x

    def added(self, batch: int) -> list[Any]:
        """What masks add to the scores [batch, heads, queries, keys]."""
        found: list[Any] = []
        mask, keys = self.attn_mask, self.key_padding_mask
        if mask is not None:
            heads = batch, self.num_heads
            found.append(mask if mask.ndim == 2 else mask.unflatten(0, heads))
        if keys is not None:
            found.append(keys.unsqueeze(-2).unsqueeze(-2))
        # A mask is true where there is no key; keys that are joined have none.
        found = [f.where(m, -math.inf, 0.0) if is_condition(m) else m for m in found]
        more = int(self.bias_k is not None) + int(self.add_zero_attn)
        return [pad(m, (0, more)) for m in found] if more else found


def _more(x: Any, bias: Any) -> Any:
    """Keys or values [length, batch, channels], and one more, the same in a batch."""
    if bias is None:
        return x
    return f.concat([x, f.expand(f.to(bias, x), 1, *x.shape[1:])], 0)


def multi_head_attention_forward(*args: Any, **options: Any) -> tuple[Any, Any]:
    """What `nn.MultiheadAttention` computes.

    Returns:
        The result, and the weights of the keys or None where they are not needed.

    Raises:
        UnsupportedError: An argument beyond projections and masks.
    """
    given = _Attention(*args, **options)
    given.check()
    q, k, v = given.projected()
    added, shares = given.added(q.shape[0]), None
    if given.need_weights:
        scores = reduce(f.add, added, q @ k.mT * q.shape[-1] ** -0.5)
        shares = c.softmax(scores, -1)
        attended = shares @ v
        shares = shares.mean(1) if given.average_attn_weights else shares
    else:
        # That a mask is the causal one is believed where it is the only one, as in
        # PyTorch: it then reaches the keys that are joined too.
        causal = given.is_causal and given.key_padding_mask is None
        mask = reduce(f.add, added) if added and not causal else None
        attended = c.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
    joined = attended.permute(2, 0, 1, 3).flatten(2)
    found = f.linear(joined, given.out_proj_weight, given.out_proj_bias)
    if given.query.ndim == 2:
        return found.squeeze(1), None if shares is None else shares.squeeze(0)
    return found, shares


# -- Losses and distances --------------------------------------------------------------


def require_reduction(what: str, reduction: str) -> None:
    """Refuse what losses are not reduced by."""
    if reduction not in ("none", "mean", "sum"):
        raise UnsupportedError.here(
            f"{what}: reduction={reduction!r}; expected 'mean', 'sum' or 'none'"
        )


def reduced(what: str, each: Any, reduction: str) -> Any:
    """A loss of each element, their mean or their sum."""
    require_reduction(what, reduction)
    if reduction == "none":
        return each
    return f.sum(each) if reduction == "sum" else f.mean(each)


def of_rows(what: str, found: Any, reduction: str, *, single: bool) -> Any:
    """Losses of rows, their mean or their sum; of a `single` one without an axis."""
    found = reduced(what, found, reduction)
    return f.squeeze(found, 0) if single and found.ndim else found


def _weighted(each: Any, weight: Any) -> Any:
    return each if weight is None else each * weight


def _averaged(what: str, each: Any, x: Any, weight: Any, reduction: str) -> Any:
    """The same with a weight for each element, by whose sum a mean is divided."""
    if weight is None:
        return reduced(what, each, reduction)
    _require_alike(what, x, weight, "weight")
    total = reduced(what, each * weight, "sum" if reduction == "mean" else reduction)
    return total / f.sum(weight) if reduction == "mean" else total


def _require_alike(what: str, x: Any, other: Any, name: str) -> None:
    """Refuse another operand that has not the first one's shape."""
    given, own = as_tensor(what, x).handle, as_tensor(what, other).handle
    pairs = zip(given.shape, own.shape, strict=False)
    if len(given.axes) != len(own.axes) or any(a != b for a, b in pairs):
        raise ShapeError.here(
            f"{what} of {shape_text(given)} with {name} {shape_text(own)}; expected "
            "one shape"
        )


def _require_number(what: str, name: str, value: float, *, fits: bool) -> None:
    """Refuse a number that a loss has no meaning for."""
    if not fits:
        raise UnsupportedError.here(
            f"{what} with {name}={value}; expected a larger number"
        )


# -- Of differences --------------------------------------------------------------------


def mse_loss(
    x: Any, target: Any, *, reduction: str = "mean", weight: Any = None
) -> Any:
    """Squares of differences: their mean, their sum, or each."""
    return _averaged("mse_loss", f.square(x - target), x, weight, reduction)


def l1_loss(x: Any, target: Any, *, reduction: str = "mean", weight: Any = None) -> Any:
    """Absolute differences: their mean, their sum, or each."""
    return _averaged("l1_loss", f.abs(x - target), x, weight, reduction)


def huber_loss(
    x: Any,
    target: Any,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Any = None,
) -> Any:
    """Half of the squares of differences up to delta, beyond it delta times as much.

    With weights the mean is over the number of elements, as PyTorch's.
    """
    _require_number("huber_loss", "delta", delta, fits=delta > 0)
    if weight is not None:
        _require_alike("huber_loss", x, weight, "weight")
    far = f.abs(x - target)
    near = f.minimum(far, delta)
    each = _weighted(near * (far - 0.5 * near), weight)
    return reduced("huber_loss", each, reduction)


def smooth_l1_loss(
    x: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0
) -> Any:
    """The huber loss over beta; absolute differences if that is 0."""
    _require_number("smooth_l1_loss", "beta", beta, fits=beta >= 0)
    if not beta:
        return l1_loss(x, target, reduction=reduction)
    return huber_loss(x, target, reduction, beta) / beta


# -- Of probabilities ------------------------------------------------------------------

_LEAST_LOG = -100.0
"""What PyTorch takes for the logarithm of a probability of 0."""


def kl_div(
    x: Any, target: Any, *, reduction: str = "mean", log_target: bool = False
) -> Any:
    """The divergence of `target` from what has the logarithm x."""
    if log_target:
        each = f.exp(target) * (target - x)
    else:
        each = xlogy(target, target) - target * x
    if reduction == "batchmean":
        return f.sum(each) / (x.shape[0] if x.ndim else 1)
    return reduced("kl_div", each, reduction)


def binary_cross_entropy(
    x: Any, target: Any, weight: Any = None, *, reduction: str = "mean"
) -> Any:
    """Minus the logarithm of the probability that x gives to a target of 0 and 1."""
    _require_alike("binary_cross_entropy", x, target, "target")
    yes, no = (f.maximum(log, _LEAST_LOG) for log in (f.log(x), log1p(-x)))
    each = _weighted((target - 1) * no - target * yes, weight)
    return reduced("binary_cross_entropy", each, reduction)


def binary_cross_entropy_with_logits(
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    """The same of the sigmoid of x, at any x without overflow, in the target's format.

    PyTorch computes in place of what it made of the target.
    """
    _require_alike("binary_cross_entropy_with_logits", x, target, "target")
    rest = _softplus(-x)
    if pos_weight is not None:
        rest = rest * ((pos_weight - 1) * target + 1)
    each = _weighted((1 - target) * x + rest, weight)
    if f.is_float(target):
        each = f.to(each, target)
    return reduced("binary_cross_entropy_with_logits", each, reduction)


def _softplus(x: Any) -> Any:
    return f.maximum(x, 0) + log1p(f.exp(-f.abs(x)))


def multilabel_soft_margin_loss(
    x: Any, target: Any, weight: Any = None, *, reduction: str = "mean"
) -> Any:
    """The mean of the cross entropy along the last axis."""
    each = target * _softplus(-x) + (1 - target) * _softplus(x)
    each = f.mean(_weighted(each, weight), -1)
    return reduced("multilabel_soft_margin_loss", each, reduction)


def soft_margin_loss(x: Any, target: Any, *, reduction: str = "mean") -> Any:
    """The logarithm of one plus exp(-target x), for targets of 1 and -1.

    As PyTorch's it is infinite where the tensor's format holds no such exponential.
    """
    power = as_tensor("soft_margin_loss", -target * x)
    largest = math.log(power.handle.value.dtype.max)
    each = f.where(f.greater(power, largest), math.inf, _softplus(power))
    return reduced("soft_margin_loss", each, reduction)


def gaussian_nll_loss(
    x: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """Minus the logarithm of a normal density, without its constant unless `full`."""
    varies = hasattr(var, "ndim")
    if not varies:
        _require_number("gaussian_nll_loss", "var", var, fits=var >= 0)
    elif var.ndim == x.ndim - 1 and tuple(var.shape) == tuple(x.shape)[:-1]:
        var = var.unsqueeze(-1)
    var = f.maximum(var, eps) if varies else max(var, eps)
    log = f.log(var) if varies else math.log(var)
    each = 0.5 * (log + f.square(x - target) / var)
    if full:
        each = each + 0.5 * math.log(2 * math.pi)
    return reduced("gaussian_nll_loss", each, reduction)


def poisson_nll_loss(
    x: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Any:
    """Minus the logarithm of a Poisson density, its factorial by Stirling if `full`."""
    each = f.exp(x) - target * x if log_input else x - target * f.log(x + eps)
    if full:
        more = f.maximum(target, 1)
        log = f.log(more)
        rest = more * log - more + 0.5 * (log + math.log(2 * math.pi))
        each = each + f.where(f.greater(target, 1), rest, 0.0)
    return reduced("poisson_nll_loss", each, reduction)


# -- Of distances ----------------------------------------------------------------------


def pairwise_distance(
    x: Any, y: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    """The norm of the difference, plus eps, along the last axis."""
    return c.vector_norm(x - y + eps, p, -1, keepdim)


def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    *,
    reduction: str = "mean",
) -> Any:
    """By how much the negative is not farther off than the positive and a margin."""

    def distance(x: Any, y: Any) -> Any:
        return pairwise_distance(x, y, p, eps)

    return triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=distance,
        margin=margin,
        swap=swap,
        reduction=reduction,
    )


def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Callable[[Any, Any], Any] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """The same by a distance of one's own."""
    _require_number("triplet_margin_loss", "margin", margin, fits=margin > 0)
    _require_one_rank("triplet_margin_loss", anchor, positive, negative)
    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = f.minimum(far, distance(positive, negative))
    return reduced("triplet_margin_loss", f.maximum(near - far + margin, 0), reduction)


def _require_one_rank(what: str, *tensors: Any) -> None:
    if len({t.ndim for t in tensors}) > 1:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise ShapeError.here(f"{what} of {shapes}; expected as many axes each")


def margin_ranking_loss(
    x: Any, y: Any, target: Any, margin: float = 0, *, reduction: str = "mean"
) -> Any:
    """By how much x is not above y (target 1), or below it (-1), by a margin."""
    _require_one_rank("margin_ranking_loss", x, y, target)
    # In this order, which counts of integers without a sign.
    each = f.maximum(-target * (x - y) + float(margin), 0)
    return reduced("margin_ranking_loss", each, reduction)


def hinge_embedding_loss(
    x: Any, target: Any, margin: float = 1.0, *, reduction: str = "mean"
) -> Any:
    """X where the target is 1; where it is -1, by how much x is below a margin."""
    far = f.where(f.equal(target, 1), 0.0, f.maximum(margin - x, 0))
    each = far + f.where(f.equal(target, -1), 0.0, x)
    return reduced("hinge_embedding_loss", each, reduction)


_LEAST_SQUARE = 1e-12


def cosine_embedding_loss(
    x: Any, y: Any, target: Any, margin: float = 0, *, reduction: str = "mean"
) -> Any:
    """One less the cosine (target 1), or by how much it is above a margin (-1)."""
    sizes = (f.sum(f.square(t), -1) + _LEAST_SQUARE for t in (x, y))
    cosine = f.sum(x * y, -1) / f.sqrt(f.mul(*sizes))
    far = f.where(f.equal(target, -1), f.maximum(cosine - margin, 0), 0.0)
    each = far + f.where(f.equal(target, 1), 1 - cosine, 0.0)
    return reduced("cosine_embedding_loss", each, reduction)


def cosine_similarity(x: Any, y: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """The product along an axis over both norms, which count as eps at least.

    As in PyTorch each is divided by its norm first, and squares are those of f32: the
    product of two that are long may be beyond their format.
    """
    x, y = f.as_tensor("cosine_similarity", x), f.as_tensor("cosine_similarity", y)
    if not (f.is_float(x) or f.is_float(y)):
        raise DTypeError.here(
            "cosine_similarity of tensors without fractions; PyTorch has it of floats: "
            "convert one of them first, as with .float()"
        )
    # Norms are of the shape that both have: an axis may be as long in one alone.
    directions = [_direction(t, dim, eps) for t in broadcast_tensors(x, y)]
    found = f.sum(f.mul(*directions), dim)
    return found.to(promote(x.handle.value.dtype, y.handle.value.dtype).long_name)


def _direction(x: Any, dim: int, eps: float) -> Any:
    """A tensor over its norm along an axis, in f32 or more."""
    x = x.to(promote(x.handle.value.dtype, f32).long_name)
    return x / f.maximum(c.norm(x, dim, keepdims=True), eps)


LOSSES: Mapping[str, Function] = {
    **named(cosine_similarity, pairwise_distance),
    **named(cosine_embedding_loss, hinge_embedding_loss, margin_ranking_loss),
    **named(huber_loss, l1_loss, mse_loss, smooth_l1_loss),
    **named(binary_cross_entropy, binary_cross_entropy_with_logits, kl_div),
    **named(gaussian_nll_loss, poisson_nll_loss),
    **named(multilabel_soft_margin_loss, soft_margin_loss),
    **named(triplet_margin_loss, triplet_margin_with_distance_loss),
}
"""By PyTorch's names."""
