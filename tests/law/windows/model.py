"""When a continuous query answers and which rows it sees: the contract in plain Python, slow and obvious.

A history is a line of events: every row that comes is one, so is every ADVANCE, every change of a table, every
creation, PAUSE and RESUME. From it follow the instants of a query (`instants`), each with the event that made it
due and the event at which it is answered, and the rows in a source's window at an instant (`content`). Times are
whole numbers. Nothing here knows SQL, batches or what a query makes of the rows: that is for `expected`.

What the contract leaves open is decided as in docs/design/2026-11-16-continuous-queries.md, and beyond that:
- A query over several streams goes by the least of their watermarks, also "at creation". Its first row is the
  earliest of the first rows of its streams.
- Windows of TUMBLE and HOP begin with the first whose end is past that row and past the watermark at creation.
- `SAMPLE REALTIME` has no instants that a stream's own watermark had reached at creation.
- `SAMPLE ROWS n` counts the rows that came after creation, also over a streaming table.
- A session is looked for among all rows since creation, those of sessions already answered included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A row as it came: the `number`-th of its stream, at an event, when `met` was the watermark."""

    number: int
    time: int
    event: int
    met: int | None

    @property
    def is_late(self) -> bool:
        return self.met is not None and self.time < self.met


@dataclass(slots=True)
class Flow:
    """A stream, or a streaming table if it `is_kept`, whose historical period is None where it is unbounded."""

    name: str
    delay: int = 0
    is_kept: bool = False
    period: int | None = None
    arrivals: list[Arrival] = field(default_factory=list)
    versions: list[Values] = field(default_factory=list)
    """The values of rows, once more for each UPDATE."""
    _largest: int | None = None
    _advanced: int | None = None
    _marks: list[tuple[int, int]] = field(default_factory=list)
    _versions_of: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    _deleted: dict[int, int] = field(default_factory=dict)

    @property
    def watermark(self) -> int | None:
        by_rows = None if self._largest is None else self._largest - self.delay
        known = [mark for mark in (by_rows, self._advanced) if mark is not None]
        return max(known) if known else None

    def watermark_at(self, event: int) -> int | None:
        """The watermark after an event."""
        return next((mark for at, mark in reversed(self._marks) if at <= event), None)

    def came(self, event: int, time: int, values: Values) -> Arrival:
        arrival = Arrival(len(self.arrivals), time, event, self.watermark)
        self.arrivals.append(arrival)
        self._keep_version(event, arrival.number, values)
        self._largest = time if self._largest is None else max(self._largest, time)
        self._mark(event)
        return arrival

    def advanced(self, event: int, to: int) -> None:
        self._advanced = to if self._advanced is None else max(self._advanced, to)
        self._mark(event)

    def _mark(self, event: int) -> None:
        mark = self.watermark
        assert mark is not None
        if not self._marks or self._marks[-1][1] != mark:
            self._marks.append((event, mark))

    def deleted(self, event: int, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._deleted.setdefault(number, event)

    def updated(self, event: int, numbers: Sequence[int], changed: Values) -> None:
        for number in numbers:
            before = self.versions[self.version(number, event)]
            self._keep_version(event, number, {**before, **changed})

    def _keep_version(self, event: int, number: int, values: Values) -> None:
        self._versions_of[number].append((event, len(self.versions)))
        self.versions.append(values)

    def version(self, number: int, event: int) -> int:
        """Where the values that a row has after an event stand in `versions`."""
        first = self._versions_of[number][0][1]
        return max((place for at, place in self._versions_of[number] if at <= event), default=first)

    def is_there(self, number: int, event: int) -> bool:
        """Whether a row has not been deleted by then."""
        return number not in self._deleted or self._deleted[number] > event


class History:
    """All that happened, event by event."""

    def __init__(self, flows: Sequence[Flow]) -> None:
        self.flows = {flow.name: flow for flow in flows}
        self.now = 0
        self._changes: dict[str, list[int]] = defaultdict(list)

    def happened(self) -> int:
        """An event of which nothing but its place in the line is of interest."""
        self.now += 1
        return self.now

    def insert(self, name: str, times: Sequence[int], values: Sequence[Values] | None = None) -> list[Arrival]:
        """Rows come, one by one."""
        given = values if values is not None else [{} for _ in times]
        flow = self.flows[name]
        return [flow.came(self.happened(), t, v) for t, v in zip(times, given, strict=True)]

    def advance(self, name: str, to: int) -> None:
        self.flows[name].advanced(self.happened(), to)

    def delete(self, name: str, numbers: Sequence[int]) -> None:
        self.flows[name].deleted(self.happened(), numbers)

    def update(self, name: str, numbers: Sequence[int], changed: Values) -> None:
        self.flows[name].updated(self.happened(), numbers, changed)

    def change(self, table: str) -> None:
        """A table has another content from here on."""
        self._changes[table].append(self.happened())

    def table_version(self, table: str, event: int) -> int:
        """How often a table had changed by then."""
        return sum(at <= event for at in self._changes[table])


# Windows


class Window(Protocol):
    """Which of the rows that have entered are in the window of an instant."""

    @property
    def is_half_open(self) -> bool:
        """Whether a row at the instant itself is left out."""

    def rows(self, entered: Sequence[Arrival], instant: int, key: Key) -> list[Arrival]:
        """The rows of the window; `key` gives a row's values of some columns."""


class Key(Protocol):
    """The values of some columns of a row."""

    def __call__(self, row: Arrival, columns: Sequence[str]) -> Hashable: ...


def parted(rows: Sequence[Arrival], columns: Sequence[str], key: Key) -> dict[Hashable, list[Arrival]]:
    """The rows of each value of some columns, of which null is one; without columns all together."""
    parts: dict[Hashable, list[Arrival]] = defaultdict(list)
    for row in rows:
        parts[key(row, columns) if columns else ()].append(row)
    return parts


@dataclass(frozen=True, slots=True)
class Interval:
    """`[INTERVAL i]`: τ - i ≤ T ≤ τ."""

    length: int
    is_half_open = False

    def rows(self, entered: Sequence[Arrival], instant: int, key: Key) -> list[Arrival]:
        del key
        return [r for r in entered if instant - self.length <= r.time <= instant]


def newest_first(row: Arrival) -> tuple[int, int]:
    return -row.time, -row.number


@dataclass(frozen=True, slots=True)
class Last:
    """`[ROWS k]`: the k newest; of rows with the same time the later to come is the newer."""

    count: int
    is_half_open = False

    def rows(self, entered: Sequence[Arrival], instant: int, key: Key) -> list[Arrival]:
        del instant, key
        return sorted(entered, key=newest_first)[: self.count]


@dataclass(frozen=True, slots=True)
class LastOfEach:
    """`[PARTITION BY p ROWS k]`: the k newest of each value of p, of which null is one."""

    columns: tuple[str, ...]
    count: int
    is_half_open = False

    def rows(self, entered: Sequence[Arrival], instant: int, key: Key) -> list[Arrival]:
        parts = parted(entered, self.columns, key).values()
        return [row for part in parts for row in Last(self.count).rows(part, instant, key)]


@dataclass(frozen=True, slots=True)
class Landmark:
    """`[LANDMARK]`: everything; with RESET what came since the last multiple of the interval. Also no window."""

    reset: int | None = None
    is_half_open = False

    def rows(self, entered: Sequence[Arrival], instant: int, key: Key) -> list[Arrival]:
        del key
        if self.reset is None:
            return list(entered)
        return [r for r in entered if r.time // self.reset == instant // self.reset]


@dataclass(frozen=True, slots=True)
class Hop:
    """`TUMBLE` and `HOP`: the window that ends at the instant, without its end."""

    step: int
    length: int
    is_half_open = True

    def rows(self, entered: Sequence[Arrival], instant: int, key: Key) -> list[Arrival]:
        del key
        return [r for r in entered if instant - self.length <= r.time < instant]


@dataclass(frozen=True, slots=True)
class Session:
    """`SESSION`: the rows of sessions that end at the instant, one of each value of the columns at most.

    Neighbours are less than the gap apart.
    """

    gap: int
    columns: tuple[str, ...] = ()
    is_half_open = True

    def rows(self, entered: Sequence[Arrival], instant: int, key: Key) -> list[Arrival]:
        parts = parted(entered, self.columns, key).values()
        return [row for part in parts for row in self._of_one(part, instant)]

    def _of_one(self, entered: Sequence[Arrival], instant: int) -> list[Arrival]:
        found: list[Arrival] = []
        end = instant
        for row in sorted(entered, key=newest_first):
            is_of_it = end - row.time < self.gap if found else end - row.time == self.gap
            if not is_of_it:
                break
            found.append(row)
            end = row.time
        return found


# Queries


@dataclass(frozen=True, slots=True)
class Source:
    """A window behind a stream in FROM."""

    flow: str
    window: Window


@dataclass(frozen=True, slots=True)
class Instant:
    """`time` is τ; due since one event, answered at that or a later one."""

    time: int
    due: int
    answered: int


@dataclass(frozen=True, slots=True)
class Standing:
    """A query as far as time is concerned. A pause that lasts has no end."""

    sources: tuple[Source, ...]
    slide: Slide
    created: int
    pauses: tuple[tuple[int, int | None], ...] = ()

    @property
    def flows(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source.flow for source in self.sources))

    def answered(self, due: int) -> int | None:
        """When an instant that is due at an event is answered; None if the query is still paused."""
        for start, end in self.pauses:
            if start <= due and (end is None or due < end):
                return end
        return due


class Seen:
    """What a query has seen of its streams."""

    def __init__(self, history: History, query: Standing) -> None:
        self.history = history
        self.query = query
        self.rows = {name: self._rows(history.flows[name]) for name in query.flows}
        everything = [row for rows in self.rows.values() for row in rows]
        self._first = min(everything, key=lambda r: r.event, default=None)
        self.mark_at_creation = self.watermark(query.created)

    def _rows(self, flow: Flow) -> list[Arrival]:
        """Of a stream the rows after creation; of a streaming table also those that it held."""
        created = self.query.created
        held = flow.is_kept
        return [r for r in flow.arrivals if r.event > created or (held and flow.is_there(r.number, created))]

    def watermark(self, event: int) -> int | None:
        """The least watermark of all streams; None as long as one has none."""
        marks = [self.history.flows[name].watermark_at(event) for name in self.query.flows]
        known = [m for m in marks if m is not None]
        return min(known) if len(known) == len(marks) else None

    def first_time(self, event: int) -> int | None:
        """The earliest of the first rows of all streams."""
        firsts = [rows[0].time for rows in self.rows.values() if rows and rows[0].event <= event]
        return min(firsts, default=None)

    def is_late(self, row: Arrival) -> bool:
        """Late rows; the very first one is on time even if ADVANCE has passed it since creation."""
        if row is self._first and (self.mark_at_creation is None or row.time >= self.mark_at_creation):
            return False
        return row.is_late

    def enters(self, row: Arrival) -> int:
        """The time from which on a row is in windows."""
        if not self.is_late(row):
            return row.time
        assert row.met is not None
        return row.met

    def accepted(self, event: int) -> list[Arrival]:
        """The rows on time that had come by then, of all streams."""
        return [r for rows in self.rows.values() for r in rows if r.event <= event and not self.is_late(r)]


# Slides: which instants become due


class Slide(Protocol):
    """Which instants an event makes due, given the last one before."""

    @property
    def is_by_arrival(self) -> bool:
        """Whether windows hold what had come by the event that made the instant due, whatever the watermark."""

    def due(self, seen: Seen, event: int, last: int | None) -> list[int]: ...


def regular(first: int, step: int, last: int | None, end: int) -> list[int]:
    """From the first, or the one after the last, up to and without the end."""
    return list(range(first if last is None else last + step, end, step))


def first_multiple(step: int, least: int) -> int:
    """The first multiple that is not below."""
    return -(-least // step) * step


@dataclass(frozen=True, slots=True)
class Every:
    """`SAMPLE INTERVAL s`: multiples of s from the first row on, past the mark at creation; due when W > τ."""

    step: int
    is_by_arrival = False

    def due(self, seen: Seen, event: int, last: int | None) -> list[int]:
        mark, first = seen.watermark(event), seen.first_time(event)
        if mark is None or first is None:
            return []
        least = first if seen.mark_at_creation is None else max(first, seen.mark_at_creation + 1)
        return regular(first_multiple(self.step, least), self.step, last, mark)


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of `TUMBLE` and `HOP` windows past the first row and the watermark at creation; due when W ≥ τ."""

    step: int
    length: int
    is_by_arrival = False

    def due(self, seen: Seen, event: int, last: int | None) -> list[int]:
        mark, first = seen.watermark(event), seen.first_time(event)
        if mark is None or first is None:
            return []
        past = first if seen.mark_at_creation is None else max(first, seen.mark_at_creation)
        end = first_multiple(self.step, past + 1 - self.length) + self.length
        return regular(end, self.step, last, mark + 1)


@dataclass(frozen=True, slots=True)
class Realtime:
    """`SAMPLE REALTIME`: every time of a row that was accepted; due when W > τ."""

    is_by_arrival = False

    def due(self, seen: Seen, event: int, last: int | None) -> list[int]:
        mark = seen.watermark(event)
        if mark is None:
            return []
        times = {time for name in seen.rows for time in self._times(seen, name, event)}
        return sorted(t for t in times if t < mark and (last is None or t > last))

    def _times(self, seen: Seen, name: str, event: int) -> list[int]:
        before = seen.history.flows[name].watermark_at(seen.query.created)
        rows = [r for r in seen.rows[name] if r.event <= event and not seen.is_late(r)]
        return [r.time for r in rows if before is None or r.time > before]


@dataclass(frozen=True, slots=True)
class AfterRows:
    """`SAMPLE ROWS n`: after every n accepted rows of the one stream, at the largest time of them all so far."""

    count: int
    is_by_arrival = True

    def due(self, seen: Seen, event: int, last: int | None) -> list[int]:
        del last
        counted = [r for r in seen.accepted(event) if r.event > seen.query.created]
        is_new = any(r.event == event for r in counted)
        return [max(r.time for r in counted)] if is_new and len(counted) % self.count == 0 else []


@dataclass(frozen=True, slots=True)
class SessionEnds:
    """The ends of sessions; due when W ≥ τ."""

    gap: int
    columns: tuple[str, ...] = ()
    is_by_arrival = False

    def due(self, seen: Seen, event: int, last: int | None) -> list[int]:
        mark = seen.watermark(event)
        if mark is None:
            return []
        [name] = seen.rows
        rows = [r for r in seen.rows[name] if r.event <= event]
        least = max((m for m in (last, seen.mark_at_creation) if m is not None), default=None)
        ends = {r.time + self.gap for r in rows}
        due = sorted(e for e in ends if e <= mark and (least is None or e > least))
        session, key = Session(self.gap, self.columns), keys_at(seen.history.flows[name], event)
        return [e for e in due if session.rows([r for r in rows if seen.enters(r) < e], e, key)]


def keys_at(flow: Flow, event: int) -> Key:
    """Values of rows as they are after an event."""

    def key(row: Arrival, columns: Sequence[str]) -> Hashable:
        values = flow.versions[flow.version(row.number, event)]
        return tuple(values[c] for c in columns)

    return key


# What follows


def instants(seen: Seen) -> list[Instant]:
    """All instants answered so far, in order."""
    query = seen.query
    found: list[Instant] = []
    for event in range(query.created, seen.history.now + 1):
        for time in query.slide.due(seen, event, found[-1].time if found else None):
            answered = query.answered(event)
            if answered is None:
                return found
            found.append(Instant(time, event, answered))
    return found


def content(seen: Seen, source: Source, instant: Instant) -> list[Arrival]:
    """The rows in a source's window at an instant, in the order they came."""
    flow = seen.history.flows[source.flow]
    key = keys_at(flow, instant.answered)

    def has_entered(row: Arrival) -> bool:
        if seen.query.slide.is_by_arrival:
            return row.event <= instant.due
        enters = seen.enters(row)
        return enters < instant.time if source.window.is_half_open else enters <= instant.time

    def is_kept(row: Arrival) -> bool:
        is_recent = flow.period is None or instant.time - flow.period <= row.time
        return is_recent and flow.is_there(row.number, instant.answered)

    entered = [r for r in seen.rows[source.flow] if is_kept(r) and has_entered(r)]
    return sorted(source.window.rows(entered, instant.time, key), key=lambda r: r.number)
