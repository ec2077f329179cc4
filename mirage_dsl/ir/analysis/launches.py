"""What the launches of a μGraph do: operators that are one call, and kernels that wait.

Where operators between them compute just what one of PyTorch's functions does, and
nobody sees what lies between, a library kernel is that function, as eager calls it:
softmax, a norm, attention, a product with a term added.  `FUNCTIONS` says what each of
them computes, as a pattern of rows of the operator table; equality is that of the
operators, which verification knows.  How it is called is `backends.library`'s, what it
takes `cost.estimate`'s.

A kernel that is launched early (`pdl`) waits before it reads what the kernel ahead
makes, and before it stores.  If what that kernel makes is needed after the loop only,
the whole loop may come before the wait: small side products and statistics then cost
next to no time.

That is sound for a reason that all kernels of a chain uphold: none lets the next one
start before its own wait is over.  So when a kernel starts, all kernels but the one
right ahead have ended, and what they have read and written is at rest.  The first
kernel of a μGraph waits at once, for its inputs may be what the kernel ahead makes,
unless the caller promises of some that they are not (`Input.constant`).

Where the loop has to wait, first iterations of what it reads besides can be asked into
the L2 cache before that (`prefetch`), or loaded into registers (`early`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Literal

from mirage_dsl.core.types import MemorySpace, Scalar, Types
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.maps import most_early
from mirage_dsl.ir.walk import makers, users
from mirage_dsl.ops.definition import Kind

# -- Patterns --------------------------------------------------------------------------

EPS, ONE_OVER_N, SCALE = "eps", "1/n", "scale"
"""Leaves that stand for constants: any number; one over what is summed; a factor."""
ZERO, BEYOND = "zero", "beyond"
"""The same, of zero, and of a number beyond all positions."""
_CONSTANTS = frozenset({EPS, ONE_OVER_N, SCALE, ZERO, BEYOND})
POSITION = "position"
"""A leaf that stands for index values, which lie nowhere and are given to no call."""


@dataclass(frozen=True)
class Pattern:
    """An operator of patterns; a leaf is a name, the same value wherever it stands."""

    op: str
    operands: tuple[Pattern | str, ...]

    @cached_property
    def _hash(self) -> int:
        """Computed once, for patterns are asked for again and again."""
        return hash((self.op, self.operands))

    def __hash__(self) -> int:
        return self._hash


Bound = Mapping[Pattern | str, ir.Operand | tuple[str, ...]]
"""What stands for each part of a pattern; the reduced dims go by the name `over`."""


@dataclass(frozen=True)
class FusedCall:
    """Operators that are one call.

    Attributes:
        name: Of the function.
        bound: What stands for what.
        types: Of all values.
        result: Its result.
        inner: Results of operators of it that nobody else sees.
    """

    name: str
    bound: Bound
    types: Types
    result: str
    inner: frozenset[str] = frozenset()

    @property
    def values(self) -> tuple[str, ...]:
        """What is computed from."""
        return tuple(
            value
            for leaf, value in self.bound.items()
            if isinstance(leaf, str)
            and leaf not in ("over", POSITION)
            and isinstance(value, str)
        )

    def value(self, leaf: str) -> str:
        """The value that a leaf stands for."""
        found = self.bound[leaf]
        assert isinstance(found, str)
        return found

    def constant(self, leaf: str) -> Scalar:
        """The constant that a leaf stands for."""
        found = self.bound[leaf]
        assert isinstance(found, Scalar)
        return found

    def dims(self, value: str) -> tuple[str, ...]:
        """The dims of a value."""
        return self.types[value].names

    @property
    def over(self) -> tuple[str, ...]:
        """The dims that are reduced."""
        found = self.bound.get("over", ())
        assert isinstance(found, tuple)
        return found


def _applied(op: str, *operands: Pattern | str) -> Pattern:
    return Pattern(op, operands)


def _mean(of: Pattern | str) -> Pattern:
    return _applied("mul", _applied("sum", of), ONE_OVER_N)


def _over_root_mean_square(of: Pattern | str, square: Pattern) -> Pattern:
    return _applied("div", of, _applied("sqrt", _applied("add", _mean(square), EPS)))


def _softmax_of(x: Pattern | str, *, safe: bool) -> Pattern:
    powers = _applied("exp", _applied("sub", x, _applied("rowshift", x)))
    total = _applied("sum", powers)
    return _applied("div", powers, _applied("or_one", total) if safe else total)


_LOGITS = _applied("matmul", "q", "k")
_CENTRED = _applied("sub", "x", _mean("x"))
_BELOW_MAXIMUM = _applied("sub", "x", _applied("max", "x"))
_LOG_OF_SUM = _applied("log", _applied("sum", _applied("exp", _BELOW_MAXIMUM)))
_SUM_OF_PRODUCT = _applied("add", _applied("matmul", "a", "b"), "c")


# -- What must hold beside the pattern -------------------------------------------------

MOST_PLACES = 1 << 30
"""More than an axis has: what is no position is no less."""


def _is_mean(call: FusedCall) -> bool:
    """Whether what is multiplied by is one over the number of elements."""
    mean = Scalar(1, tuple(sorted((d, -1) for d in call.over)))
    return call.constant(ONE_OVER_N) == mean


def _parameters(call: FusedCall) -> Iterator[tuple[str, ...]]:
    """The dims of a norm's weight and bias, as far as it has them."""
    for leaf in ("weight", "bias"):
        if leaf in call.bound:
            yield call.dims(call.value(leaf))


