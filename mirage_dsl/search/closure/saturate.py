"""One loop choice from start to end: S, seeds, closure, and the outputs found in it."""

# Numba has no types for compiled functions.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.ops.definition import Term
from mirage_dsl.search.budget import UNLIMITED, Budget
from mirage_dsl.search.closure.closure import (
    ARITHMETIC,
    ITERATIONS,
    PIECE,
    PRIME,
    TILE,
    element_count,
    grow,
    meet,
)
from mirage_dsl.search.closure.workspace import (
    ADD,
    APART,
    BEFORE,
    BODY,
    CONSTANT,
    CONTRACT,
    DIV,
    EDGE,
    EDGES,
    FULL,
    FUNCTION,
    HITS,
    LOAD,
    MERGED,
    MOST_NODES,
    MUL,
    NODES,
    NONE,
    PAIRS,
    SITE,
    SUB,
    SUM,
    TESTS,
    USED,
    WAITING,
    Ints,
    Rules,
    Words,
    Workspace,
    reset,
)
from mirage_dsl.search.space import Space, Value
from mirage_dsl.search.useful.abstract import Useful, useful
from mirage_dsl.search.useful.field61 import element_of, key_of, member_table
from mirage_dsl.search.useful.terms import JOIN as JOIN_STEP
from mirage_dsl.search.useful.terms import constant_value

PAIRS_A_CALL = 1_000_000
"""Work between two looks at the clock, well under a second."""

KIND = {
    Term.ADD: ADD,
    Term.SUB: SUB,
    Term.MUL: MUL,
    Term.DIV: DIV,
    Term.SUM: SUM,
    Term.CONTRACT: CONTRACT,
    Term.FUNCTION: FUNCTION,
}


@dataclass(frozen=True)
class Saturation:
    """The AND-OR graph of a loop choice.

    Attributes:
        loop: The dim over which blocks iterate, or None.
        shape: Packed shape of each node (see `search.closure.closure`).
        stage: Stage of each node.
        key: Abstract key of each node.
        edges: Rows of node, kind, three operands (-1 for none) and an argument: the
            program's value for loads and constants, reduced dims, or a site.
        sites: For each site, a value of the program that its function makes.
        site_over: For each site, the dims that it reduces.
        site_along: For each site, the dim that it scans.
        site_joins: For each site, whether it is an accumulator.
        program_keys: Abstract key of each value of the program.
        roots: For each output, the nodes that compute it and may be stored.
        counters: Figures for the ledger.
        complete: Whether no limit was met.
    """

    loop: str | None
    shape: Ints
    stage: Ints
    key: Words
    edges: Ints
    sites: tuple[int, ...]
    site_over: tuple[int, ...]
    site_along: tuple[int, ...]
    site_joins: tuple[bool, ...]
    program_keys: tuple[int, ...]
    roots: tuple[tuple[int, ...], ...]
    counters: dict[str, int]
    complete: bool


def saturate(
    space: Space,
    loop: str | None,
    w: Workspace,
    *,
    seed: int = 0,
    budget: Budget = UNLIMITED,
    own: bool = False,
    everything: bool = False,
    apart: bool = False,
) -> Saturation:
    """All useful values of a block that iterates over `loop`.

    Args:
        space: The program.
        loop: The dim over which the block iterates, or None.
        w: Arrays to work in.
        seed: Of fingerprints and residues.
        budget: Of its growth.
        own: Take only the program's own values as useful.
        everything: Take all values as useful, to see what S is good for.
        apart: Do not merge equal values, to see what merging is good for.
    """
    s = useful(space, loop, seed, own=own)
    r = _rules(space, s, loop, everything)
    references = _references(space, s, r, w, seed)
    reset(w)
    w.counts[APART] = apart
    _enter_seeds(space, s, r, w, references)
    at = 0
    while at < w.counts[NODES] and not w.counts[FULL]:
        if budget.late():
            break
        at = int(grow(w, r, at, PAIRS_A_CALL))
    n, e = int(w.counts[NODES]), int(w.counts[EDGES])
    return Saturation(
        loop,
        w.nodes["shape"][:n].copy(),
        w.nodes["stage"][:n].copy(),
        w.nodes["key"][:n].copy(),
        w.edges[:e].copy().view(np.int64).reshape(-1, len(EDGE.names or ())),
        tuple(site.value for site in s.sites),
        tuple(site.over for site in s.sites),
        tuple(site.along for site in s.sites),
        tuple(site.way == JOIN_STEP for site in s.sites),
        tuple(key_of(pair) for pair in s.fingerprints),
        tuple(_roots(space, s, w, o.value, references[o.value]) for o in space.outputs),
        _counters(s, w),
        at == n and not w.counts[FULL] and not s.truncated,
    )


