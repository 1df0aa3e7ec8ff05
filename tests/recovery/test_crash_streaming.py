"""kill -9 while a streaming table is filled, compacted, indexed, aged and altered: nothing of it is lost."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream.catalog import streams
from millstream.storage import index, inline, period, retention, upkeep
from millstream.storage.reader import Reader
from tests import duck
from tests.recovery import child, stored
from tests.recovery.test_crash import Promises

if TYPE_CHECKING:
    from millstream.database import Database
    from tests.recovery.processes import Nursery

KILLS = 30
UPKEEP = ["flush", "compact", "index", "retain", "expire", "discard"]
NAMES = ("id", "k", "v", "t")

Row = tuple[Any, ...]


@pytest.fixture(autouse=True)
def _small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sizes here as in the processes, and none of them left behind."""
    for module, names in (
        (upkeep, ("MOST_SMALL_FILES", "SMALL_ROWS")),
        (inline, ("MOST_ROWS",)),
        (index, ("LEAST_ROWS", "ROW_GROUP_ROWS", "PAGE_ROWS")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))
    child.shrink()


def insert_and_die(nursery: Nursery, path: Path, run: int, promises: Promises) -> None:
    """Let a process work, and kill it after some acknowledgements (or while it still opens)."""
    chance = random.Random(run)
    first = max((first + count for _, first, count in promises.tried), default=0)
    pid = nursery.start("insert streaming", path=str(path), first=first)
    wanted = 0 if run % 9 == 4 else chance.randrange(5, 60)
    promises.hear(nursery.kill_after(pid, wanted, chance.uniform(0.0, 0.01)))


def horizon_of(db: Database) -> int | None:
    return Reader(db._lake).horizon(stored.table_of(db._lake, "h"))


def content(db: Database) -> list[Row]:
    """The visible rows, without the columns that were added."""
    oldest = horizon_of(db)
    found = stored.contents(db._lake, "h")[1].select(NAMES).to_pylist()
    rows = [tuple(row.values()) for row in found]
    return [row for row in rows if oldest is None or row[-1] >= oldest]


def expected(number: int) -> Row:
    return tuple(child.streaming_rows(number, 1)[0].values())


def check(db: Database, promises: Promises) -> list[Row]:
    """Every acknowledged row of the period once, every other insert whole or not at all."""
    rows = content(db)
    oldest = horizon_of(db)
    found = {row[0] for row in rows}
    assert len(found) == len(rows), "a row is there twice"
    assert all(row == expected(row[0]) for row in rows), "a row has other values"

    def within(inserts: set[tuple[str, int, int]]) -> set[int]:
        numbers = promises.into("h", inserts).tolist()
        return {n for n in numbers if oldest is None or child.time_of(n) >= oldest}

    assert within(promises.acknowledged) <= found, "acknowledged rows are lost"
    assert found <= within(promises.tried), "rows that nobody inserted"
    for insert in promises.tried - promises.acknowledged:
        wanted = within({insert})
        assert not wanted & found or wanted <= found, f"half of an insert: {insert}"
    return rows


def check_state(db: Database, promises: Promises) -> None:
    """The stream's time and counters are those of the rows that were committed."""
    with db._lake.catalog.read() as connection:
        state = streams.load(connection, stored.table_of(db._lake, "h").id)
    acknowledged, tried = (promises.into("h", i).tolist() for i in (promises.acknowledged, promises.tried))
    assert len(acknowledged) <= state.received_rows <= len(tried)
    largest = -1 if state.max_time is None else state.max_time
    assert max(map(child.time_of, acknowledged), default=-1) <= largest
    assert largest <= max(map(child.time_of, tried), default=-1)


def check_foreign(path: Path, rows: list[Row], oldest: int | None) -> None:
    with duck.attached(path) as reader:
        visible = "true" if oldest is None else f"t >= {oldest}"
        found = reader.ask(f"SELECT {', '.join(NAMES)} FROM lake.h WHERE {visible}")
        assert Counter(found) == Counter(rows)
        some = [row for row in rows if row[1] == 3]
        assert Counter(reader.ask(f"SELECT id FROM lake.h WHERE k = 3 AND {visible}")) == Counter(
            (row[0],) for row in some
        )


def check_tidy(db: Database) -> None:
    """One pass of upkeep leaves nothing beyond the period but the rest of a compartment, and all indexed."""
    for step in ("retain", "flush", "compact", "index", "expire", "discard"):
        child.WORK[step](db)
    lake, table = db._lake, stored.table_of(db._lake, "h")
    first = retention.first_kept(lake, table)
    times = stored.contents(lake, "h")[1].column("t").to_pylist()
    assert first is None or min(times, default=first) >= first
    live = stored.live_files(lake, "h")
    assert not [f for f in live if period.is_straddling(table, f)]
    assert len(stored.files_on_disk(db.path)) == len(live)
    assert len(stored.copies_on_disk(db.path)) == len(live) * len(lake.catalog.indexes())
    assert index.missing(lake) == []
    stored.check(lake)


def test_thirty_kills_lose_nothing_of_a_streaming_table_and_leave_no_litter(
    nursery: Nursery, database_path: Path
) -> None:
    promises = Promises()
    for run in range(KILLS):
        insert_and_die(nursery, database_path, run, promises)
        with millstream.connect(database_path, background=False) as db:
            if len(db._lake.catalog.indexes()) < 2:
                continue
            stored.check(db._lake)
            rows = check(db, promises)
            check_state(db, promises)
            if run % 5 == 4:
                check_tidy(db)
                assert sorted(check(db, promises)) == sorted(rows)
            oldest = horizon_of(db)
        check_foreign(database_path, rows, oldest)
    with millstream.connect(database_path, background=False) as db:
        assert len(db._lake.catalog.tables()["h"].schema.columns) > 4, "no column was ever added"
        assert (horizon_of(db) or 0) > child.PERIOD, "nothing ever left the period"


