"""Functions of NumPy, with its arguments: what PyTorch lacks, or has otherwise.

Each is a formula of other functions, so that the search sees what it consists of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from mirage_dsl.core.errors import ShapeError, TraceError, UnsupportedError
from mirage_dsl.core.types import f16, f64
from mirage_dsl.frontend import composites as c
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function, is_array, is_sequence
from mirage_dsl.frontend.constructors import of_arrays
from mirage_dsl.frontend.elementary import ELEMENTARY, PYTORCH_ONLY
from mirage_dsl.frontend.functions import as_tensor, formulas, named
from mirage_dsl.frontend.inplace import function_in_place, refuse_floats, write
from mirage_dsl.frontend.numpy_series import SERIES, as_array
from mirage_dsl.frontend.places import PLACING
from mirage_dsl.frontend.rearranging import OF_PYTORCH, REARRANGING, SELECTIONS
from mirage_dsl.frontend.recorder import normal_axes, normal_axis
from mirage_dsl.frontend.tensor import Tensor, refuse
from mirage_dsl.frontend.torch_functions import FUNCTIONS

# -- Formats ---------------------------------------------------------------------------


def _narrowly(function: Function) -> Function:
    """A function of floats, to which NumPy makes integers as narrow ones as hold them.

    It is a formula, of which each step would have a format of its own.
    """

    def computed(x: Any) -> Any:
        return function(f.as_floats(as_tensor("a function of floats", x)))

    return computed


_NARROWLY = {
    "exp2": _narrowly(f.exp2),
    **dict.fromkeys(("deg2rad", "radians"), _narrowly(ELEMENTARY["deg2rad"])),
    **dict.fromkeys(("rad2deg", "degrees"), _narrowly(ELEMENTARY["rad2deg"])),
}


# -- Statistics ------------------------------------------------------------------------


def _floats(what: str, x: Any) -> Tensor:
    """The array, of integers and truth values as f64."""
    x = as_tensor(what, x)
    return x if f.is_float(x) else f.to(x, f64)


def _in_order(x: Any, axis: int | None) -> tuple[Tensor, int]:
    """The elements along an axis, or all, in order as floats, and the axis."""
    x = _floats("median", x)
    x, at = (f.flatten(x), 0) if axis is None else (x, axis)
    at = normal_axis(at, x.ndim, "a quantile")
    return SELECTIONS["sort"](x, at).values, at


def median(
    a: Any,
    axis: int | None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Any:
    """The element in the middle, or the mean of the two that are."""
    del overwrite_input
    ordered, at = _in_order(a, axis)
    count = int(ordered.shape[at])
    low, high = (f.narrow(ordered, at, n // 2, 1) for n in (count - 1, count))
    found = low if count % 2 else (low + high) / 2
    # NaN is behind all others.
    last = f.narrow(ordered, at, count - 1, 1)
    found = f.where(f.equal(last, last), found, last)
    if not keepdims:
        return found[(*(slice(None),) * at, 0)]
    return f.reshape(found, *[1] * a.ndim) if axis is None else found


def quantile(
    a: Any,
    q: Any,
    axis: int | None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    _of: float = 1.0,
) -> Any:
    """What parts of the elements are below: a number, or a row for each of several."""
    del overwrite_input
    x = as_tensor("quantile", a)
    if f.is_condition(x) or (type(q) is int and _of == 1):
        refuse("np.quantile of truth values, or of the part 0 or 1,", "use min or max")
    single = type(q) in (int, float)
    if x.handle.value.dtype == f16 and not single:
        refuse("np.quantile of float16 and several parts", "convert first")
    elements = method in ("lower", "higher", "nearest")
    if not (elements or (single and f.is_float(x))):
        # Parts in an array are of f64, and so is the result.
        x = f.to(x, f64)
    parts: Any = [part / _of for part in q] if is_sequence(q) else q / _of
    found = SELECTIONS["quantile"](x, parts, axis, keepdims, interpolation=method)
    return found if found.ndim else f.reshape(found, 1)[0]


def percentile(a: Any, q: Any, *args: Any, **options: Any) -> Any:
    """The quantile of so many hundredths."""
    return quantile(a, q, *args, _of=100.0, **options)


def average(
    a: Any,
    axis: int | None = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Any:
    """The mean, each element as often as its weight says.

    Raises:
        ShapeError: There is not a weight for each element along the axis.
    """
    x = _floats("average", a)
    if weights is None and returned:
        refuse("np.average with returned=True and no weights", "count the elements")
    if weights is None:
        return f.mean(x, axis, keepdims=keepdims)
    if axis is not None and weights.shape != x.shape:
        at = normal_axis(axis, x.ndim, "average")
        if weights.ndim != 1 or weights.shape[0] != x.shape[at]:
            raise ShapeError.here(
                f"average along axis {axis} of {x!r} by weights of the shape "
                f"{tuple(weights.shape)}; expected one for each element along it"
            )
        weights = f.reshape(weights, *[-1 if i == at else 1 for i in range(x.ndim)])
    if len(weights.shape) != x.ndim:
        raise ShapeError.here("average by weights of another shape, without an axis")
    parts = x * weights
    whole = f.to(f.expand(weights, *x.shape), parts)
    scale = f.sum(whole, axis, keepdims=keepdims)
    found = f.sum(parts, axis, keepdims=keepdims) / scale
    return (found, scale) if returned else found


def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None
) -> Any:
    """The covariances of variables that are rows, in f64 as NumPy's."""
    if y is not None:
        refuse("np.cov of two arrays", "concatenate them")
    x = f.to(as_tensor("cov", m), f64)
    correction = (0 if bias else 1) if ddof is None else ddof
    return FUNCTIONS["cov"](x if rowvar or x.ndim < 2 else x.T, correction=correction)


