"""Masks made of positions, down the whole road: traced, searched, verified, run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.settings import INTERPRET
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check as check_graph
from mirage_dsl.ir.graph import Apply, BlockGraph, KernelGraph, LoopBound, Settled
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.walk import map_blocks
from mirage_dsl.rewrite.loops import settle_masks, skip_tiles
from mirage_dsl.search.driver import search
from mirage_dsl.search.sizes import choose_sizes
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.check import check as check_tiles
from mirage_dsl.tile.program import Loop, Positions
from mirage_dsl.tile.text import parse_all, to_text
from mirage_dsl.verify.verifier import verify
from tests.backends.running import check

torch = pytest.importorskip("torch")
F = torch.nn.functional

B, N, M, D = 2, 24, 24, 16
HEADS = [(B, N, D), (B, M, D), (B, M, D)]


def softmax(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25 + bias, -1) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def grouped(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def window(q: Any, k: Any, v: Any) -> Any:
    i = torch.arange(q.shape[-2], device=q.device)[:, None]
    j = torch.arange(k.shape[-2], device=q.device)[None, :]
    near = (j <= i) & (i - j < 5)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=near)


def alibi(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    i = torch.arange(q.shape[-2])
    distance = i[None, :] - i[:, None]
    bias = distance * slopes[:, None, None]
    triangle = torch.triu(torch.full((q.shape[-2], k.shape[-2]), float("-inf")), 1)
    return softmax(q, k, v, bias + triangle)


def prefix(q: Any, k: Any, v: Any) -> Any:
    i, j = torch.arange(N).view(-1, 1), torch.arange(M).view(1, -1)
    seen = (j <= i) | (j < 7)
    logits = (q @ k.mT * 0.25).masked_fill(~seen, float("-inf"))
    return logits.softmax(-1) @ v


def documents(q: Any, k: Any, v: Any, ids: Any) -> Any:
    mask = torch.tril(torch.ones(N, M, dtype=torch.bool))
    mask = mask & (ids[:, None] == ids[None, :])
    return F.scaled_dot_product_attention(q, k, v, mask)


def blocks(q: Any, k: Any, v: Any) -> Any:
    i = torch.arange(N).to(torch.int32)[:, None]
    same = i // 5 == torch.arange(M, dtype=torch.int32) // 5
    return F.scaled_dot_product_attention(q, k, v, same)


def as_a_model_has_it(q: Any, k: Any, v: Any) -> Any:
    buffer = torch.tril(torch.ones(64, 64)).view(1, 64, 64)
    logits = q @ k.transpose(-2, -1) * 0.25
    seen = buffer[:, : q.shape[-2], : k.shape[-2]]
    return F.softmax(logits.masked_fill(seen == 0, float("-inf")), dim=-1) @ v


def after_a_cache(q: Any, k: Any, v: Any) -> Any:
    i = torch.arange(8, 8 + q.shape[-2])
    seen = torch.arange(k.shape[-2]) <= i.unsqueeze(-1)
    return softmax(q, k, v, torch.where(seen, 0.0, float("-inf")))


SLOPES, IDS = [(B,)], [(N,)]
LATE = [(B, 16, D), (B, M, D), (B, M, D)]
WIDE = [(1, 4, N, D), (1, 2, M, D), (1, 2, M, D)]
PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "causal": (causal, HEADS),
    "fewer queries": (causal, LATE),
    "fewer keys": (causal, [(B, N, D), (B, 16, D), (B, 16, D)]),
    "grouped": (grouped, WIDE),
    "window": (window, HEADS),
    "alibi": (alibi, HEADS + SLOPES),
    "prefix": (prefix, HEADS),
    "documents": (documents, HEADS + IDS),
    "numbered documents": (documents, HEADS + IDS),
    "blocks": (blocks, HEADS),
    "as a model has it": (as_a_model_has_it, HEADS),
    "after a cache": (after_a_cache, LATE),
}


def arguments(shapes: list[tuple[int, ...]]) -> list[Any]:
    torch.manual_seed(0)
    drawn = [torch.randn(s) for s in shapes]
    return [torch.round(x * 2).abs() if x.ndim == 1 else x for x in drawn]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_masks_cost_no_kernel(name: str) -> None:
    function, shapes = PROGRAMS[name]
    given = arguments(shapes)
    if name == "numbered documents":
        given[-1] = given[-1].long()
    kernel = mirage.kernel(function)
    expected = function(*given)
    torch.testing.assert_close(kernel.reference(*given), expected, rtol=1e-5, atol=1e-5)
    program = kernel.trace(*(mirage.spec(tuple(x.shape), x.dtype) for x in given))
    assert mirage.parse(str(program)) == program
    found = search(program, H100, k=3, budget_seconds=20)
    best = found[0].mugraph
    assert not any(isinstance(n, Apply) and not n.is_view for n in best.nodes)
    assert mirage.parse(str(best)) == best
    (result,) = check(best, given)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_constructors_as_pytorch() -> None:
    def function(x: Any) -> tuple[Any, ...]:
        n, m = x.shape
        i = torch.arange(1, 2 * n + 1, 2, device=x.device)
        grid = i[:, None] - torch.arange(m)
        return (
            x + torch.eye(n, m),
            torch.triu(x, -1),
            x.tril(2),
            x * torch.arange(m),
            x + torch.where(grid > 0, grid, 0),
            torch.where(grid[1:, 2:] == 3, x[1:, 2:], -1.0),
            x * (i / 2)[:, None],
            torch.maximum(x, torch.zeros(n, m) + torch.tensor(0.5)),
            x + (i[2] + i[:, None].float().sqrt()),
            x + (i.to(torch.int32) // 2 % 3)[:, None],
            torch.where(grid.long() < 2, x, grid),
            torch.zeros(n, m, dtype=torch.int32) + torch.arange(m, dtype=torch.int32),
        )

    x = torch.randn(5, 7)
    for found, right in zip(
        mirage.kernel(function).reference(x), function(x), strict=True
    ):
        assert found.dtype == right.dtype
        torch.testing.assert_close(found, right)


def test_constructors_of_numpy() -> None:
    def function(x: Any) -> Any:
        i = np.arange(x.shape[0], like=x)
        return np.where(i[:, None] >= i[None, :], x, 0) + np.tril(x, -1)

    x = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    right = np.where(np.arange(6)[:, None] >= np.arange(6), x, 0) + np.tril(x, -1)
    np.testing.assert_allclose(mirage.kernel(function).reference(x), right, rtol=1e-6)


# -- Verification ----------------------------------------------------------------------

PROGRAM = """
mirage 1
mugraph masked(q: f16[n, h], k: f16[d, h], v: f16[d, p]) -> f16[n, p]
where n = 2048, h = 64, d = 2048, p = 64 {
  j = index d
  i = index n
  s = matmul(q, k) over(h)
  far = less_equal(j + 1024, i)
  w = where(j <= i, where(far, -inf, s), -inf)
  top = rowshift w over(d)
  e = exp(w - top)
  y = matmul(e, v) over(d)
  l = sum e over(d)
  o = y / or_one(l)
  return o
}
"""
CANDIDATE = """
mirage 1
mugraph masked(q: f16[n, h], k: f16[d, h], v: f16[d, p]) -> f16[n, p]
where n = 2048, h = 64, d = 2048, p = 64 {
  j = index d
  i = index n
  features = index h
  o = block grid(n / 128) loop(d / 64) {
    qt = load q[n/grid, h]
    it = load i[n/grid]
    kt = load k[d/loop, h]
    vt = load v[d/loop, p]
    jt = load j[d/loop]
    s = matmul(qt, kt) over(h)
    far = less_equal(jt + 1024, it)
    near = jt <= it
    w = where(near, where(far, -inf, s), -inf)
    t = max w over(d)
    top = running max t
    e = exp(w - top)
    e16 = cast e dtype(f16)
    y = matmul(e16, vt) over(d)
    ya = accumulate y rescale top
    l = sum e over(d)
    la = accumulate l rescale top
    o = ya / or_one(la)
    store o: f16[n/grid, p] = o
  }
  return o
}
"""
MUTANTS = {
    "strict": ("near = jt <= it", "near = jt < it"),
    "swapped": ("near = jt <= it", "near = it <= jt"),
    "one more": ("near = jt <= it", "near = jt <= it + 1"),
    "one less": ("near = jt <= it", "near = jt + 1 <= it"),
    "shifted by the tile": ("near = jt <= it", "near = jt <= it + 128"),
    "window one longer": ("jt + 1024", "jt + 1025"),
    "window one shorter": ("jt + 1024", "jt + 1023"),
    "window not strict": ("less_equal(jt", "less(jt"),
    "no window": ("where(far, -inf, s)", "s"),
    "no triangle": ("where(near, where(far, -inf, s), -inf)", "where(far, -inf, s)"),
    "another dim": (
        "near = jt <= it",
        "f = load features[h]\n    g = max f over(h)\n    near = jt <= it * 0 + g",
    ),
    "0 for -inf": ("where(far, -inf, s), -inf)", "where(far, -inf, s), 0)"),
}


def parsed(text: str) -> KernelGraph:
    return mirage.parse(text.lstrip())


def test_a_mask_is_verified() -> None:
    found = verify(parsed(CANDIDATE), parsed(PROGRAM))
    assert found.equivalent, str(found)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MUTANTS)
def test_no_wrong_mask_is_accepted(name: str) -> None:
    before, after = MUTANTS[name]
    assert before in CANDIDATE
    text = CANDIDATE.replace(before, after)
    candidate = parsed(text)
    program = parsed(PROGRAM)
    assert not any(
        verify(candidate, program, seed=seed, stability=False).equivalent
        for seed in range(20)
    )


# -- Iterations that are left out ------------------------------------------------------


def skipped() -> KernelGraph:
    found = skip_tiles(parsed(CANDIDATE))
    assert found is not None
    return found


def test_masked_iterations_are_left_out() -> None:
    found = skipped()
    assert "loop(d / 64) while(d >= n - 1023, d <= n)" in str(found)
    assert mirage.parse(str(found)) == found
    assert verify(found, parsed(PROGRAM)).equivalent
    before, after = (estimate(g, H100).flops for g in (parsed(CANDIDATE), found))
    # Rows 1024 and later see 1024 keys, those before 512 in the mean, and some more.
    assert 0.375 < after / before < 0.45
    (tiles,) = programs(found)
    assert parse_all(to_text(tiles)) == (tiles,)
    assert canonical_hash(found) != canonical_hash(parsed(CANDIDATE))


def test_the_longest_blocks_start_first() -> None:
    """The grid's bounded dim is its last one, and is counted down if work grows."""
    heads = (
        CANDIDATE.replace("[n, h]", "[m, n, h]")
        .replace("[d, h]", "[m, d, h]")
        .replace("[d, p]", "[m, d, p]")
        .replace("[n, p]", "[m, n, p]")
        .replace("where n", "where m = 3, n")
        .replace("[n/grid,", "[m/grid, n/grid,")
        .replace("[d/loop,", "[m/grid, d/loop,")
        .replace("grid(n / 128)", "grid(n / 128, m / 1)")
        .replace("where(far, -inf, s)", "s")
        .replace("    far = less_equal(jt + 1024, it)\n", "")
    )
    found = skip_tiles(parsed(heads))
    assert found is not None
    assert "grid(m / 1, n / 128) loop(d / 64) while(d <= n)" in str(found)
    lines = [line.strip() for line in emit(found).split("\n")]
    assert "m_id = tl.program_id(0)" in lines
    assert "n_id = tl.num_programs(1) - 1 - tl.program_id(1)" in lines
    # Tensors that no cache keeps are read by blocks that run together.
    larger = {"d": 2**15, "n": 2**15, "m": 64}
    found = skip_tiles(parsed(heads).with_extents(larger))
    assert found is not None
    assert "grid(n / 128, m / 1)" in str(found)


