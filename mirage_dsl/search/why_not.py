"""Why a search did not find a given μGraph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Literal

from mirage_dsl.core.errors import CheckError, UnsupportedError
from mirage_dsl.core.hardware import DEFAULT, GRID_AXES, Hardware
from mirage_dsl.core.types import DType, MemorySpace, TensorType
from mirage_dsl.cost.estimate import Cost, estimate
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.canonical import Renaming, canonical_hash
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.text.parser import GraphLike, graph_of
from mirage_dsl.ir.walk import map_blocks, results_of, values_of
from mirage_dsl.ops.definition import AttributeKind, Kind, Term
from mirage_dsl.rewrite.casts import coarse_tensors, insert_casts, without_casts
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.shifts import stabilise, strip_shifts
from mirage_dsl.rewrite.sums import forms
from mirage_dsl.search.closure import KIND, enabled_kinds
from mirage_dsl.search.driver import search
from mirage_dsl.search.result import SearchResult, hash_but_for_factors
from mirage_dsl.search.rewrites import REWRITES
from mirage_dsl.search.segments import one_kernel, reads_joined
from mirage_dsl.search.sizes import Constraints
from mirage_dsl.search.space import Configuration, Space, space_of
from mirage_dsl.search.useful import (
    IN_TILE,
    JOIN,
    MODULUS,
    REDUCE,
    Pair,
    Useful,
    iota,
    key_of,
    salt_of,
    times,
    useful,
    word_of,
)
from mirage_dsl.verify.certificate import Certificate
from mirage_dsl.verify.shifts import reductions_as_shifts
from mirage_dsl.verify.verifier import verify

# -- Values outside of S ---------------------------------------------------------------
# The rules are those of the closure (`search.closure`), for one graph and in
# Python.


@dataclass(frozen=True)
class Abstract:
    """A value as pruning sees it.

    Attributes:
        pair: Its fingerprint.
        names: Its dims, as a mask.
        piece: Whether it has only one iteration's piece of the loop dim.
    """

    pair: Pair
    names: int
    piece: bool = False


class UnknownValueError(Exception):
    """A value that the search does not make, whatever S holds; its text says why."""


@dataclass
class Membership:
    """Evaluates a block value by value.

    Attributes:
        space: The program's space; the block uses its names.
        block: The block.
        sources: Abstract values of tensors that are no inputs of the program.
        values: Values so far; None for one that only shifts exponents.
    """

    space: Space
    block: ir.BlockGraph
    sources: Mapping[str, Abstract] = field(default_factory=dict[str, Abstract])
    values: dict[str, Abstract | None] = field(
        default_factory=dict[str, "Abstract | None"]
    )

    def __post_init__(self) -> None:
        loop = None if self.block.loop is None else self.block.loop.dim
        self.loop = -1 if loop is None else self.space.dims.index(loop)
        self.useful: Useful = useful(self.space, loop)
        self.tensors = {
            v.name: Abstract(self.useful.fingerprints[i], v.names)
            for i, v in enumerate(self.space.values)
            if v.constant is None
        }

    def stranger(self) -> str | None:
        """The first value that is not in S, and why; None if there is none."""
        for node in self.block.nodes:
            try:
                found = self._evaluated(node)
            except UnknownValueError as error:
                return f"`{node.result}`: {error}"
            self.values[node.result] = found
            if found is not None and not isinstance(node, ir.Load | ir.Store):
                if self._is_member(found):
                    continue
                dims = ", ".join(self.space.names(found.names))
                return (
                    f"the abstract expression of `{node.result}`[{dims}] is not in S: "
                    "it is no part of any expression that the axioms of sums, products "
                    "and quotients make of the program"
                )
        return None

    def _is_member(self, value: Abstract) -> bool:
        key = key_of(value.pair) ^ salt_of(value.names) or 1
        return key in self.useful.keys

    def _evaluated(self, node: ir.BlockNode) -> Abstract | None:
        match node:
            case ir.Load():
                return self._loaded(node)
            case ir.RunningMax():
                return None
            case ir.Store():
                return self.values[node.operand]
            case ir.Accumulate():
                return self._accumulated(node)
            case ir.Apply():
                return self._applied(node)

    def _loaded(self, node: ir.Load) -> Abstract:
        known = self.tensors.get(node.source) or self.sources.get(node.source)
        if known is None:
            raise UnknownValueError(f"the program has no tensor {node.source}")
        looped = any(d.loop for axis in node.axes for d in axis)
        return Abstract(known.pair, known.names, looped)

    def _accumulated(self, node: ir.Accumulate) -> Abstract | None:
        value = self.values[node.operand]
        if value is None:
            return None
        if node.kind == ir.JOINED:
            return Abstract(value.pair, value.names)
        if not node.adds:
            return self._stepped(node.kind, value, 0, JOIN)
        s = self.useful.sigma_loop
        return Abstract(times(value.pair, (s, s)), value.names, value.piece)

    def _applied(self, node: ir.Apply) -> Abstract | None:
        if node.op.shift_of is not None:
            return None
        operands = [self._operand(o) for o in node.operands]
        first = operands[0]
        if first is None or None in operands:
            # x - shift is x, and what is computed of shifts is one.
            return first if node.op.term is Term.SUB else None
        known = [o for o in operands if o is not None]
        if node.op.in_steps and node.op.term is Term.FUNCTION:
            over = self.space.mask(node.over)
            tile = first.piece and bool(over >> self.loop & 1)
            return self._stepped(node.op.name, first, over, IN_TILE if tile else REDUCE)
        names = 0
        for o in known:
            names |= o.names
        whole = Abstract(self._pair(node, known), names, any(o.piece for o in known))
        return self._summed(node, whole)

    def _operand(self, operand: ir.Operand) -> Abstract | None:
        if isinstance(operand, str):
            return self.values[operand]
        for i in self.space.constants:
            if self.space.values[i].constant == operand:
                return Abstract(self.useful.fingerprints[i], 0)
        raise UnknownValueError(f"the program has no constant {operand}")

    def _pair(self, node: ir.Apply, operands: list[Abstract]) -> Pair:
        a, b = operands[0].pair, operands[-1].pair
        match node.op.term:
            case Term.ADD:
                return (a[0] + b[0]) % MODULUS, (a[1] + b[1]) % MODULUS
            case Term.SUB:
                return (a[0] - b[0]) % MODULUS, (a[1] + b[1]) % MODULUS
            case Term.MUL | Term.CONTRACT:
                return times(a, b)
            case Term.DIV:
                return times(a, (iota(b[0]), iota(b[1])))
            case Term.SUM | Term.IDENTITY:
                return a
            case Term.FUNCTION:
                return self._function(node, operands)

    def _stepped(self, name: str, value: Abstract, over: int, way: int) -> Abstract:
        """A step of a reduction that is made in steps."""
        for site in self.useful.sites:
            op = self.space.values[site.value].op
            same = op is not None and op.name == name
            if same and (site.keys, site.over, site.way) == (
                (key_of(value.pair),),
                over,
                way,
            ):
                names = value.names & ~over
                piece = value.piece and (way == JOIN or not over >> self.loop & 1)
                return Abstract(site.result, names, piece)
        raise UnknownValueError(
            f"the program has no {name} of an operand with this abstract expression"
        )

    def _function(self, node: ir.Apply, operands: list[Abstract]) -> Pair:
        along = self.space.mask(node.along)
        name = f"{node.op.name} along {along}" if along else node.op.name
        word = word_of(f"{name} over {self.space.mask(node.over)}")
        keys = tuple(key_of(o.pair) for o in operands)
        if node.op.commutative:
            keys = tuple(sorted(keys))
        for site in self.useful.sites:
            value = self.space.values[site.value]
            same = word == word_of(f"{value.function} over {value.over}")
            if same and site.keys == keys:
                return site.result
        raise UnknownValueError(
            f"the program has no {node.op.name} of an operand with this abstract "
            "expression; functions are searched on what the program applies them to"
        )

    def _summed(self, node: ir.Apply, value: Abstract) -> Abstract:
        over = self.space.mask(node.over)
        pair = value.pair
        if node.op.term in (Term.SUM, Term.CONTRACT):
            for d in range(len(self.space.dims)):
                if over >> d & 1:
                    s = self.useful.sigma[d][d == self.loop and value.piece]
                    pair = times(pair, (s, s))
        names = value.names & ~over
        still = value.piece and bool(names >> self.loop & 1)
        return Abstract(pair, names, still)


# -- Rules of the space ----------------------------------------------------------------

_NEW = (AttributeKind.NEW_DIM, AttributeKind.NEW_DIMS)


def with_program_names(
    mugraph: ir.KernelGraph, program: ir.KernelGraph
) -> ir.KernelGraph | None:
    """The μGraph with the program's names of inputs, their views, and dims.

    None if the inputs' dims do not correspond one by one, or it views inputs in a way
    that the program does not.
    """
    dims: dict[str, str] = {}
    values: dict[str, str] = {}
    for ours, theirs in zip(mugraph.inputs, program.inputs, strict=True):
        if [len(a) for a in ours.type.axes] != [len(a) for a in theirs.type.axes]:
            return None
        dims.update(zip(ours.type.names, theirs.type.names, strict=True))
        values[ours.name] = theirs.name
    for own in mugraph.indices:
        axis = Renaming(dims).axes((own.axis,))[0]
        twin = next((i for i in program.indices if i.axis == axis), None)
        if twin is None:
            return None
        values[own.name] = twin.name
    # Other values may not take the names of the program's.
    taken = values_of(program)
    for node in mugraph.nodes:
        names = results_of(node)
        values.update({n: f"{n}'" for n in names if n in taken and n not in values})
        if isinstance(node, ir.Apply) and node.is_view:
            if node.values[0] not in values:
                return None
            renamed = Renaming(dims, values).apply(node, values)
            twin = next((n for n in program.nodes if _same_view(renamed, n)), None)
            if not isinstance(twin, ir.Apply):
                return None
            values[node.result] = twin.result
            dims.update(zip(_new_dims(node), _new_dims(twin), strict=True))
    return Renaming(dims, values).graph(mugraph)


def _same_view(node: ir.Apply, other: object) -> bool:
    """Whether two views differ at most in the names of new dims."""
    return (
        isinstance(other, ir.Apply)
        and (node.op, node.operands) == (other.op, other.operands)
        and _old_attributes(node) == _old_attributes(other)
    )


def _old_attributes(node: ir.Apply) -> list[object]:
    kinds = node.op.attributes
    return [v for name, v in node.attrs if kinds.get(name) not in _NEW]


def _new_dims(node: ir.Apply) -> tuple[str, ...]:
    kinds = node.op.attributes
    found = (v for name, v in node.attrs if kinds.get(name) in _NEW)
    return tuple(chain.from_iterable(map(ir.named_in, found)))


def outside(
    mugraph: ir.KernelGraph,
    program: ir.KernelGraph,
    space: Space | None,
    max_kernels: int | None,
) -> Iterator[str]:
    """The rules that an expanded μGraph with the program's names breaks.

    Args:
        mugraph: The μGraph.
        program: What was searched.
        space: The program's space as one kernel; None if it has none.
        max_kernels: As it was searched with.
    """
    calls = [n for n in mugraph.applies if not n.is_view]
    kernels = len(calls) + len(mugraph.blocks)
    if max_kernels and mugraph.blocks and kernels > max_kernels:
        yield (
            f"it has {kernels} kernels, {len(calls)} of them of the library; the "
            f"search was for at most {max_kernels} (max_kernels)"
        )
    if space is None and kernels == 1:
        yield "the program as a whole is not in the space of one kernel"
    outer, coarse = kernel_types(mugraph), coarse_tensors(program)
    for block in mugraph.blocks:
        name = f"the block of {', '.join(block.results)}"
        for problem in _block_rules(block, outer, coarse):
            yield f"{name}: {problem}"
        if space is not None and kernels == 1:
            for problem in _space_rules(block, space):
                yield f"{name}: {problem}"


def _block_rules(
    block: ir.BlockGraph, outer: dict[str, TensorType], coarse: Mapping[str, DType]
) -> Iterator[str]:
    if len(block.axes) > GRID_AXES:
        yield f"its grid splits {len(block.axes)} dims, at most {GRID_AXES} are"
    yield from _mixed_splits(block)
    for node in block.nodes:
        if isinstance(node, ir.Apply) and (node.is_view or node.op.kind is Kind.CONCAT):
            yield f"`{node.result}`: a block has no {node.op.name}"
    if reads_joined(block):
        yield (
            "an operator reads a value that is joined over the loop, which would be "
            "whole without the loop"
        )
    bare = without_casts(block)
    if _hash(insert_casts(bare, outer, coarse=coarse), outer) != _hash(block, outer):
        yield (
            "its casts are not those that the search places: of computed operands of "
            "products, to the format that they have in the program"
        )


def _mixed_splits(block: ir.BlockGraph) -> Iterator[str]:
    """A dim is split in all tensors or in none."""
    split = {s.dim for s in block.grid}
    loop = None if block.loop is None else block.loop.dim
    for node in block.loads:
        for dim in ir.dims_of(node.axes):
            if dim.name in split and not dim.grid:
                yield f"{node.source} is whole along {dim.name}, which the grid splits"
            if dim.name == loop and not dim.loop:
                yield f"{node.source} is whole along {dim.name}, which the loop splits"


def _space_rules(block: ir.BlockGraph, space: Space) -> Iterator[str]:
    for axis in block.axes:
        names = [s.dim for s in axis]
        if len(axis) > 1 and set(names) not in map(set, space.shared_axes):
            yield (
                f"one axis of its grid splits {' and '.join(names)}; every output has "
                "one dim of such an axis"
            )
        if len(axis) == 1 and names[0] not in space.output_dims:
            yield (
                f"its grid splits {names[0]}, which not every output has; only "
                f"{', '.join(space.output_dims) or 'no dim'} may be split alone"
            )
    if block.loop is not None and block.loop.dim not in space.loop_dims:
        yield f"its loop is over {block.loop.dim}, which no tensor read has"
    enabled = enabled_kinds(space)
    for node in block.nodes:
        if not isinstance(node, ir.Apply) or node.op.term is Term.IDENTITY:
            continue
        known = KIND[node.op.term] in enabled
        if not known and not _only_shifts(block, node):
            yield (
                f"`{node.result}` = {node.op.name}: the search places no operator of "
                "this kind for a program that has none"
            )


def _only_shifts(block: ir.BlockGraph, node: ir.Apply) -> bool:
    """Whether an operator reads or makes shifts of exponents."""
    running = {n.result for n in block.nodes if isinstance(n, ir.RunningMax)}
    running |= {
        n.result
        for n in block.nodes
        if isinstance(n, ir.Accumulate) and n.operand in running
    }
    return node.op.shift_of is not None or not running.isdisjoint(node.values)


def _hash(block: ir.BlockGraph, outer: dict[str, TensorType]) -> str:
    known = [n for n in block.sources if outer[n].space is MemorySpace.NOWHERE]
    indices = tuple(ir.Index(n, outer[n].axes[0]) for n in known)
    inputs = tuple(ir.Input(n, outer[n]) for n in block.sources if n not in known)
    returns = tuple(ir.Return(n, outer[n]) for n in block.results)
    graph = ir.KernelGraph("", inputs, (block,), returns, (), indices)
    return canonical_hash(graph, sizes=False)


# -- Reasons ---------------------------------------------------------------------------

Verdict = Literal[
    "found",
    "like a candidate",
    "not equivalent",
    "unstable",
    "outside the space",
    "excluded by the constraints",
    "pruned",
    "infeasible",
    "too expensive",
    "cut by the budget",
    "unexplained",
]

MOST_STRUCTURES = 256
"""Structures of the given configuration among which its rank is looked for."""


@dataclass(frozen=True)
class WhyNot:
    """What became of a given μGraph in a search.

    Attributes:
        verdict: In a word.
        reasons: In sentences.
        rank: Its place among the candidates, from 0, if it was found.
        microseconds: Its own estimate.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    rank: int | None = None
    microseconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(f"  {reason}" for reason in self.reasons)])


