"""Statements that look and change nothing: SHOW, DESCRIBE, EXPLAIN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import did_you_mean
from millstream.sql.continuous import refuse_clauses
from millstream.sql.kinds import skip_kind
from millstream.sql.query import query_from
from millstream.sql.statements import Describe, Explain, ExplainMode, Name, Show, ShowWhat, Statement

if TYPE_CHECKING:
    from millstream.sql.cursor import Cursor

QUERY_STARTS = ("SELECT", "WITH", "VALUES", "FROM", "(")
SHOWN: dict[tuple[str, ...], ShowWhat] = {
    ("STREAMING", "TABLES"): ShowWhat.STREAMING_TABLES,
    ("STREAMING", "VIEWS"): ShowWhat.STREAMING_VIEWS,
    ("CONTINUOUS", "VIEWS"): ShowWhat.VIEWS,
    ("CONTINUOUS", "QUERIES"): ShowWhat.QUERIES,
    ("INDICES",): ShowWhat.INDEXES,
    ("VERSIONS",): ShowWhat.SNAPSHOTS,
    ("ALL",): ShowWhat.SETTINGS,
    **{(what.value,): what for what in ShowWhat if " " not in what.value},
}
NEEDS_OBJECT = (ShowWhat.COLUMNS, ShowWhat.FILES)
BEFORE_OBJECT = ("FROM", "IN", "OF", "ON")


def read_show(cursor: Cursor) -> Statement:
    """From behind SHOW."""
    what = _what(cursor)
    of = _object(cursor, what)
    like = _like(cursor)
    return Show(what, of, like, text=cursor.text)


def _what(cursor: Cursor) -> ShowWhat:
    for words, what in SHOWN.items():
        if cursor.accept(*words):
            return what
    names = [w.value for w in ShowWhat]
    hint = did_you_mean(cursor.source(), names) or f"SHOW takes {', '.join(names)}."
    raise cursor.error(f"expected what to show but found {cursor.found()}", hint=hint)


def _object(cursor: Cursor, what: ShowWhat) -> Name | None:
    if what is ShowWhat.CREATE:
        skip_kind(cursor)
        return cursor.object_name("a table or another object")
    if cursor.accept_any(BEFORE_OBJECT):
        return cursor.object_name("a table")
    if what in NEEDS_OBJECT:
        cursor.fail_expecting("FROM and a table", near=("FROM",))
    return None


def _like(cursor: Cursor) -> str | None:
    if cursor.accept("LIKE") or cursor.is_string():
        return cursor.string("a pattern in quotes")
    return None


def read_describe(cursor: Cursor) -> Statement:
    """From behind DESCRIBE or DESC."""
    asked = cursor.at("QUERY") and cursor.word(1) in (*QUERY_STARTS, "TABLE")
    if asked or cursor.at_any(QUERY_STARTS):
        cursor.index += asked
        refuse_clauses(cursor)
        return Describe(query=query_from(cursor), text=cursor.text)
    skip_kind(cursor)
    extended = cursor.is_name(1) and bool(cursor.accept_any(("EXTENDED", "FORMATTED")))
    name = cursor.object_name("a table or another object")
    return Describe(name, extended=extended, text=cursor.text)


def read_explain(cursor: Cursor) -> Statement:
    """From behind EXPLAIN."""
    mode = None
    if cursor.index + 1 < cursor.end:
        word = cursor.accept_any([m.value for m in ExplainMode])
        mode = ExplainMode(word) if word else None
    if cursor.at_any(QUERY_STARTS) or (cursor.at("TABLE") and cursor.is_name(1)):
        refuse_clauses(cursor)
        return Explain(mode, query=query_from(cursor), text=cursor.text)
    _check_mode(cursor)
    skip_kind(cursor)
    return Explain(mode, name=cursor.object_name("a query or a name"), text=cursor.text)


def _check_mode(cursor: Cursor) -> None:
    if cursor.word(1) in QUERY_STARTS:
        modes = [m.value for m in ExplainMode]
        hint = did_you_mean(cursor.source(), modes) or f"EXPLAIN takes {', '.join(modes)} or nothing."
        cursor.fail(f"{cursor.found()} is no kind of plan", hint=hint)
