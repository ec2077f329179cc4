"""The floor of what reads memory: a kernel that reads so many bytes, and no more."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mirage_dsl.tune.timing import Time, time_call

FORMS = ((8192, 8, 1056), (4096, 4, 2112), (2048, 4, 4224))
"""Elements of a block, its warps, and blocks at most: 8 to 32 for each multiprocessor
of an H100.  The fastest is the floor."""


@triton.jit
def _read(x, out, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    total = tl.zeros([block], tl.int32)
    for start in range(0, n, tl.num_programs(0) * block):
        total += tl.load(x + start + at, mask=start + at < n, other=0)
    tl.store(out + tl.program_id(0), tl.sum(total))


def read_floor(size: int) -> Time:
    """The least time to read `size` bytes from cold memory."""
    count = max(1, size // 4)
    x = torch.randint(9, (count,), dtype=torch.int32, device="cuda")
    found: list[Time] = []
    for block, warps, most in FORMS:
        programs = min(most, -(-count // block))
        out = torch.empty(programs, dtype=torch.int32, device="cuda")

        def read(
            x: Tensor,
            out: Tensor = out,
            block: int = block,
            warps: int = warps,
            programs: int = programs,
        ) -> Tensor:
            _read[(programs,)](x, out, count, block, num_warps=warps)
            return out

        found.append(time_call(read, [x]))
    return min(found, key=lambda t: t.median)
