"""Attacks verification: a wrong μGraph is never called right.

A right text is changed in small ways, at the level of words or by the mistakes that
tests of the project make.  What is well formed, is verified against the text that it
was made of; what is accepted, has to give the same numbers at three sizes, on inputs of
several scales, and be finite where the other one is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from random import Random

import numpy as np
from numpy.typing import NDArray

import mirage_dsl as mirage
from tests.fuzz.attacks import Fault
from tests.fuzz.seeds import some_text, tokens
from tests.programs.mutations import mutations

TRIES = 30
"""Changes that are tried until one of them is well formed and another graph."""
SIZES = 3
SCALES = (0.25, 1.0, 8.0, 40.0)
TOLERANCE = 1e-6
"""Largest difference in float64, relative to the largest element of an output."""
MOST_ELEMENTS = 200_000

UNARY = [
    *("exp", "log", "sqrt", "rsqrt", "abs", "neg"),
    *("square", "relu", "sigmoid", "tanh", "silu", "erf"),
]
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum"]
REDUCED = ["sum", "max"]
ALIKE = [UNARY, BINARY, REDUCED, ["+", "-", "*", "/"], ["<", "<=", ">", ">=", "=="]]
CONSTANTS = ("0", "1", "2", "3", "-1", "0.5", "1e-06", "1e-05", "1/3", "inf")
TILES = ("1", "2", "4", "5", "8", "16", "32", "64", "128")


def attack(random: Random) -> str:
    """Verify a changed text against the right one."""
    text = some_text(random)
    program = mirage.parse(text)
    mutant = _mutant(random, text)
    if mutant is None:
        return "no mutant"
    certificate = mirage.verify(mutant, program, seed=random.randrange(2**32))
    if not certificate.ok:
        return "refused" if not certificate.equivalent else "unstable"
    compared = 0
    for sizes in _sizes(random, text):
        one, other = _resized(mutant, sizes), _resized(program, sizes)
        if one is not None and other is not None and compared < SIZES:
            _compare(random, one, other)
            compared += 1
    return f"right at {compared} sizes"


# -- Mutants ---------------------------------------------------------------------------


def _mutant(random: Random, text: str) -> mirage.KernelGraph | None:
    """Another well-formed graph that a few changes of a text make."""
    if random.random() < 0.2:
        known = _known(text)
        return random.choice(known) if known else None
    program = mirage.parse(text)
    loose = _without_types(text)
    for _ in range(TRIES):
        changed = loose
        for _ in range(random.choice((1, 1, 1, 2, 2, 3))):
            changed = random.choice(CHANGES)(random, changed)
        try:
            graph = mirage.parse(changed)
        except (mirage.ParseError, mirage.CheckError):
            continue
        if graph != program and not mirage.check(graph):
            return graph
    return None


@cache
def _known(text: str) -> list[mirage.KernelGraph]:
    """Mistakes that the project's own tests make in a graph."""
    return [m.graph for m in mutations(mirage.parse(text))]


def _without_types(text: str) -> str:
    """The text without the types of values that follow from their operands."""
    return re.sub(r"(?m)^(\s+\w+): \w+\[[^\]]*\](?= = (?!load|block))", r"\1", text)


def _body(words: list[str]) -> range:
    """The places of the words behind the header."""
    return range(words.index("{") if "{" in words else 0, len(words))


def _names(words: list[str]) -> list[int]:
    """The places of names, behind the header."""
    return [i for i in _body(words) if words[i][0].isalpha()]


def _replaced(random: Random, text: str, pattern: str, others: tuple[str, ...]) -> str:
    """One match of a pattern replaced by another text."""
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    match = random.choice(found)
    return text[: match.start()] + random.choice(others) + text[match.end() :]


def _operator(random: Random, text: str) -> str:
    """An operator exchanged for another of its form."""
    words = tokens(text)
    places = [i for i in _body(words) if any(words[i] in group for group in ALIKE)]
    if places:
        at = random.choice(places)
        group = next(g for g in ALIKE if words[at] in g)
        words[at] = random.choice(group)
    return "".join(words)


def _name(random: Random, text: str) -> str:
    """A name exchanged for another one of the text: an operand, a dim, a target."""
    words = tokens(text)
    places, names = _names(words), sorted({w for w in words if w[0].isalpha()})
    if places:
        words[random.choice(places)] = random.choice(names)
    return "".join(words)


def _swapped(random: Random, text: str) -> str:
    """Two names of one line exchanged."""
    lines = text.split("\n")
    at = random.randrange(len(lines))
    words = tokens(lines[at])
    places = [i for i, w in enumerate(words) if w[0].isalpha()]
    if len(places) > 1:
        one, other = random.sample(places, 2)
        words[one], words[other] = words[other], words[one]
    lines[at] = "".join(words)
    return "\n".join(lines)


