"""The cache: atomic, checksummed, limited, explainable, movable."""

from __future__ import annotations

import errno
import hashlib
import inspect
import json
import linecache
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from mirage_dsl.backends.triton.running.interpret import (
    interpreting,
    load_module,
    source_file,
)
from mirage_dsl.cli.app import app
from mirage_dsl.core import files
from mirage_dsl.core.errors import CacheError
from mirage_dsl.core.settings import CACHE_DIR, CACHE_LIMIT_MB, KEY_FILE
from mirage_dsl.store.cache import MUGRAPHS, TIMINGS, Cache, Entry, Key


def _key(kind: str = MUGRAPHS, **parts: str) -> Key:
    return Key(kind, tuple(parts.items()))


def _content(entry: Entry | None) -> object:
    return None if entry is None else entry.content


@pytest.fixture
def cache(fresh_cache: Path) -> Cache:
    return Cache(fresh_cache)


def test_what_is_stored_is_loaded(cache: Cache) -> None:
    key = _key(program="abc", extents="μ = 4")
    content = {"text": "σ", "numbers": [1, 2.5, None]}
    assert cache.load(key) is None
    cache.store(key, content)
    assert _content(cache.load(key)) == content
    assert _content(Cache(cache.directory).load(key)) == content


def test_the_directory_is_the_settings(tmp_path: Path) -> None:
    with CACHE_DIR.scope(tmp_path / "other"):
        assert Cache().directory == tmp_path / "other"


@pytest.mark.parametrize(
    "other",
    [
        _key(TIMINGS, program="abc"),
        _key(program="abd"),
        _key(program="abc", seed="1"),
        _key(programs="abc"),
    ],
)
def test_keys_that_differ_are_different_entries(cache: Cache, other: Key) -> None:
    cache.store(_key(program="abc"), {"value": 1})
    assert cache.load(other) is None


def test_no_temporary_file_remains(cache: Cache) -> None:
    cache.store(_key(program="abc"), {})
    names = [p.name for p in (cache.directory / MUGRAPHS).iterdir()]
    assert names == [f"{_key(program='abc').digest}.json"]


def test_a_failed_write_leaves_the_old_entry(cache: Cache) -> None:
    key = _key(program="abc")
    cache.store(key, {"value": 1})
    with pytest.raises(TypeError):
        cache.store(key, {"value": object()})
    assert _content(cache.load(key)) == {"value": 1}
    assert len(list((cache.directory / MUGRAPHS).iterdir())) == 1


