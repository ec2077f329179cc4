"""Complex tensors in traced functions: rotations of pairs, as rotary embeddings are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import MirageError
from mirage_dsl.core.settings import INTERPRET
from mirage_dsl.frontend.arguments import to_complex
from mirage_dsl.ir.graph import KernelGraph

Function = Callable[..., Any]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def paired(x: Any) -> Any:
    return torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))


def rotated(x: Any, z: Any) -> Any:
    return torch.view_as_real(paired(x) * z.unsqueeze(0)).flatten(2).type_as(x)


def rotated_by(x: Any, angles: Any) -> Any:
    z = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(paired(x) * z).flatten(-2)


def rotated_back(x: Any, angles: Any) -> Any:
    z = torch.exp(1j * angles)
    return torch.view_as_real(paired(x) / 2 * z.conj()).flatten(-2)


X, ANGLES = normal(2, 8, 12), normal(8, 6, seed=1)
Z = torch.polar(ANGLES.abs(), ANGLES)
A, B = normal(4, 6, seed=2), normal(4, 6, seed=3)
CASES: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "a complex argument": (rotated, [X, Z]),
    "halves": (rotated, [X.half(), Z]),
    "a conjugate argument": (rotated, [X, Z.conj()]),
    "a transposed argument": (rotated, [X, Z.T.contiguous().T]),
    "angles": (rotated_by, [X, ANGLES]),
    "the other way": (rotated_back, [X, ANGLES]),
    "a complex result": (lambda x, z: paired(x) * z, [X, Z]),
    "a conjugate result": (lambda x, z: (paired(x) * z).conj(), [X, Z]),
    "parts": (lambda z: (z.real + 1, z.imag, z.abs(), z.angle()), [Z]),
    "sums": (lambda a, b, z: torch.complex(a, b) + z - a + 2j - 1, [A, B, A + 1j * B]),
    "negated": (lambda a, z: -z - a * z, [A, A + 1j * B]),
    "a number": (lambda z: z * (1 - 2j) + 0.5, [Z]),
    "a broadcast sum": (lambda a, z: z[0] + a, [A, Z[:4]]),
    "products of matrices": (lambda z, w: torch.view_as_real(z @ w.mT), [Z, Z.conj()]),
    "pieces": (
        lambda z: torch.stack([torch.cat([z[:3], z[:1]]), z.chunk(2)[1]]),
        [Z],
    ),
    "rows": (lambda z: [row.abs().sum() for row in z[:2]], [Z]),
    "arithmetic of formats": (lambda a, z: z * a.double(), [A, A + 1j * B]),
}


@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str) -> None:
    function, tensors = CASES[name]
    found, expected = mirage.kernel(function)(*tensors), function(*tensors)
    torch.testing.assert_close(found, expected)


LEFT_TO_LIBRARIES: dict[str, Function] = {
    "a transform": torch.fft.rfft,
    "of columns": lambda x: torch.fft.fft2(x)[:, 1:].T,
    "parts": lambda x: torch.complex(x, 1 - x).conj(),
    "angles": lambda x: torch.polar(x, x).T,
}


@pytest.mark.parametrize("name", LEFT_TO_LIBRARIES)
def test_library_kernels_may_leave_the_parts_apart(name: str) -> None:
    function = LEFT_TO_LIBRARIES[name]
    with INTERPRET.scope(value=True):
        found = mirage.kernel(effort="none")(lambda x: function(x))(A)
    torch.testing.assert_close(found, function(A))


@pytest.mark.parametrize("place", [0, 1])
def test_parts_that_do_not_lie_in_pairs_are_copied(place: int) -> None:
    # The second row of three columns begins between two pairs.
    pairs = normal(3, 3)[place:, :2]
    torch.testing.assert_close(torch.view_as_real(to_complex(pairs)), pairs)


def traced(function: Function) -> KernelGraph:
    x, angles = mirage.spec((2, 8, 12), "float32"), mirage.spec((8, 6), "float32")
    return mirage.kernel(function).trace(x, angles)


@pytest.mark.sample(1)
@pytest.mark.parametrize("function", [rotated_by, rotated_back])
def test_a_rotation_is_one_generated_kernel(function: Function) -> None:
    program = traced(function)
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    assert len(best.mugraph.blocks) == 1
    assert all(n.is_view for n in best.mugraph.applies)
    found = TritonExecutable(best.mugraph, interpret=True)(X, ANGLES)[0]
    torch.testing.assert_close(found, function(X, ANGLES))


def test_results_are_stored_where_the_caller_wants_them() -> None:
    own = torch.empty_like(Z)
    mirage.kernel(lambda z: z * 2j)(Z, out=own)
    torch.testing.assert_close(own, Z * 2j)


def test_what_is_written_to_the_pairs_is_seen() -> None:
    def written(x: Any) -> Any:
        pairs = x * 1
        z = torch.view_as_complex(pairs)
        pairs.mul_(2)
        own = torch.view_as_real(z + 1)
        return z.abs(), own

    x = normal(5, 2)
    torch.testing.assert_close(mirage.kernel(written)(x), written(x))


def test_a_complex_buffer_is_an_argument() -> None:
    class Rotary(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("z", Z, persistent=False)

        def forward(self, x: Any) -> Any:
            return rotated(x, self.z)

    module = Rotary()
    kernel = mirage.kernel(module)
    torch.testing.assert_close(kernel(X), module(X))
    module.z = Z.conj()
    torch.testing.assert_close(kernel(X), module(X))


def written_to(z: Any) -> Any:
    z *= 2
    return z


def aliased(z: Any) -> Any:
    w = torch.view_as_complex(torch.view_as_real(z) * 1)
    seen = w[:2]
    torch.view_as_real(w[:3]).mul_(2)
    return seen.abs()


REFUSED: dict[str, tuple[Function, str]] = {
    "a write": (written_to, "a write to a complex tensor cannot be traced"),
    "a part": (lambda z: z[0].__setitem__(0, 1), "a write to a complex tensor"),
    "another function": (lambda z: torch.sin(z), "torch.sin of complex tensors"),
    "another method": (lambda z: z.tanh(), "tanh of a complex tensor"),
    "a comparison": (lambda z: z == z, "a comparison of complex tensors"),
    "beside real ones": (lambda z: torch.maximum(z.real, z), "torch.maximum of"),
    "as a float": (lambda z: z.to(torch.float32), "a complex tensor as torch.float32"),
    "a quotient": (lambda z: 1 / z, "a quotient by complex numbers"),
    "pairs of a conjugate": (
        lambda z: torch.view_as_real(z.conj()),
        "view_as_real of a conjugate",
    ),
    "three parts": (
        lambda z: torch.view_as_complex(z.real[:, :3]),
        "expected a last axis of extent 2",
    ),
    "integers": (
        lambda z: torch.view_as_complex(z.real.long()),
        "expected float16, float32 or float64",
    ),
    "two formats": (
        lambda z: torch.polar(z.real.double(), z.imag),
        "expected one dtype",
    ),
    "as another tensor": (lambda z: z.to(z.real), "a complex tensor as torch.float"),
    "a power": (lambda z: z**2, "use its parts, z.real and z.imag"),
    "a power of it": (lambda z: 2**z, "use its parts, z.real and z.imag"),
    "an order": (lambda z: z < 1, "use its parts, z.real and z.imag"),
    "a rest": (lambda z: z % 2, "use its parts, z.real and z.imag"),
    "an index": (lambda z: [1, 2][z], "use its parts, z.real and z.imag"),
    "a number": (lambda z: complex(z), "use its parts, z.real and z.imag"),
    "an item": (lambda z: z[0].item(), "item of a complex tensor"),
    "random numbers": (lambda z: z.normal_(), "normal_ of a complex tensor"),
    "a method as a function": (
        lambda z: torch.Tensor.item(z[0]),
        "calls a method of torch.Tensor as a function",
    ),
    "many operands": (
        lambda z: torch.einsum("ij,ij,ij->i", z, z, z),
        "einsum of three complex tensors or more",
    ),
    "memory that may be shared": (aliased, "depends on strides"),
    "a truth": (lambda z: z if z.sum() else z + 1, "the truth of a tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_where(name: str) -> None:
    function, text = REFUSED[name]
    with pytest.raises(MirageError) as error:
        mirage.kernel(function)(Z)
    assert text in str(error.value)
    assert error.value.location is not None


def test_numpys_complex_arrays_are_refused() -> None:
    with pytest.raises(MirageError, match="argument z is complex64"):
        mirage.kernel(lambda z: z * 2)(np.ones(3, np.complex64))


# -- What must not be accepted ---------------------------------------------------------

WRONG: dict[str, Function] = {
    "the other way": lambda x, t: rotated_by(x, -t),
    "parts exchanged": lambda x, t: rotated_by(x, torch.pi / 2 - t),
    "parts of the result exchanged": lambda x, t: (
        torch.view_as_real(paired(rotated_by(x, t))).flip(-1).flatten(-2)
    ),
    "the next angle": lambda x, t: rotated_by(x, t.roll(1, 0)),
    "no products of two imaginary parts": lambda x, t: torch.view_as_real(
        torch.complex(paired(x).real * t.cos(), paired(x).imag * t.cos())
    ).flatten(-2),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_rotations_are_refused(name: str) -> None:
    program, wrong = traced(rotated_by), traced(WRONG[name])
    for seed in range(5):
        assert not mirage.verify(wrong, program, seed=seed).ok
