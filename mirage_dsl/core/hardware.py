"""What is known of GPUs: limits, rates, and what their instruction sets can do.

All of it is here, as data: no other module knows a GPU by its name, compares a compute
capability, or has a number that was measured on one.  `devices` tells which row is that
of the GPU at hand, and measures new ones.

Sources: [M] measured for this project on that device; [D] the vendor's data sheet,
programming guide or architecture white paper; [F] fitted to [M] with the model of
`cost.estimate`; [A] assumed: taken over from the H100's row, since nobody has measured.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from mirage_dsl.core.errors import SearchError, UnsupportedError

SAFE_REGISTERS = 0.82
"""Share of a thread's registers up to which the estimate is safe from spills."""
SCREENED_REGISTERS = 1.1
"""Share from which on hardly anything fits.

Measured: kernels of attention that take 230 to 254 registers and do not spill are
estimated at 249; they are the fastest.
"""

TF32_RATE = 0.5
"""Rate of f32 products that round to TF32, as a share of that of f16."""
FULL_PRECISION_SHARE = 0.15625
"""Share of the f32 rate that generated products of f32 reach with two results a thread,
since factors are read from shared memory; and libraries with few rows.

[M] H200: 18 µs with tiles of 16 x 32 and 256 threads, 26 with 16 x 16.
"""

# -- Instruction sets ------------------------------------------------------------------

KIB = 1024


