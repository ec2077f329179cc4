"""What selects elements along an axis: where extremes are, and what sorts.

Positions of extremes are made of reductions and of index values, so that they are
generated like anything else.  Sorts are PyTorch's, as are recurrent layers; what is
before and behind them is searched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import MirageError
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse

Function = Callable[..., Any]
SEEDS = range(20)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


X = normal(6, 21)
ODD = X.clone()
ODD[1, 5] = ODD[1, 9] = float("nan")
ODD[2], ODD[3], ODD[4, 7] = 1.0, float("-inf"), float("inf")

PLACES: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "along an axis": (
        lambda x: (x.argmax(1), torch.argmin(x, dim=0), x.argmax(-1, keepdim=True)),
        [ODD],
    ),
    "of all": (
        lambda x: (x.argmax(), torch.argmin(x), torch.argmax(x, keepdim=True)),
        [ODD],
    ),
    "of pairs": (
        lambda x: (*torch.max(x, 1), x.min(0).indices, x.max(1, keepdim=True)[1]),
        [ODD],
    ),
    "of merged axes": (lambda x: x.reshape(2, 63).argmax(1), [ODD]),
    "of one element": (lambda x: x[:, :1].argmax(1), [ODD]),
    "of integers": (lambda x: (x.argmax(1), x.argmin(0)), [(X * 3).int()]),
    "f16": (lambda x: (x.argmax(1), x.argmin(0)), [ODD.half()]),
    "f64": (lambda x: x.argmax(0), [ODD.double()]),
    "to gather by": (lambda x: x.take_along_dim(x.argmin(1, keepdim=True), 1), [X]),
}


NAMED: dict[str, Function] = {
    **{
        name: lambda x, name=name: getattr(x, name)()
        for name in ("sort", "mode", "aminmax")
    },
    **{
        name: lambda x, name=name: getattr(torch, name)(x, 1)
        for name in ("cummax", "cummin", "kthvalue", "max", "median", "min", "topk")
    },
    "slogdet": lambda x: torch.slogdet(x[:, :6]),
    "linalg_slogdet": lambda x: torch.linalg.slogdet(x[:, :6]),
    "linalg_qr": torch.linalg.qr,
}


@pytest.mark.parametrize("name", NAMED)
def test_results_have_the_names_of_pytorch(name: str) -> None:
    function = NAMED[name]

    def parts(x: torch.Tensor) -> Any:
        found = function(x)
        first, second = found
        return {"whole": found, "parts": [first + 1, second, len(found)]}

    found, expected = mirage.kernel(parts)(X), parts(X)
    assert type(found["whole"]) is type(expected["whole"])
    assert found["parts"][2] == expected["parts"][2] == 2
    assert isinstance(expected["whole"], getattr(torch.return_types, name))
    torch.testing.assert_close(found, expected)


def compared(function: Function, tensors: list[torch.Tensor]) -> None:
    found, expected = mirage.kernel(function)(*tensors), function(*tensors)
    if not isinstance(expected, tuple):
        found, expected = (found,), (expected,)
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", PLACES)
def test_where_extremes_are(name: str) -> None:
    compared(*PLACES[name])


def test_as_numpy() -> None:
    def function(x: Any) -> Any:
        return np.argmax(x), np.argmin(x, axis=1), x.argmax(0), np.argmax(x, 1)

    for one, other in zip(
        mirage.kernel(function)(ODD.numpy()), function(ODD.numpy()), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(mirage.argmax(ODD.numpy(), 1), ODD.argmax(1))


def traced(function: Function, *tensors: torch.Tensor) -> KernelGraph:
    names = (str(t.dtype).removeprefix("torch.") for t in tensors)
    specs = [
        mirage.spec(tuple(t.shape), n) for t, n in zip(tensors, names, strict=True)
    ]
    return mirage.kernel(function).trace(*specs)


SEARCHED: dict[str, Function] = {
    "largest": lambda x: torch.argmax(torch.relu(x) * 2, 1),
    "smallest": lambda x: torch.argmin(x * x, 0),
    "both": lambda x: torch.max(x, 1).indices + torch.min(x, 1).indices,
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SEARCHED)
def test_places_are_found_in_one_kernel(name: str) -> None:
    program = traced(SEARCHED[name], ODD)
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    assert len(best.mugraph.blocks) == len(best.mugraph.nodes) == 1
    assert parse(str(best.mugraph)) == best.mugraph
    found = TritonExecutable(best.mugraph, interpret=True)(ODD)[0]
    assert torch.equal(found, SEARCHED[name](ODD))


WRONG: dict[str, tuple[Function, Function]] = {
    "the smallest": (lambda x: x.argmax(1), lambda x: x.argmin(1)),
    "the other axis": (lambda x: x.argmax(1), lambda x: x.argmax(0)),
    "the next one": (lambda x: x.argmax(1), lambda x: (x.argmax(1) + 1) % 12),
    "the last one": (
        lambda x: x.argmax(1),
        lambda x: torch.where(x == x.amax(1, True), torch.arange(12), 0).amax(1),
    ),
    "of another tensor": (lambda x: x.argmax(1), lambda x: (x * x).argmax(1)),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_place_is_never_accepted(name: str) -> None:
    right, wrong = (traced(f, torch.zeros(12, 12)) for f in WRONG[name])
    for seed in SEEDS:
        found = mirage.verify(wrong, right, seed=seed, stability=False)
        assert not found.equivalent, seed


# -- Sorts -----------------------------------------------------------------------------

WHOLE = (X * 3).int()
SORTS: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "sort": (lambda x: (*torch.sort(x, 1), x.sort(0, descending=True).values), [X]),
    "argsort": (lambda x: (x.argsort(1), torch.argsort(x, 0, True)), [X]),
    "topk": (lambda x: (*torch.topk(x, 3), x.topk(2, 0, largest=False).indices), [X]),
    "kthvalue": (lambda x: (*x.kthvalue(3), *x.kthvalue(1, 0, keepdim=True)), [X]),
    "median": (lambda x: (torch.median(x), *x.median(1), x.median(0, True)[0]), [X]),
    "mode": (lambda x: (*torch.mode(x * 0, 1), x.mode(0, True)[0]), [X]),
    "running extremes": (lambda x: (*x.cummax(1), *torch.cummin(x, 0)), [X]),
    "integers": (lambda i: (i.sort(1).values + 1, i.topk(3)[0]), [WHOLE]),
    "of merged axes": (lambda x: x.reshape(2, 63).sort(1).values.reshape(6, 21), [X]),
    "to gather by": (lambda x: x.take_along_dim(x.argsort(1), 1), [X]),
}


@pytest.mark.parametrize("name", SORTS)
def test_sorts(name: str) -> None:
    function, tensors = SORTS[name]
    compared(function, tensors)
    run = TritonExecutable(traced(function, *tensors), interpret=True)
    expected = function(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for one, other in zip(run(*tensors), expected, strict=True):
        assert torch.equal(one, other)


def test_sorts_of_numpy() -> None:
    def function(x: Any) -> Any:
        return np.sort(x), np.argsort(x, axis=0), np.sort(x, None)

    x = X.numpy()
    for one, other in zip(mirage.kernel(function)(x), function(x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_values_and_indices_are_of_one_call() -> None:
    program = traced(lambda x: torch.topk(x, 3), X)
    assert [n.op.name for n in program.applies] == ["topk", "argtopk"]
    assert emit(program).count("_all = torch.topk(") == 1


def test_what_is_around_a_sort_is_fused() -> None:
    def function(x: Any) -> Any:
        values, places = torch.topk(torch.softmax(x, 1), 3)
        return values / values.sum(1, keepdim=True) * 2.5, places

    best = mirage.superoptimize(
        traced(function, X), effort="quick", use_cache=False
    ).best
    assert best.certificate.ok
    assert [n.op.name for n in best.mugraph.applies] == ["topk", "argtopk"]
    assert len(best.mugraph.blocks) == 2
    run = TritonExecutable(best.mugraph, interpret=True)
    for one, other in zip(run(X), function(X), strict=True):
        torch.testing.assert_close(one, other)


def between_quantiles(x: Any) -> Any:
    y = x * 2 + 1
    low, high = torch.quantile(y, torch.tensor([0.1, 0.9]), 1, keepdim=True)
    return torch.minimum(torch.maximum(y, low), high)


def log_of_running_sums(x: Any) -> Any:
    return torch.logcumsumexp(x * 2, 1) - torch.erfc(x)


@pytest.mark.sample(1)
@pytest.mark.parametrize("function", [between_quantiles, log_of_running_sums])
def test_what_is_around_a_library_call_is_fused(function: Function) -> None:
    best = mirage.superoptimize(
        traced(function, X), effort="quick", use_cache=False
    ).best
    assert best.certificate.ok
    assert best.mugraph.blocks
    (found,) = TritonExecutable(best.mugraph, interpret=True)(X)
    torch.testing.assert_close(found, function(X))


FILTERS: dict[str, Function] = {
    "the largest": lambda x: torch.where(x < x.topk(3)[0][:, -1:], -torch.inf, x),
    "the smaller half": lambda x: x.masked_fill(x < x.sort(1)[0][:, 4:5], -torch.inf),
    "those that are likely": lambda x: torch.where(
        x.softmax(1).sort(1, descending=True)[0].cumsum(1) > 0.5, -torch.inf, x
    ),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", FILTERS)
def test_scores_are_filtered(name: str) -> None:
    function = FILTERS[name]
    best = mirage.superoptimize(
        traced(function, X), effort="quick", use_cache=False
    ).best
    assert best.mugraph.blocks
    found = TritonExecutable(best.mugraph, interpret=True)(X)[0]
    torch.testing.assert_close(found, function(X))


@pytest.mark.gpu
@pytest.mark.parametrize("name", FILTERS)
def test_scores_are_filtered_on_a_gpu(name: str) -> None:
    function, x = FILTERS[name], X.cuda()
    torch.testing.assert_close(mirage.kernel(function)(x), function(x))


WRONG_SORTS: dict[str, tuple[Function, Function]] = {
    "the other way": (lambda x: x.sort(1)[0], lambda x: x.sort(1, True)[0]),
    "the other axis": (lambda x: x.sort(1)[0], lambda x: x.sort(0)[0]),
    "not at all": (lambda x: x.sort(1)[0], lambda x: x + 0),
    "one fewer": (lambda x: x.topk(3)[0][:, 0], lambda x: x.topk(4)[0][:, 0]),
    "of another tensor": (lambda x: x.argsort(1), lambda x: (x * x).argsort(1)),
    "where it goes": (
        lambda x: x.argsort(1),
        lambda x: x.argsort(1).argsort(1),
    ),
}


@pytest.mark.parametrize("name", WRONG_SORTS)
def test_a_wrong_sort_is_never_accepted(name: str) -> None:
    right, wrong = (traced(f, torch.zeros(12, 12)) for f in WRONG_SORTS[name])
    for seed in SEEDS:
        found = mirage.verify(wrong, right, seed=seed, stability=False)
        assert not found.equivalent, seed


# -- Recurrent layers ------------------------------------------------------------------

LAYERS: dict[str, torch.nn.Module] = {
    "lstm": torch.nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True),
    "gru": torch.nn.GRU(5, 7, 2, dropout=0.5),
    "rnn": torch.nn.RNN(5, 7, nonlinearity="relu", bias=False),
    "lstm cell": torch.nn.LSTMCell(5, 7),
    "gru cell": torch.nn.GRUCell(5, 7),
    "rnn cell": torch.nn.RNNCell(5, 7),
}


def flat(results: Any) -> list[torch.Tensor]:
    if isinstance(results, tuple):
        return [t for part in results for t in flat(part)]
    return [results]


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers(name: str) -> None:
    layer = LAYERS[name].eval()
    x = normal(3, 5) if "cell" in name else normal(4, 3, 5)
    with torch.no_grad():
        kernel, found = mirage.kernel(layer), flat(layer(x))
        for one, other in zip(flat(kernel(x)), found, strict=True):
            torch.testing.assert_close(one, other)
        states = [torch.ones_like(t) for t in found[-1 if "lstm" not in name else -2 :]]
        given = tuple(states) if len(states) > 1 else states[0]
        for one, other in zip(
            flat(kernel(x, given)), flat(layer(x, given)), strict=True
        ):
            torch.testing.assert_close(one, other)


def test_a_trained_layer_with_dropout_is_refused() -> None:
    with torch.no_grad(), pytest.raises(MirageError, match="dropout"):
        mirage.kernel(torch.nn.GRU(5, 7, 2, dropout=0.5).train())(normal(4, 3, 5))


def test_what_is_around_a_layer_is_fused() -> None:
    def function(x: Any, h: Any, w: Any, u: Any, out: Any) -> Any:
        x = torch.tanh(x) * 2
        steps, _ = torch.gru(x, h, (w, u), False, 1, 0.0, False, False, True)
        return torch.relu(steps[:, -1] @ out) * 0.5

    tensors = [normal(*s) for s in ((3, 4, 5), (1, 3, 7), (21, 5), (21, 7), (7, 6))]
    program = traced(function, *tensors)
    assert parse(str(program)) == program
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    (found,) = TritonExecutable(best.mugraph, interpret=True)(*tensors)
    torch.testing.assert_close(found, function(*tensors))
    kinds = [n.op.name for n in best.mugraph.applies if not n.is_view]
    assert kinds.count("gru") == 1
