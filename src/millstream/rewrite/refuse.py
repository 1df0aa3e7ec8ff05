"""Refusals of views: what cannot be kept up to date, where it stands in the user's text, what would be legal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import Condition, Span, StatementError
from millstream.sql.query import arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlglot import exp

    from millstream.sql.statements import Query

READ_ARGUMENTS = {"percentile": 2, "max_by": 2, "min_by": 2}
"""Of aggregates that Spark takes more arguments for than are read of a query's text: how many are."""


def refused(message: str, node: exp.Expr | None, hint: str, *, detail: str | None = None) -> StatementError:
    """The error to raise; the words of `node` are underlined where their place is known."""
    return StatementError(
        Condition.UNSUPPORTED_VIEW, message, hint=hint, detail=detail, span=None if node is None else span_of(node)
    )


def check_arguments(
    asked: Query, most: Mapping[str, int] = READ_ARGUMENTS, condition: Condition = Condition.QUERY_REFUSED
) -> None:
    """Refuse calls whose last argument would be lost on the way."""
    for function in asked.functions:
        count = most.get(function.text.lower())
        if count is not None and arguments(asked, function) > count:
            message = f"{function.text} with more than {count} argument{'s' if count > 1 else ''}"
            span = function.span.shifted(asked.offset)
            raise StatementError(condition, message, hint="Leave the last argument out.", span=span)


def span_of(node: exp.Expr) -> Span | None:
    """From the first to the last word of a node whose place in the text is known."""
    known = [n.meta for n in node.walk() if "start" in n.meta and "end" in n.meta]
    if not known:
        return None
    return Span(min(m["start"] for m in known), max(m["end"] for m in known) + 1)
