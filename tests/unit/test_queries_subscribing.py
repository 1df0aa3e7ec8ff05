"""Subscriptions: when they end, who is told of errors, and what a process that only reads is given."""

from __future__ import annotations

import asyncio
import queue
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import millstream
from millstream.errors import Condition, StatementError
from millstream.queries import front, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.clock import ManualClock
    from millstream.database import Database, Delivery, Subscription

SUMS = "SELECT k, sum(v) AS total FROM s [INTERVAL 9] GROUP BY k SAMPLE INTERVAL 5"
LONG = 30.0


@pytest.fixture
def s(db: Database) -> Database:
    db.sql("CREATE STREAM s (k INT, v BIGINT, t BIGINT) TIMESTAMP BY t")
    db.sql(f"CREATE CONTINUOUS QUERY q AS {SUMS}")
    return db


def rows(first: int, last: int) -> list[tuple[int, int, int]]:
    return [(t % 3, t, t) for t in range(first, last)]


def fill(db: Database, first: int, last: int) -> None:
    db.insert("s", rows(first, last))
    db.drain()


async def awaited(subscription: Subscription) -> list[Delivery]:
    return [d async for d in subscription]


@contextmanager
def busy(db: Database) -> Iterator[threading.Event]:
    """Other queries deliver all the time, for two seconds at most; the event says that they have stopped."""
    over, done = threading.Event(), threading.Event()

    def tell() -> None:
        for _ in range(200):
            db._engine.queries.board.tell()
            if over.wait(0.01):
                break
        done.set()

    teller = threading.Thread(target=tell)
    teller.start()
    yield done
    over.set()
    teller.join()


# The end


def test_a_loop_that_was_closed_before_its_subscription_disturbs_nobody(s: Database) -> None:
    fill(s, 0, 12)
    deliveries, loop = s.subscribe("q", since=0).__aiter__(), asyncio.new_event_loop()

    async def one() -> Delivery:
        return await anext(deliveries)

    assert loop.run_until_complete(one()).sequence == 1
    loop.close()
    fill(s, 12, 22)
    assert [d.instant for d in s.results("q")] == [0, 5, 10, 15, 20]
    assert not s._engine.queries.board._listeners


def test_waiting_asynchronously_ends_after_the_timeout(s: Database) -> None:
    fill(s, 0, 12)
    found = asyncio.run(asyncio.wait_for(awaited(s.subscribe("q", since=0, timeout=0.01)), LONG))
    assert [d.sequence for d in found] == [1, 2, 3]
    assert [d.sequence for d in asyncio.run(awaited(s.subscribe("q", since=1, timeout=0)))] == [2, 3]


def test_what_other_queries_deliver_does_not_prolong_the_wait(s: Database) -> None:
    with busy(s) as done:
        assert list(s.subscribe("q", timeout=0.1)) == []
        assert not done.is_set()


def test_what_other_queries_deliver_does_not_prolong_an_asynchronous_wait(s: Database) -> None:
    with busy(s) as done:
        assert asyncio.run(asyncio.wait_for(awaited(s.subscribe("q", timeout=0.1)), LONG)) == []
        assert not done.is_set()


# Callbacks


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_in_a_callback_ends_the_subscription_and_is_told(s: Database) -> None:
    came: list[int] = []

    def callback(delivery: Delivery) -> None:
        came.append(delivery.sequence)
        if delivery.sequence == 2:
            raise ValueError("no twos")

    subscription = s.subscribe("q", callback=callback)
    assert subscription.error is None
    fill(s, 0, 22)
    for tells in (lambda: subscription.wait(LONG), subscription.close, subscription.close):
        with pytest.raises(ValueError, match="no twos"):
            tells()
    assert isinstance(subscription.error, ValueError)
    assert came == [1, 2]
    assert list(subscription) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_is_told_of_a_query_that_fails(s: Database) -> None:
    s.sql("CREATE CONTINUOUS QUERY bad AS SELECT sum(10 / v) AS x FROM s [INTERVAL 9] SAMPLE INTERVAL 5")
    subscription = s.subscribe("bad", callback=lambda _: None)
    fill(s, 0, 12)
    with pytest.raises(StatementError) as caught:
        subscription.wait(LONG)
    assert caught.value.condition is Condition.QUERY_STOPPED


def test_one_can_wait_for_the_end_of_a_callback(s: Database) -> None:
    came: list[int] = []
    subscription = s.subscribe("q", callback=lambda d: came.append(d.sequence), timeout=LONG)
    assert not subscription.wait(0)
    fill(s, 0, 12)
    s.sql("DROP CONTINUOUS QUERY q")
    assert subscription.wait(LONG)
    subscription.close()
    assert subscription.error is None


def test_a_callback_that_blocks_holds_up_no_other_subscriber_and_no_other_query(s: Database) -> None:
    s.sql(f"CREATE STREAMING VIEW sums RANGE UNBOUNDED AS {SUMS}")
    s.sql("CREATE CONTINUOUS QUERY most AS SELECT max(total) AS x FROM sums [INTERVAL 5] SAMPLE INTERVAL 5")
    begun, released, done = threading.Event(), threading.Event(), threading.Event()
    slow: list[int] = []

    def block(delivery: Delivery) -> None:
        begun.set()
        assert released.wait(LONG)
        slow.append(delivery.sequence)
        if len(slow) == 5:
            done.set()

    beside, chained = queue.Queue[Any](), queue.Queue[Any]()
    s.subscribe("q", callback=block)
    s.subscribe("q", callback=beside.put)
    s.subscribe("most", callback=chained.put)
    fill(s, 0, 12)
    assert begun.wait(LONG)
    fill(s, 12, 22)
    assert [beside.get(timeout=LONG).sequence for _ in range(5)] == [1, 2, 3, 4, 5]
    assert [chained.get(timeout=LONG).instant for _ in range(5)] == [0, 5, 10, 15, 20]
    assert [d.instant for d in s.results("most")] == [0, 5, 10, 15, 20]
    assert slow == []
    released.set()
    assert done.wait(LONG)
    assert slow == [1, 2, 3, 4, 5]


