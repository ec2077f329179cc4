"""A traced tensor answers about itself as what the function was called with would."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError, ShapeError, TraceError, UnsupportedError

QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "isinstance": lambda x: isinstance(x, torch.Tensor),
    "is_tensor": torch.is_tensor,
    "no array": lambda x: isinstance(x, np.ndarray),
    "no parameter": lambda x: isinstance(x, torch.nn.Parameter),
    "pairs are tuples": lambda x: [
        (isinstance(pair, tuple), isinstance(pair, torch.Tensor), type(pair).__name__)
        for pair in (x.max(1), x.min(dim=0), torch.max(x, 1), x.max(), x.sort(1))
        if not isinstance(pair, torch.Tensor)
    ],
    "pairs": lambda x: (len(x.max(1)), len(x.min(dim=0)[:1]), len(x.max(1)[0])),
    "overrides": torch.overrides.is_tensor_like,
    "dtype": lambda x: x.dtype,
    "dtype is": lambda x: x.dtype is torch.float16,
    "dtype of mirage": lambda x: (x.dtype == mirage.float16, mirage.f32 == x.dtype),
    "dtype in": lambda x: x.dtype in (torch.float16, torch.bfloat16),
    "dtype as a key": lambda x: {torch.float16: 1, torch.float32: 2}[x.dtype],
    "finfo": lambda x: torch.finfo(x.dtype).min,
    "promote_types": lambda x: torch.promote_types(x.dtype, torch.float32),
    "result_type": lambda x: torch.result_type(x, 1.0),
    "dtype floating": lambda x: (x.dtype.is_floating_point, x.dtype.itemsize),
    "dtype of a comparison": lambda x: (x > 0).dtype,
    "default dtype": lambda x: x.dtype == torch.get_default_dtype(),
    "shape": lambda x: x.shape,
    "shape is": lambda x: isinstance(x.shape, torch.Size),
    "numel of shape": lambda x: x.shape.numel(),
    "slices of shape": lambda x: (x.shape[:-1].numel(), x.shape[-2:], x.shape[0]),
    "sums of shapes": lambda x: (x.shape[:-1] + x.shape, (3, 4).__add__(x.shape)),
    "unpacked": lambda x: [*x.size()],
    "size": lambda x: (x.size(), x.size(-1), x.size(dim=0)),
    "dim": lambda x: (x.dim(), x.ndim, x.ndimension(), torch.Tensor.dim(x)),
    "numel": lambda x: (x.numel(), x.nelement(), torch.numel(x)),
    "bytes": lambda x: (x.element_size(), x.itemsize, x.nbytes),
    "device": lambda x: (x.device, x.device.type, x.get_device()),
    "devices": lambda x: x.device == (x * 2).device,
    "constructor": lambda x: torch.zeros(2, device=x.device).shape,
    "kind of device": lambda x: (x.is_cuda, x.is_cpu, x.is_meta, x.is_mps, x.is_xpu),
    "requires_grad": lambda x: x.requires_grad,
    "requires_grad_": lambda x: x.requires_grad_(False) is x,
    "grad": lambda x: (x.grad, x.grad_fn, x.is_leaf, x.retains_grad),
    "kinds": lambda x: (x.is_nested, x.is_sparse, x.is_quantized, x.is_mkldnn),
    "functions": lambda x: (x.is_complex(), x.is_floating_point(), x.is_signed()),
    "as functions": lambda x: (torch.is_floating_point(x), torch.is_complex(x)),
    "of a comparison": lambda x: ((x > 0).is_floating_point(), (x > 0).itemsize),
    "layout": lambda x: x.layout,
    "type": lambda x: (x.type(), (x > 0).type(), torch.typename(x)),
    "hasattr": lambda x: (hasattr(x, "to_local"), hasattr(x, "T")),
    "getattr": lambda x: getattr(x, "expert_map", None),
    "protocols": lambda x: hasattr(x, "__cuda_array_interface__") and not x.is_cuda,
}  # fmt: skip
REFUSED = (
    "storage_offset() data_ptr() untyped_storage() "
    "is_inference() requires_grad_() histogram(4) tolist() item() numpy() "
    "_version _base _is_view()"
)


def answers(question: Callable[[Any], Any], *given: Any) -> list[Any]:
    """What a question gives while a function is traced."""
    found: list[Any] = []

    def asking(x: Any) -> Any:
        found.append(question(x))
        return x * 2

    mirage.kernel(asking).trace(*given)
    return found


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_are_those_of_the_tensor(name: str) -> None:
    x = torch.randn(5, 8, dtype=torch.float16)
    expected = QUESTIONS[name](x)
    (found,) = answers(QUESTIONS[name], x)
    assert found == expected
    assert type(found) is type(expected) or isinstance(found, type(expected))


def test_specs_are_cuda_tensors() -> None:
    def asked(x: Any) -> Any:
        device = torch.device("cuda", 0)
        assert isinstance(x, torch.Tensor)
        return x.device == device, x.is_cuda, x.is_cpu, x.get_device(), x.type()

    (found,) = answers(asked, mirage.spec((4, 8), "float16"))
    assert found == (True, True, False, 0, "torch.cuda.HalfTensor")
    (x,) = answers(lambda x: x.to(x.device).cuda() is x, mirage.spec((4, 8)))
    assert x is True


def test_arrays_are_arrays() -> None:
    def asked(x: Any) -> Any:
        return (
            isinstance(x, np.ndarray), isinstance(x, torch.Tensor), x.dtype, x.size,
            x.shape, x.ndim, np.finfo(x.dtype).max, x.nbytes, x.itemsize, x.device,
            x.dtype == mirage.f32, np.promote_types(x.dtype, np.float16), type(x.shape),
            (x > 0).dtype, x.dtype.kind,
        )  # fmt: skip

    x = np.ones((3, 4), np.float32)
    assert answers(asked, x) == [asked(x)]


def test_branches_are_those_of_eager() -> None:
    def branching(x: Any) -> Any:
        return x + 1 if torch.is_tensor(x) else x + 2

    x = torch.zeros(3, 4)
    assert torch.equal(mirage.kernel(branching)(x), branching(x))
    array = np.zeros((3, 4), np.float32)
    assert np.array_equal(mirage.kernel(branching)(array), branching(array))


def test_values_are_not_formatted() -> None:
    with pytest.raises(TraceError, match="as text like"):
        mirage.kernel(lambda x: x * len(f"{x.sum():.2f}")).trace(torch.ones(3))
    mirage.kernel(lambda x: x * min(1, len(f"{x}"))).trace(torch.ones(3))


@pytest.mark.parametrize("text", REFUSED.split())
def test_what_no_trace_knows_is_refused_with_the_line(text: str) -> None:
    def asking(x: Any) -> Any:
        return eval(f"x.{text}") + x

    with pytest.raises(MirageError) as error:
        mirage.kernel(asking)(torch.ones(3, 4))
    assert text.partition("(")[0] in str(error.value)
    assert error.value.location is not None


LAYOUTS = {
    "row-major": torch.randn(4, 6, 8),
    "turned": torch.randn(8, 6, 4).permute(2, 1, 0),
    "with gaps": torch.randn(4, 6, 16)[..., ::2],
    "repeated": torch.randn(4, 1, 8).expand(4, 6, 8),
    "of one row": torch.randn(8, 6, 1).permute(2, 1, 0),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_strides_are_those_of_the_argument(name: str) -> None:
    def asked(x: Any) -> Any:
        part = x[1:, 2:4] if x.shape[0] > 1 else x
        return (
            x.stride(), x.stride(1), x.stride(-1), x.is_contiguous(),
            x.transpose(0, 2).is_contiguous(), part.is_contiguous(), (x * 2)[0].shape,
        )  # fmt: skip

    assert answers(asked, LAYOUTS[name]) == [asked(LAYOUTS[name])]


def test_strides_of_what_is_computed() -> None:
    def asked(x: Any) -> Any:
        y = x * 2
        return y.stride(), y.T.stride(), y.T.is_contiguous(), y[1:].is_contiguous()

    x = torch.randn(4, 6)
    assert answers(asked, x) == [asked(x)]
    # PyTorch keeps the order of axes, which no trace follows.
    with pytest.raises(TraceError, match=r"stride\(\) is not known"):
        answers(lambda x: (x * 2).stride(), x.T)
    with pytest.raises(TraceError, match="along an axis of extent 1"):
        answers(lambda x: (x * 2)[None].stride(), x)
    with pytest.raises(TraceError, match="is_contiguous of torch"):
        answers(lambda x: x.is_contiguous(memory_format=torch.channels_last), x)


LAST = torch.channels_last
OTHER_STRIDES: dict[str, Callable[[Any], Any]] = {
    "float": lambda x: x.float(memory_format=LAST),
    "half": lambda x: x.half(memory_format=LAST),
    "double": lambda x: x.double(memory_format=LAST),
    "to": lambda x: x.to(memory_format=LAST),
    "to a dtype": lambda x: x.to(torch.float64, memory_format=LAST),
    "contiguous": lambda x: x.contiguous(memory_format=LAST),
    "clone": lambda x: torch.clone(x, memory_format=LAST),
    "zeros_like": lambda x: torch.zeros_like(x, memory_format=LAST) + x,
    "ones_like": lambda x: torch.ones_like(x.mT) * x.mT,
    "sort": lambda x: x.mT.sort(0).values,
    "argsort": lambda x: x.mT.argsort(0),
    "an index": lambda x: x.mT[torch.tensor([1, 0])],
    "flip": lambda x: x.mT.flip(-1),
    "rot90": lambda x: x.rot90(1, (2, 3)),
    "windows": lambda x: x.unfold(3, 2, 1),
    "inverse": torch.linalg.inv,
    "factors": lambda x: torch.linalg.qr(x).Q,
    "spectrum": lambda x: torch.fft.irfft(x, 6, 1),
    "shuffled": lambda x: torch.nn.functional.channel_shuffle(x.permute(0, 3, 1, 2), 2),
    "pooled": lambda x: torch.nn.functional.max_pool2d(
        x.permute(0, 3, 1, 2), 2, return_indices=True
    )[0],
}
"""What is not row-major in PyTorch."""


@pytest.mark.parametrize("name", OTHER_STRIDES)
def test_what_has_other_strides_in_pytorch_does_not_tell_them(name: str) -> None:
    def given(x: Any) -> Any:
        return OTHER_STRIDES[name](x * 2)

    x = torch.randn(2, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    assert not given(x).is_contiguous()
    with pytest.raises(TraceError, match=r"is_contiguous\(\) is not known"):
        answers(lambda x: given(x).is_contiguous(), x)
    found = mirage.kernel(given)(x)
    torch.testing.assert_close(found, given(x), check_stride=False)


def test_a_function_that_asks_for_strides_is_traced_for_each_layout() -> None:
    @mirage.kernel
    def function(x: Any) -> Any:
        return x * x.stride(0) + (0 if x.is_contiguous() else 100)

    for layout in (*LAYOUTS.values(), *LAYOUTS.values()):
        expected = layout * layout.stride(0) + (0 if layout.is_contiguous() else 100)
        torch.testing.assert_close(function(layout), expected)
    bound = function.bind(LAYOUTS["row-major"])
    plain = LAYOUTS["row-major"]
    torch.testing.assert_close(bound(plain), plain * 48)
    with pytest.raises(ShapeError, match="was bound with"):
        bound(LAYOUTS["turned"])
    of_spec = function.bind(mirage.spec((4, 6, 8), "float32"))
    assert of_spec.program == bound.program


def test_one_that_asks_for_none_is_traced_once() -> None:
    kernel = mirage.kernel(lambda x: x * 2)
    gaps = LAYOUTS["with gaps"]
    assert kernel.bind(gaps) is kernel.bind(gaps.contiguous())


def test_strides_of_dynamic_extents_are_refused() -> None:
    def function(x: Any) -> Any:
        return x * x.stride(0)

    function.__annotations__["x"] = mirage.f32["n", 8]
    with pytest.raises(TraceError, match=r"stride\(\) is not known"):
        mirage.kernel(dynamic=("n",))(function)(torch.ones(4, 8))


def test_which_dynamic_extents_are_1_is_not_known() -> None:
    def function(x: Any) -> Any:
        return x.squeeze() * 2

    function.__annotations__["x"] = mirage.f32["n", 1]
    with pytest.raises(ShapeError, match="may have the extent 1 as well"):
        mirage.kernel(dynamic=("n",))(function)(torch.ones(4, 1))


def test_other_devices_are_refused() -> None:
    for move in (lambda x: x.cuda(), lambda x: x.to("cuda:1"), lambda x: x.to("cuda")):
        with pytest.raises(UnsupportedError, match="a tensor on cpu moved to cuda"):
            mirage.kernel(move)(torch.ones(3))
    with pytest.raises(UnsupportedError, match="a tensor on cuda:0 moved to cpu"):
        mirage.kernel(lambda x: x.cpu()).trace(mirage.spec((3,)))


def test_attributes_are_not_assigned() -> None:
    def assigning(x: Any) -> Any:
        x.requires_grad = True
        return x

    with pytest.raises(TraceError, match="assignment to the attribute requires_grad"):
        mirage.kernel(assigning)(torch.ones(3))


def test_a_copy_is_a_tensor() -> None:
    x = torch.randn(3)
    found = mirage.kernel(lambda x: copy.deepcopy(x) + copy.copy(x))(x)
    assert torch.equal(found, x + x)
    assert answers(lambda x: f"{x}", x) == ["<traced f32[3]>"]


def test_code_that_is_no_python_finds_no_memory() -> None:
    for read in (
        torch.tensor,
        lambda x: torch.zeros(4)[x],
        torch.utils.dlpack.to_dlpack,
    ):
        with pytest.raises((MirageError, BufferError)):
            mirage.kernel(lambda x, read=read: x + read(x))(torch.ones(3))


def test_a_program_is_bound_once_whatever_it_is_called_with() -> None:
    kernel = mirage.kernel(lambda x: x * 2)
    bound = kernel.bind(mirage.spec((3, 4), "float32"))
    assert kernel.bind(torch.ones(3, 4)) is bound
    assert kernel.bind(np.ones((3, 4), np.float32)) is bound
    asking = mirage.kernel(lambda x: x * (2 if x.is_cuda else 3))
    assert asking.bind(mirage.spec((3, 4), "float32")) is not asking.bind(
        torch.ones(3, 4)
    )


def test_tracing_specs_needs_no_pytorch() -> None:
    code = (
        "import sys, mirage_dsl as mirage\n"
        "k = mirage.kernel(lambda x: x * 2 if x.dtype == mirage.f16 else x * 3)\n"
        "g = k.trace(mirage.spec((3, 4)))\n"
        "assert 'torch' not in sys.modules and 'mul' in str(g) and ', 2' in str(g), g\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "cut",
    [lambda x, o: x[o[0] : o[1]], lambda x, o: x[:, : o[0]], lambda x, o: x[:: o[0]]],
)
def test_a_slice_by_data_is_refused_with_the_line(cut: Callable[..., Any]) -> None:
    with pytest.raises(TraceError, match="a tensor as an index or a range") as error:
        mirage.kernel(cut)(torch.ones(8, 4), torch.tensor([1, 3]))
    assert error.value.location is not None
