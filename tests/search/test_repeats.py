"""Segments that differ only in names are searched once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from mirage_dsl.core.hardware import H100, Hardware
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search import structures as module
from mirage_dsl.search.driver import search
from mirage_dsl.search.memo import names_of, normal_text, renamed
from mirage_dsl.search.partition import apart
from mirage_dsl.search.result import SearchResult
from mirage_dsl.verify.verifier import verify
from tests.search.programs import Program

DEEP = 8
"""Layers of which all but the first and the last are alike."""


def stack(layers: int, prefix: str = "") -> KernelGraph:
    """Layers of a norm, a product, a gate and a product, each over its own dims."""
    sizes = {"b": 16, f"{prefix}h0": 256}
    for i in range(layers):
        sizes |= {f"{prefix}n{i}": 512, f"{prefix}h{i + 1}": 256}
    p = Program("stack", sizes)
    x = p.input(f"{prefix}x", f"b {prefix}h0")
    for i in range(layers):
        h, n, to = f"{prefix}h{i}", f"{prefix}n{i}", f"{prefix}h{i + 1}"
        up = p.input(f"{prefix}up{i}", f"{h} {n}")
        down = p.input(f"{prefix}down{i}", f"{n} {to}")
        y = p.matmul(p.rms_norm(x, h), up, h)
        x = p.matmul(p.apply("silu", y), down, n)
    return p.returns(x)


@contextmanager
def counted() -> Iterator[list[str]]:
    """The segments that are searched."""
    seen: list[str] = []
    original = module.structures

    def structures(program: KernelGraph, *gpu: Hardware, **options: object) -> object:
        seen.append(normal_text(program))
        return original(program, *gpu, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "structures", structures)
        yield seen


def test_names_do_not_matter() -> None:
    one, other = stack(2), stack(2, prefix="my_")
    assert normal_text(one) == normal_text(other)
    assert normal_text(one) != normal_text(stack(3))
    sizes = stack(2).with_extents({"b": 8})
    assert normal_text(sizes) != normal_text(one)
    found = renamed(one, names_of(one), names_of(other))
    assert (found.inputs, found.nodes) == (other.inputs, other.nodes)


def test_a_plan_is_renamed_to_another_program() -> None:
    one, other = stack(1), stack(1, prefix="my_")
    plan = search(one, H100, max_kernels=2, k=1).best.mugraph
    found = renamed(plan, names_of(one), names_of(other))
    assert found.blocks
    assert check(found) == []
    assert verify(found, other).ok
    assert "my_x_t" in str(found)


@pytest.fixture(scope="module")
def deep() -> tuple[SearchResult, list[str]]:
    with counted() as seen:
        return search(stack(DEEP), H100, max_kernels=None, k=2), seen


@pytest.mark.sample(0)
def test_layers_are_searched_once(deep: tuple[SearchResult, list[str]]) -> None:
    """As few segments as of four layers: the first, the last and those between."""
    result, seen = deep
    with counted() as few:
        search(stack(4), H100, max_kernels=None, k=2, verify=False)
    # Inputs that an earlier kernel made are in L2, so sizes may be chosen anew.
    assert len(seen) <= 2 * len(set(seen))
    assert set(seen) == set(few)
    assert result.ledger.found["segments repeated"] > 20
    graph = result.best.mugraph
    assert len(graph.blocks) >= DEEP
    assert result.best.certificate is not None
    assert result.best.certificate.ok


@pytest.mark.sample(0)
def test_an_executor_searches_the_segments(
    deep: tuple[SearchResult, list[str]],
) -> None:
    with ThreadPoolExecutor(2) as pool, counted() as seen:
        result = search(stack(DEEP), H100, max_kernels=None, k=2, executor=pool)
    assert sorted(seen) == sorted(deep[1])
    assert result.candidates == deep[0].candidates


def test_parts_keep_apart() -> None:
    """What two parts call alike, and the program does not know, is renamed."""
    program = stack(1)
    own = {i.name for i in program.inputs}
    part = apart(program, own, {"t0", "t1_2"})
    names = {n.result for n in part.nodes}  # type: ignore[union-attr]
    assert "t0" not in names
    assert "t0_2" in names
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, [16, 256]) for _ in range(1)]
    arrays += [rng.uniform(-1, 1, s) for s in ((256, 512), (512, 256))]
    for a, b in zip(
        evaluate_numpy(part, *arrays), evaluate_numpy(program, *arrays), strict=True
    ):
        np.testing.assert_array_equal(a, b)
