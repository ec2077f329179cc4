"""The dtypes of results: PyTorch's and NumPy's, for all pairs of dtypes.

Every function of two operands is asked on two tensors, and one of each kind beside
tensors without axes, numbers of Python and NumPy's own.  What is refused has no dtype;
no answer may be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError, UnsupportedError

Function = Callable[..., Any]
PYTHON = (2, 2.5, True)
FORMATS = ["bool", "int8", "uint8", "int16", "int32", "int64"]
OF_TORCH = [*FORMATS, "float16", "bfloat16", "float32", "float64"]
OF_NUMPY = [*FORMATS, "float16", "float32", "float64"]

REFUSALS = (MirageError, AttributeError, RuntimeError, TypeError, ValueError)
"""Those of PyTorch and NumPy, and ours."""


def _of(function: Function) -> Function:
    return lambda a, b: function(a, b)


SIGNS: dict[str, Function] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "<": lambda a, b: a < b,
    "==": lambda a, b: a == b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}
SHARED = (
    *("maximum", "minimum", "fmax", "fmin", "fmod", "remainder", "hypot", "logaddexp"),
    *("copysign", "heaviside", "logical_and", "logical_or", "logical_xor"),
)
TORCH: dict[str, Function] = SIGNS | {
    "where": lambda a, b: torch.where(a > 0, a, b),
    "add alpha": lambda a, b: torch.add(a, b, alpha=2),
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "cat": lambda a, b: torch.cat([a, b]),
    "new_ones": lambda a, b: a.new_ones(3) * b,
    "new_full": lambda a, b: a.new_full((3,), 2) + b,
    "ones_like": lambda a, b: torch.ones_like(a) * b,
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "clamp": lambda a, b: torch.clamp(a, b, b),
    "ldexp": lambda a, b: torch.ldexp(a, b),
    "float_power": lambda a, b: torch.float_power(a, b),
    "isclose": lambda a, b: torch.isclose(a, b),
    "isin": lambda a, b: torch.isin(a, b),
}
TORCH |= {name: _of(getattr(torch, name)) for name in (*SHARED, "atan2", "xlogy", "ge")}
NUMPY: dict[str, Function] = SIGNS | {
    "where": lambda a, b: np.where(a > 0, a, b),
    "concatenate": lambda a, b: np.concatenate([a, b]),
}
NUMPY |= {name: _of(getattr(np, name)) for name in (*SHARED, "arctan2")}
ONE: dict[str, Function] = {
    "any": lambda a: a.any(),
    "all along": lambda a: a.all(1),
    "sum": lambda a: a.sum(),
    "prod": lambda a: a.prod(1),
    "largest": lambda a: a.max(),
    "exp": lambda a: torch.exp(a),
    "count_nonzero": lambda a: torch.count_nonzero(a),
    "trapezoid": lambda a: torch.trapezoid(a),
    "hardtanh": lambda a: torch.nn.functional.hardtanh(a, 0.5, 2.5),
    "addr": lambda a: torch.addr(a, a[0], a[0]),
    "signbit": lambda a: torch.signbit(a),
    "abs": lambda a: abs(a),
    "negative": lambda a: -a,
    "rounded": lambda a: torch.floor(a),
    "square": lambda a: torch.square(a),
    "turned over": lambda a: torch.logical_not(a),
    "inverse": lambda a: 1 / a,
}


def asked(functions: Mapping[str, Function], *operands: Any) -> dict[str, str]:
    """The dtypes of all results that there are, by the function's name."""
    found: dict[str, str] = {}
    for name, function in functions.items():
        try:
            result = function(*operands)
        except REFUSALS:
            continue
        found[name] = str(result.dtype).removeprefix("torch.")
    return found


class _AskedError(Exception):
    """Ends a function that was traced for its questions alone."""


def compared(functions: Mapping[str, Function], *operands: Any) -> tuple[int, int]:
    """Hold results of traced tensors to those of the library; how many there are.

    Returns:
        How many functions the library takes, and how many of these are traced.
    """
    kinds = torch.Tensor | np.ndarray
    traced = [i for i, x in enumerate(operands) if isinstance(x, kinds)]
    answers: dict[str, str] = {}

    def program(*tensors: Any) -> Any:
        given = list(operands)
        for place, tensor in zip(traced, tensors, strict=True):
            given[place] = tensor
        answers.update(asked(functions, *given))
        # What caught a refusal is no program.
        raise _AskedError

    with pytest.raises(_AskedError):
        mirage.kernel(program).trace(*(operands[i] for i in traced))
    expected = asked(functions, *operands)
    common = answers.keys() & expected.keys()
    assert {n: answers[n] for n in common} == {n: expected[n] for n in common}
    return len(expected), len(common)


