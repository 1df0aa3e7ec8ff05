"""Continuous queries while others insert, delete, drop, pause or break off: each race forced, none waited for."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream.clock import ManualClock
from millstream.queries import groups
from millstream.queries.answering import Feed
from millstream.storage import transaction, upkeep
from tests.recovery import stored
from tests.unit.test_races import PATIENCE, after, aside, before, interrupt

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.clock import ManualClock as Clock
    from millstream.database import Database
    from millstream.queries.front import ContinuousQueries

SUM_OF_TABLE = "SELECT count(*) AS n, sum(v) AS total FROM h [LANDMARK] SAMPLE INTERVAL 10"


def queries_of(db: Database) -> ContinuousQueries:
    return db._engine.queries


def answers(db: Database, name: str) -> list[list[tuple[Any, ...]]]:
    return [d.fetchall() for d in db.results(name)]


class Meanwhile:
    """Has a statement of another thread committed while queries are stepped, and waits for its end afterwards."""

    def __init__(self, db: Database, text: str) -> None:
        self._db, self._text = db, text
        self._pool = ThreadPoolExecutor(1)
        self._done: Future[object] | None = None

    def __call__(self) -> None:
        told = threading.Event()
        here = threading.get_ident()
        self._db._lake.on_commit(lambda _: told.set() if threading.get_ident() != here else None)
        self._done = self._pool.submit(self._db.sql, self._text)
        assert told.wait(PATIENCE)

    def end(self) -> None:
        assert self._done is not None, "nothing has happened meanwhile"
        self._done.result(PATIENCE)
        self._pool.shutdown()


# Rows that are deleted


@pytest.fixture
def summed(db: Database) -> Database:
    db.sql("CREATE STREAMING TABLE h (v BIGINT, t BIGINT) TIMESTAMP BY t RANGE UNBOUNDED")
    db.sql(f"CREATE CONTINUOUS QUERY q AS {SUM_OF_TABLE}")
    for t in (1, 11):
        db.insert("h", [(100, t)])
    db.drain()
    return db


def go_on(db: Database, *times: int) -> None:
    for t in times:
        db.insert("h", [(1, t)])
        db.drain()


def without_settling(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a DELETE queries are stepped; that has been, and then other rows have come."""
    monkeypatch.setattr(db._lake, "_before_removal", [])


