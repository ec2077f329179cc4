"""New elements at positions that are data: `index_copy`, `scatter`, `x[index] = y`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.base import overlaps, stored_over
from mirage_dsl.backends.triton.lowering.emit import plan
from mirage_dsl.backends.triton.lowering.kernel import Variant
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import compile_kernel, compile_only
from mirage_dsl.core.errors import MirageError, ShapeError
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from tests.end_to_end.tracing import traced

Function = Callable[..., Any]
SEEDS = range(20)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def unique(high: int, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(high, generator=generator)[:count]


def assigned(x: Any, index: Any, value: Any) -> Any:
    y = x.clone()
    y[index] = value
    return y


def columns(x: Any, index: Any, value: Any) -> Any:
    y = x * 1
    y[:, index] = value
    return y


def changed(x: Any, index: Any, value: Any) -> Any:
    y = x * 1
    y.index_copy_(0, index, value)
    y.scatter_(0, index[None, :1].expand(1, 16), 0.5)
    return y + 1


X, INDEX, ROWS = normal(12, 16), unique(12, 5), normal(5, 16)
EACH = torch.stack([unique(12, 3, seed) for seed in range(16)], 1)
CACHE, NEW = normal(2, 12, 3, 8), normal(2, 1, 3, 8)
PAGES = normal(4, 5, 6, 8)
EACH_TWO = torch.stack([unique(5, 2, seed) for seed in range(4)])
CASES: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "rows": (lambda x, i, v: torch.index_copy(x, 0, i, v), [X, INDEX, ROWS]),
    "columns": (
        lambda x, i, v: x.index_copy(1, i, v),
        [X, unique(16, 5), normal(12, 5)],
    ),
    "one row": (lambda x, i, v: x.index_copy(0, i, v), [X, INDEX[:1], ROWS[:1]]),
    "a number": (lambda x, i: x.index_fill(0, i, 2.5), [X, INDEX]),
    "an assignment": (assigned, [X, INDEX.int(), ROWS]),
    "from the end": (assigned, [X, INDEX - 12, ROWS]),
    "of columns": (columns, [X, unique(16, 5), normal(12, 5)]),
    "at a position": (assigned, [X, torch.tensor(7), normal(16)]),
    "in place": (changed, [X, INDEX, ROWS]),
    "index_put": (lambda x, i, v: x.index_put((i,), v), [X, INDEX, ROWS]),
    "index_put, added": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        [X, INDEX, ROWS],
    ),
    "scatter": (lambda x, i, v: x.scatter(0, i, v), [X, EACH, normal(3, 16)]),
    "scatter of more": (lambda x, i, v: x.scatter(0, i, v), [X, EACH, normal(4, 16)]),
    "scatter a number": (lambda x, i: torch.scatter(x, 0, i, 3.0), [X, EACH]),
    "a cache": (
        lambda c, k, p: c.index_copy(1, p, k),
        [CACHE, NEW, torch.tensor([9])],
    ),
    "beside what reads it": (
        lambda c, k, p: ((c.index_copy(1, p, k) * c).sum(1), c.index_copy(1, p, k)),
        [CACHE, NEW, torch.tensor([9])],
    ),
}


def stored_at(*index: Any) -> Function:
    """Assigns at an index in which numbers stand for arguments."""

    def assigned_there(x: Any, value: Any, *given: Any) -> Any:
        parts = (given[i] if isinstance(i, int) else i for i in index)
        y = x.clone()
        y[tuple(p() if callable(p) else p for p in parts)] = value
        return y

    return assigned_there


SEVERAL = ["beside what reads it"]
ALL = slice(None)
CASES |= {
    "one for each of a batch": (
        stored_at(lambda: torch.arange(4), 0),
        [PAGES, normal(4, 6, 8), unique(5, 4)],
    ),
    "a number for each of a batch": (
        lambda x, i: stored_at(lambda: torch.arange(4), 0)(x, 2.5, i),
        [PAGES, unique(5, 4)],
    ),
    "behind an axis": (
        stored_at(lambda: torch.arange(4), ALL, 0),
        [PAGES, normal(4, 5, 8), unique(6, 4)],
    ),
    "of a batch and heads": (
        stored_at(lambda: torch.arange(4)[:, None], lambda: torch.arange(5), 0),
        [PAGES, normal(4, 5, 8), unique(6, 4)[:, None]],
    ),
    "two for each of a batch": (
        stored_at(lambda: torch.arange(4)[:, None], 0),
        [PAGES, normal(4, 2, 6, 8), EACH_TWO],
    ),
    "two, the same for all": (
        stored_at(lambda: torch.arange(4)[:, None], 0),
        [PAGES, normal(2, 6, 8), EACH_TWO],
    ),
    "pairs": (
        stored_at(0, 1),
        [PAGES, normal(3, 6, 8), unique(4, 3), unique(5, 3)],
    ),
    "pairs of axes apart": (
        stored_at(0, ALL, 1),
        [PAGES, normal(3, 5, 8), unique(4, 3), unique(6, 3)],
    ),
    "pairs behind an axis": (
        stored_at(ALL, 0, 1),
        [PAGES, normal(4, 3, 8), unique(5, 3), unique(6, 3)],
    ),
    "a grid": (
        stored_at(0, 1),
        [PAGES, normal(2, 3, 6, 8), unique(4, 2)[:, None], unique(5, 3) - 5],
    ),
    "the diagonal": (
        stored_at(lambda: torch.arange(4), lambda: torch.arange(4)),
        [PAGES, normal(4, 6, 8)],
    ),
    "all of two axes": (
        stored_at(lambda: torch.arange(4)[:, None], lambda: torch.arange(5)),
        [PAGES, normal(4, 5, 6, 8)],
    ),
    "triples": (
        stored_at(0, 1, 2),
        [PAGES, normal(3, 8), unique(4, 3), unique(5, 3), unique(6, 3)],
    ),
    "a single position, an axis, and pairs": (
        stored_at(0, ALL, 1, 2),
        [PAGES, normal(5, 3), torch.tensor(2), unique(6, 3), unique(8, 3)],
    ),
    "a single position beside an axis more": (
        stored_at(0, None, 1, 2),
        [
            PAGES,
            normal(2, 1, 8),
            torch.tensor([1, 2]),
            torch.tensor([3, 4]),
            torch.tensor(2),
        ],
    ),
    "fewer than a batch": (
        stored_at(lambda: torch.arange(3), 0),
        [PAGES, normal(3, 6, 8), unique(5, 3)],
    ),
}


INTEGERS = torch.arange(12)
NUMBERS: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "a fraction": (lambda x, i: x.index_fill(0, i, -2.5), [INTEGERS, INDEX]),
    "scattered": (lambda x, i: x.scatter(0, i, 2.5), [INTEGERS, INDEX]),
    "truth": (lambda x, i: x.index_fill(0, i, 2), [INTEGERS > 5, INDEX]),
    "of a tensor": (
        lambda x, i, v: x.index_fill(0, i, v),
        [X.half(), INDEX, torch.tensor(1 / 3)],
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_takes_the_dtype_of_what_it_is_stored_to(name: str) -> None:
    function, tensors = NUMBERS[name]
    found, expected = mirage.kernel(function)(*tensors), function(*tensors)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


def test_extents_that_have_no_number() -> None:
    rows, index = mirage.spec(("n", 16), "float32"), mirage.spec((5,), "int64")
    program = mirage.kernel(CASES["rows"][0]).trace(
        mirage.spec((12, "n"), "float32"), index, mirage.spec((5, "n"), "float32")
    )
    found = TritonExecutable(program, interpret=True)(X, INDEX, ROWS)[0]
    torch.testing.assert_close(found, X.index_copy(0, INDEX, ROWS))
    losses = mirage.kernel(torch.nn.functional.cross_entropy).trace(
        rows, mirage.spec(("n",), "int64")
    )
    labels = INDEX.repeat(3)[:12]
    (loss,) = TritonExecutable(losses, interpret=True)(X, labels)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(X, labels))


def test_pairs_of_a_dynamic_dim() -> None:
    shapes = [(8, 16), ("m",), ("m",), ("m",)]
    kinds = ["f32", "i64", "i64", "f32"]
    pairs = zip(shapes, kinds, strict=True)
    program = mirage.kernel(lambda x, i, j, v: stored_at(0, 1)(x, v, i, j)).trace(
        *(mirage.spec(s, k) for s, k in pairs)
    )
    given = [normal(8, 16), unique(8, 5), unique(16, 5), normal(5)]
    expected = given[0].clone()
    expected[given[1], given[2]] = given[3]
    (found,) = evaluate_numpy(program, *(t.numpy() for t in given))
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str) -> None:
    function, tensors = CASES[name]
    found, expected = mirage.kernel(function)(*tensors), function(*tensors)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", [n for n in CASES if "a single position" not in n])
def test_numpy_arrays_as_pytorch(name: str) -> None:
    function, tensors = CASES[name]
    found = mirage.kernel(function).reference(*(t.numpy() for t in tensors))
    expected = function(*tensors)
    both = zip(found, expected, strict=True) if name in SEVERAL else [(found, expected)]
    for one, other in both:
        np.testing.assert_allclose(one, other, rtol=1e-6)


def negatives(x: Any) -> Any:
    """Pairs of two views of a batch, but those of one with itself."""
    own = torch.arange(8).view(-1, 1)
    return x.repeat(2, 2) * torch.scatter(torch.ones(8, 8), 1, own, 0)


REPEATED: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "positions": (negatives, [normal(4, 4)]),
    "data": (
        lambda x, i, v: x.index_fill(0, i, 2.5) * v.repeat(3, 1),
        [X, INDEX, normal(4, 16)],
    ),
}


@pytest.mark.parametrize("name", REPEATED)
def test_along_an_axis_of_which_others_make_several_dims(name: str) -> None:
    function, tensors = REPEATED[name]
    program, expected = traced(function, tensors), function(*tensors)
    (found,) = TritonExecutable(program, interpret=True)(*tensors)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mirage.kernel(function)(*tensors), expected)


PLACED_BY_KERNELS = [
    "rows",
    "of columns",
    "scatter",
    "a cache",
    "one for each of a batch",
    "two for each of a batch",
    "a grid",
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", PLACED_BY_KERNELS)
def test_generated_kernels_do_it(name: str) -> None:
    function, tensors = CASES[name]
    program = traced(function, tensors)
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    assert all(n.is_view for n in best.mugraph.applies)
    assert all(r.spills == 0 for r in compile_only(best.mugraph, "sm_90"))
    found = TritonExecutable(best.mugraph, interpret=True)(*tensors)[0]
    torch.testing.assert_close(found, function(*tensors))


def copied(cache: Any, rows: Any) -> Any:
    made = cache.clone()
    made[:, 4:7].copy_(rows)
    return made


def slotted(pages: Any, rows: Any, slots: Any) -> Any:
    made = pages.clone()
    made.view(-1, 3, 8)[slots] = rows
    return made


def in_a_loop(cache: Any, rows: Any) -> Any:
    made = cache.clone()
    for at in range(3):
        made[:, 2 * at + 1] = rows[:, at]
    return made


def put(cache: Any, position: Any, row: Any) -> Any:
    made = cache.clone()
    made[:, position] = row
    return made


VALUES = normal(2, 12, 3, 8) * 3
AT = torch.tensor([9])
CACHES: dict[str, tuple[Function, list[torch.Tensor], int]] = {
    "a slice": (lambda c, k, p: c.index_copy(1, p, k), [CACHE, NEW, AT], 1),
    "a row": (lambda c, k, p: put(c, p, k), [CACHE, NEW[:, 0], AT[0]], 1),
    "from the end": (lambda c, k, p: put(c, p, k), [CACHE, NEW[:, 0], AT[0] - 12], 1),
    "computed": (
        lambda c, k, p: c.index_copy(1, p, torch.tanh(k) * 2),
        [CACHE, NEW, AT],
        1,
    ),
    "a number": (lambda c, p: c.index_fill(1, p, 0.5), [CACHE, AT], 1),
    "keys and values": (
        lambda c, v, k, w, p: (c.index_copy(1, p, k), v.index_copy(1, p, w)),
        [CACHE, VALUES, NEW, NEW * 2, AT],
        2,
    ),
    "several": (
        lambda c, k, p: c.index_copy(1, p, k),
        [CACHE, normal(2, 3, 3, 8), unique(12, 3)],
        1,
    ),
    "all but some": (
        lambda c, m, k: torch.where(m, c, torch.tanh(k) * 2 + 1),
        [CACHE, normal(2, 12, 3, 8) > 0, normal(2, 12, 3, 8)],
        1,
    ),
    "at a number": (lambda c, k: put(c, 9, k), [CACHE, NEW[:, 0]], 1),
    "rows at numbers": (
        lambda c, k: put(c, slice(3, 6), torch.tanh(k)),
        [CACHE, normal(2, 3, 3, 8)],
        1,
    ),
    "the first rows": (
        lambda c, k: put(c, slice(2), k),
        [CACHE, NEW.repeat(1, 2, 1, 1)],
        1,
    ),
    "the last rows": (
        lambda c, k: put(c, slice(-2, None), k),
        [CACHE, NEW.repeat(1, 2, 1, 1)],
        1,
    ),
    "copied to a slice": (copied, [CACHE, normal(2, 3, 3, 8)], 1),
    "joined": (
        lambda c, k: torch.cat([c[:, :4], k, c[:, 5:]], 1),
        [CACHE, NEW],
        1,
    ),
    "two positions": (
        lambda c, k, p, q: c.index_copy(1, p, k).index_copy(1, q, k * 2),
        [CACHE, NEW, AT, AT - 4],
        1,
    ),
    "one position twice": (
        lambda c, k, p, q: c.index_copy(1, p, k).index_copy(1, q, k * 2),
        [CACHE, NEW, AT, AT],
        1,
    ),
    "a position and one far behind": (
        lambda c, k, p: c.index_copy(1, p, k).index_copy(1, p + 9, k * 2),
        [CACHE, NEW, AT - 8],
        1,
    ),
    "behind, ahead, and anywhere": (
        lambda c, k, p, q: put(put(put(c, p + 5, k), p - 4, k * 2), q, k * 3),
        [CACHE, NEW[:, 0], AT[0] - 4, AT[0] - 8],
        1,
    ),
    "two numbers": (
        lambda c, k: put(put(c, 2, k), 7, k * 2),
        [CACHE, NEW[:, 0]],
        1,
    ),
    "rows in a loop": (in_a_loop, [normal(2, 48, 3, 8), normal(2, 3, 3, 8)], 1),
    "a number and a position": (
        lambda c, k, p: put(put(c, 2, k), p, k * 2),
        [CACHE, NEW[:, 0], AT[0]],
        1,
    ),
    "keys and values at a number": (
        lambda c, v, k, w: (put(c, 3, k), put(v, 3, w)),
        [CACHE, VALUES, NEW[:, 0], NEW[:, 0] * 2],
        2,
    ),
    "behind a position": (
        lambda c, k, p: c.index_copy(1, p + 1, k),
        [CACHE, NEW, AT],
        1,
    ),
    "the last of lengths": (
        lambda c, k, p: c.index_copy(1, p - 1, k),
        [CACHE, NEW, AT],
        1,
    ),
    "in a ring": (lambda c, k, p: put(c, p % 12, k), [CACHE, NEW[:, 0], AT[0] + 7], 1),
    "slots in pages": (
        slotted,
        [normal(6, 4, 3, 8), NEW[:, 0], torch.tensor([9, 22])],
        1,
    ),
}
"""What changes a cache, its arguments, and how many of these are caches."""
EVERYWHERE = {"several", "all but some", "slots in pages"}
"""Those of which all blocks may change something."""


def between_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements, with others between them."""
    wider = torch.full([2 * n for n in tensor.shape], 7.0)
    part = wider[tuple(slice(n) for n in tensor.shape)]
    return part.copy_(tensor)


