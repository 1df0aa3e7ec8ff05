"""Where a scheduled join is in its streams, and the turns that it has begun.

A *turn* is one look at the streams: all that has come since the front, for every query that is there then. Which
rows it is about follows from the front alone, so turns can be begun while earlier ones are still being joined, and
the front is ahead of the places of the queries: each of these moves on when its own results are released.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from millstream.plan.standing import FOR_EVER
from millstream.queries import instants
from millstream.queries.place import Place
from millstream.queries.slices import Reach, Rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from millstream.queries.arrivals import Arrived
    from millstream.queries.feeding import Feeder
    from millstream.queries.joining import Family
    from millstream.queries.run import Look, Run
    from millstream.queries.slices import Index, Pairs

    Numbers = NDArray[np.int64]
    Bits = NDArray[np.uint8]
    Spot = tuple[tuple[int | None, ...], ...]


def spot_of(place: Place, arrival: Iterable[int] = ()) -> Spot:
    """Where a place is in its streams; the watermark of those whose time is that of arrival is the clock's."""
    seen, by_clock = sorted(place.streams.items()), set(arrival)
    return tuple((i, s.position, s.max_time, s.advanced_to, None if i in by_clock else s.mark) for i, s in seen)


@dataclass(frozen=True)
class Marked:
    """Rows by number and time alone."""

    ids: Numbers
    times: Numbers

    @staticmethod
    def none() -> Marked:
        return Marked(np.empty(0, np.int64), np.empty(0, np.int64))

    def only(self, kept: NDArray[np.bool_]) -> Marked:
        return Marked(self.ids[kept], self.times[kept])

    def with_more(self, ids: Numbers, times: Numbers) -> Marked:
        return Marked(np.concatenate([self.ids, ids]), np.concatenate([self.times, times]))

    @property
    def bytes(self) -> int:
        return int(self.ids.nbytes + self.times.nbytes)


@dataclass
class Front:
    """Behind all that has been taken: a place, rows that may be active once more, queries not answered yet."""

    place: Place
    recent: dict[int, Marked] = field(default_factory=dict)
    unanswered: dict[int, Mapping[int, int]] = field(default_factory=dict)
    """By query: the first row of each stream that is for it."""

    @staticmethod
    def of(runs: Sequence[Run], look: Look, feeder: Feeder) -> Front:
        """Where some queries are that are in the same spot."""
        streams = {i: replace(s, born=0) for i, s in runs[0].place.streams.items()}
        made = Front(Place(streams))
        passed = [r.place.passed for r in runs if is_stepped(r)]
        if not passed:
            made.place.passed = instants.mark_of(made.place)
        elif None not in passed:
            made.place.passed = min(p for p in passed if p is not None)
        for run in runs:
            made.admit(run)
        made.refill(runs, look, feeder)
        return made

    @property
    def passed(self) -> int:
        return -FOR_EVER if self.place.passed is None else self.place.passed

    def admit(self, run: Run) -> None:
        if run.place.answered is None:
            self.unanswered[run.query.id] = {i: s.born for i, s in run.place.streams.items()}
        for stream, late in run.place.late.items():
            known = dict(self.place.late.get(stream, ()))
            self.place.late[stream] = sorted((known | dict(late)).items())

    def refill(self, runs: Sequence[Run], look: Look, feeder: Feeder) -> None:
        """Find the rows that have been seen and may be active once more."""
        for stream, seen in self.place.streams.items():
            self.recent[stream] = Marked.none()
            is_passed = seen.max_time is not None and seen.max_time <= self.passed
            if not any(is_stepped(r) for r in runs) or (is_passed and not self.place.late.get(stream) and not any(
                is_stepped(r) and r.query.id in self.unanswered for r in runs
            )):  # fmt: skip
                continue
            low = min(r.place.streams[stream].low for r in runs)
            place = replace(self.place, streams={stream: replace(seen, low=low)})
            old = feeder.arrived_before(place, look, stream, is_stale=False)
            self._keep(stream, Marked(old.ids, old.times))

    def _keep(self, stream: int, rows: Marked) -> None:
        late = [i for i, _ in self.place.late.get(stream, ())]
        first = self._first_unanswered(stream)
        again = (rows.times > self.passed) | (rows.ids >= first) | np.isin(rows.ids, late)
        self.recent[stream] = rows.only(again)

    def _first_unanswered(self, stream: int) -> int:
        return min((born[stream] for born in self.unanswered.values()), default=FOR_EVER)

    def moves(self, found: Mapping[int, Arrived], arrival: Iterable[int]) -> bool:
        """Whether there is something to do for what has come."""
        by_clock = set(arrival)
        for stream, came in found.items():
            if len(came.ids) or came.seen.position != came.before.position:
                return True
            if stream not in by_clock and came.seen.advanced_to != came.before.advanced_to:
                return True
        mark = _mark(found)
        return mark > self.passed and any(
            bool(np.any((r.times <= mark) & (r.times > self.passed))) for r in self.recent.values()
        )

    def take(self, found: Mapping[int, Arrived], lows: Mapping[int, int]) -> dict[int, tuple[Reach, Marked]]:
        """Move on behind what has come: for each stream what of it a turn is about, and the active rows."""
        mark, taken = _mark(found), dict[int, tuple[Reach, Marked]]()
        answered = set[int]()
        for stream, came in found.items():
            late = [x for x in self.place.late.get(stream, []) if x[1] >= self.passed] + came.late
            self.place.late[stream] = late
            rows = self.recent.get(stream, Marked.none()).with_more(came.ids, came.times)
            is_late = np.isin(rows.ids, [i for i, _ in late])
            reach = Reach(
                lows[stream], came.seen.position, mark, came.before.position, self.passed,
                self._first_unanswered(stream), dict(late), _span(rows.times[is_late]),
            )  # fmt: skip
            active = reach.has(rows.ids, rows.times) & reach.is_active(rows.ids, rows.times)
            taken[stream] = reach, rows.only(active)
            making = active & ~is_late & ((rows.times > self.passed) | (rows.ids >= came.before.position))
            answered |= {q for q, born in self.unanswered.items() if np.any(rows.ids[making] >= born[stream])}
            self.recent[stream] = rows
        for query in answered:
            del self.unanswered[query]
        self.place.streams = {i: replace(a.seen, born=0) for i, a in found.items()}
        self.place.passed = instants.mark_of(self.place)
        for stream, rows in list(self.recent.items()):
            self._keep(stream, rows)
        return taken

    @property
    def bytes(self) -> int:
        return sum(r.bytes for r in self.recent.values())


