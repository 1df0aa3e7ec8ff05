"""Live views of the demonstration: delays by airline and by airport, read while departures stream in.

The views stand on the stream alone; the airlines' names come from a table as it is when they are read. On a
terminal the answers change as the week goes by; in a pipe the last ones are printed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from millstream.cli.demo_replay import cut
from millstream.cli.demo_stage import Clock, bar, grid

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa
    from rich.console import RenderableType

    from millstream.cli.demo_stage import Stage
    from millstream.database import Database

STREAM = "departures"
BATCH_HOURS = 3
MOST_AIRLINES = 6
FEWEST_FLIGHTS = 20
LONGEST_DELAY = 40.0
BAR = 22

BY_AIRLINE = """
CREATE CONTINUOUS VIEW airline_delays AS
SELECT l.name, d.flights, d.delay
FROM (SELECT carrier, count(*) AS flights, avg(delay) AS delay
      FROM departures GROUP BY carrier) d
JOIN airlines l ON l.carrier = d.carrier"""
BY_AIRPORT = """
CREATE CONTINUOUS VIEW airport_delays AS
SELECT origin, count(*) AS flights, avg(delay) AS delay,
       count_if(delay > 60) AS late
FROM departures GROUP BY origin"""


@dataclass
class Live:
    """What the views said last, and how long they took to say it."""

    until: datetime | None = None
    rows: int = 0
    reads: int = 0
    seconds: float = 0.0
    airlines: list[dict[str, Any]] = field(default_factory=list)
    airports: list[dict[str, Any]] = field(default_factory=list)

    def look(self, db: Database) -> Live:
        """Read both views; what has come since is in the answers."""
        clock = Clock()
        self.airlines = _rows(db, "airline_delays")
        self.airports = _rows(db, "airport_delays")
        self.seconds += clock.seconds
        self.reads += 2
        return self

    @property
    def each(self) -> float:
        """Milliseconds of a read, on average."""
        return 1000 * self.seconds / max(1, self.reads)


def _rows(db: Database, view: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = db.sql(f"SELECT * FROM {view}").to_arrow().to_pylist()
    return sorted(found, key=lambda row: -row["delay"])


def create(stage: Stage, db: Database) -> None:
    """Make the views, as the reader could."""
    stage.sql(f"{BY_AIRLINE};\n{BY_AIRPORT}")
    with stage.busy("Spark is looking at them"):
        for statement in (BY_AIRLINE, BY_AIRPORT):
            db.sql(statement)


def play(stage: Stage, db: Database, departures: pa.Table) -> Live:
    """Insert the departures batch by batch and read the views after each."""
    live = Live()
    with stage.moving(_picture(live)) as show:
        for _, batch in cut(departures, "hour", BATCH_HOURS):
            live.rows += db.insert(STREAM, batch)
            live.until = batch.column("departed")[-1].as_py()
            show(_picture(live.look(db)))
    return live


def again(db: Database, reads: int = 200) -> float:
    """How many milliseconds a read takes when nothing is new."""
    clock = Clock()
    for _ in range(reads):
        db.sql("SELECT * FROM airport_delays").to_arrow()
    return 1000 * clock.seconds / reads


def _picture(live: Live) -> RenderableType:
    airlines = [r for r in live.airlines if r["flights"] >= FEWEST_FLIGHTS][:MOST_AIRLINES]
    airline: list[tuple[RenderableType, ...]] = [(r["name"], *_told(r)) for r in airlines]
    # A table that has not got its rows yet is as high as it will be, so that nothing jumps.
    airline += [("", "", "", "")] * (MOST_AIRLINES - len(airline))
    airport = [(r["origin"], f"{r['late']:,}", *_told(r)) for r in live.airports]
    state = f"{live.rows:,} departures, up to {live.until:%A %H:%M}" if live.until else "nothing has left yet"
    return Group(
        grid(("airline", "flights", "min", "mean delay"), airline, (1, 2)),
        Text(),
        grid(("airport", "> 1 hour", "flights", "min", "mean delay"), airport, (1, 2, 3)),
        Text(),
        Text(f"{state} · {live.reads} reads of {live.each:.0f} ms"),
    )


def _told(row: dict[str, Any]) -> tuple[str, str, Text]:
    return f"{row['flights']:,}", f"{row['delay']:.1f}", bar(row["delay"], LONGEST_DELAY, BAR)
