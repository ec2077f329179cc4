"""Functions of matrices: diagonals, products of other shapes, grids of points.

Each is a formula of other functions: a diagonal is elements at positions, and what
stands on one is chosen by a comparison of positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend import views as v
from mirage_dsl.frontend.constructors import arange, positions
from mirage_dsl.frontend.dims import shape_text
from mirage_dsl.frontend.memory import link
from mirage_dsl.frontend.operands import as_tensor, is_condition
from mirage_dsl.frontend.rearranging import pad
from mirage_dsl.frontend.tensor import Tensor

# -- Diagonals -------------------------------------------------------------------------


def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A diagonal of the matrices in two axes, as a new last axis.

    It is made of elements at positions, and a view in PyTorch and NumPy: after a write
    to one of both the other is in doubt.

    Args:
        x: The tensor.
        offset: How far it is above the main one; below 0, below it.
        dim1: The axis of rows.
        dim2: The axis of columns.

    Raises:
        ShapeError: The matrices have no such diagonal.
    """
    x = as_tensor("diagonal", x)
    first, second = shapes.normal_axes((dim1, dim2), x.ndim, "diagonal")
    rest = [i for i in range(x.ndim) if i not in (first, second)]
    rows, columns = (shapes.integer(x.shape[i], "an extent") for i in (first, second))
    count = min(rows + min(offset, 0), columns - max(offset, 0))
    if count < 1:
        raise ShapeError(
            f"the diagonal {offset} of {shape_text(x.handle)}: there is none",
            user_location(),
        )
    matrices = v.permute(x, *rest, first, second)
    # One element of each row: the stride of a flat index would be a number that does
    # not follow extents.
    each, start = v.narrow(matrices, -2, max(-offset, 0), count), max(offset, 0)
    column = v.reshape(arange(start, start + count), *[1] * len(rest), count, 1)
    found = v.squeeze(f.take_along_dim(each, column, -1), -1).clone()
    link(x.memory, found.memory)
    return found


