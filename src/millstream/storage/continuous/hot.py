"""The hot part of a streaming table: its newest rows, held in memory as well as on disk.

Memory holds exactly the stored rows with T ≥ `floor` and row id < `position`, in blocks; older ones are
read from disk when asked for, and stay if they fit. `catch_up` pulls what was committed since. `trim`
gives up what no call needs, and the oldest rows beyond the memory budget. Rows taken from the table
(UPDATE, DELETE, retention) make the part start anew, with nothing in memory. Whatever is in memory,
reads give the same rows. Not for several threads at once, but for `invalidate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from millstream.storage.continuous.block import AFTER_ALL, BEFORE_ALL, Block, Key, nth_newest
from millstream.storage.continuous.look import look

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from millstream.catalog.records import Moment
    from millstream.storage.continuous.look import Look, View
    from millstream.storage.lake import Lake

BUDGET = 256 * 1024 * 1024
BLOCK_ROWS = 65_536


class Intervals:
    """The interval index in memory: which blocks reach into a stretch of time.

    `highs` is the latest time of a block and all before it, `lows` the earliest of a block and all after
    it. Both only grow, so two binary searches leave a run of blocks; it is exact if blocks are in time order.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._highs = np.maximum.accumulate([b.high for b in blocks]) if blocks else np.empty(0, np.int64)
        lows = [b.low for b in reversed(blocks)]
        self._lows = np.minimum.accumulate(lows)[::-1] if blocks else np.empty(0, np.int64)

    def overlapping(self, low: int, high: int) -> list[Block]:
        """The blocks that hold times from `low` to `high`, in arrival order."""
        if low > high or low > AFTER_ALL:
            return []
        start = int(np.searchsorted(self._highs, max(low, BEFORE_ALL), "left"))
        end = int(np.searchsorted(self._lows, min(high, AFTER_ALL), "right"))
        return [b for b in self._blocks[start:end] if b.low <= high and b.high >= low]


@dataclass(frozen=True)
class Fresh:
    """What a catch-up found: the times and ids of the rows that came, in arrival order.

    `late` holds those of them that are not later than the time asked for; `reloaded` says that rows may
    have gone, so that nothing derived from earlier reads holds any more.
    """

    before: View
    row_ids: NDArray[np.int64]
    times: NDArray[np.int64]
    late: tuple[Block, ...]
    reloaded: bool


