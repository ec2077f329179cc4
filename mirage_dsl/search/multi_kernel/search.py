"""The search for programs of several kernels, as one search.

    strip shifts -> storable values -> closures -> kernels -> layered graph
                 -> heuristic -> rebuild -> stabilise -> sizes -> proof

A DAG of the layered graph is rebuilt as a kernel graph of blocks with tiles of 1.  What
comes out is sized and well formed; the driver verifies it like everything else.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from mirage_dsl.core.errors import TruthError, UnsupportedError
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.core.types import (
    Axis,
    DType,
    Types,
    boolean,
)
from mirage_dsl.core.work import OutOfTimeError, until
from mirage_dsl.cost.estimate import library_kernel
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.layouts import copied_for_products
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents, with_derived_extents
from mirage_dsl.ir.walk import (
    each_dim,
    looked_at,
    map_axes,
    operands_of,
    read_by,
    with_operands,
    with_returned,
)
from mirage_dsl.rewrite.casts import coarse_tensors, insert_casts
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.shifts import stabilise, strip_shifts
from mirage_dsl.search.budget import UNLIMITED, Budget
from mirage_dsl.search.closure import BODY, LOAD, Workspace, workspace
from mirage_dsl.search.multi_kernel.dags import (
    ROUNDS,
    Dag,
    cheap_dags,
    launches,
    neighbours,
    obeys,
    prove,
)
from mirage_dsl.search.multi_kernel.layered import (
    LAUNCH,
    LIBRARY,
    OPERATE,
    POINTS,
    SAVE,
    Closure,
    KernelChoice,
    LayeredGraph,
    LibraryChoice,
    at_points,
    closures,
    kernels,
    layered_graph,
    library,
    limits,
    without_products,
)
from mirage_dsl.search.multi_kernel.storable import (
    Candidates,
    Joining,
    candidates,
    cut_dims,
)
from mirage_dsl.search.result import (
    Plan,
    Proof,
    is_one_kernel,
    leaves_products,
    with_every_kind,
)
from mirage_dsl.search.sizes import Constraints, Sizer
from mirage_dsl.search.space import MOST_LAYERS, Output, Space
from mirage_dsl.search.structures import Edge, chosen_edges, reconstruct

# -- Views and concatenations of computed tensors --------------------------------------
# No block can do that, so such a node, here called opaque, parts the program: its
# result is a tensor that kernels may read, as if it were an input, and its
# operands are tensors that kernels have to store.  In between it costs nothing,
# or a library kernel.


@dataclass(frozen=True)
class Opened:
    """A program parted at its opaque nodes.

    Attributes:
        program: What kernels have to compute, the opaque nodes' results given.
        opaque: The opaque nodes, operands under the names that are stored.
        wanted: What has to be there in the end.
    """

    program: ir.KernelGraph
    opaque: tuple[ir.Apply, ...]
    wanted: tuple[str, ...]


def opened(program: ir.KernelGraph) -> Opened:
    """Part a program of operators only."""
    types = kernel_types(program)
    origin = uncast(program)
    there = looked_at(program)
    opaque: list[ir.Apply] = []
    kept: list[ir.Apply] = []
    for node in program.applies:
        if node.stands_alone and node.result not in there:
            opaque.append(with_operands(node, origin))
        else:
            kept.append(node)
    given = {n.result for n in opaque}
    returned = {r.value: r for r in program.returns if r.value not in given}
    stored = dict.fromkeys(v for n in opaque for v in n.values)
    # Truth values that are read as numbers are stored so.
    read = read_by(n for n in program.applies if n.stands_alone)
    counted = {
        origin[v]: types[v]
        for v in sorted(read & origin.keys())
        if origin[v] not in read and types[origin[v]].dtype == boolean
    }
    others = [
        ir.Return(v, counted.get(v, types[v]).in_memory)
        for v in stored
        if v not in {*given, *there, *(origin.get(r, r) for r in returned)}
    ]
    inputs = [ir.Input(n.result, types[n.result].in_memory) for n in opaque]
    parted = replace(
        program,
        inputs=(*program.inputs, *inputs),
        nodes=tuple(kept),
        returns=(*returned.values(), *others),
    )
    wanted = dict.fromkeys(origin.get(r.value, r.value) for r in program.returns)
    return Opened(parted, tuple(opaque), tuple(w for w in wanted if w not in there))


def uncast(program: ir.KernelGraph) -> Mapping[str, str]:
    """What each result of a cast is the cast of, in the end."""
    origin: dict[str, str] = {}
    for node in program.nodes:
        if isinstance(node, ir.Apply) and "dtype" in node.op.attributes:
            source = node.values[0]
            origin[node.result] = origin.get(source, source)
    return origin


# -- From a DAG to a kernel graph ------------------------------------------------------


@dataclass
class _Use:
    """What a DAG uses of one kernel of one layer."""

    edges: list[int] = field(default_factory=list[int])
    saves: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class Rebuilder:
    """Writes the DAGs of one layered graph.

    Attributes:
        program: The program without shifts.
        layered: The layered graph.
        kernels: Its kernels.
        calls: Its pre-defined kernels.
        formats: Of the stored tensors in the unfused program.
    """

    program: ir.KernelGraph
    layered: LayeredGraph
    kernels: list[KernelChoice]
    calls: list[ir.Apply]
    formats: Mapping[str, DType]

    @cached_property
    def _coarse(self) -> Mapping[str, DType]:
        return coarse_tensors(self.program)

    def graph(self, dag: Dag) -> ir.KernelGraph:
        """The kernel graph of a DAG."""
        written: list[ir.KernelNode] = []
        there: set[str] = {i.name for i in self.program.given}
        for kind, number, use in self._uses(dag):
            if kind == LIBRARY:
                node: ir.KernelNode | None = self.calls[number]
                made: AbstractSet[str] = {self.calls[number].result} - there
            else:
                node = self._block(self.kernels[number], use, there)
                made = set() if node is None else set(node.results)
            if node is not None and made:
                written.append(node)
                there |= made
        return self._finished(written)

    def structure(self, dag: Dag) -> Hashable:
        """What the graph of a DAG depends on: DAGs at several points have one graph."""
        found: list[Hashable] = []
        for kind, number, use in self._uses(dag):
            if kind == LIBRARY:
                found.append(self.calls[number].result)
                continue
            kernel = self.kernels[number]
            saves = tuple(kernel.saves[i][:2] for i in use.saves)
            found.append((id(kernel.closure), kernel.configuration, *use.edges, saves))
        return tuple(found)

    def _uses(self, dag: Dag) -> Iterator[tuple[int, int, _Use]]:
        """Kernels in launch order, library calls of a layer first."""
        u = self.layered
        found: dict[tuple[int, int, int], _Use] = {}
        for e in dag.enodes:
            kind, detail = int(u.kind[e]), int(u.detail[e])
            key = (int(u.layer[e]), -int(kind == LIBRARY), int(u.kernel[e]))
            if kind == LIBRARY:
                found[key] = _Use()
            elif kind == OPERATE:
                found.setdefault(key, _Use()).edges.append(detail)
            elif kind == SAVE:
                found.setdefault(key, _Use()).saves.append(detail)
        for (_, call, number), use in sorted(found.items(), key=lambda i: i[0]):
            yield LIBRARY if call else OPERATE, number, use

    def _block(
        self, kernel: KernelChoice, use: _Use, there: AbstractSet[str]
    ) -> ir.BlockGraph | None:
        """The block of a kernel; None if all that it saves is there already."""
        closure, configuration = kernel.closure, kernel.configuration
        space = closure.space
        saves = [kernel.saves[i][:2] for i in use.saves]
        saves = [(name, node) for name, node in saves if name not in there]
        if not saves:
            return None
        edges = chosen_edges(closure.saturation, tuple(use.edges))
        edges = _needed(edges, [n for _, n in saves])
        stage = closure.saturation.stage
        if not any(e.kind == LOAD and stage[n] == BODY for n, e in edges.items()):
            configuration = replace(configuration, loop=None)
        by_name = {o.name: o for o in space.outputs}
        outputs: list[Output] = [by_name[name] for name, _ in saves]
        block = reconstruct(
            replace(space, outputs=tuple(outputs)),
            replace(closure.saturation, roots=tuple((n,) for _, n in saves)),
            configuration,
            edges,
        )
        assert block is not None
        return _joined(block, Joining(closure.cut))

    def _finished(self, written: list[ir.KernelNode]) -> ir.KernelGraph:
        """The graph of some kernels: views before them, types in agreement, casts."""
        origin = uncast(self.program)
        returns = with_returned(self.program, origin).returns
        graph = replace(self.program, nodes=(), returns=())
        for node in written:
            graph = self._with_views(graph, operands_of(node))
            if isinstance(node, ir.BlockGraph):
                types = kernel_types(graph)
                node = _fitting(node, types)
                node = insert_casts(node, types, self.formats, self._coarse)
            graph = replace(graph, nodes=(*graph.nodes, node))
        graph = self._with_views(graph, [r.value for r in returns])
        return with_derived_extents(replace(graph, returns=returns))

    def _with_views(
        self, graph: ir.KernelGraph, names: Iterable[str]
    ) -> ir.KernelGraph:
        """The graph with those of the program's views that are read, if not there."""
        origin = uncast(self.program)
        made = {n.result for n in graph.applies}
        needed, views = set(names), list[ir.Apply]()
        for node in reversed(self.program.nodes):
            if not isinstance(node, ir.Apply) or not node.is_view:
                continue
            if node.result in needed - made:
                seen = node.values[0]
                views.insert(0, replace(node, operands=(origin.get(seen, seen),)))
                needed.update(views[0].values)
        return replace(graph, nodes=(*graph.nodes, *views))


