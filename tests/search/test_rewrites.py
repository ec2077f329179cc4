"""The list of rewrites: each row changes its example, soundly, and docs show how.

`python -m tests.search.test_rewrites` writes the page anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mirage_dsl as mirage
from mirage_dsl.core.types import scalar
from mirage_dsl.ir.canonical import FreshNames, canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import Apply, KernelGraph, KernelNode
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.walk import applications, makers, map_nodes
from mirage_dsl.ops.table import EXP, MUL
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.search import rewrites as listed
from mirage_dsl.search.result import SearchResult
from mirage_dsl.search.rewrites import (
    REWRITES,
    Level,
    Rewrite,
    Use,
    rewrites,
    rewritten,
)
from mirage_dsl.store.superoptimize import superoptimize
from mirage_dsl.verify.verifier import verify

PAGE = Path(__file__).parents[2] / "docs" / "rewrites.md"
HEAD = """# The rewrites

A program has many forms, and what is found for it has some more. Every step from one
to another is a row of `mirage_dsl/search/rewrites.py`: here they are, in the order in
which a search applies them, each with what it makes of an example. What comes of a
rewrite is verified as all that is found.

`mirage-dsl rewrite FILE` says which of them change a μGraph,
`mirage-dsl rewrite FILE --by NAME` applies one. To add one, see CONTRIBUTING.md.
"""


EXAMPLES = {
    "expand": """
mugraph f(x: f32[m]) -> f32[m] where m = 4 {
  s = square x
  t = s / 8
  u = square x
  y = t * u
  return y
}
""",
    "sink-gathers": """
mugraph f(x: f32[m, k], y: i64[m]) -> f32[m] where m = 4, k = 8 {
  s = sum x over(k)
  d = x / s
  p = gather d, y dim(k)
  return p
}
""",
    "share-views": """
mugraph f(x: f32[m, k]) -> f32[m, n] where m = 4, k = 4 {
  s = sigmoid x
  r = rename s dims(k) to(n)
  q = rename x dims(k) to(n)
  y = r * q
  return y
}
""",
    "stabilise": """
mugraph softmax(x: f32[m, k], v: f32[k, n]) -> f32[m, n] where m = 16, k = 64, n = 16 {
  y = block grid(m / 16) loop(k / 16) {
    t = load x[m/grid, k/loop]
    w = load v[k/loop, n]
    e = exp t
    s = sum e over(k)
    p = matmul e, w over(k)
    a = accumulate p
    b = accumulate s
    q = a / b
    store y: f32[m/grid, n] = q
  }
  return y
}
""",
    "recognise-shifts": """
mugraph softmax(x: f32[m, k]) -> f32[m, k] where m = 4, k = 8 {
  s = max x over(k)
  d = x - s
  e = exp d
  t = sum e over(k)
  y = e / t
  return y
}
""",
    "name-parts": """
mugraph f(x: f32[m, k], u: f32[m, r]) -> f32[m, h] where m = 4, k = 4, r = 2 {
  c = concat x, u dims(k, r) to(q)
  e = exp c
  p = slice e dim(q) start(0) stop(4) to(h)
  return p
}
""",
    "take-apart": """
mugraph f(x: f32[m, k], u: f32[m, r], w: f32[k, n], b: f32[r, n]) -> f32[m, n]
    where m = 4, k = 4, r = 2, n = 4 {
  t = concat x, u dims(k, r) to(q)
  v = concat w, b dims(k, r) to(q)
  y = matmul t, v over(q)
  return y
}
""",
    "sink-views": """
mugraph gated(x: f32[m, k], w: f32[k, j]) -> f32[m, n] where m = 4, k = 4, j = 8 {
  a = matmul x, w over(k)
  g = slice a dim(j) start(0) stop(4) to(n)
  u = slice a dim(j) start(4) stop(8) to(n)
  y = g * u
  return y
}
""",
    "pick-joined": """
mugraph f(x: f32[m, k], y: f32[m, r]) -> f32[m, q] where m = 4, k = 4, r = 2 {
  e = exp x
  c = concat e, y dims(k, r) to(q)
  z = mul c, c
  return z
}
""",
    "strip-shifts": """
mugraph softmax(x: f32[m, k]) -> f32[m, k] where m = 4, k = 8 {
  s = rowshift x over(k)
  d = x - s
  e = exp d
  t = sum e over(k)
  y = e / t
  return y
}
""",
    "multiply-out": """
