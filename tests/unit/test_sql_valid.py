"""VALID and OVERLAPS: found in any text, turned into a column and a BETWEEN, or refused and underlined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import StatementError
from millstream.plan.valid import edits
from millstream.sql import parse_one
from millstream.sql.statements import (
    CreateContinuousQuery,
    CreateTable,
    Delete,
    Explain,
    Insert,
    Query,
    Select,
    Statement,
    Update,
    Values,
)


def queries_of(statement: Statement) -> list[Query]:
    match statement:
        case Select() | Explain() if statement.query is not None:
            return [statement.query]
        case CreateTable() if statement.as_query is not None:
            return [statement.as_query]
        case CreateContinuousQuery():
            return [statement.body.query]
        case Insert():
            return [statement.source.query if isinstance(statement.source, Values) else statement.source]
        case Update():
            return [q for _, q in statement.assignments] + ([statement.where] if statement.where else [])
        case Delete() if statement.where is not None:
            return [statement.where]
    raise AssertionError(statement)


def for_spark(query: Query) -> str:
    """The query's text with the edits made, where the time column of every table is `t`."""
    text = query.text
    for span, new in sorted(edits(query, lambda _: "t"), key=lambda e: e[0].start, reverse=True):
        text = text[: span.start] + new + text[span.end :]
    return text


CALLS = [
    ("SELECT VALID(p) FROM p", "SELECT `p`.`t` FROM p"),
    ("SELECT valid ( p ) AS valid FROM p", "SELECT `p`.`t` AS valid FROM p"),
    ("SELECT VALID/* x */(--y\n p) FROM p", "SELECT `p`.`t` FROM p"),
    ("SELECT VALID(`a b`), VALID(main.q) FROM `a b`, q", "SELECT `a b`.`t`, `q`.`t` FROM `a b`, q"),
    ("SELECT VALID(`a``b`) FROM `a``b`", "SELECT `a``b`.`t` FROM `a``b`"),
    ("SELECT VALID(stream) FROM stream", "SELECT `stream`.`t` FROM stream"),
    ("SELECT * FROM p WHERE VALID(p) BETWEEN 1 AND 2", "SELECT * FROM p WHERE `p`.`t` BETWEEN 1 AND 2"),
    (
        "SELECT * FROM p WHERE 5 < VALID(P) AND NOT VALID(p) = 3",
        "SELECT * FROM p WHERE 5 < `P`.`t` AND NOT `p`.`t` = 3",
    ),
    (
        "SELECT 1 FROM p JOIN q ON VALID(p)=VALID(q) GROUP BY VALID(p) HAVING max(VALID(q)) > 1 ORDER BY VALID(p)",
        "SELECT 1 FROM p JOIN q ON `p`.`t`=`q`.`t` GROUP BY `p`.`t` HAVING max(`q`.`t`) > 1 ORDER BY `p`.`t`",
    ),
    ("SELECT date_add(VALID(p), 1), f(1, VALID(p)) FROM p", "SELECT date_add(`p`.`t`, 1), f(1, `p`.`t`) FROM p"),
    ("SELECT EXTRACT(DAY FROM VALID(p)) FROM p", "SELECT EXTRACT(DAY FROM `p`.`t`) FROM p"),
    (
        "SELECT CASE WHEN a THEN VALID(p) ELSE VALID(p) END FROM p",
        "SELECT CASE WHEN a THEN `p`.`t` ELSE `p`.`t` END FROM p",
    ),
    ("FROM p |> EXTEND VALID(p) AS x |> WHERE x > 1", "FROM p |> EXTEND `p`.`t` AS x |> WHERE x > 1"),
    (
        "WITH c AS (SELECT VALID(p) v FROM p) SELECT v FROM c",
        "WITH c AS (SELECT `p`.`t` v FROM p) SELECT v FROM c",
    ),
    ("EXPLAIN SELECT VALID(p) FROM p", "SELECT `p`.`t` FROM p"),
    ("CREATE TABLE x AS SELECT VALID(p) AS v FROM p", "SELECT `p`.`t` AS v FROM p"),
    ("INSERT INTO x SELECT VALID(p) FROM p", "SELECT `p`.`t` FROM p"),
    ("INSERT INTO x VALUES (VALID(p))", "VALUES (`p`.`t`)"),
    ("CREATE CONTINUOUS QUERY q AS SELECT VALID(p) FROM p SAMPLE REALTIME", "SELECT `p`.`t` FROM p"),
    ("DELETE FROM p WHERE VALID(p) < 5", "`p`.`t` < 5"),
    (
        "DELETE FROM p x WHERE a IN (SELECT VALID(q) FROM q) OR VALID(x) > 3",
        "a IN (SELECT `q`.`t` FROM q) OR `x`.`t` > 3",
    ),
]

