"""Random Python functions on tensors: what a kernel of them computes is PyTorch's.

A function is made statement by statement and run as it grows, so that most statements
fit the shapes that there are; it knows PyTorch and Python only.  Then the whole
function runs in eager PyTorch in float64, and as a kernel.  Both must agree to the last
bits of the storage dtype, in NaN and infinities too, or the kernel refuses.
"""

from __future__ import annotations

import linecache
import os
import re
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError
from tests.fuzz.attacks import Fault

HELPERS = """
def bumped(t, s):
    t += s
    return t

def halves(t):
    return t.chunk(2, -1)

def centred(t):
    t = t - t.mean(-1, keepdim=True)
    t /= t.abs().amax(-1, keepdim=True) + 1
    return t

def with_first_cleared(t):
    t[0] = 0
    return t

def product(*ts):
    found = ts[0]
    for t in ts[1:]:
        found = found * t
    return found
"""
DTYPES = (torch.float32,) * 8 + (torch.float16, torch.bfloat16)
ROUNDING = {torch.float32: 2e-7, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Twice the rounding of a result to its dtype, relative to it."""
EXACT = 3e-8
"""Twice the root of float64's rounding, as a root takes it that a difference left."""
WHOLE_ROAD = 50
"""One in so many functions is searched, and its kernels are interpreted."""
MOST_STATEMENTS = 9
EXTENTS = (1, 2, 3, 4, 6, 8)

UNARY = """
torch.exp({u}.clamp(max=5)); torch.tanh({u}); torch.sigmoid({u}); F.relu({u}); {u}.abs()
-{u}; torch.sqrt({u}.abs()); torch.square({u}); torch.rsqrt({u}.abs() + 0.5)
torch.log({u}.abs() + 0.1); torch.erf({u}); F.gelu({u}); F.silu({u})
1 / ({u} * {u} + 1); F.leaky_relu({u}, 0.1); F.softplus({u}); {u} ** 2; {u} ** 3
{u} ** 1; {u} * 0.25; {u} + 1.5; 2 - {u}; {u}.clamp(-1, 1); F.elu({u}); {u} / 3
F.hardtanh({u}); +{u}
"""
BINARY = """
{u} + {v}; {u} - {v}; {u} * {v}; {u} / ({v}.abs() + 0.5); torch.maximum({u}, {v})
torch.minimum({u}, {v}); torch.where({u} > {v}, {u}, {v}); torch.where({m}, {u}, {v})
{u} * {m}; {u}.masked_fill({m}, 0.5); torch.lerp({u}, {v}, 0.25); product({u}, {v}, {v})
torch.add({u}, {v}, alpha=2); torch.addcmul({u}, {v}, {v}); {u} @ {v}; {u} @ {v}.mT
torch.einsum('ij,kj->ik', {u}, {v}); torch.cat([{u}, {v}], {a}); F.linear({u}, {v})
torch.stack([{u}, {v}], {a}); torch.cat([{u}], 0)
F.mse_loss({u}, {v}, reduction='none')
"""
REDUCTIONS = """
{u}.sum({a}); {u}.mean({a}, keepdim=True); {u}.amax({a}, keepdim=True); {u}.amin({a})
torch.softmax({u}, {a}); F.log_softmax({u}, {a}); F.layer_norm({u}, {u}.shape[-1:])
F.rms_norm({u}, {u}.shape[-1:], None, 1e-5); {u}.var({a}, correction=0)
torch.logsumexp({u}.clamp(-90, 90), {a}); {u}.sum(); {u}.mean(); centred({u})
F.normalize({u}, dim={a}); {u}.norm(dim={a}); torch.softmax({u} * 100, -1)
torch.softmax({u}.masked_fill({m}, float('-inf')), -1)
torch.softmax({u}.masked_fill({m}, torch.finfo(D).min), -1); torch.amax({u}, (0, -1))
"""
VIEWS = """
{u}[{i}]; {u}[{i}]; {u}[{i}]; {u}.T; {u}.mT; {u}.transpose(0, -1); {u}.reshape({r})
{u}.reshape({r}); {u}.view({r}); {u}.flatten(); {u}.flatten(0, 1); {u}.ravel()
{u}.unsqueeze({a}); {u}[None]; {u}.unsqueeze(0).squeeze(0); {u}.squeeze()
{u}.chunk(2, {a})[{c}]; {u}.split(2, {a})[{c}]; {u}.unbind({a})[{c}]
{u}.narrow({a}, 1, 1); {u}.contiguous(); {u}.detach(); {u}[...]; {u}.movedim(0, -1)
{u}.swapaxes(0, -1); halves({u})[{c}]; {u}.to({u}.dtype); {u}.to(S, copy=True)
{u}.to(WIDE, copy=True); {u}.data; {u}.select({a}, {c}); {u}.expand(2, *{u}.shape)
{u}.clone(); {u}.mT.contiguous(); {u}.reshape({u}.shape); {u}.permute({p})
{u}.expand_as({v}); {u}.unflatten(-1, (-1, 2))
"""
CHANGES = """
{w} += {v}; {w} -= {v}; {w} *= {v}; {w} /= {v}.abs() + 1; {w} += 1; {w} *= 0.5
{w} **= 2; {w}.add_({v}); {w}.sub_({v}, alpha=2); {w}.mul_({v}); {w}.tanh_()
{w}.relu_().add_(1); {w}.clamp_(-1, 1); {w}.masked_fill_({m}, 0.25); {w}.zero_()
{w}.fill_(2.5); {w}.copy_({v}); {w}[{i}] = {v}; {w}[{i}] = 0.5; {w}[{i}] += {v}
{w}[{i}] *= 2; {w}[{i}] = {v}[{j}]; {w}[{i}] -= {v}[{j}]; {w}[{m}] = 0.75; {w}[{m}] *= 2
{w}[{w} > 0.5] = -1; F.relu({w}, inplace=True); torch.add({v}, {v}, out={w})
{w}[:] = {v}; {w}[...] = 1.25; torch.neg_({w}); {w}.neg_(); {w}.T[{c}] += 1
{w}.view(-1)[{c}] = 3; {w}.reshape(-1).mul_(2); bumped({w}, {v}); bumped({w}[{i}], 1)
with_first_cleared({w}); {w}.lerp_({v}, 0.5); {w}.addcmul_({v}, {v}); {w}.unsqueeze_(0)
{w}.t_(); {w}.data += 1; {w}.detach().mul_(2); {w}.contiguous().add_(1); {w}.exp_()
{w}.flatten().sub_(1); {w}.transpose(0, -1).add_({v}); {w}.mT.mul_(2); {w}[None].add_(1)
for t in {w}.chunk(2, -1): t += 1; for t in {w}.unbind(0): t.mul_(3); {w}.sigmoid_()
for i in range({w}.shape[0]): {w}[i] += i; halves({w})[0].mul_(-1); {w}.abs_().sqrt_()
"""


def _phrases(text: str) -> list[str]:
    """Statements between semicolons and ends of lines."""
    return [p.strip() for p in re.split(r"[;\n]", text) if p.strip()]


KINDS = {
    "unary": (_phrases(UNARY), 3),
    "binary": (_phrases(BINARY), 4),
    "reduction": (_phrases(REDUCTIONS), 2),
    "view": (_phrases(VIEWS), 4),
    "change": (_phrases(CHANGES), 5),
}


@dataclass
class _Author:
    """Writes a function, and runs what it has so far in float64.

    Attributes:
        random: Where it takes its choices from.
        names: Names of the arguments.
        scope: The function's variables by name, and its globals.
        lines: The body.
        changes: Whether the body changes a tensor in place.
        views: Whether it views one.
        ended: Whether the last statement raises.
    """

    random: Random
    names: list[str]
    scope: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    changes: bool = False
    views: bool = False
    ended: bool = False

    def tensors(self) -> dict[str, torch.Tensor]:
        """The floating-point tensors that there are."""
        return {
            n: v
            for n, v in self.scope.items()
            if isinstance(v, torch.Tensor) and v.is_floating_point()
        }

    def written(self) -> list[str]:
        """Tensors that are not in the arguments' memory; rarely, all of them."""
        found = self.tensors()
        if self.random.random() < 0.01:
            return list(found)
        theirs = {self.scope[n].untyped_storage().data_ptr() for n in self.names}
        return [
            n for n, v in found.items() if v.untyped_storage().data_ptr() not in theirs
        ]

    def grow(self) -> bool:
        """Add one statement; False if it did not fit."""
        weights = [weight for _, weight in KINDS.values()]
        (kind,) = self.random.choices(list(KINDS), weights)
        phrase = self._filled(self.random.choice(KINDS[kind][0]))
        if phrase is None:
            return False
        if kind != "change":
            again = self.random.random() < 0.15 and len(self.tensors()) > 3
            name = self.random.choice(list(self.tensors())) if again else self._fresh()
            phrase = f"{name} = {phrase}" if name not in self.names else phrase
        if self.random.random() < 0.08:
            phrase = self._under_control(phrase)
        if not self._runs(phrase):
            return False
        self.lines.append(phrase)
        self.changes |= kind == "change"
        self.views |= kind == "view"
        return True

    def _fresh(self) -> str:
        return f"t{len(self.lines)}"

    def _under_control(self, phrase: str) -> str:
        """The same in Python's control flow."""
        if phrase.startswith("for "):
            return phrase
        u = self.random.choice(list(self.tensors()))
        return self.random.choice(
            (
                f"for _ in range(2): {phrase}",
                f"if {u}.shape[0] > 0: {phrase}",
                f"if {u}.ndim: {phrase}",
                f"with torch.no_grad(): {phrase}",
            )
        )

    def _filled(self, phrase: str) -> str | None:
        """The phrase with names and numbers for its gaps."""
        random, names = self.random, list(self.tensors())
        written = self.written() if "{w}" in phrase else []
        if "{w}" in phrase and not written:
            return None
        u, w = random.choice(names), random.choice(written or names)
        changed = w if "{w}" in phrase else u
        if not self.scope[changed].ndim and ("{a}" in phrase or "(0, -1)" in phrase):
            return None
        v = self._like(changed)
        shape = self.scope[changed].shape
        return phrase.format(
            u=u,
            v=v,
            w=w,
            a=random.randrange(-len(shape), len(shape)) if shape else 0,
            c=random.choice((0, 0, 1)),
            i=self._index(shape),
            j=self._index(self.scope[v].shape),
            m=self._mask(changed),
            p=tuple(random.sample(range(len(shape)), len(shape))),
            r=self._shape(shape),
        )

    def _like(self, name: str) -> str:
        """Another tensor, most often one that fits."""
        tensors, shape = self.tensors(), self.scope[name].shape
        near = [n for n, t in tensors.items() if t.shape == shape]
        wide = [n for n, t in tensors.items() if t.ndim < len(shape)]
        return self.random.choice((near or list(tensors)) * 2 + wide + list(tensors))

    def _mask(self, name: str) -> str:
        other = self._like(name)
        test = self.random.choice(
            ("{u} > 0.1", "{v} < {u}", "~({u} >= 0.3)", "({u} > -1) & ({v} < 1)")
        )
        return f"({test.format(u=name, v=other)})"

    def _index(self, shape: Sequence[int]) -> str:
        """A basic index."""
        random = self.random
        items: list[str] = []
        for extent in shape[: random.randint(1, max(1, len(shape)))]:
            start = random.randrange(extent)
            stop = random.randint(start + 1, extent)
            whole = extent % 2 == 0 and random.random() < 0.5
            items.append(
                random.choice(
                    (f"{start}", f"{start}:{stop}", f"{start}:{stop}", f":{stop}")
                    + ((":", "::2", "1::2") if whole else (":", f"-{extent - start}:"))
                )
            )
        if items and random.random() < 0.15:
            items.insert(0, "...") if len(items) == 1 else items.insert(1, "None")
        return ", ".join(items) or "..."

    def _shape(self, shape: Sequence[int]) -> str:
        """Another shape of as many elements."""
        total = 1
        for extent in shape:
            total *= extent
        found: list[int] = []
        while total > 1 and len(found) < 3 and self.random.random() < 0.8:
            factor = self.random.choice([n for n in EXTENTS if total % n == 0])
            found.append(factor)
            total //= factor
        found.insert(self.random.randint(0, len(found)), total)
        return ", ".join(map(str, found))

    def _runs(self, statement: str) -> bool:
        """Run a statement; what is not kept leaves no names behind."""
        before = dict(self.scope)
        try:
            exec(statement, self.scope)
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError):
            # What raises may be kept as a function's last statement.
            kept = self.ended = self.random.random() < 0.004
        else:
            tensors = self.tensors().values()
            kept = all(0 < t.numel() <= 4096 and t.ndim <= 4 for t in tensors)
        if not kept or self.ended:
            self.scope.clear()
            self.scope.update(before)
        return kept

    def returned(self) -> list[str]:
        """What the function returns: results, and views of them."""
        found = [n for n in self.tensors() if n not in self.names]
        return self.random.sample(found, min(len(found), self.random.randint(1, 4)))


