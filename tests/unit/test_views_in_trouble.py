"""Continuous views when something goes wrong beside them: no row is lost or doubled, nothing is left behind."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from millstream.engine import Engine
from millstream.errors import Condition, DataError, MachineError, MillstreamError, StatementError
from millstream.storage import inline, retention, segment, state
from millstream.views import keeping
from millstream.views.reading import Readings
from tests.unit.test_views import QUERY, events, expected, read, rows, states

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.database import Database

__all__ = ["events"]
SPREAD = "SELECT k, stddev(d) AS s FROM events GROUP BY k"
"""A view that Spark keeps."""


def on_disk(db: Database) -> int:
    return sum(1 for t in states(db) for _ in db._lake.folder(t).glob("*.parquet"))


def live(db: Database) -> int:
    keeper = db._engine.views.keeper
    return sum(len(keeper.pieces(t, db._lake.catalog.current)) for t in states(db))


def test_an_error_behind_the_commit_counts_nothing_twice(
    events: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    events.insert("events", rows(50))
    read(events, "v")
    events.insert("events", rows(50, 50))

    def fails(*_: Any) -> None:
        raise MachineError(Condition.DISK_FULL, "no room", hint="Make some.")

    with monkeypatch.context() as patch:
        patch.setattr(state, "sweep", fails)
        with pytest.raises(MachineError):
            read(events, "v")
    assert read(events, "v") == expected(events, QUERY, rows(100))


@pytest.mark.parametrize("query", [QUERY, SPREAD])
def test_a_statement_that_is_cancelled_fails_no_view(
    events: Database, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    events.sql(f"CREATE CONTINUOUS VIEW v AS {query}")
    events.insert("events", rows(50))

    def cancelled(*_: Any, **__: Any) -> None:
        raise StatementError(Condition.CANCELLED, "the statement was cancelled")

    with monkeypatch.context() as patch:
        patch.setattr(keeping.Keeper, "_changes", cancelled)
        with pytest.raises(StatementError, match="cancelled"):
            read(events, "v")
    assert len(read(events, "v")) == 6


def test_a_full_disk_in_a_task_is_told_as_such_and_fails_no_view(
    events: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    events.insert("events", rows(50))
    with monkeypatch.context() as patch:
        patch.setattr(segment, "write", _no_room)
        with pytest.raises(MachineError, match="no room"):
            read(events, "v")
    assert read(events, "v") == expected(events, QUERY, rows(50))


def _no_room(*_: Any, **__: Any) -> None:
    raise MachineError(Condition.DISK_FULL, "no room", hint="Make some.")


def test_what_one_executor_wrote_goes_when_the_other_fails(
    events: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    events.sql(f"CREATE CONTINUOUS VIEW w AS {SPREAD}")
    events.insert("events", rows(50))
    with monkeypatch.context() as patch:
        patch.setattr(keeping.Keeper, "_by_spark", _no_room)
        with pytest.raises(MachineError, match="no room"):
            read(events, "v")
    assert on_disk(events) == live(events) == 0
    assert read(events, "v") == expected(events, QUERY, rows(50))


def test_a_reader_holds_back_what_it_reads_and_no_more(events: Database) -> None:
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    events.insert("events", rows(50))
    read(events, "v")
    with events._lake.catalog.pinned(events._lake.catalog.current.id):
        for number in range(5):
            events.insert("events", rows(50, 50 * number))
            read(events, "v")
        assert on_disk(events) <= live(events) + 2


def test_results_that_are_too_large_for_the_driver_are_written_by_tasks(
    events: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.sql("SET executor = spark_sql")
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    tried = []

    def too_large(*_: Any) -> None:
        tried.append(1)
        raise DataError(Condition.QUERY_FAILED, "it failed", detail="is bigger than spark.driver.maxResultSize")

    monkeypatch.setattr(keeping, "collect_passes", too_large)
    events.insert("events", rows(50))
    assert read(events, "v") == expected(events, QUERY, rows(50))
    assert tried


def test_an_interrupted_wait_for_a_new_view_leaves_the_view(
    events: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is durable, and the one who waited for it does not know."""
    events.sql("CREATE TABLE names (k INT, name STRING)")
    events.sql("INSERT INTO names VALUES (1, 'one')")
    catalog = events._lake.catalog
    commit = catalog.commit

    def interrupted(*given: Any, **more: Any) -> None:
        commit(*given, **more)
        raise KeyboardInterrupt

    query = "SELECT n.name, count(*) AS c FROM events JOIN names n ON n.k = events.k GROUP BY n.name"
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            events.sql(f"CREATE CONTINUOUS VIEW v AS {query}")
    events.insert("events", rows(50))
    assert read(events, "v") == expected(events, query, rows(50))


