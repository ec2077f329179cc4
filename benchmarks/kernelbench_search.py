"""KernelBench's problems searched at their true sizes, and checked at small ones.

No data is made for the true sizes.  What a search found is compared with eager's number
of kernels; what a search finds at reduced sizes runs in Triton's interpreter and is
compared with eager in float64.
"""

# The problems are other people's modules, which no checker knows.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import mirage_dsl as mirage
from mirage_dsl.core.hardware import DEFAULT
from mirage_dsl.core.settings import INTERPRET, Effort
from mirage_dsl.cost.estimate import estimate, launched
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.store.superoptimize import superoptimize

# -- Eager's kernels -------------------------------------------------------------------

FREE = frozenset({"detach", "empty", "empty_like", "empty_strided", "lift_fresh"})
"""Operators of PyTorch's that launch nothing, besides views."""


class _Launches(TorchDispatchMode):
    """Counts operators that compute something, each as one kernel.

    That is a lower bound, as for the norms of groups; a convolution with a bias counts
    as the two that it is: PyTorch adds the bias after cuDNN's kernel.
    """

    count = 0
    inside = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if not (self.inside or func.is_view or name in FREE):
            biased = name == "convolution" and args[2] is not None
            self.count += 1 + biased
        return func(*args, **(kwargs or {}))


class _Attention(TorchFunctionMode):
    """Attention is one kernel on a GPU, and many where there are no data."""

    def __init__(self, launches: _Launches) -> None:
        super().__init__()
        self._launches = launches

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self._launches.count += 1
        self._launches.inside = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._launches.inside = False


def eager_launches(eager: Callable[..., Any], inputs: Sequence[Any]) -> int:
    """How many kernels eager runs, at least; tensors may be without data."""
    launches = _Launches()
    with torch.no_grad(), _Attention(launches), launches:
        eager(*inputs)
    return launches.count


# -- The search ------------------------------------------------------------------------


@dataclass(frozen=True)
class Searched:
    """What a search at true sizes found.

    Attributes:
        seconds: It took, by the clock that its budget was counted by.
        complete: Whether the space was searched to its end.
        cut_short: Whether the budget ended it.
        launches: Kernels of the best program.
        eager: Kernels of eager, at least.
        generated: How many of the launches are generated kernels.
        microseconds: The estimate.
        library: The estimate of the program by library kernels.
        notes: What the search says that it could not do.
    """

    seconds: float
    complete: bool
    cut_short: bool
    launches: int
    eager: int
    generated: int
    microseconds: float
    library: float
    notes: tuple[str, ...]


def searched(
    program: KernelGraph,
    eager: Callable[..., Any],
    inputs: Sequence[Any],
    effort: Effort = "quick",
) -> Searched:
    """Search what was traced of a function, with the effort's own budget."""
    began = time.monotonic()
    result = superoptimize(program, effort=effort, use_cache=False)
    seconds = time.monotonic() - began
    best = result.best
    return Searched(
        seconds,
        result.complete,
        result.cut_short,
        len(launched(best.mugraph)),
        eager_launches(eager, inputs),
        len(best.mugraph.blocks),
        best.cost.microseconds,
        estimate(result.library, DEFAULT).microseconds,
        tuple(result.ledger.notes),
    )


# -- Reduced sizes ---------------------------------------------------------------------

LIMITS = (16, 32, 64, 128, 256, 1 << 30)
"""Numbers above a limit are halved until they are not; the batch is small always."""
SMALL_BATCH = 2
MOST_ELEMENTS = 1 << 22
"""Of all that eager makes, where it is to be checked."""


class _Reduced(ast.NodeTransformer):
    """Numbers of a problem's settings made small, and those of its inputs."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def visit_Module(self, node: ast.Module) -> ast.AST:
        """Settings are assigned at the top, or written where inputs are made."""
        for at, item in enumerate(node.body):
            settings = isinstance(item, ast.FunctionDef) and item.name.startswith(
                "get_"
            )
            if settings or isinstance(item, ast.Assign):
                node.body[at] = self.visit(item)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """A batch may be as small as it likes."""
        named = any(isinstance(t, ast.Name) and "batch" in t.id for t in node.targets)
        if named and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(min(SMALL_BATCH, int(node.value.value)))
            return node
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Halved while it is even and too large."""
        if type(node.value) is not int:
            return node
        number = node.value
        while number > self._limit and number % 2 == 0:
            number //= 2
        return ast.copy_location(ast.Constant(number), node)


