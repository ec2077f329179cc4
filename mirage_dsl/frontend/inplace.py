"""Code that changes tensors in place: `x += y`, `x.exp_()`, `x[i] = y`, `out=`.

It means what it means in PyTorch: all views of a tensor see the change, its shape and
dtype stay, and what PyTorch refuses is refused.  What would change an argument of the
function is refused too: a program has results only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, cast

import numpy as np

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    TraceError,
)
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function, leaves_of
from mirage_dsl.frontend.constructors import of_arrays
from mirage_dsl.frontend.elementary import ELEMENTARY, PYTORCH_ONLY
from mirage_dsl.frontend.functions import (
    as_operand,
    as_tensor,
    formulas,
    is_condition,
    refuse_overflow,
    stored_number,
)
from mirage_dsl.frontend.memory import views_of_index
from mirage_dsl.frontend.namespace import of_bits
from mirage_dsl.frontend.places import Selected, assign_beside, assign_rows
from mirage_dsl.frontend.program import Handle, shape_of, shape_text
from mirage_dsl.frontend.tensor import Tensor, at_integers, call

_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "matmul": "@",
    "div": "/",
    "pow": "**",
    "remainder": "%",
    "floor_divide": "//",
    "shift_left": "<<",
    "shift_right": ">>",
}
_ELEMENTWISE_NAMES = (
    "abs absolute add addcdiv addcmul celu clamp clamp_max clamp_min clip div divide "
    "elu eq equal erf exp exp2 ge greater greater_equal gt hardtanh le leaky_relu lerp "
    "less less_equal log logical_and logical_not logical_or logical_xor lt masked_fill "
    "maximum minimum mul multiply ne neg negative not_equal pow power reciprocal relu "
    "rsqrt selu sigmoid sqrt square sub subtract tanh threshold true_divide where "
    "bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift "
    "bitwise_xor conj_physical digamma erfc erfinv gcd i0 igamma igammac lcm lgamma "
    "mvlgamma polygamma"
)
ELEMENTWISE = frozenset(
    {*_ELEMENTWISE_NAMES.split(), *ELEMENTARY, *PYTORCH_ONLY, "tril", "triu"}
)
"""Functions that read each element of their result's memory before they write it."""
_PLACING = frozenset(
    {"index_add", "index_copy", "index_fill", "index_put", "index_reduce"}
    | {"masked_scatter", "put", "scatter", "scatter_add", "scatter_reduce"}
)
_OTHERS = (
    frozenset({"addbmm", "addmm", "addmv", "addr", "baddbmm", "cumprod", "cumsum"})
    | {"dropout", "fill_diagonal", "renorm"}
    | _PLACING
)
_NO_METHOD_NAMES = (
    "around celu dropout elu equal fmax fmin hardtanh leaky_relu logaddexp logaddexp2 "
    "maximum minimum positive power rint selu special_expit special_xlog1py threshold "
    "where"
)
_NO_METHODS = frozenset(_NO_METHOD_NAMES.split())
"""Functions of which PyTorch has no method that changes its tensor."""
_REARRANGING = {
    "detach_": "detach",
    "squeeze_": "squeeze",
    "swapaxes_": "swapaxes",
    "swapdims_": "swapaxes",
    "t_": "t",
    "transpose_": "transpose",
    "unsqueeze_": "unsqueeze",
}
"""Methods that change what the tensor object stands for, and no memory."""


def augmented(name: str, target: Tensor, other: Any) -> Tensor:
    """The target after `target += other`, or another operator's.

    Of NumPy's numbers that is another number, and a product of matrices is in place of
    NumPy's arrays alone.
    """
    if name in ELEMENTARY:
        found = ELEMENTARY[name](target, other)
    else:
        computed = call if name in _SIGNS else of_bits
        found = computed(name, target, other)
    own = name == "matmul" and target.recorder.origin.library != "numpy"
    if own or target.is_number:
        return found
    what = f"{_SIGNS.get(name, name)}="
    refuse_floats(what, target, found)
    return write(what, target, found, (other,))


def method_in_place(name: str) -> Function | None:
    """The method of PyTorch's tensors called `name`, which ends with `_`, if known."""
    if name in _REARRANGING:
        return _rearranging(name)
    if name[:-1] in _NO_METHODS:
        return None
    return function_in_place(name)


