"""What functions on tensors take: tensors of one trace, and Python numbers.

Operators of the table take numbers of one format, so what promotes, as in PyTorch or in
NumPy, is converted before, and the program shows where.  Between floats alone the type
rules of the program say what a mixture gives.

Called with arrays they are traced, and evaluated at once by the reference semantics.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from inspect import signature
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import numpy as np

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    TraceError,
    public_function,
    user_location,
)
from mirage_dsl.core.types import (
    DType,
    Scalar,
    boolean,
    dtype_named,
    f16,
    f32,
    f64,
    i8,
    i16,
    i64,
    promote,
    scalar,
    u8,
)
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend.arguments import (
    Origin,
    bind_arguments,
    is_array,
    is_torch,
    leaves_of,
    refuse_modes,
    to_numpy,
    to_torch,
    without_strides,
)
from mirage_dsl.frontend.dims import Handle, Operand, extents_of
from mirage_dsl.frontend.recorder import Recorder
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ir.evaluate import evaluate_numpy, numpy_dtype
from mirage_dsl.ops.definition import Formats, Operator, Truth
from mirage_dsl.ops.table import ABS, ADD, DIV, EQUAL, MAXIMUM, RELU, SUB, WHERE

if TYPE_CHECKING:
    from mirage_dsl.frontend.trace import Trace


_BEYOND = 2**1024
"""Numbers that no float holds."""


class NoTensor:
    """What stands in for a tensor that cannot be traced, and says so when used."""

    def refuse(self) -> NoReturn:
        """Refuse what needs the tensor.

        Raises:
            UnsupportedError: Always.
        """
        raise NotImplementedError


def as_operand(value: object) -> Operand:
    """A tensor or a Python number as an operand.

    Raises:
        TraceError: It is neither; arrays of other libraries have to be arguments.
    """
    if isinstance(value, Tensor):
        return value.handle
    if isinstance(value, NoTensor):
        value.refuse()
    if isinstance(value, shapes.Size | shapes.SymbolicSize):
        return extents_of(value.vars)
    if isinstance(value, bool | int | float | Fraction):
        return _number(value)
    if type(value) is np.bool_:
        return _number(bool(value))
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


def _number(value: float | Fraction) -> Scalar:
    if value != value:
        raise TraceError(
            "the constant is NaN, which no program can compute with", user_location()
        )
    found = scalar(value)
    if isinstance(found.value, Fraction) and abs(found.value) >= _BEYOND:
        raise TraceError(
            "the constant is a number beyond float64, expected one within its range; "
            "write float('inf') if it is meant as infinite",
            user_location(),
        )
    return found


def apply(op: Operator, *operands: Any) -> Tensor:
    """An elementwise operator on tensors and numbers, at least one of them a tensor."""
    recorder = recorder_of(op.name, operands)
    handles = [as_operand(o) for o in operands]
    if any(isinstance(h, Handle) and h.value.dtype.only_stores for h in handles):
        return _of_narrow(recorder, op, operands, handles)
    if any(isinstance(h, Handle) and h.value.dtype.is_integer for h in handles):
        return _of_integers(recorder, op, operands, handles)
    if recorder.origin.library == "numpy":
        handles = _promoted_by_numpy(recorder, op, operands, handles)
    else:
        handles = _promoted(recorder, handles)
    if op.truth is Truth.COMPARES:
        handles = _comparable(handles)
    elif _without_numbers(recorder, op, handles):
        return _of_truth(recorder, op, operands, handles)
    elif op.formats is Formats.INTEGERS:
        _refuse_floats(op)
    return Tensor.made(recorder, recorder.elementwise(op, handles), operands)


# -- Floats of 8 bits ------------------------------------------------------------------


def _of_narrow(
    recorder: Recorder,
    op: Operator,
    given: Sequence[Any],
    operands: list[Operand],
) -> Tensor:
    """What PyTorch does with them: whether they are equal, a choice, sizes.

    Raises:
        DTypeError: It is something else.
    """
    taken = operands[op.chooses :]
    formats = {o.value.dtype for o in taken if isinstance(o, Handle)}
    if op not in (ABS, EQUAL, WHERE) or len(formats) > 1:
        named = " and ".join(sorted(d.long_name for d in formats))
        raise DTypeError(
            f"{op.name} of {named}: PyTorch computes in no floats of 8 bits, and "
            "promotes none; cast first, as with .to(torch.float16)",
            user_location(),
        )
    wide = [
        recorder.cast(o, f32) if isinstance(o, Handle) and o in taken else o
        for o in operands
    ]
    if op is EQUAL:
        (own,) = formats
        wide = [_rounded(o, own) if isinstance(o, Scalar) else o for o in wide]
        return Tensor.made(recorder, recorder.elementwise(op, wide), given)
    if op is WHERE and isinstance(given[0], Tensor) and not is_condition(given[0]):
        wide = [complement(complement(given[0])).handle, *wide[1:]]
    found = recorder.elementwise(op, wide)
    return Tensor.made(recorder, recorder.cast(found, *formats), given)


# -- Integers --------------------------------------------------------------------------


def _of_integers(
    recorder: Recorder,
    op: Operator,
    given: Sequence[Any],
    operands: list[Operand],
) -> Tensor:
    """An operator in the format that PyTorch or NumPy computes in."""
    if op is SUB and _without_numbers(recorder, op, operands):
        _refuse_truth(op, "cannot be traced", "use ~, & and |")
    if op is RELU:
        given, operands = [*given, 0], [*operands, scalar(0)]
        return _of_integers(recorder, MAXIMUM, given, operands)
    if op.chooses and isinstance(given[0], Tensor) and not is_condition(given[0]):
        operands = [complement(complement(given[0])).handle, *operands[1:]]
    dtype = format_of(op, recorder.origin, given, operands)
    if op.formats is Formats.INTEGERS and dtype.is_float:
        _refuse_floats(op)
    if dtype.is_integer:
        check_constants(op, dtype, operands)
    elif op.truth is Truth.COMPARES:
        operands = [
            _rounded(o, dtype) if isinstance(o, Scalar) else o for o in operands
        ]
    converted = [
        recorder.cast(o, dtype)
        if isinstance(o, Handle) and not (op.chooses and at == 0)
        else o
        for at, o in enumerate(operands)
    ]
    found = recorder.elementwise(op, converted)
    if op.truth is not Truth.COMPARES and dtype.is_integer:
        # Of constants alone no operand says the format.
        found = recorder.cast(found, dtype)
    return Tensor.made(recorder, found, given)


def _refuse_floats(op: Operator) -> NoReturn:
    raise DTypeError(
        f"{op.name} of floats, which is possible of integers alone; convert first, as "
        "with .to(torch.int32) or .astype('int32')",
        user_location(),
    )


def _comparable(operands: list[Operand]) -> list[Operand]:
    """The operands, constants rounded to the format of the tensors beside them.

    So PyTorch and NumPy compare them.
    """
    dtype = promote(*(o.value.dtype for o in operands if isinstance(o, Handle)))
    if dtype is boolean:
        return operands
    return [_rounded(o, dtype) if isinstance(o, Scalar) else o for o in operands]


def _rounded(number: Scalar, dtype: DType) -> Scalar:
    value = number.value
    if number.extents or abs(value) > dtype.max:
        return number
    stored = np.asarray(float(value)).astype(numpy_dtype(dtype))
    return scalar(float(stored))


# -- Truth values ----------------------------------------------------------------------


def is_condition(x: object) -> bool:
    """Whether it is a tensor of truth values."""
    return isinstance(x, Tensor) and x.handle.value.dtype == boolean


def is_float(x: object) -> bool:
    """Whether it is a tensor of floats."""
    return isinstance(x, Tensor) and x.handle.value.dtype.is_float


def complement(x: Tensor) -> Tensor:
    """Truth values turned over; of numbers, where they are 0.

    One less the value would be the same, but no truth value to the search, which
    multiplies sums out.
    """
    narrow = x.handle.value.dtype.only_stores
    handle = x.recorder.cast(x.handle, f32) if narrow else x.handle
    operands = [handle, scalar(0)]
    return Tensor.made(x.recorder, x.recorder.elementwise(EQUAL, operands), (x,))


def _without_numbers(recorder: Recorder, op: Operator, operands: list[Operand]) -> bool:
    """Whether no tensor says in which format of numbers a result would be.

    PyTorch subtracts truth values from nothing, and nothing from them.
    """
    taken = [o for o in operands[op is WHERE :] if isinstance(o, Handle)]
    if op is SUB and recorder.origin.library == "torch":
        return any(o.value.dtype is boolean for o in taken)
    return all(o.value.dtype is boolean for o in taken)


def _of_truth(
    recorder: Recorder,
    op: Operator,
    given: Sequence[Any],
    operands: list[Operand],
) -> Tensor:
    """An operator on truth values, as PyTorch and NumPy have it."""
    numbers = [g for g in given[op is WHERE :] if not isinstance(g, Tensor)]
    logical = all(isinstance(n, bool) for n in numbers)
    if logical and (op is ADD or (op.truth is Truth.KEEPS and op.arity > 1)):
        either = MAXIMUM if op is ADD else op
        found = recorder.elementwise(either, operands)
        return Tensor.made(recorder, found, given)
    if op is WHERE and not is_condition(given[0]):
        operands = [complement(complement(given[0])).handle, *operands[1:]]
    computed = format_of(op, recorder.origin, given, operands)
    if op.formats is Formats.INTEGERS and computed.is_float:
        _refuse_floats(op)
    if computed.is_integer and op is not SUB:
        return _of_integers(recorder, op, given, operands)
    if op is SUB or op.name not in _OF_FLOATS:
        _refuse_truth(op, "cannot be traced", "use ~, & and |")
    dtype = computed if computed.is_float else recorder.origin.default_dtype()
    if dtype is None:
        _refuse_truth(op, "cannot be traced", "use ~, & and |")
    cast = [
        recorder.cast(o, dtype)
        if isinstance(o, Handle) and (op is not WHERE or at)
        else o
        for at, o in enumerate(operands)
    ]
    found = recorder.elementwise(op, cast)
    return Tensor.made(recorder, recorder.cast(found, dtype), given)


_BESIDE_FLOATS = ("add", "mul", "div", "maximum", "minimum", "where")
_OF_FLOATS = (*_BESIDE_FLOATS, "exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "erf")
"""Operators that turn truth values to floats: beside a float, or always."""


def _refuse_truth(op: Operator, why: str, advice: str) -> NoReturn:
    raise DTypeError(
        f"{op.name} of truth values {why}; {advice}: cast the condition, as with "
        ".to(x.dtype) or .astype(x.dtype)",
        user_location(),
    )


def _promoted(recorder: Recorder, operands: list[Operand]) -> list[Operand]:
    """The operands, tensors without axes in the format of those that have some.

    As PyTorch promotes: a scale of one f32 number leaves an f16 tensor f16.
    """
    handles = [o for o in operands if isinstance(o, Handle)]
    if all(h.axes for h in handles):
        return operands
    ranked = [h.value.dtype for h in handles if h.axes and h.value.dtype != boolean]
    if not ranked or promote(*(h.value.dtype for h in handles)) == promote(*ranked):
        return operands
    dtype = promote(*ranked)
    return [
        recorder.cast(o, dtype)
        if isinstance(o, Handle) and not o.axes and o.value.dtype != boolean
        else o
        for o in operands
    ]


def _promoted_by_numpy(
    recorder: Recorder, op: Operator, given: Sequence[Any], operands: list[Operand]
) -> list[Operand]:
    """The operands, floats in the format that NumPy computes in.

    Its own numbers have a format as arrays have, and so have arrays without axes.
    """
    taken = operands[op.chooses :]
    formats = {o.value.dtype for o in taken if isinstance(o, Handle)}
    single = any(map(is_numpys_number, given[op.chooses :]))
    if formats <= {boolean} or (len(formats) == 1 and not single):
        return operands
    dtype = format_of(op, recorder.origin, given, operands)
    return [
        recorder.cast(o, dtype)
        if isinstance(o, Handle) and o in taken and o.value.dtype != boolean
        else o
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


# -- Functions called with arrays ------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])

SYNONYMS = {"dim": "axis", "keepdim": "keepdims"}
"""PyTorch's names of arguments, and NumPy's."""


def public(function: F) -> F:
    """Let a function on symbolic tensors also take arrays.

    Where it takes NumPy's `axis` or `keepdims`, it takes PyTorch's `dim` and `keepdim`
    as well.
    """
    places = {name: at for at, name in enumerate(signature(function).parameters)}

    @public_function(f"mirage.{function.__name__}")
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        for theirs, ours in SYNONYMS.items():
            if theirs in kwargs and ours in places and theirs not in places:
                if ours in kwargs or len(args) > places[ours]:
                    raise ShapeError(
                        f"{function.__name__}: give {ours} or {theirs}, not both",
                        user_location(),
                    )
                kwargs[ours] = kwargs.pop(theirs)
        leaves = leaves_of((args, kwargs))
        traced = any(isinstance(leaf, Tensor) for leaf in leaves)
        if traced or not any(is_array(leaf) for leaf in leaves):
            return function(*args, **kwargs)
        return call_by_reference(function, args, kwargs)

    return cast(F, called)


def call_by_reference(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Trace a function and evaluate its program on the arrays it was called with."""
    from mirage_dsl.frontend.trace import trace_call

    refuse_modes(leaves_of((args, kwargs)))
    arguments = without_strides(bind_arguments(function, args, kwargs))
    trace = trace_call(function, arguments)
    return evaluate_trace(trace, arguments.tensors)


