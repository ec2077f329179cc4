"""Emits one block graph as one Triton kernel.

The kernel has the block's stages: what does not change over the loop, the loop, and
what follows it.  Every statement stands below the IR line that it comes from.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import PurePath
from typing import Literal

from mirage_dsl.backends.triton.accumulate import Accumulators
from mirage_dsl.backends.triton.arith import Arithmetic
from mirage_dsl.backends.triton.concats import split_concats
from mirage_dsl.backends.triton.layout import Layout
from mirage_dsl.backends.triton.loading import Loader
from mirage_dsl.backends.triton.memory import Memory
from mirage_dsl.backends.triton.names import Names, Writer
from mirage_dsl.backends.triton.params import Signature
from mirage_dsl.backends.triton.pieces import Pieces, launch_order
from mirage_dsl.backends.triton.places import Places
from mirage_dsl.backends.triton.plan import PARAM_KINDS, KernelPlan, Surroundings
from mirage_dsl.backends.triton.prefetch import Prefetcher
from mirage_dsl.backends.triton.rewrite import defer_sums, widen_joins
from mirage_dsl.backends.triton.rows import with_rows
from mirage_dsl.backends.triton.tiles import Tile, TileCode
from mirage_dsl.backends.triton.wiring import Stage, Wiring
from mirage_dsl.errors import UnsupportedError
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    RunningMax,
    Store,
)
from mirage_dsl.ir.infer import block_types
from mirage_dsl.ir.maps import looped_dims
from mirage_dsl.ir.printer import block_node_text as node_text
from mirage_dsl.ir.waiting import after_wait, asked_ahead
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import SUB
from mirage_dsl.types import Scalar, axis_text

ROWS_OF_A_WARP = 64
"""Rows of a matrix product that one warp may hold."""
ROWS_OUTSIDE_LOOPS = 16
"""The same where there is no loop, up to `WARPS_OUTSIDE_LOOPS`.

