"""Joins of windows that share SteMs: cases that were wrong once, or cost too much."""

from __future__ import annotations

from collections import Counter
from itertools import permutations, product
from typing import TYPE_CHECKING, Any

import pytest

from millstream.queries import joining
from tests.slt.spark import jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.database import Database

Row = tuple[Any, ...]
LEAST = -(2**63)


@pytest.fixture
def three(db: Database) -> Database:
    for name in ("r", "s", "u"):
        columns = "k BIGINT, w STRING, a INT, b BIGINT, t BIGINT"
        db.sql(f"CREATE STREAM {name} ({columns}) TIMESTAMP BY t WATERMARK INTERVAL 2")
    return db


def join(
    db: Database,
    name: str,
    streams: str = "rs",
    length: int = 5,
    on: str = "x.k = y.k",
    more: str = "",
    columns: str = "x.a AS p, y.a AS q",
) -> None:
    one, two = streams
    db.sql(
        f"CREATE CONTINUOUS QUERY {name} AS SELECT {columns} FROM {one} [INTERVAL {length}] x"
        f" JOIN {two} [INTERVAL {length}] y ON {on} {more} EMIT NEW"
    )


def insert(db: Database, stream: str, *rows: tuple[int | None, int, int]) -> None:
    """Rows of a key, a number and a time."""
    db.insert(stream, [(k, "a", a, 1, t) for k, a, t in rows])


def advance(db: Database, streams: str, to: int) -> None:
    for stream in streams:
        db.sql(f"ADVANCE {stream} TO {to}")


def had(db: Database, name: str) -> list[tuple[Any, Row]]:
    return [(d.instant, row) for d in db.results(name) for row in d.fetchall()]


def stem_rows(db: Database) -> int:
    return sum(len(stem) for stem in db._engine.queries.joining._stems.values())


def test_null_equals_nothing_in_any_of_several_equalities(three: Database) -> None:
    for name, length in (("q", 5), ("p", 6)):
        join(three, name, on="x.k = y.k AND x.b = y.b", length=length)
    for stream in "rs":
        three.insert(stream, [(1, "", 1, None, 1), (1, "", 2, 7, 1)])
    three.drain()
    advance(three, "rs", 50)
    three.drain()
    assert had(three, "q") == had(three, "p") == [(1, (2, 2))]


def test_the_least_number_is_a_key_like_others(three: Database) -> None:
    join(three, "q")
    join(three, "p", length=6)
    insert(three, "r", (LEAST, 1, 1), (None, 3, 1))
    insert(three, "s", (LEAST, 2, 1), (None, 4, 1))
    advance(three, "rs", 50)
    three.drain()
    assert had(three, "q") == [(1, (1, 2))]


def test_rows_that_others_have_given_up_are_there_for_a_query_that_comes_to_them(three: Database) -> None:
    join(three, "long", "ru", 1000)
    for length in (3, 4):
        join(three, f"short{length}", "rs", length)
    insert(three, "s", (9, 0, 70))
    insert(three, "u", (9, 0, 60))
    insert(three, "r", (1, 0, 70), *((1, a, 69) for a in range(1, 6)))
    three.drain()
    insert(three, "r", (5, 0, 70))
    three.drain()
    advance(three, "rs", 74)
    three.drain()
    join(three, "longer", "ru", 1000)
    insert(three, "u", (1, 50, 75))
    advance(three, "ur", 80)
    three.drain()
    assert [row for _, row in had(three, "long")] == [(0, 50), *((a, 50) for a in range(1, 6))]


def test_a_first_row_that_came_late_is_joined_all_the_same(three: Database) -> None:
    insert(three, "r", (7, 0, 12))
    insert(three, "s", (7, 0, 12))
    for length in (50, 60):
        join(three, f"q{length}", length=length)
    three.drain()
    join(three, "late", more="SAMPLE INTERVAL 2", columns="x.t AS p, y.t AS q")
    advance(three, "r", 30)
    insert(three, "r", (1, 0, 12))
    three.drain()
    insert(three, "s", (1, 0, 13))
    three.drain()
    advance(three, "s", 20)
    three.drain()
    advance(three, "rs", 90)
    three.drain()
    assert had(three, "late") == [(14, (12, 13))]


def test_stems_hold_no_more_when_their_queries_have_gone(three: Database) -> None:
    for streams in ("rs", "ru"):
        for length in (3, 4):
            join(three, f"{streams}{length}", streams, length)
    for t in range(5):
        for stream in "rsu":
            insert(three, stream, (1, 0, t))
        three.drain()
    three.sql("DROP CONTINUOUS QUERY ru3")
    for t in range(5, 40):
        for stream in "rsu":
            insert(three, stream, (1, 0, t))
        three.drain()
    assert stem_rows(three) < 40
    for name in ("ru4", "rs3", "rs4"):
        three.sql(f"DROP CONTINUOUS QUERY {name}")
    three.drain()
    assert stem_rows(three) == 0
    assert three.sql("SHOW EDDY").fetchall() == []