mugraph variance(x: f32[m, k]) -> f32[m] where m = 4, k = 8 {
  t = sum x over(k)
  c = t * 1/k
  d = x - c
  q = d * d
  y = sum q over(k)
  return y
}
""",
    "combine-variances": """
mugraph variance(x: f32[m, k]) -> f32[m] where m = 4, k = 8192 {
  t = sum x over(k)
  c = t * (1/k)
  d = x - c
  q = d * d
  y = sum q over(k)
  return y
}
""",
    "loop-over-scan": """
mugraph f(x: f32[m, k]) -> f32[m, k] where m = 8, k = 256 {
  y = block grid(m / 1) {
    t = load x[m/grid, k]
    u = mul t, 2
    c = cumsum u along(k)
    store y: f32[m/grid, k] = c
  }
  return y
}
""",
    "fuse-gathers": """
mugraph f(w: f16[v, d], ids: i64[n]) -> f16[n, d] where v = 32, d = 16, n = 8 {
  kept = where(ids < 0, 0, ids)
  x = gather w, kept dim(v)
  y = block grid(n / 4) {
    t = load x[n/grid, d]
    e = exp t
    store y: f16[n/grid, d] = e
  }
  return y
}
""",
    "gathers-as-kernels": """
mugraph f(t: f32[v], x: f32[n]) -> f32[n] where v = 32, n = 64 {
  s = mul x, 31
  i = to_i64 s
  u = maximum(i, 0)
  j = minimum(u, 31)
  y = gather t, j dim(v)
  return y
}
""",
    "sum-where-made": """
mugraph f(x: f32[m, k]) -> f32[] where m = 64, k = 64 {
  y = block grid(m / 16) {
    t = load x[m/grid, k]
    s = sum t over(k)
    store y: f32[m/grid] = s
  }
  z = block loop(m / 32) {
    t = load y[m/loop]
    a = accumulate t
    s = sum a over(m)
    store z: f32[] = s
  }
  return z
}
""",
    "skip-tiles": """
mugraph causal(s: f32[n, d]) -> f32[n] where n = 64, d = 64 {
  i = index n
  j = index d
  y = block grid(n / 16) loop(d / 16) {
    t = load s[n/grid, d/loop]
    it = load i[n/grid]
    jt = load j[d/loop]
    kept = where(jt <= it, t, 0)
    r = sum kept over(d)
    a = accumulate r
    store y: f32[n/grid] = a
  }
  return y
}
""",
    "settle-masks": """
mugraph causal(s: f32[n, d]) -> f32[n] where n = 64, d = 64 {
  i = index n
  j = index d
  y = block grid(n / 16) loop(d / 16) while(d <= n) {
    t = load s[n/grid, d/loop]
    it = load i[n/grid]
    jt = load j[d/loop]
    near = jt <= it
    kept = where(near, t, 0)
    r = sum kept over(d)
    a = accumulate r
    store y: f32[n/grid] = a
  }
  return y
}
""",
    "split-loop": """
