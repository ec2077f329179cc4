"""Wrong tile programs, which checker and evaluation have to refuse.

A mutant is a tile program with one mistake, as a slip of the builder might make it: a
mask too few, a wait that is missing, axes or operands exchanged.  It survives if the
checker accepts it and it computes the same, over residues and over floats that are
rounded, at sizes that leave ragged tiles.  Some mutants are the same program in another
form, which `meaning` tells, and a few the same function by an identity, which exact
normal forms tell.

    python -m tests.tile.mutants        # of all workloads; some minutes
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from mirage_dsl.core.errors import MirageError
from mirage_dsl.core.types import f32
from mirage_dsl.ir.analysis.launches import launched_early, launches
from mirage_dsl.ir.evaluate import NumpyDomain, evaluate, evaluate_block
from mirage_dsl.ir.graph import KernelGraph, dims_of
from mirage_dsl.ops.table import CUMPROD, CUMSUM, MAX, SUM
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.check import check
from mirage_dsl.tile.program import (
    Announce,
    Ask,
    Cast,
    Compute,
    Finite,
    Join,
    Lane,
    Largest,
    Load,
    Loop,
    Mask,
    Pick,
    Positions,
    Product,
    Reduce,
    Rescale,
    Scan,
    Start,
    Statement,
    Store,
    TileProgram,
    Update,
    Wait,
    makes,
    reads,
    walk,
)
from mirage_dsl.tile.text import parse, to_text
from mirage_dsl.verify.exact import (
    WORK,
    ExactAlgebra,
    ExactDomain,
    Ring,
    ring_equality,
    symbols,
)
from mirage_dsl.verify.fields import MOST_FIELDS, chains_for, graph_depth
from mirage_dsl.verify.sizes import Shrunk, input_shape, shrink
from mirage_dsl.verify.trials import Field, Outcome, run_trials
from mirage_dsl.verify.verifier import evaluator_of, holds_at
from tests.end_to_end.test_text_of_found import graphs_of, program_of
from tests.programs.workloads import WORKLOADS

# -- Mistakes --------------------------------------------------------------------------

Body = tuple[Statement, ...]
Change = tuple[str, Body]
"""What was changed, and the body with the change."""


@dataclass(frozen=True)
class Mutant:
    """A tile program with one mistake."""

    what: str
    program: TileProgram


def mutants(program: TileProgram) -> Iterator[Mutant]:
    """All mutants of a program."""
    for what, body in itertools.chain(
        _changed(program), _dropped(program.body), _moved(program.body)
    ):
        if body != program.body:
            yield Mutant(what, replace(program, body=body))


def _rewritten(
    body: Body, change: Callable[[Statement], Sequence[Statement] | None], at: int
) -> Body:
    """The body with what stands at a place of `walk` replaced."""
    count = itertools.count()

    def region(statements: Body) -> Body:
        found: list[Statement] = []
        for statement in statements:
            here = next(count)
            if isinstance(statement, Loop):
                statement = replace(statement, body=region(statement.body))
            new = change(statement) if here == at else None
            found += [statement] if new is None else new
        return tuple(found)

    return region(body)


def _changed(program: TileProgram) -> Iterator[Change]:
    """One statement in another way."""
    scope = _Scope(program)
    for at, (statement, _) in enumerate(walk(program.body)):
        for what, new in scope.changes(statement):
            yield what, _rewritten(program.body, lambda _, n=new: [n], at)


@dataclass
class _Scope:
    """The values of a program that may be mistaken for each other."""

    program: TileProgram

    @cached_property
    def tiles(self) -> Mapping[str, Any]:
        return self.program.tiles

    @cached_property
    def inside(self) -> dict[str, bool]:
        return {n: i for s, i in walk(self.program.body) for n in makes(s)}

    def alike(self, name: str) -> list[str]:
        """Other values of the same type and stage."""
        return [
            other
            for other, tile in self.tiles.items()
            if other != name
            and tile == self.tiles[name]
            and self.inside[other] == self.inside[name]
        ]

    def changes(self, statement: Statement) -> Iterator[tuple[str, Statement]]:
        yield from self._operands(statement)
        match statement:
            case Load():
                yield from self._loads(statement)
            case Mask():
                yield from _masks(statement)
            case Compute() | Product() | Pick():
                yield from _swapped(statement)
            case Start():
                value = -math.inf if statement.value == 0 else 0.0
                yield f"start with {value}", replace(statement, value=value)
            case Update():
                op = MAX if statement.op is SUM else SUM
                yield f"{op.name} for {statement.op.name}", replace(statement, op=op)
            case Reduce() if len(statement.over) > 1:
                less = replace(statement, over=statement.over[1:])
                yield f"over {less.over}", less
            case Lane():
                yield from self._lanes(statement)
            case Join():
                lanes = {"operand": statement.other, "other": statement.operand}
                yield "lanes exchanged", replace(statement, **lanes)
            case Scan():
                yield from _scans(statement)
            case _:
                pass
        yield from _turned(statement)

    def _operands(self, statement: Statement) -> Iterator[tuple[str, Statement]]:
        """Another value of the same type in the place of one."""
        fields = ("operand", "other", "left", "right")
        for field in (*fields, "scale", "target", "into", "state"):
            name = getattr(statement, field, None)
            if name is None or name not in self.tiles:
                continue
            if isinstance(statement, Largest) and field == "scale":
                continue
            for other in self.alike(name):
                yield (
                    f"{other} for {field} {name}",
                    replace(statement, **{field: other}),
                )
        if isinstance(statement, Compute):
            for at, name in enumerate(statement.operands):
                for other in self.alike(name) if isinstance(name, str) else ():
                    operands = list(statement.operands)
                    operands[at] = other
                    new = replace(statement, operands=tuple(operands))
                    yield f"{other} for operand {name}", new

    def _lanes(self, lane: Lane) -> Iterator[tuple[str, Statement]]:
        extent = self.program.extents[lane.along.name] or 0
        for other in range(extent + 1):
            if other != lane.at:
                yield f"lane {other}", replace(lane, at=other)
        for dim in self.tiles[lane.operand].axes:
            if dim != lane.along:
                yield f"lane along {dim}", replace(lane, along=dim)

    def _loads(self, load: Load) -> Iterator[tuple[str, Statement]]:
        for dim in load.guarded:
            rest = tuple(d for d in load.guarded if d != dim)
            yield f"{dim} is not guarded", replace(load, guarded=rest)
        types = self.program.tensors
        for name, kind in types.items():
            alike = kind.names == types[load.source].names
            if name != load.source and alike and kind.dtype == load.tile.dtype:
                yield f"{name} for {load.source}", replace(load, source=name)
        if load.buffers != 0:
            yield "no buffers", replace(load, buffers=0)
        yield "before the wait", replace(load, early=1)
        if load.along is not None:
            for other in self.alike(load.along.index):
                along = replace(load.along, index=other)
                yield f"positions by {other}", replace(load, along=along)
            for dim in dims_of(load.at):
                if dim == dim.whole != load.along.dim:
                    along = replace(load.along, dim=dim)
                    yield f"positions along {dim}", replace(load, along=along)


def _scans(scan: Scan) -> Iterator[tuple[str, Statement]]:
    op = CUMPROD if scan.op is CUMSUM else CUMSUM
    yield f"{op.name} for {scan.op.name}", replace(scan, op=op)
    for dim in scan.tile.axes:
        if dim not in (scan.along, replace(dim, loop=True)):
            yield f"along {dim}", replace(scan, along=dim)


def _masks(mask: Mask) -> Iterator[tuple[str, Statement]]:
    fill = 0.0 if mask.fill else -math.inf
    yield f"fill with {fill}", replace(mask, fill=fill)
    for at, (dim, when) in enumerate(mask.where):
        rest = (*mask.where[:at], *mask.where[at + 1 :])
        yield f"{dim} is not masked", replace(mask, where=rest)
        for other in mask.tile.axes:
            if other not in dict(mask.where):
                where = (*rest, (other, when))
                yield f"{other} masked for {dim}", replace(mask, where=where)


def _swapped(
    statement: Compute | Product | Pick,
) -> Iterator[tuple[str, Statement]]:
    match statement:
        case Compute():
            new = replace(statement, operands=statement.operands[::-1])
        case Product():
            new = replace(statement, left=statement.right, right=statement.left)
        case Pick():
            pair = {"operand": statement.other, "other": statement.operand}
            new = replace(statement, **pair)
    yield "operands swapped", new


def _turned(statement: Statement) -> Iterator[tuple[str, Statement]]:
    """The type with its axes in another order."""
    tile = getattr(statement, "tile", None)
    if tile is not None and len(tile.axes) > 1:
        axes = (*tile.axes[1:], tile.axes[0])
        turned = replace(tile, axes=axes)
        yield f"axes {axes}", replace(statement, tile=turned)  # type: ignore[call-arg]


def _dropped(body: Body) -> Iterator[Change]:
    """One statement left out; who read its result reads its operand."""
    for at, (statement, _) in enumerate(walk(body)):
        if isinstance(statement, Loop | Start | Ask):
            continue
        name = type(statement).__name__.lower()
        what = f"no {name} {' '.join(makes(statement))}"
        left = _rewritten(body, lambda _: [], at)
        operand = getattr(statement, "operand", None)
        result = getattr(statement, "result", None)
        if isinstance(operand, str) and isinstance(result, str):
            left = _renamed(left, result, operand)
        yield what, left


def _renamed(body: Body, old: str, new: str) -> Body:
    found: list[Statement] = []
    for statement in body:
        changes: dict[str, Any] = {}
        for field in ("operand", "other", "left", "right", "scale", "target", "into"):
            if getattr(statement, field, None) == old:
                changes[field] = new
        if isinstance(statement, Compute):
            changes["operands"] = tuple(
                new if o == old else o for o in statement.operands
            )
        if isinstance(statement, Loop):
            changes["body"] = _renamed(statement.body, old, new)
        found.append(replace(statement, **changes) if changes else statement)
    return tuple(found)


def _moved(body: Body) -> Iterator[Change]:
    """Two neighbours in the other order; what waits, or stores, at the other end."""
    listed = [s for s, _ in walk(body)]
    for region in (body, *(s.body for s in listed if isinstance(s, Loop))):
        for at in range(len(region) - 1):
            pair = region[at : at + 2]
            swapped = (*region[:at], pair[1], pair[0], *region[at + 2 :])
            what = " before ".join(type(s).__name__.lower() for s in pair[::-1])
            yield what, _with_region(body, region, swapped)
        for at, statement in enumerate(region):
            if isinstance(statement, Wait | Announce | Store):
                rest = (*region[:at], *region[at + 1 :])
                word = type(statement).__name__.lower()
                first, last = (statement, *rest), (*rest, statement)
                yield f"{word} first", _with_region(body, region, first)
                yield f"{word} last", _with_region(body, region, last)


def _with_region(body: Body, region: Body, new: Body) -> Body:
    if region is body:
        return new
    return tuple(
        replace(s, body=new) if isinstance(s, Loop) and s.body is region else s
        for s in body
    )


# -- The same program in another form --------------------------------------------------


def meaning(program: TileProgram) -> object:
    """What is stored, as terms: two programs with one meaning are the same program.

    Names, the order of statements that do not depend on each other, orders of axes,
    which of several loads of one tile is read, and the order of operands that commute
    make no difference.  Neither does what the checker vouches for: lanes outside hold
    the neutral element wherever they are read, so masks change nothing else, and what
    happens behind the wait need not.
    """
    return _Meaning(program).found


class _Meaning:
    def __init__(self, program: TileProgram) -> None:
        self.terms: dict[str, object] = {}
        self.waited = False
        self.stores: set[object] = set()
        self.announced: list[bool] = []
        for statement, _ in walk(program.body):
            self._take(statement)
        carried = {
            s.result: self.terms[s.result]
            for s, _ in walk(program.body)
            if isinstance(s, Start)
        }
        used = {n for s, _ in walk(program.body) for n in reads(s)} & carried.keys()
        kept = frozenset((n, carried[n]) for n in used)
        self.found = (frozenset(self.stores), kept, tuple(self.announced))

    def _take(self, statement: Statement) -> None:
        term = self.terms
        match statement:
            case Wait():
                self.waited = True
            case Announce():
                self.announced.append(self.waited)
            case Store():
                value = term[statement.operand]
                self.stores.add(
                    (
                        statement.result,
                        value,
                        statement.at,
                        statement.dtype,
                        self.waited,
                    )
                )
            case Rescale():
                made = ("rescale", term[statement.target], term[statement.scale])
                term[statement.target] = made
            case Update():
                self._add(
                    statement.target, (statement.op.name, term[statement.operand])
                )
            case Largest():
                made = ("largest", statement.state, term[statement.operand])
                term[statement.result] = made
                if statement.scale is not None:
                    term[statement.scale] = ("scale", made)
            case Ask() | Loop():
                pass
            case _:
                self._make(statement)

    def _add(self, target: str, added: object) -> None:
        """Terms that are added one after the other commute."""
        before = self.terms[target]
        if isinstance(before, tuple) and before and before[0] == "added":
            whole = Counter(dict(before[2])) + Counter([added])
            self.terms[target] = ("added", before[1], frozenset(whole.items()))
        else:
            self.terms[target] = ("added", before, frozenset({(added, 1)}))

    def _make(self, statement: Any) -> None:
        term, name = self.terms, statement.result
        match statement:
            case Load():
                along = statement.along
                index = None if along is None else (along.dim, term[along.index])
                term[name] = ("load", statement.source, statement.at, index)
            case Start():
                term[name] = ("start", name, statement.value)
            case Positions():
                term[name] = ("positions", statement.at)
            case Compute():
                term[name] = self._computed(statement)
            case Reduce():
                over = frozenset(statement.over)
                term[name] = (statement.op.name, term[statement.operand], over)
            case Scan():
                of = term[statement.operand]
                term[name] = (statement.op.name, of, statement.along)
            case Product():
                self._product(statement)
            case _:
                term[name] = self._formed(statement)

    def _formed(self, statement: Any) -> object:
        """What changes of form, and steps that keep one operand, come to."""
        term = self.terms[statement.operand]
        match statement:
            case Cast():
                return ("cast", statement.tile.dtype, term)
            case Finite():
                return ("finite", term)
            case Lane():
                return ("lane", statement.along, statement.at, term)
            case Join():
                return ("join", statement.along, term, self.terms[statement.other])
            case Pick():
                other = self.terms[statement.other]
                same = term == other
                return term if same else ("pick", statement.when, term, other)
            case _:
                return term

    def _computed(self, compute: Compute) -> object:
        own = [self.terms[o] if isinstance(o, str) else o for o in compute.operands]
        first = compute.inner or compute.op
        commutes = frozenset(Counter(own).items()) if first.commutative else tuple(own)
        return (compute.op.name, first.name, commutes)

    def _product(self, product: Product) -> None:
        sides = Counter([self.terms[product.left], self.terms[product.right]])
        groups = (product.batch, product.rows, product.columns, product.over)
        axes = frozenset(map(frozenset, groups[1:3])), frozenset(product.over)
        made = ("product", frozenset(sides.items()), axes)
        if product.into is None:
            self.terms[product.result] = made
        else:
            self._add(product.into, ("sum", made))


# -- Judging ---------------------------------------------------------------------------


ROUNDING = NumpyDomain(round_casts=True)
"""Fields do not round, so a cast that is missing shows in floats alone."""


@dataclass(frozen=True)
class Bench:
    """A μGraph at small, ragged sizes, and the tile programs of its blocks.

    Attributes:
        graph: The μGraph at those sizes.
        programs: Of its blocks.
        made: For each, what kernels before it made.
    """

    graph: KernelGraph
    programs: tuple[TileProgram, ...]
    made: tuple[AbstractSet[str] | None, ...]

    @cached_property
    def field(self) -> Field:
        """Where residues are compared: the μGraph's blocks with its tile programs."""
        length = min(graph_depth(self.graph).exps + 1, MOST_FIELDS)
        (chain,) = chains_for(length, 1, 0)
        return Field(Shrunk(self.graph, self.graph), chain, (0,))

    @cached_property
    def inputs(self) -> list[np.ndarray[Any, Any]]:
        rng = np.random.default_rng(0)
        shapes = [input_shape(self.graph, i) for i in self.graph.inputs]
        return [rng.uniform(0.5, 2.5, s) for s in shapes]

    @cached_property
    def unrounded(self) -> KernelGraph:
        """The graph with results in f32: their rounding hides that of a cast before."""
        returns = tuple(
            replace(r, type=r.type.with_dtype(f32)) for r in self.graph.returns
        )
        return replace(self.graph, returns=returns)

    @cached_property
    def expected(self) -> list[np.ndarray[Any, Any]]:
        return self._floats(
            {
                b.results: p
                for b, p in zip(self.graph.blocks, self.programs, strict=True)
            }
        )

    def _floats(
        self, own: Mapping[tuple[str, ...], TileProgram]
    ) -> list[np.ndarray[Any, Any]]:
        exact = {n: _unrounded(p) for n, p in own.items()}
        return evaluate(self.unrounded, self.inputs, ROUNDING, evaluator_of(exact))

    def accepts(self, at: int, program: TileProgram) -> bool:
        """Whether checker and evaluation take `program` for the block `at`."""
        try:
            if check(program, self.made[at]):
                return False
            return self.computes(at, program)
        except MirageError:
            return False

    def computes(self, at: int, program: TileProgram) -> bool:
        """Whether it computes what the block graph does."""
        own = evaluator_of({self.graph.blocks[at].results: program})

        def blocks(block: Any, *rest: Any) -> Any:
            of = own if block is self.graph.blocks[at] else evaluate_block
            return of(block, *rest)

        tally = run_trials(replace(self.field, blocks=blocks), 1)
        if tally.outcome is not Outcome.EQUAL:
            return False
        all_of = {
            b.results: p for b, p in zip(self.graph.blocks, self.programs, strict=True)
        }
        found = self._floats({**all_of, self.graph.blocks[at].results: program})
        pairs = zip(self.expected, found, strict=True)
        return all(np.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in pairs)

    def proves(self, at: int, program: TileProgram) -> bool:
        """Whether exact normal forms of functions of symbols are those of the block."""
        ring, results = Ring(WORK), self.graph.blocks[at].results
        own = evaluator_of({results: program})

        def blocks(block: Any, *rest: Any) -> Any:
            return (own if block.results == results else evaluate_block)(block, *rest)

        given = [
            symbols(ring, number, input_shape(self.graph, item))
            for number, item in enumerate(self.graph.inputs)
        ]
        try:
            domain = ExactDomain(ExactAlgebra(ring))
            first = evaluate(self.graph, given, domain)
            second = evaluate(self.graph, given, domain, blocks)
            equal = ring_equality(ring)
            return all(
                all(map(equal, a.ravel().tolist(), b.ravel().tolist()))
                for a, b in zip(first, second, strict=True)
            )
        except MirageError:
            return False


