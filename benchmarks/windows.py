"""Sliding windows by plan rewriting, against re-evaluation on Spark: the queries and parameters of DataCell.

sliding      Q1, 10.24M to 102.4M rows a window, 20K a slide: response for each slide (figures 4a and 6a)
selectivity  Q1, 10.24M rows, 20K a slide, 10 to 90 % of the rows selected (figure 5a)
panes        Q1, 10.24M rows, 2 to 4,096 slides a window; Q2, 102,400 rows, 2 to 256; what of a response is
             processing new rows, and what merging (figure 7)
backlog      Q1, one slide, and 100 slides that have waited
join         Q2, two streams, 102,400 and 1,024,000 rows a window, 64 slides a window; and with rows that meet
             a hundredth to 100 others (figures 4b and 5b)
landmark     Q3, 2.5M rows a slide, 40 answers (figure 6b)
chunks       Q1, the newest slide pre-processed in 1 to 64 chunks, and in as many as self-tuning chooses (figure 8)
streaming    a hopping window over time, against Structured Streaming's own `window(…)`
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _svg import Plot, Series
from _windows import GROUPS, REPEATS, SLIDES, WARM, Rows, apart, database, filled, in_turns, slides, stored
from harness import Measure, Run, Target, at_least, at_most, main, seconds
from pyspark.sql import SparkSession

from millstream.database import Database
from millstream.queries.tuning import Chunks

WINDOW, SLIDE = 10_240_000, 20_000
MOST_CHECKED = 2_000_000
"""Up to here the last answer is checked against the window's rows, which are kept for that."""
INCREMENTAL, AGAIN = "incremental", "re-evaluated"
SPARK_SQL = "spark_sql"
Q2_WINDOW = 102_400
MOST_PANES = 4_096
POWERS = "slides a window (powers of 2)"
MEETINGS = 0.01, 0.1, 1, 10, 100
"""How many others a row meets; of 102,400 rows the first four are the paper's 0.00001 to 0.01 %."""
ADAPTED, PIECES = 40, 64
"""So many answers are watched while self-tuning finds the number of chunks; a slide comes in so many pieces."""


def q1(window: int, slide: int, selected: float = 0.2) -> tuple[str, str]:
    """Q1 as a continuous query's body, and as Spark asks it of the window's rows."""
    bound = round(GROUPS * (1 - selected)) - 1
    text = f"SELECT x1, sum(x2) AS total FROM s{{}} WHERE x1 > {bound} GROUP BY x1"
    return text.format(f" [ROWS {window}]") + f" SAMPLE ROWS {slide}", text.format("")


@contextmanager
def _q1(
    run: Run, window: int, slide: int, selected: float = 0.2
) -> Iterator[tuple[Database, Callable[[], object]]]:
    """A database with Q1 over a full window, and what inserts a slide; the last answer is checked at the end."""
    with database(run.folder / "db") as db:
        rows = Rows()
        db.sql("CREATE STREAM s (x1 INT, x2 INT)")
        db.sql(f"CREATE CONTINUOUS QUERY q AS {q1(window, slide, selected)[0]}")
        rows.keeps = window <= MOST_CHECKED
        filled(db, "s", rows, window)
        yield db, lambda: db.insert("s", rows.next(slide))
        if rows.keeps:
            _check_q1(db, rows.last(window), selected)


def _check_q1(db: Database, rows: pd.DataFrame, selected: float) -> None:
    chosen = rows[rows["x1"] > round(GROUPS * (1 - selected)) - 1]
    expected = chosen.groupby("x1")["x2"].sum().to_dict()
    if dict(db.results("q")[-1].fetchall()) != expected:
        raise AssertionError("Q1 gave another answer than its rows")


def _spark(run: Run) -> SparkSession:
    with database(run.folder / "spark") as db:
        return db.spark


def _median(taken: Sequence[float]) -> float:
    return statistics.median(taken) * 1_000


