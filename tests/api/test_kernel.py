"""Kernels: calls, structures of outputs, inlining, binding, pinned μGraphs."""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import (
    CheckError,
    CompileError,
    EquivalenceError,
    ParseError,
    RefusedError,
    SearchError,
    ShapeError,
    TraceError,
    UnsupportedError,
)
from mirage_dsl.core.hardware import H200, PROPERTIES
from mirage_dsl.core.settings import DETERMINISTIC, INTERPRET


def half(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float16)


@mirage.kernel
def rms_linear(x: Any, w: Any) -> Any:
    """The norm, then a product."""
    return mirage.rms_norm(x) @ w


def expected_rms_linear(x: Any, w: Any) -> Any:
    x, w = x.astype(np.float64), w.astype(np.float64)
    return (x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)) @ w


def test_arrays_in_arrays_out() -> None:
    x, w = half(4, 32), half(32, 16)
    y = rms_linear(x, w)
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, expected_rms_linear(x, w).astype(np.float16))
    np.testing.assert_array_equal(rms_linear.reference(x, w), y)


def test_cpu_tensors_run_the_reference() -> None:
    x, w = half(4, 32), half(32, 16)
    y = rms_linear(torch.from_numpy(x), torch.from_numpy(w))
    assert y.dtype == torch.float16
    np.testing.assert_array_equal(y.numpy(), rms_linear(x, w))


def test_bfloat16_goes_both_ways() -> None:
    x, w = (
        half(4, 32).astype(ml_dtypes.bfloat16),
        half(32, 16).astype(ml_dtypes.bfloat16),
    )
    y = rms_linear(x, w)
    assert y.dtype == ml_dtypes.bfloat16
    tensors = (torch.from_numpy(a.astype(np.float32)).bfloat16() for a in (x, w))
    z = rms_linear(*tensors)
    assert z.dtype == torch.bfloat16
    np.testing.assert_array_equal(z.float().numpy(), y.astype(np.float32))


def test_a_kernel_looks_like_its_function() -> None:
    assert rms_linear.__name__ == "rms_linear"
    assert rms_linear.__doc__ == "The norm, then a product."
    assert rms_linear.__module__ == __name__
    assert repr(rms_linear) == "<mirage kernel rms_linear>"


class Pair(NamedTuple):
    first: Any
    second: Any


def test_structures_of_outputs() -> None:
    @mirage.kernel
    def function(x: Any) -> Any:
        return {"a": x * 2, "b": [x + 1, (x.T, x)], "c": Pair(x.sum(), -x)}

    x = half(3, 4)
    found = function(x)
    assert list(found) == ["a", "b", "c"]
    assert isinstance(found["b"], list)
    assert isinstance(found["b"][1], tuple)
    assert isinstance(found["c"], Pair)
    np.testing.assert_array_equal(found["a"], x * 2)
    np.testing.assert_array_equal(found["b"][1][0], x.T)
    np.testing.assert_array_equal(found["b"][1][1], x)
    assert found["c"].first.shape == ()


