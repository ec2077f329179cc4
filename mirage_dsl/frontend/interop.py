"""NumPy's and PyTorch's functions on symbolic tensors.

Both libraries hand a call with a symbolic argument to that argument.  The tables map
their names to ours; only where the arguments differ there is an adapter.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np

from mirage_dsl.core.errors import (
    FOREIGN,
    TraceError,
    UnsupportedError,
    inside,
    is_misuse,
    misuse,
)
from mirage_dsl.core.modes import autocast_refusal, in_autocast
from mirage_dsl.core.types import f32
from mirage_dsl.frontend import composites as c
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import torch_functions
from mirage_dsl.frontend.arguments import Function, is_array, kept_back, leaves_of
from mirage_dsl.frontend.complex_numbers import (
    COMPLEX_OF_REAL,
    Complex,
    of_complex,
)
from mirage_dsl.frontend.composites import (
    MATRICES,
    NUMPYS_MATRICES,
    PYTORCHS_MATRICES,
    einsum,
    outer,
)
from mirage_dsl.frontend.constructors import (
    NUMPY_CONSTRUCTORS,
    TRIANGLES,
    of_arrays,
)
from mirage_dsl.frontend.elementary import ELEMENTARY, PYTORCH_ONLY, numpy_sign
from mirage_dsl.frontend.functions import formulas, is_condition
from mirage_dsl.frontend.inplace import function_in_place, into, write
from mirage_dsl.frontend.labels import LABELS
from mirage_dsl.frontend.layers import RECURRENT, WINDOWS, im2col
from mirage_dsl.frontend.linear_algebra import (
    LINEAR_ALGEBRA,
    NUMPYS_LINEAR_ALGEBRA,
    norm_named,
)
from mirage_dsl.frontend.namespace import LOGICAL, function_named
from mirage_dsl.frontend.numpy_functions import (
    ACCUMULATIONS,
    CHANGING,
    OF_NUMPY_ALONE,
    at_places,
    put,
    refuse_array,
    where_it_holds,
)
from mirage_dsl.frontend.numpy_functions import (
    outer as outer_of,
)
from mirage_dsl.frontend.numpy_series import as_array
from mirage_dsl.frontend.operators import OF_ATEN, operator_of
from mirage_dsl.frontend.places import PLACING
from mirage_dsl.frontend.quantizing import QUANTIZING
from mirage_dsl.frontend.rearranging import (
    NUMPY_SELECTIONS,
    OF_NUMPY,
    OF_PYTORCH,
    REARRANGING,
    SELECTIONS,
)
from mirage_dsl.frontend.recorder import (
    RECORDING,
    flat_arguments,
    normal_axes,
    normal_axis,
)
from mirage_dsl.frontend.special import OF_EACH
from mirage_dsl.frontend.tensor import (
    AS_STRIDED,
    LIKENESS,
    NO_ASSERTIONS,
    NO_NESTED,
    NO_NUMBERS,
    NO_RANDOM,
    NOT_ALL_TRUE,
    OF_ALL_TRUE,
    OF_ASSERTIONS,
    OF_NESTED,
    OF_NO_NUMBERS,
    RANDOM,
    Tensor,
    of_pytorchs_class,
    refuse,
    refused,
)

_SAME = (
    "exp exp2 log sqrt rsqrt square abs neg relu silu sigmoid tanh erf gelu maximum "
    "minimum add sub mul div pow clamp clip where sum mean prod cumsum cumprod "
    "argmax argmin max min amax amin "
    "matmul linear concat concatenate cat stack transpose permute swapaxes reshape "
    "expand_dims unsqueeze squeeze flatten unflatten expand broadcast_to "
    "repeat_interleave narrow chunk unbind less less_equal greater greater_equal equal "
    "not_equal reciprocal masked_fill bitwise_and bitwise_or bitwise_xor bitwise_not"
)


def _moveaxis(x: Any, source: Any, destination: Any) -> Any:
    starts = normal_axes(source, x.ndim, "moveaxis")
    ends = normal_axes(destination, x.ndim, "moveaxis")
    order = [i for i in range(x.ndim) if i not in starts]
    for end, start in sorted(zip(ends, starts, strict=True)):
        order.insert(end, start)
    return f.permute(x, order)


def _subtracted_from(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    return other - (x if alpha == 1 else x * alpha)


def _dot(x: Any, y: Any) -> Any:
    if getattr(y, "ndim", 0) > 2:
        refuse("dot by a tensor of rank 3 or more", "use matmul or einsum")
    return f.matmul(x, y)


def _itself(x: Any) -> Any:
    """What a function of complex numbers does to real ones."""
    return x


_COMMON: dict[str, Function] = {
    **LOGICAL,
    **{name: function_named(name) for name in _SAME.split()},
    **ELEMENTARY,
    **MATRICES,
    **REARRANGING,
    "absolute": f.abs,
    "negative": f.neg,
    "subtract": f.sub,
    "multiply": f.mul,
    "true_divide": f.div,
    "power": f.pow,
    **formulas(
        adjoint=lambda x: x.mT,
        numpy_T=lambda x: x.T,
        ravel=lambda x: x.ravel(),
        t=lambda x: x.t(),
    ),
    "conj": _itself,
    "conj_physical": _itself,
    "mm": f.matmul,
    "bmm": f.matmul,
    "dot": _dot,
    "einsum": einsum,
    "softmax": c.softmax,
    "moveaxis": _moveaxis,
    "movedim": _moveaxis,
    "mv": f.matmul,
    "outer": outer,
    "ger": outer,
    "swapdims": f.swapaxes,
    "swap_axes": f.swapaxes,
}


def _torch_rms_norm(
    x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    # PyTorch's default is the epsilon of the dtype that it computes in.
    eps = f32.epsilon if eps is None else eps
    found = c.rms_norm(x, weight, eps=eps, normalized_shape=normalized_shape)
    return f.astype(found, x.dtype)


def _torch_layer_norm(
    x: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    del cudnn_enable
    _check_parameters("layer_norm", x, weight, bias)
    found = c.layer_norm(x, weight, bias, eps, normalized_shape=normalized_shape)
    return f.astype(found, x.dtype)


def _torch_group_norm(
    x: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    del cudnn_enabled
    _check_parameters("group_norm", x, weight, bias)
    return f.astype(c.group_norm(x, num_groups, weight, bias, eps), x.dtype)


def _torch_batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    del momentum
    given = [t for t in (running_mean, running_var) if t is not None]
    if training and given:
        refuse(
            "batch_norm(training=True) with running statistics, which PyTorch updates "
            "in place,",
            "pass running_mean=None and running_var=None to normalise by the batch, "
            "and update them outside of the kernel",
        )
    if not training and len(given) < 2:
        refuse(
            "batch_norm(training=False) without running_mean and running_var",
            "pass both, or training=True to normalise by the batch",
        )
    _check_parameters("batch_norm", x, running_mean, running_var, weight, bias)
    found = c.batch_norm(x, running_mean, running_var, weight, bias, eps)
    return f.astype(found, x.dtype)


def _torch_instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if not use_input_stats:
        return _torch_batch_norm(
            x, running_mean, running_var, weight, bias, False, momentum, eps
        )
    if running_mean is not None or running_var is not None:
        refuse(
            "instance_norm with running statistics, which PyTorch updates in place,",
            "leave them out, and update them outside of the kernel",
        )
    _check_parameters("instance_norm", x, weight, bias)
    return f.astype(c.instance_norm(x, weight, bias, eps), x.dtype)


def _check_parameters(name: str, x: Any, *parameters: Any) -> None:
    """Refuse parameters of a norm in other dtypes than PyTorch takes.

    Raises:
        TraceError: They are neither all of the tensor's dtype nor all f32.
    """
    found = {p.handle.value.dtype for p in parameters if isinstance(p, Tensor)}
    if found - {x.handle.value.dtype} and found != {f32}:
        _refuse_mixture(name, [x, *parameters])


def _refuse_mixture(name: str, tensors: Sequence[Any]) -> NoReturn:
    traced = (t.handle for t in tensors if isinstance(t, Tensor))
    found = [x.value.dtype.long_name for x in traced]
    raise TraceError.here(
        f"torch.{name} of tensors in {', '.join(found)}: PyTorch takes one dtype "
        "there; convert them, as in x.to(w.dtype)"
    )


def _of_one_dtype(function: Function, name: str, count: int) -> Function:
    """A function whose first so many arguments PyTorch wants in one dtype."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters)[:count]

    def checked(*args: Any, **kwargs: Any) -> Any:
        named = [kwargs[p] for p in parameters[len(args) :] if p in kwargs]
        tensors = [t for t in (*args[:count], *named) if isinstance(t, Tensor)]
        if len({t.dtype for t in tensors}) > 1:
            _refuse_mixture(name, tensors)
        return inside(function)(*args, **kwargs)

    vars(checked)["__signature__"] = signature
    return checked


