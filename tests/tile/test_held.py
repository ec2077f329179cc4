"""Values held without their factor: which are, and which are not."""

from __future__ import annotations

import pytest

from mirage_dsl.core.types import scalar
from mirage_dsl.ir.check import check as problems
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.combined import Held, held_over
from tests.programs import mugraphs


def rows(
    scores: str = "s = mul x, 0.125",
    maximum: str = "m = rowshift s over(n)",
    then: str = "e = exp(s - m)",
    result: str = "r = sum e over(n)",
    width: str = "72",
) -> KernelGraph:
    """Exponentials relative to a maximum, of products of q and k."""
    lines = "\n".join((scores, maximum, then, result))
    loads = {"bias_t": "load bias[i/grid, n]", "place": "load places[n]"}
    read = "\n".join(f"{n} = {load}" for n, load in loads.items() if n in lines)
    graph = parse(
        f"""mirage 1
        mugraph f(q: f16[i, h], k: f16[h, n], bias: f32[i, n]) -> f32[i]
        where i = 32, h = 16, n = {width} {{
          {"places = index n" if "place" in lines else ""}
          y = block grid(i / 16) {{
            q_t = load q[i/grid, h]
            k_t = load k[h, n]
            {read}
            x = matmul q_t, k_t over(h)
            {scores}
            {maximum}
            {then}
            {result}
            store y: f32[i/grid] = r
          }}
          return y
        }}
        """
    )
    assert problems(graph) == []
    return graph


def held(graph: KernelGraph) -> Held:
    return held_over(programs(graph)[0])


HELD = {
    "a plain maximum": rows(),
    "an ordinary maximum": rows(maximum="m = max s over(n)"),
    "lanes outside": rows(width="75"),
    "the factor ahead": rows("s = mul 0.125, x"),
    "a mask of -inf": rows(
        "t = mul x, 0.125\n far = place < 9\n s = where(far, t, -inf)"
    ),
    "a mask of -inf in the other place": rows(
        "t = mul x, 0.125\n far = place < 9\n s = where(far, -inf, t)"
    ),
    "two masks": rows(
        "t = mul x, 0.125\n far = place < 9\n u = where(far, t, -inf)\n"
        "odd = place < 3\n s = where(odd, -inf, u)"
    ),
    "a sum ahead": rows("b = add x, bias_t\n s = mul b, 0.125"),
    "a finite mask ahead": rows(
        "far = place < 9\n w = where(far, x, -3e38)\n s = mul w, 0.125"
    ),
    "a maximum that others read": rows(
        result="l = sum e over(n)\n g = log l\n r = add m, g"
    ),
    "an extent": rows("s = mul x, 1/n"),
    "one half of sixty": rows(f"s = mul x, {2.0**-60}"),
}


@pytest.mark.parametrize("name", HELD)
def test_what_is_held(name: str) -> None:
    found = held(HELD[name])
    assert len(set(found.factors.values())) == 1
    assert {"s", "m"} <= found.factors.keys()
    assert "e" not in found.factors
    assert "x" not in found.factors
    assert not found.rounded


