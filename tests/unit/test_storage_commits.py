"""Group commit: threads share snapshots, failures stay alone, an interrupt harms nobody."""

from __future__ import annotations

import _thread
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream.catalog import inlined
from millstream.clock import ManualClock
from millstream.errors import Condition, MillstreamError
from tests.recovery import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from millstream.catalog.commits import Commit
    from millstream.catalog.store import Connection
    from millstream.database import Database
    from millstream.storage.lake import Lake

PATIENCE = 30.0


@pytest.fixture
def plain(database_path: Path) -> Iterator[Database]:
    with millstream.connect(database_path, clock=ManualClock(), background=False) as database:
        database.sql("CREATE TABLE t (id BIGINT, x DOUBLE)")
        yield database


class Gate:
    """A commit that stays open until told: whatever is submitted meanwhile waits behind it."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._entered = threading.Event()
        self._open = threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        def work(commit: Commit) -> None:
            commit.changed("gate")
            self._entered.set()
            assert self._open.wait(PATIENCE)

        self._lake.catalog.commit(work)

    def __enter__(self) -> Gate:
        self._thread.start()
        assert self._entered.wait(PATIENCE)
        return self

    def wait_for(self, pieces: int) -> None:
        """Return when so many pieces of work wait behind the gate."""
        queue = self._lake.catalog._queue
        with queue._changed:
            assert queue._changed.wait_for(lambda: len(queue._waiting) >= pieces, PATIENCE)

    def open(self) -> None:
        self._open.set()

    def __exit__(self, *_: object) -> None:
        self.open()
        self._thread.join()


def together(lake: Lake, works: Sequence[Callable[[], object]]) -> list[BaseException | None]:
    """Run the pieces in threads of their own so that they all wait for one commit."""
    with ThreadPoolExecutor(len(works)) as pool:
        with Gate(lake) as gate:
            futures = [pool.submit(work) for work in works]
            gate.wait_for(len(works))
        return [f.exception(PATIENCE) for f in futures]


def test_inserts_that_wait_together_share_one_snapshot(plain: Database) -> None:
    before = plain._lake.catalog.current.id
    inserts = [partial(plain.insert, "t", [(i, float(i))]) for i in range(20)]
    assert together(plain._lake, inserts) == [None] * 20
    assert plain._lake.catalog.current.id == before + 2, "the gate's snapshot and one for all inserts"
    assert {row[0] for row in stored.rows(plain._lake, "t").values()} == set(range(20))
    stored.check(plain._lake)


def test_one_failing_piece_undoes_only_itself(plain: Database) -> None:
    table = stored.table_of(plain._lake, "t")

    def failing() -> None:
        def work(commit: Commit) -> None:
            inlined.insert(commit, table, [(666, "6.5")], {})
            raise ValueError("in the middle")

        plain._lake.catalog.commit(work, shareable=True)

    inserts = [partial(plain.insert, "t", [(i, 1.0)]) for i in range(3)]
    errors = together(plain._lake, [inserts[0], failing, inserts[1], failing, inserts[2]])
    assert [type(e) for e in errors].count(ValueError) == 2
    assert errors.count(None) == 3
    assert {row[0] for row in stored.rows(plain._lake, "t").values()} == {0, 1, 2}
    assert sorted(stored.rows(plain._lake, "t")) == [0, 1, 2], "row ids have no gap"
    stored.check(plain._lake)


def test_changes_that_remove_rows_do_not_share_a_snapshot(plain: Database) -> None:
    plain.insert("t", [(1, 1.0)])
    before = plain._lake.catalog.current.id
    work = [lambda: plain.insert("t", [(2, 1.0)]), lambda: plain.sql("TRUNCATE TABLE t")]
    assert together(plain._lake, work) == [None, None]
    assert plain._lake.catalog.current.id == before + 3
    stored.check(plain._lake)


@pytest.mark.parametrize("pages", [0, 2, 3, 5])
def test_a_full_disk_in_a_shared_commit_keeps_only_what_was_acknowledged_and_the_next_insert_works(
    plain: Database, pages: int
) -> None:
    plain.insert("t", [(0, 0.0)])
    writer = plain._lake.catalog._store._writer
    assert writer is not None
    (used,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {used + pages}")
    inserts = [partial(plain.insert, "t", [(i * 1000 + n, 0.5) for n in range(250)]) for i in range(1, 9)]
    errors = together(plain._lake, inserts)
    writer.execute("PRAGMA max_page_count = 1000000")
    failures = [e for e in errors if e is not None]
    assert failures
    assert all(isinstance(e, MillstreamError) and e.condition is Condition.DISK_FULL for e in failures), errors
    plain.insert("t", [(-1, 0.0)])
    ids = {row[0] for row in stored.rows(plain._lake, "t").values()}
    kept = {i for i, error in enumerate(errors, 1) if error is None}
    assert ids == {0, -1} | {i * 1000 + n for i in kept for n in range(250)}
    stored.check(plain._lake)


def test_many_threads_inserting_at_once_lose_nothing_and_double_nothing(plain: Database) -> None:
    def insert(thread: int) -> None:
        for i in range(25):
            plain.sql("INSERT INTO t VALUES (:id, :x)", id=thread * 1000 + i, x=1.0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(insert, range(8)))
    ids = [row[0] for row in stored.rows(plain._lake, "t").values()]
    assert sorted(ids) == sorted(t * 1000 + i for t in range(8) for i in range(25))
    stored.check(plain._lake)


@pytest.mark.parametrize("rows", [1, 300])
def test_an_interrupted_wait_neither_blocks_the_database_nor_loses_files(plain: Database, rows: int) -> None:
    """Ctrl-C while another thread commits: the insert is whole or never was, and work goes on."""
    lake = plain._lake
    with Gate(lake) as gate:

        def interrupt() -> None:
            gate.wait_for(1)
            _thread.interrupt_main()
            gate.open()

        watcher = threading.Thread(target=interrupt)
        watcher.start()
        with pytest.raises(KeyboardInterrupt):
            plain.insert("t", [(i, 1.0) for i in range(rows)])
        watcher.join()
    later = threading.Thread(target=lambda: plain.insert("t", [(-1, 0.0)]), daemon=True)
    later.start()
    later.join(5.0)
    assert not later.is_alive(), "the database hangs"
    found = [row[0] for row in stored.rows(lake, "t").values()]
    assert found in ([-1], [*range(rows), -1], [-1, *range(rows)])
    stored.check(lake)


def test_threads_that_come_and_go_leave_no_open_files(plain: Database) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def look() -> None:
        stored.rows(plain._lake, "t")

    look()
    before = open_files()
    for _ in range(60):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert open_files() < before + 20


# What is durable and not told of yet

GLANCE = 0.2
"""So long a commit is held for a reader that has to wait for it all the same."""


class Slow:
    """Lets somebody look when a commit is durable and the catalogue does not tell of it yet."""

    def __init__(self, lake: Lake, look: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._look = look
        self.looks: list[Future[object]] = []
        self._write = lake.catalog._store.write
        monkeypatch.setattr(lake.catalog._store, "write", self.write)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with self._write() as connection:
            yield connection
        if not self.looks:
            self.looks.append(self._pool.submit(self._look))
            wait(self.looks, GLANCE)

    def finish(self) -> None:
        assert self.looks
        for look in self.looks:
            look.result(PATIENCE)
        self._pool.shutdown()


def test_statistics_are_never_of_a_later_snapshot_than_the_current_one(
    plain: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, table = plain._lake, stored.table_of(plain._lake, "t")
    seen: list[tuple[int, int]] = []

    def look() -> None:
        seen.append((lake.catalog.table_stats(table).rows, lake.catalog.row_count(table)))

    slow = Slow(lake, look, monkeypatch)
    plain.insert("t", [(1, 1.0)])
    slow.finish()
    [(told, there)] = seen
    assert told <= there


LOOKS: dict[str, Callable[[Database], object]] = {
    "a read of a view": lambda db: db.sql("SELECT * FROM whole").fetchall(),
    "a step of the queries": lambda db: db._engine.queries.advance_all(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_who_looks_while_the_first_insert_is_committed_loses_none_of_its_rows(
    look: str, database_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with millstream.connect(database_path, clock=ManualClock(), background=False) as db:
        db.sql("CREATE STREAM s (t BIGINT, v BIGINT) TIMESTAMP BY t")
        db.sql("CREATE CONTINUOUS VIEW whole AS SELECT count(*) AS n, sum(v) AS total FROM s")
        db.sql(
            "CREATE STREAMING VIEW each_ten RANGE UNBOUNDED AS"
            " SELECT count(*) AS n, sum(v) AS total FROM s [INTERVAL 10] SAMPLE INTERVAL 10"
        )
    with millstream.connect(database_path, clock=ManualClock(), background=False) as db:
        slow = Slow(db._lake, lambda: LOOKS[look](db), monkeypatch)
        db.insert("s", [(1, 7)])
        slow.finish()
        db.insert("s", [(25, 100)])
        db._engine.queries.advance_all()
        assert db.sql("SELECT * FROM whole").fetchall() == [(2, 107)]
        assert list(stored.rows(db._lake, "each_ten").values()) == [(1, 7, 10), (0, None, 20)]
