"""NumPy's and PyTorch's functions on symbolic tensors.

Both libraries hand a call with a symbolic argument to that argument.  The tables map
their names to ours; only where the arguments differ there is an adapter.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NoReturn

from mirage_dsl.errors import TraceError, UnsupportedError
from mirage_dsl.frontend import composites as c
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import torch_functions
from mirage_dsl.frontend import views as v
from mirage_dsl.frontend.conditions import LOGICAL
from mirage_dsl.frontend.eager import is_array
from mirage_dsl.frontend.einsum import einsum
from mirage_dsl.frontend.location import user_location
from mirage_dsl.frontend.namespace import NAMES, function_named
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.frontend.tree import leaves_of
from mirage_dsl.types import f32

Function = Callable[..., Any]

LIKENESS = 0.8
"""Of two names, above which one may be a slip of the other."""

_SAME = (
    "exp exp2 log sqrt rsqrt square abs neg relu silu sigmoid tanh erf gelu maximum "
    "minimum add sub mul div pow clamp clip where sum mean max min amax amin matmul "
    "linear concat concatenate cat stack transpose permute swapaxes reshape "
    "expand_dims unsqueeze squeeze flatten unflatten expand broadcast_to "
    "repeat_interleave narrow chunk unbind less less_equal greater greater_equal equal "
    "not_equal reciprocal masked_fill"
)


def _moveaxis(x: Any, source: int, destination: int) -> Any:
    order = [i for i in range(x.ndim) if i != source % x.ndim]
    order.insert(destination % x.ndim, source % x.ndim)
    return v.permute(x, order)


def _outer(a: Any, b: Any) -> Any:
    return v.expand_dims(a, 1) * v.expand_dims(b, 0)


def _reversed(x: Any) -> Any:
    return x.T


def _matrix_transpose(x: Any) -> Any:
    return x.mT


def _subtracted_from(x: Any, other: Any) -> Any:
    return other - x


def _dot(x: Any, y: Any) -> Any:
    if getattr(y, "ndim", 0) > 2:
        _refuse("dot by a tensor of rank 3 or more", "use matmul or einsum")
    return f.matmul(x, y)


def _shape(x: Any) -> Any:
    return x.shape


def _rank(x: Any) -> int:
    return x.ndim


_COMMON: dict[str, Function] = {
    **LOGICAL,
    **{name: function_named(name) for name in _SAME.split()},
    "absolute": f.abs,
    "negative": f.neg,
    "subtract": f.sub,
    "multiply": f.mul,
    "divide": f.div,
    "true_divide": f.div,
    "power": f.pow,
    "mm": f.matmul,
    "bmm": f.matmul,
    "dot": _dot,
    "einsum": einsum,
    "softmax": c.softmax,
    "ravel": v.flatten,
    "moveaxis": _moveaxis,
    "movedim": _moveaxis,
    "mv": f.matmul,
    "outer": _outer,
    "swapdims": v.swapaxes,
    "swap_axes": v.swapaxes,
    "t": _reversed,
    "numpy_T": _reversed,
}


def _without_flags(function: Function, **ignored: Any) -> Function:
    """An adapter that takes PyTorch's flags where they ask for the default."""

    def adapted(*args: Any, **kwargs: Any) -> Any:
        for name, default in ignored.items():
            if kwargs.pop(name, default) not in (default, None):
                _refuse(f"{function.__name__}({name}=...)", "leave it at its default")
        return function(*args, **kwargs)

    return adapted


def _torch_softmax(
    x: Any, dim: Any = None, third: Any = None, dtype: Any = None
) -> Any:
    axis, dtype = torch_functions.softmax_arguments(x, dim, third, dtype)
    return c.softmax(x, axis, dtype=dtype)


