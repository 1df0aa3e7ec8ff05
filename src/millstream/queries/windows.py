"""When a row enters a window and when it leaves it: as arrays, and as SQL over a stream's rows.

Both say the same. A row is in the window of an instant if it has entered (`ENTER` ≤ x), has not left (x ≤ `LEAVE`)
and is not too old (tau ≤ `LAST`). Enter and leave are rounded to instants where these are known, so that rows
that are alike for every answer have the same pair: a pane.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from millstream.plan.standing import (
    ENTER,
    FOR_EVER,
    LAST,
    LEAVE,
    ROW_NUMBER,
    TIME,
    Sampling,
    WindowKind,
    basket_name,
)
from millstream.schema import quote
from millstream.storage.scan import ROW
from millstream.storage.watermark import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from millstream.catalog.records import TableInfo
    from millstream.plan.standing import Sample, Window

    Numbers = NDArray[np.int64]

HELD = (WindowKind.ROWS, WindowKind.PARTITION, WindowKind.SESSION)
"""Windows that move row by row: when a row leaves them, only later rows tell."""
LATE = "__ms_late_{}__"


def late_name(number: int) -> str:
    """The place-holder of a window's late rows."""
    return LATE.format(number)


def last_of(window: Window, times: Numbers) -> Numbers:
    """The last time at which rows are not too old for a window."""
    found = np.full(len(times), FOR_EVER, np.int64)
    if window.kind in (WindowKind.INTERVAL, WindowKind.CUT):
        found = times + window.length
    if window.kind is WindowKind.LANDMARK and window.length:
        found = times - times % window.length + window.length - 1
    return np.minimum(found, times + window.period) if window.period else found


def enter_of(sample: Sample, enter: Numbers) -> Numbers:
    """From which time on rows can be in a window."""
    return enter + 1 if sample.is_half_open else enter


def pane_of(window: Window, sample: Sample, enter: Numbers, times: Numbers) -> tuple[Numbers, Numbers]:
    """When rows enter and leave, by time, rounded to instants."""
    leave = last_of(window, times)
    if sample.kind not in (Sampling.INTERVAL, Sampling.ENDS):
        return enter, leave
    up = enter + -(enter - sample.offset) % sample.step
    down = leave - (leave - sample.offset) % sample.step
    return up, np.where(leave >= FOR_EVER, leave, down)


