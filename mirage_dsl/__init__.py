"""mirage_dsl: a superoptimizer for tensor programs.

A function decorated with `kernel` is traced, searched for the fastest equivalent
kernels, verified, lowered to Triton and run.  Names are loaded when they are first
used: importing the package loads neither PyTorch, Triton nor Numba.  For type checkers
`__init__.pyi` says what the names are.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from mirage_dsl.core.errors import public_function
from mirage_dsl.core.settings import setup_logging
from mirage_dsl.version import __version__ as __version__

_FUNCTIONS = (
    "abs add amax amin argmax argmin bitwise_and bitwise_not bitwise_or bitwise_xor "
    "clamp clip cumprod cumsum div embedding equal erf exp exp2 floor_divide gather "
    "gelu greater greater_equal index_select less less_equal linear log masked_fill "
    "matmul max maximum mean min minimum mul neg not_equal pow prod reciprocal relu "
    "remainder rsqrt shift_left shift_right sigmoid silu sqrt square sub sum "
    "take_along_dim tanh where"
)
_VIEWS = (
    "astype broadcast_to cat chunk concat concatenate expand expand_dims flatten "
    "narrow permute repeat_interleave reshape split squeeze stack swapaxes "
    "transpose unbind unflatten unsqueeze"
)
_CONSTRUCTORS = "arange eye full ones tril triu zeros"
_COMPOSITES = (
    "batch_norm einsum group_norm layer_norm norm rms_norm softmax std var "
    "scaled_dot_product_attention"
)
_ERRORS = (
    "CacheError CheckError CompileError DTypeError EquivalenceError MirageError "
    "ParseError SearchError SettingError ShapeError TraceError UnsupportedError"
)
_HOME = {
    "core.errors": _ERRORS,
    "core.types": (
        "boolean f16 bf16 f32 f64 f8e4m3 f8e5m2 i8 u8 i16 i32 i64 TensorSpec "
        "float8_e4m3fn=f8e4m3 float8_e4m3=f8e4m3 float8_e5m2=f8e5m2 float16=f16 "
        "bfloat16=bf16 float32=f32 float64=f64 int8=i8 uint8=u8 int16=i16 int32=i32 "
        "int64=i64"
    ),
    "ir.graph": "KernelGraph BlockGraph Schedule",
    "ir.text.parser": "parse",
    "ir.check": "check",
    "ir.evaluate": "evaluate=evaluate_numpy",
    "ir.canonical": "diff",
    "verify.verifier": "verify",
    "verify.certificate": "Certificate",
    "search.why_not": "why_not WhyNot",
    "search.result": "Candidate SearchResult",
    "search.sizes": "Constraints",
    "cost.explain": "Explanation explain",
    "store.superoptimize": "superoptimize_all",
    "backends.triton.running.screen": "compile_only",
    "frontend.functions": f"{_FUNCTIONS} {_VIEWS}",
    "frontend.composites": _COMPOSITES,
    "frontend.constructors": _CONSTRUCTORS,
    "frontend.arguments": "spec",
    "api.kernel": "kernel Kernel BoundKernel",
    "api.graph": (
        "superoptimize new_kernel_graph new_graph new_threadblock_graph Graph"
    ),
    "api.compatibility": (
        "convert_dtype_to_torch_type from_json generate_cuda_program "
        "generate_triton_program optimize set_gpu_device_id"
    ),
}
_WHERE = {
    public: (home, there or public)
    for home, entries in _HOME.items()
    for public, _, there in (entry.partition("=") for entry in entries.split())
}

__all__ = sorted([*_WHERE, "functions"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "functions":
        value: Any = import_module(f"{__name__}.frontend.namespace")
    elif name in _WHERE:
        home, there = _WHERE[name]
        value = getattr(import_module(f"{__name__}.{home}"), there)
        # Those on tensors answer by themselves, also where they are found elsewhere.
        if isinstance(value, FunctionType) and not home.startswith("frontend."):
            value = public_function(f"mirage.{name}")(value)
    else:
        close = get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """A package whose public names are not hidden by modules of the same name.

    Importing `mirage_dsl.verify.verifier` would otherwise make `mirage_dsl.verify` the
    package instead of the function.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name in _WHERE and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
setup_logging()
