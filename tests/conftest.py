"""What all tests share: their cache, the markers `gpu` and `sample`, golden files."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings

from mirage_dsl.core.settings import CACHE_DIR, KEY_FILE
from tests.emitted import watch

HERE = Path(__file__).parent
OWN_CACHE = pytest.StashKey[str]()

for profile, examples in (("sample", 60), ("thorough", 300)):
    hypothesis_settings.register_profile(
        profile, deadline=None, derandomize=True, database=None, max_examples=examples
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the golden files instead of comparing with them",
    )
    parser.addoption(
        "--thorough",
        action="store_true",
        help="run all cases of the tests marked `sample`, as `make thorough` does",
    )
    parser.addoption(
        "--emitted",
        metavar="DIR",
        type=Path,
        help="keep every emitted module there, for `python -m tests.emitted DIR`",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep the user's cache out of the tests; compiled search code stays warm.

    All test processes have one cache of their own: what one has searched with it, the
    others find there.
    """
    kept = Path(config.rootpath) / ".pytest_cache"
    os.environ.setdefault("NUMBA_CACHE_DIR", str(kept / "numba"))
    os.environ.setdefault(KEY_FILE.name, str(kept / "key"))
    thorough = config.getoption("--thorough")
    hypothesis_settings.load_profile("thorough" if thorough else "sample")
    # In the order in which they are collected; else by their numbers of tests.
    config.option.loadscopereorder = False
    if not _is_worker(config):
        made = tempfile.mkdtemp(prefix="mirage_dsl-tests-")
        config.stash[OWN_CACHE] = os.environ[CACHE_DIR.name] = made
    # Looking through all that is imported and collected takes a tenth of the time.
    gc.set_threshold(20_000, 20, 50)
    keep = config.getoption("--emitted")
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    watch(keep)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    if OWN_CACHE in config.stash:
        shutil.rmtree(config.stash[OWN_CACHE], ignore_errors=True)


def _is_worker(config: pytest.Config) -> bool:
    """Whether this is a process that another one started to share the tests."""
    return hasattr(config, "workerinput")


FIRST = (
    *("verify/test_positions", "store/test_superoptimizer", "search/test_budget"),
    *("search/test_multi_kernel", "end_to_end/test_workloads"),
    *("verify/test_shifts", "end_to_end/test_placing", "end_to_end/test_masks"),
    *("search/test_checkpoint", "end_to_end/test_narrow_floats"),
    *("end_to_end/test_pools", "end_to_end/test_functions"),
    *("search/test_speed", "store/test_workers", "end_to_end/test_builder"),
    *("backends/test_standalone", "search/test_multi_kernel_control"),
    *("project/test_examples", "end_to_end/test_weights_of_bytes"),
    *("tune/test_tune", "search/test_cancellation"),
    *("search/test_multi_kernel_blocks", "end_to_end/test_shared_kernels"),
    *("fuzz/test_fuzz", "freeze/test_freeze", "end_to_end/test_random_programs"),
    *("project/test_walks", "project/test_cost_model", "core/test_hardware"),
    *("store/test_models", "project/test_gpu_benchmark"),
)
"""Modules that take long for their number of tests."""


def _in_order_of_length(items: list[pytest.Item]) -> list[pytest.Item]:
    """Long modules first, or one test process waits for another at the end."""
    count = Counter(item.path for item in items)
    early = {HERE / f"{name}.py" for name in FIRST}
    return sorted(items, key=lambda i: (i.path not in early, -count[i.path], i.path))


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Mark the users of `golden`; skip `gpu` tests where there is no GPU.

    Of tests marked `sample` some of the cases are left, unless all are asked for, or
    tests are named.
    """
    items[:] = _in_order_of_length(items)
    named = config.option.keyword or any("::" in arg for arg in config.args)
    if not named and not config.getoption("--thorough"):
        left = set(_sampled(items))
        config.hook.pytest_deselected(items=[i for i in items if i not in left])
        items[:] = [i for i in items if i in left]
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _has_gpu():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    for item in items:
        if "golden" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.golden)


def _sampled(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """All tests without the marker; of each other one as many cases as it says."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample") is None:
            yield item
        else:
            cases[item.nodeid.partition("[")[0]].append(item)
    for some in cases.values():
        marker = some[0].get_closest_marker("sample")
        assert marker is not None
        count = min(marker.args[0], len(some))
        yield from (some[at * len(some) // count] for at in range(count))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def fresh_cache(tmp_path: Path) -> Iterator[Path]:
    """An empty cache directory for one test."""
    directory = tmp_path / "cache"
    with CACHE_DIR.scope(directory):
        yield directory


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares with `golden/NAME` beside the test file."""

    def compare(name: str, text: str) -> None:
        file = request.path.parent / "golden" / name
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
            return
        assert file.exists(), f"{file} is missing: run `make golden`"
        assert text == file.read_text(encoding="utf-8"), (
            f"{file.name} differs: if the new text is right, run `make golden`"
        )

    return compare
