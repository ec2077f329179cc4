"""Interruptions, and the same result every time, of the search for several kernels."""

from __future__ import annotations

from typing import Any

import pytest

from mirage_dsl.ir.printer import to_text
from mirage_dsl.search.driver import search
from mirage_dsl.search.union import multi_kernel
from mirage_dsl.search.union import search as union_search
from tests.search.test_union import decode


def test_ctrl_c_keeps_what_was_sized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pressed while the proof runs, it gives the best so far, verified."""

    def pressed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(union_search, "prove", pressed)
    result = search(decode(), max_kernels=2, k=4)
    assert result.cut_short
    assert not result.complete
    assert len(result.best.mugraph.blocks) == 2
    assert result.best.certificate is not None
    assert result.best.certificate.ok


def test_the_same_list_on_any_number_of_threads() -> None:
    results = [search(decode(), max_kernels=3, k=4, threads=n) for n in (1, 2)]
    texts = [[to_text(c.mugraph) for c in r] for r in results]
    assert texts[0] == texts[1]
    assert len(texts[0]) > 1
    assert results[0].ledger == results[1].ledger
    assert results[0].proof == results[1].proof


def test_other_seeds_find_as_good_a_program() -> None:
    costs = [multi_kernel(decode(), max_kernels=2, seed=n).cost for n in range(3)]
    assert costs[1:] == pytest.approx(costs[:-1], rel=1e-6)


def test_the_proof_is_cut_by_work_and_not_by_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it has the same bound on a busy machine."""
    monkeypatch.setattr(union_search, "PROOF_EFFORT", 0.02)
    found = [multi_kernel(decode(), max_kernels=3) for _ in range(2)]
    assert not found[0].complete
    assert found[0].bound is not None
    assert found[0].bound == found[1].bound
    assert [str(g) for g in found[0].graphs] == [str(g) for g in found[1].graphs]
