"""Queries: the user's text untouched, with exact spans for what is spliced."""

from __future__ import annotations

import pytest
from sqlglot import exp

from millstream.errors import StatementError
from millstream.schema import Duration
from millstream.sql import parse_one
from millstream.sql.cursor import Cursor
from millstream.sql.dialect import tokenize
from millstream.sql.scan import scan_tables
from millstream.sql.statements import CreateContinuousQuery, Insert, Query, Select, TableReference, WindowKind


def query_of(sql: str) -> Query:
    statement = parse_one(sql)
    assert isinstance(statement, Select)
    return statement.query


def spelt(query: Query) -> list[tuple[str, str, str | None, list[str]]]:
    """Each table: its name, the text under its span, its alias, and the stretches to cut."""
    return [
        (t.name, query.text[t.span.start : t.span.end], t.alias, [query.text[e.start : e.end] for e in t.extra])
        for t in query.tables
    ]


PLAIN = [
    ("SELECT 1", []),
    ("SELECT a FROM t", [("t", "t", None)]),
    ("SELECT a FROM main.t AS x, `weird name` y", [("t", "main.t", "x"), ("weird name", "`weird name`", "y")]),
    ("SELECT a FROM Main . t", [("t", "Main . t", None)]),
    (
        "SELECT * FROM t JOIN u USING (id) LEFT JOIN w x ON t.a = x.a",
        [("t",) * 2 + (None,), ("u", "u", None), ("w", "w", "x")],
    ),
    ("SELECT * FROM (SELECT * FROM t) x WHERE a IN (SELECT b FROM u)", [("t", "t", None), ("u", "u", None)]),
    (
        "WITH a AS (SELECT * FROM t), b AS (SELECT * FROM a JOIN u) SELECT * FROM b, A",
        [("t", "t", None), ("u", "u", None)],
    ),
    ("SELECT * FROM (t JOIN u ON 1 = 1)", [("t", "t", None), ("u", "u", None)]),
    ("SELECT * FROM range(5) r, t", [("t", "t", None)]),
    ("SELECT * FROM t LATERAL VIEW explode(arr) e AS a, b WHERE a", [("t", "t", None)]),
    ("SELECT EXTRACT(YEAR FROM ts), TRIM(BOTH 'x' FROM a) FROM t WHERE a IS DISTINCT FROM b", [("t", "t", None)]),
    ("(SELECT 1 FROM a) UNION ALL (SELECT 2 FROM b) ORDER BY 1", [("a", "a", None), ("b", "b", None)]),
    ("FROM t SELECT a", [("t", "t", None)]),
    ("TABLE t", [("t", "t", None)]),
    ("VALUES (1, 'FROM t'), (2, 'b')", []),
    ("SELECT * FROM t TABLESAMPLE (10 PERCENT)", [("t", "t", None)]),
    ("SELECT * FROM t a JOIN LATERAL (SELECT * FROM u WHERE u.a = a.a)", [("t", "t", "a"), ("u", "u", None)]),
    ("SELECT * FROM a LEFT SEMI JOIN b ON a.x = b.x", [("a", "a", None), ("b", "b", None)]),
    ("SELECT /* FROM x */ 'FROM y' FROM t -- FROM z", [("t", "t", None)]),
    ("SELECT * FROM TUMBLE(s, t, INTERVAL 60)", [("s", "s", None)]),
    (
        "SELECT * FROM HOP(main.s, t, INTERVAL 5, INTERVAL 3) JOIN u ON true",
        [("s", "main.s", None), ("u", "u", None)],
    ),
    ("SELECT * FROM SESSION(TABLE s, DESCRIPTOR(t), INTERVAL '5' MINUTE) w", [("s", "s", None)]),
]


@pytest.mark.parametrize(("sql", "expected"), PLAIN)
def test_base_tables_are_found_with_exact_spans(sql: str, expected: list[tuple[str, str, str | None]]) -> None:
    query = query_of(sql)
    assert query.tree is not None
    assert query.text == sql.split(" -- ")[0]
    assert spelt(query) == [(*row, []) for row in expected]


