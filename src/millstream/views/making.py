"""CREATE CONTINUOUS VIEW: the query checked by Spark, cut into fragments, static parts evaluated, state made.

Everything is written before the one commit in which the view, its states and its positions appear; a
view that fails to be made leaves nothing behind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from millstream.catalog import files, stats, streams, tables, views
from millstream.catalog.commits import time_text
from millstream.catalog.records import ContinuousInfo
from millstream.errors import Condition, StatementError
from millstream.execute import query
from millstream.execute.relation import identity
from millstream.execute.types import stored_type
from millstream.execute.write import write_rows
from millstream.plan import cut
from millstream.plan.bind import bind, bind_text
from millstream.plan.incremental import (
    NOW,
    ViewPlan,
    in_first_run,
    merged_name,
    state_name,
    static_name,
    stream_name,
)
from millstream.rewrite.refuse import READ_ARGUMENTS, check_arguments, refused
from millstream.rewrite.views import Known, plan_view
from millstream.schema import Column, ObjectKind, Schema
from millstream.sql.parse import parse_one
from millstream.sql.statements import Select
from millstream.storage import segment, state
from millstream.storage.reader import Reader
from millstream.storage.scan import Scan
from millstream.storage.transaction import conflict
from millstream.views.overlay import Overlay, is_view, no_new_rows, no_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from millstream.catalog.commits import Commit
    from millstream.catalog.records import Segment, TableInfo
    from millstream.plan.bind import BoundQuery
    from millstream.plan.incremental import Static
    from millstream.sql.statements import CreateView, Query
    from millstream.views.keeping import Keeper

    Pin = tuple[str, tuple[tuple[object, ...], ...]]

MOST_ARGUMENTS = {**READ_ARGUMENTS, "mode": 1, "any_value": 1}
"""Of aggregates that Spark takes more for than a view can keep."""
STREAMING = (ObjectKind.STREAM, ObjectKind.STREAMING_TABLE)
OPENED = (ObjectKind.VIEW, ObjectKind.CONTINUOUS_VIEW)
UNSTEADY = re.compile(
    r"\b(now|current_\w+|localtimestamp|unix_timestamp|__ms_now__|rand\w*|uniform|uuid|shuffle|monotonically_\w+)\b",
    re.IGNORECASE,
)
"""Words that may give something else each time."""


@dataclass
class Draft:
    """A view that is ready to be created: its plan, its columns, and what has been written for it."""

    name: str
    definition: str
    schema: Schema
    plan: ViewPlan
    states: list[TableInfo]
    statics: list[TableInfo]
    written: dict[str, list[Segment]]
    positions: dict[int, int]
    has_history: bool = False
    pins: list[Pin | None] = field(default_factory=list)
    """What others may know the static parts by, in their order."""


class Maker:
    """Makes views; `keeper` runs their fragments."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._lake = keeper.lake
        self._fragments: dict[tuple[str, tuple[Static, ...]], query.Rows] = {}
        self._pinned: dict[Pin, int] = {}

    def plan(self, statement: CreateView) -> tuple[ViewPlan, Schema]:
        """The fragments of a view's query and its columns; refuses what cannot be kept up to date."""
        reader = Reader(self._lake)
        known = reader.tables(reader.snapshot())
        check_arguments(statement.query, MOST_ARGUMENTS, Condition.UNSUPPORTED_VIEW)
        uncut = _uncut(statement.query, known)
        is_cut = uncut is not statement.query
        if is_cut:
            statement = replace(statement, query=uncut, text=uncut.text)
        text = statement.query.text
        empty = {
            t.name: no_rows(t, reader.snapshot())
            for r in statement.query.tables
            if (t := known.get(r.name.lower())) is not None and (t.kind in STREAMING or is_view(t))
        }
        _check_references(statement.query, statement.query.offset)
        inside = (statement.name.text.lower(),)
        bound = bind(statement.query, Overlay(reader, empty, is_blank=True), statement.text, {}, inside=inside)
        schema = self._schema(bound)
        tree = statement.query.tree
        if bound.edits:
            edited = parse_one(query.splice(text, bound.edits)[0])
            assert isinstance(edited, Select)
            tree = edited.query.tree
        if not isinstance(tree, exp.Query):
            raise refused(
                "this query is written in a way that cannot be taken apart", None, "Write it with SELECT."
            )
        try:
            return plan_view(tree, _known(known), _opener(known, statement.name.text), self._types), schema
        except StatementError as error:
            if bound.edits or is_cut:
                # It points into a text that the user has not written.
                error.span = None
            elif error.span is not None:
                error.span = error.span.shifted(statement.query.offset)
            raise

    def _schema(self, bound: BoundQuery) -> Schema:
        rows = query.run(self._keeper.spark, bound, self._keeper.relations, {})
        return Schema(tuple(Column(f.name, stored_type(f)) for f in rows.schema()))

    def _types(self, sql: str, statics: Sequence[Static]) -> Mapping[str, str]:
        """The types of a fragment's columns, as Spark's analysis has them."""
        return {f.name: f.dataType.simpleString() for f in self._analysed(sql, statics).frame.schema}

    def _analysed(self, sql: str, statics: Sequence[Static]) -> query.Rows:
        """A fragment over no rows; each is analysed once."""
        known = self._fragments.get((sql, tuple(statics)))
        if known is not None:
            return known
        text = sql
        for number, static in enumerate(statics):
            text = text.replace(static_name(number), f"({static.sql})")
        text, reader = in_first_run(text, True), Reader(self._lake)
        snapshot = reader.snapshot()
        empty = {
            stream_name(t.id): no_new_rows(t, snapshot)
            for t in reader.tables(snapshot).values()
            if t.kind in STREAMING and stream_name(t.id) in text
        }
        bound = bind_text(text, Overlay(reader, empty))
        made = query.run(self._keeper.spark, bound, self._keeper.relations, {})
        self._fragments[sql, tuple(statics)] = made
        return made

    def executors(self, plan: ViewPlan) -> list[str]:
        """Which executor would run each part of a plan."""
        reader = Reader(self._lake)
        every = {t.id: t for t in reader.tables(reader.snapshot()).values()}
        found = []
        for number, part in enumerate(plan.parts):
            fields = _stored(self._analysed(part.fragment, plan.statics).schema())
            table = state.provisional("view", number, "state", fields)
            sources = {stream_name(s): no_new_rows(every[s], reader.snapshot()) for s in part.streams}
            found.append(self._keeper.executor_of(part, table, sources))
        return found

    def draft(self, statement: CreateView) -> Draft:
        """Everything that a view needs, written but not committed."""
        self._fragments.clear()
        plan, schema = self.plan(statement)
        name, reader = statement.name.text, Reader(self._lake)
        draft = Draft(name, statement.query.text, schema, plan, [], [], {}, {}, statement.with_history)
        if statement.with_history:
            self._check_history(plan, reader, statement)
        try:
            self._write_statics(draft, reader)
            for number, part in enumerate(plan.parts):
                fields = _stored(self._analysed(part.fragment, plan.statics).schema())
                draft.states.append(state.provisional(name, number, "state", fields))
            self._check_upper(draft, reader)
            self._keeper.start(draft, reader)
            if statement.with_history:
                self._keeper.fill(draft, reader)
        except BaseException:
            self.discard(draft)
            raise
        return draft

    def _check_upper(self, draft: Draft, reader: Reader) -> None:
        """See to it that a view which can be made can be read."""
        text, snapshot = draft.plan.upper.replace(NOW, "TIMESTAMP '2024-01-01'"), reader.snapshot()
        for number, part in enumerate(draft.plan.parts):
            text = text.replace(merged_name(number), f"({part.merged(state_name(number))})")
        empty = {state_name(n): Scan(t, snapshot.id, ()) for n, t in enumerate(draft.states)}
        try:
            bound = bind_text(text, Overlay(reader, empty))
            query.run(self._keeper.spark, bound, self._keeper.relations, {}).schema()
        except StatementError as error:
            raise refused(
                "what this query says of its groups cannot be put together again",
                None,
                "Group in a subquery, and say the rest in a query around it.",
                detail=error.message,
            ) from error

    @staticmethod
    def _check_history(plan: ViewPlan, reader: Reader, statement: CreateView) -> None:
        every = {t.id: t for t in reader.tables(reader.snapshot()).values()}
        for stream_id in plan.streams:
            if every[stream_id].kind is ObjectKind.STREAM:
                raise StatementError(
                    Condition.UNSUPPORTED_VIEW,
                    f"{every[stream_id].name!r} is a stream and keeps no history",
                    hint="Leave WITH HISTORY out, or make it a STREAMING TABLE.",
                    span=statement.name.span,
                )

    def _write_statics(self, draft: Draft, reader: Reader) -> None:
        """Pin what static fragments give; views that pin the same share it, and so can share a pass."""
        for number, static in enumerate(draft.plan.statics):
            bound = bind_text(static.sql, reader)
            pin = _pin(static, bound, self._keeper.spark.functions)
            shared = self._lake.catalog.hidden().get(self._pinned.get(pin, -1)) if pin else None
            draft.pins.append(pin)
            if shared is not None:
                draft.statics.append(shared)
                continue
            rows = query.run(self._keeper.spark, bound, self._keeper.relations, {})
            table = state.provisional(draft.name, number, "static", _stored(rows.schema()))
            draft.statics.append(table)
            draft.written[table.name] = write_rows(rows.frame, table, self._lake.folder(table), rows.splice)

    def discard(self, draft: Draft) -> None:
        for table in (*draft.states, *draft.statics):
            segment.remove(self._lake.folder(table), draft.written.get(table.name, []))

    def create(self, commit: Commit, draft: Draft) -> TableInfo:
        """Enter the view with its states and positions; the caller has seen to it that the name is free."""
        own = [*draft.states, *(t for t in draft.statics if t.name in draft.written)]
        made = {t.name: tables.create(commit, t) for t in own}
        for name, segments in draft.written.items():
            if segments:
                files.add(commit, made[name], segments)
        there = {t.id: t for t in tables.load(commit.connection, commit.base.id).values()}
        for shared in (t for t in draft.statics if t.name not in made):
            if shared.id not in there:
                raise conflict(shared)
            made[shared.name] = shared
        ids = [tuple(made[t.name].id for t in every) for every in (draft.states, draft.statics)]
        info = ContinuousInfo(draft.plan.to_json(), ids[0], ids[1], draft.has_history)
        view = views.create(commit, views.continuous(draft.name, draft.definition, draft.schema, info))
        views.refreshed(commit, view.id, time_text(commit.now))
        named = self._lake.catalog.tables(commit.base)
        for name in draft.plan.above:
            if name.lower() not in named:
                raise conflict(name)
        known = {t.id: t for t in named.values()}
        for stream_id in draft.plan.streams:
            if stream_id not in known:
                raise conflict(view)
            upto = commit.stats_of(stream_id, stats.column_types(known[stream_id])).next_row_id
            position = draft.positions.get(stream_id, upto)
            streams.set_consumer(commit, stream_id, views.consumer(view.id), position)
        return view

    def remember(self, draft: Draft, view: TableInfo) -> None:
        """A view has been made: others may share what it has pinned."""
        assert view.continuous is not None
        for pin, table_id in zip(draft.pins, view.continuous.statics, strict=True):
            if pin is not None:
                self._pinned[pin] = table_id


