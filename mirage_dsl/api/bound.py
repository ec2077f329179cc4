"""A kernel bound to shapes and dtypes: its program, the chosen μGraph, and its runs.

Dynamic dims have one search for many extents, and one compiled kernel where that can
be: extents are rounded up, and what is found for these serves all extents that come to
the same, once it is verified at extents of their kind.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mirage_dsl.backends.base import (
    DEFAULT_BACKEND,
    Backend,
    Call,
    Guarded,
    backend_named,
)
from mirage_dsl.core.errors import (
    CompileError,
    EquivalenceError,
    SearchError,
    ShapeError,
    TraceError,
    UnsupportedError,
    public_methods,
    user_location,
)
from mirage_dsl.core.modes import without_lazy_bits
from mirage_dsl.core.settings import EFFORT, Effort
from mirage_dsl.core.types import TensorSpec, packed
from mirage_dsl.frontend.arguments import (
    Arguments,
    Leaf,
    as_torch,
    check_dtypes,
    check_out,
    copied,
    device_kind,
    is_tensor_like,
    is_torch,
    known_shapes,
    leaves_of,
    order_of,
    places_of,
    refuse_modes,
    strides_of,
    to_pairs,
)
from mirage_dsl.frontend.operands import evaluate_trace
from mirage_dsl.frontend.trace import Trace
from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.check import check, check_or_raise
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import (
    bind_extents,
    complete_extents,
    derived_extents,
    parts,
    with_symbolic,
)

if TYPE_CHECKING:
    from mirage_dsl.backends.base import Executable
    from mirage_dsl.core.hardware import Hardware
    from mirage_dsl.cost.explain import Explanation
    from mirage_dsl.search.driver import Progress
    from mirage_dsl.search.result import SearchResult
    from mirage_dsl.tune.timing import Benchmark
    from mirage_dsl.tune.tuner import Ahead, Tuned
    from mirage_dsl.verify.certificate import Certificate

Shapes = Sequence[tuple[int, ...]]

log = logging.getLogger("mirage_dsl.api.bound")

TUNER_OPTIONS = ("constraints", "hardware", "use_cache")
"""Arguments that a search shares with the tuner."""


@dataclass(frozen=True)
class Options:
    """Settings of a kernel; None means the environment's, or else the default.

    Attributes:
        effort: How long to search.
        budget_seconds: Time limit of a search.
        config: Further arguments of `superoptimize`, by name.
        mugraph: A pinned μGraph, or its text, in place of a search.
        dynamic: Annotated dims that stay symbolic.
        overlap: Whether kernels may start before what is ahead of them has ended.
        backend: What runs it, by name.
    """

    effort: Effort | None = None
    budget_seconds: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    mugraph: KernelGraph | str | None = None
    dynamic: tuple[str, ...] = ()
    overlap: bool = False
    backend: str = DEFAULT_BACKEND


def check_options(what: str, given: Collection[str]) -> None:
    """Refuse arguments that `superoptimize` does not take.

    Raises:
        UnsupportedError: There is one; it is named.
    """
    if not given:
        return
    from mirage_dsl.store.superoptimize import superoptimize

    program, *known = inspect.signature(superoptimize).parameters
    unknown = [name for name in given if name not in known]
    if unknown:
        raise UnsupportedError(
            f"{what} has {unknown[0]!r}, which mirage.superoptimize does not take "
            f"beside the {program}; expected some of {', '.join(known)}",
            user_location(),
        )


@public_methods("bound kernel")
class BoundKernel:
    """One program with one μGraph for it.

    Called with tensors it runs them; before the first run on a GPU it searches, unless
    `search` or `use` has been called.

    Attributes:
        trace: The traced call.
    """

    def __init__(
        self,
        trace: Trace,
        specs: Sequence[TensorSpec],
        options: Options,
        on_change: Callable[[], None],
    ) -> None:
        self._on_change = on_change
        self.trace = trace
        self._options = options
        self._result: SearchResult | None = None
        self._tuning: Tuned | None = None
        self._chosen: KernelGraph | None = None
        self._executables: Executables | None = None
        self._shapes = known_shapes(specs)
        self._hardware: Hardware | None = options.config.get("hardware")

    @property
    def _backend(self) -> Backend:
        return backend_named(self._options.backend)

    @property
    def program(self) -> KernelGraph:
        """What is computed."""
        return self.trace.program

    @property
    def mugraph(self) -> KernelGraph:
        """How it is computed; the first use searches."""
        if self._chosen is None:
            self._choose()
        assert self._chosen is not None
        return self._chosen

    @property
    def tuning(self) -> Tuned | None:
        """What the GPU said of the candidates of the last search."""
        return self._tuning

    @property
    def result(self) -> SearchResult | None:
        """What the last search found, if there was one."""
        return self._result

    def _choose(self) -> None:
        pinned = self._options.mugraph
        if pinned is not None:
            self.use(pinned)
        elif (self._options.effort or EFFORT.get()) == "none":
            self._set(self._sized_program())
        else:
            self.search()

    def _set(self, mugraph: KernelGraph) -> None:
        early, before = self._options.overlap, self._chosen
        self._chosen = launched_early(mugraph, first=True) if early else mugraph
        self._executables = None
        if before is not None:
            self._on_change()

    def _sized_program(self) -> KernelGraph:
        """The program at the extents that it was bound with.

        Raises:
            SearchError: It was bound with symbolic extents.
        """
        if all(extent is not None for _, extent in self.program.extents):
            return self.program
        if self._shapes is None:
            raise SearchError(
                f"{self.program.name} was bound with symbolic extents; bind it with "
                "tensors, or specs of typical sizes, to search or run it"
            )
        return self.program.with_extents(bind_extents(self.program, self._shapes))

    def _typical(self, candidate: KernelGraph) -> KernelGraph:
        """A μGraph at the extents of dynamic dims that it was bound with."""
        if self._shapes is None:
            return candidate
        return resized(candidate, free_dims(candidate, self.program), self._shapes)

    def search(
        self,
        effort: Effort | None = None,
        budget_seconds: float | None = None,
        progress: Progress | None = None,
        **config: Any,
    ) -> SearchResult:
        """Search for μGraphs, keep the best one, and return them all.

        On a machine with a GPU the best candidates are timed there.

        Args:
            effort: `none`, `quick` or `full`.
            budget_seconds: Time limit of the search; 6 or 60 seconds before a tuning.
            progress: Told of progress.
            **config: Further arguments of `superoptimize`.
        """
        from mirage_dsl.store.superoptimize import superoptimize
        from mirage_dsl.tune.tuner import has_gpu, search_seconds, tuned

        check_options("search", config)
        effort = effort or self._options.effort or EFFORT.get()
        config = {**self._options.config, **config}
        if has_gpu():
            _refuse_in_capture(self.program.name)
            config.setdefault("hardware", _hardware_here())
        self._hardware = config.get("hardware")
        program, tuning = self._sized_program(), None
        with self._ahead(program, None if progress else effort) as ahead:
            if effort != "none":
                config.setdefault("begin", ahead.start)
            result = superoptimize(
                program,
                effort=effort,
                budget_seconds=budget_seconds
                or self._options.budget_seconds
                or search_seconds(effort),
                progress=progress,
                **config,
            )
            if effort != "none":
                options = {n: config[n] for n in TUNER_OPTIONS if n in config}
                tuning = tuned(
                    result, effort=effort, progress=progress, ahead=ahead, **options
                )
                result = tuning.result
        self._result, self._tuning = result, tuning
        self._set(result.best.mugraph)
        return result

    def _ahead(self, program: KernelGraph, untold: str | None) -> Ahead:
        from mirage_dsl.tune.tuner import Ahead

        given = self._options
        return Ahead(program, untold, overlap=given.overlap, backend=given.backend)

    def use(self, mugraph: KernelGraph | str) -> Certificate:
        """Use a given μGraph, once it is checked and verified against the program.

        Args:
            mugraph: A μGraph or its text.  Its extents of dynamic dims do not count.

        Raises:
            ParseError: The text is not in the language.
            CheckError: It is not well formed.
            EquivalenceError: It does not compute the program.
        """
        from mirage_dsl.ir.text.parser import parse

        candidate = parse(mugraph) if isinstance(mugraph, str) else mugraph
        candidate = self._typical(candidate)
        check_or_raise(candidate)
        certificate = self._verify(candidate)
        if not certificate.ok:
            raise EquivalenceError(
                f"the μGraph {candidate.name} is refused: {certificate}\n"
                "Correct it, or search for one."
            )
        self._set(candidate)
        return certificate

    def _verify(self, candidate: KernelGraph) -> Certificate:
        from mirage_dsl.verify.verifier import identity, verify

        program = self._sized_program()
        return identity(program) if candidate == program else verify(candidate, program)

    def verify(self) -> Certificate:
        """Verify the chosen μGraph against the program, anew."""
        return self._verify(self.mugraph)

    def to_triton_code(self) -> str:
        """The Triton source of the chosen μGraph."""
        from mirage_dsl.backends.triton.lowering.emit import emit

        return emit(self.mugraph)

    def tiles(self) -> str:
        """The tile programs of the chosen μGraph: what one block does, in order."""
        from mirage_dsl.tile.build import programs
        from mirage_dsl.tile.text import to_text

        return to_text(*programs(self.mugraph))

    def explain(self) -> Explanation:
        """Why the chosen μGraph is fast: kernels, bytes, FLOPs, before and after.

        The estimates are for the GPU that it was searched for, or else the current one.
        """
        from mirage_dsl.cost.explain import explain

        mugraph, hardware = self.mugraph, self._hardware or _hardware_here()
        return explain(mugraph, self._sized_program(), hardware)

    def benchmark(self) -> Benchmark:
        """Time the chosen μGraph and the unfused program on the current GPU.

        Raises:
            CompileError: There is no CUDA device.
        """
        from mirage_dsl.tune.timing import time_both

        program, compiled = self._sized_program(), self._backend.compile
        return time_both(
            compiled(self.mugraph, "cuda"), compiled(program, "cuda"), program
        )

    def __call__(self, *tensors: Any) -> Any:
        """Run on tensors, given in the order of the program's inputs."""
        if len(tensors) != len(self.program.inputs):
            names = ", ".join(i.name for i in self.program.inputs)
            raise ShapeError(
                f"{self.program.name} takes {len(self.program.inputs)} tensors "
                f"({names}), found {len(tensors)}",
                user_location(),
            )
        refuse_modes(tensors)
        for item, tensor in zip(self.program.inputs, tensors, strict=True):
            if isinstance(tensor, TensorSpec) or not is_tensor_like(tensor):
                raise TraceError(
                    f"{item.name} of {self.program.name} is {type(tensor).__name__}; "
                    f"expected a tensor {item.type}",
                    user_location(),
                )
        self._check_strides(tensors)
        return self.run(tensors)

    def _check_strides(self, tensors: Sequence[Any]) -> None:
        """Refuse other strides than those on which the trace depended.

        Raises:
            ShapeError: A tensor has others.
        """
        for item, tensor, wanted in zip(
            self.program.inputs, tensors, self.trace.strides or (), strict=False
        ):
            found = strides_of(tensor)
            if found != wanted:
                raise ShapeError(
                    f"{item.name} of {self.program.name} has the strides {found}; the "
                    f"function asked for strides when it was bound with {wanted}: call "
                    "the kernel, which is traced for each layout, or bind it anew",
                    user_location(),
                )

    def run(self, tensors: Sequence[Any], out: Any = None) -> Any:
        """Run on tensors: by the backend where it takes them, or by reference.

        Args:
            tensors: The inputs.
            out: Tensors, in the structure of the result, that take it.
        """
        taken = list(map(to_pairs, leaves_of(out))) if out is not None else []
        if out is not None:
            self._check_places(out)
            check_out(taken)
        tensors = [without_lazy_bits(t) for t in tensors]
        device = device_kind([*tensors, *taken])
        given = any(map(is_torch, tensors))
        if device == "cpu" and not (given and self._backend.takes(device)):
            check_dtypes(self.program, tensors)
            found = evaluate_trace(self.trace, tensors)
            return (
                found
                if out is None
                else copied(list(map(to_pairs, leaves_of(found))), taken, out)
            )
        prepared = [as_torch(t) for t in tensors]
        executable = self._executable(prepared, interpret=device == "cpu")
        found = executable(*prepared, out=taken)
        return self.trace.rebuild(found if taken else self.trace.alike(found, tensors))

    def _check_places(self, out: Any) -> None:
        """Refuse tensors for results in other places than results are in."""
        given, expected = places_of(out), places_of(self.trace.structure)
        if given != expected:
            raise ShapeError(
                f"out of {self.program.name} has {_described(given)}; expected "
                f"{_described(expected)}, as the function returns them",
                user_location(),
            )

    def prepared(
        self, tensors: Sequence[Any], out: Sequence[Any] = ()
    ) -> Call[Guarded]:
        """The call for CUDA tensors like these, those that take results behind them."""
        executable = self._executable(tensors, interpret=False)
        call = executable.prepared(tensors, out)
        direct, rebuild = call.guarded, self.trace.rebuild
        if direct is None:
            return Call(lambda *given: rebuild(call.run(*given)))

        def guarded(*given: Any) -> Any:
            found = direct.call(*given)
            return None if found is None else rebuild(found)

        ask = direct.first if self.trace.structure == Leaf(0) else guarded

        def run(*given: Any) -> Any:
            found = ask(*given)
            return rebuild(call.run(*given)) if found is None else found

        return Call(run, Guarded(direct.count, ask))

    def _executable(self, tensors: Sequence[Any], *, interpret: bool) -> Executable:
        # Another thread may choose another μGraph meanwhile.
        executables = self._executables
        if executables is None:
            mugraph, backend = self.mugraph, self._options.backend
            executables = Executables(self.program, mugraph, backend)
            self._executables = executables
        shapes = tuple(tuple(t.shape) for t in tensors)
        known = executables.at(shapes, interpret=interpret)
        if known is not None:
            return known
        if not interpret:
            _refuse_in_capture(self.program.name)
        return executables.make(shapes, interpret=interpret)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{i.name}: {i.type}" for i in self.program.inputs)
        state = "not searched yet" if self._chosen is None else "ready"
        return f"<BoundKernel {self.program.name}({inputs}), {state}>"


