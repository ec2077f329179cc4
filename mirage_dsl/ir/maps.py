"""Where the pieces of a dim lie: tiles, grid parts, iterations and derived extents."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import prod

from mirage_dsl.core.errors import ShapeError
from mirage_dsl.core.types import Axis, Dim, Scalar, axis_text
from mirage_dsl.core.work import look
from mirage_dsl.ir import graph as ir
from mirage_dsl.ops.definition import Kind

# -- Pieces of dims --------------------------------------------------------------------
# Every level that needs the geometry of a block (evaluator, checker, cost model,
# emitter) takes it from here.  With tiles `Tg` (grid) and `Tl` (loop), a block
# sees of a dim of extent `N`, for grid coordinate `g` and iteration `i`:
#
#     d             0 .. N
#     d/grid        g*Tg .. g*Tg + Tg
#     d/loop        i*Tl .. i*Tl + Tl
#     d/grid/loop   g*Tg + i*Tl .. g*Tg + i*Tl + Tl, inside of d/grid
#
# What lies at or beyond `N` is padding, and so is what lies beyond the grid part.

Extents = Mapping[str, int | None]


def known_extents(extents: Extents) -> dict[str, int]:
    """Those that are known."""
    return {name: extent for name, extent in extents.items() if extent is not None}


def parts(extent: int, tile: int) -> int:
    """How many tiles cover `extent`."""
    return -(-extent // tile)


def looped_dims(block: ir.BlockGraph) -> tuple[Dim, ...]:
    """The looped pieces among the block's loads, each once."""
    found = (d for n in block.loads for axis in n.axes for d in axis if d.loop)
    return tuple(dict.fromkeys(found))


def loops_inside_grid(block: ir.BlockGraph) -> bool:
    """Whether the loop runs over the block's part of its dim, not over all of it."""
    return any(d.grid for d in looped_dims(block))


def grid_parts(block: ir.BlockGraph, extents: Mapping[str, int]) -> tuple[int, ...]:
    """Number of blocks along each axis of the grid: those of its longest dim."""
    return tuple(
        max(parts(extents[s.dim], s.tile) for s in axis) for axis in block.axes
    )


def iterations(block: ir.BlockGraph, extents: Mapping[str, int]) -> int:
    """Largest number of iterations of any block; 1 without a loop."""
    if block.loop is None:
        return 1
    span = extents[block.loop.dim]
    split = block.grid_split(block.loop.dim)
    if split is not None and loops_inside_grid(block):
        span = min(span, split.tile)
    return parts(span, block.loop.tile)


def most_early(block: ir.BlockGraph, extents: Mapping[str, int | None]) -> int:
    """How many iterations a kernel can load early: those of a plain, short loop."""
    schedule, loop = block.schedule, block.loop
    if loop is None or block.bounds or block.settled:
        return 0
    if schedule.num_stages > 1 or schedule.descriptors:
        return 0
    extent = extents.get(loop.dim)
    if extent is None:
        return 0
    count = iterations(block, {loop.dim: extent})
    return count if count <= ir.WRITTEN_OUT else 0


def piece_extent(dim: Dim, block: ir.BlockGraph, extents: Mapping[str, int]) -> int:
    """Elements of a piece, padding included."""
    if dim.loop and block.loop is not None:
        return block.loop.tile
    split = block.grid_split(dim.name)
    if dim.grid and split is not None:
        return split.tile
    if dim.grid and partial_base(dim.name, block) is not None:
        return 1
    return extents[dim.name]


def partial_base(name: str, block: ir.BlockGraph) -> str | None:
    """For `k#` in a store of a block whose grid splits `k`: `k`; else None."""
    base = name.removesuffix("#")
    if name != ir.partial_dim(base) or block.grid_split(name) is not None:
        return None
    return base if block.grid_split(base) is not None else None


def derived_extents(
    graph: ir.KernelGraph, extents: Extents | None = None
) -> dict[str, int | None]:
    """All extents, those that follow from others computed anew.

    These are the dims that views and concatenations make, and the dims `k#` over the
    parts of a split dim.  What follows wins over what `extents` says, those of the
    graph unless given; where nothing follows, because an extent is unknown, the entry
    stays as it is.
    """
    look()
    known = dict(graph.extent_of if extents is None else extents)
    for node in graph.nodes:
        if isinstance(node, ir.Apply):
            _learn(known, _made_by(node, known))
            continue
        split = {s.dim for s in node.grid}
        if node.loop is not None:
            split.add(node.loop.dim)
        for inner in node.nodes:
            if isinstance(inner, ir.Apply):
                _learn(known, _made_by(inner, known, split))
        _learn(known, partial_extents(node, known))
    return known


def extents_made(
    graph: ir.KernelGraph, extents: Extents
) -> Iterator[tuple[ir.Apply | ir.BlockGraph, str, int]]:
    """What each node makes of each of its dims, where `extents` tell.

    These are the nodes behind `derived_extents`; in a well-formed graph all that make
    one dim agree.
    """
    for node in graph.nodes:
        for view, split in _views(node):
            made = _made_by(view, extents, split)
            yield from ((view, n, e) for n, e in made.items() if e is not None)
        if isinstance(node, ir.BlockGraph):
            parts_of = partial_extents(node, extents)
            yield from ((node, n, e) for n, e in parts_of.items() if e is not None)


