"""What the cost model knows of a GPU: one row of constants each, with their sources.

Sources: [M] measured for this project on that device; [D] the vendor's data sheet or
architecture white paper; [F] fitted to [M] with the model of `search.cost`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirage_dsl.errors import SearchError

SAFE_REGISTERS = 0.82
"""Share of a thread's registers up to which the estimate is safe from spills."""
SCREENED_REGISTERS = 1.1
"""Share from which on hardly anything fits.

Measured: kernels of attention that take 230 to 254 registers and do not spill are
estimated at 249; they are the fastest.
"""


@dataclass(frozen=True)
class Hardware:
    """Limits and rates of one GPU.  Rates are per second, sizes in bytes.

    Attributes:
        name: Short name.
        sms: Streaming multiprocessors.
        dram_rate: What a kernel that only reads gets.
        dram_latency: Seconds a load is under way on an idle device; with the bytes in
            flight it bounds the rate (Little's law).
        turnaround: Seconds from when a tile is asked for until its iteration can run,
            even if L2 answers.
        stage_bytes: Bytes in stage buffers of the whole GPU beyond which more of them
            slow the streams down.
        l2_bytes: Capacity of the L2 cache.
        l2_rate: Reads that hit it.
        l2_rate_per_sm: The same for one multiprocessor.
        tensor_rate: f16 and bf16 products on the matrix units, in FLOP/s, for the
            whole GPU, as large library products reach it.
        small_tensor_factor: Share of it that products with fewer than 64 rows get,
            since they cannot use the warp-group instruction.
        matrix_step: Seconds of one 16-deep step of a chain of dependent products.
        f32_rate: f32 operations on full occupancy, for the whole GPU.
        f32_matmul_rate: f32 products without the matrix units, in FLOP/s.
        reduction_step: Seconds of a reduction that warps have to exchange.
        shared_rate_per_sm: Reads of shared memory by one multiprocessor.
        shared_per_sm: Shared memory of a multiprocessor.
        shared_per_block: Most of it that one block gets.
        shared_reserved: What the driver takes of it for every block.
        registers_per_sm: 32-bit registers of a multiprocessor.
        registers_per_thread: Most that one thread gets.
        threads_per_sm: Threads that a multiprocessor holds.
        blocks_per_sm: Blocks that it holds.
        launch: Seconds from one kernel to the next in a CUDA graph.
        dependent: Seconds of the launch that a kernel saves which may start before the
            one before it has ended (programmatic dependent launch).
        ramp: Seconds to fill and drain the memory system.
        prologue: Seconds until a loop runs, its first tiles apart.
        register_share: Share of a thread's registers that an estimate may come to.
    """

    name: str
    sms: int
    dram_rate: float
    dram_latency: float
    turnaround: float
    stage_bytes: float
    l2_bytes: int
    l2_rate: float
    l2_rate_per_sm: float
    tensor_rate: float
    small_tensor_factor: float
    matrix_step: float
    f32_rate: float
    f32_matmul_rate: float
    reduction_step: float
    shared_rate_per_sm: float
    shared_per_sm: int
    shared_per_block: int
    shared_reserved: int
    registers_per_sm: int
    registers_per_thread: int
    threads_per_sm: int
    blocks_per_sm: int
    launch: float
    dependent: float
    ramp: float
    prologue: float
    register_share: float = SAFE_REGISTERS

    def screened(self) -> Hardware:
        """The same where a compiler tells what spills, and the estimate need not."""
        return replace(self, register_share=SCREENED_REGISTERS)


H100 = Hardware(
    name="H100",
    sms=132,  # [D] SXM
    dram_rate=3.08e12,  # [M] slope of a bare read, 33.5 to 67 MB
    dram_latency=6e-7,  # [F] rate against stages of a streaming product
    turnaround=8e-7,  # [F] loops with one tile ahead: 0.6 to 0.9 µs an iteration
    stage_bytes=9e6,  # [M] 6 to 9 MB in stages is best, 12 MB loses a tenth
    l2_bytes=50_000_000,  # [D]
    l2_rate=9.0e12,  # [F] 201 MB through L2 in 24 µs (gated product of 128 rows)
    l2_rate_per_sm=1.1e11,  # [D] 64 bytes a cycle
    tensor_rate=7.2e14,  # [M] library product of 8192³: 700 to 740 TFLOP/s
    small_tensor_factor=0.3,  # [F] the older instruction, its tiles read by each warp
    matrix_step=1.9e-8,  # [F] 33 cycles
    f32_rate=3.0e13,  # [D] 132 x 128 lanes x 1.755 GHz
    f32_matmul_rate=3.0e13,  # [D] half of 67 TFLOP/s
    reduction_step=1.1e-8,  # [F] reducing in every iteration: 0.1 to 0.9 µs in 32
    shared_rate_per_sm=2.25e11,  # [D] 128 bytes a cycle at 1.755 GHz
    shared_per_sm=233_472,  # [D] 228 KB
    shared_per_block=232_448,  # [D] 227 KB
    shared_reserved=1024,  # [D]
    registers_per_sm=65_536,  # [D]
    registers_per_thread=255,  # [D]
    threads_per_sm=2048,  # [D]
    blocks_per_sm=32,  # [D]
    launch=1.07e-6,  # [M] empty kernel of 132 blocks in a CUDA graph
    dependent=0.3e-6,  # [M] an empty kernel takes 0.61 µs; real ones save less
    ramp=0.7e-6,  # [F]
    prologue=0.4e-6,  # [M] bare read: 1.9 µs at 0 bytes, less launch and ramp
)
"""H100 SXM 80 GB: the device that the model is fitted to."""

H200 = replace(
    H100,
    name="H200",
    dram_rate=4.3e12,  # [M] copy; [D] says 4.8 TB/s
    stage_bytes=12e6,  # the same time of data in flight at the higher rate
)
"""H200: the H100's chip with faster memory."""

A100 = Hardware(
    name="A100",
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
    f32_matmul_rate=1.0e13,  # [D] half of 19.5 TFLOP/s
    reduction_step=4e-8,
    shared_rate_per_sm=1.8e11,  # [D] 128 bytes a cycle at 1.41 GHz
    shared_per_sm=167_936,  # [D] 164 KB
    shared_per_block=166_912,  # [D] 163 KB
    shared_reserved=1024,  # [D]
    registers_per_sm=65_536,  # [D]
    registers_per_thread=255,  # [D]
    threads_per_sm=2048,  # [D]
    blocks_per_sm=32,  # [D]
    launch=1.5e-6,  # [D] order of magnitude; not measured here
    dependent=0.0,  # [D] there is none
    ramp=0.5e-6,
    prologue=0.5e-6,
)
"""A100 SXM 80 GB: data-sheet figures, none of them measured here."""

HARDWARE: tuple[Hardware, ...] = (H100, H200, A100)


def hardware_named(name: str) -> Hardware:
    """The row called `name`, or the one whose name a device's own name contains.

    Raises:
        SearchError: There is none.
    """
    for row in HARDWARE:
        if row.name.lower() in name.lower():
            return row
    known = ", ".join(h.name for h in HARDWARE)
    raise SearchError(f"unknown hardware {name!r}; known are {known}")
