"""Every step of a search sees the end of its budget, and what there is then is fused.

The search's clock is the processor time of this process, so that a busy machine changes
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.work import OutOfTimeError, look, until
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.sums import multiplied_out
from mirage_dsl.search import driver
from mirage_dsl.search.budget import TO_SECURE, SearchBudget
from mirage_dsl.search.closure import saturate, workspace
from mirage_dsl.search.driver import search
from mirage_dsl.search.result import SearchResult
from mirage_dsl.search.segments import SegmentSearch
from mirage_dsl.search.space import space_of
from mirage_dsl.store.superoptimize import superoptimize
from mirage_dsl.verify import verifier
from tests.pace import Stopwatch, nominal_clock
from tests.search.test_multi_kernel import decode

BUDGET = 0.4
AFTER = 4.0
"""Seconds that a search may take longer than its budget on a slow and busy machine.

A usual one takes 0.6.  A step that does not see the end takes minutes.
"""

ENOUGH = 1.5
"""A budget in which a slow machine finds what a usual one finds in a third of it."""


def traced(
    function: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32"
) -> KernelGraph:
    return trace_function(function, [mirage.spec(s, dtype) for s in shapes])


def doubled(count: int) -> KernelGraph:
    """A value of 2 to the power of `count` equal terms."""

    def function(a: Any) -> Any:
        for _ in range(count):
            a = a + a
        return a

    return traced(function, (64, 256))


def doubled_and_reduced() -> KernelGraph:
    def function(a: Any, w: Any) -> Any:
        for _ in range(30):
            a = a + a
        b = a - a.mean(-1, keepdim=True)
        return (b * b).mean(-1, keepdim=True) + a @ w

    return traced(function, (64, 256), (256, 256))


def squared() -> KernelGraph:
    def function(a: Any) -> Any:
        for _ in range(40):
            a = a * a
        return a.sum(-1)

    return traced(function, (64, 256))


def different_terms() -> KernelGraph:
    """A value of 2 to the power of 20 terms, all of them different."""

    def function(a: Any, *others: Any) -> Any:
        for b, c in zip(others[::2], others[1::2], strict=True):
            a = a * b + a * c
        return a

    return traced(function, *[(64, 256)] * 41)


def long_product() -> KernelGraph:
    def function(a: Any, *others: Any) -> Any:
        for b in others:
            a = a * b
        return a

    return traced(function, *[(64, 256)] * 70)


def many_operators() -> KernelGraph:
    def function(a: Any, b: Any) -> Any:
        for _ in range(100):
            a = mirage.sigmoid(a * b + b)
        return a

    return traced(function, (64, 256), (64, 256), dtype="float16")


def norms_and_products() -> KernelGraph:
    def function(a: Any, w: Any, b: Any) -> Any:
        for _ in range(15):
            a = mirage.layer_norm(a) @ w + b
        return a

    return traced(function, (64, 256), (256, 256), (256,), dtype="float16")


def long_chain() -> KernelGraph:
    def function(a: Any, *weights: Any) -> Any:
        for w in weights:
            a = a @ w
        return a

    return traced(function, (64, 256), *[(256, 256)] * 30, dtype="float16")


def wide() -> KernelGraph:
    def function(*inputs: Any) -> Any:
        pairs = zip(inputs[::2], inputs[1::2], strict=True)
        return tuple(mirage.silu(a) * b for a, b in pairs)

    return traced(function, *[(64, 256)] * 40, dtype="float16")


def heads() -> KernelGraph:
    def function(*inputs: Any) -> Any:
        threes = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
        return tuple(mirage.softmax(q @ k.T) @ v for q, k, v in threes)

    return traced(function, *[(64, 64)] * 24, dtype="float16")


def exponentials() -> KernelGraph:
    """Many exponentials that share no shift; the largest overflow for most inputs."""

    def function(a: Any) -> Any:
        return tuple(mirage.exp(a * float(i)) + a for i in range(1, 60))

    return traced(function, (64, 64), dtype="float16")


def gated_products() -> KernelGraph:
    """Comparisons between products: verification asks which of them matter."""

    def function(a: Any, *weights: Any) -> Any:
        for w in weights:
            a = mirage.relu(a @ w) * mirage.sigmoid(a) + a
        return a

    return traced(function, (16, 512), *[(512, 512)] * 8, dtype="float16")


def normed_behind_a_convolution() -> KernelGraph:
    """Its maxima are computed in a kernel, behind roots and beside other choices."""

    def function(x: Any, w: Any, g: Any, h: Any) -> Any:
        c = torch.conv2d(x, w)
        y = torch.tanh(torch.nn.functional.group_norm(c, 16, g, h))
        return torch.logsumexp(c + torch.nn.functional.hardswish(y), 1, keepdim=True)

    return traced(function, (128, 8, 128, 128), (64, 8, 3, 3), (64,), (64,))


def long_concatenation() -> KernelGraph:
    def function(*inputs: Any) -> Any:
        return mirage.cat([x * float(i + 2) for i, x in enumerate(inputs)], 0)

    return traced(function, *[(8 + i, 256) for i in range(24)], dtype="float16")


def joined_to_itself() -> KernelGraph:
    """A concatenation of concatenations, of 2 to the power of 12 equal parts."""

    def function(a: Any) -> Any:
        for _ in range(12):
            a = torch.cat([a, a])
        return a

    return traced(function, (4, 64))


def rank_six() -> KernelGraph:
    def function(a: Any, b: Any) -> Any:
        c = mirage.softmax(mirage.einsum("abcdef,abcdef->abcdef", a, b))
        return c.sum(2), c.mean(3)

    return traced(function, (2, 3, 4, 5, 6, 64), (2, 3, 4, 5, 6, 64), dtype="float16")


PROGRAMS = [
    doubled_and_reduced,
    squared,
    different_terms,
    long_product,
    many_operators,
    norms_and_products,
    long_chain,
    wide,
    heads,
    long_concatenation,
    joined_to_itself,
    rank_six,
    exponentials,
    gated_products,
    normed_behind_a_convolution,
]


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """What a process compiles and loads once, no budget counts."""
    superoptimize(decode(), budget_seconds=0.1, use_cache=False)


@pytest.fixture
def nominal_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", nominal_clock())


FUSED = {
    doubled_and_reduced: 3,
    different_terms: 1,
    long_product: 1,
    many_operators: 1,
    norms_and_products: 31,
    long_concatenation: 5,
    exponentials: 1,
    gated_products: 16,
    normed_behind_a_convolution: 14,
}
"""How many launches what is found in a budget of `ENOUGH` has at most."""


def launches(result: SearchResult) -> int:
    """Kernels and library calls of the best candidate."""
    nodes = result.best.mugraph.nodes
    return sum(not (isinstance(n, Apply) and n.is_view) for n in nodes)


@pytest.mark.sample(2)
@pytest.mark.usefixtures("nominal_time")
@pytest.mark.parametrize("program", PROGRAMS)
def test_any_search_ends_soon_after_its_budget(
    program: Callable[[], KernelGraph],
) -> None:
    """And what lies between products is fused then."""
    asked = program()
    budget = ENOUGH if program in FUSED else BUDGET
    watch = Stopwatch()
    result = superoptimize(asked, budget_seconds=budget, use_cache=False)
    assert watch.seconds < budget + AFTER
    assert result.best.certificate is not None
    assert result.best.certificate.ok
    assert not result.complete
    assert launches(result) <= FUSED.get(program, len(asked.nodes))


def test_what_is_doubled_is_one_kernel_of_a_search_without_a_limit() -> None:
    result = search(doubled(20), H100)
    assert launches(result) == 1
    assert not result.cut_short


def test_a_value_of_many_terms_has_few_useful_parts() -> None:
    space = space_of(expand(doubled(30)))
    found = saturate(space, None, workspace())
    assert found.roots[0]
    assert found.counters["useful"] < 1000


def test_sums_that_are_doubled_are_multiplied_out_at_once() -> None:
    watch = Stopwatch()
    multiplied_out(expand(doubled_and_reduced()))
    assert watch.seconds < 1.0


@pytest.mark.usefixtures("nominal_time")
def test_a_search_that_comes_to_its_end_needs_no_quick_answer() -> None:
    limited, free = search(decode(), H100, budget_seconds=500.0), search(decode(), H100)
    assert not limited.cut_short
    assert [to_text(c.mugraph) for c in limited] == [to_text(c.mugraph) for c in free]


@pytest.mark.sample(1)
@pytest.mark.usefixtures("nominal_time")
@pytest.mark.parametrize("budget", [None, 500.0])
def test_the_quick_answer_of_a_long_program_is_one_of_its_plans(
    monkeypatch: pytest.MonkeyPatch, budget: float | None
) -> None:
    """Also where the search comes to its end and finds nothing better."""
    monkeypatch.setattr(driver._Driver, "_search_forms", lambda *_: None)
    result = search(many_operators(), H100, budget_seconds=budget)
    assert not result.cut_short
    assert launches(result) == 1


@pytest.mark.usefixtures("nominal_time")
def test_a_quick_answer_leaves_to_libraries_what_there_is_no_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def layers(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = torch.nn.functional.gelu(x @ w) * 0.5 + 1
        return x

    plans = SegmentSearch.plans

    def slow(self: SegmentSearch, *given: Any) -> Any:
        until_then = time.monotonic() + 0.25
        while time.monotonic() < until_then:
            look()
        return plans(self, *given)

    monkeypatch.setattr(driver._Driver, "_search_forms", lambda *_: None)
    monkeypatch.setattr(SegmentSearch, "plans", slow)
    # No two layers are alike: what is known of one is used for the others.
    widths = range(64, 209, 16)
    program = traced(layers, (64, 64), *pairwise(widths))
    result = search(program, H100, budget_seconds=2.0)
    made = len(result.best.mugraph.blocks)
    assert 0 < made < len(widths) - 1


@pytest.mark.usefixtures("nominal_time")
def test_a_verification_that_takes_too_long_leaves_another_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def endless(*_: object) -> None:
        while True:
            look()

    monkeypatch.setattr(driver, "certified", endless)
    watch = Stopwatch()
    result = search(decode(), H100, budget_seconds=0.2)
    assert watch.seconds < 0.2 + AFTER
    assert result.cut_short
    assert not result.complete
    assert result.best.mugraph == decode()


def behind_a_convolution() -> KernelGraph:
    def function(x: Any, w: Any) -> Any:
        return torch.nn.functional.mish(torch.conv2d(x, w) - 0.5)

    return traced(function, (32, 8, 64, 64), (64, 8, 3, 3))


@pytest.mark.sample(1)
@pytest.mark.usefixtures("nominal_time")
def test_beside_library_kernels_an_answer_is_verified_before_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is found later may take longer to verify than there is time."""
    certified, searched = driver.certified, list[str]()

    def endless(*given: Any) -> Any:
        while searched:
            look()
        return certified(*given)

    monkeypatch.setattr(driver._Driver, "_search_forms", lambda *_: searched.append(""))
    monkeypatch.setattr(driver, "certified", endless)
    result = search(behind_a_convolution(), H100, budget_seconds=ENOUGH)
    assert searched
    assert result.best.mugraph.blocks


