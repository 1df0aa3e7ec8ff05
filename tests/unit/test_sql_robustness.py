"""Hostile and endless text: only a MillstreamError comes out, and soon."""

from __future__ import annotations

import importlib
import logging
import random
import string
import time
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import Condition, MillstreamError
from millstream.sql import dialect, is_complete, parse, split
from millstream.sql.names import KEYWORDS
from millstream.sql.statements import Insert, Select, Statement

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 10.0
parse_module = importlib.import_module("millstream.sql.parse")
TABLE_1 = """
CREATE STREAMING TABLE posreports (vid INT, spd INT, xway INT, lane INT, dir INT, seg INT, pos INT, t BIGINT)
  TIMESTAMP BY t RANGE INTERVAL 6048000;                       -- ten weeks
CREATE INDEX posreports_vid ON posreports (vid) USING HASH;
CREATE STREAM linearroad (vid INT, spd INT, xway INT, lane INT, dir INT, seg INT, pos INT, t BIGINT)
  TIMESTAMP BY t;
INSERT INTO posreports SELECT * FROM linearroad;               -- standing
CREATE CONTINUOUS QUERY stopped AS
  SELECT vid, xway, dir, seg, max(pos) AS pos FROM posreports [PARTITION BY vid ROWS 4]
  GROUP BY vid, xway, dir, seg HAVING count(*) = 4 AND max(spd) = 0 AND min(pos) = max(pos) SAMPLE REALTIME;
CREATE STREAMING VIEW segstat RANGE INTERVAL 300 AS
  SELECT xway, dir, seg, avg(spd) AS speed, count(DISTINCT vid) AS cars FROM TUMBLE(posreports, t, INTERVAL 60)
  GROUP BY window_start, window_end, xway, dir, seg;            -- answers when a minute closes
CREATE CONTINUOUS QUERY crossings AS
  SELECT vid, xway, dir, seg, t FROM (SELECT *, PREV(seg) AS before FROM posreports [PARTITION BY vid ROWS 2]) r
  WHERE before IS NULL OR before <> seg SAMPLE REALTIME;
SELECT p.vid, collect_list(struct(p.t, p.seg, p.pos)) AS trajectory FROM posreports p JOIN involvedvids i
  ON p.vid = i.vid WHERE VALID(p) BETWEEN 5400 AND 5700 GROUP BY p.vid;
CREATE CONTINUOUS QUERY critical AS
  SELECT s.seg, s.speed, s.cars FROM segstat [INTERVAL 120] s JOIN criticalsegs c ON s.seg = c.seg
  ORDER BY s.speed SAMPLE INTERVAL 60;
"""


def outcome(text: str) -> tuple[Statement, ...] | MillstreamError:
    """What parsing gives; any other exception fails the test."""
    began = time.process_time()
    try:
        return parse(text)
    except MillstreamError as error:
        str(error)
        return error
    finally:
        assert time.process_time() - began < PATIENCE


def random_text(size: int) -> str:
    return random.Random(7).randbytes(size).decode("latin-1")


