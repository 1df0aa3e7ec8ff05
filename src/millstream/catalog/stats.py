"""Statistics in the catalogue: reading them, and writing what changed.

DuckDB prunes by `ducklake_table_column_stats`, old versions too, and may answer min and max from it
while the row count there is that of the live rows; so counts and bounds only grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.catalog import types
from millstream.catalog.records import ColumnStats, TableInfo, TableStats
from millstream.schema import is_nested

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from millstream.catalog.store import Connection

FEW_FILES = 400
ColumnTypes = dict[int, "pa.DataType"]


def column_types(table: TableInfo) -> ColumnTypes:
    """The columns that have statistics: the scalar ones."""
    pairs = zip(table.column_ids, table.schema.columns, strict=True)
    return {column_id: c.type for column_id, c in pairs if not is_nested(c.type)}


def load(connection: Connection, table_id: int, column_types: ColumnTypes) -> TableStats:
    """The table's statistics as committed; all zero for a table that never had a row."""
    row = connection.execute(
        "SELECT record_count, next_row_id, file_size_bytes FROM ducklake_table_stats WHERE table_id = ?",
        (table_id,),
    ).fetchone()
    if row is None:
        return TableStats()
    rows = connection.execute(
        "SELECT column_id, contains_null, contains_nan, min_value, max_value"
        " FROM ducklake_table_column_stats WHERE table_id = ?",
        (table_id,),
    )
    columns = {
        column_id: ColumnStats(
            nulls=int(bool(has_null)),
            low=types.decode(column_types[column_id], low),
            high=types.decode(column_types[column_id], high),
            has_nan=None if has_nan is None else bool(has_nan),
        )
        for column_id, has_null, has_nan, low, high in rows
        if column_id in column_types
    }
    return TableStats(row[0], row[1], row[2], columns)


def save(connection: Connection, table_id: int, before: TableStats | None, after: TableStats) -> None:
    """Write the difference between what the catalogue holds and what is true now."""
    counts = (after.rows, after.next_row_id, after.bytes, table_id)
    if before is None or not (before.next_row_id or before.columns):
        connection.execute("DELETE FROM ducklake_table_stats WHERE table_id = ?", (table_id,))
        connection.execute("DELETE FROM ducklake_table_column_stats WHERE table_id = ?", (table_id,))
        connection.execute(
            "INSERT INTO ducklake_table_stats (record_count, next_row_id, file_size_bytes, table_id)"
            " VALUES (?, ?, ?, ?)",
            counts,
        )
        before = TableStats()
    else:
        connection.execute(
            "UPDATE ducklake_table_stats SET record_count = ?, next_row_id = ?, file_size_bytes = ?"
            " WHERE table_id = ?",
            counts,
        )
    _save_columns(connection, table_id, before.columns, after.columns)


def _save_columns(
    connection: Connection, table_id: int, before: dict[int, ColumnStats], after: dict[int, ColumnStats]
) -> None:
    inserts, updates = [], []
    for column_id, stats in after.items():
        known = before.get(column_id)
        if known is None:
            inserts.append((*_bounds(stats), table_id, column_id))
        elif _facts(known) != _facts(stats):
            updates.append((*_bounds(stats), table_id, column_id))
    if inserts:
        connection.executemany(
            "INSERT INTO ducklake_table_column_stats"
            " (contains_null, contains_nan, min_value, max_value, table_id, column_id)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            inserts,
        )
    if updates:
        connection.executemany(
            "UPDATE ducklake_table_column_stats"
            " SET contains_null = ?, contains_nan = ?, min_value = ?, max_value = ?"
            " WHERE table_id = ? AND column_id = ?",
            updates,
        )


def _facts(stats: ColumnStats) -> tuple[object, ...]:
    return stats.nulls > 0, stats.has_nan, stats.low, stats.high


def _bounds(stats: ColumnStats) -> tuple[int, int | None, str | None, str | None]:
    has_nan = None if stats.has_nan is None else int(stats.has_nan)
    return int(stats.nulls > 0), has_nan, types.encode(stats.low), types.encode(stats.high)


def of_files(
    connection: Connection,
    table: TableInfo,
    snapshot_id: int,
    columns: Iterable[int] | None = None,
    file_ids: Sequence[int] = (),
) -> dict[int, dict[int, ColumnStats]]:
    """Per live file and column what the file holds; only for `columns` if given.

    Few `file_ids` are looked up one by one; with many, or none, all live files are read.
    """
    known = column_types(table)
    wanted = [c for c in (known if columns is None else columns) if c in known]
    marks = ",".join("?" * len(wanted))
    few = file_ids if len(file_ids) <= FEW_FILES else ()
    rows = connection.execute(
        "SELECT s.data_file_id, s.column_id, s.value_count, s.null_count, s.min_value, s.max_value,"
        " s.contains_nan FROM ducklake_file_column_stats s"
        " JOIN ducklake_data_file f ON f.data_file_id = s.data_file_id"
        " WHERE f.table_id = ? AND f.begin_snapshot <= ?"
        " AND (f.end_snapshot IS NULL OR f.end_snapshot > ?)"
        f" AND s.table_id = ? AND s.column_id IN ({marks}){_only(few)}",
        (table.id, snapshot_id, snapshot_id, table.id, *wanted, *few),
    )
    found: dict[int, dict[int, ColumnStats]] = {}
    for file_id, column_id, values, nulls, low, high, has_nan in rows:
        type_ = known[column_id]
        found.setdefault(file_id, {})[column_id] = ColumnStats(
            values, nulls, types.decode(type_, low), types.decode(type_, high), has_nan and bool(has_nan)
        )
    return found


def _only(file_ids: Sequence[int]) -> str:
    return f" AND s.data_file_id IN ({','.join('?' * len(file_ids))})" if file_ids else ""
