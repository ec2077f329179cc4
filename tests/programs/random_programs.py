"""Random programs: mixes of all operators over odd shapes, as Python source.

A program is a function of a namespace `m` of functions and of tensors.  It runs with
`mirage_dsl` on symbolic tensors and with `tests.programs.numpy_functions` on float64
arrays, which share no code.  While it grows it is run on arrays, so that its values
stay in a range where low precision makes sense.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.types import TensorSpec, dtype_named
from tests.programs import numpy_functions

Array = NDArray[np.float64]

EXTENTS = (2, 3, 4, 5, 7, 8, 11, 13, 16, 24, 33, 77)
DTYPES = ("float16", "bfloat16", "float32")
SOON = (2, 4, 9, 10, 11, 12, 1000, 1002, 1003, 1004, 1005, 1007, 1008)
"""Seeds of programs that are searched to the end in about a second; from 1000 on they
have odd extents."""
MOST_ELEMENTS = 6000
LARGEST = 30.0


@dataclass(frozen=True)
class RandomProgram:
    """A random program.

    Attributes:
        seed: The seed that gives it again.
        source: Its Python source, a function `program(m, ...)`.
        function: That function.
        shapes: Shapes of its tensors by name.
        dtype: Their element format.
    """

    seed: int
    source: str
    function: Callable[..., Any]
    shapes: dict[str, tuple[int, ...]]
    dtype: str

    @property
    def specs(self) -> list[TensorSpec]:
        """Specs of the tensors."""
        dtype = dtype_named(self.dtype)
        assert dtype is not None
        return [TensorSpec(dtype, shape) for shape in self.shapes.values()]

    def inputs(self, seed: int = 0) -> list[Array]:
        """Random tensors in float64."""
        random = np.random.default_rng((self.seed, seed))
        return [random.uniform(-1, 1, shape) for shape in self.shapes.values()]

    def expected(self, *arrays: Array) -> list[Array]:
        """Its outputs by NumPy in float64."""
        results = self.function(numpy_functions, *arrays)
        return [np.asarray(r, np.float64) for r in results]


def random_program(
    seed: int, operators: int | None = None, extents: Sequence[int] = EXTENTS
) -> RandomProgram:
    """The program of a seed.

    Args:
        seed: Any integer; one seed is one program.
        operators: How many statements; between 2 and 7 unless given.
        extents: Sizes that axes may have.
    """
    grower = _Grower(np.random.default_rng(seed), extents)
    grower.start()
    for _ in range(operators or int(grower.random.integers(2, 8))):
        grower.grow()
    source, shapes = grower.finish()
    scope: dict[str, Any] = {}
    exec(compile(source, f"<random program {seed}>", "exec"), scope)
    dtype = DTYPES[int(grower.random.integers(len(DTYPES)))]
    return RandomProgram(seed, source, scope["program"], shapes, dtype)


UNARY = (
    "m.exp({} * 0.5)",
    "m.sqrt(m.abs({}) + 0.1)",
    "m.rsqrt(m.square({}) + 0.5)",
    "m.log(m.abs({}) + 0.5)",
    "m.square({})",
    "m.silu({})",
    "m.gelu({})",
    "m.relu({})",
    "m.sigmoid({})",
    "m.tanh({})",
    "m.erf({})",
    "m.abs({})",
    "-{}",
    "{} ** 3",
    "2.5 - {}",
    "{} / 3",
    "1 / (m.abs({}) + 1)",
    "m.clamp({}, -0.5, 0.75)",
    "m.where({0} > 0.1, {0}, 0.5)",
)
BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{} / (m.abs({}) + 0.5)",
    "m.maximum({}, {})",
    "m.minimum({}, {})",
    "m.where({0} < {1}, {1}, {0} * 0.5)",
)


@dataclass
class _Grower:
    """A program that gets one statement after the other."""

    random: np.random.Generator
    extents: Sequence[int]
    shapes: dict[str, tuple[int, ...]] = field(
        default_factory=dict[str, tuple[int, ...]]
    )
    values: dict[str, Array] = field(default_factory=dict[str, Array])
    lines: list[str] = field(default_factory=list[str])
    used: set[str] = field(default_factory=set[str])
    way: str = ""

    def start(self) -> None:
        """One or two inputs to begin with."""
        rank = int(self.random.choice([1, 2, 2, 2, 3, 3, 4]))
        self.input(self.shape(rank))

    def shape(self, rank: int) -> tuple[int, ...]:
        """A random shape of limited size."""
        while True:
            shape = tuple(int(e) for e in self.random.choice(self.extents, rank))
            if np.prod(shape) <= MOST_ELEMENTS:
                return shape

    def input(self, shape: tuple[int, ...]) -> str:
        """A new input."""
        name = f"x{len(self.shapes)}"
        self.shapes[name] = shape
        self.values[name] = self.random.uniform(-1, 1, shape)
        return name

    def pick(self) -> str:
        """A value, later ones with more weight."""
        names = list(self.values)
        weights = np.arange(1, len(names) + 1) ** 2.0
        return str(self.random.choice(names, p=weights / weights.sum()))

    def grow(self) -> None:
        """One more statement; a try whose values are out of range is dropped."""
        for _ in range(20):
            statement = self._STATEMENTS[
                int(self.random.integers(len(self._STATEMENTS)))
            ]
            names = set(self.shapes)
            expression = statement(self, self.pick())
            if expression is not None and self.accept(expression):
                return
            for name in set(self.shapes) - names:
                del self.shapes[name], self.values[name]

    def accept(self, expression: str) -> bool:
        """Add a statement if its value is of use."""
        scope: dict[str, Any] = {"m": numpy_functions, **self.values}
        value = np.asarray(eval(expression, scope), np.float64)
        small = value.size <= MOST_ELEMENTS and value.ndim <= 5
        if not small or not np.isfinite(value).all() or np.abs(value).max() > LARGEST:
            return False
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        self.values[name] = value
        self.used.update(n for n in self.values if n in _names(expression))
        return True

    def divide(self, way: str) -> bool:
        """Whether axes are split in this program, or cut and joined; never both.

        Named dims cannot say where the pieces of a split axis lie in a joined one.
        """
        self.way = self.way or way
        return self.way == way

    def unary(self, x: str) -> str | None:
        """A function of one tensor."""
        return str(self.random.choice(UNARY)).format(x)

    def partner(self, x: str) -> str:
        """A tensor that broadcasts with x: one that is there, or a new input."""
        shape = self.values[x].shape
        fitting = [n for n, v in self.values.items() if _broadcasts(v.shape, shape)]
        if self.random.random() < 0.6:
            return str(self.random.choice(fitting))
        drop = int(self.random.integers(0, len(shape) + 1))
        kept = [1 if self.random.random() < 0.3 else e for e in shape[drop:]]
        return self.input(tuple(kept))

    def binary(self, x: str) -> str | None:
        """A function of two tensors that broadcast."""
        y = self.partner(x)
        pair = (x, y) if self.random.random() < 0.5 else (y, x)
        return str(self.random.choice(BINARY)).format(*pair)

    def matmul(self, x: str) -> str | None:
        """A matrix product with a new input, or with the transpose of a value."""
        shape = self.values[x].shape
        if not shape or shape[-1] == 1:
            return None
        scale = round(1 / shape[-1] ** 0.5, 3)
        if len(shape) == 2 and self.random.random() < 0.2:
            return f"({x} @ m.transpose({x}, (1, 0))) * {scale}"
        columns = int(self.random.choice(self.extents))
        batch = shape[:-2] if self.random.random() < 0.5 else ()
        w = self.input((*batch, shape[-1], columns))
        return f"({x} @ {w}) * {scale}"

    def reduction(self, x: str) -> str | None:
        """A sum, mean or maximum along an axis."""
        rank = self.values[x].ndim
        if not rank:
            return None
        name = str(self.random.choice(["sum", "mean", "max"]))
        axis = int(self.random.integers(-rank, rank))
        keep = bool(self.random.random() < 0.6)
        scale = " * 0.25" if name == "sum" else ""
        return f"m.{name}({x}, axis={axis}, keepdims={keep}){scale}"

    def norm(self, x: str) -> str | None:
        """A softmax or one of the norms."""
        shape = self.values[x].shape
        if not shape or shape[-1] == 1:
            return None
        axis = int(self.random.integers(-len(shape), len(shape)))
        channels = shape[1] if len(shape) > 1 else 1
        groups = next((g for g in (4, 2, 3) if channels % g == 0), 0)
        choices = [
            f"m.softmax({x}, axis={axis})",
            f"m.rms_norm({x})",
            f"m.layer_norm({x})",
        ]
        if groups and groups != channels and self.divide("split"):
            choices.append(f"m.group_norm({x}, {groups})")
        if len(shape) > 1 and shape[0] > 2:
            choices.append(f"m.batch_norm({x})")
        if self.random.random() < 0.3:
            weight = self.input(shape[-1:])
            return f"m.rms_norm({x}, weight={weight})"
        return str(self.random.choice(choices))

    def view(self, x: str) -> str | None:
        """Axes permuted, split, added or sliced."""
        shape = self.values[x].shape
        if not shape:
            return None
        axis = int(self.random.integers(len(shape)))
        order = tuple(int(i) for i in self.random.permutation(len(shape)))
        choices = [f"m.transpose({x}, {order})"]
        if len(shape) < 4:
            choices.append(f"m.expand_dims({x}, {axis})")
        lead = next((p for p in (2, 3, 5, 7, 11, 13) if shape[axis] % p == 0), 0)
        if lead and lead != shape[axis] and len(shape) < 4 and self.divide("split"):
            split = (*shape[:axis], lead, shape[axis] // lead, *shape[axis + 1 :])
            choices.append(f"m.reshape({x}, {split})")
        if shape[axis] > 3 and self.divide("cut"):
            index = ", ".join([":"] * axis + [f"1:{shape[axis] - 1}"])
            choices.append(f"{x}[{index}]")
        return str(self.random.choice(choices))

    def concat(self, x: str) -> str | None:
        """A value joined with a new input."""
        shape = list(self.values[x].shape)
        wide = [i for i, e in enumerate(shape) if e > 1]
        if not wide or not self.divide("cut"):
            return None
        axis = int(self.random.choice(wide))
        shape[axis] = int(self.random.choice([1, *self.extents[:6]]))
        y = self.input(tuple(shape))
        return f"m.concat([{x}, {y}], axis={axis})"

    _STATEMENTS = (
        unary, unary, binary, binary, binary, matmul, matmul, reduction, norm, norm,
        view, concat,
    )  # fmt: skip

    def finish(self) -> tuple[str, dict[str, tuple[int, ...]]]:
        """The source, and the shapes of the inputs.

        Outputs are the values that nothing uses, the last three at most.
        """
        made = [line.partition(" ")[0] for line in self.lines]
        outputs = [name for name in made if name not in self.used][-3:]
        parameters = ", ".join(["m", *self.shapes])
        body = [*self.lines, f"return ({', '.join(outputs)},)"]
        source = f"def program({parameters}):\n" + "".join(f"    {b}\n" for b in body)
        return source, self.shapes


def _names(expression: str) -> set[str]:
    return set(compile(expression, "<expression>", "eval").co_names)


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return len(np.broadcast_shapes(a, b)) <= 4
    except ValueError:
        return False
