"""Well-formedness: one table of rules per level.

A rule is a function from a level's view to the problems it finds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from mirage_dsl.core.errors import CheckError, SourceLocation
from mirage_dsl.core.types import (
    LARGEST_INDEX,
    MAX_EXTENT,
    Dim,
    MemorySpace,
    Scalar,
    TensorType,
    Types,
    axis_text,
    boolean,
    bounded,
    is_name,
    shown_integer,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.infer import (
    apply_type,
    block_node_type,
    check_store,
    check_stored,
    library_dims,
    library_shapes,
    store_type,
)
from mirage_dsl.ir.maps import (
    Extents,
    derived_extents,
    extents_made,
    looped_dims,
    most_early,
    partial_base,
)
from mirage_dsl.ir.text.parser import GraphLike, graph_of
from mirage_dsl.ir.walk import (
    applications,
    depending,
    makers,
    operands_of,
    read_by,
    results_of,
)
from mirage_dsl.ops.definition import AttributeKind, Kind, Truth
from mirage_dsl.ops.table import total_of

# -- Findings --------------------------------------------------------------------------

_LISTED = 12


def listed(names: Collection[str]) -> str:
    """The names, sorted; of many the first ones."""
    first = ", ".join(sorted(names)[:_LISTED])
    return f"{first} and others" if len(names) > _LISTED else first


@dataclass(frozen=True)
class Diagnostic:
    """One broken rule.

    Attributes:
        rule: Name of the rule.
        message: What was found and what was expected.
        name: The value, node or dim that it speaks of.
        hint: What to do.
        block: Position of the block among the kernel graph's nodes; None at the
            kernel level.
        location: The user's line, where one is known.
    """

    rule: str
    message: str
    name: str
    hint: str
    block: int | None = None
    location: SourceLocation | None = None

    def __str__(self) -> str:
        place = "" if self.location is None else f"{self.location}: "
        hint = f"; {self.hint}" if self.hint else ""
        return f"{place}{self.message}{hint} [{self.rule}]"


Subject = ir.Input | ir.Index | ir.BlockNode | ir.BlockGraph | ir.Return
"""What a problem may be about."""


@dataclass(frozen=True)
class Problem:
    """What a rule finds.

    Attributes:
        message: What was found and what was expected.
        hint: What to do.
        at: What it is about; None for all of the level.
        name: What it speaks of, if that is called otherwise.
        block: Position of the block, where a rule of kernel graphs finds it in one.
    """

    message: str
    hint: str
    at: Subject | None = None
    name: str = ""
    block: int | None = None


def _name_of(subject: Subject) -> str:
    match subject:
        case ir.Input() | ir.Index():
            return subject.name
        case ir.Return():
            return subject.value
        case ir.BlockGraph():
            return ", ".join(subject.results)
        case node:
            return node.result


# -- A block graph with types, stages and places ---------------------------------------


@dataclass(frozen=True)
class BlockView:
    """A block graph with what its rules ask of it.

    Attributes:
        block: The block graph.
        index: Its position among the kernel graph's nodes.
        outer: Types of kernel-level values.
        extents: Extents of all dims.
    """

    block: ir.BlockGraph
    index: int
    outer: Types
    extents: Extents

    @property
    def name(self) -> str:
        """How messages call the block."""
        return f"the block of {', '.join(self.block.results) or 'no result'}"

    @property
    def split_dims(self) -> dict[str, str]:
        """Dims that the grid and the loop split, with the block's name."""
        loop = () if self.block.loop is None else (self.block.loop.dim,)
        return dict.fromkeys((*(s.dim for s in self.block.grid), *loop), self.name)

    @cached_property
    def inferred(self) -> tuple[dict[str, TensorType], list[Problem]]:
        """Types of the block's values as far as they follow, and what broke them."""
        types: dict[str, TensorType] = {}
        problems: list[Problem] = []
        for node in self.block.made:
            if not self._operands_known(node, types):
                continue
            try:
                found = block_node_type(node, self.block, types, self.outer)
            except CheckError as error:
                hint = "change its operands or its axes"
                problems.append(Problem(error.message, hint, node))
            else:
                types[node.result] = found
        return types, problems

    def _operands_known(self, node: ir.BlockNode, types: Types) -> bool:
        if isinstance(node, ir.Load):
            return node.source in self.outer
        return all(v in types for v in operands_of(node))

    @property
    def types(self) -> dict[str, TensorType]:
        """Types of the block's values as far as they follow."""
        return self.inferred[0]

    @cached_property
    def stages(self) -> Mapping[str, str]:
        """Stage of each value."""
        return ir.stages_of(self.block)

    @cached_property
    def running(self) -> frozenset[str]:
        """Names of the running maxima."""
        return frozenset(
            n.result for n in self.block.nodes if isinstance(n, ir.RunningMax)
        )

    @cached_property
    def mixed(self) -> set[str]:
        """Values of the loop's body and of after it at once, and what is made of them.

        One mixture makes all that follows look wrong.
        """
        first = (n.result for n in self.block.applies if _mixes(self, n))
        return depending(self.block.nodes, first)

    def diagnostic(self, rule: str, problem: Problem) -> Diagnostic:
        """A problem of a node, or of the block, as one of the kernel graph."""
        at = problem.at or self.block
        return Diagnostic(
            rule,
            f"{_shown(at) if problem.at else self.name}: {problem.message}",
            problem.name or _name_of(at) or self.name,
            problem.hint,
            self.index,
            at.location,
        )


