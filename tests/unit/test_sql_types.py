"""Column types, and intervals."""

from __future__ import annotations

import pyarrow as pa
import pytest
from sqlglot import exp

from millstream.errors import StatementError
from millstream.schema import TIMESTAMP, TIMESTAMP_NTZ, Column, Duration
from millstream.sql import parse_one
from millstream.sql.cursor import Cursor
from millstream.sql.dialect import DIALECT, tokenize
from millstream.sql.interval import read_interval
from millstream.sql.statements import CreateTable
from millstream.sql.types import arrow_type

TYPES = [
    ("BOOLEAN", pa.bool_()),
    ("TINYINT", pa.int8()),
    ("byte", pa.int8()),
    ("SMALLINT", pa.int16()),
    ("SHORT", pa.int16()),
    ("INT", pa.int32()),
    ("Integer", pa.int32()),
    ("BIGINT", pa.int64()),
    ("LONG", pa.int64()),
    ("FLOAT", pa.float32()),
    ("REAL", pa.float32()),
    ("DOUBLE", pa.float64()),
    ("DECIMAL", pa.decimal128(10, 0)),
    ("DEC(5)", pa.decimal128(5, 0)),
    ("NUMERIC(38, 18)", pa.decimal128(38, 18)),
    ("STRING", pa.string()),
    ("BINARY", pa.binary()),
    ("DATE", pa.date32()),
    ("TIMESTAMP", TIMESTAMP),
    ("TIMESTAMP_LTZ", TIMESTAMP),
    ("TIMESTAMP_NTZ", TIMESTAMP_NTZ),
    ("ARRAY<INT>", pa.list_(pa.int32())),
    ("ARRAY<ARRAY<ARRAY<INT>>>", pa.list_(pa.list_(pa.list_(pa.int32())))),
    ("MAP<STRING, ARRAY<DATE>>", pa.map_(pa.string(), pa.list_(pa.date32()))),
    ("STRUCT<a: INT, b STRING>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ("STRUCT<a: INT NOT NULL COMMENT 'x', `b c`: STRUCT<d: INT>>",
     pa.struct([("a", pa.int32()), ("b c", pa.struct([("d", pa.int32())]))])),
]  # fmt: skip


def column_of(definition: str) -> Column:
    statement = parse_one(f"CREATE TABLE t (a {definition})")
    assert isinstance(statement, CreateTable)
    return statement.columns[0]


@pytest.mark.parametrize(("text", "expected"), TYPES)
def test_every_scalar_and_nested_type_has_its_arrow_type(text: str, expected: pa.DataType) -> None:
    assert column_of(text) == Column("a", expected)


@pytest.mark.parametrize(("text", "expected"), [row for row in TYPES if "COMMENT" not in row[0]])
def test_types_in_a_tree_map_to_the_same_arrow_types(text: str, expected: pa.DataType) -> None:
    assert arrow_type(exp.DataType.build(text, dialect=DIALECT)) == expected


def test_a_type_in_a_tree_that_is_not_stored_is_refused() -> None:
    with pytest.raises(StatementError) as caught:
        arrow_type(exp.DataType.build("VARIANT", dialect=DIALECT))
    assert caught.value.condition == "UNKNOWN_TYPE"


def test_char_and_varchar_keep_their_lengths() -> None:
    assert column_of("VARCHAR(20)") == Column("a", pa.string(), max_length=20)
    assert column_of("CHAR(3)") == Column("a", pa.string(), max_length=3, padded=True)


def test_not_null_and_comments_are_kept() -> None:
    assert column_of("INT NOT NULL COMMENT 'it''s'") == Column("a", pa.int32(), nullable=False, comment="it's")
    assert column_of("INT COMMENT 'x' NOT NULL") == Column("a", pa.int32(), nullable=False, comment="x")


