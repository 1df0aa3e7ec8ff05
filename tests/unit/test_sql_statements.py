"""Every statement, as the record it becomes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from millstream.errors import Span, StatementError
from millstream.schema import TIMESTAMP, Column, Duration, ObjectKind
from millstream.sql import parse_one
from millstream.sql import statements as s
from millstream.sql.names import KEYWORDS, check_name

if TYPE_CHECKING:
    from millstream.sql.statements import Query

A = Column("a", pa.int32())
TS = Column("ts", TIMESTAMP)
DAY = Duration(86_400_000_000)
MINUTE = Duration(60_000_000)


def fields(statement: s.Statement) -> dict[str, Any]:
    """The fields of a record that differ from their defaults, names and queries as their text."""
    return {
        key: _plain(value)
        for key in statement.__dataclass_fields__
        if key != "text"
        and not key.endswith("span")
        and (value := getattr(statement, key)) not in (None, False, ())
    }


def _plain(value: Any) -> Any:
    if isinstance(value, s.Name):
        return value.text
    if isinstance(value, s.Query | s.Values):
        return (value.query if isinstance(value, s.Values) else value).text
    if isinstance(value, tuple) and value and isinstance(value[0], s.Name):
        return tuple(v.text for v in value)
    return value


CREATES = [
    ("CREATE TABLE t (a INT, ts TIMESTAMP)", s.CreateTable, {"name": "t", "columns": (A, TS)}),
    ("create table if not exists main.t (a int) comment 'c'", s.CreateTable,
     {"name": "t", "columns": (A,), "if_not_exists": True, "comment": "c"}),
    ("CREATE OR REPLACE TABLE t AS SELECT 1", s.CreateTable,
     {"name": "t", "as_query": "SELECT 1", "or_replace": True}),
    ("CREATE TABLE t COMMENT 'c' AS (SELECT * FROM u)", s.CreateTable,
     {"name": "t", "as_query": "(SELECT * FROM u)", "comment": "c"}),
    ("CREATE TABLE `select` (a INT)", s.CreateTable, {"name": "select", "columns": (A,)}),
    ("CREATE STREAM s (a INT)", s.CreateStream, {"name": "s", "columns": (A,)}),
    ("CREATE STREAM IF NOT EXISTS s (a INT, ts TIMESTAMP) TIMESTAMP BY ts WATERMARK INTERVAL '1' MINUTE "
     "COMMENT 'x'", s.CreateStream,
     {"name": "s", "columns": (A, TS), "time_column": "ts", "watermark": MINUTE, "if_not_exists": True,
      "comment": "x"}),
    ("CREATE FOREIGN TABLE s (a INT, ts TIMESTAMP) SERVER stream TIMESTAMP BY ts", s.CreateStream,
     {"name": "s", "columns": (A, TS), "time_column": "ts"}),
    ("CREATE STREAMING TABLE t (a INT) TIMESTAMP BY a RANGE INTERVAL 300", s.CreateStreamingTable,
     {"name": "t", "columns": (A,), "time_column": "a", "period": Duration(300, is_number=True)}),
    ("CREATE STREAMING TABLE t (a INT) RANGE UNBOUNDED", s.CreateStreamingTable, {"name": "t", "columns": (A,)}),
    ("CREATE INDEX i ON t (a, b)", s.CreateIndex,
     {"name": "i", "table": "t", "columns": ("a", "b"), "method": "BTREE"}),
    ("CREATE INDEX IF NOT EXISTS i ON t USING hash (a)", s.CreateIndex,
     {"name": "i", "table": "t", "columns": ("a",), "method": "HASH", "if_not_exists": True}),
    ("CREATE RECEPTOR r INTO s FROM kafka OPTIONS (kafka.bootstrap.servers 'h:1', 'subscribe' = 'x', n 5, b TRUE)",
     s.CreateReceptor,
     {"name": "r", "into": "s", "format": "kafka",
      "options": (("kafka.bootstrap.servers", "h:1"), ("subscribe", "x"), ("n", "5"), ("b", "true"))}),
    ("CREATE RECEPTOR r INTO s FROM rate", s.CreateReceptor, {"name": "r", "into": "s", "format": "rate"}),
    ("CREATE OR REPLACE VIEW v AS SELECT 1", s.CreateView, {"name": "v", "query": "SELECT 1", "or_replace": True}),
    ("CREATE CONTINUOUS VIEW v AS SELECT a FROM t GROUP BY a WITH HISTORY", s.CreateView,
     {"name": "v", "query": "SELECT a FROM t GROUP BY a", "continuous": True, "with_history": True}),
]  # fmt: skip

OTHERS = [
    ("DROP TABLE t", s.Drop, {"kind": ObjectKind.TABLE, "name": "t"}),
    ("DROP STREAMING TABLE IF EXISTS main.t CASCADE", s.Drop,
     {"kind": ObjectKind.STREAMING_TABLE, "name": "t", "if_exists": True, "cascade": True}),
    ("DROP STREAM s RESTRICT", s.Drop, {"kind": ObjectKind.STREAM, "name": "s"}),
    ("DROP VIEW v", s.Drop, {"kind": ObjectKind.VIEW, "name": "v"}),
    ("DROP CONTINUOUS VIEW v", s.Drop, {"kind": ObjectKind.CONTINUOUS_VIEW, "name": "v"}),
    ("DROP CONTINUOUS QUERY q", s.Drop, {"kind": ObjectKind.CONTINUOUS_QUERY, "name": "q"}),
    ("DROP STREAMING VIEW v", s.Drop, {"kind": ObjectKind.STREAMING_VIEW, "name": "v"}),
    ("DROP INDEX i", s.Drop, {"kind": ObjectKind.INDEX, "name": "i"}),
    ("DROP RECEPTOR r", s.Drop, {"kind": ObjectKind.RECEPTOR, "name": "r"}),
    ("DROP EMITTER e", s.Drop, {"kind": ObjectKind.EMITTER, "name": "e"}),
    ("DROP INDEX IF EXISTS i ON main.t", s.Drop,
     {"kind": ObjectKind.INDEX, "name": "i", "if_exists": True, "table": "t"}),
    ("INSERT INTO t VALUES (1, 'a'), (2, NULL)", s.Insert, {"table": "t", "source": "VALUES (1, 'a'), (2, NULL)"}),
    ("INSERT INTO TABLE main.t (a, `b c`) SELECT * FROM u", s.Insert,
     {"table": "t", "source": "SELECT * FROM u", "columns": ("a", "b c")}),
    ("INSERT INTO t (SELECT * FROM u)", s.Insert, {"table": "t", "source": "(SELECT * FROM u)"}),
    ("INSERT INTO t TABLE y", s.Insert, {"table": "t", "source": "TABLE y"}),
    ("INSERT INTO t WITH c AS (SELECT 1) SELECT * FROM c", s.Insert,
     {"table": "t", "source": "WITH c AS (SELECT 1) SELECT * FROM c"}),
    ("INSERT OVERWRITE t SELECT 1", s.Insert, {"table": "t", "source": "SELECT 1", "overwrite": True}),
    ("INSERT OVERWRITE TABLE t VALUES 1, 2", s.Insert, {"table": "t", "source": "VALUES 1, 2", "overwrite": True}),
    ("DELETE FROM t", s.Delete, {"table": "t"}),
    ("DELETE FROM t x WHERE x.a = 1", s.Delete, {"table": "t", "alias": "x", "where": "x.a = 1"}),
    ("TRUNCATE TABLE t", s.Truncate, {"table": "t"}),
    ("TRUNCATE t", s.Truncate, {"table": "t"}),
    ("ADVANCE s TO 5", s.Advance, {"stream": "s", "to": 5}),
    ("ADVANCE s TO -5", s.Advance, {"stream": "s", "to": -5}),
    ("ADVANCE s TO TIMESTAMP '2024-01-01'", s.Advance, {"stream": "s", "to": "2024-01-01"}),
    ("ADVANCE main.s TO '2024-01-01'", s.Advance, {"stream": "s", "to": "2024-01-01"}),
    ("SUBSCRIBE q", s.Subscribe, {"query": "q"}),
    ("SUBSCRIBE TO q", s.Subscribe, {"query": "q"}),
    ("PAUSE CONTINUOUS QUERY q", s.Pause, {"name": "q"}),
    ("RESUME q", s.Resume, {"name": "q"}),
    ("REFRESH VIEW v", s.RefreshView, {"name": "v"}),
    ("SHOW COLUMNS FROM t", s.Show, {"what": s.ShowWhat.COLUMNS, "of": "t"}),
    ("SHOW COLUMNS IN main.t LIKE 'a%'", s.Show, {"what": s.ShowWhat.COLUMNS, "of": "t", "like": "a%"}),
    ("SHOW FILES FROM t", s.Show, {"what": s.ShowWhat.FILES, "of": "t"}),
    ("SHOW CREATE TABLE t", s.Show, {"what": s.ShowWhat.CREATE, "of": "t"}),
    ("SHOW CREATE CONTINUOUS VIEW v", s.Show, {"what": s.ShowWhat.CREATE, "of": "v"}),
    ("SHOW STREAMING TABLES LIKE 'x'", s.Show, {"what": s.ShowWhat.STREAMING_TABLES, "like": "x"}),
    ("SHOW CONTINUOUS QUERIES", s.Show, {"what": s.ShowWhat.QUERIES}),
    ("DESCRIBE t", s.Describe, {"name": "t"}),
    ("DESC TABLE EXTENDED t", s.Describe, {"name": "t", "extended": True}),
    ("DESCRIBE EXTENDED t", s.Describe, {"name": "t", "extended": True}),
    ("DESCRIBE STREAM s", s.Describe, {"name": "s"}),
    ("DESCRIBE stream", s.Describe, {"name": "stream"}),
    ("DESCRIBE QUERY SELECT 1", s.Describe, {"query": "SELECT 1"}),
    ("DESCRIBE SELECT 1", s.Describe, {"query": "SELECT 1"}),
    ("EXPLAIN SELECT 1", s.Explain, {"query": "SELECT 1"}),
    ("EXPLAIN INCREMENTAL SELECT 1", s.Explain, {"mode": s.ExplainMode.INCREMENTAL, "query": "SELECT 1"}),
    ("EXPLAIN SHARED q", s.Explain, {"mode": s.ExplainMode.SHARED, "name": "q"}),
    ("EXPLAIN LOGICAL WITH c AS (SELECT 1) SELECT * FROM c", s.Explain,
     {"mode": s.ExplainMode.LOGICAL, "query": "WITH c AS (SELECT 1) SELECT * FROM c"}),
    ("EXPLAIN spark", s.Explain, {"name": "spark"}),
    ("SET a = 5", s.SetOption, {"name": "a", "value": "5"}),
    ("SET spark.sql.x TO 'a b'", s.SetOption, {"name": "spark.sql.x", "value": "a b"}),
    ("SET a = 5 minutes", s.SetOption, {"name": "a", "value": "5 minutes"}),
    ("BEGIN", s.Begin, {}),
    ("BEGIN TRANSACTION", s.Begin, {}),
    ("START TRANSACTION", s.Begin, {}),
    ("COMMIT", s.Commit, {}),
    ("ROLLBACK", s.Rollback, {}),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "kind", "expected"), CREATES + OTHERS)
def test_a_statement_becomes_its_record(sql: str, kind: type[s.Statement], expected: dict[str, Any]) -> None:
    statement = parse_one(sql + " ; ")
    assert type(statement) is kind
    assert statement.text == sql
    assert fields(statement) == expected


@pytest.mark.parametrize("sql", [row[0] for row in CREATES + OTHERS])
def test_the_spans_of_names_cover_them(sql: str) -> None:
    statement = parse_one(sql)
    for key in statement.__dataclass_fields__:
        value = getattr(statement, key)
        for name in value if isinstance(value, tuple) else (value,):
            if isinstance(name, s.Name):
                written = sql[name.span.start : name.span.end].lower().removeprefix("main.").strip("`")
                assert written == name.text.lower()


ADDED = [
    ("ALTER TABLE t ADD COLUMN a INT", ObjectKind.TABLE, (A,), ("a",), False),
    ("alter table main.t add columns (a int, ts timestamp)", ObjectKind.TABLE, (A, TS), ("a", "ts"), False),
    ("ALTER STREAM t ADD COLUMN a INT, `ts` TIMESTAMP", ObjectKind.STREAM, (A, TS), ("a", "`ts`"), False),
    ("ALTER FOREIGN TABLE t ADD COLUMN (a INT)", ObjectKind.STREAM, (A,), ("a",), False),
    (
        "ALTER STREAMING TABLE t ADD COLUMN IF NOT EXISTS a INT NULL",
        ObjectKind.STREAMING_TABLE,
        (A,),
        ("a",),
        True,
    ),
    (
        "ALTER TABLE t ADD COLUMNS a INT COMMENT 'x, y'",
        ObjectKind.TABLE,
        (replace(A, comment="x, y"),),
        ("a",),
        False,
    ),
    (
        "ALTER TABLE t ADD COLUMN a STRUCT<b: INT NOT NULL>",
        ObjectKind.TABLE,
        (Column("a", pa.struct([pa.field("b", pa.int32())])),),
        ("a",),
        False,
    ),
]


@pytest.mark.parametrize(("sql", "kind", "columns", "written", "if_not_exists"), ADDED)
def test_added_columns_are_read_with_their_places(
    sql: str, kind: ObjectKind, columns: tuple[Column, ...], written: tuple[str, ...], if_not_exists: bool
) -> None:
    statement = parse_one(sql)
    assert isinstance(statement, s.AlterTable)
    assert (statement.kind, statement.name.text, statement.text) == (kind, "t", sql)
    action = statement.action
    assert isinstance(action, s.AddColumns)
    assert (action.columns, action.if_not_exists) == (columns, if_not_exists)
    assert tuple(n.text for n in action.names) == tuple(c.name for c in columns)
    assert tuple(sql[n.span.start : n.span.end] for n in action.names) == written


@pytest.mark.parametrize(
    ("written", "period"),
    [("INTERVAL '1' DAY", DAY), ("INTERVAL 300", Duration(300, is_number=True)), ("unbounded", None)],
)
def test_a_range_is_read_with_its_place(written: str, period: Duration | None) -> None:
    altered = parse_one(f"ALTER STREAMING TABLE t SET RANGE {written}")
    assert isinstance(altered, s.AlterTable)
    assert isinstance(altered.action, s.SetRange)
    assert altered.action.period == period
    created = parse_one(f"CREATE STREAMING TABLE t (a INT) TIMESTAMP BY a RANGE {written} COMMENT 'x'")
    assert isinstance(created, s.CreateStreamingTable)
    assert created.period == period
    for statement, span in ((altered, altered.action.span), (created, created.period_span)):
        assert statement.text[span.start : span.end] == written


@pytest.mark.parametrize("statement", ["ALTER STREAMING TABLE t SET", "CREATE STREAMING TABLE t (a INT)"])
@pytest.mark.parametrize(
    "interval",
    [
        "INTERVAL 0", "INTERVAL -5", "INTERVAL - 5", "INTERVAL '0' DAY", "INTERVAL '-5' DAY", "INTERVAL -5 DAY",
        "INTERVAL -'5' DAY", "INTERVAL '-1 02:00' DAY TO MINUTE", "INTERVAL '-5 days'", "INTERVAL 0 SECONDS",
        "INTERVAL '0.0000001' SECOND", "INTERVAL '99999999999999' DAY", "INTERVAL 9223372036854775808",
    ],
)  # fmt: skip
def test_a_range_is_longer_than_zero_and_fits(statement: str, interval: str) -> None:
    sql = f"{statement} RANGE {interval}"
    with pytest.raises(StatementError) as caught:
        parse_one(sql)
    assert caught.value.condition == "INVALID_INTERVAL"
    assert caught.value.span is not None
    assert sql[caught.value.span.start : caught.value.span.end] == interval


@pytest.mark.parametrize(
    "what", [w for w in s.ShowWhat if w not in (s.ShowWhat.COLUMNS, s.ShowWhat.FILES, s.ShowWhat.CREATE)]
)
def test_everything_there_is_can_be_shown(what: s.ShowWhat) -> None:
    assert parse_one(f"show {what.lower()}") == s.Show(what, text=f"show {what.lower()}")


def body_of(sql: str) -> s.ContinuousSelect:
    statement = parse_one(sql)
    assert isinstance(statement, s.CreateContinuousQuery | s.CreateStreamingView)
    return statement.body


@pytest.mark.parametrize(
    ("clauses", "sample", "emit", "into", "options"),
    [
        ("", None, None, None, ()),
        ("SAMPLE REALTIME", s.Sample(), None, None, ()),
        ("SAMPLE INTERVAL '1' MINUTE EMIT ALL", s.Sample(interval=MINUTE), s.Emit.ALL, None, ()),
        ("SAMPLE ROWS 20000 EMIT NEW INTO out", s.Sample(rows=20000), s.Emit.NEW, "out", ()),
        (
            "EMIT CHANGES WITH (late = 'revise', horizon = INTERVAL '1' DAY)",
            None,
            s.Emit.CHANGES,
            None,
            (("late", "revise"), ("horizon", DAY)),
        ),
        (
            "WITH (LATE 'revise') INTO x SAMPLE INTERVAL 60",
            s.Sample(Duration(60, is_number=True)),
            None,
            "x",
            (("late", "revise"),),
        ),
    ],
)
def test_clauses_of_a_continuous_query_are_cut_from_its_text(
    clauses: str,
    sample: s.Sample | None,
    emit: s.Emit | None,
    into: str | None,
    options: tuple[tuple[str, Any], ...],
) -> None:
    query = "WITH c AS (SELECT 1) SELECT a FROM s [ROWS 5], c WHERE a IN (SELECT b FROM t)"
    body = body_of(f"CREATE CONTINUOUS QUERY q AS {query} {clauses}")
    assert body.query.text == query
    assert body.query.tree is not None
    assert (body.sample, body.emit, body.into and body.into.text, body.options) == (sample, emit, into, options)


def test_a_streaming_view_has_a_period_and_a_body() -> None:
    statement = parse_one("CREATE STREAMING VIEW v RANGE INTERVAL '1' DAY AS SELECT a FROM s SAMPLE REALTIME")
    assert isinstance(statement, s.CreateStreamingView)
    assert (statement.period, statement.body.sample) == (DAY, s.Sample())


def test_tables_named_like_clauses_stay_tables() -> None:
    body = body_of("CREATE CONTINUOUS QUERY q AS SELECT sample, emit FROM emit e, sample rows")
    assert [t.name for t in body.query.tables] == ["emit", "sample"]


def test_values_come_as_rows_of_expressions() -> None:
    statement = parse_one("INSERT INTO t VALUES (1, 'a', :p, NULL), (1 + 1, f(2), -3, TIMESTAMP '2024-01-01')")
    assert isinstance(statement, s.Insert)
    assert isinstance(statement.source, s.Values)
    assert [[e.key for e in row] for row in statement.source.rows] == [
        ["literal", "literal", "placeholder", "null"],
        ["add", "anonymous", "neg", "cast"],
    ]
    assert statement.source.query.offset == len("INSERT INTO t ")


def test_bare_values_are_rows_of_one_column() -> None:
    statement = parse_one("INSERT INTO t VALUES 1, 2")
    assert isinstance(statement, s.Insert)
    assert isinstance(statement.source, s.Values)
    assert [len(row) for row in statement.source.rows] == [1, 1]


def test_update_keeps_its_expressions_as_fragments() -> None:
    sql = "UPDATE t AS x SET a = a + 1, x.b = (SELECT max(y, 1) FROM u) WHERE c IN (SELECT d FROM main.w)"
    statement = parse_one(sql)
    assert isinstance(statement, s.Update)
    assert (statement.table.text, statement.alias) == ("t", "x")
    assert [(n.text, q.text) for n, q in statement.assignments] == [
        ("a", "a + 1"),
        ("b", "(SELECT max(y, 1) FROM u)"),
    ]
    assert statement.where is not None
    fragments: list[Query] = [*(q for _, q in statement.assignments), statement.where]
    assert [[t.name for t in q.tables] for q in fragments] == [[], ["u"], ["w"]]
    for fragment in fragments:
        assert sql[fragment.offset :].startswith(fragment.text)
        assert fragment.tree is not None


def options_of(sql: str) -> s.CopyOptions:
    statement = parse_one(sql)
    assert isinstance(statement, s.CopyFrom | s.CopyTo)
    return statement.options


CSV, JSON, PARQUET = s.FileFormat.CSV, s.FileFormat.JSON, s.FileFormat.PARQUET


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("'f.csv'", s.CopyOptions(CSV)),
        ("'F.CSV' HEADER", s.CopyOptions(CSV, header=True)),
        ("'f.tsv' HEADER false", s.CopyOptions(CSV, header=False, delimiter="\t")),
        ("'f.json'", s.CopyOptions(JSON)),
        ("'f.jsonl'", s.CopyOptions(JSON)),
        ("'f.ndjson'", s.CopyOptions(JSON)),
        ("'f.parquet'", s.CopyOptions(PARQUET)),
        ("'f.csv' PARQUET", s.CopyOptions(PARQUET)),
        ("'f' WITH CSV", s.CopyOptions(CSV)),
        ("'f' NULL 'NA' ON ERROR SKIP DELIMITER ';' HEADER true CSV", s.CopyOptions(CSV, True, ";", "NA", True)),
        ("'f' (FORMAT csv, HEADER true, DELIMITER '\\t')", s.CopyOptions(CSV, True, "\t")),
        ("'f' WITH (FORMAT 'json', ON_ERROR 'skip')", s.CopyOptions(JSON, skip_errors=True)),
        ("'f.csv' HEADER ON ERROR STOP", s.CopyOptions(CSV, header=True)),
        ("'f.csv' (HEADER = off)", s.CopyOptions(CSV, header=False)),
    ],
)
def test_copy_options_come_in_any_order(rest: str, expected: s.CopyOptions) -> None:
    assert options_of(f"COPY t FROM {rest}") == expected
    if "NULL" not in rest and "ERROR" not in rest:
        assert options_of(f"COPY t TO {rest}") == expected


def test_copy_from_names_its_table_columns_and_file() -> None:
    sql = "COPY main.t (a, b) FROM 'dir/it''s.csv'"
    statement = parse_one(sql)
    assert isinstance(statement, s.CopyFrom)
    assert (statement.table.text, [c.text for c in statement.columns], statement.path) == (
        "t",
        ["a", "b"],
        "dir/it's.csv",
    )
    assert sql[statement.path_span.start : statement.path_span.end] == "'dir/it''s.csv'"


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("COPY t TO 'f.csv'", "SELECT * FROM t"),
        ("COPY main.t (a, `b c`) TO 'f.csv'", "SELECT a, `b c` FROM main.t"),
        ("COPY (SELECT (a) FROM t) TO 'f.csv'", "SELECT (a) FROM t"),
    ],
)
def test_copy_to_has_a_query_whose_shifted_spans_meet_the_statement(sql: str, text: str) -> None:
    statement = parse_one(sql)
    assert isinstance(statement, s.CopyTo)
    query = statement.query
    assert query.text == text
    (table,) = query.tables
    place: Span = table.span.shifted(query.offset)
    assert sql[place.start : place.end] == query.text[table.span.start : table.span.end]


REFUSED = [
    ("SELEC * FROM t", "SYNTAX_ERROR", "SELEC", "SELECT"),
    ("INSRET INTO x VALUES (1)", "SYNTAX_ERROR", "INSRET", "INSERT"),
    ("UPDAET t SET a = 1", "SYNTAX_ERROR", "UPDAET", "UPDATE"),
    ("INSERT INOT x VALUES (1)", "SYNTAX_ERROR", "INOT", "INTO"),
    ("INSERT INTO t VALUSE (1)", "SYNTAX_ERROR", "VALUSE", "VALUES"),
    ("INSERT INTO t (a, A) VALUES (1, 2)", "DUPLICATE_COLUMN", "A", "once"),
    ("INSERT INTO x.t VALUES (1)", "UNKNOWN_TABLE", "x.t", "main"),
    ("INSERT INTO t BY NAME SELECT 1", "NOT_SUPPORTED", "BY", "columns"),
    ("INSERT INTO t VALUES (1, (2)", "SYNTAX_ERROR", "(", "Close"),
    ("CREATE TABEL t (a INT)", "SYNTAX_ERROR", "TABEL", "TABLE"),
    ("CREATE STREAMING TABEL t (a INT)", "SYNTAX_ERROR", "TABEL", "TABLE"),
    ("CREATE CONTINUOUS QUREY q AS SELECT 1", "SYNTAX_ERROR", "QUREY", "QUERY"),
    ("CREATE MATERIALIZED VIEW v AS SELECT 1", "NOT_SUPPORTED", "MATERIALIZED", "CONTINUOUS VIEW"),
    ("CREATE OR REPLACE STREAM s (a INT)", "NOT_SUPPORTED", "OR REPLACE", "DROP"),
    ("CREATE TABLE ms_x (a INT)", "RESERVED_NAME", "ms_x", "another name"),
    ("CREATE STREAM Millstream_x (a INT)", "RESERVED_NAME", "Millstream_x", "another name"),
    ("CREATE VIEW ducklake_x AS SELECT 1", "RESERVED_NAME", "ducklake_x", "another name"),
    ("CREATE TABLE select (a INT)", "SYNTAX_ERROR", "select", "`select`"),
    ("CREATE TABLE t (a INT) USING parquet", "NOT_SUPPORTED", "USING", "Parquet"),
    ("CREATE TABLE t (a INT) PARTITIONED BY (a)", "NOT_SUPPORTED", "PARTITIONED BY", "INDEX"),
    ("CREATE TABLE t (a INT) AS SELECT 1", "NOT_SUPPORTED", "AS", "SELECT"),
    ("CREATE STREAM s (a INT) RANGE UNBOUNDED", "SYNTAX_ERROR", "RANGE", "STREAMING TABLE"),
    ("CREATE STREAM s (a INT) WATERMARK INTERVAL '1' DAY", "SYNTAX_ERROR", "WATERMARK", "TIMESTAMP BY"),
    (
        "CREATE STREAM s (a INT) TIMESTAMP BY a WATERMARK INTERVAL '0' DAY",
        "INVALID_INTERVAL",
        "INTERVAL '0' DAY",
        "INTERVAL",
    ),
    ("CREATE STREAM s AS SELECT 1", "SYNTAX_ERROR", "AS", None),
    ("CREATE FOREIGN TABLE s (a INT) SERVER postgres", "NOT_SUPPORTED", "postgres", "RECEPTOR"),
    ("CREATE INDEX i ON t (a) USING gin", "UNKNOWN_OPTION", "gin", "BTREE"),
    ("CREATE CONTINUOUS VIEW v AS SELECT a FROM t EMIT ALL", "SYNTAX_ERROR", "EMIT", "CONTINUOUS QUERY"),
    ("CREATE VIEW v (a, b) AS SELECT 1, 2", "NOT_SUPPORTED", "(", "AS"),
    ("CREATE CONTINUOUS QUERY q AS SELECT a FROM s WITH HISTORY", "SYNTAX_ERROR", "WITH", "leave it out"),
    ("CREATE CONTINUOUS QUERY q AS SELECT a FROM s EMIT CHANGE", "SYNTAX_ERROR", "CHANGE", "CHANGES"),
    ("CREATE CONTINUOUS QUERY q AS SELECT a FROM s SAMPLE EVERY 5", "SYNTAX_ERROR", "EVERY", None),
    ("CREATE CONTINUOUS QUERY q AS SELECT a FROM s SAMPLE ROWS 0", "INVALID_ARGUMENT", "0", "REALTIME"),
    ("CREATE CONTINUOUS QUERY q AS SELECT a FROM s EMIT ALL EMIT NEW", "SYNTAX_ERROR", "EMIT", "Remove"),
    ("CREATE CONTINUOUS QUERY q AS SELECT a FROM s WITH (lat = 'x')", "UNKNOWN_OPTION", "lat", "late"),
    ("DROP TABEL t", "SYNTAX_ERROR", "TABEL", "TABLE"),
    ("DROP TABLE t, u", "SYNTAX_ERROR", ",", ";"),
    ("SHOW TABELS", "SYNTAX_ERROR", "TABELS", "TABLES"),
    ("SHOW STREAMIN", "SYNTAX_ERROR", "STREAMIN", "STREAM"),
    ("EXPLAIN FORMATTED SELECT 1", "SYNTAX_ERROR", "FORMATTED", "SPARK"),
    ("EXPLAIN SELECT 1 SAMPLE REALTIME", "SYNTAX_ERROR", "SAMPLE", "CONTINUOUS QUERY"),
    ("UPDATE t STE a = 1", "SYNTAX_ERROR", "STE", "SET"),
    ("UPDATE t SET a = 1, A = 2", "DUPLICATE_COLUMN", "A", "once"),
    ("UPDATE t SET b.c = 1", "NOT_SUPPORTED", "b", "named_struct"),
    ("DELETE FROM t WHER a = 1", "SYNTAX_ERROR", "WHER", "WHERE"),
    ("DELETE FROM t USING u WHERE a = 1", "NOT_SUPPORTED", "USING", "IN"),
    ("COPY t FROM 'f.txt'", "INVALID_ARGUMENT", "'f.txt'", "CSV"),
    ("COPY t FROM 'f.csv' HEADR", "UNKNOWN_OPTION", "HEADR", "HEADER"),
    ("COPY t FROM 'f.csv' FORMAT xml", "UNKNOWN_OPTION", "xml", "PARQUET"),
    ("COPY t FROM 'f.csv' DELIMITER ';;'", "INVALID_ARGUMENT", "';;'", "DELIMITER"),
    ("COPY t FROM 'f.json' HEADER", "INVALID_ARGUMENT", "HEADER", "Leave"),
    ("COPY t FROM 'f.csv' CSV JSON", "INVALID_ARGUMENT", "JSON", "once"),
    ("COPY t FROM STDIN", "NOT_SUPPORTED", "STDIN", "file"),
    ("COPY (SELECT 1 TO 'f.csv'", "SYNTAX_ERROR", "(", "Close"),
    ("ALTER TABLE t DROP COLUMN a", "NOT_SUPPORTED", "DROP COLUMN", "ADD COLUMN"),
    ("ALTER TABLE t RENAME TO u", "NOT_SUPPORTED", "RENAME TO", "SET RANGE"),
    ("ALTER TABLE t ADD a INT", "NOT_SUPPORTED", "ADD a", "ADD COLUMN"),
    ("ALTER TABLE t SET TBLPROPERTIES ('a' = 'b')", "NOT_SUPPORTED", "SET TBLPROPERTIES", "SET RANGE"),
    ("ALTER TABLE t COMPACT", "NOT_SUPPORTED", "COMPACT", "ADD COLUMN"),
    ("ALTER VIEW v AS SELECT 1", "NOT_SUPPORTED", "VIEW", "ADD COLUMN"),
    ("ALTER CONTINUOUS QUERY q SET RANGE UNBOUNDED", "NOT_SUPPORTED", "CONTINUOUS QUERY", "CREATE"),
    ("ALTER INDEX i ADD COLUMN a INT", "NOT_SUPPORTED", "INDEX", "ADD COLUMN"),
    ("ALTER TABEL t ADD COLUMN a INT", "SYNTAX_ERROR", "TABEL", "TABLE"),
    ("ALTER TABLE t ADD COLUMN a INT NOT NULL", "INVALID_ARGUMENT", "NOT NULL", "Leave"),
    (
        "ALTER TABLE t ADD COLUMN a ARRAY<STRUCT<b: INT NOT  NULL>> NOT NULL",
        "INVALID_ARGUMENT",
        "NOT NULL",
        "Leave",
    ),
    ("ALTER TABLE t ADD COLUMNS (a INT, b INT COMMENT 'x' NOT NULL)", "INVALID_ARGUMENT", "NOT NULL", "Leave"),
    ("ALTER TABLE t ADD COLUMNS (a INT, A INT)", "DUPLICATE_COLUMN", "A", "own name"),
    ("ALTER TABLE t ADD COLUMN a INT FIRST", "NOT_SUPPORTED", "FIRST", "Leave"),
    ("ALTER TABLE t ADD COLUMN (a INT AFTER b)", "NOT_SUPPORTED", "AFTER", "Leave"),
    ("ALTER TABLE t ADD COLUMN a INTT", "UNKNOWN_TYPE", "INTT", "INT"),
    ("ALTER TABLE t ADD COLUMN a INT DEFAULT 5", "NOT_SUPPORTED", "DEFAULT", "INSERT"),
    ("ALTER TABLE t ADD COLUMN a INT b", "SYNTAX_ERROR", "b", "Remove"),
    ("ALTER TABLE t ADD COLUMN _ducklake_x INT", "RESERVED_NAME", "_ducklake_x", "another name"),
    ("ALTER STREAMING TABLE t SET RANGE 300", "SYNTAX_ERROR", "300", None),
    ("ALTER STREAMING TABLE t SET RANGE INTERVAL '1' MONTH", "INVALID_INTERVAL", "MONTH", "DAY"),
    ("ADVANCE s TO soon", "SYNTAX_ERROR", "soon", None),
    ("MERGE INTO t USING u ON a", "NOT_SUPPORTED", "MERGE", "INSERT"),
    ("COMMIT now", "SYNTAX_ERROR", "now", "Remove"),
    ("CREATE TABLE `` (a INT)", "SYNTAX_ERROR", "``", None),
    ("CREATE TABLE `a\0b` (a INT)", "SYNTAX_ERROR", "`a\0b`", None),
]


@pytest.mark.parametrize(("sql", "condition", "at", "hint"), REFUSED)
def test_a_refused_statement_is_underlined_and_hinted(sql: str, condition: str, at: str, hint: str | None) -> None:
    with pytest.raises(StatementError) as caught:
        parse_one(sql)
    error = caught.value
    assert error.condition.value == condition
    assert error.text == sql
    assert error.span is not None
    assert sql[error.span.start : error.span.end] == at
    if hint is not None:
        assert error.hint is not None
        assert hint in error.hint


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t", "CREATE", "CREATE TABLE", "CREATE TABLE t", "CREATE TABLE t (", "CREATE TABLE t ()",
        "CREATE TABLE t (a INT", "CREATE STREAM s (a INT) TIMESTAMP BY", "CREATE STREAMING TABLE t (a INT)",
        "CREATE CONTINUOUS QUERY q AS", "DROP", "SHOW", "SHOW FILES",
        "DESCRIBE", "EXPLAIN", "SET a", "SET a =", "UPDATE t SET a = WHERE b", "UPDATE t", "DELETE FROM",
        "COPY t FROM",
        "COPY", "ADVANCE s", "ADVANCE s TO", "REFRESH VIEW", "ALTER", "ALTER TABLE", "ALTER TABLE t",
        "ALTER TABLE t ADD", "ALTER TABLE t SET", "ALTER TABLE t ADD COLUMN", "ALTER TABLE t ADD COLUMN a",
        "ALTER TABLE t ADD COLUMNS (a INT", "ALTER TABLE t ADD COLUMNS ()", "ALTER TABLE t SET RANGE",
        "CREATE INDEX i ON t",
        "CREATE RECEPTOR r INTO s", "DELETE FROM t WHERE", "SUBSCRIBE", "PAUSE", "START",
    ],
)  # fmt: skip
def test_an_unfinished_statement_is_a_syntax_error(sql: str) -> None:
    with pytest.raises(StatementError) as caught:
        parse_one(sql)
    assert caught.value.condition == "SYNTAX_ERROR"
    assert caught.value.span is not None


def test_check_name_refuses_reserved_prefixes_only() -> None:
    check_name(s.Name("forms_x"))
    check_name(s.Name("ms"))
    with pytest.raises(StatementError):
        check_name(s.Name("MS_x"))


def test_keywords_for_completion_are_sorted_and_unique() -> None:
    assert list(KEYWORDS) == sorted(set(KEYWORDS))
    assert {"SELECT", "STREAMING", "WATERMARK", "BIGINT"} <= set(KEYWORDS)
