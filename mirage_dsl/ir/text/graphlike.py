"""What the public functions on graphs take for one: it, its text, or what has one."""

from __future__ import annotations

from typing import Protocol

from mirage_dsl.core.errors import CheckError
from mirage_dsl.ir.graph import KernelGraph


class HasMugraph(Protocol):
    """A candidate of a search, or a bound kernel."""

    @property
    def mugraph(self) -> KernelGraph:
        """The μGraph."""
        ...


GraphLike = KernelGraph | str | HasMugraph


def graph_of(given: GraphLike, *attributes: str) -> KernelGraph:
    """The graph that a user means.

    Args:
        given: A graph, its `.mu` text, or an object that has one.
        *attributes: Where such objects have it; `mugraph` unless given.

    Raises:
        CheckError: It is none of these.
        ParseError: The text is not in the language.
    """
    if isinstance(given, KernelGraph):
        return given
    if isinstance(given, str):
        from mirage_dsl.ir.text.parser import parse

        return parse(given)
    for attribute in attributes or ("mugraph",):
        found = getattr(given, attribute, None)
        if isinstance(found, KernelGraph):
            return found
    raise CheckError(
        f"expected a program or a μGraph, its text, or a candidate of a search; found "
        f"{type(given).__name__}"
    )
