"""Library kernels make what they make for each other without copies, and right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mirage_dsl as mirage
from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.backends.triton.running.direct import NotedKernel
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.types import f32
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.cost.explain import explain
from mirage_dsl.ir.analysis.layouts import (
    as_libraries_make,
    copied_for_products,
    laid_out,
)
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph, Return, Schedule
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.search.sizes import Constraints, Sizer
from tests.backends.running import check, random_inputs

functional = torch.nn.functional


def masked_attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Heads behind positions, as a projection makes them."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    logits = (q @ k.transpose(-2, -1)) * 0.5
    logits = logits.masked_fill(mask == 0, float("-inf"))
    return functional.softmax(logits, dim=-1) @ v


def relu_attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    logits = (q @ k.transpose(-2, -1)) * 0.5
    return torch.relu(torch.where(mask == 0, -1.0, logits)) @ v


def attention_of_planes(q: Any, k: Any) -> Any:
    """Rows and columns of two dims each."""
    logits = torch.einsum("bhwnd,bxynd->bnhwxy", q, k)
    return torch.relu(logits) * 2


def packed_attention(x: Any, w: Any) -> Any:
    """Queries, keys and values as one product makes them."""
    q, k, v = (x @ w).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    return torch.relu(q @ k.transpose(-2, -1)) @ v


def packed_rows_first(x: Any, w: Any) -> Any:
    """The same with positions ahead of batches, and of rows alone."""
    q, k, v = (x @ w).unflatten(2, (3, 2, 4)).permute(2, 1, 3, 0, 4)
    return torch.relu(q @ k.transpose(-2, -1)) @ v


def merged_heads(x: Any, w: Any) -> Any:
    return torch.relu(x.transpose(1, 2).flatten(2) @ w)


def part_of_a_row(x: Any, w: Any) -> Any:
    return torch.relu(x[:, :6] @ w)


def every_matrix(x: Any, w: Any) -> Any:
    return torch.relu(x[:, 1:].transpose(1, 2) @ w)


def every_other_head(x: Any, w: Any) -> Any:
    return torch.relu(x[:, :2] @ w)


def behind_a_row(x: Any, row: Any) -> Any:
    return torch.cat([row.expand(x.shape[0], -1), torch.relu(x)], 1)


def pointwise(x: Any, w: Any) -> Any:
    """A convolution of single points, which is a product but in f32."""
    return torch.relu(functional.conv2d(x, w)) * 2


def pointwise_with_bias(x: Any, w: Any, b: Any) -> Any:
    return functional.conv2d(x, w, b)


def joined(x: Any, w: Any, b: Any, u: Any) -> Any:
    return torch.cat([functional.conv2d(x, w, b), functional.conv2d(x, u), x], 1)


def joined_rows(x: Any, token: Any, w: Any, b: Any, u: Any, c: Any) -> Any:
    """Rows of a norm and a layer, behind one that all batches share."""
    x = torch.cat([token.expand(x.shape[0], -1, -1), functional.linear(x, w, b)], 1)
    x = functional.layer_norm(x, (x.shape[-1],), c, c)
    return x + functional.linear(torch.relu(x), u, c)


CONVOLVED = (pointwise, pointwise_with_bias, joined)


class Copies(TorchDispatchMode):
    """Counts what copies a tensor, if only into another order."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.count += name in {"clone", "copy_"}
        return func(*args, **(kwargs or {}))


def copies_around_kernels(graph: KernelGraph) -> int:
    """How often PyTorch copies a tensor for a μGraph of one kernel, which does not."""
    host = emit(graph)
    kernels = {f"{graph.name}_kernel0": NotedKernel()}
    scope: dict[str, Any] = {"torch": torch, **kernels}
    exec(host[host.index("def run(") :], scope)
    with Copies() as ours:
        # The kernel stores nothing, and the numbers do not matter.
        scope["run"](*random_inputs(graph))
    return ours.count


