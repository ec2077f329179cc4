"""The symbolic tensor that a traced function computes with, and what it says of itself.

Called with PyTorch's tensors, or with specs, a function sees tensors that are PyTorch's
to `isinstance`, of PyTorch's dtypes, on the device of the arguments (a CUDA device for
specs).  Called with NumPy's arrays it sees arrays.  In graphs that are built by hand
there is no library, and dtypes are those of mirage.  What the answer would depend on
and no trace knows, such as strides, is refused.
"""

# PyTorch's and NumPy's attributes are looked up by name.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import numpy as np

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    TraceError,
    UnsupportedError,
)
from mirage_dsl.core.types import u8
from mirage_dsl.frontend.arguments import Origin, is_symbol
from mirage_dsl.frontend.memory import (
    Arranged,
    Path,
    Reshaped,
    Storage,
    Strided,
    View,
    always_a_view,
    link,
    views_of_index,
)
from mirage_dsl.frontend.program import (
    Handle,
    shape_text,
)
from mirage_dsl.frontend.recorder import (
    Recorder,
    flat_arguments,
    normal_axis,
    permutation,
    sizes_of,
    with_correction,
)
from mirage_dsl.ir.evaluate import numpy_dtype

LIKENESS = 0.8
"""Of two names, above which one may be a slip of the other."""


class UnknownAttributeError(TraceError, AttributeError):
    """An attribute that no tensor has, of which `hasattr` may ask."""


