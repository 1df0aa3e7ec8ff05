"""Continuous views from the inside: what a basket costs, what is kept, who runs what, what happens on failure."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import millstream
from millstream.errors import Condition, MillstreamError
from millstream.execute.passes import fuse
from millstream.schema import ObjectKind
from millstream.storage import upkeep
from millstream.views import keeping, kernels, merging
from tests.slt.spark import jobs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.clock import ManualClock
    from millstream.database import Database

START = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.fixture
def events(db: Database) -> Database:
    db.sql("CREATE STREAM events (k INT, v BIGINT, d DOUBLE, s STRING, ts TIMESTAMP) TIMESTAMP BY ts")
    return db


def rows(count: int, first: int = 0) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({
        "k": pa.array([None if i % 7 == 3 else i % 5 for i in numbers], pa.int32()),
        "v": pa.array([i % 100 for i in numbers], pa.int64()),
        "d": pa.array([i / 4 for i in numbers], pa.float64()),
        "s": pa.array([f"s{i % 3}" for i in numbers]),
        "ts": pa.array([START + timedelta(seconds=i) for i in numbers], pa.timestamp("us", tz="UTC")),
    })  # fmt: skip


def read(db: Database, view: str) -> list[tuple[Any, ...]]:
    return sorted(db.sql(f"SELECT * FROM {view}").fetchall(), key=repr)


def expected(db: Database, query: str, data: pa.Table) -> list[tuple[Any, ...]]:
    """The plain query over the same rows in a table."""
    db.sql("CREATE OR REPLACE TABLE events_rows (k INT, v BIGINT, d DOUBLE, s STRING, ts TIMESTAMP)")
    db.insert("events_rows", data)
    return sorted(db.sql(query.replace("events", "events_rows")).fetchall(), key=repr)


QUERY = "SELECT k, count(*) AS n, sum(v) AS total, min(d) AS low, max(s) AS high FROM events GROUP BY k"


@pytest.mark.parametrize("executor", ["kernel", "spark_sql"])
def test_a_basket_costs_as_many_jobs_for_twenty_views_as_for_one(events: Database, executor: str) -> None:
    events.sql(f"SET executor = {executor}")
    costs = []
    for number in range(20):
        events.sql(
            f"CREATE CONTINUOUS VIEW v{number} AS SELECT k, sum(v + {number}) AS n FROM events"
            f" WHERE v > {number} GROUP BY k"
        )
        if number in (0, 19):
            events.insert("events", rows(20_000))
            before = jobs(events.spark)
            events.drain()
            costs.append(jobs(events.spark) - before)
    assert costs[0] == costs[1] >= 1
    for number in (0, 7, 19):
        found = dict(read(events, f"v{number}"))
        since = rows(20_000) if number else pa.concat_tables([rows(20_000), rows(20_000)])
        query = f"SELECT k, sum(v + {number}) AS n FROM events WHERE v > {number} GROUP BY k"
        assert found == dict(expected(events, query, since))


def pinned(db: Database) -> list[str]:
    """The hidden tables of what views have pinned."""
    return [t.name for t in db._engine.lake.catalog.hidden().values() if t.name.startswith("__static")]


def names_of(db: Database, view: str) -> str:
    """The text that views must have in common to share a pass."""
    keeper = db._engine.views.keeper
    return next(k.parts[0].source for k in keeper.every() if k.view.name == view)


def test_views_that_pin_the_same_rows_share_them_and_a_pass(events: Database) -> None:
    events.sql("CREATE TABLE names (k INT, name STRING)")
    events.sql("INSERT INTO names VALUES (1, 'one'), (2, 'two')")
    query = "SELECT n.name, {} FROM events JOIN names n ON n.k = events.k GROUP BY n.name"
    events.sql(f"CREATE CONTINUOUS VIEW a AS {query.format('sum(v) AS x')}")
    events.sql(f"CREATE CONTINUOUS VIEW b AS {query.format('max(v) AS x')}")
    assert len(pinned(events)) == 1
    assert names_of(events, "a") == names_of(events, "b")
    events.sql("INSERT INTO names VALUES (3, 'three')")
    events.sql(f"CREATE CONTINUOUS VIEW c AS {query.format('count(*) AS x')}")
    assert len(pinned(events)) == 2
    events.insert("events", rows(50))
    assert [name for name, _ in read(events, "a")] == ["one", "two"]
    assert [name for name, _ in read(events, "c")] == ["one", "three", "two"]
    events.sql("DROP VIEW a")
    events.insert("events", rows(50, 50))
    assert read(events, "b") == [("one", 96), ("two", 97)]
    events.sql(f"CREATE OR REPLACE CONTINUOUS VIEW c AS {query.format('min(v) AS x')}")
    events.insert("events", rows(50))
    assert [name for name, _ in read(events, "c")] == ["one", "three", "two"]
    events.sql("DROP VIEW b")
    assert len(pinned(events)) == 1
    events.sql("DROP VIEW c")
    assert pinned(events) == []


def test_what_a_stream_is_called_does_not_keep_views_apart(events: Database) -> None:
    queries = {
        "a": "SELECT k, sum(v) AS x FROM events WHERE s <> 'x' GROUP BY k",
        "b": "SELECT e.k, min(e.d) AS x FROM events e WHERE e.v > 10 GROUP BY e.k",
        "c": "SELECT f.k, max(f.s) AS x FROM events AS f GROUP BY f.k",
        "d": "SELECT e.k, max('`e`.' || e.s) AS x FROM events e GROUP BY e.k",
    }
    for name, query in queries.items():
        events.sql(f"CREATE CONTINUOUS VIEW {name} AS {query}")
    every = {k.view.name: k.parts[0] for k in events._engine.views.keeper.every()}
    assert len(fuse(enumerate(every[name] for name in "abc"))) == 1
    assert len(fuse(enumerate(every.values()))) == 2
    events.insert("events", rows(50))
    for name, query in queries.items():
        assert read(events, name) == expected(events, query, rows(50))


def test_what_may_be_different_each_time_is_pinned_by_each_view(events: Database) -> None:
    events.sql("CREATE TABLE names (k INT, name STRING)")
    for view in ("a", "b"):
        events.sql(
            f"CREATE CONTINUOUS VIEW {view} AS SELECT n.r, count(*) AS c FROM events"
            " JOIN (SELECT k, rand() AS r FROM names) n ON n.k = events.k GROUP BY n.r"
        )
    assert len(pinned(events)) == 2


def test_a_read_with_nothing_new_costs_no_job(events: Database) -> None:
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    events.sql("CREATE CONTINUOUS VIEW lists AS SELECT k, collect_set(v) AS vs FROM events GROUP BY k")
    events.insert("events", rows(50))
    first, lists = read(events, "v"), read(events, "lists")
    before = jobs(events.spark)
    assert read(events, "v") == first
    assert read(events, "lists") == lists
    assert events.sql("SELECT total FROM v WHERE k = 1").fetchall() == [(r[2],) for r in first if r[0] == 1]
    assert jobs(events.spark) == before


def test_stale_views_are_read_together(events: Database) -> None:
    events.sql("SET executor = spark_sql")
    events.sql("CREATE TABLE names (k INT, name STRING)")
    events.sql("INSERT INTO names VALUES (1, 'one')")
    queries = {
        "a": QUERY,
        "b": "SELECT collect_list(v) AS vs, max(ts) AS t FROM events WHERE v < 5",
        "c": "SELECT k, n.name, c FROM (SELECT k, count(*) AS c FROM events GROUP BY k) JOIN names n USING (k)",
        "unread": "SELECT k, avg(d) AS x FROM events GROUP BY k",
    }
    for view, query in queries.items():
        events.sql(f"CREATE CONTINUOUS VIEW {view} AS {query}")
    every = []
    for number in range(3):
        every.append(rows(20, 20 * number))
        events.insert("events", every[-1])
        found = {view: read(events, view) for view in "abc"}
        assert found["a"] == expected(events, QUERY, pa.concat_tables(every))
        assert found["c"] == [(1, "one", len([i for i in range(20 * (number + 1)) if i % 5 == 1 and i % 7 != 3]))]
        assert found["b"][0][1] == START + timedelta(seconds=4)
    events.insert("events", rows(20, 60))
    read(events, "c")
    before = jobs(events.spark)
    read(events, "a")
    read(events, "b")
    assert jobs(events.spark) == before
    assert len(read(events, "unread")) == 6
    assert jobs(events.spark) > before


def test_a_view_that_fails_does_not_take_others_with_it(events: Database) -> None:
    events.sql("SET executor = spark_sql")
    events.sql("CREATE CONTINUOUS VIEW a AS SELECT k, sum(v) AS x FROM events GROUP BY k")
    events.sql("CREATE CONTINUOUS VIEW b AS SELECT CAST(max(s) AS INT) AS x FROM events")
    events.insert("events", rows(1).set_column(3, "s", pa.array(["12"])))
    assert (read(events, "a"), read(events, "b")) == ([(0, 0)], [(12,)])
    events.insert("events", rows(1))
    assert read(events, "a") == [(0, 0)]
    with pytest.raises(MillstreamError):
        read(events, "b")


def test_small_baskets_of_proven_types_need_no_job_at_all(events: Database) -> None:
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    before = jobs(events.spark)
    events.insert("events", rows(50))
    found = read(events, "v")
    assert jobs(events.spark) == before
    assert found == expected(events, QUERY, rows(50))


def test_a_constant_beside_a_narrow_number_is_an_int_without_spark_too(db: Database) -> None:
    db.sql("CREATE STREAM narrow (y TINYINT, ts TIMESTAMP) TIMESTAMP BY ts")
    db.sql("CREATE CONTINUOUS VIEW v AS SELECT max(y * 2 + 1) AS x, sum(coalesce(y, 0) + 100) AS z FROM narrow")
    before = jobs(db.spark)
    db.insert("narrow", [(127, START), (None, START)])
    assert read(db, "v") == [(255, 327)]
    assert jobs(db.spark) == before


def test_a_file_of_seen_and_unseen_rows_is_read_in_part(events: Database) -> None:
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    events.insert("events", rows(20))
    read(events, "v")
    events.insert("events", rows(20, 20))
    upkeep.flush_table(events._lake, events._lake.catalog.tables()["events"])
    before = jobs(events.spark)
    found = read(events, "v")
    assert jobs(events.spark) == before
    assert found == expected(events, QUERY, rows(40))


def test_the_kernel_runs_in_sparks_workers(events: Database) -> None:
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    events.insert("events", rows(kernels.HERE_ROWS + 1))
    events.drain()
    workers = events._engine.views.keeper.kernels.workers
    assert workers
    assert os.getpid() not in workers
    assert read(events, "v") == expected(events, QUERY, rows(kernels.HERE_ROWS + 1))


def test_a_pass_is_shared_among_tasks_by_its_keys(events: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "ONE_TASK_ROWS", 10)
    monkeypatch.setattr(kernels, "HERE_ROWS", 10)
    monkeypatch.setattr(kernels.os, "cpu_count", lambda: 3)
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    events.sql("CREATE CONTINUOUS VIEW w AS SELECT s, k, sum(d) AS t FROM events WHERE v > 20 GROUP BY s, k")
    events.sql("CREATE CONTINUOUS VIEW x AS SELECT k, s, max(v) AS t FROM events GROUP BY k, s")
    every = []
    for number in range(3):
        every.append(rows(400, 400 * number))
        events.insert("events", every[-1])
        data = pa.concat_tables(every)
        assert read(events, "v") == expected(events, QUERY, data)
        query = "SELECT s, k, sum(d) AS t FROM events WHERE v > 20 GROUP BY s, k"
        assert read(events, "w") == expected(events, query, data)
        assert read(events, "x") == expected(events, "SELECT k, s, max(v) AS t FROM events GROUP BY k, s", data)


def test_tasks_find_their_share_of_a_state_though_the_pass_changes(
    events: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view that comes later makes the pass hash its keys in another order; another machine has more tasks."""
    monkeypatch.setattr(kernels, "ONE_TASK_ROWS", 10)
    monkeypatch.setattr(kernels, "HERE_ROWS", 10)
    tasks = [2]
    monkeypatch.setattr(kernels.os, "cpu_count", lambda: tasks[0])
    query = "SELECT s, k, sum(v) AS t, min(d) AS l FROM events GROUP BY s, k"
    events.sql(f"CREATE CONTINUOUS VIEW v AS {query}")
    every = []
    for number in range(5):
        if number == 2:
            events.sql("CREATE CONTINUOUS VIEW w AS SELECT k, s, max(v) AS t FROM events GROUP BY k, s")
        if number == 4:
            tasks[0] = 3
        every.append(rows(200, 200 * number))
        events.insert("events", every[-1])
        assert read(events, "v") == expected(events, query, pa.concat_tables(every))
    orders = {s.keys for s in events._engine.views.keeper.kernels._shares.values()}
    assert orders == {("k1", "k0"), ("k0", "k1")}


