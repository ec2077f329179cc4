"""What an emitted module contains: its kernels, their parameters, strides and sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mirage_dsl.backends.library import number
from mirage_dsl.backends.triton.lowering.source import Identifiers, literal
from mirage_dsl.core.types import Dim, DType, Scalar, TensorType, f32
from mirage_dsl.ir.analysis.layouts import FlatValues, Place
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Schedule, Split
from mirage_dsl.tile.program import TileProgram
from mirage_dsl.tile.sizes import Outer, ceil_div


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

PARAM_KINDS = ("tensor", "descriptor", "size", "stride")
"""Kinds of parameters, in the order in which they stand."""


@dataclass(frozen=True)
class Surroundings(Outer):
    """What printing a block needs to know of its kernel graph.

    Attributes:
        given: The caller gives tensors for the outputs; the values that kernels store
            there at once, each with the number of its output.
        wide: Offsets need 64 bits.
        dense: Tensors of the caller that lie in memory as their types say, without
            gaps.
        flat: Values that lie in other tensors of the caller.
        gapped: Those of them whose axes have gaps between them there.
        over: Results of kernels that are stored where what they read lies, each with
            that.
    """

    given: Mapping[str, int] | None
    wide: bool
    dense: Collection[str]
    flat: FlatValues
    gapped: Collection[str]
    over: Mapping[str, str]

    def whole(self, value: str) -> str:
        """The tensor in which a value lies; itself, if it lies in no other."""
        flat = self.flat.within.get(value)
        return value if flat is None else flat.whole


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
    """

    name: str
    block: BlockGraph
    params: tuple[Param, ...]
    grid: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def schedule(self) -> Schedule:
        """How it is launched."""
        return self.block.schedule

    @property
    def prefetches(self) -> bool:
        """Whether it calls `prefetch`."""
        return any(line.lstrip().startswith("prefetch(") for line in self.lines)


@dataclass(frozen=True)
class ModulePlan:
    """An emitted module.

    Attributes:
        graph: What it computes.
        source: Python source; it defines the kernels and `run(*tensors) -> list`.
        kernels: Its Triton kernels, in launch order.
        around: Types and extents that it was written for.
    """

    graph: KernelGraph
    source: str
    kernels: tuple[KernelPlan, ...]
    around: Surroundings


# -- Parameters ------------------------------------------------------------------------

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
        if {source, whole} & without_gaps or whole in self.around.dense:
            return packed
        flat = self.around.flat.within.get(source)
        found: list[str | int | Gapped] = []
        for axis, dims in enumerate(self._types[source].axes):
            group = [axis] if flat is None else list(flat.groups[axis])
            if all(self._extents.get(d.name) == 1 for d in dims):
                found.append(0)
            elif source in self.around.gapped and len(group) > 1:
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
        return place.whole in given and place.whole not in self.around.dense

    def _row_major(self, source: str) -> tuple[str | int, ...]:
        """Strides of the packed tensor, in the order of axes that its layout says."""
        kind = self._types[source]
        strides: dict[int, str | int] = {}
        numbers, names = 1, list[str]()
        for axis in reversed(kind.order):
            text = " * ".join([*names, *([str(numbers)] if numbers != 1 else [])])
            strides[axis] = text if names else numbers
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

    def parts(self, axis: Sequence[Split]) -> str:
        """How many blocks an axis has: a number, or an expression of names of dims."""
        counts: list[str] = []
        for split in axis:
            extent = self._extents.get(split.dim)
            if extent is not None:
                counts.append(str(ceil_div(extent, split.tile)))
            else:
                counts.append(f"triton.cdiv({{{split.dim}}}, {split.tile})")
        if all(n.isdigit() for n in counts):
            return str(max(map(int, counts)))
        return counts[0] if len(counts) == 1 else f"max({', '.join(counts)})"

    def iterations(self, program: TileProgram) -> str:
        """How often the loop runs."""
        loop = program.loop
        assert loop is not None
        extent = self._extents.get(loop.dim)
        if program.within_grid:
            part = next(s.tile for s in program.grid if s.dim == loop.dim)
            extent = part if extent is None else min(extent, part)
        if extent is not None:
            return str(ceil_div(extent, loop.tile))
        return f"tl.cdiv({self.size(loop.dim)}, {loop.tile})"

    def constant_value(self, value: Scalar) -> float | None:
        """The number, or None where a symbolic extent is part of it."""
        known: dict[str, int] = {}
        for name, _ in value.extents:
            extent = self._extents.get(name)
            if extent is None:
                return None
            known[name] = extent
        return value.at(known)

    def constant(self, value: Scalar, dtype: DType = f32) -> str:
        """The constant as an atomic expression, of a format of integers or f32."""
        if dtype.is_integer and not value.extents:
            return literal(float(value.value), dtype)
        known = self.constant_value(value)
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
