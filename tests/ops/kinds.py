"""Kinds of rows of the operator table, for tests that run over all of one."""

from __future__ import annotations

from mirage_dsl.ops.definition import Formats, Kind, Operator


def is_of_floats(op: Operator) -> bool:
    """Whether a row computes floats of floats, element by element."""
    single = op.kind is Kind.ELEMENTWISE and op.gives is None
    return single and op.formats is not Formats.INTEGERS
