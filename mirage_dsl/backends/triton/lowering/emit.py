"""μGraph → one readable Python module: Triton kernels and a function that runs them.

Kernels are printed by `kernel`.  The host function `run` allocates, calls library
kernels, and gives each kernel its arguments (`Launcher`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from types import MappingProxyType

from mirage_dsl.backends.library import (
    HELPERS,
    Argument,
    aligned,
    call_text,
    expression,
    is_seen_whole,
    only_element,
)
from mirage_dsl.backends.triton.lowering.kernel import (
    KernelPlan,
    Param,
    Surroundings,
    Variant,
    Writer,
    emit_block,
    identifier,
    product,
    source_comment,
)
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.hardware import FIRST_EARLY, GRID_AXES
from mirage_dsl.core.types import (
    Axis,
    Scalar,
    TensorType,
    Types,
    number,
    torch_dtype,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.launches import calls, launches
from mirage_dsl.ir.analysis.layouts import (
    FlatValues,
    as_libraries_make,
    built,
    copied_parts,
    flat_values,
    single_elements,
    with_channels_last,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import Extents, products, sums
from mirage_dsl.ir.walk import read_by
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.makers import JOIN_PREFIX
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.tile.program import (
    Outer,
    outer_of,
)

# -- A module --------------------------------------------------------------------------


@dataclass(frozen=True)
class ModulePlan:
    """An emitted module.

    Attributes:
        graph: What it computes.
        source: Python source; it defines the kernels and `run(*tensors) -> list`.
        kernels: Its Triton kernels, in launch order.
        around: Types and extents that it was written for.
    """

    graph: ir.KernelGraph
    source: str
    kernels: tuple[KernelPlan, ...]
    around: Surroundings


FAR = 2**31
"""Offsets from here on do not fit into 32 bits."""


def emit(graph: ir.KernelGraph) -> str:
    """The Python source that computes a μGraph.

    The module defines one `@triton.jit` function per block graph, or another name of
    one with the same code, and `run(*tensors)`, which returns the list of outputs.

    Raises:
        UnsupportedError: Triton cannot express something of the graph.
    """
    return plan(graph).source


AS_TYPED = Variant()
"""For tensors as the inputs' types describe them."""


def plan(
    graph: ir.KernelGraph,
    variant: Variant = AS_TYPED,
    *,
    most: Mapping[str, int] | None = None,
) -> ModulePlan:
    """The emitted module with its parts.

    Args:
        graph: What to emit.
        variant: For tensors that lie how.
        most: The largest extents of symbolic dims: blocks can hold these whole.

    Raises:
        UnsupportedError: Triton cannot express something of the graph.
    """
    outer = outer_of(graph, most=most, pointers=variant.pointers)
    flat = flat_values(graph, outer.types, outer.placed)
    given = _given(graph, outer, flat) if variant.out else None
    taken = {v for whole in given or () for v in (whole, *flat.of(whole))}
    wide = variant.wide or any(is_far(t, outer.extents) for t in outer.types.values())
    around = Surroundings(
        outer.types,
        outer.extents,
        outer.most,
        packed=outer.packed - taken,
        placed=outer.placed,
        inputs=outer.inputs,
        pointers=outer.pointers,
        given=given,
        flat=flat,
        variant=replace(variant, wide=wide),
    )
    kernels = _kernels(graph, around)
    launcher = Launcher(graph, around, [k.name for k in kernels])
    source = _source(graph, kernels, launcher)
    return ModulePlan(graph, source, tuple(kernels), around)


def _source(
    graph: ir.KernelGraph, kernels: list[KernelPlan], launcher: Launcher
) -> str:
    run = launcher.write(kernels)
    lines = _head(graph, kernels)
    for kernel in kernels:
        lines += ["", *kernel.lines] if kernel.same_as else ["", "", *kernel.lines]
    for helper in sorted(launcher.helpers):
        lines += ["", *HELPERS[helper].rstrip("\n").split("\n")]
    return "\n".join([*lines, "", "", *run]) + "\n"


