"""The exact verdict: normal forms of both graphs at tiny sizes, compared.

It is independent of the verdict over finite fields: no primes, no random numbers, no
residues, sizes of its own.  What it calls equal is equal, as functions of symbols, at
these sizes; what it calls different comes with inputs that show it; all else, as what
grows beyond the budget, is unknown.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mirage_dsl.core.errors import MirageError
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.evaluate.graph import evaluate
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.verify.certificate import (
    Certificate,
    Counterexample,
    Sizes,
    Stability,
    Verdict,
)
from mirage_dsl.verify.normal_forms import (
    Element,
    ExactAlgebra,
    ExactDomain,
    Ring,
    Values,
    ring_equality,
    symbols,
)
from mirage_dsl.verify.reals import domain_difference
from mirage_dsl.verify.runs import find_counterexample
from mirage_dsl.verify.sizes import Shrunk, input_shape, interface_difference, shrink
from mirage_dsl.verify.stability import measure_stability

WORK = 4_000_000
"""Length of all monomials made, a few seconds' worth."""

_BEYOND_ROUNDING = 1e-6
_RESTS_ON = (
    "exact normal forms of functions of symbols, at the sizes tested; that other sizes "
    "behave alike is not part of it"
)


def verify_exact(
    candidate: KernelGraph,
    program: KernelGraph,
    *,
    seed: int = 0,
    stability: bool = True,
    work: int = WORK,
) -> Certificate:
    """Whether both graphs have the same normal form.

    Args:
        candidate: A μGraph with the program's inputs and outputs.
        program: What to compare with.
        seed: Decides the sizes and the inputs of counterexamples.
        stability: Also judge floating-point behaviour.
        work: The most that monomials may come to.
    """
    asked = _Asked(candidate, program, seed)
    other = interface_difference(candidate, program)
    if other is not None:
        return asked.answer("different", f"another interface: {other}")
    try:
        small = shrink(candidate, program, ragged=True, seed=seed, tiny=True)
    except MirageError as error:
        return asked.answer("unknown", f"unknown: {error.message}")
    asked.sizes = (tuple(sorted(small.sizes.items())),)
    decided = _decided(asked, small, Ring(work))
    if decided is not None:
        return decided
    domains = domain_difference(small, seed)
    if domains is not None:
        return asked.answer("different", domains.reason, example=domains.example)
    verdict = None
    if stability:
        larger = shrink(candidate, program, ragged=False, seed=seed)
        verdict = measure_stability(larger, seed)
    return asked.answer("equal", "equal normal forms", stability=verdict)


def _decided(asked: _Asked, small: Shrunk, ring: Ring) -> Certificate | None:
    """The certificate of what is not equal; None for what is."""
    reason = (
        "the normal forms differ, but no inputs were found on which the results do; an "
        "identity of functions, roots or maxima may join them"
    )
    try:
        ours, theirs = _both(small, ring)
        if _agree(ours, theirs, _same):
            return None
        example = _difference(small, asked.seed)
        if example is None and _agree(ours, theirs, ring_equality(ring)):
            return None
    except MirageError as error:
        reason = error.message
        example = _difference(small, asked.seed)
    if example is not None:
        return asked.answer("different", "not equivalent", example=example)
    return asked.answer("unknown", f"unknown: {reason}")


def _both(small: Shrunk, ring: Ring) -> tuple[list[Values], list[Values]]:
    program = small.program
    inputs = [
        symbols(ring, number, input_shape(program, item))
        for number, item in enumerate(program.inputs)
    ]
    return _outputs(program, inputs, ring), _outputs(small.candidate, inputs, ring)


def _outputs(graph: KernelGraph, inputs: list[Values], ring: Ring) -> list[Values]:
    return evaluate(graph, inputs, ExactDomain(ExactAlgebra(ring)))


def _agree(
    ours: list[Values],
    theirs: list[Values],
    equal: Callable[[Element, Element], bool],
) -> bool:
    return all(
        a.shape == b.shape and all(map(equal, a.ravel().tolist(), b.ravel().tolist()))
        for a, b in zip(ours, theirs, strict=True)
    )


def _same(a: Element, b: Element) -> bool:
    return a == b


def _difference(small: Shrunk, seed: int) -> Counterexample | None:
    """Inputs on which finite results differ, and by more than rounding could."""
    found = find_counterexample(small, seed, finite=True)
    if found is None:
        return None
    expected = np.asarray(found.expected_output)
    scale = np.abs(expected[np.isfinite(expected)]).max()
    far = abs(found.found - found.expected) > _BEYOND_ROUNDING * scale
    return found if far else None


class _Asked:
    """The question, and certificates that answer it."""

    def __init__(self, candidate: KernelGraph, program: KernelGraph, seed: int) -> None:
        self.candidate = candidate
        self.program = program
        self.seed = seed
        self.sizes: tuple[Sizes, ...] = ()

    def answer(
        self,
        verdict: Verdict,
        reason: str,
        *,
        stability: Stability | None = None,
        example: Counterexample | None = None,
    ) -> Certificate:
        return Certificate(
            equivalent=verdict == "equal",
            error_bound=0.0 if verdict == "equal" else 1.0,
            rests_on=_RESTS_ON,
            trials=0,
            primes=(),
            seed=self.seed,
            counterexample=example,
            stability=stability,
            sizes=self.sizes,
            candidate_hash=canonical_hash(self.candidate),
            program_hash=canonical_hash(self.program),
            reason=reason,
            method="exact",
            verdict=verdict,
        )
