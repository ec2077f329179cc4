"""Rows of the operator table beyond `conformance`: f16, constants, library calls."""

from __future__ import annotations

import pytest
import torch

from mirage_dsl.api.kernel import kernel
from mirage_dsl.backends.library import Argument, expression
from mirage_dsl.backends.reference import run_reference
from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.core.types import (
    DType,
    Scalar,
    bf16,
    boolean,
    f16,
    f32,
    number,
    torch_dtype,
)
from mirage_dsl.ir.builder import KernelBuilder, one_over
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ops.definition import Operator
from mirage_dsl.ops.table import OPERATORS
from tests.backends.conformance import CUT_OFF
from tests.backends.running import as_array, assert_near, check, random_inputs
from tests.ops.kinds import is_of_floats

ELEMENTWISE = [o for o in OPERATORS.values() if is_of_floats(o) and o is not CUT_OFF]


def in_block(op: Operator) -> KernelGraph:
    """Operands of different dims, so that they are aligned too."""
    g = KernelBuilder(f"row_{op.name}", m=6, n=10)
    axes = ["m, n", "n", "n, m"]
    names = [g.input(f"x{i}", f16, axes[i]) for i in range(op.arity)]
    pieces = ["m/grid, n", "n", "n, m/grid"]
    with g.block(grid={"m": 4}) as b:
        loads = [b.load(x, pieces[i]) for i, x in enumerate(names)]
        out = b.store(b.apply(op, *loads), "m/grid, n", dtype=f32)
    return g.returns(out).build()


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda o: o.name)
def test_elementwise_rows_of_f16(op: Operator) -> None:
    graph = in_block(op)
    low = op.domain[0] if op.domain[0] > 0 else None
    check(graph, random_inputs(graph, low=low), tolerance=3e-6)


@pytest.mark.parametrize(
    "value",
    [1 / 3, 1e-6, -2.5, 1e30, float("inf"), float("-inf"), 0.1, -0.0],
)
def test_constants_print_exactly(value: float) -> None:
    read = eval(number(value))
    assert read == value
    assert str(read) == str(value)


@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
def test_truth_values_are_numbers_in_every_format(dtype: DType) -> None:
    """Loaded, and stored as what another kernel loads; the product needs the cast."""
    g = KernelBuilder("truths", m=16, k=32, n=16)
    x, w = g.input("x", boolean, "m, k"), g.input("w", dtype, "k, n")
    with g.block(grid={"m": 16}) as b:
        t = b.cast(b.load(x, "m/grid, k"), dtype=str(dtype))
        product = b.matmul(t, b.load(w, "k, n"), over="k")
        out = b.store(product, "m/grid, n", dtype=f32)
        stored = b.store(t, "m/grid, k", dtype=dtype)
    graph = g.returns(out).returns(stored).build()
    truths = torch.arange(512).reshape(16, 32) % 3 == 0
    kind = getattr(torch, torch_dtype(dtype).removeprefix("torch."))
    weights = (torch.arange(512).reshape(32, 16) % 7 - 3).to(kind)
    numbers, kept = TritonExecutable(graph, interpret=True)(truths, weights)
    assert torch.equal(numbers, truths.float() @ weights.float())
    assert torch.equal(kept.float(), truths.float())
    compile_only(graph)


def test_constants_of_extents() -> None:
    g = KernelBuilder("mean", m=None, k=6)
    x = g.input("x", f32, "m, k")
    with g.block(grid={"m": 4}) as b:
        t = b.load(x, "m/grid, k")
        mean = b.mul(b.sum(t, over="k"), one_over("k"))
        out = b.store(b.add(mean, one_over("m").times(one_over("m"))), "m/grid")
    check(g.returns(out).build(), m=7)


# -- Library kernels -----------------------------------------------------------------


def library(op: Operator, dtype: DType) -> KernelGraph:
    g = KernelBuilder(f"library_{op.name}", m=3, n=4, k=5)
    axes = ["m, n", "n", "n, m"]
    names = [g.input(f"x{i}", dtype, axes[i]) for i in range(op.arity)]
    return g.returns(g.apply(op, *names)).build()


