"""Timings of a GPU in the cache: their key, and how they are written down."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mirage_dsl.backends.base import DEFAULT_BACKEND, Backend, backend_named
from mirage_dsl.core.files import typed
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.search.result import Candidate, SearchResult
from mirage_dsl.search.sizes.constraints import Constraints
from mirage_dsl.store.cache import TIMINGS, Cache, Entry, Key
from mirage_dsl.store.results import Fitting, result_json, result_of, usable, vouched
from mirage_dsl.store.superoptimize import AREAS, code_version
from mirage_dsl.tune.channel import InputSpec, Timing

Timings = tuple[list[Candidate], list["Measured"]]

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
    overlap: bool = False,
    backend: str = DEFAULT_BACKEND,
) -> Key:
    """What timings are stored under: the candidates, the inputs, and the machine.

    Calls that overlap (`tuner.Ahead`) have timings of their own.
    """
    program = result.program
    hashes = [canonical_hash(c.mugraph, schedule=True)[:16] for c in result.candidates]
    parts = {
        "program": canonical_hash(program),
        "inputs": "; ".join(str(i) for i in inputs),
        "candidates": ", ".join(hashes),
        "effort": effort,
        "constraints": str(constraints or Constraints()),
        "hardware": hardware.fingerprint,
        "overlap": str(overlap),
        "backend": backend,
        **_surroundings(backend_named(backend)),
        "code": code_version(*AREAS, "backends"),
    }
    return Key(TIMINGS, tuple(parts.items()))


def _surroundings(backend: Backend) -> dict[str, str]:
    """What times depend on beside the code."""
    import torch

    driver = "unknown"
    with suppress(OSError):
        driver = _DRIVER.read_text(encoding="utf-8").splitlines()[0]
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "cuda": str(torch.version.cuda),
        **{n: importlib.metadata.version(n) for n in ("torch", *backend.packages)},
    }


def timings_document(
    found: Sequence[Candidate], measured: Sequence[Measured], program: KernelGraph
) -> dict[str, Any]:
    """What is stored: the choice, and what became of each candidate."""
    chosen = SearchResult(program, tuple(found), complete=False, seconds=0.0)
    return {
        **result_json(chosen),
        "measured": [
            {"mugraph": to_text(m.mugraph), "timing": asdict(m.timing)}
            for m in measured
        ],
    }


def stored_timings(
    store: Cache, key: Key, program: KernelGraph, hardware: Hardware
) -> tuple[list[Candidate], list[Measured]] | None:
    """The choice and what became of each candidate, or None.

    A choice that another machine made is verified; its times are believed.
    """

    def read(entry: Entry) -> Timings:
        records = typed(tuple[_Record, ...], entry.content.get("measured"))
        saved = SearchResult.from_json(dict(entry.content))
        fitting = Fitting(saved.program, program)
        chosen = result_of(entry.content, program)
        measured = [
            Measured(fitting.mugraph(parse(r.mugraph), {}), r.timing) for r in records
        ]
        return list(vouched(entry, chosen, hardware, seconds=0.0)), measured

    def write(found: Timings) -> dict[str, Any]:
        return timings_document(*found, program)

    return usable(store, key, read, write)


@dataclass(frozen=True)
class _Record:
    """What is written of a `Measured`."""

    mugraph: str
    timing: Timing
