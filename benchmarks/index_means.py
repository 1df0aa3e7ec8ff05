"""Means for a value index on a streaming table, compared: what each gains, holds on disk and costs to build.

sort       ways to sort the rows of one segment by an integer key
layouts    segments sorted by the key: row group sizes, rows per page, compression, dictionaries
means      no index, interval index, sorted segments, Bloom filters, key map, z-order, sorted copies
settings   what else brings the latency of a range of keys down: partitions, code generation, pyarrow

The rows are position reports as in Linear Road: every vehicle reports each 30 seconds of stream time,
in an order that differs from round to round, and drives on from segment to segment of its expressway.
Each query asks with constants of its own, so that Spark generates its code anew, as it has to for a
user. The answers of all means are compared before any is timed. Nothing here has a target. `cpu_ms` is
what the JVM and this process used, for machines that do other work too.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
from harness import Measure, Run, in_turns, main, seconds
from pyspark import SparkContext
from pyspark.sql import SparkSession

from millstream.execute import session as engine
from millstream.storage.segment import ROW_GROUP_ROWS, SEGMENT_ROWS, sliced

ROWS = 20_000_000
VEHICLES = 100_000
EXPRESSWAYS = 10
PERIOD = 30
SMALL_GROUP = 65_536
SMALL_PAGE = 4_096
FEET_PER_SEGMENT, SEGMENTS = 5_280, 100
RESULTS = (10_000, 30_000, 60_000)
LISTED = 40
WARM_UP, REPEATS = 5, 7
STEP = 2
"""Every other vehicle number is nobody's: such keys are what a filter of what is absent can skip."""
OPTIONS = {"parquet.filter.dictionary.enabled": "false"}
"""The filter by dictionaries makes a set of every dictionary, for ranges too: that costs more than it skips."""
IN_THRESHOLD = "spark.sql.parquet.pushdown.inFilterThreshold"
SCHEMA = pa.schema(
    {n: pa.int32() for n in ("vid", "spd", "xway", "lane", "dir", "seg", "pos")} | {"t": pa.int64()}
)
SPARK_SCHEMA = ", ".join(f"{f.name} {'BIGINT' if f.name == 't' else 'INT'}" for f in SCHEMA)
FEW_VALUES = ("spd", "xway", "lane", "dir", "seg", "t")
"""The columns whose dictionaries are small."""
Numbers = np.ndarray[Any, Any]


# Rows


