"""Elements at indices that are data: embeddings, labels, block tables.

They are library kernels of a program; blocks that are found pick them themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.core.errors import (
    CheckError,
    MirageError,
    ShapeError,
    UnsupportedError,
)
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import BlockGraph, KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.walk import without_dead
from mirage_dsl.rewrite.sinking import gathers_as_kernels
from tests.end_to_end.tracing import traced

Function = Callable[..., Any]
SEEDS = range(20)


def indices(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(high)
    return torch.randint(0, high, shape, generator=generator).to(dtype)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


W, IDS = normal(50, 16), indices(50, 24)
LABELS = indices(40, 24)
LABELS[3] = -100
CASES: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "rows": (lambda w, i: (w[i], F.embedding(i, w), w.index_select(0, i)), [W, IDS]),
    "indices of two axes": (
        lambda w, i: (w[i], F.embedding(i, w) * 2),
        [W, indices(50, 3, 8, dtype=torch.int32)],
    ),
    "columns": (lambda w, i: (w[:, i], w.T[i], w[2:, i]), [W, indices(16, 7)]),
    "negative indices": (lambda w, i: w[i - 50], [W, IDS]),
    "of rank 3": (lambda x, i: (x[:, i], x[i]), [normal(5, 6, 4), indices(5, 3)]),
    "along an axis": (
        lambda x, i: (torch.gather(x, 1, i), x.gather(1, i), x.take_along_dim(i, 1)),
        [W, indices(16, 50, 5)],
    ),
    "of fewer rows": (lambda x, i: torch.gather(x, 1, i), [W, indices(16, 20, 5)]),
    "one of each row": (lambda x, i: x.take_along_dim(i, 1), [W, indices(16, 50, 1)]),
    "integers": (lambda i, j: i[j], [IDS, indices(24, 9)]),
    "by itself": (lambda i: i[i % 24], [IDS]),
    "cross entropy": (
        lambda x, y: (
            F.cross_entropy(x, y),
            F.cross_entropy(x, y, reduction="none"),
            F.cross_entropy(x, y, reduction="sum"),
        ),
        [normal(24, 40), LABELS],
    ),
    "weighted classes": (
        lambda x, y, w: (
            F.cross_entropy(x, y, w),
            F.nll_loss(x, y, w, reduction="none"),
            F.cross_entropy(x, y, w, label_smoothing=0.2),
        ),
        [normal(24, 40), LABELS, normal(40).abs()],
    ),
    "smoothed labels": (
        lambda x, y: (
            F.cross_entropy(x, y, label_smoothing=0.1),
            F.cross_entropy(x, y, label_smoothing=0.1, reduction="none"),
        ),
        [normal(24, 40), LABELS],
    ),
    "labels of each step": (
        lambda x, y: (
            F.cross_entropy(x, y),
            F.cross_entropy(x, y, label_smoothing=0.3, reduction="none"),
        ),
        [normal(3, 40, 8), LABELS.reshape(3, 8)],
    ),
    "probabilities": (
        lambda x, p, w: (
            F.cross_entropy(x, p),
            F.cross_entropy(x, p, w, reduction="sum", label_smoothing=0.1),
            F.cross_entropy(x[:, :, None], p[:, :, None], reduction="none"),
        ),
        [normal(24, 40), normal(24, 40).softmax(1), normal(40).abs()],
    ),
    "nll_loss": (
        lambda x, y: (F.nll_loss(x, y), F.nll_loss(x, y, reduction="sum")),
        [normal(24, 40), LABELS],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str) -> None:
    function, tensors = CASES[name]
    found, expected = mirage.kernel(function)(*tensors), function(*tensors)
    if not isinstance(expected, tuple):
        found, expected = (found,), (expected,)
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


# -- Indices below 0 -------------------------------------------------------------------

BELOW = torch.tensor([-1, 2, 0])
OF_ROWS = torch.tensor([[-1], [0], [2], [1], [3]])


def _written(x: Any, i: Any, s: Any) -> Any:
    y = x * 1
    y[i] = s
    return y


Below = tuple[Function, list[torch.Tensor]]
X, S = normal(5, 4), normal(3, 4)
FROM_THE_END: dict[str, Below] = {
    "x[i]": (lambda x, i: x[i], [X, BELOW]),
    "x[i] = s": (_written, [X, BELOW, S]),
    "take_along_dim": (lambda x, j: x.take_along_dim(j, 1), [X, OF_ROWS]),
    "index_fill": (lambda x, i: (x * 1).index_fill(0, i, 2.0), [X, BELOW]),
    "index_put": (lambda x, i, s: (x * 1).index_put((i,), s), [X, BELOW, S]),
}
OUTSIDE: dict[str, Below] = {
    "index_select": (lambda x, i: x.index_select(0, i), [X, BELOW]),
    "embedding": (lambda x, i: F.embedding(i, x), [X, BELOW]),
    "gather": (lambda x, j: x.gather(1, j), [X, OF_ROWS]),
    "one_hot": (lambda i: F.one_hot(i, 5), [BELOW]),
    "index_copy": (lambda x, i, s: (x * 1).index_copy(0, i, s), [X, BELOW, S]),
    "index_add": (lambda x, i, s: (x * 1).index_add(0, i, s), [X, BELOW, S]),
    "scatter": (lambda x, j: (x * 1).scatter(1, j, 1.5), [X, OF_ROWS]),
    "scatter_add": (
        lambda x, j: (x * 1).scatter_add(1, j, x[:, :1]),
        [X, OF_ROWS],
    ),
    "nll_loss": (lambda x, i: F.nll_loss(x[:3], i), [X, BELOW]),
    "cross_entropy": (lambda x, i: F.cross_entropy(x[:3], i), [X, BELOW]),
}


@pytest.mark.parametrize("name", FROM_THE_END)
def test_indices_that_count_from_the_end(name: str) -> None:
    function, tensors = FROM_THE_END[name]
    found = mirage.kernel(function)(*tensors)
    torch.testing.assert_close(found, function(*tensors))


@pytest.mark.parametrize("name", OUTSIDE)
def test_indices_below_zero_that_are_outside(name: str) -> None:
    function, tensors = OUTSIDE[name]
    kernel = mirage.kernel(function)
    for call in (function, kernel):
        with pytest.raises((IndexError, RuntimeError, ShapeError)):
            call(*tensors)
    inside = [t if t.is_floating_point() else t % 4 for t in tensors]
    torch.testing.assert_close(kernel(*inside), function(*inside))


def normed_rows(w: Any, i: Any) -> Any:
    return F.rms_norm(F.embedding(i, w), (16,))


def test_a_block_reads_nothing_for_what_is_outside() -> None:
    specs = mirage.spec((50, 16), "float32"), mirage.spec((24,), "int64")
    program = mirage.kernel(normed_rows).trace(*specs)
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    (block,) = best.mugraph.nodes
    assert isinstance(block, BlockGraph)
    around = torch.full((150, 16), float("nan"))
    around[50:100] = W
    ids = IDS.clone()
    ids[[3, 7]] = torch.tensor([-1, -50])
    (found,) = TritonExecutable(best.mugraph, interpret=True)(around[50:100], ids)
    expected = normed_rows(W, IDS)
    expected[[3, 7]] = 0.0
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


DIAGONALS: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "einsum": (lambda x: torch.einsum("ii->i", x) * 2, [normal(64, 64)]),
    "einsum of several": (lambda x: torch.einsum("bii->b", x), [normal(8, 64, 64)]),
    "diagonal": (lambda x: torch.diagonal(x, 1).exp(), [normal(64, 96)]),
    "below the main one": (lambda x: x.diagonal(-30).relu(), [normal(64, 96)]),
    "trace": (lambda x: torch.trace(x), [normal(64, 64)]),
    "multi_margin_loss": (
        lambda x, t: F.multi_margin_loss(x, t),
        [normal(32, 64), indices(64, 32)],
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", DIAGONALS)
def test_blocks_pick_diagonals(name: str) -> None:
    function, tensors = DIAGONALS[name]
    specs = [mirage.spec(tuple(t.shape), t.dtype) for t in tensors]
    program = mirage.kernel(function).trace(*specs)
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    assert all(isinstance(node, BlockGraph) for node in best.mugraph.nodes[-1:])
    (found,) = TritonExecutable(best.mugraph, interpret=True)(*tensors)
    torch.testing.assert_close(found, function(*tensors), rtol=1e-5, atol=1e-5)


INDEX_MUTANTS: dict[str, tuple[str, str]] = {
    "the row behind": ("gather w, where1", "gather w, off"),
    "the first for all": ("gather w, where1", "gather w, none"),
}


@pytest.mark.parametrize("name", INDEX_MUTANTS)
def test_another_row_is_never_accepted(name: str) -> None:
    specs = mirage.spec((50, 16), "float32"), mirage.spec((24,), "int64")
    program = mirage.kernel(normed_rows).trace(*specs)
    text, (old, new) = str(program), INDEX_MUTANTS[name]
    wrong = "  off = add where1, 1\n  none = sub where1, where1\n  gather1:"
    assert old in text
    graph = parse(text.replace(old, new).replace("  gather1:", wrong))
    for seed in SEEDS:
        assert not mirage.verify(graph, program, seed=seed, stability=False).equivalent


def test_as_numpy() -> None:
    def function(w: Any, i: Any) -> Any:
        return w[i], np.take(w, i, 0), np.take_along_axis(w, i[:, None] % 16, 1)

    w, i = normal(24, 16).numpy(), indices(24, 24).numpy()
    for one, other in zip(mirage.kernel(function)(w, i), function(w, i), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_an_index_outside_is_an_error() -> None:
    with pytest.raises(ShapeError, match="extent 50; expected -50 to 49"):
        mirage.kernel(lambda w, i: w[i])(W, IDS + 30)


REFUSED: dict[str, Function] = {
    "an index of floats": lambda w, i: torch.index_select(w, 0, i.float()),
    "fewer axes": lambda w, i: torch.gather(w, 0, i),
    "labels of another shape": lambda w, i: F.cross_entropy(w, i[:, None]),
    "an unknown reduction": lambda w, i: F.nll_loss(w[:24], i, reduction="most"),
}


MASKED: dict[str, tuple[Function, str]] = {
    "returned": (lambda w, m: w[m], "nobody knows how many there are"),
    "a function of PyTorch": (lambda w, m: torch.exp(w[m]), "nobody knows how many"),
    "an operand": (lambda w, m: w[m] @ w.T, "nobody knows how many"),
    "among slices": (lambda w, m: w[:, m], "to select by a mask"),
    "among integers": (lambda w, m: w[m, 0], "to select by a mask"),
}


@pytest.mark.parametrize("name", MASKED)
def test_elements_under_a_mask_are_refused(name: str) -> None:
    function, message = MASKED[name]
    with pytest.raises(UnsupportedError, match=message) as error:
        mirage.kernel(function)(W[:16], W[:16, 0] > 0)
    assert error.value.location is not None


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_where(name: str) -> None:
    with pytest.raises(MirageError) as error:
        mirage.kernel(REFUSED[name])(W, IDS)
    assert error.value.location is not None


def embedding_norm(w: Any, ids: Any, gain: Any) -> Any:
    return F.rms_norm(F.embedding(ids, w), (w.shape[1],), gain)


def loss(x: Any, labels: Any) -> Any:
    return F.cross_entropy(x, labels)


def paged(q: Any, k: Any, v: Any, table: Any) -> Any:
    """Attention of one query a head over the pages of a cache that a table tells."""
    rows, heads, width = q.shape
    keys = k[table].reshape(rows, -1, heads, width)
    values = v[table].reshape(rows, -1, heads, width)
    logits = torch.einsum("bhd,bshd->bhs", q, keys) * width**-0.5
    return torch.einsum("bhs,bshd->bhd", logits.softmax(-1), values)


def places(extent: Any, window: int, step: int, apart: int, around: int) -> Any:
    """Positions of the elements of windows, some of them outside."""
    count = (extent + 2 * around - apart * (window - 1) - 1) // step + 1
    firsts = torch.arange(count)[:, None] * step
    return firsts + torch.arange(window) * apart - around


def windows(x: Any) -> Any:
    """The largest elements of windows: PyTorch's `max_pool1d`."""
    at = places(x.shape[-1], 3, 2, 2, 1)
    inside = (at >= 0) & (at < x.shape[-1])
    rows = torch.where(inside, at, torch.zeros_like(at))
    return torch.where(inside, x[..., rows], -torch.inf).amax(-1)