class Shape(tuple[Any, ...]):
    """The extents of a tensor's axes; to PyTorch's users a `torch.Size`."""

    origin = Origin()

    @classmethod
    def of(cls, extents: Sequence[Any], origin: Origin) -> Shape:
        """The shape of a tensor of that origin."""
        shape = cls(extents)
        shape.origin = origin
        return shape

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        torch = self.origin.torch
        return tuple if torch is None else torch.Size

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(int(extent) for extent in self)

    def _like(self, extents: Sequence[Any]) -> Shape:
        return Shape.of(extents, self.origin)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return self._like(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Any:
        return self._like((*self, *other))

    def __radd__(self, other: Any) -> Any:
        return self._like((*other, *self))

    def __mul__(self, count: Any) -> Any:
        return self._like(tuple(self) * count)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        sizes = tuple(self)
        return f"{sizes}" if self.origin.torch is None else f"torch.Size({list(sizes)})"


_CONSTANT: Mapping[str, Any] = MappingProxyType(
    {
        "grad": None,
        "grad_fn": None,
        "is_ipu": False,
        "is_leaf": True,
        "is_maia": False,
        "is_meta": False,
        "is_mkldnn": False,
        "is_mps": False,
        "is_mtia": False,
        "is_nested": False,
        "is_quantized": False,
        "is_sparse": False,
        "is_sparse_csr": False,
        "is_vulkan": False,
        "is_xla": False,
        "is_xpu": False,
        "requires_grad": False,
        "retains_grad": False,
    }
)
"""Attributes of PyTorch's dense tensors on a GPU that want no gradients."""


class Attributes:
    """The attributes and questions of a traced tensor that compute nothing."""

    recorder: Recorder

    memory: Storage

    if TYPE_CHECKING:

        @property
        def handle(self) -> Handle:
            """What it holds."""
            ...

    def __new__(cls, recorder: Recorder, handle: Handle, *_: Any, **__: Any) -> Any:
        torch = recorder.origin.torch
        if torch is None:
            return object.__new__(cls)
        # Extents that are not known are 1 to PyTorch's own code, which never asks.
        sizes = [1 if extent is None else extent for extent in handle.shape]
        dtype = getattr(torch, handle.value.dtype.long_name)
        return torch.Tensor._make_wrapper_subclass(
            _torch_like(cls), sizes, dtype=dtype, device="meta"
        )

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        array = self._origin.library == "numpy" and not self.is_number
        return np.ndarray if array else type(self)

    @property
    def is_number(self) -> bool:
        """Whether NumPy has a number there, which nothing changes, and no array."""
        if self.recorder.origin.library != "numpy" or self.ndim:
            return False
        memory = self.memory
        return not (memory.argument or memory.array or memory.handle.axes)

    @property
    def _origin(self) -> Origin:
        return self.recorder.origin

    @property
    def shape(self) -> Any:
        """Extents of the axes."""
        sizes = sizes_of(self.handle)
        origin = self._origin
        return tuple(sizes) if origin.library == "numpy" else Shape.of(sizes, origin)

    @property
    def dtype(self) -> Any:
        """Element format: PyTorch's or NumPy's own object, or one of mirage's."""
        found = self.handle.value.dtype
        if self._origin.library == "numpy":
            return numpy_dtype(found)
        torch = self._origin.torch
        return found if torch is None else getattr(torch, found.long_name)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.handle.axes)

    @property
    def size(self) -> Any:
        """PyTorch's method: the shape, or one extent.  NumPy's number of elements."""
        return self.numel() if self._origin.library == "numpy" else self._extents

    def _extents(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Number of axes."""
        return self.ndim

    ndimension = dim

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(int(extent) for extent in self.shape)

    nelement = numel

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.handle.value.dtype.itemsize

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel() * self.itemsize

    @property
    def device(self) -> Any:
        """The device of the arguments; for specs the first CUDA device."""
        if self._origin.library == "numpy":
            return "cpu"
        torch = self._origin.torch
        if torch is None:
            self._refuse("device", "import torch, whose devices it would be one of")
        return torch.device(self._origin.device)

    @property
    def is_cuda(self) -> bool:
        """Whether the arguments are on a CUDA device, as specs are."""
        return self._origin.device.startswith("cuda")

    @property
    def is_cpu(self) -> bool:
        """Whether the arguments are on the CPU."""
        return self._origin.device == "cpu"

    def get_device(self) -> int:
        """The device's number; -1 for the CPU."""
        return int(self._origin.device.partition(":")[2] or 0) if self.is_cuda else -1

    @property
    def layout(self) -> Any:
        """`torch.strided`."""
        torch = self._origin.torch
        return self._refuse("layout", "") if torch is None else torch.strided

    @property
    def names(self) -> tuple[None, ...]:
        """PyTorch's names of axes, which it has none of."""
        return (None,) * self.ndim

    def is_floating_point(self) -> bool:
        """Whether elements are floats, and not integers or truth values."""
        return self.handle.value.dtype.is_float

    def is_signed(self) -> bool:
        """Whether elements can be below 0."""
        return self.handle.value.dtype.min < 0

    def is_complex(self) -> bool:
        """Whether elements are complex numbers, which they never are."""
        return False

    is_conj = is_neg = is_shared = is_pinned = is_complex

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """The tensor, if it is to want no gradients."""
        if requires_grad:
            self._refuse(
                "requires_grad_()",
                "kernels have no gradients yet; a layer or an nn.Parameter that is "
                "made in the function would be new at each call: make it outside",
            )
        return self

    def cuda(self, device: Any = None, *_: Any, **__: Any) -> Any:
        """The tensor, if that is where it is."""
        return self.stays("cuda" if device is None else device)

    def cpu(self, *_: Any, **__: Any) -> Any:
        """The tensor, if that is where it is."""
        return self.stays("cpu")

    def stays(self, device: Any) -> Any:
        """The tensor, if a device is the one that it is on.

        Raises:
            UnsupportedError: It is another one.
        """
        asked = f"cuda:{device}" if isinstance(device, int) else str(device)
        own = self._origin.device
        if self._origin.library != "numpy" and asked not in (
            own,
            own.partition(":")[0],
        ):
            raise UnsupportedError.here(
                f"a tensor on {own} moved to {asked}: kernels run on one device; move "
                "arguments before the call, and results behind it"
            )
        return self

    def type(self, dtype: Any = None, **options: Any) -> Any:
        """PyTorch's name of its class, or the tensor in another element format."""
        if dtype is not None:
            return getattr(self, "to")(dtype, **options)  # noqa: B009
        place = "cuda." if self.is_cuda else ""
        return f"torch.{place}{_CLASSES[self.handle.value.dtype.name]}Tensor"

    def _refuse(self, name: str, advice: str) -> NoReturn:
        raise TraceError.here(
            f"{name} is not known while the function is traced; {advice}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CONSTANT or name in vars(Attributes):
            raise TraceError.here(
                f"assignment to the attribute {name} of a traced tensor; compute a new "
                "tensor instead"
            )
        object.__setattr__(self, name, value)

    def unknown(self, name: str) -> Any:
        """An attribute that the class has not: a constant, or an error.

        Raises:
            UnknownAttributeError: No tensor has it, so that `hasattr` is False.
            TraceError: One of the library that the function was called with has it.
        """
        if name in _CONSTANT and self._origin.library != "numpy":
            return _CONSTANT[name]
        if name in _REFUSED:
            self._refuse(name, _REFUSED[name])
        known = [n for n in dir(self) if not n.startswith("_")]
        close = difflib.get_close_matches(name.rstrip("_"), known, n=1, cutoff=LIKENESS)
        hint = f"did you mean .{close[0]}?" if close else "see mirage.functions"
        error = TraceError if hasattr(self.__class__, name) else UnknownAttributeError
        raise error.here(f"a traced tensor has no attribute {name!r}; {hint}")

    def __format__(self, spec: str) -> str:
        if spec:
            self._refuse(f"a tensor as text like {spec!r}", "print it after the call")
        return repr(self)

    def __dir__(self) -> list[str]:
        from mirage_dsl.frontend.interop import METHODS

        return sorted(_own_names(type(self)) | METHODS)


class _TorchLike(Attributes):
    """A traced tensor that is one of PyTorch's: a tensor without memory.

    To PyTorch's code in C++, which looks for memory without asking, it must be a real
    one.  Its attributes are ours: PyTorch's own ones are never reached.
    """

    def __getattribute__(self, name: str) -> Any:
        if name in _own_names(type(self)) or name in object.__getattribute__(
            self, "__dict__"
        ):
            return object.__getattribute__(self, name)
        return type(self).__getattr__(self, name)  # pyright: ignore[reportAttributeAccessIssue]

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        raise UnsupportedError.here(
            f"{function} of a traced tensor, called from code that is no Python, as "
            "torch.vmap, torch.func.grad and scripted functions are; call functions of "
            "torch or mirage on the tensor itself, with an axis for what vmap repeats. "
            "A model that takes associative_scan while it is compiled, as a kernel is, "
            "has an option for a loop, as use_associative_scan=False"
        )


@cache
def _torch_like(cls: type) -> Any:
    """The same class as one of PyTorch's tensors."""
    import torch

    kind = type(torch.Tensor)
    return kind(cls.__name__, (cls, _TorchLike, torch.Tensor), {"__doc__": cls.__doc__})


@cache
def _own_names(cls: type) -> frozenset[str]:
    """The names that a class of traced tensors has from mirage, or as any object."""
    ours = [c for c in cls.__mro__ if not c.__module__.startswith("torch")]
    return frozenset(name for c in ours for name in vars(c))


ANY_STRIDES = "kernels take any strides; .contiguous() costs nothing"
AS_STRIDED = (
    "kernels take any strides, so what lies where is not known: use unfold() for "
    "windows, diagonal(), expand(), or an index"
)
_MEMORY = "it has no memory; compute with the tensor itself"
OF_NO_NUMBERS = (
    *("isnan", "isinf", "isfinite", "isposinf", "isneginf", "nan_to_num"),
    *("nansum", "nanmean", "nanmedian", "nanquantile"),
)
"""Functions of PyTorch and NumPy that tell what is no finite number."""

NO_NUMBERS = (
    "kernels are found and verified by laws of finite numbers, which would answer for "
    "all of them; ask outside of the kernel, and pass the answer as a tensor of bool"
)

RANDOM = (
    *("bernoulli", "gumbel_softmax", "multinomial", "normal", "poisson"),
    *("rand_like", "randint_like", "randn_like"),
    *("cauchy_", "bernoulli_", "exponential_", "geometric_", "log_normal_", "normal_"),
    *("random_", "uniform_"),
)
"""Functions of PyTorch and methods of its tensors that draw random numbers."""

NO_RANDOM = (
    "kernels have no random numbers: draw them outside, and pass them as an argument"
)

OF_ALL_TRUE = ("is_all_true", "is_any_true")
"""Functions by which PyTorch's distributions check their arguments."""

NOT_ALL_TRUE = (
    "whether values hold is not known while the function is traced: of a distribution "
    "of torch.distributions, which asks for its arguments, pass validate_args=False"
)

OF_ASSERTIONS = ("assert_async", "functional_assert_async")
"""Functions of PyTorch that end a program where values are not as they should be."""

NO_ASSERTIONS = (
    "kernels end at no values: ask it of the tensors outside of the function, before "
    "the kernel is called, and leave it out of the function"
)

OF_NESTED = ("nested_tensor_from_mask", "nested_tensor_from_mask_left_aligned")
"""Functions by which PyTorch's encoders leave out what is padding."""

NO_NESTED = (
    "kernels have no nested tensors, of as many elements as a mask leaves: make an "
    "nn.TransformerEncoder that is given src_key_padding_mask with "
    "enable_nested_tensor=False, or set use_nested_tensor=False of the one that an "
    "nn.Transformer has, which computes padding too, where the other one gives 0"
)

_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "as_strided": AS_STRIDED,
        "strides": ANY_STRIDES,
        "storage_offset": ANY_STRIDES,
        "data_ptr": _MEMORY,
        "storage": _MEMORY,
        "untyped_storage": _MEMORY,
        "is_inference": "it depends on the mode of each call",
        **dict.fromkeys(OF_NO_NUMBERS, NO_NUMBERS),
        **dict.fromkeys(RANDOM, NO_RANDOM),
    }
)
"""What no trace knows, and what to do."""

