"""Loads of a block: through pointers, or through tensor descriptors (TMA)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from mirage_dsl.backends.triton.layout import Layout, Order
from mirage_dsl.backends.triton.memory import Address, Memory
from mirage_dsl.backends.triton.params import Signature
from mirage_dsl.backends.triton.pieces import Piece
from mirage_dsl.backends.triton.places import Places
from mirage_dsl.backends.triton.tiles import Tile, TileCode
from mirage_dsl.backends.triton.wiring import Wiring
from mirage_dsl.ir.graph import Load
from mirage_dsl.types import Dim, TensorType

LARGEST_BOX = 256
"""Elements of one axis that the copy engine moves at once."""
ALIGNMENT = 16
"""Bytes to which its addresses and strides are aligned."""
SHARED_ALIGNMENT = 128
"""The same in shared memory, where the tiles of all stages lie one behind the other."""
MOST_AXES = 5


@dataclass(frozen=True)
class Copy:
    """One of the copies of a tile that a load makes.

    Attributes:
        key: The load's result, with `/again` for the copy that registers read.
        source: The kernel-level tensor, or its alias.
        order: Axes of the tile.
    """

    key: str
    source: str
    order: Order


class Loader:
    """Emits the loads of one block."""

    def __init__(
        self,
        tiles: TileCode,
        places: Places,
        memory: Memory,
        signature: Signature,
        layout: Layout,
        wiring: Wiring,
        *,
        descriptors: bool,
    ) -> None:
        self._tiles = tiles
        self._places = places
        self._memory = memory
        self._signature = signature
        self._layout = layout
        self._wiring = wiring
        self._descriptors = descriptors
        self._addresses: dict[str, Address] = {}
        self._boxes: dict[str, tuple[str, tuple[Dim, ...]]] = {}

    def hoist(self, loads: tuple[Load, ...]) -> None:
        """Before the loop: bind what does not change in the addresses of its loads."""
        for load in loads:
            if self._wiring.stages[load.result] != "body":
                continue
            for copy in self._copies(load):
                box = self._box(load) if self._descriptors else None
                if box is not None:
                    widths = tuple(self._tiles.pieces[d].width for d in box)
                    name = self._signature.descriptor(copy.source, box, widths)
                    self._boxes[copy.key] = (name, box)
                    continue
                address = self._address(load, copy)
                name = self._tiles.names.fresh(f"{load.result}_first")
                self._tiles.writer.assign(name, address.first)
                self._addresses[copy.key] = replace(address, first=name)

    def load(self, node: Load) -> tuple[Tile, Tile]:
        """The tile that products read, and the one that other operators read."""
        copies = self._copies(node)
        tiles = [self._load(node, copies[0])]
        if len(copies) > 1:
            self._tiles.writer.line("# once more for what is no matrix product")
            tiles.append(self._load(node, copies[1]))
        return tiles[0], tiles[-1]

    def _copies(self, node: Load) -> list[Copy]:
        order = self._layout.orders[node.result]
        copies = [Copy(node.result, node.source, order)]
        if self._wiring.is_loaded_twice(node):
            alias = self._signature.alias_of(node.source)
            order = self._layout.register_orders[node.result]
            copies.append(Copy(f"{node.result}/again", alias, order))
        return copies

    def _load(self, node: Load, copy: Copy) -> Tile:
        name = self._tiles.names.fresh(copy.key.replace("/", "_"))
        dtype = self._signature.dtype(node.source)
        if copy.key in self._boxes:
            return self._load_box(node, copy, name)
        address = self._addresses.get(copy.key) or self._address(node, copy)
        return self._memory.load(address, copy.order, name, dtype)

    def _address(self, node: Load, copy: Copy) -> Address:
        pointer, strides = self._signature.access(copy.source)
        return self._memory.address(pointer, node.axes, strides, copy.order)

    # -- Tensor descriptors --------------------------------------------------------

    def _box(self, node: Load) -> tuple[Dim, ...] | None:
        """The dims of a descriptor in the order of memory, or None to use pointers."""
        kind = self._signature.type(node.source)
        if not self._signature.around.has_layout(node.source):
            return None
        box = memory_order(node, kind)
        if len(box) > MOST_AXES or not box:
            return None
        widths = [self._tiles.pieces[d].width for d in box]
        size = kind.dtype.itemsize
        fits = (
            max(widths) <= LARGEST_BOX
            and widths[-1] * size >= ALIGNMENT
            and prod(widths) * size % SHARED_ALIGNMENT == 0
        )
        last = self._tiles.pieces[box[-1]]
        steps = [t for t in (last.grid_tile, last.loop_tile) if t and t != last.extent]
        strides = self._strides(box)[:-1]
        aligned = all(s * size % ALIGNMENT == 0 for s in (*strides, *steps))
        return box if fits and aligned else None

    def _strides(self, box: tuple[Dim, ...]) -> list[int]:
        """Strides of the packed tensor, or what divides them if not all is known."""
        inner = [self._tiles.pieces[d].extent or 1 for d in box[1:]]
        return [prod(inner[i:]) for i in range(len(box))]

    def _load_box(self, node: Load, copy: Copy, name: str) -> Tile:
        descriptor, box = self._boxes[copy.key]
        offsets = ", ".join(self._places.offset(d) for d in box)
        axes = self._tiles.pieces.axes(box)
        text = f"{descriptor}.load([{offsets}])"
        if axes != box:
            text = f"tl.reshape({text}, {self._tiles.shape(axes)})"
        fills = {d: 0.0 for d in axes if ends_with_tensor(self._tiles.pieces[d])}
        dtype = self._signature.dtype(node.source)
        self._tiles.writer.assign(name, text)
        return self._tiles.arranged(Tile(name, axes, dtype, fills), copy.order)


def memory_order(node: Load, kind: TensorType) -> tuple[Dim, ...]:
    """The dims of a loaded tensor from the slowest to the fastest."""
    return tuple(d for axis in kind.order for d in node.axes[axis])


def ends_with_tensor(piece: Piece) -> bool:
    """Whether lanes outside of the piece are outside of the tensor, so read as 0."""
    if not piece.loose:
        return False
    inside_part = (
        piece.grid_tile is not None
        and piece.loop_tile is not None
        and piece.grid_tile % piece.loop_tile != 0
    )
    whole = not piece.padded or piece.size in (piece.extent, piece.most)
    return whole and not inside_part
