"""Store assignment: a query's columns into a table's, by Spark's ANSI rules.

Numbers go into numbers (checked for overflow), anything scalar into a string, dates and timestamps
into each other, nested types part by part. Other mixtures are refused before anything runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark

from millstream.errors import Condition, DataError, StatementError
from millstream.execute.types import spark_type
from millstream.schema import quote

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

    from millstream.catalog.records import TableInfo
    from millstream.schema import Column

TIMES = (spark.DateType, spark.TimestampType, spark.TimestampNTZType)


def assigned(frame: DataFrame, table: TableInfo, columns: Sequence[str], *, literal: bool = False) -> DataFrame:
    """The frame with exactly the table's columns; its own stand for `columns`, the rest is null.

    `literal` rows are those of VALUES, where text may stand for a date or a timestamp.
    """
    if len(frame.columns) != len(columns):
        raise StatementError(
            Condition.WRONG_ARITY,
            f"{table.name!r} takes {len(columns)} columns here and the query gives {len(frame.columns)}",
            detail=f"Expected: {', '.join(columns)}.",
            hint="Give as many columns as the target has, or name the target's columns after it.",
        )
    numbered = frame.toDF(*[f"_{i}" for i in range(len(columns))])
    place = {name.lower(): i for i, name in enumerate(columns)}
    picked = []
    for column in table.schema.columns:
        i = place.get(column.name.lower())
        target = spark_type(column.type)
        source = F.lit(None) if i is None else _checked(numbered, i, column, target, literal)
        picked.append(source.cast(target).alias(column.name))
    return numbered.select(*picked)


def _checked(frame: DataFrame, i: int, column: Column, target: spark.DataType, literal: bool) -> SparkColumn:
    source = frame.schema[i].dataType
    is_text_for_time = literal and isinstance(source, spark.StringType) and isinstance(target, TIMES)
    if not is_text_for_time and not assignable(source, target):
        raise mismatch(column, source.simpleString().upper())
    return F.col(quote(f"_{i}"))


def mismatch(column: Column, given: str) -> DataError:
    return DataError(
        Condition.TYPE_MISMATCH,
        f"a value of type {given} does not go into column {column.name!r} of type {column.sql_type}",
        hint=f"Convert it, e.g. CAST(… AS {column.sql_type}).",
    )


def assignable(source: spark.DataType, target: spark.DataType) -> bool:
    """Whether ANSI store assignment lets `source` into `target`."""
    if source == target or isinstance(source, spark.NullType):
        return True
    if isinstance(source, spark.NumericType) and isinstance(target, spark.NumericType):
        return True
    if isinstance(target, spark.StringType):
        return isinstance(source, spark.AtomicType) and not isinstance(source, spark.BinaryType)
    if isinstance(source, TIMES) and isinstance(target, TIMES):
        return True
    if isinstance(source, spark.ArrayType) and isinstance(target, spark.ArrayType):
        return assignable(source.elementType, target.elementType)
    if isinstance(source, spark.MapType) and isinstance(target, spark.MapType):
        return assignable(source.keyType, target.keyType) and assignable(source.valueType, target.valueType)
    if isinstance(source, spark.StructType) and isinstance(target, spark.StructType):
        return len(source) == len(target) and all(
            assignable(s.dataType, t.dataType) for s, t in zip(source, target, strict=True)
        )
    return False


def with_constant(frame: DataFrame, name: str, value: datetime) -> DataFrame:
    """The frame with one timestamp in every row of a column."""
    return frame.withColumn(name, F.lit(value))
