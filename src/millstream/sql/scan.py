"""Base tables of a query that sqlglot cannot read, found by walking its tokens.

Names after FROM, JOIN and a comma in FROM are tables, unless a WITH defines them or they are called like a
function. It promises the same spans as reading the tree does, and no more than that: Spark gives the
final word on such a text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.sql.cursor import Cursor, unqualified
from millstream.sql.statements import AsOf, TableReference, Window
from millstream.sql.window import at_as_of, at_window_clause, read_as_of, read_window, read_window_clause

if TYPE_CHECKING:
    from millstream.errors import Span
    from millstream.sql.statements import Name

QUERY_STARTS = ("SELECT", "WITH", "VALUES", "FROM", "TABLE", "(")
TABLE_FUNCTIONS = ("TUMBLE", "HOP", "SESSION")
FROM_IN_ARGUMENTS = ("EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "OVERLAY", "POSITION")
END_OF_FROM = frozenset({
    "SELECT", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "SORT BY", "CLUSTER BY", "DISTRIBUTE BY", "LIMIT",
    "OFFSET", "UNION", "EXCEPT", "INTERSECT", "MINUS", "WINDOW", "QUALIFY", "VIEW", "|>",
})  # fmt: skip
NOT_ALIASES = END_OF_FROM | {
    "ON", "USING", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "SEMI", "ANTI", "LATERAL",
    "PIVOT", "UNPIVOT", "TABLESAMPLE", "FOR", "SET",
}  # fmt: skip


@dataclass
class Scanned:
    """What a scan found."""

    tables: list[TableReference] = field(default_factory=list)
    window: Window | None = None
    as_of: AsOf | None = None


@dataclass
class _Level:
    """One level of parentheses: whether its FROM is open, and whether a table comes next."""

    in_from: bool = False
    expecting: bool = False
    arguments_of: str = ""


def scan_tables(cursor: Cursor) -> Scanned:
    """Walk all tokens; the cursor is at its end afterwards."""
    scanned = Scanned()
    defined = _defined_names(Cursor(cursor.text, cursor.tokens))
    levels = [_Level()]
    while not cursor.at_end:
        if levels[-1].expecting and cursor.is_name() and not cursor.at_any(NOT_ALIASES):
            levels[-1].expecting = False
            _table(cursor, scanned, defined)
        elif not _trailing(cursor, scanned, len(levels)):
            _step(cursor, levels)
    return scanned


def _step(cursor: Cursor, levels: list[_Level]) -> None:
    word, level = cursor.word(), levels[-1]
    if word == "(":
        before = Cursor(cursor.text, cursor.tokens, max(cursor.index - 1, 0)).word()
        levels.append(_Level(level.expecting, level.expecting, before))
        level.expecting = False
    elif word == ")" and len(levels) > 1:
        levels.pop()
    elif word == "FROM" and level.arguments_of not in FROM_IN_ARGUMENTS and not _after(cursor, "DISTINCT"):
        level.in_from = level.expecting = True
    elif (
        word == "JOIN"
        or (word == "," and level.in_from)
        or (
            word == "TABLE"
            and (cursor.index == 0 or _after(cursor, "(", "=>", "ALL", "UNION", "EXCEPT", "INTERSECT"))
        )
    ):
        level.expecting = True
    elif word in END_OF_FROM:
        level.in_from = level.expecting = False
    elif word not in ("LATERAL", "ONLY"):
        level.expecting = False
    cursor.index += 1


def _after(cursor: Cursor, *words: str) -> bool:
    return cursor.index > 0 and Cursor(cursor.text, cursor.tokens, cursor.index - 1).word() in words


def _defined_names(cursor: Cursor) -> frozenset[str]:
    """Names that a WITH clause gives: `name [(…)] AS (query`."""
    names: set[str] = set()
    while not cursor.at_end:
        start = cursor.index
        if cursor.is_name() and _after(cursor, "WITH", "RECURSIVE", ","):
            name = cursor.name().text
            if cursor.accept("("):
                cursor.skip_to((")",))
                cursor.accept(")")
            if cursor.at("AS", "(") and cursor.word(2) in QUERY_STARTS:
                names.add(name.lower())
        cursor.index = start + 1
    return frozenset(names)


def _table(cursor: Cursor, scanned: Scanned, defined: frozenset[str]) -> None:
    called = cursor.word()
    name, parts = _object_name(cursor)
    if cursor.at("("):
        if called in TABLE_FUNCTIONS:
            _table_argument(cursor, scanned, defined)
        return
    if parts > 1 or name.text.lower() not in defined:
        scanned.tables.append(_with_suffixes(cursor, name))


def _table_argument(cursor: Cursor, scanned: Scanned, defined: frozenset[str]) -> None:
    start = cursor.index
    cursor.index += 1
    if cursor.is_name() and cursor.word(1) != "(":
        name, parts = _object_name(cursor)
        if parts > 1 or name.text.lower() not in defined:
            scanned.tables.append(TableReference(name.text, name.span))
    cursor.index = start


def _object_name(cursor: Cursor) -> tuple[Name, int]:
    parts = [cursor.name()]
    while cursor.at(".") and cursor.is_name(1):
        cursor.index += 1
        parts.append(cursor.name())
    return unqualified(parts), len(parts)


def _with_suffixes(cursor: Cursor, name: Name) -> TableReference:
    alias: str | None = None
    window: Window | None = None
    as_of: AsOf | None = None
    extra: list[Span] = []
    while True:
        if cursor.at("[") and window is None:
            window = read_window(cursor)
            extra.append(window.span)
        elif as_of is None and (read := read_as_of(cursor)) is not None:
            as_of = read
            extra.append(as_of.span)
        elif alias is None and (found := _alias(cursor)) is not None:
            alias = found
        else:
            return TableReference(name.text, name.span, alias, window, as_of, tuple(extra))


def _alias(cursor: Cursor) -> str | None:
    if at_as_of(cursor) or (not cursor.accept("AS") and cursor.at_any(NOT_ALIASES)):
        return None
    return cursor.name().text if cursor.is_name() else None


def _trailing(cursor: Cursor, scanned: Scanned, depth: int) -> bool:
    """AS OF and WINDOW for the whole query, at its very end."""
    start = cursor.index
    if depth > 1 or not (at_window_clause(cursor) or at_as_of(cursor)):
        return False
    window = read_window_clause(cursor) if at_window_clause(cursor) else None
    as_of = read_as_of(cursor)
    if window is None and at_window_clause(cursor):
        window = read_window_clause(cursor)
    if not cursor.at_end:
        cursor.index = start
        return False
    scanned.window, scanned.as_of = window, as_of
    return True
