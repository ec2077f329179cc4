"""Casts: before products, and roundings that nothing shows.

The matrix unit takes operands of one storage format.  Inside a block all arithmetic is
f32, so a product of a computed value and a loaded tile has unequal operands.
Before → after, where x and w are f16:

    p = matmul xn, wt          xn_f16 = cast xn to f16
                               p = matmul xn_f16, wt

A computed value is cast to the format that it has in the unfused program: the one that
the tensors it depends on are stored in, or f32 if they differ.  So programs of f32
tensors get no casts.  Floats of 8 bits are in all other floats, and so are integers up
to 256, of whatever format; they go with any.  What the program rounds to a format of 16
bits before it multiplies matrices with what comes of it is as coarse as that: tables of
f32 for rotations, slopes by which positions are multiplied.

There are no products of matrices of integers, so those are sums of products:

    p = matmul i, j, over=k  →  p_each = mul i, j
                                p = sum p_each, over=k

A function that asks for a narrower format, as `x.half()`, rounds.  Most often that is
storage: what is computed of it is rounded as coarsely again, and a kernel may keep the
finer number.  It is more where a finer format goes on with the rounded number:

    h = round_f16 x          x - h is what the rounding took, and not 0
    y = to_i32 h             2049 becomes 2048

So a rounding stays where a path leads from it to a result of a finer format, or to an
operator that jumps where its operand moves a little.  Before → after, elsewhere:

    r = round_f16 x          h = cast x dtype(f16)
    h = cast r dtype(f16)    p = matmul h, w
    p = matmul h, w

A cast may overflow where f32 does not.  Where a candidate turns out to be unstable,
products with vectors, which the matrix unit has little use for, become sums:

    h = cast y to f16         e = mul y, v
    p = matmul h, v, over=k → p = sum e, over=k

What small integers are less others, as weights of 4 bits less their zero points, is
subtracted as well once they are floats, and then it is a sum like any other: one that a
search takes products apart by.

    d = sub q, z             a = to_f32 q
    f = to_f32 d        →    b = to_f32 z
                             f = sub a, b
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_dsl.core.types import DType, TensorType, Types, boolean, f16, f32, promote
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.ranges import (
    Whole,
    kept,
    range_of,
    range_of_format,
    range_of_number,
    within,
)
from mirage_dsl.ir.canonical import FreshNames, longer_name
from mirage_dsl.ir.infer import (
    block_node_type,
    block_types,
    keep_block_types,
    kernel_types,
)
from mirage_dsl.ir.walk import (
    bypassed,
    users,
    with_operands,
    with_returned,
    without_dead,
)
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Kind

# -- Casts before products -------------------------------------------------------------

SMALL = Whole(-256, 256)
"""Integers that bf16 holds, and f16."""
LARGEST = Whole(-65504, 65504)
"""Beyond these numbers f16 has infinity."""


def _is_small(known: Whole | None) -> bool:
    """Whether all floats of 16 bits hold integers."""
    return known is not None and within(known, SMALL)


def without_casts(block: ir.BlockGraph) -> ir.BlockGraph:
    """The block before casts, which only the sizing puts in."""
    return bypassed(block, lambda node: "dtype" in node.op.attributes)


def insert_casts(
    block: ir.BlockGraph,
    outer: Types,
    unfused: Mapping[str, DType] | None = None,
    coarse: Mapping[str, DType] | None = None,
) -> ir.BlockGraph:
    """The same block with equal operand dtypes at every product.  Idempotent.

    Args:
        block: The block; its products may have unequal operand dtypes.
        outer: Types of the kernel-level tensors that it loads.
        unfused: Formats that tensors have in the unfused program, where an earlier
            kernel stored them in another one.
        coarse: What `coarse_tensors` says of the program.
    """
    caster = _Caster(block, outer, unfused or {}, coarse or {})
    for node in block.nodes:
        caster.add(node)
    made = replace(block, nodes=tuple(caster.nodes))
    keep_block_types(made, outer, caster.types)
    return made


class _Caster:
    """Copies nodes one by one and puts casts where they are needed."""

    def __init__(
        self,
        block: ir.BlockGraph,
        outer: Types,
        unfused: Mapping[str, DType],
        coarse: Mapping[str, DType],
    ) -> None:
        self.block = block
        self.outer = outer
        self.unfused = unfused
        self.coarse = coarse
        self.nodes: list[ir.BlockNode] = []
        self.types: dict[str, TensorType] = {}
        self.storage: dict[str, DType] = {}
        """The format that each value has in the unfused program."""
        self.ranges: dict[str, Whole | None] = {}
        """What is known of whole numbers."""
        self.wide: set[str] = set()
        """What hangs on integers of more than a byte, other than coarse ones."""
        self.of_coarse: set[str] = set()
        """Coarse integers, and those that are computed of them."""
        self.casts: dict[tuple[str, DType], str] = {}
        self.names = {n.result for n in block.nodes}

    def add(self, node: ir.BlockNode) -> None:
        """Append `node`, its operands cast if it is a product."""
        if isinstance(node, ir.Apply) and node.op.kind is Kind.CONTRACTION:
            whole = promote(*(self.types[v].dtype for v in node.values)).is_integer
            node = self._multiplied(node) if whole else self._product(node)
        self._append(node)

    def _append(self, node: ir.BlockNode) -> None:
        self.nodes.append(node)
        inferred = block_node_type(node, self.block, self.types, self.outer)
        match node:
            case ir.Load():
                stored = self.unfused.get(node.source, inferred.dtype)
                if node.source in self.coarse:
                    stored = self.coarse[node.source]
                    self.of_coarse.add(node.result)
                self.storage[node.result] = boolean if stored.only_stores else stored
            case ir.Apply():
                attrs = dict(node.attrs)
                own = "dtype" in attrs or inferred.dtype == boolean
                own = own or node.op.gives is not None
                stored = inferred.dtype if own else self._common(node.values)
                if stored.only_stores:
                    stored = boolean
                if self.of_coarse.issuperset(node.values) and inferred.dtype.is_integer:
                    self.of_coarse.add(node.result)
                if inferred.dtype == f32 and "dtype" not in attrs:
                    stored = self._computed(node, stored)
                self.storage[node.result] = stored
                if node.op is table.CAST:
                    self.casts[node.values[0], inferred.dtype] = node.result
            case ir.Accumulate() | ir.RunningMax():
                self.storage[node.result] = self.storage[node.operand]
            case ir.Store():
                return
        self.types[node.result] = inferred
        self.ranges[node.result] = self._range(node, inferred.dtype)

    def _computed(self, node: ir.Apply, stored: DType) -> DType:
        """The format of what is computed, of values that may be small integers.

        Those go with any, as all floats hold them, and so does what is known to be as
        small.  What else is computed of integers of more than a byte is of f32, as in
        the program; of bytes it is as coarse as what it is computed with.
        """
        known, becomes = self._range(node, f32), node.op.gives == f32
        bytes_ = all(
            self.types[v].dtype.itemsize == 1 or v in self.of_coarse
            for v in node.values
        )
        if (becomes and not bytes_) or not self.wide.isdisjoint(node.values):
            self.wide.add(node.result)
            return boolean if _is_small(known) else f32
        if becomes:
            return boolean
        return f32 if known is not None and not within(known, LARGEST) else stored

    def _range(self, node: ir.BlockNode, dtype: DType) -> Whole | None:
        """Between which numbers the integers of a node are."""
        if not isinstance(node, ir.Apply):
            return range_of_format(dtype)
        known = [self._known(o) for o in node.operands]
        return kept(range_of(node.op, known), dtype)

    def _known(self, operand: ir.Operand) -> Whole | None:
        if isinstance(operand, str):
            return self.ranges.get(operand)
        return range_of_number(operand.exact_at({}))

    def _common(self, values: tuple[str, ...]) -> DType:
        return promote(*(self.storage[v] for v in values))

    def _multiplied(self, node: ir.Apply) -> ir.Apply:
        """The sum of what is multiplied before it."""
        name = longer_name(f"{node.result}_each", self.names)
        self._append(ir.Apply(name, table.MUL, node.operands, location=node.location))
        return replace(node, op=table.SUM, operands=(name,))

    def _product(self, node: ir.Apply) -> ir.Apply:
        target = self._common(node.values)
        if target == boolean:
            target = f16
        operands = tuple(
            self._cast(o, target) if isinstance(o, str) else o for o in node.operands
        )
        return replace(node, operands=operands)

    def _cast(self, value: str, dtype: DType) -> str:
        if self.types[value].dtype == dtype:
            return value
        if (value, dtype) in self.casts:
            return self.casts[value, dtype]
        name = longer_name(f"{value}_{dtype}", self.names)
        cast = ir.Apply(name, table.CAST, (value,), (("dtype", dtype.name),))
        self._append_after(value, cast)
        return name

    def _append_after(self, value: str, cast: ir.Apply) -> None:
        """Put the cast right behind its operand, so that it stays in its stage."""
        self._append(cast)
        self.nodes.pop()
        at = next(
            i
            for i, n in enumerate(self.nodes)
            if not isinstance(n, ir.Store) and n.result == value
        )
        self.nodes.insert(at + 1, cast)


def without_narrow_vectors(graph: ir.KernelGraph) -> ir.KernelGraph | None:
    """The μGraph with sums for products of casts with vectors; None without those.

    A vector has no dim that the other operand lacks.
    """
    outer, names = kernel_types(graph), FreshNames(graph)
    nodes = tuple(
        _with_sums(n, outer, names) if isinstance(n, ir.BlockGraph) else n
        for n in graph.nodes
    )
    if nodes == graph.nodes:
        return None
    return without_dead(replace(graph, nodes=nodes))


def _with_sums(block: ir.BlockGraph, outer: Types, names: FreshNames) -> ir.BlockGraph:
    """The block with sums for products of casts with vectors."""
    types = block_types(block, outer)
    casts = {n.result: n.values[0] for n in block.applies if n.op is table.CAST}
    nodes: list[ir.BlockNode] = []
    for node in block.nodes:
        if isinstance(node, ir.Apply) and _is_with_vector(node, types, casts):
            wide = tuple(casts.get(v, v) for v in node.values)
            each = names.fresh(f"{node.result}_each")
            nodes.append(ir.Apply(each, table.MUL, wide, location=node.location))
            node = replace(node, op=table.SUM, operands=(each,))
        nodes.append(node)
    return replace(block, nodes=tuple(nodes))


def _is_with_vector(node: ir.Apply, types: Types, casts: Mapping[str, str]) -> bool:
    """Whether a node is a product of a cast, one operand of which is a vector."""
    if node.op.kind is not Kind.CONTRACTION or casts.keys().isdisjoint(node.values):
        return False
    one, other = (frozenset(types[v].names) for v in node.values)
    return one <= other or other <= one


def coarse_tensors(program: ir.KernelGraph) -> dict[str, DType]:
    """Inputs and positions that reach products only as floats of 16 bits.

    Those of wider formats, each with the format that what is computed of it is rounded
    to.  What is compared, or picks elements, carries no format.
    """
    types, read = kernel_types(program), users(program.nodes)
    found: dict[str, DType] = {}
    for given in program.given:
        if types[given.name].dtype.itemsize > f16.itemsize:
            rounded = _rounded_to(given.name, types, read)
            if len(rounded) == 1 and None not in rounded:
                found.update((given.name, d) for d in rounded if d is not None)
    return found


def _rounded_to(
    name: str, types: Types, read: Mapping[str, Sequence[ir.KernelNode]]
) -> set[DType | None]:
    """The formats of 16 bits that a tensor is rounded to; None: a product reads it."""
    waiting, met, found = [name], {name}, set[DType | None]()
    while waiting:
        value = waiting.pop()
        for node in read.get(value, ()):
            if not isinstance(node, ir.Apply) or node.op.kind is Kind.LIBRARY:
                return {None}
            made = types[node.result].dtype
            picks = node.op.kind is Kind.GATHER and node.values[0] != value
            if made == boolean or picks:
                continue
            to = _ROWS.get(node.op, made)
            if node.op.kind is Kind.CONTRACTION:
                found.add(None)
            elif not to.is_integer and to.itemsize == f16.itemsize:
                found.add(to)
            elif node.result not in met:
                met.add(node.result)
                waiting.append(node.result)
    return found


# -- Floats before sums ----------------------------------------------------------------


def with_early_floats(program: ir.KernelGraph) -> ir.KernelGraph:
    """The same program whose sums of two small integers are sums of floats.

    Args:
        program: A traced program.
    """
    types, read = kernel_types(program), users(program.nodes)
    made = {n.result: n for n in program.applies}
    ranges = _kernel_ranges(program, types)
    names, returned = set(types), {r.value for r in program.returns}
    later: dict[str, ir.Apply] = {}
    gone: set[str] = set()
    for node in program.applies:
        total = made.get(node.values[0]) if node.op is table.CONVERSIONS[f32] else None
        if (
            total is None
            or total.op not in (table.ADD, table.SUB)
            or total.result in returned
        ):
            continue
        alone = len(read[total.result]) == 1 and len(total.values) == total.op.arity
        given = [ranges.get(v) for v in total.values]
        found = range_of(total.op, given) if alone else None
        # An integer that wraps around is no difference.
        exact = found is not None and kept(found, types[total.result].dtype) == found
        if exact and all(map(_is_small, (*given, found))):
            later[node.result] = total
            gone.add(total.result)
    if not later:
        return program
    nodes: list[ir.KernelNode] = []
    for node in program.nodes:
        if not isinstance(node, ir.Apply) or node.result not in later.keys() | gone:
            nodes.append(node)
        elif node.result in later:
            total, floats = later[node.result], list[str]()
            for value in total.values:
                floats.append(longer_name(f"{value}_f32", names))
                names.add(floats[-1])
                nodes.append(replace(node, result=floats[-1], operands=(value,)))
            nodes.append(replace(total, result=node.result, operands=tuple(floats)))
    return replace(program, nodes=tuple(nodes))


def _kernel_ranges(program: ir.KernelGraph, types: Types) -> dict[str, Whole | None]:
    """Between which numbers the integers of a program are."""
    found = {i.name: range_of_format(i.type.dtype) for i in program.inputs}
    for node in program.applies:
        known = [
            found.get(o) if isinstance(o, str) else range_of_number(o.exact_at({}))
            for o in node.operands
        ]
        dtype = types[node.result].dtype
        found[node.result] = kept(range_of(node.op, known), dtype)
    return found


# -- Roundings that nothing shows ------------------------------------------------------

_ROWS = {row: dtype for dtype, row in table.ROUNDINGS.items()}
_MOVES = (Kind.VIEW, Kind.GATHER, Kind.CONCAT)
_EXACT = (table.ABS, table.NEG, table.RELU, table.MAXIMUM, table.MINIMUM)
"""Operators that round nothing, beside those that move elements or select them."""


def without_unseen_roundings(program: ir.KernelGraph) -> ir.KernelGraph:
    """The same program without roundings that nothing shows.

    Args:
        program: A traced program.
    """
    roundings = [node for node in program.applies if node.op in _ROWS]
    seeing = _Seeing(program)
    unseen = {
        node.result: node.values[0]
        for node in roundings
        if not seeing.sees(node.result, _ROWS[node.op])
    }
    if not unseen:
        return program
    for name, value in unseen.items():
        unseen[name] = unseen.get(value, value)
    nodes = tuple(
        with_operands(n, unseen)
        for n in program.nodes
        if not (isinstance(n, ir.Apply) and n.result in unseen)
    )
    return with_returned(replace(program, nodes=nodes), unseen)


class _Seeing:
    """Who reads what in a program, and in which formats."""

    def __init__(self, program: ir.KernelGraph) -> None:
        self.users = users(program.nodes)
        self.types = kernel_types(program)
        self.returned = {r.value for r in program.returns}

    def sees(self, value: str, dtype: DType) -> bool:
        """Whether anything shows that a value was rounded to a format."""
        # What a rounding gives is in the wide format; its cast is the first reader.
        waiting, met = [value], {value}
        while waiting:
            name = waiting.pop()
            finer = not self.types[name].dtype.is_within(dtype)
            if name in self.returned and finer:
                return True
            for node in self.users[name]:
                if not isinstance(node, ir.Apply) or node.op.jumps:
                    return True
                if node.op in _ROWS:
                    if _ROWS[node.op] != dtype:
                        return True
                    continue
                found = self.types[node.result].dtype
                exact = node.op in _EXACT or node.op.selects
                moved = node.op.kind in _MOVES or node.op.chooses or exact
                if node.result not in met and (moved or not found.is_within(dtype)):
                    met.add(node.result)
                    waiting.append(node.result)
        return False
