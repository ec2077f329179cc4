"""Emitted modules by themselves: names, interpreters, architectures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mirage_dsl.backends.triton.lowering.emit import emit, plan
from mirage_dsl.backends.triton.running.screen import compile_kernel
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.text.parser import parse
from tests.emitted import TARGETS, undefined
from tests.programs import mugraphs

SCRIPT = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("emitted", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
torch.manual_seed(0)
q, k, v = (torch.randn(s).half() for s in ((2, 16, 64), (2, 64, 128), (2, 128, 64)))
(found,) = module.run(q, k, v)
right = torch.softmax(q.double() @ k.double(), -1) @ v.double()
assert (found - right).abs().max() < 4e-3 * right.abs().max(), (found, right)
"""


def attention(**flags: int) -> KernelGraph:
    """Two kernels, of which the second may start early."""
    schedule = Schedule(**flags)
    return mugraphs.attention(
        2, 16, 128, tile_m=16, tile_n=32, splits=2, schedule=schedule
    )


def test_a_program_of_several_kernels_runs_in_tritons_interpreter(
    tmp_path: Path,
) -> None:
    file = tmp_path / "program.py"
    file.write_text(plan(attention(pdl=True)).source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(file)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("flags", [{"pdl": True}, {"pdl": True, "prefetch": 2}])
def test_kernels_start_early_only_where_the_target_can(flags: dict[str, int]) -> None:
    made = plan(attention(**flags))
    for arch in TARGETS:
        texts = [str(compile_kernel(made, k, arch).asm["ptx"]) for k in made.kernels]
        early = ["griddepcontrol" in text for text in texts]
        assert early == [arch >= 90] * len(texts)


def test_names_that_nobody_defines_are_found() -> None:
    source = "import triton\ndef run(x):\n    y = [z for z in x]\n    return tl.dott(y)"
    assert undefined(source) == {"tl", "tl.dott"}
    assert undefined(source, ["tl"]) == {"tl.dott"}
    assert undefined("def run(n):\n    return triton.cdiv(n, 2)") == {"triton"}


TRANSPOSED = """mirage 1

mugraph turned(x: f16[m, k] layout(1, 0), s: f32[], keep: bool[m]) -> f16[m, k]
  where m = 24, k = ? {
  y = block grid(m / 4, k / 32) {
    x_t: f16[m/grid, k/grid] = load x
    s_t: f32[] = load s
    v: f32[m/grid, k/grid] = mul x_t, s_t
    keep_t: bool[m/grid] = load keep
    w: f32[m/grid, k/grid] = where keep_t, v, 0
    store y: f16[m/grid, k/grid] = w
  }
  return y
}
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "graph", [attention(pdl=True), parse(TRANSPOSED)], ids=["attention", "turned"]
)
def test_a_program_runs_by_itself_and_refuses_other_shapes(
    graph: KernelGraph, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    graph.generate_triton_program(file)
    source = file.read_text(encoding="utf-8")
    assert source.startswith(emit(graph))
    with_interpreter = {**os.environ, "TRITON_INTERPRET": "1"}

    def python(
        *arguments: str, env: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    done = python(str(file), env=with_interpreter)
    assert done.returncode == 0, done.stderr
    assert "torch.float16" in done.stdout
    assert "nan" not in done.stdout
    wrong = "given[0] = given[0][:-1]\nchecked_run(*given)\n"
    file.write_text(
        source.split("if __name__")[0] + f"given = make_inputs('cpu')\n{wrong}"
    )
    done = python(str(file), env=with_interpreter)
    assert "ValueError: input 0: found" in done.stderr


def test_without_a_gpu_a_program_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    parse(TRANSPOSED).generate_triton_program(file)
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(file)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "TRITON_INTERPRET=1 runs this without" in done.stderr
