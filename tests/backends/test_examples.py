"""The μGraphs of `examples/` in the interpreter, at sizes of a few ragged tiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.text.parser import parse
from tests.backends.running import check, random_inputs

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.mu"))


def shrunk(graph: KernelGraph) -> KernelGraph:
    """Every split dim just longer than its tiles."""
    sizes: dict[str, int] = {}
    for block in graph.blocks:
        splits = [*block.grid, *([block.loop] if block.loop else [])]
        for split in splits:
            wanted = split.tile + max(1, split.tile // 4)
            sizes[split.dim] = max(sizes.get(split.dim, 0), wanted)
    known = {n: e for n, e in graph.extents if e is not None}
    small = {n: min(s, known[n]) for n, s in sizes.items() if n in known}
    resized = graph.with_extents(small)
    return resized.with_extents(derived_extents(resized, resized.extent_of))


@pytest.mark.sample(6)
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_example(file: Path) -> None:
    graph = shrunk(parse(file.read_text(encoding="utf-8"), file.name))
    inputs = [t * 0.25 for t in random_inputs(graph)]
    check(graph, inputs, tolerance=2e-2)