def _numpy_einsum(subscripts: Any, *operands: Any, optimize: Any = None) -> Any:
    """NumPy's, whose order of products we choose ourselves."""
    del optimize
    if not isinstance(subscripts, str):
        refuse("np.einsum of lists of numbers", "write the subscripts as text")
    return einsum(subscripts, *operands)


def _torch_einsum(equation: Any, *operands: Any) -> Any:
    """PyTorch promotes where nothing is summed of two operands, and nowhere else."""
    given = flat_arguments(operands)
    left, arrow, kept = str(equation).partition("->")
    terms = [set(term) for term in left.split(",")]
    shared = [c for c in set(left) if sum(c in term for term in terms) > 1]
    summed = [c for c in shared if c.isalpha() and not (arrow and c in kept)]
    dtypes = {t.dtype for t in given if isinstance(t, Tensor)}
    if summed and len(dtypes) > 1:
        _refuse_mixture("einsum", given)
    return einsum(equation, *operands)


def _torch_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **options: Any
) -> Any:
    """PyTorch's attention: a mask may be f32, and does not promote the result."""
    known = is_condition(attn_mask) or not isinstance(attn_mask, Tensor)
    mixed = not known and attn_mask.dtype not in (query.dtype, f32)
    if mixed:
        _refuse_mixture("scaled_dot_product_attention", (query, key, value, attn_mask))
    return c.scaled_dot_product_attention(
        query, key, value, attn_mask, *args, **options
    )