def _is_norm(call: FusedCall) -> bool:
    """Over the last axes, or over others that are turned there."""
    own = all(dims == call.over for dims in _parameters(call))
    return _is_mean(call) and _keeps_dims(call) and own


@dataclass(frozen=True)
class GroupAxes:
    """The dims of a norm of groups: batches, groups, channels of a group, places."""

    batch: tuple[str, ...]
    groups: tuple[str, ...]
    channels: tuple[str, ...]
    places: tuple[str, ...]

    @property
    def order(self) -> tuple[str, ...]:
        """All dims, as PyTorch wants them."""
        return (*self.batch, *self.groups, *self.channels, *self.places)


def group_axes(call: FusedCall) -> GroupAxes | None:
    """The dims of a norm whose weight and bias are of groups and their channels."""
    parameters = list(_parameters(call))
    whole = [d for d in call.dims(call.result) if d not in call.over]
    if not parameters or any(dims != parameters[0] for dims in parameters):
        return None
    groups = tuple(d for d in parameters[0] if d in whole)
    channels = parameters[0][len(groups) :]
    if not groups or any(d not in call.over for d in channels):
        return None
    batch = tuple(d for d in whole if d not in groups)
    places = tuple(d for d in call.over if d not in channels)
    return GroupAxes(batch, groups, channels, places)


def _is_group_norm(call: FusedCall) -> bool:
    return _is_mean(call) and _keeps_dims(call) and group_axes(call) is not None


def _is_batch_norm(call: FusedCall) -> bool:
    """Of channels: means, variances and the rest all have their dims."""
    x, channels = call.dims(call.value("x")), call.dims(call.value("mean"))
    variances = call.dims(call.value("var"))
    own = {variances, *_parameters(call)} == {channels} and bool(channels)
    return own and set(x) == set(call.dims(call.result)) > set(channels)


def _is_first_position(call: FusedCall) -> bool:
    """Whether positions are counted along the one dim that is looked through."""
    position = call.types[call.value(POSITION)]
    counted = position.space is MemorySpace.NOWHERE and position.names == call.over
    zero, beyond = call.constant(ZERO), call.constant(BEYOND)
    numbers = zero.value == 0 and beyond.value >= MOST_PLACES and not beyond.extents
    return counted and len(call.over) == 1 and numbers


def _keeps_dims(call: FusedCall) -> bool:
    """Whether the result has the dims of what is read: all that a softmax is asked."""
    return set(call.dims(call.value("x"))) == set(call.dims(call.result))


def factors(
    a: tuple[str, ...], b: tuple[str, ...], result: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...], bool] | None:
    """The axes of two matrices, or batches of them, whose product a result is.

    They are put so that the result has its axes in order without a copy; last, whether
    they are exchanged for that.  None where they are no such matrices.
    """
    summed = set(a) - set(result)
    batch = tuple(d for d in result if d in a and d in b)
    rest = result[len(batch) :]
    exchanged = bool(rest) and rest[0] not in a
    if exchanged:
        a, b = b, a
    wanted = (*batch, *rest[:1], *summed), (*batch, *summed, *rest[1:])
    sets = set(a) == set(wanted[0]), set(b) == set(wanted[1])
    if len(rest) != 2 or len(summed) != 1 or not all(sets):
        return None
    return (*wanted, exchanged)


def _is_sum_of_product(call: FusedCall) -> bool:
    dims = call.dims(call.result)
    a, b = (call.dims(call.value(leaf)) for leaf in "ab")
    return len(dims) == 2 and factors(a, b, dims) is not None