def evaluate_trace(trace: Trace, tensors: Sequence[Any]) -> Any:
    """Evaluate a traced program in float64, rounded to its dtypes at the end.

    PyTorch tensors among the arguments make the results PyTorch tensors.
    """
    arrays = [to_numpy(t) for t in tensors]
    results = evaluate_numpy(trace.program, *arrays)
    with np.errstate(over="ignore"):
        rounded = [
            np.asarray(r).astype(numpy_dtype(ret.type.dtype))
            for r, ret in zip(results, trace.program.returns, strict=True)
        ]
    if any(is_torch(t) for t in tensors):
        return trace.rebuild(trace.alike([to_torch(r) for r in rounded], tensors))
    return trace.rebuild(rounded)


# -- In which format an operator computes ----------------------------------------------


_NARROW = {boolean: f16, i8: f16, u8: f16, i16: f32}
"""The floats that NumPy's functions make of other formats, f64 of those not here."""


def format_of(
    op: Operator, origin: Origin, given: Sequence[Any], operands: Sequence[Operand]
) -> DType:
    """The format in which an operator computes on some operands.

    Args:
        op: The operator.
        origin: What the function was called with.
        given: The operands as they were given; Python's numbers by their classes.
        operands: What they stand for.

    Raises:
        DTypeError: PyTorch and NumPy have none.
    """
    pairs = list(zip(given, operands, strict=True))[op.chooses :]
    numpy = origin.library == "numpy"
    found = _numpys(pairs) if numpy else _torchs(pairs, origin)
    if op.formats is Formats.ANY or found.is_float or op.truth is Truth.COMPARES:
        return found
    if op.formats is Formats.INTEGERS:
        return found
    if numpy:
        return f64 if op is DIV else float_of_numpy(given, operands)
    return origin.default_dtype() or f32