def _constant(random: Random, text: str) -> str:
    """Another constant, bound, tile, or position."""
    words = tokens(text)
    places = [i for i in _body(words) if words[i][0].isdigit()]
    if places:
        at = random.choice(places)
        near = [str(int(words[at]) + d) for d in (-1, 1)] if words[at].isdigit() else []
        dims = sorted(set(re.findall(r"(\w+) = [\d?]", text.partition("{")[0])))
        powers = [f"1/{d}" for d in dims] + [f"2*{d}" for d in dims]
        words[at] = random.choice((*CONSTANTS, *TILES, *near, *powers))
    return "".join(words)


def _piece(random: Random, text: str) -> str:
    """A `/grid` or `/loop` put in or taken out, in one place or for one dim."""
    if random.random() < 0.5:
        return _replaced(random, text, r"/(grid|loop)\b", ("", "/grid", "/loop"))
    pieces = re.findall(r"\b(\w+)/(grid|loop)\b", text)
    if not pieces:
        return text
    dim, kind = random.choice(pieces)
    other = random.choice(("", "/grid", "/loop", "/grid/loop"))
    return re.sub(rf"\b{dim}/{kind}\b", dim + other, text)


def _split(random: Random, text: str) -> str:
    """A split of the grid or the loop left out, joined or exchanged."""
    changes = (
        (r" (grid|loop)\([^)]*\)", ("",)),
        (r"\b(grid|loop)\(", ("grid(", "loop(")),
        (r"(\w+ / \d+), ", ("",)),
        (r" & ", (", ",)),
        (r", (?=\w+ / \d)", (" & ",)),
    )
    pattern, others = random.choice(changes)
    return _replaced(random, text, pattern, others)


def _accumulated(random: Random, text: str) -> str:
    """Another kind of accumulator, or none."""
    changes = (
        (r" rescale \w+", ("",)),
        (r"(?<=accumulate )(\w+)(?=\n)", ("",)),
        (r"(?m)(?<== accumulate )\S.*$", ()),
        (r"\baccumulate (?=\w+\()", ("", "running max ")),
        (r"running max ", ("", "accumulate ")),
    )
    pattern, others = random.choice(changes)
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    if others and others != ("",):
        return _replaced(random, text, pattern, others)
    match = random.choice(found)
    ends = (" max", " concat", "") if "rescale" not in match[0] else ("",)
    value = "" if "rescale" in match[0] else match[0]
    return text[: match.start()] + value + random.choice(ends) + text[match.end() :]


def _dropped(random: Random, text: str) -> str:
    """A line left out, whose result is one of its operands from there on."""
    lines = text.split("\n")
    at = random.randrange(len(lines))
    found = re.match(r"\s+(\w+)(?:: [^=]*)? = (?!block|load)(.*)", lines[at])
    if found is None:
        return text
    operands = [w for w in tokens(found[2]) if w[0].isalpha()]
    if not operands:
        return text
    rest = "\n".join(lines[at + 1 :])
    rest = re.sub(rf"\b{found[1]}\b", random.choice(operands), rest)
    return "\n".join(lines[:at]) + "\n" + rest


def _wrapped(random: Random, text: str) -> str:
    """An operand with something done to it that may or may not matter."""
    words = tokens(text)
    places = _names(words)
    if not places:
        return text
    at = random.choice(places)
    name = words[at]
    forms = (
        *(f"({name} * 1)", f"({name} + 0)", f"({name} - {name})", f"abs({name})"),
        *(f"sqrt({name} * {name})", f"exp(log({name}))", f"log(exp({name}))"),
        *(f"({name} + 1e-06)", f"maximum({name}, 0)", f"({name} + 1 - 1)"),
        *(f"maximum({name}, -10000)", f"minimum({name}, 1000)", f"({name} / 2 * 2)"),
        *(f"(1 / (1 / {name}))", f"square(sqrt({name}))", f"tanh({name})"),
        *(f"({name} * {name} / {name})", f"(2 * {name} - {name})", f"neg({name})"),
    )
    words[at] = random.choice(forms)
    return "".join(words)


def _moved(random: Random, text: str) -> str:
    """Two lines exchanged, or one done twice."""
    lines = text.split("\n")
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return "\n".join(lines)


CHANGES = (
    *(_operator, _name, _swapped, _constant, _piece, _split),
    *(_accumulated, _dropped, _wrapped, _moved, _name, _wrapped),
)


# -- Numbers ---------------------------------------------------------------------------


