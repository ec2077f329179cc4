"""Comparison at the true extents: right graphs agree there, faults of geometry show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mirage_dsl.ir import evaluate_block
from mirage_dsl.ir.evaluate import evaluate
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.parser import parse
from mirage_dsl.testing.mutations import mutations
from mirage_dsl.types import Dim
from mirage_dsl.verify import regions, sampled
from mirage_dsl.verify.certificate import Certificate, Sampled
from mirage_dsl.verify.domain import ResidueDomain
from mirage_dsl.verify.fields import MOST_FIELDS, chains_for, draw_trials
from mirage_dsl.verify.levels import graph_depth
from mirage_dsl.verify.modular import IntArray
from mirage_dsl.verify.sampled import Sampling, compare_samples
from mirage_dsl.verify.sizes import shrink
from mirage_dsl.verify.trials import Reading
from mirage_dsl.verify.verifier import verify
from tests.verify import graphs
from tests.verify.cases import right_ones

RIGHT = list(right_ones())


def compared(candidate: KernelGraph, program: KernelGraph, seed: int = 0) -> Sampled:
    depth = graph_depth(program).joined(graph_depth(candidate))
    length = min(depth.exps + 1, MOST_FIELDS)
    chain = chains_for(length, 1, seed)[0]
    deep = depth.exps + 1 > MOST_FIELDS
    return compare_samples(candidate, program, Sampling(chain, seed, deep, Reading()))


@pytest.mark.parametrize("case", RIGHT, ids=lambda c: c.name)
def test_right_ones_agree(case: Any) -> None:
    found = compared(case.candidate, case.program)
    assert found.difference is None
    assert found.elements > 0


@pytest.mark.parametrize("case", RIGHT[:18], ids=lambda c: c.name)
@pytest.mark.parametrize("ragged", [False, True])
def test_samples_are_elements_of_the_whole(case: Any, ragged: bool) -> None:
    """With all inputs drawn as a whole, the evaluator gives the same elements.

    Shifts are random numbers apart for both, so this is about graphs whose outputs do
    not depend on them.
    """
    small = shrink(case.candidate, case.program, ragged=ragged, seed=1)
    depth = graph_depth(small.candidate)
    chain = chains_for(depth.exps + 1, 1, 0)[0]
    sampling = Sampling(chain, 3, False, Reading())
    axes = sampled.sample_axes(small.program, 3, 2)
    side = sampled._Side(small.candidate, axes)
    found = side.outputs(sampling, 1, 0)
    for output, whole, indices in zip(
        found, whole_of(small, sampling), axes, strict=True
    ):
        index = np.ix_(np.arange(1), *indices)
        np.testing.assert_array_equal(output.top, whole.top[index])


def whole_of(small: Any, sampling: Sampling) -> list[Any]:
    everything = [
        [np.arange(e) for e in shape_of(small.candidate, r.type)]
        for r in small.candidate.returns
    ]
    side = sampled._Side(small.candidate, everything)
    full = {
        i.name: {n: np.arange(side.extents[n]) for n in i.type.names}
        for i in small.candidate.inputs
    }
    side.demands.regions.update(full)
    rng = np.random.default_rng([sampling.seed, 0, 41])
    trials = draw_trials(sampling.chain, 1, rng)
    keys = rng.integers(0, 2**62, (len(full), trials.fields))
    algebra = sampled.ResidueAlgebra(trials, sampled.Order(), rng)
    domain = ResidueDomain(algebra)
    inputs = [
        domain.reshape(
            side._drawn(i, k, trials).value, shape_of(small.candidate, i.type)
        )
        for i, k in zip(small.candidate.inputs, keys, strict=True)
    ]
    return evaluate(small.candidate, inputs, domain)


def shape_of(graph: KernelGraph, kind: Any) -> tuple[int, ...]:
    return tuple(
        int(np.prod([graph.extent_of[d.name] for d in axis])) for axis in kind.axes
    )


# -- Faults that only act at true extents ----------------------------------------------

PROGRAM = """mirage 1
mugraph program(x: f16[m, k], w: f16[k, n]) -> f16[m, n]
where m = 77, k = 8300, n = 1000 {
  e = exp x
  p = matmul e, w over(k)
  t = sum e over(k)
  y = div p, t
  return y
}
"""
FUSED = """mirage 1
mugraph fused(x: f16[m, k], w: f16[k, n]) -> f16[m, n]
where m = 77, k = 8300, n = 1000 {
  y = block grid(m / 16, n / 64) loop(k / 128) {
    xt = load x[m/grid, k/loop]
    wt = load w[k/loop, n/grid]
    e = exp xt
    e16 = cast e dtype(f16)
    p = matmul e16, wt over(k)
    a = accumulate p
    s = accumulate e
    t = sum s over(k)
    y = div a, t
    store y: f16[m/grid, n/grid] = y
  }
  return y
}
"""


def no_masks(patch: pytest.MonkeyPatch) -> None:
    """Ragged tails of long dims are not masked."""
    original = sampled.SampledBlock.masks_of

    def masks(self: Any, dim: Dim) -> Any:
        return {} if self.extents[dim.name] > 4096 else original(self, dim)

    patch.setattr(sampled.SampledBlock, "masks_of", masks)


def one_tile_too_few(patch: pytest.MonkeyPatch) -> None:
    """Long loops end one iteration early."""
    for module in (regions, evaluate_block):
        original: Callable[..., int] = module.iterations

        def fewer(*args: Any, original: Callable[..., int] = original) -> int:
            count = original(*args)
            return count - 1 if count > 32 else count

        patch.setattr(module, "iterations", fewer)


def short_indices(patch: pytest.MonkeyPatch) -> None:
    """Indices have 12 bits."""
    original = regions.Pieces.indices

    def wrapped(self: Any, dim: Dim) -> IntArray:
        found = original(self, dim)
        return np.where(found < 0, found, found % 4096)

    patch.setattr(regions.Pieces, "indices", wrapped)


@pytest.mark.parametrize("fault", [no_masks, one_tile_too_few, short_indices])
@pytest.mark.parametrize("seed", range(3))
def test_faults_at_true_extents_show(
    fault: Callable[[pytest.MonkeyPatch], None],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They do nothing at small sizes, where all trials agree."""
    candidate, program = parse(FUSED), parse(PROGRAM)
    right = verify(candidate, program, seed=seed)
    assert right.ok
    assert right.sampled is not None
    assert right.sampled.elements == 9
    fault(monkeypatch)
    found = verify(candidate, program, seed=seed)
    assert found.trials == 0
    assert found.verdict == "different"
    assert "at the true extents output 0 differs at [" in found.reason


