"""Several runs of a graph over NumPy floats at once.

An array has one axis more than the evaluator sees: the first one, over the runs, or of
length 1 for what is the same in all of them.  At the sizes of the verifier most of an
evaluation is overhead, so a dozen runs take little longer than one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mirage_dsl.core.types import Scalar
from mirage_dsl.ir.evaluate.floats import NumpyDomain, stand_in
from mirage_dsl.ir.evaluate.graph import evaluate
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ops.definition import Array, Numbers, Operator


@dataclass(frozen=True)
class RunsDomain(NumpyDomain):
    """`NumpyDomain` for several runs, at the small sizes of trials.

    What is gathered from outside is NaN.
    """

    stand_ins: bool = True
    checked: bool = False

    def shape(self, value: Array) -> tuple[int, ...]:
        """That of one run."""
        return value.shape[1:]

    def constant(self, number: Scalar, extents: Mapping[str, int]) -> Array:
        """The same number in every run."""
        return super().constant(number, extents)[None]

    def index(self, count: int) -> Array:
        """The same positions in every run."""
        return super().index(count)[None]

    def elementwise(self, op: Operator, operands: Sequence[Array]) -> Array:
        """Numbers go with arrays of any rank."""
        rank = max(v.ndim for v in operands)
        aligned = [v.reshape(v.shape + (1,) * (rank - v.ndim)) for v in operands]
        return super().elementwise(op, aligned)

    def reduce(self, op: Operator, value: Array, axes: tuple[int, ...]) -> Array:
        """The axes of a run vanish."""
        return super().reduce(op, value, tuple(a + 1 for a in axes))

    def scan(self, op: Operator, value: Array, axis: int) -> Array:
        """Along an axis of a run."""
        return super().scan(op, value, axis + 1)

    def contract(self, op: Operator, a: Array, b: Array) -> Array:
        """Runs are one more dim of the batch."""
        runs = max(a.shape[0], b.shape[0])
        merged = [
            np.broadcast_to(v, (runs, *v.shape[1:])).reshape(-1, *v.shape[2:])
            for v in (a, b)
        ]
        found = super().contract(op, *merged)
        return found.reshape(runs, -1, *found.shape[1:])

    def library(
        self,
        op: Operator,
        operands: Sequence[Array],
        numbers: Numbers,
        shape: tuple[int, ...],
    ) -> Array:
        """What stands in for it, in each run."""
        whole = [o.reshape(len(o), -1) for o in operands]
        return stand_in(op, whole, numbers, shape)

    def running_max(self, value: Array, axis: int) -> Array:
        """Along an axis of a run."""
        return super().running_max(value, axis + 1)

    def transpose(self, value: Array, order: tuple[int, ...]) -> Array:
        """The axes of a run in another order."""
        return value.transpose((0, *(axis + 1 for axis in order)))

    def reshape(self, value: Array, shape: tuple[int, ...]) -> Array:
        """The axes of a run merged or split."""
        return value.reshape(value.shape[:1] + shape)

    def take(self, value: Array, axis: int, start: int, stop: int) -> Array:
        """A range along an axis of a run."""
        return super().take(value, axis + 1, start, stop)

    def pad(self, value: Array, axis: int, count: int) -> Array:
        """NaN after an axis of a run."""
        return super().pad(value, axis + 1, count)

    def gather(self, op: Operator, value: Array, index: Array, axis: int) -> Array:
        """Along an axis of a run."""
        return super().gather(op, value, index, axis + 1)

    def concat(self, values: Sequence[Array], axis: int) -> Array:
        """Arrays one after the other, in each run."""
        runs = max(v.shape[0] for v in values)
        whole = [np.broadcast_to(v, (runs, *v.shape[1:])) for v in values]
        return super().concat(whole, axis + 1)


def evaluate_runs(
    graph: KernelGraph,
    inputs: Sequence[Array],
    domain: RunsDomain | None = None,
) -> list[Array]:
    """The outputs of several runs.

    Args:
        graph: A program or μGraph that was checked.
        inputs: One array per input, the first axis over the runs.
        domain: The arithmetic; float64 without rounding unless given.
    """
    domain = domain or RunsDomain()
    runs = len(inputs[0])
    given = [v if v.dtype.kind in "iu" else v.astype(domain.compute) for v in inputs]
    outputs = evaluate(graph, given, domain)
    return [np.broadcast_to(v, (runs, *v.shape[1:])) for v in outputs]