@dataclass(frozen=True)
class LinearAxes:
    """The dims of a linear layer: of rows, what is summed, and what it makes."""

    rows: tuple[str, ...]
    summed: tuple[str, ...]
    made: tuple[str, ...]


def linear_axes(call: FusedCall) -> LinearAxes | None:
    """The dims of a linear layer, whose bias has those that it makes; or None.

    Its weight is a matrix with axes of one or more dims, as a layer has that makes
    queries, keys and values of several heads.
    """
    a, b, c = (call.dims(call.value(leaf)) for leaf in "abc")
    dims = call.dims(call.result)
    summed = tuple(d for d in b if d not in dims)
    rows = tuple(d for d in dims if d not in c)
    whole = b in ((*c, *summed), (*summed, *c))
    if not (c and summed and whole) or {*a} != {*rows, *summed}:
        return None
    return LinearAxes(rows, summed, c)


@dataclass(frozen=True)
class AttentionAxes:
    """The dims of attention: what all operands share, and what each has of its own."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: str
    features: str
    made: str


def attention_axes(call: FusedCall) -> AttentionAxes | None:
    """The dims of an attention; None where its operands are no such matrices."""
    q, k, v = (call.dims(call.value(leaf)) for leaf in "qkv")
    (columns,) = call.over if len(call.over) == 1 else ("",)
    # One that the logits sum over is no batch, also where the values have it too.
    logits = call.bound[_LOGITS]
    assert isinstance(logits, str)
    batch = tuple(d for d in q if d in k and d in v and d in call.dims(logits))
    # Values may have as many channels as keys, under one name.
    features = [d for d in q if d in k and d not in call.dims(logits)]
    made = [d for d in v if d not in batch and d != columns]
    rows = tuple(d for d in q if d not in batch and d not in features)
    fits = (
        len(features) == len(made) == 1
        and set(k) == {*batch, columns, *features}
        and set(v) == {*batch, columns, *made}
        and set(call.dims(call.result)) == {*batch, *rows, *made}
    )
    if not fits or ("mask" in call.bound and len(rows) > 1):
        return None
    found = AttentionAxes(batch, rows, columns, features[0], made[0])
    return found if _mask_fits(call, found) else None


def _mask_fits(call: FusedCall, axes: AttentionAxes) -> bool:
    """Whether the mask, if there is one, is of rows and columns, of batches too."""
    known = {*axes.batch, *axes.rows, axes.columns}
    return "mask" not in call.bound or known >= set(call.dims(call.value("mask")))


def _is_attention(call: FusedCall) -> bool:
    plain = SCALE not in call.bound or not call.constant(SCALE).extents
    return plain and attention_axes(call) is not None


def _is_linear(call: FusedCall) -> bool:
    return linear_axes(call) is not None


Function = tuple[str, Pattern, Callable[[FusedCall], bool]]


def _norms(square: Callable[[Pattern | str], Pattern]) -> Iterator[Function]:
    """The norms, given how squares are computed."""
    layer = _over_root_mean_square(_CENTRED, square(_CENTRED))
    scaled = _applied("mul", layer, "weight")
    root_mean_square = _over_root_mean_square("x", square("x"))
    yield "layer_norm", _applied("add", scaled, "bias"), _is_norm
    yield "layer_norm", scaled, _is_norm
    yield "group_norm", _applied("add", scaled, "bias"), _is_group_norm
    yield "group_norm", scaled, _is_group_norm
    yield "layer_norm", layer, _is_norm
    yield "rms_norm", _applied("mul", root_mean_square, "weight"), _is_norm
    yield "rms_norm", root_mean_square, _is_norm


def _attentions() -> Iterator[Function]:
    """Attention: with and without a factor, with and without a mask."""
    for logits in (_applied("mul", _LOGITS, SCALE), _LOGITS):
        for safe in (True, False):
            for x in (_applied("add", logits, "mask"), logits):
                weights = _softmax_of(x, safe=safe)
                name = "scaled_dot_product_attention"
                yield name, _applied("matmul", weights, "v"), _is_attention


def _first_positions() -> Iterator[Function]:
    """The first position of an extreme, or of NaN where there is any."""
    for extreme in ("max", "min"):
        unordered = _applied("equal", _applied("equal", "x", "x"), ZERO)
        there = _applied("equal", "x", _applied(extreme, "x"))
        there = _applied("maximum", there, unordered)
        places = _applied("where", there, POSITION, BEYOND)
        yield f"arg{extreme}", _applied("min", places), _is_first_position


def _batch_norms() -> Iterator[Function]:
    """Norms with statistics that are given, as a batch norm's in evaluation are."""
    deviation = _applied("sqrt", _applied("add", "var", EPS))
    plain = _applied("div", _applied("sub", "x", "mean"), deviation)
    scaled = _applied("mul", plain, "weight")
    for pattern in (_applied("add", scaled, "bias"), scaled, plain):
        yield "batch_norm", pattern, _is_batch_norm


