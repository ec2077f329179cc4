"""The μGraphs of `examples/` compute their programs, and edited ones do not.

A program is written as the body of a kernel graph under the header of its example.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.shifts import stabilise
from mirage_dsl.verify.verifier import verify

EXAMPLES = Path(__file__).parents[2] / "examples"

RMS = "r = x * rsqrt(sum(square(x), k) * 1/k)"
LINEAR = (RMS, "out = r @ w")
LORA = ("out = x @ w + (x @ a) @ b",)
SOFTMAX = (
    "e = exp(s - rowshift(s, n))",
    "p = e / sum(e, n)",
    "out: f16[b, m, d] = p @ v",
)
GQA = ("s: f16[b, m, n] = q @ k", *SOFTMAX)


def qknorm(scale: str) -> tuple[str, ...]:
    return (
        "qn = q * rsqrt(sum(square(q), d) * 1/d)",
        "kn = k * rsqrt(sum(square(k), d) * 1/d)",
        "t: f16[b, m, n] = qn @ kn",
        f"s = t * {scale}",
        *SOFTMAX,
    )


PROGRAMS = {
    "exp_mlp_split_k": ("out = exp(x @ a) @ b",),
    "gated_down": ("out = (silu(x) * y) @ w",),
    "gated_mlp": ("out = silu(x @ w1) * (x @ w2)",),
    "gqa_running_max": GQA,
    "gqa_split_kv": GQA,
    "gqa_split_kv_running_max": GQA,
    "lora": LORA,
    "lora_concatenated": LORA,
    "qknorm_split_kv": qknorm("0.125"),
    "qknorm_split_kv_four_rows": qknorm("0.08838834764831845"),
    "rms_gain_linear": (RMS, "out = (r * g) @ w"),
    "rms_gated": (RMS, "out = (r @ up) * (r @ gate)"),
    "rms_linear": LINEAR,
    "rms_linear_column_major": LINEAR,
    "rms_linear_two_grid_dims": LINEAR,
    "rms_lora": (RMS, "out = r @ w + (r @ a) @ b"),
    "rms_qkv": (RMS, "q = r @ wq", "p = r @ wk", "v = r @ wv", "return q, p, v"),
}
# The exponentials of this one are not shifted, which floating point notices.
UNSTABLE = {"gqa_split_kv"}


def text_of(name: str) -> str:
    return (EXAMPLES / f"{name}.mu").read_text("utf-8")


def program_of(name: str) -> KernelGraph:
    header = re.match(r".*?\{\n", text_of(name), flags=re.S)
    assert header is not None
    lines = list(PROGRAMS[name])
    if not lines[-1].startswith("return "):
        lines.append("return out")
    lines.append("}")
    return parse(header[0] + "\n".join(lines) + "\n")


def test_every_example_has_a_program() -> None:
    assert {f.stem for f in EXAMPLES.glob("*.mu")} == PROGRAMS.keys()


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", PROGRAMS)
def test_example_computes_its_program(name: str) -> None:
    program = program_of(name)
    assert check(program) == []
    certificate = verify(parse(text_of(name)), program)
    assert certificate.equivalent, certificate.counterexample
    assert certificate.error_bound < 1e-12
    assert certificate.stability is not None
    assert certificate.stability.ok == (name not in UNSTABLE)


def test_large_logits_tell_a_softmax_without_maxima() -> None:
    """The same splits with running maxima pass, and so does what stabilising makes."""
    program = program_of("gqa_split_kv")
    plain = parse(text_of("gqa_split_kv"))
    found = verify(plain, program).stability
    assert found is not None
    assert not found.ok
    assert found.worst_ratio == float("inf")
    assert "scale 8" in found.reason or "ramp" in found.reason
    stable = stabilise(plain)
    for graph in (stable, parse(text_of("gqa_split_kv_running_max"))):
        assert graph is not None
        certificate = verify(graph, program)
        assert certificate.ok, certificate
        assert certificate.stability is not None
        assert certificate.stability.worst_ratio < 2


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("rms_linear", "mul total, 1/k", "mul total, 1/n"),
        ("rms_linear", "accumulate squares", "accumulate squares max"),
        ("gated_mlp", "silu gate", "sigmoid gate"),
        ("gqa_split_kv", "sum weights_tile", "max weights_tile"),
        ("gqa_running_max", "weights_part rescale shift", "weights_part"),
        ("gqa_split_kv_running_max", "mul weights_tile, factor", "mul weights_tile, 1"),
        ("lora", "add full, update", "sub full, update"),
        ("rms_gain_linear", "mul x_tile, g_tile", "add x_tile, g_tile"),
        ("rms_qkv", "mul k_sum, scale", "mul k_sum, mean"),
        ("rms_qkv", "accumulate v_part", "accumulate v_part max"),
    ],
)
def test_edited_example_is_refused(name: str, old: str, new: str) -> None:
    text = text_of(name)
    assert text.count(old) == 1
    edited = parse(text.replace(old, new))
    assert check(edited) == []
    certificate = verify(edited, program_of(name), stability=False)
    assert not certificate.equivalent
    assert certificate.counterexample is not None
