"""Errors name the user's file and line, what was found, and what to do."""

# Names of dims in annotations are no names of types.
# ruff: noqa: F821, UP037

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
import mirage_dsl.cost.estimate as estimates
from mirage_dsl.core.errors import (
    DTypeError,
    MirageError,
    ShapeError,
    TraceError,
    UnsupportedError,
)

SPEC = mirage.spec((4, 6), "float32")


def refused(
    kind: type[MirageError], function: Callable[..., Any], *args: Any
) -> MirageError:
    """The error of tracing a function, which must name a line of this file."""
    with pytest.raises(kind) as error:
        mirage.kernel(function).trace(*(args or (SPEC,)))
    location = error.value.location
    assert location is not None
    assert location.file == __file__
    assert f"{__file__}:{location.line}: " in str(error.value)
    return error.value


def at(error: MirageError, text: str) -> bool:
    """Whether the line is the one that has the text, and the caret is on it."""
    assert error.location is not None
    return text in error.location.text and "^" in error.location.excerpt()


def test_matmul_of_shapes_that_do_not_fit() -> None:
    def function(x: Any, y: Any) -> Any:
        doubled = x * 2
        return doubled @ y

    error = refused(ShapeError, function, SPEC, SPEC)
    assert at(error, "doubled @ y")
    assert "f32[4, 6] by f32[4, 6]" in error.message
    assert "6 and 4" in error.message


def test_shapes_that_do_not_broadcast() -> None:
    error = refused(ShapeError, lambda x: x + x.T)
    assert "(4, 6) and (6, 4)" in error.message
    assert "axis -2" in error.message


def test_the_line_is_that_of_a_helper_of_the_user() -> None:
    def helper(t: Any) -> Any:
        return t.reshape(5, 5)

    error = refused(ShapeError, lambda x: helper(x) + 1)
    assert at(error, "t.reshape(5, 5)")
    assert "24 elements" in error.message


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x if x > 0 else -x, "if x > 0"),
        (lambda x: x if x.sum() else -x, "if x.sum()"),
        (lambda x: 0 < x < 1, "0 < x < 1"),
        (lambda x: x * float(x.sum()), "float(x.sum())"),
        (lambda x: x * math.exp(x.sum()), "math.exp"),
        (lambda x: x[int(x.max())], "int(x.max())"),
        (lambda x: [0, 1][x.max()] * x, "[0, 1][x.max()]"),
        (lambda x: sum(row for row in x.sum()), "row for row in x.sum()"),
        (lambda x: torch.where(x.isnan(), 0.0, x), "x.isnan()"),
        (lambda x: x.sum().item() * x, "item()"),
        (lambda x: np.asarray(x) * 2, "np.asarray"),
        (lambda x: 1.0 in x, "1.0 in x"),
    ],
)
def test_control_flow_and_numbers_from_values(
    function: Callable[..., Any], text: str
) -> None:
    error = refused(TraceError, function)
    assert at(error, text)
    assert "not known while the function is traced" in error.message


def _item_or_three(x: Any) -> Any:
    try:
        factor = x.sum().item()
    except Exception:
        factor = 3
    return x * factor


def _branch_or_not(x: Any) -> Any:
    with contextlib.suppress(Exception):
        if x.sum() > 0:
            return x * 2
    return x * 3


def _changed_or_not(x: Any) -> Any:
    try:
        x.add_(1)
    except MirageError:
        pass
    finally:
        x = x * 2
    return x


def _in_a_helper(x: Any) -> Any:
    def largest(t: Any) -> Any:
        try:
            return float(t.max())
        except (TraceError, ValueError):
            return 1.0

    return x / largest(x.abs())


@pytest.mark.parametrize(
    "function",
    [_item_or_three, _branch_or_not, _changed_or_not, _in_a_helper],
)
def test_what_was_refused_is_not_caught(function: Callable[..., Any]) -> None:
    error = refused(MirageError, function)
    assert "caught this error and went on" in error.message


def test_what_no_tensor_has_may_be_caught() -> None:
    def function(x: Any) -> Any:
        try:
            return x.zzz
        except AttributeError:
            return x * (2 if hasattr(x, "yyy") else 3)

    x = np.ones((4, 6), "float32")
    assert (mirage.kernel(function)(x) == 3).all()


def test_assignment_into_a_tensor() -> None:
    def function(x: Any) -> Any:
        x[0] = 1
        return x

    assert at(refused(TraceError, function), "x[0] = 1")


def test_operators_that_no_row_has() -> None:
    for function, sign in (
        (lambda x: x & (x < 1), "&"),
        (lambda x: ~x, "~"),
    ):
        assert f"operator {sign} on" in refused(UnsupportedError, function).message
    for function, name in (
        (lambda x: x << 1, "shift_left"),
        (lambda x: 2 >> x, "shift_right"),
    ):
        assert f"{name} of floats" in refused(DTypeError, function).message