def _torch_index_select(x: Any, dim: Any, index: Any) -> Any:
    """PyTorch's index is a vector; a single position is one of one element."""
    if isinstance(index, Tensor) and index.ndim > 1:
        refuse("index_select by an index of several axes", "flatten it first")
    single = isinstance(index, Tensor) and not index.ndim
    index = f.none_below_zero(index, x, dim)
    return f.index_select(x, dim, index[None] if single else index)


def _copied(x: Any, *, memory_format: Any = None) -> Any:
    return x.clone(memory_format=memory_format)


def _copying(name: str) -> Function:
    """A function whose results are copies of what another one gives as views."""

    def copied(*args: Any, **kwargs: Any) -> Any:
        found = _TORCH[name](*args, **kwargs)
        if isinstance(found, Tensor):
            return found.clone()
        return tuple(part.clone() for part in found)

    return copied


_COPIED = (
    "alias detach diagonal expand narrow permute select split split_with_sizes squeeze "
    "t transpose unbind unfold unsqueeze view"
)
"""Views of which PyTorch has functions that copy."""


def _taken(x: Any, indices: Any, dim: Any = None) -> Any:
    """PyTorch's `take_along_dim`, of all elements where there is no axis."""
    if dim is None:
        return f.take_along_dim(f.reshape(x, -1), f.reshape(indices, -1), 0)
    return f.take_along_dim(x, indices, dim)


def _converting(long_name: str) -> Function:
    """PyTorch's method that gives a tensor in another format."""

    def converted(x: Any, memory_format: Any = None) -> Any:
        return x.to(long_name, memory_format=memory_format)

    return converted


_CONVERTING = {
    "char": "int8",
    "byte": "uint8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "bool": "bool",
    "half": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "double": "float64",
}

