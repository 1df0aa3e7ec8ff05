"""The engine's door to continuous views: made, dropped, refreshed, resumed, caught up, read, listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.catalog import files, views
from millstream.catalog.commits import Receipt
from millstream.errors import Condition, StatementError
from millstream.plan import define, incremental
from millstream.plan.bind import find_named
from millstream.schema import ObjectKind
from millstream.sql import statements as st
from millstream.sql.names import check_name
from millstream.sql.parse import parse_one
from millstream.storage.transaction import check_still_there, conflict, end_view
from millstream.views.keeping import Keeper
from millstream.views.making import Maker
from millstream.views.overlay import is_view
from millstream.views.reading import Readings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from millstream.catalog.commits import Commit
    from millstream.catalog.records import TableInfo
    from millstream.execute.relation import Relations
    from millstream.execute.session import Spark
    from millstream.ingest.progress import Listener
    from millstream.plan.bind import BoundQuery
    from millstream.storage.lake import Lake
    from millstream.storage.reader import Reader
    from millstream.storage.scan import Scan

VIEWS = (ObjectKind.VIEW, ObjectKind.CONTINUOUS_VIEW)


class ContinuousViews:
    """Safe for many threads."""

    def __init__(self, lake: Lake, spark: Spark, relations: Relations, listener: Listener) -> None:
        self._lake = lake
        self.keeper = Keeper(lake, spark, relations, listener)
        self.maker = Maker(self.keeper)
        self.readings = Readings(self.keeper)

    # Definitions

    def is_continuous(self, statement: st.CreateView, tables: Mapping[str, TableInfo]) -> bool:
        """Whether a CREATE VIEW makes a continuous one: it says so, or it reads a stream."""
        if statement.continuous or statement.with_history:
            return True
        found = (tables.get(r.name.lower()) for r in statement.query.tables)
        return any(t is not None and t.kind is ObjectKind.STREAM for t in found)

    def create(self, statement: st.CreateView) -> str:
        check_name(statement.name)
        name = statement.name.text
        existing = self._lake.catalog.tables().get(name.lower())
        if existing is not None and not (statement.or_replace and existing.kind in VIEWS):
            if statement.if_not_exists:
                return "CREATE CONTINUOUS VIEW"
            raise define.duplicate(statement.name, existing)
        draft = self.maker.draft(statement)

        def work(commit: Commit) -> TableInfo:
            there = self._lake.catalog.tables(commit.base).get(name.lower())
            if (there.id if there else None) != (existing.id if existing else None):
                raise conflict(there or existing)  # type: ignore[arg-type]
            made = self.maker.create(commit, draft)
            if there is not None:
                # Last, since the new view may share what the old one has pinned.
                drop_view(commit, there)
            return made

        with self.keeper.lock:
            receipt = Receipt()
            try:
                view = self._lake.catalog.commit(work, receipt=receipt)
            except BaseException:
                if not receipt.committed:
                    self.maker.discard(draft)
                raise
            if existing is not None:
                self._forget(existing)
            self.keeper.added(view)
            self.maker.remember(draft, view)
        return "CREATE CONTINUOUS VIEW"

    def _forget(self, view: TableInfo) -> None:
        self.keeper.forget(view.id)
        self.readings.forget(view.id)

    def dropped(self, tables: list[TableInfo]) -> None:
        for table in tables:
            self._forget(table)

    def readers_of(self, table: TableInfo) -> list[TableInfo]:
        """The continuous views that cannot do without a table or stream."""
        lowered = table.name.lower()
        return [
            k.view
            for k in self.keeper.every()
            if table.id in k.plan.streams or lowered in (n.lower() for n in k.plan.above)
        ]

    def refresh(self, view: TableInfo, statement: st.RefreshView) -> None:
        """Make a view anew from the history that its streaming tables keep."""
        kept = self.keeper.kept(view)
        every = {t.id: t for t in self._lake.catalog.tables().values()}
        for stream_id in kept.plan.streams:
            self._check_rebuildable(every[stream_id], statement)
        written = f"CREATE OR REPLACE CONTINUOUS VIEW `{view.name}` AS {view.definition} WITH HISTORY"
        made = parse_one(written)
        assert isinstance(made, st.CreateView)
        self.create(made)

    @staticmethod
    def _check_rebuildable(stream: TableInfo, statement: st.RefreshView) -> None:
        if stream.kind is ObjectKind.STREAM or stream.period is not None:
            why = (
                "A stream drops its rows once every consumer has seen them."
                if stream.kind is ObjectKind.STREAM
                else "It keeps its rows for a period, and the view may hold older ones."
            )
            raise StatementError(
                Condition.UNSUPPORTED_VIEW,
                f"the view cannot be rebuilt: {stream.name!r} does not keep all of its history",
                detail=why,
                hint="CREATE OR REPLACE the view to begin anew; a STREAMING TABLE with RANGE UNBOUNDED keeps all.",
                span=statement.name.span,
            )

    # Reading

    def advance_all(self) -> None:
        """Bring every view up to date, and merge states that have come to many pieces."""
        every = self.keeper.every()
        self.keeper.catch_up(every)
        for kept in every:
            self.keeper.merge(kept)

    def catch_up_named(self, names: Sequence[str]) -> None:
        """Bring those of some views that are continuous up to date."""
        known = self._lake.catalog.tables()
        found = [t for n in names if (t := known.get(n.lower())) is not None and is_view(t)]
        if found and not self._lake.read_only:
            self.keeper.catch_up([k for t in found if (k := self.keeper.there(t)) is not None])

    def catch_up_for(self, query: st.Query, tables: Mapping[str, TableInfo]) -> None:
        """Bring the views that a query reads, itself or through plain views, up to date."""
        if self._lake.read_only:
            return
        found = self._views_in(query, tables, set())
        behind = [k for v in found if (k := self.keeper.there(v)) is not None]
        if behind:
            self.keeper.catch_up(behind)

    def _views_in(self, query: st.Query, tables: Mapping[str, TableInfo], seen: set[str]) -> Iterator[TableInfo]:
        for reference in query.tables:
            found = tables.get(reference.name.lower())
            if found is None or found.name in seen or found.kind not in VIEWS:
                continue
            seen.add(found.name)
            if is_view(found):
                yield found
            else:
                inner = parse_one(found.definition or "")
                if isinstance(inner, st.Select):
                    yield from self._views_in(inner.query, tables, seen)

    def read(self, view: TableInfo, reader: Reader) -> Scan | BoundQuery:
        return self.readings.read(view, reader)

    # Listing

    def details(self, view: TableInfo) -> list[tuple[str, str]]:
        """For DESCRIBE EXTENDED: how a view is kept, and what it has pinned."""
        kept = self.keeper.kept(view)
        status = next(v for v in self.listed() if v[0] == view.name)
        pinned = sorted({t for s in kept.plan.statics for t in s.tables})
        return [
            ("status", status[1] if view.id not in self.keeper.failures else self.keeper.failures[view.id]),
            ("streams", status[2]),
            ("rows behind", str(status[3])),
            ("state", f"{status[4]} rows, {status[5]} bytes"),
            ("last refresh", status[6] or "never"),
            ("pinned at creation", ", ".join(pinned) or "nothing"),
            ("read as they are", ", ".join(kept.plan.above) or "nothing"),
        ]

    def explained(self, statement: st.Explain, tables: Mapping[str, TableInfo]) -> str:
        """For EXPLAIN INCREMENTAL: the fragments of a view, or of a query if it were one."""
        names = {t.id: t.name for t in tables.values()}
        if statement.name is not None:
            view = find_named(statement.name, tables)
            if not is_view(view):
                raise StatementError(
                    Condition.WRONG_KIND,
                    f"{view.name!r} is a {view.kind.value}, and this needs a continuous view",
                    hint="EXPLAIN INCREMENTAL SELECT … shows how a query would be kept up to date.",
                    span=statement.name.span,
                )
            kept = self.keeper.kept(view)
            return incremental.explained(view.name, kept.plan, names, self.keeper.executors(kept))
        assert statement.query is not None
        asked = st.CreateView(st.Name("this query"), statement.query, continuous=True, text=statement.text)
        plan, _ = self.maker.plan(asked)
        return incremental.explained("this query", plan, names, self.maker.executors(plan))

    def listed(self) -> list[tuple[str, str, str, int, int, int, str | None, str]]:
        """For SHOW VIEWS: name, status, streams, rows behind, rows and bytes of state, last refresh, query."""
        with self._lake.catalog.read() as connection:
            refreshed = views.refreshed_at(connection)
            snapshot = self._lake.catalog.current.id
            every = {t.id: t for t in self._lake.catalog.tables().values()}
            found = []
            for kept in sorted(self.keeper.every(), key=lambda k: k.view.name.lower()):
                live = [f for t in kept.states for f in files.live(connection, t.id, snapshot)]
                lag = max((self.keeper.lag(kept.view.id, s) for s in kept.plan.streams), default=0)
                found.append((
                    kept.view.name,
                    "failed" if kept.view.id in self.keeper.failures else "running",
                    ", ".join(every[s].name for s in kept.plan.streams if s in every),
                    lag,
                    sum(f.rows for f in live),
                    sum(f.bytes for f in live),
                    refreshed.get(kept.view.id),
                    kept.view.definition or "",
                ))  # fmt: skip
        return found


def drop_view(commit: Commit, view: TableInfo) -> None:
    check_still_there(commit, view)
    end_view(commit, view)
