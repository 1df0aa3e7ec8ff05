"""Dropping compartments: what of a streaming table is beyond its period goes, whole segments at a time.

A pass ends the segments of expired compartments in one commit and deletes them as soon as no reader
holds a snapshot that still has them. Nothing is rewritten, but for a segment that came in across the
edge of a compartment; inlined rows that are too old become a segment first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.catalog import files, inlined, snapshots, streams
from millstream.schema import ObjectKind
from millstream.storage import index, inline, period, segment, upkeep, watermark
from millstream.storage.transaction import Written

if TYPE_CHECKING:
    from millstream.catalog.commits import Commit
    from millstream.catalog.records import TableInfo
    from millstream.catalog.store import Connection
    from millstream.storage.lake import Lake

EXPIRED = (
    "SELECT m.data_file_id FROM millstream_segment m JOIN ducklake_data_file f ON f.data_file_id = m.data_file_id"
    " WHERE m.table_id = ? AND m.high < ?"
)


def first_kept(lake: Lake, table: TableInfo) -> int | None:
    """Where the oldest compartment that is still needed begins; None if the table keeps everything.

    An instant that is due but not delivered yet may need a little more than what is visible now.
    """
    oldest = lake.horizon(table, lake.catalog.now)
    if oldest is None:
        return None
    needed = lake.access.needed_from(table.id)
    return period.first_kept(table, oldest if needed is None else min(oldest, needed))


def drop_expired(lake: Lake) -> bool:
    """Drop what is beyond the period of every streaming table; False if a reader or writer still holds some."""
    done = True
    for table in upkeep.tables_of(lake, ObjectKind.STREAMING_TABLE):
        cut = first_kept(lake, table)
        if cut is not None and lake.is_being_changed(table):
            done = False
        elif cut is not None:
            lake.settle(table.id)
            _settle(lake, table, cut)
            _end(lake, table, cut)
            done = _forget(lake, table, cut) and done
    upkeep.delete_scheduled(lake)
    index.discard(lake)
    return done


def _settle(lake: Lake, table: TableInfo, cut: int) -> None:
    """See to it that what is older than `cut` lies in segments of its own."""
    with lake.catalog.read() as connection:
        snapshot_id = lake.catalog.current.id
        rows = inlined.live(connection, table, snapshot_id) if table.inlined_table else []
        astride = [f for f in files.overlapping(connection, table.id, snapshot_id, cut, cut) if f.low != cut]
    if rows and table.time is not None:
        data, _ = inline.from_rows(table, rows)
        if (watermark.times_of(data.column(table.time.column)) < cut).any():
            upkeep.flush_table(lake, table)
    for file in astride:
        upkeep.merge(lake, table, [file])


def _end(lake: Lake, table: TableInfo, cut: int) -> None:
    def work(commit: Commit) -> bool:
        live = commit.connection.execute(f"{EXPIRED} AND f.end_snapshot IS NULL", (table.id, cut)).fetchall()
        gone = _seen(lake, commit, table, {file_id for (file_id,) in live})
        if gone:
            files.end(commit, table, gone)
        return bool(gone)

    if lake.catalog.commit(work):
        lake.committed([Written(table, 0, 0, 0, removes=True)])


def _seen(lake: Lake, commit: Commit, table: TableInfo, ids: set[int]) -> list[int]:
    """Those of some files whose rows every consumer has seen; one that has failed, say, has not."""
    if not ids or not streams.consumers(commit.connection, table.id):
        return sorted(ids)
    needed = upkeep.needed_from(commit, table)
    live = [f for f in files.live(commit.connection, table.id, commit.snapshot_id) if f.id in ids]
    return [f.id for f in live if segment.last_row_id(lake.folder(table), f) < needed]


def _forget(lake: Lake, table: TableInfo, cut: int) -> bool:
    """Delete what has ended and nobody reads; no version of the table shows it any more."""

    def work(connection: Connection) -> bool:
        pinned = lake.catalog.oldest_pin()
        ended = connection.execute(f"{EXPIRED} AND f.end_snapshot IS NOT NULL", (table.id, cut)).fetchall()
        if pinned is not None:
            free = connection.execute(f"{EXPIRED} AND f.end_snapshot <= ?", (table.id, cut, pinned)).fetchall()
        else:
            free = ended
        for (file_id,) in free:
            snapshots.forget_files(connection, "data_file_id = ?", (file_id,), lake.clock.now())
        return len(free) == len(ended)

    return lake.catalog.maintain(work)