_CLASSES = {
    "f16": "Half",
    "bf16": "BFloat16",
    "f32": "Float",
    "f64": "Double",
    "f8e4m3": "Float8_e4m3fn",
    "f8e5m2": "Float8_e5m2",
    "bool": "Bool",
    "i8": "Char",
    "u8": "Byte",
    "i16": "Short",
    "i32": "Int",
    "i64": "Long",
}
"""Of PyTorch's tensors by dtype, as `Tensor.type` names them."""


# -- How methods and operators are made ------------------------------------------------
# Each calls a function; the functions build on the tensors, so they are looked up when
# they are called.


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """What `mirage.<name>` returns."""
    called, function = _called(name)
    return called(f"the method {name}", function, *args, **kwargs)


@cache
def _called(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    from mirage_dsl.frontend.interop import called
    from mirage_dsl.frontend.namespace import function_named

    return called, function_named(name)


def by_channels(memory_format: object) -> bool:
    """Whether a memory format of PyTorch's has channels last, and so other strides."""
    return "channels_last" in str(memory_format)


def method(name: str) -> Any:
    """A method that calls the function of the same name."""

    def calling(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(name, self, *args, **kwargs)

    calling.__name__ = name
    calling.__doc__ = f"`mirage.{name}` of this tensor."
    return calling


def spread(name: str) -> Any:
    """A method as `var`, of which PyTorch's and NumPy's differ: the call says whose."""

    def calling(self: Any, *args: Any, **kwargs: Any) -> Any:
        library = self.recorder.origin.library
        if library == "torch":
            from mirage_dsl.frontend.interop import called, torch_method

            function = torch_method(name)
            assert function is not None
            theirs = {"axis": "dim", "keepdims": "keepdim", "ddof": "correction"}
            named = {theirs.get(k, k): v for k, v in kwargs.items()}
            return called(f"the method {name}", function, self, *args, **named)
        if library != "numpy" or kwargs.keys() & {"dim", "keepdim"}:
            with_correction(name, kwargs)
        return call(name, self, *args, **kwargs)

    calling.__name__ = name
    calling.__doc__ = f"The function `{name}` of this tensor, as its library has it."
    return calling


def in_place(name: str) -> Any:
    """An operator of Python that changes its first operand."""

    def changing(self: Any, other: Any) -> Any:
        from mirage_dsl.frontend.inplace import augmented

        return augmented(name, self, other)

    return changing


def logical(sign: str) -> Any:
    """An operator of Python that computes with conditions, or with bits."""

    def calling(self: Any, *others: Any) -> Any:
        from mirage_dsl.frontend.namespace import of_bits

        if any(_leaves(self, other) for other in others):
            return NotImplemented
        return of_bits(sign, self, *others)

    return calling


BothWays = tuple[Callable[..., Any], Callable[..., Any]]
"""An operator of Python, and its reflected form."""


def _leaves(x: object, other: object) -> bool:
    """Whether an operator is left to the one on its right."""
    return getattr(type(other), "takes_operators", False) and isinstance(x, Tensor)


def both_ways(function: Callable[[Any, Any], Any]) -> BothWays:
    """The operator that calls a function of two operands."""

    def calling(self: Any, other: Any) -> Any:
        return NotImplemented if _leaves(self, other) else function(self, other)

    def reflected(self: Any, other: Any) -> Any:
        return function(other, self)

    return calling, reflected


def operator(name: str) -> BothWays:
    """The operator that calls the function of a name."""
    return both_ways(lambda x, y: call(name, x, y))


def _product(x: Any, other: Any) -> Any:
    """`x @ other`; PyTorch's tensors are of one dtype, where specs are of any."""
    origin = (x if isinstance(x, Tensor) else other).recorder.origin
    if origin.library != "torch" or origin.of_specs:
        return call("matmul", x, other)
    from mirage_dsl.frontend.interop import called, torch_method

    checked = torch_method("matmul")
    assert checked is not None
    return called("the method matmul", checked, x, other)


def divided(name: str) -> BothWays:
    """The operator that divides with a rest."""

    def function(*operands: Any) -> Any:
        from mirage_dsl.frontend.elementary import ELEMENTARY

        return ELEMENTARY[name](*operands)

    return both_ways(function)


def number(
    what: str,
    kind: Callable[[Any], Any],
    advice: str = "compute with the tensor itself",
) -> Callable[..., Any]:
    """A method that gives Python's number of one element, where that is known."""

    def calling(self: Any, *_: Any) -> Any:
        value = _known(self)
        if value is None or value.size != 1:
            refuse_value(what, advice)
        return kind(value.item())

    return calling


def _known(x: Any) -> Any:
    """The elements of a tensor that no argument changes; None for others."""
    from mirage_dsl.frontend.known import known

    return known(x)


_truth = number(
    "the truth of a tensor", bool, "use where(condition, a, b) instead of if or and"
)


def _asks_for_speed(frame: FrameType) -> bool:
    """Whether code of PyTorch asks if a mask is the causal one.

    Its encoders and decoders do, to leave the mask to a faster kernel: "no" computes
    the same with the mask.
    """
    module = frame.f_globals.get("__name__")
    asking = module, frame.f_code.co_name
    return asking == ("torch.nn.modules.transformer", "_detect_is_causal_mask")


def refuse(what: str, advice: str) -> NoReturn:
    """Refuse what no program has.

    Raises:
        UnsupportedError: Always.
    """
    raise UnsupportedError.here(f"{what} cannot be traced; {advice}")


def refused(what: str, advice: str) -> Callable[..., NoReturn]:
    """A function that no program has; see `refuse`."""

    def function(*_: Any, **__: Any) -> NoReturn:
        refuse(what, advice)

    return function


def refuse_value(what: str, advice: str) -> NoReturn:
    """Refuse what needs a tensor's values.

    Raises:
        TraceError: Always.
    """
    raise TraceError.here(f"{what} is not known while the function is traced; {advice}")


# -- The tensor ------------------------------------------------------------------------
# It has the operators and methods that NumPy's and PyTorch's users expect, and
# takes part in both libraries' dispatch, so that their functions trace as well.
# Methods are thin: what they compute is in `functions`, and recording is the
# recorder's.  Those that are PyTorch's functions of the tensor are found by name, in
# the table of these (`__getattr__`).


class Tensor(Attributes):
    """A tensor whose values are not known while the function is traced.

    Attributes:
        recorder: Its trace.
        memory: What it shares with its views; its own unless it is a view.
        path: From the memory to this tensor.
    """

    __array_priority__ = 1000
    recorder: Recorder
    memory: Storage
    path: Path
    _handle: Handle
    _seen: int

    def __init__(
        self,
        recorder: Recorder,
        handle: Handle,
        memory: Storage | None = None,
        path: Path = (),
    ) -> None:
        memory = Storage(handle) if memory is None else memory
        # No attribute of the class is among them, which assignments are checked for.
        vars(self).update(
            recorder=recorder,
            memory=memory,
            path=path,
            _handle=handle,
            _seen=len(memory.writes),
        )

    @classmethod
    def made(
        cls, recorder: Recorder, handle: Handle, operands: Iterable[object] | None
    ) -> Tensor:
        """What an operator makes of its operands: row-major if their axes are.

        None stands for a kernel whose results have any strides.
        """
        found = cls(recorder, handle)
        found.memory.row_major = len([e for e in handle.shape if e != 1]) < 2 or (
            operands is not None
            and all(o.ordered for o in operands if isinstance(o, Tensor))
        )
        return found

    @property
    def handle(self) -> Handle:
        """What it holds now.

        Raises:
            TraceError: That depends on strides, which are not known.
        """
        if self._seen != len(self.memory.writes):
            doubtful = self.memory.doubt is not None
            if doubtful or self.memory.touched(self._seen, self.region):
                self._handle = self.memory.read(self.recorder, self.path)
            self._seen = len(self.memory.writes)
        return self._handle

    @property
    def region(self) -> Strided | None:
        """Its elements in its memory; None where extents or strides are not known."""
        return self.memory.region(self.path)

    @property
    def ordered(self) -> bool:
        """Whether its strides are known to fall from axis to axis."""
        if not self.memory.row_major or not self.path:
            return self.memory.row_major
        region = self.region
        return region is not None and region.ordered

    def hold(self, new: Handle) -> None:
        """Hold another value of the same shape and dtype, for all its views."""
        new = self.memory.write(self.recorder, self.path, new, self.handle)
        self._handle = new
        self._seen = len(self.memory.writes)

    def viewed(self, *views: View) -> Tensor:
        """A view of it, in the same memory."""
        handle = self.handle
        for view in views:
            handle = view.of(self.recorder, handle)
        return Tensor(self.recorder, handle, self.memory, (*self.path, *views))

    def become(self, other: Tensor) -> Tensor:
        """Stand for what another tensor stands for."""
        self._handle, self._seen = other.handle, other._seen
        self.memory, self.path = other.memory, other.path
        return self

    @property
    def T(self) -> Tensor:  # noqa: N802
        """Axes in reverse order."""
        return self.permute(tuple(range(self.ndim))[::-1])

    @property
    def mT(self) -> Tensor:  # noqa: N802
        """The last two axes exchanged."""
        return self.swapaxes(-1, -2)

    mH = mT  # noqa: N815

    @property
    def H(self) -> Tensor:  # noqa: N802
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ShapeError.here(f"H of {shape_text(self.handle)}; expected a matrix")
        return self.T

    def __len__(self) -> int:
        if not self.ndim:
            raise TraceError.here("len() of a tensor without axes, which has none")
        return int(self.shape[0])

    __add__, __radd__ = operator("add")
    __sub__, __rsub__ = operator("sub")
    __mul__, __rmul__ = operator("mul")
    __truediv__, __rtruediv__ = operator("div")
    __mod__, __rmod__ = divided("remainder")
    __floordiv__, __rfloordiv__ = divided("floor_divide")

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    __pow__, __rpow__ = operator("pow")
    __matmul__, __rmatmul__ = both_ways(_product)
    __lshift__, __rlshift__ = operator("shift_left")
    __rshift__, __rrshift__ = operator("shift_right")
    __and__ = __rand__ = logical("&")
    __or__ = __ror__ = logical("|")
    __xor__ = __rxor__ = logical("^")
    __invert__ = logical("~")
    __lt__, __gt__ = operator("less")
    __le__, __ge__ = operator("less_equal")

    def __eq__(self, other: object) -> Any:
        if self._is_another_kind(other):
            return NotImplemented
        return call("equal", self, other)

    def __ne__(self, other: object) -> Any:
        if self._is_another_kind(other):
            return NotImplemented
        return call("not_equal", self, other)

    def _is_another_kind(self, other: object) -> bool:
        """Whether a comparison is left to Python, or to what is compared with."""
        if _leaves(self, other):
            return True
        plain = other is None or isinstance(other, str)
        return plain and self.recorder.origin.library == "torch"

    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return call("neg", self)

    def __pos__(self) -> Any:
        return self.clone() if self._origin.library == "numpy" else self

    def __abs__(self) -> Any:
        return call("abs", self)

    __iadd__ = in_place("add")
    __isub__ = in_place("sub")
    __imul__ = in_place("mul")
    __imatmul__ = in_place("matmul")
    __itruediv__ = in_place("div")
    __ipow__ = in_place("pow")
    __imod__ = in_place("remainder")
    __ifloordiv__ = in_place("floor_divide")
    __iand__ = in_place("&")
    __ior__ = in_place("|")
    __ixor__ = in_place("^")
    __ilshift__ = in_place("shift_left")
    __irshift__ = in_place("shift_right")

    def __getitem__(self, index: Any) -> Any:
        from mirage_dsl.frontend.indices import without_lists, without_reversals

        if self._origin.library == "numpy":
            turned, plain = without_reversals(self, index)
            if turned is not self:
                return turned[plain]
        index, copies = without_lists(self, index)
        if copies:
            return self[index].clone()
        chosen = _by_integers(self, index)
        if chosen is not None:
            return chosen
        from mirage_dsl.frontend.places import Selected, rows_of

        rows = rows_of(self, index)
        if rows is not None:
            return rows
        if isinstance(index, Tensor):
            return Selected.of(self, index)
        found = self.viewed(*views_of_index(self.handle, index, self.recorder.dims))
        # NumPy's elements are numbers, which no write to their array changes.
        single = self._origin.library == "numpy" and not found.ndim
        numbers = single and Ellipsis not in (index if isinstance(index, tuple) else ())
        return Tensor(self.recorder, found.handle) if numbers else found

    def __setitem__(self, index: Any, value: Any) -> None:
        from mirage_dsl.frontend.inplace import assign

        assign(self, index, value)

    def permute(self, *order: Any, dims: Any = ()) -> Tensor:
        """Axes in the given order, which is also called `dims`."""
        given = flat_arguments(order or dims)
        return self.viewed(Arranged(permutation(self.handle, given)))

    def transpose(self, *axes: Any, **named: Any) -> Tensor:
        """NumPy's transpose, or PyTorch's: two integers exchange two axes."""
        if named:
            return self._exchanged(axes, named)
        given = flat_arguments(axes)
        if not given or given == (None,):
            return self.T
        if len(axes) == 2:
            return self.swapaxes(*axes)
        return self.permute(*given)

    def _exchanged(self, axes: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
        """The axes exchanged that PyTorch calls `dim0` and `dim1`."""
        from mirage_dsl.frontend.interop import called, torch_method

        function = torch_method("transpose")
        assert function is not None
        return called("the method transpose", function, self, *axes, **named)

    def swapaxes(self, axis0: int, axis1: int) -> Tensor:
        """Two axes exchanged."""
        order = list(range(self.ndim))
        a = normal_axis(axis0, self.ndim, "transpose")
        b = normal_axis(axis1, self.ndim, "transpose")
        order[a], order[b] = b, a
        return self.permute(order)

    def t(self) -> Tensor:
        """The transpose of a matrix; of fewer axes the tensor.

        Raises:
            ShapeError: It has more axes.
        """
        if self.ndim > 2:
            raise ShapeError.here(
                f"t() of {shape_text(self.handle)}; expected a matrix: exchange two "
                "axes by mT or transpose(0, 1)"
            )
        return self.T

    def reshape(self, *given: Any, shape: Any = (), order: str = "C") -> Tensor:
        """Axes split and merged, row-major; to `shape`, or to so many arguments."""
        _require_row_major("reshape", order)
        return self.seen_as(Reshaped(flat_arguments(given or (shape,))))

    def view(self, *shape: Any, size: Any = ()) -> Tensor:
        """Axes split and merged in the same memory, to a shape also called `size`.

        Raises:
            TraceError: The strides do not allow that.
            UnsupportedError: A dtype is given, to see the same bits as other numbers.
        """
        if shape and is_symbol(shape[0]):
            raise UnsupportedError.here(
                f"view of {self!r} as {shape[0]}: programs compute with numbers, not "
                "with their bits; take that view outside of the function and pass it "
                "as an argument, or convert the numbers by to()"
            )
        found = self.viewed(Reshaped(flat_arguments(shape or (size,))))
        known = self.memory.row_major and self.region is not None
        if known and found.region is None:
            raise TraceError.here(
                f"view of {shape_text(self.handle)} as {shape_text(found.handle)}: its "
                "strides do not allow that; use reshape, which may copy"
            )
        return found

    def seen_as(self, view: View) -> Tensor:
        """A view where the strides allow that, else a copy."""
        found = self.viewed(view)
        if self.contiguous_for_certain or self._keeps_memory(found):
            return found
        copied = Tensor.made(self.recorder, found.handle, ())
        if self.memory.row_major and self.region is not None and found.region is None:
            return copied
        certain = self.memory.row_major and not self.memory.argument
        if certain and found.region is not None:
            return found
        copied.memory.row_major = False
        link(self.memory, copied.memory)
        return copied

    def _keeps_memory(self, found: Tensor) -> bool:
        """Whether a reshape is a view whatever the strides are."""
        old, new = self.handle.shape, found.handle.shape
        known = [e for e in old if e is not None], [e for e in new if e is not None]
        if (len(known[0]), len(known[1])) != (len(old), len(new)):
            return False
        return always_a_view(*known)

    @property
    def contiguous_for_certain(self) -> bool:
        """Whether it is known to be row-major without gaps."""
        if self.memory.argument or not self.memory.row_major:
            return False
        region = self.region
        return not self.path or (region is not None and region.contiguous)

    def contiguous(self, memory_format: Any = None) -> Tensor:
        """The same tensor where it is contiguous, else a copy."""
        if by_channels(memory_format):
            copied = self.clone(memory_format=memory_format)
            link(self.memory, copied.memory)
            return copied
        if self.contiguous_for_certain:
            return self
        copied = Tensor.made(self.recorder, self.handle, ())
        copied.memory.row_major = True
        region = self.region
        strided = self.memory.row_major and region is not None and not region.contiguous
        if not strided:
            link(self.memory, copied.memory)
        return copied

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Whether it is row-major without gaps.

        Raises:
            TraceError: That is not known, or asked of another order of axes.
        """
        if memory_format is not None and "contiguous" not in str(memory_format):
            refuse_value(f"is_contiguous of {memory_format}", ANY_STRIDES)
        return self._layout("is_contiguous()").contiguous

    def stride(self, dim: Any = None) -> Any:
        """The strides in elements, or that of one axis.

        Raises:
            TraceError: They are not known.
        """
        found = self._layout("stride()")
        plain = self.memory.argument and not self.path
        if 1 in found.shape and not plain:
            # Along such an axis PyTorch's are any numbers.
            refuse_value("stride() along an axis of extent 1", ANY_STRIDES)
        if dim is None:
            return found.strides
        return found.strides[normal_axis(dim, self.ndim, "stride")]

    def _layout(self, what: str) -> Strided:
        """How it lies in memory, on which the trace depends from now on."""
        found = self.memory.layout(self.path)
        if found is None or self._origin.library == "numpy":
            refuse_value(what, ANY_STRIDES)
        self.recorder.asked_strides |= self.memory.argument
        return found

    def clone(self, *_: Any, memory_format: Any = None, **__: Any) -> Tensor:
        """A copy, in memory of its own: without gaps, in the same order of axes."""
        copied = Tensor(self.recorder, self.handle)
        copied.memory.row_major = self.ordered and not by_channels(memory_format)
        copied.memory.array = not self.is_number
        return copied

    copy = clone

    def with_unknown_strides(self) -> Tensor:
        """The same in memory of its own, in which the axes may have any order."""
        return Tensor(self.recorder, self.handle)

    @property
    def real(self) -> Tensor:
        """The same tensor: it has no imaginary part."""
        return self.viewed()

    def detach(self) -> Tensor:
        """The same tensor: there are no gradients."""
        return self.viewed()

    @property
    def data(self) -> Tensor:
        """The same tensor: there are no gradients."""
        return self.viewed()

    @data.setter
    def data(self, value: Any) -> None:
        from mirage_dsl.frontend.inplace import stand_for

        stand_for("an assignment to .data", self, value)

    def flatten(self, *args: Any, **kwargs: Any) -> Tensor:
        """Axes merged; of NumPy's arrays a copy, which may be asked for an order."""
        if self._origin.library == "numpy":
            return self.ravel(*args, **kwargs).clone()
        return call("flatten", self, *args, **kwargs)

    def ravel(self, order: str = "C") -> Tensor:
        """All axes merged; a copy where the tensor is not contiguous."""
        _require_row_major("ravel", order)
        return self.contiguous().reshape(-1)

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """Another element format; the tensor itself where it has that."""
        from mirage_dsl.frontend.functions import to
        from mirage_dsl.frontend.interop import called

        return called("the method to", to, self, *args, **kwargs)

    def __copy__(self) -> Tensor:
        # PyTorch's copies of an object have its memory, NumPy's their own.
        numpy = self._origin.library == "numpy"
        return self.clone() if numpy else self.viewed()

    def __deepcopy__(self, _: object) -> Tensor:
        return self.clone()

    def __bool__(self) -> bool:
        """Its truth, where that is known."""
        if _known(self) is None and _asks_for_speed(sys._getframe(1)):
            return False
        return _truth(self)

    __float__ = number("a tensor as a Python number", float)
    __int__ = number("a tensor as a Python number", int)
    __complex__ = number("a tensor as a Python number", complex)
    item = number("item() of a tensor", lambda known: known)

    def tolist(self) -> Any:
        """Its numbers in lists, where no argument changes them."""
        value = _known(self)
        if value is None:
            refuse_value("tolist() of a tensor", "compute with the tensor itself")
        return value.tolist()

    def numpy(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: what NumPy would compute of it, no program does."""
        refuse_value("numpy() of a tensor", "compute with the tensor itself")

    def __index__(self) -> int:
        value = _known(self) if self.handle.value.dtype.is_integer else None
        if value is None or value.size != 1:
            refuse_value(
                "a tensor as an index or a range", "use a Python integer, or where()"
            )
        return int(value.item())

    def __iter__(self) -> Iterator[Any]:
        """The rows, as PyTorch and NumPy give them: a loop over them is unrolled.

        Raises:
            TraceError: There is no first axis, or its extent is not known.
        """
        if self.ndim and self.handle.shape[0] is None:
            refuse_value(
                "how many rows a tensor of a dynamic axis has",
                "use whole-tensor operators, or give the axis an extent",
            )
        if not self.ndim:
            refuse_value("a loop over a tensor without axes", "use the tensor itself")
        return (self[i] for i in range(len(self)))

    def __reversed__(self) -> Any:
        """The rows from the last one, which are a tensor in PyTorch."""
        if self._origin.library == "numpy":
            return iter([*self][::-1])
        return self.flip(0) if self.ndim else self

    def __contains__(self, item: object) -> bool:
        refuse_value("`in` of a tensor", "compare with == and reduce with max")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        refuse_value(
            "a tensor as a NumPy array",
            "call functions of mirage, NumPy or PyTorch on the tensor itself, np.stack "
            "where np.array is to join several, and np.zeros(shape, like=x) for an "
            "array that they are written to",
        )

    def __getattr__(self, name: str) -> Any:
        # Other libraries probe for their protocols, whose absence they expect.
        if name.startswith("__") or "recorder" not in vars(self):
            raise AttributeError(name)
        if name.startswith("_"):
            return self.unknown(name)
        from mirage_dsl.frontend.inplace import method_in_place
        from mirage_dsl.frontend.interop import array_method, called, torch_method

        if name.endswith("_"):
            written = method_in_place(name)
            if written is not None:
                return partial(called, f"the method {name}", written, self)

        numpy = self._origin.library == "numpy"
        method = array_method(name) if numpy else torch_method(name)
        if method is not None:
            return partial(called, f"the method {name}", method, self)
        return self.unknown(name)

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

    matmul = _product
    var = spread("var")
    std = spread("std")
    softmax = method("softmax")
    astype = method("astype")


def _require_row_major(what: str, order: str) -> None:
    """Refuse another order of the elements than that of rows.

    Raises:
        UnsupportedError: It is another one.
    """
    if order != "C":
        raise UnsupportedError.here(
            f"{what} in the order {order!r}; expected 'C', the rows one behind the "
            "other: permute the axes before"
        )


def _by_integers(x: Tensor, index: Any) -> Any:
    """What an index with tensors of integers in it selects; None for others."""
    chosen = at_integers(x, index)
    if chosen is None:
        return None
    plain, tensors = chosen
    found = x[plain]
    # Those without axes are integers, which leave their axis out.
    for at in sorted((a for a, t in tensors if not t.ndim), reverse=True):
        found = call("index_select", found, at, dict(tensors)[at])
        tensors = [(a - (a > at), t) for a, t in tensors if a != at]
    if len(tensors) == 1:
        return call("index_select", found, *tensors[0])
    return _at_several(found, tensors) if tensors else found


def _at_several(x: Tensor, tensors: list[tuple[int, Tensor]]) -> Any:
    """Elements at several indices, which broadcast: one index after the other."""
    axes = [at for at, _ in tensors]
    apart = axes != list(range(axes[0], axes[0] + len(axes)))
    first, others = axes[0], [i for i in range(x.ndim) if i not in axes]
    shapes_of = [tuple(t.shape) for _, t in tensors]
    try:
        shape = np.broadcast_shapes(*shapes_of)
    except ValueError:
        raise ShapeError.here(
            f"indices of the shapes {', '.join(map(str, shapes_of))}, which do not "
            "broadcast"
        ) from None
    found = x.permute((*axes, *others))
    for number, (_, index) in enumerate(tensors):
        index = index.expand(*shape)
        if not number:
            found = call("index_select", found, 0, index)
            continue
        rest = (None,) * (found.ndim - len(shape))
        taken = call("take_along_dim", found, index[(..., *rest)], len(shape))
        found = taken.squeeze(len(shape))
    # Where all stand side by side, the result has their axes in that place.
    place = 0 if apart else first
    lead, rank = len(shape), found.ndim
    order = [*range(lead, lead + place), *range(lead), *range(lead + place, rank)]
    return found.permute(order)


def at_integers(
    x: Tensor, index: Any
) -> tuple[tuple[Any, ...], list[tuple[int, Tensor]]] | None:
    """An index with tensors of integers in it: what else it is, and these by axis.

    The axes are those of what the rest of the index selects.

    Raises:
        UnsupportedError: NumPy puts axes elsewhere, where integers stand beside them.
    """
    parts = cast("tuple[Any, ...]", index if isinstance(index, tuple) else (index,))
    tensors = [i for i in parts if isinstance(i, Tensor)]
    if not tensors or any(not t.handle.value.dtype.is_integer for t in tensors):
        return None
    for tensor in tensors:
        refuse_bytes(tensor)
    plain = tuple(slice(None) if isinstance(p, Tensor) else p for p in parts)
    numbers = any(isinstance(p, int) for p in parts) or any(not t.ndim for t in tensors)
    if numbers and len(parts) > 1 and x.recorder.origin.library == "numpy":
        slices = any(not isinstance(p, int | Tensor) for p in parts)
        if slices:
            raise UnsupportedError.here(
                "integers beside tensors of integers and slices in an index, where "
                "NumPy and PyTorch order axes differently; index by integers first"
            )
    found: list[tuple[int, Tensor]] = []
    axis = 0
    used = sum(p is not None and p is not Ellipsis for p in parts)
    for part in parts:
        if isinstance(part, Tensor):
            found.append((axis, part))
        axis += x.ndim - used if part is Ellipsis else not isinstance(part, int)
    return plain, found


def refuse_bytes(index: Tensor) -> None:
    """Refuse an index that PyTorch takes for a mask.

    Raises:
        DTypeError: It is of uint8, and the function is PyTorch's.
    """
    if index.handle.value.dtype == u8 and index.recorder.origin.library != "numpy":
        raise DTypeError.here(
            "an index of uint8, which is a mask in PyTorch; convert it, with "
            ".to(torch.bool) for a mask and .to(torch.int64) for positions"
        )


def _extreme(
    x: Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What the method returns: the extremes, and PyTorch's pair if it has an axis."""
    found = call(name, x, *args, **kwargs)
    axis = args[0] if args else kwargs.get("dim", kwargs.get("axis"))
    origin = found.recorder.origin
    pair = "dim" in kwargs or origin.library == "torch"
    if not isinstance(axis, int) or (origin.library == "numpy" and not pair):
        return found
    both = Selection(found, call(f"arg{name}", x, *args, **kwargs)) if pair else None
    if both is None or (origin.of_specs and "dim" not in kwargs):
        return Extreme(found.recorder, found.handle, found, name, both)
    return of_pytorchs_class(name, both, origin)


# -- Extremes along an axis ------------------------------------------------------------


class Selection(NamedTuple):
    """Elements, and where they were along the axis."""

    values: Any
    indices: Any


def of_pytorchs_class(name: str, found: tuple[Any, ...], origin: Origin) -> Any:
    """What a function returns, as one of PyTorch's named tuples if it returns such.

    Args:
        name: Of the function, as PyTorch calls it.
        found: What it computes, in PyTorch's order.
        origin: Of the tensors.
    """
    kinds = getattr(origin.torch, "return_types", None)
    kind = getattr(kinds, name, None)
    return found if origin.library != "torch" or kind is None else kind(found)


class Extreme(Tensor):
    """The extremes along an axis where nothing tells which library is meant.

    What they differ in is refused; of specs it is both a tensor, as in NumPy, and
    PyTorch's pair.

    Args:
        recorder: Theirs.
        handle: Theirs.
        of: The extremes.
        name: Which of both: the name of PyTorch's function.
        pair: PyTorch's pair, if it is that too.
    """

    def __init__(
        self,
        recorder: Recorder,
        handle: Handle,
        of: Tensor,
        name: str,
        pair: Selection | None,
    ) -> None:
        super().__init__(recorder, handle, of.memory, of.path)
        self._name, self._pair = name, pair

    @property
    def whole(self) -> Any:
        """PyTorch's pair where it may be meant; else the tensor itself."""
        if self._pair is None:
            return self
        return of_pytorchs_class(self._name, self._pair, self.recorder.origin)

    @property
    def values(self) -> Tensor:
        """The extremes."""
        return self.viewed()

    @property
    def indices(self) -> Tensor:
        """Their first positions along the axis."""
        if self._pair is None:
            return super().__getattr__("indices")
        return self._pair.indices

    def __len__(self) -> int:
        return super().__len__() if self._pair is None else 2

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int | slice):
            return super().__getitem__(index)
        if self._pair is not None:
            return self._pair[index]
        raise TraceError.here(
            f"{self._name}(axis)[{index}] is a row in NumPy, and half of a pair in "
            f"PyTorch; write .a{self._name}(axis), and index that for a row"
        )

    def __iter__(self) -> Iterator[Any]:
        if self._pair is None:
            raise TraceError.here(
                f"{self._name}(axis) is a tensor of rows in NumPy, and a pair in "
                f"PyTorch; write .a{self._name}(axis) and .arg{self._name}(axis)"
            )
        return iter(self._pair)
