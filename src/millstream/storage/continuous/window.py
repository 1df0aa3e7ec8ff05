"""Windows over a streaming table, and reading their contents at one instant after another.

At τ a window holds rows of the content, T ≥ τ - period, with T ≤ τ: those of a length of time (both ends
closed), the k newest, or the k newest of each key, null being a key like any other; of rows with the same
time the one that came later is the newer. The predicate selects from the window's contents. Instants may come
in any order; as long as they come in increasing order, little is read twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.storage.continuous import match
from millstream.storage.continuous.block import AFTER_ALL, BEFORE_ALL, Block, Key, newest_first, nth_newest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from millstream.storage.continuous.hot import HotPart
    from millstream.storage.continuous.match import Predicate

    Rows = tuple[pa.Table, NDArray[np.int64]]

FOLD_ROWS = 262_144
"""So many rows are collected before they are reduced to the newest of each key."""


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """`[INTERVAL length]`: the rows from τ - length to τ."""

    length: int


@dataclass(frozen=True, slots=True)
class RowsWindow:
    """`[ROWS rows]`: the newest rows."""

    rows: int


@dataclass(frozen=True, slots=True)
class PartitionWindow:
    """`[PARTITION BY columns ROWS rows]`: the newest rows of each key."""

    columns: tuple[str, ...]
    rows: int


Window = TimeWindow | RowsWindow | PartitionWindow


@dataclass(frozen=True, slots=True)
class Due:
    """An instant to be answered from the rows with ids below `limit`.

    Later instants are expected not to be before `settled`: what only earlier ones need is given up.
    """

    instant: int
    limit: int
    settled: int


class Reader(Protocol):
    """Reads one call's window."""

    def at(self, due: Due, *, keep: bool = True) -> Rows:
        """The rows in the window that satisfy the predicate, newest first, and their ids."""

    def first_time(self, instant: int) -> int:
        """The earliest time that can be in the window at an instant."""

    def keep_from(self, instant: int) -> int:
        """The earliest time that instants from this one on need in memory."""

    @property
    def late_until(self) -> int | None:
        """Rows that come with this time or an earlier one must be offered, if there is such a time."""

    def offer(self, late: Sequence[Block], /) -> None:
        """Take notice of rows that came late."""

    def reset(self) -> None:
        """Forget everything read so far: rows may have gone."""


def reader(hot: HotPart, window: Window, predicate: Predicate, index: str | None) -> Reader:
    if isinstance(window, TimeWindow):
        return _TimeReader(hot, predicate, index, window.length)
    if isinstance(window, RowsWindow):
        return _RowsReader(hot, predicate, index, window.rows)
    return _PartitionReader(hot, predicate, index, window.columns, window.rows)


@dataclass
class _Plain:
    """What the readers share; a reader that derives nothing from what it reads has nothing to reset."""

    hot: HotPart
    predicate: Predicate
    index: str | None

    @property
    def late_until(self) -> int | None:
        return None

    def offer(self, _: Sequence[Block]) -> None:
        return

    def reset(self) -> None:
        return

    def first_time(self, instant: int) -> int:
        period = self.hot.view.table.period
        return BEFORE_ALL if period is None else max(BEFORE_ALL, instant - period.amount)

    def _select(self, blocks: Sequence[Block], low: Key, due: Due) -> Rows:
        found = [(b, b.find(low, due.instant, due.limit, self.predicate, self.index)) for b in blocks]
        return newest_first(self.hot.view.table.schema.arrow, found)


@dataclass
class _TimeReader(_Plain):
    length: int

    def first_time(self, instant: int) -> int:
        return max(super().first_time(instant), instant - self.length)

    def at(self, due: Due, *, keep: bool = True) -> Rows:
        low = self.first_time(due.instant)
        return self._select(self.hot.between(low, due.instant, keep=keep), (low, 0), due)

    def keep_from(self, instant: int) -> int:
        return self.first_time(instant)


@dataclass
class _RowsReader(_Plain):
    rows: int
    _oldest: int = BEFORE_ALL

    def at(self, due: Due, *, keep: bool = True) -> Rows:
        low = self.first_time(due.instant)
        blocks = self.hot.newest(low, due.instant, due.limit, self.rows, keep=keep)
        oldest = self._nth(blocks, low, due.instant, due.limit)
        if keep:
            settled = oldest if due.settled >= due.instant else self._nth(blocks, low, due.settled, due.limit)
            self._oldest = BEFORE_ALL if settled is None else settled[0]
        return self._select(blocks, (low, 0) if oldest is None else oldest, due)

    def _nth(self, blocks: Sequence[Block], low: int, high: int, limit: int) -> Key | None:
        found = [(b, b.find((low, 0), high, limit)) for b in blocks]
        return nth_newest([(b.times[places], b.row_ids[places]) for b, places in found], self.rows)

    def keep_from(self, instant: int) -> int:
        return max(self._oldest, self.first_time(instant))

    def reset(self) -> None:
        self._oldest = BEFORE_ALL


