"""A query's own words, changed so that Spark understands them, and the way back for whatever it says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import Condition, Span, StatementError
from millstream.execute import query as execute
from millstream.execute.failures import Splice
from millstream.schema import ObjectKind
from millstream.sql import statements as st
from millstream.sql.dialect import tokenize
from millstream.sql.parse import parse_one

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from millstream.catalog.records import TableInfo

MOMENTS, CALENDAR = ("now", "current_timestamp"), ("current_date", "curdate", "current_week", "localtimestamp")
BARE = ("current_timestamp", "current_date", "localtimestamp")
MOMENT = 1_618_033_988_749_895
"""Stands for now() over integer time where Spark is asked for types alone; nobody else would write it."""


def edited(asked: st.Query, edits: Sequence[tuple[Span, str]]) -> tuple[st.Query, Splice]:
    """The query with some of its text replaced, and the way back to the text as it was."""
    if not edits:
        return asked, Splice(text=asked.text)
    text, pieces = execute.splice(asked.text, edits)
    made = parse_one(text)
    assert isinstance(made, st.Select)
    return made.query, Splice(tuple(pieces), text=asked.text)


def back(span: Span | None, asked: st.Query, splice: Splice) -> Span | None:
    """Where in the statement a place in the query's edited text stands."""
    found = None if span is None else splice.back(span.start, span.end)
    return None if found is None else found.shifted(asked.offset)


def lags(asked: st.Query) -> list[tuple[Span, str]]:
    """PREV in words that Spark knows, for its analysis."""
    edits: list[tuple[Span, str]] = []
    starts = {f.span.start for f in asked.functions if f.text.lower() == "prev"}
    if not starts:
        return edits
    tokens = tokenize(asked.text)
    for place, token in enumerate(tokens):
        if token.start not in starts:
            continue
        depth = 0
        for behind in tokens[place + 1 :]:
            depth += (behind.text == "(") - (behind.text == ")")
            if depth == 0:
                edits.append((Span(token.start, token.end + 1), "lag"))
                edits.append((Span(behind.end + 1, behind.end + 1), " OVER (ORDER BY 1)"))
                break
    return edits


def moments(asked: st.Query, known: Mapping[str, TableInfo]) -> list[tuple[Span, str]]:
    """now() over integer time, for Spark's analysis: a number, as the instant is."""
    calls = [(name, span) for name, span in clock_calls(asked) if _is_integer_time(asked, known)]
    for name, span in calls:
        if name not in MOMENTS:
            raise StatementError(
                Condition.QUERY_REFUSED,
                f"{name} is of the calendar, and the time of this query is a number",
                hint="Use now(): it is the instant, as a BIGINT.",
                span=span.shifted(asked.offset),
            )
    return [(span, f"{MOMENT}L") for _, span in calls]


def as_written(text: str) -> str:
    """Spark's words without the number that has stood for now()."""
    return text.replace(f"{MOMENT}L", "now()").replace(str(MOMENT), "now()")


def clock_calls(asked: st.Query) -> Iterator[tuple[str, Span]]:
    """The calls of the clock in a query's own text; some need no brackets."""
    tokens = tokenize(asked.text)
    for place, token in enumerate(tokens):
        name = token.text.lower()
        is_plain = asked.text[token.start : token.end + 1].lower() == name
        is_called = [t.text for t in tokens[place + 1 : place + 3]] == ["(", ")"]
        is_column = place > 0 and tokens[place - 1].text in (".", "AS", "as")
        if name in (*MOMENTS, *CALENDAR) and is_plain and not is_column and (is_called or name in BARE):
            yield name, Span(token.start, tokens[place + 2 if is_called else place].end + 1)


def _is_integer_time(asked: st.Query, known: Mapping[str, TableInfo]) -> bool:
    """Whether the streams that a query reads, itself or through views, count their time in numbers."""
    for reference in asked.tables:
        found = known.get(reference.name.lower())
        if found is not None and found.kind is ObjectKind.VIEW:
            inner = parse_one(found.definition or "")
            if isinstance(inner, st.Select) and _is_integer_time(inner.query, known):
                return True
        elif found is not None and found.time is not None and found.time.delay.is_number:
            return True
    return False
