"""Results of searches as they are stored: loaded, checked, and fit to a program."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_dsl.cache import Cache, Key
from mirage_dsl.errors import CacheError, MirageError
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.printer import to_text
from mirage_dsl.lines import with_lines
from mirage_dsl.search.result import SearchResult

_log = logging.getLogger(__name__)


def stored_result(
    store: Cache, key: Key, program: KernelGraph
) -> tuple[SearchResult, float] | None:
    """What is stored, and the budget up to which it is as good as a new search.

    None where nothing of use is stored.
    """
    content = store.load(key)
    if content is None:
        _log.info("%s: not in the cache: %s", program.name, store.explain_miss(key))
        return None
    try:
        result = SearchResult.from_json(dict(content))
        _require_own_certificates(result, program)
        found = for_program(result, program, content["lines"])
        spent = math.inf if content["spent"] is None else float(content["spent"])
    except (MirageError, KeyError, TypeError, ValueError) as error:
        _log.warning("entry %s is not usable: %s", key.digest, error)
        return None
    _log.info("%s: from the cache, %s", program.name, key.digest)
    return found, spent


def for_program(
    result: SearchResult, program: KernelGraph, lines: Sequence[Mapping[str, int]]
) -> SearchResult:
    """A stored result, for the program that was asked for and with its lines."""
    if to_text(result.program) != to_text(program):
        return replace(result, program=program)
    candidates = [
        replace(c, mugraph=with_lines(c.mugraph, program, known))
        for c, known in zip(result.candidates, lines, strict=True)
    ]
    return replace(result, program=program, candidates=tuple(candidates))


def _require_own_certificates(result: SearchResult, program: KernelGraph) -> None:
    """Raise `CacheError` if a certificate speaks of other graphs."""
    expected = canonical_hash(program)
    for candidate in result:
        certificate = candidate.certificate
        if certificate is None:
            raise CacheError("a candidate has no certificate")
        hashes = certificate.program_hash, certificate.candidate_hash
        if hashes != (expected, canonical_hash(candidate.mugraph)):
            raise CacheError("a certificate belongs to another graph")
