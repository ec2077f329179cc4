"""Programs as people write them, on a GPU: ours beside eager and `torch.compile`.

    python -m benchmarks.programs                     # all; five minutes
    python -m benchmarks.programs --only norm softmax # those with a word in their names
    python -m benchmarks.programs --list

Plain functions in PyTorch, with masks, labels, gathers, long rows and reductions of
many axes.  Each goes down the public road: `mirage.kernel`, a search with the effort
`quick`, its candidates tuned on the GPU.  The table has, in µs of a call in a CUDA
graph, every call finding its inputs out of the L2 cache, all three timed in turn:

    ours, eager, compile
    of best       ours over the faster of the other two
    ready         seconds of the search and the tuning
    error         ‖out − ref‖ / ‖ref‖ of ours and of eager, with the same function in
                  float64; the worst of several results
    kernels       generated kernels, and calls of PyTorch's functions

Exit code 0: all is right; 1: a result is wrong, or there is none; 2: the command is, or
there is no GPU.
"""

# PyTorch's compiler is only partly typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import mirage_dsl as mirage
from mirage_dsl.cost.estimate import launched
from mirage_dsl.tune.timing import rotating, time_in_turns

MOST_ERROR_RATIO = 2.0
"""Beyond this multiple of eager's own error a result is wrong ..."""
ROUNDING = {torch.float16: 5e-4, torch.bfloat16: 4e-3, torch.float32: 1e-6}
"""... unless it is what rounding one result explains."""

# -- The programs ----------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """Random tensors on a device, which follow from a seed."""

    device: str
    dtype: torch.dtype = torch.float16
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        """Seed it."""
        made = torch.Generator(self.device).manual_seed(0)
        object.__setattr__(self, "generator", made)

    def normal(self, *shape: int) -> Tensor:
        """Floats around 0."""
        drawn = torch.randn(shape, generator=self.generator, device=self.device)
        return drawn.to(self.dtype)

    def indices(self, most: int, *shape: int) -> Tensor:
        """Positions below a number."""
        return torch.randint(most, shape, generator=self.generator, device=self.device)