def _kernels(graph: ir.KernelGraph, around: Surroundings) -> list[KernelPlan]:
    """The kernels of all launches; what several have in common is compiled once."""
    found: list[KernelPlan] = []
    for launch in launches(graph):
        check_rank(launch.block)
        name = f"{identifier(graph.name)}_kernel{len(found)}"
        kernel = emit_block(
            launch.block, name, around, announced=launch.announced, made=launch.made
        )
        found.append(kernel)
    if len(found) == 1:
        return found
    by_code: dict[str, KernelPlan] = {}
    firsts = [by_code.setdefault(kernel.code, kernel) for kernel in found]
    return [
        kernel if kernel is first else kernel.like(first)
        for kernel, first in zip(found, firsts, strict=True)
    ]


def _given(graph: ir.KernelGraph, outer: Outer, flat: FlatValues) -> dict[str, int]:
    """Values that can be made in the caller's tensors, with the number of the output.

    A value must lie in the caller's tensor as a view: its axes may be cut out of the
    output's, but not joined.
    """
    placed = outer.placed
    made = built(placed).union(*(b.results for b in graph.blocks)) - placed.keys()
    made |= {flat.within[v].whole for v in made & flat.within.keys()}
    found: dict[str, int] = {}
    for at, item in enumerate(graph.returns):
        kind = outer.types[item.value]
        alike = kind.axes == item.type.axes or kind.is_flat
        if item.value in made and kind.dtype == item.type.dtype and alike:
            found.setdefault(item.value, at)
    return found


def is_far(kind: TensorType, extents: Extents) -> bool:
    """Whether a packed tensor has too many elements for 32 bits, by what is known."""
    sizes = [extents.get(n) for n in kind.names]
    known = [s for s in sizes if s is not None]
    return prod(known) >= FAR


def check_rank(block: ir.BlockGraph) -> None:
    """Refuse what the launch cannot number.

    Raises:
        UnsupportedError: The grid has too many axes.
    """
    if len(block.axes) > GRID_AXES:
        raise UnsupportedError(
            f"a grid of {len(block.axes)} axes; a launch has at most {GRID_AXES}"
        )


def _seen_otherwise(graph: ir.KernelGraph, types: Types) -> set[str]:
    """What other nodes read, or results have with other axes."""
    turned = {r.value for r in graph.returns if r.type.axes != types[r.value].axes}
    return turned | read_by(graph.nodes)


# -- The host function: allocations, library kernels, launches -------------------------

_BY_NAME = frozenset({Kind.ELEMENTWISE, Kind.CONTRACTION, Kind.CONCAT})
"""Kinds of operators whose operands may have their axes in any order."""


