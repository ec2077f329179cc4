"""PyTorch's recurrent layers and cells.

A layer, or several of them, is one call of PyTorch, of which each result is an operator
of its own.  A cell is its formula, so that it is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from mirage_dsl.core.errors import (
    CheckError,
    ShapeError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import views as v
from mirage_dsl.frontend.arguments import is_sequence
from mirage_dsl.frontend.dims import DimVars
from mirage_dsl.frontend.operands import as_tensor
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ops.table import OPERATORS

Function = Callable[..., Any]


def _refuse(what: str, advice: str) -> NoReturn:
    raise UnsupportedError(f"{what} cannot be traced; {advice}", user_location())


# -- Layers ----------------------------------------------------------------------------


def _whole(x: Any, what: str) -> Tensor:
    """The tensor with elements of its own, as what starts with zeros has to have."""
    x = as_tensor(what, x)
    return Tensor.made(x.recorder, x.recorder.spread(x.handle), ())


def _layers(
    name: str,
    results: Sequence[str],
    x: Any,
    state: Any,
    weights: Any,
    biased: Any,
    layers: Any = None,
    dropout: Any = None,
    train: Any = None,
    bidirectional: Any = None,
    batch_first: Any = None,
) -> tuple[Tensor, ...]:
    """The results of layers: of all steps, and the last states of each layer."""
    if batch_first is None:
        _refuse(f"{name} of packed sequences", "pad them, and mask what is behind")
    if train and dropout:
        _refuse(f"{name} with dropout in training", "call .eval() on the module")
    states = tuple(state) if is_sequence(state) else (state,)
    operands = [_whole(t, name) for t in (x, *states, *weights)]
    numbers = {
        "ranks": tuple(t.ndim for t in operands),
        "biased": (int(biased),),
        "layers": (int(layers),),
        "bidirectional": (int(bidirectional),),
        "batch_first": (int(batch_first),),
    }
    return tuple(
        _result(result, operands, numbers, last=at > 0)
        for at, result in enumerate(results)
    )


def _result(
    name: str,
    operands: Sequence[Tensor],
    numbers: Mapping[str, tuple[int, ...]],
    *,
    last: bool,
) -> Tensor:
    """A result of layers: the last states of each, or else what all steps give."""
    recorder, axes = operands[0].recorder, operands[0].handle.axes
    batch = axes[0 if numbers["batch_first"][0] else 1]
    kept: dict[int, DimVars] = {1: batch} if last else {0: axes[0], 1: axes[1]}
    handles = [t.handle for t in operands]
    try:
        made = recorder.library(OPERATORS[name], handles, numbers, kept)
    except CheckError as error:
        raise ShapeError(f"{name}: {error.message}", user_location()) from None
    return Tensor.made(recorder, made, ())


# -- Cells -----------------------------------------------------------------------------


def _gates(x: Any, h: Any, *weights: Any) -> tuple[Any, Any]:
    """The products of the input and of the state with their weights."""
    w_x, w_h, *biases = weights
    b_x, b_h = biases or (None, None)
    return f.linear(x, w_x, b_x), f.linear(h, w_h, b_h)


def _lstm_cell(x: Any, state: Any, *weights: Any) -> tuple[Any, Any]:
    """One step of a long short-term memory: its state and what it remembers."""
    h, c = state
    ours, theirs = _gates(x, h, *weights)
    enter, forget, new, leave = v.chunk(ours + theirs, 4, -1)
    kept = f.sigmoid(forget) * c + f.sigmoid(enter) * f.tanh(new)
    return f.sigmoid(leave) * f.tanh(kept), kept


def _gru_cell(x: Any, h: Any, *weights: Any) -> Any:
    """One step of gated recurrent units."""
    ours, theirs = (v.chunk(gates, 3, -1) for gates in _gates(x, h, *weights))
    reset = f.sigmoid(ours[0] + theirs[0])
    update = f.sigmoid(ours[1] + theirs[1])
    new = f.tanh(ours[2] + reset * theirs[2])
    return new + update * (h - new)


def _rnn_cell(activation: Function, x: Any, h: Any, *weights: Any) -> Any:
    """One step of a plain recurrent layer."""
    ours, theirs = _gates(x, h, *weights)
    return activation(ours + theirs)


RECURRENT: Mapping[str, Function] = {
    "lstm": partial(_layers, "lstm", ("lstm", "lstm_state", "lstm_memory")),
    "gru": partial(_layers, "gru", ("gru", "gru_state")),
    "rnn_tanh": partial(_layers, "rnn_tanh", ("rnn_tanh", "rnn_tanh_state")),
    "rnn_relu": partial(_layers, "rnn_relu", ("rnn_relu", "rnn_relu_state")),
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "rnn_tanh_cell": partial(_rnn_cell, f.tanh),
    "rnn_relu_cell": partial(_rnn_cell, f.relu),
}
"""By PyTorch's names."""

__all__ = ["RECURRENT"]
