"""What the process that runs candidates says of them: right or wrong, how fast."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.types import f16
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.tune import trial_worker
from mirage_dsl.tune.measure import Final, InputSpec, Task, Tf32, Trial
from mirage_dsl.tune.timing import Time, chain_length
from mirage_dsl.tune.trial_worker import LOST, TrialWorker, relative_error
from mirage_dsl.tune.tuner import input_spec
from tests.tune.trials import GRAPH, INPUTS

F32_PROGRAMS = {
    "conv": mirage.kernel(lambda x, w: torch.nn.functional.conv2d(x, w)).trace(
        mirage.spec((1, 3, 8, 8), "float32"), mirage.spec((4, 3, 3, 3), "float32")
    ),
    "matmul": mirage.kernel(lambda x, y: x @ y).trace(
        *[mirage.spec((8, 8), "float32")] * 2,
    ),
    "add": mirage.kernel(lambda x, y: x + y).trace(
        *[mirage.spec((8, 8), "float32")] * 2
    ),
}


def test_right_and_wrong_candidates() -> None:
    judge = TrialWorker(Task(GRAPH, INPUTS), "cpu")
    right = TritonExecutable(GRAPH, interpret=True)
    assert judge.error_of(right) <= judge.tolerance()

    def wrong(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [right(*tensors)[0] * 1.1]

    assert judge.error_of(wrong) > judge.tolerance()
    assert relative_error(torch.tensor([float("nan")]), torch.ones(1)) == float("inf")


FACTORS: dict[str, Callable[[Any], Any]] = {
    "its own": lambda x: torch.linalg.cholesky(x) * 2,
    "not alone": lambda x: torch.linalg.cholesky(x * 2).square().sum(-1),
}


@pytest.mark.parametrize("name", FACTORS)
def test_matrices_have_factors(name: str) -> None:
    """PyTorch refuses others, of which nothing could be timed."""
    program = mirage.kernel(lambda x: FACTORS[name](x)).trace(
        mirage.spec((3, 6, 6), "float32")
    )
    spec = input_spec(program.inputs[0], program)
    judge = TrialWorker(Task(program, (spec,)), "cpu")
    run = TritonExecutable(program, interpret=True)
    assert judge.error_of(run) <= judge.tolerance()


def test_what_takes_no_inputs_says_so() -> None:
    program = mirage.kernel(lambda x: torch.linalg.cholesky(-x.abs())).trace(
        mirage.spec((6, 6), "float32")
    )
    spec = input_spec(program.inputs[0], program)
    with pytest.raises(RuntimeError, match="positive-definite"):
        TrialWorker(Task(program, (spec,)), "cpu")


@pytest.mark.parametrize("stopped", [(), (1,), range(99)], ids=["no", "once", "slow"])
def test_what_is_far_too_slow_runs_a_few_times(
    monkeypatch: pytest.MonkeyPatch, stopped: Sequence[int]
) -> None:
    """But not what was slow once, when the host did something else."""
    slow = len(stopped) > 1
    judge = TrialWorker(Task(GRAPH, INPUTS), "cpu")
    right = TritonExecutable(GRAPH, interpret=True)
    known = {t[0].data_ptr(): right(*t) for t in judge.draws}
    calls: list[torch.Tensor] = []

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        time.sleep(0.01 if len(calls) in stopped else 0.0)
        calls.append(tensors[0])
        return known[tensors[0].data_ptr()]

    def time_sets(*_: object, **options: Any) -> Time:
        assert options["chain"] < 1e6
        return Time(5.0, 5.0, 5.0)

    monkeypatch.setattr(judge, "compiled", lambda _: run)
    monkeypatch.setattr(trial_worker, "rotating", lambda _: [])
    monkeypatch.setattr(trial_worker, "time_sets", time_sets)
    timing = judge.judge(Trial(GRAPH, 20.0, 5))
    assert not timing.reason
    assert timing.microseconds is not None
    assert (timing.microseconds > 9000) == slow
    few = 1 + trial_worker.ROUGH_CALLS + len(judge.draws)
    assert (len(calls) <= few) == slow


@pytest.mark.parametrize("factor", [1.0, 1.1, float("nan")])
def test_what_a_chain_of_calls_returns_has_to_be_right(
    monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """A kernel that is right alone may be wrong where calls overlap."""
    judge = TrialWorker(Task(GRAPH, INPUTS), "cpu")
    right = TritonExecutable(GRAPH, interpret=True)

    def time_sets(
        run: TritonExecutable, *_: object, look: Callable[[Any], None], **__: object
    ) -> Time:
        look(run(*judge.draws[0]))
        look([out * factor for out in run(*judge.draws[0])])
        return Time(5.0, 5.0, 5.0)

    monkeypatch.setattr(judge, "compiled", lambda _: right)
    monkeypatch.setattr(trial_worker, "rotating", lambda _: [])
    monkeypatch.setattr(trial_worker, "time_sets", time_sets)
    timing = judge.judge(Trial(GRAPH, float("inf"), 5))
    assert ("wrong in a chain of calls" in timing.reason) == (factor != 1.0)
    assert (timing.microseconds is None) == (factor != 1.0)


def test_each_finalist_has_to_be_right_in_its_chain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = TrialWorker(Task(GRAPH, INPUTS), "cpu")
    right = TritonExecutable(GRAPH, interpret=True)(*judge.draws[0])

    def time_in_turns(
        calls: Sequence[object], *, seconds: float, look: Callable[[int, Any], None]
    ) -> list[Time]:
        assert seconds == 0.5
        look(0, right)
        look(1, [out * 1.1 for out in right])
        look(1, right)
        return [Time(5.0, 4.0, 6.0) for _ in calls]

    monkeypatch.setattr(judge, "compiled", lambda graph: graph)
    monkeypatch.setattr(trial_worker, "rotating", lambda _: [])
    monkeypatch.setattr(trial_worker, "time_in_turns", time_in_turns)
    good, wrong = judge.finals(Final((GRAPH, replace(GRAPH, name="wrong")), 0.5))
    assert (good.microseconds, good.reason) == (5.0, "")
    assert wrong.microseconds is None
    assert "wrong in a chain of calls" in wrong.reason


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize("convolutions", [True, False])
def test_what_libraries_may_round_to_tf32_is_allowed_its_errors(
    convolutions: bool, products: bool
) -> None:
    """Of two layouts of a convolution one may have a kernel that rounds to it."""
    tf32 = Tf32(convolutions, products)
    for kind, rounds in (("conv", convolutions), ("matmul", products), ("add", False)):
        program = F32_PROGRAMS[kind]
        inputs = tuple(input_spec(i, program) for i in program.inputs)
        judge = TrialWorker(Task(program, inputs, tf32=tf32), "cpu")
        assert (judge.tolerance() > 1e-3) == rounds, kind


@pytest.mark.parametrize(
    ("error", "allowed"), [(9.2e-3, 1.84e-2), (0.4, 0.05), (float("nan"), 8 * 2.0**-10)]
)
def test_what_pytorch_errs_by_rounding_to_tf32_is_allowed(
    error: float, allowed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hyperbolic tangent of long sums is off by more than their last bits."""
    monkeypatch.setattr(TrialWorker, "error_of", lambda *_: error)
    found: dict[bool, float] = {}
    for rounds in (True, False):
        program = F32_PROGRAMS["conv"]
        inputs = tuple(input_spec(i, program) for i in program.inputs)
        task = Task(program, inputs, tf32=Tf32(rounds, products=False))
        found[rounds] = TrialWorker(task, "cpu").tolerance()
    assert found[True] == pytest.approx(allowed, rel=0.05)
    assert found[False] < 1e-4


