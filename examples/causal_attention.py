"""Causal attention: the mask is counted, and what it hides is not computed."""

from __future__ import annotations

import numpy as np

import mirage_dsl as mirage

WINDOW = 1024


@mirage.kernel
def causal(q, k, v):
    return mirage.scaled_dot_product_attention(q, k, v, is_causal=True)


@mirage.kernel
def windowed(q, k, v):
    i = mirage.arange(q.shape[-2])[:, None]
    j = mirage.arange(k.shape[-2])[None, :]
    seen = (j <= i) & (i - j < WINDOW)
    return mirage.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def main() -> None:
    spec = mirage.spec((32, 2048, 64))
    for kernel in (causal, windowed):
        bound = kernel.bind(spec, spec, spec)
        print(bound.search())
        print(bound.mugraph)

    # A decorated function takes NumPy arrays too: a unit test is one line.
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((1, 8, 16)).astype("float32") for _ in "qkv")
    weights = np.tril(np.exp(q @ k.transpose(0, 2, 1) / 4))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(causal(q, k, v), expected, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    main()
