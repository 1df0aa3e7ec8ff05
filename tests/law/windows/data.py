"""Random streams and streaming tables, their rows, and how a feed writes time.

A stream has `n`, the number of a row in the order of arrival, and `ts`, its time; the rest are the columns of
`tests.law.data`: few different keys, nulls, doubles that add up exactly. A feed's time is either an integer or a
TIMESTAMP in whole seconds; everywhere in these tests it is a number, a tick, and a tick of TIMESTAMP is a
second since 1970, so that multiples of an interval are the same for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.law.data import SEQUENCE, TIME, Column, Relation, a_schema
from tests.law.pieces import Type
from tests.law.windows.model import Flow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.law.windows.model import Values

START_OF_TIMESTAMPS = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp())
FIRST_TICKS = (0, 1, 40, -23)
"""Integer time begins at one of these: rounding to multiples has to be right below zero, too."""
WINDOW_COLUMNS = ("window_start", "window_end")


@dataclass(frozen=True, slots=True)
class Ticks:
    """How time is written."""

    is_number: bool

    @property
    def type(self) -> Type:
        return Type.LONG if self.is_number else Type.TIME

    def value(self, tick: int) -> int | datetime:
        return tick if self.is_number else datetime.fromtimestamp(tick, UTC)

    def tick(self, value: Any) -> int:
        """The way back; raises where a value is no whole tick or not of this kind of time."""
        if self.is_number:
            assert isinstance(value, int), f"{value!r} is no integer time"
            return value
        assert isinstance(value, datetime), f"{value!r} is no timestamp"
        assert value.tzinfo is not None, f"{value!r} has no time zone"
        assert value.microsecond == 0, f"{value!r} is no whole second"
        return int(value.timestamp())

    def interval(self, length: int) -> str:
        return f"INTERVAL {length}" if self.is_number else f"INTERVAL '{length}' SECOND"

    def literal(self, tick: int) -> str:
        return str(tick) if self.is_number else f"TIMESTAMP '{self.value(tick):%Y-%m-%d %H:%M:%S}'"


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream, or a streaming table if it `is_kept`; `has_late` says whether late rows come."""

    relation: Relation
    ticks: Ticks
    delay: int = 0
    is_kept: bool = False
    period: int | None = None
    has_late: bool = True

    @property
    def name(self) -> str:
        return self.relation.name

    @property
    def create(self) -> str:
        kind = "STREAMING TABLE" if self.is_kept else "STREAM"
        text = f"CREATE {kind} {self.name} ({self.relation.definition}) TIMESTAMP BY {TIME}"
        if self.delay:
            text += f" WATERMARK {self.ticks.interval(self.delay)}"
        if not self.is_kept:
            return text
        return f"{text} RANGE {'UNBOUNDED' if self.period is None else self.ticks.interval(self.period)}"

    @property
    def flow(self) -> Flow:
        """Its beginning in the model."""
        return Flow(self.name, self.delay, self.is_kept, self.period)

    def table(self, rows: Sequence[Values]) -> pa.Table:
        """Rows as Arrow."""
        columns = {c.name: [row[c.name] for row in rows] for c in self.relation.columns}
        return pa.table(columns, self.relation.schema)

    def rows(self, rng: Random, times: Sequence[int], first: int) -> list[Values]:
        """Random rows at these times, numbered from `first` on."""
        return [self._row(rng, time, first + i) for i, time in enumerate(times)]

    def _row(self, rng: Random, time: int, number: int) -> Values:
        given = {SEQUENCE: number, TIME: self.ticks.value(time)}
        return {c.name: given[c.name] if c.name in given else c.value(rng) for c in self.relation.columns}

    def under(self, name: str, *, has_window: bool) -> Relation:
        """What a query sees of it under another name; TUMBLE, HOP and SESSION add two columns."""
        added = [Column(c, self.ticks.type) for c in WINDOW_COLUMNS] if has_window else []
        return Relation(name, (*self.relation.columns, *added), is_stream=True)


def a_stream(rng: Random, name: str, ticks: Ticks, *, is_kept: bool = False, has_late: bool = True) -> Stream:
    own = [Column(SEQUENCE, Type.LONG, is_unique=True), Column(TIME, ticks.type)]
    relation = Relation(name, (*own, *a_schema(rng)), is_stream=True)
    delay = rng.choice([0, 0, 2, 5])
    period = rng.choice([None, 15, 40]) if is_kept else None
    return Stream(relation, ticks, delay, is_kept, period, has_late)


def some_streams(rng: Random) -> tuple[Stream, ...]:
    """Two streams and a streaming table; no row of the first comes late, nor of every second streaming table."""
    ticks = Ticks(rng.random() < 0.7)
    return (
        a_stream(rng, "s0", ticks, has_late=False),
        a_stream(rng, "s1", ticks),
        a_stream(rng, "h0", ticks, is_kept=True, has_late=rng.random() < 0.5),
    )


def first_tick(rng: Random, ticks: Ticks) -> int:
    return rng.choice(FIRST_TICKS) if ticks.is_number else START_OF_TIMESTAMPS + rng.choice([0, 3])