def _document(path: Path, **changes: object) -> None:
    """Rewrite an entry's JSON, with a checksum that fits."""
    document = {**json.loads(path.read_text()), **changes}
    summed = [document["kind"], document["key"], document["content"]]
    text = json.dumps(summed, sort_keys=True, separators=(",", ":"))
    document["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(document))


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


DEEP = '{"a":' * 100_000

DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda p: p.write_text(p.read_text()[:100]),
    "empty": lambda p: p.write_text(""),
    "edited": lambda p: p.write_text(p.read_text().replace("1\n", "2\n")),
    "format": lambda p: _document(p, format="another"),
    "no text": lambda p: p.write_bytes(b"\xff\xfe\x00"),
    "utf-16": lambda p: p.write_text(p.read_text(), encoding="utf-16"),
    "renamed": lambda p: p.write_text(p.read_text().replace("abc", "abd")),
    "list": lambda p: p.write_text("[]"),
    "number": lambda p: p.write_text("1"),
    "deep": lambda p: p.write_text(DEEP),
    "deep within": lambda p: p.write_text("[" * 500 + "]" * 500),
    "deep content": lambda p: _document(
        p, content=json.loads('{"a":' * 90 + "1" + "}" * 90)
    ),
    "digits": lambda p: p.write_text("1" * 100_000),
    "kind": lambda p: _document(p, kind=["mugraphs"]),
    "other kind": lambda p: _document(p, kind="timings"),
    "key of numbers": lambda p: _document(p, key=[[1, 2]]),
    "key of texts": lambda p: _document(p, key=["ab"]),
    "key": lambda p: _document(p, key=None),
    "content": lambda p: _document(p, content=[["value", 1]]),
    "surrogate": lambda p: _document(p, content={"value": "\ud800"}),
    "FIFO": lambda p: _replace(p, os.mkfifo),
    "link to itself": lambda p: _replace(p, lambda q: q.symlink_to(q)),
    "device": lambda p: _replace(p, lambda q: q.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_entry_is_a_miss_and_is_removed(
    cache: Cache, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = _key(program="abc")
    cache.store(key, {"value": 1})
    path = cache.entries()[0].path
    DAMAGES[how](path)
    with caplog.at_level(logging.WARNING, "mirage_dsl.cache"):
        assert cache.load(key) is None
    assert "is damaged and was removed" in caplog.text
    assert not os.path.lexists(path)
    cache.store(key, {"value": 3})
    assert _content(cache.load(key)) == {"value": 3}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_entry_stops_no_command(cache: Cache, how: str) -> None:
    other = _key(program="other")
    for command in ("ls", "ls --json", "gc", "export {out}", "show {other}"):
        cache.store(_key(TIMINGS, program="abc"), {"value": 1})
        cache.store(other, {"value": 1})
        DAMAGES[how](
            cache.directory / TIMINGS / f"{_key(TIMINGS, program='abc').digest}.json"
        )
        given = command.format(out=cache.directory / "all", other=other.digest[:12])
        done = CliRunner().invoke(app, ["cache", *given.split()])
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert done.exit_code == (2 if command.startswith("show") else 0)


def test_what_cannot_be_removed_is_not_said_to_be(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    key = _key(program="abc")
    cache.store(key, {})
    path = cache.entries()[0].path
    path.unlink()
    (path / "full").mkdir(parents=True)
    for _ in range(3):
        assert cache.load(key) is None
    assert "was removed" not in caplog.text
    assert caplog.text.count("is damaged and cannot be removed") == 1


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


UNUSABLE: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "file": lambda d, _: d.write_text(""),
    "below a file": lambda d, _: (d.parent / "cache").write_text(""),
    "loop": lambda d, _: d.symlink_to(d),
    "device": lambda d, _: d.symlink_to("/dev/null"),
    "FIFO": lambda d, _: os.mkfifo(d),
    "no room": lambda _, patch: patch.setattr(files.os, "fdopen", _full),
    "entries are a file": lambda d, _: (d.mkdir(), (d / MUGRAPHS).write_text("")),
    "lock is a directory": lambda d, _: (d / ".lock").mkdir(parents=True),
}


@pytest.mark.parametrize("how", UNUSABLE)
def test_a_directory_that_cannot_be_used_costs_one_warning(
    how: str,
    fresh_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    UNUSABLE[how](fresh_cache, monkeypatch)
    with CACHE_DIR.scope(fresh_cache / "sub" if how == "below a file" else fresh_cache):
        for name in "ab":
            key = _key(program=name)
            cache = Cache()
            cache.store(key, {})
            with cache.turn(key, 0.1):
                assert cache.load(key) is None
            assert cache.entries() == []
            assert load_module("number = 3\n").number == 3
    assert caplog.text.count("cannot be used") == len(caplog.records) == 1


def test_a_directory_that_goes_away_is_made_again(cache: Cache) -> None:
    key = _key(program="abc")
    cache.store(key, {})
    shutil.rmtree(cache.directory)
    assert cache.load(key) is None
    cache.store(key, {"value": 1})
    assert _content(cache.load(key)) == {"value": 1}


# -- What this machine made ------------------------------------------------------------


def test_an_entry_of_this_machine_is_its_own(cache: Cache, tmp_path: Path) -> None:
    key = _key(program="abc")
    cache.store(key, {"value": 1})
    entry = cache.load(key)
    assert entry is not None
    assert entry.own
    with KEY_FILE.scope(tmp_path / "another" / "key"):
        entry = cache.load(key)
        assert entry is not None
        assert not entry.own
    assert (tmp_path / "another" / "key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("signature", [None, "", "00", "xyz", 5, ["a"], "0" * 64])
def test_a_forged_entry_is_not(cache: Cache, signature: object) -> None:
    key = _key(program="abc")
    cache.store(key, {"value": 1})
    path = cache.entries()[0].path
    kept = json.loads(path.read_text())["signature"]
    _document(path, content={"value": 2}, signature=kept)
    forged = cache.load(key)
    assert forged is not None
    assert not forged.own
    cache.store(key, {"value": 1})
    _document(path, signature=signature)
    unsigned = cache.load(key)
    assert unsigned is not None
    assert not unsigned.own


def test_a_signature_is_of_one_entry(cache: Cache) -> None:
    """Not of its content alone: another program's result is none of this one."""
    one, other = _key(program="abc"), _key(program="abd")
    for key in (one, other):
        cache.store(key, {"value": 1})
    paths = [cache.directory / MUGRAPHS / f"{k.digest}.json" for k in (one, other)]
    marks = [json.loads(p.read_text())["signature"] for p in paths]
    assert marks[0] != marks[1]
    _document(paths[0], signature=marks[1])
    entry = cache.load(one)
    assert entry is not None
    assert not entry.own


@pytest.mark.parametrize("how", ["below a file", "directory", "FIFO", "short"])
def test_a_key_that_cannot_be_kept_costs_one_warning(
    how: str, cache: Cache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "key"
    make: dict[str, Callable[[], object]] = {
        "below a file": lambda: place.write_text(""),
        "directory": place.mkdir,
        "FIFO": lambda: os.mkfifo(place),
        "short": lambda: place.write_bytes(b"x"),
    }
    make[how]()
    with KEY_FILE.scope(place / "key" if how == "below a file" else place):
        for name in "ab":
            cache.store(_key(program=name), {})
            entry = cache.load(_key(program=name))
            assert entry is not None
            assert entry.own
    assert caplog.text.count(KEY_FILE.name) == len(caplog.records) == 1


def test_processes_that_start_together_make_one_key(tmp_path: Path) -> None:
    code = "from mirage_dsl.core.files import signature; print(signature(b'x').hex())"
    env = {**os.environ, KEY_FILE.name: str(tmp_path / "new" / "key")}
    command = [sys.executable, "-c", code]
    started = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert len({p.communicate()[0] for p in started}) == 1
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["key"]


# -- Emitted modules -------------------------------------------------------------------

EMITTED = "def answer():\n    return 42\n"


def _emitted_file() -> Path:
    load_module(EMITTED)
    return source_file(EMITTED)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.write_text(EMITTED.replace("42", "43")),
        lambda p: p.write_text(f"import os; os.environ['RAN'] = '1'\n{EMITTED}"),
        lambda p: p.write_text(EMITTED[:10]),
        lambda p: p.unlink(),
        lambda p: _replace(p, os.mkfifo),
        lambda p: _replace(p, lambda q: q.symlink_to(q)),
    ],
)
def test_an_altered_module_is_not_run_and_is_written_anew(
    change: Callable[[Path], object], fresh_cache: Path
) -> None:
    file = _emitted_file()
    change(file)
    module = load_module(EMITTED)
    assert module.answer() == 42
    assert "RAN" not in os.environ
    assert file.read_text() == EMITTED
    assert file.is_relative_to(fresh_cache)


@pytest.mark.usefixtures("fresh_cache")
def test_a_module_has_its_own_source() -> None:
    """Whatever the file says, even if it cannot be written."""
    file = _emitted_file()
    file.unlink()
    (file / "in the way").mkdir(parents=True)
    for interpret in (False, True):
        answer = load_module(EMITTED, interpret=interpret).answer
        assert inspect.getsource(answer) == EMITTED
    linecache.clearcache()
    with interpreting():
        assert inspect.getsource(answer) == EMITTED


# -- The rest --------------------------------------------------------------------------


def test_the_least_recently_used_go_first(cache: Cache) -> None:
    keys = [_key(program=str(i)) for i in range(4)]
    for age, key in enumerate(keys):
        cache.store(key, {"filler": "x" * 1000})
        path = next(e.path for e in cache.entries() if e.key == key)
        os.utime(path, (age + 1, age + 1))
    assert cache.load(keys[0]) is not None
    size = cache.entries()[0].size
    assert cache.collect(2 * size + 10) == 2
    assert {e.key for e in cache.entries()} == {keys[0], keys[3]}


def test_the_limit_holds_when_storing(cache: Cache) -> None:
    with CACHE_LIMIT_MB.scope(1):
        for i in range(5):
            cache.store(_key(program=str(i)), {"filler": "x" * 300_000})
            assert sum(e.size for e in cache.entries()) <= 2**20
            assert cache.load(_key(program=str(i))) is not None
    assert len(cache.entries()) == 3


def test_an_entry_larger_than_the_limit_is_kept_alone(cache: Cache) -> None:
    with CACHE_LIMIT_MB.scope(1):
        cache.store(_key(program="small"), {})
        cache.store(_key(program="large"), {"filler": "x" * 2_000_000})
    assert [e.key for e in cache.entries()] == [_key(program="large")]


def test_a_miss_is_explained_by_the_nearest_entry(cache: Cache) -> None:
    key = _key(program="abc", seed="0", budget="5")
    assert "has no mugraphs" in cache.explain_miss(key)
    cache.store(_key(program="abc", seed="1", budget="5"), {})
    cache.store(_key(program="xyz", seed="2", budget="5"), {})
    text = cache.explain_miss(key)
    assert "seed: asked for 0, stored 1" in text
    assert "program" not in text


def test_a_key_prints_all_its_parts() -> None:
    key = _key(program="abc", seed="0")
    lines = str(key).splitlines()
    assert lines == [f"mugraphs {key.digest}", "program: abc", "seed: 0"]


def test_entries_are_found_by_prefix(cache: Cache) -> None:
    for i in range(20):
        cache.store(_key(program=str(i)), {"value": i})
    entry = cache.entries()[7]
    assert cache.find(entry.key.digest[:16]).content == entry.content
    with pytest.raises(CacheError, match="ambiguous"):
        cache.find("")
    with pytest.raises(CacheError, match="no entry starts with 'zz'"):
        cache.find("zz")


def test_an_exported_cache_is_imported(cache: Cache, tmp_path: Path) -> None:
    cache.store(_key(program="abc"), {"value": 1})
    cache.store(_key(TIMINGS, device="x"), {"value": 2})
    file = tmp_path / "all.json"
    assert cache.export(file) == 2
    other = Cache(tmp_path / "other")
    assert other.import_from(file) == 2
    assert _content(other.load(_key(program="abc"))) == {"value": 1}
    assert _content(other.load(_key(TIMINGS, device="x"))) == {"value": 2}


def test_an_imported_entry_is_not_this_machines_own(
    cache: Cache, tmp_path: Path
) -> None:
    key, file = _key(program="abc"), tmp_path / "all.json"
    cache.store(key, {"value": 1})
    cache.export(file)
    assert "signature" not in file.read_text()
    document = json.loads(file.read_text())
    document["entries"][0]["signature"] = "0" * 64
    file.write_text(json.dumps(document))
    cache.import_from(file)
    entry = cache.load(key)
    assert entry is not None
    assert not entry.own


def test_an_export_makes_no_directory(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "none" / "all.json"
    with pytest.raises(CacheError, match=r"there is no directory .*none; make it"):
        cache.export(file)
    assert not file.parent.exists()


def test_damaged_entries_of_an_archive_are_skipped(
    cache: Cache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.store(_key(program="abc"), {"value": 1})
    cache.store(_key(program="abd"), {"value": 7})
    file = tmp_path / "all.json"
    cache.export(file)
    file.write_text(file.read_text().replace('"value": 7', '"value": 8'))
    other = Cache(tmp_path / "other")
    assert other.import_from(file) == 1
    assert "damaged" in caplog.text
    assert other.load(_key(program="abd")) is None


NO_LIST = '{"format": "mirage_dsl cache archive 1", "entries": 5}'


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "x"}', NO_LIST, DEEP])
def test_another_file_is_not_imported(cache: Cache, tmp_path: Path, text: str) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(text)
    with pytest.raises(CacheError, match=r"wrong\.json"):
        cache.import_from(file)


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "below")
    cache.store(_key(program="abc"), {})
    cache.store(_key(program="abd"), {})
    assert cache.load(_key(program="abc")) is None
    assert cache.entries() == []
    assert cache.explain_miss(_key(program="abc"))
    assert caplog.text.count("cannot be used") == len(caplog.records) == 1


def test_threads_write_one_entry_each_whole(cache: Cache) -> None:
    def work(seed: int) -> None:
        for i in range(10):
            cache.store(_key(program=str(i)), {"filler": str(seed) * 2000})

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache.entries()) == 10
    assert cache.clear() == 10
    assert cache.entries() == []
