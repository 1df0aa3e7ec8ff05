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
from millstream.queries.lines import Line, line_of
from millstream.queries.parcels import Rows
from millstream.queries.place import Place
from millstream.queries.rulers import ByRows, ByTime
from millstream.queries.slices import Reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from millstream.queries.arrivals import Arrived
    from millstream.queries.feeding import Feeder
    from millstream.queries.joining import Family
    from millstream.queries.parcels import Parcel
    from millstream.queries.place import Seen
    from millstream.queries.rulers import Ruler
    from millstream.queries.run import Look, Run
    from millstream.queries.slices import Pairs

    Numbers = NDArray[np.int64]
    Bits = NDArray[np.uint8]
    Spot = tuple[tuple[int | None, ...], ...]

NOTHING = -1


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
        return self if kept.all() else Marked(self.ids[kept], self.times[kept])

    def with_more(self, ids: Numbers, times: Numbers) -> Marked:
        if not len(self.ids):
            return Marked(ids, times)
        return Marked(np.concatenate([self.ids, ids]), np.concatenate([self.times, times]))

    @property
    def bytes(self) -> int:
        return int(self.ids.nbytes + self.times.nbytes)


@dataclass(frozen=True)
class Taken:
    """What a turn is about in one stream: how far it reaches, the active rows, the line that they are in.

    `rest` is the first of the rows that are left for later.
    """

    reach: Reach
    active: Marked
    line: Line | None
    rest: int