def test_rows_deleted_while_a_step_has_looked_go_from_later_answers(
    summed: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_settling(summed, monkeypatch)
    stepper = queries_of(summed)._stepper
    summed.insert("h", [(1, 21)])
    before(monkeypatch, stepper, "has_work", lambda: aside(lambda: summed.sql("DELETE FROM h")))
    summed.drain()
    go_on(summed, 31, 41)
    assert answers(summed, "q")[-2:] == [[(0, None)], [(1, 1)]]


def test_rows_deleted_are_in_no_answer_at_the_snapshot_without_them(
    summed: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_settling(summed, monkeypatch)

    def look() -> None:
        summed.insert("h", [(1, 21)])
        aside(queries_of(summed).advance_all)

    before(monkeypatch, summed._lake, "committed", look)
    summed.sql("DELETE FROM h")
    go_on(summed, 31, 41)
    assert answers(summed, "q")[1:] == [[(0, None)], [(1, 1)], [(2, 2)]]


def test_rows_deleted_go_from_answers_though_their_delete_was_broken_off(
    summed: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    after(monkeypatch, summed._lake.catalog, "commit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        summed.sql("DELETE FROM h")
    assert stored.rows(summed._lake, "h") == {}
    go_on(summed, 22, 31, 41)
    assert answers(summed, "q")[-2:] == [[(1, 1)], [(2, 2)]]


def test_rows_deleted_before_a_kill_go_from_answers(
    database_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    with millstream.connect(database_path, spark=spark, clock=clock, background=False) as db:
        db.sql("CREATE STREAMING TABLE h (v BIGINT, t BIGINT) TIMESTAMP BY t RANGE UNBOUNDED")
        db.sql(f"CREATE CONTINUOUS QUERY q AS {SUM_OF_TABLE}")
        for t in (1, 11):
            db.insert("h", [(100, t)])
        db.drain()
        without_settling(db, monkeypatch)
        db.sql("DELETE FROM h")
    with millstream.connect(database_path, spark=spark, clock=clock, background=False) as db:
        go_on(db, 21, 31)
        assert answers(db, "q")[-1] == [(1, 1)]


# Who comes and goes

SELECTIONS = ("SELECT a FROM s", "SELECT a, t FROM s", "SELECT t FROM s")


@pytest.fixture
def selecting(db: Database) -> Database:
    db.sql("CREATE STREAM s (a BIGINT, t BIGINT) TIMESTAMP BY t")
    return db


def create(db: Database, *names: str) -> None:
    for name, text in zip(names, SELECTIONS, strict=False):
        db.sql(f"CREATE CONTINUOUS QUERY {name} AS {text}")


def put(db: Database, *rows: int) -> None:
    for i in rows:
        db.insert("s", [(i, i)])
        db.drain()


def test_a_newcomer_misses_nothing_when_another_is_dropped(
    selecting: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(selecting, "q0")
    put(selecting, 0)
    for name, text in zip(("q1", "q2"), SELECTIONS[1:], strict=True):
        selecting.sql(f"CREATE CONTINUOUS QUERY {name} AS {text}")
    selecting.insert("s", [(1, 1)])
    drop = Meanwhile(selecting, "DROP CONTINUOUS QUERY q1")
    after(monkeypatch, groups.groups, "members", drop)
    selecting.drain()
    drop.end()
    put(selecting, 2)
    assert answers(selecting, "q0") == [[(0,)], [(1,)], [(2,)]]
    assert answers(selecting, "q2") == [[(1,)], [(2,)]]


def test_who_comes_back_misses_nothing_when_the_group_goes_on_elsewhere(
    selecting: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(selecting, "p", "q")
    selecting.sql("DROP CONTINUOUS QUERY p")
    put(selecting, 1)
    selecting.sql("PAUSE q")
    selecting.insert("s", [(2, 2)])

    def others() -> None:
        selecting.insert("s", [(3, 3)])
        create(selecting, "p")

    after(monkeypatch, queries_of(selecting).together, "has_caught_up", lambda: aside(others))
    selecting.sql("RESUME q")
    put(selecting, 4)
    assert answers(selecting, "q") == [[(i, i)] for i in (1, 2, 3, 4)]
    assert answers(selecting, "p") == [[(4,)]]


@pytest.mark.parametrize("what", ["RESUME", "PAUSE"])
def test_a_pause_that_is_broken_off_leaves_every_query_answering(
    what: str, selecting: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(selecting, "p", "q")
    put(selecting, 1)
    if what == "RESUME":
        selecting.sql("PAUSE q")
        selecting.insert("s", [(2, 2)])
    catalog, commit = selecting._lake.catalog, selecting._lake.catalog.commit
    wanted = {"RESUME": "_join_group", "PAUSE": "Together.leave"}[what]
    waiting = [1]

    def broken_off(work: Any, **named: Any) -> Any:
        answer = commit(work, **named)
        if wanted in work.__qualname__ and waiting:
            waiting.clear()
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(catalog, "commit", broken_off)
    with pytest.raises(KeyboardInterrupt):
        selecting.sql(f"{what} q")
    put(selecting, 3)
    if what == "PAUSE":
        assert answers(selecting, "q") == [[(1, 1)]], "it is paused"
        selecting.sql("RESUME q")
    put(selecting, 4)
    rows = [1, 2, 3, 4] if what == "RESUME" else [1, 3, 4]
    assert answers(selecting, "q") == [[(i, i)] for i in rows]
    assert [d.sequence for d in selecting.results("q")] == list(range(1, len(rows) + 1))
    assert answers(selecting, "p") == [[(i,)] for i in rows]


@pytest.mark.parametrize("what", ["RESUME", "PAUSE"])
def test_pause_and_resume_end_though_rows_keep_coming(
    what: str, selecting: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(selecting, "p", "q")
    put(selecting, 1)
    if what == "RESUME":
        selecting.sql("PAUSE q")
    together, step = queries_of(selecting).together, queries_of(selecting).together.step
    rows = iter(range(2, 100))

    def step_and_more(stream_id: int) -> int | None:
        made = step(stream_id)
        selecting.insert("s", [(i := next(rows), i)])
        return made

    selecting.insert("s", [(0, 1)])
    monkeypatch.setattr(together, "step", step_and_more)
    selecting.sql(f"{what} q")
    assert next(rows) < 10


def test_a_subscriber_hears_of_what_a_pause_delivers(selecting: Database) -> None:
    create(selecting, "p", "q")
    subscription = selecting.subscribe("q")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, subscription)
        selecting.insert("s", [(1, 1)])
        selecting.sql("PAUSE p")
        try:
            assert first.result(PATIENCE).fetchall() == [(1, 1)]
        finally:
            subscription.close()


def test_a_subscriber_is_not_cut_off_when_a_query_changes_places(
    selecting: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(selecting, "p", "q")
    put(selecting, 1, 2)
    selecting.sql("PAUSE q")
    put(selecting, 3)

    def change() -> None:
        selecting.sql("RESUME q")
        put(selecting, 4)

    after(monkeypatch, queries_of(selecting).handing, "_own", change)
    assert [d.sequence for d in selecting.results("q")] == [1, 2, 3, 4]


def test_a_query_that_fails_again_is_no_part_of_the_group_on_its_stream(selecting: Database) -> None:
    selecting.sql("CREATE STREAM b (a BIGINT, t BIGINT) TIMESTAMP BY t")
    create(selecting, "q")
    selecting.sql(
        "CREATE CONTINUOUS QUERY j AS SELECT sum(1 / (s.a - 1)) AS x FROM s [INTERVAL 9] JOIN b [INTERVAL 9]"
        " ON s.t = b.t SAMPLE INTERVAL 10"
    )
    for t in (1, 12):
        selecting.insert("s", [(1, t)])
        selecting.insert("b", [(1, t)])
        selecting.drain()
    assert {r[0]: r[2] for r in selecting.sql("SHOW QUERIES").fetchall()} == {"q": "running", "j": "failed"}
    selecting.insert("s", [(1, 13)])
    selecting.sql("RESUME j")
    assert {r[0]: r[2] for r in selecting.sql("SHOW QUERIES").fetchall()} == {"q": "running", "j": "failed"}
    assert len(selecting.results("q")) == 3


def test_a_view_that_is_read_at_an_instant_has_the_rows_that_the_query_has(
    selecting: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    selecting.sql("CREATE CONTINUOUS VIEW whole AS SELECT count(*) AS n FROM s")
    selecting.sql(
        "CREATE CONTINUOUS QUERY q AS SELECT count(*) AS here, max(n) AS there FROM s [LANDMARK], whole"
        " SAMPLE INTERVAL 10"
    )
    selecting.insert("s", [(1, 1)])
    # What comes while a step is about to look is before it, or behind all that it reads.
    row = [(2, 12)]
    after(
        monkeypatch, queries_of(selecting).answers, "catch_up", lambda: aside(lambda: selecting.insert("s", row))
    )
    selecting.drain()
    # The row that has made the instant due is in the view, though not in the window.
    assert answers(selecting, "q")[0] == [(1, 2)]


def test_of_two_deletes_the_first_is_not_forgotten(summed: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    without_settling(summed, monkeypatch)
    upkeep.flush(summed._lake)
    summed.insert("h", [(1, 21)])
    stepper = queries_of(summed)._stepper

    def delete_more() -> None:
        summed.sql("DELETE FROM h WHERE t = 11")

    summed.sql("DELETE FROM h WHERE t = 1")
    before(monkeypatch, stepper, "has_work", lambda: aside(delete_more))
    summed.drain()
    go_on(summed, 31, 41)
    found = answers(summed, "q")
    assert found[1] in ([(1, 100)], [(0, None)]), "at 20"
    assert found[-2:] == [[(1, 1)], [(2, 2)]]


# Inserts that stand


def test_a_standing_insert_that_is_dropped_while_all_are_stepped_harms_no_other(
    selecting: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    selecting.sql("CREATE TABLE x (a BIGINT)")
    create(selecting, "q")
    selecting.sql("INSERT INTO x SELECT a FROM s")
    selecting.insert("s", [(1, 1)])
    drop = Meanwhile(selecting, "DROP CONTINUOUS QUERY insert_into_x")
    after(monkeypatch, queries_of(selecting), "_running", drop)
    selecting.drain()
    drop.end()
    assert answers(selecting, "q") == [[(1,)]]


def test_a_table_that_is_dropped_while_rows_are_on_their_way_to_it_harms_no_other(
    selecting: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    selecting.sql("CREATE TABLE x (a BIGINT)")
    create(selecting, "q")
    selecting.sql("INSERT INTO x SELECT a FROM s")
    selecting.insert("s", [(1, 1)])
    drop = Meanwhile(selecting, "DROP TABLE x")
    after(monkeypatch, transaction.Transaction, "also", drop)
    selecting.drain()
    drop.end()
    assert answers(selecting, "q") == [[(1,)]]


def test_a_standing_insert_that_fails_holds_no_clock_up(db: Database, clock: Clock) -> None:
    db.sql("CREATE STREAM s (a BIGINT, t BIGINT) TIMESTAMP BY t")
    db.sql("CREATE STREAM dest (a BIGINT NOT NULL, b BIGINT)")
    db.sql("INSERT INTO dest (a, b) SELECT a, t FROM s")
    db.insert("s", [(None, 1)])
    db.drain()
    clock.advance(timedelta(hours=5))
    assert db._lake.arrived_until(stored.table_of(db._lake, "dest").id) == clock.now()
    assert db._lake.catalog.pins() == []


def test_standing_inserts_made_at_once_have_names_of_their_own(
    selecting: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    selecting.sql("CREATE TABLE x (a BIGINT)")
    text = "INSERT INTO x SELECT a FROM s"
    before(monkeypatch, selecting._lake.catalog, "commit", lambda: aside(lambda: selecting.sql(text)))
    selecting.sql(text)
    assert [r[0] for r in selecting.sql("SHOW QUERIES").fetchall()] == ["insert_into_x", "insert_into_x_2"]


def test_a_query_is_made_over_a_table_that_a_step_does_not_see(selecting: Database) -> None:
    """A step in one thread answers from what it has looked at; what another makes meanwhile is newer."""
    answering = queries_of(selecting).answers

    def make() -> str:
        selecting.sql("CREATE TABLE fresh (a BIGINT, name STRING)")
        return answering.types("SELECT name FROM fresh", Feed())["name"]

    with answering.at(answering.reader()):
        assert aside(make) == "string"