@dataclass
class _Carry:
    """The newest rows of each key up to a time and below a row id; `late` came after that, up to that time."""

    until: int
    limit: int
    rows: Block | None
    late: list[Block] = field(default_factory=list)


@dataclass
class _PartitionReader(_Plain):
    """Carries the newest rows of each key on from instant to instant, and adds only what has come since."""

    columns: tuple[str, ...]
    rows: int
    _carry: _Carry | None = None

    @property
    def late_until(self) -> int | None:
        return None if self._carry is None else self._carry.until

    def offer(self, late: Sequence[Block]) -> None:
        if self._carry is not None:
            found = (b.between(BEFORE_ALL, self._carry.until) for b in late)
            self._carry.late += [b for b in found if b is not None]

    def reset(self) -> None:
        self._carry = None

    def keep_from(self, instant: int) -> int:
        first = self.first_time(instant)
        return first if self._carry is None else max(first, self._carry.until + 1)

    def at(self, due: Due, *, keep: bool = True) -> Rows:
        carry = self._carried(due, min(due.settled, due.instant))
        if keep:
            size = 0 if carry.rows is None else carry.rows.nbytes
            self._carry = carry if size <= self.hot.budget else None
        found, _ = self._fold(carry.rows, self._after(carry.until, due.instant), due.limit)
        found = found and found.between(self.first_time(due.instant), due.instant)
        parts = [] if found is None else [(found, np.flatnonzero(match.mask(found.rows, self.predicate)))]
        return newest_first(self.hot.view.table.schema.arrow, parts)

    def _after(self, time: int, until: int) -> Iterable[Block]:
        return self.hot.each(time + 1, until) if time < until else ()

    def _carried(self, due: Due, until: int) -> _Carry:
        """The newest of each key up to a time, from what was carried if that is of use."""
        first = self.first_time(until)
        known = self._carry
        if known is None or known.until > until or known.limit > due.limit:
            known = _Carry(first - 1, 0, None)
        arrived = (*known.late, *self._after(known.until, until))
        rows, unseen = self._fold(known.rows, arrived, due.limit)
        return _Carry(until, due.limit, rows and rows.between(first, until), unseen)

    def _fold(self, known: Block | None, more: Iterable[Block], limit: int) -> tuple[Block | None, list[Block]]:
        """The newest of each key, with more rows; and those of them that are not below the limit, left out."""
        parts = [] if known is None else [known]
        reduced, rows, unseen = len(parts), 0, []
        for block in more:
            seen, rest = (block.between(BEFORE_ALL, AFTER_ALL, ids) for ids in ((0, limit), (limit, AFTER_ALL)))
            unseen += [] if rest is None else [rest]
            if seen is None:
                continue
            parts.append(seen)
            rows += len(seen)
            if rows > FOLD_ROWS and rows > len(parts[0]):
                parts, rows = [self._newest(parts)], 0
                reduced = 1
        if len(parts) > reduced:
            parts = [self._newest(parts)]
        return (parts[0] if parts else None), unseen

    def _newest(self, parts: Sequence[Block]) -> Block:
        return newest_of_each(Block.merged(parts), self.columns, self.rows)


def newest_of_each(block: Block, columns: Sequence[str], rows: int) -> Block:
    """The newest rows of each key."""
    codes = codes_of(block.rows, columns)
    order = np.argsort(codes, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(codes[order])) + 1, len(order))
    from_end = np.repeat(ends, np.diff(ends, prepend=0)) - np.arange(len(order))
    places = np.sort(order[from_end <= rows])
    return block if len(places) == len(block) else block.take(places)


def codes_of(rows: pa.Table, columns: Sequence[str]) -> NDArray[np.int64]:
    """A number for each row, the same for rows with the same key."""
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for name in columns:
        column = rows.column(name).combine_chunks()
        if pa.types.is_floating(column.type):
            # -0.0 and 0.0 are one key.
            column = pc.add(column, pa.scalar(0.0, column.type))
        values = column.dictionary_encode(null_encoding="encode")
        wider = codes * max(1, len(values.dictionary)) + np.asarray(values.indices, dtype=np.int64)
        codes = np.asarray(np.unique(wider, return_inverse=True)[1], dtype=np.int64)
    return codes