@dataclass(frozen=True)
class _Case:
    """A function and its arguments.

    Attributes:
        source: Its text, with helpers.
        arguments: In the storage dtype.
        dtype: That dtype.
        label: What is special.
    """

    source: str
    arguments: tuple[torch.Tensor, ...]
    dtype: torch.dtype
    label: str

    def function(self, storage: torch.dtype) -> Callable[..., Any]:
        """The function for arguments of a dtype; errors can show its lines."""
        file = f"<function {zlib.crc32(self.source.encode())}>"
        linecache.cache[file] = (
            len(self.source),
            None,
            self.source.splitlines(True),
            file,
        )
        scope = _globals(self.dtype, storage)
        exec(compile(self.source, file, "exec"), scope)
        return scope["function"]

    def __str__(self) -> str:
        said = [f"{self.source}", f"dtype {self.dtype}"]
        return "\n".join((*said, *(f"{a!r}" for a in self.arguments)))


def _globals(dtype: torch.dtype, storage: torch.dtype) -> dict[str, Any]:
    """What a function reads: dtypes, of which float64 has its own instead."""
    wide = torch.float64 if storage == torch.float64 else torch.float32
    return {"torch": torch, "F": F, "D": dtype, "S": storage, "WIDE": wide}


def attack(random: Random) -> str:
    """One random function: what the kernel computes is right, or refused."""
    with warnings.catch_warnings():
        # Of eager's: division by zero and resized results.
        warnings.simplefilter("ignore")
        case = _case(random)
        label = _judged(case)
        if random.randrange(WHOLE_ROAD) == 0 and label.startswith("right"):
            return _whole_road(case)
        return label