def _torchs(pairs: Sequence[tuple[Any, Operand]], origin: Origin) -> DType:
    """Tensors with axes say it, those without where theirs is another category."""
    handles = [o for _, o in pairs if isinstance(o, Handle)]
    shaped = [h.value.dtype for h in handles if h.axes]
    single = [h.value.dtype for h in handles if not h.axes]
    python = [_pythons(g, origin) for g, o in pairs if not isinstance(o, Handle)]
    found: DType | None = None
    for group in (python, single, shaped):
        if group:
            found = _combined(promote(*group), found)
    return found or f32


def _combined(higher: DType, lower: DType | None) -> DType:
    """What a group of operands makes of one that counts less."""
    if lower is None or higher.is_float:
        return higher
    if higher == boolean or lower.is_float:
        return promote(higher, lower)
    return higher


def _pythons(value: Any, origin: Origin) -> DType:
    if isinstance(value, bool | np.bool_):
        return boolean
    whole = isinstance(value, int | np.integer) or not isinstance(
        value, float | Fraction | np.floating
    )
    return i64 if whole else origin.default_dtype() or f32


def _numpys(pairs: Sequence[tuple[Any, Operand]]) -> DType:
    """As arrays of these formats promote, beside Python's numbers."""
    return _together([_kind_of(*pair) for pair in pairs])


