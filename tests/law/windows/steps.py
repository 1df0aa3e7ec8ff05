"""Feeds: streams, tables, queries over them, and what happens to them, all from one seed.

A feed is a record: running it, repeating it with other batches and telling what it ought to deliver all consume
the same one. The same seed gives the same feed. Rows come in bursts and one by one, in order, out of order within
the delay, late, at the same time as others and after gaps. What is due is delivered before a table or a stored
row changes and before a query is paused, so that it is known which state answers which instant.

The contract does not say what the first rows of several streams mean to each other. So all streams begin at one
time. On the way, queries of one stream with SAMPLE INTERVAL or SAMPLE ROWS are created anywhere; before others are
created, ADVANCE brings all streams to one time. The first row of every stream afterwards is on time, and no row
on time is before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.law.data import a_table, table_rows
from tests.law.grammar import Change, a_change
from tests.law.pieces import chance
from tests.law.windows.data import Stream, first_tick, some_streams
from tests.law.windows.grammar import QUERIES, Query, some_queries
from tests.law.windows.manners import SPARK_SQL, manner_of
from tests.law.windows.model import AfterRows, Every, History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.law.data import Relation
    from tests.law.windows.model import Values

SETTINGS = {
    "executor": ("kernel", "spark_sql", "auto"),
    "incremental": ("on", "on", "off", "auto"),
    "chunks": ("1", "4", "64", "auto"),
}
LENGTH = 45
"""The number of inserts of a feed, if nothing else is said."""
BATCHES = (0, 1, 1, 2, 3, 5, 8, 13, 25)
MOST_LATE = 12
"""How far behind the watermark a late row is at most, mostly."""


@dataclass(frozen=True, slots=True)
class Create:
    """Queries come into being, in this order."""

    queries: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """Rows for a stream, through `db.insert` or as INSERT … VALUES."""

    stream: str
    times: tuple[int, ...]
    rows: tuple[Values, ...]
    as_sql: bool = False


@dataclass(frozen=True, slots=True)
class Advance:
    """ADVANCE of a stream."""

    stream: str
    to: int


@dataclass(frozen=True, slots=True)
class Mend:
    """Rows of a streaming table are deleted, or set to other values."""

    stream: str
    numbers: tuple[int, ...]
    changed: Values | None = None

    @property
    def statement(self) -> str:
        listed = ", ".join(map(str, self.numbers))
        if self.changed is None:
            return f"DELETE FROM {self.stream} WHERE n IN ({listed})"
        values = ", ".join(f"{column} = {value}" for column, value in self.changed.items())
        return f"UPDATE {self.stream} SET {values} WHERE n IN ({listed})"


@dataclass(frozen=True, slots=True)
class Say:
    """A statement that changes no answer: SET."""

    statement: str


@dataclass(frozen=True, slots=True)
class Pause:
    query: int


@dataclass(frozen=True, slots=True)
class Resume:
    query: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Whatever is due is delivered."""


@dataclass(frozen=True, slots=True)
class Reopen:
    """The database is closed and opened again."""


Step = Create | Insert | Advance | Change | Mend | Say | Pause | Resume | Drain | Reopen


@dataclass(frozen=True, slots=True)
class Feed:
    """Everything that happens in one database."""

    seed: int
    streams: tuple[Stream, ...]
    tables: tuple[Relation, ...]
    contents: dict[str, pa.Table]
    queries: tuple[Query, ...]
    steps: tuple[Step, ...]
    length: int
    """The number of inserts that it was made with."""

    def stream(self, name: str) -> Stream:
        return next(s for s in self.streams if s.name == name)

    def query(self, number: int) -> Query:
        return next(q for q in self.queries if q.number == number)


def a_feed(seed: int, queries: int = QUERIES, length: int = LENGTH) -> Feed:
    """The feed of a seed; `length` is the number of inserts."""
    rng = Random(f"windows of {seed}")
    streams = some_streams(rng)
    tables = (a_table(rng, "t0"), a_table(rng, "t1"))
    contents = {t.name: table_rows(rng, t, 0, rng.choice([5, 9, 14])) for t in tables}
    made = some_queries(Random(f"queries over windows of {seed}"), streams, tables, queries)
    script = Script(Random(f"steps over windows of {seed}"), streams, tables, contents, made)
    script.write(length)
    return Feed(seed, streams, tables, contents, made, tuple(in_manner(seed, script.steps)), length)


