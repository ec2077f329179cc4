"""Operators of Helion's examples and of Liger, in plain PyTorch, as kernels."""

from __future__ import annotations

import pytest
import torch

from benchmarks import references
from benchmarks.reference_cases import Reference
from benchmarks.references import PROJECTS, line_of, main, summary, tried

SEARCHED = ("rms norm", "matmul relu", "segment reduction", "jagged softmax")
"""Of Helion's, those that are searched here; each takes a second or two."""
REFUSED = {"hyper connections": "along an axis that is split"}
"""Operators that are no kernel yet, and what is said of them."""
ALL = [(project, one) for project, found in PROJECTS.items() for one in found]


@pytest.mark.sample(30)
@pytest.mark.parametrize(("project", "reference"), ALL, ids=str)
def test_an_operator_is_right_by_library_kernels(
    project: str, reference: Reference
) -> None:
    row = tried(project, reference, "none")
    reason = REFUSED.get(reference.name)
    if reason is not None and reason in row.reason:
        pytest.xfail(row.reason)
    assert row.right, line_of(row)
    assert not row.reason, line_of(row)
    assert row.operators > 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SEARCHED)
def test_what_is_found_at_reduced_sizes_is_right(name: str) -> None:
    (reference,) = (r for r in PROJECTS["helion"] if r.name == name)
    check = references.checked(reference, "quick", 10.0)
    assert check.right, check


def test_a_search_at_the_sizes_of_an_example() -> None:
    row = tried("helion", Reference("add", torch.add, "2*f32 m", "m=4096", "m=4"))
    assert row.search is not None, line_of(row)
    assert row.search.launches == row.search.eager == 1


def test_float64_is_eager_without_the_casts() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        made = x.float() @ w.to(torch.float32)
        return (made + torch.ones(3, device=x.device)).half()

    x, w = torch.randn(4, 5).half(), torch.randn(5, 3).half()
    (found,) = references.exactly(function, (x, w))
    assert found.dtype == torch.float64
    assert torch.equal(found, x.double() @ w.double() + 1)


def test_a_wrong_result_is_told() -> None:
    calls: list[int] = []

    def unsteady(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * (2 if len(calls) < 3 else 3)

    row = tried(
        "helion", Reference("unsteady", unsteady, "f32 m", "m=8", "m=4"), "none"
    )
    assert not row.right
    assert "WRONG" in line_of(row)
    assert list(summary([row])) == ["helion: 0 of 1 are right"]


def test_an_operator_that_does_not_trace_says_why() -> None:
    def asking(x: torch.Tensor) -> torch.Tensor:
        return x * float(x.sum())

    row = tried("liger", Reference("asking", asking, "f32 m", "m=8", "m=4"), "none")
    assert not row.right
    assert "not known while the function is traced" in row.reason


def test_arguments_are_those_that_the_text_says() -> None:
    text = "2*f16 m,k/2; ids 7,m; offsets m,2"
    one = Reference("", torch.add, text, "m=6 k=4", "m=3 k=2")
    x, y, ids, offsets = one.arguments(small=False)
    assert x.shape == y.shape == (6, 2)
    assert x.dtype == torch.float16
    assert ids.shape == (6,)
    assert int(ids.max()) < 7
    assert offsets == (0, 2, 6)
    with torch.device("meta"):
        assert one.arguments(small=True)[0].device.type == "meta"


def test_no_operator_of_that_name() -> None:
    assert main(["--only", "no such operator"]) == 2
