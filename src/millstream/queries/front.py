"""The engine's door to continuous queries: made, stepped, paused, resumed, read, subscribed to, listed."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.catalog import queries, stats, streams, tables, views
from millstream.catalog.records import StandingInfo, StreamTime, TableInfo
from millstream.deliver.subscription import Board, Delivery, Subscription, Watch, delivery
from millstream.errors import Condition, DataError, MillstreamError, StatementError, did_you_mean
from millstream.plan import define, describe
from millstream.plan.standing import QueryPlan, Sampling, explained
from millstream.queries import assigning, tuning
from millstream.queries.answering import Answers
from millstream.queries.emitting import CHANGE
from millstream.queries.making import Maker, check_kind
from millstream.queries.place import Place, Seen
from millstream.queries.run import Run
from millstream.queries.running import Stepper
from millstream.schema import TIMESTAMP, Column, Duration, ObjectKind, Schema, quote_if_needed
from millstream.sql import statements as st
from millstream.sql.names import check_name
from millstream.storage import period
from millstream.storage.scan import Scan
from millstream.storage.transaction import conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.catalog.commits import Commit
    from millstream.catalog.records import StreamState
    from millstream.execute.relation import Relations
    from millstream.execute.session import Spark
    from millstream.queries.making import Made
    from millstream.storage.lake import Lake
    from millstream.storage.transaction import Written

MOST_BEHIND = 8_388_608
"""Inserts wait while a query that runs is so many rows behind."""
MOST_WAIT = 1.0
INSTANT = "instant"
FEED, INSERT = "__feed_of_{}", "__insert_into_{}"
AUTO, ON, OFF = INCREMENTAL = ("auto", "on", "off")
PLANS = {AUTO: None, ON: tuning.INCREMENTAL, OFF: tuning.AGAIN}


class ContinuousQueries:
    """Safe for many threads; one steps at a time."""

    def __init__(self, lake: Lake, spark: Spark, relations: Relations) -> None:
        self._lake = lake
        self.answers = Answers(lake, spark, relations)
        self._maker = Maker(lake, spark, relations, self.answers)
        self._stepper = Stepper(lake, self.answers, spark)
        self._runs: dict[int, Run] = {}
        self._plans: dict[int, QueryPlan] = {}
        self._lock = threading.RLock()
        self.board = Board()
        self._watcher: Watch | None = None
        self._is_closed = False
        self.has_scheduler = False
        """Whether somebody else steps queries; who inserts may then have to wait for them."""
        lake.on_removal(self.settle)
        lake.on_commit(self._committed)

    # Definitions

    def create(self, statement: st.CreateContinuousQuery) -> None:
        check_name(statement.name)
        if self._is_there(statement.name, if_not_exists=statement.if_not_exists):
            return
        made = self._maker.make(statement.body, statement.text)
        name, definition = statement.name.text, statement.body.text
        info = StandingInfo(made.plan.to_json())

        def work(commit: Commit) -> TableInfo:
            self._check_free(commit, statement.name)
            wanted = queries.provisional(name, definition, made.schema, info)
            return self._enter(commit, views.create(commit, wanted), made)

        self._lake.catalog.commit(work)

    def create_view(self, statement: st.CreateStreamingView) -> None:
        """A streaming view: a streaming table, and the query that feeds it."""
        check_name(statement.name)
        if self._is_there(statement.name, if_not_exists=statement.if_not_exists):
            return
        made = self._maker.make(statement.body, statement.text)
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

    def is_standing(self, source: st.Query) -> bool:
        """Whether an INSERT … SELECT goes on for ever: it reads a stream."""
        known = self._lake.catalog.tables()
        found = (known.get(r.name.lower()) for r in source.tables)
        return any(t is not None and (t.kind is ObjectKind.STREAM or r.window is not None)
                   for t, r in zip(found, source.tables, strict=True))  # fmt: skip

    def create_insert(self, table: TableInfo, columns: tuple[str, ...], source: st.Query, text: str) -> str:
        """An INSERT that stands: rows arrive in the table as the query delivers them; returns its name."""
        made = self._maker.make(st.ContinuousSelect(source), text)
        assigning.check(made.schema, table, columns)
        if table.id in made.plan.streams:
            raise StatementError(
                Condition.QUERY_REFUSED,
                f"what is inserted into {table.name!r} would be read from it again, without end",
                hint="Insert into another stream or table.",
            )
        made = replace(made, plan=replace(made.plan, into=columns))
        taken = {q.name for q in self.every()}
        numbers = ("", *(f"_{i}" for i in range(2, len(taken) + 3)))
        name = next(n for i in numbers if (n := INSERT.format(table.name) + i) not in taken)

        def work(commit: Commit) -> None:
            info = StandingInfo(made.plan.to_json(), table.id)
            wanted = queries.provisional(name, source.text, made.schema, info)
            self._enter(commit, views.create(commit, wanted), made)

        self._lake.catalog.commit(work)
        return name.removeprefix("__")

    def is_view(self, table: TableInfo) -> bool:
        """Whether a streaming table is what a streaming view keeps its results in."""
        return self.feed_of(table) is not None

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
        is_split = made.plan.split is not None and self.incremental != OFF
        place = Place(is_split=is_split, is_rowless=is_split and self.incremental == ON, snapshot=commit.base.id)
        known = {t.id: t for t in self._lake.catalog.tables(commit.base).values()}
        marks = []
        for stream in made.streams:
            if stream.id not in known:
                raise conflict(stream)
            born = commit.stats_of(stream.id, stats.column_types(stream)).next_row_id
            now = streams.state_of(commit, stream.id)
            mark = period.stream_time(stream, now, self._lake.clock.now())
            is_kept = stream.kind is ObjectKind.STREAMING_TABLE and made.plan.sample.kind is not Sampling.COMMIT
            position = 0 if is_kept else born
            place.streams[stream.id] = _seen(position, born, now, mark)
            marks.append(mark)
            streams.set_consumer(commit, stream.id, queries.consumer(query.id), position)
        place.created_at = None if None in marks else min(m for m in marks if m is not None)
        queries.moved_on(commit, query.id, place.to_json(), None, None)
        return query

    def every(self) -> list[TableInfo]:
        """All continuous queries, those that feed streaming views included, in the order of their making."""
        catalog = self._lake.catalog
        found = [*catalog.tables().values(), *catalog.hidden().values()]
        return sorted((t for t in found if t.kind is ObjectKind.CONTINUOUS_QUERY), key=lambda t: t.id)

    def find(self, name: st.Name, *, alone: bool = False) -> TableInfo:
        """The query of that name, or, unless `alone`, the one that feeds the streaming view of that name."""
        wanted = name.text.lower()
        names = (wanted, f"__{wanted}") if alone else (wanted, f"__{wanted}", FEED.format(wanted))
        for query in self.every():
            if query.name.lower() in names:
                return query
        there = self._lake.catalog.tables().get(wanted)
        if there is not None:
            raise StatementError(
                Condition.WRONG_KIND,
                f"{there.name!r} is a {there.kind.value}, and this needs a continuous query",
                hint=f"DESCRIBE {there.name} shows what it is.",
                span=name.span,
            )
        known = [shown_name(q) for q in self.every()]
        raise StatementError(
            Condition.UNKNOWN_TABLE,
            f"no continuous query {name.text!r}",
            hint=did_you_mean(name.text, known) or "SHOW QUERIES lists the queries there are.",
            span=name.span,
        )

    def is_known(self, name: st.Name) -> bool:
        """Whether there is a query of that name, standing inserts included."""
        return any(shown_name(q).lower() == name.text.lower() for q in self.every())

    def feed_of(self, table: TableInfo) -> TableInfo | None:
        """The query that feeds a streaming view; None if it is none."""
        fed = (q for q in self.every() if q.standing and q.standing.target == table.id)
        return next((q for q in fed if q.name.startswith(FEED.format(""))), None)

    def readers_of(self, table: TableInfo) -> list[TableInfo]:
        """The queries that cannot do without a table or stream, each as its users know it."""
        found = []
        for query in self.every():
            plan = self.plan_of(query)
            if table.id in plan.streams or table.name.lower() in (n.lower() for n in plan.tables):
                target = self._target(query)
                found.append(query if target is None or plan.into else target)
        return found

    def _target(self, query: TableInfo) -> TableInfo | None:
        assert query.standing is not None
        wanted = query.standing.target
        return next((t for t in self._lake.catalog.tables().values() if t.id == wanted), None)

    def plan_of(self, query: TableInfo) -> QueryPlan:
        known = self._plans.get(query.id)
        if known is None:
            assert query.standing is not None
            known = self._plans[query.id] = QueryPlan.from_json(query.standing.plan)
        return known

    def dropped(self, gone: Sequence[TableInfo]) -> None:
        with self._lock:
            for table in gone:
                self._runs.pop(table.id, None)
                self._plans.pop(table.id, None)
        self.board.tell()

    # Steps

    @property
    def incremental(self) -> str:
        return next(name for name, plan in PLANS.items() if plan == self._stepper.plan)

    @incremental.setter
    def incremental(self, said: str) -> None:
        self._stepper.plan = PLANS[said]

    @property
    def chunks(self) -> int | None:
        return self._stepper.chunks

    @chunks.setter
    def chunks(self, number: int | None) -> None:
        self._stepper.chunks = number

    def reads(self, table: TableInfo) -> bool:
        """Whether a query reads a stream or streaming table."""
        streaming = (ObjectKind.STREAM, ObjectKind.STREAMING_TABLE)
        return table.kind in streaming and any(table.id in self.plan_of(q).streams for q in self.every())

    def waits_for_clock(self) -> bool:
        """Whether a query answers by the clock alone: its stream's time is the time of arrival."""
        known = {t.id: t for t in self._lake.catalog.tables().values()}
        for query in self.every():
            found = [known[s].time for s in self.plan_of(query).streams if s in known]
            if any(t is not None and t.is_arrival for t in found):
                return True
        return False

    def _committed(self, written: Sequence[Written]) -> None:
        """Rows that went or changed leave states that no longer say what is stored."""
        gone = {w.table.id for w in written if w.removes and not w.is_expiry}
        if not gone:
            return
        for run in list(self._runs.values()):
            run.stale |= gone & {w.stream for w in run.plan.windows}

    def settle(self, table_id: int) -> None:
        """Before rows are taken from a streaming table: what is due has been answered with them."""
        if self._lake.read_only:
            return
        for query in self.every():
            if table_id in self.plan_of(query).streams:
                self.step(query)

    def advance_all(self) -> int:
        """Answer everything that is due, chains of streaming views included; returns the number of deliveries.

        What feeds a stream waits for those who are far behind in it; they go on meanwhile.
        """
        delivered = 0
        while True:
            made = [self.step(query) for query in self.every() if not self._has_to_wait(query)]
            delivered += sum(m or 0 for m in made)
            if all(m is None for m in made):
                return delivered

    def step(self, query: TableInfo) -> int | None:
        """Bring one query up to date; a query that fails is marked, and the others go on."""
        with self._lock:
            if self._status(query.id) != queries.RUNNING:
                return None
            try:
                run = self._run(query)
                made = self._stepper.step(run)
            except (StatementError, DataError) as error:
                if error.condition is Condition.CANCELLED:
                    raise
                self._fail(query, error)
                return None
            except BaseException:
                # What is stored counts.
                self._runs.pop(query.id, None)
                raise
        if made is not None:
            self.board.tell()
        return made

    def make_room(self, table: TableInfo) -> None:
        """Hold an insert back as long as a running query is too far behind; does nothing without a scheduler."""
        while self.has_scheduler and not self._is_closed:
            version = self.board.version
            if not any(self._is_far_behind(q, table) for q in self.every()):
                return
            self.board.wait(version, MOST_WAIT)

    def _has_to_wait(self, query: TableInfo) -> bool:
        """Whether what a query would store is more than those who read it can follow."""
        target = self._target(query)
        return target is not None and any(self._is_far_behind(q, target) for q in self.every())

    def _is_far_behind(self, query: TableInfo, stream: TableInfo) -> bool:
        if stream.id not in self.plan_of(query).streams or self._status(query.id) != queries.RUNNING:
            return False
        run = self._runs.get(query.id)
        return self._lag(stream, self._place(query) if run is None else run.place) > MOST_BEHIND

    def _run(self, query: TableInfo) -> Run:
        known = self._runs.get(query.id)
        if known is None:
            known = self._runs[query.id] = self._stepper.load(query)
        return known

    def _status(self, query_id: int) -> str | None:
        with self._lake.catalog.read() as connection:
            found = queries.standing(connection, query_id)
        return None if found is None else found.status

    def _fail(self, query: TableInfo, error: MillstreamError) -> None:
        detail = f" ({error.detail})" if error.detail else ""
        told = f"{error.message}{detail}"
        self._lake.catalog.commit(lambda c: queries.set_status(c, query.id, queries.FAILED, told))
        self._runs.pop(query.id, None)
        self.board.tell()

    def pause(self, query: TableInfo) -> None:
        self.step(query)
        self._lake.catalog.commit(lambda c: queries.set_status(c, query.id, queries.PAUSED))

    def resume(self, query: TableInfo) -> None:
        """Go on where the query was, paused or failed."""
        self._lake.catalog.commit(lambda c: queries.set_status(c, query.id, queries.RUNNING))
        self.advance_all()

    # Deliveries

    def results(self, query: TableInfo, since: int) -> list[Delivery]:
        """The deliveries that are kept, after a sequence number."""
        is_integer_time = self.plan_of(query).is_integer_time
        with self._lake.catalog.read() as connection:
            found = queries.delivered(connection, query.id, since)
        return [delivery(shown_name(query), d, is_integer_time=is_integer_time) for d in found]

    def delivered(self, query: TableInfo) -> pa.Table:
        """For SUBSCRIBE: the deliveries that are kept, row by row."""
        plan = self.plan_of(query)
        time = pa.int64() if plan.is_integer_time else TIMESTAMP
        columns = _delivered_columns(query.schema, plan)
        return describe.deliveries(self.results(query, 0), Schema(columns).arrow, time)

    def subscribe(self, query: TableInfo, since: int | None, timeout: float | None) -> Subscription:
        place = self._place(query)
        kept = self.results(query, 0)
        if since is None:
            since = place.sequence
        elif since == 0 and kept:
            since = kept[0].sequence - 1

        self._watch()
        return Subscription(shown_name(query), since, lambda n: self._fetched(query, n), self.board, timeout)

    def _fetched(self, query: TableInfo, after: int) -> list[Delivery] | None:
        """The deliveries after a number that are there; None if no more will come."""
        try:
            if self._is_closed or self._status(query.id) is None:
                return None
            found = self.results(query, after)
            if not found:
                self._check_sound(query)
        except StatementError as error:
            if error.condition is Condition.CLOSED:
                return None
            raise
        return found

    def _watch(self) -> None:
        with self._lock:
            if self._lake.read_only and self._watcher is None:
                self._watcher = Watch(self.board, lambda: self._lake.catalog.current.id)

    def _check_sound(self, query: TableInfo) -> None:
        with self._lake.catalog.read() as connection:
            found = queries.standing(connection, query.id)
        if found is not None and found.status == queries.FAILED:
            name = shown_name(query)
            raise StatementError(
                Condition.QUERY_STOPPED,
                f"the continuous query {name!r} has failed",
                detail=found.failure,
                hint=f"Remove the cause, then RESUME {name}; or DROP CONTINUOUS QUERY {name}.",
            )

    def _place(self, query: TableInfo) -> Place:
        with self._lake.catalog.read() as connection:
            found = queries.standing(connection, query.id)
        assert found is not None
        return Place.from_json(found.place)

    def read(self, query: TableInfo) -> Scan:
        """The last answer of a query, as a table."""
        with self._lake.catalog.read() as connection:
            found = queries.standing(connection, query.id)
            last = queries.delivered(connection, query.id, self._place(query).sequence - 1)
        rows: pa.Table = query.schema.arrow.empty_table()
        if found is not None and found.answer is not None:
            rows = queries.unpacked(found.answer)
        elif last and CHANGE not in queries.unpacked(last[-1].data).column_names:
            rows = queries.unpacked(last[-1].data)
        return Scan(query, self._lake.catalog.current.id, (), inlined=rows, token=uuid.uuid4().hex)

    # Listing

    def listed(self) -> list[tuple[str, str, str, str, int, str | None, int, int, str]]:
        """For SHOW QUERIES: name, kind, status, streams, rows behind, last instant, deliveries, bytes, query."""
        found = []
        every = {t.id: t for t in self._lake.catalog.tables().values()}
        for query in self.every():
            plan, place = self.plan_of(query), self._place(query)
            with self._lake.catalog.read() as connection:
                stored = queries.standing(connection, query.id)
                size = queries.state_size(connection, query.id)
            lag = max((self._lag(every[s], place) for s in plan.streams if s in every), default=0)
            assert stored is not None
            assert query.standing is not None
            kind = "standing insert" if plan.into else ObjectKind.STREAMING_VIEW.value
            kind = kind if query.standing.target is not None else ObjectKind.CONTINUOUS_QUERY.value
            names = ", ".join(every[s].name for s in plan.streams if s in every)
            found.append((
                shown_name(query), kind, stored.status, names, lag, stored.answered_at, place.sequence, size,
                query.definition or "",
            ))  # fmt: skip
        return found

    def _lag(self, stream: TableInfo, place: Place) -> int:
        return self._lake.catalog.table_stats(stream).next_row_id - place.streams[stream.id].position

    def details(self, query: TableInfo) -> list[tuple[str, str]]:
        """For DESCRIBE EXTENDED: how a query is answered, and how it is doing."""
        row = next(q for q in self.listed() if q[0] == shown_name(query))
        plan = self.plan_of(query)
        with self._lake.catalog.read() as connection:
            stored = queries.standing(connection, query.id)
        assert stored is not None
        return [
            ("status", stored.failure if stored.failure else row[2]),
            ("streams", row[3]),
            ("rows behind", str(row[4])),
            ("last answer", row[5] or "never"),
            ("deliveries", str(row[6])),
            ("state", f"{row[7]} bytes"),
            ("read at each instant", ", ".join(plan.tables) or "nothing"),
        ]

    def written(self, query: TableInfo) -> str:
        """For SHOW CREATE: the statement that would make a query again, with what it feeds."""
        target, into = self._target(query), self.plan_of(query).into
        name = quote_if_needed(shown_name(query) if target is None else target.name)
        if target is None:
            return f"CREATE CONTINUOUS QUERY {name} AS {query.definition}"
        if into:
            return f"INSERT INTO {name} ({', '.join(quote_if_needed(c) for c in into)}) {query.definition}"
        return f"CREATE STREAMING VIEW {name} RANGE {describe.range_text(target)} AS {query.definition}"

    def explained(self, query: TableInfo) -> str:
        """For EXPLAIN: windows, instants, what is kept, and what answers."""
        run = self._runs.get(query.id)
        is_split = self._place(query).is_split
        text = explained(shown_name(query), self.plan_of(query), is_split=is_split)
        return text if run is None else "\n".join([text, *_figures(run)])

    def close(self) -> None:
        self._is_closed = True
        self.board.tell()
        if self._watcher is not None:
            self._watcher.stop()