def _unrounded(program: TileProgram) -> TileProgram:
    def region(body: Body) -> Body:
        return tuple(
            replace(s, dtype=f32)
            if isinstance(s, Store)
            else replace(s, body=region(s.body))
            if isinstance(s, Loop)
            else s
            for s in body
        )

    return replace(program, body=region(program.body))


def benches(graph: KernelGraph) -> Iterator[Bench]:
    """The benches of a μGraph: programs of any sizes, and of its small ones."""
    small = shrink(graph, graph, ragged=True, seed=0).candidate
    made = tuple(launch.made for launch in launches(graph))
    many = programs(graph, sized=False)
    pairs = zip(many, small.blocks, strict=True)
    if all(holds_at(p, b, small.extent_of) for p, b in pairs):
        yield Bench(small, many, made)
    yield Bench(small, programs(small), made)


def workload_graphs(
    rng: random.Random, count: int
) -> Iterator[tuple[str, KernelGraph]]:
    """Some μGraphs of each workload, under several schedules."""
    for workload in WORKLOADS:
        known = list(graphs_of(program_of(workload)))
        for graph in rng.sample(known, min(count, len(known))):
            yield workload.name, scheduled(graph, rng)


def scheduled(graph: KernelGraph, rng: random.Random) -> KernelGraph:
    """The μGraph under some schedule."""
    swap, boxes = rng.random() < 0.5, rng.random() < 0.5
    found = graph.with_schedules(
        lambda b: replace(b.schedule, swap_operands=swap, descriptors=boxes)
    )
    return launched_early(found, first=True) if rng.random() < 0.5 else found


