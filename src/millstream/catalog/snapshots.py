"""Snapshots: finding one by number or time, and forgetting old ones.

Expiry removes the oldest snapshots and everything that only they could see. Files to be deleted are
first scheduled in the catalogue, so that a crash in between leaves a list and not an orphan.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from millstream.catalog import inlined
from millstream.catalog.commits import time_text
from millstream.catalog.records import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.catalog.store import Connection

SELECT = (
    "SELECT s.snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id,"
    " coalesce(changes_made, '') FROM ducklake_snapshot s"
    " LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id"
)


def _record(row: tuple[Any, ...] | None) -> Snapshot | None:
    return None if row is None else Snapshot(row[0], datetime.fromisoformat(row[1]), *row[2:])


def newest(connection: Connection) -> Snapshot:
    found = _record(connection.execute(f"{SELECT} ORDER BY s.snapshot_id DESC LIMIT 1").fetchone())
    if found is None:
        raise LookupError("a catalogue always has a snapshot")
    return found


def oldest_id(connection: Connection) -> int:
    return int(connection.execute("SELECT min(snapshot_id) FROM ducklake_snapshot").fetchone()[0])


def by_id(connection: Connection, snapshot_id: int) -> Snapshot | None:
    return _record(connection.execute(f"{SELECT} WHERE s.snapshot_id = ?", (snapshot_id,)).fetchone())


def by_time(connection: Connection, time: datetime) -> Snapshot | None:
    """The newest snapshot committed at or before `time`."""
    row = connection.execute(
        f"{SELECT} WHERE snapshot_time <= ? ORDER BY s.snapshot_id DESC LIMIT 1", (time_text(time),)
    ).fetchone()
    return _record(row)


def every(connection: Connection) -> list[Snapshot]:
    rows = connection.execute(f"{SELECT} ORDER BY s.snapshot_id").fetchall()
    return [found for row in rows if (found := _record(row)) is not None]


def last_before(connection: Connection, time: datetime) -> int | None:
    row = connection.execute(
        "SELECT max(snapshot_id) FROM ducklake_snapshot WHERE snapshot_time < ?", (time_text(time),)
    ).fetchone()
    return None if row[0] is None else int(row[0])


def expire(connection: Connection, keep_from: int, now: datetime) -> int:
    """Forget the snapshots below `keep_from` and what ended by then; returns how many went."""
    expired = connection.execute("DELETE FROM ducklake_snapshot WHERE snapshot_id < ?", (keep_from,)).rowcount
    connection.execute("DELETE FROM ducklake_snapshot_changes WHERE snapshot_id < ?", (keep_from,))
    forget_files(connection, "end_snapshot <= ?", (keep_from,), now)
    _drop_inlined_tables(connection, keep_from)
    for (name,) in connection.execute("SELECT table_name FROM ducklake_inlined_data_tables").fetchall():
        inlined.purge(connection, name, keep_from)
    _forget_definitions(connection, keep_from)
    return int(expired)


def forget_files(connection: Connection, condition: str, arguments: tuple[Any, ...], now: datetime) -> int:
    """Schedule the files that match for deletion and drop their rows."""
    scheduled = connection.execute(
        "INSERT INTO ducklake_files_scheduled_for_deletion"
        " SELECT f.data_file_id, s.path || t.path || f.path, 1, ? FROM ducklake_data_file f"
        " JOIN (SELECT DISTINCT table_id, schema_id, path FROM ducklake_table) t ON t.table_id = f.table_id"
        f" JOIN ducklake_schema s ON s.schema_id = t.schema_id WHERE f.{condition}",
        (time_text(now), *arguments),
    ).rowcount
    if scheduled:
        connection.execute(
            "DELETE FROM ducklake_file_column_stats WHERE data_file_id IN"
            f" (SELECT data_file_id FROM ducklake_data_file f WHERE f.{condition})",
            arguments,
        )
        connection.execute(
            "DELETE FROM millstream_segment WHERE data_file_id IN"
            f" (SELECT data_file_id FROM ducklake_data_file f WHERE f.{condition})",
            arguments,
        )
        connection.execute(
            "DELETE FROM ducklake_data_file WHERE data_file_id IN"
            f" (SELECT data_file_id FROM ducklake_data_file f WHERE f.{condition})",
            arguments,
        )
    return int(scheduled)


def _drop_inlined_tables(connection: Connection, keep_from: int) -> None:
    gone = connection.execute(
        "SELECT i.table_name FROM ducklake_inlined_data_tables i WHERE i.table_id NOT IN"
        " (SELECT table_id FROM ducklake_table WHERE end_snapshot IS NULL OR end_snapshot > ?)",
        (keep_from,),
    ).fetchall()
    for (name,) in gone:
        connection.execute(f"DROP TABLE {name}")
        connection.execute("DELETE FROM ducklake_inlined_data_tables WHERE table_name = ?", (name,))


def _forget_definitions(connection: Connection, keep_from: int) -> None:
    for table in ("ducklake_table", "ducklake_column", "ducklake_tag", "ducklake_column_tag", "millstream_view"):
        connection.execute(f"DELETE FROM {table} WHERE end_snapshot <= ?", (keep_from,))
    for table in ("ducklake_table_stats", "ducklake_table_column_stats", "ducklake_schema_versions"):
        connection.execute(f"DELETE FROM {table} WHERE table_id NOT IN (SELECT table_id FROM ducklake_table)")


def scheduled_files(connection: Connection) -> list[str]:
    return [path for (path,) in connection.execute("SELECT path FROM ducklake_files_scheduled_for_deletion")]


def forget_scheduled(connection: Connection, paths: list[str]) -> None:
    connection.executemany(
        "DELETE FROM ducklake_files_scheduled_for_deletion WHERE path = ?", [(p,) for p in paths]
    )


def every_file(connection: Connection) -> set[str]:
    """The paths, relative to the data directory, of all files any snapshot or the schedule knows."""
    rows = connection.execute(
        "SELECT s.path || t.path || f.path FROM ducklake_data_file f"
        " JOIN (SELECT DISTINCT table_id, schema_id, path FROM ducklake_table) t ON t.table_id = f.table_id"
        " JOIN ducklake_schema s ON s.schema_id = t.schema_id"
    )
    return {path for (path,) in rows} | set(scheduled_files(connection))


def removals(connection: Connection, table_ids: Iterable[int], since: int) -> dict[int, int]:
    """The newest snapshot after `since` that may have taken rows from each table; of all, if that is forgotten."""
    wanted = set(table_ids)
    if not wanted:
        return {}
    if since < (oldest := oldest_id(connection)):
        return dict.fromkeys(wanted, oldest)
    made = connection.execute(
        "SELECT changes_made, snapshot_id FROM ducklake_snapshot_changes WHERE snapshot_id > ? ORDER BY 2",
        (since,),
    )
    tables = {f"{what}:{i}": i for i in wanted for what in ("deleted_from_table", "inlined_delete")}
    return {tables[c]: snapshot for changes, snapshot in made for c in changes.split(",") if c in tables}
