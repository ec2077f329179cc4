"""From recorded steps to a kernel graph: names for dims and values, live steps only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count

from mirage_dsl.errors import UnsupportedError
from mirage_dsl.frontend.dims import Atom, Atoms, Extent, Unifier, product
from mirage_dsl.frontend.recorder import Recorder
from mirage_dsl.frontend.steps import (
    Casting,
    Cut,
    Handle,
    Join,
    Number,
    Over,
    Renaming,
    Step,
    Value,
)
from mirage_dsl.ir.graph import Apply, Attrs, Input, KernelGraph, Return
from mirage_dsl.types import Dim, Scalar, TensorType

_LETTERS = "mknhdpqstuvwbcgraf"


@dataclass(frozen=True)
class TracedInput:
    """An input of the program: its name, its handle and its memory layout."""

    name: str
    handle: Handle
    layout: tuple[int, ...] | None = None


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
    names = _DimNames(recorder.dims, {i.name for i in inputs})
    for traced in inputs:
        names.visit(a for axis in traced.handle.axes for a in axis)
    for step in steps:
        names.visit(step.result.dims)
    builder = _Builder(names, {i.handle.value: i.name for i in inputs})
    nodes = tuple(node for step in steps for node in builder.node(step))
    returns = tuple(builder.output(o) for o in outputs)
    return KernelGraph(
        name,
        tuple(
            Input(
                i.name,
                TensorType(i.handle.value.dtype, names.axes(i.handle), layout=i.layout),
            )
            for i in inputs
        ),
        nodes,
        returns,
        tuple(sorted(names.extents().items())),
    )


def _live(steps: Sequence[Step], outputs: Sequence[Handle]) -> list[Step]:
    """The steps that an output depends on, in order."""
    needed = {o.value for o in outputs}
    kept: list[Step] = []
    for step in reversed(steps):
        if step.result in needed:
            needed.update(v for v in step.operands if isinstance(v, Value))
            kept.append(step)
    return kept[::-1]


@dataclass
class _DimNames:
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


class _Builder:
    """Turns steps into nodes, giving every value a name."""

    def __init__(self, names: _DimNames, inputs: dict[Value, str]) -> None:
        self._names = names
        self._dims = names.dims
        self._values = dict(inputs)
        self._taken = set(inputs.values()) | names.taken

    def node(self, step: Step) -> Iterator[Apply]:
        """The node of a step; none if the step changes nothing."""
        attrs = self._attrs(step)
        source = step.operands[0]
        if attrs is None:
            assert isinstance(source, Value)
            self._values[step.result] = self._values[source]
            return
        operands = tuple(
            self._scalar(o) if isinstance(o, Number) else self._values[o]
            for o in step.operands
        )
        name = self._value_name(step.op.name)
        self._values[step.result] = name
        yield Apply(name, step.op, operands, attrs, step.location)

    def _attrs(self, step: Step) -> Attrs | None:
        """Attributes sorted by name, or None for a view that changes nothing."""
        match step.detail:
            case None:
                return ()
            case Over(atoms):
                return (("over", self._names.of(atoms)),)
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
                    ("dim", self._names.of(old)[0]),
                    ("start", first),
                    ("stop", first + new[0].extent),
                    ("to", self._names.of(new)[0]),
                )
            case Join(parts, target):
                joined = tuple(self._names.of(p)[0] for p in parts)
                return (("dims", joined), ("to", self._names.of(target)[0]))

    def _renaming(self, pairs: tuple[tuple[Atom, Atom], ...]) -> Attrs | None:
        changed = [
            (a, b)
            for old, new in pairs
            for a, b in zip(self._names.of((old,)), self._names.of((new,)), strict=True)
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
                result = result.times(self._names.factor(factor, power))
        return result

    def _value_name(self, stem: str) -> str:
        names = (f"{stem}{i}" for i in count(1))
        name = next(n for n in names if n not in self._taken)
        self._taken.add(name)
        return name

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
            self._values[handle.value], TensorType(dtype, self._names.axes(handle))
        )
