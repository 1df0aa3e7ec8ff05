"""Streams drop what nobody needs, snapshots expire unless pinned, and no answer changes by it."""

from __future__ import annotations

import threading
from datetime import timedelta, timezone
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream.catalog import streams
from millstream.clock import ManualClock
from millstream.errors import Condition, StatementError
from millstream.schedule.upkeep import COMPACT, DROP, EXPIRE, FLUSH
from millstream.storage import inline, upkeep
from tests.recovery import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from millstream.catalog.commits import Commit
    from millstream.database import Database

LARGE = inline.MOST_ROWS + 1
HOUR = timedelta(hours=1)


@pytest.fixture
def plain(database_path: Path, clock: ManualClock) -> Iterator[Database]:
    with millstream.connect(database_path, clock=clock, background=False) as database:
        database.sql("CREATE TABLE t (id BIGINT)")
        database.sql("CREATE STREAM s (id BIGINT) TIMESTAMP BY id")
        yield database


def insert(db: Database, name: str, first: int, count: int) -> None:
    db.insert(name, [(i,) for i in range(first, first + count)])


def consumer(db: Database, name: str, position: int | None) -> None:
    stream = stored.table_of(db._lake, "s").id
    if position is None:
        db._lake.catalog.commit(lambda c: streams.remove_consumer(c, stream, name))
    else:
        db._lake.catalog.commit(lambda c: streams.set_consumer(c, stream, name, position))


def kept(db: Database) -> list[int]:
    return sorted(stored.rows(db._lake, "s"))


def test_rows_of_a_stream_without_a_consumer_are_dropped_with_their_files(plain: Database) -> None:
    insert(plain, "s", 0, LARGE)
    insert(plain, "s", LARGE, 2)
    assert upkeep.drop_consumed(plain._lake) == LARGE + 2
    assert kept(plain) == []
    assert stored.files_on_disk(plain.path) == set()
    assert upkeep.drop_consumed(plain._lake) == 0
    stored.check(plain._lake)


def test_rows_are_kept_until_the_slowest_consumer_has_seen_them(plain: Database) -> None:
    consumer(plain, "fast", 0)
    consumer(plain, "slow", 0)
    insert(plain, "s", 0, 6)
    consumer(plain, "fast", 6)
    assert upkeep.drop_consumed(plain._lake) == 0
    consumer(plain, "slow", 4)
    assert upkeep.drop_consumed(plain._lake) == 4
    assert kept(plain) == [4, 5]
    consumer(plain, "slow", None)
    assert upkeep.drop_consumed(plain._lake) == 2
    assert kept(plain) == []


def test_row_ids_go_on_after_rows_were_dropped(plain: Database, database_path: Path, clock: ManualClock) -> None:
    insert(plain, "s", 0, 3)
    upkeep.drop_consumed(plain._lake)
    consumer(plain, "q", 3)
    insert(plain, "s", 10, 1)
    assert stored.rows(plain._lake, "s") == {3: (10,)}
    plain.close()
    with millstream.connect(database_path, clock=clock, background=False) as again:
        insert(again, "s", 11, 1)
        assert stored.rows(again._lake, "s") == {3: (10,), 4: (11,)}


@pytest.mark.parametrize("position", [0, 1, 2, 100, 2 + LARGE, 3 + LARGE, 4 + LARGE])
def test_a_file_whose_row_ids_have_gaps_is_kept_while_one_of_its_rows_is_needed(
    plain: Database, position: int
) -> None:
    """Inlined rows around a large insert are flushed into one file with ids 0, 1, LARGE+2, LARGE+3."""
    consumer(plain, "q", 0)
    insert(plain, "s", 0, 2)
    insert(plain, "s", 2, LARGE)
    insert(plain, "s", 2 + LARGE, 2)
    upkeep.flush(plain._lake)
    consumer(plain, "q", position)
    upkeep.drop_consumed(plain._lake)
    needed = set(range(position, LARGE + 4))
    assert needed <= set(kept(plain)), f"lost {sorted(needed - set(kept(plain)))}"
    stored.check(plain._lake)


