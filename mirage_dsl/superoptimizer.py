"""From a program to verified μGraphs: the cache first, else a search that is kept.

(The module is not called after its function: importing it would hide
`mirage_dsl.superoptimize`.)
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from mirage_dsl.cache import MUGRAPHS, Cache, Key
from mirage_dsl.errors import CacheError, SearchError
from mirage_dsl.first_use import compile_search
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.expand import expand
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.lines import lines_of
from mirage_dsl.search.checkpoint import Checkpoint
from mirage_dsl.search.constraints import Constraints
from mirage_dsl.search.cost import estimate
from mirage_dsl.search.hardware import H100, Hardware
from mirage_dsl.search.result import Candidate, SearchResult
from mirage_dsl.settings import (
    ASSERT_CACHE_HIT,
    BUDGET_SECONDS,
    DISALLOW_SEARCH,
    EFFORT,
    EFFORTS,
    THREADS,
    Effort,
)
from mirage_dsl.spread import spread
from mirage_dsl.stored import for_program, stored_result
from mirage_dsl.version import __version__

if TYPE_CHECKING:
    from mirage_dsl.search.driver import Progress

_log = logging.getLogger(__name__)

_running: dict[str, RLock] = {}
"""A lock for each search, by the digest of its key."""


@dataclass(frozen=True)
class _Request:
    """What a search is asked for; all but the budget is in the key of the cache."""

    candidates: int
    budget_seconds: float
    max_kernels: int | None
    seed: int
    constraints: Constraints
    hardware: Hardware


# Candidates and seconds for each effort that searches.
_EFFORT: Mapping[str, tuple[int, float]] = {"quick": (8, 20.0), "full": (32, 120.0)}


def superoptimize(
    program: KernelGraph,
    *,
    effort: Effort | None = None,
    budget_seconds: float | None = None,
    max_kernels: int | None = 2,
    use_cache: bool = True,
    constraints: Constraints | None = None,
    hardware: Hardware = H100,
    executor: Executor | None = None,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    seed: int = 0,
    begin: Callable[[], None] | None = None,
) -> SearchResult:
    """The best μGraphs of a program, cheapest first, each with its certificate.

    Args:
        program: A traced program of known extents.
        effort: `none` gives the program itself, `quick` searches for seconds, `full`
            for a minute or two; `MIRAGE_DSL_EFFORT` unless it is given.
        budget_seconds: Time limit of the search; the effort's unless it is given.
        max_kernels: 1 keeps a program in one kernel if that beats library kernels;
            more let the estimate decide where to cut, and whether to split a loop
            over the grid; None without a limit.
        use_cache: Look in the cache first, and store what is found.
        constraints: Restrictions on grids, maps, loops and blocks.
        hardware: The GPU to estimate for.
        executor: Where the search runs, as in a process of a pool; without progress
            and checkpoint.  A program that is too long for one search is searched here,
            its segments there.  What a lost worker had is searched again.
        progress: Called with the stage, how much is done, of how much, and the best
            estimate so far in µs.
        checkpoint: A file that keeps what was found so far: after an interruption the
            same search goes on from there.
        seed: Of all random choices.
        begin: Called when a search begins; not if the result is there already.

    Raises:
        SearchError: The program cannot be searched, or searching is disallowed.
        CacheError: A hit is demanded, and there is none.
    """
    job = prepare(
        program,
        effort=effort,
        budget_seconds=budget_seconds,
        max_kernels=max_kernels,
        use_cache=use_cache,
        constraints=constraints,
        hardware=hardware,
        seed=seed,
    )
    # Threads that ask for one program wait for one search, and take its result.
    with _running.setdefault(job.key.digest, RLock()):
        found = job.known()
        if found is not None:
            return found
        if executor is None or job.is_long:
            return job.keep(job.run(progress, checkpoint, executor, begin))
        if begin is not None:
            begin()
        return _elsewhere(job, executor)


def _elsewhere(job: Job, executor: Executor) -> SearchResult:
    """Search in a worker of an executor."""
    received: list[SearchResult] = []
    spread(
        Job.run_there,
        [job],
        executor,
        lambda _, document: received.append(job.received(document)),
    )
    return job.keep(received[0])


def prepare(
    program: KernelGraph,
    *,
    effort: Effort | None = None,
    budget_seconds: float | None = None,
    max_kernels: int | None = 2,
    use_cache: bool = True,
    constraints: Constraints | None = None,
    hardware: Hardware = H100,
    seed: int = 0,
) -> Job:
    """What `superoptimize` has to do, from its arguments and the settings.

    Raises:
        SearchError: The program cannot be searched.
    """
    if program.blocks:
        raise SearchError(
            f"{program.name} has kernels of its own; a search starts from a traced "
            "program, whose operators are not grouped into kernels yet"
        )
    if budget_seconds is not None and not budget_seconds > 0:
        raise SearchError(
            f"budget_seconds={budget_seconds!r}; expected a number of seconds above 0"
        )
    if max_kernels is not None and max_kernels < 1:
        raise SearchError(
            f"max_kernels={max_kernels!r}; expected 1 or more, or None for any number"
        )
    effort = _known(effort or EFFORT.get())
    count, seconds = _EFFORT.get(effort, (0, 0.0))
    budget = budget_seconds or BUDGET_SECONDS.get() or seconds
    request = _Request(
        count, budget, max_kernels, seed, constraints or Constraints(), hardware
    )
    return Job(program, request, use_cache)


@dataclass(frozen=True)
class Job:
    """One program to search.  It pickles, and may run anywhere.

    Attributes:
        program: What to search.
        request: How; no candidates are asked for where nothing is to be searched.
        use_cache: Whether to look in the cache, and to store what is found.
    """

    program: KernelGraph
    request: _Request
    use_cache: bool = True

    @property
    def key(self) -> Key:
        """What the result is stored under."""
        return search_key(self.program, self.request)

    def known(self) -> SearchResult | None:
        """The result, if it takes no search.

        A stored one that was cut short by a smaller budget is not good enough, unless
        there is to be no search.

        Raises:
            SearchError: It takes one, and that is disallowed.
            CacheError: A hit is demanded, and there is none.
        """
        if not self.request.candidates:
            return _as_written(self.program, self.request.hardware)
        store, key = Cache(), self.key
        found = stored_result(store, key, self.program) if self.use_cache else None
        if found is None:
            _refuse(store, key, self.program)
            return None
        result, spent = found
        if spent < self.request.budget_seconds and not _no_search():
            _log.info("%s: in the cache, but cut short", self.program.name)
            return None
        return result

    def keep(self, result: SearchResult) -> SearchResult:
        """Store a result, and give it back; what more time found stays."""
        if not self.use_cache or not _worth_keeping(result):
            return result
        store, key = Cache(), self.key
        spent = None
        if result.cut_short:
            # Ctrl-C may have come before the end of the budget.
            spent = min(result.seconds, self.request.budget_seconds)
            stored = stored_result(store, key, self.program)
            if stored is not None and stored[1] > spent:
                return result
        lines = [lines_of(c.mugraph, self.program) for c in result]
        store.store(key, {**result.to_json(), "lines": lines, "spent": spent})
        return result

    @property
    def is_long(self) -> bool:
        """Whether the program is cut into segments before it is searched."""
        from mirage_dsl.search.several import MOST_OPERATORS

        return len(expand(self.program).nodes) > MOST_OPERATORS

    def run(
        self,
        progress: Progress | None = None,
        checkpoint: str | Path | None = None,
        executor: Executor | None = None,
        begin: Callable[[], None] | None = None,
    ) -> SearchResult:
        """Search, in this process; segments of a long program on the executor."""
        # Not imported for what is in the cache.
        from mirage_dsl.search.driver import search
        from mirage_dsl.search.finish import finished

        compile_search(code_version(), progress)
        if begin is not None:
            begin()
        request = self.request
        found = search(
            self.program,
            k=request.candidates,
            budget_seconds=request.budget_seconds,
            seed=request.seed,
            threads=THREADS.get(),
            max_kernels=request.max_kernels,
            constraints=request.constraints,
            hardware=request.hardware,
            progress=progress,
            checkpoint=_checkpoint(checkpoint),
            executor=executor,
        )
        return finished(found, request.hardware)

    def run_there(self) -> dict[str, Any]:
        """Search in a worker: the result as JSON, for `received`."""
        result = self.run()
        lines = [lines_of(c.mugraph, self.program) for c in result]
        return {**result.to_json(), "lines": lines}

    def received(self, document: dict[str, Any]) -> SearchResult:
        """The result that `run_there` gave, with this program and its lines."""
        result = SearchResult.from_json(document)
        return for_program(result, self.program, document["lines"])


def _checkpoint(path: str | Path | None) -> Checkpoint | None:
    return None if path is None else Checkpoint(Path(path), code_version())


def _worth_keeping(result: SearchResult) -> bool:
    """Not if the time ran out before anything was found: ask again, with more of it."""
    return result.complete or any(c.mugraph.blocks for c in result)


def _known(effort: str) -> Effort:
    for name in EFFORTS:
        if name == effort:
            return name
    raise SearchError(f"effort {effort!r}: expected {', '.join(EFFORTS)}")


def _as_written(program: KernelGraph, hardware: Hardware) -> SearchResult:
    started = time.monotonic()
    candidate = Candidate(program, estimate(program, hardware), None)
    return SearchResult(
        program, (candidate,), complete=False, seconds=time.monotonic() - started
    )


def search_key(program: KernelGraph, request: _Request) -> Key:
    """The key of a search: the program, its sizes and layouts, settings, versions.

    Not its budget: a search that came to its end is as good with a larger one.
    """
    inputs = "; ".join(str(i.type) for i in program.inputs)
    extents = ", ".join(f"{n} = {e}" for n, e in program.extents)
    options = {name: str(value) for name, value in asdict(request).items()}
    del options["budget_seconds"]
    parts = {
        "name": program.name,
        "program": canonical_hash(program),
        "structure": canonical_hash(program, sizes=False),
        "inputs": inputs,
        "extents": extents,
        **options,
        "code": code_version(),
    }
    return Key(MUGRAPHS, tuple(parts.items()))


@cache
def code_version(*areas: str) -> str:
    """The package's version and a checksum of the code that results depend on.

    Args:
        *areas: Packages; those that a search runs unless any are given.
    """
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for area in areas or ("ops", "ir", "search", "verify"):
        for file in sorted((package / area).rglob("*")):
            if file.suffix in (".py", ".lark"):
                digest.update(file.relative_to(package).as_posix().encode())
                digest.update(file.read_bytes())
    return f"{__version__} {digest.hexdigest()[:16]}"


def _no_search() -> bool:
    return ASSERT_CACHE_HIT.get() or DISALLOW_SEARCH.get()


def _refuse(store: Cache, key: Key, program: KernelGraph) -> None:
    if ASSERT_CACHE_HIT.get():
        raise CacheError(
            f"{program.name} is not in the cache, and {ASSERT_CACHE_HIT.name} is set: "
            f"{store.explain_miss(key)}\nSearch it once without that variable, or "
            f"import a cache that has it.  Its key:\n{key}"
        )
    if DISALLOW_SEARCH.get():
        raise SearchError(
            f"{program.name} is not in the cache, and {DISALLOW_SEARCH.name} is set: "
            'search it once without that variable, or run it with effort="none"'
        )
