"""Convolutions with channels last: searched, verified and run, beside PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.hardware import H200
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.cost.explain import explain
from mirage_dsl.ir.analysis.layouts import laid_out
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.table import CHANNELS_LAST
from mirage_dsl.search.driver import search
from mirage_dsl.search.rewrites import REWRITES
from mirage_dsl.verify.verifier import verify
from tests.programs.windows import ROWS

F = torch.nn.functional
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=LAST[x.ndim])


def plain(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, None, (2, 1), 1)


def biased(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.conv2d(x, w, b, padding=1))


def twice(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return torch.tanh(F.conv2d(torch.relu(F.conv2d(x, w, b)), v)) + 1


def transposed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.sigmoid(F.conv_transpose2d(x, w, b, 2, 1, 1))


def in_space(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.conv3d(x, w, b))


def transposed_in_space(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.conv_transpose3d(x, w, b))


PROGRAMS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "plain": (plain, ((2, 5, 9, 12), (7, 5, 3, 3))),
    "biased": (biased, ((2, 5, 9, 12), (7, 5, 3, 3), (7,))),
    "one image": (biased, ((1, 5, 9, 12), (7, 5, 3, 3), (7,))),
    "one channel": (biased, ((3, 1, 9, 12), (7, 1, 3, 3), (7,))),
    "twice": (twice, ((2, 5, 9, 12), (7, 5, 3, 3), (7,), (4, 7, 2, 3))),
    "transposed": (transposed, ((2, 5, 6, 7), (5, 6, 3, 3), (6,))),
    "in space": (in_space, ((2, 3, 5, 6, 7), (4, 3, 2, 3, 2), (4,))),
    "transposed in space": (
        transposed_in_space,
        ((2, 3, 4, 3, 5), (3, 4, 2, 2, 3), (4,)),
    ),
}
SEARCHED = ("one image", "twice")


def inputs_of(name: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(s, generator=generator) for s in PROGRAMS[name][1]]


def traced(name: str, inputs: Sequence[Tensor]) -> KernelGraph:
    return mirage.kernel(PROGRAMS[name][0]).trace(*inputs)


def rewritten(graph: KernelGraph) -> KernelGraph:
    return REWRITES["channels-last"](graph)


def all_last(graph: KernelGraph) -> bool:
    return any(n.op.channels_last_of is not None for n in graph.applies) and not any(
        n.op in CHANNELS_LAST for n in graph.applies
    )


def found_last(program: KernelGraph) -> KernelGraph:
    """The best with channels last, as if convolutions were no kernels themselves."""
    with patch("mirage_dsl.search.driver.windows_given", return_value=None):
        found = search(program, H200, k=16, max_kernels=1).candidates
    best = next(c for c in found if all_last(c.mugraph))
    assert best.certificate is not None
    assert best.certificate.ok
    return best.mugraph


# -- What is found ---------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_they_compute_what_pytorch_does(name: str) -> None:
    inputs = inputs_of(name)
    program = traced(name, inputs)
    exact = PROGRAMS[name][0](*(i.double() for i in inputs))
    found = found_last(program) if name in SEARCHED else rewritten(program)
    assert verify(found, program).ok
    assert parse(str(found)) == found
    run = TritonExecutable(found, interpret=True)
    for x in (inputs[0], last(inputs[0])):
        (result,) = run(x, *inputs[1:])
        torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-5)
        assert result.is_contiguous()


def test_the_cost_decides_and_explanations_tell() -> None:
    shapes = ((128, 64, 128, 128), (128, 64, 3, 3), (128,))
    given = (mirage.spec(shape, "f32") for shape in shapes)
    program = mirage.kernel(biased).trace(*given)
    found = search(program, H200, k=4, max_kernels=1).candidates
    lies = [all_last(c.mugraph) for c in found]
    assert lies[0]
    assert False in lies, "the others are there to be measured"
    text = str(explain(found[0].mugraph, program, H200))
    for line in (
        "copies x_flat",
        "x_last lies in memory as (m), (n_h), (k)",
        "conv2d1 lies in memory as (m), (t), (u), (d)",
        "copies what lies without channels last: w 294.9 kB",
    ):
        assert line in text
    before = str(explain(program, program, H200))
    assert "copies what lies" not in before, "planes of f32 are convolved as they lie"
    given = (mirage.spec(shape, "f16") for shape in shapes)
    program = mirage.kernel(biased).trace(*given)
    before = str(explain(program, program, H200))
    assert "copies what lies without channels last: x 268.4 MB, w 147.5 kB" in before


# -- Where tensors lie -----------------------------------------------------------------


def layouts(graph: KernelGraph) -> dict[str, tuple[int, ...] | None]:
    types = laid_out(graph, kernel_types(graph), graph.extent_of)
    return {name: kind.layout for name, kind in types.items()}


def test_a_block_stores_as_the_next_convolution_reads() -> None:
    program = traced("twice", inputs_of("twice"))
    text = str(program)
    text = text.replace(
        "relu1: f32[m, d, r, a] = relu add1",
        "relu1 = block grid(m / 1) {\n"
        "    t = load add1[m/grid, d, r, a]\n    u = relu t\n"
        "    store relu1: f32[m/grid, d, r, a] = u\n  }",
    )
    found = rewritten(parse(text))
    assert len(found.blocks) == 2, text
    assert not check(found)
    lies = layouts(found)
    assert lies["conv2d1"] == lies["relu1"] == lies["conv2d2"] == (0, 2, 3, 1)
    assert lies["add1"] is None


def test_what_the_caller_gives_with_channels_last_is_not_copied() -> None:
    inputs = inputs_of("biased")
    moved = [last(inputs[0]), last(inputs[1]), inputs[2]]
    graph, other = (found_last(traced("biased", given)) for given in (moved, inputs))
    assert len(graph.blocks) == 1
    assert len(other.blocks) == 2
    assert "copies" not in str(explain(graph, graph, H200))
    assert estimate(graph, H200).bytes < estimate(other, H200).bytes
    with counted_copies() as copies:
        TritonExecutable(graph, interpret=True)(*moved)
    assert copies == []
    with counted_copies() as copies:
        TritonExecutable(graph, interpret=True)(moved[0], *inputs[1:])
    assert copies == [inputs[1].shape]


def test_views_that_are_returned_have_the_strides_of_eager() -> None:
    def part(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w)[:, 1:3]

    inputs = inputs_of("plain")
    graph = rewritten(mirage.kernel(part).trace(*inputs))
    assert all_last(graph)
    (found,) = TritonExecutable(graph, interpret=True)(*inputs)
    torch.testing.assert_close(found, part(*inputs))
    assert found.stride() == part(*inputs).stride()


def test_batches_may_be_symbolic() -> None:
    inputs = inputs_of("biased")
    graph = rewritten(mirage.kernel(biased).trace(*inputs))
    symbolic = graph.with_extents({**graph.extent_of, "m": None})
    assert symbolic.extent_of["m"] is None
    run = TritonExecutable(symbolic, interpret=True)
    for images in (1, 3):
        x = torch.randn(images, *inputs[0].shape[1:])
        torch.testing.assert_close(run(x, *inputs[1:])[0], biased(x, *inputs[1:]))


@contextmanager
def counted_copies() -> Iterator[list[torch.Size]]:
    """The shapes of 4 axes that PyTorch copies."""
    found: list[torch.Size] = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, _: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if "clone" in str(func) and args[0].ndim == 4:
                found.append(args[0].shape)
            return func(*args, **(kwargs or {}))

    with Counting():
        yield found


def test_groups_of_channels_stay() -> None:
    for name in ("conv2d", "conv1d"):
        program = ROWS[name].traced
        assert rewritten(program) == program


# -- What is wrong is refused ----------------------------------------------------------

WRONG = {
    "the copy is of another shape": ("gives(n, h)", "gives(h, n)"),
    "another padding": (
        "padding(1, 1) dilation(1, 1)",
        "padding(1, 1) dilation(2, 2)",
    ),
    "another convolution": (
        "conv2d_channels_last x_last_whole, w of(m, k, n, h) by(d, p, q, s)",
        "conv2d_channels_last x_last_whole, w of(m, k, n, h) by(d, p, s, q)",
    ),
    "not what was copied": ("x_last_t\n  }", "twice\n  }"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_refused(wrong: str) -> None:
    shapes = ((2, 5, 8, 8), (7, 5, 3, 3), (7,))
    program = mirage.kernel(dilated if "padding" in wrong else biased).trace(
        *map(torch.zeros, shapes)
    )
    right = rewritten(program)
    assert verify(right, program).ok
    old, new = WRONG[wrong]
    text = str(right)
    assert old in text
    text = text.replace(old, new)
    if new.startswith("twice"):
        text = text.replace("load x_flat\n", "load x_flat\n    twice = x_last_t * 2\n")
    assert not verify(parse(text), program).ok


def dilated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Of the shape that another dilation gives with more padding."""
    return torch.relu(F.conv2d(x, w, b, padding=1))
