"""How the extents of two graphs hang together, so that they can shrink together.

Dims of both graphs fall into classes of equal extent: dims of corresponding axes, and
a dim and its renaming.  A dim that is sliced, joined or sliced from is cut into
*segments* at all places where a slice or a join begins or ends; segments that show the
same elements are one.  Any sizes of the segments keep both graphs consistent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirage_dsl.errors import UnsupportedError
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import view_nodes

Key = tuple[int, str]
"""Side (0: program, 1: candidate) and name of a dim."""

_MOST_CUTS = 64


class Classes:
    """Disjoint sets of keys."""

    def __init__(self) -> None:
        self._parent: dict[tuple[object, ...], tuple[object, ...]] = {}

    def find(self, key: tuple[object, ...]) -> tuple[object, ...]:
        """The representative of a key's set."""
        parent = self._parent.setdefault(key, key)
        if parent == key:
            return key
        root = self.find(parent)
        self._parent[key] = root
        return root

    def join(self, a: tuple[object, ...], b: tuple[object, ...]) -> None:
        """Unite two sets."""
        self._parent[self.find(a)] = self.find(b)


@dataclass(frozen=True)
class Part:
    """The dim `target` is the elements of `source` from `start` to before `stop`."""

    source: Key
    start: int
    stop: int
    target: Key


def parts_of(graph: KernelGraph, side: int) -> Iterator[Part]:
    """Slices and joins as parts, in true extents; an inserted dim is its own part."""
    for node, split in view_nodes(graph):
        attrs = dict(node.attrs)
        to, dims = attrs.get("to"), attrs.get("dims")
        start, stop = attrs.get("start"), attrs.get("stop")
        if isinstance(start, int) and isinstance(stop, int):
            source = (side, str(attrs["dim"]))
            yield Part(source, start, stop, (side, str(to)))
        elif isinstance(to, str) and isinstance(dims, tuple):
            if not split.isdisjoint(dims):
                continue
            offset = 0
            for dim in dims:
                extent = _known(graph, dim)
                yield Part((side, to), offset, offset + extent, (side, dim))
                offset += extent
        elif set(attrs) == {"to"}:
            yield Part((side, str(to)), 0, 1, (side, str(to)))


def _known(graph: KernelGraph, dim: str) -> int:
    extent = graph.extent_of.get(dim)
    if extent is None:
        raise UnsupportedError(
            f"verification needs the extent of {dim}, which is sliced or joined; "
            "state it"
        )
    return extent


class Segments:
    """The segments of all dims, given their true extents and parts."""

    def __init__(
        self, graphs: Sequence[KernelGraph], classes: Classes, parts: Sequence[Part]
    ) -> None:
        self._classes = classes
        self._same = Classes()
        self._cuts: dict[tuple[object, ...], list[int]] = {}
        for part in parts:
            for key in (part.source, part.target):
                extent = _known(graphs[key[0]], key[1])
                self._cuts.setdefault(classes.find(key), [0, extent])
        while any(self._spread(part) for part in parts):
            pass
        for part in parts:
            self._unify(part)

    def _spread(self, part: Part) -> bool:
        """Carry cuts between a part and its source; whether that made new ones."""
        source = self._cuts[self._classes.find(part.source)]
        target = self._cuts[self._classes.find(part.target)]
        down = {c - part.start for c in source if part.start <= c <= part.stop}
        up = {c + part.start for c in target} | {part.start, part.stop}
        new_target, new_source = sorted(down | set(target)), sorted(up | set(source))
        changed = len(new_target) > len(target) or len(new_source) > len(source)
        target[:], source[:] = new_target, new_source
        if len(source) > _MOST_CUTS:
            raise UnsupportedError(
                f"the slices of {part.source[1]} cut it into more than {_MOST_CUTS} "
                "pieces, too many to verify at small sizes"
            )
        return changed

    def _unify(self, part: Part) -> None:
        source, target = (
            self._classes.find(part.source),
            self._classes.find(part.target),
        )
        first = self._cuts[source].index(part.start)
        for i in range(len(self._cuts[target]) - 1):
            self._same.join((target, i), (source, first + i))

    def cuts(self, key: Key) -> list[int]:
        """Where a dim is cut, its ends included; empty for a dim without cuts."""
        return self._cuts.get(self._classes.find(key), [])

    def of(self, key: Key) -> list[tuple[object, ...]]:
        """The segments of a dim, in order."""
        root = self._classes.find(key)
        count = max(1, len(self._cuts.get(root, [])) - 1)
        return [self._same.find((root, i)) for i in range(count)]

    def is_single(self, key: Key, index: int) -> bool:
        """Whether a segment of a cut dim is one element long in truth."""
        cuts = self.cuts(key)
        return bool(cuts) and cuts[index + 1] - cuts[index] == 1
