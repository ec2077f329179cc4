"""What a change that only moves or renames code must leave as it is.

`graphs/*.mu` are μGraphs that between them show most kinds of lines that are ever
emitted, `golden/*.py.txt` the Triton of each.  `searches.json` has the canonical hashes
and estimates of all that is found for the workloads and for random programs.  A change
that means to alter one of these does it by `python -m tests.freeze --update`, and its
commit says why.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mirage_dsl as mirage
from mirage_dsl.backends.triton.lowering.emit import plan
from mirage_dsl.backends.triton.lowering.kernel import Variant
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import with_symbolic
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.store.superoptimize import superoptimize
from tests.programs.random_programs import random_program
from tests.programs.workloads import WORKLOADS

HERE = Path(__file__).parent
GRAPHS = sorted(f.stem for f in (HERE / "graphs").glob("*.mu"))
SEARCHES = HERE / "searches.json"

OPTIONS = "// plan: "
"""Begins a first line that says how a μGraph is emitted, as JSON."""

ODD = (2, 3, 5, 77, 1000, 4099)
SEEDS = [*range(80), *range(1000, 1020)]
"""Of random programs; from 1000 on of odd extents."""

BUDGET_SECONDS = 600.0
"""No search that is frozen may end by the clock."""

Found = list[tuple[str, float]]
"""For each candidate its canonical hash and its estimate in µs."""


def emitted(name: str) -> str:
    """The Triton of a μGraph of `graphs`."""
    text = (HERE / "graphs" / f"{name}.mu").read_text()
    first = text.split("\n", 1)[0]
    graph, options = parse(text, f"{name}.mu"), dict[str, Any]()
    if first.startswith(OPTIONS):
        options = json.loads(first.removeprefix(OPTIONS))
    graph = with_symbolic(graph, options.pop("symbolic", []))
    return plan(graph, Variant(**options)).source


def golden(name: str) -> Path:
    """Where the Triton of a μGraph stands."""
    return HERE / "golden" / f"{name}.py.txt"


@functools.cache
def programs() -> dict[str, KernelGraph]:
    """All workloads at their published sizes, and the random programs."""
    return {**dict(_workloads()), **dict(_random())}


def _workloads() -> Iterator[tuple[str, KernelGraph]]:
    for workload in WORKLOADS:
        specs = [mirage.spec(s, workload.dtype) for s in workload.full.values()]
        function = functools.partial(workload.function, mirage)
        yield workload.name, trace_function(function, specs)


def _random() -> Iterator[tuple[str, KernelGraph]]:
    for seed in SEEDS:
        extents = {"extents": ODD} if seed >= 1000 else {}
        made = random_program(seed, **extents)
        function = functools.partial(made.function, mirage)
        yield f"random_{seed}", trace_function(function, made.specs)


def found(program: KernelGraph, *, use_cache: bool = False) -> Found:
    """What a search finds, or what the cache has of one that came to its end."""
    result = superoptimize(program, budget_seconds=BUDGET_SECONDS, use_cache=use_cache)
    return [
        (canonical_hash(c.mugraph)[:16], round(c.cost.microseconds, 4)) for c in result
    ]


def frozen() -> dict[str, Found]:
    """What was found when it was last frozen."""
    stored = json.loads(SEARCHES.read_text())
    return {name: [(h, us) for h, us in each] for name, each in stored.items()}
