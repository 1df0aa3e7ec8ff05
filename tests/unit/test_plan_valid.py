"""VALID: which table a name means, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.catalog.records import StreamTime, TableInfo
from millstream.errors import StatementError
from millstream.plan import valid
from millstream.schema import Column, Duration, ObjectKind, Schema
from millstream.sql import parse_one
from millstream.sql.statements import Delete, Query, Select


def table(name: str) -> TableInfo:
    """A streaming table whose time column is called after it; names in `plain` are tables."""
    schema = Schema((Column(f"{name}_time", pa.int64()),))
    if name.startswith("plain"):
        return TableInfo(1, name, ObjectKind.TABLE, schema, (1,), name, 1)
    time = StreamTime(f"{name}_time", Duration(0, is_number=True))
    kind = ObjectKind.STREAM if name.startswith("stream") else ObjectKind.STREAMING_TABLE
    return TableInfo(1, name, kind, schema, (1,), name, 1, time)


def columns_of(query: Query, target: tuple[str, TableInfo] | None = None) -> list[str]:
    tables = [table(r.name) for r in query.tables]
    return [valid.resolved(query, v, tables, target) for v in query.valids]


def query_of(sql: str) -> Query:
    statement = parse_one(sql)
    assert isinstance(statement, Select)
    return statement.query


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT VALID(p) FROM p", ["p_time"]),
        ("SELECT VALID(X), VALID(q) FROM p x, main.q", ["p_time", "q_time"]),
        ("SELECT VALID(`a b`) FROM p AS `A B`", ["p_time"]),
        ("SELECT VALID(main.p) FROM p", ["p_time"]),
        ("SELECT 1 FROM p JOIN q x ON VALID(p) = VALID(x)", ["p_time", "q_time"]),
        (
            "SELECT VALID(p), VALID(q), VALID(r) FROM (p JOIN (q JOIN r ON true) ON true)",
            ["p_time", "q_time", "r_time"],
        ),
        ("SELECT VALID(x) FROM p x WHERE a IN (SELECT VALID(x) FROM q x)", ["p_time", "q_time"]),
        ("SELECT * FROM p WHERE EXISTS (SELECT 1 FROM q WHERE VALID(q) > VALID(p))", ["q_time", "p_time"]),
        ("SELECT (SELECT VALID(p)) FROM p", ["p_time"]),
        ("SELECT * FROM p, LATERAL (SELECT VALID(p) FROM q)", ["p_time"]),
        ("SELECT VALID(x) FROM p x UNION ALL SELECT VALID(x) FROM q x", ["p_time", "q_time"]),
        ("WITH c AS (SELECT VALID(p) AS v FROM q p) SELECT v, VALID(p) FROM c, p", ["q_time", "p_time"]),
        ("SELECT VALID(p) FROM p JOIN (SELECT VALID(x) FROM q x) AS z ON true", ["p_time", "q_time"]),
        ("SELECT VALID(p) FROM p LATERAL VIEW explode(array(1)) e AS a", ["p_time"]),
        ("SELECT VALID(x) FROM p TABLESAMPLE (5 PERCENT) x", ["p_time"]),
        ("SELECT VALID(p) FROM p [ROWS 5]", ["p_time"]),
        ("FROM p |> EXTEND VALID(p) AS x |> WHERE VALID(p) > 3", ["p_time", "p_time"]),
        ("SELECT ???, VALID(x), VALID(q) FROM p x, q", ["p_time", "q_time"]),
        ("SELECT ??? FROM p x WHERE VALID(x) AND a IN (SELECT VALID(x) FROM p x)", ["p_time", "p_time"]),
    ],
)
def test_a_name_means_the_nearest_table_that_has_it(sql: str, columns: list[str]) -> None:
    query = query_of(sql)
    assert (query.tree is None) == ("???" in sql)
    assert columns_of(query) == columns


@pytest.mark.parametrize(
    ("where", "columns"),
    [
        ("VALID(p) > 3", ["p_time"]),
        ("VALID(P) > 3 AND a IN (SELECT VALID(q) FROM q)", ["p_time", "q_time"]),
        ("EXISTS (SELECT 1 FROM q p WHERE VALID(p) > 3)", ["q_time"]),
        ("EXISTS (SELECT 1 FROM q WHERE VALID(q) > VALID(p))", ["q_time", "p_time"]),
    ],
)
def test_in_a_fragment_the_changed_table_comes_last(where: str, columns: list[str]) -> None:
    statement = parse_one(f"DELETE FROM p WHERE {where}")
    assert isinstance(statement, Delete)
    assert statement.where is not None
    assert columns_of(statement.where, ("p", table("p"))) == columns


REFUSED = [
    ("SELECT VALID(q) FROM p", "UNKNOWN_TABLE", "q", None),
    ("SELECT VALID(posreport) FROM posreports", "UNKNOWN_TABLE", "posreport", "'posreports'"),
    ("SELECT VALID(p) FROM p x", "UNKNOWN_TABLE", "p", "alias"),
    ("SELECT a FROM p UNION SELECT a FROM q ORDER BY VALID(p)", "UNKNOWN_TABLE", "p", None),
    ("WITH c AS (SELECT VALID(p) FROM q) SELECT * FROM p, c", "UNKNOWN_TABLE", "p", None),
    ("SELECT * FROM p, (SELECT VALID(p) FROM q)", "UNKNOWN_TABLE", "p", None),
    ("SELECT VALID(plain) FROM plain", "WRONG_KIND", "plain", "column"),
    ("SELECT VALID(main.x) FROM plain_one x", "WRONG_KIND", "main.x", "column"),
    ("SELECT VALID(stream_s) FROM stream_s", "WRONG_KIND", "stream_s", "column"),
    ("SELECT VALID(x) FROM (SELECT * FROM p) x", "WRONG_KIND", "x", "column"),
    ("WITH c AS (SELECT * FROM p) SELECT VALID(c) FROM c", "WRONG_KIND", "c", "column"),
    ("SELECT VALID(r) FROM range(5) r", "WRONG_KIND", "r", "column"),
    ("SELECT VALID(e) FROM p LATERAL VIEW explode(a) e AS b", "WRONG_KIND", "e", "column"),
    ("SELECT VALID(v) FROM VALUES (1) AS v (a)", "WRONG_KIND", "v", "column"),
    ("SELECT ???, VALID(x) FROM p x, (SELECT 1 FROM q x)", "INVALID_ARGUMENT", "x", "alias"),
]


@pytest.mark.parametrize(("sql", "condition", "at", "hint"), REFUSED)
@pytest.mark.parametrize("lead", ["", "EXPLAIN "])
def test_what_has_no_time_is_refused_and_underlined(
    sql: str, condition: str, at: str, hint: str | None, lead: str
) -> None:
    query = parse_one(lead + sql).query  # type: ignore[attr-defined]
    with pytest.raises(StatementError) as caught:
        columns_of(query)
    error = caught.value
    assert error.condition == condition
    assert error.span is not None
    assert (lead + sql)[error.span.start : error.span.end] == at
    assert error.hint is not None
    assert hint is None or hint in error.hint


def test_streaming_tables_are_listed_with_their_time_columns() -> None:
    assert valid.time_columns([table("plain"), table("p"), table("stream_s"), table("q")]) == {
        1: "p_time",
        3: "q_time",
    }