FUNCTIONS: Sequence[Function] = (
    *_attentions(),
    *_norms(lambda x: _applied("square", x)),
    *_norms(lambda x: _applied("mul", x, x)),
    *_batch_norms(),
    *_first_positions(),
    ("log_softmax", _applied("sub", _BELOW_MAXIMUM, _LOG_OF_SUM), _keeps_dims),
    ("_safe_softmax", _softmax_of("x", safe=True), _keeps_dims),
    ("softmax", _softmax_of("x", safe=False), _keeps_dims),
    ("addmm", _SUM_OF_PRODUCT, _is_sum_of_product),
    ("linear", _SUM_OF_PRODUCT, _is_linear),
    ("mean", _mean("x"), _is_mean),
)
"""Functions by what they compute; those of more operators first."""


# -- Matching --------------------------------------------------------------------------


def calls(graph: ir.KernelGraph, types: Types) -> dict[str, FusedCall]:
    """The calls that stand for several operators, by their result."""
    if sum(not n.is_view for n in graph.applies) < 2:
        return {}
    search = _Matching(graph, types)
    found: dict[str, FusedCall] = {}
    taken: set[str] = set()
    for node in reversed(graph.nodes):
        if isinstance(node, ir.Apply) and node.result not in taken:
            call = search.best(node)
            if call is not None and not call.inner & taken:
                found[node.result] = call
                taken |= {node.result, *call.inner}
    return found


class _Matching:
    """Looks for patterns in one graph."""

    def __init__(self, graph: ir.KernelGraph, types: Types) -> None:
        self._types = types
        self._made = makers(graph)
        # Those who see each value; the blocks and the caller have no name.
        self._users = {
            value: {n.result if isinstance(n, ir.Apply) else "" for n in nodes}
            for value, nodes in users(graph.nodes).items()
        }
        for item in graph.returns:
            self._users.setdefault(item.value, set()).add("")

    def best(self, node: ir.Apply) -> FusedCall | None:
        """The call of most operators that ends with a node."""
        for name, pattern, fits in FUNCTIONS:
            if pattern.op != node.op.name:
                continue
            for bound in self._matches(pattern, node.result, {}):
                inner = {
                    v
                    for p, v in bound.items()
                    if isinstance(p, Pattern) and isinstance(v, str)
                } - {node.result}
                call = FusedCall(
                    name, bound, self._types, node.result, frozenset(inner)
                )
                if self._hidden(call) and self._alike(call) and fits(call):
                    return call
        return None

    def _hidden(self, call: FusedCall) -> bool:
        """Whether nobody but these operators sees the values between them."""
        own = call.inner | {call.result}
        return all(self._users[v] <= own for v in call.inner)

    def _alike(self, call: FusedCall) -> bool:
        """Whether all values have one format, as functions want it of numbers."""
        if POSITION in call.bound:
            return True
        values = [v for v in call.bound.values() if isinstance(v, str)]
        return len({self._types[v].dtype for v in values}) == 1

    def _matches(
        self, pattern: Pattern | str, operand: ir.Operand, bound: Bound
    ) -> Iterator[Bound]:
        """Ways in which an operand is what a pattern says."""
        if pattern in bound:
            if bound[pattern] == operand:
                yield bound
        elif isinstance(pattern, str):
            constant = pattern in _CONSTANTS
            if constant == isinstance(operand, Scalar):
                yield {**bound, pattern: operand}
        else:
            node = self._made.get(operand) if isinstance(operand, str) else None
            if node is not None and node.op.name == pattern.op:
                yield from self._of_node(pattern, node, bound)

    def _of_node(
        self, pattern: Pattern, node: ir.Apply, bound: Bound
    ) -> Iterator[Bound]:
        if node.op.kind is Kind.REDUCTION:
            if bound.get("over", node.over) != node.over:
                return
            bound = {**bound, "over": node.over}
        bound = {**bound, pattern: node.result}
        orders = [node.operands]
        if node.op.commutative and len(node.operands) == 2:
            orders.append(node.operands[::-1])
        for operands in orders:
            yield from self._all(pattern.operands, operands, bound)

    def _all(
        self,
        patterns: Sequence[Pattern | str],
        operands: Sequence[ir.Operand],
        b: Bound,
    ) -> Iterator[Bound]:
        if not patterns:
            yield b
            return
        for bound in self._matches(patterns[0], operands[0], b):
            yield from self._all(patterns[1:], operands[1:], bound)