def function_in_place(name: str) -> Function | None:
    """The function of PyTorch that changes its first argument, if known."""
    from mirage_dsl.frontend.interop import torch_method

    whole = _WHOLE.get(name)
    if whole is not None:
        return whole
    base = name[:-1]
    computed = torch_method(base)
    if computed is None or base not in ELEMENTWISE | _OTHERS:
        return None

    def changing(target: Any, *args: Any, **kwargs: Any) -> Tensor:
        target = as_tensor(name, target)
        found = computed(target, *args, **kwargs)
        refuse_floats(name, target, found)
        return write(name, target, found, (args, kwargs), fresh=base not in ELEMENTWISE)

    changing.__name__ = name
    return changing


def _rearranging(name: str) -> Function:
    def changing(target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return stand_for(
            name, target, getattr(target, _REARRANGING[name])(*args, **kwargs)
        )

    return changing


def stand_for(what: str, target: Tensor, other: Any) -> Tensor:
    """The target, which from now on is what another tensor is.

    Raises:
        TraceError: The target is an argument, or the other no tensor.
    """
    other = as_tensor(what, other)
    if other.memory is target.memory and other.path == target.path:
        return target
    if target.memory.argument and not target.path:
        _refuse_argument(what)
    return target.become(other)


def _copy(target: Any, source: Any, *_: Any, **__: Any) -> Tensor:
    target = as_tensor("copy_", target)
    return write("copy_", target, as_tensor("copy_", source), (source,))


def _fill(target: Any, value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.ndim:
        raise ShapeError.here(
            f"fill_ with {shape_text(value.handle)}; expected a number, or a tensor "
            "without axes; copy_ takes others"
        )
    target = as_tensor("fill_", target)
    refuse_overflow("fill_", target, value)
    return write("fill_", target, value, (value,))


_WHOLE: Mapping[str, Function] = {
    "copy_": _copy,
    "fill_": _fill,
    **formulas(zero_=lambda target: _fill(target, 0)),
}
"""Those that do not read what they change."""


def into(what: str, out: Any, found: Any, operands: object) -> Any:
    """The tensor `out=`, or the tuple of several, after a result was written to it.

    Raises:
        TraceError: It is no traced tensor.
        ShapeError: It has another shape.
    """
    outs, parts = (
        cast("tuple[Any, ...]", x) if isinstance(x, tuple) else () for x in (out, found)
    )
    if outs and len(outs) == len(parts):
        pairs = zip(outs, parts, strict=True)
        written = tuple(into(what, one, part, operands) for one, part in pairs)
        return written if type(parts) is tuple else type(parts)(written)
    if not isinstance(out, Tensor) or not isinstance(found, Tensor):
        raise TraceError.here(
            f"{what} with out={type(out).__name__}; expected one tensor that the "
            "function computed, for one result"
        )
    have, want = out.handle.shape, found.handle.shape
    if have != want:
        raise ShapeError.here(
            f"{what}: out= has the shape {shape_of(have)}, the result has "
            f"{shape_of(want)}; they must be equal"
        )
    refuse_floats(what, out, found)
    name = what.rpartition(".")[2]
    return write(what, out, found, operands, fresh=name not in ELEMENTWISE)


def write(
    what: str,
    target: Tensor,
    value: Any,
    operands: object,
    *,
    fresh: bool = False,
    like: Any = None,
) -> Tensor:
    """The target, after a value was written to it.

    Args:
        what: The name of what writes, for messages.
        target: The tensor that changes, with all views of its memory.
        value: A tensor that broadcasts to it, or a number.
        operands: What the value was computed from, in any containers.
        fresh: Whether no operand may be in the target's memory, not even the target.
        like: What is written to some elements, where the value has the others too.

    Raises:
        TraceError: The target is an argument, is expanded, or shares part of its memory
            with an operand.
        ShapeError: The value has another shape.
        DTypeError: The target holds conditions, and the value none.
    """
    _refuse_unwritable(what, target)
    for operand in leaves_of(operands):
        if isinstance(operand, Tensor):
            _refuse_overlap(what, target, operand, fresh=fresh)
    if value is target:
        return target
    _refuse_numbers(what, target, value if like is None else like)
    new = as_operand(stored_number(what, target.handle.value.dtype, value))
    if not isinstance(new, Handle):
        new = target.recorder.all_over(target.handle, new)
    target.hold(target.recorder.assigned(target.handle, new))
    return target


def _refuse_unwritable(what: str, target: Tensor) -> None:
    if target.is_number:
        raise TraceError.here(
            f"{what} changes a number, as NumPy's reductions and elements are: it "
            "cannot be changed; compute another one, or copy() it from an array"
        )
    if any(memory.argument for memory in target.memory.linked()):
        _refuse_argument(what)
    region = target.region
    if region is not None and region.repeats:
        raise TraceError.here(
            f"{what} changes an expanded tensor, whose elements stand at several "
            "indices; clone() it first"
        )


def _refuse_argument(what: str) -> NoReturn:
    raise TraceError.here(
        f"{what} changes an argument of the function, or what may be a view of one: "
        "kernels change no arguments; clone() it first, or compute a new tensor, and "
        "return that; a call with out= stores it where the argument is; of a module "
        "that keeps statistics in training, as batch norm does, use it after eval()"
    )


def _refuse_overlap(what: str, target: Tensor, operand: Tensor, *, fresh: bool) -> None:
    """Refuse to read what is being written, unless that is element by element.

    NumPy reads all before it writes.
    """
    numpy = target.recorder.origin.library == "numpy"
    if numpy or operand.memory is not target.memory:
        return
    mine, other = target.region, operand.region
    same = operand.path == target.path or (mine is not None and mine == other)
    if same and not fresh:
        return
    if mine is None or other is None or mine.touches(other):
        raise TraceError.here(
            f"{what} reads a tensor that shares part of its memory with the one that "
            "it changes; clone() it first"
        )


def _refuse_numbers(what: str, target: Tensor, value: Any) -> None:
    """Refuse to write other numbers than 0 and 1 where only these can be."""
    if is_condition(target) and isinstance(value, Tensor) and not is_condition(value):
        raise DTypeError.here(
            f"{what} writes {value.handle.value.dtype} to conditions, which stay "
            "conditions; compute a new tensor"
        )


def refuse_floats(what: str, target: Tensor, found: Any) -> None:
    """Refuse what computes floats and stores them in integers: a copy converts."""
    integers = target.handle.value.dtype.is_integer
    if integers and isinstance(found, Tensor) and found.handle.value.dtype.is_float:
        raise DTypeError.here(
            f"{what} computes {found.handle.value.dtype}, which "
            f"{target.handle.value.dtype} does not hold; convert one of the two"
        )


def assign(x: Tensor, index: Any, value: Any) -> None:
    """Do `x[index] = value`."""
    # Imported when it is needed: it is made of functions of tensors.
    from mirage_dsl.frontend.indices import without_lists

    if x.recorder.origin.library == "numpy":
        numbers = isinstance(value, list)
        value = of_arrays(np.asarray(cast(Any, value)) if numbers else value)
        if _assign_backwards(x, index, value):
            return
    if not _is_choice(x, index, value):
        index, _ = without_lists(x, index)
    value = stored_number("an assignment", x.handle.value.dtype, value)
    if assign_rows(x, index, value) or assign_beside(x, index, value):
        return
    chosen = at_integers(x, index)
    if chosen is not None:
        # Imported when it is needed: it is made of functions of tensors.
        from mirage_dsl.frontend.places import placed_at

        plain, tensors = chosen
        target = x[plain]
        write("an assignment", target, placed_at(target, tensors, value), (value,))
    elif isinstance(index, Tensor):
        Selected.of(x, index).assign_to(x, value)
    else:
        _assign_view(x, index, value)


def _assign_view(x: Tensor, index: Any, value: Any) -> None:
    """Do `x[index] = value` of slices, integers, None and the like."""
    target = x.viewed(*views_of_index(x.handle, index, x.recorder.dims))
    if isinstance(value, Selected):
        value.refuse()
    if isinstance(value, Tensor):
        if value.memory is target.memory and value.path == target.path:
            # The end of `x[index] += ...`, which has changed it already.
            return
        while value.ndim > target.ndim and value.handle.shape[0] == 1:
            value = f.squeeze(value, 0)
    write("an assignment", target, value, (value,))


def _assign_backwards(x: Tensor, index: Any, value: Any) -> bool:
    """Do `x[::-1] = value`, of slices of NumPy's with negative steps, by turning x."""
    # Imported when it is needed: it is made of functions of tensors.
    from mirage_dsl.frontend.indices import without_reversals

    turned, plain = without_reversals(x, index)
    if turned is x:
        return False
    turned = turned.clone()
    assign(turned, plain, value)
    back, _ = without_reversals(turned, index)
    write("an assignment", x, back, (value,))
    return True


def _is_choice(x: Tensor, index: Any, value: Any) -> bool:
    """Whether `x[index] = value` takes one value for all elements under a mask."""
    if not is_condition(index):
        return False
    return not isinstance(value, Tensor) or value.ndim <= x.ndim - index.ndim
