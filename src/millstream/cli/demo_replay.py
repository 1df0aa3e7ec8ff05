"""The replay of a week of departures: batch after batch, as fast as they become durable.

Each batch goes into the stream and into the table in one transaction. Meanwhile a table on the
terminal grows day by day; in a pipe it is printed once, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from millstream.cli.demo_stage import INDENT, Clock, bar, grid

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

    from millstream.cli.demo_stage import Stage
    from millstream.database import Database

STREAM, TABLE = "departures", "flights"
BATCH = "10min"
A_SECOND = 8
LONGEST_DELAY = 90.0


@dataclass
class Day:
    """What has been replayed of one day."""

    label: str
    departures: int = 0
    minutes: float = 0.0

    @property
    def delay(self) -> float:
        return self.minutes / self.departures if self.departures else 0.0


@dataclass
class Week:
    """How far the replay is, and which version ended each day."""

    days: dict[str, Day]
    clock: Clock = field(default_factory=Clock)
    rows: int = 0
    commits: int = 0
    late: int = 0
    watermark: str = ""
    version: int = 0
    versions: dict[str, int] = field(default_factory=dict)

    def note(self, day: str, batch: pd.DataFrame) -> None:
        self.rows += len(batch)
        self.commits += 1
        self.days[day].departures += len(batch)
        self.days[day].minutes += float(batch["delay"].sum())

    def look(self, db: Database) -> None:
        """Ask the database where it is."""
        _, _, watermark, _, late, *_ = db.sql("SHOW STREAMS").fetchall()[0]
        self.watermark, self.late, self.version = str(watermark), late, version(db)


def version(db: Database) -> int:
    """The number of the newest snapshot."""
    return max(row[0] for row in db.sql("SHOW SNAPSHOTS"))


def play(stage: Stage, db: Database, departures: pd.DataFrame) -> Week:
    """Insert the departures batch by batch and show how it goes."""
    left = departures["departed"]
    labels = left.dt.strftime("%a").unique()
    week = Week({name: Day(f"{name} {day.day:>2} March") for name, day in zip(labels, _days(left), strict=True)})
    with Live(_picture(week), console=stage.console, auto_refresh=False) as live:
        drawn = 0.0
        today = ""
        for moment, batch in departures.groupby(left.dt.floor(BATCH)):
            day = moment.strftime("%a")
            if day != today:
                week.versions[today], today = version(db), day
            with db.transaction():
                db.insert(STREAM, batch)
                db.insert(TABLE, batch)
            week.note(day, batch)
            if week.clock.seconds - drawn > 1 / A_SECOND:
                drawn = week.clock.seconds
                week.look(db)
                live.update(_picture(week), refresh=True)
        week.clock.stop()
        week.look(db)
        live.update(_picture(week), refresh=True)
    return week


def _days(left: pd.Series) -> list[pd.Timestamp]:
    return list(left.dt.floor("D").unique())


def _picture(week: Week) -> RenderableType:
    rows = [
        (day.label, f"{day.departures:,}", f"{day.delay:.1f}", bar(day.delay, LONGEST_DELAY, 30))
        for day in week.days.values()
    ]
    table = grid(("left on", "departures", "min", "mean delay"), rows, right=(1, 2))
    rate = week.rows / max(week.clock.seconds, 0.001)
    state = Text(f"{week.rows:,}", style="bold").append(
        f" departures durable · {rate:,.0f} a second · {week.commits:,} commits\n", style="not bold"
    )
    state.append(f"version {week.version:,} · watermark {week.watermark or 'not yet'} · {week.late:,} late")
    return Padding(Group(table, Text(), state), (0, 0, 0, INDENT))
