"""Python functions in SQL: registered with Spark under a name, called row by row in its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from millstream.errors import Condition, StatementError
from millstream.execute.failures import translated
from millstream.sql.names import check_name
from millstream.sql.statements import Name

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.execute.session import Spark


def create(spark: Spark, name: str, function: Callable[..., Any], returns: str) -> None:
    """Register a function; one of ours of the same name is replaced, one of Spark's own is not."""
    check_name(Name(name))
    if not callable(function):
        raise StatementError(
            Condition.INVALID_ARGUMENT,
            f"{function!r} is not a function",
            hint="Give a Python function, e.g. db.create_function('twice', lambda x: 2 * x, returns='BIGINT').",
        )
    session = spark.session()
    with translated():
        if name.lower() not in spark.functions and session.catalog.functionExists(name):
            raise StatementError(
                Condition.DUPLICATE_NAME, f"Spark has a function {name!r} already", hint="Choose another name."
            )
    try:
        session.udf.register(name, function, returns)
    except (PySparkException, ValueError) as error:
        raise StatementError(
            Condition.UNKNOWN_TYPE,
            f"{returns!r} is not a type",
            detail=str(error).splitlines()[0],
            hint="Name a SQL type: INT, BIGINT, DOUBLE, STRING, BOOLEAN, DATE, TIMESTAMP, ARRAY<INT>, ….",
        ) from error
    spark.functions.add(name.lower())
