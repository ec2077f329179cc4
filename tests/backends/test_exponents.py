"""Exponents of scores in one operation: the text, and numbers of all sizes."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
import triton
from torch import Tensor

from mirage_dsl.backends.triton.lowering import kernel
from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.types import scalar
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import with_symbolic
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.combined import LARGEST_OFFSET, Unit, held_over, units_over
from mirage_dsl.tile.program import TileProgram
from tests.backends.running import check, random_inputs
from tests.backends.test_held import FORMS, divided, instructions
from tests.programs import mugraphs
from tests.tile.test_build import SHARED
from tests.tile.test_held import rows

LOG2_E = "1.4426950408889634"
SCALES = (1.0, 0.125, 0.3)


def units(graph: KernelGraph) -> dict[str, Unit]:
    (program, *_) = programs(graph)
    return dict(units_over(program, held_over(program)))


def attention(splits: int = 1, factor: float | None = None) -> KernelGraph:
    """Sixteen rows of 64 scores, in tiles of 16."""
    given = {} if factor is None else {"factor": scalar(factor)}
    graph = mugraphs.attention(1, 16, 64, 16, tile_m=16, tile_n=16, **given)
    return graph if splits == 1 else divided(graph)


# -- Which -----------------------------------------------------------------------------

SCORES = {
    "products": rows("s = add x, 0"),
    "a factor": rows(),
    "a bias": rows("t = mul x, 0.125\n s = add t, bias_t"),
    "a mask": rows("t = mul x, 0.125\n far = bias_t < 0\n s = where(far, -inf, t)"),
    "an ordinary maximum": rows(maximum="m = max s over(n)", width="75"),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_of_products(name: str) -> None:
    assert len(units(SCORES[name])) == 1
    lines = [line for line in emit(SCORES[name]).split("\n") if "tl.exp2(" in line]
    assert lines
    assert all("tl.exp2(tl.fma(" in line and "_unit" in line for line in lines)


OTHERS = {
    "what is loaded": rows(
        "s = mul bias_t, 0.125",
        result="l = sum e over(n)\n z = sum x over(n)\n r = add l, z",
    ),
    "no maximum": rows(maximum="m = sum s over(n)"),
    "an unknown factor": with_symbolic(rows("s = mul x, 1/i"), ["i"]),
    "two factors": rows(
        then="far = exp(x - m)\n near = exp(s - m)\n e = add far, near"
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_subtracted_first(name: str) -> None:
    assert not units(OTHERS[name])
    assert "_unit" not in emit(OTHERS[name])


DIFFERENCE = r"sub(?:\.rn)?\.f32"


def test_an_exponent_is_one_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 by 64 each of 128 threads has 32."""
    graph = mugraphs.attention(2, 64, 128)

    def none(program: TileProgram, _: object) -> dict[str, Unit]:
        assert program.statements
        return {}

    new = instructions(graph, DIFFERENCE)
    monkeypatch.setattr(kernel, "units_over", none)
    # Some compilers make others of the row's.
    assert instructions(graph, DIFFERENCE) - new >= 28


# -- Numbers of all sizes --------------------------------------------------------------


def exact(q: Tensor, k: Tensor, v: Tensor, factor: float) -> Tensor:
    """In float64, of products that f32 holds."""
    return torch.softmax((q.double() @ k.double()) * factor, -1) @ v.double()


def scored(largest: float) -> list[Tensor]:
    """Rows whose scores are whole numbers near the largest, and exact."""
    generator = torch.Generator().manual_seed(2)
    q, k = torch.zeros(1, 16, 16), torch.zeros(1, 16, 64)
    q[0, :, 0], k[0, 0] = 2.0**15, round(largest / 2**15)
    q[0, :, 1], k[0, 1] = 1.0, torch.randint(-9, 9, (64,), generator=generator).float()
    q[0, 3:6, 1] = 0.0
    q[0, 6:9] *= -1.0
    v = torch.randn(1, 64, 16, generator=generator)
    return [t.half() for t in (q, k, v)]


