"""Calls on a GPU: the short way, captures, early launches, threads and streams."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.lowering.emit import plan
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import CompileError, ShapeError
from mirage_dsl.core.types import f16
from mirage_dsl.ir.analysis.launches import launched_early, launched_in_turn
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph, Schedule
from tests.backends.running import allowed, compare, random_inputs
from tests.programs import mugraphs

pytestmark = [
    pytest.mark.gpu,
    # PyTorch warns of captures that are refused, and of products in new threads.
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

EARLY = 1
"""The kind of an edge between kernels of which the second may start early."""


def attention(**flags: bool) -> KernelGraph:
    return mugraphs.attention(
        2, 64, 1024, tile_n=64, splits=4, schedule=Schedule(**flags)
    )


def mixed(*, early: bool = True) -> KernelGraph:
    """Generated kernels around a library product, with a view between them."""
    g = KernelBuilder("mixed", m=32, k=256, n=128)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    schedule = Schedule(pdl=early)
    with g.block(grid={"m": 2}, schedule=schedule) as b:
        first = b.store(b.tanh(b.load(x, "m/grid, k")), "m/grid, k", dtype=f16)
    product = g.matmul(first, w, over="k")
    half = g.slice(product, dim="n", start=64, stop=128, to="j")
    with g.block(grid={"m": 2}, schedule=schedule) as b:
        last = b.store(b.sigmoid(b.load(half, "m/grid, j")), "m/grid, j", dtype=f16)
    with g.block(grid={"m": 2}, schedule=schedule) as b:
        out = b.store(b.square(b.load(last, "m/grid, j")), "m/grid, j", dtype=f16)
    return g.returns(out).build()


GRAPHS: dict[str, Callable[[], KernelGraph]] = {
    "pointers": lambda: mugraphs.gated_mlp(16, 256, 128),
    "descriptors": lambda: mugraphs.gated_mlp(
        16, 256, 128, schedule=Schedule(descriptors=True, num_stages=3)
    ),
    "descriptors of scratch": lambda: attention(descriptors=True, pdl=True),
    "small tensors": lambda: mugraphs.gated_mlp(
        8, 64, 96, tile_n=32, tile_k=16, schedule=Schedule(descriptors=True)
    ),
    "early": lambda: attention(pdl=True),
    "late": lambda: mugraphs.side_product(
        16, 256, 128, 16, schedule=Schedule(pdl=True)
    ),
    "mixed": mixed,
    "positions in parts": mugraphs.positions_in_parts,
    "parts off 16 bytes": lambda: mugraphs.odd_parts(m=192, k=45),
}


def on_gpu(graph: KernelGraph, seed: int = 0) -> list[torch.Tensor]:
    return [0.3 * t.cuda() for t in random_inputs(graph, seed)]


def check(
    graph: KernelGraph, inputs: Sequence[torch.Tensor], found: Sequence[torch.Tensor]
) -> None:
    right = evaluate_numpy(graph, *(t.double().cpu().numpy() for t in inputs))
    compare(graph, [t.cpu() for t in found], right, allowed(graph))


@pytest.mark.parametrize("name", GRAPHS)
def test_the_short_way_is_right(name: str) -> None:
    graph = GRAPHS[name]()
    run = TritonExecutable(graph)
    for seed in range(3):
        inputs = on_gpu(graph, seed)
        check(graph, inputs, run(*inputs))
        assert run.direct is not None
        found = run.direct.call(*inputs)
        assert found is not None
        check(graph, inputs, found)


@pytest.mark.parametrize("name", GRAPHS)
def test_calls_in_a_row_do_not_disturb_each_other(name: str) -> None:
    """Each call's scratch is the last one's, whose kernels may not have ended yet."""
    graph = GRAPHS[name]()
    run = TritonExecutable(graph)
    draws = [on_gpu(graph, seed) for seed in range(4)]
    right = [run(*inputs)[0].clone() for inputs in draws]
    for at, inputs in enumerate(draws):
        check(graph, inputs, [right[at]])
    torch.cuda.synchronize()
    found = [run(*draws[at % 4])[0] for at in range(400)]
    for at, out in enumerate(found):
        assert torch.equal(out, right[at % 4]), at


def edges(graph: torch.cuda.CUDAGraph) -> list[int]:
    """The kinds of the edges of a captured graph."""

    class Edge(ctypes.Structure):
        _fields_ = (
            ("ports", ctypes.c_uint8 * 2),
            ("kind", ctypes.c_uint8),
            ("reserved", ctypes.c_uint8 * 5),
        )

    driver = ctypes.CDLL("libcuda.so.1")
    get = getattr(driver, "cuGraphGetEdges_v2", None)
    if get is None:
        pytest.skip("this driver does not tell the kinds of edges")
    handle = ctypes.c_void_p(graph.raw_cuda_graph())
    count = ctypes.c_size_t(0)
    assert get(handle, None, None, None, ctypes.byref(count)) == 0
    ends = [(ctypes.c_void_p * count.value)() for _ in range(2)]
    found = (Edge * count.value)()
    assert get(handle, *ends, found, ctypes.byref(count)) == 0
    return [e.kind for e in found]


def captured(run: TritonExecutable, draws: Sequence[list[torch.Tensor]]) -> Any:
    """A graph of one call for each draw, and its outputs."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        outs = [run(*inputs)[0] for inputs in draws]
    graph.instantiate()
    return graph, outs


