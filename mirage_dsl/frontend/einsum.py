"""`einsum`: products summed over labelled axes, as matrix products."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from mirage_dsl.core.errors import ShapeError, UnsupportedError, user_location
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend import views as v
from mirage_dsl.frontend.operands import public

_ELLIPSIS = "..."


@public
def einsum(equation: Any, *operands: Any) -> Any:
    """Products summed over labelled axes, from left to right.

    Ellipses and equations without `->` mean what they do for NumPy and PyTorch; a label
    may not stand twice in one operand.

    Raises:
        ShapeError: The equation does not fit the operands.
        UnsupportedError: A label stands twice in one operand.
    """
    given: list[Any] = list(shapes.flat_arguments(operands))
    terms, output = _labels(str(equation), [x.ndim for x in given])
    for term in (*terms, output):
        if len(set(term)) != len(term):
            raise UnsupportedError(
                f"einsum({equation!r}): a label stands twice in one operand or in the "
                "result; diagonals are not possible",
                user_location(),
            )
    unknown = set(output).difference(*terms)
    if unknown:
        raise ShapeError(
            f"einsum({equation!r}): no operand has the label "
            f"{', '.join(sorted(unknown))} of the result",
            user_location(),
        )
    term, x = terms[0], given[0]
    for at in range(1, len(terms)):
        wanted = set(output).union(*terms[at + 1 :])
        both = dict.fromkeys(term + terms[at])
        last = at == len(terms) - 1
        kept = output if last else "".join(c for c in both if c in wanted)
        x, term = _pair(term, terms[at], kept, x, given[at]), kept
    if not terms[1:]:
        return _single(term, output, x)
    found = x if term == output else _single(term, output, x)
    return found.with_unknown_strides()


def _labels(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The labels of each operand and of the result, one for each axis."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ShapeError(
            f"einsum({equation!r}) names {len(terms)} operands, found {len(ranks)}",
            user_location(),
        )
    spare = [c for c in string.ascii_letters if c not in equation]
    hidden = [
        rank - len(term.replace(_ELLIPSIS, "")) if _ELLIPSIS in term else 0
        for term, rank in zip(terms, ranks, strict=True)
    ]
    around = "".join(spare[: max(0, *hidden)])
    expanded = [
        term.replace(_ELLIPSIS, around[len(around) - max(count, 0) :])
        for term, count in zip(terms, hidden, strict=True)
    ]
    for term, rank, text in zip(expanded, ranks, terms, strict=True):
        if len(term) != rank or (not term.isalpha() and rank):
            raise ShapeError(
                f"einsum({equation!r}): {text!r} has {len(term)} labels, but the "
                f"operand has {rank} axes",
                user_location(),
            )
    if arrow:
        return expanded, output.replace(_ELLIPSIS, around)
    every = "".join(expanded)
    once = sorted(c for c in set(every) - set(around) if every.count(c) == 1)
    return expanded, around + "".join(once)


def _single(term: str, output: str, x: Any) -> Any:
    gone = tuple(i for i, c in enumerate(term) if c not in output)
    x = f.sum(x, gone) if gone else x
    left = [c for c in term if c in output]
    return v.permute(x, [left.index(c) for c in output])


def _pair(a: str, b: str, out: str, x: Any, y: Any) -> Any:
    """One matrix product: batch, own and contracted labels side by side."""
    batch = [c for c in out if c in a and c in b]
    own_a, own_b = ([c for c in out if c in t and c not in batch] for t in (a, b))
    both = [c for c in a if c in b and c not in out]
    x = _arranged(x, a, batch, own_a, both)
    y = _arranged(y, b, batch, both, own_b)
    order = [*batch, *own_a, *own_b]
    result = f.matmul(x[0], y[0])
    shape = [*x[1][: len(batch)], *x[1][len(batch) :][: len(own_a)]]
    shape += y[1][len(batch) + len(both) :]
    return v.permute(v.reshape(result, shape), [order.index(c) for c in out])


def _arranged(
    x: Any, labels: str, batch: list[str], first: list[str], second: list[str]
) -> tuple[Any, list[Any]]:
    """The operand as (batch..., first, second), and the extents of all its labels."""
    kept = [*batch, *first, *second]
    gone = tuple(i for i, c in enumerate(labels) if c not in kept)
    x = f.sum(x, gone) if gone else x
    left = [c for c in labels if c in kept]
    x = v.permute(x, [left.index(c) for c in kept])
    sizes = list(x.shape)
    start, middle = len(batch), len(batch) + len(first)
    if not first:
        x = v.expand_dims(x, start)
        middle += 1
    elif len(first) > 1:
        x = v.flatten(x, start, middle - 1)
        middle = start + 1
    if not second:
        return v.expand_dims(x, middle), sizes
    return (v.flatten(x, middle, -1) if len(second) > 1 else x), sizes