mugraph product(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 256, n = 16 {
  y = block loop(k / 16) {
    t = load x[m, k/loop]
    v = load w[k/loop, n]
    p = matmul t, v over(k)
    a = accumulate p
    store y: f16[m, n] = a
  }
  return y
}
""",
    "without-loop": """
mugraph product(x: f16[k], w: f16[n, k]) -> f16[n] where k = 256, n = 64 {
  y = block grid(n / 4) loop(k / 64) num_stages(4) {
    t = load x[k/loop]
    v = load w[n/grid, k/loop]
    p = matmul v, t over(k)
    a = accumulate p
    store y: f16[n/grid] = a
  }
  return y
}
""",
    "windows": """
mugraph f(x: f32[n, c, k]) -> f32[n, c, m] where n = 2, c = 4, k = 8, m = 4 {
  y = max_pool1d x of(n, c, k) gives(n, c, m) kernel(3) stride(2) padding(1)\
dilation(1) ceil(0)
  return y
}
""",
    "channels-last": """
mugraph f(x: f32[n, c, h, v], w: f32[d, p, q, r]) -> f32[n, d, s, t]
    where n = 2, c = 4, h = 6, v = 8, d = 3, p = 4, q = 3, r = 3, s = 4, t = 6 {
  y = conv2d x, w of(n, c, h, v) by(d, p, q, r) gives(n, d, s, t)\
stride(1, 1) padding(0, 0) dilation(1, 1) groups(1)
  z = relu y
  return z
}
""",
    "pairs": """
mugraph product(x: f16[m, k], w: f8e4m3[k, n]) -> f32[m, n]
    where m = 8, k = 512, n = 64 {
  y = block grid(n / 32) loop(k / 64) {
    t = load x[m, k/loop]
    v = load w[k/loop, n/grid]
    c = cast v dtype(f16)
    p = matmul t, c over(k)
    a = accumulate p
    store y: f32[m, n/grid] = a
  }
  return y
}
""",
    "launch-early": """
mugraph f(x: f32[m]) -> f32[m] where m = 16 {
  y = block grid(m / 8) {
    t = load x[m/grid]
    e = exp t
    store y: f32[m/grid] = e
  }
  z = block grid(m / 8) {
    u = load y[m/grid]
    v = exp u
    store z: f32[m/grid] = v
  }
  return z
}
""",
}
"""What each row changes."""


def example(row: Rewrite) -> KernelGraph:
    return parse(f"mirage 1\n{EXAMPLES[row.name]}")


def page() -> str:
    parts = [HEAD]
    for row in REWRITES.values():
        before = example(row)
        parts.append(
            f"## {row.name}\n\n{row.what[0].upper()}{row.what[1:]}.\n\n"
            f"*Takes* {row.when}.\n\n"
            f"```\n{_body(str(before))}\n```\n\nbecomes\n\n"
            f"```\n{_body(str(row(before)))}\n```\n"
        )
    return "\n".join(parts)


def _body(text: str) -> str:
    return text.removeprefix("mirage 1\n").strip()


rows = pytest.mark.parametrize("row", REWRITES.values(), ids=list(REWRITES))


@rows
def test_it_changes_its_example_and_nothing_of_what_that_computes(row: Rewrite) -> None:
    changes(row, example(row))


def changes(row: Rewrite, before: KernelGraph) -> None:
    """The row changes a graph, and nothing of what that computes."""
    after = row(before)
    assert after != before
    assert not check(after)
    assert parse(str(after)) == after
    certificate = verify(after, before, stability=False)
    assert certificate.equivalent, certificate


@rows
def test_it_comes_to_an_end(row: Rewrite) -> None:
    once = row(example(row))
    twice = row(once)
    assert canonical_hash(row(twice)) == canonical_hash(twice)


def test_a_rewrite_of_programs_leaves_blocks_alone() -> None:
    graph = example(REWRITES["split-loop"])
    for row in REWRITES.values():
        assert row.level is Level.MUGRAPH or row(graph) is graph
        assert row(graph) == graph or row.name in ("split-loop", "without-loop")


def test_every_use_has_a_row() -> None:
    assert all(rewrites(use) for use in Use)
    assert all(row.uses for row in REWRITES.values())
    assert list(EXAMPLES) == list(REWRITES)


def test_all_rows_of_a_use_are_applied_in_order() -> None:
    graph = example(REWRITES["share-views"])
    one_by_one = graph
    for row in rewrites(Use.NORMAL):
        one_by_one = row(one_by_one)
    assert rewritten(graph, Use.NORMAL) == one_by_one != graph


def halved_exponents(program: KernelGraph) -> KernelGraph:
    """With exp(x) squared for exp(x * 2), which no axiom of S says."""
    made, names = makers(program), FreshNames(program)

    def halved(node: KernelNode) -> Iterable[KernelNode]:
        if isinstance(node, Apply) and node.op is EXP:
            double = made.get(node.values[0])
            if double is not None and double.operands[1:] == (scalar(2),):
                half = names.fresh("half")
                yield replace(node, result=half, operands=double.values)
                node = replace(node, op=MUL, operands=(half, half))
        yield node

    return expand(map_nodes(program, halved))


def exponentials(result: SearchResult) -> int:
    """The fewest that any candidate has."""
    graphs = (c.mugraph for c in result)
    return min(sum(n.op is EXP for n in applications(g)) for g in graphs)


def test_a_row_that_is_added_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(x: Any) -> Any:
        return mirage.exp(x) + mirage.exp(x * 2)

    program = mirage.kernel(both).trace(mirage.spec((8, 32), "float32"))
    assert exponentials(superoptimize(program, use_cache=False)) == 2
    row = Rewrite(
        "halve-exponents",
        Level.PROGRAM,
        (Use.PROGRAM,),
        "",
        halved_exponents,
    )
    changes(row, program)
    monkeypatch.setattr(listed, "REWRITES", {**REWRITES, row.name: row})
    assert exponentials(superoptimize(program, use_cache=False)) == 1


def test_the_page_shows_them() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
