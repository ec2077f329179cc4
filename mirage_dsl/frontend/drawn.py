"""Tensors that a traced function makes and nothing may read, and what says so.

Random numbers are such, and what has a shape that the data say.
"""

from __future__ import annotations

from typing import Any, NoReturn

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.frontend.arguments import leaves_of
from mirage_dsl.frontend.functions import NoTensor, refusing


@refusing
class Unread(NoTensor):
    """What stands in for a tensor that may be made, and is refused where it is read."""

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


class Drawn(Unread):
    """What stands in for random numbers of PyTorch's.

    Models draw some in evaluation too, as whether a layer is dropped in training.
    """

    def refuse(self) -> NoReturn:
        """Refuse what needs the numbers.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError.here(
            "random numbers of PyTorch's in a function that is traced: they would be "
            "the same at every call; draw them outside of it, and pass them as an "
            "argument"
        )


class Unknown(Unread):
    """What stands in for a tensor of which the data or the device say what it is like.

    Args:
        name: What it is.
        advice: What to read instead.
        depends: What of it is not known.
    """

    def __init__(
        self,
        name: str,
        advice: str,
        depends: str = "the shape depends on the data and the device",
    ) -> None:
        self._name, self._advice, self._depends = name, advice, depends

    def refuse(self) -> NoReturn:
        """Refuse what needs the tensor.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError.here(
            f"{self._name}, of which {self._depends}; {self._advice}"
        )
