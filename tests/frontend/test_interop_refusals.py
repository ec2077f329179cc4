"""What of PyTorch's and NumPy's functions no kernel can do is refused, with advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError, ShapeError, TraceError, UnsupportedError

F = torch.nn.functional


def failure(function: Callable[..., Any], kind: type[MirageError]) -> str:
    with pytest.raises(kind) as error:
        mirage.kernel(function).trace(mirage.spec((3, 4), "float32"))
    assert error.value.location is not None
    assert error.value.location.file == __file__
    return str(error.value)


def test_captured_arrays_are_refused() -> None:
    array, tensor = np.ones((3, 4), np.float32), torch.ones(3, 4)
    for function in (
        lambda x: x + array,
        lambda x: array * x,
        lambda x: np.add(array, x),
        lambda x: x @ tensor.T,
        lambda x: tensor + x,
        lambda x: torch.cat([x, tensor]),
        lambda x: F.linear(x, tensor),
        lambda x: x.scatter(0, tensor.long(), x),
        lambda x: x.gather(1, tensor.long()),
        lambda x: x.index_add(0, tensor[:, 0].long(), x),
    ):
        assert "pass it as an argument" in failure(function, TraceError)


def test_unknown_functions_suggest_a_known_one() -> None:
    message = failure(lambda x: torch.histogram(x, 4), UnsupportedError)
    assert "torch.histogram cannot be traced" in message
    assert "did you mean" in failure(lambda x: torch.lu(x), MirageError)


def test_assertions_are_to_be_left_out() -> None:
    def checked(x: Any) -> Any:
        torch._assert_async((x > 0).all(), "below 0")
        return x + 1

    assert "leave it out of the function" in failure(checked, UnsupportedError)


def test_methods_that_are_found_by_name_are_hints_and_attributes() -> None:
    message = failure(lambda x: x.leaky_rel(), TraceError)
    assert "did you mean .leaky_relu?" in message
    seen: list[str] = []

    def function(x: Any) -> Any:
        seen.extend(dir(x))
        return x + 1

    mirage.kernel(function).trace(mirage.spec((3, 4), "float32"))
    assert {"exp", "leaky_relu", "reshape"} <= set(seen)


def test_numbers_of_library_operators_are_known() -> None:
    message = failure(lambda x: x.kthvalue(x.sum().long()).values, TraceError)
    assert "a tensor as a Python number is not known" in message


def test_what_distributions_check_is_to_be_left_out() -> None:
    def likelihood(x: Any, **options: Any) -> Any:
        return torch.distributions.Normal(x, x.exp(), **options).log_prob(x + 1)

    assert "pass validate_args=False" in failure(likelihood, UnsupportedError)
    x = torch.tensor([[0.5, -1.0], [2.0, 0.0]])
    found = mirage.kernel(lambda x: likelihood(x, validate_args=False))(x)
    torch.testing.assert_close(found, likelihood(x))


def test_encoders_are_not_to_make_nested_tensors() -> None:
    x, padding = torch.randn(2, 5, 8), torch.arange(5) >= torch.tensor([[3], [5]])
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def encoder(**options: bool) -> Any:
        made = torch.nn.TransformerEncoder(layer, 2, **options)
        return mirage.kernel(made.requires_grad_(False).eval())

    for options in ({}, {"mask_check": False}):
        with pytest.raises(
            UnsupportedError, match="src_key_padding_mask with enable_nested_tensor"
        ):
            encoder(**options)(x, src_key_padding_mask=padding)
        run = encoder(**options)
        torch.testing.assert_close(run(x), run.function.module(x))
    run = encoder(enable_nested_tensor=False)
    found = run(x, src_key_padding_mask=padding)
    expected = run.function.module(x, src_key_padding_mask=padding)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_what_runs_the_compiler_of_pytorch_is_named() -> None:
    def either(x: Any) -> Any:
        return torch.cond(x.sum() > 0, torch.cos, torch.sin, (x,))

    message = failure(either, UnsupportedError)
    assert "torch.cond" in message
    assert "torch.where(condition, a, b)" in message
    assert "test_interop_refusals.py" in message


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_scripted_function_is_named() -> None:
    scripted: Any = torch.jit.script(_gated)
    message = failure(lambda x: scripted(x) + 1, UnsupportedError)
    assert "torch.jit.script" in message
    assert "PYTORCH_JIT=0" in message
    assert "test_interop_refusals.py" in message


def _gated(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * x


def test_what_vmap_runs_is_named() -> None:
    def function(x: Any) -> Any:
        return torch.vmap(lambda row: row.softmax(-1))(x)

    assert "torch.vmap" in failure(function, UnsupportedError)


@pytest.mark.parametrize(
    "draw",
    [
        torch.randn_like,
        lambda x: torch.multinomial(x.softmax(-1), 1),
        lambda x: F.gumbel_softmax(x),
        lambda x: x.clone().uniform_(),
    ],
)
def test_random_numbers_are_drawn_outside(draw: Any) -> None:
    assert "no random numbers: draw them outside" in failure(
        lambda x: draw(x) * 2, MirageError
    )


def test_what_numpy_alone_has_is_named() -> None:
    assert "np.unique" in failure(lambda x: np.unique(x), UnsupportedError)


ROWS = torch.arange(600)

REFUSED: dict[str, tuple[type[MirageError], list[Callable[..., Any]]]] = {
    "outer of": (ShapeError, [lambda x: torch.outer(x, x), lambda x: x[0].ger(x)]),
    "expected 0.5 at most": (UnsupportedError, [lambda x: torch.logit(x, 1)]),
    "a tensor as an index": (
        TraceError,
        [lambda x: x.amax(x.argmax()), lambda x: (x > 0).any(x.argmax())],
    ),
    "use unfold()": (
        MirageError,
        [lambda x: x.as_strided((2,), (1,)), lambda x: torch.as_strided(x, (2,), (1,))],
    ),
    "np.negative.at": (UnsupportedError, [lambda x: np.negative.at(x * 1, [0])]),
    "np.add.at of slices": (
        UnsupportedError,
        [lambda x: np.add.at(x * 1, (slice(None), 0), 1)],
    ),
    "an element for each index": (
        ShapeError,
        [lambda x: x.put(x.argmax(0), x[0, 0]), lambda x: np.put(x * 1, [0], [1, 2])],
    ),
    "order 3": (
        UnsupportedError,
        [lambda x: torch.linalg.norm(x, 3), lambda x: np.linalg.norm(x, 3)],
    ),
    "method norm": (UnsupportedError, [lambda x: x.norm(axis=0)]),
    "method softmax": (UnsupportedError, [lambda x: x.softmax(1, 2, 3)]),
    "training": (UnsupportedError, [lambda x: F.dropout(x, 0.5)]),
    "changes an argument": (
        TraceError,
        [lambda x: F.elu(x, inplace=True), lambda x: F.relu(x, inplace=True)],
    ),
    "is_causal": (
        UnsupportedError,
        [lambda x: F.scaled_dot_product_attention(x, x, x, x @ x.mT, is_causal=True)],
    ),
    "dropout_p": (
        UnsupportedError,
        [lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)],
    ),
    "operator &": (UnsupportedError, [lambda x: x & (x > 0)]),
    "operator ~": (UnsupportedError, [lambda x: ~x]),
    "no axes": (TraceError, [lambda x: x.sum(()), lambda x: np.max(x, axis=())]),
    "cannot convert to words": (MirageError, [lambda x: x.to("words")]),
    "keepdims of mean": (TraceError, [lambda x: x.mean(0, np.float32)]),
    "rank 3": (
        UnsupportedError,
        [lambda x: x.dot(x[None]), lambda x: np.dot(x, x[None])],
    ),
    "batchmean": (
        UnsupportedError,
        [lambda x: F.mse_loss(x, x, reduction="batchmean")],
    ),
    "torch.nn.functional.embedding_bag": (
        UnsupportedError,
        [lambda x: torch.embedding_bag(x, x[0].long(), x[0].long())],
    ),
    "torch.nn.functional.kl_div": (
        UnsupportedError,
        [lambda x: torch.kl_div(x, x, 0), lambda x: torch.kl_div(x, x)],
    ),
    "torch.nn.functional.nll_loss": (
        UnsupportedError,
        [lambda x: torch.ops.aten.nll_loss(x, x[0].long(), None, 0)],
    ),
    "outside of the function": (UnsupportedError, [lambda x: x.view(torch.int32)]),
    "as an argument": (
        UnsupportedError,
        [lambda x: x[ROWS], lambda x: x[ROWS.numpy()]],
    ),
    "np.std": (UnsupportedError, [lambda x: np.std(x, 0, mean=x[:1])]),
}
"""What the message names, and what is refused so."""


def test_only_functions_that_there_are_are_named() -> None:
    message = failure(lambda x: x.movedim(0, 1, 2), UnsupportedError)
    assert "mirage." not in message.replace("mirage_dsl.", "")
    assert "see mirage.sum" in failure(lambda x: x.sum(0, initial=5), UnsupportedError)


@pytest.mark.parametrize("named", REFUSED)
def test_arguments_that_are_not_supported_are_named(named: str) -> None:
    kind, functions = REFUSED[named]
    for function in functions:
        assert named in failure(function, kind)


def test_what_numpy_makes_of_integers_alone_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"np\.reciprocal of integers"):
        mirage.kernel(lambda x: np.reciprocal(x)).trace(mirage.spec((3, 4), "int64"))
    mirage.kernel(lambda x: np.reciprocal(x)).trace(mirage.spec((3, 4), "float64"))
