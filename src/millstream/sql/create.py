"""CREATE of everything that holds rows: tables, streams, streaming tables; indexes, receptors and plain views.

Continuous queries and views are read in `continuous`. What Spark or PostgreSQL would take and Millstream
does not (storage clauses, temporary objects, constraints) is refused with NOT_SUPPORTED.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from millstream.errors import Condition, did_you_mean
from millstream.sql.continuous import (
    create_continuous_query,
    create_streaming_view,
    create_view,
    read_period,
)
from millstream.sql.cursor import Cursor
from millstream.sql.interval import read_interval
from millstream.sql.names import check_name
from millstream.sql.query import query_from
from millstream.sql.statements import (
    CreateIndex,
    CreateReceptor,
    CreateStream,
    CreateStreamingTable,
    CreateTable,
    Name,
    Statement,
)
from millstream.sql.types import read_columns

if TYPE_CHECKING:
    from millstream.errors import Span, StatementError
    from millstream.schema import Column, Duration

KINDS = (
    "TABLE",
    "STREAM",
    "STREAMING TABLE",
    "FOREIGN TABLE",
    "INDEX",
    "RECEPTOR",
    "VIEW",
    "CONTINUOUS VIEW",
    "CONTINUOUS QUERY",
    "STREAMING VIEW",
)
NOT_KINDS: dict[str, str] = {
    "TEMPORARY": "Create it without TEMPORARY, and DROP it afterwards.",
    "TEMP": "Create it without TEMP, and DROP it afterwards.",
    "GLOBAL": "Create it without GLOBAL TEMPORARY, and DROP it afterwards.",
    "EXTERNAL": "Use COPY … FROM to load files, or CREATE RECEPTOR to follow them.",
    "MATERIALIZED": "Use CREATE CONTINUOUS VIEW.",
    "DATABASE": "A database is a directory; open another one with connect.",
    "SCHEMA": "A database has the one schema 'main'.",
    "NAMESPACE": "A database has the one schema 'main'.",
    "CATALOG": "A database has the one schema 'main'.",
    "FUNCTION": "Use the functions of Spark SQL.",
    "PROCEDURE": "Send the statements one by one.",
    "TRIGGER": "Use CREATE CONTINUOUS QUERY.",
    "UNIQUE": "Keys are not enforced; use CREATE INDEX.",
    "EMITTER": "Name the emitter in CREATE CONTINUOUS QUERY … INTO.",
    "SEQUENCE": "Give the numbers yourself.",
    "USER": "Access is that of the files.",
    "ROLE": "Access is that of the files.",
}
STORAGE_CLAUSES: dict[str, str] = {
    "USING": "Tables are always stored as Parquet; leave it out.",
    "STORED": "Tables are always stored as Parquet; leave it out.",
    "ROW": "Tables are always stored as Parquet; leave it out.",
    "FORMAT": "Tables are always stored as Parquet; leave it out.",
    "LOCATION": "Tables are kept in the database's own directory; leave it out.",
    "PARTITIONED BY": "Leave it out; use CREATE INDEX for fast look-ups.",
    "PARTITION BY": "Leave it out; use CREATE INDEX for fast look-ups.",
    "CLUSTER BY": "Leave it out; use CREATE INDEX for fast look-ups.",
    "CLUSTERED": "Leave it out; use CREATE INDEX for fast look-ups.",
    "TBLPROPERTIES": "Leave it out.",
    "OPTIONS": "Leave it out.",
    "LIKE": "Use CREATE TABLE … AS SELECT … WHERE false.",
}


@dataclass(frozen=True, slots=True)
class _Heading:
    """What every CREATE starts with."""

    name: Name
    if_not_exists: bool
    or_replace: bool


def read_create(cursor: Cursor) -> Statement:
    """Any CREATE, from behind the word CREATE."""
    or_replace_at = cursor.index
    or_replace = cursor.accept("OR", "REPLACE")
    kind = _kind(cursor)
    if or_replace and kind not in ("TABLE", "VIEW", "CONTINUOUS VIEW"):
        cursor.fail(
            f"OR REPLACE is not supported for {kind}",
            hint="DROP it first.",
            at=cursor.span_of(or_replace_at, or_replace_at + 1),
            condition=Condition.NOT_SUPPORTED,
        )
    heading = _heading(cursor, or_replace)
    statement = _READERS[kind](cursor, heading)
    cursor.expect_end()
    return statement


def _kind(cursor: Cursor) -> str:
    word = cursor.word()
    two = f"{word} {cursor.word(1)}"
    if two in KINDS:
        cursor.index += 2
        return two
    if word in KINDS:
        cursor.index += 1
        return word
    raise _no_kind(cursor, word)


def _no_kind(cursor: Cursor, word: str) -> StatementError:
    if word in NOT_KINDS:
        return cursor.error(
            f"CREATE {word} is not supported", hint=NOT_KINDS[word], condition=Condition.NOT_SUPPORTED
        )
    seconds = [k.split()[1] for k in KINDS if k.split()[0] == word and " " in k]
    if seconds:
        cursor.index += 1
        return cursor.expecting(" or ".join(seconds), near=seconds)
    hint = did_you_mean(cursor.source(), [k.split()[0] for k in KINDS])
    return cursor.error(
        f"expected what to create but found {cursor.found()}", hint=hint or f"CREATE takes {', '.join(KINDS)}."
    )


def _heading(cursor: Cursor, or_replace: bool) -> _Heading:
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    if cursor.at("ON"):
        cursor.fail("an index needs a name", hint="Write CREATE INDEX name ON table (column).")
    name = cursor.object_name("a name for it")
    check_name(name)
    return _Heading(name, if_not_exists, or_replace)


def _table(cursor: Cursor, heading: _Heading) -> Statement:
    columns = read_columns(cursor) if cursor.at("(") and not _starts_query(cursor) else ()
    comment = _comment(cursor)
    _refuse_storage(cursor)
    query_at = cursor.index
    as_query = query_from(cursor) if cursor.accept("AS") or cursor.at_any(("SELECT", "WITH")) else None
    if columns and as_query is not None:
        cursor.fail(
            "a table takes columns or AS SELECT, not both",
            hint="Name and cast the columns in the SELECT.",
            at=cursor.span_of(query_at),
            condition=Condition.NOT_SUPPORTED,
        )
    if not columns and as_query is None:
        cursor.fail_expecting("( and columns, or AS SELECT")
    return CreateTable(
        heading.name, columns, as_query, heading.if_not_exists, heading.or_replace, comment, text=cursor.text
    )


def _starts_query(cursor: Cursor) -> bool:
    return cursor.word(1) in ("SELECT", "WITH", "VALUES", "FROM", "(")


def _comment(cursor: Cursor) -> str | None:
    return cursor.string("the comment in quotes") if cursor.accept("COMMENT") else None


def _refuse_storage(cursor: Cursor) -> None:
    word = cursor.word()
    if word in STORAGE_CLAUSES:
        cursor.fail(f"{word} is not supported here", hint=STORAGE_CLAUSES[word], condition=Condition.NOT_SUPPORTED)


@dataclass(slots=True)
class _Clauses:
    """What may stand behind a stream's columns, in any order."""

    time_column: Name | None = None
    watermark: Duration | None = None
    period: Duration | None = None
    period_span: Span | None = None
    comment: str | None = None


