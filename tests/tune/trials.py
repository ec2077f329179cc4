"""What candidates are judged by: a program and its inputs."""

from __future__ import annotations

from mirage_dsl.tune.measure import InputSpec
from tests.programs import mugraphs

GRAPH = mugraphs.rmsnorm_linear(8, 64, 96, tile_n=32, tile_k=16)
INPUTS = (
    InputSpec((8, 64), (64, 1), "float16"),
    InputSpec((64, 96), (1, 64), "float16", 0.5),
)