class Named(dict[str, Any]):
    """A dict with attributes, as models return."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def test_dicts_of_other_classes_are_returned_as_such() -> None:
    makers = (
        lambda x: OrderedDict(b=x * 2, a=x + 1),
        lambda x: defaultdict(list, {"b": x * 2, "a": x + 1}),
        lambda x: Named(b=x * 2, a=x + 1),
    )
    x = np.ones((2, 3), np.float32)
    for function in makers:
        for found in (mirage.kernel(function)(x), mirage.kernel(function)(x)):
            assert type(found) is type(function(x))
            assert list(found) == ["b", "a"]
            assert (found["b"] == 2).all()
    assert mirage.kernel(makers[1])(x)["new"] == []
    assert (mirage.kernel(makers[2])(x).a == 2).all()


def test_structures_of_arguments_and_constants() -> None:
    @mirage.kernel
    def function(
        x: Any,
        weights: Any,
        *rest: Any,
        scale: float = 2.0,
        flag: bool = False,
        **more: Any,
    ) -> Any:
        y = x @ weights["up"] + weights["bias"][0]
        for r in rest:
            y = y + r
        return y * scale if flag else y * more["other"]

    x, up, bias, one = half(3, 4), half(4, 5), half(5), half(3, 5)
    weights = {"up": up, "bias": [bias]}
    program = function.trace(
        mirage.spec((3, 4)),
        {"up": mirage.spec((4, 5)), "bias": [mirage.spec((5,))]},
        flag=True,
    )
    assert [i.name for i in program.inputs] == ["x", "weights_up", "weights_bias_0"]
    plain = x.astype(np.float64) @ up + bias
    np.testing.assert_allclose(function(x, weights, flag=True), plain * 2, rtol=2e-3)
    np.testing.assert_allclose(
        function(x, weights, flag=True, scale=3), plain * 3, rtol=2e-3
    )
    found = function(x, weights, one, one, other=one)
    np.testing.assert_allclose(found, (plain + 2.0 * one) * one, rtol=2e-2, atol=2e-2)


def test_constants_may_come_first() -> None:
    kernel = mirage.kernel(lambda scale, x: scale * x)
    x = half(3, 4)
    np.testing.assert_array_equal(kernel(2.0, x), 2 * x)
    np.testing.assert_array_equal(kernel(2.0, torch.from_numpy(x)).numpy(), 2 * x)


def test_kernels_are_inlined() -> None:
    @mirage.kernel
    def twice(x: Any, w: Any) -> Any:
        return rms_linear(x, w) * 2

    direct = mirage.kernel(lambda x, w: (mirage.rms_norm(x) @ w) * 2)
    specs = mirage.spec((4, 32)), mirage.spec((32, 16))
    assert twice.trace(*specs).nodes == direct.trace(*specs).nodes


def test_one_program_for_each_shape_dtype_and_constant() -> None:
    traces: list[Any] = []

    @mirage.kernel
    def function(x: Any, scale: float = 1.0) -> Any:
        traces.append(x.shape)
        return x * scale

    for _ in range(2):
        function(half(3, 4))
        function(half(3, 4), 2.0)
        function(half(4, 3))
        function(half(3, 4).astype(np.float32))
    assert len(traces) == 4
    function(half(4, 3).T)
    assert len(traces) == 5


def test_bind_takes_specs_or_tensors() -> None:
    x, w = half(4, 32), half(32, 16)
    by_spec = rms_linear.bind(mirage.spec((4, 32)), mirage.spec((32, 16), mirage.f16))
    assert by_spec is rms_linear.bind(x, w)
    assert by_spec.program == rms_linear.trace(x, w)
    np.testing.assert_array_equal(by_spec(x, w), rms_linear(x, w))
    with pytest.raises(ShapeError, match="takes 2 tensors"):
        by_spec(x)


def test_symbolic_extents_cannot_be_searched() -> None:
    symbolic = mirage.kernel(lambda x: x * 2).bind(mirage.spec(("m", 8)))
    with pytest.raises(SearchError, match="symbolic"):
        symbolic.search()


def test_effort_none_is_the_program() -> None:
    kernel = mirage.kernel(effort="none")(rms_linear.function)
    bound = kernel.bind(mirage.spec((4, 32)), mirage.spec((32, 16)))
    assert bound.mugraph == bound.program
    assert "def run(" in bound.to_triton_code()
    assert bound.tiles() == "tiles 1\n"
    assert bound.verify().ok


MUGRAPH = """
mirage 1
mugraph rms_linear(x: f16[m, k], w: f16[k, n]) -> f16[m, n]
    where m = 4, k = 32, n = 16 {
  y = block grid(n / 16) loop(k / 16) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    a = accumulate matmul(xt, wt)
    s = accumulate square(xt)
    q = a / sqrt(sum(s, k) * 1/k + 1e-06)
    store y: f16[m, n/grid] = q
  }
  return y
}
"""


def bound_rms_linear() -> mirage.BoundKernel:
    return mirage.kernel(rms_linear.function).bind(
        mirage.spec((4, 32)), mirage.spec((32, 16))
    )


def refuse(*_: object) -> None:
    """As a compiler that crashes on every generated kernel."""
    raise RefusedError("Triton refuses rms_linear_kernel0: PassManager::run failed")


def test_library_kernels_stand_for_what_does_not_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prepare = TritonExecutable._prepare

    def prepared(self: Any, made: Any, tensors: Any) -> Any:
        return refuse() if made.kernels else prepare(self, made, tensors)

    monkeypatch.setattr(TritonExecutable, "_prepare", prepared)
    x, w = half(4, 32), half(32, 16)
    tensors = torch.from_numpy(x), torch.from_numpy(w)
    kernel = mirage.kernel(rms_linear.function)
    bound = kernel.bind(*tensors)
    assert bound.search().best.mugraph.blocks
    with INTERPRET.scope(value=True):
        for _ in range(2):
            found = bound(*tensors).numpy()
            expected = expected_rms_linear(x, w)
            np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)
        assert caplog.text.count("rms_linear is left to library kernels: Triton") == 1
        bound.use(MUGRAPH)
        with pytest.raises(CompileError, match="Triton refuses"):
            bound(*tensors)


def test_a_given_mugraph_is_verified_and_run() -> None:
    bound = bound_rms_linear()
    certificate = bound.use(MUGRAPH)
    assert certificate.ok
    assert len(bound.mugraph.blocks) == 1
    assert "tl.dot" in bound.to_triton_code()
    assert bound.verify().ok
    assert "kernels" in str(bound.explain())
    assert_right_in_the_interpreter(bound)


def assert_right_in_the_interpreter(bound: mirage.BoundKernel) -> None:
    x, w = half(4, 32), half(32, 16)
    with INTERPRET.scope(value=True):
        found = bound(torch.from_numpy(x), torch.from_numpy(w))
    np.testing.assert_allclose(
        found.numpy(), expected_rms_linear(x, w), rtol=1e-2, atol=1e-2
    )


def test_a_program_that_verification_cannot_decide_may_be_used() -> None:
    """It is what was asked for; what only resembles it is refused still."""

    def stencil(x: Any) -> Any:
        flat = (x * x.sum(-1, keepdim=True)).reshape(-1)
        return flat[1:] - flat[:-1]

    bound = mirage.kernel(stencil).bind(mirage.spec((10, 20)))
    program = bound.program
    assert bound.use(program).ok
    other = str(program).replace("sub", "add")
    assert other != str(program)
    with pytest.raises(EquivalenceError, match="more than 64 pieces"):
        bound.use(other)


def test_a_pinned_mugraph_is_used() -> None:
    kernel = mirage.kernel(mugraph=MUGRAPH)(rms_linear.function)
    bound = kernel.bind(mirage.spec((4, 32)), mirage.spec((32, 16)))
    assert len(bound.mugraph.blocks) == 1


def test_kernels_that_overlap_wait_for_what_is_ahead() -> None:
    kernel = mirage.kernel(mugraph=MUGRAPH, overlap=True)(rms_linear.function)
    bound = kernel.bind(mirage.spec((4, 32)), mirage.spec((32, 16)))
    assert bound.mugraph.blocks[0].schedule.pdl
    body = bound.to_triton_code().partition("def rms_linear")[2]
    assert body.index("gdc_wait()") < body.index("tl.load")
    plain = mirage.kernel(mugraph=MUGRAPH)(rms_linear.function)
    assert (
        not plain.bind(mirage.spec((4, 32)), mirage.spec((32, 16)))
        .mugraph.blocks[0]
        .schedule.pdl
    )


ONE_STAGE = MUGRAPH.replace("loop(k / 16)", "loop(k / 16) num_stages(1)")


def with_constant(names: Any) -> mirage.Kernel:
    kernel = mirage.kernel(mugraph=ONE_STAGE, overlap=True, constant=names)
    return kernel(rms_linear.function)


def constant(names: Any) -> mirage.BoundKernel:
    return with_constant(names).bind(mirage.spec((4, 32)), mirage.spec((32, 16)))


@pytest.mark.parametrize("names", ["w", ("w",), ["w"]])
def test_constants_are_loaded_before_the_wait(names: Any) -> None:
    bound = constant(names)
    assert [i.constant for i in bound.mugraph.inputs] == [False, True]
    assert "w: constant f16[k, n]" in str(bound.mugraph)
    before, _, behind = bound.to_triton_code().partition("gdc_wait()  #")
    assert "tl.load(wt_first" in before
    assert "tl.load(xt_first" not in before
    assert "tl.load(xt_first" in behind
    assert "loads meanwhile w of iterations up to 1" in str(bound.explain())
    assert_right_in_the_interpreter(bound)


def test_what_is_constant_is_one_of_the_arguments() -> None:
    with pytest.raises(
        TraceError, match=r"constant='v' is no .* expected some of x, w"
    ):
        constant(("w", "v"))
    with pytest.raises(UnsupportedError, match="without overlap=True"):
        mirage.kernel(rms_linear.function, constant=("w",))
    with pytest.raises(UnsupportedError, match="expected names of arguments"):
        mirage.kernel(rms_linear.function, overlap=True, constant=(1,))  # type: ignore[arg-type]


def test_what_is_constant_is_not_written() -> None:
    kernel = with_constant("w")
    x, w = torch.from_numpy(half(4, 32)), torch.from_numpy(half(32, 16))
    with INTERPRET.scope(value=True):
        kernel(x, w, out=torch.empty(4, 16).half())
        with pytest.raises(UnsupportedError, match="writes to w, which is constant"):
            kernel(x, w, out=w[4:8])


def test_what_is_constant_is_not_copied_for_a_call() -> None:
    """A kernel right ahead would write what is read before the wait."""
    kernel = with_constant("w")
    x, w = torch.from_numpy(half(4, 32)), torch.from_numpy(half(32, 16))
    with INTERPRET.scope(value=True):
        right = kernel(-x, -w)
        torch.testing.assert_close(kernel(torch._neg_view(x), -w), right)
        with pytest.raises(UnsupportedError, match="w is constant, and is to be neg"):
            kernel(x, torch._neg_view(w))

    def multiplied(x: Any, w: Any) -> Any:
        return x * w

    kernel = mirage.kernel(multiplied, effort="none", overlap=True, constant="w")
    z = torch.randn(4, dtype=torch.complex64)
    torch.testing.assert_close(kernel(z.conj(), z), z.conj() * z)
    with pytest.raises(UnsupportedError, match="w is constant, and is to be neg"):
        kernel(z, z.conj())


def test_what_is_constant_is_one_of_these_arguments() -> None:
    """Though the name is that of another tensor of an argument elsewhere."""

    def chosen(x: Any, w: Any, w_a: Any) -> Any:
        return x + (w_a if w is None else w["a"])

    kernel = mirage.kernel(chosen, effort="none", overlap=True, constant="w")
    x = torch.ones(4)
    assert kernel.bind(x, {"a": x}, None).constant == {"w_a"}
    assert kernel.bind(x, None, x).constant == set()


def test_inputs_of_a_given_mugraph_are_constant_by_their_places() -> None:
    text = re.sub(r"\b[xw]\b", lambda m: "w" if m[0] == "x" else "x", ONE_STAGE)
    kernel = mirage.kernel(mugraph=text, overlap=True, constant="w")
    bound = kernel(rms_linear.function).bind(
        mirage.spec((4, 32)), mirage.spec((32, 16))
    )
    found = [(i.name, i.constant) for i in bound.mugraph.inputs]
    assert found == [("w", False), ("x", True)]


def test_tensors_of_an_argument_are_constant_together() -> None:
    def gated(x: Any, weights: Any) -> Any:
        return mirage.silu(x @ weights["gate"]) * (x @ weights["up"])

    kernel = mirage.kernel(gated, effort="none", overlap=True, constant="weights")
    weights = {name: mirage.spec((32, 16)) for name in ("gate", "up")}
    bound = kernel.bind(mirage.spec((4, 32)), weights)
    assert len(bound.constant) == 2
    assert bound.constant == {i.name for i in bound.program.inputs} - {"x"}


def test_a_module_has_parameters_that_are_constant() -> None:
    module = torch.nn.Linear(32, 16).half()
    kernel = mirage.kernel(module, effort="none", overlap=True, constant="parameters")
    bound = kernel.bind(torch.zeros(4, 32).half())
    assert bound.constant == {"weight", "bias"}


@pytest.mark.parametrize("interpret", [False, True])
def test_results_go_where_the_caller_wants_them(*, interpret: bool) -> None:
    kernel = mirage.kernel(mugraph=MUGRAPH)(rms_linear.function)
    x, w = torch.from_numpy(half(4, 32)), torch.from_numpy(half(32, 16))
    places = torch.zeros((4, 3, 16), dtype=torch.float16)
    with INTERPRET.scope(value=interpret):
        found = kernel(x, w, out=places[:, 1])
        assert torch.equal(places[:, 1], kernel(x, w))
        assert not places[:, ::2].any()
        assert found.data_ptr() == places[:, 1].data_ptr()
        with pytest.raises(ShapeError, match="expected"):
            kernel(x, w, out=places)


def test_out_is_refused_while_tracing() -> None:
    @mirage.kernel
    def outer(x, w):
        return rms_linear(x, w, out=x)

    with pytest.raises(TraceError, match="out="):
        outer.trace(mirage.spec((4, 4)), mirage.spec((4, 4)))


def test_a_parameter_called_out_is_a_parameter() -> None:
    @mirage.kernel
    def added(x, out):
        return x + out

    x = half(4, 4)
    np.testing.assert_array_equal(added(x, out=x), x + x)


def test_a_wrong_mugraph_is_refused() -> None:
    bound = bound_rms_linear()
    with pytest.raises(EquivalenceError, match="the program gives"):
        bound.use(MUGRAPH.replace("* 1/k", ""))
    with pytest.raises(ParseError):
        bound.use(MUGRAPH.replace("load x", "lod x"))
    with pytest.raises((CheckError, ParseError)):
        bound.use(MUGRAPH.replace("load w[k/loop", "load w[k"))


def views(w: Any) -> dict[str, Any]:
    """Tensors equal to a matrix, that lie in memory in other ways."""
    found = {
        "columns": torch.from_numpy(np.ascontiguousarray(w.T)).T,
        "every other element": torch.from_numpy(np.repeat(w, 2, 1))[:, ::2],
        "every other row": torch.from_numpy(np.repeat(w, 2, 0))[::2],
        "a part of wider rows": torch.from_numpy(np.tile(w, (1, 3)))[:, 16:32],
        "columns of a part": torch.from_numpy(np.tile(w.T, (1, 3)))[:, 32:64].T,
    }
    assert all(np.array_equal(v.numpy(), w) for v in found.values())
    return found


def test_tensors_of_any_strides_are_read_where_they_are() -> None:
    kernel = mirage.kernel(rms_linear.function)
    x, w = half(4, 32), half(32, 16)
    expected = rms_linear(x, w)
    for name, view in views(w).items():
        bound = kernel.bind(torch.from_numpy(x), view)
        assert bound.mugraph.blocks
        assert (bound.program.inputs[1].type.layout is not None) == ("columns" in name)
        with INTERPRET.scope(value=True):
            found = kernel(torch.from_numpy(x), view).numpy()
        np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)


def test_repeated_rows_are_read_where_they_are() -> None:
    kernel = mirage.kernel(rms_linear.function)
    x = torch.from_numpy(half(1, 32)).expand(4, 32)
    w = torch.from_numpy(half(32, 1)).expand(32, 16)
    assert kernel.bind(x, w).program.inputs[1].type.layout == (1, 0)
    with INTERPRET.scope(value=True):
        found = kernel(x, w).numpy()
    expected = rms_linear(x.numpy(), w.numpy())
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)


def test_tensors_on_another_device_are_refused() -> None:
    bound = bound_rms_linear()
    with pytest.raises(CompileError, match="meta"):
        bound(torch.empty(4, 32, device="meta").half(), torch.empty(32, 16).half())


def test_benchmark_needs_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    kernel = mirage.kernel(effort="none")(rms_linear.function)
    bound = kernel.bind(mirage.spec((4, 32)), mirage.spec((32, 16)))
    with pytest.raises(CompileError, match="CUDA"):
        bound.benchmark()


@pytest.mark.gpu
def test_a_gpu_reads_tensors_of_any_strides_where_they_are() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    kernel = mirage.kernel(rms_linear.function)
    x, w = half(16, 256), half(256, 512)
    exact = torch.from_numpy(np.asarray(rms_linear(x, w))).float()
    rows = torch.from_numpy(x).cuda()
    wide = torch.zeros(256, 3 * 512, dtype=torch.float16, device="cuda")
    spaced = torch.zeros(256, 2 * 512, dtype=torch.float16, device="cuda")
    turned = torch.zeros(512, 3 * 256, dtype=torch.float16, device="cuda")
    parts = [wide[:, 512:1024], wide[:, 1:513], spaced[:, ::2], turned[:, :256].T]

    def used(part: torch.Tensor) -> int:
        """Bytes that calls take, partial results of the chosen kernels among them."""
        kernel(rows, part)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            found = kernel(rows, part)
        torch.cuda.synchronize()
        torch.testing.assert_close(found.float().cpu(), exact, rtol=2e-2, atol=2e-2)
        return torch.cuda.max_memory_allocated() - before

    usual = used(torch.from_numpy(w).cuda())
    for part in parts:
        part.copy_(torch.from_numpy(w))
        # Nothing as large as the part was allocated beside.
        assert used(part) < usual + part.numel() * part.element_size() / 2


@pytest.mark.gpu
def test_a_gpu_call_is_prepared_once() -> None:
    kernel = mirage.kernel(effort="none")(rms_linear.function)
    x, w = (torch.from_numpy(a).cuda() for a in (half(4, 32), half(32, 16)))
    first = kernel(x, w)
    torch.testing.assert_close(kernel(x, w), first)
    expected = expected_rms_linear(x.cpu().numpy(), w.cpu().numpy())
    np.testing.assert_allclose(first.cpu().numpy(), expected, rtol=2e-2, atol=2e-2)
    assert kernel.bind(x, w).benchmark().error < 1e-2


def test_static_choices_are_for_the_gpu_at_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    def search(_: Any, **options: Any) -> Any:
        asked.update(options)
        raise SearchError("enough")

    monkeypatch.setattr("mirage_dsl.store.superoptimize.superoptimize", search)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(
        "mirage_dsl.tune.devices.properties_here", lambda: PROPERTIES["H200"]
    )
    bound = rms_linear.bind(half(4, 32), half(32, 32))
    with DETERMINISTIC.scope(True), pytest.raises(SearchError, match="enough"):
        bound.search()
    assert asked["hardware"] is H200
