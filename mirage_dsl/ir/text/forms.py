"""The forms of `.mu` text, where each stands, and what is said of wrong ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from mirage_dsl.core.errors import CheckError, ParseError, SourceLocation

# -- Places and errors -----------------------------------------------------------------


def clipped(name: str) -> str:
    """What messages show of a name, which may be of any length."""
    return name if len(name) <= 80 else f"{name[:77]}..."


@dataclass(frozen=True)
class Word:
    """A piece of the text and where it stands, counted from 1."""

    text: str
    line: int
    column: int

    def __str__(self) -> str:
        """What messages show of it."""
        return clipped(self.text)


@dataclass(frozen=True)
class Source:
    """A text and the name of its file."""

    file: str
    text: str

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines, without what is blank at their ends."""
        return tuple(line.rstrip() for line in self.text.split("\n"))

    def at(self, word: Word) -> SourceLocation:
        """The place of a word."""
        return self._location(word.line, word.column)

    def whole(self) -> SourceLocation:
        """The place that stands for all of the text."""
        return self._location(1, None)

    def end(self) -> SourceLocation:
        """The place behind the last line that is not blank."""
        last = max((n for n, line in enumerate(self.lines, 1) if line), default=1)
        return self._location(last, len(self.lines[last - 1]) + 1)

    def require_version(self, kind: str, version: int) -> None:
        """Refuse a text of another kind or version, before its syntax is looked at.

        Raises:
            ParseError: It does not begin with this version.
        """
        expected = f"expected `{kind} {version}`"
        for number, line in enumerate(self.text.split("\n"), 1):
            content = line.split("//")[0].strip()
            if not content:
                continue
            first = Word(content, number, line.index(content[0]) + 1)
            found = re.match(rf"{kind}\s+0*([0-9]+)(?=\s|$)", content)
            if found is None:
                raise self.wrong(first, f"a text begins with its version, {expected}")
            if found[1] != str(version):
                raise self.wrong(
                    first,
                    f"this is version {found[1][:20]} of the text format; this program "
                    f"reads version {version}",
                )
            return
        raise ParseError(f"the text is empty, {expected}", self.whole())

    def _location(self, line: int, column: int | None) -> SourceLocation:
        shown = self.lines[line - 1] if line <= len(self.lines) else ""
        if column is not None:
            column = min(column, len(shown) + 1)
        return SourceLocation(self.file, line, shown, column)

    def wrong(self, word: Word, message: str) -> ParseError:
        """The error that `word` is not in the language."""
        return ParseError(message, self.at(word))

    def ill_typed(self, word: Word, message: str) -> CheckError:
        """The error that what `word` stands for breaks a type rule."""
        return CheckError(message, self.at(word))


def suggest(name: str, options: Iterable[str], what: str) -> str:
    """`; did you mean exp?`, or a short list of what there is, or nothing."""
    known = list(dict.fromkeys(options))
    close = closest(name, known)
    if close is not None:
        return f"; did you mean `{clipped(close)}`?"
    if not known:
        return f"; there are no {what}"
    if len(known) <= 12:
        return f"; {what}: {', '.join(map(clipped, known))}"
    return ""


