"""A parsed query at a snapshot → a bound query: every table known, every scan pruned.

Refuses names that do not exist (with the nearest that do), streams (they have no past to read), and
windows on anything a one-time query can see.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from sqlglot import exp

from millstream.errors import Condition, Span, StatementError, did_you_mean
from millstream.plan import compare, lookup, valid
from millstream.schema import ObjectKind, quote
from millstream.sql.cursor import SCHEMA
from millstream.sql.parse import parse_one
from millstream.sql.statements import Select

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from millstream.catalog.records import Snapshot, TableInfo
    from millstream.plan.lookup import Lookup
    from millstream.sql.statements import AsOf, Name, Query, TableReference
    from millstream.storage.prune import Comparison
    from millstream.storage.scan import Scan


KEPT = (ObjectKind.CONTINUOUS_VIEW, ObjectKind.CONTINUOUS_QUERY)
"""What is read from those who keep it."""
WEEK = "current_week"
NO_ARGUMENTS = re.compile(r"\s*\(\s*\)")


class Source(Protocol):
    """Where a query's tables come from: the database at a snapshot, or an open transaction."""

    def snapshot(self, version: int | None = None, time: datetime | None = None) -> Snapshot: ...

    def tables(self, snapshot: Snapshot) -> Mapping[str, TableInfo]: ...

    def scan(self, table: TableInfo, snapshot: Snapshot, comparisons: Sequence[Comparison]) -> Scan: ...

    def row_count(self, table: TableInfo) -> int: ...

    def horizon(self, table: TableInfo) -> int | None: ...

    def view(self, table: TableInfo) -> Scan | BoundQuery: ...


@dataclass(frozen=True)
class BoundTable:
    """A table reference and what it reads."""

    reference: TableReference
    scan: Scan


@dataclass(frozen=True)
class BoundView:
    """A reference to a view, and the view's own query."""

    reference: TableReference
    query: BoundQuery


@dataclass(frozen=True)
class BoundQuery:
    """A query whose every table is known. `text` and spans are the query's own, at `offset`.

    `edits` put into Spark's words what the text says in ours; `lookup` says the same if it is as simple as that.
    """

    text: str
    tables: tuple[BoundTable, ...]
    snapshot: Snapshot
    statement_text: str
    offset: int = 0
    edits: tuple[tuple[Span, str], ...] = ()
    views: tuple[BoundView, ...] = ()
    lookup: Lookup | None = None
    names: tuple[str, ...] = ()
    """The names of its columns, where they are not those that its text gives."""

    @property
    def snapshot_ids(self) -> frozenset[int]:
        """The snapshots it reads: those to keep while it runs."""
        below = (v.query.snapshot_ids for v in self.views)
        return frozenset({self.snapshot.id, *(t.scan.snapshot_id for t in self.tables)}.union(*below))


def bind(
    query: Query,
    source: Source,
    statement_text: str,
    parameters: Mapping[str, Any],
    target: tuple[str, TableInfo] | None = None,
    inside: tuple[str, ...] = (),
) -> BoundQuery:
    """Find the query's tables and prune what they read by the query's predicates.

    `target` is the table that an UPDATE or DELETE around the query changes, and the name it goes by;
    `inside` names the views that are being opened up, the outermost first.
    """
    snapshot = source.snapshot()
    if query.window is not None:
        raise StatementError(
            Condition.NOT_SUPPORTED,
            "windows are for continuous queries",
            hint="Use CREATE CONTINUOUS QUERY name AS SELECT ….",
            span=query.window.span.shifted(query.offset),
            text=statement_text,
        )
    found = [_resolve(r, source, snapshot, query, statement_text) for r in query.tables]
    schemas = {i: table.schema for i, (_, table) in enumerate(found)}
    known = [table for _, table in found]
    edits = valid.edits(query, lambda v: valid.resolved(query, v, known, target)) + _schema_names(query)
    edits += _weeks(query)
    comparisons = compare.of_query(query, schemas, parameters, valid.time_columns(known))
    tables, views = [], []
    for i, (reference, (at, table)) in enumerate(zip(query.tables, found, strict=True)):
        if table.kind is ObjectKind.VIEW:
            views.append(_open(reference, table, source, query, inside))
        elif table.kind in KEPT:
            found_rows = _read(reference, table, source, query)
            if isinstance(found_rows, BoundQuery):
                views.append(BoundView(reference, found_rows))
            else:
                tables.append(BoundTable(reference, found_rows))
        else:
            tables.append(BoundTable(reference, source.scan(table, at, comparisons.get(i, ()))))
    simple = None
    if len(tables) == 1 and not views and target is None:
        simple = lookup.of_query(query, tables[0].scan, parameters, valid.time_column(known[0]))
    return BoundQuery(
        query.text, tuple(tables), snapshot, statement_text, query.offset, tuple(edits), tuple(views), simple
    )


