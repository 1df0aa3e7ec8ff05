"""Text to statements: one reader for each first word.

`parse` gives every statement of a text or raises for the first that cannot be read; nothing but a
`MillstreamError` comes out, and its span and text are those of the statement at fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from millstream.errors import Condition, MillstreamError, StatementError, did_you_mean
from millstream.sql import control, copy, create, inspect, manipulate
from millstream.sql.continuous import refuse_clauses
from millstream.sql.cursor import Cursor
from millstream.sql.dialect import tokenize
from millstream.sql.names import FOREIGN_STATEMENT_WORDS, STATEMENT_WORDS
from millstream.sql.query import query_from
from millstream.sql.split import split
from millstream.sql.statements import Select, Statement

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_WORDS_IN_FULL = 200


def parse(text: str) -> tuple[Statement, ...]:
    """The statements in `text`, in order; none for a text of comments only."""
    return tuple(_statement(own) for own in split(text))


def parse_one(text: str) -> Statement:
    """The one statement in `text`; SYNTAX_ERROR if there is none, INVALID_ARGUMENT if there are several."""
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


def _refuse(cursor: Cursor, word: str) -> NoReturn:
    if word in FOREIGN_STATEMENT_WORDS:
        cursor.fail(
            f"{word} is not supported",
            hint=f"The statements start with {', '.join(STATEMENT_WORDS)}.",
            condition=Condition.NOT_SUPPORTED,
        )
    near = did_you_mean(cursor.source()[:FIRST_WORDS_IN_FULL], STATEMENT_WORDS)
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
    "ALTER": control.read_alter,
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
