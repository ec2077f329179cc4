"""The functions of mirage on tensors: what they take, operators, reductions, views.

They follow NumPy's names and arguments; `public` accepts PyTorch's `dim` and `keepdim`.
Called with NumPy arrays or PyTorch tensors they are traced, and evaluated at once by
the reference semantics.  Norms and other composites are in `composites`.

Operators of the table take numbers of one format, so what promotes, as in PyTorch or in
NumPy, is converted before, and the program shows where.  Between floats alone the type
rules of the program say what a mixture gives.
"""

from __future__ import annotations

import builtins
import functools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from inspect import signature
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import numpy as np

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    TraceError,
    UnsupportedError,
    public_function,
)
from mirage_dsl.core.types import (
    DTYPE_NAMES,
    LARGEST_INDEX,
    DType,
    Scalar,
    boolean,
    dtype_named,
    dtype_of,
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
from mirage_dsl.frontend.arguments import (
    Function,
    Origin,
    bind_arguments,
    is_array,
    is_sequence,
    is_torch,
    leaves_of,
    refuse_modes,
    to_numpy,
    to_torch,
    without_strides,
)
from mirage_dsl.frontend.memory import Arranged, Expanded, Flattened
from mirage_dsl.frontend.program import (
    KEPT,
    Handle,
    Operand,
    extents_of,
    shape_text,
    vars_of,
)
from mirage_dsl.frontend.recorder import (
    Recorder,
    Size,
    SymbolicSize,
    extents_given,
    flat_arguments,
    integer,
    kept,
    normal_axes,
    normal_axis,
)
from mirage_dsl.frontend.tensor import Tensor, by_channels
from mirage_dsl.ir.evaluate import evaluate_numpy, numpy_dtype
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Formats, Operator, Truth

if TYPE_CHECKING:
    from mirage_dsl.frontend.trace import Trace


_BEYOND = 2**1024
"""Numbers that no float holds."""


class NoTensor:
    """What stands in for a tensor that cannot be traced, and says so when used.

    Attributes:
        reason: Why it is refused where a tensor is needed.
        takes_operators: Whether its own operators compute with tensors to its left.
    """

    reason = ""
    takes_operators = False

    def refuse(self) -> NoReturn:
        """Refuse what needs the tensor.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError.here(self.reason)


_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_READERS = (
    *("bool", "int", "float", "complex", "index", "len", "iter", "getitem", "setitem"),
    *("contains", "lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert"),
    "round",
)
_SPECIAL_NAMES = tuple(
    f"__{name}__"
    for name in (*_READERS, *_OPERATORS, *(f"{s}{o}" for s in "ri" for o in _OPERATORS))
)

N = TypeVar("N", bound=type[NoTensor])


def refusing(kind: N) -> N:
    """A class whose objects refuse those of Python's operators that it has not."""

    def refused(self: NoTensor, *_: Any) -> NoReturn:
        self.refuse()

    for name in _SPECIAL_NAMES:
        if getattr(kind, name, None) is getattr(object, name, None):
            setattr(kind, name, refused)
    return kind


def as_operand(value: object) -> Operand:
    """A tensor or a Python number as an operand.

    Raises:
        TraceError: It is neither; arrays of other libraries have to be arguments.
    """
    if isinstance(value, Tensor):
        return value.handle
    if isinstance(value, NoTensor):
        value.refuse()
    if isinstance(value, Size | SymbolicSize):
        return extents_of(value.vars)
    if isinstance(value, bool | int | float | Fraction):
        return _number(value)
    if type(value) is np.bool_:
        return _number(bool(value))
    if isinstance(value, numbers.Real):
        return _number(float(value))
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    if isinstance(value, tuple) and value:
        raise TraceError.here(
            f"found the tuple {kind.__name__} where a tensor or a number was expected; "
            "take one of its parts, as the values of x.max(1) are x.max(1).values or "
            "x.amax(1)"
        )
    if module in ("numpy", "torch"):
        raise TraceError.here(
            f"a {module} {kind.__name__} that is no argument of the function; pass it "
            "as an argument, so that its values are not frozen into the program, or "
            "write torch.tensor of a small array of NumPy's or of a list"
        )
    raise TraceError.here(
        f"found {kind.__name__} where a tensor or a number was expected"
    )


def _number(value: float | Fraction) -> Scalar:
    if value != value:
        raise TraceError.here("the constant is NaN, which no program can compute with")
    found = scalar(value)
    if isinstance(found.value, Fraction) and builtins.abs(found.value) >= _BEYOND:
        raise TraceError.here(
            "the constant is a number beyond float64, expected one within its range; "
            "write float('inf') if it is meant as infinite"
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
    if op not in (table.ABS, table.EQUAL, table.WHERE) or len(formats) > 1:
        named = " and ".join(sorted(d.long_name for d in formats))
        raise DTypeError.here(
            f"{op.name} of {named}: PyTorch computes in no floats of 8 bits, and "
            "promotes none; cast first, as with .to(torch.float16)"
        )
    wide = [
        recorder.cast(o, f32) if isinstance(o, Handle) and o in taken else o
        for o in operands
    ]
    if op is table.EQUAL:
        (own,) = formats
        wide = [_rounded(o, own) if isinstance(o, Scalar) else o for o in wide]
        return Tensor.made(recorder, recorder.elementwise(op, wide), given)
    found = recorder.elementwise(op, _with_condition(op, given, wide))
    return Tensor.made(recorder, recorder.cast(found, *formats), given)


def _with_condition(
    op: Operator, given: Sequence[Any], operands: list[Operand]
) -> list[Operand]:
    """The operands, of which what chooses is of truth values."""
    if op.chooses and isinstance(given[0], Tensor) and not is_condition(given[0]):
        return [complement(complement(given[0])).handle, *operands[1:]]
    return operands


# -- Integers --------------------------------------------------------------------------


def _of_integers(
    recorder: Recorder,
    op: Operator,
    given: Sequence[Any],
    operands: list[Operand],
) -> Tensor:
    """An operator in the format that PyTorch or NumPy computes in."""
    if op is table.SUB and _without_numbers(recorder, op, operands):
        _refuse_truth(op)
    if op is table.RELU:
        given, operands = [*given, 0], [*operands, scalar(0)]
        return _of_integers(recorder, table.MAXIMUM, given, operands)
    if op is table.NEG and format_of(op, recorder.origin, given, operands) == u8:
        # Without a sign there is no -1 to multiply by.
        return _of_integers(recorder, table.SUB, [0, *given], [scalar(0), *operands])
    operands = _with_condition(op, given, operands)
    dtype = format_of(op, recorder.origin, given, operands)
    if op.formats is Formats.INTEGERS and dtype.is_float:
        _refuse_floats(op)
    if dtype.is_integer:
        if op in _WRAPPING and recorder.origin.library == "torch":
            operands = [
                _wrapped(o, dtype) if isinstance(o, Scalar) else o for o in operands
            ]
        check_constants(op, dtype, operands)
    elif op.truth is Truth.COMPARES:
        operands = [
            _rounded(o, dtype) if isinstance(o, Scalar) else o for o in operands
        ]
    found = recorder.elementwise(op, _in_format(recorder, op, operands, dtype))
    if op.truth is not Truth.COMPARES and dtype.is_integer:
        # Of constants alone no operand says the format.
        found = recorder.cast(found, dtype)
    return Tensor.made(recorder, found, given)


_WRAPPING = (
    *(table.ADD, table.SUB, table.MUL),
    *(table.BIT_AND, table.BIT_OR, table.BIT_XOR),
)
"""Operators whose lower bits depend on no others, and so not on how numbers wrap."""


def _wrapped(number: Scalar, dtype: DType) -> Scalar:
    """A number as PyTorch casts it to a format: -32 beside u8 is 224."""
    if number.extents or not i64.holds(number.value):
        return number
    low = int(dtype.min)
    return scalar((int(number.value) - low) % 2 ** (8 * dtype.itemsize) + low)


def _in_format(
    recorder: Recorder, op: Operator, operands: list[Operand], dtype: DType
) -> list[Operand]:
    """The operands but what chooses in a format."""
    return [
        recorder.cast(o, dtype)
        if isinstance(o, Handle) and (at or not op.chooses)
        else o
        for at, o in enumerate(operands)
    ]


def _refuse_floats(op: Operator) -> NoReturn:
    raise DTypeError.here(
        f"{op.name} of floats, which is possible of integers alone; convert first, as "
        "with .to(torch.int32) or .astype('int32')"
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
    if number.extents or (dtype.only_stores and builtins.abs(value) > dtype.max):
        return number
    with np.errstate(over="ignore"):
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
    return Tensor.made(x.recorder, x.recorder.elementwise(table.EQUAL, operands), (x,))


def _without_numbers(recorder: Recorder, op: Operator, operands: list[Operand]) -> bool:
    """Whether no tensor says in which format of numbers a result would be.

    PyTorch subtracts truth values from nothing, and nothing from them.
    """
    taken = [o for o in operands[op is table.WHERE :] if isinstance(o, Handle)]
    if op is table.SUB and recorder.origin.library == "torch":
        return any(o.value.dtype is boolean for o in taken)
    return all(o.value.dtype is boolean for o in taken)


def _of_truth(
    recorder: Recorder,
    op: Operator,
    given: Sequence[Any],
    operands: list[Operand],
) -> Tensor:
    """An operator on truth values, as PyTorch and NumPy have it."""
    numbers = [g for g in given[op is table.WHERE :] if not isinstance(g, Tensor)]
    logical = all(isinstance(n, bool) for n in numbers)
    if logical and (op is table.ADD or (op.truth is Truth.KEEPS and op.arity > 1)):
        either = table.MAXIMUM if op is table.ADD else op
        found = recorder.elementwise(either, operands)
        return Tensor.made(recorder, found, given)
    operands = _with_condition(op, given, operands)
    computed = format_of(op, recorder.origin, given, operands)
    if op is table.SUB and not logical and recorder.origin.library == "numpy":
        # It subtracts numbers from them, and them from numbers.
        found = recorder.elementwise(op, _in_format(recorder, op, operands, computed))
        return Tensor.made(recorder, recorder.cast(found, computed), given)
    if op.formats is Formats.INTEGERS and computed.is_float:
        _refuse_floats(op)
    if computed.is_integer and op is not table.SUB:
        return _of_integers(recorder, op, given, operands)
    if op is table.SUB or op.name not in _OF_FLOATS:
        _refuse_truth(op)
    dtype = computed if computed.is_float else recorder.origin.default_dtype()
    if dtype is None:
        _refuse_truth(op)
    found = recorder.elementwise(op, _in_format(recorder, op, operands, dtype))
    return Tensor.made(recorder, recorder.cast(found, dtype), given)


_BESIDE_FLOATS = ("add", "mul", "div", "maximum", "minimum", "where")
_OF_FLOATS = (*_BESIDE_FLOATS, "exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "erf")
"""Operators that turn truth values to floats: beside a float, or always."""


def _refuse_truth(op: Operator) -> NoReturn:
    raise DTypeError.here(
        f"{op.name} of truth values cannot be traced; use ~, & and |, or cast the "
        "condition, as with .to(x.dtype) or .astype(x.dtype)"
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
    if formats == {f16}:
        operands = [_as_held(o) if isinstance(o, Scalar) else o for o in operands]
        taken = operands[op.chooses :]
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


def _as_held(number: Scalar) -> Scalar:
    """A number as f16 holds it where NumPy makes an infinity of it."""
    value = number.value
    beyond = not number.extents and builtins.abs(value) >= _BEYOND_F16
    return scalar(math.copysign(math.inf, value)) if beyond else number


_BEYOND_F16 = 65520
"""What is rounded to it or beyond is infinite."""


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
        TraceError: There is no tensor among them, or they belong to two traces, or to
            one that has ended.
    """
    found = {id(o.recorder): o.recorder for o in operands if isinstance(o, Tensor)}
    if any(recorder.closed for recorder in found.values()):
        raise TraceError.here(f"{what} of {KEPT}")
    if len(found) > 1:
        raise TraceError.here(
            f"{what} of tensors of two different traces, or graphs: a tensor is of the "
            "one that made it; make it there, or pass it as an argument"
        )
    if not found:
        raise TraceError.here(
            f"{what} needs a tensor, found "
            f"{', '.join(type(o).__name__ for o in operands) or 'nothing'}"
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
                    raise ShapeError.here(
                        f"{function.__name__}: give {ours} or {theirs}, not both"
                    )
                kwargs[ours] = kwargs.pop(theirs)
        if any(isinstance(x, Tensor) for x in args):
            return function(*args, **kwargs)
        leaves = leaves_of((args, kwargs))
        traced = any(isinstance(leaf, Tensor) for leaf in leaves)
        if traced or not any(is_array(leaf) for leaf in leaves):
            return function(*args, **kwargs)
        return call_by_reference(function, args, kwargs)

    return cast(F, called)


def named(*functions: Function) -> dict[str, Function]:
    """Functions by their own names, which are PyTorch's or NumPy's."""
    return {function.__name__: function for function in functions}


def formulas(
    **given: Callable[[Any], Any]
    | Callable[[Any, Any], Any]
    | Callable[[Any, Any, Any], Any],
) -> dict[str, Function]:
    """Functions of up to three arguments that are an expression each."""
    for name, function in given.items():
        # As which an error speaks of it.
        function.__qualname__ = function.__name__ = name
    return {**given}


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
    kinds = [_kind_of(*pair) for pair in pairs] if numpy else []
    found = _together(kinds) if numpy else _torchs(pairs, origin)
    if op.formats is Formats.ANY or found.is_float or op.truth is Truth.COMPARES:
        return found
    if op.formats is Formats.INTEGERS:
        return found
    if numpy:
        return f64 if op is table.DIV else float_of_numpy(given, operands)
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


def as_floats(x: Tensor) -> Tensor:
    """The tensor, of integers and truth values as floats that its library makes."""
    if is_float(x):
        return x
    origin = x.recorder.origin
    if origin.library == "numpy":
        return to(x, float_of_numpy([x], [x.handle]))
    return to(x, origin.default_dtype() or f32)


def require_float(what: str, x: Tensor) -> None:
    """Refuse formats that PyTorch's functions of matrices and transforms do not take.

    Raises:
        DTypeError: It is neither f32 nor f64.
    """
    if x.handle.value.dtype not in (f32, f64):
        raise DTypeError.here(
            f"{what} of {x.handle.value.dtype}; PyTorch has it of float32 and float64 "
            "alone: convert first, as with .float()"
        )


def require_one_dtype(what: str, *tensors: Tensor) -> None:
    """Refuse tensors of several dtypes where PyTorch promotes none.

    Raises:
        DTypeError: There are several.
    """
    found = dict.fromkeys(x.handle.value.dtype for x in tensors)
    if len(found) > 1:
        raise DTypeError.here(
            f"{what} of {' and '.join(map(str, found))}; expected one dtype, for "
            "PyTorch promotes none there: convert them, as in x.to(w.dtype)"
        )


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
    if is_numpys_number(value):
        return value
    for kind in (bool, int, float):
        if isinstance(value, kind):
            # Of a class of their own, as extents are, NumPy makes arrays.
            return kind(value)
    return 1.0 if isinstance(value, Fraction) else 1


def _together(kinds: Sequence[Any]) -> DType:
    name = np.result_type(*kinds).name
    found = dtype_named(name)
    if found is None:
        raise DTypeError.here(
            f"operands whose result is {name} in NumPy, in which no program computes; "
            "convert one of them"
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
        raise DTypeError.here(
            f"{what} stores {value} in {dtype}, which holds {range_of.min} to "
            f"{range_of.max}; convert the tensor"
        )
    return int(cast(float, value))


def refuse_overflow(what: str, target: Tensor, value: Any) -> None:
    """Refuse a finite number that the floats of a tensor of PyTorch's do not reach.

    PyTorch does where it fills.  Arithmetic makes an infinity of it, and so does NumPy.

    Raises:
        DTypeError: It is one.
    """
    _refuse_beyond(what, target, target.handle.value.dtype, value)


def refuse_beyond_computed(what: str, target: Tensor, value: Any) -> None:
    """Refuse a finite number beyond the floats in which PyTorch computes a tensor.

    A CPU takes limits and factors in the tensor's own format, a GPU in f32 at least.

    Raises:
        DTypeError: It is one.
    """
    dtype = target.handle.value.dtype
    coarse = dtype.is_float and target.is_cuda
    _refuse_beyond(what, target, promote(dtype, f32) if coarse else dtype, value)


def _refuse_beyond(what: str, target: Tensor, dtype: DType, value: Any) -> None:
    numbers = isinstance(value, int | float | np.number)
    if target.recorder.origin.library != "torch" or not dtype.is_float or not numbers:
        return
    number = cast(float, value)
    if math.isfinite(number) and not dtype.holds(number):
        raise DTypeError.here(
            f"{what} by {value} in {dtype}, which holds {dtype.min:g} to "
            f"{dtype.max:g}; write an infinity, or convert the tensor"
        )


def check_constants(op: Operator, dtype: DType, operands: Sequence[Operand]) -> None:
    """Refuse numbers that a format of integers does not hold.

    Raises:
        DTypeError: There is one.
    """
    for operand in operands[op.chooses :]:
        if isinstance(operand, Scalar) and not operand.extents:
            if not dtype.holds(operand.value):
                raise DTypeError.here(
                    f"{op.name} of {dtype.long_name} and {operand}, which that format "
                    "does not hold; convert the tensor to a larger one"
                )
            if dtype == i64 and builtins.abs(operand.value) > 2**53:
                raise DTypeError.here(
                    f"{op.name} of int64 and {operand}; constants beyond 2**53 are not "
                    "possible: pass the number as a tensor"
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
    raise DTypeError.here(f"{what}; convert first, as with {way}")


def _elementwise(name: str, summary: str) -> Callable[..., Any]:
    op = table.OPERATORS[name]

    def function(*operands: Any, out: None = None) -> Any:
        if out is not None:
            raise UnsupportedError.here(f"{name}: out= is not possible; use the result")
        if len(operands) != op.arity:
            raise ShapeError.here(
                f"{name} takes {op.arity} operands, found {len(operands)}"
            )
        return apply(op, *operands)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = summary
    return public(function)


exp = _elementwise("exp", "e to the power x.")
log = _elementwise("log", "Natural logarithm.")
sqrt = _elementwise("sqrt", "Square root.")
rsqrt = _elementwise("rsqrt", "One over the square root.")
square = _elementwise("square", "x times x.")
abs = _elementwise("abs", "Absolute value.")
neg = _elementwise("neg", "Minus x.")
relu = _elementwise("relu", "The larger of x and 0.")
silu = _elementwise("silu", "x times its sigmoid.")
sigmoid = _elementwise("sigmoid", "1 / (1 + exp(-x)).")
tanh = _elementwise("tanh", "Hyperbolic tangent.")
erf = _elementwise("erf", "The error function.")
maximum = _elementwise("maximum", "The larger of two, element by element.")
minimum = _elementwise("minimum", "The smaller of two, element by element.")
less = _elementwise("less", "1 where a < b, else 0.")
less_equal = _elementwise("less_equal", "1 where a <= b, else 0.")
equal = _elementwise("equal", "1 where a == b, else 0.")


@public
def add(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    """The value of a + alpha * b."""
    if alpha == 1:
        return apply(table.OPERATORS["add"], a, b)
    return _sum_with("add", a, b, alpha)


@public
def sub(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    """The value of a - alpha * b."""
    if alpha == 1:
        return apply(table.OPERATORS["sub"], a, b)
    return _sum_with("sub", a, b, alpha)


def _sum_with(name: str, a: Any, b: Any, alpha: Any) -> Tensor:
    found = apply(table.OPERATORS[name], a, _scaled(a, b, alpha))
    refuse_beyond_computed(f"{name} with alpha", found, alpha)
    return found


def _scaled(a: Any, b: Any, alpha: Any) -> Any:
    """Alpha * b; truth values count in the format of the tensor that they join."""
    if isinstance(a, bool) or is_condition(a):
        if isinstance(b, bool):
            return b and bool(alpha)
        return (
            apply(table.MUL, b, bool(alpha))
            if is_condition(b)
            else multiplied(b, alpha)
        )
    if not isinstance(a, Tensor) or not is_condition(b):
        return multiplied(b, alpha)
    dtype = a.handle.value.dtype
    wide = Tensor.made(b.recorder, b.recorder.cast(b.handle, dtype), (b,))
    return multiplied(wide, alpha)


def multiplied(a: Any, b: Any) -> Any:
    """A * b, of which both may be numbers."""
    return (
        apply(table.MUL, a, b)
        if isinstance(a, Tensor) or isinstance(b, Tensor)
        else a * b
    )


mul = _elementwise("mul", "a * b.")
floor_divide = _elementwise("floor_divide", "a / b rounded down, of integers.")
remainder = _elementwise("remainder", "What is left of a by b, with the sign of b.")


def _bitwise(name: str, of_truth: Operator, summary: str) -> Callable[..., Any]:
    """An operator on the bits of integers, which truth values have one of."""
    of_integers = table.OPERATORS[name]

    def function(a: Any, b: Any) -> Any:
        truth = all(is_condition(x) or isinstance(x, bool) for x in (a, b))
        return apply(of_truth if truth else of_integers, a, b)

    function.__name__ = function.__qualname__ = f"bitwise_{name.removeprefix('bit_')}"
    function.__doc__ = summary
    return public(function)


bitwise_and = _bitwise("bit_and", table.MUL, "The bits that both have.")
bitwise_or = _bitwise(
    "bit_or", table.OPERATORS["maximum"], "The bits that one of them has."
)


@public
def bitwise_xor(a: Any, b: Any) -> Any:
    """The bits that just one of them has."""
    truth = all(is_condition(x) or isinstance(x, bool) for x in (a, b))
    return not_equal(a, b) if truth else apply(table.OPERATORS["bit_xor"], a, b)


@public
def bitwise_not(x: Any) -> Any:
    """All bits turned over."""
    x = as_tensor("bitwise_not", x)
    dtype = x.handle.value.dtype
    if is_condition(x):
        return complement(x)
    return bitwise_xor(x, -1 if dtype.min < 0 else int(dtype.max))


def _shift(name: str, summary: str) -> Callable[..., Any]:
    op = table.OPERATORS[name]

    def function(a: Any, b: Any) -> Any:
        return apply(op, a, b)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = summary
    return public(function)


shift_left = _shift("shift_left", "The bits of a moved up by b places.")
shift_right = _shift("shift_right", "The bits of a moved down by b places.")


@public
def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """The value of a / b."""
    if rounding_mode == "floor":
        return floor_divide(a, b)
    if rounding_mode is not None:
        raise UnsupportedError.here(
            f"div: rounding_mode={rounding_mode!r} is not possible; use 'floor'"
        )
    return apply(table.OPERATORS["div"], a, b)


@public
def greater(a: Any, b: Any) -> Any:
    """1 where a > b, else 0."""
    return apply(table.OPERATORS["less"], b, a)


@public
def greater_equal(a: Any, b: Any) -> Any:
    """1 where a >= b, else 0."""
    return apply(table.OPERATORS["less_equal"], b, a)


@public
def not_equal(a: Any, b: Any) -> Any:
    """1 where a != b, else 0."""
    return complement(apply(table.OPERATORS["equal"], a, b))


@public
def gelu(x: Any, approximate: str = "none") -> Any:
    """The tensor times the normal distribution's probability of less than x.

    Args:
        x: The tensor.
        approximate: `none`, or `tanh` for the usual approximation.
    """
    if approximate == "none":
        return apply(table.OPERATORS["gelu"], x)
    if approximate != "tanh":
        raise UnsupportedError.here(
            f"gelu: approximate={approximate!r}; expected 'none' or 'tanh'"
        )
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * square(x)))
    # Half of 1 + tanh(y) is the sigmoid of 2y, which no factor of x can go before.
    return x * apply(table.OPERATORS["sigmoid"], 2 * inner)


@public
def exp2(x: Any) -> Any:
    """2 to the power x."""
    return apply(table.OPERATORS["exp"], x * math.log(2))


@public
def reciprocal(x: Any) -> Any:
    """1 / x."""
    return apply(table.OPERATORS["div"], 1, x)


_MAX_POWER = 64


@public
def pow(a: Any, b: Any) -> Any:
    """The power b of a.

    Small integer powers multiply; 0.5 and -0.5 are sqrt and rsqrt.  The power 0 is 1,
    also of what is infinite or no number.
    """
    a, b = _beside_numpys(a, b)
    if not isinstance(b, builtins.int | builtins.float | Fraction) or b != b:
        return _power_of_data(a, b)
    if is_condition(a) and (b == 1 or (b < 0 and isinstance(b, builtins.int))):
        _refuse_power("a power of truth values")
    if holds_integers(a) and b:
        if isinstance(b, builtins.int):
            return _integral_power(a, b)
        a = a * 1.0
    if builtins.abs(b) == 0.5:
        return sqrt(a) if b > 0 else rsqrt(a)
    if builtins.abs(b) > _MAX_POWER or b != int(b):
        return apply(table.OPERATORS["power"], a, b)
    if b == 0:
        x, one = as_tensor("pow", a), scalar(1)
        if not x.handle.value.dtype.is_float:
            return where(complement(complement(x)), x * 0 + 1, 1)
        ones = x.recorder.elementwise(table.OPERATORS["where"], [x.handle, one, one])
        return Tensor.made(x.recorder, ones, (x,))
    if b == 1:
        return as_tensor("pow", a).clone()
    result = _power(a, builtins.abs(int(b)))
    return result if b > 0 else 1 / result


def _power_of_data(a: Any, b: Any) -> Tensor:
    if type(a) is builtins.int and a in (2, -1) and holds_integers(b):
        # Also what wraps: 2 has no bit left there, and -1 asks for the last bit alone.
        return shift_left(1, b) if a == 2 else 1 - 2 * bitwise_and(b, 1)
    whole = (builtins.int, np.integer, np.bool_)
    if builtins.all(isinstance(x, whole) or is_whole(x) for x in (a, b)):
        _refuse_power("a power of integers, whose exponents are data")
    return apply(table.OPERATORS["power"], a, b)


def _beside_numpys(a: Any, exponent: Any) -> tuple[Any, Any]:
    """A tensor promoted with a number of NumPy's, which has a format, and the number.

    NumPy's powers of truth values are of 8 bits.
    """
    if not isinstance(a, Tensor):
        return a, exponent
    origin = a.recorder.origin
    if is_numpys_number(exponent):
        handles = [a.handle, as_operand(exponent)]
        a = to(a, format_of(table.MUL, origin, (a, exponent), handles))
        exponent = exponent.item()
    logical = isinstance(exponent, builtins.bool) and is_condition(a)
    return to(a, i8) if logical and origin.library == "numpy" else a, exponent


def holds_integers(x: Any) -> bool:
    """Whether it is a tensor of integers."""
    return isinstance(x, Tensor) and x.handle.value.dtype.is_integer


def is_whole(x: Any) -> bool:
    """Whether it is a tensor of integers, or of truth values, which count as some."""
    return holds_integers(x) or is_condition(x)


def _refuse_power(what: str) -> NoReturn:
    raise DTypeError.here(f"{what}, is not possible; convert to floats")


def _integral_power(a: Any, exponent: int) -> Any:
    if exponent < 0:
        _refuse_power(f"the power {exponent} of integers")
    return _power(a, exponent) if exponent > 1 else a.clone()


def _power(a: Any, exponent: int) -> Any:
    if exponent == 1:
        return a
    half = square(_power(a, exponent // 2))
    return half * a if exponent % 2 else half


@public
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """The tensor limited from below and above; None is no limit."""
    if min is None and max is None:
        raise ShapeError.here("clamp needs min, max or both")
    if min is not None:
        x = apply(table.OPERATORS["maximum"], x, min)
    if max is not None:
        x = apply(table.OPERATORS["minimum"], x, max)
    for limit in (min, max):
        refuse_beyond_computed("clamp", x, limit)
    return x


clip = clamp


@public
def where(condition: Any, a: Any, b: Any) -> Any:
    """Element by element a where the condition is not 0, else b."""
    return apply(table.OPERATORS["where"], condition, a, b)


@public
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """The value where the mask is not 0, else x; in the format of x.

    Raises:
        ShapeError: The value has axes.
    """
    x = as_tensor("masked_fill", x)
    if isinstance(value, Tensor) and value.ndim:
        raise ShapeError.here(
            f"masked_fill by {shape_text(value.handle)}; expected a number, or a "
            "tensor without axes: use where(mask, value, x)"
        )
    refuse_overflow("masked_fill", x, value)
    value = stored_number("masked_fill", x.handle.value.dtype, value)
    return astype(where(mask, value, x), x)


def reduced(op: Operator, what: str, x: Any, axis: Any, keepdims: Any) -> Tensor:
    x = as_tensor(what, x)
    axes, keep = normal_axes(axis, x.ndim, what), kept(keepdims, what)
    found = x.recorder.reduce(op, x.handle, axes, keepdims=keep)
    return Tensor.made(x.recorder, found, (x,))


def _counted(what: str, x: Any, dtype: Any) -> Any:
    """The tensor in the format that it is added up or multiplied in."""
    if dtype is not None:
        return to(x, dtype)
    x = as_tensor(what, x)
    found = summed_format(what, x.handle.value.dtype, x.recorder.origin)
    return astype(x, found, copy=False)


@public
def sum(
    x: Any,
    axis: Any = None,
    keepdims: Any = False,
    *,
    dtype: Any = None,
) -> Any:
    """Sum over axes, all of them by default; one of truth values is whether any is."""
    x = _counted("sum", x, dtype)
    whether = dtype is not None and is_condition(x)
    return reduced(table.MAX if whether else table.SUM, "sum", x, axis, keepdims)


@public
def mean(
    x: Any,
    axis: Any = None,
    keepdims: Any = False,
    *,
    dtype: Any = None,
) -> Any:
    """Arithmetic mean over axes, all of them by default."""
    x = as_tensor("mean", x)
    wanted = dtype
    if dtype is None:
        wanted = averaged_format(x.handle.value.dtype, x.recorder.origin)
    if wanted is not x.handle.value.dtype:
        x = to(x, wanted)
    axes, keep = normal_axes(axis, x.ndim, "mean"), kept(keepdims, "mean")
    # A factor that follows the extents, so that the program is right at every size.
    vars = x.recorder.dims.resolve(vars_of([x.handle.axes[i] for i in axes]))
    if any(var.extent == 0 for var in vars):
        raise ShapeError.here(
            f"mean of {shape_text(x.handle)}, which has no elements there"
        )
    factor = extents_of(vars, -1)
    total = x.recorder.reduce(table.SUM, x.handle, axes, keepdims=keep)
    found = x.recorder.elementwise(table.MUL, [total, factor])
    return Tensor.made(x.recorder, found, (x,))


@public
def max(
    x: Any,
    axis: Any = None,
    keepdims: Any = False,
) -> Any:
    """Maximum over axes, all of them by default.

    Unlike PyTorch's it returns no indices.  Of two tensors it is their `maximum`.
    """
    if isinstance(axis, Tensor):
        return maximum(x, axis)
    return amax(x, axis, keepdims)


@public
def amax(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Maximum over axes, all of them by default."""
    return reduced(table.MAX, "max", x, axis, keepdims)


@public
def min(
    x: Any,
    axis: Any = None,
    keepdims: Any = False,
) -> Any:
    """Minimum over axes, all of them by default."""
    if isinstance(axis, Tensor):
        return minimum(x, axis)
    return amin(x, axis, keepdims)


@public
def amin(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Minimum over axes, all of them by default."""
    return reduced(table.MIN, "min", x, axis, keepdims)


@public
def prod(
    x: Any,
    axis: Any = None,
    keepdims: Any = False,
    *,
    dtype: Any = None,
) -> Any:
    """Product over axes, of all elements by default."""
    x = _counted("prod", x, dtype)
    return reduced(table.PROD, "prod", x, axis, keepdims)


def _place(op: Operator, what: str, x: Any, axis: Any, keepdims: Any) -> Tensor:
    """The first position along an axis of the element that a reduction selects.

    NaN is selected before all others.
    """
    x, keep = as_tensor(what, x), kept(keepdims, what)
    if axis is None:
        found = _place(op, what, flatten(x), 0, False)
        return reshape(found, (1,) * x.ndim) if keep else found
    if not normal_axes(axis, x.ndim, what):
        return _place(op, what, flatten(x), 0, False)
    at = normal_axis(axis, x.ndim, what)
    there = equal(x, reduced(op, what, x, at, True))
    if x.handle.value.dtype.is_float:
        there = bitwise_or(there, not_equal(x, x))
    positions = x.recorder.index(x.handle.axes[at]).value
    axes = tuple(a if i == at else () for i, a in enumerate(x.handle.axes))
    counted = Tensor.made(x.recorder, Handle(positions, axes), ())
    return reduced(table.MIN, what, where(there, counted, LARGEST_INDEX), at, keep)


@public
def argmax(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """The first position of the maximum along an axis; None is of all, flat."""
    return _place(table.MAX, "argmax", x, axis, keepdims)


@public
def argmin(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """The first position of the minimum along an axis; None is of all, flat."""
    return _place(table.MIN, "argmin", x, axis, keepdims)


def _scanned(op: Operator, x: Any, axis: Any, dtype: Any) -> Tensor:
    x = _counted(op.name, x, dtype)
    if axis is None:
        x, axis = flatten(x), 0
    if x.recorder.origin.library == "torch" and not normal_axes(axis, x.ndim, op.name):
        return x.clone()
    at = normal_axis(axis, x.ndim, op.name)
    return Tensor.made(x.recorder, x.recorder.scan(op, x.handle, at), (x,))


@public
def cumsum(x: Any, axis: Any = None, *, dtype: Any = None) -> Any:
    """Sums of each element and all before it along an axis; None is all, flat."""
    return _scanned(table.CUMSUM, x, axis, dtype)


@public
def cumprod(x: Any, axis: Any = None, *, dtype: Any = None) -> Any:
    """Products of each element and all before it along an axis; None is all, flat."""
    return _scanned(table.CUMPROD, x, axis, dtype)


# -- Elements at indices that are data -------------------------------------------------


def _gathered(what: str, x: Any, axis: Any, index: Any, *, along: bool) -> Tensor:
    x = as_tensor(what, x)
    if not holds_integers(index):
        as_operand(index)
        raise DTypeError.here(f"{what} takes an index of integers")
    at = normal_axis(axis, x.ndim, what)
    number = _same_index(index)
    if number is not None:
        return _repeated(x, at, number, index, along=along)
    if not along:
        from mirage_dsl.frontend.indices import in_blocks

        blocks = in_blocks(x, at, index)
        if blocks is not None:
            return blocks
    recorder = recorder_of(what, (x, index))
    found = recorder.gather(x.handle, at, index.handle, along=along)
    return Tensor.made(recorder, found, (x, index))


def _same_index(index: Tensor) -> int | None:
    """The number that an index is all over; None for others."""
    number = index.recorder.constants.get(index.handle.value)
    return None if number is None or number.extents else int(number.value)


def _repeated(x: Tensor, at: int, number: int, index: Tensor, *, along: bool) -> Tensor:
    """One slice of an axis for each element of an index that is one number."""
    extent = x.handle.shape[at]
    if extent is not None and not -extent <= number < extent:
        raise ShapeError.here(
            f"the index {number} of an axis of extent {extent} is outside of it"
        )
    found = narrow(x, at, number, 1)
    if along:
        shape = list(np.broadcast_shapes(found.shape, index.shape))
        shape[at] = index.shape[at]
        return expand(found, *shape).clone()
    found = squeeze(found, at)
    for _ in range(index.ndim):
        found = expand_dims(found, at)
    return expand(found, *x.shape[:at], *index.shape, *x.shape[at + 1 :]).clone()


def none_below_zero(index: Any, x: Any, axis: Any) -> Any:
    """The index where PyTorch counts from the front alone: those below 0 are outside.

    They become the extent of the axis, which every gather refuses.
    """
    if not holds_integers(index) or not isinstance(x, Tensor) or not x.ndim:
        return index
    if index.handle.value.dtype in (i8, i16):
        index = to(index, i64)
    if index.handle.value.dtype == u8:
        return index
    at = normal_axis(axis, x.ndim, "an index")
    number = _same_index(index)
    if number is not None:
        if number < 0:
            raise ShapeError.here(
                f"the index {number} where indices count from the front"
            )
        return index
    return where(less(index, 0), x.shape[at], index)


@public
def index_select(x: Any, axis: Any, index: Any) -> Any:
    """The slices of an axis at the indices, which may have any number of axes."""
    return _gathered("index_select", x, axis, index, along=False)


@public
def embedding(index: Any, weight: Any) -> Any:
    """The rows of a matrix at the indices."""
    return _gathered("embedding", weight, 0, index, along=False)


@public
def gather(x: Any, axis: Any, index: Any) -> Any:
    """Elements at indices along an axis; other axes of the index may be shorter."""
    x = as_tensor("gather", x)
    if not isinstance(index, Tensor) or index.ndim != x.ndim:
        as_operand(index)
        raise ShapeError.here(f"gather of {x!r} by {index!r}: both have as many axes")
    at = normal_axis(axis, x.ndim, "gather")
    pairs = zip(x.handle.shape, index.handle.shape, strict=True)
    for i, (have, want) in enumerate(pairs):
        if i == at or have == want or have is None or want is None:
            continue
        if want > have:
            raise ShapeError.here(
                f"gather of {x!r} by {index!r}: axis {i} of the index is longer"
            )
        x = narrow(x, i, 0, want)
    return _gathered("gather", x, at, index, along=True)


@public
def take_along_dim(x: Any, index: Any, axis: Any) -> Any:
    """Elements at indices along an axis; other axes are equal, or 1 in the index."""
    x = as_tensor("take_along_dim", x)
    if not isinstance(index, Tensor) or index.ndim != x.ndim:
        as_operand(index)
        raise ShapeError.here(
            f"take_along_dim of {x!r} by {index!r}: both have as many axes"
        )
    return _gathered("take_along_dim", x, axis, index, along=True)


def rowshift(x: Any, axis: Any) -> Tensor:
    """What a row of exponents is shifted by: its maximum, whose value cannot matter.

    Raises:
        DTypeError: The exponents are integers, of which PyTorch makes no softmax.
    """
    x = as_tensor("softmax", x)
    dtype = x.handle.value.dtype
    if dtype.is_integer:
        raise DTypeError.here(
            f"softmax takes floats, found {dtype.long_name}; convert it, as with "
            ".to(torch.float32) or .astype(np.float32)"
        )
    return reduced(table.ROWSHIFT, "softmax", x, axis, True)


@public
def matmul(a: Any, b: Any) -> Any:
    """Matrix product, batched and broadcast as NumPy's."""
    recorder = recorder_of("matmul", (a, b))
    x, y = as_operand(a), as_operand(b)
    if not isinstance(x, Handle) or not isinstance(y, Handle):
        raise ShapeError.here("matmul with a number; use * instead")
    # Row-major whatever the operands are.
    return Tensor.made(recorder, recorder.matmul(x, y), ())


@public
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """The product x @ weight.T + bias, PyTorch's linear layer."""
    product = matmul(x, weight.T)
    return product if bias is None else product + bias


@public
def concat(tensors: Sequence[Any], axis: Any = 0) -> Any:
    """Tensors joined along an axis.

    Of PyTorch's tensors, empty ones of one axis beside others add nothing.
    """
    given = list(tensors)
    if not given:
        raise ShapeError.here("concat of no tensors")
    recorder = recorder_of("concat", tuple(given))
    pairs = [(t, as_operand(t)) for t in given]
    handles = [handle for _, handle in pairs]
    if recorder.origin.library == "torch":
        handles = [h for h in handles if not _is_nothing(h)] or handles
    rank = len(handles[0].axes) if isinstance(handles[0], Handle) else 0
    at = normal_axis(axis, rank, "concat")
    parts: list[Handle] = []
    for handle in handles:
        if not isinstance(handle, Handle) or not _joinable(handles[0], handle, at):
            found = ", ".join(
                shape_text(h) if isinstance(h, Handle) else "a number" for h in handles
            )
            raise ShapeError.here(
                f"concat along axis {at} of {found}: all other extents must be equal"
            )
        parts.append(handle)
    formats = [h for _, h in pairs if isinstance(h, Handle)]
    dtype = joined_format(formats, recorder.origin)
    # What is empty adds nothing but its format, unless all are.
    parts = [part for part in parts if part.shape[at] != 0] or parts[:1]
    if not parts[1:]:
        alone = next(t for t, h in pairs if h is parts[0])
        return astype(alone, dtype).clone()
    floats = all(part.value.dtype.is_float for part in parts)
    if not floats or joined_format(parts, recorder.origin) != dtype:
        parts = [recorder.cast(part, dtype) for part in parts]
    return Tensor.made(recorder, recorder.concat(parts, at), given)


def _is_nothing(operand: Operand) -> bool:
    """Whether it is empty, and has one axis."""
    return isinstance(operand, Handle) and operand.shape == (0,)


def _joinable(first: Operand, other: Handle, axis: int) -> bool:
    if not isinstance(first, Handle) or len(first.axes) != len(other.axes):
        return False
    pairs = enumerate(zip(first.shape, other.shape, strict=True))
    return all(i == axis or None in (a, b) or a == b for i, (a, b) in pairs)


concatenate = cat = concat


@public
def stack(tensors: Sequence[Any], axis: Any = 0) -> Any:
    """Tensors joined along a new axis."""
    return concat([expand_dims(t, axis) for t in tensors], axis)


@public
def transpose(x: Any, *axes: Any) -> Any:
    """Axes in another order; two integers exchange two axes."""
    return as_tensor("transpose", x).transpose(*axes)


@public
def permute(x: Any, *order: Any) -> Any:
    """Axes in the given order."""
    return as_tensor("permute", x).permute(*order)


@public
def swapaxes(x: Any, first: int, second: int) -> Any:
    """Two axes exchanged."""
    return as_tensor("swapaxes", x).swapaxes(first, second)


@public
def reshape(x: Any, *shape: Any) -> Any:
    """Axes split and merged, row-major."""
    return as_tensor("reshape", x).reshape(*shape)


@public
def expand_dims(x: Any, axis: Any) -> Any:
    """A new axis of extent 1."""
    x = as_tensor("expand_dims", x)
    given = axis if is_sequence(axis) else (axis,)
    rank = x.ndim + len(given)
    new = {normal_axis(a, rank, "expand_dims") for a in given}
    old = iter(range(x.ndim))
    return x.viewed(
        Arranged(tuple(None if i in new else next(old) for i in range(rank)))
    )


unsqueeze = expand_dims


@public
def squeeze(x: Any, axis: Any = None) -> Any:
    """Without axes of extent 1: all of them, or the given ones.

    PyTorch leaves axes of other extents as they are.

    Raises:
        ShapeError: An axis has another extent, or a dynamic one, and may have it.
    """
    x = as_tensor("squeeze", x)
    if axis is None and None in x.handle.shape:
        raise ShapeError.here(
            f"squeeze of all axes of {shape_text(x.handle)}, of which the dynamic ones "
            "may have the extent 1 as well; state the axes"
        )
    units = [i for i, extent in enumerate(x.handle.shape) if extent == 1]
    gone = units if axis is None else normal_axes(axis, x.ndim, "squeeze")
    if x.recorder.origin.library == "torch":
        gone = [i for i in gone if x.handle.shape[i] in (1, None)]
    if any(i not in units for i in gone):
        raise ShapeError.here(
            f"squeeze of axis {axis} of {shape_text(x.handle)}: its extent is not 1"
        )
    return x.viewed(Arranged(tuple(i for i in range(x.ndim) if i not in gone)))


@public
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Axes from the first to the last given merged into one."""
    x = as_tensor("flatten", x)
    x = x if x.ndim else expand_dims(x, 0)
    first = normal_axis(start_dim, x.ndim, "flatten")
    last = normal_axis(end_dim, x.ndim, "flatten")
    if first > last:
        raise ShapeError.here(
            f"flatten from axis {first} to axis {last}, which comes before it"
        )
    return x.seen_as(Flattened(first, last))


@public
def unflatten(x: Any, axis: Any, shape: Sequence[Any]) -> Any:
    """One axis split into several."""
    x = as_tensor("unflatten", x)
    at = normal_axis(axis, x.ndim, "unflatten")
    return x.reshape(*x.shape[:at], *shape, *x.shape[at + 1 :])


@public
def expand(x: Any, *shape: Any) -> Any:
    """Axes of extent 1 repeated, and leading axes added; -1 keeps an extent."""
    x = as_tensor("expand", x)
    wanted = extents_given(flat_arguments(shape))
    if len(wanted) < x.ndim:
        raise ShapeError.here(f"expand of {shape_text(x.handle)} to {len(wanted)} axes")
    return x.viewed(Expanded(tuple(wanted)))


broadcast_to = expand


@public
def repeat_interleave(
    x: Any, repeats: Any, axis: Any = None, *, output_size: int | None = None
) -> Any:
    """Every element of an axis, or of all axes merged, repeated, next to each other.

    Args:
        x: The tensor.
        repeats: How often: a number, or a vector with one for each element, whose
            values are known while tracing if `output_size` is not given.
        axis: The axis; all of them, merged, where it is None.
        output_size: How many elements there are then.
    """
    x = as_tensor("repeat_interleave", x)
    if axis is None:
        x, axis = flatten(x), 0
    at = normal_axis(axis, x.ndim, "repeat_interleave")
    if isinstance(repeats, Tensor) or is_sequence(repeats) or is_array(repeats):
        from mirage_dsl.frontend.indices import repeated

        return repeated(x, at, repeats, output_size)
    grown = expand_dims(x, at + 1)
    sizes = [-1] * grown.ndim
    sizes[at + 1] = integer(repeats, "repeats")
    repeated = expand(grown, *sizes).viewed(Flattened(at, at + 1))
    return Tensor.made(x.recorder, repeated.handle, ())


@public
def narrow(x: Any, axis: Any, start: int, length: int) -> Any:
    """`length` elements of an axis from `start`, which counts from its end below 0."""
    x = as_tensor("narrow", x)
    at = normal_axis(axis, x.ndim, "narrow")
    if isinstance(start, Tensor):
        raise UnsupportedError.here(
            "narrow from a position that is data; use index_select, of the position "
            "plus arange(length)"
        )
    extent = x.handle.shape[at]
    if extent is not None:
        first = start + extent if start < 0 else start
        if not 0 <= first <= first + length <= extent:
            raise ShapeError.here(
                f"narrow of axis {at} with extent {extent} to {length} elements from "
                f"{start} on: they must lie within it"
            )
        start = first
    return x[(builtins.slice(None),) * at + (builtins.slice(start, start + length),)]


@public
def split(x: Any, sizes: Any, axis: Any = 0) -> Any:
    """Pieces of an axis: of equal size, or of the given sizes (as PyTorch's)."""
    x, at, extent = _to_be_cut("split", x, axis)
    if is_sequence(sizes):
        lengths = [integer(s, "a size") for s in sizes]
    else:
        size = integer(sizes, "the size")
        starts = range(0, extent, builtins.max(size, 1))
        lengths = [builtins.min(size, extent - s) for s in starts] or [0]
    if builtins.sum(lengths) != extent or builtins.min(lengths) < 0:
        raise ShapeError.here(
            f"split of axis {at} with extent {extent} into {lengths}: the sizes must "
            "be 0 or more, and add up"
        )
    starts = [builtins.sum(lengths[:i]) for i in range(len(lengths))]
    return tuple(narrow(x, at, s, n) for s, n in zip(starts, lengths, strict=True))


def _to_be_cut(what: str, x: Any, axis: Any) -> tuple[Tensor, int, int]:
    """A tensor, one of its axes, and how long that is."""
    x = as_tensor(what, x)
    at = normal_axis(axis, x.ndim, what)
    instead = "x[:4] and x[4:], give the function the parts"
    return x, at, known_extent(what, x, at, instead)


def known_extent(what: str, x: Tensor, axis: int, instead: str) -> int:
    """How long an axis is.

    Args:
        what: Who asks, for messages.
        x: The tensor.
        axis: The axis.
        instead: What slices do the same, and what else one can do.

    Raises:
        UnsupportedError: It is dynamic.
    """
    extent = x.handle.shape[axis]
    if extent is None:
        raise UnsupportedError.here(
            f"{what} of axis {axis}, whose extent is dynamic: slice it by numbers, as "
            f"{instead}, or take the dim out of dynamic="
        )
    return extent


@public
def chunk(x: Any, chunks: int, axis: Any = 0) -> Any:
    """An axis cut into so many pieces, the last one shorter if need be."""
    x, at, extent = _to_be_cut("chunk", x, axis)
    count = integer(chunks, "chunks")
    return split(x, -(-extent // count) or [0] * count, at)


@public
def unbind(x: Any, axis: Any = 0) -> Any:
    """The slices along an axis, without it."""
    x = as_tensor("unbind", x)
    at = normal_axis(axis, x.ndim, "unbind")
    index = (builtins.slice(None),) * at
    return tuple(x[(*index, i)] for i in range(len(x.swapaxes(0, at))))


@public
def astype(x: Any, dtype: Any = None, *, copy: bool = True, **_: Any) -> Any:
    """A copy in another element format, as NumPy's."""
    return _converted(as_tensor("astype", x), dtype, copy=copy)


def to(
    x: Any, dtype: Any = None, *rest: Any, copy: bool = False, **options: Any
) -> Any:
    """The tensor in another element format, as PyTorch's: itself if it has that.

    Before the format, or alone, may stand the tensor's own device.
    """
    x = as_tensor("to", x)
    device = dtype if _is_device(dtype) else options.get("device")
    if device is not None:
        x.stays(device)
    if _is_device(dtype) or dtype is None:
        # PyTorch's `to(device, dtype, ...)`.
        named = bool(rest) and not isinstance(rest[0], bool)
        dtype = options.get("dtype") or (rest[0] if named else x.dtype)
        rest = rest[1:] if named else rest
    found = _converted(x, dtype, copy=copy or rest[1:] == (True,))
    if by_channels(options.get("memory_format")):
        if found is x:
            return x.contiguous(options["memory_format"])
        found.memory.row_major = False
    return found


def _converted(x: Tensor, dtype: Any, *, copy: bool) -> Tensor:
    if isinstance(dtype, Tensor):
        dtype = dtype.handle.value.dtype
    found = format_meant("cannot convert to", dtype, x.recorder.origin)
    if found == x.handle.value.dtype:
        return x.clone() if copy else x
    if found == boolean:
        return complement(complement(x))
    return Tensor.made(x.recorder, x.recorder.rounded(x.handle, found), (x,))


def format_meant(what: str, dtype: Any, origin: Origin) -> DType:
    """The format that a name or an object means to the library of a call.

    Raises:
        DTypeError: It is none of ours.
    """
    meant = dtype
    if origin.library == "numpy" and isinstance(dtype, str):
        # Its `i8` has 8 bytes; names that it does not know may be ours.
        with suppress(TypeError):
            meant = np.dtype(dtype)
    found = dtype_of(meant)
    if found is None:
        raise DTypeError.here(f"{what} {dtype}; expected one of {DTYPE_NAMES}")
    return found


def _is_device(value: object) -> bool:
    named = isinstance(value, str) and value.split(":")[0] in _DEVICES
    return named or type(value).__name__ == "device"


_DEVICES = ("cpu", "cuda")
