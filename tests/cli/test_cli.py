"""The command line: answers, exit codes, JSON, errors without tracebacks."""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from mirage_dsl.cli.app import app, progress_bar
from mirage_dsl.cli.graphs import format_text, read_text
from mirage_dsl.core.errors import CacheError, ParseError
from mirage_dsl.core.hardware import H200
from mirage_dsl.core.settings import (
    ASSERT_CACHE_HIT,
    CACHE_DIR,
    LOGS,
    SETTINGS,
    THREADS,
)
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.store.superoptimize import superoptimize
from mirage_dsl.tile.text import parse_all as parse_tiles
from mirage_dsl.tile.text import to_text

COMMANDS = sorted(app.commands or app.list_commands(None))  # type: ignore[arg-type]

MODEL = """
import mirage_dsl as mirage


@mirage.kernel
def gated(x, w):
    return mirage.silu(x @ w)


def wrong(x, w):
    return x @ w + x
"""

SMALL = """// A product.
mirage 1

mugraph product(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 4, k = 32, n = 32 {
  y = block grid(n / 16) loop(k / 16) {  // two blocks
    x_tile: f16[m, k/loop] = load x
    w_tile: f16[k/loop, n/grid] = load w
    // summed over the loop
    part: f32[m, n/grid] = matmul x_tile, w_tile over(k)
    total: f32[m, n/grid] = accumulate part
    store y: f16[m, n/grid] = total
  }
  return y
}
"""

PROGRAM = """
mirage 1

mugraph product(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 4, k = 32, n = 32 {
  y = matmul x, w over(k)
  return y
}
"""


@pytest.fixture(autouse=True)
def directory(
    tmp_path: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    assert fresh_cache == CACHE_DIR.get()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "small.mu").write_text(SMALL)
    (tmp_path / "other.mu").write_text(SMALL.replace("matmul x_tile", "matmul x_tile"))
    twice = SMALL.replace("= total", "= twice").replace(
        "    store", "    twice: f32[m, n/grid] = add total, total\n    store"
    )
    (tmp_path / "twice.mu").write_text(twice)
    (tmp_path / "program.mu").write_text(PROGRAM)
    (tmp_path / "binary.mu").write_bytes(b"mirage 1\xff")
    (tmp_path / "typo.mu").write_text(SMALL.replace("= load w", "= lod w"))
    return tmp_path


