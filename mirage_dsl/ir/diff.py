"""What differs between two graphs, as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from difflib import SequenceMatcher
from typing import Any

from mirage_dsl.ir.canonical import canonical_hash, canonical_names
from mirage_dsl.ir.graph import Apply, BlockGraph, KernelGraph, KernelNode, Split
from mirage_dsl.ir.rename import Renaming
from mirage_dsl.ir.text.parser import GraphLike, graph_of

_INDENT = "  "


def diff(first: GraphLike, second: GraphLike) -> str:
    """The changes that lead from one graph, text or candidate to another.

    Empty if they are equal.

    Values that compute the same are shown under their names in the first.  Lines that
    begin with - are only in the first, those with + only in the second; `x: old -> new`
    is a change.
    """
    a, b = graph_of(first), graph_of(second)
    if a == b:
        return ""
    if _same_hash(a, b):
        return "the same graph under other names or in another order"
    return "\n".join(_changes(a, _aligned(a, b)))


def _same_hash(a: KernelGraph, b: KernelGraph) -> bool:
    try:
        return canonical_hash(a, schedule=True) == canonical_hash(b, schedule=True)
    except (KeyError, ValueError):
        # One of them is not well formed, and so not the same as anything.
        return False


def _aligned(a: KernelGraph, b: KernelGraph) -> KernelGraph:
    """`b` with the names of `a` for what both have; inputs keep their names."""
    try:
        names_a, names_b = canonical_names(a), canonical_names(b)
    except (KeyError, ValueError):
        return b
    inputs = {i.name for i in b.given}
    values = _renaming(names_a.values, names_b.values, inputs)
    dims = _missing_only(names_a.dims, names_b.dims)
    renamed = Renaming(dims, values).graph(b)
    # Which blocks correspond shows once the tensors that they store have their names.
    number = {id(block): i for i, block in enumerate(a.blocks)}
    inner: list[Mapping[str, str]] = []
    none: Mapping[str, str] = {}
    for i, block in enumerate(renamed.blocks):
        key = _key(block, a)
        match = next((o for o in a.blocks if _key(o, renamed) == key), None)
        theirs = none if match is None else names_a.inner[number[id(match)]]
        inner.append(_renaming(theirs, names_b.inner[i], set()))
    return Renaming(inner=tuple(inner)).graph(renamed)


def _renaming(
    a: Mapping[str, str], b: Mapping[str, str], fixed: set[str]
) -> dict[str, str]:
    """New names for the values `b`: those of equal values in `a`, else unused ones."""
    pool: dict[str, list[str]] = {}
    for name, digest in a.items():
        pool.setdefault(digest, []).append(name)
    found = {n: n for n in b if n in fixed}
    for name, digest in b.items():
        names = pool.get(digest, [])
        if name not in fixed and names:
            found[name] = names.pop(0)
    taken = set(found.values())
    for name in b:
        if name in found:
            continue
        new = name
        while new in taken:
            new += "_new"
        found[name] = new
        taken.add(new)
    return found


def _missing_only(a: Mapping[str, str], b: Mapping[str, str]) -> dict[str, str]:
    """New names for those dims of `b` that `a` does not have."""
    free = {number: name for name, number in a.items() if name not in b}
    return {n: free[at] for n, at in b.items() if n not in a and at in free}


def _changes(a: KernelGraph, b: KernelGraph) -> Iterator[str]:
    yield from _mapping("name", {"": a.name}, {"": b.name})
    inputs = [{i.name: str(i.type) for i in g.inputs} for g in (a, b)]
    yield from _mapping("input", *inputs)
    if inputs[0] == inputs[1] and list(inputs[0]) != list(inputs[1]):
        yield f"inputs: {', '.join(inputs[0])} -> {', '.join(inputs[1])}"
    indices = [{i.name: str(i.type) for i in g.indices} for g in (a, b)]
    yield from _mapping("index", *indices)
    yield from _mapping("extent", _extents(a), _extents(b))
    yield from _nodes(a, b)
    returns = [", ".join(f"{r.value}: {r.type}" for r in g.returns) for g in (a, b)]
    yield from _mapping("return", {"": returns[0]}, {"": returns[1]})


def _extents(graph: KernelGraph) -> dict[str, object]:
    return {n: "?" if e is None else e for n, e in graph.extents}


def _mapping(what: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*a, *b]):
        label = f"{what} {name}".rstrip()
        if name not in b:
            yield f"- {label}: {a[name]}"
        elif name not in a:
            yield f"+ {label}: {b[name]}"
        elif a[name] != b[name]:
            yield f"{label}: {a[name]} -> {b[name]}"


def _nodes(a: KernelGraph, b: KernelGraph) -> Iterator[str]:
    texts_a, texts_b = _node_texts(a), _node_texts(b)
    keys_a = [_key(n, b) for n in a.nodes]
    keys_b = [_key(n, a) for n in b.nodes]
    matcher = SequenceMatcher(None, keys_a, keys_b, autojunk=False)
    for tag, start_a, end_a, start_b, end_b in matcher.get_opcodes():
        if tag == "equal":
            for i, j in zip(range(start_a, end_a), range(start_b, end_b), strict=True):
                yield from _node(a.nodes[i], b.nodes[j], texts_a[i], texts_b[j])
            continue
        yield from (f"- {line}" for t in texts_a[start_a:end_a] for line in t)
        yield from (f"+ {line}" for t in texts_b[start_b:end_b] for line in t)


def _key(node: KernelNode, other: KernelGraph) -> str:
    """By what a node is found in the other graph: a result that both have."""
    if isinstance(node, Apply):
        return node.result
    shared = [r for block in other.blocks for r in block.results if r in node.results]
    return min(shared or node.results, default="")


def _node_texts(graph: KernelGraph) -> list[list[str]]:
    """The lines of each node, as printed: head, body and end of a block."""
    heights = [
        len(n.nodes) + 2 if isinstance(n, BlockGraph) else 1 for n in graph.nodes
    ]
    lines = str(graph).splitlines()[:-2]
    at = len(lines) - sum(heights)
    texts: list[list[str]] = []
    for height in heights:
        texts.append([line.removeprefix(_INDENT) for line in lines[at : at + height]])
        at += height
    return texts


def _node(
    a: KernelNode, b: KernelNode, text_a: Sequence[str], text_b: Sequence[str]
) -> Iterator[str]:
    if not (isinstance(a, BlockGraph) and isinstance(b, BlockGraph)):
        yield from _lines(text_a, text_b)
        return
    grid_a, grid_b = ({s.dim: s.tile for s in g.grid} for g in (a, b))
    found = [
        *_mapping("grid tile of", grid_a, grid_b),
        *_mapping("loop", {"": _loop(a.loop)}, {"": _loop(b.loop)}),
        *_mapping("schedule", asdict(a.schedule), asdict(b.schedule)),
        *_lines(text_a[1:-1], text_b[1:-1]),
    ]
    axes_a, axes_b = (
        ", ".join(" & ".join(s.dim for s in axis) for axis in g.axes) for g in (a, b)
    )
    if grid_a == grid_b and axes_a != axes_b:
        found.append(f"grid order: {axes_a} -> {axes_b}")
    if found:
        yield f"block of {', '.join(b.results)}:"
        yield from (_INDENT + line.removeprefix(_INDENT) for line in found)


def _loop(split: Split | None) -> str:
    return "none" if split is None else f"{split.dim} / {split.tile}"


def _lines(a: Sequence[str], b: Sequence[str]) -> Iterator[str]:
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    for tag, start_a, end_a, start_b, end_b in matcher.get_opcodes():
        if tag != "equal":
            yield from (f"- {line.strip()}" for line in a[start_a:end_a])
            yield from (f"+ {line.strip()}" for line in b[start_b:end_b])
