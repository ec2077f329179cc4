"""Programs of several kernels, found by one search and asserted by structure."""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from mirage_dsl.core import compiled
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.types import Dim, Scalar, f16, f32
from mirage_dsl.ir.builder import KernelBuilder, one_over
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Apply, BlockGraph, KernelGraph, Split, dims_of
from mirage_dsl.ir.maps import grid_parts, with_derived_extents
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.shifts import strip_shifts
from mirage_dsl.search.budget import Budget
from mirage_dsl.search.driver import search
from mirage_dsl.search.multi_kernel import search as union_search
from mirage_dsl.search.multi_kernel.dags import prove
from mirage_dsl.search.multi_kernel.layered import LARGEST, with_room
from mirage_dsl.search.multi_kernel.search import MultiKernel, Planner, multi_kernel
from mirage_dsl.search.multi_kernel.storable import Joining, cut_dims, with_halves
from mirage_dsl.search.result import is_one_kernel, leaves_products
from mirage_dsl.search.sizes import Constraints, Sizer, UnsizedBlock, sizes_of_all
from mirage_dsl.search.space import Configuration, space_of
from mirage_dsl.store.superoptimize import code_version, prepare_search
from mirage_dsl.verify.verifier import verify
from tests.pace import Stopwatch, slowness
from tests.search import programs
from tests.search.programs import PROGRAMS, Program


def split_k() -> KernelGraph:
    p = Program("split_k", {"m": 16, "k": 16384, "n": 512})
    x, w = p.input("x", "m k"), p.input("w", "k n")
    return p.returns(p.matmul(x, p.apply("exp", w), "k"))


def softmax(p: Program, x: str, over: str) -> str:
    moved = p.apply("sub", x, p.apply("rowshift", x, over=over))
    e = p.apply("exp", moved)
    return p.apply("div", e, p.apply("sum", e, over=over))


def decode(*, capped: bool = False) -> KernelGraph:
    """Attention of a few queries over many keys, with a safe softmax.

    Args:
        capped: Its logits have a bound; so it is no one call of PyTorch's.
    """
    p = Program("decode", {"z": 1, "s": 16, "d": 128, "n": 8192, "e": 128})
    q, k, v = p.input("q", "z s d"), p.input("k", "z d n"), p.input("v", "z n e")
    x = p.apply("mul", p.matmul(q, k, "d"), Scalar(Fraction(1, 8)))
    x = p.apply("tanh", x) if capped else x
    return p.returns(p.matmul(softmax(p, x, "n"), v, "n"))


def mlp() -> KernelGraph:
    """A whole block: norm with gain, gated up, down, residual."""
    p = Program("mlp", {"b": 16, "h": 4096, "n": 14336, "j": 4096})
    x, g, r = p.input("x", "b h"), p.input("g", "h"), p.input("r", "b j")
    w1, w2 = p.input("w1", "h n"), p.input("w2", "h n")
    w3 = p.input("w3", "n j")
    y = p.apply("mul", p.rms_norm(x, "h"), g)
    gate = p.apply("silu", p.matmul(y, w1, "h"))
    up = p.apply("mul", gate, p.matmul(y, w2, "h"))
    return p.returns(p.apply("add", p.matmul(up, w3, "n"), r))


def wide_lora() -> KernelGraph:
    """A product so wide that no block should compute all of it again."""
    p = Program("wide_lora", {"b": 16, "h": 4096, "n": 4096, "r": 256})
    x, w = p.input("x", "b h"), p.input("w", "h n")
    a, c = p.input("a", "h r"), p.input("c", "r n")
    low = p.matmul(p.matmul(x, a, "h"), c, "r")
    return p.returns(p.apply("add", p.matmul(x, w, "h"), low))


def latent() -> KernelGraph:
    """Attention whose keys and values are products of one compressed tensor."""
    p = Program("latent", {"s": 16, "d": 128, "n": 8192, "e": 128, "c": 512})
    q, kv = p.input("q", "s d"), p.input("kv", "n c")
    wk, wv = p.input("wk", "c d"), p.input("wv", "c e")
    k, v = p.matmul(kv, wk, "c"), p.matmul(kv, wv, "c")
    weights = softmax(p, p.matmul(q, k, "d"), "n")
    return p.returns(p.matmul(weights, v, "n"))


