"""The kernels that `benchmarks.narrow` has by hand, and what they compute."""

# Triton has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from benchmarks import narrow, narrow_kernels
from benchmarks.narrow import FORMATS, FORMS, GROUP, WRONG, Form
from mirage_dsl.backends.triton.running.interpret import interpreting, load_module
from mirage_dsl.rewrite.warps import split_between_warps
from mirage_dsl.tune.timing import Time
from tests.programs.mugraphs import gated_mlp

K, N = 2048, 64
ALL = [(name, form) for name, forms in FORMS.items() for form in forms]
POINTERS = {
    "f8": {"x": "*fp16", "gate": "*i32", "up": "*i32"},
    "i4": {"x": "*i32", "gate": "*i32", "up": "*i32"},
}
FEW = 8
"""Accesses of shared memory behind the loop, of a kernel that sums by splits."""


@pytest.mark.parametrize(("name", "form"), ALL, ids=str)
def test_a_kernel_written_by_hand_is_right(name: str, form: Form) -> None:
    source = Path(narrow_kernels.__file__).read_text("utf-8")
    module = load_module(source, interpret=True)

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        with interpreting():
            return narrow.launch(form, tensors, module)

    tensors = narrow.draw(name, K, N, "cpu")
    assert narrow.error(name, call, tensors) < WRONG
    found = call(*tensors)
    tensors[1] = tensors[2]  # Of another gate it is no result.
    assert narrow.error(name, lambda *_: found, tensors) > WRONG


@pytest.mark.parametrize("form", [form for _, form in ALL], ids=str)
def test_it_compiles_for_sm_90_without_spills(form: Form) -> None:
    text = compiled(form).asm["ptx"]
    assert "mma.sync" in text
    assert "st.local" not in text
    behind = text[text.rindex("mma.sync") :]
    stores = behind.count("st.shared") + behind.count("stmatrix")
    assert 0 < stores <= FEW * (form.warps // 4)


def compiled(form: Form) -> Any:
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(narrow_kernels, form.kernel)
    scale = "*i32" if form.kernel.endswith("shared") else "*fp16"
    types = POINTERS[form.kernel[:2]] | {"o": "*fp16", "rounds": "i32", "one": "i32"}
    types |= {"gate_scale": scale, "up_scale": scale}
    constants = {"depth": 4096, "width": 4096, "warps": form.warps, "run": narrow.RUN}
    constants |= form.options
    names = kernel.arg_names
    signature = {n: types.get(n, "constexpr") for n in names}
    aligned: Any = [["tt.divisibility", 16]]
    attributes = {(i,): aligned for i, n in enumerate(names) if signature[n][0] == "*"}
    chosen = {n: constants[n] for n in names if n in constants}
    source = ASTSource(kernel, signature, chosen, attributes)
    target, options = (
        GPUTarget("cuda", 90, 32),
        {"num_warps": form.warps, "enable_fp_fusion": True},
    )
    found: Any = compile_kernel(source, target=target, options=options)
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_ours_is_traced_and_is_one_kernel(name: str) -> None:
    tensors = narrow.draw(name, 2 * GROUP, N, "cpu")
    bound = mirage.kernel(narrow.program(name)).bind(*tensors)
    assert len(bound.search(effort="quick").best.mugraph.blocks) == 1
    assert narrow.error(name, bound, tensors) < WRONG


def test_forms_whose_warps_have_their_own_parts_are_told_by_their_sums() -> None:
    graph = gated_mlp(8, 256, 64, tile_n=32, tile_k=64)
    apart = split_between_warps(graph, 0, warps=4, length=16)
    assert apart is not None
    assert narrow.sums_by_warp(apart)
    assert not narrow.sums_by_warp(graph)


@pytest.mark.parametrize("name", FORMATS)
def test_the_table_has_all_that_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the CPU, where what is written by hand fails: all else is listed."""
    time = Time(2.0, 1.0, 3.0)
    monkeypatch.setattr(narrow, "SIDE", 2 * GROUP)
    monkeypatch.setattr(narrow, "DEVICE", "cpu")
    monkeypatch.setattr(narrow, "time_in_turns", lambda calls: [time for _ in calls])
    monkeypatch.setattr(narrow, "read_floor", lambda _: time)
    base, right = narrow.measure(name, 4.0, show=True)
    lines = capsys.readouterr().out.splitlines()
    assert base == 4.0
    assert right is (name == "f16")
    assert sum("fails:" in line for line in lines) == len(FORMS.get(name, ()))
    ours = next(line for line in lines if " ours " in line)
    assert ours.split()[2:6] == ["2.00", "1.00", "3.00", "0.50"]
    assert any(line.startswith("mugraph ") for line in lines)
