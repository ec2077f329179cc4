"""Programs whose tensors are seen as memory has them: dims made one, channels last.

**Dims that always stand side by side** are made one, for a search over fewer of them.
A kernel that computes element by element on rows of 254 elements has lanes that are
idle; on all of the rows it has next to none, and fewer places to cut.  Before → after,
in what is searched:

    y = conv2d x, w gives(n, c, h, w)        y   = conv2d x, w gives(n, c, h, w)
    z = add y, b                             y_f = flatten y of(h, w) to(h_w)
    return z: f32[n, c, h, w]                z   = add y_f, b
                                             return z: f32[n, c, h_w]

What is found for it is made one of the program again by taking the results apart:

    z_whole = unflatten z dim(h_w) gives(h, w)

Both views cost nothing where the dims lie side by side in memory.

**Convolutions with their channels last.**  PyTorch's kernels for matrix units want the
channels of a tensor side by side.  Given row-major ones they copy their operands and
their result, which takes longer than the convolution itself; where kernels that are
there anyway store and read them so, nothing is copied.  Before → after:

    y = conv2d x, w of(n, c, h, v) ..     x_f = flatten x of(h, v) to(h_v)
                                          x_l = block grid(n / 1, h_v / 64) {
                                            t = load x_f[n/grid, c, h_v/grid]
                                            store x_l: f32[n/grid, c, h_v/grid] = t
                                          }
                                          x_w = unflatten x_l dim(h_v) gives(h, v)
                                          y = conv2d_channels_last x_w, w of(..) ..

How tensors lie follows from what reads them (`ir.analysis.layouts`): the block stores
`x_l` with channels last, and a block that reads `y` finds them so; where `y` itself is
returned, a block makes it row-major.  What a block has made is not copied, nor what the
caller gives with its channels last.  Weights, which are small, are copied by PyTorch
where they lie otherwise.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from mirage_dsl.core.types import (
    LARGEST_INDEX,
    AxisNames,
    Dim,
    MemorySpace,
    Scalar,
    TensorType,
    f64,
    flat_type,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.layouts import lies_with_channels_last, with_channels_last
from mirage_dsl.ir.canonical import new_name
from mirage_dsl.ir.infer import kernel_types, operand_axes
from mirage_dsl.ir.maps import Extents, derived_extents, with_derived_extents
from mirage_dsl.ir.walk import map_nodes, renamed, values_of, with_returned
from mirage_dsl.ir.write import flatten, unflatten
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import CHANNELS_LAST, RENAME

# -- Dims that are side by side --------------------------------------------------------

FEW_DIMS = 4
"""Where no value has more dims, those of products are left alone: tiles of products
are cut along each of them."""

Groups = Mapping[str, tuple[str, ...]]
"""Dims that stand side by side, by the name of the dim that they become."""


@dataclass(frozen=True)
class FlatForm:
    """A program in which dims that stand side by side are one.

    Attributes:
        program: It has the inputs of the whole, and returns what has fewer dims.
        whole: The program that it was made of.
        groups: The dims that became one.
    """

    program: ir.KernelGraph
    whole: ir.KernelGraph
    groups: Groups

    def restored(self, graph: ir.KernelGraph) -> ir.KernelGraph:
        """A μGraph of the program as one of the whole."""
        taken = values_of(graph)
        types = kernel_types(graph)
        nodes: list[ir.Apply] = []
        returns: list[ir.Return] = []
        for own, wanted in zip(graph.returns, self.whole.returns, strict=True):
            name = own.value
            for dim in (d for d in types[name].names if d in self.groups):
                made = new_name(f"{own.value}_whole", taken)
                nodes.append(unflatten(made, name, dim, self.groups[dim]))
                name = made
            returns.append(replace(wanted, value=name))
        restored = replace(graph, nodes=(*graph.nodes, *nodes), returns=tuple(returns))
        return with_derived_extents(restored)


def flattened(program: ir.KernelGraph) -> FlatForm | None:
    """The program with fewer dims; None where none stand side by side all along."""
    groups = side_by_side(program)
    if not groups:
        return None
    return FlatForm(_Flattening(program, groups).graph(), program, groups)


# -- Which dims ------------------------------------------------------------------------


def side_by_side(program: ir.KernelGraph) -> Groups:
    """Dims that whatever is computed has all of or none, side by side in memory."""
    found = _Dims(program)
    chains: list[list[str]] = []
    for first, second in found.pairs():
        if chains and chains[-1][-1] == first:
            chains[-1].append(second)
        else:
            chains.append([first, second])
    groups: dict[str, tuple[str, ...]] = {}
    taken = set(program.extent_of)
    for chain in chains:
        for group in _short_enough(chain, found.extents):
            groups[new_name("_".join(group), taken)] = group
    return groups


def _short_enough(chain: Sequence[str], extents: Extents) -> list[tuple[str, ...]]:
    """A chain in pieces that can be indexed, those at its end as long as can be."""
    pieces: list[tuple[str, ...]] = []
    left = list(chain)
    while left:
        piece = [left.pop()]
        length = extents[piece[0]] or 0
        while left and 0 < length * (extents[left[-1]] or 0) <= LARGEST_INDEX:
            length *= extents[left[-1]] or 0
            piece.insert(0, left.pop())
        pieces.insert(0, tuple(piece))
    return [piece for piece in pieces if len(piece) > 1]


class _Dims:
    """Where the dims of a program occur, but in what PyTorch's functions alone see."""

    def __init__(self, program: ir.KernelGraph) -> None:
        self.program = program
        self.types = kernel_types(program)
        self.extents = derived_extents(program)

    @cached_property
    def own(self) -> tuple[ir.Apply, ...]:
        """The operators but those."""
        return tuple(n for n in self.program.applies if n.op.kind is not Kind.LIBRARY)

    @cached_property
    def seen(self) -> dict[str, None]:
        """The values that these read or make."""
        return dict.fromkeys(v for n in self.own for v in (*n.values, n.result))

    @cached_property
    def stored(self) -> tuple[TensorType, ...]:
        """Types of those that lie in memory whatever is done."""
        made = {n.result for n in self.own}
        kinds = [self.types[v] for v in self.seen if v not in made]
        return (*kinds, *(r.type for r in self.program.returns if r.value in made))

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Dims that may become one, each with the one that follows it, in order.

        Those that are renamed may only with those that they are renamed to.
        """
        fixed, places = self._fixed(), self._places()
        beside = self._beside(fixed)

        def may(first: str, second: str) -> bool:
            alike = places[first] == places[second]
            return alike and not {first, second} & fixed

        found = {a: b for a, b in beside.items() if b is not None and may(a, b)}
        renames = self._renames()
        for names in renames:
            # What nothing in memory has is ordered by what it is called elsewhere.
            made = {names[a]: names.get(b) for a, b in found.items() if a in names}
            found |= {
                a: b
                for a, b in made.items()
                if b is not None and not {a, b} & beside.keys() and may(a, b)
            }
        before = len(found) + 1
        while len(found) < before:
            before = len(found)
            found = {
                a: b
                for a, b in found.items()
                if all(
                    found.get(names.get(a, a)) == names.get(b, b)
                    and (a in names) == (b in names)
                    for names in renames
                )
            }
        yield from found.items()

    def _beside(self, fixed: set[str]) -> dict[str, str | None]:
        """By a dim of what lies in memory, the only one that ever follows it.

        None where there is none such.  Those that lie in another order are fixed.
        """
        behind: dict[str, set[str | None]] = {}
        before: dict[str, set[str | None]] = {}
        for kind in self.stored:
            names: tuple[str | None, ...] = (None, *kind.names, None)
            if kind.order != tuple(range(len(kind.axes))):
                fixed.update(kind.names)
            for first, second in pairwise(names):
                if first is not None:
                    behind.setdefault(first, set()).add(second)
                if second is not None:
                    before.setdefault(second, set()).add(first)
        found: dict[str, str | None] = {}
        for first, (second, *others) in behind.items():
            single = second is not None and not others and len(before[second]) == 1
            found[first] = second if single else None
        return found

    def _renames(self) -> list[dict[str, str]]:
        """Names of dims by others, of each operator that renames, and the reverse."""
        found: list[dict[str, str]] = []
        for node in self.own:
            if node.op is RENAME:
                old, new = node.dims("dims"), node.dims("to")
                pairs = list(zip(old, new, strict=True))
                found += [dict(pairs), {b: a for a, b in pairs}]
        return found

    def _places(self) -> dict[str, frozenset[tuple[str, bool]]]:
        """Which values have each dim, and which operators sum over it."""
        found: dict[str, set[tuple[str, bool]]] = {n: set() for n in self.extents}
        for value in self.seen:
            for name in self.types[value].names:
                found[name].add((value, False))
        for node in self.own:
            for name in node.over:
                found[name].add((node.result, True))
        return {name: frozenset(places) for name, places in found.items()}

    def _fixed(self) -> set[str]:
        """Dims that some operator, or an index, takes for what they are."""
        found = {n for i in self.program.indices for n in i.type.names}
        found.update(n for n, extent in self.extents.items() if extent is None)
        widths = (len(self.types[v].names) for v in self.seen)
        few = max(widths, default=0) <= FEW_DIMS
        for node in self.own:
            found.update(node.along)
            if node.op.kind is Kind.CONTRACTION and few:
                found.update(n for v in node.values for n in self.types[v].names)
            views = node.op.kind is Kind.VIEW and node.is_view
            if node.op is not RENAME and (node.stands_alone or views):
                found.update(n for _, v in node.attrs for n in ir.named_in(v))
        return found


# -- The program with fewer dims -------------------------------------------------------


@dataclass
class _Flattening:
    program: ir.KernelGraph
    groups: Groups
    nodes: list[ir.Apply] = field(default_factory=list[ir.Apply])
    flat: dict[str, str] = field(default_factory=dict[str, str])
    whole: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.types = kernel_types(self.program)
        self.taken = values_of(self.program)
        self.computed = {
            n.result for n in self.program.applies if n.op.kind is not Kind.LIBRARY
        }

    def graph(self) -> ir.KernelGraph:
        """The program with the dims of each group as one."""
        for node in self.program.applies:
            if node.op.kind is Kind.LIBRARY:
                parts = {v: self._whole(v) for v in node.values}
                operands = tuple(
                    parts[o] if isinstance(o, str) else o for o in node.operands
                )
                self.nodes.append(replace(node, operands=operands))
            else:
                operands = tuple(self._operand(o) for o in node.operands)
                attrs = tuple(map(self._attribute, node.attrs))
                self.nodes.append(replace(node, operands=operands, attrs=attrs))
        returns = tuple(map(self._returned, self.program.returns))
        found = replace(self.program, nodes=tuple(self.nodes), returns=returns)
        # Dims that were renamed may be gone, but some only constants know.
        used = {d for kind in kernel_types(found).values() for d in kind.names}
        operands = (o for node in found.applies for o in node.operands)
        numbers = (o for o in operands if isinstance(o, Scalar))
        used.update(name for number in numbers for name, _ in number.extents)
        kept = tuple((n, e) for n, e in found.extents if n in used)
        return with_derived_extents(replace(found, extents=kept))

    def _own(self, names: Sequence[str]) -> list[str]:
        """The groups whose dims are among some."""
        return [g for g, dims in self.groups.items() if dims[0] in names]

    def _names(self, names: Sequence[str]) -> tuple[str, ...]:
        """Dims with those of a group as one."""
        first = {dims[0]: g for g, dims in self.groups.items()}
        gone = {d for dims in self.groups.values() for d in dims[1:]}
        return tuple(first.get(n, n) for n in names if n not in gone)

    def _attribute(self, attr: tuple[str, ir.AttrValue]) -> tuple[str, ir.AttrValue]:
        name, value = attr
        if name in ("over", "dims", "to") and isinstance(value, tuple):
            return name, self._names(value)
        return attr

    def _operand(self, operand: ir.Operand) -> ir.Operand:
        """An operand as what is computed with fewer dims reads it."""
        if isinstance(operand, Scalar):
            return self._constant(operand)
        if operand in self.computed or not self._own(self.types[operand].names):
            return operand
        if operand not in self.flat:
            name = operand
            for group in self._own(self.types[operand].names):
                made = new_name(f"{operand}_flat", self.taken)
                self.nodes.append(flatten(made, name, self.groups[group], group))
                name = made
            self.flat[operand] = name
        return self.flat[operand]

    def _whole(self, value: str) -> str:
        """A value as PyTorch's functions read it."""
        groups = self._own(self.types[value].names)
        if value not in self.computed or not groups:
            return value
        if value not in self.whole:
            name = value
            for group in groups:
                made = new_name(f"{value}_whole", self.taken)
                self.nodes.append(unflatten(made, name, group, self.groups[group]))
                name = made
            self.whole[value] = name
        return self.whole[value]

    def _constant(self, number: Scalar) -> Scalar:
        """A constant by the extents of the dims that are one now."""
        powers = dict(number.extents)
        for group, dims in self.groups.items():
            own = {powers.get(d, 0) for d in dims}
            if len(own) == 1 and own != {0}:
                powers[group] = own.pop()
                for dim in dims:
                    del powers[dim]
        return Scalar(number.value, tuple(sorted(powers.items())))

    def _returned(self, item: ir.Return) -> ir.Return:
        if item.value not in self.computed or not self._own(item.type.names):
            return item
        dims = tuple(map(Dim, self._names(item.type.names)))
        kind = flat_type(item.type.dtype, dims, MemorySpace.DEVICE)
        return replace(item, type=kind)