@pytest.mark.parametrize("name", GRAPHS)
def test_captures_see_new_data(name: str) -> None:
    graph = GRAPHS[name]()
    run = TritonExecutable(graph)
    draws = [on_gpu(graph, seed) for seed in range(4)]
    for inputs in draws:
        run(*inputs)
    torch.cuda.synchronize()
    replayed, outs = captured(run, draws * 5)
    for seed in (0, 10):
        for at, inputs in enumerate(draws):
            for tensor, new in zip(inputs, on_gpu(graph, seed + at), strict=True):
                tensor.copy_(new)
        replayed.replay()
        torch.cuda.synchronize()
        for at, out in enumerate(outs):
            check(graph, draws[at % 4], [out])


@pytest.mark.parametrize("stages", [1, 4])
def test_loops_before_the_wait_see_what_earlier_kernels_wrote(stages: int) -> None:
    """The inputs are written right before each call, which reads them before it waits.

    With one stage loads go through the L1 cache.
    """
    schedule = Schedule(num_stages=stages, pdl=True)
    graph = mugraphs.side_product(16, 256, 128, 16, schedule=schedule)
    run = TritonExecutable(graph)
    draws = [on_gpu(graph, seed) for seed in range(8)]
    right = [run(*inputs)[0].clone() for inputs in draws]
    for inputs, out in zip(draws, right, strict=True):
        check(graph, inputs, [out])
    inputs = [t.clone() for t in draws[0]]
    replayed = torch.cuda.CUDAGraph()
    with torch.cuda.graph(replayed):
        outs = [_written_and_run(run, inputs, draws[at % 8]) for at in range(400)]
    for _ in range(5):
        replayed.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(o, right[at % 8]) for at, o in enumerate(outs))
    outs = [_written_and_run(run, inputs, draws[at % 8]) for at in range(400)]
    assert all(torch.equal(o, right[at % 8]) for at, o in enumerate(outs))


def _written_and_run(
    run: TritonExecutable, inputs: Sequence[torch.Tensor], new: Sequence[torch.Tensor]
) -> torch.Tensor:
    for tensor, values in zip(inputs, new, strict=True):
        tensor.copy_(values)
    return run(*inputs)[0]


def steps(early: int) -> KernelGraph:
    """A product with constant weights, whose result can be the next one's operand."""
    g = KernelBuilder("step", m=32, k=512, n=512)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    with g.block(grid={"n": 32}, loop=("k", 128), schedule=Schedule(num_stages=1)) as b:
        xt, wt = b.load(x, "m, k/loop"), b.load(w, "k/loop, n/grid")
        product = b.matmul(xt, wt, over="k")
        y = b.store(b.tanh(b.accumulate(product)), "m, n/grid", dtype=f16)
    graph = launched_early(g.returns(y).build(), first=True, constant={"w"})
    return graph.with_schedules(lambda b: replace(b.schedule, early=early))


@pytest.mark.parametrize("early", [1, 2, 4])
def test_a_chain_whose_weights_are_loaded_before_the_wait(early: int) -> None:
    """Each call's operand is what the one ahead of it makes."""
    graph = steps(early)
    run, plain = TritonExecutable(graph), TritonExecutable(launched_in_turn(graph))
    assert plan(graph).source.index("w_ptr +") < plan(graph).source.index("gdc_wait() ")
    x, w = on_gpu(graph)
    right, found = [x], [torch.empty_like(x) for _ in range(300)]
    for _ in found:
        right.append(plain(right[-1], w)[0].clone())
    run(x, w, out=[torch.empty_like(x)])
    replayed = torch.cuda.CUDAGraph()
    with torch.cuda.graph(replayed):
        for at, y in enumerate(found):
            run(found[at - 1] if at else x, w, out=[y])
    for _ in range(5):
        for y in found:
            y.zero_()
        torch.cuda.synchronize()
        replayed.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(y, r) for y, r in zip(found, right[1:], strict=True))


@pytest.mark.parametrize("early", [False, True])
def test_edges_of_a_capture(early: bool) -> None:
    graph = attention(pdl=early)
    run = TritonExecutable(graph)
    inputs = on_gpu(graph)
    run(*inputs)
    replayed, _ = captured(run, [inputs] * 3)
    kinds = edges(replayed)
    assert len(kinds) == 5
    assert set(kinds) == {EARLY if early else 0}