def test_unknown_attributes_suggest_a_known_one() -> None:
    assert "did you mean .softmax" in refused(TraceError, lambda x: x.softmx()).message
    assert "did you mean .relu" in refused(TraceError, lambda x: x.rellu_()).message
    assert "no attribute" in refused(TraceError, lambda x: x.zzz).message


def test_a_function_that_returns_nothing() -> None:
    def function(x: Any) -> Any:
        x * 2

    assert "returns nothing" in refused(TraceError, function).message
    assert "returns nothing" in refused(TraceError, lambda _: ()).message


def test_a_function_that_returns_no_tensor() -> None:
    error = refused(TraceError, lambda x: {"a": x, "b": [x, object()]})
    assert "returns object at [b][1]" in error.message
    assert "returns str" in refused(TraceError, lambda _: "x").message


def test_arguments_that_are_no_tensors() -> None:
    with pytest.raises(TraceError, match="argument y is object") as error:
        mirage.kernel(lambda x, y: x + y).trace(SPEC, object())
    assert error.value.location is not None
    assert "object()" in error.value.location.text
    with pytest.raises(TraceError, match="annotated as a tensor"):
        mirage.kernel(annotated).trace("text", SPEC)
    with pytest.raises(TraceError, match="missing a required argument"):
        mirage.kernel(lambda x, y: x + y).trace(SPEC)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "complex64"])
def test_dtypes_that_are_not_supported(dtype: str) -> None:
    kernel = mirage.kernel(lambda x: x * 2)
    with pytest.raises(DTypeError, match=rf"x is {dtype}.*astype"):
        kernel(np.ones((2, 3), dtype))
    if dtype != "complex64":
        with pytest.raises(DTypeError, match=rf"x is {dtype}.*\.to\("):
            kernel(torch.ones(2, 3, dtype=getattr(torch, dtype)))
    with pytest.raises(DTypeError):
        mirage.spec((2, 3), dtype)


def annotated(x: mirage.f16["m", 4096], w: mirage.f16[4096, "n"]) -> Any:
    return x @ w


def test_annotations_are_checked() -> None:
    kernel = mirage.kernel(annotated)
    good = mirage.spec((16, 4096)), mirage.spec((4096, 64))
    assert kernel.trace(*good).extent_of == {"m": 16, "k": 4096, "n": 64}
    with pytest.raises(ShapeError, match="axis 1 of x has extent 4095"):
        kernel.trace(mirage.spec((16, 4095)), good[1])
    with pytest.raises(DTypeError, match="x is bf16, but annotated as f16"):
        kernel.trace(mirage.spec((16, 4096), "bfloat16"), good[1])
    with pytest.raises(ShapeError, match="annotated with 2 axes"):
        kernel.trace(mirage.spec((2, 16, 4096)), good[1])


def test_one_annotated_name_has_one_extent() -> None:
    def function(x: mirage.f32["m", "k"], y: mirage.f32["m"]) -> Any:
        return x.sum(1) + y

    with pytest.raises(ShapeError, match="dim m has extent 4 at axis 0 of x and 5"):
        mirage.kernel(function).trace(SPEC, mirage.spec((5,), "float32"))


def test_an_annotated_dtype_alone_is_checked() -> None:
    def function(x: mirage.bf16) -> Any:
        return x * 2

    with pytest.raises(DTypeError, match="annotated as bf16"):
        mirage.kernel(function).trace(SPEC)


def test_requires_grad_while_grad_mode_is_on() -> None:
    kernel = mirage.kernel(lambda x: x * 2)
    weight = torch.nn.Parameter(torch.ones(2, 3))
    with pytest.raises(UnsupportedError, match="argument x requires grad") as error:
        kernel(weight)
    assert error.value.location is not None
    assert "kernel(weight)" in error.value.location.text
    with torch.no_grad():
        assert kernel(weight).sum() == 12


def test_indices_out_of_range_and_odd_ones() -> None:
    assert "index 4 of axis 0" in refused(ShapeError, lambda x: x[4]).message
    assert "3 indices" in refused(ShapeError, lambda x: x[0, 0, 0]).message
    assert "step -1" in refused(UnsupportedError, lambda x: x[::-1]).message
    assert "str" in refused(UnsupportedError, lambda x: x["a"]).message
    assert "axis 2" in refused(ShapeError, lambda x: x.sum(2)).message
    assert "given twice" in refused(ShapeError, lambda x: x.sum((0, 0))).message


