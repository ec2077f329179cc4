"""Calls that are alike: what a call depends on, and the short way that one has left."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_dsl.frontend.tree import leaves_of

CONSTANTS = (type(None), bool, int, float, str)
"""Types of arguments, beside tensors, that a short way may depend on."""


@dataclass(frozen=True)
class ShortCall:
    """A call whose arguments were sorted out before.

    Attributes:
        places: Where the program's tensors are among the arguments, first those by
            position and then those by keyword.
        run: Takes these tensors, and `out`.
    """

    places: Sequence[int]
    run: Callable[..., Any]

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Any:
        """Run with the arguments of a call like the one that it was made for."""
        given = (*args, *kwargs.values())
        return self.run(*[given[at] for at in self.places], out=out)


def call_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> object | None:
    """What the short way of a call depends on; None if that is not known."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    parts: list[object] = [tuple(kwargs)]
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            grad = value.requires_grad and torch.is_grad_enabled()
            parts.append((value.shape, value.stride(), value.dtype, value.device, grad))
        elif type(value) in CONSTANTS:
            # 0.0 and -0.0 are equal, and True is 1.
            parts.append(repr(value))
        else:
            return None
    return tuple(parts)


def tensor_places(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[int] | None:
    """Where the tensors of a call are among its arguments, in the parameters' order.

    It is None if not all of them are on a CUDA device.
    """
    given = (*args, *kwargs.values())
    tensors = [at for at, v in enumerate(given) if type(v) not in CONSTANTS]
    if not all(getattr(given[at], "is_cuda", False) for at in tensors):
        return None
    names = {name: len(args) + at for at, name in enumerate(kwargs)}
    bound = inspect.signature(function).bind(*range(len(args)), **names)
    return [at for at in leaves_of(list(bound.arguments.values())) if at in tensors]