@dataclass(frozen=True, slots=True)
class Traffic:
    """How much there is."""

    rows: int
    vehicles: int
    period: int
    """How long a time queries ask for."""

    @property
    def end(self) -> int:
        return PERIOD * -(-self.rows // self.vehicles)


def traffic(run: Run) -> Traffic:
    """At small scales fewer vehicles too, so that each still reports a few times."""
    rows = run.scaled(ROWS, 1_000)
    vehicles = min(VEHICLES, rows // 20)
    return Traffic(rows, vehicles, PERIOD * rows // vehicles // 3)


def reports(of: Traffic) -> pa.Table:
    """All rows, in the order of their arrival, which is the order of their times."""
    random = np.random.default_rng(1)
    count = of.vehicles
    place = random.integers(0, FEET_PER_SEGMENT * SEGMENTS, count)
    road, direction = random.integers(0, EXPRESSWAYS, count), random.integers(0, 2, count)
    rounds = []
    for start in range(0, of.end, PERIOD):
        speed = random.integers(40, 100, count)
        place = (place + speed * 44) % (FEET_PER_SEGMENT * SEGMENTS)
        who = random.permutation(count)
        lane, when = random.integers(0, 5, count), start + np.arange(count) * PERIOD // count
        part = [
            who * STEP,
            speed[who],
            road[who],
            lane,
            direction[who],
            place[who] // FEET_PER_SEGMENT,
            place[who],
            when,
        ]
        rounds.append(pa.table([pa.array(c, f.type) for c, f in zip(part, SCHEMA, strict=True)], schema=SCHEMA))
    return pa.concat_tables(rounds).slice(0, of.rows)


# Sorting


def by_arrow(keys: Numbers) -> Numbers:
    return pc.sort_indices(pa.array(keys)).to_numpy()  # type: ignore[no-any-return]


def by_radix(keys: Numbers) -> Numbers:
    """Numpy's stable sort of 16-bit numbers is a radix sort: lower halves first, then the upper ones."""
    shifted = (keys.astype(np.int64) - int(keys.min())).astype(np.uint32)
    order = np.argsort((shifted & 0xFFFF).astype(np.uint16), kind="stable")
    return order[np.argsort((shifted >> 16).astype(np.uint16)[order], kind="stable")]


def by_packing(keys: Numbers) -> Numbers:
    """Key and position in one number: a sort of plain numbers is vectorized, and the position makes it stable."""
    bits = max(1, (len(keys) - 1).bit_length())
    packed = (keys.astype(np.int64) << bits) | np.arange(len(keys))
    packed.sort()
    return packed & ((1 << bits) - 1)


SORTS: dict[str, Callable[[Numbers], Numbers]] = {
    "pyarrow sort_indices": by_arrow,
    "numpy argsort, stable": partial(np.argsort, kind="stable"),
    "numpy argsort, quick": np.argsort,
    "two radix argsorts": by_radix,
    "key and position packed": by_packing,
}
TAKES: dict[str, Callable[[pa.Table, Numbers], pa.Table]] = {
    "Table.take": lambda table, order: table.take(pa.array(order)),
    "numpy, column by column": lambda table, order: pa.table(
        [pa.array(c.to_numpy()[order]) for c in table.columns], schema=table.schema
    ),
}


def z_order(table: pa.Table) -> Numbers:
    """The bits of `vid` and `seg` in turns, from the highest on: near in both means near in the file."""
    vid, seg = table["vid"].to_numpy().astype(np.int64), table["seg"].to_numpy().astype(np.int64)
    wide, narrow = int(vid.max()).bit_length(), int(seg.max()).bit_length()
    code = np.zeros(len(vid), np.int64)
    for bit in range(max(wide, narrow)):
        for value, bits in ((vid, wide), (seg, narrow)):
            if bit < bits:
                code = (code << 1) | ((value >> (bits - 1 - bit)) & 1)
    return by_radix(code)


def sort(run: Run) -> Sequence[Measure]:
    """Milliseconds to sort the rows of one segment, and to put its columns in that order."""
    of = traffic(run)
    table = reports(replace(of, rows=min(of.rows, SEGMENT_ROWS))).combine_chunks()
    keys = table["vid"].to_numpy()
    right = np.argsort(keys, kind="stable")
    for name, way in SORTS.items():
        if not np.array_equal(keys[way(keys)], keys[right]):
            raise AssertionError(f"{name} does not sort")
    works: dict[str, Callable[[int], object]] = {f"order: {n}": partial(_call, w, keys) for n, w in SORTS.items()}
    works |= {f"rows: {n}": partial(_call, w, table, right) for n, w in TAKES.items()}
    works["order: z-order of vid and seg"] = lambda _: z_order(table)
    return _milliseconds(in_turns(works, REPEATS), 0)


def _call(work: Callable[..., object], *arguments: object) -> object:
    """Without the number of the repeat, which comes last."""
    return work(*arguments[:-1])


def _milliseconds(samples: Mapping[str, Sequence[float]], warm_up: int, prefix: str = "") -> list[Measure]:
    counted = {name: [1_000 * s for s in took[warm_up:]] for name, took in samples.items()}
    return [Measure(prefix + n, statistics.median(ms), "ms", samples={"ms": ms}) for n, ms in counted.items()]


# Files


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a segment are ordered and written."""

    name: str
    order: str = "t"
    group: int = ROW_GROUP_ROWS
    page: int | None = None
    compression: str = "snappy"
    dictionary: tuple[str, ...] = tuple(SCHEMA.names)
    deltas: tuple[str, ...] = ()
    bloom: bool = False

    def write(self, rows: pa.Table, path: Path) -> None:
        ndv = {"vid": min(VEHICLES, self.group), "seg": SEGMENTS}
        with path.open("wb") as file:
            pq.write_table(
                rows,
                file,
                row_group_size=self.group,
                max_rows_per_page=self.page,
                compression=self.compression,
                use_dictionary=list(self.dictionary) or False,
                column_encoding=dict.fromkeys(self.deltas, "DELTA_BINARY_PACKED") or None,
                write_page_index=True,
                bloom_filter_options={c: {"ndv": n, "fpp": 0.01} for c, n in ndv.items()} if self.bloom else None,
            )
            os.fsync(file.fileno())

    def make(self, rows: pa.Table, path: Path) -> None:
        self.write(self.ordered(rows), path)

    def ordered(self, rows: pa.Table) -> pa.Table:
        if self.order == "t":
            return rows
        order = z_order(rows) if self.order == "z" else by_radix(rows[self.order].to_numpy())
        return rows.take(pa.array(order))


TIME = Layout("time order")
COPIES = {c: Layout(f"copy by {c}", c, SMALL_GROUP, SMALL_PAGE, dictionary=FEW_VALUES) for c in ("vid", "seg")}
BLOOM = Layout("Bloom filters", bloom=True)
Z = Layout("z-order", "z", SMALL_GROUP, SMALL_PAGE, dictionary=FEW_VALUES)


@dataclass(frozen=True, slots=True)
class Stored:
    """A segment's file, and what the driver knows of it."""

    path: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Files:
    """All segments in one layout, their size, and how long one of 1,048,576 rows takes to make."""

    segments: Sequence[Stored]
    size: int
    seconds_per_million: float

    def during(self, query: Query) -> list[str]:
        """The interval index: the segments whose times meet the period."""
        return [s.path for s in self.segments if s.low <= query.high and s.high >= query.low]


def build(layout: Layout, rows: pa.Table, folder: Path) -> Files:
    """Write all segments, in one thread."""
    into = folder / layout.name.replace(" ", "-").replace(",", "").replace("/", "-")
    into.mkdir()
    stored, took = [], []
    for number, part in enumerate(sliced(rows)):
        path = into / f"{number:04}.parquet"
        segment = part.combine_chunks()
        took.append(seconds(partial(layout.make, segment, path)) / part.num_rows * 1e6)
        bounds = pc.min_max(part["t"])
        stored.append(Stored(str(path), bounds["min"].as_py(), bounds["max"].as_py()))
    size = sum(os.path.getsize(s.path) for s in stored)
    return Files(stored, size, statistics.median(took))


def _files_measure(name: str, files: Files, rows: int) -> Measure:
    notes = {"bytes": files.size, "bytes_per_row": round(files.size / rows, 2), "segments": len(files.segments)}
    return Measure(f"{name}: build, a million rows", files.seconds_per_million, "s", notes=notes)


# Queries


@dataclass(frozen=True, slots=True)
class Query:
    """One question with its constants: a predicate on a key, and a period."""

    column: str
    keys: tuple[int, ...]
    predicate: str
    low: int
    high: int

    @property
    def text(self) -> str:
        return f"{self.predicate} AND t BETWEEN {self.low} AND {self.high}"


Asking = Callable[[Traffic, np.random.Generator], Query]


def of_range(count: int, of: Traffic, random: np.random.Generator) -> Query:
    """A: neighbouring vehicles in a period, about `count` rows."""
    wanted = min(count, of.vehicles * of.period // PERIOD // 20)
    width = max(1, round(wanted / (of.period / PERIOD)))
    first = int(random.integers(0, of.vehicles - width))
    keys = tuple(range(first * STEP, (first + width) * STEP, STEP))
    return Query("vid", keys, f"vid BETWEEN {keys[0]} AND {keys[-1]}", *_period(of, random, of.period))


def of_list(of: Traffic, random: np.random.Generator) -> Query:
    """B: vehicles from anywhere, in a period."""
    keys = tuple(sorted(int(k) * STEP for k in random.choice(of.vehicles, LISTED, replace=False)))
    return Query("vid", keys, f"vid IN ({', '.join(map(str, keys))})", *_period(of, random, of.period))


def of_places(of: Traffic, random: np.random.Generator) -> Query:
    """C: five segments of one expressway."""
    share = 5 / SEGMENTS / EXPRESSWAYS
    length = min(of.period, round(RESULTS[1] / share * PERIOD / of.vehicles))
    predicate = "seg BETWEEN 20 AND 24 AND xway = 0"
    return Query("seg", tuple(range(20, 25)), predicate, *_period(of, random, length))


def of_one(of: Traffic, random: np.random.Generator) -> Query:
    """D: the whole history of a vehicle."""
    key = int(random.integers(0, of.vehicles)) * STEP
    return Query("vid", (key,), f"vid = {key}", int(random.integers(-1_000_000, 0)), of.end)


def of_nobody(of: Traffic, random: np.random.Generator) -> Query:
    """E: a vehicle that never was, though its number lies between those that were."""
    key = int(random.integers(0, of.vehicles)) * STEP + 1
    return Query("vid", (key,), f"vid = {key}", int(random.integers(-1_000_000, 0)), of.end)


def _period(of: Traffic, random: np.random.Generator, length: int) -> tuple[int, int]:
    low = int(random.integers(0, max(1, of.end - length)))
    return low, low + length - 1


A30, B = "A 30,000 rows", "B 40 vehicles"
QUERIES: dict[str, Asking] = {
    A30: partial(of_range, RESULTS[1]),
    "A 10,000 rows": partial(of_range, RESULTS[0]),
    "A 60,000 rows": partial(of_range, RESULTS[2]),
    B: of_list,
    "C places": of_places,
    "D one vehicle": of_one,
    "E no such vehicle": of_nobody,
}


def constants(ask: Asking, of: Traffic, *numbers: int) -> Query:
    return ask(of, np.random.default_rng(numbers))


# Means


@dataclass(frozen=True, slots=True)
class Means:
    """A way to answer."""

    name: str
    answer: Callable[[Query], pa.Table]


Choice = Callable[[Query], Sequence[str]]


def spark_with(**settings: str) -> SparkSession:
    """A session with settings of its own on the one Spark of the process."""
    spark = engine.start("local[2]").newSession()
    for key, value in {**engine.SETTINGS, IN_THRESHOLD: "1000", **settings}.items():
        spark.conf.set(key.replace("__", "."), value)
    return spark


def through_spark(
    spark: SparkSession, choice: Choice, partitions: int = 0, options: Mapping[str, str] = OPTIONS
) -> Callable[[Query], pa.Table]:
    """Spark reads the files that the driver chose for the query."""

    def answer(query: Query) -> pa.Table:
        paths = choice(query)
        if not paths:
            return SCHEMA.empty_table()
        frame = spark.read.options(**options).schema(SPARK_SCHEMA).parquet(*paths).where(query.text)
        return (frame.coalesce(partitions) if partitions else frame).toArrow()

    return answer


def compare(means: Sequence[Means], ask: Asking, of: Traffic, warm_up: int, prefix: str) -> list[Measure]:
    """Milliseconds for every means, in turns, after one round in which all have to agree."""
    _check_same_answers(means, constants(ask, of, 0))
    used: dict[str, list[float]] = {m.name: [] for m in means}

    def work(place: int, each: Means, repeat: int) -> None:
        before = cpu_seconds()
        each.answer(constants(ask, of, 1 + repeat, place))
        used[each.name].append(cpu_seconds() - before)

    works = {m.name: partial(work, place, m) for place, m in enumerate(means)}
    timed = _milliseconds(in_turns(works, warm_up + REPEATS), warm_up, f"{prefix}: ")
    cpu = [round(1_000 * statistics.mean(used[m.name][warm_up:])) for m in means]
    return [replace(measure, notes={"cpu_ms": ms}) for measure, ms in zip(timed, cpu, strict=True)]


def cpu_seconds() -> float:
    """What the JVM and this process have used: other work on the machine changes it less than the time."""
    process = SparkContext._gateway.proc.pid  # type: ignore[union-attr]
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + time.process_time()


def _check_same_answers(means: Sequence[Means], query: Query) -> None:
    answers = {m.name: _fingerprint(m.answer(query)) for m in means}
    if len(set(answers.values())) != 1:
        raise AssertionError(f"{query.text} gives different answers: {answers}")


def _fingerprint(rows: pa.Table) -> tuple[int, ...]:
    return rows.num_rows, *(pc.sum(column).as_py() or 0 for column in rows.columns)


@dataclass(frozen=True, slots=True)
class KeyMap:
    """Which keys each row group holds, in the driver's memory."""

    keys: Mapping[str, Sequence[Numbers]]

    def holds(self, path: str, wanted: Sequence[int]) -> bool:
        return any(np.isin(wanted, group, assume_unique=True).any() for group in self.keys[path])

    @property
    def size(self) -> int:
        return sum(group.nbytes for groups in self.keys.values() for group in groups)


def key_map(rows: pa.Table, files: Files, column: str) -> tuple[KeyMap, float]:
    """The map, and the seconds it takes for a million rows."""
    keys: dict[str, Sequence[Numbers]] = {}

    def fill() -> None:
        for stored, part in zip(files.segments, sliced(rows.select([column])), strict=True):
            keys[stored.path] = [np.unique(g[column].to_numpy()) for g in sliced(part, ROW_GROUP_ROWS)]

    return KeyMap(keys), seconds(fill) / rows.num_rows * 1e6


OTHER_RANGES = ("A 10,000 rows", "A 60,000 rows")
USELESS_FOR_RANGES = ("3 Bloom filters", "4 key map")
"""They read what the interval index reads; one range shows it, and each more takes half a minute."""


def means(run: Run) -> Sequence[Measure]:
    """Every means on every query."""
    of = traffic(run)
    rows = reports(of)
    files = {x.name: build(x, rows, run.folder) for x in (TIME, *COPIES.values(), BLOOM, Z)}
    maps = {column: key_map(rows, files[TIME.name], column) for column in COPIES}
    compared = _means(files, {column: made for column, (made, _) in maps.items()})
    found = [_files_measure(name, made, of.rows) for name, made in files.items()]
    for column, (made, took) in maps.items():
        found.append(Measure(f"key map of {column}: build, a million rows", took, "s", notes={"bytes": made.size}))
    for number, (name, ask) in enumerate(QUERIES.items()):
        # What the JVM compiles in the first rounds serves the other queries too.
        chosen = [m for m in compared if name not in OTHER_RANGES or m.name not in USELESS_FOR_RANGES]
        found += compare(chosen, ask, of, 1 if number else WARM_UP, name)
    return found


def _means(files: Mapping[str, Files], maps: Mapping[str, KeyMap]) -> list[Means]:
    base, by_vid = files[TIME.name], files[COPIES["vid"].name]
    spark, without_filters = spark_with(), spark_with(spark__sql__parquet__filterPushdown="false")

    def mapped(query: Query) -> Sequence[str]:
        return [path for path in base.during(query) if maps[query.column].holds(path, query.keys)]

    def copies(query: Query) -> Sequence[str]:
        return files[COPIES[query.column].name].during(query)

    return [
        Means("0 no index", through_spark(without_filters, lambda _: [s.path for s in base.segments])),
        Means("1 interval index", through_spark(spark, base.during)),
        Means("2 segments sorted by vid", through_spark(spark, by_vid.during)),
        Means("3 Bloom filters", through_spark(spark, files[BLOOM.name].during)),
        Means("4 key map", through_spark(spark, mapped)),
        Means("5 z-order", through_spark(spark, files[Z.name].during)),
        Means("6 sorted copies", through_spark(spark, copies)),
    ]


# Layouts

LAYOUTS = (
    Layout("262,144/20,000", "vid", dictionary=FEW_VALUES),
    Layout("262,144/4,096", "vid", page=SMALL_PAGE, dictionary=FEW_VALUES),
    Layout("65,536/20,000", "vid", SMALL_GROUP, dictionary=FEW_VALUES),
    Layout("65,536/4,096", "vid", SMALL_GROUP, SMALL_PAGE, dictionary=FEW_VALUES),
    Layout("65,536/1,024", "vid", SMALL_GROUP, 1_024, dictionary=FEW_VALUES),
    Layout("65,536/4,096, zstd", "vid", SMALL_GROUP, SMALL_PAGE, "zstd", dictionary=FEW_VALUES),
    Layout("65,536/4,096, uncompressed", "vid", SMALL_GROUP, SMALL_PAGE, "none", dictionary=FEW_VALUES),
    Layout("65,536/4,096, dictionaries for all", "vid", SMALL_GROUP, SMALL_PAGE),
    Layout("65,536/4,096, no dictionaries", "vid", SMALL_GROUP, SMALL_PAGE, dictionary=()),
    Layout("65,536/4,096, deltas", "vid", SMALL_GROUP, SMALL_PAGE, dictionary=FEW_VALUES, deltas=("vid", "pos")),
)


def a_third(run: Run) -> Traffic:
    """Only the rows of the period that a query asks for: the other segments are not read in any case."""
    whole = traffic(run)
    return replace(whole, rows=max(1_000, whole.rows // 3), period=whole.period)


def layouts(run: Run) -> Sequence[Measure]:
    """Segments sorted by the key, each set written in another way."""
    of = a_third(run)
    rows, spark = reports(of), spark_with()
    files = {x.name: build(x, rows, run.folder) for x in LAYOUTS}
    compared = [Means(name, through_spark(spark, made.during)) for name, made in files.items()]
    found = [_files_measure(name, made, of.rows) for name, made in files.items()]
    for name, warm_up in ((A30, WARM_UP), (B, 1)):
        found += compare(compared, QUERIES[name], of, warm_up, name)
    return found


# Settings


def settings(run: Run) -> Sequence[Measure]:
    """The sorted copy again, with settings of Spark's and without Spark."""
    of = a_third(run)
    rows = reports(of)
    copy, base = (build(layout, rows, run.folder) for layout in (COPIES["vid"], TIME))
    found = compare(_settings(copy, run.folder), QUERIES[A30], of, WARM_UP, A30)
    found += compare(_dictionary_filter(base), QUERIES[A30], of, 1, A30)
    return found + compare(_lists(copy), QUERIES[B], of, 1, B)


def _settings(copy: Files, scratch: Path) -> list[Means]:
    spark = spark_with()
    interpreted = spark_with(
        spark__sql__codegen__wholeStage="false", spark__sql__codegen__factoryMode="NO_CODEGEN"
    )
    one_task = spark_with(spark__sql__files__openCostInBytes="1", spark__sql__files__minPartitionNum="1")
    task_a_file = spark_with(spark__sql__files__openCostInBytes=str(1 << 30))
    pieces = spark_with(spark__sql__codegen__wholeStage="false")
    return [
        Means("as it is", through_spark(spark, copy.during)),
        Means("one partition", through_spark(spark, copy.during, 1)),
        Means("openCostInBytes 1, minPartitionNum 1", through_spark(one_task, copy.during)),
        Means("openCostInBytes 1 GiB: a task for each file", through_spark(task_a_file, copy.during)),
        Means("no whole-stage code", through_spark(pieces, copy.during)),
        Means("no whole-stage code, one partition", through_spark(pieces, copy.during, 1)),
        Means("no code at all, one partition", through_spark(interpreted, copy.during, 1)),
        Means("frame kept", kept_frame(spark, copy)),
        Means("frame kept, no code at all", kept_frame(interpreted, copy)),
        Means("pyarrow alone", partial(by_pyarrow, copy)),
        Means("pyarrow, then Spark without code", partial(by_pyarrow_then_spark, interpreted, copy, scratch)),
    ]


def kept_frame(spark: SparkSession, files: Files) -> Callable[[Query], pa.Table]:
    """A frame made once, as relations are: no file is looked up again."""
    paths = [s.path for s in files.segments]
    frame = spark.read.options(**OPTIONS).schema(SPARK_SCHEMA).parquet(*paths).coalesce(1)
    return lambda query: frame.where(query.text).toArrow()


def by_pyarrow(files: Files, query: Query) -> pa.Table:
    """No Spark: row groups by their statistics, then their rows."""
    field_ = pc.field(query.column)
    wanted = (field_ >= query.keys[0]) & (field_ <= query.keys[-1])
    wanted &= (pc.field("t") >= query.low) & (pc.field("t") <= query.high)
    return dataset.dataset(files.during(query), schema=SCHEMA, format="parquet").to_table(filter=wanted)


def by_pyarrow_then_spark(spark: SparkSession, files: Files, scratch: Path, query: Query) -> pa.Table:
    """The rows that pyarrow found, as a file for Spark to go on with."""
    path = scratch / "found.parquet"
    pq.write_table(by_pyarrow(files, query), path, write_statistics=False, use_dictionary=False)
    return through_spark(spark, lambda _: [str(path)])(query)


def _dictionary_filter(base: Files) -> list[Means]:
    spark = spark_with()
    return [
        Means("time order, dictionary filter off", through_spark(spark, base.during)),
        Means("time order, dictionary filter on", through_spark(spark, base.during, 0, {})),
    ]


def _lists(copy: Files) -> list[Means]:
    sessions = {value: spark_with(**{IN_THRESHOLD: value}) for value in ("1000", "10")}
    return [Means(f"inFilterThreshold {v}", through_spark(s, copy.during)) for v, s in sessions.items()]


if __name__ == "__main__":
    parts = {"sort": sort, "layouts": layouts, "means": means, "settings": settings}
    sys.exit(main("index_means", parts, __doc__ or ""))
