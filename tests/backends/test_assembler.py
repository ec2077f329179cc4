"""What the assembler beside Triton gets wrong is refused, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from mirage_dsl.backends.triton.running import screen
from mirage_dsl.backends.triton.running.launch import TritonExecutable, Variant
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.core.errors import CompileError
from mirage_dsl.ir.text.parser import parse
from tests.programs import mugraphs

TWO_DOTS = """mirage 1

mugraph two_dots(q: f16[m, 1, n], k: f16[m, h, n], v: f16[m, h, d])
    -> f32[h#, m, d], f32[h#, m]
    where m = 64, n = 128, h = 4096, d = 128 {{
  part, count = block grid(m / 1, h / {h}) loop(n / {n}) {options} {{
    v_t: f16[m/grid, h/grid, d] = load v
    q_t: f16[m/grid, 1, n/loop] = load q
    k_t: f16[m/grid, h/grid, n/loop] = load k
    scores: f32[m/grid, h/grid] = matmul k_t, q_t over(n)
    all: f32[m/grid, h/grid] = accumulate scores
    weights: f32[m/grid, h/grid] = exp all
    narrow: f16[m/grid, h/grid] = cast weights dtype(f16)
    values: f32[m/grid, d] = matmul v_t, narrow over(h)
    sums: f32[m/grid] = sum weights over(h)
    store part: f32[h#/grid, m/grid, d] = values
    store count: f32[h#/grid, m/grid] = sums
  }}
  return part, count
}}
"""
"""The first kernel of a decode attention: what both dots read may lie in one place."""

WRONG = {"h": 64, "n": 64, "stages": 2}
RIGHT = {"h": 32, "n": 64, "stages": 3}


def _graph(**tiles: int) -> Any:
    options = f"num_stages({tiles['stages']}) swap_operands(true)"
    return parse(TWO_DOTS.format(**tiles, options=options))


def test_a_kernel_that_ptxas_gets_wrong_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(screen, "ptxas_version", lambda: (12, 8))
    with pytest.raises(CompileError, match=r"two_dots_kernel0 .* ptxas before 12\.9"):
        compile_only(_graph(**WRONG))
    compile_only(_graph(**RIGHT))
    compile_only(mugraphs.rmsnorm_linear(16, 4096, 6144))
    monkeypatch.setattr(screen, "ptxas_version", lambda: (12, 9))
    compile_only(_graph(**WRONG))


def test_triton_does_not_launch_it_either(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(screen, "ptxas_version", lambda: (12, 8))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    executable = TritonExecutable(_graph(**WRONG))
    with pytest.raises(CompileError, match=r"ptxas before 12\.9"):
        executable._by_triton(executable._plan(Variant()))


def test_the_version_is_that_of_the_tool() -> None:
    assert (12, 0) <= screen.ptxas_version() < (100,)


@pytest.mark.gpu
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("n", [32, 64])
@pytest.mark.parametrize("h", [32, 64, 128])
def test_what_is_not_refused_is_right(h: int, n: int, stages: int) -> None:
    import torch

    graph = _graph(h=h, n=n, stages=stages)
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        0.2 * torch.randn(shape, generator=generator, device="cuda")
        for shape in ((64, 1, 128), (64, 4096, 128), (64, 4096, 128))
    )
    q, k, v = q.half(), k.half(), v.half()
    try:
        part, _ = TritonExecutable(graph)(q, k, v)
    except CompileError:
        assert screen.ptxas_version() < screen.RIGHT_DESCRIPTORS
        return
    weights = (q.double() @ k.double().transpose(1, 2)).exp()
    right = weights @ v.double()
    found = part.double().sum(0)[:, None]
    assert (found - right).norm() < 2e-3 * right.norm()
