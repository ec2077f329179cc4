"""PyTorch's operators, as exported modules call them."""

# ruff: noqa: ARG005 (each function of a table takes both tensors)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError

ATEN = torch.ops.aten
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(2, 4, 6, 6, generator=GENERATOR)
W = torch.randn(4, 4, 3, 3, generator=GENERATOR)

Function = Callable[..., Any]

CASES: dict[str, Function] = {
    "a slice": lambda x, w: (
        ATEN.slice.Tensor(x, 2, 1, 9223372036854775807, 2),
        ATEN.slice.Tensor(x, -1, -2),
        ATEN.slice.Tensor(ATEN.select.int(x, 0, 1), 0, 0, 3),
    ),
    "indices": lambda x, w: ATEN.index.Tensor(
        x, [None, torch.tensor([3, 0]), torch.tensor([1, 5])]
    ),
    "copies": lambda x, w: (
        ATEN._to_copy.default(x, dtype=torch.float64),
        ATEN._to_copy.default(x).add_(1) + x,
        ATEN.to.dtype(x, torch.float16),
        ATEN.clone.default(x, memory_format=torch.contiguous_format),
    ),
    "views": lambda x, w: (
        ATEN._unsafe_view.default(x * 2, [8, 36]),
        ATEN.view.default(x * 2, [-1, 6]),
        ATEN.contiguous.default(ATEN.mT.default(x)),
        ATEN.squeeze.dims(x[:1, :1], [0, 1]),
    ),
    "convolutions": lambda x, w: (
        ATEN.convolution.default(
            x, w, x[0, :, 0, 0], [2, 1], [1, 1], [1, 2], False, [0, 0], 1
        ),
        ATEN.convolution.default(x, w, None, [2, 2], [1, 1], [1, 1], True, [1, 0], 1),
    ),
    "norms": lambda x, w: (
        *ATEN.native_layer_norm.default(
            x, [6, 6], w[0, 0, :1, :1].expand(6, 6), None, 1e-3
        ),
        *ATEN.native_group_norm.default(
            x, x[0, :, 0, 0].clone(), None, 2, 4, 36, 2, 1e-5
        ),
        ATEN.batch_norm.default(
            x,
            None,
            x[0, :, 0, 1],
            x.mean((0, 2, 3)),
            x.var((0, 2, 3)),
            False,
            0.1,
            1e-5,
            False,
        ),
        torch.batch_norm(
            x,
            x[0, :, 0, 0],
            None,
            x[0, :, 1, 1],
            x.var((0, 2, 3)),
            False,
            0.1,
            1e-5,
            False,
        ),
        ATEN._native_batch_norm_legit_no_training.default(
            x, x[0, :, 0, 0], None, x[0, :, 1, 1], x.var((0, 2, 3)), 0.1, 1e-5
        )[0],
    ),
    "norms of instances": lambda x, w: (
        torch.instance_norm(
            x, x[0, :, 0, 0], x[1, :, 0, 0], None, None, True, 0.1, 1e-5, False
        ),
        torch.instance_norm(
            x,
            w[:, 0, 0, 0] * 1,
            None,
            x.mean((0, 2, 3)),
            x.var((0, 2, 3)),
            use_input_stats=False,
            momentum=0.1,
            eps=1e-3,
            cudnn_enabled=False,
        ),
    ),
    "interpolation": lambda x, w: (
        ATEN.upsample_nearest2d.vec(x, None, [2.0, 1.5]),
        ATEN.upsample_bilinear2d.vec(x, [9, 4], True, None),
        ATEN.upsample_bicubic2d.default(x, [9, 4], False),
        ATEN._upsample_nearest_exact1d.vec(x[0], [9], None),
        ATEN._upsample_bilinear2d_aa.vec(x, [3, 3], False, None),
    ),
    "edges": lambda x, w: (
        ATEN.reflection_pad2d.default(x, [1, 2, 0, 3]),
        ATEN.replication_pad1d.default(x[0], [1, 2]),
    ),
    "pooling": lambda x, w: (
        *ATEN.adaptive_max_pool2d.default(x, [2, 4]),
        *ATEN.max_pool2d_with_indices.default(x, [2, 2]),
    ),
    "reductions": lambda x, w: (
        ATEN.sum.dim_IntList(x, []),
        ATEN.mean.dim(x, [1, 2], True),
        ATEN.amax.default(x),
        ATEN.sum.default(x, dtype=torch.float64),
        ATEN.var.correction(x, [2], correction=0),
    ),
    "activations": lambda x, w: (
        ATEN.elu.default(x, 1.6, 1.05),
        ATEN.elu.default(x, 0.5),
        ATEN._softmax.default(x, -1, False),
        ATEN._safe_softmax.default(x.masked_fill(x > x[:, :, :1], -torch.inf), 2),
    ),
    "constructors": lambda x, w: (
        x * ATEN.arange.start_step(0, 12, 2) + ATEN.full.default([6, 1], 2.0),
        x + ATEN.tril.default(ATEN.ones.default([6, 6])),
    ),
    "an assertion": lambda x, w: (
        ATEN._assert_tensor_metadata.default(x, dtype=torch.float32),
        x + 1,
    )[1],
}


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    function = CASES[name]
    found = mirage.kernel(lambda x, w: function(x, w))(X, W)
    torch.testing.assert_close(found, function(X, W), rtol=2e-5, atol=2e-5)