def test_no_positive_number_is_0() -> None:
    """There is no logarithm of it, so that nothing could be timed."""
    program = mirage.kernel(lambda x: mirage.sum(mirage.log(x))).trace(
        mirage.spec((8, 8), "float32")
    )
    zeros = torch.zeros(8, 8)
    judge = TrialWorker(Task(program, (InputSpec((8, 8), (8, 1), "float32"),)), "cpu")
    assert judge.draws[0][0].min() > 0
    assert trial_worker._positive(zeros).min() > 0
    assert trial_worker._positive(torch.tensor([-3, 0])).tolist() == [3, 0]
    narrow = torch.tensor([-3.0, 0.0]).to(torch.float8_e4m3fn)
    assert trial_worker._positive(narrow).float().tolist() == [3, 0]


def test_chains_of_long_calls_are_short() -> None:
    assert chain_length(5.0, 4, 10_000.0) == 40
    assert chain_length(1000.0, 4, 10_000.0) == 10
    assert chain_length(1000.0, 16, 10_000.0) == 16, "each input once"
    assert chain_length(1000.0, 4, float("inf")) == 40


def test_a_gpu_that_is_lost_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next candidate gets a new one."""

    class Lost:
        @staticmethod
        def synchronize() -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def ended(status: int) -> None:
        raise SystemExit(status)

    judge = TrialWorker(Task(GRAPH, INPUTS), "cpu")
    trial, final = Trial(GRAPH, float("inf"), 1), Final((GRAPH,), 1.0)
    assert "CompileError" in judge.judge(trial).reason
    assert judge.finals(final) == []
    monkeypatch.setattr(torch, "get_device_module", lambda _: Lost)
    monkeypatch.setattr(os, "_exit", ended)
    with pytest.raises(SystemExit, match=str(LOST)):
        judge.judge(trial)
    with pytest.raises(SystemExit, match=str(LOST)):
        judge.finals(final)


def test_warming_up_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs the program, and what fails is not lost on the candidates."""
    judge = TrialWorker(Task(GRAPH, INPUTS), "cpu")
    ran: list[KernelGraph] = []

    def refuse(graph: KernelGraph) -> None:
        ran.append(graph)
        raise RuntimeError

    monkeypatch.setattr(judge, "compiled", refuse)
    judge.warm_up()
    assert ran == [GRAPH]


