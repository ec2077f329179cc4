"""Tracing: from a Python function and specs of its arguments to a program."""

from __future__ import annotations

import inspect
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter, index
from typing import Any, NoReturn

from mirage_dsl.core.errors import (
    MirageError,
    SourceLocation,
    TraceError,
    UnsupportedError,
    caught_by_users,
    location_of_error,
    location_of_function,
    user_location,
)
from mirage_dsl.core.modes import compiling, own_mode, result_class
from mirage_dsl.core.types import TensorSpec, f32
from mirage_dsl.frontend.arguments import (
    STATE,
    Arguments,
    Filled,
    Function,
    Leaf,
    Made,
    ModuleFunction,
    bind_arguments,
    is_plain_object,
    is_static,
    items_of,
    kept_back,
    leaves_of,
    map_leaves,
    name_of,
    order_of,
    placed_leaves,
    strides_of,
    to_complex,
)
from mirage_dsl.frontend.complex_numbers import Complex, view_as_complex
from mirage_dsl.frontend.constructors import CONSTRUCTORS
from mirage_dsl.frontend.drawn import DRAWN, Unread
from mirage_dsl.frontend.functions import NoTensor
from mirage_dsl.frontend.memory import Storage
from mirage_dsl.frontend.operators import operator_of
from mirage_dsl.frontend.program import (
    Handle,
    PartedError,
    TracedInput,
    build_graph,
    shape_text,
)
from mirage_dsl.frontend.recorder import (
    RECORDING,
    Recorder,
    Size,
    SymbolicSize,
    TraceAgainError,
)
from mirage_dsl.frontend.tapers import TAPERS
from mirage_dsl.frontend.tensor import Extreme, Tensor, UnknownAttributeError
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.walk import operands_of, results_of
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import CONVERSIONS, ROUNDINGS
from mirage_dsl.rewrite.casts import with_early_floats, without_unseen_roundings
from mirage_dsl.rewrite.concats import updates_chosen

MOST_SINGLE = 3
"""Traces that put slices and concatenations by themselves only where they were seen to
be in the way; from then on also those of the same lines, so that what each round of a
long loop adds is not found by a trace each."""