def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Matrices that are 0 but on a diagonal, which the last axis holds."""
    x = as_tensor("diag_embed", x)
    given = shapes.integer(x.shape[-1], "an extent")
    extent = given + abs(offset)
    if offset:
        # On a diagonal above the main one a column holds an earlier element.
        x = pad(x, (max(offset, 0), max(-offset, 0)))
    wide = v.expand(v.expand_dims(x, -2), *x.shape[:-1], extent, extent)
    rows, columns = positions(wide, -2), positions(wide, -1)
    found = f.where(f.equal(columns, rows + offset if offset else rows), wide, 0)
    found = v.astype(found, x)
    if (dim1, dim2) == (-2, -1):
        return found
    places = shapes.normal_axes((dim1, dim2), found.ndim, "diag_embed")
    order = list(range(found.ndim - 2))
    for place, axis in sorted(zip(places, (-2, -1), strict=True)):
        order.insert(place, found.ndim + axis)
    return v.permute(found, *order)


def diag(x: Any, diagonal_: int = 0) -> Any:
    """The diagonal of a matrix, or the matrix that a vector is the diagonal of."""
    x = as_tensor("diag", x)
    if x.ndim > 2 or not x.ndim:
        raise ShapeError(
            f"diag of {shape_text(x.handle)}; expected a matrix or a vector",
            user_location(),
        )
    whole = diag_embed if x.ndim == 1 else diagonal
    return whole(x.clone(), diagonal_)


def diagflat(x: Any, offset: int = 0) -> Any:
    """The matrix that all elements are the diagonal of, whatever their shape."""
    return diag_embed(v.flatten(as_tensor("diagflat", x)), offset)


def trace(x: Any) -> Any:
    """The sum of the main diagonal of a matrix."""
    return f.sum(diagonal(x))


def fill_diagonal(x: Any, fill_value: Any, wrap: bool = False) -> Any:
    """The matrix with a number on its main diagonal."""
    x = as_tensor("fill_diagonal_", x)
    if x.ndim != 2 or wrap:
        raise UnsupportedError(
            f"fill_diagonal_ of {shape_text(x.handle)} with wrap={wrap}; expected a "
            "matrix, and no wrapping",
            user_location(),
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
        left = shapes.normal_axes(dims[0], a.ndim, "tensordot")
        right = shapes.normal_axes(dims[1], b.ndim, "tensordot")
    own = [i for i in range(a.ndim) if i not in left]
    others = [i for i in range(b.ndim) if i not in right]
    kept = [a.shape[i] for i in own] + [b.shape[i] for i in others]
    rows = v.permute(a, *own, *left)
    columns = v.permute(b, *right, *others)
    count = math.prod(int(a.shape[i]) for i in left)
    wide = math.prod(int(s) for s in kept[: len(own)])
    found = f.matmul(v.reshape(rows, wide, count), v.reshape(columns, count, -1))
    return v.reshape(found, *kept) if kept else v.reshape(found, ())


def _numpy_tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    return tensordot(a, b, axes)


def inner(a: Any, b: Any) -> Any:
    """The sums of products over the last axes of both."""
    a, b = as_tensor("inner", a), as_tensor("inner", b)
    if not a.ndim or not b.ndim:
        return a * b
    return tensordot(a, b, ((-1,), (-1,)))


def kron(a: Any, b: Any) -> Any:
    """Each element of the first tensor times the whole second one."""
    a, b = as_tensor("kron", a), as_tensor("kron", b)
    rank = max(a.ndim, b.ndim)
    first = v.reshape(a, *(1,) * (rank - a.ndim), *a.shape)
    second = v.reshape(b, *(1,) * (rank - b.ndim), *b.shape)
    shape = [m * n for m, n in zip(first.shape, second.shape, strict=True)]
    for axis in range(rank):
        first = v.expand_dims(first, 2 * axis + 1)
        second = v.expand_dims(second, 2 * axis)
    return v.reshape(first * second, *shape)


def cross(a: Any, b: Any, dim: int = -1) -> Any:
    """The cross products of vectors of three elements along an axis."""
    a, b = as_tensor("cross", a), as_tensor("cross", b)
    at = shapes.normal_axis(dim, a.ndim, "cross")
    if a.shape[at] != 3 or b.shape[at] != 3:
        raise ShapeError(
            f"cross of {shape_text(a.handle)} by {shape_text(b.handle)} along axis "
            f"{at}; expected 3 elements there",
            user_location(),
        )
    x, y = v.unbind(a, at), v.unbind(b, at)
    parts = [
        x[(i + 1) % 3] * y[(i + 2) % 3] - x[(i + 2) % 3] * y[(i + 1) % 3]
        for i in range(3)
    ]
    return v.stack(parts, at)


def multi_dot(tensors: Sequence[Any]) -> Any:
    """The product of matrices, of which the first and the last may be vectors."""
    found, *others = tensors
    for other in others:
        found = f.matmul(found, other)
    return found


def matrix_power(x: Any, n: int) -> Any:
    """Square matrices multiplied by themselves."""
    count = shapes.integer(n, "a power")
    if count < 1:
        raise UnsupportedError(
            f"matrix_power of order {count}; expected 1 or more", user_location()
        )
    found = None
    while count:
        if count % 2:
            found = x if found is None else f.matmul(found, x)
        count //= 2
        x = f.matmul(x, x) if count else x
    return found


def _scaled(x: Any, by: Any) -> Any:
    return x if by == 1 else x * by


def _added(product: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A product of two tensors as `addmv`, added to a third one."""

    def added(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if is_condition(x):
            raise DTypeError(
                "a product of truth values, added to others; cast them to numbers",
                user_location(),
            )
        found = _scaled(product(a, b), alpha)
        return found if beta == 0 else found + _scaled(x, beta)

    return added


def _outer(a: Any, b: Any) -> Any:
    return v.expand_dims(a, 1) * v.expand_dims(b, 0)


def _summed_products(a: Any, b: Any) -> Any:
    return f.sum(f.matmul(a, b), 0)


def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """For each matrix of weights the product of it with a vector on either side."""
    left = f.matmul(v.expand_dims(input1, -2), v.flatten(weight.permute(1, 0, 2), 1))
    left = v.reshape(left, *input1.shape[:-1], weight.shape[0], weight.shape[2])
    found = f.sum(left * v.expand_dims(input2, -2), -1)
    return found if bias is None else found + bias


# -- Grids -----------------------------------------------------------------------------


def meshgrid(*tensors: Any, indexing: str = "ij") -> Any:
    """For each vector a tensor in which its elements go along an axis of their own."""
    given = shapes.flat_arguments(tensors)
    vectors = [v.reshape(t, -1) for t in given]
    if indexing not in ("ij", "xy"):
        raise UnsupportedError(
            f"meshgrid with indexing={indexing!r}; expected 'ij' or 'xy'",
            user_location(),
        )
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = 1, 0
    shape = [vectors[i].shape[0] for i in order]
    found: list[Any] = []
    for number, vector in enumerate(vectors):
        sizes = [1] * len(order)
        sizes[order.index(number)] = vector.shape[0]
        found.append(v.expand(v.reshape(vector, *sizes), *shape))
    return tuple(found)


def _numpy_meshgrid(*vectors: Any, indexing: str = "xy") -> Any:
    """NumPy's, whose results are copies and start with the second axis."""
    return tuple(t.clone() for t in meshgrid(*vectors, indexing=indexing))


def cartesian_prod(*tensors: Any) -> Any:
    """All combinations of the elements of vectors, one in each row."""
    if len(tensors) == 1:
        return tensors[0]
    return v.stack([v.reshape(t, -1) for t in meshgrid(*tensors)], 1)


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
    return v.concat(rows, 0)


def _as_matrix(x: Any) -> Tensor:
    x = as_tensor("block_diag", x)
    return v.reshape(x, 1, -1) if x.ndim < 2 else x


MATRICES: Mapping[str, Callable[..., Any]] = {
    "diag": diag,
    "diagonal": diagonal,
    "inner": inner,
    "kron": kron,
    "trace": trace,
}
"""By the names that PyTorch and NumPy share."""

OF_PYTORCH: Mapping[str, Callable[..., Any]] = {
    "addbmm": _added(_summed_products),
    "addmv": _added(f.matmul),
    "addr": _added(_outer),
    "bilinear": bilinear,
    "block_diag": block_diag,
    "cartesian_prod": cartesian_prod,
    "cross": cross,
    "diag_embed": diag_embed,
    "diagflat": diagflat,
    "fill_diagonal": fill_diagonal,
    "linalg_cross": cross,
    "linalg_diagonal": diagonal,
    "linalg_matrix_power": matrix_power,
    "linalg_multi_dot": multi_dot,
    "matrix_power": matrix_power,
    "meshgrid": meshgrid,
    "tensordot": tensordot,
}
"""By PyTorch's names."""

OF_NUMPY: Mapping[str, Callable[..., Any]] = {
    "meshgrid": _numpy_meshgrid,
    "tensordot": _numpy_tensordot,
}
"""By NumPy's names."""
