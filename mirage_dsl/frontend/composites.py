"""Functions made of others: of matrices, softmax, norms, variances, attention, einsum.

They are plain Python over operators, so the search sees what they consist of: a
diagonal is elements at positions, and what stands on one is chosen by a comparison of
positions.
"""

from __future__ import annotations

import functools
import math
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    UnsupportedError,
)
from mirage_dsl.core.types import bf16, f16, f32, promote
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function
from mirage_dsl.frontend.constructors import positions
from mirage_dsl.frontend.functions import (
    apply,
    as_tensor,
    formulas,
    is_condition,
    named,
    public,
)
from mirage_dsl.frontend.memory import Diagonal
from mirage_dsl.frontend.program import shape_text
from mirage_dsl.frontend.rearranging import pad
from mirage_dsl.frontend.recorder import (
    flat_arguments,
    integer,
    normal_axes,
    normal_axis,
)
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ops.table import OR_ONE

# -- Diagonals -------------------------------------------------------------------------


def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A diagonal of the matrices in two axes, as a new last axis.

    It is a view: what is written to it is written to the tensor.

    Args:
        x: The tensor.
        offset: How far it is above the main one; below 0, below it.
        dim1: The axis of rows.
        dim2: The axis of columns.

    Raises:
        ShapeError: The matrices have no such diagonal.
    """
    x = as_tensor("diagonal", x)
    first, second = normal_axes((dim1, dim2), x.ndim, "diagonal")
    rows, columns = (integer(x.shape[i], "an extent") for i in (first, second))
    count = min(rows + min(offset, 0), columns - max(offset, 0))
    if count < 1:
        raise ShapeError.here(
            f"the diagonal {offset} of {shape_text(x.handle)}: there is none"
        )
    row, column = max(-offset, 0), max(offset, 0)
    square = f.narrow(f.narrow(x, first, row, count), second, column, count)
    return square.viewed(Diagonal(first, second))


def _last_diagonal(A: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:  # noqa: N803
    """That of the matrices in the last two axes."""
    return diagonal(A, offset, dim1, dim2)


def diagonal_scatter(
    x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    """A copy of the tensor with another diagonal of the matrices in two axes.

    Raises:
        ShapeError: The source has not the shape of the diagonal.
    """
    found = as_tensor("diagonal_scatter", x).clone()
    view = diagonal(found, offset, dim1, dim2)
    source = as_tensor("diagonal_scatter", src)
    if tuple(view.shape) != tuple(source.shape):
        raise ShapeError.here(
            f"diagonal_scatter: the source has the shape {tuple(source.shape)}, the "
            f"diagonal {tuple(view.shape)}; they must be equal"
        )
    view[...] = source
    return found


def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Matrices that are 0 but on a diagonal, which the last axis holds."""
    x = as_tensor("diag_embed", x)
    given = integer(x.shape[-1], "an extent")
    extent = given + abs(offset)
    if offset:
        # On a diagonal above the main one a column holds an earlier element.
        x = pad(x, (max(offset, 0), max(-offset, 0)))
    wide = f.expand(f.expand_dims(x, -2), *x.shape[:-1], extent, extent)
    rows, columns = positions(wide, -2), positions(wide, -1)
    found = f.where(f.equal(columns, rows + offset if offset else rows), wide, 0)
    found = f.astype(found, x)
    if (dim1, dim2) == (-2, -1):
        return found
    places = normal_axes((dim1, dim2), found.ndim, "diag_embed")
    order = list(range(found.ndim - 2))
    for place, axis in sorted(zip(places, (-2, -1), strict=True)):
        order.insert(place, found.ndim + axis)
    return f.permute(found, *order)


