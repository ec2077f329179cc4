"""Every environment variable of the project, each as one typed descriptor.

A setting is read when it is used, so a change takes effect at once.  An argument or a
decorator's option comes before the environment, the environment before the default.

>>> EFFORT.get()
'quick'
>>> with EFFORT.scope("none"):
...     EFFORT.get()
'none'
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

from mirage_dsl.core.errors import SettingError

T = TypeVar("T")

Effort = Literal["none", "quick", "full"]
EFFORTS: tuple[Effort, ...] = ("none", "quick", "full")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """An environment variable.

    Attributes:
        name: Its full name.
        parse: Text to value; raises `ValueError` for a text that it does not take.
        default: The value where the variable is unset or empty.
        expected: What `parse` takes, for messages.
        help: What it does, in one sentence.
    """

    name: str
    parse: Callable[[str], T]
    default: Callable[[], T]
    expected: str
    help: str

    @property
    def text(self) -> str | None:
        """The variable's text, or None where it is unset or empty."""
        return os.environ.get(self.name) or None

    def get(self) -> T:
        """The value now.

        Raises:
            SettingError: The variable has a text that the setting does not take.
        """
        text = self.text
        if text is None:
            return self.default()
        try:
            return self.parse(text)
        except ValueError:
            raise SettingError(
                f"{self.name}={text!r}: expected {self.expected}; "
                f"set it to one, or unset it"
            ) from None

    @contextmanager
    def scope(self, value: T) -> Generator[None, None, None]:
        """Set it for a `with` block, for this process and those it starts."""
        before = os.environ.get(self.name)
        os.environ[self.name] = _to_text(value)
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(self.name, None)
            else:
                os.environ[self.name] = before


def _to_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, dict):
        areas = cast("dict[str, str]", value)
        return ",".join(f"{area}:{level}" for area, level in areas.items())
    return str(value)


_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def _flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in _TRUE + _FALSE:
        raise ValueError(text)
    return lowered in _TRUE


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


def _effort(text: str) -> Effort:
    for effort in EFFORTS:
        if text.strip().lower() == effort:
            return effort
    raise ValueError(text)


LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


def _logs(text: str) -> dict[str, str]:
    """`info`, or `search:debug,cache:info`; the empty area is the whole package."""
    levels: dict[str, str] = {}
    for part in text.split(","):
        area, _, level = part.strip().lower().rpartition(":")
        if level not in LOG_LEVELS:
            raise ValueError(text)
        levels[area] = level
    return levels


def _default_cache_dir() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("mirage_dsl", appauthor=False)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _no_logs() -> dict[str, str]:
    return {}


def _default_key_file() -> Path:
    from platformdirs import user_state_path

    return user_state_path("mirage_dsl", appauthor=False) / "key"


def _path(text: str) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise ValueError(text) from None  # The home of a user that is not known.
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()  # A loop of links: whoever uses it will say so.


def _flag_setting(name: str, what: str) -> Setting[bool]:
    return Setting(name, _flag, lambda: False, "1 or 0", what)


CACHE_DIR: Setting[Path] = Setting(
    "MIRAGE_DSL_CACHE_DIR",
    _path,
    _default_cache_dir,
    "a directory",
    "Directory of the cache: verified μGraphs, timings, compiled search code.",
)
KEY_FILE: Setting[Path] = Setting(
    "MIRAGE_DSL_KEY_FILE",
    _path,
    _default_key_file,
    "a file",
    "Key that marks what this machine stored in the cache; made where it is missing. "
    "What another key marked, or none, is verified before it is used.",
)
CACHE_LIMIT_MB: Setting[int] = Setting(
    "MIRAGE_DSL_CACHE_LIMIT_MB",
    _positive,
    lambda: 256,
    "a whole number of megabytes from 1",
    "Size of the cache above which the least recently used entries are removed.",
)
ASSERT_CACHE_HIT: Setting[bool] = _flag_setting(
    "MIRAGE_DSL_ASSERT_CACHE_HIT",
    "Make a result that is not in the cache an error that explains the miss.",
)
DISALLOW_SEARCH: Setting[bool] = _flag_setting(
    "MIRAGE_DSL_DISALLOW_SEARCH",
    "Refuse to search: only cached results and effort none are served.",
)
EFFORT: Setting[Effort] = Setting(
    "MIRAGE_DSL_EFFORT",
    _effort,
    lambda: "quick",
    "none, quick or full",
    "How long to search: none runs the program as it is, quick takes seconds, "
    "full a minute or two.",
)
BUDGET_SECONDS: Setting[float | None] = Setting(
    "MIRAGE_DSL_BUDGET_SECONDS",
    _seconds,
    lambda: None,
    "a positive number of seconds",
    "Time limit of one search; the best result found until then is used.",
)
DETERMINISTIC: Setting[bool] = _flag_setting(
    "MIRAGE_DSL_DETERMINISTIC",
    "Choose by the cost model alone: nothing is timed, and machines of one GPU choose "
    "alike.",
)
THREADS: Setting[int] = Setting(
    "MIRAGE_DSL_THREADS",
    _positive,
    _processors,
    "a whole number from 1",
    "Threads of the search, and two more than processes for parts of a long program; "
    "the processors of this process unless set.",
)
INTERPRET: Setting[bool] = _flag_setting(
    "MIRAGE_DSL_INTERPRET",
    "Run emitted kernels in Triton's interpreter on the CPU; slow, for checking.",
)
LOGS: Setting[dict[str, str]] = Setting(
    "MIRAGE_DSL_LOGS",
    _logs,
    _no_logs,
    f"a level ({', '.join(LOG_LEVELS)}) or areas with levels, "
    "as in search:debug,cache:info",
    "What to log to standard error; warnings unless set, `critical` for nothing.",
)

SETTINGS: tuple[Setting[Any], ...] = (
    CACHE_DIR,
    KEY_FILE,
    CACHE_LIMIT_MB,
    ASSERT_CACHE_HIT,
    DISALLOW_SEARCH,
    EFFORT,
    BUDGET_SECONDS,
    DETERMINISTIC,
    THREADS,
    INTERPRET,
    LOGS,
)
"""All settings, in the order in which `mirage-dsl env` lists them."""


def use_numba_cache() -> None:
    """Let Numba keep compiled code in the cache directory.

    To be called before the first jitted function is defined: Numba's own choice is
    beside the source file, which may be read-only.  `NUMBA_CACHE_DIR` comes first
    where the user has set it.
    """
    if os.environ.get("NUMBA_CACHE_DIR"):
        return
    directory = str(CACHE_DIR.get() / "numba")
    os.environ["NUMBA_CACHE_DIR"] = directory
    config = sys.modules.get("numba.core.config")
    if config is not None:
        vars(config)["CACHE_DIR"] = directory


# -- Logging ---------------------------------------------------------------------------

ROOT = "mirage_dsl"


def setup_logging() -> None:
    """Follow `MIRAGE_DSL_LOGS`: a handler on standard error, a level for each area.

    The library logs to children of `logging.getLogger("mirage_dsl")` and never prints.
    Calling it again replaces what the last call set, so a changed variable counts.
    """
    root = logging.getLogger(ROOT)
    for handler in [h for h in root.handlers if h.get_name() == ROOT]:
        root.removeHandler(handler)
    levels = LOGS.get()
    handler = logging.StreamHandler()
    handler.setLevel(logging.NOTSET if levels else logging.WARNING)
    handler.set_name(ROOT)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    for area, level in levels.items():
        name = f"{ROOT}.{area}" if area else ROOT
        logging.getLogger(name).setLevel(level.upper())
