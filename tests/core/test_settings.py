"""Settings: read when used, typed, scoped, with errors that say what to do."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mirage_dsl.core import settings
from mirage_dsl.core.errors import SettingError
from mirage_dsl.core.settings import setup_logging


def test_names_are_unique_and_prefixed() -> None:
    names = [s.name for s in settings.SETTINGS]
    assert len(set(names)) == len(names)
    assert all(n.startswith("MIRAGE_DSL_") for n in names)
    assert all(s.help.endswith(".") for s in settings.SETTINGS)


def test_every_setting_of_the_module_is_listed() -> None:
    defined = {
        s.name for s in vars(settings).values() if isinstance(s, settings.Setting)
    }
    assert defined == {s.name for s in settings.SETTINGS}


def test_a_default_is_of_the_parsed_type(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in settings.SETTINGS:
        monkeypatch.delenv(setting.name, raising=False)
    assert settings.EFFORT.get() == "quick"
    assert settings.THREADS.get() >= 1
    assert settings.BUDGET_SECONDS.get() is None
    assert settings.INTERPRET.get() is False
    assert isinstance(settings.CACHE_DIR.get(), Path)


def test_a_change_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_DSL_THREADS", "3")
    assert settings.THREADS.get() == 3
    monkeypatch.setenv("MIRAGE_DSL_THREADS", "5")
    assert settings.THREADS.get() == 5


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MIRAGE_DSL_THREADS", "0"),
        ("MIRAGE_DSL_THREADS", "two"),
        ("MIRAGE_DSL_EFFORT", "max"),
        ("MIRAGE_DSL_BUDGET_SECONDS", "-1"),
        ("MIRAGE_DSL_BUDGET_SECONDS", "nan"),
        ("MIRAGE_DSL_INTERPRET", "maybe"),
        ("MIRAGE_DSL_LOGS", "search:loud"),
        ("MIRAGE_DSL_CACHE_LIMIT_MB", "1.5"),
    ],
)
def test_a_wrong_text_is_an_error_that_names_it(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = next(s for s in settings.SETTINGS if s.name == name)
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingError, match=f"{name}='{text}': expected ") as caught:
        setting.get()
    assert setting.expected in str(caught.value)


@pytest.mark.parametrize("value", [True, False])
def test_a_scope_ends(value: bool) -> None:
    before = os.environ.get("MIRAGE_DSL_INTERPRET")
    with settings.INTERPRET.scope(value):
        assert settings.INTERPRET.get() is value
        with settings.INTERPRET.scope(not value):
            assert settings.INTERPRET.get() is not value
        assert settings.INTERPRET.get() is value
    assert os.environ.get("MIRAGE_DSL_INTERPRET") == before


def test_a_scope_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIRAGE_DSL_EFFORT", raising=False)
    with pytest.raises(RuntimeError), settings.EFFORT.scope("full"):
        raise RuntimeError
    assert "MIRAGE_DSL_EFFORT" not in os.environ


def test_none_in_a_scope_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_DSL_BUDGET_SECONDS", "7")
    with settings.BUDGET_SECONDS.scope(None):
        assert settings.BUDGET_SECONDS.get() is None
    assert settings.BUDGET_SECONDS.get() == 7.0


def test_warnings_reach_standard_error_and_the_rest_when_asked(
    capfd: pytest.CaptureFixture[str],
) -> None:
    log = logging.getLogger("mirage_dsl.example")
    setup_logging()
    log.info("unseen")
    log.warning("seen")
    try:
        with settings.LOGS.scope({"example": "info"}):
            setup_logging()
            setup_logging()
            log.info("seen")
            log.debug("too fine")
    finally:
        log.setLevel(logging.NOTSET)
        setup_logging()
    expected = "WARNING mirage_dsl.example: seen\nINFO mirage_dsl.example: seen\n"
    assert capfd.readouterr().err == expected


def _numba_directory(prelude: str, tmp_path: Path, **environment: str) -> str:
    code = (
        f"{prelude}\nfrom mirage_dsl.core.settings import use_numba_cache\n"
        "use_numba_cache()\nimport numba\nprint(numba.config.CACHE_DIR)"
    )
    variables = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    variables |= {"MIRAGE_DSL_CACHE_DIR": str(tmp_path), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=variables,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("prelude", ["", "import numba"])
def test_numba_caches_in_our_directory(prelude: str, tmp_path: Path) -> None:
    assert _numba_directory(prelude, tmp_path) == str(tmp_path / "numba")


def test_the_users_numba_directory_comes_first(tmp_path: Path) -> None:
    chosen = str(tmp_path / "mine")
    assert _numba_directory("", tmp_path, NUMBA_CACHE_DIR=chosen) == chosen