SKIPPED_TOO_MUCH = (
    LoopBound("n", True, -1),
    LoopBound("n", True, -130),
    LoopBound("n", False, -1022),
    LoopBound("n", False, -900),
    LoopBound("n", False, 0),
)


@pytest.mark.sample(1)
@pytest.mark.parametrize("bound", SKIPPED_TOO_MUCH, ids=str)
def test_no_needed_iteration_may_be_left_out(bound: LoopBound) -> None:
    wrong = map_blocks(parsed(CANDIDATE), lambda b: replace(b, bounds=(bound,)))
    program = parsed(PROGRAM)
    assert not any(
        verify(wrong, program, seed=seed, stability=False).equivalent
        for seed in range(20)
    )


def settled() -> KernelGraph:
    found = settle_masks(skipped())
    assert found is not None
    return found


def test_iterations_that_hide_nothing_have_no_mask() -> None:
    found = settled()
    assert "settled(far == 0 if d >= n - 1023, near == 1 if d <= n)" in str(found), str(
        found
    )
    assert mirage.parse(str(found)) == found
    assert verify(found, parsed(PROGRAM)).equivalent
    (tiles,) = programs(found)
    assert parse_all(to_text(tiles)) == (tiles,)
    loops = [s for s in tiles.body if isinstance(s, Loop)]
    assert [s.part for s in loops] == ["ahead", "whole", "behind"]
    masked = [any(isinstance(s, Positions) for s in loop.body) for loop in loops]
    assert masked == [True, False, True]
    assert canonical_hash(found) != canonical_hash(skipped())
    # Half of the iterations, and fewer, do without two comparisons and two choices.
    assert estimate(found, H100).flops < estimate(skipped(), H100).flops


