"""All structures of a single-kernel μGraph: the best few of every configuration.

A structure is a block graph without sizes.  Extraction chooses DAGs of a closure, by
their edges; what they are as block graphs, with tiles of 1 as placeholders, is written
here too.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import local

import numpy as np

from mirage_dsl.core.errors import SourceLocation
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.core.types import Axis, Scalar
from mirage_dsl.core.work import OutOfTimeError, look, until
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.canonical import longer_name
from mirage_dsl.ir.walk import values_of
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Operator
from mirage_dsl.rewrite.sums import Form, forms
from mirage_dsl.search.budget import UNLIMITED, Budget
from mirage_dsl.search.closure import (
    ADD,
    BODY,
    CONSTANT,
    CONTRACT,
    DIV,
    FUNCTION,
    GATHER,
    JOIN,
    LOAD,
    MUL,
    NAMES,
    SUB,
    SUM,
    Ints,
    Saturation,
    Words,
    Workspace,
    saturate,
    workspace,
)
from mirage_dsl.search.extract import (
    ACCURATE,
    FEW_STATES,
    MAX_STATES,
    Bools,
    Condensed,
    Edges,
    Extraction,
    accurate_ones,
    additive_cost,
    cheapest,
    condense,
    entered_by_constants,
    moved_constants,
    moved_differences,
    multiplied,
    placeholder_tiles,
    work_of,
)
from mirage_dsl.search.sizes import on_grid
from mirage_dsl.search.space import Configuration, Space, configurations, space_of

VARIETY = 4
"""DAGs extracted for each one kept: many differ only in where constants enter, and are
alike."""


ALONE_SECONDS = 0.2
"""Before more threads help: they share one interpreter, and what takes less is for the
most part not compiled.  Measured on two cores: two threads take 1.2 to 2 times as long
as one for programs that take one a tenth of a second."""


@dataclass(frozen=True)
class Structure:
    """A block graph that computes the program, without sizes.

    Attributes:
        block: The graph; its tiles are 1, to be chosen.
        configuration: Its grid and loop.
    """

    block: ir.BlockGraph
    configuration: Configuration


@dataclass
class StructureSet:
    """Structures by configuration, cheapest first within each.

    Attributes:
        structures: All of them.
        counters: Figures for the ledger, summed over all configurations.
        complete: Whether the whole space was searched: no limit, no deadline.
        seconds: Time of each step, summed over threads.
    """

    structures: list[Structure] = field(default_factory=list[Structure])
    counters: dict[str, int] = field(default_factory=dict[str, int])
    complete: bool = True
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def count(self, counters: dict[str, int]) -> None:
        """Add to the counters."""
        for name, number in counters.items():
            self.counters[name] = self.counters.get(name, 0) + number

    def spend(self, step: str, since: float) -> None:
        """Add the time from `since` on to a step."""
        self.seconds[step] = self.seconds.get(step, 0) + time.perf_counter() - since

    def merge(self, other: StructureSet) -> None:
        """Append another set."""
        self.structures += other.structures
        self.count(other.counters)
        self.complete &= other.complete
        for step, seconds in other.seconds.items():
            self.seconds[step] = self.seconds.get(step, 0) + seconds


def structures(
    program: ir.KernelGraph,
    hardware: Hardware,
    *,
    per_configuration: int = 5,
    threads: int | None = None,
    budget: Budget = UNLIMITED,
    allow: Callable[[Configuration], bool] | None = None,
    seed: int = 0,
    own: bool = False,
    written: bool = False,
    alike: bool = False,
) -> StructureSet:
    """Search the complete space of single kernels that compute a program.

    Args:
        program: Primitive operators only, without stabilising shifts.
        hardware: The GPU to rank for.
        per_configuration: How many structures to keep of each configuration.
        threads: Loop choices searched at the same time; None for one.
        budget: After which it stops.
        allow: Configurations to search; None for all.
        seed: Seed of fingerprints and residues; it does not change the result but
            for coincidences.
        own: Only what operators of the program itself make up: few structures, soon.
        written: Only of the program as it is, not of its other form, and no further
            than is quick.
        alike: Also those that differ from cheaper ones only in where constants enter;
            what enters an operand of a product, and is rounded, is no such place.

    Raises:
        UnsupportedError: A value that no block graph can compute.
    """
    total = StructureSet()
    searched = [Form(program)] if own or written else forms(program)
    keep = 1 if own else per_configuration
    parameters = (hardware, keep, budget, seed, own, written, alike)
    try:
        with until(budget.end):
            for form in searched:
                space = space_of(form.program)
                groups = _by_loop(form, space, allow)
                if own:
                    groups = [g for g in groups if space.folds(g[0].loop)]
                search = _Search(space, *parameters)
                for found in _mapped(search.run, groups, threads or 1):
                    total.merge(found)
    except OutOfTimeError:
        total.complete = False
    return total


def _by_loop(
    form: Form, space: Space, allow: Callable[[Configuration], bool] | None
) -> list[list[Configuration]]:
    """The configurations of a form, those of one loop together."""
    found: dict[str | None, list[Configuration]] = {}
    for configuration in configurations(space):
        if form.serves(configuration.loop) and (not allow or allow(configuration)):
            found.setdefault(configuration.loop, []).append(configuration)
    return list(found.values())


def _mapped(
    work: Callable[[list[Configuration]], StructureSet],
    items: Iterable[list[Configuration]],
    threads: int,
) -> Iterator[StructureSet]:
    """`map`, in order; what is left after a while on threads, if there are several."""
    began = time.perf_counter()
    left = deque(items)
    while left and (threads == 1 or time.perf_counter() - began < ALONE_SECONDS):
        yield work(left.popleft())
    if not left:
        return
    pool = ThreadPoolExecutor(threads)
    try:
        yield from list(pool.map(work, left))
    finally:
        pool.shutdown(cancel_futures=True)


_thread = local()


def _workspace() -> Workspace:
    """This thread's arrays."""
    if not hasattr(_thread, "workspace"):
        _thread.workspace = workspace()
    return _thread.workspace


