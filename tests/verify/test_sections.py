"""Candidates and programs that call libraries are compared between the calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.verify.verifier import recheck, sections_of, verify

Layer = Callable[[Any], Any]


def network(
    first: Layer, second: Layer, third: Layer, given: str = "xuvw", again: bool = False
) -> KernelGraph:
    """Three convolutions of one size, each behind a layer; and one before them."""

    def model(x: Any, u: Any, v: Any, w: Any) -> Any:
        own = dict(zip("xuvw", (x, u, v, w), strict=True))
        x, u, v, w = (own[name] for name in given)
        conv = torch.nn.functional.conv2d
        a = conv(x, u, padding=1)
        b = conv(first(a), v, padding=1)
        c = conv(second(a if again else b), w, padding=1)
        return third(c) + b

    image = mirage.spec((2, 8, 16, 16), "float32")
    weights = [mirage.spec((8, 8, 3, 3), "float32")] * 3
    return mirage.kernel(model).trace(image, *weights)


def doubled(x: Any) -> Any:
    return torch.relu(x) * 2


def summed(x: Any) -> Any:
    y = torch.relu(x)
    return y + y


def tripled(x: Any) -> Any:
    return torch.relu(x) * 3


def test_layers_are_sections_and_equal_ones_are_one() -> None:
    program = network(doubled, doubled, doubled)
    sections = sections_of(network(summed, summed, summed), program)
    assert [len(section.program.inputs) for section in sections] == [2, 1, 1]
    assert sections[0] != sections[1] == sections[2]
    certificate = verify(network(summed, summed, summed), program)
    assert certificate.equivalent
    assert certificate.stability is not None
    assert certificate.stability.ok
    assert "3 sections" in certificate.reason
    assert 0 < certificate.error_bound < 1e-6
    assert recheck(certificate, network(summed, summed, summed), program)


@pytest.mark.parametrize(
    "wrong",
    [
        network(summed, tripled, summed),
        network(summed, summed, tripled),
        network(torch.relu, summed, summed),
        network(summed, summed, summed, given="xvuw"),
        network(summed, summed, summed, given="xuuw"),
        network(summed, summed, summed, again=True),
    ],
    ids=["second", "third", "first", "exchanged", "one twice", "skipped"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_section_is_refused(wrong: KernelGraph, seed: int) -> None:
    certificate = verify(wrong, network(doubled, doubled, doubled), seed=seed)
    assert not certificate.equivalent


def test_an_inaccurate_section_is_inaccurate() -> None:
    def cancels(x: Any) -> Any:
        y = torch.relu(x) * 2
        return (y + 1e4) - 1e4

    program = network(doubled, doubled, doubled)
    certificate = verify(network(summed, cancels, summed), program)
    assert not certificate.equivalent or not (
        certificate.stability is None or certificate.stability.ok
    )


def test_other_calls_have_no_sections() -> None:
    def pooled(x: Any) -> Any:
        return torch.nn.functional.max_pool2d(x, 3, 1, 1)

    program = network(doubled, doubled, doubled)
    assert not sections_of(network(pooled, summed, summed), program)
    assert not sections_of(program, network(pooled, summed, summed))
    assert not verify(network(pooled, summed, summed), program).equivalent


def behind(count: int, function: Layer) -> KernelGraph:
    """A convolution, called so often, and what is computed of it and itself."""

    def model(x: Any, w: Any) -> Any:
        made = [torch.conv2d(x, w) for _ in range(count)]
        return function(made[0]) + made[-1]

    image, weight = (2, 8, 16, 16), (8, 8, 3, 3)
    return mirage.kernel(model).trace(*(mirage.f32[s] for s in (image, weight)))


def test_a_section_has_the_dims_that_it_reads() -> None:
    (section,) = sections_of(behind(1, summed), behind(1, doubled))
    for graph in (section.candidate, section.program):
        read = {n for i in graph.inputs for n in i.type.names}
        assert {n for n, _ in graph.extents} == read


def test_the_only_section_is_verified_by_itself() -> None:
    certificate = verify(behind(1, summed), behind(1, doubled))
    assert certificate.equivalent
    assert "in 1 section " in certificate.reason
    assert not verify(behind(1, tripled), behind(1, doubled)).equivalent


def test_equal_calls_are_one() -> None:
    for counts in ((1, 2), (2, 1), (2, 2)):
        candidate, program = behind(counts[0], summed), behind(counts[1], doubled)
        assert len(sections_of(candidate, program)) == 1
        assert verify(candidate, program).equivalent
        assert not verify(behind(counts[0], tripled), program).equivalent
