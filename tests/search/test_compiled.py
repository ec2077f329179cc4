"""The compiled half of the search: loaded when needed, compiled once, told about."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from mirage_dsl.search import compiled
from mirage_dsl.search.driver import search
from tests.search import programs

ROOT = Path(__file__).parents[2]


def test_what_serves_the_cache_loads_no_compiler() -> None:
    code = (
        "import sys, mirage_dsl.superoptimizer, mirage_dsl.search.driver\n"
        "print('numba' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("known", [True, False])
def test_compiling_is_told(
    known: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "is_compiled", lambda: known)
    stages: list[str] = []
    with caplog.at_level(logging.INFO, "mirage_dsl.search"):
        search(programs.gated(), k=1, progress=lambda stage, *_: stages.append(stage))
    assert ("compiling the search (once)" in stages) != known
    assert ("compiling" in caplog.text) != known


def test_a_search_leaves_its_compiled_code() -> None:
    search(programs.gated(), k=1, verify=False)
    assert compiled.is_compiled()
