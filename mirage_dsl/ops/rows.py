"""Makers of rows: what the rows of the operator table have in common."""

# Facets are lambdas whose first argument is any algebra; the laws in `tests/ops` hold
# them, types cannot.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mirage_dsl.ops.definition import Array, Kind, Operator, Term

EXACT = "exact"
ORACLE = "random oracle: equal operands give equal values, nothing else is assumed"
ORDER = "a fixed random order per trial: axioms of a total order, no more"

ROWS: dict[str, Operator] = {}
"""The rows entered so far, by name."""


def row(operator: Operator) -> Operator:
    """Enter a row."""
    assert operator.name not in ROWS, operator.name
    ROWS[operator.name] = operator
    return operator


def unary(
    name: str,
    numpy: Callable[[Array], Array],
    triton: str,
    *,
    torch: str,
    field: Callable[..., Any] | None = None,
    flops: float = 1.0,
    **facets: Any,
) -> Operator:
    """A row of one operand; without `field` the residue semantics is an oracle."""
    return row(
        Operator(
            name=name,
            kind=Kind.ELEMENTWISE,
            arity=1,
            numpy=numpy,
            field=field or (lambda f, x: f.oracle(name, x)),
            field_note=EXACT if field else ORACLE,
            term=Term.FUNCTION,
            triton=triton,
            torch=torch,
            flops=flops,
            **facets,
        )
    )


def binary(
    name: str,
    numpy: Callable[[Array, Array], Array],
    triton: str,
    *,
    torch: str,
    field: Callable[..., Any],
    term: Term = Term.FUNCTION,
    field_note: str = EXACT,
    flops: float = 1.0,
    **facets: Any,
) -> Operator:
    """A row of two operands."""
    return row(
        Operator(
            name=name,
            kind=Kind.ELEMENTWISE,
            arity=2,
            numpy=numpy,
            field=field,
            field_note=field_note,
            term=term,
            triton=triton,
            torch=torch,
            flops=flops,
            **facets,
        )
    )


def comparison(name: str, numpy: Callable[[Array, Array], Array], sign: str) -> None:
    """A row that is 1 where the comparison holds and 0 elsewhere."""
    binary(
        name,
        lambda a, b: np.asarray(numpy(a, b), dtype=np.result_type(a, b)),
        f"({{0}} {sign} {{1}}).to(tl.float32)",
        torch=f"({{0}} {sign} {{1}}).to({{dtype}})",
        field=lambda f, a, b: f.indicator(name, a, b),
        field_note=ORACLE,
        sign=sign,
    )