# -- Channels last ---------------------------------------------------------------------

WHOLE = 64
"""A block that copies has so many channels, or all of fewer."""

ELEMENTS = 4096
"""What a block copies at most."""


def with_convolutions_channels_last(graph: ir.KernelGraph) -> ir.KernelGraph | None:
    """The graph whose convolutions have their channels last; None if it has none.

    Those of groups of channels stay: libraries have other kernels for them.  So do
    those in f64, which blocks cannot copy.
    """
    types = kernel_types(graph)

    def chosen_for(node: ir.KernelNode) -> ir.KernelNode:
        if (
            isinstance(node, ir.Apply)
            and _can_be(node)
            and types[node.result].dtype != f64
        ):
            return replace(node, op=CHANNELS_LAST[node.op])
        return node

    chosen = map_nodes(graph, chosen_for)
    if chosen == graph:
        return None
    return with_derived_extents(_Copying(chosen).graph())


def _can_be(node: ir.Apply) -> bool:
    """Whether a row computes it with channels last, and each axis is one dim."""
    if node.op not in CHANNELS_LAST or node.numbers["groups"] != (1,):
        return False
    axes = (*operand_axes(node), AxisNames(node.axes("gives")))
    return all(len(axis) <= 1 for names in axes for axis in names.axes)