def sliding(run: Run) -> Sequence[Measure]:
    """Q1: response for each slide, as the window grows."""
    slide = run.scaled(SLIDE)
    found: dict[int, tuple[list[float], list[float]]] = {}
    for window in (run.scaled(WINDOW), run.scaled(3 * WINDOW), run.scaled(10 * WINDOW)):
        folder = stored(run.folder / "rows", Rows(), window)
        with _q1(run, window, slide) as (db, insert):
            found[window] = in_turns(db, insert, q1(window, slide)[1], {"s": folder})
        shutil.rmtree(folder)
    smallest, largest = min(found), max(found)
    targets = {smallest: at_least(5), largest: at_least(40)}
    measures = [_times(f"Q1, {window:,} rows", *own, targets.get(window)) for window, own in found.items()]
    flat = _median(found[largest][0]) / _median(found[smallest][0])
    measures.append(Measure(f"Q1, response at {largest:,} over {smallest:,} rows", flat, "×", at_most(1.5)))
    _plot_slides(run, "q1", *found[smallest])
    _plot(run, "sliding", "rows a window (millions)", {
        INCREMENTAL: [(w / 1e6, _median(f)) for w, (f, _) in found.items()],
        AGAIN: [(w / 1e6, _median(s)) for w, (_, s) in found.items()],
    })  # fmt: skip
    return measures


def selectivity(run: Run) -> Sequence[Measure]:
    """Q1: response as more rows are selected."""
    window, slide = run.scaled(WINDOW), run.scaled(SLIDE)
    folder = stored(run.folder / "rows", Rows(), window)
    measures, lines = [], {INCREMENTAL: [], AGAIN: []}  # type: ignore[var-annotated]
    for percent in (10, 30, 50, 70, 90):
        with _q1(run, window, slide, percent / 100) as (db, insert):
            fast, slow = in_turns(db, insert, q1(window, slide, percent / 100)[1], {"s": folder})
        samples = {INCREMENTAL: fast, AGAIN: slow}
        measures.append(Measure(f"Q1, {percent} % selected", _median(slow) / _median(fast), "×", None, samples))
        lines[INCREMENTAL].append((percent, _median(fast)))
        lines[AGAIN].append((percent, _median(slow)))
    _plot(run, "selectivity", "selected (%)", lines)
    return measures