@dataclass(frozen=True)
class _Search:
    """The parameters of one search."""

    space: Space
    hardware: Hardware
    per_configuration: int
    budget: Budget
    seed: int
    own: bool
    written: bool
    alike: bool

    def run(self, group: list[Configuration]) -> StructureSet:
        """All configurations of one loop choice, from one closure."""
        result = StructureSet()
        try:
            with until(self.budget.end):
                self.fill(result, group)
        except OutOfTimeError:
            result.complete = False
        return result

    def fill(self, result: StructureSet, group: list[Configuration]) -> None:
        """Add what there is of each configuration.

        Raises:
            OutOfTimeError: There was no time for all.
        """
        look()
        began = time.perf_counter()
        saturation = saturate(
            self.space,
            group[0].loop,
            _workspace(),
            seed=self.seed,
            budget=self.budget,
            own=self.own,
        )
        result.spend("closure", began)
        result.count({"closures": 1, **saturation.counters})
        result.complete = saturation.complete
        words = edge_words(saturation)
        drawings = Drawings(self.space, saturation, group[0].loop)
        edges = Edges.of(self.space, saturation)
        moved = moved_differences(self.space, saturation) | moved_constants(saturation)
        for configuration in self.worthwhile(edges, group, result):
            look()
            self.extract(drawings, edges, words, moved, configuration, result)

    def worthwhile(
        self, edges: Edges, group: list[Configuration], result: StructureSet
    ) -> Iterator[Configuration]:
        """The configurations to extract, each when those before it are.

        Where an answer is wanted soon, those of most splits are the first.  A grid of
        some of the dims of one that has structures is left out if it allows no other
        edges: it is that one with tiles that are whole.  Not so of products, whose
        tiles are not as large.
        """
        if not self.own or len(edges.contracts):
            yield from group
            return
        dims = dict.fromkeys(d for c in group for d in c.grid)
        whole = {d for d in dims if not self.splits(edges, d)}
        served: list[tuple[Configuration, Bools]] = []
        for configuration in reversed(group):
            cut = edges.reduced & self.space.mask(configuration.grid) != 0
            if not whole.isdisjoint(configuration.grid) or any(
                configuration.splits_less(other) and np.array_equal(cut, own)
                for other, own in served
            ):
                continue
            known = len(result.structures)
            yield configuration
            if len(result.structures) > known:
                served.append((configuration, cut))

    def splits(self, edges: Edges, dim: str) -> bool:
        """Whether any structure of a loop choice has a dim in its grid."""
        alive = edges.reduced & self.space.mask((dim,)) == 0
        return _part(edges.saturation, alive) is not None

    def extract(
        self,
        drawings: Drawings,
        edges: Edges,
        words: Words,
        moved: Bools,
        configuration: Configuration,
        result: StructureSet,
    ) -> None:
        """Add the best structures of a configuration."""
        saturation = drawings.saturation
        began = time.perf_counter()
        result.count({"configurations": 1})
        alive = edges.reduced & self.space.mask(configuration.grid) == 0
        alive &= ~_read_joined(saturation, alive)
        part = _part(saturation, alive)
        if part is None:
            result.spend("extract", began)
            return
        found, accurate = self.cheap(edges, configuration, part, alive, moved)
        result.spend("extract", began)
        result.complete &= found.exact and not part.cyclic
        result.count(
            {
                "configurations_with_structures": 1,
                "extracted": len(found.chosen),
                "expanded": found.expanded,
                "truncated_extractions": int(not found.exact),
                "cycles_broken": int(part.cyclic),
            }
        )
        began = time.perf_counter()
        some = zip(found.chosen, found.costs, strict=True)
        best, others = (
            self.distinct(drawings, configuration, _varied(words, dags, self.alike))
            for dags in (some, accurate)
        )
        best |= {n: others[n] for n in list(others)[:ACCURATE] if n not in best}
        result.structures += best.values()
        result.count({"structures": len(best)})
        result.spend("reconstruct", began)

    def cheap(
        self,
        edges: Edges,
        configuration: Configuration,
        part: Condensed,
        alive: Bools,
        moved: Bools,
    ) -> tuple[Extraction, list[tuple[tuple[int, ...], float]]]:
        """The cheapest DAGs of a configuration, and those that are as accurate."""
        tiles = placeholder_tiles(self.space, configuration)
        work = work_of(self.space, edges, configuration, tiles)
        costs = additive_cost(work, self.hardware)
        states = FEW_STATES if self.written else MAX_STATES
        found = cheapest(part, costs, VARIETY * self.per_configuration, states)
        if not found.exact:
            # What is wanted at least may be had exactly.
            found = cheapest(part, costs, self.per_configuration, states)

        def accurate() -> Condensed | None:
            return _part(edges.saturation, alive & ~moved)

        return found, accurate_ones(found, accurate, costs, moved)

    def distinct(
        self,
        drawings: Drawings,
        configuration: Configuration,
        varied: Iterable[tuple[tuple[int, ...], float]],
    ) -> dict[int, Structure]:
        """The structures of the first DAGs that differ as graphs, cheapest first."""
        kept: dict[int, tuple[float, ir.BlockGraph]] = {}
        for chosen, cost in varied:
            if len(kept) == self.per_configuration:
                break
            drawn = drawings.plain(chosen)
            if drawn is not None:
                kept.setdefault(drawn[0], (cost, drawn[1]))
        return {
            number: Structure(on_grid(block, configuration.splits), configuration)
            for number, (_, block) in sorted(kept.items(), key=lambda k: k[1][0])
        }


