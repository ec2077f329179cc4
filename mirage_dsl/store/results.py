"""Results of searches as they are stored: loaded, checked, and fit to a program.

A program is known by what it computes, so a stored result may be of a program that
calls its values and dims otherwise, or states independent operators in another order.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mirage_dsl.core.errors import CacheError
from mirage_dsl.core.files import typed
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.graph import Apply, KernelGraph, KernelNode
from mirage_dsl.ir.text.printer import lines_of, with_lines
from mirage_dsl.search.memo import names_of, renamed
from mirage_dsl.search.result import Candidate, SearchResult
from mirage_dsl.store.cache import Cache, Entry, Key
from mirage_dsl.verify.certificate import Certificate

_log = logging.getLogger("mirage_dsl.stored")

T = TypeVar("T")


@dataclass(frozen=True)
class Stored:
    """What a search found, and how much it was asked for.

    Attributes:
        result: The result.
        spent: The budget in seconds up to which it is as good as a new search.
    """

    result: SearchResult
    spent: float

    def to_json(self) -> dict[str, Any]:
        """A document that `from_json` reads."""
        spent = None if math.isinf(self.spent) else self.spent
        return {**result_json(self.result), "spent": spent}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], program: KernelGraph) -> Stored:
        """The reverse, of this program, of which it must be.

        Raises:
            MirageError: It is not what `to_json` gives, or of another program.
        """
        spent = typed(float | None, content.get("spent"))
        if spent is not None and not spent >= 0:
            raise CacheError(f"{spent} s were spent")
        result = result_of(content, program)
        return cls(result, math.inf if spent is None else spent)


def stored_result(
    store: Cache, key: Key, program: KernelGraph, hardware: Hardware, seconds: float
) -> Stored | None:
    """What is stored under a key, as a result of a program; None if nothing of use.

    Args:
        store: Where to look.
        key: What to look for.
        program: What was searched, under its own names.
        hardware: The GPU to estimate for.
        seconds: How long candidates that another machine found may be verified; the
            best one is in any case.
    """

    def read(entry: Entry) -> Stored:
        found = Stored.from_json(entry.content, program)
        candidates = vouched(entry, found.result, hardware, seconds)
        return replace(found, result=replace(found.result, candidates=candidates))

    return usable(store, key, read, Stored.to_json)


def usable(
    store: Cache,
    key: Key,
    read: Callable[[Entry], T],
    write: Callable[[T], Mapping[str, Any]],
) -> T | None:
    """What `read` makes of the entry under a key; None if there is none, or no use.

    What cannot be used is removed.  What came from elsewhere and was verified is stored
    anew, as this machine's own.
    """
    entry = store.load(key)
    if entry is None:
        return None
    try:
        found = read(entry)
    except Exception as error:
        # It may say anything, so anything may follow from it.
        _log.warning("entry %s is not usable: %s", key.digest, error)
        store.remove(entry)
        return None
    if not entry.own:
        store.store(key, write(found))
    return found


# -- Documents -------------------------------------------------------------------------


def result_json(result: SearchResult) -> dict[str, Any]:
    """A result with the user's lines, as JSON."""
    lines = [lines_of(c.mugraph, result.program) for c in result.candidates]
    return {**result.to_json(), "lines": lines}


def result_of(content: Mapping[str, Any], program: KernelGraph) -> SearchResult:
    """The reverse of `result_json`, as a result of this program.

    Raises:
        MirageError: It is not what `result_json` gives, or of another program.
    """
    result = SearchResult.from_json(dict(content))
    lines = typed(tuple[dict[str, int], ...], content.get("lines"))
    if len(lines) != len(result.candidates):
        raise CacheError("there are lines for another number of candidates")
    return Fitting(result.program, program).result(result, lines)


def for_program(result: SearchResult, program: KernelGraph) -> SearchResult:
    """A result for a program that differs only in names, or the order of operators."""
    lines = [lines_of(c.mugraph, result.program) for c in result.candidates]
    return Fitting(result.program, program).result(result, lines)