def diag(x: Any, diagonal_: int = 0) -> Any:
    """The diagonal of a matrix, or the matrix that a vector is the diagonal of."""
    x = as_tensor("diag", x)
    if x.ndim > 2 or not x.ndim:
        raise ShapeError.here(
            f"diag of {shape_text(x.handle)}; expected a matrix or a vector"
        )
    if x.ndim == 1:
        return diag_embed(x.clone(), diagonal_)
    return Tensor.made(x.recorder, diagonal(x, diagonal_).handle, ())


def _numpy_trace(
    a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None
) -> Any:
    """The sum of a diagonal, of each matrix in two axes."""
    return f.sum(diagonal(a, offset, axis1, axis2), -1, dtype=dtype)


def trace(x: Any) -> Any:
    """The sum of the main diagonal of a matrix, in NumPy of each along two axes.

    Raises:
        ShapeError: PyTorch takes one matrix.
    """
    x = as_tensor("trace", x)
    if x.ndim != 2 and x.recorder.origin.library != "numpy":
        raise ShapeError.here(
            f"trace of {shape_text(x.handle)}; expected a matrix: sum the diagonals of "
            "several, x.diagonal(0, -2, -1).sum(-1)"
        )
    return f.sum(diagonal(x), -1)


def fill_diagonal(x: Any, fill_value: Any, wrap: bool = False) -> Any:
    """The matrix with a number on its main diagonal."""
    x = as_tensor("fill_diagonal_", x)
    if x.ndim != 2 or wrap:
        raise UnsupportedError.here(
            f"fill_diagonal_ of {shape_text(x.handle)} with wrap={wrap}; expected a "
            "matrix, and no wrapping"
        )
    return f.masked_fill(x, f.equal(positions(x, -2), positions(x, -1)), fill_value)


# -- Products --------------------------------------------------------------------------


def tensordot(a: Any, b: Any, dims: Any = 2) -> Any:
    """The sum of products over so many axes, or over pairs of named ones.

    Args:
        a: The first tensor.
        b: The second one.
        dims: The last so many axes of `a` with the first ones of `b`, or two lists of
            axes.
    """
    a, b = as_tensor("tensordot", a), as_tensor("tensordot", b)
    if isinstance(dims, int):
        left, right = tuple(range(a.ndim - dims, a.ndim)), tuple(range(dims))
    else:
        left = normal_axes(dims[0], a.ndim, "tensordot")
        right = normal_axes(dims[1], b.ndim, "tensordot")
    own = [i for i in range(a.ndim) if i not in left]
    others = [i for i in range(b.ndim) if i not in right]
    kept = [a.shape[i] for i in own] + [b.shape[i] for i in others]
    rows = f.permute(a, *own, *left)
    columns = f.permute(b, *right, *others)
    count = math.prod(int(a.shape[i]) for i in left)
    wide = math.prod(int(s) for s in kept[: len(own)])
    found = f.matmul(f.reshape(rows, wide, count), f.reshape(columns, count, -1))
    return f.reshape(found, *kept) if kept else f.reshape(found, ())


def inner(a: Any, b: Any) -> Any:
    """The sums of products over the last axes of both."""
    a, b = as_tensor("inner", a), as_tensor("inner", b)
    if not a.ndim or not b.ndim:
        return a * b
    if a.ndim == b.ndim == 1:
        return f.matmul(a, b)
    return tensordot(a, b, ((-1,), (-1,)))


def kron(a: Any, b: Any) -> Any:
    """Each element of the first tensor times the whole second one."""
    a, b = as_tensor("kron", a), as_tensor("kron", b)
    rank = max(a.ndim, b.ndim)
    first = f.reshape(a, *(1,) * (rank - a.ndim), *a.shape)
    second = f.reshape(b, *(1,) * (rank - b.ndim), *b.shape)
    shape = [m * n for m, n in zip(first.shape, second.shape, strict=True)]
    for axis in range(rank):
        first = f.expand_dims(first, 2 * axis + 1)
        second = f.expand_dims(second, 2 * axis)
    return f.reshape(first * second, *shape)


