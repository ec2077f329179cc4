"""Names for the dims and values of a trace, and nodes made of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count

from mirage_dsl.errors import UnsupportedError
from mirage_dsl.frontend.dims import Atom, Atoms, Extent, Unifier, product
from mirage_dsl.frontend.steps import (
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
from mirage_dsl.ir.graph import Apply, Attrs, Input, KernelNode, Return
from mirage_dsl.ir.infer import apply_type
from mirage_dsl.types import Dim, Scalar, TensorType

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