@dataclass(frozen=True)
class Architecture:
    """What all GPUs of one compute capability have in common.  Sizes are in bytes.

    Attributes:
        name: The vendor's name of the generation.
        capability: The compute capability: major and minor number.
        shared_per_sm: Shared memory of a multiprocessor.
        threads_per_sm: Threads that a multiprocessor holds.
        blocks_per_sm: Blocks that it holds.
        lanes: f32 operations of a multiprocessor in a cycle, a multiply-add as one.
        products: Multiply-adds of f16 on its matrix unit in a cycle.
        asynchronous_rows: Rows from which on a product of tiles may be one whose
            operands the matrix unit reads from shared memory by itself; None where
            warps read them to registers, whatever the rows.
        early_launches: Whether a kernel may start before the one ahead of it has ended
            (programmatic dependent launch).
        descriptors: Whether tiles can be copied by tensor descriptors (TMA).
        shared_reserved: What the driver takes of shared memory for every block.
        registers_per_sm: 32-bit registers of a multiprocessor.
        registers_per_warp: A warp takes a multiple of so many.
        registers_per_thread: Most that one thread gets.
    """

    name: str
    capability: tuple[int, int]
    shared_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    lanes: int
    products: int
    asynchronous_rows: int | None = None
    early_launches: bool = False
    descriptors: bool = False
    shared_reserved: int = KIB
    registers_per_sm: int = 65_536
    registers_per_warp: int = 256
    registers_per_thread: int = 255

    @property
    def number(self) -> int:
        """90 for 9.0, as compilers count."""
        return number_of(self.capability)

    @property
    def target(self) -> str:
        """`sm_90` for 9.0."""
        return f"sm_{self.number}"

    @property
    def supported(self) -> bool:
        """Whether kernels are made for it."""
        return self.capability >= EARLIEST.capability

    @property
    def shared_per_block(self) -> int:
        """Most of a multiprocessor's shared memory that one block gets."""
        return self.shared_per_sm - self.shared_reserved

    def resident(self, registers: int, shared_bytes: int, warps: int) -> int:
        """Blocks that share a multiprocessor.

        Args:
            registers: Of a thread.
            shared_bytes: Of a block.
            warps: Of a block.
        """
        unit = self.registers_per_warp
        of_warp = -(-WARP * registers // unit) * unit
        return min(
            self.registers_per_sm // max(of_warp * warps, 1),
            self.shared_per_sm // (shared_bytes + self.shared_reserved),
            self.threads_per_sm // (WARP * warps),
            self.blocks_per_sm,
        )


GRID_AXES = 3
"""Along so many a launch numbers its blocks, at most."""

WARP = 32
"""Threads of a warp, on all of them."""
BYTES_PER_COPY = 4
"""Fewer bytes for each thread of a block cannot be copied ahead of their use."""
SECTOR = 32
"""Bytes that memory gives at least, whatever is read of them."""

TURING = Architecture("Turing", (7, 5), 64 * KIB, 1024, 16, 64, 512)
AMPERE = Architecture("Ampere", (8, 0), 164 * KIB, 2048, 32, 64, 1024)
HOPPER = Architecture(
    "Hopper",
    (9, 0),
    228 * KIB,
    2048,
    32,
    128,
    2048,
    asynchronous_rows=64,
    early_launches=True,
    descriptors=True,
)
BLACKWELL = replace(HOPPER, name="Blackwell", capability=(10, 0), products=4096)
SMALL_BLACKWELL = replace(
    BLACKWELL,
    capability=(12, 0),
    shared_per_sm=100 * KIB,
    threads_per_sm=1536,
    blocks_per_sm=24,
    products=512,
    asynchronous_rows=None,
)

ARCHITECTURES: tuple[Architecture, ...] = (
    TURING,
    AMPERE,
    Architecture("Ampere", (8, 6), 100 * KIB, 1536, 16, 128, 512),
    Architecture("Ampere", (8, 7), 164 * KIB, 1536, 16, 128, 1024),
    Architecture("Ada", (8, 9), 100 * KIB, 1536, 24, 128, 512),
    HOPPER,
    BLACKWELL,
    replace(BLACKWELL, capability=(10, 3)),
    replace(BLACKWELL, capability=(11, 0), threads_per_sm=1536, blocks_per_sm=24),
    SMALL_BLACKWELL,
    replace(SMALL_BLACKWELL, capability=(12, 1)),
)
"""[D], the oldest first.  Products of chips for workstations; those for games that add
up in f32 have half of them."""

EARLIEST = AMPERE
"""The first one that kernels are made for."""

FIRST_EARLY = next(a for a in ARCHITECTURES if a.early_launches)
"""The first one with early launches; all later ones have them."""

ASYNCHRONOUS_ROWS = min(a.asynchronous_rows or 2**31 for a in ARCHITECTURES)
"""The fewest `Architecture.asynchronous_rows` that any of them has.

An emitted module runs on all of them, so its buffers are right for the one that needs
the most.
"""


LATER_ASSEMBLER = "ptxas_blackwell"
"""Triton's name of the later ptxas, which it carries for GPUs that are newer."""


def number_of(capability: tuple[int, int]) -> int:
    """90 for 9.0."""
    return 10 * capability[0] + capability[1]


def architecture_numbered(number: int) -> Architecture:
    """That of a number as compilers count: 90 for 9.0."""
    return architecture_of((number // 10, number % 10))


def architecture_of(capability: tuple[int, int]) -> Architecture:
    """That of a compute capability; of an unknown one, what its predecessor had."""
    older = [a for a in ARCHITECTURES if a.capability <= capability]
    nearest = older[-1] if older else ARCHITECTURES[0]
    return replace(nearest, capability=capability)


def architecture_named(target: str) -> Architecture:
    """That of a compiler's target, such as `sm_90`.

    Raises:
        UnsupportedError: Not an NVIDIA architecture.
    """
    match = re.fullmatch(r"sm_(\d{2,3})a?", target)
    if match is None:
        raise UnsupportedError(
            f"target {target}: expected one like {HOPPER.target} or {AMPERE.target}"
        )
    return architecture_numbered(int(match[1]))


# -- GPUs ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Properties:
    """What a GPU's driver tells of it.

    Attributes:
        name: The device's own name.
        capability: Its compute capability.
        sms: Streaming multiprocessors.
        l2_bytes: Capacity of the L2 cache.
        shared_per_sm: Bytes of shared memory of a multiprocessor.
        threads_per_sm: Threads that a multiprocessor holds.
        clock: The highest clock of the multiprocessors in Hz; None where it is not
            told.
        memory_clock: The memory's clock in Hz, of which both edges carry data; None
            where it is not told.
        bus_bits: Width of the memory's bus; None where it is not told.
    """

    name: str
    capability: tuple[int, int]
    sms: int
    l2_bytes: int
    shared_per_sm: int
    threads_per_sm: int
    clock: float | None = None
    memory_clock: float | None = None
    bus_bits: int | None = None

    @property
    def peak_dram_rate(self) -> float | None:
        """Bytes a second that the memory's pins carry, where that is told."""
        if not self.memory_clock or not self.bus_bits:
            return None
        return 2 * self.memory_clock * self.bus_bits / 8


@dataclass(frozen=True)
class Ranking:
    """Round figures by which structures without sizes are ranked, and sums proved.

    A sum over edges has to be simple, so these are no parts of the estimate, and only
    their ratios matter.  Rates are of one multiprocessor.

    Attributes:
        bytes_per_us: Bytes that it loads or stores in a µs.
        products_per_us: Multiply-adds of its matrix unit in a µs.
        operations_per_us: Elements of f32 operators in a µs.
        step_us: µs that every operator costs more.
        launch_us: µs that a kernel costs more than its work.
    """

    bytes_per_us: float
    products_per_us: float
    operations_per_us: float
    step_us: float
    launch_us: float


@dataclass(frozen=True)
class Hardware:
    """Limits and rates of one GPU: rates per second, times in seconds, sizes in bytes.

    Attributes:
        name: Short name.
        architecture: Its instruction set, with the limits of a multiprocessor.
        sms: Streaming multiprocessors.
        dram_rate: What a kernel that only reads gets.
        dram_latency: Time that a load is under way on an idle device; with the bytes in
            flight it bounds the rate (Little's law).
        turnaround: From when a tile is asked for until its iteration can run, even if
            L2 answers.
        synchronous_load: What an iteration waits for a load that L2 answers, and that
            is too small to be copied ahead.
        bytes_at_once: Bytes that a thread loads to registers before it waits for the
            first of them.
        stage_bytes: Bytes in stage buffers of the whole GPU beyond which more of them
            slow the streams down.
        crowding: By which part of their time, for each such byte.
        l2_bytes: Capacity of the L2 cache.
        l2_rate: Reads that hit it.
        l2_rate_per_sm: The same for one multiprocessor.
        tensor_rate: f16 and bf16 products on the matrix units, in FLOP/s, for the
            whole GPU, as large library products reach it.
        small_tensor_factor: Share of it that products get which the matrix unit does
            not run by itself.
        matrix_step: Time of one 16-deep step of a chain of dependent products.
        f32_rate: f32 operations on full occupancy, for the whole GPU.
        f32_matmul_rate: f32 products without the matrix units, in FLOP/s.
        operator_step: What any tile operator takes, however small its tile.
        reduction_step: Time of a reduction that warps have to exchange.
        running_step: From a running maximum to rescaled sums, in every iteration.
        across_warps: What a reduction of a transposed product takes more that feeds
            another product: its rows lie across warps, and the next product reads it
            from shared memory.
        exchange: Time for each element that an operator makes of loads for a product,
            and warp: it goes through shared memory to every warp that reads it, with
            conflicts of banks.
        warp_step: What an iteration with a product takes more for each warp beyond
            four, which all wait.
        shared_rate_per_sm: Reads of shared memory by one multiprocessor.
        word_copies: What one multiprocessor copies ahead of a loop, in words of four
            bytes.
        launch: From one kernel to the next in a CUDA graph.
        dependent: What of the launch a kernel saves which may start before the one
            before it has ended; 0 where none may.
        ramp: To fill and drain the memory system.
        prologue: Until a loop runs, its first tiles apart.
        library_join: What libraries take to join the parts of a long product that they
            split where its tiles leave multiprocessors idle.
        library_reduction: What a library's sum of rows takes, combined with the time of
            its bytes.
        library_broadcast: Elements a second of a library's operator of operands of
            different shapes, since each element's place is computed.
        ranking: Round figures for structures without sizes.
        register_share: Share of a thread's registers that an estimate may come to.
    """

    name: str
    architecture: Architecture
    sms: int
    dram_rate: float
    dram_latency: float
    turnaround: float
    synchronous_load: float
    bytes_at_once: int
    stage_bytes: float
    crowding: float
    l2_bytes: int
    l2_rate: float
    l2_rate_per_sm: float
    tensor_rate: float
    small_tensor_factor: float
    matrix_step: float
    f32_rate: float
    f32_matmul_rate: float
    operator_step: float
    reduction_step: float
    running_step: float
    across_warps: float
    exchange: float
    warp_step: float
    shared_rate_per_sm: float
    word_copies: float
    launch: float
    dependent: float
    ramp: float
    prologue: float
    library_join: float
    library_reduction: float
    library_broadcast: float
    ranking: Ranking
    register_share: float = SAFE_REGISTERS

    @property
    def fingerprint(self) -> str:
        """Its name and a checksum of all that is known of it, for keys of results."""
        digest = hashlib.sha256(repr(asdict(self)).encode()).hexdigest()
        return f"{self.name} {digest[:16]}"

    def rounding_products(self) -> Hardware:
        """The same as if f32 products ran on its matrix units, rounded to TF32.

        Kernels reach their rate then, of which they take `FULL_PRECISION_SHARE`.
        """
        rate = TF32_RATE / FULL_PRECISION_SHARE * self.tensor_rate
        return replace(self, f32_matmul_rate=rate)

    def screened(self) -> Hardware:
        """The same where a compiler tells what spills, and the estimate need not."""
        return replace(self, register_share=SCREENED_REGISTERS)


H100 = Hardware(
    name="H100",
    architecture=HOPPER,
    sms=132,  # [D] SXM
    dram_rate=3.08e12,  # [M] slope of a bare read, 33.5 to 67 MB
    dram_latency=6e-7,  # [F] rate against stages of a streaming product
    turnaround=8e-7,  # [F] loops with one tile ahead: 0.6 to 0.9 µs an iteration
    synchronous_load=2.4e-7,  # [M] H200: two, of 128 and 256 elements, 0.4 to 0.9 µs
    bytes_at_once=200,  # [M] H200: 64 KB by 128 threads in 4 trips, 96 by 64 in a dozen
    stage_bytes=9e6,  # [M] 6 to 9 MB in stages is best, 12 MB loses a tenth
    crowding=0.03e-6,  # [M] the same
    l2_bytes=50_000_000,  # [D]
    l2_rate=9.0e12,  # [F] 201 MB through L2 in 24 µs (gated product of 128 rows)
    l2_rate_per_sm=1.1e11,  # [D] 64 bytes a cycle
    tensor_rate=7.2e14,  # [M] library product of 8192³: 700 to 740 TFLOP/s
    small_tensor_factor=0.3,  # [F] the older instruction, its tiles read by each warp
    matrix_step=1.9e-8,  # [F] 33 cycles
    f32_rate=3.0e13,  # [D] 132 x 128 lanes x 1.755 GHz
    f32_matmul_rate=4.8e13,  # [M] H200: library products of 512 to 8192 rows
    operator_step=3e-9,  # [F]
    reduction_step=1.1e-8,  # [F] reducing in every iteration: 0.1 to 0.9 µs in 32
    running_step=8e-8,  # [M] H200: iterations of attention take 0.03 to 0.12 µs more
    across_warps=8e-8,  # [M] H200: 0.3 to 0.5 µs an iteration, 0.6 to 0.9 with norms
    exchange=4.5e-11,  # [M] H200: 0.8 µs for 16 x 256 and 4 warps, 10 for 1024 and 16
    warp_step=1.5e-8,  # [M] H200: iterations take 0.2 to 0.6 µs more with 16 warps
    shared_rate_per_sm=2.25e11,  # [D] 128 bytes a cycle at 1.755 GHz
    word_copies=3.3e9,  # [M] 520 MB in 1.2 ms, rows of 3969 numbers; of 3970, 0.22 ms
    launch=1.07e-6,  # [M] empty kernel of 132 blocks in a CUDA graph
    dependent=0.3e-6,  # [M] an empty kernel takes 0.61 µs; real ones save less
    ramp=0.7e-6,  # [F]
    prologue=0.4e-6,  # [M] bare read: 1.9 µs at 0 bytes, less launch and ramp
    library_join=1.7e-6,  # [M] 16 rows: 1.0 to 1.9 µs more than bytes and a launch
    library_reduction=7e-6,  # [M] H200: 9.5 µs for 4 MB, 11.6 by columns, 12.7 for 34
    library_broadcast=3.7e11,  # [M] H200: 7.6 µs for 2 million and a column, else 3.6
    ranking=Ranking(25_000.0, 2_270_000.0, 60_000.0, 0.002, 1.9),  # [F]
)
"""H100 SXM 80 GB: the device that the model is fitted to."""

H200 = replace(
    H100,
    name="H200",
    dram_rate=4.3e12,  # [M] copy; [D] says 4.8 TB/s
    stage_bytes=12e6,  # the same time of data in flight at the higher rate
)
"""H200: the H100's chip with faster memory."""

A100 = replace(
    H100,
    name="A100",
    architecture=AMPERE,
    sms=108,  # [D]
    dram_rate=1.75e12,  # [D] 2.04 TB/s (80 GB), of which copies get 86 %
    dram_latency=0.8e-6,  # [D] slower memory, shorter queues
    turnaround=8e-7,
    stage_bytes=6e6,
    l2_bytes=40_000_000,  # [D]
    l2_rate=4.5e12,  # [D] 5120 bytes a cycle, of which 60 % are reached
    l2_rate_per_sm=9.0e10,  # [D] 64 bytes a cycle
    tensor_rate=2.6e14,  # [D] 312 TFLOP/s, of which libraries reach five sixths
    small_tensor_factor=1.0,  # [D] there is one instruction for all shapes
    matrix_step=2.3e-8,  # [D] 33 cycles at 1.41 GHz
    f32_rate=9.7e12,  # [D] 108 x 64 lanes x 1.41 GHz
    f32_matmul_rate=1.4e13,  # [A] the same share of 19.5 TFLOP/s as on an H100
    reduction_step=4e-8,
    shared_rate_per_sm=1.8e11,  # [D] 128 bytes a cycle at 1.41 GHz
    launch=1.5e-6,  # [D] order of magnitude; not measured here
    dependent=0.0,  # [D] there is none
    ramp=0.5e-6,
    prologue=0.5e-6,
    # The H100's, by the rates of a multiprocessor, by launch and ramp.
    ranking=Ranking(17_500.0, 1_000_000.0, 24_000.0, 0.002, 2.1),
)
"""A100 SXM 80 GB: data-sheet figures, none measured here; all others are [A]."""

HARDWARE: tuple[Hardware, ...] = (H100, H200, A100)

DEFAULT = H100
"""What is estimated for where nobody names a GPU and there is none."""


def _told(
    row: Hardware, name: str, clock: float, memory_clock: float, bus_bits: int
) -> Properties:
    """What the driver tells of the GPU of a row."""
    own = row.architecture
    return Properties(
        *(name, own.capability, row.sms, row.l2_bytes),
        *(own.shared_per_sm, own.threads_per_sm, clock, memory_clock, bus_bits),
    )


PROPERTIES: dict[str, Properties] = {
    "H100": _told(
        H100,
        "NVIDIA H100 80GB HBM3",
        clock=1.98e9,
        memory_clock=2.619e9,
        bus_bits=5120,
    ),
    "H200": _told(
        H200, "NVIDIA H200", clock=1.98e9, memory_clock=3.201e9, bus_bits=6144
    ),
    "A100": _told(
        A100,
        "NVIDIA A100-SXM4-80GB",
        clock=1.41e9,
        memory_clock=1.593e9,
        bus_bits=5120,
    ),
}
"""[D] What the drivers of the GPUs of `HARDWARE` tell of them."""


def hardware_named(name: str) -> Hardware:
    """The row called `name`, or else the one whose name is a word of it.

    Raises:
        SearchError: There is none.
    """
    words = _words(name)
    for row in HARDWARE:
        if row.name.lower() == name.lower():
            return row
    for row in HARDWARE:
        if _words(row.name) <= words:
            return row
    known = ", ".join(h.name for h in HARDWARE)
    raise SearchError(f"unknown hardware {name!r}; known are {known}")


def row_given(given: object) -> Hardware:
    """A row, or the one that a user has named.

    Raises:
        SearchError: There is none of that name, or it is neither.
    """
    if isinstance(given, Hardware):
        return given
    if isinstance(given, str):
        return hardware_named(given)
    known = ", ".join(repr(h.name) for h in HARDWARE)
    raise SearchError(
        f"hardware={given!r}; expected one of {known}, or a row of hardware.HARDWARE"
    )


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


# -- GPUs that nobody has measured -----------------------------------------------------

SAME_MEMORY = 0.15
"""Peak rates of memories of one kind differ by no more: one chip has several kinds."""


@dataclass(frozen=True)
class Guess:
    """A row that nobody has measured.

    Attributes:
        hardware: Its limits are the device's own, its rates are scaled.
        nearest: The row that they were scaled from.
        taken_over: What the device does not tell, so that it is as on the nearest one.
    """

    hardware: Hardware
    nearest: Hardware
    taken_over: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.hardware.name} is not among the GPUs that are known; its "
            "limits are its own, its rates are scaled from those of the "
            f"{self.nearest.name} by multiprocessors, clocks and memory, and as on the "
            f"{self.nearest.name} are {', '.join(self.taken_over)}"
        )


def known_row(device: Properties) -> Hardware | None:
    """The row of a device: of its name, of its multiprocessors and of its memory.

    A name alone says too little: an H100 may be one of several cards, or a part of one.
    """
    try:
        row = hardware_named(device.name)
    except SearchError:
        return None
    told = PROPERTIES[row.name]
    alike = told.capability == device.capability and told.sms == device.sms
    return row if alike and _distance(device, told) <= SAME_MEMORY else None


def guessed(device: Properties) -> Guess:
    """A row for a device that there is none for, from what the device tells."""
    nearest = min(HARDWARE, key=lambda row: _remoteness(device, PROPERTIES[row.name]))
    own = replace(
        architecture_of(device.capability),
        shared_per_sm=device.shared_per_sm,
        threads_per_sm=device.threads_per_sm,
    )
    rates = _scaled(nearest, device, own)
    if own.asynchronous_rows is None:
        rates["small_tensor_factor"] = 1.0
    if not own.early_launches:
        rates["dependent"] = 0.0
    hardware = replace(
        nearest,
        name=device.name,
        architecture=own,
        sms=device.sms,
        l2_bytes=device.l2_bytes,
        **rates,
    )
    taken_over = ["latencies, launches and the times of library kernels"]
    if device.clock is None:
        taken_over.append("the clock")
    if device.peak_dram_rate is None:
        taken_over.append("the rate of the memory")
    return Guess(hardware, nearest, tuple(taken_over))


def _scaled(row: Hardware, device: Properties, own: Architecture) -> dict[str, Any]:
    """The rates of a row, and times that are cycles, as they are on another device."""
    told = PROPERTIES[row.name]
    sms, clock = device.sms / told.sms, _ratio(device.clock, told.clock)
    memory = _ratio(device.peak_dram_rate, told.peak_dram_rate)
    lanes = clock * own.lanes / row.architecture.lanes
    products = clock * own.products / row.architecture.products
    factors = {
        **dict.fromkeys(("dram_rate", "stage_bytes"), memory),
        "crowding": 1 / memory,
        **dict.fromkeys(("l2_rate", "library_broadcast"), sms * clock),
        **dict.fromkeys(("l2_rate_per_sm", "shared_rate_per_sm"), clock),
        "word_copies": clock,
        "tensor_rate": sms * products,
        **dict.fromkeys(("f32_rate", "f32_matmul_rate"), sms * lanes),
        **dict.fromkeys(_CYCLES, 1 / clock),
    }
    ranking = replace(
        row.ranking,
        bytes_per_us=row.ranking.bytes_per_us * memory / sms,
        products_per_us=row.ranking.products_per_us * products,
        operations_per_us=row.ranking.operations_per_us * lanes,
    )
    rates = {name: factor * getattr(row, name) for name, factor in factors.items()}
    return {**rates, "ranking": ranking}


_CYCLES = (
    "matrix_step",
    "operator_step",
    "reduction_step",
    "running_step",
    "across_warps",
    "exchange",
    "warp_step",
)
"""Times that are a number of cycles."""


def _remoteness(device: Properties, told: Properties) -> tuple[bool, int, float]:
    """How far a device is from a known one.

    By whether their matrix units run by themselves, by age, by their memories.
    """
    own, other = architecture_of(device.capability), architecture_of(told.capability)
    return (
        own.asynchronous_rows != other.asynchronous_rows,
        abs(own.number - other.number),
        _distance(device, told),
    )


def _distance(device: Properties, told: Properties) -> float:
    """By which factor two memories differ, less 1; 0 where one of them is not told."""
    ratio = _ratio(device.peak_dram_rate, told.peak_dram_rate)
    return max(ratio, 1 / ratio) - 1.0


def _ratio(new: float | None, old: float | None) -> float:
    """How much larger a figure is; 1 where it is not told."""
    return new / old if new and old else 1.0


# -- GPUs that the user has measured ---------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """What can be measured within seconds; of `Hardware`, in its units.

    Attributes:
        dram_rate: A reduction's bytes a second, of a tensor much larger than L2.
        l2_rate: The same, of one that L2 holds.
        launch: From one empty kernel to the next in a CUDA graph.
        tensor_rate: FLOP/s of a large library product of f16.
    """

    dram_rate: float
    l2_rate: float
    launch: float
    tensor_rate: float

    def faults(self) -> list[str]:
        """The names of figures that no GPU can have."""
        figures = {f.name: float(getattr(self, f.name)) for f in fields(self)}
        return [n for n, v in figures.items() if not (math.isfinite(v) and v > 0)]


def with_figures(row: Hardware, figures: Figures) -> Hardware:
    """A row with what was measured, and with what goes with it in the same measure."""
    memory = figures.dram_rate / row.dram_rate
    tensor = figures.tensor_rate / row.tensor_rate
    longer = figures.launch - row.launch
    ranking = replace(
        row.ranking,
        bytes_per_us=row.ranking.bytes_per_us * memory,
        products_per_us=row.ranking.products_per_us * tensor,
        launch_us=row.ranking.launch_us + 1e6 * longer,
    )
    return replace(
        row,
        name=f"{row.name} (measured)",
        dram_rate=figures.dram_rate,
        stage_bytes=row.stage_bytes * memory,
        crowding=row.crowding / memory,
        l2_rate=figures.l2_rate,
        l2_rate_per_sm=row.l2_rate_per_sm * max(figures.l2_rate / row.l2_rate, 1.0),
        tensor_rate=figures.tensor_rate,
        launch=figures.launch,
        dependent=min(row.dependent, figures.launch),
        ranking=ranking,
    )
