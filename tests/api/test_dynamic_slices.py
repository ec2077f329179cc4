"""Parts of dynamic dims: where they lie, and how long they are, extents tell."""

# Names of dims in annotations are no names of types.
# ruff: noqa: F821, UP037

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.api.kernel import Executables
from mirage_dsl.core.settings import INTERPRET
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.maps import with_symbolic
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.verify.verifier import verify

F = Callable[[Any], Any]
LENGTHS = (2, 5, 16, 13)


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    with INTERPRET.scope(value=True):
        yield


def kernel_of(function: F, **options: Any) -> mirage.Kernel:
    def sliced(x: mirage.f32["t", 8]) -> Any:
        return function(x)

    return mirage.kernel(dynamic=("t",), **options)(sliced)


def same(kernel: mirage.Kernel, function: F, t: int) -> None:
    x = torch.randn(t, 8)
    found, expected = kernel(x), function(x)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def causal(x: Any) -> Any:
    keep = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril()
    return (x @ x.T).masked_fill(~keep, -1e9).softmax(-1) @ x


def prefixes(x: Any) -> Any:
    t = x.shape[0]
    return (torch.arange(t)[:, None] >= torch.arange(t)).float() @ x


def written(x: Any) -> Any:
    y = x.clone()
    y[1:] = x[:-1] * 2
    y[-1] += 1
    return y


def last_of_causal(x: Any) -> Any:
    t = x.shape[0]
    keep = (torch.arange(t)[:, None] >= torch.arange(t))[-2:]
    return (x[-2:] @ x.T).masked_fill(~keep, -1e9).softmax(-1) @ x