def _shown(subject: Subject) -> str:
    match subject:
        case ir.Load():
            return f"load {subject.source} as {subject.result}"
        case ir.Store():
            return f"store {subject.result}"
        case _:
            return _name_of(subject)


# -- Rules on stages -------------------------------------------------------------------


def _mixes(view: BlockView, node: ir.Apply) -> bool:
    """Whether it reads values of the loop's body, and of after the loop."""
    return {"body", "after"} <= {view.stages[v] for v in node.values}


def _unmixed(view: BlockView) -> Iterator[ir.BlockNode]:
    """The nodes that read no mixture."""
    return (n for n in view.block.nodes if view.mixed.isdisjoint(operands_of(n)))


def _stages(view: BlockView) -> Iterator[Problem]:
    """What is computed before the loop, in its body and after it stays apart."""
    for node in _unmixed(view):
        match node:
            case ir.Apply():
                yield from _no_mixture(view, node)
            case ir.RunningMax() | ir.Accumulate():
                yield from _needs_body(view, node)
            case ir.Store():
                yield from _storable(view, node)
            case ir.Load():
                pass


def _no_mixture(view: BlockView, node: ir.Apply) -> Iterator[Problem]:
    stages = {view.stages[v]: v for v in node.values}
    if _mixes(view, node):
        yield Problem(
            f"it mixes {stages['body']}, a value of the loop body, "
            f"with {stages['after']}, which exists after the loop",
            f"accumulate {stages['body']} first",
            node,
        )


def _needs_body(
    view: BlockView, node: ir.Accumulate | ir.RunningMax
) -> Iterator[Problem]:
    stage = view.stages[node.operand]
    if stage == "body":
        return
    what = "an accumulator" if isinstance(node, ir.Accumulate) else "a running maximum"
    found = "before the loop" if stage == "before" else "after the loop"
    yield Problem(
        f"{what} takes a value of the loop body; {node.operand} is one {found}",
        f"use {node.operand} directly",
        node,
    )


def _rescaled(view: BlockView) -> Iterator[Problem]:
    for node in _unmixed(view):
        if isinstance(node, ir.Accumulate) and node.rescale is not None:
            yield from _rescaling(view, node, node.rescale)


def _rescaling(view: BlockView, node: ir.Accumulate, largest: str) -> Iterator[Problem]:
    if not node.adds:
        yield Problem(
            f"a {node.kind} accumulator cannot be rescaled", "rescale sums only", node
        )
    if largest not in view.running:
        yield Problem(
            f"it is rescaled by {largest}, which is no running maximum",
            f"expected a running maximum ({listed(view.running) or 'none yet'})",
            node,
        )
        return
    operand, shift = view.types.get(node.operand), view.types.get(largest)
    if operand and shift and not set(shift.dims) <= set(operand.dims):
        yield Problem(
            f"{largest} has dims that {node.operand} lacks: {shift}, {operand}",
            "take the maximum over those dims before",
            node,
        )


def _storable(view: BlockView, node: ir.Store) -> Iterator[Problem]:
    if view.stages[node.operand] == "body":
        yield Problem(
            f"{node.operand} is a value of the loop body, it differs by iteration",
            f"accumulate {node.operand} and store the result",
            node,
        )


# -- Rules of block graphs -------------------------------------------------------------

MAX_GRID_DIMS = 3
SMALLEST_TILE = 16
"""A tile up to this size is accepted for any extent: matrix units need it."""
WARPS = (1, 2, 4, 8, 16, 32)
"""Numbers of warps that a block may have."""


def _outside(node: ir.Apply, extents: Extents) -> Iterator[Problem]:
    """A slice whose bounds do not lie in its dim."""
    part = node.sliced
    if part is None:
        return
    extent = extents.get(part.dim)
    start, stop = part.bounds(extent or 0)
    inside = start < stop if extent is None else 0 <= start < stop <= extent
    if not inside and (extent is not None or part.length(None) is not None):
        yield Problem(
            f"{start} to {stop} of the dim {part.dim} of extent {extent}",
            "expected 0 <= start < stop <= extent",
            node,
        )


