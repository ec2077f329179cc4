"""Attacks on what is kept on disk: damaged, forged and foreign files of the cache.

A case lays out a cache with real entries (results of searches, timings, emitted
modules), damages it somewhere, and asks the library or the command line.  Whatever was
done: the numbers are right, nothing of a file is executed, nothing hangs, and what
cannot be used is searched again, or refused by an error of the project.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from click.testing import CliRunner
from numpy.typing import NDArray

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.cli.app import app
from mirage_dsl.core.errors import MirageError
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.settings import CACHE_DIR, DISALLOW_SEARCH
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.store.cache import TIMINGS, Cache, Key
from mirage_dsl.store.superoptimize import superoptimize
from mirage_dsl.tune.measure import Timing
from mirage_dsl.tune.tuner import Measured, stored_timings, timings_document
from tests.fuzz.attacks import Fault

RAN = "MIRAGE_DSL_FUZZ_RAN"
"""Set by whatever injected code is executed."""
INJECTED = f"import os; os.environ[{RAN!r}] = '1'\n"
TOLERANCE = 2e-2
"""Of f16 results, whose largest element is about 1."""

Array = NDArray[np.float64]


@mirage.kernel
def gated(x: Any, w: Any) -> Any:
    return mirage.silu(x @ w)


@mirage.kernel
def normed(x: Any, w: Any) -> Any:
    return mirage.rms_norm(x) @ w


@mirage.kernel
def weighted(x: Any, y: Any) -> Any:
    return mirage.softmax(x) * y


@dataclass(frozen=True)
class Subject:
    """A program with what is right of it.

    Attributes:
        program: The program.
        inputs: Tensors for it.
        expected: What it gives, in float64.
        best: The best μGraph of its search.
        texts: The texts of all.
        key: Of its timings.
    """

    program: KernelGraph
    inputs: tuple[Array, ...]
    expected: Array
    best: KernelGraph
    texts: tuple[str, ...]
    key: Key


@dataclass(frozen=True)
class Prepared:
    """What all cases of a process start from.

    Attributes:
        subjects: Programs that were searched.
        files: The files of the cache, by their paths below it.
    """

    subjects: tuple[Subject, ...]
    files: dict[str, bytes]


def _prepared() -> Prepared:
    with tempfile.TemporaryDirectory() as name, CACHE_DIR.scope(Path(name)):
        found = (
            _subject(gated.trace(mirage.spec((4, 8)), mirage.spec((8, 16)))),
            _subject(normed.trace(mirage.spec((4, 16)), mirage.spec((16, 8)))),
            _subject(weighted.trace(mirage.spec((4, 8)), mirage.spec((4, 8)))),
        )
        files = [f for f in Path(name).rglob("*") if f.suffix in (".json", ".py")]
        content = {str(f.relative_to(name)): f.read_bytes() for f in files}
    return Prepared(found, content)


def _subject(program: KernelGraph) -> Subject:
    result = superoptimize(program, budget_seconds=20.0)
    generator = np.random.default_rng(len(program.name))
    shapes = [
        [program.extent_of[d.name] or 1 for axis in i.type.axes for d in axis]
        for i in program.inputs
    ]
    inputs = tuple(generator.standard_normal(shape) * 0.5 for shape in shapes)
    key = Key(TIMINGS, (("program", canonical_hash(program)),))
    best = result.best
    measured = [Measured(best.mugraph, Timing(0, 3.5, 1e-3))]
    Cache().store(key, timings_document([best], measured, program))
    texts = tuple(to_text(c.mugraph) for c in result)
    expected = evaluate_numpy(program, *inputs)[0]
    subject = Subject(program, inputs, expected, best.mugraph, texts, key)
    _run(subject)
    return subject


# -- Questions -------------------------------------------------------------------------


def attack(random: Random) -> str:
    """Damage a cache and ask it; what came of it."""
    # What is damaged is warned about, thousands of times.
    log = logging.getLogger("mirage_dsl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return _attack(random)
    finally:
        log.setLevel(level)


def _attack(random: Random) -> str:
    prepared = PREPARED
    os.environ.pop(RAN, None)
    place = Path(tempfile.mkdtemp(prefix="mirage_dsl-entries-"))
    directory = place / "cache"
    try:
        for name, data in prepared.files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(data)
        subject = random.choice(prepared.subjects)
        ask = random.choices(list(QUESTIONS), list(QUESTIONS.values()))[0]
        with CACHE_DIR.scope(directory):
            damage = _damage(random, directory, prepared, ask)
            label = ask(random, subject, place)
    finally:
        _clear(place)
    if os.environ.pop(RAN, None) is not None:
        raise Fault(f"{damage}: a file of the cache was executed")
    return label


def _search(random: Random, subject: Subject, _place: Path) -> str:
    """Ask for the result of a search; one in fifty may be searched again."""
    with _searching(random.random() < 0.02):
        try:
            result = superoptimize(subject.program, budget_seconds=20.0)
        except MirageError as error:
            _require("not in the cache" in str(error), f"refused: {error}")
            return "missed"
    _require(result.program == subject.program, "a result of another program")
    return _judged(result.candidates, subject)


def _timings(_random: Random, subject: Subject, _place: Path) -> str:
    """Ask for what was timed, and which μGraph was chosen."""
    found = stored_timings(Cache(), subject.key, subject.program, H100)
    return "missed" if found is None else _judged(found[0], subject)


def _kernel(_random: Random, subject: Subject, _place: Path) -> str:
    """Run an emitted module."""
    _run(subject)
    return "right"


COMMANDS = (
    ("ls",),
    ("ls", "--json"),
    ("show", ""),
    ("show", "{digest}"),
    ("show", "{digest}", "--json"),
    ("gc", "--limit-mb", "0"),
    ("gc",),
    ("export", "{place}/all.json"),
    ("import", "{place}/cache/{file}"),
    ("clear", "--yes"),
)


def _command(random: Random, subject: Subject, place: Path) -> str:
    """Ask the command line."""
    names = list(PREPARED.files)
    file = random.choice([n for n in names if n.endswith(".json")])
    given = {"digest": Path(file).stem[:12], "place": str(place), "file": file}
    words = [word.format(**given) for word in random.choice(COMMANDS)]
    done = CliRunner().invoke(app, ["cache", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise Fault(f"cache {words}: {done.exception!r}") from done.exception
    _require(done.exit_code in (0, 2), f"cache {words}: exit code {done.exit_code}")
    _require(bool(done.output), f"cache {words}: no word")
    del subject
    return f"command {'done' if done.exit_code == 0 else 'refused'}"


def _moved(random: Random, subject: Subject, place: Path) -> str:
    """Export what is there, import it elsewhere, and ask for it."""
    file = place / "all.json"
    try:
        Cache().export(file)
        with CACHE_DIR.scope(place / "other"):
            Cache().import_from(file)
            return f"moved, {_search(random, subject, place)}"
    except (MirageError, OSError):
        return "not moved"


QUESTIONS: dict[Callable[[Random, Subject, Path], str], float] = {
    _search: 5.0,
    _timings: 2.0,
    _kernel: 1.0,
    _command: 2.0,
    _moved: 0.3,
}


@contextmanager
def _searching(allowed: bool) -> Iterator[None]:
    with DISALLOW_SEARCH.scope(not allowed):
        yield


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Fault(otherwise)


def _judged(found: Any, subject: Subject) -> str:
    """Whether all candidates compute the program."""
    known = True
    for candidate in found:
        graph = candidate.mugraph
        if to_text(graph) in subject.texts:
            continue
        known = False
        _require(not any(b.schedule.allow_tf32 for b in graph.blocks), "rounds to TF32")
        values = evaluate_numpy(graph, *subject.inputs)[0]
        _require(
            np.allclose(values, subject.expected, rtol=1e-6, atol=1e-9),
            f"a wrong μGraph:\n{graph}",
        )
    return "right" if known else "right, another"


def _run(subject: Subject) -> None:
    """Run the best μGraph in Triton's interpreter, from its emitted module."""
    tensors = [torch.tensor(a, dtype=torch.float16) for a in subject.inputs]
    found = TritonExecutable(subject.best, interpret=True)(*tensors)[0]
    error = np.abs(found.double().numpy() - subject.expected).max()
    _require(error < TOLERANCE, f"{subject.program.name} is wrong by {error}")


