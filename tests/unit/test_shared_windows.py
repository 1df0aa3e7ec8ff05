"""Queries over windows, stepped together: aggregates share panes, joins share SteMs; each answers as alone."""

from __future__ import annotations

import re
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.execute.shared.stems import SteM, TooManyError, Words
from millstream.queries import chorus, front, here, storing
from tests.slt.spark import jobs
from tests.stories import STREAMS, Row, a_story, aggregate, create, every, had, join, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.database import Database

SHAPES: dict[str, tuple[Callable[[Random], str], tuple[str, ...]]] = {
    "aggregates": (aggregate, ("s",)),
    "joins": (join, STREAMS),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_restart_between_any_two_steps_changes_nothing(shape: str, opened: Callable[[str], Database]) -> None:
    query, streams = SHAPES[shape]
    story = a_story(7, (query,), streams)
    with opened("whole") as db:
        create(db, streams)
        expected = told(db, story) | every(db)
    found: dict[str, list[Any]] = {}
    with opened("cut") as db:
        create(db, streams)
    for start in range(0, len(story), 9):
        with opened("cut") as db:
            found |= told(db, story[start : start + 9])
    with opened("cut") as db:
        assert found | every(db) == expected


def test_many_windows_take_no_job_and_one_commit(db: Database) -> None:
    create(db, ("s",))
    for number in range(30):
        db.sql(
            f"CREATE CONTINUOUS QUERY q{number} AS SELECT k, sum(a) AS x FROM s [INTERVAL {number + 2}] GROUP BY k"
            f" SAMPLE INTERVAL {number % 4 + 1}"
        )
    db.insert("s", [(1, "a", 1, 1, 0)])
    db.drain()
    commits = commits_of(db)
    before = jobs(db.spark)
    db.insert("s", [(i % 4, "a", i, 1, i) for i in range(1, 40)])
    taken = len(commits)
    db._engine.queries.advance_all()
    assert jobs(db.spark) - before == 0
    assert len(commits) - taken == 1
    assert all(len(db.results(f"q{n}")) > 5 for n in range(30))


@pytest.mark.parametrize("count", [2, 40])
def test_aggregates_with_other_predicates_are_one_pass(count: int, db: Database, monkeypatch: Any) -> None:
    create(db, ("s",))
    tests = [f"a = {n}" if n % 3 else f"a + b = {n}" for n in range(count)]
    for number, test in enumerate(tests):
        window = f"s [INTERVAL {number % 4 + 3}] WHERE {test} GROUP BY k SAMPLE INTERVAL 2"
        db.sql(f"CREATE CONTINUOUS QUERY q{number} AS SELECT k, sum(a) AS x, count(*) AS n FROM {window}")
    db.insert("s", [(1, "a", 1, 1, 0)])
    db.drain()
    texts: list[str] = []
    real = here._run
    monkeypatch.setattr(here, "_run", lambda some, tables: (texts.extend(some), real(some, tables))[1])
    db.insert("s", [(i % 4, "a", i % 9, 1, i) for i in range(1, 40)])
    db._engine.queries.advance_all()
    # The tests that no domain says, the pass, and the answers.
    assert len(texts) == 3
    for number, test in enumerate(tests):
        groups = {row[0] for d in db.results(f"q{number}")[:20] for row in d.fetchall()}
        passing = {i % 4 for i in range(1, 40) if (i % 9 if number % 3 else i % 9 + 1) == number}
        assert groups == passing | ({1} if test in ("a = 1", "a + b = 2") else set()), test


def test_aggregates_of_one_name_are_merged_each_in_its_own_way(db: Database) -> None:
    """Their answers are one text over merged states, in which nothing tells how these were merged."""
    create(db, ("s",))
    for name in ("sum", "max", "min"):
        text = f"SELECT k, {name}(a) AS x FROM s [INTERVAL 9] GROUP BY k SAMPLE INTERVAL 5"
        db.sql(f"CREATE CONTINUOUS QUERY q_{name} AS {text}")
    for first in range(0, 30, 5):
        db.insert("s", [(i % 2, "a", i, 1, i) for i in range(first, first + 5)])
        db.drain()
    last = {name: sorted(db.results(f"q_{name}")[-1].fetchall()) for name in ("sum", "max", "min")}
    within = {k: [i for i in range(30) if 16 <= i <= 25 and i % 2 == k] for k in (0, 1)}
    assert {d.instant for n in last for d in db.results(f"q_{n}")[-1:]} == {25}
    assert last == {
        name: [(k, function(values)) for k, values in within.items()]
        for name, function in (("sum", sum), ("max", max), ("min", min))
    }


def test_the_policy_that_is_set_is_that_of_aggregates_too(db: Database) -> None:
    create(db, ("s",))
    came: list[Row] = []

    def asked(number: int) -> None:
        window = f"s [INTERVAL 4] WHERE a = {number} AND b < {number + 3} SAMPLE INTERVAL 2"
        db.sql(f"CREATE CONTINUOUS QUERY q{number} AS SELECT sum(a) AS x FROM {window}")

    def basket(at: int) -> None:
        rows = [(1, "a", i % 10, i % 4, at + i % 3) for i in range(40)]
        db.insert("s", rows)
        db.drain()
        came.extend(rows)

    def shown() -> list[Row]:
        return db.sql("SHOW EDDY").fetchall()

    asked(0)
    asked(1)
    db.insert("s", [(1, "a", 1, 1, 0)])
    db.drain()
    basket(0)
    assert {(row[0], row[1], row[2], row[4]) for row in shown()} == {
        ("s", "grouped filter on a", "tickets", 2), ("s", "grouped filter on b", "tickets", 2)
    }  # fmt: skip
    by_name = {row[1]: row[5] for row in shown()}
    assert by_name["grouped filter on a"] > 0
    chorus_ = db._engine.queries.chorus
    [before] = chorus_.filters.values()
    asked(2)
    basket(3)
    basket(6)
    [now] = chorus_.filters.values()
    assert (len(before.predicates), len(now.predicates)) == (2, 3)
    assert now.policy is before.policy
    assert [row[1].split()[-1] for row in shown()] == list(now.order)
    told = [row[0].split(":")[0] for row in db.sql("EXPLAIN SHARED q2").fetchall()][-2:]
    assert told == [f"  {place}. grouped filter on {name}" for place, name in enumerate(now.order, start=1)]
    db.sql("SET eddy = fixed")
    assert {(row[2], row[5], row[6]) for row in shown()} == {("fixed", 0.0, None)}
    basket(9)
    assert list(now.order) == ["a", "b"]
    for number in range(3):
        last = db.results(f"q{number}")[-1]
        own = [a for _, _, a, b, t in came if a == number and b < number + 3 and 0 <= last.instant - t <= 4]
        assert last.fetchall() == [(sum(own),)]
        db.sql(f"DROP CONTINUOUS QUERY q{number}")
    db.drain()
    assert shown() == []


def test_a_predicate_that_raises_fails_its_own_query_alone(db: Database) -> None:
    create(db, ("s",))
    for number, test in enumerate(["a > 3", "10 / a > 2", "a + b > 5", "a < 8"]):
        text = f"SELECT k, sum(a) AS x FROM s [INTERVAL 4] WHERE {test} GROUP BY k SAMPLE INTERVAL 2"
        db.sql(f"CREATE CONTINUOUS QUERY q{number} AS {text}")
    for first in (0, 10, 20):
        db.insert("s", [(i % 2, "a", i % 9 + (first != 10), 1, first + i) for i in range(10)])
        db.drain()
    status = {row[0]: row[2] for row in db.sql("SHOW QUERIES").fetchall()}
    assert [len(db.results(f"q{n}")) for n in (0, 2, 3)] == [14] * 3, status
    assert status["q1"] == "failed"
    assert len(db.results("q1")) < 14


def test_a_basket_in_which_nothing_is_due_is_not_committed_for_anybody(opened: Callable[[str], Database]) -> None:
    told_of: dict[str, list[tuple[Any, list[Row]]]] = {}
    for name, restarts in (("whole", False), ("cut", True)):
        db = opened(name)
        create(db, ("s",))
        for number in range(5):
            summed(db, f"q{number}", f"{number + 90}", "50")
        db.insert("s", [(1, "a", 1, 1, 1)])
        db.drain()
        commits = commits_of(db)
        for at in range(1, 49):
            db.insert("s", [(1, "a", at, 1, at)])
            db._engine.queries.advance_all()
        # The inserts, and nothing else.
        assert len(commits) == 48
        assert {row[4] for row in db.sql("SHOW QUERIES").fetchall()} == {0}
        if restarts:
            db.close()
            db = opened(name)
        db.insert("s", [(1, "a", 1_000, 1, 60), (1, "a", 0, 1, 130)])
        db.drain()
        told_of[name] = [x for n in range(5) for x in had(db, f"q{n}", is_aggregate=True)]
        db.close()
    assert told_of["whole"] == told_of["cut"]
    assert told_of["whole"][0] == (50, [(sum(range(1, 49)) + 1,)])


def test_what_waits_to_be_stored_is_stored_in_the_end(db: Database, monkeypatch: Any) -> None:
    monkeypatch.setattr(storing, "MOST_UNSAVED", 3)
    create(db, ("s",))
    for number in range(2):
        summed(db, f"q{number}", "90", "50")
    db.insert("s", [(1, "a", 1, 1, 1)])
    db.drain()
    [run, _] = db._engine.queries._runs.values()
    sizes = []
    for at in range(2, 10):
        db.insert("s", [(1, "a", at, 1, at)])
        db._engine.queries.advance_all()
        sizes.append(sum(len(pieces) for pieces in run.unsaved.values()))
    assert sizes == [1, 2, 3, 0, 1, 2, 3, 0]


def test_an_insert_does_not_ask_for_each_query_whether_it_is_far_behind(db: Database, monkeypatch: Any) -> None:
    create(db, ("s",))
    for number in range(3):
        summed(db, f"q{number}", f"{number + 9}", "5")
    queries_ = db._engine.queries
    asked: list[int] = []
    real = queries_._running_places
    monkeypatch.setattr(queries_, "_running_places", lambda some: (asked.append(len(some)), real(some))[1])
    table = db._lake.catalog.tables()["s"]
    for at in range(5):
        assert not queries_._is_someone_far_behind(table)
        db.insert("s", [(1, "a", 1, 1, at)])
    assert asked == [3]
    summed(db, "one_more", "9", "5")
    assert not queries_._is_someone_far_behind(table)
    db.sql("PAUSE q0")
    db.sql("RESUME q0")
    monkeypatch.setattr(front, "MOST_BEHIND", 2)
    db.insert("s", [(1, "a", 1, 1, 9)] * 3)
    assert queries_._is_someone_far_behind(table)
    db.drain()
    assert not queries_._is_someone_far_behind(table)
    assert asked == [3, 4, 4, 4]


def test_a_stem_gives_what_is_equal_and_null_is_equal_to_nothing() -> None:
    def some(*words: str | None) -> pa.Table:
        return pa.table({"w": pa.array(words, pa.string())})

    words = Words()
    one, two = SteM(some().schema, words), SteM(some().schema, words)
    for stem, texts in ((one, ("a", None, "b", "a")), (two, ("b", "c", None, "a"))):
        ids = np.arange(4)
        stem.insert(some(*texts), ids, ids, ids, 4)
    probing, rows = two.probe("w", one.keys("w"), 100)
    assert sorted(zip(probing.tolist(), rows.tolist(), strict=True)) == [(0, 3), (2, 0), (3, 3)]
    two.keep(np.array([True, False, False, True]))
    two.insert(some("a"), np.array([4]), np.array([4]), np.array([4]), 5)
    probing, rows = two.probe("w", one.keys("w"), 100)
    found = sorted((int(one.ids[p]), int(two.ids[r])) for p, r in zip(probing, rows, strict=True))
    assert found == [(0, 3), (0, 4), (2, 0), (3, 3), (3, 4)]
    with pytest.raises(TooManyError):
        two.probe("w", one.keys("w"), 4)


@pytest.mark.parametrize("seed", range(5))
def test_an_index_that_grows_finds_what_a_new_one_would(seed: int) -> None:
    random = np.random.default_rng(seed)
    stem = SteM(pa.schema([("k", pa.int64())]), Words())
    for _ in range(20):
        count = int(random.integers(0, 40))
        values = pa.array(random.integers(-3, 4, count), mask=random.random(count) < 0.2)
        ids = np.arange(stem.upto, stem.upto + count)
        stem.insert(pa.table({"k": values}), ids, ids, ids, stem.upto + count)
        if random.random() < 0.2:
            stem.keep(random.random(len(stem)) < 0.7)
        probing, rows = stem.probe("k", stem.keys("k"), 1_000_000)
        keys = stem.rows.column("k").to_pylist()
        expected = [(i, j) for i, a in enumerate(keys) for j, b in enumerate(keys) if a is not None and a == b]
        assert sorted(zip(probing.tolist(), rows.tolist(), strict=True)) == expected


def lines(db: Database, text: str) -> list[str]:
    return [str(row[0]) for row in db.sql(text).fetchall()]


def test_explain_shared_tells_of_panes_and_of_stems(db: Database) -> None:
    create(db, ("r", "s"))
    for number, step in enumerate((2, 3)):
        db.sql(
            f"CREATE CONTINUOUS QUERY p{number} AS SELECT sum(a) AS x FROM s [INTERVAL 9] SAMPLE INTERVAL {step}"
        )
        db.sql(
            f"CREATE CONTINUOUS QUERY j{number} AS SELECT x.a FROM r [INTERVAL {step}] x JOIN s [INTERVAL 4] y"
            " ON x.k = y.k WHERE y.a > 3 EMIT NEW"
        )
    for stream in ("r", "s"):
        db.insert(stream, [(1, "a", 5, 1, 0), (2, "a", 2, 1, 1)])
    db.drain()
    for stream in ("r", "s"):
        db.insert(stream, [(1, "a", 5, 1, 9)])
    db.drain()
    panes = lines(db, "EXPLAIN SHARED p0")
    assert panes[:3] == [
        "Continuous query p0",
        "Panes on s, cut for 2 kinds of window",
        "Shared with 1 other query: one commit for each basket, 1 pass over its rows",
    ]
    assert panes[3].startswith("  with 1 other query: SELECT")
    join = lines(db, "EXPLAIN SHARED j1")
    assert join[:5] == [
        "Continuous query j1",
        "Join: r.k = s.k",
        "Selection on r: every row",
        "Selection on s: a > 3",
        "Shared with 1 other query: one SteM for each stream, one commit for each basket",
    ]
    assert {line.split(":")[0][5:] for line in join[5:7]} == {"SteM of r on k", "SteM of s on k"}
    assert join[7].startswith("  s: grouped filter on a: 2 terms")
    shown = {(row[0], row[1]) for row in db.sql("SHOW EDDY").fetchall()}
    assert shown == {("r, s", "SteM of r on k"), ("r, s", "SteM of s on k"), ("s", "grouped filter on a")}


def commits_of(db: Database) -> list[int]:
    """One entry for each commit from now on."""
    made: list[int] = []
    real = db._lake.catalog._transact
    db._lake.catalog._queue._transact = lambda run: (made.append(1), real(run))[1]  # type: ignore[method-assign]
    return made


def summed(db: Database, name: str, length: str, step: str) -> None:
    window = f"s [INTERVAL {length}] SAMPLE INTERVAL {step}"
    db.sql(f"CREATE CONTINUOUS QUERY {name} AS SELECT sum(a) AS x FROM {window}")


def test_a_query_that_the_kernel_cannot_run_leaves_the_others_together(db: Database) -> None:
    create(db, ("s",))
    for number in range(5):
        summed(db, f"q{number}", f"{number + 3}", "2")
    db.sql(
        "CREATE CONTINUOUS QUERY odd AS SELECT sum(a) AS x FROM s [INTERVAL 3] WHERE w RLIKE 'a' SAMPLE INTERVAL 2"
    )
    db.insert("s", [(1, "a", 1, 1, 0)])
    db.drain()
    runs = {q.name: db._engine.queries._run(q) for q in db._engine.queries.known.every()}
    db.insert("s", [(1, "ab", i, 1, i) for i in range(1, 12)])
    commits = commits_of(db)
    db._engine.queries.advance_all()
    assert len(commits) == 2
    assert {name: db._engine.queries._runs[run.query.id] is run for name, run in runs.items()} == dict.fromkeys(
        runs, True
    )
    assert had(db, "q0", is_aggregate=True) == had(db, "odd", is_aggregate=True) != []


def matching(db: Database, name: str, pattern: str) -> None:
    """A query that the kernel cannot run."""
    text = f"SELECT k, sum(a) AS x FROM s [INTERVAL 4] WHERE w RLIKE '{pattern}' GROUP BY k SAMPLE INTERVAL 2"
    db.sql(f"CREATE CONTINUOUS QUERY {name} AS {text}")


def test_what_only_spark_can_do_is_one_job_for_all(db: Database) -> None:
    create(db, ("s",))
    taken = []
    for number in range(50):
        matching(db, f"q{number}", "ab"[number % 2] + "." * (number // 2))
        if number in (0, 9, 49):
            first = 20 * number
            db.insert("s", [(1, "a", 1, 1, first)])
            db.drain()
            before = jobs(db.spark)
            db.insert("s", [(i % 2, "abab"[i % 3 :], i, 1, first + i) for i in range(1, 12)])
            db._engine.queries.advance_all()
            taken.append(jobs(db.spark) - before)
    assert taken == [1, 1, 1]
    assert lines(db, "EXPLAIN SHARED q3")[2].endswith(
        ": one commit for each basket, 1 pass over its rows in one Spark job"
    )
    whole = [sum(row[1] for row in d.fetchall()) for d in db.results("q0")]
    assert max(whole) == sum(range(6, 11))


SPREAD = "SELECT k, stddev(a) AS x FROM s [INTERVAL {}] WHERE a > {} GROUP BY k SAMPLE INTERVAL 2"


def test_merges_that_only_spark_can_do_are_as_many_jobs_for_two_as_for_nine(db: Database) -> None:
    create(db, ("s",))
    taken = []
    for number in range(9):
        db.sql(f"CREATE CONTINUOUS QUERY q{number} AS {SPREAD.format(4 + 2 * (number % 3), number)}")
        if number in (1, 8):
            first = 40 * number
            db.insert("s", [(1, "a", 1, 1, first)])
            db.drain()
            before = jobs(db.spark)
            db.insert("s", [(i % 2, "ab"[i % 2], i, 1, first + i) for i in range(1, 12)])
            db._engine.queries.advance_all()
            taken.append(jobs(db.spark) - before)
    assert taken[0] == taken[1] > 0
    assert lines(db, "EXPLAIN SHARED q3")[2].endswith(
        "with 8 other queries: one commit for each basket, 1 pass over its rows in one Spark job, merged by Spark"
    )


def test_what_spark_merges_together_is_what_it_merges_alone(
    opened: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    story = a_story(11, (spread,), ("s",), 8)
    with monkeypatch.context() as patched:
        patched.setattr(chorus, "key_of", lambda *_: None)
        with opened("alone") as db:
            create(db, ("s",))
            expected = told(db, story) | every(db)
    with opened("together") as db:
        create(db, ("s",))
        assert told(db, story) | every(db) == expected
    assert any(expected.values())


def spread(random: Random) -> str:
    """An aggregate with a merge that Arrow does not know."""
    more = random.choice(
        ["round(stddev(a), 6) AS x", "round(stddev(a), 6) AS x, first(a) AS y", "approx_count_distinct(b) AS x"]
    )
    return re.sub(r"(SELECT (?:k, )?(?:w, )?).*? FROM", rf"\1{more} FROM", aggregate(random))


def test_of_a_job_that_fails_the_culprit_alone_is_marked(db: Database, monkeypatch: Any) -> None:
    create(db, ("s",))
    for number in range(8):
        matching(db, f"q{number}", "a" if number != 5 else "(" * 3)
    db.insert("s", [(1, None, 1, 1, 0)])
    db.drain()
    steps: list[int] = []
    real = chorus.Chorus.step
    monkeypatch.setattr(
        chorus.Chorus, "step", lambda self, runs, look: (steps.append(len(runs)), real(self, runs, look))[1]
    )
    db.insert("s", [(1, "ab", i, 1, i) for i in range(1, 12)])
    db.drain()
    status = {row[0]: row[2] for row in db.sql("SHOW QUERIES").fetchall()}
    assert {name for name, how in status.items() if how == "failed"} == {"q5"}
    assert steps[:5] == [8, 4, 4, 2, 2]
    assert len({str(had(db, f"q{n}", is_aggregate=True)) for n in range(8) if n != 5}) == 1


def test_a_stream_on_which_nothing_happens_costs_no_commits(db: Database, clock: Any) -> None:
    db.sql("CREATE STREAM s (a INT)")
    for number in range(3):
        summed(db, f"q{number}", f"'{number + 2}' HOUR", "'1' HOUR")
    db.insert("s", [(1,)])
    db.drain()
    commits = commits_of(db)
    for _ in range(5):
        clock.advance(timedelta(seconds=1))
        db.drain()
    assert commits == []


def test_queries_that_are_to_be_evaluated_anew_are_not_answered_from_shared_panes(db: Database) -> None:
    create(db, ("s",))
    for number in range(3):
        summed(db, f"q{number}", f"{number + 3}", "2")
    db.insert("s", [(1, "a", 1, 1, 0)])
    db.drain()
    db.sql("SET incremental = off")
    db.insert("s", [(1, "ab", i, 1, i) for i in range(1, 12)])
    db.drain()
    assert not any(run.is_split for run in db._engine.queries._runs.values())
