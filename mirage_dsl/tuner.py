"""The GPU has the last word: candidates are timed on it, and the timings are kept.

Timings are true of a GPU, its driver and the versions of PyTorch and Triton, so they
are entries of their own in the cache, apart from the verified μGraphs.
"""

from __future__ import annotations

import importlib.metadata
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mirage_dsl.backends.triton.tune import InputSpec, Task, Timing, tune
from mirage_dsl.cache import TIMINGS, Cache, Key
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import Input, KernelGraph
from mirage_dsl.search.constraints import Constraints
from mirage_dsl.search.cost import estimate
from mirage_dsl.search.result import Candidate, SearchResult
from mirage_dsl.search.variants import variants
from mirage_dsl.superoptimizer import code_version
from mirage_dsl.verify.verifier import verify

_log = logging.getLogger(__name__)

SIZES_EACH = 3
"""Sizes of each candidate that are timed, its own among them."""

_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Tuned:
    """A search result in the order that a GPU gave it.

    Attributes:
        result: The candidates that are right and were timed, fastest first; then the
            others, in their old order.
        timings: What became of each, in the order of `result`; none without a GPU.
    """

    result: SearchResult
    timings: tuple[Timing, ...]


def tuned(
    result: SearchResult,
    *,
    most: int | None = None,
    constraints: Constraints | None = None,
    use_cache: bool = True,
) -> Tuned:
    """Time candidates on the current GPU, also at other sizes than the estimate's best.

    The program by library kernels is timed too.  Without a GPU, or where nothing could
    be timed, the order stays as it is.

    Args:
        result: What a search found.
        most: How many candidates to time; None for all.
        constraints: Restrictions that other sizes must keep to.
        use_cache: Look in the cache first, and store what was measured.
    """
    import torch

    if not torch.cuda.is_available():
        return Tuned(result, ())
    pool = _pool(result, most, constraints)
    inputs = tuple(_input_spec(i, result.program) for i in result.program.inputs)
    key = _key(result.program, pool, inputs)
    timings = _measured(key, result.program, pool, inputs, use_cache=use_cache)
    for timing in timings:
        _log.info("candidate %d: %s", timing.index, timing)
    timed = [pool[t.index] for t in timings if not t.reason]
    if not timed:
        _log.warning("%s: no candidate could be timed", result.program.name)
        return Tuned(result, ())
    first = _first_certified(timed, result.program)
    known = [c for c in timed if c.certificate is not None or not c.mugraph.blocks]
    kept = dict.fromkeys([*first, *known, *result.candidates])
    best = {c.mugraph for c in first}
    others = [c for c in kept if c in first or c.mugraph not in best]
    return Tuned(replace(result, candidates=tuple(others)), tuple(timings))


def _pool(
    result: SearchResult, most: int | None, constraints: Constraints | None
) -> list[Candidate]:
    """Candidates, their best other sizes, and the program itself."""
    chosen = list(result.candidates[:most])
    known = {c.mugraph for c in chosen}
    for candidate in result.candidates[:most]:
        for mugraph, cost in variants(
            candidate.mugraph, count=SIZES_EACH, constraints=constraints
        ):
            if mugraph not in known:
                known.add(mugraph)
                chosen.append(Candidate(mugraph, cost, None))
    if all(c.mugraph.blocks for c in chosen):
        chosen.append(Candidate(result.program, estimate(result.program), None))
    return chosen


def _first_certified(
    timed: Sequence[Candidate], program: KernelGraph
) -> list[Candidate]:
    """The fastest candidate with a certificate for its own sizes, if there is one."""
    for candidate in timed:
        if candidate.certificate is not None or not candidate.mugraph.blocks:
            return [candidate]
        certificate = verify(candidate.mugraph, program)
        if certificate.ok:
            return [replace(candidate, certificate=certificate)]
        _log.warning("%s: at other sizes: %s", program.name, certificate)
    return []


def _input_spec(item: Input, program: KernelGraph) -> InputSpec:
    shape = tuple(
        math.prod(program.extent_of[d.name] or 1 for d in axis)
        for axis in item.type.axes
    )
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(item.type.layout or tuple(range(len(shape)))):
        strides[axis] = step
        step *= shape[axis]
    return InputSpec(shape, tuple(strides), item.type.dtype.long_name)


def _key(
    program: KernelGraph, candidates: Sequence[Candidate], inputs: Sequence[InputSpec]
) -> Key:
    hashes = [canonical_hash(c.mugraph, schedule=True)[:16] for c in candidates]
    parts = {
        "name": program.name,
        "program": canonical_hash(program),
        "inputs": "; ".join(str(i) for i in inputs),
        "candidates": ", ".join(hashes),
        **_surroundings(),
        "code": code_version("ops", "ir", "backends"),
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


def _measured(
    key: Key,
    program: KernelGraph,
    candidates: Sequence[Candidate],
    inputs: tuple[InputSpec, ...],
    *,
    use_cache: bool,
) -> list[Timing]:
    store = Cache()
    stored = store.load(key) if use_cache else None
    if stored is not None:
        return [_timing(record) for record in stored["timings"]]
    task = Task(program, inputs)
    timings = tune(task, [c.mugraph for c in candidates])
    if use_cache and any(not t.reason for t in timings):
        store.store(key, {"timings": [asdict(t) for t in timings]})
    return timings


def _timing(record: Mapping[str, Any]) -> Timing:
    return Timing(**record)
