"""Emits one block graph as one Triton kernel.

The kernel has the block's stages: what does not change over the loop, the loop, and
what follows it.  Every statement stands below the IR line that it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

from mirage_dsl.backends.triton.arith import Arithmetic, fusible
from mirage_dsl.backends.triton.layout import Layout, Order
from mirage_dsl.backends.triton.memory import Address, Memory
from mirage_dsl.backends.triton.names import Names, Writer
from mirage_dsl.backends.triton.params import Signature
from mirage_dsl.backends.triton.pieces import Pieces
from mirage_dsl.backends.triton.places import Places
from mirage_dsl.backends.triton.plan import KernelPlan
from mirage_dsl.backends.triton.tiles import Tile, TileCode
from mirage_dsl.errors import UnsupportedError
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    RunningMax,
    Store,
    stages_of,
)
from mirage_dsl.ir.infer import block_types
from mirage_dsl.ir.maps import looped_dims
from mirage_dsl.ir.printer import _block_node as node_text
from mirage_dsl.ops.definition import Kind
from mirage_dsl.types import DType, Scalar, TensorType, axis_text


@dataclass(frozen=True)
class Surroundings:
    """What a block graph needs to know of its kernel graph.

    Attributes:
        types: Types of the kernel-level tensors.
        extents: Extents of all dims, None where symbolic.
        packed: Tensors that are row-major and contiguous by construction.
        wide: Offsets need 64 bits.
    """

    types: Mapping[str, TensorType]
    extents: Mapping[str, int | None]
    packed: frozenset[str]
    wide: bool


def emit_block(block: BlockGraph, name: str, around: Surroundings) -> KernelPlan:
    """The Triton kernel of a block graph.

    Raises:
        UnsupportedError: Triton cannot express something of it.
    """
    return _BlockEmitter(block, name, around).emit()


class _BlockEmitter:
    def __init__(self, block: BlockGraph, name: str, around: Surroundings) -> None:
        self.block, self.name = block, name
        self.types = block_types(block, around.types)
        self.stages = stages_of(block)
        self.pieces = Pieces(block, self.types, around.extents)
        self.layout = Layout(block, self.types, self.pieces)
        self.writer, self.names = Writer(), Names()
        self.signature = Signature(around.types, around.extents, around.packed)
        self.signature.names = self.names
        size = self.signature.size
        self.places = Places(
            block, self.pieces, self.writer, self.names, size, wide=around.wide
        )
        self.tiles = TileCode(self.writer, self.names, self.pieces, self.places.mask)
        self.memory = Memory(
            block, self.places, self.tiles, around.extents, size, wide=around.wide
        )
        self.arithmetic = Arithmetic(
            self.tiles, self.layout, self.constant, self.signature.constant_value
        )
        self.values: dict[str, Tile] = {}
        self.again: dict[str, Tile] = {}
        self.addresses: dict[str, Address] = {}
        self.running: dict[str, tuple[str, Tile]] = {}
        self.users: dict[str, list[BlockNode]] = {v: [] for v in self.types}
        for node in block.nodes:
            for value in _operands(node):
                self.users[value].append(node)

    def constant(self, value: Scalar) -> str:
        """A constant as an atomic expression."""
        return self.signature.constant(value)

    # -- The kernel ----------------------------------------------------------------

    def emit(self) -> KernelPlan:
        for tensor in (*self.block.sources, *self.block.results):
            self.signature.tensor(tensor)
        self.writer.indent()
        self.places.emit_ids()
        self.places.emit_positions()
        if self.block.schedule.pdl:
            self.writer.line("gdc_wait()  # until the kernel before is done")
        self._stage("before")
        if self.block.loop is not None:
            self._loop()
        if self.block.schedule.pdl:
            self.writer.line("gdc_launch_dependents()  # the next kernel may start")
        self._stage("after")
        for store in self.block.stores:
            if not self._is_joined(store.operand):
                self._comment(store)
                self._store(store)
        self.writer.dedent()
        return self._plan()

    def _plan(self) -> KernelPlan:
        kinds = ("tensor", "size", "stride")
        params = tuple(sorted(self.signature.params, key=lambda p: kinds.index(p.kind)))
        declared = ", ".join(p.declaration for p in params)
        head = ["@triton.jit", f"def {self.name}({declared}):"]
        grid = tuple(self.signature.parts(s) for s in self.block.grid) or ("1",)
        return KernelPlan(
            self.name,
            self.block,
            params,
            grid,
            (*head, *self.writer.lines),
        )

    def _stage(self, stage: str) -> None:
        for node in self.block.nodes:
            if isinstance(node, Store) or self.stages[node.result] != stage:
                continue
            if isinstance(node, Accumulate):
                if self.block.loop is None:
                    self._comment(node)
                    self._pass_through(node)
                continue
            if isinstance(node, Apply) and self._is_fused(node):
                continue
            self._comment(node)
            self._statement(node)

    def _statement(self, node: BlockNode) -> None:
        match node:
            case Load():
                self._load(node)
            case Apply():
                self._apply(node)
            case RunningMax():
                self._running_max(node)
            case Accumulate() | Store():
                raise AssertionError(node)

    def _comment(self, node: BlockNode) -> None:
        if isinstance(node, Apply) and node.location is not None:
            place = f"{PurePath(node.location.file).name}:{node.location.line}"
            self.writer.line(f"# src[{place}] {node.location.text.strip()}".rstrip())
        kind = "" if isinstance(node, Store) else f": {self.types[node.result]}"
        if isinstance(node, Store):
            kind = f"[{', '.join(map(axis_text, node.axes))}]"
        self.writer.line(f"# {node_text(node, kind)}")

    # -- The loop ------------------------------------------------------------------

    def _loop(self) -> None:
        loop = self.block.loop
        assert loop is not None
        if len({d.grid for d in looped_dims(self.block)}) > 1:
            raise UnsupportedError(
                f"loop over {loop.dim}: some loads loop over the block's part of it "
                f"and others over all of it; use {loop.dim}/grid/loop in all, or none"
            )
        self._hoist_addresses()
        self._start_accumulators()
        stages = self.block.schedule.num_stages
        count = self.signature.iterations(self.block)
        self.writer.line(f"for it in tl.range(0, {count}, num_stages={stages}):")
        self.writer.indent()
        self.tiles.enter()
        before = len(self.writer.lines)
        self.places.begin_loop()
        self._body()
        if len(self.writer.lines) == before:
            self.writer.line("pass")
        self.tiles.leave()
        self.writer.dedent()
        self.places.end_loop()

    def _body(self) -> None:
        for node in self.block.nodes:
            if isinstance(node, Accumulate):
                self._accumulate(node)
            elif isinstance(node, Store):
                continue
            elif self.stages[node.result] == "body":
                if isinstance(node, Apply) and self._is_fused(node):
                    continue
                self._comment(node)
                self._statement(node)

    def _hoist_addresses(self) -> None:
        for load in self.block.loads:
            if self.stages[load.result] != "body":
                continue
            order = self.layout.orders[load.result]
            self.addresses[load.result] = self._hoisted(load, load.source, order)
            if self._is_loaded_twice(load):
                copy = self.signature.alias(load.source)
                order = self.layout.register_orders[load.result]
                key = f"{load.result}/again"
                self.addresses[key] = self._hoisted(load, copy, order)

    def _hoisted(self, load: Load, source: str, order: Order) -> Address:
        address = self._address(load, source, order)
        name = self.names.fresh(f"{load.result}_first")
        self.writer.assign(name, address.first)
        return replace(address, first=name)

    def _address(self, load: Load, source: str, order: Order) -> Address:
        pointer, strides = self.signature.access(source)
        return self.memory.address(pointer, load.axes, strides, order)

    def _start_accumulators(self) -> None:
        for node in self.block.nodes:
            match node:
                case Accumulate() if node.kind != "concat":
                    start = "0.0" if node.kind == "sum" else 'float("-inf")'
                    axes = self.layout.orders[node.result]
                    name = self._start(node.result, axes, start)
                    self.values[node.result] = Tile(name, axes)
                case RunningMax():
                    axes = self.layout.orders[node.result]
                    last = self._start(f"{node.result}_last", axes, 'float("-inf")')
                    self.running[node.result] = (last, Tile(last, axes))
                case _:
                    pass

    def _start(self, wanted: str, axes: Order, value: str) -> str:
        shape = self.tiles.shape(axes)
        return self.writer.assign(
            self.names.fresh(wanted), f"tl.full({shape}, {value}, tl.float32)"
        )

    # -- Loads, operators, stores --------------------------------------------------

    def _load(self, node: Load) -> None:
        dtype = self.types[node.result].dtype
        order = self.layout.orders[node.result]
        self.values[node.result] = self._load_from(node, node.result, order, dtype)
        if self._is_loaded_twice(node):
            self.writer.line("# once more for what is no matrix product")
            order = self.layout.register_orders[node.result]
            key = f"{node.result}/again"
            self.again[node.result] = self._load_from(node, key, order, dtype)

    def _load_from(self, node: Load, key: str, order: Order, dtype: DType) -> Tile:
        address = self.addresses.get(key)
        if address is None:
            address = self._address(node, node.source, order)
        name = self.names.fresh(key.replace("/", "_"))
        return self.memory.load(address, order, name, dtype)

    def _apply(self, node: Apply) -> None:
        if node.op.kind is Kind.CONTRACTION:
            self.values[node.result] = self.arithmetic.contraction(
                node, self._product_operands(node), None
            )
            return
        operands = [
            self._register_value(o) if isinstance(o, str) else o for o in node.operands
        ]
        users = self.users[node.result]
        guard = not users or not all(isinstance(u, RunningMax) for u in users)
        self.values[node.result] = self.arithmetic.apply(node, operands, guard=guard)

    def _register_value(self, name: str) -> Tile:
        return self.again.get(name) or self.values[name]

    def _product_operands(self, node: Apply) -> list[Tile]:
        if not self.layout.products[node.result].is_matrix:
            return [self._register_value(v) for v in node.values]
        return [self.values[v] for v in node.values]

    def _store(self, node: Store) -> None:
        pointer, strides = self.signature.access(node.result)
        self.memory.store(node, pointer, strides, self._register_value(node.operand))

    # -- Accumulators --------------------------------------------------------------

    def _accumulate(self, node: Accumulate) -> None:
        if node.kind == "concat":
            self._store_joined(node)
            return
        fused = self._fused_into(node)
        if fused is not None:
            self._comment(fused)
        self._comment(node)
        accumulator = self.values[node.result]
        name, axes = accumulator.name, accumulator.axes
        if node.rescale is not None:
            scale = self.tiles.aligned(self.running[node.rescale][1], axes)
            self.writer.assign(name, f"{name} * {scale}")
        if fused is not None:
            self.arithmetic.contraction(fused, self._product_operands(fused), name)
            return
        fill = 0.0 if node.kind == "sum" else float("-inf")
        tile = self.tiles.as_f32(self._register_value(node.operand))
        tile = self.tiles.masked(tile, [d for d in axes if d.loop], fill)
        operand = self.tiles.aligned(tile, axes)
        if node.kind == "sum":
            self.writer.assign(name, f"{name} + {operand}")
        else:
            self.writer.assign(name, f"tl.maximum({name}, {operand})")
        fills = {d: fill for d in axes if tile.fills.get(d) == fill}
        if node.rescale is None:
            self.values[node.result] = replace(accumulator, fills=fills)

    def _running_max(self, node: RunningMax) -> None:
        """The new maximum, and by how much sums relative to the old one shrink."""
        operand = self.tiles.as_f32(self._register_value(node.operand))
        if self.block.loop is None:
            last, axes = 'float("-inf")', operand.axes
            highest = operand.name
        else:
            last, axes = self.running[node.result][0], self.running[node.result][1].axes
            loose = [d for d in axes if d.loop]
            operand = self.tiles.masked(operand, loose, float("-inf"))
            highest = self.writer.assign(
                self.names.fresh(f"{node.result}_next"),
                f"tl.maximum({last}, {self.tiles.aligned(operand, axes)})",
            )
        name = self.writer.assign(
            self.names.fresh(node.result),
            f'tl.where({highest} == float("-inf"), 0.0, {highest})',
        )
        self.values[node.result] = Tile(name, axes)
        if self.block.loop is None:
            return
        scale = self.writer.assign(
            self.names.fresh(f"{node.result}_scale"), f"tl.exp({last} - {name})"
        )
        self.writer.assign(last, highest)
        self.running[node.result] = (last, Tile(scale, axes))

    def _pass_through(self, node: Accumulate) -> None:
        """Without a loop there is one iteration: its value is the result."""
        tile = self._register_value(node.operand)
        self.values[node.result] = (
            tile if node.kind == "concat" else self.tiles.as_f32(tile)
        )

    def _store_joined(self, node: Accumulate) -> None:
        """A value joined over the loop is stored piece by piece, in the loop."""
        for user in self.users[node.result]:
            if not isinstance(user, Store):
                raise UnsupportedError(
                    f"{node.result} is joined over the loop and then used by "
                    f"{_result(user)}: only a store of it can be emitted; compute it "
                    f"in the loop, or in a kernel of its own"
                )
            self._comment(node)
            self._comment(user)
            pieces = {d.name: d for d in self.types[node.operand].dims}
            axes = tuple(tuple(pieces.get(d.name, d) for d in a) for a in user.axes)
            pointer, strides = self.signature.access(user.result)
            tile = self._register_value(node.operand)
            self.memory.store(replace(user, axes=axes), pointer, strides, tile)

    # -- Questions about the wiring ------------------------------------------------

    def _is_joined(self, value: str) -> bool:
        return self.block.loop is not None and any(
            isinstance(n, Accumulate) and n.result == value and n.kind == "concat"
            for n in self.block.nodes
        )

    def _fused_into(self, node: Accumulate) -> Apply | None:
        """The product that is added to this accumulator in place."""
        for other in self.block.nodes:
            if isinstance(other, Apply) and other.result == node.operand:
                return other if self._is_fused(other) else None
        return None

    def _is_fused(self, node: Apply) -> bool:
        if node.op.kind is not Kind.CONTRACTION or self.block.loop is None:
            return False
        users = self.users[node.result]
        return (
            len(users) == 1
            and isinstance(users[0], Accumulate)
            and users[0].kind == "sum"
            and self.stages[node.result] == "body"
            and fusible(self.layout.products[node.result])
        )

    def _is_loaded_twice(self, node: Load) -> bool:
        """Whether registers get their own copy of a tile that a product reads.

        On Hopper a product reads its tile asynchronously while the pipeline already
        refills the buffer that registers read: wrong results, unless each has buffers
        of its own.
        """
        if not self.block.schedule.second_load or self.stages[node.result] != "body":
            return False
        kinds = {
            isinstance(u, Apply)
            and u.op.kind is Kind.CONTRACTION
            and self.layout.products[u.result].is_matrix
            for u in self.users[node.result]
        }
        return kinds == {True, False}


def _operands(node: BlockNode) -> tuple[str, ...]:
    match node:
        case Load():
            return ()
        case Apply():
            return tuple(dict.fromkeys(node.values))
        case Accumulate() | RunningMax() | Store():
            return (node.operand,)


def _result(node: BlockNode) -> str:
    return node.result
