"""Thousands of standing queries that share passes, panes and SteMs, against the same queries one by one.

selections   1 to 10,000 selections on one stream, every row for about ten of them: rows a second; 1,000 on Spark
fanout       all subscribers of 1,000 and of 10,000 selections: from the insert until each has its rows
adding       one more query, and one fewer, where there are 10,000; what the next basket then takes
aggregates   100 aggregates with other windows, slides and predicates: together, each by itself, each on Spark
filters      codes by tables and by binary search; grouped filters in NumPy and as expressions of Spark
eddy         another attribute is the telling one by and by: the lottery of tickets against every fixed order
joins        20 joins of two streams that share SteMs, and each by itself
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _filters import FAR, NEAR, TEXT, constants, in_numpy, in_spark, looked_up, operators
from _sharing import (
    ATTRIBUTES,
    BROAD,
    NARROW,
    RANDOM,
    TICKETS,
    Asking,
    Contender,
    Separately,
    apart,
    askings,
    check_selections,
    created,
    database,
    fixed,
    jobs_of,
    matcher,
    race,
    selection_rows,
    smoothed,
)
from _svg import Plot, Series
from harness import Measure, Run, at_least, at_most, in_turns, main, ratio, seconds

from millstream.database import Database

BASKET = 50_000
WARM, REPEATS = 3, 7
"""Baskets that are not timed, and that are."""
FEW, MANY, MOST = 100, 1_000, 10_000
"""The numbers of selections that targets speak of."""
SPARK, SAMPLED = "Spark", 20
"""So many of the selections are run on Spark; all of them take as much longer as there are more."""
TOGETHER, ALONE = "together", "alone"


def _baskets(run: Run) -> tuple[int, int]:
    """How many baskets are not timed, and how many there are."""
    return run.scaled(WARM), run.scaled(WARM) + run.scaled(REPEATS, 2)


def _counts(run: Run) -> tuple[int, int, int, int, int]:
    """The numbers of selections; smaller at small scales, but never in another order."""
    return 1, 10, run.scaled(FEW, 20), run.scaled(MANY, 30), run.scaled(MOST, 40)


def selections(run: Run) -> Sequence[Measure]:
    """Rows a second for each number of queries, from the insert until everything is delivered."""
    counts, (warm, number) = _counts(run), _baskets(run)
    baskets = selection_rows(run.scaled(BASKET, 500), number)
    asked = {count: askings(count) for count in counts}
    with ExitStack() as stack:
        databases: dict[int, Database] = {}
        for count in counts:
            databases[count] = stack.enter_context(database(run.folder / str(count)))
            created(databases[count], asked[count])
        separately = _separately(run, databases[1], asked[counts[3]], baskets)
        samples = _selected(databases, separately, baskets, warm)
        rows = pa.concat_tables(baskets)
        for count, db in databases.items():
            check_selections(db, asked[count], rows)
    return _selection_measures(run, samples, baskets[0].num_rows)


def _separately(run: Run, db: Database, asked: Sequence[Asking], baskets: Sequence[pa.Table]) -> Separately:
    """Some of the selections on Spark; the baskets are written ahead, and what is found is checked."""
    files = _written(run, baskets)
    sampled = [asked[i] for i in _some(run, len(asked))]
    made = Separately(db.spark, sampled, files)
    if made.run(0) != sum(len(one.ids(baskets[0])) for one in sampled):
        raise AssertionError("Spark has selected other rows")
    return made


def _written(run: Run, baskets: Sequence[pa.Table]) -> list[Path]:
    """Baskets as files, for Spark."""
    files = [run.folder / f"{number:03}.parquet" for number in range(len(baskets))]
    for file, basket in zip(files, baskets, strict=True):
        pq.write_table(basket, file)
    return files


def _some(run: Run, count: int) -> list[int]:
    """The numbers of those that are run on Spark, from the first to the last."""
    return [int(i) for i in np.unique(np.linspace(0, count - 1, run.scaled(SAMPLED, 3), dtype=int))]


def _selected(
    databases: Mapping[int, Database], separately: Separately, baskets: Sequence[pa.Table], warm: int
) -> dict[str, list[float]]:
    def taking(db: Database) -> Callable[[int], object]:
        def take(number: int) -> None:
            db.insert("s", baskets[number])
            db.drain()

        return take

    works = {str(count): taking(db) for count, db in databases.items()} | {SPARK: separately.run}
    samples = {name: taken[warm:] for name, taken in in_turns(works, len(baskets)).items()}
    many = sorted(databases)[3]
    samples[SPARK] = [taken / len(separately.asked) * many for taken in samples[SPARK]]
    return samples


def _selection_measures(run: Run, samples: Mapping[str, Sequence[float]], rows: int) -> list[Measure]:
    counts = _counts(run)
    few, many, most = (str(c) for c in counts[2:])
    speed = {count: rows / statistics.median(samples[str(count)]) for count in counts}
    _plot(run, "selections", "queries (powers of 10)", "rows a second", {
        "shared": [(float(np.log10(count)), value) for count, value in speed.items()]
    })  # fmt: skip
    measures = [
        Measure(f"selections, {count:,}: rows a second", value, "/s", None, {"basket": samples[str(count)]})
        for count, value in speed.items()
    ]
    sampled = len(_some(run, counts[3]))
    notes = {"spark": f"{sampled} of the queries, a thread for each core; extrapolated by their number"}
    over = {TOGETHER: samples[many], SPARK: samples[SPARK]}
    name = f"selections, {counts[3]:,}: separately on Spark over shared"
    measures.append(Measure(name, ratio(over, SPARK, TOGETHER), "×", at_least(50), over, notes))
    flat = ratio(samples, few, most)
    name = f"selections, {counts[4]:,}: rows a second over those at {counts[2]:,}"
    return [*measures, Measure(name, flat, "×", at_least(1 / 3))]


def fanout(run: Run) -> Sequence[Measure]:
    """From the insert of a small basket until every subscriber has read its rows."""
    found = [(count, *_handed(run, count)) for count in _counts(run)[3:]]
    return [
        Measure(f"{count:,} subscribers: until all have read a small basket", _ms(taken), "ms", None,
                {"basket": taken}, {"deliveries": deliveries, "spark_jobs": jobs})
        for count, taken, deliveries, jobs in found
    ]  # fmt: skip


def _handed(run: Run, count: int) -> tuple[list[float], int, int]:
    """How long baskets took until all had read theirs, how many deliveries they read, and what jobs that took."""
    asked, baskets = askings(count), selection_rows(run.scaled(1_000, 50), WARM + REPEATS)
    with database(run.folder / str(count)) as db:
        created(db, asked)
        subscribed = [db.subscribe(f"q{number}", timeout=60) for number in range(count)]
        before, deliveries, taken = jobs_of(db), 0, list[float]()
        for basket in baskets:
            due = [one.ids(basket) for one in asked]
            started = time.perf_counter()
            db.insert("s", basket)
            db.drain()
            for subscription, mine in zip(subscribed, due, strict=True):
                given = 0
                while given < len(mine):
                    given += next(subscription).to_arrow().num_rows
                    deliveries += 1
            taken.append(time.perf_counter() - started)
        check_selections(db, asked, pa.concat_tables(baskets))
        return taken[WARM:], deliveries, jobs_of(db) - before


def adding(run: Run) -> Sequence[Measure]:
    """One query more and one fewer, beside as many as there may well be."""
    count, times = _counts(run)[4], run.scaled(50, 5)
    baskets = iter(selection_rows(run.scaled(1_000, 50), 3 * times + WARM))
    with database(run.folder / "db") as db:
        growth = created(db, askings(count))

        def basket() -> float:
            db.insert("s", next(baskets))
            return seconds(db.drain)

        for _ in range(WARM):
            basket()
        plain, added, after, dropped = list[float](), list[float](), list[float](), list[float]()
        for number, one in enumerate(askings(count)[:times]):
            plain.append(basket())
            create, drop = f"CREATE CONTINUOUS QUERY x{number} AS {one.body}", f"DROP CONTINUOUS QUERY x{number}"
            added.append(seconds(lambda text=create: db.sql(text)))  # type: ignore[misc]
            after.append(basket())
            dropped.append(seconds(lambda text=drop: db.sql(text)))  # type: ignore[misc]
            # The first basket after a change pays for it; the next one here is to find nothing changed.
            basket()
    step = max(1, count // 50)
    points = [(float(i), _ms(growth[i : i + step])) for i in range(0, count, step)]
    _plot(run, "adding", "queries there are", "time to add one (ms)", {"median": points})
    return [
        Measure(f"adding a query to {count:,}", _ms(added), "ms", at_most(50), {"added": added}),
        Measure(f"dropping one of {count:,}", _ms(dropped), "ms", None, {"dropped": dropped}),
        Measure("a small basket, nothing changed", _ms(plain), "ms", None, {"basket": plain}),
        Measure("a small basket after one was added", _ms(after), "ms", None, {"basket": after}),
    ]


def _ms(taken: Sequence[float]) -> float:
    return statistics.median(taken) * 1_000


AGGREGATES, SPAN, GROUPS = 100, 60, 100
"""A basket is so many units of time long."""
SLIDES = (5, 6, 10, 12, 15, 20, 30, 60)
WHERES = ("", "v > 250", "w < 5", "v BETWEEN 100 AND 800 AND w <> 3", "w IN (1, 2, 7)")
SUMS = "SELECT k, sum(v) AS x, count(*) AS n FROM s"


def _aggregate(number: int) -> tuple[int, int, str]:
    """The window, the slide and the predicate of a query."""
    return SPAN + 6 * number, SLIDES[number % len(SLIDES)], WHERES[number % len(WHERES)]


def aggregates(run: Run) -> Sequence[Measure]:
    """Aggregates over windows: together, each by itself in the same engine, each answer by Spark."""
    count, random, (warm, made) = run.scaled(AGGREGATES, 6), np.random.default_rng(6), _baskets(run)
    baskets = [_aggregated(random, number, run.scaled(BASKET, 300)) for number in range(made)]
    with database(run.folder / TOGETHER) as together, database(run.folder / ALONE) as alone:
        for db in (together, alone):
            db.sql("CREATE STREAM s (k INT, v INT, w INT, t BIGINT) TIMESTAMP BY t")
            for number in range(count):
                window, slide, where = _aggregate(number)
                text = (
                    f"{SUMS} [INTERVAL {window}]{where and ' WHERE ' + where} GROUP BY k SAMPLE INTERVAL {slide}"
                )
                db.sql(f"CREATE CONTINUOUS QUERY q{number} AS {text}")
        samples = _both(together, alone, [{"s": basket} for basket in baskets], warm)
        found = {number: _answers(together, number) for number in range(count)}
        if found != {number: _answers(alone, number) for number in range(count)}:
            raise AssertionError("together the aggregates have given other answers")
        pq.write_table(pa.concat_tables(baskets), run.folder / "rows.parquet")
        samples[SPARK] = _on_spark(run, together, found)
    answers = sum(SPAN / _aggregate(number)[1] for number in range(count))
    samples[SPARK] = [taken * answers for taken in samples[SPARK]]
    notes = {"spark": f"{len(samples[SPARK])} answers, one after the other; extrapolated by their number"}
    name = f"aggregates, {count}:"
    rate = baskets[0].num_rows / statistics.median(samples[TOGETHER])
    return [
        Measure(f"{name} rows a second", rate, "/s", None, samples, {"answers_a_basket": answers}),
        Measure(f"{name} on Spark over together", ratio(samples, SPARK, TOGETHER), "×", at_least(10), {}, notes),
        Measure(f"{name} each by itself over together", ratio(samples, ALONE, TOGETHER), "×"),
    ]


def _aggregated(random: np.random.Generator, number: int, rows: int) -> pa.Table:
    return pa.table({
        "k": random.integers(0, GROUPS, rows, dtype=np.int32),
        "v": random.integers(0, 1_000, rows, dtype=np.int32),
        "w": random.integers(0, 10, rows, dtype=np.int32),
        "t": np.sort(random.integers(number * SPAN, (number + 1) * SPAN, rows)),
    })  # fmt: skip


def _both(
    together: Database, alone: Database, baskets: Sequence[Mapping[str, pa.Table]], warm: int
) -> dict[str, list[float]]:
    """Baskets, each of one or more streams, through both databases in turns."""

    def take(db: Database, number: int) -> None:
        for stream, rows in baskets[number].items():
            db.insert(stream, rows)
        db.drain()

    def take_alone(number: int) -> None:
        with apart():
            take(alone, number)

    works: dict[str, Callable[[int], object]] = {TOGETHER: partial(take, together), ALONE: take_alone}
    return {name: taken[warm:] for name, taken in in_turns(works, len(baskets)).items()}


Answers = dict[Any, list[tuple[Any, ...]]]


def _answers(db: Database, number: int) -> Answers:
    """What a query has answered, by instant; all deliveries of one count together."""
    found: Answers = {}
    for delivery in db.results(f"q{number}"):
        found.setdefault(delivery.instant, []).extend(delivery.fetchall())
    return {instant: sorted(rows) for instant, rows in found.items()}


def _on_spark(run: Run, db: Database, found: Mapping[int, Answers]) -> list[float]:
    """How long Spark takes for the last answers of some queries, which are compared."""
    db.spark.read.parquet(str(run.folder / "rows.parquet")).createOrReplaceTempView("s")
    taken = []
    for number in _some(run, len(found)):
        window, _, where = _aggregate(number)
        instant = max(found[number])
        within = f"t BETWEEN {instant - window} AND {instant}"
        query = db.spark.sql(f"{SUMS} WHERE {within}{where and ' AND ' + where} GROUP BY k")
        answer: list[pa.Table] = []
        taken.append(seconds(lambda query=query, answer=answer: answer.append(query.toArrow())))  # type: ignore[misc]
        if sorted(tuple(row.values()) for row in answer[0].to_pylist()) != found[number][instant]:
            raise AssertionError(f"Spark answers query {number} otherwise")
    return taken[min(WARM, len(taken) - 1) :]


KINDS = (NEAR, FAR, TEXT)
IN_NUMPY, IN_SPARK, TABLE, SEARCH = "NumPy", "Spark", "table", "search"
MOST_EXPRESSIONS = 1_000
"""More predicates than that are not tried as expressions of one Spark query."""
FEW_REPEATS = 4
"""The first of these is not timed."""


def filters(run: Run) -> Sequence[Measure]:
    """What grouped filters are made of, each against the other way to do it."""
    counts, rows = _counts(run)[2:], run.scaled(BASKET, 500)
    measures = [_codes(kind, count, rows) for kind in KINDS for count in counts]
    baskets = selection_rows(rows, FEW_REPEATS)
    files = _written(run, baskets)
    with database(run.folder / "db") as db:
        measures += [_filtered(db, askings(c), baskets, files) for c in counts if c <= MOST_EXPRESSIONS]
    return measures


def _codes(kind: str, count: int, rows: int) -> Measure:
    (chosen, searched), values = constants(kind, count, rows)
    looked_up(chosen, values)
    samples: dict[str, list[float]] = {TABLE: [], SEARCH: []}
    for _ in range(REPEATS):
        samples[TABLE].append(looked_up(chosen, values))
        samples[SEARCH].append(looked_up(searched, values))
    name = f"filters, {count:,} constants, {kind}: binary search over {type(chosen).__name__.lower()}"
    return Measure(name, ratio(samples, SEARCH, TABLE), "×", None, samples)


def _filtered(
    db: Database, asked: Sequence[Asking], baskets: Sequence[pa.Table], files: Sequence[Path]
) -> Measure:
    works = {IN_NUMPY: in_numpy(operators(asked), baskets), IN_SPARK: in_spark(db.spark, asked, files)}
    if works[IN_NUMPY](0) != works[IN_SPARK](0):
        raise AssertionError("Spark has matched other rows")
    samples = {name: taken[1:] for name, taken in in_turns(works, len(baskets)).items()}
    name = f"filters, {len(asked):,} selections: Spark expressions over NumPy"
    return Measure(name, ratio(samples, IN_SPARK, IN_NUMPY), "×", None, samples)


RACES = {BROAD: (512, 0.0), NARROW: (4_000, 0.02)}
"""The number of queries, and the share of values that each test asks for where they are narrow."""
RACED = 10_000


def eddy(run: Run) -> Sequence[Measure]:
    """Policies on the operators themselves."""
    measures = []
    for kind, (count, width) in RACES.items():
        operators = matcher(kind, run.scaled(count, 20), width)
        racing = race(operators, run.scaled(RACED, 200), run.scaled(100, 5))
        measures += _race_measures(kind, racing)
        lines = {name: racing[name] for name in (TICKETS, RANDOM, " ".join(ATTRIBUTES))}
        _plot(run, f"eddy-{kind}", "batch", "CPU time (ms)", {
            name: [(float(i), 1_000 * t) for i, t in enumerate(smoothed(one.batches))]
            for name, one in lines.items()
        })  # fmt: skip
    return measures


def _race_measures(kind: str, racing: Mapping[str, Contender]) -> list[Measure]:
    tickets, measures = racing[TICKETS], []
    for phase in ATTRIBUTES:
        best, one = min(fixed(racing), key=lambda named: named[1].total(phase))
        samples = {TICKETS: tickets.taken[phase], best: one.taken[phase]}
        name = f"eddy, {kind} tests, {phase} telling: tickets over the best order"
        measures.append(Measure(name, tickets.total(phase) / one.total(phase), "×", at_most(1.2), samples))
    totals = {name: one.total() for name, one in racing.items()}
    worst, slowest = max(((n, c.total()) for n, c in fixed(racing)), key=lambda named: named[1])
    notes = {"worst": worst, "seconds": totals}
    name = f"eddy, {kind} tests, all phases: worst order over tickets"
    return [*measures, Measure(name, slowest / tickets.total(), "×", at_least(1.5), {}, notes)]


JOINS, JOINED, TIMES = 20, 2_000, 10
"""Queries, rows of each stream in a basket, and the units of time that it is long."""


def joins(run: Run) -> Sequence[Measure]:
    """Joins of two streams with windows and tests of their own."""
    count, rows, (warm, made) = run.scaled(JOINS, 4), run.scaled(JOINED, 50), _baskets(run)
    random = np.random.default_rng(8)
    baskets = [{name: _joined(random, number, rows) for name in ("r", "s")} for number in range(made)]
    with database(run.folder / TOGETHER) as together, database(run.folder / ALONE) as alone:
        for db in (together, alone):
            for stream in ("r", "s"):
                db.sql(f"CREATE STREAM {stream} (k INT, a INT, t BIGINT) TIMESTAMP BY t")
            for number in range(count):
                db.sql(f"CREATE CONTINUOUS QUERY q{number} AS {_join(number)}")
        samples = _both(together, alone, baskets, warm)
        for number in range(count):
            if _answers(together, number) != _answers(alone, number):
                raise AssertionError(f"together, join {number} has given other results")
    rate = 2 * rows / statistics.median(samples[TOGETHER])
    name = f"joins, {count}:"
    return [
        Measure(f"{name} rows a second", rate, "/s", None, samples),
        Measure(f"{name} each by itself over together", ratio(samples, ALONE, TOGETHER), "×"),
    ]


def _join(number: int) -> str:
    left, right = 4 + number % 5 * 4, 4 + number % 7 * 3
    return (
        f"SELECT x.a AS p, y.a AS q, y.t AS t FROM r [INTERVAL {left}] AS x JOIN s [INTERVAL {right}] AS y"
        f" ON x.k = y.k WHERE x.a < {300 + 30 * number} AND y.a >= {10 * number} EMIT NEW"
    )


def _joined(random: np.random.Generator, number: int, rows: int) -> pa.Table:
    """As many keys as rows a basket: each row meets one of each basket that its window reaches."""
    return pa.table({
        "k": random.integers(0, rows, rows, dtype=np.int32),
        "a": random.integers(0, 1_000, rows, dtype=np.int32),
        "t": np.sort(random.integers(number * TIMES, (number + 1) * TIMES, rows)),
    })  # fmt: skip


def _plot(run: Run, name: str, across: str, up: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    if run.plots is not None:
        series = [Series(label, points) for label, points in lines.items()]
        Plot(f"sharing: {name}", across, up, series).save(run.plots / f"sharing-{name}.svg")


PARTS = {
    "selections": selections,
    "fanout": fanout,
    "adding": adding,
    "aggregates": aggregates,
    "filters": filters,
    "eddy": eddy,
    "joins": joins,
}

if __name__ == "__main__":
    sys.exit(main("sharing", PARTS, __doc__ or ""))