BlockRule = Callable[[BlockView], Iterator[Problem]]


def _block_names(view: BlockView) -> Iterator[Problem]:
    names = Counter(n.result for n in view.block.made)
    for name, count in names.items():
        if count > 1:
            yield Problem(
                f"{count} values are called {name}",
                "give each a name of its own",
                name=name,
            )


def _defined_before(view: BlockView) -> Iterator[Problem]:
    known: set[str] = set()
    later = {n.result for n in view.block.made}
    for node in view.block.nodes:
        for name in operands_of(node):
            if name in known:
                continue
            if name in later:
                what, hint = "is defined only later", "move it up"
            elif name in view.outer:
                what, hint = "is a tensor in device memory", f"load {name} first"
            else:
                names = listed(known) or "no value so far"
                what, hint = "is not defined", f"expected one of {names}"
            yield Problem(f"{name} {what}", hint, node, name=name)
        if not isinstance(node, ir.Store):
            known.add(node.result)


def _block_types(view: BlockView) -> Iterator[Problem]:
    yield from view.inferred[1]


def _grid(view: BlockView) -> Iterator[Problem]:
    dims = [s.dim for s in view.block.grid]
    axes = [" & ".join(s.dim for s in axis) for axis in view.block.axes]
    if len(axes) > MAX_GRID_DIMS:
        yield Problem(
            f"{len(axes)} grid dims ({', '.join(axes)}), "
            f"expected at most {MAX_GRID_DIMS}",
            "leave some of them whole or loop over one",
        )
    if view.block.grid and view.block.grid[0].beside:
        yield Problem(
            f"the grid's first split, {dims[0]}, is beside no other split",
            "let it start an axis",
            name=dims[0],
        )
    for name, count in sorted(Counter(dims).items()):
        if count > 1:
            yield Problem(f"the grid splits {name} twice", "split it once", name=name)
        if view.block.grid_split(ir.partial_dim(name)) is not None:
            yield Problem(
                f"the grid splits both {name} and {ir.partial_dim(name)}",
                "one of them would have no name for its parts; rename it before",
                name=name,
            )


def _tiles(view: BlockView) -> Iterator[Problem]:
    loop = view.block.loop
    splits = [("grid", s, view.extents.get(s.dim)) for s in view.block.grid]
    if loop is not None:
        span = view.extents.get(loop.dim)
        inner = next((d for d in looped_dims(view.block) if d.grid), None)
        part = view.block.grid_split(loop.dim) if inner else None
        if part is not None and span is not None:
            span = min(span, part.tile)
        splits.append(("loop", loop, span))
    for what, split, span in splits:
        if split.tile < 1:
            yield Problem(
                f"{what} tile {split.tile} of {split.dim}",
                "expected at least 1",
                name=split.dim,
            )
        elif span is not None and split.tile > largest_tile(span):
            yield Problem(
                f"{what} tile {split.tile} of {split.dim}, which spans only {span}",
                f"expected at most {largest_tile(span)}",
                name=split.dim,
            )


def largest_tile(span: int) -> int:
    """The largest tile that makes sense for `span` elements: a power of two over it."""
    return max(SMALLEST_TILE, 1 << max(span - 1, 0).bit_length())


def _loop(view: BlockView) -> Iterator[Problem]:
    looped = looped_dims(view.block)
    if view.block.loop is None:
        return
    if not looped:
        yield Problem(
            f"it loops over {view.block.loop.dim}, but no load is split by the loop",
            "split a load by the loop, or remove the loop",
            name=view.block.loop.dim,
        )
    if len({d.grid for d in looped}) > 1:
        yield Problem(
            f"loads iterate over {' and over '.join(map(str, looped))}, "
            "which take different numbers of iterations",
            "iterate over one of them in all loads",
            name=view.block.loop.dim,
        )


def _pieces(view: BlockView) -> Iterator[Problem]:
    loop = None if view.block.loop is None else view.block.loop.dim
    for node in (*view.block.loads, *view.block.stores):
        for dim in ir.dims_of(node.axes):
            partial = isinstance(node, ir.Store) and partial_base(dim.name, view.block)
            if dim.grid and not partial and view.block.grid_split(dim.name) is None:
                split = ", ".join(s.dim for s in view.block.grid) or "nothing"
                yield Problem(
                    f"{dim}, but the grid splits {split}",
                    f"write {dim.name} without /grid, or split it by the grid",
                    node,
                    name=dim.name,
                )
            if dim.loop and dim.name != loop:
                yield Problem(
                    f"{dim}, but the loop splits {loop or 'nothing'}",
                    f"write {dim.name} without /loop, or loop over it",
                    node,
                    name=dim.name,
                )


def _block_slices(view: BlockView) -> Iterator[Problem]:
    for node in view.block.applies:
        yield from _outside(node, view.extents)


