"""A day of stream time through 58 continuous queries of all kinds: nothing missing or doubled, memory flat.

day      86,400 seconds, a batch of 600 rows each five minutes; memory of the driver and the JVM after each hour
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
from _memory import resident
from _svg import Plot, Series
from harness import GIB, Measure, Run, at_most, main

import millstream
from millstream.database import Database

DAY, BATCH, HOUR = 86_400, 300, 3_600
ROWS_A_BATCH = 600
WINDOWS = {
    "time": "[INTERVAL 900]",
    "long": "[INTERVAL 7200]",
    "rows": "[ROWS 500]",
    "partition": "[PARTITION BY k ROWS 5]",
    "landmark": "[LANDMARK]",
    "reset": "[LANDMARK RESET INTERVAL 3600]",
}
SAMPLES = {"interval": "SAMPLE INTERVAL 300", "rows": "SAMPLE ROWS 600"}
SHAPES = {
    "sums": "SELECT k, sum(v) AS a, count(*) AS n FROM s {w} GROUP BY k {s}",
    "one": "SELECT max(v) AS a, avg(d) AS b FROM s {w} WHERE v > 10 {s}",
    "named": "SELECT t.name, count(*) AS n FROM s {w} x JOIN t ON t.k = x.k GROUP BY t.name {s}",
    "values": "SELECT count(DISTINCT v) AS n FROM s {w} {s}",
}
MORE = [
    "SELECT k, v, t FROM s WHERE v = 7",
    "SELECT k, count(*) AS n FROM TUMBLE(s, t, INTERVAL 600) GROUP BY k",
    "SELECT k, sum(v) AS a FROM HOP(s, t, INTERVAL 300, INTERVAL 900) GROUP BY k",
    "SELECT k, count(*) AS n FROM SESSION(TABLE s PARTITION BY k, DESCRIPTOR(t), INTERVAL 25) GROUP BY k",
    "SELECT a.k, stddev(a.v - b.v) AS x FROM s [INTERVAL 120] a JOIN s [INTERVAL 60] b ON a.k = b.k AND a.t < b.t"
    " GROUP BY a.k SAMPLE INTERVAL 300",
    "SELECT a.k, b.v FROM s [INTERVAL 60] a JOIN s [INTERVAL 30] b ON a.k = b.k WHERE a.v = b.v + 3 AND b.d > 120"
    " SAMPLE INTERVAL 60 EMIT NEW",
    "SELECT k, max(v) AS a FROM s [INTERVAL 900] GROUP BY k SAMPLE INTERVAL 300 EMIT CHANGES",
    "SELECT k, v FROM s [INTERVAL 300] ORDER BY v DESC, k, t LIMIT 5 SAMPLE INTERVAL 300",
    "SELECT k, variance(d) AS x, last(v) AS y FROM s [LANDMARK] GROUP BY k SAMPLE INTERVAL 1800",
    "SELECT k, approx_count_distinct(v) AS n FROM s [INTERVAL 3600] GROUP BY k SAMPLE INTERVAL 1800",
]
MOST_GROWTH = 0.02
"""By so much of a GiB memory may grow in an hour of stream time, after the first quarter of the day."""


def queries() -> dict[str, str]:
    found = {
        f"{shape}_{window}_{sample}": text.format(w=WINDOWS[window], s=SAMPLES[sample])
        for shape, text in SHAPES.items()
        for window in WINDOWS
        for sample in SAMPLES
    }
    return found | {f"more_{i}": text for i, text in enumerate(MORE)}


def batches(end: int) -> Iterator[pa.Table]:
    random = np.random.default_rng(9)
    for start in range(0, end, BATCH):
        times = np.sort(random.integers(start, start + BATCH, ROWS_A_BATCH))
        yield pa.table({
            "k": random.integers(0, 20, ROWS_A_BATCH, dtype=np.int32),
            "v": random.integers(0, 100, ROWS_A_BATCH),
            "d": random.integers(0, 1_000, ROWS_A_BATCH) / 8,
            "t": times,
        })  # fmt: skip


def day(run: Run) -> Sequence[Measure]:
    """Stream a day through all queries and look at what it leaves behind."""
    end = max(4 * HOUR, round(DAY * run.scale))
    started = time.perf_counter()
    with millstream.connect(run.folder / "db", background=False) as db:
        names = _create(db)
        seen = dict.fromkeys(names, 0)
        memory: list[tuple[float, float]] = []
        every: list[pa.Table] = []
        for number, batch in enumerate(batches(end), start=1):
            every.append(batch)
            db.insert("s", batch)
            db.drain()
            if number % (HOUR // BATCH) == 0:
                _check(db, seen, number * BATCH)
                memory.append((number * BATCH / HOUR, resident(os.getpid()).total / GIB))
        _check_last(db, pa.concat_tables(every).to_pandas())
    if run.plots is not None:
        Plot("soak: memory", "hours of stream time", "GiB", [Series("memory", memory)]).save(
            run.plots / "soak.svg"
        )
    later = memory[len(memory) // 4 :]
    slope = float(np.polyfit([h for h, _ in later], [m for _, m in later], 1)[0])
    notes = {"deliveries": sum(seen.values()), "seconds": time.perf_counter() - started, "memory": memory}
    return [Measure(f"{len(names)} queries, growth an hour", slope, "GiB", at_most(MOST_GROWTH), {}, notes)]


def _create(db: Database) -> list[str]:
    db.sql("CREATE STREAM s (k INT, v BIGINT, d DOUBLE, t BIGINT) TIMESTAMP BY t")
    db.sql("CREATE TABLE t (k INT, name STRING)")
    db.insert("t", [(k, f"name {k % 7}") for k in range(20)])
    made = queries()
    for name, text in made.items():
        db.sql(f"CREATE CONTINUOUS QUERY {name} AS {text}")
    return list(made)


def _check(db: Database, seen: dict[str, int], upto: int) -> None:
    """No delivery may be missing or there twice."""
    rows = upto // BATCH * ROWS_A_BATCH
    for name in seen:
        found = db.results(name, since=seen[name])
        numbers = [d.sequence for d in found]
        if numbers != list(range(seen[name] + 1, seen[name] + 1 + len(numbers))):
            raise AssertionError(f"{name}: deliveries {numbers} after {seen[name]}")
        seen[name] += len(numbers)
        wanted = {"interval": (upto - 1) // 300, "rows": rows // 600}.get(name.rpartition("_")[2])
        # The first instant may be the beginning of time itself.
        if wanted is not None and seen[name] not in (wanted, wanted + 1):
            raise AssertionError(f"{name}: {seen[name]} answers at {upto}, {wanted} are due")
    failed = [row[0] for row in db.sql("SHOW QUERIES") if row[2] != "running"]
    if failed:
        raise AssertionError(f"not running: {failed}")


def _check_last(db: Database, rows: pd.DataFrame) -> None:
    """The last answers of the windows of time are those of the rows in them."""
    for window, length in (("time", 900), ("long", 7_200), ("landmark", 10 * DAY)):
        name = f"sums_{window}_interval"
        last = db.results(name)[-1]
        assert isinstance(last.instant, int)
        inside = rows[(rows["t"] >= last.instant - length) & (rows["t"] <= last.instant)]
        found = {k: (a, n) for k, a, n in last.fetchall()}
        by_key = inside.groupby("k")["v"].agg(["sum", "count"])
        expected = {int(k): (int(r["sum"]), int(r["count"])) for k, r in by_key.iterrows()}
        if found != expected:
            raise AssertionError(f"{name} at {last.instant}: {found} instead of {expected}")


if __name__ == "__main__":
    sys.exit(main("soak", {"day": day}, __doc__ or ""))
