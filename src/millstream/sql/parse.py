"""Text to statements: one reader for each first word.

`parse` gives every statement of a text or raises for the first that cannot be read; nothing but a
`MillstreamError` comes out, and its span and text are those of the statement at fault.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from millstream.errors import Condition, MillstreamError, Span, StatementError, did_you_mean
from millstream.sql import alter, control, copy, create, inspect, manipulate
from millstream.sql.continuous import refuse_clauses
from millstream.sql.cursor import NOT_WORDS, Cursor
from millstream.sql.dialect import tokenize
from millstream.sql.names import FOREIGN_STATEMENT_WORDS, STATEMENT_WORDS
from millstream.sql.plain_insert import read_plain_insert
from millstream.sql.query import query_from
from millstream.sql.split import split
from millstream.sql.statements import Select, Statement

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlglot.tokenizer_core import Token

NOT_IN_CODE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
NOT_IN_TEXT = re.compile(r"[\ud800-\udfff]")


def parse(text: str) -> tuple[Statement, ...]:
    """The statements in `text`, in order; none for a text of comments only."""
    return tuple(_statement(own) for own in split(text))


def parse_one(text: str) -> Statement:
    """The one statement in `text`; SYNTAX_ERROR if there is none, INVALID_ARGUMENT if there are several."""
    plain = read_plain_insert(text)
    if plain is not None:
        return plain
    found = split(text)
    if not found:
        raise StatementError(Condition.SYNTAX_ERROR, "there is no statement", hint="Write one, such as SELECT 1.")
    if len(found) > 1:
        raise StatementError(
            Condition.INVALID_ARGUMENT,
            f"expected one statement but found {len(found)}",
            hint="Send them one by one.",
        )
    return _statement(found[0])


def _statement(text: str) -> Statement:
    try:
        tokens = tokenize(text)
        _check_characters(text, tokens)
        cursor = Cursor(text, tokens, 1)
        word = Cursor(text, tokens).word()
        reader = READERS.get(word)
        if reader is None:
            _refuse(Cursor(text, tokens), word)
        statement = reader(cursor)
        cursor.expect_end()
    except MillstreamError as error:
        raise error.located_in(text) from error.__cause__
    return statement


def _check_characters(text: str, tokens: list[Token]) -> None:
    """Refuse halves of characters, and control characters outside of strings and quoted names."""
    half = NOT_IN_TEXT.search(text)
    if half is not None:
        raise _bad_character("half a character", Span(half.start(), half.end()))
    if NOT_IN_CODE.search(text) is None:
        return
    for token in tokens:
        found = NOT_IN_CODE.search(text, token.start, token.end + 1)
        if found is not None and token.token_type not in NOT_WORDS:
            raise _bad_character("a control character outside of quotes", Span(found.start(), found.end()))


def _bad_character(what: str, span: Span) -> StatementError:
    return StatementError(Condition.SYNTAX_ERROR, f"the text has {what}", hint="Remove it.", span=span)


def _refuse(cursor: Cursor, word: str) -> NoReturn:
    if word in FOREIGN_STATEMENT_WORDS:
        cursor.fail(
            f"{word} is not supported",
            hint=f"The statements start with {', '.join(STATEMENT_WORDS)}.",
            condition=Condition.NOT_SUPPORTED,
        )
    near = did_you_mean(cursor.source()[:40], STATEMENT_WORDS)
    cursor.fail(
        f"no statement starts with {cursor.found()}",
        hint=near or f"The statements start with {', '.join(STATEMENT_WORDS)}.",
    )


def _select(cursor: Cursor) -> Statement:
    cursor.index = 0
    refuse_clauses(cursor)
    return Select(query_from(cursor), text=cursor.text)


READERS: dict[str, Callable[[Cursor], Statement]] = {
    "SELECT": _select,
    "WITH": _select,
    "VALUES": _select,
    "FROM": _select,
    "TABLE": _select,
    "(": _select,
    "INSERT": manipulate.read_insert,
    "UPDATE": manipulate.read_update,
    "DELETE": manipulate.read_delete,
    "TRUNCATE": manipulate.read_truncate,
    "CREATE": create.read_create,
    "DROP": control.read_drop,
    "ALTER": alter.read_alter,
    "COPY": copy.read_copy,
    "ADVANCE": control.read_advance,
    "SUBSCRIBE": control.read_subscribe,
    "PAUSE": control.read_pause,
    "RESUME": control.read_resume,
    "REFRESH": control.read_refresh,
    "SHOW": inspect.read_show,
    "DESCRIBE": inspect.read_describe,
    "DESC": inspect.read_describe,
    "EXPLAIN": inspect.read_explain,
    "SET": control.read_set,
    "BEGIN": control.read_begin,
    "START": control.read_start,
    "COMMIT": control.read_commit,
    "ROLLBACK": control.read_rollback,
}