def projected() -> KernelGraph:
    """Attention with the products of queries and of outputs around it."""
    p = Program(
        "projected", {"s": 16, "c": 2048, "d": 128, "n": 8192, "e": 128, "o": 2048}
    )
    x, wq = p.input("x", "s c"), p.input("wq", "c d")
    k, v = p.input("k", "d n"), p.input("v", "n e")
    q, wo = p.matmul(x, wq, "c"), p.input("wo", "e o")
    attended = p.matmul(softmax(p, p.matmul(q, k, "d"), "n"), v, "n")
    return p.returns(p.matmul(attended, wo, "e"))


CASES = {f.__name__: f for f in (split_k, decode, mlp, wide_lora, latent, projected)}


SECONDS: dict[tuple[str, int], float] = {}
"""Processor time that each search of `found` took."""


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """What a process compiles and loads once."""
    prepare_search(code_version(), None)


@cache
def found(name: str, max_kernels: int = 2) -> MultiKernel:
    watch = Stopwatch()
    result = multi_kernel(CASES[name](), H100, max_kernels=max_kernels)
    SECONDS[name, max_kernels] = watch.seconds
    return result


def graphs_of(result: MultiKernel) -> list[KernelGraph]:
    return [plan.graph for plan in result.plans]


def only_blocks(result: MultiKernel, count: int) -> list[KernelGraph]:
    return [g for g in graphs_of(result) if len(g.blocks) == count == len(g.nodes)]


def stored(block: BlockGraph) -> list[set[str]]:
    """The dims of everything that a block stores."""
    return [{str(d) for d in dims_of(s.axes)} for s in block.stores]


def operators(block: BlockGraph) -> list[str]:
    return [n.op.name for n in block.nodes if isinstance(n, Apply)]


def sums(block: BlockGraph, dim: str) -> bool:
    return any(isinstance(n, Apply) and dim in n.over for n in block.nodes)


# -- What is found ---------------------------------------------------------------------


def test_split_k() -> None:
    """Parts of a long sum in one kernel, their sum in the next."""
    graph = only_blocks(found("split_k"), 2)[0]
    first, second = graph.blocks
    assert {"k", "n"} <= {s.dim for s in first.grid}
    assert first.loop is not None
    assert first.loop.dim == "k"
    assert stored(first) == [{"k#/grid", "m", "n/grid"}]
    assert sums(second, "k#")
    assert verify(graph, split_k()).ok
    assert graph.extent_of["k#"] == -(-16384 // first.grid_split("k").tile)  # type: ignore[union-attr]


def test_flash_decoding() -> None:
    """Partial numerators, denominators and maxima; the second kernel combines them."""
    graph = only_blocks(found("decode"), 2)[0]
    first, second = graph.blocks
    assert "n" in {s.dim for s in first.grid}
    assert len(first.stores) == 3
    assert all("n#/grid" in dims for dims in stored(first))
    assert sorted("e" in dims for dims in stored(first)) == [False, False, True]
    assert set(first.results) <= set(second.sources)
    assert sums(second, "n#")
    assert {"exp", "div"} <= set(operators(second))
    certificate = verify(graph, decode())
    assert certificate.ok
    assert certificate.equivalent


def test_mlp_block() -> None:
    """Norm and gated up in one kernel, down and residual in the other."""
    graph = only_blocks(found("mlp"), 2)[0]
    first, second = graph.blocks
    assert set(first.sources) == {"x", "g", "w1", "w2"}
    assert {"silu", "sqrt"} <= set(operators(first))
    assert operators(first).count("matmul") == 2
    assert {"w3", "r"} <= set(second.sources)
    assert {"matmul", "add"} <= set(operators(second))
    assert verify(graph, mlp()).ok


def test_small_product_of_lora_in_a_kernel_of_its_own() -> None:
    result = found("wide_lora")
    main = graphs_of(result)[0].nodes[-1]
    own = graphs_of(result)[0].nodes[:-1]
    assert len(own) == 1
    read = own[0].values if isinstance(own[0], Apply) else own[0].sources
    assert {"x", "a"} == set(read)
    assert isinstance(main, BlockGraph)
    assert {"x", "w", "c"} < set(main.sources)
    assert "a" not in main.sources
    assert verify(graphs_of(result)[0], wide_lora()).ok


@pytest.mark.sample(0)
def test_no_key_of_latent_attention_is_stored() -> None:
    """The scores are made where the keys are; what is stored has no dim of both."""
    plans = found("latent", 3).plans
    best = next(p for p in plans if verify(p.graph, latent()).ok)
    stores = [s for block in best.graph.blocks for s in block.stores]
    names = [{d.name for d in dims_of(s.axes)} for s in stores]
    assert names
    assert not any({"n", "d"} <= own or {"n#", "d"} <= own for own in names)
    assert best.microseconds < 1.15 * plans[0].microseconds


@pytest.mark.sample(0)
def test_projections_around_attention() -> None:
    """Queries; partial sums over the keys; their combination with the last product."""
    graph = graphs_of(found("projected", 3))[0]
    queries, partial, last = graph.nodes
    assert isinstance(partial, BlockGraph)
    assert isinstance(last, BlockGraph)
    read = queries.values if isinstance(queries, Apply) else queries.sources
    assert set(read) == {"x", "wq"}
    assert all("n#/grid" in dims for dims in stored(partial))
    assert {"wo", *partial.results} == set(last.sources)
    assert sums(last, "n#")
    assert "matmul" in operators(last)
    assert verify(graph, projected()).ok


# -- Cost, bound and time --------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("max_kernels", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_the_best_is_proved(name: str, max_kernels: int) -> None:
    """And the heuristic was not far from it."""
    result = found(name, max_kernels)
    assert result.complete
    assert result.bound is not None
    assert result.heuristic is not None
    assert result.cost == pytest.approx(result.bound, abs=1e-2)
    assert result.bound <= result.heuristic + 1e-2
    assert result.heuristic < 1.1 * result.bound


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CASES)
def test_two_kernels_take_seconds(name: str) -> None:
    found(name)
    assert SECONDS[name, 2] < 10