def _described(places: tuple[str, ...]) -> str:
    if places == ("",):
        return "one tensor"
    return f"tensors at {', '.join(places)}" if places else "no tensor"


def _hardware_here() -> Hardware:
    """What is known of the current GPU; without one, of what is estimated for then."""
    from mirage_dsl.core.hardware import DEFAULT
    from mirage_dsl.tune.devices import current_hardware
    from mirage_dsl.tune.tuner import has_gpu

    return current_hardware() if has_gpu() else DEFAULT


def _refuse_in_capture(name: str) -> None:
    import torch

    if torch.cuda.is_current_stream_capturing():
        raise CompileError(
            f"the first call of {name} at these sizes searches and compiles, which a "
            "CUDA graph cannot capture; call it once before capturing"
        )


# -- Dynamic dims ----------------------------------------------------------------------

EXACT = 64
"""Extents up to here are rounded to powers of two."""
STEPS = 4
"""Beyond, there are so many steps from one power of two to the next.

A long extent has many tiles: what is best for twice as many is often not best for it.
"""


def round_up(extent: int) -> int:
    """The extent that a search is made for."""
    power = 1 << (extent - 1).bit_length()
    step = power if extent <= EXACT else power // (2 * STEPS)
    return -(-extent // step) * step


def rounded(arguments: Arguments, dynamic: Collection[str]) -> Arguments:
    """The arguments with extents of dynamic dims rounded up."""
    pairs = zip(arguments.specs, arguments.hints, strict=True)
    return replace(arguments, specs=tuple(_rounded(s, h, dynamic) for s, h in pairs))


def _rounded(
    given: TensorSpec, hints: Sequence[str | None], dynamic: Collection[str]
) -> TensorSpec:
    extents = [
        round_up(extent) if isinstance(extent, int) and hint in dynamic else extent
        for extent, hint in zip(given.shape, hints, strict=True)
    ]
    strides = given.strides
    known = [e for e in given.shape if isinstance(e, int)]
    if strides is not None and len(known) == len(extents):
        strides = packed([int(e) for e in extents], order_of(known, strides))
    return replace(given, shape=tuple(extents), strides=strides)


def typical(
    program: KernelGraph, found: Arguments, given: Arguments
) -> tuple[TensorSpec, ...]:
    """Specs of the sizes to search for: the rounded ones, if they fit each other.

    They do not where one dim is as long as two others together, for one.

    Args:
        program: What is computed.
        found: The arguments, rounded.
        given: The arguments of a call.
    """
    shapes = known_shapes(found.specs)
    if shapes is not None:
        try:
            bind_extents(program, shapes)
        except ShapeError:
            return given.specs
    return found.specs


def free_dims(graph: KernelGraph, program: KernelGraph) -> frozenset[str]:
    """What the program's symbolic dims are called in a graph with the same inputs."""
    return frozenset(
        ours
        for mine, its in zip(graph.inputs, program.inputs, strict=False)
        for ours, other in zip(mine.type.names, its.type.names, strict=False)
        if program.extent_of[other] is None
    )


def resized(graph: KernelGraph, free: Collection[str], shapes: Shapes) -> KernelGraph:
    """The graph with the extents of `free` dims, and what follows, that shapes tell.

    Raises:
        ShapeError: The shapes contradict the inputs' types or each other.
    """
    if not free:
        return graph
    bound = bind_extents(graph.with_extents(dict.fromkeys(free)), shapes)
    return graph.with_extents(derived_extents(graph, bound))


class Executables:
    """What runs one μGraph, at its extents and at others.

    Args:
        program: What it computes, with symbolic extents where they may change.
        mugraph: How, verified at its own extents.
        backend: What it runs by.
    """

    def __init__(
        self,
        program: KernelGraph,
        mugraph: KernelGraph,
        backend: str = DEFAULT_BACKEND,
    ) -> None:
        self._backend = backend_named(backend)
        self._program = program
        self._free = free_dims(mugraph, program)
        self._mugraph = complete_extents(mugraph, mugraph.extent_of)
        self._most = {n: e for n, e in self._mugraph.extents if e is not None}
        self._known: dict[object, Executable] = {}
        self._verified: dict[object, bool] = {}
        self._shared: dict[bool, Executable | None] = {}

    def at(self, shapes: Shapes, *, interpret: bool) -> Executable | None:
        """What is known to serve inputs of these shapes."""
        return self._known.get((interpret, tuple(shapes)))

    def make(self, shapes: Shapes, *, interpret: bool) -> Executable:
        """What serves inputs of these shapes, verified at extents of their kind."""
        found = self._made(shapes, interpret)
        self._known[interpret, tuple(shapes)] = found
        return found

    def _made(self, shapes: Shapes, interpret: bool) -> Executable:
        sized = resized(self._mugraph, self._free, shapes)
        if sized == self._mugraph:
            return self._compiled(sized, interpret)
        program = self._program.with_extents(bind_extents(self._program, shapes))
        if sized == program:
            return self._compiled(program, interpret)
        kind = _kind(sized)
        if kind not in self._verified:
            self._verified[kind] = _holds(sized, program)
        if not self._verified[kind]:
            return self._compiled(program, interpret)
        shorter = all((e or 0) <= self._most.get(n, 0) for n, e in sized.extents)
        shared = self._of_shorter(interpret) if shorter else None
        return shared or self._compiled(sized, interpret)

    def _of_shorter(self, interpret: bool) -> Executable | None:
        """What serves all extents up to the μGraph's own; None if nothing does."""
        if interpret not in self._shared:
            graph = with_symbolic(self._mugraph, self._free)
            self._shared[interpret] = None
            if _lies_along_symbolic(graph):
                return None
            try:
                self._shared[interpret] = self._compiled(graph, interpret, self._most)
            except UnsupportedError as error:
                log.info("%s: compiled for each extent: %s", graph.name, error)
        return self._shared[interpret]

    def _compiled(
        self,
        graph: KernelGraph,
        interpret: bool,
        most: Mapping[str, int] | None = None,
    ) -> Executable:
        device = "cpu" if interpret else "cuda"
        return self._backend.compile(graph, device, most=most)


def _lies_along_symbolic(graph: KernelGraph) -> bool:
    """Whether elements of an input or a result lie along a symbolic dim in memory.

    A kernel that does not know such an extent loads them one by one.
    """
    for item in (*graph.inputs, *graph.returns):
        dims = [d.name for axis in item.type.order for d in item.type.axes[axis]]
        if dims and graph.extent_of[dims[-1]] is None:
            return True
    return False


def _kind(graph: KernelGraph) -> object:
    """What a verification tells extents apart by; it has small extents of its own.

    That is which of them are 1 and, of each split, whether it has one part, two, or
    more of them, and whether the last one is ragged.
    """
    extents = graph.extent_of
    splits = [s for b in graph.blocks for s in b.splits]
    found = [(extents[s.dim] or 1, s.tile) for s in splits]
    return (
        tuple(name for name, extent in graph.extents if extent == 1),
        tuple((min(parts(e, tile), 3), e % tile == 0) for e, tile in found),
    )


def _holds(graph: KernelGraph, program: KernelGraph) -> bool:
    """Whether a graph computes the program at these extents; a warning says why not.

    How accurate it is was measured where it was chosen, with sums at least as long.
    """
    from mirage_dsl.verify.verifier import verify

    problems = check(graph)
    reason = str(problems[0]) if problems else ""
    if not problems:
        certificate = verify(graph, program)
        stability = certificate.stability
        finite = stability is None or math.isfinite(stability.worst_ratio)
        if certificate.equivalent and finite:
            return True
        reason = str(certificate)
    sizes = ", ".join(f"{name} = {extent}" for name, extent in program.extents)
    log.warning(
        "%s with %s is left to library kernels; the μGraph for these sizes rounded up "
        "does not serve: %s",
        program.name,
        sizes,
        reason,
    )
    return False
