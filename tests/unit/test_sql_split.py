"""Cutting text into statements: quotes, comments, semicolons."""

from __future__ import annotations

import pytest

from millstream.errors import Condition, StatementError
from millstream.sql import is_complete, parse, parse_one, split


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("  -- only a comment\n /* and /* a nested */ one */ ;;", ()),
        ("SELECT 1", ("SELECT 1",)),
        ("SELECT 1;SELECT 2;", ("SELECT 1", "SELECT 2")),
        ("-- first\nSELECT 1 -- tail\n; /* x */ SELECT 2 /* y */", ("SELECT 1", "SELECT 2")),
        ("SELECT ';', \";\", `;` -- ;\n, 2", ("SELECT ';', \";\", `;` -- ;\n, 2",)),
        ("SELECT 'it''s; ok'; SELECT 2", ("SELECT 'it''s; ok'", "SELECT 2")),
        (r"SELECT 'a\';b'; SELECT 2", (r"SELECT 'a\';b'", "SELECT 2")),
        (r"SELECT r'a\'; SELECT 2", (r"SELECT r'a\'", "SELECT 2")),
        ("SELECT `a``;b`; SELECT 2", ("SELECT `a``;b`", "SELECT 2")),
        ("SELECT 1 /* ; /* ; */ ; */ + 2; SELECT 3", ("SELECT 1 /* ; /* ; */ ; */ + 2", "SELECT 3")),
        ("'a'; 'b'", ("'a'", "'b'")),
    ],
)
def test_semicolons_in_quotes_and_comments_do_not_split(text: str, expected: tuple[str, ...]) -> None:
    assert split(text) == expected


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", False),
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1; -- done", True),
        ("SELECT 1; /* done */\n", True),
        ("SELECT 1; SELECT 2", False),
        ("SELECT ';", False),
        ("SELECT 1 -- ;", False),
        ("SELECT 1 /* ;", False),
        ("SELECT 1; /* open", False),
        ("SELECT `a;", False),
        (r"SELECT 'a\';", False),
        (";", True),
    ],
)
def test_a_text_is_complete_when_it_ends_in_a_semicolon_of_its_own(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


@pytest.mark.parametrize(
    ("text", "at"), [("SELECT 'abc", "'"), ('SELECT "abc', '"'), ("SELECT `abc", "`"), ("SELECT 1 /* a", "/*")]
)
def test_what_is_not_closed_is_underlined_where_it_opens(text: str, at: str) -> None:
    with pytest.raises(StatementError) as caught:
        parse(text)
    assert caught.value.condition is Condition.SYNTAX_ERROR
    assert caught.value.span is not None
    assert text[caught.value.span.start : caught.value.span.end] == at


def test_each_statement_has_its_own_text() -> None:
    first, second = parse("-- one\nSELECT 1;\n\n  DROP TABLE t ; ")
    assert first.text == "SELECT 1"
    assert second.text == "DROP TABLE t"


def test_parse_one_wants_exactly_one_statement() -> None:
    assert parse_one("SELECT 1;").text == "SELECT 1"
    with pytest.raises(StatementError) as none:
        parse_one(" -- nothing")
    assert none.value.condition is Condition.SYNTAX_ERROR
    with pytest.raises(StatementError) as several:
        parse_one("SELECT 1; SELECT 2")
    assert several.value.condition is Condition.INVALID_ARGUMENT


def test_errors_carry_the_text_of_the_statement_at_fault() -> None:
    with pytest.raises(StatementError) as caught:
        parse("SELECT 1; SELEC 2; SELECT 3")
    assert caught.value.text == "SELEC 2"
    assert "LINE 1: SELEC 2\n        ^^^^^\n" in str(caught.value)
