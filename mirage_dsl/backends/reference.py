"""Runs a kernel graph on the CPU by the meaning of the IR: NumPy, or torch tensors.

The backend `reference`, and a host for kernels of other backends that run on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from mirage_dsl.backends.base import Backend, Plain, Report, check_tensors
from mirage_dsl.core.errors import DTypeError
from mirage_dsl.ir.evaluate import (
    BlockEvaluator,
    Domain,
    Named,
    NamedArrays,
    NumpyDomain,
    evaluate,
    evaluate_numpy,
    numpy_dtype,
)
from mirage_dsl.ir.graph import BlockGraph, KernelGraph
from mirage_dsl.ir.maps import parts
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.program import TileProgram

if TYPE_CHECKING:
    import torch


Function = Callable[..., None]
"""Computes one block: takes its coordinates, one for each split of the grid, and the
tensors of the tile program as f32 arrays, one axis for each dim; fills those it stores.
"""


class Hosted(Backend):
    """A backend without a host language: the evaluator hosts what it has of kernels."""

    packages: Sequence[str] = ("numpy",)
    tuned = False

    def function(self, program: TileProgram) -> Function:
        """What computes a block, at known extents."""
        raise NotImplementedError

    def launched(self, graph: KernelGraph) -> BlockEvaluator | None:
        """What runs the kernels of a μGraph in the place of the evaluator."""
        made = programs(graph)
        return _block_after_block(graph, made, [self.function(p) for p in made])

    def takes(self, device: str) -> bool:  # noqa: ARG002
        """All tensors: they are moved to the CPU and back."""
        return True

    def compile(
        self,
        graph: KernelGraph,
        device: str,  # noqa: ARG002
        *,
        most: Mapping[str, int] | None = None,
    ) -> Evaluated:
        """What evaluates it at whatever extents the tensors have."""
        largest = graph.with_extents(most or {})
        if None not in largest.extent_of.values():
            # What the backend cannot express is refused before a call.
            self.launched(largest)
        return Evaluated(graph, self, most)

    def report(
        self,
        graph: KernelGraph,
        target: str | None = None,  # noqa: ARG002
        *,
        kernels: Sequence[int] | None = None,
    ) -> list[Report]:
        """Nothing is compiled, so nothing is known."""
        wanted = range(len(graph.blocks)) if kernels is None else sorted(kernels)
        names = [f"{graph.name}_kernel{i}" for i in wanted]
        return [Report(name, None, None, None) for name in names]

    def load(self, device: str | None = None) -> None:
        """Nothing is loaded late."""


class Reference(Hosted):
    """The evaluator: slow, and right by definition."""

    name = "reference"

    def emit(self, graph: KernelGraph) -> str:
        """The text of the μGraph, which is evaluated as it stands."""
        return str(graph)

    def launched(self, graph: KernelGraph) -> None:
        """Kernels are evaluated as all else is, in float64."""


class Evaluated(Plain):
    """A μGraph to be called, which the evaluator runs node after node.

    It is also the host of kernels in languages that have none of their own: library
    kernels are NumPy then, in f32, rounded where a real run rounds.

    Args:
        graph: What to run, at whatever extents tensors have.
        backend: Gives its source, and its kernels once for each set of extents.
        most: The largest extents of symbolic dims.
    """

    def __init__(
        self,
        graph: KernelGraph,
        backend: Hosted,
        most: Mapping[str, int] | None = None,
    ) -> None:
        self.graph = graph
        self._backend, self._most = backend, dict(most or {})
        self._launched = cache(backend.launched)

    @property
    def source(self) -> str:
        """What was emitted, at the largest extents of symbolic dims."""
        return self._backend.emit(self.graph.with_extents(self._most))

    def __call__(
        self, *tensors: torch.Tensor, out: Sequence[torch.Tensor] = ()
    ) -> list[torch.Tensor]:
        """The outputs, as new tensors or in those given."""
        extents = check_tensors(self.graph, tensors, out, self._most)
        graph = self.graph.with_extents(extents)
        launched = self._launched(graph)
        if launched is None:
            found = run_reference(graph, *tensors)
        else:
            domain = NumpyDomain(np.float32, round_casts=True)
            arrays = [
                (t if _has_integers(t) else t.float()).detach().cpu().numpy()
                for t in tensors
            ]
            results = evaluate(graph, arrays, domain, launched)
            found = _as_tensors(graph, results, tensors)
        for result, target in zip(found, out, strict=bool(out)):
            target.copy_(result)
        return list(out) or found


def _block_after_block(
    graph: KernelGraph, made: Sequence[TileProgram], functions: Sequence[Function]
) -> BlockEvaluator:
    """What calls the function of a kernel for each of its blocks in turn."""
    kernels = {
        b.results: (program, function)
        for b, program, function in zip(graph.blocks, made, functions, strict=True)
    }

    def launch(
        block: BlockGraph,
        values: Mapping[str, Named[Any]],
        _: Mapping[str, int],
        domain: Domain[Any],
    ) -> dict[str, Named[Any]]:
        program, function = kernels[block.results]
        extents = {name: extent or 1 for name, extent in program.extents.items()}
        tensors: dict[str, Any] = {}
        for name, kind in program.tensors.items():
            shape = [extents[n] for n in kind.names]
            # An element that no block stores is seen.
            tensors[name] = np.full(shape, np.nan, np.float32)
            if kind.dtype.is_integer:
                tensors[name] = np.full(shape, kind.dtype.max, kind.dtype.long_name)
            if name not in block.results:
                # A row of one, for the matrix unit, is in no tensor yet.
                own = [n for n in kind.names if n in values[name].labels]
                found = NamedArrays(domain).arranged(values[name], own).value
                tensors[name] = found.reshape(shape)
        counts = [max(parts(extents[s.dim], s.tile) for s in a) for a in block.axes]
        with np.errstate(all="ignore"):
            for at in product(*map(range, counts)):
                ids = [at[block.axis_of[s.dim]] for s in block.grid]
                function(*ids, *tensors.values())
        stored = {name: program.tensors[name].names for name in block.results}
        return {name: Named(tensors[name], dims) for name, dims in stored.items()}

    return launch


def run_reference(graph: KernelGraph, *operands: Any) -> list[Any]:
    """The outputs of a program or μGraph, computed in float64 and rounded at the end.

    Args:
        graph: What to run.
        *operands: One per input, all NumPy arrays or all torch CPU tensors.

    Returns:
        One array or tensor per output, of its type's dtype.

    Raises:
        DTypeError: A mixture of arrays and tensors.
        ShapeError: Operands that do not fit the input types.
    """
    kinds = {is_tensor(o) for o in operands}
    if len(kinds) > 1:
        raise DTypeError(
            f"{graph.name}: found NumPy arrays and torch tensors; pass one kind"
        )
    if kinds == {True}:
        return _run_on_tensors(graph, operands)
    found = evaluate_numpy(graph, *operands)
    with np.errstate(over="ignore"):
        return [
            array.astype(numpy_dtype(item.type.dtype))
            for array, item in zip(found, graph.returns, strict=True)
        ]


def _run_on_tensors(graph: KernelGraph, tensors: tuple[Any, ...]) -> list[torch.Tensor]:
    import torch

    arrays = [
        (t if _has_integers(t) else t.to(torch.float64))
        .detach()
        .cpu()
        .resolve_neg()
        .numpy()
        for t in tensors
    ]
    return _as_tensors(graph, evaluate_numpy(graph, *arrays), tensors)


def _as_tensors(
    graph: KernelGraph, arrays: Sequence[Any], like: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Outputs in their dtypes, where the inputs are."""
    import torch

    return [
        torch.from_numpy(np.array(array)).to(  # pyright: ignore[reportUnknownMemberType]
            like[0].device, getattr(torch, item.type.dtype.long_name)
        )
        for array, item in zip(arrays, graph.returns, strict=True)
    ]


def _has_integers(tensor: torch.Tensor) -> bool:
    import torch

    return not tensor.is_floating_point() and tensor.dtype != torch.bool


def is_tensor(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether a value is a torch tensor, without importing torch."""
    kinds = type(value).__mro__
    return any(k.__module__ == "torch" and k.__name__ == "Tensor" for k in kinds)
