"""SHOW, DESCRIBE and EXPLAIN: whatever has a name, found and told about; changes nothing.

Streaming views and standing inserts are found under the names that SHOW QUERIES lists, though the catalogue knows
them as a table and a hidden query.
"""

from __future__ import annotations

from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.execute import query
from millstream.plan import describe, explain
from millstream.plan.bind import bind_text, find_named
from millstream.plan.later import not_supported_yet
from millstream.schema import ObjectKind
from millstream.sql import statements as st

if TYPE_CHECKING:
    from millstream.catalog.records import TableInfo
    from millstream.engine import Engine


class Inspection:
    """Runs the statements that look; `run` gives the rows to show."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queries = engine.queries
        self._views = engine.views

    @singledispatchmethod
    def run(self, statement: Any, parameters: Any) -> pa.Table:
        del parameters
        raise not_supported_yet(statement)

    def _named(self, name: st.Name) -> TableInfo:
        """What a name stands for, standing inserts included."""
        known = self._engine.known_tables()
        if name.text.lower() not in known and self._queries.known.named(name.text) is not None:
            return self._queries.known.find(name)
        return find_named(name, known)

    # SHOW

    @run.register
    def _show(self, statement: st.Show, _: Any) -> pa.Table:
        return describe.like(statement, self._shown(statement))

    def _shown(self, statement: st.Show) -> pa.Table:
        engine, what = self._engine, statement.what
        if what is st.ShowWhat.VIEWS:
            return describe.views(engine.known_tables(), self._views.listed())
        if what is st.ShowWhat.QUERIES:
            return describe.queries(self._queries.listing.listed())
        if what is st.ShowWhat.EDDY:
            return describe.eddy(self._queries.company.eddy())
        if what is st.ShowWhat.JOINS:
            return describe.joins(self._queries.company.joins())
        if what is st.ShowWhat.STREAMING_VIEWS:
            return describe.streaming_views(engine.lake, engine.reader(), self._queries.listing.listed())
        if what is st.ShowWhat.CREATE and statement.of is not None:
            return describe.create(self._written(self._named(statement.of)))
        return describe.show(statement, engine.lake, engine.reader(), self._jobs(), engine.settings.shown())

    def _written(self, found: TableInfo) -> str:
        """The statement that would make the same again."""
        standing = self._standing(found)
        return describe.create_statement(found) if standing is None else self._queries.listing.written(standing)

    def _standing(self, found: TableInfo) -> TableInfo | None:
        """The query that something is, or that feeds it."""
        return found if found.kind is ObjectKind.CONTINUOUS_QUERY else self._queries.defining.feed_of(found)

    def _jobs(self) -> list[tuple[str, int, int, str | None]]:
        net = self._engine.net
        found = net.transitions if net is not None else ()
        return [(t.name, t.place.tokens, t.fired, str(t.failure) if t.failure else None) for t in found]

    # DESCRIBE

    @run.register
    def _describe(self, statement: st.Describe, parameters: Any) -> pa.Table:
        engine = self._engine
        if statement.query is not None:
            return describe.columns_of(engine.rows(statement.query, statement, parameters).schema())
        if statement.name is None:
            raise not_supported_yet(statement)
        found = self._named(statement.name)
        if found.kind is ObjectKind.CONTINUOUS_VIEW:
            return describe.continuous_view(found, self._views.details(found), statement.extended)
        if found.kind is ObjectKind.CONTINUOUS_QUERY:
            return describe.continuous_view(found, self._queries.listing.details(found), statement.extended)
        if found.kind is ObjectKind.VIEW:
            bound = bind_text(found.definition or "", engine.reader(), (found.name.lower(),))
            return describe.columns_of(query.run(engine.spark, bound, engine.relations, {}).schema())
        if not statement.extended:
            return describe.table(found)
        return describe.extended(found, engine.reader(), engine.lake)

    # EXPLAIN

    @run.register
    def _explain(self, statement: st.Explain, parameters: Any) -> pa.Table:
        return explain.as_table(self._explained(statement, parameters))

    def _explained(self, statement: st.Explain, parameters: Any) -> str:
        engine = self._engine
        if statement.mode is st.ExplainMode.INCREMENTAL:
            return self._incremental(statement)
        if statement.mode is st.ExplainMode.SHARED and statement.name is not None:
            return self._queries.company.explained(self._queries.known.find(statement.name))
        if statement.query is None and statement.name is not None and statement.mode is None:
            return self._queries.listing.explained(self._queries.known.find(statement.name))
        if statement.query is None or statement.mode is st.ExplainMode.SHARED:
            raise not_supported_yet(statement)
        bound = engine.bound(statement.query, statement, parameters)
        if statement.mode is not st.ExplainMode.SPARK:
            return explain.logical(bound)
        rows = query.run(engine.spark, bound, engine.relations, parameters, prefix="EXPLAIN FORMATTED ")
        return rows.splice.restore_names(rows.to_arrow().column(0)[0].as_py())

    def _incremental(self, statement: st.Explain) -> str:
        standing = None if statement.name is None else self._standing(self._named(statement.name))
        if standing is not None:
            return self._queries.listing.explained(standing)
        return self._views.explained(statement, self._engine.known_tables())
