"""All continuous queries of a database: found by id, by name, by the streams they read; follows the catalogue.

There may be tens of thousands, so what others ask at every insert costs the same however many there are.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from millstream.errors import Condition, StatementError, did_you_mean
from millstream.plan.standing import QueryPlan
from millstream.schema import ObjectKind

if TYPE_CHECKING:
    from millstream.catalog.catalog import Catalog
    from millstream.catalog.records import TableInfo
    from millstream.sql.statements import Name

FEED, INSERT = "__feed_of_{}", "__insert_into_{}"


def shown_name(query: TableInfo) -> str:
    """The name that users know a query by."""
    return query.name.removeprefix(FEED.format("")).removeprefix("__")


def may_share(query: TableInfo, plan: QueryPlan) -> bool:
    """Whether a query can be in a group: it selects from one stream, and what it delivers goes to subscribers."""
    return plan.is_selection and query.standing is not None and query.standing.target is None


class Known:
    """See the module's contract; those that feed streaming views and standing inserts are included."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._seen: tuple[object, object] = (None, None)
        self._version = 0
        self._by_id: dict[int, TableInfo] = {}
        self._by_name: dict[str, TableInfo] = {}
        self._by_stream: dict[int, dict[int, TableInfo]] = {}
        self._by_table: dict[str, dict[int, TableInfo]] = {}
        self._by_target: dict[int, dict[int, TableInfo]] = {}
        self._loners: dict[int, TableInfo] = {}
        self._plans: dict[int, QueryPlan] = {}
        self._lock = threading.RLock()

    def _refresh(self) -> None:
        with self._lock:
            # In here, as a thread that is slow would else bring back what was there before.
            tables, hidden = self._catalog.tables(), self._catalog.hidden()
            if self._seen[0] is not tables or self._seen[1] is not hidden:
                self._compare(tables, hidden)

    def _compare(self, tables: dict[str, TableInfo], hidden: dict[int, TableInfo]) -> None:
        kind = ObjectKind.CONTINUOUS_QUERY
        found = {t.id: t for t in (*tables.values(), *hidden.values()) if t.kind is kind}
        for query_id in self._by_id.keys() - found.keys():
            self._forget(self._by_id[query_id])
        for query_id in sorted(found.keys() - self._by_id.keys()):
            self._learn(found[query_id])
        self._seen = (tables, hidden)
        self._version += 1

    def _learn(self, query: TableInfo) -> None:
        assert query.standing is not None
        self._by_id[query.id] = self._by_name[query.name.lower()] = query
        plan = self._plans[query.id] = QueryPlan.from_json(query.standing.plan)
        for stream_id in plan.streams:
            self._by_stream.setdefault(stream_id, {})[query.id] = query
        for name in plan.tables:
            self._by_table.setdefault(name.lower(), {})[query.id] = query
        if query.standing.target is not None:
            self._by_target.setdefault(query.standing.target, {})[query.id] = query
        if not may_share(query, plan):
            self._loners[query.id] = query

    def _forget(self, query: TableInfo) -> None:
        del self._by_id[query.id]
        if self._by_name.get(query.name.lower()) is query:
            del self._by_name[query.name.lower()]
        plan = self._plans.pop(query.id)
        for stream_id in plan.streams:
            del self._by_stream[stream_id][query.id]
        for name in {n.lower() for n in plan.tables}:
            del self._by_table[name][query.id]
        if query.standing is not None and query.standing.target is not None:
            del self._by_target[query.standing.target][query.id]
        self._loners.pop(query.id, None)

    def __len__(self) -> int:
        self._refresh()
        return len(self._by_id)

    @property
    def version(self) -> int:
        """Another number whenever queries may have come or gone."""
        self._refresh()
        return self._version

    def every(self) -> list[TableInfo]:
        """All queries, in the order of their making."""
        self._refresh()
        return list(self._by_id.values())

    def get(self, query_id: int) -> TableInfo | None:
        self._refresh()
        return self._by_id.get(query_id)

    def plan(self, query_id: int) -> QueryPlan | None:
        """The plan of a query; None if it has gone."""
        self._refresh()
        return self._plans.get(query_id)

    def plan_of(self, query: TableInfo) -> QueryPlan:
        """The plan of a query, also of one that has just gone."""
        known = self.plan(query.id)
        assert query.standing is not None
        return QueryPlan.from_json(query.standing.plan) if known is None else known

    def loners(self) -> list[TableInfo]:
        """The queries that can be in no group."""
        self._refresh()
        return list(self._loners.values())

    def readers(self, table: TableInfo) -> list[TableInfo]:
        """The queries that read a stream, or a table or view at each instant, in the order of their making."""
        self._refresh()
        found = self._by_stream.get(table.id, {}) | self._by_table.get(table.name.lower(), {})
        return [found[query_id] for query_id in sorted(found)]

    def feeds_of(self, table_id: int) -> list[TableInfo]:
        """The queries that write to a table."""
        self._refresh()
        return list(self._by_target.get(table_id, {}).values())

    def way(self, start: int, end: int) -> list[int] | None:
        """The tables and streams that rows of `start` pass on their way to `end`, both included, if they do."""
        self._refresh()
        ways, at = {start: [start]}, [start]
        while at and end not in ways:
            here = at.pop(0)
            for query in list(self._by_stream.get(here, {}).values()):
                assert query.standing is not None
                target = query.standing.target
                if target is not None and target not in ways:
                    ways[target] = [*ways[here], target]
                    at.append(target)
        return ways.get(end)

    def is_read(self, stream_id: int) -> bool:
        self._refresh()
        return bool(self._by_stream.get(stream_id))

    def streams(self) -> list[int]:
        """The streams that queries read."""
        self._refresh()
        return [stream_id for stream_id, who in list(self._by_stream.items()) if who]

    def named(self, name: str) -> TableInfo | None:
        """The query of that name, standing inserts included, whatever the case."""
        self._refresh()
        wanted = name.lower()
        return self._by_name.get(wanted) or self._by_name.get(f"__{wanted}")

    def feed_of(self, name: str) -> TableInfo | None:
        """The query that feeds the streaming view of that name."""
        self._refresh()
        return self._by_name.get(FEED.format(name).lower())

    def find(self, name: Name, *, alone: bool = False) -> TableInfo:
        """The query of that name, or, unless `alone`, the one that feeds the streaming view of that name."""
        found = self.named(name.text) or (None if alone else self.feed_of(name.text))
        if found is not None:
            return found
        there = self._catalog.tables().get(name.text.lower())
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
