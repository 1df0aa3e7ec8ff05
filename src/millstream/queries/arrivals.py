"""The rows of a stream that are new to a query, in the order in which they came, and the watermark each one met.

A row is accepted if its time is not below the watermark that the rows and the ADVANCEs before it made, one by one;
so how inserts were cut into batches changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from millstream.catalog import queries
from millstream.catalog.records import StreamState
from millstream.schema import ROW_ID_COLUMN
from millstream.storage import segment
from millstream.storage.watermark import NEVER, times_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from millstream.catalog.records import TableInfo
    from millstream.queries.place import Seen
    from millstream.storage.lake import Lake
    from millstream.storage.scan import Scan

    Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Came:
    """Rows by number and time, and `met`, the watermark before each, `NEVER` for none: the same to all queries."""

    ids: Numbers
    times: Numbers
    met: Numbers

    @cached_property
    def accepted(self) -> NDArray[np.bool_]:
        return self.times >= self.met

    @cached_property
    def refused(self) -> Numbers:
        """Where late rows are."""
        return np.flatnonzero(~self.accepted)

    @cached_property
    def enter(self) -> Numbers:
        """From which instant on a row can be in a window."""
        return np.maximum(self.times, self.met)

    @cached_property
    def moments(self) -> tuple[Numbers, Numbers]:
        """`enter` and `times`, without rows that have both in common with the row behind them."""
        return self.enter[self._is_last], self.times[self._is_last]

    @cached_property
    def _is_last(self) -> NDArray[np.bool_]:
        """Which rows differ from the row behind them in when they enter or in their time."""
        enter, times = self.enter, self.times
        found = np.ones(len(times), bool)
        found[:-1] = (times[1:] != times[:-1]) | (enter[1:] != enter[:-1])
        return found

    @cached_property
    def telling(self) -> Came:
        """The rows that say which times there are and which rows are late: of alike neighbours both ends.

        Whoever asks for rows from a number on has one of a time here just if there is one, and the first row of
        those that a time needs is here.
        """
        kept = self._is_last.copy()
        kept[:1] = True
        kept[1:] |= self._is_last[:-1]
        kept[self.refused] = True
        return Came(self.ids[kept], self.times[kept], self.met[kept])


@dataclass(frozen=True)
class Arrived:
    """New rows of a stream, as a query sees them; `seen` is where they lead from `before`."""

    stream: int
    rows: Came
    seen: Seen
    before: Seen

    @property
    def ids(self) -> Numbers:
        return self.rows.ids

    @property
    def times(self) -> Numbers:
        return self.rows.times

    @property
    def met(self) -> Numbers:
        return self.rows.met

    @property
    def enter(self) -> Numbers:
        return self.rows.enter

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which rows make instants: accepted ones that have come since the query was made."""
        return self.rows.accepted & (self.ids >= self.before.born)

    @property
    def late(self) -> list[tuple[int, int]]:
        places = self.rows.refused
        places = places[self.ids[places] >= self.before.born]
        return list(zip(self.ids[places].tolist(), self.met[places].tolist(), strict=True))


def arrived(lake: Lake, stream: TableInfo, scan: Scan, upto: int, before: Seen, arrived_until: int) -> Arrived:
    """What a scan of new rows holds; `upto` is the position behind them."""
    ids, times = _read(lake, stream, scan)
    within = ids < upto
    left, ids, times = times[~within], ids[within], times[within]
    assert stream.time is not None
    if stream.time.is_arrival:
        met = np.full(len(ids), NEVER if before.mark is None else before.mark)
        mark = min(arrived_until, int(left.min())) if len(left) else arrived_until
        mark = mark if before.mark is None else max(mark, before.mark)
        seen = replace(before, position=upto, mark=mark)
        return Arrived(stream.id, Came(ids, times, met), seen, before)
    with lake.catalog.read() as connection:
        advances = queries.advances(connection, stream.id, before.position)
    # An ADVANCE behind the rows that this look has found belongs to a later one.
    advances = [a for a in advances if a[0] <= upto]
    met, after = _met(ids, times, stream.time.delay.amount, before, advances)
    state = StreamState(after[0], after[1])
    seen = replace(
        before, position=upto, max_time=after[0], advanced_to=after[1],
        mark=state.watermark(stream.time.delay.amount),
    )  # fmt: skip
    return Arrived(stream.id, Came(ids, times, met), seen, before)


def _met(
    ids: Numbers, times: Numbers, delay: int, before: Seen, advances: Sequence[tuple[int, int]]
) -> tuple[Numbers, tuple[int | None, int | None]]:
    start = NEVER if before.max_time is None else before.max_time
    largest = np.maximum.accumulate(np.concatenate([np.array([start], np.int64), times]))
    seen = np.where(largest < NEVER + delay, NEVER, largest - delay)[:-1]
    advanced = np.full(len(ids), NEVER if before.advanced_to is None else before.advanced_to)
    last = before.advanced_to
    for position, to in advances:
        advanced[ids >= position] = np.maximum(advanced[ids >= position], to)
        last = to if last is None else max(last, to)
    most = int(largest[-1])
    return np.maximum(seen, advanced), (None if most == NEVER else most, last)


def _read(lake: Lake, stream: TableInfo, scan: Scan) -> tuple[Numbers, Numbers]:
    """Numbers and times of a scan's rows, in the order of the numbers."""
    assert stream.time is not None
    assert scan.since is not None
    ids, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    folder, wanted = lake.folder(stream), (stream.time.column, ROW_ID_COLUMN)
    files = [f.path for f in scan.files]
    for file, rows in zip(scan.files, segment.read_columns_of(folder, files, wanted), strict=True):
        if ROW_ID_COLUMN in rows.column_names:
            ids.append(np.asarray(rows.column(ROW_ID_COLUMN).to_numpy(), np.int64))
        else:
            ids.append(np.arange(file.row_id_start, file.row_id_start + rows.num_rows, dtype=np.int64))
        times.append(times_of(rows.column(stream.time.column)))
    if scan.inlined is not None and scan.inlined_ids is not None:
        ids.append(np.asarray(scan.inlined_ids.to_numpy(zero_copy_only=False), np.int64))
        times.append(times_of(scan.inlined.column(stream.time.column)))
    every, when = np.concatenate(ids), np.concatenate(times)
    if not np.all(every[1:] >= every[:-1]):
        order = np.argsort(every, kind="stable")
        every, when = every[order], when[order]
    start = int(np.searchsorted(every, scan.since))
    return every[start:], when[start:]
