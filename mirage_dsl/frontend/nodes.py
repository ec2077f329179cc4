"""From what a trace recorded to a kernel graph: names, nodes, blocks, programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count

from mirage_dsl.core.errors import CheckError, SourceLocation, UnsupportedError
from mirage_dsl.core.types import Axis, Dim, Scalar, TensorType, promote
from mirage_dsl.frontend.dims import Atom, Atoms, Extent, Unifier, product
from mirage_dsl.frontend.recorder import Recorder
from mirage_dsl.frontend.steps import (
    BlockAccumulator,
    BlockLoad,
    BlockStep,
    BlockStore,
    Casting,
    Cut,
    Handle,
    Inserted,
    Join,
    Number,
    Over,
    Renaming,
    Step,
    Value,
)
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    Attrs,
    BlockGraph,
    BlockNode,
    Input,
    KernelGraph,
    KernelNode,
    Load,
    Return,
    Schedule,
    Split,
    Store,
    partial_dim,
)
from mirage_dsl.ir.infer import apply_type, block_node_type, store_type
from mirage_dsl.ir.maps import parts
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import CAST

# -- Names and nodes -------------------------------------------------------------------

_LETTERS = "mknhdpqstuvwbcgraf"


@dataclass(frozen=True)
class TracedInput:
    """An input of the program: its name, its handle and its memory layout."""

    name: str
    handle: Handle
    layout: tuple[int, ...] | None = None


@dataclass
class DimNames:
    """Names of atoms, given in order of appearance."""

    dims: Unifier
    taken: set[str]
    _names: dict[Atom, str] = field(default_factory=dict[Atom, str])
    _hints: dict[Atom, str] = field(default_factory=dict[Atom, str])

    def __post_init__(self) -> None:
        self._hints = self.dims.hints()
        self.taken = self.taken | set(self._hints.values())
        self._fresh = self._candidates()

    def visit(self, atoms: Iterator[Atom] | Atoms) -> None:
        """Name those atoms that have no name yet."""
        for atom in self.dims.resolve(atoms):
            if atom not in self._names:
                self._names[atom] = self._hints.get(atom) or next(self._fresh)

    def _candidates(self) -> Iterator[str]:
        numbered = (f"{c}{i}" for i in count(1) for c in _LETTERS)
        for name in (*_LETTERS,):
            if name not in self.taken:
                yield name
        for name in numbered:
            if name not in self.taken:
                yield name

    def assign(self, atom: Atom, name: str) -> None:
        """Give an atom a name that follows from another one's."""
        self._names.setdefault(atom, name)

    def of(self, atoms: Atoms) -> tuple[str, ...]:
        """Names of the dims of an axis."""
        return tuple(self._names[a] for a in self.dims.resolve(atoms))

    def factor(self, atom: Atom, power: int) -> Scalar:
        """A power of an extent; of a dim that no tensor has, the number itself."""
        if atom in self._names:
            return Scalar(Fraction(1), ((self._names[atom], power),))
        assert atom.extent is not None
        return Scalar(Fraction(atom.extent) ** power)

    def axes(self, handle: Handle) -> tuple[tuple[Dim, ...], ...]:
        """The axes of a value, named."""
        return tuple(tuple(Dim(n) for n in self.of(axis)) for axis in handle.axes)

    def extents(self) -> dict[str, Extent]:
        """Extents of all named dims."""
        return {name: atom.extent for atom, name in self._names.items()}


