"""ALTER: new columns for tables, streams and streaming tables, and another RANGE for streaming tables.

What it does not do (dropping, renaming, retyping, placing a column) is refused with NOT_SUPPORTED and the two
things that it does. A new column is null in the rows that are there, so NOT NULL is refused too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from millstream.errors import Condition
from millstream.schema import ObjectKind
from millstream.sql.continuous import read_period
from millstream.sql.cursor import Cursor
from millstream.sql.kinds import read_kind
from millstream.sql.statements import AddColumns, AlterTable, SetRange, Statement
from millstream.sql.types import read_column_list

if TYPE_CHECKING:
    from millstream.errors import StatementError

KINDS = (ObjectKind.TABLE, ObjectKind.STREAM, ObjectKind.STREAMING_TABLE)
FORMS = "ALTER takes ADD COLUMN name type and, for a streaming table, SET RANGE INTERVAL … or SET RANGE UNBOUNDED."


def read_alter(cursor: Cursor) -> Statement:
    """From behind ALTER."""
    first = cursor.index
    kind = read_kind(cursor)
    if kind not in KINDS:
        cursor.fail(
            f"ALTER {kind.value.upper()} is not supported",
            hint=f"{FORMS} DROP anything else and CREATE it again.",
            at=cursor.since(first),
            condition=Condition.NOT_SUPPORTED,
        )
    name = cursor.object_name("a name")
    return AlterTable(kind, name, _action(cursor), text=cursor.text)


def _action(cursor: Cursor) -> AddColumns | SetRange:
    first = cursor.index
    if cursor.at_end:
        cursor.fail_expecting("ADD COLUMN or SET RANGE")
    if cursor.accept("ADD", "COLUMN") or cursor.accept("ADD", "COLUMNS"):
        return _add_columns(cursor)
    if cursor.accept("SET", "RANGE"):
        return _set_range(cursor)
    raise _refused(cursor, first)


def _refused(cursor: Cursor, first: int) -> StatementError:
    """Points at the action's first two words; if there is only a good one, the text just ends too early."""
    word = cursor.word()
    if word in ("ADD", "SET") and first + 1 == cursor.end:
        cursor.index += 1
        return cursor.expecting("COLUMN" if word == "ADD" else "RANGE")
    return cursor.error(
        "this change is not supported",
        hint=FORMS,
        at=cursor.span_of(first, min(first + 1, cursor.end - 1)),
        condition=Condition.NOT_SUPPORTED,
    )


def _set_range(cursor: Cursor) -> SetRange:
    first = cursor.index
    period = read_period(cursor)
    return SetRange(period, cursor.since(first))


def _add_columns(cursor: Cursor) -> AddColumns:
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    first = cursor.index
    in_parentheses = cursor.accept("(")
    columns = read_column_list(cursor)
    if not all(column.nullable for _, column in columns):
        _refuse_not_null(cursor, first)
    if cursor.at_any(("FIRST", "AFTER")):
        cursor.fail(
            "a new column always comes last",
            hint="Leave it out, and name the columns in the order you want in SELECT.",
            condition=Condition.NOT_SUPPORTED,
        )
    if in_parentheses:
        cursor.expect(")")
    return AddColumns(tuple(c for _, c in columns), tuple(n for n, _ in columns), if_not_exists)


def _refuse_not_null(cursor: Cursor, first: int) -> NoReturn:
    found = Cursor(cursor.text, cursor.tokens, first, cursor.index)
    # Inside of <…> NOT NULL speaks of a field, and fields lose it as they do everywhere.
    depth = 0
    while not (depth == 0 and found.at("NOT", "NULL")):
        depth += (found.word() == "<") - found.word().count(">")
        found.index += 1
    cursor.fail(
        "a new column has no value in the rows that are there, so it cannot be NOT NULL",
        hint="Leave NOT NULL out.",
        at=cursor.span_of(found.index, found.index + 1),
        condition=Condition.INVALID_ARGUMENT,
    )
