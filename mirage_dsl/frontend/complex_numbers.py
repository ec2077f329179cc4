"""Complex tensors in a traced function: pairs of real ones.

Programs have no complex dtype.  A complex tensor is its real and its imaginary part,
two tensors of the program, and what is computed of it is computed of these.  It comes
from `torch.polar`, `torch.complex`, `torch.view_as_complex` or an argument, which is
taken as the pairs that lie in its memory.
"""

# PyTorch's dtypes are looked up by name.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
)
from mirage_dsl.core.types import DType, f16, f32, f64, promote
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.composites import einsum
from mirage_dsl.frontend.elementary import ELEMENTARY
from mirage_dsl.frontend.fourier import FOURIER
from mirage_dsl.frontend.functions import NoTensor, as_tensor, formulas, refusing
from mirage_dsl.frontend.memory import link
from mirage_dsl.frontend.program import shape_text
from mirage_dsl.frontend.recorder import flat_arguments
from mirage_dsl.frontend.tensor import BothWays, Tensor, both_ways, refuse

_NAMES: Mapping[DType, str] = {f16: "complex32", f32: "complex64", f64: "complex128"}
"""PyTorch's complex dtypes, by that of their parts."""


_ADVICE = "compute with z.real and z.imag, or with torch.view_as_real(z)"


def _refuse(what: str, advice: str = _ADVICE) -> NoReturn:
    refuse(what, advice)


def _written(*_: Any) -> NoReturn:
    _refuse("a write to a complex tensor", "compute a new one")


def _compared(*_: Any) -> NoReturn:
    _refuse("a comparison of complex tensors")


def _operator(sign: str, name: str) -> BothWays:
    """An operator of Python that computes with complex tensors."""
    return both_ways(lambda x, y: of_complex(sign, name, (x, y), {}))


