"""One look at what is stored of a streaming table: its rows on disk and in the catalogue, its stream's state.

Everything a look gives belongs to one snapshot, the newest when it began, and to one moment of the
stream. Rows come as blocks, a file at a time.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from millstream.catalog import files, inlined, snapshots, stats, streams
from millstream.errors import Condition, StatementError
from millstream.schema import instant
from millstream.storage import inline, segment
from millstream.storage.continuous.block import AFTER_ALL, BEFORE_ALL, Block, nth_newest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millstream.catalog.records import DataFile, StreamState, TableInfo
    from millstream.catalog.store import Connection
    from millstream.storage.lake import Lake


@dataclass(frozen=True)
class View:
    """A streaming table at a snapshot; `position` is the row id that the next row will get."""

    table: TableInfo
    snapshot_id: int
    state: StreamState
    position: int
    latest: int | None
    """No row has a later time; None while there never was one."""


@contextmanager
def look(lake: Lake, table_id: int) -> Iterator[Look]:
    """Look at a table within one catalogue read; its files stay while the body runs."""
    with lake.catalog.read() as connection:
        snapshot = snapshots.newest(connection)
        with lake.catalog.pinned(snapshot.id):
            table = next((t for t in lake.catalog.tables(snapshot).values() if t.id == table_id), None)
            if table is None:
                raise gone()
            known = stats.load(connection, table.id, stats.column_types(table))
            bounds = known.columns.get(table.time_column_id or 0)
            latest = None if bounds is None or bounds.high is None else instant(bounds.high)
            state = streams.load(connection, table.id)
            yield Look(lake, connection, View(table, snapshot.id, state, known.next_row_id, latest))


def gone() -> StatementError:
    return StatementError(
        Condition.UNKNOWN_TABLE,
        "the streaming table was dropped",
        hint="Kill the calls that read it.",
    )


class Look:
    """See the module's contract."""

    def __init__(self, lake: Lake, connection: Connection, view: View) -> None:
        self._lake = lake
        self._connection = connection
        self.view = view

    def _inlined(self, first_row_id: int = 0) -> Block | None:
        table = self.view.table
        if table.inlined_table is None:
            return None
        rows = inlined.live(self._connection, table, self.view.snapshot_id, first_row_id)
        return Block.of(table, *inline.from_rows(table, rows)) if rows else None

    def _read(self, file: DataFile) -> Block:
        table = self.view.table
        return Block.of(table, *segment.read(self._lake.folder(table), table, file))

    def arrived(self, since: View) -> Iterator[Block]:
        """The rows that have come since an earlier view, wherever upkeep has put them meanwhile."""
        folder = self._lake.folder(self.view.table)
        for file in files.live(self._connection, self.view.table.id, self.view.snapshot_id):
            if file.begin_snapshot > since.snapshot_id and segment.last_row_id(folder, file) >= since.position:
                found = self._read(file).between(BEFORE_ALL, AFTER_ALL, (since.position, AFTER_ALL))
                if found is not None:
                    yield found
        last = self._inlined(since.position)
        if last is not None:
            yield last

    def between(self, low: int, high: int, below_id: int) -> Iterator[Block]:
        """The rows of a stretch of time with ids below the one given."""
        for source in self._sources(low, high):
            found = self._block(source).between(low, high, (0, below_id))
            if found is not None:
                yield found

    def _block(self, source: Block | DataFile) -> Block:
        return source if isinstance(source, Block) else self._read(source)

    def _sources(self, low: int, high: int) -> Iterator[Block | DataFile]:
        """Inlined rows, then the files that reach into a stretch of time, the one with the latest row first."""
        small = self._inlined()
        if small is not None:
            yield small
        found = files.overlapping(self._connection, self.view.table.id, self.view.snapshot_id, low, high)
        yield from sorted(found, key=_latest, reverse=True)

    def newest(self, low: int, high: int, ids: tuple[int, int], count: int) -> tuple[list[Block], int]:
        """Rows of a stretch of time among which are its `count` newest, and from which time on all are there.

        Rows with ids below the first of `ids` count; those below the second come along.
        """
        counted, below_id = ids
        blocks: list[Block] = []
        for source in self._sources(low, high):
            key = _nth(blocks, counted, count)
            if key is not None and key[0] > _latest(source):
                break
            kept = self._block(source).between(low, high, (0, below_id))
            if kept is not None:
                blocks.append(kept)
        key = _nth(blocks, counted, count)
        return blocks, low if key is None else key[0]

    def first_time(self) -> int | None:
        """The time of the row that came first of those that are there."""
        live = files.live(self._connection, self.view.table.id, self.view.snapshot_id)
        found = [b for b in (self._inlined(), self._read(live[0]) if live else None) if b is not None]
        if not found:
            return None
        rows = Block.merged(found)
        return int(rows.times[np.argmin(rows.row_ids)])


def _latest(source: Block | DataFile) -> int:
    return AFTER_ALL if source.high is None else source.high


def _nth(blocks: list[Block], below_id: int, count: int) -> tuple[int, int] | None:
    counts = [(b, b.row_ids < below_id) for b in blocks]
    return nth_newest(((b.times[c], b.row_ids[c]) for b, c in counts), count)
