"""The ledger of a search: how much was looked at, and what was cut by what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

CUTS = (
    "abstract expression",
    "joined values",
    "shared memory",
    "registers",
    "tile size",
    "constraints",
    "bound",
    "cost rank",
    "duplicate",
    "verification",
    "stability",
)
"""What cuts candidates, in the order of the search."""


@dataclass
class Ledger:
    """Counts of one search.

    Attributes:
        found: What was looked at: `structures`, `sizes tried`, `segments`, `verified`.
        cut: How many were cut, by what (`CUTS`).  Resources cut sizes of structures;
            the bound of what can be cheap enough cuts segments, the others structures
            or whole μGraphs.
        notes: Sentences for the user: what could not be searched, and why.
    """

    found: Counter[str] = field(default_factory=Counter[str])
    cut: Counter[str] = field(default_factory=Counter[str])
    notes: list[str] = field(default_factory=list[str])

    def note(self, text: str) -> None:
        """Add a sentence, once."""
        if text not in self.notes:
            self.notes.append(text)

    def add(self, other: Ledger) -> None:
        """Add the counts and notes of another ledger."""
        self.found.update(other.found)
        self.cut.update(other.cut)
        for text in other.notes:
            self.note(text)

    def take_sizes(self, tally: Mapping[str, int]) -> None:
        """Add the counts of `sizes.choose_sizes`."""
        for name, count in tally.items():
            (self.cut if name in CUTS else self.found)[name] += count

    def take_structures(self, counters: Mapping[str, int]) -> None:
        """Add the counts of the structural search."""
        for name, count in counters.items():
            if name != "structures":
                self.found[name.replace("_", " ")] += count

    def take_union(self, counters: Mapping[str, int]) -> None:
        """Add the counts of the search for several kernels."""
        for name, count in counters.items():
            self.found[f"several kernels: {name.replace('_', ' ')}"] += count

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "found": dict(self.found),
            "cut": dict(self.cut),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Mapping[str, int] | list[str]]) -> Ledger:
        """The reverse of `as_dict`."""
        found, cut, notes = record["found"], record["cut"], record["notes"]
        assert isinstance(found, Mapping)
        assert isinstance(cut, Mapping)
        return cls(Counter(found), Counter(cut), [str(n) for n in notes])

    def __str__(self) -> str:
        lines = [f"{name}: {count}" for name, count in self.found.items() if count]
        order = sorted(+self.cut, key=lambda c: CUTS.index(c) if c in CUTS else 99)
        lines += [f"cut by {name}: {self.cut[name]}" for name in order]
        return "\n".join(lines + self.notes)