def gate() -> KernelGraph:
    """A gate, and a product with one row."""
    p = Program("gate", {"m": 18944, "k": 3584})
    x, y, w = p.input("x", "m"), p.input("y", "m"), p.input("w", "m k")
    return p.returns(p.matmul(p.apply("mul", p.apply("silu", x), y), w, "m"))


def test_values_of_a_block_are_made_in_other_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One row of a product is summed for less without the matrix unit."""
    best = multi_kernel(gate(), H100).plans[0]
    (block,) = best.graph.blocks
    assert "matmul" not in operators(block)
    assert verify(best.graph, gate()).ok
    monkeypatch.setattr(Planner, "vary", lambda *_: None)
    assert multi_kernel(gate(), H100).plans[0].microseconds > 1.02 * best.microseconds


def test_the_tuner_sees_every_kind() -> None:
    """One kernel, and products left to library kernels, whatever they cost."""
    graphs = graphs_of(found("split_k"))
    assert any(is_one_kernel(g) for g in graphs)
    assert any(leaves_products(g) and len(g.nodes) == 2 for g in graphs)
    assert any(is_one_kernel(g) for g in graphs_of(found("decode")))


def test_what_one_space_covers_is_searched_once() -> None:
    """No segment is searched, unless a program has to be one kernel.

    Seven programs there are, none of which differs in a dim of one tile only.
    """
    covered = search(split_k(), H100, max_kernels=2, verify=False)
    assert covered.ledger.found["segments"] == 0
    assert len(covered) == 7
    for graph in (c.mugraph for c in covered):
        extents = {n: e or 0 for n, e in graph.extents}
        assert all(min(grid_parts(b, extents)) > 1 for b in graph.blocks)
    single = search(split_k(), H100, max_kernels=1, verify=False)
    assert single.ledger.found["segments"] > 0
    assert covered.best.cost.microseconds < single.best.cost.microseconds


def test_sums_are_multiplied_out_beside_one_space() -> None:
    """One space does not subtract squares of means: a kernel that does is found."""
    p = Program("distance", {"m": 64, "n": 512, "k": 64})
    x, c = p.input("x", "m k"), p.input("c", "n k")
    d = p.apply("sub", x, c)
    result = search(
        p.returns(p.apply("sum", p.apply("mul", d, d), over="k")), H100, max_kernels=2
    )
    assert any("matmul" in operators(b) for b in result.best.mugraph.blocks)


def test_deadline() -> None:
    began, most = time.monotonic(), 2 * slowness()
    result = multi_kernel(mlp(), H100, max_kernels=3, budget=Budget(began + 0.05))
    assert time.monotonic() - began < most
    assert not result.complete


def test_same_seed_same_result() -> None:
    again = multi_kernel(decode(), H100, max_kernels=2)
    assert [str(g) for g in graphs_of(again)] == [
        str(g) for g in graphs_of(found("decode"))
    ]


def test_without_ortools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there is a result, but no bound."""
    original = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("ortools"):
            raise ImportError(name)
        return original(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    result = multi_kernel(split_k(), H100, max_kernels=2)
    assert graphs_of(result)
    assert result.bound is None
    assert not result.complete


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_paper_programs(name: str) -> None:
    """All of them have graphs of up to three kernels, proved the cheapest."""
    result = multi_kernel(PROGRAMS[name](), H100, max_kernels=3, keep=2)
    assert graphs_of(result)
    assert result.bound is not None
    assert all(verify(g, PROGRAMS[name]()).equivalent for g in graphs_of(result))
    # All that a process has compiled is for one type of each argument.
    for file in compiled.MODULES:
        module = import_module("mirage_dsl." + file.replace("/", "."))
        for function in vars(module).values():
            overloads = getattr(function, "overloads", {})
            assert len(overloads) <= 1, f"{function}: {list(overloads)}"


def test_number_of_kernels_is_kept() -> None:
    for name in CASES:
        for graph in graphs_of(found(name)):
            assert len(graph.nodes) <= 2


# -- Every graph is right --------------------------------------------------------------


def small(program: KernelGraph) -> KernelGraph:
    names = [n for n, _ in program.extents if not n.endswith("#")]
    sizes = (5, 7, 11, 13, 17, 19, 23)
    return program.with_extents(dict(zip(names, sizes, strict=False)))


def tiled(graph: KernelGraph) -> KernelGraph:
    """Ragged tiles of grid and loop."""
    nodes = tuple(
        replace(
            n,
            grid=tuple(Split(s.dim, 3) for s in n.grid),
            loop=n.loop and Split(n.loop.dim, 2),
        )
        if isinstance(n, BlockGraph)
        else n
        for n in small(graph).nodes
    )
    return with_derived_extents(replace(small(graph), nodes=nodes))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [*PROGRAMS, "mlp", "latent"])