@dataclass(frozen=True)
class Marking:
    """What is to be known of a window's new rows to tell when they enter and leave it.

    `late` has the watermarks that late rows met. For SAMPLE ROWS: `counted` rows came before row `first`; all
    since count unless `numbers` says, row by row, how many came before. Rows before `unsampled` have entered.
    """

    window: Window
    sample: Sample
    late: Mapping[int, int] = field(default_factory=dict)
    first: int = 0
    counted: int = 0
    unsampled: int = 0
    numbers: tuple[Numbers, Numbers] | None = None

    def marks(self, ids: Numbers, times: Numbers) -> dict[str, Numbers]:
        """The marks of some rows, by name."""
        last = last_of(self.window, times)
        if self.sample.is_by_time:
            met = np.full(len(ids), NEVER)
            if self.late:
                met = np.array([self.late.get(i, NEVER) for i in ids.tolist()], np.int64)
            entered = np.maximum(times, met) + int(self.sample.is_half_open)
            enter, leave = pane_of(self.window, self.sample, entered, times)
        else:
            enter, leave = self._by_rows(ids)
        return {TIME: times, ROW_NUMBER: ids, ENTER: enter, LEAVE: leave, LAST: last}

    def _by_rows(self, ids: Numbers) -> tuple[Numbers, Numbers]:
        before = self.counted + ids - self.first
        if self.numbers is not None and len(self.numbers[0]):
            places = np.minimum(np.searchsorted(self.numbers[0], ids), len(self.numbers[0]) - 1)
            before = self.numbers[1][places]
        old = np.where(ids < self.unsampled, 0, self.counted // self.sample.step + 1)
        enter = np.where(ids >= self.first, before // self.sample.step + 1, old)
        if self.window.kind is WindowKind.ROWS:
            return enter, (before + self.window.rows) // self.sample.step
        return enter, np.full(len(ids), FOR_EVER)


@dataclass(frozen=True)
class Numbering:
    """How `SAMPLE ROWS` counts: `accepted` rows came before row `first`, and all since were accepted.

    Of the rows before, those from `unsampled` on are not in a sample yet.
    """

    first: int
    accepted: int
    unsampled: int = 0


def rows_sql(
    window: Window,
    number: int,
    stream: TableInfo,
    sample: Sample,
    *,
    has_late: bool,
    numbering: Numbering | None = None,
    bounds: tuple[int, int] | None = None,
    below: int | None = None,
) -> str:
    """A query that gives a window's rows, with when they enter and leave it, from the stream's."""
    assert stream.time is not None
    column = f"s.{quote(stream.time.column)}"
    time = f"CAST({column} AS BIGINT)" if stream.time.delay.is_number else f"unix_micros({column})"
    last = _last_sql(window, time)
    if sample.is_by_time:
        late = f"greatest({time}, coalesce(l.met, {time}))" if has_late else time
        enter = _rounded(sample, f"({late} + 1)" if sample.is_half_open else late, up=True)
        leave = _rounded(sample, last, up=False)
    else:
        assert numbering is not None
        counted = f"({numbering.accepted}L + s.{ROW} - {numbering.first}L)"
        before = f"coalesce(l.met, {counted})" if has_late else counted
        old = (
            f"CASE WHEN s.{ROW} < {numbering.unsampled}L THEN 0L ELSE {numbering.accepted // sample.step + 1}L END"
        )
        enter = f"CASE WHEN s.{ROW} < {numbering.first}L THEN {old} ELSE {before} div {sample.step}L + 1L END"
        is_counted = window.kind is WindowKind.ROWS
        leave = f"({before} + {window.rows}L) div {sample.step}L" if is_counted else f"{FOR_EVER}L"
    columns = [f"s.{quote(n)}" for n in stream.schema.names]
    columns += [f"{time} AS {TIME}", f"s.{ROW} AS {ROW_NUMBER}", f"s.{ROW} AS {ROW}"]
    columns += [f"{enter} AS {ENTER}", f"{leave} AS {LEAVE}", f"{last} AS {LAST}"]
    join = f" LEFT JOIN {late_name(number)} AS l ON l.id = s.{ROW}" if has_late else ""
    tests = [] if bounds is None else [_within(column, bounds, is_number=stream.time.delay.is_number)]
    tests += [] if below is None else [f"s.{ROW} < {below}L"]
    where = f" WHERE {' AND '.join(tests)}" if tests else ""
    return f"SELECT {', '.join(columns)} FROM {basket_name(window.stream)} AS s{join}{where}"


def _within(column: str, bounds: tuple[int, int], *, is_number: bool) -> str:
    """A test on the time itself, so that files and row groups can be passed over."""
    low, high = (f"{b}L" if is_number else f"timestamp_micros({b}L)" for b in bounds)
    return f"{column} >= {low} AND {column} <= {high}"


def _last_sql(window: Window, time: str) -> str:
    parts = []
    if window.kind in (WindowKind.INTERVAL, WindowKind.CUT):
        parts.append(f"({time} + {window.length}L)")
    if window.kind is WindowKind.LANDMARK and window.length:
        parts.append(f"({time} - pmod({time}, {window.length}L) + {window.length - 1}L)")
    if window.period:
        parts.append(f"({time} + {window.period}L)")
    if not parts:
        return f"{FOR_EVER}L"
    return parts[0] if len(parts) == 1 else f"least({', '.join(parts)})"


def _rounded(sample: Sample, sql: str, *, up: bool) -> str:
    """A time as the instant that it leads to, or up to which it lasts."""
    if sample.kind not in (Sampling.INTERVAL, Sampling.ENDS) or sql == f"{FOR_EVER}L":
        return sql
    offset = f" - {sample.offset}L" if sample.offset else ""
    if up:
        return f"({sql} + pmod(-({sql}{offset}), {sample.step}L))"
    return f"({sql} - pmod({sql}{offset}, {sample.step}L))"
