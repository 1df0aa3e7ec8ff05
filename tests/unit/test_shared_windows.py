"""Queries over windows, stepped together: aggregates share panes, joins share SteMs; each answers as alone."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import millstream
from millstream.execute.shared.stems import SteM, TooManyError, Words
from millstream.queries import chorus, joining
from tests.slt.spark import jobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.database import Database

Row = tuple[Any, ...]
Story = list[tuple[str, Any]]
STREAMS = ("r", "s", "u", "v")


@pytest.fixture
def opened(tmp_path: Path, spark: SparkSession, clock: Any) -> Callable[[str], Database]:
    def open_one(name: str) -> Database:
        return millstream.connect(tmp_path / name, spark=spark, clock=clock, background=False)

    return open_one


def aggregate(random: Random) -> str:
    sums = random.choice(
        ["sum(a) AS x, count(*) AS n", "max(b) AS x", "min(a) AS x, avg(a) AS y", "count(b) AS n"]
    )
    where = random.choice(["", "", " WHERE a > 3", " WHERE b <> 1 AND a < 8"])
    keys = random.choice([("k, ", " GROUP BY k"), ("", ""), ("k, w, ", " GROUP BY k, w")])
    length, step = random.choice([5, 9, 12, 20]), random.choice([2, 3, 5])
    window = random.choice([
        f"s [INTERVAL {length}]{where}{keys[1]} SAMPLE INTERVAL {step}",
        f"TUMBLE(s, t, INTERVAL {step}){where}{keys[1]}",
        f"HOP(s, t, INTERVAL {step}, INTERVAL {length}){where}{keys[1]}",
        f"s [LANDMARK]{where}{keys[1]} SAMPLE INTERVAL {step}",
        f"s [LANDMARK RESET INTERVAL {length}]{where}{keys[1]} SAMPLE INTERVAL {step}",
    ])  # fmt: skip
    emit = random.choice(["", "", " EMIT CHANGES"])
    return f"SELECT {keys[0]}{sums} FROM {window}{emit}"


def join(random: Random) -> str:
    count = random.choice([2, 2, 2, 2, 3, 4])
    streams = random.sample(STREAMS, count) if random.random() < 0.8 else random.choices(STREAMS, k=count)
    named = [f"{name} [INTERVAL {random.choice([3, 6, 9])}] AS x{i}" for i, name in enumerate(streams)]
    text = named[0]
    for i in range(1, count):
        column = random.choice(["k", "k", "w"])
        other = random.randrange(i)
        text += f" JOIN {named[i]} ON x{other}.{column} = x{i}.{column}"
        if random.random() < 0.3:
            text += f" AND x{other}.b = x{i}.b"
    tests = [
        "x0.a > 3",
        "x1.b < 2",
        f"x{count - 1}.a IN (1, 2, 3)",
        "x0.a + x1.a > 6",
        "x0.w LIKE 'a%'",
        "x0.t < x1.t",
    ]
    where = random.choice(
        ["", f" WHERE {random.choice(tests)}", f" WHERE {random.choice(tests)} AND {random.choice(tests)}"]
    )
    columns = random.choice(["x0.a AS p, x1.a AS q", "x0.k AS k, x1.t AS t, x0.a + x1.b AS z", "x1.w AS w"])
    sample = random.choice(["", " SAMPLE INTERVAL 2", " SAMPLE INTERVAL 5"])
    return f"SELECT {columns} FROM {text}{where}{sample} EMIT NEW"


def a_story(seed: int, query: Callable[[Random], str], streams: tuple[str, ...]) -> Story:
    random = Random(f"windows {seed}")
    story: Story = []
    there: list[str] = []
    at = dict.fromkeys(streams, 0)
    for step in range(9):
        for number in range(random.choice([0, 1, 2]) if step else 5):
            there.append(f"q{step}_{number}")
            story.append(("sql", f"CREATE CONTINUOUS QUERY {there[-1]} AS {query(random)}"))
        if len(there) > 5 and random.random() < 0.3:
            story.append(("sql", f"DROP CONTINUOUS QUERY {there.pop(random.randrange(len(there)))}"))
        for stream in streams:
            at[stream] += random.randrange(3)
            rows = [
                (
                    random.randrange(4),
                    random.choice(["a", "ab", "b", None]),
                    random.choice([None, *range(10)]),
                    random.choice([None, 0, 1, 2, 3]),
                    at[stream] + random.choice([0, 0, 1, 2, -1, -4]),
                )
                for _ in range(random.choice([0, 1, 5, 9]))
            ]
            story.append(("insert", (stream, rows)))
        if random.random() < 0.3:
            stream = random.choice(streams)
            at[stream] += 3
            story.append(("sql", f"ADVANCE {stream} TO {at[stream]}"))
        if random.random() < 0.7:
            story.append(("drain", None))
    return [*story, *(("sql", f"ADVANCE {s} TO 200") for s in streams), ("drain", None)]


def told(db: Database, story: Story) -> None:
    for what, about in story:
        if what == "sql":
            db.sql(about)
        elif what == "insert" and about[1]:
            db.insert(*about)
        elif what == "drain":
            db.drain()


def create(db: Database, streams: tuple[str, ...]) -> None:
    for name in streams:
        columns = "k INT, w STRING, a INT, b BIGINT, t BIGINT"
        db.sql(f"CREATE STREAM {name} ({columns}) TIMESTAMP BY t WATERMARK INTERVAL 2")


def queries(db: Database) -> dict[str, str]:
    return {row[0]: row[-1] for row in db.sql("SHOW QUERIES").fetchall()}


def had(db: Database, name: str, *, is_join: bool) -> list[tuple[Any, list[Row]]]:
    found = db.results(name)
    assert [d.sequence for d in found] == list(range(1, len(found) + 1))
    if is_join:
        # How results of one instant are cut into deliveries depends on when they came.
        return [(d.instant, row) for d in found for row in d.fetchall()]
    return [(d.instant, sorted(d.fetchall(), key=repr)) for d in found]


SHAPES: dict[str, tuple[Callable[[Random], str], tuple[str, ...]]] = {
    "aggregates": (aggregate, ("s",)),
    "joins": (join, STREAMS),
}


@pytest.mark.parametrize(("shape", "seed", "policy"), [
    ("aggregates", 0, "tickets"), ("aggregates", 1, "random"), ("joins", 0, "tickets"), ("joins", 1, "random"),
    ("joins", 2, "fixed"),
])  # fmt: skip
def test_each_query_answers_as_it_would_alone(
    shape: str, seed: int, policy: str, opened: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    query, streams = SHAPES[shape]
    story = a_story(seed, query, streams)
    steps: list[int] = []
    for choir in (chorus.Chorus, joining.Joining):
        real = choir.step

        def step(self: Any, runs: Any, look: Any, real: Any = real) -> Any:
            made = real(self, runs, look)
            steps.append(len(runs))
            return made

        monkeypatch.setattr(choir, "step", step)
    with opened("together") as db:
        create(db, streams)
        db.sql(f"SET eddy = {policy}")
        told(db, story)
        names = queries(db)
        found = {name: had(db, name, is_join=shape == "joins") for name in names}
    assert max(steps) > 1
    monkeypatch.setattr(chorus, "key_of", lambda *_: None)
    monkeypatch.setattr(joining, "key_of", lambda *_: None)
    with opened("alone") as db:
        create(db, streams)
        told(db, story)
        for name, text in names.items():
            assert found[name] == had(db, name, is_join=shape == "joins"), f"{name}: {text}"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_restart_between_any_two_steps_changes_nothing(shape: str, opened: Callable[[str], Database]) -> None:
    query, streams = SHAPES[shape]
    story = a_story(7, query, streams)
    with opened("whole") as db:
        create(db, streams)
        told(db, story)
        expected = {name: had(db, name, is_join=shape == "joins") for name in queries(db)}
    with opened("cut") as db:
        create(db, streams)
    for start in range(0, len(story), 9):
        with opened("cut") as db:
            told(db, story[start : start + 9])
    with opened("cut") as db:
        assert {name: had(db, name, is_join=shape == "joins") for name in queries(db)} == expected


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
    assert had(db, "q0", is_join=False) == had(db, "odd", is_join=False) != []


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
