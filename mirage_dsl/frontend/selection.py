"""PyTorch's functions that select or reorder elements along an axis: sorts, medians.

They are library operators, which see three axes: all before that axis, it, all behind.
Those with two results, values and indices, are two operators of one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mirage_dsl.core.errors import (
    CheckError,
    DTypeError,
    ShapeError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.core.types import boolean
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend import views as v
from mirage_dsl.frontend.dims import DimVars, Handle, atoms_of
from mirage_dsl.frontend.operands import as_tensor
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ops.table import OPERATORS

Function = Callable[..., Any]


class Selection(NamedTuple):
    """Elements, and where they were along the axis."""

    values: Any
    indices: Any


def _along(
    name: str,
    x: Tensor,
    axis: int,
    numbers: Mapping[str, int] | None = None,
    *,
    keeps: bool = True,
) -> Tensor:
    """A library operator along an axis, which may get another extent if not `keeps`."""
    if x.handle.value.dtype == boolean:
        raise DTypeError(
            f"{name} of truth values; cast them to numbers", user_location()
        )
    axes = x.handle.axes
    before, own, behind = atoms_of(axes[:axis]), axes[axis], atoms_of(axes[axis + 1 :])
    kept: dict[int, DimVars] = {0: before, 2: behind}
    if keeps:
        kept[1] = own
    merged = Handle(x.handle.value, (before, own, behind))
    given = {key: (value,) for key, value in (numbers or {}).items()}
    try:
        made = x.recorder.library(OPERATORS[name], [merged], given, kept)
    except CheckError as error:
        raise ShapeError(f"{name}: {error.message}", user_location()) from None
    found = Handle(made.value, (*axes[:axis], made.axes[1], *axes[axis + 1 :]))
    return Tensor.made(x.recorder, found, ())


def _placed(what: str, x: Any, dim: Any) -> tuple[Tensor, int]:
    """The tensor, and the place of the axis."""
    x = as_tensor(what, x)
    if x.ndim == 0:
        raise ShapeError(f"{what} of a number; it has no axis", user_location())
    (at,) = shapes.normal_axes(shapes.integer(dim, "an axis"), x.ndim, what)
    return x, at


def reversed_along(x: Tensor, axis: int) -> Tensor:
    """Elements in reverse order along an axis."""
    return _along("flip", x, axis)


# -- PyTorch's -------------------------------------------------------------------------


def sort(
    x: Any, dim: int = -1, descending: bool = False, stable: bool = False
) -> Selection:
    """The elements in order; equal ones stay as they were, whatever `stable` says."""
    del stable
    x, at = _placed("sort", x, dim)
    numbers = {"descending": int(descending)}
    return Selection(_along("sort", x, at, numbers), _along("argsort", x, at, numbers))


def argsort(
    x: Any, dim: int = -1, descending: bool = False, stable: bool = False
) -> Any:
    """Where the elements in order were."""
    return sort(x, dim, descending, stable).indices


def topk(
    x: Any,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> Selection:
    """The largest or smallest elements in order, whatever `sorted` says."""
    del sorted
    x, at = _placed("topk", x, dim)
    numbers = {"k": shapes.integer(k, "k"), "largest": int(largest)}
    found = (_along(n, x, at, numbers, keeps=False) for n in ("topk", "argtopk"))
    return Selection(*found)


def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Selection:
    """The k-th smallest element, counted from 1."""
    x, at = _placed("kthvalue", x, dim)
    return _single(("kthvalue", "argkthvalue"), x, at, keepdim, k=k)


def median(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median: of all elements, or with its index along an axis."""
    x = as_tensor("median", x)
    if dim is None:
        return _single(("median", "argmedian"), v.flatten(x), 0, False).values
    x, at = _placed("median", x, dim)
    return _single(("median", "argmedian"), x, at, keepdim)


def _single(
    names: tuple[str, str], x: Tensor, axis: int, keepdim: bool, **numbers: int
) -> Selection:
    """One element of each row, and its index."""
    found = (_along(n, x, axis, numbers, keeps=False) for n in names)
    return Selection(*(e if keepdim else v.squeeze(e, axis) for e in found))


SELECTIONS: Mapping[str, Function] = {
    "sort": sort,
    "argsort": argsort,
    "topk": topk,
    "kthvalue": kthvalue,
    "median": median,
}
"""By PyTorch's names."""


# -- NumPy's ---------------------------------------------------------------------------


def _numpy_axis(x: Any, axis: int | None, kind: str | None) -> tuple[Any, int]:
    if kind not in (None, "quicksort", "stable"):
        raise UnsupportedError(
            f"a sort of the kind {kind!r}; leave it out", user_location()
        )
    return (v.flatten(x), 0) if axis is None else (x, axis)


def _numpy_sort(x: Any, axis: int | None = -1, kind: str | None = None) -> Any:
    return sort(*_numpy_axis(x, axis, kind)).values


def _numpy_argsort(x: Any, axis: int | None = -1, kind: str | None = None) -> Any:
    return sort(*_numpy_axis(x, axis, kind)).indices


NUMPY_SELECTIONS: Mapping[str, Function] = {
    "sort": _numpy_sort,
    "argsort": _numpy_argsort,
}
"""By NumPy's names."""

__all__ = ["NUMPY_SELECTIONS", "SELECTIONS", "Selection", "reversed_along"]
