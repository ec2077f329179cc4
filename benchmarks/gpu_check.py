"""Runs hand-written μGraphs on a GPU: right against float64, and how fast.

    python benchmarks/gpu_check.py [results.json] [--only NAME] [--fast]

Each workload runs at its published sizes, with several draws of inputs, under several
schedules; the time is that of one call inside a CUDA graph with cold L2, beside
PyTorch's eager time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("MIRAGE_DSL_CACHE_DIR", tempfile.mkdtemp())

from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.tune.timing import host_microseconds, rotating, time_sets
from tests.programs import mugraphs

EPS = 1e-6
TOLERANCE = 2e-3
Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A workload at one batch.

    Attributes:
        name: Workload and batch.
        eager: PyTorch's program; on float64 tensors it is the reference.
        shapes: Of the inputs.
        scale: Of the random inputs.
        graphs: Candidates by description.
    """

    name: str
    eager: Callable[..., torch.Tensor]
    shapes: list[tuple[int, ...]]
    graphs: dict[str, Callable[[], KernelGraph]]
    scale: float = 1.0


@dataclass
class Result:
    """What one candidate did."""

    case: str
    candidate: str
    error: float
    microseconds: float
    eager: float
    seconds: float
    host: float = float("nan")
    message: str = ""


def rms(x: torch.Tensor) -> torch.Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype)


def eager_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k, -1) @ v


