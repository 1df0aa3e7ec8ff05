"""Tables, streams and views while others insert, drop, expire or break off: each race forced, none waited for."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream import engine
from millstream.clock import ManualClock
from millstream.errors import Condition, MillstreamError
from millstream.storage import state, transaction, upkeep
from tests.recovery import stored

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.database import Database

PATIENCE = 60.0
STREAM = "CREATE STREAM s (t BIGINT, v BIGINT) TIMESTAMP BY t"
TOTALS = "SELECT count(*) AS n, sum(v) AS total FROM s"


def aside(work: Callable[[], object]) -> Any:
    """What a piece of work gives, done meanwhile in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(PATIENCE)


def before(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, work: Callable[[], object]) -> None:
    """Do something once, just before a function is called."""
    original, waiting = getattr(owner, name), [work]

    def called(*given: Any, **named: Any) -> Any:
        if waiting:
            waiting.pop()()
        return original(*given, **named)

    monkeypatch.setattr(owner, name, called)


def after(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, work: Callable[[], object]) -> None:
    """The same, just after its first call."""
    original, waiting = getattr(owner, name), [work]

    def called(*given: Any, **named: Any) -> Any:
        answer = original(*given, **named)
        if waiting:
            waiting.pop()()
        return answer

    monkeypatch.setattr(owner, name, called)


def interrupt() -> None:
    raise KeyboardInterrupt


# What is read


def test_who_reads_only_sees_what_is_written_meanwhile(database_path: Path, spark: SparkSession) -> None:
    clock = ManualClock()
    with millstream.connect(database_path, spark=spark, clock=clock, background=False) as db:
        db.sql("CREATE TABLE t (k BIGINT)")
        db.insert("t", [(1,)])
        with millstream.connect(database_path, spark=spark, clock=clock, read_only=True) as reader:
            assert reader.sql("SELECT k FROM t").fetchall() == [(1,)]
            upkeep.flush(db._lake)
            clock.advance(timedelta(hours=2))
            db.insert("t", [(2,)])
            upkeep.expire(db._lake, timedelta(hours=1))
            assert sorted(reader.sql("SELECT k FROM t").fetchall()) == [(1,), (2,)]
            assert sorted(reader.sql("SELECT k FROM t WHERE k >= 0").fetchall()) == [(1,), (2,)]


def test_a_transaction_that_is_rolled_back_leaves_no_answer_of_a_view_behind(db: Database) -> None:
    db.sql("CREATE STREAM s (t BIGINT, k BIGINT, v BIGINT) TIMESTAMP BY t")
    db.sql("CREATE TABLE names (k BIGINT, w BIGINT)")
    db.sql(
        "CREATE CONTINUOUS VIEW a AS SELECT x.k, x.total, n.w"
        " FROM (SELECT k, sum(v) AS total FROM s GROUP BY k) x JOIN names n ON x.k = n.k"
    )
    db.insert("s", [(1, 1, 7)])
    assert db.sql("SELECT * FROM a").fetchall() == []
    db.insert("names", [(1, 100)])
    db.sql("BEGIN")
    db.sql("TRUNCATE TABLE names")
    assert db.sql("SELECT * FROM a").fetchall() == []
    db.sql("ROLLBACK")
    assert db.sql("SELECT * FROM a").fetchall() == [(1, 7, 100)]


