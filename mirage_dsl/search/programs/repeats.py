"""Graphs that are the same but for their names, as the layers of a model are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from mirage_dsl.ir.canonical import Renaming, canonical_names
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Load
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.ir.walk import results_of


@dataclass(frozen=True)
class Names:
    """The names of a program, in an order that does not depend on them.

    Nor on the order of operators that do not need each other.

    Attributes:
        values: Inputs, then results of operators.
        dims: All that the values have, as they appear.
    """

    values: tuple[str, ...]
    dims: tuple[str, ...]


def names_of(program: KernelGraph) -> Names:
    """The names of a program of operators only."""
    known = canonical_names(program)
    applies = [n.result for n in program.applies]
    ordered = sorted(applies, key=lambda name: known.values[name])
    inputs = (i.name for i in program.given)
    return Names((*inputs, *ordered), tuple(known.dims))


def normal_text(program: KernelGraph) -> str:
    """The same text for programs that differ only in names."""
    names = names_of(program)
    used = set(names.dims)
    bare = replace(
        program,
        name="segment",
        extents=tuple((n, e) for n, e in program.extents if n in used),
    )
    renaming = Renaming(
        {name: f"d{i}" for i, name in enumerate(names.dims)},
        {name: f"v{i}" for i, name in enumerate(names.values)},
    )
    return to_text(renaming.graph(bare))


def renamed(graph: KernelGraph, own: Names, other: Names) -> KernelGraph:
    """A μGraph of one program, as one of another that differs only in names."""
    if own == other:
        return graph
    values = dict(zip(own.values, other.values, strict=True))
    dims = dict(zip(own.dims, other.dims, strict=True))
    _keep_apart(values, own.values, _tensors(graph))
    _keep_apart(dims, own.dims, [n for n, _ in graph.extents])
    taken = set(values.values())
    inner = tuple(_inner_names(block, values, taken) for block in graph.blocks)
    return Renaming(dims, values, inner).graph(graph)


def _tensors(graph: KernelGraph) -> list[str]:
    """The values of a kernel graph that kernels make."""
    return [name for node in graph.nodes for name in results_of(node)]


def _keep_apart(
    names: dict[str, str], program: Sequence[str], used: Iterable[str]
) -> None:
    """Add new names for what only the μGraph has, where the other program has these."""
    taken = set(names.values())
    for name in used:
        if name in program or name.endswith("#"):
            continue  # `k#` follows `k`.
        new = name
        while new in taken:
            new += "_"
        taken.add(new)
        names[name] = new


def _inner_names(
    block: BlockGraph, values: dict[str, str], taken: AbstractSet[str]
) -> dict[str, str]:
    """Loads are called after what they load; nothing is called like a tensor."""
    wanted: dict[str, str] = {}
    for node in block.nodes:
        if isinstance(node, Load) and node.result.startswith(f"{node.source}_t"):
            rest = node.result.removeprefix(node.source)
            wanted[node.result] = values.get(node.source, node.source) + rest
    names = [n.result for n in block.nodes if n.result not in block.results]
    used = set(taken)
    found: dict[str, str] = {}
    for name in names:
        new = wanted.get(name, name)
        while new in used:
            new += "_"
        used.add(new)
        found[name] = new
    return found


def apart(
    graph: KernelGraph, program: AbstractSet[str], taken: AbstractSet[str]
) -> KernelGraph:
    """A part of a program, its own tensors called unlike those of other parts.

    Args:
        graph: The part.
        program: Tensors of the program: these keep their names.
        taken: Names that other parts use.
    """
    made = _tensors(graph)
    used = {*taken, *program, *made}
    names: dict[str, str] = {}
    for name in made:
        if name in taken and name not in program:
            stem, count = re.sub(r"_\d+$", "", name), 2
            while f"{stem}_{count}" in used:
                count += 1
            names[name] = f"{stem}_{count}"
            used.add(names[name])
    return Renaming(values=names).graph(graph) if names else graph