NOT_SETTLED = {
    "one more": Settled("near", True, LoopBound("n", True, 1)),
    "many more": Settled("near", True, LoopBound("n", True, 64)),
    "the other number": Settled("near", False, LoopBound("n", True)),
    "the other side": Settled("near", True, LoopBound("n", False)),
    "window one more": Settled("far", False, LoopBound("n", False, -1024)),
    "window much more": Settled("far", False, LoopBound("n", False, -1100)),
    "window the other number": Settled("far", True, LoopBound("n", False, -1023)),
    "mixed up": Settled("far", False, LoopBound("n", True)),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NOT_SETTLED)
def test_no_mask_that_hides_something_is_settled(name: str) -> None:
    wrong = map_blocks(
        skipped(), lambda block: replace(block, settled=(NOT_SETTLED[name],))
    )
    program = parsed(PROGRAM)
    assert not any(
        verify(wrong, program, seed=seed, stability=False).equivalent
        for seed in range(20)
    )


def test_fewer_iterations_than_may_do_without_a_mask() -> None:
    fewer = (
        Settled("near", True, LoopBound("n", True, -1)),
        Settled("far", False, LoopBound("n", False, -1000)),
    )
    found = map_blocks(skipped(), lambda block: replace(block, settled=fewer))
    assert verify(found, parsed(PROGRAM)).equivalent


