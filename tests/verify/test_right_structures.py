"""No right candidate is refused: what floats find equal at three sizes is accepted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.infer import kernel_types
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
