"""What `max` and `min` along an axis return: an array for NumPy, a pair for PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from mirage_dsl.errors import TraceError, UnsupportedError
from mirage_dsl.frontend.location import user_location
from mirage_dsl.frontend.recorder import Recorder
from mirage_dsl.frontend.steps import Handle
from mirage_dsl.frontend.tensor import Tensor


def extreme(
    found: Tensor, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Tensor:
    """What the method `name` returns: `found`, and half of a pair if it has an axis."""
    axis = args[0] if args else kwargs.get("dim", kwargs.get("axis"))
    if not isinstance(axis, int):
        return found
    return Extreme(found.recorder, found.handle, name, pair="dim" in kwargs)


class Extreme(Tensor):
    """The extremes along an axis: a tensor, and the first half of PyTorch's pair.

    What means one thing to NumPy and another to PyTorch is refused.
    """

    def __init__(
        self, recorder: Recorder, handle: Handle, name: str, *, pair: bool
    ) -> None:
        super().__init__(recorder, handle)
        self._name = name
        # Whether PyTorch's is meant for certain.
        self._pair = pair

    @property
    def values(self) -> Tensor:
        """The extremes."""
        return Tensor(self.recorder, self.handle)

    @property
    def indices(self) -> NoReturn:
        """Refused: no operator finds places."""
        self._refuse_indices()

    def __getitem__(self, index: Any) -> Tensor:
        if not isinstance(index, int):
            return super().__getitem__(index)
        if self._pair and index == 0:
            return self.values
        if self._pair:
            self._refuse_indices()
        raise TraceError(
            f"{self._name}(axis)[{index}] is a row in NumPy, and half of a pair in "
            f"PyTorch; write .a{self._name}(axis), and index that for a row",
            user_location(),
        )

    def __iter__(self) -> Iterator[Any]:
        self._refuse_indices()

    def _refuse_indices(self) -> NoReturn:
        raise UnsupportedError(
            f"the indices of {self._name} cannot be traced; use .a{self._name}(axis), "
            "which is the values alone",
            user_location(),
        )
