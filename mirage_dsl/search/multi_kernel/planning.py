"""From cheap DAGs to sized graphs, of all numbers of kernels in turn."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_dsl.core.hardware import Hardware
from mirage_dsl.core.types import TensorType
from mirage_dsl.cost.footprint import tensor_bytes
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check.graph import check
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, dims_of
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents, partial_base, with_derived_extents
from mirage_dsl.ir.walk import results_of
from mirage_dsl.rewrite.shifts import stabilise
from mirage_dsl.search.multi_kernel.graph import LAUNCH, LIBRARY, Union
from mirage_dsl.search.multi_kernel.heuristic import Dag, neighbours
from mirage_dsl.search.multi_kernel.rebuild import Rebuilder
from mirage_dsl.search.result import Plan, with_every_kind
from mirage_dsl.search.sizes.constraints import Constraints
from mirage_dsl.search.sizes.sizes import Allowed, Sized, UnsizedBlock, sizes_of_all

# -- Sizes of several kernels ----------------------------------------------------------
# How many parts a kernel stores along `k#` is what the next one has to read, so a
# few numbers of parts are tried, and the later kernels are sized for each.

PARTS = (2, 4, 8, 16, 32, 64)
"""Numbers of parts that are tried."""

BEAM = 6
"""Choices for the kernels so far that are followed up."""

NEAR = 1.1
"""Factor of the best within which others are looked at more closely."""


_Known = dict[tuple[object, ...], list[Sized]]
"""Sizes of blocks, by all that they depend on: many graphs share a kernel."""


@dataclass(frozen=True)
class Sizer:
    """Sizes all blocks of a graph.

    Attributes:
        hardware: The GPU.
        constraints: Restrictions.
        deadline: Reading of `time.monotonic()` after which it gives up.
    """

    hardware: Hardware
    constraints: Constraints
    deadline: float | None = None
    _known: _Known = field(default_factory=_Known)

    def sized(self, graph: KernelGraph, worst: float = math.inf) -> Plan | None:
        """The best sizes; None if a block does not fit at any.

        Args:
            graph: Blocks without sizes.
            worst: Estimate in µs from which on a plan is not wanted.
        """
        beam: list[tuple[float, KernelGraph]] = [(0.0, graph)]
        fixed: dict[str, None] = {}
        # No kernel takes less than its launch, part of which the one ahead may hide.
        worst += 1e6 * self.hardware.dependent * (len(graph.blocks) - 1)
        worst -= 1e6 * self.hardware.launch * len(graph.blocks)
        for at, node in enumerate(graph.nodes):
            if not isinstance(node, BlockGraph):
                continue
            worst += 1e6 * self.hardware.launch
            if self.deadline is not None and time.monotonic() > self.deadline:
                return None
            beam = [s for state in beam for s in self._next(*state, at, fixed)]
            beam = sorted((s for s in beam if s[0] < worst), key=lambda s: s[0])[:BEAM]
            fixed.update(dict.fromkeys(_parts_stored(node)))
        least = beam[0][0] if beam else 0.0
        plans = [Plan.of(g, self.hardware) for paid, g in beam if paid <= NEAR * least]
        return min(plans, key=lambda p: p.microseconds, default=None)

    def _next(
        self,
        paid: float,
        graph: KernelGraph,
        at: int,
        fixed: dict[str, None],
    ) -> Iterator[tuple[float, KernelGraph]]:
        """The graph with sizes for one more block; the best of each number of parts."""
        block = graph.nodes[at]
        assert isinstance(block, BlockGraph)
        # What this block and later ones would make of dims is not decided yet.
        before = replace(graph, nodes=graph.nodes[:at])
        extents = derived_extents(before, graph.extent_of)
        made = _parts_stored(block)
        wanted: tuple[int | None, ...] = PARTS if made else (None,)
        if made and made[0] in fixed:
            wanted = (extents[made[0]],)
        types = kernel_types(graph)
        read = tuple(types[s] for s in block.sources)
        sizes = tuple(extents[n] for t in read for n in t.names)
        inside = self._inside(graph, at, types, extents)
        key = (block, wanted, read, sizes, inside.intersection(block.sources))
        if key not in self._known:
            self._known[key] = self._choose(types, extents, inside, block, wanted)
        for best in self._known[key]:
            nodes = (*graph.nodes[:at], best.block, *graph.nodes[at + 1 :])
            sized = with_derived_extents(replace(graph, nodes=nodes))
            yield paid + best.microseconds, sized

    def _choose(
        self,
        types: Mapping[str, TensorType],
        extents: Mapping[str, int | None],
        inside: frozenset[str],
        block: BlockGraph,
        counts: tuple[int | None, ...],
    ) -> list[Sized]:
        """The best sizes of one block, with each of some numbers of parts."""
        allowed = self.constraints.sizes(block)
        choices = [_with_parts(allowed, block, c) for c in counts]
        found = self._best(types, extents, inside, block, choices)
        if not found and allowed.grids is None and counts == (None,):
            # A short dim may have one tile only.
            any_grid = [replace(allowed, grids=_any_grid)]
            found = self._best(types, extents, inside, block, any_grid)
        return found

    def _best(
        self,
        types: Mapping[str, TensorType],
        extents: Mapping[str, int | None],
        inside: frozenset[str],
        block: BlockGraph,
        choices: list[Allowed],
    ) -> list[Sized]:
        found = sizes_of_all(
            [UnsizedBlock(block, allowed) for allowed in choices],
            types,
            extents,
            hardware=self.hardware,
            keep=1,
            inside=inside,
        )
        return [best for own in found for best in own]

    def _inside(
        self,
        graph: KernelGraph,
        at: int,
        types: Mapping[str, TensorType],
        extents: Mapping[str, int | None],
    ) -> frozenset[str]:
        """What earlier kernels left in L2."""
        made = {name for n in graph.nodes[:at] for name in results_of(n)}
        half = self.hardware.l2_bytes / 2
        return frozenset(n for n in made if tensor_bytes(types[n], extents) < half)


def _any_grid(grid: tuple[int, ...]) -> bool:
    """Admits grids with one part of a dim too."""
    return min(grid, default=1) > 0


def _with_parts(allowed: Allowed, block: BlockGraph, count: int | None) -> Allowed:
    """Grids with so many parts of the dim that a block stores, more than 1 of others.

    None leaves them as they are.
    """
    if count is None:
        return allowed
    (name, *_) = _parts_stored(block)
    base = str(partial_base(name, block))
    place = [axis[0].dim for axis in block.axes].index(base)
    before = allowed.grids

    def admits(grid: tuple[int, ...]) -> bool:
        if grid[place] != count:
            return False
        return min(grid) > 1 if before is None else before(grid)

    return replace(allowed, grids=admits)


def _parts_stored(block: BlockGraph) -> tuple[str, ...]:
    """The dims over parts that a block stores."""
    names = (d.name for s in block.stores for d in dims_of(s.axes))
    return tuple(n for n in dict.fromkeys(names) if partial_base(n, block) is not None)


# -- Plans of all numbers of kernels ---------------------------------------------------

HOPELESS = 2.0
"""DAGs that cost this factor more than the best are not sized."""

VARIED = 3
"""Graphs that are varied."""

SIMILAR = 1.03
"""Factor of the best graph within which others are varied."""


@dataclass(frozen=True)
class Run:
    """The DAGs of one run of the heuristic, or of the proof, cheapest first."""

    rebuilder: Rebuilder
    dags: Sequence[Dag]


@dataclass
class Planner:
    """Sizes DAGs of different structure.

    Attributes:
        sizer: Chooses the sizes.
        keep: Plans that are wanted.
        unshifted: Whether shifts were taken out of the program.
        serves: Whether a DAG keeps to the limits.
        late: Whether to stop.
        counters: Figures for the ledger.
        plans: The sized graphs so far.
    """

    sizer: Sizer
    keep: int
    unshifted: bool
    serves: Callable[[Union, Dag], bool]
    late: Callable[[], bool]
    counters: Counter[str]
    plans: list[Plan] = field(default_factory=list[Plan])
    _seen: set[str] = field(default_factory=set[str])
    _known: set[Hashable] = field(default_factory=set[Hashable])
    _best: dict[tuple[int, int], tuple[float, Rebuilder, Dag]] = field(
        default_factory=dict[tuple[int, int], tuple[float, Rebuilder, Dag]]
    )

    def take(self, runs: Sequence[Run], most: int) -> None:
        """Size the first so many graphs of some runs."""
        for made in itertools.islice(self._structures(self._in_turn(runs)), most):
            self._size(*made)
            if self.plans and self.late():
                break

    def take_kind(self, is_one: Callable[[KernelGraph], bool], run: Run) -> None:
        """Size the best graph of a kind, whatever its estimate, if none was yet."""
        if any(is_one(p.graph) for p in self.plans) or self.late():
            return
        for _, _, graph in self._structures(self._in_turn([run])):
            if is_one(graph):
                plan = self.sizer.sized(graph, math.inf)
                if plan is not None and not check(plan.graph):
                    self.plans.append(plan)
                    return

    def vary(self, most: int) -> None:
        """Size what differs from the best graphs in one value of a block.

        That is the best of each number of kernels, for the best of all may be close to
        another one; where a better one is found, it goes on from there.
        """
        varied = set[Dag]()
        while len(varied) < VARIED and not self.late():
            least = min((cost for cost, _, _ in self._best.values()), default=0.0)
            todo = [
                (rebuilder, dag)
                for cost, rebuilder, dag in self._best.values()
                if dag not in varied and cost <= SIMILAR * least
            ]
            if not todo:
                break
            rebuilder, dag = todo[0]
            varied.add(dag)
            others = (
                (rebuilder, d)
                for d in neighbours(rebuilder.union, dag)
                if self.serves(rebuilder.union, d)
            )
            others = itertools.islice(others, 4 * most)
            for made in itertools.islice(self._structures(others), most):
                self._size(*made)
                if self.late():
                    break

    def _size(self, rebuilder: Rebuilder, dag: Dag, graph: KernelGraph) -> None:
        """Choose the sizes of a graph, and keep it if it is one of the best."""
        plan = self.sizer.sized(graph, self._worst())
        if plan is None or check(plan.graph):
            return
        self.plans.append(plan)
        kinds = _kinds(rebuilder.union, dag)
        known = self._best.get(kinds)
        if known is None or plan.microseconds < known[0]:
            self._best[kinds] = plan.microseconds, rebuilder, dag

    def best(self) -> list[Plan]:
        """The best plans, and the best of each kind."""
        ranked = sorted(self.plans, key=lambda p: p.microseconds)
        return with_every_kind(ranked, self.keep)[: self.keep]

    def _worst(self) -> float:
        """The estimate in µs from which on a plan is none of the best."""
        costs = sorted(p.microseconds for p in self.plans)
        return costs[self.keep - 1] if len(costs) >= self.keep else math.inf

    def _in_turn(self, runs: Sequence[Run]) -> Iterator[tuple[Rebuilder, Dag]]:
        """The DAGs, cheapest first of each run and kind in turn."""
        least = min((d.cost for r in runs for d in r.dags), default=0.0)
        groups: dict[tuple[int, int, int], list[tuple[Rebuilder, Dag]]] = {}
        for number, run in enumerate(runs):
            for dag in run.dags:
                if dag.cost <= HOPELESS * least:
                    kinds = _kinds(run.rebuilder.union, dag)
                    groups.setdefault((number, *kinds), []).append((run.rebuilder, dag))
        turns = itertools.zip_longest(*(groups[k] for k in sorted(groups)))
        yield from filter(None, itertools.chain.from_iterable(turns))

    def _structures(
        self, dags: Iterable[tuple[Rebuilder, Dag]]
    ) -> Iterator[tuple[Rebuilder, Dag, KernelGraph]]:
        """The graphs of DAGs, each structure once."""
        for rebuilder, dag in dags:
            key = rebuilder.structure(dag)
            if key in self._known:
                continue
            self._known.add(key)
            graph = self._safe(rebuilder.graph(dag))
            structure = None if graph is None else canonical_hash(graph, sizes=False)
            if graph is None or structure is None or structure in self._seen:
                continue
            self._seen.add(structure)
            constraints = self.sizer.constraints
            if all(constraints.admits_structure(b) for b in graph.blocks):
                self.counters["structures"] += 1
                yield rebuilder, dag, graph

    def _safe(self, graph: KernelGraph) -> KernelGraph | None:
        """The graph with its shifts put back; None if there is no place for them."""
        safe = stabilise(graph)
        if safe is None and self.unshifted:
            self.counters["unstable"] += 1
            return None
        return safe or graph


def _kinds(u: Union, dag: Dag) -> tuple[int, int]:
    """How many blocks and how many library calls a DAG has."""
    kinds = u.kind[list(dag.enodes)]
    return int((kinds == LAUNCH).sum()), int((kinds == LIBRARY).sum())
