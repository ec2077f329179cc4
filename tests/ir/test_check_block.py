"""One graph that breaks it, for every rule of block graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_dsl.core.errors import MirageError
from mirage_dsl.core.types import Scalar, f16, f32
from mirage_dsl.ir.builder import BlockBuilder, KernelBuilder
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    Load,
    RunningMax,
    Schedule,
    Split,
    Store,
)
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.table import OPERATORS
from tests.ir.checking import (
    KL,
    NG,
    K,
    M,
    blocked,
    only,
    with_body,
    with_node,
)


def test_block_names() -> None:
    def twice(block: BlockGraph) -> BlockGraph:
        return replace(block, nodes=(block.nodes[0], *block.nodes))

    assert "the block of y: 2 values are called xt" in only(
        blocked(twice), "unique-names"
    )
    text = only(with_node(4, Apply("e", OPERATORS["exp"], ("x",))), "defined")
    assert "x is a tensor in device memory; load x first" in text
    text = only(with_node(4, Apply("e", OPERATORS["exp"], ("q",))), "defined")
    assert "q is not defined; expected one of a, p, wt, xt" in text
    text = only(with_node(2, Apply("p", OPERATORS["exp"], ("a",))), "defined")
    assert "a is defined only later; move it up" in text


def test_grid() -> None:
    b = KernelBuilder("f", **dict.fromkeys("abcd", 4))
    with b.block(grid=dict.fromkeys("abcd", 2)) as block:
        whole = "a/grid, b/grid, c/grid, d/grid"
        y = block.store(block.load(b.input("x", f32, "a, b, c, d"), whole), whole)
    text = only(b.returns(y).unchecked(), "grid")
    assert "4 grid dims (a, b, c, d), expected at most 3" in text

    def twice(block: BlockGraph) -> BlockGraph:
        return replace(block, grid=(Split("n", 4), Split("n", 4)))

    assert "the grid splits n twice" in only(blocked(twice), "grid")


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (Schedule(num_warps=3), "num_warps(3), expected one of 1, 2, 4, 8, 16, 32"),
        (Schedule(prefetch=3), "prefetch(3), expected one of 0, 1, 2, 4, 8"),
        (Schedule(num_warps=64), "num_warps(64)"),
        (Schedule(num_warps=0), "num_warps(0)"),
        (Schedule(num_stages=0), "num_stages(0), expected 1 or more"),
        (Schedule(early=-1), "early(-1), expected 0 or more"),
        (Schedule(early=1), "early(1) without a loop of 8 known iterations or fewer"),
    ],
)
def test_schedules_that_no_block_can_have(schedule: Schedule, text: str) -> None:
    assert text in only(blocked(lambda b: replace(b, schedule=schedule)), "schedule")


def test_grid_over_a_dim_and_its_parts() -> None:
    b = KernelBuilder("f", k=4)
    b.extent(**{"k#": 2})
    x, y = b.input("x", f32, "k"), b.input("y", f32, "k#")
    with b.block(grid={"k": 2, "k#": 1}) as block:
        z = block.mul(block.load(x, "k/grid"), block.load(y, "k#/grid"))
        z = block.store(z, "k/grid, k#/grid")
    assert "the grid splits both k and k#" in only(b.returns(z).unchecked(), "grid")


@pytest.mark.parametrize(
    ("grid", "loop", "message"),
    [
        (0, 8, "grid tile 0 of n; expected at least 1"),
        (4, -1, "loop tile -1 of k; expected at least 1"),
        (17, 8, "grid tile 17 of n, which spans only 12; expected at most 16"),
        (4, 17, "loop tile 17 of k, which spans only 16; expected at most 16"),
    ],
)
def test_tiles(grid: int, loop: int, message: str) -> None:
    def change(block: BlockGraph) -> BlockGraph:
        return replace(block, grid=(Split("n", grid),), loop=Split("k", loop))

    assert message in only(blocked(change), "tile")


def test_loop_tile_within_the_grid_part() -> None:
    b = KernelBuilder("f", m=4, k=256)
    with b.block(grid={"k": 32}, loop=("k", 64)) as block:
        xt = block.load(b.input("x", f32, "m, k"), "m, k/grid/loop")
        total = block.accumulate(block.sum(xt, over="k"))
        y = block.store(total, "m, k#/grid")
    text = only(b.returns(y).unchecked(), "tile")
    assert "loop tile 64 of k, which spans only 32" in text


def test_loop_is_used() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        return block.store(block.load(x, "m, k"), "m, k")

    assert "it loops over k, but no load is split by the loop" in only(
        with_body(write), "loop"
    )


def test_loads_iterate_alike() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        part = block.sum(block.load(x, "m, k/grid/loop"), over="k")
        whole = block.sum(block.load(x, "m, k/loop"), over="k")
        return block.store(block.accumulate(block.mul(part, whole)), "m, k#/grid")

    text = only(with_body(write, k=8), "loop")
    assert "k/grid/loop and over k/loop, which take different numbers" in text


def test_pieces() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        rows = block.sum(block.load(x, "m/grid, k/loop"), over="k")
        return block.store(block.accumulate(rows), "m/grid")

    found = check(with_body(write))
    assert {d.rule for d in found} == {"piece"}
    assert "load x as t1: m/grid, but the grid splits nothing" in str(found[0])

    def looped(block: BlockBuilder, x: str) -> str:
        rows = block.sum(block.load(x, "m/loop, k/loop"), over="k m")
        return block.store(block.accumulate(rows), "")

    assert "m/loop, but the loop splits k" in only(with_body(looped), "piece")


def test_types_in_blocks() -> None:
    text = only(with_node(1, Load("wt", "w", ((NG,), (KL,)))), "type")
    assert "load w as wt: load w" in text
    assert "is f16[k, n]" in text
    mixed = Apply("p", OPERATORS["add"], ("xt", "xk"))

    def change(block: BlockGraph) -> BlockGraph:
        extra = Load("xk", "x", ((M,), (K,)))
        return replace(block, nodes=(extra, *block.nodes[:2], mixed, *block.nodes[3:]))

    found = [str(d) for d in check(blocked(change)) if d.rule == "type"]
    assert "operands have different pieces of one dim: k/loop, k" in found[0]


def test_matmul_takes_one_dtype() -> None:
    def change(block: BlockGraph) -> BlockGraph:
        doubled = Apply("x2", OPERATORS["mul"], ("xt", Scalar(Fraction(2))))
        p = Apply("p", OPERATORS["matmul"], ("x2", "wt"), (("over", ("k",)),))
        return replace(block, nodes=(*block.nodes[:2], doubled, p, *block.nodes[3:]))

    text = only(blocked(change), "type")
    assert "matmul takes operands of one dtype, found f32 and f16; cast one" in text


def test_views_in_blocks() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        xt = block.rename(block.load(x, "m, k/loop"), dims="k", to="j")
        return block.store(block.accumulate(block.sum(xt, over="j")), "m")

    text = only(with_body(write), "view")
    assert "rename of k/loop, a piece of a dim; apply rename before the block" in text


@pytest.mark.parametrize(
    ("one", "other", "right"),
    [
        ("k/loop", "k/loop", True),
        ("k/loop", "k", False),
        ("k", "k/loop", False),
        ("k", "k", True),
    ],
)
def test_joins_to_one_dim_have_one_extent(one: str, other: str, right: bool) -> None:
    text = f"""
    mirage 1

    mugraph f(
        x: f16[m, k], w: f16[k, n], a: f16[m, r], b: f16[r, n], z: f16[m, k]
    ) -> f32[m, n] where m = 16, k = 64, n = 16, r = 16 {{
      y = block loop(k / 16) {{
        x_t: f16[m, {one}] = load x
        w_t: f16[{other}, n] = load w
        z_t: f16[m, k/loop] = load z
        a_t: f16[m, r] = load a
        b_t: f16[r, n] = load b
        left = concat x_t, a_t dims(k, r) to(j)
        right = concat w_t, b_t dims(k, r) to(j)
        both = matmul left, right over(j)
        rows = sum z_t over(k)
        scaled = mul both, rows
        total = accumulate scaled
        store y: f32[m, n] = total
      }}
      return y
    }}
    """
    found = check(parse(text))
    assert [d.rule for d in found] == ([] if right else ["join"])
    assert right or "j joins" in found[0].message


def test_stage_mixture() -> None:
    mixed = Apply("e", OPERATORS["add"], ("a", "p"))
    text = only(with_node(4, mixed), "stage")
    assert "it mixes p, a value of the loop body, with a, which exists after" in text
    assert "accumulate p first" in text


def test_accumulators_take_body_values() -> None:
    text = only(with_node(4, Accumulate("e", "a")), "stage")
    assert "an accumulator takes a value of the loop body; a is one after" in text
    before = "a running maximum takes a value of the loop body; xt is one before"

    def write(block: BlockBuilder, x: str) -> str:
        largest = block.running_max(block.load(x, "m, k", name="xt"))
        looped = block.sum(block.load(x, "m, k/loop"), over="k")
        return block.store(block.accumulate(block.mul(looped, largest)), "m, k")

    assert before in only(with_body(write), "stage")


def test_stores_of_body_values() -> None:
    store = Store("y", "p", ((M,), (NG,)), f16)

    def change(block: BlockGraph) -> BlockGraph:
        return replace(block, nodes=(*block.nodes[:3], store))

    text = only(blocked(change), "stage")
    assert "p is a value of the loop body, it differs by iteration" in text
    assert "accumulate p and store the result" in text


def test_rescaling() -> None:
    text = only(with_node(3, Accumulate("a", "p", rescale="xt")), "rescale")
    assert "it is rescaled by xt, which is no running maximum" in text

    def change(kind: str) -> Callable[[BlockGraph], BlockGraph]:
        def inner(block: BlockGraph) -> BlockGraph:
            row = Apply("r", OPERATORS["max"], ("p",), (("over", ("n",)),))
            largest = RunningMax("g", "r")
            a = Accumulate("a", "p", kind, "g")
            return replace(
                block, nodes=(*block.nodes[:3], row, largest, a, *block.nodes[4:])
            )

        return inner

    assert check(blocked(change("sum"))) == []
    assert "a max accumulator cannot be rescaled" in only(
        blocked(change("max")), "rescale"
    )


def test_rescaling_by_more_dims() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        xt = block.load(x, "m, k/loop")
        largest = block.running_max(block.max(xt, over="k"), name="g")
        total = block.sum(block.exp(block.sub(xt, largest)), over="m k", name="s")
        return block.store(block.accumulate(total, rescale="g"), "")

    assert "g has dims that s lacks: f32[m], f32[]" in only(with_body(write), "rescale")


def test_stores_have_every_grid_dim() -> None:
    def change(block: BlockGraph) -> BlockGraph:
        return replace(block, grid=(Split("n", 4), Split("m", 2)))

    text = only(blocked(change), "store")
    assert "the grid splits m, but the axes have neither m/grid nor m#/grid" in text
    assert "store m#/grid if these are partial results" in text


def test_stores_fit_their_value() -> None:
    found = check(with_node(5, Store("y", "e", ((NG,),), f16)))
    text = str(next(d for d in found if d.rule == "store"))
    assert "its axes have the dims n/grid, but e has m, n/grid" in text
    twice = check(with_node(5, Store("y", "e", ((M,), (M, NG)), f16)))
    assert any("the dim m twice" in str(d) for d in twice)


def test_stores_have_no_looped_dim() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        return block.store(block.accumulate(block.load(x, "m, k/loop")), "m, k")

    text = only(with_body(write), "store")
    assert "t2 has k/loop, the index within a tile of the loop; sum over k" in text


def test_blocks_store_and_use_what_they_compute() -> None:
    def silent(block: BlockGraph) -> BlockGraph:
        return replace(block, nodes=block.nodes[:-1])

    found = check(replace(blocked(silent), returns=()))
    assert "it stores nothing; store a value or remove the block" in str(
        next(d for d in found if d.rule == "store")
    )

    def idle(block: BlockGraph) -> BlockGraph:
        extra = Apply("z", OPERATORS["exp"], ("a",))
        return replace(block, nodes=(*block.nodes[:-1], extra, block.nodes[-1]))

    text = only(blocked(idle), "unused")
    assert "z: nothing in the block reads it; remove it or store it" in text


def test_diagnostics_tell_the_block() -> None:
    (found,) = check(with_node(4, Apply("e", OPERATORS["add"], ("a", "p"))))
    assert (found.name, found.block, found.rule) == ("e", 0, "stage")


def test_dims_made_in_a_block_have_extents() -> None:
    def write(block: BlockBuilder, x: str) -> str:
        whole = block.load(x, "m, k")
        twice = block.concat(whole, whole, dims="m m", to="c")
        twice = block.sum(twice, over="c k")
        looped = block.sum(block.load(x, "m, k/loop"), over="k")
        return block.store(block.mul(block.accumulate(looped), twice), "m")

    graph = with_body(write)
    assert graph.extent_of["c"] == 8
    extents = tuple(item for item in graph.extents if item[0] != "c")
    assert "the dim c of f has no extent" in only(
        replace(graph, extents=extents), "extent"
    )


def test_gathers() -> None:
    def picked(source: str, dim: str, over: str) -> str:
        text = f"""mirage 1
mugraph f(x: f32[m, k], i: i32[n]) -> f32[n] where m = 4, k = 16, n = 8 {{
  y = block grid(n / 4) loop(k / 8) {{
    xt = load x[m, k/loop]
    it = load i[n/grid]
    e = exp xt
    g = gather {source}, it dim({dim})
    s = sum g over({over})
    a = accumulate s
    store y: f32[n/grid] = a
  }}
  return y
}}"""
        return "\n".join(map(str, check(parse(text))))

    assert "e, which lies in no device memory" in picked("e", "m", "k")
    with pytest.raises(MirageError, match="along k/loop: an index may be anywhere"):
        picked("xt", "k", "m")
