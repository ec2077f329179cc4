"""Strides that follow from symbolic extents: one kernel for tensors without gaps."""

from __future__ import annotations

import re

import pytest
import torch

from mirage_dsl.backends.triton.lowering.emit import ModulePlan, plan
from mirage_dsl.backends.triton.lowering.kernel import Variant
from mirage_dsl.backends.triton.running import launch
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import compile_kernel
from mirage_dsl.core.types import f16
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import with_symbolic

MOST = {"b": 3, "s": 16, "h": 64}


def negated(layout: tuple[int, ...] | None = None, returned: int = 1) -> KernelGraph:
    """-x of a batch of sequences; how long these are is symbolic."""
    g = KernelBuilder("negated", **MOST)
    x = g.input("x", f16, "b, s, h", layout=layout)
    with g.block(grid={"b": 3, "s": 4}) as b:
        t = b.load(x, "b/grid, s/grid, h")
        y = b.store(b.neg(t), "b/grid, s/grid, h", dtype=f16)
    return with_symbolic(g.returns(*[y] * returned).build(), ["s"])


def strides(made: ModulePlan) -> list[str]:
    return [p.source for k in made.kernels for p in k.params if p.kind == "stride"]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources of the modules that are loaded."""
    found: list[str] = []
    load = launch.load_module

    def noted(source: str, *, interpret: bool) -> object:
        found.append(source)
        return load(source, interpret=interpret)

    monkeypatch.setattr(launch, "load_module", noted)
    return found


def test_without_gaps_strides_are_computed() -> None:
    assert strides(plan(negated())) == ["x"] * 3
    made = plan(negated(), Variant(dense=["x"]))
    assert strides(made) == []
    assert "* s_size * 64" in made.source


@pytest.mark.parametrize("layout", [None, (1, 0, 2), (2, 0, 1)])
def test_lengths_share_a_module(
    modules: list[str], layout: tuple[int, ...] | None
) -> None:
    run = TritonExecutable(negated(layout), interpret=True, most=MOST)
    order = layout or (0, 1, 2)
    back = sorted(range(3), key=order.__getitem__)
    for s in (16, 9, 5, 1):
        memory = torch.randn([(3, s, 64)[a] for a in order], dtype=torch.float16)
        x = memory.permute(back)
        assert torch.equal(run(x)[0], -x)
    assert len(set(modules)) == 1


def test_tensors_with_gaps_have_theirs(modules: list[str]) -> None:
    run = TritonExecutable(negated(), interpret=True, most=MOST)
    cache = torch.randn(3, 16, 64, dtype=torch.float16)
    for s in (9, 5):
        assert torch.equal(run(cache[:, :s])[0], -cache[:, :s])
    assert len(set(modules)) == 1
    x = cache[:, :9].contiguous()
    assert torch.equal(run(x)[0], -x)
    assert len(set(modules)) == 2


def test_one_sequence_has_no_stride(modules: list[str]) -> None:
    """An axis of one element can have any stride, and often has."""
    graph = with_symbolic(negated(), ["b", "s"])
    run = TritonExecutable(graph, interpret=True, most=MOST)
    x = torch.randn(1, 4, 64, dtype=torch.float16)
    for stride in (256, 1, 1000):
        same = x.as_strided(x.shape, (stride, 64, 1))
        assert torch.equal(run(same)[0], -x)
    assert len(set(modules)) == 1


@pytest.mark.parametrize("gaps", [(False,), (True,), (False, True), (True, False)])
def test_results_in_tensors_of_the_caller(gaps: tuple[bool, ...]) -> None:
    run = TritonExecutable(negated(returned=len(gaps)), interpret=True, most=MOST)
    for s in (9, 5):
        x = torch.randn(3, s, 64, dtype=torch.float16)
        outs = [
            torch.zeros(3, 16, 64, dtype=torch.float16)[:, :s]
            if gap
            else torch.zeros_like(x)
            for gap in gaps
        ]
        run(x, out=outs)
        assert all(torch.equal(o, -x) for o in outs)


@pytest.mark.parametrize("gap", [False, True])
def test_parts_of_a_result_in_a_tensor_of_the_caller(gap: bool) -> None:
    g = KernelBuilder("halves", **MOST)
    x = g.input("x", f16, "b, s, h")
    with g.block(grid={"b": 3, "s": 4}) as b:
        t = b.load(x, "b/grid, s/grid, h")
        parts = [b.store(v, "b/grid, s/grid, h", dtype=f16) for v in (b.neg(t), t)]
    whole = g.concat(*parts, dims="h, h", to="j")
    graph = with_symbolic(g.returns(whole).build(), ["s"])
    made = plan(graph, Variant(out=True, dense=() if gap else ["x", whole]))
    assert bool(strides(made)) == gap
    run = TritonExecutable(graph, interpret=True, most=MOST)
    for s in (9, 5):
        x = torch.randn(3, s, 64, dtype=torch.float16)
        out = torch.zeros(3, 16 if gap else s, 128, dtype=torch.float16)[:, :s]
        run(x, out=[out])
        assert torch.equal(out, torch.cat([-x, x], -1))


def test_computed_strides_cost_no_vectors() -> None:
    """They are multiples of the row, so 16 bytes are loaded at once as ever."""
    computed = plan(negated(), Variant(dense=["x"]), most=MOST)
    given = plan(negated(), most=MOST)
    packed = {"x_stride0": 9 * 64, "x_stride1": 64, "x_stride2": 1}
    texts = [
        compile_kernel(computed, computed.kernels[0], 90).asm["ptx"],
        compile_kernel(given, given.kernels[0], 90, strides=packed).asm["ptx"],
    ]
    vectors = [re.findall(r"(?:ld|st)\.global[.\w:]*\.v\d", text) for text in texts]
    assert vectors[0] == vectors[1]
    assert len(vectors[0]) >= 2
