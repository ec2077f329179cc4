"""On tiny spaces, enumeration without any pruning finds nothing that the search misses.

All expressions of block operators up to a size are made, for every loop of a program.
The enumerator knows neither abstract expressions nor S: it tries every operator on
every pair of values and keeps what equals the output, modulo a prime, at loop 3 and
tile 3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.space import Configuration
from mirage_dsl.search.structures import structures
from tests.search.programs import Program
from tests.search.test_structures import outline

PRIME = (1 << 31) - 1
ITERATIONS = TILE = 3
JOINED = "concat:"
Residues = NDArray[np.int64]


def opaque(x: Residues) -> Residues:
    """A function of residues of which nothing is known."""
    word = x.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return ((word >> np.uint64(8)) % np.uint64(PRIME)).astype(np.int64)


def inverse(x: Residues) -> Residues:
    result, power, exponent = np.ones_like(x), x % PRIME, PRIME - 2
    while exponent:
        if exponent & 1:
            result = result * power % PRIME
        power = power * power % PRIME
        exponent >>= 1
    return result


@dataclass(frozen=True, eq=False)
class Term:
    """An expression: its text, size, dims, stage, and one array per iteration.

    `piece` says that the loop dim is a tile.  Arrays have an axis for every dim of the
    program, of extent 1 where the value lacks it.
    """

    text: str
    size: int
    dims: frozenset[str]
    piece: bool
    stage: str
    values: Residues

    @property
    def reads_joined(self) -> bool:
        """Whether anything is made of what iterations make side by side.

        Such is only stored: a block without the loop computes the same with less.
        """
        return JOINED in self.text[1:]


class Enumerator:
    """All expressions up to a size over the operators that a program uses."""

    def __init__(self, dims: str, loop: str | None, ops: set[str]) -> None:
        self.dims, self.loop, self.ops = dims.split(), loop, ops
        self.rng = np.random.default_rng(5)

    def extent(self, dim: str) -> int:
        return TILE * ITERATIONS if dim == self.loop else TILE

    def load(self, name: str, dims: str) -> tuple[Term, Residues]:
        """The pieces of a random tensor, and the whole."""
        own = dims.split()
        shape = [self.extent(d) if d in own else 1 for d in self.dims]
        whole = self.rng.integers(1, PRIME, shape)
        if self.loop not in own:
            return Term(name, 0, frozenset(own), False, "before", whole[None]), whole
        axis = self.dims.index(str(self.loop))
        pieces = np.stack(np.split(whole, ITERATIONS, axis))
        return Term(name, 0, frozenset(own), True, "body", pieces), whole

    def unary(self, a: Term) -> Iterator[Term]:
        size = a.size + 1
        if "exp" in self.ops:
            values = opaque(a.values)
            yield Term(f"exp({a.text})", size, a.dims, a.piece, a.stage, values)
        if "max" in self.ops:
            yield from self.maxima(a)
        if "sum" in self.ops:
            for dim in sorted(a.dims):
                axis = self.dims.index(dim) + 1
                values = a.values.sum(axis, keepdims=True) % PRIME
                piece = a.piece and dim != self.loop
                text = f"sum[{dim}]({a.text})"
                yield Term(text, size, a.dims - {dim}, piece, a.stage, values)
        if a.stage == "body":
            total = a.values.sum(0, keepdims=True) % PRIME
            yield Term(f"sum:{a.text}", size, a.dims, a.piece, "after", total)
            if a.piece:
                axis = self.dims.index(str(self.loop))
                joined = np.concatenate(list(a.values), axis)[None]
                yield Term(f"{JOINED}{a.text}", size, a.dims, False, "after", joined)

    def maxima(self, a: Term) -> Iterator[Term]:
        """Maxima over a dim, and over the iterations, in the order of residues."""
        size = a.size + 1
        for dim in sorted(a.dims):
            values = a.values.max(self.dims.index(dim) + 1, keepdims=True)
            piece = a.piece and dim != self.loop
            text = f"max[{dim}]({a.text})"
            yield Term(text, size, a.dims - {dim}, piece, a.stage, values)
        if a.stage == "body":
            total = a.values.max(0, keepdims=True)
            yield Term(f"max:{a.text}", size, a.dims, a.piece, "after", total)

    def binary(self, a: Term, b: Term) -> Iterator[Term]:
        stages = {a.stage, b.stage} - {"before"}
        if len(stages) == 2 or (self.loop in a.dims & b.dims and a.piece != b.piece):
            return
        size, stage = a.size + b.size + 1, next(iter(stages), "before")
        dims, piece = a.dims | b.dims, a.piece or b.piece
        first, second = sorted((a.text, b.text))
        product = a.values * b.values % PRIME
        if "mul" in self.ops and dims in (a.dims, b.dims):
            yield Term(f"mul({first}, {second})", size, dims, piece, stage, product)
        if "matmul" in self.ops and a.dims != b.dims:
            for dim in sorted(a.dims & b.dims):
                axis = self.dims.index(dim) + 1
                values = product.sum(axis, keepdims=True) % PRIME
                text = f"matmul[{dim}]({first}, {second})"
                rest = piece and dim != self.loop
                yield Term(text, size, dims - {dim}, rest, stage, values)
        if "add" in self.ops and dims in (a.dims, b.dims):
            values = (a.values + b.values) % PRIME
            yield Term(f"add({first}, {second})", size, dims, piece, stage, values)
        if dims in (a.dims, b.dims):
            yield from self.ordered(a, b, Term("", size, dims, piece, stage, product))

    def ordered(self, a: Term, b: Term, like: Term) -> Iterator[Term]:
        """Operators of which the operands may not be swapped."""
        if "sub" in self.ops:
            values = (a.values - b.values) % PRIME
            yield replace(like, text=f"sub({a.text}, {b.text})", values=values)
        if "div" in self.ops and (b.values % PRIME).all():
            values = a.values * inverse(b.values) % PRIME
            yield replace(like, text=f"div({a.text}, {b.text})", values=values)

    def all(self, leaves: list[Term], limit: int) -> list[Term]:
        """Every expression with at most `limit` operators, each text once."""
        by_size = {0: leaves}
        seen = {t.text for t in leaves}
        for size in range(1, limit + 1):
            made = [t for a in by_size[size - 1] for t in self.unary(a)]
            for i in range(size):
                pairs = itertools.product(by_size[i], by_size[size - 1 - i])
                made += [t for a, b in pairs for t in self.binary(a, b)]
            by_size[size] = []
            for term in made:
                if term.text not in seen:
                    seen.add(term.text)
                    by_size[size].append(term)
        return [t for terms in by_size.values() for t in terms]


def product_of_sum() -> KernelGraph:
    p = Program("p", {"b": 6, "h": 6, "n": 6})
    x, y, w = p.input("x", "b h"), p.input("y", "h"), p.input("w", "h n")
    return p.returns(p.matmul(p.apply("mul", x, y), w, "h"))


def low_rank() -> KernelGraph:
    p = Program("p", {"b": 6, "h": 6, "r": 6, "n": 6})
    x, w = p.input("x", "b h"), p.input("w", "h n")
    a = p.input("a", "h r")
    c = p.input("c", "r n")
    return p.returns(
        p.apply("add", p.matmul(x, w, "h"), p.matmul(p.matmul(x, a, "h"), c, "r"))
    )


def sum_of_squares() -> KernelGraph:
    p = Program("p", {"b": 6, "h": 6})
    x, y = p.input("x", "b h"), p.input("y", "b")
    return p.returns(p.apply("mul", p.apply("sum", p.apply("mul", x, x), over="h"), y))


def difference() -> KernelGraph:
    p = Program("p", {"b": 6, "h": 6, "n": 6})
    x, y, w = p.input("x", "b h"), p.input("y", "b h"), p.input("w", "h n")
    return p.returns(p.matmul(p.apply("sub", x, y), w, "h"))


def quotient() -> KernelGraph:
    p = Program("p", {"b": 6, "h": 6, "n": 6})
    x, y, w = p.input("x", "b h"), p.input("y", "b"), p.input("w", "h n")
    return p.returns(p.matmul(p.apply("div", x, y), w, "h"))


def weighted_mean() -> KernelGraph:
    p = Program("p", {"b": 6, "n": 6})
    x, v = p.input("x", "b n"), p.input("v", "n")
    e = p.apply("exp", x)
    above = p.apply("matmul", e, v, over="n")
    return p.returns(p.apply("div", above, p.apply("sum", e, over="n")))


def weighted_exponentials() -> KernelGraph:
    p = Program("p", {"b": 6, "n": 6})
    x, v = p.input("x", "b n"), p.input("v", "n")
    return p.returns(p.apply("matmul", p.apply("exp", x), v, over="n"))


def softmax_of_one() -> KernelGraph:
    p = Program("p", {"b": 6, "n": 6})
    x = p.input("x", "b n")
    return p.returns(p.apply("div", x, p.apply("sum", x, over="n")))


def largest_product() -> KernelGraph:
    p = Program("p", {"b": 6, "n": 6})
    x, y = p.input("x", "b n"), p.input("y", "n")
    return p.returns(p.apply("max", p.apply("mul", x, y), over="n"))


def three_matrices() -> KernelGraph:
    p = Program("p", {"i": 6, "j": 6, "k": 6, "l": 6})
    a, b, c = p.input("a", "i j"), p.input("b", "j k"), p.input("c", "k l")
    return p.returns(p.matmul(p.matmul(a, b, "j"), c, "k"))


def used_twice() -> KernelGraph:
    p = Program("p", {"b": 6, "h": 6})
    x, y = p.input("x", "b h"), p.input("y", "b h")
    return p.returns(p.apply("add", p.apply("mul", x, y), p.apply("mul", x, x)))


def reference(
    program: KernelGraph, whole: dict[str, Residues], e: Enumerator
) -> Residues:
    """The output of a program on whole tensors."""
    values = dict(whole)
    for node in program.nodes:
        a, *rest = (values[v] for v in node.values)
        match node.op.name:
            case "mul":
                result = a * rest[0] % PRIME
            case "add":
                result = (a + rest[0]) % PRIME
            case "sub":
                result = (a - rest[0]) % PRIME
            case "div":
                result = a * inverse(rest[0]) % PRIME
            case "exp":
                result = opaque(a)
            case "max":
                result = a.max(e.dims.index(node.over[0]), keepdims=True)
            case "matmul":
                axis = e.dims.index(node.over[0])
                result = (a * rest[0] % PRIME).sum(axis, keepdims=True) % PRIME
            case _:
                axis = e.dims.index(node.over[0])
                result = a.sum(axis, keepdims=True) % PRIME
        values[node.result] = result
    return values[program.returns[0].value]


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("program", "loop", "limit"),
    [
        (product_of_sum(), None, 3),
        (product_of_sum(), "h", 4),
        (product_of_sum(), "b", 4),
        (sum_of_squares(), None, 5),
        (sum_of_squares(), "h", 6),
        (sum_of_squares(), "b", 6),
        (low_rank(), None, 5),
        (low_rank(), "n", 5),
        (low_rank(), "h", 5),
        (difference(), None, 3),
        (difference(), "h", 4),
        (difference(), "n", 4),
        (quotient(), None, 3),
        (quotient(), "h", 4),
        (quotient(), "b", 4),
        (softmax_of_one(), None, 2),
        (softmax_of_one(), "b", 4),
        (weighted_mean(), None, 5),
        (weighted_exponentials(), "n", 4),
        (weighted_exponentials(), "b", 4),
        (largest_product(), None, 2),
        (largest_product(), "n", 4),
        (largest_product(), "b", 4),
        (three_matrices(), None, 2),
        (three_matrices(), "j", 4),
        (three_matrices(), "l", 4),
        (used_twice(), None, 4),
        (used_twice(), "h", 4),
    ],
)
def test_the_search_misses_nothing(
    program: KernelGraph, loop: str | None, limit: int
) -> None:
    dims = " ".join(dict.fromkeys(d for i in program.inputs for d in i.type.names))
    e = Enumerator(dims, loop, {n.op.name for n in program.nodes})
    loads = {i.name: e.load(i.name, " ".join(i.type.names)) for i in program.inputs}
    wanted = reference(program, {n: whole for n, (_, whole) in loads.items()}, e)
    right = {
        t.text
        for t in e.all([term for term, _ in loads.values()], limit)
        if t.stage != "body"
        and not t.piece
        and t.values.shape[1:] == wanted.shape
        and np.array_equal(t.values[0], wanted)
        and not t.reads_joined
    }
    found = structures(
        program,
        H100,
        per_configuration=5000,
        alike=True,
        allow=lambda c: c == Configuration((), loop),
    )
    texts = {outline(s.block)[0] for s in found.structures}
    assert found.complete
    assert right
    assert right <= texts, "\n".join(sorted(right - texts))