def _run(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, result.output
    if result.exception is not None:
        assert isinstance(result.exception, SystemExit), result.exception
    return result


def _json(*args: str, code: int = 0) -> Any:
    return json.loads(_run(*args, "--json", code=code).stdout)


@pytest.mark.parametrize("command", [[], *([c] for c in COMMANDS)], ids=str)
def test_help_teaches(command: list[str]) -> None:
    text = _run(*command, "--help").output
    assert "Usage: " in text
    assert "mirage-dsl " in text or command in (["cache"], ["env"], ["doctor"])


def test_every_command_has_json() -> None:
    for name in COMMANDS:
        command = app.get_command(None, name)  # type: ignore[arg-type]
        leaves = getattr(command, "commands", {name: command})
        for leaf in leaves.values():
            assert "--json" in {o for p in leaf.params for o in p.opts}, name


def test_show_prints_the_standard_form_and_the_source() -> None:
    text = _run("show", "small.mu").output
    assert text.startswith("mirage 1\n")
    assert "@triton.jit" in _run("show", "small.mu", "--triton").output
    tiles = _run("show", "small.mu", "--tiles").output
    assert to_text(*parse_tiles(tiles)) == tiles
    assert _json("show", "small.mu", "--tiles")["tiles"] == tiles
    both = _run("show", "small.mu", "--tiles", "--triton", code=2).output
    assert "expected one of them" in both
    assert _json("show", "small.mu", "--size", "m=9")["extents"]["m"] == 9


def test_rewrites_are_listed_tried_and_applied() -> None:
    assert "split-loop" in _run("rewrite").output
    changes = _json("rewrite", "small.mu")["changes"]
    assert changes == ["split-loop", "without-loop"]
    text = _run("rewrite", "small.mu", "--by", "split-loop").output
    assert len(parse(text).blocks) == 2
    both = ("--by", "split-loop", "--by", "launch-early")
    assert "pdl(true)" in _json("rewrite", "small.mu", *both)["text"]
    same = _run("rewrite", "small.mu", "--by", "sink-views", code=1).output
    assert parse(same) == parse(_run("show", "small.mu").output)
    assert "expected expand" in _run("rewrite", "small.mu", "--by", "no", code=2).output
    assert "without a FILE" in _run("rewrite", "--by", "expand", code=2).output


def test_check_answers_by_exit_code() -> None:
    assert _run("check", "small.mu", "other.mu").output.count(": ok") == 2
    found = _json("check", "small.mu", "typo.mu", code=1)
    assert [f["ok"] for f in found] == [True, False]


def test_check_goes_on_behind_a_file_that_cannot_be_read() -> None:
    Path("bad.json").write_text("{", encoding="utf-8")
    files = ("missing.mu", "bad.json", "typo.mu", "small.mu")
    found = _json("check", *files, code=2)
    assert [(f["file"], f["ok"]) for f in found] == [
        *((file, False) for file in files[:-1]),
        ("small.mu", True),
    ]
    assert all(f["file"] in f["problems"][0] for f in found[:-1])
    assert "small.mu: ok" in _run("check", *files, code=2).stdout


def test_search_tells_ahead_that_a_file_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(self: Path, *_: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "open", refused)
    shown = _run("search", "program.mu", "-o", "best.mu", code=2).stderr
    assert "cannot be written to: Read-only file system" in shown


def test_what_a_search_found_is_printed_where_it_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(self: Path, *_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    arguments = ("search", "program.mu", "--effort", "quick", "--no-cache")
    monkeypatch.setattr(Path, "write_text", full)
    shown = _run(*arguments, "-o", "best.mu", code=2)
    assert "best.mu: No space left on device" in shown.stderr
    assert "mugraph product" in shown.stdout
    monkeypatch.undo()
    assert not Path("best.mu").exists()


def test_a_wrong_file_gets_a_caret_and_no_traceback() -> None:
    for command in ("show", "explain", "run"):
        shown = _run(command, "typo.mu", code=2).stderr
        assert "typo.mu:" in shown
        assert "\n    " in shown
        assert "^" in shown
        assert "Traceback" not in shown


def test_verify_answers_by_exit_code() -> None:
    assert "equivalent" in _run("verify", "other.mu", "small.mu").output
    found = _json("verify", "twice.mu", "small.mu", code=1)
    assert found["equivalent"] is False
    assert found["counterexample"] is not None


def test_verify_by_exact_forms() -> None:
    options = ("--method", "exact", "--no-stability")
    found = _json("verify", "other.mu", "small.mu", *options)
    assert (found["method"], found["verdict"]) == ("exact", "equal")
    assert found["primes"] == []
    found = _json("verify", "twice.mu", "small.mu", *options, code=1)
    assert (found["method"], found["verdict"]) == ("exact", "different")
    shown = _run("verify", "other.mu", "small.mu", "--method", "proof", code=2)
    assert "'fields', 'exact'" in shown.stderr


def test_verify_takes_a_python_function() -> None:
    specs = ("--spec", "f16[4,32]", "--spec", "f16[32,32]")
    shown = _run("verify", "small.mu", "model.py:gated", *specs, code=1)
    assert "not equivalent" in shown.output


def test_diff_answers_by_exit_code() -> None:
    assert "no difference" in _run("diff", "small.mu", "other.mu").output
    assert "twice" in _run("diff", "small.mu", "twice.mu", code=1).output


def test_run_reports_errors_of_random_inputs() -> None:
    found = _json("run", "small.mu")
    assert found["outputs"][0]["shape"] == [4, 32]
    assert found["outputs"][0]["error"] < 1e-3
    wrong = _json("run", "small.mu", "--program", "twice.mu")
    assert wrong["outputs"][0]["error"] > 0.1


def test_run_interprets_the_emitted_kernel() -> None:
    found = _json("run", "small.mu", "--interpret")
    assert found["by"] == "Triton's interpreter"
    assert found["outputs"][0]["error"] < 1e-3


def test_explain_counts_kernels() -> None:
    found = _json("explain", "small.mu")
    assert found["after"]["launches"] == 1
    assert "bound by memory" in _run("explain", "small.mu").output
    assert (
        "unknown hardware"
        in _run("explain", "small.mu", "--device", "x", code=2).stderr
    )


def test_explain_compares_where_it_is_told_with_what() -> None:
    alone = _run("explain", "small.mu").output
    assert "as written" not in alone
    assert _json("explain", "small.mu")["before"] is None
    both = _run("explain", "small.mu", "--program", "program.mu").output
    assert "times as fast as written" in both
    assert _json("explain", "small.mu", "--program", "program.mu")["speedup"] > 0


def test_a_search_says_nothing_of_what_did_not_happen() -> None:
    shown = _run("search", "program.mu").output
    assert "structures: " in shown
    assert ": 0\n" not in shown


def test_compile_reports_resources() -> None:
    found = _json("compile", "small.mu", "--target", "sm_80")
    assert found["kernels"][0]["registers"] > 0
    assert found["rejected"] == []


def test_bench_says_what_it_needs() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    shown = _run("bench", "small.mu", "small.mu", code=2).stderr
    assert "needs a CUDA device" in shown


def test_search_writes_what_the_other_commands_read() -> None:
    target = (
        "search",
        "model.py:gated",
        "--spec",
        "f16[16,64]",
        "--spec",
        "f16[64,96]",
    )
    shown = _run(*target, "-o", "best.mu", "--save", "result.json").output
    assert "μGraphs in" in shown
    assert _json(*target)["candidates"][0]["mugraph"] == Path("best.mu").read_text()
    assert _run("show", "result.json").output == _run("show", "best.mu").output
    assert _run("fmt", "--check", "best.mu")
    assert len(_json("cache", "ls")) == 1
    explained = _json(*target, "--explain", "best.mu")
    assert (explained["verdict"], explained["rank"]) == ("found", 0)


def test_search_is_superoptimize() -> None:
    _run("search", "program.mu", "--device", "H200")
    with ASSERT_CACHE_HIT.scope(True):
        superoptimize(parse(PROGRAM), hardware=H200)
        with pytest.raises(CacheError):
            superoptimize(parse(PROGRAM))
    _run("search", "program.mu")
    with ASSERT_CACHE_HIT.scope(True):
        superoptimize(parse(PROGRAM))


def test_cache_commands() -> None:
    _run("search", "program.mu")
    entry = _json("cache", "ls")[0]
    assert entry["kind"] == "mugraphs"
    assert entry["digest"] in _run("cache", "show", entry["digest"][:10]).output
    assert "content" not in _json("cache", "show", entry["digest"], "--key")
    assert _json("cache", "export", "all.json") == {"exported": 1}
    assert _json("cache", "clear", "--yes") == {"removed": 1}
    assert _json("cache", "import", "all.json") == {"imported": 1}
    assert _json("cache", "gc", "--limit-mb", "0") == {"removed": 1}
    _run("cache", "show", "00", code=2)


def test_env_lists_every_setting() -> None:
    with THREADS.scope(3):
        shown = _json("env")
    assert list(shown) == [s.name for s in SETTINGS]
    assert shown["MIRAGE_DSL_THREADS"]["value"] == "3"
    assert all(s.name in _run("env").output for s in SETTINGS)


def test_doctor_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(f["ok"] for f in _json("doctor"))
    monkeypatch.setenv("MIRAGE_DSL_THREADS", "many")
    found = {f["what"]: f for f in _json("doctor", code=1)}
    assert "MIRAGE_DSL_THREADS='many'" in found["environment"]["found"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["show", "missing.mu"], "missing.mu"),
        (["search", "model.py"], "expected FILE:FUNCTION"),
        (["search", "missing.py:f"], "there is no file missing.py"),
        (["search", "model.py:f"], "it has"),
        (["search", "model.py:gated", "--spec", "f8[4]"], "expected a dtype"),
        (["search", "model.py:gated", "--spec", "f16[0]"], "neither a positive number"),
        (["search", "model.py:gated", "--spec", "f16[4,4]"], "1 given for gated(x, w)"),
        (["search", "model.py:gated"], "missing a required argument: 'x'"),
        (["search", "program.mu", "--budget", "0"], "--budget"),
        (["search", "program.mu", "-o", "no/best.mu"], "there is no directory"),
        (["search", "program.mu", "--explain", "no.mu"], "no.mu"),
        (["fmt", "binary.mu"], "binary.mu is no UTF-8 text"),
        (["show", "small.mu", "--size", "q=4"], "its dims are k, m, n"),
        (["show", "small.mu", "--size", "m=-1"], "expected NAME=EXTENT"),
        (["show", "small.mu", "--size", f"m={10**20}"], "an extent is at most"),
        (["show", "small.mu", "--size", f"m={'9' * 5000}"], "an extent is at most"),
        (["show", "small.mu", "--size", f"m={2**62}"], "bytes"),
        (["search", "model.py:gated", "--spec", f"f16[{2**63}]"], "at most"),
        (["search", "model.py:gated", "--spec", f"f16[{2**62},8]"], "bytes"),
        (["nothing"], "No such command"),
        (["search", "small.mu"], "starts from a traced program"),
        (["search", "program.mu", "--seed", "-1"], "--seed"),
        (["verify", "small.mu", "program.mu", "--seed", "-1"], "--seed"),
        (["search", "program.mu", "-o", "best.json"], "does not end in .json"),
        (["search", "program.mu", "--save", "best.mu"], "does not end in .mu"),
        (["search", "program.mu", "-o", "-"], "expected the name of a file"),
        (["search", "program.mu", "--spec", "f16[4]"], "specs are for FILE:FUNCTION"),
        (["explain", "small.mu", "--spec", "f16[4]"], "without a --program"),
        (["search", "model.py:gated", "--spec", "f16[4,,4]"], "neither a positive"),
        (["show", "small.mu", "--size", "m=4", "--size", "m=5"], "m is given twice"),
        (["compile", "small.mu", "--target", "sm_9000"], "expected one like sm_90"),
        (["compile", "small.mu", "--target", "sm_75"], "sm_80 and later"),
        (["compile", "small.mu", "--target", ""], "expected one like sm_90"),
        (["cache", "gc", "--limit-mb", "nan"], "expected a finite number"),
        (["cache", "export", "cache.mu"], "does not end in .mu"),
        (["run", "small.mu", "--size", f"m={2**44}"], "not enough memory"),
    ],
)
def test_wrong_usage_is_an_error_that_says_what_to_do(
    args: list[str], expected: str
) -> None:
    result = _run(*args, code=2)
    assert expected in result.stderr
    assert not result.stdout


