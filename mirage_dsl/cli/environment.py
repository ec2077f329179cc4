"""Commands about this machine: env, doctor, and cache: what is kept on it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import time
from dataclasses import dataclass
from pathlib import Path

import click

from mirage_dsl.cli.app import (
    MEGABYTES,
    NEW_RESULT,
    answer,
    json_option,
    negative,
    say,
    say_json,
)
from mirage_dsl.core.errors import MirageError
from mirage_dsl.core.settings import CACHE_DIR, CACHE_LIMIT_MB, SETTINGS
from mirage_dsl.store.cache import KINDS, MUGRAPHS, Cache, Entry

_PACKAGES = ("numpy", "numba", "torch", "triton", "lark", "ml_dtypes")
_OLDEST_TRITON = (3, 6)


@click.command("env")
@json_option
def env_command(as_json: bool) -> None:
    """List the environment variables, their values now, and what they do."""
    if as_json:
        say_json(
            {
                s.name: {"value": str(s.get()), "set": s.text, "help": s.help}
                for s in SETTINGS
            }
        )
        return
    for setting in SETTINGS:
        origin = "default" if setting.text is None else "set"
        say(f"{setting.name} = {setting.get()} ({origin})")
        say(f"    {setting.help}  Takes {setting.expected}.")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: What was looked at.
        ok: Whether the package works with it; a missing GPU is fine.
        found: What was found, and what to do if that is not ok.
    """

    what: str
    ok: bool
    found: str


@click.command("doctor", epilog="Example: mirage-dsl doctor --measure")
@click.option(
    "--measure",
    "measuring",
    is_flag=True,
    help="Measure the GPU first, within a minute; estimates for it use that from then "
    "on.  Nothing else should run on it.",
)
@json_option
def doctor_command(measuring: bool, as_json: bool) -> None:
    """Say what works on this machine; exit 1 if something has to be done."""
    if measuring:
        from mirage_dsl.tune.devices import keep_figures, measure, properties_here

        figures = measure()
        keep_figures(properties_here(), figures)
    findings = [
        Finding("Python", True, platform.python_version()),
        *(_package(name) for name in _PACKAGES),
        _triton(),
        _cache(),
        _settings(),
        *_gpu(),
        _search(),
    ]
    if as_json:
        say_json(findings)
    else:
        for finding in findings:
            say(f"{'ok ' if finding.ok else 'BAD'} {finding.what}: {finding.found}")
    if not all(f.ok for f in findings):
        negative()


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, f"missing; install it: pip install {name}")


def _triton() -> Finding:
    try:
        text = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return Finding("Triton's version", False, "missing")
    ok = tuple(int(p) for p in text.split(".")[:2]) >= _OLDEST_TRITON
    return Finding(
        "Triton's version", ok, text if ok else f"{text}: needs 3.6 or later"
    )


def _cache() -> Finding:
    directory = CACHE_DIR.get()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return Finding("cache", False, f"{error}; set {CACHE_DIR.name}")
    if not os.access(directory, os.W_OK):
        advice = f"{directory} cannot be written; set {CACHE_DIR.name}"
        return Finding("cache", False, advice)
    return Finding("cache", True, str(directory))


def _settings() -> Finding:
    try:
        values = [f"{s.name}={s.get()}" for s in SETTINGS if s.text is not None]
    except MirageError as error:
        return Finding("environment", False, str(error))
    return Finding("environment", True, ", ".join(values) or "all settings at default")


def _gpu() -> list[Finding]:
    """The GPU, and what estimates for it rest on."""
    import torch

    from mirage_dsl.core.hardware import DEFAULT, EARLIEST, architecture_of

    if not torch.cuda.is_available():
        note = "none: kernels can be searched, compiled and interpreted, not timed"
        basis = f"the row {DEFAULT.name}, unless another one is named"
        return [Finding("GPU", True, note), Finding("estimates", True, basis)]
    from mirage_dsl.tune.devices import described, properties_here

    device = properties_here()
    own = architecture_of(device.capability)
    text = f"{device.name}, {own.target}"
    if not own.supported:
        text += f": kernels are made for {EARLIEST.target} and later"
    return [
        Finding("GPU", own.supported, text),
        Finding("estimates", True, described(device)),
    ]


