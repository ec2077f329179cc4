"""Several kernels with views and concatenations of computed tensors in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.search.driver import search
from mirage_dsl.search.multi_kernel.search import Rebuilder, multi_kernel
from mirage_dsl.verify.verifier import verify
from tests.search.programs import Program


def looked_at(p: Program, op: str, x: str, **attrs: Any) -> str:
    name = f"t{len(p.nodes)}"
    p.nodes.append(Apply(name, OPERATORS[op], (x,), tuple(attrs.items())))
    return name


def gram() -> KernelGraph:
    """Rows of a computed matrix, each with each."""
    p = Program("gram", {"m": 512, "i": 512, "k": 1024, "n": 256})
    x, w = p.input("x", "m k"), p.input("w", "k n")
    y = p.rms_norm(p.matmul(x, w, "k"), "n")
    z = looked_at(p, "rename", y, dims=("m",), to=("i",))
    return p.returns(p.matmul(y, z, "n"))


def sliced() -> KernelGraph:
    """One product, the halves of which are gate and value."""
    p = Program("sliced", {"m": 16, "k": 4096, "n": 8192, "r": 4096, "j": 1024})
    x, w, v = p.input("x", "m k"), p.input("w", "k n"), p.input("v", "r j")
    y = p.matmul(p.rms_norm(x, "k"), w, "k")
    gate = looked_at(p, "slice", y, dim="n", start=0, stop=4096, to="r")
    up = looked_at(p, "slice", y, dim="n", start=4096, stop=8192, to="r")
    return p.returns(p.matmul(p.apply("mul", p.apply("silu", gate), up), v, "r"))


def joined() -> KernelGraph:
    """Two products side by side, read by a third; the joined tensor is returned too."""
    p = Program("joined", {"m": 16, "k": 4096, "n": 512, "r": 512, "q": 1024, "j": 512})
    x, w, u = p.input("x", "m k"), p.input("w", "k n"), p.input("u", "k r")
    v = p.input("v", "q j")
    a = p.apply("silu", p.matmul(x, w, "k"))
    b = p.apply("tanh", p.matmul(x, u, "k"))
    name = f"t{len(p.nodes)}"
    attrs = (("dims", ("n", "r")), ("to", "q"))
    p.nodes.append(Apply(name, OPERATORS["concat"], (a, b), attrs))
    return p.returns(p.matmul(name, v, "q"), name)


def appended() -> KernelGraph:
    """A computed row joined with rows that nothing else reads."""
    sizes = {"b": 4, "k": 512, "n": 128, "s": 511, "m": 64, "one": 1, "t": 512}
    p = Program("appended", sizes)
    x, w, q = p.input("x", "b k"), p.input("w", "k n"), p.input("q", "b m n")
    rows = p.input("rows", "b s n")
    row = looked_at(p, "insert", p.matmul(p.rms_norm(x, "k"), w, "k"), to="one")
    name = f"t{len(p.nodes)}"
    attrs = (("dims", ("s", "one")), ("to", "t"))
    p.nodes.append(Apply(name, OPERATORS["concat"], (rows, row), attrs))
    return p.returns(p.rms_norm(p.matmul(q, name, "n"), "t"))


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", [gram, sliced, joined, appended])
def test_views_and_concatenations_between_kernels(
    case: Callable[[], KernelGraph],
) -> None:
    program = case()
    result = multi_kernel(program, H100, max_kernels=3, keep=3)
    assert result.bound == pytest.approx(result.cost, abs=1e-2)
    fused = [p.graph for p in result.plans if p.graph.blocks]
    assert fused
    for graph in fused:
        assert verify(graph, program).ok
        assert len([n for n in graph.nodes if not is_free(n)]) <= 3


def is_free(node: Any) -> bool:
    return isinstance(node, Apply) and node.is_view


def test_the_norm_before_a_view_is_fused_with_its_product() -> None:
    """The view of the stored tensor is read by the next kernel, and nothing else."""
    graph = multi_kernel(sliced(), H100, max_kernels=3).plans[0].graph
    first = graph.blocks[0]
    assert set(first.sources) == {"x", "w"}
    assert "sqrt" in {n.op.name for n in first.nodes if isinstance(n, Apply)}
    views = [n for n in graph.nodes if is_free(n)]
    assert {v for n in views for v in n.values} == set(first.results)


def test_the_driver_searches_both_forms() -> None:
    """Views moved to the inputs compute rows twice; left where they are, once."""
    result = search(gram(), H100, max_kernels=3, k=4)
    graph = result.best.mugraph
    assert len([n for n in graph.nodes if is_free(n)]) == 1
    assert graph.blocks
    assert result.proof is not None
    assert result.proof.optimal


COUNTED: dict[str, Callable[[Any, Any], Any]] = {
    "sorted": lambda x, w: torch.sort((x @ w > 0).to(x), 1)[0] * 2,
    "sorted, and returned": lambda x, w: (
        torch.sort((x @ w > 0).to(x), 1)[0] * 2,
        x @ w > 0,
    ),
    "joined": lambda x, w: torch.cat([(x @ w > 0).to(x), x @ w], 1).softmax(1),
    "sliced": lambda x, w: (x @ w > 0).to(x)[:, :4] @ w[:4],
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", COUNTED)
def test_truth_values_are_stored_as_the_numbers_that_a_library_reads(name: str) -> None:
    """A cast is no tensor of its own, and nothing computes with truth values."""
    x, w = mirage.spec((16, 8), "float32"), mirage.spec((8, 8), "float32")
    program = mirage.kernel(lambda x, w: COUNTED[name](x, w)).trace(x, w)
    result = multi_kernel(program, H100, max_kernels=3, keep=3)
    assert result.plans or name == "sorted, and returned"
    for graph in (p.graph for p in result.plans):
        assert verify(graph, program).equivalent


def test_what_is_ill_typed_otherwise_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the graphs that a search writes, those alone are left out in silence."""

    def ill_typed(*_: object) -> KernelGraph:
        raise CheckError("it is wrong")

    x, w = mirage.spec((16, 8), "float32"), mirage.spec((8, 8), "float32")
    program = mirage.kernel(lambda x, w: COUNTED["sorted"](x, w)).trace(x, w)
    monkeypatch.setattr(Rebuilder, "graph", ill_typed)
    with pytest.raises(CheckError, match="is wrong"):
        multi_kernel(program, H100, max_kernels=3, keep=3)