def test_the_kernel_merges_the_pieces_of_large_states(events: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "ONE_TASK_ROWS", 10)
    monkeypatch.setattr(kernels, "HERE_ROWS", 10)
    monkeypatch.setattr(merging, "MERGED_TIMES", 0)
    monkeypatch.setattr(merging, "LEAST_MERGED_ROWS", 0)
    monkeypatch.setattr(keeping, "MOST_PIECES", 4)
    monkeypatch.setattr(keeping.Keeper, "_merged_by_spark", None)
    alone = "SELECT count(*) AS n, max(s) AS m FROM events"
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    events.sql(f"CREATE CONTINUOUS VIEW w AS {alone}")
    every, most = [], 0
    for number in range(6):
        every.append(rows(100, 100 * number))
        events.insert("events", every[-1])
        events.drain()
        keeper, data = events._engine.views.keeper, pa.concat_tables(every)
        most = max(most, *(len(keeper.pieces(t, events._lake.catalog.current)) for t in states(events)))
        assert read(events, "v") == expected(events, QUERY, data)
        assert read(events, "w") == expected(events, alone, data)
    assert most <= 4


@pytest.mark.parametrize("executor", ["kernel", "spark_sql"])
def test_old_baskets_are_not_read_again(events: Database, executor: str) -> None:
    events.sql("CREATE STREAMING TABLE kept (k INT, v BIGINT, ts TIMESTAMP) TIMESTAMP BY ts RANGE UNBOUNDED")
    events.sql(f"SET executor = {executor}")
    query = "SELECT k, sum(v) AS n, count(DISTINCT v) AS m FROM kept GROUP BY k"
    events.sql(f"CREATE CONTINUOUS VIEW v AS {query}")
    data = rows(30_000).select(["k", "v", "ts"])
    events.insert("kept", data)
    first = read(events, "v")
    poison(events, "kept")
    events.insert("kept", data)
    assert read(events, "v") == [(k, 2 * n, m) for k, n, m in first]


