"""The tiles of a block: orders of axes, roles of matrix operands, who uses what.

A tile can be loaded in any order of axes at no cost, a computed one cannot be turned
freely.  So orders are decided before anything is emitted: backwards from matrix
products and stores to what feeds them, then forwards from what is computed to the
loads beside it.  Orders tell what a matrix product is added to in place, what is
computed in one step with its reader, and which tiles are loaded twice (`Wiring`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from mirage_dsl.core.hardware import ASYNCHRONOUS_ROWS
from mirage_dsl.core.types import Dim, TensorType, boolean, f32
from mirage_dsl.ir.analysis.bounds import shift_row
from mirage_dsl.ir.graph import (
    JOINED,
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    Operand,
    RunningMax,
    Store,
    stages_of,
)
from mirage_dsl.ir.walk import makers, users
from mirage_dsl.ops.definition import Kind, Operator, Term
from mirage_dsl.ops.table import EXP, MUL, SLICE, SUB
from mirage_dsl.tile.sizes import (
    Number,
    Order,
    Sizes,
    all_of,
    any_of,
    either,
    fold,
    greatest,
    least,
    opposite,
)

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
WARPS_OF_A_GROUP = 4
"""Warps that the matrix unit takes rows from together, where it reads tiles itself."""


@dataclass(frozen=True)
class ProductAxes:
    """How a contraction becomes a matrix product.

    Attributes:
        left: Position of the operand that has the rows.
        batch: Axes of both operands that stay.
        rows: Axes of the left operand alone.
        columns: Axes of the right operand alone.
        over: Axes summed over.
    """

    left: int
    batch: Order
    rows: Order
    columns: Order
    over: Order

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix product; otherwise it is multiplied and summed."""
        return bool(self.rows and self.columns and self.over)

    @property
    def is_plain(self) -> bool:
        """Whether it is a matrix product of the shape of its result: none merged."""
        groups = (self.batch, self.rows, self.columns, self.over)
        return self.is_matrix and all(len(group) <= 1 for group in groups)

    @property
    def result(self) -> Order:
        """Axes of the result."""
        return self.batch + self.rows + self.columns

    @property
    def operands(self) -> tuple[Order, Order]:
        """Axes of the left and of the right operand."""
        return self.batch + self.rows + self.over, self.batch + self.over + self.columns


@dataclass(frozen=True)
class _Wish:
    """An order that a consumer would like; a matrix product insists."""

    order: Order
    strong: bool


def is_read(node: BlockNode, block: BlockGraph) -> bool:
    """Whether a node's tile is read of memory, as it is: a load, or a gather of one."""
    if isinstance(node, Load):
        return node.result not in block.gathered
    return isinstance(node, Apply) and node.op.kind is Kind.GATHER