def _part(saturation: Saturation, alive: Bools) -> Condensed | None:
    """What the outputs need of some edges of a closure; None if one cannot be made."""
    nodes = len(saturation.shape)
    return condense(saturation.edges, nodes, alive, saturation.roots)


def _read_joined(saturation: Saturation, alive: Bools) -> Bools:
    """Which edges read what iterations alone make, side by side.

    That is whole in the end: a block without the loop computes the same with less.
    What is made in another way as well is read as that.
    """
    made, kind, *operands, _ = saturation.edges.T
    read, joins = np.stack(operands), kind == GATHER
    nodes = len(saturation.shape) + 1
    joined = np.zeros(nodes, np.bool_)
    joined[made[joins]] = True
    dead = np.zeros(len(made), np.bool_)
    while True:
        otherwise = np.zeros(nodes, np.bool_)
        otherwise[made[alive & ~dead & ~joins]] = True
        found = np.asarray((joined & ~otherwise)[read].any(axis=0))
        if not (found & ~dead).any():
            return dead
        dead |= found


def _varied(
    words: Words, dags: Iterable[tuple[tuple[int, ...], float]], alike: bool
) -> Iterable[tuple[tuple[int, ...], float]]:
    """One of each kind of DAG, and then the others if they are wanted, each by cost."""
    seen: set[int] = set()
    others: list[tuple[tuple[int, ...], float]] = []
    for item in sorted(dags, key=lambda p: p[1]):
        word = int(words[list(item[0])].sum())
        if word in seen:
            others.append(item)
        else:
            seen.add(word)
            yield item
    if alike:
        yield from others


