"""A μGraph ready to run: compiled once, then called on tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from mirage_dsl.backends.base import (
    Call,
    Direct,
    Dispatch,
    check_memory,
    check_tensors,
    overlaps,
    refuse_constant,
    signature,
    span,
    stored_over,
)
from mirage_dsl.backends.triton.lowering.emit import (
    AS_TYPED,
    FAR,
    ModulePlan,
    is_far,
    plan,
)
from mirage_dsl.backends.triton.lowering.kernel import Variant
from mirage_dsl.backends.triton.running.direct import direct_call, observers
from mirage_dsl.backends.triton.running.interpret import interpreting, load_module
from mirage_dsl.backends.triton.running.screen import (
    for_architecture,
    later_assembler,
    miscompiled,
)
from mirage_dsl.core.errors import CompileError, MirageError, ShapeError
from mirage_dsl.core.hardware import number_of
from mirage_dsl.core.types import TensorType, packed
from mirage_dsl.ir.analysis.layouts import innermost
from mirage_dsl.ir.graph import Input, KernelGraph
from mirage_dsl.tile.program import ALIGNMENT

if TYPE_CHECKING:
    import torch

# -- Cheap launches --------------------------------------------------------------------
# `kernel[grid](...)` inspects every argument on every call, to find the compiled
# kernel that fits.  For tensors of known shapes, strides, dtypes and alignment it
# is always the same one.

# Triton has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false


class PreparedKernel:
    """Stands for a `@triton.jit` function that is always called alike."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._compiled: Any = None
        self._run: Any = None
        self._stream: Any = None
        self._sizes: tuple[int, ...] = ()
        self._fixed: tuple[Any, ...] = ()
        self._device = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        if self._compiled is None or observers():
            return self._first(grid)
        return self._launch

    def _first(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            from triton.runtime.driver import driver

            compiled = self._function[grid](*args, **options)
            sizes = (*grid, 1, 1)[:3]
            active: Any = driver.active
            self._device = active.get_current_device()
            self._stream = active.get_current_stream
            self._run = compiled.run
            rest = (compiled.function, compiled.packed_metadata, None, None, None)
            self._sizes, self._fixed = sizes, rest
            self._compiled = compiled

        return launch

    def _launch(self, *args: Any, **_options: Any) -> None:
        stream = self._stream(self._device)
        self._run(*self._sizes, stream, *self._fixed, *args)


def prepared_run(module: ModuleType, kernels: Sequence[str]) -> Callable[..., Any]:
    """The module's `run` for calls that are all alike."""
    run = vars(module)["run"]
    names = dict(vars(module))
    for name in kernels:
        names[name] = PreparedKernel(names[name])
    return FunctionType(run.__code__, names, run.__name__, run.__defaults__)


# -- Executables -----------------------------------------------------------------------

# Emitted modules have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false


Run = Callable[..., "list[torch.Tensor]"]
T = TypeVar("T")
_NOWHERE: AbstractContextManager[object] = nullcontext()


class TritonExecutable:
    """Runs one μGraph.

    Tensors are checked on every call; strides are free.  All work goes to the current
    stream, and nothing waits for it, so calls can be captured in a CUDA graph once
    they have run.

    Args:
        graph: What to run.
        interpret: Run the emitted kernels on the CPU, in Triton's interpreter.
        most: The largest extents of symbolic dims: blocks can hold these whole, and
            longer ones are refused.

    Raises:
        UnsupportedError: Triton cannot express something of the graph.
    """

    def __init__(
        self,
        graph: KernelGraph,
        *,
        interpret: bool = False,
        most: Mapping[str, int] | None = None,
    ) -> None:
        self.graph = graph
        self.interpret = interpret
        self._most = dict(most or {})
        self._launched = graph if interpret else _launchable(graph)
        self._plans: dict[Variant, ModulePlan] = {}
        self._modules: dict[str, ModuleType] = {}
        self._miscompiled: dict[str, list[str]] = {}
        self._new, self._into = Dispatch[Direct](), Dispatch[Direct]()
        self.source = self._plan(AS_TYPED).source
        """The emitted module, for tensors as the inputs' types describe them."""

    def _plan(self, variant: Variant) -> ModulePlan:
        if variant not in self._plans:
            self._plans[variant] = plan(self._launched, variant, most=self._most)
        return self._plans[variant]

    def _by_triton(self, made: ModulePlan) -> Run:
        """What runs calls through Triton, which compiles what they need."""
        if made.source not in self._modules:
            if not self.interpret:
                self._miscompiled[made.source] = miscompiled(made)
            module = load_module(made.source, interpret=self.interpret)
            self._modules[made.source] = module
        module = self._modules[made.source]
        if self.interpret:
            return vars(module)["run"]
        run = prepared_run(module, [k.name for k in made.kernels])
        wrong = self._miscompiled[made.source]
        if not wrong:
            return run

        def assembled_later(*given: torch.Tensor) -> list[torch.Tensor]:
            with later_assembler(wrong[0]):
                return run(*given)

        return assembled_later

    def __call__(
        self, *tensors: torch.Tensor, out: Sequence[torch.Tensor] = ()
    ) -> list[torch.Tensor]:
        """The outputs, in order, as new tensors.

        Args:
            *tensors: The inputs.
            out: Tensors that take the outputs, and are returned; of any strides.

        Raises:
            ShapeError: Tensors that do not fit the inputs' types.
            DTypeError: A dtype other than the input's.
            CompileError: Tensors on the wrong device, or a kernel that does not
                compile or start.
        """
        given = (*tensors, *out)
        last = (self._into if out else self._new).last
        if last is not None and len(given) == last.count:
            found = last.call(*given)
            if found is not None:
                return found
        return self.prepared(tensors, out).run(*given)

    def prepared(
        self, tensors: Sequence[torch.Tensor], out: Sequence[torch.Tensor] = ()
    ) -> Call[Direct]:
        """The call for tensors like these, the outputs' behind inputs.

        Raises:
            ShapeError: Tensors that do not fit the inputs' types.
            DTypeError: A dtype other than the input's.
            CompileError: Tensors on the wrong device, or a kernel that does not
                compile.
        """
        given = (*tensors, *out)
        calls = self._into if out else self._new
        try:
            shared = overlaps(tensors, out)
            key = (signature(given), shared)
        except RuntimeError as error:
            check_memory(self.graph, given)
            raise CompileError(f"a call of {self.graph.name}: {error}") from error
        found = calls.find(key)
        if found is not None:
            return found
        variant = self._check(tensors, out)
        refuse_constant(self.graph, shared)
        over = stored_over(self.graph, shared, tensors, out)
        if over is None:
            return calls.keep(key, Call(self._beside))
        made = self._plan(replace(variant, over=over))
        run, direct = self._in_place(given, lambda *like: self._prepare(made, like))

        def prepared(*given: torch.Tensor) -> list[torch.Tensor]:
            taken = given[len(tensors) :]
            if taken and overlaps(given[: len(tensors)], taken) != shared:
                return self.prepared(given[: len(tensors)], taken).run(*given)
            return self._in_place(given, run)

        return calls.keep(key, Call(prepared, direct))

    def _beside(self, *given: torch.Tensor) -> list[torch.Tensor]:
        """Results computed in new tensors, and copied to where inputs lie."""
        count = len(self.graph.inputs)
        tensors, out = given[:count], given[count:]
        if not overlaps(tensors, out):
            return self.prepared(tensors, out).run(*given)
        for place, found in zip(out, self(*tensors), strict=True):
            place.copy_(found)
        return list(out)

    def _prepare(
        self, made: ModulePlan, tensors: Sequence[torch.Tensor]
    ) -> tuple[Run, Direct | None]:
        """What runs all calls with tensors like these, and where it can, by itself."""
        self._refuse_in_capture(made)
        direct = None if self.interpret else direct_call(made, tensors)
        if direct is None:
            return self._by_triton(made), None

        def run(*given: torch.Tensor) -> list[torch.Tensor]:
            found = direct.call(*given)
            return self._by_triton(made)(*given) if found is None else found

        return run, direct

    @property
    def direct(self) -> Direct | None:
        """What served last where tensors were made, if that runs by itself."""
        return self._new.last

    def _in_place(self, given: Sequence[torch.Tensor], run: Callable[..., T]) -> T:
        """What `run` gives, on the tensors' device; what goes wrong names the graph."""
        try:
            with self._place(given):
                return run(*given)
        except MirageError:
            raise
        except Exception as error:
            raise CompileError(
                f"{self.graph.name} does not run: {type(error).__name__}: {error}"
            ) from error

    def _refuse_in_capture(self, made: ModulePlan) -> None:
        import torch

        if self.interpret or not made.kernels:
            return
        if torch.cuda.is_current_stream_capturing():
            raise CompileError(
                f"the first call of {self.graph.name} with tensors of these shapes, "
                "strides and alignment compiles and loads kernels, which a CUDA graph "
                "cannot capture; call it once with such tensors before capturing"
            )

    def _place(self, tensors: Sequence[torch.Tensor]) -> AbstractContextManager[object]:
        """The interpreter, or the tensors' device if it is not the current one."""
        if self.interpret:
            return interpreting()
        import torch

        if not tensors or tensors[0].device.index == torch.cuda.current_device():
            return _NOWHERE
        return torch.cuda.device(tensors[0].device)

    def _check(
        self, tensors: Sequence[torch.Tensor], out: Sequence[torch.Tensor]
    ) -> Variant:
        """The variant for these tensors, once they are known to fit."""
        extents = check_tensors(self.graph, tensors, out, self._most)
        for item, tensor in zip(self.graph.inputs, tensors, strict=True):
            what = f"input {item.name} of {self.graph.name}"
            self._check_place(what, tensor, tensors[0])
        for tensor in out:
            self._check_place(f"out of {self.graph.name}", tensor, tensors[0])
        made = self._plan(AS_TYPED)
        described = {
            p.source
            for kernel in made.kernels
            for p in kernel.params
            if p.kind == "descriptor"
        }
        far = any(span(t) >= FAR * t.element_size() for t in (*tensors, *out))
        far = far or any(is_far(k, extents) for k in made.around.types.values())
        return Variant(
            wide=far and not made.around.variant.wide,
            pointers=not all(
                _fits_descriptor(item, tensor)
                for item, tensor in zip(self.graph.inputs, tensors, strict=True)
                if item.name in described
            ),
            out=bool(out),
            dense=self._dense(tensors, out),
            gapped=self._gapped(tensors, out),
            apart=self._apart(tensors, out=bool(out)),
        )

    def _given(
        self, tensors: Sequence[torch.Tensor], out: Sequence[torch.Tensor] = ()
    ) -> Iterator[tuple[str, TensorType, torch.Tensor]]:
        """The inputs, and the outputs that there are tensors for, with their types."""
        kinds = [(i.name, i.type) for i in self.graph.inputs]
        kinds += [(r.value, r.type) for r in self.graph.returns if out]
        for (name, kind), tensor in zip(kinds, (*tensors, *out), strict=True):
            yield name, kind, tensor

    def _apart(self, tensors: Sequence[torch.Tensor], *, out: bool) -> frozenset[str]:
        """Values that kernels could load two elements at a time if they lay so.

        What they make themselves does, but in tensors of the caller's.
        """
        made = self._plan(Variant(out=out))
        given = {name: tensor for name, _, tensor in self._given(tensors)}
        found: set[str] = set()
        for value, dim in (w for k in made.kernels for w in k.words.items()):
            place = innermost(self._launched, value, dim)
            if place is not None:
                fits = _fits_words(given[place[0]], place[1])
            else:
                fits = value in made.around.packed
            found |= set[str]() if fits else {value}
        return frozenset(found)

    def _gapped(
        self, tensors: Sequence[torch.Tensor], out: Sequence[torch.Tensor]
    ) -> frozenset[str]:
        """Flat values whose axes do not lie side by side in the tensors at hand."""
        given = {name: tensor for name, _, tensor in self._given(tensors, out)}
        return frozenset(
            value
            for value, flat in self._plan(AS_TYPED).around.flat.within.items()
            if flat.whole in given
            and not flat.joins(given[flat.whole].stride(), given[flat.whole].shape)
        )

    def _dense(
        self, tensors: Sequence[torch.Tensor], out: Sequence[torch.Tensor]
    ) -> frozenset[str]:
        """What has no gaps between elements, if its strides have symbolic extents."""
        around = self._plan(AS_TYPED).around
        found, others = set[str](), set[str]()
        for name, own, tensor in self._given(tensors, out):
            kind = around.types[name]
            inner = kind.order[1:]
            follows = any(
                around.extents.get(d.name) is None for a in inner for d in kind.axes[a]
            )
            fits = (
                follows and own.axes == kind.axes and _has_no_gaps(tensor, kind.order)
            )
            (found if fits else others).add(name)
        return frozenset(found - others)

    def _check_place(
        self, what: str, tensor: torch.Tensor, first: torch.Tensor
    ) -> None:
        if tensor.device != first.device:
            raise CompileError(
                f"{what} is on {tensor.device} and {self.graph.inputs[0].name} on "
                f"{first.device}; move them to one device"
            )
        place = "cpu" if self.interpret else "cuda"
        if tensor.device.type != place:
            raise CompileError(
                f"{what} is on {tensor.device}, expected a {place} device"
                + (" for the interpreter" if self.interpret else "")
            )
        if any(s < 0 for s in tensor.stride()):
            raise ShapeError(f"{what} has negative strides {tensor.stride()}")


def _launchable(graph: KernelGraph) -> KernelGraph:
    """As the current GPU can launch it."""
    import torch

    if not torch.cuda.is_available():
        return graph
    return for_architecture(graph, number_of(torch.cuda.get_device_capability()))


def _has_no_gaps(tensor: torch.Tensor, order: Sequence[int]) -> bool:
    """Whether its axes follow each other in memory, from the slowest to the fastest."""
    sizes = zip(tensor.shape, tensor.stride(), packed(tensor.shape, order), strict=True)
    return all(extent == 1 or mine == dense for extent, mine, dense in sizes)


def _fits_descriptor(item: Input, tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in memory as its type says, aligned for the copy engine.

    There may be gaps between its rows, but no row that is repeated.
    """
    *outer, last = (tensor.stride(a) for a in item.type.order)
    size = tensor.element_size()
    return (
        last == 1
        and tensor.data_ptr() % ALIGNMENT == 0
        and all(s != 0 and s * size % ALIGNMENT == 0 for s in outer)
    )


def _fits_words(tensor: torch.Tensor, inner: int) -> bool:
    """Whether each two elements along an axis lie as one word of twice their size."""
    steps = [
        step
        for axis, (step, size) in enumerate(
            zip(tensor.stride(), tensor.shape, strict=True)
        )
        if axis != inner and size > 1
    ]
    aligned = tensor.data_ptr() % (2 * tensor.element_size()) == 0
    return aligned and tensor.stride(inner) == 1 and all(s % 2 == 0 for s in steps)
