"""Properties of the textual form: graphs read back, and no text breaks the parser."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mirage_dsl.core.errors import CheckError, MirageError
from mirage_dsl.core.types import DTYPES, Axis, Dim, Scalar, TensorType, scalar
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Input,
    KernelGraph,
    Load,
    Operand,
    Return,
    RunningMax,
    Schedule,
    Split,
    Store,
    partial_dim,
)
from mirage_dsl.ir.infer import apply_type, block_node_type, store_type
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.definition import AttributeKind, Kind, Operator
from mirage_dsl.ops.table import OPERATORS

ROOT = Path(__file__).parents[2]
WORDS = (
    *("x", "y", "k", "m", "π", "_", "info", "exp", "add", "f16", "true", "over", "to"),
    *("load", "store", "return", "block", "accumulate", "running", "max", "concat"),
    *("rescale", "where", "layout", "mirage", "mugraph", "grid", "loop", "dims"),
    "constant",
)
DIMS = ("k", "m", "n", "load", "grid", "max", "d0")
NUMBERS = st.one_of(
    st.integers(-5, 5).map(scalar),
    st.floats(allow_nan=False).map(scalar),
    st.fractions().map(scalar),
    st.builds(
        lambda v, powers: Scalar(v.value, tuple(sorted(powers.items()))),
        st.fractions().map(scalar),
        st.dictionaries(
            st.sampled_from(DIMS), st.integers(-3, 3).filter(bool), max_size=3
        ),
    ),
)
SCHEDULES = st.builds(
    Schedule,
    num_warps=st.sampled_from([1, 4, 8]),
    num_stages=st.integers(1, 6),
    swap_operands=st.booleans(),
    pdl=st.booleans(),
    prefetch=st.sampled_from([0, 1, 2]),
    early=st.integers(0, 8),
)


class Draft:
    """Grows a graph from draws; a node that breaks a type rule is left out."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.fresh = 0

    def pick(self, options: Sequence[Any]) -> Any:
        return self.data.draw(st.sampled_from(list(options)))

    def name(self, taken: Sequence[str]) -> str:
        word = self.pick(WORDS)
        while word in taken:
            self.fresh += 1
            word = f"{word}{self.fresh}"
        return word

    def grouped(self, dims: Sequence[Dim], *, units: bool) -> tuple[Axis, ...]:
        """The dims in another order, some sharing an axis, with axes of extent 1."""
        axes: list[Axis] = []
        for dim in self.data.draw(st.permutations(dims)):
            if axes and self.data.draw(st.integers(0, 3)) == 0:
                axes[-1] = (*axes[-1], dim)
            else:
                axes.append((dim,))
        if units and self.data.draw(st.integers(0, 4)) == 0:
            axes.insert(self.data.draw(st.integers(0, len(axes))), ())
        return tuple(axes)

    def tensor(self, dims: Sequence[Dim], dtype: Any) -> TensorType:
        axes = self.grouped(dims, units=True)
        layout = None
        if self.data.draw(st.booleans()):
            layout = tuple(self.data.draw(st.permutations(range(len(axes)))))
        return TensorType(dtype, axes, layout=layout)

    def apply(self, types: dict[str, TensorType], result: str) -> Apply:
        op: Operator = self.pick(list(OPERATORS.values()))
        count = op.arity if op.arity >= 0 else self.data.draw(st.integers(1, 3))
        operands: list[Operand] = [self.pick(list(types)) for _ in range(count)]
        if op.kind is Kind.ELEMENTWISE and self.data.draw(st.booleans()):
            operands[-1] = self.data.draw(NUMBERS)
        values = [types[o] for o in operands if isinstance(o, str)]
        attrs = {n: self.attribute(op, k, values) for n, k in op.attributes.items()}
        return Apply(result, op, tuple(operands), tuple(sorted(attrs.items())))

    def attribute(
        self, op: Operator, kind: AttributeKind, values: Sequence[TensorType]
    ) -> Any:
        names = values[0].names if values else ()
        match kind:
            case AttributeKind.DIMS if op.kind is Kind.CONCAT:
                return tuple(self.pick(t.names or ("k",)) for t in values)
            case AttributeKind.DIMS:
                shared = [n for n in names if all(n in t.names for t in values)]
                return tuple(shared[: self.data.draw(st.integers(1, 2))])
            case AttributeKind.NEW_DIMS:
                return tuple(f"z{i}" for i in range(self.data.draw(st.integers(0, 2))))
            case AttributeKind.DIM:
                return self.pick(names or ("k",))
            case AttributeKind.NEW_DIM:
                return self.pick(["z", "k", "zz"])
            case AttributeKind.INTEGER:
                return self.data.draw(st.integers(0, 4))
            case AttributeKind.DTYPE:
                return self.pick(DTYPES).name

    def block(self, outer: dict[str, TensorType]) -> BlockGraph:
        names = [d for t in outer.values() for d in t.names if not d.endswith("#")]
        dims = sorted(set(names)) or ["k"]
        tile = st.integers(1, 4)
        split = self.data.draw(st.lists(st.sampled_from(dims), unique=True, max_size=3))
        grid = tuple(
            Split(d, self.data.draw(tile), beside=at > 0 and self.pick([False, True]))
            for at, d in enumerate(split)
        )
        loop = None
        if self.data.draw(st.booleans()):
            loop = Split(self.pick(dims), self.data.draw(tile))
        block = BlockGraph(grid, loop, (), self.data.draw(SCHEDULES))
        types: dict[str, TensorType] = {}
        nodes: list[BlockNode] = []
        for i in range(self.data.draw(st.integers(1, 6))):
            node = self.block_node(block, types, outer, self.name(list(types)), i == 0)
            try:
                types[node.result] = block_node_type(node, block, types, outer)
            except (CheckError, ValueError, AssertionError):
                continue
            nodes.append(node)
        stores = [self.store(block, types, outer) for _ in range(2)] if types else []
        kept = {s.result: s for s in stores}
        return replace(block, nodes=(*nodes, *kept.values()))

    def block_node(
        self,
        block: BlockGraph,
        types: dict[str, TensorType],
        outer: dict[str, TensorType],
        result: str,
        first: bool,
    ) -> Any:
        kind = (
            "load" if first or not types else self.pick(["load", "apply", "acc", "max"])
        )
        if kind == "apply":
            return self.apply(types, result)
        if kind == "max":
            return RunningMax(result, self.pick(list(types)))
        if kind == "acc":
            how = self.pick(["sum", "max", "concat"])
            rescale = self.pick([None, *types]) if how == "sum" else None
            return Accumulate(result, self.pick(list(types)), how, rescale)
        source = self.pick(list(outer))
        looped = {block.loop.dim} if block.loop else set[str]()
        gridded = {s.dim for s in block.grid}
        axes = tuple(
            tuple(
                Dim(
                    d.name,
                    d.name in gridded and self.data.draw(st.booleans()),
                    d.name in looped and self.data.draw(st.booleans()),
                )
                for d in axis
            )
            for axis in outer[source].axes
        )
        return Load(result, source, axes)

    def store(
        self,
        block: BlockGraph,
        types: dict[str, TensorType],
        outer: dict[str, TensorType],
    ) -> Store:
        operand = self.pick(list(types))
        dims = list(types[operand].dims)
        alone = (axis[0] for axis in block.axes if len(axis) == 1)
        for split in alone:
            if Dim(split.dim, grid=True) not in dims and not types[operand].dim(
                partial_dim(split.dim)
            ):
                dims.append(Dim(partial_dim(split.dim), grid=True))
        axes = self.grouped(dims, units=False)
        return Store(self.name(list(outer)), operand, axes, self.pick(DTYPES))

    def graph(self) -> KernelGraph:
        dims = st.lists(st.sampled_from(DIMS), unique=True, max_size=3)
        types: dict[str, TensorType] = {}
        for _ in range(self.data.draw(st.integers(1, 3))):
            chosen = [Dim(d) for d in self.data.draw(dims)]
            types[self.name(list(types))] = self.tensor(chosen, self.pick(DTYPES))
        given = ((n, t, self.data.draw(st.booleans())) for n, t in types.items())
        inputs = tuple(itertools.starmap(Input, given))
        nodes: list[Apply | BlockGraph] = []
        for _ in range(self.data.draw(st.integers(0, 4))):
            if self.data.draw(st.booleans()):
                block = self.block(types)
                if block.stores:
                    nodes.append(block)
                    types |= {s.result: store_type(s) for s in block.stores}
                continue
            node = self.apply(types, self.name(list(types)))
            try:
                operands = [types[v] for v in node.values]
                types[node.result] = apply_type(node, operands, in_block=False)
            except (CheckError, ValueError, AssertionError):
                continue
            nodes.append(node)
        picked = [self.pick(list(types)) for _ in range(2)]
        returns = tuple(
            Return(v, self.tensor(types[v].dims, types[v].dtype)) for v in picked
        )
        extent = st.none() | st.integers(1, 9)
        sizes = {d: self.data.draw(extent) for d in DIMS}
        graph = KernelGraph(self.pick(WORDS), inputs, tuple(nodes), returns, ())
        known = {**sizes, **derived_extents(graph, sizes)}
        return replace(graph, extents=tuple(sorted(known.items())))


