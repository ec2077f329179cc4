"""From a program to verified μGraphs: the cache first, else a search that is kept.

A program is known by what it computes, so a stored result may be of a program that
calls its values and dims otherwise, or states independent operators in another order.
It is loaded, checked, and fit to the program.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from mirage_dsl.core.errors import CacheError, SearchError
from mirage_dsl.core.files import typed
from mirage_dsl.core.hardware import DEFAULT, Hardware, row_given
from mirage_dsl.core.modes import convolutions_round
from mirage_dsl.core.settings import (
    ASSERT_CACHE_HIT,
    BUDGET_SECONDS,
    DISALLOW_SEARCH,
    EFFORT,
    EFFORTS,
    THREADS,
    Effort,
)
from mirage_dsl.core.types import f16
from mirage_dsl.core.work import spread
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.canonical import Renaming, canonical_hash, canonical_names
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.graph import Apply, KernelGraph, KernelNode
from mirage_dsl.ir.text.printer import lines_of, with_lines
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.windows import rounds_windows
from mirage_dsl.search.budget import SearchBudget
from mirage_dsl.search.memo import Checkpoint, names_of, renamed
from mirage_dsl.search.result import Candidate, SearchResult, best_first
from mirage_dsl.search.sizes import Constraints
from mirage_dsl.store.cache import MUGRAPHS, Cache, Entry, Key
from mirage_dsl.store.workers import workers_to_spare
from mirage_dsl.verify.certificate import Certificate
from mirage_dsl.version import __version__

if TYPE_CHECKING:
    from mirage_dsl.search.segments import Progress


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
        _stored.warning("entry %s is not usable: %s", key.digest, error)
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
    convolves = convolutions_round() and any(n.op.convolves for n in program.applies)
    kept: list[Candidate] = []
    for graph in (c.mugraph for c in result.candidates):
        if kept and time.monotonic() > ends:
            break
        check_or_raise(graph)
        rounded = [b for b in graph.blocks if b.schedule.allow_tf32]
        if rounded and not (convolves and all(map(rounds_windows, rounded))):
            raise CacheError("a candidate rounds operands to TF32 where no search does")
        certificate = identity(program) if graph == program else verify(graph, program)
        if not certificate.ok:
            raise CacheError(f"a candidate is refused: {certificate}")
        kept.append(Candidate(graph, estimate(graph, hardware), certificate))
    return tuple(best_first(kept))


# -- What happens once on a machine ----------------------------------------------------

_compiling = logging.getLogger("mirage_dsl.first_use")
_stored = logging.getLogger("mirage_dsl.stored")


def _small() -> KernelGraph:
    """A program that takes the search through all that is compiled."""
    # Not parsed: making the parser takes longer than loading either.
    built = KernelBuilder("small", m=4, k=64, n=64)
    x, w = built.input("x", f16, "m, k"), built.input("w", f16, "k, n")
    return built.returns(built.matmul(x, w, over="k")).build()


def prepare_search(version: str, progress: Progress | None) -> float:
    """Let the search be compiled and loaded where it is not yet, outside of any budget.

    Compiling takes some seconds, once for each version of the code on a machine, and
    loading some tenths of a second, once in a process.

    Args:
        version: Of the code.
        progress: Told of what is compiled.

    Returns:
        How many seconds loading took.
    """
    compile_search(version, progress)
    started = time.monotonic()
    load_search()
    return time.monotonic() - started


@cache
def load_search() -> None:
    """Load what a search runs."""
    from mirage_dsl.search.structures import structures
    from mirage_dsl.verify.verifier import verify

    small = _small()
    structures(small, DEFAULT)
    verify(small, small)


def compile_search(version: str, progress: Progress | None) -> None:
    """Compile what a search runs, if this machine has not yet.

    Each version has a mark of its own, for several may be in use at once.
    """
    directory = Path(os.environ["NUMBA_CACHE_DIR"])
    marker = directory / f"compiled-{version.replace(' ', '-')}"
    with suppress(OSError):
        if marker.exists():
            return
    if progress is None:
        _compiling.warning("compiling the search for this machine, once; some seconds")
    else:
        progress("compiling the search (once)", 0, 1, None)
    from mirage_dsl.search.driver import search
    from mirage_dsl.search.multi_kernel.search import multi_kernel

    search(_small(), DEFAULT, k=1)
    multi_kernel(_small(), DEFAULT, max_kernels=2, keep=1)
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        marker.touch()


# -- The cache first, else a search ----------------------------------------------------

_log = logging.getLogger("mirage_dsl.superoptimizer")

_running: dict[tuple[Path, str], RLock] = {}
"""A lock for each search, by its cache and the digest of its key."""


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
    hardware: Hardware | str = DEFAULT,
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
        hardware: The GPU to estimate for, or its name, as "H100"; `hardware.DEFAULT`
            unless it is given.
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
    found = job.known()
    if found is not None:
        return found
    return job.result(progress, checkpoint, executor, begin)


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
    hardware: Hardware | str = DEFAULT,
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
        *(count, budget, max_kernels, seed),
        constraints or Constraints(),
        row_given(hardware),
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

    @contextmanager
    def turn(self) -> Generator[None, None, None]:
        """While this lasts, who asks for the same waits: threads, and processes.

        They wait no longer than a search of their own would take.
        """
        if not self.use_cache:
            yield
            return
        store, key, seconds = Cache(), self.key, self.request.budget_seconds + 1.0
        lock = _running.setdefault((store.directory, key.digest), RLock())
        with ExitStack() as held:
            if lock.acquire(timeout=seconds):
                held.callback(lock.release)
                held.enter_context(store.turn(key, seconds))
            yield

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
        store, key, name = Cache(), self.key, self.program.name
        found = self._stored(store, key) if self.use_cache else None
        if found is None:
            _refuse(store, key, self.program)
            if self.use_cache and _log.isEnabledFor(logging.INFO):
                _log.info("%s: not in the cache: %s", name, store.explain_miss(key))
            return None
        if not self._serves(found):
            _log.info("%s: in the cache, but cut short", name)
            return None
        _log.info("%s: from the cache, %s", name, key.digest)
        return found.result

    def _serves(self, found: Stored) -> bool:
        return found.spent >= self.request.budget_seconds or _no_search()

    def result(
        self,
        progress: Progress | None = None,
        checkpoint: str | Path | None = None,
        executor: Executor | None = None,
        begin: Callable[[], None] | None = None,
    ) -> SearchResult:
        """Search, unless another thread or process has done so when it is our turn."""
        with self.turn():
            found = self._stored(Cache(), self.key) if self.use_cache else None
            if found is not None and self._serves(found):
                return found.result
            if executor is None or self.is_long:
                return self.keep(self.run(progress, checkpoint, executor, begin))
            if begin is not None:
                begin()
            return _elsewhere(self, executor)

    def _stored(self, store: Cache, key: Key) -> Stored | None:
        request = self.request
        return stored_result(
            store, key, self.program, request.hardware, request.budget_seconds
        )

    def keep(self, result: SearchResult) -> SearchResult:
        """Store a result, unless a cheaper one is; the cheaper one.

        It serves up to the budget that it was asked with, or the larger one that the
        stored one was.  After Ctrl-C it serves up to the time that was spent.
        """
        if not self.use_cache:
            return result
        store, key, spent = Cache(), self.key, math.inf
        if result.cut_short:
            spent = self.request.budget_seconds
        if result.interrupted:
            spent = min(spent, result.seconds)
        new, stored = Stored(result, spent), self._stored(store, key)
        best = new
        if stored is not None:
            ranked = min((new, stored), key=lambda s: (s.result.best.rank, -s.spent))
            best = Stored(ranked.result, max(spent, stored.spent))
        if best != stored:
            store.store(key, best.to_json())
        return best.result

    @property
    def is_long(self) -> bool:
        """Whether the program is cut into segments before it is searched."""
        from mirage_dsl.search.programs import MOST_OPERATORS

        return len(expand(self.program).nodes) > MOST_OPERATORS

    def run(
        self,
        progress: Progress | None = None,
        checkpoint: str | Path | None = None,
        executor: Executor | None = None,
        begin: Callable[[], None] | None = None,
    ) -> SearchResult:
        """Search, in this process; parts of a long program on the executor as well.

        Without one there are workers for that, where there are cores for them.
        """
        compile_search(code_version(), progress)
        spare = executor is None and self.is_long
        with workers_to_spare() if spare else nullcontext(executor) as workers:
            return self._run(progress, checkpoint, workers, begin)

    def _run(
        self,
        progress: Progress | None,
        checkpoint: str | Path | None,
        executor: Executor | None,
        begin: Callable[[], None] | None,
    ) -> SearchResult:
        # Not imported for what is in the cache.
        from mirage_dsl.search.driver import finished, search

        loading = prepare_search(code_version(), progress)
        if begin is not None:
            begin()
        request = self.request
        budget = SearchBudget(request.budget_seconds, loading)
        found = search(
            self.program,
            hardware=request.hardware,
            k=request.candidates,
            budget_seconds=request.budget_seconds,
            spent=loading,
            seed=request.seed,
            threads=THREADS.get(),
            max_kernels=request.max_kernels,
            constraints=request.constraints,
            progress=progress,
            checkpoint=_checkpoint(checkpoint),
            executor=executor,
        )
        return finished(found, request.hardware, budget.ordered)

    def run_there(self) -> dict[str, Any]:
        """Search in a worker: the result as JSON, for `received`."""
        return result_json(self.run())

    def received(self, document: dict[str, Any]) -> SearchResult:
        """The result that `run_there` gave, with this program and its lines."""
        return result_of(document, self.program)


def _checkpoint(path: str | Path | None) -> Checkpoint | None:
    return None if path is None else Checkpoint(Path(path), code_version())


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

    Not its names: of the function, of values, of dims.  Nor its budget: a search that
    came to its end is as good with a larger one.
    """
    dims = dict(canonical_names(program).dims)
    inputs = "; ".join(str(Renaming(dims).type(i.type)) for i in program.inputs)
    known = ((dims[n], e) for n, e in program.extents if n in dims)
    options = {name: str(value) for name, value in asdict(request).items()}
    del options["budget_seconds"]
    options["hardware"] = request.hardware.fingerprint
    parts = {
        "program": canonical_hash(program),
        "structure": canonical_hash(program, sizes=False),
        "inputs": inputs,
        "extents": ", ".join(f"{n} = {e}" for n, e in sorted(known)),
        **options,
        "code": code_version(),
    }
    if any(n.op.convolves for n in program.applies):
        parts["convolutions"] = "TF32" if convolutions_round() else "f32"
    return Key(MUGRAPHS, tuple(parts.items()))


