"""`TUMBLE(s, ts, INTERVAL …)`, `HOP(s, ts, INTERVAL step, INTERVAL length)`, `SESSION(s, ts, INTERVAL gap)`.

Found in FROM by their tokens. Also reads the longer form, `TUMBLE(TABLE s, DESCRIPTOR(ts), …)`, and for sessions
of their own for each key `SESSION(TABLE s PARTITION BY k, DESCRIPTOR(ts), …)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.errors import Condition, Span
from millstream.schema import Duration
from millstream.sql.cursor import Cursor
from millstream.sql.dialect import tokenize
from millstream.sql.interval import read_interval
from millstream.sql.scan import NOT_ALIASES

if TYPE_CHECKING:
    from millstream.sql.statements import Name, Query

FORMS = {
    "TUMBLE": "Write TUMBLE(stream, time, INTERVAL '1' MINUTE).",
    "HOP": "Write HOP(stream, time, INTERVAL '1' MINUTE, INTERVAL '5' MINUTE): the step, then the length.",
    "SESSION": "Write SESSION(stream, time, INTERVAL '5' MINUTE): how long after a row its session ends.",
}


@dataclass(frozen=True, slots=True)
class Cut:
    """A stream cut into windows that are as long as `length` and begin every `step`; TUMBLE has both the same.

    Of SESSION both are the gap; `keys` have sessions of their own.
    """

    function: str
    span: Span
    stream: Name
    time: Name
    step: Duration
    length: Duration
    has_alias: bool
    keys: tuple[Name, ...] = ()


def find_cuts(query: Query) -> tuple[Cut, ...]:
    """The calls of TUMBLE and HOP in a query, in the order of the text."""
    starts = {f.span.start for f in query.functions if f.text.upper() in FORMS}
    if not starts:
        return ()
    tokens = tokenize(query.text)
    return tuple(_read(Cursor(query.text, tokens, i)) for i, t in enumerate(tokens) if t.start in starts)


def _read(cursor: Cursor) -> Cut:
    first, function = cursor.index, cursor.word()
    cursor.index += 1
    cursor.expect("(")
    cursor.accept("TABLE")
    stream = cursor.object_name("a stream")
    keys = _keys(cursor) if function == "SESSION" and cursor.accept("PARTITION BY") else ()
    cursor.expect(",")
    time = _time(cursor)
    lengths = []
    while cursor.accept(","):
        lengths.append(_length(cursor))
    if len(lengths) != (2 if function == "HOP" else 1):
        cursor.fail(
            f"{function} with {len(lengths)} lengths",
            at=cursor.since(first),
            condition=Condition.WRONG_ARITY,
            hint=FORMS[function],
        )
    cursor.expect(")")
    span = cursor.since(first)
    behind = cursor.word()
    has_alias = cursor.at("AS") or (cursor.is_name() and behind not in NOT_ALIASES)
    return Cut(function, span, stream, time, lengths[0], lengths[-1], has_alias, keys)


def _keys(cursor: Cursor) -> tuple[Name, ...]:
    found = [cursor.name("a column name")]
    while cursor.accept(","):
        # The next argument is the time, which DESCRIPTOR marks.
        if cursor.at("DESCRIPTOR"):
            cursor.index -= 1
            break
        found.append(cursor.name("a column name"))
    return tuple(found)


def _time(cursor: Cursor) -> Name:
    if not cursor.accept("DESCRIPTOR"):
        return cursor.name("a column name")
    cursor.expect("(")
    found = cursor.name("a column name")
    cursor.expect(")")
    return found


def _length(cursor: Cursor) -> Duration:
    if not cursor.is_number():
        return read_interval(cursor)
    first = cursor.index
    amount = cursor.integer()
    if amount == 0:
        cursor.fail(
            "a window needs a length",
            at=cursor.since(first),
            condition=Condition.INVALID_INTERVAL,
            hint="Give a number above zero.",
        )
    return Duration(amount, is_number=True)