WRONG_PARTS = {
    "masks left out behind": ("behind", "whole"),
    "the whole part twice": ("whole", "behind"),
}


@pytest.mark.parametrize("name", WRONG_PARTS)
def test_parts_of_tile_programs_are_checked(name: str) -> None:
    (tiles,) = programs(settled())
    before, after = WRONG_PARTS[name]
    text = to_text(tiles).replace(f"loop(d) {before} {{", f"loop(d) {after} {{")
    (wrong,) = parse_all(text)
    assert any(d.rule == "one_loop" for d in check_tiles(wrong))


@pytest.mark.sample(0)
@pytest.mark.parametrize("name", ["causal", "window", "alibi"])
def test_settled_masks_run(name: str) -> None:
    """At tiles of which some are whole, in the interpreter and compiled for sm_90."""
    function, shapes = PROGRAMS[name]
    large = [tuple(1024 if e == N else e for e in s) for s in shapes]
    program = mirage.kernel(function).trace(*(mirage.spec(s, "f32") for s in large))
    found = search(program, H100, k=1, budget_seconds=60, max_kernels=1)[0].mugraph
    rows = {n: 96 for n, e in program.extents if e == 1024}
    program, found = program.with_extents(rows), found.with_extents(rows)
    given = arguments([tuple(96 if e == N else e for e in s) for s in shapes])

    def resized(block: BlockGraph) -> BlockGraph:
        grid = [replace(s, tile=16 if s.dim in rows else 1) for s in block.grid]
        assert block.loop is not None
        return replace(
            block,
            grid=tuple(grid),
            loop=replace(block.loop, tile=16),
            bounds=(),
            settled=(),
        )

    skipped = skip_tiles(map_blocks(found, resized))
    assert skipped is not None
    graph = settle_masks(skipped)
    assert graph is not None
    assert verify(graph, program).equivalent
    (result,) = check(graph, given)
    torch.testing.assert_close(result, function(*given), rtol=1e-4, atol=1e-4)
    assert compile_only(graph)