def _weeks(query: Query) -> list[tuple[Span, str]]:
    """`current_week()`, which Spark does not have: the ISO week of the day."""
    calls = [(f, NO_ARGUMENTS.match(query.text, f.span.end)) for f in query.functions if f.text.lower() == WEEK]
    return [
        (Span(f.span.start, call.end()), "weekofyear(current_date())") for f, call in calls if call is not None
    ]


def _schema_names(query: Query) -> list[tuple[Span, str]]:
    """`main.t.a` as `t.a`: Spark knows the tables of a query by their own names alone."""
    if query.tree is None or any((r.alias or r.name).lower() == SCHEMA for r in query.tables):
        return []
    columns = query.tree.find_all(exp.Column)
    qualified = ((c.args.get("db"), c.args.get("table")) for c in columns if not c.args.get("catalog"))
    return [
        (Span(schema.meta["start"], table.meta["start"]), "")
        for schema, table in qualified
        if schema is not None and table is not None and schema.name.lower() == SCHEMA and "start" in schema.meta
    ]


def _open(
    reference: TableReference, view: TableInfo, source: Source, query: Query, inside: tuple[str, ...]
) -> BoundView:
    """A view's own query, bound at the same moment; what is wrong with it is the view's name's fault."""
    try:
        if reference.as_of is not None:
            raise StatementError(
                Condition.NOT_SUPPORTED,
                f"{view.name!r} is a view, and AS OF is for tables",
                hint="Write the view's query with AS OF behind its tables.",
            )
        if view.name.lower() in inside:
            raise StatementError(
                Condition.QUERY_REFUSED,
                f"the view {view.name!r} reads itself",
                detail=f"It goes round by {', '.join([*inside, view.name])}.",
                hint="DROP one of these views and create it anew.",
            )
        return BoundView(reference, bind_text(view.definition or "", source, (*inside, view.name.lower())))
    except StatementError as error:
        error.span, error.text = reference.span.shifted(query.offset), None
        raise


def _read(reference: TableReference, view: TableInfo, source: Source, query: Query) -> Scan | BoundQuery:
    """The rows of a continuous view; what is wrong with it is its name's fault."""
    try:
        if reference.as_of is not None:
            raise StatementError(
                Condition.NOT_SUPPORTED,
                f"{view.name!r} is a {view.kind.value}, and AS OF is for tables",
                hint=f"A {view.kind.value} has no past: it is what has come so far.",
            )
        return source.view(view)
    except StatementError as error:
        error.span, error.text = reference.span.shifted(query.offset), None
        raise


_parsed = lru_cache(maxsize=512)(parse_one)
"""Fragments and views are read again and again."""


def bind_text(text: str, source: Source, inside: tuple[str, ...] = ()) -> BoundQuery:
    """The query in a text that stands on its own: a view's."""
    statement = _parsed(text)
    if not isinstance(statement, Select):
        raise StatementError(Condition.QUERY_REFUSED, "a view is made of a query", hint="Write SELECT ….")
    return bind(statement.query, source, text, {}, inside=inside)


