"""Data files in the catalogue: which are live at a snapshot, adding and ending them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.catalog import stats, types
from millstream.catalog.records import DataFile, Segment, TableInfo
from millstream.errors import Condition, MachineError
from millstream.schema import ObjectKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from millstream.catalog.commits import Commit
    from millstream.catalog.store import Connection

COLUMNS = (
    "f.data_file_id, f.path, f.record_count, f.file_size_bytes, f.row_id_start, f.begin_snapshot, 1, m.low, m.high"
)
LIVE = (
    "f.table_id = ? AND f.begin_snapshot <= ? AND (f.end_snapshot IS NULL OR f.end_snapshot > ?)"
    " ORDER BY f.row_id_start, f.data_file_id"
)
BEFORE_ALL, AFTER_ALL = -(2**63), 2**63 - 1


def live(connection: Connection, table_id: int, snapshot_id: int) -> list[DataFile]:
    """The table's files at the snapshot, in row id order."""
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM ducklake_data_file f"
        f" LEFT JOIN millstream_segment m ON m.data_file_id = f.data_file_id WHERE {LIVE}",
        (table_id, snapshot_id, snapshot_id),
    )
    return [DataFile(*row) for row in rows]


def overlapping(
    connection: Connection, table_id: int, snapshot_id: int, low: int = BEFORE_ALL, high: int = AFTER_ALL
) -> list[DataFile]:
    """The files of a streaming table that hold times from `low` to `high`, any numbers: the interval index."""
    low, high = (min(max(time, BEFORE_ALL), AFTER_ALL) for time in (low, high))
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM millstream_segment m JOIN ducklake_data_file f ON f.data_file_id = m.data_file_id"
        f" WHERE m.table_id = ? AND m.high >= ? AND m.low <= ? AND {LIVE}",
        (table_id, low, high, table_id, snapshot_id, snapshot_id),
    )
    return [DataFile(*row) for row in rows]


def count(connection: Connection, table_id: int, snapshot_id: int) -> int:
    """How many files the table has at the snapshot."""
    row = connection.execute(
        f"SELECT count(*) FROM ducklake_data_file f WHERE {LIVE}", (table_id, snapshot_id, snapshot_id)
    ).fetchone()
    return int(row[0])


def add(commit: Commit, table: TableInfo, segments: Sequence[Segment], *, moved: bool = False) -> int:
    """Make segments part of the snapshot; new rows get the next row ids, in the order given.

    The table's counts and bounds only ever grow, as DuckDB's do: it prunes old versions by them too, and
    trusts a bound only while the count is that of the live rows. `moved` rows were counted before.
    """
    known = commit.stats_of(table.id, stats.column_types(table))
    for segment in segments:
        is_new = segment.row_id_start is None
        start = known.next_row_id if segment.row_id_start is None else segment.row_id_start
        _add_one(commit, table, segment, start)
        counted = 0 if moved else segment.rows
        known = known.plus(counted, segment.rows if is_new else 0, segment.bytes, segment.columns)
    commit.table_stats[table.id] = known
    commit.changed(f"inserted_into_table:{table.id}")
    return sum(s.rows for s in segments)


def row_count(connection: Connection, table_id: int, snapshot_id: int) -> int:
    """How many rows the table's files hold at the snapshot."""
    row = connection.execute(
        "SELECT coalesce(sum(record_count), 0) FROM ducklake_data_file WHERE table_id = ?"
        " AND begin_snapshot <= ? AND (end_snapshot IS NULL OR end_snapshot > ?)",
        (table_id, snapshot_id, snapshot_id),
    ).fetchone()
    return int(row[0])


def _add_one(commit: Commit, table: TableInfo, segment: Segment, row_id_start: int) -> None:
    file_id = commit.new_file_id()
    commit.connection.execute(
        "INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, path, path_is_relative,"
        " file_format, record_count, file_size_bytes, footer_size, row_id_start)"
        " VALUES (?, ?, ?, ?, 1, 'parquet', ?, ?, ?, ?)",
        (
            file_id,
            table.id,
            commit.snapshot_id,
            segment.path,
            segment.rows,
            segment.bytes,
            segment.footer_bytes,
            row_id_start,
        ),
    )
    _add_time(commit, table, segment, file_id)
    commit.connection.executemany(
        "INSERT INTO ducklake_file_column_stats (data_file_id, table_id, column_id, value_count, null_count,"
        " min_value, max_value, contains_nan) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                file_id,
                table.id,
                column_id,
                s.values,
                s.nulls,
                types.encode(s.low),
                types.encode(s.high),
                None if s.has_nan is None else int(s.has_nan),
            )
            for column_id, s in segment.columns.items()
        ],
    )


def _add_time(commit: Commit, table: TableInfo, segment: Segment, file_id: int) -> None:
    """Enter a streaming table's segment into its interval index."""
    if table.kind is not ObjectKind.STREAMING_TABLE:
        return
    low, high = segment.times(table)
    commit.connection.execute("INSERT INTO millstream_segment VALUES (?, ?, ?, ?)", (file_id, table.id, low, high))


def end(commit: Commit, table: TableInfo, file_ids: Iterable[int]) -> None:
    """Take files out of the snapshot; a file that is gone already is a conflict."""
    wanted = list(file_ids)
    known = commit.stats_of(table.id, stats.column_types(table))
    commit.table_stats[table.id] = known.plus(0, 0, -_size(commit.connection, table.id, wanted), {})
    before = commit.connection.total_changes
    commit.connection.executemany(
        "UPDATE ducklake_data_file SET end_snapshot = ?"
        " WHERE data_file_id = ? AND table_id = ? AND end_snapshot IS NULL",
        [(commit.snapshot_id, file_id, table.id) for file_id in wanted],
    )
    if commit.connection.total_changes - before != len(wanted):
        raise MachineError(
            Condition.WRITE_CONFLICT,
            f"another statement changed {table.name!r} at the same time",
            hint="Run the statement again.",
        )
    commit.changed(f"deleted_from_table:{table.id}")


def _size(connection: Connection, table_id: int, file_ids: Sequence[int]) -> int:
    rows = connection.execute(
        "SELECT data_file_id, file_size_bytes FROM ducklake_data_file WHERE table_id = ?", (table_id,)
    )
    sizes = dict(rows.fetchall())
    return sum(sizes.get(file_id, 0) for file_id in file_ids)