class Builder:
    """Turns steps into nodes, giving every value a name and a type."""

    def __init__(self, names: DimNames) -> None:
        self.names = names
        self.nodes: list[KernelNode] = []
        self.types: dict[str, TensorType] = {}
        self._dims = names.dims
        self._values: dict[Value, str] = {}
        self._taken = set(names.taken)

    def input(self, traced: TracedInput) -> Input:
        """The input, under its own name."""
        handle = traced.handle
        axes = self.names.axes(handle)
        kind = TensorType(handle.value.dtype, axes, layout=traced.layout)
        self._values[handle.value] = traced.name
        self._taken.add(traced.name)
        self.types[traced.name] = kind
        return Input(traced.name, kind)

    def apply(self, step: Step) -> None:
        """Add the node of a step; none if the step changes nothing."""
        node = self.apply_node(step)
        if node is not None:
            types = [self.types[v] for v in node.values]
            self.types[node.result] = apply_type(node, types, in_block=False)
            self.nodes.append(node)

    def apply_node(self, step: Step) -> Apply | None:
        """The node of a step, under a fresh name; None if it changes nothing."""
        attrs = self._attrs(step)
        if attrs is None:
            source = step.operands[0]
            assert isinstance(source, Value)
            self._values[step.result] = self._values[source]
            return None
        operands = tuple(
            self._scalar(o) if isinstance(o, Number) else self._values[o]
            for o in step.operands
        )
        name = self.define(step.result, step.op.name)
        return Apply(name, step.op, operands, attrs, step.location)

    def value(self, value: Value) -> str:
        """The name of a value."""
        return self._values[value]

    def define(self, value: Value, stem: str) -> str:
        """A name for a new value."""
        name = self.fresh_name(stem)
        self._values[value] = name
        return name

    def fresh_name(self, stem: str) -> str:
        """A name that nothing has."""
        numbered = (f"{stem}{i}" for i in count(1))
        name = next(n for n in numbered if n not in self._taken)
        self._taken.add(name)
        return name

    def _attrs(self, step: Step) -> Attrs | None:
        """Attributes sorted by name, or None for a view that changes nothing."""
        match step.detail:
            case None:
                return ()
            case Over(atoms):
                return (("over", self.names.of(atoms)),)
            case Casting(dtype):
                return (("dtype", dtype.name),)
            case Renaming(pairs):
                return self._renaming(pairs)
            case Cut(source, start, target):
                old, new = self._dims.resolve(source), self._dims.resolve(target)
                inner = product(old[1:])
                assert inner is not None
                assert new[0].extent is not None
                first = start // inner
                return (
                    ("dim", self.names.of(old)[0]),
                    ("start", first),
                    ("stop", first + new[0].extent),
                    ("to", self.names.of(new)[0]),
                )
            case Inserted(target):
                return (("to", self.names.of(target)[0]),)
            case Join(parts, target):
                joined = tuple(self.names.of(p)[0] for p in parts)
                return (("dims", joined), ("to", self.names.of(target)[0]))

    def _renaming(self, pairs: tuple[tuple[Atom, Atom], ...]) -> Attrs | None:
        changed = [
            (a, b)
            for old, new in pairs
            for a, b in zip(self.names.of((old,)), self.names.of((new,)), strict=True)
            if a != b
        ]
        if not changed:
            return None
        old, new = zip(*changed, strict=True)
        return (("dims", tuple(old)), ("to", tuple(new)))

    def _scalar(self, number: Number) -> Scalar:
        result = Scalar(number.value)
        for atom, power in number.powers:
            for factor in self._dims.resolve((atom,)):
                result = result.times(self.names.factor(factor, power))
        return result

    def output(self, handle: Handle) -> Return:
        """A returned value under its axes."""
        own = self._dims.resolve(handle.value.dims)
        shown = self._dims.resolve(a for axis in handle.axes for a in axis)
        if set(own) != set(shown):
            raise UnsupportedError(
                "an output repeats elements along an expanded axis; return the tensor "
                "as it is before expanding, and expand the result"
            )
        dtype = handle.value.dtype
        return Return(
            self._values[handle.value], TensorType(dtype, self.names.axes(handle))
        )


# -- Hand-written blocks ---------------------------------------------------------------


def add_block(builder: Builder, step: BlockStep) -> None:
    """Add the block graph of a recorded block to a graph.

    Raises:
        CheckError: Its maps contradict each other.
    """
    _BlockBuilder(builder, step).build()


