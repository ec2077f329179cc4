"""Convolutions with their channels last in memory.

PyTorch's kernels for matrix units want the channels of a tensor side by side.  Given
row-major ones they copy their operands and their result, which takes longer than the
convolution itself; where kernels that are there anyway store and read them so, nothing
is copied.  Before → after:

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

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

from mirage_dsl.core.types import AxisNames, Dim, MemorySpace, TensorType, flat_type
from mirage_dsl.ir.analysis.layouts import lies_with_channels_last, with_channels_last
from mirage_dsl.ir.canonical import free_name
from mirage_dsl.ir.graph import (
    Apply,
    Attrs,
    BlockGraph,
    KernelGraph,
    KernelNode,
    Load,
    Split,
    Store,
)
from mirage_dsl.ir.infer import kernel_types, operand_axes
from mirage_dsl.ir.maps import with_derived_extents
from mirage_dsl.ir.walk import map_nodes, renamed, results_of, with_returned
from mirage_dsl.ops.table import CHANNELS_LAST, FLATTEN, UNFLATTEN

WHOLE = 64
"""A block that copies has so many channels, or all of fewer."""

ELEMENTS = 4096
"""What a block copies at most."""


def with_convolutions_channels_last(graph: KernelGraph) -> KernelGraph | None:
    """The graph whose convolutions have their channels last; None if it has none.

    Those of groups of channels stay: libraries have other kernels for them.
    """
    if not any(map(_can_be, graph.applies)):
        return None
    chosen = map_nodes(graph, _chosen)
    return with_derived_extents(_Copying(chosen).graph())


def _chosen(node: KernelNode) -> KernelNode:
    if isinstance(node, Apply) and _can_be(node):
        return replace(node, op=CHANNELS_LAST[node.op])
    return node


def _can_be(node: Apply) -> bool:
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

    chosen: KernelGraph
    copies: dict[str, str] = field(default_factory=dict[str, str])
    results: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.types = with_channels_last(self.chosen, kernel_types(self.chosen))
        self.taken = {i.name for i in self.chosen.given} | set(self.chosen.extent_of)
        self.taken |= {v for n in self.chosen.nodes for v in results_of(n)}
        self.taken |= {n.result for b in self.chosen.blocks for n in b.nodes}

    def graph(self) -> KernelGraph:
        """The graph with these blocks."""
        made = map_nodes(self.chosen, lambda node: tuple(self._with_copies(node)))
        return with_returned(made, self.results)

    def _with_copies(self, node: KernelNode) -> Iterator[KernelNode]:
        if not isinstance(node, Apply) or node.op.channels_last_of is None:
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
    ) -> Generator[KernelNode, None, str]:
        """The nodes that copy a value; returns the name of what they make."""
        first, channels, *inner = axes.axes
        places = tuple(name for axis in inner for name in axis)
        kind, source, along = self.types[value], value, places[0]
        apart = AxisNames(tuple((name,) for name in places))
        if len(places) > 1:
            along, source = self._fresh("_".join(places)), self._fresh(f"{value}_flat")
            attrs: Attrs = (("of", apart), ("to", along))
            yield Apply(source, FLATTEN, (value,), attrs)
            dims = tuple(map(Dim, (*first, *channels, along)))
            kind = flat_type(kind.dtype, dims, MemorySpace.DEVICE)
        copy = self._fresh(f"{value}_{suffix}")
        load = Load(self._fresh(f"{copy}_t"), source, kind.axes)
        yield self._block(load, copy, kind, channels)
        if len(places) == 1:
            return copy
        whole = self._fresh(f"{copy}_whole")
        attrs = (("dim", along), ("gives", apart))
        yield Apply(whole, UNFLATTEN, (copy,), attrs)
        return whole

    def _block(
        self, load: Load, copy: str, kind: TensorType, channels: tuple[str, ...]
    ) -> BlockGraph:
        """A block that stores what it loads."""
        *outer, along = kind.names
        width = max((self.chosen.extent_of[n] or WHOLE for n in channels), default=1)
        grid = [Split(n, 1) for n in outer if n not in channels]
        grid += [Split(n, WHOLE) for n in channels if width > WHOLE]
        grid.append(Split(along, ELEMENTS // WHOLE))
        cut = {s.dim for s in grid}
        axes = tuple(
            tuple(replace(d, grid=d.name in cut) for d in axis) for axis in kind.axes
        )
        store = Store(copy, load.result, axes, kind.dtype)
        return BlockGraph(tuple(grid), None, (replace(load, axes=axes), store))

    def _fresh(self, wanted: str) -> str:
        made = free_name(wanted, self.taken)
        self.taken.add(made)
        return made


__all__ = ["with_convolutions_channels_last"]
