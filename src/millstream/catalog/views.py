"""Views in the catalogue: a name for a query, kept as the text the user wrote.

They stand beside DuckLake's own views, which are in DuckDB's dialect, and share the names of tables. A
continuous view also has columns of its own, a plan, and tables that hold its state; of what a continuous query has
besides, `queries` knows.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.catalog import queries
from millstream.catalog.records import ContinuousInfo, StandingInfo, TableInfo
from millstream.schema import Column, ObjectKind, Schema

if TYPE_CHECKING:
    from millstream.catalog.commits import Commit
    from millstream.catalog.store import Connection


SELECT = (
    "SELECT v.view_id, view_name, sql, view_columns, c.plan, states, statics, has_history,"
    " query_columns, q.plan, target"
    " FROM millstream_view v LEFT JOIN millstream_continuous_view c ON v.view_id = c.view_id"
    " LEFT JOIN millstream_query q ON v.view_id = q.view_id"
)


def load(connection: Connection, snapshot_id: int) -> dict[int, TableInfo]:
    """Every view of the snapshot, by id."""
    rows = connection.execute(
        f"{SELECT} WHERE begin_snapshot <= ? AND (end_snapshot IS NULL OR end_snapshot > ?)",
        (snapshot_id, snapshot_id),
    )
    return {row[0]: _view(*row) for row in rows}


def load_since(connection: Connection, since: int, snapshot_id: int) -> tuple[dict[int, TableInfo], list[int]]:
    """The views of a snapshot that an earlier one had not, and those that it had besides.

    All that has ended in between has to be stored still.
    """
    born = connection.execute(
        f"{SELECT} WHERE begin_snapshot > ? AND begin_snapshot <= ?"
        " AND (end_snapshot IS NULL OR end_snapshot > ?)",
        (since, snapshot_id, snapshot_id),
    ).fetchall()
    gone = connection.execute(
        "SELECT view_id FROM millstream_view WHERE end_snapshot > ? AND end_snapshot <= ?", (since, snapshot_id)
    )
    return {row[0]: _view(*row) for row in born}, [view_id for (view_id,) in gone]


def _view(
    view_id: int,
    name: str,
    sql: str,
    columns: str | None,
    plan: str | None,
    states: str,
    statics: str,
    has_history: int,
    query_columns: str,
    query_plan: str | None,
    target: int | None,
) -> TableInfo:
    view = provisional(name, sql)
    if plan is not None and columns is not None:
        info = ContinuousInfo(plan, tuple(json.loads(states)), tuple(json.loads(statics)), bool(has_history))
        view = continuous(name, sql, read_schema(columns), info)
    if query_plan is not None:
        view = queries.provisional(name, sql, read_schema(query_columns), StandingInfo(query_plan, target))
    return replace(view, id=view_id)


def provisional(name: str, definition: str) -> TableInfo:
    """A view that is not in the catalogue yet."""
    return TableInfo(-1, name, ObjectKind.VIEW, Schema(()), (), "", 0, definition=definition)


def continuous(name: str, definition: str, schema: Schema, info: ContinuousInfo) -> TableInfo:
    """A continuous view that is not in the catalogue yet."""
    ids = tuple(range(1, len(schema.columns) + 1))
    kind = ObjectKind.CONTINUOUS_VIEW
    return TableInfo(-1, name, kind, schema, ids, "", 0, definition=definition, continuous=info)


def written_schema(schema: pa.Schema) -> str:
    """Columns as text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def read_arrow_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def read_schema(text: str) -> Schema:
    return Schema(tuple(Column(f.name, f.type) for f in read_arrow_schema(text)))


def create(commit: Commit, wanted: TableInfo) -> TableInfo:
    view = replace(wanted, id=commit.new_catalog_id())
    commit.schema_changed()
    commit.connection.execute(
        "INSERT INTO millstream_view VALUES (?, ?, ?, ?, NULL)",
        (view.id, view.name, view.definition, commit.snapshot_id),
    )
    info = view.continuous
    if view.standing is not None:
        queries.create(commit, view, written_schema(view.schema.arrow))
    if info is not None:
        states, statics = json.dumps(info.states), json.dumps(info.statics)
        commit.connection.execute(
            "INSERT INTO millstream_continuous_view VALUES (?, ?, ?, ?, ?, ?)",
            (view.id, written_schema(view.schema.arrow), info.plan, states, statics, int(info.has_history)),
        )
        commit.connection.execute("INSERT INTO millstream_view_progress VALUES (?, NULL, NULL)", (view.id,))
    commit.changed(f"altered_table:{view.id}")
    return view


def drop(commit: Commit, view: TableInfo) -> None:
    commit.schema_changed()
    commit.connection.execute(
        "UPDATE millstream_view SET end_snapshot = ? WHERE view_id = ?", (commit.snapshot_id, view.id)
    )
    commit.connection.execute("DELETE FROM millstream_view_progress WHERE view_id = ?", (view.id,))
    commit.connection.execute("DELETE FROM millstream_consumer WHERE name = ?", (consumer(view.id),))
    if view.standing is not None:
        queries.drop(commit, view.id)
    commit.changed(f"altered_table:{view.id}")


def is_there(connection: Connection, view_id: int) -> bool:
    row = connection.execute(
        "SELECT 1 FROM millstream_view WHERE view_id = ? AND end_snapshot IS NULL", (view_id,)
    ).fetchone()
    return row is not None


def has_readers(connection: Connection, stream_id: int) -> bool:
    """Whether a continuous view or query consumes a stream."""
    row = connection.execute(
        "SELECT 1 FROM millstream_consumer WHERE stream_id = ? AND (name LIKE 'view %' OR name LIKE 'query %')",
        (stream_id,),
    ).fetchone()
    return row is not None


def consumer(view_id: int) -> str:
    """The name under which a view consumes its streams."""
    return f"view {view_id}"


def positions(connection: Connection) -> dict[int, dict[int, int]]:
    """For every view the position it has reached in each of its streams."""
    found: dict[int, dict[int, int]] = {}
    for stream_id, name, position in connection.execute(
        "SELECT stream_id, name, position FROM millstream_consumer"
    ):
        kind, _, number = name.partition(" ")
        if kind == "view":
            found.setdefault(int(number), {})[stream_id] = position
    return found


def failures(connection: Connection) -> dict[int, str]:
    """The views that have failed, and how."""
    rows = connection.execute("SELECT view_id, failure FROM millstream_view_progress WHERE failure IS NOT NULL")
    return dict(rows.fetchall())


def set_failure(commit: Commit, view_id: int, failure: str | None) -> None:
    commit.connection.execute(
        "UPDATE millstream_view_progress SET failure = ? WHERE view_id = ?", (failure, view_id)
    )


def refreshed(commit: Commit, view_id: int, at: str) -> None:
    commit.connection.execute(
        "UPDATE millstream_view_progress SET refreshed_at = ? WHERE view_id = ?", (at, view_id)
    )


def refreshed_at(connection: Connection) -> dict[int, str | None]:
    return dict(connection.execute("SELECT view_id, refreshed_at FROM millstream_view_progress").fetchall())
