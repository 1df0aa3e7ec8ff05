"""Spark's errors as ours: condition, one line of message, position in the user's own text.

The text that Spark runs differs from the user's where table names were replaced; `Splice` maps
positions and names back. No Java stack trace gets through.
"""

from __future__ import annotations

import difflib
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.errors import (
    Condition,
    DataError,
    MachineError,
    MillstreamError,
    Span,
    StatementError,
    did_you_mean,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONDITIONS: dict[str, tuple[type[MillstreamError], Condition]] = {
    "UNRESOLVED_COLUMN": (StatementError, Condition.UNKNOWN_COLUMN),
    "UNRESOLVED_MAP_KEY": (StatementError, Condition.UNKNOWN_COLUMN),
    "FIELD_NOT_FOUND": (StatementError, Condition.UNKNOWN_COLUMN),
    "UNRESOLVED_ROUTINE": (StatementError, Condition.UNKNOWN_FUNCTION),
    "UNRESOLVABLE_TABLE_VALUED_FUNCTION": (StatementError, Condition.UNKNOWN_FUNCTION),
    "TABLE_OR_VIEW_NOT_FOUND": (StatementError, Condition.UNKNOWN_TABLE),
    "PARSE_SYNTAX_ERROR": (StatementError, Condition.SYNTAX_ERROR),
    "PARSE_EMPTY_STATEMENT": (StatementError, Condition.SYNTAX_ERROR),
    "UNBOUND_SQL_PARAMETER": (StatementError, Condition.UNBOUND_PARAMETER),
    "UNSUPPORTED_DATATYPE": (StatementError, Condition.UNKNOWN_TYPE),
    "DATATYPE_MISMATCH": (StatementError, Condition.TYPE_MISMATCH),
    "CAST_WITHOUT_SUGGESTION": (StatementError, Condition.TYPE_MISMATCH),
    "CAST_INVALID_INPUT": (DataError, Condition.INVALID_VALUE),
    "INVALID_TYPED_LITERAL": (DataError, Condition.INVALID_VALUE),
    "CAST_OVERFLOW": (DataError, Condition.NUMERIC_OVERFLOW),
    "ARITHMETIC_OVERFLOW": (DataError, Condition.NUMERIC_OVERFLOW),
    "BINARY_ARITHMETIC_OVERFLOW": (DataError, Condition.NUMERIC_OVERFLOW),
    "NUMERIC_VALUE_OUT_OF_RANGE": (DataError, Condition.NUMERIC_OVERFLOW),
    "NUMERIC_OUT_OF_SUPPORTED_RANGE": (DataError, Condition.NUMERIC_OVERFLOW),
    "DIVIDE_BY_ZERO": (DataError, Condition.DIVIDE_BY_ZERO),
    "REMAINDER_BY_ZERO": (DataError, Condition.DIVIDE_BY_ZERO),
}


@dataclass(frozen=True, slots=True)
class Splice:
    """How Spark's text came about: (start in Spark's text, length there, span in the user's text).

    `prefix` is how much text of ours stands before it; `names` are (ours, the user's).
    """

    pieces: tuple[tuple[int, int, Span], ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    text: str | None = None
    columns: tuple[str, ...] = ()
    prefix: int = 0

    def back(self, start: int, end: int) -> Span | None:
        """The span in the user's text for one in Spark's; None if there is no such text."""
        if self.text is None:
            return None
        start, end = start - self.prefix, end - self.prefix
        if start < 0:
            return None
        first, last = self._position(start), self._position(max(start, end - 1))
        return Span(first, min(max(first, last) + 1, len(self.text)))

    def _position(self, at: int) -> int:
        shift = 0
        for start, length, span in self.pieces:
            if at < start:
                break
            if at < start + length:
                return span.start
            shift = span.end - (start + length)
        return at + shift

    def restore_names(self, message: str) -> str:
        for ours, theirs in self.names:
            message = re.sub(rf"`?{re.escape(ours)}`?", theirs, message, flags=re.IGNORECASE)
        return message


NO_SPLICE = Splice()


@contextmanager
def translated(splice: Splice = NO_SPLICE) -> Iterator[None]:
    """Run Spark code; whatever it raises comes out as a `MillstreamError`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except MillstreamError:
        raise
    except PySparkException as error:
        raise _from_spark(error, splice) from None
    except Py4JError as error:
        raise _from_text(str(error), splice) from None
    except (ConnectionError, EOFError) as error:
        raise MachineError(
            Condition.SPARK_FAILED,
            "Spark stopped while a statement was running",
            detail=str(error) or None,
            hint="Open the database again; everything acknowledged is on disk.",
        ) from None


def _from_spark(error: Exception, splice: Splice) -> MillstreamError:
    condition = getattr(error, "getCondition", lambda: None)()
    if condition is None:
        return _from_text(str(error), splice)
    parameters: dict[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    message = splice.restore_names(_message(str(error)))
    return _build(condition, message, parameters, _span(error, splice), splice)


def _build(
    condition: str, message: str, parameters: Mapping[str, str], span: Span | None, splice: Splice
) -> MillstreamError:
    kind, ours = CONDITIONS.get(condition.split(".")[0], (StatementError, Condition.QUERY_REFUSED))
    named = _about_a_name(ours, parameters, splice)
    if named is not None:
        return kind(ours, named[0], hint=named[1], span=span, text=splice.text)
    if ours is Condition.QUERY_REFUSED and _is_runtime(condition):
        kind, ours = DataError, Condition.QUERY_FAILED
    sentence, _, advice = message.partition(". ")
    hint = _advice(advice)
    if ours is Condition.SYNTAX_ERROR and span is not None and splice.text is not None:
        hint = hint or _misspelt(splice.text, span)
    return kind(
        ours,
        (sentence if sentence[1:2].isupper() else sentence[:1].lower() + sentence[1:]).rstrip("."),
        detail=f"Spark calls this {condition}.",
        hint=hint or ("Change the query at the underlined place." if span else "Change the query."),
        span=span,
        text=splice.text,
    )


def _about_a_name(ours: Condition, parameters: Mapping[str, str], splice: Splice) -> tuple[str, str | None] | None:
    """Message and hint for an error that names something which is not there; None for other errors."""
    if ours is Condition.UNKNOWN_COLUMN and "objectName" in parameters:
        name = splice.restore_names(parameters["objectName"]).replace("`", "")
        return f"no column {name!r}", did_you_mean(name.split(".")[-1], splice.columns) or _available(
            splice.columns
        )
    if ours is Condition.UNKNOWN_FUNCTION and "routineName" in parameters:
        name = parameters["routineName"].replace("`", "").split(".")[-1]
        return f"no function {name!r}", did_you_mean(name, functions()) or "Spark's manual lists its functions."
    if ours is Condition.UNBOUND_PARAMETER and "name" in parameters:
        name = parameters["name"].replace("`", "")
        return f"no value was given for the parameter :{name}", f"Pass it by name: db.sql(…, {name}=…)."
    return None


ALIKE = 0.7
CLAUSES = ("SELECT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "JOIN", "UNION", "DISTINCT", "BETWEEN")


def _misspelt(text: str, span: Span) -> str:
    """A hint for a syntax error: which of the last words looks most like a clause's but is not."""
    words = [w for w in re.findall(r"\w+", text[: span.end])[-3:] if w.upper() not in CLAUSES]
    scored = [
        (difflib.SequenceMatcher(None, word.upper(), clause).ratio(), clause, word)
        for word in words
        for clause in CLAUSES
    ]
    likeness, clause, word = max(scored, default=(0.0, "", ""))
    if likeness < ALIKE:
        return "Look at what stands just before the underlined word."
    return f"Did you mean {clause!r} where it says {word!r}?"


def _is_runtime(condition: str) -> bool:
    return condition.startswith(
        ("INVALID_ARRAY_INDEX", "MAP_KEY", "NULL_MAP_KEY", "DUPLICATED_MAP_KEY", "SCALAR_SUBQUERY_TOO_MANY_ROWS",
         "CANNOT_PARSE", "USER_RAISED", "FAILED", "INVALID_PARAMETER_VALUE", "ELEMENT_AT_BY_INDEX_ZERO",
         "MERGE_CARDINALITY", "CANNOT_MERGE", "DATETIME_OVERFLOW", "INTERVAL_", "MALFORMED", "INVALID_FRACTION")
    )  # fmt: skip


def _advice(text: str) -> str | None:
    text = re.sub(r'\s*If necessary,? set "?spark\.[^.]*\.[^.]*\.[^.]*" to "?false"?[^.]*\.', "", text).strip()
    return text or None


def _available(columns: tuple[str, ...]) -> str | None:
    return f"The columns here are {', '.join(columns[:12])}." if columns else None


def functions() -> list[str]:
    """The names of Spark's functions, for suggestions."""
    from pyspark.sql import functions as spark_functions

    return [n for n in dir(spark_functions) if n.islower() and not n.startswith("_")]


def _message(text: str) -> str:
    """The first paragraph of Spark's message, without its condition, state and plan."""
    text = text.strip()
    text = re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", text)
    text = re.split(r"\s*SQLSTATE: |\n== SQL|\n'|;\n|; line \d+ pos \d+|\nJVM stacktrace", text)[0]
    return " ".join(text.split())


def _span(error: Exception, splice: Splice) -> Span | None:
    for context in getattr(error, "getQueryContext", list)() or []:
        try:
            start, stop = context.startIndex(), context.stopIndex()
        except Exception:
            continue
        if 0 <= start <= stop:
            return splice.back(start, stop + 1)
    if match := re.search(r"\(line (\d+), pos (\d+)\)", str(error)):
        return _span_of_line(int(match[1]), int(match[2]), str(error), splice)
    return None


def _span_of_line(line: int, column: int, message: str, splice: Splice) -> Span | None:
    shown = message.partition("== SQL ==\n")[2].split("\n")
    lines = [part for part in shown if not re.fullmatch(r"-*\^\^\^", part)]
    offset = sum(len(part) + 1 for part in lines[: line - 1]) + column
    word = re.match(r"\w+|.", lines[line - 1][column:]) if line <= len(lines) else None
    return splice.back(offset, offset + (len(word[0]) if word else 1))


def _from_text(text: str, splice: Splice) -> MillstreamError:
    """An error that came without its fields: look for a condition in the text."""
    if "CANCELLED" in text.upper() or "cancelled" in text:
        return StatementError(Condition.CANCELLED, "the statement was cancelled")
    if match := re.search(r"\[([A-Z][A-Z0-9_.]+)\] (.*)", text):
        return _build(match[1], splice.restore_names(_message(match[2])), {}, None, splice)
    if "stopped SparkContext" in text:
        return MachineError(
            Condition.SPARK_FAILED,
            "Spark has stopped",
            hint="Check that its master can be reached, and open the database again in a new process.",
        )
    if "OutOfMemoryError" in text:
        return MachineError(
            Condition.SPARK_FAILED,
            "Spark ran out of memory",
            hint="Give it more (spark.driver.memory), or ask for less at a time.",
        )
    return DataError(
        Condition.QUERY_FAILED,
        "the query failed while it was running",
        detail=_cause(text),
        hint="Look at the values that its functions were given.",
        text=splice.text,
    )


def _cause(text: str) -> str | None:
    """What the innermost Java exception said, without its package and its stack."""
    causes = re.findall(r"^(?:Caused by: |: )?[\w.$]*?(\w+(?:Exception|Error))(?:: (.*))?$", text, re.MULTILINE)
    if not causes:
        return None
    kind, said = causes[-1]
    return f"{kind}: {said}" if said else kind
