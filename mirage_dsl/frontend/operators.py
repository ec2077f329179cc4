"""PyTorch's operators, `torch.ops.aten`, that differ from its functions of their name.

Exported modules call operators.  All others are the functions of `torch`, or the
methods of tensors, that are called as they are, with the same arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import f32, f64
from mirage_dsl.frontend import composites as c
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function, is_sequence
from mirage_dsl.frontend.drawn import unknown
from mirage_dsl.frontend.elementary import expm1
from mirage_dsl.frontend.functions import formulas
from mirage_dsl.frontend.layers import WINDOWS, interpolate
from mirage_dsl.frontend.namespace import function_named
from mirage_dsl.frontend.rearranging import pad
from mirage_dsl.frontend.recorder import normal_axis
from mirage_dsl.frontend.tensor import refused
from mirage_dsl.frontend.torch_functions import elu


def operator_of(function: Any) -> tuple[str, str] | None:
    """The namespace and the name of an operator of PyTorch's; None of what is none."""
    packet = getattr(function, "overloadpacket", function)
    known = getattr(packet, "_qualified_op_name", None)
    if not isinstance(known, str):
        return None
    namespace, _, name = known.partition("::")
    return namespace, name


def _slice(
    x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """A slice of one axis; an end beyond all is that of the axis."""
    at = normal_axis(dim, x.ndim, "slice")
    whole = isinstance(end, int) and end >= _BEYOND
    part = slice(start or None, None if whole else end, step)
    return x[(*(slice(None),) * at, part)]


_BEYOND = 2**63 - 1


def _to_copy(x: Any, *, dtype: Any = None, **options: Any) -> Any:
    """A copy in another format, if one is told."""
    told = {n: options[n] for n in ("device", "memory_format") if options.get(n)}
    return x.to(dtype=dtype or x.dtype, copy=True, **told)


def _asserted(*_: Any, **__: Any) -> None:
    """What is asserted of a tensor is so for what the module was exported with."""


def _convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """Any of the convolutions."""
    rank = weight.ndim - 2
    if transposed:
        told = (stride, padding, output_padding, groups, dilation)
        return WINDOWS[f"conv_transpose{rank}d"](x, weight, bias, *told)
    told = (stride, padding, dilation, groups)
    return WINDOWS[f"conv{rank}d"](x, weight, bias, *told)


def _over(name: str) -> Function:
    """A reduction over axes, of which none are all."""
    function = function_named(name)

    def reduced(x: Any, dim: Any = None, *rest: Any, **told: Any) -> Any:
        return function(x, None if dim == [] else dim, *rest, **told)

    return reduced


# -- Norms, with what they compute first -----------------------------------------------


def _native_layer_norm(
    x: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Any, Any, Any]:
    found = c.layer_norm(x, weight, bias, eps, normalized_shape=normalized_shape)
    over = tuple(range(-len(normalized_shape), 0))
    return f.astype(found, x.dtype), *_statistics(x, over, eps, keepdims=True)


def _native_group_norm(
    x: Any,
    weight: Any,
    bias: Any,
    rows: int,
    channels: int,
    pixels: int,
    group: int,
    eps: float,
) -> tuple[Any, Any, Any]:
    groups = f.reshape(x, (rows, group, channels // group * pixels))
    found = c.group_norm(x, group, weight, bias, eps)
    return f.astype(found, x.dtype), *_statistics(groups, -1, eps, keepdims=False)


def _statistics(x: Any, over: Any, eps: float, *, keepdims: bool) -> tuple[Any, Any]:
    """The means, and one over the deviations."""
    if x.handle.value.dtype not in (f32, f64):
        found = unknown(
            f"a statistic of a norm of {x.dtype}",
            "compute it, in the dtype that it is to have",
            "the dtype depends on the device",
        )
        return found, found
    mean = f.mean(x, over, keepdims)
    return mean, f.rsqrt(c.var(x, over, keepdims=keepdims) + eps)


def _norm_of_statistics(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
) -> tuple[Any, Any, Any]:
    """Batch norm in evaluation, and two tensors for gradients."""
    del momentum
    found = c.batch_norm(x, running_mean, running_var, weight, bias, eps)
    kept = unknown("what batch norm keeps for gradients", "call batch_norm")
    return f.astype(found, x.dtype), kept, kept


# -- Planes ----------------------------------------------------------------------------


def _upsampled(mode: str, corners: bool, antialias: bool) -> Function:
    """One of the modes of `interpolate`."""

    def upsampled(x: Any, output_size: Any, *told: Any) -> Any:
        aligned, *factors = told if corners else (None, *told)
        given = [factor for factor in factors if factor is not None]
        if given and not is_sequence(given[0]):
            raise UnsupportedError.here(
                f"an operator that interpolates to a size with factors {given}; call "
                "torch.nn.functional.interpolate with one of the two"
            )
        scale = given[0] if given else None
        return interpolate(
            x, output_size, scale, mode, aligned or None, antialias=antialias
        )

    return upsampled


_MODES: Mapping[str, tuple[str, bool, bool]] = {
    **{f"upsample_nearest{n}d": ("nearest", False, False) for n in (1, 2, 3)},
    **{
        f"_upsample_nearest_exact{n}d": ("nearest-exact", False, False)
        for n in (1, 2, 3)
    },
    "upsample_linear1d": ("linear", True, False),
    "upsample_bilinear2d": ("bilinear", True, False),
    "upsample_bicubic2d": ("bicubic", True, False),
    "upsample_trilinear3d": ("trilinear", True, False),
    "_upsample_bilinear2d_aa": ("bilinear", True, True),
    "_upsample_bicubic2d_aa": ("bicubic", True, True),
}
"""Of each operator the mode, and whether it is told of corners and averages."""
_PADDED = {"reflection_pad": "reflect", "replication_pad": "replicate"}


def _padded(mode: str) -> Function:
    def padded(x: Any, padding: Sequence[int]) -> Any:
        return pad(x, padding, mode)

    return padded


# -- Activations -----------------------------------------------------------------------


def _elu(x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    """PyTorch's elu, of which selu and celu are made."""
    if scale == input_scale == 1:
        return elu(x, alpha)
    below = alpha * scale * expm1(f.minimum(x, 0) * input_scale)
    return f.where(f.greater(x, 0), x * scale, below)


def _safe_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    """Softmax that is 0 where all is masked."""
    masked = f.equal(f.max(x, dim, True), -math.inf)
    return f.where(masked, 0, c.softmax(x, dim, dtype=dtype))


_ELSEWHERE = "_ctc_loss embedding_bag max_unpool2d max_unpool3d"

OF_ATEN: Mapping[str, Function] = {
    "_assert_tensor_metadata": _asserted,
    "_native_batch_norm_legit_no_training": _norm_of_statistics,
    "_safe_softmax": _safe_softmax,
    "_to_copy": _to_copy,
    **formulas(
        _unsafe_view=lambda x, size: x.view(*size),
        index=lambda x, indices: x[
            tuple(slice(None) if i is None else i for i in indices)
        ],
        mT=lambda x: x.mT,
    ),
    "adaptive_max_pool2d": WINDOWS["adaptive_max_pool2d_with_indices"],
    "adaptive_max_pool3d": WINDOWS["adaptive_max_pool3d_with_indices"],
    "convolution": _convolution,
    "elu": _elu,
    "native_group_norm": _native_group_norm,
    "native_layer_norm": _native_layer_norm,
    "slice": _slice,
    **{name: _upsampled(*mode) for name, mode in _MODES.items()},
    **{f"{name}{n}d": _padded(m) for name, m in _PADDED.items() for n in (1, 2, 3)},
    **{name: _over(name) for name in ("amax", "amin", "mean", "sum")},
    **{
        name: refused(
            f"torch.ops.aten.{name}, whose arguments or results are others than those "
            "of the function,",
            "call the function of torch.nn.functional",
        )
        for name in _ELSEWHERE.split()
    },
}
"""By their names in `torch.ops.aten`."""