def eager_qknorm(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(rms(q) @ rms(k).transpose(1, 2) / 8, -1) @ v


def schedule(stages: int, *, warps: int = 4, **flags: bool) -> Schedule:
    return Schedule(num_warps=warps, num_stages=stages, **flags)


def linear_cases() -> Iterator[Case]:
    for b in (1, 8, 16):
        graphs: dict[str, Callable[[], KernelGraph]] = {}
        for swap in (False, True):
            for stages in (4, 5):
                for tma in (False, True):
                    s = schedule(stages, swap_operands=swap, descriptors=tma)
                    for t in (s, replace(s, pdl=True)):
                        graphs[label(t, "BN64 BK128")] = lambda s=t, b=b: (
                            mugraphs.rmsnorm_linear(2 * b, 4096, 6144, schedule=s)
                        )
        yield Case(
            f"rmsnorm_linear b={b}",
            lambda x, w: rms(x) @ w,
            [(2 * b, 4096), (4096, 6144)],
            graphs,
        )


def mlp_cases() -> Iterator[Case]:
    for b in (1, 8, 16):
        graphs: dict[str, Callable[[], KernelGraph]] = {}
        for swap, tile in ((False, 32), (True, 64)):
            for stages in (3, 4):
                for tma in (False, True):
                    s = schedule(stages, swap_operands=swap, descriptors=tma)
                    graphs[label(s, f"BN{tile} BK128")] = lambda s=s, t=tile, b=b: (
                        mugraphs.gated_mlp(8 * b, 4096, 4096, tile_n=t, schedule=s)
                    )
        yield Case(
            f"gated_mlp b={b}",
            lambda x, w1, w2: torch.nn.functional.silu(x @ w1) * (x @ w2),
            [(8 * b, 4096), (4096, 4096), (4096, 4096)],
            graphs,
            scale=0.2,
        )


def lora_cases() -> Iterator[Case]:
    for b in (1, 8, 16):
        graphs: dict[str, Callable[[], KernelGraph]] = {}
        for swap in (False, True):
            for stages, tile, tma in ((6, 128, False), (4, 256, False), (4, 256, True)):
                s = schedule(stages, swap_operands=swap, descriptors=tma)
                graphs[label(s, f"BN64 BK{tile}")] = lambda s=s, t=tile, b=b: (
                    mugraphs.lora(b, 4096, 4096, tile_k=t, schedule=s)
                )
        yield Case(
            f"lora b={b}",
            lambda x, w, a, c: x @ w + (x @ a) @ c,
            [(b, 4096), (4096, 4096), (4096, 16), (16, 4096)],
            graphs,
            scale=0.2,
        )


def attention_cases() -> Iterator[Case]:
    for b in (1, 8):
        for norm in (False, True):
            graphs: dict[str, Callable[[], KernelGraph]] = {}
            for splits in (1, {1: 16, 8: 4}[b]):
                for tile, tma, pdl in (
                    (64, False, False),
                    (64, True, True),
                    (128, False, True),
                    (128, True, False),
                    (128, True, True),
                ):
                    s = schedule(3, descriptors=tma, pdl=pdl)
                    graphs[label(s, f"BM64 BN{tile} SK{splits}")] = (
                        lambda s=s, t=tile, k=splits, b=b, norm=norm: (
                            mugraphs.attention(
                                2 * b,
                                256,
                                4096,
                                tile_n=t,
                                splits=k,
                                schedule=s,
                                norm=norm,
                                keys_last=not norm,
                            )
                        )
                    )
            keys = (2 * b, 4096, 64) if norm else (2 * b, 64, 4096)
            yield Case(
                f"{'qknorm' if norm else 'gqa'} b={b}",
                eager_qknorm if norm else eager_attention,
                [(2 * b, 256, 64), keys, (2 * b, 4096, 64)],
                graphs,
                scale=0.5,
            )


def ntrans_cases() -> Iterator[Case]:
    for b in (1, 8, 16):
        graphs = {
            f"nw{w}": lambda w=w, b=b: mugraphs.ntrans(
                8 * b, 4096, schedule=schedule(1, warps=w)
            )
            for w in (4, 8, 16)
        }
        yield Case(
            f"ntrans b={b}",
            lambda x, h, a: rms(x + a * (rms(h) - x)),
            [(8 * b, 4096)] * 3,
            graphs,
        )


def label(s: Schedule, rest: str) -> str:
    flags = "out^T " * s.swap_operands + "TMA " * s.descriptors + "PDL " * s.pdl
    return f"{flags}{rest} ns{s.num_stages}"


def draw(case: Case, seed: int) -> Tensors:
    generator = torch.Generator("cuda").manual_seed(seed)
    return [
        (torch.randn(s, generator=generator, device="cuda") * case.scale).half()
        for s in case.shapes
    ]


def error_of(case: Case, run: Callable[..., Any], draws: int) -> float:
    """The largest error over several draws, relative to the largest element."""
    worst = 0.0
    for seed in range(draws):
        tensors = draw(case, seed)
        right = case.eager(*[t.double() for t in tensors])
        for _ in range(3):
            found = run(*tensors)[0].double()
            error = ((found - right).abs().max() / right.abs().max()).item()
            worst = max(worst, error if error == error else float("inf"))
    return worst


def run_case(case: Case, draws: int) -> Iterator[Result]:
    sets = rotating(draw(case, 0))
    eager = time_sets(case.eager, sets).median
    for name, make in case.graphs.items():
        start = time.perf_counter()
        result = Result(case.name, name, float("nan"), float("nan"), eager, 0.0)
        try:
            run = TritonExecutable(make())
            result.error = error_of(case, run, draws)
            result.seconds = time.perf_counter() - start
            result.microseconds = time_sets(run, sets).median
            result.host = host_microseconds(run, sets[0])
        except Exception as error:  # one candidate must not end the check
            result.message = f"{type(error).__name__}: {error}"[:300]
        yield result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("json", nargs="?", help="where the results are stored")
    parser.add_argument(
        "--only", default="", metavar="NAME", help="cases with this in their names"
    )
    parser.add_argument("--fast", action="store_true", help="one draw, batch 1 and 8")
    options = parser.parse_args()
    makers = (linear_cases, mlp_cases, lora_cases, attention_cases, ntrans_cases)
    cases = [c for maker in makers for c in maker() if options.only in c.name]
    if options.fast:
        cases = [c for c in cases if "b=16" not in c.name]
    results: list[Result] = []
    for case in cases:
        results += run_case(case, 1 if options.fast else 3)
        torch.cuda.empty_cache()
    if options.json:
        Path(options.json).write_text(
            json.dumps([asdict(r) for r in results], indent=1)
        )
    show(results)
    wrong = [r for r in results if not r.error <= TOLERANCE]
    return 1 if wrong else 0


def show(results: list[Result]) -> None:
    """A compact table: the best of each case, and whatever went wrong."""
    for case in dict.fromkeys(r.case for r in results):
        mine = [r for r in results if r.case == case]
        good = [r for r in mine if r.error <= TOLERANCE and r.microseconds > 0]
        for r in sorted(good, key=lambda r: r.microseconds)[:2]:
            print(
                f"{case:22s} {r.candidate:28s} {r.microseconds:7.1f} us "
                f"eager {r.eager:6.1f} host {r.host:5.1f} error {r.error:.1e} "
                f"built {r.seconds:.1f} s"
            )
        for r in mine:
            if r not in good:
                print(f"{case:22s} {r.candidate:28s} WRONG {r.error:.1e} {r.message}")


if __name__ == "__main__":
    sys.exit(main())
