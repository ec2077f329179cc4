"""Emitted modules as importable files, for the GPU or for Triton's interpreter.

Triton reads the source of kernels, so they live in files: in the cache directory, named
by their content.

Whether `@triton.jit` interprets is decided when it decorates.  A module is therefore
executed with the knob set as wanted, and both forms live side by side in one process.
What the interpreter lacks is supplied while a kernel runs: Triton's own library
functions (`tl.sum`, `tl.sigmoid`) were decorated for the compiler and must be
interpreted too; products of bf16, which it keeps as bare 16-bit patterns, are taken of
the f32 values that they stand for; and bounds of loops, which it keeps as arrays of one
element, must become integers.
"""

# Triton and emitted modules have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

import numpy as np

from mirage_dsl.errors import CompileError
from mirage_dsl.settings import CACHE_DIR

EARLY_LAUNCHES = ("gdc_wait", "gdc_launch_dependents", "prefetch")
"""Instructions of kernels that overlap."""
_LOCK = RLock()


def source_file(source: str) -> Path:
    """The file with `source`, written now if it does not exist yet."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:32]
    directory = CACHE_DIR.get() / "triton"
    file = directory / f"kernel_{digest}.py"
    if file.exists():
        return file
    directory.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=directory, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(source)
    Path(name).replace(file)
    return file


def load_module(source: str, *, interpret: bool = False) -> ModuleType:
    """The emitted module, executed for the compiler or for the interpreter.

    Raises:
        CompileError: The source cannot be executed.
    """
    import triton.language
    from triton import knobs

    file = source_file(source)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _LOCK, knobs.runtime.scope():
        knobs.runtime.interpret = interpret
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise CompileError(
                f"the emitted module {file} cannot be executed: {error}"
            ) from error
    if interpret:
        # Kernels run one after the other, so there is nothing to wait for.
        for name in EARLY_LAUNCHES:
            if name in vars(module):
                vars(module)[name] = _nothing
        # The interpreter patches, and restores, the language modules that it finds
        # among a kernel's globals; the library functions use this one.
        vars(module)["core"] = triton.language.core
    return module


def _nothing(*_: object) -> None:
    """In the place of an instruction."""


@contextmanager
def interpreting() -> Generator[None, None, None]:
    """While this lasts, interpreted kernels can call Triton's library functions."""
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    builder: Any = interpreter.InterpreterBuilder
    function: Any = JITFunction
    interpreted: dict[Any, Any] = {}

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in interpreted:
            interpreted[self.fn] = interpreter.InterpretedFunction(self.fn)
        return interpreted[self.fn](*args, **kwargs)

    patches: Any = interpreter
    compiled_call, dot = function.__call__, builder.create_dot
    patch_tensor = patches._patch_lang_tensor

    def patch_tensor_too(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    with _LOCK:
        function.__call__ = call
        builder.create_dot = _dot_of_values(dot)
        patches._patch_lang_tensor = patch_tensor_too
        try:
            # Lanes outside of a ragged tile may hold anything.
            with np.errstate(all="ignore"):
                yield
        finally:
            function.__call__ = compiled_call
            builder.create_dot = dot
            patches._patch_lang_tensor = patch_tensor


def _dot_of_values(dot: Any) -> Any:
    """`create_dot` that reads bf16 operands as numbers."""
    import triton.language as tl

    def value(builder: Any, operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        return builder.cast_impl(operand, tl.float32)

    def create_dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(builder, value(builder, a), value(builder, b), *rest)

    return create_dot
