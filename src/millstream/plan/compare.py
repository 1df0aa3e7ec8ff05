"""A query's predicates → comparisons that can prune files, table by table.

Only conjuncts of a WHERE that compare a column of a table in the same SELECT with a constant are
taken. They all reject nulls, so leaving out files that cannot match is right under any join. What is
not understood is left to Spark; nothing here may ever drop a file that could match.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from millstream.schema import TIMESTAMP, TIMESTAMP_NTZ
from millstream.sql import constants
from millstream.sql.constants import NotConstantError
from millstream.storage.prune import Comparison, Operator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from millstream.schema import Schema
    from millstream.sql.statements import Query

OPERATORS: dict[type[exp.Expr], Operator] = {
    exp.EQ: Operator.EQ,
    exp.LT: Operator.LT,
    exp.LTE: Operator.LE,
    exp.GT: Operator.GT,
    exp.GTE: Operator.GE,
}
EXACT_IN_DOUBLE = 2**53
MIRRORED = {
    Operator.EQ: Operator.EQ,
    Operator.LT: Operator.GT,
    Operator.LE: Operator.GE,
    Operator.GT: Operator.LT,
    Operator.GE: Operator.LE,
}


def of_query(
    query: Query, schemas: Mapping[int, Schema], parameters: Mapping[str, Any]
) -> dict[int, tuple[Comparison, ...]]:
    """For each table reference (by its place in `query.tables`) the comparisons its rows must satisfy."""
    if query.tree is None or "|>" in query.text:
        return {}
    by_start = {r.span.end - 1: i for i, r in enumerate(query.tables)}
    found: dict[int, tuple[Comparison, ...]] = {}
    for select in query.tree.find_all(exp.Select):
        sources = _sources(select)
        if select.find(exp.Pivot) is not None:
            continue
        for alias, table in sources.items():
            if _renames_columns(table):
                continue
            index = by_start.get(table.this.meta.get("end", -1)) if isinstance(table, exp.Table) else None
            if index is None:
                continue
            only = len(sources) == 1
            found[index] = tuple(_of_select(select, alias, schemas[index], only, parameters))
    return found


def _renames_columns(source: exp.Expr) -> bool:
    alias = source.args.get("alias")
    return bool(alias is not None and alias.args.get("columns"))


def _sources(select: exp.Select) -> dict[str, exp.Expr]:
    clauses = [select.args.get("from_"), *(select.args.get("joins") or []), *(select.args.get("laterals") or [])]
    sources = [c.this for c in clauses if c is not None]
    return {s.alias_or_name.lower() or f"?{i}": s for i, s in enumerate(sources)}


def _of_select(
    select: exp.Select, alias: str, schema: Schema, only: bool, parameters: Mapping[str, Any]
) -> Iterator[Comparison]:
    where = select.args.get("where")
    if where is not None:
        yield from of_predicate(where.this, alias, schema, only, parameters)


def of_predicate(
    predicate: exp.Expr, alias: str, schema: Schema, only: bool, parameters: Mapping[str, Any]
) -> Iterator[Comparison]:
    """The comparisons that every row must satisfy for the predicate to be true."""
    for conjunct in predicate.flatten() if isinstance(predicate, exp.And) else [predicate]:
        yield from _of_conjunct(conjunct.unnest(), alias, schema, only, parameters)


def _of_conjunct(
    conjunct: exp.Expr, alias: str, schema: Schema, only: bool, parameters: Mapping[str, Any]
) -> Iterator[Comparison]:
    if isinstance(conjunct, exp.And):
        yield from of_predicate(conjunct, alias, schema, only, parameters)
        return
    for column, operator, values in _shapes(conjunct):
        name = _column_name(column, alias, only)
        known = schema.get(name) if name else None
        if known is None:
            continue
        try:
            constants = tuple(_constant(v, known.type, parameters) for v in values)
        except NotConstantError:
            continue
        yield Comparison(known.name, operator, constants)


def _shapes(conjunct: exp.Expr) -> Iterator[tuple[exp.Expr, Operator, list[exp.Expr]]]:
    operator = OPERATORS.get(type(conjunct))
    if operator is not None:
        yield conjunct.this, operator, [conjunct.expression]
        yield conjunct.expression, MIRRORED[operator], [conjunct.this]
    elif isinstance(conjunct, exp.Between) and not conjunct.args.get("symmetric"):
        yield conjunct.this, Operator.GE, [conjunct.args["low"]]
        yield conjunct.this, Operator.LE, [conjunct.args["high"]]
    elif isinstance(conjunct, exp.In) and conjunct.expressions:
        yield conjunct.this, Operator.IN, conjunct.expressions


def _column_name(expression: exp.Expr, alias: str, only: bool) -> str | None:
    if not isinstance(expression, exp.Column) or expression.args.get("db"):
        return None
    if expression.table:
        return expression.name if expression.table.lower() == alias else None
    return expression.name if only else None


def _constant(expression: exp.Expr, type_: pa.DataType, parameters: Mapping[str, Any]) -> Any:
    """The constant as a value that compares with the column's bounds exactly as Spark would compare."""
    value = constants.value(expression, parameters)
    if pa.types.is_floating(type_):
        return _as_double(_number(value))
    if pa.types.is_integer(type_):
        return _beside_integers(_number(value))
    if pa.types.is_decimal(type_):
        return _exact(value)
    if pa.types.is_string(type_) and isinstance(value, str):
        return value
    if pa.types.is_date(type_):
        return _date(value)
    if type_ in (TIMESTAMP, TIMESTAMP_NTZ):
        return _timestamp(value, type_)
    raise NotConstantError


def _parse(parse: Any, text: str) -> Any:
    try:
        return parse(text.strip())
    except ValueError as error:
        raise NotConstantError from error


def _number(value: Any) -> int | float | Decimal:
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return value
    raise NotConstantError


def _as_double(value: float | Decimal) -> float:
    """Spark compares a floating column with any number as DOUBLE."""
    try:
        return float(value)
    except OverflowError as error:
        raise NotConstantError from error


def _beside_integers(value: float | Decimal) -> float | Decimal:
    """Beside a floating constant Spark compares integers as DOUBLE, which is exact only while they are small."""
    if isinstance(value, float) and not abs(value) < EXACT_IN_DOUBLE:
        raise NotConstantError
    return value


def _exact(value: Any) -> int | Decimal:
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return value
    raise NotConstantError


def _date(value: Any) -> date:
    if isinstance(value, str):
        value = _parse(date.fromisoformat, value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise NotConstantError


def _timestamp(value: Any, type_: pa.DataType) -> datetime:
    if isinstance(value, str):
        value = _parse(datetime.fromisoformat, value)
        value = value.replace(tzinfo=UTC) if type_ == TIMESTAMP and value.tzinfo is None else value
    if isinstance(value, datetime) and (value.tzinfo is not None) == (type_ == TIMESTAMP):
        return value
    raise NotConstantError
