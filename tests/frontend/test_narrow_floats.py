"""Floats of 8 bits: casts bit for bit as PyTorch's, and what PyTorch does with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import DTypeError, MirageError
from mirage_dsl.core.types import NARROW_FLOATS, DType, dtype_of
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.text.parser import parse

Function = Callable[..., Any]
EACH = pytest.mark.parametrize("dtype", NARROW_FLOATS, ids=str)
OF_TORCH: dict[str, Any] = {
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
}

EAGER_SATURATES = not torch.tensor(500.0).to(torch.float8_e4m3fn).isnan().item()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The patterns of a tensor of 8 bits, those of NaN all alike."""
    return torch.where(tensor.isnan(), 127, tensor.view(torch.uint8))


def every_half() -> torch.Tensor:
    """All numbers of f16, infinities and NaN among them."""
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    return patterns.view(torch.float16).reshape(256, 256)


def hard_numbers(dtype: DType) -> torch.Tensor:
    """What lies between two neighbours, next to that, and beyond the last of them."""
    patterns = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    found = patterns.view(OF_TORCH[dtype.name]).float().numpy()
    found = np.unique(found[np.isfinite(found)])
    between = (found[1:] + found[:-1]) / np.float32(2)
    step = np.float32(dtype.epsilon * dtype.max / 4)
    ends = np.float32([dtype.max + step / 2, dtype.max + step, dtype.max * 2, 3e38])
    ends = np.concatenate([ends, np.float32([np.inf, np.nan, 0.0, 1e-30])])
    near = [np.nextafter(between, np.float32(w)) for w in (np.inf, -np.inf)]
    every = np.concatenate([found, between, *near, ends, -ends])
    padded = np.resize(every, (-(-len(every) // 64), 64))
    return torch.from_numpy(padded)


@EACH
def test_it_is_pytorchs_format(dtype: DType) -> None:
    own = OF_TORCH[dtype.name]
    limits = torch.finfo(own)
    assert (dtype.max, dtype.min) == (limits.max, limits.min)
    assert (dtype.epsilon, dtype.smallest) == (limits.eps, limits.smallest_normal)
    assert dtype.itemsize == own.itemsize
    assert dtype == own
    assert dtype_of(own) is dtype
    assert mirage.spec((2, 3), own).dtype is dtype
    assert getattr(mirage, dtype.long_name) is getattr(mirage, dtype.name) is dtype


def test_mirages_name_of_it() -> None:
    assert mirage.float8_e4m3 is mirage.f8e4m3


@EACH
@pytest.mark.parametrize("what", ["halves", "hard"])
def test_rounding_is_pytorchs_bit_for_bit(dtype: DType, what: str) -> None:
    """By the reference, by a library kernel, and by what is emitted."""
    x = every_half() if what == "halves" else hard_numbers(dtype)
    own = OF_TORCH[dtype.name]
    # PyTorch 2.11 makes NaN of what exceeds f8e4m3, 2.13 saturates.
    inside = x.float().clamp(dtype.min, dtype.max) if dtype is mirage.f8e4m3 else x
    expected = bits(inside.to(own))
    if EAGER_SATURATES or dtype is not mirage.f8e4m3:
        assert torch.equal(bits(x.to(own)), expected)
    cast = mirage.kernel(lambda x: x.to(own), effort="none")
    assert torch.equal(bits(cast(x)), expected)
    program = cast.trace(x)
    found = TritonExecutable(program, interpret=True)(x)[0]
    assert torch.equal(bits(found), expected)
    (item,) = program.inputs
    g = KernelBuilder("rounding", m=x.shape[0], n=64 if what == "hard" else 256)
    with g.block(grid={"m": 16}) as b:
        tile = b.load(g.input("x", item.type.dtype, "m, n"), "m/grid, n")
        out = b.store(b.apply(f"to_{dtype}", tile), "m/grid, n", dtype=dtype)
    block = g.returns(out).build()
    found = TritonExecutable(block, interpret=True)(x)[0]
    assert torch.equal(bits(found), expected)
    assert mirage.compile_only(block)


@EACH
def test_all_of_its_numbers_come_back(dtype: DType) -> None:
    patterns = torch.arange(256, dtype=torch.int32).to(torch.uint8).reshape(16, 16)
    x = patterns.view(OF_TORCH[dtype.name])

    def widened(x: Any) -> Any:
        return x.half(), x.bfloat16(), x.float(), x.double()

    found = mirage.kernel(widened, effort="none")(x)
    for one, other in zip(found, widened(x), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.nan_to_num(7.5), other.nan_to_num(7.5))
    g = KernelBuilder("back", m=16, n=16)
    with g.block(grid={"m": 16}) as b:
        tile = b.load(g.input("x", dtype, "m, n"), "m/grid, n")
        outs = [b.store(tile, "m/grid, n", dtype=mirage.f16)]
        wide = b.apply("cast", tile, dtype="f32")
        outs.append(b.store(b.mul(wide, 1.0), "m/grid, n", dtype=mirage.f32))
    for found in TritonExecutable(g.returns(*outs).build(), interpret=True)(x):
        assert torch.equal(found.float().nan_to_num(7.5), x.float().nan_to_num(7.5))


def test_numpys_arrays_are_those_of_ml_dtypes() -> None:
    x = np.linspace(-500, 500, 24, dtype=np.float32).reshape(4, 6)
    narrow = mirage.kernel(lambda x: x.astype("float8_e5m2"), effort="none")(x)
    assert narrow.dtype == ml_dtypes.float8_e5m2
    np.testing.assert_array_equal(narrow, x.astype(ml_dtypes.float8_e5m2))
    back = mirage.kernel(lambda q: q.astype(np.float32) * 2, effort="none")(narrow)
    np.testing.assert_array_equal(back, narrow.astype(np.float32) * 2)


OTHER = torch.float8_e5m2
AS_EAGER: dict[str, Function] = {
    "equal": lambda q, _x, _ids: q == q.flip(0),
    "unequal to a number": lambda q, _x, _ids: q != 1,
    "a choice": lambda q, x, _ids: torch.where(x > 0, q, q.flip(0)),
    "a choice of a number": lambda q, x, _ids: torch.where(x > 0, q, 1.1),
    "sizes": lambda q, _x, _ids: q.abs(),
    "truth": lambda q, _x, _ids: q.bool(),
    "integers": lambda q, _x, _ids: q.to(torch.int32),
    "of integers": lambda _q, _x, ids: (ids * 100).to(torch.float8_e4m3fn),
    "of truth values": lambda _q, x, _ids: (x > 0).to(torch.float8_e4m3fn),
    "the other format": lambda q, _x, _ids: q.to(OTHER),
    "a sum in f32": lambda q, _x, _ids: q.sum(-1, dtype=torch.float32),
    "turned": lambda q, _x, _ids: q.T,
    "a slice": lambda q, _x, _ids: q[:, 2:5],
    "joined": lambda q, _x, _ids: torch.cat([q, q], 1),
    "rows at indices": lambda q, _x, ids: q[ids],
    "repeated": lambda q, _x, _ids: q.repeat(2, 1),
    "copied": lambda q, x, _ids: torch.empty_like(q).copy_(x),
    "questions": lambda q, x, _ids: x if q.type().endswith("e4m3fnTensor") else q.T,
}


@pytest.mark.parametrize("name", AS_EAGER)
def test_what_pytorch_does_with_them(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn((4, 8), generator=generator)
    ids = torch.tensor([3, 0, 2])
    arguments = ((3 * x).to(torch.float8_e4m3fn), x, ids)
    expected = AS_EAGER[name](*arguments)
    found = mirage.kernel(AS_EAGER[name], effort="none")(*arguments)
    assert found.dtype == expected.dtype
    assert torch.equal(found.double(), expected.double())


REFUSED: dict[str, Function] = {
    "a sum": lambda q, _x: q + q,
    "times a number": lambda q, _x: q * 2.0,
    "beside f32": lambda q, x: q * x,
    "beside the other": lambda q, x: torch.where(x > 0, q, q.to(OTHER)),
    "less": lambda q, _x: q < q,
    "a function": lambda q, _x: q.exp(),
    "reduced": lambda q, _x: q.sum(-1),
    "largest": lambda q, _x: q.amax(-1),
    "a product": lambda q, _x: torch.einsum("ij,kj->ik", q, q),
    "joined with f32": lambda q, x: torch.cat([q, x]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_refuses_is_refused(name: str) -> None:
    x = torch.ones(4, 8)
    arguments = (x.to(torch.float8_e4m3fn), x)
    with pytest.raises((RuntimeError, TypeError, NotImplementedError)):
        REFUSED[name](*arguments)
    with pytest.raises(DTypeError, match=r"float8_e4m3fn.*cast"):
        mirage.kernel(REFUSED[name], effort="none")(*arguments)


TEXT = """mirage 1

mugraph f(x: f32[m, k]) -> {0}[m, k] where m = 4, k = 8 {{
  y = block grid(m / 2) {{
    xt = load x[m/grid, k]
    {1}
    store y: {0}[m/grid, k] = v
  }}
  return y
}}
"""
WRONG: dict[str, tuple[str, str, str]] = {
    "rounding by a store": ("f8e4m3", "v = square xt", "as by to_f8e4m3"),
    "rounding by a cast": ("f8e4m3", "v = cast xt dtype(f8e4m3)", "is to_f8e4m3"),
    "another format": ("f8e5m2", "v = to_f8e4m3 xt", "as by to_f8e5m2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_texts_say_where_they_round(name: str) -> None:
    dtype, line, message = WRONG[name]
    with pytest.raises(MirageError, match=message):
        check_or_raise(parse(TEXT.format(dtype, line)))
    good = parse(TEXT.format("f8e5m2", "v = to_f8e5m2 xt"))
    check_or_raise(good)
    assert parse(str(good)) == good
