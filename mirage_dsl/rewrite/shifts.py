"""Shifts that keep exponentials in range: taken out before the search, put back after.

Softmax is traced as `e = exp(x - rowshift(x))`, `e / sum(e)`.  The search works on the
program without shifts, where e is plainly `exp(x)`; the chosen μGraph then gets

    s = ...                        s = ...
    e = exp s                      t = rowshift(s, over k)
    a = accumulate(e ...)    ->    m = running_max t
                                   e = exp(s - m)
                                   a = accumulate(e ...) rescaled by m

and, where the parts of a split dim are combined by a later kernel, each part stores its
maximum and is weighted by exp(maximum - largest maximum) there.

What a logarithm is taken of gets its maximum back behind it: log a + m.

Exponentials that are added to each other, as those of a sum over a concatenated dim,
have one shift, the larger of theirs: what was summed relative to m is weighted by
exp(m - larger).

Exponentials of a later kernel that only meet such a sum, as in the quotient of a
softmax over long rows, take the shift of the sum, which is stored too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import Axis, Dim, Types, f32, scalar
from mirage_dsl.core.work import look
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.bounds import (
    Exponentials,
    NotHomogeneousError,
    Scaling,
    bare,
    needs_no_shift,
    scaling_of,
    shift_row,
)
from mirage_dsl.ir.canonical import FreshNames
from mirage_dsl.ir.check import check, check_or_raise
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.walk import (
    each_dim,
    makers,
    map_nodes,
    operands_of,
    read_by,
    users,
    with_operands,
    with_returned,
    without_dead,
)
from mirage_dsl.ir.write import OperatorWriter
from mirage_dsl.ops import table

# -- Exponentials that share a shift ---------------------------------------------------
#     e = exp(s)                          t = the shift of s
#     f = exp(u)                   ->     top = maximum(t, rowshift u)
#     y = sum e + sum f                   f = exp(u - top)
#
# and e, or what was summed of it relative to t, gets the weight exp(t - top).


def shifted_alike(
    block: ir.BlockGraph,
    types: Types,
    companions: Collection[str],
    shift: str,
    kept: Collection[str],
    names: FreshNames,
) -> tuple[list[ir.BlockNode], str, dict[str, ir.BlockNode]]:
    """A shift that is as large as any exponent, and the exponentials shifted by it.

    Args:
        block: The block of the companions.
        types: Of its values.
        companions: Their names.
        shift: Of the exponential that they are added to.
        kept: Names of the shift's dims.
        names: To take new ones from.

    Returns:
        New nodes, the name of the shift, and the new companions by their names; their
        exponents are among the new nodes.

    Raises:
        NotHomogeneousError: An exponent is another one in each iteration.
    """
    stages = ir.stages_of(block)
    nodes: list[ir.BlockNode] = []
    write = OperatorWriter(nodes, names)
    applied = [n for n in block.applies if n.result in companions]
    for node in applied:
        (largest,) = node.values
        if stages[largest] == "body":
            raise NotHomogeneousError
        over = tuple(d for d in types[largest].names if d not in kept)
        if over:
            largest = write("top", table.ROWSHIFT, largest, over=over)
        shift = write("larger", table.MAXIMUM, shift, largest)
    found: dict[str, ir.BlockNode] = {}
    for node in applied:
        moved = write("moved", table.SUB, node.values[0], shift)
        found[node.result] = replace(node, operands=(moved,))
    return nodes, shift, found


def sorted_by_reads(nodes: Sequence[ir.BlockNode]) -> tuple[ir.BlockNode, ...]:
    """The nodes, each behind what it reads, otherwise as they are.

    Raises:
        NotHomogeneousError: Some wait for each other.
    """
    left, found, made = list(nodes), list[ir.BlockNode](), set[str]()
    while left:
        ready = (n for n in left if made.issuperset(operands_of(n)))
        node = next(ready, None)
        if node is None:
            raise NotHomogeneousError
        left.remove(node)
        found.append(node)
        made.add(node.result)
    return tuple(found)


# -- Shifts taken out ------------------------------------------------------------------
#     y = x - shift    ->    y = x
#     y = x + shift    ->    y = x
#     y = shift - x    ->    y = x * -1
#
# Whatever is subtracted from all exponents of a row cancels, or what they all are
# subtracted from, or comes back behind a logarithm.


def strip_shifts(program: ir.KernelGraph) -> ir.KernelGraph:
    """The program without the shifts that are only subtracted or added."""
    shifts = _shifts(program)
    types = kernel_types(program)
    # A shift may have dims that the exponent lacks, as where it is one for all rows:
    # the exponential is without them then, unless something needs them.
    stripped = _without(program, _removable(program, shifts, None))
    if check(stripped):
        stripped = _without(program, _removable(program, shifts, types))
    return stripped


def _shifts(program: ir.KernelGraph) -> list[str]:
    """All shifts; one that is joined of others comes behind them."""
    made = makers(program)
    return [name for name in made if shift_row(made, name) is not None]


def _removable(
    program: ir.KernelGraph, shifts: Sequence[str], types: Types | None
) -> set[str]:
    """Shifts that are only subtracted, or read by such shifts.

    With types, only from what has all of their dims.
    """
    found: set[str] = set()
    read = users(program.nodes)
    returned = {r.value for r in program.returns}
    for shift in reversed(shifts):
        if shift not in returned and all(
            isinstance(n, ir.Apply)
            and (n.result in found or _moves(n, shift, shifts, types))
            for n in read[shift]
        ):
            found.add(shift)
    return found


def _moves(
    node: ir.Apply, shift: str, shifts: Collection[str], types: Types | None
) -> bool:
    """Whether it is `x ± shift`, or `shift ± x` where x is no shift itself."""
    if node.op not in (table.ADD, table.SUB):
        return False
    whole, row = node.operands
    value = whole if row == shift else row
    if not isinstance(value, str) or value == shift or (row in shifts and row != shift):
        return False
    return types is None or types[node.result].dims == types[value].dims


def _without(program: ir.KernelGraph, shifts: Collection[str]) -> ir.KernelGraph:
    names: dict[str, str] = {}

    def stripped(node: ir.KernelNode) -> Iterable[ir.KernelNode]:
        moved = with_operands(node, names)
        if not isinstance(moved, ir.Apply) or moved.op not in (table.ADD, table.SUB):
            return [moved]
        whole, row = moved.operands
        if moved.op is table.ADD and whole in shifts:
            whole, row = row, whole
        if row in shifts:
            assert isinstance(whole, str)
            names[moved.result] = whole
            return []
        if whole in shifts:
            return [replace(moved, op=table.MUL, operands=(row, scalar(-1)))]
        return [moved]

    return without_dead(with_returned(map_nodes(program, stripped), names))


# -- Shifts put back -------------------------------------------------------------------


def stabilise(mugraph: ir.KernelGraph) -> ir.KernelGraph | None:
    """The μGraph with running maxima, or None where no exponential can have one.

    An exponential gets a shift if it is summed and every output is independent of its
    scale, as in softmax; others stay as they are.  So does one that is proven to be in
    range without a shift.
    """
    graph, stable = mugraph, False
    for number, node in enumerate(mugraph.nodes):
        if isinstance(node, ir.Apply):
            continue
        for inner in node.applies:
            if inner.op is table.EXP:
                shifted = _shifted(graph, number, inner.result)
                graph, stable = shifted or graph, stable or shifted is not None
    for node in mugraph.applies:
        if node.op is table.EXP:
            shifted = _shifted_kernel(graph, node)
            graph, stable = shifted or graph, stable or shifted is not None
    return graph if stable else None


def _shifted(graph: ir.KernelGraph, number: int, result: str) -> ir.KernelGraph | None:
    """The graph with an exponential in range, by a shift where it needs one."""
    node = _bare(graph, number).get(result)
    if node is None:
        return None
    tried = (
        _shifted_together(graph, number, node, others)
        for others in _companions(graph, number, result)
    )
    return next((shifted for shifted in tried if shifted is not None), None)


def _companions(
    graph: ir.KernelGraph, number: int, result: str
) -> Iterator[Sequence[tuple[int, str]]]:
    """Exponentials that may share a shift with one: none, another one, all of them.

    Only those count that something is made of together with it: what another one scales
    is else not changed by its own.
    """
    yield ()
    places = range(number, len(graph.nodes))
    found = [(at, name) for at in places for name in _bare(graph, at)]
    group = {(number, result)}
    tied = _tied(graph, number, found)
    while any(group & some and not group >= some for some in tied):
        group.update(*(some for some in tied if group & some))
    others = [one for one in found if one in group and one != (number, result)]
    yield from ((other,) for other in others)
    if len(others) > 1:
        yield others


def _tied(
    graph: ir.KernelGraph, number: int, found: Sequence[tuple[int, str]]
) -> list[set[tuple[int, str]]]:
    """The exponentials among `found` that each value is made of, if of several."""
    tied: set[int] = set()
    stored: dict[str, int] = {}
    bits = {one: 1 << at for at, one in enumerate(found)}
    for at, node in enumerate(graph.nodes[number:], number):
        if isinstance(node, ir.Apply):
            stored[node.result] = _made_of(node.values, stored)
            tied.add(stored[node.result])
            continue
        inside: dict[str, int] = {}
        for inner in node.nodes:
            if isinstance(inner, ir.Load):
                mask = stored.get(inner.source, 0)
            else:
                mask = _made_of(operands_of(inner), inside)
            own = stored if isinstance(inner, ir.Store) else inside
            own[inner.result] = mask | bits.get((at, inner.result), 0)
            tied.add(own[inner.result])
    several = [mask for mask in tied if mask.bit_count() > 1]
    return [{one for one, bit in bits.items() if mask & bit} for mask in several]


def _made_of(values: Sequence[str], masks: Mapping[str, int]) -> int:
    """The exponentials that values are made of, one bit each."""
    found = 0
    for value in values:
        found |= masks.get(value, 0)
    return found


def _bare(graph: ir.KernelGraph, number: int) -> dict[str, ir.Apply]:
    """The exponentials of a block that have no shift, by name."""
    block = graph.nodes[number]
    if isinstance(block, ir.Apply):
        return {}
    return {n.result: n for n in bare(block)}


def _shifted_together(
    graph: ir.KernelGraph, number: int, node: ir.Apply, others: Exponentials
) -> ir.KernelGraph | None:
    """The graph with one shift for an exponential and others; None if that differs."""
    look()
    try:
        found = scaling_of(graph, number, node.result, others)
        if not found.summed and not found.accumulators:
            return None
        if needs_no_shift(graph, number, node, found) is not None:
            return graph
        shifted = _Shift(graph, number, node, found, others).run()
        check_or_raise(shifted)
    except (NotHomogeneousError, CheckError):
        return None
    return shifted


def _shifted_kernel(graph: ir.KernelGraph, node: ir.Apply) -> ir.KernelGraph | None:
    """An exponential that is a kernel of its own, shifted by two kernels before it."""
    if node not in bare(graph):
        return None
    number = graph.nodes.index(node)
    try:
        found = scaling_of(graph, number, node.result)
    except NotHomogeneousError:
        return None
    (exponent,) = node.values
    dims = kernel_types(graph)[exponent].names
    over = tuple(d for d in dims if d in found.summed)
    if not over or needs_no_shift(graph, number, node, found) is not None:
        return None
    made: list[ir.KernelNode] = []
    write = OperatorWriter(made, FreshNames(graph))
    top = write("top", table.ROWSHIFT, exponent, over=over)
    made.append(replace(node, operands=(write("moved", table.SUB, exponent, top),)))
    return map_nodes(graph, lambda n: made if n is node else n)


def _subtracts(node: ir.BlockNode, value: str) -> bool:
    """Whether a node is the difference of another value and this one."""
    if (
        not isinstance(node, ir.Apply)
        or node.op is not table.SUB
        or len(node.values) != 2
    ):
        return False
    return node.values[1] == value != node.values[0]


class _Shift:
    """An exponential of a block, and those that share it, getting a shift."""

    def __init__(
        self,
        graph: ir.KernelGraph,
        number: int,
        node: ir.Apply,
        found: Scaling,
        others: Exponentials,
    ) -> None:
        self.others = others
        block = graph.nodes[number]
        assert isinstance(block, ir.BlockGraph)
        self.graph, self.number, self.block = graph, number, block
        self.node, self.found = node, found
        self.names = FreshNames(graph)
        self.exponent = node.values[0]
        self.types = block_types(block, kernel_types(graph))
        # By stored logarithm that is left without its shift, the shift that is stored.
        self.apart: dict[str, str] = {}

    def run(self) -> ir.KernelGraph:
        nodes = list(self.graph.nodes)
        block, largest = self._own_block()
        if len(self.found.combined) > 1:
            # Each would choose a largest maximum of its own.
            raise NotHomogeneousError
        (last,) = self.found.combined or [self.number]
        later = self._later(last)
        logarithms = self.found.logarithms
        if not {last}.issuperset(logarithms) or (self.others and logarithms):
            raise NotHomogeneousError
        if self.found.combined:
            block, stored, axes = self._storing(block, largest)
            combining = nodes[last]
            assert isinstance(combining, ir.BlockGraph)
            combining, top = self._weighted(combining, stored, axes)
            if later:
                combining, stored, axes = self._storing_too(combining, stored, top)
                combining = self._in_f32(combining)
            nodes[last] = combining
            self._follow(nodes, later, stored, axes)
        elif later:
            block, stored, axes = self._storing(block, largest)
            block = self._in_f32(block)
            self._follow(nodes, later, stored, axes)
        elif self.others:
            block = self._with_companions(block, largest)
        elif logarithms:
            block = self._put_back(block, *self._last(largest))
            block = self._without_limits(block, largest)
        nodes[self.number] = block
        moved = (self._moved_first_later(n) for n in nodes)
        return replace(self.graph, nodes=tuple(moved))

    def _later(self, last: int) -> list[int]:
        """The kernels behind `last` whose exponentials share the shift; or none.

        Raises:
            NotHomogeneousError: Some are ahead of it, or some in it and some behind.
        """
        places = {at for at, _ in self.others}
        later = sorted(at for at in places if at > last)
        if len(later) < len(places) and (later or places != {last}):
            raise NotHomogeneousError
        return later

    @property
    def _runs(self) -> bool:
        """Whether the shift grows from one iteration to the next."""
        in_body = ir.stages_of(self.block)[self.node.result] == "body"
        return bool(self.found.accumulators) and in_body

    @property
    def _companions(self) -> set[str]:
        return {name for _, name in self.others}

    def _own_block(self) -> tuple[ir.BlockGraph, str]:
        """The block with the shift, and the name of the shift."""
        nodes: list[ir.BlockNode] = []
        shift, running = "", self._runs
        for node in self.block.nodes:
            if isinstance(node, ir.Apply) and node.result == self.node.result:
                made, shift = self._shift_nodes(running)
                nodes += made
            elif isinstance(node, ir.Accumulate) and running:
                scaled = node.result in self.found.accumulators
                nodes.append(replace(node, rescale=shift) if scaled else node)
            else:
                nodes.append(node)
        return replace(self.block, nodes=tuple(nodes)), shift

    def _shift_nodes(self, running: bool) -> tuple[list[ir.BlockNode], str]:
        dims = self.types[self.exponent].names
        over = tuple(d for d in dims if d in self.found.summed)
        nodes: list[ir.BlockNode] = []
        write = OperatorWriter(nodes, self.names)
        shift = self.exponent
        if over:
            shift = write("top", table.ROWSHIFT, shift, over=over)
        if self.found.logarithms:
            # Finite: of an infinite row log Σ exp is infinite, not NaN.
            largest = Fraction(f32.max)
            least = write("least", table.MAXIMUM, shift, scalar(-largest))
            shift = write("limited", table.MINIMUM, least, scalar(largest))
        if running:
            nodes.append(ir.RunningMax(self.names.fresh("largest"), shift))
            shift = nodes[-1].result
        if shift == self.exponent:
            raise NotHomogeneousError
        moved = write("moved", table.SUB, self.exponent, shift)
        nodes.append(replace(self.node, operands=(moved,)))
        return nodes, shift

    def _without_limits(self, block: ir.BlockGraph, limited: str) -> ir.BlockGraph:
        """The block with the shift as it is, where it is subtracted and no more.

        What is left of an infinite row is NaN then, as where the program subtracts
        its maximum.
        """
        made = makers(block)
        readers = [n for n in block.nodes if limited in operands_of(n)]
        if self._runs or not all(_subtracts(n, limited) for n in readers):
            return block
        (least,) = operands_of(made[limited])
        (shift,) = operands_of(made[least])
        names = {limited: shift}
        kept = (n for n in block.nodes if n.result not in (least, limited))
        return replace(block, nodes=tuple(with_operands(n, names) for n in kept))

    def _with_companions(self, block: ir.BlockGraph, shift: str) -> ir.BlockGraph:
        """The block with the larger one of all shifts in the place of its own."""
        own = self.types[self.exponent].names
        kept = [d for d in own if d not in self.found.summed]
        largest, added = self._last(shift)
        scaled = dict[str, str]()
        if self._runs:
            fresh = self.names.fresh
            scaled = {a: fresh(f"{a}_weighted") for a in self.found.accumulators}
        nodes, top, companions = shifted_alike(
            self.block, self.types, self._companions, largest, kept, self.names
        )
        added += nodes
        weight = self._weight(largest, top, added) if scaled else ""
        for node in block.nodes:
            shifts = isinstance(node, ir.Apply) and node.operands == (
                self.exponent,
                shift,
            )
            if shifts and not scaled:
                added.append(replace(node, operands=(self.exponent, top)))
            else:
                alike = companions.get(node.result)
                added.append(alike or with_operands(node, scaled))
            if node.result in scaled:
                added.append(
                    ir.Apply(scaled[node.result], table.MUL, (node.result, weight))
                )
        return replace(block, nodes=sorted_by_reads(added))

    def _weight(self, maximum: str, top: str, nodes: list[ir.BlockNode]) -> str:
        """exp(maximum - top), the weight of what was summed relative to a maximum."""
        write = OperatorWriter(nodes, self.names)
        return write("weight", table.EXP, write("moved", table.SUB, maximum, top))

    def _last(self, shift: str) -> tuple[str, list[ir.BlockNode]]:
        """A shift after the loop, and what makes it there."""
        if not self._runs:
            return shift, []
        last = self.names.fresh("last")
        return last, [ir.Accumulate(last, shift, table.MAX.name)]

    def _put_back(
        self, block: ir.BlockGraph, shift: str, nodes: Sequence[ir.BlockNode] = ()
    ) -> ir.BlockGraph:
        """The block with a shift added to logarithms of what it has scaled.

        Other kernels that subtract it read the logarithm and the shift; others read
        their sum in f32: it may be large where what it is compared with is as large.
        """
        degrees = next(iter(self.found.logarithms.values()))
        if any(abs(degree) != 1 for degree in degrees.values()):
            raise NotHomogeneousError
        returned = {r.value for r in self.graph.returns}
        low = {name: self.names.fresh(f"{name}_low") for name in degrees}
        found = list(nodes)
        for node in block.nodes:
            if isinstance(node, ir.Store) and node.operand in degrees:
                if degrees[node.operand] == 1 and self._only_subtracted(node.result):
                    stored = self.names.fresh("shift")
                    self.apart[node.result] = stored
                    found.append(replace(node, operand=low[node.operand], dtype=f32))
                    found.append(
                        ir.Store(stored, shift, self._axes_of_shift(node.axes), f32)
                    )
                    continue
                own = node.result in returned
                found.append(node if own else replace(node, dtype=f32))
            elif not isinstance(node, ir.Apply):
                found.append(node)
            elif node.result in low:
                back = table.ADD if degrees[node.result] > 0 else table.SUB
                found.append(replace(node, result=low[node.result]))
                found.append(ir.Apply(node.result, back, (low[node.result], shift)))
            else:
                found += self._moved_first(node, low, degrees, shift)
        read = read_by(found)
        left = [n for n in found if n.result not in low or n.result in read]
        return replace(block, nodes=sorted_by_reads(left))

    def _moved_first(
        self,
        node: ir.Apply,
        low: Mapping[str, str],
        degrees: Mapping[str, int],
        shift: str,
    ) -> list[ir.BlockNode]:
        """A difference from a logarithm, by what is left of both without the shift.

        x - (low + m) is (x - m) - low, which is as accurate as low where x and m are
        large.
        """
        logs = [v for v in node.values if degrees.get(v) == 1]
        if node.op is not table.SUB or len(logs) != 1 or len(node.values) != 2:
            return [node]
        other = next(v for v in node.values if v not in logs)
        moved = self.names.fresh("moved")
        names = {logs[0]: low[logs[0]], other: moved}
        return [ir.Apply(moved, table.SUB, (other, shift)), with_operands(node, names)]

    def _axes_of_shift(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Those of a logarithm's axes that its shift has."""
        kept = set(self.types[self.exponent].names).difference(self.found.summed)
        return tuple(a for a in axes if {d.name for d in a} <= kept)

    def _only_subtracted(self, stored: str) -> bool:
        """Whether later blocks do nothing but subtract what a block stores."""
        if any(r.value == stored for r in self.graph.returns):
            return False
        readers = [n for n in self.graph.nodes if stored in operands_of(n)]
        return bool(readers) and all(
            isinstance(block, ir.BlockGraph)
            and all(
                _subtracts(node, load.result)
                for load in block.loads
                if load.source == stored
                for node in block.nodes
                if load.result in operands_of(node)
            )
            for block in readers
        )

    def _moved_first_later(self, block: ir.KernelNode) -> ir.KernelNode:
        """A later block that subtracts first the shift, then what else is stored."""
        loads = dict[str, str]()
        found: list[ir.BlockNode] = []
        write = OperatorWriter(found, self.names)
        if not isinstance(block, ir.BlockGraph) or self.apart.keys().isdisjoint(
            load.source for load in block.loads
        ):
            return block
        for load in block.loads:
            if load.source in self.apart:
                loads[load.result] = self.names.fresh("shift")
                axes = self._axes_of_shift(load.axes)
                found.append(ir.Load(loads[load.result], self.apart[load.source], axes))
        for node in block.nodes:
            shift = next((s for v, s in loads.items() if _subtracts(node, v)), None)
            if shift is None or not isinstance(node, ir.Apply):
                found.append(node)
                continue
            moved = write("moved", table.SUB, node.operands[0], shift)
            found.append(replace(node, operands=(moved, node.operands[1])))
        return replace(block, nodes=sorted_by_reads(found))

    # -- Parts of a split dim -------------------------------------------------------

    def _storing(
        self, block: ir.BlockGraph, shift: str
    ) -> tuple[ir.BlockGraph, str, tuple[Axis, ...]]:
        """The block that also stores its shift, along the dims over parts."""
        operand, added = self._last(shift)
        if not self._runs and ir.stages_of(block)[shift] == "body":
            raise NotHomogeneousError
        own = self.types[self.exponent].dims
        kept = [d for d in own if d.name not in self.found.summed]
        kept += [Dim(name, grid=True) for name in sorted(self.found.partial)]
        if any(d.loop for d in kept):
            raise NotHomogeneousError
        axes = tuple((d,) for d in kept)
        stored = self.names.fresh("maxima")
        added.append(ir.Store(stored, operand, axes, f32))
        return replace(block, nodes=(*block.nodes, *added)), stored, axes

    def _weighted(
        self, block: ir.BlockGraph, stored: str, axes: tuple[Axis, ...]
    ) -> tuple[ir.BlockGraph, str]:
        """A later block, with every part weighted by its maximum, and the largest."""
        scaled = [n for n in block.loads if self.found.kernel_degrees.get(n.source)]
        if any(self.found.kernel_degrees[n.source] != 1 for n in scaled):
            raise NotHomogeneousError
        load = self._load(block, stored, axes)
        nodes: list[ir.BlockNode] = [load]
        over = tuple(sorted(self.found.partial))
        write = OperatorWriter(nodes, self.names)
        top = write("top", table.ROWSHIFT, load.result, over=over)
        types = block_types(block, kernel_types(self.graph))
        kept = {d.name for d in ir.dims_of(axes)} - self.found.partial
        alike, top, companions = shifted_alike(
            block, types, self._companions, top, kept, self.names
        )
        nodes += alike
        weight = self._weight(load.result, top, nodes)
        names: dict[str, str] = {}
        for node in scaled:
            names[node.result] = self.names.fresh(f"{node.result}_weighted")
        for node in block.nodes:
            nodes.append(companions.get(node.result) or with_operands(node, names))
            if node in scaled:
                weighted = names[node.result]
                nodes.append(ir.Apply(weighted, table.MUL, (node.result, weight)))
        block = replace(block, nodes=sorted_by_reads(nodes))
        return self._put_back(block, top) if self.found.logarithms else block, top

    def _load(
        self, block: ir.BlockGraph, stored: str, axes: tuple[Axis, ...]
    ) -> ir.Load:
        """A load of a shift, in pieces as of what it has scaled."""
        scaled = [n for n in block.loads if self.found.kernel_degrees.get(n.source)]
        pieces = {d.name: d for n in scaled for d in ir.dims_of(n.axes)}
        seen = each_dim(axes, lambda d: pieces.get(d.name, d.whole))
        return ir.Load(self.names.fresh("maxima"), stored, seen)

    # -- Exponentials of later kernels ----------------------------------------------

    def _storing_too(
        self, block: ir.BlockGraph, stored: str, top: str
    ) -> tuple[ir.BlockGraph, str, tuple[Axis, ...]]:
        """A block that combines parts, and also stores the shift of the whole."""
        seen = next(n.axes for n in block.loads if n.source == stored)
        partial = self.found.partial
        axes = tuple(a for a in seen if not {d.name for d in a} & partial)
        if any(d.loop for a in axes for d in a):
            raise NotHomogeneousError
        shift = self.names.fresh("shift")
        store = ir.Store(shift, top, axes, f32)
        return replace(block, nodes=(*block.nodes, store)), shift, axes

    def _in_f32(self, block: ir.BlockGraph) -> ir.BlockGraph:
        """A block that stores in f32 what the shift has scaled.

        Of a long row the sum is beyond f16: it is at least 1 for each largest element.
        """
        scaled = self.found.kernel_degrees
        nodes = (
            replace(n, dtype=f32)
            if isinstance(n, ir.Store) and n.result in scaled
            else n
            for n in block.nodes
        )
        return replace(block, nodes=tuple(nodes))

    def _follow(
        self,
        nodes: list[ir.KernelNode],
        later: Sequence[int],
        stored: str,
        axes: tuple[Axis, ...],
    ) -> None:
        """Give exponentials of later kernels the shift of what they are joined to."""
        for at in later:
            block = nodes[at]
            assert isinstance(block, ir.BlockGraph)
            load = self._load(block, stored, axes)
            found: list[ir.BlockNode] = [load]
            write = OperatorWriter(found, self.names)
            for node in block.nodes:
                if isinstance(node, ir.Apply) and node.result in self._companions:
                    moved = write("moved", table.SUB, node.values[0], load.result)
                    found.append(replace(node, operands=(moved,)))
                else:
                    found.append(node)
            nodes[at] = replace(block, nodes=sorted_by_reads(found))