def _needed(edges: dict[int, Edge], roots: list[int]) -> dict[int, Edge]:
    """The edges below some nodes."""
    found: dict[int, Edge] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = edges[node]
            stack.extend(edges[node].operands)
    return found


def _joined(block: ir.BlockGraph, joining: Joining) -> ir.BlockGraph:
    """A block over halves as one over dims."""
    grid = tuple(replace(s, dim=joining.name(s.dim)) for s in block.grid)
    gridded = frozenset(s.dim for s in block.grid)
    loop = None if block.loop is None else ir.Split(joining.name(block.loop.dim), 1)
    nodes = (
        node.summing(joining.over(node.over, gridded))
        if isinstance(node, ir.Apply) and node.over
        else node
        for node in map_axes(block, lambda n: joining.axes(n.axes)).nodes
    )
    return ir.BlockGraph(grid, loop, tuple(nodes))


def _fitting(block: ir.BlockGraph, types: Types) -> ir.BlockGraph:
    """The block with its loads' axes as those of the tensors that there are."""

    def fitting(node: ir.Load | ir.Store) -> tuple[Axis, ...]:
        if isinstance(node, ir.Store):
            return node.axes
        pieces = {d.name: d for d in ir.dims_of(node.axes)}
        return each_dim(types[node.source].axes, lambda d: pieces[d.name])

    return map_axes(block, fitting)


