"""A simulated day of a streaming table with a period of ten minutes: the time it holds and its disk use.

Upkeep runs once a step, as `drain` does it; the clock is moved by hand, so the day takes a minute. What
is held is taken from the catalogue, every segment that has not been deleted, and from the directories.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from _svg import Plot, Series
from harness import Measure, Run, at_most

import millstream
from millstream.clock import ManualClock
from millstream.database import Database
from millstream.storage.lake import CATALOG, DATA, INDEX
from millstream.storage.period import COMPARTMENTS

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
PERIOD = timedelta(minutes=10)
MOST_HELD = PERIOD + PERIOD / COMPARTMENTS
STEP = timedelta(seconds=20)
SECOND = timedelta(seconds=1)
ROWS_A_SECOND = 50
START = datetime(2024, 1, 1, tzinfo=UTC)
READINGS = (
    "CREATE STREAMING TABLE readings (sensor INT, value DOUBLE, ts TIMESTAMP) TIMESTAMP BY ts"
    " RANGE INTERVAL '10' MINUTE"
)
SEGMENTS = "SELECT min(low), max(high), count(*) FROM millstream_segment"
MEBIBYTE = 1024**2


@dataclass(frozen=True, slots=True)
class Held:
    """What the database holds at one moment of the day."""

    at: timedelta
    span: timedelta
    segments: int
    bytes: int


def retention(run: Run) -> Sequence[Measure]:
    """The longest time that is ever held, and how disk use goes on after the first period."""
    steps = max(round(DAY * min(run.scale, 1.0) / STEP), 3 * PERIOD // STEP)
    clock = ManualClock(START)
    with millstream.connect(run.folder / "db", clock=clock, background=False) as db:
        db.sql(READINGS)
        catalog = f"{(db.path / CATALOG).as_uri()}?mode=ro"
        with closing(sqlite3.connect(catalog, uri=True)) as connection:
            held = list(_day(db, clock, connection, steps))
        _check_content(db, steps)
    _plot(run, held)
    return [_span_measure([h for _, h in held], [h for h, _ in held]), _bytes_measure([h for _, h in held])]


def _day(
    db: Database, clock: ManualClock, connection: sqlite3.Connection, steps: int
) -> Iterator[tuple[Held, Held]]:
    """What is held after each step's rows have come, and again when upkeep has seen to them."""
    for step in range(steps):
        clock.advance(STEP)
        db.insert("readings", readings(step))
        before = _held(db.path, connection, (step + 1) * STEP)
        db.drain()
        yield before, _held(db.path, connection, (step + 1) * STEP)


def readings(step: int) -> pa.Table:
    """The rows of one step, some each second."""
    count = ROWS_A_SECOND * (STEP // SECOND)
    random = np.random.default_rng(step)
    first = int((START + step * STEP).timestamp())
    seconds = first + np.arange(count) // ROWS_A_SECOND
    return pa.table(
        {
            "sensor": pa.array(random.integers(0, 1_000, count), pa.int32()),
            "value": random.random(count),
            "ts": pa.array(seconds * 1_000_000).cast(pa.timestamp("us", tz="UTC")),
        }
    )


def _held(path: Path, connection: sqlite3.Connection, at: timedelta) -> Held:
    low, high, segments = connection.execute(SEGMENTS).fetchone()
    return Held(at, timedelta(microseconds=high - low), segments, sum(map(_bytes, (path / DATA, path / INDEX))))


def _bytes(folder: Path) -> int:
    return sum(os.path.getsize(Path(root) / name) for root, _, names in os.walk(folder) for name in names)


def _check_content(db: Database, steps: int) -> None:
    """Exactly the rows of the period are there: from its first second to the newest, both included."""
    found = db.sql("SELECT count(*), min(ts), max(ts) FROM readings").fetchone()
    newest = START + steps * STEP - SECOND
    oldest = max(START, newest - PERIOD)
    expected = (((newest - oldest) // SECOND + 1) * ROWS_A_SECOND, oldest, newest)
    if found != expected:
        raise AssertionError(f"the table gives {found}, and should give {expected}")


def _span_measure(held: Sequence[Held], before: Sequence[Held]) -> Measure:
    longest = max(h.span for h in held)
    notes = {
        "longest_seconds": longest / SECOND,
        "longest_seconds_before_upkeep": max(h.span for h in before) / SECOND,
        "period_seconds": PERIOD / SECOND,
        "compartment_seconds": (MOST_HELD - PERIOD) / SECOND,
        "steps": len(held),
        "most_segments": max(h.segments for h in held),
    }
    name = f"{held[-1].at / HOUR:.3g} hours: longest time held, over period and one compartment"
    return Measure(name, longest / MOST_HELD, "×", at_most(1), {"seconds": [h.span / SECOND for h in held]}, notes)


def _bytes_measure(held: Sequence[Held]) -> Measure:
    """The disk use from the first period on, over what it was when that ended."""
    later = [h.bytes for h in held if h.at >= MOST_HELD]
    notes = {"first_period_bytes": later[0], "most_bytes": max(later), "last_bytes": later[-1]}
    samples = {"bytes": [float(h.bytes) for h in held]}
    return Measure("most disk use over that of the first period", max(later) / later[0], "×", None, samples, notes)


def _plot(run: Run, held: Sequence[tuple[Held, Held]]) -> None:
    if run.plots is None:
        return
    bytes_ = Series("after upkeep", [(h.at / HOUR, h.bytes / MEBIBYTE) for _, h in held])
    title = "Disk use of a table with a period of ten minutes"
    Plot(title, "hours", "MiB", [bytes_]).save(run.plots / "history-retention-disk.svg")
    spans = [
        Series("before upkeep", [(h.at / HOUR, h.span / SECOND) for h, _ in held], dots=True),
        Series("after upkeep", [(h.at / HOUR, h.span / SECOND) for _, h in held], dots=True),
    ]
    Plot("Time held by it", "hours", "seconds", spans, limit=MOST_HELD / SECOND).save(
        run.plots / "history-retention-time.svg"
    )
