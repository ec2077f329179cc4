"""The cache: atomic, checksummed, limited, explainable, movable."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path

import pytest

from mirage_dsl.cache import MUGRAPHS, TIMINGS, Cache, Key
from mirage_dsl.errors import CacheError
from mirage_dsl.settings import CACHE_DIR, CACHE_LIMIT_MB


def _key(kind: str = MUGRAPHS, **parts: str) -> Key:
    return Key(kind, tuple(parts.items()))


@pytest.fixture
def cache(fresh_cache: Path) -> Cache:
    return Cache(fresh_cache)


def test_what_is_stored_is_loaded(cache: Cache) -> None:
    key = _key(program="abc", extents="μ = 4")
    content = {"text": "σ", "numbers": [1, 2.5, None]}
    assert cache.load(key) is None
    cache.store(key, content)
    assert cache.load(key) == content
    assert Cache(cache.directory).load(key) == content


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
    assert cache.load(key) == {"value": 1}
    assert len(list((cache.directory / MUGRAPHS).iterdir())) == 1


def _damage(path: Path, how: str) -> None:
    text = path.read_text()
    document = json.loads(text)
    if how == "cut":
        path.write_text(text[: len(text) // 2])
    elif how == "edited":
        document["content"]["value"] = 2
        path.write_text(json.dumps(document))
    elif how == "format":
        document["format"] = "another"
        path.write_text(json.dumps(document))
    elif how == "no text":
        path.write_bytes(b"\xff\xfe\x00")
    elif how == "renamed":
        path.write_text(text.replace("abc", "abd"))
    else:
        path.write_text("[]")


@pytest.mark.parametrize(
    "how", ["cut", "edited", "format", "no text", "renamed", "list"]
)
def test_a_damaged_entry_is_a_miss_and_is_removed(
    cache: Cache, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = _key(program="abc")
    cache.store(key, {"value": 1})
    path = cache.entries()[0].path
    _damage(path, how)
    with caplog.at_level(logging.WARNING, "mirage_dsl.cache"):
        assert cache.load(key) is None
    assert "is damaged and was removed" in caplog.text
    assert not path.exists()
    cache.store(key, {"value": 3})
    assert cache.load(key) == {"value": 3}


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
    assert other.load(_key(program="abc")) == {"value": 1}
    assert other.load(_key(TIMINGS, device="x")) == {"value": 2}


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


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "x"}'])
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
    assert "cannot be written" in caplog.text
    assert cache.load(_key(program="abc")) is None


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