# -- From cheap DAGs to sized graphs, of all numbers of kernels in turn ----------------


CRUDE = 2.0
"""What the additive model, which has a few tiles and no schedules, may be off by: DAGs
that cost this factor more than the best are not sized."""

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
        truths: Whether the program has truth values.
        plans: The sized graphs so far.
    """

    sizer: Sizer
    keep: int
    unshifted: bool
    serves: Callable[[LayeredGraph, Dag], bool]
    late: Callable[[], bool]
    counters: Counter[str]
    truths: bool = False
    plans: list[Plan] = field(default_factory=list[Plan])
    _seen: set[str] = field(default_factory=set[str])
    _sized: set[str] = field(default_factory=set[str])
    _known: set[Hashable] = field(default_factory=set[Hashable])
    _best: dict[Hashable, tuple[float, Rebuilder, Dag]] = field(
        default_factory=dict[Hashable, tuple[float, Rebuilder, Dag]]
    )

    def take(self, runs: Sequence[Run], most: int) -> None:
        """Size the first so many graphs of some runs; what is there does not count."""
        made = itertools.islice(self._structures(self._in_turn(runs)), 2 * most)
        while most and (one := next(made, None)) is not None:
            most -= self._size(*one)
            if self.plans and self.late():
                break

    def take_kind(self, is_one: Callable[[ir.KernelGraph], bool], run: Run) -> None:
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

        That is the best of each number of kernels, and of one kernel with each grid,
        for the best of all may be close to another one; where a better one is found, it
        goes on from there.
        """
        varied = set[Dag]()
        while len(varied) < VARIED and not self.late():
            least = min((cost for cost, _, _ in self._best.values()), default=0.0)
            todo = [
                (cost, rebuilder, dag)
                for cost, rebuilder, dag in self._best.values()
                if dag not in varied and cost <= SIMILAR * least
            ]
            if not todo:
                break
            _, rebuilder, dag = min(todo, key=lambda one: one[0])
            varied.add(dag)
            others = (
                (rebuilder, d)
                for d in neighbours(rebuilder.layered, dag)
                if self.serves(rebuilder.layered, d)
            )
            others = itertools.islice(others, 4 * most)
            for made in itertools.islice(self._structures(others), most):
                self._size(*made)
                if self.late():
                    break

    def _size(self, rebuilder: Rebuilder, dag: Dag, graph: ir.KernelGraph) -> bool:
        """Choose the sizes of a graph, and keep it if it is one of the best.

        Returns False if that one is there already: graphs that differ in their grids
        only may be one with the best sizes.
        """
        plan = self.sizer.sized(graph, self._worst())
        if plan is None or check(plan.graph):
            return True
        structure = canonical_hash(plan.graph, sizes=False)
        if structure in self._sized:
            return False
        self._sized.add(structure)
        self.plans.append(plan)
        kind: Hashable = _kernel_counts(rebuilder.layered, dag)
        if is_one_kernel(plan.graph):
            # Its grid is most of what there is to choose.
            kind = kind, tuple(s.dim for s in plan.graph.blocks[0].grid)
        known = self._best.get(kind)
        if known is None or plan.microseconds < known[0]:
            self._best[kind] = plan.microseconds, rebuilder, dag
        return True

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
                if dag.cost <= CRUDE * least:
                    kinds = _kernel_counts(run.rebuilder.layered, dag)
                    groups.setdefault((number, *kinds), []).append((run.rebuilder, dag))
        turns = itertools.zip_longest(*(groups[k] for k in sorted(groups)))
        yield from filter(None, itertools.chain.from_iterable(turns))

    def _structures(
        self, dags: Iterable[tuple[Rebuilder, Dag]]
    ) -> Iterator[tuple[Rebuilder, Dag, ir.KernelGraph]]:
        """The graphs of DAGs, each structure once."""
        for rebuilder, dag in dags:
            key = rebuilder.structure(dag)
            if key in self._known:
                continue
            self._known.add(key)
            graph = self._written(rebuilder, dag)
            structure = None if graph is None else canonical_hash(graph, sizes=False)
            if graph is None or structure is None or structure in self._seen:
                continue
            self._seen.add(structure)
            constraints = self.sizer.constraints
            if all(constraints.admits_structure(b) for b in graph.blocks):
                self.counters["structures"] += 1
                yield rebuilder, dag, graph

    def _written(self, rebuilder: Rebuilder, dag: Dag) -> ir.KernelGraph | None:
        """The graph of a DAG, with its shifts put back; None if there is none.

        A cast is no tensor of its own in a layered graph, so a DAG may store truth
        values where a library kernel reads numbers.
        """
        if not self.truths:
            return self._safe(rebuilder.graph(dag))
        try:
            graph = self._safe(rebuilder.graph(dag))
            if graph is not None:
                kernel_types(graph)
        except TruthError:
            self.counters["of truth values"] += 1
            return None
        return graph

    def _safe(self, graph: ir.KernelGraph) -> ir.KernelGraph | None:
        """The graph with its shifts put back; None if there is no place for them."""
        safe = stabilise(graph)
        if safe is None and self.unshifted:
            self.counters["unstable"] += 1
            return None
        return safe or graph


