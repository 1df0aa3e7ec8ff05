"""A fragment in Spark SQL → DuckDB's, for the kernel; or nothing, if it says anything that is not proven equal.

Only what is listed here is taken: node by node, function by function, type by type. Each entry gives the same
answer in both, nulls, NaN and overflow included, as the law tests and `continuous_view_executors.slt` show; what
would differ is rewritten here (division, which Spark refuses to do by zero; constants beside narrow numbers) or
left out (text functions, casts that round, decimals, clocks).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import sqlglot
from sqlglot import exp

from millstream.execute.kernel import DUCKDB_TYPES
from millstream.sql.dialect import Millstream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PROVEN_TYPES = frozenset(DUCKDB_TYPES)
PROVEN_NODES: frozenset[type[exp.Expr]] = frozenset({
    # the shape of a query
    exp.Select, exp.From, exp.Join, exp.Where, exp.Group, exp.Having, exp.Subquery, exp.Table, exp.TableAlias,
    exp.Alias, exp.Column, exp.Identifier, exp.Star, exp.Union, exp.Order, exp.Ordered, exp.Limit, exp.Distinct,
    exp.Paren, exp.Tuple, exp.Filter, exp.Exists, exp.In,
    # values and what compares them
    exp.Literal, exp.Null, exp.Boolean, exp.And, exp.Or, exp.Not, exp.Is, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT,
    exp.GTE, exp.NullSafeEQ, exp.Between, exp.Case, exp.If, exp.Coalesce, exp.Neg,
    # arithmetic
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.SafeDivide, exp.Cast, exp.TryCast, exp.DataType,
    # aggregates
    exp.Count, exp.CountIf, exp.Sum, exp.Min, exp.Max, exp.Avg, exp.LogicalAnd, exp.LogicalOr, exp.BitwiseAndAgg,
    exp.BitwiseOrAgg, exp.BitwiseXorAgg,
    # of dates alone
    exp.WeekOfYear, exp.TsOrDsToDate,
})  # fmt: skip
KIND = exp.DataType.Type
MERGES = (
    exp.Sum,
    exp.Min,
    exp.Max,
    exp.LogicalAnd,
    exp.LogicalOr,
    exp.BitwiseAndAgg,
    exp.BitwiseOrAgg,
    exp.BitwiseXorAgg,
)
PARTIAL = re.compile(r"p[0-9]+")
WIDENING = frozenset({KIND.DOUBLE, KIND.BIGINT, KIND.TIMESTAMP, KIND.TIMESTAMPTZ, KIND.TIMESTAMPLTZ, KIND.DATE})
"""Casts to a wider type change nothing; others round or cut differently."""
MIXED = (exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Coalesce, exp.If, exp.Case)
"""What gives its operands a type in common."""
BY_ZERO = "division by zero"


def are_proven(types: Iterable[pa.DataType]) -> bool:
    """Whether the kernel may meet values of these types."""
    return all(t in PROVEN_TYPES for t in types)


@lru_cache(maxsize=4_096)
def to_duckdb(sql: str) -> str | None:
    """The same in DuckDB's words; None if some of it is not proven to mean the same."""
    tree = sqlglot.parse_one(sql, read=Millstream)
    if not all(_is_proven(node) for node in tree.walk()):
        return None
    # The inner ones first: what is inside of a division may be one.
    for node in reversed(list(tree.walk(bfs=False))):
        made = _rewritten(node)
        if made is not node:
            node.replace(made)
    return tree.sql(dialect="duckdb")


def _is_proven(node: exp.Expr) -> bool:
    if type(node) not in PROVEN_NODES:
        return False
    if isinstance(node, exp.Cast):
        return node.to.this in WIDENING or _is_own_merge(node.this)
    if isinstance(node, exp.Literal) and not node.is_string and not node.is_int:
        return not _is_counted_with(node)
    if isinstance(node, exp.TsOrDsToDate) and node.args.get("format"):
        return False
    if isinstance(node, exp.Join):
        return not node.args.get("using") and not node.method
    return not (isinstance(node, exp.Table) and (node.args.get("sample") or node.args.get("pivots")))


def _is_counted_with(node: exp.Expr) -> bool:
    """Whether a number with a point is a term of arithmetic, which Spark then does with decimals."""
    parent = node.parent
    while isinstance(parent, exp.Paren | exp.Neg):
        parent = parent.parent
    return isinstance(parent, exp.Add | exp.Sub | exp.Mul | exp.Div | exp.SafeDivide)


@lru_cache(maxsize=4_096)
def conversions_are_proven(sql: str, columns: frozenset[tuple[str, str]]) -> bool:
    """Whether what a text makes a date, a number or a time of, in so many words or by comparing it with one, is of
    types of which both make the same.

    `columns` are the columns of its sources, by name in lower case, and their kinds (`kind_of`).
    """
    tree = sqlglot.parse_one(sql, read=Millstream)
    known: dict[str, set[str]] = {}
    for name, kind in columns:
        known.setdefault(name, set()).add(kind)
    for alias in reversed(list(tree.find_all(exp.Alias))):
        # What a subquery calls a column may also be the name of another.
        known.setdefault(alias.alias.lower(), set()).update(_kinds(alias.this, known))
    return all(_is_sure(node, known) for node in tree.walk())


def _is_sure(node: exp.Expr, known: Mapping[str, set[str]]) -> bool:
    if isinstance(node, exp.Cast | exp.TsOrDsToDate | exp.WeekOfYear):
        return _is_sure_cast(node, known)
    if isinstance(node, COMPARED):
        return _are_alike(list(node.iter_expressions()), known)
    if isinstance(node, exp.Coalesce | exp.Case | exp.If):
        return _are_alike(_results(node), known)
    return True


