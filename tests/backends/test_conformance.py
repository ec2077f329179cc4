"""The conformance suite, for each backend; what it covers; and that it can fail."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.api.kernel import Options
from mirage_dsl.backends.base import BACKENDS, Backend, backend_named
from mirage_dsl.backends.triton.lowering.kernel import _Printer
from mirage_dsl.core.errors import CompileError, SearchError
from mirage_dsl.core.types import f64
from mirage_dsl.ir.graph import Apply
from mirage_dsl.ir.maps import bind_extents
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.tile import program as tp
from mirage_dsl.tile.build import programs
from tests.backends import conformance
from tests.backends.conformance import CASES, Case, conform
from tests.backends.numpy_tiles import printer
from tests.backends.numpy_tiles.backend import NumpyTiles
from tests.programs.mugraphs import gated_mlp

BACKENDS["numpy_tiles"] = "tests.backends.numpy_tiles.backend:NumpyTiles"
EACH = pytest.mark.parametrize("name", BACKENDS)


@pytest.fixture(autouse=True)
def whole_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own convolutions would round f32 operands to TF32 on a GPU."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.sample(140)
@EACH
@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_the_evaluator_does(name: str, case: str) -> None:
    conform(backend_named(name), CASES[case])


@EACH
def test_it_refuses_what_does_not_fit(name: str) -> None:
    conformance.refusals(backend_named(name))


@EACH
def test_it_speaks_as_the_protocol_says(name: str) -> None:
    assert backend_named(name).name == name
    conformance.speaks(backend_named(name))


@EACH
def test_users_choose_it_by_its_name(name: str) -> None:
    mugraph = gated_mlp(5, 40, 36, tile_n=16, tile_k=16)
    g = mirage.new_kernel_graph()
    x, a, b = (g.new_input(s, mirage.f16) for s in ((5, 40), (40, 36), (40, 36)))
    g.mark_output(g.mul(g.silu(g.matmul(x, a)), g.matmul(x, b)))
    bound = g._bound(Options(backend=name, mugraph=str(mugraph)))
    tensors = CASES["gated"].inputs({})
    (found,) = bound(*tensors)
    (expected,) = backend_named(name).compile(mugraph, "cpu")(*tensors)
    if backend_named(name).takes("cpu"):
        assert torch.equal(found, expected)


def test_the_example_is_short() -> None:
    files = Path(printer.__file__).parent.glob("*.py")
    assert sum(len(f.read_text("utf-8").splitlines()) for f in files) < 300


def test_unknown_names_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(SearchError, match="'cuda'; expected one of reference, triton"):
        backend_named("cuda")


# -- What it covers --------------------------------------------------------------------


def tile_programs(case: Case) -> Iterator[tp.TileProgram]:
    for sizes in case.sizes:
        shapes = [tuple(t.shape) for t in case.inputs(sizes)]
        sized = case.graph.with_extents(bind_extents(case.graph, shapes))
        yield from programs(sized)


@cache
def every_program() -> dict[str, list[tp.TileProgram]]:
    return {name: list(tile_programs(case)) for name, case in CASES.items()}


@cache
def statements() -> list[tuple[tp.Statement, bool]]:
    """All of them, and whether they stand in a loop."""
    every = (p for ps in every_program().values() for p in ps)
    return [step for p in every for step in tp.walk(p.body)]


KINDS: dict[str, Callable[[Any], object]] = {
    "a box": lambda s: isinstance(s, tp.Load) and s.via == "descriptor",
    "a copy for registers": lambda s: isinstance(s, tp.Load) and s.instead,
    "an operator within another": lambda s: isinstance(s, tp.Compute) and s.inner,
    "a product that is rounded": lambda s: isinstance(s, tp.Compute) and s.rounded,
    "-inf outside": lambda s: isinstance(s, tp.Mask) and s.fill == -math.inf,
    "inf outside": lambda s: isinstance(s, tp.Mask) and s.fill == math.inf,
    "0 outside": lambda s: isinstance(s, tp.Mask) and s.fill == 0,
    "1 outside": lambda s: isinstance(s, tp.Mask) and s.fill == 1,
    "a product in registers": lambda s: isinstance(s, tp.Product) and not s.is_matrix,
    "a product of merged sides": lambda s: isinstance(s, tp.Product) and s.is_merged,
    "a batch": lambda s: isinstance(s, tp.Product) and s.batch,
    "TF32": lambda s: isinstance(s, tp.Product) and s.precision == "tf32",
    "f32 as it is": lambda s: isinstance(s, tp.Product) and s.precision == "ieee",
    "a product into a sum": lambda s: isinstance(s, tp.Product) and s.into,
    "sums that shrink": lambda s: isinstance(s, tp.Largest) and s.scale,
    "truth values": lambda s: isinstance(s, tp.Store) and s.dtype.name == "bool",
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_has(kind: str) -> None:
    assert any(KINDS[kind](s) for s, _ in statements())


def test_it_has_every_statement_that_is_printed() -> None:
    """At sizes that are known nothing is left to be picked."""
    known = {type(s) for s, _ in statements()}
    assert known == {*get_args(tp.Statement)} - {tp.Pick}
    assert any(isinstance(s, tp.Store) for s, looped in statements() if looped)
    every = [p for ps in every_program().values() for p in ps]
    assert any(p.within_grid for p in every)
    assert any(split.beside for p in every for split in p.grid)


def test_it_has_every_row_in_a_block_and_in_none() -> None:
    inside = {
        s.op for s, _ in statements() if isinstance(s, tp.Compute | tp.Reduce | tp.Scan)
    }
    alone = {
        node.op
        for case in CASES.values()
        for node in case.graph.nodes
        if isinstance(node, Apply)
    }
    # Integers of the one are labels and lengths, which no drawn ones are.
    without = {conformance.CUT_OFF, OPERATORS["ctc_loss"]}
    for op in {*OPERATORS.values()} - without:
        assert op in alone or op.indexed, op
        if op.kind in (Kind.ELEMENTWISE, Kind.REDUCTION, Kind.SCAN):
            assert op in inside or op.gives == f64, op


def test_its_graphs_are_well_formed() -> None:
    assert conformance.ill_formed() == []


# -- That it can fail ------------------------------------------------------------------


def refused(
    backend: Backend, concerned: Callable[[tp.Statement], bool] = lambda _: True
) -> bool:
    """Whether a case of the suite refuses a backend.

    Of those that have a statement that is `concerned`: it prints the others rightly.
    """
    for name, case in CASES.items():
        steps = (s for p in every_program()[name] for s, _ in tp.walk(p.body))
        if not any(map(concerned, steps)):
            continue
        try:
            conform(backend, case)
        except AssertionError:
            return True
    return False


def printed_by(kind: type[printer.Printer]) -> Backend:
    class Broken(NumpyTiles):
        printer = kind

    return Broken()


MADE = {*get_args(tp.Statement)} - {tp.Store, tp.Ask, tp.Wait, tp.Announce, tp.Loop}
MADE -= {tp.Pick}


@pytest.mark.parametrize(
    "kind", sorted(MADE, key=lambda k: k.__name__), ids=lambda k: k.__name__
)
def test_a_statement_that_is_printed_wrongly_is_seen(kind: type[tp.Statement]) -> None:
    class Off(printer.Printer):
        def lines(self, step: tp.Statement) -> list[str]:
            found = super().lines(step)
            if isinstance(step, kind):
                name = self.name(tp.makes(step)[0])
                found.append(f"{name} = {name} + np.float32(0.5)")
            return found

    assert refused(printed_by(Off), lambda s: isinstance(s, kind))


def changed(
    kind: type[tp.Statement], **how: Any
) -> Callable[[tp.Statement], tp.Statement | None]:
    return lambda s: replace(s, **how) if isinstance(s, kind) else s


MISTAKES: dict[str, Callable[[Any], tp.Statement | None]] = {
    "loads without guards": changed(tp.Load, guarded=()),
    "boxes read by pointers": changed(tp.Load, via="pointer"),
    "no masks": changed(tp.Mask, where=()),
    "0 in all masks": changed(tp.Mask, fill=0.0),
    "0 to start with": changed(tp.Start, value=0.0),
    "nothing but the outer operator": lambda s: (
        replace(s, inner=None, operands=s.operands[:1])
        if isinstance(s, tp.Compute) and s.inner
        else s
    ),
    "operands in the other order": lambda s: (
        replace(s, operands=s.operands[::-1]) if isinstance(s, tp.Compute) else s
    ),
    "nothing rescaled": lambda s: None if isinstance(s, tp.Rescale) else s,
    "nothing taken in": lambda s: None if isinstance(s, tp.Update) else s,
    "nothing stored": lambda s: None if isinstance(s, tp.Store) else s,
    "all stored as f16": changed(tp.Store, dtype=mirage.f16),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(mistake: str) -> None:
    class Mistaken(printer.Printer):
        def lines(self, step: tp.Statement) -> list[str]:
            made = MISTAKES[mistake](step)
            return [] if made is None else super().lines(made)

    assert refused(printed_by(Mistaken), lambda s: MISTAKES[mistake](s) != s)


def test_an_iteration_that_is_left_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    every = tp.iterations
    monkeypatch.setattr(tp, "iterations", lambda program: every(program) - 1)
    assert refused(NumpyTiles())


TRITONS = {
    "_mask": "accumulate min",
    "_rescale": "attention plain",
    "_finite": "masked rows",
    "_merge": "batch inside",
}
"""Methods of Triton's printer, each with a case that has its statement."""


@pytest.mark.parametrize("method", TRITONS)
def test_a_statement_that_triton_prints_not_at_all_is_seen(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(self: _Printer, step: tp.Statement) -> None:
        if not isinstance(step, tp.Rescale):
            (operand,) = tp.reads(step)
            self._variables[tp.makes(step)[0]] = self._variables[operand]

    conform(backend_named("triton"), CASES[TRITONS[method]])
    monkeypatch.setattr(_Printer, method, nothing)
    with pytest.raises((AssertionError, CompileError)):
        conform(backend_named("triton"), CASES[TRITONS[method]])