_TORCH: dict[str, Function] = {
    **_COMMON,
    **PYTORCH_ONLY,
    **OF_EACH,
    **OF_PYTORCH,
    **PYTORCHS_MATRICES,
    **LINEAR_ALGEBRA,
    **PLACING,
    **TRIANGLES,
    **{name: _converting(dtype) for name, dtype in _CONVERTING.items()},
    "clone": _copied,
    "resolve_conj": _itself,
    "resolve_neg": _itself,
    **torch_functions.FUNCTIONS,
    **LABELS,
    **QUANTIZING,
    "rms_norm": _torch_rms_norm,
    "layer_norm": _torch_layer_norm,
    "group_norm": _torch_group_norm,
    "batch_norm": _torch_batch_norm,
    "instance_norm": _torch_instance_norm,
    "einsum": _torch_einsum,
    "scaled_dot_product_attention": _of_one_dtype(
        _torch_attention, "scaled_dot_product_attention", 3
    ),
    **{
        name: _of_one_dtype(PYTORCHS_MATRICES[name], name, 3)
        for name in ("addmm", "baddbmm", "bilinear")
    },
    "linear": _of_one_dtype(f.linear, "linear", 3),
    **{
        name: _of_one_dtype(_COMMON[name], name, 2)
        for name in ("matmul", "mm", "bmm", "mv", "dot")
    },
    **SELECTIONS,
    **COMPLEX_OF_REAL,
    **RECURRENT,
    **{
        name: _of_one_dtype(function, name, 3) if "conv" in name else function
        for name, function in WINDOWS.items()
    },
    "adaptive_max_pool1d": WINDOWS["adaptive_max_pool1d_with_indices"],
    "lerp": _of_one_dtype(torch_functions.lerp, "lerp", 3),
    "prelu": _of_one_dtype(torch_functions.FUNCTIONS["prelu"], "prelu", 2),
    "split": f.split,
    "bitwise_left_shift": f.shift_left,
    "bitwise_right_shift": f.shift_right,
    "index_select": _torch_index_select,
    "take_along_dim": _taken,
    "lt": f.less,
    "le": f.less_equal,
    "gt": f.greater,
    "ge": f.greater_equal,
    "eq": f.equal,
    "ne": f.not_equal,
    "real": _itself,
    "rsub": _subtracted_from,
    **{
        name: refused(
            f"torch.{name}, of which the truth is asked,", "compare with == or <"
        )
        for name in ("allclose", "equal")
    },
    **{f"{name}_copy": _copying(name) for name in _COPIED.split()},
    "alias": _itself,
    **formulas(
        gather=lambda x, dim, index: f.gather(x, dim, f.none_below_zero(index, x, dim)),
        max=lambda x, dim=None, keepdim=False: (
            x.max(dim=dim, keepdim=keepdim) if isinstance(dim, int) else f.max(x, dim)
        ),
        min=lambda x, dim=None, keepdim=False: (
            x.min(dim=dim, keepdim=keepdim) if isinstance(dim, int) else f.min(x, dim)
        ),
        transpose=lambda x, dim0, dim1: f.swapaxes(x, dim0, dim1),
        detach=lambda x: x.detach(),
        msort=lambda x: SELECTIONS["sort"](x, 0)[0],
    ),
    "view": f.reshape,
}


METHODS = frozenset(_TORCH)
"""Those of a traced tensor that are functions of it, by PyTorch's names."""