class Layout:
    """Orders of axes and products of one block.

    Attributes:
        orders: Axes of each value; for a load, of the copy that matrix products read.
        register_orders: Axes of the copy of a load that other operators read.
        products: The product of each contraction, by its result.
    """

    def __init__(
        self, block: BlockGraph, types: Mapping[str, TensorType], sizes: Sizes
    ) -> None:
        self._block = block
        self._types = types
        self._sizes = sizes
        self._axes: dict[str, Order] = {}
        self._wishes: dict[str, _Wish] = {}
        self._register_wishes: dict[str, _Wish] = {}
        self.orders: dict[str, Order] = {}
        self.register_orders: dict[str, Order] = {}
        self.products: dict[str, ProductAxes] = {}
        self._left: dict[str, str] = {}
        self._asynchronous: dict[str, Number] = {}
        read = [n for n in block.made if is_read(n, block)]
        self._loads = {n.result for n in read}
        # What comes of memory by no arithmetic: loads, and lanes of them.
        self._plain = self._loads | {n.result for n in block.applies if n.op is SLICE}
        for node in reversed(block.nodes):
            self._backward(node)
        for node in block.nodes:
            self._forward(node)
        for load in read:
            self._settle_load(load.result)

    def is_integer(self, value: str) -> bool:
        """Whether a value is of integers."""
        return self._types[value].dtype.is_integer

    def is_of_bytes(self, value: str) -> bool:
        """Whether a value is of numbers of 8 bits, which all other floats hold."""
        dtype = self._types[value].dtype
        return dtype.itemsize == 1 and dtype is not boolean

    def axes(self, value: str) -> Order:
        """The axes of a value's tile, in the order of its type."""
        if value not in self._axes:
            self._axes[value] = self._sizes.axes(self._types[value].dims)
        return self._axes[value]

    def order_of_load(self, value: str) -> Order:
        """The axes of the one copy of a load that needs no second one."""
        return self.register_orders.get(value) or self.orders[value]

    def is_asynchronous(self, value: str) -> Number:
        """Whether a product may be one whose tiles the matrix unit reads by itself.

        On some architecture it does, for whole groups of warps, from
        `ASYNCHRONOUS_ROWS` on; the tiles of smaller products are read to registers.
        """
        if value not in self._asynchronous:
            exact = self._types[self._left[value]].dtype is f32
            fits = not exact or self._block.schedule.allow_tf32
            tall = self._has_rows(self.products[value], ASYNCHRONOUS_ROWS)
            self._asynchronous[value] = all_of([fits, tall, self._has_groups])
        return self._asynchronous[value]

    def _has_rows(self, product: ProductAxes, count: int) -> Number:
        """Whether a matrix product has so many rows, and no batch."""
        if not product.is_matrix:
            return False
        tall = fold("ge", self.lanes(product.rows), count)
        return all_of([tall, opposite(fold("gt", self.lanes(product.batch), 1))])

    @cached_property
    def _has_groups(self) -> Number:
        """Whether `warps` are whole groups of warps."""
        each = ROWS_OUTSIDE_LOOPS if self._block.loop is None else ROWS_OF_A_WARP
        rows = max(each * WARPS_OF_A_GROUP, ASYNCHRONOUS_ROWS)
        many = [self._has_rows(product, rows) for product in self.products.values()]
        return any_of([fold("ge", self._sizes.warps, WARPS_OF_A_GROUP), *many])

    @cached_property
    def warps(self) -> Number:
        """Warps of a block: the schedule's, or enough for the rows of every product."""
        rows = [
            either(self._has_rows(p, ASYNCHRONOUS_ROWS), self.lanes(p.rows), 0)
            for p in self.products.values()
        ]
        most = greatest(0, *rows)
        needed = least(MOST_WARPS, fold("div", most, ROWS_OF_A_WARP))
        if self._block.loop is None:
            outside = fold("div", most, ROWS_OUTSIDE_LOOPS)
            needed = greatest(needed, least(WARPS_OUTSIDE_LOOPS, outside))
        return greatest(self._sizes.warps, needed)

    def lanes(self, axes: Order) -> Number:
        """How many lanes some axes have together."""
        found: Number = 1
        for dim in axes:
            found = fold("mul", found, self._sizes.lanes(dim))
        return found

    def _wish(self, value: str, order: Sequence[Dim], *, strong: bool) -> None:
        """Note a wish; dims that `order` lacks come last.

        So several threads join the parts of a split dim.  With the parts first, one
        thread loads them all, and joining takes up to 1.8 µs longer on an H200.
        """
        own = self.axes(value)
        wanted = tuple(d for d in order if d in own)
        wish = _Wish(wanted + tuple(d for d in own if d not in wanted), strong)
        if not strong:
            self._register_wishes.setdefault(value, wish)
        known = self._wishes.get(value)
        if known is None or (strong and not known.strong):
            self._wishes[value] = wish

    # -- Backwards -----------------------------------------------------------------

    def _backward(self, node: BlockNode) -> None:
        match node:
            case Load():
                pass
            case Store():
                dims = [d for axis in node.axes for d in axis]
                self._wish(node.operand, dims, strong=False)
            case Accumulate() | RunningMax():
                self._pass_on(node.result, node.operand)
            case Apply():
                if node.op.kind is Kind.CONTRACTION:
                    self._plan_product(node)
                    return
                gathers = node.op.kind is Kind.GATHER
                for value in node.values[1:] if gathers else node.values:
                    self._pass_on(node.result, value)

    def _pass_on(self, result: str, operand: str) -> None:
        wish = self._wishes.get(result)
        if wish is not None:
            self._wish(operand, wish.order, strong=wish.strong)

    def _plan_product(self, node: Apply) -> None:
        sides = [self.axes(v) for v in node.values]
        if len(sides) == 1:
            sides *= 2
        wish = self._wishes.get(node.result)
        alone = [[d for d in sides[i] if d not in sides[1 - i]] for i in (0, 1)]
        left = self._left_operand(node, alone, wish)
        right = 1 - left
        shared = [d for d in sides[left] if d in sides[right]]
        order = list(wish.order) if wish else []

        def wished(dims: list[Dim]) -> Order:
            return tuple(
                sorted(dims, key=lambda d: order.index(d) if d in order else -1)
            )

        product = ProductAxes(
            left,
            batch=wished([d for d in shared if d.name not in node.over]),
            rows=wished(alone[left]),
            columns=wished(alone[right]),
            over=tuple(d for d in shared if d.name in node.over),
        )
        self.products[node.result] = product
        self._left[node.result] = node.values[left % len(node.values)]
        for value, axes in zip(
            (node.values[left], node.values[-1 if right else 0]),
            product.operands,
            strict=True,
        ):
            self._wish(value, axes, strong=product.is_matrix)

    def _left_operand(
        self, node: Apply, alone: list[list[Dim]], wish: _Wish | None
    ) -> int:
        """The operand that has the rows of the product.

        What another product insists on is obeyed.  Otherwise a computed operand is
        better left, where it may stay in registers; else the result comes in the order
        of the store.  `swap_operands` turns this round.
        """
        wished = 0
        for dim in wish.order if wish else ():
            if dim in alone[0] or dim in alone[1]:
                wished = 0 if dim in alone[0] else 1
                break
        if wish is not None and wish.strong:
            return wished
        computed = [v not in self._plain for v in node.values]
        if len(computed) == 2 and computed[0] != computed[1]:
            wished = computed.index(True)
        return 1 - wished if self._block.schedule.swap_operands else wished

    # -- Forwards ------------------------------------------------------------------

    def _forward(self, node: BlockNode) -> None:
        match node:
            case Load() | Store():
                pass
            case Accumulate() | RunningMax():
                self.orders[node.result] = self._order_of(node.operand)
            case Apply():
                if node.result not in self._loads:
                    self.orders[node.result] = self._apply_order(node)

    def _order_of(self, value: str) -> Order:
        """The order of an operand; a load that no one decided on decides now."""
        if value in self.orders:
            return self.orders[value]
        if value in self.register_orders:
            return self.register_orders[value]
        wish = self._register_wishes.get(value)
        self.register_orders[value] = wish.order if wish else self.axes(value)
        return self.register_orders[value]

    def _apply_order(self, node: Apply) -> Order:
        if node.op.kind is Kind.CONTRACTION:
            return self.products[node.result].result
        if node.op.kind is not Kind.ELEMENTWISE:
            axes, (value, *_) = self.axes(node.result), node.values
            wish = self._wishes.get(value) if node.op is SLICE else None
            order = wish.order if wish and wish.strong else self._order_of(value)
            return tuple(d for d in order if d in axes)
        axes = self.axes(node.result)
        order = self._joint_order(node, axes)
        for value in node.values:
            if value in self._loads and value not in self.register_orders:
                own = self.axes(value)
                self.register_orders[value] = tuple(d for d in order if d in own)
        return order

    def _joint_order(self, node: Apply, axes: Order) -> Order:
        """The order of a computed operand with all axes, else the wished one."""
        decided = [self._decided(v) for v in node.values]
        for order in decided:
            if order is not None and len(order) == len(axes):
                return order
        wish = self._wishes.get(node.result)
        if wish is not None:
            return wish.order
        merged = [d for order in decided if order for d in order]
        return tuple(dict.fromkeys([*merged, *axes]))

    def _decided(self, value: str) -> Order | None:
        return self.orders.get(value) or self.register_orders.get(value)

    def _settle_load(self, value: str) -> None:
        wish = self._wishes.get(value)
        if wish is not None and wish.strong:
            self.orders[value] = wish.order
        else:
            self.orders[value] = self._order_of(value)
        self.register_orders.setdefault(value, self.orders[value])


# -- Who uses what ---------------------------------------------------------------------


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
        if isinstance(maker, Apply) and maker.op.gives is f32:
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
        if node.op is not SUB:
            return None
        for at in (1, 0):
            shift = node.operands[at]
            row = shift_row(self._makers, shift)
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
