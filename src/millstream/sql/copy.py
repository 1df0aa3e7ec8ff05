"""COPY of files in and out, with its options in any order, bare or in parentheses.

The format is the one named, or else that of the file's suffix. An option that the format does not have is
refused, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millstream.errors import Condition, did_you_mean
from millstream.sql.query import query_from, whole_table
from millstream.sql.statements import CopyFrom, CopyOptions, CopyTo, FileFormat, Query, Statement

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.errors import Span
    from millstream.sql.cursor import Cursor

SUFFIXES: dict[str, tuple[FileFormat, str]] = {
    ".csv": (FileFormat.CSV, ","),
    ".tsv": (FileFormat.CSV, "\t"),
    ".json": (FileFormat.JSON, ","),
    ".jsonl": (FileFormat.JSON, ","),
    ".ndjson": (FileFormat.JSON, ","),
    ".parquet": (FileFormat.PARQUET, ","),
}
FORMATS: dict[str, tuple[FileFormat, str]] = {
    "CSV": (FileFormat.CSV, ","),
    "TSV": (FileFormat.CSV, "\t"),
    "JSON": (FileFormat.JSON, ","),
    "JSONL": (FileFormat.JSON, ","),
    "NDJSON": (FileFormat.JSON, ","),
    "PARQUET": (FileFormat.PARQUET, ","),
}
TRUTH = {"TRUE": True, "ON": True, "1": True, "FALSE": False, "OFF": False, "0": False}


CSV_ONLY = frozenset(
    (key, format_) for key in ("HEADER", "DELIMITER", "NULL") for format_ in (FileFormat.JSON, FileFormat.PARQUET)
)
NOT_WHEN_READING = CSV_ONLY | {("ON ERROR", FileFormat.PARQUET)}
NOT_WHEN_WRITING = CSV_ONLY | {("NULL", FileFormat.CSV)} | {("ON ERROR", format_) for format_ in FileFormat}


@dataclass(slots=True)
class _Given:
    """The options as they were given, with where; `format` is a key of FORMATS."""

    values: dict[str, Any] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)


def read_copy(cursor: Cursor) -> Statement:
    """From behind COPY."""
    if cursor.at("("):
        query = _parenthesised(cursor)
        cursor.expect("TO")
        return _to(cursor, query)
    table = cursor.object_name("a table or a query in parentheses")
    columns = cursor.names_in_parentheses() if cursor.at("(") else ()
    if cursor.accept("TO"):
        return _to(cursor, whole_table(cursor, table, columns))
    if not cursor.accept("FROM"):
        cursor.fail_expecting("FROM or TO", near=("FROM", "TO"))
    path, span = _path(cursor)
    options = _options(cursor, path, span, NOT_WHEN_READING)
    return CopyFrom(table, path, span, options, columns, text=cursor.text)


def _parenthesised(cursor: Cursor) -> Query:
    cursor.expect("(")
    start = cursor.index
    cursor.skip_to((")",))
    end, cursor.index = cursor.index, start
    if end == cursor.end:
        cursor.fail("( is not closed", hint="Close it with ).", at=cursor.span_of(start - 1))
    query = query_from(cursor, end)
    cursor.expect(")")
    return query


def _to(cursor: Cursor, query: Query) -> Statement:
    path, span = _path(cursor)
    return CopyTo(query, path, span, _options(cursor, path, span, NOT_WHEN_WRITING), text=cursor.text)


def _path(cursor: Cursor) -> tuple[str, Span]:
    if cursor.at_any(("STDIN", "STDOUT", "PROGRAM")):
        cursor.fail(
            f"COPY with {cursor.word()} is not supported", hint="Name a file.", condition=Condition.NOT_SUPPORTED
        )
    span = cursor.span()
    path = cursor.string("a file name in quotes")
    if not path or "\0" in path:
        cursor.fail("the file name is empty or has a NUL character", hint="Name a file.", at=span)
    return path, span


def _options(
    cursor: Cursor, path: str, path_span: Span, refused: frozenset[tuple[str, FileFormat]]
) -> CopyOptions:
    given = _Given()
    cursor.accept("WITH")
    if cursor.accept("("):
        while not cursor.at(")"):
            _option(cursor, given)
            if not cursor.accept(","):
                break
        cursor.expect(")")
    while not cursor.at_end:
        _option(cursor, given)
    format_, delimiter = _format(cursor, given, path, path_span)
    _check_fits(cursor, given, format_, refused)
    values = given.values
    return CopyOptions(
        format_,
        values.get("HEADER"),
        values.get("DELIMITER", delimiter),
        values.get("NULL", ""),
        values.get("ON ERROR", False),
    )


def _option(cursor: Cursor, given: _Given) -> None:
    first = cursor.index
    key, value = _read_option(cursor)
    if key in given.values:
        cursor.fail(
            f"{key} is there twice",
            hint="Give it once.",
            at=cursor.since(first),
            condition=Condition.INVALID_ARGUMENT,
        )
    given.values[key] = value
    given.spans[key] = cursor.since(first)


def _read_option(cursor: Cursor) -> tuple[str, Any]:
    word = cursor.accept_any(FORMATS)
    if word:
        return "FORMAT", word
    for words, reader in _READERS.items():
        if cursor.accept(*words):
            cursor.accept("=")
            return " ".join(words).replace("_", " "), reader(cursor)
    raise cursor.error(
        f"there is no option {cursor.found()}",
        hint=did_you_mean(cursor.source(), [*FORMATS, "FORMAT", "HEADER", "DELIMITER", "NULL", "ON"])
        or "The options are CSV, JSON, PARQUET, HEADER, DELIMITER, NULL and ON ERROR.",
        condition=Condition.UNKNOWN_OPTION,
    )


def _read_format(cursor: Cursor) -> str:
    token = cursor.token()
    word = token.text.upper() if token is not None else ""
    if word not in FORMATS:
        cursor.fail(
            f"there is no format {cursor.found()}",
            hint="The formats are CSV, JSON and PARQUET.",
            condition=Condition.UNKNOWN_OPTION,
        )
    cursor.index += 1
    return word


def _read_truth(cursor: Cursor) -> bool:
    word = cursor.source().strip("'\"").upper()
    if cursor.at_end or word not in TRUTH or cursor.at("ON", "ERROR"):
        return True
    cursor.index += 1
    return TRUTH[word]


def _read_delimiter(cursor: Cursor) -> str:
    cursor.accept("AS")
    span = cursor.span()
    delimiter = cursor.string("one character in quotes")
    if len(delimiter) != 1 or delimiter in '"\r\n\0':
        cursor.fail(
            "the delimiter must be one character",
            hint="Write for instance DELIMITER ';' or DELIMITER '\\t'.",
            at=span,
            condition=Condition.INVALID_ARGUMENT,
        )
    return delimiter


def _read_null(cursor: Cursor) -> str:
    cursor.accept("AS")
    return cursor.string("the text that stands for NULL, in quotes")


def _read_on_error(cursor: Cursor) -> bool:
    word = cursor.string().upper() if cursor.is_string() else cursor.accept_any(("SKIP", "STOP"))
    if word not in ("SKIP", "STOP"):
        cursor.fail_expecting("SKIP or STOP", near=("SKIP", "STOP"))
    return word == "SKIP"


_READERS: dict[tuple[str, ...], Callable[[Cursor], Any]] = {
    ("FORMAT",): _read_format,
    ("HEADER",): _read_truth,
    ("DELIMITER",): _read_delimiter,
    ("NULL",): _read_null,
    ("ON", "ERROR"): _read_on_error,
    ("ON_ERROR",): _read_on_error,
}


def _format(cursor: Cursor, given: _Given, path: str, path_span: Span) -> tuple[FileFormat, str]:
    if "FORMAT" in given.values:
        return FORMATS[given.values["FORMAT"]]
    for suffix, found in SUFFIXES.items():
        if path.lower().endswith(suffix):
            return found
    raise cursor.error(
        "the file's name does not tell its format",
        hint="Add CSV, JSON or PARQUET behind the file name.",
        at=path_span,
        condition=Condition.INVALID_ARGUMENT,
    )


def _check_fits(
    cursor: Cursor, given: _Given, format_: FileFormat, refused: frozenset[tuple[str, FileFormat]]
) -> None:
    for key in given.values:
        if (key, format_) in refused:
            cursor.fail(
                f"{key} is no option here for {format_}",
                hint="Leave it out.",
                at=given.spans[key],
                condition=Condition.INVALID_ARGUMENT,
            )
