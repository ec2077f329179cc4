"""The graph builder makes the programs that decorated functions make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.api.graph import constraints
from mirage_dsl.core.errors import (
    DTypeError,
    EquivalenceError,
    SearchError,
    ShapeError,
    TraceError,
    UnsupportedError,
)
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph, RunningMax


def attention() -> KernelGraph:
    g = mirage.new_kernel_graph()
    q = g.new_input(dims=(2, 16, 64), dtype=mirage.float16)
    k = g.new_input(dims=(2, 64, 32), dtype=mirage.float16)
    v = g.new_input(dims=(2, 32, 64), dtype=mirage.float16)
    a = g.matmul(q, k)
    e = g.exp(a)
    s = g.reduction(e, 2)
    d = g.div(e, s)
    o = g.matmul(d, v)
    g.mark_output(o)
    return g.program


def test_grouped_query_attention_as_mirage_writes_it() -> None:
    def function(x0: Any, x1: Any, x2: Any) -> Any:
        e = mirage.exp(x0 @ x1)
        return (e / e.sum(2, keepdims=True)) @ x2

    specs = [mirage.spec(s) for s in ((2, 16, 64), (2, 64, 32), (2, 32, 64))]
    traced = trace_function(function, specs, name="program")
    assert attention() == traced


def test_norm_and_product() -> None:
    g = mirage.new_graph()
    x = g.new_input(dims=(4, 8), dtype=mirage.float32)
    w = g.new_input(dims=(8, 6), dtype="float32", strides=(1, 8))
    g.mark_output(g.matmul(g.rms_norm(x, normalized_shape=(8,)), w))
    g.mark_output(g.softmax(x))
    program = g.program
    assert program.inputs[1].type.layout == (1, 0)
    a, b = np.random.default_rng(0).normal(size=(2, 8, 6))
    a = a.reshape(6, 8)[:4]
    y, p = evaluate_numpy(program, a, b)
    scale = np.sqrt((a * a).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(y, (a / scale) @ b)
    np.testing.assert_allclose(p.sum(-1), 1)


def test_elementwise_operators_and_clamp() -> None:
    g = mirage.new_kernel_graph()
    x = g.new_input(dims=(3, 4), dtype=mirage.float32)
    y = g.new_input(dims=(1, 4), dtype=mirage.float32)
    z = g.clamp(g.mul(g.add(g.square(x), y), g.sub(x, y)), -1.0, 1.0)
    for out in (z, g.pow(x, 2), g.silu(x), g.gelu(x), g.relu(x), g.sqrt(g.square(x))):
        g.mark_output(out)
    a, b = np.random.default_rng(0).normal(size=(3, 4)), np.ones((1, 4))
    found = evaluate_numpy(g.program, a, b)
    np.testing.assert_allclose(found[0], np.clip((a * a + b) * (a - b), -1, 1))
    np.testing.assert_allclose(found[1], a * a)
    np.testing.assert_allclose(found[5], np.abs(a))


def test_errors_name_the_line() -> None:
    g = mirage.new_kernel_graph()
    x = g.new_input(dims=(3, 4))
    with pytest.raises(ShapeError) as error:
        g.matmul(x, x)
    assert error.value.location is not None
    assert "g.matmul(x, x)" in error.value.location.text
    with pytest.raises(TraceError, match="no output"):
        _ = g.program
    with pytest.raises(TraceError, match="mark_output takes a tensor"):
        g.mark_output(3)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="strides"):
        g.mark_output(g.exp(x), strides=(8, 2))
    g.mark_output(g.exp(x), strides=(4, 1))
    _ = g.program
    with pytest.raises(TraceError, match="no more operators"):
        g.exp(x)


def test_search_parameters_become_constraints() -> None:
    found = constraints(
        [(16, 1, 1), 4, (2, 2)], [(128, 1, 1)], [(0, -1, -1)], [1], [-1, 1], [4]
    )
    assert found is not None
    assert found.griddims == ((16, 1, 1), (4, 1, 1), (2, 2, 1))
    assert found.blockdims == ((128, 1, 1),)
    assert found.imaps == ((0, -1, -1),)
    assert found.omaps == ((1, -1, -1),)
    assert found.fmaps == (-1, 1)
    assert found.franges == (4,)
    assert constraints(None, None, None, None, None, None) is None
    with pytest.raises(SearchError, match="griddims"):
        constraints([(1, 2, 3, 4)], None, None, None, None, None)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("griddims", [(0, 1, 1)], "found 0, expected integers from 1 on"),
        ("griddims", 6, "found 6, expected a list of triples"),
        ("griddims", [("a", 1, 1)], "found 'a', expected integers"),
        ("imaps", [(-2, 0, 0)], "found -2, expected integers from -1 on"),
        ("fmaps", "xy", "found 'xy', expected a list of integers"),
        ("franges", [0], "found 0, expected integers from 1 on"),
        ("franges", [-1], "found -1, expected integers from 1 on"),
    ],
)
def test_search_parameters_that_mean_nothing(
    name: str, given: Any, expected: str
) -> None:
    with pytest.raises(SearchError, match=f"{name}: {expected}"):
        rms_linear().superoptimize(**{name: given})


def test_no_time_is_refused() -> None:
    with pytest.raises(SearchError, match="budget_seconds=0; expected"):
        rms_linear().superoptimize(budget_seconds=0)


def test_a_checkpoint_of_another_program_is_no_answer(tmp_path: Path) -> None:
    def scaled(by: float, *, twice: bool = False) -> mirage.Graph:
        g = mirage.new_kernel_graph()
        x = g.new_input(dims=(3, 4))
        g.mark_output(g.add(x, x) if twice else g.mul(x, by))
        return g

    file = tmp_path / "found.json"
    mirage.superoptimize(scaled(2), previous_checkpoint=file, effort="none")
    for other in (mirage.superoptimize, mirage.Graph.superoptimize):
        with pytest.raises(EquivalenceError, match="was written for another program"):
            other(scaled(3), previous_checkpoint=file)
    found = mirage.superoptimize(scaled(2, twice=True), previous_checkpoint=file)
    assert found.program == scaled(2, twice=True).program
    assert found.best.certificate is not None
    assert found.best.certificate.ok


def test_a_checkpoint_of_another_program_is_verified_within_the_budget(
    tmp_path: Path,
) -> None:
    def product(*, turned: bool) -> mirage.Graph:
        g = mirage.new_kernel_graph()
        x, y = g.new_input(dims=(64, 128)), g.new_input(dims=(64, 128))
        g.mark_output(g.add(y, x) if turned else g.add(g.mul(x, 1), y))
        return g

    def told(stage: str, done: int, of: int, best: float | None) -> None:
        seen.append((stage, done, of, best is not None))

    file = tmp_path / "found.json"
    first, other = (product(turned=t) for t in (False, True))
    count = len(mirage.superoptimize(first, previous_checkpoint=file))
    assert count > 1
    options: dict[str, Any] = {"previous_checkpoint": file, "progress": told}
    seen: list[tuple[Any, ...]] = []
    assert len(mirage.superoptimize(other, **options)) == count
    assert seen == [("verify", n, count, n > 0) for n in range(count + 1)]
    found = mirage.superoptimize(other, **options, budget_seconds=1e-9)
    assert (len(found), found.cut_short) == (1, True)


def test_superoptimize_takes_programs() -> None:
    program = attention()
    result = mirage.superoptimize(program, effort="none")
    assert result.best.mugraph == program
    with pytest.raises(SearchError, match=r"kernel\.trace"):
        mirage.superoptimize(lambda x: x)  # type: ignore[arg-type]


def test_a_kernel_of_a_graph(tmp_path: Path) -> None:
    g = mirage.new_kernel_graph()
    x = g.new_input(dims=(3, 4))
    g.mark_output(g.exp(x))
    g.mark_output(g.add(x, 1))
    checkpoint = tmp_path / "result.json"
    kernel = g.superoptimize(effort="none", previous_checkpoint=checkpoint)
    assert checkpoint.exists()
    a = np.ones((3, 4), np.float16)
    first, second = kernel(inputs=[a])
    np.testing.assert_allclose(first, np.exp(a), rtol=1e-3)
    np.testing.assert_array_equal(second, a + 1)
    kernel.generate_triton_program(tmp_path / "program.py")
    assert (tmp_path / "program.py").read_text().startswith(kernel.to_triton_code())
    again = g.superoptimize(previous_checkpoint=checkpoint)
    assert again.mugraph == kernel.mugraph
    with pytest.raises(SearchError, match="backend"):
        g.superoptimize(backend="hip")


def test_tensors_of_another_graph_are_refused() -> None:
    g, h = mirage.new_kernel_graph(), mirage.new_kernel_graph()
    x = g.new_input(dims=(4, 8), dtype=mirage.float16)
    with pytest.raises(TraceError, match="another graph"):
        h.exp(x)


def test_a_graph_runs_as_it_was_built() -> None:
    g = mirage.new_kernel_graph()
    x = g.new_input(dims=(4, 8), dtype=mirage.float16)
    g.mark_output(g.exp(x))
    given = np.ones((4, 8), np.float16)
    for _ in range(2):
        (found,) = g(inputs=[given])
        np.testing.assert_allclose(found, np.exp(given), rtol=1e-3)


def chain() -> tuple[mirage.Graph, Any, Any]:
    """A graph, a tensor in its middle, and its output."""
    g = mirage.new_kernel_graph()
    middle = g.exp(g.new_input(dims=(3, 4), dtype=mirage.float32))
    end = g.add(middle, 1)
    g.mark_output(end)
    return g, middle, end


def test_outputs_of_a_call_are_those_that_it_asks_for() -> None:
    g, middle, end = chain()
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for _ in range(2):
        (found,) = g(inputs=[x], outputs=[middle])
        np.testing.assert_allclose(found, np.exp(x), rtol=1e-6)
        (found,) = g(inputs=[x])
        np.testing.assert_allclose(found, np.exp(x) + 1, rtol=1e-6)
        first, second = g(inputs=[x], outputs=(end, middle))
        np.testing.assert_allclose(first - 1, second, rtol=1e-5)
    with pytest.raises(UnsupportedError, match="asks for nothing"):
        g(inputs=[x], outputs=[])
    for wrong in (x, chain()[1]):
        with pytest.raises(TraceError, match="outputs= takes a tensor of this graph"):
            g(inputs=[x], outputs=[wrong])


X = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    ("named", "call"),
    [
        ("profiling=", lambda g: g(inputs=[X], profiling=True)),
        ("outputz=", lambda g: g(inputs=[X], outputz=[])),
        ("stream='s'", lambda g: g(inputs=[X], stream="s")),
        ("target_cc=", lambda g: g.compile(inputs=[X], target_cc=90)),
        ("'async_'|async_=", lambda g: g.compile(async_=True)),
        ("outputs=", lambda g: g.compile()(inputs=[X], outputs=[])),
        ("'save_code'", lambda g: g.superoptimize(save_code=True)),
        ("'verbose'", lambda g: mirage.superoptimize(g, verbose=True)),
        ("'max_kernelz'", lambda g: g.compile().bound.search(max_kernelz=1)),
        ("config='fast'", lambda g: g.superoptimize(config="fast")),
        (
            "limits or constraints",
            lambda g: g.superoptimize(
                franges=[4], constraints=constraints(*[None] * 5, [4])
            ),
        ),
        (
            "limits or constraints",
            lambda g: mirage.superoptimize(
                g, franges=[4], constraints=constraints(*[None] * 5, [4])
            ),
        ),
        (
            "previous_checkpoint or checkpoint",
            lambda g: g.superoptimize(previous_checkpoint="no/file", checkpoint="f"),
        ),
    ],
)
def test_arguments_without_a_meaning_are_refused_by_name(
    named: str, call: Callable[[Any], Any]
) -> None:
    with pytest.raises((UnsupportedError, SearchError), match=named):
        call(chain()[0])


@pytest.mark.parametrize(
    ("named", "call"),
    [
        ("'dtype'|dtype", lambda g, x: g.exp(x, dtype="float32")),
        ("'axes'", lambda g, x: g.softmax(x, axes=0)),
        ("'epsilon'", lambda g, x: g.rms_norm(x, (4,), epsilon=1)),
        ("'epsilon'", lambda g, x: g.layer_norm(x, (4,), epsilon=1)),
        ("normalized_shape, not both", lambda g, x: g.rms_norm(x, (4,), axis=0)),
        ("normalized_shape, not both", lambda g, x: g.layer_norm(x, (4,), axis=0)),
        ("normalized_shape is a tensor", lambda g, x: g.rms_norm(x, x)),
    ],
)
def test_arguments_that_an_operator_has_not_are_refused_by_name(
    named: str, call: Callable[[Any, Any], Any]
) -> None:
    g = mirage.new_kernel_graph()
    x = g.new_input(dims=(3, 4))
    with pytest.raises((UnsupportedError, ShapeError), match=named) as error:
        call(g, x)
    assert error.value.location is not None


def test_inputs_of_a_compilation_are_checked() -> None:
    g, _, _ = chain()
    assert g.compile(inputs=[X]).mugraph == g.compile().mugraph
    with pytest.raises(ShapeError, match=r"\(3, 4\)"):
        g.compile(inputs=[X.T])
    with pytest.raises(ShapeError, match=r"\(3, 4\)"):
        g.compile(inputs=[X, X])
    with pytest.raises(DTypeError, match="float16"):
        g.compile(inputs=[X.astype(np.float16)])


# -- Programs that were written for Mirage ---------------------------------------------


def rms_linear() -> mirage.Graph:
    g = mirage.new_kernel_graph()
    x = g.new_input(dims=(1, 64), dtype=mirage.float32)
    w = g.new_input(dims=(64, 32), dtype=mirage.float32)
    g.mark_output(g.matmul(g.rms_norm(x, normalized_shape=(64,)), w))
    return g


def normed(x: Any, w: Any) -> Any:
    return (x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)) @ w


def test_the_arguments_of_mirages_superoptimize(tmp_path: Path) -> None:
    checkpoint = tmp_path / "found.json"
    options: dict[str, Any] = {
        "config": "mlp",
        "backend": "cuda",
        "previous_checkpoint": checkpoint,
        "verbose": False,
        "save_codes": False,
        "use_cached_graphs": False,
        "warmup_iters": 2,
        "profile_iters": 6,
    }
    kernel = rms_linear().superoptimize(**options)
    x, w = np.random.default_rng(0).normal(size=(2, 64, 32)).astype(np.float32)
    x = x.reshape(-1)[:64].reshape(1, 1, 64)
    (y,) = kernel(inputs=[x, w])
    np.testing.assert_allclose(y, normed(x[0], w), rtol=1e-4, atol=1e-4)
    again = rms_linear().superoptimize(**options)
    assert again.mugraph == kernel.mugraph
    assert [kernel.cygraph.get_input_dtensor_layout(d) for d in kernel.cygraph
            .get_input_dtensors()] == [(64, 1), (32, 1)]  # fmt: skip

    first = kernel.get_input_dtensors()[0]
    shape, strides = kernel.get_input_dtensor_shape_and_stride(first)
    assert (shape, strides) == ((1, 64), (64, 1))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("is_formal_verified", True, "bound the error"),
        ("profile_iters", -1, "expected a number of launches"),
        ("warmup_iters", "many", "expected a number of launches"),
        ("backend", "nki", "expected one of reference, triton"),
        ("num_search_thread", 4, "num_search_thread"),
    ],
)
def test_arguments_that_mean_nothing_are_named(
    option: str, value: Any, message: str
) -> None:
    with pytest.raises(mirage.MirageError, match=message):
        rms_linear().superoptimize(**{option: value})


def test_sources_of_all_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kernel = rms_linear().superoptimize(save_codes=True)
    assert kernel.result is not None
    files = sorted((tmp_path / "generated_codes").iterdir())
    assert len(files) == len(kernel.result)
    assert "import" in files[0].read_text()


def test_a_result_is_listed_and_called(tmp_path: Path) -> None:
    found = mirage.superoptimize(
        rms_linear(), previous_checkpoint=tmp_path / "found.json"
    )
    for i, mugraph in enumerate(found):
        mugraph.generate_triton_program(tmp_path / f"program_{i}.py")
    first = (tmp_path / "program_0.py").read_text()
    assert first.startswith(found.kernel.to_triton_code())
    x, w = np.ones((1, 64), np.float32), np.ones((64, 32), np.float32)
    (y,) = found([x, w])
    np.testing.assert_allclose(y, normed(x, w), rtol=1e-4)
    again = mirage.optimize(
        rms_linear(), previous_checkpoint=tmp_path / "found.json", effort="none"
    )
    assert again.best == found.best


def test_the_program_of_a_graph_as_text() -> None:
    g = rms_linear()
    kernel = g.superoptimize()
    for given in (kernel.cygraph, kernel.mugraph, kernel):
        made = mirage.generate_triton_program(given, target_cc=90)
        assert made == {"code": kernel.to_triton_code(), "output_shapes": [[1, 32]]}
    strides = [(64, 1), (32, 1)]
    cuda = mirage.generate_cuda_program(g.cygraph, target_cc=86, input_strides=strides)
    assert cuda["output_shapes"] == [[1, 32]]
    with pytest.raises(TraceError, match="a program of int"):
        mirage.generate_triton_program(3)
    with pytest.raises(UnsupportedError, match="no profiler"):
        mirage.generate_cuda_program(g, target_cc=86, profiling=True)
    with pytest.raises(UnsupportedError, match="speed"):
        mirage.generate_cuda_program(g, target_cc=86, speed=11)


def test_online_softmax_and_the_pipeline_are_asked_for_in_a_call() -> None:
    g = mirage.new_kernel_graph()
    q = g.new_input(dims=(16, 8), dtype=mirage.float32)
    k = g.new_input(dims=(8, 64), dtype=mirage.float32)
    tb = mirage.new_threadblock_graph((1, 1, 1), (128, 1, 1), 4, 1)
    bq = tb.new_input(q, (-1, -1, -1), -1)
    bk = tb.new_input(k, (-1, -1, -1), 1)
    e = tb.exp(tb.matmul(bq, bk))
    total = tb.forloop_accum(tb.mul_scalar(e, 0.125), "sum")
    tb.new_output(tb.div(tb.forloop_accum(e, "sum"), total), (-1, -1, -1))
    g.mark_output(g.customized([q, k], tb)[0])
    a, b = np.ones((16, 8), np.float32) * 9, np.ones((8, 64), np.float32) * 2
    (y,) = g(inputs=[a, b], enable_online_softmax=True, pipeline_stages=4)
    np.testing.assert_allclose(y, np.full((16, 1), 8.0), rtol=1e-6)
    assert not any(
        isinstance(n, RunningMax) for n in g.compile().mugraph.blocks[0].made
    )
    kernel = g.compile(enable_online_softmax=True, num_warp_groups=3, pipeline_stages=4)
    (block,) = kernel.mugraph.blocks
    assert any(isinstance(n, RunningMax) for n in block.made)
    assert (block.schedule.num_warps, block.schedule.num_stages) == (8, 4)
    with pytest.raises(UnsupportedError, match="no profiler"):
        g(inputs=[a, b], profiling=True)


def test_dtypes_and_devices() -> None:
    torch = pytest.importorskip("torch")
    assert mirage.convert_dtype_to_torch_type(mirage.bfloat16) is torch.bfloat16
    with pytest.raises(DTypeError, match="is no dtype"):
        mirage.convert_dtype_to_torch_type("float17")
    with pytest.raises(UnsupportedError, match="PyTorch sees"):
        mirage.set_gpu_device_id(99)


def test_a_drawing_names_every_kernel(tmp_path: Path) -> None:
    kernel = rms_linear().superoptimize()
    kernel.visualize(tmp_path / "best")
    drawn = (tmp_path / "best.dot").read_text()
    for node in kernel.mugraph.blocks[0].nodes:
        assert f'"0: {node.result}" [label=' in drawn
    assert drawn.count("{") == drawn.count("}")
    rms_linear().visualize(tmp_path / "program")
    assert "matmul" in (tmp_path / "program.dot").read_text()


def test_all_mugraphs_are_listed_and_verified_when_taken() -> None:
    listed = mirage.superoptimize(rms_linear(), all=True, max_kernels=1)
    best = mirage.superoptimize(rms_linear(), max_kernels=1, use_cache=False)
    assert len(listed) > len(best)
    assert listed.complete
    assert listed.ledger.found["verified"] == 0
    first = next(iter(listed))
    assert first.cost.microseconds == best.best.cost.microseconds
    verified = listed.ledger.found["verified"]
    assert 0 < verified <= 2
    taken = list(listed)
    assert all(c.certificate is not None and c.certificate.ok for c in taken)
    assert len({str(c.mugraph) for c in taken}) == len(taken) <= len(listed)
    assert {str(c.mugraph) for c in best if c.mugraph.blocks} <= {
        str(c.mugraph) for c in taken
    }
    with pytest.raises(UnsupportedError, match="effort="):
        mirage.superoptimize(rms_linear(), all=True, effort="full")
    narrow = mirage.superoptimize(rms_linear(), all=True, griddims=[(2, 1, 1)])
    for candidate in narrow:
        for block in candidate.mugraph.blocks:
            assert [s.tile for s in block.grid] in ([16], [32])
