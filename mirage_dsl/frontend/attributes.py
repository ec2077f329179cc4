"""What a traced tensor answers about itself: as the argument of a call would.

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
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from mirage_dsl.core.errors import TraceError, UnsupportedError, user_location
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend.arguments import Origin
from mirage_dsl.frontend.dims import Handle
from mirage_dsl.frontend.recorder import Recorder
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
        "is_coalesced": False,
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
        return np.ndarray if self._origin.library == "numpy" else type(self)

    @property
    def _origin(self) -> Origin:
        return self.recorder.origin

    @property
    def shape(self) -> Any:
        """Extents of the axes."""
        sizes = shapes.sizes_of(self.handle)
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
            self._refuse("requires_grad_()", "kernels have no gradients yet")
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
            raise UnsupportedError(
                f"a tensor on {own} moved to {asked}: kernels run on one device; move "
                "arguments before the call, and results behind it",
                user_location(),
            )
        return self

    def type(self, dtype: Any = None, **options: Any) -> Any:
        """PyTorch's name of its class, or the tensor in another element format."""
        if dtype is not None:
            return getattr(self, "to")(dtype, **options)  # noqa: B009
        place = "cuda." if self.is_cuda else ""
        return f"torch.{place}{_CLASSES[self.handle.value.dtype.name]}Tensor"

    def _refuse(self, name: str, advice: str) -> NoReturn:
        raise TraceError(
            f"{name} is not known while the function is traced; {advice}",
            user_location(),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CONSTANT or name in vars(Attributes):
            raise TraceError(
                f"assignment to the attribute {name} of a traced tensor; compute a new "
                "tensor instead",
                user_location(),
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
        known = [n for n in _own_names(type(self)) if not n.startswith("_")]
        close = difflib.get_close_matches(name.rstrip("_"), known, n=1, cutoff=LIKENESS)
        hint = f"did you mean .{close[0]}?" if close else "see mirage.functions"
        error = TraceError if hasattr(self.__class__, name) else UnknownAttributeError
        raise error(
            f"a traced tensor has no attribute {name!r}; {hint}", user_location()
        )

    def __format__(self, spec: str) -> str:
        if spec:
            self._refuse(f"a tensor as text like {spec!r}", "print it after the call")
        return repr(self)

    def __dir__(self) -> list[str]:
        return sorted(_own_names(type(self)))


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
        raise UnsupportedError(
            f"{function} of a traced tensor, called from code that is no Python; call "
            "functions of torch or mirage on the tensor itself",
            user_location(),
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

_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "strides": ANY_STRIDES,
        "storage_offset": ANY_STRIDES,
        "data_ptr": _MEMORY,
        "storage": _MEMORY,
        "untyped_storage": _MEMORY,
        "is_inference": "it depends on the mode of each call",
        **dict.fromkeys(OF_NO_NUMBERS, NO_NUMBERS),
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

__all__ = [
    "ANY_STRIDES",
    "LIKENESS",
    "NO_NUMBERS",
    "OF_NO_NUMBERS",
    "Attributes",
    "Shape",
    "UnknownAttributeError",
]