def float_of_numpy(given: Sequence[Any], operands: Sequence[Operand]) -> DType:
    """The format of NumPy's functions that take floats: each operand as one."""
    kinds = [_kind_of(*pair) for pair in zip(given, operands, strict=True)]
    promoted = _together(kinds)
    own = [k for k in kinds if _has_format(k)]
    if promoted.is_float or (promoted != boolean and _together(own) == boolean):
        # Python's numbers beside what is of a lower kind have NumPy's default formats.
        return promoted if promoted.is_float else f64
    found = _together([_float_kind(kind) for kind in kinds])
    return found if found.is_float else _NARROW.get(found, f64)


def is_numpys_number(value: object) -> bool:
    """Whether it is a number of NumPy's, which has a format, unlike Python's."""
    return isinstance(value, np.generic)


def _has_format(kind: Any) -> bool:
    return is_numpys_number(kind) or isinstance(kind, np.dtype)


def _float_kind(kind: Any) -> Any:
    """The float that NumPy makes of a format; numbers of Python are as they are."""
    if not _has_format(kind):
        return kind
    known = _together([kind])
    return kind if known.is_float else numpy_dtype(_NARROW.get(known, f64))


def _kind_of(value: Any, operand: Operand) -> Any:
    """What NumPy's promotion takes: a format, or a number of Python."""
    if isinstance(operand, Handle):
        return numpy_dtype(operand.value.dtype)
    if is_numpys_number(value) or isinstance(value, bool | int | float):
        return value
    return 1.0 if isinstance(value, Fraction) else 1


