"""Lookups: simple queries that need no Spark job give what Spark gives, and only simple queries are taken."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream.clock import ManualClock
from millstream.storage import index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millstream.database import Database

START = datetime(2024, 5, 1, tzinfo=UTC)
PARAMETERS: dict[str, Any] = {
    "key": 7,
    "moment": START + timedelta(hours=50),
    "day": date(2024, 5, 3),
    "compact": "20240503",
}
LOOKUPS = [
    "k, s, k WHERE k = 7",
    "k AS key, K, `s` WHERE 5 < k AND k <= 12 AND s >= 's3'",
    "p.s, p.k WHERE p.k IN (1, 2, 39, 1000)",
    "s, i WHERE i BETWEEN -2 AND 99999999999999999999",
    "s, k WHERE at >= TIMESTAMP '2024-05-02 03:00:00' AND VALID(p) < '2024-05-04'",
    "k WHERE d = DATE '2024-05-02' AND s = 's2'",
    "k WHERE d > '2024-05-02' AND (k < 20)",
    "k, at WHERE VALID(p) OVERLAPS ('2024-05-02 00:00:00', '2024-05-03 00:00:00')",
    "added, k WHERE k = 3",
    "k WHERE added = 5",
    "n, f, b WHERE k = :key AND at <= :moment",
    "k WHERE d = :day",
    "s WHERE s = 'nothing'",
]
NOT_LOOKUPS = [
    "k + 1 WHERE k = 7",
    "k WHERE k = 7 OR s = 's1'",
    "k WHERE k = i",
    "k WHERE NOT k = 7",
    "k WHERE k IS NULL",
    "k WHERE k IN (1, NULL)",
    "k WHERE k = 1.5",
    "k WHERE f >= 1",
    "k WHERE n = 3",
    "k WHERE k = 7 ORDER BY k",
    "k WHERE k = 7 LIMIT 1",
    "DISTINCT k WHERE k > 2",
    "count(*) WHERE k > 2",
    "arr WHERE k > 2",
    "* WHERE k > 2",
    "* EXCEPT (arr) WHERE k > 2",
    "k WHERE s LIKE 's1'",
    "k WHERE k = 7 GROUP BY k",
    "k WHERE k BETWEEN 3 AND i",
    "k WHERE k = (SELECT 7)",
]


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A streaming table in files, index copies and inlined rows, partly beyond its period; made once for all."""
    path, clock = tmp_path_factory.mktemp("lookup") / "db", ManualClock(START)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("LEAST_ROWS", 50), ("LEAST_CLOSED_ROWS", 50), ("ROW_GROUP_ROWS", 16)):
            patch.setattr(index, name, value)
        with millstream.connect(path, spark=spark, clock=clock, background=False) as db:
            fill(db)
            yield db


def fill(db: Database) -> None:
    db.sql(
        "CREATE STREAMING TABLE p (k INT, i BIGINT, s STRING, d DATE, n DECIMAL(9,2), f DOUBLE, b BOOLEAN,"
        " arr ARRAY<INT>, at TIMESTAMP) TIMESTAMP BY at RANGE INTERVAL '4' DAY"
    )
    db.insert("p", [row(i) for i in range(1200)])
    db.sql("CREATE INDEX by_k ON p (k) USING BTREE")
    db.sql("CREATE INDEX by_s ON p (s) USING HASH")
    db.drain()
    db.sql("ALTER STREAMING TABLE p ADD COLUMN added INT")
    db.insert("p", [(*row(i), i % 9) for i in range(1200, 1500)])
    db.insert("p", [(*row(1501), 5), (*row(1502), None)])


def row(i: int) -> tuple[Any, ...]:
    at = START + timedelta(minutes=5 * i)
    null = i % 30 == 7
    return (
        None if null else i * 7 % 40,
        None if i % 11 == 3 else i - 5,
        None if null else f"s{i % 10}",
        at.date(),
        Decimal(i) / 4,
        float("nan") if i % 50 == 1 else i / 3,
        i % 2 == 0,
        [i],
        at,
    )


def ask(said: str) -> str:
    columns, _, where = said.partition(" WHERE ")
    return f"SELECT {columns} FROM p WHERE {where}"


def is_lookup(db: Database, text: str) -> bool:
    return "without a Spark job" in db.sql(f"EXPLAIN {text}", **PARAMETERS).fetchall()[0][0]


@pytest.mark.parametrize("said", LOOKUPS)
def test_a_lookup_gives_what_spark_gives(filled: Database, said: str) -> None:
    text = ask(said)
    assert is_lookup(filled, text)
    result = filled.sql(text, **PARAMETERS)
    by_spark = result.to_spark().toArrow()
    found = result.to_arrow()
    assert result.columns == by_spark.column_names
    assert found.schema.equals(by_spark.schema)
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, by_spark.to_pylist()))


@pytest.mark.parametrize("said", NOT_LOOKUPS)
def test_anything_more_is_left_to_spark(filled: Database, said: str) -> None:
    assert not is_lookup(filled, ask(said))


def test_times_in_forms_that_only_python_reads_are_left_to_spark(filled: Database) -> None:
    assert not is_lookup(filled, "SELECT k FROM p WHERE d = '20240503'")
    assert not is_lookup(filled, "SELECT k FROM p WHERE d = :compact")


def test_a_lookup_sees_its_transaction_and_its_version(filled: Database) -> None:
    before = filled.sql("SELECT k FROM p WHERE k = 7").to_arrow().num_rows
    version = filled.sql("SHOW SNAPSHOTS").fetchall()[-1][0]
    filled.sql("BEGIN")
    filled.insert("p", [(*row(1503)[:0], 7, *row(1503)[1:], None)])
    assert filled.sql("SELECT k FROM p WHERE k = 7").to_arrow().num_rows == before + 1
    filled.sql("COMMIT")
    assert filled.sql("SELECT k FROM p WHERE k = 7").to_arrow().num_rows == before + 1
    assert filled.sql(f"SELECT k FROM p AS OF VERSION {version} WHERE k = 7").to_arrow().num_rows == before


def test_a_star_is_every_column(db: Database) -> None:
    db.sql("CREATE TABLE t (a INT, s STRING)")
    db.insert("t", [(1, "x"), (2, "y"), (2, None)])
    for text in ("SELECT * FROM t WHERE a = 2", "SELECT t.*, a FROM t WHERE t.a = 2", "SELECT *, a AS b FROM t"):
        assert is_lookup(db, text)
        result = db.sql(text)
        by_spark = result.to_spark().toArrow()
        assert result.to_arrow().equals(by_spark)


def test_a_lookup_does_not_start_spark(database_path: Path, clock: ManualClock) -> None:
    with millstream.connect(database_path, clock=clock, background=False) as db:
        db.sql("CREATE TABLE t (a INT, s STRING)")
        db.insert("t", [(i, str(i)) for i in range(100)])
        assert db.sql("SELECT s FROM t WHERE a = 42").fetchall() == [("42",)]
        assert not db._engine.spark.started