def _torch_rms_norm(
    x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    # PyTorch's default is the epsilon of the dtype that it computes in.
    eps = f32.epsilon if eps is None else eps
    return c.rms_norm(x, weight, eps=eps, normalized_shape=normalized_shape)


def _torch_layer_norm(
    x: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    return c.layer_norm(x, weight, bias, eps, normalized_shape=normalized_shape)


def _torch_group_norm(
    x: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    return c.group_norm(x, num_groups, weight, bias, eps)


def _torch_batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    _momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
    **__: Any,
) -> Any:
    if training:
        running_mean = running_var = None
    return c.batch_norm(x, running_mean, running_var, weight, bias, eps)


def _torch_addmm(bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = f.matmul(a, b)
    scaled = product if alpha == 1 else product * alpha
    return scaled + (bias if beta == 1 else bias * beta)


def _torch_max(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return x.max(dim=dim, keepdim=keepdim) if isinstance(dim, int) else f.max(x, dim)


def _torch_min(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return x.min(dim=dim, keepdim=keepdim) if isinstance(dim, int) else f.min(x, dim)


def _torch_var(x: Any, dim: Any = None, unbiased: Any = True, **kwargs: Any) -> Any:
    correction = kwargs.pop("correction", int(unbiased))
    return c.var(x, dim, correction=correction, **kwargs)


def _torch_std(x: Any, dim: Any = None, unbiased: Any = True, **kwargs: Any) -> Any:
    return f.sqrt(_torch_var(x, dim, unbiased, **kwargs))


def _torch_transpose(x: Any, dim0: int, dim1: int) -> Any:
    return v.swapaxes(x, dim0, dim1)


_TORCH: dict[str, Function] = {
    **_COMMON,
    **torch_functions.FUNCTIONS,
    "softmax": _torch_softmax,
    "rms_norm": _torch_rms_norm,
    "layer_norm": _torch_layer_norm,
    "group_norm": _torch_group_norm,
    "batch_norm": _torch_batch_norm,
    "scaled_dot_product_attention": c.scaled_dot_product_attention,
    "addmm": _torch_addmm,
    "baddbmm": _torch_addmm,
    "max": _torch_max,
    "min": _torch_min,
    "var": _torch_var,
    "std": _torch_std,
    "split": v.split,
    "transpose": _torch_transpose,
    "relu": _without_flags(f.relu, inplace=False),
    "silu": _without_flags(f.silu, inplace=False),
    "lt": f.less,
    "le": f.less_equal,
    "gt": f.greater,
    "ge": f.greater_equal,
    "eq": f.equal,
    "ne": f.not_equal,
    "rsub": _subtracted_from,
}


def _numpy_split(x: Any, parts: Any, axis: int = 0) -> Any:
    """NumPy's: into so many equal parts, or at the given indices."""
    extent = int(x.shape[axis])
    if isinstance(parts, int):
        if extent % parts:
            _refuse(f"np.split of {extent} into {parts}", "use sizes that divide")
        return v.split(x, extent // parts, axis)
    bounds: list[int] = [0, *parts, extent]
    sizes = [b - a for a, b in pairwise(bounds)]
    return v.split(x, sizes, axis)


def _numpy_transpose(x: Any, axes: Any = None) -> Any:
    return x.T if axes is None else v.permute(x, axes)


def _numpy_norm(
    x: Any, order: Any = None, axis: Any = None, keepdims: bool = False
) -> Any:
    what = f"np.linalg.norm of order {order}"
    return c.euclidean(what, x, order, axis, keepdims, matrices=True)


_NUMPY: dict[str, Function] = {
    **_COMMON,
    "split": _numpy_split,
    "array_split": _numpy_split,
    "transpose": _numpy_transpose,
    "permute_dims": _numpy_transpose,
    "matrix_transpose": _matrix_transpose,
    "var": c.var,
    "std": c.std,
    "repeat": v.repeat_interleave,
    "norm": _numpy_norm,
    "shape": _shape,
    "ndim": _rank,
}

_REDUCTIONS: dict[str, Function] = {"add": f.sum, "maximum": f.max, "minimum": f.min}
_OTHER_ORDER = ("batch_norm",)
"""Functions whose arguments come in another order in `torch` itself."""
_SILENT = ("out", "size_average", "reduce", "weight", "_stacklevel")
"""Arguments that PyTorch's own functions pass on, with these values, to say nothing."""

_KEEP_DTYPE = ("dtype", "casting", "order", "subok", "where", "out", "initial")


def call_ufunc(
    ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """A NumPy ufunc, or its `reduce`."""
    name = str(ufunc.__name__)
    if method == "reduce" and name in _REDUCTIONS:
        axis = kwargs.get("axis", 0)
        keep = bool(kwargs.get("keepdims", False))
        return _REDUCTIONS[name](inputs[0], axis, keep)
    if method != "__call__":
        _refuse(f"np.{name}.{method}", "use the functions of mirage")
    return _dispatch(_NUMPY, "np", name, inputs, _plain(kwargs))


def call_numpy(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A NumPy function."""
    return _dispatch(_NUMPY, "np", str(function.__name__), args, _plain(kwargs))


def call_torch(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A PyTorch function or method."""
    name = str(getattr(function, "__name__", function))
    if name.endswith("_") and not name.endswith("__"):
        _refuse(f"torch.{name}, which changes its argument", f"use {name[:-1]}")
    if name in _OTHER_ORDER and function.__module__ != "torch.nn.functional":
        _refuse(f"torch.{name}", f"use torch.nn.functional.{name}")
    told = {
        n: v
        for n, v in kwargs.items()
        if not (n in _SILENT and (v is None or n == "_stacklevel"))
    }
    return _dispatch(_TORCH, "torch", name.strip("_"), args, told)


def torch_method(name: str) -> Function | None:
    """What a method of PyTorch's tensors computes, where we know it as a function."""
    return _TORCH.get(name)


def _plain(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords without those of NumPy that say nothing."""
    return {
        name: value
        for name, value in kwargs.items()
        if not (name in _KEEP_DTYPE and (value is None or value is True))
        and type(value).__name__ != "_NoValueType"
    }


def _dispatch(
    table: Mapping[str, Function],
    library: str,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    _refuse_constants(library, name, (args, kwargs))
    function = table.get(name)
    if function is None:
        close = difflib.get_close_matches(name, table, n=1, cutoff=LIKENESS)
        advice = f"did you mean {close[0]}? Or " if close else ""
        _refuse(f"{library}.{name}", f"{advice}build it from those of mirage.functions")
    return called(f"{library}.{name}", function, *args, **kwargs)


def called(what: str, function: Function, *args: Any, **kwargs: Any) -> Any:
    """What a function returns; arguments that it does not know are our lack.

    Raises:
        UnsupportedError: It takes no such arguments.
    """
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", "")
        advice = f"; see mirage.{name}" if name in NAMES else ""
        raise UnsupportedError(
            f"{what} with these arguments is not supported ({error}){advice}",
            user_location(),
        ) from error


def _refuse_constants(library: str, name: str, arguments: object) -> None:
    for leaf in leaves_of(arguments):
        if not isinstance(leaf, Tensor) and is_array(leaf):
            kind = leaf.__class__
            raise TraceError(
                f"{library}.{name} with a {kind.__module__.partition('.')[0]} "
                f"{kind.__name__} of shape {tuple(leaf.shape)} that is no argument of "
                "the function; pass it as an argument, so that its values are not "
                "frozen into the program",
                user_location(),
            )


def _refuse(what: str, advice: str) -> NoReturn:
    raise UnsupportedError(f"{what} cannot be traced; {advice}", user_location())
