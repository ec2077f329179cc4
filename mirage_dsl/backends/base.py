"""What a backend is, which there are, and how a repeated call finds what serves it.

A backend makes something that runs of a μGraph.  It gets the μGraph whole, with its
library kernels; of each graph-defined kernel it gets the tile program from
`tile.build.programs`, in which all is decided but addresses, and prints that in its own
language.

Who calls what, and when:

- `takes` tells `api.kernel`, at the first call with tensors of a kind, whether the
  backend runs it, or the reference semantics of the front end.
- `compile` makes an `Executable`, once for each μGraph and kind of device: for
  `api.kernel` before the first call, for the process that judges candidates, and for
  the command line.
- An `Executable` is launched by calling it with tensors.  Of `prepared` the front end
  keeps what it gives: that is all that a repeated call goes through
  (`Dispatch`).  Where there is no shorter way, `Plain` gives the call itself.
- `report` is what candidates are screened by before any of them is launched: for
  `mirage-dsl compile` and for the process that compiles for the tuner.
- `emit` is for readers.
- `load` is called by processes that serve many candidates, before the first comes.

A backend is a row of `BACKENDS`, and nothing else names its modules; a row is imported
when it is asked for.  What it must compute, `tests/backends/conformance.py` holds.

Results may be stored where an argument lies: `kernel(cache, new, out=cache)`.  A kernel
stores what one block computes while others still read.  So a result may take the place
of an input only where one kernel reads the input, the one that stores the result, and
each of its blocks reads just the elements that it stores (`stored_over`).  Elsewhere
the result is computed beside and copied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from mirage_dsl.core.errors import DTypeError, SearchError, ShapeError, UnsupportedError
from mirage_dsl.core.modes import memory_refusal
from mirage_dsl.core.types import TensorType, torch_dtype
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.layouts import FlatValues, Groups, flat_values
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import bind_extents
from mirage_dsl.ir.walk import operands_of, results_of
from mirage_dsl.ops.definition import Kind
from mirage_dsl.tile.program import ALIGNMENT

if TYPE_CHECKING:
    import torch

# -- Backends --------------------------------------------------------------------------

DEFAULT_BACKEND = "triton"
BACKENDS: dict[str, str] = {
    "reference": "mirage_dsl.backends.reference:Reference",
    "triton": "mirage_dsl.backends.triton.backend:Triton",
}
"""The class of each backend by its name, as `module:class`."""

_LOADED: dict[str, Backend] = {}


@dataclass(frozen=True)
class Report:
    """What a compiled kernel needs; None where the backend cannot tell.

    Attributes:
        name: Name of the kernel.
        registers: Per thread.
        shared_bytes: Shared memory of a block.
        spills: Bytes of stack per thread; other than 0, registers were spilled.
    """

    name: str
    registers: int | None
    shared_bytes: int | None
    spills: int | None

    def rejection(self, least: int = 0) -> str | None:  # noqa: ARG002
        """Why the kernel is not worth timing, or None.

        Args:
            least: How many blocks have to share a multiprocessor for all blocks of the
                launch to run at once; 0 where they need not.
        """
        return None


class Executable(Protocol):
    """A μGraph that was compiled: to be called, which launches it."""

    @property
    def graph(self) -> ir.KernelGraph:
        """What it computes."""
        ...

    @property
    def source(self) -> str:
        """What was emitted for it."""
        ...

    def prepared(
        self, tensors: Sequence[torch.Tensor], out: Sequence[torch.Tensor] = ()
    ) -> Call[Direct]:
        """The call for tensors like these: it takes the inputs, then those of `out`.

        Raises:
            MirageError: As calling it with them.
        """
        ...

    def __call__(
        self, *tensors: torch.Tensor, out: Sequence[torch.Tensor] = ()
    ) -> list[torch.Tensor]:
        """Launch: the outputs, in order, as new tensors.

        Args:
            *tensors: The inputs, of any strides, on a device of the kind that it was
                compiled for.
            out: Tensors that take the outputs, and are returned; of any strides.

        Raises:
            ShapeError: Tensors that do not fit the inputs' or the outputs' types.
            DTypeError: A dtype other than the input's or output's.
            CompileError: Tensors on the wrong device, or kernels that do not start.
        """
        ...


class Plain:
    """An executable that has no shorter way than being called."""

    def prepared(
        self,
        tensors: Sequence[torch.Tensor],
        out: Sequence[torch.Tensor] = (),  # noqa: ARG002
    ) -> Call[Direct]:
        """The call itself."""
        count, run = len(tensors), cast("Executable", self)
        return Call(lambda *given: run(*given[:count], out=given[count:]))


class Backend(Protocol):
    """One way to run μGraphs.

    Attributes:
        name: As users choose it.
        packages: Distributions whose versions its kernels' times depend on.
        tuned: Whether its candidates are timed on the GPU at hand.
    """

    name: str
    packages: Sequence[str]
    tuned: bool

    def takes(self, device: str) -> bool:
        """Whether calls with PyTorch tensors on a device, `cuda` or `cpu`, are its."""
        ...

    def emit(self, graph: ir.KernelGraph) -> str:
        """The source that computes a μGraph, for readers.

        Raises:
            UnsupportedError: The backend cannot express something of it.
        """
        ...

    def compile(
        self,
        graph: ir.KernelGraph,
        device: str,
        *,
        most: Mapping[str, int] | None = None,
    ) -> Executable:
        """What runs a μGraph on tensors of a kind of device, `cuda` or `cpu`.

        Args:
            graph: What to run.
            device: Where the tensors of its calls will be.
            most: The largest extents of symbolic dims: blocks can hold these whole,
                and longer ones are refused.

        Raises:
            UnsupportedError: The backend cannot express something of it, or has nothing
                that runs on such a device.
        """
        ...

    def report(
        self,
        graph: ir.KernelGraph,
        target: str | None = None,
        *,
        kernels: Sequence[int] | None = None,
    ) -> Sequence[Report]:
        """What each graph-defined kernel needs, in launch order, without launching.

        Args:
            graph: What to compile.
            target: What for, such as `sm_90`, or the backend's usual one; backends that
                have none pass it by.
            kernels: The numbers of those that are asked for, in the order in which they
                are to be compiled; all unless given.

        Raises:
            UnsupportedError: The backend cannot express something of it.
            CompileError: A kernel does not compile.
        """
        ...

    def load(self, device: str | None = None) -> None:
        """Import what compiling needs; with a device, what launching there needs."""
        ...


def backend_named(name: str) -> Backend:
    """The backend called so.

    Raises:
        SearchError: There is none; those that there are are named.
    """
    if name not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise SearchError(f"backend={name!r}; expected one of {known}")
    if name not in _LOADED:
        module, _, kind = BACKENDS[name].partition(":")
        _LOADED[name] = getattr(import_module(module), kind)()
    return _LOADED[name]


def check_tensors(
    graph: ir.KernelGraph,
    tensors: Sequence[torch.Tensor],
    out: Sequence[torch.Tensor],
    most: Mapping[str, int],
) -> dict[str, int]:
    """The extent of every dim in a call, once its tensors are known to fit.

    Raises:
        ShapeError: Shapes that contradict the types or each other, extents beyond the
            largest, or another number of tensors than there are inputs, or outputs.
        DTypeError: A dtype other than the input's or output's.
        UnsupportedError: Tensors whose values are not what lies at their addresses.
    """
    check_memory(graph, (*tensors, *out))
    extents = bind_extents(graph, [tuple(t.shape) for t in tensors])
    for name, largest in most.items():
        if extents.get(name, 0) > largest:
            raise ShapeError(
                f"dim {name} of {graph.name} has extent {extents[name]}; it was "
                f"compiled for {largest} at most"
            )
    for item, tensor in zip(graph.inputs, tensors, strict=True):
        _check_dtype(f"input {item.name} of {graph.name}", item.type, tensor)
    if out and len(out) != len(graph.returns):
        raise ShapeError(
            f"out of {graph.name} has {len(out)} tensors; it returns "
            f"{len(graph.returns)}"
        )
    for item, tensor in zip(graph.returns, out, strict=bool(out)):
        what = f"out of {graph.name}"
        _check_dtype(what, item.type, tensor)
        shape = item.type.shape_at(extents)
        if tuple(tensor.shape) != shape:
            raise ShapeError(
                f"{what} has the shape {tuple(tensor.shape)}, expected {shape}"
            )
    return extents


def check_memory(graph: ir.KernelGraph, tensors: Sequence[torch.Tensor]) -> None:
    """Refuse tensors whose values are not what lies at their addresses.

    Raises:
        UnsupportedError: There is one.
    """
    for tensor in tensors:
        what = f"a tensor of a call of {graph.name}"
        reason = memory_refusal(tensor, what)
        if reason is None and tensor.is_neg():
            reason = f"{what} is to be negated when it is read; pass x.resolve_neg()"
        if reason is not None:
            raise UnsupportedError(reason)


def _check_dtype(what: str, kind: TensorType, tensor: torch.Tensor) -> None:
    if str(tensor.dtype) != torch_dtype(kind.dtype):
        raise DTypeError(
            f"{what} is {tensor.dtype}, expected {torch_dtype(kind.dtype)}"
        )


# -- Results in the place of arguments -------------------------------------------------

Pairs = tuple[tuple[int, int, int], ...]
"""Numbers of an input and of a result, and by how many bytes that lies behind."""


def span(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to behind its last one."""
    if not tensor.numel():
        return 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * (1 + sum((n - 1) * s for n, s in pairs))


