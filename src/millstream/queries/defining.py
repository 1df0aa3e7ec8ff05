"""Continuous queries that are made: named, planned, and entered behind the rows that there are.

Also what is made of them: streaming views with the tables that keep their results, and inserts that stand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.catalog import queries, stats, streams, tables, views
from millstream.catalog.records import StandingInfo, StreamTime, TableInfo
from millstream.errors import Condition, StatementError
from millstream.plan import define
from millstream.plan.standing import Sampling
from millstream.queries import assigning
from millstream.queries.company import NESTED
from millstream.queries.handing import delivered_columns
from millstream.queries.known import FEED, INSERT, Known, may_share
from millstream.queries.making import Maker, check_kind
from millstream.queries.place import Place, Seen
from millstream.queries.tuning import AGAIN, INCREMENTAL
from millstream.schema import TIMESTAMP, Column, Duration, ObjectKind, Schema
from millstream.sql import statements as st
from millstream.sql.names import check_name
from millstream.storage import period
from millstream.storage.transaction import conflict

if TYPE_CHECKING:
    from millstream.catalog.commits import Commit
    from millstream.catalog.records import StreamState
    from millstream.queries.making import Made
    from millstream.queries.running import Stepper
    from millstream.queries.together import Together
    from millstream.storage.lake import Lake

MOST_QUERIES = 100_000
"""A database takes so many continuous queries, those that feed streaming views and tables included."""
INSTANT = "instant"


class Defining:
    """See the module's contract."""

    def __init__(self, lake: Lake, known: Known, together: Together, maker: Maker, stepper: Stepper) -> None:
        self._lake = lake
        self._known = known
        self._together = together
        self._maker = maker
        self._stepper = stepper

    def create(self, statement: st.CreateContinuousQuery) -> str:
        """Returns what is to be known of the query, if it works but will be dear."""
        check_name(statement.name)
        if self._is_there(statement.name, if_not_exists=statement.if_not_exists):
            return ""
        made = self._made(statement.body, statement.text)
        name, definition = statement.name.text, statement.body.text
        info = StandingInfo(made.plan.to_json())

        def work(commit: Commit) -> TableInfo:
            self._check_free(commit, statement.name)
            wanted = queries.provisional(name, definition, made.schema, info)
            return self._enter(commit, views.create(commit, wanted), made)

        self._lake.catalog.commit(work)
        return NESTED if made.plan.is_nested else ""

    def create_view(self, statement: st.CreateStreamingView) -> None:
        """A streaming view: a streaming table, and the query that feeds it."""
        check_name(statement.name)
        if self._is_there(statement.name, if_not_exists=statement.if_not_exists):
            return
        made = self._made(statement.body, statement.text)
        if statement.period is not None:
            check_kind(made.streams[0], statement.period.is_number, None)
        target = _target(statement, made)
        definition = statement.body.text

        def work(commit: Commit) -> None:
            self._check_free(commit, statement.name)
            table = tables.create(commit, target)
            info = StandingInfo(made.plan.to_json(), table.id)
            wanted = queries.provisional(FEED.format(table.name), definition, made.schema, info)
            self._enter(commit, views.create(commit, wanted), made)

        self._lake.catalog.commit(work)

    def _made(self, body: st.ContinuousSelect, text: str) -> Made:
        self._check_room()
        return self._maker.make(body, text)

    def _check_room(self) -> None:
        there = len(self._known)
        if there >= MOST_QUERIES:
            raise StatementError(
                Condition.TOO_MANY_QUERIES,
                f"there are {there:,} continuous queries, and a database takes no more than {MOST_QUERIES:,}",
                hint="Drop some that nobody reads: SHOW QUERIES lists them, DROP CONTINUOUS QUERY takes one.",
            )

    def is_standing(self, source: st.Query) -> bool:
        """Whether an INSERT … SELECT goes on for ever: it reads a stream."""
        known = self._lake.catalog.tables()
        found = (known.get(r.name.lower()) for r in source.tables)
        return any(t is not None and (t.kind is ObjectKind.STREAM or r.window is not None)
                   for t, r in zip(found, source.tables, strict=True))  # fmt: skip

    def create_insert(self, table: TableInfo, columns: tuple[str, ...], source: st.Query, text: str) -> str:
        """An INSERT that stands: rows arrive in the table as the query delivers them; returns its name."""
        made = self._made(st.ContinuousSelect(source), text)
        assigning.check(made.schema, table, columns)
        made = replace(made, plan=replace(made.plan, into=columns))

        def work(commit: Commit) -> str:
            numbers = ("", *(f"_{i}" for i in range(2, len(self._known) + 3)))
            name = next(n for i in numbers if self._known.named(n := INSERT.format(table.name) + i) is None)
            self._check_no_circle(table, made, source)
            info = StandingInfo(made.plan.to_json(), table.id)
            wanted = queries.provisional(name, source.text, made.schema, info)
            self._enter(commit, views.create(commit, wanted), made)
            return name.removeprefix("__")

        return self._lake.catalog.commit(work)

    def _check_no_circle(self, table: TableInfo, made: Made, source: st.Query) -> None:
        """Rows that are inserted must not come back to the query that inserts them."""
        found = next((c for s in made.streams if (c := self._known.way(table.id, s.id)) is not None), None)
        if found is None:
            return
        names = [t.name for i in found if (t := self._lake.catalog.table(i)) is not None]
        read = names[-1].lower()
        raise StatementError(
            Condition.QUERY_REFUSED,
            f"what is inserted into {table.name!r} would be read from it again, without end:"
            f" {' → '.join([*names, table.name])}",
            hint="Insert into another stream or table."
            if len(found) == 1
            else f"Insert into another stream or table, or drop what feeds {names[-1]!r}: SHOW QUERIES lists it.",
            span=next((r.span.shifted(source.offset) for r in source.tables if r.name.lower() == read), None),
        )

    def is_view(self, table: TableInfo) -> bool:
        """Whether a streaming table is what a streaming view keeps its results in."""
        return self.feed_of(table) is not None

    def feed_of(self, table: TableInfo) -> TableInfo | None:
        """The query that feeds a streaming view; None if it is none."""
        found = self._known.feed_of(table.name)
        return found if found is not None and found.standing and found.standing.target == table.id else None

    def _is_there(self, name: st.Name, *, if_not_exists: bool) -> bool:
        existing = self._lake.catalog.tables().get(name.text.lower())
        if existing is not None and not if_not_exists:
            raise define.duplicate(name, existing)
        return existing is not None

    def _check_free(self, commit: Commit, name: st.Name) -> None:
        there = self._lake.catalog.tables(commit.base).get(name.text.lower())
        if there is not None:
            raise define.duplicate(name, there)

    def _enter(self, commit: Commit, query: TableInfo, made: Made) -> TableInfo:
        """Give a new query its place: behind the rows that there are."""
        # Others may have been made since it was planned.
        self._check_room()
        is_split = made.plan.split is not None and self._stepper.plan != AGAIN
        is_rowless = is_split and self._stepper.plan == INCREMENTAL
        place = Place(is_split=is_split, is_rowless=is_rowless, snapshot=commit.base.id)
        place.is_counted = made.plan.is_counted_join
        marks = []
        there = self._lake.catalog.tables(commit.base)
        for name in made.plan.tables:
            if name.lower() not in there:
                raise conflict(name)
        for stream in made.streams:
            if self._lake.catalog.table(stream.id, commit.base) is None:
                raise conflict(stream)
            born = commit.stats_of(stream.id, stats.column_types(stream)).next_row_id
            now = streams.state_of(commit, stream.id)
            mark = period.stream_time(stream, now, self._lake.clock.now())
            is_kept = stream.kind is ObjectKind.STREAMING_TABLE and made.plan.sample.kind is not Sampling.COMMIT
            position = 0 if is_kept else born
            place.streams[stream.id] = _seen(position, born, now, mark)
            if place.is_counted and mark is not None and now.max_time is not None and now.max_time > mark:
                place.streams[stream.id].born_time = now.max_time
            marks.append(mark)
        place.created_at = None if None in marks else min(m for m in marks if m is not None)
        queries.moved_on(commit, query.id, place.to_json(), None, None)
        if may_share(query, made.plan):
            self._together.enter(commit, query, place)
            return query
        for stream_id, seen in place.streams.items():
            streams.set_consumer(commit, stream_id, queries.consumer(query.id), seen.position)
        return query


def _seen(position: int, born: int, now: StreamState, mark: int | None) -> Seen:
    return Seen(position, position, now.max_time, now.advanced_to, mark, born)


def _target(statement: st.CreateStreamingView, made: Made) -> TableInfo:
    """The streaming table that a streaming view's results are kept in."""
    is_number = made.plan.is_integer_time
    if made.schema.get(INSTANT) is not None:
        raise StatementError(
            Condition.RESERVED_NAME,
            f"{INSTANT!r} is the time of a streaming view's rows",
            hint="Give the column another name, with AS.",
            span=statement.name.span,
        )
    own = delivered_columns(made.schema, made.plan)
    column = Column(INSTANT, pa.int64() if is_number else TIMESTAMP)
    schema = Schema((*own, column))
    time = StreamTime(INSTANT, Duration(0, is_number))
    kind = ObjectKind.STREAMING_TABLE
    return tables.provisional(statement.name.text, kind, schema, time, None, statement.period)
