"""Programs with dynamic dims, and μGraphs of some of them."""

# Names of dims in annotations are no names of types.
# ruff: noqa: F821, UP037

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import mirage_dsl as mirage

K, N = 64, 48


def half(*shape: int, seed: int = 0) -> Any:
    drawn = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return torch.from_numpy((0.5 * drawn).astype(np.float16))


def norm_linear(x: mirage.f16["m", "k"], w: mirage.f16["k", "n"]) -> Any:
    return mirage.rms_norm(x) @ w


def attention(
    q: mirage.f16["b", "n", 16],
    k: mirage.f16["b", 16, "s"],
    v: mirage.f16["b", "s", 16],
) -> Any:
    return torch.softmax(q @ k, -1) @ v


def centred(x: mirage.f16["m", "k"]) -> Any:
    return x - x.mean(0, keepdims=True)


def copies_multiplied(x: mirage.f16["m", "k"], y: mirage.f16["k"]) -> Any:
    return mirage.prod(torch.ones_like(x) * y, 0) + x


def joined(
    x: mirage.f16["m", "k"], y: mirage.f16[8, "k"], z: mirage.f16["n", "k"]
) -> Any:
    return torch.cat([torch.erf(x), y]) + z, torch.erf(x)


def gram(x: mirage.f16["m", "k"]) -> Any:
    return torch.softmax(x @ x.T, -1) @ x


def lengthened(x: mirage.f16["m", "k"], y: mirage.f16[8, "k"]) -> Any:
    return torch.cat([torch.erf(x), y]) * 2.0


def summed(x: mirage.f16["m", "k"], y: mirage.f16[8, "k"]) -> Any:
    return x.sum(0) + y.sum(0)


def total(x: mirage.f16["k", "m"]) -> Any:
    return x.sum(0)


def close(found: Any, kernel: mirage.Kernel, *tensors: Any) -> None:
    expected = kernel.reference(*(t.numpy() for t in tensors))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-2, atol=1e-2)


def shape_of(m: int) -> list[tuple[int, ...]]:
    return [(m, K), (K, N)]


def turned(x: mirage.f16["k", "m"], y: mirage.f16["k", "n"]) -> Any:
    return x.T @ y


def linear(x: mirage.f16["m", "k"], w: mirage.f16["k", "n"]) -> Any:
    return x @ w


def positive(x: mirage.f16["m", "k"]) -> Any:
    return torch.relu(x)


PRODUCT = """
mirage 1
mugraph product(a: f16[i, j], b: f16[j, l]) -> f16[i, l]
where i = 16, j = 64, l = 48 {
  y = block grid(l / 16) loop(j / 32) {
    a_t: f16[i, j/loop] = load a
    b_t: f16[j/loop, l/grid] = load b
    p: f32[i, l/grid] = matmul a_t, b_t over(j)
    s: f32[i, l/grid] = accumulate p
    store y: f16[i, l/grid] = s
  }
  return y
}
"""


JOINED = """
mirage 1
mugraph lengthened(x: f16[m, k], y: f16[n, k]) -> f16[h, k]
where m = 16, n = 8, k = 64 {
  u = block grid(k / 16) {
    x_t: f16[m, k/grid] = load x
    e: f32[m, k/grid] = erf x_t
    d: f32[m, k/grid] = mul e, 2
    store u: f16[m, k/grid] = d
  }
  v: f16[n, k] = mul y, 2
  both: f16[h, k] = concat u, v dims(m, n) to(h)
  return both
}
"""

JOINED_PARTS = """
mirage 1
mugraph summed(x: f16[m, k], y: f16[n, k]) -> f16[k] where m = 16, n = 8, k = 64 {
  of_x = block grid(m / 4) {
    x_t: f16[m/grid, k] = load x
    x_s: f32[k] = sum x_t over(m)
    store of_x: f32[m#/grid, k] = x_s
  }
  of_y = block grid(n / 4) {
    y_t: f16[n/grid, k] = load y
    y_s: f32[k] = sum y_t over(n)
    store of_y: f32[n#/grid, k] = y_s
  }
  both: f32[p, k] = concat of_x, of_y dims(m#, n#) to(p)
  z = block grid(k / 16) {
    p_t: f32[p, k/grid] = load both
    s: f32[k/grid] = sum p_t over(p)
    store z: f16[k/grid] = s
  }
  return z
}
"""


PARTS = """
mirage 1
mugraph total(x: f16[k, m]) -> f16[m] where m = 16, k = 64 {
  parts = block grid(k / 16) {
    x_t: f16[k/grid, m] = load x
    p: f32[m] = sum x_t over(k)
    store parts: f32[k#/grid, m] = p
  }
  y = block grid(m / 8) {
    p_t: f32[k#, m/grid] = load parts
    s: f32[m/grid] = sum p_t over(k#)
    store y: f16[m/grid] = s
  }
  return y
}
"""


BOXES = """
mirage 1
mugraph turned(x: f16[k, m], y: f16[k, n]) -> f16[m, n]
where k = 256, m = 64, n = 64 {
  z = block grid(n / 64) loop(k / 64) descriptors(true) {
    x_t: f16[k/loop, m] = load x
    y_t: f16[k/loop, n/grid] = load y
    p: f32[m, n/grid] = matmul x_t, y_t over(k)
    s: f32[m, n/grid] = accumulate p
    store z: f16[m, n/grid] = s
  }
  return z
}
"""


HALVES = """
mirage 1
mugraph positive(x: f16[m, k]) -> f16[r, k] where m = 8, k = 64 {
  low: f16[p, k] = slice x dim(m) start(0) stop(4) to(p)
  high: f16[q, k] = slice x dim(m) start(4) stop(8) to(q)
  y = block grid(k / 16) {
    low_t: f16[p, k/grid] = load low
    low_y: f32[p, k/grid] = relu low_t
    store y: f16[p, k/grid] = low_y
  }
  z: f16[q, k] = relu high
  both: f16[r, k] = concat y, z dims(p, q) to(r)
  return both
}
"""
