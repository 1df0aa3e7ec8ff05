"""Which instants of a query are due, given what has come: pure functions of its place and of new arrivals.

`SAMPLE INTERVAL s` has the multiples of s from the first one ≥ the first row's T and > W at creation, due when
all watermarks are above; TUMBLE and HOP the ends of their windows, due when all have reached them; `SAMPLE
REALTIME` the distinct times of accepted rows; `SAMPLE ROWS n` one after every n accepted rows. Each comes once, in
order. Of a long run of instants whose windows are all empty only the first and the last come, with the number left
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from millstream.plan.standing import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from millstream.plan.standing import QueryPlan, Sample
    from millstream.queries.arrivals import Arrived
    from millstream.queries.place import Place

    Numbers = NDArray[np.int64]

MOST_EMPTY = 10_000
"""Of a longer run of empty windows only the first and the last are delivered."""


@dataclass(frozen=True, slots=True)
class Instant:
    """A place on the axis of the sample, the time it stands for, and how many empty ones were left out before."""

    x: int
    tau: int
    skipped: int = 0


def mark_of(place: Place) -> int | None:
    """The watermark of all of a query's streams; None while one has none."""
    marks = [seen.mark for seen in place.streams.values()]
    return None if None in marks else min(m for m in marks if m is not None)


def take_in(plan: QueryPlan, place: Place, came: Sequence[Arrived]) -> None:
    """Note what has come, for the instants to follow."""
    for arrived in came:
        place.streams[arrived.stream] = arrived.seen
    kind = plan.sample.kind
    if kind in (Sampling.INTERVAL, Sampling.ENDS):
        _begin(plan.sample, place, [a for a in came if len(a.times) and a.stream not in place.begun])
    if kind is Sampling.REALTIME:
        times = [_making(a, place.created_at) for a in came]
        place.pending = np.unique(np.concatenate([np.array(place.pending, np.int64), *times])).tolist()


def _begin(sample: Sample, place: Place, came: Sequence[Arrived]) -> None:
    """First rows of streams have come: until something is answered, the earliest of them says where to begin."""
    place.begun += [a.stream for a in came]
    if came and place.answered is None:
        first = first_after(sample, min(int(a.times[0]) for a in came), place.created_at)
        place.next = first if place.next is None else min(place.next, first)


def _making(came: Arrived, created_at: int | None) -> Numbers:
    """The times that make instants: of rows before the query those alone that the watermark had not passed."""
    rows = came.rows.telling
    old = rows.ids < came.before.born
    wanted = rows.accepted & ~old
    if created_at is not None:
        wanted |= old & (rows.times > created_at)
    return rows.times[wanted]


def first_after(sample: Sample, time: int, mark: int | None) -> int:
    """The first instant that can hold a row of this time."""
    first = _up(sample, time + 1 if sample.is_half_open else time)
    return first if mark is None else max(first, _down(sample, mark) + sample.step)


