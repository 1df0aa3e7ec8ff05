"""The one error tree.

Every failure that reaches a user is a `MillstreamError`: it has a condition (a stable name that
tests and programs match on), a message (what happened), and, where they help, a detail, a hint
(what to do next) and a position that is underlined in the SQL text. Classes say who can fix it:

    MillstreamError
    ├── StatementError    the SQL text or the API call: its author
    ├── DataError         the rows or files given: their owner
    ├── MachineError      the disk, the Java, another process: whoever runs the machine
    └── InternalError     Millstream itself: us

Nothing in here knows about SQL parsing, Spark or storage.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@unique
class Condition(StrEnum):
    """Names of everything that can go wrong; a test asserts one of these."""

    # StatementError
    SYNTAX_ERROR = "SYNTAX_ERROR"
    CANCELLED = "CANCELLED"
    NOT_SUPPORTED_YET = "NOT_SUPPORTED_YET"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    UNKNOWN_TABLE = "UNKNOWN_TABLE"
    UNKNOWN_COLUMN = "UNKNOWN_COLUMN"
    UNKNOWN_INDEX = "UNKNOWN_INDEX"
    UNKNOWN_FUNCTION = "UNKNOWN_FUNCTION"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    UNKNOWN_OPTION = "UNKNOWN_OPTION"
    UNKNOWN_VERSION = "UNKNOWN_VERSION"
    UNBOUND_PARAMETER = "UNBOUND_PARAMETER"
    DUPLICATE_NAME = "DUPLICATE_NAME"
    DUPLICATE_COLUMN = "DUPLICATE_COLUMN"
    RESERVED_NAME = "RESERVED_NAME"
    WRONG_KIND = "WRONG_KIND"
    WRONG_ARITY = "WRONG_ARITY"
    NOT_INDEXABLE = "NOT_INDEXABLE"
    UNSUPPORTED_VIEW = "UNSUPPORTED_VIEW"
    VIEW_FAILED = "VIEW_FAILED"
    IN_USE = "IN_USE"
    INVALID_TIME_COLUMN = "INVALID_TIME_COLUMN"
    INVALID_INTERVAL = "INVALID_INTERVAL"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    ONE_TIME_READ_OF_STREAM = "ONE_TIME_READ_OF_STREAM"
    TRANSACTION_STATE = "TRANSACTION_STATE"
    QUERY_REFUSED = "QUERY_REFUSED"
    TIME_GOES_BACKWARDS = "TIME_GOES_BACKWARDS"
    SUBSCRIBER_TOO_SLOW = "SUBSCRIBER_TOO_SLOW"
    QUERY_STOPPED = "QUERY_STOPPED"
    TOO_MANY_QUERIES = "TOO_MANY_QUERIES"
    READ_ONLY = "READ_ONLY"
    CLOSED = "CLOSED"

    # DataError
    TYPE_MISMATCH = "TYPE_MISMATCH"
    NUMERIC_OVERFLOW = "NUMERIC_OVERFLOW"
    DIVIDE_BY_ZERO = "DIVIDE_BY_ZERO"
    VALUE_TOO_LONG = "VALUE_TOO_LONG"
    INVALID_VALUE = "INVALID_VALUE"
    NULL_VALUE = "NULL_VALUE"
    BAD_RECORD = "BAD_RECORD"
    FILE_NOT_FOUND = "FILE_NOT_FOUND"
    FILE_UNREADABLE = "FILE_UNREADABLE"
    FILE_NOT_WRITABLE = "FILE_NOT_WRITABLE"
    QUERY_FAILED = "QUERY_FAILED"

    # MachineError
    DATABASE_LOCKED = "DATABASE_LOCKED"
    NOT_A_DATABASE = "NOT_A_DATABASE"
    FORMAT_TOO_NEW = "FORMAT_TOO_NEW"
    FORMAT_TOO_OLD = "FORMAT_TOO_OLD"
    CATALOG_CORRUPT = "CATALOG_CORRUPT"
    DISK_FULL = "DISK_FULL"
    STORAGE_FAILED = "STORAGE_FAILED"
    JAVA_MISSING = "JAVA_MISSING"
    SPARK_FAILED = "SPARK_FAILED"
    WRITE_CONFLICT = "WRITE_CONFLICT"

    # InternalError
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of SQL text, as half-open character offsets."""

    start: int
    end: int

    def shifted(self, by: int) -> Span:
        return Span(self.start + by, self.end + by)


class MillstreamError(Exception):
    """Base of all errors; `str()` gives the whole story, underlined."""

    def __init__(
        self,
        condition: Condition,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        span: Span | None = None,
        text: str | None = None,
    ) -> None:
        super().__init__(message)
        self.condition = condition
        self.message = message
        self.detail = detail
        self.hint = hint
        self.span = span
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.__dict__.copy())

    def located_in(self, text: str) -> MillstreamError:
        """Remember the SQL text that `span` points into, unless it is known already."""
        if self.text is None:
            self.text = text
        return self

    def __str__(self) -> str:
        lines = [f"[{self.condition.value}] {self.message}"]
        if self.text is not None and self.span is not None:
            lines.append(underline(self.text, self.span))
        if self.detail:
            lines.append(f"DETAIL: {self.detail}")
        if self.hint:
            lines.append(f"HINT: {self.hint}")
        return "\n".join(lines)


def _rebuild(kind: type[MillstreamError], state: dict[str, object]) -> MillstreamError:
    error = kind.__new__(kind)
    error.__dict__.update(state)
    return error


class StatementError(MillstreamError):
    """The SQL text or the API call is at fault."""


class DataError(MillstreamError):
    """The rows or files given are at fault; `refused_rows` came into a stream without a time."""

    refused_rows: int = 0


class MachineError(MillstreamError):
    """The machine around us is at fault: disk, Java, another process."""


class InternalError(MillstreamError):
    """Millstream is at fault."""

    def __init__(self, message: str, *, detail: str | None = None) -> None:
        super().__init__(
            Condition.INTERNAL,
            message,
            detail=detail,
            hint="This is a defect in Millstream; please report it with the statement that caused it.",
        )


WIDEST_LINE = 160


def underline(text: str, span: Span) -> str:
    """The line of `text` that holds the span, with carets below it; long lines are cut around it."""
    start = max(0, min(span.start, len(text)))
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line_end = len(text) if line_end < 0 else line_end
    number = text.count("\n", 0, start) + 1
    end = max(start + 1, min(span.end, line_end))
    cut_from = max(line_start, start - WIDEST_LINE // 2)
    cut_to = min(line_end, cut_from + WIDEST_LINE)
    shown = "".join(c if c.isprintable() else "·" for c in text[cut_from:cut_to])
    prefix = f"LINE {number}: " + ("…" if cut_from > line_start else "")
    carets = "^" * max(1, min(end, cut_to) - start)
    return f"{prefix}{shown}\n{' ' * (len(prefix) + start - cut_from)}{carets}"


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint naming the nearest known names, or None if nothing is near."""
    by_lower = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    if not near:
        return None
    return f"Did you mean {' or '.join(repr(by_lower[n]) for n in near)}?"
