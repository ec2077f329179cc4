"""Candidates and programs that call libraries are compared between the calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.work import OutOfTimeError, until
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.verify import sections, verifier
from mirage_dsl.verify.sections import Section, mended, sections_of
from mirage_dsl.verify.verifier import recheck, verify

Layer = Callable[[Any], Any]


def network(
    first: Layer, second: Layer, third: Layer, given: str = "xuvw", again: bool = False
) -> KernelGraph:
    """Three convolutions of one size, each behind a layer; and one before them."""

    def model(x: Any, u: Any, v: Any, w: Any) -> Any:
        own = dict(zip("xuvw", (x, u, v, w), strict=True))
        x, u, v, w = (own[name] for name in given)
        conv = torch.nn.functional.conv2d
        a = conv(x, u, padding=1)
        b = conv(first(a), v, padding=1)
        c = conv(second(a if again else b), w, padding=1)
        return third(c) + b

    image = mirage.spec((2, 8, 16, 16), "float32")
    weights = [mirage.spec((8, 8, 3, 3), "float32")] * 3
    return mirage.kernel(model).trace(image, *weights)


def doubled(x: Any) -> Any:
    return torch.relu(x) * 2


def summed(x: Any) -> Any:
    y = torch.relu(x)
    return y + y


def tripled(x: Any) -> Any:
    return torch.relu(x) * 3


def test_layers_are_sections_and_equal_ones_are_one() -> None:
    program = network(doubled, doubled, doubled)
    found = sections_of(network(summed, summed, summed), program) or []
    assert [len(section.program.inputs) for section in found] == [1, 1, 2]
    assert found[0] == found[1] != found[2]
    certificate = verify(network(summed, summed, summed), program)
    assert certificate.equivalent
    assert certificate.stability is not None
    assert certificate.stability.ok
    assert "3 sections" in certificate.reason
    assert 0 < certificate.error_bound < 1e-6
    assert recheck(certificate, network(summed, summed, summed), program)


@pytest.mark.parametrize(
    "wrong",
    [
        network(summed, tripled, summed),
        network(summed, summed, tripled),
        network(torch.relu, summed, summed),
        network(summed, summed, summed, given="xvuw"),
        network(summed, summed, summed, given="xuuw"),
        network(summed, summed, summed, again=True),
    ],
    ids=["second", "third", "first", "exchanged", "one twice", "skipped"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_section_is_refused(wrong: KernelGraph, seed: int) -> None:
    certificate = verify(wrong, network(doubled, doubled, doubled), seed=seed)
    assert not certificate.equivalent


def test_an_inaccurate_section_is_inaccurate() -> None:
    def cancels(x: Any) -> Any:
        y = torch.relu(x) * 2
        return (y + 1e4) - 1e4

    program = network(doubled, doubled, doubled)
    certificate = verify(network(summed, cancels, summed), program)
    assert not certificate.equivalent or not (
        certificate.stability is None or certificate.stability.ok
    )


def test_other_calls_have_no_sections() -> None:
    def pooled(x: Any) -> Any:
        return torch.nn.functional.max_pool2d(x, 3, 1, 1)

    program = network(doubled, doubled, doubled)
    assert sections_of(network(pooled, summed, summed), program) is None
    assert sections_of(program, network(pooled, summed, summed)) is None
    assert not verify(network(pooled, summed, summed), program).equivalent


def behind(count: int, function: Layer) -> KernelGraph:
    """A convolution, called so often, and what is computed of it and itself."""

    def model(x: Any, w: Any) -> Any:
        made = [torch.conv2d(x, w) for _ in range(count)]
        return function(made[0]) + made[-1]

    image, weight = (2, 8, 16, 16), (8, 8, 3, 3)
    return mirage.kernel(model).trace(*(mirage.f32[s] for s in (image, weight)))


def test_a_section_has_the_dims_that_it_reads() -> None:
    (section,) = sections_of(behind(1, summed), behind(1, doubled)) or []
    for graph in (section.candidate, section.program):
        read = {n for i in graph.inputs for n in i.type.names}
        assert {n for n, _ in graph.extents} == read


def test_the_only_section_is_verified_by_itself() -> None:
    certificate = verify(behind(1, summed), behind(1, doubled))
    assert certificate.equivalent
    assert "in 1 section " in certificate.reason
    assert not verify(behind(1, tripled), behind(1, doubled)).equivalent


def test_equal_calls_are_one() -> None:
    for counts in ((1, 2), (2, 1), (2, 2)):
        candidate, program = behind(counts[0], summed), behind(counts[1], doubled)
        assert len(sections_of(candidate, program) or []) == 1
        assert verify(candidate, program).equivalent
        assert not verify(behind(counts[0], tripled), program).equivalent


# -- Long programs ---------------------------------------------------------------------


def layers(count: int, layer: Layer, odd: Layer | None = None) -> KernelGraph:
    """Many equal layers between products, the middle one another if that is given."""

    def model(x: Any, w: Any) -> Any:
        for number in range(count):
            x = (odd if odd and number == count // 2 else layer)(x @ w)
        return x

    return mirage.kernel(model).trace(mirage.f32[8, 16], mirage.f32[16, 16])


def test_long_programs_are_cut_at_what_both_compute() -> None:
    candidate, program = layers(30, summed), layers(30, doubled)
    found = sections_of(candidate, program) or []
    assert len(found) == 30
    assert len(set(found)) <= 4, "those at either end may differ from the others"
    certificate = verify(candidate, program)
    assert certificate.ok
    assert "30 sections" in certificate.reason
    assert sections_of(layers(3, summed), layers(3, doubled)) is None, "is no long one"


def negated(x: Any) -> Any:
    return torch.relu(-x) * 2


def lost(x: Any) -> Any:
    return torch.relu(x) + x


@pytest.mark.sample(2)
@pytest.mark.parametrize("wrong", [tripled, negated, lost, torch.relu])
@pytest.mark.parametrize("seed", range(3))
def test_one_wrong_layer_of_many_is_refused(wrong: Layer, seed: int) -> None:
    candidate, program = layers(30, summed, wrong), layers(30, doubled)
    assert not verify(candidate, program, seed=seed).equivalent


def crossed(names: str, given: str = "xy") -> KernelGraph:
    """Relu of both arguments, in the order of their names, and a long chain."""

    def model(x: Any, y: Any) -> Any:
        own = {"x": x, "y": y} if given == "xy" else {"x": y, "y": x}
        made = {name: torch.relu(own[name]) for name in names}
        z = made["x"] - made["y"]
        for _ in range(40):
            z = torch.relu(z) + 1
        return z

    return mirage.kernel(model).trace(mirage.f32[8, 16], mirage.f32[8, 16])


@pytest.mark.sample(0)
def test_names_that_mean_something_else_are_seen() -> None:
    """What has one name on both sides differs, but not what is made of it."""
    assert verify(crossed("yx"), crossed("xy")).equivalent
    assert not verify(crossed("xy", "yx"), crossed("xy")).equivalent
    assert not verify(crossed("yx", "yx"), crossed("xy")).equivalent


PROGRAM = parse("""mirage 1
mugraph program(x: f32[m, a, b], w: f32[n, a, b]) -> f32[m, n], f32[m, a, b]
    where m = 8, a = 4, b = 2, n = 16 {
  r = relu x
  d = mul r, 2
  y = matmul d, w over(a, b)
  s = relu y
  z = mul s, 2
  return z, d
}
""")


def in_blocks(scale: int = 2, last: int = 2) -> KernelGraph:
    """The program in two blocks, of which the first one flattens its result."""
    return parse(f"""mirage 1