def _views(view: BlockView) -> Iterator[Problem]:
    for node in view.block.applies:
        if node.op.kind not in (Kind.VIEW, Kind.CONCAT):
            continue
        for value, name in _viewed_dims(node):
            source = view.types.get(value)
            dim = None if source is None else source.dim(name)
            # A concat of the pieces of iterations is one of the whole, once summed.
            joins = node.op.kind is Kind.CONCAT
            if dim is not None and (dim.grid if joins else dim != dim.whole):
                yield Problem(
                    f"{node.op.name} of {dim}, a piece of a dim",
                    f"apply {node.op.name} before the block, or to a whole dim",
                    node,
                    name=name,
                )


def _scans(view: BlockView) -> Iterator[Problem]:
    """What is scanned lies whole in the block, from the first element on.

    Or the loop goes over it, all iterations in order: a scan goes on from one to the
    next.
    """
    for node in view.block.applies:
        source = view.types.get(node.values[0]) if node.along else None
        goes_on = len(node.along) == 1 and not view.block.bounds and total_of(node.op)
        for name in node.along:
            dim = None if source is None else source.dim(name)
            if dim is None or dim == dim.whole or (goes_on and not dim.grid):
                continue
            yield Problem(
                f"{node.op.name} along {dim}, a piece of a dim",
                f"load all of {name}, or loop over all of it: no grid splits it",
                node,
                name=name,
            )


def _gathers(view: BlockView) -> Iterator[Problem]:
    """Elements are picked of tensors in device memory, wherever the indices say."""
    made = makers(view.block)
    for node in view.block.applies:
        if node.op.kind is not Kind.GATHER or len(node.values) != 2:
            continue
        source = node.values[0]
        load = made[source]
        if not isinstance(load, ir.Load) or _is_nowhere(view, load):
            yield Problem(
                f"it picks elements of {source}, which lies in no device memory",
                "gather from a load of a tensor, or in a kernel behind this one",
                node,
                name=source,
            )


def _is_nowhere(view: BlockView, load: ir.Load) -> bool:
    """Whether what is loaded lies in no memory."""
    known = view.outer.get(load.source)
    return known is not None and known.space is MemorySpace.NOWHERE


def _joins(view: BlockView) -> Iterator[Problem]:
    """A joined dim has one extent, that of its pieces, wherever it is in the block.

    Pieces of the loop have none that `extents` could tell, so they are compared as
    such, and the dim is none that is loaded.
    """
    joins = [n for n in view.block.applies if n.op.kind is Kind.CONCAT]
    known = {d.name for load in view.block.loads for d in ir.dims_of(load.axes)}
    first: dict[str, tuple[Counter[Dim], int]] = {}
    for node in joins:
        to, pieces = node.dim("to"), _joined_pieces(view, node)
        if pieces is None:
            continue
        other = first.setdefault(to, pieces)
        if other != pieces or (pieces[0] and to in known):
            joined = ", ".join(map(str, _operand_dims(view, node)))
            yield Problem(
                f"{to} joins {joined} here, and is of other pieces elsewhere",
                "join pieces of the same extents, or give this dim another name",
                node,
                name=to,
            )


def _operand_dims(view: BlockView, node: ir.Apply) -> list[Dim]:
    """The dims that a concat joins, with their splits, as far as types follow."""
    typed = ((view.types.get(value), name) for value, name in _viewed_dims(node))
    found = (None if known is None else known.dim(name) for known, name in typed)
    return [dim for dim in found if dim is not None]


def _joined_pieces(view: BlockView, node: ir.Apply) -> tuple[Counter[Dim], int] | None:
    """Joined dims that are split or of unknown extent, and the extent of the others."""
    dims = _operand_dims(view, node)
    if len(dims) != len(node.values):
        return None
    sizes = {d: None if d.loop else view.extents.get(d.name) for d in dims}
    return (
        Counter(d for d in dims if sizes[d] is None),
        sum(sizes[d] or 0 for d in dims),
    )


def _viewed_dims(node: ir.Apply) -> Iterator[tuple[str, str]]:
    """Operands with the dims of them that a view rearranges, or a concat joins."""
    attrs = dict(node.attrs)
    joins = node.op.kind is Kind.CONCAT
    for name, kind in node.op.attributes.items():
        value = attrs.get(name)
        if kind is AttributeKind.DIM and isinstance(value, str):
            yield from ((operand, value) for operand in node.values)
        if kind is AttributeKind.DIMS and isinstance(value, tuple):
            of = node.values if joins else node.values[:1] * len(value)
            yield from zip(of, value, strict=False)


