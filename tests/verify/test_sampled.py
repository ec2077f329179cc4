"""Comparison at the true extents: right graphs agree there, faults of geometry show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mirage_dsl.core.types import Dim
from mirage_dsl.ir import evaluate as evaluation
from mirage_dsl.ir.evaluate import evaluate
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.verify import sampled
from mirage_dsl.verify.algebra import ResidueDomain
from mirage_dsl.verify.certificate import Certificate, Sampled
from mirage_dsl.verify.fields import (
    MOST_FIELDS,
    IntArray,
    chains_for,
    draw_trials,
    graph_depth,
)
from mirage_dsl.verify.sampled import Sampling, compare_samples
from mirage_dsl.verify.sizes import shrink
from mirage_dsl.verify.trials import Reading
from mirage_dsl.verify.verifier import verify
from tests.programs.mutations import mutations
from tests.verify import graphs
from tests.verify.cases import right_ones

RIGHT = list(right_ones())
WHOLE = sampled.Thinning(1 << 16, 8, 3)


def compared(candidate: KernelGraph, program: KernelGraph, seed: int = 0) -> Sampled:
    depth = graph_depth(program).joined(graph_depth(candidate))
    length = min(depth.exps + 1, MOST_FIELDS)
    chain = chains_for(length, 1, seed)[0]
    deep = depth.exps + 1 > MOST_FIELDS
    return compare_samples(candidate, program, Sampling(chain, seed, deep, Reading()))


@pytest.mark.sample(11)
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
    axes = sampled.sample_axes(small.program, WHOLE, 2)
    side = sampled._Side(small.candidate, axes, WHOLE)
    drawing = sampled._Side(small.program, axes, WHOLE).drawing
    found = side.outputs(sampling, 1, 0, drawing)
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
    side = sampled._Side(small.candidate, everything, WHOLE)
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
            side._drawn(i, k, trials, None).value, shape_of(small.candidate, i.type)
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
    for module in (sampled, evaluation):
        original: Callable[..., int] = module.iterations

        def fewer(*args: Any, original: Callable[..., int] = original) -> int:
            count = original(*args)
            return count - 1 if count > 32 else count

        patch.setattr(module, "iterations", fewer)


def short_indices(patch: pytest.MonkeyPatch) -> None:
    """Indices have 12 bits."""
    original = sampled.SampledPieces.indices

    def wrapped(self: Any, dim: Dim) -> IntArray:
        found = original(self, dim)
        return np.where(found < 0, found, found % 4096)

    patch.setattr(sampled.SampledPieces, "indices", wrapped)


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


@pytest.mark.sample(1)
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


# -- Long dims -------------------------------------------------------------------------

HUGE = 2**33 + 4099
LONG_PROGRAM = PROGRAM.replace("8300", str(HUGE))
LONG = {
    "looped": FUSED.replace("8300", str(HUGE)),
    "split": """mirage 1
