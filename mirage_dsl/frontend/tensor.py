"""The symbolic tensor that a traced function computes with.

It has the operators and methods that NumPy's and PyTorch's users expect, and takes
part in both libraries' dispatch, so that their functions trace as well.  Methods are
thin: what they compute is in `functions`, and recording is the recorder's.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

from mirage_dsl.errors import TraceError
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend.indexing import indexed
from mirage_dsl.frontend.location import user_location
from mirage_dsl.frontend.methods import (
    call,
    logical,
    method,
    refuse_value,
    refused,
    unknown,
)
from mirage_dsl.frontend.recorder import Recorder
from mirage_dsl.frontend.steps import Handle, shape_text
from mirage_dsl.types import DType


class Tensor:
    """A tensor whose values are not known while the function is traced."""

    __array_priority__ = 1000

    def __init__(self, recorder: Recorder, handle: Handle) -> None:
        self.recorder = recorder
        self.handle = handle

    @property
    def shape(self) -> tuple[Any, ...]:
        """Extents of the axes."""
        return shapes.sizes_of(self.handle)

    @property
    def dtype(self) -> DType:
        """Element format."""
        return self.handle.value.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.handle.axes)

    @property
    def T(self) -> Tensor:  # noqa: N802
        """Axes in reverse order."""
        return self._view(shapes.permuted(self.handle, range(self.ndim)[::-1]))

    @property
    def mT(self) -> Tensor:  # noqa: N802
        """The last two axes exchanged."""
        return self.swapaxes(-1, -2)

    def size(self, axis: int | None = None) -> Any:
        """The shape, or one extent."""
        return self.shape if axis is None else self.shape[axis]

    def __len__(self) -> int:
        if not self.ndim:
            raise TraceError(
                "len() of a tensor without axes, which has none", user_location()
            )
        return int(self.shape[0])

    def _view(self, handle: Handle) -> Tensor:
        return Tensor(self.recorder, handle)

    def __add__(self, other: Any) -> Any:
        return call("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return call("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return call("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return call("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return call("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return call("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return call("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return call("div", other, self)

    def __lt__(self, other: Any) -> Any:
        return call("less", self, other)

    def __le__(self, other: Any) -> Any:
        return call("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return call("less", other, self)

    def __ge__(self, other: Any) -> Any:
        return call("less_equal", other, self)

    def __eq__(self, other: object) -> Any:
        return call("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return call("not_equal", self, other)

    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return call("neg", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return call("abs", self)

    def __pow__(self, other: Any) -> Any:
        return call("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return call("pow", other, self)

    def __matmul__(self, other: Any) -> Any:
        return call("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return call("matmul", other, self)

    __mod__ = __rmod__ = refused("%", "tensors hold floats")
    __floordiv__ = __rfloordiv__ = refused("//", "use /")
    __and__ = __rand__ = logical("&")
    __or__ = __ror__ = logical("|")
    __xor__ = __rxor__ = logical("^")
    __invert__ = logical("~")

    def __getitem__(self, index: Any) -> Tensor:
        return self._view(indexed(self.recorder, self.handle, index))

    def permute(self, *order: Any) -> Tensor:
        """Axes in the given order."""
        return self._view(shapes.permuted(self.handle, shapes.flat_arguments(order)))

    def transpose(self, *axes: Any) -> Tensor:
        """NumPy's transpose, or PyTorch's: two integers exchange two axes."""
        given = shapes.flat_arguments(axes)
        if not given or given == (None,):
            return self.T
        if len(axes) == 2 and self.ndim >= 2:
            return self.swapaxes(*axes)
        return self.permute(*given)

    def swapaxes(self, first: int, second: int) -> Tensor:
        """Two axes exchanged."""
        order = list(range(self.ndim))
        a = shapes.normal_axis(first, self.ndim, "transpose")
        b = shapes.normal_axis(second, self.ndim, "transpose")
        order[a], order[b] = b, a
        return self.permute(order)

    def t(self) -> Tensor:
        """The transpose of a matrix."""
        return self.T

    def reshape(self, *shape: Any) -> Tensor:
        """Axes split and merged, row-major."""
        wanted = shapes.flat_arguments(shape)
        return self._view(shapes.reshaped(self.recorder, self.handle, wanted))

    view = reshape

    def contiguous(self, *_: Any, **__: Any) -> Tensor:
        """The same tensor: memory order is not part of a program."""
        return self

    clone = detach = copy = contiguous

    def half(self) -> Tensor:
        """As float16."""
        return self.astype("float16")

    def bfloat16(self) -> Tensor:
        """As bfloat16."""
        return self.astype("bfloat16")

    def float(self) -> Tensor:
        """As float32."""
        return self.astype("float32")

    def __bool__(self) -> bool:
        refuse_value(
            "the truth of a tensor", "use where(condition, a, b) instead of if or and"
        )

    __float__ = __int__ = __complex__ = unknown("a tensor as a Python number")
    item = unknown("item() of a tensor")
    tolist = unknown("tolist() of a tensor")
    numpy = unknown("numpy() of a tensor")

    def __index__(self) -> NoReturn:
        refuse_value(
            "a tensor as an index or a range", "use a Python integer, or where()"
        )

    def __iter__(self) -> Iterator[Any]:
        refuse_value(
            "iterating over a tensor",
            "use whole-tensor operators, or index it: x[i] for i in range(x.shape[0])",
        )

    def __contains__(self, item: object) -> bool:
        refuse_value("`in` of a tensor", "compare with == and reduce with max")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        refuse_value(
            "a tensor as a NumPy array",
            "call functions of mirage, NumPy or PyTorch on the tensor itself",
        )

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise TraceError(
            "assignment into a tensor: tensors are values; build a new one with "
            "where() or concat()",
            user_location(),
        )

    def __getattr__(self, name: str) -> Any:
        # Other libraries probe for their protocols, whose absence they expect.
        if name.startswith("__"):
            raise AttributeError(name)
        from mirage_dsl.frontend.interop import LIKENESS, called, torch_method

        method = torch_method(name)
        if method is not None:
            return partial(called, f"the method {name}", method, self)
        known = [n for n in dir(type(self)) if not n.startswith("_")]
        close = difflib.get_close_matches(name.rstrip("_"), known, n=1, cutoff=LIKENESS)
        hint = f"did you mean .{close[0]}?" if close else "see mirage.functions"
        if name.endswith("_") and close:
            hint = f"tensors are values: use .{close[0]} and assign the result"
        raise TraceError(
            f"a traced tensor has no attribute {name!r}; {hint}", user_location()
        )

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        from mirage_dsl.frontend.interop import call_ufunc

        return call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(
        self, function: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:
        from mirage_dsl.frontend.interop import call_numpy

        return call_numpy(function, args, kwargs)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        from mirage_dsl.frontend.interop import call_torch

        arguments: Mapping[str, Any] = kwargs or {}
        return call_torch(function, args, arguments)

    def max(self, *args: Any, **kwargs: Any) -> Any:
        """The largest element, or (given an axis) those of its rows."""
        return _extreme(self, "max", args, kwargs)

    def min(self, *args: Any, **kwargs: Any) -> Any:
        """The smallest element, or (given an axis) those of its rows."""
        return _extreme(self, "min", args, kwargs)

    def where(self, condition: Any, other: Any) -> Tensor:
        """This tensor where the condition is not 0, else the other."""
        return call("where", condition, self, other)

    def __repr__(self) -> str:
        return f"<traced {shape_text(self.handle)}>"

    matmul = method("matmul")
    bmm = mm = matmul
    exp = method("exp")
    exp2 = method("exp2")
    log = method("log")
    sqrt = method("sqrt")
    rsqrt = method("rsqrt")
    square = method("square")
    reciprocal = method("reciprocal")
    abs = method("abs")
    neg = negative = method("neg")
    relu = method("relu")
    silu = method("silu")
    gelu = method("gelu")
    sigmoid = method("sigmoid")
    tanh = method("tanh")
    erf = method("erf")
    pow = method("pow")
    add = method("add")
    sub = subtract = method("sub")
    mul = multiply = method("mul")
    div = divide = true_divide = method("div")
    maximum = method("maximum")
    minimum = method("minimum")
    clamp = clip = method("clamp")
    masked_fill = method("masked_fill")
    lt = less = method("less")
    le = less_equal = method("less_equal")
    gt = greater = method("greater")
    ge = greater_equal = method("greater_equal")
    eq = method("equal")
    ne = method("not_equal")
    sum = method("sum")
    mean = method("mean")
    amax = method("amax")
    amin = method("amin")
    var = method("var", shapes.with_correction)
    std = method("std", shapes.with_correction)
    softmax = method("softmax")
    squeeze = method("squeeze")
    unsqueeze = expand_dims = method("expand_dims")
    flatten = method("flatten")
    ravel = method("flatten")
    unflatten = method("unflatten")
    expand = broadcast_to = method("expand")
    repeat_interleave = method("repeat_interleave")
    chunk = method("chunk")
    split = method("split")
    unbind = method("unbind")
    narrow = method("narrow")
    astype = to = type = method("astype")


def _extreme(
    x: Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from mirage_dsl.frontend.extremes import extreme

    return extreme(call(name, x, *args, **kwargs), name, args, kwargs)
