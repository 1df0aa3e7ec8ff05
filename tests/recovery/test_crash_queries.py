"""kill -9 while continuous queries answer: no delivery is missing, doubled or wrong, in views either."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from tests.recovery import child_queries
from tests.recovery.child_queries import QUERIES, SELECTIONS, VIEW, Row, rows
from tests.recovery.processes import Nursery

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.database import Database

KILLS = 15
MOST_LINES = 40
Answer = list[tuple[Any, ...]]


@pytest.fixture
def path(tmp_path: Path, spark: SparkSession) -> Path:
    made = tmp_path / "database"
    with millstream.connect(made, spark=spark, background=False) as db:
        db.sql("CREATE STREAM s (k INT, v BIGINT, t BIGINT) TIMESTAMP BY t")
        for name, query in (QUERIES | SELECTIONS).items():
            db.sql(f"CREATE CONTINUOUS QUERY {name} AS {query}")
        db.sql(f"CREATE STREAMING VIEW kept RANGE UNBOUNDED AS {VIEW}")
    return made


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    started = Nursery("tests.recovery.child_queries")
    yield started
    started.close()


def killed_after(nursery: Nursery, path: Path, first: int, lines: int) -> int:
    """Run the process until it has said so many lines, then kill it; how far inserts were acknowledged."""
    pid = nursery.start("answer", path=str(path), first=first)
    said = nursery.kill_after(pid, lines, 0.0)
    return int(said[-1].split()[1])


def groups(found: Iterable[Row]) -> dict[int, list[int]]:
    by_key: dict[int, list[int]] = {}
    for key, value, _ in found:
        by_key.setdefault(key, []).append(value)
    return by_key


def sums(instant: int, length: int, *, counts: bool) -> Answer:
    by_key = groups(r for r in rows(0, instant + 1) if r[2] >= instant - length)
    return sorted((k, sum(v), len(v))[: 3 if counts else 2] for k, v in by_key.items())


def last(instant: int) -> Answer:
    return sorted((k, max(v[-3:]), len(v[-3:])) for k, v in groups(rows(0, instant + 1)).items())


def check(db: Database, upto: int) -> None:
    """Everything that is due has been answered once, in order, with what was there."""
    for name in QUERIES:
        found = db.results(name)
        numbers = [d.sequence for d in found]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        instants = [d.instant for d in found]
        if name == "ever":
            assert instants == [10 * n - 1 for n in numbers]
            assert instants[-1] == upto // 10 * 10 - 1
        else:
            assert instants == [5 * (n - 1) for n in numbers]
            assert instants[-1] == (upto - 2) // 5 * 5
        for delivery in found[-12:]:
            at, answer = delivery.instant, sorted(delivery.fetchall())
            assert isinstance(at, int)
            if name == "ever":
                assert answer == [(at + 1, max(v for _, v, _ in rows(0, at + 1)))]
            else:
                assert answer == (sums(at, 19, counts=True) if name == "sums" else last(at))
    check_selections(db, upto)
    stored: dict[int, Answer] = {}
    for key, total, instant in db.sql("SELECT k, a, instant FROM kept").fetchall():
        stored.setdefault(instant, []).append((key, total))
    wanted = range(0, upto - 1, 10)
    assert {i: sorted(a) for i, a in stored.items()} == {i: sums(i, 9, counts=False) for i in wanted}


def check_selections(db: Database, upto: int) -> None:
    """Of what is kept nothing is missing or doubled: the last rows that were selected, in order."""
    wanted = {
        "some": [((k, v, t), t) for k, v, t in rows(0, upto) if v > 15 and k != 2],
        "few": [((v + 1, t), t) for _, v, t in rows(0, upto) if v % 10 == 3],
    }
    for name, expected in wanted.items():
        found = db.results(name)
        assert [d.sequence for d in found] == list(range(len(expected) - len(found) + 1, len(expected) + 1))
        assert [(d.fetchall(), d.instant) for d in found] == [([r], t) for r, t in expected[-len(found) :]]


def test_whatever_is_killed_every_instant_is_answered_once(
    nursery: Nursery, path: Path, spark: SparkSession
) -> None:
    seed = random.Random(4)
    first = 0
    for kill in range(KILLS):
        acknowledged = killed_after(nursery, path, first, seed.randint(1, MOST_LINES // (1 + kill % 4)))
        with millstream.connect(path, spark=spark, background=False) as db:
            stream = db._lake.catalog.tables()["s"]
            # What was being inserted when it was killed may be there; if so, whole.
            first = db._lake.catalog.table_stats(stream).next_row_id
            assert first in (acknowledged, acknowledged + child_queries.BATCH)
            db.drain()
            if first > 20:
                check(db, first)
