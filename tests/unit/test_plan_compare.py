"""Predicates → comparisons: everything they imply about one table, and never more."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from millstream.plan import compare
from millstream.schema import TIMESTAMP, TIMESTAMP_NTZ, Column, Schema
from millstream.sql import parse_one
from millstream.sql.statements import Delete, Select

SCHEMA = Schema((
    Column("t", pa.int64()),
    Column("a", pa.int32()),
    Column("s", pa.string()),
    Column("d", pa.float64()),
    Column("ts", TIMESTAMP),
    Column("n", TIMESTAMP_NTZ),
))  # fmt: skip
BERLIN = datetime(2024, 3, 30, 12, tzinfo=ZoneInfo("Europe/Berlin"))
PARAMETERS: dict[str, Any] = {
    "one": 1, "two": 2, "big": 2**31 - 1, "flag": True, "list": [1, 2], "moment": BERLIN,
    "naive": datetime(2024, 1, 1),  # noqa: DTZ001
}  # fmt: skip


def of_query(sql: str, times: dict[int, str] | None = None) -> list[str]:
    """The comparisons as text, each with the name of the table it is for."""
    statement = parse_one(sql)
    assert isinstance(statement, Select)
    schemas = dict.fromkeys(range(len(statement.query.tables)), SCHEMA)
    found = compare.of_query(statement.query, schemas, PARAMETERS, times)
    tables = statement.query.tables
    return [f"{tables[i].alias or tables[i].name}: {c}" for i in sorted(found) for c in found[i]]


def of_where(where: str, time: str | None = "t") -> list[str]:
    """The same of a predicate on one table, by way of SELECT and of DELETE, which have to agree."""
    deletion = parse_one(f"DELETE FROM p WHERE {where}")
    assert isinstance(deletion, Delete)
    assert deletion.where is not None
    assert deletion.where.tree is not None
    of_delete = [str(c) for c in compare.of_predicate(deletion.where.tree, "p", SCHEMA, True, PARAMETERS, time)]
    of_select = of_query(f"SELECT * FROM p WHERE {where}", {} if time is None else {0: time})
    assert [f"p: {c}" for c in of_delete] == of_select
    return of_delete


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("VALID(p) = 5", ["t = 5"]),
        ("valid(P) >= 5 AND VALID(main.p) < 7", ["t >= 5", "t < 7"]),
        ("5 <= VALID(p)", ["t >= 5"]),
        ("VALID(p) BETWEEN 5 AND 7", ["t >= 5", "t <= 7"]),
        ("6 BETWEEN a AND VALID(p)", ["a <= 6", "t >= 6"]),
        ("VALID(p) BETWEEN 5 AND a", ["t >= 5"]),
        ("VALID(p) OVERLAPS (5, 7)", ["t >= 5", "t <= 7"]),
        ("VALID(p) OVERLAPS PERIOD (7 - 2, 7)", ["t >= 5", "t <= 7"]),
        ("VALID(p) OVERLAPS (a, 7)", ["t <= 7"]),
        ("(((VALID(p) OVERLAPS (:one, :two))) AND a = 3)", ["t >= 1", "t <= 2", "a = 3"]),
        ("VALID(p) IN (1, :two)", ["t IN (1, 2)"]),
        ("VALID(p) = 1 OR VALID(p) = 2", ["t IN (1, 2)"]),
        ("NOT VALID(p) OVERLAPS (5, 7)", []),
        ("VALID(p) NOT OVERLAPS (5, 7)", []),
        ("VALID(q) = 5", []),
        ("`valid`(p) = 5", []),
        ("VALID(p) + 1 = 5", []),
    ],
)
def test_valid_compares_the_time_column(where: str, expected: list[str]) -> None:
    assert of_where(where) == expected


def test_valid_of_a_table_without_time_says_nothing() -> None:
    assert of_where("VALID(p) = 5 AND a = 1", time=None) == ["a = 1"]


def test_valid_is_that_of_the_table_it_names() -> None:
    sql = "SELECT * FROM x p JOIN y q ON true WHERE VALID(q) > 5 AND VALID(p) < 3 AND q.a = 1"
    assert of_query(sql, {0: "t", 1: "a"}) == ["p: t < 3", "q: a > 5", "q: a = 1"]
    assert of_query(sql, {0: "t"}) == ["p: t < 3", "q: a = 1"]


def test_valid_inside_of_a_subquery_means_the_inner_table() -> None:
    sql = "SELECT * FROM x p WHERE VALID(p) > 5 AND EXISTS (SELECT 1 FROM y p WHERE VALID(p) < 3)"
    assert of_query(sql, {0: "t", 1: "a"}) == ["p: t > 5", "p: a < 3"]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("a = 1 OR a = 2", ["a IN (1, 2)"]),
        ("a = 1 OR (2 = a OR a IN (3, :one))", ["a IN (1, 2, 3, 1)"]),
        ("(a = 1 AND s = 'x') OR (a = 2 AND s = 'y')", ["a IN (1, 2)", "s IN (x, y)"]),
        ("(a = 1 AND s = 'x') OR a = 2", ["a IN (1, 2)"]),
        ("(a = 1 OR a = 2) AND s = 'x'", ["a IN (1, 2)", "s = x"]),
        ("a = 1 OR p.a = 2", ["a IN (1, 2)"]),
        ("a = 1 OR t = 2", []),
        ("a = 1 OR a > 2", []),
        ("a = 1 OR a IS NULL", []),
        ("a = 1 OR a = t", []),
        ("a = 1 OR NOT a = 2", []),
        ("a = 1 OR a <=> 2", []),
        ("a IN (:one, :two)", ["a IN (1, 2)"]),
        ("a IN (:one, :missing)", []),
        ("a IN (:list)", []),
        ("a IN (1, t)", []),
        ("a NOT IN (1, 2)", []),
        ("a IN (SELECT 1)", []),
    ],
)
def test_a_choice_of_values_is_an_in(where: str, expected: list[str]) -> None:
    assert of_where(where) == expected


def test_one_floating_constant_makes_a_list_floating() -> None:
    assert of_where("t IN (1, 2e0)") == ["t IN (1.0, 2.0)"]
    assert of_where("t IN (1.00000000000000000000001, 2e0)") == ["t IN (1.0, 2.0)"]
    assert of_where("t IN (9007199254740993, 1e0)") == []


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("t = 7 - 3", ["t = 4"]),
        ("t = 1 - (2 - 3) - 4 + :two", ["t = 0"]),
        ("t = -(1 + 2)", ["t = -3"]),
        ("t < 3000000000 + 1", ["t < 3000000001"]),
        ("t = -2147483648 + 0", ["t = -2147483648"]),
        ("t = 2147483647 + 1", []),
        ("t = :big + :one", []),
        ("t = -2147483648 - 1", []),
        ("t = -(-2147483647 - 1)", []),
        ("t = 9223372036854775807 + 1", []),
        ("t = 9223372036854775808 - 1", []),
        ("t = 1 + 1.5", []),
        ("t = 1 + 1e0", []),
        ("t = '1' + 1", []),
        ("t = 1 + NULL", []),
        ("t = :flag + 1", []),
        ("t = :missing + 1", []),
        ("t = a + 1", []),
        ("t = 2 * 3", []),
        ("t = 5L + 3", []),
    ],
)
def test_whole_numbers_are_added_as_spark_adds_them(where: str, expected: list[str]) -> None:
    assert of_where(where) == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("ts > TIMESTAMP'2024-01-01 00:00:00' - INTERVAL '5' MINUTE", ["ts > 2023-12-31 23:55:00+00:00"]),
        ("ts > TIMESTAMP '2024-01-01' + INTERVAL 2 DAYS - INTERVAL '1' HOUR", ["ts > 2024-01-02 23:00:00+00:00"]),
        ("ts > TIMESTAMP '2024-01-01' + INTERVAL -1 WEEK", ["ts > 2023-12-25 00:00:00+00:00"]),
        ("ts > TIMESTAMP '2024-01-01 00:00:00+02:00' + INTERVAL '1 day'", ["ts > 2024-01-01 22:00:00+00:00"]),
        ("ts > TIMESTAMP '2024-01-01' + INTERVAL 3 MICROSECONDS", ["ts > 2024-01-01 00:00:00.000003+00:00"]),
        ("n > TIMESTAMP_NTZ '2024-01-01' + INTERVAL '1' DAY", ["n > 2024-01-02 00:00:00"]),
        ("ts > :moment + INTERVAL '1' DAY", [f"ts > {datetime(2024, 3, 31, 11, tzinfo=UTC)}"]),
        ("n > :naive + INTERVAL '1' DAY", []),
        ("ts > '2024-01-01' + INTERVAL '1' DAY", []),
        ("ts > DATE '2024-01-01' + INTERVAL '1' DAY", []),
        ("ts > TIMESTAMP '2024-01-01' + INTERVAL '1' MONTH", []),
        ("ts > TIMESTAMP '2024-01-01' + INTERVAL '1.5' SECOND", []),
        ("ts > TIMESTAMP '2024-01-01' + INTERVAL '1 02:00' DAY TO MINUTE", []),
        ("ts > TIMESTAMP '2024-01-01' + INTERVAL 1 DAY 2 HOURS", []),
        ("ts > TIMESTAMP '2024-01-01' + INTERVAL a DAY", []),
        ("ts > TIMESTAMP '2024-01-01' + 1", []),
        ("ts > 1 + INTERVAL '1' DAY", []),
        ("ts > TIMESTAMP '9999-12-31' + INTERVAL '1' DAY", []),
        ("ts > TIMESTAMP '2024-01-01' + INTERVAL '999999999999999999' DAY", []),
        ("ts > TIMESTAMP 'soon' + INTERVAL '1' DAY", []),
        ("ts > now() - INTERVAL '1' DAY", []),
    ],
)
def test_a_timestamp_moves_by_lengths_that_are_fixed(where: str, expected: list[str]) -> None:
    assert of_where(where) == expected


def test_sums_of_any_length_are_no_trouble() -> None:
    assert of_where(f"t = {' + '.join(['1'] * 5000)}") == ["t = 5000"]
    deep = "(1 + " * 250 + "1" + ")" * 250
    statement = parse_one(f"SELECT * FROM p WHERE t = {deep}")
    assert isinstance(statement, Select)
    assert all(str(c) == "t = 251" for c in compare.of_query(statement.query, {0: SCHEMA}, {}).get(0, ()))
