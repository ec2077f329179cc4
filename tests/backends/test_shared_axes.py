"""Axes of the grid that split several dims, emitted and run in the interpreter."""

from __future__ import annotations

import pytest

from mirage_dsl.backends.triton.lowering.emit import emit, plan
from mirage_dsl.ir.check import check as problems
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from tests.backends.running import check, random_inputs


def norm_and_products(
    grid: str, schedule: str = "", sizes: str = "m = 5, k = 40, a = 70, b = 24, c = 9"
) -> KernelGraph:
    """`rms_norm(x) @ wa`, and the same with two other weights."""
    rows = "m/grid" if "m /" in grid else "m"
    graph = parse(
        f"""mirage 1
        mugraph qkv(x: f16[m, k], wa: f16[k, a], wb: f16[k, b], wc: f16[k, c])
        -> f16[m, a], f16[m, b], f16[m, c] where {sizes} {{
          q, r, s = block grid({grid}) loop(k / 16) {schedule} {{
            xt = load x[{rows}, k/loop]
            at = load wa[k/loop, a/grid]
            bt = load wb[k/loop, b/grid]
            ct = load wc[k/loop, c/grid]
            squares = accumulate square(xt)
            qa = accumulate xt @ at
            ra = accumulate xt @ bt
            sa = accumulate xt @ ct
            scale = rsqrt(sum(squares, k) * 1/k + 1e-6)
            q = qa * scale
            r = ra * scale
            s = sa * scale
            store q[{rows}, a/grid]
            store r[{rows}, b/grid]
            store s[{rows}, c/grid]
          }}
          return q, r, s
        }}
        """
    )
    assert problems(graph) == []
    return graph


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "grid",
    [
        "m / 4, a / 16 & b / 4 & c / 2",
        "a / 32 & b / 8 & c / 1",
        "a / 1 & b / 1 & c / 1",
        "c / 9 & b / 8 & a / 16",
        "a / 16 & b / 32, c / 16",
    ],
)
def test_numbers_of_parts_may_differ(grid: str) -> None:
    if grid.endswith("c / 16"):
        with pytest.raises(AssertionError):
            norm_and_products(grid)
        return
    check(norm_and_products(grid))


@pytest.mark.parametrize(
    "schedule", ["descriptors(true)", "swap_operands(true)", "second_load(false)"]
)
def test_schedules(schedule: str) -> None:
    sizes = "m = 16, k = 64, a = 96, b = 32, c = 16"
    check(norm_and_products("a / 32 & b / 16 & c / 16", schedule, sizes))


def test_one_program_id_for_all_dims_of_an_axis() -> None:
    text = emit(norm_and_products("m / 4, a / 16 & b / 8 & c / 2"))
    assert text.count("tl.program_id(") == 2
    assert "a_b_c_id = tl.program_id(1)" in text
    assert "a_at = a_b_c_id * 16" in text
    assert "c_at = a_b_c_id * 2" in text
    assert "[(2, 5)](" in text, "five parts of a and c, three of b"
    assert "(b_at < 24)" in text
    even = emit(
        norm_and_products(
            "a / 16 & b / 32 & c / 16", "", "m = 16, k = 64, a = 64, b = 128, c = 64"
        )
    )
    assert "mask=" not in even


def test_symbolic_extents() -> None:
    sizes = "m = 5, k = 40, a = ?, b = 24, c = ?"
    graph = norm_and_products("m / 4, a / 16 & b / 8 & c / 16", "", sizes)
    assert "max(triton.cdiv(" in emit(graph)
    for a, c in ((16, 16), (70, 3), (5, 90)):
        check(graph, random_inputs(graph, a=a, c=c))


def test_dims_of_a_batch() -> None:
    graph = parse(
        """mirage 1
        mugraph two(x: f16[h, m, k], w: f16[h, k, a], y: f16[g, m, k], v: f16[g, k, a])
        -> f16[h, m, a], f16[g, m, a] where h = 6, g = 2, m = 5, k = 24, a = 18 {
          p, q = block grid(h / 1 & g / 1, a / 16) {
            xt = load x[h/grid, m, k]
            wt = load w[h/grid, k, a/grid]
            yt = load y[g/grid, m, k]
            vt = load v[g/grid, k, a/grid]
            p = matmul xt, wt over(k)
            q = matmul yt, vt over(k)
            store p[h/grid, m, a/grid]
            store q[g/grid, m, a/grid]
          }
          return p, q
        }
        """
    )
    assert problems(graph) == []
    check(graph)


@pytest.mark.parametrize("number", ["a", "b"])
@pytest.mark.parametrize("sizes", ["a = 70, b = 24", "a = ?, b = ?"])
def test_what_all_blocks_of_an_axis_compute(number: str, sizes: str) -> None:
    """More blocks than parts of the dim that numbers them."""
    graph = parse(
        f"""mirage 1
        mugraph two(x: f16[m, k], w: f16[k, a], v: f16[k, b])
        -> f16[m, a], f16[k, b], f32[m, {number}#] where m = 5, k = 24, {sizes} {{
          y, z, s = block grid(a / 16 & b / 8) {{
            xt = load x[m, k]
            wt = load w[k, a/grid]
            vt = load v[k, b/grid]
            y = xt @ wt
            z = exp vt
            s = sum(xt, k)
            store y[m, a/grid]
            store z[k, b/grid]
            store s[m, {number}#/grid]
          }}
          return y, z, s
        }}
        """
    )
    assert problems(graph) == []
    for a, b in ((70, 24), (8, 70)) if "?" in sizes else ((70, 24),):
        check(graph, random_inputs(graph, a=a, b=b))


def test_it_compiles_for_hopper() -> None:
    from mirage_dsl.backends.triton.running.screen import compile_kernel

    sizes = "m = 16, k = 4096, a = 4096, b = 1024, c = 1024"
    for schedule in ("num_stages(4)", "num_stages(4) swap_operands(true)"):
        graph = norm_and_products("a / 64 & b / 16 & c / 16", schedule, sizes)
        emitted = plan(graph)
        compiled = compile_kernel(emitted, emitted.kernels[0], 90)
        assert emitted.kernels[0].grid == ("64",)
        assert len(compiled.asm["cubin"]) > 0