Place = tuple[str, int, list[str]]
ALL = UPKEEP
PLACES: list[Place] = [
    ("millstream.storage.segment:open_for_write", 1, ALL),
    ("millstream.storage.segment:open_for_write", 4, ALL),
    ("millstream.storage.segment:open_for_write", 8, ALL),
    ("millstream.storage.segment:sync_folder", 2, ALL),
    ("millstream.catalog.files:add", 2, ALL),
    ("millstream.catalog.files:_add_time", 3, ALL),
    ("millstream.catalog.files:end", 2, ALL),
    ("millstream.catalog.inlined:end", 1, ALL),
    ("millstream.catalog.indexes:add_copy", 1, ALL),
    ("millstream.catalog.indexes:add_copy", 3, ALL),
    ("millstream.storage.index:discard", 1, ALL),
    ("millstream.catalog.indexes:discard", 1, ALL),
    ("millstream.catalog.indexes:discarded", 1, ALL),
    ("millstream.catalog.indexes:forget_discarded", 1, ALL),
    ("millstream.storage.retention:_settle", 1, ALL),
    ("millstream.storage.retention:_end", 1, ALL),
    ("millstream.storage.retention:_forget", 1, ALL),
    ("millstream.catalog.snapshots:forget_files", 1, ALL),
    ("millstream.catalog.snapshots:forget_scheduled", 1, ALL),
    ("millstream.catalog.commits:Commit.finish", 1, ALL),
    ("millstream.catalog.commits:Commit.finish", 4, ALL),
    ("millstream.catalog.commits:Commit.finish", 9, ALL),
    ("pathlib:Path.unlink", 1, ALL),
    ("pathlib:Path.unlink", 3, ALL),
    ("millstream.catalog.indexes:drop", 1, ["index", "drop index"]),
    ("millstream.catalog.indexes:discarded", 1, ["index", "drop index", "discard"]),
    ("pathlib:Path.unlink", 2, ["index", "drop index", "discard"]),
    ("millstream.catalog.inlined:create", 1, ["add column"]),
    ("millstream.catalog.inlined:move", 1, ["add column"]),
    ("millstream.catalog.commits:Commit.finish", 1, ["add column"]),
    ("millstream.catalog.inlined:end", 1, ["add array"]),
    ("millstream.catalog.tables:add_columns", 1, ["add array"]),
    ("millstream.catalog.indexes:drop_all", 1, ["index", "drop streaming table"]),
]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    """A closed database in which all upkeep has something to do, and the content of its streaming table."""
    path = tmp_path_factory.mktemp("busy") / "database"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline, "MOST_ROWS", 10)
        patch.setattr(index, "LEAST_ROWS", 1)
        with millstream.connect(path, background=False) as db:
            child.create_streaming(db)
            fill(db)
            index.build_some(db._lake, 5)
            for first in (6000, 6030, 6060, 6090):
                db.insert("h", child.streaming_rows(first, 30))
            db.insert("h", child.streaming_rows(6120, 5))
            return path, sorted(content(db))


def fill(db: Database) -> None:
    """Files in several compartments and across their edges, and inlined rows beyond the period."""
    db.insert("h", child.streaming_rows(0, 400))
    db.insert("h", child.streaming_rows(400, 6))
    for first in range(4000, 5000, 250):
        db.insert("h", child.streaming_rows(first, 250))
    db.insert("h", child.streaming_rows(5000, 8))


@pytest.mark.parametrize(
    ("place", "count", "work"), PLACES, ids=[f"{p.rpartition('.')[2]}-{n}" for p, n, _ in PLACES]
)
def test_work_killed_at_any_point_changes_no_content(
    nursery: Nursery, busy: tuple[Path, list[Row]], database_path: Path, place: str, count: int, work: list[str]
) -> None:
    source, before = busy
    shutil.copytree(source, database_path)
    nursery.start("die", path=str(database_path), at=place, count=count, work=work, small=True)
    assert nursery.end() == [], "it was not killed there"
    with millstream.connect(database_path, background=False) as db:
        stored.check(db._lake)
        assert sorted(content(db)) == before
        check_tidy(db)
        assert sorted(content(db)) == before
        check_foreign(database_path, before, horizon_of(db))


def test_a_column_killed_after_its_commit_is_there_with_nulls_in_old_rows(
    nursery: Nursery, busy: tuple[Path, list[Row]], database_path: Path
) -> None:
    source, before = busy
    shutil.copytree(source, database_path)
    place = "millstream.database:Result"
    nursery.start("die", path=str(database_path), at=place, count=1, work=["add column"], small=True)
    nursery.end()
    with millstream.connect(database_path, background=False) as db:
        stored.check(db._lake)
        assert sorted(content(db)) == before
        assert stored.table_of(db._lake, "h").schema.names == (*NAMES, "added")
        assert stored.contents(db._lake, "h")[1].column("added").null_count == len(stored.rows(db._lake, "h"))
        with duck.attached(database_path) as reader:
            (asked,) = reader.ask("SELECT count(*), count(added), count(*) FILTER (added IS NULL) FROM lake.h")
            assert asked == (asked[0], 0, asked[0])
