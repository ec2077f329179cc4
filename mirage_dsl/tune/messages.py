"""What the tuner and its two processes tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirage_dsl.backends.base import DEFAULT_BACKEND
from mirage_dsl.ir.graph import KernelGraph

if TYPE_CHECKING:
    from mirage_dsl.backends.base import Report


@dataclass(frozen=True)
class InputSpec:
    """A tensor to draw: shape, strides in elements, and the scale of its elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    scale: float = 1.0


@dataclass(frozen=True)
class Task:
    """What a worker needs before it can judge candidates.

    Attributes:
        program: What they compute.
        inputs: The tensors to draw.
        draws: How many sets of them.
        device: The number of the GPU.
        backend: What runs them.
    """

    program: KernelGraph
    inputs: tuple[InputSpec, ...]
    draws: int = 3
    device: int = 0
    backend: str = DEFAULT_BACKEND


@dataclass(frozen=True)
class CompileJob:
    """A candidate to compile.

    Attributes:
        index: Its position among the candidates.
        graph: The candidate.
        target: Such as `sm_90`.
        screened: Whether to leave out what is not worth timing.
        together: For each of its own kernels, how many blocks have to share a
            multiprocessor for all to run at once; 0, or nothing, where they need not.
        backend: What compiles it.
    """

    index: int
    graph: KernelGraph
    target: str
    screened: bool = True
    together: tuple[int, ...] = ()
    backend: str = DEFAULT_BACKEND


@dataclass(frozen=True)
class Compiled:
    """What became of a job; no reason means that it is worth timing."""

    index: int
    reason: str
    seconds: float
    reports: tuple[Report, ...] = ()


@dataclass(frozen=True)
class Trial:
    """A request to judge one candidate.

    Attributes:
        graph: The candidate.
        limit: µs beyond which a rough time will do.
        replays: How often the chain of calls is repeated.
    """

    graph: KernelGraph
    limit: float
    replays: int


@dataclass(frozen=True)
class Final:
    """A request to time candidates that have passed once more, in turns.

    Attributes:
        graphs: The candidates.
        seconds: After so long no more turns begin.
    """

    graphs: tuple[KernelGraph, ...]
    seconds: float


@dataclass(frozen=True)
class Timing:
    """What became of one candidate.

    Attributes:
        index: Its position among the candidates.
        microseconds: Time of a call, or None where it was not timed.
        error: Largest error relative to the largest element, or None.
        reason: Why it is out; empty for a good one.
        seconds: What it took to judge.
    """

    index: int
    microseconds: float | None = None
    error: float | None = None
    reason: str = ""
    seconds: float = 0.0


__all__ = [
    "CompileJob",
    "Compiled",
    "Final",
    "InputSpec",
    "Task",
    "Timing",
    "Trial",
]
