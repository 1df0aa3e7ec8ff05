"""Group commit: threads share snapshots, failures stay alone, an interrupt harms nobody."""

from __future__ import annotations

import _thread
import os
import threading
from concurrent.futures import ThreadPoolExecutor
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
