"""Errors as a user meets them: by running a script, or by editing a μGraph.

Each names the user's file and line, shows it with a caret, and says what was found and
what to do.  `# here` marks the line to be named.
"""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import (
    CheckError,
    DTypeError,
    EquivalenceError,
    MirageError,
    ParseError,
    ShapeError,
    TraceError,
    UnsupportedError,
)
from tests.end_to_end.searching import searched

HERE = "# here"
HEAD = """
import numpy as np
import torch

import mirage_dsl as mirage

x = np.ones((4, 6), np.float16)
w = np.ones((6, 8), np.float16)


@mirage.kernel
"""


@dataclass(frozen=True)
class Case:
    """A script, and what its error has to say."""

    name: str
    kind: type[MirageError]
    says: tuple[str, ...]
    script: str


CASES = (
    Case(
        "shapes",
        ShapeError,
        ("f16[6, 8] by f16[4, 6]", "8 and 4", "transpose"),
        """
def product(x, w):
    scaled = x * 2
    return w @ scaled  # here

product(x, w)
""",
    ),
    Case(
        "unknown_operator",
        TraceError,
        ("softmx", "softmax"),
        """
def weights(x):
    return x.softmx(-1)  # here

weights(x)
""",
    ),
    Case(
        "unknown_function",
        UnsupportedError,
        ("nextafter",),
        """
def sums(x):
    return torch.nextafter(x, x)  # here

sums(x)
""",
    ),
    Case(
        "control_flow",
        TraceError,
        ("not known while", "where"),
        """
def clipped(x):
    if x.max() > 3:  # here
        return x * 0
    return x

clipped(x)
""",
    ),
    Case(
        "control_flow_in_a_helper",
        TraceError,
        ("not known while",),
        """
def outer(x):
    return helper(x * 2)

def helper(t):
    while t.sum() > 0:  # here
        t = t - 1
    return t

outer(x)
""",
    ),
    Case(
        "dtype",
        DTypeError,
        ("x is complex64", "float16", "astype"),
        """
def doubled(x):
    return x * 2

doubled(x.astype(np.complex64))  # here
""",
    ),
    Case(
        "annotated_dtype",
        DTypeError,
        ("x is f16", "bf16"),
        """
def doubled(x: mirage.bf16["m", "k"]):
    return x * 2

doubled(x)  # here
""",
    ),
    Case(
        "nothing_returned",
        TraceError,
        ("returns nothing", "return"),
        """
def forgot(x):  # here
    y = x * 2

forgot(x)
""",
    ),
    Case(
        "no_tensor",
        TraceError,
        ("argument y is", "Weights", "expected a tensor"),
        """
def added(x, y):
    return x + y.bias

class Weights:
    bias = 3

added(x, Weights())  # here
""",
    ),
    Case(
        "requires_grad",
        UnsupportedError,
        ("weight requires grad", "torch.no_grad()", "weight.detach()"),
        """
def linear(x, weight):
    return x @ weight

linear(torch.from_numpy(x), torch.nn.Parameter(torch.from_numpy(w)))  # here
""",
    ),
)


def place_of(source: str) -> int:
    """The number of the marked line."""
    lines = source.splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(HERE))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_script_with_a_mistake(case: Case, tmp_path: Path) -> None:
    source = HEAD + case.script.lstrip()
    file = tmp_path / "script.py"
    file.write_text(source, encoding="utf-8")
    with pytest.raises(case.kind) as caught:
        runpy.run_path(str(file))
    text = str(caught.value)
    line = place_of(source)
    assert text.startswith(f"{file}:{line}: "), text
    assert source.splitlines()[line - 1].strip() in text
    assert text.splitlines()[-1].strip() == "^"
    for fragment in case.says:
        assert fragment in text


MUGRAPH = """\
mirage 1

mugraph rms_linear(x: f16[m, k], w: f16[k, n]) -> f16[m, n]
    where m = 4, k = 32, n = 16 {
  y = block grid(n / 16) loop(k / 16) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    a = accumulate matmul(xt, wt)
    s = accumulate square(xt)
    q = a / sqrt(sum(s, k) * 1/k + 1e-06)
    store y: f16[m, n/grid] = q
  }
  return y
}
"""


@pytest.mark.parametrize(
    ("right", "wrong", "place", "says"),
    [
        ("w[k/loop, n/grid]", "w[k/grid, n/loop]", "a = acc", "k/loop, k/grid"),
        ("load x[m, k/loop]", "load x[k/loop, m]", "xt =", "x is f16[m, k]"),
        ("s = accumulate", "s: f32[m] = accumulate", "s: f32", "not f32[m]"),
        ("[m, n/grid] = q", "[m, n/grid] = xt", "store", "xt is f16[m, k/loop]"),
        ("matmul(xt, wt)", "matmul(xt, x)", "a = acc", "x"),
        ("accumulate square", "accumulate sqare", "s = acc", "square"),
    ],
)
def test_a_file_with_a_mistake(
    right: str, wrong: str, place: str, says: str, tmp_path: Path
) -> None:
    text = MUGRAPH.replace(right, wrong)
    file = tmp_path / "rms_linear.mu"
    file.write_text(text, encoding="utf-8")
    with pytest.raises((ParseError, CheckError)) as caught:
        mirage.parse(file.read_text(encoding="utf-8"), str(file))
    lines = text.splitlines()
    line = next(n for n, t in enumerate(lines, 1) if t.lstrip().startswith(place))
    message = str(caught.value)
    assert message.startswith(f"{file}:{line}: "), message
    assert lines[line - 1].strip() in message
    assert message.splitlines()[-1].strip(" ") == "^"
    assert says in message


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("* 1/k", ""),
        ("square(xt)", "exp(xt)"),
        ("a / sqrt", "a * sqrt"),
        ("+ 1e-06", "+ 1"),
    ],
)
def test_an_edit_that_computes_something_else(right: str, wrong: str) -> None:
    bound = mirage.kernel(lambda x, w: mirage.rms_norm(x) @ w).bind(
        mirage.spec((4, 32)), mirage.spec((32, 16))
    )
    assert bound.use(MUGRAPH).ok
    good = bound.mugraph
    edited = mirage.parse(MUGRAPH.replace(right, wrong))
    with pytest.raises(EquivalenceError, match="the program gives"):
        bound.use(edited)
    assert bound.mugraph == good, "a refused μGraph is not used"
    example = mirage.verify(edited, bound.program).counterexample
    assert example is not None
    # The numbers are those of the graphs.
    sizes = dict(example.sizes)
    arrays = [np.array(values) for values in example.inputs]
    (expected,) = mirage.evaluate(bound.program.with_extents(sizes), *arrays)
    assert expected[example.index] == pytest.approx(example.expected)
    assert example.found != pytest.approx(example.expected)


def test_an_edit_of_what_was_found() -> None:
    """The best μGraph's text, edited by hand: a tile is free, a moved sum is not."""
    bound = searched("rmsnorm_linear", small=True)
    best = bound.mugraph
    text = str(best)
    (block,) = best.blocks
    split = block.grid[0]
    other = text.replace(
        f"{split.dim} / {split.tile}", f"{split.dim} / {2 * split.tile}"
    )
    assert other != text
    try:
        assert bound.use(other).ok
        with pytest.raises(EquivalenceError, match="the program gives"):
            bound.use(text.replace("1e-06", "0.5"))
    finally:
        bound.use(best)
