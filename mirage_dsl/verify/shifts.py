"""Maxima that only shift exponents, as a safe softmax that is written by hand has them.

    s = max x over(k)                      s = rowshift x over(k)
    e = exp(x - s)                   ->    e = exp(x - s)
    y = e / sum(e, over k)                 y = e / sum(e, over k)

The search takes shifts out and puts running maxima back; a maximum whose value matters
has to be computed as it is.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_dsl.core.errors import MirageError
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.walk import map_nodes, users
from mirage_dsl.ops.table import DIV, EXP, MAX, MAXIMUM, MUL, ROWSHIFT, SUB


def maxima_as_shifts(program: KernelGraph) -> KernelGraph:
    """The program, with shifts in the place of maxima that are nothing else.

    Args:
        program: A traced program of known extents.
    """
    found = {n.result for n in program.applies if n.op is MAX and _shifts(program, n)}
    if not found:
        return program
    # One verification is enough where all of them are shifts, as in a deep model.
    every = _with_shifts(program, found)
    if _agrees_with_itself(every):
        return every
    for maximum in sorted(found):
        shifted = _with_shifts(program, {maximum})
        if _agrees_with_itself(shifted):
            program = shifted
    return program


def _with_shifts(program: KernelGraph, maxima: set[str]) -> KernelGraph:
    return map_nodes(
        program,
        lambda n: (
            replace(n, op=ROWSHIFT)
            if isinstance(n, Apply) and n.result in maxima
            else n
        ),
    )


def _agrees_with_itself(program: KernelGraph) -> bool:
    """Whether no output depends on the values of the program's shifts.

    Both sides of a comparison draw them anew, so they agree only then.
    """
    # Imported with the first maximum: it compiles.
    from mirage_dsl.verify.verifier import verify

    try:
        return verify(program, program, chains=1, stability=False).equivalent
    except MirageError:
        return False


def _shifts(program: KernelGraph, node: Apply) -> bool:
    """Whether a maximum is only subtracted, from what ends in exponents alone.

    A larger maximum may be subtracted in its place.
    """
    read = users(program.applies)[node.result]
    return bool(read) and all(
        (n.op is MAXIMUM and _shifts(program, n))
        or (
            n.op is SUB
            and n.operands[1] == node.result
            and n.operands[0] != node.result
            and _in_exponents(program, n.result)
        )
        for n in read
    )


def _in_exponents(program: KernelGraph, value: str) -> bool:
    """Whether a value is only exponentiated, as it is, scaled, or shifted again."""
    if any(r.value == value for r in program.returns):
        return False
    read = users(program.applies)[value]
    return bool(read) and all(
        n.op in (EXP, ROWSHIFT)
        or (
            (n.op is SUB and n.operands[1] != value)
            and _in_exponents(program, n.result)
        )
        or (n.op is MUL and _in_exponents(program, n.result))
        or (
            (n.op is DIV and n.operands[1] != value)
            and _in_exponents(program, n.result)
        )
        for n in read
    )
