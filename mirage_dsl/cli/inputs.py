"""Reads what a command is given: `.mu` files, FILE:FUNCTION, specs, sizes."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from mirage_dsl.core.errors import ParseError
from mirage_dsl.core.types import MAX_EXTENT, TensorSpec, dtype_named
from mirage_dsl.ir.check.graph import check_or_raise
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.text.parser import parse

_SPEC = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[^\]]*)\]")
_SIZE = re.compile(r"(?P<name>[^=\s]+)=(?P<extent>[1-9][0-9]*)")


def read_text(path: str) -> str:
    """The text of a file; `-` is standard input.

    Raises:
        ParseError: The file is no text.
    """
    if path == "-":
        return sys.stdin.read()
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(f"{path} is no UTF-8 text: {error}") from None


def read_graph(path: str) -> KernelGraph:
    """The graph of a `.mu` file, or the best one of a saved search result."""
    text = read_text(path)
    if path.endswith(".json"):
        from mirage_dsl.search.result import SearchResult

        return SearchResult.load(path).best.mugraph
    return parse(text, path)


def resize(graph: KernelGraph, sizes: Sequence[str]) -> KernelGraph:
    """The graph with extents replaced, as in `--size m=8`.

    Raises:
        CheckError: It is not well formed at these sizes.
    """
    if not sizes:
        return graph
    chosen: dict[str, int] = {}
    for size in sizes:
        found = _SIZE.fullmatch(size)
        if found is None:
            raise click.BadParameter(
                f"{size!r}: expected NAME=EXTENT, as in m=16", param_hint="--size"
            )
        chosen[found["name"]] = _extent(found["extent"], size, "--size")
    unknown = sorted(chosen.keys() - graph.extent_of.keys())
    if unknown:
        raise click.BadParameter(
            f"{graph.name} has no dim {', '.join(unknown)}; its dims are "
            f"{', '.join(graph.extent_of)}",
            param_hint="--size",
        )
    resized = graph.with_extents(chosen)
    resized = graph.with_extents(derived_extents(resized, resized.extent_of))
    check_or_raise(resized)
    return resized


def parse_spec(text: str) -> TensorSpec:
    """`f16[16,4096]`: dtype and shape; a name in the shape is a symbolic extent."""
    found = _SPEC.fullmatch(text.replace(" ", ""))
    dtype = dtype_named(found["dtype"]) if found else None
    if found is None or dtype is None:
        raise click.BadParameter(
            f"{text!r}: expected a dtype (f16, bf16, f32, i32, bool, ...) and a shape, "
            "as in f16[16,4096]",
            param_hint="--spec",
        )
    shape: list[int | str] = []
    for part in filter(None, found["shape"].split(",")):
        if not re.fullmatch(r"[1-9][0-9]*|[A-Za-z_]\w*", part):
            raise click.BadParameter(
                f"{text!r}: {part!r} is neither a positive number nor a name",
                param_hint="--spec",
            )
        shape.append(_extent(part, text, "--spec") if part.isdigit() else part)
    return TensorSpec(dtype, tuple(shape))


def _extent(digits: str, given: str, option: str) -> int:
    """The extent that an argument of the command line states.

    Raises:
        click.BadParameter: It is larger than any.
    """
    if len(digits) > len(str(MAX_EXTENT)) or int(digits) > MAX_EXTENT:
        raise click.BadParameter(
            f"{given[:60]!r}: an extent is at most {MAX_EXTENT} (2**63 - 1)",
            param_hint=option,
        )
    return int(digits)


def load_function(target: str) -> Callable[..., Any]:
    """The Python function of `FILE:FUNCTION`, without its decorator."""
    path, colon, name = target.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise click.BadParameter(
            f"{target!r}: expected FILE:FUNCTION, as in model.py:rms_linear",
            param_hint="FILE:FUNCTION",
        )
    if not Path(path).is_file():
        raise click.BadParameter(f"there is no file {path}", param_hint="FILE:FUNCTION")
    module = _load_module(Path(path))
    found = getattr(module, name, None)
    function = getattr(found, "function", found)
    if not callable(function):
        names = [n for n, v in vars(module).items() if _offered(v, module.__name__)]
        raise click.BadParameter(
            f"{path} has no function {name}; it has {', '.join(names) or 'none'}",
            param_hint="FILE:FUNCTION",
        )
    return function


def _load_module(path: Path) -> ModuleType:
    name = f"_mirage_dsl_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # As when Python runs the file, so that it can import its neighbours.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def _offered(value: object, module: str) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module


def trace_target(target: str, specs: Sequence[str]) -> KernelGraph:
    """The program of `FILE:FUNCTION` at the given specs, or that of a `.mu` file."""
    if target.endswith((".mu", ".json")) or target == "-":
        return read_graph(target)
    from mirage_dsl.frontend.trace import trace_function

    function = load_function(target)
    given = [parse_spec(s) for s in specs]
    signature = inspect.signature(function)
    try:
        signature.bind(*given)
    except TypeError as error:
        name = target.rpartition(":")[2]
        raise click.BadParameter(
            f"{len(given)} given for {name}{signature}: {error}; give one for each "
            "argument, in their order",
            param_hint="--spec",
        ) from None
    return trace_function(function, given)