def _numpy_split(x: Any, parts: Any, axis: int = 0) -> Any:
    """NumPy's: into so many equal parts, or at the given indices."""
    extent = int(x.shape[axis])
    if isinstance(parts, int):
        if extent % parts:
            refuse(f"np.split of {extent} into {parts}", "use sizes that divide")
        return list(f.split(x, extent // parts, axis))
    bounds: list[int] = [0, *parts, extent]
    sizes = [b - a for a, b in pairwise(bounds)]
    return list(f.split(x, sizes, axis))


def _numpy_copyto(x: Any, source: Any, _casting: str = "", where: Any = True) -> None:
    x[... if where is True else where] = source


def _numpy_transpose(x: Any, axes: Any = None) -> Any:
    return x.T if axes is None else f.permute(x, axes)


def _numpy_take(x: Any, index: Any, axis: Any = None, *, mode: str = "raise") -> Any:
    if axis is None:
        return _numpy_take(x.ravel(), index, 0, mode=mode)
    last = x.shape[axis] - 1
    one = isinstance(index, int)
    if mode == "wrap":
        index = (index if one else as_array(index)) % (last + 1)
    elif mode == "clip":
        index = min(max(index, 0), last) if one else f.clamp(as_array(index), 0, last)
    return x[(*(slice(None),) * normal_axis(axis, x.ndim, "take"), index)]


def _numpy_concatenate(arrays: Any, axis: Any = 0) -> Any:
    if axis is None:
        return f.concat([f.reshape(x, -1) for x in arrays], 0)
    return f.concat(arrays, axis)


def _numpy_clip(
    x: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None
) -> Any:
    """NumPy's `clip`, whose limits have two names each."""
    return f.clip(x, min if a_min is None else a_min, max if a_max is None else a_max)


def _numpy_nonzero(x: Any) -> Any:
    """NumPy's columns of places."""
    return PLACING["nonzero"](x, as_tuple=True)


def _sorted_in_place(x: Any, axis: int = -1, kind: str | None = None) -> None:
    """The method of arrays, which gives nothing."""
    write("sort", x, NUMPY_SELECTIONS["sort"](x, axis, kind), ())


def _filled_in_place(x: Any, value: Any) -> None:
    """The method of arrays, which gives nothing."""
    write("fill", x, value, (value,))


def _of_arrays(function: Function) -> Function:
    """A function of which NumPy makes an array also where it has no axes."""

    def made(*args: Any, **kwargs: Any) -> Any:
        found = inside(function)(*args, **kwargs)
        if isinstance(found, Tensor):
            found.memory.array = True
        return found

    vars(made)["__signature__"] = inspect.signature(function)
    return made


def _numpy_reciprocal(x: Any) -> Any:
    if isinstance(x, Tensor) and not x.handle.value.dtype.is_float:
        refuse("np.reciprocal of integers, which NumPy rounds to 0,", "use 1 / x")
    return f.reciprocal(x)


_ALIKE = (
    "argwhere atleast_1d atleast_2d atleast_3d dsplit float_power gcd hsplit isclose "
    "lcm real signbit vsplit"
)
"""Functions that NumPy has as PyTorch has them, and that only PyTorch's table names."""

_NUMPY: dict[str, Function] = {
    **_COMMON,
    **TRIANGLES,
    **NUMPYS_MATRICES,
    **NUMPYS_LINEAR_ALGEBRA,
    **OF_NUMPY,
    **NUMPY_SELECTIONS,
    **OF_NUMPY_ALONE,
    **{
        name: _of_arrays(function)
        for name, function in {**NUMPY_CONSTRUCTORS, **torch_functions.FILLED}.items()
    },
    "split": _numpy_split,
    "transpose": _numpy_transpose,
    "permute_dims": _numpy_transpose,
    "copy": _of_arrays(_copied),
    "copyto": _numpy_copyto,
    "einsum": _numpy_einsum,
    "mod": ELEMENTARY["remainder"],
    "take": _numpy_take,
    "take_along_axis": f.take_along_dim,
    "invert": f.bitwise_not,
    "left_shift": f.shift_left,
    "right_shift": f.shift_right,
    "bitwise_invert": f.bitwise_not,
    "bitwise_left_shift": f.shift_left,
    "bitwise_right_shift": f.shift_right,
    "var": c.var,
    "std": c.std,
    "repeat": f.repeat_interleave,
    "norm": norm_named("np.linalg.norm"),
    "reciprocal": _numpy_reciprocal,
    "sign": numpy_sign,
    "clip": _numpy_clip,
    "concatenate": _numpy_concatenate,
    "conjugate": _itself,
    "nonzero": _numpy_nonzero,
    **{name: _TORCH[name] for name in _ALIKE.split()},
    "where": _of_arrays(_TORCH["where"]),
    **formulas(
        matrix_transpose=lambda x: x.mT,
        ndim=lambda x: x.ndim,
        shape=lambda x: x.shape,
    ),
}

_OF_ARRAYS: Mapping[str, Function] = {
    **{name: _NUMPY[name] for name in ("argsort", "nonzero", "take")},
    "fill": _filled_in_place,
    "put": put,
    "sort": _sorted_in_place,
}
"""Methods that NumPy's arrays have otherwise than PyTorch's tensors."""

_REDUCTIONS: dict[str, Function] = {
    "add": f.sum,
    "maximum": f.max,
    "minimum": f.min,
    "logical_and": LOGICAL["all"],
    "logical_or": LOGICAL["any"],
    "logaddexp": torch_functions.logsumexp,
    "multiply": f.prod,
}
_METHODS_OF_UFUNCS = {"reduce": _REDUCTIONS, "accumulate": ACCUMULATIONS}
_OTHER_ORDER = ("embedding_bag",)
"""Functions whose arguments come in another order in `torch` itself."""


def _torch_embedding(weight: Any, indices: Any, *told: Any, **named: Any) -> Any:
    """The rows of a matrix at the indices; what else is told matters to gradients."""
    del told, named
    return _TORCH["embedding"](indices, weight)


def _weights_first(function: Function) -> Function:
    """A norm as `torch` itself has it, with the statistics behind the weights."""

    def norm(
        input: Any,
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        *told: Any,
        cudnn_enabled: bool = True,
        **named: Any,
    ) -> Any:
        del cudnn_enabled
        # A flag, the momentum and epsilon, and behind them what says nothing.
        rest = (weight, bias, *told[:3])
        return function(input, running_mean, running_var, *rest, **named)

    return norm


_OF_TORCH: Mapping[str, Function] = {
    **_TORCH,
    "batch_norm": _weights_first(_torch_batch_norm),
    "instance_norm": _weights_first(_torch_instance_norm),
    "embedding": _torch_embedding,
}
"""Functions of `torch` itself."""
_FUNCTIONAL: Mapping[str, Function] = {
    **_TORCH,
    "adaptive_max_pool1d": WINDOWS["adaptive_max_pool1d"],
    "unfold": im2col,
}
"""Functions of `torch.nn.functional`: some names are those of others in `torch`."""
_SILENT = ("out", "size_average", "reduce", "weight", "_stacklevel")
"""Arguments that PyTorch's own functions pass on, with these values, to say nothing."""

_KEEP_DTYPE = ("dtype", "casting", "order", "subok", "where", "out", "initial")


def call_ufunc(
    ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """A NumPy ufunc, or one of its methods."""
    name = str(ufunc.__name__)
    told = _plain(kwargs)
    outs = told.pop("out", (None,))
    out = outs if outs[1:] else outs[0]
    table = _METHODS_OF_UFUNCS.get(method, {})
    if method == "__call__":
        condition, dtype = told.pop("where", None), told.pop("dtype", None)
        if dtype is not None:
            inputs = tuple(f.to(x, dtype) if is_array(x) else x for x in inputs)
        found = _dispatch(_NUMPY, "np", name, inputs, told)
        if condition is not None:
            found = where_it_holds(found, condition, out)
    elif method == "at":
        return at_places(name, *inputs, **told)
    elif method == "outer" and name in _NUMPY:
        found = called(f"np.{name}.outer", outer_of(_NUMPY[name]), *inputs, **told)
    elif name in table:
        told.setdefault("axis", 0)
        found = called(f"np.{name}.{method}", table[name], *inputs, **told)
        name = method
    else:
        refuse(f"np.{name}.{method}", "use the functions of mirage")
    return found if out is None else into(f"np.{name}", out, found, inputs)


def call_numpy(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A NumPy function."""
    told, name = _plain(kwargs), str(function.__name__)
    if function.__module__ == "numpy.linalg" and f"linalg_{name}" in _NUMPY:
        name = f"linalg_{name}"
    if name in CHANGING:
        refuse_array(f"np.{name}", next(iter((*args, *told.values()))))
    out = told.pop("out", None)
    found = _dispatch(_NUMPY, "np", name, args, told)
    return found if out is None else into(f"np.{name}", out, found, args)


def call_torch(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A PyTorch function or method, or an operator of those that these call."""
    operator = operator_of(function)
    function = getattr(function, "overloadpacket", function)
    name = str(getattr(function, "__name__", function))
    if operator is not None and operator[0] != "aten":
        refuse(
            f"the operator {'::'.join(operator)}, which is not PyTorch's own,",
            "call it outside of the function",
        )
    if name.endswith("_") and not name.endswith("__"):
        return _changing(name, args, kwargs)
    if operator is not None and name in OF_ATEN:
        return _dispatch(OF_ATEN, "torch.ops.aten", name, args, {**kwargs})
    method = _method(function, name, args, whole=operator is None)
    if method is not None:
        _refuse_constants("torch.Tensor", name, (args, kwargs))
        return called(f"torch.Tensor.{name}", method, *args, **kwargs)
    functional = getattr(function, "__module__", "") == "torch.nn.functional"
    if not functional and (name in _OTHER_ORDER or _reduces_by_number(name)):
        refuse(f"torch.{name}", f"use torch.nn.functional.{name}")
    told = {
        n: v
        for n, v in kwargs.items()
        if not (n in _SILENT and (v is None or n == "_stacklevel"))
    }
    in_place, out = told.pop("inplace", False), told.pop("out", None)
    if functional:
        told.update(kept_back(function, args, kwargs))
        _name_reduction(told)
    table = _FUNCTIONAL if functional else _OF_TORCH
    bare = name.strip("_")
    if bare not in table:
        # Those of `torch.special` are also in `torch`, but for a few.
        bare = bare.removeprefix("special_")
    found = _dispatch(table, "torch", bare, args, told)
    if in_place:
        return write(f"{name}(inplace=True)", args[0], found, ())
    return found if out is None else into(f"torch.{name}", out, found, (args, told))


def _method(
    function: Any, name: str, args: tuple[Any, ...], *, whole: bool
) -> Function | None:
    """What traced tensors have for a method of PyTorch's that is called as a function.

    A function of the same name may take its arguments in another order, as `where`.
    An operator (not `whole`) is a method where there is no such function.
    """
    import torch

    if not args or not isinstance(args[0], Tensor):
        return None
    known: object = getattr(Tensor, name, None)
    if whole:
        theirs = getattr(torch.Tensor, name, None) is function
    else:
        theirs = name not in _OF_TORCH and hasattr(torch.Tensor, name)
    return known if theirs and callable(known) else None


@cache
def _reduces_by_number(name: str) -> bool:
    """Whether a function of `torch` itself says as a number how a loss is reduced."""
    import torch

    known: Any = getattr(torch.ops.aten, name, None)
    overloads = known.overloads() if hasattr(known, "overloads") else ()
    schemas = (getattr(known, overload)._schema for overload in overloads)
    return any(a.name == "reduction" for s in schemas for a in s.arguments)


def _name_reduction(told: dict[str, Any]) -> None:
    """Losses' older arguments become the one that took their place."""
    older = [told.pop(name, None) for name in ("size_average", "reduce")]
    if older == [None, None]:
        return
    average, reduces = (given is None or given for given in older)
    whole = "mean" if average else "sum"
    told["reduction"] = whole if reduces else "none"


def _changing(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A PyTorch function that changes its first argument."""
    _refuse_constants("torch", name, (args, kwargs))
    function = function_in_place(name)
    if function is None:
        refuse(f"torch.{name}", f"use {name[:-1]} and assign the result")
    return called(f"torch.{name}", function, *args, **kwargs)


def array_method(name: str) -> Function | None:
    """What a method of NumPy's arrays computes, where we know it as a function.

    Those that only PyTorch's tensors have are known too.
    """
    return _OF_ARRAYS.get(name) or _TORCH.get(name)


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


_WITH_ADVICE = (
    (OF_NO_NUMBERS, NO_NUMBERS),
    (RANDOM, NO_RANDOM),
    (OF_ALL_TRUE, NOT_ALL_TRUE),
    (OF_ASSERTIONS, NO_ASSERTIONS),
    (OF_NESTED, NO_NESTED),
    (("as_strided",), AS_STRIDED),
)
"""Functions that are refused, and what to do instead."""


def _dispatch(
    table: Mapping[str, Function],
    library: str,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    _refuse_constants(library, name, (args, kwargs))
    function = table.get(name)
    for names, advice in _WITH_ADVICE:
        if name in names:
            refuse(f"{library}.{name}", advice)
    if function is None:
        close = difflib.get_close_matches(name, table, n=1, cutoff=LIKENESS)
        advice = f"did you mean {close[0]}? Or " if close else ""
        refuse(f"{library}.{name}", f"{advice}build it from those of mirage.functions")
    return called(f"{library}.{name}", function, *args, **kwargs)


def called(what: str, function: Function, *args: Any, **kwargs: Any) -> Any:
    """What a function returns; arguments that it does not know are our lack.

    Raises:
        UnsupportedError: It takes no such arguments.
    """
    if in_autocast():
        _refuse_autocast((args, kwargs))
    if any(type(x) in (np.ndarray, list, tuple) for x in (*args, *kwargs.values())):
        args, kwargs = _with_arrays(args, kwargs)
    if kwargs:
        args, kwargs = _in_places(what, function, args, kwargs)
    if _is_complex(args):
        return of_complex(what, what.rpartition(".")[2].split()[-1], args, kwargs)
    try:
        found = inside(function)(*args, **kwargs)
    except FOREIGN as error:
        if not is_misuse(error):
            raise
        raise misuse(what, function, args, kwargs, error) from error
    # Only what PyTorch names has names here too.
    named = issubclass(type(found), tuple) and hasattr(found, "_fields")
    return _of_pytorchs_class(what, found) if named else found


def _with_arrays(args: Any, kwargs: Any) -> Any:
    """Arguments of NumPy's functions, with tensors for short arrays."""
    recorder = RECORDING.get()
    numpy = recorder is not None and recorder.origin.library == "numpy"
    return of_arrays((args, kwargs)) if numpy else (args, kwargs)


def _of_pytorchs_class(what: str, found: Any) -> Any:
    """Results by name, in the class that PyTorch returns them in."""
    tensors = [part for part in found if isinstance(part, Tensor)]
    name = what.rpartition(".")[2].rpartition(" ")[2]
    return of_pytorchs_class(name, found, tensors[0].recorder.origin)


def _is_complex(operands: tuple[Any, ...]) -> bool:
    """Whether one of some operands makes the result complex."""
    kinds: list[Any] = [type(x) for x in operands]
    if Complex in kinds:
        return True
    if complex not in kinds:
        return False
    tensors = [x for x in operands if isinstance(x, Tensor)]
    return all(x.recorder.origin.library == "torch" for x in tensors)


_OPERANDS = tuple(
    tuple(names.split())
    for names in (
        "input self tensor a",
        "other tensor mat2 vec vec2 exponent dims shape size repeats split_size "
        "split_size_or_sections",
    )
)
"""What PyTorch and NumPy call the operands that most functions take by position."""
_OWN_OPERANDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "diag": (("input", "v"), ("diagonal", "k")),
    "where": (("condition",), ("input", "x"), ("other", "y")),
}


def _in_places(
    what: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of which operands that are named as the libraries do are in order."""
    name = what.rpartition(".")[2].rpartition(" ")[2]
    if what.startswith("np."):
        own_names = _named_parameters(function)
        for theirs, ours in f.SYNONYMS.items():
            if ours in kwargs.keys() - own_names and theirs in own_names:
                kwargs = {**kwargs, theirs: kwargs[ours]}
                del kwargs[ours]
    own = _OWN_OPERANDS.get(name)
    known = () if own else _named_parameters(function)
    unknown = kwargs.keys() - known - f.SYNONYMS.keys()
    if unknown and not (what.startswith("np.") or _takes_any_name(function)):
        for order, others in _orders(name):
            end = 1 + max((order.index(n) for n in unknown if n in order), default=-1)
            moved = order[len(args) : end]
            if unknown <= {*moved, *others} and kwargs.keys() >= set(moved):
                rest = {n: v for n, v in kwargs.items() if n not in moved}
                return (*args, *(kwargs[n] for n in moved)), rest
    for names in (own or _OPERANDS)[len(args) :]:
        name = next((n for n in names if n in kwargs and n not in known), None)
        if name is None:
            break
        args, kwargs = (*args, kwargs[name]), {**kwargs}
        del kwargs[name]
    return args, kwargs


@cache
def _orders(name: str) -> tuple[tuple[tuple[str, ...], frozenset[str]], ...]:
    """What PyTorch calls the arguments of an operator, by overload.

    Those that may stand by position, in their order, and those that may not.
    """
    packets: Any = getattr(sys.modules.get("torch"), "ops", None)
    packet: Any = getattr(getattr(packets, "aten", None), name, None)
    overloads = packet.overloads() if hasattr(packet, "overloads") else ()
    found: list[tuple[tuple[str, ...], frozenset[str]]] = []
    for overload in overloads:
        told = getattr(packet, overload)._schema.arguments
        names = [a.name for a in told if not a.kwarg_only]
        order = tuple("input" if n == "self" else n for n in names)
        found.append((order, frozenset(a.name for a in told if a.kwarg_only)))
    return tuple(found)


@cache
def _takes_any_name(function: Function) -> bool:
    """Whether a function with parameters sorts out what else is given by name."""
    parameters = inspect.signature(function).parameters.values()
    rest = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    return rest and bool(_named_parameters(function))


@cache
def _named_parameters(function: Function) -> frozenset[str]:
    """The parameters of a function that may be given by name."""
    parameters = inspect.signature(function).parameters.values()
    unnamed = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return frozenset(p.name for p in parameters if p.kind not in unnamed)


def _refuse_autocast(arguments: object) -> None:
    traced = (x for x in leaves_of(arguments) if isinstance(x, Tensor))
    devices = (x.recorder.origin.device for x in traced)
    reason = next(map(autocast_refusal, devices), None)
    if reason is not None:
        raise UnsupportedError.here(reason)


def _refuse_constants(library: str, name: str, arguments: object) -> None:
    for leaf in leaves_of(arguments):
        constant = library == "np" and type(leaf) is np.ndarray
        if not (constant or isinstance(leaf, Tensor | Complex)) and is_array(leaf):
            kind = leaf.__class__
            raise TraceError.here(
                f"{library}.{name} with a {kind.__module__.partition('.')[0]} "
                f"{kind.__name__} of shape {tuple(leaf.shape)} that is no argument of "
                "the function; pass it as an argument, so that its values are not "
                "frozen into the program"
            )