def test_a_transaction_keeps_what_it_begins_with(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql(STREAM)
    db.sql(f"CREATE CONTINUOUS VIEW a AS {TOTALS}")
    db.insert("s", [(1, 7)])

    def more() -> None:
        db.insert("s", [(2, 7)])
        db._engine.views.advance_all()

    # Right after it has looked at the moment that it is of.
    before(monkeypatch, transaction, "finalize", lambda: aside(more))
    db.sql("BEGIN")
    assert db.sql("SELECT * FROM a").fetchall() == [(1, 7)]
    db.sql("ROLLBACK")
    assert db.sql("SELECT * FROM a").fetchall() == [(2, 14)]


def test_an_old_version_is_there_or_said_to_be_gone(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.sql("CREATE TABLE t (k BIGINT)")
    db.insert("t", [(1,)])
    old = db._lake.catalog.current.id
    upkeep.flush(db._lake)
    for k in (2, 3):
        clock.advance(timedelta(hours=2))
        db.insert("t", [(k,)])
    after(monkeypatch, db._lake.catalog, "pin_version", lambda: aside(lambda: expire(db)))
    text = f"SELECT k FROM t VERSION AS OF {old} WHERE k >= 0"
    assert db.sql(text).fetchall() == [(1,)]
    expire(db)
    with pytest.raises(MillstreamError) as told:
        db.sql(text)
    assert told.value.condition is Condition.UNKNOWN_VERSION


def expire(db: Database) -> None:
    upkeep.expire(db._lake, timedelta(hours=1))


def test_a_result_keeps_every_moment_that_it_reads(db: Database) -> None:
    db.sql("CREATE TABLE t (k BIGINT)")
    db.insert("t", [(1,)])
    old = db._lake.catalog.current.id
    db.insert("t", [(2,)])
    result = db.sql(f"SELECT count(*) FROM t AS a, t VERSION AS OF {old} AS b")
    assert db._lake.catalog.pins() == [old, db._lake.catalog.current.id]
    assert result.fetchall() == [(2,)]
    assert db._lake.catalog.pins() == []


def test_a_view_that_is_dropped_is_read_by_who_began_before(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql(STREAM)
    for name in ("a", "b"):
        db.sql(f"CREATE CONTINUOUS VIEW {name} AS {TOTALS}")
    db.insert("s", [(1, 7)])
    db._engine.views.advance_all()
    db.sql("BEGIN")
    aside(lambda: db.sql("DROP VIEW a"))
    assert db.sql("SELECT * FROM a").fetchall() == [(1, 7)]
    db.sql("COMMIT")
    before(monkeypatch, db._engine.views, "catch_up_for", lambda: aside(lambda: db.sql("DROP VIEW b")))
    with pytest.raises(MillstreamError) as told:
        db.sql("SELECT * FROM b")
    assert told.value.condition is Condition.UNKNOWN_TABLE


def test_pins_that_were_given_back_are_forgotten(database_path: Path) -> None:
    with millstream.connect(database_path, clock=ManualClock(), background=False) as db:
        db.sql("CREATE TABLE t (k BIGINT)")
        db.insert("t", [(1,)])
        for _ in range(500):
            assert db.sql("SELECT k FROM t WHERE k > 0").fetchall() == [(1,)]
        assert len(db._lake.catalog._unpinned) < 10


# What is made and dropped


def test_a_view_is_not_made_over_a_table_that_goes_meanwhile(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.sql("CREATE STREAM s (t BIGINT, k BIGINT, v BIGINT) TIMESTAMP BY t")
    db.sql("CREATE TABLE names (k BIGINT, w BIGINT)")
    after(monkeypatch, db._engine.views.maker, "draft", lambda: aside(lambda: db.sql("DROP TABLE names")))
    with pytest.raises(MillstreamError) as told:
        db.sql(
            "CREATE CONTINUOUS VIEW a AS SELECT x.k, x.total, n.w"
            " FROM (SELECT k, sum(v) AS total FROM s GROUP BY k) x JOIN names n ON x.k = n.k"
        )
    assert told.value.condition is Condition.WRITE_CONFLICT
    assert "names" in str(told.value)
    assert "a" not in db._lake.catalog.tables()
    stored.check(db._lake)


def test_views_that_were_made_at_different_times_come_to_one_place(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.sql(STREAM)
    db.sql("CREATE CONTINUOUS VIEW a AS SELECT count(*) AS n FROM s WHERE t >= 100")
    db.insert("s", [(1, 7)])
    db.sql("CREATE CONTINUOUS VIEW b AS SELECT count(*) AS n FROM s WHERE t >= 100")
    db.insert("s", [(100, 1)])
    keeper = db._engine.views.keeper
    after(monkeypatch, keeper, "_advance", lambda: aside(lambda: db.insert("s", [(101, 1)])))
    db.sql("BEGIN")
    found = [db.sql(f"SELECT * FROM {name}").fetchall() for name in ("a", "b")]
    db.sql("ROLLBACK")
    assert found in ([[(1,)], [(1,)]], [[(2,)], [(2,)]])
    keeper.catch_up_all()
    assert len({tuple(p.items()) for p in keeper.positions.values()}) == 1


# Who is broken off


def test_an_insert_that_is_broken_off_while_it_is_told_of_holds_nobody_up(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.sql("CREATE STREAM s (v BIGINT)")
    lake = db._lake
    before(monkeypatch, lake, "committed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        db.insert("s", [(1,)])
    clock.advance(timedelta(hours=5))
    assert lake.arrived_until(stored.table_of(lake, "s").id) == clock.now()
    assert lake.catalog.pins() == []
    assert lake.catalog.row_count(stored.table_of(lake, "s")) == 1


def test_a_basket_is_not_taken_in_twice_by_a_view_that_was_broken_off(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.sql(STREAM)
    db.sql(f"CREATE CONTINUOUS VIEW a AS {TOTALS}")
    db.insert("s", [(1, 7)])
    after(monkeypatch, state, "commit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        db.sql("SELECT * FROM a")
    assert db.sql("SELECT * FROM a").fetchall() == [(1, 7)]


def test_a_thread_that_ends_in_a_transaction_holds_no_upkeep_up(db: Database) -> None:
    db.sql("CREATE TABLE t (k BIGINT)")
    db.insert("t", [(1,)])
    aside(lambda: db.sql("BEGIN"))
    gc.collect()
    assert db._lake.catalog.pins() == []
    assert upkeep.flush(db._lake) == 1


def test_a_result_is_collected_wherever_it_may_be(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage is collected by whoever makes an object, be it with the lock of the pins."""
    db.sql("CREATE TABLE t (k BIGINT)")
    db.insert("t", [(1,)])
    catalog = db._lake.catalog

    class Collecting(dict[int, int]):
        def __iter__(self) -> Any:
            gc.collect()
            return super().__iter__()

    monkeypatch.setattr(catalog, "_pins", Collecting(catalog._pins))

    def forget_in_a_circle() -> list[int]:
        result: Any = db.sql("SELECT k FROM t WHERE k > 0")
        result.itself = result
        del result
        return catalog.pins()

    gc.disable()
    try:
        done = threading.Thread(target=forget_in_a_circle, daemon=True)
        done.start()
        done.join(PATIENCE)
    finally:
        gc.enable()
    assert not done.is_alive(), "it waits for itself"
    assert catalog.pins() == []


# Upkeep


def test_a_flush_gives_way_to_a_transaction_that_begins_meanwhile(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.sql("CREATE TABLE t (k BIGINT)")
    db.insert("t", [(1,), (2,)])

    def begin() -> None:
        db.sql("BEGIN")
        db.sql("DELETE FROM t WHERE k = 1")

    after(monkeypatch, upkeep, "_write", begin)
    assert upkeep.flush(db._lake) == 0
    db.sql("COMMIT")
    assert db.sql("SELECT k FROM t").fetchall() == [(2,)]
    stored.check(db._lake)


def test_states_are_swept_beside_any_number_of_readers(db: Database) -> None:
    db.sql(STREAM)
    db.sql(f"CREATE CONTINUOUS VIEW a AS {TOTALS}")
    catalog = db._lake.catalog
    with catalog.pin_all(range(100_000, 102_000)):
        for t in range(3):
            db.insert("s", [(t, 1)])
            db._engine.views.advance_all()
    assert db.sql("SELECT * FROM a").fetchall() == [(3, 3)]


# Times of arrival


def test_rows_that_spark_writes_arrive_when_their_insert_begins(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes: no instant that they belong to is answered before they are there."""
    db.sql("CREATE STREAM s (v BIGINT)")
    db.sql("CREATE TABLE t (v BIGINT)")
    db.insert("t", [(7,)])
    db.sql(
        "CREATE CONTINUOUS QUERY q AS"
        " SELECT count(*) AS n FROM s [INTERVAL '10' SECOND] SAMPLE INTERVAL '10' SECOND"
    )
    db.insert("s", [(1,)])
    clock.advance(timedelta(seconds=11))
    db.drain()

    def long_job() -> None:
        clock.advance(timedelta(seconds=30))
        aside(db._engine.queries.advance_all)

    before(monkeypatch, engine, "write_rows", long_job)
    db.sql("INSERT INTO s SELECT v FROM t")
    clock.advance(timedelta(seconds=30))
    db.drain()
    counts = [d.fetchall()[0][0] for d in db.results("q")]
    assert sum(counts) == 2, counts
