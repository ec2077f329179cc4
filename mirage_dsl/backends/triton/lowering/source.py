"""Source text as it grows: names, lines, and the changes of form of tiles."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import PurePath

from mirage_dsl.backends.library import HELPERS, number
from mirage_dsl.core.errors import SourceLocation, UnsupportedError
from mirage_dsl.core.types import Dim, DType, f32, u8
from mirage_dsl.ops.makers import JOIN_PREFIX
from mirage_dsl.tile.program import Notes
from mirage_dsl.tile.sizes import Order, Pieces

RESERVED = frozenset(
    {"tl", "triton", "torch", "libdevice", "it", "run", "grid", "prefetch", "device"}
    | {"EARLY", "power", "TensorDescriptor", "gdc_launch_dependents", "gdc_wait"}
    | {"COMPILED", "kept", "high_halves", "low_halves", "signed", "unsigned"}
    | HELPERS.keys()
    | set(dir(builtins))
    | set(keyword.kwlist)
)
"""Names that Python has, or that an emitted module uses itself."""


def identifier(name: str) -> str:
    """A Python name that resembles `name`: `k#` becomes `k_parts`."""
    text = re.sub(r"\W", "_", name.replace("#", "_parts"), flags=re.ASCII)
    if not text or text[0].isdigit():
        text = f"v{text}"
    if text in RESERVED or text.startswith(JOIN_PREFIX):
        text += "_"
    return text


def source_comment(location: SourceLocation) -> str:
    """A comment that shows the user's line; no line of text ends the comment."""
    place = f"{PurePath(location.file).name}:{location.line}"
    text = f"# src[{place}] {location.text.strip()}".rstrip()
    return "".join(c if c.isprintable() else " " for c in text)


class Identifiers:
    """Gives out identifiers that differ from all others of one scope.

    Args:
        taken: Names that the scope uses already.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def fresh(self, wanted: str) -> str:
        """A name like `wanted` that nobody has yet."""
        base = identifier(wanted)
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


class Writer:
    """Collects lines of Python at a current indentation, in a scope of names.

    Args:
        taken: Names that the scope uses already.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.lines: list[str] = []
        self.names = Identifiers(taken)
        self._depth = 0
        # The user's line last shown: a line's operators share one comment.
        self._shown: str | None = None

    def line(self, text: str = "") -> None:
        """Add one line."""
        self.lines.append("    " * self._depth + text if text else "")

    def assign(self, name: str, expression: str) -> str:
        """Add `name = expression` and return the name."""
        self.line(f"{name} = {expression}")
        return name

    def define(self, wanted: str, expression: str) -> str:
        """Assign to a name like `wanted` that nobody has yet, and return it."""
        return self.assign(self.names.fresh(wanted), expression)

    def below(self, head: str, lines: Iterable[str]) -> None:
        """Add a line, and others one level in below it."""
        self.line(head)
        self.indent()
        for line in lines:
            self.line(line)
        self.dedent()

    def comment(self, notes: Notes) -> None:
        """Add the lines that what follows comes from, and the user's before them."""
        for note in notes:
            if note.location is not None:
                source = source_comment(note.location)
                if source != self._shown:
                    self.line(source)
                self._shown = source
                if note.location.text.strip() == note.text:
                    continue
            self.line(f"# {note.text}")

    def indent(self) -> None:
        """Go one level in."""
        self._depth += 1

    def dedent(self) -> None:
        """Go one level out."""
        self._depth -= 1

    def text(self) -> str:
        """All lines, each ended."""
        return "".join(f"{line}\n" for line in self.lines)


# -- Tiles -----------------------------------------------------------------------------

LARGEST_TILE = 1 << 20
"""Elements that Triton allows in one tensor."""

TRITON_DTYPE = {
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "f32": "tl.float32",
    "f8e4m3": "tl.float8e4nv",
    "f8e5m2": "tl.float8e5",
    "bool": "tl.int1",
    "i8": "tl.int8",
    "u8": "tl.uint8",
    "i16": "tl.int16",
    "i32": "tl.int32",
    "i64": "tl.int64",
}


@dataclass(frozen=True)
class Variable:
    """A Triton tensor.

    Attributes:
        name: Its Python name.
        axes: Dims of its axes.
        dtype: Element format.
    """

    name: str
    axes: Order
    dtype: DType = f32