def rounds_once() -> bool:
    """Whether Triton's interpreter rounds a product and a sum once, as GPUs do."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    numbers = (1 + 2.0**-12, 1 + 2.0**-12, -1.0 - 2.0**-11)
    arrays = (np.array([n], np.float32) for n in numbers)
    x, y, z = (interpreter.TensorHandle(a, triton.language.float32) for a in arrays)
    return bool(interpreter.InterpreterBuilder().create_fma(x, y, z).data[0] > 0)


@pytest.mark.skipif(not rounds_once(), reason="this Triton's interpreter rounds twice")
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("factor", [None, 0.125, 0.3])
@pytest.mark.parametrize("largest", [0.0, 1e3, 1e5, 1e6, 8e6])
def test_exact_scores_of_any_size(
    largest: float, factor: float | None, splits: int
) -> None:
    """Offsets are rounded; no weight of a row is off by more than another."""
    tensors = scored(largest)
    graph = attention(splits, factor)
    (found,) = TritonExecutable(graph, interpret=True)(*tensors)
    right = exact(*tensors, factor or 1.0)
    # Parts are joined by maxima whose products are off by half of their last bit.
    joined = largest * 2.0**-23 if splits > 1 else 0.0
    assert (found.double() - right).abs().max() <= 2e-3 + joined


@pytest.mark.parametrize("size", [1e7, 7e7, 1e9, 5e9])
@pytest.mark.parametrize("splits", [1, 2])
def test_scores_that_f32_holds_in_steps(size: float, splits: int) -> None:
    """What is equal has equal weight, what is far below the largest none."""
    q, k = torch.zeros(1, 16, 16), torch.zeros(1, 16, 64)
    q[0, :, :2] = 2.0**16 - 32
    k[0, :2] = size / 2.0**17
    k[0, :, 16:48] *= 0.5
    k = k.half()
    k[0, :2, 60:] = -k[0, :2, 60:]
    v = torch.randn(1, 64, 16, generator=torch.Generator().manual_seed(3)).half()
    (found,) = TritonExecutable(attention(splits), interpret=True)(q.half(), k, v)
    equal = torch.cat([v[:, :16], v[:, 48:60]], 1).double().mean(1, keepdim=True)
    assert (found.double() - equal).abs().max() <= 2e-3


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("largest", [0.0, 1e3, 1e5, 1e6, 8e6])
def test_exact_scores_on_a_gpu(largest: float, splits: int) -> None:
    tensors = [t.cuda() for t in scored(largest)]
    (found,) = TritonExecutable(attention(splits))(*tensors)
    joined = largest * 2.0**-23 if splits > 1 else 0.0
    assert (found.double() - exact(*tensors, 1.0)).abs().max() <= 2e-3 + joined


@pytest.mark.parametrize("factor", SCALES)
def test_units_leave_the_largest_within_f16(factor: float) -> None:
    """In f32, for maxima on both sides of where the unit changes."""
    unit = Unit(factor * 1.4426950408889634)
    assert unit.far <= unit.plain < 2.0 * unit.far
    assert unit.near * unit.plain <= LARGEST_OFFSET
    below = torch.tensor(unit.near).nextafter(torch.tensor(0.0))
    maxima = torch.logspace(0, 38, 4001, dtype=torch.float64).float()
    for row in (*maxima, below, torch.tensor(unit.near), torch.tensor(3e38)):
        f = torch.tensor(unit.plain if row < unit.near else unit.far)
        left = row.double() * f.double() - (row * f).double()
        assert left.abs() <= 4.0 if row < unit.near else left == 0.0


@pytest.mark.parametrize("name", ["causal", "a mask", "pages", "no loop"])
def test_all_forms_have_units(name: str) -> None:
    assert "_unit" in emit(FORMS[name])


# -- Factors of rows -------------------------------------------------------------------


def factored(dtype: str) -> KernelGraph:
    """exp(s * r) of scores and a row, with a sum over them."""
    return parse(SHARED.replace("TYPE", dtype).replace("ROW", "r_t"))


def test_a_row_takes_the_factor() -> None:
    graph = factored("f16")
    assert f"tl.exp2(s * (r_t_f32[None, :] * {LOG2_E}))" in emit(graph)
    check(graph, [0.3 * x for x in random_inputs(graph)])


def test_a_row_that_may_be_large_does_not() -> None:
    """3e38 is infinite times log2(e), and no number times a score of 0."""
    graph = factored("f32")
    assert f"tl.exp2(x * {LOG2_E})" in emit(graph)
    q, k, v, r = random_inputs(graph)
    inputs = [q, torch.zeros_like(k), v, torch.full_like(r, 3e38)]
    for found in check(graph, inputs):
        assert torch.isfinite(found).all()
