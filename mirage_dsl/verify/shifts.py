"""Reductions that only shift exponents, as a safe softmax that is written by hand has.

    s = max x over(k)                      s = rowshift x over(k)
    e = exp(x - s)                   ->    e = exp(x - s)
    y = e / sum(e, over k)                 y = e / sum(e, over k)

The search takes shifts out and puts running maxima back; a reduction whose value
matters has to be computed as it is.  Which rows shift, and by what, the table says.
"""

from __future__ import annotations

from mirage_dsl.core.errors import MirageError
from mirage_dsl.ir.analysis.bounds import is_limited
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.walk import users
from mirage_dsl.ops.definition import Operator
from mirage_dsl.ops.table import ADD, DIV, EXP, LOG, MUL, SUB, shift_rows
from mirage_dsl.verify.independence import with_shifts


def reductions_as_shifts(program: KernelGraph) -> KernelGraph:
    """The program, with shifts in the place of reductions that are nothing else.

    Args:
        program: A traced program of known extents.
    """
    rows = {row.shift_of: row for row in shift_rows()}
    found = {
        node.result: rows[node.op]
        for node in program.applies
        if node.op in rows and _shifts(program, node, rows[node.op])
    }
    if not found:
        return program
    # One verification is enough where all of them are shifts, as in a deep model.
    every = with_shifts(program, found)
    if _agrees_with_itself(every):
        return every
    for name, row in sorted(found.items(), key=lambda item: item[0]):
        shifted = with_shifts(program, {name: row})
        if _agrees_with_itself(shifted):
            program = shifted
    return program


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


def _shifts(program: KernelGraph, node: Apply, row: Operator) -> bool:
    """Whether a reduction is only subtracted, from what ends in exponents alone.

    Or the other way round; and what joins it with something may be in its place.
    Behind a logarithm it may be added again.
    """
    read = users(program.applies)[node.result]
    back = any(n.op is LOG for n in program.applies)
    return bool(read) and all(
        (n.op is row.join and _shifts(program, n, row))
        or (back and n.op in (ADD, SUB))
        or (back and is_limited(n) and _shifts(program, n, row))
        or (
            n.op is SUB
            and n.operands[0] != n.operands[1]
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
        n.op is EXP
        or n.op.shift_of is not None
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