class Fitting:
    """From the names and lines of one program to those of another that is the same.

    Args:
        known: The program that μGraphs are of.
        program: The program that they are to be of.

    Raises:
        CacheError: They are not the same.
    """

    def __init__(self, known: KernelGraph, program: KernelGraph) -> None:
        if canonical_hash(known) != canonical_hash(program):
            raise CacheError("it is of another program")
        self._known, self._program = known, program
        self._own, self._other = names_of(known), names_of(program)
        at = {_result(n): i for i, n in enumerate(program.nodes)}
        values = dict(zip(self._own.values, self._other.values, strict=True))
        self._places = {i: at[values[_result(n)]] for i, n in enumerate(known.nodes)}

    def result(
        self, result: SearchResult, lines: Sequence[Mapping[str, int]]
    ) -> SearchResult:
        """A result; `lines` as `lines_of` gave them for each candidate."""
        candidates = tuple(
            replace(
                c,
                mugraph=self.mugraph(c.mugraph, its),
                certificate=c.certificate and self._certificate(c.certificate),
            )
            for c, its in zip(result.candidates, lines, strict=True)
        )
        return replace(result, program=self._program, candidates=candidates)

    def mugraph(self, graph: KernelGraph, lines: Mapping[str, int]) -> KernelGraph:
        """A μGraph of the program."""
        if graph == self._known:
            return self._program
        here = {n: self._places[at] for n, at in lines.items() if at in self._places}
        placed = with_lines(graph, self._program, here)
        if graph.name == self._known.name:
            placed = replace(placed, name=self._program.name)
        return renamed(placed, self._own, self._other)

    def _certificate(self, certificate: Certificate) -> Certificate:
        names = dict(zip(self._own.dims, self._other.dims, strict=True))
        sizes = tuple(
            tuple(sorted((names.get(n, n), e) for n, e in one))
            for one in certificate.sizes
        )
        return replace(certificate, sizes=sizes)


def _result(node: KernelNode) -> str:
    if not isinstance(node, Apply):
        raise CacheError("a program has kernels of its own")
    return node.result


# -- Trust -----------------------------------------------------------------------------


def vouched(
    entry: Entry, result: SearchResult, hardware: Hardware, seconds: float
) -> tuple[Candidate, ...]:
    """The candidates of an entry, each with a certificate that this machine gave.

    Raises:
        MirageError: One has none, and gets none.
    """
    if not entry.own:
        return _verified(result, hardware, seconds)
    expected = canonical_hash(result.program)
    for candidate in result.candidates:
        certificate = candidate.certificate
        if certificate is None and not candidate.mugraph.blocks:
            continue  # The program by library kernels, that a tuning chose.
        if certificate is None:
            raise CacheError("a candidate has no certificate")
        hashes = certificate.program_hash, certificate.candidate_hash
        if hashes != (expected, canonical_hash(candidate.mugraph)):
            raise CacheError("a certificate belongs to another graph")
    return result.candidates


def _verified(
    result: SearchResult, hardware: Hardware, seconds: float
) -> tuple[Candidate, ...]:
    """Candidates from elsewhere, of which nothing is believed, cheapest first."""
    # Here, for what this machine made needs no compiled code.
    from mirage_dsl.verify.verifier import identity, verify

    program, ends = result.program, time.monotonic() + seconds
    kept: list[Candidate] = []
    for graph in (c.mugraph for c in result.candidates):
        if kept and time.monotonic() > ends:
            break
        check_or_raise(graph)
        if any(b.schedule.allow_tf32 for b in graph.blocks):
            raise CacheError(
                "a candidate rounds operands to TF32, which no search does"
            )
        certificate = identity(program) if graph == program else verify(graph, program)
        if not certificate.ok:
            raise CacheError(f"a candidate is refused: {certificate}")
        kept.append(Candidate(graph, estimate(graph, hardware), certificate))
    return tuple(sorted(kept, key=lambda c: c.rank))
