"""A query's predicates → comparisons that can prune files, table by table.

Only conjuncts of a WHERE that compare a column of a table in the same SELECT with a constant are
taken; VALID of a streaming table is its time column, and a choice between equalities on one column is
an IN. They all reject nulls, so leaving out files that cannot match is right under any join. What is
not understood is left to Spark; nothing here may ever drop a file that could match.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from millstream.schema import TIMESTAMP, TIMESTAMP_NTZ
from millstream.sql import constants, valid
from millstream.sql.constants import NotConstantError
from millstream.storage.prune import Comparison, Operator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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


@dataclass(frozen=True, slots=True)
class _Scope:
    """A table as a predicate sees it: its alias in lower case, whether it is alone, what VALID of it means."""

    alias: str
    schema: Schema
    only: bool
    parameters: Mapping[str, Any]
    time: str | None = None


def of_query(
    query: Query,
    schemas: Mapping[int, Schema],
    parameters: Mapping[str, Any],
    times: Mapping[int, str] | None = None,
) -> dict[int, tuple[Comparison, ...]]:
    """For each table reference (by its place in `query.tables`) the comparisons its rows must satisfy.

    `times` has the time columns of the streaming tables among them.
    """
    if query.tree is None or "|>" in query.text:
        return {}
    by_start = {r.span.end - 1: i for i, r in enumerate(query.tables)}
    found: dict[int, tuple[Comparison, ...]] = {}
    for select in query.tree.find_all(exp.Select):
        sources = _sources(select)
        where = select.args.get("where")
        if select.find(exp.Pivot) is not None:
            continue
        for alias, table in sources.items():
            if _renames_columns(table):
                continue
            index = by_start.get(table.this.meta.get("end", -1)) if isinstance(table, exp.Table) else None
            if index is None:
                continue
            time = (times or {}).get(index)
            scope = _Scope(alias, schemas[index], len(sources) == 1, parameters, time)
            found[index] = () if where is None else tuple(_of_predicate(where.this, scope))
    return found


def _renames_columns(source: exp.Expr) -> bool:
    alias = source.args.get("alias")
    return bool(alias is not None and alias.args.get("columns"))


def _sources(select: exp.Select) -> dict[str, exp.Expr]:
    clauses = [select.args.get("from_"), *(select.args.get("joins") or []), *(select.args.get("laterals") or [])]
    sources = [c.this for c in clauses if c is not None]
    return {s.alias_or_name.lower() or f"?{i}": s for i, s in enumerate(sources)}


def of_predicate(
    predicate: exp.Expr,
    alias: str,
    schema: Schema,
    only: bool,
    parameters: Mapping[str, Any],
    time: str | None = None,
) -> Iterator[Comparison]:
    """The comparisons that every row must satisfy for the predicate to be true; `time` is what VALID means."""
    return _of_predicate(predicate, _Scope(alias, schema, only, parameters, time))


def exactly(
    predicate: exp.Expr, alias: str, schema: Schema, parameters: Mapping[str, Any], time: str | None = None
) -> list[tuple[exp.Expr, tuple[Comparison, ...]]] | None:
    """For each conjunct the comparisons that are true just when it is, if the table is alone in its query.

    None if the predicate says more than comparisons can.
    """
    scope = _Scope(alias, schema, True, parameters, time)
    found = []
    for conjunct in _flat(predicate, exp.And):
        # One comparison for most shapes, two for a period of time; a choice says more than the lists it gives.
        wanted = 2 if isinstance(conjunct, exp.Between | exp.Overlaps) else 1
        said = () if isinstance(conjunct, exp.And | exp.Or) else tuple(_of_conjunct(conjunct, scope))
        if len(said) != wanted:
            return None
        found.append((conjunct, said))
    return found


def _of_predicate(predicate: exp.Expr, scope: _Scope) -> Iterator[Comparison]:
    for conjunct in _flat(predicate, exp.And):
        if isinstance(conjunct, exp.And):
            yield from _of_predicate(conjunct, scope)
        elif isinstance(conjunct, exp.Or):
            yield from _of_choice(conjunct, scope)
        else:
            yield from _of_conjunct(conjunct, scope)


def _flat(expression: exp.Expr, connector: type[exp.Connector]) -> Iterator[exp.Expr]:
    for part in expression.flatten() if isinstance(expression, connector) else [expression]:
        yield part.unnest()


def _of_choice(choice: exp.Or, scope: _Scope) -> Iterator[Comparison]:
    """A column that each alternative fixes has one of the values they fix it to."""
    fixed = [_fixed(alternative, scope) for alternative in _flat(choice, exp.Or)]
    for column in fixed[0]:
        if all(column in values for values in fixed):
            yield Comparison(column, Operator.IN, tuple(v for values in fixed for v in values[column]))


def _fixed(alternative: exp.Expr, scope: _Scope) -> dict[str, tuple[Any, ...]]:
    comparisons = _of_predicate(alternative, scope)
    return {c.column: c.values for c in comparisons if c.operator in (Operator.EQ, Operator.IN)}


def _of_conjunct(conjunct: exp.Expr, scope: _Scope) -> Iterator[Comparison]:
    for column, operator, values in _shapes(conjunct):
        name = _column_name(column, scope)
        known = scope.schema.get(name) if name else None
        if known is None:
            continue
        try:
            yield Comparison(known.name, operator, _constants(values, known.type, scope.parameters))
        except NotConstantError:
            continue


def _shapes(conjunct: exp.Expr) -> Iterator[tuple[exp.Expr, Operator, list[exp.Expr]]]:
    operator = OPERATORS.get(type(conjunct))
    if operator is not None:
        yield conjunct.this, operator, [conjunct.expression]
        yield conjunct.expression, MIRRORED[operator], [conjunct.this]
    elif isinstance(conjunct, exp.Between) and not conjunct.args.get("symmetric"):
        yield from _between(conjunct.this, conjunct.args["low"], conjunct.args["high"])
    elif isinstance(conjunct, exp.Overlaps) and (period := valid.period_of(conjunct)) is not None:
        yield from _between(conjunct.this, *period)
    elif isinstance(conjunct, exp.In) and conjunct.expressions:
        yield conjunct.this, Operator.IN, conjunct.expressions


def _between(of: exp.Expr, low: exp.Expr, high: exp.Expr) -> Iterator[tuple[exp.Expr, Operator, list[exp.Expr]]]:
    yield of, Operator.GE, [low]
    yield of, Operator.LE, [high]
    yield low, Operator.LE, [of]
    yield high, Operator.GE, [of]


def _column_name(expression: exp.Expr, scope: _Scope) -> str | None:
    table = valid.table_of(expression)
    if table is not None:
        return scope.time if table.lower() == scope.alias else None
    if not isinstance(expression, exp.Column) or expression.args.get("db"):
        return None
    if expression.table:
        return expression.name if expression.table.lower() == scope.alias else None
    return expression.name if scope.only else None


def _constants(
    expressions: Sequence[exp.Expr], type_: pa.DataType, parameters: Mapping[str, Any]
) -> tuple[Any, ...]:
    values = tuple(_constant(e, type_, parameters) for e in expressions)
    if pa.types.is_integer(type_) and any(isinstance(v, float) for v in values):
        # One floating constant in a list makes Spark compare with all of them as DOUBLE.
        return tuple(_beside_integers(_as_double(v)) for v in values)
    return values


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
