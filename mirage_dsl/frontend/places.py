"""Where a condition holds, as `nonzero` and `where` of one argument tell.

Nobody knows how many places there are, so there is no tensor of them.  A coordinate of
them stands for elements of another tensor (`x[rows]`), and a loop over those of a
vector is a loop over all its places, each of which may not happen (`branches`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from operator import eq, ge, gt, le, lt, ne
from types import FrameType
from typing import Any, NoReturn, cast

from mirage_dsl.core.errors import (
    DTypeError,
    TraceError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.core.types import i64
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend.branches import Branch, Branches
from mirage_dsl.frontend.constructors import arange
from mirage_dsl.frontend.operands import NoTensor, as_tensor, is_condition
from mirage_dsl.frontend.selected import Selected
from mirage_dsl.frontend.tensor import Tensor

MOST_PLACES = 64
"""Iterations of a loop, which are traced one by one."""
_HOW_MANY = (
    "the places where a condition holds, of which nobody knows how many there are: a "
    "column of them is an index, as in x[rows], those of a vector can be looped over"
)


def nonzero(x: Any, *, as_tuple: bool = False) -> Any:
    """Where elements are not 0: PyTorch's matrix of places, or its columns."""
    found = Nonzero(_condition("nonzero", x))
    return found.columns() if as_tuple else found


def where(condition: Any, *others: Any, **named: Any) -> Any:
    """PyTorch's `where`: a choice, or of one argument the columns of its places."""
    if others or named:
        return f.where(condition, *others, **named)
    return Nonzero(_condition("where", condition)).columns()


def _condition(what: str, x: Any) -> Tensor:
    x = as_tensor(what, x)
    if not x.ndim:
        raise UnsupportedError(
            f"{what} of a tensor without axes; compute with the condition itself",
            user_location(),
        )
    return x.clone() if is_condition(x) else f.not_equal(x, 0)


def one_hot(x: Any, num_classes: Any = -1) -> Any:
    """PyTorch's: 1 at the place of each class along a new last axis, else 0.

    Raises:
        DTypeError: The classes are no i64.
        UnsupportedError: Their number is left to the largest one.
    """
    x = as_tensor("one_hot", x)
    if x.handle.value.dtype != i64:
        raise DTypeError(
            f"one_hot of {x.handle.value.dtype}; expected i64", user_location()
        )
    count = shapes.integer(num_classes, "num_classes")
    if count < 1:
        raise UnsupportedError(
            "one_hot without a number of classes, which depends on the data; give "
            "num_classes=",
            user_location(),
        )
    classes = arange(count)
    # An index outside is an error, as in any gather.
    inside = f.none_below_zero(x, classes, 0)
    found = f.index_select(classes, 0, inside)[..., None]
    return f.equal(found, classes).to("int64")


class Nonzero(NoTensor):
    """The matrix that `nonzero` gives: a row for each place, a column for each axis."""

    def __init__(self, holds: Tensor) -> None:
        self._holds = holds

    def columns(self) -> tuple[Selected, ...]:
        """The coordinates, axis by axis."""
        return tuple(map(self._column, range(self._holds.ndim)))

    def _column(self, axis: int) -> Selected:
        rank = self._holds.ndim
        numbers = arange(self._holds.shape[axis])
        shape = tuple(-1 if i == axis else 1 for i in range(rank))
        return Selected(numbers.reshape(*shape), self._holds, 0, axis)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, tuple):
            self.refuse()
        parts = cast("tuple[Any, ...]", index)
        if len(parts) != 2 or parts[0] not in (slice(None), Ellipsis):
            self.refuse()
        columns: Any = self.columns()
        return columns[parts[1]]

    def unbind(self, dim: int = 0) -> tuple[Selected, ...]:
        """The coordinates, axis by axis."""
        if dim not in (1, -1):
            self.refuse()
        return self.columns()

    def squeeze(self, dim: int | None = None) -> Selected:
        """The coordinate along the only axis."""
        if dim not in (1, -1) or self._holds.ndim > 1:
            self.refuse()
        return self._column(0)

    def flatten(self) -> Selected:
        """The coordinate along the only axis."""
        return self.squeeze(1)

    def __iter__(self) -> Iterator[Any]:
        return loop_over(self._holds, Row)

    def refuse(self) -> NoReturn:
        """Refuse what needs to know how many places there are.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(_HOW_MANY, user_location())

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        """Refuse a function of PyTorch of the places."""
        raise UnsupportedError(_HOW_MANY, user_location())

    def __len__(self) -> int:
        self.refuse()

    def __bool__(self) -> bool:
        self.refuse()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()


# -- Loops -----------------------------------------------------------------------------


class PlaceOfIteration(NoTensor):
    """The place of an iteration: a number that is known while it is traced."""

    def __init__(self, number: int, branch: Branch, branches: Branches) -> None:
        self._number, self._branch, self._branches = number, branch, branches

    def __index__(self) -> int:
        if self._branches.current is not self._branch:
            raise TraceError(
                "the place of an iteration over nonzero() is used outside of it; loop "
                "over nonzero() itself, and use each place where it is given",
                user_location(),
            )
        return self._number

    __int__ = __index__

    def item(self) -> PlaceOfIteration:
        """The place, which is a number already."""
        return self

    def refuse(self) -> NoReturn:
        """Refuse to compute with it as with a tensor.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            "the place of an iteration over nonzero() beside tensors; use int() of it",
            user_location(),
        )

    __hash__ = object.__hash__