mugraph candidate(x: f32[m, a, b], w: f32[n, a, b]) -> f32[m, n], f32[m, a, b]
    where m = 8, a = 4, b = 2, n = 16, k = 8 {{
  xf = flatten x of(a, b) to(k)
  d = block grid(m / 4) {{
    t: f32[m/grid, k] = load xf
    u = relu t
    v = mul u, {scale}
    store d: f32[m/grid, k] = v
  }}
  whole = unflatten d dim(k) gives(a, b)
  y = matmul whole, w over(a, b)
  z = block grid(m / 4) {{
    t: f32[m/grid, n] = load y
    u = relu t
    v = mul u, {last}
    store z: f32[m/grid, n] = v
  }}
  return z, whole
}}
""")


@pytest.fixture
def _short_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "_LONG", 0)


@pytest.mark.usefixtures("_short_ones_too")
def test_values_are_cut_where_one_side_has_one_dim_for_several() -> None:
    found = sections_of(in_blocks(), PROGRAM) or []
    assert sorted(len(section.candidate.blocks) for section in found) == [0, 1, 1]
    elements = [section.elements for section in found]
    assert elements == sorted(elements, reverse=True)
    assert "3 sections" in verify(in_blocks(), PROGRAM).reason
    assert verify(in_blocks(), PROGRAM).ok
    for wrong in (in_blocks(scale=3), in_blocks(last=3), in_blocks(scale=4, last=1)):
        assert not verify(wrong, PROGRAM).equivalent


def is_right(section: Section) -> bool:
    return verify(section.candidate, section.program).ok


@pytest.mark.usefixtures("_short_ones_too")
def test_wrong_sections_are_the_program_s() -> None:
    found = mended(in_blocks(last=3), PROGRAM, is_right)
    assert found is not None
    assert [block.results for block in found.blocks] == [("d",)]
    assert verify(found, PROGRAM).ok
    # What reads a lost value in another shape is lost with it.
    found = mended(in_blocks(scale=3), PROGRAM, is_right)
    assert found is not None
    assert [block.results for block in found.blocks] == [("z",)]
    assert [node.op.name for node in found.applies] == ["relu", "mul", "matmul"]
    assert verify(found, PROGRAM).ok
    assert mended(in_blocks(scale=3, last=3), PROGRAM, is_right) is None


TWICE = parse("""mirage 1
mugraph program(x: f32[m, k], w: f32[k, n]) -> f32[m, n] where m = 8, k = 8, n = 16 {
  q = sum x over(k)
  d = mul x, q
  y = matmul d, w over(k)
  r = sum x over(k)
  z = mul y, r
  return z
}
""")


def once(last: str) -> KernelGraph:
    """The program in two blocks, of which the second one reads the sum of the first."""
    return parse(f"""mirage 1
