"""VALID(p) → the time column of the streaming table that p names, as edits of the query's text.

Names are looked up as SQL does: in the FROM of the SELECT around the call, then further out, and last the table
that an UPDATE or DELETE changes. Refuses names that are not there (UNKNOWN_TABLE) and what has no time of its
own, such as plain tables and subqueries (WRONG_KIND). Both bounds of OVERLAPS belong to the period.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.errors import Condition, StatementError, did_you_mean
from millstream.schema import ObjectKind, quote
from millstream.sql.valid import table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millstream.catalog.records import TableInfo
    from millstream.errors import Span
    from millstream.sql.statements import Query, Valid

SOURCES = (exp.Table, exp.Subquery, exp.UDTF)


def edits(query: Query, time_column_of: Callable[[Valid], str]) -> list[tuple[Span, str]]:
    """The stretches of the query's text to replace, and by what, for Spark to read it."""
    return [edit for valid in query.valids for edit in _edits(valid, time_column_of(valid))]


def _edits(valid: Valid, time_column: str) -> list[tuple[Span, str]]:
    column = f"{quote(valid.name.text)}.{quote(time_column)}"
    period = valid.overlaps
    if period is None:
        return [(valid.span, column)]
    return [
        (valid.span, f"({column}"),
        (period.opening, " BETWEEN ("),
        (period.comma, ") AND ("),
        (period.closing, "))"),
    ]


def time_columns(tables: Sequence[TableInfo]) -> dict[int, str]:
    """The time column of each streaming table, by its place."""
    return {i: name for i, table in enumerate(tables) if (name := time_column(table)) is not None}


def time_column(table: TableInfo) -> str | None:
    """What VALID of the table stands for; None for a table that is not a streaming one."""
    return table.time.column if table.time is not None and table.kind is ObjectKind.STREAMING_TABLE else None


def resolved(
    query: Query, valid: Valid, tables: Sequence[TableInfo], target: tuple[str, TableInfo] | None = None
) -> str:
    """The time column that VALID stands for.

    `tables` are those of `query.tables`, in order; `target` is the table of an UPDATE or DELETE around the
    query, with the name that it goes by there.
    """
    index = reference_of(query, valid)
    if index is not None:
        table = tables[index]
    elif target is not None and target[0].lower() == valid.name.text.lower():
        table = target[1]
    else:
        known = [r.alias or r.name for r in query.tables] + ([] if target is None else [target[0]])
        raise StatementError(
            Condition.UNKNOWN_TABLE,
            f"no table in FROM goes by the name {valid.name.text!r}",
            hint=did_you_mean(valid.name.text, known) or "VALID takes a table's name, or its alias if it has one.",
            span=valid.name.span.shifted(query.offset),
        )
    column = time_column(table)
    if column is None:
        raise _not_streaming(query, valid, f"{table.name!r} is a {table.kind.value}")
    return column


def reference_of(query: Query, valid: Valid) -> int | None:
    """The place in `query.tables` of what VALID names; None if nothing in the query has that name."""
    name = valid.name.text.lower()
    # sqlglot makes other selects of a pipe's steps than Spark does.
    node = None if query.tree is None or "|>" in query.text else _argument(query.tree, valid)
    if node is None:
        return _by_name(query, valid, name)
    for select in _selects_around(node):
        source = next((s for s in _sources(select) if s.alias_or_name.lower() == name), None)
        if source is not None:
            return _place(query, valid, source)
    return None


def _argument(tree: exp.Expr, valid: Valid) -> exp.Expr | None:
    """The call in the tree; its argument's place tells it from others."""
    end = valid.name.span.end - 1
    calls = (node for node in tree.find_all(exp.Anonymous) if table_of(node) is not None)
    places = (node for node in calls if node.expressions[0].this.meta.get("end") == end)
    return next((node for node in places if node.find_ancestor(exp.Hint) is None), None)


def _selects_around(node: exp.Expr) -> Iterator[exp.Select]:
    """The selects whose FROM is in sight of the node, the nearest first."""
    at: exp.Expr | None = node
    hidden = False
    while at is not None:
        if isinstance(at, exp.Select):
            if not hidden:
                yield at
            hidden = False
        hidden = hidden or isinstance(at, exp.CTE) or _is_derived_table(at)
        at = at.parent


def _is_derived_table(node: exp.Expr) -> bool:
    return (
        isinstance(node, exp.Subquery) and isinstance(node.parent, exp.From | exp.Join) and node.arg_key == "this"
    )


def _sources(select: exp.Select) -> Iterator[exp.Expr]:
    clauses = [select.args.get("from_"), *(select.args.get("joins") or []), *(select.args.get("laterals") or [])]
    for clause in clauses:
        if clause is not None:
            yield from (n for n in clause.walk(prune=_is_closed) if isinstance(n, SOURCES))


def _is_closed(node: exp.Expr) -> bool:
    """Whether the tables inside of it are out of sight."""
    return isinstance(node, exp.Select | exp.SetOperation) or (isinstance(node, exp.Subquery) and bool(node.alias))


def _place(query: Query, valid: Valid, source: exp.Expr) -> int:
    end = source.this.meta.get("end", -1) if isinstance(source, exp.Table) else -1
    index = next((i for i, r in enumerate(query.tables) if r.span.end - 1 == end), None)
    if index is None:
        raise _not_streaming(query, valid, f"{valid.name.text!r} is the result of a query")
    return index


def _by_name(query: Query, valid: Valid, name: str) -> int | None:
    found = {r.name.lower(): i for i, r in enumerate(query.tables) if (r.alias or r.name).lower() == name}
    if len(found) > 1:
        raise StatementError(
            Condition.INVALID_ARGUMENT,
            f"several tables go by the name {valid.name.text!r}",
            hint="Give each of them an alias of its own.",
            span=valid.name.span.shifted(query.offset),
        )
    return next(iter(found.values()), None)


def _not_streaming(query: Query, valid: Valid, what: str) -> StatementError:
    return StatementError(
        Condition.WRONG_KIND,
        f"{what}, and VALID needs a streaming table",
        hint="Use the column that holds the time instead.",
        span=valid.name.span.shifted(query.offset),
    )
