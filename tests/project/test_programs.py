"""The programs of `benchmarks.programs`: right at small sizes, and what is printed."""

from __future__ import annotations

import pytest
import torch

import mirage_dsl as mirage
from benchmarks import programs
from benchmarks.programs import PROGRAMS, Row
from mirage_dsl.backends.triton.running.launch import TritonExecutable


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_found_is_right_in_the_interpreter(name: str) -> None:
    program = PROGRAMS[name]
    arguments = program.arguments("cpu", small=True)
    bound = mirage.kernel(program.function).bind(*arguments)
    bound.search(effort="quick")
    outputs = TritonExecutable(bound.mugraph, interpret=True)(*arguments)
    right = programs.exact(program, arguments)
    eager = programs.error(program.function(*arguments), right)
    assert programs.error(outputs, right) <= programs.allowed(program, eager)
    other = [o + 1 for o in outputs]
    assert programs.error(other, right) > programs.allowed(program, eager)


def test_the_table() -> None:
    plain = Row({"ours": 2.0, "eager": 4.0, "compile": 5.0}, 1, (0.0, 0.0), True, 1, 0)
    masked = Row({"ours": 1.0, "eager": 2.0, "compile": 1.0}, 1, (1, 0), False, 1, 2)
    rows = {"attention": plain, "causal attention": masked}
    assert plain.of_best == 0.5
    assert "WRONG" not in programs.line("a", plain)
    assert programs.line("a", masked).endswith("1 + 2 calls  WRONG")
    assert list(programs.summary(rows)) == [
        "2 programs, of best 0.71 (geometric mean)",
        "causal attention takes 0.50 of the time without the mask",
    ]


def test_without_a_gpu_or_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert programs.main(["--list", "--only", "norm"]) == 0
    assert "group norm and SiLU" in capsys.readouterr().out.splitlines()
    assert programs.main(["--only", "nothing of that name"]) == 2
    if not torch.cuda.is_available():
        assert programs.main([]) == 2
        assert "needs a CUDA device" in capsys.readouterr().err
