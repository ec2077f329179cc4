"""Compiled code: little of it, compiled once, told about, loaded only when needed."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_dsl.core import compiled
from mirage_dsl.core.settings import KEY_FILE
from mirage_dsl.store.superoptimize import prepare_search
from mirage_dsl.verify.fields import add, matmul, multiply, subtract

ROOT = Path(__file__).parents[2]

MOST_SECONDS = 25.0
"""Processor time of a first search: several times what a quiet machine needs."""

TOLD = "compiling the search (once)"
HEAVY = ("torch", "triton", "numba", "llvmlite", "ortools")

# The modules are asked for after the search, so that nothing loads them before.
SCRIPT = f"""
import json, sys, time
import mirage_dsl as mirage
from mirage_dsl.store.superoptimize import superoptimize

options = json.loads(sys.argv[1])
stages, began = set(), time.process_time()

@mirage.kernel
def rms_linear(x, w):
    return mirage.rms_norm(x) @ w

bound = rms_linear.bind(mirage.spec((16, 512)), mirage.spec((512, 256)))
result = bound.search(progress=lambda stage, *_: stages.add(stage), **options)
assert result.best.certificate.ok
seconds = time.process_time() - began
heavy = [name for name in {HEAVY!r} if name in sys.modules]
types = {{}}
if "numba" in heavy:
    from importlib import import_module
    from mirage_dsl.core import compiled
    for name in compiled.MODULES:
        module = import_module("mirage_dsl." + name.replace("/", "."))
        for function in vars(module).values():
            if hasattr(function, "overloads") and function.overloads:
                signatures = list(map(str, function.overloads))
                types[f"{{name}}.{{function.__name__}}"] = signatures
print(json.dumps([seconds, sorted(stages), heavy, types]))
"""


def _process(directory: Path, **options: Any) -> list[Any]:
    """Search in a process that keeps all that it compiles in the cache directory."""
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    env |= {"MIRAGE_DSL_CACHE_DIR": str(directory), "PYTHONPATH": str(ROOT)}
    script = directory / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, str(script), json.dumps(options)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@pytest.mark.sample(0)
def test_what_is_compiled_is_little_and_is_kept(tmp_path: Path) -> None:
    first, stages, _, types = _process(tmp_path)
    assert TOLD in stages
    # Numba compiles anew for literals, for arrays that are views, and so on.
    assert len(types) > 30
    assert {name: found for name, found in types.items() if len(found) > 1} == {}
    assert first < MOST_SECONDS
    assert list(tmp_path.glob("numba/code-*/*/*.nbc"))

    again, stages, heavy, types = _process(tmp_path, use_cache=False)
    assert TOLD not in stages
    assert "torch" not in heavy
    assert "triton" not in heavy
    # Functions that only compiled code calls are not even typed again.
    assert 0 < len(types) < 12
    assert again < first / 2

    known, _, heavy, _ = _process(tmp_path)
    assert heavy == []
    assert known < again


def test_compiling_is_told_once_for_each_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    stages: list[str] = []
    for _ in range(2):
        prepare_search("1.0 abc", lambda stage, *_: stages.append(stage))
    assert stages == [TOLD]
    assert not caplog.records
    for _ in range(2):
        prepare_search("1.1 abc", None)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    # Two that are used by turns leave each other's mark.
    prepare_search("1.0 abc", lambda stage, *_: stages.append(stage))
    assert stages == [TOLD]


def _doubled(x):
    return 2 * x


class _Payload:
    """Unpickled, it makes a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.directory),)


def _kept_files(directory: Path) -> list[Path]:
    return [f for f in directory.rglob("*") if f.suffix in (".nbi", ".nbc")]


def test_only_code_that_this_machine_compiled_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_DIRECTORY", tmp_path)

    def loads() -> int:
        """How often compiled code is loaded, for a call that is right."""
        function = compiled.entry(_doubled)
        assert function(21) == 42
        return sum(function.stats.cache_hits.values())

    assert loads() == 0
    files = _kept_files(tmp_path)
    assert len(files) == 2
    assert loads() == 1
    before = {file: file.read_bytes() for file in files}
    ran = tmp_path / "ran"
    payload = pickle.dumps(_Payload(ran))
    for change in (
        lambda data: data[:-20],
        lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
        lambda _: payload,
        lambda data: data[:32] + payload,
        lambda _: b"",
    ):
        for file in files:
            file.write_bytes(change(before[file]))
            assert loads() == 0
            assert loads() == 1  # It was written anew.
    with KEY_FILE.scope(tmp_path / "another" / "key"):
        assert loads() == 0
    assert not ran.exists()


def test_code_that_cannot_be_kept_is_compiled_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nowhere(_: object) -> None:
        raise RuntimeError("no locator available")

    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_Kept", nowhere)
        patch.setattr(compiled, "_ROOT", tmp_path / "nowhere")
        for _ in range(2):
            assert compiled.entry(_doubled)(21) == 42
    full = tmp_path / "full"
    monkeypatch.setattr(compiled, "_DIRECTORY", full)
    monkeypatch.setattr(compiled, "_ROOT", full)

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(compiled, "write_whole", no_room)
    for _ in range(2):
        assert compiled.entry(_doubled)(21) == 42
    assert caplog.text.count("cannot be used") == len(caplog.records) == 2


@pytest.mark.parametrize(
    ("m", "k", "n"), [(2, 3, 5), (20, 7, 3), (1, 4, 1), (3, 33000, 2), (1, 70000, 17)]
)
def test_modular_arithmetic(m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(m + k + n)
    p = np.array([2147483629, 2147483587])
    a = rng.integers(0, p[:, None, None], (2, m, k))
    b = rng.integers(0, p[:, None, None], (2, k, n))
    exact = a.astype(object) @ b.astype(object) % p[:, None, None]
    np.testing.assert_array_equal(matmul(a, b, p), exact.astype(np.int64))
    x, y, q = a[:, 0, :4], b[:, :4, 0][:, : min(k, 4)], p[:, None]
    for function, wanted in (
        (add, x.astype(object) + y),
        (subtract, x.astype(object) - y),
        (multiply, x.astype(object) * y),
    ):
        expected = (wanted % q).astype(np.int64)
        np.testing.assert_array_equal(function(x, y, q), expected)
