"""Dynamic dims: one search for many extents, and one compiled kernel where that can be.

Extents are rounded up.  What is found for these serves all extents that come to the
same, once it is verified at extents of their kind.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mirage_dsl.backends.base import DEFAULT_BACKEND, backend_named
from mirage_dsl.core.errors import ShapeError, UnsupportedError
from mirage_dsl.core.types import TensorSpec, packed
from mirage_dsl.frontend.arguments import Arguments, known_shapes, order_of
from mirage_dsl.ir.check.graph import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import (
    bind_extents,
    complete_extents,
    derived_extents,
    parts,
    with_symbolic,
)

if TYPE_CHECKING:
    from mirage_dsl.backends.base import Executable

Shapes = Sequence[tuple[int, ...]]

log = logging.getLogger("mirage_dsl.frontend.dynamic")

EXACT = 64
"""Extents up to here are rounded to powers of two."""
STEPS = 4
"""Beyond, there are so many steps from one power of two to the next.

A long extent has many tiles: what is best for twice as many is often not best for it.
"""


def round_up(extent: int) -> int:
    """The extent that a search is made for."""
    power = 1 << (extent - 1).bit_length()
    step = power if extent <= EXACT else power // (2 * STEPS)
    return -(-extent // step) * step


def rounded(arguments: Arguments, dynamic: Collection[str]) -> Arguments:
    """The arguments with extents of dynamic dims rounded up."""
    pairs = zip(arguments.specs, arguments.hints, strict=True)
    return replace(arguments, specs=tuple(_rounded(s, h, dynamic) for s, h in pairs))


def _rounded(
    given: TensorSpec, hints: Sequence[str | None], dynamic: Collection[str]
) -> TensorSpec:
    extents = [
        round_up(extent) if isinstance(extent, int) and hint in dynamic else extent
        for extent, hint in zip(given.shape, hints, strict=True)
    ]
    strides = given.strides
    known = [e for e in given.shape if isinstance(e, int)]
    if strides is not None and len(known) == len(extents):
        strides = packed([int(e) for e in extents], order_of(known, strides))
    return replace(given, shape=tuple(extents), strides=strides)


def typical(
    program: KernelGraph, found: Arguments, given: Arguments
) -> tuple[TensorSpec, ...]:
    """Specs of the sizes to search for: the rounded ones, if they fit each other.

    They do not where one dim is as long as two others together, for one.

    Args:
        program: What is computed.
        found: The arguments, rounded.
        given: The arguments of a call.
    """
    shapes = known_shapes(found.specs)
    if shapes is not None:
        try:
            bind_extents(program, shapes)
        except ShapeError:
            return given.specs
    return found.specs


def free_dims(graph: KernelGraph, program: KernelGraph) -> frozenset[str]:
    """What the program's symbolic dims are called in a graph with the same inputs."""
    return frozenset(
        ours
        for mine, its in zip(graph.inputs, program.inputs, strict=False)
        for ours, other in zip(mine.type.names, its.type.names, strict=False)
        if program.extent_of[other] is None
    )


def resized(graph: KernelGraph, free: Collection[str], shapes: Shapes) -> KernelGraph:
    """The graph with the extents of `free` dims, and what follows, that shapes tell.

    Raises:
        ShapeError: The shapes contradict the inputs' types or each other.
    """
    if not free:
        return graph
    bound = bind_extents(graph.with_extents(dict.fromkeys(free)), shapes)
    return graph.with_extents(derived_extents(graph, bound))