class Launcher:
    """Writes `run`.

    Tensors keep the axes of their types; a library kernel sees one axis per dim.

    Args:
        graph: What `run` computes.
        around: Its types and extents.
        taken: Names that the written function uses besides `RESERVED`.
    """

    def __init__(
        self, graph: ir.KernelGraph, around: Surroundings, taken: Iterable[str] = ()
    ) -> None:
        self._graph = graph
        self._types = around.types
        self._extents = around.extents
        self._placed = around.placed
        self._flat_values = around.flat
        self._built = built(around.placed)
        self._fused = calls(graph, around.types)
        self._inner = frozenset[str]().union(*(m.inner for m in self._fused.values()))
        types = with_channels_last(graph, kernel_types(graph))
        self._lying = as_libraries_make(graph, types, around.extents)
        self._otherwise = _seen_otherwise(graph, around.types)
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
            if isinstance(node, ir.Apply):
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
                self._variables[item.name] = self._writer.define(
                    item.name, self._positions(self._axis_size(item.axis))
                )

    def _positions(self, size: str) -> str:
        """An expression of the positions along an axis."""
        return f"torch.arange({size}, device=device)"

    # -- Sizes ---------------------------------------------------------------------

    def _bind_sizes(self) -> None:
        """Read symbolic extents off the inputs' shapes, and what follows from them.

        Raises:
            UnsupportedError: Nothing tells a symbolic extent.
        """
        open_axes = [
            (f"{self._variables[item.name]}.shape[{at}]", dims)
            for item in self._graph.inputs
            for at, dims in enumerate(item.type.axes)
            if any(self._unknown(d.name) for d in dims)
        ]
        for _ in open_axes:
            for shape, dims in open_axes:
                self._bind_axis(shape, dims)
        for node in self._graph.nodes:
            if isinstance(node, ir.BlockGraph):
                self._bind_parts(node)
            for dims, name in sums(node):
                if self._unknown(name) and not any(map(self._unknown, dims)):
                    self._sizes[name] = self._sum_size(name, dims)
            if isinstance(node, ir.Apply) and node.sliced is not None:
                self._bind_slice(node.sliced)
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
                self._sizes[whole] = self._writer.define(
                    f"{whole}_size", " * ".join(map(self.size, factors))
                )

    def _bind_axis(self, shape: str, dims: Axis) -> None:
        unknown = [d.name for d in dims if self._unknown(d.name)]
        if len(unknown) != 1:
            return
        others = [self.size(d.name) for d in dims if d.name not in unknown]
        text = f"{shape} // ({' * '.join(others)})" if others else shape
        self._sizes[unknown[0]] = self._writer.define(f"{unknown[0]}_size", text)

    def _unknown(self, dim: str) -> bool:
        return self._extents.get(dim) is None and dim not in self._sizes

    def size(self, dim: str) -> str:
        """The extent of a dim as an expression of the host."""
        extent = self._extents.get(dim)
        return str(extent) if extent is not None else self._sizes[dim]

    def _bind_parts(self, block: ir.BlockGraph) -> None:
        """Extents of the dims over the parts of symbolic split dims."""
        stored = {d.name for s in block.stores for axis in s.axes for d in axis}
        for split in block.grid:
            name = ir.partial_dim(split.dim)
            bound = self._unknown(name) and not self._unknown(split.dim)
            if name in stored and bound:
                self._sizes[name] = self._writer.define(
                    f"{name}_size", f"-(-{self.size(split.dim)} // {split.tile})"
                )

    def _bind_slice(self, part: ir.PartOfDim) -> None:
        """The extent of what is left of a symbolic dim."""
        if self._unknown(part.to) and not self._unknown(part.dim):
            cut = part.start - part.stop
            self._sizes[part.to] = self._writer.define(
                f"{part.to}_size", f"{self.size(part.dim)} - {cut}"
            )

    def _sum_size(self, name: str, dims: Sequence[str]) -> str:
        """A variable for the extent of a dim that is as long as others together."""
        if len(dims) == 1:
            return self.size(dims[0])
        return self._writer.define(f"{name}_size", self._sum(dims))

    def _sum(self, dims: Sequence[str]) -> str:
        """The extents of dims together."""
        symbolic = [self.size(d) for d in dims if self._extents.get(d) is None]
        known = sum(self._extents.get(d) or 0 for d in dims)
        return " + ".join([*symbolic, *([str(known)] if known or not symbolic else [])])

    def _shape(self, axes: Sequence[Axis]) -> str:
        sizes = [self._axis_size(axis) for axis in axes]
        return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"

    def _axis_size(self, axis: Axis) -> str:
        sizes = (self._extents.get(d.name) or self.size(d.name) for d in axis)
        return product(sizes)

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
        if kernel.registers is not None:
            arguments.append(f"maxnreg={kernel.registers}")
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
        self._variables[value] = self._writer.define(value, text)

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

    def _library(self, node: ir.Apply) -> None:
        if node.result in self._inner | self._flat_values.unmade:
            return
        if node.result in self._built:
            self._complete(node)
            return
        text = self._shared(node, self._call(node))
        for helper in HELPERS:
            if f"{helper}(" in text:
                self.helpers.add(helper)
        # Attention makes heads as its operands lie, or behind positions.  So does the
        # caller get them; views that are written ahead of a call want them packed.
        call = self._fused.get(node.result)
        alone = node.result not in self._otherwise
        as_made = call is not None and alone and is_seen_whole(call)
        packed = self._types[node.result].layout is None
        if packed and not (as_made or self._shows(node)):
            text += ".contiguous()"
        if node.location is not None:
            self._writer.line(source_comment(node.location))
        self._variables[node.result] = self._writer.define(node.result, text)

    def _shared(self, node: ir.Apply, text: str) -> str:
        """The part of a call's results, where others take other parts of the same."""
        if not node.op.part:
            return text
        call, part, rest = text.partition(f"){node.op.part}")
        if call not in self._calls:
            self._calls[call] = self._writer.define(f"{node.result}_all", f"{call})")
        return f"{self._calls[call]}{part[1:]}{rest}"

    def _call(self, node: ir.Apply) -> str:
        match = self._fused.get(node.result)
        if match is not None:
            values = {v: self._as_it_lies(v) for v in match.values}
            lies = self._lying.get(node.result, ())
            return call_text(match, values, self.size, lies)
        kind = self._types[node.result]
        if node.op.kind not in _BY_NAME:
            operands = [self._value(o) for o in node.operands]
            if self._shows(node) and node.op.kind is Kind.REDUCTION:
                return only_element(operands[0], node.over, kind.dtype)
            return expression(node, operands, kind.names, kind.dtype, self.size)
        # Made as it lies in memory, and seen with its axes.
        operands = [self._as_it_lies(o) for o in node.operands]
        dims = self._lying.get(node.result, kind.names)
        text = expression(node, operands, dims, kind.dtype, self.size)
        if node.result in self._lying:
            text += ".contiguous()"
        return aligned(text, dims, kind.names)

    def _shows(self, node: ir.Apply) -> bool:
        """Whether a node's result is a view, so that it lies as what it shows."""
        single = node.result in self._single and node.result not in self._fused
        return node.op.kind is Kind.VIEW or single

    @cached_property
    def _single(self) -> frozenset[str]:
        return single_elements(self._graph, self._extents)

    def _as_it_lies(self, operand: ir.Operand) -> Argument:
        """A value with its axes as they lie in memory, if a library kernel made it."""
        found = self._value(operand)
        dims = self._lying.get(operand, ()) if isinstance(operand, str) else ()
        if not dims:
            return found
        return Argument(aligned(found.text, found.dims, dims), dims, found.dtype)

    def _value(self, operand: ir.Operand) -> Argument:
        if isinstance(operand, Scalar):
            return Argument(self._constant(operand))
        kind = self._types[operand]
        text = self._flat(self._variables[operand], kind)
        return Argument(text, kind.names, kind.dtype)

    def _complete(self, node: ir.Apply) -> None:
        """Copy those parts of a concatenation that no kernel has stored there."""
        joined, to = node.dims("dims"), node.dim("to")
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
        known = value.known_at(self._extents)
        if known is not None:
            return number(known)
        text = number(Scalar(value.value).at({}))
        for name, power in value.extents:
            text += f" * {self.size(name)} ** {power}"
        return text

    def _flat(self, variable: str, kind: TensorType) -> str:
        """The tensor with one axis per dim."""
        if kind.is_flat:
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

    def _returned(self, item: ir.Return) -> str:
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


