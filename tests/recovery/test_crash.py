"""kill -9 at random moments, 50 times over one database: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import millstream
from millstream.catalog import streams
from millstream.clock import SystemClock
from millstream.storage import upkeep
from millstream.storage.lake import Lake
from tests import duck
from tests.recovery import child, stored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from millstream.database import Database
    from tests.recovery.processes import Nursery

KILLS = 50
KEPT = ("a", "b", "held")
UPKEEP = ["flush", "compact", "drop", "expire"]

Insert = tuple[str, int, int]
Busy = tuple[Path, dict[str, duck.Rows]]


@dataclass
class Promises:
    """What the killed processes said they would do, and did."""

    tried: set[Insert] = field(default_factory=set)
    acknowledged: set[Insert] = field(default_factory=set)

    def hear(self, lines: list[str]) -> None:
        for line in lines:
            word, *rest = line.split(" ", 3)
            assert word != "failed", line.replace("\\n", "\n")
            if word in ("try", "ack"):
                insert = (rest[0], int(rest[1]), int(rest[2]))
                (self.tried if word == "try" else self.acknowledged).add(insert)

    def into(self, table: str, inserts: set[Insert]) -> NDArray[np.int64]:
        """The ids of all rows of these inserts that belong into the table."""
        names = (table, "both") if table in ("a", "b") else (table,)
        parts = [np.arange(first, first + n) for name, first, n in inserts if name in names]
        return np.concatenate([np.empty(0, np.int64), *parts])


def insert_and_die(nursery: Nursery, path: Path, run: int, promises: Promises) -> None:
    """Let a process insert, and kill it after some acknowledgements (or while it still opens)."""
    chance = random.Random(run)
    pid = nursery.start("insert", path=str(path), run=run)
    wanted = 0 if run % 7 == 3 else chance.randrange(1, 40)
    promises.hear(nursery.kill_after(pid, wanted, chance.uniform(0.0, 0.01)))


def check(db: Database, promises: Promises) -> dict[str, NDArray[np.int64]]:
    """Every acknowledged row once, every other insert whole or not at all."""
    found = {}
    for name in KEPT:
        ids = np.asarray(stored.contents(db._lake, name)[1].column("id"))
        found[name] = ids
        assert len(np.unique(ids)) == len(ids), f"{name}: a row is there twice"
        lost = np.setdiff1d(promises.into(name, promises.acknowledged), ids)
        assert not len(lost), f"{name}: {len(lost)} acknowledged rows are lost"
        strange = np.setdiff1d(ids, promises.into(name, promises.tried))
        assert not len(strange), f"{name}: {len(strange)} rows that nobody inserted"
    check_whole(found, promises.tried - promises.acknowledged)
    check_loose(db, promises)
    return found


def check_whole(found: dict[str, NDArray[np.int64]], unacknowledged: set[Insert]) -> None:
    for name, first, count in unacknowledged:
        tables = ("a", "b") if name == "both" else (name,)
        present = {
            int(np.count_nonzero((found[t] >= first) & (found[t] < first + count))) for t in tables if t in found
        }
        assert present in ({0}, {count}, set()), f"half of an insert into {name}: {present} of {count}"


def check_loose(db: Database, promises: Promises) -> None:
    """The stream that nobody reads drops its rows, but counts them."""
    with db._lake.catalog.read() as connection:
        received = streams.load(connection, stored.table_of(db._lake, "loose").id).received_rows
    assert len(promises.into("loose", promises.acknowledged)) <= received
    assert received <= len(promises.into("loose", promises.tried))


def check_foreign(path: Path, found: dict[str, NDArray[np.int64]]) -> None:
    with duck.attached(path) as reader:
        for name, ids in found.items():
            asked = f"SELECT count(*), count(DISTINCT id), coalesce(sum(id), 0)::HUGEINT FROM lake.{name}"
            assert reader.ask(asked) == [(len(ids), len(ids), sum(map(int, ids)))], name


def check_tidy(db: Database) -> None:
    """One pass of upkeep leaves only files of today's rows, and few of them."""
    for step in UPKEEP:
        child.WORK[step](db)
    live = sum(len(stored.live_files(db._lake, name)) for name in db._lake.catalog.tables())
    assert len(stored.files_on_disk(db.path)) == live <= 4 * upkeep.MOST_SMALL_FILES
    stored.check(db._lake)


def test_fifty_kills_lose_nothing_and_leave_no_litter(nursery: Nursery, database_path: Path) -> None:
    promises = Promises()
    for run in range(KILLS):
        insert_and_die(nursery, database_path, run, promises)
        with millstream.connect(database_path, background=False) as db:
            if "loose" not in db._lake.catalog.tables():
                continue
            stored.check(db._lake)
            found = check(db, promises)
            if run % 5 == 4:
                check_tidy(db)
        check_foreign(database_path, found)
    assert {name for name, _, _ in promises.acknowledged} == {"a", "b", "held", "loose", "both"}
    assert len(promises.acknowledged) > KILLS
    assert any(count > 256 for _, _, count in promises.acknowledged)
    with duck.attached(database_path) as reader, millstream.connect(database_path, background=False) as db:
        for name in KEPT:
            assert duck.rows(reader, name) == stored.rows(db._lake, name)


