"""CREATE, ALTER and DROP: definitions, checked and brought into the catalogue.

Tables, streams and streaming tables are created and dropped within the thread's transaction. Indices and
changes of a definition take effect at once, for all, and so cannot be part of one.
"""

from __future__ import annotations

from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any

from millstream.catalog import indexes, inlined, tables, views
from millstream.catalog.records import IndexMethod
from millstream.errors import Condition, StatementError
from millstream.execute import query
from millstream.execute.types import stored_type
from millstream.plan import define
from millstream.plan.bind import bind, bind_text
from millstream.plan.later import not_supported_yet
from millstream.queries.known import shown_name
from millstream.schedule.upkeep import EXPIRED, UNINDEXED
from millstream.schema import Column, ObjectKind
from millstream.sql import statements as st
from millstream.sql.names import check_name
from millstream.storage import upkeep
from millstream.storage.reader import Reader
from millstream.storage.transaction import check_same_version, conflict

if TYPE_CHECKING:
    from millstream.catalog.commits import Commit
    from millstream.catalog.records import IndexInfo, TableInfo
    from millstream.engine import Engine
    from millstream.storage.transaction import Transaction

STORED = (ObjectKind.TABLE, ObjectKind.STREAM, ObjectKind.STREAMING_TABLE)
VIEWS = (ObjectKind.VIEW, ObjectKind.CONTINUOUS_VIEW)
STANDING = (ObjectKind.CONTINUOUS_QUERY, ObjectKind.STREAMING_VIEW)