PERIODS = [
    ("VALID(p) OVERLAPS (1, 2)", "(`p`.`t`  BETWEEN (1) AND ( 2))"),
    ("VALID(p) overlaps Period(1,2)", "(`p`.`t`  BETWEEN (1) AND (2))"),
    ("VALID(p)OVERLAPS(1,2)", "(`p`.`t` BETWEEN (1) AND (2))"),
    (
        "VALID(p) -- c\n OVERLAPS /* ( */ PERIOD -- d\n (1 -- ,\n, 2 -- )\n)",
        "(`p`.`t` -- c\n  BETWEEN (1 -- ,\n) AND ( 2 -- )\n))",
    ),
    (
        "VALID(p) OVERLAPS (f(1, g(2, 3)), array(4, 5)[0])",
        "(`p`.`t`  BETWEEN (f(1, g(2, 3))) AND ( array(4, 5)[0]))",
    ),
    ("VALID(p) OVERLAPS ('a, )', \"(,\")", "(`p`.`t`  BETWEEN ('a, )') AND ( \"(,\"))"),
    (
        "VALID(p) OVERLAPS ((SELECT min(a), 1 FROM u), (SELECT 1))",
        "(`p`.`t`  BETWEEN ((SELECT min(a), 1 FROM u)) AND ( (SELECT 1)))",
    ),
    ("VALID(p) OVERLAPS (a OR b, c AND d)", "(`p`.`t`  BETWEEN (a OR b) AND ( c AND d))"),
    ("VALID(p) OVERLAPS (VALID(q) - 5, VALID(q) + 5)", "(`p`.`t`  BETWEEN (`q`.`t` - 5) AND ( `q`.`t` + 5))"),
    (
        "VALID(p) OVERLAPS (VALID(q), CASE WHEN VALID(r) OVERLAPS (1, 2) THEN 3 END)",
        "(`p`.`t`  BETWEEN (`q`.`t`) AND ( CASE WHEN (`r`.`t`  BETWEEN (1) AND ( 2)) THEN 3 END))",
    ),
    ("NOT VALID(p) OVERLAPS (1, 2)", "NOT (`p`.`t`  BETWEEN (1) AND ( 2))"),
    ("VALID(p) NOT OVERLAPS (1, 2)", "(`p`.`t` NOT  BETWEEN (1) AND ( 2))"),
    ("x = VALID(p) OVERLAPS (1, 2)", "x = (`p`.`t`  BETWEEN (1) AND ( 2))"),
    ("VALID(p) OVERLAPS (:low, :high) AND VALID(p) > 3", "(`p`.`t`  BETWEEN (:low) AND ( :high)) AND `p`.`t` > 3"),
]

# sqlglot cannot read these, so that only the tokens tell what is in them.
UNREADABLE = "!! !! AND "


@pytest.mark.parametrize(("sql", "expected"), CALLS)
def test_valid_becomes_the_time_column(sql: str, expected: str) -> None:
    (query,) = queries_of(parse_one(sql))
    assert for_spark(query) == expected


@pytest.mark.parametrize(("predicate", "expected"), PERIODS)
@pytest.mark.parametrize("lead", ["", UNREADABLE])
def test_overlaps_becomes_between(predicate: str, expected: str, lead: str) -> None:
    (query,) = queries_of(parse_one(f"SELECT * FROM p WHERE {lead}{predicate}"))
    assert (query.tree is None) == bool(lead)
    assert for_spark(query) == f"SELECT * FROM p WHERE {lead}{expected}"


@pytest.mark.parametrize(("predicate", "expected"), PERIODS)
def test_overlaps_works_in_update_and_delete(predicate: str, expected: str) -> None:
    (where,) = queries_of(parse_one(f"DELETE FROM p WHERE {predicate}"))
    assert for_spark(where) == expected
    one, two, where = queries_of(parse_one(f"UPDATE p SET a = {predicate}, b = VALID(p) WHERE {predicate}"))
    assert [for_spark(q) for q in (one, two, where)] == [expected, "`p`.`t`", expected]


