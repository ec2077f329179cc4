"""Variances of long rows, combined from the means and variances of their parts.

A block that centres a row holds all of it, or waits until other blocks have its mean.
Parts need not wait: about its own mean each has a sum of squares, and whatever a row is
centred about, these say what its squares are.  Before → after, with r = (o, i), c any
value without i, and a, q all that the rest has to know of the parts:

    c = mean of x over(o, i)               a = mean of x over(i)
    t = sum (x - c)² over(o, i)     ->     q = sum (x - a)² over(i)
                                           c = mean of a over(o)
                                           t = sum (q + |i| (a - c)²) over(o)

Nothing large is subtracted, so it is as accurate as what was written.  A dim of which
all would be too long is cut into `o` and `i` of lengths that divide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from mirage_dsl.core.types import (
    AxisNames,
    Dim,
    MemorySpace,
    Scalar,
    TensorType,
    f32,
    f64,
    flat_type,
)
from mirage_dsl.ir.canonical import FreshNames, free_name
from mirage_dsl.ir.check.graph import check
from mirage_dsl.ir.graph import (
    Apply,
    Attrs,
    AttrValue,
    KernelGraph,
    Operand,
    Return,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents, with_derived_extents
from mirage_dsl.ir.walk import depending, live, makers, renamed, with_operands
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.ops.table import ADD, CAST, FLATTEN, MUL, SUB, SUM, UNFLATTEN
from mirage_dsl.rewrite.expand import expand

LONGEST = 4096
"""Elements of a part, where nobody says."""

SHORTEST = 64
"""Parts of fewer elements say little less than their elements do."""


@dataclass(frozen=True)
class InParts:
    """A program whose rows are in parts.

    Attributes:
        program: It has the inputs of the whole, and returns both dims of one that is
            cut.
        whole: The program that it was made of.
        statistics: The values that are all that the rest knows of the parts.
        length: Elements of a part.
        cut: The dim that is two, with these, if there is one.
    """

    program: KernelGraph
    whole: KernelGraph
    statistics: tuple[str, ...]
    length: int
    cut: Cut | None

    @property
    def first(self) -> frozenset[str]:
        """The values that the statistics are made of, and they themselves."""
        nodes = live(self.program.applies, self.statistics)
        return frozenset(n.result for n in nodes)

    def restored(self, graph: KernelGraph) -> KernelGraph:
        """A μGraph of the program as one of the whole."""
        if self.cut is None:
            return replace(graph, returns=self.whole.returns)
        nodes = list(graph.nodes)
        for own, wanted in zip(graph.returns, self.whole.returns, strict=True):
            if own.value != wanted.value:
                nodes.append(self.cut.undone(own.value, wanted.value))
        restored = replace(graph, nodes=tuple(nodes), returns=self.whole.returns)
        return with_derived_extents(restored)


@dataclass(frozen=True)
class Cut:
    """A dim, and the two of which it is made.

    Attributes:
        dim: Its name.
        parts: Names of the dim over parts and of the dim within one.
        count: How many parts there are.
        length: Elements of a part.
    """

    dim: str
    parts: tuple[str, str]
    count: int
    length: int

    def names(self, names: Sequence[str]) -> tuple[str, ...]:
        """Dims with the two in the place of the one."""
        return tuple(n for name in names for n in self._of(name))

    def _of(self, name: str) -> tuple[str, ...]:
        return self.parts if name == self.dim else (name,)

    def constant(self, number: Scalar) -> Scalar:
        """A constant by the extents of the two."""
        powers = dict(number.extents)
        power = powers.pop(self.dim, 0)
        both = {part: power for part in self.parts if power}
        return Scalar(number.value, tuple(sorted({**powers, **both}.items())))

    def type(self, kind: TensorType) -> TensorType:
        """The type of a tensor with both."""
        dims = tuple(map(Dim, self.names(kind.names)))
        return flat_type(kind.dtype, dims, MemorySpace.DEVICE)

    def view(self, made: str, value: str) -> Apply:
        """A value seen with both."""
        gives = AxisNames(tuple((p,) for p in self.parts))
        attrs: Attrs = (("dim", self.dim), ("gives", gives))
        return Apply(made, UNFLATTEN, (value,), attrs)

    def undone(self, value: str, made: str) -> Apply:
        """A value that has both seen with the one."""
        dims = AxisNames(tuple((p,) for p in self.parts))
        attrs: Attrs = (("of", dims), ("to", self.dim))
        return Apply(made, FLATTEN, (value,), attrs)


def combined_variances(program: KernelGraph) -> KernelGraph | None:
    """The program with the squares of long rows combined from those of parts."""
    found = in_parts(program)
    return None if found is None else found.restored(found.program)


def in_parts(program: KernelGraph, longest: int = LONGEST) -> InParts | None:
    """The program with rows in parts; None where no squares of long rows are summed.

    Args:
        program: Primitive operators only, of known extents.
        longest: Elements that a part has at most.
    """
    squares = _Squares.of(program)
    part = None if squares is None else _Places(program, squares).part(longest)
    if squares is None or part is None:
        return None
    found = _Writer(program, squares, part).found()
    return None if found is None or check(found.program) else found


def read_in_turn(program: KernelGraph) -> list[frozenset[str]]:
    """What is read for sums of rows, each time before more of the row is read.

    The inputs of a value for its mean, and again for its squares where those of some
    result wait for them; nothing where no squares of rows are summed.
    """
    squares = _Squares.of(program)
    if squares is None:
        return []
    above = live(program.applies, [squares.value])
    read = {v for n in above for v in n.values} | {squares.value}
    inputs = frozenset(i.name for i in program.inputs if i.name in read)
    long = any(set(squares.over) & set(r.type.names) for r in program.returns)
    return [inputs] * (2 if long else 1)


def looked_at(program: KernelGraph) -> set[str]:
    """Inputs and views of them, which cost nothing."""
    there = {i.name for i in program.given}
    for node in program.applies:
        if node.is_view and there.issuperset(node.values):
            there.add(node.result)
    return there


# -- Sums of squares -------------------------------------------------------------------


@dataclass(frozen=True)
class _Squares:
    """A sum of squares of a value about some centre that waits for the value's sum.

    Attributes:
        value: The value.
        over: The dims of the rows.
    """

    value: str
    over: tuple[str, ...]

    @staticmethod
    def of(program: KernelGraph) -> _Squares | None:
        """The first sum of squares of floats in a program."""
        made, types = makers(program), kernel_types(program)
        for node in program.applies:
            for value, centre in _centred(node, made):
                kind = types[value]
                over = tuple(d for d in node.over if d in kind.names)
                found = _Squares(value, over)
                if kind.dtype.is_float and found.waits(program, centre):
                    return found
        return None

    def waits(self, program: KernelGraph, centre: str) -> bool:
        """Whether the centre depends on a sum of the value over the rows."""
        rows = set(self.over)
        sums = [
            n.result
            for n in program.applies
            if n.op is SUM and n.operands == (self.value,) and rows <= set(n.over)
        ]
        return bool(rows) and centre in depending(program.applies, sums)


def _centred(node: Apply, made: Mapping[str, Apply]) -> Iterator[tuple[str, str]]:
    """Each value and centre of whose difference a node sums squares."""
    square = made.get(node.values[0]) if node.op is SUM else None
    if square is None or square.op is not MUL:
        return
    first, second = square.operands
    difference = made.get(first) if isinstance(first, str) else None
    if first != second or difference is None or difference.op is not SUB:
        return
    value, centre = difference.operands
    if isinstance(value, str) and isinstance(centre, str):
        yield value, centre
        yield centre, value


@dataclass(frozen=True)
class _Part:
    """What a part of a row is: its dims, its elements, and the dim that was cut."""

    inner: frozenset[str]
    length: int
    cut: Cut | None


@dataclass(frozen=True)
class _Places:
    """Where the rows of a value lie in memory, and which dims are of the parts."""

    program: KernelGraph
    squares: _Squares

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """Types of all values."""
        return kernel_types(self.program)

    def part(self, longest: int) -> _Part | None:
        """What a part is; None if it is the row, or short."""
        extents = derived_extents(self.program, self.program.extent_of)
        inner: list[str] = []
        length, cut = 1, None
        for dim in reversed(self._in_memory()):
            extent = extents[dim]
            if extent is None:
                return None
            if length * extent <= longest:
                inner.append(dim)
                length *= extent
                continue
            most = longest // length
            some = next((n for n in range(most, 1, -1) if extent % n == 0), 1)
            if some > 1 and self._may_cut(dim):
                cut = self._cut(dim, extent // some, some)
                inner.append(cut.parts[1])
                length *= some
            break
        whole = cut is None and len(inner) == len(self.squares.over)
        short = length < SHORTEST
        return None if whole or short else _Part(frozenset(inner), length, cut)

    def _in_memory(self) -> tuple[str, ...]:
        """The dims of the rows, in the order of an input that has them all, if any."""
        own = set(self.squares.over)
        made = live(self.program.applies, [self.squares.value])
        read = {v for n in made for v in n.values} | {self.squares.value}
        names = [i.type.names for i in self.program.inputs if i.name in read]
        names.append(self.types[self.squares.value].names)
        order = next(n for n in names if own <= set(n))
        return tuple(n for n in order if n in own)

    def _may_cut(self, dim: str) -> bool:
        """Whether nothing that is computed takes the dim for what it is."""
        there = looked_at(self.program)
        computed = [n for n in self.program.applies if n.result not in there]
        named = [
            value
            for node in computed
            for name, value in node.attrs
            if name != "over" or node.op.kind is Kind.CONTRACTION
        ]
        indexed = any(dim in i.type.names for i in self.program.indices)
        if indexed or any(_names(value, dim) for value in named):
            return False
        read = {v for n in computed for v in n.values} & there
        kinds = [self.types[v] for v in sorted(read)]
        kinds += [r.type for r in self.program.returns]
        returned = {r.value for r in self.program.returns if dim in r.type.names}
        return returned.isdisjoint(there) and all(
            kind.order == tuple(range(len(kind.axes)))
            and all(len(axis) == 1 for axis in kind.axes if Dim(dim) in axis)
            for kind in kinds
            if dim in kind.names
        )

    def _cut(self, dim: str, count: int, length: int) -> Cut:
        taken = set(self.program.extent_of)
        outer = free_name(f"{dim}_part", taken)
        inner = free_name(f"{dim}_in", {*taken, outer})
        return Cut(dim, (outer, inner), count, length)


def _names(value: AttrValue, dim: str) -> bool:
    """Whether an attribute names a dim."""
    if isinstance(value, AxisNames):
        return dim in value.names
    return value == dim or (isinstance(value, tuple) and dim in value)


def _computed_again(
    program: KernelGraph, value: str, statistics: Sequence[str]
) -> KernelGraph:
    """The program in which the parts alone read a copy of a value without sums.

    So it is computed twice, element by element, and not stored.
    """
    there = looked_at(program)
    above = live(program.applies, [value])
    made = {n.result for n in above if n.result not in there}
    if any(
        n.op.kind is not Kind.ELEMENTWISE and n.op is not CAST
        for n in above
        if n.result in made
    ):
        return program
    names = FreshNames(program)
    copies = {name: names.fresh(f"{name}_again") for name in sorted(made)}
    ahead = {n.result for n in live(program.applies, statistics)} - made
    nodes: list[Apply] = []
    for node in program.applies:
        own = with_operands(node, copies)
        nodes.append(own if node.result in ahead else node)
        if node.result in made:
            nodes.append(replace(own, result=copies[node.result]))
    # Where nothing but the parts reads the value, the copy is the only one.
    kept = live(nodes, [r.value for r in program.returns])
    return replace(program, nodes=tuple(kept))


# -- The program in parts --------------------------------------------------------------


@dataclass
class _Writer:
    """Writes the program node by node."""

    program: KernelGraph
    squares: _Squares
    part: _Part
    nodes: list[Apply] = field(default_factory=list[Apply])
    seen: dict[str, str] = field(default_factory=dict[str, str])
    """Inputs as they are seen with the dims of a cut."""

    def __post_init__(self) -> None:
        self.inner, self.cut = self.part.inner, self.part.cut
        self.names = FreshNames(self.program)
        self.types = kernel_types(self.program)
        self.made = makers(self.program)
        self.over = self._both(self.squares.over)
        self.free = looked_at(self.program)
        self.length = Scalar(Fraction(1), tuple((d, 1) for d in sorted(self.inner)))

    def found(self) -> InParts | None:
        """The program in parts."""
        for item in self.program.inputs:
            self._see_cut(item.name)
        if self.squares.value not in self.made:
            self._statistics()
        for node in self.program.applies:
            if node.result in self.free:
                self.nodes.append(node)
                self._see_cut(node.result)
            else:
                self._write(node)
            if node.result == self.squares.value:
                self._statistics()
        statistics = (self.mean, self.sum)
        written = self._returning()
        program = expand(written)
        kept = {n.result for n in program.applies}.issuperset(statistics)
        if not kept or program.returns != written.returns:
            # Some of them are equal to what the program has anyway.
            return None
        program = _computed_again(program, self.squares.value, statistics)
        return InParts(program, self.program, statistics, self.part.length, self.cut)

    def _see_cut(self, value: str) -> None:
        """Look at an input, or a view of one, with both dims of the cut."""
        if self.cut is not None and self.cut.dim in self.types[value].names:
            self.seen[value] = self.names.fresh(f"{value}_parts")
            self.nodes.append(self.cut.view(self.seen[value], value))

    def _both(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(names) if self.cut is None else self.cut.names(names)

    # -- The parts ---------------------------------------------------------------------

    def _statistics(self) -> None:
        """The mean of each part, and the sum of squares about it, in f32."""
        value = self.seen.get(self.squares.value, self.squares.value)
        kind = self.types[self.squares.value].dtype
        if kind not in (f32, f64):
            wide = self.names.fresh(f"{self.squares.value}_wide")
            attrs: Attrs = (("dtype", f32.name),)
            self.nodes.append(Apply(wide, CAST, (value,), attrs))
            value = wide
        over: Attrs = (("over", tuple(d for d in self.over if d in self.inner)),)
        one = Scalar(Fraction(1), tuple((d, -1) for d in sorted(self.inner)))
        total = self._node("part", SUM, (value,), over)
        self.mean = self._node("mean", MUL, (total, one))
        difference = self._node("off", SUB, (value, self.mean))
        square = self._node("off2", MUL, (difference, difference))
        self.sum = self._node("squares", SUM, (square,), over)

    # -- The rest ----------------------------------------------------------------------

    def _write(self, node: Apply) -> None:
        """A node, by the parts if it sums the value, or its squares, over them."""
        node = self._in_both(node)
        whole = self.inner < set(node.over)
        centre = self._centre(node) if whole else None
        over: Attrs = (("over", tuple(d for d in node.over if d not in self.inner)),)
        if whole and node.op is SUM and node.operands == (self.squares.value,):
            total = self._node("total", SUM, (self.mean,), over)
            product = (total, self.length)
            self.nodes.append(Apply(node.result, MUL, product, (), node.location))
        elif centre is not None:
            off = self._node("apart", SUB, (self.mean, centre))
            square = self._node("apart2", MUL, (off, off))
            weighted = self._node("weighted", MUL, (square, self.length))
            joined = self._node("joined", ADD, (self.sum, weighted))
            self.nodes.append(replace(node, operands=(joined,), attrs=over))
        else:
            self.nodes.append(with_operands(node, self.seen))

    def _centre(self, node: Apply) -> str | None:
        """What the squares that a node sums are about, if that lacks the part."""
        for value, centre in _centred(node, self.made):
            names = self._both(self.types[centre].names)
            if value == self.squares.value and self.inner.isdisjoint(names):
                return self.seen.get(centre, centre)
        return None

    def _in_both(self, node: Apply) -> Apply:
        """A node with the dims of the cut."""
        cut = self.cut
        if cut is None:
            return node
        attrs = tuple(
            (n, cut.names(v)) if n == "over" and isinstance(v, tuple) else (n, v)
            for n, v in node.attrs
        )
        operands = tuple(
            cut.constant(o) if isinstance(o, Scalar) else o for o in node.operands
        )
        return replace(node, operands=operands, attrs=attrs)

    def _node(
        self,
        base: str,
        op: Operator,
        operands: tuple[Operand, ...],
        attrs: Attrs = (),
    ) -> str:
        made = self.names.fresh(f"{self.squares.value}_{base}")
        self.nodes.append(Apply(made, op, renamed(operands, self.seen), attrs))
        return made

    # -- What is returned --------------------------------------------------------------

    def _returning(self) -> KernelGraph:
        """The program, whose results have the formats that they had."""
        graph = replace(self.program, nodes=tuple(self.nodes))
        if self.cut is not None:
            sizes = (self.cut.count, self.cut.length)
            graph = graph.with_extents(dict(zip(self.cut.parts, sizes, strict=True)))
        types = kernel_types(replace(graph, returns=()))
        own = {r.value: self._returned(r) for r in self.program.returns}
        new = {old: made.value for old, made in own.items() if made.value != old}
        casts: list[Apply] = []
        for old, made in own.items():
            if types[old].dtype != made.type.dtype:
                new[old] = self.names.fresh(f"{old}_wide")
                attrs: Attrs = (("dtype", made.type.dtype.name),)
                casts.append(Apply(made.value, CAST, (new[old],), attrs))
        nodes = [
            replace(with_operands(n, new), result=new.get(n.result, n.result))
            for n in self.nodes
        ]
        returns = tuple(own[r.value] for r in self.program.returns)
        return replace(graph, nodes=(*nodes, *casts), returns=returns)

    def _returned(self, item: Return) -> Return:
        """A result with the dims that it has in parts."""
        if self.cut is None or self.cut.dim not in item.type.names:
            return item
        name = self.names.fresh(f"{item.value}_parts")
        return replace(item, value=name, type=self.cut.type(item.type))