ROW_OF = {
    int(ADD): table.ADD,
    int(SUB): table.SUB,
    int(MUL): table.MUL,
    int(DIV): table.DIV,
    int(SUM): table.SUM,
    int(CONTRACT): table.MATMUL,
}
"""The operator of a kind of edge that is no load, constant or function."""


@dataclass(frozen=True)
class Edge:
    """One chosen way to make a node."""

    node: int
    kind: int
    operands: tuple[int, ...]
    arg: int


def chosen_edges(saturation: Saturation, chosen: tuple[int, ...]) -> dict[int, Edge]:
    """The edges of a DAG by the node that each makes."""
    rows = saturation.edges[list(chosen)].tolist()
    return {
        node: Edge(node, kind, tuple(o for o in operands if o >= 0), arg)
        for node, kind, *operands, arg in rows
    }


def edge_words(saturation: Saturation) -> Words:
    """A word for each edge; their sum tells DAGs apart, but for their constants.

    Edges that a constant enters have the word 0, unless they make an operand of a
    product: that is rounded, so a constant there makes another result.
    """
    node, kind, *_, arg = saturation.edges.T
    shape = saturation.shape[node]
    word = _mixed(kind, shape, saturation.stage[node], arg)
    rounded = np.where(multiplied(saturation), _mixed(shape), np.uint64(0))
    return np.where(entered_by_constants(saturation), rounded, word)


