"""Arguments that mean nothing, at every public door: answered in words, never foreign.

What is called here and with what is drawn, so that new functions are tried as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.api.block_builder import ThreadblockGraph
from mirage_dsl.api.graph import Graph
from mirage_dsl.core.errors import MirageError, TraceError, UnsupportedError

JUNK: list[Any] = [
    *(None, -1, 0, 3, 2.5, float("nan"), 10**5000, "x", "", b"b", object(), (), (1,)),
    *([1, 2], {}, {1: 2}, (None,), ("a", "b"), (1, -2, 3), [[1]], True, np.float32(2)),
    *(np.zeros((2, 3)), torch.zeros(2, 3), slice(1), int, mirage.float32, (10**30,)),
    *(1j, torch.float16, lambda: None),
]
ROUNDS = 12
"""Draws for each function."""

Call = Callable[[random.Random], Any]


def junk(draw: random.Random) -> Any:
    return draw.choice(JUNK)


def some(draw: random.Random, *usable: Any) -> list[Any]:
    """Arguments of which at least one is junk."""
    count = draw.randrange(1, 4)
    found = [draw.choice([*usable, junk(draw)]) for _ in range(count)]
    found[draw.randrange(count)] = junk(draw)
    return found


def graph() -> tuple[Graph, Any, Any]:
    g = mirage.new_kernel_graph()
    return g, g.new_input(dims=(4, 8)), g.new_input(dims=(8, 4))


def product() -> Graph:
    g, x, w = graph()
    g.mark_output(g.matmul(x, w))
    return g


def method_of(graph_method: str) -> Call:
    def call(draw: random.Random) -> Any:
        g, x, w = graph()
        return getattr(g, graph_method)(*some(draw, x, w))

    return call


def in_block(block_method: str) -> Call:
    def call(draw: random.Random) -> Any:
        _, x, w = graph()
        block = mirage.new_threadblock_graph((4, 1, 1), (128, 1, 1), 4)
        inner = block.new_input(x, (0, -1, -1), 1)
        other = block.new_input(w, (-1, -1, -1), 0)
        return getattr(block, block_method)(*some(draw, x, inner, other))

    return call


def function(name: str) -> Call:
    def call(draw: random.Random) -> Any:
        _, x, w = graph()
        return getattr(mirage, name)(*some(draw, x, w))

    return call


def named(make: Callable[[], Callable[..., Any]], *names: str) -> Call:
    """With junk by keyword."""

    def call(draw: random.Random) -> Any:
        name = draw.choice(names)
        value = junk(draw)
        if name in ("previous_checkpoint", "checkpoint"):
            value = draw.choice([3, 2.5, object(), (1,)])
        return make()(**{name: value})

    return call


def scaled(x: Any) -> Any:
    return x * 2


def bound() -> Any:
    return mirage.kernel(effort="none")(scaled).bind(torch.zeros(2, 3))


def public(kind: type) -> list[str]:
    return [
        name
        for name in dir(kind)
        if not name.startswith("_") and callable(getattr(kind, name))
    ]


LIMITS = ("griddims", "blockdims", "imaps", "omaps", "fmaps", "franges")
OPTIONS = ("effort", "budget_seconds", "hardware", "constraints", "max_kernels")
OWN = ("superoptimize", "kernel", "generate_triton_program", "superoptimize_all")


def calls() -> Iterator[tuple[str, Call]]:
    yield from ((f"graph.{n}", method_of(n)) for n in public(Graph) if n not in OWN)
    yield from ((f"block.{n}", in_block(n)) for n in public(ThreadblockGraph))
    for name in mirage.__all__:
        held = getattr(mirage, name)
        if callable(held) and not isinstance(held, type) and name not in OWN:
            yield f"mirage.{name}", function(name)
    ways: dict[str, tuple[Callable[[], Callable[..., Any]], tuple[str, ...]]] = {
        "graph(...)": (lambda: product(), ("inputs", "outputs", "stream")),
        "compile": (lambda: product().compile, ("inputs",)),
        "compiled": (lambda: product().compile(), ("inputs", "stream")),
        "superoptimize": (
            lambda: lambda **o: product().superoptimize(**{"effort": "none", **o}),
            (*LIMITS, *OPTIONS, "previous_checkpoint", "backend", "config"),
        ),
        "kernel": (
            lambda: lambda **o: mirage.kernel(**{"effort": "none", **o})(scaled),
            ("effort", "budget_seconds", "config", "dynamic"),
        ),
        "block": (
            lambda: lambda **o: mirage.new_threadblock_graph(**{"grid_dim": (1,), **o}),
            ("grid_dim", "block_dim", "forloop_range"),
        ),
        "input": (
            lambda: (
                lambda **o: mirage.new_kernel_graph().new_input(**{"dims": (2, 3), **o})
            ),
            ("dims", "dtype", "strides", "name"),
        ),
    }
    for name, (make, names) in ways.items():
        yield name, named(make, *names)
    yield "use", lambda draw: bound().use(junk(draw))
    yield "bound", lambda draw: bound()(*some(draw, torch.zeros(2, 3)))
    yield "bind", lambda draw: mirage.kernel(scaled).bind(*some(draw))
    yield "reference", lambda draw: mirage.kernel(scaled).reference(*some(draw))


CALLS = dict(calls())


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", CALLS)
def test_junk_is_answered_in_words(name: str) -> None:
    draw = random.Random(name)
    for _ in range(ROUNDS):
        with suppress(MirageError):
            CALLS[name](draw)


def test_what_is_answered() -> None:
    g, x, _ = graph()
    clamp: Any = g.clamp
    with pytest.raises(UnsupportedError) as error:
        clamp(x, 3)
    message = error.value.message
    for part in ("graph.clamp", "found (", "3)", "expected (", "max_val"):
        assert part in message
    assert error.value.location is not None
    assert "clamp(x, 3)" in error.value.location.text


def test_errors_of_the_user_stay_as_they_are() -> None:
    def wrong(x: Any) -> Any:
        raise ValueError("mine", x)

    with pytest.raises(ValueError, match="mine"):
        mirage.kernel(wrong)(torch.zeros(2, 3))

    def progress(*_: Any) -> None:
        raise KeyError("mine")

    kernel = mirage.kernel(scaled).bind(torch.zeros(64, 64))
    with pytest.raises(KeyError, match="mine"):
        kernel.search("quick", 1, progress, use_cache=False)


def test_containers_in_themselves() -> None:
    x: list[Any] = [torch.zeros(2, 3)]
    x.append(x)
    kernel = mirage.kernel(lambda x: x[0] * 2)
    for call in (kernel, kernel.bind):
        with pytest.raises(TraceError, match="in itself"):
            call(x)


@pytest.mark.parametrize("digits", [309, 5000])
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_beyond_every_float(digits: int, sign: int) -> None:
    number = sign * 10**digits
    kernel = mirage.kernel(effort="none")(lambda x, a: x * a)
    for call in (kernel, kernel.bind):
        with pytest.raises(TraceError, match="bits"):
            call(torch.zeros(2, 3), number)


OUT: dict[str, tuple[Any, str]] = {
    "a number": (3, "has int"),
    "a text": ("x", "has str"),
    "sparse": (torch.eye(2, 3).to_sparse(), "sparse_coo"),
    "read-only": (np.broadcast_to(np.zeros((1, 3), np.float32), (2, 3)), "read-only"),
    "repeated": (torch.zeros(1, 3).expand(2, 3), "one place"),
    "with gradients": (torch.zeros(2, 3, requires_grad=True), "requires grad"),
    "a spec": (mirage.spec((2, 3), "float32"), "TensorSpec"),
}


@pytest.mark.parametrize("name", OUT)
def test_what_takes_no_results(name: str) -> None:
    out, message = OUT[name]
    kernel = mirage.kernel(effort="none")(scaled)
    with pytest.raises(UnsupportedError, match=rf"out= .*{message}"):
        kernel(torch.zeros(2, 3), out=out)


def test_results_go_from_one_library_into_the_other() -> None:
    kernel, x = mirage.kernel(effort="none")(scaled), np.ones((2, 3), np.float32)
    tensor, array = torch.zeros(2, 3), np.zeros((2, 3), np.float32)
    assert kernel(x, out=tensor) is tensor
    assert kernel(torch.ones(2, 3), out=array) is array
    assert (tensor == 2).all()
    assert (array == 2).all()
