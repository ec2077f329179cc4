"""What the assembler beside Triton gets wrong is left to a later one, nothing else."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from mirage_dsl.backends.triton.running import launch, screen
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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that the later assembler is asked for."""
    names: list[str] = []
    real = screen.later_assembler

    @contextmanager
    def noted(name: str) -> Generator[None]:
        names.append(name)
        with real(name):
            yield

    monkeypatch.setattr(screen, "later_assembler", noted)
    monkeypatch.setattr(launch, "later_assembler", noted)
    return names


def test_a_kernel_that_ptxas_gets_wrong_is_left_to_a_later_one(
    monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    monkeypatch.setattr(screen, "ptxas_version", lambda _: (12, 8))
    compile_only(_graph(**RIGHT))
    compile_only(mugraphs.rmsnorm_linear(16, 4096, 6144))
    assert not asked
    compile_only(_graph(**WRONG))
    assert asked == ["two_dots_kernel0"]
    monkeypatch.setattr(screen, "ptxas_version", lambda _: (12, 9))
    compile_only(_graph(**WRONG))
    assert len(asked) == 1


def test_triton_is_asked_for_the_later_one() -> None:
    from triton import knobs
    from triton.backends.nvidia.compiler import get_ptxas, get_ptxas_version

    before = get_ptxas(90), get_ptxas_version(90)
    with screen.later_assembler("kernel"):
        assert get_ptxas(90).path == knobs.nvidia.ptxas_blackwell.path
        assert get_ptxas(90).version in get_ptxas_version(90)
        assert screen.ptxas_version(90) >= screen.RIGHT_DESCRIPTORS
    assert (get_ptxas(90), get_ptxas_version(90)) == before


def test_without_a_later_one_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "_version", lambda _: (12, 8))
    with pytest.raises(CompileError, match=r"two_dots_kernel0 .* ptxas before 12\.9"):
        compile_only(_graph(**WRONG))


@pytest.mark.parametrize("tiles", [RIGHT, WRONG], ids=["right", "wrong"])
def test_triton_launches_it_so_too(
    tiles: dict[str, int], monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    import torch

    monkeypatch.setattr(screen, "ptxas_version", lambda _: (12, 8))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(launch, "prepared_run", lambda *_: list)
    executable = TritonExecutable(_graph(**tiles))
    run = executable._by_triton(executable._plan(Variant()))
    asked.clear()
    assert run() == []
    assert asked == (["two_dots_kernel0"] if tiles is WRONG else [])


def test_the_version_is_that_of_the_tool() -> None:
    assert (12, 0) <= screen.ptxas_version(90) < (100,)


@pytest.mark.gpu
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("n", [32, 64])
@pytest.mark.parametrize("h", [32, 64, 128])
def test_it_is_right_at_all_sizes(h: int, n: int, stages: int) -> None:
    import torch

    graph = _graph(h=h, n=n, stages=stages)
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        0.2 * torch.randn(shape, generator=generator, device="cuda")
        for shape in ((64, 1, 128), (64, 4096, 128), (64, 4096, 128))
    )
    q, k, v = q.half(), k.half(), v.half()
    part, _ = TritonExecutable(graph)(q, k, v)
    weights = (q.double() @ k.double().transpose(1, 2)).exp()
    right = weights @ v.double()
    found = part.double().sum(0)[:, None]
    assert (found - right).norm() < 2e-3 * right.norm()
