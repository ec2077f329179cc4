"""Tuples, lists and dicts of tensors: taken apart, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a tuple or a list."""
    return isinstance(value, tuple | list)


def items_of(node: object) -> Iterator[tuple[str, Any]] | None:
    """Children of a container with the names of their places; None for a leaf."""
    if is_sequence(node):
        return ((str(i), child) for i, child in enumerate(node))
    if isinstance(node, dict):
        entries: dict[Any, Any] = node  # pyright: ignore[reportUnknownVariableType]
        return ((str(key), child) for key, child in entries.items())
    return None


def leaves_of(node: object) -> list[Any]:
    """Everything in nested containers that is no container, in order."""
    items = items_of(node)
    if items is None:
        return [node]
    return [leaf for _, child in items for leaf in leaves_of(child)]


def map_leaves(node: Any, function: Callable[[str, Any], Any], path: str = "") -> Any:
    """The same containers with every leaf replaced by `function(path, leaf)`.

    A path is the places from the outside in, joined by underscores.
    """
    items = items_of(node)
    if items is None:
        return function(path, node)
    done = [
        map_leaves(child, function, f"{path}_{place}" if path else place)
        for place, child in items
    ]
    if isinstance(node, dict):
        return dict(zip(node, done, strict=True))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if hasattr(node, "_fields"):
        return type(node)(*done)
    return type(node)(done)