@pytest.mark.parametrize(
    "text",
    [
        random_text(1_000_000),
        random.Random(8).randbytes(1_000_000).decode("utf-8", "replace"),
        "A" * 1_000_000,
        "SELECT " + "(" * 10_000 + "1" + ")" * 10_000,
        "SELECT " + "(" * 10_000,
        "SELECT a" + "[" * 10_000,
        "INSERT INTO t VALUES " + "(" * 10_000,
        "CREATE TABLE t " + "(" * 10_000,
        "CREATE TABLE t (a " + "ARRAY<" * 10_000,
        "SELECT " + "EXISTS (" * 250,
        "'",
        '"',
        "`",
        "/*",
        "/*/**/",
        "SELECT 'abc",
        "SELECT \0",
        "\0",
        "🙂",
        "SELECT \ud800",
        "CREATE TABLE 🙂 (a INT)",
    ],
    ids=range(21),
)
def test_hostile_text_is_a_syntax_error(text: str) -> None:
    error = outcome(text)
    assert isinstance(error, MillstreamError)
    assert error.condition is Condition.SYNTAX_ERROR
    assert error.span is not None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "NOT " * 5_000 + "x",
        "SELECT " + "- " * 5_000 + "1",
        "SELECT " + "CASE WHEN " * 2_000,
        "SELECT " + "+".join(["1"] * 10_000),
        "SELECT " + "a." * 5_000 + "b",
        "SELECT " + "struct(" * 200 + "1" + ")" * 200,
        "SELECT * FROM " + "(SELECT * FROM " * 200 + "t" + ")" * 200,
        "SELECT CAST(a AS " + "ARRAY<" * 2_000 + "INT" + ">" * 2_000 + ")",
        "SELECT * FROM t" + " JOIN t" * 2_000,
        " UNION ALL ".join(["SELECT a FROM t"] * 1_000),
        "TABLE TUMBLE(s, t, 1) { ? x FROM t }",
        "SELECT * FROM 'x'",
        "FROM " * 2_000,
        "SELECT " * 2_000,
    ],
    ids=range(14),
)
def test_deep_and_long_queries_are_left_to_spark(text: str) -> None:
    result = outcome(text)
    assert isinstance(result, tuple)
    assert isinstance(result[0], Select)
    assert result[0].query.text == text.strip()


def test_the_statements_of_table_1_are_read_and_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "sqlglot"):
        statements = parse(TABLE_1)
        outcome("WITH x AS (SHOW TABLES) SELECT * FROM x")
        outcome("SELECT * FROM t; KILL 5")
        outcome("SELECT a:'5', get_json_object(a, '[2.5]') FROM t")
    assert len(statements) == 9
    assert caplog.records == []


def words() -> st.SearchStrategy[str]:
    marks = [*"()[]{}<>,;.:?*'\"`=+-/|&~!@#$%^\\\n\0", "--", "/*", "*/", "=>", "->", "|>", "::", "🙂", "é"]
    names = [
        "t",
        "s",
        "main.t",
        "a",
        "x",
        "`b c`",
        "1",
        "2.5",
        "1L",
        "'x'",
        "'5'",
        "MINUTE",
        "OF",
        "AS OF VERSION 3",
    ]
    return st.sampled_from([*KEYWORDS, *marks, *names])


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_any_text_gives_statements_or_a_millstream_error(text: str) -> None:
    outcome(text)
    is_complete(text)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(["", *KEYWORDS]), st.lists(words(), max_size=30))
def test_any_heap_of_words_gives_statements_or_a_millstream_error(first: str, rest: list[str]) -> None:
    text = " ".join([first, *rest])
    result = outcome(text)
    if isinstance(result, tuple):
        assert tuple(s.text for s in result) == split(text)
        check_spans(result)


def broken() -> Iterator[str]:
    chosen = random.Random(3)
    for statement in split(TABLE_1):
        for _ in range(20):
            at = chosen.randrange(len(statement))
            yield statement[:at] + chosen.choice([*string.punctuation, "", " SELECT "]) + statement[at + 1 :]


@pytest.mark.parametrize("text", list(broken()), ids=range(180))
def test_a_statement_with_one_character_changed_does_not_break_the_parser(text: str) -> None:
    result = outcome(text)
    if isinstance(result, tuple):
        check_spans(result)
    else:
        assert result.text is not None


def check_spans(statements: tuple[Statement, ...]) -> None:
    for statement in statements:
        if isinstance(statement, Select):
            for table in statement.query.tables:
                written = statement.text[table.span.start : table.span.end]
                assert written.strip("`").endswith(table.name.replace("`", "``"))


def test_a_statement_is_tokenized_and_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize, read = Mock(wraps=parse_module.tokenize), Mock(wraps=dialect._read)
    monkeypatch.setattr(parse_module, "tokenize", tokenize)
    monkeypatch.setattr(dialect, "_read", read)
    assert isinstance(parse("INSERT INTO t VALUES (1, 'a', 2.5, NULL)")[0], Insert)
    assert (tokenize.call_count, read.call_count) == (1, 1)