@pytest.mark.parametrize(
    ("definition", "condition", "at", "hint"),
    [
        ("INTT", "UNKNOWN_TYPE", "INTT", "'INT'"),
        ("STIRNG", "UNKNOWN_TYPE", "STIRNG", "'STRING'"),
        ("ARRAY<BIGINTT>", "UNKNOWN_TYPE", "BIGINTT", "'BIGINT'"),
        ("XYZZY", "UNKNOWN_TYPE", "XYZZY", "The types are"),
        ("INTERVAL", "UNKNOWN_TYPE", "INTERVAL", "BIGINT"),
        ("VARIANT", "UNKNOWN_TYPE", "VARIANT", "STRING"),
        ("TIME", "UNKNOWN_TYPE", "TIME", "STRING"),
        ("TIMESTAMP_TZ", "UNKNOWN_TYPE", "TIMESTAMP_TZ", "TIMESTAMP"),
        ("CLOB", "UNKNOWN_TYPE", "CLOB", "STRING"),
        ("VARCHAR", "UNKNOWN_TYPE", "VARCHAR", "VARCHAR(20)"),
        ("VARCHAR(0)", "UNKNOWN_TYPE", "VARCHAR(0)", "STRING"),
        ("DECIMAL(39, 2)", "UNKNOWN_TYPE", "DECIMAL(39, 2)", "38"),
        ("DECIMAL(5, 6)", "UNKNOWN_TYPE", "DECIMAL(5, 6)", "scale"),
        ("MAP<MAP<INT, INT>, INT>", "UNKNOWN_TYPE", "MAP<INT, INT>", "key"),
        ("STRUCT<a: INT, A: INT>", "DUPLICATE_COLUMN", "A", "name"),
        ("INT PRIMARY KEY", "NOT_SUPPORTED", "PRIMARY KEY", "CREATE INDEX"),
        ("INT UNIQUE", "NOT_SUPPORTED", "UNIQUE", "leave it out"),
        ("INT CHECK (a > 1)", "NOT_SUPPORTED", "CHECK", "INSERT"),
        ("INT DEFAULT 5", "NOT_SUPPORTED", "DEFAULT", "INSERT"),
        ("INT GENERATED ALWAYS AS (1)", "NOT_SUPPORTED", "GENERATED", "view"),
        ("INT, PRIMARY KEY (a)", "NOT_SUPPORTED", "PRIMARY KEY", "CREATE INDEX"),
        ("INT, UNIQUE (a)", "NOT_SUPPORTED", "UNIQUE", "leave it out"),
        ("INT, CONSTRAINT c CHECK (a > 1)", "NOT_SUPPORTED", "CONSTRAINT", "NOT NULL"),
        ("INT, A STRING", "DUPLICATE_COLUMN", "A", "case"),
        ("INT, _ducklake_x INT", "RESERVED_NAME", "_ducklake_x", "another name"),
        ("", "SYNTAX_ERROR", ")", "BIGINT"),
    ],
)
def test_refused_columns_are_underlined_with_a_way_out(
    definition: str, condition: str, at: str, hint: str
) -> None:
    sql = f"CREATE TABLE t (a {definition})"
    with pytest.raises(StatementError) as caught:
        parse_one(sql)
    error = caught.value
    assert error.condition.value == condition
    assert error.span is not None
    assert sql[error.span.start : error.span.end] == at
    assert error.hint is not None
    assert hint.lower() in error.hint.lower()


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("'5' SECOND", 5_000_000),
        ("'5' SECONDS", 5_000_000),
        ("5 MINUTES", 300_000_000),
        ("'2' hour", 7_200_000_000),
        ("'1' DAY", 86_400_000_000),
        ("1 WEEK", 604_800_000_000),
        ("3 MILLISECONDS", 3_000),
        ("7 MICROSECONDS", 7),
        ("'1.5' SECOND", 1_500_000),
        ("1.5 SECONDS", 1_500_000),
        ("'1:30' MINUTE TO SECOND", 90_000_000),
        ("'1 02:03:04.5' DAY TO SECOND", 93_784_500_000),
        ("'1 02' DAY TO HOUR", 93_600_000_000),
        ("'02:03' HOUR TO MINUTE", 7_380_000_000),
        ("2 HOURS 30 MINUTES", 9_000_000_000),
        ("'2 hours 30 minutes'", 9_000_000_000),
        ("'2' HOURS '30' MINUTES", 9_000_000_000),
    ],
)
def test_day_time_intervals_are_microseconds(text: str, micros: int) -> None:
    sql = f"INTERVAL {text}"
    cursor = Cursor(sql, tokenize(sql))
    assert read_interval(cursor) == Duration(micros)
    assert cursor.at_end


def test_a_plain_number_is_a_length_of_integer_time() -> None:
    assert read_interval(Cursor("INTERVAL 300", tokenize("INTERVAL 300"))) == Duration(300, is_number=True)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("'0' SECOND", None),
        ("0", None),
        ("-300", None),
        ("'-5' MINUTE", None),
        ("-5 MINUTES", None),
        ("'-1:30' MINUTE TO SECOND", None),
        ("'1' MONTH", "MONTH"),
        ("2 YEARS", "YEARS"),
        ("'3 months'", None),
        ("'5' MINUTS", "MINUTS"),
        ("'300'", None),
        ("''", None),
        ("'x' SECOND", None),
        ("'1.5' MINUTE", None),
        ("'1:90' MINUTE TO SECOND", None),
        ("'1' SECOND TO MINUTE", None),
        ("'1' HOUR TO SECOND", None),
        ("'99999999999999999999' DAY", None),
        ("'5 fortnights'", None),
    ],
)
def test_intervals_without_a_fixed_positive_length_are_refused(text: str, at: str | None) -> None:
    sql = f"INTERVAL {text}"
    with pytest.raises(StatementError) as caught:
        read_interval(Cursor(sql, tokenize(sql)))
    error = caught.value
    assert error.condition == "INVALID_INTERVAL"
    assert error.span is not None
    assert sql[error.span.start : error.span.end] == (at or sql)
    assert error.hint