def _stores(view: BlockView) -> Iterator[Problem]:
    if not view.block.stores:
        yield Problem("it stores nothing", "store a value or remove the block")
    for node in view.block.stores:
        dims = ir.dims_of(node.axes)
        twice = [n for n, c in Counter(d.name for d in dims).items() if c > 1]
        if twice:
            yield Problem(
                f"the dim {twice[0]} twice", "name it once", node, name=twice[0]
            )
        try:
            check_store(node, view.block)
        except CheckError as error:
            yield Problem(error.message, "split it by itself", node)
        known = view.types.get(node.operand)
        if node.dtype == boolean and known is not None and known.dtype != boolean:
            yield Problem(
                f"{node.operand} is {known.dtype}, but it is stored as bool",
                "store what a comparison gives, as with 0",
                node,
            )
        elif known is not None:
            try:
                check_stored(node, known.dtype)
            except CheckError as error:
                yield Problem(error.message, "convert it", node)
        yield from _grid_stored(view, node, dims)
        yield from _store_fits(view, node, dims)


def _grid_stored(
    view: BlockView, node: ir.Store, dims: tuple[Dim, ...]
) -> Iterator[Problem]:
    block = view.block
    own = [d.name for d in dims if d.grid and not d.loop]
    stored = {block.axis_of.get(partial_base(name, block) or name) for name in own}
    for axis in block.axes:
        if block.axis_of[axis[0].dim] not in stored:
            name = " & ".join(s.dim for s in axis)
            parts = [Dim(s.dim, grid=True) for s in axis]
            partial = [Dim(ir.partial_dim(s.dim), grid=True) for s in axis]
            listed = " nor ".join(map(str, (*parts, *partial[:1])))
            yield Problem(
                f"the grid splits {name}, but the axes have neither {listed}",
                f"all blocks along {name} would write the same elements; "
                f"store {partial[0]} if these are partial results",
                node,
                name=axis[0].dim,
            )


def _store_fits(
    view: BlockView, node: ir.Store, dims: tuple[Dim, ...]
) -> Iterator[Problem]:
    operand = view.types.get(node.operand)
    if operand is None:
        return
    own = {d for d in dims if d.name in operand.names or not _numbers(view, d)}
    looped = [d for d in operand.dims if d.loop]
    if looped:
        yield Problem(
            f"{node.operand} has {looped[0]}, the index within a tile of the loop",
            f"sum over {looped[0].name} after the loop, or concatenate",
            node,
            name=looped[0].name,
        )
    elif own != set(operand.dims):
        found = ", ".join(map(str, dims)) or "none"
        expected = ", ".join(map(str, operand.dims)) or "none"
        yield Problem(
            f"its axes have the dims {found}, but {node.operand} has {expected}",
            "name the dims of the value, each with the same /grid",
            node,
        )


def _numbers(view: BlockView, dim: Dim) -> bool:
    """Whether a stored dim is the coordinate of a grid dim."""
    return dim.grid and partial_base(dim.name, view.block) is not None


def _schedule(view: BlockView) -> Iterator[Problem]:
    warps, stages = view.block.schedule.num_warps, view.block.schedule.num_stages
    if warps not in WARPS:
        yield Problem(
            f"num_warps({warps}), expected one of {', '.join(map(str, WARPS))}",
            "take one of these",
        )
    prefetch = view.block.schedule.prefetch
    if prefetch not in ir.PREFETCHED:
        known = ", ".join(map(str, ir.PREFETCHED))
        yield Problem(
            f"prefetch({prefetch}), expected one of {known}",
            "take 0 to ask for nothing ahead",
        )
    early = view.block.schedule.early
    if early < 0:
        yield Problem(
            f"early({early}), expected 0 or more", "take 0 to load nothing early"
        )
    elif early and not most_early(view.block, view.extents):
        yield Problem(
            f"early({early}) without a loop of {ir.WRITTEN_OUT} known iterations or "
            "fewer that has num_stages(1), and no descriptors or bounds",
            "take early(0), or such a loop",
        )
    if stages < 1:
        yield Problem(
            f"num_stages({stages}), expected 1 or more", "take 1 to load nothing ahead"
        )


def _unread(view: BlockView) -> Iterator[Problem]:
    used = read_by(view.block.nodes)
    for node in view.block.made:
        if node.result not in used:
            yield Problem(
                "nothing in the block reads it", "remove it or store it", node
            )


def _bounds(view: BlockView) -> Iterator[Problem]:
    block = view.block
    for bound in (*block.bounds, *(s.bound for s in block.settled)):
        fits = block.loop is not None and block.loop.dim != bound.dim
        if not fits or block.grid_split(bound.dim) is None:
            yield Problem(
                f"iterations are bounded by the block's place along {bound.dim}",
                "bound a loop over another dim, by a dim that the grid splits",
                name=bound.dim,
            )
        if bound.also is not None and not bound.upper:
            yield Problem(
                f"visits positions up to {bound.also} and from {bound.dim} on",
                "let what is visited have no gap",
                name=bound.dim,
            )
    if block.bounds or block.settled:
        for node in block.nodes:
            if isinstance(node, ir.Accumulate) and node.reduction is None:
                yield Problem(
                    "joins iterations, of which some are left out or run apart",
                    "visit all of them alike",
                    node,
                )