def panes(run: Run) -> Sequence[Measure]:
    """Q1 and Q2: response as a window of one size is cut into more slides."""
    # The last answer is that of the last row, however many slides a window has.
    window, again = max(1, run.scaled(WINDOW) // MOST_PANES) * MOST_PANES, list[float]()
    folder = stored(run.folder / "rows", Rows(), window)
    taken, parts = {}, {}
    for count in (2, 8, 64, 512, MOST_PANES):
        slide = max(1, window // count)
        with _q1(run, window, slide) as (db, insert):
            slides(db, insert, WARM)
            taken[count] = slides(db, insert, REPEATS if count < 64 else SLIDES)
            parts[count] = apart(db, insert)
            again = again or in_turns(db, insert, q1(window, slide)[1], {"s": folder})[1]
    shutil.rmtree(folder)
    flat = max(_median(taken[512]), _median(taken[MOST_PANES])) / _median(taken[64])
    # 64 slides are large enough for jobs of Spark; these two are both done in the driver.
    flat_here = _median(taken[MOST_PANES]) / _median(taken[512])
    _plot(run, "panes-q1", POWERS, {
        INCREMENTAL: [(float(np.log2(n)), _median(t)) for n, t in taken.items()],
        AGAIN: [(float(np.log2(n)), _median(again)) for n in taken],
    })  # fmt: skip
    _plot_apart(run, "panes-q1-apart", parts)
    samples = {str(n): t for n, t in taken.items()} | {AGAIN: again}
    return [
        Measure("Q1, response at 512 and 4,096 slides over 64", flat, "×", at_most(1.5), samples, _notes(parts)),
        Measure("Q1, response at 4,096 slides over 512", flat_here, "×", at_most(1.5), samples),
        *_panes_of_a_join(run),
    ]


def _panes_of_a_join(run: Run) -> Sequence[Measure]:
    window = run.scaled(Q2_WINDOW)
    found, parts = {}, dict[int, tuple[float, float]]()
    for count in (2, 16, 64, 256):
        found[count] = _q2(run, Q2, window, max(1, window // count), look=partial(_note_apart, parts, count))
    _plot(run, "panes-q2", POWERS, {
        INCREMENTAL: [(float(np.log2(n)), _median(f)) for n, (f, _) in found.items()],
        AGAIN: [(float(np.log2(n)), _median(s)) for n, (_, s) in found.items()],
    })  # fmt: skip
    _plot_apart(run, "panes-q2-apart", parts)
    measures = [_times(f"Q2, {count} slides a window", *own) for count, own in found.items()]
    return [replace(measures[0], notes=_notes(parts)), *measures[1:]]


def _note_apart(
    parts: dict[int, tuple[float, float]], count: int, db: Database, insert: Callable[[], object]
) -> None:
    parts[count] = apart(db, insert)


def _plot_apart(run: Run, name: str, parts: dict[int, tuple[float, float]]) -> None:
    """By the number of slides a window: what a response consists of."""
    _plot(run, name, POWERS, {
        "processing": [(float(np.log2(n)), processing) for n, (processing, _) in parts.items()],
        "merging": [(float(np.log2(n)), merging) for n, (_, merging) in parts.items()],
    })  # fmt: skip


def _notes(parts: dict[int, tuple[float, float]]) -> dict[str, object]:
    return {"processing_and_merging_ms": {n: [round(ms, 2) for ms in own] for n, own in parts.items()}}


def backlog(run: Run) -> Sequence[Measure]:
    """Q1: one slide, and many at once.

    Spark does many at once whatever the executor. By default one slide is no job at all, so that many are also
    compared with one that is a job.
    """
    found = {executor: _backlog(run, executor) for executor in ("auto", SPARK_SQL)}
    one, many = ({executor: own[n] for executor, own in found.items()} for n in (0, 1))
    by_spark, over = _median(one[SPARK_SQL]), "100 slides over one"
    return [
        Measure(f"Q1, executor {SPARK_SQL}: {over}", _median(many[SPARK_SQL]) / by_spark, "×", at_most(8),
                {"1 slide": one[SPARK_SQL], "100 slides": many[SPARK_SQL]}),
        Measure(f"Q1, executor auto: {over} by Spark", _median(many["auto"]) / by_spark, "×", at_most(8)),
        Measure(f"Q1, executor auto: {over}", _median(many["auto"]) / _median(one["auto"]), "×", None,
                {"1 slide": one["auto"], "100 slides": many["auto"]}),
    ]  # fmt: skip


def _backlog(run: Run, executor: str) -> tuple[list[float], list[float]]:
    """How long one slide takes, and how long 100 that have waited."""
    with _q1(run, run.scaled(WINDOW), run.scaled(SLIDE)) as (db, insert):
        db.sql(f"SET executor = {executor}")
        slides(db, insert, WARM)
        one, many = slides(db, insert, SLIDES), []
        for _ in range(2 * WARM):
            for _ in range(100):
                insert()
            many.append(seconds(db.drain))
    return one, many[WARM:]


Q2 = "SELECT max(s1.x1) AS m, avg(s2.x1) AS a FROM a{} s1, b{} s2 WHERE s1.x2 = s2.x2"
PAIRS = "SELECT count(*) AS m, avg(s1.x1 * s2.x1) AS a FROM a{} s1, b{} s2 WHERE s1.x2 = s2.x2"


def join(run: Run) -> Sequence[Measure]:
    """Q2: two streams joined."""
    measures = []
    for label, text, size, target in (
        ("Q2", Q2, Q2_WINDOW, at_least(1)),
        ("Q2", Q2, 10 * Q2_WINDOW, at_least(3)),
        ("of both rows", PAIRS, Q2_WINDOW, None),
        ("of both rows", PAIRS, 10 * Q2_WINDOW, None),
    ):
        window = run.scaled(size)
        found = _q2(run, text, window, max(1, window // 64))
        if text == Q2 and size == Q2_WINDOW:
            _plot_slides(run, "q2", *found)
        measures.append(_times(f"{label}, {window:,} rows", *found, target))
    return [*measures, *_meeting(run)]


def _meeting(run: Run) -> Sequence[Measure]:
    """Q2: response as rows meet more others."""
    window = run.scaled(Q2_WINDOW)
    found = {meets: _q2(run, Q2, window, max(1, window // 64), meets) for meets in MEETINGS}
    _plot(run, "join-selectivity", "others that a row meets (powers of 10)", {
        INCREMENTAL: [(float(np.log10(m)), _median(f)) for m, (f, _) in found.items()],
        AGAIN: [(float(np.log10(m)), _median(s)) for m, (_, s) in found.items()],
    })  # fmt: skip
    return [_times(f"Q2, each row meets about {meets:g}", *own) for meets, own in found.items()]


def _times(name: str, fast: list[float], slow: list[float], target: Target | None = None) -> Measure:
    samples = {INCREMENTAL: fast, AGAIN: slow}
    return Measure(f"{name}: re-evaluated over incremental", _median(slow) / _median(fast), "×", target, samples)


def _joined(seed: int, window: int, meets: float) -> Rows:
    """A stream of which each row meets about so many of the other's window."""
    return Rows(seed=seed, others=max(1, round(window / meets)))


def _q2(
    run: Run,
    text: str,
    window: int,
    slide: int,
    meets: float = 10,
    look: Callable[[Database, Callable[[], object]], None] | None = None,
) -> tuple[list[float], list[float]]:
    """Windows of time hold so many rows as one comes in each unit of time."""
    with database(run.folder / "db") as db:
        rows = {n: _joined(i, window, meets) for i, n in enumerate("ab")}
        for name in rows:
            db.sql(f"CREATE STREAM {name} (x1 INT, x2 INT, t BIGINT) TIMESTAMP BY t")
        body = text.format(f" [INTERVAL {window - 1}]", f" [INTERVAL {window - 1}]")
        db.sql(f"CREATE CONTINUOUS QUERY q AS {body} SAMPLE INTERVAL {slide}")
        at = 0

        def insert(count: int) -> None:
            nonlocal at
            for name, source in rows.items():
                times = pa.array(np.arange(at, at + count))
                db.insert(name, source.next(count).append_column("t", times))
            at += count

        for source in rows.values():
            source.keeps = window <= MOST_CHECKED
        insert(window)
        db.drain()
        folders = {n: stored(run.folder / n, _joined(i, window, meets), window) for i, n in enumerate("ab")}
        found = in_turns(db, lambda: insert(slide), text.format("", ""), folders)
        if look is not None:
            look(db, lambda: insert(slide))
        if all(source.keeps for source in rows.values()):
            _check_q2(db, rows, window, is_about_pairs=text == PAIRS)
        return found


def _check_q2(db: Database, rows: dict[str, Rows], window: int, *, is_about_pairs: bool) -> None:
    last = db.results("q")[-1]
    assert isinstance(last.instant, int)
    # Rows that came after the last instant are not in its windows.
    frames = []
    for source in rows.values():
        every = source.last(sum(t.num_rows for t in source._made))
        frames.append(every.iloc[max(0, last.instant - window + 1) : last.instant + 1])
    frames = [f.astype(np.int64) for f in frames]
    a = frames[0].groupby("x2")["x1"].agg(["max", "sum", "count"])
    b = frames[1].groupby("x2")["x1"].agg(["sum", "count"])
    both = a.join(b, how="inner", lsuffix="_a", rsuffix="_b")
    pairs = (both["count_a"] * both["count_b"]).sum()
    expected = (both["max"].max(), (both["sum_b"] * both["count_a"]).sum() / pairs)
    if is_about_pairs:
        expected = (pairs, (both["sum_a"] * both["sum_b"]).sum() / pairs)
    found = last.fetchall()[0]
    if found[0] != expected[0] or abs(found[1] - expected[1]) > 1e-9 * abs(expected[1]):
        raise AssertionError(f"Q2 gave {found} instead of {expected}")


def landmark(run: Run) -> Sequence[Measure]:
    """Q3: a window that only grows."""
    slide = run.scaled(2_500_000)
    with database(run.folder / "db") as db:
        rows = Rows()
        db.sql("CREATE STREAM s (x1 INT, x2 INT)")
        bound = round(GROUPS * 0.8)
        db.sql(
            "CREATE CONTINUOUS QUERY q AS SELECT max(x1) AS m, sum(x2) AS total FROM s [LANDMARK]"
            f" WHERE x1 > {bound} SAMPLE ROWS {slide}"
        )
        totals = [0, 0]

        def insert() -> None:
            some = rows.next(slide)
            chosen = some.filter(pc.greater(some.column("x1"), bound))
            totals[0] = max(totals[0], pc.max(chosen.column("x1")).as_py() or 0)
            totals[1] += pc.sum(chosen.column("x2")).as_py() or 0
            db.insert("s", some)

        taken, again = list[float](), list[tuple[float, float]]()
        for number in range(10, 41, 10):
            taken += slides(db, insert, 10)
            folder = stored(run.folder / "rows", Rows(), number * slide)
            again.append((number, _landmark_again(db, folder, bound)))
            shutil.rmtree(folder)
        if db.results("q")[-1].fetchall() != [tuple(totals)]:
            raise AssertionError(f"Q3 gave another answer than {totals}")
    _plot(run, "landmark", "answer", {
        INCREMENTAL: [(i + 1, t * 1_000) for i, t in enumerate(taken)],
        AGAIN: [(n, t * 1_000) for n, t in again],
    })  # fmt: skip
    late, early = statistics.median(taken[-3:]), statistics.median(taken[1:4])
    notes = {"second_ms": taken[1] * 1_000, "fortieth_ms": taken[-1] * 1_000, "re_evaluated_s": dict(again)}
    return [Measure("Q3, 40th answer over the 2nd", late / early, "×", at_most(1.3), {"answers": taken}, notes)]


def _landmark_again(db: Database, folder: Path, bound: int) -> float:
    """How long Spark takes for all rows so far."""
    db.spark.read.parquet(str(folder)).createOrReplaceTempView("s")
    text = f"SELECT max(x1) AS m, sum(x2) AS total FROM s WHERE x1 > {bound}"
    return min(seconds(lambda: db.spark.sql(text).toArrow()) for _ in range(WARM))


def chunks(run: Run) -> Sequence[Measure]:
    """Q1: what is left to do when a slide is complete, if it was pre-processed in chunks."""
    window, slide = run.scaled(WINDOW // 4), run.scaled(100 * SLIDE // 4)
    taken: dict[int, list[float]] = {}
    with database(run.folder / "db") as db:
        rows = Rows()
        db.sql("CREATE STREAM s (x1 INT, x2 INT)")
        db.sql(f"CREATE CONTINUOUS QUERY q AS {q1(window, slide)[0]}")
        filled(db, "s", rows, window)
        for count in (1, 4, 16, 64):
            # Rows would otherwise wait until as many are there as self-tuning finds worth a step.
            db.sql(f"SET chunks = {count}")
            taken[count] = [_in_chunks(db, rows, slide, count) for _ in range(REPEATS)]
        adapted = _adapted(db, rows, slide)
    _plot(run, "chunks", "chunks (powers of 2)", {
        "response": [(float(np.log2(n)), _median(t)) for n, t in taken.items()]
    })  # fmt: skip
    _plot(run, "chunks-adapted", "answer", {
        "response": [(n, t * 1_000) for n, (_, t) in enumerate(adapted, start=1)]
    })  # fmt: skip
    samples = {str(n): t for n, t in taken.items()} | {"adapted": [t for _, t in adapted]}
    best = min(_median(t) for t in taken.values())
    notes = {"adapted": [m for m, _ in adapted]}
    return [
        Measure("Q1, response in one chunk over the best number", _median(taken[1]) / best, "×", None, samples),
        Measure(
            "Q1, first responses over those once self-tuning has settled",
            _median(samples["adapted"][:3]) / _median(samples["adapted"][-3:]),
            "×",
            None,
            {},
            notes,
        ),
    ]


def _adapted(db: Database, rows: Rows, slide: int) -> list[tuple[int, float]]:
    """Self-tuning from the beginning: for each answer how many chunks were chosen, and its time."""
    db.sql("SET chunks = auto")
    [run] = db._engine.queries.company.runs.values()
    run.chunks, found = Chunks(), list[tuple[int, float]]()
    for _ in range(ADAPTED):
        m = run.chunks.m
        found.append((m, _in_chunks(db, rows, slide, PIECES)))
    return found


def _in_chunks(db: Database, rows: Rows, slide: int, count: int) -> float:
    """How long the answer takes from when the last chunk is there."""
    sizes = [slide // count] * (count - 1)
    for size in sizes:
        db.insert("s", rows.next(size))
        db.drain()
    db.insert("s", rows.next(slide - sum(sizes)))
    return seconds(db.drain)


EVENTS, PER_SECOND, BATCH = 5_000_000, 1_000, 100_000


def streaming(run: Run) -> Sequence[Measure]:
    """A window of ten minutes every minute, by key: rows a second, against Structured Streaming."""
    count, folder = run.scaled(EVENTS), run.folder / "events"
    files = _events(folder, count)
    ours, found = _ours(run, files)
    theirs, expected = _theirs(run, folder, len(files))
    _check_hops(found, expected)
    speed = {"Millstream": count / ours, "Structured Streaming": count / theirs}
    samples = {"Millstream": [ours], "Structured Streaming": [theirs]}
    return [Measure("hopping window, rows a second over theirs", theirs / ours, "×", at_least(5), samples, speed)]


def _events(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    random, made = np.random.default_rng(5), []
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        micros = 1_704_067_200_000_000 + (np.arange(start, start + size) * 1_000_000) // PER_SECOND
        columns = {
            "k": random.integers(0, 1_000, size, dtype=np.int32),
            "v": random.integers(0, 1_000, size, dtype=np.int32),
            "ts": pa.array(micros, pa.timestamp("us", tz="UTC")),
        }
        made.append(folder / f"{start:010}.parquet")
        pq.write_table(pa.table(columns), made[-1])
    return made


Hops = dict[tuple[float, int], tuple[int, int]]
"""By the end of a window and the key: the sum and the count."""


def _check_hops(found: Hops, expected: Hops) -> None:
    """Both give the windows that have ended; theirs keep those back that end with the last batch."""
    last = max((end for end, _ in expected), default=0.0)
    first = min((end for end, _ in found), default=0.0)
    wrong = {k for k, v in found.items() if k[0] <= last and expected.get(k) != v}
    missing = {k for k in expected if first <= k[0] and k not in found}
    if wrong or missing:
        raise AssertionError(f"{len(wrong)} groups differ and {len(missing)} are missing of {len(expected)}")


def _ours(run: Run, files: Sequence[Path]) -> tuple[float, Hops]:
    with database(run.folder / "db") as db:
        db.sql("CREATE STREAM s (k INT, v INT, ts TIMESTAMP) TIMESTAMP BY ts")
        db.sql(
            "CREATE CONTINUOUS QUERY q AS SELECT k, sum(v) AS total, count(*) AS n"
            " FROM HOP(s, ts, INTERVAL '1' MINUTE, INTERVAL '10' MINUTE) GROUP BY k"
        )
        _ = db.spark
        started = time.perf_counter()
        for file in files:
            db.insert("s", pq.read_table(file))
            db.drain()
        taken = time.perf_counter() - started
        deliveries = db.results("q")
        ends = [d.instant.timestamp() for d in deliveries if isinstance(d.instant, datetime)]
        groups = [d.fetchall() for d in deliveries]
        return taken, {(e, k): (total, n) for e, rows in zip(ends, groups, strict=True) for k, total, n in rows}


def _theirs(run: Run, folder: Path, batches: int) -> tuple[float, Hops]:
    from pyspark.sql import functions as F  # noqa: N812

    spark = _spark(run)
    source = spark.readStream.schema("k INT, v INT, ts TIMESTAMP").option("maxFilesPerTrigger", 1)
    windowed = (
        source.parquet(str(folder))
        .withWatermark("ts", "0 seconds")
        .groupBy(F.window("ts", "10 minutes", "1 minute"), "k")
        .agg(F.sum("v").alias("total"), F.count("*").alias("n"))
    )
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    started = time.perf_counter()
    sink = windowed.writeStream.outputMode("append").format("memory").queryName("theirs")
    query = sink.option("checkpointLocation", str(run.folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    taken = time.perf_counter() - started
    if len(query.recentProgress) < min(batches, 100):
        raise AssertionError(f"{len(query.recentProgress)} batches of {batches} were processed")
    rows = spark.sql("SELECT unix_micros(window.end) / 1e6, k, total, n FROM theirs").toPandas()
    return taken, {(float(e), int(k)): (int(total), int(n)) for e, k, total, n in rows.itertuples(index=False)}


def _plot_slides(run: Run, name: str, fast: list[float], slow: list[float]) -> None:
    """Figure 4: one answer after the other; re-evaluations stood in between, at the same distance."""
    apart = len(fast) / len(slow)
    _plot(run, f"slides-{name}", "slide", {
        INCREMENTAL: [(i + 1, t * 1_000) for i, t in enumerate(fast)],
        AGAIN: [((i + 1) * apart, t * 1_000) for i, t in enumerate(slow)],
    })  # fmt: skip


def _plot(run: Run, name: str, across: str, lines: dict[str, list[tuple[float, float]]]) -> None:
    if run.plots is not None:
        series = [Series(label, points) for label, points in lines.items()]
        Plot(f"windows: {name}", across, "response (ms)", series).save(run.plots / f"windows-{name}.svg")


PARTS = {
    "sliding": sliding,
    "selectivity": selectivity,
    "panes": panes,
    "backlog": backlog,
    "join": join,
    "landmark": landmark,
    "chunks": chunks,
    "streaming": streaming,
}

if __name__ == "__main__":
    sys.exit(main("windows", PARTS, __doc__ or ""))