@refusing
class Complex(NoTensor):
    """A complex tensor of a trace.

    Args:
        real: Its real part.
        imag: Its imaginary part, of the same shape and dtype.
        conjugated: Whether that is to be negated when it is read.
        pairs: Both along a last axis of extent 2, of which they are views.
    """

    reason = "a complex tensor here cannot be traced; use its parts, z.real and z.imag"

    def __init__(
        self,
        real: Tensor,
        imag: Tensor,
        *,
        conjugated: bool = False,
        pairs: Tensor | None = None,
    ) -> None:
        self.real, self._imag = real, imag
        self._conjugated, self._pairs = conjugated, pairs

    @property
    def imag(self) -> Tensor:
        """The imaginary part."""
        return f.neg(self._imag) if self._conjugated else self._imag

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        torch = self.real.recorder.origin.torch
        return type(self) if torch is None else torch.Tensor

    @property
    def dtype(self) -> Any:
        """PyTorch's complex dtype."""
        torch = self.real.recorder.origin.torch
        name = _NAMES[self.real.handle.value.dtype]
        return name if torch is None else getattr(torch, name)

    def is_complex(self) -> bool:
        """It is."""
        return True

    def is_floating_point(self) -> bool:
        """Complex numbers are not floats to PyTorch."""
        return False

    def is_conj(self) -> bool:
        """Whether its imaginary part is negated when it is read."""
        return self._conjugated

    def conjugate(self) -> Complex:
        """Its conjugate, in the same memory."""
        return Complex(self.real, self._imag, conjugated=not self._conjugated)

    def resolved(self) -> Complex:
        """The same with an imaginary part that is read as it is."""
        return Complex(self.real, self.imag) if self._conjugated else self

    def as_pairs(self) -> Tensor:
        """Both parts along a last axis, in the same memory.

        Raises:
            UnsupportedError: The imaginary part is to be negated when it is read.
        """
        if self._conjugated:
            _refuse("view_as_real of a conjugate", "call resolve_conj() first")
        if self._pairs is None:
            old = self.real, self._imag
            # A choice by position is a part of the kernel that computes the two.
            recorder = self.real.recorder
            place = recorder.index((recorder.dims.fresh(2),))
            first = f.equal(Tensor.made(recorder, place, ()), 0)
            pairs = f.where(first, *(f.expand_dims(part, -1) for part in old))
            for part in old:
                link(part.memory, pairs.memory)
            self.real, self._imag, self._pairs = pairs[..., 0], pairs[..., 1], pairs
        return self._pairs.viewed()

    def to(self, *args: Any, **options: Any) -> Complex:
        """On its own device, or in another complex dtype."""
        given = [_real_format(a) for a in args]
        named = {name: _real_format(option) for name, option in options.items()}
        parts = [part.to(*given, **named) for part in (self.real, self.imag)]
        return Complex(*parts)

    type = to

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in _OF_EITHER:
            return getattr(self.real, name)
        if name not in FUNCTIONS:
            _refuse(f"{name} of a complex tensor")

        def method(*args: Any, **kwargs: Any) -> Any:
            return of_complex(f"the method {name}", name, (self, *args), kwargs)

        return method

    @property
    def T(self) -> Complex:  # noqa: N802
        """Axes in reverse order."""
        return Complex(self.real.T, self.imag.T)

    @property
    def mT(self) -> Complex:  # noqa: N802
        """The last two axes exchanged."""
        return Complex(self.real.mT, self.imag.mT)

    def __getitem__(self, index: Any) -> Complex:
        return _on_parts("__getitem__")(self, index)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        _written()

    def __len__(self) -> int:
        return len(self.real)

    def __iter__(self) -> Iterator[Complex]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.real)

    __add__, __radd__ = _operator("+", "add")
    __sub__, __rsub__ = _operator("-", "sub")
    __mul__, __rmul__ = _operator("*", "mul")
    __truediv__, __rtruediv__ = _operator("/", "div")

    def __matmul__(self, other: Any) -> Any:
        return of_complex("@", "matmul", (self, other), {})

    __iadd__ = __isub__ = __imul__ = __itruediv__ = _written
    __eq__ = __ne__ = _compared

    def __neg__(self) -> Any:
        return _negated(self)

    def __pos__(self) -> Complex:
        return self

    def __abs__(self) -> Any:
        return _size(self)

    def __repr__(self) -> str:
        return f"<traced complex {shape_text(self.real.handle)}>"

    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(getattr(function, "__name__", function)).strip("_")
        return of_complex(f"torch.{name}", name, args, kwargs or {})


_OF_EITHER = frozenset(
    {"cpu", "cuda", "device", "dim", "get_device", "is_cpu", "is_cuda", "layout"}
    | {"ndim", "ndimension", "nelement", "numel", "recorder", "requires_grad", "shape"}
    | {"size"}
)
"""Attributes that are those of its parts."""


def _real_format(option: Any) -> Any:
    """The dtype of the parts for one that is complex; other options are themselves."""
    if isinstance(option, Complex):
        return option.real
    if isinstance(option, Tensor):
        _refuse(f"a complex tensor as {option.dtype}", "take z.real, or abs()")
    for dtype, name in _NAMES.items():
        if str(option).removeprefix("torch.") == name:
            return dtype
    if str(option).startswith("torch.") and hasattr(option, "is_complex"):
        _refuse(f"a complex tensor as {option}", "take z.real, or abs()")
    return option


