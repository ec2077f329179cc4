"""What a verification found, in a form that can be stored and checked again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from mirage_dsl.core.files import typed
from mirage_dsl.ir.graph import KernelGraph

Sizes = tuple[tuple[str, int], ...]
"""Extents by dim name, sorted."""

Method = Literal["fields", "exact"]
Verdict = Literal["equal", "different", "unknown"]

Nested = tuple[Any, ...] | float


@dataclass(frozen=True)
class Counterexample:
    """Inputs on which a candidate and its program differ.

    Attributes:
        sizes: The small extents at which the inputs were drawn.
        inputs: Their values, nested as NumPy's `tolist` nests them.
        output: Number of the output that differs.
        index: Index of the first element that differs.
        expected: The program's value there, in float64.
        found: The candidate's.
        expected_output: The program's whole output.
        found_output: The candidate's whole output.
    """

    sizes: Sizes
    inputs: tuple[Nested, ...]
    output: int
    index: tuple[int, ...]
    expected: float
    found: float
    expected_output: Nested
    found_output: Nested

    def __str__(self) -> str:
        at = ", ".join(f"{n} = {e}" for n, e in self.sizes)
        place = ", ".join(map(str, self.index))
        found, expected = _told_apart(self.found, self.expected)
        return (
            f"output {self.output} at [{place}] is {found}, "
            f"the program gives {expected} (with {at})"
        )


def _told_apart(first: float, second: float) -> tuple[str, str]:
    """Two numbers with as few digits, from six, as show that they differ."""
    for digits in range(6, 17):
        texts = f"{first:.{digits}g}", f"{second:.{digits}g}"
        if texts[0] != texts[1]:
            return texts
    return repr(first), repr(second)


@dataclass(frozen=True)
class Stability:
    """Whether a candidate is about as accurate as its program in floating point.

    Attributes:
        ok: It errs no more than a small factor over the program, and is finite
            wherever the program is.
        worst_ratio: The largest ratio of the two errors; infinite where only the
            candidate's result is not finite.
        reason: What was found, in words.
    """

    ok: bool
    worst_ratio: float
    reason: str

    @property
    def is_unknown(self) -> bool:
        """Whether no run said anything."""
        return not self.ok and self.worst_ratio == 0.0


@dataclass(frozen=True)
class Sampled:
    """What a comparison at the true extents, of a few elements, came to.

    Attributes:
        elements: How many elements of the outputs were equal.
        difference: Where one differs, in words; None where none does.
        reason: Why none was compared, in words.
        thinned: Whether long dims kept only a few of their elements.
    """

    elements: int = 0
    difference: str | None = None
    reason: str = ""
    thinned: bool = False

    def __str__(self) -> str:
        if self.difference is not None:
            return f"at the true extents {self.difference}"
        if self.elements:
            found = f"equal in {self.elements} sampled elements at the true extents"
            return f"{found}, long dims thinned" if self.thinned else found
        return f"not compared at the true extents: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The result of `verify`.

    Attributes:
        equivalent: Every trial agreed on whole outputs.
        error_bound: A wrong candidate passes with at most this probability; 1 where
            no trial was decided.
        rests_on: What the bound rests on.
        trials: Number of trials that agreed.
        primes: The chains of primes, low to top.
        seed: What all random choices follow from.
        counterexample: Inputs that show the difference, where floats show it.
        stability: The floating-point verdict; None where it was not asked for.
        sizes: The extents of each chain's trials.
        candidate_hash: Canonical hash of the candidate.
        program_hash: Canonical hash of the program.
        reason: The verdict in words.
        method: Evaluation over finite fields, or exact normal forms.
        verdict: Equal, different, or neither could be found.
        sampled: The comparison at the true extents; None where there was none.
    """

    equivalent: bool
    error_bound: float
    rests_on: str
    trials: int = 0
    primes: tuple[tuple[int, ...], ...] = ()
    seed: int
    counterexample: Counterexample | None = None
    stability: Stability | None = None
    sizes: tuple[Sizes, ...] = ()
    candidate_hash: str
    program_hash: str
    reason: str
    method: Method = "fields"
    verdict: Verdict = "unknown"
    sampled: Sampled | None = None

    @property
    def ok(self) -> bool:
        """Equivalent, and stable as far as that was tested."""
        return self.equivalent and (self.stability is None or self.stability.ok)

    def __str__(self) -> str:
        lines = [self.reason]
        if self.equivalent:
            lines[0] += f" (error <= {self.error_bound:.1e}; {self.rests_on})"
        if self.counterexample is not None:
            lines.append(str(self.counterexample))
        if self.sampled is not None:
            lines.append(str(self.sampled))
        if self.stability is not None:
            lines.append(self.stability.reason)
        return "\n".join(lines)

    def recheck(self, candidate: KernelGraph, program: KernelGraph) -> bool:
        """Whether it is of these graphs and comes out the same again."""
        # The verifier makes certificates, so it cannot be imported above.
        from mirage_dsl.verify.verifier import recheck

        return recheck(self, candidate, program)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Certificate:
        """The certificate of which `data` is the `to_dict`, from JSON or not.

        Raises:
            CacheError: It is that of none.
        """
        return typed(cls, dict(data))


def nested_tuples(value: Any) -> Any:
    """Lists, as JSON and NumPy give them, made tuples all the way down."""
    if isinstance(value, list | tuple):
        items = cast("list[Any] | tuple[Any, ...]", value)
        return tuple(nested_tuples(v) for v in items)
    return value
