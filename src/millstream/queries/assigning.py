"""Store assignment of what a standing insert delivers: the rules of INSERT … SELECT.

Types that do not go into each other are refused when the insert is made. Values are converted here where Arrow
does as Spark does, and by a job of Spark where not; an error names the column and the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.errors import Condition, DataError, StatementError
from millstream.execute import assign
from millstream.execute.query import Rows
from millstream.execute.types import spark_type
from millstream.ingest import convert
from millstream.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.catalog.records import TableInfo
    from millstream.execute.session import Spark
    from millstream.schema import Column


def check(given: Schema, table: TableInfo, into: Sequence[str]) -> None:
    """Refuse a query whose columns do not go into those of the table."""
    if len(given.columns) != len(into):
        raise StatementError(
            Condition.WRONG_ARITY,
            f"the query gives {len(given.columns)} columns, and {len(into)} are to be filled",
            hint=f"Fill {', '.join(into)}.",
        )
    for source, target in zip(given.columns, table.schema.select(into).columns, strict=True):
        if not assign.assignable(spark_type(source.type), spark_type(target.type)):
            raise assign.mismatch(target, source.sql_type)


def assigned(rows: pa.Table, table: TableInfo, into: Sequence[str], spark: Spark) -> pa.Table:
    """The rows with all columns of the table; those that are not filled are null."""
    filled = table.schema.select(into).columns
    given = dict(zip(filled, rows.columns, strict=True))
    made = {c: convert.cast(v, c) for c, v in given.items() if _is_alike(v.type, c.type)}
    made |= _by_spark({c: v for c, v in given.items() if c not in made}, table, spark)
    data = pa.table([made[c] for c in filled], names=[c.name for c in filled])
    return convert.Target(table.name, table.schema, filled).widened(data)


def _is_alike(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether Arrow converts values as Spark does."""
    if source == target:
        return True
    if pa.types.is_integer(source):
        return not pa.types.is_temporal(target)
    if pa.types.is_decimal(source):
        return bool(pa.types.is_decimal(target))
    return bool(pa.types.is_boolean(source) and pa.types.is_string(target))


def _by_spark(
    given: dict[Column, pa.ChunkedArray], table: TableInfo, spark: Spark
) -> dict[Column, pa.ChunkedArray]:
    if not given:
        return {}
    try:
        return _converted(given, spark, table)
    except DataError as error:
        if len(given) > 1:
            for column, values in given.items():
                # Alone, so that the one at fault can be named.
                _by_spark({column: values}, table, spark)
        column = next(iter(given))
        error.message = f"a value does not fit column {column.name!r} of type {column.sql_type}: {error.message}"
        raise


def _converted(
    given: dict[Column, pa.ChunkedArray], spark: Spark, table: TableInfo
) -> dict[Column, pa.ChunkedArray]:
    names = [c.name for c in given]
    frame = spark.session().createDataFrame(pa.table(list(given.values()), names=names))
    made = Rows(assign.assigned(frame, table, names).select(*names)).to_arrow()
    return {c: made.column(i).cast(c.type) for i, c in enumerate(given)}
