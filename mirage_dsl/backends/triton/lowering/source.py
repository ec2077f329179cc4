"""Source text as it grows: names, lines, and the changes of form of tiles."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import PurePath
from types import MappingProxyType

from mirage_dsl.backends.library import HELPERS, number
from mirage_dsl.core.errors import SourceLocation, UnsupportedError
from mirage_dsl.core.types import Dim, DType, f32, i8, u8
from mirage_dsl.ops.makers import JOIN_PREFIX
from mirage_dsl.tile.combined import Unpacked
from mirage_dsl.tile.program import Notes
from mirage_dsl.tile.sizes import Order, Pieces

# -- Text ------------------------------------------------------------------------------

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

    def reshaped_as(self, tile: Variable, axes: Order) -> Variable:
        """The tile with these axes, of which several were one."""

        def make() -> Variable:
            name = self.reshaped(tile.name, self.shape(axes), f"{tile.name}_r")
            return replace(tile, name=name, axes=axes)

        return self._once(("reshaped", tile.name, axes), make)

    def lane(self, tile: Variable, along: Dim, at: int) -> Variable:
        """The tile's lane at a place of an axis of few lanes; all are made at once."""
        rest = tuple(d for d in tile.axes if d != along)

        def make() -> Variable:
            last = self.arranged(tile, (*rest, along)).name
            width = self.pieces[along].width
            for place, name in enumerate(self._halved(last, rest, width)):
                lane = replace(tile, name=name, axes=rest)
                self._made[-1]["lane", tile.name, along, place] = lane
            return self._made[-1]["lane", tile.name, along, at]

        return self._once(("lane", tile.name, along, at), make)

    def _halved(self, name: str, rest: Order, width: int) -> list[str]:
        """The lanes of the last axis, which is split in two until it is one."""
        if width == 1:
            return [name]
        shape = ", ".join(map(str, (*self.pieces.shape(rest), width // 2, 2)))
        if width > 2:
            name = self.reshaped(name, f"({shape})", f"{name}_r")
        pair = [self.writer.names.fresh(f"{name}_{at}") for at in range(2)]
        self.writer.line(f"{', '.join(pair)} = tl.split({name})")
        even, odd = (self._halved(half, rest, width // 2) for half in pair)
        return [lane for both in zip(even, odd, strict=True) for lane in both]

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


# -- Floats from bytes -----------------------------------------------------------------
# Functions that emitted modules call for `tile.combined.packed`.  A number of a few
# bits, put into the mantissa of 1024.0 in f16, is 1024 more than it was, so a mask
# and a subtraction convert two numbers at a time.  Inline assembly says so; without
# it the compiler takes every byte to a register of its own, and shifts, masks and
# converts it there, which takes longer than reading it.  Triton's interpreter runs no
# assembly: there the plain formula computes the same.
#
# The assembly is said to have effects.  The compiler would else take the bytes to the
# threads of the matrix unit first, each by itself, since they are shorter there; so
# they are converted where sixteen of them were loaded at once.

COMPILED = """
# Whether kernels are compiled: Triton's interpreter runs no assembly.
COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
"""
"""What a module with such functions defines."""

_UNPACK = '''
@triton.jit
def {name}(a, less):
    """{what}, less a number, in f16."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            """{{
            .reg .b32 t, u;
{assembly}
            }}""",
            "=&r,=&r,r,r,r",
            [a, tl.full(a.shape, {offset}, tl.float16)],
            dtype=tl.float16,
            is_pure=False,
            pack=4,
        )
    return ({plain} - less).to(tl.float16)
'''
"""A function of four bytes, of which each register of results holds two."""

PAIRS = """\
            prmt.b32 t, $2, 0, 0x4140;
            prmt.b32 u, $2, 0, 0x4342;"""
"""Bytes, two in a register."""


def _halves(mask: str, last: str) -> str:
    """The assembly of half a byte: a mask and the bits of 1024, and then `last`."""
    masked = f"lop3.b32 {{0}}, {{0}}, {mask}, 0x64006400, 0xea;"
    lines = [masked.format("t"), masked.format("u")]
    lines += [last.format(0, "t", 3), last.format(1, "u", 4)]
    return "\n".join([PAIRS, *(f"            {line}" for line in lines)])


def _bytes(given: str) -> str:
    """The assembly of whole bytes, which stand under the bits of 1024."""
    return f"""\
{given}
            prmt.b32 u, t, 0x64646464, 0x4342;
            prmt.b32 t, t, 0x64646464, 0x4140;
            sub.f16x2 $0, t, $3;
            sub.f16x2 $1, u, $4;"""


UNPACKING: Mapping[str, str] = MappingProxyType(
    {
        "kept": '''
@triton.jit
def kept(a):
    """The same numbers of 16 bits, made by the threads that loaded them."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [a], dtype=a.dtype, is_pure=False, pack=2
        )
    return a
''',
        "low_halves": _UNPACK.format(
            name="low_halves",
            what="The lower four bits of bytes",
            assembly=_halves("0x000f000f", "sub.f16x2 ${0}, {1}, ${2};"),
            offset="1024.0 + less",
            plain="(a & 15).to(tl.float32)",
        ),
        "high_halves": _UNPACK.format(
            name="high_halves",
            what="The higher four bits of bytes",
            # They stand four bits higher, so 1024 is 64 there.
            assembly="            .reg .b32 s;\n            mov.b32 s, 0x2c002c00;\n"
            + _halves("0x00f000f0", "fma.rn.f16x2 ${0}, {1}, s, ${2};"),
            offset="-64.0 - less",
            plain="((a >> 4) & 15).to(tl.float32)",
        ),
        "unsigned": _UNPACK.format(
            name="unsigned",
            what="Bytes without a sign",
            assembly=_bytes("            mov.b32 t, $2;"),
            offset="1024.0 + less",
            plain="a.to(tl.float32)",
        ),
        "signed": _UNPACK.format(
            name="signed",
            what="Bytes with a sign",
            assembly=_bytes("            xor.b32 t, $2, 0x80808080;"),
            offset="1152.0 + less",
            plain="a.to(tl.float32)",
        ),
    }
)
"""The functions, by their names."""


def unpacked_texts(part: Unpacked, source: Variable) -> Iterator[tuple[str, str]]:
    """What computes parts of a tile of bytes, each with a word for it."""
    if part.part == "byte":
        whole = "signed" if source.dtype == i8 else "unsigned"
        yield "f16", f"{whole}({source.name}, {float(part.less)})"
    if part.part in ("low", "both"):
        yield "low", f"low_halves({source.name}, {float(part.less)})"
    if part.part in ("high", "both"):
        yield "high", f"high_halves({source.name}, {float(part.less)})"
