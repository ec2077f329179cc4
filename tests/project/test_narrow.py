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

K, N = 2048, 64
ALL = [(name, form) for name, forms in FORMS.items() for form in forms]
POINTERS = {
    "f8": {"x": "*fp16", "gate": "*i32", "up": "*i32"},
    "i4": {"x": "*i32", "gate": "*i32", "up": "*i32"},
}
FEW = 8
"""Accesses of shared memory behind the loop, of a kernel that sums by splits."""


@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "form"), ALL, ids=str)
def test_a_kernel_written_by_hand_is_right(name: str, form: Form) -> None:
    source = Path(narrow_kernels.__file__).read_text("utf-8")
    module = load_module(source, interpret=True)

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        with interpreting():
            return narrow.launch(form, narrow.given(form, tensors), module)

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
    if form.of_rows:
        assert "shared" not in text[text.index("ld.global") : text.rindex("mma.sync")]


def compiled(form: Form) -> Any:
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(narrow_kernels, form.kernel)
    scale = "*i32" if form.kernel.endswith("shared") else "*fp16"
    words = {"x": "*i32"} if form.of_rows else {}
    types = (
        POINTERS[form.kernel[:2]]
        | words
        | {"o": "*fp16", "rounds": "i32", "one": "i32"}
    )
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


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", FORMATS)
def test_ours_is_traced_and_is_one_kernel(name: str) -> None:
    tensors = narrow.draw(name, 2 * GROUP, N, "cpu")
    bound = mirage.kernel(narrow.program(name)).bind(*tensors)
    assert len(bound.search(effort="quick").best.mugraph.blocks) == 1
    assert narrow.error(name, bound, tensors) < WRONG