SLICED: dict[str, F] = {
    "first": lambda x: x[0] * 2,
    "last": lambda x: x[-1] * 2,
    "head": lambda x: x[:3].exp(),
    "tail": lambda x: x[-3:].sum(0),
    "all but the first": lambda x: torch.softmax(x[1:], -1),
    "up to an extent": lambda x: x[: x.shape[0] - 1] + x[1 : x.shape[0]],
    "an element by an extent": lambda x: x[x.shape[0] - 1] + x[x.shape[0] - 2],
    "beyond": lambda x: x[: x.shape[0] + 3] * 2,
    "neighbours": lambda x: torch.diff(x, dim=0),
    "of a product": lambda x: (x @ x[:2].T)[1:].sum(0),
    "of a slice": lambda x: x[1:][:-1][-2:].sum(0) + x[0],
    "rolled": lambda x: torch.roll(x, 1, 0) + torch.roll(x, (-2, 3), (0, 1)),
    "reversed": lambda x: x.flip(0).cumsum(0).flip(0),
    "padded": lambda x: torch.nn.functional.pad(x, (0, 0, 1, 0))[:-1] - x,
    "windows": lambda x: sum(
        torch.nn.functional.pad(x, (0, 0, 2, 0))[i : x.shape[0] + i] * (i + 1)
        for i in range(3)
    ),
    "shifted": lambda x: x - torch.nn.functional.pad(x, (0, 0, 1, -1)),
    "scanned": lambda x: x[1:].cumsum(0) * x[:-1],
    "the mean": lambda x: x[1:].sum(0) / x[1:].shape[0],
    "positions": lambda x: torch.arange(x.shape[0])[1:].float()[:, None] * x[1:],
    "positions alone": lambda x: torch.arange(x.shape[0])[1:].float(),
    "positions from the end": lambda x: torch.arange(x.shape[0])[-2:].float(),
    "a triangle": causal,
    "rows of a triangle": last_of_causal,
    "a square": lambda x: torch.ones(x.shape[0], x.shape[0]).sum(0)[:, None] * x,
    "masks of positions alone": prefixes,
    "a write": written,
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", SLICED)
def test_as_pytorch_at_several_extents(name: str) -> None:
    function = SLICED[name]
    kernel = kernel_of(function, effort="quick", budget_seconds=2)
    for t in LENGTHS:
        same(kernel, function, t)


@pytest.mark.parametrize("name", SLICED)
def test_programs_are_texts_and_right_at_each_extent(name: str) -> None:
    program = kernel_of(SLICED[name]).trace(mirage.spec((16, 8), "float32"))
    assert check(program) == []
    assert parse(str(program)) == program
    for t in LENGTHS[1:]:
        x = torch.randn(t, 8)
        (found,) = evaluate_numpy(program.with_extents({"t": t}), x.numpy())
        np.testing.assert_allclose(found, SLICED[name](x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("t", [1, 2, 3])
def test_where_a_slice_does_not_fit_it_means_what_it_means_to_pytorch(t: int) -> None:
    kernel = kernel_of(lambda x: x[-4:] * 2, effort="none")
    for extent in (8, t, 8):
        same(kernel, lambda x: x[-4:] * 2, extent)
    bound = kernel.bind(torch.randn(8, 8))
    with pytest.raises(mirage.ShapeError, match=f"where the extent is {t}") as error:
        bound(torch.randn(t, 8))
    assert error.value.location is not None


def test_an_element_that_is_not_there_is_none_at_any_call() -> None:
    kernel = kernel_of(lambda x: x[3] * 2, effort="none")
    same(kernel, lambda x: x[3] * 2, 4)
    with pytest.raises(mirage.ShapeError, match="index 3 of axis 0"):
        kernel(torch.randn(3, 8))


def test_extents_share_a_kernel() -> None:
    """Where the elements begin and how many they are is computed at each call."""
    program = kernel_of(lambda x: x[1:] * 2 + x[-1]).trace(
        mirage.spec((16, 8), "float32")
    )
    graph = parse(
        """
        mirage 1
        mugraph sliced(x: f32[t, m]) -> f32[k, m] where t = 16, m = 8 {
          rest: f32[k, m] = slice x dim(t) start(1) stop(0) to(k)
          last: f32[n, m] = slice x dim(t) start(-1) stop(0) to(n)
          y = block grid(k / 4) {
            a = load rest[k/grid, m]
            b = load last[n, m]
            c = sum(b, n)
            d = a * 2 + c
            store y: f32[k/grid, m] = d
          }
          return y
        }
        """
    )
    assert check(graph) == []
    assert verify(graph, program.with_extents({"t": 16, "k": 15})).ok
    made = Executables(program, graph)
    run = {t: made.make([(t, 8)], interpret=True) for t in (16, 15, 9, 2)}
    assert run[15] is run[9] is run[2]
    assert run[9].graph.extent_of["k"] is None
    for t, executable in run.items():
        x = torch.randn(t, 8)
        torch.testing.assert_close(executable(x)[0], x[1:] * 2 + x[-1])


def test_a_join_by_positions_serves_other_extents(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing in the μGraph says how long the dim is, but the program does."""

    def padded(x: Any) -> Any:
        return torch.nn.functional.pad(x, (0, 0, 2, 1)).cumsum(0)

    kernel = kernel_of(padded, effort="quick", budget_seconds=2)
    bound = kernel.bind(torch.randn(100, 8))
    best = bound.search().best.mugraph
    assert best.blocks
    assert best.indices
    for t in (100, 97, 112, 16, 13):
        same(kernel, padded, t)
    assert "library kernels" not in caplog.text
    longer = kernel.bind(torch.randn(109, 8))
    assert longer.use(best).ok
    torch.testing.assert_close(longer(torch.ones(109, 8)), padded(torch.ones(109, 8)))


def test_a_slice_from_the_other_end_is_another_function() -> None:
    text = """
    mirage 1
    mugraph sliced(x: f32[t, m]) -> f32[k, m] where t = 16, m = 8 {{
      y: f32[k, m] = slice x dim(t) start({}) stop({}) to(k)
      z = y * 2
      return z
    }}
    """
    right, same, wrong = (parse(text.format(*b)) for b in ((1, 0), (-15, 16), (0, -1)))
    assert verify(same, right).equivalent
    assert not verify(wrong, right).equivalent
    assert with_symbolic(right, ["t"]).extent_of["k"] is None
    assert [d.rule for d in check(right.with_extents({"t": 1, "k": 0}))] != []


REFUSED: dict[str, tuple[F, str]] = {
    "a half": (lambda x: x[: x.shape[0] // 2], "has no number while tracing"),
    "a step": (lambda x: x[::2], "take elements at positions"),
    "both ends": (lambda x: x[-4:2], "take elements at positions"),
    "chunks": (lambda x: x.chunk(2)[0], "slice it by numbers"),
    "parts": (lambda x: x.split(2)[0], "slice it by numbers"),
    "merged": (lambda x: x.reshape(-1)[1:], "before it is reshaped"),
    "longer than itself": (lambda x: x[1:] + x, "not as long"),
    "two slices": (lambda x: x[1:] + x[2:], "not as long"),
    "at its end": (lambda x: x[x.shape[0]], "that is its extent, or beyond"),
    "no extent": (
        lambda x: torch.ones(x[1:].shape[0], 8).sum(0) * x.sum(0),
        "no tensor of the results has",
    ),
    "elements of nothing": (
        lambda x: x[:0][torch.arange(x.shape[0])],
        "it has none",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_had_is_refused_with_the_line(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(mirage.MirageError, match=message) as error:
        kernel_of(function).trace(mirage.spec((16, 8), "float32"))
    assert error.value.location is not None
    assert error.value.location.file == __file__


def test_rows_that_were_merged_measure_nothing() -> None:
    def joined(x: mirage.f32["t", 8]) -> Any:
        both = torch.cat([torch.relu(x).reshape(-1), x[0, :3]])
        return both[: x.shape[0]]

    with pytest.raises(mirage.MirageError, match="that is split into parts of 8"):
        mirage.kernel(dynamic=("t",))(joined).trace(mirage.spec((16, 8), "float32"))


def test_another_axis_is_no_bound() -> None:
    def other(x: mirage.f32["t", 8], y: mirage.f32["s", 8]) -> Any:
        return x[: y.shape[0] - 1] * 2

    specs = mirage.spec((16, 8), "float32"), mirage.spec((12, 8), "float32")
    with pytest.raises(mirage.TraceError, match="in a slice of that dim"):
        mirage.kernel(dynamic=("t", "s"))(other).trace(*specs)