def _search() -> Finding:
    """Search for a small program, from tracing to a certificate."""
    from mirage_dsl.frontend.arguments import spec
    from mirage_dsl.frontend.trace import trace_function
    from mirage_dsl.store.superoptimize import superoptimize

    def scaled(x: object, w: object) -> object:
        return (x @ w) * 2  # pyright: ignore[reportOperatorIssue, reportUnknownVariableType]

    try:
        program = trace_function(scaled, [spec((16, 64)), spec((64, 32))])
        result = superoptimize(program, effort="quick", use_cache=False)
    except MirageError as error:
        return Finding("search", False, str(error))
    return Finding("search", True, f"{len(result)} μGraphs in {result.seconds:.1f} s")


# -- The cache -------------------------------------------------------------------------


@click.group("cache")
def cache_command() -> None:
    """List, move and remove what searches have found.

    Entries are text files below MIRAGE_DSL_CACHE_DIR.  What is true of a program
    (verified μGraphs), what a GPU took (timings) and what was measured of it by
    `mirage-dsl doctor --measure` (hardware) are separate entries.
    """


@cache_command.command("ls")
@click.option("--kind", type=click.Choice(KINDS), help="Only entries of a kind.")
@json_option
def list_command(kind: str | None, as_json: bool) -> None:
    """List the entries, the most recently used first."""
    cache = Cache()
    entries = cache.entries(kind)
    if as_json:
        say_json([_record(e) for e in entries])
        return
    for entry in entries:
        say(_line(entry))
    total = sum(e.size for e in entries) / 1e6
    say(f"{len(entries)} entries, {total:.2f} MB, in {cache.directory}")


@cache_command.command("show")
@click.argument("digest")
@click.option("--key", "key_only", is_flag=True, help="Only what it is stored under.")
@json_option
def show_command(digest: str, key_only: bool, as_json: bool) -> None:
    """Print the entry whose digest starts with DIGEST: its key and what it holds."""
    entry = Cache().find(digest)
    text = str(entry.key)
    if not key_only and entry.key.kind == MUGRAPHS:
        from mirage_dsl.cli.graphs import describe
        from mirage_dsl.search.result import SearchResult

        result = SearchResult.from_json(dict(entry.content))
        text += f"\n\n{describe(result)}"
    elif not key_only:
        text += "\n\n" + "\n".join(f"{k}: {v}" for k, v in entry.content.items())
    content = {} if key_only else {"content": entry.content}
    answer(as_json, {**_record(entry), **content}, text)


@cache_command.command("gc")
@click.option("--limit-mb", type=MEGABYTES, help="In place of the limit.")
@json_option
def collect_command(limit_mb: float | None, as_json: bool) -> None:
    """Remove the least recently used entries beyond the size limit."""
    limit = CACHE_LIMIT_MB.get() if limit_mb is None else limit_mb
    removed = Cache().collect(int(limit * 2**20))
    answer(as_json, {"removed": removed}, f"removed {removed} entries")


@cache_command.command("export")
@click.argument("file", type=NEW_RESULT)
@json_option
def export_command(file: str, as_json: bool) -> None:
    """Write all entries to FILE, for another machine."""
    count = Cache().export(Path(file))
    answer(as_json, {"exported": count}, f"wrote {count} entries to {file}")


@cache_command.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@json_option
def import_command(file: str, as_json: bool) -> None:
    """Add the entries of FILE, which `export` wrote.

    Their μGraphs are verified on this machine before they are used.
    """
    count = Cache().import_from(Path(file))
    answer(as_json, {"imported": count}, f"added {count} entries")


@cache_command.command("clear")
@click.confirmation_option(prompt="Remove all entries?", help="Do not ask.")
@json_option
def clear_command(as_json: bool) -> None:
    """Remove all entries."""
    removed = Cache().clear()
    answer(as_json, {"removed": removed}, f"removed {removed} entries")


def _record(entry: Entry) -> dict[str, object]:
    return {
        "digest": entry.key.digest,
        "kind": entry.key.kind,
        "key": dict(entry.key.parts),
        "bytes": entry.size,
        "used": entry.used,
    }


def _line(entry: Entry) -> str:
    parts = dict(entry.key.parts)
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    name = _program_name(entry)
    about = parts.get("extents") or parts.get("gpu") or parts.get("name", "")
    return (
        f"{entry.key.digest[:12]}  {entry.key.kind:<8}  {used}  "
        f"{entry.size / 1e3:7.1f} KB  {name} ({about})"
    )


def _program_name(entry: Entry) -> str:
    """What the function was called whose program an entry was made for."""
    found = re.search(
        r"^mugraph (\w+)", str(entry.content.get("program")), re.MULTILINE
    )
    return found[1] if found else ""