@pytest.mark.parametrize("sql", [sql for sql, _ in CALLS])
def test_spans_of_valid_cover_the_call_and_its_name(sql: str) -> None:
    (query,) = queries_of(parse_one(sql))
    for valid in query.valids:
        call = query.text[valid.span.start : valid.span.end]
        assert call.upper().startswith("VALID")
        assert call.endswith(")")
        name = query.text[valid.name.span.start : valid.name.span.end].removeprefix("main.")
        assert name.strip("`").replace("``", "`") == valid.name.text


ATOMS = st.sampled_from(
    [
        "1",
        "a",
        "'x'",
        "'(,)'",
        '"),("',
        "`,(`",
        "NULL",
        "TIMESTAMP '2024-01-01'",
        "INTERVAL '5' MINUTE",
        ":p",
        "/*,(*/ 2",
    ]
)
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda of: f"f({', '.join(of)})"),
        st.tuples(inner, inner).map(lambda of: f"({of[0]} + {of[1]})"),
        st.tuples(inner, inner).map(lambda of: f"{of[0]} - {of[1]}"),
        inner.map(lambda of: f"(SELECT a, {of} FROM u)"),
        inner.map(lambda of: f"CASE WHEN {of} THEN 1 END"),
        inner.map(lambda of: f"(VALID(q) OVERLAPS ({of}, 7))"),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS, EXPRESSIONS, st.booleans())
def test_any_two_expressions_can_be_the_bounds(low: str, high: str, readable: bool) -> None:
    lead = "" if readable else UNREADABLE
    (query,) = queries_of(parse_one(f"SELECT * FROM p WHERE {lead}VALID(p) OVERLAPS ({low}, {high})"))
    (low_query,) = queries_of(parse_one(f"SELECT {low}"))
    (high_query,) = queries_of(parse_one(f"SELECT {high}"))
    low_text, high_text = (for_spark(q).removeprefix("SELECT ") for q in (low_query, high_query))
    assert for_spark(query) == f"SELECT * FROM p WHERE {lead}(`p`.`t`  BETWEEN ({low_text}) AND ( {high_text}))"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT valid, t.valid, 'VALID(p)', \"VALID(p)\" FROM t",
        "SELECT `VALID(p)`, `valid`(p) FROM t -- VALID(p)",
        "SELECT a /* VALID(p) */ AS valid FROM valid",
        "SELECT * FROM t valid (a)",
        "SELECT * FROM t AS valid (a, b)",
        "SELECT * FROM (SELECT 1) valid (a)",
        "WITH valid (a) AS (SELECT 1) SELECT * FROM valid",
        "WITH x AS (SELECT 1), valid (a, b) AS (SELECT 1, 2) SELECT * FROM valid",
        "SELECT s.valid(p) FROM t s",
        "SELECT invalid(p), valid_(p) FROM t",
        "SELECT overlaps, t.overlaps, a AS overlaps FROM t",
        "SELECT a overlaps FROM t",
        "SELECT * FROM t overlaps (a, b)",
        "SELECT * FROM (SELECT 1, 2) AS overlaps (a, b)",
        "WITH overlaps (a, b) AS (SELECT 1, 2) SELECT * FROM overlaps",
        "SELECT 'x OVERLAPS (1, 2)' FROM t -- x OVERLAPS (1, 2)",
    ],
)
def test_what_is_only_called_like_it_stays_as_it_is(sql: str) -> None:
    (query,) = queries_of(parse_one(sql))
    assert query.valids == ()


def test_a_column_may_be_called_overlaps_behind_valid() -> None:
    (query,) = queries_of(parse_one("SELECT VALID(p) overlaps, VALID(p) AS overlaps FROM p"))
    assert for_spark(query) == "SELECT `p`.`t` overlaps, `p`.`t` AS overlaps FROM p"


