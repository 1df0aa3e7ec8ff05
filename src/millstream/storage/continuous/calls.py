"""Continuous calls on one streaming table: what they read, when they are due, and the hot part they share.

A call is registered once and then read again and again: by whoever asks (the pull model), or at the instants
of its sample (the push model). All calls on a table share one hot part, which keeps what any of
them needs. Not for several threads at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from millstream.errors import Condition, MillstreamError
from millstream.storage import period
from millstream.storage.continuous import instants
from millstream.storage.continuous.block import AFTER_ALL, BEFORE_ALL
from millstream.storage.continuous.hot import HotPart
from millstream.storage.continuous.instants import (
    IntervalSchedule,
    RealtimeSchedule,
    RowsSchedule,
    Sample,
    SampleInterval,
    SampleRows,
    Schedule,
)
from millstream.storage.continuous.window import Due, Reader, Window, reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from millstream.catalog.records import TableInfo
    from millstream.storage.continuous.match import Predicate
    from millstream.storage.lake import Lake

MOST_EMPTY = 10_000
"""Of a longer run of empty windows only the first and the last are delivered."""


@dataclass(frozen=True)
class Contents:
    """A window's rows at an instant that satisfy the predicate, in decreasing T, ties by later arrival first.

    `instant` is None if the table has no time yet. Rows with ids below `position` have been seen.
    `skipped` counts the instants with empty windows that were left out just before this one.
    """

    call_id: str
    instant: int | None
    rows: pa.Table
    row_ids: NDArray[np.int64]
    position: int
    sequence: int
    skipped: int = 0


@dataclass(frozen=True)
class Request:
    """What a call asks for. `index` names the column of an index scan; a call without `sample` is pulled."""

    call_id: str
    window: Window
    predicate: Predicate
    index: str | None = None
    sample: Sample | None = None
    deliver: Callable[[Contents], None] | None = None


@dataclass
class Call:
    """A request in force, and how it has been going."""

    request: Request
    reader: Reader
    schedule: Schedule | None
    sequence: int = 0
    deliveries: int = 0
    skipped: int = 0
    failure: Exception | None = None
    is_killed: bool = False

    @property
    def is_active(self) -> bool:
        return not self.is_killed and self.failure is None

    @property
    def is_pushed(self) -> bool:
        return self.schedule is not None and self.is_active


class Calls:
    """See the module's contract."""

    def __init__(self, lake: Lake, table_id: int, budget: int) -> None:
        self._lake = lake
        self.hot = HotPart(lake, table_id, budget)
        self.calls: dict[str, Call] = {}

    @property
    def table(self) -> TableInfo:
        return self.hot.view.table

    def watermark(self) -> int | None:
        return period.stream_time(self.table, self.hot.view.state, self._lake.clock.now())

    def add(self, request: Request) -> Call:
        """Register a call; its instants count from the rows stored now."""
        self.take_in()
        schedule = None if request.sample is None else self._schedule(request.sample)
        read = reader(self.hot, request.window, request.predicate, request.index)
        call = self.calls[request.call_id] = Call(request, read, schedule)
        return call

    def _schedule(self, sample: Sample) -> Schedule:
        mark = self.watermark()
        if isinstance(sample, SampleRows):
            return RowsSchedule(sample.count, mark)
        if isinstance(sample, SampleInterval):
            return IntervalSchedule(sample.step, mark, self._first_time(mark))
        after = [] if mark is None else [b.times for b in self.hot.each(mark + 1, AFTER_ALL)]
        return RealtimeSchedule(mark, np.concatenate([np.empty(0, np.int64), *after]))

    def _first_time(self, mark: int | None) -> int | None:
        latest = self.hot.view.latest
        if mark is not None and latest is not None and latest <= mark:
            # The first instant is after the watermark, whichever row was the first.
            return latest
        return self.hot.first_time()

    def take_in(self) -> None:
        """Catch up with what was committed and tell every call."""
        times = [t for call in self.calls.values() if (t := call.reader.late_until) is not None]
        fresh = self.hot.catch_up(max(times, default=None))
        came = instants.arrivals(fresh, self.hot.view, self._lake.clock.now())
        for call in self.calls.values():
            if fresh.reloaded:
                call.reader.reset()
            else:
                call.reader.offer(fresh.late)
            if call.schedule is not None and call.is_active:
                call.schedule.feed(came)

    def pull(self, call: Call, at: int | None) -> Contents:
        """The window at an instant, by default at the stream time."""
        self.take_in()
        mark = self.watermark()
        instant = mark if at is None else at
        rows, ids = self.table.schema.arrow.empty_table(), np.empty(0, np.int64)
        if instant is not None:
            due = Due(instant, self.hot.position, instant if mark is None else min(instant, mark))
            rows, ids = call.reader.at(due, keep=mark is None or instant >= mark)
        call.sequence += 1
        call.deliveries += 1
        return Contents(call.request.call_id, instant, rows, ids, self.hot.position, call.sequence)

    def push(self, call: Call) -> Contents | None:
        """The next contents that are due; None if there are none."""
        if call.schedule is None or not call.is_active:
            return None
        due = call.schedule.next()
        if due is None:
            return None
        rows, ids = call.reader.at(due)
        call.schedule.done(due)
        call.sequence += 1
        skipped, call.skipped = call.skipped, 0
        if not rows.num_rows and isinstance(call.schedule, IntervalSchedule):
            call.skipped = self._skip_empty(call, call.schedule, due)
        return Contents(call.request.call_id, due.instant, rows, ids, due.limit, call.sequence, skipped)

    def _skip_empty(self, call: Call, schedule: IntervalSchedule, due: Due) -> int:
        """Pass over a long run of empty windows that this instant begins, but for the last of them."""
        step = schedule.step
        if (schedule.last_before(AFTER_ALL) - due.instant) // step < MOST_EMPTY:
            return 0
        first = call.reader.first_time(due.instant)
        following = min((b.low for b in self.hot.each(first, AFTER_ALL)), default=AFTER_ALL)
        last = schedule.last_before(following)
        empty = (last - due.instant) // step + 1
        if following <= due.instant or empty <= MOST_EMPTY:
            return 0
        schedule.move_to(last)
        return empty - 2

    def trim(self) -> None:
        """Give up what no call needs in memory."""
        mark = self.watermark()
        active = [c for c in self.calls.values() if c.is_active]
        self.hot.trim(min((c.reader.keep_from(_earliest(c, mark)) for c in active), default=AFTER_ALL))

    def needed_from(self) -> int | None:
        """The earliest time that an instant to come may need, stored at least; None if no call is pushed."""
        mark = self.watermark()
        pushed = [c for c in self.calls.values() if c.is_pushed]
        return min((c.reader.first_time(_earliest(c, mark)) for c in pushed), default=None)

    def waits_for(self) -> int | None:
        """The time that the clock must pass for a call to be due, if the table's time is the clock's."""
        if self.table.time is None or not self.table.time.is_arrival:
            return None
        return min(self._waiting(), default=None)

    def _waiting(self) -> Iterator[int]:
        for call in self.calls.values():
            time = call.schedule.waits_for() if call.schedule is not None and call.is_active else None
            if time is not None:
                yield time


def _earliest(call: Call, mark: int | None) -> int:
    if call.schedule is not None:
        return call.schedule.earliest()
    return BEFORE_ALL if mark is None else mark


def is_gone(error: Exception) -> bool:
    """Whether an error says that the table is not there any more."""
    return isinstance(error, MillstreamError) and error.condition is Condition.UNKNOWN_TABLE