def poison(db: Database, table: str) -> None:
    """Write over the files of a table, so that whoever reads them fails."""
    lake = db._lake
    info = lake.catalog.tables()[table]
    found = list(lake.folder(info).glob("*.parquet"))
    assert found
    for file in found:
        file.write_bytes(b"poison" * 100)


def test_baskets_go_when_every_view_has_seen_them(events: Database, clock: ManualClock) -> None:
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    events.insert("events", rows(40_000))
    folder = events._lake.folder(events._lake.catalog.tables()["events"])
    assert list(folder.glob("*.parquet"))
    first = read(events, "v")
    clock.advance(timedelta(minutes=1))
    events.drain()
    assert not list(folder.glob("*.parquet"))
    assert read(events, "v") == first


def test_states_are_merged_when_they_have_come_to_many_pieces(
    events: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "MOST_PIECES", 3)
    events.sql("SET executor = spark_sql")
    query = (
        "SELECT k, avg(d) AS a, stddev(d) AS b, count(DISTINCT s) AS c, max_by(s, ts) AS m FROM events GROUP BY k"
    )
    events.sql(f"CREATE CONTINUOUS VIEW v AS {query}")
    every = []
    for number in range(6):
        every.append(rows(30, 30 * number))
        events.insert("events", every[-1])
        events.drain()
    pieces = [
        f for t in states(events) for f in events._engine.views.keeper.pieces(t, events._lake.catalog.current)
    ]
    assert len(pieces) <= 3 * len(states(events)) + 3
    files = [p for t in states(events) for p in events._lake.folder(t).glob("*.parquet")]
    assert len(files) == len(pieces), "what has been merged is gone from the disk"
    found, plain = read(events, "v"), expected(events, query, pa.concat_tables(every))
    assert [(r[0], *r[3:]) for r in found] == [(r[0], *r[3:]) for r in plain]
    for mine, other in zip(found, plain, strict=True):
        assert mine[1:3] == pytest.approx(other[1:3])


