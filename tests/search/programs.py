"""Programs written by hand as kernel graphs of primitive operators."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from mirage_dsl.core.types import Dim, MemorySpace, Scalar, f16, flat_type
from mirage_dsl.ir.graph import Apply, Input, KernelGraph, Operand, Return
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ops.table import OPERATORS


@dataclass
class Program:
    """Collects inputs and operators; every value is named in order."""

    name: str
    extents: dict[str, int]
    inputs: list[Input] = field(default_factory=list[Input])
    nodes: list[Apply] = field(default_factory=list[Apply])

    def input(self, name: str, dims: str) -> str:
        axes = tuple(Dim(d) for d in dims.split())
        self.inputs.append(Input(name, flat_type(f16, axes, MemorySpace.DEVICE)))
        return name

    def apply(self, op: str, *operands: Operand, **attrs: str) -> str:
        result = f"t{len(self.nodes)}"
        pairs = tuple((k, tuple(v.split())) for k, v in attrs.items())
        self.nodes.append(Apply(result, OPERATORS[op], operands, pairs))
        return result

    def matmul(self, a: str, b: str, over: str) -> str:
        return self.apply("matmul", a, b, over=over)

    def rms_norm(self, x: str, over: str) -> str:
        total = self.apply("sum", self.apply("mul", x, x), over=over)
        powers = tuple(sorted((d, -1) for d in over.split()))
        mean = self.apply("mul", total, Scalar(Fraction(1), powers))
        return self.apply("div", x, self.apply("sqrt", mean))

    def attention(self, q: str, k: str, v: str, scale: float = 0.125) -> str:
        scaled = self.apply("mul", self.matmul(q, k, "d"), Scalar(Fraction(scale)))
        e = self.apply("exp", scaled)
        p = self.apply("div", e, self.apply("sum", e, over="n"))
        return self.matmul(p, v, "n")

    def returns(self, *values: str) -> KernelGraph:
        extents = tuple(sorted(self.extents.items()))
        graph = KernelGraph(
            self.name, tuple(self.inputs), tuple(self.nodes), (), extents
        )
        types = kernel_types(graph)
        outs = tuple(Return(v, types[v]) for v in values)
        return KernelGraph(graph.name, graph.inputs, graph.nodes, outs, extents)


def rmslin() -> KernelGraph:
    p = Program("rmslin", {"b": 16, "h": 4096, "n": 4096})
    x, w = p.input("x", "b h"), p.input("w", "h n")
    return p.returns(p.matmul(p.rms_norm(x, "h"), w, "h"))


def gated() -> KernelGraph:
    p = Program("gated", {"b": 8, "h": 4096, "n": 4096})
    x = p.input("x", "b h")
    w1, w2 = p.input("w1", "h n"), p.input("w2", "h n")
    gate = p.apply("silu", p.matmul(x, w1, "h"))
    return p.returns(p.apply("mul", gate, p.matmul(x, w2, "h")))


def lora() -> KernelGraph:
    p = Program("lora", {"b": 16, "h": 4096, "n": 4096, "r": 16})
    x, w = p.input("x", "b h"), p.input("w", "h n")
    a, c = p.input("a", "h r"), p.input("c", "r n")
    low = p.matmul(p.matmul(x, a, "h"), c, "r")
    return p.returns(p.apply("add", p.matmul(x, w, "h"), low))


_ATTENTION = {"z": 2, "s": 256, "d": 64, "n": 4096, "e": 64}


def gqa() -> KernelGraph:
    p = Program("gqa", dict(_ATTENTION))
    q, k, v = p.input("q", "z s d"), p.input("k", "z d n"), p.input("v", "z n e")
    return p.returns(p.attention(q, k, v))


def qknorm() -> KernelGraph:
    p = Program("qknorm", dict(_ATTENTION))
    q, k, v = p.input("q", "z s d"), p.input("k", "z n d"), p.input("v", "z n e")
    return p.returns(p.attention(p.rms_norm(q, "d"), p.rms_norm(k, "d"), v))


def ntrans() -> KernelGraph:
    p = Program("ntrans", {"b": 8, "h": 4096})
    x, h, al = p.input("x", "b h"), p.input("y", "b h"), p.input("al", "h")
    step = p.apply("mul", al, p.apply("sub", p.rms_norm(h, "h"), x))
    return p.returns(p.rms_norm(p.apply("add", x, step), "h"))


PROGRAMS = {f.__name__: f for f in (rmslin, gated, lora, gqa, qknorm, ntrans)}