@dataclass(frozen=True)
class Program:
    """A function and what it is called with.

    Attributes:
        function: The function.
        given: Makes its arguments, of sizes.
        sizes: By name.
        small: Others, at which an interpreter takes moments.
        dtype: Of the floats.
    """

    function: Callable[..., Any]
    given: Callable[..., Sequence[Tensor]]
    sizes: Mapping[str, int]
    small: Mapping[str, int]
    dtype: torch.dtype = torch.float16

    def arguments(self, device: str, *, small: bool = False) -> list[Tensor]:
        """Its arguments."""
        sizes = {**self.sizes, **self.small} if small else self.sizes
        return list(self.given(Draw(device, self.dtype), **sizes))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of all positions to all."""
    return functional.scaled_dot_product_attention(q, k, v)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of each position to those up to it."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def window_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of each position to the last so many up to it."""
    at = torch.arange(q.shape[-2], device=q.device)
    behind = at[:, None] - at[None, :]
    seen = (behind >= 0) & (behind < 256)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def paged_attention(q: Tensor, keys: Tensor, values: Tensor, table: Tensor) -> Tensor:
    """One query of each sequence to a cache in pages, by a table of them."""
    sequences, heads, width = q.shape
    k, v = (
        pages[table].reshape(sequences, -1, *pages.shape[2:]).transpose(1, 2)
        for pages in (keys, values)
    )
    grouped = q.reshape(sequences, k.shape[1], heads // k.shape[1], width)
    scores = grouped @ k.transpose(-1, -2) * width**-0.5
    return (torch.softmax(scores, dim=-1) @ v).reshape(sequences, heads, width)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys turned by their positions."""
    return q * cos + _half_turned(q) * sin, k * cos + _half_turned(k) * sin


def _half_turned(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


def embedding_norm(ids: Tensor, table: Tensor, gain: Tensor) -> Tensor:
    """Rows of a table, normed."""
    return functional.rms_norm(functional.embedding(ids, table), gain.shape, gain)


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Norms of groups of channels, and SiLU."""
    return functional.silu(functional.group_norm(x, 32, weight, bias))


def long_norm(x: Tensor) -> Tensor:
    """An RMS norm of whole rows."""
    return functional.rms_norm(x, x.shape[1:])


def softmax(x: Tensor) -> Tensor:
    """Of rows."""
    return torch.softmax(x, dim=-1)


def log_softmax(x: Tensor) -> Tensor:
    """Of rows."""
    return torch.log_softmax(x, dim=-1)


def logsumexp(x: Tensor) -> Tensor:
    """Of rows."""
    return torch.logsumexp(x, dim=-1)


def sum_of_two_axes(x: Tensor) -> Tensor:
    """Over two axes that are not neighbours."""
    return x.sum(dim=(1, 3))


def mean_of_planes(x: Tensor) -> Tensor:
    """Over the last two axes."""
    return x.mean(dim=(2, 3))


def largest_channel(x: Tensor) -> Tensor:
    """Over the second axis."""
    return x.amax(dim=1)


def _heads(draw: Draw, q: int, k: int, rows: int, width: int) -> list[Tensor]:
    return [draw.normal(1, heads, rows, width) for heads in (q, k, k)]


def _turns(draw: Draw, q: int, k: int, rows: int, width: int) -> list[Tensor]:
    angles = draw.normal(rows, width).float()
    turn = [angles.cos().to(draw.dtype), angles.sin().to(draw.dtype)]
    return [draw.normal(1, q, rows, width), draw.normal(1, k, rows, width), *turn]


def _pages(
    draw: Draw, sequences: int, heads: int, kept: int, count: int, rows: int, width: int
) -> list[Tensor]:
    pages = sequences * count
    caches = [draw.normal(pages, rows, kept, width) for _ in range(2)]
    order = torch.randperm(pages, generator=draw.generator, device=draw.device)
    return [draw.normal(sequences, heads, width), *caches, order.view(sequences, count)]


def _table(draw: Draw, rows: int, entries: int, width: int) -> list[Tensor]:
    table = draw.normal(entries, width)
    return [draw.indices(entries, rows), table, draw.normal(width)]


def _labelled(draw: Draw, rows: int, width: int) -> list[Tensor]:
    return [draw.normal(rows, width), draw.indices(width, rows)]


def _planes(draw: Draw, batch: int, channels: int, side: int) -> list[Tensor]:
    x = draw.normal(batch, channels, side, side)
    return [x, draw.normal(channels), draw.normal(channels)]


def _matrix(draw: Draw, rows: int, width: int) -> list[Tensor]:
    return [draw.normal(rows, width)]


def _block(draw: Draw, a: int, b: int, c: int, d: int) -> list[Tensor]:
    return [draw.normal(a, b, c, d)]


_SCORES = {"q": 32, "k": 32, "rows": 2048, "width": 128}
_FEW_SCORES = {"q": 2, "k": 2, "rows": 32, "width": 16}
_TURNED = {"q": 32, "k": 8, "rows": 2048, "width": 128}
_CACHE = {
    "sequences": 16,
    "heads": 32,
    "kept": 8,
    "count": 64,
    "rows": 16,
    "width": 128,
}
_FEW_PAGES = {"sequences": 2, "heads": 4, "kept": 2, "count": 4, "rows": 4, "width": 16}
_VOCABULARY = {"rows": 1024, "width": 128256}
_FEW = {"rows": 4, "width": 96}
_BLOCK = {"a": 16, "b": 256, "c": 64, "d": 256}
_SMALL_BLOCK = {"a": 2, "b": 8, "c": 6, "d": 16}

PROGRAMS = {
    "attention": Program(attention, _heads, _SCORES, _FEW_SCORES),
    "causal attention": Program(causal_attention, _heads, _SCORES, _FEW_SCORES),
    "window attention": Program(window_attention, _heads, _SCORES, _FEW_SCORES),
    "paged attention": Program(paged_attention, _pages, _CACHE, _FEW_PAGES),
    "rotary embedding": Program(
        rotary, _turns, _TURNED, {"q": 4, "k": 2, "rows": 8, "width": 16}
    ),
    "embedding and norm": Program(
        embedding_norm,
        _table,
        {"rows": 4096, "entries": 128256, "width": 4096},
        {"rows": 6, "entries": 40, "width": 32},
    ),
    "cross entropy": Program(
        functional.cross_entropy, _labelled, {"rows": 4096, "width": 128256}, _FEW
    ),
    "group norm and SiLU": Program(
        group_norm_silu,
        _planes,
        {"batch": 2, "channels": 320, "side": 64},
        {"channels": 64, "side": 4},
    ),
    "logsumexp": Program(logsumexp, _matrix, _VOCABULARY, _FEW),
    "log-softmax": Program(log_softmax, _matrix, _VOCABULARY, _FEW),
    **{
        f"{what} of {width} a row": Program(
            function, _matrix, {"rows": rows, "width": width}, _FEW, torch.float32
        )
        for what, function in (("norm", long_norm), ("softmax", softmax))
        for rows, width in ((256, 100_000), (32, 1_000_000), (4, 10_000_000))
    },
    "sum of axes 1 and 3": Program(sum_of_two_axes, _block, _BLOCK, _SMALL_BLOCK),
    "mean of planes": Program(mean_of_planes, _block, _BLOCK, _SMALL_BLOCK),
    "largest channel": Program(largest_channel, _block, _BLOCK, _SMALL_BLOCK),
}

# -- Right or wrong --------------------------------------------------------------------


def flat(found: Any) -> list[Tensor]:
    """The results of a call, one or several."""
    return [found] if isinstance(found, Tensor) else list(found)


def exact(program: Program, arguments: Sequence[Tensor]) -> list[Tensor]:
    """The results in float64."""
    wide = [t.double() if t.is_floating_point() else t for t in arguments]
    return flat(program.function(*wide))


def error(found: Any, right: Sequence[Tensor]) -> float:
    """‖out − ref‖ / ‖ref‖, of the worst of several results."""
    pairs = zip(flat(found), right, strict=True)
    distances: list[Tensor] = [(f.double() - r).norm() / r.norm() for f, r in pairs]
    return max(map(float, distances))


def allowed(program: Program, eager: float) -> float:
    """The error up to which a result is right, where eager has one."""
    return max(MOST_ERROR_RATIO * eager, ROUNDING[program.dtype])


# -- Measuring -------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What was measured of a program: µs, seconds, errors.

    Attributes:
        times: The medians of ours, eager and compile.
        ready: Seconds of the search and the tuning.
        errors: Of ours and of eager.
        right: Whether ours is.
        kernels: Generated kernels.
        calls: Of PyTorch's functions.
    """

    times: Mapping[str, float]
    ready: float
    errors: tuple[float, float]
    right: bool
    kernels: int
    calls: int

    @property
    def of_best(self) -> float:
        """Ours over the faster of the others."""
        best = min(t for name, t in self.times.items() if name != "ours")
        return self.times["ours"] / best


def measure(program: Program) -> Row:
    """Search, tune, compare and time one program on the GPU."""
    arguments = program.arguments("cuda")
    kernel = mirage.kernel(program.function)
    began = time.perf_counter()
    bound = kernel.bind(*arguments)
    bound.search(effort="quick")
    ready = time.perf_counter() - began
    right = exact(program, arguments)
    errors = tuple(error(f(*arguments), right) for f in (kernel, program.function))
    del right
    calls: dict[str, Callable[..., Any]] = {
        "ours": kernel,
        "eager": program.function,
        "compile": torch.compile(program.function, dynamic=False),
    }
    sets = rotating(arguments)
    times = time_in_turns([(call, sets) for call in calls.values()])
    generated = len(bound.mugraph.blocks)
    return Row(
        {name: t.median for name, t in zip(calls, times, strict=True)},
        ready,
        (errors[0], errors[1]),
        errors[0] <= allowed(program, errors[1]),
        generated,
        len(launched(bound.mugraph)) - generated,
    )


# -- The table -------------------------------------------------------------------------

HEAD = (
    f"{'':26} {'ours':>8} {'eager':>8} {'compile':>8} {'of best':>8} {'ready':>6} "
    f"{'error':>8} {'eager':>8}  kernels"
)


def line(name: str, row: Row) -> str:
    """A row of the table."""
    times = " ".join(f"{row.times[n]:8.1f}" for n in ("ours", "eager", "compile"))
    wrong = "" if row.right else "  WRONG"
    calls = f" + {row.calls} calls" if row.calls else ""
    return (
        f"{name:26} {times} {row.of_best:8.2f} {row.ready:6.1f} {row.errors[0]:8.1e} "
        f"{row.errors[1]:8.1e}  {row.kernels}{calls}{wrong}"
    )


def summary(rows: Mapping[str, Row]) -> Iterator[str]:
    """What the rows say together."""
    shares = [row.of_best for row in rows.values()]
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    yield f"{len(rows)} programs, of best {mean:.2f} (geometric mean)"
    whole, masked = rows.get("attention"), rows.get("causal attention")
    if whole and masked:
        share = masked.times["ours"] / whole.times["ours"]
        yield f"causal attention takes {share:.2f} of the time without the mask"


def chosen(words: Sequence[str]) -> dict[str, Program]:
    """The programs with one of some words in their names; all without words."""
    return {
        name: program
        for name, program in PROGRAMS.items()
        if not words or any(word in name for word in words)
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.programs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="words of names (all)"
    )
    parser.add_argument("--list", action="store_true", help="print names, and end")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the programs and print the table."""
    asked = _parser().parse_args(arguments)
    programs = chosen(asked.only)
    if asked.list:
        print("\n".join(programs))
        return 0
    if not programs:
        print(f"no program has one of {asked.only} in its name", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print(
            "benchmarks.programs needs a CUDA device; none was found", file=sys.stderr
        )
        return 2
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n{HEAD}")
    rows: dict[str, Row] = {}
    failed = False
    for name, program in programs.items():
        try:
            rows[name] = measure(program)
        except Exception as problem:
            failed = True
            print(f"{name:26} {type(problem).__name__}: {problem}", flush=True)
            continue
        print(line(name, rows[name]), flush=True)
        torch.cuda.empty_cache()
    print("\n".join(summary(rows)) if rows else "no program was measured")
    return int(failed or not all(row.right for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