# Other processes


def test_a_process_that_only_reads_is_given_what_another_one_delivers(
    s: Database, database_path: Path, spark: SparkSession, clock: ManualClock
) -> None:
    with millstream.connect(database_path, spark=spark, clock=clock, read_only=True) as reader:
        came, all_came = list[int](), threading.Event()

        def take(delivery: Any) -> None:
            came.append(delivery.sequence)
            if len(came) == 3:
                all_came.set()

        called = reader.subscribe("q", callback=take)
        subscription = reader.subscribe("q", timeout=LONG)
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.extend(next(subscription) for _ in range(3)))
        waiting.start()
        fill(s, 0, 12)
        waiting.join(LONG)
        assert [d.sequence for d in found] == [1, 2, 3]
        assert all_came.wait(LONG)
        s.sql("DROP CONTINUOUS QUERY q")
        assert called.wait(LONG)
        assert came == [1, 2, 3]
        assert list(subscription) == []


@pytest.mark.usefixtures("s")
def test_closing_a_database_that_is_only_read_ends_its_subscriptions(
    database_path: Path, spark: SparkSession, clock: ManualClock
) -> None:
    reader = millstream.connect(database_path, spark=spark, clock=clock, read_only=True)
    called = reader.subscribe("q", callback=lambda _: None)
    reader.close()
    assert called.wait(LONG)


# SUBSCRIBE


def test_the_instants_that_subscribe_shows_are_of_the_type_of_the_time(s: Database) -> None:
    s.sql("CREATE STREAM calls (v INT, at TIMESTAMP) TIMESTAMP BY at")
    s.sql("CREATE CONTINUOUS QUERY c AS SELECT v FROM calls [INTERVAL '1' MINUTE] SAMPLE INTERVAL '1' MINUTE")
    before = {name: s.sql(f"SUBSCRIBE {name}").to_arrow().schema for name in ("c", "q")}
    assert before["c"].field("instant").type == pa.timestamp("us", tz="UTC")
    assert before["q"].field("instant").type == pa.int64()
    fill(s, 0, 12)
    s.sql("INSERT INTO calls VALUES (1, TIMESTAMP '2024-01-01 00:00:10'), (2, TIMESTAMP '2024-01-01 00:02:00')")
    s.drain()
    for name, schema in before.items():
        found = s.sql(f"SUBSCRIBE {name}").to_arrow()
        assert found.num_rows > 0
        assert found.schema.types == schema.types


@pytest.mark.parametrize(
    "statement",
    [
        f"CREATE CONTINUOUS QUERY r AS {SUMS} EMIT CHANGES",
        f"CREATE STREAMING VIEW r RANGE INTERVAL 100 AS {SUMS} EMIT NEW",
        "CREATE STREAMING VIEW r RANGE UNBOUNDED AS SELECT v FROM s WINDOW ROWS 2 SAMPLE ROWS 3",
    ],
)
def test_what_show_create_says_can_be_said_again(s: Database, statement: str) -> None:
    found = []
    for made in (statement, ""):
        s.sql(made or found[0][0])
        fill(s, len(found) * 100, len(found) * 100 + 20)
        kind = " ".join(statement.split()[1:3])
        explained = s.sql("EXPLAIN r").to_arrow().column(0).to_pylist()
        found.append((s.sql(f"SHOW CREATE {kind} r").fetchall()[0][0], explained[:3]))
        s.sql(f"DROP {kind} r")
    assert found[0] == found[1]


# Those who are far behind


def test_copy_waits_for_queries_that_are_far_behind(
    s: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(s._engine.queries, "make_room", lambda table: asked.append(table.name))
    file = tmp_path / "rows.csv"
    file.write_text("k,v,t\n1,2,3\n")
    s.sql(f"COPY s FROM '{file}'")
    assert asked == ["s"]
    with s.transaction():
        s.sql(f"COPY s FROM '{file}'")
    assert asked == ["s"]


@pytest.mark.parametrize(
    "feeds", ["INSERT INTO b SELECT * FROM s", "CREATE STREAMING VIEW b RANGE UNBOUNDED AS SELECT k, v, t FROM s"]
)
def test_what_feeds_a_stream_waits_for_queries_that_are_far_behind_in_it(
    s: Database, feeds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "MOST_BEHIND", 20)
    monkeypatch.setattr(running, "MOST_ROWS", 5)
    if feeds.startswith("INSERT"):
        s.sql("CREATE STREAM b (k INT, v BIGINT, t BIGINT) TIMESTAMP BY t")
    s.sql(feeds)
    s.sql("CREATE CONTINUOUS QUERY slow AS SELECT count(*) AS n FROM b [LANDMARK] SAMPLE ROWS 10")
    s.sql("PAUSE slow")
    fill(s, 0, 100)
    s.insert("s", rows(100, 130))
    queries = s._engine.queries
    behind: list[int] = []
    real = queries.step

    def step(query: Any) -> int | None:
        if query.name.startswith("__"):
            behind.append(next(q[4] for q in queries.listing.listed() if q[0] == "slow"))
        return real(query)

    monkeypatch.setattr(queries, "step", step)
    s.sql("RESUME slow")
    s.drain()
    assert behind
    assert max(behind) <= 20
    assert s.results("slow")[-1].fetchall() == [(130,)]
