"""Prints a μGraph as `.mu` text, so that `parse(to_text(g)) == g`.

The text is described in `docs/text-format.md`.  A graph whose types do not follow is
printed too, without the types that are missing: error messages show such graphs.

A text does not say which line of the user's Python a node comes from.  A stored result
notes instead which operator of the program had that line (`lines_of`), so that emitted
code shows the line where it is now, not where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace

from mirage_dsl.core.errors import CheckError, SourceLocation
from mirage_dsl.core.types import TensorType, Types, axis_text
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.infer import apply_type, block_node_type, store_type
from mirage_dsl.ir.maps import stated_extents
from mirage_dsl.ir.walk import operands_of

VERSION = 1
"""Version of the text format, in its first line."""

_WIDTH = 96
_INDENT = "  "


def to_text(graph: ir.KernelGraph) -> str:
    """The graph as `.mu` text, ending in a newline."""
    types = {i.name: i.type for i in graph.given}
    lines = [f"mirage {VERSION}", "", *_header(graph)]
    lines += [f"{_INDENT}{i.name} = index {axis_text(i.axis)}" for i in graph.indices]
    for node in graph.nodes:
        match node:
            case ir.Apply():
                line = kernel_node_text(node, types)
                lines.append(_INDENT + line)
            case ir.BlockGraph():
                lines += [_INDENT + line for line in _block(node, types)]
                types |= {s.result: store_type(s) for s in node.stores}
    lines.append(
        f"{_INDENT}return {', '.join(r.value for r in graph.returns)}".rstrip()
    )
    lines.append("}")
    return "\n".join(lines) + "\n"


def _header(graph: ir.KernelGraph) -> list[str]:
    inputs = [f"{i.name}: {i.stated}" for i in graph.inputs]
    tail = ")"
    if graph.returns:
        tail += " -> " + ", ".join(str(r.type) for r in graph.returns)
    sizes = ", ".join(_sizes(graph))
    tail += f" where {sizes} {{" if sizes else " {"
    head = f"mugraph {graph.name}("
    one_line = head + ", ".join(inputs) + tail
    if len(one_line) <= _WIDTH or not inputs:
        return [one_line]
    *others, last = inputs
    return [head, *(f"{_INDENT * 2}{i}," for i in others), _INDENT * 2 + last, tail]


def _sizes(graph: ir.KernelGraph) -> Iterable[str]:
    """Extents in the order in which the inputs name the dims, then by name."""
    stated = stated_extents(graph)
    named = dict.fromkeys(n for i in graph.inputs for n in i.type.names)
    order = [n for n in named if n in stated]
    for name in [*order, *(n for n in stated if n not in named)]:
        extent = stated[name]
        yield f"{name} = {'?' if extent is None else extent}"


def kernel_node_text(node: ir.Apply, types: dict[str, TensorType]) -> str:
    """A library kernel or a view as a statement; its type joins `types`."""
    try:
        operands = [types[v] for v in node.values]
        types[node.result] = apply_type(node, operands, in_block=False)
    except (CheckError, KeyError):
        return f"{node.result} = {_application(node)}"
    return f"{node.result}: {types[node.result]} = {_application(node)}"


def _application(node: ir.Apply) -> str:
    given = dict(node.attrs)
    order = [n for n in node.op.attributes if n in given]
    words = [node.op.name, ", ".join(map(str, node.operands))]
    for name in [*order, *(n for n in given if n not in order)]:
        value = given[name]
        shown = ", ".join(value) if isinstance(value, tuple) else str(value)
        words.append(f"{name}({shown})")
    return " ".join(w for w in words if w)


def block_header(block: ir.BlockGraph) -> str:
    """How a block is split and lowered: `block grid(m / 64) loop(k / 32)`."""
    words = ["block"]
    if block.grid:
        words.append(f"grid({splits_text(block.grid)})")
    if block.loop is not None:
        words.append(f"loop({splits_text((block.loop,))})")
    if block.bounds and block.loop is not None:
        words.append(bounds_text(block.bounds, block.loop.dim))
    if block.settled and block.loop is not None:
        words.append(settled_text(block.settled, block.loop.dim))
    words += schedule_words(block.schedule)
    return " ".join(words)


def _block(block: ir.BlockGraph, outer: Types) -> list[str]:
    types: dict[str, TensorType] = {}
    lines = [f"{', '.join(block.results)} = {block_header(block)} {{"]
    for node in block.nodes:
        type_ = type_text(node, block, types, outer)
        lines.append(_INDENT + block_node_text(node, type_))
    return [*lines, "}"]


def bounds_text(bounds: Iterable[ir.LoopBound], dim: str, word: str = "while") -> str:
    """`while(d <= n, d >= n - 1023)`."""
    return f"{word}({', '.join(_bound(b, dim) for b in bounds)})"


def _bound(bound: ir.LoopBound, dim: str) -> str:
    text = f"{dim} {'<=' if bound.upper else '>='} {bound.dim}"
    if bound.offset:
        text += f" {'-' if bound.offset < 0 else '+'} {abs(bound.offset)}"
    return text if bound.also is None else f"{text} | {dim} <= {bound.also}"


def settled_text(settled: Iterable[ir.Settled], dim: str) -> str:
    """`settled(near == 1 if d <= n)`."""
    shown = (f"{s.value} == {int(s.holds)} if {_bound(s.bound, dim)}" for s in settled)
    return f"settled({', '.join(shown)})"


def splits_text(splits: Iterable[ir.Split]) -> str:
    """`m / 64, n / 32 & k / 32`: those beside each other number the same blocks."""
    found = ""
    for split in splits:
        sign = "" if not found else " & " if split.beside else ", "
        found += f"{sign}{split.dim} / {split.tile}"
    return found


def schedule_words(schedule: ir.Schedule) -> Iterable[str]:
    """The parameters that differ from the defaults."""
    default = ir.Schedule()
    for field in fields(ir.Schedule):
        value = getattr(schedule, field.name)
        if value != getattr(default, field.name):
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            yield f"{field.name}({shown})"


def type_text(
    node: ir.BlockNode, block: ir.BlockGraph, types: dict[str, TensorType], outer: Types
) -> str:
    """`: f32[m, k/loop]`, or nothing where the type does not follow."""
    if isinstance(node, ir.Store):
        return f": {node.dtype}[{', '.join(map(axis_text, node.axes))}]"
    try:
        types[node.result] = block_node_type(node, block, types, outer)
    except CheckError:
        return ""
    return f": {types[node.result]}"


def block_node_text(node: ir.BlockNode, type_: str) -> str:
    """A statement of a block, with the text of its type."""
    match node:
        case ir.Load():
            axes = "" if type_ else f"[{', '.join(map(axis_text, node.axes))}]"
            return f"{node.result}{type_} = load {node.source}{axes}"
        case ir.Apply():
            return f"{node.result}{type_} = {_application(node)}"
        case ir.Accumulate():
            how = "" if node.kind == "sum" else f" {node.kind}"
            if node.rescale is not None:
                how += f" rescale {node.rescale}"
            return f"{node.result}{type_} = accumulate {node.operand}{how}"
        case ir.RunningMax():
            return f"{node.result}{type_} = running max {node.operand}"
        case ir.Store():
            return f"store {node.result}{type_} = {node.operand}"


# -- The user's lines ------------------------------------------------------------------

Lines = dict[str, int]
"""Name of a value to the position of an operator in the program."""


def lines_of(mugraph: ir.KernelGraph, program: ir.KernelGraph) -> Lines:
    """Which operator of the program has the line of each operator of a μGraph."""
    places: dict[SourceLocation, int] = {}
    for at, node in enumerate(program.nodes):
        if isinstance(node, ir.Apply) and node.location is not None:
            places.setdefault(node.location, at)
    found: Lines = {}

    def note(name: str, node: ir.Apply) -> ir.Apply:
        if node.location in places:
            found[name] = places[node.location]
        return node

    _map_operators(mugraph, note)
    return found


def with_lines(
    mugraph: ir.KernelGraph, program: ir.KernelGraph, lines: Mapping[str, int]
) -> ir.KernelGraph:
    """The μGraph with the program's lines; `lines` as `lines_of` gave them."""

    def place(name: str, node: ir.Apply) -> ir.Apply:
        at = lines.get(name, len(program.nodes))
        source = program.nodes[at] if at < len(program.nodes) else None
        if not isinstance(source, ir.Apply):
            return node
        return replace(node, location=source.location)

    return _map_operators(mugraph, place)