def test_a_consumer_that_registers_just_before_rows_are_dropped_keeps_its_rows(plain: Database) -> None:
    """What is needed is looked up inside the commit that drops, so whoever came first counts."""
    insert(plain, "s", 0, 3)
    stream = plain._lake.catalog.tables()["s"]
    held, opened = threading.Event(), threading.Event()
    queue = plain._lake.catalog._queue

    def hold(_: Commit) -> None:
        held.set()
        assert opened.wait(60)

    works: list[Callable[[], object]] = [
        lambda: plain._lake.catalog.commit(hold),
        lambda: plain._lake.catalog.commit(lambda c: streams.set_consumer(c, stream.id, "q", 1)),
        lambda: upkeep.drop_consumed(plain._lake),
    ]
    threads = [threading.Thread(target=work) for work in works]
    threads[0].start()
    assert held.wait(60)
    for i, thread in enumerate(threads[1:], 1):
        thread.start()
        with queue._changed:
            assert queue._changed.wait_for(lambda i=i: len(queue._waiting) >= i, 60)  # type: ignore[misc]
    opened.set()
    for thread in threads:
        thread.join()
    assert set(kept(plain)) == {1, 2}


def test_snapshots_expire_when_they_are_old_and_their_files_go(plain: Database, clock: ManualClock) -> None:
    insert(plain, "t", 0, LARGE)
    full = plain._lake.catalog.current
    plain.sql("TRUNCATE TABLE t")
    clock.advance(HOUR)
    insert(plain, "t", 7, 1)
    assert len(stored.rows(plain._lake, "t", full)) == LARGE
    assert upkeep.expire(plain._lake, HOUR) == 0, "an hour old is not older than an hour"

    clock.advance(timedelta(seconds=1))
    assert upkeep.expire(plain._lake, HOUR) > 0
    assert stored.files_on_disk(plain.path) == set()
    with pytest.raises(StatementError) as caught:
        plain._lake.catalog.snapshot(version=full.id)
    assert caught.value.condition is Condition.UNKNOWN_VERSION
    assert caught.value.hint
    assert [row[0] for row in stored.rows(plain._lake, "t").values()] == [7]
    stored.check(plain._lake)


def test_the_state_of_an_hour_ago_can_still_be_asked_for_after_expiry(plain: Database, clock: ManualClock) -> None:
    insert(plain, "t", 0, 2)
    clock.advance(2 * HOUR)
    insert(plain, "t", 2, 1)
    then = clock.now() - HOUR
    upkeep.expire(plain._lake, HOUR)
    assert len(stored.rows(plain._lake, "t", plain._lake.catalog.snapshot(time=then))) == 2


def test_a_pinned_snapshot_and_all_after_it_stay(plain: Database, clock: ManualClock) -> None:
    insert(plain, "t", 0, LARGE)
    full = plain._lake.catalog.current
    plain.sql("TRUNCATE TABLE t")
    clock.advance(2 * HOUR)
    insert(plain, "t", 1, 1)
    with plain._lake.catalog.pinned(full.id):
        upkeep.expire(plain._lake, HOUR)
        assert len(stored.rows(plain._lake, "t", full)) == LARGE
        assert len(stored.files_on_disk(plain.path)) == 1
    upkeep.expire(plain._lake, HOUR)
    assert stored.files_on_disk(plain.path) == set()


def test_an_open_transaction_keeps_its_snapshot(plain: Database, clock: ManualClock) -> None:
    insert(plain, "t", 0, LARGE)
    transaction = plain._lake.transaction()
    plain.sql("TRUNCATE TABLE t")
    clock.advance(2 * HOUR)
    insert(plain, "t", 1, 1)
    upkeep.expire(plain._lake, HOUR)
    found = transaction.scan(stored.table_of(plain._lake, "t"))
    assert found.rows == LARGE
    assert all((plain._lake.folder(found.table) / f.path).exists() for f in found.files)
    transaction.rollback()
    assert plain._lake.catalog.oldest_pin() is None


