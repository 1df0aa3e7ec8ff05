"""TUMBLE and HOP in a query's text → subqueries with the columns `window_start` and `window_end`.

Windows are half-open and aligned to the epoch (to zero for integer time). A row that HOP cuts stands in as many
windows as hold its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import Condition, Span, StatementError
from millstream.plan.bind import column, find_named
from millstream.schema import quote
from millstream.sql.cut import find_cuts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millstream.catalog.records import TableInfo
    from millstream.sql.cut import Cut
    from millstream.sql.statements import Query

MOST_WINDOWS = 10_000
"""A row may stand in so many windows of HOP."""


def edits(query: Query, tables: Mapping[str, TableInfo]) -> list[tuple[Span, str]]:
    """What to put in the place of each call."""
    return [(cut.span, _subquery(cut, tables)) for cut in find_cuts(query)]


def _subquery(cut: Cut, tables: Mapping[str, TableInfo]) -> str:
    if cut.function == "SESSION":
        raise StatementError(
            Condition.NOT_SUPPORTED_YET,
            "SESSION in a continuous view is not built yet",
            hint="Cut the stream by TUMBLE or HOP, or ask by a CONTINUOUS QUERY.",
            span=cut.span,
        )
    table = find_named(cut.stream, tables)
    check(cut, table)
    name = quote(table.name)
    number = f"{name}.{quote(column(table, cut.time))}"
    if not cut.step.is_number:
        number = f"unix_micros({number})"
    start = f"({number} - pmod({number}, {cut.step.amount}L))"
    windows = -(-cut.length.amount // cut.step.amount)
    source = name
    if windows > 1:
        earlier = ", ".join(f"({i}L)" for i in range(windows))
        source += f" CROSS JOIN (VALUES {earlier}) AS `__ms_hop` (`earlier`)"
        start = f"({start} - `__ms_hop`.`earlier` * {cut.step.amount}L)"
    end = f"({start} + {cut.length.amount}L)"
    test = f" WHERE {number} < {end}" if windows > 1 or cut.length != cut.step else ""
    start, end = (e if cut.step.is_number else f"timestamp_micros{e}" for e in (start, end))
    listed = f"{name}.*, {start} AS window_start, {end} AS window_end"
    alias = "" if cut.has_alias else f" AS {name}"
    return f"(SELECT {listed} FROM {source}{test}){alias}"


def check(cut: Cut, table: TableInfo) -> None:
    """Refuse a cut that does not fit its stream."""
    if table.time is None:
        raise StatementError(
            Condition.WRONG_KIND,
            f"{table.name!r} is a {table.kind.value}, and windows cut streams and streaming tables",
            hint="Group by an expression on its time instead.",
            span=cut.stream.span,
        )
    if column(table, cut.time).lower() != table.time.column.lower():
        raise StatementError(
            Condition.INVALID_ARGUMENT,
            f"{cut.time.text!r} is not the time of {table.name!r}",
            hint=f"Its time is {table.time.column}.",
            span=cut.time.span,
        )
    if any(d.is_number != table.time.delay.is_number for d in (cut.step, cut.length)):
        form = "a plain number, INTERVAL 60" if table.time.delay.is_number else "an interval, INTERVAL '1' MINUTE"
        raise StatementError(
            Condition.INVALID_INTERVAL,
            f"the windows and the time of {table.name!r} are of different kinds",
            hint=f"Give {form}.",
            span=cut.span,
        )
    if cut.length.amount > MOST_WINDOWS * cut.step.amount:
        raise StatementError(
            Condition.INVALID_INTERVAL,
            "a row would stand in more than 10,000 windows",
            hint="Give a longer step or a shorter length.",
            span=cut.span,
        )
