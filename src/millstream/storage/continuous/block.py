"""Rows of a streaming table in memory: a block holds some of them in time order, ties in arrival order.

Blocks never change. A block finds its rows of a stretch of time by binary search, and those that satisfy a
predicate through the sorted values of a column, which it makes when first asked for and keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.storage.continuous import match
from millstream.storage.continuous.match import Predicate, ValueIndex
from millstream.storage.watermark import times_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from millstream.catalog.records import TableInfo

BEFORE_ALL, AFTER_ALL = -(2**63), 2**63 - 1
"""The ends of time; what lies beyond them is cut to them."""
Key = tuple[int, int]
"""A time and a row id: where a row stands in a block."""


@dataclass(frozen=True)
class Block:
    """See the module's contract. `rows` has the table's columns; all three have the same order."""

    rows: pa.Table
    row_ids: NDArray[np.int64]
    times: NDArray[np.int64]
    _indexes: dict[str, ValueIndex] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, table: TableInfo, rows: pa.Table, row_ids: pa.Array | NDArray[np.int64]) -> Block:
        """A block of rows in any order."""
        assert table.time is not None
        times = times_of(rows.column(table.time.column))
        return cls._sorted(rows, np.asarray(row_ids, dtype=np.int64), times)

    @classmethod
    def _sorted(cls, rows: pa.Table, row_ids: NDArray[np.int64], times: NDArray[np.int64]) -> Block:
        later = times[1:] > times[:-1]
        if bool(np.all(later | ((times[1:] == times[:-1]) & (row_ids[1:] > row_ids[:-1])))):
            return cls(rows, row_ids, times)
        return cls(rows, row_ids, times).take(np.lexsort((row_ids, times)))

    @classmethod
    def merged(cls, blocks: Sequence[Block]) -> Block:
        """The rows of several blocks (at least one) as one."""
        if len(blocks) == 1:
            return blocks[0]
        rows = pa.concat_tables([b.rows for b in blocks]).combine_chunks()
        ids, times = (np.concatenate(parts) for parts in zip(*((b.row_ids, b.times) for b in blocks), strict=True))
        return cls._sorted(rows, ids, times)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def low(self) -> int:
        return int(self.times[0])

    @property
    def high(self) -> int:
        return int(self.times[-1])

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes + self.row_ids.nbytes + self.times.nbytes)

    def take(self, places: NDArray[np.int64]) -> Block:
        """A copy of the rows at these places, in their order."""
        return Block(self.rows.take(pa.array(places)).combine_chunks(), self.row_ids[places], self.times[places])

    def index(self, column: str) -> ValueIndex:
        """The sorted values of a column."""
        if column not in self._indexes:
            self._indexes[column] = ValueIndex.of(self.rows.column(column))
        return self._indexes[column]

    def span(self, low: Key, high: int) -> tuple[int, int]:
        """From which place to which (exclusive) the rows are at or after `low` and not after time `high`."""
        if low[0] > min(high, AFTER_ALL) or high < BEFORE_ALL:
            return 0, 0
        time = max(low[0], BEFORE_ALL)
        start = int(np.searchsorted(self.times, time, "left"))
        ties = int(np.searchsorted(self.times, time, "right"))
        start += int(np.searchsorted(self.row_ids[start:ties], low[1], "left"))
        return start, max(start, int(np.searchsorted(self.times, min(high, AFTER_ALL), "right")))

    def find(
        self, low: Key, high: int, limit: int, predicate: Predicate = (), index: str | None = None
    ) -> NDArray[np.int64]:
        """The places of the rows of a stretch of time whose ids are below `limit` and that satisfy a predicate.

        `index` names a column whose sorted values are used if they can serve the predicate.
        """
        start, end = self.span(low, high)
        if start == end:
            return np.empty(0, dtype=np.int64)
        if index is not None and match.serves(predicate, index):
            places = match.find(self.rows, predicate, index, self.index(index))
            places = places[(places >= start) & (places < end)]
        else:
            places = np.arange(start, end)
            if predicate:
                places = places[match.mask(self.rows.slice(start, end - start), predicate)]
        ids = self.row_ids[places]
        return places if len(ids) == 0 or int(ids.max()) < limit else places[ids < limit]

    def between(self, low: int, high: int, ids: tuple[int, int] = (0, AFTER_ALL)) -> Block | None:
        """The rows of a stretch of time with ids from the first to below the second; None if there are none."""
        places = self.find((low, 0), high, ids[1])
        if ids[0]:
            places = places[self.row_ids[places] >= ids[0]]
        if len(places) == len(self):
            return self
        return self.take(places) if len(places) else None

    def split(self, rows: int) -> Iterable[Block]:
        """The rows in blocks of at most `rows`."""
        if len(self) <= rows:
            return [self]
        return [self.take(np.arange(i, min(i + rows, len(self)))) for i in range(0, len(self), rows)]


def newest_first(
    schema: pa.Schema, parts: Sequence[tuple[Block, NDArray[np.int64]]]
) -> tuple[pa.Table, NDArray[np.int64]]:
    """Rows of several blocks, by their places: in decreasing time, ties by later arrival first; and their ids."""
    parts = [(block, places) for block, places in parts if len(places)]
    if not parts:
        return schema.empty_table(), np.empty(0, dtype=np.int64)
    found = Block.merged([block if len(block) == len(p) else block.take(p) for block, p in parts])
    backwards = found.take(np.arange(len(found))[::-1])
    return backwards.rows, backwards.row_ids


def nth_newest(parts: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]], count: int) -> Key | None:
    """Time and row id of the `count`-th newest of some rows, given as times and ids; None if they are fewer."""
    pairs = list(parts)
    total = sum(len(times) for times, _ in pairs)
    if total < count:
        return None
    times, ids = (np.concatenate(column) for column in zip(*pairs, strict=True))
    if total > count:
        bound = np.partition(times, total - count)[total - count]
        times, ids = times[times >= bound], ids[times >= bound]
    order = np.lexsort((ids, times))
    place = order[len(order) - count]
    return int(times[place]), int(ids[place])