@cache
def generated(name: str) -> list[KernelGraph]:
    """Some of the μGraphs that a search finds for an update, with blocks in them."""
    program = traced(*CACHES[name][:2])
    found = mirage.superoptimize(program, effort="quick", use_cache=False)
    return [c.mugraph for c in found.candidates[:3] if c.mugraph.blocks]


@pytest.mark.parametrize("seed", range(6))
def test_places_that_a_mask_chooses_are_inside_at_small_sizes(seed: int) -> None:
    """Three rows at places 4 to 6: wherever these come, there are as many rows."""
    name = "copied to a slice"
    program = traced(*CACHES[name][:2])
    assert mirage.verify(generated(name)[0], program, seed=seed).ok


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CACHES)
def test_a_cache_is_changed_where_it_is(name: str) -> None:
    function, tensors, count = CACHES[name]
    expected = function(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    graphs = generated(name)
    assert graphs
    for graph in graphs:
        run = TritonExecutable(graph, interpret=True)
        for place in (torch.clone, between_gaps):
            given = [place(t) for t in tensors[:count]]
            made = run(*given, *tensors[count:], out=given)
            for own, result, wanted in zip(given, made, expected, strict=True):
                assert result is own
                torch.testing.assert_close(own, wanted)
        # Elsewhere all elements are stored.
        out = [torch.full_like(t, 5.0) for t in expected]
        run(*tensors, out=out)
        torch.testing.assert_close(tuple(out), expected)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CACHES)