def with_symbolic(graph: ir.KernelGraph, dims: Collection[str]) -> ir.KernelGraph:
    """The graph with symbolic extents of some dims of its inputs, and what follows."""
    given = {name for i in graph.inputs for name in i.type.names}
    known = {n: None if n in dims else e for n, e in graph.extents if n in given}
    return graph.with_extents(derived_extents(graph, known))


def with_derived_extents(graph: ir.KernelGraph) -> ir.KernelGraph:
    """The graph with the extents that follow from its nodes."""
    return graph.with_extents(derived_extents(graph))


def view_nodes(graph: ir.KernelGraph) -> Iterator[tuple[ir.Apply, frozenset[str]]]:
    """Views and joins at both levels, each with the dims that its block splits."""
    for node in graph.nodes:
        yield from _views(node)


def _views(node: ir.Apply | ir.BlockGraph) -> Iterator[tuple[ir.Apply, frozenset[str]]]:
    if isinstance(node, ir.Apply):
        inner, split = (node,), frozenset[str]()
    else:
        inner = node.applies
        split = frozenset(s.dim for s in node.splits)
    for item in inner:
        if item.op.kind in (Kind.VIEW, Kind.CONCAT):
            yield item, split


def sums(node: ir.Apply | ir.BlockGraph) -> Iterator[tuple[tuple[str, ...], str]]:
    """Dims that views and joins make, each behind those that it is as long as."""
    for view, split in _views(node):
        attrs = dict(view.attrs)
        old, new = attrs.get("dims"), attrs.get("to")
        if isinstance(old, tuple) and isinstance(new, tuple):
            yield from (((dim,), name) for dim, name in zip(old, new, strict=True))
        elif isinstance(old, tuple) and isinstance(new, str) and not split & {*old}:
            yield old, new


def products(graph: ir.KernelGraph) -> Iterator[ir.Factored]:
    """The dims that views make of several, or take apart."""
    for node, _ in view_nodes(graph):
        if node.factored is not None:
            yield node.factored


def renamings(graph: ir.KernelGraph) -> Iterator[tuple[str, str]]:
    """Pairs of dims that a view renames: they have the same extent."""
    for node in graph.nodes:
        for dims, name in sums(node):
            if len(dims) == 1:
                yield dims[0], name


def _learn(known: dict[str, int | None], made: Extents) -> None:
    for name, extent in made.items():
        if extent is not None or name not in known:
            known[name] = extent


def partial_extents(block: ir.BlockGraph, known: Extents) -> dict[str, int | None]:
    """Extents of the dims `k#` that a block makes: how many parts there are."""
    made: dict[str, int | None] = {}
    for name in {d.name for s in block.stores for axis in s.axes for d in axis}:
        base = partial_base(name, block)
        split = block.grid_split(base) if base is not None else None
        if split is not None:
            whole = known.get(split.dim)
            made[name] = None if whole is None else parts(whole, split.tile)
    return made


def _made_by(
    node: ir.Apply, known: Extents, split: AbstractSet[str] = frozenset()
) -> dict[str, int | None]:
    """Extents of the dims that a view or a concatenation makes.

    In a block, a concatenation of split dims (`split`) has no extent of its own.
    """
    if not node.attrs:
        return {}
    attrs = dict(node.attrs)
    if node.factored is not None:
        sizes = [known.get(d) for d in node.factored.factors]
        told = [e for e in sizes if e is not None]
        return {node.factored.whole: prod(told) if len(told) == len(sizes) else None}
    if "to" not in attrs:
        return {}
    to, old = attrs["to"], attrs.get("dims")
    if isinstance(to, str) and isinstance(old, tuple):
        if not split.isdisjoint(old):
            return {}
        joined = [known.get(d) for d in old]
        sizes = [e for e in joined if e is not None]
        return {to: sum(sizes) if len(sizes) == len(joined) else None}
    if isinstance(to, tuple) and isinstance(old, tuple):
        return {n: known.get(d) for d, n in zip(old, to, strict=False)}
    if node.sliced is not None:
        return {node.sliced.to: node.sliced.length(known.get(node.sliced.dim))}
    return {str(to): 1} if set(attrs) == {"to"} else {}