def _resolve(
    reference: TableReference, source: Source, now: Snapshot, query: Query, text: str
) -> tuple[Snapshot, TableInfo]:
    span = (reference.as_of or reference).span.shifted(query.offset)
    try:
        snapshot = now if reference.as_of is None else _travel(reference.as_of, source)
        span = reference.span.shifted(query.offset)
        table = find(reference.name, source.tables(snapshot))
        _check_readable(reference, table)
    except StatementError as error:
        error.span = error.span or span
        error.located_in(text)
        raise
    return snapshot, table


def _travel(as_of: AsOf, source: Source) -> Snapshot:
    if as_of.version is not None:
        return source.snapshot(version=as_of.version)
    try:
        time = datetime.fromisoformat(as_of.timestamp or "")
    except ValueError as error:
        raise StatementError(
            Condition.INVALID_ARGUMENT,
            f"{as_of.timestamp!r} is not a timestamp",
            hint="Write it as 'YYYY-MM-DD HH:MM:SS'.",
        ) from error
    return source.snapshot(time=time if time.tzinfo else time.replace(tzinfo=UTC))


def find(name: str, tables: Mapping[str, TableInfo]) -> TableInfo:
    """The table of that name, whatever its case; the error names the nearest."""
    table = tables.get(name.lower())
    if table is None:
        known = [t.name for t in tables.values()]
        raise StatementError(
            Condition.UNKNOWN_TABLE,
            f"no table, stream or view {name!r}",
            hint=did_you_mean(name, known) or _what_there_is(known),
        )
    return table


def _what_there_is(known: Iterable[str]) -> str:
    names = sorted(known)[:8]
    return f"There are {', '.join(names)}." if names else "The database is empty: CREATE TABLE makes a table."


def find_named(name: Name, tables: Mapping[str, TableInfo]) -> TableInfo:
    """`find`, with the name's position in the error."""
    try:
        return find(name.text, tables)
    except StatementError as error:
        error.span = name.span
        raise


def _check_readable(reference: TableReference, table: TableInfo) -> None:
    if table.kind is ObjectKind.STREAM:
        raise StatementError(
            Condition.ONE_TIME_READ_OF_STREAM,
            f"{table.name!r} is a stream, and a one-time query cannot read it",
            detail="A stream drops its rows once every consumer has seen them.",
            hint="Ask with a CONTINUOUS VIEW or a CONTINUOUS QUERY, or keep its rows in a STREAMING TABLE.",
        )
    if reference.window is not None and table.kind in (ObjectKind.VIEW, ObjectKind.CONTINUOUS_VIEW):
        raise StatementError(
            Condition.WRONG_KIND,
            f"{table.name!r} is a view, and a window needs a stream or a streaming table",
            hint="Put the window into the view's query.",
        )
    if reference.window is not None and table.kind is ObjectKind.STREAMING_TABLE:
        raise StatementError(
            Condition.NOT_SUPPORTED,
            "windows are for continuous queries",
            hint=f"Ask for a span of time: WHERE VALID({reference.alias or table.name}) BETWEEN … AND ….",
            span=reference.window.span,
        )
    if reference.window is not None:
        raise StatementError(
            Condition.WRONG_KIND,
            f"{table.name!r} is a table, and a window needs a stream or a streaming table",
            hint="Leave the window out, or use WHERE.",
        )


def column(table: TableInfo, name: Name) -> str:
    """The column's name as declared; the error suggests near ones."""
    known = table.schema.get(name.text)
    if known is None:
        raise StatementError(
            Condition.UNKNOWN_COLUMN,
            f"no column {name.text!r} in {table.name!r}",
            hint=did_you_mean(name.text, table.schema.names) or f"It has {', '.join(table.schema.names[:12])}.",
            span=name.span,
        )
    return known.name


def quoted(names: Iterable[str]) -> str:
    return ", ".join(quote(n) for n in names)
