"""Sums, other reductions and losses of all elements that a mask selects.

How many there are is a sum of the mask, and the others count as what changes nothing: 0
in a sum, minus infinity in a maximum.  A loss by labels is that of all rows, where the
label of those that are not selected is the one it ignores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirage_dsl.core.types import f32, promote
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import torch_functions
from mirage_dsl.frontend.arguments import is_sequence
from mirage_dsl.frontend.composites import within_f32
from mirage_dsl.frontend.namespace import LOGICAL
from mirage_dsl.frontend.places import LOSSES, Selected, by_rows
from mirage_dsl.frontend.recorder import normal_axes

Axes = tuple[int, ...]

_BY_LABELS = frozenset({"cross_entropy", "nll_loss"})
_SYNONYMS = {"axis": "dim", "keepdims": "keepdim"}
"""Arguments of NumPy's sums and means, as PyTorch calls them."""
_AXES = ("dim", "keepdim")
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("all", "amax", "amin", "any", "count_nonzero"), _AXES),
    **dict.fromkeys(("logsumexp", "mean", "prod", "sum"), _AXES),
    **dict.fromkeys(("max", "min"), ()),
    **dict.fromkeys(("std", "var"), ("dim", "unbiased", "keepdim")),
    "norm": ("p", *_AXES),
}
"""Reductions, with their arguments behind the first one, by position."""
TOTALS = _ARGUMENTS.keys()
_OPTIONS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("mean", "prod", "sum"), frozenset({"dtype"})),
    **dict.fromkeys(("std", "var"), frozenset({"correction", "ddof"})),
}
"""Those by keyword alone."""


