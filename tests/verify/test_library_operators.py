"""Operators that only PyTorch computes are random functions of all of their operands.

Mutants that change what such an operator is, or what it is given, are refused under
every seed; programs that put kernels around it are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.types import Integers
from mirage_dsl.ir.canonical import Renaming
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.definition import Kind
from mirage_dsl.verify.algebra import Order, Residue, ResidueAlgebra
from mirage_dsl.verify.fields import chains_for, draw_trials
from tests.programs.windows import MODELS, ROWS

SEEDS = range(20)


def mutants(program: KernelGraph) -> Iterator[tuple[str, KernelGraph]]:
    """The program with an attribute of a library operator changed, or its operands."""
    for at, node in enumerate(program.nodes):
        if not isinstance(node, Apply) or node.op.kind is not Kind.LIBRARY:
            continue
        for name, numbers in node.numbers.items():
            for place in range(len(numbers)):
                changed = list(numbers)
                changed[place] += 1
                attrs = {**dict(node.attrs), name: Integers(tuple(changed))}
                other = replace(node, attrs=tuple(attrs.items()))
                yield f"{node.result}: {name} {place}", _with(program, at, other)
        if len(node.values) == 2:
            attrs = dict(node.attrs)
            attrs["of"], attrs["by"] = attrs["by"], attrs["of"]
            swapped = replace(
                node, operands=node.operands[::-1], attrs=tuple(attrs.items())
            )
            yield f"{node.result}: operands", _with(program, at, swapped)


def _with(program: KernelGraph, at: int, node: Apply) -> KernelGraph:
    nodes = (*program.nodes[:at], node, *program.nodes[at + 1 :])
    return replace(program, nodes=nodes)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d", "max_pool2d"])
def test_changed_attributes_are_refused_under_every_seed(name: str) -> None:
    program = ROWS[name].traced
    found = list(mutants(program))
    assert len(found) > 7
    for what, mutant in found:
        for seed in SEEDS:
            certificate = mirage.verify(mutant, program, seed=seed, stability=False)
            assert not certificate.equivalent, (what, seed)


@pytest.mark.parametrize("name", sorted(set(ROWS) - {"conv2d", "max_pool2d"}))
def test_changed_attributes_of_any_row_are_refused(name: str) -> None:
    program = ROWS[name].traced
    for what, mutant in mutants(program):
        certificate = mirage.verify(mutant, program, stability=False)
        assert not certificate.equivalent, what
        assert certificate.counterexample is None


AROUND = """mirage 1

mugraph f(
    x: f32[n, c, h, w],
    k: f32[o, d, r, s]
) -> f32[n, o, p, q] where n = 2, c = 4, h = 6, w = 8,
    o = 5, d = 4, r = 3, s = 3, p = 4, q = 6 {
  t: f32[n, c, h, w] = mul x, x
  y: f32[n, o, p, q] = conv2d t, k of(n, c, h, w) by(o, d, r, s) gives(n, o, p, q) \
stride(1, 1) padding(0, 0) dilation(1, 1) groups(1)
  z: f32[n, o, p, q] = mul y, 2
  return z
}
"""
FUSED = """mirage 1

mugraph f(
    x: f32[n, c, h, w],
    k: f32[o, d, r, s]
) -> f32[n, o, p, q] where n = 2, c = 4, h = 6, w = 8,
    o = 5, d = 4, r = 3, s = 3, p = 4, q = 6 {
  t = block grid(h / 4) {
    a: f32[n, c, h/grid, w] = load x
    b: f32[n, c, h/grid, w] = mul a, a
    store t: f32[n, c, h/grid, w] = b
  }
  y: f32[n, o, p, q] = conv2d t, k of(n, c, h, w) by(o, d, r, s) gives(n, o, p, q) \
stride(1, 1) padding(0, 0) dilation(1, 1) groups(1)
  z = block grid(p / 2) {
    a: f32[n, o, p/grid, q] = load y
    b: f32[n, o, p/grid, q] = add a, a
    store z: f32[n, o, p/grid, q] = b
  }
  return z
}
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_around_one_are_accepted(seed: int) -> None:
    certificate = mirage.verify(FUSED, AROUND, seed=seed)
    assert certificate.ok, certificate.reason
    assert certificate.sampled is not None
    assert certificate.sampled.elements


