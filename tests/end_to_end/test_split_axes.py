"""Slices and joins along axes that are split elsewhere, and axes split in two ways."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.types import scalar
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.table import OPERATORS

Function = Callable[..., Any]
SEEDS = range(20)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def traced(function: Function, *shapes: tuple[int, ...]) -> KernelGraph:
    specs = [mirage.spec(shape, "float32") for shape in shapes]
    return mirage.kernel(function).trace(*specs)


def right(graph: KernelGraph, function: Function, tensors: list[torch.Tensor]) -> None:
    """The reference computes what PyTorch does in float64."""
    given = [t.double() for t in tensors]
    expected = function(*given)
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = evaluate_numpy(graph, *(t.numpy() for t in given))
    for array, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, other.numpy(), rtol=1e-6, atol=1e-9)


# -- The whole road --------------------------------------------------------------------


def grouped_heads(x: Any, w: Any) -> Any:
    """Queries, keys and values of one product, two queries for each key."""
    y = x @ w
    n = y.shape[0]
    q, k, v = y[:, :16], y[:, 16:24], y[:, 24:]
    q, k, v = (t.view(n, -1, 4).transpose(0, 1) for t in (q, k, v))
    k, v = (t[:, None].expand(2, 2, n, 4).reshape(4, n, 4) for t in (k, v))
    o = torch.softmax(q @ k.transpose(1, 2) * 0.5, -1) @ v
    return o.transpose(0, 1).reshape(n, 16)


def cut_anywhere(x: Any, w: Any) -> Any:
    """The offset of the second part is no multiple of what it is split into."""
    y = x @ w
    return y[:, 8:].reshape(-1, 3, 6).softmax(-1) * 2, torch.tanh(y[:, :8])


def joined_and_split(x: Any, y: Any) -> Any:
    c = torch.cat([x.reshape(3, 8), y], 1)
    return c[:, 1:].reshape(3, 4, 3).sum(-1), x.reshape(6, 4).exp()


def rows_of_heads(q: Any, k: Any, v: Any) -> Any:
    """What is cut is not in the order in which it lies."""
    o = torch.softmax(q @ k.transpose(1, 2), -1) @ v
    return o.transpose(0, 1).reshape(o.shape[1], -1)[:, 3:11] * 2


def in_two_ways(x: Any) -> Any:
    return (x.reshape(4, 6) ** 2).sum(0), (x.reshape(6, 4) + 1).sum(0)


def each_third(x: Any) -> Any:
    return torch.exp(x)[:, 1::3] * x[:, ::3]


ROAD: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "grouped heads": (grouped_heads, [normal(5, 8), normal(8, 32)]),
    "cut anywhere": (cut_anywhere, [normal(5, 7), normal(7, 26)]),
    "joined and split": (joined_and_split, [normal(24), normal(3, 5)]),
    "rows of heads": (
        rows_of_heads,
        [normal(3, 9, 4), normal(3, 9, 4), normal(3, 9, 4)],
    ),
    "in two ways": (in_two_ways, [normal(24)]),
    "each third": (each_third, [normal(5, 11)]),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ROAD)
def test_found_verified_and_run(name: str) -> None:
    function, tensors = ROAD[name]
    program = traced(function, *(tuple(t.shape) for t in tensors))
    assert check(program) == []
    assert parse(str(program)) == program
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    assert parse(str(best.mugraph)) == best.mugraph
    expected = function(*(t.double() for t in tensors))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for graph in (program, best.mugraph):
        right(graph, function, tensors)
        found = TritonExecutable(graph, interpret=True)(*tensors)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


# -- Any program of views --------------------------------------------------------------

SHAPES = ((4, 6), (24,), (3, 8), (2, 3, 4), (12, 5), (2, 12))


def _slice(t: Any, r: random.Random) -> Any:
    axis = r.randrange(t.ndim)
    start = r.randrange(t.shape[axis])
    stop, step = r.randint(start + 1, t.shape[axis]), r.choice((1, 1, 2, 3))
    return t[(slice(None),) * axis + (slice(start, stop, step),)]


def _element(t: Any, r: random.Random) -> Any:
    axis = r.randrange(t.ndim)
    return t[(slice(None),) * axis + (r.randrange(t.shape[axis]),)]


def _reshaped(t: Any, r: random.Random) -> Any:
    left, shape = math.prod(map(int, t.shape)), list[int]()
    while left > 1 and len(shape) < 3:
        shape.append(r.choice([d for d in range(2, left + 1) if left % d == 0]))
        left //= shape[-1]
    shape.append(left)
    r.shuffle(shape)
    return t.reshape(*shape)


def _joined(t: Any, r: random.Random) -> Any:
    axis = r.randrange(t.ndim)
    part = t.narrow(axis, r.randrange(t.shape[axis]), 1) * 2
    return torch.cat([t, part] if r.random() < 0.5 else [part, t, t], axis)


def _turned(t: Any, r: random.Random) -> Any:
    return t.transpose(r.randrange(t.ndim), r.randrange(t.ndim))


STEPS = (_slice, _slice, _reshaped, _reshaped, _element, _joined, _turned)


def random_views(seed: int) -> Function:
    """A function of two tensors that meet in a sum after many views."""

    def function(x: Any, y: Any) -> Any:
        r = random.Random(seed)
        pool = [x, y]
        for _ in range(r.randint(3, 9)):
            t = r.choice([p for p in pool if p.ndim])
            pool.append(r.choice(STEPS)(t, r) * 0.5)
        sizes = [math.prod(map(int, p.shape)) for p in pool]
        first = r.randrange(len(pool))
        second = r.choice([i for i, n in enumerate(sizes) if n == sizes[first]])
        met = pool[first].reshape(-1) + pool[second].reshape(-1)
        return met, pool[-1].exp()

    return function


@pytest.mark.parametrize("seed", range(60))
def test_random_views_are_pytorchs(seed: int) -> None:
    r = random.Random(f"shapes {seed}")
    tensors = [normal(*r.choice(SHAPES), seed=seed), normal(*r.choice(SHAPES))]
    function = random_views(seed)
    graph = traced(function, *(tuple(t.shape) for t in tensors))
    assert check(graph) == []
    assert parse(str(graph)) == graph
    right(graph, function, tensors)


# -- Verification ----------------------------------------------------------------------


def cut_twice(x: Any, w: Any) -> Any:
    y = x @ w
    return (
        y[:, :16].reshape(-1, 4, 4).sum(1)
        + y[:, 18:].reshape(-1, 4, 2, 2).sum((1, 3))[:, :1]
    )


def as_many(program: KernelGraph) -> KernelGraph:
    """The program with another way to compute its first result."""
    (first, *rest) = program.returns
    twice = Apply("twice", OPERATORS["mul"], (first.value, scalar(2)), ())
    half = Apply("again", OPERATORS["mul"], ("twice", scalar(0.5)), ())
    nodes = (*program.nodes, twice, half)
    return replace(program, nodes=nodes, returns=(replace(first, value="again"), *rest))


def mutants(program: KernelGraph) -> list[KernelGraph]:
    """Programs with one slice a step aside, or the factors of one axis exchanged."""
    found: list[KernelGraph] = []
    for at, node in enumerate(program.nodes):
        assert isinstance(node, Apply)
        attrs: dict[str, Any] = dict(node.attrs)
        if node.op.name == "slice":
            whole = program.extent_of[attrs["dim"]] or 0
            step = 1 if attrs["stop"] < whole else -1
            attrs["start"], attrs["stop"] = attrs["start"] + step, attrs["stop"] + step
        elif node.factored is not None and node.factored.flattens:
            attrs["of"] = replace(attrs["of"], axes=attrs["of"].axes[::-1])
        else:
            continue
        other = replace(node, attrs=tuple(attrs.items()))
        nodes = (*program.nodes[:at], other, *program.nodes[at + 1 :])
        found.append(replace(program, nodes=nodes))
    return found


VERIFIED: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "cut twice": (cut_twice, [(5, 8), (8, 34)]),
    "joined and split": (joined_and_split, [(24,), (3, 5)]),
    "rows of heads": (rows_of_heads, [(3, 9, 4), (3, 9, 4), (3, 9, 4)]),
    "large heads": (
        lambda y: (
            torch.exp(y[:, :256].view(-1, 2, 2, 64))
            + torch.exp(y[:, 256:].view(-1, 2, 1, 64))
        ),
        [(3, 384)],
    ),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", VERIFIED)
def test_wrong_places_are_never_accepted(name: str) -> None:
    function, shapes = VERIFIED[name]
    program = traced(function, *shapes)
    same = mirage.verify(as_many(program), program, stability=False)
    assert same.equivalent, same.reason
    wrong = mutants(program)
    assert wrong
    for graph in wrong:
        assert check(graph) == []
        for seed in SEEDS:
            assert not mirage.verify(
                graph, program, seed=seed, stability=False
            ).equivalent


def test_a_function_that_catches_everything_is_traced_again() -> None:
    """What makes it run once more is nothing that the function meets with tensors."""

    def caught(x: Any) -> Any:
        parts = x[:, 3:9]
        try:
            heads = x.reshape(4, 5, 2).sum(1)
        except BaseException:
            heads = x[:, :2] * 0
        return parts * 2, heads

    x = normal(4, 10)
    right(traced(caught, (4, 10)), caught, [x])
