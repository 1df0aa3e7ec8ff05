"""A query that selects, projects and joins → the same with the marks of the rows that each result row is made of.

Each result row then has, for every window in turn, the time, the number, and when the row enters and leaves, under
names that are numbered: what is needed to deliver every derivation once, at the first instant that has all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.plan.standing import ENTER, LAST, LEAVE, ROW_NUMBER, TIME
from millstream.rewrite import names

if TYPE_CHECKING:
    from collections.abc import Callable

MARKS = (TIME, ROW_NUMBER, ENTER, LEAVE, LAST)


def with_marks(query: exp.Query, is_leaf: Callable[[str], bool]) -> list[str]:
    """Add the marks, in place; returns the leaves whose rows they are of, in order."""
    while isinstance(query, exp.Subquery):
        query = query.this
    assert isinstance(query, exp.Select)
    marks: list[exp.Expr] = []
    found: list[str] = []
    for source in names.sources(query):
        alias = exp.to_identifier(source.alias_or_name, quoted=True)
        inner: list[tuple[str, str]] = []
        if isinstance(source, exp.Table):
            inner = [("", source.name)] if is_leaf(source.name) else []
        elif any(is_leaf(t.name) for t in source.find_all(exp.Table)):
            inner = [(str(i), leaf) for i, leaf in enumerate(with_marks(source.this, is_leaf))]
        for number, leaf in inner:
            columns = (exp.column(f"{mark}{number}", table=alias.copy()) for mark in MARKS)
            marks += [exp.alias_(c, f"{mark}{len(found)}") for c, mark in zip(columns, MARKS, strict=True)]
            found.append(leaf)
    query.set("expressions", [*query.expressions, *marks])
    return found