def test_all_graphs_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsized graphs of the cheapest DAGs, at ragged sizes and in float64."""
    program = strip_shifts({**PROGRAMS, **CASES}[name]())
    graphs: list[KernelGraph] = []

    def keep(_: Any, graph: KernelGraph, worst: float) -> None:  # noqa: ARG001
        graphs.append(graph)

    monkeypatch.setattr(union_search.Sizer, "sized", keep)
    monkeypatch.setattr(union_search, "prove", lambda *_, **__: None)
    monkeypatch.setattr(Planner, "_safe", lambda _, graph: graph)
    multi_kernel(program, H100, max_kernels=3, keep=64)
    assert len(graphs) > 3
    reference = small(program)
    rng = np.random.default_rng(0)
    sizes = reference.extent_of
    arrays = [
        rng.uniform(0.2, 1.5, [sizes[d] or 1 for d in i.type.names])
        for i in reference.inputs
    ]
    expected = evaluate_numpy(reference, *arrays)
    for graph in graphs[:16]:
        assert check(tiled(graph)) == []
        for a, b in zip(evaluate_numpy(tiled(graph), *arrays), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, err_msg=str(graph))


# -- Parts -----------------------------------------------------------------------------


def normed_in_f32() -> KernelGraph:
    """A norm in f32 of f16 rows, and a gain, as models write it; then a product."""
    b: Any = KernelBuilder("normed", s=16, c=4096, o=4096)
    x, g, w = (
        b.input("x", f16, "s, c"),
        b.input("g", f16, "c"),
        b.input("w", f16, "c, o"),
    )
    wide = b.cast(x, dtype="f32")
    squares = b.mul(b.sum(b.mul(wide, wide), over="c"), one_over("c"))
    normed = b.cast(b.mul(wide, b.rsqrt(squares)), dtype="f16")
    return b.returns(b.matmul(b.mul(normed, g), w, over="c")).build()


def cast_before_a_product() -> KernelGraph:
    """f32 rows, cast to the format of the weights; and products of both."""
    b: Any = KernelBuilder("cast", s=16, c=1024, o=1024, e=1024)
    x, w, v = (
        b.input("x", f32, "s, c"),
        b.input("w", f16, "c, o"),
        b.input("v", f16, "o, e"),
    )
    y = b.matmul(b.cast(b.square(x), dtype="f16"), w, over="c")
    return b.returns(b.matmul(b.mul(y, y), v, over="o")).build()


@pytest.mark.sample(1)
@pytest.mark.parametrize("make", [normed_in_f32, cast_before_a_product])
def test_programs_of_several_formats(make: Callable[[], KernelGraph]) -> None:
    """Values that the search makes of them have products of one format."""
    program = make()
    found = multi_kernel(program, H100, max_kernels=2, budget=Budget.of(20.0))
    assert found.plans
    certificate = verify(found.plans[0].graph, program)
    assert certificate.equivalent, certificate


def test_driver_takes_several_kernels() -> None:
    result = search(decode(), H100, max_kernels=2, k=4)
    assert result.best is not None
    assert len(result.best.mugraph.blocks) == 2
    assert result.best.certificate is not None
    assert result.best.certificate.ok
    assert result.ledger.found["several kernels: kernels"] > 0
    assert result.proof is not None
    assert result.proof.optimal
    assert result.bound == pytest.approx(result.proof.cost, rel=1e-4)
    assert result.gap == 0
    assert result.complete


def test_halves_and_back() -> None:
    program = PROGRAMS["gqa"]()
    cut = cut_dims(program)
    assert [h.dim for h in cut] == ["n"]
    halved = with_halves(program, cut)
    keys = next(i for i in halved.inputs if i.name == "k")
    assert keys.type.axes == ((Dim("z"),), (Dim("d"),), (Dim("n#"), Dim("n'")))
    split = tuple(
        tuple(replace(d, grid=d.name == "n#", loop=d.name == "n'") for d in a)
        for a in keys.type.axes
    )
    joined = Joining(cut).axes(split)
    assert joined == ((Dim("z"),), (Dim("d"),), (Dim("n", True, True),))
    assert Joining(cut).over(("n'",), frozenset({"n#"})) == ("n",)
    assert Joining(cut).over(("n#",), frozenset()) == ("n#",)


VIEWED = """mirage 1

