"""Refusals of views: what cannot be kept up to date, where it stands in the user's text, what would be legal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import Condition, Span, StatementError

if TYPE_CHECKING:
    from sqlglot import exp


def refused(message: str, node: exp.Expr | None, hint: str, *, detail: str | None = None) -> StatementError:
    """The error to raise; the words of `node` are underlined where their place is known."""
    return StatementError(
        Condition.UNSUPPORTED_VIEW, message, hint=hint, detail=detail, span=None if node is None else span_of(node)
    )


def span_of(node: exp.Expr) -> Span | None:
    """From the first to the last word of a node whose place in the text is known."""
    known = [n.meta for n in node.walk() if "start" in n.meta and "end" in n.meta]
    if not known:
        return None
    return Span(min(m["start"] for m in known), max(m["end"] for m in known) + 1)