def _up(sample: Sample, time: int) -> int:
    return -((sample.offset - time) // sample.step) * sample.step + sample.offset


def _down(sample: Sample, time: int) -> int:
    return (time - sample.offset) // sample.step * sample.step + sample.offset


def due(plan: QueryPlan, place: Place, came: Sequence[Arrived]) -> list[Instant]:
    """The instants that have become due; the place moves on behind them."""
    kind = plan.sample.kind
    if kind is Sampling.ROWS:
        return _by_rows(plan, place, came[0])
    mark = mark_of(place)
    if mark is None:
        return []
    if kind is Sampling.REALTIME:
        return _by_times(plan, place, mark)
    if place.next is None:
        return []
    if plan.is_early:
        # A result that stays right need not wait for its instant to pass.
        last = _up(plan.sample, mark)
        found = list(_steps(place.next, last, plan.sample.step, place.filled))
        place.next = max(place.next, last)
        return found
    last = _down(plan.sample, mark if plan.sample.is_half_open else mark - 1)
    found = list(_steps(place.next, last, plan.sample.step, place.filled))
    if found:
        place.next = found[-1].tau + plan.sample.step
    return found


def fill(plan: QueryPlan, place: Place, pairs: Iterable[tuple[Numbers, Numbers]]) -> None:
    """Note when windows are not empty, as rows enter and leave then: of what is still to be asked for."""
    if plan.sample.kind not in (Sampling.INTERVAL, Sampling.ENDS) or place.next is None:
        return
    known = stretches(plan.sample, place.filled, pairs)
    place.filled = [(start, end) for start, end in known if place.answered is None or end >= place.next]


def _by_times(plan: QueryPlan, place: Place, mark: int) -> list[Instant]:
    """A query whose results stay right need not wait for the watermark to pass: it is asked again for the rest."""
    found = [t for t in place.pending if t < mark or (plan.is_early and t == mark)]
    place.pending = [t for t in place.pending if t >= mark]
    return [Instant(t, t) for t in found]


def _by_rows(plan: QueryPlan, place: Place, came: Arrived) -> list[Instant]:
    times = came.times[came.counted]
    if not len(times):
        return []
    start = times[0] if place.largest is None else place.largest
    largest = np.maximum.accumulate(np.concatenate([np.array([start], np.int64), times]))[1:]
    step = plan.sample.step
    ends = range(step - place.accepted % step - 1, len(times), step)
    first = place.accepted // step + 1
    found = [Instant(first + i, int(largest[end])) for i, end in enumerate(ends)]
    if found:
        place.unsampled = int(came.ids[came.counted][ends[-1]]) + 1
    place.accepted += len(times)
    place.largest = int(largest[-1])
    return found


# Long runs of empty windows


Span = tuple[int, int]


def stretches(sample: Sample, known: Iterable[Span], pairs: Iterable[tuple[Numbers, Numbers]]) -> list[Span]:
    """Stretches of time with rows in a window, in order: known ones, and those of rows that enter and leave then.

    They are one where the gap between them is too short for anybody to ask.
    """
    apart, found = (MOST_EMPTY - 1) * sample.step, list(known)
    for enter, leave in pairs:
        kept = leave >= enter
        found += _merged(enter[kept], leave[kept], apart)
    spans = np.array(found, np.int64).reshape(-1, 2)
    return _merged(spans[:, 0], spans[:, 1], apart)


def _merged(starts: Numbers, ends: Numbers, apart: int) -> list[Span]:
    if not len(starts):
        return []
    first, last = int(starts.min()), int(starts.max())
    if last - first <= apart:
        return [(first, int(ends.max()))]
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    edges = np.flatnonzero(starts[1:] - ends[:-1] > apart) + 1
    firsts, lasts = np.concatenate([[0], edges]), np.concatenate([edges - 1, [len(ends) - 1]])
    return list(zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True))


def _gaps(known: Iterable[Span], low: int, high: int) -> Iterator[Span]:
    """The stretches between two times in which all windows are empty."""
    at = low
    for start, end in known:
        if start > high:
            break
        if start > at:
            yield at, start - 1
        at = max(at, end + 1)
    if at <= high:
        yield at, high


def _steps(first: int, last: int, step: int, known: Iterable[Span]) -> Iterator[Instant]:
    if (last - first) // step < MOST_EMPTY:
        yield from (Instant(t, t) for t in range(first, last + 1, step))
        return
    at = first
    for low, high in _gaps(known, first, last):
        begin = first + -(-(low - first) // step) * step
        end = first + (high - first) // step * step
        if (end - begin) // step + 1 <= MOST_EMPTY:
            continue
        yield from (Instant(t, t) for t in range(at, begin + 1, step))
        yield Instant(end, end, (end - begin) // step - 1)
        at = end + step
    yield from (Instant(t, t) for t in range(at, last + 1, step))