@pytest.mark.parametrize("left_out", [0, 1])
def test_parts_left_out_of_a_combination(left_out: int) -> None:
    text = """mirage 1
mugraph split(x: f16[m, k], w: f16[k, n]) -> f16[m, n]
where m = 16, k = 4099, n = 96, q = %d {
  p = block grid(n / 32, k / 1000) loop(k / 64) {
    xt = load x[m, k/grid/loop]
    wt = load w[k/grid/loop, n/grid]
    p = matmul xt, wt over(k)
    a = accumulate p
    store p: f32[k#/grid, m, n/grid] = a
  }
  c: f32[q, m, n] = slice p dim(k#) start(0) stop(%d) to(q)
  t: f32[m, n] = sum c over(q)
  y = cast t dtype(f16)
  return y
}
"""
    program = parse(
        "mirage 1\nmugraph p(x: f16[m, k], w: f16[k, n]) -> f16[m, n] "
        "where m = 16, k = 4099, n = 96 {\n  y = x @ w\n  return y\n}\n"
    )
    count = 5 - left_out
    candidate = parse(text % (count, count))
    assert (compared(candidate, program).difference is None) == (left_out == 0)
    assert verify(candidate, program).equivalent == (left_out == 0)


# -- Mutations -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "of"),
    [
        (graphs.rms_linear_fused, graphs.rms_linear),
        (graphs.lora_fused, graphs.lora),
        (graphs.split_k, graphs.linear),
    ],
)
def test_mutations_show_in_samples_alone(
    make: Callable[[], KernelGraph], of: Callable[[], KernelGraph]
) -> None:
    program, wrong = of(), 0
    for mutation in mutations(make()):
        if verify(mutation.graph, program, stability=False).equivalent:
            continue
        wrong += 1
        found = compared(mutation.graph, program)
        assert found.elements == 0, mutation.what
    assert wrong > 2


# -- What cannot be sampled ------------------------------------------------------------


def test_symbolic_extents_are_not_sampled() -> None:
    graph = parse(PROGRAM).with_extents({"m": None})
    assert compared(graph, graph) == Sampled(reason="symbolic extents")


def test_what_takes_too_long_is_not_sampled() -> None:
    """Every element of the last product needs all of the first one."""
    text = (
        "mirage 1\nmugraph f(x: f16[m, k], w: f16[k, n], v: f16[n, j]) -> f16[m, j] "
        "where m = 16, k = 65536, n = 65536, j = 64 {\n"
        "  y = (x @ w) @ v\n  return y\n}\n"
    )
    graph = parse(text)
    found = verify(graph, graph, stability=False)
    assert found.equivalent
    assert found.sampled is not None
    assert found.sampled.elements == 0
    assert "too many operations" in str(found)


def test_certificates_keep_it() -> None:
    found = verify(parse(FUSED), parse(PROGRAM))
    again = Certificate.from_dict(found.to_dict())
    assert again == found
    assert "9 sampled elements at the true extents" in str(again)
    old = {k: v for k, v in found.to_dict().items() if k != "sampled"}
    assert Certificate.from_dict(old).sampled is None