def _case(random: Random) -> _Case:
    dtype = random.choice(DTYPES)
    generator = torch.Generator().manual_seed(random.getrandbits(40))
    names = ["x", "y", "z"][: random.randint(1, 3)]
    base = [random.choice(EXTENTS) for _ in range(random.randint(1, 3))]
    arguments: list[torch.Tensor] = []
    special = random.random() < 0.2
    for _ in names:
        shape = base if random.random() < 0.6 else base[random.randrange(len(base)) :]
        made = torch.randn(shape, generator=generator)
        if random.random() < 0.1 and made.ndim > 1:
            made = made.mT.contiguous().mT
        if special:
            _spoil(made, random, dtype)
        arguments.append(made.to(dtype))
    author = _Author(random, names, {})
    author.scope.update(_globals(dtype, torch.float64))
    exec(HELPERS, author.scope)
    author.scope.update(
        {n: a.double().clone() for n, a in zip(names, arguments, strict=True)}
    )
    wanted = random.randint(2, MOST_STATEMENTS)
    tries = 0
    while len(author.lines) < wanted and tries < 6 * wanted and not author.ended:
        tries += 1
        author.grow()
    returned = author.returned()
    if not returned:
        author.lines.append("t = x * 1")
        returned = ["t"]
    lines = [*author.lines, f"return {', '.join(returned)}"]
    body = "\n".join(f"    {line}" for line in lines)
    source = f"{HELPERS}\ndef function({', '.join(names)}):\n{body}\n"
    kinds = [("changes", author.changes), ("views", author.views), ("special", special)]
    label = next((name for name, holds in kinds if holds), "plain")
    return _Case(source, tuple(arguments), dtype, label)