class _Elements(TorchDispatchMode):
    """Counts elements of what operators make."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = tree_leaves(made)
            self.count += sum(t.numel() for t in leaves if isinstance(t, torch.Tensor))
        return made


def reduced(file: Path) -> ModuleType | None:
    """A problem at the smallest sizes at which eager runs it; None if all are large."""
    for limit in LIMITS:
        tree = _Reduced(limit).visit(ast.parse(file.read_text(encoding="utf-8")))
        names = ModuleType(file.stem)
        try:
            exec(
                compile(ast.fix_missing_locations(tree), str(file), "exec"), vars(names)
            )
            count = _elements(names)
        except (RuntimeError, ValueError, AssertionError, IndexError, TypeError):
            continue
        if count > MOST_ELEMENTS:
            return None
        return names
    return None


def _elements(names: ModuleType) -> int:
    """Elements of everything that eager makes, without data."""
    with torch.device("meta"):
        model = names.Model(*names.get_init_inputs()).eval()
        inputs = names.get_inputs()
    elements = _Elements()
    with torch.no_grad(), elements:
        made = model(*inputs)
    if any(0 in t.shape for t in tree_leaves(made) if isinstance(t, torch.Tensor)):
        raise ValueError("nothing is left")
    held = [*model.parameters(), *model.buffers()]
    return elements.count + sum(t.numel() for t in held)


# -- The check -------------------------------------------------------------------------

SLACK = 4.0
"""A result may be so many times as far from float64 as eager is in the same dtype."""
ROUNDING = 4e-6
"""And by this share of the largest number: a few dozen roundings of f32."""


@dataclass(frozen=True)
class Checked:
    """A problem at reduced sizes against eager in float64.

    Attributes:
        right: Whether all results are as good as eager's in the problem's own dtype.
        error: The largest difference, as a share of the largest number.
        eager: The same of eager in the problem's own dtype.
        reason: Why it was not checked; empty where it was.
    """

    right: bool
    error: float
    eager: float
    reason: str = ""


def checked(file: Path, effort: Effort = "quick", budget: float = 10.0) -> Checked:
    """Search a problem at reduced sizes, run it, and compare.

    Generated kernels run in Triton's interpreter.
    """
    names = reduced(file)
    if names is None:
        return Checked(False, 0.0, 0.0, "too large at any sizes at which eager runs it")
    torch.manual_seed(0)
    model = names.Model(*names.get_init_inputs()).eval()
    inputs = names.get_inputs()
    with torch.no_grad(), INTERPRET.scope(True):
        plain = tree_leaves(copy.deepcopy(model)(*copy.deepcopy(inputs)))
        kernel = mirage.kernel(
            effort=effort, budget_seconds=budget, config={"use_cache": False}
        )
        found = tree_leaves(kernel(model)(*copy.deepcopy(inputs)))
        # Not of a copy, whose functions in attributes have layers of this one.
        exact = tree_leaves(model.double()(*map(_double, inputs)))
    return compared(found, plain, exact)


def compared(found: list[Any], plain: list[Any], exact: list[Any]) -> Checked:
    """Results beside eager's in their own dtype and in float64."""
    if len(found) != len(exact):
        return Checked(False, float("inf"), 0.0)
    ours = eager = 0.0
    right = True
    for own, theirs, wanted in zip(found, plain, exact, strict=True):
        if not isinstance(wanted, torch.Tensor):
            continue
        if own.shape != wanted.shape or own.dtype != theirs.dtype:
            return Checked(False, float("inf"), 0.0)
        mine, his = _distance(own, wanted), _distance(theirs, wanted)
        ours, eager = max(ours, mine), max(eager, his)
        right &= mine <= SLACK * his + ROUNDING
    return Checked(right, ours, eager)


def _distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    found, exact = found.double(), exact.double()
    same = (found == exact) | (found.isnan() & exact.isnan())
    apart = torch.where(same, 0.0, (found - exact).abs())
    finite = exact[exact.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    furthest = float(apart.max()) if apart.numel() else 0.0
    return furthest if furthest == 0 else furthest / (largest or 1.0)


def _double(value: Any) -> Any:
    """A float tensor in float64; anything else as it is."""
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floats else copy.deepcopy(value)
