"""The exact verdict: equal, different or unknown, with nothing of the residues."""

from __future__ import annotations

import ast
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import f16
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.verify.certificate import Certificate
from mirage_dsl.verify.exact import ONE, Poly, Ring, WorkExhausted, number, verify_exact
from mirage_dsl.verify.verifier import verify
from tests.pace import Stopwatch
from tests.verify import graphs
from tests.verify.cases import right_ones, wrong_ones
from tests.verify.false_candidates import HAND_PICKED
from tests.verify.test_examples import PROGRAMS, program_of, text_of
from tests.verify.test_identities import IDENTITIES, NO_IDENTITIES, _elementwise

BEYOND = {
    # Roots are not related to each other, functions not to arithmetic.
    "root of a product",
    "relu of a squared root",
    "relu and a positive factor",
}


def _exact(candidate: KernelGraph, program: KernelGraph, seed: int = 0) -> Certificate:
    return verify(candidate, program, method="exact", stability=False, seed=seed)


def test_right_ones_are_equal() -> None:
    for right in list(right_ones())[::2]:
        found = _exact(right.candidate, right.program)
        assert found.verdict == "equal", (right.name, found.reason)
        assert found.equivalent
        assert found.method == "exact"
        assert found.error_bound == 0
        assert found.primes == ()


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_are_equal(name: str) -> None:
    assert _exact(parse(text_of(name)), program_of(name)).verdict == "equal"


@pytest.mark.sample(4)
@pytest.mark.parametrize("pair", HAND_PICKED, ids=lambda p: p[1].__name__)
def test_known_mistakes_are_different(pair: tuple[graphs.Maker, graphs.Maker]) -> None:
    found = _exact(pair[1](), pair[0]())
    assert found.verdict == "different"
    assert found.counterexample is not None


@pytest.mark.sample(0)
def test_mutations_are_never_equal() -> None:
    known = 0
    for number_, case in enumerate(wrong_ones(lambda n: n % 197 == 0)):
        found = verify_exact(
            case.candidate, case.program, seed=number_, stability=False, work=300_000
        )
        assert found.verdict != "equal", (case.name, case.what)
        known += found.verdict == "different"
    assert known >= 5


@pytest.mark.parametrize("name", IDENTITIES)
def test_identities(name: str) -> None:
    left, right = (_elementwise(f) for f in IDENTITIES[name])
    found = _exact(left, right).verdict
    assert found == ("unknown" if name in BEYOND else "equal")


@pytest.mark.parametrize("name", NO_IDENTITIES)
def test_false_identities(name: str) -> None:
    left, right = (_elementwise(f) for f in NO_IDENTITIES[name])
    assert _exact(left, right).verdict != "equal"


def test_a_shift_that_stays_is_not_equal() -> None:
    b: Any = KernelBuilder("shifted", m=8, n=16)
    x = b.input("x", f16, "m, n")
    graph = b.returns(b.sub(x, b.rowshift(x, over="n"))).build()
    assert _exact(graph, graph).verdict == "unknown"


def test_what_grows_is_unknown_in_time() -> None:
    program = graphs.attention()
    watch = Stopwatch()
    found = verify_exact(program, program, stability=False, work=1000)
    assert found.verdict == "unknown"
    assert not found.equivalent
    assert "budget" in found.reason
    assert watch.seconds < 2


def test_another_interface_is_different() -> None:
    assert _exact(graphs.linear(), graphs.rms_linear()).verdict == "different"


def test_certificates_are_checked_by_their_own_method() -> None:
    made = _exact(graphs.rms_linear_fused(), graphs.rms_linear())
    assert Certificate.from_dict(made.to_dict()) == made
    assert made.recheck(graphs.rms_linear_fused(), graphs.rms_linear())
    assert not made.recheck(graphs.rms_linear(), graphs.rms_linear_fused())


def test_nothing_is_shared_with_residues() -> None:
    """No module that the exact verdict loads is one of the fields' own."""
    own = {"algebra", "fields", "trials", "sampled"}
    seen: set[str] = set()
    waiting = ["mirage_dsl.verify.exact"]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        text = Path(str(import_module(name).__file__)).read_text("utf-8")
        for node in ast.walk(ast.parse(text)):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if (module or "").startswith("mirage_dsl.verify.") and not node.col_offset:
                waiting.append(module)
    assert not {name.rpartition(".")[2] for name in seen} & own
    assert {"mirage_dsl.verify.reals"} <= seen


# -- The ring ------------------------------------------------------------------------


def _ring() -> tuple[Ring, Poly, Poly]:
    ring = Ring(100_000)
    return ring, ring.symbol("x"), ring.symbol("y")


def test_inverses_meet_their_polynomials() -> None:
    ring, x, y = _ring()
    both = ring.total((x, y))
    parts = [ring.mul(v, ring.inverse(both)) for v in (x, y)]
    assert ring.is_zero(ring.sub(ring.total(parts), ONE))
    assert not ring.is_zero(ring.sub(parts[0], parts[1]))
    again = ring.inverse(ring.inverse(both))
    assert again == both


def test_division_by_what_vanishes_is_refused() -> None:
    ring, x, y = _ring()
    both = ring.total((x, y))
    one = ring.total(ring.mul(v, ring.inverse(both)) for v in (x, y))
    with pytest.raises(UnsupportedError, match="zero"):
        ring.inverse(ring.sub(one, ONE))


def test_exponentials_add() -> None:
    ring, x, y = _ring()
    left = ring.exp(ring.total((x, x, y)))
    right = ring.mul(ring.mul(ring.exp(x), ring.exp(x)), ring.exp(y))
    assert left == right
    assert ring.mul(ring.exp(x), ring.inverse(ring.exp(x))) == ONE
    assert ring.root(ring.exp(x)) != ring.exp(x)
    assert ring.mul(ring.root(ring.exp(x)), ring.root(ring.exp(x))) == ring.exp(x)


def test_roots_square_but_keep_signs() -> None:
    ring, x, _ = _ring()
    root = ring.root(x)
    assert ring.mul(root, root) == x
    assert ring.mul(ring.inverse(root), ring.inverse(root)) == ring.inverse(x)
    assert ring.root(ring.mul(x, x)) != x
    assert ring.root(number(Fraction(50))) == ring.mul(
        number(5), ring.root(number(Fraction(2)))
    )


def test_maxima_are_sets() -> None:
    ring, x, y = _ring()
    z = ring.symbol("z")
    assert ring.largest((x, ring.largest((y, z)))) == ring.largest((z, x, y, x))
    assert ring.largest((number(2), number(-3))) == number(2)
    assert ring.largest((x, y)) != ring.largest((x, z))


def test_work_is_bounded() -> None:
    ring = Ring(1000)
    wide = ring.total(ring.symbol(i) for i in range(40))
    with pytest.raises(WorkExhausted):
        ring.power(wide, 3)