def windows_of_planes(x: Any) -> Any:
    """The means of windows of planes: PyTorch's `avg_pool2d`."""
    h, w = x.shape[-2:]
    i = places(h, 3, 1, 1, 1)[:, :, None, None]
    j = places(w, 2, 2, 1, 0)
    inside = (i >= 0) & (i < h) & (j >= 0) & (j < w)
    at = torch.where(inside, i * w + j, torch.zeros_like(i))
    flat = x.reshape(*x.shape[:-2], -1)
    return torch.where(inside, flat[..., at], 0.0).mean((-1, -3))


SEARCHED: dict[str, tuple[Function, list[torch.Tensor], int]] = {
    "embedding and norm": (embedding_norm, [W, IDS, normal(16)], 1),
    "cross entropy of rows": (
        lambda x, y: F.cross_entropy(x, y, reduction="none"),
        [normal(24, 40), LABELS],
        1,
    ),
    "cross entropy": (loss, [normal(24, 40), LABELS], 2),
    "pages of a cache": (
        paged,
        [normal(3, 2, 16), *[normal(12, 16, 2, 16)] * 2, indices(12, 3, 4)],
        1,
    ),
    "rows of computed ones": (lambda w, i: torch.exp(w)[i], [W, IDS], 1),
    "picked twice": (lambda w, i, j: w[i] * w[j], [W, IDS, indices(49, 24)], 1),
    "by an index that is picked": (lambda w, i, j: w[i[j]] + 1, [W, IDS, IDS % 24], 1),
    "levels of floats": (
        lambda x, t: t[(x * 31).long().clamp(0, 31)],
        [normal(40, 72), normal(32)],
        1,
    ),
    "levels that are scaled": (
        lambda x, t, s: t[(x.sigmoid() * 31).long()] * s,
        [normal(40, 72), normal(32), normal(72)],
        1,
    ),
    "rows of rounded floats": (
        lambda x, t: t[(x * 4).round().long().clamp(0, 15)],
        [normal(33), normal(16, 20)],
        1,
    ),
    "rows of quotients": (lambda w, i: w[i // 2], [W, IDS], 1),
    "at pairs": (lambda x, i, j: x[i, j], [W, IDS - 25, indices(16, 24) - 8], 1),
    "at places on three axes": (
        lambda x, i, j, k: x[i, j, k] * 2,
        [normal(5, 6, 7), *(indices(n, 9) for n in (5, 6, 7))],
        1,
    ),
    "rows on a grid of places": (
        lambda x, i, j: torch.softmax(x[i[:, None], j], -1),
        [normal(5, 6, 33), indices(5, 4), indices(6, 3, dtype=torch.int32)],
        1,
    ),
    "pages at computed places": (
        lambda c, b, p: c[b[p // 16], p % 16] + 1,
        [normal(12, 16, 8), indices(12, 6), indices(96, 9)],
        1,
    ),
    "windows": (windows, [normal(4, 1000)], 1),
    "windows of planes": (windows_of_planes, [normal(3, 40, 64)], 1),
}


def test_windows_are_what_pytorch_pools() -> None:
    x = normal(3, 40, 64)
    torch.testing.assert_close(windows(x), F.max_pool1d(x, 3, 2, 1, 2))
    rows = F.pad(x, (0, 0, 1, 1))
    wanted = F.avg_pool2d(rows, (3, 2), (1, 2))
    torch.testing.assert_close(windows_of_planes(x), wanted)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SEARCHED)
def test_blocks_pick_the_elements(name: str) -> None:
    function, tensors, kernels = SEARCHED[name]
    program = traced(function, tensors)
    assert check(program) == []
    assert parse(str(program)) == program
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    assert all(n.is_view for n in best.mugraph.applies)
    assert len(best.mugraph.blocks) <= kernels
    assert parse(str(best.mugraph)) == best.mugraph
    assert all(r.spills == 0 for r in compile_only(best.mugraph, "sm_90"))
    found = TritonExecutable(best.mugraph, interpret=True)(*tensors)[0]
    torch.testing.assert_close(found, function(*tensors), rtol=1e-5, atol=1e-5)


SEVERAL: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "an index that is picked from": (
        lambda x, i, j: x.take_along_dim(i, 0)[:, j] * 2,
        [W, indices(50, 9, 16), indices(16, 12)],
    ),
    "sides of hyperplanes": (
        lambda x, w, t: t[(x @ w > 0).long()],
        [normal(24, 16), normal(16, 12), normal(2)],
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_candidates_of_any_number_of_kernels(name: str) -> None:
    function, tensors = SEVERAL[name]
    program = traced(function, tensors)
    found = mirage.superoptimize(program, effort="quick", use_cache=False)
    for candidate in found.candidates[:3]:
        assert parse(str(candidate.mugraph)) == candidate.mugraph
        got = TritonExecutable(candidate.mugraph, interpret=True)(*tensors)[0]
        torch.testing.assert_close(got, function(*tensors), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_windows_on_a_gpu() -> None:
    x = torch.randn(64, 100_001, device="cuda")
    torch.testing.assert_close(mirage.kernel(windows)(x), F.max_pool1d(x, 3, 2, 1, 2))
    planes = torch.randn(16, 250, 126, device="cuda")
    wanted = F.avg_pool2d(F.pad(planes, (0, 0, 1, 1)), (3, 2), (1, 2))
    torch.testing.assert_close(mirage.kernel(windows_of_planes)(planes), wanted)


# -- What must not be accepted -------------------------------------------------------

WRONG: dict[str, tuple[Function, Function]] = {
    "the next row": (lambda w, i: w[i], lambda w, i: w[(i + 1) % 12]),
    "another index": (lambda w, i, j: w[i] + j[0], lambda w, i, j: w[j] + i[0]),
    "the other axis": (lambda w, i: w[i], lambda w, i: w.T[i]),
    "without an index": (lambda w, i: w[i], lambda w, i: w + (i[:, None] - i).float()),
    "from the end": (lambda w, i: w[i], lambda w, i: w[-i]),
    "from the start": (lambda w, i: w[i], lambda w, i: w[abs(i)]),
    "none from the end": (lambda w, i: w[i], lambda w, i: w[torch.clamp(i, 0, 11)]),
    "of another row": (
        lambda w, i: torch.take_along_dim(w, i[:, None], 1),
        lambda w, i: torch.take_along_dim(w.T, i[:, None], 1),
    ),
    "ignored labels counted": (
        lambda w, i: F.cross_entropy(w, i, ignore_index=0),
        lambda w, i: F.cross_entropy(w, i, ignore_index=1),
    ),
}


def _square(function: Function) -> KernelGraph:
    given = [mirage.spec((12, 12), "float32"), *[mirage.spec((12,), "int64")] * 2]
    return mirage.kernel(function).trace(*given[: function.__code__.co_argcount])


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_element_is_never_accepted(name: str) -> None:
    right, wrong = map(_square, WRONG[name])
    for seed in SEEDS:
        found = mirage.verify(wrong, right, seed=seed, stability=False)
        assert not found.equivalent, seed


RIGHT: dict[str, tuple[Function, Function]] = {
    "before and after": (lambda w, i: torch.exp(w[i]), lambda w, i: torch.exp(w)[i]),
    "of an index": (lambda w, i, j: w[i][j], lambda w, i, j: w[i[j]]),
    "rows and columns": (lambda w, i: w[i].T, lambda w, i: w.T[:, i]),
    "labels": (
        lambda w, i: F.cross_entropy(w, i),
        lambda w, i: F.nll_loss(F.log_softmax(w, 1), i),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_holds_of_indices_is_accepted(name: str) -> None:
    one, other = map(_square, RIGHT[name])
    found = mirage.verify(other, one, stability=False)
    assert found.equivalent, found.reason


HEAD = """mirage 1
mugraph f(
    w: f32[v, d], i: i64[n], j: i64[n]
) -> f32[n, d] where v = 12, d = 12, n = 12 {
"""
PICKED = """  y = block grid(n / 4) {
    t = load w[v, d]
    a = load INDEX[n/grid]
    PICK
    m = mul x, x
    store y: f32[n/grid, d] = m
  }
  return y
}
"""


def picked(pick: str, index: str = "i") -> KernelGraph:
    return parse(HEAD + PICKED.replace("INDEX", index).replace("PICK", pick))


ROWS = "x = gather t, a dim(v)"
INSIDE: dict[str, tuple[str, str]] = {
    "the next row": ("s = add a, 1\n    x = gather t, s dim(v)", "i"),
    "another index": (ROWS, "j"),
    "the other axis": (
        "r = gather t, a dim(d)\n    x = rename r dims(v) to(d)",
        "i",
    ),
    "from the end": ("s = mul a, -1\n    x = gather t, s dim(v)", "i"),
    "one row for all": ("s = sub a, a\n    x = gather t, s dim(v)", "i"),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", INSIDE)
def test_a_block_that_picks_wrong_elements_is_never_accepted(name: str) -> None:
    body = "  x = gather w, i dim(v)\n  y = mul x, x\n  return y\n}\n"
    program, wrong = parse(HEAD + body), picked(*INSIDE[name])
    assert mirage.verify(picked(ROWS), program, stability=False).equivalent
    for seed in SEEDS:
        found = mirage.verify(wrong, program, seed=seed, stability=False)
        assert not found.equivalent, seed


AT_PAIRS = """mirage 1
mugraph f(w: f32[v, d], i: i64[n], j: i64[n]) -> f32[n] where v = 12, d = 15, n = 12 {
  x = gather w, i dim(v)
  y = gather x, j dim(d)
  z = mul y, 2
  return z
}
"""
OTHER_PAIRS = [
    ("mul i_at_place, 1*d", "mul i_at_place, 1*v"),
    ("mul i_at_place, 1*d", "mul i_at_place, 1"),
    ("add i_at_wide, 1*v", "add i_at_wide, 1*d"),
    ("add j_at_wide, 1*d", "add j_at_wide, 1*v"),
    ("add ahead, j_at_place", "add i_at_place, j_at_place"),
    ("less i_at_wide, 0", "less i_at_wide, 1"),
]


def _at_pairs() -> tuple[KernelGraph, KernelGraph]:
    program = parse(AT_PAIRS)
    found = gathers_as_kernels(program)
    assert found is not None
    return program, without_dead(found)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("here", "other"), OTHER_PAIRS)
def test_elements_at_other_pairs_are_never_accepted(here: str, other: str) -> None:
    program, found = _at_pairs()
    text = str(found)
    assert here in text, text
    assert mirage.verify(found, program).equivalent
    for seed in SEEDS:
        wrong = text.replace(here, other)
        assert not mirage.verify(wrong, program, seed=seed).equivalent, seed


def test_nothing_is_picked_where_one_of_a_pair_is_outside() -> None:
    _, found = _at_pairs()
    table = normal(12, 15)
    i = torch.tensor([0, 11, 12, -1, -12, -13, 3, 3, 3, 3, -13, 40])
    j = torch.tensor([0, 14, 0, -1, -15, 0, 15, -16, 14, -15, 14, 40])
    got = TritonExecutable(found, interpret=True)(table, i, j)[0]
    inside = (i >= -12) & (i < 12) & (j >= -15) & (j < 15)
    expected = torch.where(inside, 2 * table[i % 12, j % 15], 0.0)
    torch.testing.assert_close(got, expected)


def test_nothing_is_read_outside_of_what_is_picked_from() -> None:
    """An index outside gives 0 on a GPU; the elements around are NaN here."""
    graph, around = picked(ROWS), torch.full((36, 12), float("nan"))
    around[12:24] = normal(12, 12)
    table, index = around[12:24], torch.tensor([0, 11, 12, 20, -1, -12, -13, -24] * 2)
    index = index[:12]
    found = TritonExecutable(graph, interpret=True)(table, index, index)[0]
    inside = (index >= -12) & (index < 12)
    expected = torch.where(inside[:, None], table[index % 12] ** 2, 0.0)
    torch.testing.assert_close(found, expected)
    with pytest.raises(ShapeError, match="expected -12 to 11"):
        mirage.evaluate(graph, *(t.numpy() for t in (table, index, index)))


def test_graphs_that_are_not_well_formed() -> None:
    head = "mirage 1\nmugraph f(x: f32[m, k], i: {}) -> f32[n, k] "
    tail = "where m = 6, k = 4, n = 3 {{\n  y = gather x, i dim({})\n  return y\n}}"
    text = head + tail
    assert check(parse(text.format("i32[n]", "m"))) == []
    for dtype, dim, message in (
        ("f32[n]", "m", "expected integers"),
        ("i32[n, m]", "m", "the index has the dim m too"),
    ):
        with pytest.raises((CheckError, mirage.ParseError), match=message):
            parse(text.format(dtype, dim))