def states(db: Database) -> list[Any]:
    return list(db._lake.catalog.hidden().values())


def test_states_grow_with_groups_and_not_with_rows(events: Database) -> None:
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    sizes = []
    for number in range(4):
        events.insert("events", rows(5_000, 5_000 * number))
        events.drain()
        sizes.append(events.sql("SHOW VIEWS").to_arrow().column("state_rows")[0].as_py())
    assert sizes == [6, 6, 6, 6]


def test_what_is_hidden_is_not_listed(events: Database) -> None:
    events.sql(f"CREATE CONTINUOUS VIEW v AS {QUERY}")
    assert [o.name for o in events.objects()] == ["events", "v"]
    assert events.sql("SHOW TABLES").fetchall() == []
    assert events.objects()[1].kind is ObjectKind.CONTINUOUS_VIEW
    with pytest.raises(MillstreamError, match=r"There are events, v\."):
        events.sql("SELECT * FROM zzzzzz")


def test_a_function_that_raises_fails_its_view_alone(events: Database) -> None:
    def picky(value: int) -> int:
        if value == 13:
            raise ValueError("unlucky")
        return value

    events.create_function("picky", picky, returns="BIGINT")
    events.sql("CREATE CONTINUOUS VIEW bad AS SELECT k, sum(picky(v)) AS n FROM events GROUP BY k")
    events.sql("CREATE CONTINUOUS VIEW good AS SELECT k, sum(v) AS n FROM events GROUP BY k")
    events.insert("events", rows(10))
    assert read(events, "bad") == read(events, "good")
    events.insert("events", rows(10, 10))
    with pytest.raises(MillstreamError, match=r"'bad' has failed") as failed:
        read(events, "bad")
    assert failed.value.condition is Condition.VIEW_FAILED
    assert "rows 10 to 19 of events" in str(failed.value)
    assert "unlucky" in str(failed.value)
    assert events.sql("SHOW VIEWS").to_arrow().column("status").to_pylist() == ["failed", "running"]
    assert read(events, "good") == expected(events, "SELECT k, sum(v) AS n FROM events GROUP BY k", rows(20))
    events.create_function("picky", lambda value: value, returns="BIGINT")
    events.sql("RESUME bad")
    assert read(events, "bad") == read(events, "good")