# -- What a module begins with ---------------------------------------------------------

EARLY = f"""
# Whether kernels may start before those ahead of them have ended: from \
{FIRST_EARLY.name} on.
EARLY = tl.constexpr(
    not triton.knobs.runtime.interpret
    and torch.cuda.is_available()
    and torch.cuda.get_device_capability() >= {FIRST_EARLY.capability}
)
"""
"""What a module with kernels that start early defines."""


_PREFETCH = '''
@triton.jit
def prefetch(lines):
    """Ask cache lines into the L2 cache, without waiting for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [lines.to(tl.uint64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
'''
"""What a module with such kernels defines."""


def _head(graph: ir.KernelGraph, kernels: list[KernelPlan]) -> list[str]:
    lines = [
        f'"""{graph.name}: {len(kernels)} Triton kernel{"s" * (len(kernels) != 1)}."""',
        "",
        "import torch",
        "import triton",
        "import triton.language as tl",
    ]
    if any(k.schedule.pdl for k in kernels):
        lines.append(
            "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait"
        )
    if any(p.kind == "descriptor" for k in kernels for p in k.params):
        lines.append("from triton.tools.tensor_descriptor import TensorDescriptor")
    if any(k.schedule.pdl for k in kernels):
        lines += ["", *EARLY.rstrip("\n").split("\n")]
    if any(k.prefetches for k in kernels):
        lines += ["", *_PREFETCH.rstrip("\n").split("\n")]
    for text in functions_called(line for k in kernels for line in k.lines):
        lines += ["", *text.rstrip("\n").split("\n")]
    return lines