def test_calls_without_tensors_and_without_end() -> None:
    def endless(x: Any) -> Any:
        return endless(x * 2)

    assert "without end" in refused(TraceError, endless).message
    assert "no argument" in refused(TraceError, lambda x: x * 2, 3).message


def test_what_cannot_be_traced_is_refused_where_it_is_decorated() -> None:
    async def later(x: Any) -> Any:
        return x

    def several(x: Any) -> Any:
        yield x

    for function, word in (
        (later, "coroutine"),
        (several, "generator"),
        (torch.relu, "lambda x: relu(x)"),
        (3, "found int"),
    ):
        for decorate in (mirage.kernel, mirage.kernel(effort="none")):
            with pytest.raises(TraceError, match=re.escape(word)):
                decorate(function)  # pyright: ignore[reportArgumentType]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_are_no_dense_arrays_of_floats() -> None:
    kernel = mirage.kernel(lambda x: x * 2)
    with pytest.raises(UnsupportedError, match=r"to_dense"):
        kernel(torch.eye(3).to_sparse())
    for odd in (torch.eye(3).to_sparse_csr(), torch.eye(3).to_mkldnn()):
        for call in (kernel, kernel.bind, kernel.trace, kernel.reference):
            with pytest.raises(UnsupportedError, match=r"layout.*to_dense"):
                call(odd)
    for layout in (torch.strided, torch.jagged):
        rows = [torch.ones(2, 3), torch.ones(4, 3)]
        nested = torch.nested.nested_tensor(rows, layout=layout)
        for call in (kernel, kernel.bind, kernel.trace, kernel.reference):
            with pytest.raises(UnsupportedError, match=r"nested.*unbind") as caught:
                call(nested)
            assert at(caught.value, "call(nested)")
    masked = np.ma.array(np.ones(3, np.float32), mask=[True, False, True])
    with pytest.raises(UnsupportedError, match=r"MaskedArray.*np\.asarray"):
        kernel(masked)


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite", "nan_to_num"])
@pytest.mark.parametrize("library", [torch, np])
def test_what_tells_infinities_says_why_it_is_refused(library: Any, name: str) -> None:
    error = refused(UnsupportedError, lambda x: getattr(library, name)(x))
    assert "laws of finite numbers" in error.message
    assert at(error, "getattr(library, name)(x)")


def test_bound_kernels_and_out_check_dtypes() -> None:
    kernel = mirage.kernel(lambda x: x * 2)
    bound = kernel.bind(mirage.spec((3,), "float16"))
    with pytest.raises(DTypeError, match=r"input x .* expected float16"):
        bound(torch.ones(3))
    with pytest.raises(DTypeError, match=r"out has the dtypes"):
        kernel(torch.ones(3), out=torch.ones(3).half())


def test_names_of_both_libraries_do_not_mix() -> None:
    both = "give axis or dim, not both"
    assert both in refused(ShapeError, lambda x: x.sum(0, dim=1)).message
    assert both in refused(ShapeError, lambda x: mirage.softmax(x, 0, dim=1)).message
    assert both in refused(ShapeError, lambda x: x.squeeze(axis=0, dim=0)).message
    error = refused(ShapeError, lambda x: x.mean(keepdims=True, keepdim=True))
    assert "give keepdims or keepdim, not both" in error.message


def test_the_caller_is_named_and_not_what_it_is_made_of() -> None:
    error = refused(TraceError, lambda x: mirage.softmax(x, axis="k"))
    assert "axis of softmax must be an integer, found str" in error.message
    assert "min: axis 2" in refused(ShapeError, lambda x: x.min(2)).message


def test_functions_that_change_their_argument() -> None:
    error = refused(TraceError, lambda x: torch.relu_(x))
    assert "relu_ changes an argument of the function" in error.message
    error = refused(UnsupportedError, lambda x: torch.nan_to_num_(x + 1))
    assert "torch.nan_to_num_" in error.message


@pytest.mark.parametrize("shape", ["mk", (2.5, 4), (None, 4)])
def test_specs_of_no_shape(shape: Any) -> None:
    with pytest.raises(ShapeError, match="expected a tuple of integers"):
        mirage.spec(shape)


@pytest.mark.parametrize("strides", [(1,), (5.5, 1), "ab"])
def test_specs_of_no_strides(strides: Any) -> None:
    with pytest.raises(ShapeError, match="expected an integer for each axis"):
        mirage.spec((4, 5), "float16", strides)


@pytest.mark.parametrize("budget", [0, -1, math.nan])
def test_budgets_of_no_time(budget: float) -> None:
    with pytest.raises(UnsupportedError, match="a number of seconds above 0"):
        mirage.kernel(lambda x: x, budget_seconds=budget)