def _compared(compare: Callable[[int, Any], bool]) -> Any:
    def comparing(self: PlaceOfIteration, other: Any) -> bool:
        return compare(
            int(self), int(other) if isinstance(other, PlaceOfIteration) else other
        )

    return comparing


for _compare in (eq, ne, lt, le, gt, ge):
    setattr(PlaceOfIteration, f"__{_compare.__name__}__", _compared(_compare))


class Row(PlaceOfIteration):
    """A row of what `nonzero` gives for a vector: a tensor of one number to users."""

    def __getitem__(self, index: Any) -> PlaceOfIteration:
        if index not in (0, -1):
            self.refuse()
        return PlaceOfIteration(int(self), self._branch, self._branches)

    def __iter__(self) -> Iterator[PlaceOfIteration]:
        return iter((self[0],))


def loop_over(holds: Tensor, kind: type[PlaceOfIteration]) -> Iterator[Any]:
    """The iterations for the places of a vector, each of which may not happen.

    Raises:
        UnsupportedError: It is no vector, or there are too many places.
        TraceError: An iteration changes Python's own numbers or containers.
    """
    extent = holds.handle.shape[0]
    if holds.ndim != 1 or extent is None or extent > MOST_PLACES:
        raise UnsupportedError(
            f"a loop over the places of {holds!r}; it is traced for each place of a "
            f"vector of {MOST_PLACES} elements at most; compute with masks instead",
            user_location(),
        )
    return _Loop(holds, extent, kind)


class _Loop(Iterator[Any]):
    def __init__(
        self, holds: Tensor, extent: int, kind: type[PlaceOfIteration]
    ) -> None:
        self._holds, self._extent, self._kind = holds, extent, kind
        self._number = 0
        self._before: Mapping[str, object] = {}

    def __next__(self) -> Any:
        branches, frame = self._holds.recorder.branches, sys._getframe(1)
        if self._number:
            _refuse_changed(self._before, _plain_locals(frame))
        elif branches.current is not None:
            raise UnsupportedError(
                "a loop over nonzero() in another one; compute with masks in one of "
                "them",
                user_location(),
            )
        branches.current = None
        if self._number == self._extent:
            raise StopIteration
        number, self._number = self._number, self._number + 1
        branch = branches.begin(self._holds[number].handle)
        self._before = _plain_locals(frame)
        return self._kind(number, branch, branches)


def _plain_locals(frame: FrameType) -> Mapping[str, object]:
    """What the function that loops has in variables that no tensor is: their values."""
    found: dict[str, object] = {}
    for name, value in frame.f_locals.items():
        if type(value) in (bool, int, float, str):
            found[name] = type(value), value
        elif type(value) in (list, dict, set):
            found[name] = type(value), len(value)
    return found


def _refuse_changed(before: Mapping[str, object], now: Mapping[str, object]) -> None:
    for name, value in before.items():
        if now.get(name, value) != value:
            raise TraceError(
                f"an iteration over nonzero() changes {name}, which is Python's own: "
                "nobody knows whether there is such an iteration; change a tensor in "
                "place, which was made before the loop",
                user_location(),
            )


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "argwhere": nonzero,
    "nonzero": nonzero,
    "one_hot": one_hot,
    "where": where,
}
"""By PyTorch's names."""