@pytest.mark.usefixtures("nominal_time")
def test_what_cannot_be_right_in_part_has_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its verification does not end where that of parts would begin."""
    certified, secure = driver.certified, driver._Driver._secure
    driver_of, share = list[driver._Driver](), (TO_SECURE + 1.0) / 2

    def noted(self: driver._Driver, program: KernelGraph) -> None:
        driver_of.append(self)
        secure(self, program)

    def late(*given: Any) -> Any:
        while not driver_of[0].budget.past(share):
            look()
        return certified(*given)

    monkeypatch.setattr(driver._Driver, "_secure", noted)
    monkeypatch.setattr(driver._Driver, "_search_forms", lambda *_: None)
    monkeypatch.setattr(driver, "certified", late)
    result = search(behind_a_convolution(), H100, budget_seconds=2 * ENOUGH)
    assert driver_of[0].secured
    assert result.best.mugraph.blocks


def many_layers(count: int) -> KernelGraph:
    """Equal layers around products, and a last one of another kind."""

    def function(x: Any, w: Any) -> Any:
        for _ in range(count):
            x = x + torch.nn.functional.silu(x @ w) * x
        return torch.softmax(x * 2 + 1, -1)

    return traced(function, (64, 64), (64, 64))


@pytest.mark.sample(1)
@pytest.mark.usefixtures("nominal_time")
def test_a_search_that_takes_long_has_an_answer_verified_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is no time left where it ends."""
    certified, late = driver.certified, list[str]()

    def whole(*_: Any) -> None:
        late.append("")
        while True:
            look()

    def endless(*given: Any) -> Any:
        while late:
            look()
        return certified(*given)

    monkeypatch.setattr(driver, "BEFORE_SECURED", 0.0)
    monkeypatch.setattr(driver._Driver, "_whole", whole)
    monkeypatch.setattr(driver, "certified", endless)
    result = search(many_layers(1), H100, budget_seconds=ENOUGH)
    assert late
    assert result.best.mugraph.blocks
    assert result.best.cost.microseconds < estimate(result.library, H100).microseconds


