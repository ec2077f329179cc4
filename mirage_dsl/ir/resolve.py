"""What the small forms of a `.mu` text mean: dims, types, numbers, constants."""

from __future__ import annotations

from collections.abc import Iterable

from mirage_dsl.ir.forms import AxisForm, ClauseForm, DimForm, GraphForm, TypeForm
from mirage_dsl.ir.graph import AttrValue
from mirage_dsl.ir.parse_errors import Source, Word, closest, suggest
from mirage_dsl.ops.definition import AttributeKind
from mirage_dsl.types import (
    DTYPES,
    Axis,
    Dim,
    DType,
    Scalar,
    TensorType,
    axis_text,
    dtype_named,
    parse_scalar,
)

RESERVED = frozenset({"inf", "nan"})
"""Not usable as names of values: they are numbers."""


class Resolver:
    """Knows the dims of a text.

    Attributes:
        source: The text.
        extents: What the header says of extents.
        made: Dims that nodes have made so far.
    """

    def __init__(self, source: Source, form: GraphForm) -> None:
        self.source = source
        self.extents: dict[str, int | None] = {}
        self.made: set[str] = set()
        for name, extent in form.sizes:
            if name.text in self.extents:
                raise source.wrong(name, f"dim {name} has two extents")
            symbolic = extent.text == "?"
            self.extents[name.text] = None if symbolic else self.integer(extent, 1)

    def integer(self, word: Word, least: int) -> int:
        """The number that `word` is."""
        if not word.text.lstrip("-").isdecimal() or int(word.text) < least:
            kind = "a positive integer" if least == 1 else "an integer"
            if least == 0:
                kind += " that is not negative"
            raise self.source.wrong(word, f"found {word}, expected {kind}")
        return int(word.text)

    def is_dim(self, name: str) -> bool:
        """Whether a dim of that name is known; `k#` is where `k` is."""
        known = name in self.extents or name in self.made
        return known or (name.endswith("#") and self.is_dim(name[:-1]))

    def dim_name(self, word: Word) -> str:
        """The name of a known dim."""
        if self.is_dim(word.text):
            return word.text
        close = closest(word.text, [*self.extents, *sorted(self.made)])
        hint = f"did you mean `{close}`?" if close else f"state it: where {word} = 64"
        raise self.source.wrong(word, f"no extent is given for dim {word}; {hint}")

    def dtype(self, word: Word) -> DType:
        """The dtype called `word`."""
        found = dtype_named(word.text)
        if found is None:
            hint = suggest(word.text, [d.name for d in DTYPES], "dtypes")
            raise self.source.wrong(word, f"unknown dtype {word}{hint}")
        return found

    def _dim(self, form: DimForm, *, pieces: bool) -> Dim:
        given = [p.text for p in form.pieces]
        for piece in form.pieces:
            if piece.text not in ("grid", "loop"):
                hint = suggest(piece.text, ("grid", "loop"), "pieces")
                raise self.source.wrong(piece, f"unknown piece /{piece}{hint}")
        if given not in ([], ["grid"], ["loop"], ["grid", "loop"]):
            raise self.source.wrong(
                form.pieces[-1],
                f"a dim has at most {form.name}/grid/loop, in this order",
            )
        if given and not pieces:
            raise self.source.wrong(
                form.name,
                f"only values inside of a block have pieces of dims, found "
                f"{form.name}/{given[0]}; write {form.name}",
            )
        return Dim(self.dim_name(form.name), "grid" in given, "loop" in given)

    def axes(self, forms: Iterable[AxisForm], *, pieces: bool) -> tuple[Axis, ...]:
        """Axes; without `pieces` every dim must be whole."""
        return tuple(self._axis(f, pieces=pieces) for f in forms)

    def _axis(self, form: AxisForm, *, pieces: bool) -> Axis:
        if form.number is not None and form.number.text != "1":
            raise self.source.wrong(
                form.number,
                f"an axis is a dim or 1, found {form.number}; name a dim and give its "
                f"extent after `where`: d = {form.number}",
            )
        return tuple(self._dim(d, pieces=pieces) for d in form.dims)

    def type(self, form: TypeForm, *, pieces: bool) -> TensorType:
        """A type; without `pieces` every dim must be whole."""
        axes = self.axes(form.axes, pieces=pieces)
        layout = None
        if form.layout is not None:
            layout = tuple(self.integer(n, 0) for n in form.layout)
            if sorted(layout) != list(range(len(axes))):
                raise self.source.wrong(
                    form.layout[0],
                    f"layout{layout} does not name each of the {len(axes)} axes once",
                )
        return TensorType(self.dtype(form.dtype), axes, layout=layout)

    def constant(self, word: Word, values: Iterable[str] = ()) -> Scalar:
        """A constant; `values` are names that someone may have taken for dims."""
        try:
            number = parse_scalar(word.text)
        except ValueError:
            raise self.source.wrong(
                word, f"{word} is not a constant; constants are like 3, 0.5, 1/3, 1/k"
            ) from None
        known = set(values)
        for name, power in number.extents:
            if not self.is_dim(name) and name in known:
                sign = "*" if power > 0 else "/"
                raise self.source.wrong(
                    word,
                    f"{word} without spaces is one constant, and {name} is no dim; for "
                    f"the value {name} write spaces around the `{sign}`",
                )
            self.dim_name(Word(name, word.line, word.column))
        return number

    def attribute(self, kind: AttributeKind, form: ClauseForm) -> AttrValue:
        """The value of an attribute that is written `name(...)`."""
        for value, divisor in form.values:
            if divisor is not None:
                raise self.source.wrong(
                    divisor,
                    f"{form.name} takes no division, write {form.name}({value})",
                )
        words = [value for value, _ in form.values]
        if kind in (AttributeKind.DIMS, AttributeKind.NEW_DIMS):
            return tuple(self._attribute_dim(kind, w) for w in words)
        if len(words) != 1:
            raise self.source.wrong(
                form.name, f"{form.name} takes one value, found {len(words)}"
            )
        (word,) = words
        match kind:
            case AttributeKind.INTEGER:
                return self.integer(word, 0)
            case AttributeKind.DTYPE:
                return self.dtype(word).name
            case _:
                return self._attribute_dim(kind, word)

    def _attribute_dim(self, kind: AttributeKind, word: Word) -> str:
        if not (word.text[0].isalpha() or word.text[0] == "_"):
            raise self.source.wrong(word, f"found {word}, expected the name of a dim")
        if kind in (AttributeKind.NEW_DIM, AttributeKind.NEW_DIMS):
            self.made.add(word.text)
            return word.text
        return self.dim_name(word)


def same_type(stated: TensorType, inferred: TensorType, *, ordered: bool) -> bool:
    """Whether a stated type is the inferred one, but for space and layout.

    The order of dims counts only where they lie in memory (`ordered`).
    """
    if stated.dtype != inferred.dtype:
        return False
    if ordered:
        return stated.axes == inferred.axes
    single = all(len(axis) == 1 for axis in stated.axes)
    return single and sorted(stated.dims) == sorted(inferred.dims)


def shown(type_: TensorType) -> str:
    """A type without its layout."""
    return f"{type_.dtype}[{', '.join(map(axis_text, type_.axes))}]"


__all__ = ["RESERVED", "Resolver", "same_type", "shown"]