WRONG = {
    "an operand that is not squared": ("mul a, a", "add a, a"),
    "a result that is squared": ("add a, a", "mul a, a"),
    "a tensor for what was computed of it": ("conv2d t, k", "conv2d x, k"),
    "axes in another order": ("of(n, c, h, w)", "of(n, c, w, h)"),
    "batch and channels exchanged": ("of(n, c, h, w)", "of(c, n, h, w)"),
    "axes of the window": ("by(o, d, r, s)", "by(o, d, s, r)"),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_around_one_are_refused(name: str) -> None:
    wrong = parse(FUSED.replace(*WRONG[name]))
    assert wrong != parse(FUSED)
    for seed in SEEDS:
        certificate = mirage.verify(wrong, AROUND, seed=seed, stability=False)
        assert not certificate.equivalent, seed


def test_a_part_of_an_operand_that_is_wrong_at_the_true_extents_shows() -> None:
    """Small sizes would not show a last tile that is left out."""
    program = parse(AROUND.replace("n = 2", "n = 200"))
    found = mirage.verify(parse(FUSED.replace("n = 2", "n = 200")), program)
    assert found.sampled is not None
    assert found.sampled.elements > 10


@pytest.mark.parametrize("name", MODELS)
def test_programs_equal_themselves_under_other_names(name: str) -> None:
    program = MODELS[name].traced
    dims = {n: f"{n}_" for n, _ in program.extents}
    values = {n.result: f"{n.result}_" for n in program.applies}
    other = Renaming(dims, values).graph(program)
    certificate = mirage.verify(other, program)
    assert certificate.ok, certificate.reason


def test_exact_forms_know_one_as_an_unknown_function() -> None:
    small = [
        t.replace("c = 4", "c = 2").replace("d = 4", "d = 2") for t in (FUSED, AROUND)
    ]
    equal = mirage.verify(*small, method="exact", stability=False)
    assert equal.verdict == "equal", equal.reason
    wrong = small[0].replace("conv2d t, k", "conv2d x, k")
    other = mirage.verify(wrong, small[1], method="exact", stability=False)
    assert not other.equivalent


# -- The random function ---------------------------------------------------------------


def oracle(*operands: np.ndarray, shape: tuple[int, ...] = (5, 3)) -> np.ndarray:
    rng = np.random.default_rng(0)
    (chain,) = chains_for(1, 1, 0)
    trials = draw_trials(chain, 4, rng)
    algebra = ResidueAlgebra(trials, Order(), rng)
    index = np.arange(np.prod(shape)).reshape(shape)
    values = [Residue((np.broadcast_to(o, (4, *o.shape)),)) for o in operands]
    return algebra.whole_oracle("f", values, index).top


def test_every_element_of_every_operand_counts() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 1000, (3, 4)), rng.integers(0, 1000, (2, 5))
    plain = oracle(x, w)
    assert len(np.unique(plain)) == plain.size
    np.testing.assert_array_equal(plain, oracle(x, w))
    for place in np.ndindex(*x.shape):
        other = x.copy()
        other[place] += 1
        assert (oracle(other, w) != plain).all(), place
    for place in np.ndindex(*w.shape):
        other = w.copy()
        other[place] += 1
        assert (oracle(x, other) != plain).all(), place


def test_places_and_order_count() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1000, (3, 4))
    plain = oracle(x, x + 1)
    assert (oracle(x + 1, x) != plain).all()
    assert (oracle(x[::-1], x + 1) != plain).all()
    assert (oracle(x.T, x + 1) != plain).all()
    assert (oracle(x.reshape(4, 3), x + 1) != plain).all()


def test_equal_elements_do_not_cancel() -> None:
    assert (oracle(np.zeros((4,), np.int64)) != oracle(np.ones((4,), np.int64))).all()
    assert (
        oracle(np.zeros((4,), np.int64)) != oracle(np.zeros((2, 2), np.int64))
    ).all()


def test_floats_run_pytorch_itself_but_at_the_sizes_of_trials() -> None:
    program = ROWS["max_pool2d"].traced
    x = np.abs(ROWS["max_pool2d"].inputs()[0].numpy())
    (real,) = evaluate_numpy(program, x)
    (other,) = evaluate_numpy(program, x, stand_ins=True)
    assert real.shape == other.shape
    assert not np.allclose(real, other)
    assert (other > 0).all()