def why_not(
    mugraph: GraphLike,
    program: GraphLike,
    result: SearchResult | None = None,
    *,
    max_kernels: int | None = 1,
    constraints: Constraints | None = None,
    hardware: Hardware = DEFAULT,
    seed: int = 0,
) -> WhyNot:
    """Why a search of a program did not give a μGraph, or where it did.

    Args:
        mugraph: The μGraph, with sizes, or its text.
        program: The traced program, or a bound kernel.
        result: What the search found; it is searched where this is left out.
        max_kernels: As it was searched with.
        constraints: As it was searched with.
        hardware: As it was searched with.
        seed: As it was searched with.

    Raises:
        CheckError: The μGraph is not well formed.
    """
    mugraph, program = graph_of(mugraph), graph_of(program, "program", "mugraph")
    check_or_raise(mugraph)
    limits = constraints or Constraints()
    if result is None:
        result = search(
            program,
            hardware,
            max_kernels=max_kernels,
            constraints=limits,
            seed=seed,
        )
    cost = estimate(mugraph, hardware)
    found = _found(mugraph, cost, result)
    if found is not None:
        return found
    certificate = verify(mugraph, program, seed=seed)
    if not certificate.equivalent:
        return _different(certificate)
    asked = reductions_as_shifts(expand(program))
    question = _Question(
        expand(mugraph), asked, result, cost, hardware, max_kernels, limits, seed
    )
    verdict, reasons = _verdict(question, certificate)
    near = _one_rewrite_away(mugraph, result)
    return WhyNot(verdict, (*reasons, *near), None, cost.microseconds)


