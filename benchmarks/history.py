"""History of a streaming table: queries by time and key beside inserts, what indices cost, what a period keeps.

queries    time and key queries with and without indices, on 20M and on 80M position reports, in turns
mixed      the same queries at 20, 100 and 200 a minute beside inserts of 100,000 rows a second
inserts    10M rows as fast as they go, into a table with no index and with two, in turns
retention  a simulated day of a table with a period of ten minutes: the time it holds and its disk use
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from _positions import COLUMNS, RANGES, SHAPES, Known, Question, Traffic, ask
from _retention import retention
from _svg import Plot, Series
from harness import Measure, Run, at_least, at_most, main, seconds

import millstream
from millstream.database import Database

VEHICLES = 100_000
LEAST_VEHICLES = 300
BATCH = 1_048_576
INDEXED = ("vid", "seg")
LEAST_RESULT, MOST_RESULT = 10_000, 60_000
KEEP = 6_048_000
"""Ten weeks, as in the Streaming Tables paper."""


def traffic(run: Run) -> Traffic:
    """Fewer vehicles at small scales, so that the rows span the same time."""
    return Traffic(run.scaled(VEHICLES, LEAST_VEHICLES))


def create(db: Database, table: str, indexed: Sequence[str] = INDEXED) -> None:
    db.sql(f"CREATE STREAMING TABLE {table} {COLUMNS} TIMESTAMP BY t RANGE INTERVAL {KEEP}")
    for column in indexed:
        db.sql(f"CREATE INDEX {table}_{column} ON {table} ({column}) USING BTREE")


def fill(db: Database, table: str, of: Traffic, rows: int) -> None:
    """Rows in time order, large batches; returns when the indices are complete."""
    for first in range(0, rows, BATCH):
        db.insert(table, of.reports(first, min(BATCH, rows - first)))
    db.drain()


def known(run: Run, of: Traffic, rows: int) -> Known:
    return Known(of, of.seconds(rows), run.scaled(LEAST_RESULT), run.scaled(MOST_RESULT))


def answer(db: Database, text: str) -> tuple[int, int]:
    """How many rows a query gives, and a sum over them, from the rows in the driver."""
    rows = db.sql(text).to_arrow()
    return rows.num_rows, pc.sum(rows.column("pos")).as_py() or 0


def percentile(samples: Sequence[float], part: float) -> float:
    return float(np.percentile(samples, part))


def percentiles_ms(samples: Sequence[float]) -> dict[str, int]:
    return {f"p{part}": round(1_000 * percentile(samples, part)) for part in (50, 95, 100)}


def rarer(run: Run, times: int) -> int:
    """As often at scale 1 and above, less often below."""
    return min(times, run.scaled(times))


def spread(sizes: Sequence[int]) -> dict[str, int]:
    return {"least": min(sizes), "median": round(statistics.median(sizes)), "most": max(sizes)}


# queries


QUERY_ROWS = {"small": 20_000_000, "large": 80_000_000}
TARGETS = {"small": 5, "large": 15}
SCATTERED = "vid IN"
REPEATS = 7
WARM_UP = 6
BOTH, TIME_ALONE, NEITHER = "indices", "interval index", "no index"
PUSHDOWN = "spark.sql.parquet.filterPushdown"


@contextmanager
def no_index_at_all(db: Database) -> Iterator[None]:
    """Every row is read: neither ours nor Parquet's own statistics are looked at."""
    db.sql("SET use_indexes = off")
    db.spark.conf.set(PUSHDOWN, "false")
    try:
        yield
    finally:
        db.spark.conf.set(PUSHDOWN, "true")
        db.sql("SET use_indexes = on")


@dataclass(frozen=True, slots=True)
class Timed:
    """One query that ran in one of the ways."""

    table: str
    shape: str
    way: str
    seconds: float
    rows: int


