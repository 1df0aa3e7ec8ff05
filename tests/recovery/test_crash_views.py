"""kill -9 while continuous views are kept, read, merged, made and dropped: they equal the recomputation."""

from __future__ import annotations

import os
import random
import select
import shutil
import sqlite3
import statistics
from collections import Counter
from itertools import chain, combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import millstream
from millstream.catalog import files
from millstream.storage import inline, upkeep
from millstream.views import keeping
from tests.recovery import child_views, processes, stored
from tests.recovery.child_views import VIEWS
from tests.recovery.processes import Nursery
from tests.recovery.test_crash import Promises

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from millstream.database import Database
    from tests.recovery.test_crash import Insert

KILLS, MIXED_KILLS = 29, 1
QUERIES = {**VIEWS, "more": ("h", child_views.MORE)}
TIDY = ["retain", "drop", "flush", "compact", "expire"]

Answer = Counter[tuple[Any, ...]]


CHILD = "tests.recovery.child_views"


@pytest.fixture(scope="module")
def cold() -> Iterator[Nursery]:
    """Processes without Spark, unless they start one."""
    started = Nursery(CHILD)
    yield started
    started.close()


@pytest.fixture(scope="module")
def warm() -> Iterator[Nursery]:
    """Processes that find Spark running."""
    started = Nursery(CHILD, "warm")
    yield started
    started.close()


@pytest.fixture(autouse=True)
def _small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are enough for files, here as in the processes."""
    monkeypatch.setattr(inline, "MOST_ROWS", 10)
    monkeypatch.setattr(upkeep, "MOST_SMALL_FILES", 3)
    monkeypatch.setattr(keeping, "MOST_PIECES", 1)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """A closed database whose views have states of several pieces, and rows that they have not seen."""
    path = tmp_path_factory.mktemp("views") / "database"
    with millstream.connect(path, spark=spark, background=False) as db:
        child_views.create(db)
        for first in (0, 20):
            for name in ("s", "m"):
                db.insert(name, child_views.rows(first, 20))
            child_views.read(db, *VIEWS)
        db.insert("h", child_views.rows(child_views.FIRST, 3))
    return path


def promised() -> Promises:
    """What the database holds to begin with."""
    held: set[Insert] = {("s", 0, 40), ("m", 0, 40), ("h", 0, child_views.FIRST + 3)}
    return Promises(set(held), set(held))


# What the views must say


def rows_of(stream: str, inserts: Iterable[Insert]) -> list[child_views.Row]:
    own = ("s", "both") if stream == "s" else ("h", "both") if stream == "h" else ("m",)
    return [row for name, first, count in inserts if name in own for row in child_views.rows(first, count)]


def recomputed(query: str, rows: list[child_views.Row]) -> Answer:
    """A query's answer over all rows of its stream."""
    if query.startswith(child_views.WHOLE):
        vs = _values(rows)
        ids = [r[0] for r in rows]
        return Counter([(sum(ids) if ids else None, len(rows), sum(vs) / len(vs) if vs else None)])
    names: dict[int | None, str] | None = None
    if query.startswith((child_views.NAMED, child_views.SHOUTED)):
        is_loud = query.startswith(child_views.SHOUTED)
        names = {k: name.upper() if is_loud else name for k, name in child_views.NAMES}
    groups: dict[Any, list[child_views.Row]] = {}
    for row in rows:
        if names is None or row[1] in names:
            groups.setdefault(names[row[1]] if names else row[1], []).append(row)
    return Counter(_group(query, key, group) for key, group in groups.items())


def _values(rows: list[child_views.Row]) -> list[int]:
    return [v for _, _, v, _ in rows if v is not None]


