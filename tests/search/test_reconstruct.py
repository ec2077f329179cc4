"""From DAGs to block graphs."""

from __future__ import annotations

from dataclasses import replace

from mirage_dsl.core.errors import SourceLocation
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.types import Dim, Scalar, f32, scalar
from mirage_dsl.ir.graph import Accumulate, Apply, KernelGraph, Load, Split, Store
from mirage_dsl.ops.table import CAST
from mirage_dsl.search.structures import structures
from tests.search.programs import PROGRAMS, Program
from tests.search.test_structures import assert_right, outline, small


def test_tiles_are_placeholders_and_maps_follow_the_configuration() -> None:
    for item in structures(PROGRAMS["lora"](), H100).structures:
        block, configuration = item.block, item.configuration
        assert block.grid == tuple(Split(d, 1) for d in configuration.grid)
        loop = configuration.loop
        assert block.loop == (None if loop is None else Split(loop, 1))
        for load in block.loads:
            for dim in (d for axis in load.axes for d in axis):
                assert dim.grid == (dim.name in configuration.grid)
                assert dim.loop == (dim.name == loop)
        (store,) = block.stores
        assert store.result == "t3"
        assert store.axes == tuple(
            (Dim(n, grid=n in configuration.grid),) for n in ("b", "n")
        )


def test_names_are_unique_and_new() -> None:
    program = PROGRAMS["qknorm"]()
    outer = {i.name for i in program.inputs} | {f"t{i}" for i in range(20)}
    for item in structures(program, H100, per_configuration=2).structures:
        results = [n.result for n in item.block.nodes if not isinstance(n, Store)]
        assert len(set(results)) == len(results)
        assert not outer.intersection(results)


def test_sums_over_several_dims_are_one_operator() -> None:
    p = Program("p", {"a": 6, "b": 5, "c": 7})
    program = p.returns(
        p.apply("sum", p.apply("exp", p.input("x", "a b c")), over="b c")
    )
    texts = {outline(s.block)[0] for s in structures(program, H100).structures}
    assert "sum[b c](exp(x))" in texts
    assert "sum[b](sum[c](exp(x)))" not in texts


def test_constants_are_operands() -> None:
    for item in structures(PROGRAMS["rmslin"](), H100, per_configuration=3).structures:
        constants = [
            o
            for n in item.block.nodes
            if isinstance(n, Apply)
            for o in n.operands
            if isinstance(o, Scalar)
        ]
        assert constants == [Scalar(scalar(1).value, (("h", -1),))]


def test_of_structures_that_differ_in_where_constants_enter_one_is_kept() -> None:
    one, every = (
        structures(PROGRAMS["rmslin"](), H100, alike=a) for a in (False, True)
    )
    assert 2 * len(one.structures) <= len(every.structures)
    assert {s.block for s in one.structures} <= {s.block for s in every.structures}


def test_a_constant_that_enters_an_operand_of_a_product_is_another_structure() -> None:
    """A scaled query is rounded for its product, a scaled score is not."""
    scaled = {
        node.result
        for item in structures(PROGRAMS["gqa"](), H100, per_configuration=5).structures
        for node in item.block.applies
        if any(isinstance(o, Scalar) for o in node.operands)
    }
    assert len(scaled) > 1


def located(program: KernelGraph) -> KernelGraph:
    """The program with a line number for each operator."""
    nodes = [
        replace(n, location=SourceLocation("f.py", i + 1))
        for i, n in enumerate(program.nodes)
        if isinstance(n, Apply)
    ]
    return replace(program, nodes=tuple(nodes))


def test_operators_keep_the_line_of_an_equal_value() -> None:
    result = structures(located(PROGRAMS["gated"]()), H100)
    for item in result.structures:
        for node in item.block.nodes:
            if isinstance(node, Apply):
                assert node.location is not None
                assert node.op.name != "silu" or node.location.line == 2


def test_several_outputs_are_all_stored() -> None:
    p = Program("p", {"b": 16, "h": 64, "n": 32})
    x, w = p.input("x", "b h"), p.input("w", "h n")
    total = p.apply("sum", p.apply("mul", x, x), over="h")
    y = p.apply("div", p.matmul(x, w, "h"), total)
    program = p.returns(y, total, y)
    result = structures(program, H100)
    assert result.complete
    assert {s.configuration.grid for s in result.structures} == {(), ("b",)}
    for item in result.structures:
        assert [s.result for s in item.block.stores] == [y, total]
    assert_right(small(program), result.structures)


def test_views_of_inputs_are_loaded_and_casts_only_type_the_output() -> None:
    p = Program("p", {"m": 6, "k": 8, "n": 6})
    x = p.input("x", "m k")
    turned = p.apply("rename", x, dims="m", to="n")
    product = p.matmul(x, turned, "k")
    program = p.returns(product)
    cast = Apply("out", CAST, (product,), (("dtype", "f32"),))
    kind = program.returns[0].type.with_dtype(f32)
    program = replace(
        program,
        nodes=(*program.nodes, cast),
        returns=(replace(program.returns[0], value="out", type=kind),),
    )
    result = structures(program, H100)
    assert_right(program, result.structures)
    for item in result.structures:
        assert {n.source for n in item.block.nodes if isinstance(n, Load)} == {
            x,
            turned,
        }
        assert [str(s.dtype) for s in item.block.stores] == ["f32"]


def test_loops_that_change_nothing_are_left_out() -> None:
    for item in structures(PROGRAMS["gqa"](), H100).structures:
        if item.configuration.loop is not None:
            assert any(isinstance(n, Accumulate) for n in item.block.nodes)
