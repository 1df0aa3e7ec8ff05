"""Continuous queries from the inside: who is told, what a backlog costs, what is kept, what happens on failure."""

from __future__ import annotations

import asyncio
import queue
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import millstream
from millstream.errors import Condition, MillstreamError, StatementError
from millstream.queries import chorus, front, running, sharing, storing
from millstream.storage import upkeep
from millstream.storage.transaction import Transaction
from tests.slt.spark import jobs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.catalog.records import TableInfo
    from millstream.clock import ManualClock
    from millstream.database import Database, Delivery
    from millstream.queries.run import Look, Run

SECOND = timedelta(seconds=1)
SUMS = "SELECT k, sum(v) AS total FROM s [INTERVAL 9] GROUP BY k SAMPLE INTERVAL 5"


@pytest.fixture
def s(db: Database) -> Database:
    db.sql("CREATE STREAM s (k INT, v BIGINT, t BIGINT) TIMESTAMP BY t")
    return db


def rows(first: int, last: int) -> list[tuple[int, int, int]]:
    return [(t % 3, t, t) for t in range(first, last)]


def told(found: list[Delivery]) -> list[tuple[Any, int, list[tuple[Any, ...]]]]:
    return [(d.instant, d.sequence, sorted(d.fetchall())) for d in found]


def sums(instant: int) -> list[tuple[int, int]]:
    within = list(range(max(0, instant - 9), instant + 1))
    return sorted((k, sum(t for t in within if t % 3 == k)) for k in {t % 3 for t in within})


# Subscribers


def test_a_subscriber_is_given_deliveries_as_they_come(s: Database) -> None:
    s.sql(f"CREATE CONTINUOUS QUERY q AS {SUMS}")
    subscription = s.subscribe("q", timeout=0)
    s.insert("s", rows(0, 12))
    s.drain()
    assert told(list(subscription)) == [(0, 1, sums(0)), (5, 2, sums(5)), (10, 3, sums(10))]
    s.insert("s", rows(12, 17))
    s.drain()
    assert [d.sequence for d in subscription] == [4]
    assert subscription.sequence == 4


def test_a_subscriber_that_comes_back_goes_on_after_the_last_delivery(s: Database) -> None:
    s.sql(f"CREATE CONTINUOUS QUERY q AS {SUMS}")
    s.insert("s", rows(0, 12))
    s.drain()
    first = s.subscribe("q", since=0, timeout=0)
    assert next(first).sequence == 1
    first.close()
    assert list(first) == []
    s.insert("s", rows(12, 22))
    s.drain()
    assert [d.sequence for d in s.subscribe("q", since=first.sequence, timeout=0)] == [2, 3, 4, 5]
    assert list(s.subscribe("q", timeout=0)) == []


def test_a_callback_is_called_with_every_delivery(s: Database) -> None:
    s.sql(f"CREATE CONTINUOUS QUERY q AS {SUMS}")
    came: queue.Queue[Delivery] = queue.Queue()
    s.subscribe("q", callback=came.put)
    s.insert("s", rows(0, 12))
    s.drain()
    assert [came.get(timeout=30).sequence for _ in range(3)] == [1, 2, 3]


def test_deliveries_can_be_awaited(s: Database) -> None:
    s.sql(f"CREATE CONTINUOUS QUERY q AS {SUMS}")

    async def first(count: int) -> list[Delivery]:
        found: list[Delivery] = []
        async for delivery in s.subscribe("q"):
            found.append(delivery)
            if len(found) == count:
                break
        return found

    async def both() -> list[Delivery]:
        waiting = asyncio.create_task(first(3))
        await asyncio.sleep(0)
        await asyncio.to_thread(s.insert, "s", rows(0, 12))
        await asyncio.to_thread(s.drain)
        return await asyncio.wait_for(waiting, 30)

    assert [d.instant for d in asyncio.run(both())] == [0, 5, 10]


def test_a_subscriber_that_never_reads_is_told_so_and_cut_off(
    s: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "KEPT_DELIVERIES", 3)
    s.sql(f"CREATE CONTINUOUS QUERY q AS {SUMS}")
    s.insert("s", rows(0, 7))
    s.drain()
    subscription = s.subscribe("q", since=0, timeout=0)
    assert next(subscription).sequence == 1
    s.insert("s", rows(7, 42))
    s.drain()
    assert [d.sequence for d in s.results("q")] == [7, 8, 9]
    assert next(subscription).sequence == 2
    with pytest.raises(StatementError) as caught:
        next(subscription)
    assert caught.value.condition is Condition.SUBSCRIBER_TOO_SLOW
    assert "since=6" in str(caught.value)
    assert list(subscription) == []
    assert [d.sequence for d in s.subscribe("q", since=6, timeout=0)] == [7, 8, 9]