@given(st.data())
def test_what_is_printed_reads_back(data: st.DataObject) -> None:
    graph = Draft(data).graph()
    text = str(graph)
    assert parse(text) == graph
    assert str(parse(text)) == text


EXAMPLES = [f.read_text("utf-8") for f in sorted((ROOT / "examples").glob("*.mu"))]
SCRAPS = (
    *("(", ")", "[", "]", "{", "}", ",", ":", "=", "==", "/", "//", "-", "->", "@"),
    *("*", "+", "1", "1/k", "0", "inf", "?", "#", "$", ".", "\n", "\t", " ", "é"),
    *("over(k)", "load", "store", "return", "block", "grid", "exp", "k", "where"),
)


@given(st.data())
def test_no_text_breaks_the_parser(data: st.DataObject) -> None:
    """Damaged texts are read or refused with an error of ours, at a line they have."""
    text = data.draw(st.sampled_from(EXAMPLES))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = start + data.draw(st.integers(0, 6))
        text = text[:start] + data.draw(st.sampled_from(SCRAPS)) + text[stop:]
    error = refusal(text)
    if error is not None:
        assert error.location is not None
        assert 1 <= error.location.line <= len(text.split("\n"))


def refusal(text: str) -> MirageError | None:
    try:
        parse(text)
    except MirageError as error:
        return error
    return None
