"""Cheap launches: a kernel looked up once, then started through Triton's raw launcher.

`kernel[grid](...)` inspects every argument on every call, to find the compiled kernel
that fits.  For tensors of known shapes, strides, dtypes and alignment it is always the
same one.
"""

# Triton has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any


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
        if self._compiled is None or _observed():
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


def _observed() -> bool:
    """Whether a profiler wants to hear of launches; Triton's own path tells it."""
    from triton import knobs

    hook: Any = knobs.runtime.launch_enter_hook
    return bool(getattr(hook, "calls", hook))


def prepared_run(module: ModuleType, kernels: Sequence[str]) -> Callable[..., Any]:
    """The module's `run` for calls that are all alike."""
    run = vars(module)["run"]
    names = dict(vars(module))
    for name in kernels:
        names[name] = PreparedKernel(names[name])
    return FunctionType(run.__code__, names, run.__name__, run.__defaults__)


__all__ = ["PreparedKernel", "prepared_run"]
