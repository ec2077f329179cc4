"""Reads a μGraph from `.mu` text: the inverse of `printer`.

The language is described in `docs/text-format.md`.  `syntax` reads its forms, and a
graph is made of them here: names are resolved, what the text leaves out (`over`, types,
derived extents) is inferred, and what it states of types is checked.  The first error
is raised with its place.  Values inside expressions get fresh names, `r_1`, `r_2` for a
result `r`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, Protocol

from mirage_dsl.core.errors import CheckError, ParseError
from mirage_dsl.core.types import Axis, DType, TensorType, axis_text
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    Index,
    Input,
    KernelGraph,
    KernelNode,
    Load,
    Return,
    RunningMax,
    Schedule,
    Split,
    Store,
    accumulator_kinds,
    dims_of,
)
from mirage_dsl.ir.infer import check_store, store_type
from mirage_dsl.ir.maps import complete_extents, partial_base
from mirage_dsl.ir.text.applications import Resolver, Scope, place_of, same_type, shown
from mirage_dsl.ir.text.forms import (
    AccumulateForm,
    AssignForm,
    BlockForm,
    ClauseForm,
    GraphForm,
    IndexForm,
    LoadForm,
    ReturnForm,
    RunningForm,
    Source,
    StatementForm,
    StoreForm,
    TargetForm,
    Word,
    clipped,
    counted,
    suggest,
)
from mirage_dsl.ir.text.printer import VERSION

# -- Forms become a graph --------------------------------------------------------------


def elaborate(form: GraphForm, source: Source) -> KernelGraph:
    """The graph that the forms describe.

    Raises:
        ParseError: A name, number or form that the language does not have.
        CheckError: A type rule does not hold, or a stated type is another.
    """
    return _Kernel(form, source).graph()


class _Kernel:
    """Elaborates the statements of a kernel graph."""

    def __init__(self, form: GraphForm, source: Source) -> None:
        self.form = form
        self.source = source
        self.resolver = Resolver(source, form)
        taken = dict.fromkeys(re.findall(r"[^\W\d]\w*", source.text), 0)
        self.scope = Scope(self.resolver, taken, targets=_targets(form.statements))
        self.nodes: list[KernelNode] = []
        self.indices: list[Index] = []
        self.returns: tuple[Return, ...] | None = None
        self.result_dtypes = self._result_dtypes()

    def _result_dtypes(self) -> dict[str, DType]:
        """Dtypes that the header gives to returned values."""
        returned = [s for s in self.form.statements if isinstance(s, ReturnForm)]
        names = [v.text for r in returned[:1] for v in r.values]
        dtypes = [self.resolver.dtype(t.dtype) for t in self.form.returns]
        return dict(zip(names, dtypes, strict=False))

    def graph(self) -> KernelGraph:
        inputs: list[Input] = []
        for name, form in self.form.inputs:
            type_ = self.resolver.type(form, pieces=False)
            self.scope.define(name, type_)
            inputs.append(Input(name.text, type_, self.source.at(name)))
        for statement in self.form.statements:
            self._statement(statement)
        if self.returns is None:
            raise self.source.wrong(
                self.form.name, f"{self.form.name} has no `return` at its end"
            )
        graph = KernelGraph(
            self.form.name.text,
            tuple(inputs),
            tuple(self.nodes),
            self.returns,
            (),
            tuple(self.indices),
        )
        return complete_extents(graph, self.resolver.extents)

    def _statement(self, statement: StatementForm) -> None:
        if self.returns is not None:
            raise self.source.wrong(
                _first_word(statement), "nothing may follow `return` but `}`"
            )
        match statement:
            case ReturnForm():
                self.returns = self._returned(statement)
            case StoreForm():
                raise self.source.wrong(
                    statement.name, "`store` stands in a block, found it outside"
                )
            case AssignForm():
                self._assign(statement)

    def _assign(self, statement: AssignForm) -> None:
        match statement.right:
            case BlockForm() as form:
                self._block(statement, form)
            case IndexForm() as form:
                self._index(_only_target(statement, self.source), form)
            case LoadForm() | AccumulateForm() | RunningForm():
                raise self.source.wrong(
                    statement.targets[0].name,
                    "`load`, `accumulate` and `running max` stand in a block, found "
                    "one outside",
                )
            case right:
                target = _only_target(statement, self.source)
                self.scope.assign(target.name, target.type, right)
                self.nodes += (n for n in self.scope.nodes if isinstance(n, Apply))
                self.scope.nodes.clear()

    def _index(self, target: TargetForm, form: IndexForm) -> None:
        if target.type is not None:
            raise self.source.wrong(
                target.type.dtype, "an index value has no type; write `i = index n`"
            )
        (axis,) = self.resolver.axes((form.axis,), pieces=False)
        found = Index(target.name.text, axis, self.source.at(target.name))
        self.scope.define(target.name, found.type)
        self.indices.append(found)

    def _returned(self, form: ReturnForm) -> tuple[Return, ...]:
        # Nodes make dims, so what the header returns is resolved after them.
        types = [self.resolver.type(t, pieces=False) for t in self.form.returns]
        if len(types) != len(form.values):
            place = form.values[0] if form.values else self.form.name
            raise self.source.wrong(
                place,
                f"{counted(len(form.values), 'value')} returned, but "
                f"{counted(len(types), 'type')} behind `->` in the header",
            )
        for value, type_ in zip(form.values, types, strict=True):
            have = self.scope.types[self.scope.lookup(value)]
            if sorted(have.names) != sorted(type_.names):
                raise self.source.ill_typed(
                    value,
                    f"{value} is {shown(have)}, the header returns {shown(type_)}",
                )
        pairs = zip(form.values, types, strict=True)
        return tuple(Return(v.text, t, self.source.at(v)) for v, t in pairs)

    def _block(self, statement: AssignForm, form: BlockForm) -> None:
        block = _Block(self, form, statement.targets[0].name).graph()
        targets = {t.name.text: t for t in statement.targets}
        if sorted(targets) != sorted(block.results):
            raise self.source.wrong(
                statement.targets[0].name,
                f"the block stores {', '.join(block.results) or 'nothing'}, the line "
                f"names {', '.join(targets)}",
            )
        for store in block.stores:
            target, type_ = targets[store.result], store_type(store)
            self.scope.define(target.name, type_)
            if target.type is None:
                continue
            stated = self.resolver.type(target.type, pieces=False)
            if not same_type(stated, type_, ordered=True):
                raise self.source.ill_typed(
                    target.type.dtype,
                    f"{target.name} is {shown(type_)}, not {shown(stated)}",
                )
        self.nodes.append(block)


class _Block:
    """Elaborates one block."""

    def __init__(self, kernel: _Kernel, form: BlockForm, name: Word) -> None:
        self.kernel = kernel
        self.source = kernel.source
        self.resolver = kernel.resolver
        self.form = form
        self.stores: set[str] = set()
        block = BlockGraph((), None, (), location=self.source.at(name))
        given: set[str] = set()
        for clause in form.clauses:
            if clause.name.text in given:
                raise self.source.wrong(clause.name, f"{clause.name} is given twice")
            given.add(clause.name.text)
            block = self._with_clause(block, clause)
        outer = kernel.scope.types
        targets = _targets(form.statements)
        self.scope = Scope(
            self.resolver, kernel.scope.taken, block, outer, targets=targets
        )
        self.block = block

    def graph(self) -> BlockGraph:
        for statement in self.form.statements:
            self._statement(statement)
        return replace(self.block, nodes=tuple(self.scope.nodes))

    # -- grid, loop and schedule ---------------------------------------------------

    def _with_clause(self, block: BlockGraph, clause: ClauseForm) -> BlockGraph:
        match clause.name.text:
            case "grid":
                return replace(block, grid=self._splits(clause))
            case "while":
                bounds = (self.resolver.bound(b, block.loop) for b in clause.bounds)
                return replace(block, bounds=tuple(bounds))
            case "settled":
                known = (self.resolver.settled(s, block.loop) for s in clause.settled)
                return replace(block, settled=tuple(known))
            case "loop":
                splits = self._splits(clause)
                if len(splits) != 1:
                    raise self.source.wrong(
                        clause.name, f"loop takes one dim, found {len(splits)}"
                    )
                return replace(block, loop=splits[0])
            case _:
                return replace(block, schedule=self._scheduled(block.schedule, clause))

    def _splits(self, clause: ClauseForm) -> tuple[Split, ...]:
        splits: list[Split] = []
        for at, (dim, tile) in enumerate(clause.values):
            name = self.resolver.dim_name(dim)
            if tile is None:
                raise self.source.wrong(
                    dim, f"{clause.name} needs a tile: {clause.name}({dim} / 64)"
                )
            beside = at in clause.beside
            splits.append(Split(name, self.resolver.integer(tile, 1), beside))
        return tuple(splits)

    def _scheduled(self, schedule: Schedule, clause: ClauseForm) -> Schedule:
        known = [f.name for f in fields(Schedule)]
        name = clause.name
        if name.text not in known:
            hint = suggest(name.text, ["grid", "loop", *known], "parameters")
            raise self.source.wrong(name, f"a block has no parameter {name}{hint}")
        if len(clause.values) != 1:
            raise self.source.wrong(
                name, f"{name} takes one value, found {len(clause.values)}"
            )
        ((word, _),) = clause.values
        return replace(schedule, **{name.text: self._parameter(name, word)})

    def _parameter(self, name: Word, word: Word) -> Any:
        """The value of a schedule parameter, of the type of its default."""
        default = getattr(Schedule(), name.text)
        if isinstance(default, bool):
            if word.text not in ("true", "false"):
                raise self.source.wrong(word, f"{name} is true or false, found {word}")
            return word.text == "true"
        if isinstance(default, int):
            return self.resolver.integer(word, 0)
        return word.text

    # -- statements ----------------------------------------------------------------

    def _statement(self, statement: StatementForm) -> None:
        match statement:
            case ReturnForm():
                raise self.source.wrong(
                    _first_word(statement),
                    "`return` stands at the end of the graph; a block ends in `store`",
                )
            case StoreForm():
                self._store(statement)
            case AssignForm():
                self._assign(statement)

    def _assign(self, statement: AssignForm) -> None:
        target = _only_target(statement, self.source)
        name, scope = target.name, self.scope
        place = self.source.at(name)
        match statement.right:
            case BlockForm():
                raise self.source.wrong(name, "a block cannot hold another block")
            case IndexForm() as form:
                raise self.source.wrong(
                    form.keyword,
                    "`index` stands outside of blocks; load a tile of it here",
                )
            case LoadForm() as form:
                scope.add(self._load(form, statement), name, target.type)
            case AccumulateForm() as form:
                operand = scope.value(form.operand, name)
                rescale = None if form.rescale is None else scope.lookup(form.rescale)
                kind = "sum" if form.kind is None else self._kind(form.kind)
                node = Accumulate(name.text, operand, kind, rescale, place)
                scope.add(node, name, target.type)
            case RunningForm() as form:
                operand = scope.value(form.operand, name)
                scope.add(RunningMax(name.text, operand, place), name, target.type)
            case right:
                scope.assign(name, target.type, right)

    def _kind(self, word: Word) -> str:
        if word.text not in accumulator_kinds():
            hint = suggest(word.text, accumulator_kinds(), "ways")
            raise self.source.wrong(
                word,
                f"found `{clipped(word.text)}`, expected how iterations are "
                f"accumulated{hint}",
            )
        return word.text

    def _load(self, form: LoadForm, statement: AssignForm) -> Load:
        target = statement.targets[0]
        outer = self.kernel.scope.lookup(form.source)
        axes = form.axes
        if axes is None and target.type is not None:
            axes = target.type.axes
        if axes is None:
            known = ", ".join(axis_text(a) for a in self.scope.outer[outer].axes)
            raise self.source.wrong(
                form.source,
                f"which part of {outer}? write {outer}[{known}], with /grid and /loop "
                "behind the dims that are split",
            )
        place = self.source.at(form.source)
        pieces = self.resolver.axes(axes, pieces=True)
        return Load(target.name.text, outer, pieces, place)

    def _store(self, form: StoreForm) -> None:
        name = form.name
        if name.text in self.stores:
            raise self.source.wrong(name, f"{name} is stored twice")
        self.stores.add(name.text)
        operand = self.scope.value(form.operand, name)
        have = self.scope.types[operand]
        if form.dtype is not None:
            dtype = self.resolver.dtype(form.dtype)
        else:
            dtype = self.kernel.result_dtypes.get(name.text, have.dtype)
        axes = self.resolver.axes(form.axes, pieces=True)
        self._check_stored(place_of(form.operand), name, have, axes)
        node = Store(name.text, operand, axes, dtype, self.source.at(name))
        try:
            check_store(node, self.block)
        except CheckError as error:
            raise self.source.ill_typed(name, error.message) from None
        self.scope.nodes.append(node)

    def _check_stored(
        self, place: Word, name: Word, have: TensorType, axes: tuple[Axis, ...]
    ) -> None:
        """The dims of a store are those of its operand, and any `k#`."""
        stored = [
            d
            for d in dims_of(axes)
            if not d.grid or d.loop or partial_base(d.name, self.block) is None
        ]
        if sorted(stored) != sorted(have.dims):
            listed = ", ".join(map(axis_text, axes))
            raise self.source.ill_typed(
                place, f"{place} is {shown(have)}, but {name} is stored as [{listed}]"
            )


def _only_target(statement: AssignForm, source: Source) -> TargetForm:
    """The target of a statement that has one result."""
    first, *others = statement.targets
    if others:
        raise source.wrong(
            others[0].name, "only a block has several results, found several names"
        )
    return first


def _targets(statements: Iterable[StatementForm]) -> dict[str, Word]:
    """Where each value is defined first."""
    found: dict[str, Word] = {}
    for statement in statements:
        if isinstance(statement, AssignForm):
            for target in statement.targets:
                found.setdefault(target.name.text, target.name)
    return found


def _first_word(statement: StatementForm) -> Word:
    """A word by which to show a statement."""
    match statement:
        case ReturnForm():
            return statement.keyword
        case StoreForm():
            return statement.name
        case AssignForm():
            return statement.targets[0].name


# -- Reading ---------------------------------------------------------------------------


def parse(text: str, filename: str = "<mu>") -> KernelGraph:
    """The graph that `text` describes.

    Args:
        text: `.mu` text.
        filename: Its name, for messages.

    Raises:
        ParseError: The text is not in the language.
        CheckError: A type rule does not hold, or a stated type is another.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParseError(f"expected the text of a μGraph, found {type(text).__name__}")
    # Lark is imported with the first text that is read.
    from mirage_dsl.ir.text.syntax import read

    source = Source(filename, text)
    _require_version(source)
    try:
        return elaborate(read(source), source)
    except RecursionError:
        raise ParseError(
            "the expressions are nested too deeply; name the inner ones on lines of "
            "their own",
            source.whole(),
        ) from None