def _kernel_counts(u: LayeredGraph, dag: Dag) -> tuple[int, int]:
    """How many blocks and how many library calls a DAG has."""
    kinds = u.kind[list(dag.enodes)]
    return int((kinds == LAUNCH).sum()), int((kinds == LIBRARY).sum())


# -- The whole search ------------------------------------------------------------------


PROOF_EFFORT = 1.0
"""Most work for the proof, by the solver's measure: about half a second."""

MOST_ENODES = 8_000
"""Kernels enter the layered graph at more points as long as it stays this small."""

TRIED = 2
"""Graphs that are sized for each one kept: the model of the layered graph is crude."""

VARIANTS = 6
"""Graphs that are sized of those that differ from a good one in one value."""

DEARER_US = (0.0, 2.0, 5.0, 20.0)
"""What launches cost more, one after the other, while a DAG has too many."""


DEAREST_US = 1000.0
"""The same, where as few launches are wanted as can be."""


@dataclass
class MultiKernel:
    """What the search found.

    Attributes:
        plans: Sized graphs, best estimate first, all of different structure.
        cost: The additive cost of the best program found, in µs, at the points that
            are in the layered graph.
        bound: No program of the space costs less; None if nothing is proved.
        heuristic: The additive cost of the heuristic's best.
        complete: Whether the space was exhausted and the best program proved.
        own: Whether only values of the program itself were looked at.
        counters: Figures for the ledger.
        seconds: Time of each step.
    """

    plans: list[Plan] = field(default_factory=list[Plan])
    cost: float | None = None
    bound: float | None = None
    heuristic: float | None = None
    complete: bool = False
    own: bool = False
    counters: Counter[str] = field(default_factory=Counter[str])
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def proof(self) -> Proof | None:
        """What is proved of all programs of the space."""
        return None if self.cost is None else Proof(self.cost, self.bound)

    def spend(self, step: str, since: float) -> float:
        """Add the time since then to a step; returns the time now."""
        now = time.perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - since
        return now


