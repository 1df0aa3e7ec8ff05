"""Statements that change rows: INSERT, UPDATE, DELETE, TRUNCATE.

The rows of VALUES come as sqlglot expressions, read once. Assignments and conditions are query fragments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.errors import Condition
from millstream.sql.query import expression_from, query_from
from millstream.sql.statements import Delete, Insert, Name, Query, Statement, Truncate, Update, Values

if TYPE_CHECKING:
    from millstream.sql.cursor import Cursor

QUERY_INSIDE = ("SELECT", "WITH", "VALUES", "FROM", "TABLE", "(")
NOT_IN_INSERT: dict[str, str] = {
    "PARTITION": "Tables have no partitions; leave it out.",
    "BY": "Name the columns in parentheses behind the table.",
    "DEFAULT": "Columns have no defaults; give the values.",
    "REPLACE": "DELETE the rows first, then INSERT.",
}
SOURCES = ("VALUES", "SELECT", "WITH", "TABLE", "FROM")


def read_insert(cursor: Cursor) -> Statement:
    """From behind INSERT."""
    overwrite = cursor.accept("OVERWRITE")
    if not overwrite or cursor.at("INTO"):
        cursor.expect("INTO")
    if cursor.at("TABLE") and cursor.is_name(1):
        cursor.index += 1
    table = cursor.object_name("a table")
    _refuse_spark_clauses(cursor)
    has_columns = cursor.at("(") and cursor.word(1) not in QUERY_INSIDE
    columns = _distinct(cursor, cursor.names_in_parentheses()) if has_columns else ()
    if not cursor.at_any((*SOURCES, "(")):
        cursor.fail_expecting("VALUES or a query", near=SOURCES)
    return Insert(table, _source(query_from(cursor)), columns, overwrite, text=cursor.text)


def _refuse_spark_clauses(cursor: Cursor) -> None:
    hint = NOT_IN_INSERT.get(cursor.word())
    if hint is not None:
        cursor.fail(f"{cursor.word()} is not supported in INSERT", hint=hint, condition=Condition.NOT_SUPPORTED)


def _distinct(cursor: Cursor, columns: tuple[Name, ...]) -> tuple[Name, ...]:
    seen: set[str] = set()
    for column in columns:
        if column.text.lower() in seen:
            cursor.fail(
                f"column {column.text!r} is there twice",
                hint="Name each column once.",
                at=column.span,
                condition=Condition.DUPLICATE_COLUMN,
            )
        seen.add(column.text.lower())
    return columns


def _source(query: Query) -> Query | Values:
    tree = query.tree
    if (
        not isinstance(tree, exp.Values)
        or tree.args.get("alias")
        or any(tree.args.get(k) for k in exp.QUERY_MODIFIERS)
    ):
        return query
    return Values(tuple(_row(row) for row in tree.expressions), query)


def _row(row: exp.Expression) -> tuple[exp.Expression, ...]:
    return tuple(row.expressions) if isinstance(row, exp.Tuple) else (row,)


def read_update(cursor: Cursor) -> Statement:
    """From behind UPDATE."""
    table = cursor.object_name("a table")
    alias = _alias(cursor, "SET")
    cursor.expect("SET")
    assignments = [_assignment(cursor, table, alias)]
    while cursor.accept(","):
        assignments.append(_assignment(cursor, table, alias))
    _distinct(cursor, tuple(name for name, _ in assignments))
    where = _where(cursor)
    return Update(table, alias, tuple(assignments), where, text=cursor.text)


def _assignment(cursor: Cursor, table: Name, alias: str | None) -> tuple[Name, Query]:
    column = cursor.name("a column")
    if cursor.accept("."):
        if column.text.lower() != (alias or table.text).lower():
            cursor.fail(
                "a field inside a column cannot be set",
                hint="Set the whole column, for instance with named_struct.",
                at=column.span,
                condition=Condition.NOT_SUPPORTED,
            )
        column = cursor.name("a column")
    cursor.expect("=")
    return column, _expression(cursor, (",", "WHERE"))


def read_delete(cursor: Cursor) -> Statement:
    """From behind DELETE."""
    cursor.expect("FROM")
    table = cursor.object_name("a table")
    alias = _alias(cursor, "WHERE")
    if cursor.at("USING"):
        cursor.fail(
            "USING is not supported in DELETE",
            hint="Use WHERE … IN (SELECT …) or EXISTS.",
            condition=Condition.NOT_SUPPORTED,
        )
    return Delete(table, alias, _where(cursor), text=cursor.text)


def read_truncate(cursor: Cursor) -> Statement:
    """From behind TRUNCATE."""
    if cursor.at("TABLE") and cursor.is_name(1):
        cursor.index += 1
    return Truncate(cursor.object_name("a table"), text=cursor.text)


def _alias(cursor: Cursor, clause: str) -> str | None:
    """`[AS] alias` in front of SET, WHERE or the end; another word there is a misspelt clause."""
    if cursor.accept("AS"):
        return cursor.name("an alias").text
    if not cursor.is_name() or cursor.at_any(("SET", "WHERE", "USING")):
        return None
    if cursor.index + 1 < cursor.end and cursor.word(1) != clause:
        cursor.fail_expecting(clause, near=(clause,))
    return cursor.name("an alias").text


def _where(cursor: Cursor) -> Query | None:
    if not cursor.accept("WHERE"):
        return None
    return expression_from(cursor, cursor.end)


def _expression(cursor: Cursor, stops: tuple[str, ...]) -> Query:
    start = cursor.index
    cursor.skip_to(stops)
    end, cursor.index = cursor.index, start
    return expression_from(cursor, end)