def is_total(
    name: str, x: Selected, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a function of selected elements is of all of them, and not by rows."""
    if name in ("max", "min"):
        return len(args) == 1
    if name in _ARGUMENTS:
        axis = _told(name, args, kwargs).get("dim")
        return not isinstance(axis, int) or axis in (0, -x.rank - 1)
    return name in LOSSES | _BY_LABELS and kwargs.get("reduction") != "none"


def _told(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a reduction or a loss by PyTorch's names."""
    told = {_SYNONYMS.get(n, n): v for n, v in kwargs.items() if v is not None}
    return told | dict(zip(_ARGUMENTS.get(name, ()), args[1:], strict=False))


def total(
    name: str,
    x: Selected,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    function: Callable[..., Any] | None,
) -> Any:
    """A reduction, or a loss that is reduced, of selected elements.

    Args:
        name: What it is called.
        x: The first argument that is selected elements.
        args: Arguments by position.
        kwargs: Those by keyword.
        function: What a loss computes of tensors.

    Raises:
        UnsupportedError: It is not of all of them, or its arguments are not known.
    """
    told = _told(name, args, kwargs)
    if name in _ARGUMENTS:
        names = _ARGUMENTS[name]
        known = told.keys() <= {*_AXES, *names, *_OPTIONS.get(name, ())}
        if not known or args[len(names) + 1 :] or args[0] is not x:
            x.refuse()
        return _reduced(name, x, **told)
    if function is None or args[2:] or told.keys() & {"size_average", "reduce"}:
        return x.refuse()
    if name in _BY_LABELS:
        return _by_labels(args, told, function)
    how = told.pop("reduction", "mean")
    each = by_rows(name, args, {**told, "reduction": "none"}, function)
    return _reduced(how, each)


def _reduced(
    how: str, x: Selected, dim: Any = None, keepdim: Any = False, **options: Any
) -> Any:
    if isinstance(dim, bool):
        # PyTorch's `var(unbiased)`.
        dim, options = None, {"unbiased": dim, **options}
    every = dim is None or (is_sequence(dim) and not dim)
    axes = normal_axes(None if every else dim, x.rank + 1, how)
    if 0 not in axes or keepdim:
        x.refuse()
    places = x.mask.ndim
    gone = (*range(places), *(places + axis - 1 for axis in axes if axis))
    return _REDUCTIONS[how](x, gone, **options)


def _filled(x: Selected, value: Any) -> Any:
    """All elements, those that are not selected being this one."""
    return f.where(x.condition, x.whole, value)


def _counted(x: Selected, like: Any, axes: Axes, *, keepdims: bool = False) -> Any:
    """How many elements are reduced to each one."""
    return f.sum(f.expand(x.condition, *like.shape), axes, keepdims)


def _sum(x: Selected, axes: Axes, dtype: Any = None) -> Any:
    nothing = False if f.is_condition(x.whole) else 0
    return f.sum(_filled(x, nothing), axes, dtype=dtype)


def _mean(x: Selected, axes: Axes, dtype: Any = None) -> Any:
    """The sum over how many there are, both of f32 at least up to the quotient."""
    whole = x.whole if dtype is None else f.to(x.whole, dtype)
    wanted = f.averaged_format(whole.handle.value.dtype, x.mask.recorder.origin)
    kept = f.where(x.condition, f.to(whole, promote(wanted, f32)), 0)
    count = f.to(_counted(x, kept, axes), kept)
    return f.to(f.sum(kept, axes) / count, wanted)


def _prod(x: Selected, axes: Axes, dtype: Any = None) -> Any:
    return f.prod(_filled(x, 1), axes, dtype=dtype)


def _filled_with(value: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction in which an element counts as none."""

    def reduced(x: Selected, axes: Axes) -> Any:
        return function(_filled(x, value), axes)

    return reduced


def _extreme(sign: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """The largest or the smallest element of floats; of none, an infinity.

    PyTorch and NumPy raise there, which a kernel cannot.
    """

    def reduced(x: Selected, axes: Axes) -> Any:
        if not x.whole.handle.value.dtype.is_float:
            x.refuse()
        return function(_filled(x, -sign * math.inf), axes)

    return reduced


def _var(
    x: Selected,
    axes: Axes,
    unbiased: Any = None,
    correction: Any = None,
    ddof: Any = None,
) -> Any:
    """Of a sample, as PyTorch's, or of the population, as NumPy's."""
    if not x.whole.handle.value.dtype.is_float:
        x.refuse()
    if not isinstance(unbiased, bool | None):
        # The second argument of NumPy's is another one.
        x.refuse()
    less: Any = int(x.mask.recorder.origin.library != "numpy")
    for told in (unbiased, correction, ddof):
        less = less if told is None else float(told)
    condition = x.condition

    def spread(whole: Any) -> Any:
        kept = f.where(condition, whole, 0)
        count = f.to(_counted(x, kept, axes, keepdims=True), kept)
        apart = f.where(condition, whole - f.sum(kept, axes, True) / count, 0)
        freedom = f.maximum(count - less, 0)
        return f.sum(f.square(apart), axes) / f.squeeze(freedom, axes)

    return within_f32(spread)(x.whole)


def _std(x: Selected, axes: Axes, **options: Any) -> Any:
    def root(whole: Any) -> Any:
        return f.sqrt(_var(x.rows(whole), axes, **options))

    return within_f32(root)(x.whole)


def _norm(x: Selected, axes: Axes, p: Any = "fro") -> Any:
    usual = p in ("fro", None)
    if not usual and not (isinstance(p, int | float) and p >= 0):
        x.refuse()
    if not usual and x.rank and x.mask.recorder.origin.library == "numpy":
        # NumPy's is that of a matrix then.
        x.refuse()
    return torch_functions.norm(_filled(x, 0), p, axes)


_REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "all": _filled_with(True, LOGICAL["all"]),
    **dict.fromkeys(("amax", "max"), _extreme(1, f.amax)),
    **dict.fromkeys(("amin", "min"), _extreme(-1, f.amin)),
    "any": _filled_with(False, LOGICAL["any"]),
    "count_nonzero": _filled_with(0, torch_functions.count_nonzero),
    "logsumexp": _filled_with(-math.inf, torch_functions.logsumexp),
    "mean": _mean,
    "norm": _norm,
    "prod": _prod,
    "std": _std,
    "sum": _sum,
    "var": _var,
}


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