def _settled(view: BlockView) -> Iterator[Problem]:
    made = makers(view.block)
    for settled in view.block.settled:
        if settled.bound.also is not None:
            yield Problem(
                f"positions up to {settled.bound.also} say nothing of {settled.value}",
                "leave them out",
                made.get(settled.value),
                name=settled.value,
            )
        node = made.get(settled.value)
        compares = isinstance(node, ir.Apply) and node.op.truth is Truth.COMPARES
        if not compares or view.stages[settled.value] != "body":
            yield Problem(
                f"{settled.value} is settled in some iterations",
                "settle what compares, in the loop",
                node,
                name=settled.value,
            )


NAME_RULES: Mapping[str, BlockRule] = {
    "unique-names": _block_names,
    "defined": _defined_before,
}
"""Rules without which the others cannot be asked."""

BLOCK_RULES: Mapping[str, BlockRule] = {
    "grid": _grid,
    "bounds": _bounds,
    "settled": _settled,
    "tile": _tiles,
    "loop": _loop,
    "piece": _pieces,
    "type": _block_types,
    "slice": _block_slices,
    "view": _views,
    "scan": _scans,
    "gather": _gathers,
    "join": _joins,
    "stage": _stages,
    "rescale": _rescaled,
    "store": _stores,
    "schedule": _schedule,
    "unused": _unread,
}
"""The rules of block graphs, in order of reporting."""


def check_block(view: BlockView) -> list[Diagnostic]:
    """All rules that a block graph breaks."""
    for rules in (NAME_RULES, BLOCK_RULES):
        found = [view.diagnostic(r, p) for r, rule in rules.items() for p in rule(view)]
        if found:
            return found
    return []


# -- Kernel graphs with types ----------------------------------------------------------


@dataclass(frozen=True)
class KernelView:
    """A kernel graph with what its rules ask of it."""

    graph: ir.KernelGraph

    @cached_property
    def inferred(self) -> tuple[dict[str, TensorType], list[Problem]]:
        """Types of kernel-level values as far as they follow, and what broke them."""
        types = {i.name: i.type for i in self.graph.given}
        problems: list[Problem] = []
        for node in self.graph.nodes:
            if isinstance(node, ir.BlockGraph):
                types.update({s.result: store_type(s) for s in node.stores})
            elif all(v in types for v in node.values):
                operands = [types[v] for v in node.values]
                try:
                    types[node.result] = apply_type(node, operands, in_block=False)
                except CheckError as error:
                    message = f"{node.result}: {error.message}"
                    hint = "change the operands or the attributes"
                    problems.append(Problem(message, hint, node))
        return types, problems

    @property
    def types(self) -> dict[str, TensorType]:
        """Types of kernel-level values as far as they follow."""
        return self.inferred[0]

    @cached_property
    def blocks(self) -> tuple[BlockView, ...]:
        """The block graphs, each with its place and the kernel level's types."""
        return tuple(
            BlockView(node, i, self.types, self.graph.extent_of)
            for i, node in enumerate(self.graph.nodes)
            if isinstance(node, ir.BlockGraph)
        )

    def diagnostic(self, rule: str, problem: Problem) -> Diagnostic:
        """A problem of what a rule is of."""
        at = problem.at
        name = problem.name or ("" if at is None else _name_of(at))
        location = None if at is None else at.location
        return Diagnostic(
            rule, problem.message, name, problem.hint, problem.block, location
        )


KernelRule = Callable[[KernelView], Iterator[Problem]]


def _unique_names(view: KernelView) -> Iterator[Problem]:
    graph = view.graph
    names = [i.name for i in graph.given]
    names += [r for n in graph.nodes for r in results_of(n)]
    for name, count in Counter(names).items():
        if count > 1:
            yield Problem(
                f"{count} kernel-level values are called {name}",
                "give each a name of its own",
                name=name,
            )


def _defined(view: KernelView) -> Iterator[Problem]:
    known = {i.name for i in view.graph.given}
    later = {r for n in view.graph.nodes for r in results_of(n)}
    for i, node in enumerate(view.graph.nodes):
        block = i if isinstance(node, ir.BlockGraph) else None
        for name in operands_of(node):
            if name in known:
                continue
            reads = node.loads if isinstance(node, ir.BlockGraph) else ()
            reader = next((n for n in reads if n.source == name), node)
            what = "is defined only later" if name in later else "is not defined"
            user = ", ".join(results_of(node))
            yield Problem(
                f"{name}, which {user} reads, {what}",
                f"expected one of {listed(known)}",
                reader,
                name=name,
                block=block,
            )
        known.update(results_of(node))