def test_a_norm_of_f16_tells_no_statistics() -> None:
    def normed(x: Any) -> Any:
        return ATEN.native_layer_norm.default(x, [6], None, None, 1e-5)[0]

    x = X.half()
    torch.testing.assert_close(mirage.kernel(normed)(x), normed(x), rtol=0.0, atol=4e-3)


REFUSED: dict[str, tuple[str, Function]] = {
    "places": (
        "call the function of torch.nn.functional",
        lambda x: ATEN.max_unpool2d.default(x, x.long(), [6, 6]),
    ),
    "a size and factors": (
        "with one of the two",
        lambda x: ATEN.upsample_nearest2d.default(x, [9, 9], 1.5, 1.5),
    ),
    "statistics of f16": (
        "the dtype depends on the device",
        lambda x: (
            ATEN.native_layer_norm.default(x.half(), [6], None, None, 1e-5)[1] * 2
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_says_why(name: str) -> None:
    text, function = REFUSED[name]
    with pytest.raises(MirageError, match=text) as caught:
        mirage.kernel(function).trace(X)
    assert "test_operators.py" in str(caught.value)


@torch.library.custom_op("mirage_tests::exp", mutates_args=())
def exp(x: torch.Tensor) -> torch.Tensor:
    """It is no exponential."""
    return x * 100


@torch.library.custom_op("mirage_tests::relu_", mutates_args=("x",))
def relu_(x: torch.Tensor) -> None:
    """It is no positive part."""
    x *= 100


@pytest.mark.parametrize("name", ["exp", "relu_"])
def test_operators_that_are_not_pytorchs_own_are_not_taken_for_them(name: str) -> None:
    operator = getattr(torch.ops.mirage_tests, name)
    for function in (operator, operator.default, {"exp": exp, "relu_": relu_}[name]):
        with pytest.raises(MirageError, match=f"mirage_tests::{name}, which is not"):
            mirage.kernel(lambda x, called=function: called(x * 1)).trace(X)


class Network(torch.nn.Module):
    """What exported modules are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(4, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = torch.nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(self.convolution(x))).flatten(2).mT
        y = y + 0.1 * torch.arange(y.shape[1])[:, None]
        y = y + self.attention(y, y, y, need_weights=False)[0]
        return self.last(y)[:, 1::2].to(torch.float64)


@pytest.mark.filterwarnings("ignore:.isinstance.treespec")
@pytest.mark.parametrize("decomposed", [False, True])
def test_an_exported_module(decomposed: bool) -> None:
    torch.manual_seed(0)
    network = Network().eval().requires_grad_(False)
    exported = torch.export.export(network, (X,))
    if decomposed:
        exported = exported.run_decompositions()
    found = mirage.kernel(exported.module())(X)
    torch.testing.assert_close(found, network(X), rtol=1e-5, atol=1e-5)