class Executables:
    """What runs one μGraph, at its extents and at others.

    Args:
        program: What it computes, with symbolic extents where they may change.
        mugraph: How, verified at its own extents.
        backend: What it runs by.
    """

    def __init__(
        self,
        program: KernelGraph,
        mugraph: KernelGraph,
        backend: str = DEFAULT_BACKEND,
    ) -> None:
        self._backend = backend_named(backend)
        self._program = program
        self._free = free_dims(mugraph, program)
        self._mugraph = complete_extents(mugraph, mugraph.extent_of)
        self._most = {n: e for n, e in self._mugraph.extents if e is not None}
        self._known: dict[object, Executable] = {}
        self._verified: dict[object, bool] = {}
        self._shared: dict[bool, Executable | None] = {}

    def at(self, shapes: Shapes, *, interpret: bool) -> Executable | None:
        """What is known to serve inputs of these shapes."""
        return self._known.get((interpret, tuple(shapes)))

    def make(self, shapes: Shapes, *, interpret: bool) -> Executable:
        """What serves inputs of these shapes, verified at extents of their kind."""
        found = self._made(shapes, interpret)
        self._known[interpret, tuple(shapes)] = found
        return found

    def _made(self, shapes: Shapes, interpret: bool) -> Executable:
        sized = resized(self._mugraph, self._free, shapes)
        if sized == self._mugraph:
            return self._compiled(sized, interpret)
        program = self._program.with_extents(bind_extents(self._program, shapes))
        if sized == program:
            return self._compiled(program, interpret)
        kind = _kind(sized)
        if kind not in self._verified:
            self._verified[kind] = _holds(sized, program)
        if not self._verified[kind]:
            return self._compiled(program, interpret)
        shorter = all((e or 0) <= self._most.get(n, 0) for n, e in sized.extents)
        shared = self._of_shorter(interpret) if shorter else None
        return shared or self._compiled(sized, interpret)

    def _of_shorter(self, interpret: bool) -> Executable | None:
        """What serves all extents up to the μGraph's own; None if nothing does."""
        if interpret not in self._shared:
            graph = with_symbolic(self._mugraph, self._free)
            self._shared[interpret] = None
            if _lies_along_symbolic(graph):
                return None
            try:
                self._shared[interpret] = self._compiled(graph, interpret, self._most)
            except UnsupportedError as error:
                log.info("%s: compiled for each extent: %s", graph.name, error)
        return self._shared[interpret]

    def _compiled(
        self,
        graph: KernelGraph,
        interpret: bool,
        most: Mapping[str, int] | None = None,
    ) -> Executable:
        device = "cpu" if interpret else "cuda"
        return self._backend.compile(graph, device, most=most)


def _lies_along_symbolic(graph: KernelGraph) -> bool:
    """Whether elements of an input or a result lie along a symbolic dim in memory.

    A kernel that does not know such an extent loads them one by one.
    """
    for item in (*graph.inputs, *graph.returns):
        dims = [d.name for axis in item.type.order for d in item.type.axes[axis]]
        if dims and graph.extent_of[dims[-1]] is None:
            return True
    return False


def _kind(graph: KernelGraph) -> object:
    """What a verification tells extents apart by; it has small extents of its own.

    That is which of them are 1 and, of each split, whether it has one part, two, or
    more of them, and whether the last one is ragged.
    """
    extents = graph.extent_of
    splits = [s for b in graph.blocks for s in b.splits]
    found = [(extents[s.dim] or 1, s.tile) for s in splits]
    return (
        tuple(name for name, extent in graph.extents if extent == 1),
        tuple((min(parts(e, tile), 3), e % tile == 0) for e, tile in found),
    )


def _holds(graph: KernelGraph, program: KernelGraph) -> bool:
    """Whether a graph computes the program at these extents; a warning says why not.

    How accurate it is was measured where it was chosen, with sums at least as long.
    """
    from mirage_dsl.verify.verifier import verify

    problems = check(graph)
    reason = str(problems[0]) if problems else ""
    if not problems:
        certificate = verify(graph, program)
        stability = certificate.stability
        finite = stability is None or math.isfinite(stability.worst_ratio)
        if certificate.equivalent and finite:
            return True
        reason = str(certificate)
    sizes = ", ".join(f"{name} = {extent}" for name, extent in program.extents)
    log.warning(
        "%s with %s is left to library kernels; the μGraph for these sizes rounded up "
        "does not serve: %s",
        program.name,
        sizes,
        reason,
    )
    return False