def _sizes(random: Random, text: str) -> Iterator[dict[str, int]]:
    """The written extents if they are small, and others."""
    written = {n: int(e) for n, e in re.findall(r"\b(\w+) = (\d+)", _header(text))}
    yield written
    for _ in range(2 * SIZES):
        yield {name: _size(random, name, e, text) for name, e in written.items()}


def _header(text: str) -> str:
    head = re.search(r"where[^{]*\{", text)
    return head[0] if head else ""


def _size(random: Random, name: str, extent: int, text: str) -> int:
    """Another extent of a dim: some tiles of it, or a few elements."""
    tiles = [int(t) for t in re.findall(rf"\b{name} / (\d+)", text)]
    if not tiles:
        stops = [int(s) for s in re.findall(rf"dim\({name}\).*?stop\((\d+)\)", text)]
        return max(1, *stops, random.choice((1, 2, 3, 7, 16, min(extent, 21))))
    tile = max(tiles)
    return max(1, random.choice((tile, 2 * tile, tile + 3, 2 * tile - 1, tile - 1, 5)))


def _resized(
    graph: mirage.KernelGraph, sizes: dict[str, int]
) -> mirage.KernelGraph | None:
    """The graph at other sizes, by its text; None where it is not well formed then."""
    text = str(graph)
    for name, extent in sizes.items():
        text = re.sub(
            rf"(?<=[ ,])({re.escape(name)}) = \d+", rf"\1 = {extent}", text, count=1
        )
    try:
        found = mirage.parse(text)
    except (mirage.ParseError, mirage.CheckError):
        return None
    extents = dict(found.extents)
    elements = [
        np.prod([extents[n] or 1 for n in item.type.names], dtype=float)
        for item in found.inputs
    ]
    return None if mirage.check(found) or sum(elements) > MOST_ELEMENTS else found


def _inputs(
    random: Random, graph: mirage.KernelGraph
) -> tuple[list[NDArray[np.float64]], bool]:
    """Arrays of several scales and signs; and whether they have zeros or equal rows."""
    generator = np.random.default_rng(random.randrange(2**32))
    extents = dict(graph.extents)
    found: list[NDArray[np.float64]] = []
    special = random.random() < 0.3
    for item in graph.inputs:
        shape = [int(np.prod([extents[d.name] for d in a])) for a in item.type.axes]
        x = generator.standard_normal(shape) * random.choice(SCALES)
        match random.randrange(6 if special else 3):
            case 0:
                x = np.abs(x)
            case 1:
                x = x + random.choice((30.0, -30.0))
            case 3:
                x = np.round(x)
            case 4 if x.ndim:
                x = np.broadcast_to(x[:1], x.shape).copy()
            case 5:
                x = np.where(generator.random(shape) < 0.3, 0.0, x)
            case _:
                pass
        found.append(x)
    return found, special


def _compare(
    random: Random, mutant: mirage.KernelGraph, program: mirage.KernelGraph
) -> None:
    """Both give the same on some inputs.

    Identities hold but for points that nobody meets by chance: x·x/x at 0.  So what has
    to be finite where the program is, is so on inputs without zeros and equal numbers.
    And float64 holds what the program's own formats do not: where the program is wrong
    as it is executed, since exponentials in f16 overflow or vanish, say, nobody has to
    be right.

    Raises:
        Fault: They do not.
    """
    inputs, special = _inputs(random, program)
    with np.errstate(all="ignore"):
        right = mirage.evaluate(program, *inputs)
        found = mirage.evaluate(mutant, *inputs)
        narrow = mirage.evaluate(program, *inputs, compute=np.float32)
        executed = mirage.evaluate(
            program, *inputs, compute=np.float32, round_casts=True
        )
        other = mirage.evaluate(mutant, *inputs, compute=np.float32)
        for at, (a, b) in enumerate(zip(right, found, strict=True)):
            about_right = np.abs(executed[at] - a) <= 0.5 * np.abs(a)
            held = about_right & (not special)
            finite = np.isfinite(a) & (np.isfinite(b) | held)
            scale = np.abs(a[finite]).max(initial=1e-30)
            error = np.abs(a - b)[finite & about_right].max(initial=0) / scale
            if not error <= TOLERANCE:
                _wrong(f"output {at} differs by {error:.3g}", mutant, program)
            lost = np.isfinite(narrow[at]) & ~np.isfinite(other[at]) & held
            if lost.any():
                _wrong(f"output {at} is not finite in f32", mutant, program)


def _wrong(what: str, mutant: object, program: object) -> None:
    raise Fault(f"accepted, but {what}:\n{mutant}\nmade of\n{program}")