def _types(view: KernelView) -> Iterator[Problem]:
    yield from view.inferred[1]


def _inputs(view: KernelView) -> Iterator[Problem]:
    for item in view.graph.inputs:
        repeated = [n for n, c in Counter(item.type.names).items() if c > 1]
        if repeated:
            yield Problem(
                f"input {item.name} has the dim {repeated[0]} twice: {item.type}",
                "the axes of one tensor need different dims",
                item,
            )
        if any(d.grid or d.loop for d in item.type.dims):
            yield Problem(
                f"input {item.name} has a split dim: {item.type}",
                "write /grid and /loop in the loads of a block",
                item,
            )
        if item.type.space is not MemorySpace.DEVICE:
            yield Problem(
                f"input {item.name} lives in {item.type.space.value} memory",
                "expected device memory",
                item,
            )


def _indices(view: KernelView) -> Iterator[Problem]:
    """The positions along an axis are below `LARGEST_INDEX`."""
    for item in view.graph.indices:
        if any(d.grid or d.loop for d in item.axis) or not item.axis:
            yield Problem(
                f"the index value {item.name} counts {axis_text(item.axis)}",
                "expected an axis of whole dims; write /grid and /loop in loads",
                item,
            )
        extents = [view.graph.extent_of.get(d.name) for d in item.axis]
        count = prod(e for e in extents if e is not None)
        if count > LARGEST_INDEX:
            yield Problem(
                f"the index value {item.name} has {shown_integer(count)} positions",
                f"expected at most {LARGEST_INDEX} (2**30)",
                item,
            )


def _extents_known(view: KernelView) -> Iterator[Problem]:
    named = {n: v for v, t in reversed(view.types.items()) for n in t.names}
    named.update({n: v for b in view.blocks for n, v in b.split_dims.items()})
    made = derived_extents(view.graph, {})
    named.update({n: view.graph.name for n in made if n not in named})
    for node in applications(view.graph):
        for operand in node.operands:
            if isinstance(operand, Scalar):
                named.update({n: node.result for n, _ in operand.extents})
    for name, value in named.items():
        if name not in view.graph.extent_of:
            yield Problem(
                f"the dim {name} of {value} has no extent",
                f"state it: {name} = an integer, or {name} = ? where it is symbolic",
                name=name,
            )
    for name, extent in view.graph.extents:
        if extent is not None and not 1 <= extent <= MAX_EXTENT:
            yield Problem(
                f"the dim {name} has extent {shown_integer(extent)}",
                "expected at least 1"
                if extent < 1
                else f"expected at most {MAX_EXTENT}",
                name=name,
            )


def _extents_derived(view: KernelView) -> Iterator[Problem]:
    found = view.graph.extent_of
    if any(e is not None and not 1 <= e <= MAX_EXTENT for e in found.values()):
        return
    if any(s.tile < 1 for b in view.graph.blocks for s in b.grid):
        return
    for node, name, extent in extents_made(view.graph, found):
        if name in found and found[name] != extent:
            yield Problem(
                f"the dim {name} has extent {found[name]}, "
                f"but {_maker(node)} gives it {extent}",
                f"set {name} = {extent}, change the tile or the view that makes it, or "
                "give it another name here",
                node,
                name=name,
            )


def _library_extents(view: KernelView) -> Iterator[Problem]:
    """The extents of a library operator's result are those that PyTorch gives."""
    for node in view.graph.applies:
        if node.op.kind is Kind.LIBRARY and node.result in view.types:
            problem = _library_problem(node, view.graph.extent_of)
            if problem is not None:
                yield Problem(
                    f"{node.result}: {problem}",
                    f"change the extents, or the attributes of {node.op.name}",
                    node,
                )


def _library_problem(node: ir.Apply, extents: Extents) -> str | None:
    """What is wrong with the extents of a library operator's dims, or None."""
    carried = node.op.carried
    whole = {
        name
        for a, b in zip(node.axes("of")[:carried], node.axes("gives"), strict=False)
        for name in a
        if a == b
    }
    dims = dict.fromkeys(library_dims(node))
    known = {n: extents.get(n) or 1 for n in dims}
    missing = [n for n in dims if extents.get(n) is None and n not in whole]
    if missing:
        return (
            f"the extent of {missing[0]} is symbolic, and only those of a batch may be"
        )
    shapes, shape = library_shapes(node, known)
    assert node.op.shape is not None
    try:
        found = node.op.shape(shapes, node.numbers)
    except CheckError as error:
        return error.message
    if found != shape:
        return f"{node.op.name} gives the shape {found}, the extents say {shape}"
    return None


