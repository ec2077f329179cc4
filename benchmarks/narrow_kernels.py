"""Gated MLPs of 8 rows with weights of 8 and of 4 bits, in Triton, by hand.

What `benchmarks.narrow` holds ours against: `silu(x @ gate) * (x @ up)`, three forms
for each format.  Two read four numbers along n (of 4 bits: four bytes, rows 2j and 2j +
1 in one) as a word of 32 bits, take words apart where the matrix unit wants them,
and multiply the four columns of words apart.  A tile has columns of both matrices, so x
is read once.  Each warp has its own rows of k: warps are the batch of the products, and
wait for nobody until `finish` adds what they have.

The *direct* forms load weights from memory into the registers of the matrix unit, some
steps ahead of their use; the *shared* ones leave it to Triton to copy them to shared
memory.  The *rows* forms do as the direct ones with matrices the other way round, whose
numbers along k are neighbours.  Constants of all of them:

    depth, width    rows and columns of a matrix
    warps           of a block
    run             words of one matrix that lie next to each other in a lane
    tiles           of 16 rows of k, in a load of a direct form
    piece           rows of k of each warp, in an iteration of a shared form
    tall            of 8 rows of both matrices, in a tile of a rows form
"""

import triton
import triton.language as tl

COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
"""The interpreter runs no assembly."""


# -- Words taken apart: two at a time, which are neighbours along k --------------------


def _f8_assembly() -> str:
    lines = [".reg .b32 a;", ".reg .b16 l, h;"]
    for pair, bytes_of in ((0, "0x5140"), (2, "0x7362")):
        lines += [f"prmt.b32 a, $4, $5, {bytes_of};", "mov.b32 {l, h}, a;"]
        lines += [f"cvt.rn.f16x2.e4m3x2 ${pair + i}, {'lh'[i]};" for i in range(2)]
    return "\n".join(["{", *lines, "}"])


def _i4_assembly() -> str:
    """By bits of f16: 1024 + q less 1032, and 64 + q less 72."""
    halves = (("f", "0x64006400", "b"), ("f0", "0x54005400", "c"))
    lines = [".reg .b32 a, b, c;", "mov.b32 b, 0x64086408;", "mov.b32 c, 0x54805480;"]
    for byte in range(4):
        bytes_of = byte | (4 + byte) << 8 | byte << 4 | (4 + byte) << 12
        lines += [f"prmt.b32 a, $8, $9, {bytes_of:#06x};"]
        for i, (mask, exponent, less) in enumerate(halves):
            out, mask = f"${2 * byte + i}", f"0x{mask:0>4}{mask:0>4}"
            lines += [f"lop3.b32 {out}, a, {mask}, {exponent}, 0xea;"]
            lines += [f"sub.f16x2 {out}, {out}, {less};"]
    return "\n".join(["{", *lines, "}"])


F8 = tl.constexpr(_f8_assembly())
I4 = tl.constexpr(_i4_assembly())
F16 = tl.constexpr("prmt.b32 $0, $2, $3, 0x5410;\nprmt.b32 $1, $2, $3, 0x7632;")


@triton.jit
def float_of(w, byte: tl.constexpr):
    b = (w >> (8 * byte) & 255).to(tl.uint8)
    return b.to(tl.float8e4nv, bitcast=True).to(tl.float16)


@triton.jit
def floats(w):
    """The four numbers of f8e4m3 of each word."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            F8, "=r,=r,=r,=r,r,r", [w], (tl.float16,) * 4, is_pure=True, pack=2
        )
    return float_of(w, 0), float_of(w, 1), float_of(w, 2), float_of(w, 3)


@triton.jit
def nibble_of(w, at: tl.constexpr):
    return ((w >> (4 * at) & 15) - 8).to(tl.float16)


@triton.jit
def nibbles(w):
    """Low and high halves of the four bytes of each word, less 8."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            I4, "=&r," * 8 + "r,r", [w], (tl.float16,) * 8, is_pure=True, pack=2
        )
    a, b, c, d = nibble_of(w, 0), nibble_of(w, 1), nibble_of(w, 2), nibble_of(w, 3)
    e, f, g, h = nibble_of(w, 4), nibble_of(w, 5), nibble_of(w, 6), nibble_of(w, 7)
    return a, b, c, d, e, f, g, h


