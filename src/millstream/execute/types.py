"""Arrow types → Spark types."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as spark

from millstream.errors import Condition, StatementError
from millstream.schema import TIMESTAMP, TIMESTAMP_NTZ, normal_type

SCALARS: dict[pa.DataType, spark.DataType] = {
    pa.bool_(): spark.BooleanType(),
    pa.int8(): spark.ByteType(),
    pa.int16(): spark.ShortType(),
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.string(): spark.StringType(),
    pa.binary(): spark.BinaryType(),
    pa.date32(): spark.DateType(),
    TIMESTAMP: spark.TimestampType(),
    TIMESTAMP_NTZ: spark.TimestampNTZType(),
}


def spark_type(type_: pa.DataType) -> spark.DataType:
    if type_ in SCALARS:
        return SCALARS[type_]
    if pa.types.is_decimal(type_):
        return spark.DecimalType(type_.precision, type_.scale)
    if pa.types.is_map(type_):
        return spark.MapType(spark_type(type_.key_type), spark_type(type_.item_type))
    if pa.types.is_struct(type_):
        return spark.StructType([spark.StructField(f.name, spark_type(f.type)) for f in type_])
    return spark.ArrayType(spark_type(type_.value_type))


def stored_type(field: pa.Field) -> pa.DataType:
    """The type in which a query's column is stored; raises if there is none."""
    try:
        return normal_type(field.type)
    except ValueError as error:
        raise StatementError(
            Condition.UNKNOWN_TYPE,
            f"column {field.name!r} has a type that cannot be stored: {field.type}",
            hint="Convert it with CAST in the query.",
        ) from error


def spark_schema(schema: pa.Schema) -> spark.StructType:
    return spark.StructType([spark.StructField(f.name, spark_type(f.type)) for f in schema])
