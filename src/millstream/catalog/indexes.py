"""Value indices in the catalogue: their definitions, and the sorted copies they consist of.

A copy belongs to one data file and is never changed; a file without one is read as it is, so an index
is right at every moment of its making. Copies are not part of any snapshot: they go when the last
reader who may have found them is gone, and are first put on a list, so that a crash leaves no orphan.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from millstream.catalog import types
from millstream.catalog.records import ColumnStats, IndexCopy, IndexInfo, IndexMethod, RowGroup

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from millstream.catalog.commits import Commit
    from millstream.catalog.records import TableInfo
    from millstream.catalog.store import Connection

FILES_ENDED = (
    "data_file_id NOT IN"
    " (SELECT data_file_id FROM ducklake_data_file WHERE end_snapshot IS NULL OR end_snapshot > ?)"
)
INDEX_ENDED = (
    "index_id NOT IN (SELECT index_id FROM millstream_index WHERE end_snapshot IS NULL OR end_snapshot > ?)"
)


def load(connection: Connection, snapshot_id: int) -> dict[str, IndexInfo]:
    """Every index of the snapshot, by lower-case name."""
    rows = connection.execute(
        "SELECT index_id, index_name, table_id, column_id, method FROM millstream_index"
        " WHERE begin_snapshot <= ? AND (end_snapshot IS NULL OR end_snapshot > ?)",
        (snapshot_id, snapshot_id),
    )
    return {name.lower(): IndexInfo(i, name, table, column, IndexMethod(m)) for i, name, table, column, m in rows}


def create(commit: Commit, name: str, table: TableInfo, column_id: int, method: IndexMethod) -> IndexInfo:
    index = IndexInfo(commit.new_catalog_id(), name, table.id, column_id, method)
    commit.schema_changed()
    commit.connection.execute(
        "INSERT INTO millstream_index VALUES (?, ?, ?, ?, ?, ?, NULL)",
        (index.id, name, table.id, column_id, method.value, commit.snapshot_id),
    )
    commit.changed(f"altered_table:{table.id}")
    return index


def drop(commit: Commit, index: IndexInfo) -> None:
    commit.schema_changed()
    commit.connection.execute(
        "UPDATE millstream_index SET end_snapshot = ? WHERE index_id = ?", (commit.snapshot_id, index.id)
    )
    commit.changed(f"altered_table:{index.table_id}")


def drop_all(commit: Commit, table_id: int) -> None:
    """End the indices of a table that is dropped."""
    commit.connection.execute(
        "UPDATE millstream_index SET end_snapshot = ? WHERE table_id = ? AND end_snapshot IS NULL",
        (commit.snapshot_id, table_id),
    )


def add_copy(commit: Commit, copy: IndexCopy) -> bool:
    """Enter a copy; False if its data file or its index has ended meanwhile."""
    groups = json.dumps([[g.rows, *_written(g.stats)] for g in copy.groups], separators=(",", ":"))
    added = commit.connection.execute(
        "INSERT INTO millstream_index_copy SELECT ?, ?, ?, ?, ?"
        " WHERE EXISTS (SELECT 1 FROM ducklake_data_file WHERE data_file_id = ? AND end_snapshot IS NULL)"
        " AND EXISTS (SELECT 1 FROM millstream_index WHERE index_id = ? AND end_snapshot IS NULL)",
        (copy.index_id, copy.file_id, copy.path, copy.bytes, groups, copy.file_id, copy.index_id),
    )
    return added.rowcount == 1


def _written(stats: ColumnStats) -> tuple[int, int, str | None, str | None]:
    return stats.values, stats.nulls, types.encode(stats.low), types.encode(stats.high)


def copies(
    connection: Connection, index: IndexInfo, type_: pa.DataType, file_ids: Iterable[int]
) -> dict[int, IndexCopy]:
    """The copies of an index for those of the data files that have one."""
    found = {}
    for file_id in file_ids:
        row = connection.execute(
            "SELECT path, file_size_bytes, row_groups FROM millstream_index_copy"
            " WHERE index_id = ? AND data_file_id = ?",
            (index.id, file_id),
        ).fetchone()
        if row is not None:
            found[file_id] = IndexCopy(index.id, file_id, row[0], row[1], _groups(row[2], type_))
    return found


def _groups(text: str, type_: pa.DataType) -> tuple[RowGroup, ...]:
    return tuple(
        RowGroup(rows, ColumnStats(values, nulls, types.decode(type_, low), types.decode(type_, high)))
        for rows, values, nulls, low, high in json.loads(text)
    )


def built(connection: Connection, index_id: int) -> dict[int, int]:
    """The data files that have a copy, and its size in bytes."""
    rows = connection.execute(
        "SELECT data_file_id, file_size_bytes FROM millstream_index_copy WHERE index_id = ?", (index_id,)
    )
    return dict(rows.fetchall())


def discard(connection: Connection, keep_from: int) -> int:
    """Put copies on the list of those to delete that no reader from `keep_from` on can have found."""
    ended, arguments = f"{FILES_ENDED} OR {INDEX_ENDED}", (keep_from, keep_from)
    found = connection.execute(
        f"INSERT OR IGNORE INTO millstream_discarded_copy SELECT path FROM millstream_index_copy WHERE {ended}",
        arguments,
    ).rowcount
    if found:
        connection.execute(f"DELETE FROM millstream_index_copy WHERE {ended}", arguments)
    connection.execute("DELETE FROM millstream_index WHERE end_snapshot <= ?", (keep_from,))
    return found


def discarded(connection: Connection) -> list[str]:
    return [path for (path,) in connection.execute("SELECT path FROM millstream_discarded_copy")]


def forget_discarded(connection: Connection, paths: Iterable[str]) -> None:
    connection.executemany("DELETE FROM millstream_discarded_copy WHERE path = ?", [(p,) for p in paths])


def forget_lost(connection: Connection, paths: Iterable[str]) -> None:
    """Forget copies whose files somebody took away."""
    connection.executemany("DELETE FROM millstream_index_copy WHERE path = ?", [(p,) for p in paths])


def every_copy(connection: Connection) -> set[str]:
    """The paths of all copies that are known or listed for deletion."""
    rows = connection.execute("SELECT path FROM millstream_index_copy")
    return {path for (path,) in rows} | set(discarded(connection))