def _group(query: str, key: object, rows: list[child_views.Row]) -> tuple[Any, ...]:
    vs = _values(rows)
    if query.startswith(child_views.SPREAD):
        deviation = round(statistics.stdev(vs), 6) if len(vs) > 1 else None
        return key, statistics.fmean(vs) if vs else None, deviation, len(set(vs))
    total = sum(vs) if vs else None
    if query.startswith((child_views.NAMED, child_views.SHOUTED)):
        return key, total, len(rows)
    return key, total, len(rows), min(vs, default=None), max(vs, default=None)


def answer(db: Database, view: str) -> Answer:
    found = db.sql(f"SELECT * FROM {view}").fetchall()
    if QUERIES[view][1].startswith(child_views.SPREAD):
        return Counter((k, mean, d if d is None else round(d, 6), n) for k, mean, d, n in found)
    return Counter(map(tuple, found))


# Checks


def check(db: Database, promises: Promises, views: Iterable[str]) -> None:
    """The views equal the recomputation over what was acknowledged and some whole inserts that were in flight.

    From then on it is settled which of these are there.
    """
    check_sound(db)
    found = {view: answer(db, view) for view in views}
    doubtful = sorted(promises.tried - promises.acknowledged)
    choices = chain.from_iterable(combinations(doubtful, n) for n in range(len(doubtful) + 1))
    wrong: dict[str, tuple[Answer, Answer]] = {}
    for chosen in choices:
        inserts = promises.acknowledged.union(chosen)
        expected = {v: recomputed(QUERIES[v][1], rows_of(QUERIES[v][0], inserts)) for v in found}
        if found == expected:
            promises.tried, promises.acknowledged = set(inserts), set(inserts)
            return
        differing = [v for v in found if found[v] != expected[v]]
        wrong = wrong or {v: (found[v] - expected[v], expected[v] - found[v]) for v in differing}
    raise AssertionError(f"views differ from the recomputation: {wrong}; in flight: {doubtful}")


def check_sound(db: Database) -> None:
    """The catalogue tells the truth about tables and states, and knows every file."""
    lake = db._lake
    with sqlite3.connect(lake.root / "catalog.sqlite") as catalog:
        assert catalog.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    catalog.close()
    assert stored.known_files(lake) == stored.files_on_disk(lake.root)
    for table in upkeep.tables_of(lake):
        stored._check_files(lake, table)
        stored._check_statistics(lake, table)
    with lake.catalog.read() as connection:
        for table in lake.catalog.hidden().values():
            for file in files.live(connection, table.id, lake.catalog.current.id):
                path = lake.folder(table) / file.path
                assert path.stat().st_size == file.bytes, f"{table.name}: {file.path} has another size"
                assert pq.read_metadata(path).num_rows == file.rows, f"{table.name}: {file.path}"


def check_history(db: Database, promises: Promises) -> None:
    """The streaming table holds each row of its period once; what left it stays in its views."""
    oldest = stored_horizon(db)
    found = [i for i, t in _ids_and_times(db) if t >= oldest]
    expected = [row[0] for row in rows_of("h", promises.acknowledged) if row[3] >= oldest]
    assert sorted(found) == sorted(expected)


def stored_horizon(db: Database) -> int:
    lake = db._lake
    return lake.horizon(stored.table_of(lake, "h"), lake.catalog.now) or 0


def _ids_and_times(db: Database) -> list[tuple[int, int]]:
    data = stored.contents(db._lake, "h")[1]
    return list(zip(data.column("id").to_pylist(), data.column("ts").to_pylist(), strict=True))


def check_goes_on(db: Database, promises: Promises, views: list[str]) -> None:
    """More rows come, few and many, and the views have them."""
    for stream in sorted({QUERIES[v][0] for v in views}):
        for count in (4, 25):
            first = next_number(promises)
            db.insert(stream, child_views.rows(first, count))
            promises.hear([f"try {stream} {first} {count}", f"ack {stream} {first} {count}"])
    check(db, promises, views)


