"""Small sizes: enough iterations, different dims, consistent slices and joins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import Scalar, f16
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import grid_parts, iterations
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.walk import map_nodes
from mirage_dsl.rewrite.windows import with_windows
from mirage_dsl.verify.sizes import made_of_positions, shrink
from mirage_dsl.verify.verifier import verify
from tests.verify import graphs


def _id(pair: tuple[graphs.Maker, graphs.Maker]) -> str:
    return f"{pair[0].__name__}-{pair[1].__name__}"


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("pair", graphs.RIGHT, ids=_id)
def test_every_split_has_three_parts(
    pair: tuple[graphs.Maker, graphs.Maker], ragged: bool
) -> None:
    small = shrink(pair[1](), pair[0](), ragged=ragged, seed=0)
    assert not check(small.candidate)
    extents = {n: e for n, e in small.candidate.extents if e is not None}
    for block in small.candidate.blocks:
        assert all(n >= 3 for n in grid_parts(block, extents))
        assert all(s.tile >= 2 for s in block.grid)
        if block.loop is not None:
            assert iterations(block, extents) >= 3
            assert block.loop.tile >= 2
    own = [e for n, e in small.program.extents if "#" not in n]
    assert len(set(own)) == len(own)


def _wide() -> tuple[KernelGraph, KernelGraph]:
    """The mean over three of eight axes, as a program and as a kernel."""
    names = "abcdefgh"
    extents = dict.fromkeys(names, 32)
    p: Any = KernelBuilder("wide", **extents)
    x = p.input("x", f16, ", ".join(names))
    scale = Scalar(Fraction(1), tuple((n, -1) for n in "fgh"))
    program = p.returns(p.mul(p.sum(x, over="f, g, h"), scale)).build()
    q: Any = KernelBuilder("wide", **extents)
    x = q.input("x", f16, ", ".join(names))
    with q.block(grid={"a": 8, "b": 8, "c": 8}, loop=("f", 8)) as t:
        own = "a/grid, b/grid, c/grid, d, e"
        total = t.accumulate(t.sum(t.load(x, f"{own}, f/loop, g, h"), over="f, g, h"))
        y = t.store(t.mul(total, scale), own, dtype=f16)
    return program, q.returns(y).build()


def test_wide_values_are_small_and_their_dims_differ() -> None:
    program, candidate = _wide()
    found = [shrink(candidate, program, ragged=r, seed=0).sizes for r in (False, True)]
    even, ragged = found
    assert all(math.prod(sizes.values()) < 1 << 18 for sizes in found)
    pairs = {(even[n], ragged[n]) for n in even}
    assert len(pairs) == len(even)
    assert all(even[n] != ragged[n] for n in even)
    assert verify(candidate, program).ok


@pytest.mark.parametrize("wrong", ["1/f/g/e", "1/f/g/d", "1/f/h/h", "1/a/g/h"])
def test_extents_of_wide_values_are_told_apart(wrong: str) -> None:
    program, candidate = _wide()
    text = str(candidate).replace("1/f/g/h", wrong)
    assert text != str(candidate)
    assert not verify(parse(text), program).equivalent


def test_ragged_sizes_leave_incomplete_tiles() -> None:
    small = shrink(graphs.rms_linear_fused(), graphs.rms_linear(), ragged=True, seed=0)
    block = small.candidate.blocks[0]
    assert block.loop is not None
    assert small.sizes["k"] % block.loop.tile
    assert small.sizes["n"] % block.grid[0].tile


def test_joined_dims_stay_the_sum_of_their_parts() -> None:
    small = shrink(graphs.lora_joined(), graphs.lora(), ragged=False, seed=0)
    sizes = small.sizes
    assert sizes["j"] == sizes["k"] + sizes["r"]
    assert sizes["j"] < 100


def test_inserted_dims_stay_single() -> None:
    b: Any = KernelBuilder("append", m=8, n=64, r=65)
    x, y = b.input("x", f16, "n, m"), b.input("y", f16, "m")
    row = b.insert(y, to="one")
    program = b.returns(b.concat(x, row, dims=("n", "one"), to="r"), row).build()
    sizes = shrink(program, program, ragged=False, seed=0).sizes
    assert (sizes["one"], sizes["r"]) == (1, sizes["n"] + 1)


def test_an_inserted_dim_stays_single_in_a_dim_that_is_split() -> None:
    def program(name: str) -> Any:
        b: Any = KernelBuilder(name, m=4, n=1, d=1, h=2)
        x = b.input("x", f16, "m")
        first = b.slice(x, dim="m", start=0, stop=1, to="n")
        last = b.slice(x, dim="m", start=2, stop=4, to="h")
        row = b.insert(b.sum(x, over="m"), to="d")
        return b, b.concat(first, row, last, dims=("n", "d", "h"), to="m")

    plain, joined = program("plain")
    split, whole = program("split")
    with split.block(grid={"m": 2}) as block:
        stored = block.store(block.neg(block.load(whole, "m/grid")), "m/grid")
    found = verify(
        split.returns(stored).build(), plain.returns(plain.neg(joined)).build()
    )
    assert found.equivalent


def _halves_swapped(first: tuple[int, int], second: tuple[int, int]) -> KernelGraph:
    b: Any = KernelBuilder("swap", m=8, d=64)
    x = b.input("x", f16, "m, d")
    b.extent(a=first[1] - first[0], c=second[1] - second[0], j=64)
    left = b.slice(x, dim="d", start=first[0], stop=first[1], to="a")
    right = b.slice(x, dim="d", start=second[0], stop=second[1], to="c")
    return b.returns(b.concat(right, b.neg(left), dims=("c", "a"), to="j")).build()


def test_slices_scale_with_their_dim() -> None:
    program = _halves_swapped((0, 32), (32, 64))
    small = shrink(program, program, ragged=False, seed=0)
    assert not check(small.program)
    assert small.sizes["d"] == small.sizes["a"] + small.sizes["c"] == small.sizes["j"]
    assert verify(program, program).equivalent


def test_a_slice_elsewhere_is_another_function() -> None:
    program, other = (
        _halves_swapped((0, 32), (32, 64)),
        _halves_swapped((0, 16), (16, 64)),
    )
    assert not verify(other, program).equivalent


def _windows(over: tuple[int, int] | None, ahead: int = 4) -> KernelGraph:
    """Windows of a padded image times weights; their sums, or without the padding."""
    functional: Any = pytest.importorskip("torch.nn.functional")

    def windows(x: Any, w: Any) -> Any:
        image = x.reshape(2, 56, 56)
        behind = 7 - ahead
        padded = functional.pad(image, (ahead, behind, ahead, behind))
        cut = padded.reshape(2, 9, 7, 9, 7)
        made = mirage.einsum("nhrws,rsop->nhowp", cut, w).reshape(2, 63, 63)
        made = made[:, ahead:-behind, ahead:-behind]
        return made.sum(over) if over else image + made

    specs = mirage.spec((2, 56 * 56), "f32"), mirage.spec((7, 7, 7, 7), "f32")
    return mirage.kernel(windows).trace(*specs)


@pytest.mark.parametrize("over", [None, (1, 2)])
@pytest.mark.parametrize("ragged", [False, True])
def test_products_that_are_cut_have_the_same_segments_on_both_sides(
    over: tuple[int, int] | None, ragged: bool
) -> None:
    program = _windows(over)
    for seed in range(3):
        small = shrink(program, program, ragged=ragged, seed=seed)
        assert small.candidate == small.program


def test_windows_elsewhere_are_another_function() -> None:
    program = _windows(None)
    assert verify(program, program).equivalent
    assert not verify(_windows(None, ahead=3), program).equivalent


def test_too_many_slices_are_refused_with_the_dim() -> None:
    """Dims that are products as well become no shorter."""
    graph = parse("""mirage 1
