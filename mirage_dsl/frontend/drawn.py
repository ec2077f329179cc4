"""Random numbers that a traced function draws, and what says so when they are used."""

from __future__ import annotations

from typing import Any, NoReturn

from mirage_dsl.core.errors import UnsupportedError, user_location
from mirage_dsl.frontend.functions import NoTensor


class Drawn(NoTensor):
    """What stands in for random numbers of PyTorch's, which nothing may read.

    Models draw some in evaluation too, as whether a layer is dropped in training.
    """

    def refuse(self) -> NoReturn:
        """Refuse what needs the numbers.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            "random numbers of PyTorch's in a function that is traced: they would be "
            "the same at every call; draw them outside of it, and pass them as an "
            "argument",
            user_location(),
        )

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        """Refuse a function of PyTorch of the numbers."""
        cls().refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()

    __hash__ = object.__hash__


def _refused(self: Drawn, *_: Any) -> NoReturn:
    self.refuse()


_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_READERS = (
    *("bool", "int", "float", "index", "len", "iter", "getitem", "setitem", "contains"),
    *("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert", "round"),
)
for _name in (*_READERS, *_OPERATORS, *(f"{s}{o}" for s in "ri" for o in _OPERATORS)):
    setattr(Drawn, f"__{_name}__", _refused)
