"""Queries that stand: continuous queries, continuous and streaming views, and their clauses.

The clauses behind the query (SAMPLE, EMIT, INTO, WITH (…), WITH HISTORY) are found outside of all brackets and
cut off, so that the query itself stays the user's text and is one that Spark can read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from millstream.errors import Condition, did_you_mean
from millstream.sql.cursor import CLOSING, OPENING, Cursor
from millstream.sql.interval import read_interval
from millstream.sql.query import query_from
from millstream.sql.statements import (
    ContinuousSelect,
    CreateContinuousQuery,
    CreateStreamingView,
    CreateView,
    Emit,
    Name,
    Sample,
    Statement,
)

if TYPE_CHECKING:
    from millstream.schema import Duration
    from millstream.sql.statements import Query

CLAUSE_STARTS: dict[str, tuple[str, ...]] = {
    "SAMPLE": ("INTERVAL", "ROWS", "REALTIME"),
    "EMIT": ("ALL", "NEW", "CHANGES"),
    "WITH": ("HISTORY", "("),
}
BEFORE_NAMES = ("FROM", "JOIN", ",", "SELECT", "DISTINCT", ".", "AS")
OPTIONS = ("late", "horizon")


@dataclass(slots=True)
class _Clauses:
    sample: Sample | None = None
    emit: Emit | None = None
    into: Name | None = None
    history: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)


def create_view(
    cursor: Cursor, name: Name, if_not_exists: bool, or_replace: bool, *, continuous: bool = False
) -> Statement:
    """`AS SELECT … [WITH HISTORY]`, behind the name."""
    if cursor.at("("):
        cursor.fail(
            "a list of column names is not supported here",
            hint="Name the columns in the SELECT, with AS.",
            condition=Condition.NOT_SUPPORTED,
        )
    cursor.expect("AS")
    query, clauses = _query_and_clauses(cursor)
    for word in ("SAMPLE", "EMIT", "INTO", "WITH ("):
        if word in clauses.first:
            cursor.fail(
                f"a view is read on demand and takes no {word.split()[0]}",
                hint="Use CREATE CONTINUOUS QUERY to have results pushed.",
                at=cursor.span_of(clauses.first[word]),
            )
    return CreateView(name, query, continuous, clauses.history, or_replace, if_not_exists, text=cursor.text)


def create_continuous_query(cursor: Cursor, name: Name, if_not_exists: bool) -> Statement:
    """`AS SELECT … [SAMPLE …] [EMIT …] [INTO …] [WITH (…)]`, behind the name."""
    return CreateContinuousQuery(name, _body(cursor), if_not_exists, text=cursor.text)


def create_streaming_view(cursor: Cursor, name: Name, if_not_exists: bool) -> Statement:
    """`RANGE … AS <continuous query>`, behind the name."""
    if not cursor.accept("RANGE"):
        cursor.fail(
            f"expected RANGE but found {cursor.found()}",
            hint="Add RANGE INTERVAL '30' DAY, or RANGE UNBOUNDED to keep everything.",
        )
    period = read_period(cursor)
    return CreateStreamingView(name, period, _body(cursor), if_not_exists, text=cursor.text)


def read_period(cursor: Cursor) -> Duration | None:
    """`UNBOUNDED` (None) or an interval, behind RANGE."""
    if cursor.accept("UNBOUNDED"):
        return None
    if not cursor.at("INTERVAL"):
        cursor.fail(
            f"expected INTERVAL or UNBOUNDED but found {cursor.found()}",
            hint="Write RANGE INTERVAL '30' DAY, RANGE INTERVAL 300 for integer time, or RANGE UNBOUNDED.",
        )
    return read_interval(cursor)


def refuse_clauses(cursor: Cursor) -> None:
    """For one-time queries: point at a SAMPLE or EMIT that only standing queries take."""
    index = _first_clause(cursor)
    word = cursor.tokens[index].text.upper() if index < cursor.end else ""
    if word in ("SAMPLE", "EMIT"):
        cursor.fail(
            f"a one-time query takes no {word}",
            hint="Use CREATE CONTINUOUS QUERY name AS SELECT ….",
            at=cursor.span_of(index),
        )


def _body(cursor: Cursor) -> ContinuousSelect:
    cursor.expect("AS")
    first = cursor.index
    query, clauses = _query_and_clauses(cursor)
    if clauses.history:
        cursor.fail(
            "WITH HISTORY is for continuous views",
            hint="A window over a streaming table holds its stored rows anyway; leave it out.",
            at=cursor.span_of(clauses.first["WITH HISTORY"]),
        )
    said = cursor.since(first)
    options = tuple(clauses.options.items())
    text = cursor.text[said.start : said.end]
    return ContinuousSelect(query, clauses.sample, clauses.emit, clauses.into, options, text)


def _query_and_clauses(cursor: Cursor) -> tuple[Query, _Clauses]:
    end = _first_clause(cursor)
    if end == cursor.index:
        cursor.fail_expecting("a query")
    start = cursor.index
    query = query_from(cursor, end)
    if query.tree is None:
        _refuse_misspelt_clause(Cursor(cursor.text, cursor.tokens, start, end))
    return query, _clauses(cursor)


def _refuse_misspelt_clause(look: Cursor) -> None:
    """In a query that could not be read, SAMPLE or EMIT with another word behind it is the likely reason."""
    look.skip_to(("SAMPLE", "EMIT"))
    word = look.accept_any(("SAMPLE", "EMIT"))
    if word:
        look.fail_expecting(", ".join(CLAUSE_STARTS[word]), near=CLAUSE_STARTS[word])


def _first_clause(cursor: Cursor) -> int:
    """The first token outside of brackets, behind the query's own first one, that starts a clause."""
    depth = 0
    look = Cursor(cursor.text, cursor.tokens, cursor.index)
    while not look.at_end:
        word = look.word()
        if len(word) == 1:
            depth += (word in OPENING) - (word in CLOSING)
        elif depth == 0 and look.index > cursor.index and _starts_clause(look, word):
            return look.index
        look.index += 1
    return cursor.end


