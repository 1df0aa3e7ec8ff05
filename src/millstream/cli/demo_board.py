"""The board of the demonstration: windows over departures joined with the weather, answers as they fire.

Two continuous queries stand on the stream. One answers every hour of stream time with the last three hours by
airport; the other cuts the stream into hours. On a terminal the board changes as the days go by; in a pipe the
last one is printed. At the end the delay of every hour is drawn as a picture.
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
    from pathlib import Path

    import pyarrow as pa
    from rich.console import RenderableType

    from millstream.cli.demo_stage import Stage
    from millstream.database import Database, Delivery

STREAM = "departures"
BATCH_HOURS = 3
LONGEST_DELAY = 60.0
BAR = 24
AIRPORTS = 3

LAST_HOURS = """
CREATE CONTINUOUS QUERY board AS
SELECT d.origin, count(*) AS flights, avg(d.delay) AS delay,
       max(w.wind_speed) AS wind
FROM departures [INTERVAL '3' HOUR] d
JOIN weather w
  ON w.origin = d.origin AND w.hour = date_trunc('hour', d.scheduled)
GROUP BY d.origin
SAMPLE INTERVAL '1' HOUR"""
BY_HOUR = """
CREATE CONTINUOUS QUERY by_hour AS
SELECT window_start, count(*) AS flights, avg(delay) AS delay
FROM TUMBLE(departures, scheduled, INTERVAL '1' HOUR)
GROUP BY window_start, window_end"""


@dataclass
class Board:
    """What the queries said last, and how long they took."""

    rows: int = 0
    answers: int = 0
    seconds: float = 0.0
    behind: int = 0
    instant: datetime | None = None
    airports: list[dict[str, Any]] = field(default_factory=list)
    hours: list[tuple[datetime, int, float]] = field(default_factory=list)
    _seen: dict[str, int] = field(default_factory=dict)

    def look(self, db: Database, clock: Clock) -> Board:
        """Take what has been delivered since the last look."""
        for delivery in self._new(db, "board"):
            self.instant = delivery.instant  # type: ignore[assignment]
            self.airports = delivery.to_arrow().to_pylist() or self.airports
        for delivery in self._new(db, "by_hour"):
            self.hours += delivery.fetchall()
        self.behind = max(row[4] for row in db.sql("SHOW QUERIES"))
        self.seconds += clock.seconds
        return self

    def _new(self, db: Database, query: str) -> list[Delivery]:
        found = db.results(query, since=self._seen.get(query, 0))
        self._seen[query] = found[-1].sequence if found else self._seen.get(query, 0)
        self.answers += len(found)
        return found

    @property
    def each(self) -> float:
        """Milliseconds of an answer, on average."""
        return 1_000 * self.seconds / max(1, self.answers)


def create(stage: Stage, db: Database) -> None:
    """Make the queries, as the reader could."""
    stage.sql(f"{LAST_HOURS};\n{BY_HOUR}")
    with stage.busy("Spark is looking at them"):
        for statement in (LAST_HOURS, BY_HOUR):
            db.sql(statement)


def play(stage: Stage, db: Database, departures: pa.Table) -> Board:
    """Insert the departures batch by batch and show the answers as they fire."""
    board = Board()
    with stage.moving(_picture(board)) as show:
        for _, batch in cut(departures, "hour", BATCH_HOURS):
            board.rows += db.insert(STREAM, batch)
            clock = Clock()
            db.drain()
            show(_picture(board.look(db, clock)))
    return board


def draw(board: Board, path: Path) -> bool:
    """Draw the delay of every hour; False where the library for it is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import dates, pyplot

    hours = sorted(board.hours)
    figure, axes = pyplot.subplots(figsize=(11, 3.6), layout="constrained")
    places = [float(dates.date2num(h)) for h, _, _ in hours]  # type: ignore[no-untyped-call]
    axes.bar(places, [d for _, _, d in hours], width=1 / 26, color="#2563a8")
    axes.axhline(0, color="#333333", linewidth=0.8)
    axes.set_ylabel("mean delay (minutes)")
    axes.set_title("New York departures: delay by scheduled hour", loc="left")
    axes.xaxis.set_major_locator(dates.DayLocator())  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(dates.DateFormatter("%a %d %b"))  # type: ignore[no-untyped-call]
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True


def _picture(board: Board) -> RenderableType:
    found = sorted(board.airports, key=lambda row: row["origin"])
    rows: list[tuple[RenderableType, ...]] = [
        (
            r["origin"],
            f"{r['flights']:,}",
            _wind(r["wind"]),
            f"{r['delay']:.1f}",
            bar(r["delay"], LONGEST_DELAY, BAR),
        )
        for r in found
    ]
    # A board that has not got its rows yet is as high as it will be, so that nothing jumps.
    rows += [("", "", "", "", "")] * (AIRPORTS - len(rows))
    state = f"{board.instant:%A %H:%M}" if board.instant else "no answer yet"
    return Group(
        grid(("airport", "flights", "wind", "min", "mean delay, last three hours"), rows, (1, 2, 3)),
        Text(),
        Text(f"{state} · {board.rows:,} departures · {board.answers} answers of {board.each:.0f} ms"),
        Text(f"{board.behind:,} rows behind", style="dim"),
    )


def _wind(miles: float | None) -> str:
    return "" if miles is None else f"{miles:.0f} mph"