def test_an_error_names_the_users_line() -> None:
    specs = ("--spec", "f16[4,8]", "--spec", "f16[8,16]")
    shown = _run("search", "model.py:wrong", *specs, code=2).stderr
    assert "model.py:11" in shown
    assert "return x @ w + x" in shown


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f(x:\n", "SyntaxError: '(' was never closed"),
        ("import a_module_that_is_not_there\n", "ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("def f(x): return {}['key']\n", "KeyError: 'key'"),
    ],
)
def test_what_code_of_the_users_raises_names_its_line(code: str, expected: str) -> None:
    Path("own.py").write_text(code)
    shown = _run("search", "own.py:f", "--spec", "f16[4]", code=2).stderr
    assert f"own.py:1: {expected}" in shown
    assert code.strip() in shown


def test_what_code_of_the_users_prints_is_no_result() -> None:
    Path("own.py").write_text("print('read')\ndef f(x): print('traced'); return x + 1")
    args = ("search", "own.py:f", "--spec", "f16[4]", "--effort", "none", "--json")
    result = _run(*args)
    assert json.loads(result.stdout)["candidates"]
    assert result.stderr.split() == ["read", "traced"]


def test_texts_come_from_standard_input_and_any_editor() -> None:
    def given(text: str | bytes, *args: str) -> Result:
        return CliRunner().invoke(app, [*args], input=text)

    assert given(SMALL, "diff", "-", "small.mu").exit_code == 0
    assert given(SMALL, "verify", "-", "program.mu").exit_code == 0
    assert "- is no UTF-8 text" in given(b"mirage \xff", "show", "-").stderr
    marked = b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode()
    Path("marked.mu").write_bytes(marked)
    assert _run("show", "marked.mu").stdout == _run("show", "small.mu").stdout