def functions_called(lines: Iterable[str]) -> list[str]:
    """The functions that a module has to define for the lines of its kernels.

    Among them are those by which `tl.reduce` and `tl.associative_scan` join elements
    (`JOIN_PREFIX`), as the templates of the joins say.
    """
    code = "\n".join(lines)
    names = set(re.findall(rf"\b{JOIN_PREFIX}(\w+)\b", code))
    joined = [
        _JOIN.format(f"{JOIN_PREFIX}{join.name}", join.triton.format("a", "b"))
        for join in dict.fromkeys(o.join for o in OPERATORS.values())
        if join is not None and join.name in names
    ]
    code = "\n".join((code, *joined))
    names = set(re.findall(r"(?<![\w.])(\w+)\(", code))
    called = [text for name, text in FUNCTIONS.items() if name in names]
    compiled = [COMPILED] * any("COMPILED" in text for text in called)
    return compiled + called + joined


_JOIN = """
@triton.jit
def {}(a, b):
    return {}
"""


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
    if COMPILED and a.numel % 4 == 0:
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


_FLOATS_OF_WORDS = '''
@triton.jit
def {name}(a):
    """Both bytes of words, numbers of {what}, in f16."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            """{{
{assembly}
            }}""",
            "=&r,=&r,r",
            [a],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    low, high = (a & 255).to(tl.uint8), (a >> 8 & 255).to(tl.uint8)
    low, high = low.to({kind}, bitcast=True), high.to({kind}, bitcast=True)
    return low.to(tl.float16), high.to(tl.float16)
'''
"""A function of two words: of four bytes, of which results have the even, the odd."""


_PARTS_OF_WORDS = '''
@triton.jit
def {name}(a, less):
    """{what} of words, less a number, in f16."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            """{{
            .reg .b32 t, u;
{assembly}
            }}""",
            "{constraints}",
            [{operands}],
            dtype=({formats}),
            is_pure=True,
            pack=2,
        )
{plain}
'''
"""The same of integers, or of both halves of each byte."""


def _parts_of_words(
    name: str,
    what: str,
    assembly: Sequence[str],
    offsets: Sequence[str],
    plain: Sequence[str],
    given: int = 1,
) -> str:
    """The function that gives some parts of each byte.

    Args:
        name: Its name.
        what: Of what.
        assembly: Results come first, then the words, then offsets.
        offsets: What is subtracted from the floats that parts are put into.
        plain: What computes the parts without assembly, of the low byte and the high.
        given: Registers of two words.
    """
    count = len(plain)
    fulls = (f"tl.full(a.shape, {offset}, tl.float16)" for offset in offsets)
    parts = [f"    p{at} = ({text}).to(tl.float32)" for at, text in enumerate(plain)]
    results = (f"(p{at} - less).to(tl.float16)" for at in range(count))
    return _PARTS_OF_WORDS.format(
        name=name,
        what=what,
        assembly="\n".join(f"            {line}" for line in assembly),
        constraints=",".join(["=&r"] * count + ["r"] * (given + len(offsets))),
        operands=", ".join(["a", *fulls]),
        formats=", ".join(["tl.float16"] * count),
        plain="\n".join([*parts, f"    return {', '.join(results)}"]),
    )