@dataclass(frozen=True)
class Trace:
    """A traced call.

    Attributes:
        program: What it computes.
        structure: What it returned, with a `Leaf` in the place of every tensor.
        strides: Of the inputs, where the function asked for any; None where it did not.
        memories: Numbers of what memory each output is in; None where it is that of an
            argument, or may be.
        seconds: How long it took, which a search's budget is to hold as well.
    """

    program: KernelGraph
    structure: Any
    strides: tuple[tuple[int, ...] | None, ...] | None = None
    memories: tuple[int | None, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """The returned structure with the given outputs."""
        objects: dict[int, Any] = {}

        def found(_: str, leaf: Any) -> Any:
            if isinstance(leaf, Made):
                if id(leaf) not in objects:
                    objects[id(leaf)] = leaf.again(found)
                return objects[id(leaf)]
            if isinstance(leaf, Filled):
                return leaf.like(outputs[0])
            if not isinstance(leaf, Leaf):
                return leaf
            output = outputs[leaf.index]
            if leaf.number:
                return output[()]
            return to_complex(output) if leaf.complex else output

        return map_leaves(self.structure, found)

    def alike(self, outputs: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        """Outputs in the class that PyTorch gives to what it computes of the inputs."""
        if result_class(tensors) is None:
            return list(outputs)
        sources = _inputs_of(self.program)
        names = [i.name for i in self.program.inputs]
        found: list[Any] = []
        for item, output in zip(self.program.returns, outputs, strict=True):
            given = zip(names, tensors, strict=True)
            own = result_class([t for n, t in given if n in sources[item.value]])
            found.append(output if own is None else output.as_subclass(own))
        return found


def _inputs_of(program: KernelGraph) -> dict[str, frozenset[str]]:
    """The inputs that each value of a program is made of."""
    found = {i.name: frozenset((i.name,)) for i in program.inputs}
    for node in program.nodes:
        made = frozenset[str]().union(*(found[s] for s in operands_of(node)))
        found.update(dict.fromkeys(results_of(node), made))
    return found


def trace_call(
    function: Function,
    arguments: Arguments,
    *,
    name: str | None = None,
    dynamic: Collection[str] = (),
) -> Trace:
    """Run a function on symbolic tensors and build its program.

    Args:
        function: The function.
        arguments: What `bind_arguments` made of its arguments.
        name: Name of the program; the function's own unless given.
        dynamic: Annotated dims that are to stay symbolic.

    Raises:
        MirageError: The function does something that cannot be traced.
    """
    name = name or name_of(function)
    _require_tensors(arguments, name, location_of_function(function))
    started = time.monotonic()
    apart, lines, traces = set[int](), set[str](), 0
    parted = False
    while True:
        recorder = Recorder(
            origin=arguments.origin, apart=frozenset(apart), positions_apart=parted
        )
        if traces >= MOST_SINGLE:
            recorder.lines_apart = frozenset(lines)
        try:
            found = _traced(recorder, function, arguments, name, dynamic)
            return replace(found, seconds=time.monotonic() - started)
        except PartedError:
            if parted:
                raise
            parted = True
            continue
        except (TraceAgainError, Exception):
            # What was raised may not be, once nothing is in the way.
            if not recorder.in_the_way:
                raise
        # One that stands by itself is in nobody's way.
        assert recorder.in_the_way.isdisjoint(apart)
        apart |= recorder.in_the_way
        lines.update(recorder.joints[at] for at in recorder.in_the_way)
        traces += 1


def _traced(
    recorder: Recorder,
    function: Function,
    arguments: Arguments,
    name: str,
    dynamic: Collection[str],
) -> Trace:
    """Run the function once.

    Raises:
        TraceAgainError: What was recorded is of no use.
    """
    location = location_of_function(function)
    symbolic = _known_names(arguments, dynamic, location)
    inputs = _inputs(recorder, arguments, symbolic)
    strides = None if dynamic else tuple(map(strides_of, arguments.tensors))

    def symbol(_: str, leaf: Any) -> Any:
        if isinstance(leaf, Leaf):
            own = strides[leaf.index] if strides else None
            return _argument(recorder, inputs[leaf.index], leaf, own)
        return leaf

    values = {n: map_leaves(v, symbol) for n, v in arguments.values.items()}
    copied = None
    if isinstance(function, ModuleFunction):
        copied = function = function.on_copy(values.pop(STATE))
    given = _contents(values)
    returned = _call(recorder, function, values, arguments.form, name)
    _refuse_changed(name, given, _contents(values), location)
    if copied is not None:
        copied.refuse_changes(location)
    with _no_longer_in(location):
        outputs, structure, memories = _outputs(returned, name, recorder, location)
    if recorder.in_the_way:
        raise TraceAgainError
    recorder.closed = True
    try:
        program = _settled(build_graph(name, recorder, inputs, outputs))
    except UnsupportedError as error:
        kind = PartedError if isinstance(error, PartedError) else UnsupportedError
        raise kind(error.message, error.location or location) from None
    asked = strides if recorder.asked_strides else None
    return Trace(program, structure, asked, memories)


def _settled(program: KernelGraph) -> KernelGraph:
    """The program, once all that reads what it computes is known."""
    ops = {node.op for node in program.applies}
    if any(op.kind is Kind.CONCAT for op in ops):
        program = updates_chosen(program)
    if not ops.isdisjoint(ROUNDINGS.values()):
        program = without_unseen_roundings(program)
    if CONVERSIONS[f32] in ops:
        program = with_early_floats(program)
    return program


# -- PyTorch's constructors ------------------------------------------------------------


@contextmanager
def _recorded_by(recorder: Recorder) -> Generator[None]:
    """Let what no argument holds belong to a trace: PyTorch's constructors make it."""
    token = RECORDING.set(recorder)
    try:
        if recorder.origin.torch is None:
            yield
        else:
            with compiling(), own_mode(_mode()()):
                yield
    finally:
        RECORDING.reset(token)


@cache
def _mode() -> type[Any]:
    """PyTorch's mode in which its constructors make traced tensors."""
    import torch
    from torch.overrides import TorchFunctionMode

    makers = {**CONSTRUCTORS, **TAPERS}
    found = {attrgetter(name)(torch): make for name, make in makers.items()}

    class TracedConstructors(TorchFunctionMode):
        """Constructors make values of the program; all else is as it is."""

        def __torch_function__(
            self,
            func: Any,
            types: Any,
            args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            make, told = found.get(_of_operator(func)), kwargs or {}
            if make is None and not types and _draws(func):
                return Unread(DRAWN)
            if make is None:
                return func(*args, **told, **kept_back(func, args, told))
            if told.get("out") is not None:
                raise UnsupportedError.here(
                    f"torch.{func.__name__}: out= is not possible; use the result"
                )
            return make(*args, **{n: o for n, o in told.items() if n not in _SILENT})

    return TracedConstructors


def _of_operator(function: Any) -> Any:
    """PyTorch's function for one of its operators that make tensors; else the same."""
    namespace, name = operator_of(function) or ("", "")
    if namespace != "aten" or name not in CONSTRUCTORS:
        return function
    import torch

    return getattr(torch, name)


@cache
def _draws(function: Any) -> bool:
    """Whether a function of PyTorch's that makes tensors has random numbers."""
    import torch

    known: Any = getattr(torch.ops.aten, getattr(function, "__name__", ""), None)
    overloads = known.overloads() if hasattr(known, "overloads") else ()
    random = torch.Tag.nondeterministic_seeded
    return any(random in getattr(known, name).tags for name in overloads)


_SILENT = (
    *("layout", "memory_format", "out", "pin_memory", "requires_grad", "names"),
    "generator",
)
"""Arguments of constructors that say nothing of the values."""


def _inputs(
    recorder: Recorder, arguments: Arguments, symbolic: frozenset[str]
) -> list[TracedInput]:
    return [
        TracedInput(n, recorder.input(s.dtype, _axes(s, h, symbolic)), _layout(s))
        for n, s, h in zip(
            arguments.names, arguments.specs, arguments.hints, strict=True
        )
    ]


def _argument(
    recorder: Recorder,
    given: TracedInput,
    leaf: Leaf,
    strides: tuple[int, ...] | None,
) -> Any:
    row_major = given.layout is None
    memory = Storage(given.handle, argument=True, row_major=row_major, strides=strides)
    found = Tensor(recorder, given.handle, memory)
    return view_as_complex(found) if leaf.complex else found


def _require_tensors(
    arguments: Arguments, name: str, location: SourceLocation | None
) -> None:
    if not arguments.names:
        raise TraceError(
            f"no argument of {name} is a tensor; pass tensors, or mirage.spec(shape, "
            "dtype) where there are none yet",
            user_location() or location,
        )


def _spread(
    function: Function,
    values: Mapping[str, Any],
    form: tuple[int, tuple[str, ...]] | None,
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by position and by name, in the form of the call where there is one."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    parameters = inspect.signature(function).parameters
    count, named = (len(parameters), tuple(parameters)) if form is None else form
    for at, parameter in enumerate(parameters.values()):
        if parameter.name not in values:
            continue
        value = values[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional.extend(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            keywords.update(value)
        elif at < count and parameter.kind is not parameter.KEYWORD_ONLY:
            positional.append(value)
        elif parameter.name in named or any(
            isinstance(leaf, Tensor | Complex) for leaf in leaves_of(value)
        ):
            keywords[parameter.name] = value
    return positional, keywords


def _call(
    recorder: Recorder,
    function: Function,
    values: Mapping[str, Any],
    form: tuple[int, tuple[str, ...]] | None,
    name: str,
) -> Any:
    """Call with arguments by parameter, spreading *args and **kwargs."""
    positional, keywords = _spread(function, values, form)
    try:
        with _recorded_by(recorder), caught_by_users() as caught:
            returned = function(*positional, **keywords)
            _refuse_caught(caught())
        recorder.branches.refuse_unfinished()
        return returned
    except RecursionError:
        raise TraceError(
            f"{name} calls itself without end: while it is traced, only Python's own "
            "values can end a recursion",
            location_of_function(function),
        ) from None
    except Exception as error:
        reason = _of_pytorch(error, name)
        if reason is None:
            raise
        raise UnsupportedError(reason, location_of_error(error)) from None


def _of_pytorch(error: Exception, name: str) -> str | None:
    """Why code of PyTorch's stopped that is no Python, and what to do."""
    if isinstance(error, TypeError) and "'torch._C.TensorBase' object" in str(error):
        return (
            f"{name} calls a method of torch.Tensor as a function of a complex tensor, "
            "or of rows that a mask selects, which are no tensors while it is traced; "
            "call the method, as in z.abs()"
        )
    if type(error).__module__.startswith("torch._dynamo"):
        return (
            "PyTorch's compiler, which torch.cond, torch.while_loop and torch.compile "
            f"run, in {name}, which is traced already: expected functions that compute "
            "with tensors alone; in the place of cond compute both, and choose "
            "by torch.where(condition, a, b)"
        )
    if "TorchScript interpreter" in str(error):
        return (
            f"a function that torch.jit.script compiled, in {name}: no Python runs in "
            "it that could be traced; leave the decorator out, or set the environment "
            "variable PYTORCH_JIT=0, by which PyTorch does"
        )
    return None


def _refuse_caught(errors: Sequence[MirageError]) -> None:
    """Refuse a function that went on after what a trace refused, as tensors may not.

    That no tensor has an attribute is no refusal.
    """
    for error in errors:
        if not isinstance(error, UnknownAttributeError):
            raise TraceError(
                f"{error.message}; the function caught this error and went on, but "
                "called with tensors it may not meet it: let it pass",
                error.location,
            )


def _contents(values: Mapping[str, Any]) -> dict[str, Any]:
    """What lists and dicts among the arguments hold, by place."""
    found: dict[str, Any] = {}
    for parameter, value in values.items():
        if items_of(value) is not None:
            places = placed_leaves(value)
            found.update({f"{parameter}_{place}": leaf for place, leaf in places})
    return found


def _refuse_changed(
    name: str,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    location: SourceLocation | None,
) -> None:
    """Refuse a function that put other things into the caller's lists and dicts."""
    for place in {**before, **now}:
        if place not in now or place not in before or now[place] is not before[place]:
            raise TraceError(
                f"{name} changes its argument {place}, which is in a list or a dict of "
                "the caller: return what it computes, and put it there",
                location,
            )


def _known_names(
    arguments: Arguments, dynamic: Collection[str], location: SourceLocation | None
) -> frozenset[str]:
    known = {n for hints in arguments.hints for n in hints if n is not None}
    known |= {e for s in arguments.specs for e in s.shape if isinstance(e, str)}
    for name in dynamic:
        if name not in known:
            raise TraceError(
                f"dynamic dim {name!r} is no annotated dim (found: "
                f"{', '.join(sorted(known)) or 'none'}); name it where it appears, as "
                f"in x: mirage.f16[{name!r}, 4096]",
                location,
            )
    return frozenset(dynamic)


def _axes(
    given: TensorSpec, hints: Sequence[str | None], symbolic: frozenset[str]
) -> list[tuple[int | None, str | None]]:
    """Extents and names of an input's axes; None for extents that stay symbolic."""
    return [
        (None, extent)
        if isinstance(extent, str)
        else (None if hint in symbolic else extent, hint)
        for extent, hint in zip(given.shape, hints, strict=True)
    ]


def _layout(given: TensorSpec) -> tuple[int, ...] | None:
    """The memory order of an input; None for row-major."""
    shape = [e for e in given.shape if isinstance(e, int)]
    if given.strides is None or len(shape) != len(given.shape):
        return None
    order = order_of(shape, given.strides)
    return None if order == tuple(range(len(shape))) else order


def _require_tensor(
    found: Any, path: str, name: str, location: SourceLocation | None
) -> None:
    if isinstance(found, NoTensor):
        found.refuse()
    if not isinstance(found, Tensor):
        place = f" at [{path.replace('_', '][')}]" if path else ""
        raise TraceError(
            f"{name} returns {type(found).__name__}{place}, which is no tensor; return "
            "tensors that depend on its arguments, or tuples, lists and dicts of them, "
            "also beside numbers and texts",
            location,
        )


def _require_result(
    found: Tensor, name: str, recorder: Recorder, location: SourceLocation | None
) -> None:
    """Refuse a tensor that is no result of the trace."""
    if found.recorder is not recorder:
        raise TraceError(
            f"{name} returns a tensor of another trace; do not keep symbolic "
            "tensors outside of the decorated function",
            location,
        )
    recorder.branches.require_open(found.handle.value)
    if 0 in found.handle.shape:
        raise UnsupportedError(
            f"{name} returns {shape_text(found.handle)}, which is empty; programs "
            "have no empty tensors: make it outside of the function",
            location,
        )


@contextmanager
def _no_longer_in(location: SourceLocation | None) -> Generator[None]:
    """Give errors the place of the function, of which nothing is being run any more."""
    try:
        yield
    except MirageError as error:
        raise type(error)(error.message, location or error.location) from None


def _whole_pair(_: str, leaf: Any) -> Any:
    """PyTorch's pair in the place of its first half, as which it was computed with."""
    return leaf.whole if isinstance(leaf, Extreme) else leaf


def _outputs(
    returned: Any, name: str, recorder: Recorder, location: SourceLocation | None
) -> tuple[list[Handle], Any, tuple[int | None, ...]]:
    """The returned tensors, the structure they came in, and which memory has each."""
    returned = map_leaves(returned, _whole_pair)
    if returned is None or not leaves_of(returned):
        raise TraceError(
            f"{name} returns nothing; return the tensors that it computes", location
        )
    found = _Returned(name, recorder, location)
    structure = map_leaves(returned, found.leaf)
    if found.constant and not found.handles:
        found.refuse_constant()
    if not found.handles:
        raise TraceError(
            f"{name} returns no tensor; return the tensors that it computes", location
        )
    numbers = {id(m): at for at, m in enumerate(found.memories) if m is not None}
    return found.handles, structure, tuple(numbers.get(id(m)) for m in found.memories)


@dataclass
class _Returned:
    """What a function returns, while it is looked at.

    Attributes:
        name: Of the function.
        recorder: Of its trace.
        location: Where it is.
        handles: The tensors.
        memories: That each is in; None where it is that of an argument, or may be.
        constant: How many tensors of one constant there are.
        objects: What was made of objects, by identity; None while that is being done.
    """

    name: str
    recorder: Recorder
    location: SourceLocation | None
    handles: list[Handle] = field(default_factory=list[Handle])
    memories: list[Storage | None] = field(default_factory=list["Storage | None"])
    constant: int = 0
    objects: dict[int, Made | None] = field(default_factory=dict[int, "Made | None"])

    def leaf(self, path: str, found: Any) -> Any:
        """What stands for a leaf in the structure."""
        if path and (is_static(found) or isinstance(found, type)):
            # As the number of rows, or weights of attention that nobody asked for.
            return int(found) if isinstance(found, Size) else found
        if isinstance(found, SymbolicSize):
            index(found)
        if not isinstance(found, Tensor | Complex) and is_plain_object(found):
            return self._made(path, found)
        paired = isinstance(found, Complex)
        found = found.resolved().as_pairs() if paired else found
        _require_tensor(found, path, self.name, self.location)
        _require_result(found, self.name, self.recorder, self.location)
        if found.handle.value in self.recorder.constants:
            self.constant += 1
            return self._filled(found)
        memory = None if paired else found.memory
        known = memory is not None and not (memory.argument or memory.links)
        self.memories.append(memory if known else None)
        self.handles.append(self.recorder.whole(found.handle))
        number = self.recorder.origin.library == "numpy" and found.is_number
        return Leaf(len(self.handles) - 1, paired, number)

    def _filled(self, found: Tensor) -> Filled:
        """A tensor of one constant, which each call makes beside what it computes."""
        number = self.recorder.constants[found.handle.value]
        shape = tuple(e for e in found.handle.shape if e is not None)
        if number.extents or len(shape) < len(found.handle.shape):
            self.refuse_constant()
        return Filled(float(number.value), shape, found.handle.value.dtype)

    def refuse_constant(self) -> NoReturn:
        """Refuse a tensor of one constant that no call can make."""
        raise TraceError(
            f"{self.name} returns a tensor of one constant, which is the same at every "
            "call, with no tensor beside it, or with extents that change; make it "
            "outside of the function",
            self.location,
        )

    def _made(self, path: str, found: object) -> Made:
        """An object, of which each call makes another one."""
        if id(found) not in self.objects:
            self.objects[id(found)] = None
            before = len(self.handles) + self.constant
            own = map_leaves({**vars(found)}, lambda p, v: self.leaf(f"{path}_{p}", v))
            if len(self.handles) + self.constant == before:
                # One without tensors may be anybody's.
                _require_tensor(found, path, self.name, self.location)
            self.objects[id(found)] = Made(type(found), own)
        made = self.objects[id(found)]
        if made is None:
            raise TraceError(
                f"{self.name} returns {type(found).__name__}, which holds itself; "
                "return its tensors, or an object without such a cycle",
                self.location,
            )
        return made


def trace_function(
    function: Function,
    specs: Sequence[Any],
    *,
    name: str | None = None,
    dynamic: Collection[str] = (),
) -> KernelGraph:
    """The program of a function, for arguments given by specs, arrays or constants."""
    arguments = bind_arguments(function, specs, {}, location_of_function(function))
    return trace_call(function, arguments, name=name, dynamic=dynamic).program