@dataclass
class Verdicts:
    """How many mutants were refused, are the same program or function, or survived."""

    refused: int = 0
    same: int = 0
    proved: int = 0
    survived: list[str] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.survived = []

    def judge(self, name: str, bench: Bench, at: int, mutant: Mutant) -> None:
        """TrialWorker one mutant."""
        if not bench.accepts(at, mutant.program):
            self.refused += 1
        elif meaning(mutant.program) == meaning(bench.programs[at]):
            self.same += 1
        elif bench.proves(at, mutant.program):
            self.proved += 1
        else:
            self.survived.append(f"{name}: {mutant.what}")


def main() -> int:
    """TrialWorker the mutants of all workloads; 1 if one survives."""
    rng, verdicts = random.Random(0), Verdicts()
    for name, graph in workload_graphs(rng, 3):
        before = verdicts.refused, verdicts.same, len(verdicts.survived)
        try:
            found = list(benches(graph))
        except MirageError as error:
            print(f"{name}: {error}")
            continue
        for bench in found:
            for at, program in enumerate(bench.programs):
                assert bench.accepts(at, program), f"{name}: {program}"
                assert parse(to_text(program)) == program, name
                for mutant in mutants(program):
                    verdicts.judge(name, bench, at, mutant)
        print(
            f"{name}: {verdicts.refused - before[0]} refused, "
            f"{verdicts.same - before[1]} the same, "
            f"{len(verdicts.survived) - before[2]} survived",
            flush=True,
        )
    print(
        f"{verdicts.refused} refused, {verdicts.same} the same program, "
        f"{verdicts.proved} the same function"
    )
    print("\n".join(verdicts.survived))
    return 1 if verdicts.survived else 0


if __name__ == "__main__":
    sys.exit(main())