def check_tidy(db: Database) -> None:
    """One pass of upkeep leaves only files of today's rows and states, and no row that every view has seen."""
    child_views.keeper(db).catch_up(child_views.keeper(db).every())
    for step in TIDY:
        child_views.UPKEEP[step](db)
    check_sound(db)
    lake = db._lake
    every = [*lake.catalog.tables().values(), *lake.catalog.hidden().values()]
    with lake.catalog.read() as connection:
        live = [f for t in every for f in files.live(connection, t.id, lake.catalog.current.id)]
    assert len(stored.files_on_disk(db.path)) == len(live)
    for stream in ("s", "m"):
        if stream in lake.catalog.tables():
            assert stored.rows(lake, stream) == {}, f"rows of {stream} that nobody needs"


def next_number(promises: Promises) -> int:
    return max(first + count for _, first, count in promises.tried)


ON_KERNEL = [v for v, (stream, _) in VIEWS.items() if stream != "m"]
MIXED = [v for v, (stream, _) in VIEWS.items() if stream == "m"]


# Kills at random moments


def test_views_equal_the_recomputation_after_every_kill(cold: Nursery, source: Path, database_path: Path) -> None:
    shutil.copytree(source, database_path)
    promises = promised()
    for run in range(KILLS):
        chance = random.Random(run)
        pid = cold.start("keep", path=str(database_path), first=next_number(promises), pieces=run % 2 == 1)
        wanted = 0 if run % 9 == 4 else chance.randrange(3, 25)
        promises.hear(cold.kill_after(pid, wanted, chance.uniform(0.0, 0.02)))
        with millstream.connect(database_path, background=False) as db:
            check(db, promises, ON_KERNEL)
            check_history(db, promises)
            if run % 3 == 2:
                check_goes_on(db, promises, ON_KERNEL)
            if run % 5 == 4:
                check_tidy(db)
                check(db, promises, ON_KERNEL)
            assert not db.spark_started
    assert {name for name, _, _ in promises.acknowledged} == {"s", "h", "both", "m"}
    assert len(promises.acknowledged) > 5 * KILLS


def test_views_equal_the_recomputation_after_a_kill_with_spark_at_work(
    cold: Nursery, source: Path, database_path: Path, spark: SparkSession
) -> None:
    """The process dies in the middle of a job, and its Spark with it; merged states say the same."""
    shutil.copytree(source, database_path)
    promises = promised()
    for run in range(MIXED_KILLS):
        chance = random.Random(run)
        pid = cold.start("keep mixed", path=str(database_path), first=next_number(promises))
        word, jvm = cold.line().split()
        assert word == "jvm", jvm
        family = Family(int(jvm))
        promises.hear(cold.kill_after(pid, chance.randrange(3, 6), chance.uniform(0.0, 0.2)))
        family.wait()
        with millstream.connect(database_path, spark=spark, background=False) as db:
            check(db, promises, MIXED)
            check_goes_on(db, promises, MIXED)
            for view in MIXED:
                child_views.merge(db, view)
            check(db, promises, MIXED)
            check_tidy(db)


