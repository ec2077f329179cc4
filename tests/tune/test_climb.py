"""What a tuner times after its first round, for how long, and what it says."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

import pytest

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.settings import BUDGET_SECONDS, DETERMINISTIC
from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Schedule
from mirage_dsl.search.result import SearchResult
from mirage_dsl.search.variants import proposals, unlooped
from mirage_dsl.store import superoptimize as store
from mirage_dsl.tune import tuner
from mirage_dsl.tune.measure import Timing
from mirage_dsl.tune.tuner import Ahead, Tuned, tuned
from mirage_dsl.verify.verifier import verify
from tests.backends.conformance import loaded_early
from tests.tune.tuning import Device, gated, library_first, searched

pytestmark = pytest.mark.usefixtures("fresh_cache")


Finals = Callable[[Sequence[KernelGraph]], list[Timing] | None]


def _finals(monkeypatch: pytest.MonkeyPatch, finals: Finals) -> Tuned:
    """A tuning whose finalists are timed by `finals`."""
    result, device = searched(), Device(monkeypatch, library_first)
    monkeypatch.setattr(device, "finals", finals)
    return tuned(result)


def test_the_finalists_have_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they and others took before."""

    def finals(graphs: Sequence[KernelGraph]) -> list[Timing]:
        assert len(graphs) > 2
        return [Timing(i, 100.0 - (i == 1), 1e-5) for i in range(len(graphs))]

    found = _finals(monkeypatch, finals)
    best, second = found.measured[:2]
    assert found.result.best.mugraph == best.mugraph
    assert (best.timing.microseconds, second.timing.microseconds) == (99.0, 100.0)
    assert best.timing.error == 1e-4, "the worst of all that is known"


@mirage.kernel
def many_rows(x, w):
    return mirage.rms_norm(x) @ w


def test_one_of_each_choice_of_library_calls_is_a_finalist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If it is near: which of them wins depends on the power that they take."""

    def calls(graph: KernelGraph) -> int:
        return len(graph.nodes) - len(graph.blocks)

    def first(graph: KernelGraph) -> Timing:
        return Timing(0, 100.0 + calls(graph), 1e-4)

    shapes = mirage.spec((2048, 1024)), mirage.spec((1024, 2048))
    result = store.superoptimize(many_rows.trace(*shapes))
    kinds = {calls(c.mugraph) for c in result} | {calls(result.program)}
    assert kinds > {0, 1}, "kernels of its own, and a library product beside them"
    device = Device(monkeypatch, first)
    finalists: list[KernelGraph] = []

    def finals(graphs: Sequence[KernelGraph]) -> list[Timing]:
        finalists.extend(graphs)
        return [Timing(0, 100.0 - (calls(g) == 1), 1e-4) for g in graphs]

    monkeypatch.setattr(device, "finals", finals)
    best = tuned(result).result.best.mugraph
    assert {calls(g) for g in finalists} == kinds
    assert len(finalists) <= tuner.FINALISTS + tuner.OTHER_FINALISTS + 1
    assert calls(best) == 1


def _launches(graph: KernelGraph) -> object:
    return tuple(
        (n.grid, n.loop, n.schedule) if isinstance(n, BlockGraph) else n.op.name
        for n in graph.nodes
    )


@mirage.kernel
def centred(x, w):
    return mirage.layer_norm(x) @ w


def test_structures_that_are_launched_alike_wait_until_their_launch_is_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most differ by little; the first round is for different sizes."""
    shapes = mirage.spec((16, 256)), mirage.spec((256, 512))
    result = store.superoptimize(centred.trace(*shapes))

    def launched(rounds: int, fastest: object = None) -> Counter[object]:
        """How many were timed of each launch, but for those that the search chose."""

        def judge(graph: KernelGraph) -> Timing:
            return Timing(0, 1.0 if _launches(graph) == fastest else 10.0, 1e-4)

        allowance = replace(tuner.ALLOWANCES["quick"], rounds=rounds)
        monkeypatch.setitem(tuner.ALLOWANCES, "quick", allowance)
        device = Device(monkeypatch, judge)
        tuned(result, use_cache=False)
        own = {c.mugraph for c in result.candidates}
        return Counter(_launches(g) for g in device.timed if g not in own)

    first = launched(rounds=0)
    assert len(first) > 20
    assert max(first.values()) == tuner.ALIKE
    full = [launches for launches, count in first.items() if count == tuner.ALIKE]
    assert any(launched(1, launches)[launches] > tuner.ALIKE for launches in full)