def overlaps(tensors: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> Pairs:
    """Which results share memory with which inputs, and how far apart they begin.

    Raises:
        RuntimeError: A tensor has no memory or no strides.
    """
    found: list[tuple[int, int, int]] = []
    for at, given in enumerate(tensors if out else ()):
        begin, end = given.data_ptr(), given.data_ptr() + span(given)
        for to, taken in enumerate(out):
            first = taken.data_ptr()
            if begin < first + span(taken) and first < end:
                found.append((at, to, first - begin))
    return tuple(found)


def refuse_constant(graph: ir.KernelGraph, pairs: Pairs) -> None:
    """Refuse results in memory that kernels may read before they wait.

    Raises:
        UnsupportedError: A result shares memory with a constant input.
    """
    for at, *_ in pairs:
        if graph.inputs[at].constant:
            name = graph.inputs[at].name
            raise UnsupportedError(
                f"{graph.name} writes to {name}, which is constant: leave it out of "
                "constant=, or give out= memory of its own"
            )


def stored_over(
    graph: ir.KernelGraph,
    pairs: Pairs,
    tensors: Sequence[torch.Tensor],
    out: Sequence[torch.Tensor],
) -> frozenset[tuple[str, str]] | None:
    """What kernels store over what they read; None if results may not lie there.

    Args:
        graph: The kernel graph.
        pairs: Which results share memory with which inputs.
        tensors: The inputs.
        out: The tensors that take the results.

    Returns:
        Results of blocks, each with the tensor that its block reads at its place.
    """
    found: set[tuple[str, str]] = set()
    for at, to, _ in pairs:
        if not _same_place(tensors[at], out[to]):
            return None
        names = graph.inputs[at].name, graph.returns[to].value
        pair = _stored_over(graph, *names)
        if pair is None:
            return None
        found.add(pair)
    return frozenset(found)


def _same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    layouts: list[tuple[Any, ...]] = [
        (t.data_ptr(), t.shape, t.stride(), t.dtype) for t in (a, b)
    ]
    return layouts[0] == layouts[1]


def _stored_over(
    graph: ir.KernelGraph, source: str, result: str
) -> tuple[str, str] | None:
    """What one kernel stores, and what it alone reads, block by block.

    None if there is no such kernel.
    """
    flat = flat_values(graph, kernel_types(graph))
    read, stored = flat.of(source) or (source,), flat.of(result) or (result,)
    readers = [
        n
        for n in graph.nodes
        if {source, *read} & set(operands_of(n)) and not flat.unmade & {*results_of(n)}
    ]
    if len(readers) != 1 or sum(r.value == result for r in graph.returns) != 1:
        return None
    (block,) = readers
    if not isinstance(block, ir.BlockGraph) or len({*read, *stored}) != 2:
        return None
    if len({_groups(flat, v) for v in (*read, *stored)}) != 1:
        return None
    stores = [n for n in block.nodes if isinstance(n, ir.Store) and n.result in stored]
    if len(stores) != 1:
        return None
    own = {d.name for d in ir.dims_of(stores[0].axes) if d.grid}
    loads = [n for n in block.nodes if isinstance(n, ir.Load) and n.source in read]
    picked = {
        n.values[0] for n in block.applies if n.op.kind is Kind.GATHER and n.values
    }
    apart = all(any(s.dim in own for s in axis) for axis in block.axes)
    stay = apart and all(
        _without_loop(n) == stores[0].axes and n.result not in picked for n in loads
    )
    return (stored[0], read[0]) if stay else None


def _groups(flat: FlatValues, value: str) -> Groups | None:
    """How the axes of a value lie in another tensor; None of one that lies in none."""
    return flat.within[value].groups if value in flat.within else None


def _without_loop(load: ir.Load) -> object:
    """The axes of what all iterations read together."""
    return tuple(tuple(replace(d, loop=False) for d in axis) for axis in load.axes)


# -- Prepared calls --------------------------------------------------------------------
# What makes a second call fast: prepared calls, found by the signature of a call.
#
# A call goes down three steps, and ends at the first that knows what to do:
#
# 1. The call that served last is asked, without a key.  It compares the tensors itself,
#    in generated code (`Guarded`), and returns None, doing nothing, for other ones.
# 2. The signature finds the call that was prepared for such arguments.
# 3. The call is prepared: arguments are checked, the function is traced, a μGraph
#    chosen, kernels compiled.  Only what is kept here is looked at the next time.
#
# Nothing here holds a tensor.  A kernel forgets its calls in one place, where what the
# function reads has changed or another μGraph is to run; an executable, which runs one
# μGraph, never does.

MOST_CALLS = 1024
"""Different signatures that are remembered."""


def signature(tensors: Sequence[Any]) -> tuple[Hashable, ...]:
    """What a prepared call depends on of PyTorch's tensors.

    Raises:
        RuntimeError: One has no strides or no memory, or has to be negated when it is
            read.
    """
    found: list[Hashable] = []
    for t in tensors:
        at = t.data_ptr()
        if not at or t.is_neg():
            raise RuntimeError("a tensor's values are not what lies at its address")
        found.append((t.shape, t.stride(), t.dtype, t.device, at % ALIGNMENT))
    return tuple(found)


@dataclass(frozen=True)
class Guarded:
    """A call for tensors of one kind that tells by itself whether it is meant.

    Attributes:
        count: How many arguments it takes by position.
        call: Takes these, and those by keyword behind them; returns None, and does
            nothing, for tensors of another kind.
        names: The keywords.
    """

    count: int
    call: Callable[..., Any]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Direct(Guarded):
    """A generated function that launches kernels: `call` returns the list of outputs.

    Attributes:
        first: As `call`, but returns the first output.
    """

    first: Callable[..., Any]


G = TypeVar("G", bound=Guarded)


@dataclass(frozen=True)
class Call(Generic[G]):
    """A call that was prepared for one signature.

    Attributes:
        run: Serves all calls of the signature.
        guarded: The same where no mode, profiler or other device is in the way, and
            other tensors are left alone; None if there is no such function.
    """

    run: Callable[..., Any]
    guarded: G | None = None


class Dispatch(Generic[G]):
    """The calls that were prepared, by signature.

    Attributes:
        last: What served last, to be asked first.
        named: What served last of calls with some keywords, by these.
        age: How often all calls were forgotten.
    """

    def __init__(self) -> None:
        self.last: G | None = None
        self.named: dict[tuple[str, ...], G] = {}
        self.age = 0
        self._calls: dict[Hashable, Call[G]] = {}

    def find(self, key: Hashable) -> Call[G] | None:
        """The call for a signature; from now on it is asked first."""
        found = self._calls.get(key)
        if found is not None and found.guarded is not None:
            self._ask_first(found.guarded)
        return found

    def _ask_first(self, guarded: G) -> None:
        if guarded.names:
            self.named[guarded.names] = guarded
        else:
            self.last = guarded

    def keep(self, key: Hashable, call: Call[G], age: int = 0) -> Call[G]:
        """Remember a call, which has served last.

        Args:
            key: Its signature.
            call: The call.
            age: That when its preparation began: another thread may have forgotten all
                calls since, because of what this one was still made from.
        """
        if age != self.age:
            return call
        if len(self._calls) >= MOST_CALLS:
            self.named.clear()
            self._calls.clear()
        self._calls[key] = call
        if call.guarded is not None:
            self._ask_first(call.guarded)
        return call

    def forget(self) -> None:
        """Prepare all calls anew."""
        self.age += 1
        self.last = None
        self.named.clear()
        self._calls.clear()