def _clauses(cursor: Cursor) -> _Clauses:
    clauses = _Clauses()
    while not cursor.at_end:
        if clauses.time_column is None and cursor.accept("TIMESTAMP", "BY"):
            clauses.time_column = cursor.name("the time column")
            clauses.watermark = read_interval(cursor) if cursor.accept("WATERMARK") else None
        elif clauses.period_span is None and cursor.accept("RANGE"):
            first = cursor.index
            clauses.period = read_period(cursor)
            clauses.period_span = cursor.since(first)
        elif clauses.comment is None and cursor.at("COMMENT"):
            clauses.comment = _comment(cursor)
        else:
            _refuse_clause(cursor)
    return clauses


def _refuse_clause(cursor: Cursor) -> NoReturn:
    _refuse_storage(cursor)
    if cursor.at("WATERMARK"):
        cursor.fail("WATERMARK stands behind TIMESTAMP BY", hint="Write TIMESTAMP BY column WATERMARK INTERVAL ….")
    if cursor.at("AS"):
        cursor.fail(
            "streams and streaming tables are not made from a query",
            hint="Create it with its columns, then INSERT INTO it; or use CREATE STREAMING VIEW.",
            condition=Condition.NOT_SUPPORTED,
        )
    cursor.fail_expecting("the end or a clause", near=("TIMESTAMP BY", "WATERMARK", "RANGE", "COMMENT"))


def _stream(cursor: Cursor, heading: _Heading) -> Statement:
    return _stream_of(cursor, heading, read_columns(cursor))


def _stream_of(cursor: Cursor, heading: _Heading, columns: tuple[Column, ...]) -> Statement:
    range_at = cursor.index
    clauses = _clauses(cursor)
    if clauses.period_span is not None:
        cursor.fail(
            "a stream keeps no rows, so it has no RANGE",
            hint="Use CREATE STREAMING TABLE.",
            at=_span_of_word(cursor, range_at, "RANGE"),
        )
    return CreateStream(
        heading.name,
        columns,
        clauses.time_column,
        clauses.watermark,
        heading.if_not_exists,
        clauses.comment,
        text=cursor.text,
    )