def _counters(s: Useful, w: Workspace) -> dict[str, int]:
    count = w.counts
    return {
        "useful": len(s.keys),
        "nodes": int(count[NODES]),
        "edges": int(count[EDGES]),
        "pairs": int(count[PAIRS]),
        "tests": int(count[TESTS]),
        "cut_by_abstract_expression": int(count[TESTS] - count[HITS]),
        "merged": int(count[MERGED]),
        "overflows": int(count[FULL]),
        "useful_truncated": int(s.truncated),
    }


def enabled_kinds(space: Space) -> set[np.int64]:
    """The kinds of edge that can help the program."""
    terms = space.terms
    names = [v.names for v in space.values]
    dots = any(
        v.op is not None
        and v.op.term is Term.CONTRACT
        and names[v.operands[0]] == names[v.operands[1]]
        for v in space.values
    )
    kinds = {KIND[t] for t in terms if t in KIND}
    if Term.DIV in terms or dots:
        kinds.add(MUL)
    if Term.CONTRACT in terms and (MUL in kinds or space.halves):
        kinds.add(SUM)
    if MUL in kinds and Term.SUM in terms:
        kinds.add(CONTRACT)
    return kinds


def _rules(space: Space, s: Useful, loop: str | None, everything: bool) -> Rules:
    values = [space.values[site.value] for site in s.sites]
    sites = np.zeros(len(values), SITE)
    for row, site, value in zip(sites, s.sites, values, strict=True):
        assert value.op is not None
        row["arity"], row["over"], row["way"] = len(site.keys), site.over, site.way
        row["along"] = site.along
        row["swaps"], row["word"] = value.op.commutative, site.word
        row["f0"], row["f1"] = site.result
        row["keys"][: len(site.keys)] = site.keys
    enabled = enabled_kinds(space)
    return Rules(
        dims=len(space.dims),
        loop=-1 if loop is None else space.dims.index(loop),
        arithmetic=sum(ARITHMETIC.get(kind, 0) for kind in enabled),
        summed=space.reduced if SUM in enabled else 0,
        contracted=space.reduced if CONTRACT in enabled else 0,
        members=member_table(np.array(sorted(s.keys), np.uint64)),
        sigma=np.array(s.sigma, np.uint64).reshape(-1, 2),
        sigma_loop=np.uint64(s.sigma_loop),
        outer=np.array(sorted({v.names for v in space.values}), np.int64),
        sites=sites,
        everything=everything,
    )


def _references(
    space: Space, s: Useful, r: Rules, w: Workspace, seed: int
) -> list[Ints]:
    """Residues of every value of the program, unsplit.

    Raises:
        UnsupportedError: A program of more or larger values than the arrays hold, or
            that divides by zero whatever the inputs.
    """
    if len(space.values) > w.counts[MOST_NODES]:
        raise UnsupportedError(
            f"the program has {len(space.values)} values; one kernel is searched for "
            f"at most {w.counts[MOST_NODES]}: split the program"
        )
    for attempt in range(4):
        found = _evaluate_program(space, s, r, w, seed + 1000 * attempt)
        if found is not None:
            return found
        if w.counts[FULL]:
            raise UnsupportedError(
                "a value of the program has too many dims; one kernel is searched for "
                f"values of at most {w.maps.shape[1].bit_length() - 2} dims"
            )
    raise UnsupportedError(
        "the program divides by zero whatever its inputs; the search can compare "
        "values only where they exist"
    )


