"""The GPU at hand: what its driver tells, which row of `hardware` it has, its figures.

A row is, in this order, what the user has measured, the one that is known, or a guess
from the device's own properties, of which a warning tells once.
"""

# PyTorch's functions for devices are only partly typed.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import logging
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mirage_dsl.core.errors import CacheError, CompileError, SearchError
from mirage_dsl.core.files import typed
from mirage_dsl.core.hardware import (
    Figures,
    Hardware,
    Properties,
    guessed,
    hardware_named,
    known_row,
    with_figures,
)
from mirage_dsl.store.cache import HARDWARE, Cache, Entry, Key

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("mirage_dsl.devices")

_told: set[Properties] = set()

ADVICE = "`mirage-dsl doctor --measure` measures the most important figures"

_KHZ = 1e3


def properties_here() -> Properties:
    """What the driver of the current GPU tells of it."""
    import torch

    told = torch.cuda.get_device_properties(torch.cuda.current_device())
    return properties_of(told)


def properties_of(told: Any) -> Properties:
    """What PyTorch says of a device; older versions do not tell its clocks."""

    def hertz(name: str) -> float | None:
        return _KHZ * getattr(told, name, 0) or None

    return Properties(
        told.name,
        (told.major, told.minor),
        told.multi_processor_count,
        told.L2_cache_size,
        told.shared_memory_per_multiprocessor,
        told.max_threads_per_multi_processor,
        hertz("clock_rate"),
        hertz("memory_clock_rate"),
        getattr(told, "memory_bus_width", 0) or None,
    )


def current_hardware() -> Hardware:
    """What is known of the current GPU; a warning, once, where little is."""
    return hardware_of(properties_here())


def hardware_of(device: Properties) -> Hardware:
    """What is known of a device: measured by the user, known, or guessed."""
    figures = measured_figures(device)
    row = known_row(device)
    if row is None:
        guess = guessed(device)
        row = guess.hardware
        if figures is None and device not in _told:
            _told.add(device)
            _log.warning("%s; %s", guess, ADVICE)
    return row if figures is None else with_figures(row, figures)


def described(device: Properties) -> str:
    """Where the row of a device comes from, in words."""
    row = known_row(device)
    if measured_figures(device) is not None:
        basis = "its properties" if row is None else f"the row {row.name}"
        return f"figures that were measured here, beside {basis}"
    return f"{guessed(device)}; {ADVICE}" if row is None else f"the row {row.name}"


def device_named(name: str) -> Hardware:
    """A row by its name, or that of a GPU that the user has measured by its own.

    Raises:
        SearchError: There is none.
    """
    try:
        return hardware_named(name)
    except SearchError:
        for entry in Cache().entries(HARDWARE):
            device = _device(entry)
            if device is not None and device.name.lower() == name.lower():
                return hardware_of(device)
        raise


# -- What the user has measured --------------------------------------------------------


def _key(device: Properties) -> Key:
    """What the figures of a device are stored under: all that it tells of itself."""
    return Key(HARDWARE, tuple((n, str(v)) for n, v in asdict(device).items()))


def keep_figures(device: Properties, figures: Figures) -> None:
    """Store what was measured; from now on it is used for devices that tell the same.

    Raises:
        CacheError: No GPU can have such figures.
    """
    wrong = figures.faults()
    if wrong:
        raise CacheError(
            f"the figures of {device.name} are not kept: {', '.join(wrong)} came out "
            f"as {figures}; measure while nothing else runs on the GPU"
        )
    content = {"device": asdict(device), "figures": asdict(figures)}
    Cache().store(_key(device), content)


def measured_figures(device: Properties) -> Figures | None:
    """What this machine has measured of a device; what others have does not count."""
    entry = Cache().load(_key(device))
    if entry is None or not entry.own:
        return None
    try:
        figures: Figures = typed(Figures, entry.content.get("figures"))
    except CacheError:
        return None
    return None if figures.faults() else figures


def _device(entry: Entry) -> Properties | None:
    try:
        return typed(Properties, entry.content.get("device"))
    except CacheError:
        return None


# -- Measuring -------------------------------------------------------------------------

READ = 1024
"""Elements of a row that is read and summed."""
SQUARE = 8192
"""Rows and columns of the product that is timed."""
CHAIN = 20_000.0
"""µs that a chain of calls takes, about."""


def measure() -> Figures:
    """Measure the current GPU, within seconds; nothing else should run on it.

    The rate of reading is the slope between two sizes, so that no launch is in it.

    Raises:
        CompileError: There is no CUDA device.
    """
    import torch

    if not torch.cuda.is_available():
        raise CompileError(
            "--measure needs a CUDA device, and PyTorch finds none; run it on the "
            "machine with the GPU, without it `mirage-dsl doctor` says what works here"
        )
    l2 = properties_here().l2_bytes
    torch.cuda.empty_cache()
    return Figures(
        dram_rate=_read_rate(4 * l2, 8 * l2),
        l2_rate=_read_rate(l2 // 16, l2 // 4),
        launch=_seconds(_nothing, ()),
        tensor_rate=_tensor_rate(),
    )


def _nothing() -> None:
    """Launch a kernel that ends at once."""
    import torch

    torch.cuda._sleep(0)


def _read_rate(fewer: int, more: int) -> float:
    """Bytes a second, from how much longer it takes to read more of them."""
    small, large = _rows(fewer), _rows(more)
    seconds = _seconds(_sums, (large,)) - _seconds(_sums, (small,))
    return 4 * (large.numel() - small.numel()) / seconds if seconds > 0 else math.nan


def _rows(size: int) -> torch.Tensor:
    import torch

    return torch.zeros(size // (4 * READ), READ, dtype=torch.float32, device="cuda")


def _sums(rows: torch.Tensor) -> torch.Tensor:
    return rows.sum(dim=1)


def _tensor_rate() -> float:
    """FLOP/s of a library product of f16."""
    import torch

    side = torch.randn(SQUARE, SQUARE, dtype=torch.float16, device="cuda")
    return 2 * SQUARE**3 / _seconds(torch.mm, (side, side))


def _seconds(call: Any, given: tuple[Any, ...]) -> float:
    """Median seconds of a call in a CUDA graph, with its inputs where they are."""
    from mirage_dsl.tune.timing import time_sets

    return time_sets(call, [given], chain=CHAIN).median / 1e6