def cross(a: Any, b: Any, dim: int = -1) -> Any:
    """The cross products of vectors of three elements along an axis."""
    a, b = as_tensor("cross", a), as_tensor("cross", b)
    at = normal_axis(dim, a.ndim, "cross")
    if a.shape[at] != 3 or b.shape[at] != 3:
        raise ShapeError.here(
            f"cross of {shape_text(a.handle)} by {shape_text(b.handle)} along axis "
            f"{at}; expected 3 elements there"
        )
    x, y = f.unbind(a, at), f.unbind(b, at)
    parts = [
        x[(i + 1) % 3] * y[(i + 2) % 3] - x[(i + 2) % 3] * y[(i + 1) % 3]
        for i in range(3)
    ]
    return f.stack(parts, at)


def chain_matmul(*matrices: Any) -> Any:
    """The product of matrices."""
    return multi_dot(matrices).clone()


def multi_dot(tensors: Sequence[Any]) -> Any:
    """The product of matrices, of which the first and the last may be vectors."""
    found, *others = tensors
    for other in others:
        found = f.matmul(found, other)
    return found


def _scaled(x: Any, by: Any) -> Any:
    return x if by == 1 else x * by


def _added(product: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A product of two tensors as `addmv`, added to a third one."""

    def added(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if is_condition(x):
            raise DTypeError.here(
                "a product of truth values, added to others; cast them to numbers"
            )
        found = _scaled(product(a, b), alpha)
        return found if beta == 0 else found + _scaled(x, beta)

    return added


def outer(a: Any, b: Any) -> Any:
    """The products of all pairs of elements of two vectors.

    Raises:
        ShapeError: They are none.
    """
    for x in (as_tensor("outer", a), as_tensor("outer", b)):
        if x.ndim != 1:
            raise ShapeError.here(
                f"outer of {shape_text(x.handle)}; expected a vector: flatten it"
            )
    return f.expand_dims(a, 1) * f.expand_dims(b, 0)


def _summed_products(a: Any, b: Any) -> Any:
    return f.sum(f.matmul(a, b), 0)


def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """For each matrix of weights the product of it with a vector on either side."""
    left = f.matmul(f.expand_dims(input1, -2), f.flatten(weight.permute(1, 0, 2), 1))
    left = f.reshape(left, *input1.shape[:-1], weight.shape[0], weight.shape[2])
    found = f.sum(left * f.expand_dims(input2, -2), -1)
    return found if bias is None else found + bias


# -- Grids -----------------------------------------------------------------------------


def meshgrid(*tensors: Any, indexing: str = "ij") -> Any:
    """For each vector a tensor in which its elements go along an axis of their own."""
    given = flat_arguments(tensors)
    vectors = [f.reshape(t, -1) for t in given]
    if indexing not in ("ij", "xy"):
        raise UnsupportedError.here(
            f"meshgrid with indexing={indexing!r}; expected 'ij' or 'xy'"
        )
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = 1, 0
    shape = [vectors[i].shape[0] for i in order]
    found: list[Any] = []
    for number, vector in enumerate(vectors):
        sizes = [1] * len(order)
        sizes[order.index(number)] = vector.shape[0]
        found.append(f.expand(f.reshape(vector, *sizes), *shape))
    return tuple(found)


def _torch_meshgrid(*tensors: Any, indexing: str | None = None) -> Any:
    """PyTorch's, which start with the first axis where nothing is said."""
    return meshgrid(*tensors, indexing=indexing or "ij")


def _numpy_meshgrid(*vectors: Any, indexing: str = "xy") -> Any:
    """NumPy's, whose results are copies and start with the second axis."""
    return tuple(t.clone() for t in meshgrid(*vectors, indexing=indexing))


def cartesian_prod(*tensors: Any) -> Any:
    """All combinations of the elements of vectors, one in each row."""
    if len(tensors) == 1:
        return tensors[0]
    return f.stack([f.reshape(t, -1) for t in meshgrid(*tensors)], 1)


def block_diag(*tensors: Any) -> Any:
    """Matrices one behind the other along the diagonal of one that is 0 elsewhere."""
    matrices = [_as_matrix(t) for t in tensors]
    width = sum(int(m.shape[1]) for m in matrices)
    rows: list[Any] = []
    start = 0
    for matrix in matrices:
        end = start + int(matrix.shape[1])
        rows.append(pad(matrix, (start, width - end)))
        start = end
    return f.concat(rows, 0)


def _as_matrix(x: Any) -> Tensor:
    x = as_tensor("block_diag", x)
    return f.reshape(x, 1, -1) if x.ndim < 2 else x


MATRICES = named(diag, diagonal, inner, kron, trace)
"""By the names that PyTorch and NumPy share."""

PYTORCHS_MATRICES: Mapping[str, Function] = {
    **named(bilinear, block_diag, cartesian_prod, chain_matmul, cross),
    **named(diag_embed, diagonal_scatter, fill_diagonal, tensordot),
    **formulas(
        diagflat=lambda x, offset=0: diag_embed(f.flatten(x), offset),
        linalg_vecdot=lambda x, y, *, dim=-1: f.sum(f.mul(x, y), dim),
    ),
    "addbmm": _added(_summed_products),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _added(f.matmul)),
    "addr": _added(outer),
    "linalg_cross": cross,
    "linalg_diagonal": _last_diagonal,
    "linalg_multi_dot": multi_dot,
    "meshgrid": _torch_meshgrid,
}
"""By PyTorch's names."""

