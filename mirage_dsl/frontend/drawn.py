"""Tensors that a traced function makes and nothing may read, and what says so.

Random numbers are such, and what has a shape that the data say.
"""

from __future__ import annotations

from typing import Any, NoReturn

from mirage_dsl.frontend.arguments import leaves_of
from mirage_dsl.frontend.functions import NoTensor, refusing


@refusing
class Unread(NoTensor):
    """What stands in for a tensor that may be made, and is refused where it is read."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    @classmethod
    def __torch_function__(
        cls, _: Any, __: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        """Refuse a function of PyTorch of the tensor."""
        given = leaves_of((args, kwargs))
        next(x for x in given if isinstance(x, Unread)).refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()

    __hash__ = object.__hash__


DRAWN = (
    "random numbers of PyTorch's in a function that is traced: they would be the same "
    "at every call; draw them outside of it, and pass them as an argument"
)
"""Of those that models draw in evaluation too, as whether a layer is dropped."""


def unknown(
    name: str,
    advice: str,
    depends: str = "the shape depends on the data and the device",
) -> Unread:
    """What stands in for a tensor of which something is not known.

    Args:
        name: What the tensor is.
        advice: What to read instead.
        depends: What of it is not known.
    """
    return Unread(f"{name}, of which {depends}; {advice}")