PLACES = [
    ("millstream.storage.segment:open_for_write", 1),
    ("millstream.storage.segment:_sizes", 1),
    ("millstream.storage.segment:sync_folder", 1),
    ("millstream.catalog.files:add", 1),
    ("millstream.catalog.files:end", 1),
    ("millstream.catalog.inlined:end", 1),
    ("millstream.catalog.inlined:drop_rows", 1),
    ("millstream.catalog.inlined:purge", 1),
    ("millstream.catalog.stats:save", 1),
    ("millstream.catalog.stats:save", 3),
    ("millstream.catalog.commits:Commit.finish", 1),
    ("millstream.catalog.snapshots:_forget_definitions", 1),
    ("millstream.catalog.snapshots:scheduled_files", 1),
    ("millstream.catalog.snapshots:forget_scheduled", 1),
    ("pathlib:Path.unlink", 1),
]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Busy:
    """A closed database in which all upkeep has something to do, and the rows of its tables."""
    path = tmp_path_factory.mktemp("busy") / "database"
    with millstream.connect(path, background=False) as db:
        child.create(db)
        db.sql("CREATE TABLE old (id BIGINT)")
        db.insert("old", child.arrow(db, "held", 0, 300).select(["id"]))
        for i in range(3):
            for name in child.VALUES:
                db.insert(name, child.rows(name, 1000 * i, 300))
                db.insert(name, child.rows(name, 1000 * i + 500, 5))
        db.sql("DROP TABLE old")
        return path, {name: stored.rows(db._lake, name) for name in KEPT}


@pytest.mark.parametrize(("place", "count"), PLACES, ids=lambda x: str(x).rpartition(".")[2])
def test_upkeep_killed_at_any_point_changes_no_row(
    nursery: Nursery, busy: Busy, database_path: Path, place: str, count: int
) -> None:
    source, before = busy
    shutil.copytree(source, database_path)
    nursery.start("die", path=str(database_path), at=place, count=count, work=UPKEEP)
    assert nursery.end() == [], "it was not killed there"
    with millstream.connect(database_path, background=False) as db:
        stored.check(db._lake)
        assert {name: stored.rows(db._lake, name) for name in KEPT} == before
        for step in UPKEEP:
            child.WORK[step](db)
        stored.check(db._lake)
        assert {name: stored.rows(db._lake, name) for name in KEPT} == before
        assert stored.rows(db._lake, "loose") == {}
        with duck.attached(database_path) as reader:
            assert {name: duck.rows(reader, name) for name in KEPT} == before


@pytest.mark.parametrize("step", ["insert few", "insert many", "truncate", "drop table"])
@pytest.mark.parametrize(
    "place", ["millstream.catalog.stats:save", "millstream.catalog.commits:Commit.finish", "DURABLE"]
)
def test_a_statement_killed_before_its_commit_never_was_and_after_it_is(
    nursery: Nursery, busy: Busy, database_path: Path, step: str, place: str
) -> None:
    shutil.copytree(busy[0], database_path)
    lake = Lake(database_path, SystemClock())
    before = stored.rows(lake, "a"), sorted(lake.catalog.tables())
    lake.close()
    at = "millstream.storage.lake:Lake.committed" if place == "DURABLE" else place
    nursery.start("die", path=str(database_path), at=at, count=1, work=[step])
    heard = nursery.end()
    if step == "drop table" and place.endswith("save"):
        return  # a DROP changes no statistics
    assert heard == [], "it was not killed there"
    with millstream.connect(database_path, background=False) as db:
        stored.check(db._lake)
        after = stored.rows(db._lake, "a"), sorted(db._lake.catalog.tables())
        assert (after == before) == (place != "DURABLE")


def test_a_creation_killed_at_any_point_can_be_done_again(nursery: Nursery, tmp_path: Path) -> None:
    for i, place in enumerate(("layout:create", "layout:upgrade", "layout:format_version", "snapshots:newest")):
        path = tmp_path / str(i)
        nursery.start("create and die", path=str(path), at=f"millstream.catalog.{place}", count=1)
        assert nursery.end() == [], place
        with millstream.connect(path, background=False) as db:
            db.sql("CREATE TABLE t (id BIGINT)")
            db.insert("t", [(1,)])
            assert stored.rows(db._lake, "t") == {0: (1,)}


@pytest.mark.parametrize("attempt", range(5))
def test_closing_while_threads_insert_ends_them_with_typed_errors_and_keeps_what_was_acknowledged(
    nursery: Nursery, database_path: Path, attempt: int
) -> None:
    nursery.start("close", path=str(database_path))
    lines = nursery.end()
    promises = Promises()
    promises.hear(lines)
    assert lines[-1] == "survived", f"attempt {attempt}: the process died"
    assert [line for line in lines if line.startswith("ended")] == ["ended CLOSED"] * 3
    with millstream.connect(database_path, background=False) as db:
        check(db, promises)
        stored.check(db._lake)