def _verdict(
    question: _Question, certificate: Certificate
) -> tuple[Verdict, Sequence[str]]:
    """Why what is equivalent was not found."""
    for verdict, reasons in question.answers():
        if reasons:
            return verdict, reasons
    if certificate.stability is not None and not certificate.stability.ok:
        return "unstable", [certificate.stability.reason]
    reason = "it is in the space as far as can be told here, and better than the k-th"
    return "unexplained", [reason]


def _one_rewrite_away(mugraph: ir.KernelGraph, result: SearchResult) -> Iterator[str]:
    """The rewrites that make something of it that was found."""
    found = [canonical_hash(c.mugraph, sizes=False) for c in result]
    for row in REWRITES.values():
        made = canonical_hash(row(mugraph), sizes=False)
        if made in found:
            rank = found.index(made)
            yield f"the rewrite `{row.name}` makes candidate {rank} of it: {row.what}"


def _found(mugraph: ir.KernelGraph, cost: Cost, result: SearchResult) -> WhyNot | None:
    structure = canonical_hash(mugraph, sizes=False)
    for rank, candidate in enumerate(result):
        if canonical_hash(candidate.mugraph, sizes=False) != structure:
            continue
        own = candidate.cost.microseconds
        reasons = [f"candidate {rank} of {len(result)}, about {own:.1f} µs"]
        if canonical_hash(candidate.mugraph) != canonical_hash(mugraph):
            limits = _limits(cost)
            fit = f", but does not fit: {limits[0]}" if limits else ""
            reasons.append(
                "with other tiles, which the search prefers; with the given ones about "
                f"{cost.microseconds:.1f} µs{fit}"
            )
        return WhyNot("found", tuple(reasons), rank, cost.microseconds)
    return None


