"""`mirage-dsl cache`: what searches have found and GPUs have measured."""

from __future__ import annotations

import re
import time
from pathlib import Path

import click

from mirage_dsl.cli.output import answer, json_option, say, say_json
from mirage_dsl.core.settings import CACHE_LIMIT_MB
from mirage_dsl.store.cache import KINDS, MUGRAPHS, Cache, Entry


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
        from mirage_dsl.cli.search import describe
        from mirage_dsl.search.result import SearchResult

        result = SearchResult.from_json(dict(entry.content))
        text += f"\n\n{describe(result)}"
    elif not key_only:
        text += "\n\n" + "\n".join(f"{k}: {v}" for k, v in entry.content.items())
    content = {} if key_only else {"content": entry.content}
    answer(as_json, {**_record(entry), **content}, text)


@cache_command.command("gc")
@click.option("--limit-mb", type=click.FloatRange(min=0), help="In place of the limit.")
@json_option
def collect_command(limit_mb: float | None, as_json: bool) -> None:
    """Remove the least recently used entries beyond the size limit."""
    limit = CACHE_LIMIT_MB.get() if limit_mb is None else limit_mb
    removed = Cache().collect(int(limit * 2**20))
    answer(as_json, {"removed": removed}, f"removed {removed} entries")


@cache_command.command("export")
@click.argument("file", type=click.Path(dir_okay=False))
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