def _tensors(dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.tensor([[1, 2, 3], [1, 1, 2]])
    return wide.to(getattr(torch, dtype)), torch.tensor(2).to(getattr(torch, dtype))


def _arrays(dtype: str) -> tuple[Any, Any]:
    return np.array([[1, 2, 3], [1, 1, 2]]).astype(dtype), np.array(2).astype(dtype)


KINDS = ("+", "/", "**", "<", "&", "where", "xlogy", "hypot", "new_ones", "add alpha")


def counted(
    functions: Mapping[str, Function],
    made: Callable[[str], tuple[Any, Any]],
    dtype: str,
    numbers: Sequence[Any],
) -> float:
    """Compare over all formats of the other operand; the share that is traced."""
    few = {n: f for n, f in functions.items() if n in KINDS}
    wide, single = made(dtype)
    counts: list[tuple[int, int]] = []
    for other in OF_TORCH if made is _tensors else OF_NUMPY:
        tensor, number = made(other)
        counts.append(compared(functions, wide, tensor))
        counts += [compared(few, wide, number), compared(few, single, tensor)]
    for number in numbers:
        counts += [compared(few, wide, number), compared(few, number, wide)]
    possible, traced = map(sum, zip(*counts, strict=True))
    return traced / possible


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", OF_TORCH)
def test_dtypes_of_results_are_pytorchs(dtype: str) -> None:
    assert counted(TORCH, _tensors, dtype, PYTHON) > 0.85
    compared(ONE, _tensors(dtype)[0])


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", OF_NUMPY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_dtypes_of_results_are_numpys(dtype: str) -> None:
    own = [np.dtype(d).type(2) for d in OF_NUMPY]
    assert counted(NUMPY, _arrays, dtype, [*PYTHON, *own]) > 0.7


def test_values_follow_their_dtypes() -> None:
    """Where a conversion was missing, numbers were wrong and not only formats."""
    x, half = np.float32([[0.1, 0.7]]), np.float64(1 / 3)
    found = mirage.kernel(lambda x: x * half, effort="none")(x)
    np.testing.assert_array_equal(found, x * half)
    flags, signs = torch.tensor([True, False]), torch.tensor([3, -4], dtype=torch.int8)

    def program(flags: Any, signs: Any) -> Any:
        return (
            torch.add(signs, flags, alpha=2),
            torch.add(flags, flags, alpha=2),
            torch.cat([signs, flags]),
            flags.new_full((2,), 2) & flags,
        )

    results = mirage.kernel(program, effort="none")(flags, signs)
    for one, other in zip(results, program(flags, signs), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    levels = torch.tensor([0, 5, 200], dtype=torch.uint8)
    found = mirage.kernel(lambda x: x.any(), effort="none")(levels)
    assert found.dtype == torch.uint8
    assert found == levels.any()


def test_signs_of_what_is_no_number() -> None:
    x = torch.tensor([1.0, -2.0])
    found = mirage.kernel(lambda x: torch.copysign(x, float("nan")), effort="none")(x)
    assert torch.equal(found, torch.copysign(x, float("nan")))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 1e39 / 1e39,
        lambda x: x > 1e39,
        lambda x: x.clamp(max=1e300),
        lambda x: x + torch.full((3,), 1e300, dtype=torch.float64),
        lambda x: x + 1e-50,
        lambda x: x.masked_fill(x > 0, torch.finfo(x.dtype).min),
    ],
)
def test_constants_that_f32_does_not_hold_are_refused_beside_f64(function: Any) -> None:
    x = torch.ones(2, 3, dtype=torch.float64)
    with pytest.raises(UnsupportedError, match="range of f32"):
        mirage.kernel(function)(x)


def test_constants_of_f64_are_precise() -> None:
    x = torch.randn(2, 3, dtype=torch.float64)
    functions: list[Function] = [
        lambda x: x * (1 / 3) + 1e30,
        lambda x: x.clamp(max=0.1) - 0.0,
        lambda x: torch.logsumexp(x, -1),
        lambda x: x.masked_fill(x > 0, -torch.inf).softmax(-1),
    ]
    for function in functions:
        expected = function(x)
        same = mirage.kernel(function)(x).isclose(expected, rtol=1e-14, equal_nan=True)
        assert same.all()