def _whole_bytes(given: str) -> list[str]:
    """The assembly of both bytes of words, which stand under the bits of 1024."""
    return [
        given,
        "lop3.b32 u, t, 0x00ff00ff, 0x64006400, 0xea;",
        "sub.f16x2 $0, u, $3;",
        "prmt.b32 t, t, 0x64646464, 0x4341;",
        "sub.f16x2 $1, t, $3;",
    ]


def _half_bytes(given: Sequence[str]) -> list[str]:
    """The assembly of halves: the higher ones stand four bits higher, under 64.

    Args:
        given: What makes `t` of two times two bytes, for each four halves of them.
    """
    lines: list[str] = []
    count = 4 * len(given)
    less, higher_less = (f"${n}" for n in (count + len(given), count + len(given) + 1))
    for at in range(0, count, 2):
        first = at % 4 == 0
        lines += [
            given[at // 4] if first else "shr.u32 t, t, 8;",
            "lop3.b32 u, t, 0x000f000f, 0x64006400, 0xea;",
            f"sub.f16x2 ${at}, u, {less};",
            "lop3.b32 u, t, 0x00f000f0, 0x54005400, 0xea;",
            f"sub.f16x2 ${at + 1}, u, {higher_less};",
        ]
    return lines


_HALVES_OF_BYTES = ("a & 15", "a >> 4 & 15", "a >> 8 & 15", "a >> 12 & 15")
_OF_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "e4m3_pairs": _FLOATS_OF_WORDS.format(
            name="e4m3_pairs",
            what="f8e4m3",
            kind="tl.float8e4nv",
            assembly="""\
            .reg .b32 t;
            .reg .b16 l, h;
            prmt.b32 t, $2, 0, 0x3120;
            mov.b32 {l, h}, t;
            cvt.rn.f16x2.e4m3x2 $0, l;
            cvt.rn.f16x2.e4m3x2 $1, h;""",
        ),
        "e5m2_pairs": _FLOATS_OF_WORDS.format(
            name="e5m2_pairs",
            what="f8e5m2, the upper halves of f16",
            kind="tl.float8e5",
            assembly="""\
            prmt.b32 $0, $2, 0, 0x2404;
            lop3.b32 $1, $2, 0xff00ff00, 0, 0xea;""",
        ),
        "unsigned_pairs": _parts_of_words(
            "unsigned_pairs",
            "Both bytes, without a sign,",
            _whole_bytes("mov.b32 t, $2;"),
            ["1024.0 + less"],
            ["a & 255", "a >> 8 & 255"],
        ),
        "signed_pairs": _parts_of_words(
            "signed_pairs",
            "Both bytes, with a sign,",
            _whole_bytes("xor.b32 t, $2, 0x80808080;"),
            ["1152.0 + less"],
            ["(a & 255).to(tl.int8)", "(a >> 8).to(tl.int8)"],
        ),
        "half_pairs": _parts_of_words(
            "half_pairs",
            "The lower and the higher four bits of both bytes",
            _half_bytes(["mov.b32 t, $4;"]),
            ["1024.0 + less", "64.0 + less"],
            _HALVES_OF_BYTES,
        ),
        "eighths": _parts_of_words(
            "eighths",
            "Each four bits of words of 32, the lowest first,",
            _half_bytes(["prmt.b32 t, $8, $9, 0x5410;", "prmt.b32 t, $8, $9, 0x7632;"]),
            ["1024.0 + less", "64.0 + less"],
            [f"a >> {bits} & 15" if bits else "a & 15" for bits in range(0, 32, 4)],
            given=2,
        ),
    }
)
"""The functions of words, by their names."""


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
        **_OF_WORDS,
    }
)
"""The functions, by their names."""


