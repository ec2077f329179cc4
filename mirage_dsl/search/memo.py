"""What is not searched twice: what is known by a key, and what differs in names only.

What was found once under a key is not searched again.  With a checkpoint it is also
kept in a file, so that an interruption loses little.  The file has one JSON document a
line, each with a checksum, and only grows: a line that an interruption cut short is
passed over.  Lines of other programs, settings or versions of the code have other keys,
so one file may serve many searches.

Programs that are the same but for their names, as the layers of a model are, have one
text, and what was found for one of them is renamed for the others.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from mirage_dsl.core.errors import CacheError, MirageError
from mirage_dsl.core.files import checksum
from mirage_dsl.ir.canonical import Renaming, canonical_names, longer_name
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Load
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.ir.walk import results_of
from mirage_dsl.search.budget import SearchBudget

# -- What is known, by key -------------------------------------------------------------

_log = logging.getLogger("mirage_dsl.search.memo")

T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoint:
    """What is known, by key.

    Attributes:
        path: The file; it need not exist.
        version: Of the code; what other code found is not used.
    """

    path: Path
    version: str = ""

    @cached_property
    def _entries(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return found
        except (OSError, UnicodeDecodeError) as error:
            raise CacheError(
                f"the checkpoint {self.path} cannot be read: {error}"
            ) from error
        for line in lines:
            entry = _entry(line)
            if entry is None:
                _log.warning("%s: a damaged line is passed over", self.path)
            else:
                found[entry[0]] = entry[1]
        return found

    def load(self, key: str) -> Any:
        """What is known under a key; None if nothing is."""
        return self._entries.get(key)

    def store(self, key: str, value: Mapping[str, Any]) -> None:
        """Append what was found.

        Raises:
            CacheError: The file cannot be written.
        """
        line = json.dumps([key, value, checksum([key, value])])
        whole = not self._entries or self.path.read_bytes().endswith(b"\n")
        self._entries[key] = value
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n" if whole else "\n" + line + "\n")
        except OSError as error:
            raise CacheError(
                f"the checkpoint {self.path} cannot be written: {error}"
            ) from error


def _entry(line: str) -> tuple[str, Any] | None:
    try:
        key, value, claimed = cast("list[Any]", json.loads(line))
        whole = checksum([key, value]) == claimed
    except (ValueError, TypeError, RecursionError):
        # Lists can be nested more deeply than Python reads or writes them.
        return None
    return (str(key), value) if whole else None


@dataclass
class Memo:
    """What is known, by key: of this process, and of a checkpoint if there is one.

    Attributes:
        budget: Of the search; what it cut short is not kept in the file.
        checkpoint: The file.
        known: What is known as it is, by any key.
    """

    budget: SearchBudget = field(default_factory=SearchBudget)
    checkpoint: Checkpoint | None = None
    known: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])

    def key(self, *parts: object) -> str:
        """A key for what depends on some parts, by their texts."""
        version = "" if self.checkpoint is None else self.checkpoint.version
        return checksum([version, *map(str, parts)])

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is known under a key in this process, or made now."""
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def recall(self, key: str, read: Callable[[dict[str, Any]], T]) -> T | None:
        """What the file has under a key; None if nothing, or nothing of use."""
        document = None if self.checkpoint is None else self.checkpoint.load(key)
        if self.checkpoint is None or document is None:
            return None
        try:
            return read(document)
        except (MirageError, KeyError, TypeError, ValueError) as error:
            _log.warning("%s: an entry is not usable: %s", self.checkpoint.path, error)
            return None

    def keep(
        self, key: str, write: Callable[[], dict[str, Any]], *, whole: bool = False
    ) -> None:
        """Keep something in the file, if it is whole: if no time cut it short."""
        if self.checkpoint is not None and (whole or not self.budget.late()):
            self.checkpoint.store(key, write())


# -- Programs that are the same but for their names ------------------------------------


@dataclass(frozen=True)
class Names:
    """The names of a program, in an order that does not depend on them.

    Nor on the order of operators that do not need each other.

    Attributes:
        values: Inputs, then results of operators.
        dims: All that the values have, as they appear.
    """

    values: tuple[str, ...]
    dims: tuple[str, ...]


def names_of(program: KernelGraph) -> Names:
    """The names of a program of operators only."""
    known = canonical_names(program)
    applies = [n.result for n in program.applies]
    ordered = sorted(applies, key=lambda name: known.values[name])
    inputs = (i.name for i in program.given)
    return Names((*inputs, *ordered), tuple(known.dims))


def normal(program: KernelGraph, names: Names) -> KernelGraph:
    """The same program for programs that differ only in names: `v0`, `v1`, `d0`, ..."""
    used = set(names.dims)
    bare = replace(
        program,
        name="segment",
        extents=tuple((n, e) for n, e in program.extents if n in used),
    )
    renaming = Renaming(
        {name: f"d{i}" for i, name in enumerate(names.dims)},
        {name: f"v{i}" for i, name in enumerate(names.values)},
    )
    return renaming.graph(bare)


def normal_text(program: KernelGraph) -> str:
    """The same text for programs that differ only in names."""
    return to_text(normal(program, names_of(program)))


def renamed(graph: KernelGraph, own: Names, other: Names) -> KernelGraph:
    """A μGraph of one program, as one of another that differs only in names."""
    if own == other:
        return graph
    values = dict(zip(own.values, other.values, strict=True))
    dims = dict(zip(own.dims, other.dims, strict=True))
    _keep_apart(values, own.values, _tensors(graph))
    _keep_apart(dims, own.dims, [n for n, _ in graph.extents])
    taken = set(values.values())
    inner = tuple(_inner_names(block, values, taken) for block in graph.blocks)
    return Renaming(dims, values, inner).graph(graph)


def _tensors(graph: KernelGraph) -> list[str]:
    """The values of a kernel graph that kernels make."""
    return [name for node in graph.nodes for name in results_of(node)]


def _keep_apart(
    names: dict[str, str], program: Sequence[str], used: Iterable[str]
) -> None:
    """Add new names for what only the μGraph has, where the other program has these."""
    taken = set(names.values())
    for name in used:
        if name in program or name.endswith("#"):
            continue  # `k#` follows `k`.
        names[name] = longer_name(name, taken)


def _inner_names(
    block: BlockGraph, values: dict[str, str], taken: AbstractSet[str]
) -> dict[str, str]:
    """Loads are called after what they load; nothing is called like a tensor."""
    wanted: dict[str, str] = {}
    for node in block.nodes:
        if isinstance(node, Load) and node.result.startswith(f"{node.source}_t"):
            rest = node.result.removeprefix(node.source)
            wanted[node.result] = values.get(node.source, node.source) + rest
    names = [n.result for n in block.nodes if n.result not in block.results]
    used = set(taken)
    return {name: longer_name(wanted.get(name, name), used) for name in names}