def of_complex(
    what: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """A function of PyTorch, or a method, of complex tensors.

    Args:
        what: What it is called, for messages.
        name: Its name.
        args: Its arguments; one of them is complex, or holds some.
        kwargs: Those by keyword.

    Raises:
        UnsupportedError: It cannot be traced.
    """
    function = FUNCTIONS.get(name)
    if function is None or kwargs.keys() & {"out", "alpha"}:
        _refuse(f"{what} of complex tensors")
    return function(*args, **kwargs)


# -- Where they come from --------------------------------------------------------------


def view_as_complex(x: Any) -> Complex:
    """The complex tensor whose parts lie along the last axis."""
    x = as_tensor("view_as_complex", x)
    _require_format("view_as_complex", x)
    if not x.ndim or x.handle.shape[-1] != 2:
        raise ShapeError.here(
            f"view_as_complex of {shape_text(x.handle)}; expected a last axis of "
            "extent 2"
        )
    return Complex(x[..., 0], x[..., 1], pairs=x.viewed())


def polar(abs: Any, angle: Any) -> Complex:
    """The complex tensor of sizes and angles."""
    _require_one_format("polar", abs, angle)
    return Complex(abs * ELEMENTARY["cos"](angle), abs * ELEMENTARY["sin"](angle))


def complex_of(real: Any, imag: Any) -> Complex:
    """The complex tensor of two real ones, which broadcast."""
    _require_one_format("complex", real, imag)
    return _joined(real.clone(), imag.clone())


def _require_format(what: str, *tensors: Tensor) -> None:
    for x in tensors:
        if x.handle.value.dtype not in _NAMES:
            raise DTypeError.here(
                f"{what} of {x.handle.value.dtype}; expected float16, float32 or "
                "float64"
            )


def _require_one_format(what: str, *tensors: Any) -> None:
    given = [as_tensor(what, x) for x in tensors]
    _require_format(what, *given)
    f.require_one_dtype(what, *given)


def _joined(real: Any, imag: Any) -> Complex:
    """Copies of two parts, in one shape and one dtype."""
    dtype = promote(real.handle.value.dtype, imag.handle.value.dtype)
    parts = [f.astype(part, dtype) for part in (real, imag)]
    if real.handle.shape != imag.handle.shape:
        shape = np.broadcast_shapes(tuple(real.shape), tuple(imag.shape))
        parts = [f.expand(part, *shape) for part in parts]
    return Complex(*parts)


# -- What is computed of them ----------------------------------------------------------


def _parts_of(x: Any) -> tuple[Any, Any]:
    """The parts of an operand; the imaginary one of what is real is None."""
    if isinstance(x, Complex | complex):
        return x.real, x.imag
    return x, None


def _sum(a: Any, b: Any) -> Any:
    """The sum; what only one operand has is a copy of that."""
    (ar, ai), (br, bi) = _parts_of(a), _parts_of(b)
    imag = [part for part in (ai, bi) if part is not None]
    return _of_two(f.add(ar, br), imag[0] if len(imag) == 1 else f.add(*imag))


def _of_two(real: Any, imag: Any) -> Complex:
    """A complex tensor of a tensor and what may be a number."""
    return _joined(real, imag if isinstance(imag, Tensor) else real * 0 + imag)


def _negated(x: Any) -> Any:
    return Complex(f.neg(x.real), f.neg(x.imag)) if isinstance(x, Complex) else -x


def _difference(a: Any, b: Any) -> Any:
    return _sum(a, _negated(b))


def _product(multiply: Callable[..., Any]) -> Callable[..., Any]:
    """The product of complex numbers, by one of real ones."""

    def product(a: Any, b: Any) -> Any:
        (ar, ai), (br, bi) = _parts_of(a), _parts_of(b)
        if bi is None:
            return Complex(multiply(ar, br), multiply(ai, br))
        if ai is None:
            return Complex(multiply(ar, br), multiply(ar, bi))
        real = multiply(ar, br) - multiply(ai, bi)
        return Complex(real, multiply(ar, bi) + multiply(ai, br))

    return product


def _einsum(equation: Any, *operands: Any) -> Any:
    """Products of two operands, or a sum of one."""
    first, *others = flat_arguments(operands)
    if others[1:]:
        _refuse("einsum of three complex tensors or more", "take two at a time")
    if others:
        return _product(lambda *parts: einsum(equation, *parts))(first, others[0])
    return Complex(*(einsum(equation, part) for part in _parts_of(first)))


def _quotient(a: Any, b: Any) -> Any:
    (ar, ai), (br, bi) = _parts_of(a), _parts_of(b)
    if bi is not None:
        _refuse("a quotient by complex numbers", "multiply by b.conj() / b.abs() ** 2")
    return Complex(f.div(ar, br), f.div(ai, br))


def _size(x: Complex) -> Any:
    return ELEMENTARY["hypot"](x.real, x.imag)


def _exponential(x: Complex) -> Any:
    size, angle = f.exp(x.real), x.imag
    return Complex(size * ELEMENTARY["cos"](angle), size * ELEMENTARY["sin"](angle))


def _on_parts(name: str) -> Callable[..., Any]:
    """A method that does the same to both parts."""

    def calling(x: Any, *args: Any, **kwargs: Any) -> Any:
        found = [getattr(part, name)(*args, **kwargs) for part in (x.real, x.imag)]
        if isinstance(found[0], tuple):
            return tuple(Complex(*parts) for parts in zip(*found, strict=True))
        return Complex(*found)

    return calling


def _of_lists(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a list of tensors, all of them complex."""

    def calling(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        both = [[_part(x, name) for x in tensors] for name in ("real", "imag")]
        return Complex(*(function(parts, *args, **kwargs) for parts in both))

    return calling


def _part(x: Any, name: str) -> Any:
    if not isinstance(x, Complex):
        _refuse("real tensors joined with complex ones", "use torch.complex first")
    return getattr(x, name)


def _answer(name: str) -> Callable[..., Any]:
    """What an object answers to a question, as a function."""

    def calling(x: Any) -> Any:
        found = getattr(x, name)
        return found() if callable(found) and not isinstance(found, NoTensor) else found

    return calling


def _transform(function: Callable[..., Any]) -> Callable[..., Any]:
    """A Fourier transform, of which one part or both are the result."""

    def calling(input: Any, *args: Any, **kwargs: Any) -> Any:
        found = function(_parts_of(input), *args, **kwargs)
        return found if isinstance(found, Tensor) else Complex(found[0], found[1])

    return calling


_FOURIER = {name: _transform(function) for name, function in FOURIER.items()}
COMPLEX_OF_REAL: Mapping[str, Callable[..., Any]] = {
    **_FOURIER,
    "complex": complex_of,
    "polar": polar,
    "view_as_complex": view_as_complex,
}
"""By PyTorch's names."""

_LINEAR = (
    "chunk clone contiguous cumsum detach expand flatten flip gather index_select mean "
    "movedim narrow permute repeat repeat_interleave reshape roll select split squeeze "
    "sum swapaxes swapdims t transpose unbind unflatten unsqueeze view"
)
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **_FOURIER,
    **{name: _on_parts(name) for name in _LINEAR.split()},
    "add": _sum,
    **dict.fromkeys(("sub", "subtract"), _difference),
    **dict.fromkeys(("mul", "multiply"), _product(f.mul)),
    **dict.fromkeys(("matmul", "mm", "bmm"), _product(f.matmul)),
    "einsum": _einsum,
    **dict.fromkeys(("div", "divide", "true_divide"), _quotient),
    **dict.fromkeys(("neg", "negative"), _negated),
    **dict.fromkeys(("abs", "absolute"), _size),
    **dict.fromkeys(("cat", "concat"), _of_lists(f.concat)),
    **{name: _answer(name) for name in ("imag", "is_complex", "is_conj", "real")},
    **formulas(angle=lambda x: ELEMENTARY["arctan2"](x.imag, x.real)),
    "conj": Complex.conjugate,
    "exp": _exponential,
    "is_floating_point": Complex.is_floating_point,
    "resolve_conj": Complex.resolved,
    "stack": _of_lists(f.stack),
    "view_as_real": Complex.as_pairs,
}
"""By PyTorch's names, of which one argument at least is complex."""
