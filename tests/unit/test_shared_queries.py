"""Selections that share one pass over their stream: each gets what it would get alone, whatever the others do."""

from __future__ import annotations

import threading
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import millstream
from millstream.errors import Condition, MillstreamError, StatementError
from millstream.plan.standing import QueryPlan
from millstream.queries import answering, blocks, defining, here, making, storing
from tests.slt.spark import jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from millstream.database import Database

STREAM = "CREATE STREAM s (a INT, b BIGINT, x DOUBLE, w STRING, t BIGINT) TIMESTAMP BY t WATERMARK INTERVAL 3"
WORDS = ["", "ab", "abc", "b", "é"]
Row = tuple[Any, ...]


@pytest.fixture
def s(db: Database) -> Database:
    db.sql(STREAM)
    return db


def some_rows(random: Random, count: int, at: int) -> list[Row]:
    def maybe(value: Any) -> Any:
        return None if random.random() < 0.1 else value

    return [
        (
            maybe(random.randrange(10)),
            maybe(random.randrange(-5, 5)),
            maybe(random.choice([0.0, 1.5, -2.0])),
            maybe(random.choice(WORDS)),
            at + random.randrange(4),
        )
        for _ in range(count)
    ]


def a_query(random: Random) -> str:
    """A selection: tests that operators know, tests that they do not, columns and expressions."""
    tests = [
        f"a {random.choice(['=', '<>', '<', '>='])} {random.randrange(10)}",
        f"b BETWEEN {random.randrange(-5, 0)} AND {random.randrange(5)}",
        f"a IN ({random.randrange(10)}, {random.randrange(10)})",
        f"w {random.choice(['=', '>'])} '{random.choice(WORDS)}'",
        "x IS NULL",
        "w LIKE 'a%'",
        f"a + b > {random.randrange(6)}",
        "a = b",
    ]
    where = random.choice([
        "",
        f" WHERE {random.choice(tests)}",
        f" WHERE {random.choice(tests)} AND {random.choice(tests)}",
        f" WHERE {random.choice(tests)} OR {random.choice(tests)} AND NOT {random.choice(tests)}",
    ])  # fmt: skip
    columns = random.choice(["*", "a, t", "t, w AS word, b", "a + 1 AS more, t", "upper(w) AS u, b * 2 AS d, a"])
    return f"SELECT {columns} FROM s{where}"


def had(db: Database, name: str) -> list[tuple[Any, Row]]:
    """The rows that a query was given, in order, each with its instant."""
    found = db.results(name)
    assert [d.sequence for d in found] == list(range(1, len(found) + 1))
    return [(d.instant, row) for d in found for row in d.fetchall()]


Story = list[tuple[str, Any]]


def a_story(seed: int) -> Story:
    """What happens to a stream and its queries: inserts, queries that come and go, pause and go on."""
    random = Random(f"story {seed}")
    story: Story = []
    there: list[str] = []
    for step in range(14):
        for number in range(random.randrange(4)):
            there.append(f"q{step}_{number}")
            story.append(("create", (there[-1], a_query(random))))
        if there and random.random() < 0.3:
            story.append(("pause", random.choice(there)))
        if there and random.random() < 0.4:
            story.append(("resume", random.choice(there)))
        if there and random.random() < 0.3:
            if random.random() < 0.5:
                story.append(("drain", None))
            story.append(("drop", there.pop(random.randrange(len(there)))))
        story.append(("insert", some_rows(random, random.choice([1, 5, 30]), 2 * step)))
        if random.random() < 0.8:
            story.append(("drain", None))
    return [*story, *(("resume", name) for name in there), ("drain", None)]


def told(db: Database, story: Story, cut: int = 1_000) -> dict[str, list[tuple[Any, Row]]]:
    """Let a story happen, its inserts cut into pieces; returns what queries that were dropped had been given."""
    gone: dict[str, list[tuple[Any, Row]]] = {}
    for what, about in story:
        if what == "insert":
            for start in range(0, len(about), cut):
                db.insert("s", about[start : start + cut])
                if cut < 1_000:
                    db.drain()
        elif what == "drain":
            db.drain()
        elif what == "create":
            db.sql(f"CREATE CONTINUOUS QUERY {about[0]} AS {about[1]}")
        elif what == "drop":
            gone[about] = had(db, about)
            db.sql(f"DROP CONTINUOUS QUERY {about}")
        elif what in ("pause", "resume"):
            db.sql(f"{what} {about}")
    return gone


