"""PyTorch's comparisons within a tolerance, counts, distances and integrals.

Each is a formula of other functions, so that the search sees what it consists of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.core.types import boolean
from mirage_dsl.frontend import composites as c
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend import views as v
from mirage_dsl.frontend.attributes import NO_NUMBERS
from mirage_dsl.frontend.operands import as_tensor, complement
from mirage_dsl.frontend.tensor import Tensor

# -- Comparisons -----------------------------------------------------------------------


def isclose(
    x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Where two tensors differ by atol + rtol |y| at most; equal infinities do.

    Raises:
        DTypeError: They are of different dtypes, or of truth values.
        UnsupportedError: NaN is to be close to NaN, or a tolerance is below 0.
    """
    x, y = as_tensor("isclose", x), as_tensor("isclose", y)
    _check_alike("isclose", x, y)
    if x.handle.value.dtype == boolean:
        raise DTypeError("isclose of truth values; compare with ==", user_location())
    if equal_nan:
        raise UnsupportedError(
            f"isclose with equal_nan=True cannot be traced; {NO_NUMBERS}",
            user_location(),
        )
    if rtol < 0 or atol < 0:
        raise UnsupportedError(
            f"isclose with rtol={rtol}, atol={atol}; expected 0 or more",
            user_location(),
        )
    apart = f.abs(x - y)
    # Of an infinite difference and an infinite tolerance there is no difference.
    near = f.less_equal(apart - (atol + f.abs(y * float(rtol))), 0)
    return near if f.is_whole(x) else f.bitwise_or(f.equal(x, y), near)


def _check_alike(what: str, x: Tensor, y: Tensor) -> None:
    dtypes = x.handle.value.dtype, y.handle.value.dtype
    if dtypes[0] != dtypes[1]:
        raise DTypeError(
            f"{what} of {dtypes[0]} and {dtypes[1]}: PyTorch takes one dtype there; "
            "convert one of them",
            user_location(),
        )


def isin(
    elements: Any,
    test_elements: Any,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Any:
    """Where an element is one of others."""
    del assume_unique
    x = as_tensor("isin", elements)
    if isinstance(test_elements, Tensor):
        others = v.reshape(test_elements, -1)
        found = f.max(f.equal(v.expand_dims(x, -1), others), -1)
    else:
        found = f.equal(x, test_elements)
    return complement(found) if invert else found


def bucketize(
    input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False
) -> Any:
    """How many sorted boundaries are below each element, with `right` not above it."""
    x = as_tensor("bucketize", input)
    edges = as_tensor("bucketize", boundaries)
    _check_alike("bucketize", x, edges)
    if edges.ndim != 1:
        raise ShapeError(
            f"bucketize by boundaries of rank {edges.ndim}; expected a vector",
            user_location(),
        )
    x = v.expand_dims(x, -1)
    # NaN is above all others, as PyTorch sorts it.
    below = complement(f.less(x, edges) if right else f.less_equal(x, edges))
    return f.sum(below, -1, dtype="int32" if out_int32 else "int64")


def count_nonzero(x: Any, dim: Any = None) -> Any:
    """How many elements are not 0, of all or along axes."""
    return f.sum(f.not_equal(as_tensor("count_nonzero", x), 0), dim)


# -- Distances -------------------------------------------------------------------------


def cdist(
    x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist"
) -> Any:
    """The distances of all rows of one matrix from all rows of another.

    They are norms of differences in each mode: products of matrices lose the digits of
    rows that are close.
    """
    del compute_mode
    x, y = as_tensor("cdist", x1), as_tensor("cdist", x2)
    _check_alike("cdist", x, y)
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-1] or p < 0:
        raise ShapeError(
            f"cdist of {tuple(x.shape)} and {tuple(y.shape)} with p={p}; expected rows "
            "of one length, and an order of 0 or more",
            user_location(),
        )
    return _between(v.expand_dims(x, -2), v.expand_dims(y, -3), p)


@c.within_f32
def _between(x: Any, y: Any, order: float) -> Any:
    return c.vector_norm(x - y, order, -1, False)


def dist(x: Any, other: Any, p: float = 2) -> Any:
    """The norm of the difference of all elements."""
    return c.vector_norm(x - other, p, None, False)


_BESIDE_A_NORM = 1e-7
"""What PyTorch adds to a norm that it divides by."""


@c.within_f32
def renorm(x: Any, p: float, dim: int, maxnorm: float) -> Any:
    """The slices along an axis, those of a larger norm scaled to it."""
    at = shapes.normal_axis(dim, x.ndim, "renorm")
    others = tuple(i for i in range(x.ndim) if i != at)
    if not others or p <= 0 or maxnorm < 0:
        raise ShapeError(
            f"renorm of a tensor of rank {x.ndim} with p={p}, maxnorm={maxnorm}; "
            "expected two axes or more, a positive order and a norm of 0 or more",
            user_location(),
        )
    norm = c.vector_norm(x, p, others, True)
    factor = maxnorm / (norm + _BESIDE_A_NORM)
    return x * f.where(f.greater(norm, maxnorm), factor, 1.0)


# -- Integrals -------------------------------------------------------------------------


def _neighbours(x: Any, axis: int) -> tuple[Any, Any]:
    """All elements along an axis but the last, and all but the first."""
    count = shapes.integer(x.shape[axis], "an extent") - 1
    return v.narrow(x, axis, 0, count), v.narrow(x, axis, 1, count)


def _areas(what: str, y: Any, x: Any, dx: Any, dim: int) -> tuple[Any, int]:
    """Twice the areas of the trapezoids between neighbours, and their axis."""
    y = as_tensor(what, y)
    at = shapes.normal_axis(dim, y.ndim, what)
    if y.shape[at] == 1:
        raise ShapeError(f"{what} of one point has no areas", user_location())
    sooner, later = _neighbours(y, at)
    if x is None:
        return (sooner + later) * (1.0 if dx is None else dx), at
    x = as_tensor(what, x)
    if x.ndim == 1:
        x = v.reshape(x, -1, *(1,) * (y.ndim - at - 1))
    before, behind = _neighbours(x, at - y.ndim)
    return (sooner + later) * (behind - before), at


def trapezoid(y: Any, x: Any = None, *, dx: Any = None, dim: int = -1) -> Any:
    """The integral along an axis, of points at x or dx apart."""
    areas, at = _areas("trapezoid", y, x, dx, dim)
    return f.sum(areas, at) / 2.0


def cumulative_trapezoid(
    y: Any, x: Any = None, *, dx: Any = None, dim: int = -1
) -> Any:
    """The integrals up to each point but the first."""
    areas, at = _areas("cumulative_trapezoid", y, x, dx, dim)
    return f.cumsum(areas, at) / 2.0


MEASURES: Mapping[str, Callable[..., Any]] = {
    "bucketize": bucketize,
    "cdist": cdist,
    "count_nonzero": count_nonzero,
    "cumulative_trapezoid": cumulative_trapezoid,
    "dist": dist,
    "isclose": isclose,
    "isin": isin,
    "renorm": renorm,
    "trapezoid": trapezoid,
    "trapz": trapezoid,
}
"""By PyTorch's names."""
