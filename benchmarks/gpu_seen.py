"""Everything that needs a GPU, at one commit: `make gpu`.

    python -m benchmarks.gpu_seen --commit $(git rev-parse --short HEAD)

Runs the tests that need a GPU, those of the backends (which run on it too where there
is one), every example, and a short sample of the benchmark.  Tests of the backends take
what estimates choose, so that no clock decides what they run; those that need a GPU
tune.  Examples and tests of the backends run side by side.  The commit, what ran it and
how each step went are written to `benchmarks/results/gpu_seen.txt`: code that runs on a
GPU is done when a GPU ran that commit, and all of it was right.

Exit code 0: all is right; 1: something is wrong, and which step is written down; 2:
there is no GPU, or what lies here is no commit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from mirage_dsl.core.settings import DETERMINISTIC

ROOT = Path(__file__).resolve().parents[1]
SEEN = ROOT / "benchmarks" / "results" / "gpu_seen.txt"
SAMPLE = ("rmsnorm_linear", "gqa", "gated_mlp")
"""Workloads of the short sample: a norm, attention, an activation."""
BY_ESTIMATE = "tests of the backends"
TOGETHER = 3
"""Steps that run side by side, where there are processes for them."""
MOST_SECONDS = 300
"""A step that takes longer is stopped: it hangs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, and write down what was seen."""
    import torch

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_seen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--commit", help="what lies here; git is asked unless given")
    parser.add_argument("--jobs", type=int, default=4, help="test processes (4)")
    given = parser.parse_args(arguments)
    commit = given.commit or _commit()
    if commit is None:
        print("the tree differs from its commit, or is no checkout: commit first")
        return 2
    if not torch.cuda.is_available():
        print("this needs a GPU, and PyTorch sees none")
        return 2
    lines = [commit, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")]
    versions = ", ".join(f"{p} {version(p)}" for p in ("torch", "triton", "numba"))
    lines.append(f"{torch.cuda.get_device_name()}, {versions}")
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="mirage_dsl-seen-") as scratch:
        for steps in _steps(given.jobs, Path(scratch)):
            with ThreadPoolExecutor(TOGETHER if given.jobs > TOGETHER else 1) as pool:
                for code, line in pool.map(_run, steps.items()):
                    lines.append(line)
                    wrong += code != 0
    lines.append(f"{wrong} steps went wrong" if wrong else "all is right")
    SEEN.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(SEEN.read_text(encoding="utf-8"))
    return bool(wrong)


def _run(step: tuple[str, list[str]]) -> tuple[int, str]:
    """Exit code of a step, and a line that says how it went."""
    name, command = step
    chooses = {DETERMINISTIC.name: "1"} if name == BY_ESTIMATE else {}
    # Examples import the package whether it is installed or not.
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **chooses},
            text=True,
            stdout=subprocess.PIPE,
            check=False,
            timeout=MOST_SECONDS,
        )
        code, said = done.returncode, done.stdout
    except subprocess.TimeoutExpired as stopped:
        code, said = 1, (stopped.stdout or b"").decode()
        said += f"\nnot done after {MOST_SECONDS} s"
    took = time.monotonic() - began
    print(
        f"-- {name}: {' '.join(command)}\n{said[-40_000 if code else -6000 :]}",
        flush=True,
    )
    last = said.strip().splitlines()[-1:] or ["no output"]
    return code, f"{name}: exit code {code}, {took:.0f} s: {last[0]}"


def _commit() -> str | None:
    """The short hash of the checkout; None where files differ from it."""

    def git(*command: str) -> str | None:
        done = subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return None if done.returncode else done.stdout.strip()

    return git("rev-parse", "--short", "HEAD") if git("status", "-s") == "" else None


def _steps(jobs: int, scratch: Path) -> Iterator[dict[str, list[str]]]:
    """What is run, by name, as arguments of Python; those of a group side by side.

    What tunes or times has the GPU for itself.
    """
    # A plugin that warns of other processes would make errors of its warnings.
    tests = ["-m", "pytest", "-q", "-p", "no:benchmark"]
    tests += ["-n", str(jobs), "--dist", "loadscope", "--thorough"]
    yield {"tests that need a GPU": [*tests, "-m", "gpu", "tests"]}
    sample = ["-m", "benchmarks.gpu", "--workloads", *SAMPLE, "--batches", "1"]
    sample += ["--peers", "eager", "--json", str(scratch / "sample.json")]
    yield {"sample of the benchmark": sample}
    examples = sorted((ROOT / "examples").glob("*.py"))
    backends = [*tests, "-m", "not gpu", "tests/backends", "tests/frontend"]
    yield {
        BY_ESTIMATE: backends,
        **{f"example {file.name}": [str(file)] for file in examples},
    }


if __name__ == "__main__":
    sys.exit(main())