def left(story: Story) -> dict[str, str]:
    """The queries that there are at the end."""
    made = dict(about for what, about in story if what == "create")
    gone = {about for what, about in story if what == "drop"}
    return {name: text for name, text in made.items() if name not in gone}


@pytest.mark.parametrize(("seed", "executor", "policy", "cut"), [
    (0, "auto", "tickets", 1_000), (1, "auto", "random", 3), (2, "spark_sql", "tickets", 1_000),
    (3, "auto", "fixed", 1), (4, "auto", "random", 7), (5, "auto", "tickets", 2),
])  # fmt: skip
def test_each_query_has_what_it_would_have_alone(
    seed: int,
    executor: str,
    policy: str,
    cut: int,
    opened: Callable[[str], Database],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = a_story(seed)
    with opened("together") as db:
        db.sql(STREAM)
        db.sql(f"SET executor = {executor}")
        db.sql(f"SET eddy = {policy}")
        gone = told(db, story, cut=cut)
        found = {name: had(db, name) for name in left(story)}
    assert any(found.values())
    assert any(gone.values())
    monkeypatch.setattr(QueryPlan, "is_selection", property(lambda _: False))
    with opened("alone") as db:
        db.sql(STREAM)
        gone_alone = told(db, story)
        assert db._engine.queries.together.streams() == []
        for name, text in left(story).items():
            assert found[name] == had(db, name), text
    assert gone.keys() == gone_alone.keys()
    for name, rows in gone_alone.items():
        # Pieces are drained, so more may have been delivered until then.
        assert (gone[name] if cut == 1_000 else gone[name][: len(rows)]) == rows, name


def test_a_restart_between_any_two_steps_changes_nothing(opened: Callable[[str], Database]) -> None:
    story = a_story(11)
    with opened("whole") as db:
        db.sql(STREAM)
        gone_whole = told(db, story)
        expected = {name: had(db, name) for name in left(story)}
    gone: dict[str, list[tuple[Any, Row]]] = {}
    with opened("cut") as db:
        db.sql(STREAM)
    for start in range(0, len(story), 3):
        with opened("cut") as db:
            gone |= told(db, story[start : start + 3])
            found = {name: had(db, name) for name in left(story) if db._engine.queries.known.named(name)}
    assert found == expected
    assert gone == gone_whole
    assert any(gone.values())


def test_a_reader_in_another_process_sees_the_same(s: Database, spark: SparkSession) -> None:
    s.sql("CREATE CONTINUOUS QUERY q AS SELECT a, t FROM s WHERE a > 1")
    for at in range(3):
        s.insert("s", [(at, 0, 0.0, "", at), (5, 0, 0.0, "", at)])
        s.drain()
    with millstream.connect(s.path, spark=spark, read_only=True) as other:
        assert had(other, "q") == had(s, "q")
        assert other.sql("SELECT * FROM q").fetchall() == [(2, 2), (5, 2)]
        s.insert("s", [(7, 0, 0.0, "", 9)])
        s.drain()
        assert had(other, "q") == had(s, "q")
        assert [d.sequence for d in other.subscribe("q", since=2, timeout=0)] == [3, 4]


def test_large_baskets_go_to_sparks_tasks(s: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        where = f"a = {number % 10} AND b > {number - 30}"
        s.sql(f"CREATE CONTINUOUS QUERY q{number} AS SELECT a, b, t FROM s WHERE {where}")
    random = Random(1)
    rows = some_rows(random, 600, 0)
    expected = {
        number: [
            (r[4], (r[0], r[1], r[4]))
            for r in rows
            if r[0] == number % 10 and r[1] is not None and r[1] > number - 30
        ]
        for number in range(40)
    }
    monkeypatch.setattr(here, "HERE_ROWS", 100)
    monkeypatch.setattr(answering.here, "HERE_ROWS", 100)
    before = jobs(s.spark)
    s.insert("s", rows)
    s.drain()
    assert jobs(s.spark) - before == 1
    for number in range(40):
        assert had(s, f"q{number}") == expected[number], number


@pytest.mark.parametrize("executor", ["auto", "spark_sql"])
def test_a_basket_costs_as_many_jobs_for_a_thousand_queries_as_for_one(s: Database, executor: str) -> None:
    """And each of their subscribers gets what its query asks for."""
    s.sql(f"SET executor = {executor}")
    costs, made = [], 0
    for count in (1, 10, 1_000):
        while made < count:
            where = f"a = {made % 10} AND b < {made % 7}"
            s.sql(f"CREATE CONTINUOUS QUERY q{made} AS SELECT a, t FROM s WHERE {where}")
            made += 1
        subscribed = [s.subscribe(f"q{number}", timeout=60) for number in range(count)]
        rows, before = some_rows(Random(count), 50, count), jobs(s.spark)
        s.insert("s", rows)
        s.drain()
        costs.append(jobs(s.spark) - before)
        for number, one in enumerate(subscribed):
            mine = [(r[0], r[4]) for r in rows if r[0] == number % 10 and r[1] is not None and r[1] < number % 7]
            given: list[Row] = []
            while len(given) < len(mine):
                given += next(one).fetchall()
            assert given == mine
            one.close()
    assert costs == ([0, 0, 0] if executor == "auto" else [1, 1, 1])


def test_tests_and_expressions_of_many_queries_are_one_job_each(s: Database) -> None:
    s.sql("SET executor = spark_sql")
    costs, made = [], 0
    for count in (1, 10, 60):
        while made < count:
            s.sql(f"CREATE CONTINUOUS QUERY q{made} AS SELECT a + {made} AS n FROM s WHERE a + b > {made % 9 - 5}")
            made += 1
        before = jobs(s.spark)
        s.insert("s", some_rows(Random(3), 50, count))
        s.drain()
        costs.append(jobs(s.spark) - before)
    assert costs == [3, 3, 3]


# What fails


def test_a_query_whose_test_fails_on_a_row_fails_alone(s: Database) -> None:
    s.sql("CREATE CONTINUOUS QUERY sound AS SELECT a FROM s WHERE 10 / (a + 1) > 1")
    s.sql("CREATE CONTINUOUS QUERY broken AS SELECT a FROM s WHERE 10 / a > 1 AND b > 0")
    s.sql("CREATE CONTINUOUS QUERY other AS SELECT a FROM s WHERE a < 5")
    s.insert("s", [(1, 1, 0.0, "", 1)])
    s.drain()
    s.insert("s", [(0, 0, 0.0, "", 2)])
    s.drain()
    assert had(s, "broken") == [(1, (1,))]
    s.insert("s", [(0, 1, 0.0, "", 3), (2, 1, 0.0, "", 3)])
    s.drain()
    assert had(s, "sound") == [(1, (1,)), (2, (0,)), (3, (0,)), (3, (2,))]
    assert had(s, "other") == [(1, (1,)), (2, (0,)), (3, (0,)), (3, (2,))]
    assert had(s, "broken") == [(1, (1,))]
    states = {row[0]: row[2] for row in s.sql("SHOW QUERIES").fetchall()}
    assert states == {"sound": "running", "broken": "failed", "other": "running"}
    with pytest.raises(StatementError) as caught:
        list(s.subscribe("broken", since=0, timeout=0))
    assert caught.value.condition is Condition.QUERY_STOPPED
    assert "zero" in str(caught.value.detail).lower()


def test_an_expression_fails_only_those_whose_own_rows_it_fails_on(s: Database) -> None:
    s.sql("CREATE CONTINUOUS QUERY guarded AS SELECT 10 / a AS z FROM s WHERE a > 0")
    s.sql("CREATE CONTINUOUS QUERY bare AS SELECT 10 / a AS z FROM s WHERE b > 0")
    s.insert("s", [(5, 1, 0.0, "", 1), (0, 1, 0.0, "", 1), (2, 0, 0.0, "", 2)])
    s.drain()
    assert had(s, "guarded") == [(1, (2.0,)), (2, (5.0,))]
    assert had(s, "bare") == []
    states = {row[0]: row[2] for row in s.sql("SHOW QUERIES").fetchall()}
    assert states == {"guarded": "running", "bare": "failed"}


def test_a_query_that_failed_goes_on_where_it_was(s: Database) -> None:
    def refusing(n: int) -> int:
        if n == 9:
            raise ValueError("nine")
        return n

    s.create_function("checked", refusing, returns="INT")
    s.sql("CREATE CONTINUOUS QUERY q AS SELECT checked(a) AS a FROM s")
    s.sql("CREATE CONTINUOUS QUERY other AS SELECT a FROM s")
    s.insert("s", [(1, 1, 0.0, "", 1)])
    s.drain()
    s.insert("s", [(2, 1, 0.0, "", 2)])
    s.insert("s", [(9, 1, 0.0, "", 3)])
    s.drain()
    assert had(s, "q") == [(1, (1,))]
    s.insert("s", [(3, 1, 0.0, "", 4)])
    s.drain()
    s.create_function("checked", lambda n: n, returns="INT")
    s.sql("RESUME q")
    s.insert("s", [(4, 1, 0.0, "", 5)])
    s.drain()
    assert had(s, "q") == had(s, "other") == [(t, (a,)) for t, a in [(1, 1), (2, 2), (3, 9), (4, 3), (5, 4)]]
    assert s.sql("EXPLAIN SHARED q").fetchall()[-1][0].startswith("Shared with 1 other query")


def test_one_query_more_than_there_may_be_is_refused(s: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defining, "MOST_QUERIES", 3)
    for number in range(3):
        s.sql(f"CREATE CONTINUOUS QUERY q{number} AS SELECT a FROM s WHERE a = {number}")
    with pytest.raises(StatementError) as caught:
        s.sql("CREATE CONTINUOUS QUERY q3 AS SELECT a FROM s")
    assert caught.value.condition is Condition.TOO_MANY_QUERIES
    assert "no more than 3" in caught.value.message
    s.sql("DROP CONTINUOUS QUERY q1")
    s.sql("CREATE CONTINUOUS QUERY q3 AS SELECT a FROM s")


def test_a_reader_of_a_query_that_is_dropped_is_told_why_it_ends(s: Database) -> None:
    s.sql("CREATE CONTINUOUS QUERY q AS SELECT a FROM s")
    reader = s.subscribe("q")
    s.insert("s", [(1, 1, 0.0, "", 1)])
    s.drain()
    assert next(reader).fetchall() == [(1,)]
    s.sql("DROP CONTINUOUS QUERY q")
    assert list(reader) == []
    assert reader.reason == "the continuous query 'q' was dropped"


@pytest.mark.parametrize(
    "asked",
    [
        "SELECT a FROM s",
        "SELECT sum(a) AS x FROM s [INTERVAL 4] SAMPLE INTERVAL 2",
        "SELECT l.a, r.b FROM s l, s r WHERE l.a = r.a WINDOW INTERVAL 4",
    ],
)
def test_a_reader_that_waits_is_told_when_its_query_is_dropped(s: Database, asked: str) -> None:
    s.sql(f"CREATE CONTINUOUS QUERY q AS {asked}")
    s.sql(f"CREATE CONTINUOUS QUERY other AS {asked}")
    reader, begins, found = s.subscribe("q"), threading.Event(), list[object]()

    def wait() -> None:
        begins.set()
        found.extend(reader)

    waiting = threading.Thread(target=wait)
    waiting.start()
    begins.wait()
    s.sql("DROP CONTINUOUS QUERY q")
    waiting.join(30)
    assert not waiting.is_alive()
    assert found == []
    assert reader.reason == "the continuous query 'q' was dropped"


# What is kept


def test_the_last_delivery_of_each_query_outlives_its_block(s: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "KEPT_BLOCKS", 4)
    monkeypatch.setattr(blocks, "SLACK", 2)
    monkeypatch.setattr(storing, "KEPT_DELIVERIES", 5)
    for number in range(3):
        s.sql(f"CREATE CONTINUOUS QUERY q{number} AS SELECT a, t FROM s WHERE a % 3 = {number} OR a = {number}")
    s.sql("CREATE CONTINUOUS QUERY seldom AS SELECT a, t FROM s WHERE b = 7")
    s.insert("s", [(0, 7, 0.0, "", 0), (1, 7, 0.0, "", 0)])
    s.drain()
    for at in range(1, 30):
        s.insert("s", [(at, 1, 0.0, "", at)])
        s.drain()
    kept = s._engine.queries.together.blocks(s._lake.catalog.tables()["s"].id)
    assert kept is not None
    assert len(kept.infos) <= 4 + 2 + 1
    assert s.sql("SELECT * FROM seldom").fetchall() == [(0, 0), (1, 0)]
    assert [d.sequence for d in s.results("seldom")] == [1]
    numbers = [d.sequence for d in s.results("q1")]
    assert numbers == list(range(numbers[0], 12))
    with pytest.raises(StatementError) as caught:
        list(s.subscribe("q1", since=1, timeout=0))
    assert caught.value.condition is Condition.SUBSCRIBER_TOO_SLOW
    assert [d.sequence for d in s.subscribe("q1", since=numbers[0] - 1, timeout=0)] == numbers


def test_rows_of_a_stream_go_when_all_have_had_them(s: Database) -> None:
    s.sql("CREATE CONTINUOUS QUERY q AS SELECT a FROM s WHERE a > 100")
    s.sql("CREATE CONTINUOUS QUERY p AS SELECT a FROM s WHERE a > 100")
    s.sql("PAUSE p")
    s.insert("s", some_rows(Random(1), 50, 1))
    s.drain()
    stream = s._lake.catalog.tables()["s"]
    assert s._lake.catalog.row_count(stream) == 50
    s.sql("DROP CONTINUOUS QUERY p")
    s.insert("s", some_rows(Random(1), 5, 2))
    s.drain()
    with s._lake.catalog.read() as connection:
        found = connection.execute("SELECT name, position FROM millstream_consumer").fetchall()
    assert [position for _, position in found] == [55]


def test_deliveries_go_with_the_last_who_had_some(s: Database) -> None:
    def kept() -> int:
        with s._lake.catalog.read() as connection:
            return int(connection.execute("SELECT count(*) FROM millstream_block").fetchone()[0])

    for name in ("q", "p", "idle"):
        s.sql(f"CREATE CONTINUOUS QUERY {name} AS SELECT a FROM s WHERE a {'>' if name != 'idle' else '<'} 0")
    s.insert("s", [(1, 1, 0.0, "", 1)])
    s.drain()
    s.sql("PAUSE p")
    s.sql("DROP CONTINUOUS QUERY q")
    assert kept() == 1
    assert had(s, "p") == [(1, (1,))]
    s.sql("DROP CONTINUOUS QUERY p")
    assert kept() == 0
    s.insert("s", [(-1, 1, 0.0, "", 2)])
    s.drain()
    assert had(s, "idle") == [(2, (-1,))]
    assert kept() == 1


def test_a_group_that_everybody_left_begins_anew(s: Database) -> None:
    s.sql("CREATE CONTINUOUS QUERY q AS SELECT a FROM s")
    s.insert("s", [(1, 1, 0.0, "", 1)])
    s.drain()
    s.sql("PAUSE q")
    s.insert("s", [(2, 1, 0.0, "", 2)])
    s.sql("CREATE CONTINUOUS QUERY p AS SELECT a FROM s")
    s.insert("s", [(3, 1, 0.0, "", 3)])
    s.drain()
    assert had(s, "p") == [(3, (3,))]
    s.sql("RESUME q")
    s.drain()
    assert had(s, "q") == [(1, (1,)), (2, (2,)), (3, (3,))]


# How they are made and shown


def test_a_plain_selection_is_planned_as_spark_would(s: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    s.sql(
        "CREATE STREAM wide (i TINYINT, j SMALLINT, f FLOAT, d DECIMAL(9, 2), o BOOLEAN, y BINARY, n VARCHAR(5),"
        " u DATE, l ARRAY<INT>, r STRUCT<p: INT>, ts TIMESTAMP, t BIGINT) TIMESTAMP BY t"
    )
    texts = [
        "SELECT * FROM wide",
        "SELECT I, j AS `some name`, wide.o, N FROM wide WHERE i > 3 AND n = 'x'",
        "SELECT w.l, r, ts, y, d, f FROM wide w WHERE w.o AND u >= DATE '2026-01-01'",
    ]
    for number, text in enumerate(texts):
        s.sql(f"CREATE CONTINUOUS QUERY plain{number} AS {text}")
    monkeypatch.setattr(making.Maker, "_simple", staticmethod(lambda *_: None))
    for number, text in enumerate(texts):
        s.sql(f"CREATE CONTINUOUS QUERY slow{number} AS {text}")
    known = s._lake.catalog.tables()
    for number, text in enumerate(texts):
        fast, slow = known[f"plain{number}"], known[f"slow{number}"]
        assert fast.schema == slow.schema, text
        assert fast.standing is not None
        assert slow.standing is not None
        one, two = (QueryPlan.from_json(q.standing.plan) for q in (fast, slow) if q.standing)
        assert (one.shared, one.deltas, one.windows) == (two.shared, two.deltas, two.windows), text


@pytest.mark.parametrize(
    "text",
    [
        "SELECT nothing FROM s",
        "SELECT a, a FROM s",
        "SELECT a FROM s WHERE nothing = 1",
        "SELECT a FROM s WHERE a = DATE '2026-13-01'",
        "SELECT a FROM nothing",
    ],
)
def test_what_is_wrong_with_a_selection_is_said_as_ever(s: Database, text: str) -> None:
    with pytest.raises(MillstreamError):
        s.sql(f"CREATE CONTINUOUS QUERY q AS {text}")


def lines(db: Database, statement: str) -> Sequence[str]:
    return [line for (line,) in db.sql(statement).fetchall()]


def test_explain_shared_tells_what_is_shared_and_in_which_order(s: Database) -> None:
    s.sql("CREATE CONTINUOUS QUERY q AS SELECT a FROM s WHERE a > 3 AND b BETWEEN 1 AND 5")
    s.sql("CREATE CONTINUOUS QUERY p AS SELECT a + 1 AS n FROM s WHERE w LIKE 'a%'")
    s.sql("CREATE CONTINUOUS QUERY r AS SELECT count(*) AS n FROM s [INTERVAL 5] SAMPLE INTERVAL 5")
    assert lines(s, "EXPLAIN SHARED q") == [
        "Continuous query q",
        "Selection on s: a > 3 AND b >= 1 AND b <= 5",
        "Shared with 1 other query: one pass and one block for each basket",
        "  1. grouped filter on a: 1 term, tickets 0.0, passes unknown",
        "  2. grouped filter on b: 1 term, tickets 0.0, passes unknown",
    ]
    assert lines(s, "EXPLAIN SHARED p")[1:4] == [
        "Selection on s: every row",
        "Then tested, one text for all who ask it: `r`.`w` LIKE 'a%'",
        "Expression: `r`.`a` + 1",
    ]
    assert lines(s, "EXPLAIN SHARED r")[1].startswith("Alone: ")
    s.insert("s", [(1, 1, 0.0, "", 1), (2, 9, 0.0, "", 1), (9, 2, 0.0, "", 1)])
    s.drain()
    shown = s.sql("SHOW EDDY").fetchall()
    assert [row[0] for row in shown] == ["s", "s"]
    assert [row[3] for row in shown] == [1, 2]
    by_name = {row[1]: (row[5], row[6]) for row in shown}
    first = shown[0][1]
    expected = {"grouped filter on a": 1 / 3, "grouped filter on b": 2 / 3}
    assert by_name[first][1] == pytest.approx(expected[first])


def test_settings_name_the_policy(s: Database) -> None:
    s.sql("SET eddy = random")
    assert ("eddy", "random") in s.sql("SHOW SETTINGS").fetchall()
    with pytest.raises(StatementError) as caught:
        s.sql("SET eddy = whirl")
    assert caught.value.condition is Condition.INVALID_ARGUMENT


def test_columns_that_a_stream_gets_later_change_nothing(s: Database) -> None:
    s.sql("CREATE CONTINUOUS QUERY q AS SELECT * FROM s WHERE a = 1")
    s.insert("s", [(1, 1, 0.0, "", 1)])
    s.drain()
    s.sql("ALTER STREAM s ADD COLUMN more INT")
    s.sql("CREATE CONTINUOUS QUERY p AS SELECT a, more FROM s WHERE more = 4")
    s.insert("s", pa.table({"a": [1, 1], "t": [2, 2], "more": [4, 5]}))
    s.drain()
    assert had(s, "q") == [(1, (1, 1, 0.0, "", 1)), (2, (1, None, None, None, 2)), (2, (1, None, None, None, 2))]
    assert had(s, "p") == [(2, (1, 4))]