# -- Words dealt to the matrix unit ----------------------------------------------------
# What emitted modules call for `tile.combined.deal`.  Of what is summed, a thread of
# the matrix unit takes two neighbours, three more threads the next ones, and so on: for
# each thread these are its neighbours in memory, on both sides of the product.  Of such
# threads there are `DEALT_THREADS`, 4, for each of `DEALT_ROWS`, 8 rows or columns.

DEALING: Mapping[str, str] = MappingProxyType(
    {
        "dealt_rows": '''
@triton.jit
def dealt_rows(a, parts: tl.constexpr):
    """Words of eight rows of each part in turn, as [part, row, word]."""
    rows: tl.constexpr = a.shape[0] // parts
    b = tl.reshape(a, (rows // 8, parts, 8, 4, a.shape[1] // 8, 2))
    return tl.reshape(tl.permute(b, (1, 0, 2, 4, 3, 5)), (parts, rows, a.shape[1]))
''',
        "dealt_columns": '''
@triton.jit
def dealt_columns(a, parts: tl.constexpr, numbers: tl.constexpr):
    """Words of so many numbers, as threads load them, as [part, number, column]."""
    times: tl.constexpr = a.shape[0] // (32 * parts)
    b = tl.reshape(a, (times, parts, 8, 4, a.shape[1] // (2 * numbers), 2, numbers))
    b = tl.permute(b, (1, 0, 4, 3, 5, 6, 2))
    return tl.reshape(b, (parts, times * 4 * a.shape[1], 8))
''',
    }
)
"""The functions, by their names."""


# -- Functions that templates call -----------------------------------------------------

FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "power": '''
@triton.jit
def power(a, b):
    """a to the power b, of any sign and size, as the C library has it."""
    x, y = tl.cast(a, tl.float64), tl.cast(b, tl.float64)
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    whole = tl.where(tl.floor(y * 0.5) * 2.0 == y, size, -size)
    part = tl.where(x == 0, size, tl.where(x == float("-inf"), size, float("nan")))
    below = tl.where(tl.floor(y) == y, whole, part)
    found = tl.where(x < 0, below, tl.where(1.0 / x < 0, below, size))
    found = tl.where(tl.abs(y) == float("inf"), tl.where(x == -1, 1.0, found), found)
    found = tl.where(y == 0, 1.0, tl.where(x == 1, 1.0, found))
    return tl.cast(found, tl.float32)
''',
        "log1p": '''
@triton.jit
def log1p(a):
    """The logarithm of 1 + a, also where a is next to nothing beside 1."""
    b = 1.0 + a
    # `b` has only `added` of `a`, and the logarithm of a bit more is as much more.
    added = b - 1.0
    near = tl.log(b) * (a / tl.where(added == 0.0, 1.0, added))
    return tl.where(added == 0.0, a, tl.where(a > 1e6, tl.log(b), near))
''',
        "expm1": '''
@triton.jit
def expm1(a):
    """e to the power a, less 1, also where that is next to nothing beside 1."""
    near = 1.0 / 24.0 + a * (1.0 / 120.0 + a * (1.0 / 720.0 + a * (1.0 / 5040.0)))
    near = 1.0 + a * (0.5 + a * (1.0 / 6.0 + a * near))
    return tl.where(tl.abs(a) < 0.35, a * near, tl.exp(a) - 1.0)
''',
        "tanh": '''
@triton.jit
def tanh(a):
    """The hyperbolic tangent, also where it is next to nothing beside 1."""
    b = a * a
    near = 2.0 / 15.0 - b * (17.0 / 315.0 - b * (62.0 / 2835.0))
    near = 1.0 - b * (1.0 / 3.0 - b * near)
    return tl.where(tl.abs(a) < 0.25, a * near, 2.0 * tl.sigmoid(2.0 * a) - 1.0)
''',
        "round_even": '''
@triton.jit
def round_even(a):
    """The nearest whole number, of two equally near ones the even one."""
    low = tl.floor(a)
    rest = a - low
    odd = tl.floor(low * 0.5) * 2.0 != low
    return tl.where((rest > 0.5) | ((rest == 0.5) & odd), low + 1.0, low)
''',
        "to_f8e4m3": '''
@triton.jit
def to_f8e4m3(a):
    """The nearest number of 8 bits; what is beyond the largest one is that one."""
    low = tl.maximum(a, -448.0, propagate_nan=tl.PropagateNan.ALL)
    inside = tl.minimum(low, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return inside.to(tl.float8e4nv)
''',
        "to_f8e5m2": '''
@triton.jit
def to_f8e5m2(a):
    """The nearest number of 8 bits; what is beyond the largest one is infinite."""
    bits = a.to(tl.float8e5).to(tl.uint8, bitcast=True)
    infinite = tl.where(a < 0, 0xFC, 0x7C).to(tl.uint8)
    bits = tl.where(tl.abs(a) >= 61440.0, infinite, bits)
    return bits.to(tl.float8e5, bitcast=True)
''',
        "fmod": '''
@triton.jit
def fmod(a, b):
    """What is left of a after as many whole b as fit, with the sign of a."""
    x, y = tl.cast(a, tl.float64), tl.abs(tl.cast(b, tl.float64))
    left = tl.abs(x)
    # f32 values are up to 2**277 apart; 2**24 times b fits a number of times that
    # float64 holds, so that each step is exact but for one b too many.
    for step in tl.static_range(12):
        size = y * 2.0 ** (264 - 24 * step)
        left = left - tl.floor(left / size) * size
        left = tl.where(left < 0, left + size, left)
    found = tl.where(x < 0, -left, left)
    beyond = tl.where(y == float("inf"), x, found)
    return tl.cast(tl.where(tl.abs(x) < y, beyond, found), tl.float32)
''',
        "atan2": '''
@triton.jit
def atan2(a, b):
    """The angle of the point b to the right and a up, between -pi and pi."""
    y, x = tl.cast(a, tl.float64), tl.cast(b, tl.float64)
    rise, run = tl.abs(y), tl.abs(x)
    less, more = tl.where(rise > run, run, rise), tl.where(rise > run, rise, run)
    slope = less / tl.where(more == 0, 1.0, more)
    slope = tl.where(less == more, tl.where(more > 0, 1.0, slope), slope)
    # An eighth of the angle, whose series ends soon.
    for _ in tl.static_range(3):
        slope = slope / (1.0 + tl.sqrt(1.0 + slope * slope))
    z = slope * slope
    tail = z * (1.0 / 9.0 - z * (1.0 / 11.0 - z / 13.0))
    series = 1.0 - z * (1.0 / 3.0 - z * (1.0 / 5.0 - z * (1.0 / 7.0 - tail)))
    angle = 8.0 * slope * series
    angle = tl.where(rise > run, 1.5707963267948966 - angle, angle)
    # What is below 0, or is -0, whose reciprocal is.
    left = tl.where(x == 0, 1.0 / x, x)
    angle = tl.where(left < 0, 3.141592653589793 - angle, angle)
    down = tl.where(y == 0, 1.0 / y, y)
    angle = tl.where(down < 0, -angle, angle)
    angle = tl.where(x != x, x, tl.where(y != y, y, angle))
    return tl.cast(angle, tl.float32)
''',
        "floor_divide": '''
@triton.jit
def floor_divide(a, b):
    """a / b rounded down, of integers; the GPU rounds towards 0."""
    below = (a % b != 0) & ((a < 0) != (b < 0))
    return a // b - below.to((a // b).dtype)
''',
        "remainder": '''
@triton.jit
def remainder(a, b):
    """What is left of a by b, with the sign of b; the GPU gives it that of a."""
    rest = a % b
    other = (rest != 0) & ((rest < 0) != (b < 0))
    return tl.where(other, rest + b, rest)
''',
        **UNPACKING,
        **DEALING,
    }
)
"""Functions that an emitted module defines when a template calls them."""