@pytest.mark.parametrize("sql", [sql for sql, _ in PLAIN])
def test_the_token_scan_finds_the_same_tables_as_the_tree(sql: str) -> None:
    query = query_of(sql)
    scanned = scan_tables(Cursor(query.text, tokenize(query.text)))
    assert tuple(scanned.tables) == query.tables


WINDOWED = [
    ("SELECT * FROM s [INTERVAL '5' MINUTE] AS x", WindowKind.INTERVAL, Duration(300_000_000), None, ()),
    ("SELECT * FROM s AS x [INTERVAL '5' MINUTE]", WindowKind.INTERVAL, Duration(300_000_000), None, ()),
    ("SELECT * FROM s x[INTERVAL 300]", WindowKind.INTERVAL, Duration(300, is_number=True), None, ()),
    ("SELECT * FROM s [ROWS 1000] x", WindowKind.ROWS, None, 1000, ()),
    ("SELECT * FROM s [PARTITION BY vid ROWS 4] x", WindowKind.PARTITION, None, 4, ("vid",)),
    ("SELECT * FROM s [partition  by vid, `a b` rows 4] x", WindowKind.PARTITION, None, 4, ("vid", "a b")),
    ("SELECT * FROM s [vid ROWS 4] x WHERE m['a'] = arr[1]", WindowKind.PARTITION, None, 4, ("vid",)),
    ("SELECT * FROM s [LANDMARK] x", WindowKind.LANDMARK, None, None, ()),
    (
        "SELECT * FROM s [LANDMARK RESET INTERVAL '1' DAY] x",
        WindowKind.LANDMARK,
        Duration(86_400_000_000),
        None,
        (),
    ),
    ("SELECT * FROM u y JOIN s [ROWS 3] x ON x.a = y.a JOIN w ON true", WindowKind.ROWS, None, 3, ()),
]


@pytest.mark.parametrize(("sql", "kind", "length", "rows", "keys"), WINDOWED)
def test_windows_stand_behind_a_stream_before_or_after_its_alias(
    sql: str, kind: WindowKind, length: Duration | None, rows: int | None, keys: tuple[str, ...]
) -> None:
    query = query_of(sql)
    table = next(t for t in query.tables if t.name == "s")
    assert table.alias == "x"
    window = table.window
    assert window is not None
    assert (window.kind, window.length, window.rows, window.partition_by) == (kind, length, rows, keys)
    assert table.extra == (window.span,)
    cut = query.text[window.span.start : window.span.end]
    assert cut == sql[sql.index("[") : sql.index("]") + 1]
    assert query.tree is not None
    assert "[" not in query.tree.find(exp.Table).sql("spark")  # type: ignore[union-attr]


@pytest.mark.parametrize("sql", [row[0] for row in WINDOWED])
def test_the_token_scan_reads_windows_as_the_tree_does(sql: str) -> None:
    query = query_of(sql)
    assert tuple(scan_tables(Cursor(sql, tokenize(sql))).tables) == query.tables


