"""Calling mirage's functions with arrays: traced, then evaluated at once."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar, cast

import numpy as np

from mirage_dsl.core.errors import ShapeError
from mirage_dsl.frontend.location import user_location
from mirage_dsl.frontend.tree import leaves_of

F = TypeVar("F", bound=Callable[..., Any])

SYNONYMS = {"dim": "axis", "keepdim": "keepdims"}
"""PyTorch's names of arguments, and NumPy's."""


def is_array(value: object) -> bool:
    """Whether a value is a NumPy array or a PyTorch tensor (without importing them)."""
    torch = sys.modules.get("torch")
    kinds: Any = np.ndarray if torch is None else (np.ndarray, torch.Tensor)
    return isinstance(value, kinds) and getattr(value, "ndim", 0) > 0


def public(function: F) -> F:
    """Let a function on symbolic tensors also take arrays.

    Where it takes NumPy's `axis` or `keepdims`, it takes PyTorch's `dim` and `keepdim`
    as well.
    """
    places = {name: at for at, name in enumerate(signature(function).parameters)}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        from mirage_dsl.frontend.tensor import Tensor

        for theirs, ours in SYNONYMS.items():
            if theirs in kwargs and ours in places and theirs not in places:
                if ours in kwargs or len(args) > places[ours]:
                    raise ShapeError(
                        f"{function.__name__}: give {ours} or {theirs}, not both",
                        user_location(),
                    )
                kwargs[ours] = kwargs.pop(theirs)
        leaves = leaves_of((args, kwargs))
        traced = any(isinstance(leaf, Tensor) for leaf in leaves)
        if traced or not any(is_array(leaf) for leaf in leaves):
            return function(*args, **kwargs)
        from mirage_dsl.frontend.reference import call_by_reference

        return call_by_reference(function, args, kwargs)

    return cast(F, called)
