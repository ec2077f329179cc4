"""Attention sinks: one more logit for each query takes a share of the weights.

Written as in GPT-OSS, with a concatenation, a softmax and a slice; found as kernels
that concatenate nothing.
"""

from __future__ import annotations

import numpy as np

import mirage_dsl as mirage


@mirage.kernel
def attention(q, k, v, sinks):
    logits = mirage.concat([q @ k.transpose(0, 2, 1) / 8, sinks], axis=-1)
    return mirage.softmax(logits)[..., :-1] @ v


def main() -> None:
    # A decoding step: 8 key heads of 64, with 8 queries each, on 4096 keys.
    keys = mirage.spec((8, 4096, 64))
    bound = attention.bind(mirage.spec((8, 8, 64)), keys, keys, mirage.spec((8, 8, 1)))
    print("searching: some seconds")
    print(bound.search(max_kernels=2))
    print(bound.mugraph)

    generator = np.random.default_rng(0)
    shapes = (1, 4, 64), (1, 16, 64), (1, 16, 64), (1, 4, 1)
    q, k, v, sinks = (generator.standard_normal(s).astype("float32") for s in shapes)
    weights = np.exp(q @ k.transpose(0, 2, 1) / 8)
    total = weights.sum(-1, keepdims=True) + np.exp(sinks)
    np.testing.assert_allclose(
        attention(q, k, v, sinks), weights / total @ v, rtol=1e-4, atol=1e-5
    )


if __name__ == "__main__":
    main()
