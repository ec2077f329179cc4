"""mirage_dsl: a superoptimizer for tensor programs.

A function decorated with `kernel` is traced, searched for the fastest equivalent
kernels, verified, lowered to Triton and run.  Names are loaded when they are first
used: importing the package loads neither PyTorch, Triton nor Numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirage_dsl.errors import (
        CacheError as CacheError,
        CheckError as CheckError,
        CompileError as CompileError,
        DTypeError as DTypeError,
        EquivalenceError as EquivalenceError,
        MirageError as MirageError,
        ParseError as ParseError,
        SearchError as SearchError,
        ShapeError as ShapeError,
        TraceError as TraceError,
        UnsupportedError as UnsupportedError,
    )
    from mirage_dsl.ir.graph import KernelGraph as KernelGraph
    from mirage_dsl.types import bf16 as bf16, f16 as f16, f32 as f32

_FUNCTIONS = (
    "abs add amax amin astype broadcast_to cat chunk clamp clip concat concatenate div "
    "equal erf exp exp2 expand expand_dims flatten gelu greater greater_equal less "
    "less_equal linear log masked_fill matmul max maximum mean min minimum mul narrow "
    "neg not_equal permute pow reciprocal relu repeat_interleave reshape rsqrt sigmoid "
    "silu split sqrt square squeeze stack sub sum swapaxes tanh transpose unbind "
    "unflatten unsqueeze where"
)
_COMPOSITES = (
    "batch_norm einsum group_norm layer_norm norm rms_norm softmax std var "
    "scaled_dot_product_attention"
)
_ERRORS = (
    "CacheError CheckError CompileError DTypeError EquivalenceError MirageError "
    "ParseError SearchError SettingError ShapeError TraceError UnsupportedError"
)
_HOME = {
    "errors": _ERRORS,
    "types": "f16 bf16 f32 TensorSpec",
    "ir.graph": "KernelGraph BlockGraph Schedule",
    "frontend.functions": _FUNCTIONS,
    "frontend.composites": _COMPOSITES,
    "frontend.specs": "spec",
    "frontend.kernel": "kernel Kernel BoundKernel",
    "frontend.commands": "parse check evaluate verify diff superoptimize",
    "frontend.graph_api": (
        "new_kernel_graph new_graph new_threadblock_graph Graph ThreadblockGraph"
    ),
    "superoptimize": "SearchResult",
    "verify.certificate": "Certificate",
}
_WHERE = {name: home for home, names in _HOME.items() for name in names.split()}
_ALIASES = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
}

__all__ = sorted([*_WHERE, *_ALIASES, "functions"])  # pyright: ignore[reportUnsupportedDunderAll]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    name_there = _ALIASES.get(name, name)
    if name == "functions":
        return import_module("mirage_dsl.functions")
    if name_there not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_WHERE[name_there]}"), name_there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
