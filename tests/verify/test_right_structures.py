"""No right candidate is refused: what floats find equal at three sizes is accepted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.definition import Formats, Kind
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.rewrite.casts import insert_casts
from mirage_dsl.search.structures import structures
from mirage_dsl.verify.sizes import shrink
from mirage_dsl.verify.verifier import verify
from tests.search.programs import PROGRAMS
from tests.verify.cases import draws


def _floats_agree(candidate: KernelGraph, program: KernelGraph) -> bool:
    for seed, ragged in ((0, False), (1, True), (2, False)):
        small = shrink(candidate, program, ragged=ragged, seed=seed)
        for inputs in draws(small, seed):
            expected = evaluate_numpy(small.program, *inputs)
            found = evaluate_numpy(small.candidate, *inputs)
            if not all(map(np.allclose, expected, found)):
                return False
    return True


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_structures_of_the_search_are_accepted(name: str) -> None:
    program = PROGRAMS[name]()
    types = kernel_types(program)
    found = structures(program, H100).structures
    for seed, item in enumerate(found[:: max(1, len(found) // 12)]):
        candidate = replace(program, nodes=(insert_casts(item.block, types),))
        assert _floats_agree(candidate, program)
        made = verify(candidate, program, seed=seed, stability=False)
        assert made.equivalent, made.reason


FUNCTIONS = [
    row.name
    for row in OPERATORS.values()
    if row.kind is Kind.ELEMENTWISE
    and row.arity == 1
    and row.gives is None
    and row.formats is Formats.FLOATS
]
"""What is summed up without a mask where it makes zeros of the zeros outside."""

SUM = """mirage 1
mugraph f(x: f32[m, k]) -> f32[m] where m = 16, k = 37 {{
  y: f32[m, k] = {op} x
  s: f32[m] = sum y over(k)
  return s
}}
"""
SUM_IN_A_LOOP = """mirage 1
mugraph f(x: f32[m, k]) -> f32[m] where m = 16, k = 37 {{
  s = block grid(m / 8) loop(k / 16) {{
    x_t: f32[m/grid, k/loop] = load x
    y: f32[m/grid, k/loop] = {op} x_t
    v: f32[m/grid] = sum y over(k)
    w: f32[m/grid] = accumulate v
    store s: f32[m/grid] = w
  }}
  return s
}}
"""


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_of_ragged_rows_are_summed(op: str) -> None:
    candidate, program = (parse(t.format(op=op)) for t in (SUM_IN_A_LOOP, SUM))
    made = verify(candidate, program, stability=False)
    assert made.equivalent, made.reason