OTHERS = {
    "a factor below 0": rows("s = mul x, -0.125"),
    "0": rows("s = mul x, 0"),
    "infinity": rows("s = mul x, inf"),
    "a factor above 1": rows("s = mul x, 1.125"),
    "a factor that is next to nothing": rows(f"s = mul x, {2.0**-61}"),
    "an extent above 1": rows("s = mul x, n"),
    "a row": rows("l = max bias_t over(n)\n s = mul x, l"),
    "a bias": rows("t = mul x, 0.125\n s = add t, bias_t"),
    "a mask of the lowest number": rows(
        "t = mul x, 0.125\n far = place < 9\n s = where(far, t, -3.4028234663852886e38)"
    ),
    "a mask of another number": rows(
        "t = mul x, 0.125\n far = place < 9\n s = where(far, t, 0)"
    ),
    "a mask of infinity": rows(
        "t = mul x, 0.125\n far = place < 9\n s = where(far, t, inf)"
    ),
    "a mask of a tensor": rows(
        "t = mul x, 0.125\n far = place < 9\n s = where(far, t, bias_t)"
    ),
    "a cast": rows("t = mul x, 0.125\n s = cast t dtype(f16)"),
    "others read it": rows(result="z = mul e, s\n r = sum z over(n)"),
    "others read what is masked": rows(
        "t = mul x, 0.125\n far = place < 9\n s = where(far, t, -inf)",
        result="p = where(far, s, 0)\n z = mul e, p\n r = sum z over(n)",
    ),
    "a sum of it": rows(result="z = sum s over(n)\n o = sum e over(n)\n r = add z, o"),
    "the maximum of something else": rows(maximum="m = rowshift bias_t over(n)"),
    "the maximum and something else": rows(
        maximum="a = max s over(n)\n l = max bias_t over(n)\n m = maximum a, l"
    ),
    "the difference itself": rows(
        result="d = sub s, m\n z = mul e, d\n r = sum z over(n)"
    ),
    "the smallest": rows(
        maximum="m = max s over(n)",
        result="z = min s over(n)\n o = sum e over(n)\n r = add z, o",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_held(name: str) -> None:
    assert not {"s", "t", "m"} & held(OTHERS[name]).factors.keys()


def test_of_two_factors_one_stays() -> None:
    found = held(rows("t = mul x, 0.25\n s = mul t, 0.5"))
    assert found.factors["s"] == found.factors["m"] == scalar(0.5)
    assert "t" not in found.factors
    assert found.rounded == {"t"}


@pytest.mark.parametrize("other", ["0.125", "0.25"])
def test_maxima_of_two_tiles_with_one_factor(other: str) -> None:
    both = f"a = max s over(n)\n t = mul bias_t, {other}\n b = max t over(n)"
    found = held(rows(maximum=f"{both}\n m = maximum a, b")).factors.keys()
    assert ({"s", "a", "m"} <= found) == (other == "0.125")
    assert {"t", "b"} <= found


PRODUCTS: dict[str, tuple[str, set[str]]] = {
    "a product": ("z = mul x, bias_t\n s = mul z, 0.125", {"z"}),
    "a product that is masked": (
        "z = mul x, bias_t\n far = place < 9\n w = where(far, z, -3e38)\n"
        "s = mul w, 0.125",
        {"z"},
    ),
    "a product, and nothing added": (
        "z = mul x, bias_t\n w = add z, 0\n s = mul w, 0.125",
        {"z"},
    ),
    "the greater of products": (
        "z = mul x, bias_t\n w = maximum z, x\n s = mul w, 0.125",
        set(),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_below_what_is_held_are_rounded(name: str) -> None:
    scores, rounded = PRODUCTS[name]
    found = held(rows(scores))
    assert "s" in found.factors
    assert found.rounded == rounded


def test_quotients_are_multiplied() -> None:
    """By a constant they are products to compilers, which nothing ends."""
    assert not held(rows("z = div x, 3\n s = mul z, 0.125")).factors


@pytest.mark.parametrize("scores", ["z = square x", "z = exp x", "z = silu x"])
def test_what_may_end_in_a_product_is_as_it_was(scores: str) -> None:
    assert not held(rows(f"{scores}\n s = mul z, 0.125")).factors


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("n", [64, 75])
def test_running_maxima_are_held_with_what_the_loop_carries(
    n: int, splits: int
) -> None:
    graph = mugraphs.attention(
        2, 32, n, 16, tile_m=16, tile_n=16, splits=splits, factor=scalar(0.125)
    )
    found, *others = (held_over(p) for p in programs(graph))
    assert {"scores", "largest", "largest/last"} <= found.factors.keys()
    assert not any("scale" in v or "out" in v for v in found.factors)
    assert not any(o.factors for o in others)


def test_maxima_without_exponentials_are_as_they_were() -> None:
    maximum = "m = max s over(n)"
    assert not held(rows(maximum=maximum, then="", result="r = add m, 1")).factors


def test_programs_without_factors_hold_nothing() -> None:
    for graph in (
        mugraphs.attention(2, 64, 64, 16),
        mugraphs.rmsnorm_linear(4, 128, 64),
    ):
        assert not any(held_over(p).factors for p in programs(graph))
