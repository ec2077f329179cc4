"""What a search returns, and how it is kept in a file."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, overload

from mirage_dsl.core.errors import CacheError
from mirage_dsl.core.files import checksum, typed
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.core.types import Scalar
from mirage_dsl.cost.estimate import Cost, estimate
from mirage_dsl.ir.analysis.bounds import exposed
from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.analysis.layouts import Copied
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.ir.walk import bypassed, map_blocks
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import DIV, MUL
from mirage_dsl.rewrite.casts import without_casts
from mirage_dsl.rewrite.shifts import stabilise
from mirage_dsl.verify.certificate import Certificate

# -- The ledger ------------------------------------------------------------------------

CUTS = (
    "abstract expression",
    "joined values",
    "loops that only join",
    "tiles beyond registers",
    "lowering",
    "shared memory",
    "registers",
    "tile size",
    "constraints",
    "bound",
    "cost rank",
    "duplicate",
    "verification",
    "stability",
)
"""What cuts candidates, in the order of the search."""


@dataclass
class Ledger:
    """Counts of one search.

    Attributes:
        found: What was looked at: `structures`, `sizes tried`, `segments`, `verified`.
        cut: How many were cut, by what (`CUTS`).  Resources cut sizes of structures;
            the bound of what can be cheap enough cuts segments, the others structures
            or whole μGraphs.
        notes: Sentences for the user: what could not be searched, and why.
    """

    found: Counter[str] = field(default_factory=Counter[str])
    cut: Counter[str] = field(default_factory=Counter[str])
    notes: list[str] = field(default_factory=list[str])

    def note(self, text: str) -> None:
        """Add a sentence, once."""
        if text not in self.notes:
            self.notes.append(text)

    def add(self, other: Ledger) -> None:
        """Add the counts and notes of another ledger."""
        self.found.update(other.found)
        self.cut.update(other.cut)
        for text in other.notes:
            self.note(text)

    def take_sizes(self, tally: Mapping[str, int]) -> None:
        """Add the counts of `sizes.choose_sizes`."""
        for name, count in tally.items():
            (self.cut if name in CUTS else self.found)[name] += count

    def take_structures(self, counters: Mapping[str, int]) -> None:
        """Add the counts of the structural search."""
        for name, count in counters.items():
            if name != "structures":
                self.found[name.replace("_", " ")] += count

    def take_several(self, counters: Mapping[str, int]) -> None:
        """Add the counts of the search for several kernels."""
        for name, count in counters.items():
            self.found[f"several kernels: {name.replace('_', ' ')}"] += count

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "found": dict(self.found),
            "cut": dict(self.cut),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, object]) -> Ledger:
        """The reverse of `as_dict`.

        Raises:
            CacheError: It is not what `as_dict` gives.
        """
        counts = dict[str, int]
        return cls(
            Counter(typed(counts, record.get("found"))),
            Counter(typed(counts, record.get("cut"))),
            list(typed(tuple[str, ...], record.get("notes"))),
        )

    def __str__(self) -> str:
        lines = [f"{name}: {count}" for name, count in self.found.items() if count]
        order = sorted(+self.cut, key=lambda c: CUTS.index(c) if c in CUTS else 99)
        lines += [f"cut by {name}: {self.cut[name]}" for name in order]
        return "\n".join(lines + self.notes)


# -- Results ---------------------------------------------------------------------------

FORMAT = "mirage_dsl search result"
VERSION = 2

ROUNDING = 1e-4
"""Costs of a proof are rounded; gaps below this are none."""


@dataclass(frozen=True)
class Plan:
    """A sized μGraph and its estimate in µs."""

    microseconds: float
    graph: KernelGraph

    @classmethod
    def of(
        cls,
        graph: KernelGraph,
        hardware: Hardware,
        inside: AbstractSet[str] = frozenset(),
        copied: Copied | None = None,
    ) -> Plan:
        """A μGraph with its estimate, its kernels launched as `driver.finished` will.

        Args:
            graph: A sized μGraph.
            hardware: The GPU.
            inside: Inputs that an earlier kernel left in L2.
            copied: As for `estimate`.
        """
        launched = launched_early(graph) if hardware.dependent > 0 else graph
        return cls(estimate(launched, hardware, inside, copied).microseconds, graph)


# -- Kinds of plans --------------------------------------------------------------------
# A tuner gets to see the best of each kind, whatever the estimate says: it ranks plans
# of one kind better than those of different kinds, for it may wrong library kernels, or
# the cost of another launch.


def is_one_kernel(graph: KernelGraph) -> bool:
    """Whether a graph launches one generated kernel and nothing else."""
    return len(graph.blocks) == 1 and all(a.is_view for a in graph.applies)


def leaves_products(graph: KernelGraph) -> bool:
    """Whether library kernels compute all products, and generated ones the rest."""
    inside = [n for b in graph.blocks for n in b.applies]
    return bool(inside) and all(n.op.kind is not Kind.CONTRACTION for n in inside)


def splits_a_loop(graph: KernelGraph) -> bool:
    """Whether a kernel stores parts of sums, which a later one joins."""
    axes = [a for b in graph.blocks for store in b.stores for a in store.axes]
    return any(d.grid and d.name.endswith("#") for axis in axes for d in axis)


def hash_but_for_factors(graph: KernelGraph) -> str:
    """What tells structures apart that differ in more than where constants multiply."""
    bare = map_blocks(graph, lambda b: bypassed(without_casts(b), _scales))
    return canonical_hash(bare, sizes=False)


def _scales(node: Apply) -> bool:
    """Whether an operator multiplies a value by a constant."""
    by = node.operands if node.op is MUL else node.operands[1:]
    return node.op in (MUL, DIV) and any(isinstance(o, Scalar) for o in by)


def with_every_kind(plans: Sequence[Plan], count: int) -> list[Plan]:
    """The plans in their order, but the best of each kind among the first `count`."""
    wanted: list[Plan] = []
    for kind in (is_one_kernel, leaves_products, splits_a_loop):
        best = next((p for p in plans if kind(p.graph)), None)
        if best is not None and best not in plans[:count]:
            wanted.append(best)
    before = count - len(wanted)
    if before < 1:
        return list(plans)
    others = [p for p in plans if p not in wanted]
    return [*others[:before], *wanted, *others[before:]]


# -- Candidates ------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A μGraph that a search found.

    Attributes:
        mugraph: The μGraph, with tiles and schedules.
        cost: The model's estimate.
        certificate: That it equals the program; None if it was not verified.
    """

    mugraph: KernelGraph
    cost: Cost
    certificate: Certificate | None

    def generate_triton_program(self, path: str | Path) -> None:
        """Write the μGraph's Triton source to a file."""
        self.mugraph.generate_triton_program(path)

    @property
    def rank(self) -> tuple[bool, float]:
        """Sorts candidates: those that may overflow come last, then the dearer ones."""
        return any(exposed(self.mugraph)), self.cost.microseconds