def _mixed(*parts: Ints) -> Words:
    """A word for each row of some columns."""
    word = np.zeros(len(parts[0]), np.uint64)
    for part in parts:
        word = (word ^ part.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        word ^= word >> np.uint64(29)
    return word


def reconstruct(
    space: Space,
    saturation: Saturation,
    configuration: Configuration,
    edges: dict[int, Edge],
) -> ir.BlockGraph | None:
    """The block graph of a DAG; None if it has a loop in which nothing changes."""
    looped = any(
        e.kind == LOAD and saturation.stage[n] == BODY for n, e in edges.items()
    )
    if configuration.loop is not None and not looped:
        return None
    return _Writer(space, saturation, configuration, edges).block()


class Drawings:
    """The block graphs of one closure's DAGs, each written once for all grids."""

    def __init__(self, space: Space, saturation: Saturation, loop: str | None) -> None:
        self.space, self.saturation = space, saturation
        self.configuration = Configuration((), loop)
        self._plain: dict[frozenset[int], tuple[int, ir.BlockGraph] | None] = {}
        self._numbers: dict[tuple[ir.BlockNode, ...], int] = {}

    def plain(self, chosen: tuple[int, ...]) -> tuple[int, ir.BlockGraph] | None:
        """The block graph of a DAG without a grid; equal ones have equal numbers.

        None if it has a loop in which nothing changes.
        """
        key = frozenset(chosen)
        if key not in self._plain:
            edges = chosen_edges(self.saturation, chosen)
            block = reconstruct(self.space, self.saturation, self.configuration, edges)
            if block is not None:
                number = self._numbers.setdefault(block.nodes, len(self._numbers))
                self._plain[key] = (number, block)
            else:
                self._plain[key] = None
        return self._plain[key]


class _Writer:
    """Writes the nodes of one block graph."""

    def __init__(
        self,
        space: Space,
        saturation: Saturation,
        configuration: Configuration,
        edges: dict[int, Edge],
    ) -> None:
        self.space, self.saturation = space, saturation
        self.configuration, self.edges = configuration, dict(edges)
        self.nodes: list[ir.BlockNode] = []
        self.names: dict[int, str] = {}
        self.taken = values_of(space.program)
        self.roots = [next(n for n in some if n in edges) for some in saturation.roots]
        self.fuse_sums()

    def fuse_sums(self) -> None:
        """sum(sum(x, a), b) → sum(x, (a, b)), if the inner one serves nothing else."""
        uses = Counter(o for e in self.edges.values() for o in e.operands)
        uses.update(self.roots)
        for node in sorted(self.edges):
            edge = self.edges.get(node)
            while edge is not None and edge.kind == SUM:
                inner = self.edges[edge.operands[0]]
                if inner.kind != SUM or uses[inner.node] > 1:
                    break
                edge = replace(edge, operands=inner.operands, arg=edge.arg | inner.arg)
                self.edges[node] = edge
                del self.edges[inner.node]

    def order(self) -> list[int]:
        """Nodes by stage, loads first, operands before results, sums as soon as can be.

        What is summed takes registers until then, and sums take few.
        """
        placed: dict[int, None] = {}
        # Chains of operators are longer than Python's stack is deep.
        waiting = list(reversed(self.roots))
        while waiting:
            before = [o for o in self.edges[waiting[-1]].operands if o not in placed]
            if before:
                waiting += reversed(before)
            else:
                placed[waiting.pop()] = None
        stage = self.saturation.stage
        ordered = sorted(
            placed, key=lambda n: (int(stage[n]), self.edges[n].kind != LOAD)
        )
        return self._with_sums_early(ordered)

    def _with_sums_early(self, nodes: list[int]) -> list[int]:
        """Sums right behind what they sum, but for those of loads."""
        stage, sums = self.saturation.stage, dict[int, list[int]]()
        for node in nodes:
            if self.edges[node].kind == SUM:
                (operand,) = self.edges[node].operands
                computed = self.edges[operand].kind not in (LOAD, CONSTANT)
                if computed and stage[node] == stage[operand]:
                    sums.setdefault(operand, []).append(node)
        moved = {node for own in sums.values() for node in own}
        found: list[int] = []
        for node in nodes:
            waiting = [] if node in moved else [node]
            while waiting:
                found.append(waiting.pop(0))
                waiting += sums.get(found[-1], [])
        return found

    def block(self) -> ir.BlockGraph:
        """The whole graph."""
        for node in self.order():
            self.write(self.edges[node])
        for root, output in zip(self.roots, self.space.outputs, strict=True):
            axes = self.split(output.type.axes, loop=None)
            dtype = output.type.dtype
            self.nodes.append(ir.Store(output.name, self.names[root], axes, dtype))
        grid = self.configuration.splits
        loop = self.configuration.loop
        return ir.BlockGraph(
            grid, None if loop is None else ir.Split(loop, 1), tuple(self.nodes)
        )

    def split(self, axes: tuple[Axis, ...], loop: str | None) -> tuple[Axis, ...]:
        """Axes with the pieces that a block sees."""
        grid = self.configuration.grid
        return tuple(
            tuple(replace(d, grid=d.name in grid, loop=d.name == loop) for d in axis)
            for axis in axes
        )

    def fresh(self, stem: str, number: str = "") -> str:
        """A name that nothing else has."""
        return longer_name(stem + number, self.taken)

    def write(self, edge: Edge) -> None:
        """Append the node of one edge."""
        if edge.kind == CONSTANT:
            return
        if edge.kind == LOAD:
            source = self.space.values[edge.arg]
            assert source.type is not None
            name = self.fresh(f"{source.name}_t")
            axes = self.split(source.type.axes, self.configuration.loop)
            self.nodes.append(ir.Load(name, source.name, axes))
        else:
            name = self.fresh("v", str(len(self.names)))
            kind = self.accumulator(edge)
            if kind is not None:
                operand = self.names[edge.operands[0]]
                self.nodes.append(ir.Accumulate(name, operand, kind))
            else:
                self.nodes.append(self.apply(name, edge))
        self.names[edge.node] = name

    def accumulator(self, edge: Edge) -> str | None:
        """The kind of the accumulator that an edge is, or None."""
        if edge.kind == JOIN:
            return "sum"
        if edge.kind == GATHER:
            return ir.JOINED
        if edge.kind == FUNCTION and self.saturation.site_joins[edge.arg]:
            return self.function(edge).name
        return None

    def function(self, edge: Edge) -> Operator:
        """The operator of a site."""
        op = self.space.values[self.saturation.sites[edge.arg]].op
        assert op is not None
        return op

    def apply(self, name: str, edge: Edge) -> ir.Apply:
        """The operator of an edge."""
        if edge.kind == FUNCTION:
            op, along = self.function(edge), self.saturation.site_along[edge.arg]
            over = self.saturation.site_over[edge.arg]
        else:
            op, along = ROW_OF[edge.kind], 0
            over = edge.arg if edge.kind in (SUM, CONTRACT) else 0
        operands = tuple(self.operand(o) for o in self.arranged(op, edge))
        attrs = self.space.attributes(over, along)
        return ir.Apply(name, op, operands, attrs, self.location(edge.node, op))

    def operand(self, node: int) -> ir.Operand:
        """The name of a node, or its constant."""
        edge = self.edges[node]
        if edge.kind != CONSTANT:
            return self.names[node]
        constant = self.space.values[edge.arg].constant
        assert isinstance(constant, Scalar)
        return constant

    def arranged(self, op: Operator, edge: Edge) -> tuple[int, ...]:
        """Operands in the order that reads best, where they may be swapped."""
        if not op.commutative or len(edge.operands) != 2:
            return edge.operands
        a, b = edge.operands
        swap = self.edges[a].kind == CONSTANT
        if edge.kind == CONTRACT:
            # The operand with the result's first dim comes first, as in x @ w.
            shape = self.saturation.shape
            own = int(shape[a] ^ shape[b]) & NAMES
            first = own & -own
            swap = bool(first & int(shape[b]))
        return (b, a) if swap else (a, b)

    def location(self, node: int, op: Operator) -> SourceLocation | None:
        """The user's line of an equal value, else of a use of the same operator."""
        return self._locations.get(int(self.saturation.key[node])) or (
            self._locations.get(op.name)
        )

    @cached_property
    def _locations(self) -> dict[int | str, SourceLocation | None]:
        found: dict[int | str, SourceLocation | None] = {}
        for value, key in zip(
            self.space.values, self.saturation.program_keys, strict=True
        ):
            if value.op is not None:
                found.setdefault(key, value.location)
                found.setdefault(value.op.name, value.location)
        return found