class Family:
    """A process and its descendants: they end by themselves when their parent is gone."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def wait(self) -> None:
        for pid in self._members(self._pid):
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            ended = select.select([handle], [], [], processes.PATIENCE)[0]
            os.close(handle)
            assert ended, f"process {pid} lives on"

    def _members(self, pid: int) -> list[int]:
        try:
            children = [int(p) for t in Path(f"/proc/{pid}/task").iterdir() for p in _children(t)]
        except FileNotFoundError:
            return []
        return [pid, *(m for c in children for m in self._members(c))]


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []


# Kills at known places

BEFORE, AFTER = False, True
STREAM = ["insert s 5", "read sums", "insert s 40", "read whole", "drop", "expire"]
HISTORY = ["insert h 5", "read past_sums", "insert h 1500", "read past_whole", "retain", "expire"]
BOTH = ["insert both 5", "read sums past_sums", "insert both 40", "drop", "retain", "read named past_whole"]
Place = tuple[str, int, bool, list[str]]
CALLS = [
    ("millstream.storage.segment:open_for_write", (2, 5), BEFORE),
    ("millstream.storage.segment:_sizes", (1,), BEFORE),
    ("millstream.storage.segment:sync_folder", (2,), BEFORE),
    ("millstream.execute.kernel:_run_pass", (2,), BEFORE),
    ("millstream.execute.kernel:run", (1, 2), AFTER),
    ("millstream.storage.state:commit", (1, 2), BEFORE),
    ("millstream.storage.state:commit", (1, 2), AFTER),
    ("millstream.catalog.catalog:Catalog.commit", (1, 3), AFTER),
    ("millstream.catalog.commits:Commit.finish", (1, 2), AFTER),
    ("millstream.catalog.files:end", (1,), BEFORE),
    ("millstream.catalog.files:add", (1, 2), AFTER),
    ("millstream.catalog.streams:set_consumer", (1,), AFTER),
    ("millstream.catalog.views:refreshed", (1, 2), AFTER),
    ("millstream.storage.state:sweep", (1,), BEFORE),
    ("millstream.catalog.snapshots:forget_files", (1,), AFTER),
    ("millstream.catalog.snapshots:forget_scheduled", (1,), BEFORE),
    ("pathlib:Path.unlink", (1, 2), BEFORE),
]
KEEPING: list[Place] = [
    (place, count, when, (STREAM, HISTORY, BOTH)[(number + count) % 3])
    for number, (place, counts, when) in enumerate(CALLS)
    for count in counts
]


def name_of(place: Place) -> str:
    at, count, when, work = place
    what = "-".join(" ".join(work).split()[:5]).lower()
    return f"{'after' if when else 'before'}-{at.rpartition('.')[2]}-{count}-{what}"


def die(nursery: Nursery, path: Path, place: Place, promises: Promises) -> None:
    at, count, when, work = place
    first = next_number(promises)
    nursery.start("die in views", path=str(path), at=at, count=count, work=work, first=first, after=when)
    lines = nursery.end()
    promises.hear(lines)
    assert "survived" not in lines, "it was not killed there"


@pytest.mark.parametrize("place", KEEPING, ids=name_of)
def test_views_killed_at_any_point_of_their_upkeep_have_every_row_once(
    cold: Nursery, source: Path, database_path: Path, place: Place
) -> None:
    shutil.copytree(source, database_path)
    promises = promised()
    die(cold, database_path, place, promises)
    views = [v for v in ON_KERNEL if place[3] is BOTH or VIEWS[v][0] == ("s" if place[3] is STREAM else "h")]
    with millstream.connect(database_path, background=False) as db:
        check(db, promises, views)
        check_history(db, promises)
        check_goes_on(db, promises, views)
        check_tidy(db)
        check(db, promises, views)
        assert not db.spark_started


DROP = ["insert s 5", "DROP VIEW named", "expire"]
DROP_ALL = ["insert s 5", "DROP STREAM s CASCADE", "expire"]
DROPPING: list[Place] = [
    ("millstream.catalog.views:drop", 1, BEFORE, DROP),
    ("millstream.catalog.tables:drop", 1, AFTER, DROP),
    ("millstream.catalog.commits:Commit.finish", 2, AFTER, DROP),
    ("millstream.views.front:ContinuousViews.dropped", 1, BEFORE, DROP),
    ("pathlib:Path.unlink", 2, AFTER, DROP),
    ("millstream.catalog.views:drop", 2, AFTER, DROP_ALL),
    ("millstream.views.front:ContinuousViews.dropped", 1, BEFORE, DROP_ALL),
    ("pathlib:Path.unlink", 3, BEFORE, DROP_ALL),
]


@pytest.mark.parametrize("place", DROPPING, ids=name_of)
def test_a_view_killed_while_it_goes_is_there_with_all_its_rows_or_gone_with_all_its_files(
    cold: Nursery, source: Path, database_path: Path, place: Place
) -> None:
    shutil.copytree(source, database_path)
    promises = promised()
    die(cold, database_path, place, promises)
    going = ["named"] if place[3] is DROP else ["sums", "whole", "named"]
    with millstream.connect(database_path, background=False) as db:
        left = [v for v in going if v in db._lake.catalog.tables()]
        assert left in ([], going), "half of a statement"
        is_committed = place[0].endswith((":ContinuousViews.dropped", ":Path.unlink"))
        assert (left == []) == is_committed
        there = [v for v in ON_KERNEL if v in db._lake.catalog.tables()]
        check(db, promises, there)
        for view in left:
            db.sql(f"DROP VIEW {view}")
        there = [v for v in there if v not in left]
        check_goes_on(db, promises, there)
        check_tidy(db)
        states = {i for k in child_views.keeper(db).every() for i in (*_tables(k.view),)}
        assert set(db._lake.catalog.hidden()) == states
        check(db, promises, there)


def _tables(view: Any) -> tuple[int, ...]:
    return (*view.continuous.states, *view.continuous.statics)


MIX = ["insert m 5", "read mixed_spread", "insert m 40", "read mixed_sums", "merge mixed_spread", "drop"]
MOVED = ["insert m 5", "read mixed_named", "insert m 5", "flush", "read mixed_named"]
MIXING: list[Place] = [
    ("millstream.views.merging:store", 1, AFTER, MIX),
    ("millstream.storage.segment:_sizes", 3, BEFORE, MIX),
    ("millstream.storage.state:commit", 2, BEFORE, MIX),
    ("millstream.views.keeping:write_rows", 1, AFTER, MIX),
    ("millstream.storage.state:sweep", 3, BEFORE, MIX),
    ("millstream.views.merging:store", 2, AFTER, MOVED),
    ("millstream.storage.segment:_sizes", 4, BEFORE, MOVED),
]


@pytest.mark.parametrize("place", MIXING, ids=name_of)
def test_views_of_both_executors_killed_at_any_point_agree(
    warm: Nursery, source: Path, database_path: Path, spark: SparkSession, place: Place
) -> None:
    shutil.copytree(source, database_path)
    promises = promised()
    die(warm, database_path, place, promises)
    with millstream.connect(database_path, spark=spark, background=False) as db:
        check(db, promises, MIXED)
        check_goes_on(db, promises, MIXED)
        check_tidy(db)


CREATE = ["insert h 5", f"CREATE CONTINUOUS VIEW more AS {child_views.MORE}"]
REPLACE = ["insert h 5", f"CREATE OR REPLACE CONTINUOUS VIEW past_sums AS {VIEWS['past_sums'][1]}", "expire"]
MAKING: list[Place] = [
    ("millstream.views.making:write_rows", 1, AFTER, CREATE),
    ("millstream.catalog.views:create", 1, AFTER, CREATE),
    ("millstream.views.keeping:Keeper.added", 1, BEFORE, CREATE),
    ("millstream.views.keeping:write_passes", 1, AFTER, REPLACE),
    ("millstream.views.keeping:Keeper.added", 1, BEFORE, REPLACE),
]


@pytest.mark.parametrize("place", MAKING, ids=name_of)
def test_a_view_killed_while_it_is_made_was_never_there_or_has_all_its_history(
    warm: Nursery, source: Path, database_path: Path, spark: SparkSession, place: Place
) -> None:
    shutil.copytree(source, database_path)
    promises = promised()
    die(warm, database_path, place, promises)
    with millstream.connect(database_path, spark=spark, background=False) as db:
        is_there = "more" in db._lake.catalog.tables()
        assert is_there == (place[3] is CREATE and place[0].endswith(":Keeper.added"))
        check(db, promises, [*ON_KERNEL, *(["more"] if is_there else [])])
        if not is_there:
            db.sql(f"CREATE CONTINUOUS VIEW more AS {child_views.MORE}")
        check_goes_on(db, promises, [*ON_KERNEL, "more"])
        check_tidy(db)
