"""How far one walks to understand: `python -m benchmarks.walks [--pairs N]`.

A reader who follows a call goes from function to function.  Counted are the modules of
the package that are visited, and the moves: calls of a function that stands in another
module than the one that called it, also where code of others stood between.  A
generator that goes on is no new call.  Code that is generated, as dataclasses do, is
nobody's to read and does not count.  Everything has run once before, so nothing is
imported and what is kept is there.

- `tracing`: from a decorated function to its program;
- `emission`: from a μGraph to its Triton source;
- `an operator`: one row through all packages: traced, written and read as text,
  checked, put into a block, evaluated, verified, estimated, lowered, printed, run.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import mirage_dsl as mirage
from mirage_dsl.backends.base import DEFAULT_BACKEND, backend_named
from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.core.types import f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.tile.build import programs

PACKAGE = "mirage_dsl"
GENERATED = "<string>"
"""The file name of code that `dataclasses` and others execute."""
EXAMPLE = Path(__file__).parents[1] / "examples" / "rms_linear.mu"


@dataclass(frozen=True)
class Walk:
    """What was visited.

    Attributes:
        modules: Modules of the package, by name.
        moves: How often it went from one module to another, by the two.
    """

    modules: frozenset[str]
    moves: Mapping[tuple[str, str], int]

    def __str__(self) -> str:
        return f"{len(self.modules)} modules, {sum(self.moves.values())} moves"


def walk(work: Callable[[], object]) -> Walk:
    """What some work visits when it is done for the second time."""
    modules, moves = set[str](), Counter[tuple[str, str]]()
    generators = set[FrameType]()

    def look(frame: FrameType, event: str, _: Any) -> None:
        here = _module(frame)
        if event != "call" or here is None or frame in generators:
            return
        if frame.f_code.co_flags & CO_GENERATOR:
            generators.add(frame)
        modules.add(here)
        before = frame.f_back
        while before is not None and _module(before) is None:
            before = before.f_back
        there = None if before is None else _module(before)
        if there not in (None, here):
            moves[str(there), here] += 1

    work()
    kept = sys.getprofile()
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(kept)
    return Walk(frozenset(modules), moves)


def _module(frame: FrameType) -> str | None:
    """The module of the package that a frame's code stands in, if it stands in one."""
    name = str(frame.f_globals.get("__name__", ""))
    own = name == PACKAGE or name.startswith(f"{PACKAGE}.")
    return name if own and frame.f_code.co_filename != GENERATED else None


# -- Walks -----------------------------------------------------------------------------


def trace() -> object:
    """From a decorated function to its program."""

    def rms_linear(x: Any, w: Any) -> Any:
        return mirage.rms_norm(x) @ w

    shapes = mirage.spec((16, 4096)), mirage.spec((4096, 6144))
    return mirage.kernel(rms_linear).trace(*shapes)


def emission() -> Callable[[], object]:
    """From a μGraph to its Triton source."""
    graph = mirage.parse(EXAMPLE.read_text("utf-8"))
    return lambda: emit(graph)


def operator() -> object:
    """One row through all packages but the search, which follows all rows at once."""
    spec = mirage.spec((8, 32), "float32")
    program = mirage.kernel(mirage.exp).trace(spec)
    g = KernelBuilder("exp", m=8, k=32)
    x = g.input("x", f32, "m, k")
    with g.block(grid={"m": 4}) as b:
        out = b.store(b.exp(b.load(x, "m/grid, k")), "m/grid, k")
    graph = mirage.parse(str(g.returns(out).build()))
    assert mirage.check(graph) == []
    canonical_hash(graph)
    mirage.evaluate(graph, np.ones((8, 32)))
    assert mirage.verify(graph, program).ok
    str(mirage.explain(graph, program))
    programs(graph)
    import torch

    backend = backend_named(DEFAULT_BACKEND)
    return backend.compile(graph, "cpu")(torch.ones(8, 32))


def walks() -> dict[str, Walk]:
    """All of them."""
    return {
        "tracing": walk(trace),
        "emission": walk(emission()),
        "an operator": walk(operator),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walks")
    parser.add_argument(
        "--pairs", type=int, default=0, help="of modules, those of most moves"
    )
    chosen = parser.parse_args()
    for name, found in walks().items():
        print(f"{name}: {found}")
        for (there, here), count in Counter(found.moves).most_common(chosen.pairs):
            print(f"  {count:5} {there} -> {here}")


if __name__ == "__main__":
    main()