def _different(certificate: Certificate) -> WhyNot:
    shown = certificate.counterexample
    reasons = [certificate.reason, *([str(shown)] if shown else [])]
    return WhyNot("not equivalent", tuple(dict.fromkeys(reasons)))


def _limits(cost: Cost) -> list[str]:
    parts = list(enumerate(cost.kernels, 1))
    return [
        *(f"kernel {n} takes {p.limit}" for n, p in parts if p.limit is not None),
        *(f"kernel {n}: {p.unknown}" for n, p in parts if p.unknown is not None),
    ]


@dataclass(frozen=True)
class _Question:
    """One μGraph that is equivalent and was not found; both are expanded."""

    mugraph: ir.KernelGraph
    program: ir.KernelGraph
    result: SearchResult
    cost: Cost
    hardware: Hardware
    max_kernels: int | None
    constraints: Constraints
    seed: int

    def answers(self) -> Iterator[tuple[Verdict, list[str]]]:
        """Reasons by verdict, the first that has some decides."""
        named = with_program_names(self.mugraph, self.program)
        if named is None:
            yield "outside the space", ["its inputs are viewed in other ways"]
            return
        space = self._space()
        yield (
            "outside the space",
            list(outside(named, self.program, space, self.max_kernels)),
        )
        yield "excluded by the constraints", self._excluded()
        if space is not None:
            yield "pruned", self._pruned(named)
        yield "infeasible", _limits(self.cost)
        yield "like a candidate", self._alike()
        yield "too expensive", self._expensive(named)
        if not self.result.complete:
            yield "cut by the budget", self._unfinished()

    def _unfinished(self) -> list[str]:
        result = self.result
        reasons = [f"the search ended after {result.seconds:.1f} s, not exhausted"]
        if result.proof is not None and not result.proof.optimal:
            reasons.append(str(result.proof))
        return reasons

    def _space(self) -> Space | None:
        """The space of the program as one kernel, if there is one."""
        try:
            return space_of(strip_shifts(self.program))
        except (UnsupportedError, CheckError):
            return None

    def _excluded(self) -> list[str]:
        if self.constraints.admits(self.mugraph):
            return []
        return ["its grid, maps, loop or threads are not among the allowed ones"]

    def _pruned(self, named: ir.KernelGraph) -> list[str]:
        """Of one kernel only: several are searched by segments of their own.

        What one of the program's forms has is not pruned.
        """
        if len(named.blocks) != 1:
            return []
        strangers = [
            Membership(space_of(form.program), named.blocks[0]).stranger()
            for form in forms(strip_shifts(self.program))
        ]
        return [] if None in strangers else [s for s in strangers[:1] if s is not None]

    def _alike(self) -> list[str]:
        """Which candidate it is but for where constants multiply, if it is one."""
        kind = hash_but_for_factors(self.mugraph)
        for rank, candidate in enumerate(self.result):
            if hash_but_for_factors(expand(candidate.mugraph)) == kind:
                return [
                    f"candidate {rank} of {len(self.result)}, about "
                    f"{candidate.cost.microseconds:.1f} µs, but for where constants "
                    f"multiply; the given one takes about {self.cost.microseconds:.1f}"
                    " µs"
                ]
        return []

    def _expensive(self, named: ir.KernelGraph) -> list[str]:
        own, last = self.cost.microseconds, self.result.candidates[-1].cost.microseconds
        reasons: list[str] = []
        if own > last:
            reasons.append(
                f"estimated at {own:.1f} µs; the last of the {len(self.result)} "
                f"candidates at {last:.1f} µs, the best at "
                f"{self.result.best.cost.microseconds:.1f} µs"
            )
        if len(named.blocks) == 1:
            reasons += self._rank(named)
        return reasons

    def _rank(self, named: ir.KernelGraph) -> list[str]:
        """Its place in its configuration, of which the search keeps a few."""
        from mirage_dsl.search.structures import structures

        block = named.blocks[0]
        loop = None if block.loop is None else block.loop.dim
        split = {frozenset(s.dim for s in axis) for axis in block.axes}

        def allow(c: Configuration) -> bool:
            return c.loop == loop and set(map(frozenset, c.axes)) == split

        found = structures(
            strip_shifts(self.program),
            self.hardware,
            per_configuration=MOST_STRUCTURES,
            alike=True,
            allow=allow,
            seed=self.seed,
        )
        wanted = _bare_hash(named)
        for rank, structure in enumerate(found.structures):
            graph = one_kernel(self.program, structure.block)
            if wanted in (_bare_hash(graph), _bare_hash(stabilise(graph) or graph)):
                return [
                    f"in its configuration, {structure.configuration}, it is number "
                    f"{rank + 1} of {len(found.structures)} by the cost that "
                    "extraction adds up; the search keeps the first few of each, and "
                    "of those that differ only in where constants enter the first"
                ]
        return []


def _bare_hash(graph: ir.KernelGraph) -> str:
    """The structure without the casts, which only the sizing puts in."""
    return canonical_hash(map_blocks(graph, without_casts), sizes=False)
