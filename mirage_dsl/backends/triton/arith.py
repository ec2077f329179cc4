"""Operators of a block as Triton statements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mirage_dsl.backends.triton.layout import Layout, Product
from mirage_dsl.backends.triton.params import Signature
from mirage_dsl.backends.triton.tiles import TRITON_DTYPE, Tile, TileCode
from mirage_dsl.errors import UnsupportedError
from mirage_dsl.ir.graph import Apply
from mirage_dsl.ops.definition import Kind, Operator, Term
from mirage_dsl.types import Dim, Scalar, dtype_named, f32

MINUS_INFINITY = 'float("-inf")'
FULL_PRECISION = 'input_precision="ieee"'
TF32 = 'input_precision="tf32"'
"""f32 products as they are, and with operands rounded to TF32."""

APART = "max_num_imprecise_acc=1"
"""Keeps a product apart from the sum that it is added to.

f32 products are added one after the other: over the whole loop, each would be rounded
at the size of the sum.  Tile by tile, few are.  Triton makes one chain of a sum and a
product again, unless the product has this limit, which says nothing for f32 otherwise.
"""

LOG2_E = math.log2(math.e)


def neutral(op: Operator) -> float:
    """What a reduction must see in lanes outside."""
    return 0.0 if op.term is Term.SUM else float("-inf")


def finite_shift(name: str) -> str:
    """The expression of a shift with 0 for -inf."""
    return f"tl.where({name} == {MINUS_INFINITY}, 0.0, {name})"


class Arithmetic:
    """Emits operators; the tiles they make are noted by the caller."""

    def __init__(
        self,
        tiles: TileCode,
        layout: Layout,
        signature: Signature,
        *,
        allow_tf32: bool,
    ) -> None:
        self._tiles = tiles
        self._layout = layout
        self._constant = signature.constant
        self._constant_value = signature.constant_value
        self._allow_tf32 = allow_tf32

    def _bind(self, wanted: str, expression: str) -> str:
        return self._tiles.bind(wanted, expression)

    def apply(self, node: Apply, operands: Sequence[Tile | Scalar]) -> Tile:
        """Emit one operator other than a contraction.

        Args:
            node: The operator.
            operands: Tiles and constants, in order.

        Raises:
            UnsupportedError: The operator cannot be emitted inside of a block.
        """
        match node.op.kind:
            case Kind.ELEMENTWISE:
                return self._elementwise(node, operands)
            case Kind.REDUCTION:
                assert isinstance(operands[0], Tile)
                return self._reduction(node, operands[0])
            case Kind.VIEW if "dtype" in node.op.attributes:
                assert isinstance(operands[0], Tile)
                return self._cast(node, operands[0])
            case _:
                raise UnsupportedError(
                    f"{node.result} = {node.op.name}: inside a block Triton cannot "
                    f"rearrange registers; put it at the kernel level",
                    node.location,
                )

    # -- Elementwise ---------------------------------------------------------------

    def _elementwise(self, node: Apply, operands: Sequence[Tile | Scalar]) -> Tile:
        order = self._layout.orders[node.result]
        self._tiles.shape(order)
        forms: list[str] = []
        for operand in operands:
            if isinstance(operand, Scalar):
                forms.append(self._constant(operand))
            else:
                tile = self._tiles.as_f32(operand)
                forms.append(self._tiles.aligned(tile, order))
        name = self._bind(node.result, node.op.triton.format(*forms))
        return Tile(name, order, f32, self._fills(node, operands, order))

    def shifted_exp(self, node: Apply, whole: Tile, row: Tile, *, finite: bool) -> Tile:
        """exp(whole - row) as exp2(whole * log2(e) - row * log2(e)).

        The second product is one for each row, so a multiply and add per element
        remains.  Below a shift, lanes outside are taken as -inf, as the shift has
        taken them: their exponentials are 0, and no sum has to mask them again.

        Args:
            node: The exponential.
            whole: The minuend.
            row: The subtrahend.
            finite: It is a shift, which is finite where all lanes are outside too.
        """
        order = self._layout.orders[node.result]
        self._tiles.shape(order)
        row, whole = self._tiles.as_f32(row), self._tiles.as_f32(whole)
        along = [d for d in whole.axes if d not in row.axes] if finite else []
        whole = self._tiles.masked(whole, along, float("-inf"))
        fills = {d: 0.0 for d in along if whole.fills.get(d) == float("-inf")}
        scaled = self._bind(f"{row.name}_log2", f"{row.name} * {LOG2_E}")
        a = self._tiles.aligned(whole, order)
        b = self._tiles.aligned(replace(row, name=scaled), order)
        name = self._bind(node.result, f"tl.exp2({a} * {LOG2_E} - {b})")
        return Tile(name, order, f32, fills)

    def finite(self, shift: Tile) -> Tile:
        """A shift with 0 for -inf, which that of a wholly masked row is."""
        return replace(shift, name=self._bind(shift.name, finite_shift(shift.name)))

    def scaled_exp(self, node: Apply, factors: Sequence[Tile | Scalar]) -> Tile:
        """exp(a * b) as exp2(a * (b * log2(e))), b the smaller one."""
        order = self._layout.orders[node.result]
        self._tiles.shape(order)
        whole, part = sorted(factors, key=_rank, reverse=True)
        assert isinstance(whole, Tile)
        if isinstance(part, Scalar):
            b = f"({self._constant(part)} * {LOG2_E})"
        else:
            tile = self._tiles.as_f32(part)
            name = self._bind(f"{tile.name}_log2", f"{tile.name} * {LOG2_E}")
            b = self._tiles.aligned(replace(tile, name=name), order)
        a = self._tiles.aligned(self._tiles.as_f32(whole), order)
        return Tile(self._bind(node.result, f"tl.exp2({a} * {b})"), order)

    def _fills(
        self, node: Apply, operands: Sequence[Tile | Scalar], order: Sequence[Dim]
    ) -> dict[Dim, float]:
        """What the result holds in lanes outside, where that follows."""
        fills: dict[Dim, float] = {}
        for dim in order:
            values = [self._fill(o, dim) for o in operands]
            if None in values:
                continue
            arrays = [np.asarray(v, np.float64) for v in values]
            with np.errstate(all="ignore"):
                value = float(node.op.numpy(*arrays))
            if value == value:
                fills[dim] = value
        return fills

    def _fill(self, operand: Tile | Scalar, dim: Dim) -> float | None:
        if isinstance(operand, Scalar):
            return self._constant_value(operand)
        return operand.fills.get(dim)

    def _cast(self, node: Apply, operand: Tile) -> Tile:
        dtype = dtype_named(str(node.attr("dtype")))
        assert dtype is not None
        if operand.dtype == dtype:
            return operand
        text = node.op.triton.format(operand.name, dtype=TRITON_DTYPE[dtype.name])
        name = self._bind(node.result, text)
        return Tile(name, operand.axes, dtype, operand.fills)

    # -- Reductions ----------------------------------------------------------------

    def _reduction(self, node: Apply, operand: Tile) -> Tile:
        over = [d for d in operand.axes if d.name in node.over]
        tile = self._tiles.masked(self._tiles.as_f32(operand), over, neutral(node.op))
        text, axes = tile.name, list(tile.axes)
        name = text
        for dim in reversed(over):
            expression = node.op.triton.format(text, axis=axes.index(dim))
            name = text = self._bind(node.result, expression)
            axes.remove(dim)
        fills = {d: 0.0 for d in axes if tile.fills.get(d) == 0.0}
        return Tile(name, tuple(axes), f32, fills)

    # -- Contractions --------------------------------------------------------------

    def contraction(
        self, node: Apply, operands: Sequence[Tile], accumulator: str | None
    ) -> Tile:
        """Emit a contraction.

        Args:
            node: The operator.
            operands: Both operands.
            accumulator: The name of a tile to which the product is added in place;
                allowed where `fusible` holds.
        """
        product = self._layout.products[node.result]
        self._tiles.shape(product.result)
        left, right = operands[product.left], operands[1 - product.left]
        if not product.is_matrix:
            return self._multiply_and_sum(node, (left, right), product)
        a = self._operand(left, product.operands[0], product, 0)
        b = self._operand(right, product.operands[1], product, 1)
        full = left.dtype == f32 and not self._allow_tf32
        options = f", {FULL_PRECISION if full else TF32}" if left.dtype == f32 else ""
        if accumulator is not None and not full:
            text = f"tl.dot({a}, {b}, {accumulator}{options})"
            self._tiles.writer.assign(accumulator, text)
            return Tile(accumulator, product.result)
        if accumulator is not None:
            name = self._bind(node.result, f"tl.dot({a}, {b}{options}, {APART})")
            self._tiles.writer.assign(accumulator, f"{accumulator} + {name}")
            return Tile(accumulator, product.result)
        name = self._bind(node.result, f"tl.dot({a}, {b}{options})")
        if not fusible(product):
            shape = self._tiles.shape(product.result)
            name = self._tiles.reshaped(name, shape, node.result)
        return Tile(name, product.result)

    def _operand(
        self, tile: Tile, order: Sequence[Dim], product: Product, side: int
    ) -> str:
        masked = self._tiles.masked(tile, product.over, 0.0)
        turned = self._tiles.arranged(masked, order)
        if fusible(product):
            return turned.name
        alone = product.columns if side else product.rows
        groups = (alone, product.over) if side == 0 else (product.over, alone)
        pieces = self._tiles.pieces
        lanes = [
            np.prod([pieces[d].width for d in group], dtype=int) for group in groups
        ]
        batch = int(np.prod([pieces[d].width for d in product.batch], dtype=int))
        sizes = [batch, *lanes] if product.batch else lanes
        shape = f"({', '.join(map(str, sizes))})"
        return self._tiles.reshaped(turned.name, shape, f"{tile.name}_r")

    def _multiply_and_sum(
        self, node: Apply, operands: tuple[Tile, Tile], product: Product
    ) -> Tile:
        order = (*product.batch, *product.rows, *product.columns, *product.over)
        self._tiles.shape(order)
        tiles = [
            self._tiles.masked(self._tiles.as_f32(t), product.over, 0.0)
            for t in operands
        ]
        a, b = (self._tiles.aligned(t, order) for t in tiles)
        name = self._bind(node.result, f"{a} * {b}")
        for axis in range(len(order) - 1, len(product.result) - 1, -1):
            name = self._bind(node.result, f"tl.sum({name}, axis={axis})")
        return Tile(name, product.result)


def _rank(factor: Tile | Scalar) -> int:
    return len(factor.axes) if isinstance(factor, Tile) else -1


def fusible(product: Product) -> bool:
    """Whether the product has the shape of its result, without merged axes."""
    groups = (product.batch, product.rows, product.columns, product.over)
    return product.is_matrix and all(len(group) <= 1 for group in groups)