mugraph stencil(x: f16[m, k]) -> f16[a] where m = 10, k = 20, a = 199 {
  flat: f16[d] = flatten x of(m, k) to(d)
  left: f16[a] = slice flat dim(d) start(0) stop(199) to(a)
  right: f16[a] = slice flat dim(d) start(1) stop(200) to(a)
  y: f16[a] = sub right, left
  return y
}
""")
    with pytest.raises(UnsupportedError, match="slices of d"):
        shrink(graph, graph, ragged=False, seed=0)
    assert "could not decide" in verify(graph, graph).reason


def _merged(axis: str, **extents: int) -> KernelGraph:
    b: Any = KernelBuilder("merged", m=8, **extents)
    x = b.input("x", f16, f"m, ({axis})")
    names = tuple(axis.split())
    return b.returns(b.mul(x, b.sum(b.square(x), over=names))).build()


def test_a_dim_may_be_cut_into_factors() -> None:
    program = _merged("n", n=64)
    b: Any = KernelBuilder("merged", m=8, h=4, d=16)
    x = b.input("x", f16, "m, (h d)")
    with b.block(grid={"m": 2}, loop=("h", 1)) as t:
        squares = t.accumulate(t.square(t.load(x, "m/grid, (h/loop d)")))
        total = t.sum(squares, over=("h", "d"))
        y = t.store(t.mul(t.load(x, "m/grid, (h d)"), total), "m/grid, (h d)")
    candidate = b.returns(y).build()
    small = shrink(candidate, program, ragged=False, seed=0)
    assert small.sizes["n"] == small.sizes["h"] * small.sizes["d"]
    assert verify(candidate, program).equivalent


def _total(h: int, d: int) -> KernelGraph:
    b: Any = KernelBuilder("total", m=8, h=h, d=d)
    x = b.input("x", f16, "m, (h d)")
    return b.returns(b.sum(b.square(x), over=("h", "d"))).build()


def test_an_axis_cut_otherwise_is_undecided() -> None:
    found = verify(_total(4, 16), _total(8, 8))
    assert not found.equivalent
    assert "could not decide" in found.reason
    assert "another interface" not in found.reason


@pytest.mark.parametrize("pair", graphs.RIGHT, ids=_id)
def test_ragged_sizes_are_other_ones(pair: tuple[graphs.Maker, graphs.Maker]) -> None:
    program, candidate = pair[0](), pair[1]()
    even, ragged = (
        shrink(candidate, program, ragged=r, seed=0).sizes for r in (False, True)
    )
    inserted = {n for n, e in candidate.extents + program.extents if e == 1}
    parts = {n for n in even if "#" in n}
    assert all(even[n] != ragged[n] for n in even.keys() - inserted - parts)


@pytest.mark.parametrize("seed", range(12))
def test_a_number_is_no_extent(seed: int) -> None:
    """Neither where both are the same at some size."""
    text = """
    mirage 1

    mugraph f(x: f32[m, k]) -> f32[m] where m = 2, k = 8 {{
      squares: f32[m, k] = square x
      moved: f32[m, k] = add squares, {}
      roots: f32[m, k] = sqrt moved
      y: f32[m] = sum roots over(k)
      return y
    }}
    """
    certificate = verify(text.format("1/k"), text.format("1/3"), seed=seed)
    assert certificate.verdict == "different"


CUT_AND_SPLIT = """mirage 1

