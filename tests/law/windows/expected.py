"""What continuous queries ought to deliver: the plain query over the rows in the windows, asked of DuckDB.

A feed is replayed in the model, without a database. For every instant the rows of each window become a table of
DuckDB's, in memory, beside the tables as they were when the instant was answered; the plain query over them is
the answer. What EMIT makes of the answers follows here. Equal windows are asked for once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from tests.law.compare import Answer
from tests.law.grammar import Change
from tests.law.windows.data import WINDOW_COLUMNS
from tests.law.windows.grammar import FUNCTIONS, Emit
from tests.law.windows.model import History, Instant, Seen, Session, Standing, content, instants, keys_at, parted
from tests.law.windows.steps import Advance, Create, Insert, Mend, Pause, Resume

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.law.compare import Row
    from tests.law.windows.grammar import Query, Slot
    from tests.law.windows.model import Arrival, Flow
    from tests.law.windows.steps import Feed, Step


@dataclass(frozen=True, slots=True)
class Delivery:
    """An answer. `runs` are the lengths of the stretches whose order is promised; within one any order will do."""

    instant: int
    rows: list[Row]
    runs: tuple[int, ...]


@dataclass(slots=True)
class Replay:
    """A feed in the model."""

    feed: Feed
    history: History = field(init=False)
    contents: dict[str, list[pa.Table]] = field(init=False)
    _created: dict[int, int] = field(default_factory=dict)
    _pauses: dict[int, list[tuple[int, int | None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.history = History([s.flow for s in self.feed.streams])
        self.contents = {name: [rows] for name, rows in self.feed.contents.items()}
        for step in self.feed.steps:
            self._do(step)

    def _do(self, step: Step) -> None:
        history = self.history
        match step:
            case Create(queries):
                self._created.update(dict.fromkeys(queries, history.happened()))
            case Insert(stream, times, rows):
                history.insert(stream, times, rows)
            case Advance(stream, to):
                history.advance(stream, to)
            case Change(table, rows):
                history.change(table)
                self.contents[table].append(rows)
            case Mend(stream, numbers, None):
                history.delete(stream, numbers)
            case Mend(stream, numbers, changed):
                history.update(stream, numbers, changed or {})
            case Pause(query):
                self._pauses.setdefault(query, []).append((history.happened(), None))
            case Resume(query):
                start, _ = self._pauses[query].pop()
                self._pauses[query].append((start, history.happened()))

    def standing(self, query: Query) -> Standing:
        sources = tuple(slot.source for slot in query.slots)
        pauses = tuple(self._pauses.get(query.number, ()))
        return Standing(sources, query.slide, self._created[query.number], pauses)


class Oracle:
    """Answers of the queries of a feed; `known` are those that another oracle of the feed has been given."""

    def __init__(self, feed: Feed, known: Oracle | None = None) -> None:
        self.replay = Replay(feed)
        self._feed = feed
        self._connection: Any = duckdb.connect(":memory:")
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET threads = 1")
        self._connection.execute("PRAGMA disable_optimizer")
        self._versions: dict[str, pa.Table] = {}
        self._shown: dict[str, int] = {}
        self._answers: dict[Any, list[Row]] = {} if known is None else known._answers
        self._deliveries: dict[int, list[Delivery]] = {}

    def close(self) -> None:
        self._connection.close()

    def deliveries(self, query: Query) -> list[Delivery]:
        """Everything that a query has to deliver in the feed, in order."""
        if query.number not in self._deliveries:
            self._deliveries[query.number] = self._delivered(query)
        return self._deliveries[query.number]

    def _delivered(self, query: Query) -> list[Delivery]:
        seen = Seen(self.replay.history, self.replay.standing(query))
        if query.is_on_commit:
            return self._on_commit(query, seen)
        answers = [(i, self._answer(query, seen, i)) for i in instants(seen)]
        if query.is_monotonic:
            return list(self._derivations(query, answers))
        return list(self._emitted(query, answers))

    # Answers

    def _answer(self, query: Query, seen: Seen, instant: Instant) -> list[Row]:
        windows = {slot.name: self._window(slot, seen, instant) for slot in query.slots}
        return self._asked(query.reference, windows, self._table_versions(instant))

    def _table_versions(self, instant: Instant) -> dict[str, int]:
        past = self.replay.history
        return {name: past.table_version(name, instant.answered) for name in self.replay.contents}

    def fullest(self, query: Query) -> tuple[list[Row], dict[str, pa.Table]]:
        """The reference's rows, `id…` columns included, where the windows hold most, and all that it read."""
        seen = Seen(self.replay.history, self.replay.standing(query))

        def rows_held(instant: Instant) -> int:
            return sum(len(content(seen, slot.source, instant)) for slot in query.slots)

        instant = max(instants(seen), key=rows_held)
        read = {slot.name: self._rows(*self._window(slot, seen, instant)) for slot in query.slots}
        for name, version in self._table_versions(instant).items():
            read[name] = self.replay.contents[name][version]
        return self._answer(query, seen, instant), read

    def _window(self, slot: Slot, seen: Seen, instant: Instant) -> tuple[Any, ...]:
        """What a window holds: versions of rows, and its ends."""
        rows = content(seen, slot.source, instant)
        flow = self.replay.history.flows[slot.stream.name]
        places = tuple(flow.version(r.number, instant.answered) for r in rows)
        ends = window_ends(slot, rows, instant, flow) if slot.label in FUNCTIONS else ()
        return (slot.stream.name, places, ends)

    def _asked(self, text: str, windows: dict[str, Any], tables: dict[str, int]) -> list[Row]:
        """The reference's answer over what windows hold and the versions of tables."""
        key = (text, *windows.items(), *tables.items())
        if key not in self._answers:
            for name, held in windows.items():
                self._connection.register(name, self._rows(*held))
            for name, version in tables.items():
                self._show(name, version)
            self._answers[key] = frozen(Answer.of(self._connection.execute(text).to_arrow_table()).rows)
        return self._answers[key]

    def _show(self, name: str, version: int) -> None:
        """A table as of a version, if it is not that already."""
        if self._shown.get(name) != version:
            self._connection.register(name, self.replay.contents[name][version])
            self._shown[name] = version

    def _rows(self, stream: str, places: Sequence[int], ends: Sequence[Sequence[int]]) -> pa.Table:
        if stream not in self._versions:
            versions = self.replay.history.flows[stream].versions
            self._versions[stream] = self._feed.stream(stream).table(versions)
        found = self._versions[stream].take(pa.array(places, pa.int64()))
        ticks = self._feed.stream(stream).ticks
        type_ = found.schema.field("ts").type
        for name, own in zip(WINDOW_COLUMNS, ends, strict=False):
            found = found.append_column(name, pa.array([ticks.value(end) for end in own], type_))
        return found

    # What is emitted

    def _emitted(self, query: Query, answers: Sequence[tuple[Instant, list[Row]]]) -> Iterable[Delivery]:
        last: list[Row] = []
        width = len(query.outs)
        for instant, answer in answers:
            now = self._in_order(query, answer) if query.emit is Emit.ALL else answer
            rows = [row[:width] for row in now]
            if query.emit is Emit.ALL:
                yield Delivery(instant.time, rows, self._runs(query, now))
            elif query.emit is Emit.NEW:
                yield in_any_order(instant.time, less(rows, last))
            else:
                gone = [("-", *row) for row in less(last, rows)]
                yield in_any_order(instant.time, [("+", *row) for row in less(rows, last)] + gone)
            last = rows

    def _in_order(self, query: Query, answer: list[Row]) -> list[Row]:
        """Selections in the order of arrival, joins of streams by their largest time."""
        return sorted(answer, key=lambda row: self._rank(query, row)) if query.identity else answer

    def _rank(self, query: Query, row: Row) -> int:
        ids = row[len(query.outs) :]
        if len(ids) == 1:
            return int(ids[0])
        names = {slot.name: slot.stream.name for slot in query.slots}
        flows = self.replay.history.flows
        pairs = [(names[r], n) for r, n in zip(query.identity, ids, strict=True) if r in names]
        return max(flows[name].arrivals[n].time for name, n in pairs) if len(pairs) > 1 else 0

    def _runs(self, query: Query, answer: list[Row]) -> tuple[int, ...]:
        if query.is_ordered:
            return (1,) * len(answer)
        if not query.identity:
            return (len(answer),)
        return tuple(len(list(run)) for _, run in groupby(answer, key=lambda row: self._rank(query, row)))

    def _derivations(self, query: Query, answers: Sequence[tuple[Instant, list[Row]]]) -> Iterable[Delivery]:
        """Every derivation at the first instant that has it; instants without a new one deliver nothing."""
        width = len(query.outs)
        known: set[Row] = set()
        for instant, answer in answers:
            new = [row for row in answer if row[width:] not in known]
            known.update(row[width:] for row in new)
            if new:
                yield in_any_order(instant.time, [row[:width] for row in new])

    def _on_commit(self, query: Query, seen: Seen) -> list[Delivery]:
        """Every row that is selected, in the order of arrival; the instant is its own time.

        Tables are as they were when the row was taken in.
        """
        [slot], past = query.slots, self.replay.history
        flow, width = past.flows[slot.stream.name], len(query.outs)
        alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for row in seen.rows[slot.stream.name]:
            answered = seen.query.answered(row.event)
            if answered is not None:
                versions = tuple((name, past.table_version(name, answered)) for name in self.replay.contents)
                alike.setdefault(versions, []).append(flow.version(row.number, row.event))
        found: list[Row] = []
        for versions, places in alike.items():
            windows = {slot.name: (slot.stream.name, tuple(places), ())}
            found += self._asked(query.reference, windows, dict(versions))
        number = width + query.identity.index(slot.name)
        ordered = sorted(found, key=lambda row: int(row[number]))
        return [Delivery(flow.arrivals[row[number]].time, [row[:width]], (1,)) for row in ordered]


def window_ends(
    slot: Slot, rows: Sequence[Arrival], instant: Instant, flow: Flow
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where the window of each row begins, and where it ends."""
    ends = (instant.time,) * len(rows)
    if not isinstance(slot.window, Session):
        return tuple(end - slot.window.length for end in ends), ends  # type: ignore[attr-defined]
    parts = parted(rows, slot.window.columns, keys_at(flow, instant.answered)).values()
    starts = {row.number: min(r.time for r in part) for part in parts for row in part}
    return tuple(starts[row.number] for row in rows), ends


def in_any_order(instant: int, rows: list[Row]) -> Delivery:
    return Delivery(instant, rows, (len(rows),))


def less(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """The rows that are more often in one than in the other, as often as they are more."""
    left = Counter(others)
    found: list[Row] = []
    for row in rows:
        if left[row]:
            left[row] -= 1
        else:
            found.append(row)
    return found


def frozen(rows: Iterable[Row]) -> list[Row]:
    """Rows that can be counted: lists as tuples."""
    return [tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in rows]