@dataclass
class Front:
    """Behind all that has been taken: a place, rows that may be active once more, queries not answered yet.

    Where windows are counted in rows (`rows` in the largest), an instant is answered when the watermark has passed
    it, and not when it is there: more rows of its time would change who is among the newest.
    """

    place: Place
    rows: int = 0
    lines: dict[int, Line] = field(default_factory=dict)
    """By stream, where windows are counted in rows: what has been passed."""
    answered: int = -FOR_EVER
    """The last instant."""
    recent: dict[int, Marked] = field(default_factory=dict)
    unanswered: dict[int, Mapping[int, int]] = field(default_factory=dict)
    """By query: the first row of each stream that is for it."""

    @staticmethod
    def of(runs: Sequence[Run], look: Look, feeder: Feeder) -> Front:
        """Where some queries are that are in the same spot."""
        streams = {i: replace(s, born=0) for i, s in runs[0].place.streams.items()}
        made = Front(Place(streams), max(r.plan.windows[0].rows for r in runs))
        passed = [r.place.passed for r in runs if is_stepped(r)]
        if not passed:
            made.place.passed = instants.mark_of(made.place)
        elif None not in passed:
            made.place.passed = min(p for p in passed if p is not None)
        made.answered = min((r.place.answered for r in runs if r.place.answered is not None), default=-FOR_EVER)
        for run in runs:
            made.admit(run)
        made.refill(runs, look, feeder)
        return made

    @property
    def passed(self) -> int:
        return -FOR_EVER if self.place.passed is None else self.place.passed - int(self.rows > 0)

    def admit(self, run: Run) -> None:
        self.rows = max(self.rows, run.plan.windows[0].rows)
        if run.place.answered is None:
            self.unanswered[run.query.id] = {i: s.born for i, s in run.place.streams.items()}
        for stream, late in run.place.late.items():
            known = dict(self.place.late.get(stream, ()))
            self.place.late[stream] = sorted((known | dict(late)).items())

    def refill(self, runs: Sequence[Run], look: Look, feeder: Feeder) -> None:
        """Find the rows that have been seen and may be active once more."""
        for stream, seen in self.place.streams.items():
            self.recent[stream], self.lines[stream] = Marked.none(), Line()
            is_passed = seen.max_time is not None and seen.max_time <= self.passed and not self.rows
            if not any(is_stepped(r) for r in runs) or (is_passed and not self.place.late.get(stream) and not any(
                is_stepped(r) and r.query.id in self.unanswered for r in runs
            )):  # fmt: skip
                continue
            low = min(r.place.streams[stream].low for r in runs)
            place = replace(self.place, streams={stream: replace(seen, low=low)})
            old = feeder.arrived_before(place, look, stream, is_stale=False)
            rows = Marked(old.ids, old.times)
            if self.rows:
                passed = rows.only(rows.times <= self.passed)
                self.lines[stream] = line_of(passed.ids, passed.times)
            self._keep(stream, rows)

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
        mark = self._mark(found)
        return mark > self.passed and any(
            bool(np.any((r.times <= mark) & (r.times > self.passed))) for r in self.recent.values()
        )

    def take(self, found: Mapping[int, Arrived], lows: Mapping[int, int]) -> dict[int, Taken]:
        """Move on behind what has come: for each stream what of it a turn is about."""
        taken = {stream: self._take(came, self._mark(found), lows[stream]) for stream, came in found.items()}
        self.answered = max(self.answered, *(self._last_instant(t, found[s].before) for s, t in taken.items()))
        self._note_answered(taken, found)
        self.place.streams = {i: replace(a.seen, born=0) for i, a in found.items()}
        self.place.passed = instants.mark_of(self.place)
        for stream, rows in list(self.recent.items()):
            self._keep(stream, rows)
        return taken

    def _take(self, came: Arrived, mark: int, low: int) -> Taken:
        stream = came.stream
        self.place.late[stream] = late = self.late(came)
        rows = self.recent.get(stream, Marked.none()).with_more(came.ids, came.times)
        self.recent[stream] = rows
        is_late = np.isin(rows.ids, [i for i, _ in late])
        reach = Reach(
            low, came.seen.position, mark, came.before.position, self.passed,
            self._first_unanswered(stream), dict(late), _span(rows.times[is_late]),
        )  # fmt: skip
        there = reach.has(rows.ids, rows.times)
        return Taken(
            reach,
            rows.only(there & reach.is_active(rows.ids, rows.times)),
            self._lengthened(stream, rows.only(there & (rows.times > self.passed))),
            min(rows.ids[rows.times > mark].tolist(), default=came.seen.position),
        )

    def late(self, came: Arrived) -> list[tuple[int, int]]:
        """Late rows that are not in any answer yet, and the watermarks that they met."""
        known = self.place.late.get(came.stream, [])
        return [x for x in known if x[1] >= self.passed or x[1] > self.answered] + came.late

    def _lengthened(self, stream: int, new: Marked) -> Line | None:
        if not self.rows:
            return None
        line = self.lines[stream].with_more(new.ids, new.times)
        self.lines[stream] = line = line.newest(self.rows + len(new.ids))
        return line

    def _making(self, taken: Taken, before: Seen) -> NDArray[np.bool_]:
        """Which active rows make instants."""
        rows, reach = taken.active, taken.reach
        return ~reach.is_late(rows.ids) & ((rows.times > self.passed) | (rows.ids >= before.position))

    def _last_instant(self, taken: Taken, before: Seen) -> int:
        return int(taken.active.times[self._making(taken, before)].max(initial=-FOR_EVER))

    def _note_answered(self, taken: Mapping[int, Taken], found: Mapping[int, Arrived]) -> None:
        for stream, own in taken.items():
            making = own.active.ids[self._making(own, found[stream].before)]
            last = int(making.max(initial=NOTHING))
            self.unanswered = {q: born for q, born in self.unanswered.items() if last < born[stream]}

    def _mark(self, found: Mapping[int, Arrived]) -> int:
        """The last time that may be answered behind what has come."""
        marks = [a.seen.mark for a in found.values()]
        return -FOR_EVER if None in marks else min(m for m in marks if m is not None) - int(self.rows > 0)

    @property
    def bytes(self) -> int:
        return sum(r.bytes for r in self.recent.values()) + sum(line.bytes for line in self.lines.values())


def is_stepped(run: Run) -> bool:
    """Whether a query has seen rows: it may have some that are active again."""
    return any(s.position > s.born for s in run.place.streams.values())


def _span(times: Numbers) -> tuple[int, int] | None:
    return (int(times.min()), int(times.max())) if len(times) else None


@dataclass(frozen=True, eq=False)
class Batch:
    """The active rows of a leaf in a turn, those alone that somebody may want."""

    leaf: int
    parcel: Parcel
    bits: Bits

    def __len__(self) -> int:
        return len(self.parcel)


@dataclass(frozen=True, eq=False)
class Result:
    """Pairs of a batch's rows with others, and who may want them."""

    batch: Batch
    pairs: Pairs
    alive: Bits