mugraph f(x: f32[m, (k c)]) -> f32[m, a], f32[m, b], f32[m, k]
    where m = 8, k = {0}, c = 128, a = {1}, b = 3 {{
  w = flatten x of(k, c) to(n)
  a_n = slice w dim(n) start(3) stop({2}) to(a)
  b_n = slice w dim(n) start(0) stop(3) to(b)
  s = sum x over(c)
  return a_n, b_n, s
}}
"""


@pytest.mark.parametrize("rows", [8, 1 << 13, 1 << 26])
def test_a_dim_that_is_cut_and_split_is_small(rows: int) -> None:
    """However long it is: no part of it goes into its extents."""
    graph = parse(CUT_AND_SPLIT.format(rows, 128 * rows - 8, 128 * rows - 5))
    for ragged in (False, True):
        sizes = dict(shrink(graph, graph, ragged=ragged, seed=1).program.extents)
        assert sizes["n"] == sizes["k"] * sizes["c"] < 64
        assert sizes["n"] > sizes["a"] + sizes["b"]
    assert verify(graph, graph).ok


# -- Slices that overlap ---------------------------------------------------------------

WINDOWS: dict[str, Callable[[Any], Any]] = {
    "difference": lambda x: x[:, 1:] - x[:, :-1],
    "largest of five": lambda x: x.unfold(1, 5, 1).amax(-1),
    "taps far apart": lambda x: x[:, :-21] + x[:, 3:-18] * x[:, 21:],
    "turned": lambda x: torch.roll(x, 3, 1) - x,
    "ends put together": lambda x: torch.cat([x[:, -2:], x[:, 1:-1], x[:, :1]], 1) + 1,
    "sum of differences": lambda x: (x[:, 1:] - x[:, :-1]).abs().sum(-1),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_of_long_rows_are_searched_and_verified(name: str) -> None:
    """Slices that are apart by less than they are long cut a row everywhere."""
    bound = mirage.kernel(WINDOWS[name]).bind(mirage.spec((64, 4096), mirage.f32))
    found = bound.search(effort="quick", use_cache=False)
    assert any(c.mugraph.blocks for c in found)
    assert all(c.certificate is not None and c.certificate.ok for c in found)


def test_windows_that_are_inside_are_so_at_small_sizes() -> None:
    """They say more there, and no other dim grows for them to be partly outside."""

    def function(x: Any, w: Any) -> Any:
        return torch.nn.functional.conv3d(x, w).amin(2)

    x, w = (
        mirage.spec((128, 3, 24, 32, 32), "f32"),
        mirage.spec((24, 3, 3, 3, 3), "f32"),
    )
    program = with_windows(mirage.kernel(function).bind(x, w).program)
    turned = [n.result for n in program.applies if n.op.name.startswith("less")]
    assert turned
    for ragged in (False, True):
        small = shrink(program, program, ragged=ragged, seed=0).program
        for mask in turned:
            made = made_of_positions(small, mask)
            assert made is not None
            assert evaluate_numpy(made)[0].all()
        (channels,) = {small.extent_of[i.type.names[1]] for i in small.inputs}
        assert channels is not None
        assert channels < 8


STENCIL = """mirage 1
mugraph f(x: f32[m, n]) -> f32[m, h] where m = 64, n = 4096, h = 4090 {{
  a: f32[m, h] = slice x dim(n) start(0) stop(4090) to(h)
  b: f32[m, h] = slice x dim(n) start({second}) stop({end}) to(h)
  c: f32[m, h] = slice x dim(n) start(6) stop(4096) to(h)
  y = block grid(m / 8, h / 256) {{
    p: f32[m/grid, h/grid] = load {first}
    q: f32[m/grid, h/grid] = load b
    r: f32[m/grid, h/grid] = load {third}
    s: f32[m/grid, h/grid] = {op} p, q
    t: f32[m/grid, h/grid] = mul s, r
    store y: f32[m/grid, h/grid] = t
  }}
  return y
}}
"""
RIGHT = {"second": 3, "end": 4093, "first": "a", "third": "c", "op": "add"}


def test_a_stencil_is_what_it_is() -> None:
    def stencil(x: Any) -> Any:
        return (x[:, :-6] + x[:, 3:-3]) * x[:, 6:]

    program = mirage.kernel(stencil).trace(mirage.f32[(64, 4096)])
    assert verify(STENCIL.format(**RIGHT), program).ok
    wrong = ({"second": 2, "end": 4092}, {"first": "c", "third": "a"}, {"op": "sub"})
    for seed, change in itertools.product(range(5), wrong):
        made = verify(STENCIL.format(**RIGHT | change), program, seed=seed)
        assert made.verdict == "different", made


def moved_slices(graph: KernelGraph) -> Iterator[KernelGraph]:
    """The graph with one slice an element further on, or before where it was."""
    for node in graph.applies:
        attrs = dict(node.attrs)
        if "start" not in attrs:
            continue
        start, stop = node.attr("start"), node.attr("stop")
        extent = graph.extent_of[str(attrs["dim"])]
        assert isinstance(start, int)
        assert isinstance(stop, int)
        assert extent is not None
        for step in (-1, 1):
            if start + step >= 0 and stop + step <= extent:
                moved = {**attrs, "start": start + step, "stop": stop + step}
                made = replace(node, attrs=tuple(sorted(moved.items())))
                yield map_nodes(graph, lambda n, a=node, b=made: b if n is a else n)


@pytest.mark.parametrize("name", WINDOWS)
def test_no_slice_that_is_moved_is_accepted(name: str) -> None:
    program = mirage.kernel(WINDOWS[name]).trace(mirage.f32[(3, 4096)])
    x = np.random.default_rng(0).normal(size=(3, 4096))
    (exact,) = evaluate_numpy(program, x)
    count = 0
    for seed, wrong in enumerate(moved_slices(program)):
        (found,) = evaluate_numpy(wrong, x)
        assert not np.allclose(found, exact)
        made = verify(wrong, program, seed=seed, stability=False)
        assert not made.equivalent, wrong
        count += 1
    assert count >= 2


MASKED = """mirage 1

