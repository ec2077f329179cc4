"""Functions of PyTorch and NumPy trace to what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage

F = torch.nn.functional


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator) for s in shapes]


def same(function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
    given = tensors(*shapes)
    found = mirage.kernel(function)(*given)
    expected = function(*(t.double() for t in given))
    if isinstance(expected, torch.Tensor):
        found, expected = [found], [expected]
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-5)


TORCH: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "activations": (
        lambda x: F.silu(x) + F.gelu(x) + F.relu(x) + torch.sigmoid(x) + torch.tanh(x),
        [(3, 4)],
    ),
    "tanh gelu": (lambda x: F.gelu(x, approximate="tanh"), [(3, 4)]),
    "erf and abs": (lambda x: torch.erf(x) * torch.abs(x), [(3, 4)]),
    "pow": (lambda x: x.pow(2).mean(-1, keepdim=True), [(3, 4)]),
    "hand-written norm": (
        lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)),
        [(3, 4), (4,)],
    ),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w, 1e-5), [(3, 4), (4,)]),
    "rms_norm of little": (lambda x: F.rms_norm(1e-4 * x, (4,), eps=1e-7), [(3, 4)]),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w, w), [(3, 4), (4,)]),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w), [(3, 4), (4,)]),
    "batch_norm": (
        lambda x, m, v: F.batch_norm(x, m, v * v + 1),
        [(3, 4), (4,), (4,)],
    ),
    "linear": (lambda x, w, b: F.linear(x, w, b), [(3, 4), (5, 4), (5,)]),
    "matmul": (lambda x, w: torch.matmul(x, w) + torch.mm(x, w), [(3, 4), (4, 5)]),
    "bmm": (lambda x, w: torch.bmm(x, w), [(2, 3, 4), (2, 4, 5)]),
    "addmm": (lambda b, x, w: torch.addmm(b, x, w, alpha=2), [(5,), (3, 4), (4, 5)]),
    "einsum": (lambda x, w: torch.einsum("mk,nk->nm", x, w), [(3, 4), (5, 4)]),
    "softmax": (lambda x: F.softmax(x, dim=0) + torch.softmax(x, -1), [(3, 4)]),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
        [(2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 8)],
    ),
    "cat": (lambda x, y: torch.cat([x, y, x], dim=1), [(3, 4), (3, 2)]),
    "chunk": (lambda x: torch.chunk(x, 2, dim=-1), [(3, 4)]),
    "split": (lambda x: x.split([1, 3], dim=1), [(3, 4)]),
    "views": (
        lambda x: x.view(3, 2, 2).permute(1, 0, 2).flatten(1).unsqueeze(0).squeeze(0),
        [(3, 4)],
    ),
    "transpose": (lambda x: torch.transpose(x, 0, 1) @ x, [(3, 4)]),
    "expand": (
        lambda x, y: x.unsqueeze(1).expand(3, 2, 4) * y,
        [(3, 4), (3, 2, 4)],
    ),
    "where": (lambda x: torch.where(x > 0, x, 0.5 * x), [(3, 4)]),
    "conditions": (
        lambda x, y: (
            torch.where((x > 0) & (y < 1), x, y),
            torch.where((x > 0) | (x < -1), x, y),
            torch.where((x > 0) ^ (y > 0), x, y),
            torch.where(~(x > y), x, y),
            torch.where(torch.logical_and(x, y > 0).logical_not(), x, y),
        ),
        [(3, 4)] * 2,
    ),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 1.5), [(3, 4)]),
    "clamp": (lambda x: torch.clamp(x, min=-0.5) + x.clamp(-1, 1), [(3, 4)]),
    "reductions": (
        lambda x: (x.sum(0), torch.mean(x), x.amax(1), torch.var(x, -1), x.norm()),
        [(3, 4)],
    ),
    "smallest and products": (
        lambda x: (
            torch.amin(x, (0, 1)),
            torch.min(x),
            torch.min(x, 1, True).values,
            x.amin(0),
            torch.prod(x),
            torch.prod(x, 1),
            x.prod(dim=0, keepdim=True),
            torch.prod(x, -1, dtype=torch.float32),
            x.prod(),
        ),
        [(3, 4)],
    ),
    "maximum": (lambda x, y: torch.maximum(x, y) - torch.minimum(x, y), [(3, 4)] * 2),
    "casts": (lambda x: x.float().to(torch.float32).contiguous() * 2, [(3, 4)]),
    "pairs": (
        lambda x: (torch.max(x, 1)[0], x.min(dim=0).values, x.max(-1, True).values),
        [(3, 4)],
    ),
    "rectifiers": (
        lambda x: F.leaky_relu(x, 0.1) + F.elu(x, 0.5) + F.relu6(4 * x) + F.mish(x),
        [(3, 4)],
    ),
    "hard activations": (
        lambda x: F.hardswish(4 * x) + F.hardsigmoid(4 * x),
        [(3, 4)],
    ),
    "softplus": (lambda x: F.softplus(100 * x) + F.softplus(x, beta=2.0), [(3, 4)]),
    "glu": (lambda x: F.glu(x) + F.glu(x, 1), [(3, 4)]),
    "log_softmax": (
        lambda x: F.log_softmax(500 * x, -1) + x.log_softmax(0),
        [(3, 4)],
    ),
    "logsumexp": (
        lambda x: (torch.logsumexp(500 * x, -1), x.logsumexp((0, 1), keepdim=True)),
        [(3, 4)],
    ),
    "norms": (
        lambda x: (
            F.normalize(x, dim=-1),
            torch.linalg.norm(x, dim=-1, keepdim=True),
            torch.linalg.norm(x),
            torch.linalg.vector_norm(x, 2, (0, 1)),
            torch.norm(x, dim=0),
            x.norm(2, -1, True),
        ),
        [(3, 4)],
    ),
    "norm of all": (lambda x: x.norm(2), [(2, 3, 4)]),
    "activations with limits": (
        lambda x: (
            F.hardtanh(x, -0.5, 0.25),
            F.threshold(x, 0.1, 7.0),
            F.hardshrink(x),
            F.softshrink(x, 0.3),
            F.softplus(x, 2.0, 0.5),
        ),
        [(3, 4)],
    ),
    "activations of negatives": (
        lambda x: F.selu(x) + F.celu(x, 2.0) + F.logsigmoid(50 * x),
        [(3, 4)],
    ),
    "softsign and tanhshrink": (lambda x: F.softsign(x) - F.tanhshrink(x), [(3, 4)]),
    "prelu": (lambda x, w: F.prelu(x, w), [(2, 3, 4), (3,)]),
    "prelu with one weight": (lambda x, w: F.prelu(x, w), [(3, 4), (1,)]),
    "losses": (
        lambda x, y: (
            F.l1_loss(x, y),
            F.huber_loss(x, y, delta=0.7),
            F.huber_loss(x, y, "none"),
            F.smooth_l1_loss(x, y, beta=0.5, reduction="sum"),
            F.smooth_l1_loss(x, y, beta=0.0),
        ),
        [(3, 4)] * 2,
    ),
    "cosine similarity": (
        lambda x, y: (
            F.cosine_similarity(x, y, dim=-1),
            F.cosine_similarity(1e-6 * x, 1e-6 * y, eps=1e-3),
        ),
        [(3, 4)] * 2,
    ),
    "addcdiv": (lambda x, y: torch.addcdiv(x, x, y * y + 1, value=3), [(3, 4)] * 2),
    "variance and mean": (
        lambda x: (*torch.var_mean(x, 1), *torch.var_mean(x, 0, correction=0)),
        [(3, 4)],
    ),
    "between two": (
        lambda x, y: (
            torch.addcmul(x, x, y, value=0.5),
            torch.lerp(x, y, 0.3),
            F.mse_loss(x, y),
            F.mse_loss(x, y, reduction="none"),
        ),
        [(3, 4)] * 2,
    ),
    "dropout at inference": (lambda x: F.dropout(x, 0.5, training=False), [(3, 4)]),
    "limits": (lambda x: x.clamp_min(-0.1).clamp_max(0.5), [(3, 4)]),
    "every other": (
        lambda x: x[..., ::2] * x[:, 1::2] + x.select(1, 0)[:, None],
        [(3, 4)],
    ),
    "rotation of pairs": (
        lambda x, c, s: torch.stack(
            (
                x[..., ::2] * c - x[..., 1::2] * s,
                x[..., ::2] * s + x[..., 1::2] * c,
            ),
            dim=-1,
        ).flatten(-2),
        [(2, 3, 4), (3, 2), (3, 2)],
    ),
    "axes moved": (
        lambda x, y: x.movedim(0, -1) + y.expand_as(x).movedim(0, -1),
        [(2, 3, 4), (1, 3, 4)],
    ),
    "vectors": (
        lambda x, y, z: (torch.mv(x, y), torch.outer(z, y)),
        [(3, 4), (4,), (3,)],
    ),
    "einsum of three": (
        lambda x, y, z: torch.einsum("...ij,jk,kl->...il", x, y, z),
        [(2, 3, 4), (4, 5), (5, 3)],
    ),
    "numel": (lambda x: x / x.numel() + x.ndim, [(3, 4)]),
    "scalars first": (lambda x: 1 / (1 + torch.exp(-x)), [(3, 4)]),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_functions(name: str) -> None:
    function, shapes = TORCH[name]
    same(function, *shapes)


def test_a_transformer_block_as_people_write_it() -> None:
    def block(x: Any, wq: Any, wkv: Any, wo: Any, up: Any, down: Any) -> Any:
        length, width = x.shape
        y = F.rms_norm(x, (width,), eps=1e-5)
        q = (y @ wq).view(length, 2, 4).transpose(0, 1)
        k, v = (t.reshape(length, 2, 4).transpose(0, 1) for t in (y @ wkv).chunk(2, -1))
        p = torch.softmax(q @ k.transpose(-2, -1) / 4**0.5, dim=-1)
        x = x + (p @ v).transpose(0, 1).reshape(length, width) @ wo
        gate, value = (F.rms_norm(x, (width,), eps=1e-5) @ up).chunk(2, dim=-1)
        return x + (F.silu(gate) * value) @ down

    same(block, (5, 8), (8, 8), (8, 16), (8, 8), (8, 24), (12, 8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_epsilon_of_rms_norm_is_that_of_what_it_computes_in(
    dtype: torch.dtype,
) -> None:
    """PyTorch computes narrower types in f32, and takes the epsilon of that."""
    (x,) = tensors((3, 8))
    x = (1e-3 * x).to(dtype)
    found = mirage.kernel(lambda x: F.rms_norm(x, (8,)))(x)
    torch.testing.assert_close(found, F.rms_norm(x, (8,)))


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (2, 3, 4, 2)])
def test_an_axis_that_is_not_given_is_the_one_that_pytorch_takes(
    shape: tuple[int, ...],
) -> None:
    same(lambda x: (F.softmax(x), F.log_softmax(x)), shape)


def test_a_dtype_may_stand_third() -> None:
    (x,) = tensors((3, 4))

    def both(x: Any) -> Any:
        return torch.softmax(x, -1, torch.float32), torch.log_softmax(
            x, 0, torch.float16
        )

    found = mirage.kernel(both)(x.half())
    assert [t.dtype for t in found] == [torch.float32, torch.float16]


def test_activations_pass_nan_on() -> None:
    def activated(x: Any) -> Any:
        shrunk = F.hardshrink(x), F.softshrink(x), F.threshold(x, 0.1, 7.0)
        return (*shrunk, F.hardtanh(x), F.leaky_relu(x), F.celu(x), F.relu6(x))

    x = torch.tensor([float("nan"), 1.0, -1.0])
    for found, expected in zip(mirage.kernel(activated)(x), activated(x), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_the_own_device_changes_nothing_and_a_dtype_after_it_does() -> None:
    def moved(x: Any) -> Any:
        half = torch.float16
        return (
            x.to("cpu"),
            x.to(device="cpu"),
            x.to("cpu", half),
            x.to(torch.device("cpu"), half, True),
            x.to("cpu", True),
            x.to(device="cpu", dtype=half),
        )

    found = mirage.kernel(moved)(torch.ones(3, 4))
    wide, half = torch.float32, torch.float16
    assert [t.dtype for t in found] == [wide, wide, half, half, wide, half]


def test_scales_without_axes_do_not_promote() -> None:
    def scaled(x: Any, s: Any) -> Any:
        return x * s, x * s.reshape(1)

    x, s = torch.ones(3, 4).half(), torch.tensor(2.0)
    found, expected = mirage.kernel(scaled)(x, s), scaled(x, s)
    assert [t.dtype for t in found] == [t.dtype for t in expected]


def test_dtypes_compare_as_those_of_other_tensors() -> None:
    def chosen(x: Any) -> Any:
        return x * 2 if x.dtype == torch.float16 else x * 3

    kernel = mirage.kernel(chosen)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = torch.ones(3, dtype=dtype)
        assert torch.equal(kernel(x), chosen(x))
    assert mirage.bf16 == torch.bfloat16 == mirage.bf16
    assert mirage.f16 == np.dtype("float16") == np.float16
    assert mirage.f16 != torch.float32
    assert mirage.f16 != "float16"
    assert mirage.spec((2, 3), np.float32).dtype == mirage.f32  # pyright: ignore[reportArgumentType]


NUMPY: dict[str, Callable[..., Any]] = {
    "ufuncs": lambda a: np.exp(a) + np.square(a) * np.tanh(a) - np.abs(a) / 2,
    "binary ufuncs": lambda a: np.maximum(a, 0) + np.minimum(a, 1) + np.add(a, a),
    "matmul": lambda a: np.matmul(a, np.transpose(a)) + a @ a.T,
    "sum": lambda a: np.sum(a, axis=1, keepdims=True) * a,
    "mean": lambda a: np.mean(a, axis=(0, 1)) * a,
    "max": lambda a: a - np.max(a, axis=-1, keepdims=True),
    "reduce": lambda a: np.add.reduce(a, axis=0) + np.maximum.reduce(a, axis=0),
    "where": lambda a: np.where(a > 0, a, 0.0),
    "clip": lambda a: np.clip(a, -0.5, 0.5),
    "logical": lambda a: np.where(np.logical_or(a > 1, ~(a > 0)) & (a < 2), a, 0.0),
    "concatenate": lambda a: np.concatenate([a, 2 * a], axis=1),
    "split": lambda a: np.split(a, 2, axis=1)[1],
    "split at": lambda a: np.split(a, [1, 3], axis=1)[1],
    "reshape": lambda a: np.reshape(np.swapaxes(a, 0, 1), (2, 2, 3)),
    "moveaxis": lambda a: np.moveaxis(a[:, None], 0, -1),
    "squeeze": lambda a: np.squeeze(np.expand_dims(a, 0), 0),
    "var": lambda a: np.var(a, axis=0) + np.std(a, axis=0),
    "norm": lambda a: np.linalg.norm(a, axis=-1),
    "norm of an order": lambda a: np.linalg.norm(a, ord=1, axis=0, keepdims=True),
    "einsum": lambda a: np.einsum("ij,kj->ik", a, a),
    "scalar types": lambda a: np.float32(2) * a / np.sqrt(8) + np.float64(1),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_functions(name: str) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    function = NUMPY[name]
    expected = function(x.astype(np.float64))
    found = mirage.kernel(function)(x)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_rows_of_a_matrix_by_the_function_of_torch_itself() -> None:
    """Its matrix comes first, and may be one of integers."""
    rows, matrix = torch.tensor([[0, 2], [1, 1]]), torch.arange(12).view(3, 4)
    functions: list[Callable[..., Any]] = [
        lambda m, i: torch.embedding(m, i),
        lambda m, i: torch.embedding(weight=m, indices=i, padding_idx=1),
        lambda m, i: torch.ops.aten.embedding.default(m, i),
        lambda m, i: F.embedding(i, m),
    ]
    for function in functions:
        for given in (matrix, matrix.float()):
            assert torch.equal(mirage.kernel(function)(given, rows), given[rows])


def test_operators_that_functions_call_are_functions() -> None:
    """As exported modules call them."""

    def called(x: Any, w: Any) -> Any:
        ops = torch.ops.aten
        y = ops.linear.default(ops.relu.default(x), w)
        return ops.add.Tensor(ops.sum.dim_IntList(x, [1], True), y, alpha=2)

    same(called, (3, 4), (5, 4))


def test_new_tensors_of_lists_have_the_dtype_of_another() -> None:
    def sums(x: Any) -> Any:
        weights, rows = x.new_tensor([0.5, 1, 2]), x.new_tensor([[1], [2]])
        places = x.new_tensor([0, 1], dtype=torch.int64)
        return x[:2] * weights, x[:2] + rows, x[places], x * x.new_tensor(3)

    for dtype in (torch.float16, torch.float32):
        x = torch.arange(9.0, dtype=dtype).view(3, 3)
        for found, expected in zip(mirage.kernel(sums)(x), sums(x), strict=True):
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected)
