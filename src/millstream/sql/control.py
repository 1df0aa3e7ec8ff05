"""Statements that steer: DROP, ADVANCE, SUBSCRIBE, PAUSE, RESUME, REFRESH, SET and transactions."""

from __future__ import annotations

from millstream.schema import ObjectKind
from millstream.sql.cursor import Cursor
from millstream.sql.kinds import read_kind, skip_kind
from millstream.sql.statements import (
    Advance,
    Begin,
    Commit,
    Drop,
    Name,
    Pause,
    RefreshView,
    Resume,
    Rollback,
    SetOption,
    Statement,
    Subscribe,
)

TRANSACTION_WORDS = ("TRANSACTION", "WORK")


def read_drop(cursor: Cursor) -> Statement:
    """From behind DROP."""
    kind = read_kind(cursor)
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.object_name("a name")
    cascade = cursor.accept_any(("CASCADE", "RESTRICT")) == "CASCADE"
    has_table = kind is ObjectKind.INDEX and cursor.accept("ON")
    table = cursor.object_name("a table") if has_table else None
    return Drop(kind, name, if_exists, cascade, table, text=cursor.text)


def read_advance(cursor: Cursor) -> Statement:
    """From behind ADVANCE."""
    skip_kind(cursor)
    stream = cursor.object_name("a stream")
    cursor.expect("TO")
    first = cursor.index
    to = _time(cursor)
    return Advance(stream, to, cursor.since(first), text=cursor.text)


def _time(cursor: Cursor) -> int | str:
    if cursor.is_string(1):
        cursor.accept_any(("TIMESTAMP", "TIMESTAMP_LTZ"))
    if cursor.is_string():
        return cursor.string()
    sign = -1 if cursor.accept("-") else 1
    return sign * cursor.integer("a time: a whole number, or TIMESTAMP '…'")


def read_subscribe(cursor: Cursor) -> Statement:
    """From behind SUBSCRIBE."""
    cursor.accept("TO")
    skip_kind(cursor)
    return Subscribe(cursor.object_name("a continuous query"), text=cursor.text)


def read_pause(cursor: Cursor) -> Statement:
    """From behind PAUSE."""
    skip_kind(cursor)
    return Pause(cursor.object_name("a continuous query or a receptor"), text=cursor.text)


def read_resume(cursor: Cursor) -> Statement:
    """From behind RESUME."""
    skip_kind(cursor)
    return Resume(cursor.object_name("a continuous query or a receptor"), text=cursor.text)


def read_refresh(cursor: Cursor) -> Statement:
    """From behind REFRESH."""
    if not (cursor.accept("VIEW") or cursor.accept("CONTINUOUS", "VIEW") or cursor.accept("STREAMING", "VIEW")):
        cursor.fail_expecting("VIEW", near=("VIEW",))
    return RefreshView(cursor.object_name("a view"), text=cursor.text)


def read_set(cursor: Cursor) -> Statement:
    """From behind SET."""
    name = _option_name(cursor)
    if not cursor.accept("=") and not cursor.accept("TO"):
        cursor.fail_expecting("= and a value", near=("TO",))
    if cursor.at_end:
        cursor.fail_expecting("a value")
    return SetOption(name, *_value_for(cursor), text=cursor.text)


def _option_name(cursor: Cursor) -> Name:
    first = cursor.index
    parts = [cursor.name("a setting").text]
    while cursor.accept("."):
        parts.append(cursor.name("a setting").text)
    return Name(".".join(parts), cursor.since(first))


def _value_for(cursor: Cursor) -> tuple[str, Name | None]:
    """A word and the query that it is FOR, or else a value as it stands."""
    if cursor.word(1) != "FOR":
        return _value(cursor), None
    value = cursor.name("a value").text
    cursor.expect("FOR")
    return value, cursor.object_name("a continuous query")


def _value(cursor: Cursor) -> str:
    """A single string without its quotes, or else the rest of the text as it stands."""
    first = cursor.index
    cursor.index = cursor.end
    if cursor.end - first == 1 and Cursor(cursor.text, cursor.tokens, first).is_string():
        return cursor.tokens[first].text
    span = cursor.span_of(first, cursor.end - 1)
    return cursor.text[span.start : span.end]


def read_begin(cursor: Cursor) -> Statement:
    """From behind BEGIN."""
    cursor.accept_any(TRANSACTION_WORDS)
    return Begin(text=cursor.text)


def read_start(cursor: Cursor) -> Statement:
    """From behind START."""
    cursor.expect("TRANSACTION")
    return Begin(text=cursor.text)


def read_commit(cursor: Cursor) -> Statement:
    """From behind COMMIT."""
    cursor.accept_any(TRANSACTION_WORDS)
    return Commit(text=cursor.text)


def read_rollback(cursor: Cursor) -> Statement:
    """From behind ROLLBACK."""
    cursor.accept_any(TRANSACTION_WORDS)
    return Rollback(text=cursor.text)
