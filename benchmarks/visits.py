"""How many modules a call visits: `python -m benchmarks.visits [--list]`.

A measure of how far a reader has to go to follow a call: the modules of the package
whose functions are called, and the moves from one module to another.  Counted are
calls, and generators that go on, of what was done once before, so that nothing is
imported.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import mirage_dsl as mirage
from mirage_dsl.backends.triton.lowering.emit import emit
from tests.programs import mugraphs

PACKAGE = "mirage_dsl."


@dataclass(frozen=True)
class Visits:
    """What a call visits.

    Attributes:
        modules: Names of the modules.
        moves: How often one module called another, by their names.
    """

    modules: frozenset[str]
    moves: Counter[tuple[str, str]]

    def __str__(self) -> str:
        return f"{len(self.modules)} modules, {self.moves.total()} moves"


def visits_of(call: Callable[[], object]) -> Visits:
    """What a call visits, the second time that it is made."""
    call()
    modules, moves = set[str](), Counter[tuple[str, str]]()

    def note(frame: FrameType, event: str, _: object) -> None:
        here = _module(frame)
        if event == "call" and here is not None:
            modules.add(here)
            caller = _caller(frame)
            if caller is not None and caller != here:
                moves[caller, here] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Visits(frozenset(modules), moves)


def _module(frame: FrameType) -> str | None:
    name = str(frame.f_globals.get("__name__", ""))
    return name.removeprefix(PACKAGE) if name.startswith(PACKAGE) else None


def _caller(frame: FrameType) -> str | None:
    """The module of the package that a call comes from."""
    above = frame.f_back
    while above is not None and _module(above) is None:
        above = above.f_back
    return None if above is None else _module(above)


def normalized_product(x: Any, w: Any) -> Any:
    """An RMS norm and a product."""
    return mirage.rms_norm(x) @ w


def trace() -> object:
    """Trace a program, from the decorator on."""
    specs = mirage.spec((16, 1024)), mirage.spec((1024, 4096))
    return mirage.kernel(normalized_product).trace(*specs)


def lower() -> object:
    """Emit the Triton source of a fused kernel."""
    return emit(mugraphs.rmsnorm_linear(16, 1024, 4096))


CALLS = {"trace": trace, "lower": lower}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="the moves, most first")
    listed = parser.parse_args().list
    for name, call in CALLS.items():
        found = visits_of(call)
        print(f"{name}: {found}")
        for (caller, here), number in found.moves.most_common() if listed else ():
            print(f"  {number:4d} {caller} -> {here}")


if __name__ == "__main__":
    main()
