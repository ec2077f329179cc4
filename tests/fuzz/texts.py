"""Attacks the reader of texts: whatever the text, a graph or an error of ours.

What is read, is checked, printed, hashed and compared without any other exception; what
the checker accepts is read back from its print as it was.
"""

from __future__ import annotations

from functools import cache
from random import Random

import mirage_dsl as mirage
from mirage_dsl.ir.canonical import canonical_hash
from tests.fuzz.attacks import Fault
from tests.fuzz.seeds import right_texts, some_text, tokens

SIGNS = (*"(){}[],:=+-*/@<>?&#^.\n \t\r\\\"'`~!$%;|_0179", "//", "->", "==", "<=")
ODD = (
    *("0", "1", "-1", "9" * 30, "9" * 5000, "1e400", "1e-400", "inf", "nan", "-inf"),
    *("0x10", "1_000", "٣", "²", "1/0", "1/3", "1*k", "1*k^99", "1/k/k", "2*k^2/m"),
    *(
        "k#",
        "k##",
        "#",
        "é",
        "ﬁ",
        "\ud800",
        "\x00",
        "\u2028",
        "\ufeff",
        "￼",
        "\U0001d431",
    ),
    *("None", "class", "__debug__", "load", "store", "return", "block", "max", "where"),
    *("exp(", "((((", "))))", "[[", "}{", "x @ x", "rename", "over()", "over(k, k)"),
    *("layout()", "layout(0, 0)", "layout(1, 0)", "/grid", "/loop", "/grid/loop"),
    *("mirage 2", "// x", "//", "\n\n", "grid(m / 0)", "loop(k / -1)", "num_stages(0)"),
)


def attack(random: Random) -> str:
    """Change a right text, or make one up, and read it."""
    text = _changed(random) if random.random() < 0.95 else _made_up(random)
    try:
        graph = mirage.parse(text)
    except (mirage.ParseError, mirage.CheckError) as error:
        place = error.location
        if place is None or not 1 <= place.line <= text.count("\n") + 1:
            raise Fault(f"no place in the text: {error}\n{text!r}") from None
        if (place.column or 0) > len(place.text) + 1:
            raise Fault(f"no column in the line: {error}\n{text!r}") from None
        if len(str(error)) > 2000 + len(text):
            raise Fault(f"an error of {len(str(error))} characters\n{text!r}") from None
        return "refused"
    found = [str(d) for d in mirage.check(graph)]
    printed = str(graph)
    mirage.diff(graph, _first())
    if found:
        return "not well formed"
    canonical_hash(graph)
    again = mirage.parse(printed)
    if again != graph or str(again) != printed:
        raise Fault(f"read back as another graph:\n{text!r}\n{printed}\n{again}")
    if mirage.check(again) or mirage.diff(graph, again):
        raise Fault(f"its print is not well formed, or differs:\n{text!r}\n{printed}")
    return "read"


@cache
def _first() -> mirage.KernelGraph:
    return mirage.parse(right_texts()[0])


def _changed(random: Random) -> str:
    text = some_text(random)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        text = random.choice((_signs, _words, _words, _words, _lines, _nested))(
            random, text
        )
    return text


def _made_up(random: Random) -> str:
    """A text of random signs, or of random words."""
    length = random.randrange(1, 200)
    if random.random() < 0.3:
        signs = "".join(chr(random.randrange(1, 0x3000)) for _ in range(length))
        return random.choice(("", "mirage 1\n")) + signs
    words = [w for t in random.sample(right_texts(), 3) for w in tokens(t)]
    made = "".join(random.choice(words) for _ in range(length))
    return random.choice(("", "mirage 1\n", "mirage 1\nmugraph f(x: f32[m]) ")) + made


def _signs(random: Random, text: str) -> str:
    """Characters put in, taken out or exchanged."""
    at = random.randrange(len(text) + 1)
    return text[:at] + random.choice(SIGNS) * random.randrange(2) + text[at + 1 :]


def _words(random: Random, text: str) -> str:
    """Words put in, taken out, doubled, exchanged, or replaced by others."""
    words = tokens(text)
    if not words:
        return random.choice(ODD)
    at, other = random.randrange(len(words)), random.randrange(len(words))
    match random.randrange(6):
        case 0:
            words[at] = random.choice(ODD)
        case 1:
            words[at], words[other] = words[other], words[at]
        case 2:
            del words[at]
        case 3:
            words.insert(at, random.choice((words[other], random.choice(ODD))))
        case 4:
            names = [w for w in words if w[0].isalpha()]
            places = [i for i, w in enumerate(words) if w[0].isalpha()]
            if places:
                words[random.choice(places)] = random.choice(names)
        case _:
            words[at] = random.choice(tokens(random.choice(right_texts())))
    return "".join(words)


def _lines(random: Random, text: str) -> str:
    """Lines taken out, doubled, exchanged, or put in from another text."""
    lines = text.split("\n")
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[other])
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            lines.insert(at, random.choice(random.choice(right_texts()).split("\n")))
    return "\n".join(lines)


def _nested(random: Random, text: str) -> str:
    """A word deep inside of brackets, calls or operators."""
    words = tokens(text)
    places = [i for i, w in enumerate(words) if w[0].isalnum()]
    if not places:
        return text
    at, deep = random.choice(places), random.choice((1, 2, 20, 400))
    opened, closed = random.choice(
        (("(", ")"), ("exp(", ")"), ("[", "]"), ("1 + ", ""), ("", " * x"), ("a/", ""))
    )
    words[at] = opened * deep + words[at] + closed * deep
    return "".join(words)
