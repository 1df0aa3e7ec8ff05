"""Upkeep: what keeps a database small and fast, none of which changes an answer.

Each function does one pass and returns how much it did; the scheduler says when. All are safe to
kill at any point: the catalogue's commit is the only moment that counts, and files without a
catalogue entry are swept on the next opening.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.catalog import files, inlined, snapshots, stats, streams
from millstream.catalog.commits import Receipt
from millstream.errors import Condition, MillstreamError
from millstream.schema import ObjectKind
from millstream.storage import index, inline, period, segment
from millstream.storage.transaction import check_same_version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta

    from millstream.catalog.commits import Commit
    from millstream.catalog.records import DataFile, Segment, TableInfo
    from millstream.catalog.store import Connection
    from millstream.storage.lake import Lake

STORED = (ObjectKind.TABLE, ObjectKind.STREAM, ObjectKind.STREAMING_TABLE)
SMALL_ROWS = segment.SEGMENT_ROWS // 4
SMALL_BYTES = 16 * 1024 * 1024
MOST_SMALL_FILES = 8


def tables_of(lake: Lake, *kinds: ObjectKind) -> list[TableInfo]:
    """The tables of these kinds, or all that hold rows."""
    return [t for t in lake.catalog.tables().values() if t.kind in (kinds or STORED)]


def flush(lake: Lake) -> int:
    """Move inlined rows into segments, table by table; returns the number of rows moved."""
    return sum(flush_table(lake, table) for table in tables_of(lake) if table.inlined_table)


def flush_table(lake: Lake, table: TableInfo) -> int:
    """Move the inlined rows of one table into segments."""
    if lake.is_being_changed(table):
        return 0
    with lake.catalog.read() as connection:
        rows = inlined.live(connection, table, lake.catalog.current.id)
    if not rows:
        return 0
    data, ids = inline.from_rows(table, rows)
    written = _write(lake, table, data, ids)

    def work(commit: Commit) -> None:
        _check_free(lake, commit, table)
        before = commit.connection.total_changes
        inlined.end(commit, table, ids[-1].as_py())
        if commit.connection.total_changes - before != len(rows):
            raise _OvertakenError
        files.add(commit, table, written, moved=True)
        commit.changes = [f"inline_flush:{table.id}"]

    return len(rows) if _commit_or_drop(lake, table, written, work) else 0


class _OvertakenError(Exception):
    """A statement changed the rows that upkeep was about to move; it tries again later."""


def _check_free(lake: Lake, commit: Commit, table: TableInfo) -> None:
    """Raise if somebody has changed the table since it was read, or has begun to."""
    check_same_version(commit, table)
    if lake.is_being_changed(table):
        raise _OvertakenError


def _write(lake: Lake, table: TableInfo, data: pa.Table, ids: pa.Array) -> list[Segment]:
    """Rows that move, as segments: of a streaming table one for each compartment, in time order."""
    folder = lake.folder(table)
    parts = period.pieces(table, data, ids) if table.kind is ObjectKind.STREAMING_TABLE else [(data, ids)]
    written: list[Segment] = []
    try:
        for part, part_ids in parts:
            written.append(segment.write(folder, table, part, part_ids))
    except BaseException:
        segment.remove(folder, written)
        raise
    segment.sync_folder(folder)
    return written


def _commit_or_drop(
    lake: Lake, table: TableInfo, written: Sequence[Segment], work: Callable[[Commit], None]
) -> bool:
    receipt = Receipt()
    try:
        lake.catalog.commit(work, receipt=receipt)
    except BaseException as error:
        if receipt.committed:
            # The wait was interrupted, not the work.
            raise
        segment.remove(lake.folder(table), written)
        if isinstance(error, _OvertakenError):
            return False
        if isinstance(error, MillstreamError) and error.condition is Condition.WRITE_CONFLICT:
            return False
        raise
    return True


def compact(lake: Lake) -> int:
    """Merge small segments; returns the number of files that went."""
    return sum(_compact(lake, table) for table in tables_of(lake))


def _compact(lake: Lake, table: TableInfo) -> int:
    gone = 0
    with lake.catalog.read() as connection:
        live = files.live(connection, table.id, lake.catalog.current.id)
    for group in _groups(table, live):
        if lake.is_being_changed(table):
            break
        gone += merge(lake, table, group)
    return gone


def _groups(table: TableInfo, live: list[DataFile]) -> list[list[DataFile]]:
    """The files to write anew together; those of a streaming table compartment by compartment."""
    if table.kind is not ObjectKind.STREAMING_TABLE:
        return small_groups(live)
    astray = [f for f in live if period.is_straddling(table, f)]
    by_compartment: dict[int, list[DataFile]] = {}
    for file in sorted(live, key=lambda f: (f.low or 0, f.row_id_start)):
        if file not in astray:
            by_compartment.setdefault(period.compartment(table, file.low or 0), []).append(file)
    newest = max(by_compartment, default=0)
    groups = [small_groups(c, None if n == newest else 2) for n, c in by_compartment.items()]
    return [[f] for f in astray] + [g for found in groups for g in found]


def small_groups(live: list[DataFile], enough: int | None = None) -> list[list[DataFile]]:
    """Small files, in the order given, in groups that make one segment each, if there are enough of them."""
    small = [f for f in live if f.rows < SMALL_ROWS and f.bytes < SMALL_BYTES]
    groups: list[list[DataFile]] = [[]]
    if len(small) < (MOST_SMALL_FILES if enough is None else enough):
        return []
    for file in small:
        if sum(f.rows for f in groups[-1]) + file.rows > segment.SEGMENT_ROWS:
            groups.append([])
        groups[-1].append(file)
    return [g for g in groups if len(g) > 1]


def merge(lake: Lake, table: TableInfo, group: list[DataFile]) -> int:
    """Write the rows of some files anew, together; returns the number of files that went."""
    parts = [segment.read(lake.folder(table), table, file) for file in group]
    ids = pa.concat_arrays([i for _, i in parts])
    written = _write(lake, table, pa.concat_tables([data for data, _ in parts]), ids)

    def work(commit: Commit) -> None:
        _check_free(lake, commit, table)
        files.end(commit, table, [f.id for f in group])
        files.add(commit, table, written, moved=True)
        commit.changes = [f"merge_adjacent:{table.id}"]

    return len(group) if _commit_or_drop(lake, table, written, work) else 0


def drop_consumed(lake: Lake) -> int:
    """Drop the rows of streams that every consumer has seen; returns the number of rows."""
    return sum(_drop_consumed(lake, stream) for stream in tables_of(lake, ObjectKind.STREAM))


def _drop_consumed(lake: Lake, stream: TableInfo) -> int:
    def work(commit: Commit) -> int:
        needed = needed_from(commit, stream)
        if needed <= streams.state_of(commit, stream.id).dropped_to:
            return 0
        dropped = inlined.drop_rows(commit.connection, stream, needed) if stream.inlined_table else 0
        for file in files.live(commit.connection, stream.id, commit.snapshot_id):
            if file.row_id_start < needed and segment.last_row_id(lake.folder(stream), file) < needed:
                snapshots.forget_files(commit.connection, "data_file_id = ?", (file.id,), commit.now)
                dropped += file.rows
        streams.dropped(commit, stream.id, needed)
        commit.changed(f"deleted_from_table:{stream.id}")
        return dropped

    dropped = lake.catalog.commit(work)
    if dropped:
        delete_scheduled(lake)
    return dropped


def needed_from(commit: Commit, stream: TableInfo) -> int:
    """The first row id that some consumer has not seen; with no consumer, the next one to come."""
    positions = streams.consumers(commit.connection, stream.id).values()
    return min(positions, default=commit.stats_of(stream.id, stats.column_types(stream)).next_row_id)


def expire(lake: Lake, keep: timedelta) -> int:
    """Forget snapshots older than `keep`, but for the newest and those a reader pins."""
    now = lake.clock.now()

    def work(connection: Connection) -> int:
        last_old = snapshots.last_before(connection, now - keep)
        pinned = lake.catalog.oldest_pin()
        limits = (last_old, lake.catalog.current.id, pinned)
        keep_from = min(n for n in limits if n is not None)
        if last_old is None or keep_from <= snapshots.oldest_id(connection):
            return 0
        return snapshots.expire(connection, keep_from, now)

    if not _has_older(lake, now - keep):
        return 0
    with lake.catalog.forgetting():
        expired = lake.catalog.maintain(work)
    if expired:
        delete_scheduled(lake)
        index.discard(lake)
    return expired


def _has_older(lake: Lake, time: datetime) -> bool:
    with lake.catalog.read() as connection:
        last_old = snapshots.last_before(connection, time)
        return last_old is not None and last_old > snapshots.oldest_id(connection)


def has_old_snapshots(lake: Lake) -> bool:
    """Whether there is more than the newest snapshot, so that expiry has something to wait for."""
    with lake.catalog.read() as connection:
        return snapshots.oldest_id(connection) < lake.catalog.current.id


def delete_scheduled(lake: Lake) -> int:
    """Delete the files that expiry left on the list."""
    with lake.catalog.read() as connection:
        paths = snapshots.scheduled_files(connection)
    if not paths:
        return 0
    for path in paths:
        (lake.data / path).unlink(missing_ok=True)
    lake.catalog.maintain(lambda connection: snapshots.forget_scheduled(connection, paths))
    return len(paths)


def remove_orphans(lake: Lake) -> int:
    """Delete files that no snapshot knows. Only on opening: nobody can be writing then."""
    delete_scheduled(lake)
    with lake.catalog.read() as connection:
        known = snapshots.every_file(connection)
    orphans = [
        file for file in lake.data.glob("*/*/*.parquet") if file.relative_to(lake.data).as_posix() not in known
    ]
    for file in orphans:
        file.unlink(missing_ok=True)
    for folder in lake.data.glob("*/*/"):
        if not any(folder.iterdir()):
            folder.rmdir()
    return len(orphans)