def _spoil(x: torch.Tensor, random: Random, dtype: torch.dtype) -> None:
    """Put special values into an argument."""
    finfo = torch.finfo(dtype)
    match random.randrange(6):
        case 0:
            x[random.randrange(len(x))] = random.choice((1000.0, 0.0, -3.0))
        case 1:
            x *= random.choice((100.0, 1e-4))
        case _:
            values = (
                float("inf"),
                float("-inf"),
                float("nan"),
                finfo.min,
                finfo.max,
                0,
            )
            for _ in range(random.randint(1, 3)):
                at = tuple(random.randrange(extent) for extent in x.shape)
                x[at] = random.choice(values)


def _not_raised(case: _Case, wanted: Exception) -> str:
    """TrialWorker that a kernel computes what eager mode refuses."""
    texts = ("have same dtype", "have the same dtype", "expected scalar type")
    if any(text in str(wanted) for text in texts):
        # The operator @ promotes, as NumPy's does.
        return "right: promoted"
    raise Fault(f"eager raises, the kernel does not: {wanted}\n{case}")


def _as_eager_takes(case: _Case) -> tuple[torch.Tensor, ...]:
    """The arguments: row-major where eager refuses a view of them as they lie.

    Kernels take any strides.
    """
    wanted = _or_raised(case.function(case.dtype), [_copy(a) for a in case.arguments])
    if isinstance(wanted, RuntimeError) and "view size is not" in str(wanted):
        return tuple(a.contiguous() for a in case.arguments)
    return case.arguments