mugraph masked(
    x: f16[m, k],
    mask: bool[m, k],
    w: f16[k, n]
) -> f16[m, n] where m = 64, k = 256, n = 64 {
  y = block grid(m / 16) {
    t = load x[m/grid, k]
    c = load mask[m/grid, k]
    v = load w[k, n]
    u = where c, t, -inf
    s = rowshift u over(k)
    d = sub u, s
    e = exp d
    z = sum e over(k)
    h = cast e dtype(f16)
    p = matmul h, v over(k)
    q = div p, z
    store y: f16[m/grid, n] = q
  }
  return y
}
"""
"""A block that has rows as a whole, of which a mask hides every other element."""


@mirage.kernel
def of_masked_rows(x: Any, mask: Any, w: Any) -> Any:
    return mirage.softmax(mirage.where(mask, x, float("-inf"))) @ w


def _masked_rows() -> KernelGraph:
    x, w = mirage.spec((64, 256)), mirage.spec((256, 64))
    return of_masked_rows.trace(x, mirage.spec((64, 256), "bool"), w)


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_a_mask_of_data_may_hide_are_long(seed: int) -> None:
    """Or one of the rows is hidden as a whole, and has no value, in all trials."""
    found = verify(parse(MASKED), _masked_rows(), seed=seed)
    assert found.ok, found.reason


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("where c, t, -inf", "where c, -inf, t"),
        ("where c, t, -inf", "where c, t, 0.0"),
        ("cast e", "cast d"),
        ("sum e over(k)", "max e over(k)"),
    ],
)
def test_wrong_kernels_of_such_rows_are_refused(
    right: str, wrong: str, seed: int
) -> None:
    assert right in MASKED
    other = parse(MASKED.replace(right, wrong))
    assert not check(other)
    found = verify(other, _masked_rows(), seed=seed)
    assert not found.ok


PADDED = """mirage 1

mugraph padded(x: f32[m, t, q]) -> f32[m, g]
    where m = 8, t = 14, q = 4, v = 4, g = 63 {
  at = index g
  e: f32[m, t, q] = exp x
  f: f32[m, c] = flatten e of(t, q) to(c)
  ahead: bool[g] = less at, 1*v
  place: i64[g] = sub at, 1*v
  inside: bool[g] = less place, 1*c
  safe: i64[g] = where inside, place, 0
  first: i64[g] = where ahead, 0, safe
  picked: f32[m, g] = gather f, first dim(c)
  shown: f32[m, g] = where inside, picked, 0
  y: f32[m, g] = where ahead, 0, shown
  return y
}
"""


def test_positions_in_joined_dims_are_compared() -> None:
    """A dim that others make has no size of its own that windows could want longer."""
    program = parse(PADDED)
    half = "  d: f32[m, t, q] = add x, x\n  h: f32[m, t, q] = mul d, 0.5\n"
    right = PADDED.replace("  e:", f"{half}  e:").replace("exp x", "exp h")
    assert verify(parse(right), program).ok
    for wrong in ("1*t", "1*g"):
        moved = PADDED.replace("place, 1*c", f"place, {wrong}")
        assert not verify(parse(moved), program).ok