def test_subscriptions_end_with_the_query_and_with_the_database(s: Database) -> None:
    s.sql(f"CREATE CONTINUOUS QUERY q AS {SUMS}")
    s.sql(f"CREATE CONTINUOUS QUERY r AS {SUMS}")
    one, other = s.subscribe("q"), s.subscribe("r")
    s.sql("DROP CONTINUOUS QUERY q")
    assert list(one) == []
    s.close()
    assert list(other) == []


# Failures


@pytest.mark.parametrize("executor", ["auto", "spark_sql"])
def test_a_query_that_fails_on_a_row_stops_alone_and_can_be_resumed(s: Database, executor: str) -> None:
    s.sql(f"SET executor = {executor}")
    s.sql(
        "CREATE CONTINUOUS QUERY bad AS"
        " SELECT k, sum(10 / v) AS x FROM s [INTERVAL 9] GROUP BY k SAMPLE INTERVAL 5"
    )
    s.sql(f"CREATE CONTINUOUS QUERY good AS {SUMS}")
    waiting = s.subscribe("bad")
    s.insert("s", rows(0, 12))
    s.drain()
    assert told(s.results("good")) == [(0, 1, sums(0)), (5, 2, sums(5)), (10, 3, sums(10))]
    assert s.results("bad") == []
    status = dict(s.sql("DESCRIBE EXTENDED bad").fetchall())["status"]
    assert "zero" in status.lower()
    with pytest.raises(MillstreamError) as caught:
        next(waiting)
    assert caught.value.condition is Condition.QUERY_STOPPED
    s.sql("RESUME bad")
    assert dict(s.sql("DESCRIBE EXTENDED bad").fetchall())["status"] == status
    s.insert("s", rows(12, 17))
    s.drain()
    assert [d.instant for d in s.results("good")] == [0, 5, 10, 15]


@pytest.mark.parametrize("shape", ["alone", "together", "a group"])
def test_a_mistake_of_ours_fails_its_query_alone(s: Database, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "alone": SUMS.replace("[INTERVAL 9]", "[ROWS 9]"),
        "together": SUMS,
        "a group": "SELECT v FROM s WHERE v > 0",
    }
    for name in ("bad", "good"):
        s.sql(f"CREATE CONTINUOUS QUERY {name} AS {texts[shape]}")
    step = running.Stepper._step

    def mistaken(self: running.Stepper, run: Run, look: Look) -> int | None:
        if run.query.name == "bad":
            raise KeyError("wrong")
        return step(self, run, look)

    def impossible(*_: object) -> None:
        raise ValueError("wrong")

    monkeypatch.setattr(running.Stepper, "_step", mistaken)
    monkeypatch.setattr(chorus.Chorus, "step", impossible)
    monkeypatch.setattr(sharing.Sharer, "step", impossible)
    waiting = s.subscribe("bad")
    s.insert("s", rows(0, 12))
    s.drain()
    assert {row[0]: row[2] for row in s.sql("SHOW QUERIES").fetchall()} == {"bad": "failed", "good": "running"}
    assert s.results("good")
    assert s.results("bad") == []
    with pytest.raises(MillstreamError) as caught:
        next(waiting)
    assert caught.value.condition is Condition.QUERY_STOPPED
    assert "KeyError: 'wrong'" in str(caught.value)
    monkeypatch.undo()
    s.sql("RESUME bad")
    assert told(s.results("bad")) == told(s.results("good"))


