"""What may stand behind a table in FROM besides Spark's own: windows and AS OF.

Reads `[INTERVAL i]`, `[ROWS k]`, `[PARTITION BY p ROWS k]`, `[p ROWS k]`, `[LANDMARK [RESET INTERVAL i]]`, the
same without brackets behind WINDOW, and every spelling of time travel. Both the dialect's parser and the token
scan read them through here, so that they agree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.errors import Condition
from millstream.sql.interval import read_interval
from millstream.sql.statements import AsOf, Window, WindowKind

if TYPE_CHECKING:
    from millstream.errors import StatementError
    from millstream.schema import Duration
    from millstream.sql.cursor import Cursor

FORMS = "Windows are [INTERVAL '5' MINUTE], [ROWS 1000], [PARTITION BY key ROWS 4] and [LANDMARK]."
WINDOW_WORDS = ("INTERVAL", "ROWS", "PARTITION BY", "LANDMARK")
AS_OF_PHRASES: dict[tuple[str, ...], str] = {
    ("AS", "OF", "VERSION"): "VERSION",
    ("AS", "OF", "TIMESTAMP"): "TIMESTAMP",
    ("VERSION", "AS", "OF"): "VERSION",
    ("SYSTEM_VERSION", "AS", "OF"): "VERSION",
    ("TIMESTAMP", "AS", "OF"): "TIMESTAMP",
    ("SYSTEM_TIME", "AS", "OF"): "TIMESTAMP",
}


def read_window(cursor: Cursor) -> Window:
    """A window in brackets, from `[` on; its span covers the brackets."""
    first = cursor.index
    cursor.expect("[")
    window = _content(cursor)
    cursor.expect("]")
    return replace(window, span=cursor.since(first))


def at_window_clause(cursor: Cursor) -> bool:
    return cursor.at("WINDOW") and cursor.word(1) in WINDOW_WORDS


def read_window_clause(cursor: Cursor) -> Window:
    """`WINDOW INTERVAL …` at the end of a query; its span covers the whole clause."""
    first = cursor.index
    cursor.expect("WINDOW")
    return replace(_content(cursor), span=cursor.since(first))


def _content(cursor: Cursor) -> Window:
    if cursor.at("INTERVAL"):
        return Window(WindowKind.INTERVAL, length=read_interval(cursor))
    if cursor.at("ROWS") and cursor.is_number(1):
        return Window(WindowKind.ROWS, rows=_rows(cursor))
    if cursor.accept("LANDMARK"):
        return Window(WindowKind.LANDMARK, length=_reset(cursor))
    if cursor.accept("PARTITION BY") or cursor.is_name():
        return Window(WindowKind.PARTITION, partition_by=_keys(cursor), rows=_rows(cursor))
    raise _no_window(cursor)


def _no_window(cursor: Cursor) -> StatementError:
    return cursor.error(f"expected a window but found {cursor.found()}", hint=FORMS)


def _reset(cursor: Cursor) -> Duration | None:
    return read_interval(cursor) if cursor.accept("RESET") else None


def _keys(cursor: Cursor) -> tuple[str, ...]:
    keys = [cursor.name("a column name").text]
    while cursor.accept(","):
        keys.append(cursor.name("a column name").text)
    return tuple(keys)


def _rows(cursor: Cursor) -> int:
    if not cursor.accept("ROWS"):
        raise _no_window(cursor)
    rows = cursor.integer("a number of rows")
    if rows == 0:
        cursor.fail(
            "a window holds at least one row",
            hint=FORMS,
            at=cursor.span_of(cursor.index - 1),
            condition=Condition.INVALID_ARGUMENT,
        )
    return rows


def at_as_of(cursor: Cursor) -> bool:
    return _phrase(cursor) is not None


def read_as_of(cursor: Cursor) -> AsOf | None:
    """`[FOR] AS OF VERSION n`, `VERSION AS OF n` and so on; None where none stands."""
    phrase = _phrase(cursor)
    if phrase is None:
        return None
    first = cursor.index
    cursor.index += len(phrase)
    kind = AS_OF_PHRASES[phrase[-3:]]
    if kind == "VERSION":
        version = _version(cursor)
        return AsOf(version=version, span=cursor.since(first))
    return AsOf(timestamp=_timestamp(cursor), span=cursor.since(first))


def _phrase(cursor: Cursor) -> tuple[str, ...] | None:
    lead: tuple[str, ...] = ("FOR",) if cursor.at("FOR") else ()
    return next((lead + p for p in AS_OF_PHRASES if cursor.at(*lead, *p)), None)


def _version(cursor: Cursor) -> int:
    token = cursor.token()
    if cursor.is_string() and token is not None and token.text.isdecimal() and len(token.text) < 19:
        cursor.index += 1
        return int(token.text)
    if not cursor.is_number():
        cursor.fail(
            f"expected a version number but found {cursor.found()}", hint="SHOW SNAPSHOTS lists the versions."
        )
    return cursor.integer("a version number")


def _timestamp(cursor: Cursor) -> str:
    cursor.accept("TIMESTAMP")
    if not cursor.is_string():
        cursor.fail(
            f"expected a time in quotes but found {cursor.found()}",
            hint="Write AS OF TIMESTAMP '2024-01-31 12:00:00'.",
        )
    return cursor.string()
