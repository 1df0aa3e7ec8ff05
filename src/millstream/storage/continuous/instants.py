"""When a continuous read is due: the instants of `SAMPLE`, from the rows that arrive and the watermark.

A row is accepted if its time is not below the watermark made by the rows before it, one by one. `SAMPLE
INTERVAL s` has the multiples of s from the first one ≥ the first row's T and > W at registration; `SAMPLE
REALTIME` the distinct times of accepted rows; both are due when W > τ. `SAMPLE ROWS n` is due after every n
accepted rows, at their largest T. Every instant comes once, in order, and belongs to a place among the
arrivals: rows that come after the one that made it due are not in its window, so how inserts are cut
into batches changes nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from millstream.storage import period
from millstream.storage.continuous.block import AFTER_ALL, BEFORE_ALL
from millstream.storage.continuous.window import Due
from millstream.storage.watermark import NEVER

if TYPE_CHECKING:
    from datetime import datetime

    from numpy.typing import NDArray

    from millstream.storage.continuous.hot import Fresh
    from millstream.storage.continuous.look import View

    Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampleInterval:
    """At every multiple of `step`."""

    step: int


@dataclass(frozen=True, slots=True)
class SampleRows:
    """After every `count` accepted rows."""

    count: int


@dataclass(frozen=True, slots=True)
class SampleRealtime:
    """At every new time value."""


REALTIME = SampleRealtime()
Sample = SampleInterval | SampleRows | SampleRealtime


@dataclass(frozen=True)
class Arrivals:
    """Rows in the order in which they came; `marks` is the watermark after each (`NEVER` for none)."""

    row_ids: Numbers
    times: Numbers
    accepted: NDArray[np.bool_]
    marks: Numbers
    watermark: int | None
    position: int
    is_arrival_time: bool


def arrivals(fresh: Fresh, after: View, now: datetime) -> Arrivals:
    """What a catch-up found, with the watermark that each row met and made."""
    time = after.table.time
    assert time is not None
    mark = period.stream_time(after.table, after.state, now)
    if time.is_arrival:
        every = np.ones(len(fresh.times), dtype=np.bool_)
        marks = np.full(len(fresh.times), NEVER)
    else:
        every, marks = _marks(fresh, after, time.delay.amount)
    return Arrivals(fresh.row_ids, fresh.times, every, marks, mark, after.position, time.is_arrival)


def _marks(fresh: Fresh, after: View, delay: int) -> tuple[NDArray[np.bool_], Numbers]:
    """Which rows are accepted, and the watermark after each row."""
    before, times = fresh.before.state, fresh.times
    start = NEVER if before.max_time is None else before.max_time
    largest = np.maximum.accumulate(np.concatenate([np.array([start]), times]))
    seen = np.where(largest < NEVER + delay, NEVER, largest - delay)
    old = NEVER if before.advanced_to is None else before.advanced_to
    new = NEVER if after.state.advanced_to is None else after.state.advanced_to
    place = (
        0
        if old == new
        else _place_of_advance(times, seen[:-1], old, new, after.state.late_rows - before.late_rows)
    )
    advanced = np.where(np.arange(len(times)) < place, old, new)
    return times >= np.maximum(seen[:-1], advanced), np.maximum(seen[1:], advanced)


def _place_of_advance(times: Numbers, seen: Numbers, old: int, new: int, late: int) -> int:
    """Before which row the watermark was advanced.

    The catalogue knows how many rows were late. The earlier the advance, the more would have been; where
    several places give the same number they give the same rows, and the first is taken: whoever advances
    takes in the rows there are before.
    """
    under_old = np.concatenate([[0], np.cumsum(times < np.maximum(seen, old))])
    under_new = np.concatenate([[0], np.cumsum(times < np.maximum(seen, new))])
    counts = under_old + (under_new[-1] - under_new)
    return int(np.argmin(np.abs(counts - late)))


class Schedule(Protocol):
    """The instants of one call."""

    def feed(self, came: Arrivals) -> None: ...

    def next(self) -> Due | None:
        """The first instant that is due and not done; None if there is none."""

    def done(self, due: Due) -> None: ...

    def earliest(self) -> int:
        """No instant to come is before this time."""

    def waits_for(self) -> int | None:
        """The time that the watermark must pass for the next instant to be due; None if that is not known."""


class _Steps:
    """How the watermark rose, and at which place among the arrivals."""

    def __init__(self, mark: int | None) -> None:
        self.mark = NEVER if mark is None else mark
        self._marks = np.empty(0, np.int64)
        self._limits = np.empty(0, np.int64)

    def feed(self, came: Arrivals) -> None:
        last = NEVER if came.watermark is None else min(came.watermark, AFTER_ALL)
        marks, limits = np.append(came.marks, last), np.append(came.row_ids, came.position)
        before = np.maximum.accumulate(np.concatenate([np.array([self.mark]), marks]))[:-1]
        rises = marks > before
        self._marks = np.concatenate([self._marks, marks[rises]])
        self._limits = np.concatenate([self._limits, limits[rises]])
        self.mark = max(self.mark, last)

    def limit(self, instant: int) -> int:
        """Below which row id the rows came before the watermark passed an instant."""
        return int(self._limits[np.searchsorted(self._marks, instant, "right")])

    def forget(self, instant: int) -> None:
        """No instant up to this one will be asked for again."""
        start = int(np.searchsorted(self._marks, instant, "right"))
        self._marks, self._limits = self._marks[start:], self._limits[start:]


class IntervalSchedule:
    """`SAMPLE INTERVAL`."""

    def __init__(self, step: int, mark: int | None, first_time: int | None) -> None:
        self.step = step
        self._registered = mark
        self._steps = _Steps(mark)
        self._next: int | None = None
        self._first_limit = 0
        if first_time is not None:
            self._begin(first_time)

    def _begin(self, first_time: int) -> None:
        first = -(-first_time // self.step) * self.step
        if self._registered is not None:
            first = max(first, self._registered // self.step * self.step + self.step)
        self._next = first

    def feed(self, came: Arrivals) -> None:
        if self._next is None and len(came.times):
            self._begin(int(came.times[0]))
            # The watermark may have been advanced past instants that there are only since this row.
            self._first_limit = int(came.row_ids[0]) + 1
        self._steps.feed(came)

    def next(self) -> Due | None:
        if self._next is None or self._next >= self._steps.mark:
            return None
        return Due(self._next, max(self._first_limit, self._steps.limit(self._next)), self._next)

    def done(self, due: Due) -> None:
        self._next = due.instant + self.step
        self._steps.forget(due.instant)

    def last_before(self, time: int) -> int:
        """The last instant before a time that is due too."""
        return (min(time, self._steps.mark) - 1) // self.step * self.step

    def move_to(self, instant: int) -> None:
        self._next = instant

    def earliest(self) -> int:
        return self._steps.mark if self._next is None else self._next

    def waits_for(self) -> int | None:
        return self._next


class RealtimeSchedule:
    """`SAMPLE REALTIME`; `pending` are the stored times after the watermark at registration."""

    def __init__(self, mark: int | None, pending: Numbers) -> None:
        self._steps = _Steps(mark)
        self._pending = np.unique(pending)
        self._last: int | None = None

    def feed(self, came: Arrivals) -> None:
        times = came.times[came.accepted]
        if self._last is not None:
            # With arrival time a commit can be slower than the clock.
            times = times[times > self._last]
        if len(times):
            self._pending = np.unique(np.concatenate([self._pending, times]))
        self._steps.feed(came)

    def next(self) -> Due | None:
        if not len(self._pending) or int(self._pending[0]) >= self._steps.mark:
            return None
        instant = int(self._pending[0])
        return Due(instant, self._steps.limit(instant), instant)

    def done(self, due: Due) -> None:
        self._pending = self._pending[1:]
        self._last = due.instant
        self._steps.forget(due.instant)

    def earliest(self) -> int:
        return min(self._steps.mark, int(self._pending[0])) if len(self._pending) else self._steps.mark

    def waits_for(self) -> int | None:
        return int(self._pending[0]) if len(self._pending) else None


class RowsSchedule:
    """`SAMPLE ROWS`."""

    def __init__(self, count: int, mark: int | None) -> None:
        self._count = count
        self._mark = NEVER if mark is None else mark
        self._rows = 0
        self._largest = BEFORE_ALL
        self._due: deque[Due] = deque()

    def feed(self, came: Arrivals) -> None:
        places = np.flatnonzero(came.accepted)
        times = came.times[places]
        start = 0
        for end in range(self._count - self._rows, len(times) + 1, self._count):
            self._largest = max(self._largest, int(times[start:end].max()))
            self._complete(came, int(places[end - 1]))
            start = end
        if start < len(times):
            self._largest = max(self._largest, int(times[start:].max()))
        self._rows = (self._rows + len(times)) % self._count
        self._mark = self._mark if came.watermark is None else max(self._mark, came.watermark)

    def _complete(self, came: Arrivals, place: int) -> None:
        mark = self._largest if came.is_arrival_time else int(came.marks[place])
        self._due.append(Due(self._largest, int(came.row_ids[place]) + 1, min(self._largest, mark)))
        self._largest = BEFORE_ALL

    def next(self) -> Due | None:
        return self._due[0] if self._due else None

    def done(self, due: Due) -> None:
        self._due.remove(due)

    def earliest(self) -> int:
        return self._due[0].settled if self._due else self._mark

    def waits_for(self) -> int | None:
        return None