def test_what_the_machine_does_fails_no_query(s: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    s.sql(f"CREATE CONTINUOUS QUERY q AS {SUMS}")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(running.Stepper, "_step", full)
        s.insert("s", rows(0, 12))
        with pytest.raises(OSError, match="No space"):
            s.drain()
    s.drain()
    assert [d.instant for d in s.results("q")] == [0, 5, 10]


def test_a_python_function_that_raises_fails_its_query_until_it_is_mended(s: Database) -> None:
    def strict(value: int) -> int:
        raise ValueError(f"no {value}")

    s.create_function("strict", strict, returns="BIGINT")
    s.sql("CREATE CONTINUOUS QUERY q AS SELECT strict(v) AS x FROM s [INTERVAL 9] SAMPLE INTERVAL 5")
    s.insert("s", rows(0, 7))
    s.drain()
    assert s.results("q") == []
    s.create_function("strict", lambda value: value + 1, returns="BIGINT")
    s.sql("RESUME q")
    assert told(s.results("q")) == [(0, 1, [(1,)]), (5, 2, [(i,) for i in range(1, 7)])]


# What it costs


def steps(db: Database, query: str, first: int, last: int) -> int:
    """How many jobs the answers to some rows take."""
    db.insert("s", rows(first, last))
    before = jobs(db.spark)
    db.drain()
    assert db.results(query)
    return jobs(db.spark) - before


@pytest.mark.parametrize("incremental", ["on", "off"])
def test_a_hundred_slides_take_as_many_jobs_as_one(s: Database, incremental: str) -> None:
    s.sql("SET executor = spark_sql")
    s.sql(f"SET incremental = {incremental}")
    s.sql(f"CREATE CONTINUOUS QUERY q AS {SUMS}")
    steps(s, "q", 0, 7)
    one = steps(s, "q", 7, 12)
    hundred = steps(s, "q", 12, 512)
    assert [d.instant for d in s.results("q")] == list(range(0, 511, 5))
    assert told(s.results("q"))[-1] == (510, 103, sums(510))
    assert 0 < hundred <= one


def test_rows_are_dropped_as_soon_as_partial_results_suffice(s: Database) -> None:
    s.sql("SET incremental = on")
    s.sql(f"CREATE CONTINUOUS QUERY q AS {SUMS}")
    s.insert("s", rows(0, 103))
    s.drain()
    upkeep.drop_consumed(s._lake)
    stream = s._lake.catalog.tables()["s"]
    assert s._lake.catalog.row_count(stream) == 0
    s.insert("s", rows(103, 112))
    s.drain()
    assert told(s.results("q"))[-1] == (110, 23, sums(110))


def test_empty_panes_cost_nothing(s: Database) -> None:
    s.sql(f"CREATE CONTINUOUS QUERY q AS {SUMS}")
    s.insert("s", [(1, 1, 1), (1, 1, 40_001)])
    s.drain()
    (run,) = s._engine.queries._runs.values()
    assert sum(p.rows for p in run.states.values()) == 1
    assert len(s.results("q")) <= 1_000


def test_state_stays_in_few_pieces_and_comes_back_equal(
    database_path: Path, spark: SparkSession, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "MOST_PIECES", 3)
    made = []
    for is_restarted in (False, True):
        path = database_path / str(is_restarted)
        db = millstream.connect(path, spark=spark, clock=clock, background=False)
        db.sql("CREATE STREAM s (k INT, v BIGINT, t BIGINT) TIMESTAMP BY t")
        for name, window in (
            ("sliding", "INTERVAL 60"),
            ("growing", "LANDMARK"),
            ("last", "PARTITION BY k ROWS 2"),
        ):
            db.sql(
                f"CREATE CONTINUOUS QUERY {name} AS SELECT k, sum(v) AS a, max(v) AS b, stddev(v) AS c"
                f" FROM s [{window}] GROUP BY k SAMPLE INTERVAL 5"
            )
        for first in range(0, 120, 6):
            db.insert("s", rows(first, first + 6))
            db.drain()
            if is_restarted and first % 18 == 0:
                db.close()
                db = millstream.connect(path, spark=spark, clock=clock, background=False)
        made.append({n: told(db.results(n)) for n in ("sliding", "growing", "last")})
        with db._lake.catalog.read() as connection:
            count = connection.execute("SELECT count(*) FROM millstream_piece").fetchone()[0]
        assert count <= 40
        db.close()
    assert made[0] == made[1]
    assert [instant for instant, _, _ in made[0]["sliding"]] == list(range(0, 119, 5))


def test_inserts_wait_for_a_query_that_is_far_behind(
    database_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "MOST_BEHIND", 20)
    with millstream.connect(database_path, spark=spark) as db:
        db.sql("CREATE STREAM s (k INT, v BIGINT, t BIGINT) TIMESTAMP BY t")
        db.sql(f"CREATE CONTINUOUS QUERY q AS {SUMS}")
        behind = []
        for first in range(0, 300, 15):
            db.insert("s", rows(first, first + 15))
            behind.append(db.sql("SHOW QUERIES").fetchall()[0][4])
        db.drain()
        assert max(behind) <= 20 + 15
        assert [d.instant for d in db.results("q")] == list(range(0, 299, 5))


def test_queries_of_one_stream_and_chains_of_views_answer_in_one_drain(s: Database) -> None:
    s.sql(
        "CREATE STREAMING VIEW a RANGE INTERVAL 100 AS"
        " SELECT k, sum(v) AS x FROM s [INTERVAL 4] GROUP BY k SAMPLE INTERVAL 5"
    )
    s.sql("CREATE STREAMING VIEW b RANGE INTERVAL 100 AS SELECT max(x) AS x FROM a [INTERVAL 4] SAMPLE INTERVAL 5")
    s.sql("CREATE CONTINUOUS QUERY c AS SELECT x, instant FROM b [INTERVAL 4] SAMPLE INTERVAL 5")
    s.insert("s", rows(0, 28))
    s.drain()
    assert [d.instant for d in s.results("c")][:3] == [0, 5, 10]
    assert [row[4] for row in s.sql("SHOW QUERIES").fetchall()] == [0, 0, 0]


def test_the_cheaper_plan_answers_and_explain_tells_which(s: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = s._engine.queries._stepper
    now = [0.0]
    costs = {"incremental": 3.0, "re-evaluated": 1.0}
    real = type(stepper)._answer

    def answered(self: Any, run: Any, *rest: Any) -> None:
        real(self, run, *rest)
        now[0] += costs["incremental" if run.is_split else "re-evaluated"]

    monkeypatch.setattr(type(stepper), "_answer", answered)
    stepper._timer = lambda: now[0]
    s.sql(f"CREATE CONTINUOUS QUERY q AS {SUMS}")
    plans, texts = [], []
    for first in range(0, 420, 5):
        s.insert("s", rows(first, first + 5))
        s.drain()
        (run,) = s._engine.queries._runs.values()
        plans.append("incremental" if run.is_split else "re-evaluated")
        texts.append("\n".join(line for (line,) in s.sql("EXPLAIN q").fetchall()))
        if first == 70:
            costs = {"incremental": 1.0, "re-evaluated": 3.0}
    # Tried after 8 answers, three times, and again 64 answers later.
    assert plans == ["incremental"] * 8 + ["re-evaluated"] * 67 + ["incremental"] * 9
    assert told(s.results("q")) == [(t, i + 1, sums(t)) for i, t in enumerate(range(0, 419, 5))]
    assert "Chosen by cost: re-evaluated (incremental 3000.0 ms, re-evaluated 1000.0 ms an answer)" in texts[14]
    assert "Chosen by cost: incremental (incremental 1000.0 ms, re-evaluated 3000.0 ms an answer)" in texts[-1]
    assert "Incremental: partial results of panes" in texts[-1]


# Rows of arrival time are never late


def test_rows_on_their_way_are_in_the_windows_of_their_arrival(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An insert takes a while between stamp and commit; a query stepped meanwhile waits for it."""
    db.sql("CREATE STREAM s (v INT)")
    body = "SELECT count(*) AS n FROM s [INTERVAL '10' SECOND] SAMPLE INTERVAL '1' SECOND"
    db.sql(f"CREATE CONTINUOUS QUERY q AS {body}")
    db.insert("s", [(0,)])
    clock.advance(SECOND)
    append = Transaction.append

    def slowly(transaction: Transaction, table: TableInfo, data: pa.Table) -> int:
        clock.advance(5 * SECOND)
        db.drain()
        return append(transaction, table, data)

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "append", slowly)
        db.insert("s", [(1,), (2,)])
    clock.advance(SECOND)
    db.drain()
    counts = [d.fetchall()[0][0] for d in db.results("q")]
    assert counts == [3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("executor", ["auto", "spark_sql"])
def test_more_rows_than_a_step_takes_in_all_count(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    monkeypatch.setattr(running, "MOST_ROWS", 7)
    db.sql(f"SET executor = {executor}")
    db.sql("CREATE STREAM s (v INT)")
    db.sql("CREATE CONTINUOUS QUERY q AS SELECT sum(v) AS total FROM s [ROWS 10] SAMPLE ROWS 5")
    for start in (0, 20):
        db.insert("s", [(v,) for v in range(start, start + 20)])
        clock.advance(SECOND)
        db.drain()
    totals = [d.fetchall()[0][0] for d in db.results("q")]
    assert totals == [sum(range(max(0, n - 10), n)) for n in range(5, 45, 5)]