def test_a_column_that_comes_between_two_groups_of_views_loses_no_row(
    events: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    events.insert("events", rows(10))
    events.sql("CREATE CONTINUOUS VIEW w AS SELECT count(*) AS n FROM events")
    events.insert("events", rows(10, 10))
    advance = keeping.Keeper._advance
    asked = []

    def advance_and_alter(self: Any, *given: Any) -> int:
        found = advance(self, *given)
        if not asked:
            # In a thread of its own, as another user's statement would come.
            other = threading.Thread(target=lambda: events.sql("ALTER STREAM events ADD COLUMN more INT"))
            other.start()
            other.join()
        asked.append(given)
        return found

    monkeypatch.setattr(keeping.Keeper, "_advance", advance_and_alter)
    assert read(events, "w") == [(10,)]
    assert len(asked) == 2
    assert sum(r[1] for r in read(events, "v")) == 20


def test_a_period_takes_no_rows_from_a_view_that_has_failed(db: Database) -> None:
    db.sql("CREATE STREAMING TABLE kept (k INT, t BIGINT) TIMESTAMP BY t RANGE INTERVAL 100")
    broken = [True]
    db.create_function("checked", lambda x: 1 // 0 if broken[0] and x == 13 else x, returns="INT")
    db.sql("CREATE CONTINUOUS VIEW v AS SELECT count(checked(k)) AS n FROM kept")
    db.insert("kept", [(13, 1), (14, 2)])
    with pytest.raises(MillstreamError):
        db.sql("SELECT * FROM v").fetchall()
    db.insert("kept", [(15, 10_000)])
    retention.drop_expired(db._lake)
    assert db.sql("SELECT count(*) FROM kept").fetchall() == [(1,)]
    db.create_function("checked", lambda x: x, returns="INT")
    db.sql("RESUME v")
    assert db.sql("SELECT * FROM v").fetchall() == [(3,)]


def test_a_stream_is_not_dropped_from_under_a_view_that_came_meanwhile(events: Database) -> None:
    events.sql("BEGIN")
    events.sql("DROP STREAM events")
    other = threading.Thread(target=lambda: events._engine.views.create(_statement()))
    other.start()
    other.join()
    with pytest.raises(MillstreamError) as told:
        events.sql("COMMIT")
    assert told.value.condition is Condition.WRITE_CONFLICT
    assert read(events, "late") == []


def _statement() -> Any:
    from millstream.sql.parse import parse_one

    return parse_one("CREATE CONTINUOUS VIEW late AS SELECT k, count(*) AS n FROM events GROUP BY k")


def test_the_largest_number_is_not_one_whatever_the_baskets(events: Database) -> None:
    events.sql("SET executor = spark_sql")
    query = "SELECT max(d) AS high, min(d) AS low FROM events"
    events.sql(f"CREATE CONTINUOUS VIEW v AS {query}")
    for value in ("NaN", "1", "NaN", "2"):
        events.sql(f"INSERT INTO events VALUES (1, 1, CAST('{value}' AS DOUBLE), 's', TIMESTAMP '2024-05-01')")
        high, low = events.sql("SELECT * FROM v").fetchall()[0]
    assert high != high
    assert low == 1.0


def test_pinned_results_of_a_function_are_not_shared_with_its_next_version(events: Database) -> None:
    events.sql("CREATE TABLE names (k INT, name STRING)")
    events.sql("INSERT INTO names VALUES (1, 'one')")
    query = (
        "SELECT n.c, count(*) AS x FROM events JOIN (SELECT k, called(name) AS c FROM names) n"
        " ON n.k = events.k GROUP BY n.c"
    )
    for number, version in enumerate(("old", "new")):
        events.create_function("called", lambda _, said=version: said, returns="STRING")
        events.sql(f"CREATE CONTINUOUS VIEW v{number} AS {query}")
    events.insert("events", rows(50))
    assert [c for c, _ in read(events, "v1")] == ["new"]


def test_rows_that_all_have_seen_may_go_while_a_view_looks_for_new_ones(
    events: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "MOST_ROWS", 4)
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    events.insert("events", rows(50))
    read(events, "v")
    events.insert("events", rows(50, 50))
    lake = events._lake
    old = min(lake.folder(lake.catalog.tables()["events"]).glob("*.parquet"), key=lambda f: f.stat().st_mtime_ns)
    events._engine.views.keeper._last_ids.clear()
    old.unlink()
    assert sum(n for _, n, *_ in read(events, "v")) == 100


def test_what_a_statement_reads_stays_however_late_it_looks(
    events: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.sql("SET executor = spark_sql")
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    bound, by_spark, numbers = Engine.bound, Readings._by_spark, iter(range(8))

    def goes_on() -> None:
        for _ in range(4):
            events.insert("events", rows(50, 50 * next(numbers)))
            events._engine.views.catch_up_named(["v"])

    def bound_later(self: Engine, *given: Any) -> Any:
        in_a_thread(goes_on)
        return bound(self, *given)

    def computed_later(self: Readings, *given: Any) -> Any:
        in_a_thread(goes_on)
        return by_spark(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "bound", bound_later)
        patch.setattr(Readings, "_by_spark", computed_later)
        found = read(events, "v")
    assert found == expected(events, QUERY, rows(200))
    assert read(events, "v") == expected(events, QUERY, rows(400))


def in_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_mistake_of_ours_fails_its_view_alone(events: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("good", "bad", "other"):
        events.sql(f"CREATE CONTINUOUS VIEW {name} AS {QUERY}")
    changes = keeping.Keeper._changes

    def mistaken(self: Any, stream: Any, scan: Any, group: Any) -> Any:
        if any(kept.view.name == "bad" for kept in group):
            raise KeyError("wrong")
        return changes(self, stream, scan, group)

    with monkeypatch.context() as patch:
        patch.setattr(keeping.Keeper, "_changes", mistaken)
        events.insert("events", rows(50))
        events.drain()
        assert read(events, "good") == read(events, "other") == expected(events, QUERY, rows(50))
        with pytest.raises(MillstreamError, match="KeyError: 'wrong'") as caught:
            read(events, "bad")
        assert caught.value.condition is Condition.VIEW_FAILED
    events.sql("RESUME bad")
    assert read(events, "bad") == expected(events, QUERY, rows(50))