def _maker(node: ir.KernelNode) -> str:
    if isinstance(node, ir.Apply):
        return f"what makes {node.result}"
    return f"the block of {', '.join(node.results)}"


def _bytes(view: KernelView) -> Iterator[Problem]:
    extents = view.graph.extent_of
    for name, kind in view.types.items():
        size = prod(max(extents.get(n) or 1, 1) for n in kind.names)
        if size * kind.dtype.itemsize > MAX_EXTENT:
            yield Problem(
                f"{name} is {kind}, which is {shown_integer(size)} elements or more",
                f"expected at most {MAX_EXTENT} bytes",
                name=name,
            )


def _names(view: KernelView) -> Iterator[Problem]:
    graph = view.graph
    values = [*view.types, *(n.result for b in graph.blocks for n in b.nodes)]
    for name in dict.fromkeys((graph.name, *values, *graph.extent_of)):
        if not is_name(name):
            yield Problem(
                f"{name!r} names the graph, a value or a dim",
                "take letters, digits and _, and no digit first; inf and nan are "
                "numbers",
                name=name,
            )


def _constants(view: KernelView) -> Iterator[Problem]:
    for node in applications(view.graph):
        for operand in node.operands:
            try:
                if isinstance(operand, Scalar):
                    bounded(operand)
            except ValueError as error:
                yield Problem(f"{node.result}: {error}", "take another constant", node)


def _slices(view: KernelView) -> Iterator[Problem]:
    for node in view.graph.applies:
        for found in _outside(node, view.graph.extent_of):
            yield replace(found, message=f"{node.result}: {found.message}")


def _returns(view: KernelView) -> Iterator[Problem]:
    if not view.graph.returns:
        yield Problem(
            f"{view.graph.name} returns nothing",
            "return at least one value",
            name=view.graph.name,
        )
    known = {i.name for i in view.graph.given}
    known.update(r for n in view.graph.nodes for r in results_of(n))
    for item in view.graph.returns:
        if item.value not in known:
            yield Problem(
                f"returned value {item.value} is not defined",
                f"expected one of {listed(known)}",
                item,
            )
        elif item.value in view.types:
            yield from _return_fits(item, view.types[item.value])


def _return_fits(item: ir.Return, value: TensorType) -> Iterator[Problem]:
    name, returned = item.value, item.type
    if Counter(returned.dims) != Counter(d.whole for d in value.dims):
        yield Problem(
            f"{name} is returned as {returned}, but it is {value}",
            "the returned type may order and group the dims of the value, no more",
            item,
            name=name,
        )
    if returned.dtype != value.dtype:
        yield Problem(
            f"{name} is returned as {returned.dtype}, but it is {value.dtype}",
            f"return {value.dtype}, or cast or store it as {returned.dtype}",
            item,
            name=name,
        )


def _unused(view: KernelView) -> Iterator[Problem]:
    used = {r.value for r in view.graph.returns}
    used |= read_by(view.graph.nodes)
    for i, node in enumerate(view.graph.nodes):
        makers = node.stores if isinstance(node, ir.BlockGraph) else (node,)
        for maker in makers:
            name = maker.result
            if name not in used:
                yield Problem(
                    f"nothing reads {name}",
                    "remove what computes it, or return it",
                    maker,
                    name=name,
                    block=i if isinstance(node, ir.BlockGraph) else None,
                )


KERNEL_RULES: Mapping[str, KernelRule] = {
    "names": _names,
    "unique-names": _unique_names,
    "defined": _defined,
    "input": _inputs,
    "index": _indices,
    "type": _types,
    "constant": _constants,
    "extent": _extents_known,
    "derived-extent": _extents_derived,
    "library-extent": _library_extents,
    "bytes": _bytes,
    "slice": _slices,
    "return": _returns,
    "unused": _unused,
}
"""The rules of kernel graphs, in order of reporting."""


def check(graph: GraphLike) -> list[Diagnostic]:
    """All rules that a graph breaks; an empty list means that it is well formed.

    Args:
        graph: A program or μGraph, its text, or a candidate of a search.

    Raises:
        CheckError: It is none, or a type rule of its text does not hold.
        ParseError: The text is not in the language.
    """
    view = KernelView(graph_of(graph))
    found = [
        view.diagnostic(name, problem)
        for name, rule in KERNEL_RULES.items()
        for problem in rule(view)
    ]
    return found + [d for block in view.blocks for d in check_block(block)]


def check_or_raise(graph: ir.KernelGraph) -> None:
    """Check `graph`.

    Raises:
        CheckError: It breaks a rule; the message lists all of them.
    """
    found = check(graph)
    if not found:
        return
    listed = "".join(f"\n  {d}" for d in found)
    raise CheckError(
        f"{graph.name} is not well formed:{listed}",
        next((d.location for d in found if d.location is not None), None),
    )
