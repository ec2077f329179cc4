"""Kernels with the same code: one function, compiled once, launched several times."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.lowering.emit import emit, plan
from mirage_dsl.backends.triton.running import direct
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse

BLOCK = """
  {out} = block grid(n / {tile}) {{
    {read}_t = load {read}[n/grid]
    {out}_b = mul {read}_t, {factor}
    {out}_c = exp {out}_b
    store {out}: {dtype}[n/grid] = {out}_c
  }}"""


def chain(*blocks: dict[str, Any]) -> KernelGraph:
    """Blocks that read one another: x, then y0, y1 and so on.

    The first one has code of its own, for x may lie in strides.
    """
    names = ["x", *(f"y{at}" for at in range(len(blocks)))]
    own = {"tile": 32, "factor": -0.5, "dtype": "f32"}
    text = "".join(
        BLOCK.format(read=read, out=out, **(own | block))
        for read, out, block in zip(names, names[1:], blocks, strict=False)
    )
    kind = (own | blocks[-1])["dtype"]
    return parse(
        f"mirage 1\n\nmugraph chain(x: f32[n]) -> {kind}[n] where n = 100 {{{text}\n"
        f"  return {names[-1]}\n}}\n"
    )


def functions(graph: KernelGraph) -> int:
    return emit(graph).count("@triton.jit")


def right(graph: KernelGraph, x: torch.Tensor) -> torch.Tensor:
    """What a graph of equal factors computes; negative ones, so that errors fade."""
    for _ in graph.blocks:
        x = torch.exp(x * -0.5)
    return x


def test_equal_kernels_are_one_function() -> None:
    graph = chain({}, {}, {}, {})
    assert functions(graph) == 2
    made = plan(graph)
    assert [k.same_as for k in made.kernels] == ["", "", *["chain_kernel1"] * 2]
    assert "chain_kernel2 = chain_kernel1  # on other tensors\n" in made.source
    x = torch.linspace(-2, 2, 100)
    (found,) = TritonExecutable(graph, interpret=True)(x)
    torch.testing.assert_close(found, right(graph, x))


@pytest.mark.parametrize("other", [{"factor": 0.25}, {"tile": 64}], ids=str)
def test_others_are_not(other: dict[str, Any]) -> None:
    assert functions(chain({}, {}, other)) == 3
    assert functions(chain({}, {}, other, {}, other)) == 3


def test_each_launch_has_a_report() -> None:
    reports = compile_only(chain({}, {}, {}, {"dtype": "f16"}))
    assert [r.name for r in reports] == [f"chain_kernel{at}" for at in range(4)]
    _, first, same, other = [r.ptx_bytes for r in reports]
    assert first == same != other


def test_what_is_alike_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_kernel(_: Any, kernel: Any, *_args: Any, **_options: Any) -> str:
        compiled.append(kernel.name)
        return f"of {kernel.name}"

    def launch(_kernel: Any, _own: Any, found: str) -> str:
        return found

    monkeypatch.setattr(direct, "compile_kernel", compile_kernel)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(direct, "_launch", launch)
    graph = chain({}, {}, {}, {"tile": 64}, {}, {"tile": 64})
    found = direct.bind(plan(graph), [torch.zeros(100)])
    assert found is not None
    kernels = [0, 1, 1, 3, 1, 3]
    assert sorted(compiled) == [f"chain_kernel{at}" for at in sorted({*kernels})]
    assert list(map(str, found.launches)) == [f"of chain_kernel{k}" for k in kernels]


@pytest.mark.gpu
def test_they_are_right_on_a_gpu() -> None:
    graph = chain({}, {}, {}, {"tile": 64}, {}, {"tile": 64})

    def program(x: Any) -> Any:
        return right(graph, x)

    x = torch.linspace(-2, 2, 100, device="cuda")
    kernel = mirage.kernel(mugraph=graph)(program)
    for _ in range(2):
        torch.testing.assert_close(kernel(x), program(x))
    torch.testing.assert_close(TritonExecutable(graph)(x)[0], program(x))