On a Hopper GPU with Triton 3.6, kernels without a loop gave wrong results with products
of 512 and of 128 rows on 4 warps, whatever the barriers and stages; on 8 warps products
of so many rows were right.  The cause is not known: their PTX looks right.
"""
WARPS_OUTSIDE_LOOPS = 8
MOST_WARPS = 16


Announced = Literal["", "start", "loop"]
"""Whether the kernel behind may start early, and after what of this one."""


def emit_block(
    block: BlockGraph,
    name: str,
    around: Surroundings,
    *,
    announced: Announced = "",
    made: AbstractSet[str] | None = None,
) -> KernelPlan:
    """The Triton kernel of a block graph.

    Args:
        block: What to emit.
        name: Of the kernel.
        around: Its kernel graph.
        announced: When the kernel behind it may start; never before this one's wait.
        made: What kernels of the μGraph made before; None in the first kernel.

    Raises:
        UnsupportedError: Triton cannot express something of it.
    """
    if block.schedule.pdl and not announced:
        announced = "loop"
    return _BlockEmitter(block, name, around, made).emit(announced)


def _as_triton_has_it(
    block: BlockGraph, around: Surroundings
) -> tuple[BlockGraph, Surroundings]:
    """The block without what Triton lacks, or does slowly."""
    block = split_concats(block, block_types(block, around.types))
    block, around = with_rows(block, around)
    block = widen_joins(block, block_types(block, around.types))
    types = block_types(block, around.types)
    pieces = Pieces(block, types, around.extents, around.most)
    return defer_sums(block, types, pieces), around


class _BlockEmitter:
    def __init__(
        self,
        block: BlockGraph,
        name: str,
        around: Surroundings,
        made: AbstractSet[str] | None,
    ) -> None:
        block, around = _as_triton_has_it(block, around)
        self.block, self.name, self.made = block, name, made
        self.late = None if made is None else after_wait(block, made)
        self.types = block_types(block, around.types)
        self.writer, names = Writer(), Names()
        pieces = Pieces(block, self.types, around.extents, around.most)
        layout = self.layout = Layout(block, self.types, pieces)
        self.wiring = Wiring(block, layout)
        signature = self.signature = Signature(around, names)
        self.axes = launch_order(block, around.extents)
        places = self.places = Places(
            self.axes, pieces, self.writer, names, signature.size, wide=around.wide
        )
        tiles = self.tiles = TileCode(self.writer, names, pieces, places.mask)
        self.memory = Memory(
            block, places, tiles, around.extents, signature.size, wide=around.wide
        )
        tf32 = block.schedule.allow_tf32
        self.arithmetic = Arithmetic(tiles, layout, signature, allow_tf32=tf32)
        self.accumulators = Accumulators(block, tiles, layout)
        self.loader = Loader(
            tiles,
            places,
            self.memory,
            signature,
            layout,
            self.wiring,
            descriptors=block.schedule.descriptors and not around.pointers,
        )
        self.values: dict[str, Tile] = {}
        self.again: dict[str, Tile] = {}
        # The user's line last shown: a line's operators share one comment.
        self.source: str | None = None

    # -- The kernel ----------------------------------------------------------------

    def emit(self, announced: Announced) -> KernelPlan:
        self.writer.indent()
        self.places.emit_ids()
        self.places.emit_positions()
        waits = self.block.schedule.pdl
        self._prefetch()
        if waits and self.late is None:
            self._wait()
            waits = False
        if announced == "start" and not waits:
            self._announce()
        self._stage("before")
        if self.block.loop is not None:
            self._loop()
        if waits:
            self._wait()
        if announced == "loop" or (announced and waits):
            self._announce()
        self._stage("before", late=True)
        self._stage("after")
        for store in self.block.stores:
            if not self.wiring.is_joined(store.operand):
                self._comment(store)
                self._store(store, self._register_value(store.operand))
        self.writer.dedent()
        return self._plan()

    def _prefetch(self) -> None:
        """Ask for the first tiles of what the loop reads, if it has to wait."""
        if self.made is not None:
            code = Prefetcher(self.tiles, self.places, self.memory, self.signature)
            code.ask(asked_ahead(self.block, self.made), self.block.schedule.prefetch)

    def _wait(self) -> None:
        self.writer.line("gdc_wait()  # until the kernel before is done")

    def _announce(self) -> None:
        self.writer.line("gdc_launch_dependents()  # the next kernel may start")

    def _plan(self) -> KernelPlan:
        params = sorted(self.signature.params, key=lambda p: PARAM_KINDS.index(p.kind))
        head = ["@triton.jit", f"def {self.name}("]
        head += [f"    {p.declaration}," for p in params]
        grid = tuple(self.signature.parts(a) for a in self.axes) or ("1",)
        lines = (*head, "):", *self.writer.lines)
        return KernelPlan(self.name, self._widened(), tuple(params), grid, lines)

    def _widened(self) -> BlockGraph:
        """With enough warps for the rows of every product."""
        schedule, layout = self.block.schedule, self.layout
        rows = [
            layout.lanes(product.rows)
            for value, product in layout.products.items()
            if layout.is_asynchronous(value)
        ]
        most = max(rows, default=0)
        needed = min(MOST_WARPS, most // ROWS_OF_A_WARP)
        if self.block.loop is None:
            outside = min(WARPS_OUTSIDE_LOOPS, most // ROWS_OUTSIDE_LOOPS)
            needed = max(needed, outside)
        warps = max(schedule.num_warps, needed)
        return replace(self.block, schedule=replace(schedule, num_warps=warps))

    def _stage(self, stage: Stage, *, late: bool = False) -> None:
        """The statements of a stage; before the loop the late ones, or the others."""
        for node in self.block.nodes:
            if isinstance(node, Store) or self.wiring.stages[node.result] != stage:
                continue
            if stage == "before" and late is not self._is_late(node):
                continue
            if isinstance(node, Accumulate):
                if self.block.loop is None:
                    self._comment(node)
                    self._pass_through(node)
                continue
            if isinstance(node, Apply) and self.wiring.is_fused(node):
                continue
            self._comment(node)
            self._statement(node)

    def _is_late(self, node: BlockNode) -> bool:
        """Whether a node needs what the kernel ahead makes, and can wait for it."""
        return self.late is not None and node.result in self.late

    def _statement(self, node: Load | Apply | RunningMax) -> None:
        match node:
            case Load():
                tile, again = self.loader.load(node)
                self.values[node.result] = tile
                if again is not tile:
                    self.again[node.result] = again
            case Apply():
                self.values[node.result] = self._apply(node)
            case RunningMax():
                operand = self._register_value(node.operand)
                tile = self.accumulators.running_max(node, operand)
                self.values[node.result] = tile

    def _comment(self, node: BlockNode) -> None:
        if not isinstance(node, Store):
            for absorbed in (self.wiring.shifted, self.wiring.scaled):
                if node.result in absorbed:
                    self._comment(absorbed[node.result])
        if isinstance(node, Store):
            kind = f"[{', '.join(map(axis_text, node.axes))}]"
        else:
            kind = f": {self.types[node.result]}"
        text = node_text(node, kind)
        if isinstance(node, Apply) and node.location is not None:
            place = f"{PurePath(node.location.file).name}:{node.location.line}"
            line = node.location.text.strip()
            source = f"# src[{place}] {line}".rstrip()
            if source != self.source:
                self.writer.line(source)
            self.source = source
            if line == text:
                return
        self.writer.line(f"# {text}")

    # -- The loop ------------------------------------------------------------------

    def _loop(self) -> None:
        loop = self.block.loop
        assert loop is not None
        if len({d.grid for d in looped_dims(self.block)}) > 1:
            raise UnsupportedError(
                f"loop over {loop.dim}: some loads loop over the block's part of it "
                f"and others over all of it; use {loop.dim}/grid/loop in all, or none"
            )
        self.loader.hoist(self.block.loads)
        self.accumulators.start()
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
            elif self.wiring.stages[node.result] == "body":
                if isinstance(node, Apply) and self.wiring.is_fused(node):
                    continue
                self._comment(node)
                self._statement(node)

    def _accumulate(self, node: Accumulate) -> None:
        if node.kind == "concat":
            self._store_joined(node)
            return
        fused = self.wiring.fused_into(node)
        for product in fused:
            self._comment(product)
        self._comment(node)
        self.accumulators.rescale(node)
        if not fused:
            operand = self._register_value(node.operand)
            self.values[node.result] = self.accumulators.add(node, operand)
            return
        accumulator = self.accumulators.tile(node)
        self.values[node.result] = accumulator
        for product in fused:
            operands = self._product_operands(product)
            self.arithmetic.contraction(product, operands, accumulator.name)

    def _store_joined(self, node: Accumulate) -> None:
        """A value joined over the loop is stored piece by piece, in the loop."""
        for user in self.wiring.users[node.result]:
            if not isinstance(user, Store):
                raise UnsupportedError(
                    f"{node.result} is joined over the loop and then used by "
                    f"{user.result}: only a store of it can be emitted; compute it "
                    f"in the loop, or in a kernel of its own"
                )
            self._comment(node)
            self._comment(user)
            pieces = {d.name: d for d in self.types[node.operand].dims}
            axes = tuple(tuple(pieces.get(d.name, d) for d in a) for a in user.axes)
            tile = self._register_value(node.operand)
            self._store(replace(user, axes=axes), tile)

    # -- Operators and stores ------------------------------------------------------

    def _apply(self, node: Apply) -> Tile:
        if node.op.kind is Kind.CONTRACTION:
            operands = self._product_operands(node)
            return self.arithmetic.contraction(node, operands, None)
        if node.result in self.wiring.shifted:
            whole, row = self._operands(self.wiring.shifted[node.result])
            assert isinstance(whole, Tile)
            assert isinstance(row, Tile)
            shift = self.wiring.is_shift(self.wiring.shifted[node.result].values[1])
            return self.arithmetic.shifted_exp(node, whole, row, finite=shift)
        product = self.wiring.scaled.get(node.result)
        if product is not None:
            return self.arithmetic.scaled_exp(node, self._operands(product))
        return self.arithmetic.apply(node, self._operands(node))

    def _operands(self, node: Apply) -> list[Tile | Scalar]:
        found = [
            self._register_value(o) if isinstance(o, str) else o for o in node.operands
        ]
        shift = node.operands[-1]
        if node.op is SUB and isinstance(shift, str) and self.wiring.is_shift(shift):
            row = found[-1]
            assert isinstance(row, Tile)
            if self.wiring.may_be_infinite(shift):
                found[-1] = self.arithmetic.finite(row)
        return found

    def _register_value(self, name: str) -> Tile:
        return self.again.get(name) or self.values[name]

    def _product_operands(self, node: Apply) -> list[Tile]:
        found = [
            self._register_value(v)
            if self.wiring.reads_again(node, v)
            else self.values[v]
            for v in node.values
        ]
        return found if len(found) == 2 else found * 2

    def _store(self, node: Store, tile: Tile) -> None:
        pointer, strides = self.signature.access(node.result)
        self.memory.store(node, pointer, strides, tile)

    def _pass_through(self, node: Accumulate) -> None:
        """Without a loop there is one iteration: its value is the result."""
        tile = self._register_value(node.operand)
        joined = node.kind == "concat"
        self.values[node.result] = tile if joined else self.tiles.as_f32(tile)