def traced(function: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> Any:
    dtype = "float64" if function in CONVOLVED else "float32"
    return mirage.kernel(function).trace(*(mirage.spec(s, dtype) for s in shapes))


def lying(graph: KernelGraph) -> dict[str, tuple[str, ...]]:
    extents = derived_extents(graph, graph.extent_of)
    return as_libraries_make(graph, kernel_types(graph), extents)


QKV = ((2, 5, 3, 4),) * 3
PLANES = ((2, 3, 4, 2, 5), (2, 4, 3, 2, 5))
CASES = {
    "masked_attention": (masked_attention, (*QKV, (5, 5)), 4),
    "relu_attention": (relu_attention, (*QKV, (5, 5)), 4),
    "packed_attention": (packed_attention, ((2, 5, 6), (6, 24)), 3),
    "attention_of_planes": (attention_of_planes, PLANES, 2),
    "pointwise": (pointwise, ((2, 5, 8, 9), (6, 5, 1, 1)), 3),
    "pointwise_with_bias": (pointwise_with_bias, ((2, 5, 8, 9), (6, 5, 1, 1), (6,)), 1),
    "joined": (joined, ((2, 5, 8, 9), (6, 5, 1, 1), (6,), (7, 5, 1, 1)), 3),
    "joined_rows": (
        joined_rows,
        ((2, 5, 4), (1, 1, 6), (6, 4), (6,), (6, 6), (6,)),
        0,
    ),
}


def test_views_of_positions_are_not_copied() -> None:
    program = parse("""
        mirage 1

        mugraph program(
            x: f32[m, k], w: f32[k, n]
        ) -> f32[m, n] where m = 4, k = 8, n = 5, j = 16, v = 1 {
          index1 = index j
          index2 = index v
          slice1: i64[k] = slice index1 dim(j) start(8) stop(16) to(k)
          to_f321: f32[k] = to_f32 slice1
          max1: i64[] = max index2 over(v)
          to_f322: f32[] = to_f32 max1
          mul1: f32[m, k] = mul x, to_f321
          mul2: f32[m, k] = mul mul1, to_f322
          matmul1: f32[m, n] = matmul mul2, w over(k)
          return matmul1
        }
        """)
    types, extents = kernel_types(program), derived_extents(program)
    assert copied_for_products(program, types, extents) == {}


@pytest.mark.parametrize(
    ("function", "shapes", "copies"),
    [
        (packed_attention, [(2, 5, 32), (32, 24)], 3),
        (packed_rows_first, [(5, 2, 32), (32, 24)], 3),
        (packed_rows_first, [(5, 1, 32), (32, 24)], 0),
        (merged_heads, [(2, 4, 5, 8), (32, 7)], 1),
        (merged_heads, [(2, 1, 5, 32), (32, 7)], 0),
        (part_of_a_row, [(4, 8), (6, 5)], 0),
        (every_matrix, [(3, 5, 8), (3, 4, 5)], 0),
        (every_other_head, [(2, 4, 5, 8), (2, 2, 8, 3)], 1),
        (every_other_head, [(1, 4, 5, 8), (1, 2, 8, 3)], 0),
    ],
)
def test_what_products_copy_is_known(
    function: Any, shapes: Sequence[tuple[int, ...]], copies: int
) -> None:
    """As many operands as PyTorch is seen to copy; the estimate has their launches."""
    program = traced(function, shapes)
    extents = derived_extents(program)
    types = laid_out(program, kernel_types(program), extents)
    found = copied_for_products(program, types, extents)
    assert sum(map(len, found.values())) == copies
    assert copies_around_kernels(program) == copies
    without = estimate(program, H100, copied={}).microseconds
    launches = 1e6 * copies * H100.launch
    assert estimate(program, H100).microseconds >= without + launches


@pytest.mark.parametrize("name", CASES)
def test_values_lie_as_they_are_made(name: str) -> None:
    function, shapes, least = CASES[name]
    graph = traced(function, shapes)
    found = lying(graph)
    assert len(found) >= least
    assert bool(found) == bool(least)
    types = laid_out(graph, kernel_types(graph), dict(graph.extents))
    for value, dims in found.items():
        kind = types[value]
        assert tuple(kind.names[a] for a in kind.order) == dims
    check(graph)


def run_counted(
    graph: KernelGraph, inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, int]:
    """The result of a program of library kernels, and how often they copy."""
    scope: dict[str, Any] = {}
    exec(emit(graph), scope)
    with Copies() as copies:
        (found,) = scope["run"](*inputs)
    return found, copies.count


@pytest.mark.parametrize("name", [n for n in CASES if n != "attention_of_planes"])
def test_nothing_is_copied_that_eager_does_not_copy(name: str) -> None:
    function, shapes, _ = CASES[name]
    graph = traced(function, shapes)
    inputs = random_inputs(graph)
    found, copies = run_counted(graph, inputs)
    with Copies() as eager:
        wanted = function(*inputs)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()
    assert copies <= eager.count


def test_attention_is_returned_as_it_is_made() -> None:
    """As its queries lie, which is not known ahead of a call."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v)

    graph = traced(attention, ((2, 3, 5, 4),) * 3)
    q, k, v = (torch.randn(2, 5, 3, 4).movedim(1, 2) for _ in range(3))
    found, copies = run_counted(graph, (q, k, v))
    wanted = attention(q, k, v)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()
    assert not copies


def last_step(x: Any, h: Any, w: Any, u: Any, out: Any) -> Any:
    """Of layers whose batches come first: the steps lie one after the other anyway."""
    made, _ = torch.gru(x, h, [w, u], False, 1, 0.0, False, False, True)
    return made[:, -1] @ out


def test_steps_of_batches_are_seen_and_not_copied() -> None:
    shapes = ((3, 6, 5), (1, 3, 4), (12, 5), (12, 4), (4, 2))
    graph = traced(last_step, shapes)
    inputs = random_inputs(graph)
    found, copies = run_counted(graph, inputs)
    with Copies() as eager:
        wanted = last_step(*inputs)
    torch.testing.assert_close(found, wanted)
    assert copies <= eager.count


def in_windows(x: Any) -> Any:
    """Windows of rows and columns: between their numbers lies that of rows in each."""
    y: Any = torch.relu(x)
    return y.unflatten(1, (4, 2)).unflatten(3, (3, 2)).permute(0, 1, 3, 2, 4)


def windows_one_by_one(x: Any) -> Any:
    return in_windows(x).reshape(-1, 2, 2)


def windows_in_rows(x: Any) -> Any:
    return in_windows(x).flatten(2)


def heads_side_by_side(x: Any, w: Any) -> Any:
    return (torch.relu(x) @ w).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("function", "shapes", "copies"),
    [
        (in_windows, [(2, 8, 6)], 0),
        (windows_one_by_one, [(2, 8, 6)], 1),
        (windows_one_by_one, [(1, 8, 6)], 1),
        (windows_in_rows, [(2, 8, 6)], 1),
        (heads_side_by_side, [(2, 4, 5, 8), (8, 3)], 1),
        (heads_side_by_side, [(2, 1, 5, 8), (8, 3)], 0),
    ],
)
def test_what_results_copy_is_known(
    function: Any, shapes: Sequence[tuple[int, ...]], copies: int
) -> None:
    """Views of what kernels make, dims of which a result has as one axis."""
    program = traced(function, shapes)
    cost = estimate(program, H100)
    assert sum(len(k.rearranged) for k in cost.kernels) == copies
    assert cost.launches == len(cost.kernels) + copies
    assert copies_around_kernels(program) == copies
    assert str(explain(program)).count("PyTorch copies") == copies


def test_few_columns_are_multiplied_at_once() -> None:
    """Many products of narrow matrices take longer than a copy and one product."""
    graph = traced(pointwise, ((2, 5, 3, 3), (6, 5, 1, 1)))
    assert not lying(graph)
    check(graph)


SMALL = {"m": 8, "n": 16, "k": 32, "b": 4, "d": 8}
LARGE = {"m": 1024, "n": 1024, "k": 64, "b": 96, "d": 64}


def between_products(
    kept: str = "m, n, b", extents: Mapping[str, int] = SMALL, **grid: int
) -> KernelGraph:
    """A block behind a product of batches, and one ahead of another product."""
    g, grid = KernelBuilder("between", **extents), grid or {"m": 4}
    x, y = g.input("x", f32, "m, b, k"), g.input("y", f32, "n, b, k")
    v = g.input("v", f32, "n, b, d")
    product = g.matmul(x, y, over="k", name="product")
    loaded, stored = (
        ", ".join(f"{d}/grid" if d in grid else d for d in dims.split(", "))
        for dims in ("m, b, n", kept)
    )
    with g.block(grid=grid, schedule=Schedule(4, 1)) as block:
        tile = block.load(product, loaded)
        block.store(block.exp(tile), stored, dtype=f32, name="weights")
    return g.returns(g.matmul("weights", v, over="n", name="z")).build()


@pytest.mark.parametrize("kept", ["m, n, b", "b, n, m", "n, b, m"])
def test_blocks_read_and_store_as_products_make_and_want(kept: str) -> None:
    graph = between_products(kept)
    found = lying(graph)
    assert found["product"] == ("b", "m", "n")
    assert found.get("weights", tuple(kept.split(", "))) == ("b", "m", "n")
    assert "torch.empty((4, 8, 16)" in emit(graph)
    # The operands of the first product, of which batches lie behind rows, those of the
    # second that the caller gives, and what is returned.
    assert copies_around_kernels(graph) <= 4
    check(graph)


def test_what_is_read_by_others_or_returned_is_stored_row_major() -> None:
    graph = between_products()
    weights = kernel_types(graph)["weights"]
    returned = (*graph.returns, Return("weights", weights))
    assert "weights" not in lying(replace(graph, returns=returned))


POOLED = """mirage 1

mugraph pooled(x: f32[n, c, h, w]) -> f32[n, c, p, q]
    where n = 2, c = 4, h = 6, w = 8, p = 3, q = 4 {
  y = block grid(n / 1, h / 2) {
    t = load x[n/grid, c, h/grid, w]
    u = tanh t
    store y: f32[STORED] = u
  }
  z = max_pool2d y of(n, c, h, w) gives(n, c, p, q) kernel(2, 2) stride(2, 2) \
padding(0, 0) dilation(1, 1) ceil(0)
  return z
}
"""


@pytest.mark.parametrize("stored", ["n/grid, c, h/grid, w", "h/grid, w, n/grid, c"])
def test_blocks_store_as_library_kernels_have_their_axes(stored: str) -> None:
    """PyTorch copies what lies otherwise, which may take as long as all the rest."""
    graph = parse(POOLED.replace("STORED", stored))
    assert "torch.empty((2, 4, 6, 8)" in emit(graph)
    assert lying(graph).get("y", ("n", "c", "h", "w")) == ("n", "c", "h", "w")
    assert copies_around_kernels(graph) == 0
    check(graph)


UNPACKED = """mirage 1

mugraph unpacked(x: f32[m, (k h)], q: f32[(n k)]) -> f32[m, n]
    where m = 8, k = 6, h = 2, n = 16 {
  i = index h
  y = block grid(n / 4) {
    t = load q[(n/grid k)]
    at = load i[h]
    f = to_f32 at
    u = mul t, f
    store y: f32[STORED] = u
  }
  z = matmul x, y over(k, h)
  return z
}
"""


@pytest.mark.parametrize(
    ("stored", "lies"),
    [
        ("n/grid, k, h", ("n", "k", "h")),
        ("h, n/grid, k", ("n", "k", "h")),
        ("h, k, n/grid", ("k", "h", "n")),
        ("k, h, n/grid", ("k", "h", "n")),
        ("k, n/grid, h", ("n", "k", "h")),
    ],
)
def test_blocks_store_what_products_sum_side_by_side(
    stored: str, lies: tuple[str, ...]
) -> None:
    """In the order of the other factor; PyTorch copies what lies otherwise."""
    graph = parse(UNPACKED.replace("STORED", stored))
    names = kernel_types(graph)["y"].names
    assert lying(graph).get("y", names) == lies
    assert copies_around_kernels(graph) == 0
    check(graph)


def test_what_is_copied_for_the_caller_is_copied_once() -> None:
    """Batches in the middle of what is returned, with its axes in another order."""
    graph = between_products()
    (item,) = graph.returns
    kind = kernel_types(graph)["z"]
    (m, b, d) = kind.axes
    wanted = replace(item, type=replace(kind, axes=(d, m, b)))
    graph = replace(graph, returns=(wanted,))
    assert lying(graph)["z"] == ("d", "m", "b")
    check(graph)


def test_blocks_are_sized_as_what_they_read_lies() -> None:
    # As is best for row-major tensors, where batches lie together.
    graph = between_products(extents=LARGE, m=4, n=1, b=96)
    plan = Sizer(H100, Constraints()).joined(graph)
    assert plan is not None
    assert plan.microseconds < 0.8 * estimate(graph, H100).microseconds
    (block,) = plan.graph.blocks
    tiles = {split.dim: split.tile for split in block.grid}
    assert tiles.get("n", 1024) >= 64


@pytest.mark.parametrize(("rows", "copied"), [(16, False), (2048, True)])
def test_repeated_parts_of_what_is_large_are_tensors(rows: int, copied: bool) -> None:
    graph = traced(behind_a_row, ((rows, 700), (1, 3)))
    assert (f".expand(({rows}, 3)).contiguous()" in emit(graph)) == copied
    check(graph)
