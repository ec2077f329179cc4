"""What `nn.MultiheadAttention` computes, of projections, masks and weights."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from mirage_dsl.core.errors import UnsupportedError, user_location
from mirage_dsl.frontend import composites as c
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.operands import is_condition


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
        scores = functools.reduce(f.add, added, q @ k.mT * q.shape[-1] ** -0.5)
        shares = c.softmax(scores, -1)
        attended = shares @ v
        shares = shares.mean(1) if given.average_attn_weights else shares
    else:
        mask = functools.reduce(f.add, added) if added else None
        attended = c.scaled_dot_product_attention(q, k, v, mask)
    joined = attended.permute(2, 0, 1, 3).flatten(2)
    found = f.linear(joined, given.out_proj_weight, given.out_proj_bias)
    if given.query.ndim == 2:
        return found.squeeze(1), None if shares is None else shares.squeeze(0)
    return found, shares


__all__ = ["multi_head_attention_forward"]
