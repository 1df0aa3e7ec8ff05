"""Scheduled joins where something comes in between: other columns, rows from before, odd keys, failing jobs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError

from millstream.errors import StatementError
from millstream.queries import joining, parcels, scheduled, slices, slicing, tasks
from millstream.queries.lookup import Lookup
from millstream.schedule.join_policies import Measured
from tests.slt.spark import jobs
from tests.unit.test_scheduled_joins import STREAMS, always, had, opened

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.database import Database

    Opened = Callable[[str], Database]

__all__ = ["always", "opened"]


def create(db: Database) -> None:
    for stream in STREAMS:
        db.sql(f"CREATE STREAM {stream} (k INT, w STRING, a INT, b BIGINT, t BIGINT) TIMESTAMP BY t")


def join(db: Database, name: str, window: str, *, condition: str = "x.k = y.k") -> None:
    body = f"SELECT x.t AS p, y.t AS q FROM r x JOIN s y ON {condition} WINDOW {window}"
    db.sql(f"CREATE CONTINUOUS QUERY {name} AS {body}")


def come(db: Database, *times: int, keys: int = 1) -> None:
    for stream in STREAMS:
        db.insert(stream, [(t % keys, "a", 1, t % keys, t) for t in times])


def pairs(db: Database, name: str) -> list[Any]:
    return sorted(row for _, row in had(db, name))


def tick(db: Database) -> None:
    db._engine.queries._step_choirs()


def paused(db: Database, name: str) -> None:
    """Pause and resume a query without answering anything."""
    queries = db._engine.queries
    db.sql(f"PAUSE {name}")
    advance = queries.advance_all
    queries.advance_all = lambda: 0  # type: ignore[method-assign]
    db.sql(f"RESUME {name}")
    queries.advance_all = advance  # type: ignore[method-assign]


@pytest.mark.parametrize("is_altered", [False, True])
def test_streams_may_get_columns_while_a_turn_is_open(is_altered: bool, opened: Opened) -> None:
    with opened("db") as db:
        create(db)
        db.sql("SET join_policy = swf")
        join(db, "short", "INTERVAL 2")
        join(db, "long", "INTERVAL 20")
        come(db, 1, 10)
        db.drain()
        come(db, 11, 14)
        tick(db)
        assert len(next(iter(db._engine.queries.scheduled.joins.values())).turns) == 1
        if is_altered:
            for stream in STREAMS:
                db.sql(f"ALTER STREAM {stream} ADD COLUMN extra INT")
        db.drain()
        assert pairs(db, "long") == [(a, b) for a in (1, 10, 11, 14) for b in (1, 10, 11, 14)]


def test_a_query_over_rows_that_is_stepped_alone_has_none_from_before_it(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(name: str) -> list[Any]:
        with opened(name) as db:
            create(db)
            join(db, "old", "ROWS 5")
            come(db, 1, 2, 3)
            db.drain()
            join(db, "young", "ROWS 5")
            come(db, 4, 5)
            db.drain()
            come(db, 6, 7)
            db.sql("PAUSE young")
            db.sql("RESUME young")
            come(db, 8)
            db.drain()
            return pairs(db, "young")

    found = told("together")
    monkeypatch.setattr(scheduled, "key_of", lambda *_: None)
    monkeypatch.setattr(joining, "key_of", lambda *_: None)
    assert found == told("alone")
    assert min(min(pair) for pair in found) == 4


def test_units_that_reach_back_differently_share_what_is_read(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for job in (0.0, 1e9):
        with opened(f"job {job}") as db:
            monkeypatch.setattr(Measured, "job", 0.0)
            monkeypatch.setattr("millstream.storage.inline.MOST_ROWS", 1_000)
            create(db)
            for name, length in (("short", 10), ("mid", 12), ("long", 20)):
                join(db, name, f"INTERVAL {length}")
            come(db, 100, 115)
            db.drain()
            come(db, 116)
            tick(db)
            come(db, 117)
            paused(db, "long")
            tick(db)
            come(db, 118)
            monkeypatch.setattr(Measured, "job", job)
            db.drain()
            found.append(pairs(db, "long"))
    assert found[0] == found[1]
    assert (100, 118) in found[0]


@pytest.mark.parametrize("count", [2, 4, 5])
def test_keys_of_several_columns_are_told_apart_however_many_values_they_have(count: int) -> None:
    random, names, rows = np.random.default_rng(count), "abcde"[:count], 60_000
    own = pa.table({c: random.permutation(rows) for c in names})
    others = own.set_column(0, "a", pa.array(random.permutation(rows)))
    lookup = Lookup([own], list(names))
    assert sum(len(mine) for mine, _ in lookup.pairs(own, list(names))) == rows
    found = [
        (int(m), int(o))
        for mine, other in lookup.pairs(others, list(names))
        for m, o in zip(mine, other, strict=True)
    ]
    same = np.flatnonzero(np.asarray(own["a"]) == np.asarray(others["a"]))
    assert sorted(found) == [(n, n) for n in same.tolist()]


def test_values_that_are_known_but_not_together_fit_nothing() -> None:
    lookup = Lookup([pa.table({"a": ["A", "A", "B"], "b": ["X", "Y", "X"]})], ["a", "b"])
    others = pa.table({"a": ["B", "A", None, "C"], "b": ["Y", "Y", "X", "X"]})
    assert [(m.tolist(), o.tolist()) for m, o in lookup.pairs(others, ["a", "b"])] == [([1], [1])]


@pytest.mark.parametrize("keys", ["x.k = y.b", "x.b = y.k AND x.w = y.w"])
def test_whole_numbers_of_any_size_are_hashed(keys: str, opened: Opened) -> None:
    with opened("db") as db:
        create(db)
        join(db, "q", "INTERVAL 9", condition=keys)
        come(db, 1, 2, 3, 4, keys=2)
        db.drain()
        [made] = db._engine.queries.scheduled.joins.values()
        assert len(made.equalities) == keys.count("=")
        assert pairs(db, "q") == [(a, b) for a in (1, 2, 3, 4) for b in (1, 2, 3, 4) if a % 2 == b % 2]


def test_what_only_spark_can_hash_is_left_to_spark(opened: Opened) -> None:
    with opened("db") as db:
        for stream in STREAMS:
            db.sql(f"CREATE STREAM {stream} (k DECIMAL(9, 2), t BIGINT) TIMESTAMP BY t")
        join(db, "q", "INTERVAL 9")
        for stream in STREAMS:
            db.insert(stream, [(1, 1), (2, 2)])
        db.drain()
        assert not db._engine.queries.scheduled.joins
        assert pairs(db, "q") == [(1, 1), (2, 2)]
        told = "\n".join(row[0] for row in db.sql("EXPLAIN SHARED q").fetchall())
        assert "Alone: Spark joins it by hashing what is to be equal" in told


def test_a_job_that_fails_leaves_its_queries_to_be_stepped_alone_and_the_others_in_peace(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slicing, "HERE_ROWS", -1)

    class Failing:
        def range(self, *_: int) -> Any:
            raise PySparkRuntimeError("the results are larger than spark.driver.maxResultSize")

    def in_tasks(_: Any, work: Any, shares: Any) -> Any:
        return tasks.in_tasks(lambda: Failing(), work, shares)  # type: ignore[arg-type, return-value]

    monkeypatch.setattr(slicing, "in_tasks", in_tasks)
    with opened("db") as db:
        create(db)
        join(db, "short", "INTERVAL 2")
        join(db, "long", "INTERVAL 20")
        db.sql("CREATE STREAM other (v INT, t BIGINT) TIMESTAMP BY t")
        db.sql("CREATE CONTINUOUS QUERY totals AS SELECT count(*) AS n FROM other [INTERVAL 5] SAMPLE INTERVAL 5")
        come(db, 1, 10)
        db.insert("other", [(2, 1), (3, 11)])
        db.drain()
        assert pairs(db, "long") == [(1, 1), (1, 10), (10, 1), (10, 10)]
        assert pairs(db, "short") == [(1, 1), (10, 10)]
        assert len(db.results("totals")) == 2


@pytest.mark.parametrize("in_task", [False, True])
def test_a_unit_with_too_many_results_is_left_to_spark(
    in_task: bool, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "MOST_FOUND", 10)
    monkeypatch.setattr(slicing, "HERE_ROWS", -1 if in_task else 1_000)
    if in_task:
        # Workers have the limit that they were started with; so tasks run here.
        monkeypatch.setattr(slicing, "in_tasks", lambda _, work, shares: [work(share) for share in shares])
    with opened("db") as db:
        create(db)
        join(db, "few", "INTERVAL 9", condition="x.k = y.k AND x.t = y.t + 3")
        come(db, *range(1, 7))
        db.drain()
        assert pairs(db, "few") == [(4, 1), (5, 2), (6, 3)]


def test_rows_that_the_kernel_cannot_look_up_are_left_to_spark(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = []

    def equal(*_: Any) -> Any:
        failed.append(1)
        raise duckdb.OutOfMemoryException("failed to allocate")

    monkeypatch.setattr(Lookup, "_equal", equal)
    with opened("db") as db:
        create(db)
        join(db, "short", "INTERVAL 2")
        come(db, 1, 2)
        db.drain()
        assert failed
        assert pairs(db, "short") == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_no_more_is_taken_in_while_much_is_open(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduled, "MOST_OPEN", 6)
    most = 0
    with opened("db") as db:
        create(db)
        for length in (2, 5, 20):
            join(db, f"q{length}", f"INTERVAL {length}")
        come(db, 1)
        db.drain()
        [made] = db._engine.queries.scheduled.joins.values()
        for t in range(2, 12):
            come(db, t)
            tick(db)
            most = max(most, sum(turn.rows for turn in made.turns))
        db.drain()
        assert 6 <= most < 8
        assert len(pairs(db, "q20")) == 11 * 11


def test_a_query_that_is_behind_comes_up_while_the_join_is_busy(opened: Opened) -> None:
    with opened("db") as db:
        create(db)
        join(db, "short", "INTERVAL 2")
        join(db, "long", "INTERVAL 20")
        come(db, 1)
        db.drain()
        db.sql("PAUSE short")
        come(db, 5)
        db.drain()
        paused(db, "short")
        for t in range(6, 12):
            come(db, t)
            tick(db)
        assert (5, 5) in pairs(db, "short")
        [made] = db._engine.queries.scheduled.joins.values()
        assert len(made.runs) == 2
        db.drain()
        assert pairs(db, "short") == [
            (a, b) for a in (1, *range(5, 12)) for b in (1, *range(5, 12)) if abs(a - b) <= 2
        ]


def test_policies_change_while_units_are_handed_out(opened: Opened) -> None:
    with opened("db") as db:
        create(db)
        for length in range(2, 12):
            join(db, f"q{length}", f"INTERVAL {length}")
        is_over, errors = threading.Event(), list[BaseException]()

        def change() -> None:
            number = 0
            while not is_over.is_set():
                try:
                    db.sql(f"SET join_policy = {('greedy', 'swf', 'lwo')[number % 3]}")
                    db.sql("SHOW JOINS").fetchall()
                except BaseException as error:
                    errors.append(error)
                    return
                number += 1

        changing = threading.Thread(target=change)
        changing.start()
        for t in range(1, 25):
            come(db, t)
            db.drain()
        is_over.set()
        changing.join()
        assert errors == []
        assert pairs(db, "q11") == [(a, b) for a in range(1, 25) for b in range(1, 25) if abs(a - b) <= 11]
        with pytest.raises(StatementError):
            db.sql("SET join_policy = sideways")


def test_a_batch_is_handed_to_tasks_as_a_file_that_goes_with_its_turn(
    opened: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slicing, "HERE_ROWS", -1)
    written, write = [], parcels._write

    def noted(*what: Any) -> None:
        written.append(what)
        write(*what)

    monkeypatch.setattr(parcels, "_write", noted)
    with opened("one") as db:
        create(db)
        for length in (2, 5, 9):
            db.sql(f"CREATE CONTINUOUS QUERY q{length} AS SELECT x.a AS p, y.a AS q FROM r x, s y "
                   f"WHERE x.k = y.k WINDOW INTERVAL {length}")  # fmt: skip
        for t in (1, 4, 9):
            db.insert("r", [(1, "a", t, 0, t)])
            db.insert("s", [(1, "a", t, 0, t)])
            for stream in STREAMS:
                db.sql(f"ADVANCE {stream} TO {t}")
            db.drain()
        [join] = db._engine.queries.scheduled.joins.values()
        # Two batches a turn at most, however many units look into them.
        assert 0 < len(written) <= 2 * 3 < join.units
        assert list(db._engine.queries.scheduled._lake.scratch.glob("*.batch")) == []
        assert len(had(db, "q9")) == 9


@pytest.mark.parametrize("count", [2, 9])
def test_what_only_spark_can_tell_is_one_job_for_all_queries(
    count: int, opened: Callable[[str], Database]
) -> None:
    with opened(str(count)) as db:
        create(db)
        for number in range(count):
            db.sql(f"CREATE CONTINUOUS QUERY q{number} AS SELECT upper(x.w) AS p, upper(y.w) AS q FROM r x, s y "
                   f"WHERE x.k = y.k AND x.w || y.w RLIKE '{'ab'[number % 2]}' WINDOW INTERVAL 5")  # fmt: skip
        for t in (1, 2):
            before = jobs(db.spark)
            for stream in STREAMS:
                db.insert(stream, [(t, "a", 1, 1, t)])
            for stream in STREAMS:
                db.sql(f"ADVANCE {stream} TO {t}")
            db.drain()
        assert jobs(db.spark) - before == 2
        assert [row for _, row in had(db, "q0")] == [("A", "A")] * 2
        assert had(db, "q1") == []


def test_of_queries_that_only_spark_can_tell_one_that_fails_fails_alone(opened: Callable[[str], Database]) -> None:
    with opened("three") as db:
        create(db)
        for name, columns in {"fine": "x.a", "wrong": "CAST(x.w AS INT)", "spoken": "upper(y.w)"}.items():
            db.sql(f"CREATE CONTINUOUS QUERY {name} AS SELECT {columns} AS p FROM r x, s y "
                   "WHERE x.k = y.k WINDOW INTERVAL 5")  # fmt: skip
        for stream in STREAMS:
            db.insert(stream, [(1, "a", 1, 1, 1)])
        for stream in STREAMS:
            db.sql(f"ADVANCE {stream} TO 9")
        db.drain()
        status = {row[0]: row[2] for row in db.sql("SHOW QUERIES").fetchall()}
        assert status == {"fine": "running", "wrong": "failed", "spoken": "running"}
        assert (had(db, "fine"), had(db, "spoken")) == ([(1, (1,))], [(1, ("A",))])