@dataclass
class _Copying:
    """Puts a block before each convolution that reads what lies otherwise.

    And behind each whose result is returned, which is row-major.
    """

    chosen: ir.KernelGraph
    copies: dict[str, str] = field(default_factory=dict[str, str])
    results: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.types = with_channels_last(self.chosen, kernel_types(self.chosen))
        self.taken = values_of(self.chosen) | set(self.chosen.extent_of)
        self.taken |= {n.result for b in self.chosen.blocks for n in b.nodes}

    def graph(self) -> ir.KernelGraph:
        """The graph with these blocks."""
        made = map_nodes(self.chosen, lambda node: tuple(self._with_copies(node)))
        return with_returned(made, self.results)

    def _with_copies(self, node: ir.KernelNode) -> Iterator[ir.KernelNode]:
        if not isinstance(node, ir.Apply) or node.op.channels_last_of is None:
            yield node
            return
        value, axes = node.values[0], operand_axes(node)[0]
        if self._is_to_copy(value, axes):
            if value not in self.copies:
                self.copies[value] = yield from self._copied(value, axes, "last")
            operands = renamed(node.operands, {value: self.copies[value]})
            node = replace(node, operands=operands)
        yield node
        made = AxisNames(node.axes("gives"))
        returned = any(r.value == node.result for r in self.chosen.returns)
        if returned and self._is_to_copy(node.result, made):
            copy = yield from self._copied(node.result, made, "rows")
            self.results[node.result] = copy

    def _is_to_copy(self, value: str, axes: AxisNames) -> bool:
        kind = self.types[value]
        plain = all(len(axis) <= 1 for axis in kind.axes) and kind.names == axes.names
        inner = any(axes.axes[2:])
        return plain and inner and not lies_with_channels_last(kind, axes)

    def _copied(
        self, value: str, axes: AxisNames, suffix: str
    ) -> Generator[ir.KernelNode, None, str]:
        """The nodes that copy a value; returns the name of what they make."""
        first, channels, *inner = axes.axes
        places = tuple(name for axis in inner for name in axis)
        kind, source, along = self.types[value], value, places[0]
        if len(places) > 1:
            along = new_name("_".join(places), self.taken)
            source = new_name(f"{value}_flat", self.taken)
            yield flatten(source, value, places, along)
            dims = tuple(map(Dim, (*first, *channels, along)))
            kind = flat_type(kind.dtype, dims, MemorySpace.DEVICE)
        copy = new_name(f"{value}_{suffix}", self.taken)
        load = ir.Load(new_name(f"{copy}_t", self.taken), source, kind.axes)
        yield self._block(load, copy, kind, channels)
        if len(places) == 1:
            return copy
        whole = new_name(f"{copy}_whole", self.taken)
        yield unflatten(whole, copy, along, places)
        return whole

    def _block(
        self, load: ir.Load, copy: str, kind: TensorType, channels: tuple[str, ...]
    ) -> ir.BlockGraph:
        """A block that stores what it loads."""
        *outer, along = kind.names
        width = max((self.chosen.extent_of[n] or WHOLE for n in channels), default=1)
        grid = [ir.Split(n, 1) for n in outer if n not in channels]
        grid += [ir.Split(n, WHOLE) for n in channels if width > WHOLE]
        grid.append(ir.Split(along, ELEMENTS // WHOLE))
        cut = {s.dim for s in grid}
        axes = ir.gridded(kind.axes, cut)
        store = ir.Store(copy, load.result, axes, kind.dtype)
        return ir.BlockGraph(tuple(grid), None, (replace(load, axes=axes), store))