# -- Damage ----------------------------------------------------------------------------


def _damage(random: Random, directory: Path, prepared: Prepared, ask: Any) -> str:
    """Damage something, mostly of the kind that is asked for; what it was."""
    if random.random() < 0.05:
        damage = random.choice(DIRECTORIES)
        damage(random, directory)
        return damage.__name__
    suffix = ".py" if ask is _kernel else ".json"
    names = [n for n in prepared.files if n.endswith(suffix)]
    # Each, or the question would often be for one that is well.
    hit = names if random.random() < 0.7 else random.sample(names, 1)
    forge = suffix == ".json" and random.random() < 0.7
    kinds = FORGERIES if forge else MODULES if suffix == ".py" else FILES
    damage = random.choice(kinds)
    for name in hit:
        damage(random, directory / name)
    return f"{damage.__name__} of {hit}"


def _bits(random: Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 1, 3, 30))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def _cut(random: Random, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: random.randrange(len(data))])


def _grown(random: Random, path: Path) -> None:
    data = path.read_bytes()
    at = random.randrange(len(data))
    more = random.choice((data[at:], b"\0" * 5000, random.randbytes(40), b'"', b"}]"))
    path.write_bytes(data[:at] + more + data[at:])


def _encoded(random: Random, path: Path) -> None:
    encoding = random.choice(("utf-16", "utf-32", "utf-8-sig", "utf-7"))
    path.write_text(path.read_text("utf-8"), encoding)