def _evaluate_program(
    space: Space, s: Useful, r: Rules, w: Workspace, seed: int
) -> list[Ints] | None:
    reset(w)
    # Each value is a node of its own, numbered like the value.
    w.counts[APART] = 1
    rng = np.random.default_rng(seed)
    fields = _Fields(w.counts, w.found[0], w.values)
    counts, nodes = w.counts, w.nodes
    found: list[Ints] = []
    for i, value in enumerate(space.values):
        kind = LOAD if value.op is None else KIND[value.op.term]
        x = _ahead(fields, kind, s.site_of.get(i, value.over), value.names, BEFORE)
        x["operands"][: len(value.operands)] = value.operands
        size = int(element_count(value.names, r.dims, r.loop))
        if value.op is None:
            _append(fields, _random(value, size, rng, seed), size)
        meet(w, r, NONE)
        if counts[NODES] == i:
            return None
        at = int(nodes[i]["offset"])
        found.append(fields.values[at : at + size].copy())
    return found


class _Fields(NamedTuple):
    """What is written to a workspace again and again: looking fields up takes long.

    Attributes:
        counts: Its counts.
        ahead: The result that is evaluated next.
        values: Its pool of residues.
    """

    counts: Ints
    ahead: Any
    values: Ints


def _ahead(w: _Fields, kind: Any, arg: int, shape: int, stage: Any) -> Any:
    """The result that is evaluated next; of no operands, nor a fingerprint, as yet."""
    w.counts[WAITING] = 1
    x = w.ahead
    x["kind"], x["arg"], x["shape"], x["stage"] = kind, arg, shape, stage
    x["operands"], x["constant"], x["f0"], x["f1"] = NONE, 0, 0, 0
    return x


def _append(w: _Fields, residues: Any, size: int) -> None:
    """Put residues at the end of the pool, which belong to the result ahead."""
    used = int(w.counts[USED])
    w.values[used : used + size] = residues


def _random(value: Value, size: int, rng: np.random.Generator, seed: int) -> Any:
    """Residues of a tensor or of a constant."""
    if value.constant is None:
        return rng.integers(1, PRIME, size)
    number = constant_value(value.constant)
    if number is not None:
        return number % PRIME
    return element_of(f"{seed} residue {value.constant}") % (PRIME - 1) + 1


def _enter_seeds(
    space: Space, s: Useful, r: Rules, w: Workspace, references: list[Ints]
) -> None:
    """Make nodes of the tensors read and of the constants."""
    fields = _Fields(w.counts, w.found[0], w.values)
    for i in (*space.loads, *space.constants):
        value, residues = space.values[i], references[i]
        shape, stage = value.names, BEFORE
        if r.loop >= 0 and value.names >> r.loop & 1:
            residues = _pieces(residues, value.names, r.loop)
            shape, stage = shape | PIECE, BODY
        _append(fields, residues, len(residues))
        x = _ahead(fields, LOAD, i, shape, stage)
        x["f0"], x["f1"] = s.fingerprints[i]
        if value.constant is not None:
            x["kind"] = CONSTANT
            known = {1: 2, -1: 3}
            x["constant"] = known.get(constant_value(value.constant) or 0, 1)
        meet(w, r, NONE)


def _pieces(residues: Ints, names: int, loop: int) -> Ints:
    """The tiles of all iterations, one after the other."""
    before = TILE ** (names & ((1 << loop) - 1)).bit_count()
    tiles = residues.reshape(before, ITERATIONS, TILE, -1)
    return np.moveaxis(tiles, 1, 0).reshape(-1)


def _roots(
    space: Space, s: Useful, w: Workspace, output: int, reference: Ints
) -> tuple[int, ...]:
    """The nodes with an output's shape, key and residues, not in the body."""
    n = int(w.counts[NODES])
    names, key = space.values[output].names, key_of(s.fingerprints[output])
    nodes = w.nodes[:n]
    alike = (nodes["shape"] == names) & (nodes["stage"] != BODY)
    alike &= nodes["key"] == key
    found: list[int] = []
    values = w.values
    for node in np.flatnonzero(alike):
        at = int(nodes[node]["offset"])
        if np.array_equal(values[at : at + len(reference)], reference):
            found.append(int(node))
    return tuple(found)
