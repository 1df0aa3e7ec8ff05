"""Plain views in the catalogue: a name for a query, kept as the text the user wrote.

They stand beside DuckLake's own views, which are in DuckDB's dialect, and share the names of tables.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.catalog.records import TableInfo
from millstream.schema import ObjectKind, Schema

if TYPE_CHECKING:
    from millstream.catalog.commits import Commit
    from millstream.catalog.store import Connection


def load(connection: Connection, snapshot_id: int) -> dict[str, TableInfo]:
    """Every view of the snapshot, by lower-case name."""
    rows = connection.execute(
        "SELECT view_id, view_name, sql FROM millstream_view"
        " WHERE begin_snapshot <= ? AND (end_snapshot IS NULL OR end_snapshot > ?)",
        (snapshot_id, snapshot_id),
    )
    return {name.lower(): replace(provisional(name, sql), id=view_id) for view_id, name, sql in rows}


def provisional(name: str, definition: str) -> TableInfo:
    """A view that is not in the catalogue yet."""
    return TableInfo(-1, name, ObjectKind.VIEW, Schema(()), (), "", 0, definition=definition)


def create(commit: Commit, wanted: TableInfo) -> TableInfo:
    view = replace(wanted, id=commit.new_catalog_id())
    commit.schema_changed()
    commit.connection.execute(
        "INSERT INTO millstream_view VALUES (?, ?, ?, ?, NULL)",
        (view.id, view.name, view.definition, commit.snapshot_id),
    )
    commit.changed(f"altered_table:{view.id}")
    return view


def drop(commit: Commit, view: TableInfo) -> None:
    commit.schema_changed()
    commit.connection.execute(
        "UPDATE millstream_view SET end_snapshot = ? WHERE view_id = ?", (commit.snapshot_id, view.id)
    )
    commit.changed(f"altered_table:{view.id}")


def is_there(connection: Connection, view_id: int) -> bool:
    row = connection.execute(
        "SELECT 1 FROM millstream_view WHERE view_id = ? AND end_snapshot IS NULL", (view_id,)
    ).fetchone()
    return row is not None
