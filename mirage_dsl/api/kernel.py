"""`@mirage.kernel`: a Python function that is searched, verified, lowered and run.

A call is given tensors, constants, containers of both, and the module that it belongs
to.  For the next call that is alike, a function is written that looks whether it is:
the same types, keys and lengths of containers, the same constants, the same places of
parameters in the module.  It hands the tensors, in the order of the program's inputs,
to the call that compares these.  It looks where tensors are now and keeps none, so one
that was replaced is seen.

Bound to shapes and dtypes, a kernel has its program, the chosen μGraph, and its runs.
Dynamic dims have one search for many extents, and one compiled kernel where that can
be: extents are rounded up, and what is found for these serves all extents that come to
the same, once it is verified at extents of their kind.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count
from types import MethodType
from typing import TYPE_CHECKING, Any, overload

from mirage_dsl.api.reads import ReadList, Reads
from mirage_dsl.backends.base import (
    DEFAULT_BACKEND,
    Backend,
    Call,
    Dispatch,
    Guarded,
    backend_named,
    signature,
)
from mirage_dsl.core.errors import (
    CompileError,
    EquivalenceError,
    RefusedError,
    SearchError,
    ShapeError,
    TraceError,
    UnsupportedError,
    public_methods,
)
from mirage_dsl.core.modes import in_mode, without_lazy_bits
from mirage_dsl.core.settings import EFFORT, EFFORTS, Effort
from mirage_dsl.core.types import TensorSpec, packed
from mirage_dsl.frontend.arguments import (
    Arguments,
    Function,
    Leaf,
    ModuleFunction,
    Slot,
    as_torch,
    bind_arguments,
    check_dtypes,
    check_out,
    copied,
    device_kind,
    fields_of,
    is_constant,
    is_empty,
    is_module,
    is_record,
    is_sequence,
    is_tensor_like,
    is_torch,
    items_of,
    known_shapes,
    leaves_of,
    map_leaves,
    order_of,
    places_of,
    refuse_modes,
    same_containers,
    strides_of,
    tensors_named,
    to_pairs,
)
from mirage_dsl.frontend.functions import NoTensor, call_by_reference, evaluate_trace
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.frontend.trace import Trace, trace_call
from mirage_dsl.ir.analysis.launches import early_where_possible, launched_early
from mirage_dsl.ir.check import check, check_or_raise
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import (
    bind_extents,
    complete_extents,
    derived_extents,
    open_slices,
    parts,
    with_symbolic,
)
from mirage_dsl.ir.walk import seen_in

if TYPE_CHECKING:
    from mirage_dsl.backends.base import Executable
    from mirage_dsl.core.hardware import Hardware
    from mirage_dsl.cost.explain import Explanation
    from mirage_dsl.ir.text.parser import GraphLike
    from mirage_dsl.search.result import SearchResult
    from mirage_dsl.search.segments import Progress
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
        mugraph: A pinned μGraph in place of a search.
        dynamic: Annotated dims that stay symbolic.
        overlap: Whether kernels may start before what is ahead of them has ended.
        constant: Arguments that this does not write, by name.
        backend: What runs it, by name.
    """

    effort: Effort | None = None
    budget_seconds: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    mugraph: KernelGraph | None = None
    dynamic: tuple[str, ...] = ()
    overlap: bool = False
    constant: tuple[str, ...] = ()
    backend: str = DEFAULT_BACKEND

    def __deepcopy__(self, _: object) -> Options:
        # Nothing in it changes, and executors cannot be copied.
        return self