def test_no_input_and_a_reader_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ParseError, match="no standard input"):
        read_text("-")

    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(click, "echo", gone)
    result = CliRunner().invoke(app, ["show", "small.mu"])
    assert (result.exit_code, result.stderr) == (1, "")


def test_a_directory_may_be_called_as_a_text() -> None:
    Path("texts/odd.mu").mkdir(parents=True)
    assert "0 of 0 files" in _run("fmt", "texts").output


def test_errors_as_json() -> None:
    found = _json("show", "typo.mu", code=2)
    assert found["error"]["kind"] == "ParseError"
    assert "typo.mu:" in found["error"]["message"]


def test_fmt_keeps_comments_and_is_stable(tmp_path: Path) -> None:
    formatted = format_text(SMALL)
    assert formatted == SMALL
    assert format_text(formatted) == formatted
    loose = SMALL.replace(
        "    x_tile: f16[m, k/loop] = load x", "  x_tile =   load x[m, k/loop]"
    )
    (tmp_path / "loose.mu").write_text(loose)
    _run("fmt", "--check", "loose.mu", code=1)
    assert (tmp_path / "loose.mu").read_text() == loose
    assert _json("fmt", "loose.mu", "small.mu")["changed"] == ["loose.mu"]
    assert (tmp_path / "loose.mu").read_text() == SMALL


def test_fmt_refuses_to_lose_a_comment() -> None:
    text = SMALL.replace("(x: f16[m, k],", "(x: f16[m, k],  // left\n")
    assert "// left" in format_text(text)
    text = SMALL.replace("w: f16", "\nw: // of the layer\n f16")
    with pytest.raises(ParseError, match="move it above a statement"):
        format_text(text)


def test_a_wrong_variable_is_an_error_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(LOGS.name, "loud")
    assert "MIRAGE_DSL_LOGS='loud'" in _run("show", "small.mu", code=2).stderr


def test_the_module_and_the_script_are_one_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mirage_dsl", "check", "typo.mu"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "typo.mu:" in done.stdout
    assert not done.stderr
    assert importlib.util.find_spec("mirage_dsl.__main__") is not None


def test_progress_says_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    for stage, how in (("search", "estimated"), ("tune", "measured")):
        with progress_bar() as report:
            assert report is not None
            report(stage, 3, 7, 12.34)
        assert f"best 12.3 µs ({how})" in screen.getvalue()
    with progress_bar(quiet=True) as report:
        assert report is None