def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Any:
    """The correlations of variables that are rows, in f64 as NumPy's."""
    found = cov(x, y, rowvar)
    if not found.ndim:
        return found / found
    size = f.sqrt(found.diagonal())
    return f.clamp(found / size[:, None] / size[None], -1, 1)


# -- Reductions of some elements -------------------------------------------------------


def _of_some(function: Function, neutral: Any, join: Function) -> Function:
    """A reduction that may leave elements out, and start with a number.

    Args:
        function: What reduces all of them.
        neutral: What stands for those that are left out; None where nothing may.
        join: What adds the first number.
    """
    sums = neutral is not None

    def reducing(a: Any, axis: Any, initial: Any, where: Any, options: Any) -> Any:
        if where is not None and not sums and initial is None:
            refuse("a largest or smallest element with where=", "give initial= too")
        own = f.is_float(a) or (isinstance(initial, int) and not f.is_condition(a))
        if initial is not None and not own:
            refuse(f"initial={initial} for {a!r}", "convert the array first")
        if where is not None:
            a = f.where(where, a, neutral if sums else initial)
        given = {name: told for name, told in options.items() if told is not None}
        found = function(a, axis, **given)
        return found if initial is None else join(found, initial)

    def summing(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        options = {"dtype": dtype, "keepdims": keepdims}
        return reducing(a, axis, initial, where, options)

    def choosing(
        a: Any,
        axis: Any = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        return reducing(a, axis, initial, where, {"keepdims": keepdims})

    return summing if sums else choosing


def _mean(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    keepdims: bool = False,
    *,
    where: Any = None,
) -> Any:
    """The mean, of elements for which a condition holds."""
    if where is None:
        return f.mean(a, axis, keepdims, dtype=dtype)
    x = _floats("mean", a) if dtype is None else f.to(a, dtype)
    count = f.sum(f.expand(where, *x.shape), axis, keepdims=keepdims)
    return f.sum(f.where(where, x, 0), axis, keepdims=keepdims) / f.to(count, x)


_PARTLY: Mapping[str, Function] = {
    "sum": _of_some(f.sum, 0, f.add),
    "prod": _of_some(f.prod, 1, f.mul),
    **dict.fromkeys(("max", "amax"), _of_some(f.max, None, f.maximum)),
    **dict.fromkeys(("min", "amin"), _of_some(f.min, None, f.minimum)),
    "mean": _mean,
}


# -- Joining and parting ---------------------------------------------------------------


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """Two arrays one behind the other: as rows of elements where there is no axis."""
    given = (arr, as_array(values) if is_sequence(values) else values)
    if axis is None:
        return f.concat([f.reshape(x, -1) for x in given], 0)
    return f.concat(given, axis)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    """Parts of which the first ones are longer, where they cannot be equally long."""
    return list(OF_PYTORCH["tensor_split"](ary, indices_or_sections, axis))


def delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    """The array without one element along an axis, or some that are known."""
    x, at = (f.flatten(arr), 0) if axis is None else (arr, axis)
    at = normal_axis(at, x.ndim, "delete")
    kept = np.delete(np.arange(int(x.shape[at])), obj).tolist()
    return x[(*(slice(None),) * at, kept)]


def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """Of the first condition that holds the choice, else the default."""
    found, dtype = default, _result_type(*choicelist, default)
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        found = f.to(f.where(condition, choice, found), dtype)
    return found


def diff(
    a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None
) -> Any:
    """Differences of neighbours, to whom numbers may be added at the ends."""
    ends = (_end_of(a, axis, end) for end in (prepend, append))
    return REARRANGING["diff"](a, n, axis, *ends)


def _end_of(x: Any, axis: int, end: Any) -> Any:
    """What stands at one end: of a number as many as rows have."""
    if not isinstance(end, int | float):
        return end
    shape = [int(extent) for extent in x.shape]
    shape[normal_axis(axis, x.ndim, "diff")] = 1
    return of_arrays(np.full(shape, end))


def gradient(x: Any, *spacing: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """The slopes along all axes, or some: of one axis an array, else a tuple."""
    if any(not isinstance(step, int | float) for step in spacing) or spacing[1:]:
        refuse("np.gradient with several distances", "divide by them")
    if edge_order != 1:
        refuse(f"np.gradient with edge_order={edge_order}", "leave it out")
    x = _floats("gradient", x)
    axes = tuple(range(x.ndim)) if axis is None else axis
    step = spacing[0] if spacing else 1.0
    found = [_slope(x, at, step) for at in normal_axes(axes, x.ndim, "gradient")]
    return found[0] if len(found) == 1 else tuple(found)


def _slope(x: Tensor, axis: int, step: float) -> Any:
    """The slope between the neighbours of each element, of the ends to the next."""
    count = int(x.shape[axis])
    if count < 2:
        raise ShapeError.here(f"gradient of {x!r} along axis {axis}: one element")
    differences = REARRANGING["diff"](x, 1, axis)
    first, last = (f.narrow(differences, axis, at, 1) for at in (0, count - 2))
    behind, before = (f.narrow(x, axis, at, count - 2) for at in (2, 0))
    inner = (behind - before) / (2.0 * step)
    return f.concat([first / step, inner, last / step], axis)


# -- In place --------------------------------------------------------------------------


CHANGING = frozenset({"copyto", "fill_diagonal", "put", "put_along_axis", "putmask"})
"""Functions that change their first argument."""


def refuse_array(what: str, changed: Any) -> None:
    """Refuse to change an array of NumPy's own, for which a tensor would stand.

    Raises:
        TraceError: It is one.
    """
    if not isinstance(changed, Tensor):
        raise TraceError.here(
            f"{what} changes an array that the function made, which is no traced one; "
            "make it of the shape and like= an argument, as np.zeros(shape, like=x)"
        )


def _fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    changing = function_in_place("fill_diagonal_")
    assert changing is not None
    changing(a, val, wrap)


def _put_along_axis(arr: Any, indices: Any, values: Any, axis: int) -> None:
    at = normal_axis(axis, arr.ndim, "put_along_axis")
    indices = f.where(f.less(indices, 0), indices + int(arr.shape[at]), indices)
    if isinstance(values, Tensor):
        values = f.to(f.expand(values, *indices.shape), arr)
    scatter = function_in_place("scatter_")
    assert scatter is not None
    scatter(arr, at, indices, values)


def _putmask(a: Any, mask: Any, values: Any) -> None:
    if getattr(values, "ndim", 0) and values.shape != a.shape:
        refuse("np.putmask of values that are repeated", "give them a's shape")
    write("putmask", a, f.where(mask, values, a), (), like=values)


def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    if mode != "raise":
        refuse(f"np.put with mode={mode!r}", "clip() or % the indices")
    at = f.reshape(as_array(ind), -1)
    given = f.reshape(as_array(v), -1)
    if given.shape[0] == 1:
        given = f.expand(given, *at.shape)
    found = PLACING["put"](a, at, f.to(given, a))
    write("np.put", a, found, (), like=v)


def _reducing(how: str) -> Function:
    """Rows joined with those at one index."""

    def reduced(a: Any, places: Sequence[Any], v: Any) -> Any:
        if len(places) > 1:
            refuse("a ufunc's method at of several indices", "give one of all places")
        (at,), behind = places, a.shape[1:]
        rows = f.reshape(f.expand(f.to(v, a), *at.shape, *behind), -1, *behind)
        return PLACING["index_reduce"](a, 0, f.reshape(at, -1), rows, how)

    return reduced


_AT: Mapping[str, Function] = {
    "maximum": _reducing("amax"),
    "minimum": _reducing("amin"),
    "multiply": _reducing("prod"),
    **formulas(
        add=lambda a, places, v: PLACING["index_put"](a, places, v, accumulate=True),
        subtract=lambda a, places, v: PLACING["index_put"](
            a, places, -v, accumulate=True
        ),
    ),
}
"""What ufuncs make of elements that meet others at places, by their method `at`."""


def at_places(name: str, a: Any, indices: Any, b: Any = None) -> None:
    """The method `at` of a ufunc, which changes its array.

    Raises:
        UnsupportedError: It does not join two numbers in any order, or slices.
    """
    what = f"np.{name}.at"
    refuse_array(what, a)
    if name not in _AT:
        refuse(what, f"use that of {', '.join(_AT)}")
    several = cast("tuple[Any, ...]", indices if type(indices) is tuple else (indices,))
    if not all(is_array(at) or isinstance(at, list | int) for at in several):
        refuse(f"{what} of slices", "give an index of integers for each of the axes")
    value = as_array(b)
    refuse_floats(what, a, value)
    found = _AT[name](a, tuple(map(as_array, several)), value)
    write(what, a, found, (), like=b)


# -- Of two ----------------------------------------------------------------------------


def _vdot(a: Any, b: Any) -> Any:
    return f.matmul(f.reshape(a, -1), f.reshape(b, -1))


def _vecdot(x1: Any, x2: Any, axis: int = -1) -> Any:
    if f.is_condition(x1) and f.is_condition(x2):
        refuse("np.vecdot of truth values", "use & and any")
    found = x1 * x2
    return f.sum(found, axis, dtype=None if f.is_float(found) else found.dtype)


def choose(a: Any, choices: Any) -> Any:
    """Of so many arrays the element of the one that an index tells, at each place."""
    shape = np.broadcast_shapes(*(np.shape(x) for x in (a, *choices)))
    wanted = _result_type(*choices)
    rows = [f.expand(f.to(as_array(x), wanted), *shape) for x in choices]
    rows, place = f.stack(rows, 0), f.expand(a, *shape)[None]
    return f.take_along_dim(rows, f.none_below_zero(place, rows, 0), 0)[0]


def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: Any = None,
) -> Any:
    """Where an element is one of others."""
    del assume_unique, kind
    return FUNCTIONS["isin"](element, as_array(test_elements), invert=invert)


def _root(x: Any) -> Any:
    return ELEMENTARY["copysign"](f.pow(f.abs(x), 1 / 3), x)


def _parts(x: Any) -> tuple[Any, Any]:
    """What is behind the point, and what before it."""
    whole = ELEMENTARY["trunc"](x)
    rest = f.where(f.equal(whole, x), 0, x - whole)
    return ELEMENTARY["copysign"](rest, x), whole


def _result_type(*given: Any) -> Any:
    """NumPy's format of what is computed of some arrays, formats and numbers."""
    return np.result_type(*(x.dtype if isinstance(x, Tensor) else x for x in given))


def _cumulative_sum(
    x: Any, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    if include_initial:
        refuse("np.cumulative_sum with include_initial=True", "concatenate a zero")
    axis = 0 if axis is None and x.ndim == 1 else axis
    return f.cumsum(x, axis) if dtype is None else f.cumsum(f.to(x, dtype), axis)


# -- Ufuncs ----------------------------------------------------------------------------


def _largest_so_far(name: str) -> Function:
    def largest(x: Any, axis: int) -> Any:
        return SELECTIONS[name](x, axis)[0]

    return largest


ACCUMULATIONS: Mapping[str, Function] = {
    "add": f.cumsum,
    "multiply": f.cumprod,
    "maximum": _largest_so_far("cummax"),
    "minimum": _largest_so_far("cummin"),
}
"""The method `accumulate` of NumPy's ufuncs, along an axis."""


def outer(function: Callable[[Any, Any], Any]) -> Function:
    """The method `outer` of a ufunc: of each element of one with each of the other."""

    def each(a: Any, b: Any) -> Any:
        behind = len(cast("Tensor", b).shape) if is_array(b) else 0
        return function(a[(..., *[None] * behind)], b)

    return each


def where_it_holds(found: Any, condition: Any, out: Any) -> Any:
    """What a ufunc with `where=` leaves in `out=`.

    Raises:
        UnsupportedError: There is no `out`, whose elements stay elsewhere.
    """
    if out is None:
        raise UnsupportedError.here(
            "a ufunc with where= and without out=, which leaves other elements as they "
            "lie in memory; use np.where(condition, value, other)"
        )
    return f.where(condition, found, out)


OF_NUMPY_ALONE: Mapping[str, Function] = {
    **_NARROWLY,
    **_PARTLY,
    **SERIES,
    **named(append, array_split, average, corrcoef, choose, cov, delete, diff),
    **named(gradient, isin, median, percentile, quantile, select),
    "cumulative_sum": _cumulative_sum,
    "fill_diagonal": _fill_diagonal,
    "put": put,
    "put_along_axis": _put_along_axis,
    "putmask": _putmask,
    "result_type": _result_type,
    "vdot": _vdot,
    "vecdot": _vecdot,
    **formulas(
        astype=lambda x, dtype, copy=True: f.astype(x, dtype, copy=copy),
        cbrt=lambda x: _root(f.as_floats(x)),
        count_nonzero=lambda a, axis=None, keepdims=False: f.sum(
            f.not_equal(a, 0), axis, keepdims
        ),
        fabs=lambda x: f.abs(f.as_floats(x)),
        flatnonzero=lambda a: PLACING["nonzero"](f.reshape(a, -1), as_tuple=True)[0],
        ldexp=lambda x1, x2: PYTORCH_ONLY["ldexp"](f.as_floats(x1), as_array(x2)),
        outer=lambda a, b: c.outer(
            f.reshape(as_array(a), -1), f.reshape(as_array(b), -1)
        ),
        modf=lambda x: _parts(f.as_floats(x)),
        cross=lambda a, b, axis=-1: c.cross(a, b, axis),
        divmod=lambda x, y: (
            ELEMENTARY["floor_divide"](x, y),
            ELEMENTARY["remainder"](x, y),
        ),
        ptp=lambda a, axis=None, keepdims=False: (
            f.max(a, axis, keepdims) - f.min(a, axis, keepdims)
        ),
        sinc=lambda x: ELEMENTARY["sinc"](_floats("sinc", x)),
        size=lambda a, axis=None: a.size if axis is None else a.shape[axis],
        unstack=lambda x, axis=0: tuple(f.unbind(x, axis)),
        vector_norm=lambda x, axis=None, keepdims=False, ord=2: c.vector_norm(
            _floats("vector_norm", x), ord, axis, keepdims
        ),
    ),
}
"""By NumPy's names."""