AS_OF = [
    ("SELECT * FROM t AS OF VERSION 3", 3, None, "AS OF VERSION 3", None),
    ("SELECT * FROM t AS OF VERSION 3 x WHERE a > 1", 3, None, "AS OF VERSION 3", "x"),
    ("SELECT * FROM t x AS OF VERSION 3 WHERE a > 1", 3, None, "AS OF VERSION 3", "x"),
    ("SELECT * FROM t VERSION AS OF 3 AS x", 3, None, "VERSION AS OF 3", "x"),
    ("SELECT * FROM t VERSION AS OF '3'", 3, None, "VERSION AS OF '3'", None),
    ("SELECT * FROM t FOR VERSION AS OF 3", 3, None, "FOR VERSION AS OF 3", None),
    ("SELECT * FROM t TIMESTAMP AS OF '2024-01-01'", None, "2024-01-01", "TIMESTAMP AS OF '2024-01-01'", None),
    ("SELECT * FROM t AS OF TIMESTAMP '2024-01-01'", None, "2024-01-01", "AS OF TIMESTAMP '2024-01-01'", None),
    (
        "SELECT * FROM t FOR SYSTEM_TIME AS OF TIMESTAMP 'x'",
        None,
        "x",
        "FOR SYSTEM_TIME AS OF TIMESTAMP 'x'",
        None,
    ),
    ("SELECT * FROM t WHERE a > 1 ORDER BY a LIMIT 5 AS OF VERSION 3", 3, None, "AS OF VERSION 3", None),
    ("SELECT * FROM (SELECT * FROM t) AS OF VERSION 3", 3, None, "AS OF VERSION 3", None),
    ("SELECT * FROM t GROUP BY a HAVING a FOR VERSION AS OF 3", 3, None, "FOR VERSION AS OF 3", None),
]


@pytest.mark.parametrize(("sql", "version", "timestamp", "cut", "alias"), AS_OF)
def test_every_spelling_of_time_travel_is_read_and_cut(
    sql: str, version: int | None, timestamp: str | None, cut: str, alias: str | None
) -> None:
    query = query_of(sql)
    (table,) = query.tables
    assert table.as_of is not None
    assert (table.as_of.version, table.as_of.timestamp, table.alias) == (version, timestamp, alias)
    assert spelt(query) == [("t", "t", alias, [cut])]


def test_a_trailing_as_of_is_for_every_table_without_one_and_cut_once() -> None:
    query = query_of(
        "SELECT a FROM t VERSION AS OF 2, main.u WHERE a IN (SELECT b FROM w) AS OF TIMESTAMP '2024-01-01'"
    )
    assert [t.as_of and (t.as_of.version, t.as_of.timestamp) for t in query.tables] == [
        (2, None),
        (None, "2024-01-01"),
        (None, "2024-01-01"),
    ]
    assert [row[3] for row in spelt(query)] == [
        ["VERSION AS OF 2", "AS OF TIMESTAMP '2024-01-01'"],
        [],
        [],
    ]


def test_of_and_version_are_still_names() -> None:
    assert spelt(query_of("SELECT a AS OF FROM t version WHERE version.x > 1")) == [("t", "t", "version", [])]


def test_a_window_clause_is_for_the_whole_query_and_is_cut() -> None:
    query = query_of("SELECT count(*) FROM s, t WHERE a = 1 WINDOW INTERVAL '1' MINUTE")
    assert query.window is not None
    assert query.window.length == Duration(60_000_000)
    assert [row[3] for row in spelt(query)] == [["WINDOW INTERVAL '1' MINUTE"], []]


def test_named_windows_of_spark_are_left_alone() -> None:
    query = query_of("SELECT sum(a) OVER w FROM s WINDOW w AS (PARTITION BY b)")
    assert query.window is None
    assert query.tables[0].extra == ()