def _judged(case: _Case) -> str:
    """Run it in eager mode and as a kernel, and compare."""
    function = case.function(torch.float64)
    arguments = _as_eager_takes(case)
    given = [_copy(a).double() for a in arguments]
    wanted = _or_raised(function, given)
    changed = any(
        not torch.equal(a.nan_to_num(0.5), b.double().nan_to_num(0.5))
        for a, b in zip(given, case.arguments, strict=True)
    )
    stored = _or_raised(case.function(case.dtype), [_copy(a) for a in arguments])
    if isinstance(stored, Exception):
        # As when a product's operands are of two dtypes.
        wanted = stored
    try:
        found = _tuple(mirage.kernel(case.function(case.dtype))(*case.arguments))
    except MirageError as error:
        if isinstance(wanted, Exception):
            return "raises in both"
        return f"refused: {'argument' if changed else _reason(error)}"
    except (IndexError, ValueError, TypeError) as error:
        # The function's own, as of a list that is too short.
        if type(error) is type(wanted):
            return "raises in both"
        raise
    if isinstance(wanted, Exception):
        return _not_raised(case, wanted)
    if changed:
        raise Fault(f"a changed argument was not seen\n{case}")
    for mine, right in zip(found, stored, strict=True):
        if mine.dtype != right.dtype:
            raise Fault(f"a result is {mine.dtype}, eager's {right.dtype}\n{case}")
    _compare(case, function, found, wanted)
    return f"right: {case.label}"


def _or_raised(function: Callable[..., Any], arguments: Sequence[torch.Tensor]) -> Any:
    """Eager's results, or what it raises."""
    try:
        return _tuple(function(*arguments))
    except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
        return error


def _copy(x: torch.Tensor) -> torch.Tensor:
    """A copy of the same strides."""
    return x.clone(memory_format=torch.preserve_format)


