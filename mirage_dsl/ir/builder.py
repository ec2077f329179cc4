"""Building programs and μGraphs by hand, with automatic names.

    b = KernelBuilder("rms_linear", m=16, k=4096, n=6144)
    x = b.input("x", f16, "m, k")
    w = b.input("w", f16, "k, n")
    with b.block(grid={"n": 64}, loop=("k", 128)) as block:
        xt = block.load(x, "m, k/loop")
        wt = block.load(w, "k/loop, n/grid")
        squares = block.accumulate(block.square(xt))
        product = block.accumulate(block.matmul(xt, wt, over="k"))
        mean = block.mul(block.sum(squares, over="k"), one_over("k"))
        y = block.store(block.mul(product, block.rsqrt(mean)), "m, n/grid")
    graph = b.returns(y).build()

Every operator of the table is a method.  Values are their names.  Axes are texts as
they stand in `.mu` files, or sequences of dims.  A type rule that does not hold is
reported where the node is added, everything else by `build`.
"""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import (
    Axis,
    AxisNames,
    Dim,
    DType,
    Scalar,
    TensorType,
    extent_scalar,
    scalar,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.infer import apply_type, block_node_type, store_type
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ops.definition import AttributeKind, Operator
from mirage_dsl.ops.table import OPERATORS

AxesLike = str | Sequence[str | tuple[str | Dim, ...]]
OperandLike = str | Scalar | int | float
AttrLike = int | str | tuple[str, ...]

_AXIS = re.compile(r"\s*(?:\((?P<group>[^()]*)\)|(?P<one>1)|(?P<dim>[^\s(),]+))\s*")


def dim_from(text: str | Dim) -> Dim:
    """`k`, `k/grid`, `k/loop` or `k/grid/loop`.

    Raises:
        CheckError: The text is no dim.
    """
    if isinstance(text, Dim):
        return text
    name, *flags = text.split("/")
    if not name or flags not in ([], ["grid"], ["loop"], ["grid", "loop"]):
        raise CheckError(
            f"found the dim {text!r}, expected a name, then perhaps /grid, then /loop"
        )
    return Dim(name, grid="grid" in flags, loop="loop" in flags)


def axes_from(axes: AxesLike) -> tuple[Axis, ...]:
    """Axes from `"m, (h d), 1, k/loop"`, or from a sequence of names and tuples.

    Raises:
        CheckError: The text is no list of axes.
    """
    if not isinstance(axes, str):
        items = [(a,) if isinstance(a, str) else a for a in axes]
        return tuple(tuple(dim_from(d) for d in axis) for axis in items)
    if not axes.strip():
        return ()
    found: list[Axis] = []
    for part in axes.split(","):
        match = _AXIS.fullmatch(part)
        if match is None:
            raise CheckError(
                f"found the axis {part.strip()!r}, expected a dim, 1, or (dim dim)"
            )
        group = match["group"] if match["group"] is not None else match["dim"] or ""
        found.append(tuple(dim_from(d) for d in group.split()))
    return tuple(found)


def one_over(*dims: str) -> Scalar:
    """The constant 1 / (product of the extents of `dims`), as in a mean."""
    return extent_scalar(*dims).inverse


def operator_named(name: str) -> Operator:
    """The row called `name`.

    Raises:
        CheckError: The table has no such row.
    """
    if name in OPERATORS:
        return OPERATORS[name]
    near = difflib.get_close_matches(name, OPERATORS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(OPERATORS)}"
    raise CheckError(f"no operator is called {name}; {hint}")


def _attribute(value: AttrLike, kind: AttributeKind | None) -> ir.AttrValue:
    many = kind in (AttributeKind.DIMS, AttributeKind.NEW_DIMS)
    if many and isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    if kind in (AttributeKind.AXES, AttributeKind.NEW_AXES) and isinstance(value, str):
        return AxisNames(tuple(tuple(d.name for d in a) for a in axes_from(value)))
    return value


class _Builder(ABC):
    """What the builders of both levels share: names, types, operators as methods."""

    def __init__(self) -> None:
        self._types: dict[str, TensorType] = {}
        self._count = 0

    def type_of(self, value: str) -> TensorType:
        """The type of a value of this level.

        Raises:
            CheckError: There is no such value.
        """
        if value not in self._types:
            known = ", ".join(self._types) or "none"
            raise CheckError(f"unknown value {value}; known: {known}")
        return self._types[value]

    def apply(
        self,
        op: str | Operator,
        *operands: OperandLike,
        name: str | None = None,
        **attrs: AttrLike,
    ) -> str:
        """Add an operator node; numbers are constants.  Returns the result's name.

        Raises:
            CheckError: The operands or attributes do not fit the operator.
        """
        row = operator_named(op) if isinstance(op, str) else op
        given = {n: _attribute(v, row.attributes.get(n)) for n, v in attrs.items()}
        values: list[ir.Operand] = [
            o if isinstance(o, str | Scalar) else scalar(o) for o in operands
        ]
        for value in values:
            if isinstance(value, str):
                self.type_of(value)
        node = ir.Apply(
            self._fresh(name), row, tuple(values), tuple(sorted(given.items()))
        )
        self._add(node)
        return node.result

    def __getattr__(self, name: str) -> Callable[..., str]:
        if name.startswith("_") or name not in OPERATORS:
            raise AttributeError(f"{type(self).__name__} has no operator {name}")
        row = OPERATORS[name]

        def method(
            *operands: OperandLike, name: str | None = None, **attrs: AttrLike
        ) -> str:
            return self.apply(row, *operands, name=name, **attrs)

        return method

    def _fresh(self, name: str | None) -> str:
        if name is not None:
            if name in self._types:
                raise CheckError(f"a value is called {name} already; take another name")
            return name
        while True:
            self._count += 1
            if f"t{self._count}" not in self._types:
                return f"t{self._count}"

    @abstractmethod
    def _add(self, node: ir.Apply) -> None: ...


class KernelBuilder(_Builder):
    """Builds a kernel graph: a program, or a μGraph.

    Args:
        name: Name of the function.
        **extents: Extent of each dim, None where symbolic; `extent` adds more.
    """

    def __init__(self, name: str, **extents: int | None) -> None:
        super().__init__()
        self.name = name
        self._extents: dict[str, int | None] = dict(extents)
        self._inputs: list[ir.Input] = []
        self._indices: list[ir.Index] = []
        self._nodes: list[ir.KernelNode] = []
        self._returns: list[ir.Return] = []

    def extent(self, **extents: int | None) -> KernelBuilder:
        """State extents of dims."""
        self._extents.update(extents)
        return self

    def input(
        self,
        name: str,
        dtype: DType,
        axes: AxesLike,
        *,
        layout: tuple[int, ...] | None = None,
    ) -> str:
        """Add a tensor that the caller passes.  Returns its name."""
        kind = TensorType(dtype, axes_from(axes), layout=layout)
        self._inputs.append(ir.Input(self._fresh(name), kind))
        self._types[name] = kind
        return name

    def index(self, name: str, axis: str) -> str:
        """Add the positions along an axis, as `k` or `(h k)`.  Returns their name."""
        (dims,) = axes_from(axis)
        found = ir.Index(self._fresh(name), dims)
        self._indices.append(found)
        self._types[found.name] = found.type
        return found.name

    def block(
        self,
        *,
        grid: Mapping[str, int] | tuple[ir.Split, ...] | None = None,
        loop: tuple[str, int] | None = None,
        schedule: ir.Schedule | None = None,
    ) -> BlockBuilder:
        """A block graph, added to the kernel graph at the end of its `with`.

        Args:
            grid: Tile by dim, or splits.
            loop: The dim over which the block iterates, and its tile.
            schedule: Parameters of the lowering.
        """
        if not isinstance(grid, tuple):
            grid = tuple(ir.Split(d, t) for d, t in (grid or {}).items())
        empty = ir.BlockGraph(
            grid, ir.Split(*loop) if loop else None, (), schedule or ir.Schedule()
        )
        return BlockBuilder(self, empty)

    def returns(
        self, *values: str, axes: AxesLike | None = None, dtype: DType | None = None
    ) -> KernelBuilder:
        """Return values, each as it is, or one of them under other axes."""
        for value in values:
            kind = self.type_of(value)
            self._returns.append(
                ir.Return(
                    value,
                    TensorType(
                        dtype or kind.dtype,
                        kind.axes if axes is None else axes_from(axes),
                    ),
                )
            )
        return self

    def build(self) -> ir.KernelGraph:
        """The graph, checked.

        Raises:
            CheckError: It is not well formed.
        """
        graph = self.unchecked()
        check_or_raise(graph)
        return graph

    def unchecked(self) -> ir.KernelGraph:
        """The graph as it is, well formed or not."""
        graph = ir.KernelGraph(
            self.name,
            tuple(self._inputs),
            tuple(self._nodes),
            tuple(self._returns),
            tuple(sorted(self._extents.items())),
            tuple(self._indices),
        )
        return graph.with_extents(derived_extents(graph, self._extents))

    def _add(self, node: ir.Apply) -> None:
        operands = [self._types[v] for v in node.values]
        self._types[node.result] = apply_type(node, operands, in_block=False)
        self._nodes.append(node)

    def add_block(self, block: ir.BlockGraph) -> None:
        """Add a finished block graph; a `BlockBuilder` does it at its end."""
        for store in block.stores:
            self._types[self._fresh(store.result)] = store_type(store)
        self._nodes.append(block)

    def fresh_name(self, name: str | None = None) -> str:
        """`name` if it is free, or a new one."""
        return self._fresh(name)


class BlockBuilder(_Builder):
    """Builds the block graph of one kernel; made by `KernelBuilder.block`."""

    def __init__(self, kernel: KernelBuilder, empty: ir.BlockGraph) -> None:
        super().__init__()
        self._kernel = kernel
        self._empty = empty
        self._nodes: list[ir.BlockNode] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._kernel.add_block(self.graph())

    def graph(self) -> ir.BlockGraph:
        """The block graph so far."""
        empty = self._empty
        return ir.BlockGraph(empty.grid, empty.loop, tuple(self._nodes), empty.schedule)

    def load(
        self, source: str, axes: AxesLike | None = None, *, name: str | None = None
    ) -> str:
        """Load a kernel-level tensor; without `axes` all of it."""
        kind = self._kernel.type_of(source)
        pieces = kind.axes if axes is None else axes_from(axes)
        return self._value(ir.Load(self._fresh(name), source, pieces))

    def accumulate(
        self,
        operand: str,
        kind: str = "sum",
        *,
        rescale: str | None = None,
        name: str | None = None,
    ) -> str:
        """The value over all iterations."""
        self.type_of(operand)
        return self._value(ir.Accumulate(self._fresh(name), operand, kind, rescale))

    def running_max(self, operand: str, *, name: str | None = None) -> str:
        """The maximum over this and all earlier iterations."""
        self.type_of(operand)
        return self._value(ir.RunningMax(self._fresh(name), operand))

    def store(
        self,
        operand: str,
        axes: AxesLike | None = None,
        *,
        dtype: DType | None = None,
        name: str | None = None,
    ) -> str:
        """Store a value; returns the name of the kernel-level tensor.

        Args:
            operand: The value.
            axes: The tensor's axes; by default those of the value.
            dtype: Its storage format; by default that of the block's first load.
            name: Its name.
        """
        kind = self.type_of(operand)
        loads = [n for n in self._nodes if isinstance(n, ir.Load)]
        storage = dtype or (self.type_of(loads[0].result) if loads else kind).dtype
        pieces = kind.axes if axes is None else axes_from(axes)
        result = self._kernel.fresh_name(name)
        self._nodes.append(ir.Store(result, operand, pieces, storage))
        return result

    def _value(self, node: ir.ValueNode) -> str:
        outer = {}
        if isinstance(node, ir.Load):
            outer = {node.source: self._kernel.type_of(node.source)}
        self._types[node.result] = block_node_type(
            node, self._empty, self._types, outer
        )
        self._nodes.append(node)
        return node.result

    def _add(self, node: ir.Apply) -> None:
        self._value(node)