def is_stepped(run: Run) -> bool:
    """Whether a query has seen rows: it may have some that are active again."""
    return any(s.position > s.born for s in run.place.streams.values())


def _mark(found: Mapping[int, Arrived]) -> int:
    """The watermark of all streams behind what has come."""
    marks = [a.seen.mark for a in found.values()]
    return -FOR_EVER if None in marks else min(m for m in marks if m is not None)


def _span(times: Numbers) -> tuple[int, int] | None:
    return (int(times.min()), int(times.max())) if len(times) else None


@dataclass(frozen=True, eq=False)
class Batch:
    """The active rows of a leaf in a turn, those alone that somebody may want."""

    leaf: int
    rows: Rows
    index: Index
    bits: Bits


@dataclass(frozen=True, eq=False)
class Result:
    """Pairs of a batch's rows with others, and who may want them."""

    batch: Batch
    pairs: Pairs
    alive: Bits


@dataclass(eq=False)
class Turn:
    """See the module's contract; `cast` are the queries that it is for, `waiting` those that have not got it."""

    spot: Spot
    look: Look
    found: Mapping[int, Arrived]
    reaches: Mapping[int, Reach]
    cast: Family
    waiting: set[int]
    batches: dict[int, Batch] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    ready: set[int] = field(default_factory=set)
    """Queries whose results are all there."""

    @property
    def before(self) -> dict[int, int]:
        return {stream: came.before.position for stream, came in self.found.items()}

    def is_ready(self, query: int) -> bool:
        return not self.batches or query in self.ready

    @property
    def bytes(self) -> int:
        """What is held for it in memory beside the streams."""
        rows = sum(b.rows.bytes + b.bits.nbytes for b in self.batches.values())
        marks = sum(a.ids.nbytes + a.times.nbytes + a.met.nbytes for a in self.found.values())
        return int(rows + marks + sum(r.pairs.bytes + r.alive.nbytes for r in self.results))

    def combinations(self) -> tuple[dict[int, Rows], dict[int, Numbers], Bits]:
        """All pairs that there are so far, as places in rows of each leaf, and who may want them."""
        rows: dict[int, list[Rows]] = {0: [], 1: []}
        places: dict[int, list[Numbers]] = {0: [], 1: []}
        sizes, own = {0: 0, 1: 0}, dict[Batch, int]()
        for result in self.results:
            leaf, other = result.batch.leaf, 1 - result.batch.leaf
            if result.batch not in own:
                own[result.batch] = sizes[leaf]
                rows[leaf].append(result.batch.rows)
                sizes[leaf] += len(result.batch.rows)
            places[leaf].append(result.pairs.mine + own[result.batch])
            places[other].append(result.pairs.theirs + sizes[other])
            rows[other].append(result.pairs.rows)
            sizes[other] += len(result.pairs.rows)
        return (
            {leaf: Rows.together(parts) for leaf, parts in rows.items()},
            {leaf: np.concatenate(parts) for leaf, parts in places.items()},
            np.concatenate([r.alive for r in self.results]),
        )
