"""The AIM workload: calls of customers, six queries about the current week, and those who compete to answer them.

The first half is AIM itself, as in the paper on continuous views (table 2, with the constants of its
evaluation): any stretch of events can be made by itself and is the same each time. The second half
knows nothing of AIM: a workload is a stream cut into Parquet files, tables, and queries; a contender takes
the files one by one and gives the answers after each. All contenders see the same files on the
same Spark, with the same settings; those of plain Spark find theirs in the directory they watch without
having had to write them. Answers are kept, to be compared with Spark's batch answer over the same files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import seconds

import millstream
from millstream.clock import SystemClock
from millstream.database import Database
from millstream.execute.session import Spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# events and customers


MONDAY = datetime(2024, 5, 13, tzinfo=UTC)
WEEK = MONDAY.isocalendar().week
WEEK_MICROS = timedelta(weeks=1) // timedelta(microseconds=1)
STEP_MICROS = 10_000
"""A hundred calls a second; 50M of them stay within the week."""
BEFORE = 20
"""One event in so many is one of the week before: the first ones."""
FAR = 0.3
MINUTES = 5
ZIPS, REGIONS, TYPES, CATEGORIES, VALUE_TYPES = 1_000, 25, 4, 3, 4
EVENTS = pa.schema(
    {
        "entity_id": pa.int64(),
        "duration": pa.int32(),
        "cost": pa.float64(),
        "local_calls": pa.int32(),
        "local_cost": pa.float64(),
        "long_distance": pa.bool_(),
        "long_distance_cost": pa.float64(),
        "week": pa.int32(),
        "ts": pa.timestamp("us", tz="UTC"),
    }
)
ROW_GROUPS = 4
"""In each file, so that Spark can share it among its tasks."""
Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of some customers; the first `before` of them are of the week before."""

    customers: int
    before: int

    def events(self, first: int, count: int) -> pa.Table:
        """The calls from number `first` on, in the order of their times."""
        random = np.random.default_rng((first, self.customers))
        number = np.arange(first, first + count, dtype=np.int64)
        since_monday = (number - self.before) * STEP_MICROS
        far = random.random(count) < FAR
        duration = 1 + random.exponential(MINUTES, count).astype(np.int32)
        cents = duration * np.where(far, random.integers(10, 50, count), random.integers(1, 10, count))
        cost = cents / 100
        columns = {
            "entity_id": random.integers(0, self.customers, count),
            "duration": duration,
            "cost": cost,
            "local_calls": pa.array(np.ones(count, np.int32), mask=far),
            "local_cost": np.where(far, 0.0, cost),
            "long_distance": far,
            "long_distance_cost": np.where(far, cost, 0.0),
            "week": (WEEK + since_monday // WEEK_MICROS).astype(np.int32),
            "ts": pa.array(since_monday + _micros(MONDAY)).cast(EVENTS.field("ts").type),
        }
        return pa.table(columns, schema=EVENTS)

    def table(self) -> pa.Table:
        """The customers."""
        random = np.random.default_rng(self.customers)
        kinds = {"region_id": REGIONS, "type": TYPES, "category": CATEGORIES, "value_type": VALUE_TYPES}
        drawn = {name: random.integers(0, many, self.customers, np.int32) for name, many in kinds.items()}
        zips = 10_000 + random.integers(0, ZIPS, self.customers, np.int32)
        return pa.table({"id": np.arange(self.customers), "city_zip": zips, **drawn})


def _micros(time_: datetime) -> int:
    return (time_ - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def store(folder: Path, calls: Calls, rows: int, batches: int) -> None:
    """The calls as files to be inserted one by one, and the customers."""
    batch = -(-rows // batches)
    firsts = range(0, rows, batch)
    store_stream(folder, (calls.events(first, min(batch, rows - first)) for first in firsts))
    store_table(folder, "customers", calls.table())


# the six queries


@dataclass(frozen=True, slots=True)
class Split:
    """A query in two: a grouping that Spark can keep as a stream, and a query over its result, `grouped`."""

    grouped: str
    above: str


@dataclass(frozen=True, slots=True)
class Query:
    """The query of a view; `split` is for Spark if it refuses the whole as a streaming query.

    A limit that is not one of an order may choose any rows.
    """

    whole: str
    split: Split | None = None
    limit: int | None = None

    @property
    def sql(self) -> str:
        return self.whole if self.limit is None else f"{self.whole} LIMIT {self.limit}"


def nested(inner: str, outer: str, limit: int | None = None) -> Query:
    """A query over the result of a grouping, which stands in `outer` as {}."""
    return Query(outer.format(f"({inner})"), Split(inner, outer.format("grouped")), limit)


THIS_WEEK = "week = current_week()"
QUERIES: Mapping[str, Query] = {
    "q1": nested(
        f"SELECT sum(duration) AS t_duration FROM events WHERE {THIS_WEEK}"
        " GROUP BY entity_id HAVING count(local_calls) > 2",
        "SELECT avg(t_duration) AS avg_duration FROM {}",
    ),
    "q2": nested(
        f"SELECT max(cost) AS max_cost FROM events WHERE {THIS_WEEK} GROUP BY entity_id HAVING count(*) > 2",
        "SELECT max(max_cost) AS max_cost FROM {}",
    ),
    "q3": nested(
        "SELECT sum(cost) AS t_cost, sum(duration) AS t_duration, count(*) AS num_calls FROM events"
        f" WHERE {THIS_WEEK} GROUP BY entity_id",
        "SELECT sum(t_cost) / sum(t_duration) AS cost_ratio FROM {} GROUP BY num_calls",
        limit=100,
    ),
    "q4": nested(
        "SELECT entity_id, count(*) AS num_calls, sum(duration) AS duration_calls FROM events"
        f" WHERE NOT long_distance AND {THIS_WEEK} GROUP BY entity_id HAVING count(*) > 4 AND sum(duration) > 25",
        "SELECT city_zip, avg(num_calls) AS avg_calls, sum(duration_calls) AS duration"
        " FROM {} e, customers c WHERE e.entity_id = c.id GROUP BY city_zip",
    ),
    "q5": Query(
        "SELECT c.region_id, sum(long_distance_cost) AS cost_long, sum(local_cost) AS cost_local"
        f" FROM events e, customers c WHERE e.entity_id = c.id AND {THIS_WEEK}"
        " AND c.type = 2 AND c.category = 1 GROUP BY c.region_id"
    ),
    "q7": Query(
        "SELECT sum(cost) / sum(duration) AS cost_ratio FROM events e, customers c"
        f" WHERE e.entity_id = c.id AND {THIS_WEEK} AND c.value_type = 2"
    ),
}


@dataclass(frozen=True, slots=True)
class Fused:
    """All queries by hand as one: the grouping that serves them all, and each over its result, `grouped`."""

    grouped: str
    above: Mapping[str, str]


OF_CUSTOMERS = "FROM grouped e, customers c WHERE e.entity_id = c.id AND"
FUSED = Fused(
    "SELECT entity_id, count(*) AS calls, count(local_calls) AS local_calls, sum(duration) AS duration,"
    " sum(cost) AS cost, max(cost) AS max_cost, count_if(NOT long_distance) AS near_calls,"
    " sum(duration) FILTER (WHERE NOT long_distance) AS near_duration,"
    " sum(long_distance_cost) AS cost_long, sum(local_cost) AS cost_local"
    f" FROM events WHERE {THIS_WEEK} GROUP BY entity_id",
    {
        "q1": "SELECT avg(duration) AS avg_duration FROM grouped WHERE local_calls > 2",
        "q2": "SELECT max(max_cost) AS max_cost FROM grouped WHERE calls > 2",
        "q3": "SELECT sum(cost) / sum(duration) AS cost_ratio FROM grouped GROUP BY calls",
        "q4": "SELECT city_zip, avg(near_calls) AS avg_calls, sum(near_duration) AS duration"
        f" {OF_CUSTOMERS} near_calls > 4 AND near_duration > 25 GROUP BY city_zip",
        "q5": "SELECT c.region_id, sum(cost_long) AS cost_long, sum(cost_local) AS cost_local"
        f" {OF_CUSTOMERS} c.type = 2 AND c.category = 1 GROUP BY c.region_id",
        "q7": f"SELECT sum(cost) / sum(duration) AS cost_ratio {OF_CUSTOMERS} c.value_type = 2",
    },
)


# contenders


KERNEL, SPARK_SQL = EXECUTORS = ("kernel", "spark_sql")
STREAMING, FUSED_STREAMING, DEFERRED, BATCH = "streaming queries", "fused streaming query", "deferred", "batch"
RELATIVE = 1e-9
SQL_TYPES: Mapping[pa.DataType, str] = {
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "STRING",
    pa.date32(): "DATE",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
}
Answers = Mapping[str, pa.Table]


@dataclass(frozen=True, slots=True)
class Workload:
    """A stream, the queries over it, and what Millstream's own functions stand for in plain Spark."""

    stream: str
    queries: Mapping[str, Query]
    time: str | None = None
    now: datetime | None = None
    constants: Mapping[str, str] = field(default_factory=dict)
    fused: Fused | None = None

    def in_spark(self, text: str) -> str:
        for function, constant in self.constants.items():
            text = text.replace(function, constant)
        return text


AIM = Workload(
    "events",
    QUERIES,
    time="ts",
    now=MONDAY + timedelta(days=2),
    constants={"current_week()": str(WEEK)},
    fused=FUSED,
)


@dataclass(frozen=True, slots=True)
class Job:
    """What a contender is told: where the files are, a directory of its own, and when to read."""

    contender: str
    workload: Workload
    data: Path
    own: Path
    read_every: int = 1
    """After so many files, and always after the last."""

    def files(self) -> list[Path]:
        return sorted((self.data / "stream").iterdir())

    def tables(self) -> dict[str, Path]:
        return {path.stem: path for path in sorted((self.data / "tables").iterdir())}

    def reads_after(self, number: int, of: int) -> bool:
        return number % self.read_every == 0 or number == of


@dataclass(slots=True)
class Outcome:
    """What a contender did: how long each file took to take in, and what was read when, by number of files."""

    inserting: list[float] = field(default_factory=list)
    reading: dict[int, dict[str, float]] = field(default_factory=dict)
    answers: dict[int, Answers] = field(default_factory=dict)
    state: dict[int, int] = field(default_factory=dict)
    """The bytes of the views' state."""
    refused: dict[str, str] = field(default_factory=dict)
    """Queries that Spark would not run as they are, and what it said."""

    @property
    def reads(self) -> list[float]:
        """How long it took each time to read all."""
        return [sum(taken.values()) for taken in self.reading.values()]

    @property
    def total(self) -> float:
        return sum(self.inserting) + sum(self.reads)


def store_stream(folder: Path, batches: Iterator[pa.Table]) -> None:
    (folder / "stream").mkdir(parents=True)
    for number, batch in enumerate(batches):
        size = max(1, -(-batch.num_rows // ROW_GROUPS))
        pq.write_table(batch, folder / "stream" / f"{number:04}.parquet", row_group_size=size)


def store_table(folder: Path, name: str, data: pa.Table) -> None:
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    pq.write_table(data, folder / "tables" / f"{name}.parquet")


class RunningClock:
    """Goes on like the machine's clock, from a given time on."""

    def __init__(self, start: datetime) -> None:
        self._ahead = start - SystemClock().now()

    def now(self) -> datetime:
        return SystemClock().now() + self._ahead


def contend(job: Job) -> Outcome:
    """Run one contender, in this process."""
    job.own.mkdir(parents=True)
    return CONTENDERS[job.contender](job)


def _take_files(
    job: Job, outcome: Outcome, insert: Callable[[Path], float], read: Callable[[str], pa.Table]
) -> Iterator[int]:
    """File by file; what the caller does between two of them is not counted."""
    files = job.files()
    os.sync()
    for number, file in enumerate(files, 1):
        outcome.inserting.append(insert(file))
        yield number
        if job.reads_after(number, len(files)):
            answers: dict[str, pa.Table] = {}
            taken = {name: seconds(partial(_keep, answers, name, read)) for name in job.workload.queries}
            outcome.reading[number], outcome.answers[number] = taken, answers


def _keep(answers: dict[str, pa.Table], name: str, read: Callable[[str], pa.Table]) -> None:
    answers[name] = read(name)


# Millstream


def columns(schema: pa.Schema) -> str:
    """The columns of a table, as CREATE TABLE takes them."""
    return f"({', '.join(f'{f.name} {_sql_type(f.type)}' for f in schema)})"


def _sql_type(type_: pa.DataType) -> str:
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    return SQL_TYPES[type_]


@contextmanager
def database(job: Job, period: str = "") -> Iterator[Database]:
    """A database with the tables and the stream, which is a streaming table if it has a period; Spark is up."""
    job.own.mkdir(parents=True, exist_ok=True)
    now = job.workload.now
    with millstream.connect(job.own / "db", clock=None if now is None else RunningClock(now)) as db:
        db.spark.range(1).count()
        for name, path in job.tables().items():
            db.sql(f"CREATE TABLE {name} {columns(pq.read_schema(path))}")
            db.insert(name, pq.read_table(path))
        kind = "STREAMING TABLE" if period else "STREAM"
        time_ = f" TIMESTAMP BY {job.workload.time}" if job.workload.time else ""
        db.sql(f"CREATE {kind} {job.workload.stream} {columns(pq.read_schema(job.files()[0]))}{time_}{period}")
        yield db


def create_views(db: Database, workload: Workload, executor: str) -> None:
    db.sql(f"SET executor = {executor}")
    for name, query in workload.queries.items():
        db.sql(f"CREATE CONTINUOUS VIEW {name} AS {query.sql}")


def read_view(db: Database, name: str) -> pa.Table:
    return db.sql(f"SELECT * FROM {name}").to_arrow()


def state_bytes(db: Database) -> int:
    """What all views hold; they have to be at the end of their stream."""
    views = db.sql("SHOW VIEWS").to_arrow()
    if any(views.column("lag_rows").to_pylist()):
        raise AssertionError(f"after drain there are views with a lag: {views.to_pylist()}")
    return sum(views.column("state_bytes").to_pylist())


def _insert_and_drain(db: Database, stream: str, file: Path) -> float:
    """All that is due after an insert counts as part of it; to read the file does not."""
    batch = pq.read_table(file)

    def insert() -> None:
        db.insert(stream, batch)
        db.drain()

    return seconds(insert)


def _views(job: Job) -> Outcome:
    outcome = Outcome()
    with database(job) as db:
        create_views(db, job.workload, job.contender)
        insert = partial(_insert_and_drain, db, job.workload.stream)
        for number in _take_files(job, outcome, insert, partial(read_view, db)):
            outcome.state[number] = state_bytes(db)
    return outcome


def _deferred(job: Job) -> Outcome:
    """Everything is stored, and the queries run when they are asked."""
    outcome = Outcome()
    with database(job, " RANGE UNBOUNDED") as db:
        insert = partial(_insert_and_drain, db, job.workload.stream)
        ask = {name: job.workload.in_spark(query.sql) for name, query in job.workload.queries.items()}
        for _ in _take_files(job, outcome, insert, lambda name: db.sql(ask[name]).to_arrow()):
            pass
    return outcome


# plain Spark


@contextmanager
def plain_spark(job: Job) -> Iterator[SparkSession]:
    """The session that Millstream would use, with the tables in memory."""
    spark = Spark("local[*]").session()
    tables = {name: spark.read.parquet(str(path)).cache() for name, path in job.tables().items()}
    for name, table in tables.items():
        table.count()
        table.createOrReplaceTempView(name)
    try:
        yield spark
    finally:
        for table in tables.values():
            table.unpersist()


def batch_answers(spark: SparkSession, workload: Workload, files: Sequence[Path]) -> Answers:
    """Spark's batch answer over the files; the tables are there as views."""
    spark.read.parquet(*map(str, files)).createOrReplaceTempView(workload.stream)
    return {name: spark.sql(workload.in_spark(q.whole)).toArrow() for name, q in workload.queries.items()}


def _batch(job: Job) -> Outcome:
    outcome, files = Outcome(), job.files()
    with plain_spark(job) as spark:
        for number in range(1, len(files) + 1):
            if job.reads_after(number, len(files)):
                outcome.answers[number] = batch_answers(spark, job.workload, files[:number])
    return outcome


@dataclass(slots=True)
class _Streams:
    """Streaming queries over the files of a directory; they keep the last answer of each query."""

    job: Job
    spark: SparkSession
    outcome: Outcome
    last: dict[str, pa.Table] = field(default_factory=dict)
    running: list[StreamingQuery] = field(default_factory=list)

    def watch(self) -> None:
        """From here on the name of the stream stands for the files that will come."""
        schema = self.spark.read.parquet(str(self.job.files()[0])).schema
        self._source.mkdir()
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        reader.parquet(str(self._source)).createOrReplaceTempView(self.job.workload.stream)

    @property
    def _source(self) -> Path:
        return self.job.own / "source"

    def start(self, name: str, text: str, keep: Callable[[DataFrame], None]) -> None:
        frame = self.spark.sql(self.job.workload.in_spark(text))
        writer = frame.writeStream.outputMode("complete").queryName(name)
        writer = writer.option("checkpointLocation", str(self.job.own / "checkpoints" / name))
        self.running.append(writer.foreachBatch(lambda batch, _: keep(batch)).start())

    def start_each(self) -> None:
        """Every query as it is, or in two where Spark refuses that."""
        from pyspark.errors import AnalysisException

        for name, query in self.job.workload.queries.items():
            try:
                self.start(name, query.whole, partial(self._keep, name))
            except AnalysisException as refusal:
                if query.split is None:
                    raise
                self.outcome.refused[name] = str(refusal).partition(". ")[0]
                self.start(name, query.split.grouped, partial(self._keep_above, {name: query.split.above}))

    def start_fused(self, fused: Fused) -> None:
        self.start("fused", fused.grouped, partial(self._keep_above, fused.above))

    def _keep(self, name: str, batch: DataFrame) -> None:
        self.last[name] = batch.toArrow()

    def _keep_above(self, above: Mapping[str, str], grouped: DataFrame) -> None:
        shared = len(above) > 1
        if shared:
            grouped.persist()
        grouped.createOrReplaceTempView("grouped")
        for name, text in above.items():
            self.last[name] = grouped.sparkSession.sql(text).toArrow()
        if shared:
            grouped.unpersist()

    def insert(self, file: Path) -> float:
        """The file appears in the directory, and all queries answer."""
        return seconds(lambda: self._process(file))

    def _process(self, file: Path) -> None:
        os.link(file, self._source / file.name)
        for query in self.running:
            query.processAllAvailable()

    def stop(self) -> None:
        for query in self.running:
            query.stop()


def _streaming(job: Job) -> Outcome:
    outcome = Outcome()
    with plain_spark(job) as spark:
        streams = _Streams(job, spark, outcome)
        streams.watch()
        try:
            if job.contender == STREAMING:
                streams.start_each()
            elif job.workload.fused is not None:
                streams.start_fused(job.workload.fused)
            for _ in _take_files(job, outcome, streams.insert, streams.last.__getitem__):
                pass
        finally:
            streams.stop()
    return outcome


CONTENDERS: Mapping[str, Callable[[Job], Outcome]] = {
    KERNEL: _views,
    SPARK_SQL: _views,
    STREAMING: _streaming,
    FUSED_STREAMING: _streaming,
    DEFERRED: _deferred,
    BATCH: _batch,
}


# answers


def check(what: str, workload: Workload, found: Mapping[int, Answers], expected: Mapping[int, Answers]) -> None:
    """Both have to agree wherever both were asked."""
    for number in found.keys() & expected.keys():
        for name, query in workload.queries.items():
            one, other = found[number][name], expected[number][name]
            if not agree(one, other, query.limit):
                raise AssertionError(
                    f"{what}: {name} after {number} files gives\n{one.to_pylist()[:20]}\nand Spark's batch answer"
                    f" is\n{other.to_pylist()[:20]}"
                )


def agree(found: pa.Table, expected: pa.Table, limit: int | None = None) -> bool:
    """The same rows in any order; with a limit, so many of them."""
    rows, known = _sorted_rows(found), _sorted_rows(expected)
    if limit is not None and len(known) > limit:
        return len(rows) == limit and all(any(_same(r, k) for k in known) for r in rows)
    return len(rows) == len(known) and all(map(_same, rows, known))


def _sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    values = [column.to_pylist() for column in table.columns]
    return sorted(
        zip(*values, strict=True),
        key=lambda row: [(value is None, 0 if value is None else value) for value in row],
    )


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(map(_close, one, other))


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, float | Decimal) and isinstance(other, float | Decimal | int):
        return math.isclose(one, other, rel_tol=RELATIVE)
    return bool(one == other)
