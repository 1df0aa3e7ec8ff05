"""Who competes in taking seven joins through the same rows: shared, each by itself, on Structured Streaming.

The rows of both streams come in as many batches, each a file a stream for Structured Streaming. A batch is timed
from its insert until everything is delivered. Everybody has to give as many results as DuckDB counts, with the
same sum over their content.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _joins import LONGEST, SECOND, START, STREAMS, Batch, create, named
from harness import Run

import millstream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

SHARED, ALONE, STREAMING = "shared", "each by itself", "Structured Streaming"
RATE, SPAN, BATCHES = 500, 1_200, 20
"""Rows a second of each stream, seconds of stream time, and in how many batches they come."""
LEAST_BATCHES, ALL_FROM = 2, 0.1
"""At scales below, there are fewer batches."""
MEETS = 1.0
Found = dict[int, tuple[int, int]]
"""By window: how many results there are, and a sum over their content."""


@dataclass(frozen=True)
class Contest:
    """What each contender took for all rows, in seconds."""

    rate: int
    """Rows a second of each stream, in its own time."""
    rows: int
    samples: Mapping[str, Sequence[float]]
    results: Mapping[int, int]
    apart: Mapping[int, float]
    """By window: what the query took by itself."""


def contest(run: Run, windows: Sequence[int]) -> Contest:
    rate = run.scaled(RATE, 2)
    made = {s: _batches(s, rate, BATCHES if run.scale >= ALL_FROM else LEAST_BATCHES) for s in STREAMS}
    folder = run.folder / "files"
    _write(folder, made)
    right = _expected(made, windows)
    shared = _ours(run.folder / "shared", made, windows, right)
    apart = {w: _ours(run.folder / named(w), made, [w], right) for w in windows}
    theirs = _theirs(run, folder, windows, right)
    samples = {SHARED: [shared], ALONE: [sum(apart.values())], STREAMING: [theirs]}
    results = {w: number for w, (number, _) in right.items()}
    return Contest(rate, 2 * rate * SPAN, samples, results, apart)


def _batches(stream: str, rate: int, batches: int) -> list[Batch]:
    """Rows at whole seconds, in order."""
    random, made = np.random.default_rng([5, STREAMS.index(stream)]), []
    span, keys = SPAN // batches, max(2, round(rate * LONGEST / MEETS))
    for number in range(batches):
        count = rate * span
        seconds = np.sort(random.integers(number * span, (number + 1) * span, count))
        values = random.integers(0, 1_000, count, dtype=np.int32)
        chosen = random.integers(0, keys, count, dtype=np.int32)
        made.append(Batch(chosen, values, START + seconds.astype(np.int64) * SECOND))
    return made


def _write(folder: Path, made: Mapping[str, Sequence[Batch]]) -> None:
    for stream, batches in made.items():
        (folder / stream).mkdir(parents=True)
        for number, batch in enumerate(batches):
            pq.write_table(batch.rows, folder / stream / f"{number:04}.parquet")


def _expected(made: Mapping[str, Sequence[Batch]], windows: Sequence[int]) -> Found:
    held = [
        f"count(*) FILTER ({near}), coalesce(sum(a.v * 1000 + b.v) FILTER ({near}), 0)::BIGINT"
        for near in (f"abs(a.t - b.t) <= {w * SECOND}" for w in windows)
    ]
    with duckdb.connect() as connection:
        for stream, batches in made.items():
            connection.register(stream, pa.concat_tables([b.numbers for b in batches]))
        row = connection.execute(f"SELECT {', '.join(held)} FROM a JOIN b USING (k)").fetchone()
    assert row is not None
    return {w: (row[2 * n], row[2 * n + 1]) for n, w in enumerate(windows)}


def _check(who: str, found: Found, right: Found) -> None:
    wrong = {w: (own, right[w]) for w, own in found.items() if own != right[w]}
    if wrong:
        raise AssertionError(f"{who}: by window, found and expected numbers and sums are {wrong}")


def _ours(folder: Path, made: Mapping[str, Sequence[Batch]], windows: Sequence[int], right: Found) -> float:
    """How long some of the queries take in a database of their own."""
    taken, found, last = 0.0, dict.fromkeys(windows, (0, 0)), dict.fromkeys(windows, 0)
    with millstream.connect(folder, background=False) as db:
        create(db, windows)
        _ = db.spark
        for batch in zip(*made.values(), strict=True):
            rows = dict(zip(made, (b.rows for b in batch), strict=True))
            started = time.perf_counter()
            for stream, own in rows.items():
                db.insert(stream, own)
            db.drain()
            taken += time.perf_counter() - started
            for window in windows:
                for delivery in db.results(named(window), since=last[window]):
                    last[window] = delivery.sequence
                    found[window] = _with(found[window], delivery.to_arrow())
    _check(SHARED if len(windows) > 1 else ALONE, found, right)
    return taken


def _with(found: tuple[int, int], rows: pa.Table) -> tuple[int, int]:
    x, y = (pc.sum(rows.column(name).cast(pa.int64())).as_py() or 0 for name in ("x", "y"))
    return found[0] + rows.num_rows, found[1] + x * 1_000 + y


# Structured Streaming


def _theirs(run: Run, files: Path, windows: Sequence[int], right: Found) -> float:
    """How long the queries take as streaming queries of one session, all at once."""
    with millstream.connect(run.folder / "theirs", background=False) as db:
        spark, found = db.spark, dict.fromkeys(windows, (0, 0))
        partitions = spark.conf.get("spark.sql.shuffle.partitions")
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        try:
            started = time.perf_counter()
            queries = [_started(spark, files, w, run.folder / f"checkpoint-{w}", found) for w in windows]
            for query in queries:
                query.awaitTermination()
            taken = time.perf_counter() - started
        finally:
            spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    _check(STREAMING, found, right)
    return taken


def _started(spark: SparkSession, files: Path, window: int, checkpoint: Path, found: Found) -> StreamingQuery:
    def note(frame: DataFrame, _: int) -> None:
        [row] = frame.selectExpr("count(*)", "coalesce(sum(x * 1000L + y), 0)").collect()
        found[window] = (found[window][0] + row[0], found[window][1] + row[1])

    joined = _stream(spark, files / "a", "a").join(_stream(spark, files / "b", "b"), _condition(window))
    chosen = joined.selectExpr("a.k AS k", "a.v AS x", "b.v AS y")
    writer = chosen.writeStream.foreachBatch(note).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def _stream(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    source = spark.readStream.schema("k STRING, v INT, t TIMESTAMP").option("maxFilesPerTrigger", 1)
    return source.parquet(str(folder)).withWatermark("t", "0 seconds").alias(name)


def _condition(window: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    near = f"a.t BETWEEN b.t - INTERVAL {window} SECOND AND b.t + INTERVAL {window} SECOND"
    return F.expr(f"a.k = b.k AND {near}")