def ask_in_turns(db: Database, table: str, question: Question) -> Iterator[Timed]:
    """A question answered in each way; all have to give the same."""
    answers = set()
    for way in (BOTH, TIME_ALONE, NEITHER):
        text = question.sql_by_time_alone(table) if way == TIME_ALONE else question.sql(table)
        if way == NEITHER:
            with no_index_at_all(db):
                took, found = _timed(db, text)
        else:
            took, found = _timed(db, text)
        answers.add(found)
        yield Timed(table, question.shape, way, took, found[0])
    if len(answers) != 1:
        raise AssertionError(f"{question.sql(table)} gives different answers: {answers}")


def _timed(db: Database, text: str) -> tuple[float, tuple[int, int]]:
    started = time.perf_counter()
    found = answer(db, text)
    return time.perf_counter() - started, found


def queries(run: Run) -> Sequence[Measure]:
    """How much faster indices make the queries, and what four times the rows cost them."""
    of = traffic(run)
    rows = {table: run.scaled(count, LEAST_VEHICLES) for table, count in QUERY_ROWS.items()}
    with millstream.connect(run.folder / "db") as db:
        for table, count in rows.items():
            create(db, table)
            fill(db, table, of, count)
        knows = {table: known(run, of, count) for table, count in rows.items()}
        # Rounds that are not counted let the JVM compile what all ways run.
        _rounds(db, {"small": knows["small"]}, range(rarer(run, WARM_UP)))
        timed = _rounds(db, knows, range(WARM_UP, WARM_UP + rarer(run, REPEATS)))
    found = [_gain(timed, table, shape, rows) for table in rows for shape in _shapes(timed)]
    return [*found, *(_growth(timed, shape) for shape in _shapes(timed))]


def _rounds(db: Database, knows: Mapping[str, Known], repeats: range) -> list[Timed]:
    """Every shape on every table, in turns; each time with other constants."""
    timed: list[Timed] = []
    for repeat in repeats:
        for shape in range(len(SHAPES)):
            for table, what in knows.items():
                timed += ask_in_turns(db, table, ask(what, repeat * len(SHAPES) + shape))
    return timed


def _shapes(timed: Sequence[Timed]) -> list[str]:
    return list(dict.fromkeys(t.shape for t in timed))


def _samples(timed: Sequence[Timed], table: str, shape: str) -> dict[str, list[float]]:
    ways = (BOTH, TIME_ALONE, NEITHER)
    return {w: [t.seconds for t in timed if (t.table, t.shape, t.way) == (table, shape, w)] for w in ways}


def _gain(timed: Sequence[Timed], table: str, shape: str, rows: Mapping[str, int]) -> Measure:
    samples = _samples(timed, table, shape)
    median = {way: statistics.median(taken) for way, taken in samples.items()}
    notes = {
        "median_ms": {way: round(1_000 * s, 1) for way, s in median.items()},
        "over_interval_index": round(median[TIME_ALONE] / median[BOTH], 2),
        "result_rows": spread([t.rows for t in timed if (t.table, t.shape) == (table, shape)]),
    }
    name = f"{shape} and VALID, {rows[table]:,} rows: no index over indices"
    # Lists of scattered keys are there to show what sorted copies cannot do much for.
    target = None if shape == SCATTERED else at_least(TARGETS[table])
    return Measure(name, median[NEITHER] / median[BOTH], "×", target, samples, notes)


def _growth(timed: Sequence[Timed], shape: str) -> Measure:
    samples = {table: _samples(timed, table, shape)[BOTH] for table in QUERY_ROWS}
    value = statistics.median(samples["large"]) / statistics.median(samples["small"])
    return Measure(f"{shape} and VALID, four times the rows over once", value, "×", at_most(1.5), samples)


# mixed


MIXED_ROWS = 20_000_000
RATES = {20: 60.0, 100: 45.0, 200: 45.0}
"""Queries a minute, and how many seconds they go on."""
ROWS_A_SECOND = 100_000
BATCHES_A_SECOND = 2
PACE = 0.99
"""A pace counts as held if so much of it was."""
ASKERS = 8
MIXED_WARM_UP = 15
CHECKED = 6


