"""PyTorch's layers that are more than a function: recurrent ones, attention of heads.

A recurrent layer, or several of them, is one call of PyTorch, of which each result is
an operator of its own.  A cell is its formula, so that it is searched, and so is what
`nn.MultiheadAttention` computes, of projections, masks and weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NoReturn

from mirage_dsl.core.errors import (
    CheckError,
    ShapeError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.frontend import composites as c
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import views as v
from mirage_dsl.frontend.arguments import is_sequence
from mirage_dsl.frontend.dims import DimVars
from mirage_dsl.frontend.operands import as_tensor, is_condition
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ops.table import OPERATORS

Function = Callable[..., Any]


def _refuse(what: str, advice: str) -> NoReturn:
    raise UnsupportedError(f"{what} cannot be traced; {advice}", user_location())


# -- Recurrent layers ------------------------------------------------------------------


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


# -- Recurrent cells -------------------------------------------------------------------


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


# -- Attention of several heads --------------------------------------------------------


@dataclass(frozen=True)
class _Attention:
    """The arguments of `multi_head_attention_forward`, as PyTorch orders them.

    Tensors are [length, batch, channels], or without the batch.
    """

    query: Any
    key: Any
    value: Any
    embed_dim_to_check: int
    num_heads: int
    in_proj_weight: Any
    in_proj_bias: Any
    bias_k: Any
    bias_v: Any
    add_zero_attn: bool
    dropout_p: float
    out_proj_weight: Any
    out_proj_bias: Any
    training: bool = True
    key_padding_mask: Any = None
    need_weights: bool = True
    attn_mask: Any = None
    use_separate_proj_weight: bool = False
    q_proj_weight: Any = None
    k_proj_weight: Any = None
    v_proj_weight: Any = None
    static_k: Any = None
    static_v: Any = None
    average_attn_weights: bool = True
    is_causal: bool = False

    def check(self) -> None:
        """Refuse what is more than projections, masks and attention.

        Raises:
            UnsupportedError: There is such an argument; it is named.
        """
        odd = {
            "bias_k": self.bias_k is not None,
            "bias_v": self.bias_v is not None,
            "static_k": self.static_k is not None,
            "static_v": self.static_v is not None,
            "add_zero_attn": self.add_zero_attn,
            "dropout_p while training": self.training and self.dropout_p,
            "is_causal without attn_mask": self.is_causal and self.attn_mask is None,
        }
        found = [name for name, given in odd.items() if given]
        if found:
            raise UnsupportedError(
                f"multi_head_attention_forward with {found[0]} cannot be traced; call "
                "scaled_dot_product_attention on keys and values as they are to be",
                user_location(),
            )

    def projected(self) -> list[Any]:
        """Queries, keys and values as [batch, heads, length, channels of one]."""
        weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        if not self.use_separate_proj_weight:
            weights = self.in_proj_weight.chunk(3)
        bias = self.in_proj_bias
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        given = (self._batched(t) for t in (self.query, self.key, self.value))
        found = (
            f.linear(t, w, b) for t, w, b in zip(given, weights, biases, strict=True)
        )
        heads = self.num_heads, -1
        return [t.unflatten(2, heads).permute(1, 2, 0, 3) for t in found]

    def _batched(self, x: Any) -> Any:
        return x.unsqueeze(1) if self.query.ndim == 2 else x

    def added(self, batch: int) -> list[Any]:
        """What masks add to the scores [batch, heads, queries, keys]."""
        found: list[Any] = []
        mask, keys = self.attn_mask, self.key_padding_mask
        if mask is not None:
            heads = batch, self.num_heads
            found.append(mask if mask.ndim == 2 else mask.unflatten(0, heads))
        if keys is not None:
            found.append(keys.unsqueeze(-2).unsqueeze(-2))
        # A mask is true where there is no key.
        return [f.where(m, -math.inf, 0.0) if is_condition(m) else m for m in found]


def multi_head_attention_forward(*args: Any, **options: Any) -> tuple[Any, Any]:
    """What `nn.MultiheadAttention` computes.

    Returns:
        The result, and the weights of the keys or None where they are not needed.

    Raises:
        UnsupportedError: An argument beyond projections and masks.
    """
    given = _Attention(*args, **options)
    given.check()
    q, k, v = given.projected()
    added, shares = given.added(q.shape[0]), None
    if given.need_weights:
        scores = reduce(f.add, added, q @ k.mT * q.shape[-1] ** -0.5)
        shares = c.softmax(scores, -1)
        attended = shares @ v
        shares = shares.mean(1) if given.average_attn_weights else shares
    else:
        mask = reduce(f.add, added) if added else None
        attended = c.scaled_dot_product_attention(q, k, v, mask)
    joined = attended.permute(2, 0, 1, 3).flatten(2)
    found = f.linear(joined, given.out_proj_weight, given.out_proj_bias)
    if given.query.ndim == 2:
        return found.squeeze(1), None if shares is None else shares.squeeze(0)
    return found, shares