def test_the_first_call_is_not_captured() -> None:
    graph = mugraphs.gated_mlp(16, 256, 128)
    run = TritonExecutable(graph)
    inputs = on_gpu(graph)
    with pytest.raises(CompileError, match="call it once with such tensors before"):
        captured(run, [inputs])
    check(graph, inputs, run(*inputs))


def test_a_search_is_not_captured() -> None:
    @mirage.kernel
    def norm(x: Any) -> Any:
        return mirage.rms_norm(x)

    x = torch.randn(8, 256, device="cuda").half()
    with (
        pytest.raises(CompileError, match="call it once before capturing"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        norm(x)
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", GRAPHS)
def test_threads_and_streams(name: str) -> None:
    """Threads are new, so that they have no CUDA context of their own yet."""
    graph = GRAPHS[name]()
    run = TritonExecutable(graph)
    draws = [on_gpu(graph, seed) for seed in range(6)]
    right = [run(*inputs)[0].clone() for inputs in draws]
    torch.cuda.synchronize()
    wrong: list[object] = []

    def work(at: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    outs = [run(*draws[at])[0] for _ in range(20)]
                    same = torch.stack([(o == right[at]).all() for o in outs]).all()
                    if not same:
                        wrong.append(at)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(draws))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_first_calls_in_several_threads() -> None:
    graph = mixed()
    run = TritonExecutable(graph)
    inputs = on_gpu(graph)
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(run(*inputs))
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for outs in found:
        check(graph, inputs, outs)


@pytest.mark.parametrize("name", GRAPHS)
def test_results_in_tensors_of_the_caller(name: str) -> None:
    graph = GRAPHS[name]()
    run = TritonExecutable(graph)
    inputs = on_gpu(graph)
    right = run(*inputs)[0]
    cache = torch.zeros(4, *right.shape[:-1], 3, right.shape[-1], device="cuda").half()
    for at in range(4):
        place = cache[at, ..., at % 3, :]
        for _ in range(2):
            place.zero_()
            assert run(*inputs, out=[place])[0] is place
            assert torch.equal(place, right)
    written = cache.abs().sum((*range(1, right.dim()), -1))
    assert (written > 0).sum() == 4


@mirage.kernel(effort="none")
def linear(x: Any, w: Any) -> Any:
    return mirage.rms_norm(x) @ w


def test_memory_of_any_layout() -> None:
    graph = mugraphs.gated_mlp(16, 256, 128)
    run = TritonExecutable(graph)
    x, w1, w2 = on_gpu(graph)
    shifted = torch.empty(x.numel() + 1, device="cuda").half()[1:].view_as(x).copy_(x)
    wide = torch.empty(32, 512, device="cuda").half()[::2, ::2].copy_(x)
    padded = torch.empty(16, 264, device="cuda").half()[:, :256].copy_(x)
    turned = w1.T.contiguous().T
    for given in ((x, turned, w2), (shifted, w1, w2), (wide, w1, w2), (padded, w1, w2)):
        check(graph, given, run(*given))
        check(graph, given, run(*given))
    w = w1[:, :64]
    torch.testing.assert_close(linear(x, w), linear(x, w.contiguous()))
    with pytest.raises(ShapeError, match="empty"):
        linear(x[:0], w)


def test_keywords_and_outputs() -> None:
    x, w = torch.randn(6, 64, device="cuda").half(), torch.randn(64, 8).cuda().half()
    cache = torch.zeros(6, 3, 8, device="cuda").half()
    first = linear(x, w)
    assert kernel_of(linear)._into.last is None
    for turn in range(3):
        x.mul_(-1)
        right = first if turn % 2 else -first
        assert torch.equal(linear(x, w), right)
        assert torch.equal(linear(w=w, x=x), right)
        assert linear(x, w, out=cache[:, 1]).data_ptr() == cache[:, 1].data_ptr()
        assert torch.equal(cache[:, 1], right)
    assert kernel_of(linear)._into.last is not None
    assert not cache[:, ::2].any()


def kernel_of(kernel: mirage.Kernel) -> TritonExecutable:
    """What ran its last kind of call."""
    *_, bound = kernel._bound.values()
    assert bound._executables is not None
    *_, run = bound._executables._known.values()
    return run


def test_parameters_and_modes() -> None:
    graph = mugraphs.gated_mlp(16, 256, 128)
    run = TritonExecutable(graph)
    x, w1, w2 = on_gpu(graph)
    right = run(x, w1, w2)[0]
    weight = torch.nn.Parameter(w1)
    assert run.direct is not None
    assert run.direct.first(x, weight, w2) is None
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = run.direct.first(x, weight, w2)
            assert found is not None
            assert torch.equal(found, right)


def test_another_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one device")
    graph = attention(pdl=True, descriptors=True)
    run = TritonExecutable(graph)
    here = on_gpu(graph)
    there = [t.to("cuda:1") for t in here]
    for inputs in (here, there, here, there):
        check(graph, inputs, run(*inputs))
    with torch.cuda.device(1):
        check(graph, there, run(*there))
        check(graph, here, run(*here))
