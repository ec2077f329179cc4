"""Whatever values, dims and programs are called, the emitted module is right.

Names of Python, and those that the module has itself, hide nothing that it needs.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Iterator

import pytest

from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.core.types import is_name
from mirage_dsl.ir.text.parser import parse
from tests.backends.running import check

READ = """mirage 1
mugraph {0}({0}: f32[m, {0}], w: f32[{0}, n], v: f32[l])
    -> f32[m, n], f32[m], f32[l] where m = ?, {0} = ?, n = 16, l = ? {{
  y = block grid(m / 16) loop({0} / 16) {1} {{
    {0}: f32[m/grid, {0}/loop] = load {0}
    part: f32[{0}/loop, n] = load w
    a = accumulate {0} @ part
    s = a * exp(1/{0} - minimum(a, 0))
    store y: f32[m/grid, n] = s
  }}
  z = sum({0}, {0}) * 1/{0}
  u = exp(v)
  return y, z, u
}}
"""
"""The name as program, input, dim and tile."""
MADE = """mirage 1
mugraph f(x: f32[m, k]) -> f32[m] where m = ?, k = ? {{
  {0} = block grid(m / 16) loop(k / 16) {1} {{
    t: f32[m/grid, k/loop] = load x
    {0}: f32[m/grid] = running max max(t, k)
    e = exp(t - {0})
    b = accumulate sum(e, k) rescale {0}
    store {0}: f32[m/grid] = b
  }}
  return {0}
}}
"""
"""The name as result of a kernel, and as value in it."""
TEXTS = (READ, MADE)
EARLY = "descriptors(true) pdl(true) prefetch(2)"


def modules(name: str, schedule: str = "") -> Iterator[str]:
    """The source of both texts with a name."""
    for text in TEXTS:
        yield emit(parse(text.format(name, schedule)))


def own_names() -> set[str]:
    """All names of emitted modules themselves."""
    found: set[str] = set()
    for source in modules("q", EARLY):
        for node in ast.walk(ast.parse(source)):
            found.update(
                str(getattr(node, field))
                for field in ("id", "arg", "name", "attr")
                if getattr(node, field, None)
            )
    return found


OTHERS = set(re.findall(r"\w+", READ + MADE)) - {"exp", "minimum", "sum", "max"}
NAMES = sorted(
    {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *own_names()}
    | {"device", "index", "shape0", "stream", "locals", "_", "__", "__x", "__class__"}
    | {"k_", "self", "x_kernel0", "f_kernel0", "shift_of", "joined", "gdc_wait"}
    | {"ﬁ", "fi", "µ", "μ", "x²", "naïve", "\u212a", "名"}
)
NAMES = [n for n in NAMES if is_name(n) and n not in OTHERS]
assert len(NAMES) > 200


def assigned(function: ast.FunctionDef) -> set[str]:
    """Parameters and variables of a function."""
    targets = {
        n.id
        for n in ast.walk(function)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return targets | {a.arg for a in function.args.args}


@pytest.mark.sample(0)
def test_no_name_hides_what_the_module_needs() -> None:
    for name in NAMES:
        for source in modules(name, EARLY):
            tree = ast.parse(source)
            compile(tree, name, "exec")
            functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
            shared = {f.name for f in functions} | set(dir(builtins))
            for node in tree.body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    shared |= {a.asname or a.name for a in node.names}
                if isinstance(node, ast.Assign):
                    shared |= {t.id for t in node.targets if isinstance(t, ast.Name)}
            for function in functions:
                own = assigned(function)
                # Kernels do not call each other.
                kernels = {n for n in shared if re.search(r"_kernel\d$", n)}
                needed = shared - kernels if function.name in kernels else shared
                assert not own & needed, name
                read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
                assert read <= own | needed, name


@pytest.mark.parametrize(
    "name",
    ["device", "__debug__", "None", "it", "tl", "float", "max", "x_kernel0", "ﬁ", "y_"],
)
def test_modules_with_such_names_run(name: str) -> None:
    for text in TEXTS:
        check(parse(text.format(name, "")), None, m=20, l=3, k=20, **{name: 20})


def test_names_that_python_takes_for_one_stay_two() -> None:
    text = "mirage 1\nmugraph f(ﬁ: f32[m], fi: f32[m], K: f32[m], \u212a: f32[m])"
    text += " -> f32[m] where m = 4 {\n  µ = ﬁ / fi\n  μ = µ - K\n  y = μ / \u212a\n"
    check(parse(text + "  return y\n}\n"))


@pytest.mark.parametrize(
    "end", ["\r", "\x0c", "\x0b", "\x85", "\u2028", "\x00", "\r\r"]
)
def test_no_text_in_a_comment_becomes_code(end: str) -> None:
    inject = f"{end}    raise SystemExit"
    text = "mirage 1\nmugraph f(x: f32[m]) -> f32[m] where m = 4 {\n"
    text += f"  z = exp x // {inject}\n  y = block grid(m / 2) {{\n"
    text += f"    t = load z[m/grid]\n    e = exp t // {inject}\n"
    graph = parse(text + "    store y[m/grid] = e\n  }\n  return y\n}\n", f"a{end}b")
    assert "SystemExit" not in ast.dump(ast.parse(emit(graph)))
