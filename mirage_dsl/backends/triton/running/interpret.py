"""Emitted modules as importable files, for the GPU or for Triton's interpreter.

What runs is the text that was emitted, never what a file says.  Triton reads the source
of kernels as tracebacks do, from Python's cache of lines, which is given the same text.
A copy for readers is kept in the cache directory, named by its content, and is written
anew where it differs.

Whether `@triton.jit` interprets is decided when it decorates.  A module is therefore
executed with the knob set as wanted, and both forms live side by side in one process.
What the interpreter lacks is supplied while a kernel runs: Triton's own library
functions (`tl.sum`, `tl.sigmoid`) were decorated for the compiler and must be
interpreted too; `tl.reduce` joins halves and not one element after the other; products
of bf16, which it keeps as bare 16-bit patterns, are taken of the f32 values that they
stand for; and bounds of loops, which it keeps as arrays of one element, must become
integers.  It computes every sum and product of integers once more in 64 bits, to see
whether they overflow, and says so only where it debugs: that is left out.
"""

# Triton and emitted modules have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

import numpy as np

from mirage_dsl.core.errors import CompileError
from mirage_dsl.core.files import read_regular, unusable, write_whole
from mirage_dsl.core.settings import CACHE_DIR

_LOCK = RLock()
_INTERPRETED: dict[str, Any] = {}
"""Lines of the modules for the interpreter, which reads them at each call."""


def source_file(source: str) -> Path:
    """The file for readers with `source`, written now unless it is there.

    Where it cannot be written, there may be none, or another one.
    """
    digest = hashlib.sha256(source.encode()).hexdigest()[:32]
    directory = CACHE_DIR.get()
    file = directory / "triton" / f"kernel_{digest}.py"
    data = source.encode()
    try:
        if _content(file) != data:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, data)
    except OSError as error:
        unusable(directory, error)
    return file


def _content(file: Path) -> bytes | None:
    try:
        return read_regular(file)[0]
    except OSError:
        return None


def load_module(source: str, *, interpret: bool = False) -> ModuleType:
    """The emitted module, executed for the compiler or for the interpreter.

    Raises:
        CompileError: The source cannot be executed.
    """
    import triton.language
    from triton import knobs

    file = source_file(source)
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    _remember(str(file), source, keep=interpret)
    with _LOCK, knobs.runtime.scope():
        knobs.runtime.interpret = interpret
        try:
            code = compile(source, str(file), "exec", dont_inherit=True)
            exec(code, vars(module))
        except Exception as error:
            raise CompileError(
                f"the emitted module {file} cannot be executed: {error}"
            ) from error
    if interpret:
        # The interpreter patches, and restores, the language modules that it finds
        # among a kernel's globals; the library functions use this one.
        vars(module)["core"] = triton.language.core
    return module


def _remember(file: str, source: str, *, keep: bool) -> None:
    """Give Python the lines of a file, whatever is in it."""
    # Without a time, they are not compared with the file.
    lines = (len(source), None, source.splitlines(keepends=True), file)
    linecache.cache[file] = lines
    if keep:
        _INTERPRETED[file] = lines


@contextmanager
def interpreting() -> Generator[None, None, None]:
    """While this lasts, interpreted kernels can call Triton's library functions."""
    # Lanes outside of a ragged tile may hold anything.
    with _LOCK, ExitStack() as stack, np.errstate(all="ignore"):
        linecache.cache.update(_INTERPRETED)
        for owner, name, value in _changes():
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def _changes() -> list[tuple[Any, str, Any]]:
    """Attributes of Triton's, each with its owner and what it is to be meanwhile."""
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    patches: Any = interpreter
    builder: Any = interpreter.InterpreterBuilder
    function: Any = JITFunction
    shared = patches.interpreter_builder
    interpreted: dict[Any, Any] = {}
    patch_tensor = patches._patch_lang_tensor

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in interpreted:
            interpreted[self.fn] = interpreter.InterpretedFunction(self.fn)
        return interpreted[self.fn](*args, **kwargs)

    def patch_tensor_too(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return [
        (function, "__call__", call),
        *((builder, n, change(getattr(builder, n))) for n, change in _BUILDERS.items()),
        (patches.ReduceOps, "generic_reduce", _reduced_by_halves),
        (patches, "_patch_lang_tensor", patch_tensor_too),
        (shared, "options", replace(shared.options, sanitize_overflow=False)),
    ]


def _reduced_by_halves(self: Any, operands: Any) -> Any:
    """`tl.reduce` of one tensor along an axis: half of it is joined to the other."""
    (value,) = operands
    data, axis = value.handle.data, self.axis
    while data.shape[axis] > 1:
        halves = np.split(data, 2, axis)
        tensors = [self.to_tensor(half, value.dtype) for half in halves]
        data = self.combine_fn.fn(*tensors).handle.data
    return [self.to_tensor(data.squeeze(axis), value.dtype)]


def _through_8_bits(convert: Any) -> Any:
    """`create_fp_to_fp` that rounds to floats of 8 bits as the GPU does.

    It keeps them as bare patterns, cuts what does not fit, and knows no NaN of theirs.
    """
    import ml_dtypes
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    narrow: dict[Any, Any] = {
        tl.float8e4nv: ml_dtypes.float8_e4m3fn,
        tl.float8e5: ml_dtypes.float8_e5m2,
    }

    def create_fp_to_fp(builder: Any, value: Any, wanted: Any, *rest: Any) -> Any:
        source, target = value.dtype.scalar, wanted.scalar
        if source in narrow:
            wide = value.data.view(narrow[source]).astype(np.float32)
            found = TensorHandle(wide, tl.float32)
            return found if target == tl.float32 else builder.cast_impl(found, target)
        if target in narrow:
            wide = builder.cast_impl(value, tl.float32).data
            most = float(ml_dtypes.finfo(narrow[target]).max)
            found = np.clip(wide, -most, most).astype(narrow[target])
            return TensorHandle(found.view(np.uint8), target)
        return convert(builder, value, wanted, *rest)

    return create_fp_to_fp


def _of_truth_values(splat: Any) -> Any:
    """`create_splat` that knows a comparison of scalars, which has their dtype, too."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def create_splat(builder: Any, kind: Any, value: Any) -> Any:
        if value.data.dtype == np.bool_:
            return TensorHandle(np.full(kind.shape, value.data), tl.int1)
        return splat(builder, kind, value)

    return create_splat


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


_BUILDERS: Mapping[str, Callable[[Any], Any]] = {
    "create_dot": _dot_of_values,
    "create_fp_to_fp": _through_8_bits,
    "create_splat": _of_truth_values,
}
"""What interpreted kernels are built with, and how it is changed."""
