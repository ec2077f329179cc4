"""What holds of every module that the tests emit, whichever test it is.

Each is read once as it is made: it must be Python, and every name in it be defined.
With `--emitted DIR` the plans are kept there, and `python -m tests.emitted DIR` then
compiles all their kernels for the architectures in `TARGETS`.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import pickle
import symtable
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from mirage_dsl.backends.triton.lowering.emit import ModulePlan

TARGETS = (90, 80)


def undefined(source: str, defined: Collection[str] = ()) -> set[str]:
    """Names that Python code refers to and nobody defines, attributes of `tl` too.

    Args:
        source: A module, or functions that are executed among other names.
        defined: Those other names.
    """
    import triton.language as tl

    table = symtable.symtable(source, "emitted", "exec")
    made = {s.get_name() for s in table.get_symbols() if s.is_assigned()}
    made |= {s.get_name() for s in table.get_symbols() if s.is_imported()}
    made |= {s.get_name() for s in table.get_symbols() if s.is_namespace()}
    missing = set(_global_names(table)) - made - set(defined) - set(dir(builtins))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(ast.Name("tl"), name) if not hasattr(tl, name):
                missing.add(f"tl.{name}")
    return missing


def _global_names(table: symtable.SymbolTable) -> Iterator[str]:
    at_top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (at_top or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _global_names(child)


def watch(keep: Path | None) -> None:
    """From now on read every module that is made, and keep its plan if asked to."""
    made: Any = ModulePlan.__init__
    known: set[str] = set()

    def init(self: ModulePlan, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        digest = hashlib.sha256(self.source.encode()).hexdigest()[:32]
        if digest in known:
            return
        known.add(digest)
        missing = undefined(self.source)
        assert not missing, f"{sorted(missing)} are not defined in\n{self.source}"
        if keep is not None and self.kernels:
            (keep / f"{digest}.plan").write_bytes(pickle.dumps(self))

    ModulePlan.__init__ = init  # type: ignore[method-assign]


def compile_plan(file: Path) -> list[str]:
    """What goes wrong when a kept plan is compiled for each architecture."""
    from mirage_dsl.backends.triton.running.screen import compile_kernel
    from mirage_dsl.core.errors import CompileError

    plan: ModulePlan = pickle.loads(file.read_bytes())
    faults: list[str] = []
    for arch in TARGETS:
        for kernel in plan.kernels:
            try:
                compile_kernel(plan, kernel, arch)
            except CompileError as error:
                faults.append(f"{file.name}: {kernel.name} for sm_{arch}: {error}")
    return faults


def main(directory: str, jobs: str = "2") -> int:
    """Compile every plan that was kept; 1 if one does not compile."""
    files = sorted(Path(directory).glob("*.plan"))
    with ProcessPoolExecutor(int(jobs)) as pool:
        faults = [f for found in pool.map(compile_plan, files) for f in found]
    for fault in faults:
        print(fault)
    targets = " and ".join(f"sm_{arch}" for arch in TARGETS)
    print(f"{len(files)} modules compiled for {targets}: {len(faults)} faults")
    return 1 if faults or not files else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