@pytest.mark.parametrize(
    ("sql", "condition", "at"),
    [
        (
            "SELECT * FROM (SELECT * FROM s WINDOW INTERVAL '1' MINUTE) x",
            "SYNTAX_ERROR",
            "WINDOW INTERVAL '1' MINUTE",
        ),
        ("SELECT 1 AS OF VERSION 3", "SYNTAX_ERROR", "AS OF VERSION 3"),
        ("SELECT 1 WINDOW ROWS 3", "SYNTAX_ERROR", "WINDOW ROWS 3"),
        ("SELECT * FROM s [FOO]", "SYNTAX_ERROR", "]"),
        ("SELECT * FROM s []", "SYNTAX_ERROR", "]"),
        ("SELECT * FROM s [ROWS 0]", "INVALID_ARGUMENT", "0"),
        ("SELECT * FROM s [ROWS 1] [ROWS 2]", "SYNTAX_ERROR", "[ROWS 2]"),
        ("SELECT * FROM s AS OF VERSION 1 AS OF VERSION 2", "SYNTAX_ERROR", "AS OF VERSION 2"),
        ("SELECT * FROM s AS OF VERSION x", "SYNTAX_ERROR", "x"),
        ("SELECT * FROM s AS OF TIMESTAMP now()", "SYNTAX_ERROR", "now"),
        ("SELECT * FROM s [INTERVAL '0' SECOND]", "INVALID_INTERVAL", "INTERVAL '0' SECOND"),
        ("SELECT * FROM s [INTERVAL '1' MONTH]", "INVALID_INTERVAL", "MONTH"),
        ("SELECT * FROM other.t", "UNKNOWN_TABLE", "other.t"),
        ("SELECT * FROM a.main.t", "UNKNOWN_TABLE", "a.main.t"),
        ("SELECT (1 + (2)", "SYNTAX_ERROR", "("),
        ("SELECT 1) + 2", "SYNTAX_ERROR", ")"),
        ("SELECT a[1) FROM t", "SYNTAX_ERROR", ")"),
        ("SELECT a FROM s SAMPLE REALTIME", "SYNTAX_ERROR", "SAMPLE"),
        ("SELECT a FROM s EMIT CHANGES", "SYNTAX_ERROR", "EMIT"),
        ("SELECT a\0 FROM t", "SYNTAX_ERROR", "\0"),
        ("SELECT '\ud800'", "SYNTAX_ERROR", "\ud800"),
        ("SELECT X'zz'", "SYNTAX_ERROR", "X"),
        ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", "NOT_SUPPORTED", "WITH"),
        ("FROM t INSERT INTO u SELECT *", "NOT_SUPPORTED", "FROM"),
    ],
)
def test_what_is_refused_in_a_query_is_underlined(sql: str, condition: str, at: str) -> None:
    with pytest.raises(StatementError) as caught:
        parse_one(sql)
    error = caught.value
    assert error.condition.value == condition
    assert error.span is not None
    assert sql[error.span.start : error.span.end] == at
    assert error.hint


def test_spans_inside_a_statement_are_offsets_into_the_query() -> None:
    sql = "CREATE CONTINUOUS QUERY q AS\n  SELECT max(a) FROM main.s [ROWS 5] x SAMPLE REALTIME"
    statement = parse_one(sql)
    assert isinstance(statement, CreateContinuousQuery)
    query = statement.body.query
    assert query.text == "SELECT max(a) FROM main.s [ROWS 5] x"
    assert sql[query.offset : query.offset + len(query.text)] == query.text
    assert spelt(query) == [("s", "main.s", "x", ["[ROWS 5]"])]
    assert [query.text[f.span.start : f.span.end] for f in query.functions] == ["max"]
    assert query.tree is not None
    column = query.tree.find(exp.Column)
    assert column is not None
    assert query.text[column.this.meta["start"] : column.this.meta["end"] + 1] == "a"