@pytest.mark.sample(1)
@pytest.mark.usefixtures("nominal_time")
def test_equal_layers_are_verified_once() -> None:
    result = search(many_layers(40), H100, budget_seconds=ENOUGH)
    assert len(result.best.mugraph.blocks) >= 40
    assert result.best.certificate is not None
    assert "sections" in result.best.certificate.reason


@pytest.mark.sample(0)
@pytest.mark.usefixtures("nominal_time")
@pytest.mark.parametrize("wrong", [False, True], ids=["late", "refused"])
def test_what_is_not_verified_is_as_the_program_has_it(
    monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """Of a long program, the layers that were found right stay fused."""
    monkeypatch.setattr(verifier, "_of_sections", {})
    whole = verifier._whole

    def last(candidate: KernelGraph, program: KernelGraph, how: Any) -> Any:
        found = whole(candidate, program, how)
        if any("rowshift" in n.op.name for n in program.applies):
            if not wrong:
                raise OutOfTimeError
            return replace(found, equivalent=False)
        return found

    monkeypatch.setattr(verifier, "_whole", last)
    result = search(many_layers(40), H100, budget_seconds=2 * ENOUGH)
    best = result.best
    assert len(best.mugraph.blocks) >= 40
    assert any("rowshift" in n.op.name for n in best.mugraph.applies)
    assert best.certificate is not None
    assert best.certificate.ok
    monkeypatch.undo()
    assert verifier.verify(best.mugraph, many_layers(40)).ok


def test_what_the_caller_has_waited_shortens_what_is_beyond_the_budget() -> None:
    ends: list[float] = []
    for spent in (0.0, 0.5, 2.0):
        budget = SearchBudget(3.0, spent, started=100.0)
        end = budget.ordered.end
        assert end is not None
        assert budget.found == SearchBudget(3.0, started=100.0).found
        ends.append(end + spent)
    assert ends == pytest.approx([103.8, 103.9, 105.0])


def test_of_several_deadlines_the_earliest_counts() -> None:
    look()
    now = time.monotonic()
    with until(now + 1000.0):
        look()
        early = (until(now - 1.0), until(None), until(now + 500.0))
        with pytest.raises(OutOfTimeError), early[0], early[1], early[2]:
            look()
        look()
