"""The replay of a week of departures: batch after batch, as fast as they become durable.

Each batch goes into the stream and into the table in one transaction. Meanwhile a table on the
terminal grows day by day; in a pipe it is printed once, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Group
from rich.text import Text

from millstream.cli.demo_stage import Clock, bar, grid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date, datetime

    from rich.console import RenderableType

    from millstream.cli.demo_stage import Stage
    from millstream.database import Database

STREAM, TABLE = "departures", "flights"
BATCH_MINUTES = 10
LOOKS_A_SECOND = 8
LONGEST_DELAY = 90.0
BAR = 30


@dataclass
class Day:
    """What has been replayed of one day's departures."""

    departures: int = 0
    minutes: int = 0

    @property
    def delay(self) -> float:
        return self.minutes / self.departures if self.departures else 0.0


@dataclass
class Week:
    """How far the replay is: by the day for which planes were scheduled, and the version each day ended with."""

    days: dict[date, Day]
    clock: Clock = field(default_factory=Clock)
    rows: int = 0
    commits: int = 0
    late: int = 0
    watermark: str = ""
    version: int = 0
    versions: dict[date, int] = field(default_factory=dict)
    _looked: float = 0.0

    @classmethod
    def of(cls, departures: pa.Table) -> Week:
        return cls({day: Day() for day in sorted(set(_days(departures).to_pylist()))})

    def note(self, batch: pa.Table) -> None:
        self.rows += batch.num_rows
        self.commits += 1
        for day, delay in zip(_days(batch).to_pylist(), batch.column("delay").to_pylist(), strict=True):
            self.days[day].departures += 1
            self.days[day].minutes += int(delay)

    @property
    def is_stale(self) -> bool:
        """Whether it is time to look at the database again."""
        return self.clock.seconds - self._looked > 1 / LOOKS_A_SECOND

    def looked(self, db: Database) -> Week:
        """Ask the database where it is."""
        _, _, watermark, _, late, *_ = db.sql("SHOW STREAMS").fetchall()[0]
        self.watermark, self.late, self.version = str(watermark), late, version(db)
        self._looked = self.clock.seconds
        return self


def version(db: Database) -> int:
    """The number of the newest snapshot."""
    return max(int(row[0]) for row in db.sql("SHOW SNAPSHOTS"))


def _days(departures: pa.Table) -> pa.ChunkedArray:
    return departures.column("scheduled").cast(pa.date32())


def play(stage: Stage, db: Database, departures: pa.Table) -> Week:
    """Insert the departures batch by batch and show how it goes."""
    week = Week.of(departures)
    with stage.moving(_picture(week)) as show:
        for day, of_day in cut(departures, "day"):
            for _, batch in cut(of_day, "minute", BATCH_MINUTES):
                with db.transaction():
                    db.insert(STREAM, batch)
                    db.insert(TABLE, batch)
                week.note(batch)
                if week.is_stale:
                    show(_picture(week.looked(db)))
            week.versions[day.date()] = version(db)
        week.clock.stop()
        show(_picture(week.looked(db)))
    return week


def cut(departures: pa.Table, unit: str, multiple: int = 1) -> Iterator[tuple[datetime, pa.Table]]:
    """Departures in the order in which they left, in parts that left in the same stretch of time."""
    stretch = pc.floor_temporal(departures.column("departed"), multiple, unit)
    runs = pc.run_end_encode(stretch.combine_chunks())
    first = 0
    for moment, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield moment, departures.slice(first, end - first)
        first = end


def _picture(week: Week) -> RenderableType:
    rows = [(f"{name:%a} {name.day:>2} {name:%B}", *_told(day)) for name, day in week.days.items()]
    table = grid(("scheduled for", "departures", "min", "mean delay"), rows, right=(1, 2))
    rate = week.rows / max(week.clock.seconds, 0.001)
    state = Text.assemble(
        (f"{week.rows:,}", "bold"),
        f" departures durable · {rate:,.0f} a second · {week.commits:,} commits\n",
        f"version {week.version:,} · watermark {week.watermark or 'not yet'} · {week.late:,} late",
    )
    return Group(table, Text(), state)


def _told(day: Day) -> tuple[str, str, Text]:
    if not day.departures:
        return "", "", bar(0, LONGEST_DELAY, BAR)
    return f"{day.departures:,}", f"{day.delay:.1f}", bar(day.delay, LONGEST_DELAY, BAR)
