"""Attention: written with a plain softmax, found in one kernel with running maxima."""

from __future__ import annotations

import numpy as np

import mirage_dsl as mirage


@mirage.kernel
def attention(q, k, v):
    scores = q @ k.transpose(0, 2, 1) / q.shape[-1] ** 0.5
    return mirage.softmax(scores) @ v


def main() -> None:
    specs = [mirage.spec((2, 256, 64)), mirage.spec((2, 4096, 64))]
    bound = attention.bind(*specs, specs[1])
    result = bound.search(max_kernels=2)
    print(result)
    print(bound.mugraph)
    print(bound.explain())

    # A decorated function takes NumPy arrays too: a unit test is one line.
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((1, 8, 16)).astype("float32") for _ in "qkv")
    weights = np.exp(q @ k.transpose(0, 2, 1) / 4)
    expected = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(attention(q, k, v), expected, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    main()
