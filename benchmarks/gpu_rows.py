"""What the GPU benchmark records: rows as JSON, merged from several runs.

Needs no GPU, so that tables and charts can be made anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OURS = "mirage_dsl"
PARTIAL = ("cublas",)
"""Systems that compute only a part of the program, such as the bare product."""
MOST_ERROR_RATIO = 2.0
"""Beyond this multiple of PyTorch's own error a result is wrong."""
NOISE = 1.02
"""Times within this factor are equal."""


@dataclass
class Spread:
    """Median, least and largest of repeated measurements, in µs."""

    median: float
    low: float
    high: float


@dataclass
class System:
    """One way to compute a workload.

    Attributes:
        cold: Of a call inside a CUDA graph, inputs not in the L2 cache.
        hot: The same with one set of inputs.
        host: µs of host time of a call outside of graphs.
        error: ‖out − ref‖ / ‖ref‖ with a float64 reference, the worst of several draws.
        ready: Seconds until it could be called: search and tuning, or compilation.
        failure: Why there are no figures.
    """

    cold: Spread | None = None
    hot: Spread | None = None
    host: float | None = None
    error: float | None = None
    ready: float = 0.0
    failure: str = ""


@dataclass
class Floor:
    """What no kernel can beat: the larger of moving the bytes and the arithmetic.

    Attributes:
        read: A kernel that reads as many bytes as the inputs and outputs have.
        arithmetic: The products' FLOPs at the rate of a large library product, in µs.
        bytes: Of the inputs and outputs.
        flops: Of all products.
    """

    read: Spread
    arithmetic: float
    bytes: int
    flops: float

    @property
    def microseconds(self) -> float:
        """The larger of the two."""
        return max(self.read.median, self.arithmetic)


@dataclass
class Choice:
    """What the search and the tuner came to.

    Attributes:
        found: μGraphs that the search returned.
        nodes: Of the chosen μGraph, library operators included.
        predicted: The cost model's estimate, in µs.
        search: Seconds of the search.
        tuning: Seconds of the tuning.
        timed: Candidates that were timed.
        rejected: Reasons why others were not, with their number.
        mugraph: The chosen one's text.
    """

    found: int = 0
    nodes: int = 0
    predicted: float = 0.0
    search: float = 0.0
    tuning: float = 0.0
    timed: int = 0
    rejected: dict[str, int] = field(default_factory=dict[str, int])
    mugraph: str = ""


@dataclass
class Row:
    """One workload at one size.

    Attributes:
        workload: Its name.
        batch: The batch, or 0 where `rows` tells the size.
        rows: Rows of a linear layer at prefill, else 0.
        dtype: Storage format.
        choice: How ours was found.
        systems: By name, ours among them.
        floor: None if the workload failed before.
        failure: What went wrong with ours.
    """

    workload: str
    batch: int
    rows: int
    dtype: str
    choice: Choice = field(default_factory=Choice)
    systems: dict[str, System] = field(default_factory=dict[str, System])
    floor: Floor | None = None
    failure: str = ""

    @property
    def key(self) -> tuple[str, int, int, str]:
        """What tells rows apart."""
        return self.workload, self.batch, self.rows, self.dtype

    @property
    def title(self) -> str:
        """Workload, size and format, for people."""
        size = f"M={self.rows}" if self.rows else f"b={self.batch}"
        return f"{self.workload} {size} {SHORT.get(self.dtype, self.dtype)}"

    def cold(self, name: str) -> float | None:
        """Median µs of a system with cold inputs."""
        system = self.systems.get(name)
        return system.cold.median if system and system.cold else None

    @property
    def best_peer(self) -> tuple[str, float] | None:
        """The fastest other system that computes the whole program rightly."""
        peers: dict[str, float] = {}
        for name in self.systems.keys() - {OURS, *PARTIAL}:
            time = self.cold(name)
            if time is not None and self.is_right(name):
                peers[name] = time
        return min(peers.items(), key=lambda p: p[1]) if peers else None

    @property
    def speedup(self) -> float | None:
        """The unfused program's time over ours."""
        eager, ours = self.cold("eager"), self.cold(OURS)
        return eager / ours if eager and ours else None

    @property
    def of_floor(self) -> float | None:
        """The floor over our time: 1 is as fast as can be."""
        ours = self.cold(OURS)
        return self.floor.microseconds / ours if self.floor and ours else None

    @property
    def right(self) -> bool:
        """Whether our result is about as accurate as PyTorch's."""
        return not self.failure and self.is_right(OURS)

    def is_right(self, name: str) -> bool:
        """Whether a system's result is about as accurate as PyTorch's."""
        system, eager = self.systems.get(name), self.systems.get("eager")
        if system is None or eager is None:
            return False
        if system.error is None or eager.error is None:
            return False
        return system.error <= MOST_ERROR_RATIO * eager.error

    @property
    def slower(self) -> bool:
        """Whether ours is slower than the unfused program by more than the noise."""
        return self.speedup is not None and self.speedup * NOISE < 1.0


SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass
class Results:
    """The rows of one machine.

    Attributes:
        machine: GPU, driver, and the versions of what was measured.
        settings: How: effort, draws and the like.
        rows: In the order of measurement.
    """

    machine: dict[str, str]
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list[Row])

    def has(self, row: Row) -> bool:
        """Whether a row like this one was measured already."""
        return any(r.key == row.key for r in self.rows)

    def put(self, row: Row) -> None:
        """Add a row, in the place of an older one."""
        for at, old in enumerate(self.rows):
            if old.key == row.key:
                self.rows[at] = row
                return
        self.rows.append(row)

    def save(self, file: Path) -> None:
        """Write JSON, all of it or nothing."""
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(file.name + ".part")
        part.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        part.replace(file)


def load(file: Path) -> Results:
    """The results in a file.

    Raises:
        ValueError: It holds something else.
    """
    document = json.loads(file.read_text(encoding="utf-8"))
    try:
        rows = [_row(r) for r in document["rows"]]
        return Results(document["machine"], document["settings"], rows)
    except (KeyError, TypeError) as error:
        message = f"{file} holds no results of benchmarks.gpu: {error!r}"
        raise ValueError(message) from error


def merged(parts: Sequence[Results]) -> Results:
    """Several runs as one; of equal rows the last is kept.

    Raises:
        ValueError: They are of different machines.
    """
    first = parts[0]
    for part in parts[1:]:
        other = {
            name: (value, part.machine.get(name))
            for name, value in first.machine.items()
            if part.machine.get(name) != value
        }
        if other:
            raise ValueError(f"results of different machines: {other}")
    found = Results(first.machine, first.settings)
    for row in (r for part in parts for r in part.rows):
        found.put(row)
    return found


def ordered(rows: Iterable[Row], names: Sequence[str]) -> list[Row]:
    """Rows by workload, then decode before prefill, size and format."""
    places = {name: i for i, name in enumerate(names)}
    return sorted(
        rows,
        key=lambda r: (
            r.rows > 0,
            places.get(r.workload, len(places)),
            r.rows,
            r.batch,
            r.dtype,
        ),
    )


def _row(record: dict[str, Any]) -> Row:
    floor = record["floor"]
    return Row(
        record["workload"],
        record["batch"],
        record["rows"],
        record["dtype"],
        Choice(**record["choice"]),
        {name: _system(s) for name, s in record["systems"].items()},
        Floor(**{**floor, "read": Spread(**floor["read"])}) if floor else None,
        record["failure"],
    )


def _system(record: dict[str, Any]) -> System:
    def spread(name: str) -> Spread | None:
        return Spread(**record[name]) if record[name] else None

    return System(**{**record, "cold": spread("cold"), "hot": spread("hot")})