PRODUCTS = {
    "matrices": ("m, k", "k, n", "m, n", True),
    "transposed": ("m, k", "n, k", "m, n", True),
    "transposed result": ("m, k", "k, n", "n, m", True),
    "batches": ("h, m, k", "h, k, n", "h, m, n", True),
    "batches inside": ("m, h, k", "k, n, h", "h, n, m", True),
    "a vector": ("m, k", "k", "m", True),
    "two summed dims": ("m, k, h", "h, k, n", "m, n", True),
    "batches last": ("m, h, k", "h, k, n", "m, n, h", False),
    "two rows": ("m, h, k", "k, n", "m, h, n", True),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_matrix_products_without_a_copy_behind(name: str) -> None:
    """But where batches are to come last, which matrices cannot be made with."""
    left, right, out, plain = PRODUCTS[name]
    dims = [set(t.split(", ")) for t in (left, right, out)]
    over = ", ".join(sorted((dims[0] & dims[1]) - dims[2]))
    g = KernelBuilder("product", h=2, m=3, n=4, k=5)
    product = g.matmul(g.input("x", f16, left), g.input("w", f16, right), over=over)
    node = g.returns(product, axes=out).build()
    check(node)
    wanted = tuple(out.split(", "))
    (apply,) = (n for n in node.nodes if isinstance(n, Apply))
    operands = [Argument(i.name, i.type.names, i.type.dtype) for i in node.inputs]
    sizes = {"h": "2", "m": "3", "n": "4", "k": "5"}
    text = expression(apply, operands, wanted, f16, sizes.__getitem__)
    assert "torch.matmul" in text
    tensors = random_inputs(node)
    found = eval(text, {"torch": torch, **dict(zip("xw", tensors, strict=True))})
    assert_near(as_array(found), as_array(run_reference(node, *tensors)[0]), 1e-2)
    assert found.is_contiguous() == plain


def test_operators_of_one_format_are_one_kernel_each() -> None:
    g = KernelBuilder("one_format", m=3, k=6)
    x = g.input("x", f16, "m, k")
    source = emit(g.returns(g.exp(g.div(g.mul(x, x), 8))).build())
    assert ".float()" not in source
    assert "torch.full" not in source


def mixed_program() -> KernelGraph:
    """Merged axes, views, constants, reductions, products and concatenation."""
    g = KernelBuilder("mixed", h=2, d=3, m=4, k=6)
    x, w = g.input("x", f16, "m, (h d)"), g.input("w", f16, "(h d), k")
    left = g.mul(x, Scalar(one_over("m").value, (("m", -1),)))
    p = g.matmul(left, w, over="h, d")
    top = g.slice(p, dim="k", start=1, stop=3, to="j")
    end = g.slice(p, dim="k", start=3, stop=6, to="i")
    both = g.concat(top, end, dims="j, i", to="c")
    named = g.rename(both, dims="m", to="q")
    shift = g.rowshift(named, over="c")
    e = g.exp(g.sub(g.cast(named, dtype="f32"), shift))
    out = g.cast(g.div(e, g.sum(e, over="c")), dtype="f16")
    g.returns(out, axes="c, q")
    g.returns(g.concat(g.insert(shift, to="u"), named, dims="u, c", to="v"))
    g.returns(g.concat(shift, both, dims="q, m", to="l"))
    return g.returns(g.max(p, over="m")).build()


def test_a_program_of_library_kernels() -> None:
    check(mixed_program())


def test_the_reference_takes_arrays_and_tensors() -> None:
    graph = mixed_program()
    tensors = random_inputs(graph)
    from_tensors = run_reference(graph, *tensors)
    from_arrays = run_reference(graph, *[t.numpy() for t in tensors])
    assert isinstance(from_tensors[0], torch.Tensor)
    assert from_tensors[0].dtype == torch.float16
    for one, other in zip(from_tensors, from_arrays, strict=True):
        assert_near(as_array(one), as_array(torch.as_tensor(other)), 1e-3)


# -- Special numbers -------------------------------------------------------------------

EDGES = [0.0, -0.0, 1e-7, -1e-6, 0.5, -1.5, 2.5, 3.0, -88.0, 1e6, 3e38, -3e38]
EDGES += [float("inf"), float("-inf"), float("nan")]
OF_EDGES = {
    "atan2": torch.atan2,
    "expm1": torch.expm1,
    "floor": torch.floor,
    "fmod": torch.fmod,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "round": torch.round,
}


def of_rows(name: str) -> KernelGraph:
    """The operator in a block, on one dim."""
    op = OPERATORS[name]
    g = KernelBuilder(f"edges_{name}", m=len(EDGES) ** op.arity)
    names = [g.input(f"x{i}", f32, "m") for i in range(op.arity)]
    with g.block(grid={"m": 5}) as b:
        tiles = [b.load(x, "m/grid") for x in names]
        out = b.store(b.apply(op, *tiles), "m/grid")
    return g.returns(out).build()


@pytest.mark.parametrize("name", OF_EDGES)
def test_rows_of_special_numbers(name: str) -> None:
    graph = of_rows(name)
    edges = torch.tensor(EDGES)
    pairs = torch.cartesian_prod(edges, edges)
    given = [edges] if OPERATORS[name].arity == 1 else [pairs[:, 0], pairs[:, 1]]
    given = [g.contiguous() for g in given]
    # In f32 PyTorch has no remainder of 3e38.
    expected = OF_EDGES[name](*(x.double() for x in given)).float()
    (found,) = TritonExecutable(graph, interpret=True)(*given)
    torch.testing.assert_close(found, expected, rtol=3e-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", [*OF_EDGES, "sin", "cos"])
def test_rows_compile(name: str) -> None:
    (report,) = compile_only(of_rows(name), "sm_90")
    # CUDA's sine keeps the digits of pi that large numbers need in local memory.
    assert not report.spills or name in ("sin", "cos")


def test_library_kernels_of_f64_have_constants_of_f64() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = torch.where(x > 0.3, x, 0.7), x.masked_fill(x < 0, 0.1)
        sizes = torch.where(x > 0, 0.1, 0.2).double() * x, torch.fmod(x, 0.7)
        return *kept, *sizes, x.clamp(-0.3, 0.3), x % 0.7, 0.7 - x

    x = torch.linspace(-2, 2, 24, dtype=torch.float64).reshape(4, 6)
    program = kernel(function).trace(x)
    found = TritonExecutable(program, interpret=True)(x)
    for mine, right in zip(found, function(x), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-15, atol=1e-15)
