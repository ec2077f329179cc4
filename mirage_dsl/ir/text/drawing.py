"""μGraphs as drawings, in the language of Graphviz: `dot -Tsvg` draws them.

Library kernels are boxes; blocks are boxes with what they compute in them; arrows say
who reads what.
"""

from __future__ import annotations

from collections.abc import Iterator

from mirage_dsl.core.types import TensorType
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Load
from mirage_dsl.ir.infer import store_type
from mirage_dsl.ir.text.printer import (
    block_header,
    block_node_text,
    kernel_node_text,
    type_text,
)
from mirage_dsl.ir.walk import operands_of


def to_dot(graph: KernelGraph) -> str:
    """A drawing of a μGraph: its kernels, and in each block what it computes."""
    return "\n".join(["digraph {", *_lines(graph), "}", ""])


def _lines(graph: KernelGraph) -> Iterator[str]:
    yield f"  label={_quoted(graph.name)}; node [shape=box];"
    types = {i.name: i.type for i in graph.inputs}
    # Nodes of the drawing by the tensors of the kernel level that they make.
    made: dict[str, str] = {}
    for given in graph.inputs:
        yield _node(given.name, f"{given.name}: {given.type}", "ellipse")
        made[given.name] = given.name
    for number, node in enumerate(graph.nodes):
        if isinstance(node, BlockGraph):
            yield from _block(node, number, types, made)
            continue
        yield _node(node.result, kernel_node_text(node, types))
        yield from (_arrow(made[v], node.result) for v in dict.fromkeys(node.values))
        made[node.result] = node.result
    for place, returned in enumerate(graph.returns):
        yield _node(f"return {place}", f"return {returned.value}", "ellipse")
        yield _arrow(made[returned.value], f"return {place}")


def _block(
    block: BlockGraph, number: int, outer: dict[str, TensorType], made: dict[str, str]
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
        sources = [made[node.source]] if isinstance(node, Load) else []
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