@dataclass(slots=True)
class Feed:
    """Inserts batches at an even pace, each at its time or as soon after it as can be."""

    db: Database
    table: str
    batches: Sequence[pa.Table]
    took: list[float] = field(default_factory=list)
    behind: float = 0.0
    elapsed: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        started = time.perf_counter()
        for number, batch in enumerate(self.batches):
            due = started + number / BATCHES_A_SECOND
            if self.stop.wait(max(0.0, due - time.perf_counter())):
                return
            self.behind = max(self.behind, time.perf_counter() - due)
            self.took.append(seconds(partial(self.db.insert, self.table, batch)))
        self.elapsed = max(time.perf_counter() - started, len(self.batches) / BATCHES_A_SECOND)

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Feed in a thread while the block runs, and on to the end of the batches."""
        with ThreadPoolExecutor(1) as pool:
            fed = pool.submit(self.run)
            try:
                yield
            except BaseException:
                self.stop.set()
                raise
            fed.result()


@dataclass(frozen=True, slots=True)
class Asked:
    """A query of the schedule: when it was due, counted from the start, and when its rows were there."""

    shape: str
    due: float
    latency: float
    rows: int


def mixed(run: Run) -> Sequence[Measure]:
    """Latencies of queries that come at fixed times, beside inserts at a fixed pace."""
    of, rows = traffic(run), run.scaled(MIXED_ROWS, LEAST_VEHICLES)
    with millstream.connect(run.folder / "db") as db:
        create(db, "posreports")
        fill(db, "posreports", of, rows)
        for number in range(rarer(run, MIXED_WARM_UP)):
            answer(db, ask(known(run, of, rows), number, RANGES).sql("posreports"))
        measures, asked = [], {}
        for rate, duration in RATES.items():
            lasting = max(1.0, duration * min(1.0, run.scale))
            asked[rate], feed = _at_rate(db, run, of, rows, rate, lasting)
            rows += feed.rows
            measures += [_latencies(rate, asked[rate]), _pace(rate, feed, run.scaled(ROWS_A_SECOND))]
        _check_some(db, known(run, of, rows), rarer(run, CHECKED))
    _plot_latencies(run, asked)
    return measures


def _at_rate(
    db: Database, run: Run, of: Traffic, rows: int, rate: int, lasting: float
) -> tuple[list[Asked], Feed]:
    """One rate of queries, from now on for a while; the reports come from row number `rows` on."""
    size = run.scaled(ROWS_A_SECOND) // BATCHES_A_SECOND
    many = max(1, round(rate * lasting / 60))
    # Made beforehand: what a vehicle says costs more to make up than to store.
    made = [of.reports(rows + number * size, size) for number in range(round(lasting * BATCHES_A_SECOND))]
    what = known(run, of, rows)
    questions = [ask(what, 1_000 * rate + number, RANGES) for number in range(many)]
    feed = Feed(db, "posreports", made)
    with feed.running():
        asked = _ask_on_schedule(questions, 60 / rate, lambda q: answer(db, q.sql("posreports"))[0])
    return asked, feed


def _ask_on_schedule(questions: Sequence[Question], every: float, run: Callable[[Question], int]) -> list[Asked]:
    """Ask each question at its time, whether or not those before it have been answered."""
    started = time.perf_counter()
    never = threading.Event()

    def one(due: float, question: Question) -> Asked:
        rows = run(question)
        return Asked(question.shape, due, time.perf_counter() - started - due, rows)

    with ThreadPoolExecutor(ASKERS) as pool:
        asked: list[Future[Asked]] = []
        for number, question in enumerate(questions):
            never.wait(max(0.0, started + number * every - time.perf_counter()))
            asked.append(pool.submit(one, number * every, question))
        return [a.result() for a in asked]


def _latencies(rate: int, asked: Sequence[Asked]) -> Measure:
    latencies = [a.latency for a in asked]
    notes = {
        "queries": len(asked),
        "latency_ms": percentiles_ms(latencies),
        "latency_ms_by_shape": {
            shape: percentiles_ms([a.latency for a in asked if a.shape == shape])
            for shape in dict.fromkeys(a.shape for a in asked)
        },
        "result_rows": spread([a.rows for a in asked]),
    }
    name = f"{rate} queries a minute beside inserts, p95"
    return Measure(name, percentile(latencies, 95), "s", at_most(1), {"s": latencies}, notes)


def _pace(rate: int, feed: Feed, wanted: int) -> Measure:
    notes = {
        "wanted_rows_per_second": wanted,
        "longest_insert_ms": round(1_000 * max(feed.took)),
        "most_behind_ms": round(1_000 * feed.behind),
    }
    name = f"inserts beside {rate} queries a minute"
    return Measure(name, feed.rows / feed.elapsed, "rows/s", at_least(PACE * wanted), {"s": feed.took}, notes)


def _check_some(db: Database, what: Known, count: int) -> None:
    """Some queries over all that has come in give the same with and without indices."""
    for number in range(count):
        list(ask_in_turns(db, "posreports", ask(what, number)))


def _plot_latencies(run: Run, asked: Mapping[int, Sequence[Asked]]) -> None:
    series = [Series(f"{r} a minute", [(a.due, a.latency) for a in of], dots=True) for r, of in asked.items()]
    _save(run, "mixed", Plot("Latency of queries beside inserts", "seconds", "latency, s", series, limit=1))


def _save(run: Run, name: str, plot: Plot) -> None:
    if run.plots is not None:
        plot.save(run.plots / f"history-{name}.svg")


# inserts


INSERT_ROWS = 10_000_000
INSERT_BATCH = 100_000
INSERT_REPEATS = 3
KINDS: Mapping[str, Sequence[str]] = {"none": (), "two": INDEXED}


def inserts(run: Run) -> Sequence[Measure]:
    """How fast rows go in with indices to maintain, against a table with none; upkeep is on for both."""
    of, rows = traffic(run), run.scaled(INSERT_ROWS, LEAST_VEHICLES)
    size = min(rows, run.scaled(INSERT_BATCH))
    batches = [of.reports(first, min(size, rows - first)) for first in range(0, rows, size)]
    inserting: dict[str, list[float]] = {kind: [] for kind in KINDS}
    catching_up: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for repeat in range(rarer(run, INSERT_REPEATS)):
        for kind, indexed in KINDS.items():
            with millstream.connect(run.folder / f"{kind}-{repeat}") as db:
                create(db, "posreports", indexed)
                os.sync()
                inserting[kind].append(seconds(partial(_insert_all, db, batches)))
                catching_up[kind].append(seconds(db.drain))
    return [_insert_measure(rows, inserting, catching_up)]


def _insert_all(db: Database, batches: Sequence[pa.Table]) -> None:
    for batch in batches:
        db.insert("posreports", batch)


def _insert_measure(
    rows: int, inserting: Mapping[str, Sequence[float]], catching_up: Mapping[str, Sequence[float]]
) -> Measure:
    until_done = {kind: [a + b for a, b in zip(inserting[kind], catching_up[kind], strict=True)] for kind in KINDS}
    return Measure(
        f"insert {rows:,} rows, rate with two indices over none",
        statistics.median(inserting["none"]) / statistics.median(inserting["two"]),
        "×",
        at_least(0.7),
        {**inserting, **{f"{kind}, upkeep afterwards": taken for kind, taken in catching_up.items()}},
        {
            "rows_per_second": {kind: round(rows / statistics.median(taken)) for kind, taken in inserting.items()},
            "rows_per_second_until_upkeep_is_done": {
                kind: round(rows / statistics.median(taken)) for kind, taken in until_done.items()
            },
        },
    )


if __name__ == "__main__":
    parts = {"queries": queries, "mixed": mixed, "inserts": inserts, "retention": retention}
    sys.exit(main("history", parts, __doc__ or ""))
