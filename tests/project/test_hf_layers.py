"""Layers of other people as kernels: torch.nn's, and those of transformers."""

from __future__ import annotations

import importlib.util
import re

import pytest

from benchmarks.hf_layers import Layer, line_of, main, of_torch, of_transformers, tried

REFUSED = {
    "DeepseekV2": "complex64",
    "DeepseekV3": "topk|along an axis that is split",
    "Mixtral": "topk",
    "Phi3": "along an axis that is split",
}
"""Models of which some layers are refused yet, and what is said of them."""


@pytest.mark.parametrize("layer", list(of_torch()), ids=lambda one: one.name)
def test_a_layer_of_torch_is_right(layer: Layer) -> None:
    row = tried(layer)
    assert row.right, line_of(row)


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="needs transformers"
)
@pytest.mark.parametrize("layer", list(of_transformers()), ids=lambda one: one.name)
def test_a_layer_of_transformers_is_right_or_refused(layer: Layer) -> None:
    row = tried(layer)
    for model, reason in REFUSED.items():
        if layer.name.startswith(model) and re.search(reason, row.reason):
            pytest.xfail(row.reason)
    assert row.right, line_of(row)


def test_no_layer_of_that_name() -> None:
    assert main(["--only", "no such layer"]) == 2