def checked_options(what: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `superoptimize`, with the row of a GPU for its name.

    Raises:
        UnsupportedError: It does not take one of them, which is named.
        SearchError: There is no such GPU.
    """
    options = dict(given)
    if not options:
        return options
    from mirage_dsl.core.hardware import row_given
    from mirage_dsl.store.superoptimize import superoptimize

    program, *known = inspect.signature(superoptimize).parameters
    unknown = [name for name in given if name not in known]
    if unknown:
        raise UnsupportedError.here(
            f"{what} has {unknown[0]!r}, which mirage.superoptimize does not take "
            f"beside the {program}; expected some of {', '.join(known)}"
        )
    if "hardware" in options:
        options["hardware"] = row_given(options["hardware"])
    return options


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
        constant: AbstractSet[str] = frozenset(),
    ) -> None:
        self._on_change = on_change
        self.constant = constant
        self.trace = trace
        self._options = options
        self._result: SearchResult | None = None
        self._tuning: Tuned | None = None
        self._chosen: KernelGraph | None = None
        self._searched = False
        self._executables: Executables | None = None
        self._shapes = known_shapes(specs)
        config = checked_options("config", options.config)
        self._hardware: Hardware | None = config.get("hardware")

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
        before, self._chosen = self._chosen, mugraph
        if self._options.overlap:
            # A pinned μGraph may have other names for its inputs.
            pairs = zip(self.program.inputs, mugraph.inputs, strict=True)
            constant = {own.name for i, own in pairs if i.name in self.constant}
            self._chosen = launched_early(mugraph, first=True, constant=constant)
        self._searched, self._executables = False, None
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

    @cached_property
    def _cuts(self) -> bool:
        """Whether it takes a part of a dynamic dim, which may be too short for it."""
        return bool(open_slices(self.program))

    def fits(self, shapes: Shapes | None) -> bool:
        """Whether dynamic dims are long enough for what is sliced of them."""
        if shapes is None or not self._cuts:
            return True
        try:
            bind_extents(self.program, shapes, slices=True)
        except ShapeError:
            return False
        return True

    def _typical(self, candidate: KernelGraph) -> KernelGraph:
        """A μGraph at the extents of dynamic dims that it was bound with."""
        if self._shapes is None:
            return candidate
        bound = bind_extents(self.program, self._shapes)
        told = {n: bound[n] for n in untold_dims(candidate, self.program)}
        free = free_dims(candidate, self.program)
        return resized(candidate, free, self._shapes, told)

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

        config = checked_options("search", {**self._options.config, **config})
        effort = effort or self._options.effort or EFFORT.get()
        if budget_seconds is None:
            budget_seconds = self._options.budget_seconds or search_seconds(effort)
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
                budget_seconds=budget_seconds,
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
        self._searched = True
        return result

    def _ahead(self, program: KernelGraph, untold: str | None) -> Ahead:
        from mirage_dsl.tune.tuner import Ahead

        given = self._options
        return Ahead(
            program,
            untold,
            overlap=given.overlap,
            constant=self.constant,
            backend=given.backend,
            spent=self.trace.seconds,
        )

    def use(self, mugraph: GraphLike) -> Certificate:
        """Use a given μGraph, once it is checked and verified against the program.

        Args:
            mugraph: A μGraph, its text, or a candidate of a search.  Its extents of
                dynamic dims do not count.

        Raises:
            ParseError: The text is not in the language.
            CheckError: It is not well formed.
            EquivalenceError: It does not compute the program.
        """
        from mirage_dsl.ir.text.parser import graph_of

        candidate = self._typical(graph_of(mugraph))
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
            raise ShapeError.here(
                f"{self.program.name} takes {len(self.program.inputs)} tensors "
                f"({names}), found {len(tensors)}"
            )
        refuse_modes(tensors)
        for item, tensor in zip(self.program.inputs, tensors, strict=True):
            if isinstance(tensor, TensorSpec) or not is_tensor_like(tensor):
                raise TraceError.here(
                    f"{item.name} of {self.program.name} is {type(tensor).__name__}; "
                    f"expected a tensor {item.type}"
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
                raise ShapeError.here(
                    f"{item.name} of {self.program.name} has the strides {found}; the "
                    f"function asked for strides when it was bound with {wanted}: call "
                    "the kernel, which is traced for each layout, or bind it anew"
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
        plain = [without_lazy_bits(t) for t in tensors]
        made = zip(self.program.inputs, tensors, plain, strict=True)
        self.refuse_copies(i.name for i, lazy, copy in made if copy is not lazy)
        tensors = plain
        if self._cuts:
            bind_extents(self.program, [tuple(t.shape) for t in tensors], slices=True)
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
        interpret = device == "cpu"
        # Into NumPy's arrays results are copied: these may have strides below 0.
        arrays = not all(map(is_torch, taken))
        places = [] if arrays else taken
        executable = self._executable(prepared, interpret=interpret)
        try:
            found = executable(*prepared, out=places)
        except RefusedError as error:
            executable = self._by_libraries(prepared, error, interpret=interpret)
            found = executable(*prepared, out=places)
        if arrays:
            return copied(found, taken, out)
        if taken:
            return self.trace.rebuild(found)
        return self._rebuilt(self.trace.alike(found, tensors), self._copied())

    def refuse_copies(self, copied: Iterable[str]) -> None:
        """Refuse constants that are copied right ahead of the kernels of a call.

        Raises:
            UnsupportedError: There is one.
        """
        for name in copied:
            if name in self.constant:
                raise UnsupportedError.here(
                    f"{name} is constant, and is to be negated or conjugated when it "
                    f"is read: pass {name}.resolve_conj().resolve_neg()"
                )

    def _copied(self) -> frozenset[int]:
        """The outputs that a graph has in memory of others, and eager has not."""
        found: set[int] = set()
        for graph in (self.program, self.mugraph):
            taken: dict[str, int | None] = {i.name: None for i in graph.inputs}
            for at, memory in enumerate(self.trace.memories):
                value = seen_in(graph, graph.returns[at].value)
                if memory is not None and taken.setdefault(value, memory) != memory:
                    found.add(at)
        return frozenset(found)

    def _rebuilt(self, outputs: Sequence[Any], copied: AbstractSet[int]) -> Any:
        """The returned structure, with some outputs in memory of their own."""
        found = [
            t.new_empty(t.shape).copy_(t) if at in copied else t
            for at, t in enumerate(outputs)
        ]
        return self.trace.rebuild(found)

    def _check_places(self, out: Any) -> None:
        """Refuse tensors for results in other places than results are in."""
        given, expected = places_of(out), places_of(self.trace.structure)
        if given != expected:
            raise ShapeError.here(
                f"out of {self.program.name} has {_described(given)}; expected "
                f"{_described(expected)}, as the function returns them"
            )
        if not all(isinstance(leaf, Leaf) for leaf in leaves_of(self.trace.structure)):
            raise UnsupportedError.here(
                f"out of {self.program.name}, which returns more than it computes: "
                "numbers, texts, objects, or tensors of one constant; call it without "
                "out=, or return only tensors that depend on its arguments"
            )

    def prepared(
        self, tensors: Sequence[Any], out: Sequence[Any] = ()
    ) -> Call[Guarded]:
        """The call for CUDA tensors like these, those that take results behind them."""
        executable = self._executable(tensors, interpret=False)
        try:
            call = executable.prepared(tensors, out)
        except RefusedError as error:
            executable = self._by_libraries(tensors, error, interpret=False)
            call = executable.prepared(tensors, out)
        direct, rebuild = call.guarded, self.trace.rebuild
        copied = frozenset[int]() if out else self._copied()
        if copied:
            rebuild = partial(self._rebuilt, copied=copied)
        if direct is None:
            return Call(lambda *given: rebuild(call.run(*given)))

        def guarded(*given: Any) -> Any:
            found = direct.call(*given)
            return None if found is None else rebuild(found)

        single = self.trace.structure == Leaf(0) and not copied
        ask = direct.first if single else guarded

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

    def _by_libraries(
        self, tensors: Sequence[Any], error: RefusedError, *, interpret: bool
    ) -> Executable:
        """The program by library kernels, where what a search chose does not compile.

        Raises:
            RefusedError: The μGraph was given, so that nothing else stands for it.
        """
        if not self._searched or self._executables is None:
            raise error
        log.warning("%s is left to library kernels: %s", self.program.name, error)
        shapes = tuple(tuple(t.shape) for t in tensors)
        return self._executables.by_libraries(shapes, interpret=interpret)

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


def untold_dims(graph: KernelGraph, program: KernelGraph) -> frozenset[str]:
    """Dims of a graph that follow from its inputs in the program alone.

    Where a join is written as a choice by position, nothing says how long it is.
    """
    given = {name for item in graph.inputs for name in item.type.names}
    known = {n: e for n, e in graph.extents if n in given}
    told = derived_extents(graph, known)
    open_dims = {name for name, extent in program.extents if extent is None}
    return frozenset(n for n, _ in graph.extents if n in open_dims and n not in told)


def resized(
    graph: KernelGraph,
    free: Collection[str],
    shapes: Shapes,
    told: Mapping[str, int] | None = None,
) -> KernelGraph:
    """The graph with the extents of `free` dims, and what follows, that shapes tell.

    What is sliced may be too short for it: that is for `check` to say.  Loops that are
    too long now load nothing early.

    Args:
        graph: The graph.
        free: Its symbolic dims.
        shapes: Of its inputs.
        told: Extents that follow from none of its own.

    Raises:
        ShapeError: The shapes contradict the inputs' types or each other.
    """
    if not free:
        return graph
    symbolic = graph.with_extents({**dict.fromkeys(free), **(told or {})})
    bound = bind_extents(symbolic, shapes)
    return early_where_possible(graph.with_extents(derived_extents(graph, bound)))


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
        self._untold = untold_dims(mugraph, program)
        self._at_each = bool(self._untold or open_slices(program))
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

    def by_libraries(self, shapes: Shapes, *, interpret: bool) -> Executable:
        """What serves inputs of these shapes from now on: library kernels."""
        program = self._program.with_extents(bind_extents(self._program, shapes))
        found = self._compiled(program, interpret)
        self._known[interpret, tuple(shapes)] = found
        return found

    def _made(self, shapes: Shapes, interpret: bool) -> Executable:
        bound = bind_extents(self._program, shapes)
        program = self._program.with_extents(bound)
        told = {name: bound[name] for name in self._untold}
        try:
            sized = resized(self._mugraph, self._free, shapes, told)
        except ShapeError as error:
            # An extent that follows from none is what it was.
            _leave(program, error.message)
            return self._compiled(program, interpret)
        if sized == self._mugraph:
            return self._compiled(sized, interpret)
        if sized == program:
            return self._compiled(program, interpret)
        # Where dims are sliced, what lies ahead of what changes with their extents; and
        # that of a dim which follows from no other is believed at none but those.
        kind = sized.extents if self._at_each else _kind(sized)
        if kind not in self._verified:
            self._verified[kind] = _holds(sized, program)
        if not self._verified[kind]:
            return self._compiled(program, interpret)
        shorter = all((e or 0) <= self._most.get(n, 0) for n, e in sized.extents)
        shorter &= not self._untold
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
    _leave(program, reason)
    return False


def _leave(program: KernelGraph, reason: str) -> None:
    """Say that a program is left to library kernels at its extents."""
    sizes = ", ".join(f"{name} = {extent}" for name, extent in program.extents)
    log.warning(
        "%s with %s is left to library kernels; the μGraph for these sizes rounded up "
        "does not serve: %s",
        program.name,
        sizes,
        reason,
    )


# -- How a repeated call takes its tensors ---------------------------------------------


def tensor_places(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[int]:
    """Where the tensors of a call are among its leaves, in the parameters' order.

    Leaves are counted first of arguments by position, then of those by keyword.
    """
    given = (*args, *kwargs.values())
    counter = count()

    def number(_: str, leaf: Any) -> int:
        del leaf
        return next(counter)

    numbers = [map_leaves(value, number) for value in given]
    named = dict(zip(kwargs, numbers[len(args) :], strict=True))
    bound = inspect.signature(function).bind(*numbers[: len(args)], **named)
    flat = leaves_of(given)
    places = leaves_of(list(bound.arguments.values()))
    return [at for at in places if not is_constant(flat[at])]


def short_call(
    given: Sequence[Any],
    names: Sequence[str],
    order: Sequence[int],
    function: Callable[..., Any],
    guarded: Guarded,
) -> Guarded:
    """What serves calls like one, and tells by itself whether it is meant.

    Args:
        given: What it was given: by position, then by keyword.
        names: The keywords.
        order: Which tensors the guarded call takes: numbers of the leaves of `given`,
            and behind these of the module's tensors.
        function: What is called.
        guarded: The call for its tensors.
    """
    writer = _Writer(guarded.call)
    arguments = [writer.argument() for _ in given]
    for name, value in zip(arguments, given, strict=True):
        writer.take(value, name)
    if isinstance(function, ModuleFunction):
        writer.take_slots(function.slots())
    call = writer.function(arguments, [writer.leaves[at] for at in order])
    return Guarded(len(given) - len(names), call, tuple(names))


class _Writer:
    """Writes a function that gives None for what is not alike."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.leaves: list[str] = []
        self._scope: dict[str, Any] = {"call": call}
        self._lines: list[str] = []
        self._numbers = count()

    def argument(self) -> str:
        """A name for an argument or a value."""
        return f"x{next(self._numbers)}"

    def _kept(self, value: Any) -> str:
        name = f"k{next(self._numbers)}"
        self._scope[name] = value
        return name

    def _unless(self, condition: str) -> None:
        self._lines += [f"  if not ({condition}):", "   return None"]

    def _read(self, expression: str) -> str:
        name = self.argument()
        self._lines.append(f"  {name} = {expression}")
        return name

    def take(self, value: Any, name: str) -> None:
        """Look at an argument and all in it."""
        if is_constant(value):
            self.leaves.append("")
            self._constant(value, name)
            return
        parts = self._parts(value, name)
        if parts is None:
            self.leaves.append(name)
            return
        for item, where in parts:
            self.take(item, self._read(where))

    def _constant(self, value: Any, name: str) -> None:
        if value is None or isinstance(value, bool):
            self._unless(f"{name} is {value}")
        else:
            kind, known = self._kept(type(value)), self._kept(value)
            same = f"type({name}) is {kind} and {name} == {known}"
            # 0.0 and -0.0 are equal.
            zero = type(value) is float and not value
            text = f" and repr({name}) == {repr(value)!r}" if zero else ""
            self._unless(same + text)

    def _parts(self, value: Any, name: str) -> list[tuple[Any, str]] | None:
        """What lies in a container, and how it is read; None for a leaf."""
        sequence, record = bool(is_sequence(value)), is_record(value)
        if not (sequence or record or issubclass(type(value), dict)):
            return None
        self._unless(f"type({name}) is {self._kept(type(value))}")
        if sequence:
            self._unless(f"len({name}) == {len(value)}")
            return [(item, f"{name}[{at}]") for at, item in enumerate(value)]
        if record:
            fields = fields_of(value)
            return [(getattr(value, f), f"{name}.{f}") for f in fields]
        keys: list[Any] = list(value)
        self._unless(f"[*{name}] == {self._kept(keys)}")
        return [(value[key], f"{name}[{self._kept(key)}]") for key in keys]

    def take_slots(self, slots: Sequence[Slot]) -> None:
        """Look at the places of parameters and buffers, as they were when traced."""
        holders = {id(slot.holder): slot.holder for slot in slots}
        names = {at: self._kept(holder) for at, holder in holders.items()}
        for at, holder in holders.items():
            self._unless(f"len({names[at]}) == {len(holder)}")
        first: dict[int, str] = {}
        for slot in slots:
            where = f"{names[id(slot.holder)]}[{slot.key!r}]"
            if slot.tensor is None:
                self._unless(f"{where} is None")
            elif id(slot.tensor) in first:
                self._unless(f"{where} is {first[id(slot.tensor)]}")
            elif slot.is_argument:
                first[id(slot.tensor)] = self._read(where)
                self.leaves.append(first[id(slot.tensor)])

    def function(self, arguments: Sequence[str], tensors: Sequence[str]) -> Any:
        """The function; it ends in the call with some of the leaves."""
        lines = [f"def take({', '.join(arguments)}):"]
        if self._lines:
            # Other things than those that were there, or none.
            lines += [" try:", *self._lines, " except Exception:", "  return None"]
        lines.append(f" return call({', '.join(tensors)})")
        exec("\n".join(lines), self._scope)
        return self._scope["take"]


# -- What the decorator refuses --------------------------------------------------------


def require_traceable(function: object) -> None:
    """Refuse what cannot be traced whatever it does.

    Raises:
        TraceError: It is no function, has no signature, or returns no tensors.
    """
    if not callable(function):
        raise TraceError.here(
            f"kernel takes a function, found {type(function).__name__}; settings are "
            "keywords, as in @mirage.kernel(effort='full')"
        )
    name = getattr(function, "__name__", type(function).__name__)
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise TraceError.here(
            f"kernel takes a function that returns tensors; {name} is a coroutine or a "
            "generator"
        )
    try:
        inspect.signature(function)
    except ValueError:
        raise TraceError.here(
            f"{name} is built in, and Python does not know its arguments; write a "
            f"function that calls it, as lambda x: {name}(x)"
        ) from None


# -- Prepared calls --------------------------------------------------------------------


def call_key(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
) -> Hashable | None:
    """What a prepared call depends on; None where none is prepared.

    Calls are prepared for plain CUDA tensors and constants, and containers of them.

    Args:
        function: What is called.
        args: Arguments by position.
        kwargs: Arguments by name.
        out: Tensors for the results, in the containers in which they were given.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    found = _Seen(torch, [len(args), tuple(kwargs)])
    if not all(map(found.add, (*args, *kwargs.values(), out))):
        return None
    if isinstance(function, ModuleFunction):
        state = function.tensors()
        slots = function.slots()
        found.parts += [tuple((s.name, s.tensor is None) for s in slots), tuple(state)]
        if not all(map(found.add, state.values())):
            return None
    try:
        return out is None, *found.parts, *signature(found.tensors)
    except RuntimeError:
        # Some layouts have no strides; such a tensor is refused where it is traced.
        return None


class _Seen:
    """What a key is made of: what was seen of a call so far."""

    def __init__(self, torch: Any, parts: list[Hashable]) -> None:
        self.parts = parts
        self.tensors: list[Any] = []
        self._plain = torch.Tensor, torch.nn.Parameter
        self._gradients = bool(torch.is_grad_enabled())

    def add(self, value: Any) -> bool:
        """Whether there may be a prepared call, as far as one value goes."""
        if type(value) in self._plain:
            # Tensors on several devices are refused where calls are prepared.
            if value.is_complex() or (not self.tensors and not value.is_cuda):
                return False
            self.tensors.append(value)
            self.parts.append(None)
            return not (self._gradients and value.requires_grad)
        if is_constant(value):
            # 0.0 and -0.0 are equal, NaN is not itself, and True is 1.
            number = type(value) is float
            self.parts.append((type(value).__name__, repr(value) if number else value))
            return True
        items = items_of(value)
        if items is None:
            return False
        # Keys that print alike may differ.
        given: Any = value
        keys = tuple(map(repr, given)) if isinstance(value, dict) else ()
        children = [child for _, child in items]
        self.parts.append((given.__class__, keys, len(children)))
        return all(map(self.add, children))


# -- Kernels ---------------------------------------------------------------------------


class Kernel:
    """A decorated function.

    Called with CUDA tensors it runs the fastest verified μGraph that it has found for
    their shapes and dtypes; with NumPy arrays or CPU tensors it evaluates the
    reference semantics; with symbolic tensors it is inlined.  With `out=` the results
    are written to the given tensors, which may be views of any strides, such as places
    in a cache, but must not share memory with the inputs where several kernels run.

    Where an argument is empty the function runs as it is, by PyTorch or NumPy.

    Numbers, texts and functions that the function reads from its closure, its module,
    its defaults, its instance, or objects and containers there, are part of the
    program: when one changes, it is traced anew.  `reads` lists them, and what is not
    watched.
    """

    def __init__(self, function: Function, options: Options) -> None:
        self.function = function
        self.options = options
        self._calls = Dispatch[Guarded]()
        self._bound: dict[tuple[object, ...], BoundKernel] = {}
        """By specs, constants and what the function reads."""
        self._asks_strides = False
        """Whether a trace depended on the strides of its arguments."""
        self._reads: Reads | None = None
        # Nothing was read yet that could change.
        self._unchanged: Callable[[], bool] = lambda: True
        self._of_classes: dict[type, Kernel] = {}
        # What a kernel keeps is no attribute of the function that wraps it.
        functools.update_wrapper(self, function, updated=())
        self.attribute = self._name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._unchanged():
            self._read()
        # The two ways differ by what it costs to put arguments together.
        if kwargs:
            last = self._calls.named.get(tuple(kwargs))
            if last is not None and len(args) == last.count:
                found = last.call(*args, *kwargs.values())
                if found is not None:
                    return found
        else:
            last = self._calls.last
            if last is not None and len(args) == last.count:
                found = last.call(*args)
                if found is not None:
                    return found
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that is not like the last one."""
        if in_mode():
            refuse_modes(leaves_of((args, kwargs)))
        given = kwargs
        kwargs, out = self._without_out(kwargs)
        key = call_key(self.function, args, kwargs, out)
        call = None if key is None else self._calls.find(key)
        if call is not None:
            return call.run(*args, *given.values())
        leaves = leaves_of((args, kwargs))
        if any(isinstance(leaf, Tensor | NoTensor) for leaf in leaves):
            _refuse_out(out)
            return self.function(*args, **kwargs)
        self._refuse_specs(leaves)
        refuse_modes(leaves)
        if any(map(is_empty, leaves)):
            return self._as_it_is(args, kwargs, out)
        arguments = bind_arguments(self.function, args, kwargs)
        _refuse_gradients(arguments)
        self._read()
        age = self._calls.age
        bound = self._bind(arguments)
        bound.refuse_copies(arguments.copied)
        result = bound.run(arguments.tensors, out)
        if key is not None:
            call = self._prepared(args, kwargs, given, bound, arguments.tensors)
            if call is not None:
                self._calls.keep(key, call, age)
        return result

    def _as_it_is(self, args: Any, kwargs: Any, out: Any) -> Any:
        """What PyTorch or NumPy computes where an argument is empty.

        Programs have no such tensors, and there is next to nothing to compute.
        """
        found = self.function(*args, **kwargs)
        if out is None:
            return found
        results, taken = (list(map(to_pairs, leaves_of(t))) for t in (found, out))
        return copied(results, taken, out)

    def _without_out(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Arguments by keyword without tensors for results, and those."""
        if "out" not in kwargs or not self._takes_out:
            return kwargs, None
        return {n: v for n, v in kwargs.items() if n != "out"}, kwargs["out"]

    def _refuse_specs(self, leaves: Sequence[Any]) -> None:
        if any(isinstance(leaf, TensorSpec) for leaf in leaves):
            raise TraceError.here(
                f"{self._name} was called with a spec, which has no data; use "
                f"{self._name}.bind or .trace"
            )

    def _prepared(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        named: Mapping[str, Any],
        bound: BoundKernel,
        tensors: Sequence[Any],
    ) -> Call[Guarded] | None:
        """The call for arguments like these.

        Args:
            args: Arguments by position.
            kwargs: Those by keyword that the function takes.
            named: All by keyword, that for results among them.
            bound: What runs them.
            tensors: Their tensors, in the order of the program's inputs.
        """
        given = (*args, *named.values())
        leaves = leaves_of(given)
        # As the function's own arguments are counted, without that for results.
        numbers = [n for n, own in _of_function(args, named, kwargs) if own]
        results = [n for n, own in _of_function(args, named, kwargs) if not own]
        places = tensor_places(self.function, args, kwargs)
        state = len(tensors) - len(places)
        function = self.function
        if state != len(_held(function)):
            return None
        order = [numbers[at] for at in places]
        order += range(len(leaves), len(leaves) + state)
        order += [at for at in results if not is_constant(leaves[at])]
        out = [leaves[at] for at in order[len(tensors) :]]
        call = bound.prepared(tensors, out)
        guarded = call.guarded
        if guarded is not None and (order != list(range(len(given))) or named):
            names = tuple(named)
            guarded = short_call(given, names, order, self.function, guarded)

        def run(*given: Any) -> Any:
            flat: list[Any] = [*leaves_of(given), *_held(function)]
            return call.run(*[flat[at] for at in order])

        return Call(run, guarded)

    def _read(self) -> Reads:
        """What the function reads besides its arguments, now."""
        if self._reads is None or self._reads.changed():
            self._calls.forget()
            return self._look()
        return self._reads

    def _look(self) -> Reads:
        """Look anew at what the function reads."""
        vars(self).pop("_takes_out", None)
        own = self.function
        if isinstance(own, ModuleFunction):
            self._reads = Reads(own.reads, Kernel, own.slots())
        else:
            self._reads = Reads(own, Kernel)
        self._unchanged = self._reads.unchanged
        return self._reads

    @property
    def reads(self) -> ReadList:
        """What the function reads besides its arguments.

        Each has a name and a value, and whether a change of it makes for a new trace:
        `watched`, or else `why` not.
        """
        return self._read().entries

    @cached_property
    def _takes_out(self) -> bool:
        """Whether `out` is ours: the function has no parameter of that name."""
        return "out" not in inspect.signature(self.function).parameters

    @property
    def _name(self) -> str:
        return str(getattr(self.function, "__name__", "kernel"))

    def bind(self, *args: Any, **kwargs: Any) -> BoundKernel:
        """The kernel for these shapes and dtypes; arguments are tensors or specs."""
        return self._bind(bind_arguments(self.function, args, kwargs))

    def _bind(self, arguments: Arguments) -> BoundKernel:
        bound = self._bind_for(arguments, self.options)
        if not self.options.dynamic or bound.fits(known_shapes(arguments.specs)):
            return bound
        # To eager a slice means less there, or nothing.
        options = replace(self.options, dynamic=(), mugraph=None)
        return self._bind_for(arguments, options)

    def _bind_for(self, arguments: Arguments, options: Options) -> BoundKernel:
        found, dynamic = arguments, options.dynamic
        if dynamic:
            found = rounded(arguments, dynamic)
        # What is traced alike for another device or library is one program.
        given: tuple[object, ...] = found.specs, found.constants, found.origin, dynamic
        strides = tuple(map(strides_of, arguments.tensors))
        if self._asks_strides:
            given = *given, strides
        reads = self._read()
        bound = self._bound.get((*given, reads.key))
        if bound is None:
            function = self.function
            if isinstance(function, ModuleFunction):
                function = function.reading(reads.ways)
            trace = trace_call(function, found, dynamic=dynamic)
            if trace.strides is not None and not self._asks_strides:
                self._asks_strides, given = True, (*given, strides)
            constant = tensors_named(arguments, options.constant, self._name)
            bound = self._of_trace(trace, found.specs, constant)
            if bound is None:
                specs = found.specs
                if dynamic:
                    specs = typical(trace.program, found, arguments)
                bound = BoundKernel(trace, specs, options, self._calls.forget, constant)
            # Where the trace has changed what it reads, it serves this call alone.
            key = bound if reads.changed() else self._look().key
            self._bound[*given, key] = bound
        return bound

    def _of_trace(
        self, trace: Trace, specs: tuple[TensorSpec, ...], constant: AbstractSet[str]
    ) -> BoundKernel | None:
        """What was bound for such a trace already."""
        known = (b for key, b in list(self._bound.items()) if key[0] == specs)
        known = (b for b in known if b.constant == constant)
        return next((bound for bound in known if _same(bound.trace, trace)), None)

    def trace(self, *args: Any, **kwargs: Any) -> KernelGraph:
        """The program for these shapes and dtypes; arguments are tensors or specs."""
        return self.bind(*args, **kwargs).program

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate the program on NumPy arrays or CPU tensors, in float64."""
        return call_by_reference(self.function, args, kwargs)

    def __set_name__(self, owner: type, name: str) -> None:
        self.attribute = name

    def __get__(self, instance: Any, owner: type | None = None) -> Kernel:
        """As a method: the instance is a constant of the program."""
        if instance is None:
            return self
        if isinstance(instance, type):
            return self._of_classes.setdefault(instance, _Method(self, instance))
        method = _Method(self, instance)
        # Found there before this descriptor the next time, with all it has compiled.
        try:
            vars(instance)[self.attribute] = method
        except TypeError:
            raise TraceError.here(
                f"{self._name} is a kernel and a method of {type(instance).__name__}, "
                "whose instances have __slots__ and so no place for what was compiled; "
                "make a kernel of a function, and call that with what it reads"
            ) from None
        return method

    def __reduce__(self) -> Any:
        name = getattr(self.function, "__qualname__", None)
        if name is None or isinstance(self.function, ModuleFunction | MethodType):
            # A copy of what holds an object has a kernel of the object's copy.
            return Kernel, (self.function, self.options)
        # As functions pickle: by name, without what was compiled.
        return name

    def __repr__(self) -> str:
        return f"<mirage kernel {self._name}>"


class _Method(Kernel):
    """A kernel of an instance, or of a class."""

    def __init__(self, kernel: Kernel, instance: Any) -> None:
        bound = functools.partial(kernel.function, instance)
        functools.update_wrapper(bound, kernel.function)
        vars(bound).pop("__wrapped__")
        self.__self__ = instance
        method = bound
        if is_module(instance):
            method = ModuleFunction(instance, kernel.function)
        super().__init__(method, kernel.options)
        self._place = instance, kernel.attribute

    def __reduce__(self) -> Any:
        # A copy of the instance gets a kernel of its own.
        return getattr, self._place


@overload
def kernel(function: Function, /) -> Kernel: ...
@overload
def kernel(
    *,
    effort: Effort | None = None,
    budget_seconds: float | None = None,
    config: Mapping[str, Any] | None = None,
    mugraph: KernelGraph | str | None = None,
    dynamic: Collection[str] = (),
    overlap: bool = False,
    constant: Collection[str] = (),
) -> Callable[[Function], Kernel]: ...
def kernel(
    function: Function | None = None,
    /,
    *,
    effort: Effort | None = None,
    budget_seconds: float | None = None,
    config: Mapping[str, Any] | None = None,
    mugraph: KernelGraph | str | None = None,
    dynamic: Collection[str] = (),
    overlap: bool = False,
    constant: Collection[str] = (),
) -> Kernel | Callable[[Function], Kernel]:
    """Make a kernel of a function on tensors; bare or with settings.

    Tensors are inputs of the program: all that the function computes with have to be
    arguments.  Numbers, texts, dtypes, members of an `Enum` and None are constants of
    it: each value is a program of its own, so pass what varies from call to call as a
    tensor without axes.

    Args:
        function: The function.
        effort: `none` runs the program with library kernels, `quick` searches and, on
            a GPU, tunes for up to 15 seconds, `full` for a minute or two.
        budget_seconds: Time limit of a search.
        config: Further arguments of `mirage.superoptimize`, by name.
        mugraph: A μGraph or its text to use in place of a search.
        dynamic: Annotated dims whose extent may change from call to call.  One search,
            at extents rounded up, serves all that round to the same.
        overlap: Let the first kernel of a call start before the kernel ahead of it in
            the stream has ended (programmatic dependent launch): it waits there before
            it reads or writes.  Of use where calls follow each other, as in a model.
        constant: Arguments that the kernel ahead in the stream never writes, such as
            weights; `parameters` stands for what a module has itself.  With `overlap`,
            kernels may read them before they wait.  That it is so is your promise:
            change them when the stream is idle, or a kernel that reads none of them
            has run since.

    Raises:
        TraceError: It is no function that returns tensors.
        UnsupportedError: A setting that there is not.
        CheckError: What is to be used is no μGraph.
        ParseError: Its text is not in the language.
    """
    _check_settings(effort, budget_seconds, config or {})
    pinned = None
    if mugraph is not None:
        from mirage_dsl.ir.text.parser import graph_of

        pinned = graph_of(mugraph)
    names = _names("dynamic", dynamic, "annotated dims")
    fixed = _names("constant", constant, "arguments")
    if fixed and not overlap:
        raise UnsupportedError.here(
            f"constant={constant!r} without overlap=True; kernels that do not start "
            "early have no use for it"
        )
    options = Options(
        effort, budget_seconds, dict(config or {}), pinned, names, overlap, fixed
    )
    if function is None:

        def decorate(decorated: Function) -> Kernel:
            require_traceable(decorated)
            return Kernel(_of_module(decorated), options)

        return decorate
    require_traceable(function)
    return Kernel(_of_module(function), options)


def _names(setting: str, given: Collection[str], of: str) -> tuple[str, ...]:
    """The names that a setting has; one alone may stand there as it is."""
    names: tuple[Any, ...] = (given,) if isinstance(given, str) else (*given,)
    if not all(isinstance(name, str) for name in names):
        raise UnsupportedError.here(f"{setting}={given!r}; expected names of {of}")
    return names


def _of_module(function: Function) -> Function:
    """A module, or a method of one, with its parameters and buffers as arguments."""
    if is_module(function):
        return ModuleFunction(function)
    if isinstance(function, MethodType) and is_module(function.__self__):
        return ModuleFunction(function.__self__, function.__func__)
    return function


def _same(a: Trace, b: Trace) -> bool:
    """Whether traces are the same, and give the same kinds of containers.

    Named tuples of one length are equal, and so are the keys True, 1 and 1.0.
    """
    return a == b and same_containers(a.structure, b.structure)


def _held(function: Function) -> list[Any]:
    """The parameters and buffers of what is a module's."""
    module = isinstance(function, ModuleFunction)
    return list(function.tensors().values()) if module else []


def _of_function(
    args: Sequence[Any], named: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> list[tuple[int, bool]]:
    """The numbers of the leaves of a call, and whether each is the function's own."""
    own = [True] * len(leaves_of(args))
    for name, value in named.items():
        own += [name in kwargs] * len(leaves_of(value))
    return list(enumerate(own))


def _refuse_out(out: object) -> None:
    if out is not None:
        raise TraceError.here(
            "out= in a function that is being traced: use the result, and give out= "
            "where the traced function is called"
        )


def _refuse_gradients(arguments: Arguments) -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return
    for name, tensor in zip(arguments.names, arguments.tensors, strict=True):
        if getattr(tensor, "requires_grad", False):
            raise UnsupportedError.here(
                f"argument {name} requires grad and grad mode is on, but kernels have "
                "no gradients yet: call it under torch.no_grad(), or pass "
                f"{name}.detach()"
            )


def _check_settings(
    effort: str | None, budget_seconds: float | None, config: Mapping[str, Any]
) -> None:
    """Refuse what only the first search would."""
    if effort is not None and effort not in EFFORTS:
        raise UnsupportedError.here(
            f"effort={effort!r}; expected one of {', '.join(EFFORTS)}"
        )
    if budget_seconds is not None and not budget_seconds > 0:
        raise UnsupportedError.here(
            f"budget_seconds={budget_seconds!r}; expected a number of seconds above 0"
        )
    checked_options("config", config)