def closest(name: str, options: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The option that `name` is probably a slip of."""
    found = difflib.get_close_matches(name, list(options), n=1, cutoff=cutoff)
    return found[0] if found else None


def counted(number: int, noun: str) -> str:
    """`1 operand`, `2 operands`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


_NAMES = frozenset(
    {
        "NAME",
        "FUNCTION",
        "INDEX",
        "LOAD",
        "STORE",
        "RETURN",
        "BLOCK",
        "ACCUMULATE",
        "RUNNING",
    }
)
INFIX = frozenset(
    {"PLUS", "MINUS", "STAR", "SLASH", "AT"}
    | {"LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", "EQUAL"}
)
KEYWORDS = (
    *("mugraph", "where", "layout", "block", "index", "load", "store"),
    *("return", "accumulate", "running", "rescale", "concat"),
)
"""Words of `.mu` texts that a slip may have been meant as."""
_LINE = "the end of the line"
_WORDS = {
    "CONSTANT": "a number",
    "_NL": _LINE,
    "$END": "the end of the text",
    "UNKNOWN": "`?`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "LBRACE": "`{`",
    "RBRACE": "`}`",
    "COMMA": "`,`",
    "_AND": "`&`",
    "COLON": "`:`",
    "ASSIGN": "`=`",
    "ARROW": "`->`",
}


def _in_words(terminals: frozenset[str]) -> list[str]:
    """What the terminals of the grammar are to a reader, each once."""
    if "LBRACE" in terminals:
        terminals -= {"_NL"}
    words: dict[str, None] = {}
    if terminals & _NAMES == frozenset({"FUNCTION"}):
        words["a name with `(`"] = None
    elif terminals & _NAMES:
        words["a name"] = None
    for name, word in _WORDS.items():
        if name in terminals:
            words[word] = None
    if len(terminals & INFIX) > 1:
        words["an infix sign"] = None
    elif terminals & INFIX:
        words["`/`"] = None
    keywords = terminals - _NAMES - INFIX - _WORDS.keys()
    words |= dict.fromkeys(f"`{k.strip('_').lower()}`" for k in sorted(keywords))
    return list(words)


def unexpected(
    source: Source,
    found: Word | None,
    expected: frozenset[str],
    keywords: Collection[str],
) -> ParseError:
    """The error that `found` (None: the end) stands where `expected` should.

    `expected` are terminals of the grammar, and `keywords` its words.
    """
    words = _in_words(expected)
    *others, last = words or ["something else"]
    listed = f"{', '.join(others)} or {last}" if others else last
    if found is None:
        return ParseError(
            f"the text ends too early, expected {listed}{_unclosed(source.text)}",
            source.end(),
        )
    place = source.at(found)
    # An end of line without text stands before a brace that closes a line.
    shown = f"`{str(found) or '}'}`" if found.text.strip() or not found.text else _LINE
    slip = _slip(place.text[: found.column - 1 + len(found.text)], keywords)
    return ParseError(f"found {shown}, expected {listed}{slip}", place)


def _slip(text: str, keywords: Collection[str]) -> str:
    """Names that of the last words up to an error that is nearly a keyword."""
    for word in reversed(re.findall(r"[^\W\d]\w*", text)[-20:]):
        close = None if word in keywords else closest(word, keywords, 0.75)
        if close is not None:
            return f"; did you mean `{close}` by `{word}`?"
    return ""


def _unclosed(text: str) -> str:
    """Names the line of the innermost brace that is not closed."""
    stack: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        for sign in re.findall(r"[{}]", line.split("//")[0]):
            if sign == "{":
                stack.append(number)
            elif stack:
                stack.pop()
    return f"; the `{{` of line {stack[-1]} is not closed" if stack else ""


# -- Forms -----------------------------------------------------------------------------


@dataclass(frozen=True)
class DimForm:
    """`k/grid/loop`."""

    name: Word
    pieces: tuple[Word, ...]


@dataclass(frozen=True)
class AxisForm:
    """`k/loop`, `(h d)`, or a number, which must be 1."""

    dims: tuple[DimForm, ...]
    number: Word | None


@dataclass(frozen=True)
class TypeForm:
    """`f16[m, k/loop] layout(1, 0)`."""

    dtype: Word
    axes: tuple[AxisForm, ...]
    layout: tuple[Word, ...] | None


@dataclass(frozen=True)
class BoundForm:
    """`d <= n - 5`, `d <= n | d <= 6`: what comes last is the dim and its number."""

    loop: Word
    sign: Word
    dim: Word
    offset_sign: Word | None
    offset: Word | None
    also: tuple[Word, Word] | None = None


@dataclass(frozen=True)
class SettledForm:
    """`near == 1 if d <= n`."""

    value: Word
    number: Word
    bound: BoundForm


@dataclass(frozen=True)
class ClauseForm:
    """`over(k)`, `grid(m / 16, n / 64)`: names or numbers, some with a divisor.

    A merged axis, `(h d)`, is one word.

    `beside` has the positions of values that `&` joins to the value before, `bounds`
    what stands in `while(d <= n)`, `settled` in `settled(near == 1 if d <= n)`.
    """

    name: Word
    values: tuple[tuple[Word, Word | None], ...]
    beside: tuple[int, ...] = ()
    bounds: tuple[BoundForm, ...] = ()
    settled: tuple[SettledForm, ...] = ()


@dataclass(frozen=True)
class NameForm:
    """A value by its name."""

    name: Word


@dataclass(frozen=True)
class ConstantForm:
    """`1/k`."""

    text: Word


@dataclass(frozen=True)
class InfixForm:
    """`a * b`."""

    left: ExprForm
    sign: Word
    right: ExprForm


@dataclass(frozen=True)
class ApplyForm:
    """`matmul x, w over(k)` or `matmul(x, w)`."""

    function: Word
    arguments: tuple[ExprForm, ...]
    clauses: tuple[ClauseForm, ...] = ()


ExprForm = NameForm | ConstantForm | InfixForm | ApplyForm


@dataclass(frozen=True)
class IndexForm:
    """`index n`, `index (h d)`."""

    keyword: Word
    axis: AxisForm


@dataclass(frozen=True)
class LoadForm:
    """`load x[m, k/loop]`."""

    source: Word
    axes: tuple[AxisForm, ...] | None


@dataclass(frozen=True)
class AccumulateForm:
    """`accumulate e rescale m`."""

    operand: ExprForm
    kind: Word | None
    rescale: Word | None


@dataclass(frozen=True)
class RunningForm:
    """`running max t`."""

    operand: ExprForm


@dataclass(frozen=True)
class BlockForm:
    """`block grid(n / 64) { ... }`."""

    clauses: tuple[ClauseForm, ...]
    statements: tuple[StatementForm, ...]


@dataclass(frozen=True)
class TargetForm:
    """What stands left of `=`."""

    name: Word
    type: TypeForm | None


@dataclass(frozen=True)
class AssignForm:
    """`a: f32[m] = ...`."""

    targets: tuple[TargetForm, ...]
    right: BlockForm | IndexForm | LoadForm | AccumulateForm | RunningForm | ExprForm


@dataclass(frozen=True)
class StoreForm:
    """`store y: f16[m, n/grid] = q`, or `store y[m, n/grid]` without a dtype."""

    name: Word
    dtype: Word | None
    axes: tuple[AxisForm, ...]
    operand: ExprForm


@dataclass(frozen=True)
class ReturnForm:
    """`return y`."""

    keyword: Word
    values: tuple[Word, ...]


StatementForm = AssignForm | StoreForm | ReturnForm


@dataclass(frozen=True)
class GraphForm:
    """A whole text."""

    name: Word
    inputs: tuple[tuple[Word, Word | None, TypeForm], ...]
    returns: tuple[TypeForm, ...]
    sizes: tuple[tuple[Word, Word], ...]
    statements: tuple[StatementForm, ...]