def bind_extents(
    graph: ir.KernelGraph, shapes: Sequence[tuple[int, ...]], *, slices: bool = False
) -> dict[str, int]:
    """The extent of every dim, from the graph and the shapes of its inputs.

    Args:
        graph: The graph.
        shapes: Of its inputs.
        slices: Whether what is sliced has to be long enough for it.

    Raises:
        ShapeError: The shapes contradict the input types, the extents or each other.
    """
    if len(shapes) != len(graph.inputs):
        names = ", ".join(i.name for i in graph.inputs)
        raise ShapeError(
            f"{graph.name} takes {len(graph.inputs)} tensors ({names}), "
            f"found {len(shapes)}"
        )
    known: dict[str, int | None] = dict(graph.extents)
    for item, shape in zip(graph.inputs, shapes, strict=True):
        if len(shape) != len(item.type.axes):
            raise ShapeError(
                f"input {item.name} of {graph.name} has {len(item.type.axes)} axes "
                f"({item.type}), found an array of shape {shape}"
            )
    # A merged axis may need an extent that another input tells, so go round twice.
    for last in (False, True):
        for item, shape in zip(graph.inputs, shapes, strict=True):
            for axis, extent in zip(item.type.axes, shape, strict=True):
                _bind_axis(known, axis, extent, f"input {item.name}", last)
        known = derived_extents(graph, known)
    for item, shape in zip(graph.inputs, shapes, strict=True):
        for axis, extent in zip(item.type.axes, shape, strict=True):
            _bind_axis(known, axis, extent, f"input {item.name}", True)
    bound = _all_known(graph, known)
    if slices:
        _require_slices(graph, bound)
    _require_one_extent(graph, bound)
    return bound


def open_slices(graph: ir.KernelGraph) -> list[ir.Apply]:
    """The slices of symbolic dims."""
    known = graph.extent_of
    slices = [(node, node.sliced) for node, _ in view_nodes(graph)]
    return [n for n, part in slices if part is not None and known[part.dim] is None]


def slice_beyond(
    graph: ir.KernelGraph, extents: Mapping[str, int]
) -> tuple[ir.Apply, int] | None:
    """A slice that does not lie in its dim at these extents, and what that has."""
    for node, _ in view_nodes(graph):
        if node.sliced is not None:
            extent = extents[node.sliced.dim]
            start, stop = node.sliced.bounds(extent)
            if not 0 <= start < stop <= extent:
                return node, extent
    return None


def _require_slices(graph: ir.KernelGraph, bound: Mapping[str, int]) -> None:
    found = slice_beyond(graph, bound)
    if found is not None:
        node, extent = found
        raise ShapeError(
            f"{graph.name}: {node.result} takes a part of {dict(node.attrs)['dim']} "
            f"that it has not where the extent is {extent}; pass longer tensors",
            node.location,
        )


def _require_one_extent(graph: ir.KernelGraph, bound: Mapping[str, int]) -> None:
    for _, name, extent in extents_made(graph, bound):
        if bound[name] != extent:
            raise ShapeError(
                f"{graph.name}: the dim {name} would have the extents {bound[name]} "
                f"and {extent}; pass arrays of other shapes, or give one of the values "
                "that have it a dim of its own"
            )


def _bind_axis(
    known: dict[str, int | None], axis: Axis, extent: int, what: str, last: bool
) -> None:
    unknown = [d.name for d in axis if known.get(d.name) is None]
    product = 1
    for dim in axis:
        product *= known.get(dim.name) or 1
    if len(unknown) == 1 and product and extent % product == 0:
        known[unknown[0]] = extent // product
        return
    if len(unknown) > 1 and not last:
        return
    if len(unknown) > 1:
        raise ShapeError(
            f"{what}: axis {axis_text(axis)} of extent {extent} does not determine "
            f"{' and '.join(unknown)}; state all but one of them"
        )
    if unknown or product != extent:
        have = f"a multiple of {product}" if unknown else str(product)
        raise ShapeError(
            f"{what}: axis {axis_text(axis)} has extent {extent}, expected {have}"
        )


def _all_known(graph: ir.KernelGraph, known: Extents) -> dict[str, int]:
    missing = sorted(n for n, e in known.items() if e is None)
    if missing:
        raise ShapeError(
            f"{graph.name}: no input has the dims {', '.join(missing)}; "
            "state their extents"
        )
    return known_extents(known)


# -- Extents in texts ------------------------------------------------------------------


def stated_extents(graph: ir.KernelGraph) -> dict[str, int | None]:
    """The extents from which `complete_extents` restores all of `graph.extents`.

    Left out are those that nodes make: of slices, renamings and parts of a split, but
    for those of index values, which stand before them, and of constants that do.
    """
    own = {name for i in graph.given for name in i.type.names}
    own |= _in_constants_before(graph)
    made = derived_extents(graph, {}).keys() - own
    stated = {n: e for n, e in graph.extents if n not in made}
    if complete_extents(graph, stated).extents == graph.extents:
        return stated
    return dict(graph.extents)


def _in_constants_before(graph: ir.KernelGraph) -> set[str]:
    """The dims whose extents are in constants, before a node makes them."""
    made: set[str] = set()
    found: set[str] = set()
    for node in graph.nodes:
        for item in (node,) if isinstance(node, ir.Apply) else node.applies:
            constants = (o for o in item.operands if isinstance(o, Scalar))
            found |= {name for o in constants for name, _ in o.extents} - made
            made |= _made_by(item, {}).keys()
    return found


def complete_extents(
    graph: ir.KernelGraph, stated: Mapping[str, int | None]
) -> ir.KernelGraph:
    """The graph with the stated extents and those that follow from them."""
    derived = derived_extents(graph, stated)
    return replace(graph, extents=tuple(sorted({**derived, **stated}.items())))
