"""The floor of what reads memory: a kernel that reads so many bytes, and no more."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mirage_dsl.timing import Time, time_call

BLOCK = 8192
PROGRAMS = 1056
"""Eight blocks for each multiprocessor of an H100."""


@triton.jit
def _read(x, out, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    total = tl.zeros([block], tl.int32)
    for start in range(0, n, tl.num_programs(0) * block):
        total += tl.load(x + start + at, mask=start + at < n, other=0)
    tl.store(out + tl.program_id(0), tl.sum(total))


def read_floor(size: int) -> Time:
    """The time to read `size` bytes from cold memory."""
    count = max(1, size // 4)
    x = torch.randint(9, (count,), dtype=torch.int32, device="cuda")
    programs = min(PROGRAMS, -(-count // BLOCK))
    out = torch.empty(programs, dtype=torch.int32, device="cuda")

    def read(x: Tensor) -> Tensor:
        _read[(programs,)](x, out, count, BLOCK, num_warps=8)
        return out

    return time_call(read, [x])
