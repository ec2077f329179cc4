"""μGraphs in Mirage's JSON: read, verified, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mirage_dsl as mirage
from mirage_dsl.api.compatibility import read
from mirage_dsl.core.errors import CacheError, EquivalenceError
from tests.api.test_block_api import agrees, attended, random

Q, K, V = (2, 64, 16), (2, 16, 128), (2, 128, 16)


class Writer:
    """Operators as Mirage writes them."""

    def __init__(self, level: str, first: int = 0) -> None:
        self.level = level
        self.operators: list[dict[str, Any]] = []
        self._next = first

    def tensor(self, *shape: int) -> dict[str, Any]:
        self._next += 1
        dim = [*shape, *[0] * (4 - len(shape))]
        return {
            "data_type": 940,
            "dim": dim,
            "num_dims": len(shape),
            "guid": self._next,
        }

    def op(
        self, name: str, given: list[dict[str, Any]], *shapes: Any, **more: Any
    ) -> Any:
        made = [self.tensor(*shape) for shape in shapes]
        self.operators.append(
            {
                "op_type": f"{self.level}_{name}_op",
                "input_tensors": given,
                "output_tensors": made,
                **more,
            }
        )
        return made[0] if len(made) == 1 else made


def inputs(g: Writer) -> list[dict[str, Any]]:
    return [
        g.op("input", [], shape, input_strides=[shape[1] * shape[2], shape[2], 1])
        for shape in (Q, K, V)
    ]


def attention() -> list[dict[str, Any]]:
    g = Writer("kn")
    q, k, v = inputs(g)
    e = g.op("exp", [g.op("matmul", [q, k], (2, 64, 128))], (2, 64, 128))
    total = g.op("reduction_2", [e], (2, 64, 1), reduce_dim=2)
    share = g.op("div", [e, total], (2, 64, 128))
    y = g.op("matmul", [share, v], (2, 64, 16))
    g.op("output", [y], output_strides=[1024, 16, 1])
    return g.operators


def xyz(x: int, y: int, z: int) -> dict[str, int]:
    return {"x": x, "y": y, "z": z}


def fused(*, output: str = "div", rescaled: bool = False) -> list[dict[str, Any]]:
    """Flash attention in one block, whose loop splits the keys."""
    g = Writer("kn")
    given = inputs(g)
    b = Writer("tb", 1000)
    maps = [(xyz(0, 1, -1), -1), (xyz(0, -1, -1), 2), (xyz(0, -1, -1), 1)]
    shapes = [(1, 16, 16), (1, 16, 32), (1, 32, 16)]
    q, k, v = (
        b.op("input", [], shape, input_map=m, forloop_dim=d)
        for shape, (m, d) in zip(shapes, maps, strict=True)
    )
    x = b.op("matmul", [q, k], (1, 16, 32))
    accumulated = ["nored", "red_ld_sum"]
    more: list[dict[str, Any]] = []
    if rescaled:
        largest, grown = b.op("reduction_2_max", [x], (1, 16, 1), (1, 16, 1))
        x = b.op("sub", [x, largest], (1, 16, 32))
        more = [b.op("exp", [grown], (1, 16, 1))]
        accumulated = [f"{kind}_rescale" for kind in accumulated]
    e = b.op("exp", [x], (1, 16, 32))
    y = b.op("matmul", [e, v], (1, 16, 16))
    values = [
        b.op(f"forloop_accum_{kind}", [value, *more], shape)
        for kind, value, shape in zip(
            accumulated, (y, e), ((1, 16, 16), (1, 16, 1)), strict=True
        )
    ]
    z = b.op(output, values, (1, 16, 16))
    b.op("output", [z], output_map=xyz(0, 1, -1), forloop_dim=-1)
    block = {
        "grid_dim": xyz(2, 4, 1),
        "block_dim": xyz(128, 1, 1),
        "forloop_range": 4,
        "operators": b.operators,
    }
    y = g.op("customized", given, (2, 64, 16), bgraph=block)
    g.op("output", [y], output_strides=[1024, 16, 1])
    return g.operators


def written(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize("rescaled", [False, True])
def test_a_graph_computes_what_it_says(rescaled: bool) -> None:
    arrays = random(*Q), random(*K), random(*V)
    for operators in (attention(), fused(rescaled=rescaled)):
        agrees(read(operators).compile().mugraph, attended(*arrays), *arrays)


def test_wrong_graphs_are_left_out(tmp_path: Path) -> None:
    graphs = [fused(), fused(output="mul"), fused(rescaled=True)]
    checkpoint = {"computation_graph": attention(), "generated_graphs": graphs}
    found = mirage.from_json(written(tmp_path / "checkpoint.json", checkpoint))
    assert len(found) == 2
    for candidate in found:
        assert candidate.certificate is not None
        assert candidate.certificate.ok
    listed = written(tmp_path / "graphs.json", graphs)
    assert len(mirage.from_json(listed, read(attention()))) == 2
    with pytest.raises(CacheError, match="give program="):
        mirage.from_json(listed)
    with pytest.raises(EquivalenceError, match="μGraph 0: not equivalent"):
        mirage.from_json(written(tmp_path / "wrong.json", graphs[1]), read(attention()))


def test_a_search_goes_on_from_what_mirage_found(tmp_path: Path) -> None:
    checkpoint = written(tmp_path / "found.json", [fused()])
    kernel = read(attention()).superoptimize(previous_checkpoint=checkpoint)
    (block,) = kernel.mugraph.blocks
    assert [s.tile for s in block.grid] == [1, 16]
    assert len(mirage.superoptimize(read(attention()),
               previous_checkpoint=checkpoint)) == 1  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op_type": "kn_allreduce_op"}, "no such operator here"),
        ({"op_type": "tb_exp_op"}, "no operator of this level"),
        ({"input_tensors": [{"guid": 99}]}, "lacks something: KeyError"),
        ({"input_tensors": 3}, "lacks something"),
    ],
)
def test_what_means_nothing_is_named(change: dict[str, Any], message: str) -> None:
    operators = attention()
    operators[4] |= change
    with pytest.raises(CacheError, match=message):
        read(operators)


@pytest.mark.parametrize("text", ["", "[]", "3", '{"generated_graphs": 3}', "[[{}]]"])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CacheError, match=r"as JSON|no μGraphs of Mirage"):
        mirage.from_json(path, read(attention()))


def test_formats_of_the_first_releases() -> None:
    operators = attention()
    for operator in operators[:3]:
        del operator["input_strides"]
        operator["output_tensors"][0] |= {"data_type": 921, "layout": "DmemColumnMajor"}
    graph = read(operators).program
    assert {i.type.dtype.name for i in graph.inputs} == {"f16"}
    assert {i.type.layout for i in graph.inputs} == {(0, 2, 1)}
    operators[0]["output_tensors"][0]["data_type"] = 940
    with pytest.raises(CacheError, match="dtype 940"):
        read(operators)