class HotPart:
    """See the module's contract."""

    def __init__(self, lake: Lake, table_id: int, budget: int = BUDGET) -> None:
        self._lake = lake
        self._table_id = table_id
        self.budget = budget
        self._stale = False
        self._moment: Moment | None = None
        self.disk_reads = 0
        with look(lake, table_id) as found:
            self._start(found.view)

    def _start(self, view: View) -> None:
        self.view = view
        self._hold([])
        self.floor = BEFORE_ALL if view.latest is None else view.latest + 1

    def _hold(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self._intervals = Intervals(blocks)

    @property
    def position(self) -> int:
        return self.view.position

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for b in self.blocks)

    def invalidate(self) -> None:
        """Rows were taken from the table: the next catch-up starts anew. Any thread may call this."""
        self._stale = True

    def catch_up(self, late_until: int | None = None) -> Fresh:
        """Take in what was committed since the last time."""
        moment, before = self._lake.catalog.now, self.view
        if moment is self._moment and not self._stale:
            nothing = np.empty(0, np.int64)
            return Fresh(before, nothing, nothing, (), False)
        stale, self._stale = self._stale, False
        try:
            with look(self._lake, self._table_id) as found:
                stale = stale or found.view.table != before.table
                if stale:
                    self._start(found.view)
                came, late = [], []
                if found.view.position > before.position:
                    for block in found.arrived(before):
                        came.append(block)
                        late += [] if late_until is None else [block.between(BEFORE_ALL, late_until)]
                        if not stale:
                            self._append(block)
                self.view = found.view
        except BaseException:
            # What was taken in before the failure would be taken in again.
            self._stale, self.view = True, before
            raise
        self._moment = moment
        ids, times = _in_arrival_order(came)
        return Fresh(before, ids, times, tuple(b for b in late if b is not None), stale)

    def _append(self, block: Block) -> None:
        kept = block.between(self.floor, AFTER_ALL)
        if kept is None:
            return
        blocks = list(self.blocks)
        for part in kept.split(BLOCK_ROWS):
            blocks.append(part)
            # Blocks double before they merge, so that many small commits cost little each.
            while len(blocks) > 1 and len(blocks[-2]) <= len(blocks[-1]) <= BLOCK_ROWS - len(blocks[-2]):
                blocks[-2:] = [Block.merged(blocks[-2:])]
        self._hold(blocks)
        self._shrink()

    def _shrink(self) -> None:
        """Give up the oldest blocks until the rest fits into the budget."""
        excess = self.nbytes - self.budget
        if excess <= 0:
            return
        keep_from = BEFORE_ALL
        for block in sorted(self.blocks, key=lambda b: b.high):
            keep_from = block.high + 1
            excess -= block.nbytes
            if excess <= 0:
                break
        self.trim(keep_from)

    def trim(self, keep_from: int) -> None:
        """Give up the blocks whose rows are all older than `keep_from`."""
        dropped = [b.high for b in self.blocks if b.high < keep_from]
        if not dropped:
            return
        self.floor = max(self.floor, max(dropped) + 1)
        kept = (b.between(self.floor, AFTER_ALL) for b in self.blocks if b.high >= self.floor)
        self._hold([b for b in kept if b is not None])

    def between(self, low: int, high: int, *, keep: bool = True) -> list[Block]:
        """Blocks with all rows of a stretch of time; `keep` what has to be read from disk, if it fits."""
        low = max(low, BEFORE_ALL)
        if low >= self.floor:
            return self._intervals.overlapping(low, high)
        missing = list(self._stored(low, self.floor - 1 if keep else min(high, self.floor - 1)))
        return self._with_stored(missing, low, high, low if keep else None)

    def _stored(self, low: int, high: int) -> Iterator[Block]:
        if low > high:
            return
        self.disk_reads += 1
        with look(self._lake, self._table_id) as found:
            yield from found.between(low, high, self.position)

    def _with_stored(self, stored: list[Block], low: int, high: int, floor: int | None) -> list[Block]:
        """The blocks of a stretch of time, some of which came from disk and are complete from `floor` on."""
        if floor is not None and self._absorb(stored, floor):
            return self._intervals.overlapping(low, high)
        return [*stored, *self._intervals.overlapping(low, high)]

    def _absorb(self, stored: list[Block], floor: int) -> bool:
        """Lower the floor, with the rows that were missing for it, unless they do not fit."""
        whole = [b for b in (s.between(floor, AFTER_ALL) for s in stored) if b is not None]
        if self.nbytes + sum(b.nbytes for b in whole) > self.budget:
            return False
        parts = [p for b in whole for p in b.split(BLOCK_ROWS)]
        self._hold([*sorted(parts, key=lambda b: b.high), *self.blocks])
        self.floor = floor
        return True

    def newest(self, low: int, high: int, limit: int, count: int, *, keep: bool = True) -> list[Block]:
        """Blocks among whose rows are the `count` newest of a stretch of time with ids below `limit`."""
        low = max(low, BEFORE_ALL)
        held, counted = self._newest_held(low, high, limit, count)
        if counted >= count or low >= self.floor:
            return held
        self.disk_reads += 1
        until = self.floor - 1 if keep else min(high, self.floor - 1)
        with look(self._lake, self._table_id) as found:
            stored, complete = self._newest_stored(found, (low, until), high, limit, count - counted)
        return self._with_stored(stored, low, high, complete if keep else None)

    def _newest_stored(
        self, found: Look, reach: tuple[int, int], high: int, limit: int, count: int
    ) -> tuple[list[Block], int]:
        """The newest up to `high`, and everything later within reach, so that memory can take it in."""
        low, until = reach
        if low > until:
            return [], low
        top = min(high, until)
        stored, complete = found.newest(low, top, (limit, self.position), count)
        if top < until:
            stored += found.between(top + 1, until, self.position)
        return stored, complete

    def _newest_held(self, low: int, high: int, limit: int, count: int) -> tuple[list[Block], int]:
        """Blocks in memory, the latest first, until they hold the `count` newest; and how many rows count."""
        taken: list[Block] = []
        parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        nth: Key | None = None
        for block in sorted(self._intervals.overlapping(low, high), key=lambda b: b.high, reverse=True):
            if nth is not None and nth[0] > block.high:
                break
            places = block.find((low, 0), high, limit)
            taken.append(block)
            parts.append((block.times[places], block.row_ids[places]))
            nth = nth_newest(parts, count)
        return taken, sum(len(times) for times, _ in parts)

    def each(self, low: int, high: int) -> Iterator[Block]:
        """All rows of a stretch of time, a block at a time and without keeping any: older ones from disk."""
        low = max(low, BEFORE_ALL)
        yield from self._stored(low, min(high, self.floor - 1))
        for block in self._intervals.overlapping(max(low, self.floor), high):
            found = block.between(max(low, self.floor), high)
            if found is not None:
                yield found

    def first_time(self) -> int | None:
        """The time of the row that came first of those that are stored."""
        with look(self._lake, self._table_id) as found:
            return found.first_time()


def _in_arrival_order(blocks: Sequence[Block]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if not blocks:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ids = np.concatenate([b.row_ids for b in blocks])
    order = np.argsort(ids)
    return ids[order], np.concatenate([b.times for b in blocks])[order]
