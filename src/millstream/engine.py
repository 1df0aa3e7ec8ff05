"""A statement's life: parsed, bound, run, committed, answered.

    text ─► sql.parse ─► Statement ─► Engine.run ─► plan.bind ─► execute (Spark) ─► storage ─► Result

The engine wires the layers and has no logic of its own beyond who may do what to which kind of object.
Statements of parts that are not built yet end here, in NOT_SUPPORTED_YET.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from millstream.catalog import queries, stats, streams, views
from millstream.definitions import Definitions
from millstream.deliver.copy_to import copy_to
from millstream.deliver.result import Result
from millstream.errors import Condition, DataError, MillstreamError, StatementError
from millstream.execute import assign, query
from millstream.execute.failures import translated
from millstream.execute.lookup import FoundRows
from millstream.execute.mutate import Mutation
from millstream.execute.relation import Relations
from millstream.execute.write import write_rows
from millstream.ingest import convert, copy_from, literals
from millstream.ingest.progress import Listener, ignore
from millstream.inspection import Inspection
from millstream.plan import compare, define, valid
from millstream.plan.bind import BoundQuery, bind, column, find_named
from millstream.plan.later import not_supported_yet
from millstream.plan.parameters import checked_parameters
from millstream.queries.front import ContinuousQueries
from millstream.schema import ObjectKind
from millstream.settings import Settings
from millstream.sql import statements as st
from millstream.storage.reader import Reader
from millstream.storage.transaction import Written
from millstream.views.front import ContinuousViews

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from millstream.catalog.commits import Commit
    from millstream.catalog.records import Segment, TableInfo
    from millstream.execute.session import Spark
    from millstream.schedule.net import Net
    from millstream.storage.lake import Lake
    from millstream.storage.prune import Comparison
    from millstream.storage.transaction import Transaction

MOST_ATTEMPTS = 10
STORED = (ObjectKind.TABLE, ObjectKind.STREAM, ObjectKind.STREAMING_TABLE)
CHANGEABLE = (ObjectKind.TABLE, ObjectKind.STREAMING_TABLE)
STREAMING = (ObjectKind.STREAM, ObjectKind.STREAMING_TABLE)
T = TypeVar("T")


class Engine:
    """Runs statements against one open database; safe for many threads."""

    def __init__(self, lake: Lake, spark: Spark, net: Net | None, listener: Listener = ignore) -> None:
        self.lake = lake
        self.spark = spark
        self.net = net
        self.listener = listener
        self.relations = Relations(spark, lake)
        self.views = ContinuousViews(lake, spark, self.relations, listener)
        self.queries = ContinuousQueries(lake, spark, self.relations)
        self.queries.answers.views = self._kept_rows
        self.queries.answers.catch_up = self.views.catch_up_named
        self.queries.answers.executor = lambda: self.views.keeper.executor
        self.definitions = Definitions(self)
        self.inspection = Inspection(self)
        self.settings = Settings(lake, self.views.keeper, self.queries)
        self._local = threading.local()
        self._table_locks: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()

    def run(self, statement: st.Statement, parameters: Mapping[str, Any]) -> Result:
        """Run one statement; errors come out with its text, so that they can underline."""
        try:
            with self._pinning():
                return self._run(statement, checked_parameters(parameters))
        except MillstreamError as error:
            error.located_in(statement.text)
            raise

    @contextmanager
    def _pinning(self) -> Iterator[None]:
        """In here upkeep leaves in place what any reader of this thread may be about to read."""
        outer: ExitStack | None = getattr(self._local, "pins", None)
        with ExitStack() as pins:
            self._local.pins = pins
            try:
                self.reader()
                yield
            finally:
                self._local.pins = outer

    # What a statement sees and changes

    @property
    def transaction(self) -> Transaction | None:
        found: Transaction | None = getattr(self._local, "transaction", None)
        return found

    def reader(self) -> Reader:
        pins: ExitStack | None = getattr(self._local, "pins", None)
        moment = None
        if pins is not None and self.transaction is None:
            # A state's files go as soon as nobody has pinned a moment at which they were there.
            moment = pins.enter_context(self.lake.catalog.pinned_now())
        return Reader(self.lake, self.transaction, self._kept_rows, moment, pins)

    def reader_in(self, transaction: Transaction) -> Reader:
        """What a statement reads that changes something, or makes a table."""
        return Reader(self.lake, transaction, self._kept_rows, pins=getattr(self._local, "pins", None))

    def _kept_rows(self, kept: TableInfo, reader: Reader) -> Any:
        """The rows of a continuous view, or the last answer of a continuous query."""
        if kept.kind is ObjectKind.CONTINUOUS_QUERY:
            return self.queries.handing.read(kept)
        return self.views.read(kept, reader)

    def known_tables(self) -> Mapping[str, TableInfo]:
        reader = self.reader()
        return reader.tables(reader.snapshot())

    @contextmanager
    def changes(self) -> Iterator[Transaction]:
        """The transaction to write to: the thread's open one, or one that commits on leaving."""
        if self.transaction is not None:
            yield self.transaction
            return
        transaction = self.lake.transaction()
        try:
            yield transaction
        except BaseException:
            transaction.rollback()
            raise
        transaction.commit()
        self._local.late = transaction.late_rows

    def _lock_of(self, table: TableInfo) -> threading.Lock:
        with self._lock:
            return self._table_locks.setdefault(table.id, threading.Lock())

    def retried(self, work: Callable[[Transaction], T]) -> T:
        """Run a change; again, on a newer snapshot, if another one got in between."""
        if self.transaction is not None:
            return work(self.transaction)
        for attempt in range(1, MOST_ATTEMPTS + 1):
            try:
                with self.changes() as transaction:
                    return work(transaction)
            except MillstreamError as error:
                if error.condition is not Condition.WRITE_CONFLICT or attempt == MOST_ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _change(self, table: TableInfo, work: Callable[[Transaction], int]) -> int:
        """Run a change that takes rows away: alone on its table."""
        if self.transaction is not None:
            return work(self.transaction)
        with self._lock_of(table):
            return self.retried(work)

    def target(self, name: st.Name, *allowed: ObjectKind, verb: str = "") -> TableInfo:
        """The table of that name, if it is of a kind that will do."""
        table = find_named(name, self.known_tables())
        if table.kind not in allowed:
            wanted = " or a ".join(k.value for k in allowed)
            said = f"Write {verb} {table.kind.value.upper()} {table.name}." if verb else None
            raise StatementError(
                Condition.WRONG_KIND,
                f"{table.name!r} is a {table.kind.value}, and this needs a {wanted}",
                hint=said or f"DESCRIBE {table.name} shows what it is.",
                span=name.span,
            )
        return table

    def bound(self, q: st.Query, statement: st.Statement, parameters: Mapping[str, Any]) -> BoundQuery:
        self.views.catch_up_for(q, self.known_tables())
        return bind(q, self.reader(), statement.text, parameters)

    def rows(self, q: st.Query, statement: st.Statement, parameters: Mapping[str, Any]) -> query.Rows:
        return query.run(self.spark, self.bound(q, statement, parameters), self.relations, parameters)

    # Statements

    @singledispatchmethod
    def _run(self, statement: st.Statement, parameters: Mapping[str, Any]) -> Result:
        del parameters
        raise not_supported_yet(statement)

    @_run.register
    def _select(self, statement: st.Select, parameters: Any) -> Result:
        bound = self.bound(statement.query, statement, parameters)
        pins = self.lake.catalog.pin_all(bound.snapshot_ids)

        def on_spark() -> query.Rows:
            return query.run(self.spark, bound, self.relations, parameters)

        try:
            found = bound.lookup
            rows = on_spark() if found is None else FoundRows(self.lake, found, on_spark)
        except BaseException:
            pins.close()
            raise
        return Result("SELECT", rows=rows, release=pins.close, session=self.spark.session)

    @_run.register(st.CreateTable)
    @_run.register(st.CreateStream)
    @_run.register(st.CreateStreamingTable)
    @_run.register(st.CreateView)
    @_run.register(st.CreateContinuousQuery)
    @_run.register(st.CreateStreamingView)
    @_run.register(st.CreateIndex)
    @_run.register(st.AlterTable)
    @_run.register(st.Drop)
    def _define(self, statement: Any, parameters: Any) -> Result:
        return Result(self.definitions.run(statement, parameters))

    @_run.register
    def _insert(self, statement: st.Insert, parameters: Any) -> Result:
        table = self.target(statement.table, *STORED)
        if statement.overwrite and table.kind is not ObjectKind.TABLE:
            raise StatementError(
                Condition.WRONG_KIND,
                f"{table.name!r} is a {table.kind.value}, and that cannot be overwritten",
                hint="Use INSERT INTO.",
                span=statement.table.span,
            )
        self._check_not_fed(table, statement.table)
        names = self._insert_columns(table, statement.columns)
        if isinstance(statement.source, st.Values) and not statement.overwrite:
            target = self._convert_target(table, names)
            found = self._literal_rows(statement.source, target, parameters)
            if found is not None:
                count = self.insert_arrow(table, convert.to_arrow(found, target))
                return Result(f"INSERT{self._late()} {count}")
        literal = isinstance(statement.source, st.Values)
        source = statement.source.query if isinstance(statement.source, st.Values) else statement.source
        if not statement.overwrite and self.queries.defining.is_standing(source):
            self.definitions.check_no_transaction("a standing INSERT")
            name = self.queries.defining.create_insert(table, names, source, statement.text)
            return Result(f"INSERT (standing, {name})")
        rows = self.rows(source, statement, parameters)
        if not statement.overwrite:
            count = self._insert_frame(table, rows, names, literal=literal)
            return Result(f"INSERT{self._late()} {count}")

        def overwrite(transaction: Transaction) -> int:
            written = self.write_frame(transaction, table, rows, names, literal=literal)
            transaction.clear(table)
            return transaction.append_segments(table, written)

        return Result(f"INSERT {self._change(table, overwrite)}")

    def _late(self) -> str:
        """What the status says of rows that came after the watermark had passed them."""
        late = getattr(self._local, "late", 0)
        self._local.late = 0
        return f" (late {late})" if late else ""

    def _check_not_fed(self, table: TableInfo, name: st.Name) -> None:
        """Refuse to write to a streaming view."""
        if self.queries.defining.is_view(table):
            raise StatementError(
                Condition.WRONG_KIND,
                f"{table.name!r} is a streaming view, and its query alone writes to it",
                hint="Insert into the streams that the view reads.",
                span=name.span,
            )

    @staticmethod
    def _literal_rows(
        values: st.Values, target: convert.Target, parameters: Mapping[str, Any]
    ) -> list[tuple[Any, ...]] | None:
        try:
            return literals.rows(values.rows, target, parameters)
        except MillstreamError as error:
            error.span = error.span and error.span.shifted(values.query.offset)
            raise

    def _insert_columns(self, table: TableInfo, given: tuple[st.Name, ...]) -> tuple[str, ...]:
        if not given:
            return insertable(table)
        names = [column(table, name) for name in given]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise StatementError(
                    Condition.DUPLICATE_COLUMN, f"column {name!r} is named twice", span=given[i].span
                )
            if table.time is not None and table.time.is_arrival and name == table.time.column:
                raise StatementError(
                    Condition.RESERVED_NAME,
                    f"{name!r} is stamped on arrival and cannot be inserted",
                    hint="Leave it out, or declare a time column of your own with TIMESTAMP BY.",
                    span=given[i].span,
                )
        return tuple(names)

    def _convert_target(self, table: TableInfo, names: Sequence[str]) -> convert.Target:
        return convert.Target(table.name, table.schema, table.schema.select(names).columns)

    def insert_arrow(self, table: TableInfo, data: pa.Table) -> int:
        """Insert rows that already have the table's schema; durable when this returns."""
        if not data.num_rows:
            return 0
        self._make_room(table)
        with self._counting_refusals(table), self.changes() as transaction:
            return transaction.append(table, transaction.stamped(table, data))

    def _make_room(self, table: TableInfo) -> None:
        """Wait, outside of transactions, for queries that are far behind."""
        if table.kind in STREAMING and self.transaction is None:
            self.queries.make_room(table)

    @contextmanager
    def _counting_refusals(self, table: TableInfo) -> Iterator[None]:
        """Count the rows without a time that an insert into a stream is refused for."""
        try:
            yield
        except DataError as error:
            refused = error.refused_rows
            if refused and table.id >= 0:
                self.lake.catalog.commit(lambda commit: streams.refused(commit, table.id, refused))
            raise

    def _insert_frame(
        self, table: TableInfo, rows: query.Rows, names: Sequence[str], *, literal: bool = False
    ) -> int:
        self._make_room(table)
        with self._counting_refusals(table), self.changes() as transaction:
            written = self.write_frame(transaction, table, rows, names, literal=literal)
            return transaction.append_segments(table, written)

    def write_frame(
        self,
        transaction: Transaction,
        table: TableInfo,
        rows: query.Rows,
        names: Sequence[str],
        *,
        literal: bool = False,
    ) -> list[Segment]:
        """Have Spark write rows into a table's folder, for a transaction to append."""
        with translated(rows.splice):
            frame = assign.assigned(rows.frame, table, names, literal=literal)
            if table.time is not None and table.time.is_arrival:
                frame = assign.with_constant(frame, table.time.column, self.lake.stamp(transaction, table))
        return write_rows(frame, table, self.lake.folder(table), rows.splice)

    def insert(self, name: str, data: Any) -> int:
        """`Database.insert`: rows in any form into a table or stream."""
        table = self.target(st.Name(name), *STORED)
        self._check_not_fed(table, st.Name(name))
        names = insertable(table)
        if type(data).__module__.startswith("pyspark."):
            names = tuple(column(table, st.Name(n)) for n in data.columns)
            return self._insert_frame(table, query.Rows(data), names)
        return self.insert_arrow(table, convert.to_arrow(data, self._convert_target(table, names)))

    @_run.register
    def _delete(self, statement: st.Delete, parameters: Any) -> Result:
        table = self.target(statement.table, *CHANGEABLE)
        self._check_not_fed(table, statement.table)
        if statement.where is None:
            return Result(f"DELETE {self._clear(table)}")
        where = statement.where
        return Result(f"DELETE {self._mutate(table, statement, where, parameters)}")

    @_run.register
    def _update(self, statement: st.Update, parameters: Any) -> Result:
        table = self.target(statement.table, *CHANGEABLE)
        self._check_not_fed(table, statement.table)
        names = [column(table, name) for name, _ in statement.assignments]
        for i, name in enumerate(names):
            if name in names[:i]:
                span = statement.assignments[i][0].span
                raise StatementError(Condition.DUPLICATE_COLUMN, f"column {name!r} is set twice", span=span)
        where = statement.where or st.Query("true", ())
        assignments = [(n, e) for n, (_, e) in zip(names, statement.assignments, strict=True)]
        return Result(f"UPDATE {self._mutate(table, statement, where, parameters, assignments)}")

    def _mutate(
        self,
        found: TableInfo,
        statement: st.Delete | st.Update,
        where: st.Query,
        parameters: Mapping[str, Any],
        assignments: Sequence[tuple[str, st.Query]] = (),
    ) -> int:
        alias = statement.alias or found.name
        for asked in (where, *(q for _, q in assignments)):
            self.views.catch_up_for(asked, self.known_tables())

        def work(transaction: Transaction) -> int:
            table = transaction.current(found)
            transaction.materialise(table)
            reader = self.reader_in(transaction)
            comparisons: Sequence[Comparison] = ()
            if where.tree is not None:
                time = valid.time_column(table)
                comparisons = tuple(
                    compare.of_predicate(where.tree, alias.lower(), table.schema, True, parameters, time)
                )
            scan = transaction.scan(table, comparisons, reader.horizon(table))
            mutation = Mutation(self.spark, self.relations, self.lake, parameters)
            target = (alias, table)
            condition = mutation.condition(bind(where, reader, statement.text, parameters, target), alias)
            if assignments:
                new = [(n, bind(e, reader, statement.text, parameters, target)) for n, e in assignments]
                change = mutation.update(scan, condition, new)
            else:
                change = mutation.delete(scan, condition)
            transaction.replace(table, change.gone, change.survivors)
            return change.rows

        return self._change(found, work)

    @_run.register
    def _truncate(self, statement: st.Truncate, _: Any) -> Result:
        table = self.target(statement.table, *CHANGEABLE)
        self._check_not_fed(table, statement.table)
        return Result(f"TRUNCATE {self._clear(table)}")

    def _clear(self, found: TableInfo) -> int:
        def work(transaction: Transaction) -> int:
            table = transaction.current(found)
            seen = Reader(self.lake, transaction).row_count(table)
            transaction.clear(table)
            return seen

        return self._change(found, work)

    @_run.register
    def _copy_from(self, statement: st.CopyFrom, _: Any) -> Result:
        table = self.target(statement.table, *STORED)
        self._check_not_fed(table, statement.table)
        names = self._insert_columns(table, statement.columns)
        try:
            paths = copy_from.files_of(statement.path)
        except MillstreamError as error:
            error.span = statement.path_span
            raise
        copy = copy_from.Copy(self._convert_target(table, names), statement.options, self.listener)
        self._make_room(table)
        with self._counting_refusals(table), self.changes() as transaction:
            parts = (transaction.stamped(table, part) for part in copy.tables(paths))
            count = transaction.append_all(table, parts)
        skipped = f" (skipped {copy.skipped})" if copy.skipped else ""
        return Result(f"COPY{skipped}{self._late()} {count}")

    @_run.register
    def _copy_to(self, statement: st.CopyTo, parameters: Any) -> Result:
        bound = self.bound(statement.query, statement, parameters)
        rows = query.run(self.spark, bound, self.relations, parameters)
        try:
            with self.lake.catalog.pin_all(bound.snapshot_ids):
                return Result(f"COPY {copy_to(rows, statement.path, statement.options)}")
        except MillstreamError as error:
            error.span = error.span or statement.path_span
            raise

    @_run.register
    def _advance(self, statement: st.Advance, _: Any) -> Result:
        stream = self.target(statement.stream, *STREAMING)
        try:
            self.advance(stream.name, statement.to)
        except MillstreamError as error:
            error.span = error.span or statement.to_span
            raise
        return Result("ADVANCE")

    def advance(self, name: str, to: int | str | datetime) -> None:
        """No row older than `to` will come: move the stream's watermark on."""
        if self.transaction is not None:
            raise StatementError(
                Condition.TRANSACTION_STATE,
                "ADVANCE cannot be part of a transaction",
                hint="COMMIT first: what is advanced past cannot be taken back.",
            )
        stream = self.target(st.Name(name), *STREAMING)
        self._check_not_fed(stream, st.Name(name))
        time, delay = define.time_value(stream, to)

        def work(commit: Commit) -> None:
            state = streams.state_of(commit, stream.id)
            define.check_forward(stream, state.watermark(delay), time)
            streams.save(commit, stream.id, define.advanced(state, time))
            if views.has_readers(commit.connection, stream.id):
                position = commit.stats_of(stream.id, stats.column_types(stream)).next_row_id
                queries.note_advance(commit, stream.id, position, time)
            if stream.period is not None:
                # The content changes with the time, so it is another version.
                commit.changed(f"deleted_from_table:{stream.id}")

        self.lake.settle(stream.id)
        self.lake.catalog.commit(work)
        self.lake.committed([Written(stream, 0, 0, 0)])

    @_run.register
    def _begin(self, _: st.Begin, __: Any) -> Result:
        if self.transaction is not None:
            raise StatementError(
                Condition.TRANSACTION_STATE,
                "a transaction is open already",
                hint="COMMIT or ROLLBACK it first.",
            )
        # What a transaction reads is of its beginning, views included.
        self.views.keeper.catch_up_all()
        self._local.transaction = self.lake.transaction(is_long=True)
        return Result("BEGIN")

    @_run.register
    def _commit(self, _: st.Commit, __: Any) -> Result:
        ended = self._end_transaction()
        ended.commit()
        self._local.late = ended.late_rows
        return Result(f"COMMIT{self._late()}")

    @_run.register
    def _rollback(self, _: st.Rollback, __: Any) -> Result:
        self._end_transaction().rollback()
        return Result("ROLLBACK")

    def _end_transaction(self) -> Transaction:
        found = self.transaction
        if found is None:
            raise StatementError(Condition.TRANSACTION_STATE, "no transaction is open", hint="BEGIN starts one.")
        self._local.transaction = None
        return found

    @_run.register(st.Show)
    @_run.register(st.Describe)
    @_run.register(st.Explain)
    def _inspect(self, statement: st.Statement, parameters: Any) -> Result:
        return Result(type(statement).__name__.upper(), table=self.inspection.run(statement, parameters))

    @_run.register
    def _refresh(self, statement: st.RefreshView, _: Any) -> Result:
        view = self.target(statement.name, ObjectKind.CONTINUOUS_VIEW)
        self.definitions.check_no_transaction("REFRESH VIEW")
        self.views.refresh(view, statement)
        return Result("REFRESH VIEW")

    @_run.register
    def _resume(self, statement: st.Resume, _: Any) -> Result:
        found = self.known_tables().get(statement.name.text.lower())
        if found is not None and found.kind is ObjectKind.CONTINUOUS_VIEW:
            self.views.keeper.resume(found)
        else:
            self.queries.resume(self.queries.known.find(statement.name))
        return Result("RESUME")

    @_run.register
    def _pause(self, statement: st.Pause, _: Any) -> Result:
        self.queries.pause(self.queries.known.find(statement.name))
        return Result("PAUSE")

    @_run.register
    def _subscribe(self, statement: st.Subscribe, _: Any) -> Result:
        """The deliveries that are kept, each row with its place; a shell goes on from there."""
        return Result("SUBSCRIBE", table=self.queries.handing.delivered(self.queries.known.find(statement.query)))

    @_run.register
    def _set(self, statement: st.SetOption, _: Any) -> Result:
        self.settings.set(statement.name, statement.value, statement.query)
        return Result("SET")

    def close(self) -> None:
        if self.transaction is not None:
            self._end_transaction().rollback()
        self.queries.close()
        self.relations.close()


def insertable(table: TableInfo) -> tuple[str, ...]:
    """The columns that an insert without a column list fills."""
    if table.time is not None and table.time.is_arrival:
        return tuple(n for n in table.schema.names if n != table.time.column)
    return table.schema.names