REFUSED = [
    ("SELECT VALID() FROM p", "WRONG_ARITY", "VALID()"),
    ("SELECT VALID(p, q) FROM p, q", "WRONG_ARITY", "VALID(p, q)"),
    ("SELECT a, valid (f(a, b), 1) FROM p", "WRONG_ARITY", "valid (f(a, b), 1)"),
    ("SELECT VALID(5) FROM p", "WRONG_ARITY", "VALID(5)"),
    ("SELECT VALID('p') FROM p", "WRONG_ARITY", "VALID('p')"),
    ("SELECT VALID(*) FROM p", "WRONG_ARITY", "VALID(*)"),
    ("SELECT VALID(p.*) FROM p", "WRONG_ARITY", "VALID(p.*)"),
    ("SELECT VALID(p + 1) FROM p", "WRONG_ARITY", "VALID(p + 1)"),
    ("SELECT VALID((p)) FROM p", "WRONG_ARITY", "VALID((p))"),
    ("SELECT VALID(SELECT 1) FROM p", "WRONG_ARITY", "VALID(SELECT 1)"),
    ("DELETE FROM p WHERE a AND VALID(p, q) > 3", "WRONG_ARITY", "VALID(p, q)"),
    ("UPDATE p SET a = 1, b = VALID()", "WRONG_ARITY", "VALID()"),
    ("SELECT VALID(p.t) FROM p", "UNKNOWN_TABLE", "p.t"),
    ("SELECT VALID(a.main.p) FROM p", "UNKNOWN_TABLE", "a.main.p"),
    ("SELECT 1 FROM p WHERE VALID(p) OVERLAPS (1)", "INVALID_ARGUMENT", "OVERLAPS (1)"),
    ("SELECT 1 FROM p WHERE VALID(p) OVERLAPS ()", "INVALID_ARGUMENT", "OVERLAPS ()"),
    ("SELECT 1 FROM p WHERE VALID(p) OVERLAPS (1, )", "INVALID_ARGUMENT", "OVERLAPS (1, )"),
    ("SELECT 1 FROM p WHERE VALID(p) OVERLAPS (, 1)", "INVALID_ARGUMENT", "OVERLAPS (, 1)"),
    (
        "SELECT 1 FROM p WHERE VALID(p) OVERLAPS PERIOD (1, 2, f(3))",
        "INVALID_ARGUMENT",
        "OVERLAPS PERIOD (1, 2, f(3))",
    ),
    (
        "SELECT 1 FROM p WHERE VALID(p) OVERLAPS (SELECT a, b FROM u)",
        "INVALID_ARGUMENT",
        "OVERLAPS (SELECT a, b FROM u)",
    ),
    ("SELECT 1 FROM p WHERE VALID(p) OVERLAPS 5", "INVALID_ARGUMENT", "OVERLAPS"),
    ("SELECT 1 FROM p, q WHERE VALID(p) OVERLAPS VALID(q)", "INVALID_ARGUMENT", "OVERLAPS"),
    ("SELECT 1 FROM p WHERE a OVERLAPS (1, 2)", "INVALID_ARGUMENT", "OVERLAPS"),
    ("SELECT 1 FROM p WHERE (1, 2) OVERLAPS (3, 4)", "INVALID_ARGUMENT", "OVERLAPS"),
    ("SELECT 1 FROM p WHERE (1, 2) OVERLAPS VALID(p)", "INVALID_ARGUMENT", "OVERLAPS"),
    (
        "SELECT 1 FROM p WHERE VALID(p) OVERLAPS (1, 2) AND p.overlaps = 3 AND a overlaps (3, 4)",
        "INVALID_ARGUMENT",
        "overlaps",
    ),
    ("SELECT 1 FROM p WHERE 1 + VALID(p) OVERLAPS (1, 2)", "INVALID_ARGUMENT", "OVERLAPS"),
    ("DELETE FROM p WHERE a OVERLAPS (1, 2)", "INVALID_ARGUMENT", "OVERLAPS"),
]


@pytest.mark.parametrize(("sql", "condition", "at"), REFUSED)
def test_a_wrong_use_is_refused_underlined_and_hinted(sql: str, condition: str, at: str) -> None:
    with pytest.raises(StatementError) as caught:
        parse_one(sql)
    error = caught.value
    assert error.condition == condition
    assert error.span is not None
    assert error.text == sql
    assert sql[error.span.start : error.span.end] == at
    assert error.span.start == sql.rindex(at)
    assert error.hint is not None
    assert "VALID(p)" in error.hint


def test_wrong_bounds_are_refused_where_only_tokens_tell() -> None:
    with pytest.raises(StatementError) as caught:
        parse_one(f"SELECT 1 FROM p WHERE {UNREADABLE} VALID(p) OVERLAPS (1, 2, 3)")
    assert caught.value.condition == "INVALID_ARGUMENT"
