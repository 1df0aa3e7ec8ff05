"""What the benchmark of scheduled joins runs: windows, streams with a history, arrivals, and who checks results.

An *arrival* brings a batch of rows to each of the two streams, in one transaction; its rows have the time at which
it is due. Rows have a text as key. A history of ten minutes is there before the first arrival, and nobody of it
has met anybody: the histories of the two streams have other keys, and rows that arrive may have any.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

import millstream
from millstream.database import Database
from millstream.queries import scheduled
from millstream.queries.response import Responses

Numbers = NDArray[np.int64]

DISTRIBUTIONS: Mapping[str, tuple[int, ...]] = {
    "uniform": (1, 100, 200, 300, 400, 500, 600),
    "mostly small": (1, 5, 15, 30, 60, 300, 600),
    "mostly large": (1, 60, 300, 420, 510, 570, 600),
    "small-large": (1, 5, 15, 300, 510, 570, 600),
}
"""Table 1 of the paper: windows in seconds."""
SMALL_LARGE = "small-large"
STREAMS = ("a", "b")
LONGEST = 600
SECOND = 1_000_000
START = 1_767_225_600 * SECOND
"""When the history begins."""
STEP = 0.1
"""The times of the history are multiples of this, in seconds."""
PIECES, LEAST_ROWS = 120, 4_096
"""The history comes in so many pieces, about as arrivals do; or in fewer, of so many rows at least."""
AT_ONCE = 4_194_304
"""So many rows of the history are joined in one turn."""
FIELDS = pa.schema([("k", pa.string()), ("v", pa.int32()), ("t", pa.timestamp("us", "UTC"))])


# Rows


@dataclass(frozen=True)
class Batch:
    """Rows of a stream, keys as numbers; `rows` are as they are inserted."""

    keys: NDArray[np.int32]
    values: NDArray[np.int32]
    times: Numbers

    @property
    def rows(self) -> pa.Table:
        digits = pc.utf8_lpad(pc.cast(pa.array(self.keys), pa.string()), 10, "0")
        keys = pc.binary_join_element_wise("key", digits, "-")
        times = pa.array(self.times, pa.timestamp("us", "UTC"))
        return pa.table([keys, pa.array(self.values), times], schema=FIELDS)

    @property
    def numbers(self) -> pa.Table:
        return pa.table({"k": self.keys, "v": self.values, "t": self.times})


@dataclass(frozen=True)
class Load:
    """How many rows a second each stream has, and among how many keys; the same rows for whoever asks."""

    rate: int
    meets: float
    """So many rows of the other stream has a row for a partner in the longest window."""

    @property
    def keys(self) -> int:
        return max(2, round(self.rate * LONGEST / self.meets))

    def history(self, stream: str) -> Iterator[Batch]:
        """Ten minutes, piece by piece; of one stream with odd keys alone, of the other with even ones."""
        odd, rows = STREAMS.index(stream), self.rate * LONGEST
        random, pieces = np.random.default_rng([1, odd]), max(1, min(PIECES, rows // LEAST_ROWS))
        steps = np.linspace(0, LONGEST / STEP, pieces + 1, dtype=np.int64)
        for low, high in pairwise(steps):
            count = rows // pieces
            keys = random.integers(0, self.keys // 2, count, dtype=np.int32) * 2 + odd
            times = START + np.sort(random.integers(low, high, count)) * round(STEP * SECOND)
            yield Batch(keys.astype(np.int32), _values(random, count), times)

    def arriving(self, number: int, at: float, count: int) -> dict[str, Batch]:
        """What an arrival brings, `at` so many seconds after the history."""
        made, due = {}, START + round((LONGEST + at) * SECOND)
        for stream in STREAMS:
            random = np.random.default_rng([2, number, STREAMS.index(stream)])
            keys = random.integers(0, self.keys, count, dtype=np.int32)
            made[stream] = Batch(keys, _values(random, count), np.full(count, due, np.int64))
        return made


def _values(random: np.random.Generator, count: int) -> NDArray[np.int32]:
    return random.integers(0, 1_000, count, dtype=np.int32)


def together(batches: Sequence[Batch]) -> pa.Table:
    return pa.concat_tables([b.numbers for b in batches])


# Arrivals


def bursts(mean: float, number: int, random: np.random.Generator) -> list[int]:
    """Sizes of bursts by Pareto's law with b = 1, as many as have this mean, so many arrivals in all.

    They are drawn until they come to that number: of a law with so long a tail, a few would not show the mean.
    """
    if mean <= 1:
        return [1] * number
    alpha, count = mean / (mean - 1), max(1, round(number / mean))
    while True:
        sizes = np.round((1 - random.random(count)) ** (-1 / alpha)).astype(np.int64)
        if sizes.sum() == number:
            return list(sizes.tolist())


def arrivals(mean: float, number: int, lasting: float, seed: int) -> list[float]:
    """When arrivals are due: bursts at exponential distances, in so many seconds as it is to last.

    However large bursts are, as many rows come in the same time.
    """
    random = np.random.default_rng([3, seed])
    sizes = bursts(mean, number, random)
    gaps = random.exponential(1.0, len(sizes) + 1)
    starts = np.cumsum(gaps)[:-1] / gaps.sum() * lasting
    # One after the other, so that each has a time of its own.
    return [float(start) + i / 1_000 for start, size in zip(starts, sizes, strict=True) for i in range(size)]


# Databases


def asked(window: int) -> str:
    return f"SELECT a.k AS k, a.v AS x, b.v AS y FROM a, b WHERE a.k = b.k WINDOW INTERVAL '{window}' SECOND"


def named(window: int) -> str:
    return f"q{window}"


def create(db: Database, windows: Sequence[int]) -> None:
    for stream in STREAMS:
        db.sql(f"CREATE STREAM {stream} (k STRING, v INT, t TIMESTAMP) TIMESTAMP BY t")
    for window in windows:
        db.sql(f"CREATE CONTINUOUS QUERY {named(window)} AS {asked(window)}")


@contextmanager
def scheduled_from(rows: int) -> Iterator[None]:
    """Joins of so many rows are scheduled; for scales at which none would be large enough."""
    with patch.object(scheduled, "MANY_ROWS", rows):
        yield


def prepare(folder: Path, load: Load) -> None:
    """A database with the windows of all distributions whose queries have seen the history."""
    windows = sorted({w for own in DISTRIBUTIONS.values() for w in own})
    # Nobody waits for the history, so it takes few and large turns.
    with patch.object(scheduled, "MOST_ROWS", AT_ONCE), millstream.connect(folder, background=False) as db:
        create(db, windows)
        db.sql("SET join_policy = lwo")
        for pieces in zip(*(load.history(s) for s in STREAMS), strict=True):
            for stream, piece in zip(STREAMS, pieces, strict=True):
                db.insert(stream, piece.rows)
        db.drain()


@contextmanager
def resumed(prepared: Path, folder: Path, windows: Sequence[int], policy: str) -> Iterator[Database]:
    """A database of its own that goes on where a prepared one is, with some of its queries."""
    shutil.copytree(prepared, folder, copy_function=_linked)
    try:
        with millstream.connect(folder) as db:
            for query in [row[0] for row in db.sql("SHOW QUERIES").fetchall()]:
                if query not in map(named, windows):
                    db.sql(f"DROP CONTINUOUS QUERY {query}")
            db.sql(f"SET join_policy = {policy}")
            _ = db.spark
            yield db
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _linked(source: str, target: str) -> str:
    """Segments never change, so that both databases may have them; the catalogue is copied."""
    if source.endswith(".parquet"):
        os.link(source, target)
        return target
    return str(shutil.copy2(source, target))


# Runs


@dataclass(frozen=True)
class Response:
    """What one query was given, and how long its results took, in seconds."""

    results: int
    average: float
    p95: float
    longest: float


@dataclass(frozen=True)
class Outcome:
    """One run under one policy."""

    responses: Mapping[int, Response]
    """By window."""
    delivered: Mapping[int, int]
    """By window: all results since the history, those while everything warmed up included."""
    buffer_bytes: int
    extra_bytes: int
    units: Sequence[tuple[tuple[tuple[int, int], ...], float]]
    """The slices of each piece of work, in seconds of the stream, and how long it took."""
    behind: float
    """The most that an insert was later than due when it was there."""
    left: float
    """How long it took after the last arrival until everything was delivered."""
    elapsed: float

    @property
    def average(self) -> float:
        """Over the windows, each counting the same."""
        return float(np.mean([r.average for r in self.responses.values()]))

    @property
    def average_of_results(self) -> float:
        number = sum(r.results for r in self.responses.values())
        return sum(r.average * r.results for r in self.responses.values()) / number

    @property
    def utilisation(self) -> float:
        return sum(taken for _, taken in self.units) / self.elapsed

    @property
    def slices(self) -> dict[tuple[int, int], float]:
        """The median time of each slice; a job of several is charged to them by their size."""
        taken: dict[tuple[int, int], list[float]] = {}
        for parts, seconds in self.units:
            size = sum(high - low for low, high in parts)
            for part in set(parts):
                own = parts.count(part) * (part[1] - part[0])
                taken.setdefault(part, []).append(seconds * own / max(1, size))
        return {part: float(np.median(of)) for part, of in sorted(taken.items())}


@contextmanager
def watched(units: list[tuple[tuple[tuple[int, int], ...], float]]) -> Iterator[None]:
    """In here every piece of work of a join is noted."""
    work = scheduled.Scheduled._work

    def timed(self: Any, join: Any, works: Any) -> Any:
        began = time.perf_counter()
        found = work(self, join, works)
        parts = tuple((w.part.low // SECOND, w.part.high // SECOND) for w in works)
        units.append((parts, time.perf_counter() - began))
        return found

    with patch.object(scheduled.Scheduled, "_work", timed):
        yield


@dataclass(frozen=True)
class Feed:
    """Arrivals with their rows; those before `warm` seconds do not count."""

    due: Sequence[float]
    batches: Sequence[Mapping[str, Batch]]
    warm: float

    @staticmethod
    def of(load: Load, due: Sequence[float], count: int, warm: float) -> Feed:
        return Feed(due, [load.arriving(n, at, count) for n, at in enumerate(due)], warm)


def drive(db: Database, feed: Feed, windows: Sequence[int]) -> Outcome:
    """Let everything arrive when it is due, while the database works on its own; wait for the end."""
    units: list[tuple[tuple[tuple[int, int], ...], float]] = []
    made = [{s: b.rows for s, b in batch.items()} for batch in feed.batches]
    pause, behind, is_warm, first = threading.Event(), 0.0, False, 0
    with watched(units):
        started = time.perf_counter()
        for due, batch in zip(feed.due, made, strict=True):
            pause.wait(max(0.0, started + due - time.perf_counter()))
            if not is_warm and due >= feed.warm:
                is_warm, first = True, len(units)
                forget(db)
            _insert(db, batch)
            behind = max(behind, time.perf_counter() - started - due)
        last = time.perf_counter()
        db.drain()
        left = time.perf_counter() - last
    elapsed = time.perf_counter() - started - feed.warm
    shown = db.sql("SHOW JOINS").to_arrow().to_pylist()
    delivered = {w: sum(d.to_arrow().num_rows for d in db.results(named(w))) for w in windows}
    return Outcome(_responses(shown), delivered, max(r["buffer_bytes"] for r in shown),
                   max(r["most_extra_bytes"] for r in shown), units[first:], behind, left, elapsed)  # fmt: skip


def _insert(db: Database, batch: Mapping[str, pa.Table]) -> None:
    with db.transaction():
        for stream, rows in batch.items():
            db.insert(stream, rows)


def forget(db: Database) -> None:
    """Have response times and memory counted from now on."""
    queries = db._engine.queries
    with queries._lock:
        for join in queries.scheduled.joins.values():
            join.responses = {query: Responses() for query in join.responses}
            join.most_extra = 0


def _responses(shown: Sequence[Mapping[str, Any]]) -> dict[int, Response]:
    found = {int(row["query"][1:]): row for row in shown if row["results"]}
    columns = ("results", "average", "p95", "longest")
    return {window: Response(*(row[c] for c in columns)) for window, row in sorted(found.items())}


# What is right


def expected(load: Load, feed: Feed, windows: Sequence[int]) -> dict[int, int]:
    """How many results each query is to have of what arrives, by DuckDB."""
    live = {s: together([b[s] for b in feed.batches]) for s in STREAMS}
    past = {s: together(list(load.history(s))) for s in STREAMS}
    every = pa.concat_tables([past["b"], live["b"]])
    found = [_pairs(live["a"], every, windows), _pairs(past["a"], live["b"], windows)]
    return {w: sum(own[w] for own in found) for w in windows}


def _pairs(a: pa.Table, b: pa.Table, windows: Sequence[int]) -> dict[int, int]:
    counts = ", ".join(f"count(*) FILTER (abs(a.t - b.t) <= {w * SECOND})" for w in windows)
    with duckdb.connect() as connection:
        connection.register("a", a)
        connection.register("b", b)
        row = connection.execute(f"SELECT {counts} FROM a JOIN b USING (k)").fetchone()
    assert row is not None
    return dict(zip(windows, row, strict=True))


def check(what: str, found: Mapping[int, int], expected: Mapping[int, int]) -> None:
    wrong = {w: (found.get(w), n) for w, n in expected.items() if found.get(w) != n}
    if wrong:
        raise AssertionError(f"{what}: by window, found and expected results are {wrong}")
