"""What an emitted module contains: kernels, what they take, and what launches them.

A kernel collects the parameters that it turns out to need (`Signature`); the host
function `run` allocates, calls library kernels, and gives each kernel its arguments
(`Launcher`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from mirage_dsl.backends.library import (
    HELPERS,
    Argument,
    aligned,
    call_text,
    expression,
    number,
    only_element,
    torch_dtype,
)
from mirage_dsl.backends.triton.lowering.source import (
    Identifiers,
    Writer,
    literal,
    source_comment,
)
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import Axis, Dim, DType, Scalar, TensorType, f32
from mirage_dsl.ir.analysis.calls import calls
from mirage_dsl.ir.analysis.layouts import (
    FlatValues,
    Place,
    as_libraries_make,
    built,
    copied_parts,
    single_elements,
)
from mirage_dsl.ir.graph import (
    Apply,
    BlockGraph,
    KernelGraph,
    Operand,
    Return,
    Schedule,
    Split,
    partial_dim,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import products, sums
from mirage_dsl.ir.walk import read_by
from mirage_dsl.ops.definition import Kind
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

_BY_NAME = frozenset({Kind.ELEMENTWISE, Kind.CONTRACTION, Kind.CONCAT})
"""Kinds of operators whose operands may have their axes in any order."""


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


# -- The host function: allocations, library kernels, launches -------------------------


class Launcher:
    """Writes `run`.

    Tensors keep the axes of their types; a library kernel sees one axis per dim.

    Args:
        graph: What `run` computes.
        around: Its types and extents.
        taken: Names that the written function uses besides `RESERVED`.
    """

    def __init__(
        self, graph: KernelGraph, around: Surroundings, taken: Iterable[str] = ()
    ) -> None:
        self._graph = graph
        self._types = around.types
        self._extents = around.extents
        self._placed = around.placed
        self._flat_values = around.flat
        self._built = built(around.placed)
        self._fused = calls(graph, around.types)
        self._inner = frozenset[str]().union(*(m.inner for m in self._fused.values()))
        self._lying = as_libraries_make(graph, kernel_types(graph), around.extents)
        self._given = around.given
        self._outs: list[str] = []
        self._writer = Writer(taken)
        self._names = self._writer.names
        self._variables: dict[str, str] = {}
        # Calls that have several results, by their text.
        self._calls: dict[str, str] = {}
        self._sizes: dict[str, str] = {}
        self.helpers: set[str] = set()

    def write(self, kernels: Sequence[KernelPlan]) -> list[str]:
        """The lines of `run`."""
        for item in self._graph.inputs:
            self._variables[item.name] = self._names.fresh(item.name)
        if self._given is not None:
            self._outs = [
                self._names.fresh(f"{r.value}_out") for r in self._graph.returns
            ]
        names = ", ".join([*self._variables.values(), *self._outs])
        outputs = ", ".join(str(r.type) for r in self._graph.returns)
        self._writer.line(f"def run({names}):")
        self._writer.indent()
        inputs = ", ".join(f"{i.name}: {i.type}" for i in self._graph.inputs)
        self._writer.line(f"# {inputs} -> {outputs}")
        first = next(iter(self._variables.values()), None)
        device = f"{first}.device" if first else '"cuda"'
        self._writer.line(f"device = {device}")
        self._bind_sizes()
        self._count()
        left = iter(kernels)
        for node in self._graph.nodes:
            if isinstance(node, Apply):
                self._library(node)
            else:
                self._launch(next(left))
        results = [self._returned(r) for r in self._graph.returns]
        if self._given is not None:
            self._hand_over(results)
            results = self._outs
        self._writer.line(f"return [{', '.join(results)}]")
        return self._writer.lines

    def _count(self) -> None:
        """Index values as tensors, where library kernels read them, or the caller."""
        read = read_by(n for n in self._graph.applies if n.result not in self._inner)
        read |= {r.value for r in self._graph.returns}
        for item in self._graph.indices:
            if item.name in read:
                text = f"torch.arange({self._axis_size(item.axis)}, device=device)"
                self._variables[item.name] = self._writer.assign(
                    self._names.fresh(item.name), text
                )

    # -- Sizes ---------------------------------------------------------------------

    def _bind_sizes(self) -> None:
        """Read symbolic extents off the inputs' shapes, and what follows from them.

        Raises:
            UnsupportedError: Nothing tells a symbolic extent.
        """
        for _ in self._graph.inputs:
            for item in self._graph.inputs:
                for axis, dims in enumerate(item.type.axes):
                    self._bind_axis(f"{self._variables[item.name]}.shape[{axis}]", dims)
        for node in self._graph.nodes:
            if isinstance(node, BlockGraph):
                self._bind_parts(node)
            for dims, name in sums(node):
                if self._unknown(name) and not any(map(self._unknown, dims)):
                    self._sizes[name] = self._sum_size(name, dims)
        self._bind_products()
        for name in self._extents:
            if self._unknown(name):
                raise UnsupportedError(
                    f"dim {name} is symbolic, and nothing tells its extent"
                )

    def _bind_products(self) -> None:
        """The extents of dims that are several dims."""
        for view in products(self._graph):
            whole, factors = view.whole, view.factors
            if self._unknown(whole) and not any(map(self._unknown, factors)):
                self._sizes[whole] = self._writer.assign(
                    self._names.fresh(f"{whole}_size"),
                    " * ".join(map(self.size, factors)),
                )

    def _bind_axis(self, shape: str, dims: Axis) -> None:
        unknown = [d.name for d in dims if self._unknown(d.name)]
        if len(unknown) != 1:
            return
        others = [self.size(d.name) for d in dims if d.name not in unknown]
        text = f"{shape} // ({' * '.join(others)})" if others else shape
        self._sizes[unknown[0]] = self._writer.assign(
            self._names.fresh(f"{unknown[0]}_size"), text
        )

    def _unknown(self, dim: str) -> bool:
        return self._extents.get(dim) is None and dim not in self._sizes

    def size(self, dim: str) -> str:
        """The extent of a dim as an expression of the host."""
        extent = self._extents.get(dim)
        return str(extent) if extent is not None else self._sizes[dim]

    def _bind_parts(self, block: BlockGraph) -> None:
        """Extents of the dims over the parts of symbolic split dims."""
        stored = {d.name for s in block.stores for axis in s.axes for d in axis}
        for split in block.grid:
            name = partial_dim(split.dim)
            bound = self._unknown(name) and not self._unknown(split.dim)
            if name in stored and bound:
                self._sizes[name] = self._writer.assign(
                    self._names.fresh(f"{name}_size"),
                    f"-(-{self.size(split.dim)} // {split.tile})",
                )

    def _sum_size(self, name: str, dims: Sequence[str]) -> str:
        """A variable for the extent of a dim that is as long as others together."""
        if len(dims) == 1:
            return self.size(dims[0])
        return self._writer.assign(self._names.fresh(f"{name}_size"), self._sum(dims))

    def _sum(self, dims: Sequence[str]) -> str:
        """The extents of dims together."""
        symbolic = [self.size(d) for d in dims if self._extents.get(d) is None]
        known = sum(self._extents.get(d) or 0 for d in dims)
        return " + ".join([*symbolic, *([str(known)] if known or not symbolic else [])])

    def _shape(self, axes: Sequence[Axis]) -> str:
        sizes = [self._axis_size(axis) for axis in axes]
        return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"

    def _axis_size(self, axis: Axis) -> str:
        known, names = 1, list[str]()
        for dim in axis:
            extent = self._extents.get(dim.name)
            if extent is None:
                names.append(self.size(dim.name))
            else:
                known *= extent
        if known != 1 or not names:
            names.append(str(known))
        return " * ".join(names)

    # -- Kernels -------------------------------------------------------------------

    def _launch(self, kernel: KernelPlan) -> None:
        for store in kernel.block.stores:
            self._make(store.result)
        arguments = [self._argument(p) for p in kernel.params]
        schedule = kernel.schedule
        arguments += [
            f"num_warps={schedule.num_warps}",
            f"num_stages={schedule.num_stages}",
            "enable_fp_fusion=True",
        ]
        if schedule.pdl:
            arguments.append("launch_pdl=EARLY.value")
        grid = ", ".join(self._host(g) for g in kernel.grid)
        grid += "," * (len(kernel.grid) == 1)
        self._writer.below(f"{kernel.name}[({grid})](", (f"{a}," for a in arguments))
        self._writer.line(")")

    def _make(self, value: str) -> None:
        """A variable for what a kernel is going to write: its own, or a part."""
        place, flat = self._placed.get(value), self._flat_values.within.get(value)
        if flat is not None:
            self._make(flat.whole)
            self._variables[value] = self._variables[flat.whole]
            return
        if value in (self._given or ()):
            text = self._view_of_out(value)
        elif place is None:
            text = self._allocation(self._types[value])
        else:
            if place.whole not in self._variables:
                self._make(place.whole)
            whole = self._variables[place.whole]
            text = f"{whole}.narrow({place.axis}, {self._sum(place.before)}, "
            text += f"{self.size(place.dim)})"
            if place.axes != tuple(range(len(place.axes))):
                text += f".permute({', '.join(map(str, place.axes))})"
        self._variables[value] = self._writer.assign(self._names.fresh(value), text)

    def _view_of_out(self, value: str) -> str:
        """The caller's tensor for a value, with the axes of the value's type."""
        assert self._given is not None
        at = self._given[value]
        kind, wanted = self._types[value], self._graph.returns[at].type
        text = self._outs[at]
        if kind.axes != wanted.axes:
            if any(len(axis) != 1 for axis in wanted.axes):
                text += f".view({self._shape([(d,) for d in wanted.dims])})"
            if kind.names != wanted.names:
                turns = ", ".join(str(wanted.names.index(n)) for n in kind.names)
                text += f".permute({turns})"
        return text

    def _allocation(self, kind: TensorType) -> str:
        """A new tensor, in memory as its layout says."""
        order = kind.order
        shape = self._shape([kind.axes[a] for a in order])
        text = f"torch.empty({shape}, dtype={torch_dtype(kind.dtype)}, device=device)"
        if kind.layout is not None:
            turns = ", ".join(str(order.index(a)) for a in range(len(order)))
            text += f".permute({turns})"
        return text

    def _host(self, text: str) -> str:
        """A grid expression with sizes as the host names them."""
        return text.format(**self._sizes) if "{" in text else text

    def _argument(self, param: Param) -> str:
        variable = self._variables.get(param.source, "")
        match param.kind:
            case "tensor":
                return variable
            case "descriptor":
                return self._descriptor(param, variable)
            case "stride":
                return f"{variable}.stride({param.axis})"
            case "size":
                return self.size(param.source)

    def _descriptor(self, param: Param, variable: str) -> str:
        """One axis per dim, in the order of memory."""
        kind = self._types[param.source]
        strides: dict[str, str] = {}
        for axis, dims in enumerate(kind.axes):
            inner: Axis = ()
            for dim in reversed(dims):
                size = self._axis_size(inner)
                factor = "" if size == "1" else f" * {size}"
                strides[dim.name] = f"{variable}.stride({axis}){factor}"
                inner = (dim, *inner)
        known = {d: self.size(d) for d in strides}
        for row in param.dims:
            # A row that the kernel has put where the tensor has an axis of extent 1.
            if row not in known:
                known[row] = "1"
                strides[row] = f"{variable}.stride({kind.axes.index(())})"
        sizes = ", ".join(known[d] for d in param.dims)
        steps = ", ".join(strides[d] for d in param.dims)
        return f"TensorDescriptor({variable}, [{sizes}], [{steps}], {list(param.box)})"

    # -- Library kernels -----------------------------------------------------------

    def _library(self, node: Apply) -> None:
        if node.result in self._inner | self._flat_values.unmade:
            return
        if node.result in self._built:
            self._complete(node)
            return
        text = self._shared(node, self._call(node))
        for helper in HELPERS:
            if f"{helper}(" in text:
                self.helpers.add(helper)
        if node.op.kind is not Kind.VIEW and self._types[node.result].layout is None:
            text += ".contiguous()"
        if node.location is not None:
            self._writer.line(source_comment(node.location))
        self._variables[node.result] = self._writer.assign(
            self._names.fresh(node.result), text
        )

    def _shared(self, node: Apply, text: str) -> str:
        """The part of a call's results, where others take other parts of the same."""
        if not node.op.part:
            return text
        call, part, rest = text.partition(f"){node.op.part}")
        if call not in self._calls:
            name = self._names.fresh(f"{node.result}_all")
            self._calls[call] = self._writer.assign(name, f"{call})")
        return f"{self._calls[call]}{part[1:]}{rest}"

    def _call(self, node: Apply) -> str:
        match = self._fused.get(node.result)
        if match is not None:
            values = {v: self._as_it_lies(v) for v in match.values}
            lies = self._lying.get(node.result, ())
            return call_text(match, values, self.size, lies)
        kind = self._types[node.result]
        if node.op.kind not in _BY_NAME:
            operands = [self._value(o) for o in node.operands]
            if node.op.kind is Kind.REDUCTION and node.result in self._single:
                return only_element(operands[0], node.over, kind.dtype)
            return expression(node, operands, kind.names, kind.dtype, self.size)
        # Made as it lies in memory, and seen with its axes.
        operands = [self._as_it_lies(o) for o in node.operands]
        dims = self._lying.get(node.result, kind.names)
        text = expression(node, operands, dims, kind.dtype, self.size)
        if node.result in self._lying:
            text += ".contiguous()"
        return aligned(text, dims, kind.names)

    @cached_property
    def _single(self) -> frozenset[str]:
        return single_elements(self._graph, self._extents)

    def _as_it_lies(self, operand: Operand) -> Argument:
        """A value with its axes as they lie in memory, if a library kernel made it."""
        found = self._value(operand)
        dims = self._lying.get(operand, ()) if isinstance(operand, str) else ()
        if not dims:
            return found
        return Argument(aligned(found.text, found.dims, dims), dims, found.dtype)

    def _value(self, operand: Operand) -> Argument:
        if isinstance(operand, Scalar):
            return Argument(self._constant(operand))
        kind = self._types[operand]
        text = self._flat(self._variables[operand], kind)
        return Argument(text, kind.names, kind.dtype)

    def _complete(self, node: Apply) -> None:
        """Copy those parts of a concatenation that no kernel has stored there."""
        joined, to = node.attr("dims"), str(node.attr("to"))
        assert isinstance(joined, tuple)
        order = self._types[node.result].names
        along = order.index(to)
        for at in copied_parts(node, self._placed):
            value, dim = node.values[at], joined[at]
            kind = self._types[value]
            names = [to if n == dim else n for n in kind.names]
            part = aligned(self._flat(self._variables[value], kind), names, order)
            whole = self._variables[node.result]
            target = f"{whole}.narrow({along}, {self._sum(joined[:at])}"
            self._writer.line(f"{target}, {self.size(dim)}).copy_({part})")

    def _constant(self, value: Scalar) -> str:
        known = {n: self._extents.get(n) for n, _ in value.extents}
        if None not in known.values():
            return number(value.at({n: e for n, e in known.items() if e is not None}))
        text = number(Scalar(value.value).at({}))
        for name, power in value.extents:
            text += f" * {self.size(name)} ** {power}"
        return text

    def _flat(self, variable: str, kind: TensorType) -> str:
        """The tensor with one axis per dim."""
        if all(len(axis) == 1 for axis in kind.axes):
            return variable
        return f"{variable}.reshape({self._shape([(d,) for d in kind.dims])})"

    def _hand_over(self, results: Sequence[str]) -> None:
        """Copy what was not made in the caller's tensors."""
        given = self._given or {}
        for at, (item, text) in enumerate(
            zip(self._graph.returns, results, strict=True)
        ):
            if given.get(item.value) != at:
                self._writer.line(f"{self._outs[at]}.copy_({text})")

    def _returned(self, item: Return) -> str:
        """A value with the axes of the returned type."""
        kind = self._types[item.value]
        variable = self._variables[item.value]
        text = variable
        if kind.axes != item.type.axes:
            text = self._flat(variable, kind)
            if kind.names != item.type.names:
                turns = ", ".join(str(kind.names.index(n)) for n in item.type.names)
                text += f".permute({turns})"
            if any(len(axis) != 1 for axis in item.type.axes):
                text += f".reshape({self._shape(item.type.axes)})"
        if kind.dtype != item.type.dtype:
            text += f".to({torch_dtype(item.type.dtype)})"
        return text
