"""Compartments of streaming tables go whole, no reader loses its rows, and not more than one is held too long."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream.clock import ManualClock
from millstream.schedule.upkeep import AGE, RETAIN
from millstream.storage import index, inline, period, retention, upkeep
from millstream.storage.reader import Reader
from tests.recovery import stored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millstream.database import Database

PERIOD, WIDTH = 100, 10
LARGE = inline.MOST_ROWS + 1
LARGEST = 2**63 - 1


@pytest.fixture
def plain(database_path: Path, clock: ManualClock) -> Iterator[Database]:
    """A database without Spark; `h` keeps 100 ticks, `u` everything, `c` ten minutes by the clock."""
    with millstream.connect(database_path, clock=clock, background=False) as database:
        create(database)
        yield database


def create(db: Database) -> None:
    db.sql(f"CREATE STREAMING TABLE h (id BIGINT, t BIGINT) TIMESTAMP BY t RANGE INTERVAL {PERIOD}")
    db.sql("CREATE STREAMING TABLE u (id BIGINT, t BIGINT) TIMESTAMP BY t RANGE UNBOUNDED")
    db.sql("CREATE STREAMING TABLE c (id BIGINT) RANGE INTERVAL '10' MINUTE")


def insert(db: Database, *times: int, name: str = "h") -> None:
    db.insert(name, [(t, t) for t in times])


def times(db: Database, name: str = "h") -> list[int]:
    """What is stored, visible or not."""
    return sorted(stored.contents(db._lake, name)[1].column("t").to_pylist())


def visible(db: Database, name: str = "h") -> int:
    return Reader(db._lake).row_count(stored.table_of(db._lake, name))


def test_a_compartment_goes_when_all_of_it_is_beyond_the_period(plain: Database) -> None:
    insert(plain, *range(30), 109)
    assert retention.drop_expired(plain._lake)
    assert visible(plain) == 22, "from 9 on"
    assert times(plain) == [*range(30), 109], "a compartment begins at 0, and 9 is in it"
    insert(plain, 110)
    assert retention.drop_expired(plain._lake)
    assert times(plain) == [*range(10, 30), 109, 110]
    insert(plain, 129)
    assert visible(plain) == 4
    retention.drop_expired(plain._lake)
    assert times(plain) == [*range(20, 30), 109, 110, 129], "most are not visible, yet in the compartment of 29"
    stored.check(plain._lake)


def test_files_of_a_dropped_compartment_are_deleted_if_nobody_reads(plain: Database) -> None:
    insert(plain, *[5] * LARGE)
    insert(plain, *[50] * LARGE)
    assert len(stored.files_on_disk(plain.path)) == 2
    plain.sql("ADVANCE h TO 120")
    retention.drop_expired(plain._lake)
    assert len(stored.files_on_disk(plain.path)) == 1
    assert set(times(plain)) == {50}
    stored.check(plain._lake)


@pytest.mark.parametrize("seed", range(6))
def test_no_more_than_the_period_and_one_compartment_is_held_after_every_pass(plain: Database, seed: int) -> None:
    """Batches of any size, in and out of order, across many compartments; upkeep of other kinds in between."""
    chance = random.Random(seed)
    table = stored.table_of(plain._lake, "h")
    inserted: list[int] = []
    for _ in range(25):
        now = max(inserted, default=0)
        count = chance.choice([1, 3, 20, LARGE, LARGE + 50])
        batch = [now + chance.randint(-160, 12) for _ in range(count)]
        insert(plain, *(sorted(batch) if chance.random() < 0.5 else batch))
        inserted += batch
        chance.choice([upkeep.flush, upkeep.compact, lambda _: None])(plain._lake)
        assert retention.drop_expired(plain._lake)
        oldest = max(inserted) - PERIOD
        found = times(plain)
        assert [t for t in found if t >= oldest] == sorted(t for t in inserted if t >= oldest)
        assert found[0] > oldest - WIDTH
        assert visible(plain) == sum(t >= oldest for t in inserted)
        assert not [f for f in stored.live_files(plain._lake, "h") if f.low is None or f.low <= oldest - WIDTH]
        assert Reader(plain._lake).horizon(table) == oldest
    stored.check(plain._lake)


def test_a_batch_across_compartments_is_split_when_one_of_them_goes_and_rows_keep_their_ids(
    plain: Database,
) -> None:
    insert(plain, *list(range(95, 5, -1)) * 3)
    table, before = stored.table_of(plain._lake, "h"), stored.rows(plain._lake, "h")
    assert any(period.is_straddling(table, f) for f in stored.live_files(plain._lake, "h"))
    plain.sql("ADVANCE h TO 155")
    retention.drop_expired(plain._lake)
    assert stored.rows(plain._lake, "h") == {i: row for i, row in before.items() if row[1] >= 50}
    stored.check(plain._lake)


def test_inlined_rows_that_are_too_old_go_as_well(plain: Database) -> None:
    insert(plain, 1, 2, 300)
    retention.drop_expired(plain._lake)
    assert times(plain) == [300]
    insert(plain, 3, 199, 201)
    assert (visible(plain), times(plain)) == (2, [3, 199, 201, 300])
    retention.drop_expired(plain._lake)
    assert times(plain) == [201, 300]
    stored.check(plain._lake)


def test_a_table_without_a_period_never_drops_anything(plain: Database, clock: ManualClock) -> None:
    insert(plain, *range(LARGE), 10**15, name="u")
    insert(plain, -(10**15), name="u")
    clock.advance(timedelta(days=100_000))
    assert retention.drop_expired(plain._lake)
    plain.drain()
    assert len(times(plain, "u")) == visible(plain, "u") == LARGE + 2


@pytest.mark.parametrize("span", [1, 2, 3, 9, 11, 101])
def test_periods_that_do_not_divide_into_tenths(plain: Database, span: int) -> None:
    plain.sql(f"CREATE STREAMING TABLE w (id BIGINT, t BIGINT) TIMESTAMP BY t RANGE INTERVAL {span}")
    for now in (-50, 0, 17, 1000):
        insert(plain, *range(now - 2 * span, now + 1), name="w")
        retention.drop_expired(plain._lake)
        assert visible(plain, "w") == sum(t >= now - span for t in times(plain, "w"))
        assert set(range(now - span, now + 1)) <= set(times(plain, "w"))
        assert times(plain, "w")[0] > now - span - max(1, -(-span // 10))


@pytest.mark.parametrize(
    ("span", "seen"),
    [(LARGEST, [-100, 0]), (300, [-LARGEST - 1, -LARGEST]), (300, [-LARGEST - 1, LARGEST]), (1, [LARGEST])],
)
def test_the_largest_periods_and_times_there_are(plain: Database, span: int, seen: list[int]) -> None:
    plain.sql(f"CREATE STREAMING TABLE w (id BIGINT, t BIGINT) TIMESTAMP BY t RANGE INTERVAL {span}")
    insert(plain, *seen, name="w")
    expected = [t for t in seen if t >= max(seen) - span]
    assert visible(plain, "w") == len(expected)
    retention.drop_expired(plain._lake)
    plain.drain()
    assert plain._net is not None
    assert [t.failure for t in plain._net.transitions if t.failure] == []
    assert times(plain, "w") == expected
    upkeep.flush(plain._lake)
    upkeep.compact(plain._lake)
    stored.check(plain._lake)


def test_a_reader_keeps_the_files_of_its_snapshot_and_a_later_pass_deletes_them(plain: Database) -> None:
    insert(plain, *[5] * LARGE)
    lake, table = plain._lake, stored.table_of(plain._lake, "h")
    before = lake.catalog.current
    with lake.catalog.pinned(before.id):
        found = lake.scan(table, before, (), lake.horizon(table, lake.catalog.now))
        insert(plain, 500)
        assert not retention.drop_expired(lake), "it says that something is left to do"
        assert (visible(plain), times(plain)) == (1, [500])
        assert found.files
        assert all(lake.path_of(found, file).exists() for file in found.files)
        assert not retention.drop_expired(lake)
        assert len(stored.files_on_disk(plain.path)) == 1
    assert retention.drop_expired(lake)
    assert stored.files_on_disk(plain.path) == set()
    stored.check(lake)


def test_a_reader_of_a_later_snapshot_does_not_keep_what_went_before_it(plain: Database) -> None:
    insert(plain, *[5] * LARGE)
    insert(plain, 500)
    lake = plain._lake
    with lake.catalog.pinned(lake.catalog.current.id):
        assert not retention.drop_expired(lake)
        with lake.catalog.pinned(lake.catalog.current.id):
            pass
    with lake.catalog.pinned(lake.catalog.current.id):
        assert retention.drop_expired(lake)
        assert stored.files_on_disk(plain.path) == set()


def test_an_open_transaction_delays_the_drop_and_the_pass_says_so(plain: Database) -> None:
    insert(plain, *[5] * LARGE)
    transaction = plain._lake.transaction(is_long=True)
    insert(plain, 500)
    assert not retention.drop_expired(plain._lake)
    assert len(times(plain)) == LARGE + 1
    transaction.rollback()
    assert retention.drop_expired(plain._lake)
    assert times(plain) == [500]


def test_the_net_comes_back_for_what_a_transaction_held(plain: Database, clock: ManualClock) -> None:
    assert plain._net is not None
    insert(plain, *[5] * LARGE)
    plain.drain()
    transaction = plain._lake.transaction(is_long=True)
    insert(plain, 500)
    plain.drain()
    transaction.rollback()
    clock.advance(timedelta(seconds=10))
    assert AGE in plain._net.run_until_idle()
    assert times(plain) == [500]


def test_advancing_the_time_lets_compartments_go_through_the_net(plain: Database) -> None:
    assert plain._net is not None
    insert(plain, *range(50))
    plain.sql("ADVANCE h TO 105")
    plain._net.run_until_idle()
    plain.sql("ADVANCE h TO 109")
    assert RETAIN not in plain._net.run_until_idle(), "no other compartment is beyond the period yet"
    plain.sql("ADVANCE h TO 110")
    assert RETAIN in plain._net.run_until_idle()
    assert times(plain) == list(range(10, 50))


def test_a_shorter_period_drops_at_the_next_pass_and_a_longer_one_drops_later(plain: Database) -> None:
    insert(plain, *range(101))
    plain.sql("ALTER STREAMING TABLE h SET RANGE INTERVAL 20")
    plain.drain()
    assert times(plain) == list(range(80, 101))
    plain.sql("ALTER STREAMING TABLE h SET RANGE INTERVAL 1000")
    insert(plain, 1000)
    plain.drain()
    assert times(plain) == [*range(80, 101), 1000]
    plain.sql("ALTER STREAMING TABLE h SET RANGE UNBOUNDED")
    insert(plain, 10**9)
    plain.drain()
    assert len(times(plain)) == 23
    stored.check(plain._lake)


def arrivals(db: Database) -> int:
    return len(stored.rows(db._lake, "c"))


def test_rows_with_an_arrival_time_age_by_the_clock_without_any_insert(
    plain: Database, clock: ManualClock
) -> None:
    assert plain._net is not None
    for _ in range(10):
        plain.insert("c", [(1,)] * LARGE)
        clock.advance(timedelta(minutes=1))
    plain.drain()
    assert visible(plain, "c") == 10 * LARGE
    for minute in range(1, 12):
        clock.advance(timedelta(minutes=1))
        assert visible(plain, "c") == (10 - minute) * LARGE if minute < 11 else True
        assert AGE in plain._net.run_until_idle()
        assert arrivals(plain) <= visible(plain, "c") + LARGE, "at most one compartment more than is visible"
    assert arrivals(plain) == visible(plain, "c") == 0
    assert stored.files_on_disk(plain.path) == set()
    stored.check(plain._lake)


def test_rows_with_an_arrival_time_age_while_the_database_is_closed(
    plain: Database, database_path: Path, clock: ManualClock
) -> None:
    plain.insert("c", [(1,)] * LARGE)
    plain.close()
    clock.advance(timedelta(minutes=12))
    with millstream.connect(database_path, clock=clock, background=False) as again:
        assert visible(again, "c") == 0
        assert arrivals(again) == LARGE
        again.drain()
        assert arrivals(again) == 0
        assert stored.files_on_disk(database_path) == set()


def test_counters_and_the_watermark_stay_when_rows_go(plain: Database, database_path: Path) -> None:
    insert(plain, 5, 1000, 3, 950)
    shown = plain.sql("SHOW STREAMING TABLES LIKE 'h'").to_arrow().to_pylist()
    retention.drop_expired(plain._lake)
    assert times(plain) == [950, 1000]
    assert plain.sql("SHOW STREAMING TABLES LIKE 'h'").to_arrow().to_pylist() == shown
    assert (shown[0]["watermark"], shown[0]["oldest"], shown[0]["rows"], shown[0]["late"]) == ("1000", "900", 2, 2)
    plain.close()
    with millstream.connect(database_path, background=False) as again:
        assert again.sql("SHOW STREAMING TABLES LIKE 'h'").to_arrow().to_pylist() == shown


def test_index_copies_go_with_their_compartment(plain: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "LEAST_ROWS", 1)
    plain.sql("CREATE INDEX i ON h (id)")
    insert(plain, *[5] * LARGE)
    insert(plain, *[50] * LARGE)
    assert index.build_some(plain._lake, 10) == 0
    assert len(stored.copies_on_disk(plain.path)) == 2
    insert(plain, 120)
    with plain._lake.catalog.pinned(plain._lake.catalog.current.id):
        retention.drop_expired(plain._lake)
        assert len(stored.copies_on_disk(plain.path)) == 2
    retention.drop_expired(plain._lake)
    assert len(stored.copies_on_disk(plain.path)) == 1
    stored.check(plain._lake)


def test_a_table_dropped_in_the_middle_of_a_pass_does_no_harm(
    plain: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(plain, *[5] * LARGE)
    insert(plain, 500)
    settle = retention._settle

    def dropped_meanwhile(*given: object) -> None:
        plain.sql("DROP STREAMING TABLE IF EXISTS h")
        settle(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(retention, "_settle", dropped_meanwhile)
    retention.drop_expired(plain._lake)
    stored.check(plain._lake)


def test_a_query_over_a_compartment_that_is_dropped_finishes_on_its_snapshot(db: Database) -> None:
    create(db)
    insert(db, *range(1, 100), *[5] * LARGE)
    insert(db, 50, 51)
    expected = sorted([*range(1, 100), *[5] * LARGE, 50, 51])
    result = db.sql("SELECT t FROM h")
    counted = db.sql("SELECT count(*) FROM h WHERE VALID(h) BETWEEN 0 AND 9")
    insert(db, 500)
    assert not retention.drop_expired(db._lake)
    assert times(db) == [500]
    assert db.sql("SELECT t FROM h").fetchall() == [(500,)]
    assert sorted(t for (t,) in result.fetchall()) == expected
    assert not retention.drop_expired(db._lake), "the other result is still open"
    assert counted.fetchall() == [(LARGE + 9,)]
    assert retention.drop_expired(db._lake)
    assert len(stored.files_on_disk(db.path)) == len(stored.live_files(db._lake, "h")) == 1
    assert sorted(t for (t,) in result.fetchall()) == expected, "a result keeps its rows"


def test_a_result_that_is_forgotten_lets_its_files_go(db: Database) -> None:
    create(db)
    insert(db, *[5] * LARGE)
    result = db.sql("SELECT t FROM h")
    insert(db, 500)
    assert not retention.drop_expired(db._lake)
    del result
    assert retention.drop_expired(db._lake)
    assert stored.files_on_disk(db.path) == set()


def test_old_versions_do_not_show_what_has_left_the_period_before_and_after_it_is_dropped(db: Database) -> None:
    create(db)
    insert(db, *[5] * LARGE)
    insert(db, *[60] * LARGE)
    version = db._lake.catalog.current.id
    insert(db, 160)
    asked = f"SELECT count(*), min(t) FROM h VERSION AS OF {version}"
    assert db.sql(asked).fetchall() == [(LARGE, 60)]
    retention.drop_expired(db._lake)
    assert db.sql(asked).fetchall() == [(LARGE, 60)]
    upkeep.expire(db._lake, timedelta(0))
    assert db.sql("SELECT count(*), min(t) FROM h").fetchall() == [(LARGE + 1, 60)]
