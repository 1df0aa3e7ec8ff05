"""Everything at once, with the scheduler at work: in the end every row is everywhere exactly once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream.storage import upkeep
from tests.recovery import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.database import Database

WRITERS, INSERTS, ROUNDS = 3, 30, 6
PATIENCE = 100.0


@pytest.fixture
def busy(database_path: Path, spark: SparkSession) -> Iterator[Database]:
    """A database whose scheduler runs; few rows are enough for a query to be stepped."""
    with millstream.connect(database_path, spark=spark, background=True) as db:
        db.sql("CREATE STREAM s (id BIGINT, k INT, t BIGINT) TIMESTAMP BY t WATERMARK INTERVAL 1000000")
        db.sql("CREATE STREAMING TABLE h (id BIGINT, k INT, t BIGINT) TIMESTAMP BY t RANGE UNBOUNDED")
        db.sql("CREATE TABLE kept (id BIGINT)")
        yield db


def writer(db: Database, number: int) -> None:
    for turn in range(INSERTS):
        first = (number * INSERTS + turn) * 10
        ids = range(first, first + 1 + turn % 7)
        db.insert("s", [(i, i % 3, i) for i in ids])
        if turn % 3 == number % 3:
            db.insert("h", [(i, i % 3, i) for i in ids])


def written(table: str) -> list[int]:
    return [
        i
        for number in range(WRITERS)
        for turn in range(INSERTS)
        if table == "s" or turn % 3 == number % 3
        for first in [(number * INSERTS + turn) * 10]
        for i in range(first, first + 1 + turn % 7)
    ]


def toggler(db: Database) -> None:
    for _ in range(ROUNDS):
        db.sql("PAUSE paused")
        db.sql("RESUME paused")


def comer(db: Database) -> None:
    for number in range(ROUNDS):
        db.sql(f"CREATE CONTINUOUS QUERY c{number} AS SELECT id, k FROM s WHERE k = {number % 3}")
        db.sql(f"CREATE CONTINUOUS VIEW v{number} AS SELECT k, count(*) AS n FROM s GROUP BY k")
        db.sql(f"SELECT * FROM v{number}").fetchall()
        if number % 2:
            db.sql(f"DROP CONTINUOUS QUERY c{number}")
            db.sql(f"DROP VIEW v{number}")


def deleter(db: Database) -> None:
    for number in range(ROUNDS):
        db.sql(f"DELETE FROM h WHERE id % 100 = {number}")


def reader(db: Database) -> None:
    seen = 0
    for _ in range(ROUNDS):
        [(n, ids)] = db.sql("SELECT * FROM whole").fetchall()
        assert n >= seen
        assert (ids is None) == (n == 0)
        seen = n


def ids_of(db: Database, query: str) -> list[int]:
    return sorted(row[0] for d in db.results(query) for row in d.fetchall())


def test_every_row_is_everywhere_once_whatever_happens_at_the_same_time(busy: Database) -> None:
    busy.sql("CREATE CONTINUOUS QUERY steady AS SELECT id FROM s")
    busy.sql("CREATE CONTINUOUS QUERY paused AS SELECT id, k FROM s")
    busy.sql("CREATE CONTINUOUS VIEW whole AS SELECT count(*) AS n, sum(id) AS ids FROM s")
    busy.sql(
        "CREATE CONTINUOUS QUERY held AS SELECT count(*) AS n, sum(id) AS ids FROM h [LANDMARK] SAMPLE ROWS 25"
    )
    busy.sql("INSERT INTO kept SELECT id FROM s")
    work: list[Callable[[], None]] = [lambda n=n: writer(busy, n) for n in range(WRITERS)]  # type: ignore[misc]
    work += [lambda: toggler(busy), lambda: comer(busy), lambda: deleter(busy), lambda: reader(busy)]
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(one) for one in work]:
            done.result(PATIENCE)
    busy.drain()
    rows = written("s")
    assert ids_of(busy, "steady") == rows
    assert ids_of(busy, "paused") == rows
    for query in ("steady", "paused"):
        assert [d.sequence for d in busy.results(query)] == list(range(1, len(busy.results(query)) + 1))
    assert busy.sql("SELECT * FROM whole").fetchall() == [(len(rows), sum(rows))]
    assert sorted(i for (i,) in busy.sql("SELECT id FROM kept").fetchall()) == rows
    for number in range(0, ROUNDS, 2):
        got = ids_of(busy, f"c{number}")
        assert len(set(got)) == len(got), "a row twice"
        assert set(got) <= set(rows)
    # One more answer of what is held: it says what is stored.
    busy.insert("h", [(10_000 + i, 0, 10_000) for i in range(50)])
    busy.drain()
    there = [row[0] for row in stored.rows(busy._lake, "h").values()]
    assert len(set(there)) == len(there)
    assert set(there) <= {*written("h"), *range(10_000, 10_050)}
    assert {i for i in written("h") if i % 100 >= ROUNDS} <= set(there)
    for table in upkeep.tables_of(busy._lake):
        stored._check_statistics(busy._lake, table)
