"""Random programs with casts, slices and concatenations in odd places are searched.

Values are cast, and read or returned uncast too; slices are renamed and multiplied;
parts of different lengths are computed and concatenated.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.evaluate import NumpyDomain, evaluate
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.driver import search
from mirage_dsl.search.partition import shift_carriers

ROWS, COLUMNS = 24, 36


class Generator:
    """A function of matrices that starts with an input and applies random steps."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed

    def program(self) -> KernelGraph:
        dtypes = [self.random.choice(("float16", "float32")) for _ in range(3)]
        shapes = [(ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS, COLUMNS)]
        specs = [mirage.spec(s, d) for s, d in zip(shapes, dtypes, strict=True)]
        return trace_function(self.function, specs, name=f"p{self.seed}")

    def function(self, *inputs: Any) -> Any:
        values = list(inputs)
        for _ in range(self.random.randint(3, 5)):
            values.append(self.step(values))
        made = values[len(inputs) :]
        # A value and what is made of it are returned side by side.
        return (made[-1], *self.random.sample(made[:-1], self.random.randint(0, 1)))

    def step(self, values: list[Any]) -> Any:
        a = self.random.choice(values[-3:])
        match self.random.choice(("cast", "cast", "scale", "slice", "cat", "mix", "@")):
            case "cast":
                return a.float() if self.random.random() < 0.5 else a.half()
            case "scale":
                return mirage.silu(a) * 0.5
            case "slice":
                start = self.random.randint(0, a.shape[1] // 4)
                return a[:, start : self.random.randint(a.shape[1] // 2, a.shape[1])]
            case "cat":
                parts = (v for v in values if v.shape[1] == a.shape[1])
                return mirage.cat([v * 2.0 for v in parts][:3], 0)
            case "mix":
                alike = [v for v in values if v.shape == a.shape]
                return a + self.random.choice(alike)
            case _:
                return self.product(a, values)

    def product(self, a: Any, values: list[Any]) -> Any:
        others = [v for v in values if v.shape[1] == a.shape[1]]
        other = self.random.choice(others)
        logits = a @ other.to(a.dtype).T
        return mirage.softmax(logits) if self.random.random() < 0.5 else logits


def assert_searched(program: KernelGraph) -> None:
    """A search ends with candidates that compute what the program does."""
    result = search(program, H100, k=3, max_kernels=2)
    assert all(c.certificate is not None and c.certificate.ok for c in result)
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal([program.extent_of[a[0].name] or 1 for a in i.type.axes])
        for i in program.inputs
    ]
    expected = evaluate(program, arrays, NumpyDomain())
    found = evaluate(result.best.mugraph, arrays, NumpyDomain())
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(10))
def test_random_programs_are_searched(seed: int) -> None:
    assert_searched(Generator(seed).program())


def returned_cast(x: Any) -> Any:
    z = x.float()
    return z, (z * z).sum(-1)


def cast_beside_product(x: Any, w: Any) -> Any:
    return x.float(), x @ w


def residual(x: Any, w: Any) -> Any:
    return x.float() * 0.5 + (x @ w).float()


def cast_twice(x: Any) -> Any:
    z = x.float()
    return z, z.half(), z * 2.0 + x


def computed_parts(x: Any, w: Any) -> Any:
    return mirage.cat([x[:8] * 2.0, x[:16] * 3.0, w[:24] * 4.0], 0)


def renamed_slice(x: Any, w: Any, y: Any) -> Any:
    n = mirage.rms_norm(w)
    p = n @ n
    return p * y, mirage.softmax(p[:, 5:29] @ x[:, :24].T) @ x


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("function", "count"),
    [
        (returned_cast, 1),
        (cast_beside_product, 2),
        (residual, 2),
        (cast_twice, 1),
        (computed_parts, 2),
        (renamed_slice, 3),
    ],
)
def test_odd_places(function: Callable[..., Any], count: int) -> None:
    square = (COLUMNS, COLUMNS)
    shapes = [(ROWS, COLUMNS), square, square][:count]
    specs = [mirage.spec(s, "float16") for s in shapes]
    assert_searched(trace_function(function, specs))


def test_all_made_of_a_shift_is_carried_where_there_are_very_many_slices() -> None:
    """Such a program cannot be evaluated at small extents."""

    def function(x: Any) -> Any:
        parts = [mirage.softmax(x[:, i : i + 5]).sum(-1) for i in range(0, 280, 4)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    program = trace_function(function, [mirage.spec((4, 300), "float32")])
    carried = shift_carriers(program)
    assert program.returns[0].value in carried
