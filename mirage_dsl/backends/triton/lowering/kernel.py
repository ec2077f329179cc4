"""Prints a tile program as a Triton kernel, statement by statement.

What is done, in which order and by what stands in the program; printing gives names,
addresses, positions and masks.  Every statement stands below the IR line that it comes
from.  A kernel collects the parameters that it turns out to need (`Signature`), where
its pieces lie and which lanes are inside (`Places`), and what each load and store says
of memory (`Memory`); tiles change form once in each scope (`TileCode`).
"""

from __future__ import annotations

import ast
import builtins
import keyword
import math
import re
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Container,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from pathlib import PurePath
from typing import Any, Literal

from mirage_dsl.backends.library import (
    HELPERS,
)
from mirage_dsl.core.errors import SourceLocation, UnsupportedError
from mirage_dsl.core.types import (
    Axis,
    Dim,
    DType,
    Scalar,
    TensorType,
    bf16,
    f16,
    f32,
    i8,
    i16,
    i32,
    number,
    u8,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.launches import Announced
from mirage_dsl.ir.analysis.layouts import (
    FlatValues,
    Place,
)
from mirage_dsl.ir.maps import Extents, parts
from mirage_dsl.ops.makers import JOIN_PREFIX
from mirage_dsl.ops.table import CAST, MUL, SUB, WHERE
from mirage_dsl.tile import program as tp
from mirage_dsl.tile.build import build, memory_order, suited
from mirage_dsl.tile.combined import (
    DEALT_AT_ONCE,
    DEALT_BYTES,
    DEALT_ROWS,
    DEALT_THREADS,
    HALF,
    LOG2_E,
    NONE_HELD,
    WORD,
    Deal,
    Dealt,
    Narrowed,
    Stretch,
    Unit,
    Unpacked,
    Written,
    changes,
    deal,
    held_over,
    packed,
    positions,
    runs,
    spread,
    units_over,
    words,
)

# -- Text ------------------------------------------------------------------------------

RESERVED = frozenset(
    {"tl", "triton", "torch", "libdevice", "it", "run", "grid", "prefetch", "device"}
    | {"EARLY", "power", "TensorDescriptor", "gdc_launch_dependents", "gdc_wait"}
    | {"COMPILED", "kept", "high_halves", "low_halves", "signed", "unsigned"}
    | {"atan2", "expm1", "floor_divide", "fmod", "log1p", "remainder", "round_even"}
    | {"tanh", "to_f8e4m3", "to_f8e5m2"}
    | {"dealt_columns", "dealt_rows", "eighths"}
    | {"e4m3_pairs", "e5m2_pairs", "half_pairs", "signed_pairs", "unsigned_pairs"}
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

    def comment(self, notes: tp.Notes) -> None:
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


# -- Parameters ------------------------------------------------------------------------


@dataclass(frozen=True)
class Gapped:
    """The strides of an axis that is several axes of a tensor, with gaps between them.

    Attributes:
        sizes: Their extents: numbers, or Python expressions.
        strides: Their strides.
    """

    sizes: tuple[str | int, ...]
    strides: tuple[str | int, ...]


Strides = Sequence[str | int | Gapped]
"""The stride of each axis of a tensor: a number, or a Python expression."""


@dataclass(frozen=True)
class Variant:
    """A form of a module, for tensors that lie so.

    Attributes:
        wide: Offsets have 64 bits even where the extents do not call for them, as for
            inputs whose strides reach far.
        pointers: Pointers take the place of tensor descriptors, as for inputs whose
            strides or addresses these cannot express.
        out: The caller gives tensors for the outputs too, of any strides.
        dense: Inputs and outputs that have no gaps between their elements: strides
            that follow from symbolic extents are computed and not compiled in.
        gapped: Flat values that have gaps between the axes that are one for kernels.
        over: Results of kernels that are stored where what they read lies, each with
            that: elements that stay are neither read nor stored.
        apart: Values of which no two elements are loaded as one word, since they do not
            lie as words do.
    """

    wide: bool = False
    pointers: bool = False
    out: bool = False
    dense: Collection[str] = frozenset()
    gapped: Collection[str] = frozenset()
    over: Collection[tuple[str, str]] = frozenset()
    apart: Collection[str] = frozenset()


@dataclass(frozen=True)
class Surroundings(tp.Outer):
    """What printing a block needs to know of its kernel graph.

    Attributes:
        given: The caller gives tensors for the outputs; the values that kernels store
            there at once, each with the number of its output.
        flat: Values that lie in other tensors of the caller.
        variant: What else is known of tensors.
    """

    given: Mapping[str, int] | None
    flat: FlatValues
    variant: Variant

    def whole(self, value: str) -> str:
        """The tensor in which a value lies; itself, if it lies in no other."""
        flat = self.flat.within.get(value)
        return value if flat is None else flat.whole


PARAM_KINDS = ("tensor", "descriptor", "size", "stride")
"""Kinds of parameters, in the order in which they stand."""


@dataclass(frozen=True)
class Param:
    """A parameter of an emitted kernel.

    Attributes:
        name: Its Python name.
        kind: `tensor`: a pointer.  `descriptor`: a tensor descriptor.  `size`: the
            extent of a symbolic dim, an integer at run time.  `stride`: a
            `tl.constexpr`.
        source: The kernel-level tensor, or the dim; of a flat value the tensor that it
            lies in.
        axis: For a stride, which axis of `source`.
        dtype: For a tensor, its element format.
        value: For a stride, what it is when the tensor is row-major and all extents
            are known; screening without tensors takes it.
        dims: For a descriptor, the dims of its axes.
        box: For a descriptor, how many elements of each axis a load takes.
    """

    name: str
    kind: Literal["tensor", "descriptor", "size", "stride"]
    source: str
    axis: int = 0
    dtype: DType | None = None
    value: int | None = None
    dims: tuple[str, ...] = ()
    box: tuple[int, ...] = ()


def head_of(name: str, params: Sequence[Param]) -> list[str]:
    """What a kernel begins with: its name and its parameters."""
    lines = ["@triton.jit", f"def {name}("]
    for param in params:
        kind = ": tl.constexpr" if param.kind == "stride" else ""
        lines.append(f"    {param.name}{kind},")
    return [*lines, "):"]


@dataclass(frozen=True)
class KernelPlan:
    """One emitted kernel.

    Attributes:
        name: Name of the `@triton.jit` function.
        block: The block graph that it computes.
        params: In order.
        grid: Number of programs along each axis, as Python expressions of sizes.
        lines: Its source.
        words: Tensors of which it loads two elements as one word, with the dim of the
            two.
        registers: Of a thread at most; None is as many as it can use.
        same_as: The name of the kernel ahead of it that has the same code, for which
            its own is another name; empty if there is none.
    """

    name: str
    block: ir.BlockGraph
    params: tuple[Param, ...]
    grid: tuple[str, ...]
    lines: tuple[str, ...]
    words: Mapping[str, str] = field(default_factory=dict[str, str])
    registers: int | None = None
    same_as: str = ""

    @property
    def schedule(self) -> ir.Schedule:
        """How it is launched."""
        return self.block.schedule

    @property
    def prefetches(self) -> bool:
        """Whether it calls `prefetch`."""
        return any(line.lstrip().startswith("prefetch(") for line in self.lines)

    @property
    def code(self) -> str:
        """What it does, whatever its own name and those that it gives are."""
        tree = ast.parse("\n".join(self.lines))
        names: dict[str, str] = {self.name: "kernel"}
        for node in ast.walk(tree):
            if isinstance(node, ast.arg):
                names[node.arg] = f"a{len(names)}"
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.setdefault(node.id, f"v{len(names)}")
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef():
                    node.name = names[node.name]
                case ast.arg():
                    node.arg = names[node.arg]
                case ast.Name():
                    node.id = names.get(node.id, node.id)
                case _:
                    pass
        return ast.dump(tree)

    @property
    def compiled_as(self) -> Hashable:
        """What it is compiled from, but for strides and places in memory."""
        kinds = tuple((p.kind, p.dtype, p.box, p.value) for p in self.params)
        return self.same_as or self.name, kinds, self.schedule, self.registers

    def like(self, other: KernelPlan) -> KernelPlan:
        """The kernel as another name for one that has the same code."""
        params = tuple(
            replace(own, name=its.name)
            for own, its in zip(self.params, other.params, strict=True)
        )
        lines = (f"{self.name} = {other.name}  # on other tensors",)
        return replace(self, params=params, lines=lines, same_as=other.name)


_ALIAS = "/again"


SMALLEST_NORMAL = 2.0**-126
"""Of f32."""


class Signature:
    """Collects the parameters that a kernel turns out to need.

    Known extents are written into the code, symbolic ones are parameters.  Strides of
    packed tensors are written into the code, as products of extents; others are
    compile-time parameters, so accesses vectorise whenever the tensor at hand allows
    it.
    """

    def __init__(self, around: Surroundings, names: Identifiers) -> None:
        self.params: list[Param] = []
        self._names = names
        self.around = around
        self._types = around.types
        self._extents = around.extents
        self._pointers: dict[str, str] = {}
        self._descriptors: dict[tuple[str, tuple[Dim, ...]], str] = {}
        self._strides: dict[str, tuple[str | int | Gapped, ...]] = {}
        self._sizes: dict[str, str] = {}

    def in_order(self) -> tuple[Param, ...]:
        """The parameters, kind by kind."""
        return tuple(sorted(self.params, key=lambda p: PARAM_KINDS.index(p.kind)))

    # -- Tensors -------------------------------------------------------------------

    def type(self, source: str) -> TensorType:
        """The type of a kernel-level tensor."""
        return self._types[source]

    def dtype(self, source: str) -> DType:
        """Its element format."""
        return self._types[source].dtype

    def alias_of(self, source: str) -> str:
        """The key of a second parameter for the same tensor.

        The compiler keeps the two apart, so loads through them are not merged.
        """
        return source + _ALIAS

    def access(self, key: str) -> tuple[str, Strides]:
        """The pointer and the strides of a tensor or of an alias."""
        source = key.removesuffix(_ALIAS)
        if key not in self._pointers:
            whole = self.around.whole(source)
            name = self._names.fresh(
                key.replace(source, whole).replace("/", "_") + "_ptr"
            )
            self._pointers[key] = name
            self.params.append(Param(name, "tensor", whole, dtype=self.dtype(source)))
        if source not in self._strides:
            self._strides[source] = self._make_strides(source)
        return self._pointers[key], self._strides[source]

    def descriptor(
        self, key: str, dims: tuple[Dim, ...], widths: tuple[int, ...]
    ) -> str:
        """A descriptor of a tensor or alias that loads boxes of the given widths."""
        if (key, dims) not in self._descriptors:
            source = key.removesuffix(_ALIAS)
            name = self._names.fresh(key.replace("/", "_") + "_desc")
            self._descriptors[key, dims] = name
            self.params.append(
                Param(
                    name,
                    "descriptor",
                    source,
                    dtype=self.dtype(source),
                    dims=tuple(d.name for d in dims),
                    box=widths,
                )
            )
        return self._descriptors[key, dims]

    def _make_strides(self, source: str) -> tuple[str | int | Gapped, ...]:
        place = self.around.placed.get(source)
        if place is not None and not self._is_strided(place):
            outer = self._make_strides(place.whole)
            return tuple(outer[a] for a in place.axes)
        packed = self._row_major(source)
        whole, without_gaps = self.around.whole(source), self.around.packed
        if {source, whole} & without_gaps or whole in self.around.variant.dense:
            return packed
        flat = self.around.flat.within.get(source)
        found: list[str | int | Gapped] = []
        for axis, dims in enumerate(self._types[source].axes):
            group = [axis] if flat is None else list(flat.groups[axis])
            if all(self._extents.get(d.name) == 1 for d in dims):
                found.append(0)
            elif source in self.around.variant.gapped and len(group) > 1:
                found.append(self._gapped(whole, group))
            else:
                value = packed[axis] if isinstance(packed[axis], int) else None
                assert not isinstance(value, str)
                found.append(self._stride(whole, group[-1], value))
        return tuple(found)

    def _stride(self, source: str, axis: int, value: int | None) -> str:
        """A parameter for the stride of an axis."""
        name = self._names.fresh(f"{source}_stride{axis}")
        self.params.append(Param(name, "stride", source, axis=axis, value=value))
        return name

    def _gapped(self, whole: str, axes: Sequence[int]) -> Gapped:
        """The strides of axes that one axis consists of."""
        usual = self._row_major(whole)
        sizes: list[str | int] = []
        strides: list[str | int] = []
        for axis in axes:
            (dim,) = self._types[whole].axes[axis]
            extent = self._extents.get(dim.name)
            sizes.append(self.size(dim.name) if extent is None else extent)
            known = usual[axis]
            value = known if isinstance(known, int) else None
            strides.append(self._stride(whole, axis, value))
        return Gapped(tuple(sizes), tuple(strides))

    def _is_strided(self, place: Place) -> bool:
        """Whether it is in a tensor of the caller, whose strides are not known."""
        outer = self.around.placed.get(place.whole)
        if outer is not None:
            return self._is_strided(outer)
        given = self.around.given or ()
        return place.whole in given and place.whole not in self.around.variant.dense

    def _row_major(self, source: str) -> tuple[str | int, ...]:
        """Strides of the packed tensor, in the order of axes that its layout says."""
        kind = self._types[source]
        strides: dict[int, str | int] = {}
        numbers, names = 1, list[str]()
        for axis in reversed(kind.order):
            strides[axis] = product([*names, numbers]) if names else numbers
            if axis == kind.order[0]:
                break
            for dim in kind.axes[axis]:
                extent = self._extents.get(dim.name)
                if extent is None:
                    names.append(self.size(dim.name))
                else:
                    numbers *= extent
        return tuple(strides[a] for a in range(len(kind.axes)))

    # -- Sizes and constants -------------------------------------------------------

    def size(self, dim: str) -> str:
        """The extent of a dim: a number, or a parameter."""
        extent = self._extents.get(dim)
        if extent is not None:
            return str(extent)
        if dim not in self._sizes:
            name = self._names.fresh(f"{dim}_size")
            self._sizes[dim] = name
            self.params.append(Param(name, "size", dim))
        return self._sizes[dim]

    def parts(self, axis: Sequence[ir.Split]) -> str:
        """How many blocks an axis has: a number, or an expression of names of dims."""
        counts: list[str] = []
        for split in axis:
            extent = self._extents.get(split.dim)
            if extent is not None:
                counts.append(str(parts(extent, split.tile)))
            else:
                counts.append(f"triton.cdiv({{{split.dim}}}, {split.tile})")
        if all(n.isdigit() for n in counts):
            return str(max(map(int, counts)))
        return counts[0] if len(counts) == 1 else f"max({', '.join(counts)})"

    def iterations(self, program: tp.TileProgram) -> str:
        """How often the loop runs."""
        loop = program.loop
        assert loop is not None
        extent = self._extents.get(loop.dim)
        if program.within_grid:
            part = next(s.tile for s in program.grid if s.dim == loop.dim)
            extent = part if extent is None else min(extent, part)
        if extent is not None:
            return str(parts(extent, loop.tile))
        return f"tl.cdiv({self.size(loop.dim)}, {loop.tile})"

    def constant(self, value: Scalar, dtype: DType = f32) -> str:
        """The constant as an atomic expression, of a format of integers or f32."""
        if dtype.is_integer and not value.extents:
            return literal(float(value.value), dtype)
        known = value.known_at(self._extents)
        if dtype.is_integer and known is not None and known.is_integer():
            return literal(known, dtype)
        if known is not None:
            text = number(known)
            # Triton takes numbers below the normal ones for float64.
            small = 0 < abs(known) < SMALLEST_NORMAL
            return f"tl.full((), {text}, tl.float32)" if small else text
        up = [self.size(n) for n, p in value.extents for _ in range(p)]
        down = [self.size(n) for n, p in value.extents for _ in range(-p)]
        text = " * ".join([number(Scalar(value.value).at({})), *up])
        for factor in down:
            text += f" / {factor}"
        return f"({text})"


# -- Tiles -----------------------------------------------------------------------------

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
    axes: tp.Order
    dtype: DType = f32


class TileCode:
    """Emits the changes of form that tiles need, each once per stage."""

    def __init__(
        self,
        writer: Writer,
        pieces: tp.Pieces,
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

    def several(self, expression: str, wanted: Sequence[str]) -> list[str]:
        """The names of the tiles that an expression gives, computed here or before."""
        for scope in self._bound:
            if expression in scope:
                return scope[expression].split(", ")
        names = ", ".join(self.writer.names.fresh(name) for name in wanted)
        self._bound[-1][expression] = self.writer.assign(names, expression)
        return names.split(", ")

    def shape(self, axes: Sequence[Dim]) -> str:
        """The shape of a tile as a Python tuple.

        Raises:
            UnsupportedError: Triton has no tensors of that size.
        """
        widths = self.pieces.shape(axes)
        if prod(widths) > tp.LARGEST_TILE:
            dims = ", ".join(map(str, axes))
            raise UnsupportedError(
                f"a tile of [{dims}] has {prod(widths)} elements; "
                f"Triton allows {tp.LARGEST_TILE}: split more, or use smaller tiles"
            )
        return f"({', '.join(map(str, widths))}{',' * (len(widths) == 1)})"

    def _once(self, key: tuple[object, ...], make: Callable[[], Variable]) -> Variable:
        for scope in self._made:
            if key in scope:
                return scope[key]
        made = self._made[-1][key] = make()
        return made

    def arranged(self, tile: Variable, order: tp.Order) -> Variable:
        """The tile with its axes in this order."""
        if order == tile.axes:
            return tile

        def make() -> Variable:
            turns = ", ".join(str(tile.axes.index(d)) for d in order)
            text = f"tl.permute({tile.name}, ({turns}))"
            name = self.writer.define(f"{tile.name}_t", text)
            return replace(tile, name=name, axes=order)

        return self._once(("arranged", tile.name, order), make)

    def reshaped_as(self, tile: Variable, axes: tp.Order) -> Variable:
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

    def _halved(self, name: str, rest: tp.Order, width: int) -> list[str]:
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
            number = as_number(tile.name, tile.dtype, dtype)
            text = f"{number}.to({TRITON_DTYPE[dtype.name]})"
            name = self.writer.define(f"{tile.name}_{dtype}", text)
            return replace(tile, name=name, dtype=dtype)

        return self._once(("dtype", tile.name, dtype), make)

    def masked(self, tile: Variable, dims: tp.Order, fill: float) -> Variable:
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


# -- The memory of a block -------------------------------------------------------------


class Places:
    """Emits and names program ids, positions and masks of one block.

    A piece `d` has positions `start + lane` within its dim; a looped piece adds
    `it * tile` in iteration `it`.
    """

    def __init__(
        self,
        axes: Sequence[Sequence[ir.Split]],
        pieces: tp.Pieces,
        writer: Writer,
        size: Callable[[str], str],
        *,
        wide: bool,
    ) -> None:
        self._axes = axes
        self._pieces = pieces
        self._writer = writer
        self._size = size
        self._wide = wide
        self.far = ""
        self.ids: dict[str, str] = {}
        # Of the pieces that are axes of tiles.
        self._lanes: dict[Dim, str] = {}
        # Of all pieces.
        self._steps: dict[Dim, str] = {}
        self._starts: dict[Dim, str] = {}
        self._masks: dict[Dim, str] = {}
        self._loop_masks: dict[Dim, str] = {}
        self._deals: dict[Dealt, Lanes] = {}
        # The piece over whose columns iterations are spread, and how many these are.
        self.spread: tuple[Dim, int] | None = None
        self._in_loop = False

    # -- Program ids and positions -------------------------------------------------

    def emit_ids(self, without: Container[str] = ()) -> None:
        """Bind the coordinate of each grid axis, and a zero that widens offsets.

        Args:
            without: The dims of an axis whose coordinates are data.
        """
        if self._wide:
            self.far = self._writer.define("far", "tl.full((), 0, tl.int64)")
        for place, axis in enumerate(self._axes):
            if axis[0].dim in without:
                continue
            text = f"tl.program_id({place})" + ".to(tl.int64)" * self._wide
            if tp.counts_down(axis, self._pieces.block):
                text = f"tl.num_programs({place}) - 1 - {text}"
            name = self._writer.define("_".join([*(s.dim for s in axis), "id"]), text)
            self.ids |= dict.fromkeys((s.dim for s in axis), name)

    def emit_id_at(
        self, split: ir.Split, spans: Sequence[tuple[int | str, int]], number: int
    ) -> None:
        """Bind the coordinate of the block that has positions, or of the nearest.

        Args:
            split: Whose coordinate it is.
            spans: The first position of each, and how many blocks have some of it; one
                block after the other is theirs along the axis.
            number: Of the axis.
        """
        size = self._size(split.dim)
        last = f"({size} - 1) // {split.tile}"
        if size.isdigit():
            last = str((int(size) - 1) // split.tile)
        text, before = "", 0
        for first, count in spans:
            if isinstance(first, int):
                at = str(first // split.tile)
            else:
                at = f"tl.minimum(tl.maximum({first} // {split.tile}, 0), {last})"
            if sum(n for _, n in spans) > 1:
                at = f"{at} + tl.program_id({number}) - {before}"
            text = (
                f"tl.where(tl.program_id({number}) < {before}, {text}, {at})"
                if text
                else at
            )
            before += count
        if len(spans) == 1 and spans[0][1] == 1 and isinstance(spans[0][0], int):
            text = f"tl.full((), {text}, tl.int32)"
        dtype = "tl.int64" if self._wide else "tl.int32"
        self.ids[split.dim] = self._writer.define(
            f"{split.dim}_id", f"({text}).to({dtype})"
        )

    def emit_positions(
        self, which: Callable[[tp.Piece], bool] = lambda _: True
    ) -> None:
        """Bind lanes and starting positions of pieces, and their constant masks."""
        pieces = [piece for piece in self._pieces.all if which(piece)]
        for piece in pieces:
            self._emit_lanes(piece)
        for piece in pieces:
            if piece.loop_tile is None and self.is_axis(piece.dim) and piece.loose:
                terms = self._outside_loop(piece)
                self._masks[piece.dim] = self._bind_mask(piece, terms)

    def _emit_lanes(self, piece: tp.Piece) -> None:
        dim, first, tile = piece.dim, self._first(piece), piece.loop_tile
        self._steps[dim] = "" if tile is None else "it" if tile == 1 else f"it * {tile}"
        if piece.unit:
            self._starts[dim] = first
            return
        lanes = self._count(piece.width)
        self._lanes[dim] = self._writer.define(f"{dim.name}_lane", lanes)
        if first:
            self._starts[dim] = self._writer.define(
                f"{dim.name}_at", f"{first} + {self._lanes[dim]}"
            )
        else:
            self._starts[dim] = self._lanes[dim]

    def _count(self, lanes: int) -> str:
        """So many numbers from 0 on."""
        return f"tl.arange(0, {lanes})" + ".to(tl.int64)" * self._wide

    def _first(self, piece: tp.Piece) -> str:
        """The first position of the block's part, or nothing where it is 0."""
        if piece.grid_tile is None:
            return ""
        return times(self.ids[piece.dim.name], [piece.grid_tile])

    def positions(self, dim: Dim, lanes: int, step: int) -> str:
        """Every so many elements from the first one of the block's part on."""
        text = self._count(lanes) + (f" * {step}" if step != 1 else "")
        first = self._first(self._pieces[dim])
        return f"{first} + {text}" if first else text

    def run(self, side: tp.Order) -> dict[Dim, str]:
        """Positions along pieces that lie in memory as one axis: of the last, of all.

        What the others add is the block's part of the first one.
        """
        wanted = "_".join([*(d.name for d in side), "lane"])
        count = self._count(prod(self._pieces.shape(side)))
        name = self._writer.define(wanted, count)
        found = {d: self._first(self._pieces[d]) for d in side[:-1]}
        return {**found, side[-1]: name}

    def dealt(self, load: Dealt, at_once: int) -> Lanes:
        """Where what is dealt lies, and which of it exists.

        Args:
            load: How it is dealt.
            at_once: How many elements a thread loads at once.
        """
        if load not in self._deals:
            self._deals[load] = (
                self._dealt_rows(load)
                if load.of_rows
                else self._dealt_columns(load, at_once)
            )
        return self._deals[load]

    def _dealt_rows(self, load: Dealt) -> Lanes:
        parts, rows = self._pieces.shape((load.batch, load.side))
        order = (load.side, load.run[-1])
        lane = self._assign(load, "lane", self._count(parts * rows))
        part = self._assign(load, "part", f"{lane} // {DEALT_ROWS} % {parts}")
        row = f"{lane} // {DEALT_ROWS * parts} * {DEALT_ROWS} + {lane} % {DEALT_ROWS}"
        first = self._first(self._pieces[load.side])
        at = self._assign(load, "at", f"{first} + {row}" if first else row)
        across = subscript(order[:1], order)
        return Lanes(order, {load.batch: part + across, load.side: at})

    def _dealt_columns(self, load: Dealt, at_once: int) -> Lanes:
        (parts,), count = self._pieces.shape((load.batch,)), DEALT_ROWS
        each = prod(self._pieces.shape(load.run)) // DEALT_THREADS
        threads = DEALT_THREADS * count * parts
        lane = self._assign(load, "lane", self._count(each // at_once * threads))
        part = self._assign(
            load, "part", f"{lane} // {DEALT_THREADS * count} % {parts}"
        )
        column = self._assign(load, "column", f"{lane} // {DEALT_THREADS} % {count}")
        order = (load.side, Dim("at once"))
        across, inner = (subscript((d,), order) for d in order)
        quarter, later = f"{lane} % {DEALT_THREADS}", f"{lane} // {threads}"
        along = f"({quarter} * {each} + {later} * {at_once}){across}"
        along = f"{along} + tl.arange(0, {at_once}){inner}"
        starts = dict.fromkeys(load.run[:-1], "")
        starts[load.run[-1]] = self._assign(load, "along", along)
        starts[load.side] = column
        mask = " & ".join(self._conditions(self._pieces[load.side], column, column))
        if self.spread is not None and self.spread[0] == load.side:
            iterations, tile = self.spread[1], self._pieces[load.batch].loop_tile
            part = f"({column} * {tile} + {part})"
            starts[load.side] = f"({column} * 0)"
            mask = f"({column} < {iterations})" if iterations < count else ""
        starts[load.batch] = part + across
        return Lanes(order, starts, f"({mask}){across}" if mask else "")

    def is_column(self, number: str, order: tp.Order) -> str:
        """Whether lanes are in a column, of those over which iterations are spread."""
        assert self.spread is not None
        side = self.spread[0]
        return f"({self._lanes[side]} == {number}){subscript((side,), order)}"

    def _assign(self, load: Dealt, what: str, text: str) -> str:
        """A variable about what is dealt."""
        return self._writer.define(f"{load.side.name}_{load.batch.name}_{what}", text)

    def part(self, name: str) -> str:
        """The first position of the block's part of a dim that the grid splits."""
        tile = next(s.tile for a in self._axes for s in a if s.dim == name)
        return times(self.ids[name], [tile])

    def start(self, dim: Dim) -> str:
        """Positions in the first iteration: a vector, a scalar, or nothing for 0."""
        return self._starts[dim]

    def advance(self, dim: Dim) -> str:
        """What iteration `it` adds to the positions; nothing if not looped."""
        return self._steps[dim]

    def is_piece(self, dim: Dim) -> bool:
        """Whether a dim of a store is a piece; else it numbers the parts, `k#`."""
        return dim in self._steps

    def is_axis(self, dim: Dim) -> bool:
        """Whether tiles have an axis for a dim."""
        return dim in self._lanes

    def offset(self, dim: Dim) -> str:
        """The first position of this iteration's piece, as a 32-bit number."""
        first = self._first(self._pieces[dim])
        text = " + ".join(t for t in (first, self.advance(dim)) if t) or "0"
        # Only the coordinates of the grid have 64 bits.
        return f"({text}).to(tl.int32)" if self._wide and first else text

    # -- Masks ---------------------------------------------------------------------

    def _outside_loop(self, piece: tp.Piece) -> list[str]:
        """Conditions on a lane that do not change from iteration to iteration."""
        dim = piece.dim
        return self._conditions(piece, self._lanes[dim], self._starts[dim])

    def _conditions(self, piece: tp.Piece, lane: str, at: str) -> list[str]:
        """The same of some lanes, and of the positions that they have."""
        terms: list[str] = []
        if piece.loop_tile is not None:
            if piece.padded:
                terms.append(f"({lane} < {piece.loop_tile})")
            return terms
        if piece.grid_tile is not None and piece.padded:
            terms.append(f"({lane} < {piece.grid_tile})")
        if piece.ragged_grid:
            terms.append(f"({at} < {self._size(piece.dim.name)})")
        if piece.grid_tile is None and piece.padded:
            terms.append(f"({lane} < {self._size(piece.dim.name)})")
        return terms

    def begin_loop(self) -> None:
        """Bind the masks that change with the iteration."""
        self._in_loop = True
        for piece in self._pieces.all:
            looped = piece.loop_tile is not None and self.is_axis(piece.dim)
            if looped and piece.loose:
                terms = self._outside_loop(piece) + self._of_iteration(piece)
                self._loop_masks[piece.dim] = self._bind_mask(piece, terms)

    def _of_iteration(self, piece: tp.Piece) -> list[str]:
        name, step = piece.dim.name, self.advance(piece.dim)
        terms: list[str] = []
        if piece.ragged_loop and piece.grid_tile is not None:
            terms.append(f"({step} + {self._lanes[piece.dim]} < {piece.grid_tile})")
        if piece.ragged_grid or (piece.ragged_loop and piece.grid_tile is None):
            at = self._starts[piece.dim]
            terms.append(f"({step} + {at} < {self._size(name)})")
        return terms

    def pause_loop(self) -> None:
        """Leave the loop, whose other iterations follow."""
        self._in_loop = False

    def end_loop(self) -> None:
        """Leave the loop: looped pieces are indices within a tile from now on."""
        self._in_loop = False
        for piece in self._pieces.all:
            if piece.loop_tile is None or not self.is_axis(piece.dim):
                continue
            terms = self._outside_loop(piece)
            if piece.ragged_grid:
                size = self._size(piece.dim.name)
                terms.append(f"({self._starts[piece.dim]} < {size})")
            if terms:
                self._masks[piece.dim] = self._bind_mask(piece, terms)

    def _bind_mask(self, piece: tp.Piece, terms: list[str]) -> str:
        return self._writer.define(f"{piece.dim.name}_in", " & ".join(terms))

    def mask(self, dim: Dim) -> str:
        """The name of the mask of a piece here; nothing if all lanes are inside."""
        if self._in_loop and dim in self._loop_masks:
            return self._loop_masks[dim]
        return self._masks.get(dim, "")


# -- Addresses, loads and stores -------------------------------------------------------


@dataclass(frozen=True)
class Address:
    """The pointers of a load or store.

    Attributes:
        first: An expression of the pointers, of the first iteration in a loop.
        step: What iteration `it` adds; nothing outside of loops.
    """

    first: str
    step: str

    @property
    def here(self) -> str:
        """Those of this iteration."""
        return f"{self.first} + {self.step}" if self.step else self.first


@dataclass(frozen=True)
class Lanes:
    """Where the lanes of a loaded tile lie.

    Attributes:
        order: The axes.
        starts: Positions in the first iteration, where they are not the tile's.
        inside: Which of them exist, where the masks of the tile's axes do not say it.
    """

    order: tp.Order
    starts: Mapping[Dim, str]
    inside: str = ""


class Memory:
    """Emits the memory accesses of one block."""

    def __init__(
        self,
        places: Places,
        tiles: TileCode,
        extents: Extents,
        size: Callable[[str], str],
        *,
        wide: bool,
    ) -> None:
        self._block = tiles.pieces.block
        self._places = places
        self._tiles = tiles
        self._extents = extents
        self._size = size
        self._wide = wide

    @property
    def _writer(self) -> Writer:
        return self._tiles.writer

    def address(
        self,
        pointer: str,
        axes: Sequence[Axis],
        strides: Strides,
        order: Sequence[Dim],
        *,
        starts: Mapping[Dim, str] | None = None,
        without: Dim | None = None,
    ) -> Address:
        """The address of a tile whose axes have the order `order`.

        Args:
            pointer: Of the tensor.
            axes: Of the tensor.
            strides: Of the axes.
            order: Dims of the tile.
            starts: Positions in the first iteration, where they are not the tile's.
            without: The dim along which it is the address of the first position.
        """
        first, step = [pointer], list[str]()
        for axis, stride in zip(axes, strides, strict=True):
            if isinstance(stride, Gapped):
                at, moved = self._at(axis, order, starts or {})
                (step if moved else first).extend(taken_apart(at, stride))
                continue
            factors: list[str | int] = [stride]
            for dim in reversed(axis):
                index, moved = "", ""
                if dim != without:
                    index, moved = self._index(dim, order, starts or {})
                if index:
                    first.append(times(index, factors))
                if moved:
                    step.append(times(moved, factors))
                factors = [*factors, self.size(dim)]
        return Address(" + ".join(first), " + ".join(step))

    def size(self, dim: Dim) -> str | int:
        """The extent of a dim."""
        extent = self._extents.get(dim.name)
        return self._size(dim.name) if extent is None else extent

    def stride(
        self, axes: Sequence[Axis], strides: Strides, dim: Dim
    ) -> list[str | int]:
        """How far apart in memory the positions along a dim of a tensor are."""
        pairs = zip(axes, strides, strict=True)
        axis, stride = next((a, s) for a, s in pairs if dim in a)
        assert not isinstance(stride, Gapped)
        behind = axis[axis.index(dim) + 1 :]
        return [stride, *(self.size(d) for d in reversed(behind))]

    def positions(self, axis: Axis, order: Sequence[Dim]) -> str:
        """The row-major positions along an axis; nothing for 0."""
        return self._at(axis, order, {})[0]

    def _at(
        self, axis: Axis, order: Sequence[Dim], starts: Mapping[Dim, str]
    ) -> tuple[str, bool]:
        """The row-major positions along an axis, and whether iterations move them."""
        found, factors, moves = list[str](), list[str | int](), False
        for dim in reversed(axis):
            index, moved = self._index(dim, order, starts)
            found += [times(text, factors) for text in (index, moved) if text]
            factors, moves = [*factors, self.size(dim)], moves or bool(moved)
        return " + ".join(found), moves

    def _index(
        self, dim: Dim, order: Sequence[Dim], starts: Mapping[Dim, str]
    ) -> tuple[str, str]:
        """Positions along a dim, and what an iteration adds to them."""
        if not self._places.is_piece(dim):
            return self._number(dim), ""
        index = starts[dim] if dim in starts else self._places.start(dim)
        moved = self._places.advance(dim)
        if dim in order:
            index += subscript((dim,), order)
        if moved and self._wide:
            moved = f"({self._places.far} + {moved})"
        return index, moved

    def _number(self, dim: Dim) -> str:
        """Which of the parts along `k#` is the block's.

        Blocks that have no part of `k` compute what all others do, and write it once
        more where the last one does.
        """
        base = tp.partial_of(dim, self._block.grid)
        assert base is not None
        number, split = self._places.ids[base], self._block.grid_split(base)
        if split is None or not tp.has_excess(split, self._block, self._extents):
            return number
        return f"tl.minimum({number}, {self._size(dim.name)} - 1)"

    def mask(self, order: Sequence[Dim]) -> str:
        """The condition under which a lane of a tile is inside; nothing if all are."""
        parts: list[str] = []
        for dim in order:
            name = self._places.mask(dim)
            if name:
                parts.append(name + subscript((dim,), order))
        return " & ".join(parts)

    def load(
        self,
        address: Address,
        order: tp.Order,
        name: str,
        *,
        whole: bool = False,
        inside: str = "",
    ) -> None:
        """Load a tile, of integers if they are whole; lanes outside are 0.

        Args:
            address: Its pointers.
            order: Its axes.
            name: Of the variable.
            whole: Whether it is of integers.
            inside: What lanes have to meet besides.
        """
        self._tiles.shape(order)
        mask = " & ".join(m for m in (self.mask(order), inside) if m)
        other = "0" if whole else "0.0"
        guard = f", mask={mask}, other={other}" if mask else ""
        self._writer.assign(name, f"tl.load({address.here}{guard})")

    def store(
        self,
        node: tp.Store,
        pointer: str,
        strides: Strides,
        tile: Variable,
        lanes: tp.Order = (),
        chosen: Callable[[tp.Order], str] = lambda _: "",
    ) -> None:
        """Store the lanes of a tile that are inside.

        Args:
            node: What is stored where.
            pointer: Of the tensor.
            strides: Of its axes.
            tile: What is stored.
            lanes: The axes along which it is, where the tile lacks some of them.
            chosen: What lanes of these axes have to meet besides.
        """
        lanes = lanes or tile.axes
        dims = [d for axis in node.at for d in axis]
        order = self._tiles.pieces.axes_stored(node.at, lanes)
        # A dim of extent 1 that only the tile has: its lanes are one address.
        extra = tuple((d,) for d in lanes if d not in dims)
        axes, steps = (*node.at, *extra), (*strides, *(0 for _ in extra))
        address = self.address(pointer, axes, steps, order)
        value = self._tiles.as_dtype(tile, node.dtype)
        text = value.name
        if tile.axes != order:
            text = self._spread(value, order)
        mask = " & ".join(m for m in (self.mask(order), chosen(order)) if m)
        guard = f", mask={mask}" if mask else ""
        pointers = self._writer.define(f"{node.result}_at", address.here)
        self._writer.line(f"tl.store({pointers}, {text}{guard})")

    def _spread(self, tile: Variable, order: tp.Order) -> str:
        shape = self._tiles.shape(order)
        if tile.dtype.only_stores and not tile.axes:
            return f"tl.broadcast_to({tile.name}, {shape})"
        if not tile.axes and not tile.dtype.is_integer:
            return f"tl.full({shape}, 0.0, tl.float32) + {tile.name}"
        if not tile.axes:
            zero = f"tl.full({shape}, 0, {TRITON_DTYPE[tile.dtype.name]})"
            return f"{zero} + {tile.name}"
        return f"tl.broadcast_to({tile.name}{subscript(tile.axes, order)}, {shape})"


def taken_apart(position: str, axis: Gapped) -> list[str]:
    """What a position along an axis that is several axes adds to an address."""
    whole = f"({position})" if " " in position else position
    found: list[str] = []
    for at, (size, stride) in enumerate(zip(axis.sizes, axis.strides, strict=True)):
        inner = axis.sizes[at + 1 :]
        text = f"{whole} // {divisor(inner)}" if inner else whole
        if at:
            text = f"({text}) % {size}" if inner else f"{text} % {size}"
        found.append(times(f"({text})", [stride]))
    return found if position else []


def product(factors: Iterable[str | int]) -> str:
    """The product of some factors, numbers first multiplied with each other."""
    given = list(factors)
    known = prod(f for f in given if isinstance(f, int))
    others = [f for f in given if isinstance(f, str)]
    if known != 1 or not others:
        others.append(str(known))
    return " * ".join(others)


def divisor(factors: Iterable[str | int]) -> str:
    """The product as an expression that may be divided by."""
    text = product(factors)
    return f"({text})" if " " in text else text


def times(index: str, factors: Iterable[str | int]) -> str:
    """`index` times the factors."""
    return product([index, *factors])


# -- What is asked for ahead -----------------------------------------------------------

LINE = 128
"""Bytes of a cache line."""


class Prefetcher:
    """Emits the requests of one block, ahead of its wait."""

    def __init__(
        self, tiles: TileCode, places: Places, memory: Memory, signature: Signature
    ) -> None:
        self._tiles = tiles
        self._places = places
        self._memory = memory
        self._signature = signature

    def ask(self, asked: tp.Ask) -> None:
        """Ask for the first few tiles of a load of the loop."""
        writer = self._tiles.writer
        source, pieces = asked.source, self._tiles.pieces
        of_line = LINE // self._signature.dtype(source).itemsize
        starts: dict[Dim, str] = {}
        writer.line(f"# the first tiles of {source}, while this kernel waits")
        box = memory_order(asked, self._signature.type(source))
        for dim in box:
            step = of_line if dim == box[-1] else 1
            lanes = max(1, self._lanes(pieces[dim], asked.tiles) // step)
            starts[dim] = writer.define(
                f"{source}_{dim.name}",
                self._places.positions(dim, lanes, step),
            )
        pointer, strides = self._signature.access(source)
        dims = tuple(d for axis in asked.at for d in axis)
        address = self._memory.address(pointer, asked.at, strides, dims, starts=starts)
        writer.below("if EARLY:", [f"prefetch({address.first})"])

    @staticmethod
    def _lanes(piece: tp.Piece, tiles: int) -> int:
        """Elements of the first few tiles; those of one that is not looped over."""
        if piece.loop_tile is None:
            return piece.width
        part = piece.grid_tile or piece.extent or piece.loop_tile
        most = tp.power_of_two(part // piece.loop_tile + 1) // 2
        return piece.width * min(tiles, most)


# -- Statements ------------------------------------------------------------------------

FULL_PRECISION = 'input_precision="ieee"'


TF32 = 'input_precision="tf32"'
"""f32 products as they are, and with operands rounded to TF32."""


PRECISIONS = {"storage": "", "tf32": f", {TF32}", "ieee": f", {FULL_PRECISION}"}


APART = "max_num_imprecise_acc=1"
"""Keeps a product apart from the sum that it is added to.

f32 products are added one after the other: over the whole loop, each would be rounded
at the size of the sum.  Tile by tile, few are.  Triton makes one chain of a sum and a
product again, unless the product has this limit, which says nothing for f32 otherwise.
"""


AS_NUMBER = ".to(tl.float32)"
"""What makes a number of a comparison."""


def as_number(text: str, dtype: DType, wanted: DType) -> str:
    """An expression that `.to` makes numbers of: bf16 comes of floats alone.

    Triton's interpreter takes the bits of truth values and integers for those of bf16.
    """
    return text if dtype.is_float or wanted is not bf16 else text + AS_NUMBER


def emit_block(
    block: ir.BlockGraph,
    name: str,
    around: Surroundings,
    *,
    announced: Announced,
    made: AbstractSet[str] | None,
) -> KernelPlan:
    """The Triton kernel of a block graph.

    Args:
        block: What to emit.
        name: Of the kernel.
        around: Its kernel graph.
        announced: When the kernel behind it may start; never before this one's wait.
        made: What it has to wait for, as `awaited` says; None where that is all.

    Raises:
        UnsupportedError: Triton cannot express something of it.
    """
    given = suited(block, around)
    program = build(given, name=name, announced=announced, made=made)
    return _Printer(program, given.pieces, given.around).plan()


@dataclass
class LoopedLoads:
    """What stands ahead of the loop for its loads, by their results.

    Attributes:
        hoisted: Whether addresses have been computed.
        addresses: Those of the first iteration.
        descriptors: Names of descriptors.
        early: What holds the tiles that are loaded before the wait.
        columns: What holds those of all iterations, which have a column each.
    """

    hoisted: bool = False
    addresses: dict[str, Address] = field(default_factory=dict[str, Address])
    descriptors: dict[str, str] = field(default_factory=dict[str, str])
    early: dict[str, str] = field(default_factory=dict[str, str])
    columns: dict[str, str] = field(default_factory=dict[str, str])


class _Printer:
    def __init__(
        self, program: tp.TileProgram, pieces: tp.Pieces, around: Surroundings
    ) -> None:
        self._program, self._pieces, self._around = program, pieces, around
        self._writer = Writer()
        signature = self._signature = Signature(around, self._writer.names)
        self._axes = tp.launch_order(pieces.block, around.extents, around.types)
        places = self._places = Places(
            self._axes,
            pieces,
            self._writer,
            signature.size,
            wide=around.variant.wide,
        )
        tiles = self._tiles = TileCode(self._writer, pieces, places.mask)
        self._memory = Memory(
            places, tiles, around.extents, signature.size, wide=around.variant.wide
        )
        self._words = {
            load: dim
            for load, dim in words(program).items()
            if self._loads[load].source not in around.variant.apart
        }
        self._packed = packed(program, lambda d: pieces[d].width, self._words)
        self._runs = runs(program, lambda d: not pieces[d].loose)
        self._dealt: Mapping[str, Dealt] = self._deals() if self._words else {}
        self._changes = changes(program, dict(around.variant.over))
        # Stores of parts read values that their statements do not name.
        self._held = NONE_HELD if self._changes.stores else held_over(program)
        # Shifts that are finite, and what they are made of.
        self._shifts: dict[str, str] = {}
        self._variables: dict[str, Variable] = {}
        # Truth values as bits, by the names of those that are numbers.
        self._truths: dict[str, str] = {}
        self._chosen_by = _deciding(program)
        self._ranges: Mapping[tp.Part, tuple[str, str]] = {}
        self._looped = LoopedLoads()
        self._print = self._methods()

    @cached_property
    def _units(self) -> Mapping[str, Unit]:
        """The maxima that scores are multiplied with in one operation."""
        return units_over(self._program, self._held)

    def _deals(self) -> Mapping[str, Dealt]:
        """The loads that give threads what they multiply."""
        found = deal(self._program, self._words, self._runs)
        if found is None or not tp.value(found.when, self._pieces):
            return {}
        side = spread(self._program, found.loads, self._pieces)
        if side is not None:
            self._places.spread = side, tp.iterations(self._program)
        return found.loads

    def _methods(self) -> Mapping[type, Callable[[Any], None]]:
        """What prints each kind of statement."""
        return {
            tp.Load: self._load,
            tp.Store: self._store,
            tp.Ask: self._ask,
            tp.Positions: self._positions,
            tp.Compute: self._compute,
            tp.Cast: self._cast,
            tp.Finite: self._finite,
            tp.Convert: self._convert,
            tp.Mask: self._mask,
            tp.Merge: self._merge,
            tp.Lane: self._lane,
            tp.Join: self._join,
            tp.Reduce: self._reduce,
            tp.Scan: self._scan,
            tp.Product: self._product,
            tp.Start: self._start,
            tp.Rescale: self._rescale,
            tp.Update: self._update,
            tp.Largest: self._largest,
            tp.Wait: self._wait,
            tp.Announce: self._announce,
            tp.Loop: self._loop,
        }

    # -- The kernel ----------------------------------------------------------------

    def plan(self) -> KernelPlan:
        """The kernel."""
        program, block = self._program, self._pieces.block
        self._writer.indent()
        narrowed = self._changes.narrowed
        if narrowed is None:
            self._places.emit_ids()
            self._places.emit_positions(lambda piece: piece.dim in self._standing)
            self._region(program.body, program.closing)
        else:
            self._narrowed(narrowed)
        self._writer.dedent()
        params = self._signature.in_order()
        grid = tuple(self._blocks(a) for a in self._axes) or ("1",)
        lines = (*head_of(program.name, params), *self._writer.lines)
        assert isinstance(program.warps, int)
        schedule = replace(block.schedule, num_warps=program.warps)
        block = replace(block, schedule=schedule)
        read = {self._loads[v].source: d.name for v, d in self._words.items()}
        registers = Deal.registers(program.warps) if self._dealt else None
        return KernelPlan(program.name, block, params, grid, lines, read, registers)

    @cached_property
    def _standing(self) -> frozenset[Dim]:
        """The pieces that tiles have, or places in memory.

        Values that are joined over the loop have others, of any length: no tile does.
        """
        every = self._program.statements
        at = (axis for s in every if isinstance(s, tp.Load | tp.Store) for axis in s.at)
        tiles = (tile.axes for tile in self._program.tiles.values())
        return frozenset(dim for dims in (*tiles, *at) for dim in dims)

    def _narrowed(self, narrowed: Narrowed) -> None:
        """The kernel with those blocks along an axis that are at places."""
        places, known = self._places, narrowed.stretches
        places.emit_ids(without=known)
        places.emit_positions(lambda piece: piece.dim.name not in known)
        self._region(narrowed.ahead, ())
        for dim, each in known.items():
            split = self._pieces.block.grid_split(dim)
            assert split is not None
            spans = [(self._first(p), p.blocks(split.tile)) for p in each]
            number = next(n for n, a in enumerate(self._axes) if split in a)
            places.emit_id_at(split, spans, number)
        places.emit_positions(lambda piece: piece.dim.name in known)
        rest = [s for s in self._program.body if s not in narrowed.ahead]
        self._region(rest, self._program.closing)

    def _first(self, stretch: Stretch) -> int | str:
        """The first position of a stretch: a number, or an expression."""
        if isinstance(stretch.first, int):
            return stretch.first
        return self._form(stretch.first, (), i32)

    def _blocks(self, axis: Sequence[ir.Split]) -> str:
        """How many blocks the launch has along an axis of the grid."""
        narrowed = self._changes.narrowed
        if narrowed is not None and axis[0].dim in narrowed.stretches:
            found = narrowed.stretches[axis[0].dim]
            return str(sum(each.blocks(axis[0].tile) for each in found))
        return self._signature.parts(axis)

    def _region(self, body: Sequence[tp.Statement], closing: tp.Notes) -> None:
        left_out = self._packed.steps | self._changes.unused
        for statement in body:
            if statement.notes:
                self._writer.comment(statement.notes)
            if not left_out or left_out.isdisjoint(tp.makes(statement)):
                held = self._multiply_held(statement)
                self._print[type(statement)](statement)
                self._variables |= held
        self._writer.comment(closing)

    def _multiply_held(self, statement: tp.Statement) -> Mapping[str, Variable]:
        """Give a statement what it needs with its factor; what is held in its place."""
        held: dict[str, Variable] = {}
        read = dict.fromkeys(tp.reads(statement)) if self._held.factors else ()
        for name in read:
            factor = self._held.factors.get(name)
            if factor is None or self._held.takes(statement, name):
                continue
            tile = held[name] = self._variables[name]
            text = f"tl.fma({tile.name}, {self._signature.constant(factor)}, 0.0)"
            made = self._bind(name, text)
            self._variables[name] = replace(tile, name=made)
        return held

    def _loop(self, loop: tp.Loop) -> None:
        self._hoist()
        stages = self._program.schedule.num_stages
        if not self._ranges:
            self._ranges = self._parts()
        first, end = self._ranges[loop.part]
        ahead = f"num_stages={stages}"
        if self._dealt and tp.iterations(self._program) == DEALT_AT_ONCE:
            ahead += f", loop_unroll_factor={DEALT_AT_ONCE}"
        head = f"for it in tl.range({first}, {end}, {ahead}):"
        if self._early or self._places.spread:
            head = f"for it in tl.static_range({end}):"
        if self._places.spread:
            self._load_columns()
        with self._iterating(head):
            self._region(loop.body, loop.closing)
        if self._places.spread:
            self._sum_columns()
        if loop.part == tp.loop_parts(self._program.whole)[-1]:
            self._places.end_loop()

    @contextmanager
    def _iterating(self, head: str) -> Generator[None]:
        """What is printed between is the body of a loop over the iterations."""
        self._writer.line(head)
        self._writer.indent()
        self._tiles.enter()
        before = len(self._writer.lines)
        self._places.begin_loop()
        yield
        if len(self._writer.lines) == before:
            self._writer.line("pass")
        self._tiles.leave()
        self._writer.dedent()

    @cached_property
    def _in_columns(self) -> Sequence[str]:
        """What iterations have a column of each."""
        dealt = self._dealt.items()
        return [r for r, d in dealt if not d.of_rows and self._places.spread]

    def _load_columns(self) -> None:
        """What iterations have a column of each, of all of them at once."""
        for result in self._in_columns:
            name = self._writer.names.fresh(f"{result}_columns")
            address = replace(self._looped.addresses[result], step="")
            self._load_dealt(self._loads[result], address, name)
            self._looped.columns[result] = name

    def _sum_columns(self) -> None:
        """Of what iterations added to their own columns, the sum in the first one.

        Others hold nothing, as where iterations are not spread.
        """
        assert self._places.spread is not None
        side, _ = self._places.spread
        statements = self._program.statements
        summed = (s.target for s in statements if isinstance(s, tp.Update))
        for value in dict.fromkeys(summed):
            tile = self._variables[value]
            if side in tile.axes:
                first = self._places.is_column("0", tile.axes)
                axis = tile.axes.index(side)
                text = f"tl.sum({tile.name}, axis={axis}, keep_dims=True)"
                self._writer.assign(tile.name, f"tl.where({first}, {text}, 0.0)")

    @cached_property
    def _early(self) -> int:
        """How many iterations are loaded before the wait."""
        asked = self._program.schedule.early
        return tp.loaded_early(self._program) if asked else 0

    def _load_early(self) -> None:
        """Before the wait: what first iterations read that is there already.

        What has a column of each iteration comes behind it, with all of them.
        """
        self._hoist()
        loads = [self._loads[name] for name in self._early_loads()]
        self._writer.line("# Of the first iterations, while the kernel ahead runs:")
        for load in loads:
            held = self._writer.names.fresh(f"{load.result}_early")
            self._looped.early[load.result] = held
            self._writer.line(f"{held} = ()")
        with self._iterating(f"for it in tl.static_range({self._early}):"):
            for load in loads:
                self._load_now(load, name := self._writer.names.fresh(load.result))
                held = self._looped.early[load.result]
                self._writer.line(f"{held} = {held} + ({name},)")
        self._places.pause_loop()

    def _early_loads(self) -> Iterator[str]:
        """The results of loads of which first iterations come before the wait."""
        for load in self._loads.values():
            if load.early and load.result not in self._in_columns:
                yield load.result

    def _parts(self) -> Mapping[tp.Part, tuple[str, str]]:
        """Of each part, the first iteration, and the one behind the last."""
        program = self._program
        first, end = self._visited(self._signature.iterations(program))
        ranges: dict[tp.Part, tuple[str, str]] = {"": (first, end)}
        if not program.whole:
            return ranges
        begin, last = first, end
        for bound in program.whole:
            place = self._covered(bound)
            if bound.upper:
                last = self._assign("it_whole", f"tl.minimum({place}, {last})")
            else:
                begin = self._assign("it_whole", f"tl.maximum({place}, {begin})")
        if begin != first:
            begin = self._assign("it_whole", f"tl.minimum({begin}, {end})")
            ranges["ahead"] = first, begin
        if last != end:
            last = self._assign("it_masked", f"tl.maximum({last}, {begin})")
            ranges["behind"] = last, end
        ranges["whole"] = begin, last
        return ranges

    def _place(self, bound: ir.LoopBound, shift: int) -> str:
        """The tile of the loop that a block's place, so far shifted, lies in."""
        return self._tile_of(f"{self._places.part(bound.dim)} + {shift}")

    def _tile_of(self, place: str | int) -> str:
        """The tile of the loop that a position of its dim lies in."""
        program = self._program
        assert program.loop is not None
        if program.within_grid:
            place = f"{place} - {self._places.part(program.loop.dim)}"
        if isinstance(place, int):
            return str(place // program.loop.tile)
        # Integers are divided towards 0, so what is below comes to 0 first.
        return f"tl.maximum({place}, 0) // {program.loop.tile}"

    def _covered(self, bound: ir.LoopBound) -> str:
        """Where the iterations end that a bound covers, or begin."""
        program = self._program
        assert program.loop is not None
        shift = bound.offset + 1
        if not bound.upper:
            width = next(s.tile for s in program.grid if s.dim == bound.dim)
            shift = bound.offset + width - 1 + program.loop.tile - 1
        return f"({self._place(bound, shift)}).to(tl.int32)"

    def _visited(self, count: str) -> tuple[str, str]:
        """The first iteration that the block visits, and the one behind the last."""
        program, first, end = self._program, "0", count
        loop = program.loop
        assert loop is not None
        for bound in program.bounds:
            width = next(s.tile for s in program.grid if s.dim == bound.dim)
            shift = bound.offset + (width - 1 + loop.tile if bound.upper else 0)
            place = self._place(bound, shift)
            if bound.also is not None:
                # The checker has seen that it is one from above.
                place = f"tl.maximum({place}, {self._tile_of(bound.also + loop.tile)})"
            if bound.upper:
                place = f"tl.minimum({place}, {end})"
                end = self._assign("it_end", f"({place}).to(tl.int32)")
            else:
                place = place if first == "0" else f"tl.maximum({place}, {first})"
                first = self._assign("it_first", f"({place}).to(tl.int32)")
        return first, end

    def _wait(self, _: tp.Wait) -> None:
        if self._early and any(self._early_loads()):
            self._load_early()
        self._if_early("gdc_wait()  # until the kernel before is done")

    def _announce(self, _: tp.Announce) -> None:
        self._if_early("gdc_launch_dependents()  # the next kernel may start")

    def _if_early(self, statement: str) -> None:
        self._writer.below("if EARLY:", [statement])

    # -- Names ---------------------------------------------------------------------

    def _bind(self, wanted: str, expression: str) -> str:
        return self._tiles.bind(wanted, expression)

    def _assign(self, wanted: str, expression: str) -> str:
        return self._writer.define(wanted, expression)

    def _name(self, statement: tp.Making, name: str) -> None:
        """Note the name of a statement's result."""
        tile = statement.tile
        self._variables[statement.result] = Variable(name, tile.axes, tile.dtype)

    def _format(self, step: tp.Compute) -> DType:
        """The format of integers that a step computes with, or f32."""
        operands = (o for o in step.operands if isinstance(o, str))
        dtypes = (self._variables[o].dtype for o in operands)
        return next((d for d in dtypes if d.is_integer), f32)

    def _form(self, operand: ir.Operand, order: tp.Order, dtype: DType = f32) -> str:
        """An atomic expression that broadcasts against tiles with axes `order`."""
        if isinstance(operand, Scalar):
            return self._signature.constant(operand, dtype)
        tile = self._variables[operand]
        return tile.name + subscript(tile.axes, order)

    # -- Memory --------------------------------------------------------------------

    def _hoist(self) -> None:
        """Before the loop: bind what does not change in the addresses of its loads."""
        if self._looped.hoisted:
            return
        self._looped.hoisted = True
        shared: dict[str, str] = {}
        for load, looped in tp.walk(self._program.body):
            if not looped or not isinstance(load, tp.Load):
                continue
            if load.via == "descriptor":
                box = self._box(load)
                widths = self._pieces.shape(box)
                self._looped.descriptors[load.result] = self._signature.descriptor(
                    self._key(load), box, widths
                )
                continue
            address = self._address(load)
            original = load.result.removesuffix(tp.AGAIN)
            name = shared.get(address.first, "")
            if not name or not self._program.whole:
                name = self._assign(f"{original}_first", address.first)
            shared[address.first] = name
            self._looped.addresses[load.result] = replace(address, first=name)

    @cached_property
    def _loads(self) -> Mapping[str, tp.Load]:
        every = self._program.statements
        return {s.result: s for s in every if isinstance(s, tp.Load)}

    def _box(self, load: tp.Load) -> tp.Order:
        return memory_order(load, self._signature.type(load.source))

    def _key(self, load: tp.Load) -> str:
        """The parameter that is read: a copy's is another one, for the same tensor."""
        source = load.source
        return source if load.instead is None else self._signature.alias_of(source)

    def _address(self, load: tp.Load) -> Address:
        pointer, strides = self._signature.access(self._key(load))
        lanes = self._lanes_of(load)
        if load.result in self._words:
            return self._address_of_words(load, pointer, strides, lanes)
        along = None if load.along is None else load.along.dim
        return self._memory.address(
            pointer,
            load.at,
            strides,
            lanes.order,
            starts=lanes.starts,
            without=along,
        )

    def _lanes_of(self, load: tp.Load) -> Lanes:
        """Where the lanes of a loaded tile lie."""
        dealt = self._dealt.get(load.result)
        if dealt is not None:
            return self._places.dealt(dealt, DEALT_BYTES // self._loaded(load).itemsize)
        starts: dict[Dim, str] = {}
        merged = () if load.result in self._words else self._runs.get(load.result, ())
        for side in merged:
            if len(side) > 1:
                starts |= self._places.run(side)
        return Lanes(self._axes_of(load), starts)

    def _address_of_words(
        self, load: tp.Load, pointer: str, strides: Strides, lanes: Lanes
    ) -> Address:
        """The address of a tile of words, which count twice as far as elements do."""
        inner, at, steps = self._words[load.result], list[Axis](), list[str | int]()
        for axis, stride in zip(load.at, strides, strict=True):
            assert not isinstance(stride, Gapped)
            at.append(tuple(d for d in axis if d != inner))
            half = stride // 2 if isinstance(stride, int) else f"({stride} // 2)"
            steps.append(1 if inner in axis else half)
            self._assert_fits_words(stride, inside=inner in axis)
        kind = f"tl.pointer_type({TRITON_DTYPE[self._word(load).name]})"
        name = self._bind(f"{load.source}_words", f"{pointer}.to({kind})")
        return self._memory.address(name, at, steps, lanes.order, starts=lanes.starts)

    def _assert_fits_words(self, stride: str | int, *, inside: bool) -> None:
        """Who runs the module by himself is told of a stride that words cannot have."""
        params = [p.name for p in self._signature.params if p.kind == "stride"]
        if str(stride) in params:
            fits = f"{stride} == 1" if inside else f"{stride} % 2 == 0"
            self._writer.line(f"tl.static_assert({fits})")

    def _loaded(self, load: tp.Load) -> DType:
        """The format of what is loaded: elements, or words of two of them."""
        return self._word(load) if load.result in self._words else load.tile.dtype

    @staticmethod
    def _word(load: tp.Load) -> DType:
        """The format of words of two elements of a load."""
        return i16 if load.tile.dtype.itemsize == 1 else i32

    def _axes_of(self, load: tp.Load) -> tp.Order:
        """The axes of a loaded tile: a run of pieces is one, named by the last.

        Tiles of words lack the axis of their two elements.
        """
        if load.result in self._words:
            return load.tile.axes[:-1]
        sides = self._runs.get(load.result)
        return load.tile.axes if sides is None else tuple(s[-1] for s in sides)

    def _picked(self, load: tp.Load, along: tp.Along) -> tuple[str, str]:
        """What positions that are data add to an address, and which of them exist.

        They are counted from the end below 0; none outside of the tensor is read.
        """
        index, order = self._variables[along.index], load.tile.axes
        _, strides = self._signature.access(self._key(load))
        step = self._memory.stride(load.at, strides, along.dim)
        if along.known != "no":
            wide = ".to(tl.int64)" if self._around.variant.wide else ""
            at = f"{index.name}{subscript(index.axes, order)}{wide}"
            return times(at, step), self._under(along, order)
        size = self._memory.size(along.dim)
        given = self._assign(f"{along.dim.name}_given", f"{index.name}.to(tl.int64)")
        counted = f"tl.where({given} < 0, {given} + {size}, {given})"
        at = self._assign(f"{along.dim.name}_at", counted)
        compared, axes = at, index.axes
        if order and not axes:
            # Triton's interpreter cannot spread the truth value of a scalar.
            axes = order[:1]
            zeros = f"tl.full({self._tiles.shape(axes)}, 0, tl.int64)"
            compared = self._assign(f"{along.dim.name}_at", f"{at} + {zeros}")
        inside = f"({compared} >= 0) & ({compared} < {size})"
        inside = self._assign(f"{along.dim.name}_in", inside) + subscript(axes, order)
        inside = " & ".join(m for m in (inside, self._under(along, order)) if m)
        return times(at + subscript(index.axes, order), step), inside

    def _under(self, along: tp.Along, order: tp.Order) -> str:
        """The lanes that are read at all; nothing if all are."""
        if along.under is None:
            return ""
        return self._chosen(along.under, order, holds=along.holds)

    def _chosen(self, under: str, order: tp.Order, *, holds: bool) -> str:
        """The lanes for which a truth value is true, or those for which it is not."""
        tile = self._variables[under]
        sign, name = "!=" if holds else "==", self._truths.get(tile.name)
        text = f"({tile.name} {sign} 0)"
        if name is not None:
            text = name if holds else f"(~{name})"
        return text + subscript(tile.axes, order)

    def _load(self, load: tp.Load) -> None:
        if load.instead is not None:
            self._writer.line("# once more for what is no matrix product")
        if load.result in self._looped.columns:
            self._name(load, self._looped.columns[load.result])
            return
        name = self._writer.names.fresh(load.result)
        if load.result in self._looped.early:
            self._take_early(load, name)
        else:
            self._load_now(load, name)
        self._name(load, name)
        if load.result in self._words:
            axes = self._axes_of(load)
            self._variables[load.result] = Variable(name, axes, self._word(load))

    def _take_early(self, load: tp.Load, name: str) -> None:
        """What was loaded before the wait, in first iterations; else load it."""
        writer, held = self._writer, self._looped.early[load.result]
        if self._early == tp.iterations(self._program):
            writer.assign(name, f"{held}[it]")
            return
        writer.below(f"if it < {self._early}:", [f"{name} = {held}[it]"])
        writer.line("else:")
        writer.indent()
        self._tiles.enter()
        self._load_now(load, name)
        self._tiles.leave()
        writer.dedent()

    def _load_now(self, load: tp.Load, name: str) -> None:
        """Load a tile, under a name."""
        axes = self._axes_of(load)
        if load.result in self._looped.descriptors:
            box = self._box(load)
            offsets = ", ".join(self._places.offset(d) for d in box)
            text = f"{self._looped.descriptors[load.result]}.load([{offsets}])"
            if axes != box:
                text = f"tl.reshape({text}, {self._tiles.shape(axes)})"
            self._writer.assign(name, text)
        else:
            address = self._looped.addresses.get(load.result) or self._address(load)
            whole, inside = self._is_whole(load), ""
            if load.along is not None:
                moved, inside = self._picked(load, load.along)
                step = " + ".join(t for t in (address.step, moved) if t)
                address = replace(address, step=step)
            if load.result in self._dealt:
                self._load_dealt(load, address, name)
            else:
                self._memory.load(address, axes, name, whole=whole, inside=inside)

    def _load_dealt(self, load: tp.Load, address: Address, name: str) -> None:
        """Load what threads multiply, and give it the axes that the product takes."""
        dealt, lanes = self._dealt[load.result], self._lanes_of(load)
        text = address.here
        if lanes.inside:
            other = "0" if self._is_whole(load) else "0.0"
            text += f", mask={lanes.inside}, other={other}"
        if dealt.of_rows:
            # No other block reads it: one has all columns.
            text += ', eviction_policy="evict_first"'
        (parts,) = self._pieces.shape((dealt.batch,))
        function, numbers = "dealt_rows", ""
        if not dealt.of_rows:
            function = "dealt_columns"
            numbers = f", {prod(self._pieces.shape(dealt.run[1:]))}"
        text = f"{function}(tl.load({text}), {parts}{numbers})"
        self._writer.assign(name, text)

    def _is_whole(self, load: tp.Load) -> bool:
        """Whether what is loaded are integers."""
        return load.tile.dtype.is_integer or load.result in self._words

    def _store(self, store: tp.Store) -> None:
        pointer, strides = self._signature.access(store.result)
        change = self._changes.stores.get(store.result)
        if change is None:
            tile = self._variables[store.operand]
            self._memory.store(store, pointer, strides, tile)
            return
        for part in change:
            self._memory.store(
                store,
                pointer,
                strides,
                self._new(store, part),
                part.tile.axes,
                partial(self._changed, part),
            )

    def _new(self, store: tp.Store, part: Written) -> Variable:
        """What a store changes elements to."""
        if isinstance(part.value, str):
            return self._variables[part.value]
        axes, dtype = part.tile.axes, part.tile.dtype
        number = self._signature.constant(part.value, dtype)
        text = (
            f"tl.full({self._tiles.shape(axes)}, {number}, {TRITON_DTYPE[dtype.name]})"
        )
        return Variable(self._bind(store.result, text), axes, dtype)

    def _changed(self, part: Written, order: tp.Order) -> str:
        """The lanes of a part that a store changes."""
        return " & ".join(self._met(name, order, holds) for name, holds in part.under)

    def _met(self, name: str, order: tp.Order, holds: bool) -> str:
        """The lanes for which a condition holds, or those for which it does not."""
        under = self._variables[name]
        if under.axes or not order:
            return self._chosen(name, order, holds=holds)
        # Triton's interpreter cannot spread the truth value of a scalar.
        sign = "!=" if holds else "=="
        zeros = f"tl.full({self._tiles.shape(order)}, 0, tl.int32)"
        return f"({zeros} + ({under.name} {sign} 0).to(tl.int32) != 0)"

    def _positions(self, step: tp.Positions) -> None:
        text = self._memory.positions(step.at, step.tile.axes)
        shape = self._tiles.shape(step.tile.axes)
        dtype = TRITON_DTYPE[step.tile.dtype.name]
        cast = f"({text}).to({dtype})" if step.tile.axes else ""
        text = cast or f"tl.full({shape}, {text or 0}, {dtype})"
        self._name(step, self._bind(step.result, text))

    def _ask(self, asked: tp.Ask) -> None:
        code = Prefetcher(self._tiles, self._places, self._memory, self._signature)
        code.ask(asked)

    # -- One element at a time -----------------------------------------------------

    def _compute(self, step: tp.Compute) -> None:
        order = step.tile.axes
        self._tiles.shape(order)
        if step.result in self._packed.floats:
            self._unpack(step)
            return
        if self._is_multiplied_later(step):
            return
        dtype = self._format(step)
        forms = [self._form(o, order, dtype) for o in step.operands]
        if step.inner is SUB:
            _, row = step.operands
            assert isinstance(row, str)
            text = f"tl.exp2({self._exponent(step, row, forms)})"
        elif step.inner is not None:
            whole, factor = forms
            text = f"tl.exp2({whole} * ({factor} * {LOG2_E}))"
        elif step.rounded or step.result in self._held.rounded:
            # Compilers make one operation of a product and a difference.  What is left
            # of the largest element less itself is then not 0 but the product's
            # rounding error, and infinite as an exponent where logits are large.
            # Nothing is made of two sums: adding 0 to the product ends it.
            a, b = forms
            text = f"tl.fma({a}, {b}, 0.0)"
        else:
            text = step.op.triton.format(*forms)
            if step.result in self._chosen_by:
                bits = self._bits_of(step, text)
                if bits is not None:
                    self._truth(step, bits)
                    return
            chosen = self._variables.get(str(step.operands[0]))
            if step.op is WHERE and chosen and chosen.name in self._truths:
                holds = self._truths[chosen.name] + subscript(chosen.axes, order)
                text = f"tl.where({holds}, {forms[1]}, {forms[2]})"
        self._name(step, self._bind(step.result, text))

    def _is_multiplied_later(self, step: tp.Compute) -> bool:
        """Whether a product is held without its factor: as what is multiplied."""
        if step.op is not MUL or step.result not in self._held.factors:
            return False
        (tile,) = tp.reads(step)
        self._variables[step.result] = self._variables[tile]
        return True

    def _exponent(self, step: tp.Compute, row: str, forms: Sequence[str]) -> str:
        """A difference of scores and a row, times log2(e).

        Of scores whose maximum has a unit in one operation.  Of others the difference
        comes first: it is small where both are large, and then it is exact, while
        products with log2(e) may overflow, or err by more than 1.
        """
        whole, less = forms
        if row not in self._units:
            return f"({whole} - {less}) * {self._log2_e(step)}"
        unit, offset = self._offset(step, row)
        lanes = less.removeprefix(self._variables[row].name)
        return f"tl.fma({whole}, {unit}{lanes}, -{offset}{lanes})"

    def _offset(self, step: tp.Compute | tp.Largest, row: str) -> tuple[str, str]:
        """What scores are multiplied by, and what is subtracted for their maximum."""
        name, unit = self._variables[row].name, self._units[row]
        # Of the maximum as it is, so that it need not wait until that is finite.
        near = f"tl.abs({self._shifts.get(name, name)}) < {unit.near}"
        text = f"tl.where({near}, {self._log2_e(step)}, {unit.far})"
        factor = self._bind(f"{name}_unit", text)
        return factor, self._bind(f"{name}_offset", f"tl.fma({name}, {factor}, 0.0)")

    def _log2_e(self, step: tp.Compute | tp.Largest) -> str:
        """What the difference in an exponential is multiplied by."""
        factor = self._held.factor_of(step)
        if factor is None:
            return str(LOG2_E)
        return f"({self._signature.constant(factor)} * {LOG2_E})"

    def _bits_of(self, step: tp.Compute, text: str) -> str | None:
        """The bits of a truth value; None where it is but a number."""
        if step.op.triton.endswith(AS_NUMBER):
            return text.removesuffix(AS_NUMBER)
        read = [self._variables[o] for o in step.operands if isinstance(o, str)]
        known = [v for v in read if v.name in self._truths]
        if step.op is not MUL or len(known) != len(step.operands):
            return None
        axes = step.tile.axes
        return " & ".join(self._truths[v.name] + subscript(v.axes, axes) for v in known)

    def _truth(self, step: tp.Compute, text: str) -> None:
        """What decides what is read, also as the bits that it gives.

        Triton loads lanes together if it sees that a mask is the same for them, which
        it does not where truth values are numbers.
        """
        holds = self._assign(f"{step.result}_holds", text)
        name = self._bind(step.result, holds + AS_NUMBER)
        self._truths[name] = holds
        self._name(step, name)

    def _cast(self, cast: tp.Cast) -> None:
        if cast.result in self._packed.floats:
            self._unpack(cast)
            return
        given = self._variables[cast.operand]
        name = as_number(given.name, given.dtype, cast.tile.dtype)
        dtype = TRITON_DTYPE[cast.tile.dtype.name]
        text = CAST.triton.format(name, dtype=dtype)
        self._name(cast, self._bind(cast.result, text))

    def _unpack(self, step: tp.Compute | tp.Cast) -> None:
        """Floats of the parts of bytes, in f16, which holds them, or from there in f32.

        What is both halves of a byte is joined along an axis behind the others.
        """
        part = self._packed.floats[step.result]
        source = self._variables[part.source]
        if part.lane is not None:
            self._unpack_word(step, part, source)
            return
        if part.part == "word":
            text = f"eighths({source.name}, {float(part.less)})"
            wanted = [f"{part.source}_{at}" for at in range(WORD // HALF)]
            name = self._tiles.several(text, wanted)[part.place]
            self._unpacked(step, Variable(name, source.axes, f16))
            return
        texts = [
            self._bind(f"{part.source}_{name}", text)
            for name, text in unpacked_texts(part, source)
        ]
        axes = source.axes
        (name, *others) = texts
        if part.along is not None:
            axes = (*axes, part.along)
            name = self._bind(f"{part.source}_halves", f"tl.join({name}, {others[0]})")
        self._unpacked(step, Variable(name, axes, f16))

    def _unpacked(self, step: tp.Compute | tp.Cast, made: Variable) -> None:
        """Note floats that are unpacked, as the step gives them."""
        made = self._tiles.arranged(made, step.tile.axes)
        self._variables[step.result] = self._tiles.as_dtype(made, step.tile.dtype)

    def _unpack_word(
        self, step: tp.Compute | tp.Cast, part: Unpacked, word: Variable
    ) -> None:
        """The same of both bytes of words: one call gives all of their floats."""
        function, parts = word_function(part, self._loads[part.source].tile.dtype)
        text = f"{function}({word.name}{'' if not parts else f', {float(part.less)}'})"
        wanted = [(lane, p) for lane in range(2) for p in parts or (part.part,)]
        names = self._tiles.several(
            text, [f"{part.source}_{lane}_{p}" for lane, p in wanted]
        )
        at = next(i for i, own in enumerate(wanted) if own == (part.lane, part.part))
        self._unpacked(step, Variable(names[at], word.axes, f16))

    def _finite(self, step: tp.Finite) -> None:
        row = self._variables[step.operand]
        name = self._bind(row.name, finite_shift(row.name, step.fill))
        self._shifts[name] = row.name
        self._variables[step.result] = replace(row, name=name)

    # -- Changes of form -----------------------------------------------------------

    def _convert(self, step: tp.Convert) -> None:
        tile = self._variables[step.operand]
        if tile.dtype is not step.tile.dtype:
            tile = self._tiles.as_dtype(tile, step.tile.dtype)
        else:
            tile = self._tiles.arranged(tile, step.tile.axes)
        self._variables[step.result] = tile

    def _mask(self, step: tp.Mask) -> None:
        dims = tuple(d for d, _ in step.where)
        tile = self._tiles.masked(self._variables[step.operand], dims, step.fill)
        self._variables[step.result] = tile

    def _merge(self, step: tp.Merge) -> None:
        lanes = [prod(self._pieces.shape(side)) for side in step.sides]
        tile = self._variables[step.operand]
        if step.operand in self._runs:
            self._variables[step.result] = tile
            return
        shape = f"({', '.join(map(str, lanes))})"
        original = self._variables[step.result.rpartition(tp.MERGED)[0]]
        name = self._tiles.reshaped(tile.name, shape, f"{original.name}_r")
        self._variables[step.result] = replace(tile, name=name)

    @cached_property
    def _counted(self) -> frozenset[str]:
        """Values whose lanes are numbers."""
        return positions(self._program)

    def _lane(self, step: tp.Lane) -> None:
        if step.operand in self._counted:
            dtype = TRITON_DTYPE[step.tile.dtype.name]
            self._name(
                step, self._bind(step.result, f"tl.full((), {step.at}, {dtype})")
            )
            return
        tile = self._variables[step.operand]
        if step.operand in self._words:
            made = Variable(self._element(step, tile), tile.axes, step.tile.dtype)
            self._variables[step.result] = self._tiles.arranged(made, step.tile.axes)
            return
        sides = self._runs.get(step.operand)
        if sides is not None:
            axes = tuple(d for side in sides for d in side)
            tile = self._tiles.reshaped_as(tile, axes)
        lane = self._tiles.lane(tile, step.along, step.at)
        self._variables[step.result] = self._tiles.arranged(lane, step.tile.axes)

    def _element(self, step: tp.Lane, word: Variable) -> str:
        """One of the two elements of words."""
        bits = 8 * step.tile.dtype.itemsize
        shifted = f"{word.name} >> {bits} & " if step.at else f"{word.name} & "
        kind = TRITON_DTYPE[step.tile.dtype.name]
        text = f"({shifted}{2**bits - 1}).to(tl.uint{bits}).to({kind}, bitcast=True)"
        return self._bind(step.result, text)

    def _join(self, step: tp.Join) -> None:
        lanes = (self._variables[o].name for o in (step.operand, step.other))
        self._name(step, self._bind(step.result, f"tl.join({', '.join(lanes)})"))

    # -- Sums ----------------------------------------------------------------------

    def _reduce(self, step: tp.Reduce) -> None:
        tile = self._variables[step.operand]
        name, axes = tile.name, list(tile.axes)
        if step.halves:
            self._name(step, self._halves_added(step, tile))
            return
        for dim in reversed(step.over):
            text = step.op.triton.format(name, axis=axes.index(dim))
            name = self._bind(step.result, text)
            axes.remove(dim)
        self._name(step, name)

    def _halves_added(self, step: tp.Reduce, tile: Variable) -> str:
        """The sum over the first axis, of which each thread gets two lanes to add.

        For `tl.sum` warps that hold the axis would store it innermost, and all lanes of
        a warp meet one bank of shared memory: 2.6, 4.5, 8.7 µs on an H100 with 4, 8, 16
        warps.  What `tl.split` takes apart is swapped without conflicts, into threads
        along the last axes: the lanes that are left lie in registers.
        """
        (dim, *rest), name = tile.axes, tile.name
        lanes, shape = self._pieces.lanes(dim), self._pieces.shape(rest)
        order = (*range(1, len(shape) + 1), 0)
        if lanes > 2:
            text = ", ".join(map(str, (lanes // 2, 2, *shape)))
            name = self._tiles.reshaped(name, f"({text})", f"{name}_r")
            order = (0, *range(2, len(shape) + 2), 1)
        name = self._bind(f"{name}_t", f"tl.permute({name}, {order})")
        pair = [self._writer.names.fresh(f"{step.result}_{at}") for at in range(2)]
        self._writer.line(f"{', '.join(pair)} = tl.split({name})")
        name = self._bind(step.result, " + ".join(pair))
        if lanes > 2:
            name = self._bind(step.result, step.op.triton.format(name, axis=0))
        return name

    def _scan(self, step: tp.Scan) -> None:
        tile = self._variables[step.operand]
        text = step.op.triton.format(tile.name, axis=tile.axes.index(step.along))
        self._name(step, self._bind(step.result, text))

    def _product(self, product: tp.Product) -> None:
        self._tiles.shape(product.tile.axes)
        if not product.is_matrix:
            self._multiply_and_sum(product)
            return
        left, right = self._factor(product.left), self._factor(product.right)
        options = PRECISIONS[product.precision]
        if product.into is not None:
            self._add_product(product, f"{left}, {right}", options)
            return
        name = self._bind(product.result, f"tl.dot({left}, {right}{options})")
        if product.is_merged:
            shape = self._tiles.shape(product.tile.axes)
            name = self._tiles.reshaped(name, shape, product.result)
        self._name(product, name)

    def _factor(self, value: str) -> str:
        """The name of an operand of the matrix unit."""
        name = self._variables[value].name
        if value in self._packed.factors:
            return self._bind(name, f"kept({name})")
        return name

    def _add_product(self, product: tp.Product, operands: str, options: str) -> None:
        """Add a product to a carried tile in place."""
        assert product.into is not None
        target = self._variables[product.into].name
        if product.precision == "ieee":
            text = f"tl.dot({operands}{options}, {APART})"
            name = self._bind(product.result, text)
            self._writer.assign(target, f"{target} + {name}")
        else:
            self._writer.assign(target, f"tl.dot({operands}, {target}{options})")

    def _multiply_and_sum(self, product: tp.Product) -> None:
        order = (*product.tile.axes, *product.over)
        self._tiles.shape(order)
        a, b = (self._form(v, order) for v in (product.left, product.right))
        name = self._bind(product.result, f"{a} * {b}")
        for axis in range(len(order) - 1, len(product.tile.axes) - 1, -1):
            name = self._bind(product.result, f"tl.sum({name}, axis={axis})")
        self._name(product, name)

    # -- What the loop carries -----------------------------------------------------

    def _start(self, step: tp.Start) -> None:
        self._hoist()
        shape = self._tiles.shape(step.tile.axes)
        dtype = step.tile.dtype
        value, name = literal(step.value, dtype), TRITON_DTYPE[dtype.name]
        text = f"tl.full({shape}, {value}, {name})"
        self._name(step, self._assign(step.result, text))

    def _rescale(self, step: tp.Rescale) -> None:
        target = self._variables[step.target]
        scale = self._form(step.scale, target.axes)
        self._writer.assign(target.name, f"{target.name} * {scale}")

    @cached_property
    def _read_on(self) -> frozenset[str]:
        return _read_on(self._program)

    def _update(self, step: tp.Update) -> None:
        target = self._variables[step.target]
        name, operand = target.name, self._form(step.operand, target.axes)
        if step.operand in self._read_on:
            # Triton 3.6 makes of `a += sum(load)` one sum behind the loop, though the
            # loop reads `a`, and fails.  It looks for sums that are added as they are.
            # What stands between is exact, and LLVM removes it.
            operand = self._bind(step.operand, f"tl.fma({operand}, 1.0, -0.0)")
        assert step.op.join is not None
        joined = step.op.join.triton.format(name, operand)
        spread = self._places.spread
        if spread is not None and spread[0] in target.axes:
            chosen = self._places.is_column("it", target.axes)
            joined = f"tl.where({chosen}, {joined}, {name})"
        self._writer.assign(name, joined)

    def _largest(self, step: tp.Largest) -> None:
        """The new maximum, and by how much sums relative to the old one shrink.

        The old maximum may be -inf, the new one stands as 0 for it: then the factor is
        0, and so is what was accumulated.
        """
        last = self._variables[step.state].name
        operand = self._form(step.operand, step.tile.axes)
        highest = self._assign(f"{step.result}_next", f"tl.maximum({last}, {operand})")
        name = self._assign(step.result, finite_shift(highest, -math.inf))
        self._shifts[name] = highest
        self._name(step, name)
        if step.scale is not None:
            text = f"({last} - {name}) * {self._log2_e(step)}"
            if step.result in self._units:
                # Rounded as the offset that sums are relative to: where the maximum is
                # the last one, they stay as they are.
                unit, offset = self._offset(step, step.result)
                text = f"tl.fma({last}, {unit}, 0.0) - {offset}"
            text = f"tl.exp2({text})"
            scale = self._assign(step.scale, text)
            self._variables[step.scale] = Variable(scale, step.tile.axes)
        self._writer.assign(last, highest)


def _deciding(program: tp.TileProgram) -> frozenset[str]:
    """The truth values that decide what is read: which lanes, and at which positions.

    Of programs whose positions are known, where it is of use to see through them.
    """
    statements = program.statements
    along = [s.along for s in statements if isinstance(s, tp.Load) and s.along]
    if all(a.known == "no" for a in along):
        return frozenset()
    chosen = (
        s.operands[0]
        for s in statements
        if isinstance(s, tp.Compute) and s.op is WHERE and s.tile.dtype.is_integer
    )
    under = (a.under for a in along)
    found = {n for n in (*chosen, *under) if isinstance(n, str)}
    for s in reversed(statements):
        if isinstance(s, tp.Compute) and s.op is MUL and s.result in found:
            found.update(o for o in s.operands if isinstance(o, str))
    return frozenset(found)


def _read_on(program: tp.TileProgram) -> frozenset[str]:
    """Sums, and products, of what a loop loads that join tiles which it reads as well.

    As a scan does that goes on from one iteration to the next.
    """
    inside = [s for s, in_loop in tp.walk(program.body) if in_loop]
    loaded = {s.result for s in inside if isinstance(s, tp.Load)}
    for s in inside:
        if isinstance(s, tp.Mask | tp.Convert) and s.operand in loaded:
            loaded.add(s.result)
    made = {
        s.result
        for s in inside
        if isinstance(s, tp.Reduce)
        and s.operand in loaded
        and not s.tile.dtype.is_integer
    }
    joined = [s for s in inside if isinstance(s, tp.Update) and s.operand in made]
    times = Counter(n for s in inside if joined for n in tp.reads(s))
    return frozenset(s.operand for s in joined if times[s.target] > 1)


def unpacked_texts(part: Unpacked, source: Variable) -> Iterator[tuple[str, str]]:
    """What computes parts of a tile of bytes, each with a word for it."""
    if part.part == "byte":
        whole = "signed" if source.dtype == i8 else "unsigned"
        yield "f16", f"{whole}({source.name}, {float(part.less)})"
    if part.part in ("low", "both"):
        yield "low", f"low_halves({source.name}, {float(part.less)})"
    if part.part in ("high", "both"):
        yield "high", f"high_halves({source.name}, {float(part.less)})"


def word_function(part: Unpacked, dtype: DType) -> tuple[str, tuple[str, ...]]:
    """What takes words of two bytes apart, and the parts of each byte that it gives.

    None are parts of floats, of which nothing can be subtracted.
    """
    if dtype.is_float:
        return f"{dtype.name.removeprefix('f8')}_pairs", ()
    if part.part == "byte":
        return "signed_pairs" if dtype == i8 else "unsigned_pairs", ("byte",)
    return "half_pairs", ("low", "high")


def finite_shift(name: str, fill: float) -> str:
    """The expression of a shift with 0 for what it is where all is masked."""
    return f"tl.where({name} == {number(fill)}, 0.0, {name})"
