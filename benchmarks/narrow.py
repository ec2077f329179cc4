"""Weights of 16, 8 and 4 bits: is a product as fast as its weights are few?

    python -m benchmarks.narrow          # needs a GPU; a minute and a half
    python -m benchmarks.narrow --show   # ... and prints the μGraphs that were chosen
    python -m benchmarks.narrow --rows 1 --overlap

A gated MLP of 8 rows, silu(x @ gate) * (x @ up), reads its weights and does little
else; so with weights of f8e4m3 it should take half of the time of f16, and with weights
of 4 bits (two in a byte, a scale for each 128 rows) a little more than a quarter.  For
each format the table has

  ours       what `@mirage.kernel` finds and tunes for it, as a user would have it
  turned     the same of matrices the other way round, as those of `torch.nn.Linear`
  direct, shared    the same by hand, as `benchmarks/narrow_kernels.py` explains
  rows       by hand, of matrices the other way round
  bytes      a kernel that reads as many bytes: the least that there is

Those by hand are for 8 rows, and not timed with others.  With `--overlap` kernels of
ours start before the call ahead of them has ended, of every format, and may read their
weights before they wait (`constant=`).

All times are medians inside CUDA graphs, every call finding its weights out of the L2
cache; those of one format in turn, as the clock changes.  "of f16" is the share of the
time that ours takes with weights of 16 bits.  Errors are |out - right| / |right| in the
norm, with the formula in float64 on the same weights; more than 0.003 is wrong, and the
exit code 1.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import mirage_dsl as mirage
from benchmarks import narrow_kernels
from benchmarks.floor import read_floor
from mirage_dsl.tune.timing import rotating, time_in_turns

ROWS, SIDE, GROUP = 8, 4096, 128
WRONG = 3e-3
FORMATS = ("f16", "f8e4m3", "int4")


@dataclass(frozen=True)
class Form:
    """A kernel written by hand.

    Attributes:
        kernel: Its name in `narrow_kernels`.
        warps: Each has its own rows of k.
        round: How many rows of k a warp takes in one round of the loop.
        options: Constants of the kernel.
    """

    kernel: str
    warps: int
    round: int
    options: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def of_rows(self) -> bool:
        """Whether it reads matrices [n, k], as those of `torch.nn.Linear`."""
        return self.kernel.endswith("rows")

    @property
    def columns(self) -> int:
        """Columns of the result in a block."""
        return 4 * self.options["tall"] if self.of_rows else 16 * RUN


FORMS = {
    "f8e4m3": (
        Form("f8_direct", 8, 64),
        Form("f8_shared", 4, 64, {"piece": 64, "stages": 5}),
        Form("f8_rows", 8, 128, {"tall": 4}),
    ),
    "int4": (
        Form("i4_direct", 16, 128),
        Form("i4_shared", 4, 128, {"piece": 64, "stages": 4}),
        Form("i4_rows", 8, 256, {"tall": 4}),
    ),
}
"""The fastest of 180 on an H100 (Triton 3.6), and of rows of 18 and of 12."""
RUN = 2
"""Neighbouring words of one matrix in a lane: 16 columns of n for each of them."""


def gated(x: Any, gate: Any, up: Any) -> Any:
    """The program, with weights of 16 or 8 bits."""
    return functional.silu(x @ gate.to(x.dtype)) * (x @ up.to(x.dtype))


def gated_nibbles(x: Any, gate: Any, up: Any, gate_scale: Any, up_scale: Any) -> Any:
    """The program, with weights of 4 bits."""
    gate, up = unpacked(gate, gate_scale, x.dtype), unpacked(up, up_scale, x.dtype)
    return functional.silu(x @ gate) * (x @ up)


def turned(x: Any, gate: Any, up: Any) -> Any:
    """The first of them, of matrices the other way round."""
    return gated(x, gate.T, up.T)


def turned_nibbles(x: Any, gate: Any, up: Any, gate_scale: Any, up_scale: Any) -> Any:
    """The second one, of bytes and scales the other way round."""
    return gated_nibbles(x, gate.T, up.T, gate_scale.T, up_scale.T)


def unpacked(packed: Any, scale: Any, dtype: Any) -> Any:
    """Rows 2j and 2j + 1 share a byte; a scale for each group of rows."""
    shifts = torch.arange(2, device=packed.device) * 4
    value = (packed.unsqueeze(1) >> shifts[:, None].to(packed.dtype)) & 15
    value = (value.to(torch.int8) - 8).to(dtype)
    value = value.reshape(scale.shape[0], -1, scale.shape[1]) * scale[:, None]
    return value.reshape(-1, scale.shape[1])


def program(name: str, *, rows: bool = False) -> Callable[..., Any]:
    """What a format computes, of matrices [k, n], or of those the other way round."""
    if name == "int4":
        return turned_nibbles if rows else gated_nibbles
    return turned if rows else gated


def draw(name: str, k: int, n: int, device: str, rows: int = ROWS) -> list[Tensor]:
    """Random inputs of a format."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    x = normal(rows, k).half()
    if name == "int4":
        shape = (2, k // 2, n)
        packed = torch.randint(0, 256, shape, generator=generator, device=device)
        scales = (normal(2, k // GROUP, n).abs() + 0.1) / (5 * k**0.5)
        return [x, *packed.to(torch.uint8), *scales.half()]
    dtype = torch.float16 if name == "f16" else torch.float8_e4m3fn
    return [x, *((normal(k, n) / k**0.5).to(dtype) for _ in range(2))]


def launch(
    form: Form, tensors: Sequence[Tensor], module: Any = narrow_kernels
) -> Tensor:
    """The result of a kernel written by hand, on tensors as `given` makes them."""
    x, gate, up, *scales = tensors
    k, n = x.shape[1], gate.shape[0 if form.of_rows else 1]
    if k % (form.warps * form.round) or n % form.columns:
        raise ValueError(f"{form.kernel} cannot have {k} rows and {n} columns")
    out = torch.empty((x.shape[0], n), dtype=x.dtype, device=x.device)
    values: dict[str, Any] = {
        "x": x.view(torch.int32) if scales or form.of_rows else x,
        "gate": gate.view(torch.int32),
        "up": up.view(torch.int32),
        "o": out,
        "rounds": k // (form.warps * form.round),
        "one": 1,
        "depth": k,
        "width": n,
        "warps": form.warps,
        "run": RUN,
        **form.options,
    }
    if scales:
        words = form.kernel.endswith("shared")
        views = [s.view(torch.int32) if words else s for s in scales]
        values |= dict(zip(("gate_scale", "up_scale"), views, strict=True))
    kernel = getattr(module, form.kernel)
    chosen = {name: values[name] for name in kernel.arg_names}
    kernel[(n // form.columns,)](**chosen, num_warps=form.warps)
    return out


def given(form: Form, tensors: Sequence[Tensor]) -> list[Tensor]:
    """What a form reads, of tensors as `draw` gives them: rows of k, or of n."""
    return other_way(tensors) if form.of_rows else list(tensors)


def other_way(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors with matrices the other way round."""
    x, *weights = tensors
    return [x, *(w.T.contiguous() for w in weights)]


def _launched(form: Form, *tensors: Tensor) -> Tensor:
    return launch(form, tensors)


def _from_drawn(form: Form, *tensors: Tensor) -> Tensor:
    return launch(form, given(form, tensors))


def error(name: str, call: Callable[..., Tensor], tensors: Sequence[Tensor]) -> float:
    """Of a call's result, relative to the program in float64."""
    exact = [t.double() if t.dtype == torch.float16 else t for t in tensors]
    right = program(name)(*exact)
    return float((call(*tensors).double() - right).norm() / right.norm())


def measure(name: str, base: float, asked: argparse.Namespace) -> tuple[float, bool]:
    """Print the rows of a format; what ours takes, and whether all is right."""
    tensors = draw(name, SIDE, SIDE, "cuda", asked.rows)
    calls: dict[str, Callable[..., Tensor]] = {}
    errors: dict[str, float] = {}
    read: list[list[Tensor]] = []
    found_graphs: list[Any] = []
    for by, rows in (("ours", False), ("turned", True)):
        own = program(name, rows=rows)
        weights = tuple(inspect.signature(own).parameters)[1:] if asked.overlap else ()
        kernel = mirage.kernel(own, overlap=asked.overlap, constant=weights)
        read.append(other_way(tensors) if rows else tensors)
        bound = kernel.bind(*read[-1])
        bound.search(effort="quick")
        calls[by] = kernel
        errors[by] = error(name, partial(_given, kernel, read[-1]), tensors)
        found_graphs.append(bound.mugraph)
    for form in FORMS.get(name, ()) if asked.rows == ROWS else ():
        by = form.kernel.split("_")[1]
        calls[by] = partial(_launched, form)
        errors[by] = error(name, partial(_from_drawn, form), tensors)
        read.append(given(form, tensors))
    timed = zip(calls.values(), map(rotating, read), strict=True)
    times = time_in_turns(list(timed))
    found = dict(zip(calls, times, strict=True))
    base = base or found["ours"].median
    size = sum(t.numel() * t.element_size() for t in tensors)
    lines = [(by, t, f"{errors[by]:.1e}") for by, t in found.items()]
    for by, taken, wrong in [*lines, ("bytes", read_floor(size), "")]:
        line = f"{name:7} {by:7} {taken.median:7.2f} {taken.low:7.2f} {taken.high:7.2f}"
        print(f"{line} {taken.median / base:7.2f}  {wrong}", flush=True)
    if asked.show:
        print("\n".join(f"\n{graph}" for graph in found_graphs))
    return base, max(errors.values()) < WRONG


def _given(kernel: Callable[..., Tensor], tensors: list[Tensor], *_: Tensor) -> Tensor:
    """A kernel's result, whatever it is asked for, of its own tensors."""
    return kernel(*tensors)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each format and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.narrow",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--show", action="store_true", help="print the μGraphs too")
    parser.add_argument(
        "--rows", type=int, default=ROWS, metavar="N", help=f"of x; {ROWS} if not told"
    )
    parser.add_argument(
        "--overlap", action="store_true", help="let kernels of ours start early"
    )
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("benchmarks.narrow needs a CUDA device; none was found", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, Triton {narrow_kernels.triton.__version__}")
    early = ", started early" if asked.overlap else ""
    print(f"gated MLP: {asked.rows} rows{early}, weights of {SIDE} by {SIDE}, twice")
    print("µs, cold")
    print("weights by       median     low    high  of f16  error")
    base, right = 0.0, True
    for name in FORMATS:
        base, fine = measure(name, base, asked)
        right &= fine
    if not right:
        print(f"WRONG: an error is {WRONG} or more")
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