@triton.jit
def pair_of(w, at: tl.constexpr):
    return (w >> (16 * at) & 65535).to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def pairs(w):
    """The two f16 of each word."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            F16, "=&r,=&r,r,r", [w], (tl.float16,) * 2, is_pure=True, pack=2
        )
    return pair_of(w, 0), pair_of(w, 1)


# -- Steps -----------------------------------------------------------------------------


@triton.jit
def f8_step(w, x, a, b, c, d):
    p, q, r, s = floats(w)
    return tl.dot(p, x, a), tl.dot(q, x, b), tl.dot(r, x, c), tl.dot(s, x, d)


@triton.jit
def i4_step(w, even, odd, a, b, c, d):
    p0, q0, p1, q1, p2, q2, p3, q3 = nibbles(w)
    a = tl.dot(q0, odd, tl.dot(p0, even, a))
    b = tl.dot(q1, odd, tl.dot(p1, even, b))
    c = tl.dot(q2, odd, tl.dot(p2, even, c))
    return a, b, c, tl.dot(q3, odd, tl.dot(p3, even, d))


@triton.jit
def finish(o, a, b, c, d, nb, one, width: tl.constexpr, warps: tl.constexpr,
           run: tl.constexpr, direct: tl.constexpr):  # fmt: skip
    """Sum over warps, gate and store.

    `tl.sum` over the warps would store sums with that axis innermost: all lanes of a
    warp meet one bank of shared memory.  A split on one bit of the warps has that bit
    in a thread, and what stands before it in registers: the other bits, the matrix.
    `one` is 1, which the compiler does not know: it would change the layout to store.
    Rows of a tile are (h, matrix, g) in direct forms, (matrix, j) in shared ones.
    """
    v = tl.join(tl.join(a, b), tl.join(c, d))
    if direct:
        v = tl.reshape(v, (warps // 2, 2, run, 2, 4, 8, 2, 2))
        v = tl.permute(v, (0, 3, 5, 4, 2, 7, 6, 1))
        v = tl.reshape(v, (warps // 2, 2, 8, 4 * run, 2, 2, 2))
    else:
        v = tl.reshape(v, (warps // 2, 2, 2, 4 * run, 8, 2, 2))
        v = tl.permute(v, (0, 2, 4, 3, 6, 5, 1))
    s, t = tl.split(v)
    both = tl.permute(tl.sum(s + t, 0), (4, 3, 2, 1, 0))
    gate, up = tl.split(both)
    low = tl.arange(0, 2)[:, None, None, None]
    high = tl.arange(0, 2)[None, :, None, None]
    j = tl.arange(0, 4 * run)[None, None, :, None]
    m = tl.arange(0, 8)[None, None, None, :]
    at = m * width + nb * (run * 16) + (j * 4 + low + high * 2) * one
    tl.store(o + at, (gate * tl.sigmoid(gate) * up).to(tl.float16))


# -- Direct: from memory into the operands' registers ----------------------------------


@triton.jit
def places(gate, up, nb, width: tl.constexpr, warps: tl.constexpr, tiles: tl.constexpr,
           far: tl.constexpr, run: tl.constexpr):  # fmt: skip
    """Pointers to words [c, g, warp, t, i, h], of lanes (c, g) of the matrix unit.

    Each has rows of k in a row, so that its part of x is one load; lanes g < 4 read the
    first matrix, the others the second.
    """
    g = tl.arange(0, 8)[None, :, None, None, None, None]
    h = tl.arange(0, run)[None, None, None, None, None, :]
    rows = tl.arange(0, 4)[:, None, None, None, None, None] * (tiles * 4)
    rows += tl.arange(0, warps)[None, None, :, None, None, None] * far
    rows += tl.arange(0, tiles)[None, None, None, :, None, None] * 4
    rows += tl.arange(0, 2)[None, None, None, None, :, None] * 2
    at = rows * (width // 4) + nb * (4 * run) + (g % 4) * run + h
    p = tl.where((g < 4) & (at >= 0), gate + at, up + at)
    p = tl.multiple_of(p, (4, 4, 4, 4, 4, 4 * run))
    return tl.max_contiguous(p, (1, 1, 1, 1, 1, run))


@triton.jit
def words(
    p, width: tl.constexpr, warps: tl.constexpr, tiles: tl.constexpr, run: tl.constexpr
):
    """Words of 16 tiles rows of each warp, as an operand [warp, (h, g), k]."""
    a = tl.load(p, eviction_policy="evict_first")
    b = tl.load(p + width // 4, eviction_policy="evict_first")
    w = tl.permute(tl.join(a, b), (2, 5, 1, 3, 4, 0, 6))
    return tl.reshape(w, (warps, run * 8, tiles * 16))


@triton.jit
def operand(x, warps: tl.constexpr, tiles: tl.constexpr):
    """[c, m, warp, rest] as the other operand, its rows in the order of `words`."""
    x = tl.permute(tl.reshape(x, (4, 8, warps, tiles, 2, 2)), (2, 3, 4, 0, 5, 1))
    return tl.reshape(x, (warps, tiles * 16, 8))


@triton.jit(do_not_specialize=("rounds", "one"))
def f8_direct(x, gate, up, o, rounds, one, depth: tl.constexpr, width: tl.constexpr,
              warps: tl.constexpr, run: tl.constexpr):  # fmt: skip
    """Steps of 32 rows of each warp; a round is two of them, loaded a round ahead.

    A loop of known length would be unrolled, and the loads moved to their use.
    """
    nb = tl.program_id(0)
    c = tl.arange(0, 4)[:, None, None, None]
    m = tl.arange(0, 8)[None, :, None, None]
    warp = tl.arange(0, warps)[None, None, :, None]
    px = x + m * depth + warp * 32 + c * 8 + tl.arange(0, 8)[None, None, None, :]
    p = places(gate, up, nb, width, warps, 2, 32, run)
    a = tl.zeros((warps, run * 8, 8), tl.float32)
    b = a
    c0 = a
    d = a
    x0 = operand(tl.load(px), warps, 2)
    w0 = words(p, width, warps, 2, run)
    x1 = operand(tl.load(px + warps * 32), warps, 2)
    w1 = words(p + warps * 32 * (width // 4), width, warps, 2, run)
    for it in tl.range(1, rounds, num_stages=1):
        at = it * (2 * warps * 32)
        a, b, c0, d = f8_step(w0, x0, a, b, c0, d)
        x0 = operand(tl.load(px + at), warps, 2)
        w0 = words(p + at * (width // 4), width, warps, 2, run)
        a, b, c0, d = f8_step(w1, x1, a, b, c0, d)
        x1 = operand(tl.load(px + at + warps * 32), warps, 2)
        w1 = words(p + (at + warps * 32) * (width // 4), width, warps, 2, run)
    a, b, c0, d = f8_step(w0, x0, a, b, c0, d)
    a, b, c0, d = f8_step(w1, x1, a, b, c0, d)
    finish(o, a, b, c0, d, nb, one, width, warps, run, True)


@triton.jit
def factor(s, warps: tl.constexpr, run: tl.constexpr):
    s = tl.reshape(tl.permute(s, (2, 3, 1, 0)), (warps, run * 8, 4))
    s = tl.broadcast_to(s[:, :, :, None], (warps, run * 8, 4, 2))
    return tl.reshape(s, (warps, run * 8, 8))


@triton.jit
def quarter(w, x, a, b, c, d, warps: tl.constexpr):
    even, odd = pairs(x)
    return i4_step(w, operand(even, warps, 1), operand(odd, warps, 1), a, b, c, d)


@triton.jit
def scaled(s, p, q, r, t, a, b, c, d, warps: tl.constexpr, run: tl.constexpr):
    """Sums of a group [warp, (h, g), m] times its scales [c, g, warp, (h, byte)]."""
    e, o = tl.split(tl.reshape(s.to(tl.float32), (4, 8, warps, run, 2, 2)))
    s0, s2 = tl.split(e)
    s1, s3 = tl.split(o)
    a += p * factor(s0, warps, run)
    b += q * factor(s1, warps, run)
    return a, b, c + r * factor(s2, warps, run), d + t * factor(s3, warps, run)


@triton.jit(do_not_specialize=("rounds", "one"))
def i4_direct(x, gate, up, gate_scale, up_scale, o, rounds, one, depth: tl.constexpr,
              width: tl.constexpr, warps: tl.constexpr, run: tl.constexpr):  # fmt: skip
    """A round is a group of 128 numbers of each warp, 64 words of x, in quarters.

    Each is loaded anew, for the next round, where it was used.
    """
    nb = tl.program_id(0)
    c = tl.arange(0, 4)[:, None, None, None]
    m = tl.arange(0, 8)[None, :, None, None]
    warp = tl.arange(0, warps)[None, None, :, None]
    px = x + m * (depth // 2) + warp * 64 + c * 4 + tl.arange(0, 4)[None, None, None, :]
    at = warp * width + nb * (16 * run) + (m % 4) * (4 * run) + c * 0
    at += tl.arange(0, 4 * run)[None, None, None, :]
    ps = tl.where((m < 4) & (at >= 0), gate_scale + at, up_scale + at)
    ps = tl.max_contiguous(tl.multiple_of(ps, (2, 2, 2, 8 * run)), (1, 1, 1, 4 * run))
    p = places(gate, up, nb, width, warps, 1, 64, run)
    zero = tl.zeros((warps, run * 8, 8), tl.float32)
    a = zero
    b = zero
    c0 = zero
    d = zero
    row: tl.constexpr = width // 4
    w0, x0 = words(p, width, warps, 1, run), tl.load(px)
    w1, x1 = words(p + 16 * row, width, warps, 1, run), tl.load(px + 16)
    w2, x2 = words(p + 32 * row, width, warps, 1, run), tl.load(px + 32)
    w3, x3 = words(p + 48 * row, width, warps, 1, run), tl.load(px + 48)
    s = tl.load(ps)
    for it in tl.range(1, rounds, num_stages=1):
        p += warps * 64 * row
        px += warps * 64
        q0, q1, q2, q3 = quarter(w0, x0, zero, zero, zero, zero, warps)
        w0, x0 = words(p, width, warps, 1, run), tl.load(px)
        q0, q1, q2, q3 = quarter(w1, x1, q0, q1, q2, q3, warps)
        w1, x1 = words(p + 16 * row, width, warps, 1, run), tl.load(px + 16)
        q0, q1, q2, q3 = quarter(w2, x2, q0, q1, q2, q3, warps)
        w2, x2 = words(p + 32 * row, width, warps, 1, run), tl.load(px + 32)
        q0, q1, q2, q3 = quarter(w3, x3, q0, q1, q2, q3, warps)
        w3, x3 = words(p + 48 * row, width, warps, 1, run), tl.load(px + 48)
        a, b, c0, d = scaled(s, q0, q1, q2, q3, a, b, c0, d, warps, run)
        s = tl.load(ps + it * warps * width)
    q0, q1, q2, q3 = quarter(w0, x0, zero, zero, zero, zero, warps)
    q0, q1, q2, q3 = quarter(w1, x1, q0, q1, q2, q3, warps)
    q0, q1, q2, q3 = quarter(w2, x2, q0, q1, q2, q3, warps)
    q0, q1, q2, q3 = quarter(w3, x3, q0, q1, q2, q3, warps)
    a, b, c0, d = scaled(s, q0, q1, q2, q3, a, b, c0, d, warps, run)
    finish(o, a, b, c0, d, nb, one, width, warps, run, True)


# -- Shared: Triton copies tiles to shared memory, some iterations ahead ---------------


@triton.jit
def tile(gate, up, nb, k, width: tl.constexpr, run: tl.constexpr):
    """Pointers to words [warp, (matrix, j), k], and the rows of a tile."""
    r = tl.arange(0, 8 * run)
    at = k[:, None, :] * (width // 4) + (nb * (4 * run) + r % (4 * run))[None, :, None]
    p = tl.where((r < 4 * run)[None, :, None] & (at >= 0), gate + at, up + at)
    return tl.max_contiguous(tl.multiple_of(p, (16, 16, 16)), (1, 4, 1)), r


@triton.jit(do_not_specialize=("one",))
def f8_shared(x, gate, up, o, one, depth: tl.constexpr, width: tl.constexpr,
              warps: tl.constexpr, run: tl.constexpr, piece: tl.constexpr,
              stages: tl.constexpr):  # fmt: skip
    """Iterations of some rows of each warp."""
    nb = tl.program_id(0)
    k = tl.arange(0, warps)[:, None] * piece + tl.arange(0, piece)[None, :]
    px = x + tl.arange(0, 8)[None, None, :] * depth + k[:, :, None]
    p, _ = tile(gate, up, nb, k, width, run)
    a = tl.zeros((warps, 8 * run, 8), tl.float32)
    b = a
    c = a
    d = a
    for it in tl.range(0, depth // (warps * piece), num_stages=stages):
        rows = tl.load(px + it * (warps * piece))
        w = tl.load(p + it * (warps * piece * (width // 4)))
        a, b, c, d = f8_step(w, rows, a, b, c, d)
    finish(o, a, b, c, d, nb, one, width, warps, run, False)


@triton.jit(do_not_specialize=("one",))
def i4_shared(x, gate, up, gate_scale, up_scale, o, one, depth: tl.constexpr,
              width: tl.constexpr, warps: tl.constexpr, run: tl.constexpr,
              piece: tl.constexpr, stages: tl.constexpr):  # fmt: skip
    """Iterations of bytes of one group for each warp; scales are words of two."""
    nb = tl.program_id(0)
    first = tl.arange(0, warps) * piece
    k = first[:, None] + tl.arange(0, piece)[None, :]
    px = x + tl.arange(0, 8)[None, None, :] * (depth // 2) + k[:, :, None]
    p, r = tile(gate, up, nb, k, width, run)
    at = 2 * (nb * (4 * run) + r % (4 * run))
    ps = tl.where(r < 4 * run, gate_scale + at, up_scale + at)[None, :]
    zero = tl.zeros((warps, 8 * run, 8), tl.float32)
    a = zero
    b = zero
    c = zero
    d = zero
    for it in tl.range(0, depth // (2 * warps * piece), num_stages=stages):
        group = ((first + it * (warps * piece)) // 64)[:, None] * (width // 2)
        even, odd = pairs(tl.load(px + it * (warps * piece)))
        w = tl.load(p + it * (warps * piece * (width // 4)))
        s0, s1 = pairs(tl.load(ps + group))
        s2, s3 = pairs(tl.load(ps + group + 1))
        q0, q1, q2, q3 = i4_step(w, even, odd, zero, zero, zero, zero)
        a += q0 * s0.to(tl.float32)[:, :, None]
        b += q1 * s1.to(tl.float32)[:, :, None]
        c += q2 * s2.to(tl.float32)[:, :, None]
        d += q3 * s3.to(tl.float32)[:, :, None]
    finish(o, a, b, c, d, nb, one, width, warps, run, False)


# -- Rows along k, as those of `torch.nn.Linear` ---------------------------------------

# Weights [n, k] are read 16 bytes at a time along k, straight into the registers of the
# matrix unit: of a chunk, 64 bytes of each row, lane c of four has bytes 16 c to 16 c +
# 15, and rows are lanes g.  The sum over k is the same in any order, so the other
# factor is read in that order too.  Pointers have two axes, so that all versions of
# Triton lay lanes along the second one, then neighbouring rows, warps, and registers.


@triton.jit
def chunk(gate, up, nb, step: tl.constexpr, row_words: tl.constexpr,
          warps: tl.constexpr, tall: tl.constexpr):  # fmt: skip
    """Pointers to words [(h, warp, g), (c, i)], rows 8 h + g: of both matrices."""
    r = tl.arange(0, tall * warps * 8)[:, None]
    g, warp, h = r % 8, r // 8 % warps, r // (8 * warps)
    half: tl.constexpr = tall // 2
    row = nb * (half * 8) + h % half * 8 + g
    at = row * row_words + warp * step + tl.arange(0, 16)[None, :]
    p = tl.where((h < half) & (at >= 0), gate + at, up + at)
    return tl.max_contiguous(tl.multiple_of(p, (4, 64)), (1, 16))


@triton.jit
def beside(x, first, depth: tl.constexpr, warps: tl.constexpr, each: tl.constexpr):
    """Pointers to words of two f16 [(warp, m, c), 4], the first of `each` of a lane."""
    r = tl.arange(0, warps * 32)[:, None]
    c, m, warp = r % 4, r // 4 % 8, r // 32
    at = m * (depth // 2) + warp * first + c * each + tl.arange(0, 4)[None, :]
    return tl.max_contiguous(tl.multiple_of(x + at, (4, 16)), (1, 4))


@triton.jit
def along(w, warps: tl.constexpr, tall: tl.constexpr):
    """One number of each word as an operand [warp, (h, g), k]."""
    w = tl.permute(tl.reshape(w, (tall, warps, 8, 4, 2, 2)), (1, 0, 2, 4, 3, 5))
    return tl.reshape(w, (warps, tall * 8, 16))


@triton.jit
def across(x, warps: tl.constexpr):
    """[warp, m, c, i] of two axes as the other operand, in the order of `along`."""
    return tl.reshape(tl.permute(x, (0, 3, 2, 4, 1)), (warps, 16, 8))


@triton.jit
def f8_beside(p, warps: tl.constexpr):
    """The eight words of a lane: first and second of each two, [warp, m, c, i]."""
    a0, a1 = tl.split(tl.reshape(tl.load(p), (warps, 8, 4, 2, 2)))
    b0, b1 = tl.split(tl.reshape(tl.load(p + 4), (warps, 8, 4, 2, 2)))
    first = tl.permute(tl.join(a0, b0), (0, 1, 2, 4, 3))
    return first, tl.permute(tl.join(a1, b1), (0, 1, 2, 4, 3))


@triton.jit
def f8_chunk(w, x, a, warps: tl.constexpr, tall: tl.constexpr):
    x0, x1 = pairs(x[0])
    x2, x3 = pairs(x[1])
    p, q, r, s = floats(w)
    a = tl.dot(along(p, warps, tall), across(x0, warps), a)
    a = tl.dot(along(q, warps, tall), across(x1, warps), a)
    a = tl.dot(along(r, warps, tall), across(x2, warps), a)
    return tl.dot(along(s, warps, tall), across(x3, warps), a)


@triton.jit
def end(o, a, nb, one, width: tl.constexpr, warps: tl.constexpr, tall: tl.constexpr):
    """Sum over warps as `finish` does, gate and store."""
    half: tl.constexpr = tall // 2
    v = tl.reshape(a, (warps // 2, 2, tall * 8, 8))
    s, t = tl.split(tl.permute(v, (0, 2, 3, 1)))
    v = tl.reshape(tl.sum(s + t, 0), (2, half * 8, 8))
    gate, up = tl.split(tl.permute(v, (1, 2, 0)))
    n = nb * (half * 8) + tl.arange(0, half * 8)[:, None]
    at = tl.arange(0, 8)[None, :] * width + n * one
    tl.store(o + at, (gate * tl.sigmoid(gate) * up).to(tl.float16))


@triton.jit(do_not_specialize=("rounds", "one"))
def f8_rows(x, gate, up, o, rounds, one, depth: tl.constexpr, width: tl.constexpr,
            warps: tl.constexpr, tall: tl.constexpr):  # fmt: skip
    """A round is two chunks of each warp, each loaded anew where it was used."""
    nb = tl.program_id(0)
    step: tl.constexpr = depth // 4 // warps
    p = chunk(gate, up, nb, step, depth // 4, warps, tall)
    px = beside(x, 2 * step, depth, warps, 8)
    a = tl.zeros((warps, tall * 8, 8), tl.float32)
    w0, x0 = tl.load(p, eviction_policy="evict_first"), f8_beside(px, warps)
    w1, x1 = tl.load(p + 16, eviction_policy="evict_first"), f8_beside(px + 32, warps)
    for _ in tl.range(1, rounds, num_stages=1):
        p += 32
        px += 64
        a = f8_chunk(w0, x0, a, warps, tall)
        w0, x0 = tl.load(p, eviction_policy="evict_first"), f8_beside(px, warps)
        a = f8_chunk(w1, x1, a, warps, tall)
        w1 = tl.load(p + 16, eviction_policy="evict_first")
        x1 = f8_beside(px + 32, warps)
    a = f8_chunk(w0, x0, a, warps, tall)
    a = f8_chunk(w1, x1, a, warps, tall)
    end(o, a, nb, one, width, warps, tall)


@triton.jit
def quartered(x, warps: tl.constexpr):
    """The words of a load, apart."""
    even, odd = tl.split(tl.reshape(x, (warps, 8, 4, 2, 2)))
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    return w0, w1, w2, w3


@triton.jit
def i4_beside(p, warps: tl.constexpr):
    """The sixteen words of a lane: of each four the first, and so on."""
    a0, a1, a2, a3 = quartered(tl.load(p), warps)
    b0, b1, b2, b3 = quartered(tl.load(p + 4), warps)
    c0, c1, c2, c3 = quartered(tl.load(p + 8), warps)
    d0, d1, d2, d3 = quartered(tl.load(p + 12), warps)
    w0 = tl.join(tl.join(a0, c0), tl.join(b0, d0))
    w1 = tl.join(tl.join(a1, c1), tl.join(b1, d1))
    w2 = tl.join(tl.join(a2, c2), tl.join(b2, d2))
    return w0, w1, w2, tl.join(tl.join(a3, c3), tl.join(b3, d3))


@triton.jit
def i4_chunk(w, x, scale, a, warps: tl.constexpr, tall: tl.constexpr):
    """A chunk is a group: its sums times the scales of its rows."""
    x0, x1 = pairs(x[0])
    x2, x3 = pairs(x[1])
    x4, x5 = pairs(x[2])
    x6, x7 = pairs(x[3])
    n0, n1, n2, n3, n4, n5, n6, n7 = nibbles(w)
    q = tl.zeros((warps, tall * 8, 8), tl.float32)
    q = tl.dot(along(n0, warps, tall), across(x0, warps), q)
    q = tl.dot(along(n1, warps, tall), across(x1, warps), q)
    q = tl.dot(along(n2, warps, tall), across(x2, warps), q)
    q = tl.dot(along(n3, warps, tall), across(x3, warps), q)
    q = tl.dot(along(n4, warps, tall), across(x4, warps), q)
    q = tl.dot(along(n5, warps, tall), across(x5, warps), q)
    q = tl.dot(along(n6, warps, tall), across(x6, warps), q)
    q = tl.dot(along(n7, warps, tall), across(x7, warps), q)
    f = tl.reshape(scale.to(tl.float32), (tall, warps, 8, 4))
    f = tl.broadcast_to(tl.permute(f, (1, 0, 2, 3))[:, :, :, :, None],
                        (warps, tall, 8, 4, 2))  # fmt: skip
    return a + q * tl.reshape(f, (warps, tall * 8, 8))


@triton.jit(do_not_specialize=("rounds", "one"))
def i4_rows(x, gate, up, gate_scale, up_scale, o, rounds, one, depth: tl.constexpr,
            width: tl.constexpr, warps: tl.constexpr, tall: tl.constexpr):  # fmt: skip
    """The same of halves of bytes; each lane of a row loads its scale."""
    nb = tl.program_id(0)
    step: tl.constexpr = depth // 8 // warps
    half: tl.constexpr = tall // 2
    p = chunk(gate, up, nb, step, depth // 8, warps, tall)
    px = beside(x, 4 * step, depth, warps, 16)
    r = tl.arange(0, tall * warps * 32)
    g, warp, h = r // 4 % 8, r // 32 % warps, r // (32 * warps)
    row = nb * (half * 8) + h % half * 8 + g
    at = row * (depth // 128) + warp * (step // 16)
    ps = tl.where((h < half) & (at >= 0), gate_scale + at, up_scale + at)
    a = tl.zeros((warps, tall * 8, 8), tl.float32)
    w0, x0 = tl.load(p, eviction_policy="evict_first"), i4_beside(px, warps)
    w1, x1 = tl.load(p + 16, eviction_policy="evict_first"), i4_beside(px + 64, warps)
    s0, s1 = tl.load(ps), tl.load(ps + 1)
    for _ in tl.range(1, rounds, num_stages=1):
        p += 32
        px += 128
        ps += 2
        a = i4_chunk(w0, x0, s0, a, warps, tall)
        w0, x0 = tl.load(p, eviction_policy="evict_first"), i4_beside(px, warps)
        s0 = tl.load(ps)
        a = i4_chunk(w1, x1, s1, a, warps, tall)
        w1 = tl.load(p + 16, eviction_policy="evict_first")
        x1 = i4_beside(px + 64, warps)
        s1 = tl.load(ps + 1)
    a = i4_chunk(w0, x0, s0, a, warps, tall)
    a = i4_chunk(w1, x1, s1, a, warps, tall)
    end(o, a, nb, one, width, warps, tall)