def _nested(random: Random, path: Path) -> None:
    depth = random.choice((60, 500, 950, 990, 3000, 200_000))
    opening, closing = random.choice((("[", "]"), ('{"a":', "}")))
    path.write_text(opening * depth + "1" + closing * depth * random.randrange(2))


def _of_another_kind(random: Random, path: Path) -> None:
    path.unlink()
    make: Callable[[], object] = random.choice(
        (
            lambda: os.mkfifo(path),
            path.mkdir,
            lambda: (path / "full").mkdir(parents=True),
            lambda: path.symlink_to(path),
            lambda: path.symlink_to(random.choice(("/dev/zero", "/dev/null", "gone"))),
            lambda: path.symlink_to(
                random.choice(sorted(path.parent.iterdir()) or "x")
            ),
            lambda: _socket(path),
            lambda: _sparse(path),
        )
    )
    make()


def _socket(path: Path) -> None:
    # The path of a socket is short, that of an entry is not.
    before = Path.cwd()
    with socket.socket(socket.AF_UNIX) as made, suppress(OSError):
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(before)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def _unreadable(random: Random, path: Path) -> None:
    path.chmod(random.choice((0o000, 0o200, 0o444)))


def _swapped(random: Random, path: Path) -> None:
    others = [p for p in path.parent.iterdir() if p.suffix == path.suffix]
    path.write_bytes(random.choice(others).read_bytes())


FILES = (
    _bits,
    _cut,
    _grown,
    _encoded,
    _nested,
    _of_another_kind,
    _unreadable,
    _swapped,
)


def _injected(random: Random, path: Path) -> None:
    text = path.read_text("utf-8")
    path.write_text(random.choice((INJECTED + text, text + INJECTED, INJECTED)))


def _other_number(random: Random, path: Path) -> None:
    text = path.read_text("utf-8")
    numbers = list(re.finditer(r"\b\d+(\.\d+)?\b", text))
    at = random.choice(numbers)
    path.write_text(text[: at.start()] + "7" + text[at.end() :])


MODULES = (*FILES, _injected, _injected, _other_number)