def test_a_loop_may_visit_more_than_it_needs() -> None:
    more = (LoopBound("n", True, 5), LoopBound("n", False, -1024))
    found = map_blocks(parsed(CANDIDATE), lambda b: replace(b, bounds=more))
    assert verify(found, parsed(PROGRAM)).equivalent


def test_the_search_leaves_tiles_out() -> None:
    kernel = mirage.kernel(causal)
    program = kernel.trace(*[mirage.spec((32, 1024, 64), "float16")] * 3)
    found = search(program, H100, k=2, budget_seconds=60)
    assert any(b.bounds for b in found[0].mugraph.blocks)
    assert len(found[0].mugraph.nodes) == 1


def test_sizes_are_chosen_for_the_iterations_that_are_left() -> None:
    """Not for all of them, of which some are left out then."""
    kernel = mirage.kernel(window)
    program = kernel.trace(*[mirage.spec((2, 1024, 16), "float16")] * 3)
    found = search(program, H100, k=1, budget_seconds=60, max_kernels=1)[0]
    graph = map_blocks(
        found.mugraph, lambda block: replace(block, bounds=(), settled=())
    )
    extents = derived_extents(graph, graph.extent_of)
    (sized,) = choose_sizes(
        graph.blocks[0], kernel_types(graph), extents, hardware=H100, keep=1
    )
    late = skip_tiles(map_blocks(graph, lambda _: sized.block))
    assert late is not None
    assert found.cost.microseconds < estimate(late, H100).microseconds


# -- Formats of positions --------------------------------------------------------------

SHIFTED = """
mirage 1
mugraph shifted(x: f32[n], ids: i64[n]) -> f32[n] where n = 96 {
  i = index n
  y = block grid(n / 32) {
    xt = load x[n/grid]
    it = load i[n/grid]
    idt = load ids[n/grid]
    far = it * 3 + 1000
    kept = where(far <= it + 1100, xt, 0)
    a = BEHIND
    store y: f32[n/grid] = kept + a
  }
  return y
}
"""


def formats(text: str, rows: int = 96) -> dict[str, str]:
    graph = parsed(text).with_extents({"n": rows})
    assert verify(graph, graph).equivalent
    (tiles,) = programs(graph)
    assert not check_tiles(tiles)
    return {n: t.dtype.name for n, t in tiles.tiles.items() if "it" in n or n == "far"}


def test_positions_that_fit_are_counted_in_32_bits() -> None:
    alone = SHIFTED.replace("BEHIND", "to_f32 idt")
    assert formats(alone)["it"] == formats(alone)["far"] == "i32"
    # Three times as far does not fit; nor is anything known of ids.
    large = formats(alone, 2**30 - 32)
    assert large["it"] == large["far"] == "i64"
    beside = SHIFTED.replace("BEHIND", "to_f32(it - idt)")
    assert formats(beside)["it"] == formats(beside)["far"] == "i64"
    ids = torch.arange(96) % 7
    x = torch.randn(96)
    for text in (alone, beside):
        graph = parsed(text)
        i = torch.arange(96)
        kept = torch.where(i * 3 + 1000 <= i + 1100, x, 0)
        (result,) = check(graph, [x, ids])
        added = ids if text is alone else i - ids
        torch.testing.assert_close(result, kept + added)


# -- What all rows see -----------------------------------------------------------------


def with_prefix(text: str) -> str:
    """The same with 700 positions that all rows see, and no window."""
    changes = {
        "far = less_equal(j + 1024, i)": "start = j < 700",
        "far = less_equal(jt + 1024, it)": "start = jt < 700",
        "(j <= i, where(far, -inf, s), -inf)": "(maximum(j <= i, start), s, -inf)",
        "(near, where(far, -inf, s), -inf)": "(maximum(near, start), s, -inf)",
    }
    for before, after in changes.items():
        text = text.replace(before, after)
    return text


PREFIX_PROGRAM, PREFIX_CANDIDATE = with_prefix(PROGRAM), with_prefix(CANDIDATE)


