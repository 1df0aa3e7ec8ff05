"""Loading, small durable inserts, pruned queries and opening, each against its baseline.

load       a 5M-row Arrow table through `db.insert`, against pyarrow writing the same Parquet with fsync
small      single-row durable inserts from 8 threads, through `db.insert` and SQL
prune      a time range of 1 % of 20M rows, against the same query with its pruning defeated
open       opening a database of 10,000 data files in a new process, with no Spark started
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import Measure, Run, at_least, at_most, fsync_ms, in_turns, main, own_python, ratio, seconds

import millstream
from millstream.catalog.records import Segment, TableInfo
from millstream.clock import SystemClock
from millstream.database import Database
from millstream.storage import segment
from millstream.storage.lake import Lake

LOAD_ROWS = 5_000_000
KEYS = 100_000
LOAD_REPEATS = 3
THREADS = 8
SMALL_INSERTS = 8_000
PRUNE_ROWS = 20_000_000
PRUNE_CHUNK = 2_500_000
PRUNE_REPEATS = 5
PRUNE_WARM_UP = 10
OPEN_FILES = 10_000
OPEN_COMMITS = 100
OPEN_REPEATS = 5
START = datetime(2024, 1, 1, tzinfo=UTC)
COLUMNS = "(id BIGINT, ts TIMESTAMP, value DOUBLE, key STRING)"
TYPES = pa.schema(
    {"id": pa.int64(), "ts": pa.timestamp("us", tz="UTC"), "value": pa.float64(), "key": pa.string()}
)


def events(first: int, count: int) -> pa.Table:
    """Rows in time order, one every millisecond, from the row with number `first` on."""
    random = np.random.default_rng(first)
    ids = np.arange(first, first + count)
    times = ids * 1_000 + int(START.timestamp()) * 1_000_000
    names = pa.array([f"key-{i:06}" for i in range(KEYS)])
    keys = names.take(pa.array(random.integers(0, KEYS, count)))
    arrays = [ids, pa.array(times).cast(TYPES.field("ts").type), random.random(count), keys]
    return pa.table(arrays, schema=TYPES)


# load


def load(run: Run) -> Sequence[Measure]:
    """What an insert of a large Arrow table costs over writing the same rows as Parquet."""
    data = events(0, run.scaled(LOAD_ROWS))
    with millstream.connect(run.folder / "db") as db:

        def insert(repeat: int) -> None:
            db.insert(f"loaded_{repeat}", data)

        def write(repeat: int) -> None:
            write_synced(data, run.folder / f"{repeat}.parquet")

        for repeat in range(LOAD_REPEATS):
            db.sql(f"CREATE TABLE loaded_{repeat} {COLUMNS}")
        samples = in_turns({"pyarrow": write, "millstream": insert}, LOAD_REPEATS)
    rows = data.num_rows
    return [
        Measure(
            f"load {rows:,} rows, time over pyarrow's write and fsync",
            ratio(samples, "millstream", "pyarrow"),
            "×",
            at_most(2),
            samples,
            {"rows_per_second": round(rows / statistics.median(samples["millstream"]))},
        )
    ]


def write_synced(data: pa.Table, path: Path) -> None:
    with path.open("wb") as file:
        pq.write_table(data, file)
        file.flush()
        os.fsync(file.fileno())


# small


def small(run: Run) -> Sequence[Measure]:
    """Durable single-row inserts a second, from many threads at once."""
    count = run.scaled(SMALL_INSERTS, THREADS) // THREADS
    with millstream.connect(run.folder / "db") as db:
        ways: dict[str, Callable[[str, int], object]] = {
            "db.insert": lambda table, number: db.insert(table, [_row(number)]),
            "INSERT … VALUES, parameters": lambda table, number: _insert_by_parameters(db, table, number),
            "INSERT … VALUES, literals": lambda table, number: _insert_by_text(db, table, number),
        }
        return [_small(db, run, way, f"small_{i}", count, ways[way]) for i, way in enumerate(ways)]


def _row(number: int) -> tuple[int, datetime, float, str]:
    return number, START + timedelta(milliseconds=number), number / 7, f"key-{number % KEYS:06}"


def _insert_by_parameters(db: Database, table: str, number: int) -> None:
    id_, ts, value, key = _row(number)
    db.sql(f"INSERT INTO {table} VALUES (:id, :ts, :value, :key)", id=id_, ts=ts, value=value, key=key)


def _insert_by_text(db: Database, table: str, number: int) -> None:
    """Every statement is another text, so each has to be parsed."""
    id_, ts, value, key = _row(number)
    db.sql(f"INSERT INTO {table} VALUES ({id_}, '{ts:%Y-%m-%d %H:%M:%S.%f}', {value!r}, '{key}')")


def _small(
    db: Database, run: Run, way: str, table: str, count: int, insert: Callable[[str, int], object]
) -> Measure:
    db.sql(f"CREATE TABLE {table} {COLUMNS}")
    before = _snapshots(db)
    taken, latencies = _from_threads(count, partial(insert, table))
    commits = _snapshots(db) - before
    stored = sum(row[1] for row in db.sql(f"SHOW FILES FROM {table}"))
    if stored != THREADS * count:
        raise AssertionError(f"{stored} rows are there after {THREADS * count} inserts")
    fsync = fsync_ms(run.folder)
    rate = THREADS * count / taken
    return Measure(
        f"{THREADS} threads of single-row {way}",
        rate,
        "/s",
        at_least(1_000),
        {"seconds": [taken]},
        {
            "inserts": THREADS * count,
            "commits": commits,
            "inserts_per_commit": round(THREADS * count / commits, 2),
            "latency_ms": {f"p{p}": round(float(np.percentile(latencies, p)) * 1_000, 2) for p in (50, 99)},
            "fsync_ms": round(fsync, 3),
            "inserts_per_raw_fsync": round(rate * fsync / 1_000, 2),
        },
    )


def _snapshots(db: Database) -> int:
    return len(db.sql("SHOW SNAPSHOTS").fetchall())


def _from_threads(count: int, insert: Callable[[int], object]) -> tuple[float, list[float]]:
    """Run `count` inserts in each thread; the seconds for all of them, and for each one."""
    ready = threading.Barrier(THREADS + 1)
    latencies: list[float] = []
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        ready.wait()
        try:
            latencies.extend([seconds(partial(insert, thread * count + n)) for n in range(count)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    ready.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    taken = time.perf_counter() - started
    if failures:
        raise failures[0]
    return taken, latencies


# prune


def prune(run: Run) -> Sequence[Measure]:
    """What skipping files by their statistics gains on a narrow time range."""
    rows = run.scaled(PRUNE_ROWS)
    with millstream.connect(run.folder / "db") as db:
        db.sql(f"CREATE TABLE events {COLUMNS}")
        for first in range(0, rows, PRUNE_CHUNK):
            db.insert("events", events(first, min(PRUNE_CHUNK, rows - first)))
        db.drain()
        ranges = list(_ranges(rows))
        _check_same_answers(db, *ranges[0])
        # Rounds that are not counted let the JVM compile what both sides run.
        samples = in_turns(
            {"full": lambda i: _full(db, *ranges[i]), "pruned": lambda i: _pruned(db, *ranges[i])},
            PRUNE_WARM_UP + PRUNE_REPEATS,
        )
        files = db.sql(f"EXPLAIN {PRUNED}", low=ranges[0][0], high=ranges[0][1]).to_arrow().column(0).to_pylist()
    counted = {name: taken[PRUNE_WARM_UP:] for name, taken in samples.items()}
    return [
        Measure(
            f"time range of 1 % of {rows:,} rows, full scan over pruned",
            ratio(counted, "full", "pruned"),
            "×",
            at_least(5),
            counted,
            {"files": next(line.strip() for line in files if "files:" in line)},
        )
    ]


AGGREGATE = "SELECT count(*), sum(value), max(key) FROM events"
PRUNED = f"{AGGREGATE} WHERE ts >= :low AND ts < :high"
FULL = f"{AGGREGATE} WHERE unix_micros(ts) >= :low AND unix_micros(ts) < :high"
"""The same rows, but no statistics speak of `unix_micros(ts)`: neither the catalogue's nor Parquet's."""


def _ranges(rows: int) -> Iterator[tuple[datetime, datetime]]:
    """A different stretch of 1 % for every repeat, so that nothing is answered from the last one."""
    rounds = PRUNE_WARM_UP + PRUNE_REPEATS
    for repeat in range(rounds):
        first = rows * (2 * repeat + 1) // (2 * rounds + 2)
        yield _time(first), _time(first + rows // 100)


def _time(row: int) -> datetime:
    return START + timedelta(milliseconds=row)


def _micros(time_: datetime) -> int:
    return (time_ - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _pruned(db: Database, low: datetime, high: datetime) -> object:
    return db.sql(PRUNED, low=low, high=high).fetchone()


def _full(db: Database, low: datetime, high: datetime) -> object:
    return db.sql(FULL, low=_micros(low), high=_micros(high)).fetchone()


def _check_same_answers(db: Database, low: datetime, high: datetime) -> None:
    pruned, full = (f(db, low, high) for f in (_pruned, _full))
    assert isinstance(pruned, tuple)
    assert isinstance(full, tuple)
    if pruned[0] != full[0] or pruned[2] != full[2] or abs(pruned[1] - full[1]) > 1e-6 * abs(full[1]):
        raise AssertionError(f"pruned {pruned} and full {full} differ")


# open

OPEN = """
import json, sys, time
started = time.perf_counter()
import millstream
imported = time.perf_counter()
db = millstream.connect(sys.argv[1])
opened = time.perf_counter()
rows = db.sql("SHOW TABLES").fetchall()
answered = time.perf_counter()
from pyspark import SparkContext
print(json.dumps({
    "import": imported - started,
    "open": opened - imported,
    "first_answer": answered - opened,
    "spark_started": db.spark_started or SparkContext._active_spark_context is not None,
    "rows": rows[0][2],
}))
db.close()
"""


def open_(run: Run) -> Sequence[Measure]:
    """Opening a database of many files, each time in a new process, up to the first answer."""
    count = run.scaled(OPEN_FILES)
    _make_files(run.folder / "db", count)
    found = [_opened(run.folder / "db") for _ in range(OPEN_REPEATS)]
    if any(f["spark_started"] or f["rows"] != count for f in found):
        raise AssertionError(f"opening started Spark, or not all of {count} rows are there: {found}")
    samples = {name: [float(f[name]) for f in found] for name in ("import", "open", "first_answer")}
    to_answer = [float(f["open"]) + float(f["first_answer"]) for f in found]
    return [
        Measure(
            f"open {count:,} files and list the tables",
            statistics.median(to_answer),
            "s",
            at_most(1),
            samples,
            {"spark_started": False},
        )
    ]


def _opened(path: Path) -> dict[str, float]:
    ran = subprocess.run(own_python(OPEN, str(path)), check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def _make_files(path: Path, count: int) -> None:
    """A database of `count` one-row files, in up to `OPEN_COMMITS` commits, with no compaction.

    The files are copies of one: what opening reads is their names, and making each durable by itself
    would take minutes.
    """
    with millstream.connect(path, background=False) as db:
        db.sql(f"CREATE TABLE events {COLUMNS}")
    lake = Lake(path, SystemClock())
    try:
        table = lake.catalog.tables()["events"]
        first = segment.write(lake.folder(table), table, events(0, 1))
        for some in np.array_split(np.arange(count), min(OPEN_COMMITS, count)):
            _commit_copies(lake, table, first, some.tolist())
    finally:
        lake.close()


def _commit_copies(lake: Lake, table: TableInfo, first: Segment, numbers: Sequence[int]) -> None:
    folder = lake.folder(table)
    copies = [replace(first, path=f"copy-{number:06}.parquet") for number in numbers]
    for copy in copies:
        shutil.copyfile(folder / first.path, folder / copy.path)
    transaction = lake.transaction()
    transaction.append_segments(table, copies)
    transaction.commit()


if __name__ == "__main__":
    sys.exit(main("ingest", {"load": load, "small": small, "prune": prune, "open": open_}, __doc__ or ""))
