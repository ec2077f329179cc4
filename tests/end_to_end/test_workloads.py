"""Every workload goes down the same road: traced, searched, verified, emitted, run."""

from __future__ import annotations

import pytest

import mirage_dsl as mirage
from mirage_dsl.ir.check import check
from tests.end_to_end.searching import BY_NAME, NAMES, draw, relative_error, searched
from tests.programs import reference

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5}
"""Relative errors that rounding of storage and products explains at small sizes."""


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", NAMES)
def test_found_and_verified(name: str) -> None:
    bound = searched(name, small=False)
    for candidate in bound.search():
        assert not check(candidate.mugraph)
        assert candidate.certificate is not None
        assert candidate.certificate.equivalent
        assert mirage.parse(str(candidate.mugraph)) == candidate.mugraph


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES)
def test_runs_right_in_the_interpreter(name: str) -> None:
    import torch

    from mirage_dsl.backends.triton.running.launch import TritonExecutable

    workload, bound = BY_NAME[name], searched(name, small=True)
    assert bound.mugraph.blocks, "nothing of it became a fused kernel"
    run = TritonExecutable(bound.mugraph, interpret=True)
    arrays = draw(workload.small, seed=5)
    dtype = getattr(torch, workload.dtype)
    tensors = [torch.from_numpy(a).to(dtype) for a in arrays]
    (out,) = run(*tensors)
    exact = workload.function(reference, *(t.double().numpy() for t in tensors))
    assert relative_error(out, exact) < TOLERANCE[workload.dtype]


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES)
def test_compiles_for_hopper(name: str) -> None:
    from mirage_dsl.backends.triton.running.screen import compile_only

    for report in compile_only(searched(name, small=False).mugraph, target="sm_90"):
        assert report.cubin_bytes > 0
        assert report.rejection() is None, report