def test_no_more_than_what_changes_is_read_and_stored(name: str) -> None:
    _, tensors, count = CACHES[name]
    graph, caches = generated(name)[0], tensors[:count]
    over = stored_over(graph, overlaps(caches, caches), caches, caches)
    assert over is not None
    assert len(over) == count
    made = plan(graph, Variant(out=True, over=over))
    last, old = made.kernels[-1], {graph.inputs[at].name for at in range(count)}
    assert old.isdisjoint(p.source for p in last.params if p.kind == "tensor")
    assert "copy_(" not in made.source
    blocks, before = (
        [prod(map(int, k.grid)) for k in p.kernels] for p in (made, plan(graph))
    )
    assert (blocks[-1] < before[-1]) is (name not in EVERYWHERE)
    for kernel in made.kernels:
        compile_kernel(made, kernel, 90)
    whole = plan(graph, Variant(out=True)).kernels[-1]
    assert old <= {p.source for p in whole.params if p.kind == "tensor"}


TAKEN = """mirage 1
mugraph taken(old: f32[n, h], new: f32[p, h], at: i64[n], some: bool[n])
    -> f32[n, h] where n = 40, p = 5, h = 16 {
  y = block grid(n / 16) {
    chosen = load some[n/grid]
    place = load at[n/grid]
    rows = load new[p, h]
    found = gather rows, place dim(p)
    stays = load old[n/grid, h]
    both = where chosen, found, stays
    store y: f32[n/grid, h] = both
  }
  return y
}
"""