def _tuple(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def _reason(error: MirageError) -> str:
    """The message without what is of this case alone."""
    words = re.sub(r"\(.*?\)|\[.*?\]|[-\d]+|'.*?'", "", error.message).split()
    return f"{type(error).__name__} {' '.join(words[:7])}"


def _compare(
    case: _Case,
    function: Callable[..., Any],
    found: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
) -> None:
    """Hold results to eager's; what eager itself cannot tell counts as right."""
    if len(found) != len(wanted):
        raise Fault(f"{len(found)} results, eager has {len(wanted)}\n{case}")
    for at, (mine, right) in enumerate(zip(found, wanted, strict=True)):
        if mine.shape != right.shape:
            raise Fault(f"result {at}: {mine.shape}, eager {right.shape}\n{case}")
        # Float64 does not show what eager rounds on its way to a wider dtype.
        coarse = ROUNDING[case.dtype] if mine.dtype != case.dtype else 0.0
        limit = coarse * right.abs()
        if not _near(mine, right, limit):
            unsure = _spread(case, function, at)
            if not _near(mine, right, limit + unsure):
                raise Fault(f"result {at}:\n{mine}\neager:\n{right}\n{case}")


def _near(mine: torch.Tensor, right: torch.Tensor, unsure: torch.Tensor) -> bool:
    """Whether a result is eager's, rounded, where eager is sure of it."""
    dtype = mine.dtype
    rounded = right.to(dtype).double()
    mine = mine.double()
    finite = right[right.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    allowed = ROUNDING[dtype] * right.abs() + EXACT * (1 + scale) + unsure
    smallest = torch.finfo(dtype).tiny
    close = (mine - right).abs() <= allowed + smallest
    # At the end of a dtype's range, rounding decides.
    most = torch.finfo(dtype).max
    border = right.isfinite() & ((right.abs() / most - 1).abs() < ROUNDING[dtype])
    same = (mine == rounded) | (mine.isnan() & rounded.isnan())
    return bool((close | same | border | unsure.isnan() | unsure.isinf()).all())


def _spread(case: _Case, function: Callable[..., Any], at: int) -> torch.Tensor:
    """How far eager's result moves where its arguments move in float64's last bits."""
    generator = torch.Generator().manual_seed(0)
    runs: list[torch.Tensor] = []
    for step in (0, 1e-13, 1e-13, 1e-13):
        moved = [_copy(x).double() for x in case.arguments]
        for x in moved:
            x *= 1 + step * torch.randn(x.shape, generator=generator, dtype=x.dtype)
        runs.append(_tuple(function(*moved))[at])
    total = torch.zeros_like(runs[0])
    for run in runs[1:]:
        same = (run == runs[0]) | (run.isnan() & runs[0].isnan())
        total += torch.where(same, 0, run - runs[0]).abs()
    return 1e3 * total


def _whole_road(case: _Case) -> str:
    """Search a function, and interpret the kernels of what is best."""
    if case.dtype != torch.float32 or "special" in case.label:
        return f"right: {case.label}"
    function = case.function(torch.float64)
    exact = _tuple(function(*(_copy(a).double() for a in case.arguments)))
    with _interpreted():
        kernel = mirage.kernel(budget_seconds=1)(case.function(case.dtype))
        found = _tuple(kernel(*(_copy(a) for a in case.arguments)))
    eager = _tuple(case.function(case.dtype)(*(_copy(a) for a in case.arguments)))
    for mine, rough, right in zip(found, eager, exact, strict=True):
        sure = rough.isfinite() & right.isfinite()
        if not bool(mine[sure].isfinite().all()):
            raise Fault(f"not finite where eager is:\n{mine}\n{rough}\n{case}")
        scale = float(right[sure].abs().max()) if bool(sure.any()) else 0.0
        error = (rough.double() - right)[sure].abs()
        own = float(error.max()) if error.numel() else 0.0
        mistake = (mine.double() - right)[sure].abs()
        if mistake.numel() and float(mistake.max()) > 10 * own + 1e-5 * (0.05 + scale):
            raise Fault(f"interpreted:\n{mine}\neager:\n{rough}\n{case}")
    return "right: whole road"


@contextmanager
def _interpreted() -> Any:
    names = ("MIRAGE_DSL_INTERPRET", "TRITON_INTERPRET")
    before = {n: os.environ.get(n) for n in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