# -- Kernels that wait -----------------------------------------------------------------


def launched_early(
    graph: ir.KernelGraph,
    *,
    first: bool = False,
    constant: AbstractSet[str] = frozenset(),
) -> ir.KernelGraph:
    """Every kernel may start before the one ahead of it has ended.

    Args:
        graph: A μGraph.
        first: Also the first one, which is then ahead of what a call follows.
        constant: Inputs that this does not write.  What was not launched early before
            loads its first iteration of them early, where it can.
    """
    if not graph.blocks:
        return graph

    def early(block: ir.BlockGraph) -> ir.Schedule:
        schedule = block.schedule
        if schedule.pdl or not (first or block is not graph.blocks[0]):
            return schedule
        ahead = constant and most_early(block, graph.extent_of)
        return replace(schedule, pdl=True, early=1 if ahead else schedule.early)

    inputs = tuple(
        replace(i, constant=True) if i.name in constant else i for i in graph.inputs
    )
    return replace(graph, inputs=inputs).with_schedules(early)


def launched_in_turn(graph: ir.KernelGraph) -> ir.KernelGraph:
    """No kernel starts before the one ahead of it has ended."""
    return graph.with_schedules(
        lambda b: replace(b.schedule, pdl=False, prefetch=0, early=0)
    )


def early_where_possible(graph: ir.KernelGraph) -> ir.KernelGraph:
    """Loops that can load nothing early are not asked to."""

    def fitting(block: ir.BlockGraph) -> ir.Schedule:
        fits = not block.schedule.early or most_early(block, graph.extent_of)
        return block.schedule if fits else replace(block.schedule, early=0)

    return graph.with_schedules(fitting)


def behind_kernels(
    graph: ir.KernelGraph,
) -> Iterator[tuple[ir.BlockGraph, AbstractSet[str]]]:
    """Block graphs that follow another one, each with what the μGraph made so far."""
    for block, ahead, made, _ in _with_ahead(graph):
        if isinstance(ahead, ir.BlockGraph):
            yield block, made


def awaited(graph: ir.KernelGraph) -> dict[ir.BlockGraph, AbstractSet[str]]:
    """What block graphs have to wait for; those that are not in it, for all they read.

    That is what the μGraph made so far, and for those that follow none of its kernels
    also what the caller gives, but for what he promises to be constant.
    """
    found: dict[ir.BlockGraph, AbstractSet[str]] = {}
    for block, ahead, made, given in _with_ahead(graph):
        if isinstance(ahead, ir.BlockGraph):
            found[block] = made
        elif any(i.constant for i in graph.inputs):
            found[block] = made | given
    return found


_Ahead = tuple[
    ir.BlockGraph, ir.Apply | ir.BlockGraph | None, AbstractSet[str], AbstractSet[str]
]
"""A block, what is ahead of it, what was made so far, and what may be written by what
is ahead of the call."""


def _with_ahead(graph: ir.KernelGraph) -> Iterator[_Ahead]:
    made: set[str] = set()
    given = {i.name for i in graph.inputs if not i.constant}
    ahead = None
    for node in graph.nodes:
        if isinstance(node, ir.BlockGraph):
            yield node, ahead, frozenset(made), frozenset(given)
            made.update(node.results)
        elif not node.is_view or made.intersection(node.values):
            made.add(node.result)
        elif given.intersection(node.values) or _may_copy(node):
            given.add(node.result)
        ahead = node


def _may_copy(view: ir.Apply) -> bool:
    """Whether a kernel may make what a view shows, as of dims with gaps between."""
    return view.factored is not None and view.factored.flattens