def test_new_rows_are_loaded_only_where_they_are_placed() -> None:
    graph, old, new = parse(TAKEN), normal(40, 16), normal(5, 16) + 3
    at, some = torch.arange(40) % 5, torch.arange(40) % 7 == 2
    expected = torch.where(some[:, None], new[at], old)
    given = old.clone()
    TritonExecutable(graph, interpret=True)(given, new, at, some, out=[given])
    torch.testing.assert_close(given, expected)
    made = plan(graph)
    (load,) = (line for line in made.source.splitlines() if "tl.load(new" in line)
    assert "(chosen != 0)[:, None]" in load
    compile_kernel(made, made.kernels[0], 90)


def test_a_result_may_lie_anywhere_beside_its_argument() -> None:
    program = traced(lambda x: x.softmax(-1), [normal(4, 16)])
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    run = TritonExecutable(best.mugraph, interpret=True)
    # What is prepared for one distance is no answer for another.
    for behind in (0, 1, -1, 0, 2, -2):
        memory = normal(8, 16)
        x, out = memory[2:6], memory[2 + behind : 6 + behind]
        expected = x.softmax(-1)
        run(x, out=[out])
        torch.testing.assert_close(out, expected)


def test_a_position_outside_is_an_error() -> None:
    with pytest.raises(ShapeError, match="of extent 12; expected -12 to 11"):
        mirage.kernel(CASES["rows"][0])(X, INDEX + 8, ROWS)


