"""Floats from bytes: functions that emitted modules call for `tile.combined.packed`.

A number of a few bits, put into the mantissa of 1024.0 in f16, is 1024 more than it
was, so a mask and a subtraction convert two numbers at a time.  Inline assembly says
so; without it the compiler takes every byte to a register of its own, and shifts, masks
and converts it there, which takes longer than reading it.  Triton's interpreter runs no
assembly: there the plain formula computes the same.

The assembly is said to have effects.  The compiler would else take the bytes to the
threads of the matrix unit first, each by itself, since they are shorter there; so they
are converted where sixteen of them were loaded at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from mirage_dsl.backends.triton.lowering.source import Variable
from mirage_dsl.core.types import i8
from mirage_dsl.tile.combined import Unpacked

COMPILED = """
# Whether kernels are compiled: Triton's interpreter runs no assembly.
COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
"""
"""What a module with such functions defines."""

_UNPACK = '''
@triton.jit
def {name}(a, less):
    """{what}, less a number, in f16."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            """{{
            .reg .b32 t, u;
{assembly}
            }}""",
            "=&r,=&r,r,r,r",
            [a, tl.full(a.shape, {offset}, tl.float16)],
            dtype=tl.float16,
            is_pure=False,
            pack=4,
        )
    return ({plain} - less).to(tl.float16)
'''
"""A function of four bytes, of which each register of results holds two."""

PAIRS = """\
            prmt.b32 t, $2, 0, 0x4140;
            prmt.b32 u, $2, 0, 0x4342;"""
"""Bytes, two in a register."""


def _halves(mask: str, last: str) -> str:
    """The assembly of half a byte: a mask and the bits of 1024, and then `last`."""
    masked = f"lop3.b32 {{0}}, {{0}}, {mask}, 0x64006400, 0xea;"
    lines = [masked.format("t"), masked.format("u")]
    lines += [last.format(0, "t", 3), last.format(1, "u", 4)]
    return "\n".join([PAIRS, *(f"            {line}" for line in lines)])


def _bytes(given: str) -> str:
    """The assembly of whole bytes, which stand under the bits of 1024."""
    return f"""\
{given}
            prmt.b32 u, t, 0x64646464, 0x4342;
            prmt.b32 t, t, 0x64646464, 0x4140;
            sub.f16x2 $0, t, $3;
            sub.f16x2 $1, u, $4;"""


UNPACKING: Mapping[str, str] = MappingProxyType(
    {
        "kept": '''
@triton.jit
def kept(a):
    """The same numbers of 16 bits, made by the threads that loaded them."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [a], dtype=a.dtype, is_pure=False, pack=2
        )
    return a
''',
        "low_halves": _UNPACK.format(
            name="low_halves",
            what="The lower four bits of bytes",
            assembly=_halves("0x000f000f", "sub.f16x2 ${0}, {1}, ${2};"),
            offset="1024.0 + less",
            plain="(a & 15).to(tl.float32)",
        ),
        "high_halves": _UNPACK.format(
            name="high_halves",
            what="The higher four bits of bytes",
            # They stand four bits higher, so 1024 is 64 there.
            assembly="            .reg .b32 s;\n            mov.b32 s, 0x2c002c00;\n"
            + _halves("0x00f000f0", "fma.rn.f16x2 ${0}, {1}, s, ${2};"),
            offset="-64.0 - less",
            plain="((a >> 4) & 15).to(tl.float32)",
        ),
        "unsigned": _UNPACK.format(
            name="unsigned",
            what="Bytes without a sign",
            assembly=_bytes("            mov.b32 t, $2;"),
            offset="1024.0 + less",
            plain="a.to(tl.float32)",
        ),
        "signed": _UNPACK.format(
            name="signed",
            what="Bytes with a sign",
            assembly=_bytes("            xor.b32 t, $2, 0x80808080;"),
            offset="1152.0 + less",
            plain="a.to(tl.float32)",
        ),
    }
)
"""The functions, by their names."""


def unpacked_texts(part: Unpacked, source: Variable) -> Iterator[tuple[str, str]]:
    """What computes parts of a tile of bytes, each with a word for it."""
    if part.part == "byte":
        whole = "signed" if source.dtype == i8 else "unsigned"
        yield "f16", f"{whole}({source.name}, {float(part.less)})"
    if part.part in ("low", "both"):
        yield "low", f"low_halves({source.name}, {float(part.less)})"
    if part.part in ("high", "both"):
        yield "high", f"high_halves({source.name}, {float(part.less)})"


__all__ = ["COMPILED", "UNPACKING", "unpacked_texts"]
