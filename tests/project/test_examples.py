"""Every example runs, and so does the first one of the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.sample(2)
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.name)
def test_an_example_runs(file: Path, tmp_path: Path) -> None:
    assert _run("-W", "error", str(file), cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_readmes_example_runs(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    (tmp_path / "example.py").write_text(code)
    assert "@triton.jit" in _run("example.py", cwd=tmp_path)


def test_the_readmes_links_lead_somewhere() -> None:
    for file in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", file.read_text(encoding="utf-8")):
            assert (file.parent / link).exists(), f"{file.name}: {link}"