def _starts_clause(look: Cursor, word: str) -> bool:
    if word == "INTO":
        return look.is_name(1)
    if word not in CLAUSE_STARTS or Cursor(look.text, look.tokens, look.index - 1).word() in BEFORE_NAMES:
        return False
    second = look.word(1)
    # A misspelt last word must not be taken for an alias of a table named `emit`.
    misspelt = look.index + 2 == look.end and did_you_mean(second, CLAUSE_STARTS[word]) is not None
    return second in CLAUSE_STARTS[word] or misspelt


def _clauses(cursor: Cursor) -> _Clauses:
    clauses = _Clauses()
    while not cursor.at_end:
        _one_clause(cursor, clauses)
    return clauses


def _one_clause(cursor: Cursor, clauses: _Clauses) -> None:
    first = cursor.index
    if cursor.accept("SAMPLE"):
        clauses.sample = _sample(cursor, clauses, first)
    elif cursor.accept("EMIT"):
        clauses.emit = _emit(cursor, clauses, first)
    elif cursor.accept("INTO"):
        _once(cursor, clauses, "INTO", first)
        clauses.into = cursor.object_name("an emitter")
    elif cursor.accept("WITH", "HISTORY"):
        _once(cursor, clauses, "WITH HISTORY", first)
        clauses.history = True
    elif cursor.accept("WITH", "("):
        _once(cursor, clauses, "WITH (", first)
        clauses.options = _options(cursor)
    else:
        cursor.fail_expecting("a clause", near=("SAMPLE", "EMIT", "INTO", "WITH"))


def _once(cursor: Cursor, clauses: _Clauses, clause: str, first: int) -> None:
    if clause in clauses.first:
        cursor.fail(f"{clause.rstrip(' (')} is there twice", hint="Remove one.", at=cursor.span_of(first))
    clauses.first[clause] = first


def _sample(cursor: Cursor, clauses: _Clauses, first: int) -> Sample:
    _once(cursor, clauses, "SAMPLE", first)
    if cursor.accept("REALTIME"):
        return Sample()
    if cursor.at("INTERVAL"):
        return Sample(interval=read_interval(cursor))
    if not cursor.accept("ROWS"):
        cursor.fail_expecting("INTERVAL, ROWS or REALTIME", near=CLAUSE_STARTS["SAMPLE"])
    rows = cursor.integer("a number of rows")
    if rows == 0:
        cursor.fail(
            "SAMPLE ROWS takes at least one row",
            hint="Use SAMPLE REALTIME to be told of every new time.",
            at=cursor.span_of(cursor.index - 1),
            condition=Condition.INVALID_ARGUMENT,
        )
    return Sample(rows=rows)


def _emit(cursor: Cursor, clauses: _Clauses, first: int) -> Emit:
    _once(cursor, clauses, "EMIT", first)
    word = cursor.accept_any(CLAUSE_STARTS["EMIT"])
    if not word:
        cursor.fail_expecting("ALL, NEW or CHANGES", near=CLAUSE_STARTS["EMIT"])
    return Emit(word)


def _options(cursor: Cursor) -> dict[str, Any]:
    options: dict[str, Any] = {}
    while True:
        name = cursor.name("an option")
        if name.text.lower() in options:
            cursor.fail(f"{name.text} is there twice", hint="Remove one.", at=name.span)
        if name.text.lower() not in OPTIONS:
            _refuse_option(cursor, name)
        cursor.accept("=")
        options[name.text.lower()] = _value(cursor)
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return options


def _refuse_option(cursor: Cursor, name: Name) -> NoReturn:
    cursor.fail(
        f"there is no option {name.text!r}",
        hint=f"The options are {', '.join(OPTIONS)}.",
        at=name.span,
        condition=Condition.UNKNOWN_OPTION,
    )


def _value(cursor: Cursor) -> str | int | bool | Duration:
    if cursor.is_string():
        return cursor.string()
    if cursor.at("INTERVAL"):
        return read_interval(cursor)
    word = cursor.accept_any(("TRUE", "FALSE"))
    return word == "TRUE" if word else cursor.integer("a value")