mugraph candidate(x: f32[m, k], w: f32[k, n]) -> f32[m, n]
    where m = 8, k = 8, n = 16 {{
  q, d = block grid(m / 4) {{
    t: f32[m/grid, k] = load x
    u = sum t over(k)
    v = mul t, u
    store q: f32[m/grid] = u
    store d: f32[m/grid, k] = v
  }}
  y = matmul d, w over(k)
  z = block grid(m / 4) {{
    t: f32[m/grid, n] = load y
    u: f32[m/grid] = load q
    v = {last} t, u
    store z: f32[m/grid, n] = v
  }}
  return z
}}
""")


@pytest.mark.usefixtures("_short_ones_too")
def test_what_only_wrong_sections_read_is_not_stored() -> None:
    assert verify(once("mul"), TWICE).ok
    found = mended(once("add"), TWICE, is_right)
    assert found is not None
    assert [block.results for block in found.blocks] == [("d",)]
    assert check(found) == []
    assert verify(found, TWICE).ok


@pytest.mark.usefixtures("_short_ones_too")
def test_a_right_candidate_is_left_as_it_is() -> None:
    found = mended(in_blocks(), PROGRAM, lambda _: True)
    assert found is not None
    assert set(found.nodes) == set(in_blocks().nodes)


@pytest.mark.usefixtures("_short_ones_too")
def test_one_view_may_stand_for_several() -> None:
    text = """mirage 1
mugraph views(x: f32[m, k], w: f32[n, k]) -> f32[m, n] where m = 8, k = 16, n = 16 {
  a = rename w dims(n, k) to(k, n)
  y = matmul x, a over(k)
  r = relu y
  b = rename w dims(n, k) to(k, n)
  z = matmul r, a over(n)
  s = relu z
  t = rename s dims(k) to(n)
  return t
}
"""
    once, twice = parse(text), parse(text.replace("matmul r, a", "matmul r, b"))
    assert verify(once, twice).ok
    assert sections_of(once, twice) == []
    assert verify(once, twice).error_bound == 0.0
    other = parse(text.replace("s = relu", "s = exp"))
    (section,) = sections_of(other, twice) or []
    assert len(section.program.nodes) == 1


TURNED: dict[str, Layer] = {
    "a sort": lambda x: torch.sort(x, 1).values,
    "a convolution": lambda x: torch.conv2d(x[None, None], x[None, None], padding=2),
}


@pytest.mark.parametrize("name", TURNED)
def test_a_result_with_its_axes_exchanged_is_another_one(name: str) -> None:
    """Nothing is computed behind the call, so that its result alone is compared."""
    function, x = TURNED[name], mirage.spec((5, 5), "float32")
    right = mirage.kernel(lambda x: function(x)).trace(x)
    turned = mirage.kernel(lambda x: function(x).mT).trace(x)
    assert not verify(turned, right).equivalent
    assert verify(right, right).equivalent


def test_what_cannot_be_cut_cannot_be_mended() -> None:
    assert mended(in_blocks(last=3), PROGRAM, is_right) is None


def _lifted(x: Any) -> Any:
    return torch.relu(x) + 1


def _twice_lifted(x: Any) -> Any:
    y = torch.relu(x)
    return y + 0.5 + 0.5


def _other(layer: Layer) -> Layer:
    """A layer in another form, or the third of these, which is another layer."""
    return {doubled: summed, _lifted: _twice_lifted, tripled: doubled}[layer]


@pytest.mark.parametrize("third", [doubled, tripled])
def test_sections_are_verified_at_once_as_they_are_one_by_one(third: Layer) -> None:
    layers = (doubled, _lifted, third)
    program = network(*layers)
    candidate = network(*map(_other, layers))
    vars(verifier)["_of_sections"].clear()
    with ThreadPoolExecutor(2) as pool:
        together = verify(candidate, program, executor=pool)
    vars(verifier)["_of_sections"].clear()
    assert verify(candidate, program) == together
    assert together.equivalent == (third is doubled)


class _Late(ThreadPoolExecutor):
    """Does the first piece of work; nothing comes of what follows."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if "begun" not in self.__dict__:
            self.__dict__["begun"] = super().submit(fn, *args, **kwargs)
            return self.__dict__["begun"]
        never: Future[Any] = Future()
        never.set_running_or_notify_cancel()
        return never


def test_what_was_verified_in_time_is_known() -> None:
    program = network(doubled, _lifted, doubled)
    candidate = network(summed, _twice_lifted, summed)
    known = vars(verifier)["_of_sections"]
    known.clear()
    end = time.monotonic() + 3.0
    with _Late(1) as pool, until(end), pytest.raises(OutOfTimeError):
        verify(candidate, program, executor=pool)
    assert len(known) == 1
