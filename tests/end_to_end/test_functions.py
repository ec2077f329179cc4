"""Functions down the whole road: traced, searched, verified, run by the interpreter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.ir.graph import Apply, BlockGraph, KernelGraph
from mirage_dsl.ops.table import OPERATORS

F = torch.nn.functional
Function = Callable[..., Any]

PROGRAMS: dict[str, Function] = {
    "elementary": lambda x, y: torch.expm1(x) * torch.sin(y) + torch.log1p(y * y),
    "rounded": lambda x, y: torch.floor(3 * x) + torch.fmod(y, 0.7) - x.round(),
    "angles": lambda x, y: torch.atan2(x, y).sum(-1) + torch.atan(y).amax(-1),
    "divergence": lambda x, y: F.kl_div(x, y.sigmoid(), reduction="batchmean"),
    "triplet": lambda x, y: F.triplet_margin_loss(x, y, x * y),
    "norms": lambda x, y: F.normalize(x, p=1.0) * torch.norm(y, torch.inf, 1, True),
    "padded": lambda x, y: F.pad(x, (2, 3), value=1.5).sum(0) + F.pad(y, (0, 5))[0],
    "tolerance": lambda x, y: torch.where(torch.isclose(x, y, atol=0.5), x, y),
    "counts": lambda x, y: torch.count_nonzero(x > y, 1) * x.sum(1),
    "powers of 2": lambda x, y: torch.ldexp(x, torch.floor(y)),
    "signs": lambda x, y: torch.where(torch.signbit(x), y, x),
    "distances": lambda x, y: torch.cdist(x, y) + torch.cdist(x, y, p=1),
    "integrals": lambda x, y: torch.trapezoid(x, y) + torch.trapz(x * y, dx=0.5),
    "renormed": lambda x, y: torch.renorm(x, 2, 0, 1.0) * y,
    "columns": lambda x, y: F.unfold(x.view(1, 2, 4, 16), 2, padding=1)[0, :, :16] * y,
    "patches": lambda x, y: F.unfold((x * y).view(1, 1, 8, 16), 4, stride=4),
    "norms of windows": lambda x, y: F.lp_pool1d(x * x, 2.0, 4) + y[:, :4],
    "of neighbours": lambda x, y: F.local_response_norm((x + y).view(1, 4, 32), 3),
    "rolled": lambda x, y: x.roll(3, 1) * y + y[:1].repeat(8, 1),
}


@functools.cache
def found(name: str) -> tuple[KernelGraph, KernelGraph]:
    """The program, and the best μGraph of its search."""
    spec = mirage.spec((8, 16), "float32")
    bound = mirage.kernel(lambda x, y: PROGRAMS[name](x, y)).bind(spec, spec)
    bound.search(effort="quick")
    return bound.program, bound.mugraph


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_are_searched_and_run(name: str) -> None:
    program, mugraph = found(name)
    assert mirage.verify(mugraph, program).equivalent
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(8, 16, generator=generator) for _ in range(2)]
    (result,) = TritonExecutable(mugraph, interpret=True)(*given)
    expected = PROGRAMS[name](*(g.double() for g in given)).float()
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


OF_INDICES: dict[str, Function] = {
    "bags": lambda b, x: F.embedding_bag(b, x, mode="sum"),
    "padded bags": lambda b, x: F.embedding_bag(b, x, padding_idx=0),
    "members": lambda b, x: x[:, :4] * torch.isin(b, b[0, :2]),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", OF_INDICES)
def test_functions_of_indices_are_searched_and_run(name: str) -> None:
    specs = mirage.spec((8, 4), "int64"), mirage.spec((8, 16), "float32")
    bound = mirage.kernel(lambda b, x: OF_INDICES[name](b, x)).bind(*specs)
    bound.search(effort="quick")
    assert mirage.verify(bound.mugraph, bound.program).equivalent
    generator = torch.Generator().manual_seed(1)
    indices = torch.randint(0, 8, (8, 4), generator=generator)
    x = torch.randn(8, 16, generator=generator)
    (result,) = TritonExecutable(bound.mugraph, interpret=True)(indices, x)
    torch.testing.assert_close(result, OF_INDICES[name](indices, x))


@pytest.mark.parametrize("name", ["rounded", "angles"])
def test_functions_of_constants_compile(name: str) -> None:
    assert mirage.compile_only(found(name)[1], "sm_90")


def mutants(graph: KernelGraph) -> list[KernelGraph]:
    """The μGraph with one operator of a block in the place of another."""
    swaps = {"sin": "cos", "expm1": "exp", "log1p": "log", "floor": "round"}
    swaps |= {"round": "floor", "fmod": "atan2", "atan2": "fmod"}
    made: list[KernelGraph] = []
    for at, node in enumerate(graph.nodes):
        if not isinstance(node, BlockGraph):
            continue
        for i, inner in enumerate(node.nodes):
            if isinstance(inner, Apply) and inner.op.name in swaps:
                other = replace(inner, op=OPERATORS[swaps[inner.op.name]])
                body = (*node.nodes[:i], other, *node.nodes[i + 1 :])
                nodes = list(graph.nodes)
                nodes[at] = replace(node, nodes=body)
                made.append(replace(graph, nodes=tuple(nodes)))
    return made


@pytest.mark.parametrize("name", ["elementary", "rounded", "angles"])
def test_other_functions_are_refused(name: str) -> None:
    program, mugraph = found(name)
    wrong = mutants(mugraph)
    assert wrong
    for graph in wrong:
        for seed in range(5):
            assert not mirage.verify(graph, program, seed=seed).equivalent
