"""Programs on extreme numbers: finite where PyTorch is, and as accurate.

Logits far from 0, rows masked by the lowest number or wholly by -inf, constants beyond
f32, powers of everything: the reference run and the found μGraphs, interpreted, beside
PyTorch in the same dtype, both measured against PyTorch in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mirage_dsl as mirage
from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.types import bf16, f32, scalar
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.search.driver import search
from tests.backends.running import TORCH
from tests.programs import mugraphs

F = torch.nn.functional
Function = Callable[..., Any]
INF, NAN = float("inf"), float("nan")
LARGEST = torch.finfo(torch.float32).max
ROWS, KEYS = 8, 24


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows(*values: float) -> Tensor:
    """Normal rows; ahead of them one of each number alone."""
    x = normal(ROWS, KEYS)
    x[: len(values)] = torch.tensor(values)[:, None]
    return x


def lowered(x: Tensor, value: float) -> Tensor:
    """One row wholly, one to its half and one but for an element at a number."""
    x = x.clone()
    x[1], x[2, KEYS // 2 :], x[3, 1:] = value, value, value
    return x


SIZES = (0.0, 1e-8, 1e-4, 0.5, 1.0, 5.0, 30.0, 100.0, 1e20, 3e38, LARGEST, INF)
NUMBERS = torch.tensor([sign * x for x in SIZES for sign in (1, -1)])[None]
NUMBERS[0, 1] = NAN
"""Of all sizes."""

FAR = {
    "around 1e5": normal(ROWS, KEYS) + 1e5,
    "around 1e7": normal(ROWS, KEYS) + 1e7,
    "around -1e7": normal(ROWS, KEYS) - 1e7,
    "all 3e38": torch.full((ROWS, KEYS), 3e38),
    "rows of one number": rows(-LARGEST, LARGEST, 0.0, -3e38),
    "masked by the lowest": lowered(normal(ROWS, KEYS), -LARGEST),
}
WHOLLY = {"masked by -inf": lowered(normal(ROWS, KEYS), -INF), "inf": rows(INF, NAN)}


def assert_as_accurate(found: Tensor, eager: Tensor, exact: Tensor) -> None:
    """What PyTorch has in float64 is missed by at most twice what it misses itself."""
    assert found.dtype == eager.dtype
    ulp = torch.finfo(eager.dtype).eps
    found, eager = found.double(), eager.double()
    same = (found == eager) | (found.isnan() & eager.isnan())
    known = eager.isfinite() & exact.isfinite()
    assert (same | known).all(), f"{found[~(same | known)]}"
    assert found[known].isfinite().all(), "not finite where PyTorch is"
    missed, own, size = (
        torch.cat([x[known].abs(), torch.zeros(1)]).max()
        for x in (found - exact, eager - exact, exact)
    )
    assert missed <= 2 * own + ulp * size, (missed, own)


def check(function: Function, *tensors: Tensor, graphs: list[KernelGraph]) -> None:
    """Hold the reference run and μGraphs to PyTorch."""
    eager, exact = function(*tensors), function(*(t.double() for t in tensors))
    assert_as_accurate(mirage.kernel(function)(*tensors), eager, exact)
    for graph in graphs:
        (found,) = TritonExecutable(graph, interpret=True)(*tensors)
        assert_as_accurate(found, eager, exact)


def graphs_of(function: Function, *tensors: Tensor, k: int = 3) -> list[KernelGraph]:
    """The best μGraphs, and the program by library kernels."""
    specs = [mirage.spec(t.shape, t.dtype) for t in tensors]
    found = search(mirage.kernel(function).trace(*specs), H100, k=k)
    return [*(c.mugraph for c in found), found.library]


# -- Rows of logits --------------------------------------------------------------------


def scaled(x: Tensor) -> Tensor:
    return torch.softmax(x * 0.3, -1)


SOFTMAXES: dict[str, Function] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "of a product": scaled,
    "logarithm": lambda x: F.log_softmax(x, -1),
    "of the sum": lambda x: torch.logsumexp(x, -1),
    "by hand": lambda x: torch.exp(x - x.amax(-1, keepdim=True)).sum(-1),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SOFTMAXES)
def test_rows_of_any_size(name: str) -> None:
    function = SOFTMAXES[name]
    graphs = graphs_of(function, FAR["all 3e38"])
    for x in FAR.values():
        check(function, x, graphs=graphs)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["softmax", "of a product", "logarithm", "of the sum"])
def test_rows_that_are_masked_wholly_or_infinite(name: str) -> None:
    function = SOFTMAXES[name]
    graphs = graphs_of(function, FAR["all 3e38"])
    for x in WHOLLY.values():
        check(function, x, graphs=graphs)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rows_of_other_formats(dtype: str) -> None:
    lowest = torch.finfo(TORCH[dtype]).min
    x = lowered(1e3 * normal(ROWS, KEYS), lowest).to(TORCH[dtype])
    check(SOFTMAXES["softmax"], x, graphs=graphs_of(SOFTMAXES["softmax"], x))


def test_a_softmax_and_a_product_keep_nan() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.softmax(x, -1) @ w

    w = normal(KEYS, 16, seed=1)
    graphs = graphs_of(function, normal(ROWS, KEYS), w)
    for x in (*FAR.values(), WHOLLY["masked by -inf"]):
        check(function, x, w, graphs=graphs)


@pytest.mark.parametrize("factor", [0.3, 1.3])
def test_products_below_a_difference_are_rounded_as_in_the_maximum(
    factor: float,
) -> None:
    """Compilers would subtract the maximum from a product that is not rounded.

    A factor of at most 1 is one of the difference, and there is no product.
    """

    def function(x: Tensor) -> Tensor:
        return torch.softmax(x * factor, -1)

    graphs = [g for g in graphs_of(function, FAR["all 3e38"]) if g.blocks]
    assert graphs
    for graph in graphs:
        source = emit(graph)
        assert (f", {factor}, 0.0)" in source) == (factor > 1)
        assert (f") * ({factor} * 1.44" in source) == (factor < 1)


# -- Attention -------------------------------------------------------------------------


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask)


def test_queries_that_see_no_key() -> None:
    q, k, v = normal(ROWS, 16), normal(KEYS, 16, seed=1), normal(KEYS, 16, seed=2)
    zeros = torch.zeros(ROWS, KEYS)
    graphs = graphs_of(attention, q, k, v, zeros)
    for value in (-INF, -LARGEST):
        check(attention, q, k, v, lowered(zeros, value), graphs=graphs)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k, -1) @ v


@pytest.mark.sample(2)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_running_maxima_of_large_logits(dtype: Any, splits: int) -> None:
    """Keys of one head are far away; those of two others masked in tiles and parts."""
    keys = 75
    graph = mugraphs.attention(
        3, 32, keys, d=16, tile_m=16, tile_n=16, splits=splits, dtype=dtype
    )
    q, k, v = (
        normal(3, 32, 16),
        normal(3, 16, keys, seed=1),
        normal(3, keys, 16, seed=2),
    )
    q[:, :, 0] = 1
    k[0, 0] = 1e7
    k[1, 0, : keys // 2] = torch.finfo(TORCH[dtype.name]).min
    k[2, 0] = torch.finfo(TORCH[dtype.name]).min
    q, k, v = (t.to(TORCH[dtype.name]) for t in (q, k, v))
    (found,) = TritonExecutable(graph, interpret=True)(q, k, v)
    exact = attended(q.double(), k.double(), v.double())
    assert_as_accurate(found, attended(q, k, v), exact)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(q @ k.transpose(-1, -2))
    return (e @ v) / e.sum(-1, keepdim=True)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 8192), (64, 64)], ids=["decoding", "square"]
)
def test_a_plan_that_stays_finite_wins(queries: int, keys: int) -> None:
    """Sums of exponentials written without a maximum overflow on normal numbers."""
    specs = [mirage.f16[16, n, 128] for n in (queries, keys, keys)]
    found = search(mirage.kernel(by_hand).trace(*specs), H100)
    assert all("rowshift" in str(c.mugraph) for c in found)


def test_rows_longer_than_f16_counts() -> None:
    """The best plan reads rows twice; it stores no exponentials, and no sum in f16."""
    kernel = mirage.kernel(lambda x: F.softmax(x, -1), effort="quick")
    x = torch.zeros(3, 140_000, dtype=torch.float16)
    x[1, :70_000], x[2] = -65504.0, 300 * normal(140_000).half()
    graph = kernel.bind(x).search(use_cache=False).best.mugraph
    assert len(graph.blocks) == 3
    assert not {n.op for n in graph.applies}
    found = TritonExecutable(graph, interpret=True)(x)[0]
    right = F.softmax(x.double(), -1)
    error = (found.double() - right).norm(dim=-1) / right.norm(dim=-1)
    eager = (F.softmax(x, -1).double() - right).norm(dim=-1) / right.norm(dim=-1)
    assert (error <= 2 * eager + 1e-3).all()


def test_where_no_plan_stays_finite_it_is_said() -> None:
    traced = mirage.kernel(lambda x: torch.exp(x).sum(-1)).trace(mirage.f32[32, 64])
    lines = mirage.explain(search(traced, H100).best.mugraph, traced)
    assert "has no running maximum" in str(lines)


# -- Elements --------------------------------------------------------------------------

LIMIT = torch.finfo(torch.float64).max
ELEMENTS: dict[str, Function] = {
    "power 0": lambda x: x**0,
    "power 7": lambda x: x**7,
    "power -3": lambda x: x**-3,
    "power 65": lambda x: x**65,
    "power 0.5": lambda x: x**0.5,
    "power -1.5": lambda x: x**-1.5,
    "to the power": lambda x: 1.0**x + 0.0 ** torch.abs(x),
    "of a negative number": lambda x: (-2.0) ** x,
    "of tensors": lambda x: x ** torch.clamp(x, -3, 3),
    "sigmoid": lambda x: torch.sigmoid(x),
    "silu": F.silu,
    "tanh": lambda x: torch.tanh(x),
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": lambda x: F.softplus(x),
    "limited": lambda x: torch.where(x < 1e39, x, 1.0) + 1e-50,
    "selected": lambda x: torch.where(x > 0, x, -3e38),
    "zero": lambda x: x - x,
    "one": lambda x: x / x,
    "clamped": lambda x: x.clamp(-1, 1),
}


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_of_any_size(name: str) -> None:
    function = ELEMENTS[name]
    graphs = graphs_of(function, NUMBERS, k=2)
    check(function, NUMBERS, graphs=graphs)


SMALL: dict[str, tuple[Function, float]] = {
    "tanh": (lambda x: torch.tanh(x), 0),
    "elu": (lambda x: F.elu(x), 0),
    "selu": (lambda x: F.selu(x), 0),
    "celu": (lambda x: F.celu(x, 2.0), 0),
    "expm1": (lambda x: torch.expm1(x), 0),
    "log1p": (lambda x: torch.log1p(x), 0),
    "sinh": (lambda x: torch.sinh(x), 0),
    "softplus": (lambda x: F.softplus(x), -12),
    "logsigmoid": (lambda x: F.logsigmoid(x), 12),
    "mish": (lambda x: F.mish(x), -12),
}
"""Functions whose values around a place are next to nothing beside 1."""


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", SMALL)
def test_what_is_next_to_nothing_is_as_accurate(name: str) -> None:
    function, place = SMALL[name]
    sizes = torch.logspace(-30, 0.4, ROWS * KEYS)
    x = place + torch.cat([sizes, -sizes * 0.9 / sizes.max()]).reshape(-1, KEYS)
    exact = function(x.double())
    for graph in graphs_of(function, x, k=2):
        (found,) = TritonExecutable(graph, interpret=True)(x)
        missed = (found.double() - exact).abs() / exact.abs()
        assert missed.max() < 2e-6, x.ravel()[missed.argmax()]


@pytest.mark.parametrize("name", ["tanh", "expm1", "log1p"])
def test_zeros_of_both_signs_go_through_these(name: str) -> None:
    zeros = torch.tensor([[0.0, -0.0]]).repeat(ROWS, KEYS // 2)
    for graph in graphs_of(lambda x: getattr(torch, name)(x), zeros, k=1):
        (found,) = TritonExecutable(graph, interpret=True)(zeros)
        assert torch.equal(torch.signbit(found), torch.signbit(zeros))


def test_the_softplus_of_the_largest_numbers_is_finite() -> None:
    function: Function = lambda x: F.softplus(x, beta=2.0)  # noqa: E731
    check(function, NUMBERS, graphs=graphs_of(function, NUMBERS, k=1))


CONSTANTS = (1e39, -1e300, 1e-50, 1e-40, LARGEST, LIMIT)
OPERATIONS: dict[str, Function] = {
    "add": lambda x, c: x + c,
    "mul": lambda x, c: x * c,
    "div": lambda x, c: x / c,
    "less": lambda x, c: (x < c).float(),
    "maximum": lambda x, c: torch.maximum(
        x, torch.as_tensor(c, dtype=torch.float64).to(x)
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_constants_in_blocks_are_what_f32_holds(name: str) -> None:
    x = torch.cat([NUMBERS[:, 2:-2], 1e-30 * normal(1, 4)], 1)
    for constant in CONSTANTS:
        g = KernelBuilder("constants", m=1, n=KEYS)
        given = g.input("x", f32, "m, n")
        with g.block(grid={"n": 8}) as b:
            t = b.load(given, "m, n/grid")
            out = b.store(b.apply(OPERATORS[name], t, scalar(constant)), "m, n/grid")
        graph = g.returns(out).build()
        eager = OPERATIONS[name](x, constant)
        held = torch.tensor(constant, dtype=torch.float64).float().double()
        exact = OPERATIONS[name](x.double(), held).double()
        (found,) = TritonExecutable(graph, interpret=True)(x)
        assert_as_accurate(found, eager, exact)


TWICE: dict[str, Function] = {
    "divided twice": lambda x: x / 1e30 / 1e30,
    "divided by little": lambda x: x / 1e-39,
    "multiplied twice": lambda x: x * 1e30 * 1e30,
}


@pytest.mark.parametrize("name", TWICE)
def test_constants_are_merged_where_f32_holds_them(name: str) -> None:
    small, large = 1e-30 * normal(1, KEYS), 1e30 * normal(1, KEYS)
    graph = expand(mirage.kernel(TWICE[name]).trace(mirage.spec((1, KEYS), "float32")))
    for x in (small, large):
        check(TWICE[name], x, graphs=[graph])


SIGNED: dict[str, Function] = {
    "times -0.0": lambda x: 1 / (x * -0.0),
    "times 0.0": lambda x: 1 / (x * 0.0),
    "both": lambda x: torch.minimum(1 / (x * 0.0), 3 + 1 / (x * -0.0)),
    "nearer to 0 than f32": lambda x: 1 / (x * -1e-60),
    "divided": lambda x: 1 / (-0.0 / x),
    "less": lambda x: 1 / (-0.0 - x * 0.0),
    "more": lambda x: 1 / (-0.0 + x * -0.0),
    "limited": lambda x: 1 / x.clamp(max=-0.0),
    "chosen": lambda x: 1 / torch.where(x > 1.5, -0.0, 0.0),
    "root": lambda x: 1 / torch.sqrt(x * -0.0),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", SIGNED)
def test_zeros_keep_their_sign(name: str) -> None:
    x = normal(ROWS, KEYS).abs() + 1
    function = SIGNED[name]
    eager = function(x)
    assert torch.isinf(eager).all()
    kernel = mirage.kernel(function)
    assert torch.equal(kernel(x), eager)
    for graph in graphs_of(function, x):
        assert mirage.parse(str(graph)) == graph
        (found,) = TritonExecutable(graph, interpret=True)(x)
        assert torch.equal(found, eager)


def test_zeros_of_both_signs_are_two_constants() -> None:
    positive = mirage.kernel(SIGNED["times 0.0"]).trace(normal(2, 3))
    negative = mirage.kernel(SIGNED["times -0.0"]).trace(normal(2, 3))
    assert "-0.0" in str(negative)
    assert "-0.0" not in str(positive)
    assert canonical_hash(positive) != canonical_hash(negative)
    assert positive != mirage.parse(str(negative)) == negative


def test_limits_beyond_f32_limit_nothing() -> None:
    graphs = graphs_of(
        lambda x: mirage.minimum(mirage.maximum(x, -1e39), 1e300), NUMBERS
    )
    for graph in graphs:
        (found,) = TritonExecutable(graph, interpret=True)(NUMBERS)
        assert torch.equal(found.nan_to_num(7), NUMBERS.nan_to_num(7))


def test_constants_beyond_any_float_are_refused() -> None:
    with pytest.raises(mirage.TraceError, match="beyond float64"):
        mirage.kernel(lambda x: x + 10**400).trace(mirage.f32[4])


def test_what_is_masked_reaches_no_sum() -> None:
    def function(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return torch.where(x > 0, y, 0.0) @ w

    x, w = normal(ROWS, KEYS), normal(KEYS, 16, seed=1)
    y = torch.where(x > 0, normal(ROWS, KEYS, seed=2), NAN)
    check(function, x, y, w, graphs=graphs_of(function, x, y, w))


# -- Numbers of f16 whose squares are beyond it ----------------------------------------

WITHIN_F32: dict[str, Function] = {
    "norm": lambda x, _: x.norm(),
    "norm of an order": lambda x, _: torch.linalg.vector_norm(x, 3, dim=-1),
    "normalize": lambda x, _: F.normalize(x),
    "var": lambda x, _: (x / 4).var(-1),
    "std": lambda x, _: x.std(-1),
    "distance": lambda x, y: F.pairwise_distance(x, y),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", WITHIN_F32)
def test_squares_beyond_f16(name: str) -> None:
    """PyTorch's kernels compute in f32; so do ours, and the library's one by one."""
    x, y = ((250 * normal(ROWS, KEYS, seed=seed)).half() for seed in (0, 1))
    assert not (x * x).isfinite().all()
    function = WITHIN_F32[name]
    check(function, x, y, graphs=graphs_of(function, x, y))
