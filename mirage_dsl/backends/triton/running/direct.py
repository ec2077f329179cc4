"""The cheapest call: checks, allocations and launches in one generated function.

`kernel[grid](...)` inspects every argument to find the compiled kernel, and Triton's
raw launcher inspects every pointer.  Here one function is made for tensors of certain
shapes, strides, dtypes and alignment on one device: it checks just these, allocates the
outputs, runs library kernels, and starts generated ones, a row of them at a time.
What lies between generated kernels is one allocation and never becomes a tensor.

A function never writes to memory that it has not allocated itself in the same call, on
the current stream.  So calls may overlap on several streams and in several threads.
"""

# PyTorch's and Triton's inner functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mirage_dsl.backends.base import overlaps, span
from mirage_dsl.backends.dispatch import Direct
from mirage_dsl.backends.library import HELPERS
from mirage_dsl.backends.triton.lowering.launcher import Launcher
from mirage_dsl.backends.triton.lowering.plan import ModulePlan
from mirage_dsl.backends.triton.running.binding import Binding, bind, out_name
from mirage_dsl.backends.triton.running.c_launcher import (
    PreparedLaunch,
    compiled,
    launcher,
)
from mirage_dsl.core.errors import MirageError
from mirage_dsl.core.modes import in_mode, plain_torch
from mirage_dsl.ir.graph import Apply
from mirage_dsl.tile.sizes import ALIGNMENT

if TYPE_CHECKING:
    import torch

log = logging.getLogger("mirage_dsl.backends.triton.direct")

RESERVED = (
    "call",
    "current_device",
    "current_stream",
    "dispatch_modes",
    "empty",
    "first",
    "function_modes",
    "grad_enabled",
    "in_mode",
    "index",
    "levels",
    "observers",
    "same",
    "space",
)
"""Names that a generated function uses besides those that no tensor gets."""


def direct_call(plan: ModulePlan, tensors: Sequence[torch.Tensor]) -> Direct | None:
    """What runs the module on tensors like these; None if only Triton can.

    Args:
        plan: The module.
        tensors: Inputs; behind them those for the outputs, if the module takes such.

    Raises:
        CompileError: Triton refuses a kernel, or the device does not take it.
    """
    import torch

    if not tensors or tensors[0].get_device() != torch.cuda.current_device():
        return None
    if compiled() is None or any(t.data_ptr() % ALIGNMENT for t in tensors):
        return None
    try:
        binding = bind(plan, tensors)
    except MirageError:
        raise
    except Exception as error:
        log.info("launching %s through Triton: %s", plan.graph.name, error)
        return None
    if binding is None:
        return None
    writer = _Writer(plan, binding, tensors)
    lines = writer.call()
    scope = writer.scope(tensors)
    exec("\n".join(lines), scope)
    exec("\n".join([*lines[:-1], writer.first]).replace("def call", "def first"), scope)
    return Direct(len(tensors), scope["call"], first=scope["first"])


