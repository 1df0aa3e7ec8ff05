"""Small questions about a query in normal form: its sources, whose columns, which functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp

from millstream.plan.incremental import NOW
from millstream.rewrite import aggregates
from millstream.sql.dialect import Millstream

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

CLOCK = (exp.CurrentDate, exp.CurrentTimestamp, exp.CurrentTime, exp.CurrentDatetime, exp.Localtimestamp)
CLOCK_NAMES = frozenset({"now", "curdate", "current_week"})
RANDOM_NAMES = frozenset({"rand", "randn", "random", "uuid", "shuffle", "monotonically_increasing_id", "randstr"})
QUERIES = (exp.Subquery, exp.Select, exp.SetOperation)


def text(node: exp.Expr) -> str:
    """The node in Spark's words."""
    return node.sql(dialect=Millstream)


def parsed(sql: str) -> exp.Expr:
    """An expression of our own making."""
    found: exp.Expr = parsed_query(f"SELECT {sql}").expressions[0]
    return found


def parsed_query(sql: str) -> exp.Query:
    """A query of our own making."""
    made = sqlglot.parse_one(sql, read=Millstream)
    assert isinstance(made, exp.Query)
    return made


def sources(select: exp.Select) -> list[exp.Expr]:
    """What stands in FROM and its joins, in order."""
    first = select.args.get("from_")
    return [c.this for c in (first, *(select.args.get("joins") or [])) if c is not None]


def aliases(select: exp.Select) -> set[str]:
    """The names that columns of a select's own sources carry."""
    names = {s.alias_or_name.lower() for s in sources(select)}
    return names | {lateral.alias.lower() for lateral in select.args.get("laterals") or []}


def own_nodes(node: exp.Expr) -> Iterator[exp.Expr]:
    """The nodes of an expression without what is inside of queries in it; the queries themselves are given."""
    yield node
    if isinstance(node, QUERIES):
        return
    for child in node.iter_expressions():
        yield from own_nodes(child)


def columns_asked(scope: exp.Select, alias: str) -> set[str]:
    """The columns of one of a select's sources that the select and the queries in it speak of."""
    found: set[str] = set()

    def visit(node: exp.Expr) -> None:
        if isinstance(node, exp.Select) and node is not scope and alias in aliases(node):
            # The name means something else in there.
            return
        if isinstance(node, exp.Column) and node.table.lower() == alias:
            found.add(node.name.lower())
        for child in node.iter_expressions():
            visit(child)

    visit(scope)
    return found


def conjuncts(predicate: exp.Expr | None) -> list[exp.Expr]:
    if predicate is None:
        return []
    parts = predicate.flatten() if isinstance(predicate, exp.And) else [predicate]
    return [p.unnest() if isinstance(p, exp.Paren) and isinstance(p.this, exp.And) else p for p in parts]


def name_of(node: exp.Expr) -> str:
    """The name of a function as Spark knows it, in lower case."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    if isinstance(node, exp.PercentileCont):
        return "percentile_cont"
    if isinstance(node, exp.PercentileDisc):
        return "percentile_disc"
    if not isinstance(node, exp.Func):
        return ""
    return text(node).partition("(")[0].strip().lower()


def is_aggregate(node: exp.Expr) -> bool:
    """Whether the node is a call of an aggregate, were it not for an OVER around it."""
    if isinstance(node, exp.Grouping | exp.GroupingId):
        return False
    return isinstance(node, exp.AggFunc | exp.Anonymous) and (
        isinstance(node, exp.AggFunc) or aggregates.is_aggregate(name_of(node))
    )


def calls_the_clock(node: exp.Expr) -> bool:
    return isinstance(node, CLOCK) or (isinstance(node, exp.Func) and name_of(node) in CLOCK_NAMES)


def says_the_time(node: exp.Expr) -> bool:
    """Whether the node is the moment of a read, which stands in the place of the clock."""
    return isinstance(node, exp.Column) and node.name == NOW


def is_random(node: exp.Expr) -> bool:
    return isinstance(node, exp.Func) and name_of(node) in RANDOM_NAMES


def aggregates_of(select: exp.Select) -> list[exp.Expr]:
    """The calls of aggregates, outermost first, with what surrounds them (FILTER, IGNORE NULLS, WITHIN GROUP)."""
    found: list[exp.Expr] = []
    above = ("having", "order", "qualify", "windows")
    clauses = [*select.expressions, *(select.args[c] for c in above if select.args.get(c))]
    for clause in clauses:
        for node in _flat(clause):
            collect_aggregates(node, found)
    return found


def _flat(clause: exp.Expr | list[exp.Expr]) -> list[exp.Expr]:
    return clause if isinstance(clause, list) else [clause]


def collect_aggregates(node: exp.Expr, found: list[exp.Expr]) -> None:
    """Add the aggregates of a clause to those found, outermost alone; what OVER takes is none."""
    if isinstance(node, QUERIES):
        return
    if isinstance(node, exp.Window):
        # The function in front of OVER runs on the groups; what it is given may hold aggregates.
        for child in _inside_window(node):
            collect_aggregates(child, found)
        return
    if innermost(node) is not None:
        found.append(node)
        return
    for child in node.iter_expressions():
        collect_aggregates(child, found)


def _inside_window(window: exp.Window) -> list[exp.Expr]:
    function = window.this
    while isinstance(function, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        function = function.this
    return [*function.iter_expressions(), *(c for c in window.iter_expressions() if c is not window.this)]


def innermost(node: exp.Expr) -> exp.Expr | None:
    """The aggregate inside of FILTER, IGNORE NULLS and WITHIN GROUP; None if there is none."""
    while isinstance(node, exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
        node = node.this
    return node if is_aggregate(node) else None


def is_grouping(select: exp.Select) -> bool:
    """Whether a select groups its rows."""
    return bool(select.args.get("group") or select.args.get("distinct") or aggregates_of(select))


def asks_inside(select: exp.Select, known: Container[str]) -> bool:
    """Whether a subquery in an expression speaks of columns of some of the sources."""
    clauses = [*select.expressions, *(select.args[c] for c in ("where", "having", "order") if select.args.get(c))]
    inner = [n for e in clauses for n in own_nodes(e) if isinstance(n, QUERIES)]
    return any(c.table.lower() in known for q in inner for c in q.find_all(exp.Column))
