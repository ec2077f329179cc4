"""Sums, means and losses of all elements that a mask selects.

How many there are is a sum of the mask, and the others count as 0.  A loss by labels is
that of all rows, where the label of those that are not selected is the one it ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirage_dsl.core.types import f32, promote
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import is_sequence
from mirage_dsl.frontend.places import LOSSES, Selected, by_rows
from mirage_dsl.frontend.recorder import normal_axes

Axes = tuple[int, ...]

_BY_LABELS = frozenset({"cross_entropy", "nll_loss"})
_SYNONYMS = {"axis": "dim", "keepdims": "keepdim"}
"""Arguments of NumPy's sums and means, as PyTorch calls them."""


def is_total(
    name: str, x: Selected, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a function of selected elements is of all of them, and not by rows."""
    if name in ("mean", "sum"):
        told = kwargs.get("dim", kwargs.get("axis"))
        axis = args[1] if len(args) > 1 else told
        return not isinstance(axis, int) or axis in (0, -x.rank - 1)
    return name in LOSSES | _BY_LABELS and kwargs.get("reduction") != "none"


def total(
    name: str,
    x: Selected,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    function: Callable[..., Any] | None,
) -> Any:
    """A sum, a mean, or a loss that is reduced, of selected elements.

    Args:
        name: What it is called.
        x: The first argument that is selected elements.
        args: Arguments by position.
        kwargs: Those by keyword.
        function: What a loss computes of tensors.

    Raises:
        UnsupportedError: It is not of all of them, or its arguments are not known.
    """
    told = {_SYNONYMS.get(n, n): v for n, v in kwargs.items() if v is not None}
    if name in ("mean", "sum"):
        told |= dict(zip(("dim", "keepdim"), args[1:], strict=False))
        known = told.keys() <= {"dim", "dtype", "keepdim"} and not args[3:]
        return _reduced(name, x, **told) if known and args[0] is x else x.refuse()
    if function is None or args[2:] or told.keys() & {"size_average", "reduce"}:
        return x.refuse()
    if name in _BY_LABELS:
        return _by_labels(args, told, function)
    how = told.pop("reduction", "mean")
    each = by_rows(name, args, {**told, "reduction": "none"}, function)
    return _reduced(how, each)


def _reduced(
    how: str, x: Selected, dim: Any = None, keepdim: Any = False, dtype: Any = None
) -> Any:
    every = dim is None or (is_sequence(dim) and not dim)
    axes = normal_axes(None if every else dim, x.rank + 1, how)
    if 0 not in axes or keepdim:
        x.refuse()
    places = x.mask.ndim
    gone = (*range(places), *(places + axis - 1 for axis in axes if axis))
    return (_sum if how == "sum" else _mean)(x, gone, dtype)


def _sum(x: Selected, axes: Axes, dtype: Any) -> Any:
    nothing = False if f.is_condition(x.whole) else 0
    return f.sum(f.where(x.condition, x.whole, nothing), axes, dtype=dtype)


def _mean(x: Selected, axes: Axes, dtype: Any) -> Any:
    """The sum over how many there are, both of f32 at least up to the quotient."""
    whole = x.whole if dtype is None else f.to(x.whole, dtype)
    wanted = f.averaged_format(whole.handle.value.dtype, x.mask.recorder.origin)
    kept = f.where(x.condition, f.to(whole, promote(wanted, f32)), 0)
    counted = f.sum(f.expand(x.condition, *kept.shape), axes)
    return f.to(f.sum(kept, axes) / f.to(counted, kept), wanted)


def _by_labels(
    args: Sequence[Any], told: Mapping[str, Any], function: Callable[..., Any]
) -> Any:
    """The loss of rows by their labels, which are of the same places."""
    rows, labels = args
    for selected in (x for x in args if isinstance(x, Selected)):
        other = labels if selected is rows else rows
        if not isinstance(other, Selected) or not selected.is_of_places_of(other):
            selected.refuse()
    if (rows.rank, labels.rank) != (1, 0):
        rows.refuse()
    ignored, classes = told.get("ignore_index", -100), rows.whole.shape[-1]
    whole = f.expand(rows.whole, *rows.mask.shape, classes)
    chosen = f.expand(f.where(rows.mask, labels.whole, ignored), *rows.mask.shape)
    return function(f.reshape(whole, -1, classes), f.reshape(chosen, -1), **told)