def test_functions_have_new_names_and_real_types(db: Database) -> None:
    for name, function, returns, condition in [
        ("sum", lambda x: x, "INT", Condition.DUPLICATE_NAME),
        ("f", lambda x: x, "NOPE", Condition.UNKNOWN_TYPE),
        ("f", 5, "INT", Condition.INVALID_ARGUMENT),
    ]:
        with pytest.raises(MillstreamError) as refused:
            db.create_function(name, function, returns)  # type: ignore[arg-type]
        assert refused.value.condition is condition
    db.create_function("twice", lambda x: 2 * x, "INT")
    assert db.sql("SELECT twice(21)").fetchall() == [(42,)]


def test_a_view_is_there_after_reopening(database_path: Path, spark: SparkSession, clock: ManualClock) -> None:
    query = "SELECT k, sum(v) AS n, stddev(d) AS e FROM events GROUP BY k"
    for number in range(3):
        with millstream.connect(database_path, spark=spark, clock=clock, background=False) as db:
            if number == 0:
                db.sql("CREATE STREAM events (k INT, v BIGINT, d DOUBLE, s STRING, ts TIMESTAMP) TIMESTAMP BY ts")
                db.sql(f"CREATE CONTINUOUS VIEW v AS {query}")
            db.insert("events", rows(40, 40 * number))
            if number != 1:
                for mine, other in zip(read(db, "v"), expected(db, query, rows(40 * (number + 1))), strict=True):
                    assert mine[:2] == other[:2]
                    assert mine[2] == pytest.approx(other[2])
                db.sql("DROP TABLE events_rows")


