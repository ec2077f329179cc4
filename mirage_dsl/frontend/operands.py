"""What functions on tensors take: tensors of one trace, and Python numbers."""

from __future__ import annotations

import numbers
from fractions import Fraction
from typing import Any

from mirage_dsl.errors import TraceError
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend.location import user_location
from mirage_dsl.frontend.recorder import Recorder
from mirage_dsl.frontend.steps import Handle, Number
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ops.definition import Operator
from mirage_dsl.types import promote, scalar


def as_operand(value: object) -> Handle | Number:
    """A tensor or a Python number as an operand.

    Raises:
        TraceError: It is neither; arrays of other libraries have to be arguments.
    """
    if isinstance(value, Tensor):
        return value.handle
    if isinstance(value, shapes.Size | shapes.SymbolicSize):
        return Number(Fraction(1), tuple((a, 1) for a in value.atoms))
    if isinstance(value, bool | int | float | Fraction):
        return _number(value)
    if isinstance(value, numbers.Real):
        return _number(float(value))
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    if module in ("numpy", "torch"):
        raise TraceError(
            f"a {module} {kind.__name__} that is no argument of the function; pass it "
            "as an argument, so that its values are not frozen into the program",
            user_location(),
        )
    raise TraceError(
        f"found {kind.__name__} where a tensor or a number was expected",
        user_location(),
    )


def _number(value: float | Fraction) -> Number:
    if value != value:
        raise TraceError(
            "the constant is NaN, which no program can compute with", user_location()
        )
    return Number(scalar(value).value)


def apply(op: Operator, *operands: Any) -> Tensor:
    """An elementwise operator on tensors and numbers, at least one of them a tensor."""
    recorder = recorder_of(op.name, operands)
    handles = _promoted(recorder, [as_operand(o) for o in operands])
    return Tensor(recorder, recorder.elementwise(op, handles))


def _promoted(
    recorder: Recorder, operands: list[Handle | Number]
) -> list[Handle | Number]:
    """The operands, tensors without axes in the format of those that have some.

    As PyTorch promotes: a scale of one f32 number leaves an f16 tensor f16.
    """
    handles = [o for o in operands if isinstance(o, Handle)]
    ranked = [h.value.dtype for h in handles if h.axes]
    if not ranked or promote(*(h.value.dtype for h in handles)) == promote(*ranked):
        return operands
    dtype = promote(*ranked)
    return [
        recorder.cast(o, dtype) if isinstance(o, Handle) and not o.axes else o
        for o in operands
    ]


def as_tensor(what: str, x: Any) -> Tensor:
    """The operand, which must be a tensor.

    Raises:
        TraceError: It is none.
    """
    recorder_of(what, (x,))
    return x


def recorder_of(what: str, operands: tuple[Any, ...]) -> Recorder:
    """The trace that the operands belong to.

    Raises:
        TraceError: There is no tensor among them, or they belong to two traces.
    """
    found = {id(o.recorder): o.recorder for o in operands if isinstance(o, Tensor)}
    if len(found) > 1:
        raise TraceError(
            f"{what} of tensors of two different traces; a symbolic tensor must not be "
            "kept outside of the decorated function",
            user_location(),
        )
    if not found:
        raise TraceError(
            f"{what} needs a tensor, found "
            f"{', '.join(type(o).__name__ for o in operands) or 'nothing'}",
            user_location(),
        )
    return next(iter(found.values()))
