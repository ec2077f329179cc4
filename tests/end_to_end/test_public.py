"""What a user's process does: it starts from the cache, in threads, without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.settings import (
    ASSERT_CACHE_HIT,
    CACHE_DIR,
    DISALLOW_SEARCH,
    INTERPRET,
)
from mirage_dsl.search import driver

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys
import torch
import mirage_dsl as mirage

@mirage.kernel
def rms_linear(x, w):
    return mirage.rms_norm(x) @ w

generator = torch.Generator().manual_seed(1)
x = torch.randn(5, 48, generator=generator).half()
w = torch.randn(48, 33, generator=generator).half()
torch.save(rms_linear(x, w), sys.argv[1])
"""


def run_script(directory: Path, output: Path, **variables: str) -> None:
    """Run the script as a user would, in a directory of its own."""
    file = directory / "script.py"
    file.write_text(SCRIPT, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        INTERPRET.name: "1",
        **variables,
    }
    done = subprocess.run(
        [sys.executable, file.name, str(output)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


@pytest.mark.sample(0)
def test_a_second_process_starts_from_the_cache(tmp_path: Path) -> None:
    directory = tmp_path / "user"
    directory.mkdir()
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    cache = {CACHE_DIR.name: str(tmp_path / "cache")}
    run_script(directory, first, **cache)
    only_cached = {ASSERT_CACHE_HIT.name: "1", DISALLOW_SEARCH.name: "1"}
    run_script(directory, second, **cache, **only_cached)
    found = torch.load(first)
    assert torch.equal(torch.load(second), found)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 48, generator=generator).half().double()
    w = torch.randn(48, 33, generator=generator).half().double()
    exact = torch.rms_norm(x, (48,)) @ w
    assert (found.double() - exact).norm() < 4e-3 * exact.norm()
    assert [f.name for f in directory.iterdir()] == ["script.py"]


def test_threads_share_a_kernel(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both get right results, at sizes that neither has met before."""
    searches: list[Any] = []
    search = driver.search

    def counted(*args: Any, **kwargs: Any) -> Any:
        searches.append(args)
        return search(*args, **kwargs)

    monkeypatch.setattr(driver, "search", counted)

    @mirage.kernel
    def gated(x: Any, w: Any, v: Any) -> Any:
        return mirage.silu(x @ w) * (x @ v)

    random = np.random.default_rng(3)
    shapes = ((4, 24), (24, 17), (24, 17))
    tensors = [torch.from_numpy(random.normal(size=s)).half() for s in shapes]
    found: dict[int, torch.Tensor] = {}
    start = threading.Barrier(2)

    def call(number: int) -> None:
        start.wait()
        for _ in range(3):
            found[number] = gated(*tensors)

    with INTERPRET.scope(value=True):
        threads = [threading.Thread(target=call, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(found) == [0, 1]
    x, w, v = (t.double() for t in tensors)
    exact = torch.nn.functional.silu(x @ w) * (x @ v)
    for result in found.values():
        assert (result.double() - exact).norm() < 4e-3 * exact.norm()
    assert len(searches) == 1, "nothing is searched twice"
    assert any(fresh_cache.rglob("*"))