def test_a_prefix_is_visited_by_all() -> None:
    found = skip_tiles(parsed(PREFIX_CANDIDATE))
    assert found is not None
    assert "while(d <= n | d <= 699) {" in str(found)
    without = settle_masks(found)
    assert without is not None
    assert "while(d <= n | d <= 699) settled(near == 1 if d <= n) {" in str(without)
    for graph in (found, without):
        assert mirage.parse(str(graph)) == graph
        assert verify(graph, parsed(PREFIX_PROGRAM)).equivalent
        (tiles,) = programs(graph)
        assert parse_all(to_text(tiles)) == (tiles,)
    assert canonical_hash(found) != canonical_hash(skipped())
    small = {"n": 96, "d": 96}
    texts = (PREFIX_PROGRAM, str(without).replace("d <= 699", "d <= 29"))
    program, graph = (parsed(t.replace("700", "30")).with_extents(small) for t in texts)
    graph = map_blocks(
        graph,
        lambda block: replace(
            block,
            grid=tuple(replace(s, tile=16) for s in block.grid),
            loop=replace(block.loop, tile=16) if block.loop else None,
        ),
    )
    torch.manual_seed(0)
    q, k, v = (torch.randn(96, 64).half() for _ in "qkv")
    i = torch.arange(96)
    seen = (i <= i[:, None]) | (i < 30)
    logits = (q.float() @ k.float().T).masked_fill(~seen, float("-inf"))
    assert verify(graph, program).equivalent
    (result,) = check(graph, [q, k, v])
    right = logits.softmax(-1) @ v.float()
    torch.testing.assert_close(result.float(), right, rtol=1e-2, atol=1e-2)


WRONG_PREFIXES = {
    "one less": ((LoopBound("n", True, 0, 698),), ()),
    "much less": ((LoopBound("n", True, 0, 630),), ()),
    "none": ((LoopBound("n", True),), ()),
    "the diagonal one less": ((LoopBound("n", True, -1, 699),), ()),
    "settled with it": (
        (LoopBound("n", True, 0, 699),),
        (Settled("near", True, LoopBound("n", True, 1)),),
    ),
    "the prefix taken for the diagonal": (
        (LoopBound("n", True, 0, 699),),
        (Settled("start", True, LoopBound("n", True)),),
    ),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", WRONG_PREFIXES)
def test_no_needed_iteration_of_a_prefix_may_be_left_out(name: str) -> None:
    bounds, settled = WRONG_PREFIXES[name]
    wrong = map_blocks(
        parsed(PREFIX_CANDIDATE), lambda b: replace(b, bounds=bounds, settled=settled)
    )
    program = parsed(PREFIX_PROGRAM)
    assert not any(
        verify(wrong, program, seed=seed, stability=False).equivalent
        for seed in range(20)
    )


@pytest.mark.parametrize(
    ("bounds", "settled"),
    [
        ((LoopBound("n", False, 0, 5),), ()),
        ((), (Settled("near", True, LoopBound("n", True, 0, 5)),)),
    ],
    ids=["from below", "settled"],
)
def test_a_prefix_only_widens_what_is_visited_from_above(
    bounds: tuple[LoopBound, ...], settled: tuple[Settled, ...]
) -> None:
    wrong = map_blocks(
        parsed(PREFIX_CANDIDATE), lambda b: replace(b, bounds=bounds, settled=settled)
    )
    assert check_graph(wrong)


CONSTANT: list[Any] = [
    lambda x: torch.where(torch.ones(4, dtype=torch.bool), x, 0.0),
    lambda x: torch.where(torch.zeros(4) > 0, x, x + 1),
    lambda x: torch.where(torch.ones(4, dtype=torch.bool), (x * 9).int(), 3),
    lambda x: x.masked_fill(torch.zeros(4, dtype=torch.bool), 1.0),
]


@pytest.mark.parametrize("function", CONSTANT)
@pytest.mark.parametrize("effort", ["none", "quick"])
def test_a_condition_may_be_a_constant(function: Any, effort: Any) -> None:
    x = torch.randn(3, 4)
    with INTERPRET.scope(value=True):
        assert torch.equal(mirage.kernel(effort=effort)(function)(x), function(x))