def test_errors_inside_a_query_point_into_the_statement() -> None:
    sql = "CREATE VIEW v AS SELECT * FROM s [ROWS 0]"
    with pytest.raises(StatementError) as caught:
        parse_one(sql)
    assert caught.value.span is not None
    assert sql[caught.value.span.start : caught.value.span.end] == "0"


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT count(*), Max(a) FROM t", ["count", "Max"]),
        (
            "SELECT struct(1), array(2), map(3, 4), date('x'), cast(a AS DECIMAL(3, 1)) FROM t",
            ["struct", "array", "map", "date", "cast"],
        ),
        ("SELECT `my fn`(1), PREV(seg), VALID(p) FROM t p", ["my fn", "PREV", "VALID"]),
        (
            "WITH c (a, b) AS (SELECT 1, 2) SELECT a FROM c x(p, q) WHERE a IN (1) AND (b) AND EXISTS (SELECT 1)",
            [],
        ),
        (
            "SELECT sum(a) OVER (PARTITION BY b), count(*) FILTER (WHERE a > 1) FROM range(3)",
            ["sum", "count", "range"],
        ),
        ("SELECT 'f(x)' /* g(y) */", []),
    ],
)
def test_functions_are_listed_with_their_spans(sql: str, names: list[str]) -> None:
    query = query_of(sql)
    assert [f.text for f in query.functions] == names
    assert [query.text[f.span.start : f.span.end].strip("`") for f in query.functions] == names


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT a:b.c FROM t, u AS x", [("t", "t", None, []), ("u", "u", "x", [])]),
        (
            "SELECT ??? FROM s [ROWS 5] x JOIN v AS OF VERSION 3 ON",
            [("s", "s", "x", ["[ROWS 5]"]), ("v", "v", None, ["AS OF VERSION 3"])],
        ),
        ("WITH c AS (SELECT 1) SELECT ~~ FROM c, main.d", [("d", "main.d", None, [])]),
        ("SELECT !! !! FROM t WHERE b = 1 AS OF VERSION 3", [("t", "t", None, ["AS OF VERSION 3"])]),
        ("SELECT !! !! FROM TUMBLE(TABLE s, x)", [("s", "s", None, [])]),
        ("SELECT * FORM t", []),
    ],
)
def test_what_sqlglot_cannot_read_goes_to_spark_without_a_tree(
    sql: str, tables: list[tuple[str, str, str | None, list[str]]]
) -> None:
    query = query_of(sql)
    assert query.tree is None
    assert query.text == sql
    assert spelt(query) == tables


def test_names_in_hints_are_not_tables() -> None:
    assert spelt(query_of("SELECT /*+ BROADCAST(u) */ * FROM t JOIN u ON t.a = u.a")) == [
        ("t", "t", None, []),
        ("u", "u", None, []),
    ]


def test_a_cte_that_shadows_a_table_reads_the_table_inside() -> None:
    query = query_of("WITH t AS (SELECT * FROM t) SELECT * FROM t")
    assert [t.span.start for t in query.tables] == [query.text.index("FROM t") + 5]


def test_a_recursive_cte_does_not_read_a_table() -> None:
    sql = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r"
    assert query_of(sql).tables == ()


def test_pipe_syntax_gives_the_written_tables() -> None:
    assert spelt(query_of("FROM t |> WHERE a > 1 |> JOIN u ON t.a = u.a |> SELECT b")) == [
        ("t", "t", None, []),
        ("u", "u", None, []),
    ]


def test_identifiers_keep_their_case_even_if_they_are_keywords() -> None:
    query = query_of("SELECT Row, Date FROM Index")
    assert query.tables == (TableReference("Index", query.tables[0].span),)
    assert query.tree is not None
    assert [c.name for c in query.tree.find_all(exp.Column)] == ["Row", "Date"]


def test_doubled_quotes_inside_strings_are_quotes() -> None:
    query = query_of("""SELECT 'it''s', "x""y" """)
    assert query.tree is not None
    assert [x.this for x in query.tree.find_all(exp.Literal)] == ["it's", 'x"y']


def test_nested_struct_calls_take_linear_time() -> None:
    assert query_of(f"SELECT {'struct(' * 30}1{')' * 30}").tree is not None


def test_parameters_survive() -> None:
    query = query_of("SELECT * FROM t WHERE a = :x AND b = ?")
    assert query.tree is not None
    assert [p.this for p in query.tree.find_all(exp.Placeholder)] == ["x", None]
    statement = parse_one("INSERT INTO t VALUES (:a, 1)")
    assert isinstance(statement, Insert)


def test_overlaps_and_valid_are_read() -> None:
    query = query_of("SELECT * FROM t p WHERE VALID(p) OVERLAPS (5400, 5700)")
    assert query.tree is not None
    assert query.tree.find(exp.Overlaps) is not None