def multi_kernel(
    program: ir.KernelGraph,
    hardware: Hardware,
    *,
    max_kernels: int = 3,
    budget: Budget = UNLIMITED,
    seed: int = 0,
    keep: int = 8,
    constraints: Constraints | None = None,
    found: MultiKernel | None = None,
    enough: float = 0.0,
) -> MultiKernel:
    """The best graphs of up to `max_kernels` kernels, searched as one space.

    Args:
        program: A traced program of known extents.
        hardware: The GPU to estimate for.
        max_kernels: Most kernels, library calls included.
        budget: After which it stops.
        seed: Of all random choices.
        keep: How many graphs to size and return at most.
        constraints: Restrictions on grids, maps, loops and blocks.
        found: What to fill and return; it has the plans so far if Ctrl-C is pressed.
        enough: Estimate in µs that is so close to the least possible that no better
            graph is looked for, nor is it proved that there is none.
    """
    found = found or MultiKernel()
    whole = expand(program)
    plain = strip_shifts(whole)
    search = _Search(
        plain,
        opened(plain),
        len(plain.nodes) < len(whole.nodes),
        max_kernels,
        budget,
        seed,
        hardware,
        constraints or Constraints(),
        workspace(),
        found,
        enough,
    )
    search.run(keep)
    return found


