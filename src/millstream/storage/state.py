"""State of standing queries: hidden tables of partial results, and the positions in streams that they cover.

State and position change in one commit, so that every row of a stream is in the state exactly once, whatever is
killed. Old versions of a state are of no use to anyone but running readers and go at once.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.catalog import files, inlined, snapshots, streams, tables, views
from millstream.catalog.commits import Receipt, time_text
from millstream.errors import MillstreamError
from millstream.schema import Column, ObjectKind, Schema
from millstream.storage import inline, segment, upkeep
from millstream.storage.scan import Scan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millstream.catalog.commits import Commit
    from millstream.catalog.records import DataFile, Segment, Snapshot, TableInfo
    from millstream.catalog.store import Connection
    from millstream.storage.lake import Lake

NOTHING = -1
MOST_REMEMBERED = 65_536
"""Of so many files it is remembered what their footers said."""
ENDED = (
    "SELECT data_file_id, begin_snapshot, end_snapshot FROM ducklake_data_file"
    " WHERE table_id = ? AND end_snapshot <= ?"
)


@dataclass(frozen=True)
class Change:
    """What happens to one state: segments that come, files that go."""

    table: TableInfo
    new: tuple[Segment, ...] = ()
    gone: tuple[DataFile, ...] = ()


@dataclass(frozen=True)
class Progress:
    """Some views moved on in some streams: `views` gives for each the positions it has reached."""

    changes: tuple[Change, ...]
    views: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    whose: int | None = None
    """The view whose state it is, where none moves on."""


def new_rows(lake: Lake, stream: TableInfo, snapshot: Snapshot, since: int, last_ids: dict[int, int]) -> Scan:
    """The rows of a stream at a snapshot from row id `since` on; `last_ids` remembers what footers said."""
    with lake.catalog.read() as connection:
        live = files.live(connection, stream.id, snapshot.id)
        rows = inlined.live(connection, stream, snapshot.id) if stream.inlined_table else []
    wanted = [f for f in live if _last_id(lake, stream, f, last_ids) >= since]
    data, ids = inline.from_rows(stream, [r for r in rows if r[0] >= since]) if rows else (None, None)
    if data is not None and not data.num_rows:
        data, ids = None, None
    return Scan(stream, snapshot.id, tuple(wanted), inlined=data, inlined_ids=ids, since=since)


def _last_id(lake: Lake, stream: TableInfo, file: DataFile, known: dict[int, int]) -> int:
    found = known.get(file.id)
    if found is not None:
        return found
    try:
        found = segment.last_row_id(lake.folder(stream), file)
    except MillstreamError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        # What every consumer has seen goes at once, also while somebody goes through the list of files.
        found = NOTHING
    known[file.id] = found
    while len(known) > MOST_REMEMBERED:
        known.pop(next(iter(known)), None)
    return found


def in_pieces(scan: Scan, most: int) -> list[Scan]:
    """The same rows as several scans of about `most` rows each, for one job each."""
    pieces: list[list[DataFile]] = [[]]
    for file in scan.files:
        if pieces[-1] and sum(f.rows for f in pieces[-1]) + file.rows > most:
            pieces.append([])
        pieces[-1].append(file)
    made = [replace(scan, files=tuple(p), inlined=None, inlined_ids=None) for p in pieces]
    made[-1] = replace(made[-1], inlined=scan.inlined, inlined_ids=scan.inlined_ids)
    return made


def commit(lake: Lake, progress: Progress) -> bool:
    """Make segments part of their states and move positions on; False if a view has gone meanwhile."""
    receipt = Receipt()
    written = [(c.table, c.new) for c in progress.changes]

    def work(commit: Commit) -> bool:
        concerned = [*progress.views, *([] if progress.whose is None else [progress.whose])]
        if not all(views.is_there(commit.connection, v) for v in concerned):
            return False
        for change in progress.changes:
            if change.gone:
                files.end(commit, change.table, [f.id for f in change.gone])
            if change.new:
                files.add(commit, change.table, change.new)
        for view_id, positions in progress.views.items():
            for stream_id, position in positions.items():
                streams.set_consumer(commit, stream_id, views.consumer(view_id), position)
            views.refreshed(commit, view_id, time_text(commit.now))
        return True

    try:
        done = lake.catalog.commit(work, receipt=receipt)
    except BaseException:
        if not receipt.committed:
            _discard(lake, written)
        raise
    if not done:
        _discard(lake, written)
    if any(c.gone for c in progress.changes):
        sweep(lake, [c.table for c in progress.changes])
    lake.committed([])
    return done


def _discard(lake: Lake, written: Sequence[tuple[TableInfo, Sequence[Segment]]]) -> None:
    for table, segments in written:
        segment.remove(lake.folder(table), segments)


def sweep(lake: Lake, states: Sequence[TableInfo]) -> None:
    """Delete the files that have left a state, but for those that a reader may be reading."""

    def work(connection: Connection) -> None:
        pins = lake.catalog.pins()
        for table in states:
            ended = connection.execute(ENDED, (table.id, lake.catalog.current.id)).fetchall()
            for file_id, begun, end in ended:
                if bisect_left(pins, begun) == bisect_left(pins, end):
                    snapshots.forget_files(connection, "data_file_id = ?", (file_id,), lake.clock.now())

    lake.catalog.maintain(work)
    upkeep.delete_scheduled(lake)


def provisional(name: str, number: int, kind: str, schema: pa.Schema) -> TableInfo:
    """A hidden table that is not in the catalogue yet."""
    columns = Schema(tuple(Column(f.name, f.type) for f in schema))
    made = tables.provisional(f"__{kind}_{number}_of_{name}", ObjectKind.STATE, columns)
    unique = made.path.rstrip("/").rpartition("-")[2]
    return replace(made, name=f"{made.name}_{unique}")