def _pin(static: Static, bound: BoundQuery, functions: Collection[str]) -> Pin | None:
    """What two static fragments with the same rows have in common; None if each time may give other rows."""
    own = any(re.search(rf"\b{re.escape(name)}\b", static.sql, re.IGNORECASE) for name in functions)
    if own or UNSTEADY.search(static.sql) or bound.views:
        return None
    return static.sql, tuple(identity(t.scan) for t in bound.tables)


def _uncut(asked: Query, tables: Mapping[str, TableInfo]) -> Query:
    """The query with subqueries for TUMBLE and HOP; the query itself if it has none."""
    try:
        edits = cut.edits(asked, tables)
    except StatementError as error:
        error.span = error.span and error.span.shifted(asked.offset)
        raise
    if not edits:
        return asked
    made = parse_one(query.splice(asked.text, edits)[0])
    assert isinstance(made, Select)
    return made.query


def _check_references(asked: Query, offset: int = 0) -> None:
    """Refuse what stands behind a table and a view cannot follow: a window, or a version."""
    for reference in asked.tables:
        if reference.window is not None:
            raise StatementError(
                Condition.NOT_SUPPORTED,
                "windows are for continuous queries",
                hint="Leave the window out: a continuous view accumulates.",
                span=reference.window.span.shifted(offset),
            )
        if reference.as_of is not None:
            raise StatementError(
                Condition.UNSUPPORTED_VIEW,
                "a continuous view reads no old versions",
                hint="Keep the version in a table of its own: CREATE TABLE … AS SELECT … VERSION AS OF ….",
                span=reference.as_of.span.shifted(offset),
            )


def _stored(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, stored_type(f)) for f in schema])


def _known(every: Mapping[str, TableInfo]) -> dict[str, Known]:
    return {
        name: Known(t.id, t.name, t.schema.names, t.kind in STREAMING, t.time.column if t.time else None)
        for name, t in every.items()
        if t.kind not in OPENED
    }


def _opener(every: Mapping[str, TableInfo], making: str) -> Callable[[str], exp.Query | None]:
    def opened(name: str) -> exp.Query | None:
        found = every.get(name.lower())
        if found is None or found.kind not in OPENED:
            return None
        if name.lower() == making.lower():
            raise StatementError(
                Condition.QUERY_REFUSED,
                f"the view {making!r} reads itself",
                hint="Give the view another name, or leave the other view out of it.",
            )
        statement = parse_one(found.definition or "")
        if isinstance(statement, Select):
            _check_references(replace(statement.query, functions=()))
        tree = _uncut(statement.query, every).tree if isinstance(statement, Select) else None
        if not isinstance(tree, exp.Query):
            raise refused(f"the view {name!r} cannot be taken apart", None, "Write its query out in this one.")
        return tree

    return opened