class _BlockBuilder:
    def __init__(self, builder: Builder, step: BlockStep) -> None:
        self._builder = builder
        self._names = builder.names
        self._step = step
        grid = tuple(s for axes, n in step.grid for s in self._axis(axes, n))
        if len({s.dim for s in grid}) != len(grid):
            raise CheckError(
                "two grid dims split one dim; the maps of x, y and z must split "
                "different dims",
                step.location,
            )
        loop = None if step.loop is None else self._loop(step.loop, grid)
        self._block = BlockGraph(grid, loop, (), Schedule(num_warps=step.num_warps))
        self._nodes: list[BlockNode] = []
        self._types: dict[str, TensorType] = {}
        self._after: set[str] = set()
        """Values after the loop."""

    def _axis(self, axes: tuple[Atoms, ...], count: int) -> list[Split]:
        """The splits of x, y or z: one for each dim that a tensor's map gives it."""
        found: dict[str, Split] = {}
        for axis in axes:
            split = _split(self._builder, axis, count, self._step.location)
            found.setdefault(split.dim, replace(split, beside=bool(found)))
        return list(found.values())

    def _loop(self, loop: tuple[Atoms, int], grid: tuple[Split, ...]) -> Split:
        split = _split(self._builder, *loop, self._step.location)
        inside = next((s for s in grid if s.dim == split.dim), None)
        return (
            split
            if inside is None
            else replace(split, tile=parts(inside.tile, loop[1]))
        )

    def build(self) -> None:
        """Translate all items, then add the block."""
        for item in self._step.items:
            match item:
                case BlockLoad():
                    self._load(item)
                case BlockAccumulator():
                    name = self._builder.define(item.result, "sum_over_loop")
                    operand = self._builder.value(item.operand)
                    self._add(Accumulate(name, operand, item.kind))
                    self._after.add(name)
                case BlockStore():
                    self._store(item)
                case Step():
                    self._apply(item)
        self._builder.nodes.append(replace(self._block, nodes=tuple(self._nodes)))

    def _add(self, node: Load | Apply | Accumulate) -> None:
        outer = self._builder.types
        kind = block_node_type(node, self._block, self._types, outer)
        self._types[node.result] = kind
        self._nodes.append(node)

    def _load(self, item: BlockLoad) -> None:
        source = self._builder.value(item.source)
        grid = {self._names.of(axis)[0] for axis in item.grid}
        loop = None if item.loop is None else self._names.of(item.loop)[0]
        axes = tuple(
            tuple(Dim(d.name, d.name in grid, d.name == loop) for d in axis)
            for axis in self._builder.types[source].axes
        )
        self._add(Load(self._builder.define(item.result, f"{source}_"), source, axes))

    def _apply(self, step: Step) -> None:
        node = self._builder.apply_node(step)
        if node is None:
            return
        self._require_whole(step, node)
        if not self._after.isdisjoint(node.values):
            self._after.add(node.result)
        if node.op.kind is Kind.CONTRACTION:
            # Products are of storage formats: what was computed in f32 is rounded.
            target = promote(*(v.dtype for v in step.operands if isinstance(v, Value)))
            operands = tuple(
                o
                if not isinstance(o, str) or self._types[o].dtype == target
                else self._cast(o, target.name)
                for o in node.operands
            )
            node = replace(node, operands=operands)
        self._add(node)

    def _require_whole(self, step: Step, node: Apply) -> None:
        """Refuse what needs all of an axis where a block or an iteration has a part.

        Sums and maxima over a part are of that part, and are put together later; the
        extent of an axis, as in a mean, and the shift of a softmax are those of the
        whole.
        """
        named = {
            n for o in node.operands if isinstance(o, Scalar) for n, _ in o.extents
        }
        needed = set(node.over) if node.op.shift_of is not None else named
        split = {s.dim: "grid" for s in self._block.grid}
        loop = self._block.loop
        if loop is not None and self._after.isdisjoint(node.values):
            split[loop.dim] = "loop"
        for dim in sorted(needed & split.keys()):
            what = (
                "a softmax over"
                if node.op.shift_of is not None
                else "a mean over, or the extent of,"
            )
            raise UnsupportedError(
                f"{what} an axis that the {split[dim]} splits (dim {dim}): inside, a "
                "block sees a part of it, and would take that for the whole; sum the "
                "parts, and scale the sum",
                step.location,
            )

    def _cast(self, value: str, dtype: str) -> str:
        name = self._builder.fresh_name(f"{value}_{dtype}_")
        self._add(Apply(name, CAST, (value,), (("dtype", dtype),)))
        return name

    def _store(self, item: BlockStore) -> None:
        operand = self._builder.value(item.operand)
        partial = {self._names.of((atom,))[0] for atom, _ in item.partial}
        axes: list[Axis] = []
        for axis in item.axes:
            dims: list[Dim] = []
            for name in self._names.of(axis):
                found = self._types[operand].dim(name)
                dims.append(found or Dim(name, grid=name in partial))
            axes.append(tuple(dims))
        result = self._builder.define(item.result, "block")
        node = Store(result, operand, tuple(axes), item.result.dtype)
        self._builder.types[result] = store_type(node)
        self._nodes.append(node)


def _split(
    builder: Builder, axis: Atoms, count: int, location: SourceLocation | None
) -> Split:
    """An axis cut into so many parts: its leading dim is."""
    name = builder.names.of(axis)[0]
    extent = builder.names.extents()[name]
    if extent is None or extent < count:
        raise CheckError(
            f"{count} parts of an axis whose leading dim {name} has extent {extent}; "
            "take fewer parts, or reshape",
            location,
        )
    return Split(name, parts(extent, count))


# -- Programs --------------------------------------------------------------------------


def build_graph(
    name: str,
    recorder: Recorder,
    inputs: Sequence[TracedInput],
    outputs: Sequence[Handle],
) -> KernelGraph:
    """The kernel graph of a finished trace.

    Raises:
        UnsupportedError: The dims have no common factors, or an output is expanded.
    """
    recorder.dims.settle()
    steps = _live(recorder.steps, outputs)
    names = DimNames(recorder.dims, {i.name for i in inputs})
    for traced in inputs:
        names.visit(a for axis in traced.handle.axes for a in axis)
    for step in steps:
        _visit(names, step)
    builder = Builder(names)
    declared = tuple(builder.input(i) for i in inputs)
    for step in steps:
        if isinstance(step, Step):
            builder.apply(step)
        else:
            add_block(builder, step)
    returns = tuple(builder.output(o) for o in outputs)
    extents = tuple(sorted(names.extents().items()))
    return KernelGraph(name, declared, tuple(builder.nodes), returns, extents)


def _visit(names: DimNames, step: Step | BlockStep) -> None:
    """Name the dims of a step."""
    if isinstance(step, Step):
        names.visit(step.result.dims)
        return
    for item in step.items:
        if isinstance(item, BlockStore):
            for atom, axis in item.partial:
                names.visit(axis)
                names.assign(atom, partial_dim(names.of(axis)[0]))
        names.visit(item.result.dims)


def _live(
    steps: Sequence[Step | BlockStep], outputs: Sequence[Handle]
) -> list[Step | BlockStep]:
    """The steps that an output depends on, in order."""
    needed = {o.value for o in outputs}
    kept: list[Step | BlockStep] = []
    for step in reversed(steps):
        if any(result in needed for result in step.results):
            needed.update(v for v in step.operands if isinstance(v, Value))
            kept.append(step)
    return kept[::-1]
