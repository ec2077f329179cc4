"""`@mirage.kernel`: a Python function that is searched, verified, lowered and run.

A call is given tensors, constants, containers of both, and the module that it belongs
to.  For the next call that is alike, a function is written that looks whether it is:
the same types, keys and lengths of containers, the same constants, the same places of
parameters in the module.  It hands the tensors, in the order of the program's inputs,
to the call that compares these.  It looks where tensors are now and keeps none, so one
that was replaced is seen.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cached_property
from itertools import count
from types import MethodType
from typing import Any, overload

from mirage_dsl.api.bound import BoundKernel, Options, check_options, rounded, typical
from mirage_dsl.api.reads import ReadList, Reads
from mirage_dsl.backends.base import Call, Dispatch, Guarded, signature
from mirage_dsl.core.errors import TraceError, UnsupportedError, user_location
from mirage_dsl.core.modes import in_mode
from mirage_dsl.core.settings import EFFORTS, Effort
from mirage_dsl.core.types import TensorSpec
from mirage_dsl.frontend.arguments import (
    Arguments,
    bind_arguments,
    fields_of,
    is_record,
    is_sequence,
    items_of,
    leaves_of,
    map_leaves,
    refuse_modes,
    same_containers,
    strides_of,
)
from mirage_dsl.frontend.modules import ModuleFunction, Slot, is_module
from mirage_dsl.frontend.operands import NoTensor, call_by_reference
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.frontend.trace import Trace, trace_call
from mirage_dsl.ir.graph import KernelGraph

# -- How a repeated call takes its tensors ---------------------------------------------

CONSTANTS = (type(None), bool, int, float, str)
"""Types of arguments, beside tensors, of calls that are prepared."""


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
    return [at for at in places if type(flat[at]) not in CONSTANTS]


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
        if type(value) in CONSTANTS:
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
        raise TraceError(
            f"kernel takes a function, found {type(function).__name__}; settings are "
            "keywords, as in @mirage.kernel(effort='full')",
            user_location(),
        )
    name = getattr(function, "__name__", type(function).__name__)
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise TraceError(
            f"kernel takes a function that returns tensors; {name} is a coroutine or a "
            "generator",
            user_location(),
        )
    try:
        inspect.signature(function)
    except ValueError:
        raise TraceError(
            f"{name} is built in, and Python does not know its arguments; write a "
            f"function that calls it, as lambda x: {name}(x)",
            user_location(),
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
        if type(value) in CONSTANTS:
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

Function = Callable[..., Any]

log = logging.getLogger("mirage_dsl.frontend.kernel")


class Kernel:
    """A decorated function.

    Called with CUDA tensors it runs the fastest verified μGraph that it has found for
    their shapes and dtypes; with NumPy arrays or CPU tensors it evaluates the
    reference semantics; with symbolic tensors it is inlined.  With `out=` the results
    are written to the given tensors, which may be views of any strides, such as places
    in a cache, but must not share memory with the inputs where several kernels run.

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
        self._unchanged: Callable[[], bool] = _nothing_read
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
        arguments = bind_arguments(self.function, args, kwargs)
        _refuse_gradients(arguments)
        self._read()
        age = self._calls.age
        bound = self._bind(arguments)
        result = bound.run(arguments.tensors, out)
        if key is not None:
            call = self._prepared(args, kwargs, given, bound, arguments.tensors)
            if call is not None:
                self._calls.keep(key, call, age)
        return result

    def _without_out(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Arguments by keyword without tensors for results, and those."""
        if "out" not in kwargs or not self._takes_out:
            return kwargs, None
        return {n: v for n, v in kwargs.items() if n != "out"}, kwargs["out"]

    def _refuse_specs(self, leaves: Sequence[Any]) -> None:
        if any(isinstance(leaf, TensorSpec) for leaf in leaves):
            raise TraceError(
                f"{self._name} was called with a spec, which has no data; use "
                f"{self._name}.bind or .trace",
                user_location(),
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
        held = function.tensors if isinstance(function, ModuleFunction) else _no_tensors
        if state != len(held()):
            return None
        order = [numbers[at] for at in places]
        order += range(len(leaves), len(leaves) + state)
        order += [at for at in results if type(leaves[at]) not in CONSTANTS]
        out = [leaves[at] for at in order[len(tensors) :]]
        call = bound.prepared(tensors, out)
        guarded = call.guarded
        if guarded is not None and (order != list(range(len(given))) or named):
            names = tuple(named)
            guarded = short_call(given, names, order, self.function, guarded)

        def run(*given: Any) -> Any:
            flat: list[Any] = [*leaves_of(given), *held().values()]
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
        module = isinstance(own, ModuleFunction)
        self._reads = Reads(own.reads if module else own, Kernel, arguments=module)
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
        found, dynamic = arguments, self.options.dynamic
        if dynamic:
            found = rounded(arguments, dynamic)
        # What is traced alike for another device or library is one program.
        given: tuple[object, ...] = found.specs, found.constants, found.origin
        strides = tuple(map(strides_of, arguments.tensors))
        if self._asks_strides:
            given = *given, strides
        reads = self._read()
        bound = self._bound.get((*given, reads.key))
        if bound is None:
            trace = trace_call(self.function, found, dynamic=dynamic)
            if trace.strides is not None and not self._asks_strides:
                self._asks_strides, given = True, (*given, strides)
            bound = self._of_trace(trace, found.specs)
            if bound is None:
                specs = found.specs
                if dynamic:
                    specs = typical(trace.program, found, arguments)
                bound = BoundKernel(trace, specs, self.options, self._calls.forget)
            # Where the trace has changed what it reads, it serves this call alone.
            key = bound if reads.changed() else self._look().key
            self._bound[*given, key] = bound
        return bound

    def _of_trace(
        self, trace: Trace, specs: tuple[TensorSpec, ...]
    ) -> BoundKernel | None:
        """What was bound for such a trace already."""
        known = (b for key, b in list(self._bound.items()) if key[0] == specs)
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
            raise TraceError(
                f"{self._name} is a kernel and a method of {type(instance).__name__}, "
                "whose instances have __slots__ and so no place for what was compiled; "
                "make a kernel of a function, and call that with what it reads",
                user_location(),
            ) from None
        return method

    def __reduce__(self) -> Any:
        # As functions pickle: by name, without what was compiled.
        return getattr(self.function, "__qualname__", self._name)

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
) -> Kernel | Callable[[Function], Kernel]:
    """Make a kernel of a function on tensors; bare or with settings.

    Tensors are inputs of the program: all that the function computes with have to be
    arguments.  Numbers, texts and None are constants of it: each value is a program of
    its own, so pass what varies from call to call as a tensor without axes.

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

    Raises:
        TraceError: It is no function that returns tensors.
        UnsupportedError: A setting that there is not.
    """
    _check_settings(effort, budget_seconds, config or {})
    names: tuple[Any, ...] = (dynamic,) if isinstance(dynamic, str) else (*dynamic,)
    if not all(isinstance(name, str) for name in names):
        raise UnsupportedError(
            f"dynamic={dynamic!r}; expected names of annotated dims", user_location()
        )
    options = Options(
        effort, budget_seconds, dict(config or {}), mugraph, names, overlap
    )
    if function is None:

        def decorate(decorated: Function) -> Kernel:
            require_traceable(decorated)
            return Kernel(_of_module(decorated), options)

        return decorate
    require_traceable(function)
    return Kernel(_of_module(function), options)


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


def _nothing_read() -> bool:
    """What is not read yet has not changed."""
    return True


def _no_tensors() -> dict[str, Any]:
    """Those of a function that is no module's."""
    return {}


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
        raise TraceError(
            "out= in a function that is being traced: use the result, and give out= "
            "where the traced function is called",
            user_location(),
        )


def _refuse_gradients(arguments: Arguments) -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return
    for name, tensor in zip(arguments.names, arguments.tensors, strict=True):
        if getattr(tensor, "requires_grad", False):
            raise UnsupportedError(
                f"argument {name} requires grad and grad mode is on, but kernels have "
                "no gradients yet: call it under torch.no_grad(), or pass "
                f"{name}.detach()",
                user_location(),
            )


def _check_settings(
    effort: str | None, budget_seconds: float | None, config: Mapping[str, Any]
) -> None:
    """Refuse what only the first search would."""
    if effort is not None and effort not in EFFORTS:
        raise UnsupportedError(
            f"effort={effort!r}; expected one of {', '.join(EFFORTS)}", user_location()
        )
    if budget_seconds is not None and not budget_seconds > 0:
        raise UnsupportedError(
            f"budget_seconds={budget_seconds!r}; expected a number of seconds above 0",
            user_location(),
        )
    check_options("config", config)
