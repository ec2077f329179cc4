"""Which traced tensors are conditions: 1 where something holds, else 0.

In PyTorch these are of a type of their own, which some functions treat differently.
"""

from __future__ import annotations

from mirage_dsl.frontend.steps import Number, Step, Value
from mirage_dsl.frontend.tensor import Tensor

COMPARISONS = frozenset({"less", "less_equal", "equal"})
KEEPING = frozenset(
    ("mul", "sub", "minimum", "maximum", "where", "rename", "slice", "concat", "insert")
)
"""Operators that make conditions of conditions, as `1 - a` and `a * b` do."""


def is_condition(x: object) -> bool:
    """Whether a tensor is a comparison, or made of comparisons only."""
    if not isinstance(x, Tensor):
        return False
    steps = {s.result: s for s in x.recorder.steps if isinstance(s, Step)}

    def holds(value: Value | Number) -> bool:
        if isinstance(value, Number):
            return value.value in (0, 1) and not value.powers
        step = steps.get(value)
        if step is None or step.op.name in COMPARISONS:
            return step is not None
        return step.op.name in KEEPING and all(map(holds, step.operands))

    return holds(x.handle.value)


__all__ = ["is_condition"]