mugraph split(x: f16[m, k], w: f16[k, n]) -> f16[m, n]
where m = 77, k = 8300, n = 1000 {
  p, t = block grid(n / 64, k / 1000000) loop(k / 128) {
    xt = load x[m, k/grid/loop]
    wt = load w[k/grid/loop, n/grid]
    e = exp xt
    e16 = cast e dtype(f16)
    b = matmul e16, wt over(k)
    a = accumulate b
    r = accumulate e
    s = sum r over(k)
    store p: f32[k#/grid, m, n/grid] = a
    store t: f32[k#/grid, m] = s
  }
  y = block grid(n / 64) {
    pt = load p[k#, m, n/grid]
    tt = load t[k#, m]
    a = sum pt over(k#)
    s = sum tt over(k#)
    d = div a, s
    store y: f16[m, n/grid] = d
  }
  return y
}
""".replace("8300", str(HUGE)),
}
ROWS = """mirage 1
mugraph rows(x: f16[m, k]) -> f16[m, k]
where m = 7, k = %d {
  e = exp x
  t = sum e over(k)
  y = div e, t
  return y
}
"""
ROWS_IN_PIECES = """mirage 1
mugraph rows(x: f16[m, k]) -> f16[m, k]
where m = 7, k = %d {
  t = block grid(m / 1) loop(k / 4096) {
    xt = load x[m/grid, k/loop]
    e = exp xt
    a = accumulate e
    s = sum a over(k)
    store t: f32[m/grid] = s
  }
  y = block grid(m / 2, k / 500) {
    xt = load x[m/grid, k/grid]
    tt = load t[m/grid]
    e = exp xt
    d = div e, tt
    store y: f16[m/grid, k/grid] = d
  }
  return y
}
"""


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("seed", range(3))
def test_long_sums_are_thinned(name: str, seed: int) -> None:
    found = verify(parse(LONG[name]), parse(LONG_PROGRAM), seed=seed)
    assert found.ok, found.reason
    assert found.sampled is not None
    assert found.sampled.elements == 9
    assert "long dims thinned" in str(found)


def test_long_rows_are_thinned() -> None:
    for extent in (2**20, HUGE):
        found = verify(parse(ROWS_IN_PIECES % extent), parse(ROWS % extent))
        assert found.equivalent, found.reason
        assert found.sampled is not None
        assert found.sampled.thinned
        assert found.sampled.elements >= 4


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("fault", [no_masks, one_tile_too_few])
@pytest.mark.parametrize("seed", range(3))
def test_faults_of_long_dims_show(
    name: str,
    fault: Callable[[pytest.MonkeyPatch], None],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch)
    found = compared(parse(LONG[name]), parse(LONG_PROGRAM), seed)
    assert found.difference is not None


def test_parts_of_a_long_dim_left_out() -> None:
    """The candidate sums all parts but the last; each has a million elements."""
    text = """mirage 1
mugraph f(x: f16[m, k]) -> f16[m]
where m = 77, k = 40000000, q = %d {
  p = block grid(m / 1, k / 1000000) loop(k / 512) {
    xt = load x[m/grid, k/grid/loop]
    a = accumulate xt
    s = sum a over(k)
    store p: f32[k#/grid, m/grid] = s
  }
  c: f32[q, m] = slice p dim(k#) start(0) stop(%d) to(q)
  t: f32[m] = sum c over(q)
  y = cast t dtype(f16)
  return y
}
"""
    program = parse(
        "mirage 1\nmugraph p(x: f16[m, k]) -> f16[m] where m = 77, k = 40000000 {\n"
        "  y = sum x over(k)\n  return y\n}\n"
    )
    found = compared(parse(text % (40, 40)), program)
    assert found.elements == 3
    assert compared(parse(text % (39, 39)), program).difference is not None


AVERAGED = """mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n]
where m = 8, k = 65536, n = 4096 {
  p, t = block grid(n / 64, k / 1024) loop(k / 64) {
    xt = load x[m, k/grid/loop]
    wt = load w[k/grid/loop, n/grid]
    e = exp xt
    e16 = cast e dtype(f16)
    b = matmul e16, wt over(k)
    a = accumulate b
    r = accumulate e
    s = sum r over(k)
    store p: f32[k#/grid, m, n/grid] = a
    store t: f32[k#/grid, n#/grid, m] = s
  }
  every = sum t over(k#, n#)
  own = mul every, 1/n#
  a = sum p over(k#)
  d = div a, own
  y = cast d dtype(f16)
  return y
}
"""
"""Every block of the grid stores its row sums, those along n the same ones."""


def test_what_all_blocks_store_is_averaged_over_those_that_are_left() -> None:
    text = "mirage 1\nmugraph p(x: f16[m, k], w: f16[k, n]) -> f16[m, n]\n"
    text += "where m = 8, k = 65536, n = 4096 {\n  e = exp x\n  s = sum e over(k)\n"
    program = parse(text + "  p = e @ w\n  y = div p, s\n  return y\n}\n")
    found = compared(parse(AVERAGED), program)
    assert found.thinned
    assert found.elements > 0
    for wrong in ("1/k#", "2/n#", "1"):
        other = parse(AVERAGED.replace("1/n#", wrong))
        assert compared(other, program).difference is not None


@pytest.mark.parametrize(
    ("extents", "elements"),
    [({"k": 65536, "n": 65536}, 6), ({"k": 2**33, "n": 2**20}, 6)],
)
def test_products_in_a_row_are_thinned(extents: dict[str, int], elements: int) -> None:
    """Every element of the last product needs all of the first one."""
    text = (
        "mirage 1\nmugraph f(x: f16[m, k], w: f16[k, n], v: f16[n, j]) -> f16[m, j] "
        "where m = 16, k = 512, n = 512, j = 64 {\n"
        "  y = (x @ w) @ v\n  return y\n}\n"
    )
    graph = parse(text).with_extents(extents)
    found = verify(graph, graph, stability=False)
    assert found.equivalent
    assert found.sampled == Sampled(elements=elements, thinned=True)


MEMORY = """
import sys, time
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.verify.verifier import verify
program, candidate = (parse(t) for t in sys.stdin.read().split("===="))
assert verify(candidate, program).equivalent
lines = open("/proc/self/status").read().splitlines()
(most,) = (int(l.split()[1]) for l in lines if l.startswith("VmHWM"))
print(most / 1024, time.process_time())
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("extent", [2**24, HUGE])
def test_memory_is_bounded(extent: int) -> None:
    """Of all of the process, its imports among it, in MiB."""
    program = (
        f"mirage 1\nmugraph p(x: f16[m, k]) -> f16[m] where m = 1, k = {extent} {{\n"
        "  s = mul x, x\n  y = sum s over(k)\n  return y\n}\n"
    )
    text = program + "====" + program.replace("mul x, x", "square x")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    most, seconds = map(float, done.stdout.split())
    assert most < 400
    assert seconds < 20


def test_certificates_keep_it() -> None:
    found = verify(parse(FUSED), parse(PROGRAM))
    again = Certificate.from_dict(found.to_dict())
    assert again == found
    assert "9 sampled elements at the true extents" in str(again)
    old = {k: v for k, v in found.to_dict().items() if k != "sampled"}
    assert Certificate.from_dict(old).sampled is None


REPEATED = """mirage 1
mugraph repeated(x: f32[m], y: f32[n, k]) -> f32[q, k] where m = 8192, n = 1, k = 8 {
  a = mul x, 2
  c = concat a, y dims(m, n) to(q)
  return c
}
"""


@pytest.mark.parametrize("seed", range(4))
def test_samples_of_a_part_that_is_repeated(seed: int) -> None:
    """Nearly all samples are of the part that lacks the other's axis."""
    program = parse(REPEATED)
    same = parse(REPEATED.replace("mul x, 2", "add x, x"))
    other = parse(REPEATED.replace("mul x, 2", "mul x, 3"))
    assert compared(same, program, seed).difference is None
    assert compared(other, program, seed).difference is not None