NUMPYS_MATRICES: Mapping[str, Function] = {
    "meshgrid": _numpy_meshgrid,
    "trace": _numpy_trace,
    **formulas(
        linalg_diagonal=lambda x, offset=0: diagonal(x, offset, -2, -1),
        linalg_outer=lambda x1, x2: outer(x1, x2),
        linalg_trace=lambda x, offset=0, dtype=None: _numpy_trace(
            x, offset, -2, -1, dtype
        ),
        multi_dot=lambda arrays: multi_dot(arrays),
        tensordot=lambda a, b, axes=2: tensordot(a, b, axes),
    ),
}
"""By NumPy's names."""


# -- Functions -------------------------------------------------------------------------

EPS = 1e-6


def within_f32(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes in f32, and gives the dtype of its tensors.

    PyTorch's kernels of such functions do: a square of f16 may be beyond f16 where the
    norm is not.
    """

    @functools.wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        dtype = promote(*(x.handle.value.dtype for x in given)) if given else f32
        if dtype not in (f16, bf16):
            return function(*args, **kwargs)
        wide = [_in_f32(x) for x in args]
        found = function(*wide, **{name: _in_f32(x) for name, x in kwargs.items()})
        return f.to(found, dtype.long_name)

    return computed


def _in_f32(x: Any) -> Any:
    narrow = isinstance(x, Tensor) and x.handle.value.dtype in (f16, bf16)
    return f.to(x, f32.long_name) if narrow else x


@public
def softmax(x: Any, axis: Any = -1, dtype: Any = None) -> Any:
    """Exponentials over their sum, along an axis."""
    x = x if dtype is None else f.to(x, dtype)
    e = f.exp(x - f.rowshift(x, axis))
    return e / f.sum(e, axis, keepdims=True)


@public
@within_f32
def var(
    x: Any,
    axis: Any = None,
    keepdims: Any = False,
    *,
    correction: float = 0,
    ddof: float | None = None,
    unbiased: bool | None = None,
) -> Any:
    """Variance over axes; by default of the population, as NumPy's."""
    if unbiased is not None:
        correction = int(unbiased)
    if ddof is not None:
        correction = ddof
    centred = f.square(x - f.mean(x, axis, keepdims=True))
    if not correction:
        return f.mean(centred, axis, keepdims=keepdims)
    count = math.prod(int(x.shape[a]) for a in normal_axes(axis, x.ndim, "var"))
    divisor = max(count - correction, 0)
    return f.sum(centred, axis, keepdims=keepdims) / divisor


@public
@within_f32
def std(x: Any, axis: Any = None, keepdims: Any = False, **options: Any) -> Any:
    """Standard deviation over axes; by default of the population, as NumPy's."""
    return f.sqrt(var(x, axis, keepdims, **options))


@public
@within_f32
def norm(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Euclidean norm over axes."""
    if _has_one_index(x, axis):
        return f.sum(f.abs(x), axis, keepdims)
    return f.sqrt(f.sum(f.square(x), axis, keepdims))


def _has_one_index(x: Any, axis: Any) -> bool:
    """Whether axes have extent 1: a norm is a size there, which nothing overflows."""
    shape = f.as_tensor("norm", x).handle.axes
    return not any(shape[at] for at in normal_axes(axis, len(shape), "norm"))


def vector_norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """A norm of the elements along axes, of any order.

    The order 0 counts what is not 0, infinity is the largest size, and minus infinity
    the smallest.
    """
    x = x if dtype is None else f.to(x, dtype)
    if ord == 2:
        return norm(x, dim, keepdim)
    size = f.abs(x)
    if ord != 0 and _has_one_index(x, dim):
        return f.sum(size, dim, keepdim)
    if ord == math.inf:
        return f.max(size, dim, keepdim)
    if ord == -math.inf:
        return f.min(size, dim, keepdim)
    if ord == 0:
        return f.sum(f.to(f.not_equal(x, 0), x), dim, keepdim)
    if ord == 1:
        return f.sum(size, dim, keepdim)

    def root_of_sum(size: Any) -> Any:
        return f.pow(f.sum(f.pow(size, ord), dim, keepdim), 1 / ord)

    return within_f32(root_of_sum)(size)


def _last_axes(x: Any, normalized_shape: Any, axis: Any, what: str) -> Any:
    """The trailing axes that `normalized_shape` describes; where it is None, `axis`."""
    if normalized_shape is None:
        return axis
    if axis != -1:
        raise ShapeError.here(f"{what}: give axis or normalized_shape, not both")
    if isinstance(normalized_shape, Tensor):
        raise ShapeError.here(
            f"{what}: normalized_shape is a tensor; expected the extents of the last "
            "axes, and a weight as weight="
        )
    given = flat_arguments((normalized_shape,))
    have = tuple(x.shape)[len(x.shape) - len(given) :]
    if len(given) > len(x.shape) or any(
        isinstance(h, int) and h != g for h, g in zip(have, given, strict=True)
    ):
        raise ShapeError.here(
            f"{what}: normalized_shape {given} is not the end of the shape {x.shape}"
        )
    return tuple(range(-len(given), 0))


def _affine(y: Any, weight: Any, bias: Any) -> Any:
    if weight is not None:
        y = y * weight
    return y if bias is None else y + bias


def _plus_eps(x: Any, eps: float | None) -> Any:
    return x + eps if eps else x


@public
def rms_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float | None = EPS,
    *,
    axis: Any = -1,
    normalized_shape: Any = None,
) -> Any:
    """X over its root mean square along an axis, then weight and bias."""
    axis = _last_axes(x, normalized_shape, axis, "rms_norm")
    mean = f.mean(f.square(x), axis, keepdims=True)
    return _affine(x / f.sqrt(_plus_eps(mean, eps)), weight, bias)


def _standardised(x: Any, over: Any, eps: float | None) -> Any:
    centred = x - f.mean(x, over, keepdims=True)
    variance = f.mean(f.square(centred), over, keepdims=True)
    return centred / f.sqrt(_plus_eps(variance, eps))


@public
def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float | None = EPS,
    *,
    axis: Any = -1,
    normalized_shape: Any = None,
) -> Any:
    """X with mean 0 and variance 1 along an axis, then weight and bias."""
    axis = _last_axes(x, normalized_shape, axis, "layer_norm")
    return _affine(_standardised(x, axis, eps), weight, bias)


def per_channel(x: Any, parameter: Any) -> Any:
    """A parameter along axis 1, to be broadcast with x; None of none."""
    if parameter is None:
        return None
    return f.reshape(parameter, (-1,) + (1,) * (len(x.shape) - 2))


@public
def group_norm(
    x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float | None = EPS
) -> Any:
    """Each of `groups` groups of channels (axis 1) with mean 0 and variance 1.

    Weight and bias are per channel.
    """
    if len(x.shape) < 2 or (isinstance(x.shape[1], int) and x.shape[1] % groups):
        raise ShapeError.here(
            f"group_norm: {groups} groups of axis 1 of a tensor of shape {x.shape}; "
            "the number of groups must divide the number of channels"
        )
    shape = x.shape
    split = f.reshape(x, (shape[0], groups, shape[1] // groups, *shape[2:]))
    over = tuple(range(2, len(shape) + 1))
    y = f.reshape(_standardised(split, over, eps), shape)
    return _affine(y, per_channel(x, weight), per_channel(x, bias))


def instance_norm(
    x: Any, weight: Any = None, bias: Any = None, eps: float | None = EPS
) -> Any:
    """Each channel (axis 1) of each element of axis 0 with mean 0 and variance 1.

    Weight and bias are per channel.
    """
    if len(x.shape) < 3:
        raise ShapeError.here(
            f"instance_norm of a tensor of shape {x.shape}; expected rank 3 or more"
        )
    y = _standardised(x, tuple(range(2, len(x.shape))), eps)
    return _affine(y, per_channel(x, weight), per_channel(x, bias))


@public
def batch_norm(
    x: Any,
    mean: Any = None,
    var: Any = None,
    weight: Any = None,
    bias: Any = None,
    eps: float | None = EPS,
) -> Any:
    """Each channel (axis 1) standardised, by the given statistics or its own."""
    if len(x.shape) < 2 or (mean is None) != (var is None):
        raise ShapeError.here(
            "batch_norm takes a tensor of rank 2 or more, and mean and var together"
        )
    if mean is None:
        over = (0, *range(2, len(x.shape)))
        y = _standardised(x, over, eps)
    else:
        variance = _plus_eps(per_channel(x, var), eps)
        y = (x - per_channel(x, mean)) / f.sqrt(variance)
    return _affine(y, per_channel(x, weight), per_channel(x, bias))


@public
def scaled_dot_product_attention(
    q: Any,
    k: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(q @ k^T * scale + mask) @ value, PyTorch's attention.

    Args:
        q: Queries, (..., heads, queries, features).
        k: Keys, (..., heads, keys, features).
        value: Values, (..., heads, keys, features).
        attn_mask: Added to the logits; or where a query may look at a key.  A query
            that may look at none gives 0.
        dropout_p: Must be 0.
        is_causal: Query i looks at keys 0 to i.
        scale: Of the logits; one over the root of the features by default.
        enable_gqa: Several heads of queries share one of keys and values.
    """
    if dropout_p:
        raise UnsupportedError.here(
            f"attention with dropout_p={dropout_p}: kernels have no random numbers; "
            "leave it at 0"
        )
    if is_causal and attn_mask is not None:
        raise UnsupportedError.here(
            "attention with is_causal=True and an attn_mask; PyTorch takes one of them"
        )
    if enable_gqa:
        repeats = int(q.shape[-3]) // int(k.shape[-3])
        k, value = (f.repeat_interleave(t, repeats, -3) for t in (k, value))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    logits = f.matmul(q, f.swapaxes(k, -1, -2)) * factor
    # PyTorch's fused attention has the heads inside of the rows.
    if is_causal:
        attn_mask = f.less_equal(positions(logits, -1), positions(logits, -2))
    if attn_mask is None:
        return f.matmul(softmax(logits), value).with_unknown_strides()
    if is_condition(attn_mask):
        masked = f.where(attn_mask, logits, -math.inf)
    else:
        # A wider mask makes for wider logits, and leaves the result as it is.
        masked = logits + attn_mask
    weights = f.to(_masked_softmax(masked), value)
    return f.matmul(weights, value).with_unknown_strides()


def _masked_softmax(logits: Any) -> Any:
    """The softmax of rows, and 0 for one that is masked wholly."""
    e = f.exp(logits - f.rowshift(logits, -1))
    return e / apply(OR_ONE, f.sum(e, -1, keepdims=True))


# -- einsum ----------------------------------------------------------------------------

_ELLIPSIS = "..."


@public
def einsum(equation: Any, *operands: Any) -> Any:
    """Products summed over labelled axes, from left to right.

    Ellipses and equations without `->` mean what they do for NumPy and PyTorch; of a
    label that stands twice in one operand it is the diagonal.

    Raises:
        ShapeError: The equation does not fit the operands.
    """
    given: list[Any] = list(flat_arguments(operands))
    terms, output = _labels(str(equation), [x.ndim for x in given])
    _check_result(str(equation), terms, output)
    given = _in_one_format(given)
    for at, labels in enumerate(terms):
        terms[at], given[at] = _of_diagonals(str(equation), labels, given[at])
    for at in range(len(terms)):
        terms[at], given[at] = _without_ones(terms, at, given)
    term, x = terms[0], given[0]
    for at in range(1, len(terms)):
        wanted = set(output).union(*terms[at + 1 :])
        both = dict.fromkeys(term + terms[at])
        last = at == len(terms) - 1
        kept = output if last else "".join(c for c in both if c in wanted)
        x, term = _pair(term, terms[at], kept, x, given[at]), kept
    if not terms[1:]:
        return _single(term, output, x)
    found = x if term == output else _single(term, output, x)
    return found.with_unknown_strides()


def _of_numpy(x: Any) -> bool:
    return x.recorder.origin.library == "numpy"


def _in_one_format(operands: Sequence[Any]) -> list[Any]:
    """The operands as NumPy computes with them; PyTorch multiplies any by any."""
    given = [as_tensor("einsum", x) for x in operands]
    if not _of_numpy(given[0]):
        return given
    dtype = f.joined_format([x.handle for x in given], given[0].recorder.origin)
    return [f.to(x, dtype) for x in given]


def _check_result(equation: str, terms: Sequence[str], output: str) -> None:
    """Refuse labels of a result that stand there twice, or in no operand."""
    if len(set(output)) != len(output):
        raise ShapeError.here(
            f"einsum({equation!r}): a label stands twice in the result"
        )
    unknown = set(output).difference(*terms)
    if unknown:
        raise ShapeError.here(
            f"einsum({equation!r}): no operand has the label "
            f"{', '.join(sorted(unknown))} of the result"
        )


def _of_diagonals(equation: str, term: str, x: Any) -> tuple[str, Any]:
    """An operand with each label once: the diagonal of the axes that have it."""
    for label in dict.fromkeys(term):
        while term.count(label) > 1:
            first = term.index(label)
            second = term.index(label, first + 1)
            if x.shape[first] != x.shape[second]:
                raise ShapeError.here(
                    f"einsum({equation!r}): the label {label} is of extents "
                    f"{x.shape[first]} and {x.shape[second]} in one operand"
                )
            x = diagonal(x, 0, first, second)
            term = term[:first] + term[first + 1 : second] + term[second + 1 :] + label
    return term, x


def _labels(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The labels of each operand and of the result, one for each axis."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ShapeError.here(
            f"einsum({equation!r}) names {len(terms)} operands, found {len(ranks)}"
        )
    spare = [c for c in string.ascii_letters if c not in equation]
    hidden = [
        rank - len(term.replace(_ELLIPSIS, "")) if _ELLIPSIS in term else 0
        for term, rank in zip(terms, ranks, strict=True)
    ]
    around = "".join(spare[: max(0, *hidden)])
    expanded = [
        term.replace(_ELLIPSIS, around[len(around) - max(count, 0) :])
        for term, count in zip(terms, hidden, strict=True)
    ]
    for term, rank, text in zip(expanded, ranks, terms, strict=True):
        if len(term) != rank or (not term.isalpha() and rank):
            raise ShapeError.here(
                f"einsum({equation!r}): {text!r} has {len(term)} labels, but the "
                f"operand has {rank} axes"
            )
    if arrow:
        return expanded, output.replace(_ELLIPSIS, around)
    every = "".join(expanded)
    once = sorted(c for c in set(every) - set(around) if every.count(c) == 1)
    return expanded, around + "".join(once)


def _without_ones(
    terms: Sequence[str], at: int, given: Sequence[Any]
) -> tuple[str, Any]:
    """An operand without axes of extent 1 along which another one is longer."""
    longer = {
        label
        for term, x in zip(terms, given, strict=True)
        for label, extent in zip(term, x.shape, strict=True)
        if not isinstance(extent, int) or extent != 1
    }
    term, x = terms[at], given[at]
    ones = [i for i, c in enumerate(term) if c in longer and x.shape[i] == 1]
    kept = "".join(c for i, c in enumerate(term) if i not in ones)
    return kept, f.squeeze(x, tuple(ones)) if ones else x


def _single(term: str, output: Sequence[str], x: Any) -> Any:
    """The operand summed over labels that are not wanted, the others in order.

    NumPy's einsum adds up in the format of the operands, unlike its sum.
    """
    gone = tuple(i for i, c in enumerate(term) if c not in output)
    x = f.sum(x, gone, dtype=x.dtype if _of_numpy(x) else None) if gone else x
    left = [c for c in term if c in output]
    return f.permute(x, [left.index(c) for c in output])


def _pair(a: str, b: str, out: str, x: Any, y: Any) -> Any:
    """One matrix product: batch, own and contracted labels side by side.

    Where no label is contracted it is a product of elements, in any formats.
    """
    batch = [c for c in out if c in a and c in b]
    own_a, own_b = ([c for c in out if c in t and c not in batch] for t in (a, b))
    both = [c for c in a if c in b and c not in out]
    if not both:
        return _spread(a, out, x) * _spread(b, out, y)
    x = _arranged(x, a, batch, own_a, both)
    y = _arranged(y, b, batch, both, own_b)
    order = [*batch, *own_a, *own_b]
    result = f.matmul(x[0], y[0])
    shape = [*x[1][: len(batch)], *x[1][len(batch) :][: len(own_a)]]
    shape += y[1][len(batch) + len(both) :]
    return f.permute(f.reshape(result, shape), [order.index(c) for c in out])


def _spread(labels: str, out: str, x: Any) -> Any:
    """The operand with an axis for each label of the result, of extent 1 without it."""
    missing = tuple(i for i, c in enumerate(out) if c not in labels)
    x = _single(labels, [c for c in out if c in labels], x)
    return f.expand_dims(x, missing) if missing else x


def _arranged(
    x: Any, labels: str, batch: list[str], first: list[str], second: list[str]
) -> tuple[Any, list[Any]]:
    """The operand as (batch..., first, second), and the extents of all its labels."""
    kept = [*batch, *first, *second]
    x = _single(labels, kept, x)
    sizes = list(x.shape)
    start, middle = len(batch), len(batch) + len(first)
    if not first:
        x = f.expand_dims(x, start)
        middle += 1
    elif len(first) > 1:
        x = f.flatten(x, start, middle - 1)
        middle = start + 1
    if not second:
        return f.expand_dims(x, middle), sizes
    return (f.flatten(x, middle, -1) if len(second) > 1 else x), sizes