def in_manner(seed: int, steps: Sequence[Step]) -> Iterator[Step]:
    """All feeds begin incrementally, in the manner of their seeds; where baskets go to tasks the kernel stays."""
    manner = manner_of(seed)
    yield from (Say(f"SET executor = {manner.executor}"), Say("SET incremental = on"))
    for step in steps:
        if not (manner.has_tasks and step == Say(f"SET executor = {SPARK_SQL}")):
            yield step


@dataclass(slots=True)
class Front:
    """How far a stream is: the latest time, and the time before which no row on time may come."""

    latest: int
    floor: int
    is_fresh: bool = True
    """Whether no row has come since queries were created."""


@dataclass(slots=True)
class Script:
    """Writes the steps of a feed; keeps a history of its own to know what is late."""

    rng: Random
    streams: tuple[Stream, ...]
    tables: tuple[Relation, ...]
    contents: dict[str, pa.Table]
    queries: tuple[Query, ...]
    steps: list[Step] = field(default_factory=list)
    _waiting: list[Query] = field(default_factory=list)
    _living: list[int] = field(default_factory=list)
    _paused: list[int] = field(default_factory=list)
    _fronts: dict[str, Front] = field(default_factory=dict)
    _now: dict[str, pa.Table] = field(default_factory=dict)
    _changes: int = 0
    _history: History = field(init=False)

    def __post_init__(self) -> None:
        start = first_tick(self.rng, self.streams[0].ticks)
        self._history = History([s.flow for s in self.streams])
        self._fronts = {s.name: Front(start - 1, start) for s in self.streams}
        self._now = dict(self.contents)

    def write(self, length: int) -> None:
        """Most queries at first, the others on the way; everything is due at the end."""
        early = [q for q in self.queries if not may_wait(q) or chance(self.rng, 0.7)]
        self._waiting = [q for q in self.queries if q not in early]
        self._create(early)
        for stream in self.streams:
            self._insert(stream, 1)
        for action in self._actions(length):
            action()
        self._close()

    def _actions(self, length: int) -> list[Callable[[], None]]:
        """What happens in between, in random order."""
        often: list[tuple[Callable[[], None], int]] = [
            (self.insert, length),
            (self.advance, length // 8),
            (self.change, 2),
            (self.mend, 2),
            (self.set, 4),
            (self.pause, 1),
            (self.resume, 1),
            (self.drain, 1),
            (self.reopen, 2),
        ]
        actions = [action for action, times in often for _ in range(times)]
        actions = self.rng.sample(actions, len(actions))
        for create in (self.create_anywhere, self.create_anywhere, self.create_level):
            actions.insert(self.rng.randrange(len(actions) * 2 // 3), create)
        return actions

    def _close(self) -> None:
        """A last row for every stream, then nothing older will come."""
        for number in list(self._paused):
            self._resume(number)
        end = self._furthest() + 3
        for stream in self.streams:
            self._fronts[stream.name] = Front(end - 1, end)
            self._insert(stream, 1)
        for stream in self.streams:
            self._advance(stream, end + 12)
        self.steps.append(Drain())

    # Rows

    def insert(self) -> None:
        stream = self.rng.choice(self.streams)
        front = self._fronts[stream.name]
        if not front.is_fresh and chance(self.rng, 0.08):
            front.latest += self.rng.choice([9, 17])
        self._insert(stream, self.rng.choice(BATCHES))

    def _insert(self, stream: Stream, count: int) -> None:
        """So many rows in one batch."""
        first = len(self._history.flows[stream.name].arrivals)
        times = [self._came(stream, self._time(stream)) for _ in range(count)]
        rows = tuple(stream.rows(self.rng, times, first))
        as_sql = 0 < count <= 8 and chance(self.rng, 0.2)
        self.steps.append(Insert(stream.name, tuple(times), rows, as_sql))

    def _came(self, stream: Stream, time: int) -> int:
        self._history.insert(stream.name, [time])
        front = self._fronts[stream.name]
        front.latest = max(front.latest, time)
        return time

    def _furthest(self) -> int:
        """The latest of all times and watermarks."""
        marks = [flow.watermark for flow in self._history.flows.values()]
        return max([*(f.latest for f in self._fronts.values()), *(m for m in marks if m is not None)])

    def _time(self, stream: Stream) -> int:
        """The time of a stream's next row."""
        front, mark = self._fronts[stream.name], self._history.flows[stream.name].watermark
        if front.is_fresh:
            front.is_fresh = False
            front.floor = (front.latest if mark is None else max(front.latest, mark)) + 1
            return front.floor
        assert mark is not None
        if stream.has_late and mark >= front.floor and chance(self.rng, 0.08):
            return mark - self.rng.choice([self.rng.randint(1, MOST_LATE), self.rng.randint(1, 60)])
        if chance(self.rng, 0.25):
            return self.rng.randint(max(mark, front.floor), max(mark, front.floor, front.latest))
        return max(mark, front.latest) + self.rng.choice([0, 0, 0, 0, 1, 1, 1, 2])

    def advance(self) -> None:
        stream = self.rng.choice(self.streams)
        front = self._fronts[stream.name]
        if not front.is_fresh:
            self._advance(stream, front.latest + self.rng.choice([0, 1, 1, 4, 9]))

    def _advance(self, stream: Stream, to: int) -> None:
        mark = self._history.flows[stream.name].watermark
        to = to if mark is None else max(to, mark)
        self._history.advance(stream.name, to)
        self.steps.append(Advance(stream.name, to))

    # Queries

    def create_anywhere(self) -> None:
        """Queries whose start is decided wherever the streams are."""
        ready = [q for q in self._waiting if starts_anywhere(q)]
        self._create(ready[: len(ready) // 2 + 1])

    def create_level(self) -> None:
        """Queries of all kinds, when all streams have come to one time."""
        level = self._furthest() + 1
        for stream in self.streams:
            self._advance(stream, level)
        self._create(self._waiting)

    def _create(self, queries: Sequence[Query]) -> None:
        if not queries:
            return
        self.steps.append(Create(tuple(q.number for q in queries)))
        self._living += [q.number for q in queries]
        self._waiting = [q for q in self._waiting if q not in queries]
        for front in self._fronts.values():
            front.is_fresh = True

    def pause(self) -> None:
        running = [n for n in self._living if n not in self._paused]
        if running:
            self._paused.append(self.rng.choice(running))
            self.steps += [Drain(), Pause(self._paused[-1])]

    def resume(self) -> None:
        if self._paused:
            self._resume(self._paused[0])

    def _resume(self, number: int) -> None:
        self.steps.append(Resume(number))
        self._paused.remove(number)

    # The rest

    def change(self) -> None:
        """The last table has other rows; the others stay."""
        table = self.tables[-1]
        self._changes += 1
        change = a_change(self.rng, table, self._now[table.name], 1000 * self._changes)
        self._now[table.name] = change.content
        self.steps += [Drain(), change]

    def mend(self) -> None:
        """Stored rows that no unanswered instant has as its own time are deleted or changed.

        Where sessions may be asked for none is deleted: whether what is left of one has ended is not decided.
        """
        for number in list(self._paused):
            self._resume(number)
        stream = next(s for s in self.streams if s.is_kept)
        numbers = self._old_rows(stream)[-12:]
        if numbers:
            chosen = tuple(self.rng.sample(numbers, min(len(numbers), self.rng.randint(1, 4))))
            is_deleted = chance(self.rng, 0.5) and stream.has_late
            changed = None if is_deleted else {"mi": self.rng.choice([3, -7, 100])}
            if changed is None:
                self._history.delete(stream.name, chosen)
            self.steps += [Drain(), Mend(stream.name, chosen, changed)]

    def _old_rows(self, stream: Stream) -> list[int]:
        flow = self._history.flows[stream.name]
        marks = [f.watermark for f in self._history.flows.values()]
        if flow.watermark is None or None in marks:
            return []
        until = min(m for m in marks if m is not None)
        since = until - 30 if flow.period is None else flow.watermark - flow.period
        there = [r for r in flow.arrivals if flow.is_there(r.number, self._history.now)]
        return [r.number for r in there if since <= r.time < until]

    def set(self) -> None:
        name = self.rng.choice(list(SETTINGS))
        self.steps.append(Say(f"SET {name} = {self.rng.choice(SETTINGS[name])}"))

    def drain(self) -> None:
        self.steps.append(Drain())

    def reopen(self) -> None:
        self.steps.append(Reopen())


def may_wait(query: Query) -> bool:
    """Whether a query may be created on the way: one that counts the rows of a streaming table may not."""
    return not (isinstance(query.slide, AfterRows) and any(s.stream.is_kept for s in query.slots))


def starts_anywhere(query: Query) -> bool:
    """Whether its first instant is decided wherever the streams are."""
    is_of_one = len({slot.stream.name for slot in query.slots}) == 1
    return is_of_one and isinstance(query.slide, Every | AfterRows)
