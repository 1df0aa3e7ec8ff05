"""Small inserts as rows in the catalogue itself (DuckLake's data inlining).

Scalars only: text forms are chosen so that DuckDB casts them back and Arrow does too. Rows carry
their row id as the table's key, so a flush reads a range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.catalog import stats
from millstream.catalog.records import ColumnStats, TableInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.catalog.commits import Commit
    from millstream.catalog.store import Connection

LIVE = "begin_snapshot <= ? AND (end_snapshot IS NULL OR end_snapshot > ?)"


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def storage_type(type_: pa.DataType) -> str:
    """The catalogue's column type for an inlined value, as DuckDB's own writer chooses it on SQLite."""
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return "BIGINT"
    return "BLOB" if pa.types.is_binary(type_) else "VARCHAR"


def create(commit: Commit, table: TableInfo) -> None:
    """The side table for a new table's small inserts, where it can have one."""
    name = table.inlined_table
    if name is None:
        return
    columns = ", ".join(f"{identifier(c.name)} {storage_type(c.type)}" for c in table.schema.columns)
    commit.connection.execute(
        f"CREATE TABLE {name} (row_id INTEGER PRIMARY KEY, begin_snapshot BIGINT, end_snapshot BIGINT, {columns})"
    )
    commit.connection.execute(
        "INSERT INTO ducklake_inlined_data_tables VALUES (?, ?, ?)", (table.id, name, table.schema_version)
    )


def insert(
    commit: Commit, table: TableInfo, rows: Sequence[tuple[Any, ...]], columns: dict[int, ColumnStats]
) -> int:
    """Add rows (already in storage form) under the next row ids."""
    known = commit.stats_of(table.id, stats.column_types(table))
    marks = ", ".join("?" * (len(table.schema.columns) + 3))
    first = known.next_row_id
    commit.connection.executemany(
        f"INSERT INTO {table.inlined_table} VALUES ({marks})",
        [(first + i, commit.snapshot_id, None, *row) for i, row in enumerate(rows)],
    )
    commit.table_stats[table.id] = known.plus(len(rows), len(rows), 0, columns)
    commit.changed(f"inlined_insert:{table.id}")
    return len(rows)


def move(commit: Commit, table: TableInfo, wider: TableInfo) -> None:
    """Move the rows there are to the side table of a version with more columns, which are null in them."""
    if table.inlined_table is None or wider.inlined_table is None:
        return
    names = ", ".join(identifier(c.name) for c in table.schema.columns)
    commit.connection.execute(
        f"INSERT INTO {wider.inlined_table} (row_id, begin_snapshot, {names})"
        f" SELECT row_id, ?, {names} FROM {table.inlined_table} WHERE end_snapshot IS NULL",
        (commit.snapshot_id,),
    )
    commit.connection.execute(
        f"UPDATE {table.inlined_table} SET end_snapshot = ? WHERE end_snapshot IS NULL", (commit.snapshot_id,)
    )


def live(
    connection: Connection, table: TableInfo, snapshot_id: int, first_row_id: int = 0
) -> list[tuple[Any, ...]]:
    """(row id, values…) of the inlined rows at the snapshot, in row id order."""
    names = ", ".join(identifier(c.name) for c in table.schema.columns)
    return connection.execute(
        f"SELECT row_id, {names} FROM {table.inlined_table} WHERE row_id >= ? AND {LIVE} ORDER BY row_id",
        (first_row_id, snapshot_id, snapshot_id),
    ).fetchall()


def count(connection: Connection, table: TableInfo, snapshot_id: int) -> int:
    row = connection.execute(
        f"SELECT count(*) FROM {table.inlined_table} WHERE {LIVE}", (snapshot_id, snapshot_id)
    ).fetchone()
    return int(row[0])


def end(commit: Commit, table: TableInfo, through_row_id: int) -> None:
    """Take the inlined rows up to a row id out of the snapshot."""
    commit.connection.execute(
        f"UPDATE {table.inlined_table} SET end_snapshot = ? WHERE row_id <= ? AND end_snapshot IS NULL",
        (commit.snapshot_id, through_row_id),
    )


def purge(connection: Connection, name: str, oldest_snapshot: int) -> int:
    """Forget rows that ended before every snapshot still kept."""
    return connection.execute(f"DELETE FROM {name} WHERE end_snapshot <= ?", (oldest_snapshot,)).rowcount


def drop_rows(connection: Connection, table: TableInfo, below_row_id: int) -> int:
    """Forget a stream's consumed rows at once."""
    return connection.execute(f"DELETE FROM {table.inlined_table} WHERE row_id < ?", (below_row_id,)).rowcount