def _span_of_word(cursor: Cursor, start: int, word: str) -> Span:
    back = Cursor(cursor.text, cursor.tokens, start)
    back.skip_to((word,))
    return back.span()


def _foreign_table(cursor: Cursor, heading: _Heading) -> Statement:
    columns = read_columns(cursor)
    cursor.expect("SERVER")
    server = cursor.name("the server STREAM")
    if server.text.upper() != "STREAM":
        cursor.fail(
            f"there is no server {server.text!r}",
            hint="Write SERVER stream; use CREATE RECEPTOR for other sources.",
            at=server.span,
            condition=Condition.NOT_SUPPORTED,
        )
    return _stream_of(cursor, heading, columns)


def _streaming_table(cursor: Cursor, heading: _Heading) -> Statement:
    if cursor.at("AS"):
        _refuse_clause(cursor)
    columns = read_columns(cursor)
    clauses = _clauses(cursor)
    if clauses.period_span is None:
        cursor.fail(
            "a streaming table needs a RANGE",
            hint="Add RANGE INTERVAL '30' DAY, or RANGE UNBOUNDED to keep everything.",
        )
    return CreateStreamingTable(
        heading.name,
        columns,
        clauses.time_column,
        clauses.watermark,
        clauses.period,
        heading.if_not_exists,
        clauses.comment,
        clauses.period_span,
        text=cursor.text,
    )


def _index(cursor: Cursor, heading: _Heading) -> Statement:
    cursor.expect("ON")
    table = cursor.object_name("a table")
    method = _method(cursor)
    columns = cursor.names_in_parentheses()
    method = method or _method(cursor)
    return CreateIndex(heading.name, table, columns, method or "BTREE", heading.if_not_exists, text=cursor.text)


def _method(cursor: Cursor) -> str:
    if not cursor.accept("USING"):
        return ""
    method = cursor.accept_any(("BTREE", "HASH"))
    if not method:
        cursor.fail(
            f"there is no index method {cursor.found()}",
            hint="Use BTREE or HASH.",
            condition=Condition.UNKNOWN_OPTION,
        )
    return method


def _receptor(cursor: Cursor, heading: _Heading) -> Statement:
    cursor.expect("INTO")
    into = cursor.object_name("a stream")
    cursor.expect("FROM")
    format_ = cursor.name("the format of the source").text
    while cursor.accept("."):
        format_ += "." + cursor.name("the format of the source").text
    options = _options(cursor) if cursor.accept("OPTIONS") else ()
    return CreateReceptor(heading.name, into, format_, options, heading.if_not_exists, text=cursor.text)


def _options(cursor: Cursor) -> tuple[tuple[str, str], ...]:
    cursor.expect("(")
    options: dict[str, str] = {}
    while not cursor.at(")"):
        at, key = cursor.span(), _option_key(cursor)
        cursor.accept("=")
        if key in options:
            cursor.fail(
                f"option {key!r} is there twice", hint="Give it once.", at=at, condition=Condition.INVALID_ARGUMENT
            )
        options[key] = _option_value(cursor)
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return tuple(options.items())


def _option_key(cursor: Cursor) -> str:
    if cursor.is_string():
        return cursor.string()
    key = cursor.name("an option").text
    while cursor.accept("."):
        key += "." + cursor.name("an option").text
    return key


def _option_value(cursor: Cursor) -> str:
    if cursor.is_string():
        return cursor.string()
    sign = "-" if cursor.accept("-") else ""
    if cursor.is_number() or cursor.at_any(("TRUE", "FALSE")):
        cursor.index += 1
        token = cursor.tokens[cursor.index - 1]
        return sign + cursor.text[token.start : token.end + 1].lower()
    raise cursor.expecting("a value in quotes")


def _view(cursor: Cursor, heading: _Heading) -> Statement:
    return create_view(cursor, heading.name, heading.if_not_exists, heading.or_replace)


def _continuous_view(cursor: Cursor, heading: _Heading) -> Statement:
    return create_view(cursor, heading.name, heading.if_not_exists, heading.or_replace, continuous=True)


def _continuous_query(cursor: Cursor, heading: _Heading) -> Statement:
    return create_continuous_query(cursor, heading.name, heading.if_not_exists)


def _streaming_view(cursor: Cursor, heading: _Heading) -> Statement:
    return create_streaming_view(cursor, heading.name, heading.if_not_exists)


_READERS = {
    "TABLE": _table,
    "STREAM": _stream,
    "STREAMING TABLE": _streaming_table,
    "FOREIGN TABLE": _foreign_table,
    "INDEX": _index,
    "RECEPTOR": _receptor,
    "VIEW": _view,
    "CONTINUOUS VIEW": _continuous_view,
    "CONTINUOUS QUERY": _continuous_query,
    "STREAMING VIEW": _streaming_view,
}
