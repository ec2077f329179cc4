"""Runs the assembly of emitted functions on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]


def halves(words: Words) -> NDArray[np.float16]:
    """Two numbers of f16 for each word, the lower bits first."""
    return words.astype("<u4").view("<f2").reshape(-1, 2)


def _permuted(a: Words, b: Words, selector: Words) -> Words:
    found = np.stack([x.astype("<u4").view("u1").reshape(-1, 4) for x in (a, b)], 1)
    picks = [int(selector[0]) >> shift & 7 for shift in (0, 4, 8, 12)]
    return np.ascontiguousarray(found.reshape(-1, 8)[:, picks]).view("<u4")[:, 0]


def _pair(numbers: NDArray[np.float16]) -> Words:
    return np.ascontiguousarray(numbers.astype("<f2")).view("<u4")[:, 0]


def _fused(a: Words, b: Words, c: Words) -> Words:
    x, y, z = (halves(v).astype(np.float64) for v in (a, b, c))
    return _pair((x * y + z).astype(np.float16))


def _masked(a: Words, b: Words, c: Words, table: Words) -> Words:
    assert int(table[0]) == 0xEA, "the table of (a & b) | c"
    return (a & b) | c


def _moved(a: Words) -> Words:
    return a


def _less(a: Words, b: Words) -> Words:
    return _pair(halves(a) - halves(b))


INSTRUCTIONS: Mapping[str, Callable[..., Words]] = {
    "mov.b32": _moved,
    "xor.b32": np.bitwise_xor,
    "shr.u32": np.right_shift,
    "prmt.b32": _permuted,
    "lop3.b32": _masked,
    "sub.f16x2": _less,
    "fma.rn.f16x2": _fused,
}


def run_assembly(
    text: str,
    words: Words,
    constants: Sequence[float],
    results: int = 2,
    *others: Words,
) -> list[Words]:
    """The results of the assembly of a function, of words with four bytes each.

    Args:
        text: The assembly.
        words: The first operand.
        constants: The last operands, two numbers of f16 each.
        results: How many there are.
        *others: Operands between them.
    """
    given = (words, *others)
    registers = {f"${at}": own for at, own in enumerate(given, results)}
    for at, constant in enumerate(constants, results + len(given)):
        pair = np.full((len(words), 2), constant, np.float16)
        registers[f"${at}"] = pair.view("<u4")[:, 0]

    def value(name: str) -> Words:
        if name in registers:
            return registers[name]
        return np.full_like(words, int(name, 16 if "x" in name else 10))

    for line in re.findall(r"^\s*([a-z].*);$", text, re.MULTILINE):
        name, rest = line.split(" ", 1)
        target, *operands = (o.strip() for o in rest.split(","))
        registers[target] = INSTRUCTIONS[name](*map(value, operands))
    return [registers[f"${at}"] for at in range(results)]
