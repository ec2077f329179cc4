"""Which reductions of a program only shift exponents."""

from __future__ import annotations

from dataclasses import replace

from mirage_dsl.errors import MirageError
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ops.table import MAX, ROWSHIFT
from mirage_dsl.verify.verifier import verify


def is_shift_only(program: KernelGraph, node: Apply) -> bool:
    """Whether no output depends on the value of `node`, a maximum of the program.

    The program in which it is a `rowshift` is compared with itself: both sides draw
    its value anew, so they agree only if it does not matter.
    """
    if node.op is not MAX:
        return node.op is ROWSHIFT
    shifted = replace(node, op=ROWSHIFT)
    nodes = tuple(shifted if n == node else n for n in program.nodes)
    probe = replace(program, nodes=nodes)
    try:
        return verify(probe, probe, chains=1, stability=False).equivalent
    except MirageError:
        return False