def _figures(run: Run) -> list[str]:
    """What self-tuning has found, for people."""
    found = []
    if run.has_choice and run.choice.costs:
        costs = ", ".join(f"{plan} {cost * 1_000:.1f} ms" for plan, cost in sorted(run.choice.costs.items()))
        found.append(f"Chosen by cost: {run.choice.plan} ({costs} an answer)")
    if run.is_split and run.chunks.cost is not None:
        found.append(f"Pre-processed in chunks: {run.chunks.m} ({run.chunks.cost * 1_000:.1f} ms an answer)")
    return found


def shown_name(query: TableInfo) -> str:
    """The name that users know a query by."""
    return query.name.removeprefix(FEED.format("")).removeprefix("__")


def _seen(position: int, born: int, now: StreamState, mark: int | None) -> Seen:
    return Seen(position, position, now.max_time, now.advanced_to, mark, born)


def _delivered_columns(schema: Schema, plan: QueryPlan) -> tuple[Column, ...]:
    """The columns of a delivery: those of the answer, and under EMIT CHANGES what has become of the row."""
    change = (Column(CHANGE, pa.string()),) if plan.emit == "CHANGES" else ()
    return (*change, *schema.columns)


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
    own = _delivered_columns(made.schema, made.plan)
    column = Column(INSTANT, pa.int64() if is_number else TIMESTAMP)
    schema = Schema((*own, column))
    time = StreamTime(INSTANT, Duration(0, is_number))
    kind = ObjectKind.STREAMING_TABLE
    return tables.provisional(statement.name.text, kind, schema, time, None, statement.period)
