"""The rows of windows that move row by row: the k newest, the k newest of each key, open sessions.

Held in memory as one Arrow table with time, number and place of entering; when a row leaves follows from the rows
that are newer. What no later instant can need is given up.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.plan.standing import ENTER, FOR_EVER, LAST, LEAVE, ROW_NUMBER, TIME, WindowKind
from millstream.queries.windows import last_of
from millstream.storage.continuous.window import codes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from millstream.plan.standing import Window

    Numbers = NDArray[np.int64]

MARKS = (TIME, ROW_NUMBER, ENTER)
START, END = "window_start", "window_end"


@dataclass
class Held:
    """The rows of one window; `rows` has the stream's columns and `MARKS`."""

    window: Window
    rows: pa.Table

    @classmethod
    def empty(cls, window: Window, schema: pa.Schema) -> Held:
        marked = schema
        for name in MARKS:
            marked = marked.append(pa.field(name, pa.int64()))
        return cls(window, marked.empty_table())

    def _column(self, name: str) -> Numbers:
        return np.asarray(self.rows.column(name).to_numpy(), np.int64)

    def marked(self, rows: pa.Table, ids: Numbers, times: Numbers, enter: Numbers) -> pa.Table:
        """New rows with their marks."""
        for name, values in zip(MARKS, (times, ids, enter), strict=True):
            rows = rows.append_column(name, pa.array(values, pa.int64()))
        return rows.cast(self.rows.schema)

    def add(self, rows: pa.Table) -> None:
        self.rows = pa.concat_tables([self.rows, rows]).combine_chunks()

    @property
    def oldest(self) -> int:
        """The smallest time."""
        return int(self._column(TIME).min(initial=FOR_EVER))

    @property
    def first(self) -> int:
        """The smallest number."""
        return int(self._column(ROW_NUMBER).min(initial=FOR_EVER))

    def with_stretches(self) -> pa.Table:
        """All rows, with when they leave; of sessions also where these begin and end."""
        if self.window.kind is WindowKind.SESSION:
            return self._sessions()
        times = self._column(TIME)
        leave = leaves(self._codes(), times, self._column(ROW_NUMBER), self._column(ENTER), self.window.rows)
        return self._with(leave, last_of(self.window, times))

    def _with(self, leave: Numbers, last: Numbers) -> pa.Table:
        rows = self.rows.append_column(LEAVE, pa.array(leave, pa.int64()))
        return rows.append_column(LAST, pa.array(last, pa.int64()))

    def _codes(self) -> Numbers:
        return codes_of(self.rows, self.window.keys)

    def _sessions(self) -> pa.Table:
        times = self._column(TIME)
        starts, ends = sessions(self._codes(), times, self.window.length, self.window.period)
        rows = self.rows.set_column(self.rows.schema.get_field_index(ENTER), ENTER, pa.array(ends, pa.int64()))
        rows = rows.append_column(LEAVE, pa.array(ends, pa.int64()))
        rows = rows.append_column(LAST, pa.array(last_of(self.window, times), pa.int64()))
        return rows.append_column(START, pa.array(starts, pa.int64())).append_column(
            END, pa.array(ends, pa.int64())
        )

    def ends(self) -> Numbers:
        """Where the sessions end that there are."""
        return np.unique(sessions(self._codes(), self._column(TIME), self.window.length)[1])

    def drop_missed(self, late: list[tuple[int, int]]) -> None:
        """Give up late rows whose session had ended when they came; the others join theirs."""
        for row_id, met in late:
            ids = self._column(ROW_NUMBER)
            ends = sessions(self._codes(), self._column(TIME), self.window.length)[1]
            place = np.flatnonzero(ids == row_id)
            if len(place) and int(ends[place[0]]) <= met:
                self.rows = self.rows.filter(pa.array(ids != row_id))

    def trim(self, x: int, tau: int) -> None:
        """Give up the rows that have left by this place and are too old after this time."""
        rows = self.with_stretches()
        leave, last = (np.asarray(rows.column(n).to_numpy(), np.int64) for n in (LEAVE, LAST))
        kept = (leave > x) & (last > tau)
        if not kept.all():
            self.rows = self.rows.filter(pa.array(kept)).combine_chunks()


def leaves(codes: Numbers, times: Numbers, ids: Numbers, enter: Numbers, rows: int) -> Numbers:
    """The last place at which each row is among the newest of its key."""
    order = np.lexsort((ids, times, codes))
    code, entered = codes[order], enter[order]
    found = np.full(len(order), FOR_EVER, np.int64)
    same = np.zeros(len(order), np.bool_)
    if len(order) > rows:
        same[:-rows] = code[rows:] == code[:-rows]
        found[:-rows] = np.where(same[:-rows], entered[rows:] - 1, FOR_EVER)
    disordered = np.flatnonzero((code[1:] == code[:-1]) & (entered[1:] < entered[:-1]))
    for key in np.unique(code[disordered]):
        low, high = np.searchsorted(code, [key, key + 1])
        found[low:high] = _leaves_of_one(entered[low:high], rows)
    made = np.empty(len(order), np.int64)
    made[order] = found
    return made


def _leaves_of_one(entered: Numbers, rows: int) -> list[int]:
    """The same for one key whose rows did not enter in the order of their times."""
    smallest: list[int] = []
    found: list[int] = []
    for enter in reversed(entered.tolist()):
        found.append(-smallest[0] - 1 if len(smallest) == rows else FOR_EVER)
        if len(smallest) < rows:
            heapq.heappush(smallest, -enter)
        elif enter < -smallest[0]:
            heapq.heapreplace(smallest, -enter)
    return found[::-1]


def sessions(codes: Numbers, times: Numbers, gap: int, period: int = 0) -> tuple[Numbers, Numbers]:
    """The first time of each row's session, and its end: the gap after its last.

    With a period the first time that is not older than that at the end.
    """
    if not len(times):
        return times, times
    order = np.lexsort((times, codes))
    code, when = codes[order], times[order]
    is_first = np.concatenate([[True], (code[1:] != code[:-1]) | (when[1:] - when[:-1] >= gap)])
    number = np.cumsum(is_first) - 1
    last = when[np.concatenate([is_first[1:], [True]])]
    is_recent = (when + period >= last[number] + gap) | (period == 0)
    first = np.minimum.reduceat(np.where(is_recent, when, last[number]), np.flatnonzero(is_first))
    starts, ends = np.empty_like(when), np.empty_like(when)
    starts[order], ends[order] = first[number], last[number] + gap
    return starts, ends