def test_the_candidates_that_ran_last_are_ready_to_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = TrialWorker(Task(GRAPH, INPUTS), "cpu")
    one, two, three = (replace(GRAPH, name=name) for name in ("one", "two", "three"))
    made: list[KernelGraph] = []

    class Backend:
        def compile(self, graph: KernelGraph, *_: str) -> KernelGraph:
            made.append(graph)
            return graph

    monkeypatch.setattr(trial_worker, "MOST_KEPT", 2)
    monkeypatch.setattr(judge, "_backend", Backend())
    for graph in (one, two, one, three, one, two):
        judge.compiled(graph)
    assert made == [one, two, three, two]


def test_inputs_are_drawn_until_the_outputs_are_numbers() -> None:
    g = KernelBuilder("root", m=4, k=8)
    x = g.input("x", f16, "m, k")
    program = g.returns(g.mul(g.sqrt(x), 2.0**15)).build()
    judge = TrialWorker(Task(program, (InputSpec((4, 8), (8, 1), "float16"),)), "cpu")
    for (drawn,), (right,) in zip(judge.draws, judge.right, strict=True):
        assert bool((drawn >= 0).all())
        assert float(right.max()) < torch.finfo(torch.float16).max


def quantised(largest: float) -> KernelGraph:
    """Rows scaled to a number of 8 bits."""
    b = KernelBuilder("quantised", m=8, k=64)
    x = b.input("x", f16, "m, k")
    wide = b.apply("cast", x, dtype="f32")
    scale = b.div(b.apply("max", b.apply("abs", wide), over="k"), largest)
    return b.returns(b.apply("to_f8e4m3", b.div(wide, scale)), scale).build()


def test_what_is_scaled_to_8_bits_is_judged_by_the_share_that_differs() -> None:
    """Its largest element is the largest of the format, at any scale of the inputs."""
    judge = TrialWorker(
        Task(quantised(448.0), (InputSpec((8, 64), (64, 1), "float16"),)), "cpu"
    )
    assert all(bool((drawn < 0).any()) for (drawn,) in judge.draws)
    assert judge.tolerance() < 0.01

    def run(graph: KernelGraph) -> Callable[..., list[torch.Tensor]]:
        return TritonExecutable(graph, interpret=True)

    assert judge.error_of(run(quantised(448.0)), 1) <= judge.tolerance()
    wrong = run(quantised(447.0))
    assert relative_error(wrong(*judge.draws[0])[0], judge.right[0][0]) > 0.01