def test_words_that_nobody_holds_are_forgotten(three: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "FEW_WORDS", 20)
    for length in (3, 4):
        join(three, f"q{length}", length=length, on="x.w = y.w")
    for t in range(60):
        for stream in "rs":
            three.insert(stream, [(1, f"word {t} {i}", 1, 1, t) for i in range(4)])
        three.drain()
    words = three._engine.queries.joining._words.known
    assert len(words) <= 20 + joining.WORDS_A_ROW * stem_rows(three) + 8
    assert len(had(three, "q3")) == 4 * 58


def test_a_stem_is_filled_once_and_the_eddy_does_not_forget(
    three: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[int] = []
    real = joining.Joining._refill
    monkeypatch.setattr(joining.Joining, "_refill", lambda self, *a: (filled.append(1), real(self, *a))[1])
    for length in (3, 4):
        join(three, f"q{length}", length=length)
    policies = set()
    for t in range(0, 60, 3):
        for stream in "rs":
            insert(three, stream, *((t, i, t + i) for i in range(3)))
        three.drain()
        policies |= {id(f.policy) for f in three._engine.queries.joining.families.values()}
    assert len(filled) == 2
    assert len(policies) == 1
    assert stem_rows(three) < 60


def test_the_eddy_learns_which_stem_lets_least_pass(three: Database) -> None:
    """Rows of r meet one of s in ten, and each of u."""
    texts = "JOIN s [INTERVAL {0}] y ON x.k = y.k JOIN u [INTERVAL {0}] z ON x.k = z.k"
    for length in (3, 4):
        three.sql(f"CREATE CONTINUOUS QUERY q{length} AS SELECT x.t FROM r [INTERVAL {length}] x "
                  f"{texts.format(length)} EMIT NEW")  # fmt: skip
    first = Counter[str]()
    for t in range(0, 200, 10):
        insert(three, "s", (0, 0, t))
        insert(three, "u", *((k, 0, t) for k in range(10)))
        advance(three, "su", t + 9)
        insert(three, "r", *((k, 0, t + 1) for k in range(10)))
        advance(three, "r", t + 9)
        three.drain()
        [family] = three._engine.queries.joining.families.values()
        first[family.order[0]] += 1
    shown = {row[1]: row for row in three.sql("SHOW EDDY").fetchall() if row[1].startswith("SteM")}
    assert shown["SteM of s on k"][5] > shown["SteM of u on k"][5]
    assert shown["SteM of s on k"][6] < shown["SteM of u on k"][6]
    assert first["1.k"] > 15
    assert len(had(three, "q3")) == 20


def test_filters_of_a_join_are_shown_in_the_order_in_which_rows_went_through_them(three: Database) -> None:
    """No row passes `b`, and `a` comes first in the alphabet; what was learnt outlives who comes and goes."""
    for length in range(3, 9):
        join(three, f"q{length}", length=length, more="WHERE x.a >= 0 AND x.b > 1")
        for t in range(5):
            for stream in "rs":
                insert(three, stream, (1, 0, 10 * length + t))
        three.drain()
    [family] = three._engine.queries.joining.families.values()
    assert len(family.runs) == 6
    shown = sorted((row[3], row[1]) for row in three.sql("SHOW EDDY").fetchall() if row[0] == "r")
    assert [name for _, name in shown] == [f"grouped filter on {name}" for name in family.orders[0]]
    assert family.orders[0] == ["b", "a"]
    told = [row[0] for row in three.sql("EXPLAIN SHARED q3").fetchall()]
    assert [line.split(":")[1] for line in told if line.startswith("  r: ")] == [f" {name}" for _, name in shown]


def test_of_joins_with_tests_one_that_raises_fails_alone(three: Database) -> None:
    join(three, "wrong", more="WHERE CAST(x.w AS INT) > y.a")
    for length in (3, 4, 6):
        join(three, f"q{length}", length=length, more="WHERE upper(x.w) = upper(y.w)" if length == 6 else "")
    for t in (1, 20):
        for stream in "rs":
            insert(three, stream, (1, 0, t))
        advance(three, "rs", t + 5)
        three.drain()
    status = {row[0]: row[2] for row in three.sql("SHOW QUERIES").fetchall()}
    assert status == {"wrong": "failed", "q3": "running", "q4": "running", "q6": "running"}
    for name in ("q3", "q4", "q6"):
        assert had(three, name) == [(1, (0, 0)), (20, (0, 0))]
    [family] = three._engine.queries.joining.families.values()
    assert len(family.runs) == 3


def test_more_combinations_than_a_step_may_find_are_for_spark(
    three: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "MOST_FOUND", 10)
    for length in (3, 4):
        join(three, f"q{length}", length=length)
    for stream in "rs":
        insert(three, stream, *((1, a, 1) for a in range(6)))
    advance(three, "rs", 9)
    three.drain()
    assert len(had(three, "q3")) == 36


def test_tests_and_expressions_of_all_are_one_job_each_however_many_there_are(three: Database) -> None:
    taken, made = [], 0
    for t, count in enumerate((2, 10, 50)):
        for number in range(made, count):
            more = f"WHERE x.w RLIKE '{'ab'[number % 2]}' AND y.w RLIKE 'a'"
            join(three, f"q{number}", length=number + 3, more=more, columns="upper(x.w) AS p, upper(y.w) AS q")
        made = count
        # The first time whoever has come is at its own place.
        for at in (200 * t, 200 * t + 100):
            before = jobs(three.spark)
            for stream in "rs":
                insert(three, stream, (1, 0, at))
            advance(three, "rs", at + 1)
            three.drain()
        taken.append(jobs(three.spark) - before)
        [family] = three._engine.queries.joining.families.values()
        assert len(family.runs) == count
    assert taken == [2, 2, 2]
    assert [row for _, row in had(three, "q0")][-1] == ("A", "A")
    assert had(three, "q1") == []


def test_the_policy_that_is_set_is_the_families_too(three: Database) -> None:
    for length in (3, 4):
        join(three, f"q{length}", length=length)
    for stream in "rs":
        insert(three, stream, (1, 0, 1))
    three.drain()
    three.sql("SET eddy = random")
    shown: Sequence[Row] = three.sql("SHOW EDDY").fetchall()
    assert {row[2] for row in shown} == {"random"}
    assert {row[5] for row in shown} == {0.0}


@pytest.mark.parametrize("letters", ["rrssuu", "rrssuv"])
def test_rows_may_come_in_any_order(letters: str, db: Database) -> None:
    """Every order has a key of its own, so one database sees them all, a row of each after the other."""
    streams = "".join(sorted(set(letters)))
    for stream in streams:
        columns = "k BIGINT, a INT, t BIGINT"
        db.sql(f"CREATE STREAM {stream} ({columns}) TIMESTAMP BY t WATERMARK INTERVAL 1000")
    for length in (2, 3, 4):
        more = "".join(f" JOIN {s} [INTERVAL {length}] x{i} ON x{i - 1}.k = x{i}.k"
                       for i, s in enumerate(streams[1:], 1))  # fmt: skip
        columns = ", ".join(f"x{i}.a AS a{i}" for i in range(len(streams)))
        text = f"SELECT x0.k AS k, {columns} FROM {streams[0]} [INTERVAL {length}] x0{more} EMIT NEW"
        db.sql(f"CREATE CONTINUOUS QUERY q{length} AS {text}")
    orders, ids = sorted(set(permutations(letters))), Counter[str]()
    # By key and stream, in the order of arrival: time and number. Those of `s` come the newer one first.
    rows: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for place in range(len(letters)):
        for stream in streams:
            new = [k for k, order in enumerate(orders) if order[place] == stream]
            for k in new:
                there = rows.setdefault((k, stream), [])
                time = 1 + streams.index(stream) + 3 * (len(there) ^ (stream == "s"))
                there.append((time, ids[stream]))
                ids[stream] += 1
            db.insert(stream, [(k, len(rows[k, stream]), rows[k, stream][-1][0]) for k in new])
        db.drain()
    advance(db, streams, 100)
    db.drain()
    [family] = db._engine.queries.joining.families.values()
    assert len(family.runs) == 3
    for length in (2, 3, 4):
        found = had(db, f"q{length}")
        assert found
        for k in range(len(orders)):
            combined = list(product(*(enumerate(rows[k, s], 1) for s in streams)))
            near = [c for c in combined if spread(c) <= length]
            assert [(t, row[1:]) for t, row in found if row[0] == k] == [
                (max(t for _, (t, _) in c), tuple(a for a, _ in c)) for c in sorted(near, key=arrival)
            ], (length, orders[k])


Combined = tuple[tuple[int, tuple[int, int]], ...]


def spread(combined: Combined) -> int:
    times = [t for _, (t, _) in combined]
    return max(times) - min(times)


def arrival(combined: Combined) -> tuple[object, ...]:
    """The largest time, the number of the latest row, that of the one before, and so on."""
    latest_first = sorted((row for _, row in combined), reverse=True)
    return latest_first[0][0], [number for _, number in latest_first], [number for _, (_, number) in combined]