@dataclass
class _Search:
    program: ir.KernelGraph
    parted: Opened
    unshifted: bool
    max_kernels: int
    budget: Budget
    seed: int
    hardware: Hardware
    constraints: Constraints
    arrays: Workspace
    found: MultiKernel
    enough: float
    step: Budget = UNLIMITED

    def run(self, keep: int) -> None:
        """Size the heuristic's programs, prove the cheapest, and size that one too.

        In this order, for a proof may take long; it gets half of the time that is left.
        """
        sizer = Sizer(self.hardware, self.constraints, self.budget)
        planner = Planner(
            sizer,
            keep,
            self.unshifted,
            self._serves,
            lambda: self.step.late(),
            self.found.counters,
            any(t.dtype == boolean for t in kernel_types(self.program).values()),
        )
        try:
            with until(self.budget.end):
                self.plan(planner, keep)
        except UnsupportedError:
            return
        except OutOfTimeError:
            self.found.complete = False
        finally:
            self.found.plans = planner.best()

    def plan(self, planner: Planner, keep: int) -> None:
        """The steps."""
        rebuilders = list(self.rebuilders())
        self.step = self.budget.half()
        runs = [r for rebuilder in rebuilders for r in self._cheap_runs(rebuilder)]
        began = time.perf_counter()
        self.step = self.budget.half()
        planner.take(runs, TRIED * keep)
        if rebuilders:
            planner.take_kind(leaves_products, self._beside_products(rebuilders[-1]))
            planner.take_kind(is_one_kernel, self._fewest_kernels(rebuilders[-1]))
        began = self.found.spend("sizes", began)
        least = min((p.microseconds for p in planner.plans), default=math.inf)
        if rebuilders and least > self.enough:
            last = rebuilders[-1]
            own = [d for r in runs if r.rebuilder is last for d in r.dags]
            self.step = self.budget.half()
            proved = self._proved(last.layered, min(own, key=_by_cost, default=None))
            began = self.found.spend("proof", began)
            self.step = self.budget.half()
            planner.take([Run(last, proved)], 1)
            planner.vary(VARIANTS)
            self.found.spend("sizes", began)

    def rebuilders(self) -> Iterator[Rebuilder]:
        """The layered graphs of two layers and more, each to be rebuilt from."""
        began = time.perf_counter()
        tensors, choices = self._closures()
        began = self.found.spend("closures", began)
        if not choices:
            return
        own = [k for c in choices for k in kernels(c, self.hardware)]
        calls = self._calls(choices[0].space)
        self.found.counters["kernels"] += len(own)
        longest = min(self.max_kernels, MOST_LAYERS)
        self.found.complete &= longest == self.max_kernels
        for layers in range(min(2, longest), longest + 1):
            for graph, some in self._graphs(choices[0].space, own, calls, layers):
                self.found.counters["enodes"] = len(graph.cost)
                yield Rebuilder(self.program, graph, some, calls, tensors.formats)
            began = self.found.spend("layers", began)
            if self.budget.late():
                self.found.complete &= layers == longest
                return

    def _calls(self, space: Space) -> list[ir.Apply]:
        """Pre-defined kernels, the opaque nodes that cost something among them."""
        names = {v.name for v in space.values if v.is_load}
        names |= {space.values[i].name for i in space.stored}
        joins = [n for n in self.parted.opaque if not n.is_view]
        return library(self.parted.program, names) + joins

    def _unread(self) -> Iterator[str]:
        """Inputs and views of them that opaque nodes read, perhaps no kernel."""
        there = looked_at(self.program)
        read = dict.fromkeys(v for n in self.parted.opaque for v in n.values)
        yield from (v for v in read if v in there)

    def _graphs(
        self, space: Space, own: list[KernelChoice], calls: list[ir.Apply], layers: int
    ) -> Iterator[tuple[LayeredGraph, list[KernelChoice]]]:
        """The layered graphs of so many layers, each with its kernels.

        First of all kernels at one point, then of those of use at several: there the
        heuristic ends up with more different sizes, but fewer structures.
        """
        given = {n.result for n in self.parted.opaque}
        loads = [v.name for v in space.values if v.is_load]
        unread = [n for n in self._unread() if n not in loads]
        inputs = [n for n in (*loads, *unread) if n not in given]
        stored = [space.values[i].name for i in sorted(space.stored)]
        views = [(n.result, n.values[0]) for n in self.parted.opaque if n.is_view]
        priced, launch = self._priced(calls), self.hardware.ranking.launch_us

        def layered(some: list[KernelChoice]) -> LayeredGraph | None:
            tensors = [*stored, *given]
            wanted = self.parted.wanted
            return layered_graph(
                inputs, wanted, tensors, some, priced, layers, launch, views
            )

        graph = layered(own)
        if graph is None:
            return
        yield graph, own
        points = POINTS[: MOST_ENODES // len(graph.cost)]
        used: list[int] = np.unique(graph.kernel[graph.kind == LAUNCH]).tolist()
        if len(points) > 1:
            own = [k for i in used for k in at_points(own[i], points, self.hardware)]
            graph = layered(own)
            assert graph is not None
            yield graph, own

    def _closures(self) -> tuple[Candidates, list[Closure]]:
        """What kernels may store, and what they can compute from it."""
        tensors = candidates(
            self.parted.program,
            cut_dims(self.program),
            self.arrays,
            unshifted=self.unshifted,
            seed=self.seed,
            budget=self.budget,
        )
        self.found.own = tensors.own
        self.found.counters.update(tensors.counters)
        choices = list(
            closures(tensors, self.arrays, seed=self.seed, budget=self.budget)
        )
        self.found.complete = tensors.complete and not self.budget.late()
        for closure in choices:
            self.found.complete &= closure.saturation.complete
            self.found.counters["nodes"] += len(closure.saturation.shape)
        return tensors, choices

    def _priced(self, calls: list[ir.Apply]) -> list[LibraryChoice]:
        types = kernel_types(self.program)
        extents = derived_extents(self.program)
        copied = copied_for_products(self.program, types, extents)
        priced: list[LibraryChoice] = []
        for node in calls:
            cost = library_kernel(
                node, types, extents, frozenset(), self.hardware, copied
            )
            own = cost.microseconds - 1e6 * (self.hardware.launch + self.hardware.ramp)
            priced.append(LibraryChoice(node.result, node.values, own))
        return priced

    def _cheap_runs(self, rebuilder: Rebuilder) -> Iterator[Run]:
        """The heuristic's DAGs, of at most as many kernels as layers, and of more."""
        graph = rebuilder.layered
        layers, most = int(graph.layer.max()), limits(self.hardware)
        last = layers == min(self.max_kernels, MOST_LAYERS)
        for count in sorted({layers, self.max_kernels} if last else {layers}):
            began = time.perf_counter()
            found = self._cheap(graph, count)
            dags = [d for d in found if obeys(graph, d, most)]
            self.found.counters["over limits"] += len(found) - len(dags)
            self.found.spend("heuristic", began)
            yield Run(rebuilder, sorted(dags, key=_by_cost))

    def _beside_products(self, rebuilder: Rebuilder) -> Run:
        """DAGs in which library kernels compute all products."""
        kept = without_products(rebuilder.layered, rebuilder.kernels)
        if kept is None:
            return Run(rebuilder, ())
        some = rebuilder.layered.take(kept)
        found = cheap_dags(some, seed=self.seed, patience=ROUNDS, budget=self.step)
        dags = [Dag(tuple(kept[list(d.enodes)].tolist()), d.cost) for d in found]
        return Run(rebuilder, [d for d in dags if self._serves(rebuilder.layered, d)])

    def _fewest_kernels(self, rebuilder: Rebuilder) -> Run:
        """DAGs of as few kernels as can be."""
        graph = rebuilder.layered
        launch = (graph.kind == LAUNCH) | (graph.kind == LIBRARY)
        dearer = replace(graph, cost=graph.cost + np.where(launch, DEAREST_US, 0.0))
        found = cheap_dags(dearer, seed=self.seed, patience=ROUNDS, budget=self.step)
        return Run(rebuilder, [d for d in found if self._serves(graph, d)])

    def _serves(self, graph: LayeredGraph, dag: Dag) -> bool:
        """Whether a DAG keeps to the limits, and has few enough kernels."""
        few = launches(graph, dag) <= self.max_kernels
        return few and obeys(graph, dag, limits(self.hardware))

    def _cheap(self, graph: LayeredGraph, max_kernels: int) -> list[Dag]:
        """The heuristic's DAGs of few enough kernels.

        While the cheapest one has too many, launches are made dearer.
        """
        kept: dict[tuple[int, ...], Dag] = {}
        launch = (graph.kind == LAUNCH) | (graph.kind == LIBRARY)
        for extra in DEARER_US:
            dearer = replace(graph, cost=graph.cost + np.where(launch, extra, 0.0))
            dags = cheap_dags(dearer, seed=self.seed, budget=self.step)
            for dag in dags:
                if launches(graph, dag) <= max_kernels:
                    cost = float(graph.cost[list(dag.enodes)].sum())
                    kept[dag.enodes] = Dag(dag.enodes, cost)
            if dags and launches(graph, dags[0]) <= max_kernels:
                break
            if kept and self.step.late():
                break
        return list(kept.values())

    def _proved(self, graph: LayeredGraph, known: Dag | None) -> list[Dag]:
        """The proof's DAG, if it comes to one; takes note of the bound."""
        self.found.heuristic = self.found.cost = None if known is None else known.cost
        proof = None
        if not self.step.late():
            proof = prove(
                graph,
                budget=self.step,
                effort=PROOF_EFFORT,
                max_kernels=self.max_kernels,
                most=limits(self.hardware),
                known=known,
                seed=self.seed,
            )
        proved = proof is not None and (proof.optimal or proof.nothing)
        self.found.complete &= proved
        if proof is None or proof.nothing:
            return []
        self.found.bound = proof.bound
        if proof.best is None:
            return []
        self.found.cost = min(proof.best.cost, self.found.cost or math.inf)
        return [proof.best]


def _by_cost(dag: Dag) -> tuple[float, tuple[int, ...]]:
    return dag.cost, dag.enodes