AREAS = (
    *("core/hardware", "ops", "ir", "rewrite", "cost", "tile", "verify", "search"),
)
"""Where the code is that a search runs."""


@cache
def code_version(*areas: str) -> str:
    """The package's version and a checksum of the code that results depend on.

    Args:
        *areas: Packages and modules; those that a search runs unless any are given.
    """
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for area in areas or AREAS:
        place = package / area
        files = place.rglob("*") if place.is_dir() else [place.with_suffix(".py")]
        for file in sorted(files):
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


# -- Many programs ---------------------------------------------------------------------


def superoptimize_all(
    programs: Sequence[KernelGraph],
    *,
    executor: Executor | None = None,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> list[SearchResult]:
    """The results of `superoptimize` for several programs, as of a model's blocks.

    Programs of the same canonical hash, like the repeated blocks of a transformer, are
    searched once.  Every result is stored when it is there, so an interrupted run goes
    on where it was.

    Args:
        programs: Traced programs of known extents.
        executor: Where the searches run: processes, a cluster; of a program too long
            for one search, those of its segments.  What a lost worker had is searched
            again, by another one or in this process.
        progress: Called with `programs`, how many are done and of how many.
        checkpoint: As for `superoptimize`; used where the search runs in this process.
        **options: Arguments of `superoptimize`, for all programs.

    Raises:
        MirageError: As `superoptimize` raises.
    """
    hashes = [canonical_hash(p) for p in programs]
    jobs: dict[str, Job] = {}
    for program, name in zip(programs, hashes, strict=True):
        if name not in jobs:
            jobs[name] = prepare(program, **options)
    known = {name: job.known() for name, job in jobs.items()}
    found = {name: result for name, result in known.items() if result is not None}

    def tell() -> None:
        if progress is not None:
            progress("programs", len(found), len(jobs), None)

    tell()
    missing = [name for name in jobs if name not in found]
    short = [n for n in missing if executor is not None and not jobs[n].is_long]

    def done(number: int, document: dict[str, Any]) -> None:
        name = short[number]
        found[name] = jobs[name].keep(jobs[name].received(document))
        tell()

    if executor is not None:
        spread(Job.run_there, [jobs[n] for n in short], executor, done)
    for name in missing:
        if name not in found:
            found[name] = jobs[name].result(None, checkpoint, executor)
            tell()
    return [
        for_program(found[name], program)
        for program, name in zip(programs, hashes, strict=True)
    ]