def after_wait(block: ir.BlockGraph, made: AbstractSet[str]) -> frozenset[str] | None:
    """The values outside of the loop that need what kernels of the μGraph made.

    Args:
        block: A kernel behind another one.
        made: Tensors that kernels of the μGraph made.

    Returns:
        What has to be computed after the wait, which may follow the loop; None where
        the wait comes first: in a kernel that is not launched early, and where the loop
        itself reads such tensors, or stores.
    """
    if not block.schedule.pdl:
        return None
    stages = ir.stages_of(block)
    late: set[str] = set()
    for node in block.nodes:
        match node:
            case ir.Load():
                needs = node.source in made
            case ir.Apply():
                needs = not late.isdisjoint(node.values)
            case ir.Accumulate() if node.kind == ir.JOINED and block.loop is not None:
                # What is concatenated over the loop is stored in it.
                return None
            case _:
                continue
        if needs and stages[node.result] == "body":
            return None
        if needs:
            late.add(node.result)
    return frozenset(late)


def loads_beside(block: ir.BlockGraph, made: AbstractSet[str]) -> tuple[ir.Load, ...]:
    """Matrices that a loop reads which has to wait, though these are there already.

    Args:
        block: A kernel behind another one.
        made: Tensors that kernels of the μGraph made.
    """
    schedule = block.schedule
    if not schedule.pdl or block.loop is None or after_wait(block, made) is not None:
        return ()
    stages = ir.stages_of(block)
    return tuple(
        n
        for n in block.loads
        if stages[n.result] == "body"
        and n.source not in made
        and len(n.axes) > 1
        and n.result not in block.gathered
    )


def asked_ahead(block: ir.BlockGraph, made: AbstractSet[str]) -> tuple[ir.Load, ...]:
    """Those of them whose first tiles are asked for before the wait."""
    return loads_beside(block, made) if block.schedule.prefetch else ()


def loaded_early(block: ir.BlockGraph, made: AbstractSet[str]) -> tuple[ir.Load, ...]:
    """What a loop that has to wait reads beside what it waits for, and loads before.

    Those are loads into registers, of the first `Schedule.early` iterations, and of
    what is read once for all of them.  Iterations that a block's place leaves out are
    none of the first.

    Args:
        block: A kernel.
        made: Tensors that it has to wait for.
    """
    schedule = block.schedule
    if not schedule.pdl or not schedule.early or block.loop is None:
        return ()
    if after_wait(block, made) is not None:
        return ()
    return tuple(
        n
        for n in block.loads
        if n.source not in made and n.result not in block.gathered
    )


def has_work_ahead(block: ir.BlockGraph, made: AbstractSet[str]) -> bool:
    """Whether a kernel has something to do before it waits for the kernel ahead."""
    ahead = asked_ahead(block, made) or loaded_early(block, made)
    return runs_ahead(block, made) or bool(ahead)


def runs_ahead(block: ir.BlockGraph, made: AbstractSet[str]) -> bool:
    """Whether a kernel runs its loop before it waits for the kernel ahead."""
    return block.loop is not None and after_wait(block, made) is not None


Announced = Literal["", "start", "loop"]
"""Whether the kernel behind may start early, and after what of this one."""


@dataclass(frozen=True)
class LaunchedBlock:
    """A graph-defined kernel among the others of its μGraph.

    Attributes:
        block: The kernel.
        announced: When the kernel behind it may start.
        made: What it has to wait for, as `awaited` says; None where that is all.
    """

    block: ir.BlockGraph
    announced: Announced
    made: AbstractSet[str] | None


def launches(graph: ir.KernelGraph) -> Iterator[LaunchedBlock]:
    """The graph-defined kernels of a μGraph in launch order."""
    waits = awaited(graph)
    for node, following in zip_longest(graph.nodes, graph.nodes[1:]):
        if isinstance(node, ir.BlockGraph):
            announced = _announced(following or _next_call(graph), waits)
            yield LaunchedBlock(node, announced, waits.get(node))


def _next_call(graph: ir.KernelGraph) -> ir.Apply | ir.BlockGraph | None:
    """The first kernel of what follows a call, as far as one can guess: another one."""
    kernels = (n for n in graph.nodes if isinstance(n, ir.BlockGraph) or not n.is_view)
    first = next(kernels, None)
    early = isinstance(first, ir.BlockGraph) and first.schedule.early
    return first if early else None


def _announced(
    following: ir.Apply | ir.BlockGraph | None,
    waits: Mapping[ir.BlockGraph, AbstractSet[str]],
) -> Announced:
    """When the next kernel may start: at once, if it has work before it waits.

    Otherwise not before this one's loop is over: blocks that only wait hold resources.
    """
    if not isinstance(following, ir.BlockGraph) or not following.schedule.pdl:
        return ""
    made = waits.get(following)
    ahead = made is not None and has_work_ahead(following, made)
    return "start" if ahead else "loop"