def test_dropped_tables_leave_nothing_behind_once_expired(
    plain: Database, clock: ManualClock, database_path: Path
) -> None:
    before = catalogue_rows(plain)
    for i in range(3):
        plain.sql(f"CREATE TABLE x{i} (id BIGINT COMMENT 'c', name STRING)")
        plain.insert(f"x{i}", [(n, "v") for n in range(LARGE)])
        plain.insert(f"x{i}", [(1, "v")])
        plain.sql(f"DROP TABLE x{i}")
    clock.advance(2 * HOUR)
    insert(plain, "t", 0, 1)
    upkeep.expire(plain._lake, HOUR)
    insert(plain, "t", 1, 1)
    clock.advance(2 * HOUR)
    insert(plain, "t", 2, 1)
    upkeep.expire(plain._lake, HOUR)
    after = catalogue_rows(plain)
    grown = {name for name, count in after.items() if count > before.get(name, 0)}
    assert grown <= {"ducklake_table_stats", "ducklake_table_column_stats", "ducklake_inlined_data_1_1"}
    plain.close()
    with millstream.connect(database_path, clock=clock, background=False):
        assert list((database_path / "data" / "main").iterdir()) == []


def catalogue_rows(db: Database) -> dict[str, int]:
    with db._lake.catalog.read() as connection:
        names = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {n: connection.execute(f"SELECT count(*) FROM {n}").fetchone()[0] for n in names}


def test_a_time_in_another_zone_finds_the_same_version(plain: Database, clock: ManualClock) -> None:
    insert(plain, "t", 0, 1)
    first = plain._lake.catalog.current
    clock.advance(3 * HOUR)
    insert(plain, "t", 1, 1)
    moment = first.time + HOUR
    for hours in (-11, -2, 0, 2, 11):
        local = moment.astimezone(timezone(timedelta(hours=hours)))
        assert plain._lake.catalog.snapshot(time=local).id == first.id, hours


def test_small_files_are_grouped_up_to_a_segment_and_large_ones_left_alone() -> None:
    from millstream.catalog.records import DataFile
    from millstream.storage import segment

    def file(number: int, rows: int, size: int = 1000) -> DataFile:
        return DataFile(number, f"{number}.parquet", rows, size, number * 1000, 1)

    few = [file(i, 10) for i in range(upkeep.MOST_SMALL_FILES - 1)]
    assert upkeep.small_groups(few) == []
    enough = [*few, file(99, 10)]
    assert upkeep.small_groups(enough) == [enough]
    mixed = [*enough, file(100, upkeep.SMALL_ROWS), file(101, 1, upkeep.SMALL_BYTES)]
    assert upkeep.small_groups(mixed) == [enough]
    full = [file(i, upkeep.SMALL_ROWS - 1) for i in range(9)]
    groups = upkeep.small_groups(full)
    assert [f for g in groups for f in g] == full[: sum(map(len, groups))]
    assert all(sum(f.rows for f in g) <= segment.SEGMENT_ROWS for g in groups)


def test_the_scheduler_flushes_compacts_drops_and_expires_as_time_goes_by(
    plain: Database, clock: ManualClock
) -> None:
    net = plain._net
    assert net is not None
    net.run_until_idle()
    for i in range(upkeep.MOST_SMALL_FILES):
        insert(plain, "t", 1000 * i, LARGE)
    insert(plain, "t", 50_000, 3)
    insert(plain, "s", 0, 3)
    before = stored.rows(plain._lake, "t")
    plain.drain()
    assert stored.inlined_count(plain._lake, "t") == 3, "nothing was due yet"

    clock.advance(timedelta(minutes=1))
    fired = net.run_until_idle()
    assert DROP in fired
    assert FLUSH in fired
    assert stored.inlined_count(plain._lake, "t") == 0
    assert kept(plain) == []

    clock.advance(timedelta(minutes=5))
    assert COMPACT in net.run_until_idle()
    assert len(stored.live_files(plain._lake, "t")) == 1

    clock.advance(2 * HOUR)
    insert(plain, "t", 60_000, 1)
    clock.advance(2 * HOUR)
    fired = net.run_until_idle()
    assert EXPIRE in fired
    rows = stored.rows(plain._lake, "t")
    assert {i: rows[i] for i in before} == before
    stored.check(plain._lake)


def test_row_counts_shown_to_people_are_exact_after_rows_went(plain: Database) -> None:
    insert(plain, "t", 0, LARGE)
    insert(plain, "t", LARGE, 3)
    plain.sql("TRUNCATE TABLE t")
    insert(plain, "t", 0, 2)
    shown = plain.sql("SHOW TABLES").to_arrow().to_pylist()
    assert [row["rows"] for row in shown if row["name"] == "t"] == [2]
