"""Shape arguments as users write them: axes, indices, target shapes, extents."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, SupportsIndex

from mirage_dsl.core.errors import (
    ShapeError,
    TraceError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.frontend.arguments import is_sequence
from mirage_dsl.frontend.dims import (
    DimVars,
    Handle,
    product,
    shape_of,
    shape_text,
    vars_of,
)
from mirage_dsl.frontend.recorder import Recorder


class Size(int):
    """A known extent: an integer that remembers its dims.

    A tensor times or divided by it keeps the meaning "times the extent", which stays
    right when the program is verified at other sizes.  Arithmetic gives plain integers.
    """

    vars: DimVars

    @classmethod
    def of(cls, vars: DimVars, extent: int) -> Size:
        """The extent of an axis."""
        size = cls(extent)
        size.vars = vars
        return size


class SymbolicSize:
    """An extent that is not known while tracing."""

    def __init__(self, vars: DimVars) -> None:
        self.vars = vars

    def _refuse(self, *_: object) -> NoReturn:
        raise TraceError(
            "the extent of a dynamic dim has no number while tracing: use it in "
            "reshape or as a factor of a tensor, or take the dim out of dynamic=",
            user_location(),
        )

    __int__ = __index__ = __float__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __pow__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # PyTorch asks for it before it hands arguments to a traced tensor.
        torch = sys.modules.get("torch")
        return SymbolicSize if torch is None else torch.SymInt

    def __repr__(self) -> str:
        return "?"


def sizes_of(x: Handle) -> tuple[Any, ...]:
    """The shape of a value: `Size` or `SymbolicSize` per axis."""
    return tuple(
        SymbolicSize(axis) if extent is None else Size.of(axis, extent)
        for axis, extent in zip(x.axes, x.shape, strict=True)
    )


def integer(value: object, what: str) -> int:
    """An argument that must be an integer.

    Raises:
        TraceError: It is not one.
    """
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return operator.index(value)
    raise TraceError(
        f"{what} must be an integer, found {type(value).__name__}", user_location()
    )


def with_correction(name: str, kwargs: dict[str, Any]) -> None:
    """Complete the arguments of the method `var` or `std`, which libraries share.

    Raises:
        TraceError: Nothing tells which library's default is meant.
    """
    given = kwargs.keys()
    if given & {"correction", "ddof", "unbiased", "axis", "keepdims"}:
        return
    if not given & {"dim", "keepdim"}:
        raise TraceError(
            f"the method {name} divides by n in NumPy and by n - 1 in PyTorch; state "
            "correction=0 or correction=1",
            user_location(),
        )
    kwargs["correction"] = 1


def normal_axis(axis: object, rank: int, what: str) -> int:
    """An axis counted from the front.

    Raises:
        ShapeError: There is no such axis.
    """
    index = integer(axis, f"axis of {what}")
    if not -rank <= index < rank:
        raise ShapeError(
            f"{what}: axis {index} of a tensor of rank {rank}; expected "
            f"{-rank} to {rank - 1}"
            if rank
            else f"{what}: axis {index} of a scalar, which has no axes",
            user_location(),
        )
    return index % rank


def normal_axes(axis: object, rank: int, what: str) -> tuple[int, ...]:
    """One axis, several, or (for None) all of them, counted from the front.

    Raises:
        ShapeError: There is no such axis, or it is given twice.
        TraceError: Nothing tells how many there are.
    """
    if axis is None:
        return tuple(range(rank))
    given = axis if is_sequence(axis) else (axis,)
    if not given:
        raise TraceError(
            f"{what} over no axes, which are all in PyTorch and none in NumPy; state "
            "the axes, or None for all",
            user_location(),
        )
    axes = tuple(normal_axis(a, rank, what) for a in given)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{what}: an axis is given twice: {axes}", user_location())
    return axes


def kept(keepdims: object, what: str) -> bool:
    """Whether a reduction keeps the axes that it reduces.

    Raises:
        TraceError: It is no flag; in NumPy a dtype stands in its place.
    """
    if not isinstance(keepdims, int):
        raise TraceError(
            f"keepdims of {what} must be True or False, found {keepdims!r}",
            user_location(),
        )
    return bool(keepdims)


def flat_arguments(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """`f(2, 3)` and `f((2, 3))` alike."""
    first = arguments[0] if len(arguments) == 1 else None
    return tuple(first) if is_sequence(first) else arguments


def permutation(x: Handle, order: Sequence[int]) -> tuple[int, ...]:
    """An order of all axes, counted from the front.

    Raises:
        ShapeError: `order` is no permutation of the axes.
    """
    rank = len(x.axes)
    axes = tuple(normal_axis(a, rank, "permute") for a in order)
    if sorted(axes) != list(range(rank)):
        raise ShapeError(
            f"permute of {shape_text(x)} by {tuple(order)}: name each of the {rank} "
            "axes once",
            user_location(),
        )
    return axes


def reshaped(recorder: Recorder, x: Handle, shape: Sequence[object]) -> Handle:
    """Axes split and merged, with one -1 inferred."""
    holes = [i for i, s in enumerate(shape) if isinstance(s, int) and s == -1]
    if len(holes) > 1:
        raise ShapeError("reshape: only one extent can be -1", user_location())
    total = product(vars_of(x.axes))
    if total is None:
        return _reshaped_symbolic(recorder, x, shape, holes)
    wanted = [integer(s, "an extent of reshape") for s in shape]
    if holes:
        wanted[holes[0]] = 1
        given = product_of(wanted)
        wanted[holes[0]] = total // given if given > 0 and total % given == 0 else -1
    if min(wanted, default=1) < 1 or product_of(wanted) != total:
        raise ShapeError(
            f"reshape of {shape_text(x)}, {total} elements, to "
            f"({', '.join(map(str, shape))}): the numbers of elements must be equal",
            user_location(),
        )
    return recorder.reshape(x, wanted)


def _reshaped_symbolic(
    recorder: Recorder, x: Handle, shape: Sequence[object], holes: list[int]
) -> Handle:
    """Reshape where some dim is symbolic: a symbolic extent stands for its own dim."""
    vars = recorder.dims.resolve(vars_of(x.axes))
    symbolic = [s for s in shape if isinstance(s, SymbolicSize)]
    given = [
        -1 if isinstance(s, SymbolicSize) else integer(s, "an extent") for s in shape
    ]
    if not holes:
        return recorder.reshape(x, given)
    known = product(a for a in vars if a.extent is not None)
    assert known is not None
    if len(symbolic) == sum(a.extent is None for a in vars):
        rest = product_of([g for g in given if g != -1])
        if known % rest == 0:
            given[holes[0]] = known // rest
            return recorder.reshape(x, given)
    return _with_merged_rest(recorder, x, given, holes[0])


def _with_merged_rest(
    recorder: Recorder, x: Handle, shape: list[int], hole: int
) -> Handle:
    """Reshape where the -1 takes in symbolic dims: the axes behind come off first."""
    tail = product_of(shape[hole + 1 :])
    if hole or min(shape[1:], default=1) < 1:
        raise UnsupportedError(
            "reshape of a tensor with dynamic dims: a -1 that takes in a dynamic dim "
            "must come first, with numbers behind it",
            user_location(),
        )
    vars = list(recorder.dims.resolve(vars_of(x.axes)))
    behind: list[Any] = []
    while (product(behind) or 0) < tail and vars and vars[-1].extent is not None:
        behind.insert(0, vars.pop())
    inner = product(behind)
    if inner is None or inner % tail:
        raise UnsupportedError(
            f"reshape of {shape_text(x)} with dynamic dims to {shape_of(shape)}: the "
            "trailing axes must be made of whole dims with known extents",
            user_location(),
        )
    flat = recorder.reshape(
        Handle(x.value, (tuple(behind),)), [inner // tail, *shape[1:]]
    )
    return Handle(x.value, ((*vars, *flat.axes[0]), *flat.axes[1:]))


def product_of(numbers: Sequence[int]) -> int:
    """The product of integers."""
    result = 1
    for number in numbers:
        result *= number
    return result
