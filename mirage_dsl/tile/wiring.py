"""Questions about who uses what in a block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from mirage_dsl.core.types import f32
from mirage_dsl.ir.analysis.unshifted import shift_row
from mirage_dsl.ir.graph import (
    JOINED,
    Accumulate,
    Apply,
    BlockGraph,
    Load,
    Operand,
    RunningMax,
    stages_of,
)
from mirage_dsl.ir.walk import makers, users
from mirage_dsl.ops.definition import Kind, Operator, Term
from mirage_dsl.ops.table import EXP, MUL, SUB
from mirage_dsl.tile.layout import Layout
from mirage_dsl.tile.sizes import Number, Order, all_of, any_of, opposite

Stage = Literal["before", "body", "after"]

MODERATE = 2.0**60
"""Constants up to this, and down to one over it, may be multiplied by one another."""


class Wiring:
    """Stages and users of the values of one block.

    Attributes:
        stages: The stage of each value.
        users: The nodes that read each value.
        shifted: For exponentials of a tile minus a row, the subtraction: lanes outside
            are masked once for both.
        scaled: For exponentials of a tile times a constant, the product: the constant
            takes the factor that the two-based exponential wants.
        rounded: Products of which a row is subtracted that may be made of them.
    """

    def __init__(self, block: BlockGraph, layout: Layout) -> None:
        self._block = block
        self._layout = layout
        self.stages: Mapping[str, Stage] = stages_of(block)
        self.users = users(block.nodes)
        self._makers = makers(block)
        self._fused: dict[str, list[Apply]] = {}
        self._absorbed: set[str] = set()
        for node in block.nodes if block.loop is not None else ():
            if isinstance(node, Accumulate) and node.adds:
                self._find_fused(node)

        self.shifted: dict[str, Apply] = {}
        self.scaled: dict[str, Apply] = {}
        self.rounded: set[str] = set()
        for node in block.applies:
            if node.op is SUB:
                self._find_rounded(node)
            if node.op is EXP:
                self._find_shift(node)
                self._find_scale(node)

    def _find_shift(self, node: Apply) -> None:
        """An exponential of a difference, whose subtrahend has fewer dims."""
        maker = self._makers[node.values[0]]
        if (
            isinstance(maker, Apply)
            and maker.op is SUB
            and len(maker.values) == 2
            and len(self.users[maker.result]) == 1
        ):
            whole, row = (self._layout.axes(v) for v in maker.values)
            if len(row) < len(whole) and set(row) <= set(whole):
                self.shifted[node.result] = maker
                self._absorbed.add(maker.result)

    def _find_scale(self, node: Apply) -> None:
        """An exponential of a product with a constant that may take another factor.

        A row may not: where its numbers are large, it would overflow before the tile's
        make the product small.
        """
        maker = self._makers[node.values[0]]
        if (
            isinstance(maker, Apply)
            and maker.op is MUL
            and len(self.users[maker.result]) == 1
            and any(map(_is_moderate, maker.operands))
        ):
            self.scaled[node.result] = maker
            self._absorbed.add(maker.result)

    def _find_rounded(self, node: Apply) -> None:
        """A product from which something with fewer dims is subtracted."""
        whole, row = node.operands
        maker = self._makers[whole] if isinstance(whole, str) else None
        if isinstance(maker, Apply) and maker.op is MUL and isinstance(row, str):
            axes, fewer = map(self._layout.axes, (maker.result, row))
            if self._layout.is_integer(maker.result):
                return
            if len(fewer) < len(axes) or self.is_shift(row):
                self.rounded.add(maker.result)

    def is_needless(self, cast: Apply) -> bool:
        """Whether a cast changes no number and is there for the matrix unit alone.

        Products that are summed in registers take f32, in which numbers of 8 bits are
        what they are: going by way of f16 would cost two conversions an element.
        """
        (operand,) = cast.values
        maker = self._makers[operand]
        if isinstance(maker, Apply) and maker.op.gives == f32:
            (operand,) = maker.values
        return self._layout.is_of_bytes(operand) and all(
            isinstance(user, Apply)
            and user.op.kind is Kind.CONTRACTION
            and not self._layout.products[user.result].is_matrix
            for user in self.users[cast.result]
        )

    def is_joined(self, value: str) -> bool:
        """Whether a value is concatenated over the loop."""
        return self._block.loop is not None and any(
            isinstance(n, Accumulate) and n.result == value and n.kind == JOINED
            for n in self._block.nodes
        )

    def fused_into(self, node: Accumulate) -> list[Apply]:
        """The products that are added to this accumulator in place."""
        return self._fused.get(node.result, [])

    def is_fused(self, node: Apply) -> bool:
        """Whether the statement of another node computes what this operator says."""
        return node.result in self._absorbed

    def _find_fused(self, node: Accumulate) -> None:
        """A product, or a sum of products, whose only reader is an accumulator."""
        absorbed: set[str] = set()
        order = self._layout.orders[node.result]
        products = self._products_of(node.operand, order, absorbed)
        if products:
            self._fused[node.result] = products
            self._absorbed |= absorbed

    def _products_of(
        self, value: str, order: Order, absorbed: set[str]
    ) -> list[Apply] | None:
        maker = self._makers[value]
        single = len(self.users[value]) == 1 and self.stages[value] == "body"
        if not single or not isinstance(maker, Apply):
            return None
        absorbed.add(value)
        if maker.op.kind is Kind.CONTRACTION:
            product = self._layout.products[value]
            return [maker] if product.is_plain and product.result == order else None
        if maker.op.term is not Term.ADD or len(maker.values) != 2:
            return None
        found = [self._products_of(v, order, absorbed) for v in maker.values]
        parts = [p for p in found if p is not None]
        return parts[0] + parts[1] if len(parts) == 2 else None

    def is_loaded_twice(self, node: Load | Apply) -> Number:
        """Whether registers get their own copy of a tile that a product reads.

        A large product that the matrix unit runs by itself reads its tile while the
        next iteration runs and the pipeline refills the buffer that registers read, be
        it for an operator or for a small product: wrong results, unless each has
        buffers of its own.  A product that other operators of the body read is over
        within its iteration, so its tile serves all.
        """
        if not self._block.schedule.second_load or self.stages[node.result] != "body":
            return False
        products = self.products_of(node.result)
        if not products:
            return False
        beside = len(products) < len(self.users[node.result])
        apart = opposite(all_of(map(self.ends_in_iteration, products)))
        return all_of([apart, any_of([beside, self._mixes_products(node.result)])])

    def ends_in_iteration(self, product: Apply) -> Number:
        """Whether a product is read by the matrix unit, and awaited in the body."""
        if product.result in self._absorbed:
            return False
        return self._layout.is_asynchronous(product.result)

    def _mixes_products(self, value: str) -> Number:
        """Whether products that read a value asynchronously and others share it."""
        alone = [
            self._layout.is_asynchronous(p.result) for p in self.products_of(value)
        ]
        return all_of([any_of(alone), opposite(all_of(alone))])

    def reads_again(self, product: Apply, value: str) -> Number:
        """Whether a product reads the copy of a tile that is meant for registers."""
        if not self._layout.products[product.result].is_matrix:
            return True
        synchronous = opposite(self._layout.is_asynchronous(product.result))
        return all_of([synchronous, self._mixes_products(value)])

    def products_of(self, value: str) -> list[Apply]:
        """The matrix products that read a value."""
        return [
            u
            for u in self.users[value]
            if isinstance(u, Apply)
            and u.op.kind is Kind.CONTRACTION
            and self._layout.products[u.result].is_matrix
        ]

    def is_shift(self, value: str) -> bool:
        """Whether it is what exponents are shifted by."""
        return shift_row(self._makers, value) is not None

    def shift_in(self, node: Apply) -> tuple[int, Operator] | None:
        """Which operand of a subtraction is a shift that may be infinite, and its row.

        A shift of which another one is subtracted is none of exponents.
        """
        rows = [shift_row(self._makers, o) for o in node.operands]
        for at in (1, 0) if node.op is SUB else ():
            row, shift = rows[at], node.operands[at]
            if row is not None and isinstance(shift, str):
                return (at, row) if self.may_be_infinite(shift) else None
        return None

    def may_be_infinite(self, shift: str) -> bool:
        """Whether a shift may be infinite; a running maximum sees to that itself."""
        return not isinstance(self._makers[shift], RunningMax)


def _is_moderate(operand: Operand) -> bool:
    """Whether it is a constant that no usual factor takes out of the range of f32."""
    if isinstance(operand, str):
        return False
    return 1 / MODERATE <= abs(operand.value) <= MODERATE