class Definitions:
    """Runs the statements that define; `run` gives the status to show."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lake = engine.lake

    @singledispatchmethod
    def run(self, statement: Any, parameters: Any) -> str:
        del parameters
        raise not_supported_yet(statement)

    @run.register
    def _create_table(self, statement: st.CreateTable, parameters: Any) -> str:
        check_name(statement.name)
        if statement.as_query is not None:
            self._engine.views.catch_up_for(statement.as_query, self._engine.known_tables())

        def work(transaction: Transaction) -> str:
            existing = transaction.tables().get(statement.name.text.lower())
            if existing is not None and statement.if_not_exists:
                return "CREATE TABLE"
            if existing is not None and not (statement.or_replace and existing.kind is ObjectKind.TABLE):
                raise define.duplicate(statement.name, existing)
            rows = None
            columns = statement.columns
            if statement.as_query is not None:
                reader = self._engine.reader_in(transaction)
                bound = bind(statement.as_query, reader, statement.text, parameters)
                rows = query.run(self._engine.spark, bound, self._engine.relations, parameters)
                columns = tuple(Column(f.name, stored_type(f)) for f in rows.schema())
            schema = define.schema(columns)
            wanted = tables.provisional(statement.name.text, ObjectKind.TABLE, schema, None, statement.comment)
            written = [] if rows is None else self._engine.write_frame(transaction, wanted, rows, schema.names)
            if existing is not None:
                transaction.drop(existing)
            count = transaction.append_segments(transaction.create(wanted), written)
            return "CREATE TABLE" if rows is None else f"CREATE TABLE {count}"

        return self._engine.retried(work)

    @run.register
    def _create_stream(self, statement: st.CreateStream, _: Any) -> str:
        schema, time = define.stream(statement)
        wanted = tables.provisional(statement.name.text, ObjectKind.STREAM, schema, time, statement.comment)
        return self._create(statement, wanted)

    @run.register
    def _create_streaming_table(self, statement: st.CreateStreamingTable, _: Any) -> str:
        schema, time = define.stream(statement)
        define.check_period(time, statement.period, statement.period_span)
        kind, name = ObjectKind.STREAMING_TABLE, statement.name.text
        wanted = tables.provisional(name, kind, schema, time, statement.comment, statement.period)
        return self._create(statement, wanted)

    def _create(self, statement: st.CreateStream | st.CreateStreamingTable, wanted: TableInfo) -> str:
        check_name(statement.name)

        def work(transaction: Transaction) -> str:
            existing = transaction.tables().get(wanted.name.lower())
            if existing is None:
                transaction.create(wanted)
            elif not statement.if_not_exists:
                raise define.duplicate(statement.name, existing)
            return f"CREATE {wanted.kind.value.upper()}"

        return self._engine.retried(work)

    @run.register
    def _create_query(self, statement: st.CreateContinuousQuery, _: Any) -> str:
        self.check_no_transaction("CREATE CONTINUOUS QUERY")
        warning = self._engine.queries.defining.create(statement)
        return f"CREATE CONTINUOUS QUERY; warning: {warning}" if warning else "CREATE CONTINUOUS QUERY"

    @run.register
    def _create_streaming_view(self, statement: st.CreateStreamingView, _: Any) -> str:
        self.check_no_transaction("CREATE STREAMING VIEW")
        self._engine.queries.defining.create_view(statement)
        return "CREATE STREAMING VIEW"

    @run.register
    def _drop(self, statement: st.Drop, _: Any) -> str:
        if statement.kind is ObjectKind.INDEX:
            return self._drop_index(statement)

        def work(transaction: Transaction) -> str:
            known = statement.name.text.lower() in transaction.tables()
            if statement.kind is ObjectKind.CONTINUOUS_QUERY:
                known = known or self._engine.queries.known.named(statement.name.text) is not None
            kinds = VIEWS if statement.kind in VIEWS else (statement.kind,)
            if statement.kind not in (*STORED, *VIEWS, *STANDING):
                if known:
                    self._engine.target(statement.name, statement.kind)
                raise not_supported_yet(statement)
            if known or not statement.if_exists:
                table = self._wanted(statement, kinds)
                gone[:] = self._with_feeds([*self._readers(table, statement), table])
                for each in gone:
                    transaction.drop(each)
            return f"DROP {statement.kind.value.upper()}"

        gone: list[TableInfo] = []
        status = self._engine.retried(work)
        if self._engine.transaction is None:
            self._engine.views.dropped(gone)
            self._engine.queries.dropped(gone)
        self._tell(EXPIRED)
        return status

    def _wanted(self, statement: st.Drop, kinds: tuple[ObjectKind, ...]) -> TableInfo:
        """What a DROP names, if it is of the kind that it says."""
        queries = self._engine.queries
        if statement.kind is ObjectKind.CONTINUOUS_QUERY:
            found = queries.known.find(statement.name, alone=True)
            if found is not None:
                return found
        is_view = statement.kind is ObjectKind.STREAMING_VIEW
        table = self._engine.target(
            statement.name, *((ObjectKind.STREAMING_TABLE,) if is_view else kinds), verb="DROP"
        )
        if is_view != queries.defining.is_view(table):
            said = ObjectKind.STREAMING_TABLE if is_view else ObjectKind.STREAMING_VIEW
            raise StatementError(
                Condition.WRONG_KIND,
                f"{table.name!r} is a {said.value}",
                hint=f"Write DROP {said.value.upper()} {table.name}.",
                span=statement.name.span,
            )
        return table

    def _with_feeds(self, gone: list[TableInfo]) -> list[TableInfo]:
        """What goes, with the queries that feed it, before what they write to."""
        known = self._engine.queries.known
        feeds = [q for t in gone for q in known.feeds_of(t.id)]
        return list({t.id: t for t in (*feeds, *gone)}.values())

    def _readers(self, table: TableInfo, statement: st.Drop) -> list[TableInfo]:
        """What goes with what it reads; refused unless the statement says CASCADE."""
        found: dict[int, TableInfo] = {}
        waiting = [table]
        while waiting:
            one = waiting.pop()
            more = [*self._engine.views.readers_of(one), *self._engine.queries.readers_of(one)]
            waiting += [t for t in more if t.id not in found]
            found |= {t.id: t for t in more}
        readers = list(found.values())
        if readers and not statement.cascade:
            raise StatementError(
                Condition.IN_USE,
                f"{table.name!r} is read by {', '.join(repr(shown_name(r)) for r in readers)}",
                hint=f"Drop these first, or DROP {statement.kind.value.upper()} {table.name} CASCADE.",
                span=statement.name.span,
            )
        return readers[::-1]

    @run.register
    def _create_view(self, statement: st.CreateView, _: Any) -> str:
        """A plain view; over a stream it is a continuous one."""
        if self._engine.views.is_continuous(statement, self._engine.known_tables()):
            self.check_no_transaction("CREATE CONTINUOUS VIEW")
            return self._engine.views.create(statement)
        check_name(statement.name)
        text = statement.query.text
        reader = Reader(self._lake, self._engine.transaction, self._engine.views.read)
        bound = bind_text(text, reader, (statement.name.text.lower(),))
        query.run(self._engine.spark, bound, self._engine.relations, {})

        def work(transaction: Transaction) -> str:
            existing = transaction.tables().get(statement.name.text.lower())
            if existing is not None and not (statement.or_replace and existing.kind in VIEWS):
                if statement.if_not_exists:
                    return "CREATE VIEW"
                raise define.duplicate(statement.name, existing)
            if existing is not None:
                transaction.drop(existing)
            transaction.create(views.provisional(statement.name.text, text))
            return "CREATE VIEW"

        return self._engine.retried(work)

    # What takes effect at once

    def check_no_transaction(self, what: str) -> None:
        if self._engine.transaction is not None:
            raise StatementError(
                Condition.TRANSACTION_STATE,
                f"{what} cannot be part of a transaction",
                hint="COMMIT or ROLLBACK first.",
            )

    def _tell(self, place: str) -> None:
        if self._engine.net is not None:
            self._engine.net.put(place)

    @run.register
    def _create_index(self, statement: st.CreateIndex, _: Any) -> str:
        self.check_no_transaction("CREATE INDEX")
        check_name(statement.name)
        table = self._engine.target(statement.table, ObjectKind.STREAMING_TABLE, ObjectKind.TABLE)
        indexed = define.index_column(statement, table)
        method = IndexMethod(statement.method)

        def work(commit: Commit) -> None:
            check_same_version(commit, table)
            known = indexes.load(commit.connection, commit.base.id)
            if statement.name.text.lower() in known:
                if statement.if_not_exists:
                    return
                raise define.duplicate_index(statement.name)
            indexes.create(commit, statement.name.text, table, indexed, method)

        self._lake.catalog.commit(work)
        self._tell(UNINDEXED)
        return "CREATE INDEX"

    def _drop_index(self, statement: st.Drop) -> str:
        self.check_no_transaction("DROP INDEX")
        found = self._index(statement)
        if found is not None:
            self._check_unused(found, statement)
            self._lake.catalog.commit(lambda commit: indexes.drop(commit, found))
            self._tell(EXPIRED)
        return "DROP INDEX"

    def _index(self, statement: st.Drop) -> IndexInfo | None:
        known = self._lake.catalog.indexes()
        found = known.get(statement.name.text.lower())
        if found is not None and statement.table is not None:
            table = self._engine.target(statement.table, *STORED)
            found = found if found.table_id == table.id else None
        if found is None and not statement.if_exists:
            raise define.unknown_index(statement.name, known.values())
        return found

    def _check_unused(self, index: IndexInfo, statement: st.Drop) -> None:
        calls = self._lake.access.uses_index(index.table_id, self._column_name(index))
        if calls:
            raise StatementError(
                Condition.IN_USE,
                f"the index {index.name!r} is in use by {', '.join(calls)}",
                detail="A standing index scan reads through it.",
                hint="End what uses it, then drop it.",
                span=statement.name.span,
            )

    def _column_name(self, index: IndexInfo) -> str:
        owner = next(t for t in self._lake.catalog.tables().values() if t.id == index.table_id)
        return owner.column(index.column_id).name

    @run.register
    def _alter(self, statement: st.AlterTable, _: Any) -> str:
        self.check_no_transaction("ALTER")
        table = self._engine.target(statement.name, statement.kind, verb="ALTER")
        if isinstance(statement.action, st.SetRange):
            self._set_range(table, statement.action, statement.name)
        else:
            self._add_columns(table, statement.action)
        return f"ALTER {statement.kind.value.upper()}"

    def _set_range(self, table: TableInfo, action: st.SetRange, name: st.Name) -> None:
        if table.kind is not ObjectKind.STREAMING_TABLE or table.time is None:
            raise StatementError(
                Condition.WRONG_KIND,
                f"{table.name!r} is a {table.kind.value} and has no RANGE",
                hint="RANGE says how long a STREAMING TABLE keeps its rows.",
                span=name.span,
            )
        define.check_period(table.time, action.period, action.span)

        def work(commit: Commit) -> None:
            check_same_version(commit, table)
            tables.set_period(commit, table, action.period)

        self._lake.catalog.commit(work)
        self._tell(EXPIRED)

    def _add_columns(self, table: TableInfo, action: st.AddColumns) -> None:
        new = define.new_columns(table, action)
        if not new:
            return

        def work(commit: Commit) -> None:
            check_same_version(commit, table)
            nested = table.inlined_table and not define.can_be_inlined(new)
            if nested and inlined.count(commit.connection, table, commit.base.id):
                raise conflict(table)
            tables.add_columns(commit, table, new)

        if not define.can_be_inlined(new):
            upkeep.flush_table(self._lake, table)
        self._lake.catalog.commit(work)