def _file_in_place(_random: Random, directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("")


def _loop(_random: Random, directory: Path) -> None:
    shutil.rmtree(directory)
    directory.symlink_to(directory)


def _fifo_in_place(_random: Random, directory: Path) -> None:
    shutil.rmtree(directory)
    os.mkfifo(directory)


def _parts_in_place(random: Random, directory: Path) -> None:
    name = random.choice(("mugraphs", "timings", "triton", ".lock", "made"))
    with suppress(OSError):
        shutil.rmtree(directory / name)
    random.choice((Path.touch, os.mkfifo, Path.mkdir))(directory / name)


def _gone(_random: Random, directory: Path) -> None:
    shutil.rmtree(directory)


DIRECTORIES = (_file_in_place, _loop, _fifo_in_place, _parts_in_place, _gone)


# -- Forgeries, behind a right checksum ------------------------------------------------


def _forged(random: Random, path: Path, change: Callable[[Any], object]) -> None:
    """Rewrite an entry with another content and the checksum of that."""
    document = json.loads(path.read_text("utf-8"))
    change(document["content"])
    _sum_up(random, document)
    path.write_text(json.dumps(document), "utf-8")


def _sum_up(random: Random, document: dict[str, Any]) -> None:
    summed = [document["kind"], document["key"], document["content"]]
    text = json.dumps(summed, sort_keys=True, separators=(",", ":"))
    document["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    how = random.randrange(4)
    if how == 0:
        document.pop("signature", None)
    elif how == 1:
        document["signature"] = random.choice((None, "", "00" * 32, 7, ["a"], "zz"))


def _values(content: Any) -> list[tuple[Any, Any]]:
    """All places of values in some JSON."""
    found: list[tuple[Any, Any]] = []
    pending = [content]
    while pending:
        holder = pending.pop()
        names = holder if isinstance(holder, dict) else range(len(holder))
        for name in names:
            found.append((holder, name))
            if isinstance(holder[name], dict | list):
                pending.append(holder[name])
    return found


def _wrong(random: Random) -> Any:
    return random.choice(
        (
            *(None, True, False, 0, -1, 2**70, 10**400, 1e308, 0.5, "", "x", "\ud800"),
            *(float("nan"), float("inf"), -float("inf"), [], {}, [[]], {"": 1}),
            *([None] * 50, "0" * 100_000, {"a": {"b": {"c": []}}}, "∞\u202e\0"),
        )
    )


def _other_types(random: Random, path: Path) -> None:
    def change(content: Any) -> None:
        for _ in range(random.choice((1, 1, 1, 4))):
            holder, name = random.choice(_values(content))
            holder[name] = _wrong(random)

    _forged(random, path, change)


def _lost(random: Random, path: Path) -> None:
    def change(content: Any) -> None:
        holder, name = random.choice(_values(content))
        del holder[name]

    _forged(random, path, change)


def _around(random: Random, path: Path) -> None:
    """Other values around the content: of the key, of the format."""
    document = json.loads(path.read_text("utf-8"))
    document[random.choice(list(document))] = _wrong(random)
    with suppress(ValueError, TypeError):
        _sum_up(random, document)
    path.write_text(json.dumps(document), "utf-8")


REPLACED = (
    ("silu", "sigmoid"),
    ("silu", "relu"),
    ("matmul", "mul"),
    ("mul", "add"),
    ("max", "sum"),
    ("sum", "max"),
    ("exp", "sigmoid"),
    ("rsqrt", "sqrt"),
    (r"\d+", "1"),
    (r"\d+", "3"),
    (r"1/k", "1"),
    (r"/loop", ""),
    (r"/grid", ""),
    (r"f32", "f16"),
    ("num_stages", "allow_tf32(true) num_stages"),
    (r"over\(\w\)", "over(m)"),
)


def _other_mugraphs(random: Random, path: Path) -> None:
    """Texts that say something else, with certificates that are made to fit."""
    what, by = random.choice(REPLACED)
    whole = random.random() < 0.2

    def other(text: str) -> str:
        found = list(re.finditer(what, text))
        if whole or not found:
            return re.sub(what, by, text)
        at = random.choice(found)
        return text[: at.start()] + by + text[at.end() :]

    def change(content: Any) -> None:
        for candidate in content["candidates"]:
            candidate["mugraph"] = other(candidate["mugraph"])
            with suppress(MirageError, KeyError, ValueError):
                digest = canonical_hash(parse(candidate["mugraph"]))
                candidate["certificate"]["candidate_hash"] = digest

    _forged(random, path, change)


def _of_another_program(random: Random, path: Path) -> None:
    """The content of another entry under this one's key, hashes made to fit."""
    others = [p for p in path.parent.iterdir() if p.is_file()]
    given = json.loads(random.choice(others).read_text("utf-8"))["content"]

    def change(content: Any) -> None:
        digest = content["candidates"][0]["certificate"]["program_hash"]
        program = content["program"]
        content.update(given)
        if random.random() < 0.5:
            content["program"] = program
        for candidate in content["candidates"]:
            candidate["certificate"]["program_hash"] = digest

    _forged(random, path, change)


FORGERIES = (
    *(_other_types, _lost, _around, _other_mugraphs, _other_mugraphs),
    *(_other_mugraphs, _of_another_program),
)


def _clear(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)


PREPARED = _prepared()
"""Made once, where no case is under way."""