def _together(kinds: Sequence[Any]) -> DType:
    name = np.result_type(*kinds).name
    found = dtype_named(name)
    if found is None:
        raise DTypeError(
            f"operands whose result is {name} in NumPy, in which no program computes; "
            "convert one of them",
            user_location(),
        )
    return found


def stored_number(what: str, dtype: DType, value: Any) -> Any:
    """A number as integers hold it: as a float it would make floats of all of them.

    Args:
        what: What stores it, for messages.
        dtype: Of the tensor; where it is no integer, the number is as it is.
        value: A number, or a tensor, which is as it is.

    Raises:
        DTypeError: Integers do not hold it.
    """
    if not dtype.is_integer or not isinstance(value, int | float | np.number):
        return value
    range_of = np.iinfo(numpy_dtype(dtype))
    if not range_of.min - 1 < value < range_of.max + 1:
        raise DTypeError(
            f"{what} stores {value} in {dtype}, which holds {range_of.min} to "
            f"{range_of.max}; convert the tensor",
            user_location(),
        )
    return int(cast(float, value))


def check_constants(op: Operator, dtype: DType, operands: Sequence[Operand]) -> None:
    """Refuse numbers that a format of integers does not hold.

    Raises:
        DTypeError: There is one.
    """
    for operand in operands[op.chooses :]:
        if isinstance(operand, Scalar) and not operand.extents:
            if not dtype.holds(operand.value):
                raise DTypeError(
                    f"{op.name} of {dtype.long_name} and {operand}, which that format "
                    "does not hold; convert the tensor to a larger one",
                    user_location(),
                )
            if dtype == i64 and abs(operand.value) > 2**53:
                raise DTypeError(
                    f"{op.name} of int64 and {operand}; constants beyond 2**53 are not "
                    "possible: pass the number as a tensor",
                    user_location(),
                )


def summed_format(what: str, dtype: DType, origin: Origin) -> DType:
    """The format in which PyTorch and NumPy add up or multiply many numbers.

    Raises:
        DTypeError: It is none of ours.
    """
    if dtype.is_float:
        return dtype
    if origin.library == "numpy" and dtype == u8:
        _refuse_format(f"{what} of uint8, which is uint64 in NumPy", ".astype('int64')")
    return i64


def joined_format(handles: Sequence[Handle], origin: Origin) -> DType:
    """The format of tensors one after the other."""
    if origin.library == "numpy":
        return _together([numpy_dtype(h.value.dtype) for h in handles])
    return promote(*(h.value.dtype for h in handles))


def averaged_format(dtype: DType, origin: Origin) -> DType:
    """The format of a mean.

    Raises:
        DTypeError: PyTorch has no mean of integers and truth values.
    """
    if dtype.is_float:
        return dtype
    if origin.library != "numpy":
        _refuse_format(
            f"a mean of {dtype.long_name}, which PyTorch does not take", ".float()"
        )
    return f64


def _refuse_format(what: str, way: str) -> NoReturn:
    raise DTypeError(f"{what}; convert first, as with {way}", user_location())