def _require_version(source: Source) -> None:
    """Refuse a text of another version before its syntax is looked at."""
    for number, line in enumerate(source.text.split("\n"), 1):
        content = line.split("//")[0].strip()
        if not content:
            continue
        column = line.index(content[0]) + 1
        found = re.match(r"mirage\s+0*([0-9]+)(?=\s|$)", content)
        if found is None:
            raise source.wrong(
                Word(content, number, column),
                f"a text begins with its version, expected `mirage {VERSION}`",
            )
        if found[1] != str(VERSION):
            raise source.wrong(
                Word(content, number, column),
                f"this is version {found[1][:20]} of the text format; this program "
                f"reads version {VERSION}",
            )
        return
    raise ParseError(f"the text is empty, expected `mirage {VERSION}`", source.whole())


# -- What is taken for a graph ---------------------------------------------------------


class HasMugraph(Protocol):
    """A candidate of a search, or a bound kernel."""

    @property
    def mugraph(self) -> KernelGraph:
        """The μGraph."""
        ...


GraphLike = KernelGraph | str | HasMugraph


def graph_of(given: GraphLike, *attributes: str) -> KernelGraph:
    """The graph that a user means.

    Args:
        given: A graph, its `.mu` text, or an object that has one.
        *attributes: Where such objects have it; `mugraph` unless given.

    Raises:
        CheckError: It is none of these.
        ParseError: The text is not in the language.
    """
    if isinstance(given, KernelGraph):
        return given
    if isinstance(given, str):
        return parse(given)
    for attribute in attributes or ("mugraph",):
        found = getattr(given, attribute, None)
        if isinstance(found, KernelGraph):
            return found
    raise CheckError(
        f"expected a program or a μGraph, its text, or a candidate of a search; found "
        f"{type(given).__name__}"
    )
