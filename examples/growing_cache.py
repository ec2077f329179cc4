"""Decoding with a cache that grows: one search serves many lengths.

The length is a dynamic dim.  The search, and on a GPU its tuning, is for the length
rounded up; calls at lengths that round to the same run at once, and read the part of
the cache where it lies.  Without a GPU, calls evaluate the reference.
"""

from __future__ import annotations

import time

import torch

import mirage_dsl as mirage

BATCH, HEADS, GROUP, WIDTH, MOST = 2, 2, 4, 64, 1024


@mirage.kernel(dynamic=("length",))
def attend(
    q: mirage.f16[BATCH, HEADS, GROUP, WIDTH],
    keys: mirage.f16[BATCH, HEADS, "length", WIDTH],
    values: mirage.f16[BATCH, HEADS, "length", WIDTH],
):
    weights = torch.softmax(q @ keys.transpose(-1, -2) / WIDTH**0.5, -1)
    return weights @ values


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cache = torch.randn(2, BATCH, HEADS, MOST, WIDTH).half().to(device)
    q = torch.randn(BATCH, HEADS, GROUP, WIDTH).half().to(device)
    print("searching for lengths that round to the same as 897: some seconds")
    bound = attend.bind(q, *cache[:, :, :, :897])
    print(f"found for {bound.mugraph.extent_of['length']}\n{bound.mugraph}")
    for length in (897, 898, 1000, 1024):
        keys, values = cache[:, :, :, :length]
        began = time.perf_counter()
        found = attend(q, keys, values).float()
        seconds = time.perf_counter() - began
        right = torch.nn.functional.scaled_dot_product_attention(
            q.float(), keys.float(), values.float()
        )
        torch.testing.assert_close(found, right, rtol=1e-2, atol=1e-2)
        assert attend.bind(q, keys, values) is bound
        print(f"length {length}: right, {seconds:.3f} s")


if __name__ == "__main__":
    main()