AS_GOOD = 1.01
"""By how much estimates may differ where fewer launches decide: they say no more."""

AS_GOOD_AS_CALLS = 1.03
"""By how much, where fewer launches are PyTorch's calls alone: nothing to compile."""

A_GUESS = 1.1
"""By how much, where convolutions lie otherwise, with kernels that copy for them.

[M] H200: 1.05 by estimate were 1.0; what a library copies by itself is in both."""


def best_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Candidates by rank; the first has fewest launches of those about as good."""
    ranked = sorted(candidates, key=lambda c: c.rank)
    near = [c for c in ranked if _is_as_good(c, ranked[0])]
    first = min(near, key=lambda c: len(c.cost.kernels), default=None)
    return ranked if first is None else [first, *(c for c in ranked if c is not first)]


def _is_as_good(candidate: Candidate, best: Candidate) -> bool:
    turned, plain = (
        any(n.op.channels_last_of is not None for n in c.mugraph.applies)
        for c in (best, candidate)
    )
    most = AS_GOOD if candidate.mugraph.blocks else AS_GOOD_AS_CALLS
    most = A_GUESS if turned and not plain else most
    exposed, microseconds = best.rank
    return candidate.rank <= (exposed, most * microseconds)


@dataclass(frozen=True)
class Proof:
    """How good the best program of several kernels is, in the model of its extraction.

    That model adds up costs at a few sizes each, see `search.multi_kernel`: its µs
    compare with each other, and not with those of `Cost`.

    Attributes:
        cost: Of the cheapest program found.
        bound: No program of the space costs less; None where nothing is proved.
    """

    cost: float
    bound: float | None

    @property
    def gap(self) -> float | None:
        """By how much the cost may be too high, as a share of the bound."""
        if self.bound is None or self.bound <= 0:
            return None
        gap = self.cost / self.bound - 1
        return gap if gap > ROUNDING else 0.0

    @property
    def optimal(self) -> bool:
        """Whether there is none cheaper."""
        return self.gap == 0

    def __str__(self) -> str:
        if self.bound is None:
            return f"the best of several kernels costs {self.cost:.2f}, not proved"
        if self.optimal:
            return f"the best of several kernels costs {self.cost:.2f}, proved"
        return (
            f"the best of several kernels costs {self.cost:.2f}, proved is "
            f"{self.bound:.2f}"
        )


@dataclass(frozen=True)
class SearchResult(Sequence[Candidate]):
    """Candidates, cheapest first.

    Attributes:
        program: What was searched.
        candidates: What was found; never empty.
        complete: Whether the space was exhausted, the proof included.
        seconds: How long the search took.
        ledger: What was looked at, and what was cut by what.
        cut_short: Whether the budget ran out, or Ctrl-C ended the search: with more
            time the same search may find more.
        interrupted: Whether that was Ctrl-C.
        proof: Of the best program of several kernels, if these were searched.
    """

    program: KernelGraph
    candidates: tuple[Candidate, ...]
    complete: bool
    seconds: float
    ledger: Ledger = field(default_factory=Ledger)
    cut_short: bool = False
    proof: Proof | None = None
    interrupted: bool = False

    @property
    def best(self) -> Candidate:
        """The cheapest candidate."""
        return self.candidates[0]

    @property
    def library(self) -> KernelGraph:
        """The program by library kernels, with shifts where exponentials lack them.

        It is the program itself where none may have one.
        """
        return stabilise(self.program) or self.program

    @property
    def bound(self) -> float | None:
        """What is proved of programs of several kernels, see `Proof`."""
        return None if self.proof is None else self.proof.bound

    @property
    def gap(self) -> float | None:
        """By how much the best of them may be too dear, as a share of the bound."""
        return None if self.proof is None else self.proof.gap

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Candidate, ...]: ...
    def __getitem__(self, index: int | slice) -> Candidate | tuple[Candidate, ...]:
        return self.candidates[index]

    def __len__(self) -> int:
        return len(self.candidates)

    def __repr__(self) -> str:
        state = "complete" if self.complete else "incomplete"
        return (
            f"<SearchResult of {self.program.name}: {len(self)} candidates, best "
            f"{self.best.cost.microseconds:.1f} µs, {self.seconds:.2f} s, {state}>"
        )

    def to_json(self) -> dict[str, Any]:
        """A document that `from_json` reads; graphs are `.mu` texts."""
        return {
            "program": to_text(self.program),
            "candidates": [_candidate_json(c) for c in self.candidates],
            "complete": self.complete,
            "cut_short": self.cut_short,
            "interrupted": self.interrupted,
            "seconds": self.seconds,
            "proof": None if self.proof is None else _proof_json(self.proof),
            "ledger": self.ledger.as_dict(),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> SearchResult:
        """The reverse of `to_json`.

        Raises:
            CacheError: Something is missing, or is not what `to_json` writes.
            ParseError: A text that is not a graph.
        """
        saved = typed(_Saved, {n: v for n, v in document.items() if n in _SAVED})
        if not saved.candidates:
            raise CacheError("there is no candidate")
        return cls(
            parse(saved.program),
            tuple(map(_candidate_of, saved.candidates)),
            saved.complete,
            saved.seconds,
            Ledger.from_dict(saved.ledger),
            saved.cut_short,
            None if saved.proof is None else Proof(saved.proof.cost, saved.proof.bound),
            saved.interrupted,
        )

    def save(self, path: str | Path) -> None:
        """Write the result to a file, as JSON with a checksum."""
        content = self.to_json()
        document = {
            "format": FORMAT,
            "version": VERSION,
            "checksum": checksum(content),
            "content": content,
        }
        Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> SearchResult:
        """Read what `save` wrote.

        Raises:
            CacheError: The file is no search result, of another version, or damaged.
        """
        content = _content(Path(path))
        try:
            return cls.from_json(content)
        except CacheError as error:
            raise CacheError(f"{path}: {error}; search again") from error


def _content(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CacheError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise CacheError(f"{path} is not a saved search result")
    document = cast("dict[str, Any]", document)
    if document.get("format") != FORMAT:
        raise CacheError(f"{path} is not a saved search result")
    if document.get("version") != VERSION:
        raise CacheError(
            f"{path} has version {document.get('version')}, expected {VERSION}; "
            "search again"
        )
    content = document.get("content")
    if not isinstance(content, dict):
        raise CacheError(f"{path} is damaged: it has no content; search again")
    content = cast("dict[str, Any]", content)
    if document.get("checksum") != checksum(content):
        raise CacheError(f"{path} is damaged: its checksum does not fit; search again")
    return content


def _proof_json(proof: Proof) -> dict[str, Any]:
    return {
        "cost": proof.cost,
        "bound": proof.bound,
        "gap": proof.gap,
        "optimal": proof.optimal,
    }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    certificate = candidate.certificate
    return {
        "mugraph": to_text(candidate.mugraph),
        "cost": dataclasses.asdict(candidate.cost),
        "certificate": None if certificate is None else certificate.to_dict(),
    }


@dataclass(frozen=True)
class _SavedProof:
    """What `_proof_json` writes."""

    cost: float
    bound: float | None
    gap: float | None
    optimal: bool


@dataclass(frozen=True)
class _SavedCandidate:
    """What `_candidate_json` writes."""

    mugraph: str
    cost: Cost
    certificate: dict[str, Any] | None


@dataclass(frozen=True)
class _Saved:
    """What `SearchResult.to_json` writes."""

    program: str
    candidates: tuple[_SavedCandidate, ...]
    complete: bool
    cut_short: bool
    seconds: float
    proof: _SavedProof | None
    ledger: dict[str, Any]
    interrupted: bool = False


_SAVED = frozenset(f.name for f in dataclasses.fields(_Saved))


def _candidate_of(saved: _SavedCandidate) -> Candidate:
    if not math.isfinite(saved.cost.microseconds):
        raise CacheError(f"an estimate of {saved.cost.microseconds} µs")
    certificate = saved.certificate
    return Candidate(
        parse(saved.mugraph),
        saved.cost,
        None if certificate is None else Certificate.from_dict(certificate),
    )
