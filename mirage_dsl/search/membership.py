"""Whether the values of a given block are in S: its abstract keys, one by one.

The rules are those of the closure (`search.closure`), for one graph and in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    Operand,
    RunningMax,
    Store,
)
from mirage_dsl.ops.definition import Term
from mirage_dsl.ops.table import ROWSHIFT
from mirage_dsl.search.abstract import Useful, salt_of, useful
from mirage_dsl.search.field61 import MODULUS, iota, key_of, word_of
from mirage_dsl.search.space import Space
from mirage_dsl.search.steps import IN_TILE, JOIN, REDUCE
from mirage_dsl.search.terms import Pair, times


@dataclass(frozen=True)
class Abstract:
    """A value as pruning sees it.

    Attributes:
        pair: Its fingerprint.
        names: Its dims, as a mask.
        piece: Whether it has only one iteration's piece of the loop dim.
    """

    pair: Pair
    names: int
    piece: bool = False


class UnknownValueError(Exception):
    """A value that the search does not make, whatever S holds; its text says why."""


@dataclass
class Membership:
    """Evaluates a block value by value.

    Attributes:
        space: The program's space; the block uses its names.
        block: The block.
        sources: Abstract values of tensors that are no inputs of the program.
        values: Values so far; None for one that only shifts exponents.
    """

    space: Space
    block: BlockGraph
    sources: Mapping[str, Abstract] = field(default_factory=dict[str, Abstract])
    values: dict[str, Abstract | None] = field(
        default_factory=dict[str, "Abstract | None"]
    )

    def __post_init__(self) -> None:
        loop = None if self.block.loop is None else self.block.loop.dim
        self.loop = -1 if loop is None else self.space.dims.index(loop)
        self.useful: Useful = useful(self.space, loop)
        self.tensors = {
            v.name: Abstract(self.useful.fingerprints[i], v.names)
            for i, v in enumerate(self.space.values)
            if v.constant is None
        }

    def stranger(self) -> str | None:
        """The first value that is not in S, and why; None if there is none."""
        for node in self.block.nodes:
            try:
                found = self._evaluated(node)
            except UnknownValueError as error:
                return f"`{node.result}`: {error}"
            self.values[node.result] = found
            if found is not None and not isinstance(node, Load | Store):
                if self._is_member(found):
                    continue
                dims = ", ".join(self.space.names(found.names))
                return (
                    f"the abstract expression of `{node.result}`[{dims}] is not in S: "
                    "it is no part of any expression that the axioms of sums, products "
                    "and quotients make of the program"
                )
        return None

    def _is_member(self, value: Abstract) -> bool:
        key = key_of(value.pair) ^ salt_of(value.names) or 1
        return key in self.useful.keys

    def _evaluated(self, node: BlockNode) -> Abstract | None:
        match node:
            case Load():
                return self._loaded(node)
            case RunningMax():
                return None
            case Store():
                return self.values[node.operand]
            case Accumulate():
                return self._accumulated(node)
            case Apply():
                return self._applied(node)

    def _loaded(self, node: Load) -> Abstract:
        known = self.tensors.get(node.source) or self.sources.get(node.source)
        if known is None:
            raise UnknownValueError(f"the program has no tensor {node.source}")
        looped = any(d.loop for axis in node.axes for d in axis)
        return Abstract(known.pair, known.names, looped)

    def _accumulated(self, node: Accumulate) -> Abstract | None:
        value = self.values[node.operand]
        if value is None:
            return None
        if node.kind == "concat":
            return Abstract(value.pair, value.names)
        if node.kind != "sum":
            return self._stepped(node.kind, value, 0, JOIN)
        s = self.useful.sigma_loop
        return Abstract(times(value.pair, (s, s)), value.names, value.piece)

    def _applied(self, node: Apply) -> Abstract | None:
        if node.op is ROWSHIFT:
            return None
        operands = [self._operand(o) for o in node.operands]
        first = operands[0]
        if first is None or None in operands:
            # x - shift is x, and what is computed of shifts is one.
            return first if node.op.term is Term.SUB else None
        known = [o for o in operands if o is not None]
        if node.op.in_steps and node.op.term is Term.FUNCTION:
            over = self.space.mask(node.over)
            tile = first.piece and bool(over >> self.loop & 1)
            return self._stepped(node.op.name, first, over, IN_TILE if tile else REDUCE)
        names = 0
        for o in known:
            names |= o.names
        whole = Abstract(self._pair(node, known), names, any(o.piece for o in known))
        return self._summed(node, whole)

    def _operand(self, operand: Operand) -> Abstract | None:
        if isinstance(operand, str):
            return self.values[operand]
        for i in self.space.constants:
            if self.space.values[i].constant == operand:
                return Abstract(self.useful.fingerprints[i], 0)
        raise UnknownValueError(f"the program has no constant {operand}")

    def _pair(self, node: Apply, operands: list[Abstract]) -> Pair:
        a, b = operands[0].pair, operands[-1].pair
        match node.op.term:
            case Term.ADD:
                return (a[0] + b[0]) % MODULUS, (a[1] + b[1]) % MODULUS
            case Term.SUB:
                return (a[0] - b[0]) % MODULUS, (a[1] + b[1]) % MODULUS
            case Term.MUL | Term.CONTRACT:
                return times(a, b)
            case Term.DIV:
                return times(a, (iota(b[0]), iota(b[1])))
            case Term.SUM | Term.IDENTITY:
                return a
            case Term.FUNCTION:
                return self._function(node, operands)

    def _stepped(self, name: str, value: Abstract, over: int, way: int) -> Abstract:
        """A step of a reduction that is made in steps."""
        for site in self.useful.sites:
            op = self.space.values[site.value].op
            same = op is not None and op.name == name
            if same and (site.keys, site.over, site.way) == (
                (key_of(value.pair),),
                over,
                way,
            ):
                names = value.names & ~over
                piece = value.piece and (way == JOIN or not over >> self.loop & 1)
                return Abstract(site.result, names, piece)
        raise UnknownValueError(
            f"the program has no {name} of an operand with this abstract expression"
        )

    def _function(self, node: Apply, operands: list[Abstract]) -> Pair:
        word = word_of(f"{node.op.name} over {self.space.mask(node.over)}")
        keys = tuple(key_of(o.pair) for o in operands)
        if node.op.commutative:
            keys = tuple(sorted(keys))
        for site in self.useful.sites:
            value = self.space.values[site.value]
            same = word == word_of(f"{value.function} over {value.over}")
            if same and site.keys == keys:
                return site.result
        raise UnknownValueError(
            f"the program has no {node.op.name} of an operand with this abstract "
            "expression; functions are searched on what the program applies them to"
        )

    def _summed(self, node: Apply, value: Abstract) -> Abstract:
        over = self.space.mask(node.over)
        pair = value.pair
        if node.op.term in (Term.SUM, Term.CONTRACT):
            for d in range(len(self.space.dims)):
                if over >> d & 1:
                    s = self.useful.sigma[d][d == self.loop and value.piece]
                    pair = times(pair, (s, s))
        names = value.names & ~over
        still = value.piece and bool(names >> self.loop & 1)
        return Abstract(pair, names, still)
