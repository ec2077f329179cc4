"""Split loops in Triton: two launches, in the interpreter and compiled for a GPU."""

from __future__ import annotations

import pytest
import torch

from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.rewrite.loops import split_loop
from tests.backends.running import check, random_inputs
from tests.programs import mugraphs
from tests.rewrite.test_split import masked_attention


def split(graph: KernelGraph, count: int = 3) -> KernelGraph:
    found = split_loop(graph, 0, count=count)
    assert found is not None
    return found


SMALL = {
    "rms_linear": mugraphs.rmsnorm_linear(5, 200, 80, tile_n=32, tile_k=32),
    "gated_mlp": mugraphs.gated_mlp(8, 200, 70, tile_n=32, tile_k=32),
    "lora": mugraphs.lora(3, 200, 70, tile_n=32, tile_k=32),
    "attention": mugraphs.attention(2, 20, 200, 16, tile_m=16, tile_n=32),
    "unsafe": mugraphs.attention(2, 20, 200, 16, tile_m=16, tile_n=32, safe=False),
    "qknorm": mugraphs.attention(
        2, 20, 200, 16, tile_m=16, tile_n=32, norm=True, keys_last=False
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SMALL)
def test_split_forms_in_the_interpreter(name: str) -> None:
    graph = split(SMALL[name])
    check(graph, [0.4 * x for x in random_inputs(graph)])


@pytest.mark.parametrize("count", [2, 6])
def test_wholly_masked_parts_in_the_interpreter(count: int) -> None:
    graph = split(masked_attention(), count)
    q, k, v, mask = random_inputs(graph)
    # exp underflows unless it is taken relative to a maximum of what is not masked.
    q, k, mask = torch.full_like(q, 10.0), 0.1 * k - 20.0, torch.zeros_like(mask)
    mask[0, :3], mask[1, 9:20], mask[2, 23], mask[3] = 1, 1, 1, 1
    (found,) = check(graph, [q, k, v, mask])
    assert torch.isfinite(found).all()


@pytest.mark.parametrize(
    "graph",
    [
        mugraphs.rmsnorm_linear(16, 4096, 512),
        mugraphs.attention(2, 64, 1024, schedule=Schedule(4, 2)),
    ],
    ids=["rms_linear", "attention"],
)
def test_split_forms_compile(graph: KernelGraph) -> None:
    reports = compile_only(split(graph, 4), target="sm_90")
    assert len(reports) == 2
    assert not any(r.spills for r in reports)