REFUSED: dict[str, Function] = {
    "what meets is divided": lambda x, i, v: x.scatter(
        0, i[:, None].expand(5, 16), v, reduce="divide"
    ),
    "an index of floats": lambda x, i, v: x.index_copy(0, v[:, 0] + i, v),
    "too few slices": lambda x, i, v: x.index_copy(0, i, v[:3]),
    "shorter slices": lambda x, i, v: x.index_copy(0, i, v[:, :1]),
    "a fill of many": lambda x, i, v: x.index_fill(0, i, v[0]),
    "a mask of bytes": lambda x, i, v: assigned(x, i.to(torch.uint8), v),
    "a choice by bytes": lambda x, i, v: x[i.to(torch.uint8)] + v,
    "put by bytes": lambda x, i, v: x.index_put((i.to(torch.uint8),), v),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_where(name: str) -> None:
    with pytest.raises(MirageError) as error:
        mirage.kernel(REFUSED[name])(X, INDEX, ROWS)
    assert error.value.location is not None


# -- What must not be accepted -------------------------------------------------------

WRONG: dict[str, Function] = {
    "the next row": lambda x, i, v: x.index_copy(0, (i + 1) % 12, v),
    "another slice": lambda x, i, v: x.index_copy(0, i, v.flip(0)),
    "nothing": lambda x, i, v: x + 0 * v[i],
    "from the end": lambda x, i, v: x.index_copy(0, -i - 1, v),
    "the other axis": lambda x, i, v: x.index_copy(1, i, v.T),
    "the old one": lambda x, i, v: v.index_copy(0, i, x),
}


def _square(function: Function) -> KernelGraph:
    given = [mirage.spec((12, 12), "float32")] * 2
    return mirage.kernel(function).trace(
        given[0], mirage.spec((12,), "int64"), given[1]
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_place_is_never_accepted(name: str) -> None:
    right, wrong = _square(CASES["rows"][0]), _square(WRONG[name])
    for seed in SEEDS:
        found = mirage.verify(wrong, right, seed=seed, stability=False)
        assert not found.equivalent, seed


MISPLACED: dict[str, tuple[Function, Function]] = {
    "not behind": (lambda c, k, p: put(c, p + 1, k), lambda c, k, p: put(c, p, k)),
    "two behind": (lambda c, k, p: put(c, p + 1, k), lambda c, k, p: put(c, p + 2, k)),
    "no ring": (lambda c, k, p: put(c, p % 12, k), lambda c, k, p: put(c, p, k)),
    "a shorter ring": (
        lambda c, k, p: put(c, p % 12, k),
        lambda c, k, p: put(c, p % 11, k),
    ),
    "another number": (lambda c, k, _p: put(c, 9, k), lambda c, k, _p: put(c, 8, k)),
    "a position": (lambda c, k, _p: put(c, 9, k), lambda c, k, p: put(c, p, k)),
    "rows ahead": (
        lambda c, k, _p: put(c, slice(3, 6), k[:, None]),
        lambda c, k, _p: put(c, slice(2, 5), k[:, None]),
    ),
    "a row more": (
        lambda c, k, _p: put(c, slice(3, 6), k[:, None]),
        lambda c, k, _p: put(c, slice(3, 7), k[:, None]),
    ),
    "the other way": (
        lambda c, k, _p: put(c, slice(0, 3), k.permute(0, 2, 1)[:, :3, :, None]),
        lambda c, k, _p: put(
            c, slice(0, 3), k.permute(0, 2, 1)[:, :3].flip(1)[..., None]
        ),
    ),
    "in another order": (
        lambda c, k, p: put(put(c, 9, k), p, k * 2),
        lambda c, k, p: put(put(c, p, k * 2), 9, k),
    ),
    "not as far behind": (
        lambda c, k, p: put(put(c, p, k), p + 9, k * 2),
        lambda c, k, p: put(put(c, p, k), p + 8, k * 2),
    ),
    "the first instead": (
        lambda c, k, p: put(put(c, p, k), p + 9, k * 2),
        lambda c, k, p: put(put(c, p + 9, k), p, k * 2),
    ),
    "none behind": (
        lambda c, k, p: put(put(c, p, k), p + 9, k * 2),
        lambda c, k, p: put(c, p, k),
    ),
    "exchanged": (
        lambda c, k, _p: put(put(c, 2, k), 7, k * 2),
        lambda c, k, _p: put(put(c, 7, k), 2, k * 2),
    ),
}
"""Updates of a cache, each with another one that is not the same."""


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", MISPLACED)
def test_an_update_elsewhere_is_never_accepted(name: str) -> None:
    right, wrong = (traced(f, [CACHE, NEW[:, 0], AT[0]]) for f in MISPLACED[name])
    assert mirage.verify(right, right, stability=False).equivalent
    for seed in SEEDS[:6]:
        found = mirage.verify(wrong, right, seed=seed, stability=False)
        assert not found.equivalent, seed


OUTSIDE: dict[str, Callable[[Any, Any], Any]] = {
    "embedding": lambda x, at: torch.nn.functional.embedding(at, x),
    "row": lambda x, at: x[at],
    "gather": lambda x, at: torch.gather(x, 0, at[:, None]),
    "scatter": lambda x, at: x.scatter(0, at[:, None], x),
    "index_copy": lambda x, at: x.index_copy(0, at, x),
    "index_add": lambda x, at: x.index_add(0, at, x),
    "scatter_add": lambda x, at: x.scatter_add(0, at[:, None], x),
    "scatter_reduce": lambda x, at: x.scatter_reduce(0, at[:, None], x, "amax"),
    "cross_entropy": lambda x, at: torch.nn.functional.cross_entropy(x.T, at[:4]),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_outside_names_the_line(name: str) -> None:
    """The reference refuses what eager refuses, where the user wrote it."""
    function, x = OUTSIDE[name], torch.randn(6, 4)
    inside, outside = (torch.tensor([0, 3, 1, last, 2, 4]) for last in (5, 6))
    kernel = mirage.kernel(function)
    torch.testing.assert_close(kernel(x, inside), function(x, inside))
    with pytest.raises((IndexError, RuntimeError)):
        function(x, outside)
    with pytest.raises(ShapeError, match="of a dim of extent 6; expected") as error:
        kernel(x, outside)
    location = error.value.location
    assert location is not None
    assert f'"{name}": lambda' in location.text
