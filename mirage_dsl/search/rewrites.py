"""The rewrites: programs and μGraphs into others that compute the same, a row for each.

What comes of a row is verified like all that is found, so a wrong one costs time and no
answer.  Searches ask by `Use` where they apply all rows of one to a whole graph; where
they work kernel by kernel, they call a row's function themselves.  `mirage-dsl rewrite`
applies them one by one, and docs/rewrites.md shows what each makes of an example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from types import MappingProxyType

from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.walk import map_blocks
from mirage_dsl.rewrite.concats import name_whole_parts, pick_joined, take_apart
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.layouts import with_convolutions_channels_last
from mirage_dsl.rewrite.loops import (
    scanned_in_loop,
    settle_masks,
    skip_tiles,
    split_loop,
    summed_where_made,
    without_loop,
)
from mirage_dsl.rewrite.pairs import with_pairs
from mirage_dsl.rewrite.shifts import stabilise, strip_shifts
from mirage_dsl.rewrite.sinking import (
    fuse_gathers,
    gathers_as_kernels,
    share_views,
    sink_gathers,
    sink_views,
)
from mirage_dsl.rewrite.sums import combined_variances, multiplied_out
from mirage_dsl.rewrite.windows import with_windows
from mirage_dsl.verify.shifts import reductions_as_shifts


class Level(Enum):
    """What a rewrite takes."""

    PROGRAM = "a program of operators"
    MUGRAPH = "any μGraph"


class Use(Enum):
    """When searches apply a rewrite."""

    NORMAL = "applied first, to every program, in this order"
    PROVEN = "applied next, to every program, where it is proved to change nothing"
    PROGRAM = "applied to the form before it; what comes of it is searched too"
    PART = "a part of the next row of another use"
    KERNEL = "applied before single kernels are searched"
    KERNEL_FORM = (
        "applied to the program of one kernel; what comes of it is searched too"
    )
    STRUCTURE = "applied to what is found of one kernel, without sizes, which stays too"
    SEGMENT = "applied to a segment; what comes of it is searched as two"
    CALL = "applied to calls of PyTorch's; what comes of it is searched as one kernel"
    FOUND = "applied to all that is found"
    VARIANT = "applied to what is found, where the estimate of the outcome is less"
    TIMED = "applied to what is found, where it is timed; so is what comes of it"


Function = Callable[[KernelGraph], KernelGraph | None]


@dataclass(frozen=True)
class Rewrite:
    """One rewrite.

    Attributes:
        name: What the command line and messages call it.
        level: What it takes; other graphs stay as they are.
        uses: When searches apply it.
        what: What it changes, and what for, in a line.
        function: The other graph; None, or the same one, where there is nothing to do.
    """

    name: str
    level: Level
    uses: tuple[Use, ...]
    what: str
    function: Function

    @property
    def when(self) -> str:
        """What it takes, and when searches apply it."""
        return "; ".join((self.level.value, *(use.value for use in self.uses)))

    def __call__(self, graph: KernelGraph) -> KernelGraph:
        """The graph after it."""
        if self.level is Level.PROGRAM and graph.blocks:
            return graph
        return self.function(graph) or graph


def rewrites(use: Use) -> tuple[Rewrite, ...]:
    """The rows of one use, in the order in which they are applied."""
    return tuple(row for row in REWRITES.values() if use in row.uses)


def rewritten(graph: KernelGraph, use: Use) -> KernelGraph:
    """A graph after all rows of one use."""
    return reduce(lambda found, row: row(found), rewrites(use), graph)


# -- Functions of whole graphs ---------------------------------------------------------


def _multiplied_out(program: KernelGraph) -> KernelGraph | None:
    form = multiplied_out(program)
    return None if form is None else form.program


def _split(graph: KernelGraph) -> KernelGraph | None:
    """The first block whose loop can be split."""
    found = (split_loop(graph, graph.nodes.index(block)) for block in graph.blocks)
    return next((made for made in found if made is not None), None)


def _looped(graph: KernelGraph) -> KernelGraph | None:
    """All blocks that can loop over what they scan, an element at a time."""
    made = map_blocks(graph, lambda block: scanned_in_loop(block) or block)
    return None if check(made) else made


def _without_loops(graph: KernelGraph) -> KernelGraph | None:
    """All blocks that can do without their loops."""
    made = map_blocks(graph, lambda block: without_loop(block) or block)
    return None if check(made) else made


# -- The rows --------------------------------------------------------------------------

_ROWS = (
    Rewrite(
        "expand",
        Level.MUGRAPH,
        (Use.NORMAL,),
        "derived operators by others, constants folded, equal nodes merged",
        expand,
    ),
    Rewrite(
        "sink-gathers",
        Level.PROGRAM,
        (Use.NORMAL,),
        "elements are picked before they are computed with, where these are fewer",
        sink_gathers,
    ),
    Rewrite(
        "share-views",
        Level.PROGRAM,
        (Use.NORMAL,),
        "views of what nothing else reads move to tensors that are seen alike anyway",
        share_views,
    ),
    Rewrite(
        "stabilise",
        Level.MUGRAPH,
        (Use.NORMAL, Use.FOUND),
        "exponentials that cancel get a shift: in a loop, a running maximum",
        stabilise,
    ),
    Rewrite(
        "recognise-shifts",
        Level.PROGRAM,
        (Use.PROVEN,),
        "a reduction whose value cancels is a shift, which the search takes out",
        reductions_as_shifts,
    ),
    Rewrite(
        "name-parts",
        Level.PROGRAM,
        (Use.PART,),
        "a slice that shows all of what was concatenated has the name of that dim",
        name_whole_parts,
    ),
    Rewrite(
        "take-apart",
        Level.PROGRAM,
        (Use.PART,),
        "a reduction over a concatenated dim is made of those over its parts",
        take_apart,
    ),
    Rewrite(
        "sink-views",
        Level.PROGRAM,
        (Use.PROGRAM,),
        "views of computed tensors move to the inputs, where they are free",
        sink_views,
    ),
    Rewrite(
        "pick-joined",
        Level.PROGRAM,
        (Use.PROGRAM,),
        "elements of concatenations are picked of their operands, by position",
        pick_joined,
    ),
    Rewrite(
        "strip-shifts",
        Level.MUGRAPH,
        (Use.KERNEL,),
        "what only shifts exponents is gone; the search works without it",
        strip_shifts,
    ),
    Rewrite(
        "multiply-out",
        Level.PROGRAM,
        (Use.KERNEL_FORM,),
        "sums of products of sums term by term: fewer sums wait for each other",
        _multiplied_out,
    ),
    Rewrite(
        "combine-variances",
        Level.PROGRAM,
        (Use.SEGMENT,),
        "variances of long rows are combined from those of parts, which do not wait",
        combined_variances,
    ),
    Rewrite(
        "loop-over-scan",
        Level.MUGRAPH,
        (Use.STRUCTURE,),
        "a block goes over long rows in pieces; its scans go on from one to the next",
        _looped,
    ),
    Rewrite(
        "fuse-gathers",
        Level.MUGRAPH,
        (Use.VARIANT,),
        "blocks pick the elements that they read themselves, where a gather did",
        fuse_gathers,
    ),
    Rewrite(
        "gathers-as-kernels",
        Level.MUGRAPH,
        (Use.VARIANT,),
        "a gather is a kernel that computes its index on the way",
        gathers_as_kernels,
    ),
    Rewrite(
        "sum-where-made",
        Level.MUGRAPH,
        (Use.VARIANT,),
        "blocks sum the pieces that they have of what only its sum is read of",
        summed_where_made,
    ),
    Rewrite(
        "skip-tiles",
        Level.MUGRAPH,
        (Use.VARIANT,),
        "iterations whose mask is wholly false are left out, by bounds of the loop",
        skip_tiles,
    ),
    Rewrite(
        "settle-masks",
        Level.MUGRAPH,
        (Use.VARIANT,),
        "iterations whose mask hides nothing do without it, in a loop of their own",
        settle_masks,
    ),
    Rewrite(
        "split-loop",
        Level.MUGRAPH,
        (Use.VARIANT,),
        "more blocks share a loop's iterations, and a second kernel joins the parts",
        _split,
    ),
    Rewrite(
        "without-loop",
        Level.MUGRAPH,
        (Use.TIMED,),
        "a block has all iterations at once, where it reads little",
        _without_loops,
    ),
    Rewrite(
        "windows",
        Level.MUGRAPH,
        (Use.CALL,),
        "pooling and convolutions join elements that are picked at positions",
        with_windows,
    ),
    Rewrite(
        "channels-last",
        Level.MUGRAPH,
        (Use.VARIANT,),
        "convolutions read and make tensors with their channels side by side",
        with_convolutions_channels_last,
    ),
    Rewrite(
        "pairs",
        Level.MUGRAPH,
        (Use.VARIANT,),
        "blocks take bytes of weights two at a time, and warps have parts of the rows",
        with_pairs,
    ),
    Rewrite(
        "launch-early",
        Level.MUGRAPH,
        (Use.VARIANT,),
        "every kernel but the first starts before the one ahead has ended, and waits",
        launched_early,
    ),
)
REWRITES: Mapping[str, Rewrite] = MappingProxyType({row.name: row for row in _ROWS})
"""All rows by name, in the order in which searches apply them."""
