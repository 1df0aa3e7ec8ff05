"""The rows of a stream in a line: by time, then by number, so that "the newest 1,000" is a stretch of it.

Where rows have come in the order of their times, a line is a stretch of numbers and costs nothing; where not, it
has the numbers themselves. Lines never change: what is added or given up makes another, which shares what stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from millstream.plan.standing import FOR_EVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Spans = tuple[tuple[int, int], ...]

FEW_ROWS = 65_536
"""Pieces of a line that have fewer rows become one with the next."""
NOWHERE = -1


@dataclass(frozen=True)
class Stretch:
    """Rows next to each other in a line, the first of them at `start`; their numbers, or a range of these."""

    start: int
    ids: range | Numbers

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The smallest number and the largest one."""
        if isinstance(self.ids, range):
            return self.ids.start, self.ids.stop - 1
        return int(self.ids.min()), int(self.ids.max())

    @cached_property
    def _by_number(self) -> tuple[Numbers, Numbers]:
        order = np.argsort(self.ids, kind="stable")
        return np.asarray(self.ids, np.int64)[order], order

    def places(self, ids: Numbers) -> Numbers:
        """Where rows are in the line; those that are not in this stretch are nowhere."""
        if isinstance(self.ids, range):
            return np.where(
                (ids >= self.ids.start) & (ids < self.ids.stop), ids - self.ids.start + self.start, NOWHERE
            )
        known, order = self._by_number
        at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return np.where(known[at] == ids, order[at] + self.start, NOWHERE)

    def cut(self, low: int, high: int) -> Stretch:
        """What of it lies between two places."""
        first, last = max(low, self.start), min(high, self.end)
        return Stretch(first, self.ids[first - self.start : max(first, last) - self.start])

    def with_next(self, other: Stretch) -> Stretch | None:
        """Both as one, if that costs nothing or they are small."""
        if isinstance(self.ids, range) and isinstance(other.ids, range) and self.ids.stop == other.ids.start:
            return Stretch(self.start, range(self.ids.start, other.ids.stop))
        if len(self.ids) + len(other.ids) > FEW_ROWS:
            return None
        return Stretch(self.start, np.concatenate([np.asarray(s.ids, np.int64) for s in (self, other)]))


@dataclass(frozen=True)
class Line:
    """See the module's contract. `times` are those of its last rows, which a turn is about, in order."""

    stretches: tuple[Stretch, ...] = ()
    times: Numbers = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def end(self) -> int:
        return self.stretches[-1].end if self.stretches else 0

    @property
    def bytes(self) -> int:
        own = (s.ids for s in self.stretches)
        return int(self.times.nbytes + sum(ids.nbytes for ids in own if not isinstance(ids, range)))

    def with_more(self, ids: Numbers, times: Numbers) -> Line:
        """The line behind which rows stand that are newer than all in it; it knows the times of these alone."""
        if not len(ids):
            return Line(self.stretches)
        order = np.lexsort((ids, times))
        new = Stretch(self.end, _as_range(ids[order]))
        last = self.stretches[-1].with_next(new) if self.stretches else None
        kept = self.stretches if last is None else self.stretches[:-1]
        return Line((*kept, new if last is None else last), times[order])

    def newest(self, rows: int) -> Line:
        """The newest rows of it."""
        return Line(self._cut(self.end - rows, self.end), self.times)

    def upto(self, times: Numbers) -> Numbers:
        """How many places there are up to each of some times, none of which is older than its known times."""
        return self.end - len(self.times) + np.searchsorted(self.times, times, "right")

    def places(self, ids: Numbers) -> Numbers:
        """Where rows are in the line."""
        found = np.full(len(ids), NOWHERE)
        for stretch in self.stretches:
            low, high = stretch.bounds
            some = np.flatnonzero((ids >= low) & (ids <= high))
            if len(some):
                found[some] = np.maximum(found[some], stretch.places(ids[some]))
        return found

    def only(self, spans: Spans) -> Line:
        """What of it lies between some places; its end and the times that it knows stay."""
        parts = [s for low, high in joined(spans) for s in self._cut(low, high)]
        if not parts or parts[-1].end < self.end:
            parts.append(Stretch(self.end, range(0)))
        return Line(tuple(parts), self.times)

    def numbers(self, spans: Spans) -> Spans:
        """The numbers that rows between some places have: no smaller, no larger."""
        return tuple(s.bounds for low, high in joined(spans) for s in self._cut(low, high))

    def lowest(self, rows: int) -> int:
        """The smallest number among the newest rows of it."""
        return min((s.bounds[0] for s in self._cut(self.end - rows, self.end)), default=FOR_EVER)

    def _cut(self, low: int, high: int) -> tuple[Stretch, ...]:
        return tuple(s.cut(low, high) for s in self.stretches if len(s.ids) and s.end > low and s.start < high)


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans, from the first place to behind the last, with those that overlap as one."""
    ordered = sorted(s for s in spans if s[0] < s[1])
    ends = list(accumulate((high for _, high in ordered), max))
    made: list[tuple[int, int]] = []
    for (low, _), high in zip(ordered, ends, strict=True):
        if made and low <= made[-1][1]:
            made[-1] = (made[-1][0], high)
        else:
            made.append((low, high))
    return made


def line_of(ids: Numbers, times: Numbers) -> Line:
    """A line of rows, none of whose times it has to know."""
    return Line(Line().with_more(ids, times).stretches)


def _as_range(ids: Numbers) -> range | Numbers:
    first = int(ids[0])
    is_plain = int(ids[-1]) - first + 1 == len(ids) and bool(np.all(ids[1:] > ids[:-1]))
    return range(first, first + len(ids)) if is_plain else ids
