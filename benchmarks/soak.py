"""A day of stream time through 72 continuous queries of all kinds: nothing missing, doubled or wrong, memory flat.

day      86,400 seconds, a batch of 600 rows each five minutes, and a second stream with late rows; after each hour
         all deliveries are compared with what DuckDB says, and the memory of the driver, the JVM (its garbage
         gone) and the workers is looked at
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from _memory import resident
from _soak import STORED, TOTALS, Check, Day, queries
from _svg import Plot, Series
from harness import GIB, Measure, Run, at_most, main

import millstream
from millstream.database import Database

DAY, BATCH, HOUR = 86_400, 300, 3_600
ROWS_A_BATCH, SLOW_ROWS, LATE_ROWS = 600, 20, 3
MOST_LATE = 900
MOST_GROWTH = 0.02
"""By so much of a GiB memory may grow in an hour of stream time, after the first quarter of the day."""
MANY_HOURS = 5


def batches(end: int) -> Iterator[tuple[pa.Table, pa.Table]]:
    """What comes for `s`, in order, and for `u`, with late rows at the end."""
    random = np.random.default_rng(9)
    for start in range(0, end, BATCH):
        times = np.sort(random.integers(start, start + BATCH, ROWS_A_BATCH))
        fast = pa.table({
            "k": random.integers(0, 20, ROWS_A_BATCH, dtype=np.int32),
            "v": random.integers(0, 100, ROWS_A_BATCH),
            "d": random.integers(0, 1_000, ROWS_A_BATCH) / 8,
            "t": times,
        })  # fmt: skip
        times = np.sort(random.integers(start, start + BATCH, SLOW_ROWS))
        late = np.maximum(times[-1] - random.integers(1, MOST_LATE, LATE_ROWS), 0)
        slow = pa.table({
            "k": random.integers(0, 20, SLOW_ROWS + LATE_ROWS, dtype=np.int32),
            "v": random.integers(0, 100, SLOW_ROWS + LATE_ROWS),
            "t": np.concatenate([times, late]),
        })  # fmt: skip
        yield fast, slow


def day(run: Run) -> Sequence[Measure]:
    """Stream a day through all queries and look at what it leaves behind."""
    end = max(2 * HOUR, round(DAY * run.scale))
    started, checked = time.perf_counter(), 0.0
    memory: list[tuple[float, InUse]] = []
    with millstream.connect(run.folder / "db", background=False) as db:
        _create(db)
        rows = Day()
        check = Check(db, rows, queries())
        for number, (fast, slow) in enumerate(batches(end), start=1):
            rows.came(fast, slow)
            db.insert("s", fast)
            db.insert("h", fast)
            db.insert("u", slow)
            db.drain()
            if number % (HOUR // BATCH) == 0:
                begun = time.perf_counter()
                check()
                checked += time.perf_counter() - begun
                memory.append((number * BATCH / HOUR, _in_use(db)))
        _check_kept(db, rows)
    if run.plots is not None:
        series = [
            Series("in use", [(h, m.total) for h, m in memory]),
            Series("Java, resident", [(h, m.java) for h, m in memory]),
        ]
        Plot("soak: memory", "hours of stream time", "GiB", series).save(run.plots / "soak.svg")
    later = memory[len(memory) // 4 :]
    hours = [h for h, _ in later]
    notes = {
        "deliveries": sum(check.seen.values()),
        "late_rows": rows.late,
        "seconds": time.perf_counter() - started,
        "seconds_of_checks": checked,
        "memory": [{"hour": h, "total": m.total, **asdict(m)} for h, m in memory],
    }
    kinds = {"in use": [m.total for _, m in later], "resident": [m.resident for _, m in later]}
    return [
        _growth(f"{len(check.asked)} queries, growth an hour, {kind}", hours, found, notes)
        for kind, found in kinds.items()
    ]


def _growth(name: str, hours: list[float], found: list[float], notes: dict[str, Any]) -> Measure:
    """The slope of memory, with its standard error where there are hours enough to tell."""
    if len(hours) < MANY_HOURS:
        slope, error = np.polyfit(hours, found, 1)[0], None
    else:
        fitted, covariance = np.polyfit(hours, found, 1, cov=True)
        slope, error = fitted[0], float(np.sqrt(covariance[0, 0]))
    return Measure(name, float(slope), "GiB", at_most(MOST_GROWTH), {}, {"standard_error": error, **notes})


def _create(db: Database) -> None:
    db.sql("CREATE STREAM s (k INT, v BIGINT, d DOUBLE, t BIGINT) TIMESTAMP BY t")
    db.sql("CREATE STREAM u (k INT, v BIGINT, t BIGINT) TIMESTAMP BY t")
    stored = f"TIMESTAMP BY t RANGE INTERVAL {STORED}"
    db.sql(f"CREATE STREAMING TABLE h (k INT, v BIGINT, d DOUBLE, t BIGINT) {stored}")
    db.sql(f"CREATE CONTINUOUS VIEW totals AS {TOTALS}")
    db.create_function("odd", lambda value: 2 * value + 1, returns="BIGINT")
    db.sql("CREATE TABLE t (k INT, name STRING)")
    db.insert("t", [(k, f"name {k % 7}") for k in range(20)])
    for name, asked in queries().items():
        db.sql(asked.create.format(name, asked.text))
    db.sql("CREATE STREAMING TABLE kept (k INT, v BIGINT, t BIGINT) TIMESTAMP BY t RANGE UNBOUNDED")
    db.sql("INSERT INTO kept SELECT k, v, t FROM u WHERE v < 50")


@dataclass(frozen=True, slots=True)
class InUse:
    """Memory in GiB when garbage has gone. How far Java lets its heap grow before that is its own affair."""

    driver: float
    workers: float
    heap: float
    beside: float
    """What Java has beside its heap: classes, code, buffers."""
    java: float
    """All that is resident of Java, garbage and room for it included."""

    @property
    def total(self) -> float:
        return self.driver + self.workers + self.heap + self.beside

    @property
    def resident(self) -> float:
        return self.driver + self.workers + self.java


def _in_use(db: Database) -> InUse:
    gateway: Any = db.spark.sparkContext._gateway
    for _ in range(2):
        # What the first one finds unreachable Spark then lets go of.
        gateway.jvm.System.gc()
    management = gateway.jvm.java.lang.management.ManagementFactory
    memory = management.getMemoryMXBean()
    buffers = list(management.getPlatformMXBeans(_class(gateway, "BufferPoolMXBean")))
    beside = memory.getNonHeapMemoryUsage().getCommitted() + sum(b.getMemoryUsed() for b in buffers)
    found = resident(os.getpid())
    heap = memory.getHeapMemoryUsage().getUsed()
    return InUse(*(n / GIB for n in (found.driver, found.workers, heap, beside, found.jvm)))


def _class(gateway: Any, name: str) -> Any:
    return gateway.jvm.java.lang.Class.forName(f"java.lang.management.{name}")


def _check_kept(db: Database, rows: Day) -> None:
    """A standing insert has stored each row once, late ones included."""
    text = "SELECT count(*), sum(k), sum(v), sum(t) FROM {}"
    found = [tuple(map(int, row)) for row in db.sql(text.format("kept")).fetchall()]
    expected = [tuple(map(int, row)) for row in rows.rows(text.format("u WHERE v < 50"))]
    if found != expected:
        raise AssertionError(f"kept: {found} instead of {expected}")


if __name__ == "__main__":
    sys.exit(main("soak", {"day": day}, __doc__ or ""))