def test_history_fills_a_view_while_rows_come(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql("CREATE STREAMING TABLE kept (k INT, v BIGINT, ts TIMESTAMP) TIMESTAMP BY ts RANGE UNBOUNDED")
    for number in range(4):
        db.insert("kept", rows(2_000, 2_000 * number).select(["k", "v", "ts"]))
    monkeypatch.setattr(keeping, "MOST_ROWS", 3_000)
    told: list[Any] = []

    def listen(progress: Any) -> None:
        told.append(progress)
        db.insert("kept", rows(10, 8_000 + 10 * len(told)).select(["k", "v", "ts"]))

    db._engine.views.keeper.listener = listen
    query = "SELECT k, count(*) AS n, sum(v) AS t FROM kept GROUP BY k"
    db.sql(f"CREATE CONTINUOUS VIEW v AS {query} WITH HISTORY")
    assert len(told) == 4
    assert [(p.done, p.total) for p in told] == [(i, 4) for i in range(1, 5)]
    assert read(db, "v") == sorted(db.sql(query).fetchall(), key=repr)


def test_a_transaction_sees_views_as_they_were_when_it_began(events: Database) -> None:
    events.sql("CREATE TABLE names (k INT, name STRING)")
    events.sql("INSERT INTO names VALUES (1, 'one')")
    events.sql("CREATE CONTINUOUS VIEW v AS SELECT name, n FROM (SELECT k, count(*) AS n FROM events GROUP BY k) g"
               " JOIN names ON names.k = g.k")  # fmt: skip
    events.insert("events", rows(10))
    before = read(events, "v")
    events.sql("BEGIN")
    events.sql("INSERT INTO names VALUES (2, 'two')")
    events.insert("events", rows(10, 10))
    assert [r for r in read(events, "v") if r[0] == "one"] == before
    assert len(read(events, "v")) == 2
    events.sql("ROLLBACK")
    assert read(events, "v") == before


def test_views_of_one_read_are_at_one_position(events: Database) -> None:
    events.sql("CREATE CONTINUOUS VIEW a AS SELECT count(*) AS n FROM events")
    events.sql("CREATE CONTINUOUS VIEW b AS SELECT sum(1) AS n, stddev(d) AS s FROM events")
    for _ in range(3):
        events.insert("events", rows(7))
        assert events.sql("SELECT a.n = b.n FROM a, b").fetchall() == [(True,)]


def test_settings_name_their_values(db: Database) -> None:
    for value in ("auto", "kernel", "spark_sql"):
        db.sql(f"SET executor = {value}")
        assert ("executor", value) in db.sql("SHOW SETTINGS").fetchall()
    with pytest.raises(MillstreamError, match="no executor"):
        db.sql("SET executor = magic")
