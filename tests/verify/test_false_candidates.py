"""The bed of false candidates: none may be accepted, and the right ones must be."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from mirage_dsl.errors import MirageError
from mirage_dsl.ir.builder import KernelBuilder, one_over
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.numpy_domain import evaluate_numpy
from mirage_dsl.testing.mutations import mutations
from mirage_dsl.types import f16, f32, scalar
from mirage_dsl.verify.sizes import shrink
from mirage_dsl.verify.trials import input_shape
from mirage_dsl.verify.verifier import verify
from tests.verify import graphs

SEEDS = (0, 1, 2)


def _differs(candidate: KernelGraph, program: KernelGraph) -> bool:
    """Whether float64 tells them apart on inputs near 1, signs mixed or not."""
    small = shrink(candidate, program, ragged=False, seed=11)
    rng = np.random.default_rng(12)
    for low in (-1.5, 0.25):
        inputs = [
            rng.uniform(low, 1.5, input_shape(small.program, i))
            for i in small.program.inputs
        ]
        for a, b in zip(
            evaluate_numpy(small.program, *inputs),
            evaluate_numpy(small.candidate, *inputs),
            strict=True,
        ):
            if np.isfinite(a).all() and not np.allclose(a, b, rtol=1e-6, atol=1e-9):
                return True
    return False


def _id(pair: tuple[graphs.Maker, graphs.Maker]) -> str:
    return f"{pair[0].__name__}-{pair[1].__name__}"


@pytest.mark.parametrize("pair", graphs.RIGHT, ids=_id)
def test_right_candidates_are_accepted(pair: tuple[graphs.Maker, graphs.Maker]) -> None:
    program, candidate = pair[0](), pair[1]()
    for seed in SEEDS:
        found = verify(candidate, program, seed=seed, stability=False)
        assert found.equivalent, found.reason
        assert found.error_bound < 1e-12


MUTATED = (
    (graphs.rms_linear, graphs.rms_linear_fused, 40),
    (graphs.gated_mlp, graphs.gated_mlp_fused, 15),
    (graphs.lora, graphs.lora_fused, 6),
    (graphs.attention, graphs.attention_loop, 20),
    (graphs.attention, graphs.attention_online, 25),
    (graphs.attention_with_max, graphs.attention_with_max, 25),
    (graphs.attention, graphs.flash_decoding, 20),
    (graphs.qknorm, graphs.qknorm_fused, 60),
    (graphs.ntrans, graphs.ntrans_fused, 60),
)


@pytest.mark.parametrize(
    ("program", "candidate", "least"),
    MUTATED,
    ids=[c.__name__ for _, c, _ in MUTATED],
)
def test_no_mutation_is_accepted(
    program: graphs.Maker, candidate: graphs.Maker, least: int
) -> None:
    wrong = 0
    right = program()
    for number, mutation in enumerate(mutations(candidate())):
        if not _differs(mutation.graph, right):
            continue
        wrong += 1
        # Mistakes under the many roots of QK-norm take long: one seed each.
        seeds = SEEDS if program is not graphs.qknorm else SEEDS[number % 3 :][:1]
        for seed in seeds:
            found = verify(mutation.graph, right, seed=seed, stability=False)
            assert not found.equivalent, mutation.what
            assert found.reason
    assert wrong >= least


def qknorm_without_contraction() -> KernelGraph:
    """A block takes one row of K and nothing is contracted over d."""
    b: Any = KernelBuilder("qknorm", h=2, s=256, d=64, t=4096, e=64)
    q, k = b.input("q", f16, "h, s, d"), b.input("k", f16, "h, t, d")
    v = b.input("v", f16, "h, t, e")
    with b.block(grid={"h": 1, "s": 64}, loop=("t", 64)) as t:
        qt, kt = t.load(q, "h/grid, s/grid, d"), t.load(k, "h/grid, t/loop, d")
        vt = t.load(v, "h/grid, t/loop, e")
        a = t.mul(
            t.sum(t.mul(qt, graphs.rms(t, qt, "d")), over="d"), t.sum(kt, over="d")
        )
        logits = t.mul(t.mul(a, graphs.rms(t, kt, "d")), scalar(0.125))
        e = t.exp(logits)
        total = t.accumulate(t.sum(e, over="t"))
        pv = t.matmul(t.cast(e, dtype="f16"), vt, over="t")
        y = t.store(t.div(t.accumulate(pv), total), "h/grid, s/grid, e")
    return b.returns(y).build()


def softmax_normalised_per_tile() -> KernelGraph:
    """Each iteration divides by its own sum, then all are added."""
    b: Any = KernelBuilder("attention", h=2, s=256, d=64, t=4096, e=64)
    q, k = b.input("q", f16, "h, s, d"), b.input("k", f16, "h, d, t")
    v = b.input("v", f16, "h, t, e")
    with b.block(grid={"h": 1, "s": 64}, loop=("t", 64)) as t:
        qt, kt = t.load(q, "h/grid, s/grid, d"), t.load(k, "h/grid, d, t/loop")
        vt = t.load(v, "h/grid, t/loop, e")
        e = t.exp(t.matmul(qt, kt, over="d"))
        weights = t.cast(t.div(e, t.sum(e, over="t")), dtype="f16")
        y = t.accumulate(t.matmul(weights, vt, over="t"))
        y = t.store(y, "h/grid, s/grid, e")
    return b.returns(y).build()


def splits_combined_without_weights() -> KernelGraph:
    """Flash decoding whose parts have maxima of their own, added as they are."""
    b: Any = KernelBuilder("attention", h=2, s=256, d=64, t=4096, e=64)
    q, k = b.input("q", f16, "h, s, d"), b.input("k", f16, "h, d, t")
    v = b.input("v", f16, "h, t, e")
    with b.block(grid={"h": 1, "s": 64, "t": 1024}, loop=("t", 64)) as t:
        qt, kt = t.load(q, "h/grid, s/grid, d"), t.load(k, "h/grid, d, t/grid/loop")
        vt = t.load(v, "h/grid, t/grid/loop, e")
        logits = t.matmul(qt, kt, over="d")
        m = t.running_max(t.rowshift(logits, over="t"))
        e = t.exp(t.sub(logits, m))
        total = t.accumulate(t.sum(e, over="t"), rescale=m)
        pv = t.accumulate(t.matmul(t.cast(e, dtype="f16"), vt, over="t"), rescale=m)
        o = t.store(pv, "h/grid, s/grid, e, t#/grid", dtype=f32)
        n = t.store(total, "h/grid, s/grid, t#/grid", dtype=f32)
    with b.block(grid={"h": 1, "s": 64}) as c:
        top = c.sum(c.load(o, "h/grid, s/grid, e, t#"), over="t#")
        below = c.sum(c.load(n, "h/grid, s/grid, t#"), over="t#")
        y = c.store(c.div(top, below), "h/grid, s/grid, e", dtype=f16)
    return b.returns(y).build()


def linear_nonlinear_in_loop() -> KernelGraph:
    """An activation inside of the loop, where it meets partial sums only."""
    b: Any = KernelBuilder("gated_mlp", m=8, k=4096, n=4096)
    x = b.input("x", f16, "m, k")
    w1, w2 = b.input("w1", f16, "k, n"), b.input("w2", f16, "k, n")
    with b.block(grid={"n": 64}, loop=("k", 64)) as t:
        xt = t.load(x, "m, k/loop")
        up = t.matmul(xt, t.load(w1, "k/loop, n/grid"), over="k")
        side = t.accumulate(t.matmul(xt, t.load(w2, "k/loop, n/grid"), over="k"))
        y = t.store(t.mul(t.accumulate(t.silu(up)), side), "m, n/grid")
    return b.returns(y).build()


def mean_over_the_wrong_dim() -> KernelGraph:
    b: Any = KernelBuilder("rms_linear", m=16, k=4096, n=6144)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    mean = b.mul(b.sum(b.square(x), over="k"), one_over("n"))
    y = b.mul(x, b.rsqrt(b.add(mean, scalar(1e-6))))
    return b.returns(b.matmul(y, w, over="k")).build()


def mask_forgotten() -> KernelGraph:
    b: Any = KernelBuilder("masked", h=2, s=256, d=64, t=4096, e=64)
    q, k = b.input("q", f16, "h, s, d"), b.input("k", f16, "h, d, t")
    v = b.input("v", f16, "h, t, e")
    b.input("mask", f16, "h, s, t")
    e = b.exp(b.matmul(q, k, over="d"))
    weights = b.div(e, b.sum(e, over="t"))
    return b.returns(b.matmul(weights, v, over="t")).unchecked()


def test_a_forgotten_mask_is_rejected() -> None:
    for seed in SEEDS:
        found = verify(mask_forgotten(), graphs.masked_attention(), seed=seed)
        assert not found.equivalent


WRONG = (
    (graphs.qknorm, qknorm_without_contraction),
    (graphs.attention, softmax_normalised_per_tile),
    (graphs.attention, splits_combined_without_weights),
    (graphs.gated_mlp, linear_nonlinear_in_loop),
    (graphs.rms_linear, mean_over_the_wrong_dim),
)


@pytest.mark.parametrize("pair", WRONG, ids=_id)
def test_known_mistakes_are_rejected(pair: tuple[graphs.Maker, graphs.Maker]) -> None:
    program, candidate = pair[0](), pair[1]()
    for seed in SEEDS:
        found = verify(candidate, program, seed=seed)
        assert not found.equivalent
        assert found.counterexample is not None
        example = found.counterexample
        assert example.expected != example.found
        assert found.stability is None


def test_permuted_outputs_are_rejected() -> None:
    b: Any = KernelBuilder("two", m=8, n=16)
    x = b.input("x", f16, "m, n")
    first, second = b.exp(x), b.square(x)
    right = b.returns(first, second).build()
    permuted = b.returns(second, first).build()
    assert verify(right, right, stability=False).equivalent
    assert not verify(permuted, right, stability=False).equivalent


def test_another_interface_is_named() -> None:
    found = verify(graphs.linear(), graphs.rms_linear())
    assert not found.equivalent
    assert "n = 512" in found.reason or "512" in found.reason


def test_unknown_graph_errors_are_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MirageError("no sizes")

    monkeypatch.setattr(sys.modules[verify.__module__], "shrink", refuse)
    found = verify(graphs.linear(), graphs.linear())
    assert found.reason == "could not decide: no sizes"