def test_configurations_of_no_search() -> None:
    with pytest.raises(UnsupportedError, match="config has 'max_kernelz'") as error:
        mirage.kernel(lambda x: x, config={"max_kernels": 1, "max_kernelz": 2})
    assert "max_kernels, use_cache" in error.value.message
    assert error.value.location is not None


def test_concat_that_does_not_fit() -> None:
    error = refused(ShapeError, lambda x: mirage.concat([x, x.T], axis=0))
    assert "f32[4, 6], f32[6, 4]" in error.message


def test_a_constant_that_is_not_a_number() -> None:
    assert "NaN" in refused(TraceError, lambda x: x * math.nan).message
    assert "found str" in refused(TraceError, lambda x: x * "2").message


def test_tensors_do_not_leave_their_trace() -> None:
    kept: list[Any] = []

    def keep(x: Any) -> Any:
        kept.append(x)
        return x * 2

    mirage.kernel(keep).trace(SPEC)
    assert "trace" in refused(TraceError, lambda x: x + kept[0]).message
    with pytest.raises(TraceError, match="has ended"):
        kept[0] + 1
    assert "another trace" in refused(TraceError, lambda _: kept[0]).message


def test_functions_need_a_tensor() -> None:
    with pytest.raises(TraceError, match="exp needs a tensor, found float"):
        mirage.exp(2.0)
    with pytest.raises(TraceError, match="takes a function"):
        mirage.kernel(3)


def test_a_call_with_a_spec() -> None:
    with pytest.raises(TraceError, match=r"use .*bind"):
        mirage.kernel(annotated)(mirage.spec((16, 4096)), mirage.spec((4096, 64)))


def test_settings_that_do_not_exist() -> None:
    with pytest.raises(UnsupportedError, match="none, quick, full"):
        mirage.kernel(effort="fast")
    with pytest.raises(TraceError, match="dynamic dim 'q'"):
        mirage.kernel(dynamic="q")(lambda x: x * 2).trace(SPEC)


def test_an_unknown_public_name_suggests_a_known_one() -> None:
    with pytest.raises(AttributeError, match="did you mean 'softmax'"):
        mirage.softmx  # noqa: B018


def test_a_fault_of_the_search_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no fault of the arguments, which are as the message says they should be."""
    program = mirage.kernel(lambda x: x * 2 + 1).trace(SPEC)

    scope: dict[str, Any] = {"__name__": estimates.__name__}
    broken = "def estimate(*_, **__): raise KeyError('lost')"
    exec(compile(broken, estimates.__file__, "exec"), scope)
    monkeypatch.setattr("mirage_dsl.search.result.estimate", scope["estimate"])
    with pytest.raises(UnsupportedError) as error:
        mirage.superoptimize(program, use_cache=False)
    text = str(error.value)
    assert "'lost'" in text
    assert "KeyError in mirage_dsl.cost.estimate, line 1, is a fault of this" in text


KEPT: dict[int, Any] = {}


def test_a_tensor_that_a_cache_has_kept_is_named() -> None:
    def scaled(x: Any) -> Any:
        if 3 not in KEPT:
            KEPT[3] = torch.arange(3).float()
        return x * KEPT[3]

    kernel, x = mirage.kernel(scaled), torch.ones(2, 3)
    assert torch.equal(kernel(x), x * torch.arange(3))
    with pytest.raises(TraceError, match="a dict or an attribute do"):
        kernel(x)
    with pytest.raises(TraceError, match="something kept it"):
        scaled(x)


def mask_of_ones(x: mirage.f32["t", 4]) -> Any:
    both = torch.ones(x.shape[0], x.shape[0])
    return (x @ x.T).masked_fill(both.tril() == 0, 0.0)


def mask_of_positions(x: mirage.f32["t", 4]) -> Any:
    at = torch.arange(x.shape[0])
    return (x @ x.T).masked_fill(at[:, None] < at, 0.0)


@pytest.mark.parametrize("function", [mask_of_ones, mask_of_positions])
def test_a_mask_of_a_dynamic_dim_and_itself(function: Any) -> None:
    kernel = mirage.kernel(dynamic="t")(function)
    for extent in (3, 5):
        x = torch.arange(4.0 * extent).view(extent, 4)
        assert torch.equal(kernel(x), function(x))


def test_what_is_returned_and_may_not_be_has_the_place_of_the_function() -> None:
    def doubtful(x: Any) -> Any:
        y = x.clone()
        y.reshape(-1)[:3] = 1
        return y

    def places(x: Any) -> Any:
        return torch.where(x > 0)

    for function, text in ((doubtful, "may share memory"), (places, "nobody knows")):
        with pytest.raises(MirageError, match=text) as caught:
            mirage.kernel(function)(torch.ones(4, 3).T)
        assert caught.value.location is not None
        assert caught.value.location.line == function.__code__.co_firstlineno
