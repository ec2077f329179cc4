"""What a search returns, and how it is kept in a file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, overload

from mirage_dsl.errors import CacheError
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.parser import parse
from mirage_dsl.ir.printer import to_text
from mirage_dsl.search.cost import Cost, KernelCost
from mirage_dsl.search.ledger import Ledger
from mirage_dsl.verify.certificate import Certificate

FORMAT = "mirage_dsl search result"
VERSION = 2

ROUNDING = 1e-4
"""Costs of a proof are rounded; gaps below this are none."""


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


@dataclass(frozen=True)
class Proof:
    """How good the best program of several kernels is, in the model of its extraction.

    That model adds up costs at a few sizes each, see `search.union`: its µs compare
    with each other, and not with those of `Cost`.

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
        proof: Of the best program of several kernels, if these were searched.
    """

    program: KernelGraph
    candidates: tuple[Candidate, ...]
    complete: bool
    seconds: float
    ledger: Ledger = field(default_factory=Ledger)
    cut_short: bool = False
    proof: Proof | None = None

    @property
    def best(self) -> Candidate:
        """The cheapest candidate."""
        return self.candidates[0]

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
            "seconds": self.seconds,
            "proof": None if self.proof is None else _proof_json(self.proof),
            "ledger": self.ledger.as_dict(),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> SearchResult:
        """The reverse of `to_json`.

        Raises:
            ParseError: A text that is not a graph.
            KeyError: A field is missing.
        """
        return cls(
            parse(document["program"]),
            tuple(_candidate_of(c) for c in document["candidates"]),
            bool(document["complete"]),
            float(document["seconds"]),
            Ledger.from_dict(document["ledger"]),
            bool(document["cut_short"]),
            _proof_of(document["proof"]),
        )

    def save(self, path: str | Path) -> None:
        """Write the result to a file, as JSON with a checksum."""
        content = self.to_json()
        document = {
            "format": FORMAT,
            "version": VERSION,
            "checksum": _checksum(content),
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
        except (KeyError, TypeError) as error:
            raise CacheError(
                f"{path} lacks or misuses the field {error}; search again"
            ) from error


def _content(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
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
    content = cast("dict[str, Any]", document.get("content"))
    if document.get("checksum") != _checksum(content):
        raise CacheError(f"{path} is damaged: its checksum does not fit; search again")
    return content


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _proof_json(proof: Proof) -> dict[str, Any]:
    return {
        "cost": proof.cost,
        "bound": proof.bound,
        "gap": proof.gap,
        "optimal": proof.optimal,
    }


def _proof_of(record: dict[str, Any] | None) -> Proof | None:
    return None if record is None else Proof(record["cost"], record["bound"])


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    certificate = candidate.certificate
    return {
        "mugraph": to_text(candidate.mugraph),
        "cost": dataclasses.asdict(candidate.cost),
        "certificate": None if certificate is None else certificate.to_dict(),
    }


def _candidate_of(record: dict[str, Any]) -> Candidate:
    cost = dict(record["cost"])
    kernels = tuple(KernelCost(**part) for part in cost.pop("kernels"))
    saved = record["certificate"]
    return Candidate(
        parse(record["mugraph"]),
        Cost(**cost, kernels=kernels),
        None if saved is None else Certificate.from_dict(saved),
    )