@dataclass(frozen=True, eq=False)
class Combinations:
    """Pairs as places in rows of each leaf, who may want them, and, counted in rows, how far they are away."""

    sides: dict[int, Rows]
    places: dict[int, Numbers]
    alive: Bits
    away: Numbers

    def of(self, number: int, rows: int) -> Numbers:
        """Those that a query may want, by its number; windows of some rows have only what is as near."""
        byte, bit = divmod(number, 8)
        wanted = (self.alive[:, byte] & (128 >> bit)) > 0
        return np.flatnonzero(wanted & (self.away <= rows) if rows else wanted)


@dataclass(eq=False)
class Turn:
    """See the module's contract; `cast` are the queries that it is for, `waiting` those that have not got it."""

    spot: Spot
    look: Look
    found: Mapping[int, Arrived]
    taken: Mapping[int, Taken]
    cast: Family
    waiting: set[int]
    batches: dict[int, Batch] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    ready: set[int] = field(default_factory=set)
    """Queries whose results are all there."""

    @staticmethod
    def of(
        spot: Spot,
        look: Look,
        found: Mapping[int, Arrived],
        taken: Mapping[int, Taken],
        cast: Family,
        waiting: set[int],
    ) -> Turn:
        """A turn without batches yet; of what has come it keeps no more than queries ask when they get it."""
        told = {stream: replace(came, rows=came.rows.telling) for stream, came in found.items()}
        reached = {stream: replace(own, active=Marked.none()) for stream, own in taken.items()}
        return Turn(spot, look, told, reached, cast, waiting)

    def ruler(self, stream: int, other: int) -> Ruler:
        """What tells how far rows of a stream are from those of the other."""
        own, others = self.taken[stream].line, self.taken[other].line
        return ByTime() if own is None or others is None else ByRows(own, others)

    def lows(self, rows: int) -> dict[int, int]:
        """The first row of each stream that a window of so many rows needs behind the turn."""
        return {s: min(t.rest, FOR_EVER if t.line is None else t.line.lowest(rows)) for s, t in self.taken.items()}

    @property
    def before(self) -> dict[int, int]:
        return {stream: came.before.position for stream, came in self.found.items()}

    def is_ready(self, query: int) -> bool:
        return not self.batches or query in self.ready

    @property
    def rows(self) -> int:
        return sum(map(len, self.batches.values()))

    @property
    def bytes(self) -> int:
        """What is held for it in memory beside the streams."""
        marks = [x for a in self.found.values() for x in (a.ids, a.times, a.met)]
        marks += [t.line.times for t in self.taken.values() if t.line is not None]
        # Some of these are the same arrays.
        told = sum({id(x): x.nbytes for x in marks}.values())
        batches = sum(b.parcel.bytes + b.bits.nbytes for b in self.batches.values())
        return int(told + batches + sum(r.pairs.bytes + r.alive.nbytes for r in self.results))

    def combinations(self) -> Combinations:
        """All pairs that there are so far."""
        rows: dict[int, list[Rows]] = {0: [], 1: []}
        places: dict[int, list[Numbers]] = {0: [], 1: []}
        sizes, own = {0: 0, 1: 0}, dict[Batch, int]()
        opened = {batch: batch.parcel.rows for batch in dict.fromkeys(r.batch for r in self.results)}
        for result in self.results:
            leaf, other = result.batch.leaf, 1 - result.batch.leaf
            if result.batch not in own:
                own[result.batch] = sizes[leaf]
                rows[leaf].append(opened[result.batch])
                sizes[leaf] += len(result.batch)
            places[leaf].append(result.pairs.mine + np.int64(own[result.batch]))
            places[other].append(result.pairs.theirs + np.int64(sizes[other]))
            rows[other].append(result.pairs.rows)
            sizes[other] += len(result.pairs.rows)
        return Combinations(
            {leaf: Rows.together(parts) for leaf, parts in rows.items()},
            {leaf: np.concatenate(parts) for leaf, parts in places.items()},
            np.concatenate([r.alive for r in self.results]),
            self._away(opened),
        )

    def _away(self, opened: Mapping[Batch, Rows]) -> Numbers:
        """How far the pairs are away, where windows are counted in rows."""
        found = [np.empty(0, np.int64)]
        for result in self.results:
            leaf, pairs = result.batch.leaf, result.pairs
            ruler = self.ruler(self.cast.streams[leaf], self.cast.streams[1 - leaf])
            if isinstance(ruler, ByRows):
                found.append(ruler.away(opened[result.batch], pairs.rows, pairs.mine, pairs.theirs))
        return np.concatenate(found)