def _map_operators(
    graph: ir.KernelGraph, function: Callable[[str, ir.Apply], ir.Apply]
) -> ir.KernelGraph:
    """Replace every operator; its name starts with its kernel's position in blocks."""
    nodes: list[ir.KernelNode] = []
    for at, node in enumerate(graph.nodes):
        match node:
            case ir.Apply():
                nodes.append(function(node.result, node))
            case ir.BlockGraph():
                inner: list[ir.BlockNode] = [
                    function(f"{at}.{n.result}", n) if isinstance(n, ir.Apply) else n
                    for n in node.nodes
                ]
                nodes.append(replace(node, nodes=tuple(inner)))
    return replace(graph, nodes=tuple(nodes))


# -- Drawings, in Graphviz' language ---------------------------------------------------


def to_dot(graph: ir.KernelGraph) -> str:
    """A drawing of a μGraph: its kernels, and in each block what it computes.

    Library kernels are boxes; blocks are boxes with what they compute in them; arrows
    say who reads what.
    """
    return "\n".join(["digraph {", *_lines(graph), "}", ""])


def _lines(graph: ir.KernelGraph) -> Iterator[str]:
    yield f"  label={_quoted(graph.name)}; node [shape=box];"
    types = {i.name: i.type for i in graph.inputs}
    # Nodes of the drawing by the tensors of the kernel level that they make.
    made: dict[str, str] = {}
    for given in graph.inputs:
        yield _node(given.name, f"{given.name}: {given.type}", "ellipse")
        made[given.name] = given.name
    for number, node in enumerate(graph.nodes):
        if isinstance(node, ir.BlockGraph):
            yield from _drawn(node, number, types, made)
            continue
        yield _node(node.result, kernel_node_text(node, types))
        yield from (_arrow(made[v], node.result) for v in dict.fromkeys(node.values))
        made[node.result] = node.result
    for place, returned in enumerate(graph.returns):
        yield _node(f"return {place}", f"return {returned.value}", "ellipse")
        yield _arrow(made[returned.value], f"return {place}")


def _drawn(
    block: ir.BlockGraph,
    number: int,
    outer: dict[str, TensorType],
    made: dict[str, str],
) -> Iterator[str]:
    yield f"  subgraph cluster_{number} {{ label={_quoted(block_header(block))};"
    types: dict[str, TensorType] = {}
    names: dict[str, str] = {}
    for node in block.nodes:
        name = f"{number}: {node.result}"
        text = block_node_text(node, type_text(node, block, types, outer))
        yield f"  {_node(name, text)}"
        names[node.result] = name
    yield "  }"
    for node in block.nodes:
        sources = [made[node.source]] if isinstance(node, ir.Load) else []
        sources += [names[v] for v in dict.fromkeys(operands_of(node)) if v in names]
        yield from (_arrow(source, names[node.result]) for source in sources)
    for store in block.stores:
        outer[store.result] = store_type(store)
        made[store.result] = names[store.result]


def _node(name: str, text: str, shape: str = "") -> str:
    shaped = f", shape={shape}" if shape else ""
    return f"  {_quoted(name)} [label={_quoted(text)}{shaped}];"


def _arrow(source: str, target: str) -> str:
    return f"  {_quoted(source)} -> {_quoted(target)};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
