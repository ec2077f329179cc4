"""What of an AND-OR graph can be made, and is needed: compiled, on rows of e-nodes."""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.compiled import entry
from mirage_dsl.search.workspace import Ints

Bools = NDArray[np.bool_]


def needed(
    makes: Ints, kids: Ints, alive: Bools, roots: Ints, classes: int
) -> tuple[Bools, Bools]:
    """E-nodes whose kids can all be made and that the roots may use; classes made.

    Args:
        makes: The class that each e-node makes.
        kids: The classes that it needs, -1 for none.
        alive: The e-nodes that may be used.
        roots: The classes that are wanted, as far as they can be made.
        classes: How many classes there are.
    """
    made, wanted = np.zeros((2, classes + 1), np.bool_)
    # A kid that is not there is the class after the last one.
    made[-1] = wanted[-1] = True
    keep = np.zeros(len(makes), np.bool_)
    wanted[roots] = True
    _reach(makes, kids, alive, made, wanted, keep)
    return keep, made[:-1]


@entry
def _reach(makes, kids, alive, made, wanted, keep):
    """Mark what can be made, then from above what of it is needed.

    E-nodes mostly come after those that make their kids, so few rounds are needed.
    """
    changed = True
    while changed:
        changed = False
        for e in range(len(makes)):
            if not alive[e] or made[makes[e]]:
                continue
            if made[kids[e, 0]] and made[kids[e, 1]] and made[kids[e, 2]]:
                made[makes[e]] = changed = True
    changed = True
    while changed:
        changed = False
        e = len(makes)
        while e:
            e -= 1
            if not alive[e] or keep[e] or not wanted[makes[e]]:
                continue
            if made[kids[e, 0]] and made[kids[e, 1]] and made[kids[e, 2]]:
                keep[e] = changed = True
                for t in range(3):
                    wanted[kids[e, t]] = True
