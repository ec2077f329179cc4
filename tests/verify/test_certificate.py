"""Certificates: stored, checked again, and the stability verdict in them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mirage_dsl.core.types import f16, i8
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.verify.certificate import Certificate
from mirage_dsl.verify.verifier import verify
from tests.verify import graphs


@pytest.mark.parametrize("candidate", [graphs.rms_linear_fused, graphs.rms_linear])
def test_certificates_survive_json(candidate: graphs.Maker) -> None:
    made = verify(candidate(), graphs.rms_linear(), seed=3)
    stored = Certificate.from_dict(json.loads(json.dumps(made.to_dict())))
    assert stored == made
    assert stored.recheck(candidate(), graphs.rms_linear())
    assert not stored.recheck(candidate(), graphs.gated_mlp())


def test_counterexamples_survive_json() -> None:
    made = verify(graphs.attention(), graphs.attention_with_max())
    assert made.equivalent
    wrong = verify(_with_exponent("mul"), _with_exponent("add"))
    assert wrong.counterexample is not None
    stored = Certificate.from_dict(json.loads(json.dumps(wrong.to_dict())))
    assert stored == wrong
    assert stored.recheck(_with_exponent("mul"), _with_exponent("add"))


def _with_exponent(name: str) -> KernelGraph:
    b: Any = KernelBuilder("f", m=8)
    x, y = b.input("x", f16, "m"), b.input("y", f16, "m")
    return b.returns(b.exp(b.apply(name, x, y))).build()


def test_certificates_say_a_bound_and_never_proved() -> None:
    text = str(verify(graphs.rms_linear_fused(), graphs.rms_linear()))
    assert "error <=" in text
    assert "prove" not in text


def test_a_counterexample_shows_numbers_that_differ() -> None:
    wrong = verify(_with_epsilon(1e-5), _with_epsilon(1e-6))
    assert wrong.counterexample is not None
    found = re.search(r"is (\S+), the program gives (\S+) ", str(wrong))
    assert found is not None
    assert found[1] != found[2]


def _with_epsilon(epsilon: float) -> KernelGraph:
    b: Any = KernelBuilder("f", m=8)
    return b.returns(b.add(b.mul(b.input("x", f16, "m"), 1000.0), epsilon)).build()


def test_a_missing_maximum_is_equivalent_but_unstable() -> None:
    found = verify(graphs.attention_loop(), graphs.attention())
    assert found.equivalent
    assert found.stability is not None
    assert not found.stability.ok
    assert "not finite" in found.stability.reason
    assert not found.ok


def _shift_by(kind: str) -> KernelGraph:
    """Online softmax with a bad shift: legal by algebra, bad in floats."""
    b: Any = KernelBuilder("attention", h=2, s=256, d=64, t=4096, e=64)
    q, k = b.input("q", f16, "h, s, d"), b.input("k", f16, "h, d, t")
    v = b.input("v", f16, "h, t, e")
    with b.block(grid={"h": 1, "s": 64}, loop=("t", 64)) as t:
        qt, kt = t.load(q, "h/grid, s/grid, d"), t.load(k, "h/grid, d, t/loop")
        vt = t.load(v, "h/grid, t/loop, e")
        logits = t.matmul(qt, kt, over="d")
        if kind == "least":
            low = t.neg(t.rowshift(t.neg(logits), over="t"))
            m = t.neg(t.running_max(t.neg(low)))
            m = t.running_max(m)
        else:
            m = t.running_max(t.rowshift(logits, over=("s", "t")))
        e = t.exp(t.sub(logits, m))
        total = t.accumulate(t.sum(e, over="t"), rescale=m)
        pv = t.matmul(t.cast(e, dtype="f16"), vt, over="t")
        y = t.store(t.div(t.accumulate(pv, rescale=m), total), "h/grid, s/grid, e")
    return b.returns(y).build()


@pytest.mark.parametrize("kind", ["least", "over all rows"])
def test_bad_shifts_are_legal_but_unstable(kind: str) -> None:
    found = verify(_shift_by(kind), graphs.attention())
    assert found.equivalent
    assert found.stability is not None
    assert not found.stability.ok


def test_running_maxima_are_stable() -> None:
    for candidate in (graphs.attention_online, graphs.flash_decoding_online):
        found = verify(candidate(), graphs.attention())
        assert found.stability is not None
        assert found.stability.ok
        assert found.stability.worst_ratio < 2


def test_certificates_say_that_integers_are_tested() -> None:
    b: Any = KernelBuilder("f", m=8)
    x = b.input("x", i8, "m")
    made = b.returns(b.to_f32(b.add(x, x))).build()
    b = KernelBuilder("f", m=8)
    x = b.input("x", i8, "m")
    twice = b.returns(b.to_f32(b.mul(x, 2))).build()
    found = verify(twice, made)
    assert found.equivalent
    assert "integers are compared on random ones, which is testing" in str(found)
    floats = verify(graphs.rms_linear_fused(), graphs.rms_linear())
    assert "integers" not in floats.rests_on