def _allocator() -> Any:
    """PyTorch's own shortest way to a new tensor on the current device."""
    import torch

    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    found = getattr(guards, "_empty_strided_cuda", None)
    if found is not None:
        return found

    def empty(
        shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")

    return empty


_SEEN = ("types", "dtype", "shape", "stride")
"""What a generated function compares of each tensor, with a number behind."""


class _Writer(Launcher):
    """Writes `call` in the place of `run`."""

    def __init__(
        self, plan: ModulePlan, binding: Binding, tensors: Sequence[torch.Tensor]
    ) -> None:
        count = len(plan.graph.inputs) + len(plan.graph.returns)
        seen = [f"{what}{i}" for what in _SEEN for i in range(count)]
        super().__init__(plan.graph, plan.around, (*RESERVED, *seen))
        self._binding = binding
        self._device = tensors[0].get_device()
        self._tensors = tensors
        self._addresses: dict[str, str] = {}
        self._waiting: list[PreparedLaunch] = []
        self._launchers: dict[str, Any] = {}
        self.first = ""

    def call(self) -> list[str]:
        """The lines of `call`; names are those of `scope`."""
        writer = self._writer
        for item in self._graph.inputs:
            self._variables[item.name] = self._names.fresh(item.name)
        if self._given is not None:
            for at, item in enumerate(self._graph.returns):
                self._outs.append(self._names.fresh(f"{item.value}_out"))
                self._variables[out_name(at)] = self._outs[at]
        writer.line(f"def call({', '.join(self._variables.values())}):")
        writer.indent()
        self._check(dict(self._variables))
        self._bind_sizes()
        self._count()
        if self._binding.space:
            writer.line(f"space = empty(({self._binding.space},), (1,), torch.uint8)")
            self._addresses[""] = "space.data_ptr()"
        launches = iter(self._binding.launches)
        for node in self._graph.nodes:
            if not isinstance(node, Apply):
                self._allocate([s.result for s in node.stores])
                self._waiting.append(next(launches))
            elif node.result in self._binding.emitted:
                self._start()
                self._library(node)
                self._note_address(node.result)
        self._start()
        results = self._results()
        self.first = f"    return {results[0]}"
        writer.line(f"return [{', '.join(results)}]")
        return writer.lines

    def _results(self) -> list[str]:
        """What is returned; in tensors of the caller if there are such."""
        given = self._given
        if given is None:
            return [self._returned(r) for r in self._graph.returns]
        made = [
            "" if given.get(r.value) == at else self._returned(r)
            for at, r in enumerate(self._graph.returns)
        ]
        self._hand_over(made)
        return self._outs

    def _check(self, names: Mapping[str, str]) -> None:
        """Leave, without a trace, if the tensors are not those that this is for."""
        writer = self._writer
        writer.line("try:")
        writer.indent()
        for value, name in names.items():
            address = self._names.fresh(f"{name}_at")
            self._addresses[value] = writer.assign(address, f"{name}.data_ptr()")
        writer.line(f"if {' or '.join(self._differences(list(names.values())))}:")
        writer.indent()
        writer.line("return None")
        writer.dedent()
        writer.dedent()
        # Not tensors, or tensors without memory of their own.
        writer.line("except Exception:")
        writer.indent()
        writer.line("return None")
        writer.dedent()

    def _differences(self, names: Sequence[str]) -> list[str]:
        """What may be true of tensors that this is not for, and around them."""
        addresses = self._addresses.values()
        always = [f"({' | '.join(addresses)}) % {ALIGNMENT}", "observers"]
        always += self._other_overlaps(list(addresses))
        # What was freed lies nowhere.
        always.append(f"not ({' and '.join(addresses)})")
        always.append("current_device() != index")
        # The modes that PyTorch's comparison does not see.
        always.append("dispatch_modes() or function_modes()")
        always.append("levels._current_level >= 0")
        # The comparison aborts for nested tensors.
        always += [f"{name}.is_nested" for name in names]
        tests: list[str] = []
        for at, name in enumerate(names):
            tests += [
                f"type({name}) not in types{at}",
                f"{name}.dtype is not dtype{at}",
                f"{name}.shape != shape{at}",
                f"{name}.stride() != stride{at}",
                f"{name}.get_device() != index",
                # A lazy negation has another key for PyTorch's comparison.
                f"{name}.is_neg()",
            ]
        # With gradients the long way decides whether to refuse.
        grads = " or ".join(f"{n}.requires_grad" for n in names)
        tests.append(f"grad_enabled() and ({grads})")
        tests.append("in_mode()")
        return [*always, f"not same({', '.join(names)}) and ({' or '.join(tests)})"]

    def _other_overlaps(self, addresses: Sequence[str]) -> Iterator[str]:
        """Whether results share other memory with inputs than when this was made."""
        count = len(self._graph.inputs)
        places = list(zip(addresses, self._tensors, strict=True))
        for at, given in places[:count]:
            for to, taken in places[count:]:
                if overlaps([given], [taken]):
                    yield f"{at} != {to}"
                else:
                    yield f"-{span(taken)} < {to} - {at} < {span(given)}"

    def _allocate(self, results: Sequence[str]) -> None:
        """New tensors for what a kernel writes, unless it lies in the scratch."""
        dry_run = self._binding.dry_run
        for result in results:
            like = dry_run.values[result]
            root = dry_run.root(like)
            if root in self._binding.tensors and root not in self._variables:
                self._tensor(root)
            if result in self._binding.tensors and result != root:
                layout = tuple(like.shape), tuple(like.stride()), like.storage_offset()
                self._variables[result] = self._writer.assign(
                    self._names.fresh(result),
                    f"{self._variables[root]}.as_strided{layout}",
                )

    def _complete(self, node: Apply) -> None:
        """Copy what kernels have not stored, into the caller's tensor as well."""
        if node.result not in self._variables:
            view = self._view_of_out(node.result)
            name = self._names.fresh(node.result)
            self._variables[node.result] = self._writer.assign(name, view)
        super()._complete(node)

    def _tensor(self, value: str) -> None:
        like = self._binding.dry_run.values[value]
        layout = f"{tuple(like.shape)}, {tuple(like.stride())}, {like.dtype}"
        self._variables[value] = self._writer.assign(
            self._names.fresh(value), f"empty({layout})"
        )
        self._note_address(value)

    def _note_address(self, value: str) -> None:
        if value in self._binding.roots:
            self._addresses[value] = f"{self._variables[value]}.data_ptr()"

    def _start(self) -> None:
        """Start the kernels that wait, in one go."""
        if not self._waiting:
            return
        used = sorted({p.base for x in self._waiting for p in x.parameters} - {-1})
        places = {base: at for at, base in enumerate(used)} | {-1: -1}
        launches = [x.rebased(places) for x in self._waiting]
        name = self._names.fresh(f"launch{len(self._launchers)}")
        self._launchers[name] = launcher(launches, self._device, len(used))
        roots = [self._binding.roots[base] for base in used]
        arguments = ["current_stream(index)", *(self._addresses[r] for r in roots)]
        self._writer.line(f"{name}({', '.join(arguments)})")
        self._waiting.clear()

    def scope(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        """What the written functions refer to."""
        import torch
        from torch.autograd import forward_ad

        scope: dict[str, Any] = {
            "torch": torch,
            "empty": _allocator(),
            "current_device": torch._C._cuda_getDevice,
            "current_stream": torch._C._cuda_getCurrentRawStream,
            "grad_enabled": torch.is_grad_enabled,
            "dispatch_modes": torch._C._len_torch_dispatch_stack,
            "function_modes": torch._C._len_torch_function_stack,
            "in_mode": in_mode,
            "levels": forward_ad,
            "device": tensors[0].device,
            "index": self._device,
            "observers": _observers(),
            "same": _comparison(tensors),
            # They are unloaded when nobody refers to them.
            "kept": [x.compiled for x in self._binding.launches],
            **self._launchers,
        }
        for at, tensor in enumerate(tensors):
            # Tensors and parameters stand for each other.
            plain = plain_torch(tensor, torch)
            kinds = (torch.Tensor, torch.nn.Parameter) if plain else (type(tensor),)
            scope[f"types{at}"] = kinds
            scope[f"dtype{at}"] = tensor.dtype
            scope[f"shape{at}"] = tensor.shape
            scope[f"stride{at}"] = tensor.stride()
        for helper in self.helpers:
            exec(HELPERS[helper], scope)
        return scope


def _comparison(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """PyTorch's own comparison of tensors with these, all at once.

    It may be false for tensors that are alike, as those of another grad mode.  For
    tensors that require gradients it would not tell one mode from another.
    """
    import torch

    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    make = getattr(guards, "TensorGuards", None)
    if make is not None and not any(t.requires_grad for t in tensors):
        try:
            check = make(
                *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
            ).check
            if check(*tensors) is True:
                return check
        except Exception as error:
            log.info("comparing tensors one by one: %s", error)
    return lambda *_: False


def _observers() -> Any:
    """Profilers that want to hear of launches; Triton's own path tells them."""
    from triton import knobs

    return getattr(knobs.runtime.launch_enter_hook, "calls", ())


__all__ = ["direct_call"]