mugraph f(
    x: f32[m, k]
) -> f32[m, k_part] where m = 8, k = 65536, k_part = 16, k_in = 4096 {
  parts: f32[m, k_part, k_in] = unflatten x dim(k) gives(k_part, k_in)
  sums: f32[m, k_part] = sum parts over(k_in)
  e: f32[m, k_part] = exp sums
  return e
}
"""


def test_dims_that_views_name_are_not_halved() -> None:
    program = parse(VIEWED)
    assert not cut_dims(program)
    found = multi_kernel(program, H100, max_kernels=2)
    assert found.plans
    assert verify(found.plans[0].graph, program).ok


def test_proof_without_time_has_a_bound() -> None:
    """A solver that is stopped at once still says what it knows."""
    proofs: list[Any] = []
    original = prove

    def hurried(*args: Any, **options: Any) -> Any:
        proofs.append(original(*args, **{**options, "budget": Budget.of(1e-3)}))
        return proofs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(union_search, "prove", hurried)
        result = multi_kernel(PROGRAMS["qknorm"](), H100, max_kernels=3, keep=1)
    assert proofs
    assert graphs_of(result)
    assert result.bound is not None
    assert result.cost is not None
    assert result.bound <= result.cost + 1e-2


# -- Sizes -----------------------------------------------------------------------------


def test_kernels_that_graphs_share_are_sized_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[BlockGraph] = []

    def counted(structures: Sequence[UnsizedBlock], *rest: Any, **options: Any) -> Any:
        calls.append(structures[0].block)
        return sizes_of_all(structures, *rest, **options)

    monkeypatch.setattr("mirage_dsl.search.sizes.sizes_of_all", counted)
    sizer = Sizer(H100, Constraints())
    graph = only_blocks(found("split_k"), 2)[0]
    first = sizer.sized(graph)
    count = len(calls)
    assert count > 1
    assert sizer.sized(graph) == first
    assert len(calls) == count


def test_what_is_dearer_than_the_plans_at_hand_is_not_sized_to_the_end() -> None:
    sizer = Sizer(H100, Constraints())
    graph = only_blocks(found("split_k"), 2)[0]
    plan = sizer.sized(graph)
    assert plan is not None
    assert sizer.sized(graph, plan.microseconds + 0.01) == plan
    assert sizer.sized(graph, plan.microseconds) is None


def test_tiles_of_groups_leave_room_for_their_channels() -> None:
    """64 rows of 64 groups of 32 channels are more than a block can hold."""
    p = Program("groups", {"m": 512, "g": 256, "c": 32})
    space = space_of(p.returns(p.apply("exp", p.input("x", "m g c"))))
    grid = Configuration(("m", "g"))
    tiles = with_room({"m": 64, "g": 64}, space, grid)
    assert tiles["m"] * tiles["g"] * 32 == LARGEST
    assert with_room({"m": 16, "g": 8}, space, grid) == {"m": 16, "g": 8}


# -- Before it, and beside it ----------------------------------------------------------


def test_one_good_kernel_does_not_hide_two_better_ones() -> None:
    """The narrow product once, and not in every block."""
    found = search(programs.lora(), H100, k=4, max_kernels=2, verify=False)
    single = [c for c in found if len(c.mugraph.nodes) == 1]
    assert len(found.best.mugraph.nodes) == 2
    assert found.best.cost.microseconds < 0.99 * single[0].cost.microseconds
