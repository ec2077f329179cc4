"""Timings of a GPU in the cache: their key, and how they are written down."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mirage_dsl.backends.triton.messages import InputSpec, Timing
from mirage_dsl.cache import TIMINGS, Cache, Key
from mirage_dsl.errors import MirageError
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.parser import parse
from mirage_dsl.ir.printer import to_text
from mirage_dsl.lines import lines_of, with_lines
from mirage_dsl.search.constraints import Constraints
from mirage_dsl.search.hardware import Hardware
from mirage_dsl.search.result import Candidate, SearchResult
from mirage_dsl.superoptimizer import code_version

_log = logging.getLogger(__name__)

_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Measured:
    """A μGraph and what a GPU said of it."""

    mugraph: KernelGraph
    timing: Timing


def timings_key(
    result: SearchResult,
    inputs: Sequence[InputSpec],
    effort: str,
    constraints: Constraints | None,
    hardware: Hardware,
    *,
    overlap: bool = False,
) -> Key:
    """What timings are stored under: the candidates, the inputs, and the machine.

    Calls that overlap (`tuner.Ahead`) have timings of their own.
    """
    program = result.program
    hashes = [canonical_hash(c.mugraph, schedule=True)[:16] for c in result.candidates]
    parts = {
        "name": program.name,
        "program": canonical_hash(program),
        "inputs": "; ".join(str(i) for i in inputs),
        "candidates": ", ".join(hashes),
        "effort": effort,
        "constraints": str(constraints or Constraints()),
        "hardware": hardware.name,
        "overlap": str(overlap),
        **_surroundings(),
        "code": code_version("ops", "ir", "backends", "search"),
    }
    return Key(TIMINGS, tuple(parts.items()))


def _surroundings() -> dict[str, str]:
    """What times depend on beside the code."""
    import torch

    driver = "unknown"
    with suppress(OSError):
        driver = _DRIVER.read_text(encoding="utf-8").splitlines()[0]
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "cuda": str(torch.version.cuda),
        "torch": importlib.metadata.version("torch"),
        "triton": importlib.metadata.version("triton"),
    }


def timings_document(
    found: Sequence[Candidate], measured: Sequence[Measured], program: KernelGraph
) -> dict[str, Any]:
    """What is stored: the choice, and what became of each candidate."""
    chosen = SearchResult(program, tuple(found), complete=False, seconds=0.0)
    return {
        **chosen.to_json(),
        "lines": [lines_of(c.mugraph, program) for c in found],
        "measured": [
            {"mugraph": to_text(m.mugraph), "timing": asdict(m.timing)}
            for m in measured
        ],
    }


def stored_timings(
    store: Cache, key: Key, program: KernelGraph
) -> tuple[list[Candidate], list[Measured]] | None:
    """The choice and what became of each candidate, or None."""
    content = store.load(key)
    if content is None:
        return None
    try:
        chosen = SearchResult.from_json(dict(content)).candidates
        found = [
            replace(c, mugraph=with_lines(c.mugraph, program, lines))
            for c, lines in zip(chosen, content["lines"], strict=True)
        ]
        measured = [_measured(record) for record in content["measured"]]
    except (MirageError, KeyError, TypeError, ValueError) as error:
        _log.warning("entry %s is not usable: %s", key.digest, error)
        return None
    return found, measured


def _measured(record: Mapping[str, Any]) -> Measured:
    return Measured(parse(record["mugraph"]), Timing(**record["timing"]))