def _are_alike(values: Sequence[exp.Expr], known: Mapping[str, set[str]]) -> bool:
    """Whether some values are all numbers, all times, or all neither: else one of them is cast without a word."""
    made = set[str]()
    for value in values:
        is_moment = isinstance(value, exp.Literal) and value.is_string and MOMENT.fullmatch(value.name)
        made |= {MOMENTS} if is_moment else {_family(kind) for kind in _kinds(value, known)}
    # What is written like a time is text to text, and a time to times.
    return len(made - {MOMENTS}) <= 1 and not (MOMENTS in made and NUMBER in made)


def _family(kind: str) -> str:
    return NUMBER if kind in (INTEGER, DECIMAL, FLOATING) else kind


def _results(node: exp.Expr) -> list[exp.Expr]:
    """What an expression may have the value of."""
    if isinstance(node, exp.Coalesce):
        return list(node.iter_expressions())
    branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
    last = node.args.get("default") if isinstance(node, exp.Case) else node.args.get("false")
    return [*(branch.args["true"] for branch in branches), *([last] if last is not None else [])]


def _is_sure_cast(node: exp.Expr, known: Mapping[str, set[str]]) -> bool:
    if isinstance(node, exp.Cast) and _is_own_merge(node.this):
        return True
    to = node.to.this if isinstance(node, exp.Cast) else KIND.DATE
    if isinstance(node.this, exp.Literal) and node.this.is_string:
        return bool(MOMENT.fullmatch(node.this.name)) and to not in (KIND.DOUBLE, KIND.BIGINT)
    allowed = {KIND.DOUBLE: {INTEGER, DECIMAL, FLOATING}, KIND.BIGINT: {INTEGER}}.get(to, {TIME})
    return _kinds(node.this, known) <= allowed


INTEGER, DECIMAL, FLOATING, TIME, OTHER = "integer", "decimal", "floating", "time", "other"
NUMBER, MOMENTS = "number", "a time in quotes"
PREDICATES = (exp.Predicate, exp.Connector, exp.Not, exp.Boolean)
COMPARED = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.Between, exp.In)
MOMENT = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?")
MADE = {KIND.DOUBLE: FLOATING, KIND.BIGINT: INTEGER, KIND.INT: INTEGER}


def kind_of(type_: pa.DataType) -> str:
    """The kind of values of a type."""
    if pa.types.is_integer(type_):
        return INTEGER
    if pa.types.is_floating(type_):
        return FLOATING
    return TIME if pa.types.is_timestamp(type_) or pa.types.is_date(type_) else OTHER


def _kinds(node: exp.Expr, known: Mapping[str, set[str]]) -> set[str]:
    """The kinds of values that an expression may be made of."""
    if isinstance(node, exp.Column):
        return known.get(node.name.lower(), {OTHER})
    if isinstance(node, exp.Literal):
        return {OTHER if node.is_string else INTEGER if node.is_int else DECIMAL}
    if isinstance(node, exp.Cast):
        return {MADE.get(node.to.this, TIME if node.to.this in WIDENING else OTHER)}
    if isinstance(node, exp.Div | exp.SafeDivide | exp.Avg):
        return {FLOATING}
    if isinstance(node, exp.Count | exp.CountIf | exp.WeekOfYear):
        return {INTEGER}
    if isinstance(node, exp.TsOrDsToDate):
        return {TIME}
    if isinstance(node, exp.Null):
        return set()
    if isinstance(node, PREDICATES):
        return {OTHER}
    if isinstance(node, exp.Case | exp.If):
        return set[str]().union(*(_kinds(result, known) for result in _results(node)))
    if isinstance(node, exp.Filter):
        return _kinds(node.this, known)
    if isinstance(node, exp.Subquery | exp.Select):
        return set[str]().union(*(_kinds(value, known) for value in node.selects))
    found = [_kinds(child, known) for child in node.iter_expressions() if not isinstance(child, exp.Boolean)]
    return set().union(*found) if found else {OTHER}


def _is_own_merge(node: exp.Expr) -> bool:
    """Whether a cast is around a merge of partial results: it is to the type that they have."""
    return (
        isinstance(node, MERGES) and isinstance(node.this, exp.Column) and bool(PARTIAL.fullmatch(node.this.name))
    )


def _rewritten(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Literal) and node.is_int and isinstance(node.parent, MIXED) and int(node.name) < 2**31:
        # To DuckDB a constant is as narrow as what stands beside it, to Spark it is an INT.
        return exp.Cast(this=node.copy(), to=exp.DataType.build("int"))
    if isinstance(node, exp.Div):
        return _division(node.this, node.expression, f"error('{BY_ZERO}')")
    if isinstance(node, exp.CountIf):
        # DuckDB's own gives NULL where there is nothing to count.
        return exp.Count(this=exp.Case(ifs=[exp.If(this=node.this, true=exp.Literal.number(1))]))
    if isinstance(node, exp.SafeDivide):
        return _division(node.this, node.expression, "NULL")
    if isinstance(node, exp.Cast):
        # What sqlglot reads as a forgiving cast is none under Spark's ANSI rules.
        to = exp.DataType.build("timestamptz") if node.to.this is KIND.TIMESTAMP else node.to
        return exp.Cast(this=node.this, to=to)
    return node


def _division(of: exp.Expr, by: exp.Expr, at_zero: str) -> exp.Expr:
    """Both as DOUBLE, as Spark divides what is not decimal."""
    left, right = of.sql(dialect="duckdb"), by.sql(dialect="duckdb")
    text = f"CASE WHEN ({right}) = 0 THEN {at_zero} ELSE CAST({left} AS DOUBLE) / CAST({right} AS DOUBLE) END"
    return sqlglot.parse_one(text, read="duckdb")