class TileCode:
    """Emits the changes of form that tiles need, each once per stage."""

    def __init__(
        self,
        writer: Writer,
        pieces: Pieces,
        mask_of: Callable[[Dim], str],
    ) -> None:
        self.writer = writer
        self.pieces = pieces
        self.mask_of = mask_of
        self._made: list[dict[tuple[object, ...], Variable]] = [{}]
        self._bound: list[dict[str, str]] = [{}]

    def enter(self) -> None:
        """Begin a scope: what is made in it is not visible after `leave`."""
        self._made.append({})
        self._bound.append({})

    def leave(self) -> None:
        """End the innermost scope."""
        self._made.pop()
        self._bound.pop()

    def bind(self, wanted: str, expression: str) -> str:
        """The name of an expression of tiles, computed here or before."""
        for scope in self._bound:
            if expression in scope:
                return scope[expression]
        name = self.writer.define(wanted, expression)
        self._bound[-1][expression] = name
        return name

    def shape(self, axes: Sequence[Dim]) -> str:
        """The shape of a tile as a Python tuple.

        Raises:
            UnsupportedError: Triton has no tensors of that size.
        """
        widths = self.pieces.shape(axes)
        if prod(widths) > LARGEST_TILE:
            dims = ", ".join(map(str, axes))
            raise UnsupportedError(
                f"a tile of [{dims}] has {prod(widths)} elements; "
                f"Triton allows {LARGEST_TILE}: split more, or use smaller tiles"
            )
        return f"({', '.join(map(str, widths))}{',' * (len(widths) == 1)})"

    def _once(self, key: tuple[object, ...], make: Callable[[], Variable]) -> Variable:
        for scope in self._made:
            if key in scope:
                return scope[key]
        made = self._made[-1][key] = make()
        return made

    def arranged(self, tile: Variable, order: Order) -> Variable:
        """The tile with its axes in this order."""
        if order == tile.axes:
            return tile

        def make() -> Variable:
            turns = ", ".join(str(tile.axes.index(d)) for d in order)
            text = f"tl.permute({tile.name}, ({turns}))"
            name = self.writer.define(f"{tile.name}_t", text)
            return replace(tile, name=name, axes=order)

        return self._once(("arranged", tile.name, order), make)

    def as_dtype(self, tile: Variable, dtype: DType) -> Variable:
        """The tile in another element format."""
        if tile.dtype is dtype:
            return tile

        def make() -> Variable:
            text = f"{tile.name}.to({TRITON_DTYPE[dtype.name]})"
            name = self.writer.define(f"{tile.name}_{dtype}", text)
            return replace(tile, name=name, dtype=dtype)

        return self._once(("dtype", tile.name, dtype), make)

    def masked(self, tile: Variable, dims: Order, fill: float) -> Variable:
        """The tile with `fill` in the lanes outside of `dims`."""

        def make() -> Variable:
            inside = " & ".join(
                self.mask_of(d) + subscript((d,), tile.axes) for d in dims
            )
            other = literal(fill, tile.dtype)
            text = f"tl.where({inside}, {tile.name}, {other})"
            name = self.writer.define(f"{tile.name}_m", text)
            return replace(tile, name=name)

        return self._once(("masked", tile.name, fill, dims), make)

    def reshaped(self, name: str, shape: str, wanted: str) -> str:
        """Bind `name` in another shape."""
        return self.writer.define(wanted, f"tl.reshape({name}, {shape})")


def literal(value: float, dtype: DType) -> str:
    """A number of a format; integers have no infinity but their last number."""
    if not dtype.is_integer:
        return number(value)
    if value in (float("inf"), float("-inf")):
        return number(int(dtype.max if value > 0 else dtype.min))
    # What is below 0 is far above it where there are no signs.
    return number(int(value) % 2**8 if dtype is u8 else int(value))


def subscript(axes: Sequence[Dim], order: Sequence[Dim]) -> str:
    """What spreads a tile over the axes `order`: `[:, None]`, or nothing."""
    if not axes or list(axes) == list(order):
        return ""
    return f"[{', '.join(':' if d in axes else 'None' for d in order)}]"