def test_a_first_round_has_no_more_kernels_than_are_compiled_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of networks it has fewer candidates; the program is one in any case."""
    result, allowance = _decoded(), tuner.ALLOWANCES["quick"]
    climb = tuner.Climb(result, allowance, None, H100, lambda *_: None)
    every = climb._first()
    monkeypatch.setattr(tuner, "KERNELS_EACH", 0.5)
    some = climb._first()
    assert some == every[: len(some)]
    most = 0.5 * (len(result.candidates) + allowance.first)
    assert sum(len(g.blocks) for g in some) <= most
    assert sum(len(g.blocks) for g in every) > most
    monkeypatch.setattr(tuner, "KERNELS_EACH", 0)
    assert result.library in climb._first()


@mirage.kernel
def decode(q, k, v):
    return mirage.softmax(q @ k) @ v


@cache
def _decoded() -> SearchResult:
    shapes = [mirage.spec(s) for s in ((32, 16, 64), (32, 64, 4096), (32, 4096, 64))]
    return store.superoptimize(decode.trace(*shapes), use_cache=False)


def _first_round(others: float) -> tuner.Climb:
    """A tuning after its first round: two kernels take 10 µs, others `others`."""
    result, allowance = _decoded(), tuner.ALLOWANCES["quick"]
    assert len(result.best.mugraph.blocks) == 2
    found = tuner.Climb(result, allowance, None, H100, lambda *_: None)
    for graph in found._first():
        time = 10.0 if len(graph.blocks) == 2 else others
        found.timings[graph] = Timing(0, time, 1e-4)
    return found


def test_each_number_of_kernels_has_its_best_sizes_timed() -> None:
    """Whatever the estimate says of them."""
    found = _first_round(others=11.0)
    own = {c.mugraph for c in found.result.candidates}
    timed = Counter(len(g.blocks) for g in found.timings if g not in own)
    there = Counter(len(g.blocks) for g in _proposed(found.result) - own)
    for kernels in (1, 2):
        assert timed[kernels] >= min(tuner.EACH_KIND / 2, there[kernels]) > 0


def _proposed(result: SearchResult) -> set[KernelGraph]:
    """All sizes of the candidates that a first round chooses from."""
    count = tuner.ALLOWANCES["quick"].sizes
    return {
        graph
        for candidate in result
        for graph, _ in proposals(candidate.mugraph, count=count, hardware=H100)
    }


@pytest.mark.parametrize(("others", "last"), [(11.0, 1), (13.0, 2)])
def test_the_fastest_of_another_kind_is_climbed_from_if_it_is_near(
    others: float, last: int
) -> None:
    """Of two kernels there are two kinds: the first has a loop or has none."""
    climbers = [g for g, _ in itertools.islice(_first_round(others)._climbers(), 3)]
    assert [len(graph.blocks) for graph in climbers] == [2, 2, last]
    loops = [sum(b.loop is not None for b in g.blocks) for g in climbers[:2]]
    assert set(loops) == {0, 1}


@mirage.kernel
def of_rows(w, x):
    return w @ x


def test_kernels_without_a_loop_are_timed_beside_those_with_one() -> None:
    """Of matrices by vectors they are faster than the estimate says."""
    shapes = mirage.spec((4096, 4096)), mirage.spec((4096,))
    result = store.superoptimize(of_rows.trace(*shapes), max_kernels=1)
    whole = [g for c in result if (g := unlooped(c.mugraph, hardware=H100)) is not None]
    assert whole, "a loop was found"
    allowance = tuner.ALLOWANCES["quick"]
    climb = tuner.Climb(result, allowance, None, H100, lambda *_: None)
    first = [g for g in climb._first() if g.blocks]
    grids = {g.blocks[0].grid for g in first if g.blocks[0].loop is None}
    assert len(grids) > 1
    assert any(g.blocks[0].loop is not None for g in first)
    for graph in whole:
        assert verify(graph, result.program).ok


@pytest.mark.parametrize("longer", [False, True])
def test_long_calls_have_more_time_at_the_end(
    longer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = searched()
    device = Device(monkeypatch, lambda _: Timing(0, tuner.LONG + longer, 1e-4))
    tuned(result)
    assert device.reserve == (
        tuner.LONG_FINAL_SECONDS if longer else tuner.FINAL_SECONDS
    )


def test_a_finalist_that_turns_out_wrong_is_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def finals(graphs: Sequence[KernelGraph]) -> list[Timing]:
        good = [Timing(i, 1.0 + i, 1e-4) for i in range(1, len(graphs))]
        return [Timing(0, error=1.0, reason="wrong in a chain of calls"), *good]

    found = _finals(monkeypatch, finals)
    assert found.measured[0].timing.microseconds == 2.0
    assert found.measured[-1].timing.reason


def test_without_finals_the_first_timings_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = _finals(monkeypatch, lambda _: None)
    first = {m.mugraph: m.timing for m in found.measured}
    assert all(first[g].microseconds == library_first(g).microseconds for g in first)
    assert found.result.best.mugraph == found.measured[0].mugraph


def test_no_round_begins_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    result, device = searched(), Device(monkeypatch, library_first)
    device.late = True
    tuned(result)
    first = len(device.timed)
    device.timed.clear()
    device.late = False
    tuned(result, use_cache=False)
    assert len(device.timed) > first


@pytest.mark.parametrize("told", [False, True])
def test_who_is_not_told_of_progress_is_told_how_long_it_takes(
    told: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    result = searched()
    Device(monkeypatch, library_first)
    tuned(result, progress=(lambda *_: None) if told else None)
    lines = [r.message for r in caplog.records if "up to about 13 s" in r.message]
    assert len(lines) == (not told)
    tuned(result)
    assert len(caplog.records) == len(lines), "what is in the cache takes no time"


@pytest.mark.parametrize("overlap", [False, True])
def test_calls_are_timed_as_they_will_be_launched(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, device = searched(), Device(monkeypatch, library_first)
    kernel = mirage.kernel(overlap=overlap)(gated.function)
    bound = kernel.bind(mirage.spec((16, 64)), mirage.spec((96, 64), strides=(1, 96)))
    monkeypatch.setattr(store, "superoptimize", lambda *_, **__: result)
    monkeypatch.setattr("mirage_dsl.tune.devices.current_hardware", lambda: H100)
    bound.search()
    graph = next(g for g in device.timed if g.blocks)
    assert not graph.blocks[0].schedule.pdl, "what is kept says nothing of it"
    assert (device.form is not None) == overlap
    if device.form is not None:
        assert all(b.schedule.pdl for b in device.form(graph).blocks)
    timed = len(device.timed)
    device.timed.clear()
    other = mirage.kernel(overlap=not overlap)(gated.function)
    other.bind(mirage.spec((16, 64)), mirage.spec((96, 64), strides=(1, 96))).search()
    assert len(device.timed) == timed, "these are timings of their own"


def test_what_is_constant_is_told_by_its_place() -> None:
    """Timings serve programs with other names, which may be those of other inputs."""

    def one(a, b):
        return a @ b

    def other(b, a):
        return b @ a

    specs = mirage.spec((16, 64)), mirage.spec((64, 32))
    told = [
        Ahead(mirage.kernel(f).trace(*specs), overlap=True, constant={name}).overlapping
        for f in (one, other)
        for name in ("a", "b")
    ]
    assert told[0] == told[3] != told[1] == told[2]


def test_a_search_leaves_time_to_the_tuning_that_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound = gated.bind(mirage.spec((16, 64)), mirage.spec((96, 64), strides=(1, 96)))
    budgets: list[float | None] = []

    def superoptimize(
        *_: object, budget_seconds: float | None, **__: object
    ) -> SearchResult:
        budgets.append(budget_seconds)
        return searched()

    monkeypatch.setattr(store, "superoptimize", superoptimize)
    bound.search()
    Device(monkeypatch, library_first)
    monkeypatch.setattr("mirage_dsl.tune.devices.current_hardware", lambda: H100)
    bound.search()
    bound.search(effort="none")
    bound.search(budget_seconds=2.0)
    with BUDGET_SECONDS.scope(3.0):
        bound.search()
    with DETERMINISTIC.scope(True):
        bound.search()
    own = tuner.ALLOWANCES["quick"]
    assert budgets == [None, own.search, None, 2.0, 3.0, None]
    assert own.search + own.least < own.seconds


def test_of_constants_it_is_tried_how_many_iterations_are_early() -> None:
    """Neighbours are those of what is timed, each once."""
    result = _decoded()
    early = loaded_early(64, early=1)
    inputs = tuple(replace(i, constant=False) for i in early.inputs)
    plain = replace(early, inputs=inputs).with_schedules(lambda _: Schedule(4, 1))
    form = partial(launched_early, first=True, constant={"w", "b"})
    assert form(plain) == early.with_schedules(
        lambda b: replace(b.schedule, num_warps=4, early=1)
    )
    climb = tuner.Climb(
        result, tuner.ALLOWANCES["full"], None, H100, lambda *_: None, form
    )
    found = climb._beside(plain)
    assert {g.blocks[0].schedule.early for g in found} >= {0, 1, 2}
    assert all(g.blocks[0].schedule.pdl for g in found)
    assert all(form(g) == g for g in found)
    (later,) = (g for g in found if g.blocks[0].schedule.early == 2)

    class Judge:
        def times(self, graphs: Sequence[KernelGraph], progress: Any) -> None:
            for at in range(len(graphs)):
                progress(Timing(at, 1.0, 1e-4))

    climb._time(cast("Any", Judge()), [plain, later])
    back = climb._beside(later)
    assert form(plain) not in back
    assert later not in back
    without = tuner.Climb(result, tuner.ALLOWANCES["full"], None, H100, lambda *_: None)
    assert {g.blocks[0].schedule.early for g in without._beside(plain)} == {0}
